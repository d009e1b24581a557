//! [`Symbol`]: the nodes of a `-symbol.json`, with files of old versions upgraded to 1.9.
//!
//! Source of the rules for old files: `src/nnvm/legacy_json_util.cc` of MXNet 1.9.1.

use std::collections::BTreeMap;

use serde_json::Value;

use super::LoadError;

/// A graph of nodes in topological order.
#[derive(Debug)]
pub(super) struct Symbol {
    pub(super) nodes: Vec<Node>,
    /// The outputs.
    pub(super) heads: Vec<Entry>,
}

/// An operator, or a variable.
#[derive(Debug)]
pub(super) struct Node {
    /// `null` for a variable.
    pub(super) op: String,
    pub(super) name: String,
    /// Attributes of the operator, as text, without those of MXNet's engine and optimizers.
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) inputs: Vec<Entry>,
    /// The shape of a variable, with 0 for dynamic extents.
    pub(super) shape: Option<String>,
    /// The dtype of a variable, as a number.
    pub(super) dtype: Option<String>,
    /// Factors of a variable's learning rate and weight decay.
    pub(super) multipliers: [Option<String>; 2],
}

/// An output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) node: usize,
    pub(super) output: usize,
}

impl Node {
    pub(super) fn is_variable(&self) -> bool {
        self.op == "null"
    }
}

/// The first version that distinguishes argmin and argmax over the last axis from those over all axes: 0.9.5.
const VERSION_WITH_AXES: i64 = 905;

impl Symbol {
    /// Reads a file.
    pub(super) fn read(bytes: &[u8]) -> Result<Symbol, LoadError> {
        let file: Value = serde_json::from_slice(bytes).map_err(|error| not_symbol(error.to_string()))?;
        let list = |key: &str| {
            file.get(key).and_then(Value::as_array).ok_or_else(|| not_symbol(format!("there is no list `{key}`")))
        };
        let version = version(&file);
        let mut symbol = Symbol { nodes: Vec::new(), heads: Vec::new() };
        // New positions of the nodes: nodes that old files lack are inserted before their readers.
        let mut places = Vec::new();
        for (ix, node) in list("nodes")?.iter().enumerate() {
            let mut node = read_node(ix, node, &places)?;
            add_missing_states(&mut node, &mut symbol.nodes);
            if version < VERSION_WITH_AXES && matches!(node.op.as_str(), "argmax" | "argmin") {
                node.attributes.retain(|key, value| key != "axis" || value != "-1");
            }
            places.push(symbol.nodes.len());
            symbol.nodes.push(node);
        }
        for head in list("heads")? {
            symbol.heads.push(read_entry(head, &places).ok_or_else(|| malformed("`heads` has an entry that is none"))?);
        }
        if symbol.heads.is_empty() {
            return Err(malformed("the symbol has no outputs"));
        }
        Ok(symbol)
    }
}

/// Major version * 10000 + minor * 100 + patch; files before 0.9 have none.
fn version(file: &Value) -> i64 {
    const UNSAID: i64 = 800;
    file.pointer("/attrs/mxnet_version/1").and_then(Value::as_i64).unwrap_or(UNSAID)
}

fn read_node(ix: usize, node: &Value, places: &[usize]) -> Result<Node, LoadError> {
    let text = |key: &str| node.get(key).and_then(Value::as_str);
    let op = text("op").ok_or_else(|| malformed(format!("node {ix} has no operator")))?;
    let name = text("name").ok_or_else(|| malformed(format!("node {ix} has no name")))?;
    // Messages and reports quote names in lines of their own.
    if let Some(text) = [op, name].into_iter().find(|text| text.contains('\n')) {
        return Err(malformed(format!("node {ix}: a name must be one line, got {text:?}")));
    }
    let texts = |key: &str| {
        let entries = node.get(key).and_then(Value::as_object).into_iter().flatten();
        entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string())))
    };
    // Before 1.0 `param` had the attributes of the operator and `attr` those of the user.
    let has_param = node.get("param").is_some();
    let own: BTreeMap<String, String> = texts("attrs").chain(texts("attr").filter(|_| !has_param)).collect();
    let user: BTreeMap<String, String> = texts("attr").filter(|_| has_param).collect();
    let hidden = |name: &str| {
        let spelled = format!("__{name}__");
        own.get(&spelled).or_else(|| user.get(&spelled)).or_else(|| user.get(name)).cloned()
    };
    let (shape, dtype) = (hidden("shape"), hidden("dtype"));
    // In old files they have no underscores, for variables only.
    let multipliers = ["lr_mult", "wd_mult"].map(|key| hidden(key).or_else(|| own.get(key).cloned()));
    let attributes = own.into_iter().filter(|(key, _)| !is_hidden(key)).chain(texts("param")).collect();
    let empty = Vec::new();
    let inputs = node.get("inputs").and_then(Value::as_array).unwrap_or(&empty);
    let inputs: Option<Vec<Entry>> = inputs.iter().map(|entry| read_entry(entry, places)).collect();
    let inputs =
        inputs.ok_or_else(|| malformed(format!("node `{name}` reads an output that is not defined before it")))?;
    Ok(Node { op: op.to_string(), name: name.to_string(), attributes, inputs, shape, dtype, multipliers })
}

/// `[node, output, version]`, or the first two in old files.
fn read_entry(entry: &Value, places: &[usize]) -> Option<Entry> {
    let numbers = entry.as_array().filter(|numbers| matches!(numbers.len(), 2 | 3))?;
    let number = |ix: usize| usize::try_from(numbers[ix].as_u64()?).ok();
    Some(Entry { node: *places.get(number(0)?)?, output: number(1)? })
}

