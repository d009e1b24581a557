//! [`NodeView`]: a node with the graph around it, in the physical form that kernels work on.

use std::borrow::Cow;

use ir::{Graph, Node, NodeId, Op, Query, TensorType};
use smallvec::SmallVec;
use types::{Bytes, Layout};

/// A node in its physical form if it has one; otherwise as it is.
pub(crate) struct NodeView<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) node: &'a Node,
    pub(crate) op: Cow<'a, Op>,
    pub(crate) inputs: SmallVec<[TensorType; 4]>,
    pub(crate) output: TensorType,
    /// The layout of the result.
    pub(crate) layout: Layout,
    /// The limit for workspaces.
    pub(crate) workspace: Bytes,
    /// Workspace below the peak, which split-K may take.
    pub(crate) slack: Bytes,
}

impl<'a> NodeView<'a> {
    pub(crate) fn new(graph: &'a Graph, id: NodeId, query: &Query) -> NodeView<'a> {
        let node = graph.node(id);
        let (op, inputs, output) = match graph.physical(node) {
            Some(physical) => (physical.op, physical.inputs, physical.output),
            None => {
                let inputs = node.inputs.iter().map(|&input| graph.ty(input).clone()).collect();
                (Cow::Borrowed(&node.op), inputs, graph.ty(node.outputs[0]).clone())
            }
        };
        let layout = graph.value(node.outputs[0]).layout;
        NodeView { graph, node, op, inputs, output, layout, workspace: query.workspace, slack: query.slack }
    }
}

impl NodeView<'_> {
    pub(crate) fn op(&self) -> &Op {
        &self.op
    }

    /// How many operands the node has.
    pub(crate) fn operand_count(&self) -> usize {
        self.inputs.len()
    }

    pub(crate) fn input(&self, ix: usize) -> &TensorType {
        &self.inputs[ix]
    }

    pub(crate) fn output(&self) -> &TensorType {
        &self.output
    }

    /// The layout of an operand.
    pub(crate) fn input_layout(&self, ix: usize) -> Layout {
        self.graph.value(self.node.inputs[ix]).layout
    }

    /// Whether an operand is a constant.
    pub(crate) fn is_constant(&self, ix: usize) -> bool {
        self.graph.value(self.node.inputs[ix]).tensor().is_some()
    }
}
