//! [`match_channel_products`]: a product along an axis that is not the last becomes a convolution.
//!
//! Exporters write a linear layer over channels, such as the mixture of the heads of an attention, as a product between two
//! transpositions:
//!
//! ```text
//! [n, c, h, w] -> transpose -> [n, h, w, c] -> mat_mul [c, d] (+ bias) -> [n, h, w, d] -> transpose -> [n, d, h, w]
//! [n, c, h, w] -> conv 1 x 1 [d, c] (+ bias) -> [n, d, h, w]
//! ```

use ir::ops::{Conv, Epilogue, MatMul, Reshape, Transpose};
use ir::{Graph, Node, NodeId, Op, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::{DType, Shape, Tensor, TensorFunction};

use crate::uses::Uses;

/// The most channels. With more, the copies are a small part of the work, and products are faster than convolutions.
const CHANNELS_MAX: usize = 64;

/// Matches products of `f32` by a constant matrix, of few channels, between a transposition that brings an axis behind all
/// others and the one that brings it back. Biases must be in the products. Unread nodes are left to `dce`.
pub fn match_channel_products(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let Found { x, axis, product, weight } = find(&uses, id)?;
        let (node, shape) = (graph.node(id), &graph.ty(x).shape);
        let results = weight.shape()[0];
        // The axes in front are a batch, those behind an image.
        let (front, behind) = (&shape[..axis], &shape[axis + 1..]);
        let plane = match *behind {
            [rows, columns] => [rows, columns],
            _ => [1, behind.iter().product()],
        };
        let image = |channels: usize| Shape::from([front.iter().product(), channels, plane[0], plane[1]]);
        let mut inputs: SmallVec<[ValueId; 3]> = smallvec![context.value(x)];
        if image(shape[axis]) != *shape {
            inputs[0] = context.add(Reshape { shape: image(shape[axis]) }, &inputs, &node.scope).ok()?;
        }
        inputs.push(context.new.add_weight(&graph.value(product.inputs[1]).name, weight));
        inputs.extend(product.inputs[2..].iter().map(|&bias| context.value(bias)));
        let epilogue = product.op.epilogue()?.clone();
        let mut y = context.add(Conv { epilogue, ..Conv::square(1, 0) }, &inputs, &product.scope).ok()?;
        let result = &graph.ty(node.outputs[0]).shape;
        if image(results) != *result {
            y = context.add(Reshape { shape: result.clone() }, &[y], &node.scope).ok()?;
        }
        Some(smallvec![y])
    })
}

/// A product along an axis of `x`.
struct Found<'a> {
    x: ValueId,
    axis: usize,
    product: &'a Node,
    /// `[results, channels, 1, 1]`.
    weight: Tensor,
}

/// The product whose result a transposition brings back.
fn find<'a>(uses: &Uses<'a>, id: NodeId) -> Option<Found<'a>> {
    let graph = uses.graph;
    let back = order_of(graph.node(id))?;
    let result = graph.node(id).inputs[0];
    let (_, product) = uses.only_reader(result).and_then(|_| uses.producer(result))?;
    let Op::MatMul(MatMul { transposed: false, epilogue, zero: 0 }) = &product.op else { return None };
    let (moved, matrix) = (product.inputs[0], uses.constant(product.inputs[1])?);
    let [channels, results] = matrix.shape()[..] else { return None };
    let few = channels.max(results) <= CHANNELS_MAX;
    let all_f32 = product.inputs.iter().chain(&product.outputs).all(|&value| graph.ty(value).dtype == DType::F32);
    if !few || !all_f32 || *epilogue != (Epilogue { bias: epilogue.bias, ..Epilogue::default() }) {
        return None;
    }
    let (_, mover) = uses.only_reader(moved).and_then(|_| uses.producer(moved))?;
    let order = order_of(mover)?;
    let (&axis, others) = order.split_last()?;
    let in_order = others.is_sorted() && axis + 1 < order.len();
    let returns = back.iter().enumerate().all(|(to, &from)| order[from] == to);
    if !in_order || !returns {
        return None;
    }
    let weight = Tensor::derived(TensorFunction::Transpose(smallvec![1, 0]), &[matrix]).ok()?;
    let weight = weight.reshape(Shape::from([results, channels, 1, 1])).ok()?;
    Some(Found { x: mover.inputs[0], axis, product, weight })
}

