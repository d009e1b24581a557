//! [`Chain`]: a fused elementwise program, evaluated tile by tile without intermediates in memory.

mod byte_sums;
mod byte_table;
mod pipes;

use serde::{Deserialize, Serialize};
use types::pointwise::{Binary, Unary};

use self::byte_sums::ByteSum;
use self::pipes::{Pipes, Source};
use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements, elements_mut, product};
use crate::movement::axes::{Axes, Group, RANK};
use crate::simd::storage::{Item, with_item, with_rounding};
use crate::simd::vector::{LANES, Vector};
use crate::simd::{Isa, StorageType, math, storage};
use crate::threads::Pool;
use crate::threads::shared_slice::{StackBuffer, for_each_chunk};

/// Elements of a virtual register.
const TILE: usize = 512;
/// Virtual registers: inputs and instructions together.
const REGISTERS: usize = 24;
/// The shortest run whose elements one pipe reads where they are.
const RUN_MIN: usize = 64;
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
    (axis == 0 || (repeats && period <= TILE)).then_some(period)
}

/// Length of the pattern that a broadcast operand repeats at any strides, such as a bias per channel of small planes: the
/// elements of all extents from the outermost one with a stride on. `None` if they exceed a register.
fn pattern(shape: &[usize], strides: &[usize]) -> Option<usize> {
    let first = shape.iter().zip(strides).position(|(&extent, &stride)| stride != 0 && extent != 1)?;
    Some(shape[first..].iter().product()).filter(|&elements| elements <= TILE)
}

/// The positions of an operand's elements in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Access {
    /// One after the other.
    Dense,
    /// One element.
    Scalar,
    /// This many elements again and again.
    Periodic(usize),
    /// This many elements again and again; a vector holds a whole number of copies. Only pipes read the operand, so its
    /// register is one vector.
    Vector(usize),
    /// A pattern of this many elements that repeats and is not contiguous in memory.
    Pattern(usize),
    /// Any other way.
    Scattered,
}

/// How a chain walks over its elements: tiles of runs.
struct Walk {
    /// The innermost extents that form a run, and their elements.
    axes: usize,
    run: usize,
    /// The positions of each operand's elements in a run.
    access: [Access; REGISTERS],
    /// Elements of a register: a tile, or one vector if no operand is copied to a whole register.
    register: usize,
    /// Elements of a tile: the largest period divides it, and others divide that one, since a period is the product of the
    /// innermost extents.
    tile: usize,
    /// Whether the chain is one pipe that reads all operands where they are: one after the other, or one for each run.
    by_runs: bool,
    /// The chain as one loop, if its operands allow it.
    byte_sum: Option<ByteSum>,
}

impl Walk {
    fn new(chain: &Chain, pipes: &Pipes) -> Walk {
        let inputs = chain.strides.len();
        // The longest run in which every operand is dense or repeats. A short run would give short tiles: then the run is
        // the whole output, and scattered operands are collected into registers.
        let is_regular = |walk: &Walk| {
            let mut access = walk.access[..inputs].iter();
            access.all(|access| !matches!(access, Access::Pattern(_) | Access::Scattered))
        };
        let longest = (0..=chain.shape.len()).map(|first| Walk::from_axis(chain, first)).find(is_regular);
        let is_one_pipe = pipes.iter().count() == 1 && pipes.iter().all(|pipe| pipe.together);
        // One pipe needs no registers, so that tiles may be shorter.
        let are_read = |walk: &Walk| {
            (0..inputs).all(|ix| matches!(walk.access[ix], Access::Dense | Access::Scalar) && pipes.read(chain, ix))
        };
        let is_long = |walk: &Walk| TILE <= walk.run || (RUN_MIN <= walk.run && is_one_pipe && are_read(walk));
        let mut walk = longest.filter(is_long).unwrap_or_else(|| Walk::from_axis(chain, 0));
        walk.tile *= TILE / walk.tile;
        for (ix, access) in walk.access[..inputs].iter_mut().enumerate() {
            if let Access::Periodic(period) = *access
                && LANES.is_multiple_of(period)
                && pipes.read(chain, ix)
            {
                *access = Access::Vector(period);
            }
        }
        // Without operands in whole registers a tile may have any length.
        let in_place = |ix: usize| {
            matches!(walk.access[ix], Access::Dense | Access::Scalar | Access::Vector(_)) && pipes.read(chain, ix)
        };
        if (0..inputs).all(|ix| walk.access[ix] == Access::Dense) {
            walk.byte_sum = ByteSum::of(chain);
        }
        walk.by_runs = is_one_pipe && walk.byte_sum.is_none() && are_read(&walk);
        if walk.byte_sum.is_some() || (is_one_pipe && (0..inputs).all(in_place)) {
            (walk.tile, walk.register) = (CHUNK, LANES);
        }
        walk
    }

