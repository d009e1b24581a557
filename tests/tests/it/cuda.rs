//! Emitted CUDA kernels on a processor: compiled as C++ behind the shim, under its sanitizers, against the definition.
//! It is one file because the first part, how emitted code is run, is small beside the graphs that each test runs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cases::forms::in_halves;
use cases::judge::{Allowed, Verdict, inputs};
use cases::products::{copied, large};
use compiler::{Compiled, Model, compile};
use cuda::nvrtc::Compiler;
use cuda::{Launch, LibraryPaths, StepCode};
use ir::{Graph, Op, ValueId, evaluate};
use lower::cuda::{CudaTarget, Source, assemble};
use plan::{Operand, Place, Plan, Port};
use types::{DType, Tensor};

use crate::executables::folder;
use crate::gpu::{NO_COMPILER, build};
use crate::half_precision::{HALVES, assert_near};
use crate::support::{difference, root, skip};

fn compiled(graph: Graph) -> Result<Compiled, compiler::CompileError> {
    compiled_as(graph, DType::F32).map(|(_, compiled)| compiled)
}

/// What is compiled for, with what is stored between kernels.
pub(crate) fn target(dtype: DType) -> CudaTarget {
    CudaTarget::named("cuda:sm_90").expect("it is an architecture").storing(dtype)
}

fn compiled_as(graph: Graph, dtype: DType) -> Result<(Graph, Compiled), compiler::CompileError> {
    compiled_for(graph, &target(dtype))
}

/// A graph as its results are rounded between kernels, and its plan.
fn compiled_for(graph: Graph, target: &CudaTarget) -> Result<(Graph, Compiled), compiler::CompileError> {
    let mut rounded = graph.clone();
    let model = Model { graph, preprocess: None, labels: Vec::new() };
    let compiled = compile(model, target, None, |pass, graph| {
        if pass == "convert_to_half" {
            rounded = graph.clone();
        }
    });
    Ok((rounded, compiled?))
}

/// What a step of ours launches.
pub(crate) fn launch(code: &[u8]) -> Launch {
    match StepCode::from_code(code) {
        Some(StepCode::Launch(launch)) => launch,
        other => panic!("not a launch: {other:?}"),
    }
}

/// A program that runs the kernels of a source, or none after saying that `test` is skipped.
pub(crate) fn shim(test: &str, folder: &Path, source: &Source, flags: &[&str]) -> Option<PathBuf> {
    let (kernels, program) = (folder.join("kernels.inc"), folder.join("shim"));
    std::fs::write(&kernels, source.for_shim()).expect("the folder is ours");
    if !build(|compiler| compiler.shim(&kernels, &program, flags)) {
        skip(test, NO_COMPILER);
        return None;
    }
    Some(program)
}

