//! [`least_alignment`]: the alignment of values' bytes, wherever they are placed.
//!
//! An alias set begins at an aligned address. A value in it begins at the sum of the offsets of slices and of concat slices on the
//! way from the set's first byte. Which sets are joined depends on the order of the nodes and on the kernels, so the analysis
//! follows all joins that [`super::alias`] can make: an alignment holds for each plan.

use std::collections::BTreeSet;

use super::value_size;
use crate::{Graph, Node, Op, Reuse, TensorType, ValueId};
use types::Layout;

/// The bytes of `to` may begin behind those of `from`, at a multiple of `alignment` bytes.
struct Edge {
    from: ValueId,
    to: ValueId,
    alignment: u64,
}

/// The largest power of two, up to `limit` bytes, that divides the offsets of all of `values` from the first byte of their alias
/// sets or constants. Values that have a channels-last form are looked at in both layouts, so that a pass may change the layout of
/// any of them. The time is that of finding the readers of all values, and of visiting those that can share bytes.
///
/// # Panics
/// `limit` is not a power of two.
pub fn least_alignment(graph: &Graph, values: impl IntoIterator<Item = ValueId>, limit: u64) -> u64 {
    assert!(limit.is_power_of_two(), "an alignment is a power of two, not {limit}");
    let readers = graph.readers();
    let mut least = limit;
    let mut visited: BTreeSet<ValueId> = BTreeSet::new();
    let mut open: Vec<ValueId> = values.into_iter().collect();
    while let Some(value) = open.pop() {
        if !visited.insert(value) {
            continue;
        }
        for &id in graph.value(value).producer().iter().chain(&readers[value]) {
            for edge in edges_of(graph, graph.node(id), limit).iter().filter(|edge| edge.to == value) {
                least = least.min(edge.alignment);
                open.push(edge.from);
            }
        }
    }
    least
}

/// The edges between the values of a node. Only slices and concatenations have other shifts than zero.
fn edges_of(graph: &Graph, node: &Node, limit: u64) -> Vec<Edge> {
    let result = node.outputs[0];
    let mut edges = edges_of_reuse(graph, node, &graph.reuse(node), limit);
    if graph.value(result).layout == Layout::RowMajor
        && matches!(node.op, Op::Slice(_) | Op::Concat(_))
        && let Some(op) = graph.channels_last_op(node)
    {
        let ty = |value: ValueId| {
            let ty = graph.ty(value);
            TensorType { dtype: ty.dtype, shape: Layout::ChannelsLast.physical(&ty.shape) }
        };
        let inputs: Vec<TensorType> = node.inputs.iter().map(|&input| ty(input)).collect();
        let reuse = op.reuse(&inputs.iter().collect::<Vec<_>>(), &ty(result));
        edges.extend(edges_of_reuse(graph, node, &reuse, limit));
    }
    edges
}

