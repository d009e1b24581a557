//! Transpositions, interpolation and searches against their definitions, on every ISA.

use prestow_cpu::{
    ArgExtreme, AxisTaps, Copy, Fill, Gather, GatherTable, Kernel, Reduce, ReduceFn, Remap, Resize, StorageType,
    SwapAxes, TopK,
};
use types::{DType, Random};

use super::common::{assert_close, bits, pools, run, run_bytes};

#[test]
fn transpositions_move_every_element() {
    let mut random = Random::new(41);
    for element_size in [1, 2, 4, 8] {
        for [matrices, rows, columns] in [
            [1, 1, 9],
            [3, 38, 10],
            [2, 7, 33],
            [1, 16, 16],
            [2, 17, 16],
            [1, 48, 400],
            [5, 9, 3],
            [1, 40, 25],
            [2, 8, 8],
        ] {
            let elements = matrices * rows * columns;
            let x: Vec<u8> = (0..elements * element_size).map(|_| random.bits() as u8).collect();
            let kernel = Copy {
                element_size,
                shape: vec![matrices, rows, columns],
                in_elements: elements,
                in_offset: 0,
                in_strides: vec![(rows * columns) as isize, 1, rows as isize],
                out_elements: elements,
                out_offset: 0,
                out_strides: vec![rows * columns, columns, 1],
            };
            let mut want = Vec::with_capacity(x.len());
            for (matrix, row) in (0..matrices).flat_map(|matrix| (0..rows).map(move |row| (matrix, row))) {
                for column in 0..columns {
                    let at = (matrix * rows * columns + column * rows + row) * element_size;
                    want.extend_from_slice(&x[at..at + element_size]);
                }
            }
            for [one, three] in pools([1, 3]) {
                for pool in [&one, &three] {
                    let kernel = Kernel::from(kernel.clone());
                    let got = run_bytes(&kernel, std::slice::from_ref(&x), None, f32::NAN, pool).swap_remove(0);
                    assert!(got == want, "{} of {element_size} bytes, {matrices} x {rows} x {columns}", pool.isa());
                }
            }
        }
    }
}

#[test]
fn three_axes_change_places() {
    let mut random = Random::new(46);
    for element_size in [1, 2, 4, 8] {
        for shape in [[3, 5, 20], [16, 3, 16], [17, 2, 33], [40, 6, 9], [5, 7, 8], [70, 1, 50]] {
            let [a, b, c] = shape;
            let x: Vec<u8> = (0..a * b * c * element_size).map(|_| random.bits() as u8).collect();
            let strides = [b * c, c, 1];
            for order in [[2, 1, 0], [2, 0, 1], [1, 2, 0], [0, 2, 1], [1, 0, 2]] {
                let [i, j, k] = order.map(|axis| shape[axis]);
                let in_strides = order.map(|axis| strides[axis] as isize);
                let mut want = Vec::with_capacity(x.len());
                for (i, j) in (0..i).flat_map(|i| (0..j).map(move |j| (i, j))) {
                    for k in 0..k {
                        let along = [i, j, k].into_iter().zip(in_strides).map(|(at, stride)| at * stride as usize);
                        want.extend_from_slice(&x[along.sum::<usize>() * element_size..][..element_size]);
                    }
                }
                let kernel = Kernel::from(Copy {
                    element_size,
                    shape: vec![i, j, k],
                    in_elements: a * b * c,
                    in_offset: 0,
                    in_strides: in_strides.to_vec(),
                    out_elements: a * b * c,
                    out_offset: 0,
                    out_strides: vec![j * k, k, 1],
                });
                for pool in pools([1, 3]).iter().flatten() {
                    let got = run_bytes(&kernel, std::slice::from_ref(&x), None, f32::NAN, pool).swap_remove(0);
                    assert!(got == want, "{} of {element_size} bytes, {shape:?} by {order:?}", pool.isa());
                }
            }
        }
    }
}

