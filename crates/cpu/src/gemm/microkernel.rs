//! [`compute`]: the innermost loops, over some rows and vectors of a tile.
//!
//! No sum may leave its register in the innermost loop. Check a change in the functions `avx512`, `avx2` and `neon` of
//! `cargo rustc --release -p prestow-cpu --lib -- --emit asm`: none of them moves a vector to or from the stack.

use crate::gemm::operands::Operands;
use crate::gemm::prefetch::{LINE, Prefetch};
use crate::gemm::tile::{Compact, Dequant, Init, ROWS, Repeat, Row, Tile, Word};
use crate::simd::storage::Item;
use crate::simd::vector::{LANES, Vector};

/// Prefetch distance in rows of weights: as many as a high tile takes during one memory access. The hardware prefetcher
/// does the same but stops at a page, which is 32 rows.
const AHEAD: usize = 24;

/// Values of [`compute`]'s `S`: rows at any address, or with one stride. Any other value is the stride itself.
pub(crate) const ANYWHERE: usize = usize::MAX;
pub(crate) const EVENLY: usize = usize::MAX - 1;

/// Computes R rows of N vectors of a tile, from `vector` on, with U partial sums each. Rows have a stride of S words,
/// [`EVENLY`], or are [`ANYWHERE`]: then fourteen addresses do not fit the registers and are loaded for each term.
///
/// # Safety
/// As [`crate::gemm::dispatch::multiply`]; rows have the stride.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
pub(crate) unsafe fn compute<
    V: Vector,
    F: Operands<V>,
    T: Item,
    const R: usize,
    const N: usize,
    const U: usize,
    const S: usize,
>(
    tile: &Tile,
    rows: &[Row],
    vector: usize,
) {
    let rows: &[Row; R] = rows.try_into().expect("the table has a function for each number of rows");
    let (width, next_vector) = (tile.weight_stride, tile.weight_vector);
    // All rows start from one vector, zeros included: clearing each register would take as many instructions more.
    let bias = match tile.init {
        Init::Bias(bias) => bias,
        Init::Zero | Init::Accumulate | Init::Dequant(_) => ZEROS.as_ptr(),
    };
    let accumulates = matches!(tile.init, Init::Accumulate);
    let scale = match tile.compact {
        Some(Compact::Int8(scale)) => scale,
        Some(Compact::Bf16) | None => ZEROS.as_ptr(),
    };
    // Sums that are scaled in the end get their bias behind the scale.
    let (start, scale, bias) = match tile.init {
        Init::Dequant(Dequant { start, scale: Some(scale), bias: own, .. }) if F::IS_SCALED => {
            (start.cast(), scale, own.unwrap_or(bias))
        }
        _ if F::IS_SCALED => (ZEROS.as_ptr(), scale, bias),
        _ => (bias, ZEROS.as_ptr(), ZEROS.as_ptr()),
    };
    let (mut tile_x, mut tile_weights, mut tile_out) = (tile.x, tile.weights, 0);
    let mut prefetch = tile.prefetch;
    for _ in 0..tile.repeat.iterations {
        // SAFETY: the caller's promise. Addresses are those of the formula of `Tile`, for these rows and the vectors from
        // `vector` on.
        unsafe {
            let weights = tile_weights.wrapping_byte_add(vector * next_vector * F::WEIGHT_BYTES);
            // No closures: one that is not inlined is not compiled for the instruction set.
            let mut begin = [F::sum(V::zero()); N];
            for v in 0..N {
                begin[v] = F::sum(V::load(start.add((vector + v) * LANES)));
            }
            let mut sums = [begin; R];
            let mut partial = [[[F::sum(V::zero()); N]; R]; U];
            let mut common = [F::Common::default(); N];
            if accumulates && !F::IS_SCALED {
                let out: *const f32 = tile.out.cast_const().cast::<f32>().add(tile_out + vector * tile.vector_stride);
                for r in 0..R {
                    for v in 0..N {
                        sums[r][v] = F::sum(V::load(out.add(rows[r].out + v * tile.vector_stride)));
                    }
                }
            }
            // The residual, which is often the output, is loaded while the sums are computed.
            if let Some(residual) = tile.residual.or(tile.read_back.then_some(tile.out.cast_const())) {
                let residual = residual.cast::<T>().wrapping_add(tile_out + vector * tile.vector_stride);
                for r in 0..R {
                    for v in 0..N {
                        V::prefetch(residual.wrapping_add(rows[r].out + v * tile.vector_stride));
                    }
                }
            }
            let first = tile_x.add(rows[0].x);
            let distance = if R == 1 { 0 } else { rows[R.min(2) - 1].x.wrapping_sub(rows[0].x) };
            let x: [*const Word; R] = std::array::from_fn(|r| match S {
                ANYWHERE | EVENLY => tile_x.add(rows[r].x),
                _ => first.wrapping_add(r * S),
            });
            for k_loop in tile.k_loops {
                let [outer, middle, inner] = k_loop.loops;
                for turn in 0..outer.iterations {
                    for turn_2 in 0..middle.iterations {
                        let mut shift = k_loop.x + turn * outer.x + turn_2 * middle.x;
                        let mut place = k_loop.weights + turn * outer.weights + turn_2 * middle.weights;
                        for _ in 0..inner.iterations {
                            // Hardware does not predict where the next iteration reads rows, unless it reads on. Few terms
                            // take less time than memory.
                            if 1 < inner.iterations && inner.x != k_loop.depth && LINE <= k_loop.depth {
                                for r in 0..R {
                                    V::prefetch(x[r].wrapping_add(shift + inner.x));
                                }
                            }
                            (sums, partial) = sum_terms::<V, F, R, N, U, S>(
                                Terms {
                                    x,
                                    distance,
                                    shift,
                                    weights: weights.wrapping_byte_add(place * F::WEIGHT_BYTES),
                                    width,
                                    next_vector,
                                    depth: k_loop.depth,
                                },
                                (sums, partial),
                                &mut common,
                                &mut prefetch,
                            );
                            (shift, place) = (shift + inner.x, place + inner.weights);
                        }
                    }
                }
            }
            if 1 < U {
                for r in 0..R {
                    for v in 0..N {
                        for u in 0..U {
                            sums[r][v] = F::add(sums[r][v], partial[u][r][v]);
                        }
                    }
                }
            }
            let mut results = [[V::zero(); N]; R];
            for r in 0..R {
                for v in 0..N {
                    results[r][v] = F::lanes(sums[r][v], common[v]);
                }
            }
            if F::IS_SCALED {
                let out = tile.out.cast_const().cast::<f32>().wrapping_add(tile_out + vector * tile.vector_stride);
                for v in 0..N {
                    let scale = V::load(scale.add((vector + v) * LANES));
                    let bias = V::load(bias.add((vector + v) * LANES));
                    for r in 0..R {
                        let first = match accumulates {
                            true => V::load(out.wrapping_add(rows[r].out + v * tile.vector_stride)),
                            false => bias,
                        };
                        results[r][v] = results[r][v].mul_add(scale, first);
                    }
                }
            }
            finish::<V, T, R, N>(tile, rows, tile_out + vector * tile.vector_stride, results);
        }
        let Repeat { x, weights, out, .. } = tile.repeat;
        (tile_x, tile_weights) = (tile_x.wrapping_add(x), tile_weights.wrapping_byte_add(weights * F::WEIGHT_BYTES));
        tile_out += out;
    }
}

