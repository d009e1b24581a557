//! Nodes that reduce many elements to one: products, normalizations, reductions, searches.

use ir::ops::{ArgExtreme, Attention, CumulativeSum, LayerNorm, Lrn, MatMul, Reduce, ReduceKind, Softmax, TopK};
use ir::{Call, CallInput, Pack};
use types::{DType, Shape};

use super::c_source::{ctype, finish, finish_eight, number, place};
use super::emit::{Block, Emitted, GRID_MAX, KernelKind, THREADS, Template, around, blocks, call};
use super::layout::Rearranged;
use super::pointwise::head;
use super::tiling::{EIGHT, Lines, TensorCores, Tiles, cores, is_aligned, is_copied};
use crate::NodeView;

/// The most keys whose scores fit into a block's shared memory.
const KEYS_MAX: usize = 8192;
/// The widest heads that tensor cores attend with: their means are in registers.
const WIDTH_MAX: usize = 128;
/// The widest rows that a warp normalizes, and the warps of its block.
const WARP_COLUMNS_MAX: usize = 2048;
const NORM_WARPS: usize = 4;
/// Warps of a block that attends, and the blocks that keep all multiprocessors of a large GPU at work.
const WARPS: [usize; 2] = [4, 2];
const BLOCKS_MIN: usize = 256;
/// Reductions of fewer elements are one thread's.
const REDUCED_MIN: usize = 128;

/// The matrices of a product: `count` products of `m x k` by `k x n`, and for each factor its strides along the axes of
/// `batch`.
pub(super) struct Factors {
    pub(super) batch: Shape,
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) steps: [Vec<isize>; 2],
}

impl Factors {
    pub(super) fn of(node: &NodeView) -> Factors {
        let (a, b, out) = (&node.input(0).shape, &node.input(1).shape, &node.output().shape);
        let rank = out.rank();
        let (mut m, k, n) = (out[rank - 2], a[a.rank() - 1], out[rank - 1]);
        let mut batch: Shape = out[..rank - 2].into();
        let matrices = |shape: &Shape, size: usize| -> Vec<isize> {
            let own: Shape = shape[..shape.rank() - 2].into();
            let (strides, missing) = (own.row_major_strides(), batch.rank() - own.rank());
            let stride = |axis: usize| match axis.checked_sub(missing) {
                Some(axis) if own[axis] != 1 => (strides[axis] * size) as isize,
                _ => 0,
            };
            (0..batch.rank()).map(stride).collect()
        };
        let mut steps = [matrices(a, m * k), matrices(b, k * n)];
        if steps[1].iter().all(|&stride| stride == 0) && a.rank() == rank && a[..rank - 2] == batch[..] {
            // One right factor for all: the left ones are one tall matrix.
            m *= batch.elements();
            (batch, steps) = (Shape::scalar(), [Vec::new(), Vec::new()]);
        }
        Factors { batch, m, k, n, steps }
    }

    /// How many products.
    pub(super) fn count(&self) -> usize {
        self.batch.elements()
    }

    /// As text: `2x3x` of products, then the extents.
    pub(super) fn label(&self) -> String {
        let Factors { batch, m, k, n, .. } = self;
        format!("{batch}{m}x{k}x{n}")
    }
}

