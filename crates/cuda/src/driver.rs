//! Owners of the driver's objects: a context with a stream, memory, modules, CUDA graphs. Each frees its object on drop, also
//! after failures.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::{
    DescriptionSource, DeviceDescription, DeviceProperties, ExternalStream, Launch, LibraryPaths, MeasuredMemory,
    cublas, cudnn, nvml, shared_memory::Range,
};

/// The oldest supported driver, in the driver's notation: CUDA 13.0.
const VERSION_MIN: i32 = 13_000;

/// Error of the driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DriverError {
    #[error(
        "NVIDIA's driver is required: libcuda.so.1 was not found; install the driver, start the container with `--gpus all`, \
         or compile for a CPU"
    )]
    NoDriver,
    #[error("the driver must support CUDA 13.0 or later, got {}.{}; install driver 580 or later", .0 / 1000, .0 % 1000 / 10)]
    TooOld(i32),
    #[error(
        "libcuda.so must be the driver's, got a toolkit's stub for linking; remove the folder `stubs` from LD_LIBRARY_PATH"
    )]
    Stub,
    #[error(
        "the driver's library and its kernel module must have the same version: `{0}`; restart the machine after an update, \
         and in a container use the host's libcuda.so.1"
    )]
    Mismatch(String),
    #[error(
        "this GPU does not support CUDA's compatibility package: `{0}`; remove its folder `compat` from LD_LIBRARY_PATH, and \
         install driver 580 or later"
    )]
    Compatibility(String),
    #[error(
        "a GPU is required, the driver found none: `{0}`; check `nvidia-smi -L`, the container's `--gpus all` and \
         CUDA_VISIBLE_DEVICES, or compile for a CPU"
    )]
    NoGpu(String),
    #[error(
        "cannot initialize the driver: {0}; check that `nvidia-smi` works and that this user may open /dev/nvidiactl, \
         /dev/nvidia-uvm and /dev/nvidia0"
    )]
    Start(String),
    #[error("the number of the GPU must be less than {count}, got {ordinal}")]
    NoDevice { ordinal: usize, count: i32 },
    #[error(
        "{name} must have {needed} free bytes, got {free} of {total} ({holders}); stop other processes, or use a smaller batch"
    )]
    OutOfMemory { name: String, needed: usize, free: usize, total: usize, holders: String },
    #[error(
        "{name} refused an allocation of {needed} bytes with {free} of {total} free: a limit per process (of MPS: \
         CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) or another process; raise the limit, stop the process, or use a smaller batch"
    )]
    Refused { name: String, needed: usize, free: usize, total: usize },
    #[error("the GPU is out of memory at {what}: {why}; stop other processes, or use another GPU")]
    Full { what: &'static str, why: String },
    #[error("the code is for another architecture than {arch} of {name}; compile for `cuda:{code}`")]
    Arch { name: String, arch: String, code: String },
    #[error(
        "the driver for CUDA {}.{} rejected the code: `{why}`; compile the model with an NVRTC that is not newer than the \
         driver, or install a newer driver", .version / 1000, .version % 1000 / 10
    )]
    Code { version: i32, why: String },
    #[error("the code must have the kernel `{0}`; the file is damaged, compile the model again")]
    NoKernel(String),
    #[error(
        "the GPU is unavailable at {what}: `{why}`; another process uses it exclusively, or its compute mode is \
         prohibited (`nvidia-smi -q -d COMPUTE`): stop that process, or use another GPU"
    )]
    Busy { what: &'static str, why: String },
    #[error(
        "MPS refused this process at {what}: `{why}`; check that nvidia-cuda-mps-control runs for this user, and stop \
         other clients if there are too many"
    )]
    Mps { what: &'static str, why: String },
    #[error(
        "the GPU is not ready at {what}: `{why}`; wait until the system is initialized, and on a machine with NVSwitch \
         (HGX) check that NVIDIA's fabric manager runs"
    )]
    NotReady { what: &'static str, why: String },
    #[error(
        "the GPU was lost at {what}: {why}; discard the results of this run and restart the process; if it happens twice, \
         search the system's log for `Xid`"
    )]
    Lost { what: &'static str, why: String },
    #[error("the GPU failed at {what}: {why}")]
    Failed { what: &'static str, why: String },
}

/// The driver's text for an error.
fn reason(error: result::DriverError) -> String {
    let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|| format!("error {:?}", error.0))
}

