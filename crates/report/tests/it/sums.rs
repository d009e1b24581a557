//! Every view and every export adds up to the plan, byte for byte.

use std::collections::BTreeSet;

use plan::{Arena, Plan};
use prestow_report::{Bars, Depth, Diff, Flame, Measure, Report, View, ViewOptions, read};
use serde_json::Value;
use types::{Bytes, Certificate, Role};

use crate::exports::pprof_sums;
use crate::plans::{buffer, of_buffer, random, small, small_measured, step, tag};

fn cases() -> Vec<Plan> {
    let mut cases = vec![small(), Plan::default()];
    for seed in 0..60 {
        cases.push(random(seed, 1 + seed as usize % 37, seed as usize * 3 % 90));
    }
    cases
}

#[test]
fn every_step_adds_up_to_the_arena() {
    for plan in cases() {
        let report = Report::new(&plan);
        let (planned, problem) = (&report.planned, plan.problem());
        for step in 0..report.step_count() as usize {
            let sum: u64 = planned.timeline.values().map(|live| live[step]).sum();
            assert_eq!(sum, plan.arena.size().0, "{} at {step}", plan.model);
            // The slow way: sum the bytes that each buffer occupies at the step.
            let live = problem.buffers.iter().filter_map(|buffer| buffer.occupied(step as u32));
            let live: u64 = live.map(|window| (window.high - window.low).0).sum();
            assert_eq!(plan.arena.size().0 - planned.timeline["free"][step], live);
        }
        let free: u64 = planned.free_at_peak.iter().map(|range| range.bytes).sum();
        let alive: u64 = planned.alive_at_peak.iter().map(|row| row.padded_bytes).sum();
        assert_eq!(alive + free, plan.arena.size().0);
        assert_eq!(alive, plan.arena.certificate.lower_bound.0);
    }
}

#[test]
fn roles_and_constants_add_up() {
    for plan in cases() {
        let planned = Report::new(&plan).planned;
        let own: u64 = planned.constants.iter().map(|row| row.own_bytes).sum();
        let section = own + planned.constants_padding_bytes + planned.constants_other_bytes;
        assert_eq!(section, plan.constants_size.0);
        let roles: u64 = planned.by_role.values().sum();
        assert_eq!(roles, plan.arena.size().0 + own);
    }
}

#[test]
fn both_bars_add_up_for_every_grouping() {
    for plan in cases() {
        let report = Report::new(&plan);
        let total = (plan.arena.size() + plan.constants_size).0 as i64;
        for depth in [Depth::Auto, Depth::Parts(1), Depth::Parts(9)] {
            let bars = Bars::new(&report, &ViewOptions { depth, ..ViewOptions::default() });
            for bar in [&bars.by_layer, &bars.by_role] {
                assert_eq!(bar.iter().map(|part| part.bytes).sum::<i64>(), total, "{}", plan.model);
            }
            assert_eq!(bars.total_bytes, total);
        }
        let options = ViewOptions { expected: Some(5), ..ViewOptions::default() };
        let bars = Bars::new(&report, &options);
        assert_eq!(bars.by_role.iter().map(|part| part.bytes).sum::<i64>(), 5);
    }
    // Residual memory is a part of both totals.
    let bars = Bars::new(&small_measured(), &ViewOptions::default());
    assert_eq!(bars.total_bytes, 832 + 400 + 8_768);
    assert_eq!(bars.by_layer.iter().map(|part| part.bytes).sum::<i64>(), bars.total_bytes);
}

#[test]
fn flame_graphs_add_up_in_both_measures() {
    for plan in cases() {
        let report = Report::new(&plan);
        let total = u128::from((plan.arena.size() + plan.constants_size).0);
        let steps = u128::from(report.step_count());
        assert_eq!(Flame::new(&report, Measure::PeakBytes).total(), total);
        assert_eq!(Flame::new(&report, Measure::ByteSteps).total(), total * steps);
        for (measure, want) in [(Measure::PeakBytes, total), (Measure::ByteSteps, total * steps)] {
            let lines = report.collapsed(measure);
            let amounts = lines.lines().map(|line| line.rsplit(' ').next().expect("an amount").parse::<u128>());
            assert_eq!(amounts.map(|amount| amount.expect("a number")).sum::<u128>(), want);
        }
        let sums = pprof_sums(&report.pprof());
        assert_eq!(sums.map(u128::from), [total, total * steps]);
    }
}

/// A rectangle of an image that represents bytes: its position and size, and the bytes.
struct Block {
    at: [f64; 4],
    bytes: i64,
}

/// The number of the attribute `name`.
fn number(text: &str, name: &str) -> f64 {
    let (_, rest) = text.split_once(&format!("{name}=\"")).expect("the attribute is there");
    rest.split('"').next().and_then(|number| number.parse().ok()).expect("it is a number")
}

