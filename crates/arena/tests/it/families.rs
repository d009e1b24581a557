//! Generated problems by seed and size: the gaps that the planner reaches.

use prestow_arena::{Buffer, ByteWindow, Gap, Lifetime, Limits, Placement, Problem, check, place};
use types::{Bytes, Random};

use crate::{buffer, problem};

/// Cuts `n_steps` steps of `n_bytes` bytes by straight cuts into `n_pieces` buffers that fill them, shuffled.
///
/// The lower bound and the least height are `n_bytes`.
pub(crate) fn guillotine(random: &mut Random, n_steps: u32, n_bytes: u64, n_pieces: usize) -> Problem {
    let mut pieces = vec![buffer(0, n_steps, n_bytes)];
    while pieces.len() < n_pieces {
        let ix = random.below(pieces.len() as u64) as usize;
        let piece = pieces[ix].clone();
        let (first, end) = (piece.lifetime.first, piece.lifetime.end);
        if random.below(2) == 0 && 1 < end - first {
            let cut = first + 1 + random.below(u64::from(end - first - 1)) as u32;
            pieces[ix].lifetime.end = cut;
            pieces.push(buffer(cut, end, piece.size.0));
        } else if 1 < piece.size.0 {
            let cut = 1 + random.below(piece.size.0 - 1);
            pieces[ix].size.0 = cut;
            pieces.push(buffer(first, end, piece.size.0 - cut));
        }
    }
    for ix in (1..pieces.len()).rev() {
        pieces.swap(ix, random.below(ix as u64 + 1) as usize);
    }
    problem(pieces)
}

/// Lifetimes and sizes of every order of magnitude.
fn random_lifetimes(random: &mut Random, n_buffers: usize) -> Problem {
    let n_steps = 2 * n_buffers as u64;
    let buffers: Vec<Buffer> = (0..n_buffers)
        .map(|_| {
            let first = random.below(n_steps) as u32;
            let width = random.below(n_steps / 4 + 1);
            let width = random.below(width + 1);
            let width = random.below(width + 1);
            let magnitude = random.below(16);
            buffer(first, first + 1 + width as u32, 64 * (1 + random.below(1 << magnitude)))
        })
        .collect();
    problem(buffers)
}

/// A training step: buffer `i` lives from the forward pass at `i` to the backward pass at `2n - i`; workspaces are short.
fn nested(random: &mut Random, n_buffers: usize) -> Problem {
    let half = n_buffers as u32 / 2;
    let buffers: Vec<Buffer> = (0..half)
        .flat_map(|at| {
            let kept = buffer(at, 2 * half - at, 256 * (1 + random.below(4096)));
            let first = random.below(2 * u64::from(half)) as u32;
            let end = first + 1 + random.below(8) as u32;
            [kept, buffer(first, end, 256 * (1 + random.below(8192)))]
        })
        .collect();
    problem(buffers)
}

/// One buffer in 500 lives long, the others some steps.
fn long_lived(random: &mut Random, n_buffers: usize) -> Problem {
    let n_steps = n_buffers as u64;
    let buffers: Vec<Buffer> = (0..n_buffers)
        .map(|_| {
            let size = 64 * (1 + random.below(4096));
            let is_long = random.below(500) == 0;
            let first = random.below(if is_long { n_steps / 2 } else { n_steps }) as u32;
            let width = if is_long { n_steps / 4 + random.below(n_steps / 4) } else { 1 + random.below(20) };
            buffer(first, first + width as u32, size)
        })
        .collect();
    problem(buffers)
}

/// Four alignments, every fifth buffer with a gap or a window, one in 100 fixed.
fn mixed(random: &mut Random, n_buffers: usize) -> Problem {
    let n_steps = n_buffers as u64;
    let buffers: Vec<Buffer> = (0..n_buffers)
        .map(|at| {
            let first = random.below(n_steps) as u32;
            let magnitude = random.below(16);
            let width = if random.below(200) == 0 { random.below(n_steps / 4 + 1) } else { random.below(30) };
            let end = first + 1 + width as u32;
            let mut buffer = buffer(first, end, 1 + random.below(1 << magnitude));
            buffer.alignment = Bytes([1, 64, 96, 256][random.below(4) as usize]);
            if random.below(5) == 0 {
                let half = ByteWindow { low: Bytes(buffer.size.0 / 4), high: Bytes(buffer.size.0 / 2) };
                let gap = first + random.below(u64::from(end - first)) as u32;
                let window = (random.below(2) == 0).then_some(half);
                buffer.gaps.push(Gap { lifetime: Lifetime { first: gap, end }, window });
            }
            if at % 100 == 0 {
                // Fixed buffers do not overlap.
                buffer.size = Bytes(4096);
                buffer.alignment = Bytes(1);
                buffer.gaps.clear();
                buffer.fixed = Some(Bytes(8192 * (1 + at as u64 / 100)));
            }
            buffer
        })
        .collect();
    problem(buffers)
}

/// Places with a small budget and checks the placement; the gap is in thousandths of the bound.
#[track_caller]
fn check_gap(problem: &Problem, gap_max: u64) {
    let limits = Limits { work: 4_000_000, ..Limits::default() };
    let placement: Placement = place(problem, limits).expect("there is no limit");
    assert_eq!(check(problem, &placement.offsets, placement.height()), Ok(()));
    assert_eq!(place(problem, limits).as_ref(), Ok(&placement), "the same again");
    let bound = placement.certificate.lower_bound;
    assert!(bound <= placement.height());
    let gap = placement.gap().0 * 1000 / bound.0.max(1);
    assert!(gap <= gap_max, "`{gap}` thousandths above the bound");
}

#[test]
fn cut_rectangles_have_a_bounded_gap() {
    for (n_pieces, gap_max) in [(300, 300), (4000, 250)] {
        check_gap(&guillotine(&mut Random::new(41), 100_000, 1 << 30, n_pieces), gap_max);
    }
}

#[test]
fn lifetimes_of_every_magnitude_have_a_small_gap() {
    check_gap(&random_lifetimes(&mut Random::new(42), 4000), 80);
}

/// Lifetimes of up to 20 steps; the bound is a peak that few other steps come near.
#[test]
fn many_short_lifetimes_reach_the_bound() {
    let mut random = Random::new(48);
    let buffers: Vec<Buffer> = (0..20_000)
        .map(|_| {
            let first = random.below(20_000) as u32;
            buffer(first, first + 1 + random.below(20) as u32, 64 * (1 + random.below(4096)))
        })
        .collect();
    check_gap(&problem(buffers), 0);
}

/// Fixed buffers leave holes all over the arena, which others fill.
#[test]
fn holes_between_fixed_buffers_are_used() {
    let mut whole = guillotine(&mut Random::new(49), 10_000, 1 << 24, 6000);
    let placed = place(&whole, Limits { work: 4_000_000, ..Limits::default() }).expect("there is no limit");
    for (at, buffer) in whole.buffers.iter_mut().enumerate() {
        buffer.fixed = (!at.is_multiple_of(4)).then_some(placed.offsets[at]);
    }
    check_gap(&whole, 500);
}

#[test]
fn training_step_reaches_the_bound() {
    check_gap(&nested(&mut Random::new(43), 10_000), 0);
}

#[test]
fn few_long_lifetimes_among_short_ones_have_a_small_gap() {
    check_gap(&long_lived(&mut Random::new(44), 10_000), 10);
}

#[test]
fn mixed_problems_have_a_bounded_gap() {
    check_gap(&mixed(&mut Random::new(45), 4000), 400);
}
