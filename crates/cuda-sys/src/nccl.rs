// Written by `cargo xtask bindgen`: Nccl 2.28.9, bindgen 0.73.2.

#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _unused: [u8; 0],
}
pub type ncclComm_t = *mut ncclComm;
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct ncclUniqueId {
    pub internal: [::std::os::raw::c_char; 128usize],
}
impl ncclResult_t {
    pub const ncclSuccess: ncclResult_t = ncclResult_t(0);
    pub const ncclUnhandledCudaError: ncclResult_t = ncclResult_t(1);
    pub const ncclSystemError: ncclResult_t = ncclResult_t(2);
    pub const ncclInternalError: ncclResult_t = ncclResult_t(3);
    pub const ncclInvalidArgument: ncclResult_t = ncclResult_t(4);
    pub const ncclInvalidUsage: ncclResult_t = ncclResult_t(5);
    pub const ncclRemoteError: ncclResult_t = ncclResult_t(6);
    pub const ncclInProgress: ncclResult_t = ncclResult_t(7);
    pub const ncclNumResults: ncclResult_t = ncclResult_t(8);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclResult_t(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct ncclConfig_v22800 {
    pub size: usize,
    pub magic: ::std::os::raw::c_uint,
    pub version: ::std::os::raw::c_uint,
    pub blocking: ::std::os::raw::c_int,
    pub cgaClusterSize: ::std::os::raw::c_int,
    pub minCTAs: ::std::os::raw::c_int,
    pub maxCTAs: ::std::os::raw::c_int,
    pub netName: *const ::std::os::raw::c_char,
    pub splitShare: ::std::os::raw::c_int,
    pub trafficClass: ::std::os::raw::c_int,
    pub commName: *const ::std::os::raw::c_char,
    pub collnetEnable: ::std::os::raw::c_int,
    pub CTAPolicy: ::std::os::raw::c_int,
    pub shrinkShare: ::std::os::raw::c_int,
    pub nvlsCTAs: ::std::os::raw::c_int,
    pub nChannelsPerNetPeer: ::std::os::raw::c_int,
    pub nvlinkCentricSched: ::std::os::raw::c_int,
}
pub type ncclConfig_t = ncclConfig_v22800;
impl ncclRedOp_t {
    pub const ncclSum: ncclRedOp_t = ncclRedOp_t(0);
    pub const ncclProd: ncclRedOp_t = ncclRedOp_t(1);
    pub const ncclMax: ncclRedOp_t = ncclRedOp_t(2);
    pub const ncclMin: ncclRedOp_t = ncclRedOp_t(3);
    pub const ncclAvg: ncclRedOp_t = ncclRedOp_t(4);
    pub const ncclNumOps: ncclRedOp_t = ncclRedOp_t(5);
    pub const ncclMaxRedOp: ncclRedOp_t = ncclRedOp_t(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclRedOp_t(pub ::std::os::raw::c_uint);
impl ncclDataType_t {
    pub const ncclInt8: ncclDataType_t = ncclDataType_t(0);
    pub const ncclChar: ncclDataType_t = ncclDataType_t(0);
    pub const ncclUint8: ncclDataType_t = ncclDataType_t(1);
    pub const ncclInt32: ncclDataType_t = ncclDataType_t(2);
    pub const ncclInt: ncclDataType_t = ncclDataType_t(2);
    pub const ncclUint32: ncclDataType_t = ncclDataType_t(3);
    pub const ncclInt64: ncclDataType_t = ncclDataType_t(4);
    pub const ncclUint64: ncclDataType_t = ncclDataType_t(5);
    pub const ncclFloat16: ncclDataType_t = ncclDataType_t(6);
    pub const ncclHalf: ncclDataType_t = ncclDataType_t(6);
    pub const ncclFloat32: ncclDataType_t = ncclDataType_t(7);
    pub const ncclFloat: ncclDataType_t = ncclDataType_t(7);
    pub const ncclFloat64: ncclDataType_t = ncclDataType_t(8);
    pub const ncclDouble: ncclDataType_t = ncclDataType_t(8);
    pub const ncclBfloat16: ncclDataType_t = ncclDataType_t(9);
    pub const ncclFloat8e4m3: ncclDataType_t = ncclDataType_t(10);
    pub const ncclFloat8e5m2: ncclDataType_t = ncclDataType_t(11);
    pub const ncclNumTypes: ncclDataType_t = ncclDataType_t(12);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclDataType_t(pub ::std::os::raw::c_uint);
pub struct Nccl {
    __library: ::libloading::Library,
    pub ncclMemAlloc: Result<
        unsafe extern "C" fn(ptr: *mut *mut ::std::os::raw::c_void, size: usize) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclMemFree:
        Result<unsafe extern "C" fn(ptr: *mut ::std::os::raw::c_void) -> ncclResult_t, ::libloading::Error>,
    pub ncclGetVersion:
        Result<unsafe extern "C" fn(version: *mut ::std::os::raw::c_int) -> ncclResult_t, ::libloading::Error>,
    pub ncclGetUniqueId: Result<unsafe extern "C" fn(uniqueId: *mut ncclUniqueId) -> ncclResult_t, ::libloading::Error>,
    pub ncclCommInitRankConfig: Result<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            nranks: ::std::os::raw::c_int,
            commId: ncclUniqueId,
            rank: ::std::os::raw::c_int,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommFinalize: Result<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t, ::libloading::Error>,
    pub ncclCommDestroy: Result<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t, ::libloading::Error>,
    pub ncclCommAbort: Result<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t, ::libloading::Error>,
    pub ncclCommSplit: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            color: ::std::os::raw::c_int,
            key: ::std::os::raw::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetErrorString:
        Result<unsafe extern "C" fn(result: ncclResult_t) -> *const ::std::os::raw::c_char, ::libloading::Error>,
    pub ncclGetLastError:
        Result<unsafe extern "C" fn(comm: ncclComm_t) -> *const ::std::os::raw::c_char, ::libloading::Error>,
    pub ncclCommGetAsyncError: Result<
        unsafe extern "C" fn(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommCount: Result<
        unsafe extern "C" fn(comm: ncclComm_t, count: *mut ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommCuDevice: Result<
        unsafe extern "C" fn(comm: ncclComm_t, device: *mut ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommUserRank: Result<
        unsafe extern "C" fn(comm: ncclComm_t, rank: *mut ::std::os::raw::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommRegister: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            buff: *mut ::std::os::raw::c_void,
            size: usize,
            handle: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommDeregister: Result<
        unsafe extern "C" fn(comm: ncclComm_t, handle: *mut ::std::os::raw::c_void) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduce: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclBroadcast: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllReduce: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduceScatter: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllGather: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            recvbuff: *mut ::std::os::raw::c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclSend: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclRecv: Result<
        unsafe extern "C" fn(
            recvbuff: *mut ::std::os::raw::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::std::os::raw::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGroupStart: Result<unsafe extern "C" fn() -> ncclResult_t, ::libloading::Error>,
    pub ncclGroupEnd: Result<unsafe extern "C" fn() -> ncclResult_t, ::libloading::Error>,
}
impl Nccl {
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
        let ncclMemAlloc = unsafe { __library.get(b"ncclMemAlloc\0") }.map(|sym| *sym);
        let ncclMemFree = unsafe { __library.get(b"ncclMemFree\0") }.map(|sym| *sym);
        let ncclGetVersion = unsafe { __library.get(b"ncclGetVersion\0") }.map(|sym| *sym);
        let ncclGetUniqueId = unsafe { __library.get(b"ncclGetUniqueId\0") }.map(|sym| *sym);
        let ncclCommInitRankConfig = unsafe { __library.get(b"ncclCommInitRankConfig\0") }.map(|sym| *sym);
        let ncclCommFinalize = unsafe { __library.get(b"ncclCommFinalize\0") }.map(|sym| *sym);
        let ncclCommDestroy = unsafe { __library.get(b"ncclCommDestroy\0") }.map(|sym| *sym);
        let ncclCommAbort = unsafe { __library.get(b"ncclCommAbort\0") }.map(|sym| *sym);
        let ncclCommSplit = unsafe { __library.get(b"ncclCommSplit\0") }.map(|sym| *sym);
        let ncclGetErrorString = unsafe { __library.get(b"ncclGetErrorString\0") }.map(|sym| *sym);
        let ncclGetLastError = unsafe { __library.get(b"ncclGetLastError\0") }.map(|sym| *sym);
        let ncclCommGetAsyncError = unsafe { __library.get(b"ncclCommGetAsyncError\0") }.map(|sym| *sym);
        let ncclCommCount = unsafe { __library.get(b"ncclCommCount\0") }.map(|sym| *sym);
        let ncclCommCuDevice = unsafe { __library.get(b"ncclCommCuDevice\0") }.map(|sym| *sym);
        let ncclCommUserRank = unsafe { __library.get(b"ncclCommUserRank\0") }.map(|sym| *sym);
        let ncclCommRegister = unsafe { __library.get(b"ncclCommRegister\0") }.map(|sym| *sym);
        let ncclCommDeregister = unsafe { __library.get(b"ncclCommDeregister\0") }.map(|sym| *sym);
        let ncclReduce = unsafe { __library.get(b"ncclReduce\0") }.map(|sym| *sym);
        let ncclBroadcast = unsafe { __library.get(b"ncclBroadcast\0") }.map(|sym| *sym);
        let ncclAllReduce = unsafe { __library.get(b"ncclAllReduce\0") }.map(|sym| *sym);
        let ncclReduceScatter = unsafe { __library.get(b"ncclReduceScatter\0") }.map(|sym| *sym);
        let ncclAllGather = unsafe { __library.get(b"ncclAllGather\0") }.map(|sym| *sym);
        let ncclSend = unsafe { __library.get(b"ncclSend\0") }.map(|sym| *sym);
        let ncclRecv = unsafe { __library.get(b"ncclRecv\0") }.map(|sym| *sym);
        let ncclGroupStart = unsafe { __library.get(b"ncclGroupStart\0") }.map(|sym| *sym);
        let ncclGroupEnd = unsafe { __library.get(b"ncclGroupEnd\0") }.map(|sym| *sym);
        Ok(Nccl {
            __library,
            ncclMemAlloc,
            ncclMemFree,
            ncclGetVersion,
            ncclGetUniqueId,
            ncclCommInitRankConfig,
            ncclCommFinalize,
            ncclCommDestroy,
            ncclCommAbort,
            ncclCommSplit,
            ncclGetErrorString,
            ncclGetLastError,
            ncclCommGetAsyncError,
            ncclCommCount,
            ncclCommCuDevice,
            ncclCommUserRank,
            ncclCommRegister,
            ncclCommDeregister,
            ncclReduce,
            ncclBroadcast,
            ncclAllReduce,
            ncclReduceScatter,
            ncclAllGather,
            ncclSend,
            ncclRecv,
            ncclGroupStart,
            ncclGroupEnd,
        })
    }
    pub unsafe fn ncclMemAlloc(&self, ptr: *mut *mut ::std::os::raw::c_void, size: usize) -> ncclResult_t {
        unsafe { (self.ncclMemAlloc.as_ref().expect("Expected function, got error."))(ptr, size) }
    }
    pub unsafe fn ncclMemFree(&self, ptr: *mut ::std::os::raw::c_void) -> ncclResult_t {
        unsafe { (self.ncclMemFree.as_ref().expect("Expected function, got error."))(ptr) }
    }
    pub unsafe fn ncclGetVersion(&self, version: *mut ::std::os::raw::c_int) -> ncclResult_t {
        unsafe { (self.ncclGetVersion.as_ref().expect("Expected function, got error."))(version) }
    }
    pub unsafe fn ncclGetUniqueId(&self, uniqueId: *mut ncclUniqueId) -> ncclResult_t {
        unsafe { (self.ncclGetUniqueId.as_ref().expect("Expected function, got error."))(uniqueId) }
    }
    pub unsafe fn ncclCommInitRankConfig(
        &self,
        comm: *mut ncclComm_t,
        nranks: ::std::os::raw::c_int,
        commId: ncclUniqueId,
        rank: ::std::os::raw::c_int,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclCommInitRankConfig.as_ref().expect("Expected function, got error."))(
                comm, nranks, commId, rank, config,
            )
        }
    }
    pub unsafe fn ncclCommFinalize(&self, comm: ncclComm_t) -> ncclResult_t {
        unsafe { (self.ncclCommFinalize.as_ref().expect("Expected function, got error."))(comm) }
    }
    pub unsafe fn ncclCommDestroy(&self, comm: ncclComm_t) -> ncclResult_t {
        unsafe { (self.ncclCommDestroy.as_ref().expect("Expected function, got error."))(comm) }
    }
    pub unsafe fn ncclCommAbort(&self, comm: ncclComm_t) -> ncclResult_t {
        unsafe { (self.ncclCommAbort.as_ref().expect("Expected function, got error."))(comm) }
    }
    pub unsafe fn ncclCommSplit(
        &self,
        comm: ncclComm_t,
        color: ::std::os::raw::c_int,
        key: ::std::os::raw::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclCommSplit.as_ref().expect("Expected function, got error."))(comm, color, key, newcomm, config)
        }
    }
    pub unsafe fn ncclGetErrorString(&self, result: ncclResult_t) -> *const ::std::os::raw::c_char {
        unsafe { (self.ncclGetErrorString.as_ref().expect("Expected function, got error."))(result) }
    }
    pub unsafe fn ncclGetLastError(&self, comm: ncclComm_t) -> *const ::std::os::raw::c_char {
        unsafe { (self.ncclGetLastError.as_ref().expect("Expected function, got error."))(comm) }
    }
    pub unsafe fn ncclCommGetAsyncError(&self, comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t {
        unsafe { (self.ncclCommGetAsyncError.as_ref().expect("Expected function, got error."))(comm, asyncError) }
    }
    pub unsafe fn ncclCommCount(&self, comm: ncclComm_t, count: *mut ::std::os::raw::c_int) -> ncclResult_t {
        unsafe { (self.ncclCommCount.as_ref().expect("Expected function, got error."))(comm, count) }
    }
    pub unsafe fn ncclCommCuDevice(&self, comm: ncclComm_t, device: *mut ::std::os::raw::c_int) -> ncclResult_t {
        unsafe { (self.ncclCommCuDevice.as_ref().expect("Expected function, got error."))(comm, device) }
    }
    pub unsafe fn ncclCommUserRank(&self, comm: ncclComm_t, rank: *mut ::std::os::raw::c_int) -> ncclResult_t {
        unsafe { (self.ncclCommUserRank.as_ref().expect("Expected function, got error."))(comm, rank) }
    }
    pub unsafe fn ncclCommRegister(
        &self,
        comm: ncclComm_t,
        buff: *mut ::std::os::raw::c_void,
        size: usize,
        handle: *mut *mut ::std::os::raw::c_void,
    ) -> ncclResult_t {
        unsafe { (self.ncclCommRegister.as_ref().expect("Expected function, got error."))(comm, buff, size, handle) }
    }
    pub unsafe fn ncclCommDeregister(&self, comm: ncclComm_t, handle: *mut ::std::os::raw::c_void) -> ncclResult_t {
        unsafe { (self.ncclCommDeregister.as_ref().expect("Expected function, got error."))(comm, handle) }
    }
    pub unsafe fn ncclReduce(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclReduce.as_ref().expect("Expected function, got error."))(
                sendbuff, recvbuff, count, datatype, op, root, comm, stream,
            )
        }
    }
    pub unsafe fn ncclBroadcast(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclBroadcast.as_ref().expect("Expected function, got error."))(
                sendbuff, recvbuff, count, datatype, root, comm, stream,
            )
        }
    }
    pub unsafe fn ncclAllReduce(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclAllReduce.as_ref().expect("Expected function, got error."))(
                sendbuff, recvbuff, count, datatype, op, comm, stream,
            )
        }
    }
    pub unsafe fn ncclReduceScatter(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclReduceScatter.as_ref().expect("Expected function, got error."))(
                sendbuff, recvbuff, recvcount, datatype, op, comm, stream,
            )
        }
    }
    pub unsafe fn ncclAllGather(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        recvbuff: *mut ::std::os::raw::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclAllGather.as_ref().expect("Expected function, got error."))(
                sendbuff, recvbuff, sendcount, datatype, comm, stream,
            )
        }
    }
    pub unsafe fn ncclSend(
        &self,
        sendbuff: *const ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclSend.as_ref().expect("Expected function, got error."))(
                sendbuff, count, datatype, peer, comm, stream,
            )
        }
    }
    pub unsafe fn ncclRecv(
        &self,
        recvbuff: *mut ::std::os::raw::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::std::os::raw::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self.ncclRecv.as_ref().expect("Expected function, got error."))(
                recvbuff, count, datatype, peer, comm, stream,
            )
        }
    }
    pub unsafe fn ncclGroupStart(&self) -> ncclResult_t {
        unsafe { (self.ncclGroupStart.as_ref().expect("Expected function, got error."))() }
    }
    pub unsafe fn ncclGroupEnd(&self) -> ncclResult_t {
        unsafe { (self.ncclGroupEnd.as_ref().expect("Expected function, got error."))() }
    }
}
