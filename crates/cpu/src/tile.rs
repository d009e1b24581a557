//! [`multiply`]: the room of the innermost loop. A tile of pixels by two vectors of channels stays in registers.
//!
//! ```text
//!                  +---------------------+
//!                  | k x 32 weights      |   packed: 32 (or 16) side by side for each k
//!                  +---------------------+
//!   rows: pixels   +---------------------+
//!   at any places  | 14 x 32 sums        |   28 of the 32 registers of AVX-512
//!                  +---------------------+
//! ```
//!
//! For each `k` the weights of 32 output channels are loaded once, and one element of each pixel is broadcast and
//! multiplied into both vectors. Pixels may lie anywhere: each has an offset of its own, so that a tile may run over
//! several rows of a picture, with any stride. What `k` runs over is a list of [`Nest`]s.
//!
//! No sum may leave its register in the innermost loop. Whoever changes it looks at the functions `avx512` and `avx2` in
//! `cargo rustc --release -p prestow-cpu --lib -- --emit asm`: none moves a vector to or from the stack.
//!
//! AVX-512 has registers for 14 rows of two vectors, AVX2 for 6 of one, others for fewer: they take a tile in parts. All
//! read the same bytes. In what order a row's terms are added depends on the height of its tile, as few rows have several
//! partial sums: a kernel whose results are the same for any number of threads cuts its tiles by its shape alone.

use crate::Isa;
use crate::vector::{LANES, Portable, Vector};

/// The most rows of a tile.
pub(crate) const ROWS: usize = 14;

/// The most rows of a tile that the family takes in parts of full size.
pub(crate) fn rows_max(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => ROWS,
        Isa::Avx2 | Isa::Portable => 12,
    }
}

/// A loop around a product: how often, and how far each turn goes on in `x` and in the weights.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loop {
    pub(crate) turns: usize,
    pub(crate) x: usize,
    pub(crate) weights: usize,
}

impl Loop {
    /// A loop of one turn.
    pub(crate) const ONCE: Loop = Loop { turns: 1, x: 0, weights: 0 };
}

/// Terms of a sum: `depth` neighbours in `x`, with as many rows of weights, in three loops (the outermost first).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nest {
    /// Where the first term is, in elements from the tile's `x` and `weights`.
    pub(crate) x: usize,
    pub(crate) weights: usize,
    pub(crate) loops: [Loop; 3],
    pub(crate) depth: usize,
}

/// Where a row reads and writes, in elements from the tile's `x` and `out`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) x: usize,
    pub(crate) out: usize,
}

/// What sums begin with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    Zero,
    /// A number for each channel of the tile.
    Bias(*const f32),
    /// What lies in the output.
    Output,
}

/// A tile of sums: for each row `r`, vector `v`, and term `k` of the nests,
/// `out[r.out + v * vector_stride + lane] = sum of x[r.x + k.x] * weights[k.weights + v * 16 + lane]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile<'a> {
    pub(crate) x: *const f32,
    /// A row for each `k`.
    pub(crate) weights: *const f32,
    /// Elements from row to row, `16 * vectors` where they are packed.
    pub(crate) weight_stride: usize,
    pub(crate) out: *mut f32,
    /// 1 to [`ROWS`].
    pub(crate) rows: &'a [Row],
    /// Vectors of a row, 1 or 2.
    pub(crate) vectors: usize,
    /// Elements of the output from a row's first vector to its second.
    pub(crate) vector_stride: usize,
    pub(crate) nests: &'a [Nest],
    pub(crate) start: Start,
    /// Added to the sums; lies like the output, and may be the output.
    pub(crate) residual: Option<*const f32>,
    /// Limits of the results, the lower first; what is no number stays so.
    pub(crate) limits: Option<[f32; 2]>,
}

