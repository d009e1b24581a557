//! [`naive_arena`]: a memory plan that takes an afternoon to write, as the yardstick of planned arenas.
//!
//! Nodes run in the order of the file. A view has its operand's bytes; a result takes the bytes of an operand of the same
//! size that dies with its node; every other value has bytes of its own from the node that writes it to the last that reads it.
//! Buffers are placed from the largest to the smallest, each at the lowest offset that is free for its life. Values are
//! row-major without padding, and kernels need no workspace: kernels of that kind may not exist.
//!
//! It shares no code with the compiler's planner.

use ir::{Graph, Reuse, ValueId};
use types::{EntityId, Map};

/// Bytes that offsets are multiples of.
const ALIGNMENT: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct Block {
    size: u64,
    first: usize,
    last: usize,
}

/// The bytes of the naive plan of a graph whose values are row-major.
pub fn naive_arena(graph: &Graph) -> u64 {
    let end = graph.nodes().len();
    let mut last_read: Map<ValueId, usize> = Map::filled(graph.values().len(), 0);
    for (id, node) in graph.nodes().iter() {
        node.inputs.iter().for_each(|&input| last_read[input] = id.index() + 1);
    }
    graph.outputs().iter().for_each(|output| last_read[output.value] = end + 1);

    let mut blocks: Vec<Block> = Vec::new();
    let mut block_of: Map<ValueId, Option<usize>> = Map::filled(graph.values().len(), None);
    let size = |value: ValueId| {
        let ty = graph.ty(value);
        (ty.dtype.size().0 * ty.shape.elements() as u64).next_multiple_of(ALIGNMENT)
    };
    for &value in graph.inputs().iter().chain(graph.states()) {
        let last = if graph.states().contains(&value) { end + 1 } else { last_read[value] };
        block_of[value] = Some(blocks.len());
        blocks.push(Block { size: size(value), first: 0, last });
    }
    // A view may be read after its operand: lives are known only once all views are.
    let mut readers_end = last_read.clone();
    for (_, node) in graph.nodes().iter().rev() {
        if let Reuse::Alias { .. } = graph.reuse(node) {
            let end = readers_end[node.outputs[0]];
            let own = &mut readers_end[node.inputs[0]];
            *own = end.max(*own);
        }
    }
    for (id, node) in graph.nodes().iter() {
        let at = id.index() + 1;
        let reuse = graph.reuse(node);
        if let (Reuse::Alias { .. }, Some(block)) = (&reuse, block_of[node.inputs[0]]) {
            block_of[node.outputs[0]] = Some(block);
            blocks[block].last = blocks[block].last.max(readers_end[node.outputs[0]]);
            continue;
        }
        for (number, &output) in node.outputs.iter().enumerate() {
            let last = readers_end[output].max(at);
            let dying = |&ix: &usize| {
                let block = block_of[node.inputs[ix]]?;
                let fits = blocks[block].last == at && blocks[block].size == size(output);
                fits.then_some(block)
            };
            let taken = match &reuse {
                Reuse::InPlace(operands) if number == 0 => operands.iter().find_map(dying),
                _ => None,
            };
            match taken {
                Some(block) => {
                    blocks[block].last = last;
                    block_of[output] = Some(block);
                }
                None => {
                    block_of[output] = Some(blocks.len());
                    blocks.push(Block { size: size(output), first: at, last });
                }
            }
        }
    }
    greedy_by_size(blocks)
}

/// The height of a placement from the largest block to the smallest, each at the lowest free offset.
fn greedy_by_size(mut blocks: Vec<Block>) -> u64 {
    blocks.sort_by_key(|block| std::cmp::Reverse(block.size));
    let mut placed: Vec<(u64, Block)> = Vec::new();
    for block in blocks {
        let mut at = 0;
        for (offset, other) in &placed {
            if other.first <= block.last && block.first <= other.last {
                if at + block.size <= *offset {
                    break;
                }
                at = at.max(offset + other.size);
            }
        }
        let ix = placed.partition_point(|(offset, _)| *offset < at);
        placed.insert(ix, (at, block));
    }
    placed.iter().map(|(offset, block)| offset + block.size).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use ir::ops::{Binary, Unary};
    use types::{Scope, Shape, pointwise};

    use super::*;
    use crate::F;

    #[test]
    fn naive_plan_shares_bytes_where_it_may() {
        let mut graph = Graph::new("g");
        let x = graph.add_input("x", F, Shape::from([16]));
        let unary = |graph: &mut Graph, x| {
            graph.add1(Unary(pointwise::Unary::Relu).into(), &[x], Scope::new("n")).expect("valid")
        };
        let a = unary(&mut graph, x);
        let b = unary(&mut graph, a);
        graph.set_outputs(vec![("b".into(), b)]);
        assert_eq!(naive_arena(&graph), 64, "in place");
        let sum = graph.add1(Binary(pointwise::Binary::Add).into(), &[a, b], Scope::new("s")).expect("valid");
        graph.set_outputs(vec![("sum".into(), sum)]);
        assert_eq!(naive_arena(&graph), 128, "`a` is read after `b` is written");
    }
}
