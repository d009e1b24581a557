//! How products are cut into tiles, and which of them tensor cores compute: those of halves, and of `f32` where operands may
//! be rounded.

use super::text::ctype;
use super::{Template, View};
use types::DType;

/// The side of a block's tile, `TILE` in `cuda/product.cu`.
const SIDE: usize = 64;
/// The side of a large tile of tensor cores', where there are enough of them to have all multiprocessors work.
const LARGE: usize = 128;
const LARGE_MIN: usize = 64;

/// How a product of two operands is computed.
pub(super) struct Tiles {
    /// The side of a block's tile.
    pub(super) side: usize,
    /// What tensor cores take both factors as, in C, where they multiply them: `f16`, `bf16` or `tf32`.
    pub(super) cores: Option<&'static str>,
}

impl Tiles {
    /// For so many products of `rows` by `columns`, whose factors are a node's first two operands.
    pub(super) fn new(node: &View, count: usize, rows: usize, columns: usize) -> Tiles {
        let [left, right] = [0, 1].map(|ix| node.input(ix).dtype);
        let cores = match left {
            _ if left != right => None,
            DType::F32 if node.rounds => Some("tf32"),
            half if half.is_half() => Some(ctype(half)),
            _ => None,
        };
        let large = count.saturating_mul(rows / LARGE).saturating_mul(columns / LARGE);
        Tiles { side: if cores.is_some() && LARGE_MIN <= large { LARGE } else { SIDE }, cores }
    }

    /// The template that has the product.
    pub(super) fn template(&self) -> Template {
        if self.cores.is_some() { Template::Tensor } else { Template::Product }
    }

    /// How many tiles of a warp lie below and beside each other.
    pub(super) fn of_warp(&self) -> String {
        format!("{0}, {0}", self.side / 32)
    }

    /// The blocks that it takes.
    pub(super) fn grid(&self, count: usize, rows: usize, columns: usize) -> [u32; 3] {
        let blocks = |extent: usize| extent.div_ceil(self.side).max(1) as u32;
        [blocks(columns), blocks(rows), count.max(1) as u32]
    }
}
