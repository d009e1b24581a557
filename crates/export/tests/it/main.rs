//! Round trips of the zoo's networks through ONNX files.

use std::collections::BTreeMap;

use ir::ops::{Relayout, Unary};
use ir::{Graph, evaluate};
use load::onnx;
use prestow_export::{ExportError, onnx as write};
use types::{DType, Random, Scope, Shape, Tensor, pointwise};
use zoo::{NetworkOptions, Seeded};

fn built(name: &str, options: &NetworkOptions) -> Graph {
    zoo::build(name, 1, &mut Seeded(1), options).unwrap_or_else(|error| panic!("{name}: {error}")).graph
}

fn reloaded(graph: &Graph) -> Graph {
    let file = write(graph).unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    onnx::load(&file, None, &onnx::Options::default()).unwrap_or_else(|error| panic!("{}: {error}", graph.name))
}

fn input(graph: &Graph) -> Vec<Tensor> {
    let mut random = Random::new(1);
    let made = |&id: &ir::ValueId| {
        let ty = graph.ty(id);
        match ty.dtype {
            DType::F32 => Tensor::from_fn(ty.shape.clone(), |_| random.uniform(-1.0, 1.0)),
            _ => Tensor::from_fn(ty.shape.clone(), |at| (at % 2) as i64),
        }
    };
    graph.inputs().iter().map(made).collect()
}

/// Small sides, because the definitions are slow.
#[test]
fn networks_round_trip() {
    let sized = |shape: &[usize]| NetworkOptions {
        shapes: BTreeMap::from([("input".to_string(), shape.into())]),
        ..NetworkOptions::default()
    };
    for (name, options) in [
        ("lenet", NetworkOptions::default()),
        ("mobilenet_v2", sized(&[1, 3, 32, 32])),
        ("gluon/resnet18_v2", sized(&[1, 3, 32, 32])),
        ("dlbs/sensor_net", NetworkOptions::default()),
    ] {
        let graph = built(name, &options);
        let again = reloaded(&graph);
        let names = |graph: &Graph| {
            let inputs: Vec<String> = graph.inputs().iter().map(|&id| graph.value(id).name.clone()).collect();
            (inputs, graph.outputs().iter().map(|output| output.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(names(&again), names(&graph), "{name}");
        let inputs = input(&graph);
        assert!(evaluate(&again, &inputs).unwrap() == evaluate(&graph, &inputs).unwrap(), "{name}");
    }
}

/// Small networks of each family; other tests run them.
#[test]
fn families_round_trip_with_the_same_work() {
    for spec in zoo::list().iter().filter(|spec| spec.parameters < 15_000_000) {
        let graph = built(spec.name, &NetworkOptions::default());
        let again = reloaded(&graph);
        // Nodes of constants are evaluated when the file is read.
        let (was, is) = (graph.flops(), again.flops());
        assert!(was.abs_diff(is) <= was / 100, "{}: {is} FLOPs instead of {was}", spec.name);
    }
}

#[test]
fn nodes_of_passes_are_refused_by_name() {
    let mut graph = Graph::new("laid out");
    let x = graph.add_input("x", DType::F32, Shape::from([1, 16, 4, 4]));
    let y = graph.add1(Unary(pointwise::Unary::Relu).into(), &[x], Scope::new("relu")).unwrap();
    let z = graph.add1(Relayout {}.into(), &[y], Scope::new("stem/blocks")).unwrap();
    graph.set_outputs(vec![("z".into(), z)]);
    let error = write(&graph).unwrap_err();
    assert!(matches!(error, ExportError::Node { .. }));
    assert_eq!(error.to_string(), "`stem/blocks`: `relayout`, which only passes make, has no form in ONNX");
}

/// A value that is two outputs, an input that is also an output, and a constant output.
#[test]
fn outputs_keep_their_names() {
    let mut graph = Graph::new("names");
    let x = graph.add_input("x", DType::F32, Shape::from([2]));
    let k = graph.add_constant("k", Tensor::vector(vec![1.0f32, 2.0]));
    let y = graph.add1(Unary(pointwise::Unary::Neg).into(), &[x], Scope::new("neg")).unwrap();
    let outputs = [("y", y), ("again", y), ("x", x), ("input", x), ("k", k)];
    graph.set_outputs(outputs.map(|(name, value)| (name.to_string(), value)).into());
    let again = reloaded(&graph);
    let names: Vec<&str> = again.outputs().iter().map(|output| output.name.as_str()).collect();
    assert_eq!(names, ["y", "again", "x", "input", "k"]);
    let given = [Tensor::vector(vec![3.0f32, 4.0])];
    assert!(evaluate(&again, &given).unwrap() == evaluate(&graph, &given).unwrap());
}
