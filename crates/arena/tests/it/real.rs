//! Problems from real compilers, with what is known about them; `tests/data/PROVENANCE.txt` says where they come from.

use prestow_arena::{Aim, Limits, PlaceError, Problem, csv, place};
use types::{Bytes, Proof};

use crate::place_and_check;

/// Heights are what the portfolio reaches; a change of them is a change of the planner and wants a look.
#[track_caller]
fn check_instance(text: &str, n_buffers: usize, lower_bound: u64, height: u64, proof: Proof) {
    let table = csv::parse(text).expect("a table");
    assert_eq!(table.ids.len(), n_buffers);
    let placement = place_and_check(&table.problem);
    assert_eq!(placement.certificate.lower_bound.0, lower_bound);
    assert_eq!((placement.height().0, placement.certificate.proof()), (height, proof));
}

#[test]
fn minimalloc_example() {
    check_instance(include_str!("../data/input.12.csv"), 5, 12, 12, Proof::Bound);
}

/// The optimum is the lower bound; only a search finds it.
#[test]
fn minimalloc_challenge_a() {
    check_instance(include_str!("../data/A.1048576.csv"), 154, 1_048_576, 1_048_576, Proof::Bound);
}

#[test]
fn iopddl_g_1() {
    let text = include_str!("../data/G_1.csv");
    check_instance(text, 816, 3_030_937_746, 3_030_937_746, Proof::Bound);
}

#[test]
fn resnet50_training_step() {
    let text = include_str!("../data/resnet50.csv");
    check_instance(text, 1042, 1_515_472_556, 1_515_472_556, Proof::Bound);
}

#[test]
fn a_capacity_that_only_a_search_can_keep() {
    let table = csv::parse(include_str!("../data/A.1048576.csv")).expect("a table");
    let problem = Problem { capacity: Some(Bytes(1_048_576)), ..table.problem };
    let placement = place(&problem, Limits { aim: Aim::Capacity, ..Limits::default() }).expect("the search finds it");
    assert_eq!(placement.height(), Bytes(1_048_576));

    // Without work for a search the passes' best is too high, and nobody claims that there is nothing better.
    let error = place(&problem, Limits { work: 0, ..Limits::default() }).expect_err("one pass is not enough");
    let PlaceError::NotFound { limit, need, lower_bound } = error else { panic!("{error}") };
    assert_eq!((limit, lower_bound), (Bytes(1_048_576), Bytes(1_048_576)));
    assert_eq!(
        error.to_string(),
        format!(
            "the best placement found needs `{}` bytes, the limit is `1048576` bytes; \
             the lower bound is `1048576` bytes",
            need.0
        )
    );
}

#[test]
fn no_work_means_one_pass() {
    let table = csv::parse(include_str!("../data/resnet50.csv")).expect("a table");
    let placement = place(&table.problem, Limits { work: 0, ..Limits::default() }).expect("a placement");
    assert_eq!((placement.height().0, placement.certificate.proof()), (1_521_895_084, Proof::Gap));
}

/// With sizes that are multiples of the alignment the bound is the plain sum; otherwise it hopes that the buffer with
/// the largest padding lies on top.
#[test]
fn resnet50_training_step_aligned() {
    let mut table = csv::parse(include_str!("../data/resnet50.csv")).expect("a table");
    for buffer in &mut table.problem.buffers {
        buffer.alignment = Bytes(64);
    }
    let placement = place_and_check(&table.problem);
    assert_eq!((placement.height().0, placement.gap().0), (1_515_472_640, 60));
    for buffer in &mut table.problem.buffers {
        buffer.size = buffer.size.align_up(buffer.alignment);
    }
    let placement = place_and_check(&table.problem);
    assert_eq!((placement.height().0, placement.gap().0), (1_515_472_640, 0));
}
