//! [`alternatives`]: kernels and layouts that the compiler did not choose and that need fewer bytes at the fullest steps.
//!
//! Two are stated, each with the bytes of the peak and the modelled time. The first replaces the kernel of one full step and
//! keeps all formats: the fastest candidate with less workspace. The second chooses layouts and kernels again at a price
//! of bytes at the full steps that exceeds each difference in time ([`passes::Prices`]): the most that other layouts,
//! paddings, relayouts and workspaces save there.

use std::collections::BTreeMap;
use std::rc::Rc;

use ir::{Candidate, Graph, NodeId, Query, Target};
use lower::Selection;
use passes::Prices;
use plan::Alternative;
use types::{Bytes, EntityId, Scope};

use crate::CompileError;
use crate::search::{ANY_TIME, Choice, FULL};

/// Changes that the text of an alternative names.
const CHANGES_NAMED: usize = 3;

/// The alternatives to `kernels` of `graph`, the result of a choice for `prices` in `source`.
pub(crate) fn alternatives(
    source: &Rc<Graph>,
    prices: &Prices,
    graph: &Graph,
    kernels: &Selection,
    target: &dyn Target,
) -> Result<Vec<Alternative>, CompileError> {
    let live = kernels.live_bytes(graph, target)?;
    let peak = live.iter().copied().max().unwrap_or(0);
    let mut found = Vec::new();
    // With several steps at the peak no single kernel lowers it.
    if let [at] = positions(&live, |bytes| bytes == peak)[..]
        && at < graph.nodes().len()
    {
        let others = live.iter().enumerate().filter(|&(other, _)| other != at).map(|(_, &bytes)| bytes).max();
        found.extend(with_less_workspace(graph, kernels, target, NodeId::from_index(at), peak, others.unwrap_or(0)));
    }
    let mut raised = prices.clone();
    for at in positions(&live, |bytes| peak - peak / FULL <= bytes) {
        if at < graph.nodes().len() {
            raised.raise(&graph.node(NodeId::from_index(at)).scope, ANY_TIME, 1);
        }
    }
    let other = Choice::new(source, target, raised)?;
    let changes = changes(&names(graph, kernels), &names(&other.graph, &other.selection));
    if let Some((scope, change)) = changes.filter(|_| other.peak < peak) {
        let saves = Bytes(peak - other.peak);
        found.push(Alternative { scope, change, saves, time: kernels.time(), other_time: other.time });
    }
    Ok(found)
}

fn positions(live: &[u64], is_wanted: impl Fn(u64) -> bool) -> Vec<usize> {
    (0..live.len()).filter(|&at| is_wanted(live[at])).collect()
}

/// The fastest kernel of a node with less workspace than the chosen one, if it lowers the peak. `others` is the most that is
/// live at the other steps.
fn with_less_workspace(
    graph: &Graph,
    kernels: &Selection,
    target: &dyn Target,
    id: NodeId,
    peak: u64,
    others: u64,
) -> Option<Alternative> {
    let chosen = kernels.candidate(id)?;
    let aligned = |bytes: Bytes| bytes.align_up(target.alignment()).0;
    let saves = |workspace: Bytes| {
        let own = (peak + aligned(workspace)).saturating_sub(aligned(chosen.workspace));
        Bytes(peak.saturating_sub(own.max(others)))
    };
    let less = smaller(graph, kernels, target, id).into_iter().filter(|other| Bytes::ZERO < saves(other.workspace));
    let other = less.min_by_key(|other| (other.cost, other.workspace))?;
    let name = |calls: &[ir::Call]| calls.iter().map(|call| call.kernel).collect::<Vec<&str>>().join(" + ");
    let (old, new) = (name(&chosen.calls), name(&other.calls));
    let change = match old == new {
        true => format!("`{old}` with {} of workspace instead of {}", other.workspace, chosen.workspace),
        false => {
            format!("`{new}` instead of `{old}`, with {} of workspace instead of {}", other.workspace, chosen.workspace)
        }
    };
    let time = kernels.time();
    let other_time = time.saturating_sub(chosen.cost).saturating_add(other.cost);
    Some(Alternative { scope: graph.node(id).scope.clone(), change, saves: saves(other.workspace), time, other_time })
}

/// The kernels of a node with less workspace than the chosen one.
pub(crate) fn smaller(graph: &Graph, kernels: &Selection, target: &dyn Target, id: NodeId) -> Vec<Candidate> {
    let Some(chosen) = kernels.candidate(id) else { return Vec::new() };
    let aligned = |bytes: Bytes| bytes.align_up(target.alignment());
    let limit = Query { workspace: Bytes(chosen.workspace.0.saturating_sub(1)), ..Query::GIVEN };
    let all = [Query::GIVEN, limit].into_iter().filter_map(|query| target.candidates(graph, &[id], &query).ok());
    all.flatten().filter(|other| aligned(other.workspace) < aligned(chosen.workspace)).collect()
}

/// By scope, in order of the nodes: the kernels, and the layout of the result.
struct Names {
    order: Vec<Scope>,
    kernels: BTreeMap<Scope, String>,
}

fn names(graph: &Graph, kernels: &Selection) -> Names {
    let mut names = Names { order: Vec::new(), kernels: BTreeMap::new() };
    for (id, node) in graph.nodes().iter().filter(|(id, _)| !kernels.calls(*id).is_empty()) {
        let calls = kernels.calls(id).iter().map(|call| call.kernel);
        let text = calls.chain(std::iter::once("")).collect::<Vec<&str>>().join(" ");
        let text = format!("{text}in {}", graph.value(node.outputs[0]).layout);
        names.order.push(node.scope.clone());
        names.kernels.entry(node.scope.clone()).and_modify(|all| *all = format!("{all}, {text}")).or_insert(text);
    }
    names.order.dedup();
    names
}

/// The first node that differs and a text of the first few differences, if there are any.
fn changes(old: &Names, new: &Names) -> Option<(Scope, String)> {
    let change = |scope: &Scope| match (old.kernels.get(scope), new.kernels.get(scope)) {
        (Some(old), Some(new)) if old != new => Some(format!("`{scope}`: `{new}` instead of `{old}`")),
        (Some(_), None) => Some(format!("no `{scope}`")),
        (None, Some(new)) => Some(format!("`{scope}`: `{new}`")),
        _ => None,
    };
    let added = new.order.iter().filter(|scope| !old.kernels.contains_key(scope));
    let all: Vec<(&Scope, String)> =
        old.order.iter().chain(added).filter_map(|scope| Some((scope, change(scope)?))).collect();
    let (first, _) = all.first()?;
    let mut texts: Vec<&str> = all.iter().take(CHANGES_NAMED).map(|(_, text)| &text[..]).collect();
    let rest = format!("{} more", all.len() - texts.len());
    if texts.len() < all.len() {
        texts.push(&rest);
    }
    Some(((*first).clone(), texts.join("; ")))
}
