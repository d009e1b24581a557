//! Collapsed stacks: `a;b;c N`, as flame graph programs and Perfetto read them.

use std::fmt::Write;

use crate::Report;
use crate::view::{Measure, stacks};

/// One line a stack, the root first.
pub(crate) fn collapsed(report: &Report, measure: Measure) -> String {
    let mut text = String::new();
    for (path, amount) in stacks(report, measure) {
        // A space would end the stack.
        let frames: Vec<String> = path.iter().map(|frame| frame.replace(' ', "_")).collect();
        let _ = writeln!(text, "{} {amount}", frames.join(";"));
    }
    text
}