#[test]
fn runs_and_columns_are_copied_and_filled() {
    let mut random = Random::new(47);
    // Runs of more bytes than a piece, next to cells that stay; a column for each row.
    for (rows, run, offset) in [(1, 48_000, 2), (3, 700, 1), (2, 3, 5), (1, 300_000, 3)] {
        let x: Vec<u8> = (0..4 * rows * run).map(|_| random.bits() as u8).collect();
        let out_elements = rows * (run + offset);
        let copy = |in_strides: [isize; 2], in_elements: usize| {
            Kernel::from(Copy {
                element_size: 4,
                shape: vec![rows, run],
                in_elements,
                in_offset: 0,
                in_strides: in_strides.to_vec(),
                out_elements,
                out_offset: offset,
                out_strides: vec![run + offset, 1],
            })
        };
        for pool in pools([1, 3]).iter().flatten() {
            let got = run_bytes(&copy([run as isize, 1], rows * run), std::slice::from_ref(&x), None, 7.0, pool)
                .swap_remove(0);
            for (row, cells) in got.chunks_exact(4 * (run + offset)).enumerate() {
                assert_eq!(cells[..4 * offset], 7.0f32.to_ne_bytes().repeat(offset));
                assert!(cells[4 * offset..] == x[4 * row * run..][..4 * run], "{rows} rows of {run}");
            }
            let column = x[..4 * rows].to_vec();
            let got = run_bytes(&copy([1, 0], rows), std::slice::from_ref(&column), None, 7.0, pool).swap_remove(0);
            for (row, cells) in got.chunks_exact(4 * (run + offset)).enumerate() {
                assert!(cells[4 * offset..] == column[4 * row..][..4].repeat(run), "{rows} columns of {run}");
            }
            for (element_size, pattern) in [(2, [1, 2, 0, 0, 0, 0, 0, 0]), (4, [5; 8]), (8, [1, 2, 3, 4, 5, 6, 7, 8])] {
                let kernel = Kernel::from(Fill { elements: run, element_size, pattern });
                let got = run_bytes(&kernel, &[], None, 7.0, pool).swap_remove(0);
                assert!(got == pattern[..element_size].repeat(run), "{element_size}");
            }
        }
    }
}

#[test]
fn tables_of_axes_select_elements() {
    let mut random = Random::new(48);
    // Planes that are gathered as wholes, rows of planes too large for it, and columns that are neighbors.
    for (shape, outputs) in [
        ([40, 3, 7, 5], [40, 3, 9, 11]),
        ([2, 1, 40, 60], [2, 1, 33, 64]),
        ([1, 5, 6, 90], [2, 5, 6, 93]),
        ([3, 2, 4, 4], [3, 2, 2, 2]),
    ] {
        for element_size in [1, 2, 4, 8] {
            let mut table = |axis: usize| -> Vec<u32> {
                let (extent, outputs): (usize, usize) = (shape[axis], outputs[axis]);
                match extent == outputs {
                    true => (0..extent as u32).collect(),
                    false if extent == 90 => (0..outputs as u32).map(|at| at.saturating_sub(1).min(89)).collect(),
                    false => (0..outputs).map(|_| random.below(extent as u64) as u32).collect(),
                }
            };
            let tables: Vec<Vec<u32>> = (0..4).map(&mut table).collect();
            let elements: usize = shape.iter().product();
            let x: Vec<u8> = (0..elements * element_size).map(|at| (at * 131 % 251) as u8).collect();
            let mut want = Vec::new();
            for number in 0..outputs.iter().product() {
                let (mut rest, mut at, mut stride): (usize, usize, usize) = (number, 0, 1);
                for (table, &extent) in tables.iter().zip(&shape).rev() {
                    at += table[rest % table.len()] as usize * stride;
                    (rest, stride) = (rest / table.len(), stride * extent);
                }
                want.extend_from_slice(&x[at * element_size..][..element_size]);
            }
            let kernel = Kernel::from(Remap { element_size, shape: shape.to_vec(), tables });
            for pool in pools([1, 3]).iter().flatten() {
                let got = run_bytes(&kernel, std::slice::from_ref(&x), None, f32::NAN, pool).swap_remove(0);
                assert!(got == want, "{} of {element_size} bytes, {shape:?}", pool.isa());
            }
        }
    }
}

