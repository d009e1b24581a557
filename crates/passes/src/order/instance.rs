//! [`Instance`]: the problem as the algorithms read it: plain numbers, neighbours listed once, sets of tasks as bits.

use types::EntityId;

use super::problem::Tasks;

/// A task by its position in the order as given.
pub(crate) type Position = usize;

/// A problem, laid out for speed. Byte counts are plain here, as their sums and differences are what is compared.
pub(crate) struct Instance {
    pub(crate) tasks: Vec<Work>,
    pub(crate) blocks: Vec<Span>,
    /// Bytes alive before anything ran.
    pub(crate) given: u64,
    /// Bytes of given blocks that nobody reads: they are gone before the first task.
    pub(crate) unread: u64,
}

/// A task.
pub(crate) struct Work {
    pub(crate) reads: Vec<usize>,
    /// Tasks that make what this one reads.
    pub(crate) needs: Vec<Position>,
    /// Tasks that read what this one makes.
    pub(crate) feeds: Vec<Position>,
    /// Bytes made, and the workspace.
    pub(crate) extra: u64,
    /// Bytes made that outlive the task.
    pub(crate) born: u64,
    /// Bytes of the first made block.
    pub(crate) first: u64,
    /// Sets of read blocks whose bytes the first made block may take.
    pub(crate) in_place: Vec<Vec<usize>>,
}

/// A block.
pub(crate) struct Span {
    pub(crate) bytes: u64,
    pub(crate) maker: Option<Position>,
    pub(crate) readers: Vec<Position>,
    pub(crate) kept: bool,
}

/// What a task does to the bytes alive when it runs behind a set of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Bytes more than before while it runs.
    pub(crate) during: u64,
    /// Bytes made that outlive it.
    pub(crate) born: u64,
    /// Bytes that die with it.
    pub(crate) dying: u64,
}

impl Instance {
    pub(crate) fn new(problem: &Tasks) -> Instance {
        let blocks = problem.blocks().values().map(|block| Span {
            bytes: block.bytes.0,
            maker: block.maker.map(EntityId::index),
            readers: block.readers.iter().map(|reader| reader.index()).collect(),
            kept: block.kept,
        });
        let blocks: Vec<Span> = blocks.collect();
        let mut tasks = Vec::with_capacity(problem.tasks().len());
        for task in problem.tasks().values() {
            let reads: Vec<usize> = task.reads.iter().map(|block| block.index()).collect();
            let makes: Vec<usize> = task.makes.iter().map(|block| block.index()).collect();
            let sum = |some: &mut dyn Iterator<Item = &usize>| some.map(|&block| blocks[block].bytes).sum::<u64>();
            let viable = |over: &&Vec<_>| over.iter().all(|block: &super::BlockId| !blocks[block.index()].kept);
            let in_place = task.in_place.iter().filter(viable);
            tasks.push(Work {
                needs: sorted(reads.iter().filter_map(|&block| blocks[block].maker)),
                feeds: sorted(makes.iter().flat_map(|&block| blocks[block].readers.iter().copied())),
                extra: sum(&mut makes.iter()) + task.workspace.0,
                born: sum(&mut makes.iter().filter(|&&block| blocks[block].outlives_its_maker())),
                first: sum(&mut makes.iter().take(1)),
                in_place: in_place.map(|over| over.iter().map(|block| block.index()).collect()).collect(),
                reads,
            });
        }
        let given = blocks.iter().filter(|block| block.maker.is_none());
        let unread = given.clone().filter(|block| !block.outlives_its_maker()).map(|block| block.bytes).sum();
        let given = given.map(|block| block.bytes).sum();
        Instance { tasks, blocks, given, unread }
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// How many words a set of tasks takes.
    pub(crate) fn words(&self) -> usize {
        self.len().div_ceil(64).max(1)
    }

    /// Bytes alive when the first task starts.
    pub(crate) fn start(&self) -> u64 {
        self.given - self.unread
    }

    /// Whether everything that a task needs is done.
    pub(crate) fn is_ready(&self, done: &[u64], task: Position) -> bool {
        self.tasks[task].needs.iter().all(|&need| has(done, need))
    }

    /// What a task does when it runs behind `done`, which holds all it needs.
    pub(crate) fn effect(&self, done: &[u64], task: Position) -> Effect {
        let work = &self.tasks[task];
        let dying = work.reads.iter().filter(|&&block| self.dies(done, block, task));
        let dying = dying.map(|&block| self.blocks[block].bytes).sum();
        let in_place = work.in_place.iter().any(|over| over.iter().all(|&block| self.dies(done, block, task)));
        Effect { during: work.extra - if in_place { work.first } else { 0 }, born: work.born, dying }
    }

    /// Whether a block that `task` reads dies with it.
    fn dies(&self, done: &[u64], block: usize, task: Position) -> bool {
        let block = &self.blocks[block];
        !block.kept && block.readers.iter().all(|&reader| reader == task || has(done, reader))
    }

    /// Bytes alive when exactly `done` has run.
    pub(crate) fn live(&self, done: &[u64]) -> u64 {
        let made = self.blocks.iter().filter(|block| block.maker.is_none_or(|maker| has(done, maker)));
        let alive = made.filter(|block| block.kept || !block.readers.iter().all(|&reader| has(done, reader)));
        alive.map(|block| block.bytes).sum()
    }

    /// The most bytes alive at once in an order.
    pub(crate) fn peak(&self, order: &[Position]) -> u64 {
        let mut done = vec![0; self.words()];
        let mut live = self.start();
        let mut peak = self.given;
        for &task in order {
            let effect = self.effect(&done, task);
            peak = peak.max(live + effect.during);
            live = live + effect.born - effect.dying;
            insert(&mut done, task);
        }
        peak
    }
}

impl Span {
    fn outlives_its_maker(&self) -> bool {
        self.kept || !self.readers.is_empty()
    }
}

/// Whether a task is in a set.
pub(crate) fn has(set: &[u64], task: Position) -> bool {
    set[task / 64] >> (task % 64) & 1 == 1
}

/// Puts a task into a set.
pub(crate) fn insert(set: &mut [u64], task: Position) {
    set[task / 64] |= 1 << (task % 64);
}

/// Takes a task out of a set.
pub(crate) fn remove(set: &mut [u64], task: Position) {
    set[task / 64] &= !(1 << (task % 64));
}

/// Whether one set holds all of another.
pub(crate) fn contains(set: &[u64], part: &[u64]) -> bool {
    set.iter().zip(part).all(|(set, part)| part & !set == 0)
}

fn sorted(items: impl Iterator<Item = Position>) -> Vec<Position> {
    let mut items: Vec<Position> = items.collect();
    items.sort_unstable();
    items.dedup();
    items
}
