//! [`Tuned`]: times of kernels that were measured on the target machine instead of modelled.
//!
//! [`layers`] lists the nodes to measure: each of a graph that has several kernels, in one layout or in both. Measured times are
//! entered into a [`Tuned`], and costs of a [`CpuTarget`] are taken from there.

use std::collections::BTreeMap;

use cpu::{Kernel, PlainConv};
use ir::Graph;

use super::{CpuTarget, costs};

/// Work that several kernels can do.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The kernels, the fastest one by the model of times first.
    pub candidates: Vec<Kernel>,
}

/// Measured times by kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuned {
    times: BTreeMap<String, u64>,
}

impl Tuned {
    /// The name of a kernel in tables of times: its parameters, without the number of images.
    pub fn name(kernel: &Kernel) -> String {
        format!("{:?}", of_images(kernel, 1))
    }

    /// Enters the time of a kernel, in picoseconds for each image.
    pub fn insert(&mut self, kernel: &str, picoseconds: u64) {
        self.times.insert(kernel.to_string(), picoseconds);
    }

    /// The time of a kernel, in picoseconds for each image.
    pub fn get(&self, kernel: &Kernel) -> Option<u64> {
        if self.times.is_empty() { None } else { self.times.get(&Tuned::name(kernel)).copied() }
    }
}

/// The number of images that a kernel works on at once, if that is a parameter of its own.
pub(super) fn images(kernel: &Kernel) -> Option<usize> {
    match kernel {
        Kernel::ConvBlocked(kernel) => Some(kernel.batch),
        Kernel::Winograd(kernel) => Some(kernel.batch),
        Kernel::DepthwiseBlocked(kernel) => Some(kernel.batch),
        Kernel::PoolBlocked(kernel) => Some(kernel.batch),
        Kernel::Reorder(kernel) => Some(kernel.batch),
        Kernel::Conv(kernel) => Some(kernel.batch),
        Kernel::ConvTranspose(kernel) => Some(kernel.batch),
        Kernel::ConvDataGradient(kernel) => Some(kernel.batch),
        Kernel::ConvUnbuffered(kernel) => Some(kernel.batch),
        Kernel::CompactConv(kernel) => Some(match &kernel.conv {
            PlainConv::Conv(conv) => conv.batch,
            PlainConv::Transpose(conv) => conv.batch,
            PlainConv::Unbuffered(conv) => conv.batch,
        }),
        _ => None,
    }
}

/// The kernel for another number of images, if that is a parameter of its own.
pub(super) fn of_images(kernel: &Kernel, images: usize) -> Kernel {
    let mut kernel = kernel.clone();
    match &mut kernel {
        Kernel::ConvBlocked(kernel) => kernel.batch = images,
        Kernel::Winograd(kernel) => kernel.batch = images,
        Kernel::DepthwiseBlocked(kernel) => kernel.batch = images,
        Kernel::PoolBlocked(kernel) => kernel.batch = images,
        Kernel::Reorder(kernel) => kernel.batch = images,
        Kernel::Conv(kernel) => kernel.batch = images,
        Kernel::ConvTranspose(kernel) => kernel.batch = images,
        Kernel::ConvDataGradient(kernel) => kernel.batch = images,
        Kernel::ConvUnbuffered(kernel) => kernel.batch = images,
        Kernel::CompactConv(kernel) => match &mut kernel.conv {
            PlainConv::Conv(conv) => conv.batch = images,
            PlainConv::Transpose(conv) => conv.batch = images,
            PlainConv::Unbuffered(conv) => conv.batch = images,
        },
        _ => {}
    }
    kernel
}

/// The nodes of a graph, after the passes and before layouts, that can be computed in several ways: one of each shape, in the
/// order in which they first occur.
pub fn layers(graph: &Graph, target: &CpuTarget) -> Vec<Layer> {
    let mut found: Vec<Layer> = Vec::new();
    for id in graph.nodes().keys() {
        let mut candidates = costs::alternatives(graph, id, target);
        candidates.sort_by_key(|kernel| target.time(kernel));
        let is_new = || found.iter().all(|other| other.candidates != candidates);
        if 1 < candidates.len() && is_new() {
            found.push(Layer { candidates });
        }
    }
    found
}
