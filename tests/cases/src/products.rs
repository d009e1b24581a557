//! Matrix products.

use ir::ops::*;
use ir::{Graph, Op, ValueId};
use types::{DType, Scope, Shape, Tensor, pointwise};

use crate::{Case, F, case, dims, with_weights};

/// All cases of this kind.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = MatMul::default();
    for (a, b) in [
        (&[1, 5][..], &[5, 70][..]),
        (&[13, 40], &[40, 33]),
        (&[2, 3, 4], &[4, 5]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[2, 1, 3, 4], &[3, 4, 5]),
        (&[3, 4], &[2, 4, 5]),
        (&[1, 0], &[0, 3]),
        (&[0, 2], &[2, 3]),
        (&[0, 8], &[8, 16]),
    ] {
        cases.push(case(&format!("matmul {a:?} {b:?}"), plain.clone(), &[(F, a), (F, b)]));
    }
    for m in [1, 12, 25] {
        let epilogue = Epilogue {
            bias: true,
            residual: false,
            activation: dims(&[pointwise::Unary::Relu]),
            ..Epilogue::default()
        };
        cases.push(with_weights(
            &format!("linear {m}"),
            MatMul { epilogue, ..MatMul::default() },
            &[m, 100],
            &[&[100, 65], &[65]],
        ));
    }
    cases.push(with_weights("one matrix of three dimensions", plain, &[2, 7, 33], &[&[1, 33, 50]]));
    cases.extend(tiled());
    cases.extend(turned());
    cases.extend(copied());
    cases.extend(large());
    cases
}

/// Products and convolutions whose operands require every copy width, because of their extents or their alignment.
pub fn copied() -> Vec<Case> {
    let known = |graph: &mut Graph, shape: &[usize]| {
        let item = |ix: usize| ((ix * 29) % 31) as f32 * 0.06 - 0.9;
        graph.add_weight("weight", Tensor::from_fn(Shape::from(shape), item))
    };
    let mut cases = Vec::new();
    for [rows, terms, columns] in [[70, 104, 72], [65, 36, 68], [33, 66, 130], [9, 33, 65]] {
        // The whole input, and a slice that starts at its second element and is not aligned to a vector.
        for start in [0, 1] {
            let mut graph = Graph::new("copied");
            let add = |graph: &mut Graph, op: Op, inputs: &[ValueId], name: &str| {
                graph.add1(op, inputs, Scope::new(name)).expect("it is accepted")
            };
            let size = rows * terms;
            let x = graph.add_input("x", DType::F32, Shape::from([start + size]));
            let part = match start {
                0 => x,
                _ => {
                    let slice = Slice::range(&Shape::from([start + size]), 0, start, size);
                    add(&mut graph, slice.into(), &[x], "part")
                }
            };
            let shape = Shape::from([rows, terms]);
            let left = add(&mut graph, Reshape { shape }.into(), &[part], "left");
            let right = known(&mut graph, &[terms, columns]);
            let y = add(&mut graph, MatMul::default().into(), &[left, right], "y");
            graph.set_outputs(vec![("y".into(), y)]);
            cases.push(Case { name: format!("copied matmul {terms} {columns} from {start}"), graph });
        }
    }
    for ([ins, outs], [height, width], groups) in
        [([40, 24], [8, 9], 1), ([36, 66], [6, 6], 1), ([20, 16], [5, 6], 2), ([33, 9], [5, 5], 1)]
    {
        let mut graph = Graph::new("copied");
        let x = graph.add_input("x", DType::F32, Shape::from([2, ins, height, width]));
        let weight = known(&mut graph, &[outs, ins / groups, 1, 1]);
        let conv = Conv { groups, ..Conv::square(1, 0) };
        let y = graph.add1(conv.into(), &[x, weight], Scope::new("y")).expect("it is accepted");
        graph.set_outputs(vec![("y".into(), y)]);
        cases.push(Case { name: format!("copied conv {ins} {height}x{width}"), graph });
    }
    cases
}

