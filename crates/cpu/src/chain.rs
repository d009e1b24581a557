//! [`Chain`]: a pointwise program, run tile by tile, whose intermediate values never see memory.
//!
//! A tile is 512 neighbouring output elements. Registers are tiles on the stack (*slots*); `Schedule` gives each value
//! a slot for as long as it is needed. Constants and scalar inputs are written to their slots once per task.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::smallvec;
use types::pointwise::{Binary, Unary};

use crate::kernel::{Fit, KernelFn, Sizes, floats, require};
use crate::math;
use crate::operand::Operands;
use crate::pool::Pool;
use crate::walk::{RANK, Walk, is_row_major, strided_elements};

/// The most inputs of a chain.
pub(crate) const MAX_INPUTS: usize = 8;
/// The most instructions of a chain.
const MAX_INSTRUCTIONS: usize = 64;
/// The most values alive at once. Constants and inputs without any extent live throughout.
const MAX_SLOTS: usize = 32;
const TILE: usize = 512;

/// One instruction. `a`, `b` and `c` are registers: first the inputs, then one per instruction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the type's line names the registers")]
pub enum Instr {
    /// `f(a)`.
    Unary { f: Unary, a: usize },
    /// `f(a, b)`.
    Binary { f: Binary, a: usize, b: usize },
    /// `a b + c`, rounded once where the machine can.
    MulAdd { a: usize, b: usize, c: usize },
    /// The same number everywhere.
    Constant(f32),
}

/// A pointwise program over `f32`; the last register is the output.
///
/// At most 8 inputs, 64 instructions and 32 values alive at once ([`Chain::fits`]). An input has as many elements as
/// the product of the extents along which its stride is not 0. One with the output's own row-major strides may be in
/// place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// The output's extents.
    pub shape: Vec<usize>,
    /// For each input the distance of neighbours, in elements, along each of the output's axes; 0 repeats.
    pub inputs: Vec<Vec<usize>>,
    /// The program.
    pub instructions: Vec<Instr>,
}

impl Instr {
    fn operands(&self) -> ([usize; 3], usize) {
        match *self {
            Instr::Unary { a, .. } => ([a, 0, 0], 1),
            Instr::Binary { a, b, .. } => ([a, b, 0], 2),
            Instr::MulAdd { a, b, c } => ([a, b, c], 3),
            Instr::Constant(_) => ([0; 3], 0),
        }
    }
}

/// Which slot each value has.
struct Schedule {
    slots: [u8; MAX_INPUTS + MAX_INSTRUCTIONS],
    /// Slots that are used at all.
    used: usize,
}

/// How a tile of an input is had.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// From memory, as it lies.
    Direct,
    /// From its slot, where each tile is written first.
    Load,
    /// From its slot, which was written before the first tile.
    Scalar,
}

impl Chain {
    /// Whether the program is small enough and well formed, so that a fusion may stop in time.
    pub fn fits(&self) -> bool {
        self.sizes().is_ok()
    }

    fn is_scalar(&self, input: usize) -> bool {
        self.shape.iter().zip(&self.inputs[input]).all(|(&extent, &stride)| extent == 1 || stride == 0)
    }

