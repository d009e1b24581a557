//! The page in headless Chromium: it is loaded from a file, an added script acts as a user, and the resulting document
//! is read back. Without Chromium the tests are skipped, with a message.

use std::process::Command;

use prestow_report::{Diff, Largest, Page, Report, StepReport, StepsReport, Variant, ViewOptions, WhatIf};
use serde_json::Value;

use crate::plans::{folder, random, skip, small, small_measured};

/// Collects errors from the first line on, before a script of the page can hide them.
const BEFORE: &str = "<script>window.faults=[];window.onerror=(m,s,l)=>{faults.push(m+' at '+l)};\
    window.addEventListener('unhandledrejection',e=>faults.push(String(e.reason)));\
    for(const k of['error','warn'])console[k]=(...a)=>faults.push(a.join(' '));</script>";

/// The actions of a user, as a script.
const AFTER: &str = include_str!("visitor.js");

/// The results of `visitor.js` on a page with `words` as the search; `None` if the test is skipped because Chromium is
/// missing.
fn browse(test: &str, page: &Page, words: &str) -> Option<Value> {
    let html = page.html();
    for outside in ["http://", "https://", " src=", "@import", "url(http"] {
        let html = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!html.contains(outside), "a page that stands alone names {outside}");
    }
    let words = format!("<script>window.words={}</script>", serde_json::json!(words));
    let html = html
        .replacen("<meta charset", &format!("{BEFORE}{words}<meta charset"), 1)
        .replace("</body>", &format!("<script>{AFTER}</script></body>"));
    let folder = folder(test);
    let path = folder.join("page.html");
    std::fs::write(&path, html).expect("writable");
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,900", "--dump-dom"]);
    command.arg("--virtual-time-budget=8000").arg(format!("--user-data-dir={}", folder.join("profile").display()));
    let output = match command.arg(format!("file://{}", path.display())).output() {
        Ok(output) => output,
        Err(_) => {
            skip(&format!("report::{test}"), "`chromium` is not installed");
            return None;
        }
    };
    let dom = String::from_utf8_lossy(&output.stdout);
    let seen = dom.split("<pre id=\"seen\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let Some(seen) = seen else {
        panic!("the page's script did not end: {}", String::from_utf8_lossy(&output.stderr));
    };
    let seen = seen.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let seen: Value = serde_json::from_str(&seen).expect("it was written as JSON");
    assert_eq!(seen["faults"], serde_json::json!([]), "no errors on the console");
    assert_eq!(seen["outside"], serde_json::json!([]), "nothing was fetched");
    assert_eq!(seen["wide"], true, "nothing stands out at the side");
    Some(seen)
}

#[test]
fn bounds_of_a_page_differ_from_its_arena() {
    let mut report = Report::new(&small());
    let arena = report.planned.arena_bytes;
    for (bound, count) in [(arena, 1), (arena - 100, 2)] {
        report.planned.any_kernels_bytes = bound;
        let Some(seen) = browse("bounds_page", &Page::new(&report, &ViewOptions::default()), "") else { return };
        let is_bound = |card: &&Value| {
            [arena, bound].map(|bytes| types::Bytes(bytes).to_string()).contains(&card.as_str().unwrap().into())
        };
        let cards = seen["cards"].as_array().expect("it is a list");
        assert_eq!(cards.iter().filter(is_bound).count(), count, "{cards:?}, bound {bound} of {arena}");
    }
}