/// Computes a tile.
///
/// # Panics
/// No row, more than [`ROWS`], or another number of vectors than 1 and 2.
///
/// # Safety
/// The processor has the family (a pool's it has). Every element that the formula of [`Tile`] reads can be read, and every
/// one that it writes can be written; nobody else uses those written meanwhile.
#[inline]
pub(crate) unsafe fn multiply(isa: Isa, tile: &Tile) {
    assert!((1..=ROWS).contains(&tile.rows.len()) && (1..=2).contains(&tile.vectors), "a tile fits");
    // SAFETY: the caller's promise; the parts below are rows and vectors of the tile.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => match tile.vectors {
                1 => x86::AVX512_NARROW[tile.rows.len() - 1](tile, tile.rows, 0),
                _ => x86::AVX512[tile.rows.len() - 1](tile, tile.rows, 0),
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => in_parts(tile, &x86::AVX2),
            _ => in_parts(tile, &PORTABLE),
        }
    }
}

/// A function for some rows of a tile and some of its vectors, from the one given on.
type Part = unsafe fn(&Tile, &[Row], usize);

/// Takes a tile vector by vector, each in parts of nearly as many rows.
///
/// # Safety
/// As [`multiply`]; `parts[n - 1]` is for `n` rows.
unsafe fn in_parts(tile: &Tile, parts: &[Part]) {
    let count = tile.rows.len().div_ceil(parts.len());
    for vector in 0..tile.vectors {
        let mut rest = tile.rows;
        for part in 0..count {
            let rows;
            (rows, rest) = rest.split_at(rest.len().div_ceil(count - part));
            // SAFETY: the caller's promise.
            unsafe { parts[rows.len() - 1](tile, rows, vector) };
        }
    }
}

/// # Safety
/// As [`multiply`].
unsafe fn portable<const R: usize>(tile: &Tile, rows: &[Row], vector: usize) {
    // SAFETY: the caller's promise.
    unsafe { part::<Portable, R, 1, 1>(tile, rows, vector) }
}

const PORTABLE: [Part; 4] = [portable::<1>, portable::<2>, portable::<3>, portable::<4>];

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Part, ROWS, Row, Tile, part};
    use crate::vector::x86::{Avx2, Avx512};

    // Never inlined: each is compiled on its own, so that its sums get all registers.

    /// # Safety
    /// As [`super::multiply`], and the processor has AVX-512 F.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx2,fma")]
    unsafe fn avx512<const R: usize, const N: usize, const U: usize>(tile: &Tile, rows: &[Row], vector: usize) {
        // SAFETY: the caller's promise.
        unsafe { part::<Avx512, R, N, U>(tile, rows, vector) }
    }

    /// # Safety
    /// As [`super::multiply`], and the processor has AVX2 and FMA.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<const R: usize, const U: usize>(tile: &Tile, rows: &[Row], vector: usize) {
        // SAFETY: the caller's promise.
        unsafe { part::<Avx2, R, 1, U>(tile, rows, vector) }
    }

    macro_rules! by_rows {
        ($vectors:literal: $($rows:literal of $partial:literal)*) => {
            [$(avx512::<$rows, $vectors, $partial>),*]
        };
    }

    // Few rows have several partial sums: a multiplication is begun twice a cycle and takes four.
    pub(super) const AVX512: [Part; ROWS] = by_rows!(2: 1 of 4 2 of 2 3 of 2 4 of 1 5 of 1 6 of 1 7 of 1 8 of 1 9 of 1 10 of 1 11 of 1 12 of 1 13 of 1 14 of 1);
    pub(super) const AVX512_NARROW: [Part; ROWS] = by_rows!(1: 1 of 4 2 of 4 3 of 2 4 of 2 5 of 2 6 of 2 7 of 2 8 of 1 9 of 1 10 of 1 11 of 1 12 of 1 13 of 1 14 of 1);
    pub(super) const AVX2: [Part; 6] =
        [avx2::<1, 4>, avx2::<2, 2>, avx2::<3, 1>, avx2::<4, 1>, avx2::<5, 1>, avx2::<6, 1>];
}

