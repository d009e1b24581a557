//! Golden texts and images of a small plan, and the width of texts.

use prestow_report::{Diff, Fit, Largest, Report, Variant, View, ViewOptions, WhatIf};

use crate::plans::{random, small, small_measured};

#[test]
fn text_of_a_small_plan() {
    let report = small_measured();
    let options = ViewOptions::default();
    let texts: Vec<String> = View::ALL.iter().map(|view| report.text(*view, &options)).collect();
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn bars_of_a_small_plan_as_svg() {
    insta::assert_snapshot!(Report::new(&small()).svg(View::Bars, &ViewOptions::default()).expect("it has a picture"));
}

#[test]
fn timeline_of_a_small_plan_as_svg() {
    insta::assert_snapshot!(small_measured().svg(View::Timeline, &ViewOptions::default()).expect("it has a picture"));
}

#[test]
fn map_of_a_small_plan_as_svg() {
    insta::assert_snapshot!(Report::new(&small()).svg(View::Map, &ViewOptions::default()).expect("it has a picture"));
}

#[test]
fn flame_graph_of_a_small_plan_as_svg() {
    insta::assert_snapshot!(Report::new(&small()).svg(View::Flame, &ViewOptions::default()).expect("it has a picture"));
}

#[test]
fn texts_keep_to_their_width() {
    for seed in 0..20 {
        let report = Report::new(&random(seed, 1 + 7 * seed as usize, 5 * seed as usize));
        for width in [72, 80, 120] {
            let options = ViewOptions { width, rows: 5, ..ViewOptions::default() };
            for view in View::ALL {
                keeps_to_width(&report, view, &options);
            }
        }
    }
    // Long names of steps, and the lines that a run adds.
    let mut plan = small();
    plan.steps.iter_mut().for_each(|step| step.scope = types::Scope::new(&"encoder/layer/self/attention/".repeat(4)));
    for report in [Report::new(&plan), small_measured()] {
        for width in [72, 80, 120] {
            let options = ViewOptions { width, ..ViewOptions::default() };
            View::ALL.iter().for_each(|view| keeps_to_width(&report, *view, &options));
        }
    }
}

fn keeps_to_width(report: &Report, view: View, options: &ViewOptions) {
    for line in report.text(view, options).lines() {
        assert!(line.chars().count() <= options.width, "{view:?} at {}: {line}", options.width);
    }
}

#[test]
fn texts_use_their_width_and_cut_no_tag() {
    let mut plan = small();
    let scope = "encoder/block0/attention/self/projections/with/a/long/path/query/heads";
    plan.buffers[2].tag.scope = types::Scope::new(scope);
    let report = Report::new(&plan);
    let text = |view, width| report.text(view, &ViewOptions { width, ..ViewOptions::default() });
    let top = text(View::Top, 80);
    assert!(top.contains(scope), "{top}");
    let widest = |view, width| text(view, width).lines().map(|line| line.chars().count()).max().unwrap_or(0);
    for view in [View::Bars, View::Timeline, View::Map, View::Flame] {
        assert!(widest(view, 80) + 40 < widest(view, 200), "{view:?}: {}", text(view, 200));
    }
}

#[test]
fn views_over_steps_are_left_out_for_imported_profiles() {
    let report =
        prestow_report::import("old.csv", b"in_arg:w,1.5\ndata_entry:conv_oedge0,0.25\n").expect("it is valid");
    let options = ViewOptions::default();
    for view in [View::Timeline, View::Map] {
        assert!(report.text(view, &options).contains("no releases and no addresses"));
        assert_eq!(report.svg(view, &options), None);
    }
    let top = report.text(View::Top, &options);
    assert!(!top.contains("offset") && !top.contains("steps"), "{top}");
    let printed = prestow_report::ReportRequest::default().text(&report);
    assert!(!printed.contains("live bytes") && !printed.contains("timeline"), "{printed}");
}

#[test]
fn the_headline_states_each_number_once() {
    let mut plan = small();
    let size = plan.arena.certificate.lower_bound;
    plan.arena.certificate = types::Certificate { value: size, lower_bound: size, least: size };
    let text = Report::new(&plan).text(View::Headline, &ViewOptions::default());
    assert_eq!(text.matches(&size.to_string()).count(), 1, "{text}");
    assert!(!text.contains("live at that step"), "{text}");
    let text = Report::new(&small()).text(View::Headline, &ViewOptions::default());
    assert!(text.contains("peak at step 3\n             768 B live at that step"), "{text}");
}

#[test]
fn values_saved_for_backward_are_marked() {
    let mut plan = small();
    plan.buffers[4].tag.role = types::Role::WeightGradient;
    plan.outputs.clear();
    plan.arena.peak_step = 2;
    let report = Report::new(&plan);
    let why =
        |tag: &str| report.planned.alive_at_peak.iter().find(|row| row.tag == tag).map(|row| row.why.text.clone());
    assert_eq!(
        why("block1/conv1:activation").as_deref(),
        Some("saved for backward: last read at step 3 by `head/add`")
    );
    // A gradient that a later step of the backward pass reads is not saved from the forward pass.
    plan.buffers[2].tag.role = types::Role::ActivationGradient;
    let report = Report::new(&plan);
    let row = report.planned.alive_at_peak.iter().find(|row| row.tag == "block1/conv1:activation_gradient");
    assert_eq!(row.expect("it is alive").why.text, "last read at step 3 by `head/add`");
}

#[test]
fn difference_lists_moved_added_and_removed_buffers() {
    let (a, mut b) = (small(), small());
    b.buffers[4].offset = types::Bytes(512);
    b.arena.certificate.value = types::Bytes(768);
    b.buffers.remove(1);
    b.steps[0].workspace = None;
    let results = b.outputs.iter_mut().map(|port| &mut port.operand);
    let operands = b.steps.iter_mut().flat_map(|step| step.inputs.iter_mut().chain(&mut step.outputs));
    for operand in operands.chain(results) {
        if let plan::Place::Buffer(ix) = &mut operand.place
            && 1 < ix.0
        {
            ix.0 -= 1;
        }
    }
    b.buffers[1].values[1].sharing = plan::Sharing::Own;
    let diff = Diff::new(&Report::new(&a), &Report::new(&b));
    assert!(!diff.is_same());
    insta::assert_snapshot!(diff.text(80, 10));
}

#[test]
fn whether_it_fits_is_a_matter_of_bytes() {
    let report = Report::new(&small());
    assert!(Fit::new(&report, 1232).fits());
    assert!(!Fit::new(&report, 1231).fits());
    let measured = small_measured();
    assert!(Fit::new(&measured, 10_000).fits() && !Fit::new(&measured, 9_999).fits());
    insta::assert_snapshot!(Fit::new(&report, 1231).text() + &Fit::new(&measured, 10_000).text());
}

#[test]
fn what_if_as_text_csv_and_curve() {
    let variant = |batch: u64, fits, asked| Variant {
        batch,
        dtype: "f32".into(),
        arena_bytes: 1000 * batch,
        lower_bound_bytes: 1000 * batch,
        state: Some(types::Proof::Bound),
        least_bytes: 1000 * batch,
        weights_bytes: 5000,
        total_bytes: 5000 + 1000 * batch,
        fits: Some(fits),
        asked,
    };
    let what_if = WhatIf {
        model: "small".into(),
        target: "cpu:x86-64".into(),
        capacity_bytes: Some(8000),
        variants: vec![variant(1, true, true), variant(3, true, false), variant(4, false, true)],
        largest: vec![Largest { dtype: "f32".into(), batch: Some(3), is_largest: true }],
    };
    assert!(!what_if.all_fit());
    insta::assert_snapshot!(format!("{}\n{}\n{}", what_if.text(80), what_if.csv(), what_if.svg()));
}
