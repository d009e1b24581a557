//! [`Chain`]: a fused elementwise program, evaluated tile by tile without intermediates in memory.

mod pipes;

use serde::{Deserialize, Serialize};
use types::pointwise::{Binary, Unary};

use self::pipes::{Pipes, Source};
use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements, elements_mut, product};
use crate::simd::storage::{Item, with_rounding};
use crate::simd::vector::Vector;
use crate::simd::{StorageType, math, storage};
use crate::threads::Pool;
use crate::threads::shared_slice::{StackBuffer, for_each_chunk};

/// Elements of a virtual register.
const TILE: usize = 512;
/// Virtual registers: inputs and instructions together.
const REGISTERS: usize = 24;
/// Elements per task.
const CHUNK: usize = 1 << 14;

/// One instruction. Operands are numbered: the inputs first, then the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Instruction {
    /// A function of one operand.
    Unary(Unary, usize),
    /// A function of two operands.
    Binary(Binary, usize, usize),
    /// A constant.
    Constant(f32),
}

impl Instruction {
    /// The operands that it reads.
    fn operands(self) -> impl Iterator<Item = usize> {
        let operands = match self {
            Instruction::Unary(_, a) => [Some(a), None],
            Instruction::Binary(_, a, b) => [Some(a), Some(b)],
            Instruction::Constant(_) => [None, None],
        };
        operands.into_iter().flatten()
    }
}

/// Applies `program` to each element of `shape`. The result is that of the last instruction, or the last input if there
/// is none. Inputs are widened to `f32`, and the result is rounded to its storage type. An input with the output's
/// storage type and strides may share its memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// Extents of the output.
    pub shape: Vec<usize>,
    /// Per input: the stride along each extent, in elements; 0 broadcasts.
    pub strides: Vec<Vec<usize>>,
    /// Storage type of each input.
    pub inputs: Vec<StorageType>,
    /// The instructions.
    pub program: Vec<Instruction>,
    /// Storage type of the result.
    pub result: StorageType,
}

/// Length that an operand must have for these extents and strides; `None` on overflow. It is 0 if the operand moves
/// along an empty extent.
pub(crate) fn reach(shape: &[usize], strides: &[usize]) -> Option<usize> {
    let mut axes = shape.iter().zip(strides);
    if axes.clone().any(|(&extent, &stride)| extent == 0 && stride != 0) {
        return Some(0);
    }
    let last = axes
        .try_fold(0usize, |sum, (&extent, &stride)| sum.checked_add(extent.saturating_sub(1).checked_mul(stride)?))?;
    last.checked_add(1)
}

/// Period after which an operand repeats in a run over `shape`: 1 for a scalar, the whole run for a dense operand, and
/// the inner extents for one that only they move, such as a bias over blocked channels. `None` if the elements do not
/// repeat like this, or the period exceeds a register.
fn period(shape: &[usize], strides: &[usize]) -> Option<usize> {
    let (mut period, mut axis) = (1, shape.len());
    while 0 < axis && (shape[axis - 1] == 1 || strides[axis - 1] == period) {
        axis -= 1;
        period *= shape[axis];
    }
    let repeats = shape[..axis].iter().zip(strides).all(|(&extent, &stride)| stride == 0 || extent == 1);
    (axis == 0 || (repeats && TILE.is_multiple_of(period))).then_some(period)
}

/// The number of innermost extents that every operand walks as one run, and the run's length in elements.
fn repeated_run(shape: &[usize], strides: &[Vec<usize>]) -> (usize, usize) {
    let walks = |axis: &usize| strides.iter().all(|strides| period(&shape[*axis..], &strides[*axis..]).is_some());
    let first = (0..shape.len()).rev().take_while(walks).last().unwrap_or(shape.len());
    (shape.len() - first, shape[first..].iter().product())
}

