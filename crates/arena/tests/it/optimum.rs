//! Problems with a known optimum: by brute force, or because they were cut from a full rectangle.

use prestow_arena::{Aim, Buffer, Limits, PlaceError, Problem, place};
use types::{Bytes, Proof, Random};

use crate::families::guillotine;
use crate::random::{Fixed, Gaps, Kind, random_problem};
use crate::{effort, place_and_check, place_and_check_with};

/// The least height, by placing the buffers in every order, each as low as it fits above those before it.
///
/// Some order is optimal: place the buffers of an optimal placement again by rising offset; none rises. Windows are not
/// allowed, because then "above" depends on the step.
fn brute_force(problem: &Problem) -> u64 {
    let base = problem.buffers.iter().map(|buffer| buffer.fixed.unwrap_or_default().0 + buffer.size.0).max();
    let mut search = Search { buffers: &problem.buffers, offsets: Vec::new(), best: u64::MAX };
    search.offsets = problem.buffers.iter().map(|buffer| buffer.fixed.map(|offset| offset.0)).collect();
    search.descend(base.unwrap_or(0));
    search.best
}

struct Search<'a> {
    buffers: &'a [Buffer],
    offsets: Vec<Option<u64>>,
    best: u64,
}

impl Search<'_> {
    fn descend(&mut self, height: u64) {
        if self.best <= height {
            return;
        }
        if self.offsets.iter().all(Option::is_some) {
            self.best = height;
            return;
        }
        for ix in 0..self.buffers.len() {
            if self.offsets[ix].is_none() {
                let offset = self.lowest(ix);
                self.offsets[ix] = Some(offset);
                self.descend(height.max(offset + self.buffers[ix].size.0));
                self.offsets[ix] = None;
            }
        }
    }

    fn lowest(&self, ix: usize) -> u64 {
        let buffer = &self.buffers[ix];
        let rivals: Vec<(bool, u64, u64)> = (0..self.buffers.len())
            .filter(|other| *other != ix && share_a_step(buffer, &self.buffers[*other]))
            .filter_map(|other| {
                let start = self.offsets[other]?;
                Some((self.buffers[other].fixed.is_some(), start, start + self.buffers[other].size.0))
            })
            .collect();
        let free_tops = rivals.iter().filter(|(is_fixed, _, _)| !is_fixed).map(|(_, _, top)| *top);
        let mut offset = free_tops.max().unwrap_or(0).next_multiple_of(buffer.alignment.0);
        let meets =
            |offset: u64| rivals.iter().any(|(_, start, top)| offset.max(*start) < (offset + buffer.size.0).min(*top));
        while meets(offset) {
            offset += buffer.alignment.0;
        }
        offset
    }
}

fn share_a_step(a: &Buffer, b: &Buffer) -> bool {
    (a.lifetime.first..a.lifetime.end).any(|step| a.occupied(step).is_some() && b.occupied(step).is_some())
}

/// The number of `n_problems` that are placed optimally, and with a proof; none may be below the optimum.
fn count_optimal(seed: u64, n_problems: u32, kind: Kind) -> (u32, u32) {
    let mut random = Random::new(seed);
    let (mut n_optimal, mut n_proved) = (0, 0);
    for _ in 0..n_problems {
        let problem = random_problem(&mut random, kind);
        let optimum = brute_force(&problem);
        let placement = place_and_check(&problem);
        assert!(placement.certificate.lower_bound.0 <= optimum, "the bound is above the optimum: {problem:#?}");
        assert!(optimum <= placement.height().0, "below the optimum, so one of them is wrong: {problem:#?}");
        n_optimal += u32::from(placement.height().0 == optimum);
        let is_proved = placement.certificate.proof() != Proof::Gap;
        assert!(!is_proved || placement.height().0 == optimum, "a false proof: {problem:#?}");
        n_proved += u32::from(is_proved);
    }
    (n_optimal, n_proved)
}

// The counts below are those that the planner reaches today; a better planner may raise them.

const SMALL: Kind =
    Kind { n_buffers_max: 6, n_steps: 6, size_max: 12, alignments: &[1], gaps: Gaps::None, fixed: Fixed::None };

#[test]
fn brute_force_is_never_beaten() {
    let (n_optimal, n_proved) = count_optimal(11, 3000, SMALL);
    assert_eq!((n_optimal, n_proved), (3000, 3000));
}

#[test]
fn brute_force_is_never_beaten_with_alignment() {
    let same = count_optimal(12, 2000, Kind { alignments: &[4], ..SMALL });
    let mixed = count_optimal(13, 2000, Kind { alignments: &[1, 2, 3, 4, 8], ..SMALL });
    assert_eq!((same, mixed), ((2000, 2000), (2000, 2000)));
}

#[test]
fn brute_force_is_never_beaten_with_gaps_and_fixed_buffers() {
    let gaps = count_optimal(14, 2000, Kind { gaps: Gaps::Absent, ..SMALL });
    let fixed = count_optimal(15, 2000, Kind { fixed: Fixed::Some, alignments: &[1, 2, 4], ..SMALL });
    assert_eq!((gaps, fixed), ((2000, 2000), (2000, 2000)));
}

