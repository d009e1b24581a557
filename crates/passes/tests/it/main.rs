//! The order of execution: against all orders of small problems, and over networks as they are built.

use prestow_passes as passes;

mod graphs;
mod nets;
mod networks;
mod small;
