//! [`Page`]: one HTML file with everything in it, that needs no network and no server.
//!
//! The numbers are the report's JSON with bars and flame graphs worked out; the scripts beside this file draw them. The
//! packing map is one canvas, so that ten thousand buffers stay fluid.

use serde::Serialize;

use crate::view::{Bars, Diff, Flame, Measure, Options, STYLES, WhatIf};
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

/// A page of a report, with whatever else there is to show.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    /// The report.
    pub report: &'a Report,
    /// What its bars are made of.
    pub options: &'a Options,
    /// Where the time of a run goes.
    pub steps: Option<&'a StepsReport>,
    /// How the report differs from another.
    pub diff: Option<&'a Diff>,
    /// Plans for other batches.
    pub what_if: Option<&'a WhatIf>,
}

/// What the scripts read.
#[derive(Serialize)]
struct Data<'a> {
    report: &'a Report,
    bars: Bars,
    flame_peak: Flame,
    flame_held: Flame,
    steps: Option<&'a StepsReport>,
    diff: Option<&'a Diff>,
    what_if: Option<&'a WhatIf>,
    styles: Vec<Look>,
}

/// The look of a role.
#[derive(Serialize)]
struct Look {
    name: &'static str,
    color: &'static str,
    pattern: &'static str,
    letter: char,
}

impl<'a> Page<'a> {
    /// A page of a report alone.
    pub fn new(report: &'a Report, options: &'a Options) -> Page<'a> {
        Page { report, options, steps: None, diff: None, what_if: None }
    }

    /// The file.
    pub fn html(&self) -> String {
        let styles = STYLES.iter().map(|(name, style)| Look {
            name,
            color: style.color,
            pattern: style.pattern.name(),
            letter: style.letter,
        });
        let data = Data {
            report: self.report,
            bars: Bars::new(self.report, self.options),
            flame_peak: Flame::new(self.report, Measure::PeakBytes),
            flame_held: Flame::new(self.report, Measure::ByteSteps),
            steps: self.steps,
            diff: self.diff,
            what_if: self.what_if,
            styles: styles.collect(),
        };
        let data = serde_json::to_string(&data).expect("a page's data has no maps with other keys than strings");
        // Nothing in the data may end the element that it stands in.
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
