//! Quantized models: files from ONNX Runtime's quantizer against results of ONNX Runtime; random graphs against their
//! definition, before and after matching of int8 products.

use compiler::{CompileError, Compiled, Goal, Model, compile};
use ir::ops::{Binary, Cast, Concat, Conv, Epilogue, MatMul, Pool, PoolKind, Reduce, ReduceKind, Reshape, Unary};
use ir::{Graph, Op, ValueId, evaluate};
use load::onnx;
use lower::cpu::CpuTarget;
use types::pointwise::{Binary as Function2, Unary as Function};
use types::{Bytes, DType, Random, Scope, Shape, Tensor};
use weights::npy;

use crate::support::{difference, open, root, try_open};

/// A graph after matching of int8 products, and its plan.
fn compiled(graph: Graph) -> (Graph, Compiled) {
    let mut found = graph.clone();
    let model = Model { graph, preprocess: None, labels: Vec::new() };
    let compiled = compile(model, &CpuTarget::new(), Goal::default(), |pass, graph| {
        if pass == "lower_quantized" {
            found = graph.clone();
        }
    });
    (found, compiled.expect("it compiles"))
}

/// Number of residual sums of int8 values in the epilogues of a graph.
fn quantized_sums(graph: &Graph) -> usize {
    let has_sum = |op: &Op| op.epilogue().is_some_and(|epilogue| epilogue.quantized_sum.is_some());
    graph.nodes().values().filter(|node| has_sum(&node.op)).count()
}

/// Number of int8 products in a graph.
fn int8_products(graph: &Graph) -> usize {
    let is_byte = |value: ValueId| matches!(graph.ty(value).dtype, DType::U8 | DType::I8);
    let product = |op: &Op| matches!(op, Op::Conv(_) | Op::MatMul(_));
    graph.nodes().values().filter(|node| product(&node.op) && node.inputs[..2].iter().all(|&x| is_byte(x))).count()
}

fn array(path: &str) -> Tensor {
    npy::read(&std::fs::read(root().join(path)).expect("it is checked in")).expect("it is an npy file")
}