#[test]
fn the_first_elements_are_those_of_a_sorted_axis() {
    let mut random = Random::new(49);
    for (outer, axis, inner, k) in [
        (3, 40, 1, 5),
        (2, 300, 1, 1),
        (2, 33, 20, 4),
        (3, 39, 5, 1),
        (1, 70, 33, 70),
        (2, 500, 2, 300),
        (2, 3000, 1, 2500),
        (1, 2300, 2, 2200),
        (2, 3, 3, 0),
        (2, 3, 1, 0),
    ] {
        for (dtype, largest) in [
            (DType::F32, true),
            (DType::F32, false),
            (DType::U8, true),
            (DType::I64, false),
            (DType::I32, true),
            (DType::U32, false),
            (DType::F16, true),
        ] {
            let size = dtype.size().0 as usize;
            // Numbers with equals, both signs, both zeros, and NaN.
            let numbers: Vec<f64> = (0..outer * axis * inner)
                .map(|_| match (random.below(400), dtype) {
                    (0, _) => f64::NAN,
                    (1, _) => -0.0,
                    (_, DType::U32) => (u64::from(u32::MAX) - random.below(500)) as f64,
                    (_, DType::U8) => random.below(200) as f64,
                    _ => random.below(500) as f64 - 250.0,
                })
                .collect();
            let bytes_of = |number: f64| -> Vec<u8> {
                match dtype {
                    DType::F32 => (number as f32).to_le_bytes().to_vec(),
                    DType::F16 => types::f16::from_f64(number).to_le_bytes().to_vec(),
                    DType::U8 => (number as u8).to_le_bytes().to_vec(),
                    DType::U32 => (number as u32).to_le_bytes().to_vec(),
                    DType::I32 => (number as i32).to_le_bytes().to_vec(),
                    _ => (number as i64).to_le_bytes().to_vec(),
                }
            };
            let is_float = matches!(dtype, DType::F32 | DType::F16);
            let held = |number: f64| if number.is_nan() && !is_float { 0.0 } else { number };
            let x: Vec<u8> = numbers.iter().flat_map(|&number| bytes_of(number)).collect();
            let (mut values, mut indices) = (vec![0; outer * k * inner * size], vec![0i64; outer * k * inner]);
            for (place, lane) in (0..outer).flat_map(|place| (0..inner).map(move |lane| (place, lane))) {
                let item = |row: usize| held(numbers[(place * axis + row) * inner + lane]);
                let mut order: Vec<usize> = (0..axis).collect();
                let larger = |a: f64, b: f64| match (a.is_nan(), b.is_nan()) {
                    (false, false) => b.partial_cmp(&a).expect("both are numbers"),
                    (a, b) => b.cmp(&a),
                };
                // A stable sort keeps the order of equals.
                order.sort_by(|&a, &b| if largest { larger(item(a), item(b)) } else { larger(item(b), item(a)) });
                for (at, &row) in order[..k].iter().enumerate() {
                    let cell = (place * k + at) * inner + lane;
                    indices[cell] = row as i64;
                    values[cell * size..][..size]
                        .copy_from_slice(&x[((place * axis + row) * inner + lane) * size..][..size]);
                }
            }
            let kernel = Kernel::from(TopK { outer, axis, inner, k, largest, dtype });
            for pool in pools([1, 3]).iter().flatten() {
                let got = run_bytes(&kernel, std::slice::from_ref(&x), None, 7.0, pool);
                assert!(got[0] == values, "{} {kernel:?}", pool.isa());
                let found: Vec<i64> =
                    got[1].as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
                assert_eq!(found, indices, "{} {kernel:?}", pool.isa());
            }
        }
    }
}

