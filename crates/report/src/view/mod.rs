//! Views of a [`Report`](crate::Report): each a small struct with its numbers, a text for terminals, and a picture.
//!
//! Texts are at most as wide as they are told. Pictures are SVG files that stand alone. The interactive page is in `page`.

mod actual;
mod analysis;
mod bars;
mod diff;
mod flame;
mod groups;
mod headline;
mod map;
mod palette;
mod pprint;
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
pub(crate) use palette::STYLES;
pub use what_if::{Largest, Variant, WhatIf};

use crate::Report;

/// One of the views, as the command line names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Arena, bounds, weights, process.
    Headline,
    /// By layer and by role.
    Bars,
    /// The largest at the peak, and why they are alive.
    Top,
    /// Live bytes over the steps.
    Timeline,
    /// Steps across, offsets up.
    Map,
    /// By scope.
    Flame,
    /// Planned against used.
    Actual,
}

impl View {
    /// All of them, in the order in which a whole report shows them.
    pub const ALL: [View; 7] =
        [View::Headline, View::Bars, View::Top, View::Timeline, View::Map, View::Flame, View::Actual];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            View::Headline => "headline",
            View::Bars => "bars",
            View::Top => "top",
            View::Timeline => "timeline",
            View::Map => "map",
            View::Flame => "flame",
            View::Actual => "actual",
        }
    }

    /// The views of a list such as `bars,top`, or `all`.
    ///
    /// # Errors
    /// A name that is none, with those that are.
    pub fn list(words: &str) -> Result<Vec<View>, String> {
        if words == "all" {
            return Ok(View::ALL.to_vec());
        }
        let named = |word: &str| View::ALL.into_iter().find(|view| view.name() == word.trim());
        let names = View::ALL.map(View::name).join(", ");
        let view = |word| named(word).ok_or_else(|| format!("`{word}` is not a view; there are {names} and all"));
        words.split(',').map(view).collect()
    }
}

/// What the views are asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Columns of the terminal.
    pub width: usize,
    /// Rows of a table.
    pub rows: usize,
    /// How much of a scope makes a layer.
    pub depth: Depth,
    /// Keywords that make the bars' categories instead.
    pub groups: Option<Groups>,
    /// What the whole was found to be by other means.
    pub expected: Option<u64>,
    /// What flame graphs measure.
    pub measure: Measure,
}

impl Default for Options {
    fn default() -> Options {
        Options { width: 80, rows: 10, depth: Depth::Auto, groups: None, expected: None, measure: Measure::PeakBytes }
    }
}

impl Report {
    /// For each category its sum and its largest entries.
    pub fn entries(&self, options: &Options) -> String {
        pprint::text(self, options)
    }

    /// A view for the terminal.
    pub fn text(&self, view: View, options: &Options) -> String {
        match view {
            View::Headline => headline::text(self),
            View::Bars => Bars::new(self, options).text(options.width),
            View::Top => top::text(self, options),
            View::Timeline => timeline::text(self, options.width),
            View::Map => map::text(self, options.width),
            View::Flame => Flame::new(self, options.measure).text(options.width, options.rows),
            View::Actual => actual::text(self, options),
        }
    }

    /// A view as an SVG file, where it has a picture.
    pub fn svg(&self, view: View, options: &Options) -> Option<String> {
        match view {
            View::Bars => Some(Bars::new(self, options).svg(&self.model)),
            View::Timeline => Some(timeline::svg(self)),
            View::Map => Some(map::svg(self)),
            View::Flame => Some(Flame::new(self, options.measure).svg(&self.model)),
            View::Headline | View::Top | View::Actual => None,
        }
    }
}