fn edges_of_reuse(graph: &Graph, node: &Node, reuse: &Reuse, limit: u64) -> Vec<Edge> {
    let result = node.outputs[0];
    let aligned = |shift: usize| {
        let bytes = shift as u64 * graph.ty(result).dtype.size().0;
        1 << (bytes | limit).trailing_zeros()
    };
    let edge = |from: ValueId, to: ValueId, alignment: u64| Edge { from, to, alignment };
    let both = |a: ValueId, b: ValueId| [edge(a, b, limit), edge(b, a, limit)];
    match reuse {
        // A block that moves takes the views of all of it along.
        Reuse::Alias { offset: 0 } if value_size(graph, node.inputs[0]) == value_size(graph, result) => {
            both(node.inputs[0], result).into()
        }
        Reuse::Alias { offset } => vec![edge(node.inputs[0], result, aligned(*offset))],
        Reuse::ConcatSlices(starts) => {
            let slice = |(&operand, &start): (&ValueId, &usize)| {
                // A result may begin where its first operand is.
                let first = (start == 0).then(|| edge(operand, result, limit));
                [Some(edge(result, operand, aligned(start))), first]
            };
            node.inputs.iter().zip(starts).flat_map(slice).flatten().collect()
        }
        Reuse::InPlace(operands) => operands.iter().flat_map(|&ix| both(node.inputs[ix], result)).collect(),
        Reuse::EachInPlace(pairs) => {
            pairs.iter().flat_map(|&[output, input]| both(node.inputs[input], node.outputs[output])).collect()
        }
        Reuse::Never => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;
    use types::{DType, Map, Random, Scope, Shape, pointwise};

    use super::*;
    use crate::analysis::alias::{AliasSets, KernelReuse, Location};
    use crate::ops::{Concat, Slice, Unary};

    fn add(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
        let name = format!("node{}", graph.nodes().len());
        graph.add1(op, inputs, Scope::new(&name)).expect("it is accepted")
    }

    fn relu(graph: &mut Graph, x: ValueId) -> ValueId {
        add(graph, Unary(pointwise::Unary::Relu).into(), &[x])
    }

    #[test]
    fn values_without_shifts_have_the_limit() {
        let mut graph = Graph::new("plain");
        let x = graph.add_input("x", DType::F32, Shape::from([3, 5]));
        let y = relu(&mut graph, x);
        graph.set_outputs(vec![("y".into(), y)]);
        assert_eq!([x, y].map(|value| least_alignment(&graph, [value], 16)), [16, 16]);
        assert_eq!(least_alignment(&graph, [], 16), 16);
    }

    #[test]
    fn slices_lower_their_results_and_what_shares_their_bytes() {
        let mut graph = Graph::new("slices");
        let shape = Shape::from([8, 6]);
        let x = graph.add_input("x", DType::F32, shape.clone());
        let odd = add(&mut graph, Slice::range(&shape, 0, 1, 4).into(), &[x]);
        let even = add(&mut graph, Slice::range(&shape, 0, 2, 4).into(), &[x]);
        let (odd_relu, even_relu) = (relu(&mut graph, odd), relu(&mut graph, even));
        graph.set_outputs(vec![("odd".into(), odd_relu), ("even".into(), even_relu)]);
        let alignment = |value| least_alignment(&graph, [value], 16);
        // A row of six numbers has 24 bytes.
        assert_eq!([x, odd, odd_relu, even, even_relu].map(alignment), [16, 8, 8, 16, 16]);
        assert_eq!(least_alignment(&graph, [x, even, odd], 16), 8);
    }

    #[test]
    fn concat_slices_lower_their_operands_and_not_the_result() {
        let mut graph = Graph::new("concat");
        let inputs = [3, 4, 2].map(|rows| graph.add_input(&format!("x{rows}"), DType::F32, Shape::from([rows, 3])));
        let parts = inputs.map(|input| relu(&mut graph, input));
        let whole = add(&mut graph, Concat { axis: 0 }.into(), &parts);
        let y = relu(&mut graph, whole);
        graph.set_outputs(vec![("y".into(), y)]);
        let alignment = |value| least_alignment(&graph, [value], 16);
        // They begin at 0, 36 and 84 bytes.
        assert_eq!(parts.map(alignment), [16, 4, 4]);
        assert_eq!([whole, y].map(alignment), [16, 16]);
    }

    /// A graph of slices, concatenations, reshapes and functions of values with rows of some odd number of elements.
    fn random_graph(random: &mut Random) -> Graph {
        let mut graph = Graph::new("random");
        let columns = [1, 3, 4, 6, 8][random.below(5) as usize];
        let dtype = [DType::F32, DType::F16][random.below(2) as usize];
        let mut values: Vec<ValueId> =
            (0..2).map(|ix| graph.add_input(&format!("x{ix}"), dtype, Shape::from([5 + ix, columns]))).collect();
        for _ in 0..12 {
            let of = |random: &mut Random| values[random.below(values.len() as u64) as usize];
            let (a, b) = (of(random), of(random));
            let shape = graph.ty(a).shape.clone();
            let op: (Op, Vec<ValueId>) = match random.below(4) {
                0 if 1 < shape[0] => {
                    let from = random.below(shape[0] as u64) as usize;
                    let count = 1 + random.below((shape[0] - from) as u64) as usize;
                    (Slice::range(&shape, 0, from, count).into(), vec![a])
                }
                1 => (Concat { axis: 0 }.into(), vec![a, b]),
                2 => (Concat { axis: 0 }.into(), vec![a, b, of(random)]),
                _ => (Unary(pointwise::Unary::Relu).into(), vec![a]),
            };
            values.push(add(&mut graph, op.0, &op.1));
        }
        let outputs = values.split_off(values.len() - 2);
        graph.set_outputs(outputs.iter().enumerate().map(|(ix, &value)| (format!("y{ix}"), value)).collect());
        graph
    }

    /// Whatever sets are joined, each value begins at a multiple of its alignment.
    #[test]
    fn alignments_hold_for_random_graphs_in_every_sharing() {
        let mut random = Random::for_name(7, "alignments");
        let (mut lowered, mut moved) = (0, 0);
        for _ in 0..400 {
            let graph = random_graph(&mut random);
            let alignments: Map<ValueId, u64> =
                graph.values().keys().map(|value| least_alignment(&graph, [value], 16)).collect();
            let all = |node: &Node| (0..node.inputs.len()).collect();
            let reuse = |by_slice: bool, in_place: bool| -> Map<crate::NodeId, KernelReuse> {
                let of = |node: &Node| KernelReuse {
                    by_slice,
                    in_place: if in_place { all(node) } else { SmallVec::new() },
                };
                graph.nodes().values().map(of).collect()
            };
            let sharings = [
                AliasSets::views(&graph),
                AliasSets::optimistic(&graph),
                AliasSets::in_order(&graph, &reuse(true, true)),
                AliasSets::in_order(&graph, &reuse(true, false)),
                AliasSets::in_order(&graph, &reuse(false, true)),
            ];
            for (sets, value) in sharings.iter().flat_map(|sets| graph.values().keys().map(move |value| (sets, value)))
            {
                let (Location::Buffer { offset, .. } | Location::Constant { offset, .. }) = sets.location(value);
                let alignment = alignments[value];
                assert!(offset.is_multiple_of(alignment), "{value:?} at {offset} of alignment {alignment}: {graph:?}");
                (lowered, moved) = (lowered + usize::from(alignment < 16), moved + usize::from(offset != 0));
            }
        }
        assert!(1000 < lowered && 1000 < moved, "{lowered} {moved}");
    }

    #[test]
    fn slices_of_rows_are_seen_before_their_layout_is_chosen() {
        let mut graph = Graph::new("rows");
        let shape = Shape::from([1, 3, 8, 5]);
        let x = graph.add_input("x", DType::F16, shape.clone());
        // Contiguous only where channels are innermost: a row then has 30 bytes.
        let rows = add(&mut graph, Slice::range(&shape, 2, 1, 7).into(), &[x]);
        graph.set_outputs(vec![("rows".into(), rows)]);
        assert_eq!(least_alignment(&graph, [rows], 16), 2);
    }
}