/// The runs of a job, as `cuda/mock/cpp/shim.cpp` reads them.
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
        // Nothing is what it was: who reads before anybody wrote reads no numbers.
        let mut blocks: Vec<Vec<u8>> = plan.buffers.iter().map(|buffer| vec![0xff; buffer.size.0 as usize]).collect();
        for (port, tensor) in plan.inputs.iter().zip(inputs) {
            let [block, start, size] = range(plan, &port.operand);
            blocks[block as usize][start as usize..(start + size) as usize].copy_from_slice(&tensor.to_le_bytes());
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
        self.number(launches.iter().map(|launch| u64::from(launch.repeat.unwrap_or(1))).sum());
        for (step, Launch { entry, grid, block, repeat }) in plan.steps.iter().zip(launches) {
            let number = self.source.entries.iter().position(|other| other.name == entry);
            let operands = || step.inputs.iter().chain(&step.outputs).chain(&step.workspace);
            for turn in 0..repeat.unwrap_or(1) {
                self.number(number.expect("the source has it") as u64);
                grid.iter().chain(&block).for_each(|&extent| self.number(u64::from(extent)));
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
        self.number(plan.outputs.len() as u64);
        for port in &plan.outputs {
            range(plan, &port.operand).into_iter().for_each(|number| self.number(number));
        }
    }

    /// The results of all runs, one behind the other.
    fn run(self, program: &Path) -> Vec<u8> {
        self.try_run(program).unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same, or what the program says instead.
    fn try_run(self, program: &Path) -> Result<Vec<u8>, String> {
        run_job(program, &[self.runs.to_le_bytes().to_vec(), self.bytes].concat())
    }
}

/// What a program makes of a job, or what it says instead.
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

/// Block, offset and size of an operand: buffers are the first blocks, constants those behind them.
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

/// Runs compiled graphs behind the shim and compares their results with the definition.
fn check(test: &str, name: &str, graphs: Vec<(String, Graph)>, dtype: DType, flags: &[&str]) {
    let Some(runs) = run_all(test, name, &graphs, dtype, flags) else { return };
    let mut wrong = Vec::new();
    for ((name, _), Run { given, got, rounded, .. }) in graphs.iter().zip(&runs) {
        let want = evaluate(rounded, given).expect("the graph verifies");
        for (got, want) in got.iter().zip(&want) {
            let verdict =
                Verdict::of(got, want, &Allowed::of(want, dtype)).unwrap_or_else(|other| panic!("{name}: {other}"));
            wrong.extend(verdict.first.map(|first| format!("{name}: {first}")));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What a graph was given and what its kernels made of it, with the graph as it is rounded.
pub(crate) struct Run {
    pub(crate) rounded: Graph,
    pub(crate) given: Vec<Tensor>,
    pub(crate) got: Vec<Tensor>,
}

/// Runs graphs on made-up inputs through one program, or none after saying that `test` is skipped.
fn run_all(test: &str, name: &str, graphs: &[(String, Graph)], dtype: DType, flags: &[&str]) -> Option<Vec<Run>> {
    let given = graphs.iter().map(|(_, graph)| inputs(graph, 3)).collect();
    run_given(test, name, graphs, given, &target(dtype), flags)
}

/// The same on given inputs.
pub(crate) fn run_given(
    test: &str,
    name: &str,
    graphs: &[(String, Graph)],
    given: Vec<Vec<Tensor>>,
    target: &CudaTarget,
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
        job.add(&compiled.plan, &compiled.constants, given);
    }
    let bytes = job.run(&program);
    let mut rest = &bytes[..];
    let run = |((compiled, given), rounded): ((&Compiled, _), _)| Run {
        rounded,
        given,
        got: results(&compiled.plan.outputs, &mut rest),
    };
    let runs = plans.iter().zip(given).zip(rounded).map(run).collect();
    assert!(rest.is_empty(), "the program says nothing else");
    Some(runs)
}

/// The cases that the target has kernels for, and how many are refused.
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
fn kernels_keep_to_their_definitions_under_sanitizers() {
    let (cases, refused) = cases();
    // Windows over three dimensions, halves as operands.
    assert!(refused < 60 && 300 < cases.len(), "{refused} refused of {}", cases.len());
    let test = "cuda::kernels_keep_to_their_definitions_under_sanitizers";
    check(test, "cuda-operators", cases, DType::F32, &SANITIZERS);
}

pub(crate) const SANITIZERS: [&str; 4] = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// The cases whose kernels depend on what is stored, in halves, and one function of many.
fn half_cases(cases: &[(String, Graph)], dtype: DType) -> Vec<(String, Graph)> {
    let half = |(name, graph): &(String, Graph)| Some((format!("{name}, all {dtype}"), in_halves(graph, dtype)?));
    let mut graphs: Vec<(String, Graph)> = cases.iter().filter_map(half).collect();
    let mut functions = 0;
    graphs.retain(|(_, graph)| {
        let is_function =
            matches!(graph.nodes().values().next().map(|node| &node.op), Some(Op::Unary(_) | Op::Binary(_)));
        functions += usize::from(is_function);
        !is_function || functions % 8 == 0
    });
    // Windows over three dimensions are not taken apart in halves, because that would round sums in between.
    let is_deep = |graph: &Graph| graph.values().values().any(|value| 4 < value.ty.shape.rank());
    graphs.retain(|(_, graph)| !is_deep(graph));
    let refused = |(name, graph): &(String, Graph)| {
        compiled_as(graph.clone(), dtype).err().map(|error| format!("{name}: {error}"))
    };
    let reasons: Vec<String> = graphs.iter().filter_map(refused).collect();
    assert!(100 < graphs.len() && reasons.is_empty(), "{} of {}: {reasons:#?}", reasons.len(), graphs.len());
    graphs
}

/// By how many bytes each of them copies its factors.
#[test]
fn factors_are_copied_by_as_many_bytes_as_lie_together() {
    let by = |target: &CudaTarget, graph: Graph| {
        let mut plan = compiled_for(graph, target).expect("there are kernels").1.plan;
        let text = assemble([&mut plan]).text;
        let call = &text[text.find("extern").expect("there is a function")..];
        let call = call.find("_by_cores<").map(|at| &call[at..]).expect("tensor cores multiply");
        let numbers: Vec<usize> =
            call.split(">(").next().unwrap_or_default().rsplit(", ").take(2).filter_map(|n| n.parse().ok()).collect();
        (numbers[1], numbers[0])
    };
    let graphs: Vec<(String, Graph)> = copied().into_iter().map(|case| (case.name, case.graph)).collect();
    let halves: Vec<(usize, usize)> = graphs
        .iter()
        .map(|(_, graph)| by(&target(DType::F16), in_halves(graph, DType::F16).expect("it takes halves")))
        .collect();
    // Left and right, whole and from a part; then weights and pixels.
    let products = [(16, 16), (2, 16), (8, 8), (2, 8), (4, 4), (2, 4), (2, 2), (2, 2)];
    assert_eq!(halves, [&products[..], &[(16, 16), (8, 8), (4, 4), (2, 2)]].concat());
    let words: Vec<(usize, usize)> =
        graphs.iter().map(|(_, graph)| by(&target(DType::F32).rounding(), graph.clone())).collect();
    let products = [(16, 16), (4, 16), (16, 16), (4, 16), (8, 8), (4, 8), (4, 4), (4, 4)];
    assert_eq!(words, [&products[..], &[(16, 16), (16, 16), (8, 8), (4, 4)]].concat());
}

/// What a kernel of tensor cores leaves out is seen here: waiting for copies, meeting before others read, the order in which
/// lines lie.
#[test]
fn what_a_kernel_leaves_out_is_seen() {
    let test = "cuda::what_a_kernel_leaves_out_is_seen";
    let graph = copied().swap_remove(0).graph;
    let graph = in_halves(&graph, DType::F16).expect("it takes halves");
    let (_, mut compiled) = compiled_as(graph.clone(), DType::F16).expect("there are kernels");
    let source = assemble([&mut compiled.plan]);
    let given = inputs(&graph, 3);
    let want = evaluate(&graph, &given).expect("the graph verifies");
    let run = |name: &str, from: &str, to: &str| -> Option<String> {
        assert!(source.text.contains(from), "{from}");
        let source = Source { text: source.text.replacen(from, to, 1), ..source.clone() };
        let program = shim(test, &folder(name), &source, &["-O1"])?;
        let mut job = Job { source: &source, bytes: Vec::new(), runs: 0 };
        job.add(&compiled.plan, &compiled.constants, &given);
        Some(match job.try_run(&program) {
            Ok(bytes) => {
                let got = results(&compiled.plan.outputs, &mut &bytes[..]);
                difference(&got[0], &want[0], 2e-3, 2e-3).unwrap_or_else(|| "right".into())
            }
            Err(said) => said,
        })
    };
    let Some(said) = run("cuda-whole", "stage = 0;", "stage = 0;") else { return };
    assert_eq!(said, "right");
    let lacks = |name: &str, from: &str, to: &str, says: &str| {
        let said = run(name, from, to).expect("there is a compiler");
        assert!(said.contains(says), "{from}: {said}");
    };
    lacks("cuda-no-wait", "        wait_for_groups<STAGES - 2>();\n", "", " is NaN, not ");
    lacks("cuda-late-wait", "wait_for_groups<STAGES - 2>();", "wait_for_groups<STAGES - 1>();", " is NaN, not ");
    // Without meeting, the first warps read what others have not waited for.
    lacks("cuda-no-barrier", "is filled again.\n        __syncthreads();", "is filled again.", ", not ");
    lacks("cuda-order", "(word / 4 ^ (line / 2 & 3))", "(word / 4)", "meet in banks");
    lacks("cuda-turned-order", "(word / 4 ^ order)", "(word / 4 ^ order * 0)", "meet in banks");
    lacks("cuda-alignment", "return a + row", "return a + 1 + row", "do not lie at a multiple");
}

/// Kernels that read and write halves, and those of `f32` graphs whose values are halves in between.
#[test]
fn kernels_of_halves_keep_to_their_definitions_under_sanitizers() {
    let test = "cuda::kernels_of_halves_keep_to_their_definitions_under_sanitizers";
    let (cases, _) = cases();
    for dtype in HALVES {
        let mut graphs = half_cases(&cases, dtype);
        // Extents do not matter to what is rounded between kernels.
        let is_of_extents = |name: &str| ["tiled", "turned", "copied", "large"].iter().any(|of| name.starts_with(of));
        let between = |(name, _): &&(String, Graph)| {
            ["conv", "matmul", "attention"].iter().any(|op| name.contains(op)) && !is_of_extents(name)
        };
        graphs.extend(cases.iter().filter(between).cloned());
        check(test, &format!("cuda-operators-{dtype}"), graphs, dtype, &SANITIZERS);
    }
}

/// Every number of sixteen bits, and numbers of which halves keep little.
#[test]
fn halves_are_rounded_as_they_are_defined() {
    let test = "cuda::halves_are_rounded_as_they_are_defined";
    let numbers: Vec<f64> = (0..4096)
        .flat_map(|ix| {
            let (step, sign) = (f64::from(ix % 64), if ix % 2 == 0 { 1.0 } else { -1.0 });
            let size = 2f64.powi(ix / 64 * 3 - 140);
            // Between two of them, and a little beside the middle.
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

/// NVIDIA's compiler where `cargo xtask fetch --cuda` put it, or none after saying that `test` is skipped.
pub(crate) fn compiler(test: &str) -> Option<Compiler> {
    let versions = std::fs::read_dir(root().join("data/cuda/lib")).into_iter().flatten().flatten();
    let packages = versions.map(|entry| entry.path().join("site-packages")).collect();
    let found = Compiler::find(&LibraryPaths { packages, ..LibraryPaths::default() });
    if let Err(error) = &found {
        skip(test, &error.to_string());
    }
    found.ok()
}

/// Every kernel compiles for every architecture, and its numbers stay in registers.
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

/// Those of halves as well.
#[test]
fn kernels_of_halves_compile_without_spills() {
    let Some(compiler) = compiler("cuda::kernels_of_halves_compile_without_spills") else { return };
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
    for &arch in architectures {
        let (_, resources) = compiler.measure(&source.text, arch).unwrap_or_else(|error| panic!("{arch}: {error}"));
        for entry in &source.entries {
            let own = resources.iter().find(|own| own.name == entry.name);
            let own = own.unwrap_or_else(|| panic!("{arch}: {} is not there", entry.name));
            assert_eq!(own.spilled, [0, 0], "{arch}: {own:?} {}", body(&source, &entry.name));
            assert!(0 < own.registers && 2 <= blocks_at_once(arch, own), "{arch}: {own:?}");
            let trigonometry = ["sin", "cos", "tan"]
                .iter()
                .any(|function| body(&source, &entry.name).contains(&format!("f_{function}(")));
            // Eight bytes are the frame of a call; sines of large arguments take a table of their own.
            assert!(own.stack <= 8 || trigonometry, "{arch}: {own:?} {}", body(&source, &entry.name));
        }
        if lower::Target::name(target) == "cuda:sm_90" && arch == "sm_90" {
            let compiled = || compiler.compile(&source.text, arch).expect("it did");
            assert!(compiled() == compiled(), "the same source gives the same code");
        }
    }
}

/// How many blocks of 256 threads a multiprocessor has at once (CUDA C++ Programming Guide, "Technical Specifications per
/// Compute Capability"): 65536 registers, given out by eight a thread, and shared memory, of which each block takes 1 KiB more.
fn blocks_at_once(arch: &str, own: &cuda::KernelResources) -> u32 {
    let (threads, shared) = match arch {
        "sm_80" => (2048, 164 << 10),
        "sm_120" => (1536, 100 << 10),
        _ => (2048, 228 << 10),
    };
    let by_registers = 65_536 / (own.registers.next_multiple_of(8) * 256);
    by_registers.min(threads / 256).min(shared / (own.shared + 1024))
}

/// The text of a function.
fn body<'a>(source: &'a Source, name: &str) -> &'a str {
    let start = source.text.find(&format!(" {name}(")).expect("it is there");
    source.text[start..].split("\n}\n").next().unwrap_or_default()
}

/// Networks as a whole behind the shim, beside the kernels of processors.
#[test]
fn networks_give_what_processors_give() {
    let mut graphs = vec![
        small_network("squeezenet1.1", &[1, 3, 64, 64]),
        small_network("mobilenet_v2", &[1, 3, 64, 64]),
        small_network("resnet18", &[2, 3, 40, 48]),
        small_network("densenet121", &[1, 3, 32, 32]),
    ];
    graphs.extend(small_graphs(20));
    compare("cuda::networks_give_what_processors_give", &graphs, DType::F32);
}

/// The same where what lies between kernels is rounded, and tensor cores multiply.
#[test]
fn networks_of_halves_give_what_processors_give() {
    let test = "cuda::networks_of_halves_give_what_processors_give";
    for (dtype, network) in [(DType::F16, "mobilenet_v2"), (DType::Bf16, "resnet18")] {
        let mut graphs = small_graphs(12);
        graphs.push(small_network(network, &[1, 3, 48, 40]));
        compare(test, &graphs, dtype);
    }
}

fn small_network(name: &str, shape: &[usize]) -> (String, Graph) {
    (name.to_string(), crate::gpu::network(name, shape))
}

/// A transformer, and so many random graphs.
fn small_graphs(count: u64) -> Vec<(String, Graph)> {
    let random = (0..count).map(|seed| (format!("random {seed}"), crate::pass_results::random_graph(seed)));
    [("transformer".to_string(), crate::transformers::transformer(2))].into_iter().chain(random).collect()
}

/// Runs graphs behind the shim and compares their results with those of processors in `f32`.
fn compare(test: &str, graphs: &[(String, Graph)], dtype: DType) {
    let Some(runs) = run_all(test, &format!("cuda-networks-{dtype}"), graphs, dtype, &["-O2"]) else { return };
    let parts = if dtype.is_half() { 8.0 * cases::judge::step(dtype) } else { 1e-3 };
    let mut stored = 0;
    for ((name, graph), Run { given, got, rounded }) in graphs.iter().zip(&runs) {
        let processor = crate::support::compiled(graph.clone()).expect("processors have kernels for it");
        let want = crate::support::open(&processor, 2).run_tensors(given).expect("the inputs fit");
        assert_near(&format!("{name}, {dtype}"), got, &want, parts);
        let halves = rounded.nodes().values().filter(|node| rounded.ty(node.outputs[0]).dtype == dtype);
        stored += usize::from(0 < halves.count());
    }
    assert!(6 <= stored, "some graphs have something that is stored: {stored}");
}

/// What is emitted for a small network, launches included; templates are read where they stand.
#[test]
fn emitted_kernels_read_so() {
    let mut graph = Graph::new("small");
    let x = graph.add_input("x", DType::F32, types::Shape::from([1, 8, 6, 5]));
    let mut known = |name: &str, shape: &[usize]| {
        graph.add_weight(name, Tensor::from_fn(types::Shape::from(shape), |ix| ix as f32 * 0.25))
    };
    let (weight, bias, scale) = (known("weight", &[16, 8, 3, 3]), known("bias", &[16]), known("scale", &[16, 1, 1]));
    let conv = ir::ops::Conv { epilogue: ir::ops::Epilogue::bias(true), ..ir::ops::Conv::square(2, 1) };
    let mut add = |op: Op, inputs: &[ValueId], name: &str| {
        graph.add1(op, inputs, types::Scope::new(name)).expect("it is accepted")
    };
    let sum = add(conv.into(), &[x, weight, bias], "conv");
    let relu = add(ir::ops::Unary(types::pointwise::Unary::Relu).into(), &[sum], "relu");
    let scaled = add(ir::ops::Binary(types::pointwise::Binary::Mul).into(), &[relu, scale], "scale");
    let order = [0, 2, 3, 1].into_iter().collect();
    let turned = add(ir::ops::Transpose { order }.into(), &[scaled], "turned");
    let y = add(ir::ops::Softmax { axis: 3, log: false }.into(), &[turned], "y");
    graph.set_outputs(vec![("y".into(), y)]);
    let mut compiled = compiled(graph).expect("there are kernels");
    let source = assemble([&mut compiled.plan]);
    let start = source.text.find("extern \"C\"").expect("there is a function");
    assert_eq!(
        &source.text[start..],
        "\
extern \"C\" __global__ void __launch_bounds__(256, 2) conv_0(const float* a0, const float* a1, const float* a2, float* y) {
    const auto finish = [=](float v, int channel, size_t at) {
        v += a2[channel];
        v = f_relu(v);
        return v;
    };
    convolve<Window<6, 5, 3, 3, 3, 3, 2, 2, 1, 1, 1, 1>, 8, 16, 1, 1>(a0, a1, y, finish);
}

extern \"C\" __global__ void __launch_bounds__(256) pointwise_1(const float* a0, const float* a1, float* y) {
    const int i = element();
    if (144 <= i) return;
    const float r0 = a0[i];
    const float r1 = a1[i / 9];
    y[i] = f_mul(r0, r1);
}

extern \"C\" __global__ void __launch_bounds__(256) move_2(const float* a0, float* y) {
    const int i = element();
    if (144 <= i) return;
    y[i] = a0[(i % 16) * 9 + i / 16];
}

extern \"C\" __global__ void __launch_bounds__(256) softmax_3(const float* a0, float* y) {
    softmax<16, 1, false>(a0, y);
}

"
    );
    let launches = compiled.plan.steps.iter().map(|step| {
        let Launch { entry, grid, block, .. } = launch(&step.code);
        format!("{entry} {grid:?} {block:?}")
    });
    assert_eq!(
        launches.collect::<Vec<_>>(),
        [
            "conv_0 [1, 1, 1] [256, 1, 1]",
            "pointwise_1 [1, 1, 1] [256, 1, 1]",
            "move_2 [1, 1, 1] [256, 1, 1]",
            "softmax_3 [9, 1, 1] [256, 1, 1]",
        ]
    );
}

/// One kernel of each kind, in `f32`, in halves and rounded for tensor cores, with its launches.
#[test]
fn kernels_of_every_kind_read_so() {
    let (cases, _) = cases();
    let mut text = String::new();
    for target in [target(DType::F32), target(DType::F16), target(DType::F32).rounding()] {
        let graphs = match lower::Target::dtype(&target) {
            DType::F32 => cases.clone(),
            dtype => half_cases(&cases, dtype),
        };
        let mut kinds = std::collections::BTreeSet::new();
        // Rounding is for products and convolutions; the other kinds are those of `f32`.
        let rounds = lower::Target::name(&target).ends_with("+tf32");
        for (name, graph) in graphs {
            let mut compiled = compiled_for(graph, &target).expect("there are kernels").1;
            let is_told = |kernel: &str| !rounds || ["cuda_conv", "cuda_product"].contains(&kernel);
            let mut is_new = |kernel: &str| is_told(kernel) && kinds.insert(kernel.to_string());
            let new: Vec<bool> = compiled.plan.steps.iter().map(|step| is_new(&step.kernel)).collect();
            let source = assemble([&mut compiled.plan]);
            for (step, _) in compiled.plan.steps.iter().zip(new).filter(|(_, new)| *new) {
                let Launch { entry, grid, block, repeat } = launch(&step.code);
                let repeat = repeat.map(|repeat| format!(", {repeat} times")).unwrap_or_default();
                let head = format!(
                    "// {}, {name}: {} on {grid:?} x {block:?}{repeat}",
                    lower::Target::name(&target),
                    step.label
                );
                text.push_str(&format!("{head}\n{}\n}}\n\n", body(&source, &entry).trim_start()));
            }
        }
        assert!(if rounds { 2 } else { 10 } <= kinds.len(), "{kinds:?}");
    }
    insta::assert_snapshot!(text);
}

/// Pooling, which has no kernel for bytes.
fn maximum() -> Op {
    ir::ops::Pool {
        kind: ir::ops::PoolKind::Max,
        kernel: [2, 2].into_iter().collect(),
        stride: [2, 2].into_iter().collect(),
        dilation: [1, 1].into_iter().collect(),
        pad: [[0, 0]; 2].into_iter().collect(),
        ceil: false,
    }
    .into()
}

/// What is emitted where values between kernels are halves.
#[test]
fn emitted_kernels_of_halves_read_so() {
    let mut graph = Graph::new("halves");
    let x = graph.add_input("x", DType::F32, types::Shape::from([1, 8, 6, 5]));
    let mut known = |name: &str, shape: &[usize]| {
        graph.add_weight(name, Tensor::from_fn(types::Shape::from(shape), |ix| ix as f32 * 0.25))
    };
    let (first, bias, last) = (known("first", &[16, 8, 3, 3]), known("bias", &[16]), known("last", &[16, 3]));
    let mut add = |op: Op, inputs: &[ValueId], name: &str| {
        graph.add1(op, inputs, types::Scope::new(name)).expect("it is accepted")
    };
    let conv = ir::ops::Conv { epilogue: ir::ops::Epilogue::bias(true), ..ir::ops::Conv::square(2, 1) };
    let sum = add(conv.into(), &[x, first, bias], "conv");
    let pooled = add(maximum(), &[sum], "pool");
    let rows = add(ir::ops::Reshape { shape: types::Shape::from([1, 16]) }.into(), &[pooled], "rows");
    let y = add(ir::ops::MatMul::default().into(), &[rows, last], "y");
    graph.set_outputs(vec![("y".into(), y)]);
    let (_, mut compiled) = compiled_as(graph, DType::Bf16).expect("there are kernels");
    let source = assemble([&mut compiled.plan]);
    let start = source.text.find("extern \"C\"").expect("there is a function");
    assert_eq!(
        &source.text[start..],
        "\
extern \"C\" __global__ void __launch_bounds__(256) pointwise_0(const float* a0, bf16* y) {
    const int i = element();
    if (240 <= i) return;
    const float r0 = a0[i];
    y[i] = (bf16)r0;
}

extern \"C\" __global__ void __launch_bounds__(256, 2) conv_1(const bf16* a0, const bf16* a1, const float* a2, bf16* y) {
    const auto finish = [=](float v, int channel, size_t at) {
        v += a2[channel];
        return v;
    };
    convolve_by_cores<bf16, Window<6, 5, 3, 3, 3, 3, 2, 2, 1, 1, 1, 1>, 2, 2, 8, 16, 1, 1, 16, 2>(a0, a1, y, finish);
}

extern \"C\" __global__ void __launch_bounds__(256) pool_2(const bf16* a0, bf16* y) {
    pool_max<Window<3, 3, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0>, 16, 1>(a0, y);
}

