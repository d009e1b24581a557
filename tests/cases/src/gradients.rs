//! Gradients compared with central differences of the definitions, in `f64`.
//!
//! The loss is a random linear function of a case's results. For each float operand of a case, the change of the loss
//! along a random direction must be the product of the direction and the gradient that `differentiate` adds.
//!
//! Points without a derivative are avoided, not skipped: operands are continuous random numbers, so that two are equal or at
//! a kink with probability 0, and of several steps the smaller ones cross a nearby kink with less probability. If an
//! operand is outside of a function's domain, the next range of [`RANGES`] is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ir::ops::*;
use ir::{Graph, Op, ValueDef, ValueId, rewrite};
use passes::training::{GradientError, differentiate};
use types::{DType, Map, Random, Scope, Tensor, pointwise};

use crate::judge::inputs;

/// Cases with more arithmetic than this are compared for all operands at once: a definition runs twice for each step.
const FLOPS_EACH: u64 = 1 << 16;
/// Cases with more arithmetic or larger operands are not compared. They have the operators and forms of smaller ones.
const FLOPS_MAX: u64 = 1 << 23;
/// Steps of the difference.
const STEPS: [f64; 3] = [1e-5, 1e-6, 1e-7];
/// Ranges of operands; the first with a finite loss is taken. `acosh` has one above 1, logarithms have one above 0.
const RANGES: [(f64, f64); 3] = [(-1.0, 1.0), (0.1, 0.9), (1.1, 1.9)];

/// Evaluates a graph with each float as `f64`. Returns the values of `wanted`.
fn evaluate_wide(graph: &Graph, given: &BTreeMap<ValueId, Tensor>, wanted: &[ValueId]) -> Vec<Tensor> {
    let wide = |tensor: &Tensor| if tensor.dtype().is_float() { tensor.cast(DType::F64) } else { tensor.clone() };
    let mut values: Map<ValueId, Option<Arc<Tensor>>> = Map::filled(graph.values().len(), None);
    for (id, value) in graph.values().iter() {
        values[id] = given.get(&id).or(value.tensor().map(|tensor| &**tensor)).map(|tensor| Arc::new(wide(tensor)));
    }
    for node in graph.nodes().values() {
        let operands: Vec<Arc<Tensor>> =
            node.inputs.iter().map(|&id| values[id].clone().expect("nodes are in topological order")).collect();
        let operands: Vec<&Tensor> = operands.iter().map(|tensor| &**tensor).collect();
        let wide =
            matches!(&node.op, Op::Cast(cast) if cast.to.is_float()).then_some(Op::from(Cast { to: DType::F64 }));
        let outputs = wide.as_ref().unwrap_or(&node.op).eval(&operands);
        for (&id, tensor) in node.outputs.iter().zip(outputs) {
            values[id] = Some(Arc::new(tensor));
        }
    }
    wanted.iter().map(|&id| (**values[id].as_ref().expect("all values are computed")).clone()).collect()
}

/// Adds a random linear function of the given values.
fn add_loss(graph: &mut Graph, name: &str, results: &[ValueId]) -> ValueId {
    let mut loss = None;
    for (ix, &result) in results.iter().enumerate() {
        let ty = graph.ty(result).clone();
        let mut random = Random::for_name(17, &format!("{name}/{ix}"));
        let factors = Tensor::from_fn(ty.shape.clone(), |_| random.uniform(-1.0, 1.0)).cast(ty.dtype);
        let factors = graph.add_constant("factors", factors);
        let mut add = |op: Op, inputs: &[ValueId]| {
            graph.add1(op, inputs, Scope::new("loss")).unwrap_or_else(|refusal| panic!("{name}: {refusal}"))
        };
        let product = add(Binary(pointwise::Binary::Mul).into(), &[result, factors]);
        let axes = (0..ty.shape.rank()).collect();
        let sum = add(Reduce { kind: ReduceKind::Sum, axes, keep: false }.into(), &[product]);
        let sum = if ty.dtype == DType::F32 { sum } else { add(Cast { to: DType::F32 }.into(), &[sum]) };
        loss = Some(match loss {
            None => sum,
            Some(loss) => add(Binary(pointwise::Binary::Add).into(), &[loss, sum]),
        });
    }
    loss.expect("there is a result")
}

/// The numbers of comparisons, and of cases without one by reason.
#[derive(Default)]
struct Tally {
    compared: usize,
    zero: usize,
    ranges: [usize; 3],
    large: usize,
    no_floats: usize,
    /// Without the arithmetic that passes move into products.
    unfused: usize,
    refused: BTreeMap<String, usize>,
    ops: BTreeSet<&'static str>,
}

/// The values of a case that may have a gradient.
fn floats(graph: &Graph) -> Vec<ValueId> {
    let is_float = |id: &ValueId| graph.ty(*id).dtype.is_float() && graph.ty(*id).shape.elements() != 0;
    let is_weight = |id: &ValueId| matches!(graph.value(*id).source, ValueDef::Weight(_));
    let weights = graph.values().keys().filter(is_weight);
    graph.inputs().iter().copied().chain(weights).filter(is_float).collect()
}

