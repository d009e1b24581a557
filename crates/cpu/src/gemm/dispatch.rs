//! [`multiply`] and [`sums`]: select the microkernel of a tile by instruction set, storage types and method.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
use crate::gemm::amx;
use crate::gemm::prefetch::Prefetch;
use crate::gemm::tile::{Accumulators, Compact, Dequant, Init, ROWS, Row, STRIDED_ROWS_MAX, Tile};
use crate::simd::dot_method::DotMethod;
use crate::simd::vector::LANES;
use crate::simd::{Isa, StorageType};

/// A function for some rows of a tile and its vectors from a given one on.
type Microkernel = unsafe fn(&Tile, &[Row], usize);

/// Functions for one vector and for two, indexed by number of rows. Without those for two, vectors are computed one by
/// one.
#[derive(Clone, Copy)]
struct ByRows {
    one: &'static [Microkernel],
    two: Option<&'static [Microkernel]>,
}

impl ByRows {
    const fn narrow(one: &'static [Microkernel]) -> ByRows {
        ByRows { one, two: None }
    }

    #[cfg(target_arch = "x86_64")]
    const fn wide(one: &'static [Microkernel], two: &'static [Microkernel]) -> ByRows {
        ByRows { one, two: Some(two) }
    }

    /// Computes a tile.
    ///
    /// # Panics
    /// A shape that no function has.
    ///
    /// # Safety
    /// As [`multiply`]; the functions are for the tile's operands and results.
    #[inline]
    unsafe fn run(self, tile: &Tile) {
        assert!(
            (1..=ROWS).contains(&tile.rows.len()) && (1..=2).contains(&tile.vectors),
            "a tile must have 1 to 14 rows and 1 or 2 vectors"
        );
        assert!(tile.repeat.iterations != 0, "a tile must have an iteration");
        assert!(
            tile.operands == StorageType::F32 || tile.weight_vector == LANES,
            "vectors of int8 and half-precision weights must be neighbors"
        );
        // SAFETY: the caller's promise; each number of rows has its function.
        unsafe {
            match (tile.vectors, self.two) {
                (2, Some(two)) => run_in_parts(tile, 2, two),
                _ => run_in_parts(tile, 1, self.one),
            }
        }
    }
}

/// The functions of an instruction set, by operands and results; results are `f32` or like the operands.
struct MicrokernelTable {
    f32: ByRows,
    /// By weights of `bf16`, and of int8.
    compact: [ByRows; 2],
    /// For rows of one stride: that of a vector, and any other.
    f32_by_distance: Option<[ByRows; 2]>,
    bf16: ByRows,
    bf16_to_f32: ByRows,
    f16: ByRows,
    f16_to_f32: ByRows,
    bytes: ByRows,
    /// For int8 sums that are only dequantized, to `f32` and to `u8`, of [`DotMethod::Widened`].
    dequantized: Option<[ByRows; 2]>,
    /// By instructions that multiply whole words, see [`DotMethod`].
    bf16_dot: ByRows,
    bf16_dot_to_f32: ByRows,
    bytes_dot: ByRows,
    /// For int8 sums that are dequantized, to `f32` and to `u8`, of [`DotMethod::Dot`]. Residuals and bounds are applied.
    dequantized_dot: Option<[ByRows; 2]>,
}

