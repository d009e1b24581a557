//! Bytes belong to the value in them: its role, its layer and its last reader, views included; and the opportunities.

use plan::{Alternative, Arena, Buffer, Operand, Plan, Sharing, ValueSpan};
use prestow_report::{Bars, Groups, OpportunityKind, Report, View, ViewOptions, import, read};
use types::{Bytes, Certificate, DType, Layout, Role, Scope, Shape};

use crate::plans::{buffer, constant, held, of_buffer, of_constant, port, small, step, tag};

/// A plan of steps that read and write whole buffers; `peak` is the step with the most live bytes.
fn planned(steps: &[(&str, &str, &[u32], u32)], buffers: Vec<Buffer>, result: u32, peak: u32) -> Plan {
    let plan = of_whole_buffers(steps, buffers, result, peak);
    assert_eq!(plan::check(&plan), Ok(()));
    plan
}

/// A plan whose operands are whole buffers, not checked.
fn of_whole_buffers(steps: &[(&str, &str, &[u32], u32)], buffers: Vec<Buffer>, result: u32, peak: u32) -> Plan {
    let operand = |ix: u32| -> Operand { of_buffer(ix, buffers[ix as usize].size.0) };
    let steps = steps.iter().map(|(scope, kernel, inputs, output)| {
        step(scope, kernel, inputs.iter().map(|&ix| operand(ix)).collect(), operand(*output))
    });
    let live = |step: u32| -> u64 {
        let alive = buffers.iter().filter(|buffer| (buffer.first_step..=buffer.last_step).contains(&step));
        alive.map(|buffer| buffer.size.0.next_multiple_of(64)).sum()
    };
    let end = buffers.iter().map(|buffer| buffer.offset.0 + buffer.size.0.next_multiple_of(64)).max();
    let (size, live) = (Bytes(end.unwrap_or(0)), Bytes(live(peak)));
    Plan {
        model: "values".into(),
        target: "cpu:x86-64".into(),
        batch: 1,
        inputs: vec![port("x", operand(0))],
        outputs: vec![port("y", operand(result))],
        steps: steps.collect(),
        arena: Arena {
            alignment: Bytes(64),
            peak_step: peak,
            certificate: Certificate { value: size, lower_bound: live, least: live },
        },
        order: Certificate { value: live, lower_bound: live, least: live },
        buffers,
        ..Plan::default()
    }
}

/// A stream of three values in place; the last is the result. Step 4 reads another value through a view.
fn stream() -> Plan {
    let stream = vec![
        held("embed", 64, (0, 1), Sharing::Own),
        held("layer0/add", 64, (1, 3), Sharing::InPlace),
        held("layer1/add", 64, (3, 4), Sharing::InPlace),
    ];
    let query = vec![held("layer1/query", 64, (2, 2), Sharing::Own), held("layer1/heads", 64, (4, 4), Sharing::View)];
    let buffers = vec![
        buffer(tag("x", Role::Input), 256, 256, (0, 1), vec![held("x", 64, (0, 1), Sharing::Own)]),
        buffer(tag("layer1/add", Role::Output), 256, 0, (0, 4), stream),
        buffer(tag("layer1/query", Role::Activation), 256, 512, (2, 4), query),
    ];
    let steps: [(&str, &str, &[u32], u32); 5] = [
        ("embed", "gather", &[0], 1),
        ("layer0/add", "chain", &[0, 1], 1),
        ("layer1/query", "matmul", &[1], 2),
        ("layer1/add", "chain", &[1], 1),
        ("layer1/last", "chain", &[1, 2], 1),
    ];
    planned(&steps, buffers, 1, 2)
}

#[test]
fn bytes_have_the_role_of_the_value_in_them() {
    let report = Report::new(&stream());
    let output = &report.planned.timeline["output"];
    assert_eq!(output, &[0, 0, 0, 256, 256], "only the last value of the stream is a result");
    assert_eq!(report.planned.timeline["activation"], [256, 256, 512, 256, 256]);
    assert_eq!(report.planned.by_role.get("output"), None, "at the peak no result is alive");
    let roles: Vec<&str> = report.planned.buffers[1].values.iter().map(|value| &value.role[..]).collect();
    assert_eq!(roles, ["activation", "activation", "output"]);
}