extern \"C\" __global__ void __launch_bounds__(256, 2) product_3(const bf16* a0, const bf16* a1, float* y) {
    const auto finish = [=](float v, int channel, size_t at) {
        return v;
    };
    const int i = blockIdx.z;
    const bf16* a = a0 + (0);
    const bf16* b = a1 + (0);
    const auto left = [=](int row, int k) { return a + row * 16 + k; };
    const auto right = [=](int k, int column) { return b + k * 3 + column; };
    const auto store = [=](int row, int column, float sum) {
        const size_t at = ((size_t)i * 1 + row) * 3 + column;
        y[at] = finish(sum, column, at);
    };
    product_by_cores<bf16, 2, 2, 1, 3, 16, 1, 16, 2>(0, left, right, store);
}

"
    );
}

/// Halves are multiplied by tensor cores, in large tiles where there are many of them.
#[test]
fn products_of_halves_are_cut_into_tiles() {
    let cases = large();
    let kinds = [("f16", DType::F16), ("bf16", DType::Bf16)];
    for (name, dtype) in kinds {
        let mut plans: Vec<Compiled> =
            cases.iter().map(|case| compiled_as(case.graph.clone(), dtype).expect("there are kernels").1).collect();
        let source = assemble(plans.iter_mut().map(|compiled| &mut compiled.plan));
        let product = format!("product_by_cores<{name}, 4, 4, 1030, 1029, 37, 1, 2, 2>(0, left, right, store)");
        assert!(source.text.contains(&product), "{}", source.text);
        let window = "Window<63, 66, 63, 66, 3, 3, 1, 1, 1, 1, 1, 1>";
        let conv = format!("convolve_by_cores<{name}, {window}, 4, 4, 5, 261, 1, 1, 2, 2>(a0, a1, y, finish)");
        assert!(source.text.contains(&conv), "{}", source.text);
        let grids: Vec<[u32; 3]> = plans
            .iter()
            .map(|compiled| launch(&compiled.plan.steps.last().expect("there are steps").code).grid)
            .collect();
        assert_eq!(grids, [[9, 9, 1], [33, 3, 1]]);
    }
    // What is f32 is multiplied as such.
    let mut plan = compiled(cases[0].graph.clone()).expect("there are kernels").plan;
    let text = assemble([&mut plan]).text;
    assert!(text.contains("product<1030, 1029, 37, 1>(0, left, right, store)") && !text.contains("mma.sync"), "{text}");
}

