use prestow_cpu::{Attention, HeadStrides, Kernel, MaskStrides, Pool, StorageType};
use types::{HeadOrder, Random};

use super::common::{assert_close, bits, cases, numbers_of, pools, rounded, run, run_bytes};

const THREADS: [usize; 4] = [1, 2, 3, 5];

fn below(random: &mut Random, count: u64) -> usize {
    random.below(count) as usize
}

fn kernel(random: &mut Random, stored: StorageType) -> Attention {
    let pick = |random: &mut Random, of: &[usize]| of[below(random, of.len() as u64)];
    let (batch, heads) = (pick(random, &[1, 1, 2, 0]), pick(random, &[1, 2, 3]));
    let queries = pick(random, &[1, 2, 13, 14, 17, 29, 49, 141, 300, 0]);
    let keys = pick(random, &[1, 2, 15, 16, 49, 127, 128, 129, 300, 0]);
    let [mut width, mut value_width] = [0, 1].map(|_| pick(random, &[1, 3, 8, 16, 32, 40, 48, 64, 72, 130, 0]));
    if stored.is_half() {
        (width, value_width) = (width.next_multiple_of(2), value_width.min(Attention::HALF_VALUE_MAX));
    }
    let mut strides = |tokens: usize, width: usize| match below(random, 3) {
        0 => HeadStrides { batch: heads * tokens * width, head: tokens * width, token: width },
        // Queries, keys and values interleaved per token.
        1 => HeadStrides { batch: 3 * tokens * heads * width, head: width, token: 3 * heads * width },
        _ => HeadStrides { batch: tokens * heads * width, head: width, token: heads * width },
    };
    let strides = [strides(queries, width), strides(keys, width), strides(keys, value_width)];
    let mask = match below(random, 4) {
        0 => None,
        1 => Some(MaskStrides { batch: keys, head: 0, query: 0, key: 1 }),
        2 => Some(MaskStrides { batch: 0, head: queries, query: 1, key: 0 }),
        _ => Some(MaskStrides { batch: heads * queries * keys, head: queries * keys, query: keys, key: 1 }),
    };
    let order = if below(random, 2) == 0 { HeadOrder::HeadsFirst } else { HeadOrder::TokensFirst };
    let scale = random.uniform(0.1, 1.0);
    Attention { batch, heads, queries, keys, width, value_width, scale, strides, mask, order, stored }
}

fn judge(kernel: &Attention, [q, k, v, mask]: [&[f32]; 4]) -> Vec<f64> {
    let Attention { batch, heads, queries, keys, width, value_width, scale, strides, order, .. } = *kernel;
    let mut out = vec![0.0; batch * heads * queries * value_width];
    for b in 0..batch {
        for h in 0..heads {
            let at = |ix: usize, token: usize| b * strides[ix].batch + h * strides[ix].head + token * strides[ix].token;
            for query in 0..queries {
                let score = |key: usize| -> f64 {
                    let products = (0..width).map(|e| f64::from(q[at(0, query) + e]) * f64::from(k[at(1, key) + e]));
                    let more = kernel
                        .mask
                        .map_or(0.0, |m| f64::from(mask[b * m.batch + h * m.head + query * m.query + key * m.key]));
                    products.sum::<f64>() * f64::from(scale) + more
                };
                let scores: Vec<f64> = (0..keys).map(score).collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
                let sum: f64 = powers.iter().sum();
                for column in 0..value_width {
                    let place = match order {
                        HeadOrder::HeadsFirst => ((b * heads + h) * queries + query) * value_width + column,
                        HeadOrder::TokensFirst => ((b * queries + query) * heads + h) * value_width + column,
                    };
                    out[place] = (0..keys).map(|key| powers[key] / sum * f64::from(v[at(2, key) + column])).sum();
                }
            }
        }
    }
    out
}

fn check(kernel: &Attention, inputs: [&[f32]; 4], pools: &[Pool; 4], tolerance: f64) {
    let case = format!("{} {kernel:?}", pools[0].isa());
    let used = if kernel.mask.is_some() { 4 } else { 3 };
    let [first, more @ ..] = pools.each_ref().map(|pool| run(&kernel.clone().into(), &inputs[..used], pool));
    assert!(more.iter().all(|other| bits(other) == bits(&first)), "{case}: threads");
    assert_close(&first, &judge(kernel, inputs), |_| 1.0, tolerance, &case);
}

fn operands(kernel: &Attention, random: &mut Random, range: f32) -> [Vec<f32>; 4] {
    let sizes = Kernel::from(kernel.clone()).sizes().unwrap().inputs;
    std::array::from_fn(|ix| {
        let count = sizes.get(ix).map_or(0, |&size| size as usize / 4);
        (0..count).map(|_| random.uniform(-range, range)).collect()
    })
}