/// Converts a driver error, classified by the remedy. `what` is the failed operation.
pub(crate) fn failed(what: &'static str) -> impl Fn(result::DriverError) -> DriverError {
    use sys::cudaError_enum as Code;
    move |error| {
        let why = reason(error);
        match error.0 {
            Code::CUDA_ERROR_STUB_LIBRARY => DriverError::Stub,
            Code::CUDA_ERROR_NO_DEVICE => DriverError::NoGpu(why),
            Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => DriverError::Mismatch(why),
            Code::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => DriverError::Compatibility(why),
            Code::CUDA_ERROR_MPS_CONNECTION_FAILED
            | Code::CUDA_ERROR_MPS_RPC_FAILURE
            | Code::CUDA_ERROR_MPS_SERVER_NOT_READY
            | Code::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
            | Code::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED => DriverError::Mps { what, why },
            Code::CUDA_ERROR_OUT_OF_MEMORY => DriverError::Full { what, why },
            Code::CUDA_ERROR_DEVICE_UNAVAILABLE => DriverError::Busy { what, why },
            Code::CUDA_ERROR_SYSTEM_NOT_READY => DriverError::NotReady { what, why },
            // According to the driver's documentation, these errors corrupt the context.
            Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_CONTAINED
            | Code::CUDA_ERROR_EXTERNAL_DEVICE
            | Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED => DriverError::Lost { what, why },
            // A device that fell off the bus may report this as well.
            Code::CUDA_ERROR_UNKNOWN => {
                DriverError::Failed { what, why: format!("{why}; search the system's log for `Xid`") }
            }
            _ => DriverError::Failed { what, why },
        }
    }
}

/// An open GPU: its primary context, and the stream of all work.
pub struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    name: String,
    arch: String,
    /// Its major compute capability.
    generation: i32,
    /// The driver's version in its notation.
    version: i32,
}