#[test]
fn extremes_are_those_of_their_windows() {
    let mut random = Random::new(42);
    for (shape, reduced) in [
        (vec![40, 5], vec![false, true]),
        (vec![9, 27], vec![false, true]),
        (vec![3, 300], vec![false, true]),
        (vec![4, 2, 6, 5, 14], vec![true, false, true, true, false]),
        (vec![7, 70], vec![true, false]),
        (vec![3, 5, 17], vec![false, true, false]),
        // Few outputs, whose elements are reduced in parts; few rows of an output.
        (vec![40_000], vec![true]),
        (vec![300, 200], vec![true, false]),
        (vec![3, 40, 500], vec![true, false, true]),
        (vec![5, 2, 9000], vec![true, false, true]),
        (vec![20, 3, 2, 63], vec![true, true, false, true]),
        (vec![700, 2, 37], vec![true, false, true]),
    ] {
        let elements: usize = shape.iter().product();
        let mut x: Vec<f32> = (0..elements).map(|_| random.uniform(-9.0, 9.0)).collect();
        x[elements / 2] = f32::NAN;
        let functions = [ReduceFn::Sum, ReduceFn::L1, ReduceFn::L2, ReduceFn::SumSquare, ReduceFn::LogSumExp];
        for function in [ReduceFn::Max, ReduceFn::Min, ReduceFn::Mean, ReduceFn::Prod].into_iter().chain(functions) {
            let kernel = Reduce { function, dtype: DType::F32, shape: shape.clone(), reduced: reduced.clone() };
            // The output of each element, by its index along the axes that stay.
            let output = |mut at: usize| {
                let (mut number, mut stride) = (0, 1);
                for (&extent, &gone) in shape.iter().zip(&reduced).rev() {
                    if !gone {
                        number += at % extent * stride;
                        stride *= extent;
                    }
                    at /= extent;
                }
                number
            };
            let outputs = shape.iter().zip(&reduced).filter(|(_, gone)| !**gone).map(|(extent, _)| extent).product();
            let mut windows: Vec<Vec<f64>> = vec![Vec::new(); outputs];
            x.iter().enumerate().for_each(|(at, &item)| windows[output(at)].push(item.into()));
            let want: Vec<f64> = windows
                .iter()
                .map(|window| match function {
                    _ if window.iter().any(|item| item.is_nan()) => f64::NAN,
                    ReduceFn::Max => window.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    ReduceFn::Min => window.iter().copied().fold(f64::INFINITY, f64::min),
                    ReduceFn::Sum => window.iter().sum(),
                    ReduceFn::Mean => window.iter().sum::<f64>() / window.len() as f64,
                    ReduceFn::Prod => window.iter().product(),
                    ReduceFn::SumSquare => window.iter().map(|item| item * item).sum(),
                    ReduceFn::L2 => window.iter().map(|item| item * item).sum::<f64>().sqrt(),
                    ReduceFn::L1 => window.iter().map(|item| item.abs()).sum(),
                    _ => window.iter().map(|item| item.exp()).sum::<f64>().ln(),
                })
                .collect();
            // Products of many numbers leave the range of `f32`.
            let want: Vec<f64> =
                want.iter().map(|&want| if want.abs() < 1e38 { want } else { f64::from(want as f32) }).collect();
            for [one, three] in pools([1, 3]) {
                let [got, other] = [&one, &three].map(|pool| run(&kernel.clone().into(), &[&x], pool));
                assert_eq!(bits(&got), bits(&other));
                assert_close(&got, &want, |ix| 100.0 + want[ix].abs(), 1e-6, &format!("{} {kernel:?}", one.isa()));
            }
        }
    }
}

