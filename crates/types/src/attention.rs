//! [`HeadOrder`]: the layout of the operands of attention.

use serde::{Deserialize, Serialize};

/// The order of the extents of queries, keys, values and results of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadOrder {
    /// `[batch, heads, tokens, width]`
    HeadsFirst,
    /// `[batch, tokens, heads, width]`
    TokensFirst,
}

impl HeadOrder {
    /// `[batch, heads, tokens, width]` of a shape in this order, or strides of the same.
    pub fn sorted<T: Copy>(self, extents: [T; 4]) -> [T; 4] {
        let [batch, a, b, width] = extents;
        match self {
            HeadOrder::HeadsFirst => [batch, a, b, width],
            HeadOrder::TokensFirst => [batch, b, a, width],
        }
    }
}
