//! Gradients of nodes that slide a window, and maxima with their positions.

use ir::Call;
use ir::ops::{ConvWeightGradient, Pool, PoolGradient, PoolKind};
use types::Bytes;

use super::emit::{Block, Emitted, GRID_MAX, KernelKind, Template, blocks, call};
use super::tiling::{Lines, TensorCores, Tiles};
use super::windows::{CHANNELS_MIN, behind, comma_separated, label, window};
use crate::NodeView;

pub(super) fn weight_gradient(
    node: &NodeView,
    op: &ConvWeightGradient,
    target: TensorCores,
) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let (x, dy, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
    let window = window(x, dy, &op.kernel, &op.stride, &op.dilation, &op.pad)?;
    let (batch, groups, ins, outs) = (x[0], op.groups, out[1], out[0] / op.groups);
    let (columns, pixels): (usize, usize) = (out[1..].iter().product(), dy[2..].iter().product());
    let tiles = Tiles::new(node, [groups, outs, columns], batch * pixels, target, Lines::Gathered);
    let (grid, parts) = (tiles.grid(), tiles.parts);
    let product = CHANNELS_MIN <= outs && grid[1].max(grid[2]) <= GRID_MAX;
    let numbers = format!("{batch}, {ins}, {outs}, {groups}");
    let (grid, function) = match (product, tiles.cores) {
        (true, None) => (grid, format!("weight_gradient<{window}, {numbers}, {parts}>")),
        (true, Some(of)) => {
            let (left, right) = (Tiles::together(node, 1, [pixels]), Tiles::together(node, 0, [1]));
            let shape = tiles.shape();
            let function =
                format!("weight_gradient_by_cores<{of}, {window}, {shape}, {numbers}, {parts}, {left}, {right}>");
            (grid, function)
        }
        (false, _) => ([out.elements().max(1) as u32, 1, 1], format!("weight_gradient_each<{window}, {numbers}>")),
    };
    let more = if product { tiles.arguments() } else { "" };
    let mut needs = vec![Template::Product, Template::Window, Template::Convolution];
    needs.extend(product.then(|| tiles.template()));
    let (mut parameters, mut iterations, mut workspace) = (node.parameters(&[0, 1]), None, Bytes::ZERO);
    let block = if product { tiles.block() } else { Block::USUAL };
    if product {
        (parameters, iterations, workspace) = (tiles.parameters(parameters), tiles.iterations(), tiles.workspace());
    }
    let body = match out.elements() {
        0 => String::new(),
        _ => format!("    {function}(a0, a1, y{more});\n"),
    };
    let emitted = Emitted { kind: KernelKind::WeightGradient, parameters, body, grid, block, iterations, needs };
    Ok(vec![Call { workspace, ..call(emitted, format!("gradient of weights {out}"), &[0, 1], &[]) }])
}

pub(super) fn pool_with_positions(node: &NodeView, pool: &Pool) -> Result<Vec<Call>, String> {
    let (x, out) = (node.input(0), &node.output().shape);
    let window = window(&x.shape, out, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad)?;
    let function = format!("pool_max_with_positions<{window}, {}>", out[0] * out[1]);
    let emitted = Emitted {
        kind: KernelKind::Pool,
        parameters: node.all_parameters(),
        body: format!("    {function}(a0, y0, y1);\n"),
        grid: blocks(out.elements()),
        block: Block::USUAL,
        iterations: None,
        needs: vec![Template::Window, Template::Pool],
    };
    Ok(vec![call(emitted, label(&pool.kernel, out), &[0], &[])])
}

pub(super) fn pool_gradient(node: &NodeView, op: &PoolGradient) -> Result<Vec<Call>, String> {
    let (pool, dy, dx) = (&op.pool, &node.input(0).shape, &node.output().shape);
    let of = |x, out| window(x, out, &pool.kernel, &pool.stride, &pool.dilation, &pool.pad);
    let (windows, planes) = (format!("{}, {}", of(dx, dy)?, of(dy, dx)?), dx[0] * dx[1]);
    let call_text = match (pool.kind, op.positions) {
        (PoolKind::Max, true) => format!("pool_max_gradient_by_positions<{windows}, {planes}>(a0, a1, y)"),
        (PoolKind::Max, false) => format!("pool_max_gradient<{windows}, {planes}>(a0, a1, y)"),
        (PoolKind::Mean, _) => {
            let zeros = comma_separated(&vec![0; pool.kernel.len().max(2)]);
            format!("pool_mean_gradient<{windows}, {planes}, false, {zeros}>(a0, y)")
        }
        (PoolKind::MeanWithPadding, _) => {
            format!("pool_mean_gradient<{windows}, {planes}, true, {}>(a0, y)", behind(pool))
        }
    };
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let emitted = Emitted {
        kind: KernelKind::PoolGradient,
        parameters: node.parameters(&operands),
        body: format!("    {call_text};\n"),
        grid: blocks(dx.elements()),
        block: Block::USUAL,
        iterations: None,
        needs: vec![Template::Window, Template::Pool],
    };
    Ok(vec![call(emitted, label(&pool.kernel, dx), &operands, &[])])
}
