//! [`differentiate`]: adds the nodes of the gradients of a loss to its graph.

use std::collections::BTreeMap;

use ir::ops::Binary;
use ir::{Backward, Graph, NodeId, Op, Refusal, Reuse, ValueDef, ValueId};
use smallvec::SmallVec;
use types::{Map, Role, Scope, Tensor, pointwise};

/// A loss that cannot be differentiated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GradientError {
    /// The loss is no number.
    #[error("the loss must be an f32 scalar, got {ty} for `{name}`")]
    NoScalar {
        /// The loss.
        name: String,
        /// Its type.
        ty: String,
    },
    /// A value with a gradient of no float.
    #[error("`{name}` must be a float to have a gradient, got {ty}")]
    NoFloat {
        /// The value.
        name: String,
        /// Its type.
        ty: String,
    },
    /// The loss does not depend on a value.
    #[error(
        "`{name}` must reach the loss to have a gradient; no operator on the way to it reads the value, so freeze it"
    )]
    Unread {
        /// The value.
        name: String,
    },
    /// The loss depends on a value through integers, flags or rounding only.
    #[error(
        "`{name}` must reach the loss to have a gradient; its only way ends at `{op}` of node `{scope}`, so freeze it"
    )]
    Stopped {
        /// The value.
        name: String,
        /// The operator without a gradient for it.
        op: &'static str,
        /// Its node.
        scope: String,
    },
    /// An operator refuses.
    #[error("node `{scope}`: {refusal}")]
    Refused {
        /// The node.
        scope: String,
        /// The reason.
        refusal: Refusal,
    },
}

/// Adds the gradients of `loss` for the values `wrt` behind all other nodes, and returns them in the order of `wrt`.
///
/// Nodes are visited in reverse; each operator adds the gradients of its operands ([`ir::Operator::gradient`]). The
/// contributions of several readers are added in the reverse order of the readers, each in a node that may work in place
/// of the sum so far, so that results are reproducible. Only values between `wrt` and the loss get a gradient. The states'
/// updates are not part of the loss. Gradients have roles: that of a value that depends on weights alone is a
/// weight's, others are those of activations.
///
/// Must run before passes that fuse operators, which have no gradients.
///
/// # Errors
/// A loss that is no `f32` scalar, a value that does not reach it, an operator without a gradient, each by name.
pub fn differentiate(graph: &mut Graph, loss: ValueId, wrt: &[ValueId]) -> Result<Vec<ValueId>, GradientError> {
    let named = |value: ValueId| (graph.value(value).name.clone(), graph.ty(value).to_string());
    if graph.ty(loss).dtype != types::DType::F32 || graph.ty(loss).shape.elements() != 1 {
        let (name, ty) = named(loss);
        return Err(GradientError::NoScalar { name, ty });
    }
    if let Some(&value) = wrt.iter().find(|&&value| !graph.ty(value).dtype.is_float()) {
        let (name, ty) = named(value);
        return Err(GradientError::NoFloat { name, ty });
    }
    let depends = Dependence::of(graph, wrt);
    let forward: Vec<NodeId> = graph.nodes().keys().collect();
    let mut sums = Sums { gradients: Map::filled(graph.values().len(), None), of_weights: depends.of_weights };
    let ty = graph.ty(loss).clone();
    let one = graph.add_constant(&format!("{}/gradient", graph.value(loss).name), Tensor::full(ty.shape, 1.0f32));
    sums.gradients[loss] = Some(one);
    let mut stops: BTreeMap<ValueId, NodeId> = BTreeMap::new();
    for id in forward.into_iter().rev() {
        let node = graph.node(id).clone();
        let outputs: SmallVec<[Option<ValueId>; 4]> = node.outputs.iter().map(|&value| sums.gradients[value]).collect();
        let required: SmallVec<[bool; 4]> = node.inputs.iter().map(|&value| depends.required[value]).collect();
        if outputs.iter().all(Option::is_none) || !required.contains(&true) {
            continue;
        }
        let refused = |refusal| GradientError::Refused { scope: node.scope.to_string(), refusal };
        let gradients = node.op.gradient(&mut Backward::new(graph, &node, &required), &outputs).map_err(refused)?;
        assert_eq!(gradients.len(), node.inputs.len(), "`{}` must have a gradient for each operand", node.op.name());
        for ((&operand, &gradient), &required) in node.inputs.iter().zip(&gradients).zip(&required) {
            match gradient {
                Some(gradient) if required => sums.add(graph, operand, gradient, &node.scope).map_err(refused)?,
                None if required => drop(stops.insert(operand, id)),
                _ => {}
            }
        }
    }
    wrt.iter()
        .map(|&value| sums.gradients[value].ok_or_else(|| unreached(graph, value, &sums.gradients, &stops)))
        .collect()
}

