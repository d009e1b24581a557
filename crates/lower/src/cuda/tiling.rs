//! Tiles of matrix products, and which of them tensor cores compute: those of half precision, and of `f32` if operands
//! may be rounded.

use types::{Bytes, DType};

use super::c_source::ctype;
use super::emit::Template;
use crate::NodeView;

/// The side of a block's tile, `TILE` in `cuda/templates/product.cu`.
const SIDE: usize = 64;
/// The side of a large tile for tensor cores, and how many there must be to occupy all multiprocessors.
const LARGE: usize = 128;
const LARGE_MIN: usize = 64;

/// Terms that a block without tensor cores takes at once, `DEPTH` in `cuda/templates/product.cu`; and words of those with them, `WORDS`
/// in `cuda/templates/tensor.cu`.
const DEPTH: usize = 16;
const WORDS: usize = 16;

/// Blocks that keep all multiprocessors of a large GPU at work.
const BLOCKS: usize = 128;
/// Steps over terms that a part has at least: its first ones wait for memory, and parts have to be joined.
const STEPS_MIN: usize = 4;
/// Fewer parts gain less than their workspace and the second launch cost.
const PARTS_MIN: usize = 3;

/// The most bytes that are copied at once.
const TOGETHER: usize = 16;

/// The placeholder in a kernel's text for the bytes of an operand that one instruction can copy: at most `most`,
/// depending on the operand's address.
fn mark(most: usize, ix: usize) -> String {
    format!("@{most}:{ix}@")
}

/// The text of a kernel whose operands have these addresses.
pub(super) fn placed(body: &str, places: &[usize]) -> String {
    let mut body = body.to_string();
    for (ix, &place) in places.iter().enumerate().take(2) {
        for most in [1, 2, 4, 8, TOGETHER] {
            body = body.replace(&mark(most, ix), &most.min(lowest_bit(place)).to_string());
        }
    }
    body
}

/// The largest power of two that a number is a multiple of; of zero, as large as one needs.
fn lowest_bit(number: usize) -> usize {
    1 << number.trailing_zeros().min(8)
}

/// How a product of two operands is computed.
pub(super) struct Tiles {
    /// The side of a block's tile.
    pub(super) side: usize,
    /// The type of both factors for tensor cores, in C: `f16`, `bf16` or `tf32`. `None` without tensor cores.
    pub(super) cores: Option<&'static str>,
    /// Split-K: the number of parts that the terms are divided into. Separate blocks compute partial sums, and a second
    /// launch reduces them.
    pub(super) parts: usize,
    /// `count`, `rows` and `columns`.
    extents: [usize; 3],
}

impl Tiles {
    /// Tiles for `count` products of `rows` by `columns` results with `terms` terms each, whose factors are the node's
    /// first two operands. Split-K stays within the node's workspace limit and slack.
    pub(super) fn new(node: &NodeView, extents: [usize; 3], terms: usize, tf32: bool) -> Tiles {
        let [count, rows, columns] = extents;
        let [left, right] = [0, 1].map(|ix| node.input(ix).dtype);
        let cores = match left {
            _ if left != right => None,
            DType::F32 if tf32 => Some("tf32"),
            half if half.is_half() => Some(ctype(half)),
            _ => None,
        };
        let large = count.saturating_mul(rows / LARGE).saturating_mul(columns / LARGE);
        let side = if cores.is_some() && LARGE_MIN <= large { LARGE } else { SIDE };
        let mut tiles = Tiles { side, cores, parts: 1, extents };
        let blocks: usize = tiles.grid().iter().map(|&blocks| blocks as usize).product();
        let steps = terms.div_ceil(if cores.is_some() { WORDS * 4 / left.size().0 as usize } else { DEPTH });
        let sums = Bytes(4 * (count * rows * columns) as u64);
        let fitting = node.workspace.min(node.slack).0 / sums.0.max(1);
        let parts = (BLOCKS / blocks).min(steps / STEPS_MIN).min(fitting as usize);
        if PARTS_MIN <= parts && Bytes::ZERO < sums {
            // As many as have something to do.
            tiles.parts = steps.div_ceil(steps.div_ceil(parts));
        }
        tiles
    }

    /// The workspace: a sum for each result and part.
    pub(super) fn workspace(&self) -> Bytes {
        let [count, rows, columns] = self.extents;
        Bytes(if self.parts == 1 { 0 } else { (4 * self.parts * count * rows * columns) as u64 })
    }

    /// The number of launches, if there are several.
    pub(super) fn iterations(&self) -> Option<u32> {
        (1 < self.parts).then_some(2)
    }

    /// The parameters: the operands, then the partial sums of split-K.
    pub(super) fn parameters(&self, mut operands: Vec<(String, String)>) -> Vec<(String, String)> {
        operands.extend((1 < self.parts).then(|| ("float*".to_string(), "parts".to_string())));
        operands
    }

    /// The last arguments of a convolution's function: where sums of parts are, and which launch it is.
    pub(super) fn arguments(&self) -> &'static str {
        if self.parts == 1 { "" } else { ", parts, (int)iteration" }
    }

    /// A placeholder for the bytes of operand `ix`, 0 or 1, that are contiguous and aligned, if its runs begin at
    /// multiples of these numbers of items. The value depends on the operand's address.
    pub(super) fn together(node: &NodeView, ix: usize, items: impl IntoIterator<Item = usize>) -> String {
        let size = node.input(ix).dtype.size().0 as usize;
        mark(items.into_iter().fold(TOGETHER, |most, items| most.min(lowest_bit(items * size))), ix)
    }

    /// The template that has the product.
    pub(super) fn template(&self) -> Template {
        if self.cores.is_some() { Template::Tensor } else { Template::Product }
    }

    /// The rows and columns of tiles of a warp.
    pub(super) fn of_warp(&self) -> String {
        format!("{0}, {0}", self.side / 32)
    }

    /// The blocks that it takes.
    pub(super) fn grid(&self) -> [u32; 3] {
        let [count, rows, columns] = self.extents;
        let blocks = |extent: usize| extent.div_ceil(self.side).max(1) as u32;
        [blocks(columns), blocks(rows), (count.max(1) * self.parts) as u32]
    }
}