impl KernelFn for Chain {
    const NAME: &'static str = "chain";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let registers = self.strides.len() + self.program.len();
        if !(1..=REGISTERS).contains(&registers) {
            return Err(InvalidKernel("inputs and instructions must number 1 to 24"));
        }
        if self.inputs.len() != self.strides.len() {
            return Err(InvalidKernel("there must be one list of strides per input"));
        }
        if self.strides.iter().any(|strides| strides.len() != self.shape.len()) {
            return Err(InvalidKernel("there must be one stride per extent"));
        }
        for (ix, instruction) in self.program.iter().enumerate() {
            let known = self.strides.len() + ix;
            if instruction.operands().any(|operand| known <= operand) {
                return Err(InvalidKernel("instructions must read inputs or earlier results"));
            }
        }
        let bytes = |elements: Option<usize>, stored: StorageType| elements?.checked_mul(stored.size());
        let inputs = self.strides.iter().zip(&self.inputs);
        let inputs: Vec<_> = inputs.map(|(strides, &stored)| bytes(reach(&self.shape, strides), stored)).collect();
        Sizes::new(&inputs, bytes(product(&self.shape), self.result), 1)
    }

    fn alignment(&self, input: Option<usize>) -> usize {
        input.map_or(self.result, |ix| self.inputs[ix]).size()
    }

    fn may_share(&self, input: usize) -> bool {
        // In place, each element is read before it is written only if the strides are those of the output.
        let mut want = 1;
        let dense = |strides: &Vec<usize>| {
            self.shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
                let fits = stride == want || extent == 1;
                want *= extent;
                fits
            })
        };
        self.strides.get(input).is_some_and(dense) && self.inputs.get(input) == Some(&self.result)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let out: &mut [u8] = args.outputs[0];
        let (inputs, size) = (args.inputs, self.result.size());
        let (axes, run) = repeated_run(&self.shape, &self.strides);
        if out.is_empty() {
            return;
        }
        let (outer, pipes) = (&self.shape[..self.shape.len() - axes], Pipes::of(self));
        let pipes = &pipes;
        for_each_chunk(pool, out, CHUNK * size, &|number, cells| {
            let mut registers = StackBuffer::<{ TILE * REGISTERS }>::new();
            let registers = registers.zeros(TILE * (self.strides.len() + self.program.len()));
            let filled = &mut [Filled::default(); REGISTERS];
            let (mut at, count) = (0, cells.len() / size);
            while at < count {
                let position = number * CHUNK + at;
                let (row, column) = (position / run, position % run);
                let length = (run - column).min(TILE).min(count - at);
                let place = Place { outer, row, column, axes };
                let (chain, cells) = (self, &mut cells[at * size..(at + length) * size]);
                with_rounding!(pool.isa(), run_tile(
                    chain: &Chain, inputs: &[Operand<'_>], place: Place<'_>, pipes: &Pipes,
                    filled: &mut [Filled; REGISTERS], registers: &mut [f32], cells: &mut [u8]
                ));
                at += length;
            }
        });
    }
}

/// Position of a tile: the row of the outer extents and the column in the run of the inner ones.
#[derive(Clone, Copy)]
struct Place<'a> {
    outer: &'a [usize],
    row: usize,
    column: usize,
    axes: usize,
}

/// Contents of a periodic input's register, kept from the previous tile: the elements from `start`, repeated to
/// `length`.
#[derive(Clone, Copy, Default)]
struct Filled {
    start: usize,
    length: usize,
}