fn blocks(svg: &str, attribute: &str) -> Vec<Block> {
    let mark = format!("<g {attribute}=\"");
    let groups = svg.split(&mark).skip(1);
    let block = |group: &str| {
        let bytes = group.split('"').next().and_then(|bytes| bytes.parse().ok()).expect("whole bytes");
        let (_, rect) = group.split_once("<rect ").expect("a rectangle");
        Block { at: ["x", "y", "width", "height"].map(|name| number(&format!(" {rect}"), &format!(" {name}"))), bytes }
    };
    groups.map(block).collect()
}

fn sum<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> i64 {
    blocks.into_iter().map(|block| block.bytes).sum()
}

/// Coordinates have two decimal places.
const NEAR: f64 = 0.011;

#[test]
fn bars_in_pictures_add_up_in_bytes_and_in_height() {
    for plan in cases() {
        let report = Report::new(&plan);
        let svg = report.svg(View::Bars, &ViewOptions::default()).expect("it has a picture");
        let blocks = blocks(&svg, "data-bytes");
        let total = (plan.arena.size() + plan.constants_size).0 as i64;
        for x in [20.0, 400.0] {
            let bar: Vec<&Block> = blocks.iter().filter(|block| block.at[0] == x).collect();
            assert_eq!(sum(bar.iter().copied()), total, "{}", plan.model);
            for block in bar {
                let want = 480.0 * block.bytes as f64 / total as f64;
                assert!((block.at[3] - want).abs() < NEAR, "{}", plan.model);
            }
        }
        let of_bars = blocks.iter().filter(|block| [20.0, 400.0].contains(&block.at[0])).count();
        assert_eq!(of_bars, blocks.len());
    }
}

#[test]
fn the_map_shows_every_byte_in_its_place() {
    for plan in cases() {
        let report = Report::new(&plan);
        let svg = report.svg(View::Map, &ViewOptions::default()).expect("it has a picture");
        let blocks = blocks(&svg, "data-bytes");
        let problem = plan.problem();
        let pieces = plan.buffers.iter().zip(&problem.buffers);
        let pieces: Vec<_> =
            pieces.flat_map(|(buffer, placed)| placed.pieces().into_iter().map(move |piece| (buffer, piece))).collect();
        assert_eq!(blocks.len(), pieces.len());
        let steps = f64::from(report.step_count());
        let arena = plan.arena.size().0.max(1) as f64;
        for (block, (buffer, piece)) in blocks.iter().zip(&pieces) {
            let [x, y, width, height] = block.at;
            let (low, high) = (piece.window.low, piece.window.high.min(buffer.size));
            assert_eq!(block.bytes, (high - low).0 as i64);
            let want = [
                80.0 + 900.0 * f64::from(piece.lifetime.first) / steps,
                900.0 * f64::from(piece.lifetime.end - piece.lifetime.first) / steps,
                530.0 - 480.0 * (buffer.offset + low).0 as f64 / arena,
                480.0 * (high - low).0 as f64 / arena,
            ];
            for (got, want) in [x, width, y + height, height].into_iter().zip(want) {
                assert!((got - want).abs() < 2.0 * NEAR, "{}: {got} instead of {want}", plan.model);
            }
        }
        // The blocks that the dashed line crosses add up to the buffers alive at the peak.
        let (_, peak) = svg.split_once("class=\"peak\" points=\"").expect("the peak is marked");
        let peak: f64 = peak.split(',').next().and_then(|x| x.parse().ok()).expect("it has a place");
        let crossed = blocks.iter().filter(|block| block.at[0] < peak && peak < block.at[0] + block.at[2]);
        let alive: u64 = report.planned.alive_at_peak.iter().map(|row| row.bytes).sum();
        assert_eq!(sum(crossed), alive as i64, "{}", plan.model);
    }
}

