//! Runs of training in process, on models of a few numbers.

mod run;