#[test]
fn page_of_a_small_plan_is_interactive() {
    let report = small_measured();
    let options = ViewOptions::default();
    let base = Report::new(&small());
    let diff = Diff::new(&base, &Report::new(&random(1, 5, 9)));
    let step = StepReport {
        scope: "block1/conv1".into(),
        kernel: "conv".into(),
        label: String::new(),
        ms: 1.0,
        share: 1.0,
        flops: 1,
        gflop_per_s: 1.0,
        of_peak: 0.1,
        arena_bytes: 1,
        constant_bytes: 1,
        gb_per_s: 1.0,
        of_bandwidth: 0.1,
        of_bound: 0.1,
    };
    let steps =
        StepsReport { steps: vec![step], ms: 1.0, peak_gflop_per_s: 1.0, peak_gb_per_s: 1.0, iters: 1, threads: 1 };
    let variant = |dtype: &str, batch: u64| Variant {
        batch,
        dtype: dtype.into(),
        arena_bytes: 832,
        lower_bound_bytes: 768,
        state: Some(types::Proof::Gap),
        least_bytes: 768,
        weights_bytes: 400,
        total_bytes: 1232,
        fits: Some(true),
        asked: true,
    };
    let what_if = WhatIf {
        model: "small".into(),
        target: "cpu".into(),
        capacity_bytes: Some(2000),
        variants: vec![variant("f32", 1), variant("f32", 4), variant("bf16", 1), variant("bf16", 4)],
        largest: vec![
            Largest { dtype: "f32".into(), batch: Some(1), is_largest: false },
            Largest { dtype: "bf16".into(), batch: None, is_largest: false },
        ],
    };
    let page = Page { steps: Some(&steps), diff: Some(&diff), what_if: Some(&what_if), ..Page::new(&report, &options) };
    let Some(seen) = browse("small_page", &page, "conv2") else { return };
    assert_eq!(seen["title"], "small");
    assert!(10 < seen["colors"].as_u64().unwrap_or(0), "the map is drawn: {}", seen["colors"]);
    assert_eq!(seen["found"], "1 buffer, 2 constants");
    assert_eq!(seen["card"], "block1/conv2");
    assert!(seen["first"].as_str().is_some_and(|text| text.starts_with("Alive at step 0:")), "{}", seen["first"]);
    assert!(seen["peak"].as_str().is_some_and(|text| text.contains("step 3, the peak")), "{}", seen["peak"]);
    assert_eq!(seen["focus"], "map");
    assert_eq!(seen["next"], "head/add");
    // A line a dtype, and an answer for each.
    assert_eq!(seen["curves"], 2);
    let answer = seen["answer"].as_str().unwrap_or("");
    assert!(answer.contains("f32: the largest batch") && answer.contains("bf16: no batch fits"), "{answer}");
    assert!(!answer.contains("undefined"), "{answer}");
    // A sorted table stays sorted when another step fills it, and keeps the focus.
    assert_eq!(seen["sorted"], serde_json::json!(["descending", "descending"]));
    assert_eq!(seen["kept"], "offset");
    assert_eq!(seen["nameless"], serde_json::json!([]), "each canvas has a name");
    assert_eq!(seen["heads"], serde_json::json!([]), "each head of a table has a text in print");
    assert_eq!(seen["bars"], 3);
    // The proofs have the words of the terminal, and the page names the plan that it is about.
    assert_eq!(seen["states"], serde_json::json!(["gap 8.33 %", "gap 8.33 %", "gap 8.33 %", "gap 8.33 %"]));
    assert_eq!(seen["unreached"], serde_json::json!([]), "each table that scrolls is reached by the keyboard");
    assert!(seen["hint"].as_f64().is_some_and(|ratio| 4.5 <= ratio), "contrast of the hint: {}", seen["hint"]);
    assert_eq!(seen["printed"], serde_json::json!([false, true]), "canvases are drawn for the paper");
    assert_eq!(seen["breaks"], true, "names break behind their separators");
    let sections = seen["sections"].as_array().expect("a list").len();
    assert_eq!(sections, 12, "{}", seen["sections"]);
}

#[test]
fn the_page_of_an_imported_profile_has_no_steps() {
    let report =
        prestow_report::import("old.csv", b"in_arg:w,1.5\ndata_entry:conv_oedge0,0.25\n").expect("it is valid");
    let options = ViewOptions::default();
    let Some(seen) = browse("imported_page", &Page::new(&report, &options), "conv") else { return };
    let sections: Vec<&str> = seen["sections"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(!sections.contains(&"Timeline") && !sections.contains(&"Packing map"), "{sections:?}");
    assert!(!seen["card_text"].as_str().unwrap_or("").contains("offset"), "{}", seen["card_text"]);
}

#[test]
fn the_page_of_ten_thousand_buffers_stays_fluid() {
    let plan = random(7, 6000, 10_000);
    let report = Report::new(&plan);
    let options = ViewOptions::default();
    let Some(seen) = browse("large_page", &Page::new(&report, &options), "buffer9999") else { return };
    // Paper has the first rows, with a caption that gives their number.
    assert_eq!(seen["rows"], serde_json::json!([400, 40]));
    assert!(seen["captions"].as_str().is_some_and(|text| text.contains("the first 40 of ")), "{}", seen["captions"]);
    assert_eq!(seen["found"], "1 buffer, 0 constants");
    assert!(seen["card"].as_str().is_some_and(|text| text.ends_with("buffer9999")), "{}", seen["card"]);
    // The time to draw a frame of the map; generous, for machines under load.
    assert!(seen["ms"].as_f64().is_some_and(|ms| ms < 200.0), "{} ms a frame", seen["ms"]);
}
