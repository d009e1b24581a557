//! [`multiply`]: a tile with its epilogue. Sums come from `dispatch` or the matrix unit; this file converts and stores
//! them.

use types::pointwise::{QuantizedSum, Unary};

#[cfg(target_arch = "x86_64")]
use crate::gemm::amx;
use crate::gemm::dispatch;
use crate::gemm::epilogue::{self, Epilogue, limits_of_bytes};
use crate::gemm::tile::{Accumulators, Dequant, Init, ROWS, Row, STRIDED_ROWS_MAX, Tile};
use crate::simd::dot_method::DotMethod;
use crate::simd::storage::{Item, elements, with_item, with_rounding};
use crate::simd::vector::{LANES, Vector, with_vector};
use crate::simd::{Isa, StorageType, math};

/// Computes a tile, whose results may have any type, and applies functions before they are rounded.
///
/// # Safety
/// As [`dispatch::multiply`].
pub(crate) unsafe fn multiply(isa: Isa, tile: &Tile, functions: &[Unary]) {
    let is_plain = !tile.operands.is_byte();
    if is_plain && functions.is_empty() && [StorageType::F32, tile.operands].contains(&tile.result) {
        // SAFETY: the caller's promise.
        return unsafe { multiply_plain(isa, tile) };
    }
    if is_plain && tile.result == StorageType::F32 {
        // SAFETY: the caller's promise; the results belong to the tile.
        return unsafe {
            multiply_plain(isa, &Tile { read_back: true, ..*tile });
            tile.iterations().for_each(|tile| apply_in_place(isa, &tile, functions));
        };
    }
    // SAFETY: the caller's promise.
    if !is_plain && functions.is_empty() && unsafe { dispatch::multiply_dequantized(isa, tile) } {
        return;
    }
    if 1 < tile.repeat.iterations {
        // SAFETY: the caller's promise, for each iteration.
        return unsafe { tile.iterations().for_each(|tile| multiply(isa, &tile, functions)) };
    }
    if let Init::Dequant(Dequant { quantized_sum: Some(sum), .. }) = tile.init
        && DotMethod::of(isa, tile.operands) != DotMethod::Matrix
    {
        // SAFETY: the caller's promise.
        return unsafe { multiply_and_add(isa, tile, &sum) };
    }
    let mut accumulators = Accumulators::new();
    if !is_plain {
        // SAFETY: the caller's promise.
        return unsafe {
            dispatch::sums(isa, tile, &mut accumulators);
            finish_sums(isa, tile, functions, &mut accumulators, 0);
        };
    }
    let rows: [Row; STRIDED_ROWS_MAX] =
        std::array::from_fn(|ix| Row { x: tile.rows.get(ix).map_or(0, |row| row.x), out: ix * LANES });
    let sums = Tile {
        result: StorageType::F32,
        out: accumulators.start().cast(),
        rows: &rows[..tile.rows.len()],
        vector_stride: STRIDED_ROWS_MAX * LANES,
        residual: None,
        limits: None,
        ..*tile
    };
    // SAFETY: the caller's promise; `accumulators` has room for the sums.
    unsafe { multiply_plain(isa, &sums) };
    // SAFETY: the caller's promise.
    unsafe { finish_sums(isa, tile, functions, &mut accumulators, 0) };
}

/// Computes a tile of bytes by the microkernels that round to bytes, then adds the residual.
///
/// # Safety
/// As [`dispatch::multiply`], for a tile of one iteration with a residual.
unsafe fn multiply_and_add(isa: Isa, tile: &Tile, sum: &QuantizedSum) {
    let Init::Dequant(dequant) = tile.init else { unreachable!("only int8 sums have a quantized sum") };
    let mut bytes = [0; 2 * ROWS * LANES];
    let rows: [Row; ROWS] =
        std::array::from_fn(|ix| Row { x: tile.rows.get(ix).map_or(0, |row| row.x), out: ix * LANES });
    let product = Tile {
        out: bytes.as_mut_ptr(),
        rows: &rows[..tile.rows.len()],
        vector_stride: ROWS * LANES,
        residual: None,
        init: Init::Dequant(Dequant { quantized_sum: None, ..dequant }),
        ..*tile
    };
    // SAFETY: the caller's promise; `bytes` has room for the results.
    unsafe { multiply(isa, &product, &[]) };
    let own: &[u8] = &bytes;
    with_item!(tile.result, T => with_vector!(isa, add_residual<T>(
        tile: &Tile<'_>, sum: &QuantizedSum, own: &[u8]
    )));
}