/// Brute force ends small problems that no bound settles.
#[test]
fn dozen_items_need_a_small_budget() {
    let mut random = Random::new(17);
    let kind = Kind { n_buffers_max: 9, n_steps: 12, size_max: 30_000, alignments: &[1, 64, 96, 256], ..SMALL };
    for kind in [kind, Kind { gaps: Gaps::Absent, ..kind }, Kind { gaps: Gaps::Windows, ..kind }] {
        for _ in 0..200 {
            let problem = random_problem(&mut random, kind);
            let [little, much] = [25_000_000, 1 << 60].map(|work| place_and_check_with(&problem, work));
            assert_eq!(little, much, "more work changes nothing");
            assert!(kind.gaps == Gaps::Windows || little.certificate.proof() != Proof::Gap, "{problem:#?}");
        }
    }
}

#[test]
fn cut_rectangles_are_packed_with_little_waste() {
    let mut random = Random::new(16);
    for (n_pieces, n_problems, percent_max) in [(5, 200, 0), (20, 100, 0), (100, 20, 0)] {
        let mut worst = 0;
        for _ in 0..n_problems {
            let problem = guillotine(&mut random, 1000, 1000, n_pieces);
            let placement = place_and_check(&problem);
            assert_eq!(placement.certificate.lower_bound.0, 1000, "every step is full");
            worst = worst.max(placement.gap().0 / 10);
        }
        assert!(worst <= percent_max, "`{n_pieces}` pieces: `{worst}` % above the optimum");
    }
}

/// Some problems have an optimum above the bound; a capacity between the two is refused with a proof.
#[test]
fn capacity_between_bound_and_optimum_is_refused() {
    let mut random = Random::new(17);
    let mut seen = 0;
    for _ in 0..800 {
        let problem = random_problem(&mut random, Kind { alignments: &[1, 2, 3, 4, 8], ..SMALL });
        let placement = place_and_check(&problem);
        if placement.certificate.proof() != Proof::Search {
            continue;
        }
        seen += 1;
        let limit = Bytes(placement.height().0 - 1);
        for aim in [Aim::Least, Aim::Capacity] {
            let tight = Problem { capacity: Some(limit), ..problem.clone() };
            let error = place(&tight, Limits { aim, ..Limits::default() }).expect_err("there is no such placement");
            let PlaceError::RuledOut { limit: stated, least, .. } = error else { panic!("{error}: {problem:#?}") };
            assert!(stated == limit && limit < least && least <= placement.height(), "{error}");
        }
    }
    assert!(30 < seen, "only {seen} problems have a gap");
}

/// Very many tiny problems of every kind: the checker accepts all placements, and brute force never finds less than the
/// proved bound. `PRESTOW_FUZZ=50` makes a million.
#[test]
fn tiny_problems_of_every_kind() {
    let mut random = Random::new(18);
    for round in 0..20_000 * effort() {
        let alignments: &[u64] = [&[1][..], &[4], &[1, 2, 3, 8]][round % 3];
        let gaps = [Gaps::None, Gaps::Absent, Gaps::Windows][round / 3 % 3];
        let fixed = if round % 2 == 0 { Fixed::None } else { Fixed::Some };
        let n_buffers_max = if round % 8 == 0 { 4 } else { 9 };
        let kind = Kind { n_buffers_max, n_steps: 7, size_max: 12, alignments, gaps, fixed };
        let problem = random_problem(&mut random, kind);
        let placement = place_and_check_with(&problem, 20_000);
        // Brute force knows no windows.
        if n_buffers_max == 4 && gaps != Gaps::Windows {
            let optimum = brute_force(&problem);
            assert!(placement.certificate.least.0 <= optimum && optimum <= placement.height().0, "{problem:#?}");
        }
    }
}

/// Windows never make an arena higher, and lower some.
#[test]
fn windows_never_cost_bytes() {
    let mut random = Random::new(21);
    let kind = Kind { n_buffers_max: 40, n_steps: 30, size_max: 40, gaps: Gaps::Windows, ..SMALL };
    let (mut n_lower, mut n_bounds) = (0, 0);
    for _ in 0..60 {
        let problem = random_problem(&mut random, kind);
        let whole = problem.buffers.iter().map(|buffer| Buffer { gaps: Vec::new(), ..buffer.clone() }).collect();
        let work = 10_000_000;
        let placement = place_and_check_with(&problem, work);
        let of_whole = place_and_check_with(&Problem { buffers: whole, capacity: None }, work);
        assert!(placement.height() <= of_whole.height(), "{problem:#?}");
        n_lower += u32::from(placement.height() < of_whole.height());
        n_bounds += u32::from(placement.gap() == Bytes::ZERO);
    }
    assert_eq!((n_lower, n_bounds), (31, 50));
}