pub(super) fn matmul(node: &NodeView, product: &MatMul, target: TensorCores) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let factors = Factors::of(node);
    let Factors { batch, m, k, n, steps } = &factors;
    let (m, k, n, count) = (*m, *k, *n, factors.count());
    if (GRID_MAX as usize) < count {
        return Err(format!("{count} products at once are more than a grid has"));
    }
    let dtype = node.input(0).dtype;
    // A constant right factor is packed in lines of terms.
    let is_packed = !product.transposed
        && node.is_constant(1)
        && node.input(1).shape.rank() == 2
        && cores(node, target).is_some()
        && is_copied(dtype, k);
    let of_terms = product.transposed || is_packed;
    let lines = match is_copied(dtype, k) {
        true if of_terms => Lines::OfTerms,
        true if is_copied(dtype, n) => Lines::OfColumns,
        _ => Lines::Gathered,
    };
    let right_line = if of_terms { k } else { n };
    let tiles = Tiles::new(node, [count, m, n], k, target, lines);
    let (parts, grid) = (tiles.parts, tiles.grid());
    if GRID_MAX < grid[1] {
        return Err(format!("{m} rows are more than a grid has"));
    }
    let [a_at, b_at] = steps.each_ref().map(|steps| place(batch, steps, 0));
    let mut body = finish(&product.epilogue);
    let of_parts = if parts == 1 { String::new() } else { format!(" / {parts}") };
    body.push_str(&format!("    const int i = blockIdx.z{of_parts};\n"));
    let [left, right] = [0, 1].map(|ix| ctype(node.input(ix).dtype));
    body.push_str(&format!("    const {left}* a = a0 + ({a_at});\n    const {right}* b = a1 + ({b_at});\n"));
    body.push_str(&match tiles.cores {
        Some(of) => {
            let line = |ix: usize, line: usize| {
                Tiles::together(node, ix, steps[ix].iter().map(|step| step.unsigned_abs()).chain([line]))
            };
            let (shape, shared, wide) = (tiles.shape(), tiles.block().shared.0, tiles.wide(node));
            let (left, right) = (line(0, k), line(1, right_line));
            let more = if parts == 1 { ", nullptr, 0" } else { tiles.arguments() };
            format!(
                "{}    store_product<{of}, {shape}, {m}, {n}, {k}, {parts}, {shared}, {wide}>(Matrices<{of}, {shape}, {m}, {n}, {k}, {left}, \
                 {right}, {of_terms}>{{a, b}}, y, i, finish, finish_eight{more});\n",
                finish_eight(&product.epilogue)
            )
        }
        None => of_floats(&factors, product, parts),
    });
    if count * m * n == 0 {
        // Tiles of no rows or columns would count as whole ones.
        body.clear();
    }
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let mut needs = vec![Template::Pointwise, Template::Product];
    needs.extend((tiles.template() != Template::Product).then(|| tiles.template()));
    let (parameters, iterations) = (tiles.parameters(node.parameters(&operands)), tiles.iterations());
    let block = tiles.block();
    let emitted = Emitted { kind: KernelKind::Product, parameters, body, grid, block, iterations, needs };
    let residual = product.epilogue.residual.then_some(node.operand_count() - 1);
    let mut own = call(emitted, factors.label(), &operands, residual.as_slice());
    if is_packed {
        own.inputs[1] = CallInput::Packed { input: 1, pack: Pack::new(Rearranged::Transposed(n)) };
    }
    Ok(vec![Call { workspace: tiles.workspace(), ..own }])
}

/// The product of `a` and `b` without tensor cores.
fn of_floats(factors: &Factors, product: &MatMul, parts: usize) -> String {
    let Factors { m, k, n, .. } = factors;
    let right = if product.transposed { format!("column * {k} + k") } else { format!("k * {n} + column") };
    let function = format!("product<{m}, {n}, {k}, {parts}>");
    let lambdas = format!(
        "    const auto left = [=](int row, int k) {{ return (float)a[row * {k} + k]; }};\n    const auto right = [=](int k, \
         int column) {{ return (float)b[{right}]; }};\n    const auto store = [=](int row, int column, float sum) {{\n        \
         const size_t at = ((size_t)i * {m} + row) * {n} + column;\n        y[at] = finish(sum, column, at);\n    }};\n"
    );
    lambdas
        + &match parts {
            1 => format!("    {function}(0, left, right, store);\n"),
            _ => format!(
                "    if (iteration == 0) {function}(blockIdx.z % {parts}, left, right, SplitSums<{m}, {n}>(parts));\n    else \
                 reduce_splits<TILE, TILE, {parts}, {m}, {n}>(parts, store);\n"
            ),
        }
}

