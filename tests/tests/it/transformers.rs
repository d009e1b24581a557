//! A small transformer in the nodes that exporters write: each pattern becomes one step, with unchanged results.

use cases::judge::inputs;
use ir::ops::*;
use ir::{Graph, Op, ValueId, evaluate};
use types::pointwise::{Binary as Function2, Unary as Function};
use types::{DType, Random, Scope, Shape, Tensor};

use crate::support::{compiled, difference, open};

const TOKENS: usize = 19;
const WIDTH: usize = 40;
const HEADS: usize = 5;
const HIDDEN: usize = 72;

/// Adds nodes with numbered names.
struct Builder {
    graph: Graph,
    random: Random,
}

impl Builder {
    fn node(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
        let scope = Scope::new(&format!("node{}", self.graph.nodes().len()));
        self.graph.add1(op.into(), inputs, scope).expect("it is accepted")
    }

    fn weight(&mut self, shape: &[usize], scale: f32, middle: f32) -> ValueId {
        let random = &mut self.random;
        let tensor = Tensor::from_fn(Shape::from(shape), |_| middle + random.uniform(-scale, scale));
        self.graph.add_weight("weight", tensor)
    }

    fn two(&mut self, function: Function2, a: ValueId, b: ValueId) -> ValueId {
        self.node(Binary(function), &[a, b])
    }

    /// A function of a value and a scalar.
    fn with(&mut self, function: Function2, x: ValueId, number: f32) -> ValueId {
        let number = self.graph.add_constant("number", Tensor::scalar(number));
        self.two(function, x, number)
    }

    fn linear(&mut self, x: ValueId, from: usize, to: usize) -> ValueId {
        let (weight, bias) = (self.weight(&[from, to], 0.2, 0.0), self.weight(&[to], 0.1, 0.0));
        let product = self.node(MatMul::default(), &[x, weight]);
        self.two(Function2::Add, product, bias)
    }

    fn norm(&mut self, x: ValueId) -> ValueId {
        let mean = || Reduce { kind: ReduceKind::Mean, axes: [2].into_iter().collect(), keep: true };
        let average = self.node(mean(), &[x]);
        let centred = self.two(Function2::Sub, x, average);
        let squares = self.with(Function2::Pow, centred, 2.0);
        let variance = self.node(mean(), &[squares]);
        let shifted = self.with(Function2::Add, variance, 1e-5);
        let deviation = self.node(Unary(Function::Sqrt), &[shifted]);
        let normal = self.two(Function2::Div, centred, deviation);
        let (scale, shift) = (self.weight(&[WIDTH], 0.2, 1.0), self.weight(&[WIDTH], 0.1, 0.0));
        let scaled = self.two(Function2::Mul, normal, scale);
        self.two(Function2::Add, scaled, shift)
    }

    fn heads(&mut self, x: ValueId, batch: usize, order: [usize; 4]) -> ValueId {
        let linear = self.linear(x, WIDTH, WIDTH);
        let shape = Shape::from([batch, TOKENS, HEADS, WIDTH / HEADS]);
        let split = self.node(Reshape { shape }, &[linear]);
        self.node(Transpose { order: order.into_iter().collect() }, &[split])
    }

    fn layer(&mut self, x: ValueId, mask: ValueId, batch: usize) -> ValueId {
        let q = self.heads(x, batch, [0, 2, 1, 3]);
        let k = self.heads(x, batch, [0, 2, 3, 1]);
        let v = self.heads(x, batch, [0, 2, 1, 3]);
        let scores = self.node(MatMul::default(), &[q, k]);
        let scores = self.with(Function2::Div, scores, (WIDTH as f32 / HEADS as f32).sqrt());
        let scores = self.two(Function2::Add, scores, mask);
        let weights = self.node(Softmax { axis: 3, log: false }, &[scores]);
        let mixed = self.node(MatMul::default(), &[weights, v]);
        let mixed = self.node(Transpose { order: [0, 2, 1, 3].into_iter().collect() }, &[mixed]);
        let mixed = self.node(Reshape { shape: Shape::from([batch, TOKENS, WIDTH]) }, &[mixed]);
        let mixed = self.linear(mixed, WIDTH, WIDTH);
        let sum = self.two(Function2::Add, mixed, x);
        let x = self.norm(sum);
        let hidden = self.linear(x, WIDTH, HIDDEN);
        let root = self.with(Function2::Div, hidden, std::f32::consts::SQRT_2);
        let erf = self.node(Unary(Function::Erf), &[root]);
        let gate = self.with(Function2::Add, erf, 1.0);
        let product = self.two(Function2::Mul, hidden, gate);
        let hidden = self.with(Function2::Mul, product, 0.5);
        let back = self.linear(hidden, HIDDEN, WIDTH);
        let sum = self.two(Function2::Add, back, x);
        self.norm(sum)
    }
}

/// Two layers on a batch, with a mask per element of the batch.
pub(crate) fn transformer(batch: usize) -> Graph {
    let mut builder = Builder { graph: Graph::new("transformer"), random: Random::new(8) };
    let x = builder.graph.add_input("x", DType::F32, Shape::from([batch, TOKENS, WIDTH]));
    let seen = builder.graph.add_input("seen", DType::F32, Shape::from([batch, 1, 1, TOKENS]));
    let mask = builder.with(Function2::Mul, seen, 10.0);
    let first = builder.layer(x, mask, batch);
    let second = builder.layer(first, mask, batch);
    let mut graph = builder.graph;
    graph.set_outputs(vec![("y".into(), second)]);
    graph
}

#[test]
fn patterns_of_a_transformer_become_one_step_each() {
    for batch in [1, 3] {
        let graph = transformer(batch);
        let inputs = inputs(&graph, 4);
        let want = evaluate(&graph, &inputs).expect("it verifies");
        let compiled = compiled(graph).expect("it compiles");
        let steps = |kernel: &str| compiled.plan.steps.iter().filter(|step| step.kernel == kernel).count();
        // Two layers: six products each, and the function of the mask.
        let counts = ["matmul", "attention", "layer_norm", "chain"].map(steps);
        assert_eq!(counts, [12, 2, 4, 1], "{}", plan::dump(&compiled.plan));
        assert_eq!(compiled.plan.steps.len(), 19, "{}", plan::dump(&compiled.plan));
        let mut first: Option<Vec<u8>> = None;
        for threads in 1..=3 {
            let mut session = open(&compiled, threads);
            let got = session.run_tensors(&inputs).expect("the inputs fit");
            // Sums of up to 72 products, through two layers with normalization.
            assert_eq!(difference(&got[0], &want[0], 1e-4, 1e-4), None, "batch {batch}");
            let bytes = got[0].to_le_bytes();
            assert!(first.get_or_insert_with(|| bytes.clone()) == &bytes, "the same bits on {threads} threads");
        }
        let bytes: Vec<Vec<u8>> = inputs.iter().map(Tensor::to_le_bytes).collect();
        let audit = runtime::audit::audit(&mut open(&compiled, 2), &bytes).expect("the host sees its arena");
        assert!(audit.is_equal(), "{audit:?}");
    }
}
