//! [`hulls`]: the bytes of one buffer that are in use at each step.
//!
//! Values of a network share a buffer: the slices of a concatenation, the parts of a split, results that overwrite their
//! operands. Cut the buffer at all ends of its values. Each range between two cuts is live from the first step that uses
//! a value over it to the last. At a step, the *hull* is the range from the lowest live byte to the highest; the buffer
//! needs no byte outside of it.
//!
//! ```text
//!   bytes  +-------+                 a, b, c: slices of a concatenation, each with its steps; the result d is read at
//!          |   c   |------+          the end. The hull grows with each slice that is written.
//!      +---+-------+  d   |
//!      |     b     |      |
//!   +--+-----------+      |
//!   |      a       |      |
//!   +--------------+------+--> steps
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

use crate::Bytes;

/// Bytes of a buffer at some steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteSpan {
    /// The bytes, counted from the start of the buffer.
    pub bytes: Range<u64>,
    /// The steps.
    pub steps: Range<u32>,
}

/// By rising steps, the hull of the bytes in use, extended to multiples of `alignment`, without steps at which none is.
/// Neighbors differ in their bytes or do not touch.
///
/// Each use is a value with the steps from its first use to its last. O(n log n) in the number of uses.
pub fn hulls(uses: &[ByteSpan], alignment: Bytes) -> Vec<ByteSpan> {
    let uses: Vec<&ByteSpan> = uses.iter().filter(|used| !used.bytes.is_empty() && !used.steps.is_empty()).collect();
    let mut cuts: Vec<u64> = uses.iter().flat_map(|used| [used.bytes.start, used.bytes.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let ranges: Vec<Range<usize>> = uses
        .iter()
        .map(|used| [used.bytes.start, used.bytes.end].map(|byte| cuts.partition_point(|cut| *cut < byte)))
        .map(|[low, high]| low..high)
        .collect();
    let count = cuts.len().saturating_sub(1);

    let mut order: Vec<usize> = (0..uses.len()).collect();
    order.sort_unstable_by_key(|&ix| uses[ix].steps.start);
    let firsts = paint(count, order.iter().map(|&ix| (ranges[ix].clone(), uses[ix].steps.start)));
    order.sort_unstable_by_key(|&ix| std::cmp::Reverse(uses[ix].steps.end));
    let ends = paint(count, order.iter().map(|&ix| (ranges[ix].clone(), uses[ix].steps.end)));

    // A step at which a part begins or ends to live, whether it begins, and the part. Ends come first.
    let mut changes: Vec<(u32, bool, usize)> = Vec::with_capacity(2 * count);
    for (part, (first, end)) in firsts.into_iter().zip(ends).enumerate() {
        let (Some(first), Some(end)) = (first, end) else { continue };
        changes.extend([(first, true, part), (end, false, part)]);
    }
    changes.sort_unstable();
    let mut live = BTreeSet::new();
    let mut hulls: Vec<ByteSpan> = Vec::new();
    for (at, &(step, begins, part)) in changes.iter().enumerate() {
        if begins {
            live.insert(part);
        } else {
            live.remove(&part);
        }
        let Some(&(next, ..)) = changes.get(at + 1).filter(|(next, ..)| step < *next) else { continue };
        let (Some(low), Some(high)) = (live.first(), live.last()) else { continue };
        let low = cuts[*low] / alignment.0 * alignment.0;
        let bytes = low..Bytes(cuts[*high + 1]).align_up(alignment).0;
        match hulls.last_mut() {
            Some(last) if last.steps.end == step && last.bytes == bytes => last.steps.end = next,
            _ => hulls.push(ByteSpan { bytes, steps: step..next }),
        }
    }
    hulls
}

/// By part, the first value that a range over it has.
fn paint(count: usize, ranges: impl Iterator<Item = (Range<usize>, u32)>) -> Vec<Option<u32>> {
    let mut painted = vec![None; count];
    // By part, a part at or behind it before which all are painted.
    let mut next: Vec<usize> = (0..=count).collect();
    for (range, value) in ranges {
        let mut part = bare(&mut next, range.start);
        while part < range.end {
            painted[part] = Some(value);
            next[part] = part + 1;
            part = bare(&mut next, part);
        }
    }
    painted
}

/// The first part at or behind `part` that is not painted. Shortens the path to it.
fn bare(next: &mut [usize], part: usize) -> usize {
    let mut end = part;
    while next[end] != end {
        end = next[end];
    }
    let mut at = part;
    while next[at] != end {
        at = std::mem::replace(&mut next[at], end);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn span(bytes: Range<u64>, steps: Range<u32>) -> ByteSpan {
        ByteSpan { bytes, steps }
    }

    /// The definition, byte by byte.
    fn by_byte(uses: &[ByteSpan], size: u64, steps: u32) -> Vec<Option<Range<u64>>> {
        let over = |byte: u64| uses.iter().filter(move |used| used.bytes.contains(&byte) && !used.steps.is_empty());
        let lives: Vec<Range<u32>> = (0..size)
            .map(|byte| {
                let first = over(byte).map(|used| used.steps.start).min().unwrap_or(0);
                first..over(byte).map(|used| used.steps.end).max().unwrap_or(0)
            })
            .collect();
        let hull = |step: u32| {
            let live = || (0..size).filter(|byte| lives[*byte as usize].contains(&step));
            live().next().zip(live().next_back()).map(|(low, high)| low..high + 1)
        };
        (0..steps).map(hull).collect()
    }

    #[test]
    fn hulls_of_a_concatenation_grow_and_of_a_split_shrink() {
        let concat = [span(0..8, 1..3), span(8..12, 2..3), span(0..12, 3..6)];
        assert_eq!(hulls(&concat, Bytes(1)), [span(0..8, 1..2), span(0..12, 2..6)]);
        assert_eq!(hulls(&concat, Bytes(16)), [span(0..16, 1..6)], "both end in the same unit");
        let split = [span(0..12, 0..1), span(0..4, 1..3), span(4..12, 1..5)];
        assert_eq!(hulls(&split, Bytes(1)), [span(0..12, 0..3), span(4..12, 3..5)]);
        assert_eq!(hulls(&split, Bytes(3)), [span(0..12, 0..3), span(3..12, 3..5)]);
        assert_eq!(hulls(&[], Bytes(1)), []);
    }

    #[test]
    fn hulls_equal_their_definition() {
        let mut random = Random::new(3);
        for _ in 0..3000 {
            let mut range = |below: u64| {
                let [a, b] = [random.below(below), random.below(below)];
                a.min(b)..a.max(b)
            };
            let (size, steps) = (20, 15);
            let mut one = || {
                let (bytes, steps) = (range(size), range(u64::from(steps)));
                span(bytes, steps.start as u32..steps.end as u32)
            };
            let uses: Vec<ByteSpan> = (0..8).map(|_| one()).collect();
            let found = hulls(&uses, Bytes(1));
            let at = |step: u32| found.iter().find(|hull| hull.steps.contains(&step)).map(|hull| hull.bytes.clone());
            assert_eq!((0..steps).map(at).collect::<Vec<_>>(), by_byte(&uses, size, steps), "{uses:?}");
            let merged =
                found.windows(2).all(|two| two[0].steps.end < two[1].steps.start || two[0].bytes != two[1].bytes);
            assert!(merged && found.is_sorted_by_key(|hull| hull.steps.start), "{found:?}");
        }
    }
}
