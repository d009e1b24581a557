//! Emitted CUDA kernels on a processor: compiled as C++ behind the shim, under sanitizers, compared with the
//! definition.

mod channels_last;
mod emitted;
mod networks;
mod recurrent;
mod tiles;
mod training;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cases::bounds::{Arithmetic, bounds, has_attention, is_chain};
use cases::forms::to_half_precision;
use cases::judge::{Allowed, Verdict, inputs};
use cases::products::{copied, large};
use compiler::{Compiled, Model, compile};
use cuda::nvrtc::Compiler;
use cuda::{Launch, LibraryPaths, StepCode};
use ir::{Graph, Op, ValueId, evaluate};
use lower::cuda::{CudaTarget, Source, assemble};
use plan::{Initial, Operand, Place, Plan, Port, StatePort};
use types::{DType, Tensor};

use crate::executables::folder;
use crate::gpu::{NO_COMPILER, build};
use crate::half_precision::{HALVES, assert_near};
use crate::support::{difference, root, skip};

fn compiled(graph: Graph) -> Result<Compiled, compiler::CompileError> {
    compiled_as(graph, DType::F32).map(|(_, compiled)| compiled)
}

/// The target, with the dtype of values between kernels.
pub(crate) fn target(dtype: DType) -> CudaTarget {
    CudaTarget::named("cuda:sm_90").expect("it is an architecture").storing(dtype)
}

fn compiled_as(graph: Graph, dtype: DType) -> Result<(Graph, Compiled), compiler::CompileError> {
    compiled_for(graph, &target(dtype))
}

/// Returns the graph with the rounding between kernels, and the compiled plan.
fn compiled_for(graph: Graph, target: &dyn lower::Target) -> Result<(Graph, Compiled), compiler::CompileError> {
    let mut rounded = graph.clone();
    let model = Model { graph, preprocess: None, labels: Vec::new() };
    let compiled = compile(model, target, compiler::Goal::default(), |pass, graph| {
        if pass == "convert_to_half" {
            rounded = graph.clone();
        }
    });
    Ok((rounded, compiled?))
}

/// The launch of an emitted kernel's step.
pub(crate) fn launch(code: &[u8]) -> Launch {
    match StepCode::from_code(code) {
        Some(StepCode::Launch(launch)) => launch,
        other => panic!("not a launch: {other:?}"),
    }
}

/// Builds a program that runs the kernels of a source. Returns `None` after reporting that `test` is skipped.
pub(crate) fn shim(test: &str, folder: &Path, source: &Source, flags: &[&str]) -> Option<PathBuf> {
    let (kernels, program) = (folder.join("kernels.inc"), folder.join("shim"));
    std::fs::write(&kernels, source.for_shim()).expect("the folder is ours");
    if !build(|compiler| compiler.shim(&kernels, &program, flags)) {
        skip(test, NO_COMPILER);
        return None;
    }
    Some(program)
}

/// A list of runs, in the format that `cuda/mock/cpp/shim.cpp` reads.
struct Job<'a> {
    source: &'a Source,
    bytes: Vec<u8>,
    runs: u64,
}

