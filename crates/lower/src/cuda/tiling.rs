//! Tiles of matrix products, and which of them tensor cores compute: those of half precision, and of `f32` if operands
//! may be rounded.

use types::{Bytes, DType};

use super::c_source::ctype;
use super::emit::{Block, Template};
use crate::NodeView;

/// The side of a block's tile, `TILE` in `cuda/templates/product.cu`.
const SIDE: usize = 64;
/// The tensor cores of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorCores {
    /// The dtype of values between kernels.
    pub(super) stored: DType,
    /// Whether operands of `f32` are rounded for them.
    pub(super) rounds: bool,
    /// The least number of large tiles from which four warps multiply lines of halves together (`wgmma`).
    pub(super) groups_from: usize,
}

impl TensorCores {
    /// The dtype that recurrent layers round weights and states to for them. `None` without tensor cores.
    pub(super) fn recurrent_dtype(self) -> Option<DType> {
        (self.stored.is_half() || self.rounds).then_some(self.stored)
    }
}

/// A block's tile on tensor cores, as `Tile` and `GroupTile` in `cuda/templates/tensor.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TileShape {
    /// Warps along rows and columns, and tensor-core tiles of 16 x 8 of each warp.
    Warps { down: usize, across: usize, m: usize, n: usize },
    /// Parts of 64 rows, and of 8 columns, of a group of four warps.
    Group { m: usize, n: usize },
}

impl TileShape {
    const fn warps(down: usize, across: usize, m: usize, n: usize) -> TileShape {
        TileShape::Warps { down, across, m, n }
    }

    pub(super) fn rows(self) -> usize {
        match self {
            TileShape::Warps { down, m, .. } => 16 * m * down,
            TileShape::Group { m, .. } => 64 * m,
        }
    }

    pub(super) fn columns(self) -> usize {
        match self {
            TileShape::Warps { across, n, .. } => 8 * n * across,
            TileShape::Group { n, .. } => 8 * n,
        }
    }

    /// A block that computes it from a number of tiles of each operand. Groups have their stages of two tiles in the shared
    /// memory of the launch, and no more of them than there are pairs of tiles.
    pub(super) fn block(self, tiles: usize) -> Block {
        match self {
            TileShape::Warps { down, across, .. } => Block::of((32 * down * across) as u32),
            TileShape::Group { .. } => {
                let pair = 2 * (self.rows() + self.columns()) * WORDS * size_of::<u32>();
                let stages = (GROUP_SHARED_MAX / pair).min(GROUP_STAGES_MAX).min(tiles.div_ceil(2)).max(1);
                Block { threads: 128, shared: Bytes((stages * pair) as u64) }
            }
        }
    }

    /// The columns of tensor-core tiles of a warp.
    fn tiles_across(self) -> usize {
        match self {
            TileShape::Warps { n, .. } | TileShape::Group { n, .. } => n,
        }
    }

    /// Its C++ type.
    pub(super) fn text(self) -> String {
        match self {
            TileShape::Warps { down, across, m, n } => format!("Tile<{down}, {across}, {m}, {n}>"),
            TileShape::Group { m, n } => format!("GroupTile<{m}, {n}>"),
        }
    }
}

/// The tiles of operands whose lines are copied in pieces of 16 bytes, with the percentage of a multiprocessor's peak that each
/// can reach: larger ones read less shared memory for a product.
const COPIED: [(TileShape, usize); 5] = [
    (TileShape::warps(2, 2, 4, 8), 100),
    (TileShape::warps(2, 2, 4, 4), 85),
    (TileShape::warps(2, 2, 2, 8), 85),
    (TileShape::warps(2, 2, 2, 4), 70),
    (TileShape::warps(4, 1, 2, 4), 60),
];
/// The same where the lines of both operands are of terms, and groups of warps multiply them; and the number of terms that would
/// take as long as what a tile's epilogue takes beyond that of others. The largest tile leaves few registers for it.
const BY_GROUPS: [(TileShape, usize, usize); 6] = [
    (TileShape::Group { m: 2, n: 16 }, 100, 0),
    (TileShape::Group { m: 3, n: 16 }, 107, 80),
    (TileShape::Group { m: 2, n: 8 }, 80, 0),
    (TileShape::Group { m: 1, n: 16 }, 80, 0),
    (TileShape::Group { m: 1, n: 8 }, 65, 0),
    (TileShape::Group { m: 2, n: 4 }, 55, 0),
];
/// The tiles of other operands.
const GATHERED: [TileShape; 2] = [TileShape::warps(2, 4, 4, 4), TileShape::warps(2, 4, 2, 2)];
/// How many of the large one there must be to occupy all multiprocessors.
const LARGE_MIN: usize = 64;

