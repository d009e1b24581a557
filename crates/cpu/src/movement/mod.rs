//! Data movement: copies, gathers, layout conversion and interpolation; axes, the blocked layout, and that of packed
//! products.

pub(crate) mod axes;
pub(crate) mod blocked_layout;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod gather;
pub(crate) mod insert;
pub(crate) mod pieces;
pub(crate) mod remap;
pub(crate) mod reorder;
pub(crate) mod resize;
pub(crate) mod scatter_add;
pub(crate) mod short_rows;
pub(crate) mod sixteen;
pub(crate) mod strips;
pub(crate) mod swap_axes;