/// R rows of N vectors of a tile, from `vector` on, with U partial sums each.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "only plain indices leave each sum in a register")]
unsafe fn part<V: Vector, const R: usize, const N: usize, const U: usize>(tile: &Tile, rows: &[Row], vector: usize) {
    let rows: &[Row; R] = rows.try_into().expect("the table has a function for each number of rows");
    let (width, stride) = (tile.weight_stride, tile.vector_stride);
    let mut sums = [[V::zero(); N]; R];
    let mut partial = [[[V::zero(); N]; R]; U];
    // SAFETY: the caller's promise. Addresses are those of the formula of `Tile`, for these rows and the vectors from
    // `vector` on.
    unsafe {
        let weights = tile.weights.add(vector * LANES);
        let out = tile.out.add(vector * stride);
        match tile.start {
            Start::Zero => {}
            Start::Bias(bias) => {
                let bias: [V; N] = std::array::from_fn(|v| V::load(bias.add((vector + v) * LANES)));
                sums = [bias; R];
            }
            Start::Output => {
                for r in 0..R {
                    for v in 0..N {
                        sums[r][v] = V::load(out.add(rows[r].out + v * stride));
                    }
                }
            }
        }
        let x: [*const f32; R] = std::array::from_fn(|r| tile.x.add(rows[r].x));
        for nest in tile.nests {
            let [outer, middle, inner] = nest.loops;
            for turn in 0..outer.turns {
                for turn_2 in 0..middle.turns {
                    let mut shift = nest.x + turn * outer.x + turn_2 * middle.x;
                    let mut place = nest.weights + turn * outer.weights + turn_2 * middle.weights;
                    for _ in 0..inner.turns {
                        let (mut at, mut weights) = (shift, weights.add(place));
                        // High tiles take one term a turn: with a second loop their sums would change registers.
                        if 1 < U {
                            for _ in 0..nest.depth / U {
                                for u in 0..U {
                                    partial[u] = term(partial[u], x, at + u, weights.add(u * width));
                                }
                                (at, weights) = (at + U, weights.add(U * width));
                            }
                        }
                        for _ in 0..if 1 < U { nest.depth % U } else { nest.depth } {
                            sums = term(sums, x, at, weights);
                            (at, weights) = (opaque(at + 1), weights.add(width));
                        }
                        (shift, place) = (shift + inner.x, place + inner.weights);
                    }
                }
            }
        }
        if 1 < U {
            for r in 0..R {
                for v in 0..N {
                    for u in 0..U {
                        sums[r][v] = sums[r][v].add(partial[u][r][v]);
                    }
                }
            }
        }
        if let Some(residual) = tile.residual {
            let residual = residual.add(vector * stride);
            for r in 0..R {
                for v in 0..N {
                    sums[r][v] = sums[r][v].add(V::load(residual.add(rows[r].out + v * stride)));
                }
            }
        }
        if let Some([low, high]) = tile.limits {
            let low = V::splat(low);
            for r in 0..R {
                for v in 0..N {
                    sums[r][v] = low.max(sums[r][v]);
                }
            }
            if high < f32::INFINITY {
                let high = V::splat(high);
                for r in 0..R {
                    for v in 0..N {
                        sums[r][v] = high.min(sums[r][v]);
                    }
                }
            }
        }
        for r in 0..R {
            for v in 0..N {
                sums[r][v].store(out.add(rows[r].out + v * stride));
            }
        }
    }
}

/// The same number, of which the compiler knows nothing. It would keep an address for each row, more than there are
/// registers, and go on with each whenever a loop begins anew; so it adds one number to fourteen places that stay.
#[inline(always)]
fn opaque(number: usize) -> usize {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let same: usize;
        // SAFETY: a comment is no instruction, so the register keeps its number.
        unsafe {
            std::arch::asm!("/* {0} */", inlateout(reg) number => same, options(pure, nomem, nostack, preserves_flags));
        }
        same
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    number
}

