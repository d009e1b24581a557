//! Ensembles of decision trees: all conditions are evaluated at once, and a matrix product selects the leaves.
//!
//! A leaf is selected if every condition on its path has the required outcome. With 1 for true and 0 for false, the sum of
//! the conditions required to be true minus those required to be false equals the number of the former only then.

use ir::ops::ReduceKind;
use ir::{Refusal, ops};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape, Tensor};

use crate::common::{NodeResult, Operand, counts, refuse};
use crate::onnx::node::ImportedNode;

/// Comparisons of a feature with a split, by their number in the file.
const MODES: [&str; 7] = ["<=", "<", ">=", ">", "==", "!=", "in"];

/// The attributes of the nodes, an entry per node.
struct Nodes {
    features: Vec<usize>,
    modes: Vec<usize>,
    splits: Tensor,
    /// Whether a missing value (NaN) satisfies the condition.
    missing: Vec<bool>,
    /// The node or leaf that follows if the condition is true, and if it is false.
    next: Vec<[Next; 2]>,
    /// The member lists of nodes with set membership conditions.
    members: Vec<Vec<f64>>,
}

#[derive(Clone, Copy)]
enum Next {
    Node(usize),
    Leaf(usize),
}

/// The path to a leaf: nodes, and the required outcomes of their conditions.
struct LeafPath {
    leaf: usize,
    conditions: Vec<(usize, bool)>,
}

/// `x: [n, features]` -> `[n, targets]`: the weights of the selected leaves, summed per target.
pub(super) fn ensemble(node: &mut ImportedNode) -> NodeResult {
    let x = node.input(0)?;
    let (shape, dtype) = (node.shape(x), node.dtype(x));
    let &[rows, features] = &shape[..] else { refuse!("input must be a matrix, got {shape}") };
    if !matches!(dtype, DType::F32 | DType::F64) {
        refuse!("features must be f32 or f64, got {dtype}");
    }
    node.ignore(&["nodes_hitrates"]);
    if node.int_or("post_transform", 0)? != 0 {
        refuse!("attribute `post_transform` must be 0");
    }
    let is_mean = match node.int_or("aggregate_function", 1)? {
        0 => true,
        1 => false,
        other => refuse!("attribute `aggregate_function` must be 0 (mean) or 1 (sum), got {other}"),
    };
    let nodes = Nodes::read(node, features)?;
    let roots = indices(node, "tree_roots", nodes.next.len())?;
    let targets = counts(&[node.int_or("n_targets", 0)?], "n_targets")?[0];
    let leaf_targets = indices(node, "leaf_targetids", targets)?;
    let Some(weights) = node.tensor_attribute("leaf_weights")? else { refuse!("attribute `leaf_weights` is missing") };
    if weights.elements() != leaf_targets.len() || weights.dtype() != dtype {
        refuse!(
            "leaf weights must have the dtype of the input and one element per leaf, got {} of {} for {} leaves",
            weights.elements(),
            weights.dtype(),
            leaf_targets.len()
        );
    }
    if targets == 0 || weights.to_f64().iter().any(|weight| !weight.is_finite()) {
        refuse!("leaf weights must be finite and targets few, got {targets} targets");
    }
    let paths = nodes.paths(&roots, leaf_targets.len())?;
    let decided = nodes.decided(node, x)?;
    // The nodes on the path to each leaf.
    let (height, width) = (nodes.next.len(), paths.len());
    for extents in [[height, width], [width, targets]] {
        node.reserve(DType::F64, &Shape::from(extents))?;
    }
    let (mut signs, mut wanted) = (vec![0.0f32; height * width], vec![0.0f32; width]);
    for (column, path) in paths.iter().enumerate() {
        for &(node, holds) in &path.conditions {
            signs[node * width + column] = if holds { 1.0 } else { -1.0 };
            wanted[column] += if holds { 1.0 } else { 0.0 };
        }
    }
    let signs = Tensor::new(Shape::from([height, width]), signs).map_err(|error| Refusal(error.to_string()))?;
    let signs = node.constant_of_file(signs);
    let met = node.apply(ops::MatMul::default(), &[decided, signs])?;
    let wanted = node.constant(Tensor::vector(wanted));
    let is_reached = node.compare(Compare::Equal, met, wanted)?;
    // The weight of a leaf is in the column of its target.
    let share = if is_mean { 1.0 / roots.len() as f64 } else { 1.0 };
    let numbers = weights.to_f64();
    let table = node.computed(Shape::from([width, targets]), |at| {
        let leaf = paths[at / targets].leaf;
        if leaf_targets[leaf] == at % targets { numbers[leaf] * share } else { 0.0 }
    })?;
    let table = node.constant_of_file(table.cast(dtype));
    let reached = node.cast(is_reached, dtype)?;
    let y = node.mat_mul(reached, table)?;
    Ok(vec![node.reshape(y, Shape::from([rows, targets]))?])
}

