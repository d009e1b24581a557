//! A GPU through its driver: owners of a context with a stream, of memory, of modules and of graphs. Nothing is left behind
//! when they go, also where something failed in between.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::{
    DescriptionSource, DeviceDescription, DeviceProperties, ExternalStream, Launch, LibraryPaths, MeasuredMemory,
    cublas, cudnn, nvml,
};

/// The oldest driver that takes machine code of the compiler that we use, as the driver counts: CUDA 13.0.
const VERSION_MIN: i32 = 13_000;

/// What a GPU could not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DriverError {
    #[error(
        "there is no driver for NVIDIA's GPUs: libcuda.so.1 is not where the system looks; install the driver, give it to the \
         container (`--gpus all`), or compile for --target cpu"
    )]
    NoDriver,
    #[error("the driver is for CUDA {}.{}, and 13.0 is needed; install driver 580 or later", .0 / 1000, .0 % 1000 / 10)]
    TooOld(i32),
    #[error(
        "what the system finds as libcuda.so is a toolkit's stub, with which programs are linked, and no driver; take its \
         folder `stubs` out of LD_LIBRARY_PATH"
    )]
    Stub,
    #[error(
        "the driver's library and its kernel module do not belong together: the driver says `{0}`; after an update start the \
         machine again, and in a container see that libcuda.so.1 is the machine's"
    )]
    Mismatch(String),
    #[error(
        "this GPU does not take a later CUDA than its driver's by a compatibility package: the driver says `{0}`; take the \
         package's folder, `compat`, out of LD_LIBRARY_PATH, and install driver 580 or later"
    )]
    Compatibility(String),
    #[error(
        "the driver shows no GPU, and says `{0}`; see that `nvidia-smi -L` lists one, that a container was given it (`--gpus \
         all`) and that CUDA_VISIBLE_DEVICES does not hide it, or compile for --target cpu"
    )]
    NoGpu(String),
    #[error(
        "the GPU failed at its start: {0}; see whether `nvidia-smi` works, and whether this user may open /dev/nvidiactl, \
         /dev/nvidia-uvm and /dev/nvidia0"
    )]
    Start(String),
    #[error("there is no GPU {ordinal}; the driver has {count}")]
    NoDevice { ordinal: usize, count: i32 },
    #[error(
        "{needed} bytes do not fit into {name}: {free} of {total} are free ({holders}); stop what holds the rest, or take a \
         smaller batch"
    )]
    OutOfMemory { name: String, needed: usize, free: usize, total: usize, holders: String },
    #[error(
        "{name} does not give {needed} bytes, though {free} of {total} are free: a limit is on what a process may have of it \
         (that of MPS is CUDA_MPS_PINNED_DEVICE_MEM_LIMIT), or others take it meanwhile; raise the limit, stop them, or take a \
         smaller batch"
    )]
    Refused { name: String, needed: usize, free: usize, total: usize },
    #[error("the GPU has no memory left at {what}: {why}; stop what holds the rest, or name another GPU with --device")]
    Full { what: &'static str, why: String },
    #[error("{name} is {arch}, and the code is for another architecture; compile with --target cuda:{code}")]
    Arch { name: String, arch: String, code: String },
    #[error(
        "the driver, which is for CUDA {}.{}, does not take the code: it says `{why}`; compile the model again, with an NVRTC \
         that is no later than the driver, or install a later driver", .version / 1000, .version % 1000 / 10
    )]
    Code { version: i32, why: String },
    #[error("the code has no kernel `{0}`; the file is damaged, compile the model again")]
    NoKernel(String),
    #[error(
        "the GPU is not to be had: the driver says `{why}` at {what}; another process has it to itself, or its mode lets \
         nobody in (`nvidia-smi -q -d COMPUTE` tells): stop that process, or name another GPU with --device"
    )]
    Busy { what: &'static str, why: String },
    #[error(
        "MPS, by which processes share the GPU, does not take this one: the driver says `{why}` at {what}; see that its daemon \
         (nvidia-cuda-mps-control) runs for this user, and stop what it serves beside us if that is too many"
    )]
    Mps { what: &'static str, why: String },
    #[error(
        "the GPU is not ready: the driver says `{why}` at {what}; the system is being set up: wait until it is, and on a \
         machine whose GPUs are joined by NVSwitch (HGX) see that NVIDIA's fabric manager runs"
    )]
    NotReady { what: &'static str, why: String },
    #[error(
        "the GPU was lost at {what}: {why}; no result of this run is to be used, and this process cannot use the GPU any more: \
         start it again, and look for `Xid` in the system's log if it happens twice"
    )]
    Lost { what: &'static str, why: String },
    #[error("the GPU failed at {what}: {why}")]
    Failed { what: &'static str, why: String },
}

/// The driver's words for its error.
fn reason(error: result::DriverError) -> String {
    let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|| format!("error {:?}", error.0))
}