/// A kernel of a block for each row.
fn by_rows(
    node: &NodeView,
    kind: KernelKind,
    rows: usize,
    body: String,
    label: String,
    in_place: &[usize],
) -> Vec<Call> {
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let (parameters, grid) = (node.parameters(&operands), [rows.max(1) as u32, 1, 1]);
    let emitted = Emitted {
        kind,
        parameters,
        body,
        grid,
        block: Block::USUAL,
        iterations: None,
        needs: vec![Template::Pointwise, Template::Rows],
    };
    vec![call(emitted, label, &operands, in_place)]
}

pub(super) fn softmax(node: &NodeView, softmax: &Softmax) -> Result<Vec<Call>, String> {
    node.all_f32()?;
    let [outer, axis, inner] = around(&node.input(0).shape, softmax.axis);
    let body = match outer * axis * inner {
        0 => String::new(),
        _ => format!("    softmax<{axis}, {inner}, {}>(a0, y);\n", softmax.log),
    };
    Ok(by_rows(node, KernelKind::Softmax, outer * inner, body, format!("{outer} x {axis} x {inner}"), &[]))
}

pub(super) fn layer_norm(node: &NodeView, norm: &LayerNorm) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let shape = &node.input(0).shape;
    let (rows, columns): (usize, usize) = (shape[..norm.axis].iter().product(), shape[norm.axis..].iter().product());
    let last = node.operand_count();
    let aligned = (0..=last).map(is_aligned).collect::<Vec<_>>().join(" && ");
    let by_warps = columns.is_multiple_of(EIGHT) && columns <= WARP_COLUMNS_MAX;
    let (mut finish, mut next) = (String::from(if by_warps { "" } else { "v" }), 1);
    for (is_there, function, sign) in [(norm.scale, "multiply", '*'), (norm.shift, "add", '+')] {
        if is_there {
            finish.push_str(&match by_warps {
                true => format!(" {function}_run<ALIGNED>(a{next} + column, v);"),
                false => format!(" {sign} a{next}[column]"),
            });
            next += 1;
        }
    }
    let (epsilon, label) = (number(norm.epsilon), format!("{rows} x {columns}"));
    let body = match by_warps {
        _ if rows * columns == 0 => String::new(),
        true => format!(
            "    constexpr bool ALIGNED = {aligned};\n    layer_norm_by_warps<{rows}, {columns}, ALIGNED>(a0, y, {epsilon}, \
             [=](float (&v)[8], int column) {{{finish} }});\n"
        ),
        false => {
            format!("    layer_norm<{columns}>(a0, y, {epsilon}, [=](float v, int column) {{ return {finish}; }});\n")
        }
    };
    if !by_warps {
        return Ok(by_rows(node, KernelKind::LayerNorm, rows, body, label, &[0]));
    }
    let operands: Vec<usize> = (0..last).collect();
    let emitted = Emitted {
        kind: KernelKind::LayerNorm,
        parameters: node.parameters(&operands),
        body,
        grid: [rows.div_ceil(NORM_WARPS).max(1) as u32, 1, 1],
        block: Block::of(32 * NORM_WARPS as u32),
        iterations: None,
        needs: vec![Template::Pointwise, Template::Rows],
    };
    Ok(vec![call(emitted, label, &operands, &[0])])
}