#[test]
fn short_rows_and_columns_of_integers_are_reduced() {
    let mut random = Random::new(45);
    for (shape, reduced) in [
        ([300, 5], [false, true]),
        ([1, 64], [false, true]),
        ([70, 33], [false, true]),
        ([500, 3], [true, false]),
        ([9, 60], [true, false]),
    ] {
        let x: Vec<i64> = (0..shape[0] * shape[1]).map(|_| random.below(1000) as i64 - 500).collect();
        for function in [ReduceFn::Max, ReduceFn::Min, ReduceFn::Sum] {
            let kernel = Reduce { function, dtype: DType::I64, shape: shape.to_vec(), reduced: reduced.to_vec() };
            let [outputs, window] = if reduced[0] { [shape[1], shape[0]] } else { shape };
            let item =
                |output: usize, at: usize| x[if reduced[0] { at * outputs + output } else { output * window + at }];
            let items = |output: usize| (0..window).map(move |at| item(output, at));
            let want: Vec<i64> = (0..outputs)
                .map(|output| match function {
                    ReduceFn::Max => items(output).max().expect("a window has elements"),
                    ReduceFn::Min => items(output).min().expect("a window has elements"),
                    _ => items(output).sum(),
                })
                .collect();
            let bytes = |items: &[i64]| -> Vec<u8> { items.iter().flat_map(|item| item.to_le_bytes()).collect() };
            for pool in pools([1, 3]).iter().flatten() {
                let got = run_bytes(&kernel.clone().into(), &[bytes(&x)], None, f32::NAN, pool).swap_remove(0);
                assert_eq!(got, bytes(&want), "{} {kernel:?}", pool.isa());
            }
        }
    }
}

#[test]
fn columns_of_several_tables_are_gathered() {
    let mut random = Random::new(46);
    for (outer, axis, indices, wide) in
        [(30, 70, 600, true), (3, 1000, 5, false), (1, 9, 70_000, true), (80, 4, 513, false)]
    {
        for size in [1, 2, 4, 8] {
            let table: Vec<u8> = (0..outer * axis * size).map(|_| random.bits() as u8).collect();
            // Some count from the end, and some are clamped.
            let range = 2 * axis as u64 + 4;
            let index: Vec<i64> = (0..indices).map(|_| random.below(range) as i64 - axis as i64 - 2).collect();
            let mut want = Vec::new();
            for table in table.chunks_exact(axis * size) {
                for &at in &index {
                    let row = (if at < 0 { at + axis as i64 } else { at }).clamp(0, axis as i64 - 1) as usize;
                    want.extend_from_slice(&table[row * size..][..size]);
                }
            }
            let index: Vec<u8> = match wide {
                true => index.iter().flat_map(|at| at.to_le_bytes()).collect(),
                false => index.iter().flat_map(|&at| (at as i32).to_le_bytes()).collect(),
            };
            let kernel =
                Gather { outer, axis, inner_bytes: size, indices, wide, table: GatherTable::Rows, weights: None };
            for pool in pools([1, 3]).iter().flatten() {
                let inputs = [table.clone(), index.clone()];
                let got = run_bytes(&kernel.clone().into(), &inputs, None, f32::NAN, pool).swap_remove(0);
                assert!(got == want, "{} {kernel:?}", pool.isa());
            }
        }
    }
}

#[test]
fn the_first_or_last_extreme_of_a_row_is_found() {
    let mut random = Random::new(43);
    for (outer, axis, inner) in [(200, 5, 1), (90, 63, 1), (3, 1000, 1), (4, 6, 7), (2, 9, 20), (3, 300, 70)] {
        let x: Vec<f32> = (0..outer * axis * inner).map(|_| random.below(4) as f32).collect();
        for (max, last) in [(true, false), (true, true), (false, false), (false, true)] {
            let kernel = ArgExtreme { outer, axis, inner, max, last };
            let index = |outer: usize, lane: usize| -> i64 {
                let item = |at: usize| x[(outer * axis + at) * inner + lane];
                let mut found = 0;
                for at in 1..axis {
                    let is_better = if max { item(at) > item(found) } else { item(at) < item(found) };
                    found = if is_better || (last && item(at) == item(found)) { at } else { found };
                }
                found as i64
            };
            let want: Vec<i64> = (0..outer)
                .flat_map(|outer| (0..inner).map(move |lane| (outer, lane)))
                .map(|(outer, lane)| index(outer, lane))
                .collect();
            for [one, three] in pools([1, 3]) {
                for pool in [&one, &three] {
                    let x = StorageType::F32.bytes(&x);
                    let got = run_bytes(&kernel.clone().into(), &[x], None, f32::NAN, pool).swap_remove(0);
                    let got: Vec<i64> = got.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
                    assert_eq!(got, want, "{} {kernel:?}", pool.isa());
                }
            }
        }
    }
}