/// An attribute with numbers below a count.
fn indices(node: &ImportedNode, name: &str, count: usize) -> Result<Vec<usize>, Refusal> {
    let Some(list) = node.ints(name)? else { refuse!("attribute `{name}` is missing") };
    match list.iter().find(|&&item| usize::try_from(item).map_or(true, |item| count <= item)) {
        Some(item) => refuse!("attribute `{name}` must have numbers in 0..{count}, got {item}"),
        None => Ok(list.into_iter().map(|item| item as usize).collect()),
    }
}

impl Nodes {
    fn read(node: &ImportedNode, features: usize) -> Result<Nodes, Refusal> {
        let tensor = |name: &str| match node.tensor_attribute(name)? {
            Some(tensor) => Ok(tensor),
            None => refuse!("attribute `{name}` is missing"),
        };
        let (splits, modes) = (tensor("nodes_splits")?, tensor("nodes_modes")?.to_i64());
        let count = modes.len();
        let Some(leaves) = node.ints("leaf_targetids")? else { refuse!("attribute `leaf_targetids` is missing") };
        let features = indices(node, "nodes_featureids", features)?;
        let next = |ids: &str, kinds: &str| -> Result<Vec<Next>, Refusal> {
            let kinds = indices(node, kinds, 2)?;
            let ids = indices(node, ids, count.max(leaves.len()))?;
            let pair = |(&id, &is_leaf): (&usize, &usize)| match is_leaf {
                0 if id < count => Ok(Next::Node(id)),
                1 if id < leaves.len() => Ok(Next::Leaf(id)),
                _ => refuse!("node and leaf ids must exist, got {id}"),
            };
            ids.iter().zip(&kinds).map(pair).collect()
        };
        let (holds, fails) =
            (next("nodes_truenodeids", "nodes_trueleafs")?, next("nodes_falsenodeids", "nodes_falseleafs")?);
        let missing = match node.ints("nodes_missing_value_tracks_true")? {
            Some(list) => list.iter().map(|&item| item != 0).collect(),
            None => vec![false; count],
        };
        let modes: Vec<usize> = modes.iter().map(|&mode| usize::try_from(mode).unwrap_or(usize::MAX)).collect();
        if let Some(mode) = modes.iter().find(|&&mode| MODES.len() <= mode) {
            refuse!("attribute `nodes_modes`: {mode} is not supported");
        }
        let lengths = [splits.elements(), features.len(), holds.len(), fails.len(), missing.len()];
        if lengths != [count; 5] || count == 0 {
            refuse!("attributes of nodes must have {count} entries, got {lengths:?}");
        }
        // Member lists are concatenated, each terminated by NaN.
        let members = node.tensor_attribute("membership_values")?.map(|tensor| tensor.to_f64()).unwrap_or_default();
        let members: Vec<Vec<f64>> =
            members.split_inclusive(|number| number.is_nan()).map(|list| list.to_vec()).collect();
        let membership = modes.iter().filter(|&&mode| MODES[mode] == "in").count();
        if members.len() != membership || members.iter().any(|list| list.last().is_none_or(|last| !last.is_nan())) {
            refuse!("attribute `membership_values` must have a list for each of {membership} nodes");
        }
        let members = members.into_iter().map(|list| list[..list.len() - 1].to_vec()).collect();
        let next = holds.into_iter().zip(fails).map(|(holds, fails)| [holds, fails]).collect();
        Ok(Nodes { features, modes, splits, missing, next, members })
    }

