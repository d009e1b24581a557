//! Makes a [`Report`] from a plan.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use plan::image::PAGE;
use plan::{
    Alternative, Buffer, BufferIx, ConstantIx, Operand, Place, Plan, RefusedReason, RefusedSharing, ResidentConstant,
    Sharing, ValueSpan,
};
use types::{Bytes, Layout, Role};

use super::{
    AlternativeRow, AtPeak, BufferRow, ConstantRow, FORMAT, FreeRange, Origin, PieceRow, Planned, RefusedRow, Report,
    ResidentConstantRow, ResidentRow, StepRow, Touch, VERSION, ValueRow, Why, lives, opportunity, saved, spans,
};

impl Report {
    /// The report of a plan without measurements. The plan must have passed `plan::check`.
    pub fn new(plan: &Plan) -> Report {
        let arena = &plan.arena;
        let touches = Touches::new(plan);
        let problem = plan.problem();
        let buffers: Vec<BufferRow> =
            plan.buffers.iter().enumerate().map(|(ix, buffer)| row(plan, ix, buffer, &touches, &problem)).collect();
        let timeline = timeline(&buffers, plan.step_count(), arena.size().0);
        let live = |step: usize| arena.size().0 - timeline[Role::Free.name()][step];
        let steps = plan.steps.iter().enumerate().map(|(ix, step)| StepRow {
            scope: step.scope.to_string(),
            kernel: step.kernel.clone(),
            label: step.label.clone(),
            flops: step.flops,
            live_bytes: live(ix),
        });
        let section = Section::new(plan);
        let mut planned = Planned {
            arena_bytes: arena.size().0,
            alignment_bytes: arena.alignment.0.max(1),
            lower_bound_bytes: arena.certificate.lower_bound.0,
            least_bytes: arena.certificate.least.0,
            state: Some(arena.certificate.proof()),
            optimal: arena.certificate.is_optimal(),
            order: (&plan.order).into(),
            any_kernels_bytes: plan.any_kernels.0,
            peak_step: arena.peak_step,
            weights_bytes: plan.constants_size.0,
            constants_padding_bytes: section.padding,
            constants_other_bytes: section.other,
            by_role: BTreeMap::new(),
            free_at_peak: Vec::new(),
            alive_at_peak: Vec::new(),
            alternatives: plan.alternatives.iter().map(|other| alternative(plan, other)).collect(),
            limit: plan.limit.as_ref().map(Into::into),
            resident: resident(plan),
            opportunities: Vec::new(),
            saved: saved::saved(plan),
            recomputed: saved::recomputed(plan),
            steps: steps.collect(),
            timeline,
            buffers,
            constants: section.rows,
        };
        finish(&mut planned);
        planned.opportunities = opportunity::find(&planned);
        Report {
            format: FORMAT.into(),
            version: VERSION,
            origin: Origin::Plan,
            model: plan.model.clone(),
            target: plan.target.clone(),
            batch: plan.batch,
            planned,
            measured: None,
            unnamed: Vec::new(),
        }
    }
}

/// Derives roles, free ranges and buffers at the peak from buffers, timeline and constants.
pub(crate) fn finish(planned: &mut Planned) {
    let step = planned.peak_step;
    let at_peak = planned.timeline.iter().filter_map(|(role, live)| Some((role.clone(), *live.get(step as usize)?)));
    let mut by_role: BTreeMap<String, u64> = at_peak.filter(|(_, bytes)| 0 < *bytes).collect();
    for constant in planned.constants.iter().filter(|constant| 0 < constant.own_bytes) {
        *by_role.entry(constant.role.clone()).or_default() += constant.own_bytes;
    }
    planned.by_role = by_role;
    planned.free_at_peak = free_ranges(planned, step);
    let alive = planned.buffers.iter().enumerate();
    let alive = alive.filter_map(|(ix, buffer)| Some((ix, buffer, buffer.piece_at(step)?)));
    let mut alive: Vec<AtPeak> = alive
        .map(|(ix, buffer, piece)| AtPeak {
            buffer: ix,
            tag: buffer.tag.clone(),
            bytes: buffer.own_bytes(piece),
            padded_bytes: piece.padded_bytes,
            why: Why::new(planned, buffer, step),
        })
        .collect();
    alive.sort_by_key(|row| (Reverse(row.bytes), planned.buffers[row.buffer].offset));
    planned.alive_at_peak = alive;
}

