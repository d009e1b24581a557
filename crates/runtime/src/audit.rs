//! [`audit`]: a run under observation, byte by byte. The judge of "planned = actual".
//!
//! The plan is run twice, each time with another pattern in every byte that holds nothing: before the run in the whole
//! arena, before each step in the ranges it is to write, after each step in the buffers that died with it. A copy of the
//! arena is kept, and after each step every byte is compared with it:
//!
//! - a byte that changed outside what the step may write was written *outside*;
//! - a byte that the step was to write and that holds the pattern in both runs was *never written* (what a step writes
//!   does not depend on the pattern, and one value cannot equal two patterns);
//! - results that differ between the two runs, or from those of a plain run, mean that a step read bytes that held
//!   nothing, or bytes of a buffer that was dead.
//!
//! Results that take an operand's bytes in place hold that operand before, so for them only the first and last test apply.

use plan::{Operand, Place, Plan, Step};

use crate::{RunError, Session};

/// What a run really touched, in the plan's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Arena bytes that lie under some buffer at some time: what the plan says is used.
    pub planned_bytes: u64,
    /// Of these, bytes that were written.
    pub written_bytes: u64,
    /// Bytes written where the step at hand may not write, summed over steps.
    pub outside_bytes: u64,
    /// What happened to each buffer of the plan.
    pub buffers: Vec<BufferAudit>,
    /// After each step, the bytes of buffers alive then that were written by then.
    pub live_written: Vec<u64>,
    /// The steps that wrote outside, with how many bytes.
    pub outside: Vec<(usize, u64)>,
    /// Whether both patterned runs and a plain one gave the same results, bit by bit.
    pub same_results: bool,
}

/// What a run did to one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferAudit {
    /// Bytes that were written.
    pub written: u64,
    /// Of these, bytes that no pattern vouches for: whatever wrote them was to find something there.
    pub assumed: u64,
    /// Bytes that steps changed while it was alive and was not theirs to write.
    pub outside: u64,
}

impl Audit {
    /// Whether what was used is what was planned.
    pub fn is_equal(&self) -> bool {
        self.outside_bytes == 0 && self.written_bytes == self.planned_bytes && self.same_results
    }
}

/// Runs a session three times on `inputs` (one slice a port), each time from the states that it has, and records which bytes
/// each run touched. The session keeps those states.
///
/// # Errors
/// The device fails. Processors do not.
pub fn audit(session: &mut Session, inputs: &[Vec<u8>]) -> Result<Audit, RunError> {
    let plan = session.plan().clone();
    session.arena()?;
    let states = session.states()?;
    let first = patterned(session, &plan, inputs, &states, 0xA5)?;
    let second = patterned(session, &plan, inputs, &states, 0x5A)?;
    session.write_states(&states)?;
    inputs.iter().enumerate().try_for_each(|(ix, bytes)| session.write_input(ix, bytes))?;
    session.run()?;
    let plain = results(session, &plan)?;
    session.write_states(&states)?;

    let arena_bytes = plan.arena.size().0 as usize;
    let (mut planned, mut written) = (vec![false; arena_bytes], vec![false; arena_bytes]);
    let mut by_buffer: Vec<Vec<usize>> = vec![Vec::new(); plan.buffers.len()];
    first.writes.iter().enumerate().for_each(|(at, write)| by_buffer[write.buffer].push(at));
    let mut buffers = Vec::with_capacity(plan.buffers.len());
    // How many more bytes of live buffers hold something after a step than before it.
    // A plan without steps has one moment, at which the caller writes.
    let mut changes = vec![0i64; plan.steps.len().max(1) + 1];
    for (ix, buffer) in plan.buffers.iter().enumerate() {
        let start = buffer.offset.0 as usize;
        planned[start..start + buffer.size.0 as usize].fill(true);
        let mut state = vec![Byte::Untouched; buffer.size.0 as usize];
        let count = |state: &[Byte]| state.iter().filter(|byte| **byte != Byte::Untouched).count() as i64;
        for &at in &by_buffer[ix] {
            let (a, b) = (&first.writes[at], &second.writes[at]);
            let before = count(&state[a.start..a.start + a.length]);
            for byte in &mut state[a.start..a.start + a.length] {
                *byte = match a.before {
                    Before::Operand if *byte == Byte::Untouched => Byte::Assumed,
                    Before::Operand => *byte,
                    Before::Pattern | Before::Caller => Byte::Seen,
                };
            }
            // A later step may have written what this one left.
            common(&a.untouched, &b.untouched).into_iter().for_each(|at| state[a.start + at] = Byte::Untouched);
            let change = count(&state[a.start..a.start + a.length]) - before;
            changes[a.step] += change;
            changes[buffer.last_step as usize + 1] -= change;
        }
        buffers.push(BufferAudit {
            written: count(&state) as u64,
            assumed: state.iter().filter(|byte| **byte == Byte::Assumed).count() as u64,
            outside: first.outside_of[ix] + second.outside_of[ix],
        });
        let touched = state.iter().enumerate().filter(|(_, byte)| **byte != Byte::Untouched);
        touched.for_each(|(at, _)| written[start + at] = true);
    }
    let count = |flags: &[bool]| flags.iter().filter(|&&flag| flag).count() as u64;
    let mut live = 0i64;
    let live_written = changes[..plan.steps.len()].iter().map(|change| {
        live += change;
        live.max(0) as u64
    });
    Ok(Audit {
        planned_bytes: count(&planned),
        written_bytes: count(&written),
        outside_bytes: first.outside.iter().chain(&second.outside).map(|(_, bytes)| bytes).sum(),
        buffers,
        live_written: live_written.collect(),
        outside: first.outside.iter().chain(&second.outside).copied().collect(),
        same_results: first.results == second.results && second.results == plain,
    })
}

