//! [`Prefetch`]: the lines of memory that tiles ask for before others need them.

use crate::gemm::operands::Word;
use crate::simd::vector::Vector;

/// Words of a line of the caches, and terms of a step.
pub(crate) const LINE: usize = 16;

/// Memory that tiles ask for while they compute, for those that follow: few lines at a time, since a core waits for few. A
/// tile asks at each *step*, sixteen terms of its sums or what is left of a k_loop's depth.
///
/// It goes to the second-level cache. Whatever lies there, or nothing, is not touched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    at: *const Word,
    /// How many words are left.
    rest: usize,
    /// Lines of each step.
    lines: usize,
}

impl Prefetch {
    pub(crate) const NONE: Prefetch = Prefetch { at: std::ptr::null(), rest: 0, lines: 0 };

    /// So many words, asked for over so many steps.
    pub(crate) fn new(at: *const Word, words: usize, steps: usize) -> Prefetch {
        Prefetch { at, rest: words, lines: words.div_ceil(LINE).div_ceil(steps.max(1)) }
    }

    /// The steps of a k_loop of so many iterations in all.
    pub(crate) fn steps(iterations: usize, depth: usize) -> usize {
        iterations * depth.div_ceil(LINE)
    }

    /// What so many steps ask for; this is then what is left.
    pub(crate) fn portion(&mut self, steps: usize) -> Prefetch {
        let words = self.rest.min(self.lines * LINE * steps);
        let share = Prefetch { rest: words, ..*self };
        (self.at, self.rest) = (self.at.wrapping_add(words), self.rest - words);
        share
    }

    /// Asks for the lines of a step.
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