#[test]
fn quantized_files_match_onnxruntime() {
    let images = array("tests/data/mxnet/mini_resnet_v1_input.npy");
    let elements = 2 * 3 * 64 * 64;
    let images = Tensor::new(Shape::from([2, 3, 64, 64]), images.as_slice::<f32>().unwrap()[..elements].to_vec());
    let images = images.expect("two of them");
    // The first convolution has three channels, which do not fill a group of four int8; dynamic quantization is supported
    // for matrix products only.
    for (name, products) in [("u8", 8), ("i8", 8), ("operators", 8), ("dynamic", 0)] {
        let name = format!("quantized_{name}");
        let file = std::fs::read(root().join(format!("tests/data/onnxruntime/{name}.onnx"))).expect("it is checked in");
        let graph =
            onnx::load(&file, None, &onnx::Options::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (found, compiled) = compiled(graph);
        assert!(products <= int8_products(&found), "{name}: {} products of bytes", int8_products(&found));
        let got = open(&compiled, 2).run_tensors(std::slice::from_ref(&images)).expect("the input fits");
        let want = array(&format!("tests/data/onnxruntime/{name}.npy"));
        // An int8 value that is off by one is about 1/100 of the largest result.
        let largest = want.to_f64().into_iter().fold(0.0f64, |largest, item| largest.max(item.abs()));
        assert_eq!(difference(&got[0], &want, 0.0, 0.02 * largest), None, "{name}");
    }
}

/// A graph under construction, with the nodes that the loader makes of `QuantizeLinear` and `DequantizeLinear`.
struct Net {
    graph: Graph,
    random: Random,
    /// The dtype of quantized values.
    dtype: DType,
}

impl Net {
    fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
        let scope = Scope::new(&format!("node{}", self.graph.nodes().len()));
        self.graph.add1(op.into(), inputs, scope).expect("it is accepted")
    }

    fn number(&mut self, number: f32) -> ValueId {
        self.graph.add_constant("number", Tensor::scalar(number))
    }

    /// Quantizes and dequantizes with a scale.
    fn rounded(&mut self, x: ValueId, scale: f32) -> ValueId {
        let (low, high) = if self.dtype == DType::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
        let zero = (low + self.random.below(200) as f64) as f32;
        let [scale, zero] = [scale, zero].map(|number| self.number(number));
        let y = self.add(Binary(Function2::Div), &[x, scale]);
        let y = self.add(Unary(Function::Round), &[y]);
        let y = self.add(Binary(Function2::Add), &[y, zero]);
        let y = self.add(Unary(Function::Clip { min: low as f32, max: high as f32 }), &[y]);
        let q = self.add(Cast { to: self.dtype }, &[y]);
        self.numbers(q, zero, scale)
    }

    fn numbers(&mut self, q: ValueId, zero: ValueId, scale: ValueId) -> ValueId {
        let wide = self.add(Cast { to: DType::F32 }, &[q]);
        let centred = self.add(Binary(Function2::Sub), &[wide, zero]);
        self.add(Binary(Function2::Mul), &[centred, scale])
    }

    /// Int8 weights with a scale per index of an axis.
    fn weight(&mut self, shape: &[usize], axis: usize) -> ValueId {
        let terms: usize = shape.iter().product::<usize>() / shape[axis];
        let random = &mut self.random;
        let q = Tensor::from_fn(Shape::from(shape), |_| (random.below(255) as i64 - 127) as i8);
        let mut along = Shape::from([shape[axis]]);
        (axis + 1..shape.len()).for_each(|_| along.push(1));
        let step = 1.0 / (70.0 * (terms as f32).sqrt());
        let scale = Tensor::from_fn(along, |_| step * random.uniform(0.5, 1.5));
        let (q, scale) = (self.graph.add_weight("q", q), self.graph.add_constant("scale", scale));
        let zero = self.number(0.0);
        self.numbers(q, zero, scale)
    }

    fn conv(&mut self, x: ValueId, outs: usize, kernel: usize, groups: usize) -> ValueId {
        let ins = self.graph.ty(x).shape[1];
        let weight = self.weight(&[outs, ins / groups, kernel, kernel], 0);
        let random = &mut self.random;
        let bias = Tensor::from_fn(Shape::from([outs]), |_| random.uniform(-0.5, 0.5));
        let bias = self.graph.add_weight("bias", bias);
        let conv = Conv { groups, epilogue: Epilogue::bias(true), ..Conv::square(1, kernel / 2) };
        self.add(conv, &[x, weight, bias])
    }
}

/// Convolutions of several kinds, a sum, max and average pools and a matrix product, with int8 between them.
fn network(seed: u64, dtype: DType) -> Graph {
    let mut net = Net { graph: Graph::new("quantised"), random: Random::new(seed), dtype };
    let x = net.graph.add_input("x", DType::F32, Shape::from([2, 3, 12, 14]));
    let scale = 0.02;
    let x = net.rounded(x, scale);
    let stem = net.conv(x, 24, 3, 1);
    let stem = net.add(Unary(Function::Relu), &[stem]);
    let stem = net.rounded(stem, scale);
    let wide = net.conv(stem, 40, 1, 1);
    let wide = net.add(Unary(Function::HardSwish), &[wide]);
    let wide = net.rounded(wide, scale);
    let each = net.conv(wide, 40, 3, 40);
    let each = net.add(Unary(Function::Clip { min: 0.0, max: 6.0 }), &[each]);
    let each = net.rounded(each, scale);
    let back = net.conv(each, 24, 1, 1);
    let back = net.rounded(back, scale);
    let sum = net.add(Binary(Function2::Add), &[back, stem]);
    let sum = net.rounded(sum, scale);
    let most = net.add(Pool::square(PoolKind::Max, 3, 2, 1), &[sum]);
    let most = net.conv(most, 32, 3, 1);
    let most = net.rounded(most, scale);
    let mean = net.add(Reduce { kind: ReduceKind::Mean, axes: [2, 3].into_iter().collect(), keep: true }, &[most]);
    let mean = net.rounded(mean, scale);
    let flat = net.add(Reshape { shape: Shape::from([2, 32]) }, &[mean]);
    let weight = net.weight(&[32, 10], 1);
    let y = net.add(MatMul::default(), &[flat, weight]);
    let y = net.rounded(y, scale);
    net.graph.set_outputs(vec![("y".into(), y), ("sum".into(), sum)]);
    net.graph
}

