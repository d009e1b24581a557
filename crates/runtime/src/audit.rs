//! [`audit`]: compares the bytes that a run touches with the plan, byte by byte.
//!
//! The plan runs twice, each time with another pattern in all uninitialized bytes: before the run in the whole arena,
//! before each step in the ranges that it must write, after each step in the bytes of buffers that die with it. A copy of the
//! arena follows the outputs of each step:
//!
//! - A byte that differs from the copy was written *outside*. It differs until a step may overwrite it, so bytes are compared
//!   just before that, and all at the end: the work is proportional to the bytes that steps write. Only if there is such a
//!   byte does the plan run once more, with a comparison of the whole arena after each step, which finds the step.
//! - A byte of an output that holds the pattern in both runs was *never written*: an output does not depend on the
//!   pattern, and one value cannot equal two patterns.
//! - If results differ between the two runs, or from a plain run, a step read uninitialized bytes or a dead buffer.
//!
//! An output that overwrites an operand in place holds that operand before, so only the first and last test apply to it.
//! States hold their values at the start of each run; their values at its end count as results.

use std::ops::Range;

use plan::{Operand, Place, Plan, Step};

use crate::{RunError, Session};

/// The bytes that a run touched, compared with the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Arena bytes that some buffer covers at some step.
    pub planned_bytes: u64,
    /// Of these, bytes that were written.
    pub written_bytes: u64,
    /// Bytes that steps wrote outside their outputs and workspaces, summed over steps.
    pub outside_bytes: u64,
    /// The touched bytes of each buffer of the plan.
    pub buffers: Vec<BufferAudit>,
    /// After each step, the bytes of buffers alive then that were written by then.
    pub live_written: Vec<u64>,
    /// The steps that wrote outside, with the number of bytes.
    pub outside: Vec<(usize, u64)>,
    /// Whether both patterned runs and a plain run gave the same results, bit by bit.
    pub same_results: bool,
}

/// The bytes of one buffer that a run touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferAudit {
    /// Bytes that were written.
    pub written: u64,
    /// Of these, bytes that could not be checked by a pattern, because they held an operand before.
    pub assumed: u64,
    /// Bytes that other steps changed while it was alive.
    pub outside: u64,
}

impl Audit {
    /// Whether the run touched exactly the planned bytes.
    pub fn is_equal(&self) -> bool {
        self.outside_bytes == 0 && self.written_bytes == self.planned_bytes && self.same_results
    }
}

/// Runs a session three times on `inputs` (one slice a port), each time from the states that it has, and records which bytes
/// each run touched. The session keeps those states.
///
/// # Errors
/// The device fails; processors do not.
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
    // By step: the change in written bytes of live buffers. A plan without steps has one moment, when the caller writes.
    let mut changes = vec![0i64; plan.steps.len().max(1) + 1];
    let problem = plan.problem();
    for (ix, buffer) in plan.buffers.iter().enumerate() {
        let start = buffer.offset.0 as usize;
        let pieces = problem.buffers[ix].pieces();
        planned[start..start + buffer.size.0 as usize].fill(true);
        let mut state = vec![Byte::Untouched; buffer.size.0 as usize];
        let mut live = Live::new(&pieces);
        for &at in &by_buffer[ix] {
            let (a, b) = (&first.writes[at], &second.writes[at]);
            live.follow(a.step, &state, &mut changes);
            let before = count(&state[a.start..a.start + a.length]);
            for byte in &mut state[a.start..a.start + a.length] {
                *byte = match a.before {
                    Before::Operand if *byte == Byte::Untouched => Byte::Assumed,
                    Before::Operand => *byte,
                    Before::Pattern | Before::Caller => Byte::Written,
                };
            }
            // A later step may have written the bytes that this one left untouched.
            for range in common(&a.untouched, &b.untouched) {
                state[a.start + range.start..a.start + range.end].fill(Byte::Untouched);
            }
            live.add(a.step, count(&state[a.start..a.start + a.length]) - before, &mut changes);
        }
        live.follow(plan.steps.len().max(1), &state, &mut changes);
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

/// The written bytes among those that a buffer occupies, step by step.
struct Live<'a> {
    pieces: &'a [arena::Piece],
    /// The steps at which the buffer begins or ceases to occupy some bytes, from the last to the first.
    turns: Vec<u32>,
    written: i64,
}

