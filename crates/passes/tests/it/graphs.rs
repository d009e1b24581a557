//! Graphs as tasks.

use ir::{Graph, Op, ValueId, ops};
use types::{DType, Proof, Scope, Shape, pointwise};

use crate::passes::{Counted, MemoryModel, schedule, tasks};

/// A graph with an input of 1 KiB.
fn graph() -> (Graph, ValueId) {
    let mut graph = Graph::new("test");
    let x = graph.add_input("x", DType::F32, Shape::from([1, 4, 8, 8]));
    (graph, x)
}

fn add(graph: &mut Graph, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
    graph.add1(op.into(), inputs, Scope::new("node")).expect("the op takes these")
}

fn relu() -> ops::Unary {
    ops::Unary(pointwise::Unary::Relu)
}

/// Keeps extents and does not run in place.
fn pool() -> ops::Pool {
    ops::Pool::square(ops::PoolKind::Max, 3, 1, 1)
}

fn concat() -> ops::Concat {
    ops::Concat { axis: 1 }
}

/// The peak in KiB of the order as given, `y` being the result.
fn peak(mut graph: Graph, y: ValueId) -> u64 {
    graph.set_outputs(vec![("y".into(), y)]);
    let tasks = tasks(&graph, &MemoryModel::bare(&graph), Counted::ByPart);
    tasks.peak(&tasks.given_order()).expect("nodes stand in order").0 / 1024
}

#[test]
fn view_has_the_bytes_of_its_operand_and_comes_first() {
    let (mut graph, x) = graph();
    let a = add(&mut graph, pool(), &[x]);
    let view = add(&mut graph, ops::Reshape { shape: Shape::from([4, 64]) }, &[a]);
    let y = add(&mut graph, relu(), &[view]);
    let mut copy = graph.clone();
    copy.set_outputs(vec![("y".into(), y)]);
    let tasks = tasks(&copy, &MemoryModel::bare(&copy), Counted::ByPart);
    let order = tasks.given_order();
    assert_eq!(tasks.peak(&[order[0], order[2], order[1]]), None, "the reader of a view runs behind it");
    assert_eq!(peak(graph, y), 2, "the pool's operand and result; the rest is in place");
}

#[test]
fn parts_of_a_concatenation_are_its_bytes() {
    let (mut graph, x) = graph();
    let a = add(&mut graph, pool(), &[x]);
    let b = add(&mut graph, pool(), &[x]);
    let y = add(&mut graph, concat(), &[a, b]);
    assert_eq!(peak(graph, y), 3, "input and both parts");
}

#[test]
fn given_and_repeated_parts_are_copied() {
    let (mut graph, x) = graph();
    let a = add(&mut graph, pool(), &[x]);
    let y = add(&mut graph, concat(), &[x, a, a]);
    assert_eq!(peak(graph, y), 4, "input and part, and a copy of both");
}

#[test]
fn a_growing_concatenation_is_the_beginning_of_the_last() {
    let (mut graph, x) = graph();
    let a = add(&mut graph, pool(), &[x]);
    let b = add(&mut graph, pool(), &[a]);
    let ab = add(&mut graph, concat(), &[a, b]);
    let c = add(&mut graph, ops::Slice::range(&Shape::from([1, 8, 8, 8]), 1, 0, 4), &[ab]);
    let c = add(&mut graph, pool(), &[c]);
    let y = add(&mut graph, concat(), &[a, b, c]);
    assert_eq!(peak(graph, y), 3);
}

#[test]
fn branches_that_shrink_run_before_others_start() {
    let (mut graph, x) = graph();
    let wide: Vec<ValueId> = (0..4).map(|_| add(&mut graph, pool(), &[x])).collect();
    let mut narrow = Vec::new();
    for &value in &wide {
        narrow.push(add(&mut graph, ops::Pool::square(ops::PoolKind::Max, 8, 8, 0), &[value]));
    }
    let y = add(&mut graph, concat(), &narrow);
    graph.set_outputs(vec![("y".into(), y)]);
    let before = tasks(&graph, &MemoryModel::bare(&graph), Counted::ByPart);
    let given = before.peak(&before.given_order()).expect("nodes stand in order");
    let scheduled = schedule(&graph, &MemoryModel::bare(&graph));
    assert_eq!(given.0, 5 * 1024);
    assert_eq!(scheduled.order.value.0, 2 * 1024 + 3 * 16);
    assert_eq!(scheduled.order.proof(), Proof::Search);
    let after = tasks(&scheduled.ordered.graph, &MemoryModel::bare(&scheduled.ordered.graph), Counted::ByPart);
    assert_eq!(after.peak(&after.given_order()), Some(scheduled.order.value));
}

#[test]
fn with_whole_concatenations_parts_are_written_when_their_input_is_gone() {
    // 4 KiB become 1 KiB twice, each of these a part of 1 KiB. As given the first part is written beside the input: 6 KiB
    // part by part, as in any order, but 7 KiB with the whole result there.
    let mut graph = Graph::new("test");
    let x = graph.add_input("x", DType::F32, Shape::from([1, 16, 8, 8]));
    let mut parts = Vec::new();
    for _ in 0..2 {
        let quarter = add(&mut graph, ops::Pool::square(ops::PoolKind::Max, 2, 2, 0), &[x]);
        parts.push(add(&mut graph, pool(), &[quarter]));
    }
    let y = add(&mut graph, concat(), &parts);
    graph.set_outputs(vec![("y".into(), y)]);
    let peak = |graph: &Graph, counted: Counted| {
        let tasks = tasks(graph, &MemoryModel::bare(graph), counted);
        tasks.peak(&tasks.given_order()).expect("nodes stand in order").0 / 1024
    };
    let scheduled = schedule(&graph, &MemoryModel::bare(&graph));
    assert_eq!(scheduled.ordered.graph, graph);
    assert_eq!([Counted::ByPart, Counted::Whole].map(|counted| peak(&graph, counted)), [6, 7]);
    assert_eq!(peak(&scheduled.whole.expect("there is a better order").graph, Counted::Whole), 6);
}
