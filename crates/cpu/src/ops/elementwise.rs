//! [`Elementwise`]: one function on elements of any dtype. `f32` arithmetic uses [`Chain`](crate::Chain), which is
//! faster.

use serde::{Deserialize, Serialize};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Element};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::ops::chain::reach;
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Elements per task.
const CHUNK: usize = 1 << 12;

/// The function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ElementwiseFn {
    /// A function of one operand; `is_nan` and `is_inf` return `bool`.
    Unary(Unary),
    /// A function of two operands of one dtype.
    Binary(Binary),
    /// A comparison of two operands of one dtype; returns `bool`.
    Compare(Compare),
    /// Takes a `bool` and two operands of one dtype; returns the first of these if it is true, else the second.
    Select,
    /// Conversion to another dtype.
    Cast(DType),
}

/// Applies `function` to each element of `shape`; operands are broadcast by their strides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elementwise {
    /// The function.
    pub function: ElementwiseFn,
    /// The dtype of the operands; for `Select`, of the second and third.
    pub dtype: DType,
    /// Extents of the output.
    pub shape: Vec<usize>,
    /// Per operand: the stride along each extent, in elements.
    pub strides: Vec<Vec<usize>>,
}

impl Elementwise {
    fn operand_dtypes(&self) -> Vec<DType> {
        match self.function {
            ElementwiseFn::Unary(_) | ElementwiseFn::Cast(_) => vec![self.dtype],
            ElementwiseFn::Binary(_) | ElementwiseFn::Compare(_) => vec![self.dtype; 2],
            ElementwiseFn::Select => vec![DType::Bool, self.dtype, self.dtype],
        }
    }

    fn output_dtype(&self) -> DType {
        match self.function {
            ElementwiseFn::Unary(Unary::IsNan | Unary::IsInf { .. }) | ElementwiseFn::Compare(_) => DType::Bool,
            ElementwiseFn::Cast(to) => to,
            _ => self.dtype,
        }
    }
}

impl KernelFn for Elementwise {
    const NAME: &'static str = "elementwise";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let dtypes = self.operand_dtypes();
        if self.strides.len() != dtypes.len() || self.strides.iter().any(|strides| strides.len() != self.shape.len()) {
            return Err(InvalidKernel("there must be one stride per operand and extent"));
        }
        let bytes = |elements: Option<usize>, dtype: DType| {
            elements.and_then(|elements| elements.checked_mul(dtype.size().0 as usize))
        };
        let inputs: Vec<Option<usize>> =
            self.strides.iter().zip(dtypes).map(|(strides, dtype)| bytes(reach(&self.shape, strides), dtype)).collect();
        Sizes::new(&inputs, bytes(product(&self.shape), self.output_dtype()), 1)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        // Elements are assembled from bytes, so no alignment is needed.
        1
    }

    fn run(&self, args: Args, pool: &Pool) {
        let inputs = args.inputs;
        let size = self.output_dtype().size().0 as usize;
        for_each_chunk(pool, args.outputs[0], CHUNK * size, &|number, cells| {
            let operand = |ix: usize, position: usize| -> usize {
                let (mut rest, mut at) = (position, 0);
                for (&extent, &stride) in self.shape.iter().zip(&self.strides[ix]).rev() {
                    at += rest % extent * stride;
                    rest /= extent;
                }
                at
            };
            for (ix, cell) in cells.chunks_exact_mut(size).enumerate() {
                let position = number * CHUNK + ix;
                let bytes = |ix: usize, dtype: DType| -> [u8; 8] {
                    let size = dtype.size().0 as usize;
                    let mut element = [0; 8];
                    if let Operand::Bytes(bytes) = inputs[ix] {
                        let at = operand(ix, position) * size;
                        element[..size].copy_from_slice(&bytes[at..at + size]);
                    }
                    element
                };
                self.apply(&bytes, cell);
            }
        });
    }
}

impl Elementwise {
    fn apply(&self, operand: &dyn Fn(usize, DType) -> [u8; 8], cell: &mut [u8]) {
        macro_rules! typed {
            ($($dtype:ident: $type:ty),*) => {
                match self.dtype {
                    $(DType::$dtype => self.apply_typed::<$type>(operand, cell)),*
                }
            };
        }
        typed!(F32: f32, F64: f64, F16: types::f16, Bf16: types::bf16, I8: i8, I16: i16, I32: i32, I64: i64, U8: u8,
               U16: u16, U32: u32, U64: u64, Bool: bool)
    }

    fn apply_typed<T: Element>(&self, operand: &dyn Fn(usize, DType) -> [u8; 8], cell: &mut [u8]) {
        let size = T::DTYPE.size().0 as usize;
        let get = |ix: usize| T::from_le(&operand(ix, T::DTYPE)[..size]);
        let stored = T::DTYPE.is_float();
        let mut put = |element: T| element.write_le(cell);
        match self.function {
            ElementwiseFn::Unary(function) => {
                let x = get(0);
                match function {
                    Unary::IsNan | Unary::IsInf { .. } => cell[0] = u8::from(function.eval(x.to_f64()) != 0.0),
                    _ if stored => put(T::from_f64(function.eval(x.to_f64()))),
                    _ => put(T::from_i64(function.eval_i64(x.to_i64()).unwrap_or(0))),
                }
            }
            ElementwiseFn::Binary(function) => {
                let (a, b) = (get(0), get(1));
                put(match stored {
                    true => T::from_f64(function.eval(a.to_f64(), b.to_f64())),
                    false => T::from_i64(function.eval_i64(a.to_i64(), b.to_i64())),
                });
            }
            ElementwiseFn::Compare(function) => {
                let (a, b) = (get(0), get(1));
                cell[0] = u8::from(match stored {
                    true => function.eval(a.to_f64(), b.to_f64()),
                    false if T::DTYPE == DType::U64 => function.eval(a.to_i64() as u64, b.to_i64() as u64),
                    false => function.eval(a.to_i64(), b.to_i64()),
                });
            }
            ElementwiseFn::Select => put(if operand(0, DType::Bool)[0] != 0 { get(1) } else { get(2) }),
            ElementwiseFn::Cast(to) => cast(get(0), to, cell),
        }
    }
}

fn cast<T: Element>(x: T, to: DType, cell: &mut [u8]) {
    fn convert<S: Element, T: Element>(x: S, cell: &mut [u8]) {
        let through_float = S::DTYPE.is_float() || T::DTYPE.is_float();
        let converted = if through_float { T::from_f64(x.to_f64()) } else { T::from_i64(x.to_i64()) };
        converted.write_le(cell);
    }
    match to {
        DType::F32 => convert::<T, f32>(x, cell),
        DType::F64 => convert::<T, f64>(x, cell),
        DType::F16 => convert::<T, types::f16>(x, cell),
        DType::Bf16 => convert::<T, types::bf16>(x, cell),
        DType::I8 => convert::<T, i8>(x, cell),
        DType::I16 => convert::<T, i16>(x, cell),
        DType::I32 => convert::<T, i32>(x, cell),
        DType::I64 => convert::<T, i64>(x, cell),
        DType::U8 => convert::<T, u8>(x, cell),
        DType::U16 => convert::<T, u16>(x, cell),
        DType::U32 => convert::<T, u32>(x, cell),
        DType::U64 => convert::<T, u64>(x, cell),
        DType::Bool => convert::<T, bool>(x, cell),
    }
}
