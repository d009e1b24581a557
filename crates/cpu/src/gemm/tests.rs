use super::dispatch::sums_by;
use super::finish::multiply_by;
use super::prefetch::Prefetch;
use super::saturation::{self, Marks};
use super::tile::*;
use crate::simd::dot_method::DotMethod;
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};

#[test]
fn every_family_and_height_sums_its_nests() {
    let mut random = types::Random::new(3);
    for isa in Isa::available() {
        let low = [(1, 1), (3, 2), (7, 1), (13, 2), (ROWS, 1), (ROWS, 2)];
        for (count, vectors) in low.into_iter().chain([(15, 1), (16, 2), (17, 1), (23, 2), (32, 1), (32, 2)]) {
            let fits = |method: &DotMethod| count <= ROWS || *method == DotMethod::Matrix;
            for method in DotMethod::available(isa, StorageType::Bf16).into_iter().filter(fits) {
                check_even(isa, count, vectors, method, &mut random);
            }
            for method in DotMethod::available(isa, StorageType::U8).into_iter().filter(fits) {
                check_bytes(isa, count, vectors, method, &mut random);
            }
        }
        for (count, vectors) in (1..=ROWS).flat_map(|count| [(count, 1), (count, 2)]) {
            for line in [LANES, vectors * LANES] {
                check(isa, count, (vectors, line), StorageType::F32, DotMethod::Widened, &mut random);
            }
            check(isa, count, (vectors, vectors * LANES), StorageType::F16, DotMethod::Widened, &mut random);
            for method in DotMethod::available(isa, StorageType::Bf16) {
                check(isa, count, (vectors, vectors * LANES), StorageType::Bf16, method, &mut random);
            }
        }
    }
}

#[test]
fn turns_are_tiles_one_by_one() {
    let mut random = types::Random::new(5);
    for isa in Isa::available() {
        for operands in [StorageType::F32, StorageType::F16, StorageType::Bf16] {
            for (method, distance) in
                DotMethod::available(isa, operands).into_iter().flat_map(|method| [(method, LANES), (method, 21)])
            {
                let low = [(1, 2, 19), (3, 1, 19), (9, 2, 19), (ROWS, 1, 8), (ROWS, 2, 16)];
                let high = [(23, 2, 8), (STRIDED_ROWS_MAX, 1, 16), (STRIDED_ROWS_MAX, 2, 4)];
                for (count, vectors, depth) in low.into_iter().chain(high) {
                    if count <= ROWS || method == DotMethod::Matrix {
                        check_turns(isa, method, operands, distance, (count, vectors, depth), &mut random);
                    }
                }
            }
        }
    }
}

fn check_turns(
    isa: Isa,
    method: DotMethod,
    operands: StorageType,
    distance: usize,
    (count, vectors, depth): (usize, usize, usize),
    random: &mut types::Random,
) {
    let (width, iterations) = (LANES * vectors, 4);
    let repeat = Repeat { iterations, x: 5, weights: 2 * width, out: count * width };
    let k_loops = [KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth }];
    let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| random.uniform(-1.0, 1.0)).collect() };
    let word = operands.per_word();
    let (x, _) = stored(operands, numbers(((count - 1) * distance + iterations * 5 + depth) * word));
    let (weights, _) = stored(operands, numbers((depth + 2 * iterations) * width * word));
    let bias = numbers(width);
    let rows: Vec<Row> = (0..count).map(|r| Row { x: r * distance, out: r * width }).collect();
    for (result, start) in
        [(operands, Init::Bias(bias.as_ptr())), (StorageType::F32, Init::Accumulate), (StorageType::F32, Init::Zero)]
    {
        if ROWS < count && matches!(start, Init::Accumulate) {
            continue;
        }
        let (residual, _) = stored(result, numbers(iterations * count * width));
        let (before, _) = stored(result, numbers(iterations * count * width));
        let (mut together, mut apart) = (before.clone(), before);
        let tile = |out: *mut u8| Tile {
            operands,
            x: x.as_ptr().cast(),
            weights: weights.as_ptr().cast(),
            compact: None,
            weight_stride: width,
            weight_vector: LANES,
            result,
            out,
            rows: &rows,
            vectors,
            vector_stride: LANES,
            k_loops: &k_loops,
            init: start,
            residual: Some(residual.as_ptr()),
            limits: Some([-1.0, 2.0]),
            marks: None,
            read_back: false,
            prefetch: Prefetch::new(weights.as_ptr().cast(), depth * width, 3),
            repeat,
        };
        // SAFETY: the slices have the lengths that rows, terms and iterations require.
        unsafe {
            multiply_by(isa, method, &tile(together.as_mut_ptr()));
            tile(apart.as_mut_ptr()).iterations().for_each(|tile| multiply_by(isa, method, &tile));
        }
        assert!(together == apart, "{isa} {method:?} {operands:?} {count} x {vectors}");
    }
}