impl Live<'_> {
    fn new(pieces: &[arena::Piece]) -> Live<'_> {
        let mut turns: Vec<u32> = pieces.iter().flat_map(|piece| [piece.lifetime.first, piece.lifetime.end]).collect();
        turns.sort_unstable_by(|a, b| b.cmp(a));
        turns.dedup();
        Live { pieces, turns, written: 0 }
    }

    /// Takes note of all turns up to a step.
    fn follow(&mut self, step: usize, state: &[Byte], changes: &mut [i64]) {
        while let Some(turn) = self.turns.pop_if(|turn| *turn as usize <= step) {
            let piece = self.pieces.iter().find(|piece| piece.lifetime.contains(turn));
            let written = piece.map_or(0, |piece| count(&state[window(piece, state.len())]));
            self.add(turn as usize, written - self.written, changes);
        }
    }

    /// Adds bytes from a step on.
    fn add(&mut self, step: usize, written: i64, changes: &mut [i64]) {
        changes[step] += written;
        self.written += written;
    }
}

/// The bytes of a buffer of `size` bytes that a piece occupies. Its window may be rounded up beyond the size.
fn window(piece: &arena::Piece, size: usize) -> Range<usize> {
    (piece.window.low.0 as usize).min(size)..(piece.window.high.0 as usize).min(size)
}

fn count(state: &[Byte]) -> i64 {
    state.iter().filter(|byte| **byte != Byte::Untouched).count() as i64
}

/// By step, the ranges of the arena that no buffer needs after it.
fn deaths(plan: &Plan) -> Vec<Vec<Range<usize>>> {
    let mut deaths = vec![Vec::new(); plan.step_count() as usize];
    for (buffer, placed) in plan.buffers.iter().zip(plan.problem().buffers) {
        let (start, size) = (buffer.offset.0 as usize, buffer.size.0 as usize);
        let pieces = placed.pieces();
        for (at, piece) in pieces.iter().enumerate() {
            let own = window(piece, size);
            let next = pieces.get(at + 1).filter(|next| next.lifetime.first == piece.lifetime.end);
            let kept = next.map_or(own.end..own.end, |next| window(next, size));
            let (low, high) = (kept.start.clamp(own.start, own.end), kept.end.clamp(own.start, own.end));
            let dead = [own.start..low, high..own.end].into_iter().filter(|range| !range.is_empty());
            let step = piece.lifetime.end as usize - 1;
            deaths[step].extend(dead.map(|range| start + range.start..start + range.end));
        }
    }
    deaths
}

/// The state of a byte of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    Untouched,
    Assumed,
    Written,
}

/// The contents of a range before it was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// The pattern, so that untouched bytes show.
    Pattern,
    /// An operand of the step, or the result of an earlier call of the same node.
    Operand,
    /// Anything: the caller writes every byte.
    Caller,
}

/// The observations of one patterned run.
struct Observations {
    writes: Vec<Write>,
    outside: Vec<(usize, u64)>,
    /// By buffer: bytes that were written outside while it was alive.
    outside_of: Vec<u64>,
    results: Vec<Vec<u8>>,
}

/// A range that a step, or the caller, must write.
struct Write {
    step: usize,
    buffer: usize,
    start: usize,
    length: usize,
    before: Before,
    /// Positions in the range that still hold the pattern, in order.
    untouched: Vec<Range<usize>>,
}

/// When bytes that a step must not change are compared with their copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compared {
    /// Before they are overwritten, and at the end.
    WhenOverwritten,
    /// After each step.
    AfterEachStep,
}

fn patterned(
    session: &mut Session,
    plan: &Plan,
    inputs: &[Vec<u8>],
    states: &[Vec<u8>],
    pattern: u8,
) -> Result<Observations, RunError> {
    let quick = observe(session, plan, inputs, states, pattern, Compared::WhenOverwritten)?;
    if quick.outside.is_empty() {
        return Ok(quick);
    }
    let precise = observe(session, plan, inputs, states, pattern, Compared::AfterEachStep)?;
    // A write that happened once need not happen again.
    Ok(if precise.outside.is_empty() { quick } else { precise })
}

