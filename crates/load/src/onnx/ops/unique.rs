//! Distinct elements or slices.

use std::cmp::Ordering;

use ir::ops;
use types::{DType, Shape, Tensor};

use crate::common::{NodeResult, axis, refuse};
use crate::onnx::node::ImportedNode;

/// The distinct slices of a constant along an axis, or its distinct elements without one; then their first positions, the
/// index of each slice among them, and their counts. In increasing order, or in order of occurrence.
pub(super) fn unique(node: &mut ImportedNode) -> NodeResult {
    node.constant_for_shape(0, "X")?;
    let mut x = node.input(0)?;
    let at = match node.int("axis")? {
        Some(at) => axis(at, node.shape(x).rank())?,
        None => {
            let elements = node.shape(x).elements();
            x = node.reshape(x, Shape::from([elements]))?;
            0
        }
    };
    let is_sorted = node.int_or("sorted", 1)? != 0;
    let shape = node.shape(x);
    let slices = shape[at];
    if node.dtype(x) == DType::U64 || slices == 0 {
        refuse!("{}{shape} is not supported", node.dtype(x));
    }
    let order: Vec<usize> = [at].into_iter().chain((0..shape.rank()).filter(|&axis| axis != at)).collect();
    let rows = node.transpose(x, &order)?;
    let Some(rows) = node.constant_value(rows) else {
        refuse!("`X` must be a constant that is small enough to search while loading")
    };
    let width = rows.elements() / slices;
    // Integers compare exactly; -0.0 equals 0.0.
    let (integers, floats) = match rows.dtype().is_float() {
        true => (Vec::new(), rows.to_f64().into_iter().map(|number| number + 0.0).collect()),
        false => (rows.to_i64(), Vec::new()),
    };
    let compare = |a: usize, b: usize| -> Ordering {
        let pairs = (a * width..(a + 1) * width).zip(b * width..(b + 1) * width);
        let pair = |(a, b): (usize, usize)| match integers.is_empty() {
            true => f64::total_cmp(&floats[a], &floats[b]),
            false => integers[a].cmp(&integers[b]),
        };
        pairs.map(pair).find(|ordering| ordering.is_ne()).unwrap_or(Ordering::Equal)
    };
    let mut sorted: Vec<usize> = (0..slices).collect();
    sorted.sort_by(|&a, &b| compare(a, b));
    // Equal slices are adjacent, the first one in front.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for slice in sorted {
        match groups.last_mut().filter(|group| compare(group[0], slice).is_eq()) {
            Some(group) => group.push(slice),
            None => groups.push(vec![slice]),
        }
    }
    if !is_sorted {
        groups.sort_by_key(|group| group[0]);
    }
    let mut which = vec![0; slices];
    for (ix, group) in groups.iter().enumerate() {
        group.iter().for_each(|&slice| which[slice] = ix as i64);
    }
    let first = node.constant(Tensor::vector(groups.iter().map(|group| group[0] as i64).collect()));
    let counts = node.constant(Tensor::vector(groups.iter().map(|group| group.len() as i64).collect()));
    let which = node.constant(Tensor::vector(which));
    let y = node.apply(ops::Gather { axis: at }, &[x, first])?;
    Ok(vec![y, first, which, counts])
}
