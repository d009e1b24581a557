//! [`Instance`]: the problem in the algorithms' form: plain integers, adjacency lists, bit sets of tasks.

use smallvec::SmallVec;
use types::EntityId;

use super::problem::Tasks;

/// A task by its position in the order as given.
pub(crate) type Position = usize;

/// Tasks or blocks. Most lists are so short that they need no memory of their own: parts of an order are cut out thousands of
/// times.
pub(crate) type List = SmallVec<[usize; 3]>;

/// A problem, laid out for speed. Byte counts are plain integers, as sums and differences are compared.
pub(crate) struct Instance {
    pub(crate) tasks: Vec<Work>,
    pub(crate) blocks: Vec<Span>,
    /// Bytes alive before anything ran.
    pub(crate) given: u64,
    /// Bytes of given blocks without readers: they die before the first task.
    pub(crate) unread: u64,
}

/// A task.
pub(crate) struct Work {
    /// Blocks that may die with the task: those it reads, and those it makes together with others.
    pub(crate) touches: List,
    /// Blocks that it makes alone.
    pub(crate) makes: List,
    /// Blocks that it is one of several tasks to make.
    pub(crate) shares: List,
    /// Predecessors.
    pub(crate) needs: List,
    /// Successors.
    pub(crate) feeds: List,
    /// Bytes that it makes alone, and the workspace.
    pub(crate) extra: u64,
    /// Bytes that it makes alone and that outlive it.
    pub(crate) born: u64,
    /// Bytes of the first result.
    pub(crate) first: u64,
    /// Sets of read blocks whose bytes the first result may take.
    pub(crate) in_place: SmallVec<[List; 1]>,
}

/// A block.
pub(crate) struct Span {
    pub(crate) bytes: u64,
    /// Its makers: the first starts its life. Empty if it is given.
    pub(crate) makers: List,
    /// Whether several tasks make it.
    pub(crate) is_shared: bool,
    /// The tasks of which the last ends its life: its readers, and its makers if there are several.
    pub(crate) last: List,
    pub(crate) kept: bool,
}

/// The change of live bytes when a task runs after a set of tasks.
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
        let blocks = problem.blocks().values().map(|block| {
            let makers: List = block.makers.iter().map(|maker| maker.index()).collect();
            let readers = block.readers.iter().map(|reader| reader.index());
            let several = if 1 < makers.len() { &makers[..] } else { &[] };
            let last = sorted(readers.chain(several.iter().copied()));
            Span { bytes: block.bytes.0, is_shared: 1 < makers.len(), makers, last, kept: block.kept }
        });
        let blocks: Vec<Span> = blocks.collect();
        let mut tasks = Vec::with_capacity(problem.tasks().len());
        for task in problem.tasks().values() {
            let reads: Vec<usize> = task.reads.iter().map(|block| block.index()).collect();
            let makes = task.makes.iter().map(|block| block.index());
            let (shares, makes): (List, List) = makes.partition(|&block| blocks[block].is_shared);
            let alone = reads.iter().filter(|&&block| !blocks[block].is_shared);
            let sum = |some: &mut dyn Iterator<Item = &usize>| some.map(|&block| blocks[block].bytes).sum::<u64>();
            let viable = |over: &&Vec<_>| over.iter().all(|block: &super::BlockId| !blocks[block.index()].kept);
            let first: Vec<usize> = task.first_result().iter().map(|block| block.index()).collect();
            let is_alone = !first.is_empty() && first.iter().all(|&block| !blocks[block].is_shared);
            let in_place = task.in_place.iter().filter(|_| is_alone).filter(viable);
            tasks.push(Work {
                needs: sorted(alone.flat_map(|&block| blocks[block].makers.iter().copied())),
                feeds: sorted(makes.iter().flat_map(|&block| blocks[block].last.iter().copied())),
                extra: sum(&mut makes.iter()) + task.workspace.0,
                born: sum(&mut makes.iter().filter(|&&block| blocks[block].outlives_its_maker())),
                first: sum(&mut first.iter()),
                in_place: in_place.map(|over| over.iter().map(|block| block.index()).collect()).collect(),
                touches: sorted(reads.iter().chain(&shares).copied()),
                makes,
                shares,
            });
        }
        let given = blocks.iter().filter(|block| block.makers.is_empty());
        let unread = given.clone().filter(|block| !block.outlives_its_maker()).map(|block| block.bytes).sum();
        let given = given.map(|block| block.bytes).sum();
        Instance { tasks, blocks, given, unread }
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Words of a bit set of tasks.
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

    /// The effect of a task that runs after `done`, which must contain its predecessors.
    pub(crate) fn effect(&self, done: &[u64], task: Position) -> Effect {
        self.effect_after(|other| has(done, other), task)
    }

    /// The effect of a task that runs after the tasks that are done.
    pub(crate) fn effect_after(&self, is_done: impl Fn(Position) -> bool, task: Position) -> Effect {
        let work = &self.tasks[task];
        let dies = |block: usize| {
            let block = &self.blocks[block];
            // The last readers first: they are the ones still to run.
            !block.kept && block.last.iter().rev().all(|&last| last == task || is_done(last))
        };
        let dying = work.touches.iter().filter(|&&block| dies(block));
        let dying = dying.map(|&block| self.blocks[block].bytes).sum();
        let is_new = |block: &Span| !block.makers.iter().any(|&maker| is_done(maker));
        let shared = work.shares.iter().map(|&block| &self.blocks[block]).filter(|block| is_new(block));
        let shared: u64 = shared.map(|block| block.bytes).sum();
        let in_place = work.in_place.iter().any(|over| over.iter().all(|&block| dies(block)));
        let during = work.extra + shared - if in_place { work.first } else { 0 };
        Effect { during, born: work.born + shared, dying }
    }

    /// Bytes alive when exactly `done` has run.
    pub(crate) fn live(&self, done: &[u64]) -> u64 {
        let is_made = |block: &&Span| block.makers.is_empty() || block.makers.iter().any(|&maker| has(done, maker));
        let made = self.blocks.iter().filter(is_made);
        let alive = made.filter(|block| block.kept || !block.last.iter().all(|&last| has(done, last)));
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
        self.kept || !self.last.is_empty()
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

fn sorted(items: impl Iterator<Item = Position>) -> List {
    let mut items: List = items.collect();
    items.sort_unstable();
    items.dedup();
    items
}
