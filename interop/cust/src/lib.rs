//! Runs a compiled model for a GPU on a caller's `cust` stream and buffers: inputs and outputs stay on the GPU, and no call
//! waits for it.
//!
//! All of it is behind the feature `cust`, because `cust` needs CUDA to build and links to the driver. It can be checked
//! without either: `DOCS_RS=1 cargo check -p prestow-cust --features cust --examples`.
//!
//! `cust` and prestow share the primary context of a device, so that each can use the other's memory. See
//! `examples/external_stream.rs` of the repository.
#![cfg(feature = "cust")]
#![allow(unsafe_code, reason = "driver handles are passed between libraries")]

use std::path::Path;

use cust::device::Device;
use cust::memory::{DeviceCopy, DeviceSlice};
use cust::stream::Stream;
use runtime::{CudaDevice, ExternalBuffer, ExternalStream, ImageFile, LibraryPaths, StreamSession};
use types::DType;

/// Reason why a model does not open or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not an executable.
    #[error(transparent)]
    Open(#[from] runtime::OpenError),
    /// The model does not open or run.
    #[error(transparent)]
    Run(#[from] runtime::RunError),
    /// A buffer has another element type than the model.
    #[error("`{name}` must have elements of {want}, got {got}")]
    Elements {
        /// The input or output.
        name: String,
        /// The type that the model requires.
        want: DType,
        /// The type of the caller's buffer.
        got: DType,
    },
    /// A call of the driver failed.
    #[error("the driver: {0}")]
    Driver(#[from] cust::error::CudaError),
}

/// A type of buffer elements.
pub trait Element: DeviceCopy {
    /// Its dtype in plans.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty: $dtype:ident),*) => {
        $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })*
    };
}

elements!(f32: F32, f64: F64, i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64, bool: Bool);

/// An input buffer.
#[derive(Clone, Copy)]
pub struct Input<'a>(Slice<'a>);

/// An output buffer.
pub struct Output<'a>(Slice<'a>);

#[derive(Clone, Copy)]
struct Slice<'a> {
    dtype: DType,
    memory: ExternalBuffer,
    _of: std::marker::PhantomData<&'a ()>,
}

impl Slice<'_> {
    fn new<T: Element>(slice: &DeviceSlice<T>) -> Slice<'_> {
        // SAFETY: the slice is borrowed device memory. `enqueue` requires its callers to keep it alive until the GPU is done,
        // and `run` waits for that.
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
    /// Opens the model of an executable on the device of a context. `places` are searched for NVIDIA's libraries, if the
    /// model needs one.
    ///
    /// # Errors
    /// A file without a model, or one that does not open on the device.
    pub fn open(executable: &Path, device: Device, places: LibraryPaths) -> Result<Model, Error> {
        let image = ImageFile::open(executable)?;
        // The driver's handle of a device is its ordinal.
        let gpu = CudaDevice { ordinal: usize::try_from(device.as_raw()).unwrap_or_default(), places };
        Ok(Model(StreamSession::open(image.plans.clone(), &image, &gpu)?))
    }

    /// Selects the plan for a batch. Returns whether there is one.
    pub fn select(&mut self, batch: u64) -> bool {
        self.0.select(batch)
    }

    /// The selected plan, with the names, types and shapes of inputs and outputs.
    pub fn plan(&self) -> &runtime::Plan {
        self.0.plan()
    }

    /// Runs the selected plan on a stream and waits. Copies to the inputs on the default stream are complete only if `stream`
    /// waits for that one; a non-blocking stream does not.
    ///
    /// # Errors
    /// Other inputs or outputs than the model has; the driver fails.
    pub fn run(&mut self, stream: &Stream, inputs: &[Input], outputs: &mut [Output]) -> Result<(), Error> {
        // SAFETY: inputs, outputs and model are borrowed until the stream is synchronized, also after an error.
        let begun = unsafe { self.enqueue(stream, inputs, outputs) };
        let done = stream.synchronize();
        begun?;
        Ok(done?)
    }

    /// Enqueues a run on a stream.
    ///
    /// # Safety
    /// Until the run is done, inputs and outputs must stay alive; only work on this stream may write inputs or access
    /// outputs; and the model must not run on another stream.
    ///
    /// # Errors
    /// Other inputs or outputs than the model has; the driver fails.
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
        // SAFETY: contexts of cust are primary ones, so the stream's is; the caller guarantees the rest.
        let stream = unsafe { ExternalStream::new(stream.as_inner().cast()) };
        Ok(self.0.enqueue(stream, &memory(given), &memory(wanted))?)
    }
}
