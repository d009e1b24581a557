//! [`TopK`]: the first elements of a sorted axis.
//!
//! A heap holds the first of the elements found so far; its root is the last of them. An element that comes before the root
//! replaces it, and in the end the heap is sorted: `axis log k` steps at most, and about `axis` for most data.
//!
//! Elements of up to four bytes are held with their indices as keys of 64 bits, whose order is that of the result. The other
//! ones are compared by their definition, in the cells of the outputs.

use serde::{Deserialize, Serialize};
use types::{DType, Element};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::movement::pieces::copy_items;
use crate::ops::elementwise::with_element;
use crate::simd::vector::LANES;
use crate::threads::Pool;
use crate::threads::shared_slice::{SharedMut, StackBuffer};

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
/// The most keys of lanes that are searched together, unless they have room where the indices are written.
const KEYS: usize = 2048;

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
        if values.is_empty() {
            return;
        }
        if self.axis == 1 && self.k == 1 {
            copy_items(x, values);
            return indices.fill(0);
        }
        let (x, _) = x.as_chunks::<SIZE>();
        let values = SharedMut::new(values.as_chunks_mut::<SIZE>().0);
        let indices = SharedMut::new(indices.as_chunks_mut::<INDEX>().0);
        let size = self.k * self.inner;
        if SIZE <= 4 && (1..=KEYS).contains(&self.k) && self.axis <= u32::MAX as usize {
            // Tasks differ in outer position or columns.
            let together = (KEYS / self.k).min(LANES);
            let blocks = self.inner.div_ceil(together);
            pool.run(self.outer * blocks, &|task| {
                let (outer, first) = (task / blocks, task % blocks * together);
                let lanes = Lanes {
                    kernel: self,
                    x: &x[outer * self.axis * self.inner + first..],
                    count: together.min(self.inner - first),
                    element: std::marker::PhantomData::<T>,
                };
                let mut keys = StackBuffer::<{ 2 * KEYS }>::new();
                let keys: &mut [u64] = bytemuck::cast_slice_mut(keys.zeros(2 * lanes.count * self.k));
                lanes.select(keys);
                for (lane, keys) in keys.chunks_exact_mut(self.k).enumerate() {
                    keys.sort_unstable();
                    for (at, &key) in keys.iter().enumerate() {
                        let (index, cell) = (key as u32, outer * size + at * self.inner + first + lane);
                        // SAFETY: each task is claimed once, and tasks have other cells.
                        let (values, indices) = unsafe { (values.part(cell, 1), indices.part(cell, 1)) };
                        values[0] = lanes.x[index as usize * self.inner + lane];
                        indices[0] = i64::from(index).to_le_bytes();
                    }
                }
            });
            return;
        }
        pool.run(self.outer, &|number| {
            let x = &x[number * self.axis * self.inner..][..self.axis * self.inner];
            // SAFETY: each number is claimed once, and the parts of different numbers are disjoint.
            let (values, indices) = unsafe { (values.part(number * size, size), indices.part(number * size, size)) };
            if SIZE <= 4
                && self.inner == 1
                && self.axis <= u32::MAX as usize
                && let Ok(keys) = bytemuck::try_cast_slice_mut::<u8, u64>(indices.as_flattened_mut())
            {
                // The keys are where their indices are written.
                Lanes { kernel: self, x, count: 1, element: std::marker::PhantomData::<T> }.select(keys);
                keys.sort_unstable();
                for (value, key) in values.iter_mut().zip(keys) {
                    let index = *key as u32;
                    *value = x[index as usize];
                    *key = u64::from(index).to_le();
                }
                return;
            }
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

/// Some neighboring lanes of elements of up to four bytes.
struct Lanes<'a, T, const SIZE: usize> {
    kernel: &'a TopK,
    /// From the first element of the first lane on.
    x: &'a [[u8; SIZE]],
    count: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Element, const SIZE: usize> Lanes<'_, T, SIZE> {
    /// A number that is less for elements that come before others, if their indices do not decide.
    #[inline(always)]
    fn order(&self, item: &[u8; SIZE]) -> u32 {
        let item = T::from_le(item);
        let order = match T::DTYPE {
            DType::F32 | DType::F16 | DType::Bf16 => {
                // Both zeros are equal; NaN is larger than any number, whatever its sign.
                let number = item.to_f64() as f32 + 0.0;
                let bits = number.to_bits().cast_signed();
                let order = bits.cast_unsigned() ^ ((bits >> 31).cast_unsigned() | 1 << 31);
                if number.is_nan() { u32::MAX } else { order }
            }
            DType::U32 => item.to_i64() as u32,
            _ => item.to_i64() as u32 ^ 1 << 31,
        };
        if self.kernel.largest { !order } else { order }
    }

    #[inline(always)]
    fn key(&self, row: usize, item: &[u8; SIZE]) -> u64 {
        u64::from(self.order(item)) << 32 | row as u64
    }

    /// The keys of the first `k` elements of each lane, in any order.
    fn select(&self, keys: &mut [u64]) {
        let TopK { axis, inner, k, .. } = *self.kernel;
        let mut last = [0; LANES];
        for (lane, keys) in keys.chunks_exact_mut(k).enumerate() {
            for (row, key) in keys.iter_mut().enumerate() {
                *key = self.key(row, &self.x[row * inner + lane]);
            }
            if k < axis {
                (0..k / 2).rev().for_each(|at| sink(keys, at));
            }
            last[lane] = (keys[0] >> 32) as u32;
        }
        // Sixteen elements are compared at a time: of the lanes, or of the only one. One of the order of the last key found has a
        // higher index than that one and does not come before it.
        if inner == 1 {
            last = [last[0]; LANES];
            for (block, items) in self.x[k..axis].chunks(LANES).enumerate() {
                let mut orders = [u32::MAX; LANES];
                orders.iter_mut().zip(items).for_each(|(order, item)| *order = self.order(item));
                if !is_any_less(&orders, &last) {
                    continue;
                }
                for (ix, &order) in orders.iter().enumerate() {
                    if order < last[0] {
                        keys[0] = u64::from(order) << 32 | (k + block * LANES + ix) as u64;
                        sink(keys, 0);
                        last = [(keys[0] >> 32) as u32; LANES];
                    }
                }
            }
            return;
        }
        for row in k..axis {
            let mut orders = [u32::MAX; LANES];
            let items = &self.x[row * inner..][..self.count];
            match items.first_chunk::<LANES>() {
                Some(items) => (0..LANES).for_each(|lane| orders[lane] = self.order(&items[lane])),
                None => orders.iter_mut().zip(items).for_each(|(order, item)| *order = self.order(item)),
            }
            if !is_any_less(&orders, &last) {
                continue;
            }
            for (lane, keys) in keys.chunks_exact_mut(k).enumerate() {
                if orders[lane] < last[lane] {
                    keys[0] = u64::from(orders[lane]) << 32 | row as u64;
                    sink(keys, 0);
                    last[lane] = (keys[0] >> 32) as u32;
                }
            }
        }
    }
}

/// Whether a number is less than the other one of its lane. Without branches, so that the compiler vectorizes it.
#[inline(always)]
fn is_any_less(a: &[u32; LANES], b: &[u32; LANES]) -> bool {
    let mut any = false;
    for lane in 0..LANES {
        any |= a[lane] < b[lane];
    }
    any
}

/// Moves a key down from `at` until those below it are less.
#[inline(always)]
fn sink(keys: &mut [u64], mut at: usize) {
    let key = keys[at];
    loop {
        let mut below = 2 * at + 1;
        if keys.len() <= below {
            break;
        }
        if below + 1 < keys.len() && keys[below] < keys[below + 1] {
            below += 1;
        }
        if keys[below] <= key {
            break;
        }
        keys[at] = keys[below];
        at = below;
    }
    keys[at] = key;
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
