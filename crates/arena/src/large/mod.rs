//! Passes for problems whose buffers are too many for one exact search: each solves a small part of the problem well.
//!
//! Both are needed (`docs/decisions/0025-planner-passes-for-large-problems.md`): without [`PeakSet`] the plan of
//! PanGu-alpha, 18 692 buffers, is 0.76 % above its lower bound; without windows some problems of 10 000 random
//! lifetimes are.

mod peak_set;
mod windows;

pub(crate) use peak_set::PeakSet;
pub(crate) use windows::lower_tops;
