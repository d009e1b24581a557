//! Operators that reduce many elements to one: pools, reductions, arg-max and arg-min, softmax, normalization over
//! channels.

use ir::ops::*;
use types::DType;

use crate::{Case, F, case, dims};

/// All cases of this kind.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding] {
        for (kernel, stride, pad, ceil) in
            [(2, 2, 0, false), (3, 2, 1, false), (3, 2, 0, true), (3, 1, 1, true), (5, 3, 2, true)]
        {
            let op = Pool { ceil, ..Pool::square(kind, kernel, stride, pad) };
            cases.push(case(&format!("{op:?}"), op, &[(F, &[2, 3, 10, 13])]));
        }
        cases.push(case(&format!("global {kind:?}"), Pool::square(kind, 7, 1, 0), &[(F, &[1, 5, 7, 7])]));
    }
    for kind in [
        ReduceKind::Sum,
        ReduceKind::Mean,
        ReduceKind::Max,
        ReduceKind::Min,
        ReduceKind::Prod,
        ReduceKind::SumSquare,
        ReduceKind::L1,
        ReduceKind::L2,
        ReduceKind::LogSumExp,
    ] {
        for axes in [&[0][..], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
            cases.push(case(
                &format!("{kind:?} {axes:?}"),
                Reduce { kind, axes: dims(axes), keep: true },
                &[(F, &[3, 4, 5])],
            ));
        }
    }
    for (shape, axes) in [
        (&[3, 300, 5][..], &[1][..]),
        (&[5, 2, 300], &[0, 2]),
        (&[2, 7, 3, 260], &[0, 2]),
        (&[300, 3], &[1]),
        (&[3, 1, 41], &[1, 2]),
    ] {
        for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::LogSumExp] {
            let op = Reduce { kind, axes: dims(axes), keep: false };
            cases.push(case(&format!("{kind:?} {axes:?} of {shape:?}"), op, &[(F, shape)]));
        }
        for dtype in [DType::I64, DType::I32] {
            let op = Reduce { kind: ReduceKind::Sum, axes: dims(axes), keep: true };
            cases.push(case(&format!("sum {axes:?} of {dtype} {shape:?}"), op, &[(dtype, shape)]));
        }
    }
    for kind in [PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding] {
        for (kernel, stride, pad, shape) in
            [(2, 1, 0, [1, 3, 9, 40]), (3, 3, 1, [2, 1, 50, 70]), (9, 1, 4, [1, 2, 5, 5]), (33, 1, 0, [1, 2, 33, 33])]
        {
            let op = Pool::square(kind, kernel, stride, pad);
            cases.push(case(&format!("{kind:?} {kernel} by {stride} of {shape:?}"), op, &[(F, &shape)]));
        }
        let holes = Pool { dilation: dims(&[2, 3]), ..Pool::square(kind, 3, 2, 1) };
        cases.push(case(&format!("{kind:?} with holes"), holes, &[(F, &[1, 3, 17, 19])]));
    }
    for (rows, axis) in [(37, 2), (16, 10), (5, 32), (3, 33), (2, 400)] {
        for log in [false, true] {
            let name = format!("softmax of {rows} rows of {axis}, log {log}");
            cases.push(case(&name, Softmax { axis: 1, log }, &[(F, &[rows, axis])]));
        }
        let op = ArgExtreme { axis: 1, keep: false, max: true, last: true };
        cases.push(case(&format!("arg max of {rows} rows of {axis}"), op, &[(F, &[rows, axis])]));
    }
    // Bytes have equals, whose order is that of their indices.
    for (shape, axis, k) in
        [(&[3, 40][..], 1, 5), (&[4, 37, 3], 1, 37), (&[29, 2], 0, 1), (&[2, 600], 1, 100), (&[5, 3], 1, 0)]
    {
        for (dtype, largest) in [(F, true), (F, false), (DType::U8, true), (DType::I64, false), (DType::I32, true)] {
            let name = format!("top {k} of {shape:?} along {axis}, {dtype}, largest {largest}");
            cases.push(case(&name, TopK { axis, k, largest }, &[(dtype, shape)]));
        }
    }
    // Rows beyond those of a task, columns beyond those of one, a single sum, no elements.
    for (shape, axis) in [
        (&[3, 40][..], 1),
        (&[19, 33], 1),
        (&[19, 33], 0),
        (&[2, 5, 700], 1),
        (&[4, 3, 6], 0),
        (&[1, 4, 1], 2),
        (&[3, 0, 2], 1),
    ] {
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            for dtype in [F, DType::F64, DType::I32, DType::I64] {
                let name = format!("sums of {shape:?} along {axis}, {dtype}, exclusive {exclusive}, reverse {reverse}");
                cases.push(case(&name, CumulativeSum { axis, exclusive, reverse }, &[(dtype, shape)]));
            }
        }
    }
    cases.push(case(
        "sum i64",
        Reduce { kind: ReduceKind::Sum, axes: dims(&[1]), keep: false },
        &[(DType::I64, &[3, 4])],
    ));
    for axis in 0..3 {
        cases.push(case(&format!("softmax {axis}"), Softmax { axis, log: false }, &[(F, &[3, 4, 50])]));
        cases.push(case(&format!("log softmax {axis}"), Softmax { axis, log: true }, &[(F, &[3, 4, 50])]));
        for (max, last) in [(true, false), (false, true)] {
            cases.push(case(
                &format!("arg {axis} {max}"),
                ArgExtreme { axis, keep: true, max, last },
                &[(F, &[3, 4, 5])],
            ));
        }
    }
    for size in [1, 2, 3, 5] {
        cases.push(case(
            &format!("lrn {size}"),
            Lrn { size, alpha: 0.1, beta: 0.75, bias: 1.0 },
            &[(F, &[2, 7, 3, 3])],
        ));
    }
    cases.extend(pools());
    cases.extend(rows());
    cases.push(case("lrn beta", Lrn { size: 3, alpha: 0.1, beta: 0.6, bias: 2.0 }, &[(F, &[1, 5, 2, 3])]));
    cases
}