pub(super) fn attention(node: &NodeView, attention: &Attention, target: TensorCores) -> Result<Vec<Call>, String> {
    node.all_stored()?;
    let operand = |ix: usize| {
        let (shape, order) = (&node.input(ix).shape, attention.order[ix]);
        let own = shape.row_major_strides();
        (order.sorted([shape[0], shape[1], shape[2], shape[3]]), order.sorted([own[0], own[1], own[2], own[3]]))
    };
    let [(q, q_strides), (k, k_strides), (v, v_strides)] = [0, 1, 2].map(operand);
    let ([batch, heads, queries, width], keys, value_width) = (q, k[2], v[3]);
    let of_cores = cores(node, target).filter(|_| {
        node.input(2).dtype == node.input(0).dtype
            && 0 < keys
            && 0 < width
            && 0 < value_width
            && width.max(value_width) <= WIDTH_MAX
    });
    if of_cores.is_none() && KEYS_MAX < keys {
        return Err(format!("{keys} keys are more than shared memory has room for, which is {KEYS_MAX}"));
    }
    let own = node.output().shape.row_major_strides();
    let y_strides = attention.result.sorted([own[0], own[1], own[2], own[3]]);
    // A block has queries of one head: one without tensor cores, otherwise sixteen a warp.
    let heads_all = batch * heads;
    let warps = WARPS.into_iter().find(|warps| BLOCKS_MIN <= heads_all * queries.div_ceil(16 * warps)).unwrap_or(1);
    let tile = if of_cores.is_some() { 16 * warps } else { 1 };
    let tiles = queries.div_ceil(tile).max(1);
    let mut body = format!(
        "    const int query = blockIdx.x % {tiles} * {tile}, head = blockIdx.x / {tiles} % {heads}, batch = blockIdx.x / {};\n",
        tiles * heads
    );
    let ty = |ix: usize| format!("const {}", ctype(node.input(ix).dtype));
    for (ty, name, from, strides) in [
        (ty(0), "q", "a0", q_strides),
        (ty(1), "k", "a1", k_strides),
        (ty(2), "v", "a2", v_strides),
        (ctype(node.output().dtype).to_string(), "to", "y", y_strides),
    ] {
        let [batch, head, ..] = strides;
        body.push_str(&format!("    {ty}* {name} = {from} + ((size_t)batch * {batch} + head * {head});\n"));
    }
    let mut mask = String::new();
    if attention.mask {
        let (shape, own) = (&node.input(3).shape, node.input(3).shape.row_major_strides());
        let stride = |axis: usize| match (axis + shape.rank()).checked_sub(4) {
            Some(axis) if shape[axis] != 1 => own[axis],
            _ => 0,
        };
        let [batch, head, query, key] = [0, 1, 2, 3].map(stride);
        body.push_str(&format!(
            "    const {}* mask = a3 + (size_t)batch * {batch} + head * {head};\n",
            ctype(node.input(3).dtype)
        ));
        mask = format!("mask[query * {query} + key * {key}]");
    }
    let rows = |strides: [usize; 4]| strides[2];
    let [q_row, k_row, v_row, y_row] = [q_strides, k_strides, v_strides, y_strides].map(rows);
    let scale = number(attention.scale);
    match of_cores {
        Some(of) => {
            let line = |ix: usize, strides: [usize; 4], width: usize| {
                Tiles::together(node, ix, strides[..3].iter().copied().chain([width]))
            };
            let widths = [line(0, q_strides, width), line(1, k_strides, width), line(2, v_strides, value_width)];
            let [q, k, v] = widths;
            let is_whole = |stride: &usize| is_copied(node.output().dtype, *stride);
            let is_wide = value_width.is_multiple_of(4 * EIGHT) && y_strides[..3].iter().all(is_whole);
            let wide = if is_wide { is_aligned(node.operand_count()) } else { "false".into() };
            let mask = if mask.is_empty() { "0.0f".to_string() } else { format!("(float){mask}") };
            body.push_str(&format!(
                "    constexpr int Q = {q}, K = {k}, V = {v}, KV = K < V ? K : V, BYTES = Q < KV ? Q : KV;\n    \
                 attend_by_cores<{of}, {warps}, {queries}, {keys}, {width}, {value_width}, {q_row}, {k_row}, {v_row}, {y_row}, \
                 BYTES, {wide}>(query, q, k, v, to, {scale}, [=](int query, int key) {{ return {mask}; }});\n"
            ));
        }
        None => {
            let mask = if mask.is_empty() { String::new() } else { format!(" + {mask}") };
            body.push_str(&format!(
                "    q += query * {q_row};\n    attend<{keys}, {value_width}>([=](int key) {{\n        float sum = 0.0f;\n        for (int at = \
                 0; at < {width}; at++) sum += q[at] * k[(size_t)key * {k_row} + at];\n        return sum * {scale}{mask};\n    \
                 }}, [=](int key, int at) {{ return (float)v[(size_t)key * {v_row} + at]; }},\n        [=](int at, float mean) \
                 {{ to[query * {y_row} + at] = mean; }});\n"
            ));
        }
    }
    let blocks = heads_all * if queries == 0 { 0 } else { tiles };
    let label = format!("{batch} x {heads} heads, {queries} x {keys} of {width}");
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let needs = match of_cores {
        Some(_) => vec![Template::Pointwise, Template::Product, Template::Tensor, Template::Attention],
        None => vec![Template::Pointwise, Template::Rows],
    };
    let emitted = Emitted {
        kind: KernelKind::Attention,
        parameters: node.parameters(&operands),
        body: if blocks == 0 { String::new() } else { body },
        grid: [blocks.max(1) as u32, 1, 1],
        block: if of_cores.is_some() { Block::of(32 * warps as u32) } else { Block::USUAL },
        iterations: None,
        needs,
    };
    Ok(vec![call(emitted, label, &operands, &[])])
}