    fn schedule(&self) -> Fit<Schedule> {
        let inputs = self.inputs.len();
        let values = inputs + self.instructions.len();
        require(inputs <= MAX_INPUTS, "more than 8 inputs")?;
        require(self.instructions.len() <= MAX_INSTRUCTIONS, "more than 64 instructions")?;
        require(1 <= values, "a chain without registers")?;
        // The instruction after which a value is not needed any more; `usize::MAX` for never.
        let mut last = [0usize; MAX_INPUTS + MAX_INSTRUCTIONS];
        for (index, instr) in self.instructions.iter().enumerate() {
            last[inputs + index] = index;
            let (operands, count) = instr.operands();
            for &operand in &operands[..count] {
                require(operand < inputs + index, "an instruction reads a later register")?;
                last[operand] = index;
            }
        }
        last[values - 1] = usize::MAX;
        let mut schedule = Schedule { slots: [0; MAX_INPUTS + MAX_INSTRUCTIONS], used: 0 };
        let mut free = u32::MAX;
        let mut take = |free: &mut u32| {
            require(*free != 0, "more than 32 values alive")?;
            let slot = free.trailing_zeros();
            *free &= !(1 << slot);
            schedule.used = schedule.used.max(slot as usize + 1);
            Ok(slot as u8)
        };
        let mut slots = [0u8; MAX_INPUTS + MAX_INSTRUCTIONS];
        for value in 0..values {
            let constant = inputs <= value && matches!(self.instructions[value - inputs], Instr::Constant(_));
            if value < inputs || constant {
                slots[value] = take(&mut free)?;
                if constant || self.is_scalar(value) {
                    last[value] = usize::MAX;
                }
            }
        }
        for (index, instr) in self.instructions.iter().enumerate() {
            let (operands, count) = instr.operands();
            let operands = &operands[..count];
            if count == 0 {
                continue;
            }
            let dies = |operand: usize| last[operand] == index;
            let once = |operand: usize| operands.iter().filter(|&&other| other == operand).count() == 1;
            // The product takes its third operand apart, so only the first two can become the result.
            let heir = operands[..count.min(2)].iter().copied().find(|&operand| dies(operand) && once(operand));
            let slot = match heir {
                Some(operand) => slots[operand],
                None => take(&mut free)?,
            };
            slots[inputs + index] = slot;
            for &operand in operands.iter().filter(|&&operand| dies(operand) && Some(operand) != heir) {
                free |= 1 << slots[operand];
            }
            if dies(inputs + index) {
                free |= 1 << slot;
            }
        }
        schedule.slots = slots;
        Ok(schedule)
    }
}

impl KernelFn for Chain {
    const NAME: &'static str = "chain";

    fn sizes(&self) -> Fit<Sizes> {
        require(self.shape.len() <= RANK, "the rank is too large")?;
        require(self.inputs.iter().all(|strides| strides.len() == self.shape.len()), "strides of another rank")?;
        self.schedule()?;
        let mut sizes = Sizes { outputs: smallvec![floats(&self.shape)?], ..Sizes::default() };
        for strides in &self.inputs {
            sizes.inputs.push(floats(&[strided_elements(&self.shape, strides)?])?);
        }
        Ok(sizes)
    }

    fn may_share(&self, input: usize) -> bool {
        self.inputs.get(input).is_some_and(|strides| is_row_major(&self.shape, strides))
    }

    fn run(&self, operands: &Operands, pool: &Pool) {
        let Ok(schedule) = self.schedule() else { return };
        let mut walk = Walk::new(&self.shape);
        let mut access = [Access::Load; MAX_INPUTS];
        for (input, strides) in self.inputs.iter().enumerate() {
            walk.operand(strides.iter().map(|&stride| stride as isize));
            access[input] = if operands.in_place(input) {
                Access::Load
            } else if self.is_scalar(input) {
                Access::Scalar
            } else if is_row_major(&self.shape, strides) {
                Access::Direct
            } else {
                Access::Load
            };
        }
        let program = Program { chain: self, schedule, walk: walk.merge(), access, operands };
        let elements = self.shape.iter().product::<usize>();
        pool.split(elements.div_ceil(TILE), 4, &|tiles| {
            let range = tiles.start * TILE..(tiles.end * TILE).min(elements);
            match program.schedule.used {
                0..=3 => program.run::<3>(range, pool),
                4..=8 => program.run::<8>(range, pool),
                _ => program.run::<MAX_SLOTS>(range, pool),
            }
        });
    }
}

struct Program<'a> {
    chain: &'a Chain,
    schedule: Schedule,
    walk: Walk,
    access: [Access; MAX_INPUTS],
    operands: &'a Operands<'a>,
}

