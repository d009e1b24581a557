//! Times to compile networks and to run them.

use std::hint::black_box;
use std::sync::Arc;

use compiler::source::{Request, load};
use criterion::{Criterion, criterion_group, criterion_main};
use lower::cpu::CpuTarget;
use runtime::Host;
use types::{Random, Tensor};

const NETWORKS: [&str; 3] = ["squeezenet1_1", "mobilenet_v2", "resnet50"];

fn networks(criterion: &mut Criterion) {
    for name in NETWORKS {
        let request = Request { model: name.into(), ..Request::default() };
        let model = load(&request).expect("the zoo has it");
        let compile = || {
            compiler::compile(model.clone(), &CpuTarget::new(), compiler::Goal::default(), |_, _| {})
                .expect("it compiles")
        };
        criterion.bench_function(&format!("compile/{name}"), |bencher| bencher.iter(|| black_box(compile())));

        let compiled = compile();
        let plan = Arc::new(compiled.plan);
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let mut session =
            runtime::open(plan.clone(), Arc::new(compiled.constants.to_vec()), &Host { threads }).expect("it opens");
        let mut random = Random::new(1);
        let input = Tensor::from_fn(plan.inputs[0].shape.clone(), |_| random.uniform(-1.0, 1.0)).to_le_bytes();
        criterion.bench_function(&format!("run/{name}"), |bencher| {
            bencher.iter(|| {
                session.write_input(0, &input).expect("processors do not fail");
                session.run().expect("processors do not fail");
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = networks
}
criterion_main!(benches);
