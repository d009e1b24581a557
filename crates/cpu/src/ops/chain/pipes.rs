//! [`Pipe`]: consecutive instructions, each of which reads the previous one's result from a vector register.
//!
//! ```text
//!   mul x scale; add . shift; relu .        one pipe: load x, three instructions, store the result
//!   affine a; affine b; add both; affine    two pipes: the function of `a`, and the function of `b` plus it
//! ```
//!
//! A pipe processes four vectors at a time, so that instruction dispatch occurs once per four vectors. Operands and
//! results are read and written in their storage types.

use std::ops::Range;

use types::pointwise::{Binary, Unary};

use super::{Chain, Instruction, REGISTERS};
use crate::kernel;
use crate::simd::math;
use crate::simd::storage::{Item, with_item};
use crate::simd::vector::{LANES, Vector};
use crate::simd::{Isa, StorageType};

/// Vectors per dispatch: with those of a second operand they fit the registers of AVX2, and of AVX-512.
const GROUP: usize = 4;
const GROUP_WIDE: usize = 12;

/// A sequence of instructions.
#[derive(Clone, Copy, Default)]
pub(super) struct Pipe {
    /// Index of the first instruction, and the number of instructions.
    first: usize,
    len: usize,
    /// Whether they are executed as a pipe; otherwise it is a single instruction.
    pub(super) together: bool,
}

impl Pipe {
    pub(super) fn instructions(self) -> Range<usize> {
        self.first..self.first + self.len
    }
}

/// A program divided into pipes, in order.
#[derive(Clone, Copy)]
pub(super) struct Pipes {
    pipes: [Pipe; REGISTERS],
    count: usize,
    /// By operand the number, if it is a constant that only pipes read: it needs no register.
    pub(super) constants: [Option<f32>; REGISTERS],
}