/// Elements in storage, and their widened values.
fn stored(stored: StorageType, numbers: Vec<f32>) -> (Vec<u8>, Vec<f32>) {
    let bytes = stored.bytes(&numbers);
    let mut rounded = vec![0.0; numbers.len()];
    crate::simd::storage::widen(Isa::Portable, stored, &bytes, &mut rounded);
    (bytes, rounded)
}

/// Pairs for strided rows of any depth, as for the matrix unit.
fn check_even(isa: Isa, count: usize, vectors: usize, method: DotMethod, random: &mut types::Random) {
    let depths = [1, 4, 8, 15, 16, 17, 24, 40, 48].into_iter().filter(|&depth| count <= strided_rows_max(depth));
    for depth in depths.flat_map(|depth| [depth; 6]) {
        let (width, iterations, distance) = (LANES * vectors, 3, depth + 5);
        let loops = [Loop { iterations, x: 2, weights: depth * width }, Loop::ONCE, Loop::ONCE];
        let k_loops = [KLoop { x: 1, weights: 0, loops, depth }];
        // Results with bounds pass through a buffer, the others need not.
        let limits = [None, Some([-1.5, 2.0])][random.below(2) as usize];
        let (start, line) = (random.below(3), width + 3 * random.below(2) as usize);
        let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| random.uniform(-1.0, 1.0)).collect() };
        let words = 1 + (iterations - 1) * 2 + (count - 1) * distance + depth;
        let (x_bytes, x) = stored(StorageType::Bf16, numbers(2 * words));
        let (weight_bytes, weights) = stored(StorageType::Bf16, numbers(2 * iterations * depth * width));
        let (bias, before) = (numbers(width), numbers(count * line));
        let rows: Vec<Row> = (0..count).map(|r| Row { x: r * distance, out: r * line }).collect();
        let mut out = before.clone();
        let init = match start {
            0 => Init::Zero,
            1 => Init::Accumulate,
            _ => Init::Bias(bias.as_ptr()),
        };
        // The vector unit computes those that start from results with bounds, up to its own height.
        if matches!(init, Init::Accumulate) && limits.is_some() && ROWS < count {
            continue;
        }
        let tile = Tile {
            operands: StorageType::Bf16,
            x: x_bytes.as_ptr().cast(),
            weights: weight_bytes.as_ptr().cast(),
            compact: None,
            weight_stride: width,
            weight_vector: LANES,
            result: StorageType::F32,
            out: out.as_mut_ptr().cast(),
            rows: &rows,
            vectors,
            vector_stride: LANES,
            k_loops: &k_loops,
            init,
            residual: None,
            limits,
            marks: None,
            read_back: false,
            prefetch: Prefetch::NONE,
            repeat: Repeat::ONCE,
        };
        // SAFETY: the slices have the lengths that rows and terms require.
        unsafe { multiply_by(isa, method, &tile) };
        for (at, got) in out.iter().enumerate() {
            let (row, lane) = (at / line, at % line);
            if width <= lane {
                assert_eq!(*got, before[at], "elements between rows are kept");
                continue;
            }
            let mut want = match start {
                0 => 0.0,
                1 => f64::from(before[at]),
                _ => f64::from(bias[lane]),
            };
            for (turn, k, part) in (0..iterations).flat_map(|turn| (0..2 * depth).map(move |k| (turn, k / 2, k % 2))) {
                let item = x[2 * (1 + row * distance + 2 * turn + k) + part];
                want += f64::from(item) * f64::from(weights[2 * ((turn * depth + k) * width + lane) + part]);
            }
            let want = limits.map_or(want, |[low, high]| want.clamp(f64::from(low), f64::from(high)));
            assert!((f64::from(*got) - want).abs() < 1e-5, "{isa} {method:?} {count} x {vectors}, depth {depth}");
        }
    }
}

fn marks_of(weights: &[[u8; 4]]) -> Vec<[u8; 4]> {
    saturation::marks(weights.as_flattened()).as_chunks().0.to_vec()
}

