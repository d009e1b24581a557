//! Networks: what is proved about their orders, and that it stays within the work allowed.

use crate::nets::{Net, inception, list_scheduled, nasnet, random_dag, randwire, resnet};
use crate::passes::order::{Order, OrderLimits, Tasks, least_peak, lower_bound};
use types::{Bytes, Proof};

fn order(tasks: &Tasks) -> Order {
    let found = least_peak(tasks, OrderLimits::default());
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
fn values_that_thousands_of_tasks_read_do_not_make_the_order_slow() {
    // Every third task reads one of three blocks that all others share. An order that looked at all readers of a block
    // whenever one of them runs would take minutes.
    let mut tasks = Tasks::new();
    let shared: Vec<_> = (1..4).map(|kib| tasks.add_given(Bytes(1024 * kib))).collect();
    let mut last = tasks.add_given(Bytes(64));
    for ix in 0..20_000 {
        let mut reads = vec![last];
        reads.extend((ix % 3 == 0).then(|| shared[ix / 3 % 3]));
        last = tasks.add1(&reads, Bytes(64));
    }
    tasks.keep(last);
    let found = least_peak(&tasks, OrderLimits::for_tasks(tasks.tasks().len()));
    assert_eq!(found.certificate.value, Bytes(6 * 1024 + 128));
    assert_eq!(found.certificate.proof(), Proof::Bound);
}

#[test]
fn random_dags_need_no_more_than_a_list_scheduler_with_restarts() {
    let many = [(1000, 300), (2000, 30), (5000, 100)];
    for (count, window) in [(60, 10), (200, 20), (200, 1000), (500, 50), (1000, 100)].into_iter().chain(many) {
        for seed in 1..4 {
            let tasks = random_dag(count, window, seed);
            let found = least_peak(&tasks, OrderLimits::for_tasks(tasks.tasks().len()));
            let value = found.certificate.value;
            assert_eq!(tasks.peak(&found.order), Some(value));
            let peer = list_scheduled(&tasks, 12);
            assert!(value <= peer, "{count} tasks, window {window}, seed {seed}: {value} > {peer}");
        }
    }
}

#[test]
fn sets_of_tasks_tighten_the_bound_of_wide_graphs() {
    for seed in 1..4 {
        let tasks = random_dag(200, 300, seed);
        let limits = OrderLimits { search_work: 0, ..OrderLimits::for_tasks(tasks.tasks().len()) };
        let [with, without] = [limits, OrderLimits { set_work: 0, ..limits }]
            .map(|limits| least_peak(&tasks, limits).certificate.lower_bound.0);
        assert!(without * 11 / 10 <= with, "seed {seed}: {with} with sets, {without} without");
    }
}

#[test]
fn work_that_ends_within_a_cut_leaves_a_bound() {
    for seed in 1..4 {
        let tasks = random_dag(5000, 300, seed);
        let limits = OrderLimits::for_tasks(tasks.tasks().len());
        let [all, some, none] = [limits.bound_work, 100_000, 0].map(|bound_work| {
            let limits = OrderLimits { bound_work, ..limits };
            lower_bound(&tasks, limits).0
        });
        println!("seed {seed}: {none} without cuts, {some} with a part of one, {all} with all work");
        assert!(none < some && some <= all, "seed {seed}: {none}, {some}, {all}");
    }
}

#[test]
fn minimum_cuts_lower_the_peak_of_wide_graphs() {
    for seed in 1..3 {
        let tasks = random_dag(5000, 300, seed);
        let limits = OrderLimits::for_tasks(tasks.tasks().len());
        let [with, without] = [limits, OrderLimits { uncross_work: 0, ..limits }]
            .map(|limits| least_peak(&tasks, limits).certificate.value.0);
        assert!(with * 6 / 5 <= without, "seed {seed}: {with} with cuts, {without} without");
    }
}

#[test]
fn kept_gradients_may_leave_a_gap_but_no_untruth() {
    let mut net = inception(3);
    net.keeps_gradients = true;
    let tasks = net.training();
    let given = tasks.peak(&tasks.given_order()).expect("it is an order");
    let found = least_peak(&tasks, OrderLimits { search_work: 1_000_000, ..OrderLimits::default() });
    assert_eq!(tasks.peak(&found.order), Some(found.certificate.value));
    assert!(found.certificate.lower_bound <= found.certificate.value && found.certificate.value <= given);
}

/// Peaks, bounds and CPU seconds of random graphs, in Markdown.
#[test]
#[ignore = "a measurement: prints a table"]
fn table_of_random_dags() {
    println!("| tasks | window | as given | list, 12 restarts | ours | of the list | bound | s |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for count in [200, 1000, 2000, 5000, 20_000] {
        for window in [10, 50, 300] {
            let tasks = random_dag(count, window, 1);
            let given = tasks.peak(&tasks.given_order()).expect("it is an order").0;
            let start = cpu_seconds();
            let certificate = least_peak(&tasks, OrderLimits::for_tasks(tasks.tasks().len())).certificate;
            let seconds = cpu_seconds() - start;
            let peer = list_scheduled(&tasks, 12).0;
            println!(
                "| {} | {window} | {given} | {peer} | {} | {:.2} | {} | {seconds:.2} |",
                tasks.tasks().len(),
                certificate.value.0,
                certificate.value.0 as f64 / peer as f64,
                certificate.lower_bound.0,
            );
        }
    }
}

/// The CPU seconds of this thread, as Linux reports them.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux reports times of threads");
    let nanoseconds = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    nanoseconds.expect("the first word is a number") / 1e9
}
