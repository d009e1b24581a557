//! [`TopK`]: the first elements of a sorted axis.
//!
//! The outputs of a lane hold a heap whose root is the last of the elements found. An element that comes before the root
//! replaces it, and in the end the heap is sorted in place: `axis log k` steps at most, and about `axis` for most data.

use serde::{Deserialize, Serialize};
use types::{DType, Element};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::ops::elementwise::with_element;
use crate::threads::Pool;
use crate::threads::shared_slice::SharedMut;

/// Selects along the middle axis of `x: [outer, axis, inner]`: the elements `[outer, k, inner]`, the largest or smallest
/// first, and their indices as `i64`. Of equal elements the one of the lower index comes first; NaN counts as larger than any
/// number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopK {
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Extent of the axis.
    pub axis: usize,
    /// Product of the extents after the axis.
    pub inner: usize,
    /// The number of elements, at most `axis`.
    pub k: usize,
    /// Whether the largest are selected; otherwise the smallest.
    pub largest: bool,
    /// The dtype of the elements.
    pub dtype: DType,
}

/// Bytes of an index.
const INDEX: usize = 8;

impl KernelFn for TopK {
    const NAME: &'static str = "top_k";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if self.axis < self.k {
            return Err(InvalidKernel("`k` must be at most `axis`"));
        }
        let size = self.dtype.size().0 as usize;
        let x = product(&[self.outer, self.axis, self.inner, INDEX]).map(|bytes| bytes / INDEX);
        let y = product(&[self.outer, self.k, self.inner, INDEX]).map(|bytes| bytes / INDEX);
        let mut sizes = Sizes::new(&[x], y, size)?;
        sizes.outputs.push(sizes.outputs[0] / size as u64 * INDEX as u64);
        Ok(sizes)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        1
    }

    fn run(&self, args: Args, pool: &Pool) {
        let Operand::Bytes(x) = args.inputs[0] else { return };
        let [values, indices] = args.outputs else { unreachable!("`sizes` states two outputs") };
        with_element!(self.dtype, T => self.run_typed::<T, { size_of::<T>() }>(x, values, indices, pool));
    }
}

impl TopK {
    fn run_typed<T: Element + PartialOrd, const SIZE: usize>(
        &self,
        x: &[u8],
        values: &mut [u8],
        indices: &mut [u8],
        pool: &Pool,
    ) {
        let (x, _) = x.as_chunks::<SIZE>();
        let values = SharedMut::new(values.as_chunks_mut::<SIZE>().0);
        let indices = SharedMut::new(indices.as_chunks_mut::<INDEX>().0);
        let size = self.k * self.inner;
        pool.run(self.outer, &|number| {
            let x = &x[number * self.axis * self.inner..][..self.axis * self.inner];
            // SAFETY: each number is claimed once, and the parts of different numbers are disjoint.
            let (values, indices) = unsafe { (values.part(number * size, size), indices.part(number * size, size)) };
            for column in 0..self.inner {
                let mut heap = Heap {
                    values: &mut values[column..],
                    indices: &mut indices[column..],
                    stride: self.inner,
                    largest: self.largest,
                    element: std::marker::PhantomData::<T>,
                };
                let items = x[column..].iter().step_by(self.inner).map(|item| T::from_le(item)).enumerate();
                heap.select(items, self.k);
            }
        });
    }
}

/// Elements of a lane with their indices, in the cells of the output.
struct Heap<'a, T, const SIZE: usize> {
    values: &'a mut [[u8; SIZE]],
    indices: &'a mut [[u8; INDEX]],
    /// Cells from one element to the next.
    stride: usize,
    largest: bool,
    element: std::marker::PhantomData<T>,
}

impl<T: Element + PartialOrd, const SIZE: usize> Heap<'_, T, SIZE> {
    fn get(&self, at: usize) -> (usize, T) {
        let cell = at * self.stride;
        (i64::from_le_bytes(self.indices[cell]) as usize, T::from_le(&self.values[cell]))
    }

    fn set(&mut self, at: usize, (index, value): (usize, T)) {
        let cell = at * self.stride;
        value.write_le(&mut self.values[cell]);
        self.indices[cell] = (index as i64).to_le_bytes();
    }

    /// Whether an element comes before another.
    fn precedes(&self, (a_index, a): (usize, T), (b_index, b): (usize, T)) -> bool {
        // NaN, which no number compares with, is larger than any.
        let is_number = |x: T| x.partial_cmp(&x).is_some();
        let is_larger = |a: T, b: T| a > b || (!is_number(a) && is_number(b));
        let (first, second) = if self.largest { (a, b) } else { (b, a) };
        is_larger(first, second) || (!is_larger(second, first) && a_index < b_index)
    }

    /// Moves an element down from `at` until those below it precede it, among the first `count`.
    fn sink(&mut self, mut at: usize, count: usize, element: (usize, T)) {
        loop {
            let mut below = 2 * at + 1;
            if count <= below {
                break;
            }
            if below + 1 < count && self.precedes(self.get(below), self.get(below + 1)) {
                below += 1;
            }
            let last = self.get(below);
            if !self.precedes(element, last) {
                break;
            }
            self.set(at, last);
            at = below;
        }
        self.set(at, element);
    }

    fn select(&mut self, mut items: impl Iterator<Item = (usize, T)>, k: usize) {
        if k == 0 {
            return;
        }
        items.by_ref().take(k).enumerate().for_each(|(at, element)| self.set(at, element));
        for at in (0..k / 2).rev() {
            self.sink(at, k, self.get(at));
        }
        let mut root = self.get(0);
        for element in items {
            // One comparison rejects most elements; ties and NaN need the full one.
            let is_behind = if self.largest { element.1 < root.1 } else { element.1 > root.1 };
            if !is_behind && self.precedes(element, root) {
                self.sink(0, k, element);
                root = self.get(0);
            }
        }
        for count in (1..k).rev() {
            let (last, root) = (self.get(count), self.get(0));
            self.sink(0, count, last);
            self.set(count, root);
        }
    }
}