/// Makes an error of ours of the driver's, by what it means for whoever gets it.
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
            // As the driver's documentation has it, a context that has seen one of these is of no use any more.
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
            // So a device may answer that fell off its bus, too.
            Code::CUDA_ERROR_UNKNOWN => {
                DriverError::Failed { what, why: format!("{why}; look for `Xid` in the system's log") }
            }
            _ => DriverError::Failed { what, why },
        }
    }
}

/// A GPU that is opened: its context, and a stream on which everything happens in order.
pub struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    name: String,
    arch: String,
    /// The driver's, as it counts.
    version: i32,
}

// SAFETY: the driver's handles may be used from any thread, as long as the context is current there: every function below
// makes it so first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver takes calls for one stream from several threads.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a GPU by its number.
    ///
    /// # Errors
    /// No driver, one that is too old, no such GPU, or one that does not answer.
    pub fn open(ordinal: usize) -> Result<Arc<Gpu>, DriverError> {
        // SAFETY: it asks the system's loader.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverError::NoDriver);
        }
        let mut version = 0;
        // SAFETY: the number can be written. This is the one function that every driver has.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("being asked for its version"))?;
        if version < VERSION_MIN {
            return Err(DriverError::TooOld(version));
        }
        result::init().map_err(|error| match failed("its start")(error) {
            DriverError::Failed { why, .. } => DriverError::Start(why),
            other => other,
        })?;
        let count = result::device::get_count().map_err(failed("being counted"))?;
        let number = i32::try_from(ordinal).ok().filter(|number| *number < count);
        let number = number.ok_or(DriverError::NoDevice { ordinal, count })?;
        let device = result::device::get(number).map_err(failed("being opened"))?;
        let name = result::device::get_name(device).map_err(failed("being asked for its name"))?;
        let attribute = |attribute| {
            // SAFETY: the device is one that the driver gave.
            unsafe { result::device::get_attribute(device, attribute) }.map_err(failed("being asked what it is"))
        };
        use sys::CUdevice_attribute_enum::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let arch = format!("sm_{}{}", attribute(MAJOR)?, attribute(MINOR)?);
        // SAFETY: the device is one that the driver gave; `Gpu` releases the context.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed("making a context"))?;
        let mut gpu = Gpu { device, context, stream: std::ptr::null_mut(), name, arch, version };
        gpu.enter()?;
        gpu.stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("making a stream"))?;
        Ok(Arc::new(gpu))
    }

    /// Makes the context current for this thread.
    pub(crate) fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is alive as long as we are.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("taking up its context"))
    }

    /// The stream, for libraries that work on it.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its architecture, as `sm_90`.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// Bytes that are free, and bytes in all.
    ///
    /// # Errors
    /// The GPU does not answer.
    pub fn memory(&self) -> Result<(usize, usize), DriverError> {
        self.enter()?;
        result::mem_get_info().map_err(failed("being asked for its memory"))
    }

    /// Where it is on the PCI bus, `0000:01:00.0` for one, by which NVIDIA's other libraries find it.
    ///
    /// # Errors
    /// The GPU does not answer.
    pub fn bus(&self) -> Result<String, DriverError> {
        let mut text = [0; 32];
        // SAFETY: there is room for as many bytes as are said, of which the last goes on to be a zero.
        let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32 - 1, self.device) };
        status.result().map_err(failed("being asked where it is"))?;
        // SAFETY: the last byte is a zero.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Who holds its memory beside us, in words, as far as NVML tells.
    fn holders(&self) -> String {
        let told = self.bus().map_err(|error| error.to_string()).and_then(|bus| {
            let usage = nvml::usage(&LibraryPaths::default(), &bus);
            usage.map(|usage| usage.holders_beside(std::process::id())).map_err(|error| error.to_string())
        });
        told.unwrap_or_else(|why| format!("who holds the rest is not told: {why}"))
    }

    /// What there is to know of it, for machines without it.
    ///
    /// # Errors
    /// The GPU does not answer.
    pub fn describe(&self) -> Result<DeviceDescription, DriverError> {
        use sys::CUdevice_attribute_enum as Is;
        let number = |attribute| {
            // SAFETY: the device is one that the driver gave.
            let value = unsafe { result::device::get_attribute(self.device, attribute) };
            Ok(u32::try_from(value.map_err(failed("being asked what it is"))?).unwrap_or_default())
        };
        let mut version = 0;
        // SAFETY: the number can be written.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("being asked for its version"))?;
        // SAFETY: the device is one that the driver gave.
        let total = unsafe { result::device::total_mem(self.device) }.map_err(failed("being asked for its memory"))?;
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

    /// Waits until everything is done.
    ///
    /// # Errors
    /// What failed in the meantime.
    pub fn finish(&self) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: the stream is alive as long as we are.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed("running kernels"))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // What could be said of a failure helps nobody any more.
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
        // SAFETY: the context is current; `DeviceMemory` frees it. Something has an address, so there is a byte at least.
        let start = unsafe { result::malloc_sync(size.max(1)) };
        let start = start.map_err(|error| match error.0 {
            // Others may have been faster.
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => full(gpu.memory().map_or(free, |(free, _)| free)),
            _ => failed("giving memory")(error),
        })?;
        Ok(DeviceMemory { gpu: gpu.clone(), start, size })
    }

    /// How many bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Where a place of it is, for the GPU.
    ///
    /// # Panics
    /// A place outside.
    pub fn address(&self, place: usize) -> u64 {
        assert!(place <= self.size, "it lies in the block");
        self.start + place as u64
    }

    // Bytes come and go on our stream. The driver's copies without a stream are in its default stream, which ours does not
    // wait for, and a copy to the GPU may return there before its bytes have come: a kernel would read what lay there before.
    // Where another thread records, nobody may use that stream either.

    /// Writes bytes from a place on, behind all that was begun before, and waits for that.
    ///
    /// # Errors
    /// What failed.
    ///
    /// # Panics
    /// Bytes outside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DriverError> {
        assert!(offset <= self.size && bytes.len() <= self.size - offset, "they lie in the block");
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.enter()?;
        // SAFETY: the bytes lie in the block (asserted), which is ours. The caller's are there until the stream is done; a GPU
        // that cannot say that it is reads no more.
        unsafe { result::memcpy_htod_async(self.start + offset as u64, bytes, self.gpu.stream) }
            .map_err(failed("taking bytes"))?;
        self.gpu.finish()
    }

    /// Reads bytes from a place on, behind all that was begun before, and waits for that.
    ///
    /// # Errors
    /// What failed.
    ///
    /// # Panics
    /// Bytes outside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), DriverError> {
        assert!(offset <= self.size && bytes.len() <= self.size - offset, "they lie in the block");
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.enter()?;
        // SAFETY: the bytes lie in the block (asserted), which is ours. The caller's are there until the stream is done; a GPU
        // that cannot say that it is writes no more.
        unsafe { result::memcpy_dtoh_async(bytes, self.start + offset as u64, self.gpu.stream) }
            .map_err(failed("giving bytes"))?;
        self.gpu.finish()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: the block is ours.
            let _ = unsafe { result::free_sync(self.start) };
        }
    }
}

