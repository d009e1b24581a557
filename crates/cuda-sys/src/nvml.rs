// Written by `cargo xtask bindgen`: Nvml 13, bindgen 0.73.2.

#[repr(C)]
#[derive(Debug)]
pub struct nvmlDevice_st {
    _unused: [u8; 0],
}
pub type nvmlDevice_t = *mut nvmlDevice_st;
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct nvmlMemory_v2_st {
    pub version: ::std::os::raw::c_uint,
    pub total: ::std::os::raw::c_ulonglong,
    pub reserved: ::std::os::raw::c_ulonglong,
    pub free: ::std::os::raw::c_ulonglong,
    pub used: ::std::os::raw::c_ulonglong,
}
pub type nvmlMemory_v2_t = nvmlMemory_v2_st;
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct nvmlProcessInfo_v2_st {
    pub pid: ::std::os::raw::c_uint,
    pub usedGpuMemory: ::std::os::raw::c_ulonglong,
    pub gpuInstanceId: ::std::os::raw::c_uint,
    pub computeInstanceId: ::std::os::raw::c_uint,
}
pub type nvmlProcessInfo_t = nvmlProcessInfo_v2_st;
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct nvmlUtilization_st {
    pub gpu: ::std::os::raw::c_uint,
    pub memory: ::std::os::raw::c_uint,
}
pub type nvmlUtilization_t = nvmlUtilization_st;
impl nvmlReturn_enum {
    pub const NVML_SUCCESS: nvmlReturn_enum = nvmlReturn_enum(0);
    pub const NVML_ERROR_UNINITIALIZED: nvmlReturn_enum = nvmlReturn_enum(1);
    pub const NVML_ERROR_INVALID_ARGUMENT: nvmlReturn_enum = nvmlReturn_enum(2);
    pub const NVML_ERROR_NOT_SUPPORTED: nvmlReturn_enum = nvmlReturn_enum(3);
    pub const NVML_ERROR_NO_PERMISSION: nvmlReturn_enum = nvmlReturn_enum(4);
    pub const NVML_ERROR_ALREADY_INITIALIZED: nvmlReturn_enum = nvmlReturn_enum(5);
    pub const NVML_ERROR_NOT_FOUND: nvmlReturn_enum = nvmlReturn_enum(6);
    pub const NVML_ERROR_INSUFFICIENT_SIZE: nvmlReturn_enum = nvmlReturn_enum(7);
    pub const NVML_ERROR_INSUFFICIENT_POWER: nvmlReturn_enum = nvmlReturn_enum(8);
    pub const NVML_ERROR_DRIVER_NOT_LOADED: nvmlReturn_enum = nvmlReturn_enum(9);
    pub const NVML_ERROR_TIMEOUT: nvmlReturn_enum = nvmlReturn_enum(10);
    pub const NVML_ERROR_IRQ_ISSUE: nvmlReturn_enum = nvmlReturn_enum(11);
    pub const NVML_ERROR_LIBRARY_NOT_FOUND: nvmlReturn_enum = nvmlReturn_enum(12);
    pub const NVML_ERROR_FUNCTION_NOT_FOUND: nvmlReturn_enum = nvmlReturn_enum(13);
    pub const NVML_ERROR_CORRUPTED_INFOROM: nvmlReturn_enum = nvmlReturn_enum(14);
    pub const NVML_ERROR_GPU_IS_LOST: nvmlReturn_enum = nvmlReturn_enum(15);
    pub const NVML_ERROR_RESET_REQUIRED: nvmlReturn_enum = nvmlReturn_enum(16);
    pub const NVML_ERROR_OPERATING_SYSTEM: nvmlReturn_enum = nvmlReturn_enum(17);
    pub const NVML_ERROR_LIB_RM_VERSION_MISMATCH: nvmlReturn_enum = nvmlReturn_enum(18);
    pub const NVML_ERROR_IN_USE: nvmlReturn_enum = nvmlReturn_enum(19);
    pub const NVML_ERROR_MEMORY: nvmlReturn_enum = nvmlReturn_enum(20);
    pub const NVML_ERROR_NO_DATA: nvmlReturn_enum = nvmlReturn_enum(21);
    pub const NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: nvmlReturn_enum = nvmlReturn_enum(22);
    pub const NVML_ERROR_INSUFFICIENT_RESOURCES: nvmlReturn_enum = nvmlReturn_enum(23);
    pub const NVML_ERROR_FREQ_NOT_SUPPORTED: nvmlReturn_enum = nvmlReturn_enum(24);
    pub const NVML_ERROR_ARGUMENT_VERSION_MISMATCH: nvmlReturn_enum = nvmlReturn_enum(25);
    pub const NVML_ERROR_DEPRECATED: nvmlReturn_enum = nvmlReturn_enum(26);
    pub const NVML_ERROR_NOT_READY: nvmlReturn_enum = nvmlReturn_enum(27);
    pub const NVML_ERROR_GPU_NOT_FOUND: nvmlReturn_enum = nvmlReturn_enum(28);
    pub const NVML_ERROR_INVALID_STATE: nvmlReturn_enum = nvmlReturn_enum(29);
    pub const NVML_ERROR_RESET_TYPE_NOT_SUPPORTED: nvmlReturn_enum = nvmlReturn_enum(30);
    pub const NVML_ERROR_UNKNOWN: nvmlReturn_enum = nvmlReturn_enum(999);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct nvmlReturn_enum(pub ::std::os::raw::c_uint);
pub use self::nvmlReturn_enum as nvmlReturn_t;
pub struct Nvml {
    __library: ::libloading::Library,
    pub nvmlInit_v2: Result<unsafe extern "C" fn() -> nvmlReturn_t, ::libloading::Error>,
    pub nvmlShutdown: Result<unsafe extern "C" fn() -> nvmlReturn_t, ::libloading::Error>,
    pub nvmlErrorString:
        Result<unsafe extern "C" fn(result: nvmlReturn_t) -> *const ::std::os::raw::c_char, ::libloading::Error>,
    pub nvmlSystemGetDriverVersion: Result<
        unsafe extern "C" fn(version: *mut ::std::os::raw::c_char, length: ::std::os::raw::c_uint) -> nvmlReturn_t,
        ::libloading::Error,
    >,
    pub nvmlDeviceGetCount_v2: Result<
        unsafe extern "C" fn(deviceCount: *mut ::std::os::raw::c_uint) -> nvmlReturn_t,
        ::libloading::Error,
    >,
    pub nvmlDeviceGetHandleByIndex_v2: Result<
        unsafe extern "C" fn(index: ::std::os::raw::c_uint, device: *mut nvmlDevice_t) -> nvmlReturn_t,
        ::libloading::Error,
    >,
    pub nvmlDeviceGetHandleByPciBusId_v2: Result<
        unsafe extern "C" fn(pciBusId: *const ::std::os::raw::c_char, device: *mut nvmlDevice_t) -> nvmlReturn_t,
        ::libloading::Error,
    >,
    pub nvmlDeviceGetName: Result<
        unsafe extern "C" fn(
            device: nvmlDevice_t,
            name: *mut ::std::os::raw::c_char,
            length: ::std::os::raw::c_uint,
        ) -> nvmlReturn_t,
        ::libloading::Error,
    >,
    pub nvmlDeviceGetPowerUsage: Result<
        unsafe extern "C" fn(device: nvmlDevice_t, power: *mut ::std::os::raw::c_uint) -> nvmlReturn_t,
        ::libloading::Error,
    >,
    pub nvmlDeviceGetMemoryInfo_v2: Result<
        unsafe extern "C" fn(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> nvmlReturn_t,
        ::libloading::Error,
    >,
    pub nvmlDeviceGetUtilizationRates: Result<
        unsafe extern "C" fn(device: nvmlDevice_t, utilization: *mut nvmlUtilization_t) -> nvmlReturn_t,
        ::libloading::Error,
    >,
    pub nvmlDeviceGetComputeRunningProcesses_v3: Result<
        unsafe extern "C" fn(
            device: nvmlDevice_t,
            infoCount: *mut ::std::os::raw::c_uint,
            infos: *mut nvmlProcessInfo_t,
        ) -> nvmlReturn_t,
        ::libloading::Error,
    >,
}
impl Nvml {
    pub unsafe fn new<P>(path: P) -> Result<Self, ::libloading::Error>
    where
        P: AsRef<::std::ffi::OsStr>,
    {
        let path = path.as_ref();
        let library = unsafe { ::libloading::Library::new(path) }?;
        unsafe { Self::from_library(library) }
    }
    pub unsafe fn from_library<L>(library: L) -> Result<Self, ::libloading::Error>
    where
        L: Into<::libloading::Library>,
    {
        let __library = library.into();
        let nvmlInit_v2 = unsafe { __library.get(b"nvmlInit_v2\0") }.map(|sym| *sym);
        let nvmlShutdown = unsafe { __library.get(b"nvmlShutdown\0") }.map(|sym| *sym);
        let nvmlErrorString = unsafe { __library.get(b"nvmlErrorString\0") }.map(|sym| *sym);
        let nvmlSystemGetDriverVersion = unsafe { __library.get(b"nvmlSystemGetDriverVersion\0") }.map(|sym| *sym);
        let nvmlDeviceGetCount_v2 = unsafe { __library.get(b"nvmlDeviceGetCount_v2\0") }.map(|sym| *sym);
        let nvmlDeviceGetHandleByIndex_v2 =
            unsafe { __library.get(b"nvmlDeviceGetHandleByIndex_v2\0") }.map(|sym| *sym);
        let nvmlDeviceGetHandleByPciBusId_v2 =
            unsafe { __library.get(b"nvmlDeviceGetHandleByPciBusId_v2\0") }.map(|sym| *sym);
        let nvmlDeviceGetName = unsafe { __library.get(b"nvmlDeviceGetName\0") }.map(|sym| *sym);
        let nvmlDeviceGetPowerUsage = unsafe { __library.get(b"nvmlDeviceGetPowerUsage\0") }.map(|sym| *sym);
        let nvmlDeviceGetMemoryInfo_v2 = unsafe { __library.get(b"nvmlDeviceGetMemoryInfo_v2\0") }.map(|sym| *sym);
        let nvmlDeviceGetUtilizationRates =
            unsafe { __library.get(b"nvmlDeviceGetUtilizationRates\0") }.map(|sym| *sym);
        let nvmlDeviceGetComputeRunningProcesses_v3 =
            unsafe { __library.get(b"nvmlDeviceGetComputeRunningProcesses_v3\0") }.map(|sym| *sym);
        Ok(Nvml {
            __library,
            nvmlInit_v2,
            nvmlShutdown,
            nvmlErrorString,
            nvmlSystemGetDriverVersion,
            nvmlDeviceGetCount_v2,
            nvmlDeviceGetHandleByIndex_v2,
            nvmlDeviceGetHandleByPciBusId_v2,
            nvmlDeviceGetName,
            nvmlDeviceGetPowerUsage,
            nvmlDeviceGetMemoryInfo_v2,
            nvmlDeviceGetUtilizationRates,
            nvmlDeviceGetComputeRunningProcesses_v3,
        })
    }
    pub unsafe fn nvmlInit_v2(&self) -> nvmlReturn_t {
        unsafe { (self.nvmlInit_v2.as_ref().expect("Expected function, got error."))() }
    }
    pub unsafe fn nvmlShutdown(&self) -> nvmlReturn_t {
        unsafe { (self.nvmlShutdown.as_ref().expect("Expected function, got error."))() }
    }
    pub unsafe fn nvmlErrorString(&self, result: nvmlReturn_t) -> *const ::std::os::raw::c_char {
        unsafe { (self.nvmlErrorString.as_ref().expect("Expected function, got error."))(result) }
    }
    pub unsafe fn nvmlSystemGetDriverVersion(
        &self,
        version: *mut ::std::os::raw::c_char,
        length: ::std::os::raw::c_uint,
    ) -> nvmlReturn_t {
        unsafe { (self.nvmlSystemGetDriverVersion.as_ref().expect("Expected function, got error."))(version, length) }
    }
    pub unsafe fn nvmlDeviceGetCount_v2(&self, deviceCount: *mut ::std::os::raw::c_uint) -> nvmlReturn_t {
        unsafe { (self.nvmlDeviceGetCount_v2.as_ref().expect("Expected function, got error."))(deviceCount) }
    }
    pub unsafe fn nvmlDeviceGetHandleByIndex_v2(
        &self,
        index: ::std::os::raw::c_uint,
        device: *mut nvmlDevice_t,
    ) -> nvmlReturn_t {
        unsafe { (self.nvmlDeviceGetHandleByIndex_v2.as_ref().expect("Expected function, got error."))(index, device) }
    }
    pub unsafe fn nvmlDeviceGetHandleByPciBusId_v2(
        &self,
        pciBusId: *const ::std::os::raw::c_char,
        device: *mut nvmlDevice_t,
    ) -> nvmlReturn_t {
        unsafe {
            (self.nvmlDeviceGetHandleByPciBusId_v2.as_ref().expect("Expected function, got error."))(pciBusId, device)
        }
    }
    pub unsafe fn nvmlDeviceGetName(
        &self,
        device: nvmlDevice_t,
        name: *mut ::std::os::raw::c_char,
        length: ::std::os::raw::c_uint,
    ) -> nvmlReturn_t {
        unsafe { (self.nvmlDeviceGetName.as_ref().expect("Expected function, got error."))(device, name, length) }
    }
    pub unsafe fn nvmlDeviceGetPowerUsage(
        &self,
        device: nvmlDevice_t,
        power: *mut ::std::os::raw::c_uint,
    ) -> nvmlReturn_t {
        unsafe { (self.nvmlDeviceGetPowerUsage.as_ref().expect("Expected function, got error."))(device, power) }
    }
    pub unsafe fn nvmlDeviceGetMemoryInfo_v2(
        &self,
        device: nvmlDevice_t,
        memory: *mut nvmlMemory_v2_t,
    ) -> nvmlReturn_t {
        unsafe { (self.nvmlDeviceGetMemoryInfo_v2.as_ref().expect("Expected function, got error."))(device, memory) }
    }
    pub unsafe fn nvmlDeviceGetUtilizationRates(
        &self,
        device: nvmlDevice_t,
        utilization: *mut nvmlUtilization_t,
    ) -> nvmlReturn_t {
        unsafe {
            (self.nvmlDeviceGetUtilizationRates.as_ref().expect("Expected function, got error."))(device, utilization)
        }
    }
    pub unsafe fn nvmlDeviceGetComputeRunningProcesses_v3(
        &self,
        device: nvmlDevice_t,
        infoCount: *mut ::std::os::raw::c_uint,
        infos: *mut nvmlProcessInfo_t,
    ) -> nvmlReturn_t {
        unsafe {
            (self.nvmlDeviceGetComputeRunningProcesses_v3.as_ref().expect("Expected function, got error."))(
                device, infoCount, infos,
            )
        }
    }
}
