//! Deliberately broken placements: the checker finds each fault.

use prestow_arena::{Buffer, BufferIx, ByteWindow, Gap, Lifetime, Problem, Violation, check};
use types::{Bytes, EntityId, Random};

use crate::random::{Fixed, Gaps, Kind, random_problem};
use crate::{aligned, buffer, fixed, place_and_check, problem};

#[track_caller]
fn check_finds(problem: &Problem, offsets: &[u64], height: u64, expected: &[Violation]) {
    let offsets: Vec<Bytes> = offsets.iter().copied().map(Bytes).collect();
    let violations = check(problem, &offsets, Bytes(height)).expect_err("a broken placement");
    assert_eq!(violations, expected);
}

fn ix(index: usize) -> BufferIx {
    BufferIx::from_index(index)
}

fn with_gap(buffer: Buffer, first: u32, end: u32, window: Option<(u64, u64)>) -> Buffer {
    let window = window.map(|(low, high)| ByteWindow { low: Bytes(low), high: Bytes(high) });
    Buffer { gaps: vec![Gap { lifetime: Lifetime { first, end }, window }], ..buffer }
}

#[test]
fn missing_offset_is_found() {
    let expected = Violation::WrongCount { n_buffers: 2, n_offsets: 1 };
    check_finds(&problem([buffer(0, 1, 4), buffer(0, 1, 4)]), &[0], 8, &[expected]);
}

#[test]
fn one_shared_byte_is_found() {
    let two = problem([buffer(0, 5, 4), buffer(4, 6, 4)]);
    check_finds(&two, &[0, 3], 8, &[Violation::Overlap { a: ix(0), b: ix(1), step: 4 }]);
    check_finds(&two, &[3, 0], 8, &[Violation::Overlap { a: ix(0), b: ix(1), step: 4 }]);
    assert_eq!(check(&two, &[Bytes(0), Bytes(4)], Bytes(8)), Ok(()));
}

#[test]
fn buffer_inside_another_is_found() {
    let two = problem([buffer(0, 9, 100), buffer(3, 4, 1)]);
    check_finds(&two, &[0, 50], 100, &[Violation::Overlap { a: ix(0), b: ix(1), step: 3 }]);
}

#[test]
fn neighbours_in_time_do_not_overlap() {
    let two = problem([buffer(0, 4, 4), buffer(4, 6, 4), buffer(4, 4, 4), buffer(0, 9, 0)]);
    assert_eq!(check(&two, &[Bytes(0), Bytes(0), Bytes(0), Bytes(2)], Bytes(4)), Ok(()));
}

#[test]
fn overlap_after_a_gap_is_found() {
    let two = problem([with_gap(buffer(0, 9, 4), 2, 5, None), buffer(3, 6, 4)]);
    check_finds(&two, &[0, 0], 4, &[Violation::Overlap { a: ix(0), b: ix(1), step: 5 }]);
    let two = problem([with_gap(buffer(0, 9, 4), 2, 5, None), buffer(3, 5, 4)]);
    assert_eq!(check(&two, &[Bytes(0), Bytes(0)], Bytes(4)), Ok(()));
}

#[test]
fn overlap_with_a_window_is_found() {
    let two = problem([with_gap(buffer(0, 9, 8), 2, 5, Some((2, 4))), buffer(3, 5, 4)]);
    check_finds(&two, &[0, 3], 8, &[Violation::Overlap { a: ix(0), b: ix(1), step: 3 }]);
    assert_eq!(check(&two, &[Bytes(0), Bytes(4)], Bytes(8)), Ok(()));
}

#[test]
fn misaligned_offset_is_found() {
    let expected = Violation::Misaligned { buffer: ix(0), offset: Bytes(4), alignment: Bytes(8) };
    check_finds(&problem([aligned(0, 1, 4, 8)]), &[4], 8, &[expected]);
}

/// `Problem::verify` refuses it as well; the checker does not rely on that.
#[test]
fn alignment_of_zero_is_found() {
    let expected = Violation::Misaligned { buffer: ix(0), offset: Bytes(0), alignment: Bytes(0) };
    check_finds(&problem([aligned(0, 1, 4, 0)]), &[0], 8, &[expected]);
}

#[test]
fn overlap_before_and_after_a_gap_is_found_once() {
    let two = problem([with_gap(buffer(0, 9, 4), 2, 5, None), buffer(1, 9, 4)]);
    check_finds(&two, &[0, 0], 4, &[Violation::Overlap { a: ix(0), b: ix(1), step: 1 }]);
}

#[test]
fn buffer_above_the_height_is_found() {
    let expected = Violation::AboveHeight { buffer: ix(0), top: Bytes(9), height: Bytes(8) };
    check_finds(&problem([buffer(0, 0, 4)]), &[5], 8, &[expected]);
    let expected = Violation::AboveHeight { buffer: ix(0), top: Bytes(u64::MAX), height: Bytes(u64::MAX) };
    check_finds(&problem([buffer(0, 1, u64::MAX)]), &[5], u64::MAX, &[expected]);
}

