//! [`Analysis`]: bytes and counts by TBD's keywords, and the sums that its script prints.

use std::fmt::Write;

use serde::Serialize;

use crate::Report;
use crate::export::tbd;

/// Sums by keyword.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// What was analysed.
    pub name: String,
    /// The keywords, those with most bytes first.
    pub rows: Vec<Row>,
    /// Tags that the script has no word for.
    pub unknown_tags: Vec<String>,
}

/// One keyword's sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What stands in the tags.
    pub keyword: String,
    /// What TBD calls it.
    pub name: String,
    /// How many bytes.
    pub bytes: u64,
    /// How many tags.
    pub count: usize,
}

impl Analysis {
    /// Of a report.
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

    /// The rows, then the sums of weights, forward results and what is unknown, which add up to all.
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