/// Computes a tile; `B` is the item type for `bf16`.
#[inline(always)]
fn run_tile<V: Vector, B: Item>(
    chain: &Chain,
    inputs: &[Operand<'_>],
    place: Place<'_>,
    pipes: &Pipes,
    filled: &mut [Filled; REGISTERS],
    registers: &mut [f32],
    cells: &mut [u8],
) {
    let length = cells.len() / chain.result.size();
    // Dense inputs are read in place, other inputs and all results from registers.
    let mut direct: [Option<Source>; REGISTERS] = [None; REGISTERS];
    for (ix, ((input, strides), &stored)) in inputs.iter().zip(&chain.strides).zip(&chain.inputs).enumerate() {
        let register = &mut registers[ix * TILE..][..length];
        let Operand::Bytes(bytes) = input else {
            storage::widen(V::ISA, stored, cells, register);
            continue;
        };
        let (mut rest, mut start) = (place.row, 0);
        for (&extent, &stride) in place.outer.iter().zip(strides).rev() {
            start += rest % extent * stride;
            rest /= extent;
        }
        let inner = chain.shape.len() - place.axes;
        let run: usize = chain.shape[inner..].iter().product();
        let items = |start: usize, count: usize| &bytes[start * stored.size()..(start + count) * stored.size()];
        let period = period(&chain.shape[inner..], &strides[inner..]);
        if period.is_some_and(|period| period == 1 || period < run) {
            if filled[ix].start == start && length <= filled[ix].length {
                continue;
            }
            filled[ix] = Filled { start, length };
        }
        match period {
            Some(1) => {
                storage::widen(V::ISA, stored, items(start, 1), &mut register[..1]);
                register.fill(register[0]);
            }
            Some(period) if period < run => {
                // Tiles begin at a period's start: runs, tasks and tiles are multiples of it.
                let (first, others) = register.split_at_mut(period.min(length));
                storage::widen(V::ISA, stored, items(start, first.len()), first);
                others.chunks_mut(period).for_each(|part| part.copy_from_slice(&first[..part.len()]));
            }
            _ if stored == StorageType::F32 || pipes.read(chain, ix) => {
                direct[ix] = Some(Source { stored, bytes: items(start + place.column, length) });
            }
            _ => storage::widen(V::ISA, stored, items(start + place.column, length), register),
        }
    }
    for pipe in pipes.iter() {
        let instructions = pipe.instructions();
        let is_last = instructions.end == chain.program.len();
        let (known, rest) = registers.split_at_mut((inputs.len() + instructions.end - 1) * TILE);
        if pipe.together {
            let mut sources = [Source::NOTHING; REGISTERS];
            // Field by field: copying the whole struct would stall on store forwarding of the parts just written.
            for instruction in &chain.program[instructions] {
                for operand in instruction.operands() {
                    sources[operand] = match &direct[operand] {
                        Some(source) => Source { stored: source.stored, bytes: source.bytes },
                        None => Source::numbers(&known[operand * TILE..][..length]),
                    };
                }
            }
            match is_last {
                true => pipes::run::<V, B>(chain, pipe, &sources, chain.result, cells),
                false => {
                    pipes::run::<V, B>(
                        chain,
                        pipe,
                        &sources,
                        StorageType::F32,
                        bytemuck::cast_slice_mut(&mut rest[..length]),
                    );
                }
            }
            continue;
        }
        let result = match is_last && chain.result == StorageType::F32 {
            true => elements_mut(cells),
            false => &mut rest[..length],
        };
        // Instructions outside of pipes read `f32`: inputs of other storage types were widened.
        let operand =
            |number: usize| direct[number].map_or(&known[number * TILE..][..length], |source| elements(source.bytes));
        match chain.program[instructions.start] {
            Instruction::Unary(function, a) => {
                result.copy_from_slice(operand(a));
                math::apply(V::ISA, function, result);
            }
            Instruction::Binary(function, a, b) => {
                math::combine(V::ISA, function, operand(a), operand(b), result);
            }
            Instruction::Constant(number) => result.fill(number),
        }
        if is_last && chain.result != StorageType::F32 {
            storage::narrow(V::ISA, chain.result, &rest[..length], cells);
        }
    }
    if chain.program.is_empty() {
        let last = inputs.len() - 1;
        let register = &registers[last * TILE..][..length];
        storage::narrow(V::ISA, chain.result, direct[last].map_or(register, |source| elements(source.bytes)), cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_extends_over_repeating_operands() {
        // A blocked image, a vector along its channels, a scalar.
        let shape = [2, 3, 5, 5, 16];
        let strides = [vec![1200, 400, 80, 16, 1], vec![0, 16, 0, 0, 1], vec![0; 5]];
        assert_eq!(repeated_run(&shape, &strides), (3, 400));
        assert_eq!(period(&shape[2..], &strides[1][2..]), Some(16));
        assert_eq!(period(&shape[2..], &strides[2][2..]), Some(1));
        assert_eq!(period(&shape[2..], &strides[0][2..]), Some(400));
        assert_eq!(period(&[7, 3], &[0, 1]), None, "three is no part of a register");
        assert_eq!(period(&[7, 3], &[1, 7]), None);
    }

    #[test]
    fn pipes_and_operands_read_twice_match_the_program() {
        use Instruction::{Binary as Two, Constant, Unary as One};
        let affine = |scale: f32, shift: f32| Unary::Affine { scale, shift };
        // Two dense inputs and a scalar; each is read twice by one of the programs.
        let programs = [
            vec![One(affine(2.0, 1.0), 0), One(affine(0.5, -1.0), 1), Two(Binary::Add, 3, 4), One(Unary::Relu, 5)],
            vec![One(affine(2.0, 1.0), 0), One(Unary::Neg, 3), Two(Binary::Mul, 3, 4), Two(Binary::Sub, 5, 0)],
            vec![One(affine(3.0, 0.0), 2), Two(Binary::Add, 3, 1), One(Unary::Abs, 4), Two(Binary::Add, 5, 2)],
            vec![Constant(3.0), One(Unary::Neg, 3), Two(Binary::Max, 4, 0), One(affine(1.0, 2.0), 5)],
        ];
        let (rows, columns) = (3, 700);
        let x = |ix: usize| (ix * 7 % 11) as u8;
        let y = |ix: usize| (ix * 5 % 13) as u8;
        for (program, result) in
            programs.iter().flat_map(|program| [(program, StorageType::F32), (program, StorageType::I8)])
        {
            let strides = vec![vec![columns, 1], vec![columns, 1], vec![0, 0]];
            let inputs = vec![StorageType::U8; 3];
            let chain = Chain { shape: vec![rows, columns], strides, inputs, program: program.clone(), result };
            let [xs, ys]: [Vec<u8>; 2] = [(0..rows * columns).map(x).collect(), (0..rows * columns).map(y).collect()];
            let mut out = vec![0; rows * columns * result.size()];
            let inputs = [&xs[..], &ys, &[4]].map(Operand::Bytes);
            chain.run(Args { inputs: &inputs, outputs: &mut [&mut out], workspace: &mut [] }, &Pool::new(2));
            let mut got = vec![0.0; rows * columns];
            storage::widen(crate::simd::Isa::Portable, result, &out, &mut got);
            for (ix, got) in got.iter().enumerate() {
                let mut registers = vec![f32::from(x(ix)), f32::from(y(ix)), 4.0];
                for instruction in program {
                    registers.push(match *instruction {
                        One(function, a) => function.eval(f64::from(registers[a])) as f32,
                        Two(function, a, b) => function.eval(f64::from(registers[a]), f64::from(registers[b])) as f32,
                        Constant(number) => number,
                    });
                }
                let want = registers[registers.len() - 1];
                let want = if result == StorageType::I8 { want.round_ties_even().clamp(-128.0, 127.0) } else { want };
                assert_eq!(*got, want, "{program:?}, {result:?}, {ix}");
            }
        }
    }

    #[test]
    fn broadcast_operands_are_added_at_their_positions() {
        for (blocks, plane) in [(1, 1), (3, 25), (2, 1300)] {
            let shape = vec![1, blocks, plane, 16];
            let strides = vec![vec![blocks * plane * 16, plane * 16, 16, 1], vec![0, 16, 0, 1]];
            let program = vec![Instruction::Binary(Binary::Add, 0, 1)];
            let chain = Chain { shape, strides, inputs: vec![StorageType::F32; 2], program, result: StorageType::F32 };
            let x: Vec<f32> = (0..blocks * plane * 16).map(|ix| ix as f32).collect();
            let along: Vec<f32> = (0..blocks * 16).map(|ix| 0.25 * ix as f32).collect();
            let mut out = vec![0.0f32; x.len()];
            let inputs = [&x, &along].map(|items| Operand::Bytes(bytemuck::cast_slice(items)));
            let args = Args { inputs: &inputs, outputs: &mut [bytemuck::cast_slice_mut(&mut out)], workspace: &mut [] };
            chain.run(args, &Pool::new(2));
            for (ix, item) in out.iter().enumerate() {
                assert_eq!(*item, x[ix] + along[ix / 16 / plane * 16 + ix % 16]);
            }
        }
    }
}
