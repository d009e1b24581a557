//! The inverse transform of a block to 8 x 8 samples or fewer: that of libjpeg in exact integers.

/// The larger of the limits within which no sum of the transform overflows; valid files stay far below.
const COEFFICIENT_MAX: i32 = 8191;
const HALF_DONE_MAX: i32 = 16383;

/// The inverse transform to blocks of one size.
#[derive(Clone, Copy)]
pub(super) struct Transform {
    size: usize,
    apply: fn(&[i16; 64], &[i32; 64], &mut [u8], usize),
}

impl Transform {
    /// The transform to `size` x `size` samples: 8, 4, 2 or 1.
    pub(super) fn new(size: usize) -> Transform {
        let apply = match size {
            8 => eight_by_eight(),
            4 => four_by_four,
            2 => two_by_two,
            _ => one,
        };
        Transform { size, apply }
    }

    /// Writes the samples of a block whose coefficients are quantized by `table`. Only its first coefficient is not 0 if
    /// `is_flat`.
    pub(super) fn apply(&self, block: &[i16; 64], is_flat: bool, table: &[i32; 64], out: &mut [u8], stride: usize) {
        if !is_flat {
            return (self.apply)(block, table, out, stride);
        }
        let value = sample((coefficient(block, table, 0) * 4 + 16) >> 5);
        for row in out.chunks_mut(stride).take(self.size) {
            row[..self.size].fill(value);
        }
    }
}

fn coefficient(block: &[i16; 64], table: &[i32; 64], ix: usize) -> i32 {
    (i32::from(block[ix]) * table[ix]).clamp(-COEFFICIENT_MAX, COEFFICIENT_MAX)
}

/// Samples are stored around 0.
fn sample(value: i32) -> u8 {
    (value + 128).clamp(0, 255) as u8
}

fn eight_by_eight() -> fn(&[i16; 64], &[i32; 64], &mut [u8], usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return |block, table, out, stride| {
            #[expect(unsafe_code, reason = "the function is compiled for another processor")]
            // SAFETY: the processor has AVX2.
            unsafe {
                avx2::transform(block, table, out, stride);
            }
        };
    }
    plain
}

fn plain(block: &[i16; 64], table: &[i32; 64], out: &mut [u8], stride: usize) {
    let mut half = [0i32; 64];
    for x in 0..8 {
        let column = butterfly(std::array::from_fn(|y| coefficient(block, table, y * 8 + x)));
        for (y, sum) in column.into_iter().enumerate() {
            half[y * 8 + x] = ((sum + (1 << 10)) >> 11).clamp(-HALF_DONE_MAX, HALF_DONE_MAX);
        }
    }
    for (row, out) in half.as_chunks::<8>().0.iter().zip(out.chunks_mut(stride)) {
        let sums = butterfly(*row);
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sample((sum + (1 << 17)) >> 18);
        }
    }
}

/// Eight outputs of the one-dimensional transform, with 13 fractional bits.
fn butterfly(input: [i32; 8]) -> [i32; 8] {
    let sum = (input[2] + input[6]) * 4433;
    let (even2, even3) = (sum - input[6] * 15137, sum + input[2] * 6270);
    let (even0, even1) = ((input[0] + input[4]) << 13, (input[0] - input[4]) << 13);
    let even = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];
    let [a, b, c, d] = [input[7], input[5], input[3], input[1]];
    let all = (a + c + b + d) * 9633;
    let (z1, z2) = ((a + d) * -7373, (b + c) * -20995);
    let (z3, z4) = ((a + c) * -16069 + all, (b + d) * -3196 + all);
    let odd = [d * 12299 + z1 + z4, c * 25172 + z2 + z3, b * 16819 + z2 + z4, a * 2446 + z1 + z3];
    [
        even[0] + odd[0],
        even[1] + odd[1],
        even[2] + odd[2],
        even[3] + odd[3],
        even[3] - odd[3],
        even[2] - odd[2],
        even[1] - odd[1],
        even[0] - odd[0],
    ]
}

/// Half of the size (`jpeg_idct_4x4` of `jidctred.c`). Row and column 4 have no effect.
fn four_by_four(block: &[i16; 64], table: &[i32; 64], out: &mut [u8], stride: usize) {
    let half_butterfly = |input: [i32; 8]| {
        let even = input[2] * 15137 - input[6] * 6270;
        let (even0, even1) = ((input[0] << 14) + even, (input[0] << 14) - even);
        let [a, b, c, d] = [input[7], input[5], input[3], input[1]];
        let odd0 = a * -1730 + b * 11893 + c * -17799 + d * 8697;
        let odd1 = a * -4176 + b * -4926 + c * 7373 + d * 20995;
        [even0 + odd1, even1 + odd0, even1 - odd0, even0 - odd1]
    };
    let mut half = [[0i32; 8]; 4];
    for x in [0, 1, 2, 3, 5, 6, 7] {
        let column = half_butterfly(std::array::from_fn(|y| coefficient(block, table, y * 8 + x)));
        for (y, sum) in column.into_iter().enumerate() {
            half[y][x] = ((sum + (1 << 11)) >> 12).clamp(-HALF_DONE_MAX, HALF_DONE_MAX);
        }
    }
    for (row, out) in half.into_iter().zip(out.chunks_mut(stride)) {
        for (out, sum) in out.iter_mut().zip(half_butterfly(row)) {
            *out = sample((sum + (1 << 18)) >> 19);
        }
    }
}

