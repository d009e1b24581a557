//! The older CSV: a tag and MiB per line, without header and quotes.

use std::fmt::Write;

use crate::Report;
use crate::model::{Item, ItemKind, items};

/// One line per item at the peak. MiB have all digits, so that times 2^20 they are the exact bytes.
pub(crate) fn csv(report: &Report) -> String {
    let mut lines: Vec<(String, u64)> = items(report).iter().map(|item| (tag(item), item.padded_bytes)).collect();
    lines.sort();
    let mut text = String::new();
    for (tag, bytes) in lines {
        let _ = writeln!(text, "{tag},{}", bytes as f64 / f64::from(1 << 20));
    }
    text
}

/// The tag of an item in the older grammar.
pub(crate) fn tag(item: &Item) -> String {
    let plain = |text: &str| text.replace([',', '\n', '\r'], "_");
    if let Some(foreign) = &item.foreign {
        return plain(foreign);
    }
    let name = plain(&item.name);
    match (item.kind, &item.role[..]) {
        (ItemKind::Free, _) => "unknown:free".into(),
        (ItemKind::OtherBatches, _) => "unknown:constants_of_other_batches".into(),
        (_, "weight" | "constant") => format!("in_arg:{name}"),
        (_, "weight_gradient") => format!("arg_grad:{name}"),
        (_, "state") => format!("aux_state:{name}"),
        (_, "optimizer_state") => format!("optimizer_state:{name}"),
        (_, "workspace") => format!("workspace:{name}"),
        (_, "activation_gradient") => format!("head_grad:data_entry:{name}"),
        _ => format!("data_entry:{name}_oedge0"),
    }
}
