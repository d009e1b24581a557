//! Executables for a GPU on the driver's mock (`cuda/mock/cpp/driver.cpp`), which runs the shim's kernels and injects
//! faults.

mod baselines;
mod choice;
pub(crate) mod cublas;
pub(crate) mod cudnn;
mod cupti;
mod daemon;
mod description;
mod failures;
mod networks;
mod nvml;
mod operators;
mod peaks;
mod runs;
mod session;
mod shared;
mod tools;
mod training;
mod tune;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::rc::Rc;
use std::sync::OnceLock;

use cases::judge::{inputs, step};
use compiler::{Model, Program, compile, write_executable};
use cuda::cudnn::Planner;
use cuda::{DeviceDescription, Launch, LibraryPaths, MathMode, STAGING_CHUNK_BYTES, StepCode};
use cuda_mock::{BuildError, Compiler, Library};
use ir::Graph;
use ir::ops::Recurrent;
use lower::cuda::{KernelOrigin, assemble};
use plan::{DeviceCode, Operand, Place, Plan};
use types::recurrent::{Cell, Direction, Reset};
use types::{Bytes, DType, Tensor};
use weights::npy;

use self::cudnn::{by_cudnn, convolutions};
use crate::executables::{folder, program, text};
use crate::half_precision::assert_near;
use crate::support::{root, skip};

/// The device description of an H200.
pub(crate) const H200: &str = include_str!("../../../../targets/cuda-sm_90-h200.json");

/// An executable for a GPU, and the folder with its driver's mock.
pub(crate) struct Mocked {
    pub(crate) exe: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) plan: Plan,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) graph: Graph,
}

/// Options of the compilation, and the stand-in for machine code.
pub(crate) struct How {
    pub(crate) code: Option<Vec<u8>>,
    /// With convolutions by cuDNN's mock.
    pub(crate) cudnn: Option<MathMode>,
    /// With products by cuBLASLt's mock, and the workspace of each.
    pub(crate) cublas: Option<(MathMode, Bytes)>,
    pub(crate) dtype: DType,
    /// Emitted kernels round operands for tensor cores.
    pub(crate) rounds: bool,
    /// Memory budget, in percent of the arena without a budget.
    pub(crate) budget: Option<u64>,
    /// Which kernel is taken where a library and an emitted one can compute a layer.
    pub(crate) origin: KernelOrigin,
}

impl Default for How {
    fn default() -> How {
        How {
            code: Some(b"code".to_vec()),
            cudnn: None,
            cublas: None,
            dtype: DType::F32,
            rounds: false,
            budget: None,
            origin: KernelOrigin::Faster,
        }
    }
}

impl Mocked {
    /// Compiles a graph and builds a driver's mock with its kernels. Returns `None` after reporting that `test` is
    /// skipped.
    pub(crate) fn new(test: &str, name: &str, graph: Graph, how: How) -> Option<Mocked> {
        let (folder, How { code, cudnn, cublas, dtype, rounds, budget, origin }) = (folder(name), how);
        let mut target = crate::cuda::target(dtype).taking(origin);
        if rounds {
            target = target.rounding();
        }
        if let Some(math) = cudnn {
            if !build_cudnn(&folder) {
                skip(test, NO_COMPILER);
                return None;
            }
            let places = LibraryPaths { folders: vec![folder.clone()], ..LibraryPaths::default() };
            let facts = DeviceDescription::parse(H200).expect("it is whole");
            let planner = Planner::new(&places, &facts.device, math).expect("it takes the facts");
            target = target.with_cudnn(Rc::new(planner));
        }
        if let Some((math, workspace)) = cublas {
            if !build_mock(Library::Cublaslt, &folder) {
                skip(test, NO_COMPILER);
                return None;
            }
            target = target.with_cublas(math, Some(workspace));
        }
        let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
        let mut compiled =
            compile(model.clone(), &target, compiler::Goal::default(), |_, _| {}).expect("it has kernels");
        if let Some(percent) = budget {
            let budget = Bytes(compiled.plan.arena.size().0 * percent / 100);
            compiled = compile(model, &target, compiler::Goal::within(budget), |_, _| {})
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(compiled.plan.arena.size() <= budget && compiled.fit.is_some(), "{name}");
        }
        let source = assemble([&mut compiled.plan]);
        compiled.plan.modules.extend(code.map(|code| DeviceCode { arch: "sm_90".into(), code }));
        let kernels = folder.join("kernels.inc");
        std::fs::write(&kernels, source.for_shim()).expect("the folder is ours");
        if !build_driver(&folder, &kernels) {
            skip(test, NO_COMPILER);
            return None;
        }
        let (exe, plan) = (folder.join("model"), compiled.plan.clone());
        let runner = std::fs::read(program("prestow-runner")).expect("it is built");
        write_executable(&exe, &runner, &mut Program::join(vec![compiled]), |_| {}).expect("the folder is ours");
        closed(&exe);
        let inputs = inputs(&graph, 3);
        for (port, tensor) in plan.inputs.iter().zip(&inputs) {
            std::fs::write(folder.join(format!("in-{}.npy", port.name)), npy::write(tensor))
                .expect("the folder is ours");
        }
        Some(Mocked { exe, folder, plan, inputs, graph })
    }