/// The order of axes of a transposition.
fn order_of(node: &Node) -> Option<&[usize]> {
    let Op::Transpose(Transpose { order }) = &node.op else { return None };
    Some(order)
}

#[cfg(test)]
mod tests {
    use ir::TensorType;
    use types::{Random, Scope};

    use super::*;

    /// `x`, its axis brought to the last place by `order`, times a matrix, plus a bias if wanted, and `back`.
    fn graph(shape: &[usize], order: &[usize], back: &[usize], results: usize, bias: bool) -> Graph {
        let mut graph = Graph::new("mixed heads");
        let mut random = Random::new(3);
        let mut tensor = |shape: Shape| Tensor::from_fn(shape, |_| random.uniform(-1.0, 1.0));
        let x = graph.add_input("x", DType::F32, shape.iter().copied().collect());
        let matrix = tensor(Shape::from([shape[*order.last().unwrap()], results]));
        let mut inputs = vec![x, graph.add_weight("matrix", matrix)];
        if bias {
            inputs.push(graph.add_weight("bias", tensor(Shape::from([results]))));
        }
        let transposed = |order: &[usize]| Transpose { order: order.iter().copied().collect() };
        inputs[0] = graph.add1(transposed(order).into(), &[x], Scope::new("to last")).unwrap();
        let epilogue = Epilogue { bias, ..Epilogue::default() };
        let product = MatMul { epilogue, ..MatMul::default() };
        let y = graph.add1(product.into(), &inputs, Scope::new("mix")).unwrap();
        let y = graph.add1(transposed(back).into(), &[y], Scope::new("back")).unwrap();
        graph.set_outputs(vec![("y".into(), y)]);
        graph
    }

    #[test]
    fn products_between_transpositions_become_convolutions() {
        let cases: [(&[usize], &[usize], &[usize]); 5] = [
            (&[2, 4, 3, 5], &[0, 2, 3, 1], &[0, 3, 1, 2]),
            (&[2, 4, 6], &[0, 2, 1], &[0, 2, 1]),
            (&[4, 6], &[1, 0], &[1, 0]),
            (&[2, 3, 4, 5], &[0, 1, 3, 2], &[0, 1, 3, 2]),
            (&[2, 4, 3, 5, 2], &[0, 2, 3, 4, 1], &[0, 4, 1, 2, 3]),
        ];
        for (shape, order, back) in cases {
            for (results, bias) in [(4, false), (7, true)] {
                let graph = graph(shape, order, back, results, bias);
                let short = crate::dce(&match_channel_products(&graph));
                ir::verify(&short).unwrap();
                assert!(short.nodes().iter().any(|(_, node)| matches!(node.op, Op::Conv(_))), "{shape:?}");
                assert!(short.nodes().iter().all(|(_, node)| !matches!(node.op, Op::Transpose(_))), "{shape:?}");
                let conv = short.nodes().iter().find(|(_, node)| matches!(node.op, Op::Conv(_))).unwrap().1;
                assert_eq!(conv.scope, Scope::new("mix"), "the step keeps the layer of the product");
                let mut random = Random::new(4);
                let x = Tensor::from_fn(shape.iter().copied().collect(), |_| random.uniform(-1.0, 1.0));
                assert_eq!(TensorType::of(&x), *graph.ty(graph.inputs()[0]));
                let [want, got] = [&graph, &short].map(|graph| ir::evaluate(graph, std::slice::from_ref(&x)).unwrap());
                let [want, got] = [&want, &got].map(|results| results[0].as_slice::<f32>().unwrap());
                assert!(want.iter().zip(got).all(|(want, got)| (want - got).abs() <= 1e-5), "{shape:?}");
            }
        }
    }

    #[test]
    fn other_orders_and_many_channels_stay() {
        for graph in [
            graph(&[2, 4, 3, 5], &[0, 2, 3, 1], &[0, 3, 2, 1], 4, false),
            graph(&[2, 4, 3, 5], &[0, 3, 2, 1], &[0, 3, 2, 1], 4, false),
            graph(&[2, 4, 3, 5], &[0, 2, 1, 3], &[0, 2, 1, 3], 4, false),
            graph(&[2, 128, 6], &[0, 2, 1], &[0, 2, 1], 4, false),
            graph(&[2, 4, 6], &[0, 2, 1], &[0, 2, 1], 128, false),
        ] {
            let same = match_channel_products(&graph);
            assert!(same.nodes().iter().all(|(_, node)| !matches!(node.op, Op::Conv(_))));
        }
    }
}