/// Consecutive terms of R rows: where they are, and how many.
#[derive(Clone, Copy)]
struct Terms<const R: usize> {
    /// Each row's operand, and how many words from there the first term is.
    x: [*const Word; R],
    /// Words from the first row to the second.
    distance: usize,
    shift: usize,
    /// The first term's weights, and words to those of the next.
    weights: *const Word,
    width: usize,
    /// Words from the first vector's weights to those of the second.
    next_vector: usize,
    depth: usize,
}

/// Sums of R rows of N vectors.
type Sums<S, const R: usize, const N: usize> = [[S; N]; R];

/// Adds terms to the sums, or to U partial sums in turn.
///
/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn sum_terms<V: Vector, F: Operands<V>, const R: usize, const N: usize, const U: usize, const S: usize>(
    terms: Terms<R>,
    (mut sums, mut partial): (Sums<F::Sum, R, N>, [Sums<F::Sum, R, N>; U]),
    common: &mut [F::Common; N],
    prefetch: &mut Prefetch,
) -> (Sums<F::Sum, R, N>, [Sums<F::Sum, R, N>; U]) {
    let Terms { x, distance, shift, mut weights, width, next_vector, depth: mut rest } = terms;
    let mut at = shift;
    // Every third row has an address; the next two rows are one and two distances from it.
    let mut thirds: [*const Word; ROWS.div_ceil(3)] =
        std::array::from_fn(|ix| x[0].wrapping_add((3 * ix).wrapping_mul(distance)).wrapping_add(shift));
    // SAFETY: the caller's promise.
    unsafe {
        while rest != 0 {
            let depth = rest.min(LINE);
            rest -= depth;
            prefetch.step::<V>();
            // High tiles add one term per iteration: a second loop would move their sums to other registers.
            if 1 < U {
                for _ in 0..depth / U {
                    #[expect(clippy::needless_range_loop, reason = "a constant trip count keeps sums in registers")]
                    for u in 0..U {
                        let weights = weights.wrapping_byte_add(u * width * F::WEIGHT_BYTES);
                        partial[u] = term::<V, F, R, N>(partial[u], common, x, at + u, weights, next_vector);
                    }
                    (at, weights) = (at + U, weights.wrapping_byte_add(U * width * F::WEIGHT_BYTES));
                }
            }
            for _ in 0..if 1 < U { depth % U } else { depth } {
                for v in 0..N {
                    let ahead = AHEAD.wrapping_mul(width).wrapping_add(v * next_vector);
                    V::prefetch(weights.wrapping_byte_add(ahead * F::WEIGHT_BYTES));
                }
                if S == EVENLY && U == 1 {
                    let x: [*const Word; R] =
                        std::array::from_fn(|r| thirds[r / 3].wrapping_add((r % 3).wrapping_mul(distance)));
                    sums = term::<V, F, R, N>(sums, common, x, 0, weights, next_vector);
                    thirds = thirds.map(|third| opaque_place(third.wrapping_add(1)));
                } else {
                    sums = term::<V, F, R, N>(sums, common, x, at, weights, next_vector);
                    at = opaque(at + 1);
                }
                weights = weights.wrapping_byte_add(width * F::WEIGHT_BYTES);
            }
        }
    }
    (sums, partial)
}