#[test]
fn random_networks_match_their_definition() {
    for (seed, dtype) in [(1, DType::U8), (2, DType::I8), (3, DType::U8), (4, DType::I8)] {
        let graph = network(seed, dtype);
        let mut random = Random::new(seed + 50);
        let x = [Tensor::from_fn(Shape::from([2, 3, 12, 14]), |_| random.uniform(-1.5, 1.5))];
        let (found, compiled) = compiled(graph.clone());
        // Including the stem, whose channels are planes.
        assert_eq!((int8_products(&found), quantized_sums(&found)), (6, 1), "{dtype}");
        let results = [1, 2, 3].map(|threads| open(&compiled, threads).run_tensors(&x).expect("the input fits"));
        let bytes = results.each_ref().map(|results| results.iter().map(Tensor::to_le_bytes).collect::<Vec<_>>());
        assert!(bytes[0] == bytes[1] && bytes[0] == bytes[2], "other bits on other numbers of threads");
        let audit = runtime::audit::audit(&mut open(&compiled, 2), &[x[0].to_le_bytes()]).expect("the host sees it");
        assert!(audit.is_equal(), "{audit:?}");
        // Sums are exact, so only ties may round differently, by one scale.
        for (name, graph) in [("original", &graph), ("int8", &found)] {
            let want = evaluate(graph, &x).expect("it is computed");
            for (got, want) in results[0].iter().zip(&want) {
                assert_eq!(difference(got, want, 0.0, 0.0401), None, "{seed}, {dtype}, {name}");
                let pairs = got.to_f64().into_iter().zip(want.to_f64());
                let others = pairs.filter(|(got, want)| 0.001 < (got - want).abs()).count();
                assert!(others <= 2 + got.elements() / 50, "{seed}, {dtype}, {name}: {others} of {}", got.elements());
            }
        }
    }
}

/// The fire module of SqueezeNet: two convolutions with int8 results of different scales, concatenated and requantized, and
/// a max pool whose last windows exceed the border.
fn fire(seed: u64, dtype: DType) -> Graph {
    let mut net = Net { graph: Graph::new("fire"), random: Random::new(seed), dtype };
    let x = net.graph.add_input("x", DType::F32, Shape::from([2, 16, 12, 14]));
    let x = net.rounded(x, 0.02);
    let parts = [(1, 0.02), (3, 0.03)].map(|(kernel, scale)| {
        let part = net.conv(x, 32, kernel, 1);
        let part = net.add(Unary(Function::Relu), &[part]);
        net.rounded(part, scale)
    });
    let both = net.add(Concat { axis: 1 }, &parts);
    let both = net.rounded(both, 0.03);
    let most = net.add(Pool { ceil: true, ..Pool::square(PoolKind::Max, 3, 2, 0) }, &[both]);
    let most = net.rounded(most, 0.025);
    let y = net.conv(most, 16, 1, 1);
    let y = net.rounded(y, 0.02);
    net.graph.set_outputs(vec![("y".into(), y)]);
    net.graph
}

#[test]
fn concatenation_and_pooling_stay_int8() {
    for (seed, dtype) in [(1, DType::U8), (2, DType::I8)] {
        let graph = fire(seed, dtype);
        let (found, compiled) = compiled(graph.clone());
        let moves = found.nodes().values().filter(|node| matches!(node.op, Op::Concat(_) | Op::Pool(_)));
        let dtypes: Vec<DType> = moves.map(|node| found.ty(node.outputs[0]).dtype).collect();
        // Only signed values are requantized: products read u8.
        assert_eq!((dtypes, int8_products(&found)), (vec![DType::U8; 2], 3), "{dtype}");
        let mut random = Random::new(seed + 50);
        let x = [Tensor::from_fn(Shape::from([2, 16, 12, 14]), |_| random.uniform(-1.5, 1.5))];
        let got = open(&compiled, 2).run_tensors(&x).expect("the input fits");
        let want = evaluate(&graph, &x).expect("it is computed");
        assert_eq!(difference(&got[0], &want[0], 0.0, 0.0401), None, "{dtype}");
        let pairs = got[0].to_f64().into_iter().zip(want[0].to_f64());
        let others = pairs.filter(|(got, want)| 0.001 < (got - want).abs()).count();
        assert!(others <= got[0].elements() / 50, "{dtype}: {others} of {}", got[0].elements());
    }
}