impl Job<'_> {
    fn number(&mut self, number: u64) {
        self.bytes.extend(number.to_le_bytes());
    }

    fn add(&mut self, plan: &Plan, constants: &[u8], inputs: &[Tensor]) {
        self.add_runs(plan, constants, inputs, 1);
    }

    /// Several runs on the same inputs, each from the states that the one before left. The results are those of the last run,
    /// then its states.
    fn add_runs(&mut self, plan: &Plan, constants: &[u8], inputs: &[Tensor], runs: u64) {
        // Buffers start as NaN, so a read before the first write shows in the results.
        let mut blocks: Vec<Vec<u8>> = plan.buffers.iter().map(|buffer| vec![0xff; buffer.size.0 as usize]).collect();
        for (port, tensor) in plan.inputs.iter().zip(inputs) {
            let [block, start, size] = range(plan, &port.operand);
            blocks[block as usize][start as usize..(start + size) as usize].copy_from_slice(&tensor.to_le_bytes());
        }
        for StatePort { port, initial } in &plan.states {
            let [block, start, size] = range(plan, &port.operand);
            let bytes = match initial {
                Initial::Zeros => vec![0; size as usize],
                Initial::Constant(ix) => {
                    constants[plan.constants[ix.0 as usize].offset.0 as usize..][..size as usize].to_vec()
                }
            };
            blocks[block as usize][start as usize..(start + size) as usize].copy_from_slice(&bytes);
        }
        let constant = |constant: &plan::Constant| {
            constants[constant.offset.0 as usize..(constant.offset + constant.size).0 as usize].to_vec()
        };
        blocks.extend(plan.constants.iter().map(constant));
        self.runs += 1;
        self.number(blocks.len() as u64);
        for block in blocks {
            self.number(block.len() as u64);
            self.bytes.extend(block);
        }
        let launches: Vec<Launch> = plan.steps.iter().map(|step| launch(&step.code)).collect();
        self.number(runs * launches.iter().map(|launch| u64::from(launch.repeat.unwrap_or(1))).sum::<u64>());
        let steps = (0..runs).flat_map(|_| plan.steps.iter().zip(&launches));
        for (step, Launch { entry, grid, block, repeat, .. }) in steps {
            let number = self.source.entries.iter().position(|other| other.name == *entry);
            let operands = || step.inputs.iter().chain(&step.outputs).chain(&step.workspace);
            for turn in 0..repeat.unwrap_or(1) {
                self.number(number.expect("the source has it") as u64);
                grid.iter().chain(block).for_each(|&extent| self.number(u64::from(extent)));
                self.number((operands().count() + usize::from(repeat.is_some())) as u64);
                for operand in operands() {
                    let [block, start, _] = range(plan, operand);
                    self.number(block);
                    self.number(start);
                }
                if repeat.is_some() {
                    self.number(u64::MAX);
                    self.number(u64::from(turn));
                }
            }
        }
        self.number((plan.outputs.len() + plan.states.len()) as u64);
        for port in plan.outputs.iter().chain(plan.states.iter().map(|state| &state.port)) {
            range(plan, &port.operand).into_iter().for_each(|number| self.number(number));
        }
    }

    /// Returns the outputs of all runs, concatenated.
    fn run(self, program: &Path) -> Vec<u8> {
        self.try_run(program).unwrap_or_else(|said| panic!("{said}"))
    }

    /// Like `run`, but returns the program's error output if it fails.
    fn try_run(self, program: &Path) -> Result<Vec<u8>, String> {
        run_job(program, &[self.runs.to_le_bytes().to_vec(), self.bytes].concat())
    }
}

/// Runs a job. Returns its outputs, or the program's error output.
pub(crate) fn run_job(program: &Path, job: &[u8]) -> Result<Vec<u8>, String> {
    let mut child = Command::new(program)
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is there");
    let (mut stdin, job) = (child.stdin.take().expect("it is piped"), job.to_vec());
    let writer = std::thread::spawn(move || stdin.write_all(&job));
    let out = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&out.stderr).chars().take(4000).collect::<String>();
    let written = writer.join().expect("it does not panic");
    if !out.status.success() {
        return Err(format!("{}: {said}", out.status));
    }
    written.expect("the program reads its job");
    Ok(out.stdout)
}

/// Block, offset and size of an operand. Buffers are the first blocks; constants follow.
fn range(plan: &Plan, operand: &Operand) -> [u64; 3] {
    let block = match operand.place {
        Place::Buffer(ix) => u64::from(ix.0),
        Place::Constant(ix) => plan.buffers.len() as u64 + u64::from(ix.0),
    };
    [block, operand.offset.0, operand.size.0]
}