impl MicrokernelTable {
    /// Functions for one vector, without instructions that multiply words.
    const fn narrow(
        f32: &'static [Microkernel],
        compact: [&'static [Microkernel]; 2],
        bf16: &'static [Microkernel],
        bf16_to_f32: &'static [Microkernel],
        f16: &'static [Microkernel],
        f16_to_f32: &'static [Microkernel],
        bytes: &'static [Microkernel],
    ) -> MicrokernelTable {
        MicrokernelTable {
            f32: ByRows::narrow(f32),
            compact: [ByRows::narrow(compact[0]), ByRows::narrow(compact[1])],
            f32_by_distance: None,
            bf16: ByRows::narrow(bf16),
            bf16_to_f32: ByRows::narrow(bf16_to_f32),
            f16: ByRows::narrow(f16),
            f16_to_f32: ByRows::narrow(f16_to_f32),
            bytes: ByRows::narrow(bytes),
            dequantized: None,
            bf16_dot: ByRows::narrow(bf16),
            bf16_dot_to_f32: ByRows::narrow(bf16_to_f32),
            bytes_dot: ByRows::narrow(bytes),
            dequantized_dot: None,
        }
    }

    fn of(isa: Isa) -> &'static MicrokernelTable {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if Isa::HAS_AVX512 => &x86::AVX512_PARTS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &x86::AVX2_PARTS,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &aarch64::NEON_PARTS,
            _ => &portable::PORTABLE_PARTS,
        }
    }

    fn select(&self, method: DotMethod, tile: &Tile) -> ByRows {
        let is_half = tile.result.is_half();
        match tile.compact {
            Some(Compact::Bf16) => return self.compact[0],
            Some(Compact::Int8(_)) => return self.compact[1],
            None => {}
        }
        match (tile.operands, method) {
            (StorageType::F32, _) => match self.f32_by_distance {
                None => self.f32,
                Some([line, even]) => match distance(tile.rows) {
                    Some(LANES) => line,
                    Some(_) => even,
                    None => self.f32,
                },
            },
            (StorageType::Bf16, DotMethod::Widened) => {
                if is_half {
                    self.bf16
                } else {
                    self.bf16_to_f32
                }
            }
            (StorageType::Bf16, _) => {
                if is_half {
                    self.bf16_dot
                } else {
                    self.bf16_dot_to_f32
                }
            }
            (StorageType::F16, _) => {
                if is_half {
                    self.f16
                } else {
                    self.f16_to_f32
                }
            }
            (StorageType::U8 | StorageType::I8, DotMethod::Widened) => self.bytes,
            (StorageType::U8 | StorageType::I8, _) => self.bytes_dot,
        }
    }
}

/// Computes a tile by the vector unit.
///
/// # Panics
/// No row or more than [`ROWS`]; vectors other than 1 and 2.
///
/// # Safety
/// The processor has the instruction set (a pool's always). Every element that [`Tile`]'s formula reads in any
/// iteration can be read, and every one it writes can be written; no other task uses the latter meanwhile.
#[inline]
pub(crate) unsafe fn multiply(isa: Isa, tile: &Tile) {
    let method = if tile.operands == StorageType::F32 { DotMethod::Widened } else { DotMethod::of(isa, tile.operands) };
    // SAFETY: the caller's promise.
    unsafe { multiply_by(isa, method, tile) }
}

/// # Safety
/// As [`multiply`]; the processor has the method.
#[inline]
pub(super) unsafe fn multiply_by(isa: Isa, method: DotMethod, tile: &Tile) {
    assert!([StorageType::F32, tile.operands].contains(&tile.result), "results must be f32 or like the operands");
    assert!(!tile.result.is_half() || !matches!(tile.init, Init::Accumulate), "only f32 results accumulate");
    assert!(
        tile.compact.is_none() || [tile.operands, tile.result] == [StorageType::F32; 2],
        "only f32 operands have compact weights"
    );
    if tile.operands.is_byte() {
        assert_eq!(
            (tile.operands, tile.result),
            (StorageType::U8, StorageType::F32),
            "int8 operands must be u8 with i32 results"
        );
        let is_plain =
            tile.residual.is_none() && tile.limits.is_none() && matches!(tile.init, Init::Zero | Init::Dequant(_));
        assert!(is_plain, "int8 sums take no residual and no bounds here");
    }
    // SAFETY: the caller's promise.
    unsafe { MicrokernelTable::of(isa).select(method, tile).run(tile) }
}