/// Products and convolutions of few tiles and many terms, behind something that is wide.
fn deep_products() -> Vec<(String, Graph)> {
    let known = |graph: &mut Graph, shape: &[usize]| {
        let item = |ix: usize| ((ix * 29) % 31) as f32 * 0.06 - 0.9;
        graph.add_weight("weight", Tensor::from_fn(types::Shape::from(shape), item))
    };
    let vector = |graph: &mut Graph, extent: usize| {
        graph.add_weight("bias", Tensor::from_fn(types::Shape::from([extent]), |ix| ix as f32 * 0.125))
    };
    let begun = || {
        let mut graph = Graph::new("deep");
        let wide = graph.add_input("wide", DType::F32, types::Shape::from([1 << 18]));
        let kind = ir::ops::ReduceKind::Max;
        let reduce = ir::ops::Reduce { kind, axes: [0].into_iter().collect(), keep: true };
        let most = graph.add1(reduce.into(), &[wide], types::Scope::new("most")).expect("it is accepted");
        (graph, ("most".to_string(), most))
    };
    let mut graphs = Vec::new();
    for (batch, [rows, terms, columns]) in
        [(1, [3, 1000, 70]), (3, [65, 257, 9]), (1, [1, 4099, 5]), (2, [70, 640, 66]), (1, [64, 128, 64])]
    {
        let (mut graph, most) = begun();
        let x = graph.add_input("x", DType::F32, types::Shape::from([batch, rows, terms]));
        let shapes: [&[usize]; 2] = [&[terms, columns], &[batch, terms, columns]];
        let (weight, bias) = (known(&mut graph, shapes[usize::from(1 < batch)]), vector(&mut graph, columns));
        // What is wide comes first.
        let x = graph.add1(ir::ops::Binary(types::pointwise::Binary::Mul).into(), &[x, most.1], types::Scope::new("x"));
        let x = x.expect("it is accepted");
        let residual = graph.add_input("residual", DType::F32, types::Shape::from([batch, rows, columns]));
        let epilogue = ir::ops::Epilogue { residual: true, ..ir::ops::Epilogue::bias(true) };
        let product = ir::ops::MatMul { epilogue, ..Default::default() };
        let y = graph.add1(product.into(), &[x, weight, bias, residual], types::Scope::new("deep"));
        graph.set_outputs(vec![most, ("y".into(), y.expect("it is accepted"))]);
        graphs.push((format!("{batch} of {rows}x{terms}x{columns}"), graph));
    }
    for (groups, [ins, outs, size]) in [(1, [96, 40, 7]), (2, [64, 16, 5]), (1, [130, 8, 3])] {
        let (mut graph, most) = begun();
        let x = graph.add_input("x", DType::F32, types::Shape::from([2, ins * groups, size, size]));
        let (weight, bias) = (known(&mut graph, &[outs * groups, ins, 3, 3]), vector(&mut graph, outs * groups));
        let epilogue = ir::ops::Epilogue::bias(true);
        let conv = ir::ops::Conv { groups, epilogue, ..ir::ops::Conv::square(1, 1) };
        let y = graph.add1(conv.into(), &[x, weight, bias], types::Scope::new("deep")).expect("it is accepted");
        graph.set_outputs(vec![most, ("y".into(), y)]);
        graphs.push((format!("{groups} groups of {ins} to {outs}, {size} x {size}"), graph));
    }
    graphs
}

