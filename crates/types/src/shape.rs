//! [`Shape`]: the extents of a tensor, all static.

use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Extents from the outermost to the innermost dimension. Rank 0 is a scalar with one element.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(SmallVec<[usize; 6]>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements; 1 for a scalar.
    ///
    /// Saturates at `usize::MAX`; tensors of such shapes are refused.
    pub fn elements(&self) -> usize {
        if self.contains(&0) {
            return 0;
        }
        self.0.iter().fold(1, |product: usize, &extent| product.saturating_mul(extent))
    }

    /// Appends a dimension on the inside.
    pub fn push(&mut self, extent: usize) {
        self.0.push(extent);
    }

    /// Inserts a dimension before position `axis`, which must be <= the rank.
    pub fn insert(&mut self, axis: usize, extent: usize) {
        self.0.insert(axis, extent);
    }

    /// Removes a dimension, which must exist.
    pub fn remove(&mut self, axis: usize) -> usize {
        self.0.remove(axis)
    }

    /// The row-major strides, in elements.
    pub fn row_major_strides(&self) -> SmallVec<[usize; 6]> {
        strides(&self.0)
    }
}

/// Row-major strides, in elements, of the given extents.
pub fn strides(extents: &[usize]) -> SmallVec<[usize; 6]> {
    let mut strides = SmallVec::from_elem(1, extents.len());
    for axis in (1..extents.len()).rev() {
        strides[axis - 1] = strides[axis] * extents[axis].max(1);
    }
    strides
}

/// Two shapes that do not broadcast together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shapes must broadcast (extents equal, or one of them 1), got {0} and {1}")]
pub struct BroadcastError(pub Shape, pub Shape);

/// The shape of `a op b` under multidirectional (NumPy) broadcasting.
pub fn broadcast(a: &Shape, b: &Shape) -> Result<Shape, BroadcastError> {
    let rank = a.rank().max(b.rank());
    let extent = |shape: &Shape, axis: usize| {
        let missing = rank - shape.rank();
        if axis < missing { 1 } else { shape[axis - missing] }
    };
    (0..rank)
        .map(|axis| match (extent(a, axis), extent(b, axis)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(BroadcastError(a.clone(), b.clone())),
        })
        .collect()
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.0
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(extents: [usize; N]) -> Shape {
        extents.into_iter().collect()
    }
}

impl From<&[usize]> for Shape {
    fn from(extents: &[usize]) -> Shape {
        extents.iter().copied().collect()
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(extents: I) -> Shape {
        Shape(extents.into_iter().collect())
    }
}

/// `[1,3,224,224]`; a scalar is `[]`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.pad(&format!("[{}]", extents.join(",")))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_as_in_numpy() {
        let check = |a: &[usize], b: &[usize], want: Option<&[usize]>| {
            assert_eq!(broadcast(&a.into(), &b.into()).ok(), want.map(Shape::from));
        };
        check(&[2, 3], &[3], Some(&[2, 3]));
        check(&[2, 1], &[1, 4], Some(&[2, 4]));
        check(&[], &[5], Some(&[5]));
        check(&[0], &[1], Some(&[0]));
        check(&[2], &[3], None);
    }

    #[test]
    fn element_count_saturates() {
        assert_eq!(Shape::scalar().elements(), 1);
        assert_eq!(Shape::from([usize::MAX, 2]).elements(), usize::MAX);
        assert_eq!(Shape::from([usize::MAX, 2, 0]).elements(), 0);
    }
}
