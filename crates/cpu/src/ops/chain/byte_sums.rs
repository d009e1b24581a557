//! [`ByteSum`]: the sum or product of two scaled operands of bytes, the residual sum of quantized networks, in one loop.

use types::pointwise::{Binary, QuantizedSum, Unary};

use super::{Chain, Instruction};
use crate::gemm::epilogue::{Epilogue, quantized_sum};
use crate::kernel;
use crate::simd::StorageType;
use crate::simd::storage::Item;
use crate::simd::vector::{LANES, Vector};

/// `affine(join(affine(a), affine(b)))` of bytes of one type, rounded to it.
#[derive(Clone, Copy)]
pub(super) enum ByteSum {
    Sum(QuantizedSum),
    Product(ScaledProduct),
}

/// Scales and shifts of a product.
#[derive(Clone, Copy)]
pub(super) struct ScaledProduct {
    inputs: [[f32; 2]; 2],
    result: [f32; 2],
}

impl ByteSum {
    /// The sum or product that a chain is, if it is one.
    pub(super) fn of(chain: &Chain) -> Option<ByteSum> {
        let is_bytes = matches!(chain.result, StorageType::U8 | StorageType::I8);
        if chain.strides.len() != 2 || !is_bytes || chain.inputs.iter().any(|&stored| stored != chain.result) {
            return None;
        }
        let affine = |instruction: Instruction, of: usize| match instruction {
            Instruction::Unary(Unary::Affine { scale, shift }, x) if x == of => Some([scale, shift]),
            _ => None,
        };
        let &[a, b, join, last] = &chain.program[..] else { return None };
        let (inputs, result) = ([affine(a, 0)?, affine(b, 1)?], affine(last, 4)?);
        match join {
            Instruction::Binary(Binary::Add, 2, 3) | Instruction::Binary(Binary::Add, 3, 2) => {
                Some(ByteSum::Sum(QuantizedSum::of_affine(inputs[0], inputs[1], result, Epilogue::UNLIMITED)))
            }
            Instruction::Binary(Binary::Mul, 2, 3) | Instruction::Binary(Binary::Mul, 3, 2) => {
                Some(ByteSum::Product(ScaledProduct { inputs, result }))
            }
            _ => None,
        }
    }

    /// Computes as many elements as `out` has bytes; the bytes of an operand in place are those of `out`.
    #[inline(always)]
    pub(super) fn run<V: Vector>(&self, stored: StorageType, operands: [Option<&[u8]>; 2], out: &mut [u8]) {
        match (stored, self) {
            (StorageType::U8, ByteSum::Sum(sum)) => each::<V, u8>(sum, operands, out),
            (StorageType::U8, ByteSum::Product(product)) => each::<V, u8>(product, operands, out),
            (_, ByteSum::Sum(sum)) => each::<V, i8>(sum, operands, out),
            (_, ByteSum::Product(product)) => each::<V, i8>(product, operands, out),
        }
    }
}

/// A result before it is rounded. No closure: one that is not inlined is not compiled for the instruction set.
trait Join {
    fn join<V: Vector>(&self, x: V, y: V) -> V;
}

impl Join for QuantizedSum {
    #[inline(always)]
    fn join<V: Vector>(&self, x: V, y: V) -> V {
        quantized_sum(self, x, y)
    }
}

impl Join for ScaledProduct {
    #[inline(always)]
    fn join<V: Vector>(&self, x: V, y: V) -> V {
        affine(self.result, affine(self.inputs[0], x).mul(affine(self.inputs[1], y)))
    }
}

#[inline(always)]
fn affine<V: Vector>([scale, shift]: [f32; 2], x: V) -> V {
    x.mul(V::splat(scale)).add(V::splat(shift))
}

#[inline(always)]
fn each<V: Vector, T: Item>(join: &impl Join, operands: [Option<&[u8]>; 2], out: &mut [u8]) {
    let out: &mut [T] = kernel::elements_mut(out);
    let operands = operands.map(|bytes| bytes.map(|bytes| &kernel::elements::<T>(bytes)[..out.len()]));
    let whole = out.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let x: V = T::read(&operands[0].unwrap_or(out)[at..at + LANES]);
        let y: V = T::read(&operands[1].unwrap_or(out)[at..at + LANES]);
        T::write(join.join(x, y), &mut out[at..at + LANES]);
    }
    if whole < out.len() {
        let x: V = T::read_part(&operands[0].unwrap_or(out)[whole..], 0.0);
        let y: V = T::read_part(&operands[1].unwrap_or(out)[whole..], 0.0);
        T::write_part(join.join(x, y), &mut out[whole..]);
    }
}
