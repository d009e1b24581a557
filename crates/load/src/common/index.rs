//! Indexing, composed of comparisons, [`Select`](ir::ops::Select) and [`Gather`].

use std::sync::Arc;

use ir::ops::{Gather, ReduceKind, Reshape, Slice};
use ir::{Op, Refusal, ValueId};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare};
use types::{DType, Shape, Tensor, strides};

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
        let flat = self.flat_elements(index, &shape, axis)?;
        let flat = self.expand(flat, places)?;
        let table = self.reshape(x, Shape::from([shape.elements()]))?;
        self.rows(table, flat)
    }

    /// The flat positions, in a tensor of `shape`, of the elements that `index` names along `axis`.
    pub(crate) fn flat_elements(&mut self, index: Operand, shape: &Shape, axis: usize) -> Result<Operand, Refusal> {
        let places = self.shape(index);
        let index = self.wrap_negative(index, shape[axis])?;
        let mut indices = Vec::new();
        for at in 0..shape.rank() {
            indices.push(if at == axis { index } else { self.positions(places[at], at, shape.rank())? });
        }
        self.flat_index(&indices, shape)
    }

    /// The indices along each of `extents`, from vectors along the last axis of `index`. Negative ones count from the end.
    pub(crate) fn index_vectors(&mut self, index: Operand, extents: &[usize]) -> Result<Vec<Operand>, Refusal> {
        let places = self.shape(index);
        let outer = Shape::from(&places[..places.rank() - 1]);
        let index = self.cast(index, DType::I64)?;
        let mut indices = Vec::new();
        for (at, &extent) in extents.iter().enumerate() {
            let part = self.apply(Slice::range(&places, places.rank() - 1, at, 1), &[index])?;
            let part = self.reshape(part, outer.clone())?;
            indices.push(self.wrap_negative(part, extent)?);
        }
        Ok(indices)
    }

    /// Element `at` along the last axis of `index`, without that axis, if it is known before the run. It may have an extent of
    /// 1 along axes on which it does not depend: an index that is joined from broadcast ranges is followed to them, since all
    /// of its elements may be too many to be computed.
    pub(crate) fn column(&mut self, index: Operand, at: usize) -> Result<Option<Arc<Tensor>>, Refusal> {
        let places = self.shape(index);
        let (last, outer) = (places.rank() - 1, Shape::from(&places[..places.rank() - 1]));
        if self.constant_value(index).is_some() {
            let part = self.apply_folded(Slice::range(&places, last, at, 1), &[index])?;
            let part = self.apply_folded(Reshape { shape: outer.clone() }, &[part])?;
            return Ok(self.constant_value(part));
        }
        let graph = &self.builder.graph;
        let maker = |value: ValueId| graph.value(value).producer().map(|node| graph.node(node));
        let Operand::Value(value) = index else { return Ok(None) };
        let Some(joined) = maker(value) else { return Ok(None) };
        let is_joined = matches!(&joined.op, Op::Concat(concat) if concat.axis == last);
        if !is_joined || joined.inputs.len() != places[last] {
            return Ok(None);
        }
        // The new axis, then the broadcast.
        let (mut part, mut shape) = (joined.inputs[at], outer);
        while let Some(node) = maker(part) {
            let source = node.inputs[0];
            let own = &graph.ty(source).shape;
            if matches!(node.op, Op::Reshape(_)) && *own == shape {
                part = source;
            } else if matches!(node.op, Op::Expand(_)) && graph.ty(part).shape == shape && own.rank() <= shape.rank() {
                part = source;
                shape = std::iter::repeat_n(1, shape.rank() - own.rank()).chain(own.iter().copied()).collect();
                break;
            } else {
                break;
            }
        }
        let tensor = graph.value(part).tensor().cloned();
        Ok(tensor.and_then(|tensor| Tensor::clone(&tensor).reshape(shape).ok()).map(Arc::new))
    }
}