    /// The walk whose runs are the extents from `first` on.
    fn from_axis(chain: &Chain, first: usize) -> Walk {
        let run = chain.shape[first..].iter().product();
        let (mut access, mut tile) = ([Access::Scattered; REGISTERS], 1);
        for (access, strides) in access.iter_mut().zip(&chain.strides) {
            *access = Walk::access(&chain.shape[first..], &strides[first..], run);
            if let Access::Periodic(period) | Access::Pattern(period) = *access {
                tile = tile.max(period);
            }
        }
        Walk { axes: chain.shape.len() - first, run, access, register: TILE, tile, by_runs: false, byte_sum: None }
    }

    fn access(shape: &[usize], strides: &[usize], run: usize) -> Access {
        match period(shape, strides) {
            Some(1) => Access::Scalar,
            Some(period) if period < run => Access::Periodic(period),
            Some(_) => Access::Dense,
            None => match pattern(shape, strides).filter(|&elements| elements < run) {
                Some(elements) => Access::Pattern(elements),
                None => Access::Scattered,
            },
        }
    }
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
        if RANK < self.shape.iter().filter(|&&extent| extent != 1).count() {
            return Err(InvalidKernel("there must be at most 16 extents"));
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
        if out.is_empty() {
            return;
        }
        let (size, pipes) = (self.result.size(), Pipes::of(self));
        let walk = Walk::new(self, &pipes);
        let job = Job { chain: self, inputs: args.inputs, walk, pipes };
        let chunk = CHUNK - CHUNK % job.walk.tile;
        if byte_table::BYTES_MIN <= out.len() && self.maps_bytes() {
            let (bytes, mut table) = (std::array::from_fn::<u8, 256, _>(|ix| ix as u8), [0; 256]);
            Job { inputs: &[Operand::Bytes(&bytes)], ..job }.compute(pool.isa(), 0, &mut table);
            for_each_chunk(pool, out, chunk, &|number, cells| {
                let from = match args.inputs[0] {
                    Operand::Bytes(bytes) => Some(&bytes[number * chunk..][..cells.len()]),
                    Operand::InPlace(_) => None,
                };
                byte_table::map(pool.isa(), &table, from, cells);
            });
            return;
        }
        for_each_chunk(pool, out, chunk * size, &|number, cells| job.compute(pool.isa(), number * chunk, cells));
    }
}

impl Chain {
    /// Whether each byte of the result depends on the byte at its place in the only input.
    fn maps_bytes(&self) -> bool {
        let is_of_bytes = self.inputs[..].iter().all(|stored| stored.is_byte()) && self.result.is_byte();
        is_of_bytes && self.inputs.len() == 1 && Walk::from_axis(self, 0).access[0] == Access::Dense
    }
}