#[test]
fn dynamically_quantized_operands_use_int8_products() {
    [300, 301].into_iter().for_each(dynamically_quantized);
}

fn dynamically_quantized(terms: usize) {
    let mut graph = Graph::new("dynamic");
    let mut random = Random::new(8);
    let x = graph.add_input("x", DType::U8, Shape::from([5, terms]));
    let zero = graph.add_input("zero", DType::U8, Shape::scalar());
    let weight = Tensor::from_fn(Shape::from([terms, 21]), |_| random.bits() as i8);
    let items = weight.to_f64();
    let sums: Vec<f64> = (0..21).map(|column| (0..terms).map(|row| items[row * 21 + column]).sum()).collect();
    let weight = graph.add_weight("weight", weight);
    let sums = graph.add_constant("sums", Tensor::vector(sums).cast(DType::I32));
    let mut add = |op: Op, inputs: &[ValueId], name: &str| graph.add1(op, inputs, Scope::new(name)).unwrap();
    let product = add(MatMul::default().into(), &[x, weight], "product");
    let wide = add(Cast { to: DType::I32 }.into(), &[zero], "wide");
    let moved = add(Binary(Function2::Mul).into(), &[sums, wide], "moved");
    let exact = add(Binary(Function2::Sub).into(), &[product, moved], "exact");
    let y = add(Cast { to: DType::F32 }.into(), &[exact], "y");
    graph.set_outputs(vec![("y".into(), y)]);
    let x =
        [Tensor::from_fn(Shape::from([5, terms]), |_| random.bits() as u8), Tensor::scalar(131.0f64).cast(DType::U8)];
    let (found, compiled) = compiled(graph.clone());
    assert_eq!(int8_products(&found), 1);
    assert!(
        found
            .nodes()
            .values()
            .all(|node| found.ty(node.outputs[0]).shape.elements() != 5 * 21 || matches!(node.op, Op::MatMul(_)))
    );
    let got = open(&compiled, 2).run_tensors(&x).expect("the inputs fit");
    let want = evaluate(&graph, &x).expect("it is computed");
    assert_eq!(difference(&got[0], &want[0], 1e-6, 1.0), None);
}

#[test]
fn int8_products_of_any_depth_are_exact() {
    let mut random = Random::new(18);
    for terms in [1, 3, 4, 37, 64, 67, 302] {
        let mut graph = Graph::new("depth");
        let x = graph.add_input("x", DType::U8, Shape::from([2, 5, terms]));
        let weight = Tensor::from_fn(Shape::from([terms, 21]), |_| random.bits() as i8);
        let weight = graph.add_weight("weight", weight);
        let product = MatMul { zero: 3, ..MatMul::default() };
        let sums = graph.add1(product.into(), &[x, weight], Scope::new("product")).expect("the types fit");
        let y = graph.add1(Cast { to: DType::F32 }.into(), &[sums], Scope::new("y")).expect("the types fit");
        graph.set_outputs(vec![("y".into(), y), ("sums".into(), sums)]);
        let x = [Tensor::from_fn(Shape::from([2, 5, terms]), |_| random.bits() as u8)];
        let (found, compiled) = compiled(graph.clone());
        // A few terms that fill no group are sums of `f32`.
        assert_eq!(0 < int8_products(&found), ![1, 3, 37].contains(&terms), "{terms} terms");
        let got = open(&compiled, 2).run_tensors(&x).expect("the input fits");
        let want = evaluate(&graph, &x).expect("it is computed");
        assert_eq!((&got[0], &got[1]), (&want[0], &want[1]), "{terms} terms");
    }
}