/// Which values need a gradient.
struct Dependence {
    /// By value: whether it is a float that depends on a value of `wrt`.
    required: Map<ValueId, bool>,
    /// By value: whether it depends on trained weights, and on nothing else that changes between runs.
    of_weights: Map<ValueId, bool>,
}

impl Dependence {
    fn of(graph: &Graph, wrt: &[ValueId]) -> Dependence {
        let mut required = Map::filled(graph.values().len(), false);
        wrt.iter().for_each(|&value| required[value] = true);
        let is_weight = |value: &ir::Value| {
            matches!(value.source, ValueDef::Weight(_) | ValueDef::State { role: Role::Weight, .. })
        };
        let mut of_weights: Map<ValueId, bool> = graph.values().values().map(is_weight).collect();
        for node in graph.nodes().values() {
            let is_float = |value: ValueId| graph.ty(value).dtype.is_float();
            let needs = node.inputs.iter().any(|&input| required[input]);
            let is_known = |input: ValueId| matches!(graph.value(input).source, ValueDef::Constant(_));
            let weights = node.inputs.iter().all(|&input| of_weights[input] || is_known(input))
                && node.inputs.iter().any(|&input| of_weights[input]);
            for &output in &node.outputs {
                required[output] |= needs && is_float(output);
                of_weights[output] = weights;
            }
        }
        Dependence { required, of_weights }
    }
}

/// The sums of the gradients so far.
struct Sums {
    /// By forward value.
    gradients: Map<ValueId, Option<ValueId>>,
    of_weights: Map<ValueId, bool>,
}

impl Sums {
    /// Adds a contribution to the gradient of a value.
    fn add(&mut self, graph: &mut Graph, value: ValueId, more: ValueId, scope: &Scope) -> Result<(), Refusal> {
        let role = if self.of_weights[value] { Role::WeightGradient } else { Role::ActivationGradient };
        let sum = match self.gradients[value] {
            None => more,
            Some(sum) => {
                let op = Op::Binary(Binary(pointwise::Binary::Add));
                graph.add1(op, &[sum, more], scope.child("gradient").child("sum"))?
            }
        };
        for gradient in [more, sum] {
            self.set_role(graph, gradient, role);
        }
        self.gradients[value] = Some(sum);
        Ok(())
    }

    /// Sets the role of a gradient, and of the value that it is a view of: that one names the bytes.
    fn set_role(&self, graph: &mut Graph, mut gradient: ValueId, role: Role) {
        // A contribution may be a value that was there before, such as the gradient of a sum's result.
        while self.of_weights.get(gradient).is_none()
            && graph.value(gradient).result_role != Some(Role::WeightGradient)
            && let Some(node) = graph.value(gradient).producer()
        {
            graph.value_mut(gradient).result_role = Some(role);
            let node = graph.node(node);
            let Reuse::Alias { .. } = graph.reuse(node) else { return };
            gradient = node.inputs[0];
        }
    }
}

/// Why a value has no gradient: the first node on the way to the loss that has none for its operand.
fn unreached(
    graph: &Graph,
    value: ValueId,
    gradients: &Map<ValueId, Option<ValueId>>,
    stops: &BTreeMap<ValueId, NodeId>,
) -> GradientError {
    let name = graph.value(value).name.clone();
    let mut reached = Map::filled(graph.values().len(), false);
    reached[value] = true;
    for (id, node) in graph.nodes().iter() {
        let Some(&operand) = node.inputs.iter().find(|&&input| reached[input]) else { continue };
        let has_gradient = node.outputs.iter().any(|&output| gradients.get(output).is_some_and(Option::is_some));
        let stops_here = stops.get(&operand) == Some(&id);
        let gives_integers = node.outputs.iter().all(|&output| !graph.ty(output).dtype.is_float());
        if stops_here || (gives_integers && !has_gradient) {
            let (op, scope) = (node.op.name(), node.scope.to_string());
            return GradientError::Stopped { name, op, scope };
        }
        node.outputs.iter().for_each(|&output| reached[output] = true);
    }
    GradientError::Unread { name }
}