#[test]
fn a_value_is_held_until_its_view_is_read() {
    let report = Report::new(&stream());
    let why = |tag: &str| {
        let row = report.planned.alive_at_peak.iter().find(|row| row.tag == tag).expect("it is alive");
        row.why.text.clone()
    };
    assert_eq!(why("layer1/query:activation"), "last read at step 4 by `layer1/last`");
    assert_eq!(why("layer1/add:output"), "last read at step 3 by `layer1/add`");
    assert_eq!(report.planned.buffers[2].values[0].held_until, 4);
    let top = report.text(View::Top, &ViewOptions::default());
    assert!(!top.contains("holds nothing"), "{top}");
}

#[test]
fn slices_of_a_concatenation_are_held_for_its_reader() {
    let half = |name: &str, offset: u64, step: u32| {
        let value = held(name, 32, (step, step), Sharing::ConcatSlice);
        ValueSpan { offset: Bytes(offset), ..value }
    };
    let values = vec![half("left", 0, 0), half("right", 128, 1), held("join", 64, (3, 3), Sharing::Own)];
    let buffers = vec![
        buffer(tag("x", Role::Input), 256, 256, (0, 2), vec![held("x", 64, (0, 2), Sharing::Own)]),
        buffer(tag("join", Role::Activation), 256, 0, (0, 3), values),
        buffer(tag("y", Role::Output), 256, 512, (3, 3), vec![held("y", 64, (3, 3), Sharing::Own)]),
    ];
    let steps: [(&str, &str, &[u32], u32); 4] =
        [("left", "conv", &[0], 1), ("right", "conv", &[0], 1), ("other", "conv", &[0], 1), ("y", "chain", &[1], 2)];
    let report = Report::new(&planned(&steps, buffers, 2, 3));
    let held: Vec<u32> = report.planned.buffers[1].values.iter().map(|value| value.held_until).collect();
    assert_eq!(held, [3, 3, 3]);
}

/// Before a slice is written, its bytes are another buffer's, and count there alone.
#[test]
fn a_byte_counts_for_the_buffer_that_occupies_it() {
    let half = |name: &str, offset: u64, step: u32| {
        let value = held(name, 32, (step, step), Sharing::ConcatSlice);
        ValueSpan { offset: Bytes(offset), ..value }
    };
    let values = vec![half("left", 0, 0), half("right", 128, 2), held("join", 64, (3, 3), Sharing::Own)];
    let buffers = vec![
        buffer(tag("join", Role::Activation), 256, 0, (0, 3), values),
        buffer(tag("other", Role::Activation), 128, 128, (1, 1), vec![held("other", 32, (1, 1), Sharing::Own)]),
        buffer(tag("y", Role::Output), 256, 256, (3, 3), vec![held("y", 64, (3, 3), Sharing::Own)]),
    ];
    let steps: [(&str, &str, &[u32], u32); 4] =
        [("left", "conv", &[], 0), ("other", "conv", &[], 1), ("right", "conv", &[], 0), ("y", "chain", &[0], 2)];
    let mut plan = of_whole_buffers(&steps, buffers, 2, 3);
    plan.inputs.clear();
    plan.steps[0].outputs[0].size = Bytes(128);
    plan.steps[2].outputs[0] = Operand { offset: Bytes(128), size: Bytes(128), ..plan.steps[2].outputs[0] };
    assert_eq!(plan::check(&plan), Ok(()));
    let report = Report::new(&plan);
    let live: Vec<u64> = report.planned.steps.iter().map(|step| step.live_bytes).collect();
    assert_eq!(live, [128, 256, 256, 512]);
    assert_eq!(report.planned.buffers[0].pieces().map(|piece| piece.padded_bytes).collect::<Vec<_>>(), [128, 256]);
    let map = report.text(View::Map, &ViewOptions::default());
    assert!(map.contains('.'), "bytes are free in step 0:\n{map}");
    assert_eq!(read(report.to_json().as_bytes()).expect("it reads its own").planned, report.planned);
}

