//! Edge cases: nothing to place, too much to place, and refused problems.

use prestow_arena::{
    Aim, Buffer, ByteWindow, Gap, Lifetime, Limits, PlaceError, Problem, check, csv, lower_bound, place,
};
use types::{Bytes, Proof, Random};

use crate::{aligned, buffer, fixed, place_and_check, problem};

#[track_caller]
fn check_height(buffers: &[Buffer], height: u64) {
    let placement = place_and_check(&problem(buffers));
    assert_eq!(placement.height(), Bytes(height));
    assert_eq!(placement.certificate.proof(), Proof::Bound);
}

#[track_caller]
fn check_refused(problem: &Problem, message: &str) {
    assert_eq!(place(problem, Limits::default()).expect_err("refused").to_string(), message);
}

#[test]
fn empty_problem_has_height_zero() {
    check_height(&[], 0);
    check_height(&[buffer(0, 9, 0), buffer(3, 3, 0)], 0);
}

#[test]
fn buffer_that_never_lives_is_inside_the_arena() {
    check_height(&[buffer(3, 3, 10), buffer(0, 9, 4)], 10);
    check_height(&[fixed(3, 3, 10, 90), buffer(0, 9, 4)], 100);
}

#[test]
fn largest_sizes_do_not_overflow() {
    check_height(&[buffer(0, 1, u64::MAX), buffer(1, 2, u64::MAX)], u64::MAX);
    check_height(&[buffer(0, 1, u64::MAX - 1), buffer(0, 1, 1)], u64::MAX);
    check_height(&[buffer(0, u32::MAX, 1), buffer(u32::MAX - 1, u32::MAX, 1)], 2);
    let too_much = "no placement found below 2^64 bytes; the lower bound is `18446744073709551615` bytes";
    check_refused(&problem([buffer(0, 1, u64::MAX), buffer(0, 1, 1)]), too_much);
    check_refused(&problem(vec![buffer(0, 1, u64::MAX); 40]), too_much);
    check_refused(
        &problem([aligned(0, 1, 1, 1 << 63), aligned(0, 1, 1, 1 << 63), aligned(0, 1, 1, 1 << 63)]),
        too_much,
    );
    assert_eq!(lower_bound(&problem(vec![buffer(0, 1, u64::MAX); 40])).height, Bytes(u64::MAX));
}

#[test]
fn overflow_above_the_bound_is_refused() {
    // Four buffers for three places: 0, 2^63 and 3 * 2^62.
    let buffers = [1 << 63, 1 << 63, 3 << 62, 3 << 62].map(|alignment| aligned(0, 1, 1, alignment));
    let lower_bound = Bytes((3 << 62) + 1);
    assert_eq!(place(&problem(buffers), Limits::default()), Err(PlaceError::Overflow { lower_bound }));
}

#[test]
fn padding_on_top_does_not_count() {
    check_height(&[aligned(0, 1, 1, 64), aligned(0, 1, 1, 64), aligned(0, 1, 65, 64)], 128 + 65);
    check_height(&[aligned(0, 1, 1, 64), aligned(0, 1, 60, 64)], 65);
}

#[test]
fn gaps_are_used() {
    let gap = |first, end, window| vec![Gap { lifetime: Lifetime { first, end }, window }];
    let absent = Buffer { gaps: gap(2, 6, None), ..buffer(0, 9, 64) };
    check_height(&[absent, buffer(2, 6, 64)], 64);
    let low_half = ByteWindow { low: Bytes(0), high: Bytes(32) };
    let half = Buffer { gaps: gap(2, 6, Some(low_half)), ..buffer(0, 9, 64) };
    check_height(&[half, buffer(2, 6, 32)], 64);
    let empty = ByteWindow { low: Bytes(32), high: Bytes(32) };
    let never = Buffer { gaps: gap(0, 9, Some(empty)), ..buffer(0, 9, 64) };
    check_height(&[never, buffer(0, 9, 64)], 64);
}

