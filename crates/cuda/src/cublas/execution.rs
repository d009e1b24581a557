//! [`Execution`]: a product with its addresses and its algorithm, on a GPU's stream.
//!
//! cuBLASLt's matrices are column-major, so it sees our row-major matrices transposed. The transposed result is the product of
//! the transposed operands in reverse order: cuBLASLt's first operand is our right one. The bias then has one element per row
//! of its result, as cuBLASLt requires.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_sys::cublaslt as sys;

use super::{Activation, CublasError, CublasLtLibrary, Product, Status};
use crate::driver::{DeviceMemory, DriverError, Gpu};
use crate::{FloatType, LibraryPaths, MathMode};

use sys::{
    cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue, cublasLtMatmulDescAttributes_t as Is,
    cublasLtMatmulPreferenceAttributes_t as Wish, cublasLtMatrixLayoutAttribute_t as Lies,
    cublasLtReductionScheme_t as Reduction, cudaDataType_t as Data,
};

/// The number of algorithms that are requested from the heuristic.
const ALGORITHMS: usize = 8;
/// The largest declared alignment, which is cuBLASLt's default.
const ALIGNMENT_MAX: u64 = 256;

/// cuBLASLt on a GPU. Its work is enqueued on the GPU's stream.
pub struct Handle {
    library: Arc<CublasLtLibrary>,
    raw: sys::cublasLtHandle_t,
    gpu: Arc<Gpu>,
}

// SAFETY: a handle may be used from any thread, by one at a time. It is used only by `Execution::launch`, whose callers enqueue
// on one stream and so do not overlap.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

fn failed(what: &'static str) -> impl Fn(String) -> CublasError {
    move |why| CublasError::Failed { what, why }
}

fn entered(what: &'static str) -> impl Fn(DriverError) -> CublasError {
    move |error| CublasError::Failed { what, why: error.to_string() }
}

impl Handle {
    /// Loads cuBLASLt and creates a handle.
    ///
    /// # Errors
    /// cuBLASLt is not found, has another major version, or fails with this driver.
    pub fn new(places: &LibraryPaths, gpu: &Arc<Gpu>) -> Result<Arc<Handle>, CublasError> {
        let library = CublasLtLibrary::find(places)?;
        gpu.enter().map_err(entered("initialization"))?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid, and the context is current.
        library.check(unsafe { (library.create)(&mut raw) }).map_err(failed("initialization"))?;
        Ok(Arc::new(Handle { library, raw, gpu: gpu.clone() }))
    }

    /// cuBLASLt's version.
    pub fn version(&self) -> String {
        self.library.version()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: this struct owns the handle. A failure has no remedy.
            let _ = unsafe { (self.library.destroy)(self.raw) };
        }
    }
}

/// The attribute names of a kind of object. They determine its setter and destructor.
trait Attribute: Sized {
    type Raw: Copy;
    fn setter(library: &CublasLtLibrary) -> unsafe extern "C" fn(Self::Raw, Self, *const c_void, usize) -> Status;
    fn destructor(library: &CublasLtLibrary) -> unsafe extern "C" fn(Self::Raw) -> Status;
}

macro_rules! attribute {
    ($name:ident of $raw:ident: $set:ident, $destroy:ident) => {
        impl Attribute for $name {
            type Raw = sys::$raw;

            fn setter(
                library: &CublasLtLibrary,
            ) -> unsafe extern "C" fn(sys::$raw, $name, *const c_void, usize) -> Status {
                library.$set
            }

            fn destructor(library: &CublasLtLibrary) -> unsafe extern "C" fn(sys::$raw) -> Status {
                library.$destroy
            }
        }
    };
}
attribute!(Is of cublasLtMatmulDesc_t: desc_set, desc_destroy);
attribute!(Lies of cublasLtMatrixLayout_t: layout_set, layout_destroy);
attribute!(Wish of cublasLtMatmulPreference_t: preference_set, preference_destroy);

/// A cuBLASLt object, destroyed on drop.
struct Object<Name: Attribute> {
    library: Arc<CublasLtLibrary>,
    raw: Name::Raw,
}

/// The operation of a product.
type Description = Object<Is>;
/// The layout of a column-major matrix, or of a strided batch.
type Matrix = Object<Lies>;
/// The constraints of the heuristic.
type Preference = Object<Wish>;

impl<Name: Attribute> Object<Name> {
    fn set<T: Copy>(&mut self, name: Name, value: T) -> Result<(), String> {
        let set = Name::setter(&self.library);
        // SAFETY: the object is alive, and cuBLASLt copies `size_of::<T>()` bytes.
        self.library.check(unsafe { set(self.raw, name, (&raw const value).cast(), size_of::<T>()) })
    }
}

impl<Name: Attribute> Drop for Object<Name> {
    fn drop(&mut self) {
        // SAFETY: this struct owns the object. A failure has no remedy.
        let _ = unsafe { Name::destructor(&self.library)(self.raw) };
    }
}

