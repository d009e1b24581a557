//! cuBLASLt: matrix products, single or strided batches, with an epilogue.
//!
//! A [`Product`] is the description in a plan; making one needs no library. A [`Handle`] is cuBLASLt on a GPU, an [`Execution`] a
//! product with its addresses. The algorithm is chosen when a plan is opened, within the planned workspace, because cuBLASLt's
//! heuristic needs the device itself.

mod execution;

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::Arc;

use cuda_sys::cublaslt as sys;
use serde::{Deserialize, Serialize};

pub use execution::{Execution, Handle};

use crate::library::function;
use crate::{FloatType, LibraryNotFound, LibraryPaths, MathMode, library};

/// The supported major version.
const MAJOR: usize = 13;

/// `count` row-major products of `left: [rows, terms]` with `right: [terms, columns]`, as encoded in plans.
///
/// The step's operands are, in this order: left, right, the bias `[columns]`, the residual with the result's shape, the result.
/// Bias and residual have the result's data type; the residual may alias the result. Accumulators are `f32`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Product {
    /// The data type of both operands.
    pub factors: FloatType,
    /// The data type of results: that of the operands, or `f32`.
    pub result: FloatType,
    /// The permitted arithmetic.
    pub math: MathMode,
    /// The number of products.
    pub count: u32,
    /// Rows of a left operand and of a result.
    pub rows: u32,
    /// Columns of a right operand and of a result.
    pub columns: u32,
    /// Columns of a left operand, rows of a right one.
    pub terms: u32,
    /// Elements from one left operand to the next; 0 if all products share it.
    pub left_step: u64,
    /// The same for right operands. Results are contiguous.
    pub right_step: u64,
    /// Whether a vector is added to each row.
    pub bias: bool,
    /// Whether a matrix is added to each result.
    pub residual: bool,
    /// The activation at the end of the epilogue.
    pub activation: Option<Activation>,
    /// The bytes of the step's workspace.
    pub workspace: u64,
    /// Index of the algorithm among those of cuBLASLt's heuristic that fit into the workspace. If it is out of range, the first
    /// one is used.
    pub algorithm: u32,
}

/// The activations of cuBLASLt's epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Activation {
    /// ReLU.
    Relu,
    /// GELU in its tanh approximation.
    GeluTanh,
}

impl Product {
    /// The number of operands, the result included.
    pub fn operands(&self) -> usize {
        3 + usize::from(self.bias) + usize::from(self.residual)
    }

    /// The bytes of each operand, the result included. `None` on overflow.
    pub fn sizes(&self) -> Option<Vec<u64>> {
        let Product { factors, result, count, rows, columns, terms, .. } = *self;
        let last = u64::from(count.checked_sub(1)?);
        let all = |number: FloatType, step: u64, rows: u32, columns: u32| {
            let own = u64::from(rows).checked_mul(u64::from(columns))?;
            last.checked_mul(step)?.checked_add(own)?.checked_mul(number.size() as u64)
        };
        let own = u64::from(rows).checked_mul(u64::from(columns))?;
        let mut sizes =
            vec![all(factors, self.left_step, rows, terms)?, all(factors, self.right_step, terms, columns)?];
        sizes.extend(self.bias.then(|| u64::from(columns) * result.size() as u64));
        let result = all(result, own, rows, columns)?;
        sizes.extend(self.residual.then_some(result));
        sizes.push(result);
        Some(sizes)
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Product { count, rows, terms, columns, .. } = self;
        if *count != 1 {
            write!(f, "{count} products of ")?;
        }
        write!(f, "[{rows}, {terms}] x [{terms}, {columns}] of {:?}", self.factors)
    }
}