/// What is known of a byte of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    Untouched,
    Assumed,
    Seen,
}

/// What a range held before it was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// The pattern, so that what was not written shows.
    Pattern,
    /// An operand of the step, or what an earlier call of the same node wrote.
    Operand,
    /// Anything: the caller writes all of it.
    Caller,
}

/// What one patterned run showed.
struct Seen {
    writes: Vec<Write>,
    outside: Vec<(usize, u64)>,
    /// By buffer, the bytes of live ones that were written outside.
    outside_of: Vec<u64>,
    results: Vec<Vec<u8>>,
}

/// A range that a step, or the caller, was to write.
struct Write {
    step: usize,
    buffer: usize,
    start: usize,
    length: usize,
    before: Before,
    /// Positions in the range that still hold the pattern.
    untouched: Vec<usize>,
}

fn patterned(
    session: &mut Session,
    plan: &Plan,
    inputs: &[Vec<u8>],
    states: &[Vec<u8>],
    pattern: u8,
) -> Result<Seen, RunError> {
    let arena = session.arena()?;
    arena.fill(pattern);
    let mut writes = Vec::new();
    session.write_states(states)?;
    writes.extend(plan.states.iter().filter_map(|state| write_of(0, &state.port.operand, Before::Caller)));
    for (ix, bytes) in inputs.iter().enumerate() {
        session.write_input(ix, bytes)?;
        writes.extend(write_of(0, &plan.inputs[ix].operand, Before::Caller));
    }
    let mut copy = session.arena()?.to_vec();
    let mut outside = Vec::new();
    let mut outside_of = vec![0; plan.buffers.len()];
    for (ix, step) in plan.steps.iter().enumerate() {
        let mut targets: Vec<(Operand, bool)> = targets(plan, step, session.fills_workspace(ix));
        for (operand, holds) in &mut targets {
            // Several steps may fill one result part by part: what the earlier ones wrote stays.
            let started = |write: &Write| {
                write_of(ix, operand, Before::Operand).is_some_and(|own| {
                    let (a, b) = (own.start..own.start + own.length, write.start..write.start + write.length);
                    own.buffer == write.buffer && a.start < b.end && b.start < a.end
                })
            };
            *holds |= earlier_fill(plan, ix, operand) && writes.iter().any(started);
        }
        let arena = session.arena()?;
        for (operand, in_place) in &targets {
            let range = range(plan, operand).expect("what a step writes lies in the arena");
            if !in_place {
                arena[range.clone()].fill(pattern);
                copy[range].fill(pattern);
            }
        }
        session.run_step(ix)?;

        let arena = session.arena()?;
        for (operand, in_place) in &targets {
            let range = range(plan, operand).expect("what a step writes lies in the arena");
            let before = if *in_place { Before::Operand } else { Before::Pattern };
            if let Some(mut write) = write_of(ix, operand, before) {
                if !in_place {
                    let bytes = arena[range.clone()].iter().enumerate();
                    write.untouched = bytes.filter(|(_, byte)| **byte == pattern).map(|(at, _)| at).collect();
                }
                writes.push(write);
            }
            copy[range.clone()].copy_from_slice(&arena[range]);
        }
        let changed = if *arena == copy { 0 } else { arena.iter().zip(&copy).filter(|(a, b)| a != b).count() };
        if 0 < changed {
            outside.push((ix, changed as u64));
            let alive = |buffer: &plan::Buffer| (buffer.first_step..=buffer.last_step).contains(&(ix as u32));
            for (at, buffer) in plan.buffers.iter().enumerate().filter(|(_, buffer)| alive(buffer)) {
                let range = buffer.offset.0 as usize..(buffer.offset + buffer.size).0 as usize;
                let pairs = arena[range.clone()].iter().zip(&copy[range]);
                outside_of[at] += pairs.filter(|(a, b)| a != b).count() as u64;
            }
            copy.copy_from_slice(arena);
        }
        let last = plan.steps.len() - 1;
        for dead in plan.buffers.iter().filter(|buffer| buffer.last_step as usize == ix && ix < last) {
            let range = dead.offset.0 as usize..(dead.offset + dead.size).0 as usize;
            arena[range.clone()].fill(pattern);
            copy[range].fill(pattern);
        }
    }
    Ok(Seen { writes, outside, outside_of, results: results(session, plan)? })
}

