//! TF-IDF of texts whose words are integers.

use ir::ops::ReduceKind;
use ir::{Refusal, ops};
use smallvec::smallvec;
use types::pointwise::{Binary, Compare};
use types::{DType, Shape, Tensor};

use crate::common::{NodeResult, Operand, counts, refuse};
use crate::onnx::node::ImportedNode;

/// `x: [words]` or `[n, words]`, integers -> `f32` with a column per n-gram: the number of its occurrences, with up to
/// `max_skip_count` words skipped between its words.
pub(super) fn tf_idf(node: &mut ImportedNode) -> NodeResult {
    if node.texts("pool_strings")?.is_some() {
        refuse!("attribute `pool_strings`: strings are not supported");
    }
    let x = node.input(0)?;
    let shape = node.shape(x);
    if !matches!(shape.rank(), 1 | 2) || !matches!(node.dtype(x), DType::I32 | DType::I64) {
        refuse!("input must be integer words, [words] or [n, words], got {}{shape}", node.dtype(x));
    }
    let list = |name: &str| match node.ints(name)? {
        Some(list) => Ok(list),
        None => refuse!("attribute `{name}` is missing"),
    };
    let number = |name: &str| match node.int(name)? {
        Some(number) => Ok(counts(&[number], name)?[0]),
        None => refuse!("attribute `{name}` is missing"),
    };
    let (shortest, longest, skips) =
        (number("min_gram_length")?, number("max_gram_length")?, number("max_skip_count")?);
    let (pool, starts) = (list("pool_int64s")?, counts(&list("ngram_counts")?, "ngram_counts")?);
    let columns = counts(&list("ngram_indexes")?, "ngram_indexes")?;
    let weights = node.floats("weights")?.map(<[f32]>::to_vec);
    let mode = node.text_or("mode", "").to_string();
    let groups = groups(&pool, &starts, shortest, longest)?;
    if shortest == 0 || longest < shortest || starts.len() < longest || columns.len() != groups.count {
        refuse!(
            "n-grams of {shortest} to {longest} words do not fit {} indexes and {} counts",
            columns.len(),
            starts.len()
        );
    }
    let width = columns.iter().max().map_or(0, |&last| last.saturating_add(1));
    let mut sorted = columns.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) || 1 << 24 < width || 64 < skips {
        refuse!("{} n-grams in {width} columns with up to {skips} skipped words are not supported", columns.len());
    }
    // The operator's text assigns weights to n-grams, its reference implementation to columns.
    if weights.is_some() && !columns.iter().copied().eq(0..columns.len()) {
        refuse!("attribute `weights` requires each n-gram in the column of its index");
    }
    let (rows, words) = if shape.rank() == 2 { (shape[0], shape[1]) } else { (1, shape[0]) };
    let x = node.reshape(x, Shape::from([rows, 1, words]))?;
    // The counts of all n-grams by length, and their columns in the result.
    let (mut parts, mut places) = (Vec::new(), Vec::new());
    for (length, ids, items) in groups.by_length {
        let mut sum = None;
        // A single word has no skips.
        let steps = if length == 1 { 1 } else { skips + 1 };
        for step in 1..=steps {
            let Some(begins) = words.checked_sub(step * (length - 1)).filter(|&begins| 0 < begins) else { continue };
            let found = occurrences(node, x, (length, step, begins), &items)?;
            sum = Some(match sum {
                None => found,
                Some(sum) => node.binary(Binary::Add, sum, found)?,
            });
        }
        if let Some(sum) = sum {
            parts.push(sum);
            places.extend(ids.iter().map(|&id| columns[id]));
        }
    }
    // Columns without an n-gram are 0, the last entry.
    let zeros = Shape::from([rows, 1]);
    node.reserve(DType::F32, &Shape::from([rows.max(1), width]))?;
    parts.push(node.constant_of(zeros, |_| 0.0f32)?);
    let mut order = vec![places.len() as i64; width];
    for (from, &to) in places.iter().enumerate() {
        order[to] = from as i64;
    }
    let table = if parts.len() == 1 { parts[0] } else { node.apply(ops::Concat { axis: 1 }, &parts)? };
    let order = node.constant(Tensor::vector(order));
    let counted = node.apply(ops::Gather { axis: 1 }, &[table, order])?;
    let y = weighted(node, counted, &mode, weights, width)?;
    let out = if shape.rank() == 2 { Shape::from([rows, width]) } else { Shape::from([width]) };
    Ok(vec![node.reshape(y, out)?])
}

