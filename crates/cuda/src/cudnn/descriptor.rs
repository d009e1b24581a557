//! [`Descriptor`]: an object of cuDNN's graph API, destroyed on drop.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use cuda_sys::cudnn as sys;

use super::CudnnLibrary;

use sys::cudnnBackendAttributeType_t as Type;
pub(super) use sys::{cudnnBackendAttributeName_t as Name, cudnnBackendDescriptorType_t as Kind};

/// An object of a kind. Attributes are set before `finalize`; afterwards it is only read.
pub(super) struct Descriptor {
    library: Arc<CudnnLibrary>,
    raw: sys::cudnnBackendDescriptor_t,
    /// Keeps the referenced objects alive.
    _kept: Vec<Arc<Descriptor>>,
}

// SAFETY: cuDNN's objects have no thread affinity.
unsafe impl Send for Descriptor {}
// SAFETY: changes require `&mut`; cuDNN reads finalized objects from several threads.
unsafe impl Sync for Descriptor {}

/// The type of an attribute's value.
pub(super) trait Value: Copy {
    /// cuDNN's name of the type.
    const TYPE: Type;
}

macro_rules! values {
    ($($ty:ty: $name:ident),* $(,)?) => {
        $(impl Value for $ty { const TYPE: Type = Type::$name; })*
    };
}

values! {
    i64: CUDNN_TYPE_INT64,
    f32: CUDNN_TYPE_FLOAT,
    bool: CUDNN_TYPE_BOOLEAN,
    u8: CUDNN_TYPE_CHAR,
    *const c_void: CUDNN_TYPE_VOID_PTR,
    sys::cudnnDataType_t: CUDNN_TYPE_DATA_TYPE,
    sys::cudnnConvolutionMode_t: CUDNN_TYPE_CONVOLUTION_MODE,
    sys::cudnnPointwiseMode_t: CUDNN_TYPE_POINTWISE_MODE,
    sys::cudnnBackendHeurMode_t: CUDNN_TYPE_HEUR_MODE,
    sys::cudnnBackendNumericalNote_t: CUDNN_TYPE_NUMERICAL_NOTE,
    sys::cudnnBackendBehaviorNote_t: CUDNN_TYPE_BEHAVIOR_NOTE,
}

impl Descriptor {
    pub(super) fn new(library: &Arc<CudnnLibrary>, kind: Kind) -> Result<Descriptor, String> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        library.check(unsafe { (library.create_descriptor)(kind, &mut raw) })?;
        Ok(Descriptor { library: library.clone(), raw, _kept: Vec::new() })
    }

    pub(super) fn set<T: Value>(&mut self, name: Name, values: &[T]) -> Result<(), String> {
        // SAFETY: count and type match the slice; cuDNN copies the values.
        self.library.check(unsafe {
            (self.library.set_attribute)(self.raw, name, T::TYPE, values.len() as i64, values.as_ptr().cast())
        })
    }

    /// References finalized objects and keeps them alive.
    pub(super) fn refer(&mut self, name: Name, others: &[&Arc<Descriptor>]) -> Result<(), String> {
        let raw: Vec<sys::cudnnBackendDescriptor_t> = others.iter().map(|other| other.raw).collect();
        let ty = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        // SAFETY: the count matches, and each object is alive.
        self.library.check(unsafe {
            (self.library.set_attribute)(self.raw, name, ty, raw.len() as i64, raw.as_ptr().cast())
        })?;
        self._kept.extend(others.iter().map(|other| Arc::clone(other)));
        Ok(())
    }

    /// Sets the handle of cuDNN on a GPU.
    pub(super) fn set_handle(&mut self, name: Name, handle: sys::cudnnHandle_t) -> Result<(), String> {
        let (ty, handle) = (Type::CUDNN_TYPE_HANDLE, [handle]);
        // SAFETY: there is one handle of this type.
        self.library.check(unsafe { (self.library.set_attribute)(self.raw, name, ty, 1, handle.as_ptr().cast()) })
    }

    pub(super) fn finalize(self) -> Result<Arc<Descriptor>, String> {
        // SAFETY: the object is alive.
        self.library.check(unsafe { (self.library.finalize)(self.raw) })?;
        Ok(Arc::new(self))
    }

    /// The values of an attribute, at most `capacity`. `empty` initializes the buffer.
    pub(super) fn values<T: Value>(&self, name: Name, capacity: usize, empty: T) -> Result<Vec<T>, String> {
        let (mut values, mut count) = (vec![empty; capacity], 0);
        // SAFETY: capacity and type match the buffer, and the count's pointer is valid.
        self.library.check(unsafe {
            let room = values.as_mut_ptr().cast();
            (self.library.get_attribute)(self.raw, name, T::TYPE, capacity as i64, &mut count, room)
        })?;
        values.truncate(usize::try_from(count).unwrap_or_default());
        Ok(values)
    }

    pub(super) fn number(&self, name: Name) -> Result<i64, String> {
        let values = self.values(name, 1, 0i64)?;
        values.first().copied().ok_or_else(|| "it says no number".to_string())
    }

    pub(super) fn text(&self, name: Name) -> Result<String, String> {
        let count = self.count(name, Type::CUDNN_TYPE_CHAR)?;
        let bytes = self.values(name, count, 0u8)?;
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8(bytes[..end].to_vec()).map_err(|error| error.to_string())
    }

    /// The number of an attribute's values.
    fn count(&self, name: Name, ty: Type) -> Result<usize, String> {
        let mut count = 0;
        let get = self.library.get_attribute;
        // SAFETY: a null buffer is valid with capacity 0, and the count's pointer is valid.
        let status = unsafe { get(self.raw, name, ty, 0, &mut count, std::ptr::null_mut()) };
        self.library.check(status)?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    /// The objects of an attribute: all, or one.
    pub(super) fn others(&self, name: Name, kind: Kind, all: bool) -> Result<Vec<Descriptor>, String> {
        let ty = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        let count = if all { self.count(name, ty)? } else { 1 };
        let others: Result<Vec<Descriptor>, String> =
            (0..count).map(|_| Descriptor::new(&self.library, kind)).collect();
        let mut others = others?;
        let mut raw: Vec<sys::cudnnBackendDescriptor_t> = others.iter().map(|other| other.raw).collect();
        let mut given = 0;
        // SAFETY: the count matches, and each object is alive; cuDNN fills them and returns the same handles.
        self.library.check(unsafe {
            (self.library.get_attribute)(self.raw, name, ty, count as i64, &mut given, raw.as_mut_ptr().cast())
        })?;
        others.truncate(usize::try_from(given).unwrap_or_default());
        Ok(others)
    }

    pub(super) fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.raw
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this struct owns the object. A failure has no remedy.
        let _ = unsafe { (self.library.destroy_descriptor)(self.raw) };
    }
}

/// A text as an attribute's value: its bytes and a zero.
pub(super) fn bytes(text: &str) -> Vec<u8> {
    const _: () = assert!(size_of::<c_char>() == 1);
    text.bytes().chain([0]).collect()
}