fn observe(
    session: &mut Session,
    plan: &Plan,
    inputs: &[Vec<u8>],
    states: &[Vec<u8>],
    pattern: u8,
    compared: Compared,
) -> Result<Observations, RunError> {
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
    let mut compare = |step: usize, bytes: &[u8], copy: &mut [u8]| {
        outside.extend(difference(bytes, copy).map(|count| (step, count)));
    };
    let mut outside_of = vec![0; plan.buffers.len()];
    let problem = plan.problem();
    let deaths = deaths(plan);
    for (ix, step) in plan.steps.iter().enumerate() {
        let mut targets: Vec<(Operand, bool)> = targets(plan, step, session.fills_workspace(ix));
        for (operand, holds) in &mut targets {
            // Several steps may fill one result slice by slice: earlier slices stay.
            *holds |= earlier_fill(plan, ix, operand);
        }
        let arena = session.arena()?;
        for (operand, in_place) in &targets {
            let range = range(plan, operand).expect("the outputs of a checked plan are in the arena");
            compare(ix, &arena[range.clone()], &mut copy[range.clone()]);
            if !in_place {
                arena[range.clone()].fill(pattern);
                copy[range].fill(pattern);
            }
        }
        session.run_step(ix)?;

        let arena = session.arena()?;
        for (operand, in_place) in &targets {
            let range = range(plan, operand).expect("the outputs of a checked plan are in the arena");
            let before = if *in_place { Before::Operand } else { Before::Pattern };
            if let Some(mut write) = write_of(ix, operand, before) {
                if !in_place {
                    write.untouched = runs_of(pattern, &arena[range.clone()]);
                }
                writes.push(write);
            }
            copy[range.clone()].copy_from_slice(&arena[range]);
        }
        if compared == Compared::AfterEachStep && *arena != copy {
            for (at, (buffer, placed)) in plan.buffers.iter().zip(&problem.buffers).enumerate() {
                let Some(alive) = placed.occupied(ix as u32) else { continue };
                let end = alive.high.min(buffer.size);
                let range = (buffer.offset + alive.low).0 as usize..(buffer.offset + end).0 as usize;
                let pairs = arena[range.clone()].iter().zip(&copy[range]);
                outside_of[at] += pairs.filter(|(a, b)| a != b).count() as u64;
            }
            compare(ix, arena, &mut copy);
        }
        let last = plan.steps.len() - 1;
        for range in deaths[ix].iter().filter(|_| ix < last) {
            compare(ix, &arena[range.clone()], &mut copy[range.clone()]);
            arena[range.clone()].fill(pattern);
            copy[range.clone()].fill(pattern);
        }
    }
    let last = plan.steps.len().saturating_sub(1);
    compare(last, session.arena()?, &mut copy);
    Ok(Observations { writes, outside, outside_of, results: results(session, plan)? })
}

/// The number of bytes that differ, if any do; the copy is equal afterwards.
fn difference(bytes: &[u8], copy: &mut [u8]) -> Option<u64> {
    if bytes == copy {
        return None;
    }
    let changed = bytes.iter().zip(&*copy).filter(|(a, b)| a != b).count();
    copy.copy_from_slice(bytes);
    Some(changed as u64)
}

/// The ranges that hold a pattern.
fn runs_of(pattern: u8, bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in bytes.iter().enumerate().filter(|(_, byte)| **byte == pattern).map(|(at, _)| at) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Whether the step before writes to the same bytes of the same buffer for the same node: a result that is filled by several
/// calls.
fn earlier_fill(plan: &Plan, ix: usize, operand: &Operand) -> bool {
    let Some(before) = ix.checked_sub(1).map(|before| &plan.steps[before]) else { return false };
    let same_node = before.scope == plan.steps[ix].scope;
    let overlaps = |other: &Operand| {
        let (a, b) = (operand.offset, other.offset);
        other.place == operand.place && a < b + other.size && b < a + operand.size
    };
    same_node && before.outputs.iter().any(overlaps)
}

/// The ranges that a step may write, and whether each holds an operand before or may stay partly untouched.
fn targets(plan: &Plan, step: &Step, fills_workspace: bool) -> Vec<(Operand, bool)> {
    let holds = |operand: &Operand| {
        step.inputs
            .iter()
            .any(|input| matches!(input.place, Place::Buffer(_)) && range(plan, input) == range(plan, operand))
    };
    let outputs = step.outputs.iter().map(|operand| (*operand, holds(operand)));
    outputs.chain(step.workspace.iter().map(|operand| (*operand, !fills_workspace || holds(operand)))).collect()
}

fn range(plan: &Plan, operand: &Operand) -> Option<Range<usize>> {
    plan.arena_range(operand).map(|range| range.start as usize..range.end as usize)
}

fn write_of(step: usize, operand: &Operand, before: Before) -> Option<Write> {
    let Place::Buffer(ix) = operand.place else { return None };
    let (start, length) = (operand.offset.0 as usize, operand.size.0 as usize);
    Some(Write { step, buffer: ix.0 as usize, start, length, before, untouched: Vec::new() })
}

/// The outputs, then the states.
fn results(session: &Session, plan: &Plan) -> Result<Vec<Vec<u8>>, RunError> {
    let read = |(ix, port): (usize, &plan::Port)| {
        let mut bytes = vec![0; port.operand.size.0 as usize];
        session.read_output(ix, &mut bytes)?;
        Ok(bytes)
    };
    let outputs = plan.outputs.iter().enumerate().map(read);
    outputs.chain(session.states()?.into_iter().map(Ok)).collect()
}

/// The positions in both of two lists of ranges, each in order.
fn common(a: &[Range<usize>], b: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut common, mut rest) = (Vec::new(), b);
    for range in a {
        while let [first, after @ ..] = rest {
            let both = first.start.max(range.start)..first.end.min(range.end);
            if both.start < both.end {
                common.push(both);
            }
            if range.end < first.end {
                break;
            }
            rest = after;
        }
    }
    common
}

#[cfg(test)]
mod tests;
