//! [`Flame`]: bytes by scope as a tree, at the peak or weighted by lifetime.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use types::Bytes;

use super::svg::{Amount, Svg};
use super::terminal::{bar, fit, pad, percent};
use crate::Report;
use crate::model::{ItemKind, items, spans};

/// The quantity of a flame graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bytes at the peak step.
    PeakBytes,
    /// Size times lifetime in steps.
    ByteSteps,
}

impl Measure {
    /// The measure with a name of the command line.
    pub fn named(word: &str) -> Option<Measure> {
        match word {
            "peak" => Some(Measure::PeakBytes),
            "byte-steps" => Some(Measure::ByteSteps),
            _ => None,
        }
    }
}

/// A tree of scopes; leaves are roles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flame {
    children: BTreeMap<String, Flame>,
    /// Sum of this scope and all scopes below.
    total: u128,
    /// Whether leaves below are counted in byte-steps.
    is_byte_steps: bool,
}

impl Flame {
    /// The tree of a report.
    pub fn new(report: &Report, measure: Measure) -> Flame {
        let mut root = Flame { is_byte_steps: measure == Measure::ByteSteps, ..Flame::default() };
        stacks(report, measure).iter().for_each(|(path, amount)| root.add(path, *amount));
        root
    }

    fn add(&mut self, path: &[String], amount: u128) {
        self.total += amount;
        if let [first, rest @ ..] = path {
            self.children.entry(first.clone()).or_default().add(rest, amount);
        }
    }

    /// The total sum.
    pub fn total(&self) -> u128 {
        self.total
    }

    /// Children, largest first.
    fn ordered(&self) -> Vec<(&String, &Flame)> {
        let mut children: Vec<_> = self.children.iter().collect();
        children.sort_by(|a, b| b.1.total.cmp(&a.1.total).then_with(|| a.0.cmp(b.0)));
        children
    }

    fn amount(&self, of: u128) -> String {
        match self.is_byte_steps {
            true => format!("{} steps", Bytes(u64::try_from(of).unwrap_or(u64::MAX))),
            false => Bytes(u64::try_from(of).unwrap_or(u64::MAX)).to_string(),
        }
    }

    /// An indented tree without entries below one percent.
    pub(crate) fn text(&self, width: usize, rows: usize) -> String {
        let measure = if self.is_byte_steps { "byte-steps (size x lifetime)" } else { "bytes at the peak" };
        let mut text = format!("by scope     {measure}: {}\n", self.amount(self.total));
        let mut left = rows.max(1) * 4;
        self.lines(&mut text, 0, width, self, &mut left);
        text
    }

    fn lines(&self, text: &mut String, depth: usize, width: usize, root: &Flame, left: &mut usize) {
        for (name, child) in self.ordered() {
            if child.total * 100 < root.total || *left == 0 {
                continue;
            }
            *left -= 1;
            let share = percent(child.total as i64, root.total as i64);
            let names = (width * 2 / 5).max(20);
            let label = format!("{}{name}", "  ".repeat(depth.min(8)));
            let chars = bar(child.total as u64, root.total as u64, width.saturating_sub(names + 34));
            let line = format!("  {} {:>19} {share:5.1} %  {chars}", pad(&label, names), root.amount(child.total));
            let _ = writeln!(text, "{}", line.trim_end());
            child.lines(text, depth + 1, width, root, left);
        }
    }

    /// Stacked boxes with the total at the bottom.
    pub(crate) fn svg(&self, model: &str) -> String {
        let levels = self.depth() as f64;
        let (left, top, width, row) = (10.0, 44.0, 980.0, 20.0);
        let mut svg = Svg::new(left + width + 10.0, top + row * levels + 20.0);
        let measure = if self.is_byte_steps { "byte-steps (size x lifetime)" } else { "bytes at the peak" };
        svg.text(20.0, 28.0, "title", &format!("{}: {measure}, {}", fit(model, 50), self.amount(self.total)));
        let scale = width / self.total.max(1) as f64;
        Boxes { svg: &mut svg, bottom: top + row * (levels - 1.0), row, scale }.draw(self, "all", left, 0, self);
        svg.finish()
    }