/// Adds the residual to the results in `own`, called by [`multiply_and_add`] only.
#[inline(always)]
fn add_residual<V: Vector, T: Item>(tile: &Tile<'_>, sum: &QuantizedSum, own: &[u8]) {
    let residual = tile.residual.expect("a quantized sum has a residual").cast::<T>();
    let [least, most] = limits_of_bytes(sum.limits, T::STORED).map(V::splat);
    let own: &[T] = elements(own);
    for vector in 0..tile.vectors {
        for (ix, row) in tile.rows.iter().enumerate() {
            let place = row.out + vector * tile.vector_stride;
            let lanes: V = T::read(&own[(vector * ROWS + ix) * LANES..][..LANES]);
            // SAFETY: the residual has an element for each result; the results belong to the tile.
            unsafe {
                let lanes = epilogue::quantized_sum(sum, lanes, T::load(residual.add(place)));
                T::store(lanes.at_least(least).at_most(most), tile.out.cast::<T>().add(place));
            }
        }
    }
}

/// Computes a tile without functions, whose results are `f32` or like the operands.
///
/// # Safety
/// As [`dispatch::multiply`].
unsafe fn multiply_plain(isa: Isa, tile: &Tile) {
    let method = if tile.operands == StorageType::F32 { DotMethod::Widened } else { DotMethod::of(isa, tile.operands) };
    // SAFETY: the caller's promise.
    unsafe { multiply_by(isa, method, tile) }
}