/// Pools in ceil mode over odd extents: the last window extends past the input, or would start past it. Also global and
/// dilated pools.
fn pools() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding] {
        for (x, kernel, stride, pad) in [
            ([1, 5, 9, 11], [3, 3], [2, 2], 1),
            ([3, 4, 7, 6], [2, 2], [3, 3], 0),
            ([3, 3, 8, 13], [3, 2], [2, 3], 1),
            ([1, 2, 5, 5], [2, 2], [4, 4], 1),
            ([1, 3, 33, 31], [2, 2], [2, 2], 0),
        ] {
            let (kernels, strides, pad_of) = (dims(&kernel), dims(&stride), dims(&[[pad; 2]; 2]));
            let dilation = dims(&[1, 1]);
            let op = Pool { kind, kernel: kernels, stride: strides, dilation, pad: pad_of, ceil: true };
            cases.push(case(
                &format!("ceil {kind:?} {x:?} by {kernel:?}, stride {stride:?}, pad {pad}"),
                op,
                &[(F, &x)],
            ));
        }
        for extents in [[15, 17], [17, 17]] {
            let kernel = Pool { kernel: dims(&extents), ..Pool::square(kind, 1, 1, 0) };
            cases.push(case(&format!("global {kind:?} {extents:?}"), kernel, &[(F, &[3, 5, extents[0], extents[1]])]));
        }
    }
    let wide = Pool { dilation: dims(&[2, 3]), ceil: true, ..Pool::square(PoolKind::Max, 3, 2, 1) };
    cases.push(case("wide maximum", wide, &[(F, &[3, 3, 13, 17])]));
    cases
}

/// Softmax and reductions over rows of one element up to many times the threads of a block.
fn rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for (shape, axis) in
        [(&[5, 1][..], 1), (&[2, 255], 1), (&[3, 257], 1), (&[3, 1025], 1), (&[1, 5003], 1), (&[2, 1031, 3], 1)]
    {
        let log = shape.len() == 3 || shape[1] % 2 == 1 && shape[0] == 3;
        cases.push(case(&format!("softmax of rows {shape:?} {log}"), Softmax { axis, log }, &[(F, shape)]));
    }
    let kinds = [
        ReduceKind::Sum,
        ReduceKind::Mean,
        ReduceKind::Max,
        ReduceKind::Min,
        ReduceKind::SumSquare,
        ReduceKind::L2,
        ReduceKind::LogSumExp,
    ];
    for (ix, (shape, axes)) in [
        (&[300, 130][..], &[1][..]),
        (&[130, 300], &[0]),
        (&[3, 129, 5], &[1]),
        (&[7, 3, 37, 9], &[0, 2]),
        (&[2, 127], &[1]),
        (&[2, 128], &[1]),
    ]
    .into_iter()
    .enumerate()
    {
        // Every function with some extents, every extent with some functions.
        for kind in [0, 2, 4].map(|step| kinds[(ix + step) % kinds.len()]) {
            let op = Reduce { kind, axes: dims(axes), keep: ix % 2 == 0 };
            cases.push(case(&format!("{kind:?} of rows {shape:?} {axes:?}"), op, &[(F, shape)]));
        }
    }
    for (kind, shape, axes) in [
        (ReduceKind::Mean, &[65_537][..], &[0][..]),
        (ReduceKind::Max, &[3, 65_537], &[1]),
        (ReduceKind::Mean, &[66_001, 3], &[0]),
        (ReduceKind::L2, &[2, 66_001], &[1]),
        (ReduceKind::LogSumExp, &[260, 257], &[0, 1]),
    ] {
        let op = Reduce { kind, axes: dims(axes), keep: true };
        cases.push(case(&format!("{kind:?} of many {shape:?} {axes:?}"), op, &[(F, shape)]));
    }
    for (shape, axis, max) in [(&[3, 257][..], 1, true), (&[1031, 3], 0, false), (&[2, 66_001], 1, true)] {
        let op = ArgExtreme { axis, keep: false, max, last: !max };
        cases.push(case(&format!("arg of rows {shape:?} {max}"), op, &[(F, shape)]));
    }
    cases
}
