//! PyTorch's memory snapshot for `memory_viz`: arena and constants are segments, offsets are addresses, buffers are
//! allocated and freed in the order of the steps, and scopes are stack frames.

use serde_json::{Value, json};

use crate::Report;
use crate::model::{BufferRow, PieceRow};

/// Address of the arena; addresses must not be zero.
const ARENA_AT: u64 = 1 << 20;

/// The snapshot. Constants and buffers that are alive at the last step stay allocated.
pub(crate) fn snapshot(report: &Report) -> Value {
    let planned = &report.planned;
    let constants_at = (ARENA_AT + planned.arena_bytes).next_multiple_of(1 << 20) + (1 << 20);
    let mut events = Vec::new();
    // Early viewers fail unless some event has the category `unknown`.
    let smallest = planned.alignment_bytes.min(planned.arena_bytes).max(1);
    let nothing = [frame("nothing: some viewers need an event of the category `unknown`")];
    allocate(&mut events, ARENA_AT, smallest, 0, "unknown", "nothing", &nothing);
    free(&mut events, ARENA_AT, smallest, 0);

    let mut blocks = Vec::new();
    let mut end = 0;
    for row in planned.constants.iter().filter(|row| 0 < row.own_bytes) {
        let start = row.offset + row.bytes - row.own_bytes;
        let size = row.own_bytes + row.padding_bytes;
        let frames = frames(&row.scope, &row.name);
        gap(&mut blocks, constants_at + end, start.saturating_sub(end));
        blocks.push(block(constants_at + start, size, row.own_bytes, "active_allocated", &frames));
        allocate(&mut events, constants_at + start, size, 0, category(&row.role), &row.tag, &frames);
        end = start + size;
    }
    gap(&mut blocks, constants_at + end, planned.weights_bytes.saturating_sub(end));
    let constants = segment(constants_at, planned.weights_bytes, blocks);

    // A buffer that occupies other bytes from some step on is freed there and allocated anew.
    let pieces = planned.buffers.iter().flat_map(|buffer| buffer.pieces().map(move |piece| (buffer, piece)));
    let mut by_first: Vec<(&BufferRow, PieceRow)> = pieces.filter(|(_, piece)| 0 < piece.padded_bytes).collect();
    let mut by_last = by_first.clone();
    let at = |(buffer, piece): &(&BufferRow, PieceRow)| buffer.offset + piece.offset;
    by_first.sort_by_key(|one| (one.1.first_step, at(one)));
    by_last.sort_by_key(|one| (one.1.last_step, at(one)));
    let (mut born, mut dead) = (by_first.iter().peekable(), by_last.iter().peekable());
    for step in 0..report.step_count() {
        while let Some(one) = dead.next_if(|(_, piece)| piece.last_step < step) {
            free(&mut events, ARENA_AT + at(one), one.1.padded_bytes, step);
        }
        while let Some(one @ (buffer, piece)) = born.next_if(|(_, piece)| piece.first_step == step) {
            let (at, frames) = (ARENA_AT + at(one), buffer_frames(buffer));
            allocate(&mut events, at, piece.padded_bytes, step, category(&buffer.role), &buffer.tag, &frames);
        }
    }
    let mut left = by_first;
    left.retain(|(_, piece)| report.step_count() <= piece.last_step + 1);
    left.sort_by_key(at);
    let (mut blocks, mut end) = (Vec::new(), 0);
    for one @ (buffer, piece) in &left {
        let start = at(one);
        gap(&mut blocks, ARENA_AT + end, start.saturating_sub(end));
        let (bytes, frames) = (buffer.own_bytes(*piece), buffer_frames(buffer));
        blocks.push(block(ARENA_AT + start, piece.padded_bytes, bytes, "active_allocated", &frames));
        end = start + piece.padded_bytes;
    }
    gap(&mut blocks, ARENA_AT + end, planned.arena_bytes.saturating_sub(end));
    let mut segments = vec![segment(ARENA_AT, planned.arena_bytes, blocks)];
    if 0 < planned.weights_bytes {
        segments.push(constants);
    }
    json!({ "segments": segments, "device_traces": [events] })
}

/// The categories of PyTorch's profiler.
fn category(role: &str) -> &'static str {
    match role {
        "input" => "input",
        "weight" => "parameter",
        "optimizer_state" => "optimizer_state",
        "weight_gradient" | "activation_gradient" => "gradient",
        "activation" | "output" | "state" => "activation",
        "workspace" => "temporary",
        _ => "unknown",
    }
}

fn segment(address: u64, size: u64, blocks: Vec<Value>) -> Value {
    let active = |field: &str| -> u64 {
        let live = blocks.iter().filter(|block| block["state"] == "active_allocated");
        live.filter_map(|block| block[field].as_u64()).sum()
    };
    let (allocated, requested) = (active("size"), active("requested_size"));
    json!({
        "device": 0, "address": address, "total_size": size, "allocated_size": allocated, "active_size": allocated,
        "requested_size": requested, "stream": 0, "segment_type": "large", "segment_pool_id": [0, 0],
        "is_expandable": false, "frames": [], "blocks": blocks,
    })
}

fn block(address: u64, size: u64, requested: u64, state: &str, frames: &[Value]) -> Value {
    json!({ "address": address, "size": size, "requested_size": requested, "state": state, "frames": frames })
}

/// Unused bytes, so that blocks tile their segment.
fn gap(blocks: &mut Vec<Value>, address: u64, size: u64) {
    if 0 < size {
        blocks.push(block(address, size, 0, "inactive", &[]));
    }
}

fn allocate(events: &mut Vec<Value>, address: u64, size: u64, step: u32, category: &str, tag: &str, frames: &[Value]) {
    events.push(json!({
        "action": "alloc", "addr": address, "size": size, "stream": 0, "time_us": step, "category": category,
        "user_metadata": tag, "frames": frames,
    }));
}

fn free(events: &mut Vec<Value>, address: u64, size: u64, step: u32) {
    for action in ["free_requested", "free_completed"] {
        events.push(json!({
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": step, "frames": [],
        }));
    }
}

fn buffer_frames(buffer: &BufferRow) -> Vec<Value> {
    let held = buffer.values.first().map(|value| format!("{} {}", buffer.tag, value.type_text()));
    frames(&buffer.scope, &held.unwrap_or_else(|| buffer.tag.clone()))
}

/// Stack frames, innermost first: the name, then the parts of the scope outwards.
fn frames(scope: &str, name: &str) -> Vec<Value> {
    let parts: Vec<&str> = scope.split('/').filter(|part| !part.is_empty()).collect();
    let outer = (1..=parts.len()).rev().map(|depth| frame(&parts[..depth].join("/")));
    std::iter::once(frame(name)).chain(outer).collect()
}

fn frame(name: &str) -> Value {
    json!({ "filename": "plan", "line": 0, "name": name })
}
