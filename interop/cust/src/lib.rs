//! Runs a compiled model for a GPU on a caller's `cust` stream and buffers: what the model reads and writes stays on the
//! GPU, and nothing waits for it.
//!
//! Everything is behind the feature `cust`, because that library looks for CUDA when it is built and links to the driver. It
//! can be checked without either: `DOCS_RS=1 cargo check -p prestow-cust --features cust --examples`.
//!
//! `cust` and prestow hold the same primary context of a device, so that each may use the other's memory. See
//! `examples/external_stream.rs` of the repository.
#![cfg(feature = "cust")]
#![allow(unsafe_code, reason = "the driver's handles go from one library to another")]

use std::path::Path;
use std::sync::Arc;

use cust::device::Device;
use cust::memory::{DeviceCopy, DeviceSlice};
use cust::stream::Stream;
use runtime::{CudaDevice, ExternalBuffer, ExternalStream, ImageFile, LibraryPaths, StreamSession};
use types::DType;

/// What does not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no model in a file.
    #[error(transparent)]
    Open(#[from] runtime::OpenError),
    /// The model does not open or run.
    #[error(transparent)]
    Run(#[from] runtime::RunError),
    /// The model takes or gives other elements.
    #[error("`{name}` has {want} as elements, and {got} are given")]
    Elements {
        /// The input or output.
        name: String,
        /// The model's.
        want: DType,
        /// The caller's.
        got: DType,
    },
    /// The driver does not do what was asked.
    #[error("the driver: {0}")]
    Driver(#[from] cust::error::CudaError),
}

/// A type whose slices models read and write.
pub trait Element: DeviceCopy {
    /// What plans call it.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty: $dtype:ident),*) => {
        $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })*
    };
}

elements!(f32: F32, f64: F64, i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64, bool: Bool);

/// What a model reads.
#[derive(Clone, Copy)]
pub struct Input<'a>(Slice<'a>);

/// What a model writes.
pub struct Output<'a>(Slice<'a>);

#[derive(Clone, Copy)]
struct Slice<'a> {
    dtype: DType,
    memory: ExternalBuffer,
    _of: std::marker::PhantomData<&'a ()>,
}

impl Slice<'_> {
    fn new<T: Element>(slice: &DeviceSlice<T>) -> Slice<'_> {
        // SAFETY: the slice is the device's memory and borrowed. That it stays so until the GPU is done is what `enqueue`
        // asks of its callers, and what `run` waits for.
        let memory = unsafe { ExternalBuffer::new(slice.as_device_ptr().as_raw(), slice.len() * size_of::<T>()) };
        Slice { dtype: T::DTYPE, memory, _of: std::marker::PhantomData }
    }
}

impl<'a, T: Element> From<&'a DeviceSlice<T>> for Input<'a> {
    fn from(slice: &'a DeviceSlice<T>) -> Input<'a> {
        Input(Slice::new(slice))
    }
}

impl<'a, T: Element> From<&'a mut DeviceSlice<T>> for Output<'a> {
    fn from(slice: &'a mut DeviceSlice<T>) -> Output<'a> {
        Output(Slice::new(slice))
    }
}

/// A compiled model on a GPU.
pub struct Model(StreamSession);

impl Model {
    /// Opens the model of an executable on the device of a context. `places` says where NVIDIA's libraries may be, for
    /// models that need one.
    ///
    /// # Errors
    /// A file without a model, or one that does not open on the device.
    pub fn open(executable: &Path, device: Device, places: LibraryPaths) -> Result<Model, Error> {
        let image = ImageFile::open(executable)?;
        // The driver's handle of a device is its number.
        let gpu = CudaDevice { ordinal: usize::try_from(device.as_raw()).unwrap_or_default(), places };
        Ok(Model(StreamSession::open(image.plans.clone(), &image, &gpu)?))
    }

    /// Selects what was compiled for a batch; whether there is that.
    pub fn select(&mut self, batch: u64) -> bool {
        self.0.select(batch)
    }

    /// What is selected: the names, types and shapes of its inputs and outputs, and all that is planned.
    pub fn plan(&self) -> &runtime::Plan {
        self.0.plan()
    }

    /// Runs it on a stream and waits for that. What was copied to the inputs without a stream has come by then if the stream
    /// waits for the default one; a stream that is non-blocking does not.
    ///
    /// # Errors
    /// Other inputs or outputs than the model has; the driver fails.
    pub fn run(&mut self, stream: &Stream, inputs: &[Input], outputs: &mut [Output]) -> Result<(), Error> {
        // SAFETY: everything is borrowed until the stream is done, also where something was refused in between.
        let begun = unsafe { self.enqueue(stream, inputs, outputs) };
        let done = stream.synchronize();
        begun?;
        Ok(done?)
    }

    /// Begins to run it on a stream, behind all that was begun there.
    ///
    /// # Safety
    /// Until the stream is done with it, inputs and outputs stay alive, inputs are not written and outputs not touched by
    /// anything but what is begun on this stream, and the model is run on no other stream.
    ///
    /// # Errors
    /// Other inputs or outputs than the model has; the driver refuses something.
    pub unsafe fn enqueue(&mut self, stream: &Stream, inputs: &[Input], outputs: &mut [Output]) -> Result<(), Error> {
        let plan = self.0.plan();
        let given = inputs.iter().map(|input| input.0).collect::<Vec<Slice>>();
        let wanted = outputs.iter().map(|output| output.0).collect::<Vec<Slice>>();
        let pairs = plan.inputs.iter().zip(&given).chain(plan.outputs.iter().zip(&wanted));
        for (port, slice) in pairs {
            if port.dtype != slice.dtype {
                return Err(Error::Elements { name: port.name.clone(), want: port.dtype, got: slice.dtype });
            }
        }
        let memory = |slices: Vec<Slice>| slices.iter().map(|slice| slice.memory).collect::<Vec<ExternalBuffer>>();
        // SAFETY: cust's contexts are primary ones, and so the stream's is; the rest is the caller's promise.
        let stream = unsafe { ExternalStream::new(stream.as_inner().cast()) };
        Ok(self.0.enqueue(stream, &memory(given), &memory(wanted))?)
    }
}
