//! [`SkylineRuns`]: the skyline, a row of heights as runs of neighbouring sections of equal height.
//!
//! A run is named by its first section; neighbouring runs have different heights. The stamp of a run changes whenever
//! the run or a neighbour changes, so that stale events are recognized.

/// The runs of a row of sections.
pub(crate) struct SkylineRuns {
    n_sections: u32,
    /// By first section of a run.
    all: Vec<Run>,
    starts: BitSet,
}

#[derive(Clone, Copy)]
struct Run {
    height: u64,
    end: u32,
    stamp: u32,
}

impl SkylineRuns {
    /// One run of height zero; `n_sections` is not zero.
    pub(crate) fn new(n_sections: usize) -> SkylineRuns {
        let n = n_sections as u32;
        let mut starts = BitSet::new(n_sections);
        starts.insert(0);
        SkylineRuns { n_sections: n, all: vec![Run { height: 0, end: n, stamp: 0 }; n_sections], starts }
    }

    pub(crate) fn height(&self, run: u32) -> u64 {
        self.all[run as usize].height
    }

    pub(crate) fn end(&self, run: u32) -> u32 {
        self.all[run as usize].end
    }

    pub(crate) fn stamp(&self, run: u32) -> u32 {
        self.all[run as usize].stamp
    }

    /// Changes the stamp of a run and returns it.
    pub(crate) fn renew(&mut self, run: u32) -> u32 {
        let stamp = &mut self.all[run as usize].stamp;
        *stamp = stamp.wrapping_add(1);
        *stamp
    }

    pub(crate) fn before(&self, run: u32) -> Option<u32> {
        run.checked_sub(1).map(|section| self.starts.at_or_before(section))
    }

    pub(crate) fn after(&self, run: u32) -> Option<u32> {
        Some(self.end(run)).filter(|end| *end < self.n_sections)
    }

    /// The height of the lower neighbour, if there is a neighbour.
    pub(crate) fn rim(&self, run: u32) -> Option<u64> {
        let neighbours = [self.before(run), self.after(run)];
        neighbours.into_iter().flatten().map(|run| self.height(run)).min()
    }

    /// Sets the height of the sections `first..end` and returns their run.
    pub(crate) fn set(&mut self, first: u32, end: u32, height: u64) -> u32 {
        self.cut(first);
        if end < self.n_sections {
            self.cut(end);
        }
        let mut next = self.end(first);
        while next < end {
            self.starts.remove(next);
            self.renew(next);
            next = self.end(next);
        }
        let run = &mut self.all[first as usize];
        (run.height, run.end) = (height, end);
        self.join(first)
    }

    /// Splits the run that contains a section, so that one begins there.
    fn cut(&mut self, section: u32) {
        let run = self.starts.at_or_before(section);
        if run == section {
            return;
        }
        let Run { height, end, .. } = self.all[run as usize];
        self.all[run as usize].end = section;
        let new = &mut self.all[section as usize];
        (new.height, new.end) = (height, end);
        self.starts.insert(section);
        self.renew(section);
    }

    /// Merges a run with its neighbours of the same height.
    fn join(&mut self, run: u32) -> u32 {
        let mut run = run;
        if let Some(before) = self.before(run)
            && self.height(before) == self.height(run)
        {
            self.all[before as usize].end = self.end(run);
            self.starts.remove(run);
            self.renew(run);
            run = before;
        }
        if let Some(after) = self.after(run)
            && self.height(after) == self.height(run)
        {
            self.all[run as usize].end = self.end(after);
            self.starts.remove(after);
            self.renew(after);
        }
        run
    }
}

/// A set of small numbers with the query "largest member up to a number": a bitmap, above it a bitmap of its nonzero
/// words, and so on until one word is left.
struct BitSet {
    levels: Vec<Vec<u64>>,
}

impl BitSet {
    fn new(n: usize) -> BitSet {
        let mut levels = Vec::new();
        let mut n_words = n;
        while levels.is_empty() || 1 < n_words {
            n_words = n_words.div_ceil(64);
            levels.push(vec![0; n_words]);
        }
        BitSet { levels }
    }

    fn insert(&mut self, member: u32) {
        let mut at = member as usize;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    fn remove(&mut self, member: u32) {
        let mut at = member as usize;
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                break;
            }
            at /= 64;
        }
    }

    /// The largest member that is not above `number`; there is one.
    fn at_or_before(&self, number: u32) -> u32 {
        let mut at = number as usize;
        // Bits zero to `at % 64`, inclusive.
        let mut mask = u64::MAX >> (63 - at % 64);
        for (height, level) in self.levels.iter().enumerate() {
            let word = level[at / 64] & mask;
            if word != 0 {
                at = at / 64 * 64 + word.ilog2() as usize;
                for level in self.levels[..height].iter().rev() {
                    at = at * 64 + level[at].ilog2() as usize;
                }
                return at as u32;
            }
            at /= 64;
            // On the level above, only words before this one.
            mask = (1 << (at % 64)) - 1;
        }
        unreachable!("zero is always a member")
    }
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    #[test]
    fn skyline_runs_equal_a_row() {
        let mut random = Random::new(5);
        for n in [1_u32, 2, 5, 63, 64, 65, 130, 5000] {
            let mut runs = SkylineRuns::new(n as usize);
            let mut row = vec![0; n as usize];
            for _ in 0..200 {
                let first = random.below(n.into()) as u32;
                let end = first + 1 + random.below((n - first).into()) as u32;
                let height = random.below(3);
                row[first as usize..end as usize].fill(height);
                let run = runs.set(first, end, height);
                assert!(run <= first && end <= runs.end(run));
                let (mut at, mut before) = (0, None);
                while at < n {
                    assert!(row[at as usize..runs.end(at) as usize].iter().all(|each| *each == runs.height(at)));
                    assert_eq!(runs.before(at), before);
                    assert!(before.is_none_or(|before| runs.height(before) != runs.height(at)));
                    before = Some(at);
                    at = runs.end(at);
                }
                assert_eq!(at, n);
            }
        }
    }
}
