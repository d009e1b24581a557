//! Collapsed stacks, `a;b;c N`: the input of flame graph programs and Perfetto.

use std::fmt::Write;

use crate::Report;
use crate::view::{Measure, stacks};

/// One line per stack, root first.
pub(crate) fn collapsed(report: &Report, measure: Measure) -> String {
    let mut text = String::new();
    for (path, amount) in stacks(report, measure) {
        // A space ends the stack.
        let frames: Vec<String> = path.iter().map(|frame| frame.replace(' ', "_")).collect();
        let _ = writeln!(text, "{} {amount}", frames.join(";"));
    }
    text
}
