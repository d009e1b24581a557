//! Compiling for a GPU with missing or invalid tools: each error names the cause, and nothing is written. Also the
//! function tables of libraries that lack functions.

use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_mock::Library;
use ir::Graph;
use types::{DType, Scope, Shape};

use crate::executables::{folder, program, text};
use crate::gpu::{H200, NO_COMPILER, build, build_cudnn, build_mock, system_has_wheels, without_libraries};
use crate::support::skip;

/// Creates a folder with mocks of NVRTC, cuDNN and cuBLASLt. Returns `None` after reporting that `test` is skipped.
fn tools(test: &str, name: &str) -> Option<PathBuf> {
    let folder = folder(name);
    if !build_mock(Library::Nvrtc, &folder) || !build_cudnn(&folder) {
        skip(test, NO_COMPILER);
        return None;
    }
    Some(folder)
}

/// Runs `compile` with the libraries in a folder.
struct Compile<'a> {
    libraries: &'a Path,
    out: PathBuf,
}

impl Compile<'_> {
    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
        let mut command = without_libraries(&program("prestow"));
        command
            .arg("compile")
            .args(words)
            .arg("-o")
            .arg(self.out.join("model"))
            .env("PRESTOW_CUDA_LIBS", self.libraries);
        command.arg("--data").arg(self.libraries.join("nothing")).envs(variables.iter().copied());
        let out = command.output().expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    }

    fn written(&self) -> usize {
        std::fs::read_dir(&self.out).expect("the folder is ours").count()
    }

    /// The command fails with a message that contains all of `parts`, and writes nothing.
    fn refused(&self, words: &[&str], variables: &[(&str, &str)], parts: &[&str]) {
        let (code, said) = self.run(words, variables);
        assert_eq!(code, Some(2), "{words:?} {variables:?}: {said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{words:?} {variables:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        assert_eq!(self.written(), 0, "{words:?} {variables:?}: something is written");
    }
}

#[test]
fn missing_tools_are_named_at_compile_time() {
    let test = "gpu::tools::missing_tools_are_named_at_compile_time";
    let Some(tools) = tools(test, "gpu-tools") else { return };
    let compile = Compile { libraries: &tools, out: folder("gpu-tools-out") };
    let gpu = ["lenet", "--target", "cuda:sm_90"];
    let dump = compile.out.join("dump");
    let dump = dump.to_str().expect("it is text");

    // NVRTC: missing, too old, without the architecture, and failing at each of its calls.
    let nowhere = Compile { libraries: Path::new("/nowhere"), out: compile.out.clone() };
    if nowhere.run(&gpu, &[]).0 == Some(0) {
        skip(test, "the system has a compiler of NVIDIA's");
    } else {
        let says = ["cannot find libnvrtc.so in /nowhere", "fetch --nvrtc", "PRESTOW_CUDA_LIBS"];
        nowhere.refused(&[&gpu[..], &["--dump-ir", dump]].concat(), &[], &says);
    }
    let old = [("PRESTOW_MOCK_NVRTC_VERSION", "1108")];
    compile.refused(&gpu, &old, &["NVRTC must be 12.0 or later", "got 11.8", "fetch --nvrtc"]);
    let archs = [("PRESTOW_MOCK_NVRTC_ARCHS", "80,90")];
    compile.refused(
        &["lenet", "--target", "cuda:sm_120"],
        &archs,
        &["NVRTC 13.0 must support sm_120, it supports sm_80, sm_90", "install a newer version"],
    );
    compile.refused(&["lenet", "--target", "cuda:sm_70"], &[], &["got `cuda:sm_70`", "cuda:sm_80"]);
    for call in [
        "nvrtcVersion",
        "nvrtcGetNumSupportedArchs",
        "nvrtcGetSupportedArchs",
        "nvrtcCreateProgram",
        "nvrtcGetCUBINSize",
        "nvrtcGetCUBIN",
    ] {
        compile.refused(&gpu, &[("PRESTOW_MOCK_FAIL", &format!("{call}:1:11"))], &["NVRTC: "]);
    }
    let broken = [("PRESTOW_MOCK_FAIL", "nvrtcCompileProgram:1:6")];
    compile.refused(&gpu, &broken, &["the emitted kernels do not compile", "the mock was told to fail"]);

    // A device description without a property, with an architecture that contradicts the rest, and a missing file.
    let facts = tools.join("facts.json");
    let path = facts.to_str().expect("it is text");
    let with = |from: &str, to: &str| std::fs::write(&facts, H200.replacen(from, to, 1)).expect("the folder is ours");
    with("\"maxCtasPerSM\"", "\"other\"");
    compile.refused(&["lenet", "--target", path], &[], &["facts.json", "missing field `maxCtasPerSM`"]);
    with("\"sm_90\"", "\"sm_80\"");
    compile.refused(&["lenet", "--target", path], &[], &["`arch` must be `sm_90`", "got `sm_80`"]);
    compile.refused(&["lenet", "--target", "/nowhere.json"], &[], &["/nowhere.json", "target probe"]);

    // cuDNN: too old, and rejecting the device description.
    with("", "");
    let by_cudnn = ["lenet", "--target", path, "--cudnn"];
    compile.refused(
        &by_cudnn,
        &[("PRESTOW_MOCK_CUDNN_VERSION", "90800")],
        &["cuDNN must be 9.11 or later", "got 9.8.0"],
    );
    let failed = [("PRESTOW_MOCK_FAIL", "cudnnBackendFinalize:1:2000")];
    compile.refused(&by_cudnn, &failed, &["cuDNN 9.19.0 rejected the device description", "told to fail"]);
    // Another version than that of the device description: a note is printed, and the executable is written.
    let (code, said) = compile.run(&by_cudnn, &[("PRESTOW_MOCK_CUDNN_VERSION", "92000")]);
    assert!(code == Some(0) && said.contains("needs cuDNN 9.20.0") && said.contains("facts.json has 9.19.0"), "{said}");
    // Convolutions without an engine get emitted kernels, and `--verbose` names them.
    let none = [("PRESTOW_MOCK_CUDNN_ENGINES", "none")];
    let (code, said) = compile.run(&by_cudnn, &none);
    assert!(code == Some(0) && said.contains("does 0 of 2 convolutions") && said.contains("--verbose"), "{said}");
    let (code, said) = compile.run(&[&by_cudnn[..], &["--verbose"]].concat(), &none);
    assert!(code == Some(0) && said.contains("conv1: cuDNN has no engine for it"), "{said}");
    std::fs::remove_file(compile.out.join("model")).expect("it was written");
    std::fs::remove_file(tools.join("libcudnn.so.9")).expect("it was built");
    if !system_has_wheels(test) {
        compile.refused(&by_cudnn, &[], &["cannot find libcudnn.so.9", "fetch --cudnn"]);
    }

    // All operators without a kernel are in one message. Both products have a larger batch than a grid allows.
    let mut graph = Graph::new("many");
    let x = graph.add_input("x", DType::F32, Shape::from([70_000, 2, 2]));
    let y = graph.add_input("y", DType::F32, Shape::from([70_000, 2, 2]));
    let outputs = [("first", [x, y]), ("second", [y, x])].map(|(name, factors)| {
        let y = graph.add1(ir::ops::MatMul::default().into(), &factors, Scope::new(name)).expect("it is accepted");
        (name.to_string(), y)
    });
    graph.set_outputs(outputs.to_vec());
    let file = tools.join("many.onnx");
    std::fs::write(&file, export::onnx(&graph).expect("it can be written")).expect("the folder is ours");
    let words = [file.to_str().expect("it is text"), "--target", "cuda:sm_90"];
    compile.refused(&words, &[], &["2 nodes", "first", "second", "cuda:sm_90"]);
}