// SAFETY: the driver's handles may be used from any thread on which the context is current, and every function below makes it
// current first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver accepts calls for one stream from several threads.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a GPU by its ordinal.
    ///
    /// # Errors
    /// There is no driver or no such GPU, the driver is too old, or it fails.
    pub fn open(ordinal: usize) -> Result<Arc<Gpu>, DriverError> {
        let (device, version) = find(ordinal)?;
        let name = result::device::get_name(device).map_err(failed("reading its name"))?;
        let attribute = |attribute| {
            // SAFETY: the driver returned the device.
            unsafe { result::device::get_attribute(device, attribute) }.map_err(failed("reading an attribute"))
        };
        use sys::CUdevice_attribute_enum::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let generation = attribute(MAJOR)?;
        let arch = format!("sm_{generation}{}", attribute(MINOR)?);
        // SAFETY: the driver returned the device; `Gpu` releases the context.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed("making a context"))?;
        let mut gpu = Gpu { device, context, stream: std::ptr::null_mut(), name, arch, generation, version };
        gpu.enter()?;
        gpu.stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("making a stream"))?;
        Ok(Arc::new(gpu))
    }

    /// The device, for calls that take it.
    pub(crate) fn device(&self) -> sys::CUdevice {
        self.device
    }

    /// The UUID, as `nvidia-smi -L` prints it. It does not depend on CUDA_VISIBLE_DEVICES.
    ///
    /// # Errors
    /// The driver fails.
    pub fn uuid(&self) -> Result<String, DriverError> {
        uuid(self.device)
    }

    /// Makes the context current for this thread.
    pub(crate) fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: `self` keeps the context alive.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("entering its context"))
    }

    /// Whether a launch may start before the previous one ends.
    fn has_dependent_launches(&self) -> bool {
        9 <= self.generation
    }

    /// The stream, for libraries.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The architecture, such as `sm_90`.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// Free and total bytes of memory.
    ///
    /// # Errors
    /// The driver fails.
    pub fn memory(&self) -> Result<(usize, usize), DriverError> {
        self.enter()?;
        result::mem_get_info().map_err(failed("reading its memory"))
    }

    /// The PCI bus id, such as `0000:01:00.0`, which identifies the GPU for other libraries.
    ///
    /// # Errors
    /// The driver fails.
    pub fn bus(&self) -> Result<String, DriverError> {
        let mut text = [0; 32];
        // SAFETY: the buffer has the given length, and its last byte stays zero.
        let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32 - 1, self.device) };
        status.result().map_err(failed("reading its bus address"))?;
        // SAFETY: the text ends with a zero.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Text with the other processes that hold memory, according to NVML.
    fn holders(&self) -> String {
        let told = self.bus().map_err(|error| error.to_string()).and_then(|bus| {
            let usage = nvml::usage(&LibraryPaths::default(), &bus);
            usage.map(|usage| usage.holders_beside(std::process::id())).map_err(|error| error.to_string())
        });
        told.unwrap_or_else(|why| format!("other processes are unknown: {why}"))
    }

    /// Queries the device description.
    ///
    /// # Errors
    /// The driver fails.
    pub fn describe(&self) -> Result<DeviceDescription, DriverError> {
        use sys::CUdevice_attribute_enum as Is;
        let number = |attribute| {
            // SAFETY: the driver returned the device.
            let value = unsafe { result::device::get_attribute(self.device, attribute) };
            Ok(u32::try_from(value.map_err(failed("reading an attribute"))?).unwrap_or_default())
        };
        let mut version = 0;
        // SAFETY: the pointer is valid.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("reading its version"))?;
        // SAFETY: the driver returned the device.
        let total = unsafe { result::device::total_mem(self.device) }.map_err(failed("reading its memory"))?;
        let device = DeviceProperties {
            device_name: self.name.clone(),
            device_ver: 100 * number(Is::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
                + 10 * number(Is::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            driver_ver: u32::try_from(version).unwrap_or_default(),
            multi_processor_count: number(Is::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            total_global_mem: total as u64,
            l2_cache_size: u64::from(number(Is::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            sm_clock_rate_khz: number(Is::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            mem_clock_rate_khz: number(Is::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            max_grid_size: [
                number(Is::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                number(Is::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                number(Is::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ],
            max_block_size: [
                number(Is::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                number(Is::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                number(Is::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ],
            max_threads_per_block: number(Is::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            max_threads_per_sm: number(Is::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            max_ctas_per_sm: number(Is::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            regs_per_block: number(Is::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?,
            max_registers_per_sm: number(Is::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            max_shared_memory_per_block: number(Is::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
            max_shared_memory_per_block_optin: number(Is::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            reserved_shared_memory_per_block: number(Is::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
            warp_size: number(Is::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
            support_coop_launch: number(Is::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)?,
            is_tcc_driver: number(Is::CU_DEVICE_ATTRIBUTE_TCC_DRIVER)?,
            pci_device_id: number(Is::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
            cuda_device_id: u32::try_from(self.device).unwrap_or_default(),
            more: Default::default(),
        };
        let mut facts = DeviceDescription::new(DescriptionSource::Recorded, device);
        let (free, total) = self.memory()?;
        let context_bytes = total.saturating_sub(free) as u64;
        facts.measured = Some(MeasuredMemory { context_bytes, cudnn_bytes: None, cublas_bytes: None });
        facts.libraries.insert("driver".into(), format!("{}.{}", version / 1000, version % 1000 / 10));
        Ok(facts)
    }

    /// Waits until all enqueued work is complete.
    ///
    /// # Errors
    /// The work or the driver failed.
    pub fn finish(&self) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: `self` keeps the stream alive.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed("running kernels"))
    }
}

/// Initializes the driver; returns the GPU of an ordinal and the driver's version. Makes no context.
fn find(ordinal: usize) -> Result<(sys::CUdevice, i32), DriverError> {
    // SAFETY: the call only queries the system's loader.
    if !unsafe { sys::is_culib_present() } {
        return Err(DriverError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the pointer is valid. Every driver has this function.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("reading its version"))?;
    if version < VERSION_MIN {
        return Err(DriverError::TooOld(version));
    }
    result::init().map_err(|error| match failed("initialization")(error) {
        DriverError::Failed { why, .. } => DriverError::Start(why),
        other => other,
    })?;
    let count = result::device::get_count().map_err(failed("counting devices"))?;
    let number = i32::try_from(ordinal).ok().filter(|number| *number < count);
    let number = number.ok_or(DriverError::NoDevice { ordinal, count })?;
    let device = result::device::get(number).map_err(failed("opening a device"))?;
    Ok((device, version))
}

/// The number of GPUs.
///
/// # Errors
/// There is no driver, it is too old, or it fails.
pub fn count() -> Result<usize, DriverError> {
    find(0)?;
    let count = result::device::get_count().map_err(failed("counting devices"))?;
    Ok(usize::try_from(count).unwrap_or_default())
}

/// The UUID of a GPU by its ordinal. Makes no context.
///
/// # Errors
/// As [`Gpu::open`].
pub fn uuid_of(ordinal: usize) -> Result<String, DriverError> {
    uuid(find(ordinal)?.0)
}

fn uuid(device: sys::CUdevice) -> Result<String, DriverError> {
    let mut id = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is valid, and the driver returned the device.
    unsafe { sys::cuDeviceGetUuid_v2(&mut id, device) }.result().map_err(failed("reading its UUID"))?;
    let hex: String = id.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
    let part = |range: std::ops::Range<usize>| &hex[range];
    Ok(format!("GPU-{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)))
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // A failure has no remedy.
        if self.enter().is_ok() && !self.stream.is_null() {
            // SAFETY: the stream is ours.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
        // SAFETY: it was retained once.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A block of a GPU's memory. Several may write to it: the GPU does one after the other.
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    start: sys::CUdeviceptr,
    size: usize,
    /// The range of addresses that is mapped, if the block is not one allocation.
    range: Option<Range>,
}

impl DeviceMemory {
    /// So many bytes; whether they fit is known before they are asked for.
    ///
    /// # Errors
    /// They do not fit.
    pub fn new(gpu: &Arc<Gpu>, size: usize) -> Result<DeviceMemory, DriverError> {
        let (free, total) = gpu.memory()?;
        let full = |free: usize| {
            let (name, needed) = (gpu.name.clone(), size);
            match free < size {
                true => DriverError::OutOfMemory { name, needed, free, total, holders: gpu.holders() },
                false => DriverError::Refused { name, needed, free, total },
            }
        };
        if free < size {
            return Err(full(free));
        }
        // SAFETY: the context is current; `DeviceMemory` frees the block. An allocation needs at least one byte.
        let start = unsafe { result::malloc_sync(size.max(1)) };
        let start = start.map_err(|error| match error.0 {
            // Other processes may have allocated since the query.
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => full(gpu.memory().map_or(free, |(free, _)| free)),
            _ => failed("allocating memory")(error),
        })?;
        Ok(DeviceMemory { gpu: gpu.clone(), start, size, range: None })
    }

    /// A block of a range of mapped addresses.
    pub(crate) fn of_range(gpu: &Arc<Gpu>, range: Range, size: usize) -> DeviceMemory {
        DeviceMemory { gpu: gpu.clone(), start: range.start(), size, range: Some(range) }
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The device address of an offset.
    ///
    /// # Panics
    /// The offset is outside of the block.
    pub fn address(&self, place: usize) -> u64 {
        assert!(place <= self.size, "it lies in the block");
        self.start + place as u64
    }

    // Copies use this GPU's own stream. Copies without a stream use the default stream, which does not synchronize with it: they
    // may return before the bytes arrive, and a kernel would read old bytes. They are also invalid while another thread
    // captures.

    /// Writes bytes at an offset after all enqueued work, and waits for completion.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// The range is outside of the block.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DriverError> {
        assert!(offset <= self.size && bytes.len() <= self.size - offset, "they lie in the block");
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.enter()?;
        // SAFETY: the range is inside of the block (asserted), which `self` owns. The caller's bytes live until `finish` returns;
        // if it fails, the context is lost and nothing reads them.
        unsafe { result::memcpy_htod_async(self.start + offset as u64, bytes, self.gpu.stream) }
            .map_err(failed("copying to the device"))?;
        self.gpu.finish()
    }

    /// Reads bytes at an offset after all enqueued work, and waits for completion.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// The range is outside of the block.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), DriverError> {
        assert!(offset <= self.size && bytes.len() <= self.size - offset, "they lie in the block");
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.enter()?;
        // SAFETY: the range is inside of the block (asserted), which `self` owns. The caller's bytes live until `finish` returns;
        // if it fails, the context is lost and nothing writes them.
        unsafe { result::memcpy_dtoh_async(bytes, self.start + offset as u64, self.gpu.stream) }
            .map_err(failed("copying from the device"))?;
        self.gpu.finish()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.range.is_none() && self.gpu.enter().is_ok() {
            // SAFETY: `self` owns the block.
            let _ = unsafe { result::free_sync(self.start) };
        }
    }
}

/// Machine code that is loaded on a GPU.
pub struct Module {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
}

// SAFETY: as for `Gpu`: every function makes its context current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin.
    ///
    /// # Errors
    /// The cubin is for another architecture, or the driver refuses it.
    pub fn load(gpu: &Arc<Gpu>, cubin: &[u8]) -> Result<Module, DriverError> {
        gpu.enter()?;
        // SAFETY: the ELF header gives the length that the driver reads; plans carry complete files with checksums.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                // Code for the first architecture of a generation runs on all of it.
                let code = format!("{}0", &gpu.arch[..gpu.arch.len() - 1]);
                DriverError::Arch { name: gpu.name.clone(), arch: gpu.arch.clone(), code }
            }
            sys::CUresult::CUDA_ERROR_INVALID_IMAGE
            | sys::CUresult::CUDA_ERROR_INVALID_SOURCE
            | sys::CUresult::CUDA_ERROR_INVALID_PTX
            | sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                DriverError::Code { version: gpu.version, why: reason(error) }
            }
            _ => failed("loading code")(error),
        })?;
        Ok(Module { gpu: gpu.clone(), module })
    }

    /// Prepares the launch of a kernel whose arguments are offsets in a block of memory.
    ///
    /// # Errors
    /// There is no kernel of that name.
    ///
    /// # Panics
    /// An offset is outside of the block.
    pub fn call(
        self: &Arc<Module>,
        launch: &Launch,
        memory: &Arc<DeviceMemory>,
        places: &[usize],
    ) -> Result<KernelCall, DriverError> {
        assert!(places.iter().all(|&place| place <= memory.size), "they lie in the block");
        let missing = || DriverError::NoKernel(launch.entry.clone());
        let name = CString::new(launch.entry.as_str()).map_err(|_| missing())?;
        self.gpu.enter()?;
        // SAFETY: `self` keeps the module alive.
        let function = unsafe { result::module::get_function(self.module, name) }.map_err(|_| missing())?;
        let Launch { grid, block, shared, repeat, waits, .. } = launch;
        if *shared != 0 {
            provide_shared(function, *shared)?;
        }
        let addresses = places.iter().map(|&place| memory.start + place as u64).collect();
        let (module, memory) = (self.clone(), memory.clone());
        let (grid, block, shared, repeat) = (*grid, *block, *shared, *repeat);
        let overlaps = *waits && module.gpu.has_dependent_launches();
        Ok(KernelCall { module, _memory: memory, function, grid, block, shared, repeat, overlaps, addresses })
    }
}

/// Raises a function's limit of dynamic shared memory, and sets the preferred carveout of shared memory to its maximum.
fn provide_shared(function: sys::CUfunction, bytes: u32) -> Result<(), DriverError> {
    use sys::CUfunction_attribute_enum as Attribute;
    let attributes = [
        (Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes as i32),
        // Percent.
        (Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
    ];
    for (attribute, value) in attributes {
        // SAFETY: the caller's module keeps the function alive, and its context is current.
        unsafe { sys::cuFuncSetAttribute(function, attribute, value) }
            .result()
            .map_err(failed("setting a kernel's shared memory"))?;
    }
    Ok(())
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: `self` owns the module.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// A unit of device work: a kernel, or a library call.
pub enum DeviceCall {
    /// A kernel.
    Kernel(KernelCall),
    /// A cuDNN plan.
    Cudnn(cudnn::Execution),
    /// A cuBLASLt product.
    Cublas(cublas::Execution),
}

impl DeviceCall {
    /// Enqueues it on the GPU's stream.
    ///
    /// # Errors
    /// The driver or the library fails.
    pub fn launch(&self) -> Result<(), DriverError> {
        match self {
            DeviceCall::Kernel(call) => call.launch(),
            DeviceCall::Cudnn(execution) => execution.launch(),
            DeviceCall::Cublas(execution) => execution.launch(),
        }
    }
}

/// A kernel with its arguments.
pub struct KernelCall {
    module: Arc<Module>,
    /// Keeps the arguments' block alive.
    _memory: Arc<DeviceMemory>,
    function: sys::CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    repeat: Option<u32>,
    /// Whether a launch may start before the previous one ends.
    overlaps: bool,
    addresses: Box<[u64]>,
}

// SAFETY: as for `Gpu`, whose context `launch` makes current.
unsafe impl Send for KernelCall {}
// SAFETY: as above.
unsafe impl Sync for KernelCall {}

impl KernelCall {
    /// Enqueues all launches on the GPU's stream. Allocates nothing for up to fifteen pointers.
    ///
    /// # Errors
    /// The driver refuses the operation.
    pub fn launch(&self) -> Result<(), DriverError> {
        let gpu = &self.module.gpu;
        gpu.enter()?;
        let mut few = [std::ptr::null_mut::<c_void>(); 16];
        let mut many = Vec::new();
        let count = self.addresses.len() + usize::from(self.repeat.is_some());
        let arguments: &mut [*mut c_void] = match few.get_mut(..count) {
            Some(few) => few,
            None => {
                many.resize(count, std::ptr::null_mut());
                &mut many
            }
        };
        for (argument, address) in arguments.iter_mut().zip(&self.addresses) {
            *argument = std::ptr::from_ref(address).cast_mut().cast();
        }
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (self.grid, self.block);
        // SAFETY: all zeros are a value of this struct of integers and a union; the driver reads the field for the attribute.
        let mut overlap: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        overlap.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        overlap.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: self.shared,
            hStream: gpu.stream,
            attrs: &raw mut overlap,
            numAttrs: u32::from(self.overlaps),
        };
        for number in 0..self.repeat.unwrap_or(1) {
            let number = u64::from(number);
            if self.repeat.is_some() {
                arguments[count - 1] = std::ptr::from_ref(&number).cast_mut().cast();
            }
            // SAFETY: module and memory are alive, and the driver reads the arguments before it returns. They point into a
            // block of device memory. A kernel that leaves the block can corrupt other device memory, but no host memory:
            // it receives no host address.
            unsafe {
                sys::cuLaunchKernelEx(&raw const config, self.function, arguments.as_mut_ptr(), std::ptr::null_mut())
            }
            .result()
            .map_err(failed("launching a kernel"))?;
        }
        Ok(())
    }
}

/// A CUDA graph: captured work that is launched as one.
pub struct CudaGraph {
    gpu: Arc<Gpu>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    calls: Vec<DeviceCall>,
}

// SAFETY: as for `Gpu`: every function makes its context current.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Captures calls in order. The graph keeps them alive.
    ///
    /// # Errors
    /// A call fails, or the driver refuses the capture.
    pub fn capture(gpu: &Arc<Gpu>, calls: Vec<DeviceCall>) -> Result<CudaGraph, DriverError> {
        gpu.enter()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive. Captures happen while a plan is opened, before the stream is used otherwise.
        unsafe { result::stream::begin_capture(gpu.stream, mode) }.map_err(failed("beginning a capture"))?;
        let launched = calls.iter().try_for_each(DeviceCall::launch);
        // SAFETY: the stream is alive. A capture must be ended after a failed launch too.
        let ended = unsafe { result::stream::end_capture(gpu.stream) }.map_err(failed("ending a capture"));
        let graph = ended.as_ref().copied().unwrap_or(std::ptr::null_mut());
        let mut captured = CudaGraph { gpu: gpu.clone(), graph, exec: std::ptr::null_mut(), calls };
        // A failed launch is reported first: it is the reason for an invalid capture.
        launched?;
        ended?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: `captured` owns the graph, and the pointer is valid.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, captured.graph, 0) }
            .result()
            .map_err(failed("instantiating a CUDA graph"))?;
        captured.exec = exec;
        Ok(captured)
    }

    /// The captured calls.
    pub fn calls(&self) -> &[DeviceCall] {
        &self.calls
    }

    /// Enqueues it on an external stream.
    ///
    /// # Errors
    /// The driver refuses the operation.
    pub fn launch_on(&self, stream: ExternalStream) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: graph, code and memory are alive; `ExternalStream::new` states the contract of the stream.
        unsafe { result::graph::launch(self.exec, stream.raw()) }.map_err(failed("launching a CUDA graph"))
    }

    /// Enqueues it on the GPU's stream.
    ///
    /// # Errors
    /// The driver refuses the operation.
    pub fn launch(&self) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: graph, stream, code and memory are alive.
        unsafe { result::graph::launch(self.exec, self.gpu.stream) }.map_err(failed("launching a CUDA graph"))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.gpu.enter().is_err() {
            return;
        }
        if !self.exec.is_null() {
            // SAFETY: `self` owns it.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
        if !self.graph.is_null() {
            // SAFETY: `self` owns it.
            let _ = unsafe { result::graph::destroy(self.graph) };
        }
    }
}
