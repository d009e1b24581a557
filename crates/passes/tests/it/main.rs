//! Passes as text in and text out; the order of execution against all orders of small problems, and of networks.

use prestow_passes as passes;

mod graphs;
mod nets;
mod networks;
mod small;
mod text;
mod training;