/// Planned device memory for an architecture. Figures that differ between GPUs refer to a device description.
#[test]
fn planned_device_memory_is_reported() {
    let test = "gpu::tools::planned_device_memory_is_reported";
    let Some(tools) = tools(test, "gpu-tools-memory") else { return };
    let compile = Compile { libraries: &tools, out: folder("gpu-tools-memory-out") };
    let (code, said) = compile.run(&["lenet", "--target", "cuda:sm_100"], &[]);
    assert!(code == Some(0) && said.contains("  device memory "), "{said}");
    assert!(said.contains("differs between GPUs of sm_100: --target FILE.json"), "{said}");
    let image = runtime::ImageFile::open(&compile.out.join("model")).expect("it is an image");
    assert_eq!(image.plans[0].target, "cuda:sm_100");
    assert_eq!(image.plans[0].modules[0].arch, "sm_100");
    // Workspaces are named after their nodes.
    let (code, _) = compile.run(&["lenet", "--target", "cuda:sm_90", "--cublas"], &[]);
    assert_eq!(code, Some(0));
    let memory = Command::new(compile.out.join("model")).args(["memory", "--json"]).output().expect("it is there");
    assert!(text(&memory.stdout).contains(":workspace"), "{}", text(&memory.stdout));
}

/// A function that a library lacks is an error in its table, not a panic.
#[test]
fn missing_functions_are_errors_in_their_table() {
    let test = "gpu::tools::missing_functions_are_errors_in_their_table";
    let folder = folder("gpu-tables");
    let source = folder.join("one.cpp");
    let one = "extern \"C\" __attribute__((visibility(\"default\"))) int ncclGetVersion(int* version) { return *version = 22809, 0; }\n";
    std::fs::write(&source, one).expect("the folder is ours");
    let library = folder.join("libone.so");
    if !build(|compiler| compiler.shared(&source, &library, &[])) {
        return skip(test, NO_COMPILER);
    }
    // Functions of each table that are called, and those of NCCL that a group of devices needs.
    macro_rules! lacks {
        ($table:ty: $($function:ident)*) => {{
            #[expect(unsafe_code, reason = "the library is ours")]
            // SAFETY: the library is ours, and runs nothing when it is loaded.
            let table = unsafe { <$table>::new(&library) }.expect("it is a library");
            $(assert!(table.$function.is_err(), stringify!($function));)*
            table
        }};
    }
    lacks!(cuda_sys::cublaslt::CublasLt: cublasLtCreate cublasLtGetVersion cublasLtMatmul cublasLtMatmulAlgoGetHeuristic);
    lacks!(cuda_sys::cudnn::Cudnn: cudnnCreate cudnnGetVersion cudnnBackendFinalize cudnnBackendExecute);
    lacks!(cuda_sys::nvml::Nvml: nvmlInit_v2 nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetComputeRunningProcesses_v3);
    lacks!(cuda_sys::cupti::Cupti: cuptiGetVersion cuptiActivityEnable cuptiActivityFlushAll);
    let nccl = lacks!(
        cuda_sys::nccl::Nccl: ncclGetUniqueId ncclCommInitRankConfig ncclCommDestroy ncclGroupStart ncclGroupEnd ncclAllReduce
        ncclAllGather ncclBroadcast ncclReduceScatter ncclSend ncclRecv ncclMemAlloc ncclCommRegister ncclGetErrorString
    );
    let mut version = 0;
    let get = nccl.ncclGetVersion.as_ref().expect("this one is there");
    #[expect(unsafe_code, reason = "the library is ours")]
    // SAFETY: the pointer is to a local integer, which the function may write.
    let status = unsafe { get(&mut version) };
    assert_eq!((status, version), (cuda_sys::nccl::ncclResult_t::ncclSuccess, 22_809));
}