/// Ranges of the arena that no buffer covers at a step.
fn free_ranges(planned: &Planned, step: u32) -> Vec<FreeRange> {
    let mut live: Vec<(u64, u64)> = planned
        .buffers
        .iter()
        .filter_map(|buffer| Some((buffer, buffer.piece_at(step)?)))
        .filter(|(_, piece)| 0 < piece.padded_bytes)
        .map(|(buffer, piece)| (buffer.offset + piece.offset, buffer.offset + piece.end()))
        .collect();
    live.sort_unstable();
    live.push((planned.arena_bytes, planned.arena_bytes));
    let mut end = 0;
    let mut ranges = Vec::new();
    for (start, next) in live {
        if end < start {
            ranges.push(FreeRange { offset: end, bytes: start - end });
        }
        end = end.max(next);
    }
    ranges
}

/// For each role the live bytes at each step, padding and free bytes included.
pub(crate) fn timeline(buffers: &[BufferRow], steps: u32, arena_bytes: u64) -> BTreeMap<String, Vec<u64>> {
    let mut changes: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for buffer in buffers {
        let mut add = |role, bytes: u64, first: u32, last: u32| {
            let changes = changes.entry(role).or_insert_with(|| vec![0; steps as usize + 1]);
            changes[first as usize] += bytes as i64;
            changes[last as usize + 1] -= bytes as i64;
        };
        for span in spans(buffer) {
            add(buffer.role_of(span.value), span.bytes, span.first_step, span.last_step);
        }
        for piece in buffer.pieces() {
            let padding = piece.padded_bytes - buffer.own_bytes(piece);
            add(Role::Padding.name(), padding, piece.first_step, piece.last_step);
        }
    }
    let mut free = vec![arena_bytes; steps as usize];
    let mut timeline = BTreeMap::new();
    for (role, changes) in changes {
        let mut live = 0i64;
        let sums = changes[..steps as usize].iter().map(|change| {
            live += change;
            live as u64
        });
        let sums: Vec<u64> = sums.collect();
        free.iter_mut().zip(&sums).for_each(|(free, live)| *free -= live);
        timeline.insert(role.to_string(), sums);
    }
    timeline.insert(Role::Free.name().to_string(), free);
    timeline
}

/// For each buffer, the first step that writes it and the last that reads it; for each constant, the first step that
/// reads it.
struct Touches {
    writer: Vec<Option<u32>>,
    reader: Vec<Option<u32>>,
    constant: Vec<Option<u32>>,
}

impl Touches {
    fn new(plan: &Plan) -> Touches {
        let none = vec![None; plan.buffers.len()];
        let constant = vec![None; plan.constants.len()];
        let mut touches = Touches { writer: none.clone(), reader: none, constant };
        let buffer = |operand: &Operand| match operand.place {
            Place::Buffer(ix) => Some(ix.0 as usize),
            Place::Constant(_) => None,
        };
        for (at, step) in plan.steps.iter().enumerate() {
            let at = at as u32;
            for operand in &step.inputs {
                match operand.place {
                    Place::Buffer(ix) => touches.reader[ix.0 as usize] = Some(at),
                    Place::Constant(ix) => {
                        touches.constant[ix.0 as usize].get_or_insert(at);
                    }
                }
            }
            for ix in step.outputs.iter().chain(&step.workspace).filter_map(buffer) {
                touches.writer[ix].get_or_insert(at);
            }
        }
        // The caller writes inputs before any step, and an earlier run writes states.
        let given = plan.inputs.iter().chain(plan.states.iter().map(|state| &state.port));
        given.filter_map(|port| buffer(&port.operand)).for_each(|ix| touches.writer[ix] = None);
        touches
    }
}