impl Program<'_> {
    fn run<const SLOTS: usize>(&self, range: Range<usize>, pool: &Pool) {
        let mut slots = [[0.0f32; TILE]; SLOTS];
        let inputs = self.chain.inputs.len();
        for input in (0..inputs).filter(|&input| self.access[input] == Access::Scalar) {
            slots[usize::from(self.schedule.slots[input])].fill(self.operands.input::<f32>(input)[0]);
        }
        for (index, instr) in self.chain.instructions.iter().enumerate() {
            if let Instr::Constant(number) = *instr {
                slots[usize::from(self.schedule.slots[inputs + index])].fill(number);
            }
        }
        for start in range.clone().step_by(TILE) {
            self.tile(start..(start + TILE).min(range.end), &mut slots, pool);
        }
    }

    fn tile(&self, range: Range<usize>, slots: &mut [[f32; TILE]], pool: &Pool) {
        let isa = pool.isa();
        let len = range.len();
        let inputs = self.chain.inputs.len();
        for input in (0..inputs).filter(|&input| self.access[input] == Access::Load) {
            self.load(input, range.clone(), &mut slots[usize::from(self.schedule.slots[input])][..len]);
        }
        for (index, instr) in self.chain.instructions.iter().enumerate() {
            let (registers, count) = instr.operands();
            if count == 0 {
                continue;
            }
            let home = usize::from(self.schedule.slots[inputs + index]);
            // Whether a register's value is in the slot that the result takes over.
            let heir = |register: usize| {
                usize::from(self.schedule.slots[register]) == home
                    && !(register < inputs && self.access[register] == Access::Direct)
            };
            let (before, rest) = slots.split_at_mut(home);
            let (into, after) = rest.split_at_mut(1);
            let into = &mut into[0][..len];
            let value = |register: usize| -> &[f32] {
                let slot = usize::from(self.schedule.slots[register]);
                if register < inputs && self.access[register] == Access::Direct {
                    &self.operands.input::<f32>(register)[range.clone()]
                } else if slot < home {
                    &before[slot][..len]
                } else {
                    &after[slot - home - 1][..len]
                }
            };
            let [a, b, c] = registers;
            match *instr {
                Instr::Unary { f, .. } => {
                    if !heir(a) {
                        into.copy_from_slice(value(a));
                    }
                    math::unary(isa, f, into);
                }
                Instr::Binary { f, .. } if heir(b) => math::binary(isa, f, true, into, value(a)),
                Instr::Binary { f, .. } => {
                    if !heir(a) {
                        into.copy_from_slice(value(a));
                    }
                    math::binary(isa, f, false, into, value(b));
                }
                Instr::MulAdd { .. } => {
                    let factor = if heir(b) { a } else { b };
                    if !heir(a) && !heir(b) {
                        into.copy_from_slice(value(a));
                    }
                    math::multiply_add(isa, into, value(factor), value(c));
                }
                Instr::Constant(_) => {}
            }
        }
        let result = inputs + self.chain.instructions.len() - 1;
        // SAFETY: tiles do not overlap, each has one task, and inputs in place were loaded into slots above.
        let out = unsafe { self.operands.output::<f32>().write(range.start, len) };
        if result < inputs && self.access[result] == Access::Direct {
            out.copy_from_slice(&self.operands.input::<f32>(result)[range]);
        } else {
            out.copy_from_slice(&slots[usize::from(self.schedule.slots[result])][..len]);
        }
    }

    /// Writes a tile of an input to its slot.
    fn load(&self, input: usize, range: Range<usize>, into: &mut [f32]) {
        if self.operands.in_place(input) {
            let cells = self.operands.shared::<f32>(input);
            // SAFETY: these are the output elements of this tile, which this task writes later.
            into.copy_from_slice(unsafe { cells.read(range.start, range.len()) });
            return;
        }
        let items = self.operands.input::<f32>(input);
        let (row, step) = (self.walk.row(), self.walk.step(input) as usize);
        let mut at = range.start;
        while at < range.end {
            let (nth, column) = (at / row, at % row);
            let len = (row - column).min(range.end - at);
            let start = self.walk.starts(nth)[input] as usize + column * step;
            let into = &mut into[at - range.start..at - range.start + len];
            match step {
                0 => into.fill(items[start]),
                1 => into.copy_from_slice(&items[start..start + len]),
                _ => into.iter_mut().zip(items[start..].iter().step_by(step)).for_each(|(into, &from)| *into = from),
            }
            at += len;
        }
    }
}
