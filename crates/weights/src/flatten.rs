//! A tree of pickled objects to named tensors.

use std::borrow::Cow;
use std::collections::BTreeMap;

use types::{DType, Shape, Tensor, strides};

use crate::object::{Array, Object, ObjectId, View};
use crate::pickle::Pickle;
use crate::{Budget, FormatError};

/// Deepest nesting of containers; files of weights have three or four levels.
const DEPTH_MAX: usize = 32;
/// Most objects visited; shared ones count each time.
const VISITS_MAX: usize = 1 << 21;

/// Storages by key: little-endian bytes.
pub(super) type Storages<'a> = BTreeMap<String, Cow<'a, [u8]>>;

/// Names every tensor and array below the root. Other objects are skipped.
pub(super) fn flatten(
    pickle: &Pickle,
    storages: &Storages,
    budget: &mut Budget,
) -> Result<BTreeMap<String, Tensor>, FormatError> {
    let mut visitor = Visitor { pickle, storages, budget, visits: 0, tensors: BTreeMap::new() };
    visitor.visit("", pickle.root, 0)?;
    Ok(visitor.tensors)
}

struct Visitor<'a, 'b, 'l> {
    pickle: &'a Pickle<'a>,
    storages: &'a Storages<'a>,
    budget: &'b mut Budget<'l>,
    visits: usize,
    tensors: BTreeMap<String, Tensor>,
}

impl Visitor<'_, '_, '_> {
    fn visit(&mut self, name: &str, id: ObjectId, depth: usize) -> Result<(), FormatError> {
        self.visits += 1;
        if VISITS_MAX < self.visits {
            return Err(FormatError::Limit { limit: VISITS_MAX as u64, unit: "objects" });
        }
        if DEPTH_MAX < depth {
            return Err(FormatError::Limit { limit: DEPTH_MAX as u64, unit: "nested containers" });
        }
        let pickle = self.pickle;
        match pickle.heap.get(id) {
            Object::Dict(pairs) => {
                for &(key, value) in pairs {
                    let part = self.key(key)?;
                    self.visit_part(name, &part, value, depth)?;
                }
                Ok(())
            }
            Object::List(items) | Object::Tuple(items) => {
                for (ix, &item) in items.iter().enumerate() {
                    self.visit_part(name, &ix.to_string(), item, depth)?;
                }
                Ok(())
            }
            Object::View(view) => {
                let tensor = self.view(name, view)?;
                self.add(name, tensor)
            }
            Object::Array(array) => {
                let array = array.as_ref().ok_or_else(|| invalid(name, "its elements are missing"))?;
                let tensor = self.array(name, array)?;
                self.add(name, tensor)
            }
            _ => Ok(()),
        }
    }

    fn visit_part(&mut self, name: &str, part: &str, id: ObjectId, depth: usize) -> Result<(), FormatError> {
        self.budget.take((name.len() + part.len()) as u64)?;
        let path = if name.is_empty() { part.to_string() } else { format!("{name}.{part}") };
        self.visit(&path, id, depth + 1)
    }

    fn key(&self, id: ObjectId) -> Result<String, FormatError> {
        match (self.pickle.heap.text(id), self.pickle.heap.get(id)) {
            (Some(text), _) => Ok(text.to_string()),
            (None, Object::Int(number)) => Ok(number.to_string()),
            _ => Err(FormatError::Content("dictionary keys must be text or integers".into())),
        }
    }

    fn add(&mut self, name: &str, tensor: Tensor) -> Result<(), FormatError> {
        match self.tensors.insert(name.to_string(), tensor) {
            None => Ok(()),
            Some(_) => Err(FormatError::Duplicate { name: name.to_string() }),
        }
    }

    fn view(&mut self, name: &str, view: &View) -> Result<Tensor, FormatError> {
        let Object::Storage(storage) = self.pickle.heap.get(view.storage) else {
            unreachable!("`Heap::view` makes views of storages only")
        };
        let storages = self.storages;
        let bytes = storages
            .get(&storage.key)
            .ok_or_else(|| invalid(name, &format!("storage `{}` is missing in the file", storage.key)))?;
        gather(name, bytes, storage.dtype, view.offset, &view.extents, &view.strides, self.budget)
    }

    fn array(&mut self, name: &str, array: &Array) -> Result<Tensor, FormatError> {
        let pickle = self.pickle;
        let &Object::ElementType(element_type) = pickle.heap.get(array.element_type) else {
            return Err(invalid(name, "its element type is missing"));
        };
        let bytes = pickle.heap.bytes(array.data).ok_or_else(|| invalid(name, "its elements must be bytes"))?;
        let size = element_type.dtype.size().0 as usize;
        let elements = Shape::from(&array.extents[..]).elements();
        if elements.checked_mul(size) != Some(bytes.len()) {
            return Err(invalid(
                name,
                &format!("{elements} elements of {size} bytes are required, got {} bytes", bytes.len()),
            ));
        }
        let bytes = match element_type.big_endian && 1 < size {
            false => Cow::Borrowed(bytes),
            true => {
                self.budget.take(bytes.len() as u64)?;
                bytes.chunks_exact(size).flat_map(|item| item.iter().rev().copied()).collect::<Vec<u8>>().into()
            }
        };
        let strides = match (elements, array.column_major) {
            // The other extents of an empty array are arbitrary; their product may overflow.
            (0, _) => vec![0; array.extents.len()],
            (_, false) => strides(&array.extents).to_vec(),
            (_, true) => {
                let reversed: Vec<usize> = array.extents.iter().rev().copied().collect();
                strides(&reversed).iter().rev().copied().collect()
            }
        };
        gather(name, &bytes, element_type.dtype, 0, &array.extents, &strides, self.budget)
    }
}

