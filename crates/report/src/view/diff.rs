//! [`Diff`]: the differences between two plans.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;
use types::Bytes;

use super::bars::signed;
use super::terminal::{fit, pad};
use crate::Report;
use crate::model::{BufferRow, items};

/// The differences from `a` to `b`. Buffers are paired by tag, equal tags in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// The first plan.
    pub a: Side,
    /// The second plan.
    pub b: Side,
    /// Bytes at the peak by tag where they differ, largest differences first.
    pub tags: Vec<TagDelta>,
    /// Buffers only in `b`.
    pub new: Vec<TagSize>,
    /// Buffers only in `a`.
    pub gone: Vec<TagSize>,
    /// Buffers of both with another offset, live range or size.
    pub moved: Vec<MovedBuffer>,
    /// Values that share bytes in `b` but not in `a`, with the kind of sharing.
    pub aliases_gained: Vec<String>,
    /// Values that share bytes in `a` but not in `b`, with the kind of sharing.
    pub aliases_lost: Vec<String>,
}

/// One of the two plans.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Model and target.
    pub name: String,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Largest sum of live buffers.
    pub lower_bound_bytes: u64,
    /// Size of the constants.
    pub weights_bytes: u64,
    /// The step of the peak.
    pub peak_step: u32,
    /// Number of steps.
    pub steps: usize,
    /// Number of buffers.
    pub buffers: usize,
}

/// Bytes at the peak under one tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TagDelta {
    /// Scope and role.
    pub tag: String,
    /// Bytes in `a`.
    pub a_bytes: u64,
    /// Bytes in `b`.
    pub b_bytes: u64,
}

impl TagDelta {
    fn delta(&self) -> i64 {
        self.b_bytes as i64 - self.a_bytes as i64
    }
}

/// A buffer of only one of the plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TagSize {
    /// Its tag.
    pub tag: String,
    /// Its size.
    pub bytes: u64,
}

/// A buffer of both plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MovedBuffer {
    /// Its tag.
    pub tag: String,
    /// Offset, size, first and last step in `a`.
    pub a: [u64; 4],
    /// The same in `b`.
    pub b: [u64; 4],
}

impl Diff {
    /// Compares two reports.
    pub fn new(a: &Report, b: &Report) -> Diff {
        let (pairs, gone, new) = pair(&a.planned.buffers, &b.planned.buffers);
        let moved = pairs.into_iter().filter_map(|(a, b)| {
            let at = |buffer: &BufferRow| {
                [buffer.offset, buffer.bytes, u64::from(buffer.first_step), u64::from(buffer.last_step)]
            };
            (at(a) != at(b)).then(|| MovedBuffer { tag: a.tag.clone(), a: at(a), b: at(b) })
        });
        let (shared_a, shared_b) = (aliases(a), aliases(b));
        Diff {
            a: side(a),
            b: side(b),
            tags: tags(a, b),
            new,
            gone,
            moved: moved.collect(),
            aliases_gained: shared_b.difference(&shared_a).cloned().collect(),
            aliases_lost: shared_a.difference(&shared_b).cloned().collect(),
        }
    }

    /// Whether there is no difference.
    pub fn is_same(&self) -> bool {
        let sizes = |side: &Side| (side.arena_bytes, side.lower_bound_bytes, side.weights_bytes, side.steps);
        sizes(&self.a) == sizes(&self.b)
            && self.tags.is_empty()
            && self.new.is_empty()
            && self.gone.is_empty()
            && self.moved.is_empty()
            && self.aliases_gained.is_empty()
            && self.aliases_lost.is_empty()
    }

    /// Text for a terminal.
    pub fn text(&self, width: usize, rows: usize) -> String {
        let (a, b) = (&self.a, &self.b);
        let mut text =
            format!("A            {}\nB            {}\n", fit(&a.name, width - 13), fit(&b.name, width - 13));
        if self.is_same() {
            return text + "same         the plans do not differ\n";
        }
        let change = |text: &mut String, name: &str, a: u64, b: u64| {
            let delta = b as i64 - a as i64;
            let share = 100.0 * delta as f64 / (a as f64).max(1.0);
            let (a, b) = (Bytes(a).to_string(), Bytes(b).to_string());
            let _ = writeln!(text, "{name:<12} {a:>12} -> {b:>12}  {:>13} {share:+.1} %", plus(delta));
        };
        change(&mut text, "arena", a.arena_bytes, b.arena_bytes);
        change(&mut text, "peak", a.lower_bound_bytes, b.lower_bound_bytes);
        change(&mut text, "weights", a.weights_bytes, b.weights_bytes);
        let _ = writeln!(text, "{:<12} {:>12} -> {:>12}", "peak step", a.peak_step, b.peak_step);
        let _ = writeln!(text, "{:<12} {:>12} -> {:>12}", "steps", a.steps, b.steps);
        let _ = writeln!(text, "{:<12} {:>12} -> {:>12}", "buffers", a.buffers, b.buffers);
        section(&mut text, "by tag, at the peak", &self.tags, rows, |tag| {
            let name = pad(&tag.tag, width.saturating_sub(46).max(20));
            let (a, b) = (Bytes(tag.a_bytes).to_string(), Bytes(tag.b_bytes).to_string());
            format!("{:>13}  {name} {a:>11} -> {b:>11}", plus(tag.delta()))
        });
        for (title, list) in [("new", &self.new), ("gone", &self.gone)] {
            section(&mut text, title, list, rows, |row| {
                format!("{:>13}  {}", Bytes(row.bytes).to_string(), fit(&row.tag, width - 17))
            });
        }
        section(&mut text, "moved", &self.moved, rows, |row| {
            let place = |[offset, bytes, first, last]: [u64; 4]| format!("{bytes} at {offset}, {first}..{last}");
            format!("  {}: {} -> {}", fit(&row.tag, width / 2), place(row.a), place(row.b))
        });
        for (title, list) in [("aliases gained", &self.aliases_gained), ("aliases lost", &self.aliases_lost)] {
            section(&mut text, title, list, rows, |row| format!("  {}", fit(row, width - 4)));
        }
        text
    }
}

