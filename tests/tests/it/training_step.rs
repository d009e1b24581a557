//! Whole training steps on the CPU, several in a row, against the evaluator: losses and states.

use ir::ops::{BatchNormTraining, Binary, Conv, Epilogue, MatMul, Pool, PoolKind, Reduce, ReduceKind, Reshape};
use ir::ops::{SoftmaxCrossEntropy, Transpose, Unary, Update};
use ir::{Graph, Op, ValueId};
use passes::training::differentiate;
use types::pointwise::{Binary as Function2, Unary as Function};
use types::update::{Adam, Sgd, UpdateRule};
use types::{DType, Layout, Random, Role, Scope, Shape, Tensor};

use crate::support::{compiled, difference, try_open};

/// A network under construction, whose weights are states.
struct Net {
    graph: Graph,
    random: Random,
    weights: Vec<ValueId>,
}

impl Net {
    fn new(name: &str) -> Net {
        Net { graph: Graph::new(name), random: Random::new(17), weights: Vec::new() }
    }

    fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId], scope: &str) -> ValueId {
        let outputs = self.graph.add(op.into(), inputs, Scope::new(scope));
        outputs.unwrap_or_else(|refusal| panic!("{scope}: {refusal}"))[0]
    }

    fn weight(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let terms: usize = shape[1..].iter().product();
        let spread = 1.0 / (terms as f64).sqrt();
        let initial = Tensor::from_fn(shape.into(), |_| (self.random.uniform(-1.0, 1.0)) * spread as f32);
        let id = self.graph.add_state(name, initial, Role::Weight);
        self.weights.push(id);
        id
    }

    fn conv(&mut self, x: ValueId, channels: usize, side: usize, stride: usize, name: &str) -> ValueId {
        let ins = self.graph.ty(x).shape[1];
        let weight = self.weight(&format!("{name}.weight"), &[channels, ins, side, side]);
        self.add(Conv::square(stride, side / 2), &[x, weight], name)
    }

    fn norm(&mut self, x: ValueId, name: &str) -> ValueId {
        let channels = self.graph.ty(x).shape[1];
        let (scale, shift) =
            (self.weight(&format!("{name}.scale"), &[channels]), self.weight(&format!("{name}.shift"), &[channels]));
        self.add(BatchNormTraining { epsilon: 1e-3 }, &[x, scale, shift], name)
    }

    fn relu(&mut self, x: ValueId, name: &str) -> ValueId {
        self.add(Unary(Function::Relu), &[x], name)
    }

    fn dense(&mut self, x: ValueId, columns: usize, name: &str) -> ValueId {
        let terms = self.graph.ty(x).shape[1];
        let weight = self.weight(&format!("{name}.weight"), &[columns, terms]);
        let bias = self.weight(&format!("{name}.bias"), &[columns]);
        let turned = self.add(Transpose { order: [1, 0].into_iter().collect() }, &[weight], name);
        let op = MatMul { epilogue: Epilogue { bias: true, ..Epilogue::default() }, ..MatMul::default() };
        self.add(op, &[x, turned, bias], name)
    }

    /// Attaches the loss of a classifier, its gradients and updates.
    fn trained(mut self, logits: ValueId, rule: UpdateRule) -> Graph {
        let batch = self.graph.ty(logits).shape[0];
        let labels = self.graph.add_input("labels", DType::I64, Shape::from([batch]));
        let rate = self.graph.add_input("learning_rate", DType::F32, Shape::scalar());
        let step = rule.reads_step().then(|| self.graph.add_input("step", DType::I64, Shape::scalar()));
        let losses = self.add(SoftmaxCrossEntropy { ignore: None, smoothing: 0.0 }, &[logits, labels], "losses");
        let mean = Reduce { kind: ReduceKind::Mean, axes: [0].into_iter().collect(), keep: false };
        let loss = self.add(mean, &[losses], "loss");
        let gradients = differentiate(&mut self.graph, loss, &self.weights).expect("the network has gradients");
        self.graph.set_outputs(vec![("loss".into(), loss)]);
        for (weight, gradient) in self.weights.clone().into_iter().zip(gradients) {
            let (name, shape) = (self.graph.value(weight).name.clone(), self.graph.ty(weight).shape.clone());
            let states: Vec<ValueId> = rule
                .states()
                .iter()
                .map(|state| {
                    let zeros = Tensor::full(shape.clone(), 0.0f32);
                    self.graph.add_state(&format!("{name}.{state}"), zeros, Role::OptimizerState)
                })
                .collect();
            let operands: Vec<ValueId> =
                [weight, gradient].into_iter().chain(states.iter().copied()).chain([rate]).chain(step).collect();
            let next = self
                .graph
                .add(Update { rule, factors: false }.into(), &operands, Scope::new(&name))
                .expect("the rule fits");
            for (&state, &next) in [weight].iter().chain(&states).zip(&next) {
                self.graph.update_state(state, next);
            }
        }
        ir::verify(&self.graph).expect("the step is valid");
        self.graph
    }
}