/// A quarter of the size (`jpeg_idct_2x2`). Of the even rows and columns only the first has an effect.
fn two_by_two(block: &[i16; 64], table: &[i32; 64], out: &mut [u8], stride: usize) {
    let quarter_butterfly = |input: [i32; 8]| {
        let odd = input[7] * -5906 + input[5] * 6967 + input[3] * -10426 + input[1] * 29692;
        [(input[0] << 15) + odd, (input[0] << 15) - odd]
    };
    let mut half = [[0i32; 8]; 2];
    for x in [0, 1, 3, 5, 7] {
        let column = quarter_butterfly(std::array::from_fn(|y| coefficient(block, table, y * 8 + x)));
        for (y, sum) in column.into_iter().enumerate() {
            half[y][x] = ((sum + (1 << 12)) >> 13).clamp(-HALF_DONE_MAX, HALF_DONE_MAX);
        }
    }
    for (row, out) in half.into_iter().zip(out.chunks_mut(stride)) {
        for (out, sum) in out.iter_mut().zip(quarter_butterfly(row)) {
            *out = sample((sum + (1 << 19)) >> 20);
        }
    }
}

/// The mean of the block (`jpeg_idct_1x1`).
fn one(block: &[i16; 64], table: &[i32; 64], out: &mut [u8], _: usize) {
    out[0] = sample((coefficient(block, table, 0) + 4) >> 3);
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! The transform to 8 x 8 samples on vectors of 8 columns, then of 8 rows.

    use std::arch::x86_64::*;

    use super::{COEFFICIENT_MAX, HALF_DONE_MAX};

    type Rows = [__m256i; 8];

    #[target_feature(enable = "avx2")]
    pub(super) fn transform(block: &[i16; 64], table: &[i32; 64], out: &mut [u8], stride: usize) {
        let mut rows = [_mm256_setzero_si256(); 8];
        for y in 0..8 {
            let (block, table) = (&block[8 * y..8 * y + 8], &table[8 * y..8 * y + 8]);
            #[expect(unsafe_code, reason = "vectors are read by pointers")]
            // SAFETY: both slices have 8 elements.
            let (block, table) =
                unsafe { (_mm_loadu_si128(block.as_ptr().cast()), _mm256_loadu_si256(table.as_ptr().cast())) };
            rows[y] = clamped::<COEFFICIENT_MAX>(_mm256_mullo_epi32(_mm256_cvtepi16_epi32(block), table));
        }
        let mut half = butterfly(rows);
        for sums in &mut half {
            *sums = clamped::<HALF_DONE_MAX>(_mm256_srai_epi32::<11>(_mm256_add_epi32(*sums, splat(1 << 10))));
        }
        let mut sums = butterfly(transposed(half));
        for sums in &mut sums {
            *sums = _mm256_srai_epi32::<18>(_mm256_add_epi32(*sums, splat(1 << 17)));
        }
        let rows = transposed(sums);
        for four in 0..2 {
            let at = 4 * four;
            let around_0 = _mm256_set1_epi16(128);
            let first = _mm256_adds_epi16(_mm256_packs_epi32(rows[at], rows[at + 1]), around_0);
            let second = _mm256_adds_epi16(_mm256_packs_epi32(rows[at + 2], rows[at + 3]), around_0);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let samples = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
            let mut bytes = [0u8; 32];
            #[expect(unsafe_code, reason = "vectors are written by pointers")]
            // SAFETY: 32 bytes.
            unsafe {
                _mm256_storeu_si256(bytes.as_mut_ptr().cast(), samples);
            }
            for (y, row) in bytes.as_chunks::<8>().0.iter().enumerate() {
                out[(at + y) * stride..][..8].copy_from_slice(row);
            }
        }
    }

    #[target_feature(enable = "avx2")]
    fn splat(value: i32) -> __m256i {
        _mm256_set1_epi32(value)
    }

    #[target_feature(enable = "avx2")]
    fn clamped<const MAX: i32>(values: __m256i) -> __m256i {
        _mm256_max_epi32(_mm256_min_epi32(values, splat(MAX)), splat(-MAX))
    }

    #[target_feature(enable = "avx2")]
    fn times(values: __m256i, factor: i32) -> __m256i {
        _mm256_mullo_epi32(values, splat(factor))
    }

    /// [`super::butterfly`] of each element.
    #[target_feature(enable = "avx2")]
    fn butterfly(input: Rows) -> Rows {
        let sum = times(_mm256_add_epi32(input[2], input[6]), 4433);
        let even2 = _mm256_sub_epi32(sum, times(input[6], 15137));
        let even3 = _mm256_add_epi32(sum, times(input[2], 6270));
        let even0 = _mm256_slli_epi32::<13>(_mm256_add_epi32(input[0], input[4]));
        let even1 = _mm256_slli_epi32::<13>(_mm256_sub_epi32(input[0], input[4]));
        let even = [
            _mm256_add_epi32(even0, even3),
            _mm256_add_epi32(even1, even2),
            _mm256_sub_epi32(even1, even2),
            _mm256_sub_epi32(even0, even3),
        ];
        let [a, b, c, d] = [input[7], input[5], input[3], input[1]];
        let (ac, bd) = (_mm256_add_epi32(a, c), _mm256_add_epi32(b, d));
        let all = times(_mm256_add_epi32(ac, bd), 9633);
        let z1 = times(_mm256_add_epi32(a, d), -7373);
        let z2 = times(_mm256_add_epi32(b, c), -20995);
        let z3 = _mm256_add_epi32(times(ac, -16069), all);
        let z4 = _mm256_add_epi32(times(bd, -3196), all);
        let odd = [
            _mm256_add_epi32(times(d, 12299), _mm256_add_epi32(z1, z4)),
            _mm256_add_epi32(times(c, 25172), _mm256_add_epi32(z2, z3)),
            _mm256_add_epi32(times(b, 16819), _mm256_add_epi32(z2, z4)),
            _mm256_add_epi32(times(a, 2446), _mm256_add_epi32(z1, z3)),
        ];
        [
            _mm256_add_epi32(even[0], odd[0]),
            _mm256_add_epi32(even[1], odd[1]),
            _mm256_add_epi32(even[2], odd[2]),
            _mm256_add_epi32(even[3], odd[3]),
            _mm256_sub_epi32(even[3], odd[3]),
            _mm256_sub_epi32(even[2], odd[2]),
            _mm256_sub_epi32(even[1], odd[1]),
            _mm256_sub_epi32(even[0], odd[0]),
        ]
    }

    #[target_feature(enable = "avx2")]
    fn transposed(rows: Rows) -> Rows {
        let [a, b, c, d, e, f, g, h] = rows;
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        let (ef, gh) = (_mm256_unpacklo_epi32(e, f), _mm256_unpacklo_epi32(g, h));
        let (ef_high, gh_high) = (_mm256_unpackhi_epi32(e, f), _mm256_unpackhi_epi32(g, h));
        let upper = [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ];
        let lower = [
            _mm256_unpacklo_epi64(ef, gh),
            _mm256_unpackhi_epi64(ef, gh),
            _mm256_unpacklo_epi64(ef_high, gh_high),
            _mm256_unpackhi_epi64(ef_high, gh_high),
        ];
        let mut columns = rows;
        for ix in 0..4 {
            columns[ix] = _mm256_permute2x128_si256::<0x20>(upper[ix], lower[ix]);
            columns[ix + 4] = _mm256_permute2x128_si256::<0x31>(upper[ix], lower[ix]);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    #[test]
    fn vector_transform_equals_the_plain_one() {
        let mut random = Random::new(3);
        let vector = Transform::new(8);
        for round in 0..20_000 {
            let (mut block, mut table) = ([0i16; 64], [1i32; 64]);
            let bits = 1 + random.below(16) as u32;
            for _ in 0..random.below(65) {
                block[random.below(64) as usize] = (random.bits() as i16) >> (16 - bits);
            }
            table.iter_mut().for_each(|step| *step = 1 + random.below(if round % 3 == 0 { 65_535 } else { 64 }) as i32);
            let (mut want, mut found) = ([0u8; 8 * 11], [0u8; 8 * 11]);
            plain(&block, &table, &mut want, 11);
            vector.apply(&block, false, &table, &mut found, 11);
            assert_eq!(want, found, "round {round}: {block:?} {table:?}");
        }
    }

    #[test]
    fn flat_block_has_equal_samples_of_any_size() {
        for dc in -1200..1200i16 {
            let mut block = [0i16; 64];
            block[0] = dc;
            let table = [3i32; 64];
            for size in [8, 4, 2, 1] {
                let (mut want, mut found) = ([0u8; 64], [0u8; 64]);
                let transform = Transform::new(size);
                (transform.apply)(&block, &table, &mut want, 8);
                transform.apply(&block, true, &table, &mut found, 8);
                assert_eq!(want, found, "{dc} {size}");
            }
        }
    }
}