/// The constants in memory at each step.
fn resident(plan: &Plan) -> Option<ResidentRow> {
    let residency = plan.residency.as_ref()?;
    let used: Vec<Vec<ConstantIx>> = plan.steps.iter().map(|step| plan.constants_of(step)).collect();
    let row = |own: &ResidentConstant| {
        let constant = &plan.constants[own.constant.0 as usize];
        let mut steps = own.first_step..=own.last_step;
        let first_use = steps.find(|&step| used[step as usize].contains(&own.constant)).unwrap_or(own.last_step);
        ResidentConstantRow {
            name: constant.tag.scope.to_string(),
            scope: plan.steps[first_use as usize].scope.to_string(),
            bytes: plan.resident_size(own).0,
            offset: own.offset.0,
            first_step: own.first_step,
            first_use,
            last_step: own.last_step,
        }
    };
    let rows = |own: &[ResidentConstant]| own.iter().map(row).collect::<Vec<_>>();
    let (kept, reads) = (rows(&residency.kept), rows(&residency.reads));
    let sum = |rows: &[ResidentConstantRow]| rows.iter().map(|row| row.bytes).sum::<u64>();
    let mut bytes = vec![sum(&kept); plan.steps.len()];
    for read in &reads {
        bytes[read.first_step as usize..=read.last_step as usize].iter_mut().for_each(|bytes| *bytes += read.bytes);
    }
    Some(ResidentRow {
        limit_bytes: residency.limit.0,
        block_bytes: residency.size.0,
        kept_bytes: sum(&kept),
        read_bytes: plan.read_size().0,
        least_read_bytes: plan.least_read_size().0,
        bytes,
        kept,
        reads,
    })
}

/// Costs of CPUs are picoseconds; those of other targets only have relations.
fn alternative(plan: &Plan, other: &Alternative) -> AlternativeRow {
    let is_timed = plan.target.starts_with("cpu");
    let added = other.other_time as f64 - other.time as f64;
    AlternativeRow {
        scope: other.scope.to_string(),
        change: other.change.clone(),
        saves_bytes: other.saves.0,
        time_ratio: other.other_time as f64 / other.time.max(1) as f64,
        adds_us: is_timed.then_some(added / 1e6),
    }
}

fn row(plan: &Plan, ix: usize, buffer: &Buffer, touches: &Touches, problem: &arena::Problem) -> BufferRow {
    let touch = |step: Option<u32>| step.map(|step| Touch { step, scope: plan.steps[step as usize].scope.to_string() });
    let value = |held: &ValueSpan| ValueRow {
        name: held.name.clone(),
        dtype: held.dtype.to_string(),
        shape: held.shape.to_vec(),
        layout: held.layout.to_string(),
        offset: held.offset.0,
        bytes: held.size().0,
        padding_bytes: (held.size() - Layout::RowMajor.size(&held.shape, held.dtype)).0,
        first_step: held.first_step,
        last_step: held.last_step,
        held_until: held.last_step,
        role: buffer.tag.role.name().into(),
        sharing: sharing(held.sharing).into(),
    };
    let placed = &problem.buffers[ix];
    let piece = |piece: arena::Piece| PieceRow {
        first_step: piece.lifetime.first,
        last_step: piece.lifetime.end - 1,
        offset: piece.window.low.0,
        padded_bytes: (piece.window.high - piece.window.low).0,
    };
    let mut row = BufferRow {
        tag: buffer.tag.to_string(),
        scope: buffer.tag.scope.to_string(),
        role: buffer.tag.role.name().into(),
        bytes: buffer.size.0,
        padded_bytes: buffer.size.align_up(Bytes(plan.arena.alignment.0.max(1))).0,
        offset: buffer.offset.0,
        first_step: buffer.first_step,
        last_step: buffer.last_step,
        persistence: buffer.persistence,
        pieces: match placed.gaps.is_empty() {
            true => Vec::new(),
            false => placed.pieces().into_iter().map(piece).collect(),
        },
        values: buffer.values.iter().map(value).collect(),
        writer: touch(touches.writer[ix]),
        last_reader: touch(touches.reader[ix]),
        refused: buffer.refused.iter().map(refused).collect(),
        actual: None,
    };
    lives::resolve(&mut row, &results_in(plan, ix));
    row
}

/// The ranges of a buffer that are results of the model.
fn results_in(plan: &Plan, ix: usize) -> Vec<(u64, u64)> {
    let operands = plan.outputs.iter().map(|port| &port.operand);
    let own = operands.filter(|operand| operand.place == Place::Buffer(BufferIx(ix as u32)));
    own.map(|operand| (operand.offset.0, operand.offset.0 + operand.size.0)).collect()
}