fn check(name: &str, graph: &Graph, results: &[ValueId], tally: &mut Tally) -> Result<(), GradientError> {
    let operands = floats(graph);
    let mut with_loss = graph.clone();
    let loss = add_loss(&mut with_loss, name, results);
    // All at once; if one has no gradient, each alone.
    let mut whole = with_loss.clone();
    let groups: Vec<Vec<ValueId>> = match differentiate(&mut whole, loss, &operands) {
        Ok(_) => vec![operands.clone()],
        Err(GradientError::Refused { scope, refusal }) => return Err(GradientError::Refused { scope, refusal }),
        Err(_) => operands.iter().map(|&operand| vec![operand]).collect(),
    };
    for group in groups {
        let mut graph = with_loss.clone();
        let gradients = match differentiate(&mut graph, loss, &group) {
            Ok(gradients) => gradients,
            Err(GradientError::Unread { .. } | GradientError::Stopped { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        assert!(!gradients.is_empty() || group.len() == 1);
        assert_eq!(ir::verify(&with_output(&graph, &gradients)), Ok(()), "{name}");
        for (&value, &gradient) in group.iter().zip(&gradients) {
            assert_eq!(graph.ty(value), graph.ty(gradient), "{name}: a gradient has the type of its value");
        }
        compare(name, &graph, loss, &group, &gradients, tally);
    }
    tally.ops.extend(graph.nodes().values().map(|node| node.op.name()));
    Ok(())
}

fn with_output(graph: &Graph, gradients: &[ValueId]) -> Graph {
    let mut graph = graph.clone();
    let named = gradients.iter().enumerate().map(|(ix, &gradient)| (format!("gradient{ix}"), gradient));
    let outputs = graph.outputs().to_vec().into_iter().map(|output| (output.name, output.value)).chain(named).collect();
    graph.set_outputs(outputs);
    graph
}

fn is_alignment_loss(node: &ir::Node) -> bool {
    matches!(node.op, Op::Ctc(_))
}

/// Compares the gradients of some values, or zero if there are none, with differences of the loss.
fn compare(name: &str, graph: &Graph, loss: ValueId, group: &[ValueId], gradients: &[ValueId], tally: &mut Tally) {
    let mut found = None;
    for (number, (low, high)) in RANGES.into_iter().enumerate() {
        let mut given = BTreeMap::new();
        for (&id, tensor) in graph.inputs().iter().zip(inputs(graph, 3)) {
            given.insert(id, in_range(&tensor, low, high));
        }
        for &id in group {
            if let Some(tensor) = graph.value(id).tensor() {
                given.insert(id, if number == 0 { (**tensor).clone() } else { in_range(tensor, low, high) });
            }
        }
        let wanted: Vec<ValueId> = [loss].into_iter().chain(gradients.iter().copied()).collect();
        let values = evaluate_wide(graph, &given, &wanted);
        if values.iter().all(|tensor| tensor.to_f64().iter().all(|item| item.is_finite())) {
            tally.ranges[number] += 1;
            found = Some((given, values));
            break;
        }
    }
    let Some((given, values)) = found else {
        // Labels without an alignment have an infinite loss, which has no differences, and by definition no gradient.
        assert!(graph.nodes().values().any(is_alignment_loss), "{name}: the loss is infinite or NaN in all ranges");
        let given = graph.inputs().iter().copied().zip(inputs(graph, 3)).collect();
        let values = evaluate_wide(graph, &given, gradients);
        assert!(values.iter().all(|tensor| tensor.to_f64().iter().all(|item| item.is_finite())), "{name}");
        return;
    };
    let parts: Vec<Vec<usize>> = match graph.flops() <= FLOPS_EACH {
        true => (0..group.len()).map(|ix| vec![ix]).collect(),
        false => vec![(0..group.len()).collect()],
    };
    for part in parts {
        let mut product = 0.0;
        let mut size = 0.0;
        let mut directions = Vec::new();
        for &ix in &part {
            let mut random = Random::for_name(29, &format!("{name}/{ix}"));
            let direction: Vec<f64> =
                (0..graph.ty(group[ix]).shape.elements()).map(|_| f64::from(random.uniform(-1.0, 1.0))).collect();
            if let Some(gradient) = values.get(ix + 1) {
                for (a, b) in gradient.to_f64().iter().zip(&direction) {
                    product += a * b;
                    size += (a * b).abs();
                }
            }
            directions.push(direction);
        }
        let at = |step: f64| {
            let mut moved = given.clone();
            for (&ix, direction) in part.iter().zip(&directions) {
                let tensor = moved.get_mut(&group[ix]).expect("all floats are given");
                let items: Vec<f64> = tensor.to_f64().iter().zip(direction).map(|(a, b)| a + step * b).collect();
                *tensor = Tensor::new(tensor.shape().clone(), items).expect("the shape is the same");
            }
            evaluate_wide(graph, &moved, &[loss])[0].to_f64()[0]
        };
        let mut seen = Vec::new();
        let agrees = STEPS.into_iter().any(|step| {
            let difference = (at(step) - at(-step)) / (2.0 * step);
            let noise = 1e-14 * values[0].to_f64()[0].abs().max(1.0) / step;
            seen.push(difference);
            (difference - product).abs() <= 4e-6 * size + noise + 1e-8
        });
        assert!(agrees, "{name}: operands {part:?}: the gradient gives {product}, differences give {seen:?}");
        if gradients.is_empty() { tally.zero += 1 } else { tally.compared += 1 }
    }
}

/// Floats moved from `[-1, 1)` to another range. Elements stay distinct.
fn in_range(tensor: &Tensor, low: f64, high: f64) -> Tensor {
    if !tensor.dtype().is_float() {
        return tensor.clone();
    }
    let items = tensor.to_f64().into_iter().map(|item| low + (item + 1.0) / 2.0 * (high - low)).collect();
    Tensor::new(tensor.shape().clone(), items).expect("the shape is the same")
}

/// The graph with no arithmetic behind products and convolutions but their biases.
fn without_fusion(graph: &Graph) -> Graph {
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        let mut op = node.op.clone();
        let (Op::Conv(Conv { epilogue, .. })
        | Op::ConvTranspose(ConvTranspose { epilogue, .. })
        | Op::MatMul(MatMul { epilogue, .. })) = &mut op
        else {
            return None;
        };
        let mut inputs: Vec<ValueId> = node.inputs.iter().map(|&input| context.value(input)).collect();
        inputs.truncate(2 + usize::from(epilogue.bias));
        *epilogue = Epilogue::bias(epilogue.bias);
        let output = context.add(op, &inputs, &node.scope).ok()?;
        Some([output].into_iter().collect())
    })
}

#[test]
fn gradients_match_central_differences_of_the_definitions() {
    let mut tally = Tally::default();
    let mut all_ops = BTreeSet::new();
    for case in crate::all() {
        all_ops.extend(case.graph.nodes().values().map(|node| node.op.name()));
        // Not the derivative, by definition.
        if case.graph.nodes().values().any(|node| matches!(node.op, Op::StopGradient(_))) {
            continue;
        }
        let is_float = |graph: &Graph, id: ValueId| graph.ty(id).dtype.is_float();
        let is_fused = |op: &Op| op.epilogue().is_some_and(|epilogue| *epilogue != Epilogue::bias(epilogue.bias));
        let bytes = |graph: &Graph| graph.nodes().values().any(|node| node.op.epilogue().is_some_and(|own| own.scale));
        let graph = match case.graph.nodes().values().any(|node| is_fused(&node.op)) && !bytes(&case.graph) {
            true => {
                tally.unfused += 1;
                without_fusion(&case.graph)
            }
            false => case.graph,
        };
        let results = graph.results().map(|output| output.value).filter(|&id| is_float(&graph, id));
        let results: Vec<ValueId> = results.collect();
        if results.is_empty() || floats(&graph).is_empty() {
            tally.no_floats += 1;
            continue;
        }
        if FLOPS_MAX < graph.flops() {
            tally.large += 1;
            continue;
        }
        let checked = check(&case.name, &graph, &results, &mut tally).or_else(|error| match results.len() {
            1 => Err(error),
            // Statistics of a batch have no gradient of their own.
            _ => check(&case.name, &graph, &results[..1], &mut tally),
        });
        if let Err(error) = checked {
            let GradientError::Refused { refusal, .. } = error else { panic!("{}: {error}", case.name) };
            *tally.refused.entry(refusal.to_string()).or_default() += 1;
        }
    }
    let Tally { compared, zero, ranges, large, no_floats, unfused, refused, ops } = tally;
    println!("{compared} gradients compared, {zero} of them constant functions; ranges {ranges:?}; {unfused} unfused");
    println!("{large} cases too large, {no_floats} without floats; refused: {refused:#?}");
    assert!(900 < compared && 20 <= zero && 100 < unfused, "{compared}, {zero}, {unfused}");
    assert!(large < 15 && no_floats < 290, "{large} too large, {no_floats} without floats");
    // Every operator is compared, or refuses by name, or gives integers or flags, or stops.
    let of = |reason: &String| reason.split('`').nth(1).unwrap_or("an epilogue of bytes").to_string();
    let refused: BTreeSet<String> = refused.keys().map(of).collect();
    let want = [
        "an epilogue of bytes",
        "attention",
        "batch_norm_gradient",
        "chain",
        "conv_weight_gradient",
        "ctc_gradient",
        "pool_gradient",
        "recurrent_gradient",
        "recurrent_with_gates",
        "softmax_cross_entropy_gradient",
        "update",
    ];
    assert_eq!(refused.iter().map(String::as_str).collect::<Vec<_>>(), want);
    let rest: Vec<&&str> = all_ops.iter().filter(|name| !ops.contains(*name) && !refused.contains(**name)).collect();
    assert_eq!(rest, [&"arg_extreme", &"bit_cast", &"compare", &"stop_gradient"]);
}
