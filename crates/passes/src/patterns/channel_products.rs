//! [`match_channel_products`]: a product along an axis that is not the last becomes a convolution.
//!
//! Exporters write a linear layer over channels, such as the mixture of the heads of an attention, as a product between two
//! transpositions:
//!
//! ```text
//! [n, c, h, w] -> transpose -> [n, h, w, c] -> mat_mul [c, d] (+ bias) -> [n, h, w, d] -> transpose -> [n, d, h, w]
//! [n, c, h, w] -> conv 1 x 1 [d, c] (+ bias) -> [n, d, h, w]
//! ```
//!
//! Vision transformers have convolutions of images between two products of tokens, one that widens the channels and one that
//! narrows them. The transpositions between them move to the narrow sides:
//!
//! ```text
//! [n, t, c] -> mat_mul [c, d] -> [n, t, d] -> transpose -> [n, d, t] -> reshape -> conv 3 x 3 ..
//! [n, t, c] -> transpose -> [n, c, t] -> reshape -> conv 1 x 1 [d, c] -> conv 3 x 3 ..
//!
//! .. conv 3 x 3 -> reshape -> [n, d, t] -> transpose -> [n, t, d] -> gelu -> mat_mul [d, c] -> [n, t, c]
//! .. conv 3 x 3 -> gelu -> conv 1 x 1 [c, d] -> reshape -> [n, c, t] -> transpose -> [n, t, c]
//! ```

use ir::ops::{Conv, Epilogue, MatMul, Reshape, Transpose};
use ir::{Graph, Node, NodeId, Op, Rewrite, ValueId, rewrite};
use smallvec::{SmallVec, smallvec};
use types::{DType, Scope, Shape, Tensor, TensorFunction};

use crate::uses::Uses;

/// The most channels of a product between two transpositions. With more, the copies are a small part of the work, and products
/// are faster than convolutions.
const CHANNELS_MAX: usize = 64;

/// Matches products of `f32` by a constant matrix: of few channels, between a transposition that brings an axis behind all
/// others and the one that brings it back; and next to one such transposition to or from a convolution, on its narrow side.
/// Biases must be in the products. Unread nodes are left to `dce`.
pub fn match_channel_products(graph: &Graph) -> Graph {
    let uses = Uses::new(graph);
    rewrite(graph, |context, id| {
        let node = graph.node(id);
        if let Op::Reshape(Reshape { shape }) = &node.op {
            // One that undoes another.
            let x = context.value(node.inputs[0]);
            return as_it_was(context, x, shape).map(|x| smallvec![x]);
        }
        let Found { to_last, functions, product, back, axis, weight } = find(&uses, id)?;
        let x = context.value(to_last.unwrap_or(product).inputs[0]);
        let mut x = match to_last {
            Some(_) => x,
            None => context.add(Transpose { order: back?.clone() }, &[x], &node.scope).ok()?,
        };
        let shape = context.new.ty(x).shape.clone();
        let results = weight.shape()[0];
        // The axes in front are a batch, those behind an image.
        let (front, behind) = (&shape[..axis], &shape[axis + 1..]);
        let plane = match *behind {
            [rows, columns] => [rows, columns],
            _ => plane_beside(&uses, to_last, id).unwrap_or([1, behind.iter().product()]),
        };
        let image = |channels: usize| Shape::from([front.iter().product(), channels, plane[0], plane[1]]);
        x = reshaped(context, x, image(shape[axis]), &node.scope)?;
        for function in functions.iter().rev() {
            x = context.add(function.op.clone(), &[x], &function.scope).ok()?;
        }
        let mut inputs: SmallVec<[ValueId; 3]> = smallvec![x];
        inputs.push(context.new.add_weight(&graph.value(product.inputs[1]).name, weight));
        inputs.extend(product.inputs[2..].iter().map(|&bias| context.value(bias)));
        let epilogue = product.op.epilogue()?.clone();
        let mut y = context.add(Conv { epilogue, ..Conv::square(1, 0) }, &inputs, &product.scope).ok()?;
        let mut result = shape.clone();
        result[axis] = results;
        y = reshaped(context, y, result, &node.scope)?;
        if let (None, Some(mover)) = (back, to_last) {
            y = context.add(mover.op.clone(), &[y], &mover.scope).ok()?;
        }
        Some(smallvec![y])
    })
}

/// A value in another shape.
fn reshaped(context: &mut Rewrite, x: ValueId, shape: Shape, scope: &Scope) -> Option<ValueId> {
    match as_it_was(context, x, &shape) {
        Some(x) => Some(x),
        None => context.add(Reshape { shape }, &[x], scope).ok(),
    }
}

/// A value that has a shape already, or had it before it was reshaped.
fn as_it_was(context: &Rewrite, x: ValueId, shape: &Shape) -> Option<ValueId> {
    if context.new.ty(x).shape == *shape {
        return Some(x);
    }
    let reshape = context.new.node(context.new.value(x).producer()?);
    let is_same = matches!(reshape.op, Op::Reshape(_)) && context.new.ty(reshape.inputs[0]).shape == *shape;
    is_same.then(|| reshape.inputs[0])
}