/// Whether the step before writes to the same range for the same node: a result that is filled by several calls.
fn earlier_fill(plan: &Plan, ix: usize, operand: &Operand) -> bool {
    let Some(before) = ix.checked_sub(1).map(|before| &plan.steps[before]) else { return false };
    let same_node = before.scope == plan.steps[ix].scope;
    let overlaps = |other: &Operand| {
        let ranges = plan.arena_range(operand).zip(plan.arena_range(other));
        ranges.is_some_and(|(a, b)| a.start < b.end && b.start < a.end)
    };
    same_node && before.outputs.iter().any(overlaps)
}

/// The ranges a step may write, and whether each holds an operand before, or is not vouched for as a whole.
fn targets(plan: &Plan, step: &Step, fills_workspace: bool) -> Vec<(Operand, bool)> {
    let holds = |operand: &Operand| {
        step.inputs
            .iter()
            .any(|input| matches!(input.place, Place::Buffer(_)) && range(plan, input) == range(plan, operand))
    };
    let outputs = step.outputs.iter().map(|operand| (*operand, holds(operand)));
    outputs.chain(step.workspace.iter().map(|operand| (*operand, !fills_workspace || holds(operand)))).collect()
}

fn range(plan: &Plan, operand: &Operand) -> Option<std::ops::Range<usize>> {
    plan.arena_range(operand).map(|range| range.start as usize..range.end as usize)
}

fn write_of(step: usize, operand: &Operand, before: Before) -> Option<Write> {
    let Place::Buffer(ix) = operand.place else { return None };
    let (start, length) = (operand.offset.0 as usize, operand.size.0 as usize);
    Some(Write { step, buffer: ix.0 as usize, start, length, before, untouched: Vec::new() })
}

fn results(session: &Session, plan: &Plan) -> Result<Vec<Vec<u8>>, RunError> {
    let read = |(ix, port): (usize, &plan::Port)| {
        let mut bytes = vec![0; port.operand.size.0 as usize];
        session.read_output(ix, &mut bytes)?;
        Ok(bytes)
    };
    plan.outputs.iter().enumerate().map(read).collect()
}

/// The numbers in both of two sorted lists.
fn common(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().copied().filter(|item| b.binary_search(item).is_ok()).collect()
}
