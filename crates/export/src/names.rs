//! [`Names`]: unique names of the values in the file.

use std::collections::{BTreeMap, BTreeSet};

use ir::{Graph, ValueId};
use types::EntityId;

/// The names of a graph's values.
///
/// Inputs and outputs keep their names. A value that is several outputs, or an output with another name than as an input,
/// is copied ([`Names::copies`]).
pub(crate) struct Names {
    names: BTreeMap<usize, String>,
    copies: Vec<(String, String)>,
}

impl Names {
    pub(crate) fn new(graph: &Graph) -> Names {
        let mut names: BTreeMap<usize, String> = BTreeMap::new();
        let mut taken: BTreeSet<String> = BTreeSet::new();
        for &id in graph.inputs() {
            taken.insert(graph.value(id).name.clone());
            names.insert(id.index(), graph.value(id).name.clone());
        }
        let mut copied = Vec::new();
        for output in graph.outputs() {
            let stands = names.get(&output.value.index());
            if stands == Some(&output.name) {
                continue;
            }
            taken.insert(output.name.clone());
            if stands.is_some() || graph.value(output.value).tensor().is_some() {
                copied.push((output.name.clone(), output.value));
            } else {
                names.insert(output.value.index(), output.name.clone());
            }
        }
        for (id, value) in graph.values().iter() {
            if names.contains_key(&id.index()) {
                continue;
            }
            let mut name = value.name.clone();
            while name.is_empty() || !taken.insert(name.clone()) {
                name = format!("{name}:{}", id.index());
            }
            names.insert(id.index(), name);
        }
        let copies = copied.into_iter().map(|(output, source)| (output, names[&source.index()].clone())).collect();
        Names { names, copies }
    }

    /// The name of a value.
    pub(crate) fn of(&self, id: ValueId) -> &str {
        &self.names[&id.index()]
    }

    /// Outputs that are copies, with their sources.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (&str, &str)> {
        self.copies.iter().map(|(output, source)| (output.as_str(), source.as_str()))
    }
}