/// Where there are few tiles, terms are cut into parts: all numbers have the results that they have without, in workspace that
/// is planned and makes the arena no larger.
#[test]
fn terms_of_few_tiles_are_cut_into_parts() {
    let test = "cuda::terms_of_few_tiles_are_cut_into_parts";
    let graphs = deep_products();
    let planned = |graph: &Graph, numbers: &CudaTarget| {
        let mut plan = compiled_for(graph.clone(), numbers).expect("there are kernels").1.plan;
        assemble([&mut plan]);
        let deep = |step: &&plan::Step| ["cuda_product", "cuda_conv"].contains(&&step.kernel[..]);
        let step = plan.steps.iter().find(deep).expect("there is one").clone();
        (plan, launch(&step.code), step.workspace.map(|workspace| workspace.size.0))
    };
    for (name, numbers, step) in [
        ("f32", target(DType::F32), 0.0),
        ("tf32", target(DType::F32).rounding(), 1.0 / 1024.0),
        ("f16", target(DType::F16), 1.0 / 1024.0),
        ("bf16", target(DType::Bf16), 1.0 / 128.0),
    ] {
        let mut cut = 0;
        for (which, graph) in &graphs {
            let (plan, Launch { grid, repeat, .. }, workspace) = planned(graph, &numbers);
            assert!(grid.iter().product::<u32>() <= 128, "{which}: {grid:?}");
            assert_eq!(repeat.is_some(), workspace.is_some(), "{which}");
            if let (Some(repeat), Some(workspace)) = (repeat, workspace) {
                // A sum for each result and part, of which there are three at least.
                let sums = 4 * graph.ty(graph.outputs()[1].value).shape.elements() as u64;
                assert!(repeat == 2 && workspace.is_multiple_of(sums) && 3 * sums <= workspace, "{which}");
                cut += 1;
            }
            // What is wide takes the most, before parts are there.
            let wide = |buffer: &plan::Buffer| buffer.size.0 == 1 << 20;
            let last = plan.buffers.iter().find(|buffer| wide(buffer)).expect("it is there").last_step;
            assert!(plan.arena.peak_step <= last, "{which}: the arena is largest at {}", plan.arena.peak_step);
        }
        assert!(6 <= cut, "{name}: {cut}");
        let given: Vec<Vec<Tensor>> = graphs.iter().map(|(_, graph)| inputs(graph, 3)).collect();
        let Some(runs) = run_given(test, &format!("cuda-parts-{name}"), &graphs, given, &numbers, &SANITIZERS) else {
            return;
        };
        for ((which, _), Run { given, got, rounded }) in graphs.iter().zip(&runs) {
            let want = evaluate(rounded, given).expect("the graph verifies");
            let largest = want[1].to_f64().into_iter().fold(0.0f64, |a, b| a.max(b.abs()));
            let apart = difference(&got[1], &want[1], 4e-5 + step, (4e-5 + step) * largest);
            assert_eq!(apart, None, "{name}: {which}");
        }
    }
    // Where the most is alive at the product itself, there is nothing to spare.
    let mut graph = Graph::new("alone");
    let x = graph.add_input("x", DType::F32, types::Shape::from([3, 1000]));
    let weight = graph.add_weight("weight", Tensor::from_fn(types::Shape::from([1000, 70]), |_| 0.5f32));
    let y = graph.add1(ir::ops::MatMul::default().into(), &[x, weight], types::Scope::new("alone"));
    graph.set_outputs(vec![("y".into(), y.expect("it is accepted"))]);
    let (_, Launch { repeat, .. }, workspace) = planned(&graph, &target(DType::F32));
    assert_eq!((repeat, workspace), (None, None));
}

