//! Chrome's trace JSON, which Perfetto reads too: steps as slices, a counter per role, a slice per buffer.

use serde_json::{Value, json};

use crate::Report;
use crate::model::BufferRow;

/// The time of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// Start in microseconds since the start of the run.
    pub start_us: f64,
    /// Duration in microseconds.
    pub us: f64,
}

/// Process id of the steps.
const STEPS: u32 = 1;
/// Process id of the counters.
const LIVE: u32 = 2;
/// Process id of the buffers.
const BUFFERS: u32 = 3;

/// The trace. Slices of one thread must nest, so each buffer takes the first free lane.
pub(crate) fn trace(report: &Report, times: Option<&[StepTime]>) -> String {
    let planned = &report.planned;
    let steps = report.step_count() as usize;
    let by_order: Vec<StepTime>;
    let times = match times {
        Some(times) if times.len() == steps => times,
        _ => {
            by_order = (0..steps).map(|step| StepTime { start_us: step as f64 * 1e3, us: 1e3 }).collect();
            &by_order
        }
    };
    let start = |step: u32| times[step as usize].start_us;
    let end = |step: u32| times[step as usize].start_us + times[step as usize].us;
    let mut events = vec![name(STEPS, "steps"), name(LIVE, "live bytes by role"), name(BUFFERS, "buffers")];
    for (ix, step) in planned.steps.iter().enumerate() {
        events.push(json!({
            "ph": "X", "pid": STEPS, "tid": 1, "ts": times[ix].start_us, "dur": times[ix].us,
            "name": step.kernel, "cat": "step",
            "args": {
                "step": ix, "scope": step.scope, "label": step.label, "flops": step.flops,
                "live_bytes": step.live_bytes,
            },
        }));
    }
    for step in 0..steps as u32 {
        // All keys at each time: a counter keeps its value until its next event.
        let live = |(role, live): (&String, &Vec<u64>)| (role.clone(), json!(live[step as usize]));
        let total = planned.steps.get(step as usize).map_or(planned.arena_bytes, |row| row.live_bytes);
        events.push(json!({
            "ph": "C", "pid": LIVE, "ts": start(step), "name": "total", "args": { "bytes": total },
        }));
        for (role, bytes) in planned.timeline.iter().map(live) {
            events.push(json!({
                "ph": "C", "pid": LIVE, "ts": start(step), "name": role, "args": { "bytes": bytes },
            }));
        }
        if let Some(written) = report.measured.as_ref().and_then(|m| m.actual.live_written_bytes.get(step as usize)) {
            let args = json!({ "bytes": written });
            events.push(json!({ "ph": "C", "pid": LIVE, "ts": start(step), "name": "written (actual)", "args": args }));
        }
    }
    let mut order: Vec<(usize, &BufferRow)> = planned.buffers.iter().enumerate().collect();
    order.sort_by_key(|(ix, buffer)| (buffer.first_step, *ix));
    let mut lanes: Vec<u32> = Vec::new();
    for (ix, buffer) in order {
        let free = lanes.iter().position(|last| *last < buffer.first_step);
        let lane = free.unwrap_or_else(|| {
            lanes.push(0);
            lanes.len() - 1
        });
        lanes[lane] = buffer.last_step;
        events.push(json!({
            "ph": "X", "pid": BUFFERS, "tid": lane + 1, "ts": start(buffer.first_step),
            "dur": end(buffer.last_step) - start(buffer.first_step), "name": buffer.tag, "cat": buffer.role,
            "args": {
                "buffer": ix, "bytes": buffer.bytes, "padded_bytes": buffer.padded_bytes, "offset": buffer.offset,
                "first_step": buffer.first_step, "last_step": buffer.last_step,
            },
        }));
    }
    let other = json!({
        "model": report.model, "arena_bytes": planned.arena_bytes, "weights_bytes": planned.weights_bytes,
        "peak_step": planned.peak_step,
    });
    json!({ "traceEvents": events, "displayTimeUnit": "ms", "otherData": other }).to_string()
}

fn name(process: u32, name: &str) -> Value {
    json!({ "ph": "M", "pid": process, "name": "process_name", "args": { "name": name } })
}
