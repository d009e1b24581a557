//! temp
#![allow(clippy::disallowed_methods)]
use prestow_arena::*;
fn main() {
    for path in std::env::args().skip(1) {
        let t = csv::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let start = std::time::Instant::now();
        let p = place(&t.problem, Limits::default()).unwrap();
        let ms = start.elapsed().as_secs_f64() * 1e3;
        println!("{:40} n {:6} LB {:13} at {:6} h {:13} +{:.3}% {:?} {ms:.1} ms", path.rsplit('/').next().unwrap(), t.ids.len(), p.certificate.lower_bound.0, p.certificate.peak_step, p.height.0,
            p.gap().0 as f64 / p.certificate.lower_bound.0 as f64 * 100.0, p.certificate.state);
        if t.ids.len() < 30000 { check(&t.problem, &p.offsets, p.height).unwrap(); }
    }
}
