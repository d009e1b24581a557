//! [`Tasks`]: the problem, and [`Tasks::peak`], the reference evaluation of an order.

use types::{Bytes, Map, entity};

entity!(
    /// A task of one [`Tasks`].
    pub TaskId, "t"
);
entity!(
    /// A block of one [`Tasks`].
    pub BlockId, "b"
);

/// Bytes that live from the first task that makes them to the last task that makes or reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// How many.
    pub bytes: Bytes,
    /// The tasks that make them, each a part, ascending; none if the block is given at the start.
    pub makers: Vec<TaskId>,
    /// The tasks that read them, ascending, each once.
    pub readers: Vec<TaskId>,
    /// Whether they stay to the end.
    pub kept: bool,
}

/// One piece of work, to be put in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Blocks that it makes.
    pub makes: Vec<BlockId>,
    /// Blocks that it reads, ascending, each once.
    pub reads: Vec<BlockId>,
    /// Bytes that it needs only while it runs.
    pub workspace: Bytes,
    /// How many of the made blocks, the first ones, are pieces of the result that may work in place.
    pub pieces: usize,
    /// Sets of read blocks. The first [`Task::pieces`] made blocks may take the bytes of one set if all of it dies with this
    /// task.
    pub in_place: Vec<Vec<BlockId>>,
}

impl Task {
    /// The made blocks of the result that may work in place.
    pub fn first_result(&self) -> &[BlockId] {
        &self.makes[..self.pieces.min(self.makes.len())]
    }
}

/// Tasks and the blocks between them. The ids of tasks are an order in which they can run: the order as given.
///
/// While a task runs, the blocks that it reads and makes are alive together, unless it works in place. A block without readers
/// dies with the task that makes it. A given block is alive from the start on. Blocks of no bytes only
/// express dependencies.
///
/// A block that several tasks make is alive as a whole from the first of them on. Reading it does not say which of them
/// must come first: other blocks do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tasks {
    blocks: Map<BlockId, Block>,
    tasks: Map<TaskId, Task>,
}

impl Tasks {
    /// No tasks.
    pub fn new() -> Tasks {
        Tasks::default()
    }

    /// Adds a block that is there from the start.
    pub fn add_given(&mut self, bytes: Bytes) -> BlockId {
        self.blocks.push(Block { bytes, makers: Vec::new(), readers: Vec::new(), kept: false })
    }

    /// Marks a task as maker of a part of a block that was added as given. A block of several makers takes no other's bytes.
    pub fn add_maker(&mut self, block: BlockId, task: TaskId) {
        self.blocks[block].makers.push(task);
        self.tasks[task].makes.push(block);
    }

    /// Adds a task behind all others that reads blocks and makes new ones.
    pub fn add(&mut self, reads: &[BlockId], makes: &[Bytes]) -> TaskId {
        let mut reads = reads.to_vec();
        reads.sort_unstable();
        reads.dedup();
        let (makes_none, in_place) = (Vec::new(), Vec::new());
        let id = self.tasks.push(Task { makes: makes_none, reads, workspace: Bytes(0), pieces: 1, in_place });
        for &bytes in makes {
            let block = self.blocks.push(Block { bytes, makers: vec![id], readers: Vec::new(), kept: false });
            self.tasks[id].makes.push(block);
        }
        for &block in &self.tasks[id].reads {
            self.blocks[block].readers.push(id);
        }
        id
    }

    /// [`Tasks::add`] for a task that makes one block.
    pub fn add1(&mut self, reads: &[BlockId], makes: Bytes) -> BlockId {
        let id = self.add(reads, &[makes]);
        self.tasks[id].makes[0]
    }

    /// Sets the bytes that a task needs only while it runs.
    pub fn set_workspace(&mut self, task: TaskId, workspace: Bytes) {
        self.tasks[task].workspace = workspace;
    }

    /// Says that the first made blocks of a task are the pieces of its first result.
    pub fn set_pieces(&mut self, task: TaskId, pieces: usize) {
        self.tasks[task].pieces = pieces;
    }

    /// Lets the first result of a task take the bytes of `over` if all of `over` dies with the task. Blocks of other sizes,
    /// or that the task does not read, have no bytes to take: they are not added.
    pub fn allow_in_place(&mut self, task: TaskId, over: &[BlockId]) {
        let mut over = over.to_vec();
        over.sort_unstable();
        over.dedup();
        let bytes: u64 = over.iter().map(|&block| self.blocks[block].bytes.0).sum();
        let first = self.tasks[task].first_result();
        let fits = !first.is_empty() && first.iter().map(|&made| self.blocks[made].bytes.0).sum::<u64>() == bytes;
        if fits && over.iter().all(|block| self.tasks[task].reads.contains(block)) {
            self.tasks[task].in_place.push(over);
        }
    }

    /// Keeps a block to the end.
    pub fn keep(&mut self, block: BlockId) {
        self.blocks[block].kept = true;
    }

    /// All blocks.
    pub fn blocks(&self) -> &Map<BlockId, Block> {
        &self.blocks
    }

    /// All tasks.
    pub fn tasks(&self) -> &Map<TaskId, Task> {
        &self.tasks
    }

    /// The order as given.
    pub fn given_order(&self) -> Vec<TaskId> {
        self.tasks.keys().collect()
    }

    /// The most bytes alive at once in an order; `None` if it is invalid: see [`Tasks::live`].
    pub fn peak(&self, order: &[TaskId]) -> Option<Bytes> {
        let given: Bytes = self.blocks.values().filter(|block| block.makers.is_empty()).map(|block| block.bytes).sum();
        self.live(order).map(|live| live.into_iter().fold(given, Bytes::max))
    }

    /// The most bytes alive at once while each task of an order runs; `None` if it is invalid: a task is
    /// missing, repeated, or before a predecessor.
    pub fn live(&self, order: &[TaskId]) -> Option<Vec<Bytes>> {
        let mut done = Map::filled(self.tasks.len(), false);
        let mut alive: Vec<BlockId> = self.blocks.keys().filter(|&id| self.blocks[id].makers.is_empty()).collect();
        let mut live = Vec::with_capacity(order.len());
        alive.retain(|&id| self.blocks[id].kept || !self.blocks[id].readers.is_empty());
        for &id in order {
            let task = self.tasks.get(id).filter(|_| !done[id])?;
            if !task.reads.iter().all(|block| alive.contains(block)) {
                return None;
            }
            done[id] = true;
            let dies = |block: &BlockId| {
                let block = &self.blocks[*block];
                !block.kept && block.readers.iter().chain(&block.makers).all(|&other| done[other])
            };
            let is_alone = |made: &BlockId| self.blocks[*made].makers.len() == 1;
            let first = task.first_result();
            let in_place = !first.is_empty()
                && first.iter().all(is_alone)
                && task.in_place.iter().any(|over| over.iter().all(dies));
            let mut made = if in_place { task.makes[first.len()..].to_vec() } else { task.makes.clone() };
            made.retain(|block| !alive.contains(block));
            let during = self.sum(&alive) + self.sum(&made) + task.workspace.0;
            alive.extend(task.makes.iter().filter(|block| !alive.contains(block)).copied().collect::<Vec<_>>());
            alive.retain(|block| !dies(block));
            live.push(Bytes(during.max(self.sum(&alive))));
        }
        (order.len() == self.tasks.len()).then_some(live)
    }

    fn sum(&self, blocks: &[BlockId]) -> u64 {
        blocks.iter().map(|&block| self.blocks[block].bytes.0).sum()
    }
}
