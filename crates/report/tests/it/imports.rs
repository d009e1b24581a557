//! Other programs' profiles in the views.

use prestow_report::{Analysis, Groups, Origin, Report, View, ViewOptions, import};

use crate::plans::small;

const MXNET: &str = "\"Attribute Name\",\"Requested Size\",\"Device\",\"Actual Size\",\"Reuse?\"\n\
    \"encoder:att:in_arg:query_weight\",\"1474560\",\"0\",\"1474560\",\"0\"\n\
    \"encoder:att:arg_grad:query_weight\",\"1474560\",\"0\",\"1474560\",\"0\"\n\
    \"encoder:ffn\",\"9437184\",\"0\",\"10485760\",\"1\"\n\
    \"encoder:ffn_backward\",\"2359296\",\"0\",\"4194304\",\"1\"\n\
    \"updater:optimizer_state:_zeros\",\"640\",\"0\",\"4096\",\"0\"\n\
    \"resource:temp_space (a \"\"b\"\".h +3)\",\"5120\",\"0\",\"8192\",\"0\"\n\
    \"nvml_amend\",\"286261248\",\"0\",\"286261248\",\"0\"\n";

const TBD: &str = "[INFO] start\n\
    [mem] Allocate 4096 bytes GPU memory (in_arg:source_embed_weight).\n\
    [mem] 11000 MB GPU global memory free, total 12000 MB.\n\
    [mem] Allocate 8192 bytes GPU memory (forward_features:rnn_l0).\n\
    [mem] Release GPU memory.\n\
    Allocate 2 MB GPU memory (workspace:rnn.cu).\n\
    [mem] Allocate 512 bytes GPU memory (untagged).\n";

const TWO_COLUMN: &str = "in_arg:w,1.5\nskip me,100\ndata_entry:conv_oedge0,0.25\nworkspace:a.h+3:f,2\n";

fn imported(name: &str, text: &str) -> Report {
    import(name, text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn mxnets_csv_in_the_views() {
    let report = imported("bert.csv", MXNET);
    assert_eq!((report.origin, report.residual_bytes()), (Origin::MxnetCsv, Some(286_261_248)));
    let text = [View::Headline, View::Bars, View::Top].map(|view| report.text(view, &ViewOptions::default()));
    insta::assert_snapshot!(text.join("\n"));
    // Writing the profile again gives the same rows in any order.
    let mut lines: Vec<&str> = MXNET.lines().skip(1).collect();
    lines.sort_unstable();
    let again = report.mxnet_csv();
    let mut written: Vec<String> = again.lines().skip(1).map(|line| line.replace("\"1\"", "\"0\"")).collect();
    written.sort_unstable();
    let wanted: Vec<String> = lines.iter().map(|line| line.replace("\"1\"", "\"0\"")).collect();
    assert_eq!(written, wanted);
}

#[test]
fn an_old_analysis_is_repeated() {
    let mut options = ViewOptions { expected: Some(300_000_000), ..ViewOptions::default() };
    let groups = "[layer]\nAttention = [\"att\"]\nFFN = [\"ffn\"]\n\n\
        [data_structure]\nParameters = [\"in_arg\", \"arg_grad\", \"optimizer_state\"]\nWorkspace = [\"temp_space\"]\n";
    options.groups = Some(Groups::parse(groups).expect("it is one"));
    insta::assert_snapshot!(imported("bert.csv", MXNET).entries(&options));
}

#[test]
fn tbd_log_is_analyzed_and_viewed() {
    let report = imported("log", TBD);
    assert_eq!(report.planned.arena_bytes, 4096 + 8192 + (2 << 20) + 512);
    let views = [View::Headline, View::Timeline].map(|view| report.text(view, &ViewOptions::default()));
    insta::assert_snapshot!(format!(
        "{}\n{}\n{}",
        Analysis::new(&report).text(),
        report.tbd_analysis(),
        views.join("\n")
    ));
}

#[test]
fn the_older_csv_in_the_views() {
    let report = imported("old.csv", TWO_COLUMN);
    assert_eq!(report.planned.arena_bytes, 3_932_160);
    insta::assert_snapshot!(report.text(View::Bars, &ViewOptions::default()));
    assert!(report.two_column_csv().contains("in_arg:w,1.5\n"));
}

#[test]
fn exported_tables_are_imported_with_their_roles() {
    let report = Report::new(&small());
    for (text, roles) in [
        (report.mxnet_csv(), ["activation", "input", "output", "weight"].as_slice()),
        (report.two_column_csv(), &["activation", "weight"]),
    ] {
        let back = imported("small", &text);
        assert_eq!(back.planned.arena_bytes, report.planned_bytes());
        for role in roles.iter().filter(|role| report.planned.by_role.contains_key(**role)) {
            assert!(back.planned.by_role.contains_key(*role), "{role}: {text}");
        }
    }
}