fn results(ports: &[Port], bytes: &mut &[u8]) -> Vec<Tensor> {
    let result = |port: &Port| {
        let own;
        (own, *bytes) = bytes.split_at(port.operand.size.0 as usize);
        Tensor::from_le_bytes(port.dtype, port.shape.clone(), own).expect("its size is its type's")
    };
    ports.iter().map(result).collect()
}

/// The arithmetic of emitted kernels that do not round operands.
const STRICT: Arithmetic = Arithmetic { operands: 0.0, library: false };

/// Runs compiled graphs behind the shim and compares their results with the definition.
fn check(test: &str, name: &str, graphs: Vec<(String, Graph)>, dtype: DType, flags: &[&str]) {
    let Some(runs) = run_all(test, name, &graphs, dtype, flags) else { return };
    let mut wrong = Vec::new();
    for ((name, _), Run { given, got, rounded, .. }) in graphs.iter().zip(&runs) {
        let want = evaluate(rounded, given).expect("the graph verifies");
        // A value between two products that rounds to its other neighbor changes all sums that it is in.
        let is_bounded = is_chain(rounded) || has_attention(rounded);
        let chain = if dtype.is_half() && is_bounded { bounds(rounded, given, STRICT) } else { None };
        for (ix, (got, want)) in got.iter().zip(&want).enumerate() {
            let allowed = chain.as_ref().map_or_else(|| Allowed::of(want, dtype), |chain| chain[ix].clone());
            let verdict = Verdict::of(got, want, &allowed).unwrap_or_else(|other| panic!("{name}: {other}"));
            wrong.extend(verdict.first.map(|first| format!("{name}: {first}")));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Inputs and outputs of a run, and the graph with the rounding between kernels.
pub(crate) struct Run {
    pub(crate) rounded: Graph,
    pub(crate) given: Vec<Tensor>,
    pub(crate) got: Vec<Tensor>,
}

/// Runs graphs on generated inputs in one program. Returns `None` after reporting that `test` is skipped.
fn run_all(test: &str, name: &str, graphs: &[(String, Graph)], dtype: DType, flags: &[&str]) -> Option<Vec<Run>> {
    let given = graphs.iter().map(|(_, graph)| inputs(graph, 3)).collect();
    run_given(test, name, graphs, given, &target(dtype), flags)
}

/// Like `run_all`, on given inputs.
pub(crate) fn run_given(
    test: &str,
    name: &str,
    graphs: &[(String, Graph)],
    given: Vec<Vec<Tensor>>,
    target: &dyn lower::Target,
    flags: &[&str],
) -> Option<Vec<Run>> {
    let compiled = |(name, graph): &(String, Graph)| {
        compiled_for(graph.clone(), target).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let (rounded, mut plans): (Vec<Graph>, Vec<Compiled>) = graphs.iter().map(compiled).unzip();
    let source = assemble(plans.iter_mut().map(|compiled| &mut compiled.plan));
    let program = shim(test, &folder(name), &source, flags)?;
    let mut job = Job { source: &source, bytes: Vec::new(), runs: 0 };
    for (compiled, given) in plans.iter().zip(&given) {
        job.add(&compiled.plan, &compiled.constants.to_vec(), given);
    }
    let bytes = job.run(&program);
    let mut rest = &bytes[..];
    let run = |((compiled, given), rounded): ((&Compiled, _), _)| Run {
        rounded,
        given,
        got: results(&compiled.plan.outputs, &mut rest),
    };
    let runs = plans.iter().zip(given).zip(rounded).map(run).collect();
    assert!(rest.is_empty(), "the program prints nothing else");
    Some(runs)
}

/// The cases with kernels for the target, and the number of refused cases.
pub(crate) fn cases() -> (Vec<(String, Graph)>, usize) {
    let all = cases::all();
    let count = all.len();
    let kept: Vec<(String, Graph)> = all
        .into_iter()
        .filter(|case| compiled(case.graph.clone()).is_ok())
        .map(|case| (case.name, case.graph))
        .collect();
    let refused = count - kept.len();
    (kept, refused)
}

#[test]
fn kernels_match_their_definitions_under_sanitizers() {
    let (cases, refused) = cases();
    // Refused are operands of other dtypes, half precision and 8-bit integers, and the nine cases of kept gates, the four of updates
    // by factors.
    assert!(refused < 73 && 300 < cases.len(), "{refused} refused of {}", cases.len());
    let test = "cuda::kernels_match_their_definitions_under_sanitizers";
    let others = cases.into_iter().filter(|case| !is_of_training(case)).collect();
    check(test, "cuda-operators", others, DType::F32, &SANITIZERS);
}

/// Whether a case is one of [`cases::training`].
fn is_of_training((name, _): &(String, Graph)) -> bool {
    static NAMES: std::sync::OnceLock<std::collections::BTreeSet<String>> = std::sync::OnceLock::new();
    NAMES.get_or_init(|| cases::training::all().into_iter().map(|case| case.name).collect()).contains(name)
}

#[test]
fn kernels_of_training_match_their_definitions_under_sanitizers() {
    let test = "cuda::kernels_of_training_match_their_definitions_under_sanitizers";
    let all = cases::training::all().into_iter().map(|case| (case.name, case.graph)).collect();
    check(test, "cuda-operators-training", all, DType::F32, &SANITIZERS);
}

pub(crate) const SANITIZERS: [&str; 4] = ["-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// For kernels whose arithmetic on indices another test runs under [`SANITIZERS`]: half the time of the compiler.
pub(crate) const ADDRESSES: [&str; 4] = ["-Og", "-g1", "-fsanitize=address", "-fno-sanitize-recover=all"];

/// The cases whose kernels depend on the stored dtype, in half precision, and every eighth function.
fn half_cases(cases: &[(String, Graph)], dtype: DType) -> Vec<(String, Graph)> {
    let half =
        |(name, graph): &(String, Graph)| Some((format!("{name}, all {dtype}"), to_half_precision(graph, dtype)?));
    let mut graphs: Vec<(String, Graph)> = cases.iter().filter_map(half).collect();
    let mut functions = 0;
    graphs.retain(|(_, graph)| {
        let is_function =
            matches!(graph.nodes().values().next().map(|node| &node.op), Some(Op::Unary(_) | Op::Binary(_)));
        functions += usize::from(is_function);
        !is_function || functions % 8 == 0
    });
    let refused = |(name, graph): &(String, Graph)| {
        compiled_as(graph.clone(), dtype).err().map(|error| format!("{name}: {error}"))
    };
    let reasons: Vec<String> = graphs.iter().filter_map(refused).collect();
    assert!(100 < graphs.len() && reasons.is_empty(), "{} of {}: {reasons:#?}", reasons.len(), graphs.len());
    graphs
}

/// A product of two inputs in half precision, and how it is wrong once its source was changed.
struct Mutated {
    name: &'static str,
    source: Source,
    compiled: Compiled,
    given: Vec<Tensor>,
    want: Tensor,
}

impl Mutated {
    /// The right factor has a line for each term, or is transposed.
    fn new(name: &'static str, transposed: bool, target: &CudaTarget) -> Mutated {
        let mut graph = Graph::new("product");
        let left = graph.add_input("left", DType::F16, types::Shape::from([70, 312]));
        let shape = if transposed { [72, 312] } else { [312, 72] };
        let right = graph.add_input("right", DType::F16, types::Shape::from(shape));
        let op = ir::ops::MatMul { transposed, ..Default::default() };
        let y = graph.add1(op.into(), &[left, right], types::Scope::new("y")).expect("the extents fit");
        graph.set_outputs(vec![("y".into(), y)]);
        let given = inputs(&graph, 3);
        let want = evaluate(&graph, &given).expect("the graph verifies").swap_remove(0);
        let (_, mut compiled) = compiled_for(graph, target).expect("there are kernels");
        let source = assemble([&mut compiled.plan]);
        Mutated { name, source, compiled, given, want }
    }

    /// The first difference of the result, or the shim's message. `None` without a C++ compiler.
    fn run(&self, name: &str, from: &str, to: &str) -> Option<String> {
        assert!(self.source.text.contains(from), "{from}");
        let source = Source { text: self.source.text.replace(from, to), ..self.source.clone() };
        let folder = folder(&format!("{}-{name}", self.name));
        let program = shim("cuda::shim_detects_missing_synchronization", &folder, &source, &["-O1"])?;
        let mut job = Job { source: &source, bytes: Vec::new(), runs: 0 };
        job.add(&self.compiled.plan, &self.compiled.constants.to_vec(), &self.given);
        Some(match job.try_run(&program) {
            Ok(bytes) => {
                let got = results(&self.compiled.plan.outputs, &mut &bytes[..]);
                difference(&got[0], &self.want, 2e-3, 2e-3).unwrap_or_else(|| "right".into())
            }
            Err(message) => message,
        })
    }

    fn lacks(&self, name: &str, from: &str, to: &str, expected: &str) {
        let message = self.run(name, from, to).expect("there is a compiler");
        assert!(message.contains(expected), "{}, {from}: {message}", self.name);
    }
}

/// The shim detects missing waits for copies, missing barriers, bank conflicts and misaligned copies in tensor-core kernels:
/// of single warps, and of groups of them, whose products must be waited for as well.
#[test]
fn shim_detects_missing_synchronization() {
    let by_warps = Mutated::new("cuda-warps", false, &target(DType::F16));
    let by_groups = Mutated::new("cuda-groups", true, &target(DType::F16).with_groups_from(1));
    assert!(!by_warps.source.text.contains(", GroupTile<") && by_groups.source.text.contains(", GroupTile<"));
    for (kernel, left) in [(&by_warps, ["STAGES - 2", "STAGES - 1"]), (&by_groups, ["AHEAD - 1", "AHEAD"])] {
        let Some(message) = kernel.run("whole", "stage = 0;", "stage = 0;") else { return };
        assert_eq!(message, "right");
        let [wait, late] = left.map(|left| format!("        wait_for_groups<{left}>();\n"));
        kernel.lacks("no-wait", &wait, "", " is NaN, not ");
        kernel.lacks("late-wait", &wait, &late, " is NaN, not ");
        // Without the barrier, the first warps read data whose copies other warps have not waited for.
        let barrier = "which is refilled.\n        __syncthreads();";
        kernel.lacks("no-barrier", barrier, "which is refilled.", ", not ");
        kernel.lacks("alignment", "from = matrix + ", "from = matrix + 1 + ", "do not lie at a multiple");
    }
    by_warps.lacks("order", "(word / 4 ^ (line / 2 & 3))", "(word / 4)", "meet in banks");
    by_warps.lacks("turned-order", "(word / 4 ^ order)", "(word / 4 ^ order * 0)", "meet in banks");
    by_groups.lacks("order", "(word / 4 ^ (line / 2 & 3))", "(word / 4)", ", not ");
    let [wait, publish] = ["        wait_for_products();\n", "        publish_to_products();"];
    by_groups.lacks("no-product-wait", &format!("{wait}{publish}"), publish, ", not ");
}

/// Kernels that read and write half precision, and kernels of `f32` graphs with half precision between kernels.
#[test]
fn half_precision_kernels_match_their_definitions_under_a_sanitizer() {
    let test = "cuda::half_precision_kernels_match_their_definitions_under_a_sanitizer";
    let (cases, _) = cases();
    for dtype in HALVES {
        let mut graphs = half_cases(&cases, dtype);
        // Extents do not affect rounding between kernels.
        let is_of_extents = |name: &str| ["tiled", "turned", "copied", "large"].iter().any(|of| name.starts_with(of));
        let between = |(name, _): &&(String, Graph)| {
            ["conv", "matmul", "attention"].iter().any(|op| name.contains(op)) && !is_of_extents(name)
        };
        graphs.extend(cases.iter().filter(between).cloned());
        // Kernels of the two dtypes differ by conversions alone.
        let flags: &[&str] = if dtype == DType::F16 { &ADDRESSES } else { &["-O1"] };
        check(test, &format!("cuda-operators-{dtype}"), graphs, dtype, flags);
    }
}

/// Every 16-bit number, and numbers that half precision rounds.
#[test]
fn half_precision_rounding_matches_the_definition() {
    let test = "cuda::half_precision_rounding_matches_the_definition";
    let numbers: Vec<f64> = (0..4096)
        .flat_map(|ix| {
            let (step, sign) = (f64::from(ix % 64), if ix % 2 == 0 { 1.0 } else { -1.0 });
            let size = 2f64.powi(ix / 64 * 3 - 140);
            // The second number is the midpoint of two `f16` numbers, the third is next to the midpoint of two `bf16`
            // numbers.
            [1.0, 1.0 + 2f64.powi(-11), 1.0 + 2f64.powi(-8) + 2f64.powi(-20), 1.0 + step / 64.0]
                .map(|number| sign * size * number)
        })
        .chain([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 65_519.99, 65_520.0, 1e300, -1e-300, 0.0, -0.0])
        .collect();
    let numbers = Tensor::vector(numbers);
    let bits: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let (mut graphs, mut given) = (Vec::new(), Vec::new());
    let mut add = |from: Tensor, to: DType| {
        let mut graph = Graph::new("cast");
        let x = graph.add_input("x", from.dtype(), from.shape().clone());
        let cast = graph.add1(ir::ops::Cast { to }.into(), &[x], types::Scope::new("cast")).expect("it is accepted");
        graph.set_outputs(vec![("y".into(), cast)]);
        graphs.push((format!("{} to {to}", from.dtype()), graph));
        given.push(vec![from]);
    };
    for dtype in HALVES {
        add(Tensor::from_le_bytes(dtype, types::Shape::from([1 << 16]), &bits).expect("it is whole"), DType::F32);
        add(numbers.cast(DType::F32), dtype);
        add(numbers.clone(), dtype);
    }
    let Some(runs) = run_given(test, "cuda-halves", &graphs, given, &target(DType::F32), &["-O2"]) else { return };
    for ((name, graph), Run { given, got, .. }) in graphs.iter().zip(&runs) {
        let want = evaluate(graph, given).expect("the graph verifies");
        assert_eq!(difference(&got[0], &want[0], 0.0, 0.0), None, "{name}");
    }
}

/// Finds NVRTC where `cargo xtask fetch --cuda` puts it. Returns `None` after reporting that `test` is skipped.
pub(crate) fn compiler(test: &str) -> Option<Compiler> {
    let versions = std::fs::read_dir(root().join("data/cuda/lib")).into_iter().flatten().flatten();
    let packages = versions.map(|entry| entry.path().join("site-packages")).collect();
    let found = Compiler::find(&LibraryPaths { packages, ..LibraryPaths::default() });
    if let Err(error) = &found {
        skip(test, &error.to_string());
    }
    found.ok()
}

/// Every kernel compiles for every architecture without spills.
#[test]
fn kernels_compile_for_every_architecture_without_spills() {
    let Some(compiler) = compiler("cuda::kernels_compile_for_every_architecture_without_spills") else { return };
    let (cases, _) = cases();
    check_resources(&compiler, cases, &target(DType::F32), &CudaTarget::ARCHITECTURES);
    let error = compiler.compile("nonsense", "sm_35").expect_err("that is too old").to_string();
    assert!(error.contains("sm_35") && error.contains("sm_90"), "{error}");
    let error = compiler.compile("nonsense", "sm_90").expect_err("that is no source").to_string();
    assert!(error.contains("nonsense"), "{error}");
}

/// The same for half precision.
#[test]
fn half_precision_kernels_compile_without_spills() {
    let Some(compiler) = compiler("cuda::half_precision_kernels_compile_without_spills") else { return };
    let (cases, _) = cases();
    for dtype in HALVES {
        check_resources(&compiler, half_cases(&cases, dtype), &target(dtype), &CudaTarget::ARCHITECTURES);
    }
}

pub(crate) fn check_resources(
    compiler: &Compiler,
    graphs: Vec<(String, Graph)>,
    target: &CudaTarget,
    architectures: &[&str],
) {
    let plan = |(_, graph)| compiled_for(graph, target).expect("it was").1;
    let mut plans: Vec<Compiled> = graphs.into_iter().map(plan).collect();
    let source = assemble(plans.iter_mut().map(|compiled| &mut compiled.plan));
    let launches = || plans.iter().flat_map(|compiled| &compiled.plan.steps).map(|step| launch(&step.code));
    let threads: BTreeMap<String, u32> = launches().map(|launch| (launch.entry, launch.block[0])).collect();
    for &arch in architectures {
        let (_, resources) = compiler.measure(&source.text, arch).unwrap_or_else(|error| panic!("{arch}: {error}"));
        for entry in &source.entries {
            let own = resources.iter().find(|own| own.name == entry.name);
            let own = own.unwrap_or_else(|| panic!("{arch}: {} is not there", entry.name));
            // Divisions and logarithms in `double` call functions, around which some registers are saved.
            let of_doubles = body(&source, &entry.name).contains("double* workspace");
            let is_fine = |bytes: &u32| *bytes == 0 || (of_doubles && *bytes <= 32);
            assert!(own.spilled.iter().all(is_fine), "{arch}: {own:?} {}", body(&source, &entry.name));
            // Means of wide heads take most registers of eight warps that attend.
            let least = if entry.name.starts_with("attention") { 1 } else { 2 };
            let blocks = blocks_at_once(arch, own, threads[&entry.name]);
            assert!(0 < own.registers && least <= blocks, "{arch}: {own:?}");
            let trigonometry = ["sin", "cos", "tan"]
                .iter()
                .any(|function| body(&source, &entry.name).contains(&format!("f_{function}(")));
            // A call's frame takes eight bytes; trigonometry of large arguments needs a table on the stack.
            assert!(own.stack <= 8 || trigonometry || of_doubles, "{arch}: {own:?} {}", body(&source, &entry.name));
        }
        if lower::Target::name(target) == "cuda:sm_90" && arch == "sm_90" {
            let compiled = || compiler.compile(&source.text, arch).expect("it did");
            assert!(compiled() == compiled(), "the same source gives the same code");
        }
    }
}

/// Number of blocks of a size that a multiprocessor holds at once (CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability"). It has 65536 registers, allocated in units of eight per thread, and each
/// block takes 1 KiB of shared memory on top of its own.
fn blocks_at_once(arch: &str, own: &cuda::KernelResources, threads: u32) -> u32 {
    let (most, shared) = match arch {
        "sm_80" => (2048, 164 << 10),
        "sm_86" | "sm_89" | "sm_120" | "sm_121" => (1536, 100 << 10),
        "sm_110" => (1536, 228 << 10),
        _ => (2048, 228 << 10),
    };
    let by_registers = 65_536 / (own.registers.next_multiple_of(8) * threads);
    by_registers.min(most / threads).min(shared / (own.shared + 1024))
}

/// The source text of a function.
fn body<'a>(source: &'a Source, name: &str) -> &'a str {
    let start = source.text.find(&format!(" {name}(")).expect("it is there");
    source.text[start..].split("\n}\n").next().unwrap_or_default()
}
