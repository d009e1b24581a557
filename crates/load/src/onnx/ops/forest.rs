//! `TreeEnsembleRegressor` and `TreeEnsembleClassifier` of domain `ai.onnx.ml`: gradient boosting and random forests.
//!
//! All trees are descended at once. A run starts at the roots, and each step replaces the node of every row and tree by the
//! one that follows; leaves follow themselves. The steps are as many as the deepest tree has, and each has a few numbers for
//! each row and tree. Sources: ONNX, docs/Operators-ml.md; onnxruntime, `tree_ensemble_aggregator.h`.

use std::collections::BTreeMap;

use ir::ops::{self, ReduceKind};
use ir::{Refusal, TensorType};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape, Tensor};

use super::linear_models::features;
use super::scores::{self, PostTransform};
use crate::common::{NodeResult, Operand, counts, refuse};
use crate::onnx::node::ImportedNode;

/// Comparisons of a feature with a split.
const MODES: [(&str, Compare, bool); 6] = [
    ("BRANCH_LEQ", Compare::LessOrEqual, true),
    ("BRANCH_LT", Compare::Less, true),
    ("BRANCH_GTE", Compare::GreaterOrEqual, true),
    ("BRANCH_GT", Compare::Greater, true),
    ("BRANCH_EQ", Compare::Equal, true),
    ("BRANCH_NEQ", Compare::Equal, false),
];

/// The nodes of all trees, an entry for each.
struct Forest {
    roots: Vec<usize>,
    features: Vec<usize>,
    splits: Vec<f64>,
    /// The number in [`MODES`].
    modes: Vec<usize>,
    /// The nodes that follow if the condition is true, and if it is false; a leaf itself.
    next: Vec<[usize; 2]>,
    /// Whether a missing value (NaN) satisfies the condition.
    missing: Vec<bool>,
    /// Nodes between a root and the farthest leaf.
    depth: usize,
    /// Numbers of nodes by tree and number in the file.
    by_id: BTreeMap<(i64, i64), usize>,
}

/// The numbers of an attribute, of floats or a tensor.
fn numbers(node: &ImportedNode, name: &str) -> Result<Option<Vec<f64>>, Refusal> {
    if let Some(tensor) = node.tensor_attribute(&format!("{name}_as_tensor"))? {
        return Ok(Some(tensor.to_f64()));
    }
    Ok(node.floats(name)?.map(|floats| floats.iter().map(|&float| f64::from(float)).collect()))
}

fn ints(node: &ImportedNode, name: &str) -> Result<Vec<i64>, Refusal> {
    match node.ints(name)? {
        Some(list) => Ok(list),
        None => refuse!("attribute `{name}` is missing"),
    }
}

