//! Elements or slices, each once.

use std::cmp::Ordering;

use ir::{Refusal, ops};
use types::{DType, Shape, Tensor};

use crate::common::{Operand, axis, refuse};
use crate::onnx::call::Call;

type Yield = Result<Vec<Operand>, Refusal>;

/// What is known, each slice along an axis once, without one each element of the flat tensor; then where each stands first,
/// which of them each slice is, and how often it occurs. In increasing order, or as they come.
pub(super) fn unique(call: &mut Call) -> Yield {
    call.known_for_shape(0, "X")?;
    let mut x = call.input(0)?;
    let at = match call.int("axis")? {
        Some(at) => axis(at, call.shape(x).rank())?,
        None => {
            let elements = call.shape(x).elements();
            x = call.reshape(x, Shape::from([elements]))?;
            0
        }
    };
    let is_sorted = call.int_or("sorted", 1)? != 0;
    let shape = call.shape(x);
    let slices = shape[at];
    if call.dtype(x) == DType::U64 || slices == 0 {
        refuse!("{}{shape} is not supported", call.dtype(x));
    }
    let order: Vec<usize> = [at].into_iter().chain((0..shape.rank()).filter(|&axis| axis != at)).collect();
    let rows = call.transpose(x, &order)?;
    let Some(rows) = call.peek(rows) else { refuse!("`X` is too large to be searched while loading") };
    let width = rows.elements() / slices;
    // Integers keep all their digits; of floating-point numbers -0 is 0.
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
    // Equal ones stand together, the first of them in front.
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
    let first = call.constant(Tensor::vector(groups.iter().map(|group| group[0] as i64).collect()));
    let counts = call.constant(Tensor::vector(groups.iter().map(|group| group.len() as i64).collect()));
    let which = call.constant(Tensor::vector(which));
    let y = call.apply(ops::Gather { axis: at }, &[x, first])?;
    Ok(vec![y, first, which, counts])
}