impl Description {
    fn new(library: &Arc<CublasLtLibrary>, compute: Compute) -> Result<Description, String> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        library.check(unsafe { (library.desc_create)(&mut raw, compute, Data::CUDA_R_32F) })?;
        Ok(Object { library: library.clone(), raw })
    }
}

impl Matrix {
    /// Elements of a column are adjacent; each of `count` matrices starts `step` elements after the previous one.
    fn new(
        library: &Arc<CublasLtLibrary>,
        number: FloatType,
        rows: u32,
        columns: u32,
        count: u32,
        step: u64,
    ) -> Result<Matrix, String> {
        let data = match number {
            FloatType::F32 => Data::CUDA_R_32F,
            FloatType::F16 => Data::CUDA_R_16F,
            FloatType::Bf16 => Data::CUDA_R_16BF,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        let status =
            unsafe { (library.layout_create)(&mut raw, data, u64::from(rows), u64::from(columns), i64::from(rows)) };
        library.check(status)?;
        let mut matrix = Object { library: library.clone(), raw };
        if count != 1 {
            let step = i64::try_from(step).map_err(|_| format!("{step} elements from one matrix to the next"))?;
            let count = i32::try_from(count).map_err(|_| format!("{count} matrices"))?;
            matrix.set(Lies::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count)?;
            matrix.set(Lies::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step)?;
        }
        Ok(matrix)
    }
}

impl Preference {
    fn new(library: &Arc<CublasLtLibrary>) -> Result<Preference, String> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        library.check(unsafe { (library.preference_create)(&mut raw) })?;
        Ok(Object { library: library.clone(), raw })
    }
}

/// The device addresses of a product's operands.
struct Addresses {
    left: u64,
    right: u64,
    bias: Option<u64>,
    /// The residual. Without one, the result, which is then not read.
    added: u64,
    result: u64,
    workspace: u64,
}

/// A product with its addresses and its algorithm.
pub struct Execution {
    // Dropped in this order: the handle must be last.
    description: Description,
    left: Matrix,
    right: Matrix,
    result: Matrix,
    handle: Arc<Handle>,
    algorithm: sys::cublasLtMatmulAlgo_t,
    at: Addresses,
    /// The factor of `added`: 1 with a residual, 0 without.
    beta: f32,
    workspace: u64,
    /// The part of the workspace that the algorithm uses.
    wanted: u64,
    /// The number of algorithms within the workspace.
    algorithms: usize,
    /// Keeps the operands' block alive.
    _memory: Arc<DeviceMemory>,
}

// SAFETY: cuBLASLt's objects are plain host memory without thread affinity.
unsafe impl Send for Execution {}
// SAFETY: objects are only read after construction.
unsafe impl Sync for Execution {}

impl Execution {
    /// Chooses the algorithm of a product. `places` are the offsets of its operands in a block, `workspace` that of its workspace.
    ///
    /// # Errors
    /// cuBLASLt has no algorithm within the workspace, or fails.
    ///
    /// # Panics
    /// An offset is outside of the block, or the number of offsets differs from that of the operands.
    pub fn new(
        handle: &Arc<Handle>,
        product: &Product,
        memory: &Arc<DeviceMemory>,
        places: &[usize],
        workspace: Option<usize>,
    ) -> Result<Execution, CublasError> {
        assert_eq!(places.len(), product.operands(), "the plan was checked");
        let address = |place: usize| memory.address(place);
        let result = address(places[places.len() - 1]);
        let at = Addresses {
            left: address(places[0]),
            right: address(places[1]),
            bias: product.bias.then(|| address(places[2])),
            added: if product.residual { address(places[places.len() - 2]) } else { result },
            result,
            workspace: workspace.map_or(0, address),
        };
        handle.gpu.enter().map_err(entered("searching an algorithm"))?;
        let library = &handle.library;
        let at_product = |what: &'static str| {
            move |why: String| CublasError::Product {
                version: handle.version(),
                gpu: handle.gpu.name().to_string(),
                what,
                product: product.to_string(),
                why,
            }
        };
        let described = at_product("describing");
        let description = describe(library, product, &at).map_err(&described)?;
        let Product { count, rows, columns, terms, .. } = *product;
        let matrix = |number, rows, columns, step| Matrix::new(library, number, rows, columns, count, step);
        let left = matrix(product.factors, terms, rows, product.left_step).map_err(&described)?;
        let right = matrix(product.factors, columns, terms, product.right_step).map_err(&described)?;
        let own = u64::from(rows) * u64::from(columns);
        let result = matrix(product.result, columns, rows, own).map_err(&described)?;
        let preference = prefer(library, product, &at).map_err(&described)?;