/// # Safety
/// As [`dispatch::multiply`]; the processor has the method.
#[inline]
pub(super) unsafe fn multiply_by(isa: Isa, method: DotMethod, tile: &Tile) {
    #[cfg(target_arch = "x86_64")]
    if method == DotMethod::Matrix
        && let Some(step) = amx::row_step(tile)
    {
        for tile in tile.iterations() {
            // SAFETY: the caller's promise.
            unsafe {
                if let Some(sums) = amx::Sums::in_output(&tile) {
                    amx::sums(&tile, step, sums);
                    continue;
                }
                let mut sums = Accumulators::new();
                amx::sums(&tile, step, amx::Sums::in_buffer(&mut sums));
                finish_sums(isa, &tile, &[], &mut sums, 0);
            }
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { dispatch::multiply_by(isa, method, tile) }
}

/// Computes the rows of an int8 or half-precision tile whose bit is set in `wanted`; the others only keep the stride
/// constant.
///
/// # Safety
/// As [`dispatch::multiply`]; rows without their bit are not written. The tile has one iteration.
pub(crate) unsafe fn multiply_wanted(isa: Isa, tile: &Tile, functions: &[Unary], wanted: u32) {
    let mut accumulators = Accumulators::new();
    // SAFETY: the caller's promise.
    unsafe { dispatch::sums(isa, tile, &mut accumulators) };
    let mut row = 0;
    while row < tile.rows.len() {
        let run = (wanted >> row).trailing_ones() as usize;
        if run == 0 {
            row += 1;
            continue;
        }
        let rows = &tile.rows[row..tile.rows.len().min(row + run)];
        // SAFETY: the caller's promise; every row has its sums.
        unsafe { finish_sums(isa, &Tile { rows, ..*tile }, functions, &mut accumulators, row) };
        row += run;
    }
}

/// Converts and stores the sums in `accumulators`, from row `from` on: dequantizes int8 sums, adds the residual,
/// clamps, applies functions.
///
/// # Safety
/// As [`dispatch::multiply`], for a tile of one iteration; `accumulators` has a sum for each row and vector.
pub(crate) unsafe fn finish_sums(
    isa: Isa,
    tile: &Tile,
    functions: &[Unary],
    accumulators: &mut Accumulators,
    from: usize,
) {
    match tile.result {
        StorageType::Bf16 => with_rounding!(isa, finish(
            tile: &Tile<'_>, functions: &[Unary], accumulators: &mut Accumulators, from: usize
        )),
        stored => with_item!(stored, T => with_vector!(isa, finish<T>(
            tile: &Tile<'_>, functions: &[Unary], accumulators: &mut Accumulators, from: usize
        ))),
    }
}

/// Applies functions to the `f32` results of a tile of one iteration.
///
/// # Safety
/// As [`dispatch::multiply`]; the results were written.
unsafe fn apply_in_place(isa: Isa, tile: &Tile, functions: &[Unary]) {
    let mut starts = [0; 2 * STRIDED_ROWS_MAX];
    let rows = tile.rows;
    // The fewest runs: all rows of a vector, all vectors of a row, or single vectors.
    let (count, length) = if rows.windows(2).all(|pair| pair[0].out + LANES == pair[1].out) {
        (0..tile.vectors).for_each(|vector| starts[vector] = rows[0].out + vector * tile.vector_stride);
        (tile.vectors, rows.len() * LANES)
    } else if tile.vectors == 1 || tile.vector_stride == LANES {
        starts.iter_mut().zip(rows).for_each(|(start, row)| *start = row.out);
        (rows.len(), tile.vectors * LANES)
    } else {
        let vectors = (0..tile.vectors).flat_map(|vector| rows.iter().map(move |row| (vector, row.out)));
        starts.iter_mut().zip(vectors).for_each(|(start, (vector, out))| *start = out + vector * tile.vector_stride);
        (tile.vectors * rows.len(), LANES)
    };
    for &function in functions {
        // SAFETY: the caller's promise: the results are the tile's, each once.
        unsafe { math::apply_to_runs(isa, function, tile.out.cast(), &starts[..count], length) };
    }
}

/// Called by [`finish_sums`] only, whose caller promises valid rows and written sums.
#[inline(always)]
fn finish<V: Vector, T: Item>(tile: &Tile<'_>, functions: &[Unary], accumulators: &mut Accumulators, from: usize) {
    let limits = tile.limits.unwrap_or(Epilogue::UNLIMITED);
    let (is_limited, low, high) = (limits != Epilogue::UNLIMITED, V::splat(limits[0]), V::splat(limits[1]));
    for vector in 0..tile.vectors {
        // SAFETY: the caller's promise: a sum for each row and vector.
        let sums = unsafe { &mut accumulators.rows(vector, from + tile.rows.len())[from..] };
        let place = |row: &Row| row.out + vector * tile.vector_stride;
        // SAFETY: each vector has an element for each channel of the tile.
        let of_vector = |numbers: *const f32| unsafe { V::load(numbers.add(vector * LANES)) };
        let (whole, quantized_sum) = match tile.init {
            Init::Dequant(whole) => {
                (Some((of_vector(whole.start.cast()), whole.scale.map(of_vector), whole.bias)), whole.quantized_sum)
            }
            _ => (None, None),
        };
        if let Some((start, None, _)) = whole {
            for (sum, row) in sums.iter().zip(tile.rows) {
                // SAFETY: the results belong to the tile; `i32` sums have the size of `f32`.
                unsafe { V::read(sum).add_i32(start).store(tile.out.cast::<f32>().add(place(row))) };
            }
            continue;
        }
        let whole =
            whole.map(|(start, scale, bias)| (start, scale.unwrap_or(V::zero()), bias.map_or(V::zero(), of_vector)));
        if let (Some((start, scale, bias)), None, false, []) = (whole, tile.residual, is_limited, functions) {
            // The common case between int8 products, without branches in the loop.
            for (sum, row) in sums.iter().zip(tile.rows) {
                let lanes = V::read(sum).add_i32(start).i32_to_f32().mul_add(scale, bias);
                // SAFETY: the results belong to the tile.
                unsafe { T::store(lanes, tile.out.cast::<T>().add(place(row))) };
            }
            continue;
        }
        if let (Some((start, scale, bias)), Some(added), Some(residual), []) =
            (whole, quantized_sum, tile.residual, functions)
        {
            // Bounds of bytes before rounding, as they are integers.
            let [low, high] = limits_of_bytes(limits, T::STORED).map(V::splat);
            let of_sum = limits_of_bytes(added.limits, T::STORED);
            // Storing saturates in any case.
            let is_limited = of_sum != limits_of_bytes(Epilogue::UNLIMITED, T::STORED);
            let [least, most] = of_sum.map(V::splat);
            for (sum, row) in sums.iter().zip(tile.rows) {
                let own = V::read(sum).add_i32(start).i32_to_f32().mul_add(scale, bias).max(low).min(high).round();
                // SAFETY: the residual has an element for each result; the results belong to the tile.
                unsafe {
                    let residual = T::load(residual.cast::<T>().add(place(row)));
                    let mut lanes = epilogue::quantized_sum(&added, own, residual);
                    if is_limited {
                        lanes = lanes.at_least(least).at_most(most);
                    }
                    T::store(lanes, tile.out.cast::<T>().add(place(row)));
                }
            }
            continue;
        }
        for (sum, row) in sums.iter_mut().zip(tile.rows) {
            let mut lanes = V::read(sum);
            if let Some((start, scale, bias)) = whole {
                lanes = lanes.add_i32(start).i32_to_f32().mul_add(scale, bias);
            }
            if let Some(residual) = tile.residual {
                // SAFETY: the residual has an element for each result.
                lanes = lanes.add(unsafe { T::load(residual.cast::<T>().add(place(row))) });
            }
            if is_limited {
                lanes = lanes.at_least(low).at_most(high);
            }
            match functions.is_empty() {
                // SAFETY: the results belong to the tile.
                true => unsafe { T::store(lanes, tile.out.cast::<T>().add(place(row))) },
                false => lanes.write(sum),
            }
        }
        if functions.is_empty() {
            continue;
        }
        for &function in functions {
            math::apply_before_rounding(V::ISA, T::STORED, function, sums.as_flattened_mut());
        }
        for (sum, row) in sums.iter().zip(tile.rows) {
            // SAFETY: the results belong to the tile.
            unsafe { T::store(V::read(sum), tile.out.cast::<T>().add(place(row))) };
        }
    }
}