fn sharing(sharing: Sharing) -> &'static str {
    match sharing {
        Sharing::Own => "own",
        Sharing::View => "view",
        Sharing::ConcatSlice => "part",
        Sharing::InPlace => "in_place",
    }
}

fn refused(refused: &RefusedSharing) -> RefusedRow {
    let RefusedSharing { node, of, sharing: wanted, reason } = refused;
    let at = if node.as_str() == of { String::new() } else { format!(" at `{node}`") };
    let refused = match wanted {
        Sharing::ConcatSlice => format!("not written inside `{of}`{at}"),
        _ => format!("not in the bytes of `{of}`{at}"),
    };
    let (reason, why) = match reason {
        RefusedReason::ReadLater { by } => ("read_later", format!("`{by}` still reads them")),
        RefusedReason::Output => ("output", "they are a result of the model".into()),
        RefusedReason::Given => {
            ("given", "the bytes that would have to move are the caller's, a state's or a constant's".into())
        }
        RefusedReason::Kernel => ("kernel", "the kernel still reads while it writes".into()),
        RefusedReason::Occupied => ("occupied", "the block is shared with others and cannot move".into()),
        RefusedReason::Peak { more } => ("peak", format!("the peak would grow by {more}")),
    };
    let sharing = sharing(*wanted).into();
    RefusedRow {
        node: node.to_string(),
        of: of.clone(),
        sharing,
        reason: reason.into(),
        text: format!("{refused}: {why}"),
    }
}

/// The constants' section, byte by byte: constants, padding, and constants of other batches.
struct Section {
    rows: Vec<ConstantRow>,
    padding: u64,
    other: u64,
}

impl Section {
    fn new(plan: &Plan) -> Section {
        let touches = Touches::new(plan);
        let mut order: Vec<usize> = (0..plan.constants.len()).collect();
        order.sort_by_key(|&ix| (plan.constants[ix].offset, Reverse(plan.constants[ix].size), ix));
        // Constants that are read in a run start at page boundaries.
        let alignment = if plan.residency.is_some() { PAGE } else { plan.arena.alignment.0.max(1) };
        let mut section = Section { rows: Vec::new(), padding: 0, other: 0 };
        let mut end = 0;
        for ix in order {
            let constant = &plan.constants[ix];
            let start = constant.offset.0;
            section.gap(start.saturating_sub(end), alignment);
            let stop = start + constant.size.0;
            let scope = touches.constant[ix].map_or(String::new(), |step| plan.steps[step as usize].scope.to_string());
            section.rows.push(ConstantRow {
                tag: constant.tag.to_string(),
                name: constant.tag.scope.to_string(),
                role: constant.tag.role.name().into(),
                scope,
                dtype: constant.dtype.to_string(),
                shape: constant.shape.to_vec(),
                offset: start,
                tensor_bytes: Layout::RowMajor.size(&constant.shape, constant.dtype).0,
                bytes: constant.size.0,
                own_bytes: stop.saturating_sub(end.max(start)),
                padding_bytes: 0,
            });
            end = end.max(stop);
        }
        section.gap(plan.constants_size.0.saturating_sub(end), alignment);
        section
    }

    /// A gap of less than one alignment is padding of the previous constant; a larger gap belongs to other batches.
    fn gap(&mut self, bytes: u64, alignment: u64) {
        match self.rows.last_mut() {
            Some(row) if bytes < alignment => {
                row.padding_bytes += bytes;
                self.padding += bytes;
            }
            _ => self.other += bytes,
        }
    }
}

/// The plan's placement in minimalloc's format, `id,lower,upper,size,alignment,offset`, for independent checks. Sizes
/// are rounded up to the alignment; an id is the buffer's index and its tag.
pub fn placement_csv(plan: &Plan) -> String {
    let id = |(ix, buffer): (usize, &Buffer)| {
        let tag: String =
            buffer.tag.to_string().chars().map(|c| if c == ',' || c.is_control() { '_' } else { c }).collect();
        format!("{ix} {tag}")
    };
    let ids = plan.buffers.iter().enumerate().map(id).collect();
    let offsets: Vec<Bytes> = plan.buffers.iter().map(|buffer| buffer.offset).collect();
    arena::csv::write(&arena::csv::Table { ids, problem: plan.problem() }, Some(&offsets))
}
