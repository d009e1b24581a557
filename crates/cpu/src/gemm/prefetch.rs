//! [`Prefetch`]: hints for memory that later tiles read.

use crate::gemm::operands::Word;
use crate::simd::vector::Vector;

/// Words of a cache line, and terms of a step.
pub(crate) const LINE: usize = 16;

/// Memory that a tile prefetches while it computes, a few lines at each *step*: a core has few outstanding loads. A
/// step is sixteen terms, or the rest of a loop's depth.
///
/// These are hints for the second-level cache; results and safety do not depend on them, and the address need not be
/// valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    at: *const Word,
    /// Words left.
    rest: usize,
    /// Lines per step.
    lines: usize,
}

impl Prefetch {
    pub(crate) const NONE: Prefetch = Prefetch { at: std::ptr::null(), rest: 0, lines: 0 };

    /// `words` words from `at` on, spread over `steps` steps.
    pub(crate) fn new(at: *const Word, words: usize, steps: usize) -> Prefetch {
        Prefetch { at, rest: words, lines: words.div_ceil(LINE).div_ceil(steps.max(1)) }
    }

    /// Steps of a loop over terms with a total trip count.
    pub(crate) fn steps(iterations: usize, depth: usize) -> usize {
        iterations * depth.div_ceil(LINE)
    }

    /// Takes the portion of some steps; `self` keeps the rest.
    pub(crate) fn portion(&mut self, steps: usize) -> Prefetch {
        let words = self.rest.min(self.lines * LINE * steps);
        let share = Prefetch { rest: words, ..*self };
        (self.at, self.rest) = (self.at.wrapping_add(words), self.rest - words);
        share
    }

    /// Prefetches the lines of a step.
    #[inline(always)]
    pub(crate) fn step<V: Vector>(&mut self) {
        let lines = self.lines.min(self.rest.div_ceil(LINE));
        for _ in 0..lines {
            V::prefetch_far(self.at);
            self.at = self.at.wrapping_add(LINE);
        }
        self.rest = self.rest.saturating_sub(lines * LINE);
    }
}
