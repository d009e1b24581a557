//! The sum and the largest entries of each category, in the format of MXNet's memory profiler: by layer, then by data
//! structure.

use std::collections::BTreeMap;
use std::fmt::Write;

use types::Bytes;

use super::bars::{Bars, signed};
use super::terminal::{fit, percent};
use super::{Groups, ViewOptions};
use crate::Report;
use crate::export::mxnet;
use crate::model::{Item, items};

/// Two lists of categories, each with its largest entries.
pub(crate) fn text(report: &Report, options: &ViewOptions) -> String {
    let items = items(report);
    let bars = Bars::new(report, options);
    let mut text = String::new();
    for (title, rows, is_layer) in [("by layer", &bars.by_layer, true), ("by role", &bars.by_role, false)] {
        let _ = writeln!(text, "{title}");
        let mut entries: BTreeMap<String, Vec<(&Item, u64)>> = BTreeMap::new();
        for item in &items {
            let name = bars.name_of(item, options, is_layer);
            entries.entry(name).or_default().push((item, item.bytes));
        }
        for row in rows {
            let _ = writeln!(
                text,
                "  {} = {} ({:.1} %)",
                row.name,
                signed(row.bytes),
                percent(row.bytes, bars.total_bytes)
            );
            let mut list = entries.remove(&row.name).unwrap_or_default();
            list.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.name.cmp(&b.0.name)));
            for (item, bytes) in list.iter().take(options.rows) {
                let tag = fit(&mxnet::tag(item), options.width.saturating_sub(40).max(20));
                let line = format!("    {:>12}  {tag}  {}", Bytes(*bytes).to_string(), item.type_text);
                let _ = writeln!(text, "{}", line.trim_end());
            }
            if options.rows < list.len() {
                let _ = writeln!(text, "    {:>12}  {} more", "", list.len() - options.rows);
            }
        }
    }
    if options.groups.as_ref() == Some(&Groups::default()) {
        text.push_str("  the file of groups is empty: these are our own categories\n");
    }
    text
}
