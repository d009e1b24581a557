//! The page of results in headless Chromium. Without Chromium the test is skipped, with a message.

use std::io::Write as _;
use std::process::Command;

use prestow_bench_suite::{Plot, ResultTable};
use serde_json::{Value, json};

use crate::Folder;

/// The actions of a user: names, heads and the filter by keyboard and mouse.
const VISITOR: &str = r##"<script>
addEventListener("load", () => {
  const seen = { faults: window.faults };
  const count = selector => document.querySelectorAll(selector).length;
  seen.plots = [...document.querySelectorAll("svg")].map(svg => svg.querySelectorAll(".series").length);
  const look = series => ["stroke", "stroke-dasharray"].map(key => series.querySelector("polyline").getAttribute(key)).join();
  seen.looks = [...document.querySelectorAll("svg")].slice(2).map(svg => new Set([...svg.querySelectorAll(".series")].map(look)).size);
  seen.named = [...document.querySelectorAll("svg")].every(svg => svg.getAttribute("aria-label"));
  const name = document.querySelector("tbody button");
  name.focus();
  seen.focus = document.activeElement === name;
  name.click();
  seen.chosen = [name.textContent, count("tr.selected"), count(".series.selected"), count("svg.chosen")];
  dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  seen.none = count("tr.selected") + count(".series.selected");
  document.querySelector("g.series").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  seen.byline = count("tr.selected");
  dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  const head = document.querySelectorAll("section")[1].querySelectorAll("th button")[2];
  const column = () => [...document.querySelectorAll("section")[1].querySelectorAll("tbody tr")].map(row => row.cells[2].textContent);
  head.click();
  seen.up = column();
  head.click();
  seen.down = column();
  const filter = document.getElementById("filter");
  filter.value = "slow";
  filter.dispatchEvent(new Event("input"));
  seen.filtered = [document.getElementById("count").textContent, count("svg .series")];
  const log = document.getElementById("log");
  log.click();
  seen.levels = [...document.querySelector("svg").querySelectorAll("text[text-anchor=end]")].map(text => text.textContent);
  log.click();
  seen.wide = document.documentElement.scrollWidth <= innerWidth;
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
});
</script>"##;

fn rows(cells: &[&[&str]]) -> Vec<Vec<String>> {
    cells.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect()
}

/// Counts the test as skipped.
fn skip(reason: &str) {
    eprintln!("SKIPPED: bench_suite::page: {reason}");
    if let Some(path) = std::env::var_os("PRESTOW_SKIPPED")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = writeln!(file, "bench_suite::page: {reason}");
    }
}

#[test]
fn page_of_results_has_plots_with_one_selection() {
    let mut times = ResultTable::new("results.time by exp.model and exp.replica_batch", &["exp.model", "1", "8"]);
    times.rows = rows(&[&["quick", "1.250", "9.000"], &["slow <b>", "20.500", "160.000"]]);
    times.plot = Plot::Columns { over: "exp.replica_batch".into(), value: "results.time".into() };
    let mut memory = ResultTable::new("memory", &["model", "batch", "planned MiB", "status"]);
    memory.rows = rows(&[
        &["quick", "1", "9.5", "done"],
        &["quick", "8", "10.0", "done"],
        &["slow <b>", "1", "", "does not fit"],
        &["slow <b>", "8", "100.0", "done"],
    ]);
    memory.plot = Plot::Bars(vec![2]);
    let mut resources = ResultTable::new("resources over time", &["cell", "second", "cpu %"]);
    resources.rows = rows(&[&["quick, batch 8", "0.10", "50.0"], &["quick, batch 8", "0.20", "99.0"]]);
    resources.plot = Plot::Lines { x: 1, ys: vec![2] };
    let mut many = ResultTable::new("many lines", &["line", "1", "2"]);
    many.rows = (0..30).map(|ix| vec![format!("line {ix}"), ix.to_string(), "1".into()]).collect();
    many.plot = Plot::Columns { over: "batch".into(), value: "results.time".into() };

    let faults = "<script>window.faults=[];window.onerror=(m,s,l)=>{faults.push(m+' at '+l)};</script>";
    let page = ResultTable::page("Benchmarks", &[times, memory, resources, many])
        .replacen("<meta charset", &format!("{faults}<meta charset"), 1)
        .replace("</body>", &format!("{VISITOR}</body>"));
    let folder = Folder::new("page");
    let path = folder.0.join("page.html");
    std::fs::write(&path, page).unwrap();
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=620,900", "--dump-dom"]);
    command.args(["--virtual-time-budget=4000".into(), format!("--user-data-dir={}", folder.0.join("user").display())]);
    let Ok(output) = command.arg(format!("file://{}", path.display())).output() else {
        return skip("`chromium` is not installed");
    };
    let dom = String::from_utf8_lossy(&output.stdout);
    let seen = dom.split("<pre id=\"seen\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let seen = seen.unwrap_or_else(|| panic!("the script did not end: {}", String::from_utf8_lossy(&output.stderr)));
    let seen = seen.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let seen: Value = serde_json::from_str(&seen).unwrap();
    let wanted = json!({
        "faults": [],
        // Two lines of times, four rows of memory, one line of resources, many lines.
        "plots": [2, 4, 1, 30],
        "looks": [1, 30],
        "named": true,
        "focus": true,
        // Its row of times, two of memory and two of resources; a line, two bars and a line, in three plots.
        "chosen": ["quick", 5, 4, 3],
        "none": 0,
        "byline": 5,
        // A cell without a value is last in both directions.
        "up": ["9.5", "10.0", "100.0", ""],
        "down": ["100.0", "10.0", "9.5", ""],
        "filtered": ["3 of 38 rows", 3],
        // Only the row of 20.5 and 160 is left.
        "levels": ["10", "100", "1000"],
        "wide": true,
    });
    assert_eq!(seen, wanted);
}
