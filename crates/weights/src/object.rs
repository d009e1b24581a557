//! The objects of a pickle of tensors, and the closed list of functions that it may call.
//!
//! Objects refer to each other by id, because pickles share objects and mutate them afterwards.

use std::borrow::Cow;

use types::{DType, Map, entity};

use crate::{Budget, FormatError, npy};

entity!(
    /// An object of one pickle.
    pub(super) ObjectId, "object"
);

/// Most dimensions of a tensor, the limit of NumPy and of PyTorch.
const RANK_MAX: usize = 64;
/// Most objects of a pickle. A file of weights has some dozens per tensor, of a few dozen bytes each.
const OBJECTS_MAX: usize = 1 << 21;

/// One object. Borrows text and bytes from the file.
pub(super) enum Object<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// A number whose value is not used: a float, or an integer beyond 64 bits.
    Number,
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    List(Vec<ObjectId>),
    Tuple(Vec<ObjectId>),
    /// Pairs in order of insertion.
    Dict(Vec<(ObjectId, ObjectId)>),
    Callable(Callable),
    Storage(Storage),
    View(View),
    ElementType(ElementType),
    /// A NumPy array; `None` until its state is set.
    Array(Option<Array>),
}

/// The storage of a PyTorch tensor: a part of the file outside the pickle.
#[derive(Clone)]
pub(super) struct Storage {
    pub(super) key: String,
    pub(super) dtype: DType,
}

/// A PyTorch tensor: a view of a storage. Offsets and strides count elements.
pub(super) struct View {
    pub(super) storage: ObjectId,
    pub(super) offset: usize,
    pub(super) extents: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// NumPy's `dtype`.
#[derive(Clone, Copy)]
pub(super) struct ElementType {
    pub(super) dtype: DType,
    pub(super) big_endian: bool,
}

/// A NumPy array's content.
pub(super) struct Array {
    pub(super) extents: Vec<usize>,
    pub(super) element_type: ObjectId,
    pub(super) column_major: bool,
    pub(super) data: ObjectId,
}

/// The functions that a file of tensors may call; all others are refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Callable {
    /// `collections.OrderedDict`
    OrderedDict,
    /// `_codecs.encode`: bytes in protocol 2.
    Encode,
    /// `numpy.dtype`
    ElementType,
    /// `numpy.ndarray`: only an argument of `_reconstruct`.
    NdArray,
    /// `numpy.core.multiarray._reconstruct`
    Reconstruct,
    /// `numpy.core.numeric._frombuffer`: arrays in protocol 5.
    FromBuffer,
    /// `numpy.core.multiarray.scalar`
    Scalar,
    /// `torch._utils._rebuild_tensor_v2`
    RebuildTensor,
    /// `torch._utils._rebuild_parameter`
    RebuildParameter,
    /// `torch.FloatStorage` and similar: only in a persistent id.
    Storage(DType),
}

impl Callable {
    /// The function with this name.
    ///
    /// # Errors
    /// If the function is not in the list.
    pub(super) fn find(module: &str, name: &str) -> Result<Callable, FormatError> {
        // NumPy 2 moved `numpy.core` to `numpy._core`.
        let core = module.strip_prefix("numpy._core.").or_else(|| module.strip_prefix("numpy.core."));
        Ok(match (module, core, name) {
            ("collections", _, "OrderedDict") => Callable::OrderedDict,
            ("_codecs", _, "encode") => Callable::Encode,
            ("numpy", _, "dtype") => Callable::ElementType,
            ("numpy", _, "ndarray") => Callable::NdArray,
            (_, Some("multiarray"), "_reconstruct") => Callable::Reconstruct,
            (_, Some("multiarray"), "scalar") => Callable::Scalar,
            (_, Some("numeric"), "_frombuffer") => Callable::FromBuffer,
            ("torch._utils", _, "_rebuild_tensor_v2") => Callable::RebuildTensor,
            ("torch._utils", _, "_rebuild_parameter") => Callable::RebuildParameter,
            ("torch", _, "FloatStorage") => Callable::Storage(DType::F32),
            ("torch", _, "DoubleStorage") => Callable::Storage(DType::F64),
            ("torch", _, "HalfStorage") => Callable::Storage(DType::F16),
            ("torch", _, "BFloat16Storage") => Callable::Storage(DType::Bf16),
            ("torch", _, "CharStorage") => Callable::Storage(DType::I8),
            ("torch", _, "ShortStorage") => Callable::Storage(DType::I16),
            ("torch", _, "IntStorage") => Callable::Storage(DType::I32),
            ("torch", _, "LongStorage") => Callable::Storage(DType::I64),
            ("torch", _, "ByteStorage") => Callable::Storage(DType::U8),
            ("torch", _, "BoolStorage") => Callable::Storage(DType::Bool),
            _ => return Err(FormatError::Forbidden { name: format!("{module}.{name}") }),
        })
    }
}