/// The n-grams of one model.
struct NGrams {
    /// Number of n-grams, those of other lengths included.
    count: usize,
    /// Per length, the indices of the n-grams and their concatenated words.
    by_length: Vec<(usize, Vec<usize>, Vec<i64>)>,
}

/// The pool has all n-grams of one word, then all of two; `starts` has the first position of each length.
fn groups(pool: &[i64], starts: &[usize], shortest: usize, longest: usize) -> Result<NGrams, Refusal> {
    let mut groups = NGrams { count: 0, by_length: Vec::new() };
    for (ix, &start) in starts.iter().enumerate() {
        let (length, end) = (ix + 1, starts.get(ix + 1).copied().unwrap_or(pool.len()));
        let Some(items) = pool.get(start..end).filter(|items| items.len().is_multiple_of(length)) else {
            refuse!("attribute `ngram_counts` must split {} words into n-grams", pool.len());
        };
        let count = items.len() / length;
        let mut sorted: Vec<&[i64]> = items.chunks_exact(length).collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            refuse!("attribute `pool_int64s` must have distinct n-grams, got one of {length} words twice");
        }
        if (shortest..=longest).contains(&length) && count != 0 {
            groups.by_length.push((length, (groups.count..groups.count + count).collect(), items.to_vec()));
        }
        groups.count += count;
    }
    Ok(groups)
}

/// `[rows, n-grams]`: the number of positions where each n-gram begins, with words at distance `step`.
fn occurrences(
    node: &mut ImportedNode,
    x: Operand,
    (length, step, begins): (usize, usize, usize),
    items: &[i64],
) -> Result<Operand, Refusal> {
    let (shape, dtype) = (node.shape(x), node.dtype(x));
    let mut all = None;
    for word in 0..length {
        let part = node.apply(ops::Slice::range(&shape, 2, word * step, begins), &[x])?;
        let wanted: Vec<i64> = items.iter().copied().skip(word).step_by(length).collect();
        let wanted = Tensor::new(Shape::from([wanted.len(), 1]), wanted).map_err(|error| Refusal(error.to_string()))?;
        let wanted = node.constant(wanted.cast(dtype));
        let same = node.compare(Compare::Equal, part, wanted)?;
        all = Some(match all {
            None => same,
            Some(all) => node.binary(Binary::And, all, same)?,
        });
    }
    let Some(all) = all else { refuse!("n-grams must have at least one word") };
    let hot = node.cast(all, DType::F32)?;
    node.reduce(ReduceKind::Sum, hot, smallvec![2], false)
}

/// Counts, their signs, or weighted counts.
fn weighted(
    node: &mut ImportedNode,
    counted: Operand,
    mode: &str,
    weights: Option<Vec<f32>>,
    width: usize,
) -> Result<Operand, Refusal> {
    let found = match mode {
        "TF" => return Ok(counted),
        "TFIDF" => counted,
        "IDF" => {
            let zero = node.number(0.0, DType::F32);
            let is_there = node.compare(Compare::Greater, counted, zero)?;
            node.cast(is_there, DType::F32)?
        }
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    let Some(weights) = weights else { return Ok(found) };
    if weights.len() != width {
        refuse!("attribute `weights` must have {width} numbers, got {}", weights.len());
    }
    let weights = node.constant_of_file(Tensor::vector(weights));
    node.binary(Binary::Mul, found, weights)
}