/// Makes most words small, of a random share: none, all, or in between.
fn few_large_weights(weights: &mut [[u8; 4]], random: &mut types::Random) {
    let large = [0, 1, 4, 100][random.below(4) as usize];
    for word in weights {
        if large <= random.below(100) {
            *word = word.map(|weight| (weight.cast_signed() / 2).cast_unsigned());
        }
    }
}

/// Int8 sums of any depth, strided rows and others: exact.
fn check_bytes(isa: Isa, count: usize, vectors: usize, method: DotMethod, random: &mut types::Random) {
    for (depth, even) in
        [1, 4, 8, 15, 16, 17, 24, 40, 300].into_iter().flat_map(|depth| [(depth, true), (depth, false)])
    {
        if strided_rows_max(depth) < count || (!even && ROWS < count) {
            continue;
        }
        let (width, distance) = (LANES * vectors, depth + 5);
        let loops = [Loop { iterations: 2, x: 3, weights: depth * width }, Loop::ONCE, Loop::ONCE];
        let k_loops = [KLoop { x: 1, weights: 0, loops, depth }];
        // Numbers at their limits overflow types that are too narrow.
        let extreme = random.below(2) == 0;
        let mut byte = || if extreme { random.below(2) as u8 * 255 } else { random.bits() as u8 };
        let x: Vec<[u8; 4]> = (0..4 + count * distance + depth).map(|_| std::array::from_fn(|_| byte())).collect();
        let mut weights: Vec<[u8; 4]> =
            (0..2 * depth * width).map(|_| std::array::from_fn(|_| byte() ^ 0x80)).collect();
        few_large_weights(&mut weights, random);
        let marks = marks_of(&weights);
        let place = |r: usize| if even { r } else { r * r % count };
        let rows: Vec<Row> = (0..count).map(|r| Row { x: place(r) * distance, out: r * width }).collect();
        let mut sums = Accumulators::new();
        let tile = Tile {
            operands: StorageType::U8,
            x: x.as_ptr().cast(),
            weights: weights.as_ptr().cast(),
            compact: None,
            weight_stride: width,
            weight_vector: LANES,
            result: StorageType::F32,
            out: std::ptr::null_mut(),
            rows: &rows,
            vectors,
            vector_stride: LANES,
            k_loops: &k_loops,
            init: Init::Zero,
            residual: None,
            limits: None,
            marks: Some(Marks::new(&weights, &marks)),
            read_back: false,
            prefetch: Prefetch::NONE,
            repeat: Repeat::ONCE,
        };
        // SAFETY: the slices have the lengths that rows and terms require.
        unsafe { sums_by(isa, method, &tile, &mut sums) };
        for at in 0..count * width {
            let (row, lane) = (at / width, at % width);
            // SAFETY: there is a sum for each row and vector.
            let got = unsafe { sums.rows(lane / LANES, count) }[row][lane % LANES].to_bits().cast_signed();
            let mut want = 0;
            for (turn, k) in (0..2).flat_map(|turn| (0..depth).map(move |k| (turn, k))) {
                let items = x[1 + rows[row].x + 3 * turn + k];
                let weights = weights[(turn * depth + k) * width + lane];
                want += (0..4).map(|ix| i32::from(items[ix]) * i32::from(weights[ix].cast_signed())).sum::<i32>();
            }
            assert_eq!(got, want, "{isa} {method:?} {count} x {vectors}, depth {depth}");
        }
    }
}

#[test]
fn int8_sums_are_dequantized_and_rounded() {
    let mut random = types::Random::new(11);
    for isa in Isa::available() {
        for (count, vectors) in (1..=ROWS).flat_map(|count| [(count, 1), (count, 2)]) {
            for (result, has_bias) in [(StorageType::F32, true), (StorageType::U8, false), (StorageType::U8, true)] {
                check_dequantized(isa, [count, vectors, 1 + count % 3], result, has_bias, &mut random);
            }
        }
    }
}

