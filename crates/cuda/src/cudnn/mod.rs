//! cuDNN by its graph API: planning without a GPU, execution on one.
//!
//! A [`Planner`] has the facts of a GPU and asks for a convolution's engine, its workspace and its plan, which is text and
//! part of ours ([`CudnnPlan`]). A [`Handle`] is cuDNN on a GPU, and an [`Execution`] such a plan with its addresses.
//!
//! Engines with run-time compilation, and those that need another library, are excluded. So plans do not depend on the presence
//! of a driver, and need only cuDNN at run time.

mod descriptor;
mod execution;
mod planner;

use std::ffi::CStr;
use std::sync::Arc;

use cuda_sys::cudnn as sys;
use serde::{Deserialize, Serialize};

pub use execution::{Execution, Handle};
pub use planner::{Convolution, EngineChoice, Planner, TensorLayout};

use crate::library::function;
use crate::{DeviceProperties, LibraryNotFound, LibraryPaths, library};

/// The oldest version that serializes plans, in cuDNN's notation: 9.11.
const VERSION_MIN: usize = 91_100;

/// A serialized cuDNN plan of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudnnPlan {
    /// The version of cuDNN that made it.
    pub version: String,
    /// cuDNN's global index of the engine.
    pub engine: i64,
    /// The bytes of workspace.
    pub workspace: u64,
    /// The bytes that the address of each operand is a multiple of, as declared to cuDNN.
    pub alignment: u64,
    /// cuDNN's serialization. Tensor identifiers are the positions of the step's operands from 1, inputs before the output.
    pub json: String,
}

/// The properties that must be equal on the device that loads a plan. cuDNN 9.19 checks these, the driver's version among them,
/// and no others.
const BOUND: [&str; 12] = [
    "deviceVer",
    "driverVer",
    "multiProcessorCount",
    "maxGridSize",
    "maxBlockSize",
    "maxThreadsPerBlock",
    "maxThreadsPerSM",
    "regsPerBlock",
    "maxRegistersPerSM",
    "maxSharedMemoryPerBlock",
    "maxSharedMemoryPerBlockOptin",
    "reservedSharedMemoryPerBlock",
];

impl CudnnPlan {
    /// The CUDA version of the driver that it is for, such as `13.0`. `None` if the text has none.
    pub fn driver(&self) -> Option<String> {
        let version = self.profile()["driverVer"].as_u64()?;
        Some(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The device properties in the text.
    fn profile(&self) -> serde_json::Value {
        let mut text: serde_json::Value = serde_json::from_str(&self.json).unwrap_or_default();
        text.get_mut("GPUProfile").map(serde_json::Value::take).unwrap_or_default()
    }

    /// The differences between a device and the one that it was planned for. Empty if the text has no properties.
    fn differences(&self, here: &DeviceProperties) -> Vec<String> {
        let (was, is) = (self.profile(), serde_json::to_value(here).expect("properties are plain data"));
        let other = BOUND.into_iter().filter(|fact| !was[fact].is_null() && was[fact] != is[fact]);
        other.map(|fact| format!("`{fact}` is {} and was {}", is[fact], was[fact])).collect()
    }
}

/// Error of cuDNN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CudnnError {
    #[error(transparent)]
    NotFound(#[from] LibraryNotFound),
    #[error("libcudnn.so.9 must have the function `{0}`; install cuDNN 9.11 or later")]
    Lacks(&'static str),
    #[error("cuDNN must be 9.11 or later, whose plans can be stored, got {0}; install a newer one")]
    TooOld(String),
    #[error("cuDNN {version} rejected the device description: {why}")]
    Description { version: String, why: String },
    #[error(
        "cuDNN {here} rejected a plan of cuDNN {planned}: {why}; install cuDNN {planned}, or compile the model with cuDNN \
         {here} or without it"
    )]
    Plan { here: String, planned: String, why: String },
    #[error(
        "cuDNN {here} rejected a plan for another GPU or driver: {}; describe this GPU with `prestow target probe`, and compile \
         the model for it or without cuDNN", .differ.join(", ")
    )]
    Device { here: String, differ: Vec<String> },
    #[error(
        "operand {operand} of a convolution by cuDNN must begin at a multiple of {alignment} bytes, got {place}; compile the model \
         again"
    )]
    Alignment { operand: usize, alignment: u64, place: u64 },
    #[error("cuDNN failed at {what}: {why}")]
    Failed { what: &'static str, why: String },
}

type Status = sys::cudnnStatus_t;