#[test]
fn timelines_and_flame_graphs_in_pictures_add_up() {
    for plan in cases() {
        let report = Report::new(&plan);
        let steps = u64::from(report.step_count());
        let svg = report.svg(View::Timeline, &ViewOptions::default()).expect("it has a picture");
        let areas = svg.split("data-byte-steps=\"").skip(1).map(|rest| rest.split('"').next().expect("a number"));
        let live: u64 = areas.map(|area| area.parse::<u64>().expect("whole")).sum();
        let free: u64 = report.planned.timeline["free"].iter().sum();
        assert_eq!(live + free, plan.arena.size().0 * steps, "{}", plan.model);

        let total = (plan.arena.size() + plan.constants_size).0;
        for (measure, attribute, total) in
            [(Measure::PeakBytes, "data-bytes", total), (Measure::ByteSteps, "data-byte-steps", total * steps)]
        {
            let options = ViewOptions { measure, ..ViewOptions::default() };
            let blocks = blocks(&report.svg(View::Flame, &options).expect("it has a picture"), attribute);
            if total == 0 {
                continue;
            }
            assert_eq!(blocks[0].bytes, total as i64, "the whole is at the bottom");
            // Boxes on top of a box add up to it, except for those too thin to be drawn.
            for below in &blocks {
                let [x, y, width, _] = below.at;
                let upon: Vec<&Block> = blocks
                    .iter()
                    .filter(|block| (y - block.at[1] - 20.0).abs() < 1.0)
                    .filter(|block| x - NEAR < block.at[0] && block.at[0] + block.at[2] < x + width + 3.0 * NEAR)
                    .collect();
                let left_out = below.bytes - sum(upon.iter().copied());
                let pixels = 980.0 * left_out as f64 / total as f64;
                assert!(upon.is_empty() || (0 <= left_out && pixels <= 0.3 * blocks.len() as f64), "{}", plan.model);
                assert!((width - 980.0 * below.bytes as f64 / total as f64).abs() < NEAR, "{}", plan.model);
            }
        }
    }
    // No box is too thin in a small plan: the topmost boxes add up to all bytes.
    let svg = Report::new(&small()).svg(View::Flame, &ViewOptions::default()).expect("it has a picture");
    let blocks = blocks(&svg, "data-bytes");
    let is_leaf = |below: &&Block| {
        let middle = |block: &Block| block.at[0] + block.at[2] / 2.0;
        let within = |block: &Block| below.at[0] < middle(block) && middle(block) < below.at[0] + below.at[2];
        !blocks.iter().any(|block| (below.at[1] - block.at[1] - 20.0).abs() < 1.0 && within(block))
    };
    assert_eq!(sum(blocks.iter().filter(is_leaf)), blocks[0].bytes);
}

#[test]
fn tables_for_other_programs_add_up() {
    for plan in cases() {
        let report = Report::new(&plan);
        let total = (plan.arena.size() + plan.constants_size).0;
        let csv = report.mxnet_csv();
        let column = |line: &str, ix: usize| line.trim_matches('"').split("\",\"").nth(ix).map(str::to_string);
        let sum = |ix| csv.lines().skip(1).map(|line| column(line, ix).unwrap().parse::<u64>().unwrap()).sum::<u64>();
        assert_eq!(sum(3), total);
        let planned = &report.planned;
        let padding: u64 = planned.timeline.get("padding").map_or(0, |live| live[planned.peak_step as usize]);
        assert_eq!(sum(1), total - padding - planned.constants_padding_bytes);
        let lines = report.two_column_csv();
        let mib = lines.lines().map(|line| line.rsplit_once(',').unwrap().1.parse::<f64>().unwrap());
        let bytes: f64 = mib.map(|mib| mib * f64::from(1 << 20)).sum();
        assert_eq!(bytes, total as f64);
        let tbd: Value = serde_json::from_str(&report.tbd_analysis()).expect("it is JSON");
        let totals = tbd.as_object().unwrap().values().map(|row| row[0].as_f64().unwrap());
        assert_eq!(totals.sum::<f64>(), total as f64);
    }
}