#[test]
fn moved_fixed_buffer_is_found() {
    let expected = Violation::FixedMoved { buffer: ix(0), fixed: Bytes(16), offset: Bytes(0) };
    check_finds(&problem([fixed(0, 1, 4, 16)]), &[0], 20, &[expected]);
    let expected = Violation::FixedMoved { buffer: ix(0), fixed: Bytes(16), offset: Bytes(24) };
    check_finds(&problem([fixed(0, 1, 4, 16)]), &[24], 28, &[expected]);
}

#[test]
fn height_above_the_capacity_is_found() {
    let small = Problem { capacity: Some(Bytes(7)), ..problem([buffer(0, 1, 4)]) };
    check_finds(&small, &[0], 8, &[Violation::AboveCapacity { capacity: Bytes(7), height: Bytes(8) }]);
}

#[test]
fn height_of_the_capacity_passes() {
    let exact = Problem { capacity: Some(Bytes(8)), ..problem([buffer(0, 1, 8)]) };
    assert_eq!(check(&exact, &[Bytes(0)], Bytes(8)), Ok(()));
}

/// Buffers that overlap others are kept apart from those in order: they end, meet and touch like the others.
#[test]
fn overlapping_buffers_end_and_touch_like_others() {
    let overlap = |a, b, step| Violation::Overlap { a: ix(a), b: ix(b), step };
    // The second ends before the fourth, which meets only the third.
    let four = problem([buffer(0, 9, 4), buffer(1, 5, 100), buffer(2, 9, 50), buffer(6, 9, 10)]);
    let expected = [overlap(0, 1, 1), overlap(0, 2, 2), overlap(1, 2, 2), overlap(2, 3, 6)];
    check_finds(&four, &[0, 0, 0, 20], 100, &expected);
    // The third touches the second from above, the fourth from below.
    let four = problem([buffer(0, 9, 4), buffer(1, 9, 6), buffer(2, 9, 4), buffer(3, 9, 2)]);
    check_finds(&four, &[4, 2, 8, 0], 12, &[overlap(0, 1, 1)]);
}

#[test]
fn adjacent_and_empty_gaps_do_not_overlap_themselves() {
    let window = Some(ByteWindow { low: Bytes(2), high: Bytes(4) });
    let gap = |first, end| Gap { lifetime: Lifetime { first, end }, window };
    let adjacent = Buffer { gaps: vec![gap(2, 4), gap(4, 6)], ..buffer(0, 9, 8) };
    let empty = Buffer { gaps: vec![gap(3, 3)], ..buffer(0, 9, 8) };
    // The last one occupies the bytes that the first leaves.
    let three = problem([adjacent, empty, buffer(2, 6, 2)]);
    assert_eq!(check(&three, &[Bytes(0), Bytes(8), Bytes(0)], Bytes(16)), Ok(()));
}

/// Moves one buffer of a good placement onto another that lives at the same step.
#[test]
fn random_overlaps_are_found() {
    let kind =
        Kind { n_buffers_max: 10, n_steps: 8, size_max: 30, alignments: &[1], gaps: Gaps::None, fixed: Fixed::None };
    let mut random = Random::new(20);
    let mut n_broken = 0;
    for _ in 0..2000 {
        let problem = random_problem(&mut random, kind);
        let mut placement = place_and_check(&problem);
        let n_buffers = problem.buffers.len() as u64;
        if n_buffers < 2 {
            continue;
        }
        let (a, b) = (random.below(n_buffers) as usize, random.below(n_buffers) as usize);
        let [x, y] = [&problem.buffers[a], &problem.buffers[b]];
        if a == b || !x.lifetime.overlaps(y.lifetime) || x.size.0.min(y.size.0) == 0 {
            continue;
        }
        placement.offsets[a] = placement.offsets[b];
        let violations = check(&problem, &placement.offsets, Bytes(u64::MAX)).expect_err("a collision");
        let step = x.lifetime.first.max(y.lifetime.first);
        assert!(violations.contains(&Violation::Overlap { a: ix(a.min(b)), b: ix(a.max(b)), step }));
        n_broken += 1;
    }
    assert!(200 < n_broken, "the test must test something");
}

/// Without names, messages have positions.
#[test]
fn violations_have_the_names_of_buffers() {
    let names = ["conv1", "relu1"];
    let name = |buffer: BufferIx| names[buffer.index()].to_string();
    let two = problem([buffer(0, 5, 4), buffer(4, 6, 4)]);
    let violations = check(&two, &[Bytes(0), Bytes(3)], Bytes(8)).expect_err("they share a byte");
    let [violation] = &violations[..] else { panic!("{violations:?}") };
    assert_eq!(violation.text(name), "live buffers must not overlap, got `conv1` and `relu1` at step `4`");
    assert_eq!(
        violation.to_string(),
        format!("live buffers must not overlap, got `{}` and `{}` at step `4`", ix(0), ix(1))
    );

    let mut two = two;
    two.buffers[1].alignment = Bytes(0);
    let error = two.verify().expect_err("no such alignment");
    assert_eq!(error.text(name), "alignment of buffer `relu1` must be >= 1, got `0`");
}
