//! Nodes whose state goes from one step of a sequence to the next: a launch for each phase of a step. Most cells have one
//! phase; a GRU that resets its state before the product needs the reset gate of all units before its candidate.
//!
//! On tensor cores, states are rounded as they are stored, so that a first launch copies the initial state to where the first
//! step reads it.

use ir::ops::Recurrent;
use ir::{Call, CallInput, Pack};
use types::recurrent::{Cell, Direction, Reset};
use types::{Bytes, DType};

use super::c_source::{ctype, unary};
use super::emit::{Block, Emitted, GRID_MAX, KernelKind, THREADS, Template, call};
use super::layout::Rearranged;
use super::tiling::{TensorCores, TileShape, pieces};
use crate::NodeView;

/// Without tensor cores: units of a block, one per warp, and the most rows of the batch that a warp computes together.
const UNITS: usize = THREADS as usize / 32;
const ROWS_MAX: usize = 8;
/// Blocks that a launch on tensor cores should have at least, about one per multiprocessor. Small layers have fewer.
const BLOCKS: usize = 128;
/// Regions of the workspace begin at multiples of this.
const ALIGNED: usize = 16;

/// The extents of a layer.
#[derive(Clone, Copy)]
struct Extents {
    seq: usize,
    batch: usize,
    directions: usize,
    units: usize,
}

impl Extents {
    fn states(self) -> usize {
        self.directions * self.batch * self.units
    }
}

pub(super) fn recurrent(node: &NodeView, op: &Recurrent, target: TensorCores) -> Result<Vec<Call>, String> {
    node.all_f32()?;
    let shape = &node.input(0).shape;
    let extents =
        Extents { seq: shape[0], batch: shape[1], directions: op.direction.count(), units: node.input(1).shape[2] };
    let Extents { seq, batch, directions, units } = extents;
    if seq * batch * units == 0 {
        return Err("its kernel has no empty sequences, batches or states".into());
    }
    let phases = phases(&op.cell);
    let kernel = match target.recurrent_dtype().filter(|_| node.is_constant(1)) {
        Some(dtype) => by_cores(extents, &phases, dtype),
        None => by_warps(extents, &phases),
    };
    if (GRID_MAX as usize) < kernel.grid[2] {
        return Err(format!("{batch} rows are more than a grid has"));
    }
    let (gates, reverse) = (op.cell.gates(), op.direction == Direction::Reverse);
    let is_last = format!("at.step == {}", seq - 1);
    let memory = if op.cell.has_memory() { "y2[at.state()] = now.other;" } else { "" };
    let body = format!(
        "    using At = Unit<{seq}, {batch}, {directions}, {units}, {gates}, {reverse}>;\n{}    const auto keep = [=](const At& \
         at, Computed now) {{\n        y0[at.result()] = now.state;\n        if ({is_last}) y1[at.state()] = now.state;\n        \
         {memory}\n{}    }};\n{}",
        kernel.head, kernel.kept, kernel.body
    );
    let operands: Vec<usize> = (0..node.operand_count()).collect();
    let ty = |ix: usize| if ix == 1 { kernel.weight } else { "float" };
    let mut parameters: Vec<(String, String)> =
        operands.iter().map(|&ix| (format!("const {}*", ty(ix)), format!("a{ix}"))).collect();
    let results = 2 + usize::from(op.cell.has_memory());
    parameters.extend((0..results).map(|ix| ("float*".into(), format!("y{ix}"))));
    if 0 < kernel.workspace {
        parameters.push(("unsigned char*".into(), "kept".into()));
    }
    let iterations = u32::try_from(kernel.launches).map_err(|_| format!("{seq} steps are more than can be counted"))?;
    let emitted = Emitted {
        kind: KernelKind::Recurrent,
        parameters,
        body,
        grid: kernel.grid.map(|blocks| blocks as u32),
        block: kernel.block,
        iterations: Some(iterations),
        needs: kernel.needs,
    };
    let label = format!("{} of {seq} steps, {directions} x {batch} x {units}", op.cell.name());
    let mut call = call(emitted, label, &operands, &[]);
    if let Some(packer) = kernel.packer {
        call.inputs[1] = CallInput::Packed { input: 1, pack: Pack::new(packer) };
    }
    call.workspace = Bytes(kernel.workspace as u64);
    Ok(vec![call])
}

/// How a layer is computed.
struct Kernel {
    /// The C type of weights.
    weight: &'static str,
    /// How weights are packed.
    packer: Option<Rearranged>,
    /// Declarations.
    head: String,
    /// The statement that stores a state as the next step's operand; empty if the next step reads the result.
    kept: String,
    /// The phases, each with a condition on the number of the launch.
    body: String,
    /// Bytes of the workspace, which is the kernel's parameter `kept`.
    workspace: usize,
    launches: usize,
    grid: [usize; 3],
    block: Block,
    needs: Vec<Template>,
}

