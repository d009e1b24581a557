//! [`Joint`]: where blocks end and others begin on the same bytes, and what is known of it.

/// A vertical line, or several at the same time that are not told apart.
#[derive(Clone, Default)]
pub(crate) struct Joint {
    pub(crate) ending: Vec<u32>,
    pub(crate) starting: Vec<u32>,
    /// Whether it is one line, as far as sums can say.
    pub(crate) is_whole: bool,
    pub(crate) seen: Seen,
}

/// What was seen at a joint when it was looked at last.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    /// How many blocks ended and began.
    pub(crate) n_blocks: (usize, usize),
    /// How many sums of each were compared.
    pub(crate) n_sums: usize,
    /// The least doubt of those that agreed; all there is if none did.
    pub(crate) doubt: u64,
}

/// How joints are looked at.
#[derive(Clone, Copy)]
pub(crate) struct Level {
    /// How many sums of each side are compared.
    pub(crate) n_sums: usize,
    /// How much doubt an agreement may be in.
    pub(crate) doubt: u64,
}

impl Joint {
    pub(crate) fn len(&self) -> usize {
        self.ending.len() + self.starting.len()
    }

    /// How many blocks end and begin.
    pub(crate) fn n_blocks(&self) -> (usize, usize) {
        (self.ending.len(), self.starting.len())
    }

    /// Whether nothing is left to find at a level.
    pub(crate) fn is_done(&self, level: Level) -> bool {
        let Seen { n_blocks, n_sums, doubt } = self.seen;
        let is_seen = n_blocks == self.n_blocks() && level.n_sums <= n_sums && level.doubt < doubt;
        self.n_blocks() != (1, 1) && (self.is_whole || is_seen)
    }
}