#[test]
fn interpolation_treats_the_elements_of_a_run_alike() {
    let mut random = Random::new(44);
    let same =
        |extent: usize| AxisTaps { index: (0..extent as u32).collect(), weight: vec![1.0; extent], per_output: 1 };
    for (planes, run_length, per_output) in
        [(3, 16, 2), (2, 5, 2), (1, 33, 1), (2, 16, 3), (2, 1, 2), (1, 1, 4), (4, 1, 1), (5, 1, 3), (2, 400, 2)]
    {
        let shape = vec![planes, 6, 7, run_length];
        let mut taps = |extent: usize, outputs: usize| AxisTaps {
            index: (0..outputs * per_output).map(|_| random.below(extent as u64) as u32).collect(),
            weight: (0..outputs * per_output).map(|_| random.uniform(-1.0, 1.0)).collect(),
            per_output,
        };
        let (rows, columns) = (taps(6, 9), taps(7, 11));
        let x: Vec<f32> = (0..shape.iter().product()).map(|_| random.uniform(-1.0, 1.0)).collect();
        let mut want = Vec::new();
        for (plane, row, column, item) in (0..planes)
            .flat_map(|plane| (0..9).flat_map(move |row| (0..11).map(move |column| (plane, row, column))))
            .flat_map(|(plane, row, column)| (0..run_length).map(move |item| (plane, row, column, item)))
        {
            let mut sum = 0.0;
            for (a, b) in (0..per_output).flat_map(|a| (0..per_output).map(move |b| (a, b))) {
                let (a, b) = (row * per_output + a, column * per_output + b);
                let at = ((plane * 6 + rows.index[a] as usize) * 7 + columns.index[b] as usize) * run_length + item;
                sum += f64::from(rows.weight[a]) * f64::from(columns.weight[b]) * f64::from(x[at]);
            }
            want.push(sum);
        }
        let kernel = Resize { shape, taps: vec![same(planes), rows, columns, same(run_length)] };
        for [one, three] in pools([1, 3]) {
            let [got, other] = [&one, &three].map(|pool| run(&kernel.clone().into(), &[&x], pool));
            assert_eq!(bits(&got), bits(&other));
            assert_close(&got, &want, |_| 4.0, 1e-6, &format!("{} {kernel:?}", one.isa()));
        }
    }
}

#[test]
fn axes_change_places_apart_and_in_place() {
    // Several tasks a block, and one; runs of bytes that are no multiple of a vector.
    for [blocks, rows, columns, bytes] in
        [[3, 4, 5, 7], [2, 70, 3, 300], [5, 1, 6, 64], [1, 2, 2, 40_000], [0, 2, 3, 4]]
    {
        let kernel = Kernel::from(SwapAxes { blocks, rows, columns, bytes });
        let all = blocks * rows * columns * bytes;
        let x: Vec<u8> = (0..all).map(|at| (at * 131 % 251) as u8).collect();
        let mut want = vec![0; all];
        for (run, items) in x.chunks_exact(bytes).enumerate() {
            let (block, row, column) = (run / columns / rows, run / columns % rows, run % columns);
            want[((block * columns + column) * rows + row) * bytes..][..bytes].copy_from_slice(items);
        }
        for pools in pools([1, 3]) {
            for (pool, in_place) in pools.iter().zip([None, Some(0)]) {
                assert!(run_bytes(&kernel, std::slice::from_ref(&x), in_place, 7.0, pool)[0] == want, "{kernel:?}");
            }
        }
    }
}
