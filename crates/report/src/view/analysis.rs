//! [`Analysis`]: bytes and counts by TBD's keywords, with the sums of TBD's script.

use std::fmt::Write;

use serde::Serialize;

use crate::Report;
use crate::export::tbd;

/// Sums by keyword.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Name of the analyzed model.
    pub name: String,
    /// The keywords, largest first.
    pub rows: Vec<Row>,
    /// Tags that contain none of the keywords.
    pub unknown_tags: Vec<String>,
}

/// One keyword's sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The keyword in the tags.
    pub keyword: String,
    /// TBD's name of the keyword.
    pub name: String,
    /// Sum of bytes.
    pub bytes: u64,
    /// Number of tags.
    pub count: usize,
}

impl Analysis {
    /// Analyzes a report.
    pub fn new(report: &Report) -> Analysis {
        let mut analysis = Analysis { name: report.model.clone(), rows: Vec::new(), unknown_tags: Vec::new() };
        for (tag, bytes) in tbd::tags(report) {
            let (keyword, name) = tbd::keyword(&tag).unwrap_or_else(|| {
                analysis.unknown_tags.push(tag.clone());
                ("", "Forward, no keyword")
            });
            match analysis.rows.iter_mut().find(|row| row.keyword == keyword) {
                Some(row) => {
                    row.bytes += bytes;
                    row.count += 1;
                }
                None => analysis.rows.push(Row { keyword: keyword.into(), name: name.into(), bytes, count: 1 }),
            }
        }
        analysis.rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.keyword.cmp(&b.keyword)));
        analysis
    }

    /// The rows, then the sums of weights, forward results and unknown tags, which add up to the total.
    pub fn text(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut text = format!("{}\n", self.name);
        for Row { keyword, name, bytes, count } in &self.rows {
            let _ = writeln!(text, "  {name:<24} {:>12.2} MiB  {count:>6}  {keyword}", mib(*bytes));
        }
        let sum =
            |of: &dyn Fn(&str) -> bool| self.rows.iter().filter(|row| of(&row.keyword)).map(|row| row.bytes).sum();
        let is_weight = |word: &str| matches!(word, "in_arg" | "arg_grad");
        let is_unknown = |word: &str| matches!(word, "untagged" | "warning!,ctx_source_unclear");
        let sums: [(&str, u64); 4] = [
            ("all allocations", sum(&|_| true)),
            ("weights and gradients", sum(&is_weight)),
            ("forward", sum(&|word| !is_weight(word) && !is_unknown(word))),
            ("unknown", sum(&is_unknown)),
        ];
        for (name, bytes) in sums {
            let _ = writeln!(text, "  {name:<24} {:>12.2} MiB", mib(bytes));
        }
        let count: usize = self.rows.iter().map(|row| row.count).sum();
        let _ = writeln!(text, "  {:<24} {count:>12}", "annotations");
        text
    }
}
