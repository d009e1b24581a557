//! Shared by the tests: a small plan with one of everything, random plans, and the way to skip a test.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use arena::{Aim, Limits, place};
use plan::{
    Arena, Buffer, BufferIx, Constant, ConstantIx, Operand, Persistence, Place, Plan, Port, RefusedReason,
    RefusedSharing, Sharing, Step, ValueSpan,
};
use prestow_report::Report;
use runtime::audit::{Audit, BufferAudit};
use runtime::process::{MemoryItem, ProcessMemory};
use types::{Bytes, Certificate, DType, Layout, Random, Role, Scope, Shape, Tag};

pub(crate) fn tag(scope: &str, role: Role) -> Tag {
    Tag { scope: Scope::new(scope), role }
}

pub(crate) fn held(name: &str, elements: usize, steps: (u32, u32), sharing: Sharing) -> ValueSpan {
    ValueSpan {
        name: name.into(),
        dtype: DType::F32,
        shape: Shape::from([elements]),
        layout: Layout::RowMajor,
        offset: Bytes(0),
        first_step: steps.0,
        last_step: steps.1,
        sharing,
    }
}

pub(crate) fn buffer(tag: Tag, size: u64, offset: u64, steps: (u32, u32), values: Vec<ValueSpan>) -> Buffer {
    let (size, offset) = (Bytes(size), Bytes(offset));
    let (first_step, last_step, persistence) = (steps.0, steps.1, Persistence::Run);
    Buffer { tag, size, offset, first_step, last_step, persistence, values, refused: Vec::new() }
}

pub(crate) fn of_buffer(ix: u32, size: u64) -> Operand {
    Operand { place: Place::Buffer(BufferIx(ix)), offset: Bytes(0), size: Bytes(size) }
}

pub(crate) fn of_constant(ix: u32, size: u64) -> Operand {
    Operand { place: Place::Constant(ConstantIx(ix)), offset: Bytes(0), size: Bytes(size) }
}

pub(crate) fn step(scope: &str, kernel: &str, inputs: Vec<Operand>, output: Operand) -> Step {
    Step {
        scope: Scope::new(scope),
        kernel: kernel.into(),
        label: String::new(),
        code: Vec::new(),
        inputs,
        outputs: vec![output],
        workspace: None,
        flops: 1000,
    }
}

pub(crate) fn constant(name: &str, offset: u64, size: u64) -> Constant {
    Constant {
        tag: tag(name, Role::Weight),
        dtype: DType::F32,
        shape: Shape::from([size as usize / 4]),
        offset: Bytes(offset),
        size: Bytes(size),
        recipe: None,
    }
}

pub(crate) fn port(name: &str, operand: Operand) -> Port {
    let shape = Shape::from([operand.size.0 as usize / 4]);
    Port { name: name.into(), dtype: DType::F32, shape, layout: Layout::RowMajor, operand }
}

/// Four steps and five buffers: padding, a hole at the peak, a result in place, refused sharing, scratch, two weights
/// with the same bytes, and constants of other batches.
pub(crate) fn small() -> Plan {
    let relu = vec![held("block1/conv1", 64, (0, 1), Sharing::Own), held("block1/relu", 64, (1, 3), Sharing::InPlace)];
    let mut conv2 = buffer(
        tag("block1/conv2", Role::Activation),
        256,
        256,
        (2, 3),
        vec![held("block1/conv2", 64, (2, 3), Sharing::Own)],
    );
    conv2.refused.push(RefusedSharing {
        node: Scope::new("block1/conv2"),
        of: "block1/relu".into(),
        sharing: Sharing::InPlace,
        reason: RefusedReason::ReadLater { by: Scope::new("head/add") },
    });
    let buffers = vec![
        buffer(tag("data", Role::Input), 100, 256, (0, 0), vec![held("data", 25, (0, 0), Sharing::Own)]),
        buffer(tag("block1/conv1", Role::Workspace), 200, 384, (0, 0), Vec::new()),
        buffer(tag("block1/conv1", Role::Activation), 256, 0, (0, 3), relu),
        conv2,
        buffer(tag("head/add", Role::Output), 200, 576, (3, 3), vec![held("head/add", 50, (3, 3), Sharing::Own)]),
    ];
    let mut steps = vec![
        step("block1/conv1", "conv", vec![of_buffer(0, 100), of_constant(0, 100)], of_buffer(2, 256)),
        step("block1/relu", "pointwise", vec![of_buffer(2, 256)], of_buffer(2, 256)),
        step(
            "block1/conv2",
            "conv",
            vec![of_buffer(2, 256), of_constant(1, 64), of_constant(2, 64)],
            of_buffer(3, 256),
        ),
        step("head/add", "pointwise", vec![of_buffer(2, 256), of_buffer(3, 256)], of_buffer(4, 200)),
    ];
    steps[0].workspace = Some(of_buffer(1, 200));
    let plan = Plan {
        model: "small".into(),
        target: "cpu:x86-64".into(),
        batch: 1,
        inputs: vec![port("data", of_buffer(0, 100))],
        outputs: vec![port("y", of_buffer(4, 200))],
        steps,
        buffers,
        arena: Arena {
            alignment: Bytes(64),
            peak_step: 3,
            certificate: Certificate { value: Bytes(832), lower_bound: Bytes(768), least: Bytes(768) },
        },
        order: Certificate { value: Bytes(768), lower_bound: Bytes(768), least: Bytes(768) },
        constants: vec![
            constant("conv1.weight", 0, 100),
            constant("conv2.weight", 128, 64),
            constant("conv2.bias", 128, 64),
        ],
        constants_size: Bytes(400),
        ..Plan::default()
    };
    assert_eq!(plan::check(&plan), Ok(()));
    plan
}