#[test]
fn a_result_beside_its_dead_operand_is_an_opportunity() {
    let one = |name: &str, steps| vec![held(name, 4096, steps, Sharing::Own)];
    let buffers = vec![
        buffer(tag("x", Role::Input), 1024, 16384, (0, 0), vec![held("x", 256, (0, 0), Sharing::Own)]),
        buffer(tag("logits", Role::Activation), 16384, 0, (0, 1), one("logits", (0, 1))),
        buffer(tag("softmax", Role::Output), 16384, 16384, (1, 1), one("softmax", (1, 1))),
    ];
    let steps: [(&str, &str, &[u32], u32); 2] = [("logits", "matmul", &[0], 1), ("softmax", "softmax", &[1], 2)];
    let report = Report::new(&planned(&steps, buffers, 2, 1));
    let [row] = &report.planned.opportunities[..] else { panic!("{:?}", report.planned.opportunities) };
    // The step before has 1024 more bytes than one of the two blocks.
    assert_eq!((row.kind, row.saves_bytes), (OpportunityKind::InPlace, 16384 - 1024));
    assert!(row.text.contains("`softmax` (16.00 KiB)") && row.text.contains("`logits` (16.00 KiB)"), "{}", row.text);
    let text = report.text(View::Opportunities, &ViewOptions::default());
    assert!(text.contains("15.00 KiB") && text.contains("works in place"), "{text}");
}

#[test]
fn padding_relayouts_and_alternatives_at_the_peak_are_opportunities() {
    let blocked = ValueSpan {
        shape: Shape::from([1, 20, 8, 8]),
        layout: Layout::ChannelsBlocked(16),
        ..held("conv", 1280, (0, 1), Sharing::Own)
    };
    // 20 channels in blocks of 16 are stored as 32.
    let buffers = vec![
        buffer(tag("x", Role::Input), 1024, 16384, (0, 0), vec![held("x", 256, (0, 0), Sharing::Own)]),
        buffer(tag("conv", Role::Activation), 8192, 0, (0, 1), vec![blocked]),
        buffer(tag("conv/relayout", Role::Output), 5120, 8192, (1, 1), vec![held("conv", 1280, (1, 1), Sharing::Own)]),
    ];
    let steps: [(&str, &str, &[u32], u32); 2] =
        [("conv", "conv_blocked", &[0], 1), ("conv/relayout", "from_blocked", &[1], 2)];
    let mut plan = planned(&steps, buffers, 2, 1);
    plan.target = "cpu:x86-64".into();
    plan.alternatives = vec![Alternative {
        scope: Scope::new("conv"),
        change: "`conv_row_major` instead of `conv_blocked`".into(),
        saves: Bytes(4096),
        time: 2_000_000_000,
        other_time: 2_120_000_000,
    }];
    let report = Report::new(&plan);
    let kinds: Vec<_> = report.planned.opportunities.iter().map(|row| (row.kind, row.saves_bytes)).collect();
    // At the first step another 1024 bytes are live with the padded value.
    let expected = [
        (OpportunityKind::Alternative, 4096),
        (OpportunityKind::Relayout, 8192 + 5120 - (8192 + 1024)),
        (OpportunityKind::Padding, 3072),
    ];
    for row in expected {
        assert!(kinds.contains(&row), "{row:?} in {kinds:?}");
    }
    let text = report.text(View::Opportunities, &ViewOptions::default());
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains("time of a run +0.120 ms, x 1.060;"), "{text}");
}

