//! Random models from graph to result: a graph over the operators of all cases is compiled, run beside the evaluator and
//! audited.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cases::Case;
use cases::judge::{Allowed, Verdict, inputs};
use compiler::{Compiled, Model};
use ir::ops::{Binary, Concat, Reduce, ReduceKind, Reshape, Slice, Softmax, Transpose, Unary};
use ir::{Graph, Op, ValueDef, ValueId};
use lower::cpu::CpuTarget;
use runtime::{Host, audit};
use types::{DType, Scope, Shape, Tensor, pointwise};

/// The most elements of a value.
const ELEMENTS_MAX: usize = 20_000;

/// Numbers from the bytes of an input; zeros behind its end.
pub(crate) struct Choices<'a> {
    pub(crate) bytes: &'a [u8],
}

impl Choices<'_> {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let (number, rest) = match *self.bytes {
            [low, high, ref rest @ ..] => (usize::from(low) | usize::from(high) << 8, rest),
            [low] => (usize::from(low), &[][..]),
            [] => (0, &[][..]),
        };
        self.bytes = rest;
        number % end.max(1)
    }
}

pub(crate) fn compile(graph: Graph) -> Option<Compiled> {
    let model = Model { graph, preprocess: None, labels: Vec::new() };
    compiler::compile(model, &CpuTarget::new(), compiler::Goal::default(), |_, _| {}).ok()
}

/// Cases without state, of small values.
fn pool() -> &'static [Case] {
    static POOL: OnceLock<Vec<Case>> = OnceLock::new();
    POOL.get_or_init(|| {
        let is_small = |case: &Case| {
            case.graph.states().is_empty()
                && case.graph.values().values().all(|value| value.ty.shape.elements() <= ELEMENTS_MAX / 2)
        };
        cases::all().into_iter().filter(is_small).collect()
    })
}

/// Copies a case into a graph. Some of its inputs become values of `known` with the same type. Returns its results.
fn paste(graph: &mut Graph, case: &Case, number: usize, known: &[ValueId], choices: &mut Choices) -> Vec<ValueId> {
    let own = &case.graph;
    let mut copies: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (id, value) in own.values().iter() {
        let copy = match &value.source {
            ValueDef::Input => {
                let same: Vec<ValueId> = known.iter().copied().filter(|&other| graph.ty(other) == &value.ty).collect();
                match same.is_empty() || choices.below(3) == 0 {
                    true => graph.add_input(&format!("{}{number}", value.name), value.ty.dtype, value.ty.shape.clone()),
                    false => same[choices.below(same.len())],
                }
            }
            // As if from a file of weights, so that constants of it have recipes.
            ValueDef::Weight(tensor) => {
                let name = format!("{}{number}", value.name);
                graph.add_weight(&name, Tensor::clone(tensor).stored_as(&name))
            }
            ValueDef::Constant(tensor) => graph.add_constant(&format!("{}{number}", value.name), tensor.clone()),
            ValueDef::State { .. } | ValueDef::Node { .. } => continue,
        };
        copies.insert(id, copy);
    }
    for (_, node) in own.nodes().iter() {
        let operands: Vec<ValueId> = node.inputs.iter().map(|id| copies[id]).collect();
        let scope = Scope::new(&format!("case{number}/{}", node.scope));
        let results = graph.add(node.op.clone(), &operands, scope).expect("the case is valid");
        copies.extend(node.outputs.iter().copied().zip(results));
    }
    own.results().map(|output| copies[&output.value]).collect()
}

/// Adds a node of a continuous function to a value, so that rounding stays small.
fn extend(graph: &mut Graph, number: usize, known: &[ValueId], choices: &mut Choices) -> Option<ValueId> {
    let floats: Vec<ValueId> = known.iter().copied().filter(|&id| graph.ty(id).dtype == DType::F32).collect();
    let newest = floats.len().min(4);
    let x = *floats.get(floats.len().checked_sub(1 + choices.below(newest))?)?;
    let shape = graph.ty(x).shape.clone();
    let rank = shape.rank();
    let axis = choices.below(rank);
    let same: Vec<ValueId> = floats.iter().copied().filter(|&other| graph.ty(other).shape == shape).collect();
    let other = same[choices.below(same.len())];
    let (op, operands): (Op, Vec<ValueId>) = match choices.below(10) {
        0 => (Unary(pointwise::Unary::Relu).into(), vec![x]),
        1 => (Unary(pointwise::Unary::Sigmoid).into(), vec![x]),
        2 => (Unary(pointwise::Unary::Tanh).into(), vec![x]),
        3 => (Binary(pointwise::Binary::Add).into(), vec![x, other]),
        4 => (Binary(pointwise::Binary::Mul).into(), vec![x, other]),
        5 if 0 < rank => (Concat { axis }.into(), vec![x, other]),
        6 if 0 < rank && 1 < shape[axis] => {
            let start = choices.below(shape[axis] - 1);
            let end = start + 1 + choices.below(shape[axis] - start - 1);
            (Slice::range(&shape, axis, start, end).into(), vec![x])
        }
        7 => {
            let mut order: Vec<usize> = (0..rank).collect();
            (1..rank).for_each(|at| order.swap(at, choices.below(at + 1)));
            (Transpose { order: order.into_iter().collect() }.into(), vec![x])
        }
        8 => (Reshape { shape: Shape::from([shape.elements()]) }.into(), vec![x]),
        9 if 0 < rank && choices.below(2) == 0 => {
            let kind = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Max][choices.below(3)];
            (Reduce { kind, axes: [axis].into_iter().collect(), keep: choices.below(2) == 0 }.into(), vec![x])
        }
        _ if 0 < rank => (Softmax { axis, log: false }.into(), vec![x]),
        _ => (Unary(pointwise::Unary::Relu).into(), vec![x]),
    };
    graph.add1(op, &operands, Scope::new(&format!("node{number}"))).ok()
}