/// A tile of `[rows, vectors, iterations]`: every result against its exact sum.
fn check_dequantized(
    isa: Isa,
    [count, vectors, iterations]: [usize; 3],
    result: StorageType,
    has_bias: bool,
    random: &mut types::Random,
) {
    let (width, depth) = (LANES * vectors, 1 + random.below(40) as usize);
    let rows: Vec<Row> = (0..count).map(|r| Row { x: (count - 1 - r) * depth, out: r * width }).collect();
    let mut words = |len: usize| -> Vec<[u8; 4]> { (0..len).map(|_| (random.bits() as u32).to_le_bytes()).collect() };
    let (x, mut weights) = (words(iterations * count * depth), words(depth * width));
    let start: Vec<i32> = words(width).into_iter().map(|word| i32::from_le_bytes(word) >> 12).collect();
    few_large_weights(&mut weights, random);
    let marks = marks_of(&weights);
    let mut numbers = |low: f32, high: f32| -> Vec<f32> { (0..width).map(|_| random.uniform(low, high)).collect() };
    let (scale, bias) = (numbers(-1e-3, 1e-3), numbers(0.0, 200.0));
    let mut out = vec![0u8; iterations * count * width * result.size()];
    let k_loop = KLoop { x: 0, weights: 0, loops: [Loop::ONCE; 3], depth };
    let tile = Tile {
        operands: StorageType::U8,
        x: x.as_ptr().cast(),
        weights: weights.as_ptr().cast(),
        compact: None,
        weight_stride: width,
        weight_vector: LANES,
        result,
        out: out.as_mut_ptr(),
        rows: &rows,
        vectors,
        vector_stride: LANES,
        k_loops: &[k_loop],
        init: Init::Dequant(Dequant {
            quantized_sum: None,
            start: start.as_ptr(),
            scale: Some(scale.as_ptr()),
            bias: has_bias.then_some(bias.as_ptr()),
        }),
        residual: None,
        limits: None,
        marks: Some(Marks::new(&weights, &marks)),
        read_back: false,
        prefetch: Prefetch::NONE,
        repeat: Repeat { iterations, x: count * depth, weights: 0, out: count * width },
    };
    // SAFETY: the slices have the lengths that rows, terms and iterations require.
    unsafe { super::finish::multiply(isa, &tile, &[]) };
    let mut got = vec![0.0; iterations * count * width];
    crate::simd::storage::widen(Isa::Portable, result, &out, &mut got);
    for (at, &got) in got.iter().enumerate() {
        let (turn, row, lane) = (at / width / count, at / width % count, at % width);
        let x = &x[turn * count * depth + rows[row].x..][..depth];
        let products = x.iter().enumerate().flat_map(|(k, items)| {
            let weights = weights[k * width + lane];
            items.iter().zip(weights).map(|(&item, weight)| i32::from(item) * i32::from(weight.cast_signed()))
        });
        let sum = start[lane] + products.sum::<i32>();
        let number = (sum as f32).mul_add(scale[lane], if has_bias { bias[lane] } else { 0.0 });
        // Instruction sets without fused multiplication round once more.
        let want = if result == StorageType::U8 { number.clamp(0.0, 255.0).round_ties_even() } else { number };
        let tolerance = if result == StorageType::U8 { 1.0 } else { 1e-6 * number.abs().max(200.0) };
        let is_near_tie = (number - number.floor() - 0.5).abs() < 1e-3;
        let is_right = (got - want).abs() <= tolerance && (got == want || result == StorageType::F32 || is_near_tie);
        assert!(is_right, "{isa} {count} x {vectors}, depth {depth}, result {at}: {got} instead of {want}");
    }
}

/// Rows in any order and all kinds of loops against the formula; operands end where their allocations end. Rows of
/// weights have `line` words: one vector, or all of them as neighbors.
fn check(
    isa: Isa,
    count: usize,
    (vectors, line): (usize, usize),
    operands: StorageType,
    method: DotMethod,
    random: &mut types::Random,
) {
    check_rows(
        isa,
        &(0..count).map(|r| (r * 5) % count * 3).collect::<Vec<_>>(),
        (vectors, line),
        operands,
        method,
        random,
    );
    // One stride, possibly that of pixels in blocks of sixteen.
    for distance in [LANES, 7] {
        check_rows(
            isa,
            &(0..count).map(|r| r * distance).collect::<Vec<_>>(),
            (vectors, line),
            operands,
            method,
            random,
        );
    }
    check_rows(isa, &(0..count).rev().map(|r| r * 9).collect::<Vec<_>>(), (vectors, line), operands, method, random);
}

