// Written by `cargo xtask bindgen`: Cupti 130001, bindgen 0.73.2.

#[repr(C)]
#[derive(Debug)]
pub struct CUctx_st {
    _unused: [u8; 0],
}
pub type CUcontext = *mut CUctx_st;
impl CUptiResult {
    pub const CUPTI_SUCCESS: CUptiResult = CUptiResult(0);
    pub const CUPTI_ERROR_INVALID_PARAMETER: CUptiResult = CUptiResult(1);
    pub const CUPTI_ERROR_INVALID_DEVICE: CUptiResult = CUptiResult(2);
    pub const CUPTI_ERROR_INVALID_CONTEXT: CUptiResult = CUptiResult(3);
    pub const CUPTI_ERROR_INVALID_EVENT_DOMAIN_ID: CUptiResult = CUptiResult(4);
    pub const CUPTI_ERROR_INVALID_EVENT_ID: CUptiResult = CUptiResult(5);
    pub const CUPTI_ERROR_INVALID_EVENT_NAME: CUptiResult = CUptiResult(6);
    pub const CUPTI_ERROR_INVALID_OPERATION: CUptiResult = CUptiResult(7);
    pub const CUPTI_ERROR_OUT_OF_MEMORY: CUptiResult = CUptiResult(8);
    pub const CUPTI_ERROR_HARDWARE: CUptiResult = CUptiResult(9);
    pub const CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT: CUptiResult = CUptiResult(10);
    pub const CUPTI_ERROR_API_NOT_IMPLEMENTED: CUptiResult = CUptiResult(11);
    pub const CUPTI_ERROR_MAX_LIMIT_REACHED: CUptiResult = CUptiResult(12);
    pub const CUPTI_ERROR_NOT_READY: CUptiResult = CUptiResult(13);
    pub const CUPTI_ERROR_NOT_COMPATIBLE: CUptiResult = CUptiResult(14);
    pub const CUPTI_ERROR_NOT_INITIALIZED: CUptiResult = CUptiResult(15);
    pub const CUPTI_ERROR_INVALID_METRIC_ID: CUptiResult = CUptiResult(16);
    pub const CUPTI_ERROR_INVALID_METRIC_NAME: CUptiResult = CUptiResult(17);
    pub const CUPTI_ERROR_QUEUE_EMPTY: CUptiResult = CUptiResult(18);
    pub const CUPTI_ERROR_INVALID_HANDLE: CUptiResult = CUptiResult(19);
    pub const CUPTI_ERROR_INVALID_STREAM: CUptiResult = CUptiResult(20);
    pub const CUPTI_ERROR_INVALID_KIND: CUptiResult = CUptiResult(21);
    pub const CUPTI_ERROR_INVALID_EVENT_VALUE: CUptiResult = CUptiResult(22);
    pub const CUPTI_ERROR_DISABLED: CUptiResult = CUptiResult(23);
    pub const CUPTI_ERROR_INVALID_MODULE: CUptiResult = CUptiResult(24);
    pub const CUPTI_ERROR_INVALID_METRIC_VALUE: CUptiResult = CUptiResult(25);
    pub const CUPTI_ERROR_HARDWARE_BUSY: CUptiResult = CUptiResult(26);
    pub const CUPTI_ERROR_NOT_SUPPORTED: CUptiResult = CUptiResult(27);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED: CUptiResult = CUptiResult(28);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_DEVICE: CUptiResult = CUptiResult(29);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_ON_NON_P2P_DEVICES: CUptiResult = CUptiResult(30);
    pub const CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED_WITH_MPS: CUptiResult = CUptiResult(31);
    pub const CUPTI_ERROR_CDP_TRACING_NOT_SUPPORTED: CUptiResult = CUptiResult(32);
    pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(33);
    pub const CUPTI_ERROR_CUDA_COMPILER_NOT_COMPATIBLE: CUptiResult = CUptiResult(34);
    pub const CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: CUptiResult = CUptiResult(35);
    pub const CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED: CUptiResult = CUptiResult(36);
    pub const CUPTI_ERROR_OPENACC_UNDEFINED_ROUTINE: CUptiResult = CUptiResult(37);
    pub const CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED: CUptiResult = CUptiResult(38);
    pub const CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: CUptiResult = CUptiResult(39);
    pub const CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES: CUptiResult = CUptiResult(40);
    pub const CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED: CUptiResult = CUptiResult(41);
    pub const CUPTI_ERROR_CMP_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(42);
    pub const CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(43);
    pub const CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(44);
    pub const CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED: CUptiResult = CUptiResult(45);
    pub const CUPTI_ERROR_INVALID_CHIP_NAME: CUptiResult = CUptiResult(46);
    pub const CUPTI_ERROR_UNKNOWN: CUptiResult = CUptiResult(999);
    pub const CUPTI_ERROR_FORCE_INT: CUptiResult = CUptiResult(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUptiResult(pub ::std::os::raw::c_uint);
impl CUpti_ActivityKind {
    pub const CUPTI_ACTIVITY_KIND_INVALID: CUpti_ActivityKind = CUpti_ActivityKind(0);
    pub const CUPTI_ACTIVITY_KIND_MEMCPY: CUpti_ActivityKind = CUpti_ActivityKind(1);
    pub const CUPTI_ACTIVITY_KIND_MEMSET: CUpti_ActivityKind = CUpti_ActivityKind(2);
    pub const CUPTI_ACTIVITY_KIND_KERNEL: CUpti_ActivityKind = CUpti_ActivityKind(3);
    pub const CUPTI_ACTIVITY_KIND_DRIVER: CUpti_ActivityKind = CUpti_ActivityKind(4);
    pub const CUPTI_ACTIVITY_KIND_RUNTIME: CUpti_ActivityKind = CUpti_ActivityKind(5);
    pub const CUPTI_ACTIVITY_KIND_EVENT: CUpti_ActivityKind = CUpti_ActivityKind(6);
    pub const CUPTI_ACTIVITY_KIND_METRIC: CUpti_ActivityKind = CUpti_ActivityKind(7);
    pub const CUPTI_ACTIVITY_KIND_DEVICE: CUpti_ActivityKind = CUpti_ActivityKind(8);
    pub const CUPTI_ACTIVITY_KIND_CONTEXT: CUpti_ActivityKind = CUpti_ActivityKind(9);
    pub const CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: CUpti_ActivityKind = CUpti_ActivityKind(10);
    pub const CUPTI_ACTIVITY_KIND_NAME: CUpti_ActivityKind = CUpti_ActivityKind(11);
    pub const CUPTI_ACTIVITY_KIND_MARKER: CUpti_ActivityKind = CUpti_ActivityKind(12);
    pub const CUPTI_ACTIVITY_KIND_MARKER_DATA: CUpti_ActivityKind = CUpti_ActivityKind(13);
    pub const CUPTI_ACTIVITY_KIND_SOURCE_LOCATOR: CUpti_ActivityKind = CUpti_ActivityKind(14);
    pub const CUPTI_ACTIVITY_KIND_GLOBAL_ACCESS: CUpti_ActivityKind = CUpti_ActivityKind(15);
    pub const CUPTI_ACTIVITY_KIND_BRANCH: CUpti_ActivityKind = CUpti_ActivityKind(16);
    pub const CUPTI_ACTIVITY_KIND_OVERHEAD: CUpti_ActivityKind = CUpti_ActivityKind(17);
    pub const CUPTI_ACTIVITY_KIND_CDP_KERNEL: CUpti_ActivityKind = CUpti_ActivityKind(18);
    pub const CUPTI_ACTIVITY_KIND_PREEMPTION: CUpti_ActivityKind = CUpti_ActivityKind(19);
    pub const CUPTI_ACTIVITY_KIND_ENVIRONMENT: CUpti_ActivityKind = CUpti_ActivityKind(20);
    pub const CUPTI_ACTIVITY_KIND_EVENT_INSTANCE: CUpti_ActivityKind = CUpti_ActivityKind(21);
    pub const CUPTI_ACTIVITY_KIND_MEMCPY2: CUpti_ActivityKind = CUpti_ActivityKind(22);
    pub const CUPTI_ACTIVITY_KIND_METRIC_INSTANCE: CUpti_ActivityKind = CUpti_ActivityKind(23);
    pub const CUPTI_ACTIVITY_KIND_INSTRUCTION_EXECUTION: CUpti_ActivityKind = CUpti_ActivityKind(24);
    pub const CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER: CUpti_ActivityKind = CUpti_ActivityKind(25);
    pub const CUPTI_ACTIVITY_KIND_FUNCTION: CUpti_ActivityKind = CUpti_ActivityKind(26);
    pub const CUPTI_ACTIVITY_KIND_MODULE: CUpti_ActivityKind = CUpti_ActivityKind(27);
    pub const CUPTI_ACTIVITY_KIND_DEVICE_ATTRIBUTE: CUpti_ActivityKind = CUpti_ActivityKind(28);
    pub const CUPTI_ACTIVITY_KIND_SHARED_ACCESS: CUpti_ActivityKind = CUpti_ActivityKind(29);
    pub const CUPTI_ACTIVITY_KIND_PC_SAMPLING: CUpti_ActivityKind = CUpti_ActivityKind(30);
    pub const CUPTI_ACTIVITY_KIND_PC_SAMPLING_RECORD_INFO: CUpti_ActivityKind = CUpti_ActivityKind(31);
    pub const CUPTI_ACTIVITY_KIND_INSTRUCTION_CORRELATION: CUpti_ActivityKind = CUpti_ActivityKind(32);
    pub const CUPTI_ACTIVITY_KIND_OPENACC_DATA: CUpti_ActivityKind = CUpti_ActivityKind(33);
    pub const CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH: CUpti_ActivityKind = CUpti_ActivityKind(34);
    pub const CUPTI_ACTIVITY_KIND_OPENACC_OTHER: CUpti_ActivityKind = CUpti_ActivityKind(35);
    pub const CUPTI_ACTIVITY_KIND_CUDA_EVENT: CUpti_ActivityKind = CUpti_ActivityKind(36);
    pub const CUPTI_ACTIVITY_KIND_STREAM: CUpti_ActivityKind = CUpti_ActivityKind(37);
    pub const CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: CUpti_ActivityKind = CUpti_ActivityKind(38);
    pub const CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: CUpti_ActivityKind = CUpti_ActivityKind(39);
    pub const CUPTI_ACTIVITY_KIND_NVLINK: CUpti_ActivityKind = CUpti_ActivityKind(40);
    pub const CUPTI_ACTIVITY_KIND_INSTANTANEOUS_EVENT: CUpti_ActivityKind = CUpti_ActivityKind(41);
    pub const CUPTI_ACTIVITY_KIND_INSTANTANEOUS_EVENT_INSTANCE: CUpti_ActivityKind = CUpti_ActivityKind(42);
    pub const CUPTI_ACTIVITY_KIND_INSTANTANEOUS_METRIC: CUpti_ActivityKind = CUpti_ActivityKind(43);
    pub const CUPTI_ACTIVITY_KIND_INSTANTANEOUS_METRIC_INSTANCE: CUpti_ActivityKind = CUpti_ActivityKind(44);
    pub const CUPTI_ACTIVITY_KIND_MEMORY: CUpti_ActivityKind = CUpti_ActivityKind(45);
    pub const CUPTI_ACTIVITY_KIND_PCIE: CUpti_ActivityKind = CUpti_ActivityKind(46);
    pub const CUPTI_ACTIVITY_KIND_OPENMP: CUpti_ActivityKind = CUpti_ActivityKind(47);
    pub const CUPTI_ACTIVITY_KIND_INTERNAL_LAUNCH_API: CUpti_ActivityKind = CUpti_ActivityKind(48);
    pub const CUPTI_ACTIVITY_KIND_MEMORY2: CUpti_ActivityKind = CUpti_ActivityKind(49);
    pub const CUPTI_ACTIVITY_KIND_MEMORY_POOL: CUpti_ActivityKind = CUpti_ActivityKind(50);
    pub const CUPTI_ACTIVITY_KIND_GRAPH_TRACE: CUpti_ActivityKind = CUpti_ActivityKind(51);
    pub const CUPTI_ACTIVITY_KIND_JIT: CUpti_ActivityKind = CUpti_ActivityKind(52);
    pub const CUPTI_ACTIVITY_KIND_DEVICE_GRAPH_TRACE: CUpti_ActivityKind = CUpti_ActivityKind(53);
    pub const CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS: CUpti_ActivityKind = CUpti_ActivityKind(54);
    pub const CUPTI_ACTIVITY_KIND_CONFIDENTIAL_COMPUTE_ROTATION: CUpti_ActivityKind = CUpti_ActivityKind(55);
    pub const CUPTI_ACTIVITY_KIND_COUNT: CUpti_ActivityKind = CUpti_ActivityKind(56);
    pub const CUPTI_ACTIVITY_KIND_FORCE_INT: CUpti_ActivityKind = CUpti_ActivityKind(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityKind(pub ::std::os::raw::c_uint);
impl CUpti_ActivityMemoryKind {
    pub const CUPTI_ACTIVITY_MEMORY_KIND_UNKNOWN: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(0);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(1);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_PINNED: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(2);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_DEVICE: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(3);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_ARRAY: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(4);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_MANAGED: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(5);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(6);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(7);
    pub const CUPTI_ACTIVITY_MEMORY_KIND_FORCE_INT: CUpti_ActivityMemoryKind = CUpti_ActivityMemoryKind(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryKind(pub ::std::os::raw::c_uint);
impl CUpti_ActivityMemoryOperationType {
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_INVALID: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(0);
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(1);
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(2);
    pub const CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_FORCE_INT: CUpti_ActivityMemoryOperationType =
        CUpti_ActivityMemoryOperationType(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryOperationType(pub ::std::os::raw::c_uint);
impl CUpti_ActivityMemoryPoolType {
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_INVALID: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(0);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(1);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_IMPORTED: CUpti_ActivityMemoryPoolType = CUpti_ActivityMemoryPoolType(2);
    pub const CUPTI_ACTIVITY_MEMORY_POOL_TYPE_FORCE_INT: CUpti_ActivityMemoryPoolType =
        CUpti_ActivityMemoryPoolType(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct CUpti_ActivityMemoryPoolType(pub ::std::os::raw::c_uint);
#[repr(C)]
#[repr(align(8))]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct CUpti_Activity {
    pub kind: CUpti_ActivityKind,
}
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory4 {
    pub kind: CUpti_ActivityKind,
    pub memoryOperationType: CUpti_ActivityMemoryOperationType,
    pub memoryKind: CUpti_ActivityMemoryKind,
    pub correlationId: u32,
    pub address: u64,
    pub bytes: u64,
    pub timestamp: u64,
    pub PC: u64,
    pub processId: u32,
    pub deviceId: u32,
    pub contextId: u32,
    pub streamId: u32,
    pub name: *const ::std::os::raw::c_char,
    pub isAsync: u32,
    pub pad1: u32,
    pub memoryPoolConfig: CUpti_ActivityMemory4__bindgen_ty_1,
    pub source: *const ::std::os::raw::c_char,
}
#[repr(C, packed(8))]
#[derive(Copy, Clone)]
pub struct CUpti_ActivityMemory4__bindgen_ty_1 {
    pub memoryPoolType: CUpti_ActivityMemoryPoolType,
    pub pad2: u32,
    pub address: u64,
    pub releaseThreshold: u64,
    pub pool: CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1,
    pub utilizedSize: u64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union CUpti_ActivityMemory4__bindgen_ty_1__bindgen_ty_1 {
    pub size: u64,
    pub processId: u64,
}
pub type CUpti_BuffersCallbackRequestFunc =
    ::std::option::Option<unsafe extern "C" fn(buffer: *mut *mut u8, size: *mut usize, maxNumRecords: *mut usize)>;
pub type CUpti_BuffersCallbackCompleteFunc = ::std::option::Option<
    unsafe extern "C" fn(context: CUcontext, streamId: u32, buffer: *mut u8, size: usize, validSize: usize),
>;
pub struct Cupti {
    __library: ::libloading::Library,
    pub cuptiGetResultString: Result<
        unsafe extern "C" fn(result: CUptiResult, str_: *mut *const ::std::os::raw::c_char) -> CUptiResult,
        ::libloading::Error,
    >,
    pub cuptiGetVersion: Result<unsafe extern "C" fn(version: *mut u32) -> CUptiResult, ::libloading::Error>,
    pub cuptiActivityEnable: Result<unsafe extern "C" fn(kind: CUpti_ActivityKind) -> CUptiResult, ::libloading::Error>,
    pub cuptiActivityDisable:
        Result<unsafe extern "C" fn(kind: CUpti_ActivityKind) -> CUptiResult, ::libloading::Error>,
    pub cuptiActivityGetNumDroppedRecords: Result<
        unsafe extern "C" fn(context: CUcontext, streamId: u32, dropped: *mut usize) -> CUptiResult,
        ::libloading::Error,
    >,
    pub cuptiActivityGetNextRecord: Result<
        unsafe extern "C" fn(
            buffer: *mut u8,
            validBufferSizeBytes: usize,
            record: *mut *mut CUpti_Activity,
        ) -> CUptiResult,
        ::libloading::Error,
    >,
    pub cuptiActivityRegisterCallbacks: Result<
        unsafe extern "C" fn(
            funcBufferRequested: CUpti_BuffersCallbackRequestFunc,
            funcBufferCompleted: CUpti_BuffersCallbackCompleteFunc,
        ) -> CUptiResult,
        ::libloading::Error,
    >,
    pub cuptiActivityFlushAll: Result<unsafe extern "C" fn(flag: u32) -> CUptiResult, ::libloading::Error>,
}
impl Cupti {
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
        let cuptiGetResultString = unsafe { __library.get(b"cuptiGetResultString\0") }.map(|sym| *sym);
        let cuptiGetVersion = unsafe { __library.get(b"cuptiGetVersion\0") }.map(|sym| *sym);
        let cuptiActivityEnable = unsafe { __library.get(b"cuptiActivityEnable\0") }.map(|sym| *sym);
        let cuptiActivityDisable = unsafe { __library.get(b"cuptiActivityDisable\0") }.map(|sym| *sym);
        let cuptiActivityGetNumDroppedRecords =
            unsafe { __library.get(b"cuptiActivityGetNumDroppedRecords\0") }.map(|sym| *sym);
        let cuptiActivityGetNextRecord = unsafe { __library.get(b"cuptiActivityGetNextRecord\0") }.map(|sym| *sym);
        let cuptiActivityRegisterCallbacks =
            unsafe { __library.get(b"cuptiActivityRegisterCallbacks\0") }.map(|sym| *sym);
        let cuptiActivityFlushAll = unsafe { __library.get(b"cuptiActivityFlushAll\0") }.map(|sym| *sym);
        Ok(Cupti {
            __library,
            cuptiGetResultString,
            cuptiGetVersion,
            cuptiActivityEnable,
            cuptiActivityDisable,
            cuptiActivityGetNumDroppedRecords,
            cuptiActivityGetNextRecord,
            cuptiActivityRegisterCallbacks,
            cuptiActivityFlushAll,
        })
    }
    pub unsafe fn cuptiGetResultString(
        &self,
        result: CUptiResult,
        str_: *mut *const ::std::os::raw::c_char,
    ) -> CUptiResult {
        unsafe { (self.cuptiGetResultString.as_ref().expect("Expected function, got error."))(result, str_) }
    }
    pub unsafe fn cuptiGetVersion(&self, version: *mut u32) -> CUptiResult {
        unsafe { (self.cuptiGetVersion.as_ref().expect("Expected function, got error."))(version) }
    }
    pub unsafe fn cuptiActivityEnable(&self, kind: CUpti_ActivityKind) -> CUptiResult {
        unsafe { (self.cuptiActivityEnable.as_ref().expect("Expected function, got error."))(kind) }
    }
    pub unsafe fn cuptiActivityDisable(&self, kind: CUpti_ActivityKind) -> CUptiResult {
        unsafe { (self.cuptiActivityDisable.as_ref().expect("Expected function, got error."))(kind) }
    }
    pub unsafe fn cuptiActivityGetNumDroppedRecords(
        &self,
        context: CUcontext,
        streamId: u32,
        dropped: *mut usize,
    ) -> CUptiResult {
        unsafe {
            (self.cuptiActivityGetNumDroppedRecords.as_ref().expect("Expected function, got error."))(
                context, streamId, dropped,
            )
        }
    }
    pub unsafe fn cuptiActivityGetNextRecord(
        &self,
        buffer: *mut u8,
        validBufferSizeBytes: usize,
        record: *mut *mut CUpti_Activity,
    ) -> CUptiResult {
        unsafe {
            (self.cuptiActivityGetNextRecord.as_ref().expect("Expected function, got error."))(
                buffer,
                validBufferSizeBytes,
                record,
            )
        }
    }
    pub unsafe fn cuptiActivityRegisterCallbacks(
        &self,
        funcBufferRequested: CUpti_BuffersCallbackRequestFunc,
        funcBufferCompleted: CUpti_BuffersCallbackCompleteFunc,
    ) -> CUptiResult {
        unsafe {
            (self.cuptiActivityRegisterCallbacks.as_ref().expect("Expected function, got error."))(
                funcBufferRequested,
                funcBufferCompleted,
            )
        }
    }
    pub unsafe fn cuptiActivityFlushAll(&self, flag: u32) -> CUptiResult {
        unsafe { (self.cuptiActivityFlushAll.as_ref().expect("Expected function, got error."))(flag) }
    }
}
