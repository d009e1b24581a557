//! Shared by the readers of all formats: the graph under construction, ops applied to it, and checks of numbers.

mod builder;
mod index;
mod narrow;
mod node;
mod recurrent;
mod shape;
mod training;

use ir::Refusal;
use smallvec::SmallVec;

pub(crate) use builder::{Builder, ConstantId, Fold, Operand, transpose_matrix};
pub(crate) use narrow::Narrow;
pub(crate) use node::{ImportedNode, Normalized};
pub(crate) use recurrent::Network;
pub(crate) use shape::StridedRange;
pub(crate) use training::LossHead;

/// Returns a [`Refusal`] with a formatted message.
macro_rules! refuse {
    ($($message:tt)*) => {
        return Err(ir::Refusal(format!($($message)*)))
    };
}
pub(crate) use refuse;

/// The outputs of one imported node, in the order of its operator's definition.
pub(crate) type NodeResult<T = Operand> = Result<Vec<T>, Refusal>;

/// Largest extent, padding or stride that is accepted.
const INT_MAX: i64 = 1 << 40;

/// An axis counted from the front; negative ones count from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, Refusal> {
    let counted = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    match usize::try_from(counted) {
        Ok(counted) if counted < rank => Ok(counted),
        _ => refuse!("axis must be within rank {rank}, got {axis}"),
    }
}

/// Axes counted from the front, sorted, each once.
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<SmallVec<[usize; 4]>, Refusal> {
    let mut sorted: SmallVec<[usize; 4]> = list.iter().map(|&item| axis(item, rank)).collect::<Result<_, _>>()?;
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        refuse!("axes must be distinct, got {list:?}");
    }
    Ok(sorted)
}

/// Numbers of attribute or operand `name` as counts, which must be `0..=2^40`.
pub(crate) fn counts(list: &[i64], name: &str) -> Result<SmallVec<[usize; 4]>, Refusal> {
    let count = |&item: &i64| match (0..=INT_MAX).contains(&item) {
        true => Ok(item as usize),
        false => Err(Refusal(format!("numbers of `{name}` must be in 0..=2^40, got {item}"))),
    };
    list.iter().map(count).collect()
}