impl Pipes {
    pub(super) fn of(chain: &Chain) -> Pipes {
        let (inputs, program) = (chain.strides.len(), &chain.program);
        let mut pipes = Pipes { pipes: [Pipe::default(); REGISTERS], count: 0, constants: [None; REGISTERS] };
        for (ix, &instruction) in program.iter().enumerate() {
            let Instruction::Constant(number) = instruction else { continue };
            let mut readers = program.iter().filter(|reader| reads(**reader, inputs + ix)).peekable();
            let only_piped = readers.peek().is_some() && readers.all(|reader| is_fast(*reader));
            pipes.constants[inputs + ix] = only_piped.then_some(number);
        }
        // The result of the instruction before that is not a source of a pipe.
        let mut before = usize::MAX;
        for (ix, &instruction) in program.iter().enumerate() {
            if pipes.constants[inputs + ix].is_some() {
                continue;
            }
            let readers = program.iter().filter(|instruction| reads(**instruction, before)).count();
            // The register cannot be both operands of a binary instruction.
            let takes = reads(instruction, before) && !matches!(instruction, Instruction::Binary(_, a, b) if a == b);
            let together = is_fast(instruction);
            match pipes.pipes[..pipes.count].last_mut() {
                Some(pipe) if together && pipe.together && takes && readers == 1 => pipe.len = ix + 1 - pipe.first,
                _ => {
                    pipes.pipes[pipes.count] = Pipe { first: ix, len: 1, together };
                    pipes.count += 1;
                }
            }
            before = inputs + ix;
        }
        pipes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Pipe> {
        self.pipes[..self.count].iter().copied()
    }

    /// Whether only pipes read an operand, in its storage type.
    pub(super) fn read(&self, chain: &Chain, operand: usize) -> bool {
        let mut alone = self.iter().filter(|pipe| !pipe.together).flat_map(Pipe::instructions);
        self.count != 0 && !alone.any(|ix| reads(chain.program[ix], operand))
    }
}

fn reads(instruction: Instruction, operand: usize) -> bool {
    instruction.operands().any(|read| read == operand)
}

/// Whether an instruction takes only a few processor instructions.
fn is_fast(instruction: Instruction) -> bool {
    match instruction {
        Instruction::Unary(function, _) => {
            matches!(
                function,
                Unary::Relu
                    | Unary::Clip { .. }
                    | Unary::Affine { .. }
                    | Unary::Neg
                    | Unary::Abs
                    | Unary::Round
                    | Unary::Sign
                    | Unary::HardSigmoid { .. }
                    | Unary::HardSwish
                    | Unary::LeakyRelu { .. }
                    | Unary::ThresholdedRelu { .. }
                    | Unary::Reciprocal
                    | Unary::Softsign
            )
        }
        Instruction::Binary(function, _, _) => matches!(
            function,
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Max | Binary::Min | Binary::PRelu
        ),
        Instruction::Constant(_) => false,
    }
}

/// The elements of an operand in a tile.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// In memory, in their storage type.
    Items { stored: StorageType, bytes: &'a [u8] },
    /// One number for all.
    Scalar(f32),
    /// The same numbers in each vector.
    Vector(&'a [f32; LANES]),
    /// Where the result is written.
    Out,
}

impl<'a> Source<'a> {
    pub(super) const NOTHING: Source<'static> = Source::Scalar(0.0);

    pub(super) fn numbers(numbers: &'a [f32]) -> Source<'a> {
        Source::Items { stored: StorageType::F32, bytes: bytemuck::cast_slice(numbers) }
    }

    /// Loads G vectors, or as many elements as there are; `out` has elements of the storage type of the result.
    #[inline(always)]
    fn load<V: Vector, const G: usize>(self, out: &[u8], result: StorageType, at: usize, count: usize) -> [V; G] {
        let (stored, bytes) = match self {
            Source::Scalar(number) => return [V::splat(number); G],
            Source::Vector(numbers) => return [V::read(numbers); G],
            Source::Items { stored, bytes } => (stored, bytes),
            Source::Out => (result, out),
        };
        with_item!(stored, T => {
            let items: &[T] = &kernel::elements(bytes)[at..at + count];
            let mut vectors = [V::zero(); G];
            if count == G * LANES {
                for (vector, items) in vectors.iter_mut().zip(items.as_chunks::<LANES>().0) {
                    *vector = T::read(items);
                }
            } else {
                vectors[0] = T::read_part(items, 0.0);
            }
            vectors
        })
    }
}

/// Executes a pipe on the elements of a tile; `B` is the item type for `bf16`.
#[inline(always)]
pub(super) fn run<V: Vector, B: Item>(
    chain: &Chain,
    pipe: Pipe,
    sources: &[Source],
    stored: StorageType,
    out: &mut [u8],
) {
    let length = out.len() / stored.size();
    let mut at = 0;
    while at < length {
        let count = match length - at {
            rest if V::ISA == Isa::Avx512 && GROUP_WIDE * LANES <= rest => {
                group::<V, B, GROUP_WIDE>(chain, pipe, sources, stored, out, at, GROUP_WIDE * LANES);
                GROUP_WIDE * LANES
            }
            rest if GROUP * LANES <= rest => {
                group::<V, B, GROUP>(chain, pipe, sources, stored, out, at, GROUP * LANES);
                GROUP * LANES
            }
            rest => {
                group::<V, B, 1>(chain, pipe, sources, stored, out, at, rest.min(LANES));
                rest.min(LANES)
            }
        };
        at += count;
    }
}

/// The same on G vectors, or on less than one vector.
#[inline(always)]
fn group<V: Vector, B: Item, const G: usize>(
    chain: &Chain,
    pipe: Pipe,
    sources: &[Source],
    stored: StorageType,
    out: &mut [u8],
    at: usize,
    count: usize,
) {
    let inputs = chain.strides.len();
    let mut items: [V; G] = match chain.program[pipe.first] {
        Instruction::Unary(_, a) | Instruction::Binary(_, a, _) => sources[a].load(out, stored, at, count),
        Instruction::Constant(_) => [V::zero(); G],
    };
    // Macros instead of closures: only inlined code is compiled for the ISA.
    macro_rules! each {
        ($x:ident => $body:expr) => {
            for item in &mut items {
                let $x = *item;
                *item = $body;
            }
        };
    }
    // The previous instruction's result, unless this is the first instruction.
    let mut left = usize::MAX;
    for ix in pipe.instructions() {
        match chain.program[ix] {
            Instruction::Unary(Unary::Relu, _) => each!(x => V::zero().max(x)),
            Instruction::Unary(Unary::Clip { min, max }, _) => {
                let [min, max] = [V::splat(min), V::splat(max)];
                each!(x => max.min(min.max(x)));
            }
            Instruction::Unary(Unary::Affine { scale, shift }, _) => {
                let [scale, shift] = [V::splat(scale), V::splat(shift)];
                each!(x => x.mul(scale).add(shift));
            }
            Instruction::Unary(Unary::Neg, _) => each!(x => x.mul(V::splat(-1.0))),
            Instruction::Unary(Unary::Round, _) => each!(x => x.round()),
            Instruction::Unary(Unary::Sign, _) => each!(x => math::sign(x)),
            Instruction::Unary(Unary::LeakyRelu { alpha }, _) => {
                let alpha = V::splat(alpha);
                each!(x => x.if_less(V::zero(), x.mul(alpha), x));
            }
            Instruction::Unary(Unary::HardSigmoid { alpha, beta }, _) => {
                let [alpha, beta] = [V::splat(alpha), V::splat(beta)];
                each!(x => x.mul(alpha).add(beta).at_least(V::zero()).at_most(V::splat(1.0)));
            }
            Instruction::Unary(Unary::HardSwish, _) => each!(x => math::hard_swish(x)),
            Instruction::Unary(Unary::ThresholdedRelu { alpha }, _) => {
                let alpha = V::splat(alpha);
                each!(x => alpha.if_less(x, x, V::zero()));
            }
            Instruction::Unary(Unary::Reciprocal, _) => each!(x => V::splat(1.0).div(x)),
            Instruction::Unary(Unary::Softsign, _) => each!(x => math::softsign(x)),
            Instruction::Unary(_, _) => each!(x => x.abs()),
            Instruction::Binary(function, a, b) => {
                let is_right = b == left;
                let others: [V; G] = sources[if is_right { a } else { b }].load(out, stored, at, count);
                macro_rules! pairs {
                    ($x:ident, $y:ident => $body:expr) => {
                        for (item, $y) in items.iter_mut().zip(others) {
                            let $x = *item;
                            *item = $body;
                        }
                    };
                }
                match (function, is_right) {
                    (Binary::Add, _) => pairs!(x, y => x.add(y)),
                    (Binary::Mul, _) => pairs!(x, y => x.mul(y)),
                    (Binary::Max, _) => pairs!(x, y => x.max_or_nan(y)),
                    (Binary::Min, _) => pairs!(x, y => x.min_or_nan(y)),
                    (Binary::Div, false) => pairs!(x, y => x.div(y)),
                    (Binary::Div, true) => pairs!(x, y => y.div(x)),
                    (Binary::PRelu, false) => pairs!(x, y => x.if_less(V::zero(), x.mul(y), x)),
                    (Binary::PRelu, true) => pairs!(x, y => y.if_less(V::zero(), x.mul(y), y)),
                    (_, false) => pairs!(x, y => x.sub(y)),
                    (_, true) => pairs!(x, y => y.sub(x)),
                }
            }
            // A source of instructions behind it.
            Instruction::Constant(_) => continue,
        }
        left = inputs + ix;
    }
    match stored {
        StorageType::Bf16 => write::<V, B, G>(items, &mut kernel::elements_mut(out)[at..at + count]),
        stored => with_item!(stored, T => write::<V, T, G>(items, &mut kernel::elements_mut(out)[at..at + count])),
    }
}

/// Stores G vectors, or as many elements as there is room for.
#[inline(always)]
fn write<V: Vector, T: Item, const G: usize>(items: [V; G], out: &mut [T]) {
    if out.len() == G * LANES {
        for (item, out) in items.into_iter().zip(out.as_chunks_mut::<LANES>().0) {
            T::write(item, out);
        }
    } else {
        T::write_part(items[0], out);
    }
}