impl Forest {
    fn read(node: &ImportedNode, features: usize) -> Result<Forest, Refusal> {
        node.ignore(&["nodes_hitrates", "nodes_hitrates_as_tensor"]);
        let (trees, ids) = (ints(node, "nodes_treeids")?, ints(node, "nodes_nodeids")?);
        let Some(names) = node.texts("nodes_modes")? else { refuse!("attribute `nodes_modes` is missing") };
        let count = names.len();
        let splits = numbers(node, "nodes_values")?.unwrap_or_else(|| vec![0.0; count]);
        let (on_true, on_false) = (ints(node, "nodes_truenodeids")?, ints(node, "nodes_falsenodeids")?);
        let given = ints(node, "nodes_featureids")?;
        let missing = match node.ints("nodes_missing_value_tracks_true")? {
            Some(list) if !list.is_empty() => list.iter().map(|&item| item != 0).collect(),
            _ => vec![false; count],
        };
        let lengths = [trees.len(), ids.len(), splits.len(), on_true.len(), on_false.len(), given.len(), missing.len()];
        if lengths != [count; 7] || count == 0 {
            refuse!("attributes of nodes must have {count} entries, got {lengths:?}");
        }
        let mut by_id = BTreeMap::new();
        for (ix, id) in trees.iter().copied().zip(ids).enumerate() {
            if by_id.insert(id, ix).is_some() {
                refuse!("nodes of a tree must be distinct, got {} of tree {} twice", id.1, id.0);
            }
        }
        let (mut next, mut modes) = (Vec::new(), Vec::new());
        let mut is_child = vec![false; count];
        let mut of_nodes = vec![0; count];
        for (ix, name) in names.iter().enumerate() {
            if *name == "LEAF" {
                next.push([ix, ix]);
                modes.push(0);
                continue;
            }
            match MODES.iter().position(|mode| mode.0 == *name) {
                Some(mode) => modes.push(mode),
                None => refuse!("attribute `nodes_modes`: `{name}` is not supported"),
            }
            of_nodes[ix] = match usize::try_from(given[ix]) {
                Ok(feature) if feature < features => feature,
                _ => refuse!("attribute `nodes_featureids` must have numbers in 0..{features}, got {}", given[ix]),
            };
            let mut pair = [0; 2];
            for (place, id) in pair.iter_mut().zip([on_true[ix], on_false[ix]]) {
                match by_id.get(&(trees[ix], id)) {
                    Some(&child) if !is_child[child] => (*place, is_child[child]) = (child, true),
                    _ => refuse!("the nodes must form trees: node {id} of tree {} follows another once", trees[ix]),
                }
            }
            next.push(pair);
        }
        let roots: Vec<usize> = (0..count).filter(|&ix| !is_child[ix]).collect();
        let mut all_trees = trees.clone();
        all_trees.sort_unstable();
        all_trees.dedup();
        if roots.len() != all_trees.len() || roots.windows(2).any(|pair| trees[pair[0]] == trees[pair[1]]) {
            refuse!("each of {} trees must have one root, got {} in all", all_trees.len(), roots.len());
        }
        let depth = depth(&roots, &next)?;
        Ok(Forest { roots, features: of_nodes, splits, modes, next, missing, depth, by_id })
    }

    /// The leaf of each row in each tree, `[rows, trees]`. `x: [rows, features]`.
    fn leaves(&self, node: &mut ImportedNode, x: Operand) -> Result<Operand, Refusal> {
        let (rows, dtype) = (node.shape(x)[0], node.dtype(x));
        let list = |node: &mut ImportedNode, items: Vec<i64>| node.constant(Tensor::vector(items));
        let features = list(node, self.features.iter().map(|&feature| feature as i64).collect());
        let next = [0, 1].map(|side| list(node, self.next.iter().map(|pair| pair[side] as i64).collect()));
        let splits = node.constant_of_file(Tensor::vector(self.splits.clone()).cast(dtype));
        let modes: Vec<usize> = (0..MODES.len())
            .filter(|&mode| (0..self.modes.len()).any(|ix| self.next[ix][0] != ix && self.modes[ix] == mode))
            .collect();
        let roots = list(node, self.roots.iter().map(|&root| root as i64).collect());
        let shape = Shape::from([rows, self.roots.len()]);
        let mut at = node.expand(roots, shape)?;
        for _ in 0..self.depth {
            let feature = node.rows(features, at)?;
            let value = node.elements_along(x, feature, 1)?;
            let split = node.rows(splits, at)?;
            let mut decided = None;
            for &mode in &modes {
                let (_, compare, is_so) = MODES[mode];
                let mut holds = node.compare(compare, value, split)?;
                if !is_so {
                    holds = node.unary(Unary::Not, holds)?;
                }
                decided = Some(match decided {
                    None => holds,
                    Some(others) => {
                        let own = Tensor::vector(self.modes.iter().map(|&own| own == mode).collect::<Vec<bool>>());
                        let own = node.constant(own);
                        let is_own = node.rows(own, at)?;
                        node.select(is_own, holds, others)?
                    }
                });
            }
            let Some(mut decided) = decided else { break };
            if self.missing.contains(&true) {
                let equal = node.compare(Compare::Equal, value, value)?;
                let is_missing = node.unary(Unary::Not, equal)?;
                let tracks = node.constant(Tensor::vector(self.missing.clone()));
                let tracks = node.rows(tracks, at)?;
                let tracks = node.binary(Binary::And, is_missing, tracks)?;
                decided = node.binary(Binary::Or, decided, tracks)?;
            }
            let [on_true, on_false] = [node.rows(next[0], at)?, node.rows(next[1], at)?];
            at = node.select(decided, on_true, on_false)?;
        }
        Ok(at)
    }
}