impl Job<'_> {
    /// Computes elements from a position on.
    fn compute(&self, isa: Isa, first: usize, cells: &mut [u8]) {
        let (job, walk, size) = (self, &self.walk, self.chain.result.size());
        if walk.by_runs {
            with_rounding!(isa, run_by_runs(job: &Job<'_>, first: usize, cells: &mut [u8]));
            return;
        }
        let mut registers = StackBuffer::<{ TILE * REGISTERS }>::new();
        let registers = registers.zeros(walk.register * (self.inputs.len() + self.chain.program.len()));
        let filled = &mut [Filled::default(); REGISTERS];
        let (mut at, count) = (0, cells.len() / size);
        while at < count {
            let position = first + at;
            let (row, column) = (position / walk.run, position % walk.run);
            let length = (walk.run - column).min(walk.tile).min(count - at);
            let place = Place { row, column };
            let cells = &mut cells[at * size..(at + length) * size];
            with_rounding!(isa, run_tile(
                job: &Job<'_>, place: Place, filled: &mut [Filled; REGISTERS], registers: &mut [f32], cells: &mut [u8]
            ));
            at += length;
        }
    }
}

/// A run of a chain.
struct Job<'a> {
    chain: &'a Chain,
    inputs: &'a [Operand<'a>],
    walk: Walk,
    pipes: Pipes,
}

/// Position of a tile: the row of the outer extents and the column in the run of the inner ones.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    column: usize,
}

/// Contents of a repeating input's register, kept from the previous tile: the elements from `start`, repeated to
/// `length`.
#[derive(Clone, Copy, Default)]
struct Filled {
    start: usize,
    length: usize,
}

/// Computes elements from a position on, run by run: a run of a few hundred elements takes hardly longer than its arithmetic.
/// `B` is the item type for `bf16`.
#[inline(always)]
fn run_by_runs<V: Vector, B: Item>(job: &Job<'_>, first: usize, mut cells: &mut [u8]) {
    let Job { chain, inputs, walk, pipes } = job;
    let Some(pipe) = pipes.iter().next() else { return };
    // The position along the axes around a run, the innermost first.
    let (mut axes, mut along, mut count) = ([0; RANK], [0; RANK], 0);
    let (mut row, mut column) = (first / walk.run, first % walk.run);
    let outer = chain.shape.len() - walk.axes;
    for axis in (0..outer).rev().filter(|&axis| chain.shape[axis] != 1) {
        (axes[count], along[count]) = (axis, row % chain.shape[axis]);
        row /= chain.shape[axis];
        count += 1;
    }
    let (axes, along) = (&axes[..count], &mut along[..count]);
    let mut sources = pipes.constants.map(|number| number.map_or(Source::NOTHING, Source::Scalar));
    while !cells.is_empty() {
        let length = (walk.run - column).min(cells.len() / chain.result.size());
        let (run, later) = cells.split_at_mut(length * chain.result.size());
        for (ix, (input, &stored)) in inputs.iter().zip(&chain.inputs).enumerate() {
            let Operand::Bytes(bytes) = input else {
                sources[ix] = Source::Out;
                continue;
            };
            let start: usize = axes.iter().zip(&*along).map(|(&axis, at)| at * chain.strides[ix][axis]).sum();
            let items = |start: usize, count: usize| &bytes[start * stored.size()..(start + count) * stored.size()];
            sources[ix] = match walk.access[ix] {
                Access::Scalar => with_item!(stored, T => Source::Scalar(elements::<T>(items(start, 1))[0].widen())),
                _ => Source::Items { stored, bytes: items(start + column, length) },
            };
        }
        pipes::run::<V, B>(chain, pipe, &sources, chain.result, run);
        (cells, column) = (later, 0);
        for (&axis, at) in axes.iter().zip(along.iter_mut()) {
            *at += 1;
            if *at < chain.shape[axis] {
                break;
            }
            *at = 0;
        }
    }
}

