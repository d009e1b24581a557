//! TBD's analysis: a JSON object from keyword to total bytes and tags, as TBD's script writes it.

use serde_json::{Map, Value, json};

use crate::Report;
use crate::model::{Item, ItemKind, items};

/// The keywords of TBD's analysis with their names, in its order, and `split`, which only the plot script names. The first
/// keyword in a tag counts.
const KEYWORDS: [(&str, &str); 46] = [
    ("in_arg", "Weights"),
    ("arg_grad", "Weight Gradients"),
    ("aux_state", "Auxiliary State"),
    ("optimizer", "Optimizer State"),
    ("workspace", "Workspace"),
    ("rnn", "RNN Layer"),
    ("embed", "Embedding Layer"),
    (":_mul", "Multiplication Op"),
    ("rsqrt", "Sqrt Op"),
    (":mean", "Mean Op"),
    ("att", "Attention Layer"),
    (":split", "Split Op"),
    ("logit", "Logit"),
    ("swapaxes", "SwapAxes Op"),
    ("square", "Square Op"),
    ("softmax", "SoftMax"),
    ("sequencereverse", "SequenceReverse Op"),
    ("dot", "Dot Op"),
    (":broadcast", "Broadcast Op"),
    ("zeros", "Zero Op"),
    ("sum", "Sum Op"),
    ("transpose", "Transpose Op"),
    (":dropout", "Dropout"),
    ("slice", "Slice Op"),
    ("cnn", "CNN Layer"),
    ("arange", "Arange Op"),
    ("fullyconnected", "FullyConnected"),
    ("sequencemask", "SequenceMask"),
    ("conv", "Convolutional Unit"),
    ("activation", "Activation"),
    ("reshape", "Reshape Op"),
    ("transformer", "Transformer Layer"),
    ("relu", "Relu"),
    ("pool", "Pooling"),
    ("bn", "Batch Norm"),
    (":id", "Id"),
    (":fc", "Fully Connected"),
    ("_sc", "SC unit"),
    ("_equal_scalar", "Equal Scalar Op"),
    ("(source)", "Source"),
    ("(target)", "Target"),
    ("(target_label)", "Target Label"),
    ("(data)", "Data"),
    ("dropout", "Dropout"),
    ("split", "Split Op"),
    ("untagged", "Unknown"),
];

/// The keyword that counts tags without another keyword.
const UNCLEAR: &str = "warning!,ctx_source_unclear";

/// The key of results of the forward pass without a keyword, "Activation" in the plot.
const FORWARD: &str = "activation";
/// The key of other tags without a keyword, "Unknown" in the plot.
const UNKNOWN_TAG: &str = "untagged";

/// The keyword that counts a tag in brackets, and its name; `None` for a tag unknown to the script.
pub(crate) fn keyword(tag: &str) -> Option<(&'static str, &'static str)> {
    let found = KEYWORDS.iter().find(|(word, _)| tag.contains(word)).copied();
    found.or_else(|| tag.contains(UNCLEAR).then_some((UNCLEAR, "Unknown")))
}

/// The analysis of the memory at the peak; of an imported log, the analysis of every allocation.
pub(crate) fn analysis(report: &Report) -> String {
    let mut rows: Vec<(String, f64, Vec<String>)> = Vec::new();
    for (tag, bytes) in tags(report) {
        // The script only warns about unknown tags; here their bytes are kept, under a key that the plot script has.
        let word = match keyword(&tag) {
            Some((word, _)) => word,
            None if tag.starts_with("(forward_features:") => FORWARD,
            None => UNKNOWN_TAG,
        };
        let tag = format!("{tag}.\n");
        match rows.iter_mut().find(|(known, ..)| known == word) {
            Some((_, total, tags)) => {
                *total += bytes as f64;
                tags.push(tag);
            }
            None => rows.push((word.into(), bytes as f64, vec![tag])),
        }
    }
    let object: Map<String, Value> = rows.into_iter().map(|(word, total, tags)| (word, json!([total, tags]))).collect();
    format!("{:#}\n", Value::Object(object))
}

/// Tags in brackets with their bytes.
pub(crate) fn tags(report: &Report) -> Vec<(String, u64)> {
    items(report).iter().map(|item| (format!("({})", tag(item)), item.padded_bytes)).collect()
}

/// The tag of an item in TBD's grammar.
fn tag(item: &Item) -> String {
    if let Some(foreign) = &item.foreign {
        return foreign.clone();
    }
    let name = &item.name;
    match (item.kind, &item.role[..]) {
        (ItemKind::Free | ItemKind::OtherBatches, _) => "untagged".into(),
        (_, "weight" | "constant" | "input") => format!("in_arg:{name}"),
        (_, "weight_gradient") => format!("arg_grad:{name}"),
        (_, "state") => format!("aux_state:{name}"),
        (_, "optimizer_state") => format!("optimizer_weight_update_{name}"),
        (_, "workspace") => format!("workspace:{name}"),
        _ => format!("forward_features:{name}"),
    }
}
