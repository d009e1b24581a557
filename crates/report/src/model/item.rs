//! [`Item`]s: the plan's bytes at its peak by name, each byte once. They add up to arena and constants.

use std::collections::BTreeMap;

use plan::Persistence;

use super::{BufferRow, Origin, Report, spans, type_text};

/// Bytes with one name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) kind: ItemKind,
    /// The node that yields the bytes; for constants, the node that reads them first; for a state, its node.
    pub(crate) scope: String,
    /// The name of the value or constant.
    pub(crate) name: String,
    pub(crate) role: String,
    /// The name in the other program's grammar, for an imported profile.
    pub(crate) foreign: Option<String>,
    /// Dtype and shape; may be empty.
    pub(crate) type_text: String,
    /// The bytes that kernels use.
    pub(crate) bytes: u64,
    /// The bytes including the padding after them.
    pub(crate) padded_bytes: u64,
}

/// The kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    /// Bytes of a buffer alive at the peak, by its position.
    Buffer(usize),
    /// A constant, by its position.
    Constant(usize),
    /// Arena bytes under no buffer.
    Free,
    /// Bytes of the constants' section that other batches read.
    OtherBatches,
}

/// The items of a report.
pub(crate) fn items(report: &Report) -> Vec<Item> {
    let planned = &report.planned;
    let mut items = Vec::new();
    let states = || planned.buffers.iter().filter(|buffer| buffer.persistence == Persistence::Session);
    let names = states().flat_map(|buffer| {
        let scope = state_scope(buffer)?;
        Some(buffer.values.iter().map(move |value| (&value.name[..], scope)))
    });
    let states: BTreeMap<&str, &str> = names.flatten().collect();
    for (ix, buffer) in planned.buffers.iter().enumerate().filter(|(_, buffer)| buffer.is_alive(planned.peak_step)) {
        let mut of_buffer = of_buffer(ix, buffer, planned.peak_step);
        if report.origin != Origin::Plan {
            of_buffer.iter_mut().for_each(|item| item.foreign = Some(buffer.tag.clone()));
        }
        items.append(&mut of_buffer);
    }
    for (ix, constant) in planned.constants.iter().enumerate() {
        items.push(Item {
            kind: ItemKind::Constant(ix),
            // The initial value of a state has no reader: it belongs to the layer of the state.
            scope: match constant.scope.is_empty() {
                true => states.get(&constant.name[..]).copied().unwrap_or("").to_string(),
                false => constant.scope.clone(),
            },
            name: constant.name.clone(),
            role: constant.role.clone(),
            foreign: None,
            type_text: type_text(&constant.dtype, &constant.shape),
            bytes: constant.own_bytes,
            padded_bytes: constant.own_bytes + constant.padding_bytes,
        });
    }
    let free: u64 = planned.free_at_peak.iter().map(|range| range.bytes).sum();
    for (kind, scope, role, bytes) in [
        (ItemKind::Free, "", "free", free),
        (ItemKind::OtherBatches, "(other batches)", "constant", planned.constants_other_bytes),
    ] {
        if 0 < bytes {
            items.push(Item {
                kind,
                scope: scope.into(),
                name: scope.into(),
                role: role.into(),
                foreign: None,
                type_text: String::new(),
                bytes,
                padded_bytes: bytes,
            });
        }
    }
    items
}

/// The node whose state a buffer holds: the one that reads it last. The compiler names a node's update behind it.
fn state_scope(buffer: &BufferRow) -> Option<&str> {
    let scope = &buffer.last_reader.as_ref().filter(|_| buffer.persistence == Persistence::Session)?.scope[..];
    Some(scope.strip_suffix("/update").unwrap_or(scope))
}

/// A buffer's bytes at a step, divided between the values that occupy them; the padding belongs to the last item.
fn of_buffer(ix: usize, buffer: &BufferRow, step: u32) -> Vec<Item> {
    let spans = spans(buffer).into_iter().filter(|span| (span.first_step..=span.last_step).contains(&step));
    let item = |span: super::Span| {
        let value = span.value.map(|value| &buffer.values[value]);
        Item {
            kind: ItemKind::Buffer(ix),
            scope: match (state_scope(buffer), value) {
                (Some(scope), _) => scope.to_string(),
                (None, Some(value)) => value.name.clone(),
                (None, None) => buffer.scope.clone(),
            },
            name: value.map_or_else(|| buffer.scope.clone(), |value| value.name.clone()),
            role: buffer.role_of(span.value).to_string(),
            foreign: None,
            type_text: value.map(super::ValueRow::type_text).unwrap_or_default(),
            bytes: span.bytes,
            padded_bytes: span.bytes,
        }
    };
    let mut items: Vec<Item> = spans.map(item).collect();
    if let (Some(last), Some(piece)) = (items.last_mut(), buffer.piece_at(step)) {
        last.padded_bytes += piece.padded_bytes - buffer.own_bytes(piece);
    }
    items
}