/// Machine code on a GPU.
pub struct Module {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
}

// SAFETY: as for `Gpu`, whose context every function makes current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin.
    ///
    /// # Errors
    /// One for another architecture, or one that the driver refuses.
    pub fn load(gpu: &Arc<Gpu>, cubin: &[u8]) -> Result<Module, DriverError> {
        gpu.enter()?;
        // SAFETY: the driver reads a file whose header says how long it is; plans carry whole files with checksums.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                // What is for the first of a generation runs on all of it.
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

    /// A kernel with its arguments, pointers to places in a block of memory, ready to be launched.
    ///
    /// # Errors
    /// There is none of that name.
    ///
    /// # Panics
    /// LibraryPaths outside the block.
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
        // SAFETY: the module is alive.
        let function = unsafe { result::module::get_function(self.module, name) }.map_err(|_| missing())?;
        let Launch { grid, block, repeat, .. } = launch;
        let addresses = places.iter().map(|&place| memory.start + place as u64).collect();
        let (module, memory) = (self.clone(), memory.clone());
        Ok(KernelCall { module, _memory: memory, function, grid: *grid, block: *block, repeat: *repeat, addresses })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: the module is ours.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// What is done as one: a kernel of ours, or a library's work.
pub enum DeviceCall {
    /// A kernel.
    Kernel(KernelCall),
    /// A plan of cuDNN's.
    Cudnn(cudnn::Execution),
    /// A product of cuBLASLt's.
    Cublas(cublas::Execution),
}

impl DeviceCall {
    /// Launches it, behind all that was begun before.
    ///
    /// # Errors
    /// The driver or the library refuses it.
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
    /// Where the arguments point.
    _memory: Arc<DeviceMemory>,
    function: sys::CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    repeat: Option<u32>,
    addresses: Box<[u64]>,
}

// SAFETY: as for `Gpu`, whose context `launch` makes current.
unsafe impl Send for KernelCall {}
// SAFETY: as above.
unsafe impl Sync for KernelCall {}

impl KernelCall {
    /// Launches it, as many times as it wants, behind all that was begun before. Allocates nothing for up to fifteen
    /// pointers.
    ///
    /// # Errors
    /// The driver refuses it.
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
        let ([x, y, z], [a, b, c]) = (self.grid, self.block);
        for number in 0..self.repeat.unwrap_or(1) {
            let number = u64::from(number);
            if self.repeat.is_some() {
                arguments[count - 1] = std::ptr::from_ref(&number).cast_mut().cast();
            }
            // SAFETY: the function is of a module that is alive, and the arguments are read before the driver returns. They
            // point into a block of the GPU's own memory, which is alive as well; a kernel that leaves it can harm what else
            // is there, and nothing of this process's: it was given no address of that.
            unsafe { result::launch_kernel(self.function, (x, y, z), (a, b, c), 0, gpu.stream, arguments) }
                .map_err(failed("launching a kernel"))?;
        }
        Ok(())
    }
}

