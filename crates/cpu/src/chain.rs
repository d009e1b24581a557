//! [`Chain`]: a short program applied to each element, tile by tile, with no intermediate in memory.

use serde::{Deserialize, Serialize};
use types::pointwise::{Binary, Unary};

use crate::Pool;
use crate::isa::with_isa;
use crate::kernel::{Args, KernelFn, Misfit, Operand, Sizes, elements, elements_mut, product};
use crate::math;
use crate::shared::for_each_chunk;

/// Elements of a register.
const TILE: usize = 256;
/// Registers: inputs and instructions together.
const REGISTERS: usize = 24;
/// Elements of a task.
const CHUNK: usize = 1 << 14;

/// One function. Operands are numbered: first the inputs, then the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Instruction {
    /// A function of one operand.
    Unary(Unary, usize),
    /// A function of two operands.
    Binary(Binary, usize, usize),
    /// A number.
    Constant(f32),
}

/// Applies `program` to each element of `shape`; the last instruction is the result. All `f32`. An input whose strides are
/// the output's own may be in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// Extents of the output.
    pub shape: Vec<usize>,
    /// For each input its distance between neighbours along each extent, in elements; 0 where it is broadcast.
    pub strides: Vec<Vec<usize>>,
    /// The instructions.
    pub program: Vec<Instruction>,
}

/// The elements that strides reach, of a shape without extents of 0.
pub(crate) fn reach(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let last = shape
        .iter()
        .zip(strides)
        .try_fold(0usize, |sum, (&extent, &stride)| sum.checked_add((extent - 1).checked_mul(stride)?))?;
    last.checked_add(1)
}

/// How many innermost extents an input walks as one run, and whether it stands still in it.
pub(crate) fn inner_run(shape: &[usize], strides: &[Vec<usize>]) -> (usize, usize) {
    let (mut axes, mut run) = (0, 1);
    for axis in (0..shape.len()).rev() {
        let extent = shape[axis];
        let joins = strides.iter().all(|strides| {
            let inner_still = strides[axis + 1..].iter().zip(&shape[axis + 1..]).all(|(&s, &e)| s == 0 || e == 1);
            let inner_dense = (axis + 1..shape.len()).rev().try_fold(1usize, |want, inner| {
                (strides[inner] == want || shape[inner] == 1).then_some(want * shape[inner])
            });
            let dense = inner_dense.is_some_and(|want| strides[axis] == want || extent == 1);
            let still = inner_still && (strides[axis] == 0 || extent == 1);
            dense || still
        });
        if !joins {
            break;
        }
        axes += 1;
        run *= extent;
    }
    (axes, run)
}

impl KernelFn for Chain {
    const NAME: &'static str = "chain";

    fn sizes(&self) -> Result<Sizes, Misfit> {
        if self.program.is_empty() || REGISTERS < self.strides.len() + self.program.len() {
            return Err(Misfit("a chain has at least one instruction and at most 24 registers"));
        }
        if self.strides.iter().any(|strides| strides.len() != self.shape.len()) {
            return Err(Misfit("strides are given for each extent"));
        }
        for (ix, instruction) in self.program.iter().enumerate() {
            let known = self.strides.len() + ix;
            let fits = match *instruction {
                Instruction::Unary(_, a) => a < known,
                Instruction::Binary(_, a, b) => a < known && b < known,
                Instruction::Constant(_) => true,
            };
            if !fits {
                return Err(Misfit("an instruction reads a register that is not written yet"));
            }
        }
        let inputs: Vec<Option<usize>> = self.strides.iter().map(|strides| reach(&self.shape, strides)).collect();
        Sizes::new(&inputs, product(&self.shape), 4)
    }

    fn may_share(&self, input: usize) -> bool {
        // Read where the output's element is written.
        let mut want = 1;
        let dense = |strides: &Vec<usize>| {
            self.shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
                let fits = stride == want || extent == 1;
                want *= extent;
                fits
            })
        };
        self.strides.get(input).is_some_and(dense)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let out: &mut [f32] = elements_mut(args.outputs[0]);
        let inputs = args.inputs;
        let (axes, run) = inner_run(&self.shape, &self.strides);
        if out.is_empty() {
            return;
        }
        let outer = &self.shape[..self.shape.len() - axes];
        for_each_chunk(pool, out, CHUNK, &|number, cells| {
            let mut at = 0;
            while at < cells.len() {
                let position = number * CHUNK + at;
                let (row, column) = (position / run, position % run);
                let length = (run - column).min(TILE).min(cells.len() - at);
                let place = Place { outer, row, column, axes };
                let (chain, cells) = (self, &mut cells[at..at + length]);
                with_isa!(pool.isa(), run_tile(
                    chain: &Chain, inputs: &[Operand<'_>], place: Place<'_>, cells: &mut [f32]
                ));
                at += length;
            }
        });
    }
}

/// A tile's place: the row of the outer extents and the column in the run of the inner ones.
#[derive(Clone, Copy)]
struct Place<'a> {
    outer: &'a [usize],
    row: usize,
    column: usize,
    axes: usize,
}

#[inline(always)]
fn run_tile(chain: &Chain, inputs: &[Operand<'_>], place: Place<'_>, cells: &mut [f32]) {
    let mut registers = [[0.0f32; TILE]; REGISTERS];
    let length = cells.len();
    for (ix, (input, strides)) in inputs.iter().zip(&chain.strides).enumerate() {
        let register = &mut registers[ix][..length];
        let Operand::Bytes(bytes) = input else {
            register.copy_from_slice(cells);
            continue;
        };
        let items: &[f32] = elements(bytes);
        let (mut rest, mut start) = (place.row, 0);
        for (&extent, &stride) in place.outer.iter().zip(strides).rev() {
            start += rest % extent * stride;
            rest /= extent;
        }
        let inner = chain.shape.len() - place.axes;
        let still =
            strides[inner..].iter().zip(&chain.shape[inner..]).all(|(&stride, &extent)| stride == 0 || extent == 1);
        match still {
            true => register.fill(items[start]),
            false => register.copy_from_slice(&items[start + place.column..][..length]),
        }
    }
    for (ix, instruction) in chain.program.iter().enumerate() {
        let (known, rest) = registers.split_at_mut(inputs.len() + ix);
        let result = &mut rest[0][..length];
        match *instruction {
            Instruction::Unary(function, a) => {
                result.copy_from_slice(&known[a][..length]);
                math::apply(function, result);
            }
            Instruction::Binary(function, a, b) => {
                result.copy_from_slice(&known[a][..length]);
                math::combine(function, result, &known[b][..length]);
            }
            Instruction::Constant(number) => result.fill(number),
        }
    }
    cells.copy_from_slice(&registers[inputs.len() + chain.program.len() - 1][..length]);
}