/// Initial value of sums without a bias.
static ZEROS: [f32; 2 * LANES] = [0.0; 2 * LANES];

/// Adds the residual, clamps and writes results, from element `first` of the tile's output on.
///
/// # Safety
/// As [`crate::gemm::dispatch::multiply`]; `T` is the tile's type of results.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each result in a register")]
unsafe fn finish<V: Vector, T: Item, const R: usize, const N: usize>(
    tile: &Tile,
    rows: &[Row; R],
    first: usize,
    mut results: [[V; N]; R],
) {
    let stride = tile.vector_stride;
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(residual) = tile.residual {
            let residual: *const T = residual.cast::<T>().add(first);
            for r in 0..R {
                for v in 0..N {
                    results[r][v] = results[r][v].add(T::load(residual.add(rows[r].out + v * stride)));
                }
            }
        }
        if let Some([low, high]) = tile.limits {
            let low = V::splat(low);
            for r in 0..R {
                for v in 0..N {
                    results[r][v] = results[r][v].at_least(low);
                }
            }
            if high < f32::INFINITY {
                let high = V::splat(high);
                for r in 0..R {
                    for v in 0..N {
                        results[r][v] = results[r][v].at_most(high);
                    }
                }
            }
        }
        let out: *mut T = tile.out.cast::<T>().add(first);
        for r in 0..R {
            for v in 0..N {
                T::store(results[r][v], out.add(rows[r].out + v * stride));
            }
        }
    }
}

/// Returns `number`, opaque to the compiler. Otherwise it would keep an address for each row, more than there are
/// registers, and update each at every loop; so it adds one number to fourteen constant addresses.
#[inline(always)]
fn opaque(number: usize) -> usize {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let same: usize;
        // SAFETY: the asm template is only a comment; it emits no instruction and leaves the register unchanged.
        unsafe {
            std::arch::asm!("/* {0} */", inlateout(reg) number => same, options(pure, nomem, nostack, preserves_flags));
        }
        same
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    number
}

/// Returns `place`, opaque to the compiler.
#[inline(always)]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read through it here")
)]
fn opaque_place(place: *const Word) -> *const Word {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let same: *const Word;
        // SAFETY: as in `opaque`.
        unsafe {
            std::arch::asm!("/* {0} */", inlateout(reg) place => same, options(pure, nomem, nostack, preserves_flags));
        }
        same
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    place
}

/// Adds one term: the word at `at` of each row's `x` by the vectors of weights.
///
/// # Safety
/// Both can be read.
#[inline(always)]
unsafe fn term<V: Vector, F: Operands<V>, const R: usize, const N: usize>(
    mut sums: [[F::Sum; N]; R],
    common: &mut [F::Common; N],
    x: [*const Word; R],
    at: usize,
    weights: *const Word,
    next_vector: usize,
) -> [[F::Sum; N]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let weights: [F::Weights; N] =
            std::array::from_fn(|v| F::weights(weights.wrapping_byte_add(v * next_vector * F::WEIGHT_BYTES)));
        for v in 0..N {
            common[v] = F::add_common(common[v], weights[v]);
        }
        for r in 0..R {
            let item = F::item(x[r].add(at));
            for v in 0..N {
                sums[r][v] = F::mul_add(item, weights[v], sums[r][v]);
            }
        }
    }
    sums
}