/// A grid has 65535 blocks along its second and third axis. Convolutions that would take more are computed output by output.
#[test]
fn no_grid_is_larger_than_a_gpu_takes() {
    let conv = |batch: usize, outs: usize| -> (String, [u32; 3]) {
        let mut graph = Graph::new("wide");
        let x = graph.add_input("x", DType::F32, types::Shape::from([batch, 1, 1, 1]));
        let weight = graph.add_weight("weight", Tensor::from_fn(types::Shape::from([outs, 1, 1, 1]), |_| 0.5f32));
        let y = graph.add1(ir::ops::Conv::square(1, 0).into(), &[x, weight], types::Scope::new("wide"));
        graph.set_outputs(vec![("y".into(), y.expect("it is accepted"))]);
        let mut plan = compiled(graph).expect("there are kernels").plan;
        let text = assemble([&mut plan]).text;
        assert!(text.contains("convolve"), "{text}");
        let Launch { entry, grid, .. } = launch(&plan.steps.last().expect("there are steps").code);
        (entry, grid)
    };
    const MAX: usize = 65_535;
    assert_eq!(conv(1, 64 * MAX), ("conv_0".into(), [1, MAX as u32, 1]));
    assert_eq!(conv(1, 64 * MAX + 1), ("conv_each_0".into(), [(64 * MAX as u32 + 1).div_ceil(256), 1, 1]));
    assert_eq!(conv(MAX, 8), ("conv_0".into(), [1, 1, MAX as u32]));
    assert_eq!(conv(MAX + 1, 8), ("conv_each_0".into(), [(8 * (MAX as u32 + 1)).div_ceil(256), 1, 1]));
}