/// A product along an axis that is not the last.
struct Found<'a> {
    /// The transposition that brings the axis behind the others, and the functions behind it, the last first.
    to_last: Option<&'a Node>,
    functions: Vec<&'a Node>,
    product: &'a Node,
    /// The order of the one that brings it back.
    back: Option<&'a SmallVec<[usize; 6]>>,
    axis: usize,
    /// `[results, channels, 1, 1]`.
    weight: Tensor,
}

/// The product whose result is that of a node: the product itself, or the transposition that brings its axis back.
fn find<'a>(uses: &Uses<'a>, id: NodeId) -> Option<Found<'a>> {
    let graph = uses.graph;
    let node = graph.node(id);
    let back = order_of(node);
    let product = match back {
        Some(_) => only_read(uses, node.inputs[0])?,
        None => node,
    };
    let Op::MatMul(MatMul { transposed: false, epilogue, zero: 0 }) = &product.op else { return None };
    let matrix = uses.constant(product.inputs[1])?;
    let [channels, results] = matrix.shape()[..] else { return None };
    let all_f32 = product.inputs.iter().chain(&product.outputs).all(|&value| graph.ty(value).dtype == DType::F32);
    if !all_f32 || *epilogue != (Epilogue { bias: epilogue.bias, ..Epilogue::default() }) {
        return None;
    }
    let (mut functions, mut value) = (Vec::new(), product.inputs[0]);
    let to_last = loop {
        match only_read(uses, value) {
            Some(function) if matches!(function.op, Op::Unary(_)) => {
                functions.push(function);
                value = function.inputs[0];
            }
            mover => break mover.filter(|mover| order_of(mover).is_some_and(|order| last_axis(order).is_some())),
        }
    };
    let axis = match (to_last, back) {
        (Some(mover), Some(back)) => {
            let order = order_of(mover)?;
            let returns = back.iter().enumerate().all(|(to, &from)| order[from] == to);
            (returns && channels.max(results) <= CHANNELS_MAX).then(|| last_axis(order))??
        }
        (Some(mover), None) => {
            // The reader of the result may be the transposition that brings the axis back.
            let is_last = uses.only_reader(node.outputs[0]).is_none_or(|reader| order_of(graph.node(reader)).is_none());
            let is_narrow = results < channels && is_last && comes_from_convolution(uses, mover.inputs[0]);
            is_narrow.then(|| last_axis(order_of(mover)?))??
        }
        (None, Some(back)) => {
            functions.clear();
            let inverse: Vec<usize> =
                (0..back.len()).map(|axis| back.iter().position(|&from| from == axis)).collect::<Option<_>>()?;
            (channels < results && leads_to_convolution(uses, node.outputs[0])).then(|| last_axis(&inverse))??
        }
        (None, None) => return None,
    };
    let weight = Tensor::derived(TensorFunction::Transpose(smallvec![1, 0]), &[matrix]).ok()?;
    let weight = weight.reshape(Shape::from([results, channels, 1, 1])).ok()?;
    Some(Found { to_last, functions, product, back, axis, weight })
}

/// The node that yields a value, if no other node reads it.
fn only_read<'a>(uses: &Uses<'a>, value: ValueId) -> Option<&'a Node> {
    uses.only_reader(value).and_then(|_| uses.producer(value)).map(|(_, node)| node)
}

/// The axis that an order brings behind all others, which stay in order.
fn last_axis(order: &[usize]) -> Option<usize> {
    let (&axis, others) = order.split_last()?;
    (others.is_sorted() && axis + 1 < order.len()).then_some(axis)
}

/// Whether a value is that of a convolution, as it is or in another shape.
fn comes_from_convolution(uses: &Uses, value: ValueId) -> bool {
    uses.producer(value).is_some_and(|(_, node)| match matches!(node.op, Op::Reshape(_) | Op::Unary(_)) {
        true => comes_from_convolution(uses, node.inputs[0]),
        false => matches!(node.op, Op::Conv(_)),
    })
}

/// Whether a convolution alone reads a value, as it is or in another shape.
fn leads_to_convolution(uses: &Uses, value: ValueId) -> bool {
    let Some(reader) = uses.only_reader(value).map(|reader| uses.graph.node(reader)) else { return false };
    match matches!(reader.op, Op::Reshape(_) | Op::Unary(_)) {
        true => leads_to_convolution(uses, reader.outputs[0]),
        false => matches!(reader.op, Op::Conv(_)) && !reader.inputs[1..].contains(&value),
    }
}