/// A product and a convolution that use large tiles, with extents that are no multiples of a tile's.
pub fn large() -> [Case; 2] {
    let graph = |op: Op, left: &[usize], right: &[usize]| {
        let mut graph = Graph::new("large");
        let x = graph.add_input("x", DType::F32, Shape::from(left));
        let item = |ix: usize| ((ix * 29) % 31) as f32 * 0.06 - 0.9;
        let weight = graph.add_weight("weight", Tensor::from_fn(Shape::from(right), item));
        let y = graph.add1(op, &[x, weight], Scope::new("large")).expect("it is accepted");
        graph.set_outputs(vec![("y".into(), y)]);
        graph
    };
    [
        Case { name: "large matmul".into(), graph: graph(MatMul::default().into(), &[1030, 37], &[37, 1029]) },
        Case { name: "large conv".into(), graph: graph(Conv::square(1, 1).into(), &[1, 5, 63, 66], &[261, 5, 3, 3]) },
    ]
}

/// Products whose extents are around tile and stage sizes, with inner dimensions from less than one stage to more than
/// three; and batched products, also with one operand broadcast along the batch.
fn tiled() -> Vec<Case> {
    let mut cases = Vec::new();
    for [m, k, n] in [
        [63, 15, 65],
        [64, 16, 64],
        [65, 17, 63],
        [128, 64, 128],
        [129, 33, 127],
        [130, 100, 2],
        [1, 49, 257],
        [257, 1, 1],
        [200, 7, 3],
        [3, 130, 66],
        [66, 300, 9],
    ] {
        cases.push(case(&format!("tiled matmul {m}x{k}x{n}"), MatMul::default(), &[(F, &[m, k]), (F, &[k, n])]));
    }
    for (a, b) in [
        (&[3, 65, 20][..], &[3, 20, 33][..]),
        (&[2, 1, 9, 40], &[3, 40, 17]),
        (&[1, 70, 9], &[3, 9, 66]),
        (&[70, 9], &[3, 9, 66]),
        (&[4, 1, 5, 6], &[4, 3, 6, 7]),
        (&[3, 2, 1, 35], &[1, 2, 35, 68]),
    ] {
        cases.push(case(&format!("tiled matmul {a:?} {b:?}"), MatMul::default(), &[(F, a), (F, b)]));
    }
    let activation = dims(&[pointwise::Unary::Gelu]);
    let product = MatMul {
        epilogue: Epilogue { bias: true, residual: true, activation, ..Epilogue::default() },
        ..MatMul::default()
    };
    cases.push(with_weights("tiled linear with a residual", product, &[65, 40], &[&[40, 70], &[70], &[65, 70]]));
    cases
}

/// Products of transposed operands.
fn turned() -> Vec<Case> {
    let mut cases = Vec::new();
    for (batch, [left, right]) in
        [(&[][..], [true, false]), (&[], [false, true]), (&[], [true, true]), (&[3], [true, true])]
    {
        let [m, k, n] = [67, 34, 71];
        let name = format!("turned matmul {batch:?} {left} {right}");
        let mut graph = Graph::new(&name);
        let mut operand = |name: &str, lines: [usize; 2], is_turned: bool| {
            let rank = batch.len() + 2;
            let [a, b] = if is_turned { [lines[1], lines[0]] } else { lines };
            let x = graph.add_input(name, F, Shape::from(&[batch, &[a, b]].concat()[..]));
            if !is_turned {
                return x;
            }
            let order: Vec<usize> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
            let op = Transpose { order: dims(&order) };
            graph.add1(op.into(), &[x], Scope::new("turned").child(name)).expect("it is accepted")
        };
        let operands = [operand("a", [m, k], left), operand("b", [k, n], right)];
        let y = graph.add1(MatMul::default().into(), &operands, Scope::new("y")).expect("it is accepted");
        graph.set_outputs(vec![("y".into(), y)]);
        cases.push(Case { name, graph });
    }
    cases
}
