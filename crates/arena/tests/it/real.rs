//! Problems from real compilers; `tests/data/PROVENANCE.txt` has their sources.

use prestow_arena::{Aim, Limits, PlaceError, Problem, csv, place};
use types::{Bytes, Proof};

use crate::{place_and_check, place_and_check_with};

/// The heights are those that the planner reaches today; a change needs a review.
#[track_caller]
fn check_instance(text: &str, n_buffers: usize, lower_bound: u64, height: u64, proof: Proof) {
    let table = csv::parse(text).expect("a table");
    assert_eq!(table.ids.len(), n_buffers);
    let placement = place_and_check(&table.problem);
    assert_eq!(placement.certificate.lower_bound.0, lower_bound);
    assert_eq!((placement.height().0, placement.certificate.proof()), (height, proof));
}

#[test]
fn minimalloc_example_reaches_the_bound() {
    check_instance(include_str!("../data/input.12.csv"), 5, 12, 12, Proof::Bound);
}

/// The optimum is the lower bound, which only a search reaches.
#[test]
fn minimalloc_challenge_a_reaches_the_bound() {
    check_instance(include_str!("../data/A.1048576.csv"), 154, 1_048_576, 1_048_576, Proof::Bound);
}

#[test]
fn iopddl_g_1_reaches_the_bound() {
    let text = include_str!("../data/G_1.csv");
    check_instance(text, 816, 3_030_937_746, 3_030_937_746, Proof::Bound);
}

#[test]
fn resnet50_training_step_reaches_the_bound() {
    let text = include_str!("../data/resnet50.csv");
    check_instance(text, 1042, 1_515_472_556, 1_515_472_556, Proof::Bound);
}

/// Budgets around the compiler's, which end in different passes.
#[test]
fn mobilenet_v2_training_step_is_placed_with_every_budget() {
    let table = csv::parse(include_str!("../data/mobilenet_v2.csv")).expect("a table");
    for work in [500_000, 5_000_000, 10_000_000, 40_000_000] {
        let placement = place_and_check_with(&table.problem, work);
        // The bound, and the height of the first pass.
        assert_eq!(placement.certificate.lower_bound, Bytes(252_446_208));
        assert!(placement.height() <= Bytes(252_928_768), "{work}: {}", placement.height());
    }
}

#[test]
fn search_reaches_a_capacity_that_passes_miss() {
    let table = csv::parse(include_str!("../data/A.1048576.csv")).expect("a table");
    let problem = Problem { capacity: Some(Bytes(1_048_576)), ..table.problem };
    let placement = place(&problem, Limits { aim: Aim::Capacity, ..Limits::default() }).expect("the search finds it");
    assert_eq!(placement.height(), Bytes(1_048_576));

    // Without a budget for a search the best pass is too high, and there is no proof.
    let error = place(&problem, Limits { work: 0, ..Limits::default() }).expect_err("one pass is not enough");
    let PlaceError::NotFound { limit, need, lower_bound } = error else { panic!("{error}") };
    assert_eq!((limit, lower_bound), (Bytes(1_048_576), Bytes(1_048_576)));
    assert_eq!(
        error.to_string(),
        format!(
            "no placement found within the capacity of `1048576` bytes: the best needs `{}` bytes, the lower bound is \
             `1048576` bytes; raise the capacity or the budget",
            need.0
        )
    );
}

#[test]
fn zero_budget_runs_one_pass() {
    let table = csv::parse(include_str!("../data/resnet50.csv")).expect("a table");
    let placement = place(&table.problem, Limits { work: 0, ..Limits::default() }).expect("a placement");
    assert_eq!((placement.height().0, placement.certificate.proof()), (1_521_895_084, Proof::Gap));
}

/// With sizes that are multiples of the alignment the bound is the plain sum; otherwise it assumes that the buffer with
/// the largest padding is on top.
#[test]
fn resnet50_training_step_reaches_the_bound_when_aligned() {
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