/// Error of cuBLASLt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CublasError {
    #[error(transparent)]
    NotFound(#[from] LibraryNotFound),
    #[error("libcublasLt.so must have the function `{0}`; install cuBLAS {MAJOR}")]
    Lacks(&'static str),
    #[error(
        "cuBLASLt must be version {MAJOR}, got the {} {version}; install it, or compile the model without cuBLASLt",
        if *.old { "older" } else { "newer" }
    )]
    Version { version: String, old: bool },
    #[error(
        "cuBLASLt {version} has no algorithm on {gpu} for {product} with {workspace} bytes of workspace{why}; compile the \
         model with a larger workspace, or without cuBLASLt"
    )]
    NoAlgorithm { version: String, gpu: String, product: String, workspace: u64, why: String },
    #[error(
        "cuBLASLt {version} failed on {gpu} at {what} {product}: {why}; compile the model with another workspace, or without \
         cuBLASLt"
    )]
    Product { version: String, gpu: String, what: &'static str, product: String, why: String },
    #[error("cuBLASLt failed at {what}: {why}")]
    Failed { what: &'static str, why: String },
}

type Status = sys::cublasStatus_t;

/// cuBLASLt, loaded permanently.
pub struct CublasLtLibrary {
    version: usize,
    create: unsafe extern "C" fn(*mut sys::cublasLtHandle_t) -> Status,
    destroy: unsafe extern "C" fn(sys::cublasLtHandle_t) -> Status,
    status_name: unsafe extern "C" fn(Status) -> *const std::ffi::c_char,
    desc_create:
        unsafe extern "C" fn(*mut sys::cublasLtMatmulDesc_t, sys::cublasComputeType_t, sys::cudaDataType_t) -> Status,
    desc_destroy: unsafe extern "C" fn(sys::cublasLtMatmulDesc_t) -> Status,
    desc_set: unsafe extern "C" fn(
        sys::cublasLtMatmulDesc_t,
        sys::cublasLtMatmulDescAttributes_t,
        *const c_void,
        usize,
    ) -> Status,
    layout_create: unsafe extern "C" fn(*mut sys::cublasLtMatrixLayout_t, sys::cudaDataType, u64, u64, i64) -> Status,
    layout_destroy: unsafe extern "C" fn(sys::cublasLtMatrixLayout_t) -> Status,
    layout_set: unsafe extern "C" fn(
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayoutAttribute_t,
        *const c_void,
        usize,
    ) -> Status,
    preference_create: unsafe extern "C" fn(*mut sys::cublasLtMatmulPreference_t) -> Status,
    preference_destroy: unsafe extern "C" fn(sys::cublasLtMatmulPreference_t) -> Status,
    preference_set: unsafe extern "C" fn(
        sys::cublasLtMatmulPreference_t,
        sys::cublasLtMatmulPreferenceAttributes_t,
        *const c_void,
        usize,
    ) -> Status,
    heuristic: unsafe extern "C" fn(
        sys::cublasLtHandle_t,
        sys::cublasLtMatmulDesc_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatrixLayout_t,
        sys::cublasLtMatmulPreference_t,
        std::ffi::c_int,
        *mut sys::cublasLtMatmulHeuristicResult_t,
        *mut std::ffi::c_int,
    ) -> Status,
    matmul: unsafe extern "C" fn(
        sys::cublasLtHandle_t,
        sys::cublasLtMatmulDesc_t,
        *const c_void,
        *const c_void,
        sys::cublasLtMatrixLayout_t,
        *const c_void,
        sys::cublasLtMatrixLayout_t,
        *const c_void,
        *const c_void,
        sys::cublasLtMatrixLayout_t,
        *mut c_void,
        sys::cublasLtMatrixLayout_t,
        *const sys::cublasLtMatmulAlgo_t,
        *mut c_void,
        usize,
        sys::cudaStream_t,
    ) -> Status,
}

impl CublasLtLibrary {
    /// Loads cuBLASLt.
    ///
    /// # Errors
    /// cuBLASLt is not found, or has another major version.
    pub fn find(places: &LibraryPaths) -> Result<Arc<CublasLtLibrary>, CublasError> {
        let library = library::table(places, &["libcublasLt.so.13"], "--cublas")?;
        // SAFETY: the library has cuBLASLt's name, and the table has the types of its headers.
        let table = unsafe { sys::CublasLt::from_library(library) };
        let table = table.map_err(|error| CublasError::Failed { what: "initialization", why: error.to_string() })?;
        let version = function!(table, cublasLtGetVersion, CublasError);
        let cublas = CublasLtLibrary {
            // SAFETY: the function only returns a number.
            version: unsafe { version() },
            create: function!(table, cublasLtCreate, CublasError),
            destroy: function!(table, cublasLtDestroy, CublasError),
            status_name: function!(table, cublasLtGetStatusName, CublasError),
            desc_create: function!(table, cublasLtMatmulDescCreate, CublasError),
            desc_destroy: function!(table, cublasLtMatmulDescDestroy, CublasError),
            desc_set: function!(table, cublasLtMatmulDescSetAttribute, CublasError),
            layout_create: function!(table, cublasLtMatrixLayoutCreate, CublasError),
            layout_destroy: function!(table, cublasLtMatrixLayoutDestroy, CublasError),
            layout_set: function!(table, cublasLtMatrixLayoutSetAttribute, CublasError),
            preference_create: function!(table, cublasLtMatmulPreferenceCreate, CublasError),
            preference_destroy: function!(table, cublasLtMatmulPreferenceDestroy, CublasError),
            preference_set: function!(table, cublasLtMatmulPreferenceSetAttribute, CublasError),
            heuristic: function!(table, cublasLtMatmulAlgoGetHeuristic, CublasError),
            matmul: function!(table, cublasLtMatmul, CublasError),
        };
        // The library is never unloaded, so the functions stay valid.
        std::mem::forget(table);
        let (version, major) = (cublas.version(), cublas.version / 10_000);
        match major == MAJOR {
            true => Ok(Arc::new(cublas)),
            false => Err(CublasError::Version { version, old: major < MAJOR }),
        }
    }

    /// Its version, such as `13.1.0`.
    pub fn version(&self) -> String {
        library::dotted(self.version)
    }

    /// Converts a status to a text.
    fn check(&self, status: Status) -> Result<(), String> {
        if status == Status::CUBLAS_STATUS_SUCCESS {
            return Ok(());
        }
        // SAFETY: the text is static.
        let name = unsafe { CStr::from_ptr((self.status_name)(status)) };
        Err(name.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCT: Product = Product {
        factors: FloatType::F16,
        result: FloatType::F32,
        math: MathMode::Strict,
        count: 3,
        rows: 5,
        columns: 7,
        terms: 11,
        left_step: 55,
        right_step: 0,
        bias: true,
        residual: true,
        activation: Some(Activation::GeluTanh),
        workspace: 1 << 20,
        algorithm: 0,
    };

    #[test]
    fn sizes_of_operands_follow_from_the_product() {
        let sizes = vec![3 * 55 * 2, 77 * 2, 7 * 4, 3 * 35 * 4, 3 * 35 * 4];
        assert_eq!((PRODUCT.operands(), PRODUCT.sizes()), (5, Some(sizes)));
        let plain = Product { bias: false, residual: false, count: 1, ..PRODUCT };
        assert_eq!(plain.sizes(), Some(vec![110, 154, 140]));
        assert_eq!(Product { left_step: u64::MAX, ..PRODUCT }.sizes(), None);
        assert_eq!(Product { count: 0, ..PRODUCT }.sizes(), None);
        assert_eq!(PRODUCT.to_string(), "3 products of [5, 11] x [11, 7] of F16");
    }
}