/// Computes a tile; `B` is the item type for `bf16`.
#[inline(always)]
fn run_tile<V: Vector, B: Item>(
    job: &Job<'_>,
    place: Place,
    filled: &mut [Filled; REGISTERS],
    registers: &mut [f32],
    cells: &mut [u8],
) {
    let Job { chain, inputs, walk, pipes } = job;
    let length = cells.len() / chain.result.size();
    let outer = &chain.shape[..chain.shape.len() - walk.axes];
    // Where pipes and instructions find each input that is not in a register.
    let mut direct: [Option<Source>; REGISTERS] = pipes.constants.map(|number| number.map(Source::Scalar));
    for (ix, ((input, strides), &stored)) in inputs.iter().zip(&chain.strides).zip(&chain.inputs).enumerate() {
        let only_piped = pipes.read(chain, ix);
        let Operand::Bytes(bytes) = input else {
            match only_piped {
                true => direct[ix] = Some(Source::Out),
                false => storage::widen(V::ISA, stored, cells, &mut registers[ix * TILE..][..length]),
            }
            continue;
        };
        let (mut rest, mut start) = (place.row, 0);
        for (&extent, &stride) in outer.iter().zip(strides).rev() {
            start += rest % extent * stride;
            rest /= extent;
        }
        let items = |start: usize, count: usize| &bytes[start * stored.size()..(start + count) * stored.size()];
        match walk.access[ix] {
            Access::Dense => {
                let bytes = items(start + place.column, length);
                match stored == StorageType::F32 || only_piped {
                    true => direct[ix] = Some(Source::Items { stored, bytes }),
                    false => storage::widen(V::ISA, stored, bytes, &mut registers[ix * TILE..][..length]),
                }
            }
            Access::Scalar => {
                let mut number = [0.0];
                storage::widen(V::ISA, stored, items(start, 1), &mut number);
                if only_piped {
                    direct[ix] = Some(Source::Scalar(number[0]));
                } else if filled[ix].start != start || filled[ix].length < length {
                    filled[ix] = Filled { start, length };
                    registers[ix * TILE..][..length].fill(number[0]);
                }
            }
            Access::Periodic(period) | Access::Vector(period) | Access::Pattern(period) => {
                let length = if let Access::Vector(_) = walk.access[ix] { LANES } else { length };
                if filled[ix].start != start || filled[ix].length < length {
                    filled[ix] = Filled { start, length };
                    // Tiles begin at a period's start: runs, tasks and tiles are multiples of it.
                    let register = &mut registers[ix * walk.register..][..length];
                    let (first, others) = register.split_at_mut(period.min(length));
                    match walk.access[ix] {
                        // Only a run over the whole output has patterns, so a tile's column is its position.
                        Access::Pattern(_) => {
                            collect::<V>(stored, bytes, &Axes::of(&chain.shape, strides), place.column, first);
                        }
                        _ => storage::widen(V::ISA, stored, items(start, first.len()), first),
                    }
                    others.chunks_mut(period).for_each(|part| part.copy_from_slice(&first[..part.len()]));
                }
            }
            Access::Scattered => {
                let register = &mut registers[ix * TILE..][..length];
                collect::<V>(stored, bytes, &Axes::of(&chain.shape, strides), place.column, register);
            }
        }
    }
    if let Some(sum) = &walk.byte_sum {
        let bytes = |ix: usize| match direct[ix] {
            Some(Source::Items { bytes, .. }) => Some(bytes),
            _ => None,
        };
        return sum.run::<V>(chain.result, [bytes(0), bytes(1)], cells);
    }
    for pipe in pipes.iter() {
        let instructions = pipe.instructions();
        let is_last = instructions.end == chain.program.len();
        let (known, rest) = registers.split_at_mut((inputs.len() + instructions.end - 1) * walk.register);
        if pipe.together {
            let mut sources = [const { Source::NOTHING }; REGISTERS];
            for instruction in &chain.program[instructions] {
                for operand in instruction.operands() {
                    sources[operand] = match &direct[operand] {
                        // Part by part: a copy of the whole would stall on store forwarding of the parts just written.
                        Some(Source::Items { stored, bytes }) => Source::Items { stored: *stored, bytes },
                        Some(Source::Scalar(number)) => Source::Scalar(*number),
                        Some(Source::Vector(numbers)) => Source::Vector(numbers),
                        Some(Source::Out) => Source::Out,
                        // The result of the instruction before, within the pipe, has no register.
                        None => match (walk.access[operand], known.get(operand * walk.register..)) {
                            (_, None) => Source::NOTHING,
                            (Access::Vector(_), Some(known)) => {
                                Source::Vector(known.first_chunk().expect("a register has room for a vector"))
                            }
                            (_, Some(known)) => Source::numbers(&known[..length.min(known.len())]),
                        },
                    };
                }
            }
            match is_last {
                true => pipes::run::<V, B>(chain, pipe, &sources, chain.result, cells),
                false => {
                    // An input in place is read from the output's cells, so it becomes a source of its own.
                    for source in sources.iter_mut().filter(|source| matches!(source, Source::Out)) {
                        *source = Source::Items { stored: chain.result, bytes: cells };
                    }
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
        let operand = |number: usize| match direct[number] {
            Some(Source::Items { bytes, .. }) => elements(bytes),
            _ => &known[number * TILE..][..length],
        };
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
        let numbers = match direct[last] {
            Some(Source::Items { bytes, .. }) => elements(bytes),
            _ => &registers[last * TILE..][..length],
        };
        storage::narrow(V::ISA, chain.result, numbers, cells);
    }
}

/// Widens the elements from a position on to a register.
#[inline(always)]
fn collect<V: Vector>(stored: StorageType, bytes: &[u8], axes: &Axes, position: usize, register: &mut [f32]) {
    let stride = axes.last().stride;
    with_item!(stored, T => {
        let items: &[T] = elements(bytes);
        for Group { range, length, start, step } in axes.parts(position, register.len()) {
            for (part, to) in register[range].chunks_mut(length).enumerate() {
                let items = &items[start + part * step..];
                let (vectors, rest) = to.as_chunks_mut::<LANES>();
                let done = vectors.len() * LANES;
                match stride {
                    0 => {
                        let number = V::splat(items[0].widen());
                        vectors.iter_mut().for_each(|to| number.write(to));
                        rest.fill(items[0].widen());
                    }
                    1 => {
                        let (items, last) = items[..done + rest.len()].split_at(done);
                        for (to, items) in vectors.iter_mut().zip(items.as_chunks::<LANES>().0) {
                            T::read::<V>(items).write(to);
                        }
                        rest.iter_mut().zip(last).for_each(|(to, item)| *to = item.widen());
                    }
                    _ => {
                        let items = items.iter().step_by(stride);
                        to.iter_mut().zip(items).for_each(|(to, item)| *to = item.widen());
                    }
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_have_long_tiles_of_whole_periods() {
        let chain = |shape: &[usize], strides: &[&[usize]]| Chain {
            shape: shape.to_vec(),
            strides: strides.iter().map(|strides| strides.to_vec()).collect(),
            inputs: vec![StorageType::F32; strides.len()],
            program: (1..strides.len())
                .map(|ix| Instruction::Binary(Binary::Div, ix, if ix == 1 { 0 } else { strides.len() + ix - 2 }))
                .collect(),
            result: StorageType::F32,
        };
        let walk = |shape: &[usize], strides: &[&[usize]]| {
            let chain = chain(shape, strides);
            let walk = Walk::new(&chain, &Pipes::of(&chain));
            (walk.axes, walk.run, walk.tile, walk.access[..strides.len()].to_vec())
        };
        use Access::{Dense, Pattern, Periodic, Scalar, Scattered, Vector};
        // A blocked image, a vector along its channels, a scalar.
        let blocked: [&[usize]; 3] = [&[1200 * 30, 400 * 30, 80, 16, 1], &[0, 16, 0, 0, 1], &[0; 5]];
        let found = walk(&[2, 3, 150, 5, 16], &blocked);
        assert_eq!(found, (3, 12_000, CHUNK, vec![Dense, Vector(16), Scalar]));
        // Rows of three pixels, scaled per channel: a tile is 170 pixels.
        let found = walk(&[50, 40, 3], &[&[120, 3, 1], &[0, 0, 1]]);
        assert_eq!(found, (3, 6000, 510, vec![Dense, Periodic(3)]));
        // Short rows, and a column that is broadcast along them.
        let found = walk(&[50, 56], &[&[56, 1], &[1, 0]]);
        assert_eq!(found, (2, 2800, 512, vec![Dense, Scattered]));
        // Small planes, scaled per channel.
        let found = walk(&[50, 6, 7], &[&[42, 7, 1], &[0, 1, 0]]);
        assert_eq!(found, (3, 2100, 504, vec![Dense, Pattern(42)]));
        // Short rows, such a column, and two operands that repeat.
        let found = walk(&[50, 4, 43], &[&[172, 43, 1], &[0, 0, 1], &[0, 43, 1], &[43, 0, 1]]);
        assert_eq!(found, (3, 8600, 344, vec![Dense, Periodic(43), Periodic(172), Scattered]));
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
            vec![One(affine(20.0, 0.5), 0), One(Unary::Round, 3), Two(Binary::Add, 4, 1), One(Unary::Round, 5)],
            vec![Constant(3.0), One(Unary::Neg, 3), Two(Binary::Max, 4, 0), One(affine(1.0, 2.0), 5)],
            // Constants between the instructions of a pipe, on either side, and one that a function reads as well.
            vec![Constant(2.0), Two(Binary::Mul, 0, 3), Constant(5.0), Two(Binary::Sub, 5, 4)],
            vec![Constant(2.0), Two(Binary::Mul, 3, 1), Constant(0.5), Two(Binary::Add, 4, 5), Two(Binary::Mul, 6, 5)],
            vec![Constant(2.0), Two(Binary::Mul, 0, 3), Two(Binary::Mod, 4, 3), Two(Binary::Add, 5, 3)],
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
            storage::widen(Isa::Portable, result, &out, &mut got);
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
    fn columns_of_small_planes_are_read_at_their_positions() {
        // More than a task, and a shorter last tile.
        let (images, channels, plane) = (501, 6, 7);
        for (program, stored) in [
            (vec![Instruction::Binary(Binary::Mul, 0, 1)], StorageType::F32),
            (vec![Instruction::Unary(Unary::Tanh, 1), Instruction::Binary(Binary::Mul, 0, 2)], StorageType::U8),
        ] {
            let shape = vec![images, channels, plane];
            let strides = vec![vec![channels * plane, plane, 1], vec![0, 1, 0]];
            let chain =
                Chain { shape, strides, inputs: vec![StorageType::U8, stored], program, result: StorageType::F32 };
            let x: Vec<u8> = (0..images * channels * plane).map(|ix| (ix * 7 % 251) as u8).collect();
            let factors: Vec<f32> = (0..channels).map(|channel| channel as f32 + 1.0).collect();
            let bytes: Vec<u8> = factors.iter().map(|&factor| factor as u8).collect();
            let column = if stored == StorageType::U8 { &bytes[..] } else { bytemuck::cast_slice(&factors) };
            let mut out = vec![0.0f32; x.len()];
            chain.run(
                Args {
                    inputs: &[Operand::Bytes(&x), Operand::Bytes(column)],
                    outputs: &mut [bytemuck::cast_slice_mut(&mut out)],
                    workspace: &mut [],
                },
                &Pool::new(2),
            );
            for (ix, (&got, &x)) in out.iter().zip(&x).enumerate() {
                let factor = factors[ix / plane % channels];
                let factor = if stored == StorageType::U8 { factor.tanh() } else { factor };
                let want = f32::from(x) * factor;
                assert!((got - want).abs() <= 1e-5 * want, "{ix}: {got} instead of {want}");
            }
        }
    }

    #[test]
    fn broadcast_operands_are_read_at_their_positions() {
        use Instruction::{Binary as Two, Unary as One};
        // In one pipe; in one pipe and a function next to it; with an operand that is read by the function.
        let programs: [&[Instruction]; 3] = [
            &[Two(Binary::Mul, 0, 1), Two(Binary::Add, 3, 2), One(Unary::Relu, 4)],
            &[Two(Binary::Sub, 1, 0), One(Unary::Sigmoid, 3), Two(Binary::Add, 4, 2)],
            &[One(Unary::Tanh, 1), Two(Binary::Mul, 0, 3), Two(Binary::Add, 2, 4)],
        ];
        for lanes in [16, 8, 4, 3, 2] {
            for (blocks, plane) in [(1, 1), (3, 25), (2, 1300)] {
                let (period, image) = (plane * lanes, blocks * plane * lanes);
                for (program, stored) in programs.iter().flat_map(|&program| {
                    [StorageType::F32, StorageType::Bf16, StorageType::F16].map(|stored| (program, stored))
                }) {
                    let shape = vec![2, blocks, plane, lanes];
                    let along = vec![0, lanes, 0, 1];
                    let strides = vec![vec![image, period, lanes, 1], along.clone(), along];
                    let inputs = vec![stored, StorageType::F32, StorageType::F32];
                    let chain = Chain { shape, strides, inputs, program: program.to_vec(), result: stored };
                    let x: Vec<f32> = (0..2 * image).map(|ix| (ix * 7 % 37) as f32 * 0.125 - 2.0).collect();
                    let vector = |from: usize| -> Vec<f32> {
                        (0..blocks * lanes).map(|ix| ((ix + from) % 23) as f32 * 0.25 - 2.5).collect()
                    };
                    let (a, b) = (vector(0), vector(5));
                    let mut bytes = vec![0; x.len() * stored.size()];
                    storage::narrow(Isa::Portable, stored, &x, &mut bytes);
                    let mut out = vec![0; bytes.len()];
                    let inputs = [&bytes[..], bytemuck::cast_slice(&a), bytemuck::cast_slice(&b)].map(Operand::Bytes);
                    chain.run(Args { inputs: &inputs, outputs: &mut [&mut out], workspace: &mut [] }, &Pool::new(2));
                    let mut got = vec![0.0; x.len()];
                    storage::widen(Isa::Portable, stored, &out, &mut got);
                    for (ix, got) in got.iter().enumerate() {
                        let at = ix / period % blocks * lanes + ix % lanes;
                        let mut registers = vec![f64::from(x[ix]), f64::from(a[at]), f64::from(b[at])];
                        for instruction in program {
                            registers.push(match *instruction {
                                One(function, a) => function.eval(registers[a]),
                                Two(function, a, b) => function.eval(registers[a], registers[b]),
                                Instruction::Constant(number) => f64::from(number),
                            });
                        }
                        let want = registers[registers.len() - 1];
                        // Products and sums of these multiples of 1/32 are exact.
                        let is_exact = std::ptr::eq(program, programs[0]);
                        let bound = match stored {
                            StorageType::F32 if is_exact => 0.0,
                            StorageType::F32 => 4e-6 * (1.0 + want.abs()),
                            StorageType::Bf16 => 5e-3 * (1.0 + want.abs()),
                            _ => 1e-3 * (1.0 + want.abs()),
                        };
                        let place = format!("{program:?}, {stored:?}, {lanes} of {blocks} x {plane}, {ix}");
                        assert!((f64::from(*got) - want).abs() <= bound, "{place}: {got}, not {want}");
                    }
                }
            }
        }
    }
}
