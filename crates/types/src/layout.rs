//! [`Layout`]: the order of a value's elements in memory, a field of every value.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, DType, Shape};

/// The order of the elements of a value in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Dimensions from the outermost to the innermost, as the shape lists them (NCHW for images).
    #[default]
    RowMajor,
    /// Dimension 1 innermost (NHWC for images). Rank at least 3.
    ChannelsLast,
    /// Dimension 1 split into blocks of this many channels, the block innermost (nChw16c); the last block is padded.
    ChannelsBlocked(u16),
}

impl Layout {
    /// The bytes of a value of this shape and dtype, with the padding of the last block.
    pub fn size(self, shape: &Shape, dtype: DType) -> Bytes {
        Bytes(dtype.size().0.saturating_mul(self.physical(shape).elements() as u64))
    }

    /// The extents in memory order, from the outermost to the innermost. A blocked layout has one more:
    /// `[n, c, ..]` becomes `[n, ceil(c / block), .., block]`.
    pub fn physical(self, shape: &Shape) -> Shape {
        let mut physical = shape.clone();
        match self {
            Layout::RowMajor => {}
            Layout::ChannelsLast if shape.rank() >= 2 => {
                let channels = physical.remove(1);
                physical.push(channels);
            }
            Layout::ChannelsBlocked(block) if shape.rank() >= 2 => {
                let block = usize::from(block.max(1));
                physical[1] = shape[1].div_ceil(block);
                physical.push(block);
            }
            Layout::ChannelsLast | Layout::ChannelsBlocked(_) => {}
        }
        physical
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::RowMajor => f.write_str("row_major"),
            Layout::ChannelsLast => f.write_str("channels_last"),
            Layout::ChannelsBlocked(block) => write!(f, "channels_blocked({block})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_layout_pads_its_last_block() {
        let shape = Shape::from([1, 3, 4, 4]);
        assert_eq!(Layout::RowMajor.size(&shape, DType::F32), Bytes(192));
        assert_eq!(Layout::ChannelsBlocked(16).size(&shape, DType::F32), Bytes(1024));
        assert_eq!(Layout::ChannelsBlocked(16).physical(&shape), Shape::from([1, 1, 4, 4, 16]));
        assert_eq!(Layout::ChannelsLast.physical(&shape), Shape::from([1, 4, 4, 3]));
    }
}
