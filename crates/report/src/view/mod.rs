//! Views of a [`Report`](crate::Report): each a small struct with its numbers, a text for terminals and a picture.
//!
//! Text never exceeds the requested width. Pictures are self-contained SVG files. The interactive page is in `page`.

mod actual;
mod analysis;
mod bars;
mod diff;
mod flame;
mod groups;
mod headline;
mod map;
mod opportunities;
mod palette;
mod pprint;
mod resident;
mod saved;
mod svg;
mod terminal;
mod timeline;
mod top;
mod what_if;

pub use analysis::Analysis;
pub use bars::{Bar, Bars, Depth};
pub use diff::{Diff, MovedBuffer, TagDelta, TagSize};
pub(crate) use flame::stacks;
pub use flame::{Flame, Measure};
pub use groups::{Groups, GroupsError};
pub use headline::Fit;
pub(crate) use palette::{LAYER_COLORS, STYLES};
pub use what_if::{Largest, Variant, WhatIf};

use crate::Report;
use crate::model::Origin;

/// A view, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Arena, bounds, weights, process.
    Headline,
    /// Bytes by layer and by role.
    Bars,
    /// The largest buffers at the peak, and why they are alive.
    Top,
    /// Changes that would need less memory.
    Opportunities,
    /// The values that a training step saves for its backward pass, and why.
    Saved,
    /// The weights in memory at each step, if some are read in every run.
    Resident,
    /// Live bytes over the steps.
    Timeline,
    /// The packing map: steps across, offsets up.
    Map,
    /// Bytes by scope.
    Flame,
    /// Planned and actual memory.
    Actual,
}

impl View {
    /// All views in the order of a full report.
    pub const ALL: [View; 10] = [
        View::Headline,
        View::Bars,
        View::Top,
        View::Opportunities,
        View::Saved,
        View::Resident,
        View::Timeline,
        View::Map,
        View::Flame,
        View::Actual,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            View::Headline => "headline",
            View::Bars => "bars",
            View::Top => "top",
            View::Opportunities => "opportunities",
            View::Saved => "saved",
            View::Resident => "resident",
            View::Timeline => "timeline",
            View::Map => "map",
            View::Flame => "flame",
            View::Actual => "actual",
        }
    }

    /// Parses a list such as `bars,top`. With `all` in it, every view.
    ///
    /// # Errors
    /// An unknown name, with the known ones.
    pub fn list(words: &str) -> Result<Vec<View>, String> {
        const EVERY: &str = "all";
        let named = |word: &str| View::ALL.into_iter().find(|view| view.name() == word.trim());
        let names = View::ALL.map(View::name).join(", ");
        let view = |word| named(word).ok_or_else(|| format!("`{word}` is not a view; there are {names} and {EVERY}"));
        let own =
            words.split(',').filter(|word| word.trim() != EVERY).map(view).collect::<Result<Vec<View>, String>>()?;
        let has_every = words.split(',').any(|word| word.trim() == EVERY);
        Ok(if has_every { View::ALL.to_vec() } else { own })
    }
}

/// Options of the views.
#[derive(Clone, Debug)]
pub struct ViewOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// Rows of a table.
    pub rows: usize,
    /// Number of scope parts that identify a layer.
    pub depth: Depth,
    /// Keywords that define the categories of the bars.
    pub groups: Option<Groups>,
    /// The total that was measured by other means.
    pub expected: Option<u64>,
    /// The quantity of flame graphs.
    pub measure: Measure,
}

/// The fewest columns of a view.
pub(crate) const WIDTH_MIN: usize = 72;

impl ViewOptions {
    /// The default options, as wide as the terminal if the standard output is one.
    pub fn of_terminal() -> ViewOptions {
        let options = ViewOptions::default();
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        // A terminal that does not know its size reports 0.
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|&columns| 0 < columns);
        ViewOptions { width: columns.map_or(options.width, |columns| columns.max(WIDTH_MIN)), ..options }
    }
}

impl Default for ViewOptions {
    fn default() -> ViewOptions {
        ViewOptions {
            width: 80,
            rows: 10,
            depth: Depth::Auto,
            groups: None,
            expected: None,
            measure: Measure::PeakBytes,
        }
    }
}

impl Report {
    /// The sum and the largest entries of each category.
    pub fn entries(&self, options: &ViewOptions) -> String {
        pprint::text(self, options)
    }

    /// A view as text for a terminal.
    pub fn text(&self, view: View, options: &ViewOptions) -> String {
        match view {
            View::Headline => headline::text(self, options.width),
            View::Bars => Bars::new(self, options).text(options.width),
            View::Top => top::text(self, options),
            View::Opportunities => opportunities::text(self, options),
            View::Saved => saved::text(self, options),
            View::Resident => resident::text(self, options),
            View::Timeline | View::Map if self.origin != Origin::Plan => no_steps(view),
            View::Timeline => timeline::text(self, options.width),
            View::Map => map::text(self, options.width),
            View::Flame => Flame::new(self, options.measure).text(options.width, options.rows),
            View::Actual => actual::text(self, options),
        }
    }

    /// A view as an SVG file; `None` if it has no picture.
    pub fn svg(&self, view: View, options: &ViewOptions) -> Option<String> {
        match view {
            View::Bars => Some(Bars::new(self, options).svg(&self.model)),
            View::Timeline | View::Map if self.origin != Origin::Plan => None,
            View::Timeline => Some(timeline::svg(self)),
            View::Map => Some(map::svg(self)),
            View::Flame => Some(Flame::new(self, options.measure).svg(&self.model)),
            View::Headline | View::Top | View::Opportunities | View::Saved | View::Resident | View::Actual => None,
        }
    }
}

/// A view over steps of an imported profile: it has neither releases nor addresses.
fn no_steps(view: View) -> String {
    format!("{:<12} not for an imported profile: it has no releases and no addresses\n", view.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_with_all_has_every_view() {
        let names =
            |words: &str| View::list(words).map(|views| views.iter().map(|view| view.name()).collect::<Vec<_>>());
        assert_eq!(names("top, bars").unwrap(), ["top", "bars"]);
        for words in ["all", "all,all", "bars, all"] {
            assert_eq!(names(words).unwrap(), View::ALL.map(View::name));
        }
        for (words, unknown) in [("all,x", "x"), ("", ""), ("top,", "")] {
            assert!(names(words).unwrap_err().starts_with(&format!("`{unknown}` is not a view; there are ")));
        }
    }
}