#[test]
fn budget_below_the_int8_minimum_is_refused() {
    let model = || Model { graph: network(1, DType::U8), preprocess: None, labels: Vec::new() };
    let arena = compile(model(), &CpuTarget::new(), Goal::default(), |_, _| {}).expect("it compiles").plan.arena.size();
    compile(model(), &CpuTarget::new(), Goal::within(arena), |_, _| {}).expect("its own arena is enough");
    // Kernels may take less workspace, and nothing else shrinks.
    let less = Bytes(arena.0 / 2);
    let error = compile(model(), &CpuTarget::new(), Goal::within(less), |_, _| {}).map(|_| ()).unwrap_err();
    let CompileError::Budget { budget, smallest } = error else { panic!("{error}") };
    assert!(budget == less && less < smallest && smallest <= arena, "{smallest} of {arena}");
    compile(model(), &CpuTarget::new(), Goal::within(smallest), |_, _| {}).expect("the smallest arena is enough");
}

/// Compiles, runs and compares with the definition.
fn check(name: &str, graph: Graph, inputs: &[Tensor], absolute: f64) {
    let (_, compiled) = compiled(graph.clone());
    let got = open(&compiled, 2).run_tensors(inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    let want = evaluate(&graph, inputs).expect("it is computed");
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(difference(got, want, 1e-5, absolute), None, "{name}");
    }
}

#[test]
fn int8_products_match_in_any_context() {
    let mut random = Random::new(9);
    let mut bytes = |shape: &[usize]| Tensor::from_fn(Shape::from(shape), |_| random.bits() as u8);
    let signed = |tensor: Tensor| tensor.cast(DType::I8);

    // The sum of two products is not a residual.
    let mut graph = Graph::new("sum");
    let a = graph.add_input("a", DType::U8, Shape::from([3, 8]));
    let [left, right] = ["left", "right"].map(|name| graph.add_weight(name, signed(bytes(&[8, 5]))));
    let mut add = |op: Op, inputs: &[ValueId], name: &str| graph.add1(op, inputs, Scope::new(name)).unwrap();
    let left = add(MatMul::default().into(), &[a, left], "left");
    let right = add(MatMul { zero: 7, ..MatMul::default() }.into(), &[a, right], "right");
    let y = add(Binary(Function2::Add).into(), &[left, right], "y");
    graph.set_outputs(vec![("y".into(), y)]);
    check("a sum of products", graph, &[bytes(&[3, 8])], 0.0);

    // Int8 operands may have any alignment.
    let mut net = Net { graph: Graph::new("part"), random: Random::new(10), dtype: DType::U8 };
    let q = net.graph.add_input("q", DType::U8, Shape::from([1, 13]));
    let (zero, scale) = (net.number(100.0), net.number(0.02));
    let x = net.numbers(q, zero, scale);
    let part = net.add(ir::ops::Slice::range(&Shape::from([1, 13]), 1, 5, 8), &[x]);
    let weight = net.weight(&[8, 10], 1);
    let y = net.add(MatMul::default(), &[part, weight]);
    net.graph.set_outputs(vec![("y".into(), y)]);
    check("a part", net.graph, &[bytes(&[1, 13])], 1e-4);

    // A dynamic bias requires a float product.
    let mut net = Net { graph: Graph::new("bias"), random: Random::new(11), dtype: DType::U8 };
    let x = net.graph.add_input("x", DType::F32, Shape::from([1, 8, 5, 5]));
    let bias = net.graph.add_input("bias", DType::F32, Shape::from([16]));
    let x = net.rounded(x, 0.02);
    let weight = net.weight(&[16, 8, 3, 3], 0);
    let y = net.add(Conv { epilogue: Epilogue::bias(true), ..Conv::square(1, 1) }, &[x, weight, bias]);
    net.graph.set_outputs(vec![("y".into(), y)]);
    let uniform = |shape: &[usize]| {
        let mut random = Random::new(12);
        Tensor::from_fn(Shape::from(shape), |_| random.uniform(-1.0, 1.0))
    };
    let inputs = [uniform(&[1, 8, 5, 5]), uniform(&[16])];
    check("a bias of the run", net.graph, &inputs, 1e-3);
}

#[test]
fn operands_at_unaligned_offsets_are_refused_or_accepted() {
    let (_, whole) = compiled(network(1, DType::U8));
    let x = [Tensor::from_fn(Shape::from([2, 3, 12, 14]), |at| at as f32 / 500.0)];
    let mut refused = 0;
    for ix in 0..whole.plan.constants.len() {
        for by in [1, 2] {
            let mut damaged = whole.clone();
            damaged.plan.constants[ix].offset = Bytes(damaged.plan.constants[ix].offset.0 + by);
            match try_open(&damaged, 1) {
                Ok(mut session) => drop(session.run_tensors(&x)),
                Err(error) => refused += u32::from(error.to_string().contains("aligned to 4 bytes")),
            }
        }
    }
    assert!(0 < refused, "scales and biases are numbers of four bytes");
}