/// cuDNN, loaded permanently.
pub struct CudnnLibrary {
    version: usize,
    create: unsafe extern "C" fn(*mut sys::cudnnHandle_t) -> Status,
    destroy: unsafe extern "C" fn(sys::cudnnHandle_t) -> Status,
    set_stream: unsafe extern "C" fn(sys::cudnnHandle_t, sys::cudaStream_t) -> Status,
    status_text: unsafe extern "C" fn(Status) -> *const std::ffi::c_char,
    last_error: unsafe extern "C" fn(*mut std::ffi::c_char, usize),
    create_descriptor:
        unsafe extern "C" fn(sys::cudnnBackendDescriptorType_t, *mut sys::cudnnBackendDescriptor_t) -> Status,
    destroy_descriptor: unsafe extern "C" fn(sys::cudnnBackendDescriptor_t) -> Status,
    finalize: unsafe extern "C" fn(sys::cudnnBackendDescriptor_t) -> Status,
    set_attribute: unsafe extern "C" fn(
        sys::cudnnBackendDescriptor_t,
        sys::cudnnBackendAttributeName_t,
        sys::cudnnBackendAttributeType_t,
        i64,
        *const std::ffi::c_void,
    ) -> Status,
    get_attribute: unsafe extern "C" fn(
        sys::cudnnBackendDescriptor_t,
        sys::cudnnBackendAttributeName_t,
        sys::cudnnBackendAttributeType_t,
        i64,
        *mut i64,
        *mut std::ffi::c_void,
    ) -> Status,
    execute: unsafe extern "C" fn(
        sys::cudnnHandle_t,
        sys::cudnnBackendDescriptor_t,
        sys::cudnnBackendDescriptor_t,
    ) -> Status,
}

impl CudnnLibrary {
    /// Loads cuDNN.
    ///
    /// # Errors
    /// cuDNN is not found or too old.
    pub fn find(places: &LibraryPaths) -> Result<Arc<CudnnLibrary>, CudnnError> {
        let library = library::table(places, &["libcudnn.so.9"], "--cudnn")?;
        // cuDNN opens cuBLASLt by name in any case, and ends the process if that fails.
        library::load(places, &["libcublasLt.so", "libcublasLt.so.13"], "--cudnn")?;
        // SAFETY: the library has cuDNN's name, and the table has the types of its headers.
        let table = unsafe { sys::Cudnn::from_library(library) };
        let table = table.map_err(|error| CudnnError::Failed { what: "initialization", why: error.to_string() })?;
        let version = function!(table, cudnnGetVersion, CudnnError);
        let cudnn = CudnnLibrary {
            // SAFETY: the function only returns a number.
            version: unsafe { version() },
            create: function!(table, cudnnCreate, CudnnError),
            destroy: function!(table, cudnnDestroy, CudnnError),
            set_stream: function!(table, cudnnSetStream, CudnnError),
            status_text: function!(table, cudnnGetErrorString, CudnnError),
            last_error: function!(table, cudnnGetLastErrorString, CudnnError),
            create_descriptor: function!(table, cudnnBackendCreateDescriptor, CudnnError),
            destroy_descriptor: function!(table, cudnnBackendDestroyDescriptor, CudnnError),
            finalize: function!(table, cudnnBackendFinalize, CudnnError),
            set_attribute: function!(table, cudnnBackendSetAttribute, CudnnError),
            get_attribute: function!(table, cudnnBackendGetAttribute, CudnnError),
            execute: function!(table, cudnnBackendExecute, CudnnError),
        };
        // The library is never unloaded, so the functions stay valid.
        std::mem::forget(table);
        match VERSION_MIN <= cudnn.version {
            true => Ok(Arc::new(cudnn)),
            false => Err(CudnnError::TooOld(cudnn.version())),
        }
    }

    /// Its version, such as `9.19.0`.
    pub fn version(&self) -> String {
        library::dotted(self.version)
    }

    /// Converts a status to a text.
    fn check(&self, status: Status) -> Result<(), String> {
        if status == Status::CUDNN_STATUS_SUCCESS {
            return Ok(());
        }
        // SAFETY: the text is static.
        let name = unsafe { CStr::from_ptr((self.status_text)(status)) }.to_string_lossy().into_owned();
        let mut text = [0; 1024];
        // SAFETY: the buffer has the given length, and one byte more.
        unsafe { (self.last_error)(text.as_mut_ptr(), text.len() - 1) };
        // SAFETY: the last byte is zero, because cuDNN does not write it.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        let text = text.trim().lines().next().unwrap_or_default().to_string();
        Err(if text.is_empty() { name } else { format!("{name}: {text}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_between_devices_are_named() {
        let here = crate::DeviceDescription::parse(include_str!("../../../../targets/cuda-sm_90-h200.json"))
            .expect("it is whole");
        let planned = |profile: &DeviceProperties| {
            let json = format!("{{\"cudnnVersion\":91900,\"GPUProfile\":{}}}", profile.json());
            CudnnPlan { version: "9.19.0".into(), engine: 0, workspace: 0, alignment: 16, json }
        };
        let here = here.device;
        assert!(planned(&here).differences(&here).is_empty());
        // cuDNN ignores clocks and memory, which differ between boards.
        let board =
            DeviceProperties { sm_clock_rate_khz: 1, total_global_mem: 1, device_name: "other".into(), ..here.clone() };
        assert!(planned(&board).differences(&here).is_empty());
        let other = DeviceProperties { driver_ver: 13_010, max_block_size: [1024, 1024, 1], ..here.clone() };
        let told = ["`driverVer` is 13000 and was 13010", "`maxBlockSize` is [1024,1024,64] and was [1024,1024,1]"];
        assert_eq!(planned(&other).differences(&here), told);
        assert_eq!(planned(&other).driver(), Some("13.1".into()));
        for json in ["no text", "{}", "7", "[]"] {
            let silent = CudnnPlan { json: json.into(), ..planned(&here) };
            assert!(silent.differences(&here).is_empty() && silent.driver().is_none(), "{json}");
        }
    }
}
