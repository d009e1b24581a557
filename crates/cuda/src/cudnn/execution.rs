//! [`Execution`]: what cuDNN planned, with addresses, on a GPU's stream.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_sys::cudnn as sys;

use super::descriptor::{Descriptor, Kind, Name, bytes};
use super::{CudnnError, CudnnLibrary, CudnnPlan};
use crate::LibraryPaths;
use crate::driver::{DeviceMemory, DriverError, Gpu};

/// cuDNN on a GPU. What it does happens on the GPU's stream.
pub struct Handle {
    library: Arc<CudnnLibrary>,
    raw: sys::cudnnHandle_t,
    gpu: Arc<Gpu>,
}

// SAFETY: a handle may be used from any thread, by one at a time: what we hand out is used through `Execution::launch`,
// whose callers launch on one stream and so one after the other.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

fn failed(what: &'static str) -> impl Fn(String) -> CudnnError {
    move |why| CudnnError::Failed { what, why }
}

impl Handle {
    /// Finds cuDNN and opens it.
    ///
    /// # Errors
    /// It is nowhere, or does not work with the driver.
    pub fn new(places: &LibraryPaths, gpu: &Arc<Gpu>) -> Result<Arc<Handle>, CudnnError> {
        let library = CudnnLibrary::find(places)?;
        let entered = |error: DriverError| CudnnError::Failed { what: "its start", why: error.to_string() };
        gpu.enter().map_err(entered)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle can be written, and a context is current.
        library.check(unsafe { (library.create)(&mut raw) }).map_err(failed("its start"))?;
        let handle = Handle { library, raw, gpu: gpu.clone() };
        let library = &handle.library;
        // SAFETY: both handles are alive. Streams are the driver's in either library.
        library.check(unsafe { (library.set_stream)(raw, gpu.stream().cast()) }).map_err(failed("taking a stream"))?;
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
            // SAFETY: the handle is ours. What could be said of a failure helps nobody any more.
            let _ = unsafe { (self.library.destroy)(self.raw) };
        }
    }
}

/// A plan of cuDNN's with its operands.
pub struct Execution {
    // They go in this order: what was read with a handle goes before it.
    pack: Arc<Descriptor>,
    plan: Arc<Descriptor>,
    handle: Arc<Handle>,
    /// Where the operands are.
    _memory: Arc<DeviceMemory>,
}

impl Execution {
    /// Reads a plan; its operands begin at `places` of a block, and its workspace at one more.
    ///
    /// # Errors
    /// A plan that this cuDNN does not take, or not on this GPU, or that wants more workspace here.
    ///
    /// # Panics
    /// LibraryPaths outside.
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
                false => Err(format!("it wants {wanted} bytes of workspace, and {} are planned", planned.workspace)),
            }
        };
        let plan = read().map_err(refused)?;
        let address = |&place: &usize| memory.address(place) as *const c_void;
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
        let pack = pack().map_err(failed("taking addresses"))?;
        Ok(Execution { pack, plan, handle: handle.clone(), _memory: memory.clone() })
    }

    /// Begins it, behind all that was begun before.
    ///
    /// # Errors
    /// cuDNN or the driver refuses it.
    pub fn launch(&self) -> Result<(), DriverError> {
        let library = &self.handle.library;
        self.handle.gpu.enter()?;
        // SAFETY: handle, plan and pack are alive. The addresses lie in a block of the GPU's own memory, which is alive as
        // well; a plan that leaves it can harm what else is there, and nothing of this process's: it was given no address
        // of that.
        let status = unsafe { (library.execute)(self.handle.raw, self.plan.raw(), self.pack.raw()) };
        library.check(status).map_err(|why| DriverError::Failed { what: "a step of cuDNN's", why })
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        // What cuDNN loaded for the plan goes with it, and that is the context's.
        let _ = self.handle.gpu.enter();
    }
}
