//! [`Instance`]: a verified problem as the passes see it. Time is cut into *sections*, the runs of steps between two
//! neighbouring ends of pieces, so that a piece is a range of section numbers.
//!
//! Also here: [`Priority`], the orders in which passes take the items, and [`Work`], their budget.

use std::cell::{OnceCell, RefCell};
use std::cmp::Reverse;
use std::ops::Range;

use types::EntityId;

use crate::neighbors::Neighbors;
use crate::obstacles::Obstacles;
use crate::problem::{BufferIx, Problem};
use crate::segment_tree::AddMaxTree;
use crate::spatial_index::{Point, SpatialIndex};

/// A problem prepared for the passes; they never change it.
pub(crate) struct Instance {
    /// The buffers with a free offset that occupy some byte at some step. Passes name an item by its position here.
    pub(crate) items: Vec<Item>,
    /// The bytes that items occupy; each item owns a range.
    pub(crate) pieces: Vec<Piece>,
    /// The bytes that fixed buffers occupy, by rising start.
    pub(crate) fixed: Vec<Slot>,
    /// The same as an index.
    pub(crate) obstacles: Obstacles,
    /// The plain items: see [`Instance::is_item_plain`].
    pub(crate) index: SpatialIndex,
    /// Whether all items are plain and have one alignment.
    pub(crate) is_even: bool,
    /// The start of every range that an item occupies is a multiple of this.
    pub(crate) grain: u64,
    /// The number of sections.
    pub(crate) n_sections: usize,
    /// The height of fixed buffers and of buffers that occupy nothing.
    pub(crate) base: u64,
    neighbors: OnceCell<Option<RefCell<Neighbors>>>,
}

/// A buffer to place.
pub(crate) struct Item {
    pub(crate) buffer: BufferIx,
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    hint: Option<u64>,
    /// Its pieces in [`Instance::pieces`], by rising time.
    pub(crate) pieces: Range<usize>,
    /// The sections from its first piece to its last, gaps included.
    pub(crate) hull: Range<u32>,
    /// The steps from its first piece to its last.
    width: u32,
    first_step: u32,
    /// The largest sum of bytes, all items and fixed buffers taken together, in a section in which it occupies some.
    pub(crate) peak: u128,
}

/// A rectangle relative to its item's offset: the bytes `low..high` in the sections `first..end`. Never empty.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// A placed rectangle: the bytes `start..top` in the sections `first..end`.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) start: u64,
    pub(crate) top: u64,
    pub(crate) first: u32,
    pub(crate) end: u32,
}

/// An order of items: the largest value goes first. [`Instance::order`] has the tie breaks; equal items keep the order
/// of the problem.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Priority {
    /// Bytes times steps.
    Area,
    /// Bytes.
    Size,
    /// Steps from first to last.
    Width,
    /// The tallest section it takes part in, then area.
    PeakArea,
    /// The tallest section it takes part in, then width.
    PeakWidth,
    /// The earliest first.
    First,
    /// The least padding between size and alignment first, then area: padding costs nothing on top of the pile.
    Padding,
    /// The lowest hint first, those without one last.
    Hint,
}