#[test]
fn snapshots_replay_to_the_plan() {
    for plan in cases() {
        let report = Report::new(&plan);
        let snapshot: Value = serde_json::from_str(&report.snapshot_json()).expect("it is JSON");
        let segments = snapshot["segments"].as_array().unwrap();
        let sizes: u64 = segments.iter().map(|segment| segment["total_size"].as_u64().unwrap()).sum();
        assert_eq!(sizes, (plan.arena.size() + plan.constants_size).0);
        for segment in segments {
            let mut at = segment["address"].as_u64().unwrap();
            for block in segment["blocks"].as_array().unwrap() {
                assert_eq!(block["address"].as_u64().unwrap(), at, "blocks tile their segment");
                at += block["size"].as_u64().unwrap();
            }
            assert_eq!(at, segment["address"].as_u64().unwrap() + segment["total_size"].as_u64().unwrap());
        }
        let (mut live, mut most) = (std::collections::BTreeMap::new(), 0);
        for event in snapshot["device_traces"][0].as_array().unwrap() {
            let (at, size) = (event["addr"].as_u64().unwrap(), event["size"].as_u64().unwrap());
            match event["action"].as_str().unwrap() {
                "alloc" => assert_eq!(live.insert(at, size), None, "twice at one address"),
                "free_completed" => assert_eq!(live.remove(&at), Some(size)),
                _ => {}
            }
            most = most.max(live.values().sum());
        }
        let constants: u64 = report
            .planned
            .constants
            .iter()
            .filter(|row| 0 < row.own_bytes)
            .map(|row| row.own_bytes + row.padding_bytes)
            .sum();
        assert!(most == plan.arena.certificate.lower_bound.0 + constants || most <= 64, "{}: {most}", plan.model);
        let last: u64 = live.values().sum();
        let active = segments.iter().map(|segment| segment["allocated_size"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(last, active, "the end of the events is the state of the segments");
    }
}

#[test]
fn traces_count_the_arena_at_every_step() {
    for plan in cases() {
        let report = Report::new(&plan);
        let trace: Value = serde_json::from_str(&report.trace_json(None)).expect("it is JSON");
        let events = trace["traceEvents"].as_array().unwrap();
        let mut sums = std::collections::BTreeMap::new();
        for event in events.iter().filter(|event| event["ph"] == "C" && event["name"] != "total") {
            *sums.entry(event["ts"].to_string()).or_insert(0) += event["args"]["bytes"].as_u64().unwrap();
        }
        assert!(sums.values().all(|sum| *sum == plan.arena.size().0), "{sums:?}");
        let slices: Vec<&Value> = events.iter().filter(|event| event["pid"] == 3 && event["ph"] == "X").collect();
        assert_eq!(slices.len(), plan.buffers.len(), "one slice a buffer");
        // Slices of one lane do not overlap.
        let mut ends = std::collections::BTreeMap::new();
        for slice in slices {
            let (start, lane) = (slice["ts"].as_f64().unwrap(), slice["tid"].as_u64().unwrap());
            assert!(ends.insert(lane, start + slice["dur"].as_f64().unwrap()).is_none_or(|end| end <= start));
        }
    }
}

#[test]
fn differences_add_up_to_that_of_the_whole() {
    let cases: Vec<Report> = cases().iter().map(Report::new).collect();
    for pair in cases.windows(2) {
        let diff = Diff::new(&pair[0], &pair[1]);
        let delta: i64 = diff.tags.iter().map(|tag| tag.b_bytes as i64 - tag.a_bytes as i64).sum();
        assert_eq!(delta, pair[1].planned_bytes() as i64 - pair[0].planned_bytes() as i64);
        assert!(Diff::new(&pair[0], &pair[0]).is_same());
    }
}

#[test]
fn json_round_trips() {
    for report in cases().iter().map(Report::new).chain([small_measured()]) {
        assert_eq!(read(report.to_json().as_bytes()), Ok(report));
    }
}

#[test]
fn state_belongs_to_the_layer_of_its_node() {
    let mut report = Report::new(&small());
    let state = &mut report.planned.buffers[2];
    // A weight with the name of a file of weights, which the compiler's update reads last.
    state.persistence = plan::Persistence::Session;
    state.role = "weight".into();
    state.scope = "block1.conv1.weight".into();
    state.values.truncate(1);
    state.values[0].name = "block1.conv1.weight".into();
    state.values[0].last_step = 3;
    state.values[0].held_until = 3;
    state.last_reader.as_mut().expect("it is read").scope = "block1/conv1/update".into();
    // Its initial value, which no step reads.
    report.planned.constants[0].name = "block1.conv1.weight".into();
    report.planned.constants[0].scope = String::new();
    let names = |depth| -> BTreeSet<String> {
        let options = ViewOptions { depth: Depth::Parts(depth), ..ViewOptions::default() };
        Bars::new(&report, &options).by_layer.into_iter().map(|bar| bar.name).collect()
    };
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
    assert_eq!(names(1), set(&["block1", "head", "(other batches)", "padding", "free"]));
    assert_eq!(names(2), set(&["block1/conv1", "block1/conv2", "head/add", "(other batches)", "padding", "free"]));
}

#[test]
fn opportunities_are_distinct_and_worth_their_row() {
    let workspace = |bytes, offset| buffer(tag("conv", Role::Workspace), bytes, offset, (0, 0), Vec::new());
    let (large, most) = (1 << 20, (1 << 20) + (1 << 17) + 64);
    let certificate = Certificate { value: Bytes(most), lower_bound: Bytes(most), least: Bytes(most) };
    let plan = Plan {
        model: "scratch".into(),
        steps: vec![step("conv", "conv", Vec::new(), of_buffer(0, large))],
        buffers: vec![
            buffer(tag("conv", Role::Output), large, 0, (0, 0), Vec::new()),
            // Twice the same words, and 64 bytes of a megabyte.
            workspace(1 << 16, large),
            workspace(1 << 16, large + (1 << 16)),
            workspace(64, large + (1 << 17)),
        ],
        arena: Arena { alignment: Bytes(64), peak_step: 0, certificate },
        order: certificate,
        ..Plan::default()
    };
    let found = Report::new(&plan).planned.opportunities;
    let saved: Vec<u64> = found.iter().map(|row| row.saves_bytes).collect();
    assert_eq!(saved, [1 << 16], "{found:?}");
}
