//! MXNet's five-column CSV with names in MXNet's grammar: scope, colon, kind, owner.

use std::fmt::Write;

use crate::Report;
use crate::model::{BufferRow, Item, ItemKind, items};

/// The header line.
pub(crate) const HEADER: &str = r#""Attribute Name","Requested Size","Device","Actual Size","Reuse?""#;
/// MXNet's name for the rest of the process.
pub(crate) const RESIDUAL: &str = "nvml_amend";

/// The name of an item in MXNet's grammar.
pub(crate) fn tag(item: &Item) -> String {
    if let Some(foreign) = &item.foreign {
        return foreign.clone();
    }
    let scope = item.scope.replace('/', ":");
    let name = &item.name;
    match (item.kind, &item.role[..]) {
        (ItemKind::Free, _) => "<unk>:free".into(),
        (ItemKind::OtherBatches, _) => "<unk>:constants_of_other_batches".into(),
        (_, "weight") => format!("{scope}:in_arg:{name}"),
        (_, "constant") => format!("{scope}:constant:{name}"),
        (_, "input") => format!("image_io:data:{name}"),
        (_, "state") => format!("{scope}:aux_state:{name}"),
        (_, "weight_gradient") => format!("{scope}:arg_grad:{name}"),
        (_, "optimizer_state") => format!("{scope}:optimizer_state:{name}"),
        (_, "workspace") => format!("{scope}:resource:temp_space"),
        (_, "activation_gradient") => format!("{scope}_backward"),
        (_, "output") => format!("{scope}_output"),
        _ => scope,
    }
}

/// One row per item at the peak, sorted by name; the last row is the rest of the process, if measured.
pub(crate) fn csv(report: &Report) -> String {
    let mut rows: Vec<(String, u64, u64, bool)> =
        items(report).iter().map(|item| (tag(item), item.bytes, item.padded_bytes, is_reused(report, item))).collect();
    rows.sort();
    let mut text = format!("{HEADER}\n");
    let residual = report.residual_bytes().map(|bytes| bytes as u64);
    let residual = residual.map(|bytes| (RESIDUAL.to_string(), bytes, bytes, false));
    for (name, requested, actual, reused) in rows.into_iter().chain(residual) {
        let name = quote(&name);
        let _ = writeln!(text, "{name},\"{requested}\",\"0\",\"{actual}\",\"{}\"", u8::from(reused));
    }
    text
}

/// Whether an earlier buffer used some of the bytes.
fn is_reused(report: &Report, item: &Item) -> bool {
    let ItemKind::Buffer(ix) = item.kind else { return false };
    let buffers = &report.planned.buffers;
    let own = &buffers[ix];
    let shares = |other: &BufferRow| {
        other.last_step < own.first_step
            && other.offset < own.offset + own.padded_bytes
            && own.offset < other.offset + other.padded_bytes
    };
    buffers.iter().any(shares)
}

fn quote(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    format!("\"{}\"", text.replace('"', "\"\""))
}