/// Without tensor cores. With two phases, the workspace has the update gates, then the products of reset gate and state.
fn by_warps(extents: Extents, phases: &[Phase]) -> Kernel {
    let Extents { seq, batch, directions, units } = extents;
    let (rows, states) = (batch.min(ROWS_MAX), extents.states());
    let mut head = format!("    const int step = (int)iteration / {};\n", phases.len());
    if 1 < phases.len() {
        head.push_str(&format!("    float *updates = (float*)kept, *reset_states = updates + {states};\n"));
    }
    let run = |ix: usize, phase: &Phase| {
        let vector = if ix == 0 { "at.before(a2, y0)" } else { "reset_states + at.state()" };
        let store = match ix + 1 == phases.len() {
            true => "keep",
            false => {
                "[=](const At& at, Computed now) { updates[at.state()] = now.state, reset_states[at.state()] = now.other; }"
            }
        };
        format!(
            "step_by_warps<At, {rows}, {}, {}>(step, a1, [=](const At& at) {{ return {vector}; }}, {}, {store});",
            phase.first,
            phase.count,
            phase.cell()
        )
    };
    Kernel {
        weight: "float",
        packer: None,
        head,
        kept: String::new(),
        body: in_turn("(int)iteration", phases, run),
        workspace: if 1 < phases.len() { 2 * states * size_of::<f32>() } else { 0 },
        launches: phases.len() * seq,
        grid: [units.div_ceil(UNITS), directions, batch.div_ceil(rows)],
        block: Block::USUAL,
        needs: vec![Template::Pointwise, Template::Recurrent],
    }
}

/// On tensor cores. The workspace has two buffers of rounded states, which steps read and write in turn. With two phases, the
/// products of reset gate and state follow, then the update gates.
fn by_cores(extents: Extents, phases: &[Phase], dtype: DType) -> Kernel {
    let Extents { seq, batch, directions, units } = extents;
    let of = if dtype == DType::F32 { "tf32" } else { ctype(dtype) };
    let terms = pieces(dtype, units);
    let lines = directions * batch * terms;
    let (buffers, size) = (1 + phases.len(), dtype.size().0 as usize);
    let (shape, units_of_tile) = tile(extents, phases);
    let stored = ctype(dtype);
    let mut head = format!(
        "    {stored}* states = ({stored}*)kept;\n    if (iteration == 0) {{\n        round_states<{of}, At, {directions}, {terms}, \
         {buffers}>(a2, states);\n        return;\n    }}\n    const int step = ((int)iteration - 1) / {};\n    const {stored}* before = \
         states + step % 2 * {lines};\n    {stored}* after = states + (step + 1) % 2 * {lines};\n    const auto line = [=](const At& \
         at) {{ return ((size_t)at.direction * {batch} + at.row) * {terms} + at.unit; }};\n",
        phases.len()
    );
    let updates = (buffers * lines * size).next_multiple_of(ALIGNED);
    if 1 < phases.len() {
        head.push_str(&format!(
            "    {stored}* reset_states = states + {};\n    float* updates = (float*)(kept + {updates});\n",
            2 * lines
        ));
    }
    let run = |ix: usize, phase: &Phase| {
        let from = if ix == 0 { "before" } else { "reset_states" };
        let store = match ix + 1 == phases.len() {
            true => "keep".to_string(),
            false => format!(
                "[=](const At& at, Computed now) {{ updates[at.state()] = now.state, reset_states[line(at)] = \
                 ({stored})now.other; }}"
            ),
        };
        format!(
            "step_by_cores<{of}, {}, At, {}, {}, {terms}>(step, a1, {from}, {}, {store});",
            shape.text(),
            phase.first,
            phase.count,
            phase.cell()
        )
    };
    Kernel {
        weight: stored,
        packer: Some(Rearranged::PaddedLines { columns: units, padded: terms, dtype })
            .filter(|_| dtype != DType::F32 || terms != units),
        head,
        kept: format!("        after[line(at)] = ({stored})now.state;\n"),
        body: in_turn("((int)iteration - 1)", phases, run),
        workspace: updates + if 1 < phases.len() { extents.states() * size_of::<f32>() } else { 0 },
        launches: 1 + phases.len() * seq,
        grid: [units.div_ceil(units_of_tile), directions, batch.div_ceil(shape.rows())],
        block: shape.block(terms),
        needs: vec![
            Template::Pointwise,
            Template::Product,
            Template::Tensor,
            Template::Recurrent,
            Template::RecurrentCores,
        ],
    }
}

