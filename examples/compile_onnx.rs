//! Compiles an ONNX file in process and runs it once: `compile_onnx FILE.onnx [BATCH]`.
//!
//! Without a file it writes LeNet as ONNX into the folder of temporary files and takes that.

use std::error::Error;
use std::path::{Path, PathBuf};

use prestow::{CpuTarget, Port, Request, Tensor, onnx};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().map_or_else(sample, |path| Ok(PathBuf::from(path)))?;
    let batch = arguments.next().map(|text| text.to_string_lossy().parse()).transpose()?;

    let bytes = std::fs::read(&path)?;
    let external = path.parent().map(onnx::Directory);
    let external = external.as_ref().map(|directory| directory as &dyn onnx::ExternalData);
    let model = prestow::load_onnx(&bytes, external, &onnx::Options { batch, ..onnx::Options::default() })?;
    let compiled = prestow::compile(model, &CpuTarget::new(), prestow::Goal::default())?;
    let plan = &compiled.plan;
    println!(
        "{}: {} steps, arena {}, weights {}",
        path.display(),
        plan.steps.len(),
        plan.arena.size(),
        plan.constants_size
    );

    let zeros = |port: &Port| {
        let bytes = vec![0; port.operand.size.0 as usize];
        Tensor::from_le_bytes(port.dtype, port.shape.clone(), &bytes).expect("a port has the bytes of its type")
    };
    let inputs: Vec<Tensor> = plan.inputs.iter().map(zeros).collect();
    let mut session = prestow::open(compiled, 2)?;
    let outputs = session.run_tensors(&inputs)?;
    for (port, tensor) in session.plan().outputs.iter().zip(outputs) {
        println!("{}: {}{}", port.name, tensor.dtype(), tensor.shape());
    }
    Ok(())
}

/// The path of a small ONNX file.
fn sample() -> Result<PathBuf, Box<dyn Error>> {
    let lenet = prestow::load(&Request { model: "lenet".into(), ..Request::default() })?;
    let path = Path::new(&std::env::temp_dir()).join(format!("prestow-lenet-{}.onnx", std::process::id()));
    std::fs::write(&path, export::onnx(&lenet.graph)?)?;
    Ok(path)
}