/// The multiprocessors of an H100 or H200 (SXM).
pub(super) const MULTIPROCESSORS: usize = 132;
/// The most shared memory of a group's block, in bytes, and its most stages.
const GROUP_SHARED_MAX: usize = 96 * 1024;
const GROUP_STAGES_MAX: usize = 4;

/// Terms that a block without tensor cores takes at once, `DEPTH` in `cuda/templates/product.cu`; and words of those with them, `WORDS`
/// in `cuda/templates/tensor.cu`.
const DEPTH: usize = 16;
const WORDS: usize = 16;

/// Blocks that keep all multiprocessors of a large GPU at work, with two on each.
const BLOCKS: usize = 256;
/// Steps over terms that a part has at least: its first ones wait for memory, and parts have to be joined.
const STEPS_MIN: usize = 4;
/// Fewer parts gain less than their workspace and the second launch cost.
const PARTS_MIN: usize = 3;

/// The numbers that a thread reads at once where they are contiguous.
pub(super) const EIGHT: usize = 8;

/// The most bytes that are copied at once.
const TOGETHER: usize = 16;

/// The placeholder in a kernel's text for the bytes of an operand that one instruction can copy: at most `most`,
/// depending on the operand's address. Results are counted behind the operands.
pub(super) fn mark(most: usize, ix: usize) -> String {
    format!("@{most}:{ix}@")
}

/// The text of a kernel whose operands and results have these addresses.
pub(super) fn placed(body: &str, places: &[usize]) -> String {
    let mut text = String::with_capacity(body.len());
    let mut pieces = body.split('@');
    text.extend(pieces.next());
    while let (Some(mark), Some(behind)) = (pieces.next(), pieces.next()) {
        let (most, ix) = mark.split_once(':').expect("a mark has two numbers");
        let [most, ix] = [most, ix].map(|number| number.parse::<usize>().expect("a mark has two numbers"));
        text.push_str(&most.min(lowest_bit(places[ix])).to_string());
        text.push_str(behind);
    }
    text
}

/// The largest power of two that a number is a multiple of; of zero, as large as one needs.
fn lowest_bit(number: usize) -> usize {
    1 << number.trailing_zeros().min(8)
}

/// How a product of two operands is computed.
pub(super) struct Tiles {
    /// The tile on tensor cores.
    shape: TileShape,
    /// The type of both factors for tensor cores, in C: `f16`, `bf16` or `tf32`. `None` without tensor cores.
    pub(super) cores: Option<&'static str>,
    /// Split-K: the number of parts that the terms are divided into. Separate blocks compute partial sums, and a second
    /// launch reduces them.
    pub(super) parts: usize,
    /// The number of tiles of each operand that all parts multiply.
    steps: usize,
    /// `count`, `rows` and `columns`.
    extents: [usize; 3],
}

/// How the lines of a product's operands are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// Some have no whole pieces of 16 bytes.
    Gathered,
    /// Those of the right operand are columns of one term.
    OfColumns,
    /// Those of both are terms: of a row, and of a column.
    OfTerms,
}

/// The type of a node's first two operands on tensor cores, in C. `None` if they have to be multiplied without.
pub(super) fn cores(node: &NodeView, target: TensorCores) -> Option<&'static str> {
    let [left, right] = [0, 1].map(|ix| node.input(ix).dtype);
    match left {
        _ if left != right => None,
        DType::F32 if target.rounds => Some("tf32"),
        half if half.is_half() => Some(ctype(half)),
        _ => None,
    }
}

/// Whether lines of a number of elements are a multiple of the largest piece.
pub(super) fn is_copied(dtype: DType, line: usize) -> bool {
    (line * dtype.size().0 as usize).is_multiple_of(TOGETHER)
}

/// A C++ condition: an operand, or a result behind them, is aligned to 16 bytes.
pub(super) fn is_aligned(ix: usize) -> String {
    format!("{} == {TOGETHER}", mark(TOGETHER, ix))
}

/// A C++ condition: the result of a product and the operands of its epilogue are aligned to 16 bytes.
pub(super) fn eights(node: &NodeView) -> String {
    (2..=node.operand_count()).map(is_aligned).collect::<Vec<_>>().join(" && ")
}

/// A number of elements, rounded up to whole pieces.
pub(super) fn pieces(dtype: DType, elements: usize) -> usize {
    elements.next_multiple_of(TOGETHER / dtype.size().0 as usize)
}

/// The time in which all multiprocessors compute blocks of groups, in tenths of a block's. Each has two at once; one alone does
/// not use all of it.
fn turns_of_groups(blocks: usize) -> usize {
    let last = match blocks % (2 * MULTIPROCESSORS) {
        0 => 0,
        rest if rest <= MULTIPROCESSORS => 14,
        _ => 20,
    };
    blocks / (2 * MULTIPROCESSORS) * 20 + last
}

