//! [`Priced`]: a target whose candidates cost time and bytes.
//!
//! A faster layout, algorithm or larger workspace often needs more memory, which matters only at the steps where much memory is
//! live. [`Prices`] states the price of a byte at each step, in the unit of the target's costs. The cost of a candidate is its
//! time plus the price of its bytes, so that every pass and selection that takes the cheapest candidate chooses time and memory
//! together. (In linear programming these prices are the dual variables of the limits on live bytes.)

use std::collections::BTreeMap;

use ir::{Candidate, Formats, Graph, NoKernel, NodeId, Query, Reuse, Target, ValueId};
use types::{Bytes, EntityId, Map, Scope};

/// The price of a byte while a node runs, in the unit of the target's costs. By scope, which passes keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    steps: BTreeMap<Scope, u64>,
    /// The price of all other steps.
    elsewhere: u64,
}

impl Prices {
    /// The same price at all steps.
    pub fn everywhere(price: u64) -> Prices {
        Prices { steps: BTreeMap::new(), elsewhere: price }
    }

    /// The price of a byte while a node of this scope runs.
    pub fn at(&self, scope: &Scope) -> u64 {
        self.steps.get(scope).copied().unwrap_or(self.elsewhere)
    }

    /// Multiplies the price of a step by `2^doublings`; it is at least `least` afterwards.
    pub fn raise(&mut self, scope: &Scope, least: u64, doublings: u32) {
        let price = self.at(scope).saturating_mul(1 << doublings.min(32)).max(least);
        self.steps.insert(scope.clone(), price);
    }
}

/// The scope of the conversion of a value that a node of this scope computes.
pub(crate) fn relayout_scope(scope: &Scope) -> Scope {
    scope.child("relayout")
}

/// The price of a value's bytes for as long as they are live.
#[derive(Clone, Copy, Debug, Default)]
struct Lives {
    /// The price of a byte of the value.
    own: u64,
    /// The price of a byte of its copy in another layout.
    twin: u64,
}

/// A target with prices.
pub struct Priced<'a> {
    target: &'a dyn Target,
    prices: &'a Prices,
    /// The graph whose layouts are assigned.
    graph: &'a Graph,
    /// By node of that graph the price of a byte while it runs.
    steps: Map<NodeId, u64>,
    /// By value of that graph.
    lives: Map<ValueId, Lives>,
}

impl<'a> Priced<'a> {
    /// A target for the nodes of `graph` in their order, and of graphs that passes make of it.
    pub fn new(target: &'a dyn Target, prices: &'a Prices, graph: &'a Graph) -> Priced<'a> {
        let steps: Map<NodeId, u64> = graph.nodes().values().map(|node| prices.at(&node.scope)).collect();
        let lives = lives(graph, prices, &steps);
        Priced { target, prices, graph, steps, lives }
    }

    /// The price of a byte while a node runs. Searching the prices by scope takes longer than all else that is done here.
    fn step(&self, graph: &Graph, id: NodeId) -> u64 {
        if std::ptr::eq(graph, self.graph) { self.steps[id] } else { self.prices.at(&graph.node(id).scope) }
    }

    fn lives(&self, value: ValueId) -> Lives {
        if value.index() < self.lives.len() { self.lives[value] } else { Lives::default() }
    }
}

/// By value the prices over its life.
fn lives(graph: &Graph, prices: &Prices, steps: &Map<NodeId, u64>) -> Map<ValueId, Lives> {
    if *prices == Prices::default() {
        return Map::filled(graph.values().len(), Lives::default());
    }
    // By position the sum of the prices in front of it.
    let mut before = vec![0u64];
    steps.values().for_each(|&price| before.push(before[before.len() - 1].saturating_add(price)));
    let readers = graph.readers();
    let of = |(id, value): (ValueId, &ir::Value)| {
        let first = value.producer().map_or(0, EntityId::index);
        let last = match graph.is_output(id) {
            true => steps.len(),
            false => readers[id].last().map_or(first, |reader| reader.index() + 1),
        };
        let own = before[last.max(first)] - before[first];
        // A relayout has both copies. Its first reader has the new one, unless it can write its result there.
        let convert = match value.producer() {
            Some(id) if !prices.steps.is_empty() => prices.at(&relayout_scope(&graph.node(id).scope)),
            _ => prices.elsewhere,
        };
        let read = readers[id].first().map_or(0, |&reader| {
            let node = graph.node(reader);
            let is_taken = matches!(graph.reuse(node), Reuse::InPlace(operands) if operands.iter().any(|&ix| node.inputs[ix] == id));
            if is_taken { 0 } else { steps[reader] }
        });
        Lives { own, twin: convert.saturating_add(read) }
    };
    graph.values().iter().map(of).collect()
}

/// A cost and that of bytes. Stays far below the capacity of edges that are never cut.
fn sum(cost: u64, parts: impl Iterator<Item = (Bytes, u64)>) -> u64 {
    const MOST: u64 = u64::MAX >> 20;
    parts.fold(cost.min(MOST), |sum, (bytes, price)| sum.saturating_add(bytes.0.saturating_mul(price)).min(MOST))
}

impl Target for Priced<'_> {
    crate::forward_properties!(target);

    /// Those of the target, the cheapest first. The costs of candidates for a layout include the bytes of results.
    fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel> {
        let mut candidates = self.target.candidates(graph, nodes, query)?;
        let &[id] = nodes else { return Ok(candidates) };
        let node = graph.node(id);
        let step = self.step(graph, id);
        let price = |candidate: &Candidate| {
            let results = [candidate.result].into_iter().chain(candidate.further.iter().copied());
            let stored = node.outputs.iter().zip(results).map(|(&value, format)| {
                let is_view = matches!(graph.reuse(node), Reuse::Alias { .. });
                let size = if is_view { Bytes::ZERO } else { format.layout.size(&graph.ty(value).shape, format.dtype) };
                (size, self.lives(value).own)
            });
            let stored = stored.filter(|_| matches!(query.formats, Formats::Layout(_)));
            sum(candidate.cost, [(candidate.workspace, step)].into_iter().chain(stored))
        };
        match query.formats {
            Formats::Layout(_) => {
                for candidate in &mut candidates {
                    candidate.cost = price(candidate);
                }
                candidates.sort_by_key(|candidate| candidate.cost);
            }
            // Costs stay times.
            _ => candidates.sort_by_cached_key(price),
        }
        Ok(candidates)
    }

    fn relayout_cost(&self, graph: &Graph, value: ValueId) -> u64 {
        let cost = self.target.relayout_cost(graph, value);
        let ty = graph.ty(value);
        let Some(layout) = self.layout().filter(|_| 0 < cost) else { return cost };
        sum(cost, [(layout.size(&ty.shape, ty.dtype), self.lives(value).twin)].into_iter())
    }
}