/// The tile of a block on tensor cores, and how many units it has in the phase with the most gates. The rows of a batch are
/// taken by one block if there are no more than 64. Columns are as few as it takes to occupy all multiprocessors.
fn tile(extents: Extents, phases: &[Phase]) -> (TileShape, usize) {
    let Extents { batch, directions, units, .. } = extents;
    let down = batch.div_ceil(16).next_power_of_two().min(4);
    // All phases have one tile, so its columns are a multiple of the gates of each.
    let most = phases.iter().map(|phase| phase.count).max().expect("a cell has a phase");
    let widths: &[usize] = match most {
        1 | 2 => &[4, 2],
        3 => &[6],
        _ => &[4],
    };
    let columns = |across: usize, n: usize| 8 * n * across / most;
    let blocks = |across: usize, n: usize| units.div_ceil(columns(across, n)) * directions * batch.div_ceil(16 * down);
    let arrangements = [4, 2, 1].into_iter().filter(|across| across * down <= 4);
    let all: Vec<(usize, usize)> = arrangements.flat_map(|across| widths.iter().map(move |&n| (across, n))).collect();
    let enough = all.iter().find(|&&(across, n)| BLOCKS <= blocks(across, n));
    let &(across, n) = enough.or(all.last()).expect("there are some");
    (TileShape::Warps { down, across, m: 1, n }, columns(across, n))
}

/// The text of phases, of which each launch has one. Launches are counted from the first step on.
fn in_turn(launch: &str, phases: &[Phase], run: impl Fn(usize, &Phase) -> String) -> String {
    let count = phases.len();
    let text = |(ix, phase): (usize, &Phase)| match count {
        1 => format!("    {}\n", run(ix, phase)),
        _ => format!("    if ({launch} % {count} == {ix}) {}\n", run(ix, phase)),
    };
    phases.iter().enumerate().map(text).collect()
}

/// One launch of a step.
struct Phase {
    /// The gates whose products with the state it computes: the first one, and their number.
    first: usize,
    count: usize,
    /// Declarations, from the products `sum[..]` of unit `at`.
    lines: String,
    /// The state, and the other result.
    results: [&'static str; 2],
}

impl Phase {
    /// As a C++ function of a unit and its sums.
    fn cell(&self) -> String {
        let [state, other] = self.results;
        format!(
            "[=](const At& at, const float (&sum)[{}]) {{\n{}        return Computed{{{state}, {other}}};\n    }}",
            self.count, self.lines
        )
    }
}

/// The phases of a step. [`Cell`] has the formulas.
fn phases(cell: &Cell) -> Vec<Phase> {
    let next = |lines: &[String]| lines.iter().map(|line| format!("        const float {line};\n")).collect();
    let old = "*at.before(a2, y0)";
    match cell {
        Cell::Rnn { activation } => {
            let lines = next(&[format!("next = {}", unary(*activation, "at.gate(a0, 0) + sum[0]", "float"))]);
            vec![Phase { first: 0, count: 1, lines, results: ["next", "0.0f"] }]
        }
        Cell::Lstm { activation: [f, g, out], peepholes } => {
            // Peepholes are of `i`, `o` and `f`: the first three gates.
            let gate = |gate: usize, function, memory: &str| {
                let peephole = match *peepholes && gate < 3 {
                    true => format!(" + at.template extra<3>(a4, {gate}) * {memory}"),
                    false => String::new(),
                };
                unary(function, &format!("at.gate(a0, {gate}) + sum[{gate}]{peephole}"), "float")
            };
            let lines = next(&[
                "c = at.step == 0 ? a3[at.state()] : y2[at.state()]".into(),
                format!("input = {}, forget = {}", gate(0, *f, "c"), gate(2, *f, "c")),
                format!("memory = forget * c + input * {}", gate(3, *g, "c")),
                format!("next = {} * {}", gate(1, *f, "memory"), unary(*out, "memory", "float")),
            ]);
            vec![Phase { first: 0, count: 4, lines, results: ["next", "memory"] }]
        }
        Cell::Gru { activation: [f, g], reset } => {
            let update = format!("update = {}", unary(*f, "at.gate(a0, 0) + sum[0]", "float"));
            let reset_gate = format!("reset = {}", unary(*f, "at.gate(a0, 1) + sum[1]", "float"));
            let sum = match reset {
                Reset::AfterProduct => "at.gate(a0, 2) + reset * (sum[2] + at.template extra<1>(a3, 0))",
                Reset::BeforeProduct => "at.gate(a0, 2) + sum[0]",
            };
            let state = format!("next = (1.0f - update) * {} + update * {old}", unary(*g, sum, "float"));
            match reset {
                Reset::AfterProduct => {
                    let lines = next(&[update, reset_gate, state]);
                    vec![Phase { first: 0, count: 3, lines, results: ["next", "0.0f"] }]
                }
                Reset::BeforeProduct => {
                    let gates = next(&[update, reset_gate, format!("kept = reset * {old}")]);
                    let state = next(&["update = updates[at.state()]".into(), state]);
                    vec![
                        Phase { first: 0, count: 2, lines: gates, results: ["update", "kept"] },
                        Phase { first: 2, count: 1, lines: state, results: ["next", "0.0f"] },
                    ]
                }
            }
        }
    }
}
