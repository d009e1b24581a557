//! [`ByteSum`]: the sum or product of two scaled operands of bytes, the residual sum of quantized networks, in one loop.

use types::pointwise::{Binary, Unary};

use super::{Chain, Instruction};
use crate::kernel;
use crate::simd::StorageType;
use crate::simd::storage::Item;
use crate::simd::vector::{LANES, Vector};

/// `affine(join(affine(a), affine(b)))` of bytes of one type, rounded to it.
#[derive(Clone, Copy)]
pub(super) struct ByteSum {
    /// Scale and shift of each input.
    inputs: [[f32; 2]; 2],
    /// Scale and shift of the result.
    result: [f32; 2],
    /// Whether the scaled inputs are multiplied; otherwise they are added.
    is_product: bool,
}

impl ByteSum {
    /// The sum that a chain is, if it is one.
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
        let is_product = match join {
            Instruction::Binary(Binary::Add, 2, 3) | Instruction::Binary(Binary::Add, 3, 2) => false,
            Instruction::Binary(Binary::Mul, 2, 3) | Instruction::Binary(Binary::Mul, 3, 2) => true,
            _ => return None,
        };
        Some(ByteSum { inputs: [affine(a, 0)?, affine(b, 1)?], result: affine(last, 4)?, is_product })
    }

    /// Computes as many elements as `out` has bytes; the bytes of an operand in place are those of `out`.
    #[inline(always)]
    pub(super) fn run<V: Vector>(&self, stored: StorageType, operands: [Option<&[u8]>; 2], out: &mut [u8]) {
        match (stored, self.is_product) {
            (StorageType::U8, false) => self.each::<V, u8, false>(operands, out),
            (StorageType::U8, true) => self.each::<V, u8, true>(operands, out),
            (_, false) => self.each::<V, i8, false>(operands, out),
            (_, true) => self.each::<V, i8, true>(operands, out),
        }
    }

    #[inline(always)]
    fn each<V: Vector, T: Item, const PRODUCT: bool>(&self, operands: [Option<&[u8]>; 2], out: &mut [u8]) {
        let out: &mut [T] = kernel::elements_mut(out);
        let operands = operands.map(|bytes| bytes.map(|bytes| &kernel::elements::<T>(bytes)[..out.len()]));
        let whole = out.len() / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            let x: V = T::read(&operands[0].unwrap_or(out)[at..at + LANES]);
            let y: V = T::read(&operands[1].unwrap_or(out)[at..at + LANES]);
            T::write(self.joined::<V, PRODUCT>(x, y), &mut out[at..at + LANES]);
        }
        if whole < out.len() {
            let x: V = T::read_part(&operands[0].unwrap_or(out)[whole..], 0.0);
            let y: V = T::read_part(&operands[1].unwrap_or(out)[whole..], 0.0);
            T::write_part(self.joined::<V, PRODUCT>(x, y), &mut out[whole..]);
        }
    }

    /// The result for a vector of each operand.
    #[inline(always)]
    fn joined<V: Vector, const PRODUCT: bool>(&self, x: V, y: V) -> V {
        let [[a, b], [c, d], [scale, shift]] = [self.inputs[0], self.inputs[1], self.result];
        let x = x.mul(V::splat(a)).add(V::splat(b));
        let y = y.mul(V::splat(c)).add(V::splat(d));
        let joined = if PRODUCT { x.mul(y) } else { x.add(y) };
        joined.mul(V::splat(scale)).add(V::splat(shift))
    }
}