impl Tiles {
    /// Tiles for `count` products of `rows` by `columns` results with `terms` terms each, whose factors are the node's
    /// first two operands, in lines of a form. Split-K stays within the node's workspace limit and slack.
    pub(super) fn new(node: &NodeView, extents: [usize; 3], terms: usize, target: TensorCores, lines: Lines) -> Tiles {
        let [count, rows, columns] = extents;
        let cores = cores(node, target);
        let large = count.saturating_mul(rows / GATHERED[0].rows()).saturating_mul(columns / GATHERED[0].columns());
        // A group waits for each of its products, so there must be others on the same multiprocessor.
        let blocks = count * rows.div_ceil(BY_GROUPS[0].0.rows()) * columns.div_ceil(BY_GROUPS[0].0.columns());
        let by_groups = lines == Lines::OfTerms && node.input(0).dtype.is_half() && target.groups_from <= blocks;
        let shape = match lines {
            Lines::Gathered => GATHERED[usize::from(large < LARGE_MIN)],
            _ => {
                let blocks = |shape: TileShape| count * rows.div_ceil(shape.rows()) * columns.div_ceil(shape.columns());
                // Blocks that compute a number of tiles in turn.
                let time = |turns: usize, shape: TileShape| turns * shape.rows() * shape.columns();
                if by_groups {
                    let time = |&(shape, percent, more): &(TileShape, usize, usize)| {
                        time(turns_of_groups(blocks(shape)), shape) * (terms + more) / percent
                    };
                    BY_GROUPS.into_iter().min_by_key(time).expect("there are some").0
                } else {
                    let time = |&(shape, percent): &(TileShape, usize)| {
                        time(blocks(shape).div_ceil(BLOCKS), shape) * 100 / percent
                    };
                    COPIED.into_iter().min_by_key(time).expect("there are some").0
                }
            }
        };
        let step = if cores.is_some() { WORDS * 4 / node.input(0).dtype.size().0 as usize } else { DEPTH };
        let mut tiles = Tiles { shape, cores, parts: 1, steps: terms.div_ceil(step), extents };
        let blocks: usize = tiles.grid().iter().map(|&blocks| blocks as usize).product();
        let sums = Bytes(4 * (count * rows * columns) as u64);
        let fitting = node.workspace.min(node.slack).0 / sums.0.max(1);
        let parts = (BLOCKS / blocks).min(tiles.steps / STEPS_MIN).min(fitting as usize);
        if PARTS_MIN <= parts && Bytes::ZERO < sums {
            // As many as have something to do.
            tiles.parts = tiles.steps.div_ceil(tiles.steps.div_ceil(parts));
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

    /// The last arguments of a product's function: where sums of parts are, and which launch it is.
    pub(super) fn arguments(&self) -> &'static str {
        if self.parts == 1 { "" } else { ", parts, (int)iteration" }
    }

    /// A placeholder for the bytes of operand `ix`, 0 or 1, that are contiguous and aligned, if its runs begin at
    /// multiples of these numbers of items. The value depends on the operand's address.
    pub(super) fn together(node: &NodeView, ix: usize, items: impl IntoIterator<Item = usize>) -> String {
        let size = node.input(ix).dtype.size().0 as usize;
        mark(items.into_iter().fold(TOGETHER, |most, items| most.min(lowest_bit(items * size))), ix)
    }

    /// A C++ condition: the epilogue can take eight columns of a row-major result at once.
    pub(super) fn wide(&self, node: &NodeView) -> String {
        let [.., columns] = self.extents;
        if !columns.is_multiple_of(8) || !self.shape.tiles_across().is_multiple_of(4) {
            return "false".into();
        }
        eights(node)
    }

    /// The template that has the product.
    pub(super) fn template(&self) -> Template {
        if self.cores.is_some() { Template::Tensor } else { Template::Product }
    }

    /// The C++ type of the tile on tensor cores.
    pub(super) fn shape(&self) -> String {
        self.shape.text()
    }

    fn sides(&self) -> [usize; 2] {
        if self.cores.is_some() { [self.shape.rows(), self.shape.columns()] } else { [SIDE, SIDE] }
    }

    /// Its blocks.
    pub(super) fn block(&self) -> Block {
        if self.cores.is_some() { self.shape.block(self.steps.div_ceil(self.parts)) } else { Block::USUAL }
    }

    /// The blocks that it takes.
    pub(super) fn grid(&self) -> [u32; 3] {
        let ([count, rows, columns], [down, across]) = (self.extents, self.sides());
        let blocks = |extent: usize, side: usize| extent.div_ceil(side).max(1) as u32;
        [blocks(columns, across), blocks(rows, down), (count.max(1) * self.parts) as u32]
    }
}