/// One term more: the element at `at` of each row's `x` by the vectors of weights.
///
/// # Safety
/// Both can be read.
#[inline(always)]
unsafe fn term<V: Vector, const R: usize, const N: usize>(
    mut sums: [[V; N]; R],
    x: [*const f32; R],
    at: usize,
    weights: *const f32,
) -> [[V; N]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let weights: [V; N] = std::array::from_fn(|v| V::load(weights.add(v * LANES)));
        for r in 0..R {
            let item = V::splat(*x[r].add(at));
            for v in 0..N {
                sums[r][v] = item.mul_add(weights[v], sums[r][v]);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_and_height_sums_its_nests() {
        let mut random = types::Random::new(3);
        for isa in Isa::available() {
            for (count, vectors) in (1..=ROWS).flat_map(|count| [(count, 1), (count, 2)]) {
                check(isa, count, vectors, &mut random);
            }
        }
    }

    /// Rows in any order and nests of all kinds against the formula; operands end where their allocations end.
    #[expect(clippy::needless_range_loop, reason = "an index of several slices")]
    fn check(isa: Isa, count: usize, vectors: usize, random: &mut types::Random) {
        let width = LANES * vectors;
        let depths = [16, 3, 7, 1, 0, 5].map(|depth| (depth, random.below(3) as usize, random.below(4) as usize));
        let (mut nests, mut x_len, mut terms) = (Vec::new(), 0, 0);
        for (depth, outer, inner) in depths {
            let loops = [
                Loop { turns: outer, x: 5, weights: inner * depth * width },
                Loop::ONCE,
                Loop { turns: inner, x: depth + 2, weights: depth * width },
            ];
            nests.push(Nest { x: nests.len(), weights: terms * width, loops, depth });
            terms += outer * inner * depth;
            if outer * inner * depth != 0 {
                x_len = x_len.max(nests.len() + (outer - 1) * 5 + (inner - 1) * (depth + 2) + depth);
            }
        }
        let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| random.uniform(-1.0, 1.0)).collect() };
        let x = numbers(x_len + 3 * count);
        let (weights, bias, before) = (numbers(terms * width), numbers(width), numbers(count * width));
        let rows: Vec<Row> = (0..count).map(|r| Row { x: (r * 5) % count * 3, out: (count - 1 - r) * LANES }).collect();
        for (start, residual, limits) in [
            (Start::Zero, false, None),
            (Start::Bias(bias.as_ptr()), true, Some([-0.5, 0.25])),
            (Start::Output, false, None),
        ] {
            let mut out = before.clone();
            let tile = Tile {
                x: x.as_ptr(),
                weights: weights.as_ptr(),
                weight_stride: width,
                out: out.as_mut_ptr(),
                rows: &rows,
                vectors,
                vector_stride: count * LANES,
                nests: &nests,
                start,
                residual: residual.then_some(before.as_ptr()),
                limits,
            };
            // SAFETY: the slices have the lengths that the rows and nests ask for.
            unsafe { multiply(isa, &tile) };
            for (r, row) in rows.iter().enumerate() {
                for channel in 0..width {
                    let at = row.out + channel / LANES * count * LANES + channel % LANES;
                    let mut want = match start {
                        Start::Zero => 0.0,
                        Start::Bias(_) => f64::from(bias[channel]),
                        Start::Output => f64::from(before[at]),
                    };
                    for nest in &nests {
                        let [outer, _, inner] = nest.loops;
                        for (a, b) in (0..outer.turns).flat_map(|a| (0..inner.turns).map(move |b| (a, b))) {
                            for k in 0..nest.depth {
                                let place = nest.weights + a * outer.weights + b * inner.weights + k * width + channel;
                                let item = x[row.x + nest.x + a * outer.x + b * inner.x + k];
                                want += f64::from(item) * f64::from(weights[place]);
                            }
                        }
                    }
                    if residual {
                        want += f64::from(before[at]);
                    }
                    if let Some([low, high]) = limits {
                        want = want.clamp(f64::from(low), f64::from(high));
                    }
                    assert!((f64::from(out[at]) - want).abs() < 1e-5, "{isa} {count} x {vectors}, row {r}");
                }
            }
        }
    }
}