/// Launches that were recorded and are launched as one.
pub struct CudaGraph {
    gpu: Arc<Gpu>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    calls: Vec<DeviceCall>,
}

// SAFETY: as for `Gpu`, whose context every function makes current.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Records calls in order. They go on to be alive as long as the graph.
    ///
    /// # Errors
    /// The driver refuses something.
    pub fn capture(gpu: &Arc<Gpu>, calls: Vec<DeviceCall>) -> Result<CudaGraph, DriverError> {
        gpu.enter()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive, and nobody else uses it meanwhile: whoever has the `Gpu` records first.
        unsafe { result::stream::begin_capture(gpu.stream, mode) }.map_err(failed("beginning a record"))?;
        let launched = calls.iter().try_for_each(DeviceCall::launch);
        // SAFETY: the stream is alive. A record is ended also where a launch failed.
        let ended = unsafe { result::stream::end_capture(gpu.stream) }.map_err(failed("ending a record"));
        let graph = ended.as_ref().copied().unwrap_or(std::ptr::null_mut());
        let mut recorded = CudaGraph { gpu: gpu.clone(), graph, exec: std::ptr::null_mut(), calls };
        // A refused launch comes first: it is why the driver has no record at the end.
        launched?;
        ended?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is ours, and the handle can be written.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, recorded.graph, 0) }
            .result()
            .map_err(failed("preparing a record"))?;
        recorded.exec = exec;
        Ok(recorded)
    }

    /// What it records.
    pub fn calls(&self) -> &[DeviceCall] {
        &self.calls
    }

    /// Launches it on another's stream, behind all that was begun there before.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn launch_on(&self, stream: ExternalStream) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: the graph is alive, and so is what the calls point to; of the stream its maker promised what is needed.
        unsafe { result::graph::launch(self.exec, stream.raw()) }.map_err(failed("launching a record"))
    }

    /// Launches it, behind all that was begun before.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn launch(&self) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: graph and stream are alive, and so is what the calls point to.
        unsafe { result::graph::launch(self.exec, self.gpu.stream) }.map_err(failed("launching a record"))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.gpu.enter().is_err() {
            return;
        }
        if !self.exec.is_null() {
            // SAFETY: it is ours.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
        if !self.graph.is_null() {
            // SAFETY: it is ours.
            let _ = unsafe { result::graph::destroy(self.graph) };
        }
    }
}
