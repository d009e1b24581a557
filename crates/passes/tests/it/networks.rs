//! Networks: what is proved about their orders, and that it stays within the work allowed.

use crate::nets::{Net, inception, nasnet, randwire, resnet};
use crate::passes::order::{Limits, Order, Tasks, least_peak};
use types::Proof;

fn order(tasks: &Tasks) -> Order {
    let found = least_peak(tasks, Limits::default());
    assert_eq!(tasks.peak(&found.order), Some(found.certificate.value));
    found
}

#[track_caller]
fn assert_optimal(net: &Net) {
    for tasks in [net.inference(), net.training()] {
        let found = order(&tasks);
        assert_ne!(found.certificate.proof(), Proof::Gap, "{} tasks: {:?}", tasks.tasks().len(), found.certificate);
    }
}

#[test]
fn chains_of_blocks_are_optimal() {
    assert_optimal(&resnet([3, 4, 6, 3]));
    assert_optimal(&inception(11));
}

#[test]
fn cells_are_optimal() {
    assert_optimal(&nasnet(1));
    assert_optimal(&nasnet(6));
}

#[test]
fn random_wiring_is_optimal_and_ordered_the_same_twice() {
    for (stages, seed) in [(1, 1), (3, 1), (1, 2)] {
        let net = randwire(stages, seed);
        assert_optimal(&net);
        assert_eq!(order(&net.inference()), order(&net.inference()));
    }
}

#[test]
fn thousands_of_tasks_end_near_the_bound() {
    for tasks in [resnet([30, 60, 120, 30]).training(), inception(150).training()] {
        let certificate = order(&tasks).certificate;
        assert!(4500 < tasks.tasks().len());
        assert!(certificate.value.0 <= certificate.lower_bound.0 * 101 / 100, "{certificate:?}");
    }
}

#[test]
fn kept_gradients_may_leave_a_gap_but_no_untruth() {
    let mut net = inception(3);
    net.keeps_gradients = true;
    let tasks = net.training();
    let given = tasks.peak(&tasks.given_order()).expect("it is an order");
    let found = least_peak(&tasks, Limits { search_work: 1_000_000, ..Limits::default() });
    assert_eq!(tasks.peak(&found.order), Some(found.certificate.value));
    assert!(found.certificate.lower_bound <= found.certificate.value && found.certificate.value <= given);
}