#[test]
fn fixed_buffers_stay_and_others_avoid_them() {
    let placement = place_and_check(&problem([fixed(0, 4, 16, 16), buffer(0, 4, 16), buffer(2, 4, 8)]));
    assert_eq!(placement.offsets, [Bytes(16), Bytes(0), Bytes(32)]);
    check_height(&[fixed(0, 4, 16, 1000), buffer(0, 4, 64)], 1016);
    // Fixed at the same place at different times, and inside the gap of another.
    let with_gap =
        Buffer { gaps: vec![Gap { lifetime: Lifetime { first: 1, end: 3 }, window: None }], ..fixed(0, 4, 8, 0) };
    check_height(&[with_gap, fixed(1, 3, 8, 0), fixed(4, 5, 8, 0), buffer(0, 5, 8)], 16);
}

#[test]
fn capacity_is_kept_or_refused() {
    let buffers = [buffer(0, 2, 64), buffer(1, 3, 32)];
    let enough = Problem { capacity: Some(Bytes(96)), ..problem(buffers.clone()) };
    assert_eq!(place_and_check(&enough).height(), Bytes(96));
    let small = Problem { capacity: Some(Bytes(95)), ..problem(buffers) };
    check_refused(&small, "the capacity must be at least `96` bytes, the live bytes at step `1`; got `95` bytes");
}

#[test]
fn invalid_problems_are_refused() {
    let refuses = |buffer: Buffer, message: &str| check_refused(&problem([buffer]), message);
    refuses(aligned(0, 1, 1, 0), "alignment of buffer `b0` must be >= 1, got `0`");
    refuses(buffer(2, 1, 1), "end of buffer `b0` must be >= its first step `2`, got `1`");
    refuses(
        Buffer { alignment: Bytes(8), ..fixed(0, 1, 1, 12) },
        "fixed offset of buffer `b0` must be a multiple of its alignment `8`, got `12`",
    );
    refuses(
        fixed(0, 1, 2, u64::MAX - 1),
        "buffer `b0` of `2` bytes must end below 2^64, got the fixed offset `18446744073709551614`",
    );
    let collision = problem([fixed(0, 4, 8, 0), buffer(0, 4, 8), fixed(3, 6, 8, 7)]);
    check_refused(&collision, "fixed buffers must not overlap, got `b0` and `b2` at step `3`");
    let collision = problem([fixed(3, 6, 2, 3), fixed(0, 4, 8, 0)]);
    check_refused(&collision, "fixed buffers must not overlap, got `b0` and `b1` at step `3`");
}

#[test]
fn gaps_outside_the_buffer_are_refused() {
    let refuses = |gaps: &str, gap: usize| {
        let table = csv::parse(&format!("id,lower,upper,size,gaps\nx,2,8,4,{gaps}\n")).expect("a table");
        let message = format!(
            "gap `{gap}` of buffer `b0` must be within the buffer's lifetime and size and overlap no other gap"
        );
        check_refused(&table.problem, &message);
    };
    refuses("1-4", 0);
    refuses("2-4 7-9", 1);
    refuses("4-3", 0);
    refuses("2-5 4-6", 1);
    refuses("2-5@0:5", 0);
    refuses("2-5@3:2", 0);
}

/// Hints that are a placement are kept or improved; any others are only an order.
#[test]
fn valid_hints_are_never_exceeded() {
    let mut random = Random::new(8);
    for _ in 0..200 {
        let mut problem = Problem::default();
        for _ in 0..1 + random.below(12) {
            let first = random.below(8) as u32;
            let lifetime = Lifetime { first, end: first + 1 + random.below(5) as u32 };
            problem.buffers.push(Buffer::new(lifetime, Bytes(1 + random.below(9))));
        }
        let known = place(&problem, Limits::default()).expect("small problems have a placement");
        let mut hinted = problem.clone();
        for (buffer, offset) in hinted.buffers.iter_mut().zip(&known.offsets) {
            buffer.hint = Some(*offset);
        }
        let again = place(&hinted, Limits { work: 0, aim: Aim::Least }).expect("the hints are one");
        check(&hinted, &again.offsets, again.height()).expect("it is valid");
        assert!(again.height() <= known.height());
        assert!(again.offsets.iter().zip(&known.offsets).all(|(again, hint)| again <= hint));
        hinted.buffers.iter_mut().for_each(|buffer| buffer.hint = Some(Bytes(random.below(u64::MAX))));
        let wild = place(&hinted, Limits::default()).expect("hints bind nothing");
        check(&hinted, &wild.offsets, wild.height()).expect("it is valid");
        assert_eq!(wild.height(), known.height(), "both are optimal");
    }
}
