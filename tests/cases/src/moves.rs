//! Operators that move elements and compute little or nothing: reshape, transpose, concat, gather, slice, pad, resize.

use ir::ops::*;
use types::pointwise::Binary;
use types::{DType, Shape};

use crate::{Case, F, case, dims};

/// All cases of this kind.
pub fn all() -> Vec<Case> {
    let mut cases = vec![
        case("reshape", Reshape { shape: Shape::from([6, 4]) }, &[(F, &[2, 3, 4])]),
        case("stop_gradient", StopGradient {}, &[(F, &[2, 3, 4])]),
        case("bit_cast f32", BitCast { to: DType::I32 }, &[(F, &[2, 3])]),
        case("bit_cast i32", BitCast { to: F }, &[(DType::I32, &[2, 3])]),
        case("bit_cast i64", BitCast { to: DType::F64 }, &[(DType::I64, &[5])]),
        case("bit_cast u16", BitCast { to: DType::F16 }, &[(DType::U16, &[3, 2])]),
        case("bit_cast i8", BitCast { to: DType::U8 }, &[(DType::I8, &[7])]),
        case("expand", Expand { shape: Shape::from([2, 3, 4]) }, &[(F, &[3, 1])]),
        case("concat 0", Concat { axis: 0 }, &[(F, &[2, 3]), (F, &[1, 3]), (F, &[2, 3])]),
        case("concat 1", Concat { axis: 1 }, &[(F, &[2, 3]), (F, &[2, 1])]),
        case("concat i64", Concat { axis: 0 }, &[(DType::I64, &[2]), (DType::I64, &[3])]),
        case("gather 0", Gather { axis: 0 }, &[(F, &[3, 4]), (DType::I64, &[2, 2])]),
        case("gather 1", Gather { axis: 1 }, &[(F, &[2, 3, 2]), (DType::I32, &[4])]),
    ];
    for order in [&[0, 1, 2][..], &[2, 1, 0], &[1, 0, 2], &[0, 2, 1], &[2, 0, 1]] {
        for dtype in [F, DType::U8, DType::I64] {
            cases.push(case(
                &format!("transpose {order:?} {dtype}"),
                Transpose { order: dims(order) },
                &[(dtype, &[3, 4, 5])],
            ));
        }
    }
    for (shape, order) in [
        (&[33, 65][..], &[1, 0][..]),
        (&[3, 1, 257], &[2, 1, 0]),
        (&[2, 35, 9, 7], &[0, 2, 3, 1]),
        (&[3, 9, 7, 35], &[0, 3, 1, 2]),
        (&[3, 4, 5, 2, 3], &[0, 3, 1, 4, 2]),
    ] {
        cases.push(case(&format!("transpose {shape:?} {order:?}"), Transpose { order: dims(order) }, &[(F, shape)]));
    }
    for dtype in [DType::U8, DType::F16, DType::I64] {
        for (shape, order) in
            [(&[35, 18, 17][..], &[2, 0, 1][..]), (&[2, 33, 50], &[0, 2, 1]), (&[3, 5, 1, 40], &[3, 1, 0, 2])]
        {
            let op = Transpose { order: dims(order) };
            cases.push(case(&format!("transpose {dtype} {shape:?} {order:?}"), op, &[(dtype, shape)]));
        }
        let types = [(dtype, &[2, 30][..]), (DType::I64, &[5000][..])];
        cases.push(case(&format!("gather single {dtype}"), Gather { axis: 1 }, &types));
    }
    for function in [None, Some(Binary::Add), Some(Binary::Mul), Some(Binary::Max), Some(Binary::Min)] {
        for dtype in [F, DType::F16, DType::I64, DType::U8, DType::I32] {
            for (rows, index, inner) in [(&[7, 33][..], &[5][..], &[5, 33][..]), (&[300], &[3, 70], &[3, 70])] {
                let op = Scatter { function };
                let types = [(dtype, rows), (DType::I64, index), (dtype, inner)];
                cases.push(case(&format!("{op:?} {dtype} {rows:?} {index:?}"), op, &types));
            }
        }
    }
    let types = [(DType::Bool, &[2, 3][..]), (DType::I32, &[2, 1][..]), (DType::Bool, &[2, 1, 3][..])];
    cases.push(case("scatter bool", Scatter { function: None }, &types));
    cases.push(case("scatter one", Scatter { function: None }, &[(F, &[6]), (DType::I32, &[]), (F, &[])]));
    cases.push(case("scatter none", Scatter { function: None }, &[(F, &[6]), (DType::I32, &[0]), (F, &[0])]));
    for width in [9, 2500] {
        let op = Resize {
            shape: Shape::from([1, 2, 7, width + 1]),
            scale: dims(&[1.0, 1.0, 7.0 / 3.0, (width + 1) as f32 / width as f32]),
            mode: ResizeMode::Linear,
            coordinates: Coordinates::HalfPixel,
            antialias: false,
            range: None,
        };
        cases.push(case(&format!("resize rows of {width}"), op, &[(F, &[1, 2, 3, width])]));
    }
    cases.push(case("spread rows", Expand { shape: Shape::from([3, 5, 129]) }, &[(F, &[5, 1])]));
    cases.push(case("join blocks", Concat { axis: 1 }, &[(F, &[3, 65, 7]), (F, &[3, 1, 7]), (F, &[3, 33, 7])]));
    cases.push(case("gather many", Gather { axis: 1 }, &[(F, &[3, 5, 67]), (DType::I64, &[301])]));
    cases.push(case(
        "pad images",
        Pad { mode: PadMode::Reflect, pad: dims(&[[0, 0], [0, 0], [3, 2], [1, 4]]) },
        &[(F, &[3, 5, 9, 11])],
    ));
    for (shape, axis, start, count) in
        [(&[3, 5, 9, 11][..], 2, 4, 3), (&[2, 20, 6, 7], 2, 0, 6), (&[40], 0, 31, 9), (&[3, 4, 5], 1, 1, 2)]
    {
        let mut part = shape.to_vec();
        part[axis] = count;
        let op = Insert { axis, start };
        cases.push(case(&format!("insert {count} of {shape:?} along {axis}"), op, &[(F, shape), (F, &part)]));
    }
    for (start, step, count) in
        [([0, 1], [1, 1], [3, 2]), ([2, 4], [-1, -2], [3, 3]), ([1, 0], [1, 1], [1, 5]), ([0, 0], [2, 2], [2, 3])]
    {
        let op = Slice { start: dims(&start), step: dims(&step), count: Shape::from(count) };
        cases.push(case(&format!("{op:?}"), op, &[(F, &[3, 5])]));
    }
    for mode in [PadMode::Constant(1.5), PadMode::Edge, PadMode::Reflect, PadMode::Wrap] {
        for pad in [[[0, 0], [1, 2]], [[2, 1], [0, 3]], [[-1, 0], [1, -2]]] {
            cases.push(case(&format!("pad {mode:?} {pad:?}"), Pad { mode, pad: dims(&pad) }, &[(F, &[3, 4])]));
        }
    }
    for coordinates in
        [Coordinates::HalfPixel, Coordinates::Asymmetric, Coordinates::AlignCorners, Coordinates::PytorchHalfPixel]
    {
        for mode in [
            ResizeMode::Nearest(Rounding::Floor),
            ResizeMode::Linear,
            ResizeMode::Cubic { a: -0.75, exclude_outside: false },
        ] {
            let name = format!("resize {mode:?} {coordinates:?}");
            let op = Resize {
                shape: Shape::from([1, 2, 7, 6]),
                scale: dims(&[1.0, 1.0, 1.75, 2.0]),
                mode,
                coordinates: coordinates.clone(),
                antialias: false,
                range: None,
            };
            cases.push(case(&name, op, &[(F, &[1, 2, 4, 3])]));
        }
    }
    for mode in [ResizeMode::Linear, ResizeMode::Cubic { a: -0.5, exclude_outside: true }] {
        let smooth = Resize {
            shape: Shape::from([1, 2, 3, 4]),
            scale: dims(&[1.0, 1.0, 0.33, 0.5]),
            mode,
            coordinates: Coordinates::HalfPixel,
            antialias: true,
            range: None,
        };
        cases.push(case(&format!("resize {mode:?} antialias"), smooth, &[(F, &[1, 2, 10, 8])]));
        let parts = [[0.0, 1.0], [0.0, 1.0], [0.4, 1.2], [0.0, 1.0]].into_iter().collect();
        let region = Resize {
            shape: Shape::from([1, 2, 3, 3]),
            scale: dims(&[1.0, 1.0, 0.75, 1.0]),
            mode,
            coordinates: Coordinates::Region(parts),
            antialias: false,
            range: None,
        };
        cases.push(case(&format!("resize {mode:?} region"), region, &[(F, &[1, 2, 4, 3])]));
    }
    cases
}
