//! The contents of exports, read by code that is independent of the writers.

use std::io::Read;

use prestow_report::{Measure, Report};

use crate::plans::{small, small_measured};

#[test]
fn mxnet_csv_of_a_small_plan() {
    insta::assert_snapshot!(small_measured().mxnet_csv());
}

#[test]
fn two_column_csv_of_a_small_plan() {
    insta::assert_snapshot!(Report::new(&small()).two_column_csv());
}

#[test]
fn tbd_analysis_of_a_small_plan() {
    insta::assert_snapshot!(Report::new(&small()).tbd_analysis());
}

#[test]
fn collapsed_stacks_of_a_small_plan() {
    let report = Report::new(&small());
    let both = [Measure::PeakBytes, Measure::ByteSteps].map(|measure| report.collapsed(measure));
    insta::assert_snapshot!(both.join("\n"));
}

#[test]
fn snapshot_of_a_small_plan() {
    let snapshot: serde_json::Value = serde_json::from_str(&Report::new(&small()).snapshot_json()).expect("JSON");
    insta::assert_snapshot!(format!("{snapshot:#}"));
}

#[test]
fn json_of_a_small_plan() {
    let report: serde_json::Value = serde_json::from_str(&small_measured().to_json()).expect("JSON");
    insta::assert_snapshot!(format!("{report:#}"));
}

#[test]
fn tbds_plot_script_names_every_key_of_the_analysis() {
    // The keys of `regex_to_category_name_encoding` in plot_memory_anlaysis.py of tbd-ai/tbd-tools.
    const NAMED: &[&str] = &[
        "rnn",
        "embed",
        ":_mul",
        "rsqrt",
        ":mean",
        "att",
        ":split",
        "split",
        "logit",
        "swapaxes",
        "square",
        "softmax",
        "sequencereverse",
        "dot",
        ":broadcast",
        "zeros",
        "sum",
        "transpose",
        "dropout",
        ":dropout",
        "slice",
        "cnn",
        "arange",
        "fullyconnected",
        "sequencemask",
        "activation",
        "reshape",
        "transformer",
        "in_arg",
        "arg_grad",
        "Weights",
        "optimizer",
        "_equal_scalar",
        "(source)",
        "(target)",
        "(target_label)",
        "workspace",
        "untagged",
        "warning!,ctx_source_unclear",
        "(data)",
        "aux_state",
        "relu",
        "conv",
        "pool",
        "bn",
        ":id",
        ":fc",
        "_sc",
    ];
    for plan in [small(), crate::plans::random(3, 40, 90)] {
        let analysis: serde_json::Value = serde_json::from_str(&Report::new(&plan).tbd_analysis()).expect("JSON");
        let keys: Vec<&String> = analysis.as_object().expect("an object").keys().collect();
        assert!(keys.iter().all(|key| NAMED.contains(&&key[..])), "{keys:?}");
    }
    let analysis: serde_json::Value = serde_json::from_str(&Report::new(&small()).tbd_analysis()).expect("JSON");
    assert!(analysis["conv"][0].as_f64().is_some_and(|bytes| 0.0 < bytes), "{analysis}");
}

/// The script tries its keywords in its own order, and the first counts.
#[test]
fn tbd_keywords_count_in_the_order_of_the_script() {
    // As `memory_analysis.py` of tbd-ai/tbd-tools counts them; `split` is a name of its plot script alone.
    for (tag, keyword) in [
        ("forward_features:conv0_relu", "conv"),
        ("forward_features:stage1_conv1_activation", "conv"),
        ("forward_features:transformer_relu", "transformer"),
        ("forward_features:pool_reshape", "reshape"),
        ("forward_features:relu_pool", "relu"),
        ("forward_features:bn_data", "bn"),
        ("forward_features:conv_dot_bn", "dot"),
        ("forward_features:rnn_dropout0", "rnn"),
        ("forward_features:my_dropout", "dropout"),
        ("forward_features:x_split", "split"),
        ("in_arg:embed_weight", "in_arg"),
        ("aux_state:bn0_moving_var", "aux_state"),
        ("optimizer_weight_update_conv0_weight", "optimizer"),
    ] {
        let log = format!("[mem] Allocate 64 bytes GPU memory ({tag}).\n");
        let report = prestow_report::import("log", log.as_bytes()).expect("it is a log");
        let analysis: serde_json::Value = serde_json::from_str(&report.tbd_analysis()).expect("JSON");
        let keys: Vec<&String> = analysis.as_object().expect("an object").keys().collect();
        assert_eq!(keys, [keyword], "{tag}");
    }
}

#[test]
fn the_trace_has_a_counter_of_the_total() {
    let report = Report::new(&small());
    let trace: serde_json::Value = serde_json::from_str(&report.trace_json(None)).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list").iter();
    let total = events.filter(|event| event["ph"] == "C" && event["name"] == "total");
    let total: Vec<u64> = total.filter_map(|event| event["args"]["bytes"].as_u64()).collect();
    let live: Vec<u64> = report.planned.steps.iter().map(|step| step.live_bytes).collect();
    assert_eq!(total, live);
}

#[test]
fn pprof_frames_of_two_layers_have_two_names() {
    let mut plan = small();
    for (ix, buffer) in plan.buffers.iter_mut().enumerate() {
        for value in &mut buffer.values {
            value.name = format!("layer{}/0", ix % 2);
        }
    }
    let mut profile = Vec::new();
    let bytes = Report::new(&plan).pprof();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut profile).expect("it is gzip");
    let texts: Vec<String> = fields(&profile)
        .into_iter()
        .filter(|(field, _)| *field == 6)
        .map(|(_, text)| String::from_utf8_lossy(text).into_owned())
        .collect();
    assert!(texts.contains(&"layer0/0".into()) && texts.contains(&"layer1/0".into()), "{texts:?}");
    assert!(!texts.contains(&"0".into()), "{texts:?}");
}

/// The sums of both sample values of a gzipped pprof profile, by an independent reader of protocol buffers.
pub(crate) fn pprof_sums(bytes: &[u8]) -> [u64; 2] {
    let mut profile = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut profile).expect("it is gzip");
    let mut sums = [0, 0];
    for (field, body) in fields(&profile) {
        if field != 2 {
            continue;
        }
        let values = fields(body).into_iter().find(|(field, _)| *field == 2).expect("a sample has values").1;
        let mut rest = values;
        for sum in &mut sums {
            *sum += varint(&mut rest);
        }
        assert!(rest.is_empty(), "two values a sample");
    }
    sums
}

/// The fields that are messages, texts or packed numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => {
                varint(&mut bytes);
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (body, rest) = bytes.split_at(length);
                fields.push((key >> 3, body));
                bytes = rest;
            }
            other => panic!("wire type {other}"),
        }
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (first, rest) = bytes.split_first().expect("the number goes on");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}
