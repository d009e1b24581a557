//! A session as a part of a program: compiled once, then run on buffers of the caller without an allocation.
//!
//! `embed` runs LeNet on a few inputs; `embed EXECUTABLE` runs a model that `cargo xtask compile` wrote.

use std::error::Error;
use std::path::Path;

use prestow::{CpuTarget, Request, Session, View};

/// A classifier and the buffers that its runs use again.
struct Classifier {
    session: Session,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Classifier {
    fn new(session: Session) -> Classifier {
        let plan = session.plan();
        let bytes = |size: prestow::Bytes| vec![0; size.0 as usize];
        let (input, output) = (bytes(plan.inputs[0].operand.size), bytes(plan.outputs[0].operand.size));
        Classifier { session, input, output }
    }

    /// The index of the largest score for an input that `fill` computes element by element.
    fn classify(&mut self, fill: impl Fn(usize) -> f32) -> Result<usize, prestow::RunError> {
        for (ix, element) in self.input.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *element = fill(ix).to_le_bytes();
        }
        self.session.write_input(0, &self.input)?;
        self.session.run()?;
        self.session.read_output(0, &mut self.output)?;
        let scores = self.output.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).enumerate();
        Ok(scores.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(ix, _)| ix))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let session = match std::env::args_os().nth(1) {
        Some(path) => prestow::open_executable(Path::new(&path), 2)?,
        None => {
            let model = prestow::load(&Request { model: "lenet".into(), ..Request::default() })?;
            prestow::open(prestow::compile(model, &CpuTarget::new(), prestow::Goal::default())?, 2)?
        }
    };
    let report = prestow::report(session.plan());
    print!("{}", report.text(View::Headline, &Default::default()));
    let mut classifier = Classifier::new(session);
    for input in 0..3 {
        let class = classifier.classify(|ix| ((ix + input) % 7) as f32 / 7.0)?;
        println!("input {input}: class {class}");
    }
    Ok(())
}