/// Rows and columns of the image next to a product: in front of the transposition to it, or behind node `id`.
fn plane_beside(uses: &Uses, to_last: Option<&Node>, id: NodeId) -> Option<[usize; 2]> {
    let graph = uses.graph;
    let image = match to_last {
        Some(mover) => {
            let (_, reshape) = uses.producer(mover.inputs[0])?;
            (graph.ty(mover.inputs[0]), matches!(reshape.op, Op::Reshape(_)).then(|| graph.ty(reshape.inputs[0]))?)
        }
        None => {
            let flat = graph.node(id).outputs[0];
            let reshape = graph.node(uses.only_reader(flat)?);
            (graph.ty(flat), matches!(reshape.op, Op::Reshape(_)).then(|| graph.ty(reshape.outputs[0]))?)
        }
    };
    match (&image.0.shape[..], &image.1.shape[..]) {
        (&[batch, channels, pixels], &[images, planes, rows, columns])
            if [batch, channels, pixels] == [images, planes, rows * columns] =>
        {
            Some([rows, columns])
        }
        _ => None,
    }
}

/// The order of axes of a transposition.
fn order_of(node: &Node) -> Option<&SmallVec<[usize; 6]>> {
    let Op::Transpose(Transpose { order }) = &node.op else { return None };
    Some(order)
}

#[cfg(test)]
mod tests {
    use ir::TensorType;
    use ir::ops::Unary;
    use types::Random;
    use types::pointwise::Unary as Function;

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

    /// Tokens, a product that widens them, a depthwise convolution of their image, an activation, and a product that narrows
    /// them.
    fn feed_forward(channels: usize, wide: usize, results: usize) -> Graph {
        let (mut graph, mut random) = (Graph::new("mixed tokens"), Random::new(5));
        let mut weight = |graph: &mut Graph, name: &str, shape: Shape| {
            graph.add_weight(name, Tensor::from_fn(shape, |_| random.uniform(-1.0, 1.0)))
        };
        let product = || MatMul { epilogue: Epilogue { bias: true, ..Epilogue::default() }, ..MatMul::default() };
        let transposed = || Transpose { order: smallvec![0, 2, 1] };
        let x = graph.add_input("x", DType::F32, Shape::from([2, 15, channels]));
        let w = weight(&mut graph, "w", Shape::from([channels, wide]));
        let b = weight(&mut graph, "b", Shape::from([wide]));
        let y = graph.add1(product().into(), &[x, w, b], Scope::new("widen")).unwrap();
        let y = graph.add1(transposed().into(), &[y], Scope::new("to image")).unwrap();
        let image = Reshape { shape: Shape::from([2, wide, 3, 5]) };
        let y = graph.add1(image.into(), &[y], Scope::new("to image")).unwrap();
        let kernel = weight(&mut graph, "kernel", Shape::from([wide, 1, 3, 3]));
        let depthwise = Conv { groups: wide, ..Conv::square(1, 1) };
        let y = graph.add1(depthwise.into(), &[y, kernel], Scope::new("depthwise")).unwrap();
        let flat = Reshape { shape: Shape::from([2, wide, 15]) };
        let y = graph.add1(flat.into(), &[y], Scope::new("to tokens")).unwrap();
        let y = graph.add1(transposed().into(), &[y], Scope::new("to tokens")).unwrap();
        let y = graph.add1(Unary(Function::Gelu).into(), &[y], Scope::new("gelu")).unwrap();
        let w = weight(&mut graph, "v", Shape::from([wide, results]));
        let b = weight(&mut graph, "c", Shape::from([results]));
        let y = graph.add1(product().into(), &[y, w, b], Scope::new("narrow")).unwrap();
        graph.set_outputs(vec![("y".into(), y)]);
        graph
    }

    #[test]
    fn transpositions_move_to_the_narrow_sides_of_products() {
        for (channels, wide, results, transposed, convolutions) in [
            (4, 9, 5, vec![4, 5], 3),
            (100, 150, 100, vec![100, 100], 3),
            (4, 9, 12, vec![4, 9], 2),
            (9, 4, 3, vec![3, 4], 2),
        ] {
            let graph = feed_forward(channels, wide, results);
            let moved = crate::dce(&match_channel_products(&graph));
            ir::verify(&moved).unwrap();
            let of_kind = |is_kind: fn(&Op) -> bool| moved.nodes().values().filter(move |node| is_kind(&node.op));
            assert_eq!(of_kind(|op| matches!(op, Op::Conv(_))).count(), convolutions);
            let of_transposed = of_kind(|op| matches!(op, Op::Transpose(_)));
            let channels_of = |node: &Node| moved.ty(node.inputs[0]).shape.iter().product::<usize>() / 30;
            let mut found: Vec<usize> = of_transposed.map(channels_of).collect();
            found.sort_unstable();
            assert_eq!(found, transposed, "{channels}, {wide}, {results}");
            let mut random = Random::new(6);
            let x = Tensor::from_fn(Shape::from([2, 15, channels]), |_| random.uniform(-1.0, 1.0));
            let [want, got] = [&graph, &moved].map(|graph| ir::evaluate(graph, std::slice::from_ref(&x)).unwrap());
            let [want, got] = [&want, &got].map(|results| results[0].as_slice::<f32>().unwrap());
            let most = want.iter().fold(0f32, |most, item| most.max(item.abs()));
            assert!(want.iter().zip(got).all(|(want, got)| (want - got).abs() <= 1e-5 * most));
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