    fn depth(&self) -> usize {
        1 + self.children.values().map(Flame::depth).max().unwrap_or(0)
    }
}

/// `{"total": bytes, "children": [["name", ..], ..]}`, largest first.
impl Serialize for Flame {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tree = serializer.serialize_struct("Flame", 2)?;
        tree.serialize_field("total", &u64::try_from(self.total).unwrap_or(u64::MAX))?;
        tree.serialize_field("children", &self.ordered())?;
        tree.end()
    }
}

struct Boxes<'a> {
    svg: &'a mut Svg,
    bottom: f64,
    row: f64,
    scale: f64,
}

impl Boxes<'_> {
    fn draw(&mut self, flame: &Flame, name: &str, x: f64, level: usize, root: &Flame) {
        let width = flame.total as f64 * self.scale;
        if width < 0.3 {
            return;
        }
        let y = self.bottom - self.row * level as f64;
        let share = percent(flame.total as i64, root.total as i64);
        let title = format!("{name}: {} ({share:.1} %)", root.amount(flame.total));
        let amount = match root.is_byte_steps {
            true => Amount::ByteSteps(flame.total),
            false => Amount::Bytes(flame.total as i128),
        };
        let place = [x, y, width, self.row - 1.0];
        if flame.children.is_empty() {
            self.svg.rect(place, name.rsplit(' ').next().unwrap_or(name), &title, amount);
        } else {
            self.svg.layer(place, level % 2, &title, amount);
        }
        if 24.0 <= width {
            self.svg.text(x + 3.0, y + 13.0, "small on", &fit(name, (width / 6.2) as usize));
        }
        let mut at = x;
        for (name, child) in flame.ordered() {
            self.draw(child, name, at, level + 1, root);
            at += child.total as f64 * self.scale;
        }
    }
}

/// All bytes by path: the parts of the scope, then the role.
pub(crate) fn stacks(report: &Report, measure: Measure) -> Vec<(Vec<String>, u128)> {
    let mut sums: BTreeMap<Vec<String>, u128> = BTreeMap::new();
    let mut add = |scope: &str, role: &str, amount: u128| {
        let mut path: Vec<String> =
            scope.split('/').filter(|part| !part.is_empty()).map(|part| part.replace([';', '\n'], "_")).collect();
        path.push(role.to_string());
        if 0 < amount {
            *sums.entry(path).or_default() += amount;
        }
    };
    let steps = u128::from(report.step_count());
    for item in items(report) {
        let times = match (measure, item.kind) {
            (Measure::PeakBytes, _) => 1,
            // The contents of the arena change from step to step and are added below.
            (Measure::ByteSteps, ItemKind::Buffer(_) | ItemKind::Free) => continue,
            (Measure::ByteSteps, _) => steps,
        };
        add(&item.scope, &item.role, u128::from(item.bytes) * times);
        add("", "padding", u128::from(item.padded_bytes - item.bytes) * times);
    }
    if measure == Measure::ByteSteps {
        for buffer in &report.planned.buffers {
            for span in spans(buffer) {
                let scope = span.value.map_or(&buffer.scope, |value| &buffer.values[value].name);
                let steps = u128::from(span.last_step - span.first_step) + 1;
                add(scope, buffer.role_of(span.value), u128::from(span.bytes) * steps);
            }
            for piece in buffer.pieces() {
                add(
                    "",
                    "padding",
                    u128::from(piece.padded_bytes - buffer.own_bytes(piece)) * u128::from(piece.steps()),
                );
            }
        }
        let free = report.planned.timeline.get("free").map(|live| live.iter().map(|bytes| u128::from(*bytes)).sum());
        add("", "free", free.unwrap_or(0));
    }
    sums.into_iter().collect()
}