impl Instance {
    /// `problem` must be verified: see [`Problem::verify`].
    pub(crate) fn new(problem: &Problem) -> Instance {
        let occupied: Vec<_> = problem.entries().map(|(ix, buffer)| (ix, buffer, buffer.pieces())).collect();
        let lifetimes = occupied.iter().flat_map(|(_, _, pieces)| pieces.iter().map(|piece| piece.lifetime));
        let mut cuts: Vec<u32> = lifetimes.flat_map(|lifetime| [lifetime.first, lifetime.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let section = |step: u32| cuts.partition_point(|cut| *cut < step) as u32;

        let mut instance = Instance {
            items: Vec::new(),
            pieces: Vec::new(),
            fixed: Vec::new(),
            obstacles: Obstacles::new(Vec::new()),
            index: SpatialIndex::new(Vec::new()),
            is_even: true,
            grain: 0,
            n_sections: cuts.len().saturating_sub(1),
            base: 0,
            neighbors: OnceCell::new(),
        };
        for (ix, buffer, pieces) in occupied {
            let to_piece = |piece: &crate::problem::Piece| Piece {
                first: section(piece.lifetime.first),
                end: section(piece.lifetime.end),
                low: piece.window.low.0,
                high: piece.window.high.0,
            };
            if let Some(offset) = buffer.fixed {
                instance.base = instance.base.max(offset.0 + buffer.size.0);
                instance.fixed.extend(pieces.iter().map(to_piece).map(|piece| piece.at(offset.0)));
            } else if let (Some(earliest), Some(latest)) = (pieces.first(), pieces.last()) {
                let start = instance.pieces.len();
                instance.pieces.extend(pieces.iter().map(to_piece));
                instance.items.push(Item {
                    buffer: ix,
                    size: buffer.size.0,
                    alignment: buffer.alignment.0,
                    hint: buffer.hint.map(|hint| hint.0),
                    pieces: start..instance.pieces.len(),
                    hull: section(earliest.lifetime.first)..section(latest.lifetime.end),
                    width: latest.lifetime.end - earliest.lifetime.first,
                    first_step: earliest.lifetime.first,
                    peak: 0,
                });
            } else {
                instance.base = instance.base.max(buffer.size.0);
            }
        }
        instance.fixed.sort_unstable_by_key(|slot| (slot.start, slot.first));
        instance.obstacles = Obstacles::new(instance.fixed.clone());
        instance.find_peaks();
        instance.find_plain_items();
        instance
    }

    /// Whether an item occupies all of its bytes from its first section to its last.
    pub(crate) fn is_item_plain(&self, item: &Item) -> bool {
        match self.pieces(item) {
            [piece] => piece.low == 0 && piece.high == item.size,
            _ => false,
        }
    }

    /// Which items share sections; `None` if there are too many pairs of them.
    pub(crate) fn neighbors(&self) -> Option<&RefCell<Neighbors>> {
        self.neighbors.get_or_init(|| Neighbors::new(self).map(RefCell::new)).as_ref()
    }

    /// Whether some item has a hint.
    pub(crate) fn has_hints(&self) -> bool {
        self.items.iter().any(|item| item.hint.is_some())
    }

    /// The pieces of an item.
    pub(crate) fn pieces(&self, item: &Item) -> &[Piece] {
        &self.pieces[item.pieces.clone()]
    }

    /// The items in an order.
    pub(crate) fn order(&self, priority: Priority) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.items.len() as u32).collect();
        order.sort_by_cached_key(|ix| {
            let item = &self.items[*ix as usize];
            let (size, width) = (u128::from(item.size), u128::from(item.width));
            let area = size * width;
            let key = match priority {
                Priority::Area => [area, size, width],
                Priority::Size => [size, width, area],
                Priority::Width => [width, size, area],
                Priority::PeakArea => [item.peak, area, size],
                Priority::PeakWidth => [item.peak, width, size],
                Priority::First => [u128::from(u32::MAX - item.first_step), width, size],
                Priority::Hint => [item.hint.map_or(0, |hint| u128::from(u64::MAX - hint) + 1), area, size],
                Priority::Padding => [u128::from(u64::MAX) - item.padding(), area, size],
            };
            Reverse(key)
        });
        order
    }

    /// The height of offsets by item, fixed buffers included.
    pub(crate) fn height(&self, by_item: &[u64]) -> u64 {
        let tops = self.items.iter().zip(by_item).map(|(item, offset)| offset + item.size);
        tops.fold(self.base, u64::max)
    }

    /// Offsets by buffer from offsets by item. Buffers that occupy nothing are at zero unless they are fixed.
    pub(crate) fn offsets(&self, problem: &Problem, by_item: &[u64]) -> Vec<u64> {
        let mut offsets: Vec<u64> = problem.buffers.iter().map(|buffer| buffer.fixed.unwrap_or_default().0).collect();
        for (item, offset) in self.items.iter().zip(by_item) {
            offsets[item.buffer.index()] = *offset;
        }
        offsets
    }

    fn find_plain_items(&mut self) {
        let lows = self.pieces.iter().map(|piece| piece.low);
        self.grain = self.items.iter().map(|item| item.alignment).chain(lows).fold(0, gcd).max(1);
        let mut points = Vec::with_capacity(self.items.len());
        self.is_even = true;
        for (ix, item) in self.items.iter().enumerate() {
            if self.is_item_plain(item) {
                points.push(Point { first: item.hull.start, end: item.hull.end, item: ix as u32, size: item.size });
                self.is_even &= item.alignment == self.grain;
            } else {
                self.is_even = false;
            }
        }
        self.index = SpatialIndex::new(points);
    }

