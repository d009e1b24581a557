//! [`Bars`]: two bars of the same bytes, by layer and by purpose, and a third of the arena alone. Each byte is counted once in each bar, including
//! padding, free bytes and the rest of the process, so that each bar adds up to the total.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use types::Bytes;

use super::groups::{OTHERS, UNTRACKABLE, first_match};
use super::palette::rank;
use super::svg::{Amount, Svg};
use super::terminal::{bar, fit, fit_all, pad, percent};
use super::{Groups, ViewOptions};
use crate::Report;
use crate::export::{mxnet, two_column};
use crate::model::{Item, ItemKind, Origin, items};

/// Number of scope parts that identify a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The least depth that gives several layers.
    Auto,
    /// This many parts.
    Parts(usize),
}

/// Two bars of the total, and one of the arena.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bars {
    /// Sum of each of the two bars.
    pub total_bytes: i64,
    /// By layer, or by the categories of the groups.
    pub by_layer: Vec<Bar>,
    /// By role, or by the categories of the groups.
    pub by_role: Vec<Bar>,
    /// The arena alone, by role: weights are often nearly all of the total.
    pub arena: Vec<Bar>,
    /// Number of scope parts that identify a layer.
    pub depth: usize,
}

/// A segment of a bar.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Its bytes; negative only for untrackable memory, if more was attributed than expected.
    pub bytes: i64,
    /// The role that selects its color; empty for layers.
    #[serde(skip)]
    style: String,
}

impl Bars {
    /// The bars at the peak of a report.
    pub fn new(report: &Report, options: &ViewOptions) -> Bars {
        let items = items(report);
        let groups = options.groups.as_ref();
        let depth = depth(&items, options);
        let layer = |item: &Item| category_of(item, options, depth, true);
        let role = |item: &Item| category_of(item, options, depth, false);
        let (by_layer, by_role) = (sum(&items, layer), sum(&items, role));
        // An imported profile has no arena.
        let is_plan = report.origin == Origin::Plan;
        let in_arena = |item: &&Item| is_plan && matches!(item.kind, ItemKind::Buffer(_) | ItemKind::Free);
        let arena = sum(&items.iter().filter(in_arena).cloned().collect::<Vec<Item>>(), role);
        let mut bars = Bars { total_bytes: 0, by_layer, by_role, arena, depth };
        for rows in [&mut bars.by_role, &mut bars.arena] {
            rows.sort_by_key(|bar| (groups.is_none().then(|| rank(&bar.style)), special(bar), -bar.bytes));
        }
        bars.by_layer.sort_by_key(|bar| (special(bar), -bar.bytes));
        bars.total_bytes = report.planned_bytes() as i64;
        if let Some(bytes) = report.residual_bytes() {
            bars.add("residual", bytes, "residual");
        }
        if let Some(expected) = options.expected {
            let missing = expected as i64 - bars.total_bytes;
            bars.add(UNTRACKABLE, missing, "untrackable");
        }
        bars
    }

    /// Name of the segment that contains an item.
    pub(crate) fn name_of(&self, item: &Item, options: &ViewOptions, is_layer: bool) -> String {
        category_of(item, options, self.depth, is_layer).0
    }

    fn add(&mut self, name: &str, bytes: i64, style: &str) {
        let bar = Bar { name: name.into(), bytes, style: style.into() };
        self.by_layer.push(bar.clone());
        self.by_role.push(bar);
        self.total_bytes += bytes;
    }

    /// The bars as tables with bars of characters.
    pub(crate) fn text(&self, width: usize) -> String {
        let mut text = String::new();
        let arena_bytes: i64 = self.arena.iter().map(|bar| bar.bytes).sum();
        let mut bars =
            vec![("by layer", &self.by_layer, self.total_bytes), ("by role", &self.by_role, self.total_bytes)];
        if arena_bytes != 0 && arena_bytes != self.total_bytes {
            bars.push(("arena alone", &self.arena, arena_bytes));
        }
        for (title, rows, total) in bars {
            let _ = writeln!(text, "{title:<12} of {}, at the peak", Bytes(total.max(0) as u64));
            let (rows, rest) = rows.split_at(rows.len().min(ROWS_MAX));
            // Names take the room that bars of a third of the width leave.
            let longest = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
            let names = longest.clamp(8, width.saturating_sub(25 + width / 3).max(8));
            let bars = width.saturating_sub(names + 25);
            let fitted = fit_all(&rows.iter().map(|row| &row.name[..]).collect::<Vec<&str>>(), names);
            for (row, name) in rows.iter().zip(&fitted) {
                let chars = bar(row.bytes.max(0) as u64, total.max(0) as u64, bars);
                let line = format!(
                    "  {} {:>12} {:5.1} %  {chars}",
                    pad(name, names),
                    signed(row.bytes),
                    percent(row.bytes, total)
                );
                let _ = writeln!(text, "{}", line.trim_end());
            }
            if !rest.is_empty() {
                let bytes: i64 = rest.iter().map(|row| row.bytes).sum();
                let name = pad(&format!("{} more", rest.len()), names);
                let _ = writeln!(text, "  {name} {:>12} {:5.1} %", signed(bytes), percent(bytes, total));
            }
        }
        text
    }

