//! Lives and roles of the values of one buffer, views included.
//!
//! A view has the bytes of its source, so these bytes are held until the last reader of the view. The same holds for the
//! slices of a concatenation and its result. A value *continues* another if it has bytes of it that nothing overwrote.

use types::Role;

use super::{BufferRow, ValueRow};

/// Sets [`ValueRow::held_until`] and [`ValueRow::role`]. `results` are the ranges `(start, end)` of the buffer that are
/// results of the model at the end of the run.
pub(super) fn resolve(buffer: &mut BufferRow, results: &[(u64, u64)]) {
    let mut order: Vec<usize> = (0..buffer.values.len()).collect();
    order.sort_by_key(|&ix| (buffer.values[ix].first_step, ix));
    for value in &mut buffer.values {
        value.held_until = value.last_step;
        value.role.clone_from(&buffer.role);
    }
    // Later values first: a view of a view extends both sources.
    for at in (1..order.len()).rev() {
        let value = &buffer.values[order[at]];
        if !is_writer(value, at) {
            let until = value.held_until;
            for source in sources(&buffer.values, &order[..at], (value.offset, value.offset + value.bytes)) {
                let source = &mut buffer.values[source];
                source.held_until = source.held_until.max(until);
            }
        }
    }
    // Of the values in a result's buffer, only those that the caller reads are results.
    if buffer.role == Role::Output.name() {
        buffer.values.iter_mut().for_each(|value| value.role = Role::Activation.name().into());
        for &range in results {
            for source in sources(&buffer.values, &order, range) {
                buffer.values[source].role = Role::Output.name().into();
            }
        }
    }
}

/// Whether a value is written when it is born; `at` is its position in the order of births. A view is not, nor is the
/// result of a concatenation, whose slices are born before it.
fn is_writer(value: &ValueRow, at: usize) -> bool {
    match &value.sharing[..] {
        "view" => false,
        "own" => at == 0,
        _ => true,
    }
}

/// The values whose contents a range has after the births of `order`.
fn sources(values: &[ValueRow], order: &[usize], range: (u64, u64)) -> Vec<usize> {
    let mut left = vec![range];
    let mut found = Vec::new();
    for (at, &ix) in order.iter().enumerate().rev() {
        let value = &values[ix];
        let (start, end) = (value.offset, value.offset + value.bytes);
        if left.iter().any(|&(from, to)| from < end && start < to) {
            found.push(ix);
            if is_writer(value, at) {
                left = left.iter().flat_map(|&(from, to)| [(from, to.min(start)), (from.max(end), to)]).collect();
                left.retain(|(from, to)| from < to);
            }
        }
        if left.is_empty() {
            break;
        }
    }
    found
}