/// Nodes between a root and the farthest leaf. No node follows two others, so that the nodes below the roots are trees.
fn depth(roots: &[usize], next: &[[usize; 2]]) -> Result<usize, Refusal> {
    const DEPTH_MAX: usize = 1000;
    let (mut level, mut depth, mut seen) = (roots.to_vec(), 0, roots.len());
    loop {
        let inner = level.iter().filter(|&&ix| next[ix][0] != ix);
        level = inner.flat_map(|&ix| next[ix]).collect();
        if level.is_empty() {
            break;
        }
        (depth, seen) = (depth + 1, seen + level.len());
        if DEPTH_MAX < depth {
            refuse!("trees must have at most {DEPTH_MAX} nodes from root to leaf");
        }
    }
    match seen == next.len() {
        true => Ok(depth),
        false => refuse!("the nodes must form trees: {} of {} follow no root", next.len() - seen, next.len()),
    }
}

/// How the weights of several leaves are joined.
#[derive(Clone, Copy, PartialEq)]
enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// The weights of the leaves that the rows of `x` reach, joined for each of `targets`: `[rows, targets]`. Attributes of
/// weights begin with `prefix`.
fn joined(
    node: &mut ImportedNode,
    x: Operand,
    prefix: &str,
    targets: usize,
    aggregate: Aggregate,
) -> Result<(Operand, Weights), Refusal> {
    let forest = Forest::read(node, node.shape(x)[1])?;
    let weights = Weights::read(node, prefix, targets, &forest)?;
    let nodes = forest.next.len();
    let absent = match aggregate {
        Aggregate::Sum | Aggregate::Average => 0.0,
        Aggregate::Min => f64::INFINITY,
        Aggregate::Max => f64::NEG_INFINITY,
    };
    let shape = Shape::from([nodes, targets]);
    TensorType::new(DType::F64, shape.clone()).check_size()?;
    node.reserve(DType::F64, &shape)?;
    let mut table = vec![absent; nodes * targets];
    for &(leaf, target, weight) in &weights.entries {
        let place = &mut table[leaf * targets + target];
        *place = match aggregate {
            Aggregate::Sum | Aggregate::Average => *place + weight,
            Aggregate::Min => place.min(weight),
            Aggregate::Max => place.max(weight),
        };
    }
    let dtype = node.dtype(x);
    let table = Tensor::new(shape, table).map_err(|error| Refusal(error.to_string()))?;
    let table = node.constant_of_file(table.cast(dtype));
    let leaves = forest.leaves(node, x)?;
    let of_trees = node.rows(table, leaves)?;
    let kind = match aggregate {
        Aggregate::Sum => ReduceKind::Sum,
        Aggregate::Average => ReduceKind::Mean,
        Aggregate::Min => ReduceKind::Min,
        Aggregate::Max => ReduceKind::Max,
    };
    let mut y = node.reduce(kind, of_trees, smallvec![1], false)?;
    if absent.is_infinite() {
        // No leaf of the row has a weight for the target.
        let (absent, zero) = (node.number(absent, dtype), node.number(0.0, dtype));
        let is_absent = node.compare(Compare::Equal, y, absent)?;
        y = node.select(is_absent, zero, y)?;
    }
    Ok((y, weights))
}

/// The weights of leaves.
struct Weights {
    /// Leaf, target and weight.
    entries: Vec<(usize, usize, f64)>,
}