/// A graph of up to three cases and twelve more nodes.
fn generate(choices: &mut Choices) -> Graph {
    let pool = pool();
    let mut graph = Graph::new("random");
    let mut known = Vec::new();
    for number in 0..1 + choices.below(3) {
        let case = &pool[choices.below(pool.len())];
        let results = paste(&mut graph, case, number, &known, choices);
        known.extend(results);
        for step in 0..choices.below(5) {
            let more = extend(&mut graph, number * 10 + step, &known, choices);
            known.extend(more.filter(|&id| graph.ty(id).shape.elements() <= ELEMENTS_MAX));
        }
    }
    let mut outputs = vec![("y".to_string(), known[known.len() - 1])];
    let second = known[choices.below(known.len())];
    if choices.below(2) == 0 && second != outputs[0].1 {
        outputs.push(("z".into(), second));
    }
    graph.set_outputs(outputs);
    graph
}

/// The graph of a case, with weights as from a file of weights.
pub(crate) fn with_stored_weights(case: &Case) -> Graph {
    let mut graph = Graph::new("stored");
    let results = paste(&mut graph, case, 0, &[], &mut Choices { bytes: &[] });
    graph.set_outputs(results.iter().enumerate().map(|(ix, &id)| (format!("y{ix}"), id)).collect());
    graph
}

/// Weights by name, as a file of weights has them.
pub(crate) fn stored(graph: &Graph) -> BTreeMap<String, Tensor> {
    let weight = |value: &ir::Value| match &value.source {
        ValueDef::Weight(tensor) => Some((value.name.clone(), Tensor::clone(tensor))),
        _ => None,
    };
    graph.values().values().filter_map(weight).collect()
}

/// Packed weights of the cases: each packing with the extents of its tensor.
pub(crate) fn packings() -> Vec<(Vec<u8>, Shape)> {
    let mut packings = Vec::new();
    for case in pool() {
        let graph = with_stored_weights(case);
        let stored = stored(&graph);
        let constants = compile(graph).map_or(Vec::new(), |compiled| compiled.plan.constants);
        let recipes = constants.into_iter().filter_map(|constant| constant.recipe);
        packings.extend(recipes.filter(|recipe| !recipe.packing.is_empty()).filter_map(|recipe| {
            let tensor = recipe.tensor.evaluate(&stored, 1 << 20).ok()?;
            Some((recipe.packing, tensor.shape().clone()))
        }));
    }
    packings
}

/// Generates a model from an input, compiles, runs and audits it, and packs its weights once more. Returns whether the compiler accepts it.
pub(crate) fn run(bytes: &[u8]) -> bool {
    let mut choices = Choices { bytes };
    let graph = generate(&mut choices);
    assert!(ir::verify(&graph).is_ok(), "the generator makes valid graphs");
    let given = inputs(&graph, choices.below(1000) as u64);
    let Ok(want) = ir::evaluate(&graph, &given) else { return false };
    let text = ir::text::print(&graph);
    let stored = stored(&graph);
    let Some(compiled) = compile(graph) else { return false };
    for constant in &compiled.plan.constants {
        let Some(recipe) = &constant.recipe else { continue };
        let bytes = share::recipe::apply(recipe, constant.size.0, &stored);
        let bytes = bytes.unwrap_or_else(|error| panic!("{}: {error}\n{text}", constant.tag));
        let want = compiled.constants.bytes((constant.offset, constant.size));
        assert!(bytes == want, "the recipe of {} gives other bytes\n{text}", constant.tag);
    }
    let plan = Arc::new(compiled.plan);
    let weights = Arc::new(compiled.constants.to_vec());
    let mut first: Option<Vec<Vec<u8>>> = None;
    for threads in [1, 2] {
        let opened = runtime::open(plan.clone(), weights.clone(), &Host { threads });
        let mut session = opened.unwrap_or_else(|error| panic!("{error}\n{text}"));
        let got = session.run_tensors(&given).expect("the inputs fit");
        for (got, want) in got.iter().zip(&want) {
            // A chain of sums and products rounds more than one of them; a fault is larger.
            let largest = want.to_f64().into_iter().filter(|item| item.is_finite()).fold(0.0f64, |a, b| a.max(b.abs()));
            let coarse = if want.dtype().is_half() { 0.02 } else { 2e-3 };
            let allowed = Allowed::Parts { relative: coarse, absolute: coarse * largest.max(0.05) };
            let verdict = Verdict::of(got, want, &allowed).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert!(verdict.wrong == 0, "wrong result: {:?}\n{text}", verdict.first);
        }
        let bits: Vec<Vec<u8>> = got.iter().map(Tensor::to_le_bytes).collect();
        assert!(*first.get_or_insert_with(|| bits.clone()) == bits, "threads change bits\n{text}");
        let given: Vec<Vec<u8>> = given.iter().map(Tensor::to_le_bytes).collect();
        let audit = audit::audit(&mut session, &given).expect("the host sees its arena");
        assert!(audit.is_equal(), "the audit differs\n{text}");
    }
    true
}
