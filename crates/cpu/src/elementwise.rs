//! [`Elementwise`]: one pointwise function on any dtype, by its definition in `types::pointwise`.
//!
//! For what a [`Chain`](crate::Chain) has no form for. Floats are worked on as `f64`, integers and booleans as `i64`
//! (both hold every value of the narrower types), 256 elements at a time.

use serde::{Deserialize, Serialize};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Element, Tensor, each_data};

use crate::kernel::{Fit, KernelFn, Sizes, bytes, count, require};
use crate::operand::Operands;
use crate::pool::Pool;
use crate::walk::{Walk, strided_elements};

const TILE: usize = 256;

/// The function of an [`Elementwise`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ElementOp {
    /// One input; the result has its dtype. Integers go through `f64` where the function has no integer definition.
    Unary(Unary),
    /// Two inputs of the dtype; the result has it, too.
    Binary(Binary),
    /// Two inputs of the dtype; the result is `bool`.
    Compare(Compare),
    /// A `bool` input and two of the dtype: the second where the first holds, else the third, bit for bit.
    Where,
    /// One input; the result has the given dtype, converted as [`Tensor::cast`] does.
    Cast(DType),
}

/// One function on elements of any dtype, with broadcasting.
///
/// Each input has as many elements as the product of the extents along which its stride is not 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elementwise {
    /// The function.
    pub op: ElementOp,
    /// The dtype of the inputs (of the last two, for `Where`).
    pub dtype: DType,
    /// The output's extents.
    pub shape: Vec<usize>,
    /// For each input the distance of neighbours, in elements, along each of the output's axes; 0 repeats.
    pub strides: Vec<Vec<usize>>,
}

/// Elements of one tile in the form they are worked on.
#[derive(Clone, Copy)]
enum Wide {
    Float([f64; TILE]),
    Integer([i64; TILE]),
}

impl Elementwise {
    /// The dtype of the output.
    pub fn output_dtype(&self) -> DType {
        match self.op {
            ElementOp::Compare(_) => DType::Bool,
            ElementOp::Cast(to) => to,
            ElementOp::Unary(_) | ElementOp::Binary(_) | ElementOp::Where => self.dtype,
        }
    }

    fn input_dtype(&self, input: usize) -> DType {
        if self.op == ElementOp::Where && input == 0 { DType::Bool } else { self.dtype }
    }

    fn arity(&self) -> usize {
        match self.op {
            ElementOp::Unary(_) | ElementOp::Cast(_) => 1,
            ElementOp::Binary(_) | ElementOp::Compare(_) => 2,
            ElementOp::Where => 3,
        }
    }

    /// Whether elements are worked on as `f64`.
    fn floating(&self) -> bool {
        match self.op {
            ElementOp::Unary(f) => self.dtype.is_float() || f.eval_i64(0).is_none(),
            ElementOp::Cast(to) => self.dtype.is_float() || to.is_float(),
            ElementOp::Where => false,
            ElementOp::Binary(_) | ElementOp::Compare(_) => self.dtype.is_float(),
        }
    }
}

impl KernelFn for Elementwise {
    const NAME: &'static str = "elementwise";

    fn sizes(&self) -> Fit<Sizes> {
        require(self.strides.len() == self.arity(), "strides for another number of inputs")?;
        let mut sizes =
            Sizes { outputs: smallvec![bytes(&self.shape, size(self.output_dtype()))?], ..Sizes::default() };
        for (input, strides) in self.strides.iter().enumerate() {
            let elements = strided_elements(&self.shape, strides)?;
            sizes.inputs.push(bytes(&[elements], size(self.input_dtype(input)))?);
        }
        Ok(sizes)
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let mut walk = Walk::new(&self.shape);
        for strides in &self.strides {
            walk.operand(strides.iter().map(|&stride| stride as isize));
        }
        let walk = walk.merge();
        let out = operands.output::<u8>();
        let to = self.output_dtype();
        let elements = count(&self.shape).unwrap_or(0);
        pool.split(elements.div_ceil(TILE), 16, &|tiles| {
            for tile in tiles {
                let start = tile * TILE;
                let len = TILE.min(elements - start);
                // SAFETY: tiles do not overlap, and each has one task.
                let into = unsafe { out.write(start * size(to), len * size(to)) };
                self.tile(operands, &walk, start, into, len);
            }
        });
    }
}