#[cfg(test)]
mod tests {
    use ir::ops::{Cast, Expand, Gather, MatMul, Reduce, ReduceKind, Reshape, Softmax, Transpose, Unary};
    use ir::{evaluate, verify};
    use types::{DType, Shape, pointwise};

    use super::*;

    fn add(graph: &mut Graph, op: impl Into<Op>, inputs: &[ValueId], scope: &str) -> ValueId {
        graph.add1(op.into(), inputs, Scope::new(scope)).expect("the graph is well made")
    }

    fn sum(graph: &mut Graph, x: ValueId) -> ValueId {
        let axes = (0..graph.ty(x).shape.rank()).collect();
        add(graph, Reduce { kind: ReduceKind::Sum, axes, keep: false }, &[x], "loss")
    }

    fn function(function: pointwise::Binary) -> Binary {
        Binary(function)
    }

    fn trained(graph: &mut Graph, name: &str, shape: &[usize], items: &[f32]) -> ValueId {
        graph.add_state(name, Tensor::new(Shape::from(shape), items.to_vec()).unwrap(), Role::Weight)
    }

    fn role(graph: &Graph, value: ValueId) -> Role {
        graph.value(value).role()
    }

    #[test]
    fn contributions_of_several_readers_are_added() {
        let mut graph = Graph::new("shared");
        let x = graph.add_input("x", DType::F32, Shape::from([1, 2]));
        let w = trained(&mut graph, "w", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        // w is read by two products and by itself; the result of the first is an output too.
        let a = add(&mut graph, MatMul::default(), &[x, w], "a");
        let b = add(&mut graph, MatMul::default(), &[a, w], "b");
        let square = add(&mut graph, function(pointwise::Binary::Mul), &[w, w], "square");
        let (b, square) = (sum(&mut graph, b), sum(&mut graph, square));
        let loss = add(&mut graph, function(pointwise::Binary::Add), &[b, square], "total");
        let gradients = differentiate(&mut graph, loss, &[w, x]).unwrap();
        let outputs = vec![("a".into(), a), ("dw".into(), gradients[0]), ("dx".into(), gradients[1])];
        graph.set_outputs(outputs);
        assert_eq!(verify(&graph), Ok(()));
        let x = Tensor::new(Shape::from([1, 2]), vec![5.0f32, 6.0]).unwrap();
        let got = evaluate(&graph, &[x]).unwrap();
        // a = (23, 34); with ones behind b: da = (3, 7), and dw = x' da + a' (1, 1) + 2 w.
        assert_eq!(got[0].to_f64(), [23.0, 34.0]);
        assert_eq!(got[1].to_f64(), [15.0 + 23.0 + 2.0, 35.0 + 23.0 + 4.0, 18.0 + 34.0 + 6.0, 42.0 + 34.0 + 8.0]);
        assert_eq!(got[2].to_f64(), [17.0, 37.0]);
        assert_eq!(role(&graph, gradients[0]), Role::WeightGradient);
        assert_eq!(role(&graph, gradients[1]), Role::ActivationGradient);
    }

    #[test]
    fn gradients_have_the_scope_of_their_node_and_roles_survive_passes() {
        let mut graph = Graph::new("roles");
        let x = graph.add_input("x", DType::F32, Shape::from([4, 3]));
        let w = trained(&mut graph, "w", &[2, 3], &[0.5; 6]);
        let b = trained(&mut graph, "b", &[2], &[0.5; 2]);
        let turned = add(&mut graph, Transpose { order: [1, 0].into_iter().collect() }, &[w], "head/turn");
        let y = add(&mut graph, MatMul::default(), &[x, turned], "head/product");
        let y = add(&mut graph, function(pointwise::Binary::Add), &[y, b], "head/bias");
        let y = add(&mut graph, Unary(pointwise::Unary::Tanh), &[y], "head/tanh");
        let loss = sum(&mut graph, y);
        let gradients = differentiate(&mut graph, loss, &[w, b]).unwrap();
        graph.set_outputs(vec![("loss".into(), loss), ("dw".into(), gradients[0]), ("db".into(), gradients[1])]);
        let scopes: Vec<&str> =
            gradients.iter().map(|&value| graph.node(graph.value(value).producer().unwrap()).scope.as_str()).collect();
        assert_eq!(scopes, ["head/turn/gradient", "head/bias/gradient"]);
        let roles = |graph: &Graph| {
            let roles = graph.outputs().iter().map(|output| role(graph, output.value));
            roles.chain(graph.nodes().values().map(|node| role(graph, node.outputs[0]))).collect::<Vec<_>>()
        };
        let want = [Role::Activation, Role::WeightGradient, Role::WeightGradient];
        assert_eq!(roles(&graph)[..3], want);
        // The gradient of the turned weight is a weight's too.
        assert_eq!(roles(&graph).iter().filter(|role| **role == Role::WeightGradient).count(), 2 + 4);
        let text = ir::text::print(&graph);
        let read = ir::text::parse(&text, |_| None).unwrap();
        assert_eq!((ir::text::print(&read), roles(&read)), (text, roles(&graph)));
        let fused = crate::run(graph, |_, _| {}).unwrap();
        assert_eq!(roles(&fused)[..3], want);
        assert!(roles(&fused).contains(&Role::ActivationGradient));
    }

    #[test]
    fn values_that_do_not_reach_the_loss_are_named() {
        let mut graph = Graph::new("stops");
        let (index, table) =
            (trained(&mut graph, "index", &[2], &[0.0, 1.0]), trained(&mut graph, "table", &[3, 2], &[0.0; 6]));
        let rounded = add(&mut graph, Cast { to: DType::I64 }, &[index], "to_index");
        let rows = add(&mut graph, Gather { axis: 0 }, &[table, rounded], "rows");
        let floor = trained(&mut graph, "floor", &[1], &[0.5]);
        let steps = add(&mut graph, Unary(pointwise::Unary::Floor), &[floor], "steps");
        let rows = add(&mut graph, function(pointwise::Binary::Mul), &[rows, steps], "times");
        let unread = trained(&mut graph, "unread", &[1], &[0.5]);
        let loss = sum(&mut graph, rows);
        let result = |wrt: &[ValueId]| differentiate(&mut graph.clone(), loss, wrt).map(|gradients| gradients.len());
        assert_eq!(result(&[table]), Ok(1));
        let stopped =
            |name: &str, op, scope: &str| GradientError::Stopped { name: name.into(), op, scope: scope.into() };
        assert_eq!(result(&[table, index]), Err(stopped("index", "cast", "to_index")));
        assert_eq!(result(&[floor]), Err(stopped("floor", "unary", "steps")));
        assert_eq!(result(&[unread]), Err(GradientError::Unread { name: "unread".into() }));
        assert!(matches!(result(&[rounded]), Err(GradientError::NoFloat { .. })));
        assert!(matches!(differentiate(&mut graph.clone(), rows, &[table]), Err(GradientError::NoScalar { .. })));
    }

    #[test]
    fn operators_without_a_gradient_are_named() {
        let mut graph = Graph::new("fused");
        let w = trained(&mut graph, "w", &[2, 2], &[0.5; 4]);
        let y = add(&mut graph, ir::ops::Relayout {}, &[w], "copy");
        let loss = sum(&mut graph, y);
        let error = differentiate(&mut graph, loss, &[w]).unwrap_err().to_string();
        assert_eq!(error, "node `copy`: `relayout` has no gradient; differentiate before passes that fuse operators");
    }

    #[test]
    fn states_and_their_updates_are_no_part_of_the_loss() {
        let mut graph = Graph::new("running");
        let x = graph.add_input("x", DType::F32, Shape::from([3]));
        let w = trained(&mut graph, "w", &[3], &[1.0, 2.0, 3.0]);
        let running = graph.add_state("running", Tensor::vector(vec![0.0f32; 3]), Role::State);
        let y = add(&mut graph, function(pointwise::Binary::Mul), &[x, w], "scale");
        let next = add(&mut graph, function(pointwise::Binary::Add), &[running, y], "next");
        graph.update_state(running, next);
        let y = add(&mut graph, Softmax { axis: 0, log: true }, &[y], "softmax");
        let y = add(&mut graph, Reshape { shape: Shape::from([3, 1]) }, &[y], "reshape");
        let y = add(&mut graph, Expand { shape: Shape::from([3, 2]) }, &[y], "expand");
        let loss = sum(&mut graph, y);
        let nodes = graph.nodes().len();
        let gradients = differentiate(&mut graph, loss, &[w]).unwrap();
        let read: Vec<ValueId> = graph.nodes().values().skip(nodes).flat_map(|node| node.inputs.to_vec()).collect();
        assert!(!read.contains(&running) && !read.contains(&next));
        graph.set_outputs(vec![("dw".into(), gradients[0])]);
        assert_eq!(verify(&graph), Ok(()));
    }
}