fn invalid(name: &str, problem: &str) -> FormatError {
    FormatError::Tensor { name: name.to_string(), problem: problem.to_string() }
}

/// Copies a strided view of `bytes` to a row-major tensor. `offset` and `strides` count elements.
fn gather(
    name: &str,
    bytes: &[u8],
    dtype: DType,
    offset: usize,
    extents: &[usize],
    strides: &[usize],
    budget: &mut Budget,
) -> Result<Tensor, FormatError> {
    let size = dtype.size().0 as usize;
    let shape = Shape::from(extents);
    let elements = shape.elements();
    let refused = |error: types::TensorError| invalid(name, &error.to_string());
    if elements == 0 {
        return Tensor::from_le_bytes(dtype, shape, &[]).map_err(refused);
    }
    let outside = || invalid(name, "its view must be inside its storage");
    let last = extents
        .iter()
        .zip(strides)
        .try_fold(offset, |sum, (extent, stride)| sum.checked_add((extent - 1).checked_mul(*stride)?));
    let end = last.and_then(|last| last.checked_add(1)?.checked_mul(size)).ok_or_else(outside)?;
    if bytes.len() < end {
        return Err(outside());
    }
    budget.take((elements as u64).saturating_mul(size as u64))?;

    // The stride of an extent of 1 has no effect, and PyTorch writes arbitrary ones.
    let one_as_zero = |strides: &[usize]| -> Vec<usize> {
        extents.iter().zip(strides).map(|(&extent, &stride)| if extent == 1 { 0 } else { stride }).collect()
    };
    let strides = one_as_zero(strides);
    if strides == one_as_zero(&types::strides(extents)) {
        return Tensor::from_le_bytes(dtype, shape, &bytes[offset * size..end]).map_err(refused);
    }
    let mut items = Vec::with_capacity(elements * size);
    let mut index = vec![0; extents.len()];
    let mut at = offset;
    for _ in 0..elements {
        items.extend_from_slice(&bytes[at * size..(at + 1) * size]);
        for axis in (0..extents.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < extents[axis] {
                break;
            }
            at -= extents[axis] * strides[axis];
            index[axis] = 0;
        }
    }
    Tensor::from_le_bytes(dtype, shape, &items).map_err(refused)
}