/// Three blocks of convolution, normalization and ReLU, the second with a stride, the third around a sum.
pub(crate) fn convolutional(rule: UpdateRule) -> Graph {
    let mut net = Net::new("convolutional");
    let x = net.graph.add_input("data", DType::F32, Shape::from([2, 3, 24, 24]));
    let stem = net.conv(x, 32, 3, 1, "stem");
    let stem = net.norm(stem, "stem.norm");
    let stem = net.relu(stem, "stem.relu");
    let pooled = net.add(Pool::square(PoolKind::Max, 2, 2, 0), &[stem], "pool");
    let a = net.conv(pooled, 32, 3, 1, "block");
    let a = net.norm(a, "block.norm");
    let sum = net.add(Binary(Function2::Add), &[a, pooled], "sum");
    let sum = net.relu(sum, "sum.relu");
    let b = net.conv(sum, 48, 3, 2, "down");
    let b = net.norm(b, "down.norm");
    let b = net.relu(b, "down.relu");
    let mean = Reduce { kind: ReduceKind::Mean, axes: [2, 3].into_iter().collect(), keep: false };
    let features = net.add(mean, &[b], "mean");
    let logits = net.dense(features, 10, "classes");
    net.trained(logits, rule)
}

pub(crate) fn dense(rule: UpdateRule) -> Graph {
    let mut net = Net::new("dense");
    let x = net.graph.add_input("data", DType::F32, Shape::from([12, 2, 5, 3]));
    let flat = net.add(Reshape { shape: Shape::from([12, 30]) }, &[x], "flat");
    let hidden = net.dense(flat, 40, "hidden");
    let hidden = net.add(Unary(Function::Tanh), &[hidden], "tanh");
    let logits = net.dense(hidden, 7, "classes");
    net.trained(logits, rule)
}

/// The inputs of a step.
pub(crate) fn inputs_of(graph: &Graph, step: i64, random: &mut Random) -> Vec<Tensor> {
    let input = |&id: &ValueId| {
        let (shape, name) = (graph.ty(id).shape.clone(), graph.value(id).name.as_str());
        match name {
            "labels" => Tensor::from_fn(shape, |_| random.below(7) as i64),
            "learning_rate" => Tensor::full(shape, 0.01f32),
            "step" => Tensor::full(shape, step),
            _ => Tensor::from_fn(shape, |_| random.uniform(-1.0, 1.0)),
        }
    };
    graph.inputs().iter().map(input).collect()
}

/// Runs a step's plan and the evaluator three times, on several numbers of threads.
fn check(graph: &Graph) {
    let compiled = compiled(graph.clone()).unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    let mut first: Option<Vec<Vec<u8>>> = None;
    for threads in [1, 2, 3] {
        let mut session = try_open(&compiled, threads).expect("the plan opens");
        let (mut states, mut random) = (ir::initial_states(graph), Random::new(5));
        for run in 1..=3 {
            let inputs = inputs_of(graph, run, &mut random);
            let want = ir::evaluate_run(graph, &inputs, &mut states).expect("the inputs fit");
            let got = session.run_tensors(&inputs).expect("the inputs fit");
            if let Some(difference) = difference(&got[0], &want[0], 1e-4, 1e-5) {
                panic!("{}: loss of step {run}: {difference}", graph.name);
            }
            for (&id, want) in graph.states().iter().zip(&states) {
                let name = &graph.value(id).name;
                let got = session.state(name).expect("the plan has the graph's states");
                if let Some(difference) = difference(&got, want, 1e-3, 2e-4) {
                    panic!("{}: state `{name}` behind step {run}: {difference}", graph.name);
                }
            }
        }
        let names = graph.states().iter().map(|&id| &graph.value(id).name);
        let bytes: Vec<Vec<u8>> =
            names.map(|name| session.state(name).expect("the plan has the state").to_le_bytes()).collect();
        assert!(*first.get_or_insert(bytes.clone()) == bytes, "{}: {threads} threads give other bits", graph.name);
    }
}

const MOMENTUM: UpdateRule =
    UpdateRule::Sgd(Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4, buffer_of_steps: false });

#[test]
fn steps_of_a_convolutional_network_equal_the_evaluator() {
    check(&convolutional(MOMENTUM));
}

#[test]
fn steps_of_a_dense_network_equal_the_evaluator() {
    check(&dense(UpdateRule::Adam(Adam::default())));
}

#[test]
fn updates_are_in_place_and_values_stay_blocked() {
    let compiled = compiled(convolutional(MOMENTUM)).expect("there are kernels");
    let plan = &compiled.plan;
    // Nothing copies a state behind its update.
    let copies = plan.steps.iter().filter(|step| step.kernel == "copy" && step.scope.to_string().ends_with("update"));
    assert_eq!(copies.count(), 0, "{}", plan::dump(plan));
    let relayouts: Vec<String> =
        plan.steps.iter().filter(|step| step.kernel == "reorder").map(|step| step.scope.to_string()).collect();
    // The gradient of a mean over whole images is expanded in row-major order, and that of few strided sums may be computed so.
    let is_expected = |scope: &String| scope.starts_with("mean/gradient") || scope.starts_with("down");
    assert!(relayouts.iter().all(is_expected) && relayouts.len() <= 3, "{relayouts:?}\n{}", plan::dump(plan));
    let is_blocked = |layout: Layout| layout != Layout::RowMajor;
    let blocked = plan.buffers.iter().flat_map(|buffer| &buffer.values).filter(|value| is_blocked(value.layout));
    assert!(12 < blocked.count(), "forward and backward values are blocked");
    for kernel in ["dynamic_conv", "conv_weight_gradient", "batch_norm_gradient", "pool_gradient"] {
        assert!(plan.steps.iter().any(|step| step.kernel == kernel), "{kernel} must run\n{}", plan::dump(plan));
    }
}