/// All objects of one pickle.
#[derive(Default)]
pub(super) struct Heap<'a>(Map<ObjectId, Object<'a>>);

impl<'a> Heap<'a> {
    pub(super) fn push(&mut self, object: Object<'a>) -> Result<ObjectId, FormatError> {
        if OBJECTS_MAX <= self.0.len() {
            return Err(FormatError::Limit { limit: OBJECTS_MAX as u64, unit: "objects" });
        }
        Ok(self.0.push(object))
    }

    pub(super) fn get(&self, id: ObjectId) -> &Object<'a> {
        &self.0[id]
    }

    pub(super) fn get_mut(&mut self, id: ObjectId) -> &mut Object<'a> {
        &mut self.0[id]
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Object<'a>> {
        self.0.values()
    }

    pub(super) fn text(&self, id: ObjectId) -> Option<&str> {
        match self.get(id) {
            Object::Text(text) => Some(text),
            Object::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub(super) fn bytes(&self, id: ObjectId) -> Option<&[u8]> {
        match self.get(id) {
            Object::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn tuple(&self, id: ObjectId) -> Option<&[ObjectId]> {
        match self.get(id) {
            Object::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// A count or an offset.
    fn size(&self, id: ObjectId) -> Option<usize> {
        match *self.get(id) {
            Object::Int(value) => usize::try_from(value).ok(),
            _ => None,
        }
    }

    /// A tuple of extents or strides.
    fn sizes(&self, id: ObjectId) -> Option<Vec<usize>> {
        let items = self.tuple(id).filter(|items| items.len() <= RANK_MAX)?;
        items.iter().map(|&item| self.size(item)).collect()
    }

    fn flag(&self, id: ObjectId) -> Option<bool> {
        match *self.get(id) {
            Object::Bool(flag) => Some(flag),
            Object::Int(value) => Some(value != 0),
            _ => None,
        }
    }

    /// The result of `callable(*args)`; `None` if the arguments do not fit.
    pub(super) fn call(
        &mut self,
        callable: Callable,
        args: &[ObjectId],
        budget: &mut Budget,
    ) -> Result<Option<ObjectId>, FormatError> {
        let object = match callable {
            Callable::RebuildParameter => {
                return Ok(args.first().copied().filter(|&id| matches!(self.get(id), Object::View(_))));
            }
            Callable::ElementType => self.element_type(args)?,
            Callable::OrderedDict => self.ordered_dict(args, budget)?,
            Callable::Encode => self.encode(args, budget)?,
            Callable::Reconstruct => {
                let first = args.first().map(|&id| self.get(id));
                matches!(first, Some(Object::Callable(Callable::NdArray))).then_some(Object::Array(None))
            }
            Callable::FromBuffer => self.buffer(args),
            Callable::Scalar => match *args {
                [element_type, data] => {
                    Some(Object::Array(Some(Array { extents: vec![], element_type, column_major: false, data })))
                }
                _ => None,
            },
            Callable::RebuildTensor => self.view(args),
            Callable::NdArray | Callable::Storage(_) => None,
        };
        object.map(|object| self.push(object)).transpose()
    }

    /// Applies `__setstate__`; `false` if the state does not fit the object.
    pub(super) fn build(&mut self, id: ObjectId, state: ObjectId) -> bool {
        match self.get(id) {
            // The state of an `OrderedDict` is torch's `_metadata`.
            Object::Dict(_) => true,
            Object::Array(None) => {
                let array = self.array(state);
                let built = array.is_some();
                *self.get_mut(id) = Object::Array(array);
                built
            }
            &Object::ElementType(ElementType { dtype, .. }) => {
                let order = self.tuple(state).and_then(|state| self.text(*state.get(1)?));
                let big_endian = match order {
                    Some("<" | "=" | "|") => false,
                    Some(">") => true,
                    _ => return false,
                };
                *self.get_mut(id) = Object::ElementType(ElementType { dtype, big_endian });
                true
            }
            _ => false,
        }
    }

    /// The tuple of a persistent id: `('storage', type, key, location, count[, view])`.
    pub(super) fn storage(&self, id: ObjectId) -> Option<Storage> {
        let items = self.tuple(id).filter(|items| 5 <= items.len())?;
        let Object::Callable(Callable::Storage(dtype)) = *self.get(items[1]) else { return None };
        // Views of other storages were written by PyTorch before 0.4 only.
        let no_view = items.get(5).is_none_or(|&view| matches!(self.get(view), Object::None));
        (self.text(items[0])? == "storage" && no_view)
            .then_some(Storage { key: self.text(items[2])?.to_string(), dtype })
    }

    fn ordered_dict(&self, args: &[ObjectId], budget: &mut Budget) -> Result<Option<Object<'a>>, FormatError> {
        let Some(&pairs) = args.first() else { return Ok(Some(Object::Dict(vec![]))) };
        let (Object::List(pairs) | Object::Tuple(pairs)) = self.get(pairs) else { return Ok(None) };
        budget.take(8 * pairs.len() as u64)?;
        let pair = |&id: &ObjectId| match self.get(id) {
            Object::List(pair) | Object::Tuple(pair) if pair.len() == 2 => Some((pair[0], pair[1])),
            _ => None,
        };
        Ok(pairs.iter().map(pair).collect::<Option<_>>().map(Object::Dict))
    }

    fn encode(&self, args: &[ObjectId], budget: &mut Budget) -> Result<Option<Object<'a>>, FormatError> {
        let &[text, encoding] = args else { return Ok(None) };
        let (Object::Text(text), Some("latin1" | "latin-1")) = (self.get(text), self.text(encoding)) else {
            return Ok(None);
        };
        budget.take(text.len() as u64)?;
        let bytes: Option<Vec<u8>> = text.chars().map(|char| u8::try_from(u32::from(char)).ok()).collect();
        Ok(bytes.map(|bytes| Object::Bytes(bytes.into())))
    }

    fn element_type(&self, args: &[ObjectId]) -> Result<Option<Object<'a>>, FormatError> {
        let Some(name) = args.first().and_then(|&id| self.text(id)) else { return Ok(None) };
        let big_endian = name.starts_with('>');
        let dtype = npy::dtype_of_code(name.trim_start_matches(['<', '>', '=', '|']))
            .ok_or_else(|| FormatError::ElementType { name: name.chars().take(32).collect() })?;
        Ok(Some(Object::ElementType(ElementType { dtype, big_endian })))
    }

    /// `(version, shape, dtype, is_fortran, data)`
    fn array(&self, state: ObjectId) -> Option<Array> {
        let &[_, extents, element_type, column_major, data] = self.tuple(state)? else { return None };
        Some(Array { extents: self.sizes(extents)?, element_type, column_major: self.flag(column_major)?, data })
    }

    /// `(buffer, dtype, shape, order)`
    fn buffer(&self, args: &[ObjectId]) -> Option<Object<'a>> {
        let &[data, element_type, extents, order] = args else { return None };
        let column_major = match self.text(order)? {
            "C" => false,
            "F" => true,
            _ => return None,
        };
        Some(Object::Array(Some(Array { extents: self.sizes(extents)?, element_type, column_major, data })))
    }

    /// `(storage, offset, size, stride, requires_grad, hooks[, metadata])`
    fn view(&self, args: &[ObjectId]) -> Option<Object<'a>> {
        let &[storage, offset, extents, strides, ..] = args else { return None };
        if !matches!(self.get(storage), Object::Storage(_)) {
            return None;
        }
        let (extents, strides) = (self.sizes(extents)?, self.sizes(strides)?);
        let offset = self.size(offset)?;
        (extents.len() == strides.len()).then_some(Object::View(View { storage, offset, extents, strides }))
    }
}