#[expect(clippy::needless_range_loop, reason = "an index of several slices")]
fn check_rows(
    isa: Isa,
    places: &[usize],
    (vectors, line): (usize, usize),
    operands: StorageType,
    method: DotMethod,
    random: &mut types::Random,
) {
    let (count, width, word) = (places.len(), LANES * vectors, operands.per_word());
    let depths = [37, 3, 7, 1, 0, 5].map(|depth| (depth, random.below(3) as usize, random.below(4) as usize));
    let (mut k_loops, mut x_len, mut terms) = (Vec::new(), 0, 0);
    for (depth, outer, inner) in depths {
        let loops = [
            Loop { iterations: outer, x: 5, weights: inner * depth * line },
            Loop::ONCE,
            Loop { iterations: inner, x: depth + 2, weights: depth * line },
        ];
        k_loops.push(KLoop { x: k_loops.len(), weights: terms * line, loops, depth });
        terms += outer * inner * depth;
        if outer * inner * depth != 0 {
            x_len = x_len.max(k_loops.len() + (outer - 1) * 5 + (inner - 1) * (depth + 2) + depth);
        }
    }
    let weight_vector = if line == width { LANES } else { terms * LANES };
    let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| random.uniform(-1.0, 1.0)).collect() };
    let (x_bytes, x) = stored(operands, numbers((x_len + places.iter().max().unwrap_or(&0)) * word));
    let (weight_bytes, weights) = stored(operands, numbers(terms * width * word));
    let bias = numbers(width);
    let row = |(r, &x): (usize, &usize)| Row { x, out: (count - 1 - r) * LANES };
    let rows: Vec<Row> = places.iter().enumerate().map(row).collect();
    for (result, start, residual, limits) in [
        (StorageType::F32, Init::Zero, false, None),
        (operands, Init::Bias(bias.as_ptr()), true, Some([-0.5, 0.25])),
        (operands, Init::Zero, true, None),
        (StorageType::F32, Init::Accumulate, false, None),
    ] {
        let (before_bytes, before) = stored(result, numbers(count * width));
        let mut out = before_bytes.clone();
        let tile = Tile {
            operands,
            x: x_bytes.as_ptr().cast(),
            weights: weight_bytes.as_ptr().cast(),
            compact: None,
            weight_stride: line,
            weight_vector,
            result,
            out: out.as_mut_ptr(),
            rows: &rows,
            vectors,
            vector_stride: count * LANES,
            k_loops: &k_loops,
            init: start,
            residual: residual.then_some(before_bytes.as_ptr()),
            limits,
            marks: None,
            read_back: false,
            prefetch: Prefetch::new(weight_bytes.as_ptr().cast(), terms * width, 3).share(&k_loops, 1),
            repeat: Repeat::ONCE,
        };
        // SAFETY: the slices have the lengths that rows and terms require.
        unsafe { multiply_by(isa, method, &tile) };
        let mut got = vec![0.0; count * width];
        crate::simd::storage::widen(Isa::Portable, result, &out, &mut got);
        for (r, row) in rows.iter().enumerate() {
            for channel in 0..width {
                let at = row.out + channel / LANES * count * LANES + channel % LANES;
                let mut want = match start {
                    Init::Zero | Init::Dequant(_) => 0.0,
                    Init::Bias(_) => f64::from(bias[channel]),
                    Init::Accumulate => f64::from(before[at]),
                };
                for k_loop in &k_loops {
                    let [outer, _, inner] = k_loop.loops;
                    for (a, b) in (0..outer.iterations).flat_map(|a| (0..inner.iterations).map(move |b| (a, b))) {
                        for k in 0..k_loop.depth {
                            let weight = k_loop.weights + a * outer.weights + b * inner.weights + k * line;
                            let place = weight + channel / LANES * weight_vector + channel % LANES;
                            let item = row.x + k_loop.x + a * outer.x + b * inner.x + k;
                            for part in 0..word {
                                want += f64::from(x[item * word + part]) * f64::from(weights[place * word + part]);
                            }
                        }
                    }
                }
                if residual {
                    want += f64::from(before[at]);
                }
                if let Some([low, high]) = limits {
                    want = want.clamp(f64::from(low), f64::from(high));
                }
                let rounding = want.abs() * [0.0, 1.0 / 2048.0, 1.0 / 256.0][result as usize];
                let error = (f64::from(got[at]) - want).abs();
                // Terms are at most 1, and each sum is rounded.
                let sums = 1e-7 * (terms * word) as f64 + 1e-6;
                assert!(error < sums + rounding, "{isa} {operands:?} {count} x {vectors}, row {r}: {error}");
            }
        }
    }
}