/// Whether an attribute is not for the operator.
fn is_hidden(key: &str) -> bool {
    const UNDERSCORED_LATER: [&str; 4] = ["ctx_group", "force_mirroring", "lr_mult", "wd_mult"];
    let is_mult = |key: &str| key.ends_with("_lr_mult") || key.ends_with("_wd_mult");
    key.starts_with("__") || UNDERSCORED_LATER.contains(&key) || is_mult(key) || key == "mirror_stage"
}

/// Files before 0.9 do not list auxiliary states among the inputs.
fn add_missing_states(node: &mut Node, nodes: &mut Vec<Node>) {
    if !matches!(node.op.as_str(), "BatchNorm" | "BatchNorm_v1" | "CuDNNBatchNorm") || node.inputs.len() != 3 {
        return;
    }
    for state in ["moving_mean", "moving_var"] {
        node.inputs.push(Entry { node: nodes.len(), output: 0 });
        nodes.push(Node {
            op: "null".into(),
            name: format!("{}_{state}", node.name),
            attributes: BTreeMap::new(),
            inputs: Vec::new(),
            shape: None,
            dtype: None,
            multipliers: [None, None],
        });
    }
}

fn not_symbol(reason: String) -> LoadError {
    LoadError::NotSymbol { reason }
}

fn malformed(reason: impl Into<String>) -> LoadError {
    LoadError::Malformed { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_files_are_upgraded() {
        let old = br#"{
            "nodes": [
                {"op": "null", "param": {}, "name": "data", "inputs": [], "backward_source_id": -1},
                {"op": "null", "param": {}, "name": "bn_gamma", "inputs": [], "backward_source_id": -1,
                 "attr": {"lr_mult": "0.5", "shape": "(3,)"}},
                {"op": "null", "param": {}, "name": "bn_beta", "inputs": [], "backward_source_id": -1},
                {"op": "BatchNorm", "param": {"eps": "0.001", "fix_gamma": "True"}, "name": "bn",
                 "inputs": [[0, 0], [1, 0], [2, 0]], "backward_source_id": -1, "attr": {"ctx_group": "dev1"}},
                {"op": "argmax", "param": {"axis": "-1"}, "name": "best", "inputs": [[3, 0]]}
            ],
            "arg_nodes": [0, 1, 2],
            "heads": [[4, 0]]
        }"#;
        let symbol = Symbol::read(old).unwrap();
        let names: Vec<&str> = symbol.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["data", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var", "bn", "best"]);
        let norm = &symbol.nodes[5];
        assert_eq!(norm.attributes.keys().collect::<Vec<_>>(), ["eps", "fix_gamma"]);
        assert_eq!(norm.inputs.iter().map(|entry| entry.node).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(symbol.nodes[1].shape.as_deref(), Some("(3,)"));
        assert_eq!(symbol.nodes[1].multipliers, [Some("0.5".to_string()), None]);
        assert!(symbol.nodes[6].attributes.is_empty(), "-1 meant all axes");
        assert_eq!(symbol.heads, [Entry { node: 6, output: 0 }]);
    }

    #[test]
    fn names_of_several_lines_are_refused() {
        for (op, name) in [("null", "x\\ny"), ("nu\\nll", "x")] {
            let file = format!(r#"{{"nodes": [{{"op": "{op}", "name": "{name}", "inputs": []}}], "heads": [[0, 0]]}}"#);
            let error = Symbol::read(file.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("node 0: a name must be one line, got ") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn files_from_0_9_5_on_keep_their_axes() {
        for (version, axis) in [(904, None), (905, Some("-1")), (10901, Some("-1"))] {
            let file = format!(
                r#"{{"nodes": [{{"op": "null", "name": "x", "inputs": []}},
                {{"op": "argmax", "attrs": {{"axis": "-1"}}, "name": "y", "inputs": [[0, 0]]}}],
                "heads": [[1, 0]], "attrs": {{"mxnet_version": ["int", {version}]}}}}"#
            );
            let symbol = Symbol::read(file.as_bytes()).expect("it is whole");
            assert_eq!(symbol.nodes[1].attributes.get("axis").map(String::as_str), axis, "{version}");
        }
    }

    /// Only a normalization with its three learned operands lacks the states.
    #[test]
    fn states_are_added_to_three_operands_only() {
        for count in 0..6 {
            let inputs = vec!["[0, 0]"; count].join(", ");
            let file = format!(
                r#"{{"nodes": [{{"op": "null", "name": "x", "inputs": []}},
                {{"op": "BatchNorm", "name": "y", "inputs": [{inputs}]}}], "heads": [[1, 0]]}}"#
            );
            let symbol = Symbol::read(file.as_bytes()).expect("it is whole");
            let want = if count == 3 { 5 } else { count };
            assert_eq!(symbol.nodes.last().map(|node| node.inputs.len()), Some(want));
        }
    }

    #[test]
    fn invalid_symbols_are_refused() {
        for file in ["", "[]", "{\"nodes\": 3}", "{\"nodes\": []}", "{\"nodes\": [], \"heads\": []}"] {
            assert!(Symbol::read(file.as_bytes()).is_err(), "{file}");
        }
        let later = br#"{"nodes": [{"op": "relu", "name": "a", "inputs": [[0, 0, 0]]}], "heads": [[0, 0, 0]]}"#;
        let error = Symbol::read(later).unwrap_err().to_string();
        assert!(error.contains("`a` reads an output that is not defined before it"), "{error}");
    }
}
