//! [`squeezed`]: kernels of less workspace where the most bytes are live.
//!
//! At each level, every step with the most live bytes gets the fastest kernel with less workspace, until one of them has no such
//! kernel or the time runs out. A level is lower than the one before it and each change lowers the workspace of a node, so
//! the levels end. [`Work`] bounds the work and not the number of levels: of two orders with the same peak, one may have many
//! steps just below it and the other one few.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ir::{Candidate, Graph, NodeId, Target};
use lower::Selection;
use types::{Bytes, EntityId};

use crate::CompileError;
use crate::alternatives::smaller;

/// Nodes whose live bytes may be counted for one graph, at most; a query for candidates is as much work as some nodes.
const NODES_COUNTED: usize = 4_000_000;
const NODES_A_QUERY: usize = 32;

/// A selection with smaller kernels at the peak, and the bytes of its peak; `None` if the peak cannot be lowered within `limit`,
/// a modelled time. The graph stays in its order.
pub(crate) fn squeezed(
    graph: &Graph,
    selection: &Selection,
    target: &dyn Target,
    limit: Option<u64>,
) -> Result<Option<(Selection, Bytes)>, CompileError> {
    let mut levels = Levels::new(graph, selection.clone(), target)?;
    let before = levels.peak();
    let mut least = before;
    while levels.lower(limit)? {
        least = levels.peak().min(least);
        if least == levels.peak() {
            levels.undo.clear();
        }
    }
    Ok((least < before).then(|| (levels.undone(), Bytes(least))))
}

/// A selection whose peak falls level by level.
struct Levels<'a> {
    graph: &'a Graph,
    target: &'a dyn Target,
    selection: Selection,
    time: u64,
    /// By position the live bytes. Positions behind the nodes are those of results and of copies that update states.
    live: Vec<u64>,
    /// Live bytes by position, the most first; entries that differ from `live` are outdated.
    heap: BinaryHeap<(u64, Reverse<usize>)>,
    /// The kernels that were replaced since the least peak, in order.
    undo: Vec<(NodeId, Candidate)>,
    /// Nodes that may still be counted.
    left: usize,
}

impl<'a> Levels<'a> {
    fn new(graph: &'a Graph, selection: Selection, target: &'a dyn Target) -> Result<Levels<'a>, CompileError> {
        let (time, live, heap, undo) = (selection.time(), Vec::new(), BinaryHeap::new(), Vec::new());
        let mut levels = Levels { graph, target, selection, time, live, heap, undo, left: NODES_COUNTED };
        levels.count()?;
        Ok(levels)
    }

    fn count(&mut self) -> Result<(), CompileError> {
        self.live = self.selection.live_bytes(self.graph, self.target)?;
        self.heap = self.live.iter().enumerate().map(|(at, &live)| (live, Reverse(at))).collect();
        self.left = self.left.saturating_sub(self.live.len());
        Ok(())
    }

    fn peak(&mut self) -> u64 {
        while let Some(&(bytes, Reverse(at))) = self.heap.peek() {
            if self.live[at] == bytes {
                return bytes;
            }
            self.heap.pop();
        }
        0
    }

    /// Replaces the kernels of all steps at the peak. Returns whether each has a smaller one, and time and work allow it.
    fn lower(&mut self, limit: Option<u64>) -> Result<bool, CompileError> {
        let peak = self.peak();
        let mut is_moved = false;
        while self.peak() == peak
            && let Some((_, Reverse(at))) = self.heap.pop()
        {
            self.left = self.left.saturating_sub(NODES_A_QUERY);
            let id = NodeId::from_index(at);
            let smaller = match at < self.graph.nodes().len() && self.left != 0 {
                true => smaller(self.graph, &self.selection, self.target, id),
                false => Vec::new(),
            };
            let Some(other) = smaller.into_iter().min_by_key(|other| (other.cost, other.workspace)) else {
                return Ok(false);
            };
            let Some(old) = self.selection.candidate(id).cloned() else { return Ok(false) };
            let aligned = |candidate: &Candidate| candidate.workspace.align_up(self.target.alignment()).0;
            self.live[at] = self.live[at] - aligned(&old) + aligned(&other);
            self.heap.push((self.live[at], Reverse(at)));
            self.time = self.time.saturating_sub(old.cost).saturating_add(other.cost);
            is_moved |= !self.selection.shares_bytes_alike(id, &other);
            self.selection.replace(id, other);
            self.undo.push((id, old));
            if limit.is_some_and(|limit| limit < self.time) {
                return Ok(false);
            }
        }
        if is_moved {
            self.count()?;
        }
        Ok(true)
    }

    /// The selection at the least peak.
    fn undone(mut self) -> Selection {
        for (id, old) in self.undo.into_iter().rev() {
            self.selection.replace(id, old);
        }
        self.selection
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use cases::networks::{Family, Scale};
    use lower::cpu::CpuTarget;
    use passes::Prices;

    use super::*;
    use crate::search::Choice;

    #[test]
    fn squeezing_ends_where_the_peak_has_no_smaller_kernel() {
        let target = CpuTarget::new();
        let (mut lowered, mut within) = (0, 0);
        for family in Family::ALL {
            for seed in 1..4 {
                let graph = passes::run(family.network(seed, Scale::Small), |_, _| {}).expect("it is valid");
                let Choice { graph, selection, peak, time, .. } =
                    Choice::new(&Rc::new(graph), &target, Prices::default()).expect("there are kernels");
                let name = &graph.name;
                if let Some((least, bytes)) = squeezed(&graph, &selection, &target, None).expect("there are kernels") {
                    lowered += 1;
                    assert!(bytes.0 < peak, "{name}");
                    assert_eq!(least.peak(&graph, &target).expect("there are kernels"), bytes, "{name}");
                    let again = squeezed(&graph, &least, &target, None).expect("there are kernels");
                    assert!(again.is_none(), "{name}: {again:?}");
                }
                let limit = time + time / 50;
                if let Some((least, bytes)) = squeezed(&graph, &selection, &target, Some(limit)).expect("as above") {
                    within += 1;
                    assert!(least.time() <= limit, "{name}");
                    assert_eq!(least.peak(&graph, &target).expect("there are kernels"), bytes, "{name}");
                }
            }
        }
        assert!(0 < within && within <= lowered, "{within} of {lowered}");
    }
}