    /// The paths from the roots to all leaves. Each node and each leaf must be in one tree, once.
    fn paths(&self, roots: &[usize], leaves: usize) -> Result<Vec<LeafPath>, Refusal> {
        let mut paths = Vec::new();
        let (mut seen_nodes, mut seen_leaves) = (vec![false; self.next.len()], vec![false; leaves]);
        // A path is copied at each of its nodes: trees are shallow.
        const DEPTH_MAX: usize = 1000;
        for &root in roots {
            // A tree of one leaf has a node with that leaf for both outcomes.
            let mut open = vec![(Next::Node(root), Vec::new())];
            if let [Next::Leaf(a), Next::Leaf(b)] = self.next[root]
                && a == b
            {
                seen_nodes[root] = true;
                open = vec![(Next::Leaf(a), Vec::new())];
            }
            while let Some((next, conditions)) = open.pop() {
                let seen = match next {
                    Next::Node(node) => &mut seen_nodes[node],
                    Next::Leaf(leaf) => &mut seen_leaves[leaf],
                };
                if std::mem::replace(seen, true) || DEPTH_MAX < conditions.len() {
                    refuse!("the nodes must form trees");
                }
                match next {
                    Next::Leaf(leaf) => paths.push(LeafPath { leaf, conditions }),
                    Next::Node(node) => {
                        for (holds, &next) in [true, false].into_iter().zip(&self.next[node]) {
                            let mut longer = conditions.clone();
                            longer.push((node, holds));
                            open.push((next, longer));
                        }
                    }
                }
            }
        }
        if paths.is_empty() { refuse!("at least one tree is required") } else { Ok(paths) }
    }

    /// `[n, nodes]`: 1 if the condition of a node is true, in `f32`.
    fn decided(&self, node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
        let (count, rows) = (self.next.len(), node.shape(x)[0]);
        let features = node.constant(Tensor::vector(self.features.iter().map(|&feature| feature as i64).collect()));
        let operands = node.apply(ops::Gather { axis: 1 }, &[x, features])?;
        let dtype = node.dtype(x);
        let splits = node.constant_of_file(Tensor::vector(self.splits.to_f64()).cast(dtype));
        let mut decided = None;
        for (mode, name) in MODES.iter().enumerate().filter(|(mode, _)| self.modes.contains(mode)) {
            let holds = match *name {
                "<=" => node.compare(Compare::LessOrEqual, operands, splits)?,
                "<" => node.compare(Compare::Less, operands, splits)?,
                ">=" => node.compare(Compare::GreaterOrEqual, operands, splits)?,
                ">" => node.compare(Compare::Greater, operands, splits)?,
                "==" => node.compare(Compare::Equal, operands, splits)?,
                "!=" => {
                    let equal = node.compare(Compare::Equal, operands, splits)?;
                    node.unary(Unary::Not, equal)?
                }
                _ => self.is_member(node, operands, rows)?,
            };
            decided = Some(match decided {
                None => holds,
                Some(others) => {
                    let mask = Tensor::vector(self.modes.iter().map(|&other| other == mode).collect::<Vec<bool>>());
                    let mask = node.constant(mask);
                    node.select(mask, holds, others)?
                }
            });
        }
        let Some(mut decided) = decided else { refuse!("at least one node is required") };
        if self.missing.contains(&true) {
            let equal = node.compare(Compare::Equal, operands, operands)?;
            let is_missing = node.unary(Unary::Not, equal)?;
            let mask = node.constant(Tensor::vector(self.missing.clone()));
            let tracks = node.binary(Binary::And, is_missing, mask)?;
            decided = node.binary(Binary::Or, decided, tracks)?;
        }
        let decided = node.cast(decided, DType::F32)?;
        node.reshape(decided, Shape::from([rows, count]))
    }

    /// Whether a feature is a member of a node's list; undefined for other nodes.
    fn is_member(&self, node: &mut ImportedNode, operands: Operand, rows: usize) -> Result<Operand, Refusal> {
        let (count, dtype) = (self.next.len(), node.dtype(operands));
        let longest = self.members.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let shape = Shape::from([longest, count]);
        node.reserve(DType::F64, &shape)?;
        let mut lists = vec![f64::NAN; longest * count];
        let membership = (0..count).filter(|&node| MODES[self.modes[node]] == "in");
        for (node, list) in membership.zip(&self.members) {
            for (row, &number) in list.iter().enumerate() {
                lists[row * count + node] = number;
            }
        }
        let lists = Tensor::new(shape, lists).map_err(|error| Refusal(error.to_string()))?;
        let lists = node.constant_of_file(lists.cast(dtype));
        let operands = node.reshape(operands, Shape::from([rows, 1, count]))?;
        let equal = node.compare(Compare::Equal, operands, lists)?;
        node.reduce(ReduceKind::Max, equal, smallvec![1], false)
    }
}