        const NONE: sys::cublasLtMatmulHeuristicResult_t = sys::cublasLtMatmulHeuristicResult_t {
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspaceSize: 0,
            state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let (mut found, mut found_count) = ([NONE; ALGORITHMS], 0);
        // SAFETY: all objects are alive, the buffer has `ALGORITHMS` elements, and the count's pointer is valid.
        let status = unsafe {
            (library.heuristic)(
                handle.raw,
                description.raw,
                right.raw,
                left.raw,
                result.raw,
                result.raw,
                preference.raw,
                ALGORITHMS as i32,
                found.as_mut_ptr(),
                &mut found_count,
            )
        };
        let none = |why: String| CublasError::NoAlgorithm {
            version: handle.version(),
            gpu: handle.gpu.name().to_string(),
            product: product.to_string(),
            workspace: product.workspace,
            why,
        };
        library.check(status).map_err(|why| match status {
            sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => none(format!(" ({why})")),
            _ => at_product("searching an algorithm for")(why),
        })?;
        let found = found.iter().take(usize::try_from(found_count).unwrap_or_default());
        let fits = |one: &&sys::cublasLtMatmulHeuristicResult_t| {
            one.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && one.workspaceSize as u64 <= product.workspace
        };
        let mut fitting = found.filter(fits);
        let first = fitting.clone().next().ok_or_else(|| none(String::new()))?;
        let algorithms = fitting.clone().count();
        let chosen = fitting.nth(product.algorithm as usize).unwrap_or(first);
        Ok(Execution {
            description,
            left,
            right,
            result,
            handle: handle.clone(),
            algorithm: chosen.algo,
            wanted: chosen.workspaceSize as u64,
            algorithms,
            at,
            beta: if product.residual { 1.0 } else { 0.0 },
            workspace: product.workspace,
            _memory: memory.clone(),
        })
    }

    /// The number of algorithms within the workspace.
    pub fn algorithms(&self) -> usize {
        self.algorithms
    }

    /// The planned bytes of workspace.
    pub fn workspace(&self) -> u64 {
        self.workspace
    }

    /// The bytes of workspace that the algorithm uses.
    pub fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Enqueues it on the GPU's stream.
    ///
    /// # Errors
    /// cuBLASLt or the driver fails.
    pub fn launch(&self) -> Result<(), DriverError> {
        let Handle { library, raw, gpu } = &*self.handle;
        gpu.enter()?;
        let (alpha, at) = (1.0f32, &self.at);
        let pointer = |address: u64| address as *mut c_void;
        // SAFETY: handle and objects are alive, and `alpha` and `beta` are read before the call returns. The addresses point into
        // a live block of device memory. An algorithm that leaves the block can corrupt other device memory, but no host memory:
        // it receives no other host address.
        let status = unsafe {
            (library.matmul)(
                *raw,
                self.description.raw,
                (&raw const alpha).cast(),
                pointer(at.right),
                self.right.raw,
                pointer(at.left),
                self.left.raw,
                (&raw const self.beta).cast(),
                pointer(at.added),
                self.result.raw,
                pointer(at.result),
                self.result.raw,
                &self.algorithm,
                pointer(at.workspace),
                self.workspace as usize,
                gpu.stream().cast(),
            )
        };
        library.check(status).map_err(|why| DriverError::Failed { what: "a step of cuBLASLt's", why })
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        // cuBLASLt unloads code of the product, which requires its context.
        let _ = self.handle.gpu.enter();
    }
}

/// The arithmetic and the epilogue of a product.
fn describe(library: &Arc<CublasLtLibrary>, product: &Product, at: &Addresses) -> Result<Description, String> {
    // Products of half-precision operands are exact in f32.
    let compute = match (product.factors, product.math) {
        (FloatType::F32, MathMode::Tf32) => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
        (FloatType::F32, MathMode::Exact) => Compute::CUBLAS_COMPUTE_32F_PEDANTIC,
        _ => Compute::CUBLAS_COMPUTE_32F,
    };
    let mut description = Description::new(library, compute)?;
    let epilogue = match (product.activation, product.bias) {
        (None, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (None, true) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (Some(Activation::Relu), false) => Epilogue::CUBLASLT_EPILOGUE_RELU,
        (Some(Activation::Relu), true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (Some(Activation::GeluTanh), false) => Epilogue::CUBLASLT_EPILOGUE_GELU,
        (Some(Activation::GeluTanh), true) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
    };
    description.set(Is::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)?;
    if let Some(bias) = at.bias {
        description.set(Is::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
    }
    Ok(description)
}

/// The constraints of workspace and alignment.
fn prefer(library: &Arc<CublasLtLibrary>, product: &Product, at: &Addresses) -> Result<Preference, String> {
    let mut preference = Preference::new(library)?;
    preference.set(Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, product.workspace)?;
    if product.result != FloatType::F32 {
        // Split-K must reduce partial sums before it rounds them.
        let schemes = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        preference.set(Wish::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes)?;
    }
    for (name, address) in [
        (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, at.right),
        (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, at.left),
        (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, at.added),
        (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, at.result),
    ] {
        preference.set(name, alignment(address))?;
    }
    Ok(preference)
}

/// The alignment of an address, at most [`ALIGNMENT_MAX`].
fn alignment(address: u64) -> u32 {
    1 << (address | ALIGNMENT_MAX).trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_the_largest_power_of_two_up_to_the_limit() {
        assert_eq!([0, 4, 6, 48, 256, 3 << 20].map(alignment), [256, 4, 2, 16, 256, 256]);
    }
}
