//! A compiled model between kernels of one's own: `lend EXECUTABLE` fills the inputs on the GPU, runs the model twice on one
//! stream without waiting in between, and prints the first numbers of the first output.

use std::error::Error;
use std::path::PathBuf;

use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use prestow_cust::{Input, Model, Output};
use runtime::Places;
use types::DType;

fn main() -> Result<(), Box<dyn Error>> {
    let executable: PathBuf = std::env::args_os().nth(1).ok_or("usage: lend EXECUTABLE")?.into();
    let _context = cust::quick_init()?;
    let device = cust::device::Device::get_device(0)?;
    let mut model = Model::open(&executable, device, Places::of(|name| std::env::var_os(name)))?;
    // A stream that waits for the default one, by which buffers are filled below: such a copy may return before its bytes have
    // come, and another stream would have to wait for the context first.
    let stream = Stream::new(StreamFlags::DEFAULT, None)?;

    let floats = |ports: &[runtime::Port]| -> Result<Vec<DeviceBuffer<f32>>, Box<dyn Error>> {
        let buffer = |port: &runtime::Port| match port.dtype {
            DType::F32 => Ok(DeviceBuffer::from_slice(&vec![0.5; port.shape.elements()])?),
            other => Err(format!("`{}` has {other} as elements; this example has f32 alone", port.name).into()),
        };
        ports.iter().map(buffer).collect()
    };
    let inputs = floats(&model.plan().inputs)?;
    let mut outputs = floats(&model.plan().outputs)?;
    {
        let inputs: Vec<Input> = inputs.iter().map(|buffer| Input::from(&**buffer)).collect();
        let mut outputs: Vec<Output> = outputs.iter_mut().map(|buffer| Output::from(&mut **buffer)).collect();
        #[expect(unsafe_code, reason = "runs are begun without waiting for them")]
        // SAFETY: buffers and model are alive and untouched until the run behind this one, on the same stream, is done.
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