#[test]
fn refusals_name_what_is_missing() {
    let mut graph = Graph::new("bytes");
    let x = graph.add_input("x", DType::U8, types::Shape::from([1, 1, 4, 4]));
    let y = graph.add1(maximum(), &[x], types::Scope::new("stage/pool")).expect("it is accepted");
    graph.set_outputs(vec![("y".into(), y)]);
    let error = compiled(graph).expect_err("there is no such kernel").to_string();
    assert!(error.contains("stage/pool") && error.contains("cuda:sm_90") && error.contains("u8"), "{error}");
    assert!(CudaTarget::named("cuda:sm_70").is_none());

    // All that is missing in one list.
    let mut graph = Graph::new("two");
    let inputs = ["a", "b"].map(|name| graph.add_input(name, DType::U8, types::Shape::from([1, 1, 4, 4])));
    let outputs = [("first", inputs[0]), ("second", inputs[1])].map(|(name, x)| {
        let y = graph.add1(maximum(), &[x], types::Scope::new(name));
        (name.to_string(), y.expect("it is accepted"))
    });
    graph.set_outputs(outputs.to_vec());
    let error = compiled(graph).expect_err("there is no such kernel").to_string();
    assert!(error.contains("first") && error.contains("second") && error.contains("2 nodes"), "{error}");
}