#[test]
fn an_embedding_and_its_projection_are_an_opportunity() {
    let mut plan = small();
    let table = |name: &str, offset: u64, shape: [usize; 2]| {
        let mut constant = constant(name, offset, 4 * (shape[0] * shape[1]) as u64);
        constant.shape = Shape::from(shape);
        constant.dtype = DType::F32;
        constant
    };
    plan.constants =
        vec![table("wte", 0, [512, 64]), table("head", 131_072, [64, 512]), table("fc", 262_144, [64, 64])];
    plan.constants_size = Bytes(262_144 + 16_384);
    plan.steps[0].kernel = "gather".into();
    plan.steps[0].inputs[1] = of_constant(0, 131_072);
    plan.steps[2].inputs.truncate(1);
    plan.steps[2].inputs.extend([of_constant(1, 131_072), of_constant(2, 16_384)]);
    let report = Report::new(&plan);
    let kinds: Vec<_> = report.planned.opportunities.iter().map(|row| (row.kind, row.saves_bytes)).collect();
    assert!(kinds.contains(&(OpportunityKind::TiedWeights, 131_072)), "{kinds:?}");
    assert!(kinds.contains(&(OpportunityKind::Precision, (2 * 131_072 + 16_384) / 2)), "{kinds:?}");
}

/// MXNet's default dictionary.
const GROUPS: &str = "[data_structure]\nParameters = [\"in_arg\", \"arg_grad\", \"optimizer_state\"]\n\
    \"Data Entries\" = [\"data_entry\"]\nWorkspace = [\"workspace\"]\n";

fn grouped(report: &Report) -> Vec<(String, i64)> {
    let groups = Some(Groups::parse(GROUPS).expect("it is valid"));
    let bars = Bars::new(report, &ViewOptions { groups, ..ViewOptions::default() });
    bars.by_role.into_iter().map(|bar| (bar.name, bar.bytes)).collect()
}

#[test]
fn imported_tags_are_grouped_by_their_own_text() {
    let csv = "in_arg:w,1\ndata_entry:conv_oedge0,2\nworkspace:a.h+3:f,4\nreserve_space:cudnn_rnn,8\n";
    let report = import("old.csv", csv.as_bytes()).expect("it is valid");
    let mib = |count: i64| count << 20;
    let want = [("Others", 8), ("Workspace", 4), ("Data Entries", 2), ("Parameters", 1)];
    let mut got = grouped(&report);
    got.sort_by_key(|(_, bytes)| -bytes);
    assert_eq!(got, want.map(|(name, count)| (name.to_string(), mib(count))));
}

#[test]
fn activations_of_a_plan_are_data_entries() {
    let got = grouped(&Report::new(&small()));
    let of = |name: &str| got.iter().find(|(own, _)| own == name).map_or(0, |(_, bytes)| *bytes);
    assert_eq!(of("Data Entries"), 256 + 256 + 200, "two activations and the result: {got:?}");
}

/// A step overwrites the input in place, but the caller has written it before.
#[test]
fn input_that_a_step_overwrites_has_no_writer() {
    let values = vec![held("x", 64, (0, 0), Sharing::Own), held("relu", 64, (0, 1), Sharing::InPlace)];
    let buffers = vec![
        buffer(tag("x", Role::Input), 256, 0, (0, 1), values),
        buffer(tag("y", Role::Output), 256, 256, (1, 1), vec![held("y", 64, (1, 1), Sharing::Own)]),
    ];
    let report = Report::new(&planned(&[("relu", "chain", &[0], 0), ("y", "chain", &[0], 1)], buffers, 1, 1));
    let writers: Vec<Option<u32>> =
        report.planned.buffers.iter().map(|row| row.writer.as_ref().map(|writer| writer.step)).collect();
    assert_eq!(writers, [None, Some(1)]);
}

/// Constants start at multiples of 64: less than that is padding, and all of it has no place for another constant.
#[test]
fn gap_of_an_alignment_between_constants_is_not_padding() {
    let with_gap = |gap: u64| {
        let mut plan = stream();
        plan.constants = vec![constant("a", 0, 64), constant("b", 64 + gap, 64)];
        plan.constants_size = Bytes(128 + gap);
        let planned = Report::new(&plan).planned;
        (planned.constants_padding_bytes, planned.constants_other_bytes)
    };
    assert_eq!([with_gap(0), with_gap(63), with_gap(64)], [(0, 0), (63, 0), (0, 64)]);
}
