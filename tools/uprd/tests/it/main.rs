//! The daemon as a process: faults, other users, its command line.

mod commands;
mod faults;
mod support;
