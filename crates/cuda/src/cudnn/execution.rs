//! [`Execution`]: a cuDNN plan with addresses, on a GPU's stream.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_sys::cudnn as sys;

use super::descriptor::{Descriptor, Kind, Name, bytes};
use super::{CudnnError, CudnnLibrary, CudnnPlan};
use crate::LibraryPaths;
use crate::driver::{DeviceMemory, DriverError, Gpu};

/// cuDNN on a GPU. Its work is enqueued on the GPU's stream.
pub struct Handle {
    library: Arc<CudnnLibrary>,
    raw: sys::cudnnHandle_t,
    gpu: Arc<Gpu>,
}

// SAFETY: a handle may be used from any thread, by one at a time. It is used only by `Execution::launch`, whose callers enqueue
// on one stream and so do not overlap.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

fn failed(what: &'static str) -> impl Fn(String) -> CudnnError {
    move |why| CudnnError::Failed { what, why }
}

impl Handle {
    /// Loads cuDNN and creates a handle.
    ///
    /// # Errors
    /// cuDNN is not found, or fails with this driver.
    pub fn new(places: &LibraryPaths, gpu: &Arc<Gpu>) -> Result<Arc<Handle>, CudnnError> {
        let library = CudnnLibrary::find(places)?;
        let entered = |error: DriverError| CudnnError::Failed { what: "initialization", why: error.to_string() };
        gpu.enter().map_err(entered)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid, and the context is current.
        library.check(unsafe { (library.create)(&mut raw) }).map_err(failed("initialization"))?;
        let handle = Handle { library, raw, gpu: gpu.clone() };
        let library = &handle.library;
        // SAFETY: handle and stream are alive. cuDNN's streams are the driver's.
        let status = unsafe { (library.set_stream)(raw, gpu.stream().cast()) };
        library.check(status).map_err(failed("accepting a stream"))?;
        Ok(Arc::new(handle))
    }

    /// cuDNN's version.
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

/// A cuDNN plan with its operands.
pub struct Execution {
    // Dropped in this order: the handle must be last.
    pack: Arc<Descriptor>,
    plan: Arc<Descriptor>,
    handle: Arc<Handle>,
    /// Keeps the operands' block alive.
    _memory: Arc<DeviceMemory>,
}

impl Execution {
    /// Loads a plan. `places` are the offsets of its operands in a block, `workspace` that of its workspace.
    ///
    /// # Errors
    /// cuDNN rejects the plan on this GPU, or needs more workspace here; an operand has less than the plan's alignment.
    ///
    /// # Panics
    /// An offset is outside of the block.
    pub fn new(
        handle: &Arc<Handle>,
        planned: &CudnnPlan,
        memory: &Arc<DeviceMemory>,
        places: &[usize],
        workspace: Option<usize>,
    ) -> Result<Execution, CudnnError> {
        let refused = |why: String| {
            let (here, version) = (handle.version(), planned.version.clone());
            let facts = handle.gpu.describe().ok().filter(|_| here == version);
            match facts.map(|facts| planned.differences(&facts.device)).unwrap_or_default() {
                differ if differ.is_empty() => CudnnError::Plan { here, planned: version, why },
                differ => CudnnError::Device { here, differ },
            }
        };
        let entered = |error: DriverError| CudnnError::Failed { what: "reading a plan", why: error.to_string() };
        handle.gpu.enter().map_err(entered)?;
        let read = || {
            let mut plan = Descriptor::new(&handle.library, Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
            plan.set_handle(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle.raw)?;
            plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes(&planned.json))?;
            let plan = plan.finalize()?;
            let wanted = plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
            match u64::try_from(wanted).is_ok_and(|wanted| wanted <= planned.workspace) {
                true => Ok(plan),
                false => Err(format!("its workspace must be at most {} bytes, got {wanted}", planned.workspace)),
            }
        };
        let plan = read().map_err(refused)?;
        let address = |&place: &usize| memory.address(place) as *const c_void;
        let is_aligned = |&place: &usize| memory.address(place).is_multiple_of(planned.alignment.max(1));
        if let Some(ix) = places.iter().position(|place| !is_aligned(place)) {
            let (alignment, place) = (planned.alignment, places[ix] as u64);
            return Err(CudnnError::Alignment { operand: ix + 1, alignment, place });
        }
        let ids: Vec<i64> = (1..=places.len() as i64).collect();
        let pointers: Vec<*const c_void> = places.iter().map(address).collect();
        let workspace = workspace.as_ref().map_or(std::ptr::null(), address);
        let pack = || {
            let mut pack = Descriptor::new(&handle.library, Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
            pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &ids)?;
            pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers)?;
            pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace])?;
            pack.finalize()
        };
        let pack = pack().map_err(failed("accepting addresses"))?;
        Ok(Execution { pack, plan, handle: handle.clone(), _memory: memory.clone() })
    }

    /// Enqueues it on the GPU's stream.
    ///
    /// # Errors
    /// cuDNN or the driver fails.
    pub fn launch(&self) -> Result<(), DriverError> {
        let library = &self.handle.library;
        self.handle.gpu.enter()?;
        // SAFETY: handle, plan and pack are alive. The addresses point into a live block of device memory. A plan that leaves the
        // block can corrupt other device memory, but no host memory: it receives no host address.
        let status = unsafe { (library.execute)(self.handle.raw, self.plan.raw(), self.pack.raw()) };
        library.check(status).map_err(|why| DriverError::Failed { what: "a step of cuDNN's", why })
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        // cuDNN unloads code of the plan, which requires its context.
        let _ = self.handle.gpu.enter();
    }
}
