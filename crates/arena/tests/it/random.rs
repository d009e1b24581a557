//! Random small problems of every kind: all placements pass the checker.

use prestow_arena::{Buffer, ByteWindow, Gap, Lifetime, Limits, Problem, place};
use types::{Bytes, Random};

use crate::place_and_check;

/// The kind of a random problem.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) n_buffers_max: u64,
    pub(crate) n_steps: u64,
    pub(crate) size_max: u64,
    pub(crate) alignments: &'static [u64],
    pub(crate) gaps: Gaps,
    pub(crate) fixed: Fixed,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Gaps {
    None,
    Absent,
    Windows,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fixed {
    None,
    /// Some buffers have the offsets of a first placement.
    Some,
}

pub(crate) fn random_problem(random: &mut Random, kind: Kind) -> Problem {
    let n_buffers = random.below(kind.n_buffers_max + 1);
    let buffers = (0..n_buffers).map(|_| random_buffer(random, kind)).collect();
    let mut problem = Problem { buffers, capacity: None };
    if kind.fixed == Fixed::Some {
        let placement = place(&problem, Limits { work: 0, ..Limits::default() }).expect("free buffers fit somewhere");
        // Lifted by a common multiple of all alignments, so that buffers fit below.
        let lift = 24 * random.below(2);
        for (buffer, offset) in problem.buffers.iter_mut().zip(placement.offsets) {
            if random.below(3) == 0 {
                buffer.fixed = Some(offset + Bytes(lift));
            }
        }
    }
    problem
}

fn random_buffer(random: &mut Random, kind: Kind) -> Buffer {
    let first = random.below(kind.n_steps) as u32;
    let end = first + random.below(kind.n_steps + 1 - u64::from(first)) as u32;
    let mut buffer = Buffer::new(Lifetime { first, end }, Bytes(random.below(kind.size_max + 1)));
    buffer.alignment = Bytes(kind.alignments[random.below(kind.alignments.len() as u64) as usize]);
    let mut step = first;
    while kind.gaps != Gaps::None && random.below(3) == 0 && step < end {
        let first = step + random.below(u64::from(end - step)) as u32;
        let gap_end = first + random.below(u64::from(end - first) + 1) as u32;
        let low = random.below(buffer.size.0 + 1);
        let window = ByteWindow { low: Bytes(low), high: Bytes(low + random.below(buffer.size.0 - low + 1)) };
        let window = (kind.gaps == Gaps::Windows && random.below(2) == 0).then_some(window);
        buffer.gaps.push(Gap { lifetime: Lifetime { first, end: gap_end }, window });
        step = gap_end;
    }
    buffer.gaps.reverse();
    buffer
}

#[track_caller]
fn check_many(seed: u64, n_problems: u32, kind: Kind) {
    let mut random = Random::new(seed);
    for _ in 0..n_problems {
        place_and_check(&random_problem(&mut random, kind));
    }
}

const PLAIN: Kind =
    Kind { n_buffers_max: 12, n_steps: 10, size_max: 40, alignments: &[1], gaps: Gaps::None, fixed: Fixed::None };

#[test]
fn plain_problems_are_placed() {
    check_many(1, 6000, PLAIN);
}

#[test]
fn aligned_problems_are_placed() {
    check_many(2, 4000, Kind { alignments: &[8], ..PLAIN });
    check_many(3, 4000, Kind { alignments: &[1, 2, 3, 4, 8, 12], ..PLAIN });
}

#[test]
fn problems_with_gaps_are_placed() {
    check_many(4, 4000, Kind { gaps: Gaps::Absent, ..PLAIN });
    check_many(5, 4000, Kind { gaps: Gaps::Windows, alignments: &[1, 4], ..PLAIN });
}

#[test]
fn problems_with_fixed_buffers_are_placed() {
    check_many(6, 4000, Kind { fixed: Fixed::Some, ..PLAIN });
    check_many(7, 4000, Kind { fixed: Fixed::Some, gaps: Gaps::Windows, alignments: &[1, 2, 3, 8], ..PLAIN });
}

#[test]
fn larger_problems_are_placed() {
    let large = Kind { n_buffers_max: 150, n_steps: 60, size_max: 5000, ..PLAIN };
    check_many(8, 60, large);
    check_many(9, 60, Kind { fixed: Fixed::Some, gaps: Gaps::Windows, alignments: &[1, 4, 24], ..large });
}

#[test]
fn placement_is_deterministic() {
    let mut random = Random::new(10);
    for _ in 0..50 {
        let problem = random_problem(&mut random, Kind { n_buffers_max: 60, ..PLAIN });
        assert_eq!(place_and_check(&problem), place_and_check(&problem));
    }
}