    /// Rebuilds the mocks under sanitizers. Returns the sanitizer's library, which a process must load before them.
    fn sanitized(&self) -> Option<String> {
        let compiler = compiler().as_ref().expect("it built them before");
        let kernels = self.folder.join("kernels.inc");
        for library in [Library::Driver, Library::Cudnn, Library::Cublaslt] {
            // This process may have loaded the old file, so it is not overwritten.
            if std::fs::remove_file(self.folder.join(library.file_name())).is_err() {
                continue;
            }
            let path = compiler.mock(library, &self.folder, Some(&kernels), &crate::cuda::SANITIZERS);
            path.unwrap_or_else(|error| panic!("{error}"));
        }
        Some(compiler.library_path("libasan.so")?.display().to_string())
    }

    pub(crate) fn run(&self, variables: &[(&str, &str)]) -> Output {
        let mut command = without_libraries(&self.exe);
        command.arg("run").arg("--output-dir").arg(&self.folder);
        for port in &self.plan.inputs {
            let file = self.folder.join(format!("in-{}.npy", port.name));
            command.arg("--input").arg(format!("{}={}", port.name, file.display()));
        }
        command.env("LD_LIBRARY_PATH", &self.folder).env("PRESTOW_MOCK_TRACE", self.folder.join("trace"));
        command.envs(variables.iter().copied()).output().expect("it is there")
    }

    pub(crate) fn trace(&self) -> String {
        std::fs::read_to_string(self.folder.join("trace")).expect("the driver writes it")
    }

    pub(crate) fn outputs(&self) -> Vec<Tensor> {
        let file = |name: &str| std::fs::read(self.folder.join(format!("{name}.npy"))).expect("results are written");
        self.plan.outputs.iter().map(|port| npy::read(&file(&port.name)).expect("it is an npy file")).collect()
    }
}

/// Waits until a new executable can run: a child process that another test forked meanwhile holds the file open for
/// writing until its `exec`.
pub(crate) fn closed(exe: &Path) {
    let is_busy = || {
        let error = without_libraries(exe).arg("describe").output().err();
        error.is_some_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy)
    };
    (0..1000).take_while(|_| is_busy()).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(5)));
}

/// A command whose environment leads to no library of NVIDIA's.
pub(crate) fn without_libraries(program: &Path) -> Command {
    let mut command = Command::new(program);
    for variable in ["PRESTOW_CUDA_LIBS", "CUDA_HOME", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        command.env_remove(variable);
    }
    command.env("PYTHONUSERBASE", "/nowhere").env("PATH", "/nowhere");
    command
}

/// Returns true if the system's Python has libraries of NVIDIA's, after reporting that the part of `test` without
/// libraries is skipped.
pub(crate) fn system_has_wheels(test: &str) -> bool {
    let found = LibraryPaths::of(|_| None).site.iter().any(|root| root.join("nvidia").is_dir());
    if found {
        skip(test, "the system's Python has libraries of NVIDIA's");
    }
    found
}

/// Reason for skipping a test that builds C++.
pub(crate) const NO_COMPILER: &str = "no C++ compiler is installed";

fn compiler() -> &'static Result<Compiler, BuildError> {
    static COMPILER: OnceLock<Result<Compiler, BuildError>> = OnceLock::new();
    COMPILER.get_or_init(|| Compiler::find(&folder("mock-objects")))
}