pub(super) fn reduce(node: &NodeView, reduce: &Reduce) -> Result<Vec<Call>, String> {
    let (x, dtype) = (&node.input(0).shape, node.input(0).dtype);
    let acc = match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => "float",
        DType::F64 => "double",
        _ if matches!(reduce.kind, ReduceKind::L2 | ReduceKind::LogSum | ReduceKind::LogSumExp | ReduceKind::Mean) => {
            return Err(format!("its kernel does not give {:?} of {dtype}", reduce.kind));
        }
        _ => "long long",
    };
    let strides: Vec<isize> = x.row_major_strides().iter().map(|&stride| stride as isize).collect();
    let part = |reduced: bool| -> (Vec<usize>, Vec<isize>) {
        let axes = (0..x.rank()).filter(|axis| reduce.axes.contains(axis) == reduced);
        axes.map(|axis| (x[axis], strides[axis])).unzip()
    };
    let ((outer, outer_strides), (inner, inner_strides)) = (part(false), part(true));
    let (rows, count): (usize, usize) = (outer.iter().product(), inner.iter().product());
    let (start, map, join, end) = match reduce.kind {
        ReduceKind::Sum => ("0", "v", "a + b", "v"),
        ReduceKind::Mean => ("0", "v", "a + b", "v / COUNT"),
        ReduceKind::Prod => ("1", "v", "a * b", "v"),
        ReduceKind::Max => (least(dtype, true), "v", "a != a || a > b ? a : b", "v"),
        ReduceKind::Min => (least(dtype, false), "v", "a != a || a < b ? a : b", "v"),
        ReduceKind::SumSquare => ("0", "v * v", "a + b", "v"),
        ReduceKind::L1 => ("0", "v < 0 ? -v : v", "a + b", "v"),
        ReduceKind::L2 => ("0", "v * v", "a + b", "sqrt(v)"),
        ReduceKind::LogSum => ("0", "v", "a + b", "log(v)"),
        ReduceKind::LogSumExp => ("0", "exp(v - top)", "a + b", "log(v) + top"),
    };
    let end = end.replace("COUNT", &format!("({acc}){count}"));
    let item = format!("({acc})a0[({}) + first]", place(&inner, &inner_strides, 0));
    let block = REDUCED_MIN <= count;
    let fold = |start: &str, map: &str, join: &str| match block {
        true => format!(
            "reduced<{count}>(({acc})({start}), [=](int i) {{ const {acc} v = {item}; return ({acc})({map}); }}, []({acc} \
             a, {acc} b) {{ return ({acc})({join}); }})"
        ),
        false => format!(
            "[=]() {{ {acc} a = {start}; for (int i = 0; i < {count}; i++) {{ const {acc} v = {item}; const {acc} b = \
             {map}; a = {join}; }} return a; }}()"
        ),
    };
    let first = place(&outer, &outer_strides, 0);
    let mut body = match block {
        true => format!("    const int i = blockIdx.x;\n    const size_t first = {first};\n"),
        false => format!("{}    const size_t first = {first};\n", head(rows)),
    };
    if reduce.kind == ReduceKind::LogSumExp {
        let top = fold(least(dtype, true), "v", "a != a || a > b ? a : b");
        // Where all are minus infinity the result is that, and not no number.
        body.push_str(&format!(
            "    const {acc} largest = {top};\n    const {acc} top = largest - largest == 0 ? largest : {acc}(0);\n"
        ));
    }
    let to = if block { "if (threadIdx.x == 0) y[i]" } else { "y[i]" };
    let ty = ctype(node.output().dtype);
    body.push_str(&format!("    const {acc} v = {};\n    {to} = ({ty})({end});\n", fold(start, map, join)));
    let emitted = Emitted {
        kind: KernelKind::Reduce,
        parameters: node.parameters(&[0]),
        body: if rows == 0 { String::new() } else { body },
        grid: if block { [rows.max(1) as u32, 1, 1] } else { blocks(rows) },
        block: Block::USUAL,
        iterations: None,
        needs: vec![Template::Rows],
    };
    Ok(vec![call(emitted, format!("{:?} of {x}", reduce.kind), &[0], &[])])
}