/// Computes an int8 tile whose sums are dequantized and rounded, if there are microkernels for that; otherwise returns `false`.
///
/// # Safety
/// As [`multiply`]; the results are of the tile's type.
pub(crate) unsafe fn multiply_dequantized(isa: Isa, tile: &Tile) -> bool {
    let is_scaled = matches!(tile.init, Init::Dequant(Dequant { scale: Some(_), quantized_sum: None, .. }));
    if !is_scaled || tile.operands != StorageType::U8 {
        return false;
    }
    let table = MicrokernelTable::of(isa);
    let microkernels = match DotMethod::of(isa, tile.operands) {
        DotMethod::Widened if tile.residual.is_none() && tile.limits.is_none() => table.dequantized,
        DotMethod::Dot => table.dequantized_dot,
        DotMethod::Widened | DotMethod::Matrix => None,
    };
    let microkernels = match (microkernels, tile.result) {
        (Some([to_f32, _]), StorageType::F32) => to_f32,
        (Some([_, to_u8]), StorageType::U8) => to_u8,
        _ => return false,
    };
    // SAFETY: the caller's promise; the functions are for the type of the results.
    unsafe { microkernels.run(tile) };
    true
}

/// The sums of an int8 or half-precision tile of one iteration; its `out` is not used.
///
/// # Safety
/// As [`multiply`].
pub(crate) unsafe fn sums(isa: Isa, tile: &Tile, sums: &mut Accumulators) {
    // SAFETY: the caller's promise.
    unsafe { sums_by(isa, DotMethod::of(isa, tile.operands), tile, sums) }
}

/// # Safety
/// As [`multiply_by`].
pub(super) unsafe fn sums_by(isa: Isa, method: DotMethod, tile: &Tile, sums: &mut Accumulators) {
    assert_eq!(tile.repeat.iterations, 1, "the buffer holds one iteration");
    #[cfg(target_arch = "x86_64")]
    if method == DotMethod::Matrix
        && let Some(step) = amx::row_step(tile)
    {
        // SAFETY: the caller's promise.
        return unsafe { amx::sums(tile, step, amx::Sums::in_buffer(sums)) };
    }
    let rows: [Row; ROWS] =
        std::array::from_fn(|ix| Row { x: tile.rows.get(ix).map_or(0, |row| row.x), out: ix * LANES });
    let tile = Tile {
        result: StorageType::F32,
        out: sums.start().cast(),
        rows: &rows[..tile.rows.len()],
        vector_stride: STRIDED_ROWS_MAX * LANES,
        residual: None,
        limits: None,
        ..*tile
    };
    // SAFETY: the caller's promise; `sums` has room for all rows.
    unsafe { multiply_by(isa, method, &tile) };
}

/// Words from one row to the next in `x`, if all rows have one stride.
fn distance(rows: &[Row]) -> Option<usize> {
    let distance = |pair: &[Row]| pair[1].x.wrapping_sub(pair[0].x);
    let first = rows.get(..2).map_or(LANES, distance);
    rows.windows(2).all(|pair| distance(pair) == first).then_some(first)
}

/// Computes `vectors` vectors at a time, each in parts of nearly equal heights.
///
/// # Safety
/// As [`multiply`]; `parts[n - 1]` is for `n` rows of `vectors` vectors, which divides the tile's vectors.
unsafe fn run_in_parts(tile: &Tile, vectors: usize, parts: &[Microkernel]) {
    if tile.vectors == vectors && tile.rows.len() <= parts.len() {
        // SAFETY: the caller's promise.
        return unsafe { parts[tile.rows.len() - 1](tile, tile.rows, 0) };
    }
    let count = tile.rows.len().div_ceil(parts.len());
    let mut tile = *tile;
    for vector in (0..tile.vectors).step_by(vectors) {
        let mut rest = tile.rows;
        for part in 0..count {
            let rows;
            (rows, rest) = rest.split_at(rest.len().div_ceil(count - part));
            // Each part runs all iterations: the prologue dominates for so few rows.
            // SAFETY: the caller's promise.
            unsafe { parts[rows.len() - 1](&tile, rows, vector) };
            // The first part prefetched all of it.
            tile.prefetch = Prefetch::NONE;
        }
    }
}