fn plus(delta: i64) -> String {
    if delta < 0 { signed(delta) } else { format!("+{}", signed(delta)) }
}

fn section<T>(text: &mut String, title: &str, list: &[T], rows: usize, line: impl Fn(&T) -> String) {
    if list.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}: {}", list.len());
    list.iter().take(rows).for_each(|row| {
        let _ = writeln!(text, "  {}", line(row).trim_end());
    });
    if rows < list.len() {
        let _ = writeln!(text, "  .. {} more", list.len() - rows);
    }
}

fn side(report: &Report) -> Side {
    let planned = &report.planned;
    Side {
        name: format!("{} for {}, batch {}", report.model, report.target, report.batch),
        arena_bytes: planned.arena_bytes,
        lower_bound_bytes: planned.lower_bound_bytes,
        weights_bytes: planned.weights_bytes,
        peak_step: planned.peak_step,
        steps: planned.steps.len(),
        buffers: planned.buffers.len(),
    }
}

/// Bytes at the peak by tag. Free bytes and padding have tags of their own, so that the differences add up to that of the
/// arena.
fn tags(a: &Report, b: &Report) -> Vec<TagDelta> {
    let mut sums: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for (which, report) in [a, b].into_iter().enumerate() {
        for item in items(report) {
            let tag = if item.name.is_empty() { item.role.clone() } else { format!("{}:{}", item.name, item.role) };
            sums.entry(tag).or_default()[which] += item.bytes;
            sums.entry("padding".into()).or_default()[which] += item.padded_bytes - item.bytes;
        }
    }
    let deltas = sums.into_iter().filter(|(_, [a, b])| a != b);
    let mut deltas: Vec<TagDelta> =
        deltas.map(|(tag, [a_bytes, b_bytes])| TagDelta { tag, a_bytes, b_bytes }).collect();
    deltas.sort_by_key(|tag| (std::cmp::Reverse(tag.delta().unsigned_abs()), tag.tag.clone()));
    deltas
}

type Pairs<'a> = Vec<(&'a BufferRow, &'a BufferRow)>;

/// Buffers of both, only of the first, only of the second.
fn pair<'a>(a: &'a [BufferRow], b: &'a [BufferRow]) -> (Pairs<'a>, Vec<TagSize>, Vec<TagSize>) {
    let by_tag = |buffers: &'a [BufferRow]| {
        let mut map: BTreeMap<&str, Vec<&BufferRow>> = BTreeMap::new();
        buffers.iter().for_each(|buffer| map.entry(&buffer.tag).or_default().push(buffer));
        map
    };
    let gone = |buffer: &&BufferRow| TagSize { tag: buffer.tag.clone(), bytes: buffer.bytes };
    let (a, mut b) = (by_tag(a), by_tag(b));
    let (mut pairs, mut only_a) = (Vec::new(), Vec::new());
    for (tag, of_a) in a {
        let of_b = b.remove(tag).unwrap_or_default();
        let both = of_a.len().min(of_b.len());
        pairs.extend(of_a.iter().copied().zip(of_b.iter().copied()));
        only_a.extend(of_a[both..].iter().map(gone));
        if both < of_b.len() {
            b.insert(tag, of_b[both..].to_vec());
        }
    }
    let mut only_b: Vec<TagSize> = b.into_values().flatten().map(|buffer| gone(&buffer)).collect();
    for list in [&mut only_a, &mut only_b] {
        list.sort_by_key(|row| (std::cmp::Reverse(row.bytes), row.tag.clone()));
    }
    (pairs, only_a, only_b)
}

/// Values in memory of another value, with the kind of sharing.
fn aliases(report: &Report) -> BTreeSet<String> {
    let values = report.planned.buffers.iter().flat_map(|buffer| &buffer.values);
    let shared = values.filter(|value| value.sharing != "own");
    shared.map(|value| format!("{} ({})", value.name, value.sharing.replace('_', " "))).collect()
}