/// What every number of a dtype is larger than or equal to, or smaller.
fn least(dtype: DType, least: bool) -> &'static str {
    match (dtype.is_float(), least) {
        (true, true) => "-PRESTOW_INFINITY",
        (true, false) => "PRESTOW_INFINITY",
        (false, true) => "(-9223372036854775807ll - 1)",
        (false, false) => "9223372036854775807ll",
    }
}

pub(super) fn arg_extreme(node: &NodeView, extreme: &ArgExtreme) -> Result<Vec<Call>, String> {
    if node.input(0).dtype != DType::F32 {
        return Err(format!("its kernel searches f32, not {}", node.input(0).dtype));
    }
    let [outer, axis, inner] = around(&node.input(0).shape, extreme.axis);
    let better = match (extreme.max, extreme.last) {
        (true, true) => "v >= best",
        (true, false) => "v > best",
        (false, true) => "v <= best",
        (false, false) => "v < best",
    };
    let ty = ctype(node.output().dtype);
    // What is no number is better than any, the first or the last of them.
    let none = if extreme.last { "v != v" } else { "(v != v && best == best)" };
    let body = format!(
        "{}    const float* lane = a0 + (size_t)(i / {inner}) * {} + i % {inner};\n    float best = lane[0];\n    int \
         found = 0;\n    for (int at = 1; at < {axis}; at++) {{\n        const float v = lane[(size_t)at * {inner}];\n        \
         if ({none} || (best == best && {better})) {{\n            best = v;\n            found = at;\n        }}\n    \
         }}\n    y[i] = ({ty})found;\n",
        head(outer * inner),
        axis * inner
    );
    let emitted = Emitted {
        kind: KernelKind::Search,
        parameters: node.parameters(&[0]),
        body: if outer * inner == 0 { String::new() } else { body },
        grid: blocks(outer * inner),
        block: Block::USUAL,
        iterations: None,
        needs: Vec::new(),
    };
    Ok(vec![call(emitted, format!("{outer} x {axis} x {inner}"), &[0], &[])])
}