impl Weights {
    fn read(node: &ImportedNode, prefix: &str, targets: usize, forest: &Forest) -> Result<Weights, Refusal> {
        let name = |part: &str| format!("{prefix}_{part}");
        let (trees, nodes) = (ints(node, &name("treeids"))?, ints(node, &name("nodeids"))?);
        let ids = ints(node, &name("ids"))?;
        let Some(weights) = numbers(node, &name("weights"))? else {
            refuse!("attribute `{}` is missing", name("weights"))
        };
        let lengths = [trees.len(), nodes.len(), ids.len()];
        if lengths != [weights.len(); 3] {
            refuse!("attributes of weights must have {} entries, got {lengths:?}", weights.len());
        }
        if weights.iter().any(|weight| !weight.is_finite()) {
            refuse!("weights of leaves must be finite");
        }
        let entry = |ix: usize| {
            let Some(&leaf) = forest.by_id.get(&(trees[ix], nodes[ix])) else {
                refuse!("attribute `{}`: node {} of tree {} does not exist", name("nodeids"), nodes[ix], trees[ix])
            };
            match usize::try_from(ids[ix]) {
                _ if forest.next[leaf][0] != leaf => refuse!("only leaves must have weights, got node {}", nodes[ix]),
                Ok(target) if target < targets => Ok((leaf, target, weights[ix])),
                _ => refuse!("attribute `{}` must have numbers in 0..{targets}, got {}", name("ids"), ids[ix]),
            }
        };
        Ok(Weights { entries: (0..weights.len()).map(entry).collect::<Result<_, _>>()? })
    }
}

/// `TreeEnsembleRegressor`: `x: [rows, features]` -> `[rows, targets]` of `f32`.
pub(super) fn regressor(node: &mut ImportedNode) -> NodeResult {
    let x = features(node)?;
    let targets = counts(&[node.int_or("n_targets", 1)?], "n_targets")?[0];
    if targets == 0 {
        refuse!("attribute `n_targets` must be at least 1, got 0");
    }
    let aggregate = match node.text_or("aggregate_function", "SUM") {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => refuse!("attribute `aggregate_function`: `{other}` is not supported"),
    };
    let transform = PostTransform::read(node)?;
    let base = numbers(node, "base_values")?.unwrap_or_default();
    let (mut y, _) = joined(node, x, "target", targets, aggregate)?;
    y = scores::shifted(node, y, &base)?;
    let y = node.cast(y, DType::F32)?;
    Ok(vec![transform.apply(node, y)?])
}

/// `TreeEnsembleClassifier`: `x: [rows, features]` -> the label of each row, and `[rows, classes]` scores of `f32`.
///
/// The label is that of the largest sum of weights. If all weights of two classes are those of one class, the sum is the
/// score of the second class, which is compared with 0, or with one half if no weight is negative.
pub(super) fn classifier(node: &mut ImportedNode) -> NodeResult {
    let x = features(node)?;
    let labels = scores::Labels::read(node, "classlabels_int64s")?;
    let classes = labels.count;
    let transform = PostTransform::read(node)?;
    let base = numbers(node, "base_values")?.unwrap_or_default();
    let (y, weights) = joined(node, x, "class", classes.max(1), Aggregate::Sum)?;
    let first = weights.entries.first().map_or(0, |entry| entry.1);
    let is_single = weights.entries.iter().all(|entry| entry.1 == first);
    if classes == 2 {
        // ONNX Runtime adds some of these to scores of other classes.
        let is_of_first = is_single && first == 0;
        if 1 < base.len() || !(base.is_empty() || is_of_first) {
            refuse!("`base_values` of 2 classes must be one number, and all weights must be those of class 0");
        }
        if is_single {
            let columns = node.shape(y);
            let score = node.apply(ops::Slice::range(&columns, 1, first, 1), &[y])?;
            let score = scores::shifted(node, score, &base)?;
            let score = node.cast(score, DType::F32)?;
            let is_probability = weights.entries.iter().all(|entry| 0.0 <= entry.2);
            return scores::binary(
                node,
                score,
                &labels,
                scores::Binary { is_probability, of_first: first == 0 },
                transform,
            );
        }
    }
    let y = scores::shifted(node, y, &base)?;
    let y = node.cast(y, DType::F32)?;
    scores::multiclass(node, y, &labels, transform)
}
