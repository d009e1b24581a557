//! [`Tuned`]: convolution algorithms that were chosen by measurement instead of the cost model.
//!
//! [`layers`] lists the layers to measure: each convolution of a graph that has several algorithms, once for each
//! shape, as kernels. The fastest ones on the target machine are entered into a [`Tuned`], which a
//! [`CpuTarget`](super::CpuTarget) follows.

use std::collections::BTreeMap;
use std::fmt;

use ir::{Graph, Op, UNLIMITED};

use super::{CpuTarget, blocked};

/// How a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// As the sum of products that it is.
    Direct,
    /// By Winograd's algorithm.
    Winograd {
        /// 2, 4 or 6.
        tile: usize,
    },
}

impl Algorithm {
    /// All, those with the fewest packed weights first.
    pub const ALL: [Algorithm; 4] = [
        Algorithm::Direct,
        Algorithm::Winograd { tile: 2 },
        Algorithm::Winograd { tile: 4 },
        Algorithm::Winograd { tile: 6 },
    ];

    /// The algorithm that is written so.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.to_string() == name)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::Direct => f.write_str("direct"),
            Algorithm::Winograd { tile } => write!(f, "winograd-{tile}"),
        }
    }
}

/// A convolution that can be computed in several ways.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its shape, without the batch: the key of choices.
    pub name: String,
    /// The way that the model of times takes.
    pub modelled: Algorithm,
    /// The ways, those with the fewest packed weights first. Operand 1 of each kernel is its packed weights.
    pub candidates: Vec<(Algorithm, cpu::Kernel)>,
}

/// Choices by the names of layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuned {
    choices: BTreeMap<String, Algorithm>,
}

impl Tuned {
    /// Enters a choice.
    pub fn insert(&mut self, layer: &str, algorithm: Algorithm) {
        self.choices.insert(layer.to_string(), algorithm);
    }

    /// The choice for a layer.
    pub fn get(&self, layer: &str) -> Option<Algorithm> {
        self.choices.get(layer).copied()
    }
}

/// The convolutions of a graph, after the passes and before layouts, that can be computed in several ways: one a shape, in
/// the order in which they first occur. The model of times is that of `target`.
pub fn layers(graph: &Graph, target: &CpuTarget) -> Vec<Layer> {
    let mut found: Vec<Layer> = Vec::new();
    for node in graph.nodes().values() {
        let Op::Conv(conv) = &node.op else { continue };
        let Ok(kernels) = blocked::conv_kernels(graph, node, conv, UNLIMITED, target) else { continue };
        let Some(layer) = blocked::layer(kernels, target.images) else { continue };
        if found.iter().all(|other| other.name != layer.name) {
            found.push(layer);
        }
    }
    found
}