/// An activation as quantizers split it: a sigmoid, rounded, times its argument.
fn gated(seed: u64, dtype: DType) -> Graph {
    let mut net = Net { graph: Graph::new("gated"), random: Random::new(seed), dtype };
    let x = net.graph.add_input("x", DType::F32, Shape::from([1, 16, 20, 23]));
    let x = net.rounded(x, 0.02);
    let wide = net.conv(x, 32, 1, 1);
    let wide = net.rounded(wide, 0.02);
    let gate = net.add(Unary(Function::Sigmoid), &[wide]);
    let gate = net.rounded(gate, 0.004);
    let product = net.add(Binary(Function2::Mul), &[wide, gate]);
    let product = net.rounded(product, 0.02);
    let y = net.conv(product, 16, 1, 1);
    let y = net.rounded(y, 0.02);
    net.graph.set_outputs(vec![("y".into(), y)]);
    net.graph
}

#[test]
fn activations_between_int8_products_read_and_write_bytes() {
    for (seed, dtype) in [(1, DType::U8), (2, DType::I8)] {
        let graph = gated(seed, dtype);
        let (found, compiled) = compiled(graph.clone());
        let values = found.nodes().values().map(|node| node.outputs[0]).filter(|&value| !found.is_output(value));
        let floats = values.filter(|&value| found.ty(value).dtype == DType::F32).count();
        assert_eq!((floats, int8_products(&found)), (0, 2), "{dtype}");
        let mut random = Random::new(seed + 50);
        let x = [Tensor::from_fn(Shape::from([1, 16, 20, 23]), |_| random.uniform(-1.5, 1.5))];
        let got = open(&compiled, 2).run_tensors(&x).expect("the input fits");
        let want = evaluate(&graph, &x).expect("it is computed");
        assert_eq!(difference(&got[0], &want[0], 0.0, 0.0401), None, "{dtype}");
    }
}

/// Sums of int8 values of two convolutions, of one with itself, of one that is read again, and of one with an input.
fn sums(seed: u64, dtype: DType) -> Graph {
    let mut net = Net { graph: Graph::new("sums"), random: Random::new(seed), dtype };
    let x = net.graph.add_input("x", DType::F32, Shape::from([1, 16, 9, 11]));
    let x = net.rounded(x, 0.02);
    let convolved = |net: &mut Net, x: ValueId| {
        let y = net.conv(x, 16, 3, 1);
        net.rounded(y, 0.02)
    };
    let [left, right, twice, again, last] = [0; 5].map(|_| convolved(&mut net, x));
    let pairs = [(left, right), (twice, twice), (again, x), (x, last)];
    let sums = pairs.map(|(a, b)| {
        let sum = net.add(Binary(Function2::Add), &[a, b]);
        let sum = net.add(Unary(Function::Clip { min: -0.5, max: 6.0 }), &[sum]);
        net.rounded(sum, 0.03)
    });
    let all = net.add(Concat { axis: 1 }, &[sums[0], sums[1], sums[2], sums[3], again]);
    net.graph.set_outputs(vec![("y".into(), all)]);
    net.graph
}

#[test]
fn residual_sums_match_in_any_context() {
    for (seed, dtype) in [(1, DType::U8), (2, DType::I8)] {
        let graph = sums(seed, dtype);
        let (found, compiled) = compiled(graph.clone());
        let mut random = Random::new(seed + 50);
        let x = [Tensor::from_fn(Shape::from([1, 16, 9, 11]), |_| random.uniform(-1.5, 1.5))];
        let got = open(&compiled, 2).run_tensors(&x).expect("the input fits");
        let want = evaluate(&graph, &x).expect("it is computed");
        assert_eq!(difference(&got[0], &want[0], 0.0, 0.0601), None, "{dtype}");
        assert_eq!(quantized_sums(&found), 2, "{dtype}: the first and the last");
    }
}