/// Calls the C++ compiler. Returns false without one, and panics if it rejects the source.
pub(crate) fn build(with: impl FnOnce(&Compiler) -> Result<(), BuildError>) -> bool {
    match compiler().as_ref().map_err(Clone::clone).and_then(with) {
        Ok(()) => true,
        Err(BuildError::NoCompiler) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Builds the mock of a library. Returns false if there is no compiler.
pub(crate) fn build_mock(library: Library, folder: &Path) -> bool {
    build(|compiler| compiler.mock(library, folder, None, &[]).map(drop))
}

/// Builds the driver's mock with kernels. Returns false if there is no compiler.
pub(crate) fn build_driver(folder: &Path, kernels: &Path) -> bool {
    build(|compiler| compiler.mock(Library::Driver, folder, Some(kernels), &[]).map(drop))
}

/// Builds a library without functions. Returns false if there is no compiler.
pub(crate) fn build_empty(library: &Path) -> bool {
    build(|compiler| compiler.shared(Path::new("/dev/null"), library, &[]))
}

/// Builds the mock of cuDNN, and of cuBLASLt, which cuDNN loads. Returns false if there is no compiler.
pub(crate) fn build_cudnn(folder: &Path) -> bool {
    build_mock(Library::Cudnn, folder) && build_mock(Library::Cublaslt, folder)
}

/// Options with cuDNN's mock.
pub(crate) fn with_cudnn(code: Option<Vec<u8>>) -> How {
    How { code, cudnn: Some(MathMode::Strict), ..How::default() }
}

/// The trace of the upload: constants alternate between two chunks of pinned memory, which is freed at once afterwards.
fn staged(size: u64, at: u64) -> Vec<String> {
    let half = STAGING_CHUNK_BYTES as u64;
    let copy = |part: u64| {
        let start = part * half;
        format!("stage {} from {} at {}", half.min(size - start), part % 2 * half, at + start)
    };
    if size == 0 {
        return Vec::new();
    }
    let copies = (0..size.div_ceil(half)).map(copy);
    [format!("pin {}", size.min(2 * half))].into_iter().chain(copies).chain(["unpin".to_string()]).collect()
}

/// The mock's trace that a plan implies.
pub(crate) fn expected_trace(plan: &Plan) -> String {
    let constants_at = plan.arena.size().align_up(Bytes(256));
    let place = |operand: &Operand| match operand.place {
        Place::Buffer(_) => plan.arena_range(operand).expect("it lies in the arena").start,
        Place::Constant(ix) => (constants_at + plan.constants[ix.0 as usize].offset + operand.offset).0,
    };
    let works: Vec<StepCode> =
        plan.steps.iter().map(|step| StepCode::from_code(&step.code).expect("it is whole")).collect();
    let lines_of = |(step, work): (&plan::Step, &StepCode)| -> Vec<String> {
        let operands = step.inputs.iter().chain(&step.outputs).chain(&step.workspace);
        let places: Vec<String> = operands.map(|operand| place(operand).to_string()).collect();
        match work {
            StepCode::Launch(Launch { entry, grid: [x, y, z], block, repeat, .. }) => {
                let line = format!("{entry} {x} {y} {z} of {} {}", block[0], places.join(" "));
                match repeat {
                    Some(repeat) => (0..*repeat).map(|turn| format!("{line} turn {turn}")).collect(),
                    None => vec![line],
                }
            }
            StepCode::Cudnn(_) => vec![format!("cudnn {}", places.join(" "))],
            StepCode::Cublas(_) => vec![format!("cublaslt {}", places.join(" "))],
        }
    };
    let mut lines = vec![format!("alloc {}", (constants_at + plan.constants_size).0)];
    lines.extend(staged(plan.constants_size.0, constants_at.0));
    // Memory of a library's handle.
    let has = |is: fn(&StepCode) -> bool| works.iter().any(is);
    lines.extend(has(|work| matches!(work, StepCode::Cudnn(_))).then(|| format!("alloc {}", 1 << 20)));
    lines.extend(has(|work| matches!(work, StepCode::Cublas(_))).then(|| format!("alloc {}", 1 << 16)));
    // Each step of a library runs once before the capture.
    let libraries = plan.steps.iter().zip(&works).filter(|(_, work)| !matches!(work, StepCode::Launch(_)));
    lines.extend(libraries.flat_map(lines_of));
    let steps = || plan.steps.iter().zip(&works).flat_map(lines_of);
    lines.push(format!("record of {}", steps().count()));
    let run = || ["launch".to_string()].into_iter().chain(steps());
    // One run at opening, then one on the inputs.
    lines.extend(run());
    for port in &plan.inputs {
        lines.push(format!("write {} at {}", port.operand.size.0, place(&port.operand)));
    }
    lines.extend(run());
    for port in &plan.outputs {
        lines.push(format!("read {} at {}", port.operand.size.0, place(&port.operand)));
    }
    lines.join("\n") + "\n"
}

pub(crate) fn network(name: &str, shape: &[usize]) -> Graph {
    let shapes = [("input".to_string(), types::Shape::from(shape))].into_iter().collect();
    let request = compiler::source::Request { model: name.into(), shapes, ..Default::default() };
    compiler::source::load(&request).unwrap_or_else(|error| panic!("{name}: {error}")).graph
}
