//! Indexing, composed of comparisons, [`Select`](ir::ops::Select) and [`Gather`].

use ir::Refusal;
use ir::ops::{Gather, ReduceKind};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare};
use types::{DType, Shape, strides};

use super::{ImportedNode, Operand, refuse};

impl<N> ImportedNode<'_, N> {
    /// `0, 1, ..` along `axis`, with extents of 1 elsewhere, as `i64`.
    pub(crate) fn positions(&mut self, extent: usize, axis: usize, rank: usize) -> Result<Operand, Refusal> {
        let mut shape: Shape = (0..rank).map(|_| 1).collect();
        shape[axis] = extent;
        self.constant_of(shape, |at| at as i64)
    }

    /// Indices as `i64`, clamped to `0..extent`.
    pub(crate) fn clamp_index(&mut self, index: Operand, extent: usize) -> Result<Operand, Refusal> {
        let index = self.cast(index, DType::I64)?;
        let (zero, last) = (self.number(0.0, DType::I64), self.number(extent.saturating_sub(1) as f64, DType::I64));
        let index = self.binary(Binary::Max, index, zero)?;
        self.binary(Binary::Min, index, last)
    }

    /// Indices as `i64`; negative ones count from the end.
    pub(crate) fn wrap_negative(&mut self, index: Operand, extent: usize) -> Result<Operand, Refusal> {
        let index = self.cast(index, DType::I64)?;
        let (zero, extent) = (self.number(0.0, DType::I64), self.number(extent as f64, DType::I64));
        let is_negative = self.compare(Compare::Less, index, zero)?;
        let from_the_end = self.binary(Binary::Add, index, extent)?;
        self.select(is_negative, from_the_end, index)
    }

    /// One element of each line along `axis`, at the clamped `index`, which has an element per line. The axis stays, with
    /// extent 1.
    pub(crate) fn select_along(&mut self, x: Operand, index: Operand, axis: usize) -> Result<Operand, Refusal> {
        let shape = self.shape(x);
        let mut line = shape.clone();
        line[axis] = 1;
        if self.shape(index).elements() != line.elements() {
            refuse!(
                "indices must have an element for each line of {shape} along axis {axis}, got shape {}",
                self.shape(index)
            );
        }
        let index = self.clamp_index(index, shape[axis])?;
        let index = self.reshape(index, line)?;
        let positions = self.positions(shape[axis], axis, shape.rank())?;
        let hot = self.compare(Compare::Equal, positions, index)?;
        let zero = self.number(0.0, self.dtype(x));
        // Select instead of a product: elements that are not selected may be infinite.
        let chosen = self.select(hot, x, zero)?;
        self.reduce(ReduceKind::Sum, chosen, smallvec![axis], true)
    }

    /// The rows of a table `[rows, ..]` at indices of any shape: `[..indices, ..]`.
    pub(crate) fn rows(&mut self, table: Operand, index: Operand) -> Result<Operand, Refusal> {
        self.apply(Gather { axis: 0 }, &[table, index])
    }

    /// Flat positions in a tensor of `extents`: `sum of index_k * stride_k`. The indices broadcast.
    pub(crate) fn flat_index(&mut self, indices: &[Operand], extents: &[usize]) -> Result<Operand, Refusal> {
        let mut sum = None;
        for (&index, stride) in indices.iter().zip(strides(extents)) {
            let stride = self.number(stride as f64, DType::I64);
            let part = self.binary(Binary::Mul, index, stride)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => self.binary(Binary::Add, sum, part)?,
            });
        }
        Ok(sum.unwrap_or_else(|| self.number(0.0, DType::I64)))
    }

    /// `x[.., index[i], ..]` for each position `i` of `index`, which has the rank of `x` and indexes `axis` only.
    pub(crate) fn elements_along(&mut self, x: Operand, index: Operand, axis: usize) -> Result<Operand, Refusal> {
        let (shape, places) = (self.shape(x), self.shape(index));
        let fits = |at: usize| at == axis || places[at] <= shape[at];
        if shape.rank() != places.rank() || !(0..shape.rank()).all(fits) {
            refuse!(
                "indices must have the rank of {shape} and its extents or less outside axis {axis}, got shape {places}"
            );
        }
        let index = self.wrap_negative(index, shape[axis])?;
        let mut indices = Vec::new();
        for at in 0..shape.rank() {
            indices.push(if at == axis { index } else { self.positions(places[at], at, shape.rank())? });
        }
        let flat = self.flat_index(&indices, &shape)?;
        let flat = self.expand(flat, places)?;
        let table = self.reshape(x, Shape::from([shape.elements()]))?;
        self.rows(table, flat)
    }
}