#[test]
fn attention_matches_its_definition() {
    let mut random = Random::new(41);
    let pools = pools(THREADS);
    for _ in 0..cases(60) {
        let kernel = kernel(&mut random, StorageType::F32);
        let inputs = operands(&kernel, &mut random, 1.0);
        // Scores are sums of up to 130 terms, and their errors become relative errors of exponentials.
        pools.iter().for_each(|pools| check(&kernel, inputs.each_ref().map(|i| &i[..]), pools, 1e-5));
    }
}

#[test]
fn masked_keys_do_not_contribute() {
    let mut random = Random::new(42);
    let (queries, keys) = (20, 300);
    let mask = Some(MaskStrides { batch: 0, head: 0, query: keys, key: 1 });
    let kernel = Attention { mask, ..one_head(queries, keys) };
    let [q, k, v, mut mask] = operands(&kernel, &mut random, 3.0);
    for (query, row) in mask.chunks_mut(keys).enumerate() {
        match query {
            // Everything before the last block is masked, or everything after the first, or everything.
            0 => row[..299].fill(f32::NEG_INFINITY),
            1 => row[1..].fill(f32::NEG_INFINITY),
            2 => row.fill(f32::NEG_INFINITY),
            3 => row[150] = f32::NAN,
            4 => row[200] = 1e30,
            _ => row[query..].fill(-1e9),
        }
    }
    for pools in pools(THREADS) {
        check(&kernel, [&q, &k, &v, &mask], &pools, 1e-5);
    }
}

fn one_head(queries: usize, keys: usize) -> Attention {
    let strides = |tokens: usize| HeadStrides { batch: tokens * 16, head: tokens * 16, token: 16 };
    Attention {
        batch: 1,
        heads: 1,
        queries,
        keys,
        width: 16,
        value_width: 16,
        scale: 0.25,
        strides: [strides(queries), strides(keys), strides(keys)],
        mask: None,
        order: HeadOrder::HeadsFirst,
        stored: StorageType::F32,
    }
}

#[test]
fn attention_in_half_precision_rounds_exponentials_and_results() {
    let mut random = Random::new(44);
    let pools = pools(THREADS);
    for (stored, tolerance) in [(StorageType::F16, 2e-3), (StorageType::Bf16, 1.6e-2)] {
        for _ in 0..cases(40) {
            let kernel = kernel(&mut random, stored);
            let sizes = Kernel::from(kernel.clone()).sizes().unwrap().inputs;
            let types = [stored, stored, stored, StorageType::F32];
            let numbers: Vec<Vec<f32>> = sizes
                .iter()
                .zip(types)
                .map(|(&size, stored)| {
                    let count = size as usize / stored.size();
                    rounded(stored, (0..count).map(|_| random.uniform(-1.0, 1.0)).collect())
                })
                .collect();
            let bytes: Vec<Vec<u8>> = numbers.iter().zip(types).map(|(items, stored)| stored.bytes(items)).collect();
            let operands = std::array::from_fn(|ix| numbers.get(ix).map_or(&[][..], |items| &items[..]));
            let want = judge(&kernel, operands);
            for pools in &pools {
                let case = format!("{} {kernel:?}", pools[0].isa());
                let [first, more @ ..] =
                    pools.each_ref().map(|pool| run_bytes(&kernel.clone().into(), &bytes, None, 7.0, pool));
                assert!(more.iter().all(|other| *other == first), "{case}: threads");
                assert_close(&numbers_of(stored, &first[0]), &want, |_| 1.0, tolerance, &case);
            }
        }
    }
    let odd = |change: fn(&mut Attention)| {
        let mut kernel = Attention { stored: StorageType::F16, ..one_head(3, 5) };
        change(&mut kernel);
        Kernel::from(kernel).sizes().is_err()
    };
    assert!(!odd(|_| {}));
    assert!(odd(|kernel| kernel.width = 15) && odd(|kernel| kernel.strides[1].token = 17));
    assert!(odd(|kernel| kernel.value_width = 130) && odd(|kernel| kernel.stored = StorageType::U8));
}

#[test]
fn attention_is_bit_identical_on_any_number_of_threads() {
    // Tiles of one vector, whose accumulators are divided up to a height of seven.
    let (pools, mut random) = (pools(THREADS), Random::new(43));
    for queries in 1..60 {
        let kernel = one_head(queries, 16);
        let inputs = operands(&kernel, &mut random, 1.0);
        pools.iter().for_each(|pools| check(&kernel, inputs.each_ref().map(|i| &i[..]), pools, 1e-5));
    }
}
