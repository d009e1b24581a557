// Written by `cargo xtask bindgen`: CublasLt 13.1.0.3, bindgen 0.73.2.

#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;
impl cudaDataType_t {
    pub const CUDA_R_16F: cudaDataType_t = cudaDataType_t(2);
    pub const CUDA_C_16F: cudaDataType_t = cudaDataType_t(6);
    pub const CUDA_R_16BF: cudaDataType_t = cudaDataType_t(14);
    pub const CUDA_C_16BF: cudaDataType_t = cudaDataType_t(15);
    pub const CUDA_R_32F: cudaDataType_t = cudaDataType_t(0);
    pub const CUDA_C_32F: cudaDataType_t = cudaDataType_t(4);
    pub const CUDA_R_64F: cudaDataType_t = cudaDataType_t(1);
    pub const CUDA_C_64F: cudaDataType_t = cudaDataType_t(5);
    pub const CUDA_R_4I: cudaDataType_t = cudaDataType_t(16);
    pub const CUDA_C_4I: cudaDataType_t = cudaDataType_t(17);
    pub const CUDA_R_4U: cudaDataType_t = cudaDataType_t(18);
    pub const CUDA_C_4U: cudaDataType_t = cudaDataType_t(19);
    pub const CUDA_R_8I: cudaDataType_t = cudaDataType_t(3);
    pub const CUDA_C_8I: cudaDataType_t = cudaDataType_t(7);
    pub const CUDA_R_8U: cudaDataType_t = cudaDataType_t(8);
    pub const CUDA_C_8U: cudaDataType_t = cudaDataType_t(9);
    pub const CUDA_R_16I: cudaDataType_t = cudaDataType_t(20);
    pub const CUDA_C_16I: cudaDataType_t = cudaDataType_t(21);
    pub const CUDA_R_16U: cudaDataType_t = cudaDataType_t(22);
    pub const CUDA_C_16U: cudaDataType_t = cudaDataType_t(23);
    pub const CUDA_R_32I: cudaDataType_t = cudaDataType_t(10);
    pub const CUDA_C_32I: cudaDataType_t = cudaDataType_t(11);
    pub const CUDA_R_32U: cudaDataType_t = cudaDataType_t(12);
    pub const CUDA_C_32U: cudaDataType_t = cudaDataType_t(13);
    pub const CUDA_R_64I: cudaDataType_t = cudaDataType_t(24);
    pub const CUDA_C_64I: cudaDataType_t = cudaDataType_t(25);
    pub const CUDA_R_64U: cudaDataType_t = cudaDataType_t(26);
    pub const CUDA_C_64U: cudaDataType_t = cudaDataType_t(27);
    pub const CUDA_R_8F_E4M3: cudaDataType_t = cudaDataType_t(28);
    pub const CUDA_R_8F_UE4M3: cudaDataType_t = cudaDataType_t(28);
    pub const CUDA_R_8F_E5M2: cudaDataType_t = cudaDataType_t(29);
    pub const CUDA_R_8F_UE8M0: cudaDataType_t = cudaDataType_t(30);
    pub const CUDA_R_6F_E2M3: cudaDataType_t = cudaDataType_t(31);
    pub const CUDA_R_6F_E3M2: cudaDataType_t = cudaDataType_t(32);
    pub const CUDA_R_4F_E2M1: cudaDataType_t = cudaDataType_t(33);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cudaDataType_t(pub ::std::os::raw::c_uint);
pub use self::cudaDataType_t as cudaDataType;
impl cublasStatus_t {
    pub const CUBLAS_STATUS_SUCCESS: cublasStatus_t = cublasStatus_t(0);
    pub const CUBLAS_STATUS_NOT_INITIALIZED: cublasStatus_t = cublasStatus_t(1);
    pub const CUBLAS_STATUS_ALLOC_FAILED: cublasStatus_t = cublasStatus_t(3);
    pub const CUBLAS_STATUS_INVALID_VALUE: cublasStatus_t = cublasStatus_t(7);
    pub const CUBLAS_STATUS_ARCH_MISMATCH: cublasStatus_t = cublasStatus_t(8);
    pub const CUBLAS_STATUS_MAPPING_ERROR: cublasStatus_t = cublasStatus_t(11);
    pub const CUBLAS_STATUS_EXECUTION_FAILED: cublasStatus_t = cublasStatus_t(13);
    pub const CUBLAS_STATUS_INTERNAL_ERROR: cublasStatus_t = cublasStatus_t(14);
    pub const CUBLAS_STATUS_NOT_SUPPORTED: cublasStatus_t = cublasStatus_t(15);
    pub const CUBLAS_STATUS_LICENSE_ERROR: cublasStatus_t = cublasStatus_t(16);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasStatus_t(pub ::std::os::raw::c_uint);
impl cublasComputeType_t {
    pub const CUBLAS_COMPUTE_16F: cublasComputeType_t = cublasComputeType_t(64);
    pub const CUBLAS_COMPUTE_16F_PEDANTIC: cublasComputeType_t = cublasComputeType_t(65);
    pub const CUBLAS_COMPUTE_32F: cublasComputeType_t = cublasComputeType_t(68);
    pub const CUBLAS_COMPUTE_32F_PEDANTIC: cublasComputeType_t = cublasComputeType_t(69);
    pub const CUBLAS_COMPUTE_32F_FAST_16F: cublasComputeType_t = cublasComputeType_t(74);
    pub const CUBLAS_COMPUTE_32F_FAST_16BF: cublasComputeType_t = cublasComputeType_t(75);
    pub const CUBLAS_COMPUTE_32F_FAST_TF32: cublasComputeType_t = cublasComputeType_t(77);
    pub const CUBLAS_COMPUTE_32F_EMULATED_16BFX9: cublasComputeType_t = cublasComputeType_t(78);
    pub const CUBLAS_COMPUTE_64F: cublasComputeType_t = cublasComputeType_t(70);
    pub const CUBLAS_COMPUTE_64F_PEDANTIC: cublasComputeType_t = cublasComputeType_t(71);
    pub const CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT: cublasComputeType_t = cublasComputeType_t(79);
    pub const CUBLAS_COMPUTE_32I: cublasComputeType_t = cublasComputeType_t(72);
    pub const CUBLAS_COMPUTE_32I_PEDANTIC: cublasComputeType_t = cublasComputeType_t(73);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasComputeType_t(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug)]
pub struct cublasLtContext {
    _unused: [u8; 0],
}
pub type cublasLtHandle_t = *mut cublasLtContext;
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct cublasLtMatrixLayoutOpaque_t {
    pub data: [u64; 8usize],
}
pub type cublasLtMatrixLayout_t = *mut cublasLtMatrixLayoutOpaque_t;
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct cublasLtMatmulAlgo_t {
    pub data: [u64; 8usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct cublasLtMatmulDescOpaque_t {
    pub data: [u64; 32usize],
}
pub type cublasLtMatmulDesc_t = *mut cublasLtMatmulDescOpaque_t;
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub struct cublasLtMatmulPreferenceOpaque_t {
    pub data: [u64; 8usize],
}
pub type cublasLtMatmulPreference_t = *mut cublasLtMatmulPreferenceOpaque_t;
impl cublasLtMatrixLayoutAttribute_t {
    pub const CUBLASLT_MATRIX_LAYOUT_TYPE: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(0);
    pub const CUBLASLT_MATRIX_LAYOUT_ORDER: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(1);
    pub const CUBLASLT_MATRIX_LAYOUT_ROWS: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(2);
    pub const CUBLASLT_MATRIX_LAYOUT_COLS: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(3);
    pub const CUBLASLT_MATRIX_LAYOUT_LD: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(4);
    pub const CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(5);
    pub const CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: cublasLtMatrixLayoutAttribute_t =
        cublasLtMatrixLayoutAttribute_t(6);
    pub const CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(7);
    pub const CUBLASLT_MATRIX_LAYOUT_BATCH_MODE: cublasLtMatrixLayoutAttribute_t = cublasLtMatrixLayoutAttribute_t(8);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatrixLayoutAttribute_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulDescAttributes_t {
    pub const CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(0);
    pub const CUBLASLT_MATMUL_DESC_SCALE_TYPE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(1);
    pub const CUBLASLT_MATMUL_DESC_POINTER_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(2);
    pub const CUBLASLT_MATMUL_DESC_TRANSA: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(3);
    pub const CUBLASLT_MATMUL_DESC_TRANSB: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(4);
    pub const CUBLASLT_MATMUL_DESC_TRANSC: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(5);
    pub const CUBLASLT_MATMUL_DESC_FILL_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(6);
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(7);
    pub const CUBLASLT_MATMUL_DESC_BIAS_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(8);
    pub const CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(10);
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(11);
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(12);
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(13);
    pub const CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(14);
    pub const CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(15);
    pub const CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(17);
    pub const CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(18);
    pub const CUBLASLT_MATMUL_DESC_C_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(19);
    pub const CUBLASLT_MATMUL_DESC_D_SCALE_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(20);
    pub const CUBLASLT_MATMUL_DESC_AMAX_D_POINTER: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(21);
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(22);
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(23);
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(24);
    pub const CUBLASLT_MATMUL_DESC_FAST_ACCUM: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(25);
    pub const CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(26);
    pub const CUBLASLT_MATMUL_DESC_A_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(31);
    pub const CUBLASLT_MATMUL_DESC_B_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(32);
    pub const CUBLASLT_MATMUL_DESC_C_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(33);
    pub const CUBLASLT_MATMUL_DESC_D_SCALE_MODE: cublasLtMatmulDescAttributes_t = cublasLtMatmulDescAttributes_t(34);
    pub const CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(35);
    pub const CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(36);
    pub const CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(37);
    pub const CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR: cublasLtMatmulDescAttributes_t =
        cublasLtMatmulDescAttributes_t(38);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulDescAttributes_t(pub ::std::os::raw::c_uint);
impl cublasLtReductionScheme_t {
    pub const CUBLASLT_REDUCTION_SCHEME_NONE: cublasLtReductionScheme_t = cublasLtReductionScheme_t(0);
    pub const CUBLASLT_REDUCTION_SCHEME_INPLACE: cublasLtReductionScheme_t = cublasLtReductionScheme_t(1);
    pub const CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: cublasLtReductionScheme_t = cublasLtReductionScheme_t(2);
    pub const CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE: cublasLtReductionScheme_t = cublasLtReductionScheme_t(4);
    pub const CUBLASLT_REDUCTION_SCHEME_MASK: cublasLtReductionScheme_t = cublasLtReductionScheme_t(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtReductionScheme_t(pub ::std::os::raw::c_uint);
impl cublasLtEpilogue_t {
    pub const CUBLASLT_EPILOGUE_DEFAULT: cublasLtEpilogue_t = cublasLtEpilogue_t(1);
    pub const CUBLASLT_EPILOGUE_RELU: cublasLtEpilogue_t = cublasLtEpilogue_t(2);
    pub const CUBLASLT_EPILOGUE_RELU_AUX: cublasLtEpilogue_t = cublasLtEpilogue_t(130);
    pub const CUBLASLT_EPILOGUE_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(4);
    pub const CUBLASLT_EPILOGUE_RELU_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(6);
    pub const CUBLASLT_EPILOGUE_RELU_AUX_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(134);
    pub const CUBLASLT_EPILOGUE_DRELU: cublasLtEpilogue_t = cublasLtEpilogue_t(136);
    pub const CUBLASLT_EPILOGUE_DRELU_BGRAD: cublasLtEpilogue_t = cublasLtEpilogue_t(152);
    pub const CUBLASLT_EPILOGUE_GELU: cublasLtEpilogue_t = cublasLtEpilogue_t(32);
    pub const CUBLASLT_EPILOGUE_GELU_AUX: cublasLtEpilogue_t = cublasLtEpilogue_t(160);
    pub const CUBLASLT_EPILOGUE_GELU_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(36);
    pub const CUBLASLT_EPILOGUE_GELU_AUX_BIAS: cublasLtEpilogue_t = cublasLtEpilogue_t(164);
    pub const CUBLASLT_EPILOGUE_DGELU: cublasLtEpilogue_t = cublasLtEpilogue_t(192);
    pub const CUBLASLT_EPILOGUE_DGELU_BGRAD: cublasLtEpilogue_t = cublasLtEpilogue_t(208);
    pub const CUBLASLT_EPILOGUE_BGRADA: cublasLtEpilogue_t = cublasLtEpilogue_t(256);
    pub const CUBLASLT_EPILOGUE_BGRADB: cublasLtEpilogue_t = cublasLtEpilogue_t(512);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtEpilogue_t(pub ::std::os::raw::c_uint);
impl cublasLtMatmulPreferenceAttributes_t {
    pub const CUBLASLT_MATMUL_PREF_SEARCH_MODE: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(0);
    pub const CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(1);
    pub const CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(3);
    pub const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(5);
    pub const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(6);
    pub const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(7);
    pub const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(8);
    pub const CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(9);
    pub const CUBLASLT_MATMUL_PREF_IMPL_MASK: cublasLtMatmulPreferenceAttributes_t =
        cublasLtMatmulPreferenceAttributes_t(12);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct cublasLtMatmulPreferenceAttributes_t(pub ::std::os::raw::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq)]
pub struct cublasLtMatmulHeuristicResult_t {
    pub algo: cublasLtMatmulAlgo_t,
    pub workspaceSize: usize,
    pub state: cublasStatus_t,
    pub wavesCount: f32,
    pub reserved: [::std::os::raw::c_int; 4usize],
}
pub struct CublasLt {
    __library: ::libloading::Library,
    pub cublasLtCreate:
        Result<unsafe extern "C" fn(lightHandle: *mut cublasLtHandle_t) -> cublasStatus_t, ::libloading::Error>,
    pub cublasLtDestroy:
        Result<unsafe extern "C" fn(lightHandle: cublasLtHandle_t) -> cublasStatus_t, ::libloading::Error>,
    pub cublasLtGetStatusName:
        Result<unsafe extern "C" fn(status: cublasStatus_t) -> *const ::std::os::raw::c_char, ::libloading::Error>,
    pub cublasLtGetVersion: Result<unsafe extern "C" fn() -> usize, ::libloading::Error>,
    pub cublasLtMatmul: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            computeDesc: cublasLtMatmulDesc_t,
            alpha: *const ::std::os::raw::c_void,
            A: *const ::std::os::raw::c_void,
            Adesc: cublasLtMatrixLayout_t,
            B: *const ::std::os::raw::c_void,
            Bdesc: cublasLtMatrixLayout_t,
            beta: *const ::std::os::raw::c_void,
            C: *const ::std::os::raw::c_void,
            Cdesc: cublasLtMatrixLayout_t,
            D: *mut ::std::os::raw::c_void,
            Ddesc: cublasLtMatrixLayout_t,
            algo: *const cublasLtMatmulAlgo_t,
            workspace: *mut ::std::os::raw::c_void,
            workspaceSizeInBytes: usize,
            stream: cudaStream_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixLayoutCreate: Result<
        unsafe extern "C" fn(
            matLayout: *mut cublasLtMatrixLayout_t,
            type_: cudaDataType,
            rows: u64,
            cols: u64,
            ld: i64,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatrixLayoutDestroy:
        Result<unsafe extern "C" fn(matLayout: cublasLtMatrixLayout_t) -> cublasStatus_t, ::libloading::Error>,
    pub cublasLtMatrixLayoutSetAttribute: Result<
        unsafe extern "C" fn(
            matLayout: cublasLtMatrixLayout_t,
            attr: cublasLtMatrixLayoutAttribute_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulDescCreate: Result<
        unsafe extern "C" fn(
            matmulDesc: *mut cublasLtMatmulDesc_t,
            computeType: cublasComputeType_t,
            scaleType: cudaDataType_t,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulDescDestroy:
        Result<unsafe extern "C" fn(matmulDesc: cublasLtMatmulDesc_t) -> cublasStatus_t, ::libloading::Error>,
    pub cublasLtMatmulDescSetAttribute: Result<
        unsafe extern "C" fn(
            matmulDesc: cublasLtMatmulDesc_t,
            attr: cublasLtMatmulDescAttributes_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulPreferenceCreate:
        Result<unsafe extern "C" fn(pref: *mut cublasLtMatmulPreference_t) -> cublasStatus_t, ::libloading::Error>,
    pub cublasLtMatmulPreferenceDestroy:
        Result<unsafe extern "C" fn(pref: cublasLtMatmulPreference_t) -> cublasStatus_t, ::libloading::Error>,
    pub cublasLtMatmulPreferenceSetAttribute: Result<
        unsafe extern "C" fn(
            pref: cublasLtMatmulPreference_t,
            attr: cublasLtMatmulPreferenceAttributes_t,
            buf: *const ::std::os::raw::c_void,
            sizeInBytes: usize,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
    pub cublasLtMatmulAlgoGetHeuristic: Result<
        unsafe extern "C" fn(
            lightHandle: cublasLtHandle_t,
            operationDesc: cublasLtMatmulDesc_t,
            Adesc: cublasLtMatrixLayout_t,
            Bdesc: cublasLtMatrixLayout_t,
            Cdesc: cublasLtMatrixLayout_t,
            Ddesc: cublasLtMatrixLayout_t,
            preference: cublasLtMatmulPreference_t,
            requestedAlgoCount: ::std::os::raw::c_int,
            heuristicResultsArray: *mut cublasLtMatmulHeuristicResult_t,
            returnAlgoCount: *mut ::std::os::raw::c_int,
        ) -> cublasStatus_t,
        ::libloading::Error,
    >,
}
impl CublasLt {
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
        let cublasLtCreate = unsafe { __library.get(b"cublasLtCreate\0") }.map(|sym| *sym);
        let cublasLtDestroy = unsafe { __library.get(b"cublasLtDestroy\0") }.map(|sym| *sym);
        let cublasLtGetStatusName = unsafe { __library.get(b"cublasLtGetStatusName\0") }.map(|sym| *sym);
        let cublasLtGetVersion = unsafe { __library.get(b"cublasLtGetVersion\0") }.map(|sym| *sym);
        let cublasLtMatmul = unsafe { __library.get(b"cublasLtMatmul\0") }.map(|sym| *sym);
        let cublasLtMatrixLayoutCreate = unsafe { __library.get(b"cublasLtMatrixLayoutCreate\0") }.map(|sym| *sym);
        let cublasLtMatrixLayoutDestroy = unsafe { __library.get(b"cublasLtMatrixLayoutDestroy\0") }.map(|sym| *sym);
        let cublasLtMatrixLayoutSetAttribute =
            unsafe { __library.get(b"cublasLtMatrixLayoutSetAttribute\0") }.map(|sym| *sym);
        let cublasLtMatmulDescCreate = unsafe { __library.get(b"cublasLtMatmulDescCreate\0") }.map(|sym| *sym);
        let cublasLtMatmulDescDestroy = unsafe { __library.get(b"cublasLtMatmulDescDestroy\0") }.map(|sym| *sym);
        let cublasLtMatmulDescSetAttribute =
            unsafe { __library.get(b"cublasLtMatmulDescSetAttribute\0") }.map(|sym| *sym);
        let cublasLtMatmulPreferenceCreate =
            unsafe { __library.get(b"cublasLtMatmulPreferenceCreate\0") }.map(|sym| *sym);
        let cublasLtMatmulPreferenceDestroy =
            unsafe { __library.get(b"cublasLtMatmulPreferenceDestroy\0") }.map(|sym| *sym);
        let cublasLtMatmulPreferenceSetAttribute =
            unsafe { __library.get(b"cublasLtMatmulPreferenceSetAttribute\0") }.map(|sym| *sym);
        let cublasLtMatmulAlgoGetHeuristic =
            unsafe { __library.get(b"cublasLtMatmulAlgoGetHeuristic\0") }.map(|sym| *sym);
        Ok(CublasLt {
            __library,
            cublasLtCreate,
            cublasLtDestroy,
            cublasLtGetStatusName,
            cublasLtGetVersion,
            cublasLtMatmul,
            cublasLtMatrixLayoutCreate,
            cublasLtMatrixLayoutDestroy,
            cublasLtMatrixLayoutSetAttribute,
            cublasLtMatmulDescCreate,
            cublasLtMatmulDescDestroy,
            cublasLtMatmulDescSetAttribute,
            cublasLtMatmulPreferenceCreate,
            cublasLtMatmulPreferenceDestroy,
            cublasLtMatmulPreferenceSetAttribute,
            cublasLtMatmulAlgoGetHeuristic,
        })
    }
    pub unsafe fn cublasLtCreate(&self, lightHandle: *mut cublasLtHandle_t) -> cublasStatus_t {
        unsafe { (self.cublasLtCreate.as_ref().expect("Expected function, got error."))(lightHandle) }
    }
    pub unsafe fn cublasLtDestroy(&self, lightHandle: cublasLtHandle_t) -> cublasStatus_t {
        unsafe { (self.cublasLtDestroy.as_ref().expect("Expected function, got error."))(lightHandle) }
    }
    pub unsafe fn cublasLtGetStatusName(&self, status: cublasStatus_t) -> *const ::std::os::raw::c_char {
        unsafe { (self.cublasLtGetStatusName.as_ref().expect("Expected function, got error."))(status) }
    }
    pub unsafe fn cublasLtGetVersion(&self) -> usize {
        unsafe { (self.cublasLtGetVersion.as_ref().expect("Expected function, got error."))() }
    }
    pub unsafe fn cublasLtMatmul(
        &self,
        lightHandle: cublasLtHandle_t,
        computeDesc: cublasLtMatmulDesc_t,
        alpha: *const ::std::os::raw::c_void,
        A: *const ::std::os::raw::c_void,
        Adesc: cublasLtMatrixLayout_t,
        B: *const ::std::os::raw::c_void,
        Bdesc: cublasLtMatrixLayout_t,
        beta: *const ::std::os::raw::c_void,
        C: *const ::std::os::raw::c_void,
        Cdesc: cublasLtMatrixLayout_t,
        D: *mut ::std::os::raw::c_void,
        Ddesc: cublasLtMatrixLayout_t,
        algo: *const cublasLtMatmulAlgo_t,
        workspace: *mut ::std::os::raw::c_void,
        workspaceSizeInBytes: usize,
        stream: cudaStream_t,
    ) -> cublasStatus_t {
        unsafe {
            (self.cublasLtMatmul.as_ref().expect("Expected function, got error."))(
                lightHandle,
                computeDesc,
                alpha,
                A,
                Adesc,
                B,
                Bdesc,
                beta,
                C,
                Cdesc,
                D,
                Ddesc,
                algo,
                workspace,
                workspaceSizeInBytes,
                stream,
            )
        }
    }
    pub unsafe fn cublasLtMatrixLayoutCreate(
        &self,
        matLayout: *mut cublasLtMatrixLayout_t,
        type_: cudaDataType,
        rows: u64,
        cols: u64,
        ld: i64,
    ) -> cublasStatus_t {
        unsafe {
            (self.cublasLtMatrixLayoutCreate.as_ref().expect("Expected function, got error."))(
                matLayout, type_, rows, cols, ld,
            )
        }
    }
    pub unsafe fn cublasLtMatrixLayoutDestroy(&self, matLayout: cublasLtMatrixLayout_t) -> cublasStatus_t {
        unsafe { (self.cublasLtMatrixLayoutDestroy.as_ref().expect("Expected function, got error."))(matLayout) }
    }
    pub unsafe fn cublasLtMatrixLayoutSetAttribute(
        &self,
        matLayout: cublasLtMatrixLayout_t,
        attr: cublasLtMatrixLayoutAttribute_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> cublasStatus_t {
        unsafe {
            (self.cublasLtMatrixLayoutSetAttribute.as_ref().expect("Expected function, got error."))(
                matLayout,
                attr,
                buf,
                sizeInBytes,
            )
        }
    }
    pub unsafe fn cublasLtMatmulDescCreate(
        &self,
        matmulDesc: *mut cublasLtMatmulDesc_t,
        computeType: cublasComputeType_t,
        scaleType: cudaDataType_t,
    ) -> cublasStatus_t {
        unsafe {
            (self.cublasLtMatmulDescCreate.as_ref().expect("Expected function, got error."))(
                matmulDesc,
                computeType,
                scaleType,
            )
        }
    }
    pub unsafe fn cublasLtMatmulDescDestroy(&self, matmulDesc: cublasLtMatmulDesc_t) -> cublasStatus_t {
        unsafe { (self.cublasLtMatmulDescDestroy.as_ref().expect("Expected function, got error."))(matmulDesc) }
    }
    pub unsafe fn cublasLtMatmulDescSetAttribute(
        &self,
        matmulDesc: cublasLtMatmulDesc_t,
        attr: cublasLtMatmulDescAttributes_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> cublasStatus_t {
        unsafe {
            (self.cublasLtMatmulDescSetAttribute.as_ref().expect("Expected function, got error."))(
                matmulDesc,
                attr,
                buf,
                sizeInBytes,
            )
        }
    }
    pub unsafe fn cublasLtMatmulPreferenceCreate(&self, pref: *mut cublasLtMatmulPreference_t) -> cublasStatus_t {
        unsafe { (self.cublasLtMatmulPreferenceCreate.as_ref().expect("Expected function, got error."))(pref) }
    }
    pub unsafe fn cublasLtMatmulPreferenceDestroy(&self, pref: cublasLtMatmulPreference_t) -> cublasStatus_t {
        unsafe { (self.cublasLtMatmulPreferenceDestroy.as_ref().expect("Expected function, got error."))(pref) }
    }
    pub unsafe fn cublasLtMatmulPreferenceSetAttribute(
        &self,
        pref: cublasLtMatmulPreference_t,
        attr: cublasLtMatmulPreferenceAttributes_t,
        buf: *const ::std::os::raw::c_void,
        sizeInBytes: usize,
    ) -> cublasStatus_t {
        unsafe {
            (self.cublasLtMatmulPreferenceSetAttribute.as_ref().expect("Expected function, got error."))(
                pref,
                attr,
                buf,
                sizeInBytes,
            )
        }
    }
    pub unsafe fn cublasLtMatmulAlgoGetHeuristic(
        &self,
        lightHandle: cublasLtHandle_t,
        operationDesc: cublasLtMatmulDesc_t,
        Adesc: cublasLtMatrixLayout_t,
        Bdesc: cublasLtMatrixLayout_t,
        Cdesc: cublasLtMatrixLayout_t,
        Ddesc: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t,
        requestedAlgoCount: ::std::os::raw::c_int,
        heuristicResultsArray: *mut cublasLtMatmulHeuristicResult_t,
        returnAlgoCount: *mut ::std::os::raw::c_int,
    ) -> cublasStatus_t {
        unsafe {
            (self.cublasLtMatmulAlgoGetHeuristic.as_ref().expect("Expected function, got error."))(
                lightHandle,
                operationDesc,
                Adesc,
                Bdesc,
                Cdesc,
                Ddesc,
                preference,
                requestedAlgoCount,
                heuristicResultsArray,
                returnAlgoCount,
            )
        }
    }
}
