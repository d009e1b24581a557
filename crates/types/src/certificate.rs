//! [`Certificate`]: a minimized value with the lower bounds proved for it. [`Certificates`]: the certificates of a plan, by their coverage.

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A number of bytes that a planner has minimized, with the lower bounds that are proved for it.
///
/// `lower_bound <= least <= value` always holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The value reached.
    pub value: Bytes,
    /// A lower bound that follows from the problem alone, without search.
    pub lower_bound: Bytes,
    /// The best proved lower bound: `lower_bound`, or more if a search has excluded everything between.
    pub least: Bytes,
}

/// How a [`Certificate`] proves that its value is the least possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The value equals the lower bound.
    Bound,
    /// An exact search has excluded every smaller value.
    Search,
    /// There is no proof: a smaller value may exist.
    Gap,
}

impl Certificate {
    /// How the value is proved optimal.
    pub fn proof(&self) -> Proof {
        match self.value {
            value if value == self.lower_bound => Proof::Bound,
            value if value == self.least => Proof::Search,
            _ => Proof::Gap,
        }
    }

    /// Whether no smaller value exists.
    pub fn is_optimal(&self) -> bool {
        self.proof() != Proof::Gap
    }

    /// Whether the bounds are in order: `lower_bound <= least <= value`.
    pub fn is_consistent(&self) -> bool {
        self.lower_bound <= self.least && self.least <= self.value
    }

    /// [`Proof::text`] of this value.
    pub fn text(&self) -> String {
        self.proof().text(self.value, self.least)
    }
}

impl Proof {
    /// All proofs, in order of declaration.
    pub const ALL: [Proof; 3] = [Proof::Bound, Proof::Search, Proof::Gap];

    /// The name in JSON reports.
    pub fn name(self) -> &'static str {
        match self {
            Proof::Bound => "optimal_by_bound",
            Proof::Search => "optimal_by_search",
            Proof::Gap => "gap",
        }
    }

    /// The text in reports: `optimal (= bound)`, `optimal (searched)`, or the gap between `least` and `value`.
    pub fn text(self, value: Bytes, least: Bytes) -> String {
        match self {
            Proof::Bound => "optimal (= bound)".into(),
            Proof::Search => "optimal (searched)".into(),
            Proof::Gap => {
                let gap = 100.0 * (value.0 as f64 / least.0.max(1) as f64 - 1.0);
                // A gap that rounds to zero is still a gap.
                if gap < 0.005 { "gap < 0.01 %".into() } else { format!("gap {gap:.2} %") }
            }
        }
    }
}

/// The certificates of a plan, from the narrowest statement to the widest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Certificates {
    /// The arena, over all placements of these buffers.
    pub arena: Certificate,
    /// The arena's lower bound, over all orders of the steps with these kernels.
    pub order: Certificate,
    /// A lower bound on the arena of these steps with any kernels and layouts, in any order; zero if none is proved.
    pub any_kernels: Bytes,
}

impl Certificates {
    /// The statements about placement, order, and kernels with layouts.
    pub fn texts(&self) -> [String; 3] {
        [self.placement(), self.any_order(), self.any_kernels()]
    }

    /// The statement about the placement.
    pub fn placement(&self) -> String {
        match self.arena.is_optimal() {
            true => "optimal for this order and these kernels".into(),
            false => format!("{} for this order and these kernels", self.arena.text()),
        }
    }

    /// The statement about the order of the steps.
    pub fn any_order(&self) -> String {
        let least = self.order.least;
        match self.order.is_optimal() {
            true => "optimal for these kernels: no order of the steps needs less".into(),
            false => {
                format!("{} for these kernels: no order of the steps needs less than {}", self.order.text(), least)
            }
        }
    }

    /// The statement about kernels and layouts.
    pub fn any_kernels(&self) -> String {
        let gap = Certificate { value: self.arena.value, lower_bound: self.any_kernels, least: self.any_kernels };
        match self.any_kernels {
            Bytes(0) => "no bound over other kernels and layouts is proved".into(),
            least if least == self.arena.value => {
                "optimal: no kernels, layouts and order of these steps need less".into()
            }
            least => format!("{}: no kernels, layouts and order of these steps need less than {least}", gap.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_that_rounds_to_zero_is_not_zero() {
        assert_eq!(Proof::Gap.text(Bytes(10_001), Bytes(10_000)), "gap 0.01 %");
        assert_eq!(Proof::Gap.text(Bytes(1_000_001), Bytes(1_000_000)), "gap < 0.01 %");
        assert_eq!(Proof::Bound.text(Bytes(1), Bytes(1)), "optimal (= bound)");
    }
}