/// The small plan's report with measurements of a run that wrote everything except the last 8 bytes of the workspace.
pub(crate) fn small_measured() -> Report {
    let seen = |written| BufferAudit { written, ..BufferAudit::default() };
    let audit = Audit {
        planned_bytes: 776,
        written_bytes: 768,
        outside_bytes: 0,
        buffers: vec![seen(100), seen(192), seen(256), seen(256), BufferAudit { written: 200, assumed: 4, outside: 0 }],
        live_written: vec![548, 256, 512, 712],
        outside: Vec::new(),
        same_results: true,
    };
    let item = |what: &str, bytes| MemoryItem { what: what.into(), method: "counted".into(), bytes };
    let memory = ProcessMemory {
        rss_bytes: 10_000,
        peak_rss_bytes: 12_000,
        private_dirty_bytes: 5_000,
        items: vec![item("arena", 832), item("executable (plan and weights)", 400), item("heap", 8_768)],
        ..ProcessMemory::default()
    };
    Report::new(&small()).with_actual(&audit, 0, &memory)
}

/// A plan of random buffers over a number of steps, each with some values, placed by the placer.
pub(crate) fn random(seed: u64, steps: usize, buffers: usize) -> Plan {
    let mut random = Random::new(seed);
    let mut below = |limit: usize| random.below(limit.max(1) as u64) as usize;
    let mut plan = Plan { model: format!("random{seed}"), target: "cpu:x86-64".into(), batch: 1, ..Plan::default() };
    for ix in 0..steps {
        let scope = format!("stage{}/block{}/op{ix}", ix * 4 / steps.max(1), ix % 3);
        plan.steps.push(Step { outputs: Vec::new(), ..step(&scope, "kernel", Vec::new(), of_buffer(0, 0)) });
    }
    const ROLES: [Role; 6] =
        [Role::Activation, Role::Activation, Role::Workspace, Role::Input, Role::Output, Role::WeightGradient];
    for ix in 0..buffers {
        let first = below(steps);
        let last = (first + below(1 + steps / 8).min(40)).min(steps - 1);
        let elements = 1 + below(5000);
        let role = ROLES[below(ROLES.len())];
        let mut values = Vec::new();
        for value in 0..below(4) {
            let start = first + below(last - first + 1);
            let end = start + below(last - start + 1);
            let (offset, count) = (below(elements), 1 + below(elements));
            let count = count.min(elements - offset);
            let name = format!("{}/value{value}", plan.steps[start].scope);
            let value = held(&name, count, (start as u32, end as u32), Sharing::ConcatSlice);
            values.push(ValueSpan { offset: Bytes(4 * offset as u64), ..value });
        }
        let tag = tag(&format!("{}/buffer{ix}", plan.steps[first].scope), role);
        plan.buffers.push(buffer(tag, 4 * elements as u64, 0, (first as u32, last as u32), values));
        let operand = of_buffer(ix as u32, 4 * elements as u64);
        plan.steps[last].inputs.push(operand);
        // Some buffers grow: their first bytes are used from the start on, the others at the end alone.
        if 2 < below(4) && first < last {
            let size = 4 * (1 + below(elements) as u64);
            plan.steps[first].inputs.push(Operand { size: Bytes(size), ..operand });
        }
    }
    let mut offset = 0;
    for ix in 0..below(10) {
        let size = 4 * (1 + below(300) as u64);
        plan.constants.push(constant(&format!("weight{ix}"), offset, size));
        offset = (offset + size).next_multiple_of(64) + 64 * below(3) as u64;
    }
    plan.constants_size = Bytes(offset + 64);
    plan.arena.alignment = Bytes(64);
    let placement = place(&plan.problem(), Limits { work: 10_000, aim: Aim::Least }).expect("there is no capacity");
    plan.buffers.iter_mut().zip(&placement.offsets).for_each(|(buffer, offset)| buffer.offset = *offset);
    plan.arena = Arena { alignment: Bytes(64), peak_step: placement.peak_step, certificate: placement.certificate };
    plan
}

/// Counts a test as skipped, with the reason.
#[expect(clippy::disallowed_methods, reason = "the test runner names its file in the environment")]
pub(crate) fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED: {test}: {reason}");
    if let Ok(path) = std::env::var("PRESTOW_SKIPPED")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        let _ = writeln!(file, "{test}: {reason}");
    }
}

/// A new empty folder for one test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the target folder is writable");
    path
}

/// The output of a program; `None` if the test is skipped because the program is missing.
pub(crate) fn run(test: &str, program: &str, words: &[&str]) -> Option<Output> {
    match Command::new(program).args(words).output() {
        Ok(output) => Some(output),
        Err(_) => {
            skip(test, &format!("`{program}` is not installed"));
            None
        }
    }
}