impl Elementwise {
    fn tile(&self, operands: &Operands, walk: &Walk, start: usize, into: &mut [u8], len: usize) {
        let to = self.output_dtype();
        let floating = self.floating();
        let load = |input: usize, floating: bool, dtype: DType| {
            let mut tile = if floating { Wide::Float([0.0; TILE]) } else { Wide::Integer([0; TILE]) };
            let bytes = operands.input::<u8>(input);
            let (row, step) = (walk.row(), walk.step(input) as usize);
            let mut done = 0;
            while done < len {
                let (nth, column) = ((start + done) / row, (start + done) % row);
                let stretch = (row - column).min(len - done);
                let first = walk.starts(nth)[input] as usize + column * step;
                each_data!(none_of(dtype).data(), items => read(items, bytes, first, step, done..done + stretch, &mut tile));
                done += stretch;
            }
            tile
        };
        let result = match self.op {
            ElementOp::Unary(f) => match load(0, floating, self.dtype) {
                Wide::Float(x) => Wide::Float(x.map(|x| f.eval(x))),
                Wide::Integer(x) => Wide::Integer(x.map(|x| f.eval_i64(x).unwrap_or(0))),
            },
            ElementOp::Cast(_) => load(0, floating, self.dtype),
            ElementOp::Binary(f) => match [load(0, floating, self.dtype), load(1, floating, self.dtype)] {
                [Wide::Float(a), Wide::Float(b)] => Wide::Float(std::array::from_fn(|index| f.eval(a[index], b[index]))),
                [Wide::Integer(a), Wide::Integer(b)] if self.dtype == DType::U64 => {
                    Wide::Integer(std::array::from_fn(|index| eval_u64(f, a[index] as u64, b[index] as u64) as i64))
                }
                [Wide::Integer(a), Wide::Integer(b)] => {
                    Wide::Integer(std::array::from_fn(|index| f.eval_i64(a[index], b[index])))
                }
                [other, _] => other,
            },
            ElementOp::Compare(f) => Wide::Integer(match [load(0, floating, self.dtype), load(1, floating, self.dtype)] {
                [Wide::Float(a), Wide::Float(b)] => {
                    std::array::from_fn(|index| i64::from(f.eval(a[index], b[index])))
                }
                [Wide::Integer(a), Wide::Integer(b)] if self.dtype == DType::U64 => {
                    std::array::from_fn(|index| i64::from(f.eval(a[index] as u64, b[index] as u64)))
                }
                [Wide::Integer(a), Wide::Integer(b)] => {
                    std::array::from_fn(|index| i64::from(f.eval(a[index], b[index])))
                }
                _ => [0; TILE],
            }),
            ElementOp::Where => {
                // As integers of the same size, so that every bit comes through.
                let bits = bits_of(self.dtype);
                match [load(0, false, DType::Bool), load(1, false, bits), load(2, false, bits)] {
                    [Wide::Integer(which), Wide::Integer(a), Wide::Integer(b)] => {
                        Wide::Integer(std::array::from_fn(|index| if which[index] != 0 { a[index] } else { b[index] }))
                    }
                    [other, ..] => other,
                }
            }
        };
        let to = if self.op == ElementOp::Where { bits_of(to) } else { to };
        each_data!(none_of(to).data(), items => write(items, &result, into));
    }
}

fn size(dtype: DType) -> usize {
    dtype.size().0 as usize
}

/// An empty tensor: its data names the Rust type of a dtype. Allocates nothing.
fn none_of(dtype: DType) -> Tensor {
    Tensor::vector::<f32>(Vec::new()).cast(dtype)
}

fn bits_of(dtype: DType) -> DType {
    match size(dtype) {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    }
}

/// The definition for unsigned 64-bit numbers, of which `i64` holds only the bits.
fn eval_u64(f: Binary, a: u64, b: u64) -> u64 {
    match f {
        Binary::Div => a.checked_div(b).unwrap_or(0),
        Binary::Mod | Binary::Rem => a.checked_rem(b).unwrap_or(0),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::PRelu => a,
        _ => f.eval_i64(a as i64, b as i64) as u64,
    }
}

/// Reads elements `first`, `first + step`, … into positions `at` of the tile.
fn read<T: Element>(
    _: &[T],
    bytes: &[u8],
    first: usize,
    step: usize,
    at: std::ops::Range<usize>,
    tile: &mut Wide,
) {
    let size = size_of::<T>();
    let element = |nth: usize| T::from_le(&bytes[(first + nth * step) * size..][..size]);
    match tile {
        Wide::Float(items) => items[at].iter_mut().enumerate().for_each(|(nth, item)| *item = element(nth).to_f64()),
        Wide::Integer(items) => items[at].iter_mut().enumerate().for_each(|(nth, item)| *item = element(nth).to_i64()),
    }
}

/// Writes the first elements of the tile, as many as `into` holds.
fn write<T: Element>(_: &[T], tile: &Wide, into: &mut [u8]) {
    for (nth, bytes) in into.chunks_exact_mut(size_of::<T>()).enumerate() {
        let value = match tile {
            Wide::Float(items) => T::from_f64(items[nth]),
            Wide::Integer(items) => T::from_i64(items[nth]),
        };
        // SAFETY: `bytes` has the size of `T`; the write needs no alignment; elements are plain numbers or `bool`
        // without padding, so that their bytes may be looked at.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) };
    }
}