/// Places each element behind those that come before it, among the `k` found so far.
pub(super) fn top_k(node: &NodeView, op: &TopK) -> Result<Vec<Call>, String> {
    let x = node.input(0);
    let [outer, axis, inner] = around(&x.shape, op.axis);
    let (k, ty) = (op.k, ctype(x.dtype));
    let better = match (op.largest, x.dtype.is_float()) {
        (true, true) => "v > w || (v != v && w == w)",
        (false, true) => "v < w || (v == v && w != w)",
        (true, false) => "v > w",
        (false, false) => "v < w",
    };
    let body = format!(
        "{}    const {ty}* lane = a0 + (size_t)(i / {inner}) * {} + i % {inner};\n    const size_t start = (size_t)(i / \
         {inner}) * {} + i % {inner};\n    int count = 0;\n    for (int index = 0; index < {axis}; index++) {{\n        const \
         {ty} v = lane[(size_t)index * {inner}];\n        int at = count;\n        while (0 < at) {{\n            const {ty} w = \
         y[start + (size_t)(at - 1) * {inner}];\n            if (!({better})) break;\n            if (at < {k}) {{\n                \
         y[start + (size_t)at * {inner}] = w;\n                y1[start + (size_t)at * {inner}] = y1[start + (size_t)(at - 1) * \
         {inner}];\n            }}\n            at--;\n        }}\n        if (at < {k}) {{\n            y[start + (size_t)at * \
         {inner}] = v;\n            y1[start + (size_t)at * {inner}] = index;\n        }}\n        if (count < {k}) count++;\n    \
         }}\n",
        head(outer * inner),
        axis * inner,
        k * inner,
    );
    let mut parameters = node.parameters(&[0]);
    parameters.push(("long long*".to_string(), "y1".to_string()));
    let emitted = Emitted {
        kind: KernelKind::Search,
        parameters,
        body: if outer * inner * k == 0 { String::new() } else { body },
        grid: blocks(outer * inner),
        block: Block::USUAL,
        iterations: None,
        needs: Vec::new(),
    };
    Ok(vec![call(emitted, format!("{k} of {outer} x {axis} x {inner}"), &[0], &[])])
}

/// The sums of a lane are one thread's.
pub(super) fn cumulative_sum(node: &NodeView, op: &CumulativeSum) -> Result<Vec<Call>, String> {
    let x = node.input(0);
    let [outer, axis, inner] = around(&x.shape, op.axis);
    let ty = ctype(x.dtype);
    let step = if op.reverse { format!("{axis} - 1 - step") } else { "step".to_string() };
    let [before, behind] = if op.exclusive { ["y[at] = sum; ", ""] } else { ["", " y[at] = sum;"] };
    let body = format!(
        "{}    const size_t start = (size_t)(i / {inner}) * {} + i % {inner};\n    {ty} sum = 0;\n    for (int step = 0; step < \
         {axis}; step++) {{\n        const size_t at = start + (size_t)({step}) * {inner};\n        const {ty} term = a0[at];\n        \
         {before}sum += term;{behind}\n    }}\n",
        head(outer * inner),
        axis * inner,
    );
    let emitted = Emitted {
        kind: KernelKind::Reduce,
        parameters: node.parameters(&[0]),
        body: if outer * inner * axis == 0 { String::new() } else { body },
        grid: blocks(outer * inner),
        block: Block::USUAL,
        iterations: None,
        needs: Vec::new(),
    };
    Ok(vec![call(emitted, format!("{outer} x {axis} x {inner}"), &[0], &[])])
}

pub(super) fn lrn(node: &NodeView, lrn: &Lrn) -> Result<Vec<Call>, String> {
    node.all_f32()?;
    let shape = &node.input(0).shape;
    let [_, channels, inner] = around(shape, 1);
    let (front, back) = ((lrn.size - 1) / 2, lrn.size / 2);
    let body = format!(
        "{}    const int channel = i / {inner} % {channels};\n    float sum = 0.0f;\n    for (int at = channel - {front}; at \
         <= channel + {back}; at++) {{\n        if (at < 0 || {channels} <= at) continue;\n        const float v = a0[i + \
         (at - channel) * {inner}];\n        sum += v * v;\n    }}\n    y[i] = a0[i] / pow({} + {} * sum / {}.0f, {});\n",
        head(shape.elements()),
        number(lrn.bias),
        number(lrn.alpha),
        lrn.size,
        number(lrn.beta)
    );
    let emitted = Emitted {
        kind: KernelKind::Lrn,
        parameters: node.parameters(&[0]),
        body: if shape.elements() == 0 { String::new() } else { body },
        grid: blocks(shape.elements()),
        block: Block::USUAL,
        iterations: None,
        needs: Vec::new(),
    };
    Ok(vec![call(emitted, format!("{} of {channels} channels", lrn.size), &[0], &[])])
}

const _: () = assert!(THREADS.is_multiple_of(32));
