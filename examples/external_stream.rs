//! A compiled model on a `cust` stream and buffers of the caller: `external_stream EXECUTABLE`.
//!
//! It fills the inputs on the GPU, enqueues two runs on one stream without a wait between them, and prints the first
//! elements of the first output. It is an example of `interop/cust`, because `cust` needs CUDA to build:
//! `cargo run --release -p prestow-cust --features cust --example external_stream EXECUTABLE`.

use std::error::Error;
use std::path::PathBuf;

use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use prestow_cust::{Input, Model, Output};
use runtime::LibraryPaths;
use types::DType;

fn main() -> Result<(), Box<dyn Error>> {
    let executable: PathBuf = std::env::args_os().nth(1).ok_or("usage: external_stream EXECUTABLE")?.into();
    let _context = cust::quick_init()?;
    let device = cust::device::Device::get_device(0)?;
    let mut model = Model::open(&executable, device, LibraryPaths::of(|name| std::env::var_os(name)))?;
    // This stream waits for the default stream, which fills the buffers below: such a copy may return before its bytes
    // have arrived.
    let stream = Stream::new(StreamFlags::DEFAULT, None)?;

    let floats = |ports: &[runtime::Port]| -> Result<Vec<DeviceBuffer<f32>>, Box<dyn Error>> {
        let buffer = |port: &runtime::Port| match port.dtype {
            DType::F32 => Ok(DeviceBuffer::from_slice(&vec![0.5; port.shape.elements()])?),
            other => Err(format!("`{}` has {other} as elements; this example takes f32 only", port.name).into()),
        };
        ports.iter().map(buffer).collect()
    };
    let inputs = floats(&model.plan().inputs)?;
    let mut outputs = floats(&model.plan().outputs)?;
    {
        let inputs: Vec<Input> = inputs.iter().map(|buffer| Input::from(&**buffer)).collect();
        let mut outputs: Vec<Output> = outputs.iter_mut().map(|buffer| Output::from(&mut **buffer)).collect();
        #[expect(unsafe_code, reason = "enqueued runs use buffers after the call returns")]
        // SAFETY: buffers and model are alive and not accessed until the next run on the same stream, which waits, is done.
        unsafe {
            model.enqueue(&stream, &inputs, &mut outputs)?;
        }
        model.run(&stream, &inputs, &mut outputs)?;
    }
    let mut numbers = vec![0.0; outputs[0].len()];
    outputs[0].copy_to(&mut numbers)?;
    println!("{:?}", &numbers[..numbers.len().min(8)]);
    Ok(())
}
