//! Behavior of the planner and its checker. All tests go through [`place_and_check`].

mod broken;
mod edges;
mod families;
mod optimum;
mod random;
mod real;
mod residency;
mod table;

use prestow_arena::{Buffer, Lifetime, Limits, Placement, Problem, check, lower_bound, place};
use types::Bytes;

/// Places a problem and checks all properties of a placement.
#[track_caller]
fn place_and_check(problem: &Problem) -> Placement {
    // Enough to search small problems through; larger ones may keep a gap.
    place_and_check_with(problem, 5_000_000)
}

/// [`place_and_check`] with a budget.
#[track_caller]
fn place_and_check_with(problem: &Problem, work: u64) -> Placement {
    let limits = Limits { work, ..Limits::default() };
    let placement = match place(problem, limits) {
        Ok(placement) => placement,
        Err(error) => panic!("{error}\n{problem:#?}"),
    };
    if let Err(violations) = check(problem, &placement.offsets, placement.height()) {
        panic!("{violations:?}\n{placement:?}\n{problem:#?}");
    }
    let certificate = placement.certificate;
    let bound = lower_bound(problem);
    assert_eq!((certificate.lower_bound, placement.peak_step), (bound.height, bound.step));
    assert!(plain_bound(problem) <= certificate.lower_bound.0, "the bound is at least the live bytes");
    assert!(certificate.is_consistent(), "{certificate:?}");
    let tops = problem.buffers.iter().zip(&placement.offsets).map(|(buffer, offset)| *offset + buffer.size);
    assert_eq!(tops.max().unwrap_or_default(), placement.height(), "the height is the highest top");
    placement
}

/// The largest sum of occupied bytes over all steps, without alignment, from the definition.
fn plain_bound(problem: &Problem) -> u64 {
    // Occupation rises only where a lifetime starts or a gap starts or ends.
    let starts = problem.buffers.iter().flat_map(|buffer| {
        let gaps = buffer.gaps.iter().flat_map(|gap| [gap.lifetime.first, gap.lifetime.end]);
        gaps.chain([buffer.lifetime.first])
    });
    let live = |step: u32| -> u64 {
        let windows = problem.buffers.iter().filter_map(|buffer| buffer.occupied(step));
        windows.map(|window| window.high.0 - window.low.0).sum()
    };
    let mut starts: Vec<u32> = starts.collect();
    starts.sort_unstable();
    starts.dedup();
    // Large problems have too many steps for this; their bounds stand in the tests by number.
    starts.into_iter().take(100).map(live).max().unwrap_or(0)
}

/// The factor on the number of random problems: `PRESTOW_FUZZ=50 cargo test ...` for a long run.
#[expect(clippy::disallowed_methods, reason = "a switch of the test run")]
fn effort() -> usize {
    std::env::var("PRESTOW_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// `first..end`, `size` bytes.
fn buffer(first: u32, end: u32, size: u64) -> Buffer {
    Buffer::new(Lifetime { first, end }, Bytes(size))
}

fn aligned(first: u32, end: u32, size: u64, alignment: u64) -> Buffer {
    Buffer { alignment: Bytes(alignment), ..buffer(first, end, size) }
}

fn fixed(first: u32, end: u32, size: u64, offset: u64) -> Buffer {
    Buffer { fixed: Some(Bytes(offset)), ..buffer(first, end, size) }
}

fn problem(buffers: impl Into<Vec<Buffer>>) -> Problem {
    Problem { buffers: buffers.into(), capacity: None }
}