    /// By section, the sum of the bytes that live in it.
    pub(crate) fn totals(&self) -> Vec<u128> {
        let mut steps = vec![(0_u128, 0_u128); self.n_sections + 1];
        let fixed = self.fixed.iter().map(|slot| (slot.first, slot.end, slot.top - slot.start));
        let free = self.pieces.iter().map(|piece| (piece.first, piece.end, piece.high - piece.low));
        for (first, end, size) in fixed.chain(free) {
            steps[first as usize].0 += u128::from(size);
            steps[end as usize].1 += u128::from(size);
        }
        let mut live = 0;
        steps.pop();
        steps
            .iter()
            .map(|(born, dead)| {
                live = live + born - dead;
                live
            })
            .collect()
    }

    /// The demand of each section before anything is wasted, at most `u64::MAX`.
    pub(crate) fn demand(&self) -> AddMaxTree {
        AddMaxTree::new(self.totals().into_iter().map(|total| u64::try_from(total).unwrap_or(u64::MAX)).collect())
    }

    fn find_peaks(&mut self) {
        let totals = self.totals();
        let maxima = RangeMax::new(&totals);
        for item in &mut self.items {
            let pieces = &self.pieces[item.pieces.clone()];
            let peaks = pieces.iter().map(|piece| maxima.of(piece.first as usize..piece.end as usize));
            item.peak = peaks.max().unwrap_or(0);
        }
    }
}

impl Piece {
    /// This piece of an item at `offset`. `offset` plus the item's size must fit 64 bits.
    pub(crate) fn at(self, offset: u64) -> Slot {
        Slot { start: offset + self.low, top: offset + self.high, first: self.first, end: self.end }
    }
}

impl Item {
    /// The bytes from the size to the next multiple of the alignment.
    fn padding(&self) -> u128 {
        let size = u128::from(self.size);
        size.next_multiple_of(u128::from(self.alignment)) - size
    }

    /// The least aligned offset from `offset` on, if its top still fits 64 bits.
    pub(crate) fn lift(&self, offset: u64) -> Option<u64> {
        let offset = offset.checked_next_multiple_of(self.alignment)?;
        offset.checked_add(self.size).map(|_| offset)
    }
}

/// Maxima of ranges of a constant row: a binary tree in an array, leaves last.
struct RangeMax {
    n_leaves: usize,
    nodes: Vec<u128>,
}

impl RangeMax {
    fn new(leaves: &[u128]) -> RangeMax {
        let n_leaves = leaves.len();
        let mut nodes = vec![0; n_leaves];
        nodes.extend_from_slice(leaves);
        for node in (1..n_leaves).rev() {
            nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
        }
        RangeMax { n_leaves, nodes }
    }

    fn of(&self, range: Range<usize>) -> u128 {
        let (mut low, mut high) = (range.start + self.n_leaves, range.end + self.n_leaves);
        let mut max = 0;
        while low < high {
            if low % 2 == 1 {
                max = max.max(self.nodes[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                max = max.max(self.nodes[high]);
            }
            low /= 2;
            high /= 2;
        }
        max
    }
}

/// Greatest common divisor; `gcd(0, x) = x`.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A budget, in the units of [`Limits`](crate::Limits), which do not depend on the machine.
pub(crate) struct Work {
    left: u64,
}

impl Work {
    pub(crate) fn new(units: u64) -> Work {
        Work { left: units }
    }

    /// Takes `units` from the budget; false once it is spent.
    pub(crate) fn spend(&mut self, units: usize) -> bool {
        match self.left.checked_sub(units as u64) {
            Some(left) => self.left = left,
            None => self.left = 0,
        }
        0 < self.left
    }

    /// At most `units` of the rest as a budget of its own; [`Work::spend_part`] settles it.
    pub(crate) fn part(&self, units: u64) -> WorkPart {
        let given = units.min(self.left);
        WorkPart { work: Work { left: given }, given }
    }

    /// Takes the units that a part has spent.
    pub(crate) fn spend_part(&mut self, part: WorkPart) {
        self.left -= part.given - part.work.left;
    }

    /// The remaining units.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Whether the budget is spent.
    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

/// A share of a budget.
pub(crate) struct WorkPart {
    pub(crate) work: Work,
    given: u64,
}