    /// Both bars next to each other, as in the original plots.
    pub(crate) fn svg(&self, model: &str) -> String {
        let mut svg = Svg::new(760.0, 560.0);
        svg.text(20.0, 28.0, "title", &format!("{}: {} at the peak", fit(model, 60), signed(self.total_bytes)));
        for (column, (title, rows)) in
            [("by layer", &self.by_layer), ("by role", &self.by_role)].into_iter().enumerate()
        {
            let x = 20.0 + 380.0 * column as f64;
            svg.text(x, 52.0, "", title);
            let mut y = 62.0;
            let whole = rows.iter().map(|row| row.bytes.max(0)).sum::<i64>().max(1) as f64;
            let mut label_end = 0.0;
            for (at, row) in rows.iter().enumerate() {
                let height = 480.0 * row.bytes.max(0) as f64 / whole;
                let share = percent(row.bytes, self.total_bytes);
                let text = format!("{} {} ({share:.1} %)", row.name, signed(row.bytes));
                let (place, amount) = ([x, y, 120.0, height], Amount::Bytes(row.bytes.into()));
                match &row.style[..] {
                    "" => svg.layer(place, at, &text, amount),
                    style => svg.rect(place, style, &text, amount),
                }
                // Labels are next to their segments; those of the thinnest segments appear on hover only.
                let middle = y + height / 2.0 + 4.0;
                if 3.0 <= height && label_end <= middle - 9.0 {
                    svg.text(x + 128.0, middle, "small", &fit(&text, 38));
                    label_end = middle + 2.0;
                }
                y += height;
            }
        }
        svg.finish()
    }
}

/// Most rows of a table; the others are summed up.
const ROWS_MAX: usize = 24;

/// Sort key that puts padding, free bytes and similar segments last.
fn special(bar: &Bar) -> usize {
    match &bar.style[..] {
        "" | "padding" | "free" => usize::from(bar.name == OTHERS) + 2 * usize::from(!bar.style.is_empty()),
        _ => 0,
    }
}

/// Number of scope parts that identify a layer.
fn depth(items: &[Item], options: &ViewOptions) -> usize {
    match options.depth {
        Depth::Parts(parts) => parts.max(1),
        Depth::Auto => auto_depth(items),
    }
}

/// Name and style of the segment that contains an item.
fn category_of(item: &Item, options: &ViewOptions, depth: usize, is_layer: bool) -> (String, String) {
    let none = Groups::default();
    let Groups { layer, data_structure } = options.groups.as_ref().unwrap_or(&none);
    let groups = if is_layer { layer } else { data_structure };
    match item.kind {
        ItemKind::Buffer(_) | ItemKind::Constant(_) if !groups.is_empty() => category(groups, item),
        ItemKind::Free => ("free".into(), "free".into()),
        _ if is_layer => (layer_of(&item.scope, depth), String::new()),
        _ => (item.role.clone(), item.role.clone()),
    }
}

/// The category of an item by keywords.
fn category(groups: &[super::groups::Group], item: &Item) -> (String, String) {
    // An imported tag matches by its own text only; ours have a name in each grammar.
    let found = match &item.foreign {
        Some(tag) => first_match(groups, &[tag]),
        None => {
            let ours = format!("{}:{}", item.name, item.role);
            first_match(groups, &[&mxnet::tag(item), &two_column::tag(item), &ours])
        }
    };
    (found.unwrap_or(OTHERS).to_string(), String::new())
}

/// Bytes by category; the padding of all items is one category, `padding`.
fn sum(items: &[Item], category: impl Fn(&Item) -> (String, String)) -> Vec<Bar> {
    let mut sums: BTreeMap<(String, String), i64> = BTreeMap::new();
    for item in items {
        *sums.entry(category(item)).or_default() += item.bytes as i64;
        let padding = (item.padded_bytes - item.bytes) as i64;
        if 0 < padding {
            *sums.entry(("padding".into(), "padding".into())).or_default() += padding;
        }
    }
    let bars = sums.into_iter().filter(|(_, bytes)| *bytes != 0);
    bars.map(|((name, style), bytes)| Bar { name, bytes, style }).collect()
}

/// The first `depth` parts of a scope.
fn layer_of(scope: &str, depth: usize) -> String {
    let parts: Vec<&str> = scope.split('/').filter(|part| !part.is_empty()).take(depth).collect();
    if parts.is_empty() { "(no layer)".into() } else { parts.join("/") }
}

/// The least depth with several layers, or beyond which the number of layers does not grow.
fn auto_depth(items: &[Item]) -> usize {
    let count = |depth: usize| {
        let mut layers: Vec<String> = items.iter().map(|item| layer_of(&item.scope, depth)).collect();
        layers.sort_unstable();
        layers.dedup();
        layers.len()
    };
    let mut best = 1;
    for depth in 1..=6 {
        if count(best) < 5 && count(best) < count(depth) {
            best = depth;
        }
    }
    best
}

/// A signed number of bytes.
pub(crate) fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}
