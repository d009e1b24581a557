//! [`Page`]: one self-contained HTML file that needs neither network nor server.
//!
//! The data are the report's JSON with bars and flame graphs precomputed; the scripts next to this file draw them. The
//! packing map is one canvas, so that ten thousand buffers remain interactive.

use serde::Serialize;

use crate::model::{proof_text, spans};
use crate::view::{Bars, Diff, Flame, LAYER_COLORS, Measure, STYLES, Variant, ViewOptions, WhatIf};
use crate::{Report, StepsReport};

const HTML: &str = include_str!("page.html");
const CSS: &str = include_str!("page.css");
const SCRIPTS: [&str; 7] = [
    include_str!("common.js"),
    include_str!("charts.js"),
    include_str!("flame.js"),
    include_str!("map.js"),
    include_str!("tables.js"),
    include_str!("what_if.js"),
    include_str!("page.js"),
];

/// The contents of a page: a report and optional further parts.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    /// The report.
    pub report: &'a Report,
    /// ViewOptions of the bars and flame graphs.
    pub options: &'a ViewOptions,
    /// Time by step.
    pub steps: Option<&'a StepsReport>,
    /// Differences to another report.
    pub diff: Option<&'a Diff>,
    /// Plans for other batches.
    pub what_if: Option<&'a WhatIf>,
}

/// The data for the scripts.
#[derive(Serialize)]
struct Data<'a> {
    report: &'a Report,
    bars: Bars,
    flame_peak: Flame,
    flame_held: Flame,
    steps: Option<&'a StepsReport>,
    diff: Option<&'a Diff>,
    what_if: Option<&'a WhatIf>,
    /// The proof of each of its plans, in the words of the terminal.
    what_if_states: Vec<String>,
    /// The dtype of the plan that the rest of the page is about.
    what_if_dtype: Option<&'a str>,
    styles: Vec<Look>,
    /// Colors of layers and scopes.
    layers: [&'static str; 6],
    /// For buffers whose bytes change their role: buffer, first and last step, offset in the buffer, bytes, role.
    roles: Vec<(usize, u32, u32, u64, u64, &'a str)>,
}

/// The style of a role.
#[derive(Serialize)]
struct Look {
    name: &'static str,
    color: &'static str,
    pattern: &'static str,
    letter: char,
}

/// The bytes whose role is not that of their buffer.
fn roles(report: &Report) -> Vec<(usize, u32, u32, u64, u64, &str)> {
    let mut rows = Vec::new();
    for (ix, buffer) in report.planned.buffers.iter().enumerate() {
        for span in spans(buffer) {
            let role = buffer.role_of(span.value);
            if role != buffer.role {
                rows.push((ix, span.first_step, span.last_step, span.offset, span.bytes, role));
            }
        }
    }
    rows
}

impl<'a> Page<'a> {
    /// A page of a report alone.
    pub fn new(report: &'a Report, options: &'a ViewOptions) -> Page<'a> {
        Page { report, options, steps: None, diff: None, what_if: None }
    }

    /// The HTML file.
    pub fn html(&self) -> String {
        let styles = STYLES.iter().map(|(name, style)| Look {
            name,
            color: style.color,
            pattern: style.pattern.name(),
            letter: style.letter,
        });
        let variants = self.what_if.map_or(&[][..], |what_if| &what_if.variants);
        let planned = &self.report.planned;
        let is_shown = |row: &&Variant| {
            row.batch == self.report.batch
                && (row.arena_bytes, row.weights_bytes) == (planned.arena_bytes, planned.weights_bytes)
        };
        let data = Data {
            report: self.report,
            bars: Bars::new(self.report, self.options),
            flame_peak: Flame::new(self.report, Measure::PeakBytes),
            flame_held: Flame::new(self.report, Measure::ByteSteps),
            steps: self.steps,
            diff: self.diff,
            what_if: self.what_if,
            what_if_states: variants
                .iter()
                .map(|row| proof_text(row.state, row.arena_bytes, row.least_bytes))
                .collect(),
            what_if_dtype: variants.iter().find(|row| is_shown(row)).map(|row| &row.dtype[..]),
            styles: styles.collect(),
            layers: LAYER_COLORS,
            roles: roles(self.report),
        };
        let data = serde_json::to_string(&data).expect("a page's data has no maps with other keys than strings");
        // The data must not close its own element.
        let data = data.replace('<', "\\u003c");
        let title: String = self.report.model.chars().filter(|c| !matches!(c, '<' | '>' | '&')).collect();
        let mut page = String::with_capacity(HTML.len() + data.len() + (1 << 17));
        for (ix, part) in HTML.split("{{").enumerate() {
            let Some((name, rest)) = part.split_once("}}").filter(|_| 0 < ix) else {
                page.push_str(part);
                continue;
            };
            match name {
                "title" => page.push_str(&title),
                "style" => page.push_str(CSS),
                "data" => page.push_str(&data),
                _ => SCRIPTS.iter().for_each(|script| page.push_str(script)),
            }
            page.push_str(rest);
        }
        page
    }
}
