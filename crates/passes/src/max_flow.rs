//! [`Flow`]: maximum flow and minimum cut by Dinic's algorithm, with a work budget.

/// The source.
pub(crate) const SOURCE: usize = 0;
/// The sink.
pub(crate) const SINK: usize = 1;
/// The capacity of edges that are never cut.
pub(crate) const ENDLESS: u64 = u64::MAX / 4;

const NONE: u32 = u32::MAX;

/// How a flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It is the maximum.
    Maximum,
    /// It is as much as was looked for; there may be more.
    Enough,
    /// The budget was spent; there may be more.
    OutOfWork,
}

/// A flow network, reused so that its memory is.
#[derive(Clone, Default)]
pub(crate) struct Flow {
    channels: Vec<Channel>,
    /// By vertex: its first edge; edges of one vertex are linked.
    first: Vec<u32>,
    level: Vec<u32>,
    current: Vec<u32>,
    queue: Vec<u32>,
    path: Vec<u32>,
}

#[derive(Clone)]
struct Channel {
    room: u64,
    to: u32,
    /// The next edge of the same vertex, or [`NONE`].
    next: u32,
}

impl Flow {
    /// Removes all vertices but source and sink.
    pub(crate) fn clear(&mut self) {
        self.channels.clear();
        self.first.clear();
        self.first.resize(2, NONE);
    }

    /// Adds a vertex.
    pub(crate) fn point(&mut self) -> usize {
        self.first.push(NONE);
        self.first.len() - 1
    }

    /// Adds an edge of capacity `room`.
    pub(crate) fn channel(&mut self, from: usize, to: usize, room: u64) {
        for (from, to, room) in [(from, to, room), (to, from, 0)] {
            let id = u32::try_from(self.channels.len()).expect("networks have fewer than 2^32 edges");
            self.channels.push(Channel { room, to: to as u32, next: self.first[from] });
            self.first[from] = id;
        }
    }

    /// The maximum flow, which is the capacity of the minimum cut, and whether it is known to be the maximum: it is not if
    /// `budget`, counted in visited edges, ran out, or the flow reached `enough`.
    pub(crate) fn maximum(&mut self, budget: &mut u64, enough: u64) -> (u64, Ended) {
        let mut flow = 0;
        while flow < enough {
            let Some(left) = budget.checked_sub(self.channels.len() as u64) else { return (flow, Ended::OutOfWork) };
            *budget = left;
            if !self.set_levels() {
                return (flow, Ended::Maximum);
            }
            self.current.clone_from(&self.first);
            if !self.fill(budget, &mut flow) {
                return (flow, Ended::OutOfWork);
            }
        }
        (flow, Ended::Enough)
    }

    /// Whether a vertex is on the source's side of the minimum cut nearest to the source.
    pub(crate) fn is_before_cut(&self, point: usize) -> bool {
        self.level[point] != u32::MAX
    }

    /// Sets distances from the source along edges with remaining capacity, up to that of the sink. Returns whether the sink
    /// is reached.
    fn set_levels(&mut self) -> bool {
        self.level.clear();
        self.level.resize(self.first.len(), u32::MAX);
        self.level[SOURCE] = 0;
        self.queue.clear();
        self.queue.push(SOURCE as u32);
        let mut head = 0;
        while let Some(&at) = self.queue.get(head) {
            head += 1;
            let beyond = self.level[at as usize] + 1;
            let mut next = self.first[at as usize];
            while next != NONE {
                let channel = &self.channels[next as usize];
                if 0 < channel.room && self.level[channel.to as usize] == u32::MAX {
                    self.level[channel.to as usize] = beyond;
                    // No shortest path leads through vertices that are as far as the sink.
                    if channel.to as usize == SINK {
                        return true;
                    }
                    self.queue.push(channel.to);
                }
                next = channel.next;
            }
        }
        false
    }

    /// Saturates shortest paths from source to sink and adds their flow. Returns whether the budget sufficed.
    fn fill(&mut self, budget: &mut u64, flow: &mut u64) -> bool {
        self.path.clear();
        loop {
            let at = self.path.last().map_or(SOURCE, |&last| self.channels[last as usize].to as usize);
            if at == SINK {
                let room = self.path.iter().map(|&channel| self.channels[channel as usize].room).min().unwrap_or(0);
                *flow += room;
                for &channel in &self.path {
                    self.channels[channel as usize].room -= room;
                    self.channels[(channel ^ 1) as usize].room += room;
                }
                let Some(left) = budget.checked_sub(self.path.len() as u64) else { return false };
                *budget = left;
                let is_full = |&channel: &u32| self.channels[channel as usize].room == 0;
                let full = self.path.iter().position(is_full).unwrap_or(0);
                self.path.truncate(full);
                continue;
            }
            let next = self.current[at];
            if next == NONE {
                let Some(last) = self.path.pop() else { return true };
                let from = self.channels[(last ^ 1) as usize].to as usize;
                self.current[from] = self.channels[last as usize].next;
                continue;
            }
            let channel = &self.channels[next as usize];
            if 0 < channel.room && self.level[channel.to as usize] == self.level[at] + 1 {
                self.path.push(next);
            } else {
                self.current[at] = channel.next;
                let Some(left) = budget.checked_sub(1) else { return false };
                *budget = left;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_equals_the_cut() {
        let mut flow = Flow::default();
        flow.clear();
        let [a, b, c] = [(); 3].map(|()| flow.point());
        for (from, to, room) in
            [(SOURCE, a, 5), (SOURCE, b, 4), (a, c, 3), (b, c, 9), (a, b, 7), (c, SINK, 6), (b, SINK, 1)]
        {
            flow.channel(from, to, room);
        }
        assert_eq!(flow.maximum(&mut 1000, u64::MAX), (7, Ended::Maximum));
        assert!(flow.is_before_cut(a) && flow.is_before_cut(b) && flow.is_before_cut(c));
        assert_eq!(flow.maximum(&mut 0, u64::MAX), (0, Ended::OutOfWork));
    }

    #[test]
    fn flow_of_random_networks_equals_petgraph() {
        let mut random = types::Random::new(3);
        let mut flow = Flow::default();
        for round in 0..200 {
            flow.clear();
            let mut points = vec![SOURCE, SINK];
            points.extend((0..6).map(|_| flow.point()));
            let mut reference = petgraph::graph::DiGraph::<(), u64>::new();
            let nodes: Vec<_> = points.iter().map(|_| reference.add_node(())).collect();
            for _ in 0..16 {
                let [from, to] = [(); 2].map(|()| random.below(points.len() as u64) as usize);
                let room = random.below(9);
                if from != to {
                    flow.channel(points[from], points[to], room);
                    reference.add_edge(nodes[from], nodes[to], room);
                }
            }
            let (want, _) = petgraph::algo::ford_fulkerson(&reference, nodes[0], nodes[1]);
            let (mut whole, mut part) = (flow.clone(), flow.clone());
            assert_eq!(whole.maximum(&mut 100_000, u64::MAX), (want, Ended::Maximum), "round {round}");
            let enough = random.below(20);
            let (found, ended) = part.maximum(&mut 100_000, enough);
            assert_eq!(ended == Ended::Enough, enough <= found, "round {round}");
            assert!(enough.min(want) <= found && found <= want, "round {round}");
            for work in [10, 40, 80] {
                let (found, _) = flow.clone().maximum(&mut { work }, u64::MAX);
                assert!(found <= want, "round {round}: a flow that work ended is a lower bound");
            }
        }
    }
}
