//! Several executables on one GPU, and the memory that stays on a GPU between runs.

use std::path::{Path, PathBuf};

use compiler::{Model, Program, compile, write_executable};
use lower::cuda::assemble;
use plan::{Operand, Plan};
use types::{Bytes, DType, Tensor};
use weights::npy;

use crate::executables::{program, text};
use crate::gpu::cudnn::convolutions;
use crate::gpu::{How, Mocked, build_driver, closed, network, with_cudnn, without_libraries};
use crate::support::difference;

/// Environment variable for the child process of the next test: the folder of the first executable and the driver's
/// mock.
const SHARED: &str = "PRESTOW_TEST_SHARED";

/// Two executables share a GPU in a child process, because the driver is found when a process starts.
#[test]
fn two_executables_share_a_gpu() {
    let test = "gpu::shared::two_executables_share_a_gpu";
    if let Some(folder) = crate::environment(SHARED) {
        return run_shared(Path::new(&folder));
    }
    let graphs = [crate::pass_results::random_graph(5), network("lenet", &[1, 1, 28, 28])];
    let how = || How { code: Some(b"code".to_vec()), ..How::default() };
    let [first, second] = [(0, "gpu-shared"), (1, "gpu-shared-second")]
        .map(|(ix, name)| Mocked::new(test, name, graphs[ix].clone(), how()));
    let (Some(first), Some(second)) = (first, second) else { return };
    // One driver's mock has the kernels of both.
    let (mut one, mut other) = (first.plan.clone(), second.plan.clone());
    let sizes = [&one, &other].map(|plan| (plan.arena.size().align_up(Bytes(256)) + plan.constants_size).0);
    assert_ne!(sizes[0], sizes[1]);
    let runner = std::fs::read(program("prestow-runner")).expect("it is built");
    let mut programs = [&graphs[0], &graphs[1]].map(|graph| {
        let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
        compile(model, &crate::cuda::target(DType::F32), compiler::Goal::default(), |_, _| {}).expect("it has kernels")
    });
    let [a, b] = &mut programs;
    let source = assemble([&mut a.plan, &mut b.plan]);
    (one.steps, other.steps) = (a.plan.steps.clone(), b.plan.steps.clone());
    for (mocked, mut compiled) in [&first, &second].into_iter().zip(programs) {
        compiled.plan.modules = mocked.plan.modules.clone();
        write_executable(&mocked.exe, &runner, &mut Program::join(vec![compiled]), |_| {}).expect("the folder is ours");
        closed(&mocked.exe);
    }
    let (kernels, library) = (first.folder.join("kernels.inc"), first.folder.join("libcuda.so.1"));
    std::fs::write(&kernels, source.for_shim()).expect("the folder is ours");
    std::fs::remove_file(&library).expect("it was built");
    assert!(build_driver(&first.folder, &kernels), "it was built before");

    let own = std::env::current_exe().expect("it runs");
    let shared = |memory: u64| {
        let mut command = without_libraries(&own);
        command.args([test, "--exact", "--nocapture"]).env(SHARED, &first.folder);
        command.env("LD_LIBRARY_PATH", &first.folder).env("PRESTOW_MOCK_TRACE", first.folder.join("trace"));
        let out = command.env("PRESTOW_MOCK_MEMORY", memory.to_string()).output().expect("it is there");
        (out.status.success(), text(&out.stdout) + &text(&out.stderr))
    };
    // Both fit exactly. With one byte less, the second does not fit into the rest.
    let (done, said) = shared(sizes[0] + sizes[1]);
    assert!(done && said.contains("both ran"), "{said}");
    let trace = first.trace();
    assert!(sizes.iter().all(|size| trace.contains(&format!("alloc {size}\n"))), "{trace}");
    // Each run is one launch of a CUDA graph, in the order of the test, and nothing leaks.
    let launches = |step: &plan::Step| {
        let cuda::Launch { entry, repeat, .. } = crate::cuda::launch(&step.code);
        vec![entry; repeat.unwrap_or(1) as usize]
    };
    let record = |plan: &Plan| plan.steps.iter().map(launches).collect::<Vec<Vec<String>>>();
    let entry = |line: &str| line.split(' ').next().unwrap_or_default().to_string();
    let launched = |run: &str| -> Vec<String> { run.lines().filter(|line| line.contains(" of ")).map(entry).collect() };
    // The capture of the next plan may follow a launch.
    let runs = trace.split("launch\n").skip(1).map(|run| run.split("record of").next().unwrap_or_default());
    let ran: Vec<Vec<String>> = runs.map(launched).collect();
    let (one, other) = (record(&one), record(&other));
    let steps = (0..one.len().max(other.len())).flat_map(|step| [one.get(step), other.get(step)]);
    let in_turn: Vec<String> = other.iter().chain(steps.flatten()).flatten().cloned().collect();
    let (one, other) = (one.concat(), other.concat());
    let want = [&one, &other, &one, &in_turn, &one];
    assert_eq!(
        ran.iter().collect::<Vec<_>>(),
        want,
        "each when it is opened, in turn, by steps in turn, the first alone"
    );
    assert!(!trace.contains("leaked"), "{trace}");
    let (done, said) = shared(sizes[0] + sizes[1] - 1);
    let refused = format!("refused: Mock GPU must have {} free bytes, got {} of", sizes[1], sizes[1] - 1);
    assert!(done && said.contains(&refused) && !said.contains("both ran"), "{said}");
    assert!(!first.trace().contains("leaked"), "{}", first.trace());
}

fn run_shared(folder: &Path) {
    let folders = [folder.to_path_buf(), folder.with_file_name("gpu-shared-second")];
    let open = |folder: &Path| {
        let image = runtime::ImageFile::open(&folder.join("model")).expect("it is an image");
        runtime::open_all(image.plans.clone(), &image, &runtime::CudaDevice::default())
    };
    let read = |path: PathBuf| npy::read(&std::fs::read(path).expect("it was written")).expect("it is an npy file");
    let inputs = |folder: &Path, plan: &Plan| -> Vec<Tensor> {
        plan.inputs.iter().map(|port| read(folder.join(format!("in-{}.npy", port.name)))).collect()
    };
    let mut first = open(&folders[0]).expect("it opens");
    let own = inputs(&folders[0], first.plan());
    let mut second = match open(&folders[1]) {
        Ok(second) => second,
        Err(error) => {
            first.run_tensors(&own).expect("the first runs on");
            return println!("refused: {error}");
        }
    };
    let others = inputs(&folders[1], second.plan());
    let graphs = [crate::pass_results::random_graph(5), network("lenet", &[1, 1, 28, 28])];
    let want =
        [(&graphs[0], &own), (&graphs[1], &others)].map(|(graph, inputs)| ir::evaluate(graph, inputs).expect("ok"));
    let right = |got: &[Tensor], want: &[Tensor]| {
        for (got, want) in got.iter().zip(want) {
            assert_eq!(difference(got, want, 1e-4, 1e-4), None);
        }
    };
    right(&first.run_tensors(&own).expect("it runs"), &want[0]);
    right(&second.run_tensors(&others).expect("it runs"), &want[1]);
    // The steps of both sessions alternate: shared bytes would make a result of one of them wrong.
    for (session, inputs) in [(&mut first, &own), (&mut second, &others)] {
        for (ix, tensor) in inputs.iter().enumerate() {
            session.write_input(ix, &tensor.to_le_bytes()).expect("it takes them");
        }
    }
    for step in 0..first.plan().steps.len().max(second.plan().steps.len()) {
        for session in [&mut first, &mut second] {
            if step < session.plan().steps.len() {
                session.run_step(step).expect("it runs");
            }
        }
    }
    right(&first.outputs().expect("they are read"), &want[0]);
    right(&second.outputs().expect("they are read"), &want[1]);
    drop(second);
    right(&first.run_tensors(&own).expect("it runs on"), &want[0]);
    println!("both ran");
}

/// Environment variable for the child process of the next test: the folder of its executable.
const RESIDENT: &str = "PRESTOW_TEST_RESIDENT";

/// A plan on an external stream with external buffers, in a child process: the driver is found when a process starts.
#[test]
fn plan_runs_on_an_external_stream() {
    let test = "gpu::shared::plan_runs_on_an_external_stream";
    if let Some(folder) = crate::environment(RESIDENT) {
        return run_resident(Path::new(&folder));
    }
    let how = with_cudnn(Some(b"code".to_vec()));
    let Some(mocked) = Mocked::new(test, "gpu-resident", convolutions(), how) else { return };
    let own = std::env::current_exe().expect("it runs");
    let resident = |variables: &[(&str, &str)]| {
        let mut command = without_libraries(&own);
        command.args([test, "--exact", "--nocapture"]).env(RESIDENT, &mocked.folder);
        command.env("LD_LIBRARY_PATH", &mocked.folder).env("PRESTOW_MOCK_TRACE", mocked.folder.join("trace"));
        command.envs(variables.iter().copied()).output().expect("it is there")
    };
    let out = resident(&[]);
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    let want = ir::evaluate(&mocked.graph, &mocked.inputs).expect("it verifies");
    assert_eq!(difference(&mocked.outputs()[0], &want[0], 1e-4, 1e-4), None);
    // The caller's bytes are copied into the arena and out of it on the device, around one launch.
    let (trace, plan) = (mocked.trace(), &mocked.plan);
    let place = |operand: &Operand| plan.arena_range(operand).expect("it lies in the arena").start;
    let (x, y) = (&plan.inputs[0].operand, &plan.outputs[0].operand);
    let taken = format!("copy {} from 0 to {}\nlaunch\n", x.size.0, place(x));
    let given = format!("copy {} from {} to 0\n", y.size.0, place(y));
    assert!(trace.contains(&taken) && trace.contains(&given) && !trace.contains("leaked"), "{trace}");
    // A thread with another GPU's context has that context again after each call and after the end.
    let out = resident(&[("PRESTOW_MOCK_DEVICES", "2")]);
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    let trace = mocked.trace();
    let current = |line: &str| line.strip_prefix("takes up ").map(ToString::to_string);
    let changes: Vec<String> = trace.lines().filter_map(current).collect();
    let whose = [
        ("1", "the thread's own"),
        ("0 1", "what is opened"),
        ("0 1", "a caller's blocks"),
        ("0 1", "a run"),
        ("0 1", "a caller's blocks"),
        ("0 1", "what is opened goes"),
        ("0 1", "the blocks and their GPU go, and the other one"),
    ];
    assert_eq!(changes.join(" "), whose.map(|(context, _)| context).join(" "), "{trace}");
    let out = resident(&[("PRESTOW_MOCK_FAIL", "cuMemcpyDtoDAsync_v2:2:999")]);
    assert!(text(&out.stderr).contains("the GPU failed at copying from the device"), "{}", text(&out.stderr));
}

fn run_resident(folder: &Path) {
    let image = runtime::ImageFile::open(&folder.join("model")).expect("it is an image");
    // With two GPUs, the thread's own context is that of the second.
    let other = cuda::driver::Gpu::open(1).ok();
    let own = || other.iter().for_each(|other| assert!(other.memory().is_ok(), "it takes up its context"));
    let gpu = runtime::CudaDevice::default();
    let mut resident = runtime::StreamSession::open(image.plans.clone(), &image, &gpu).expect("it opens");
    let plan = resident.plan().clone();
    assert!(resident.select(plan.batch) && !resident.select(77));
    // Another owner of the same device, with its own memory.
    let gpu = cuda::driver::Gpu::open(0).expect("it is there");
    let memory = |port: &plan::Port| {
        cuda::driver::DeviceMemory::new(&gpu, port.operand.size.0 as usize).expect("there is room for it")
    };
    let (x, y) = (memory(&plan.inputs[0]), memory(&plan.outputs[0]));
    let bytes = std::fs::read(folder.join("in-x.npy")).expect("it was written");
    x.write(0, &npy::read(&bytes).expect("it is an npy file").to_le_bytes()).expect("it takes them");
    #[expect(unsafe_code, reason = "a caller's handles")]
    // SAFETY: both blocks live until the end of this function, and the driver is the mock: it runs every call at once,
    // and all its streams are the same one, whatever their handle is.
    let (stream, input, short, output) = unsafe {
        let other = |memory: &cuda::driver::DeviceMemory, size| runtime::ExternalBuffer::new(memory.address(0), size);
        let stream = runtime::ExternalStream::new(std::ptr::NonNull::dangling().as_ptr());
        (stream, other(&x, x.size()), other(&x, 4), other(&y, y.size()))
    };
    let refused = |resident: &mut runtime::StreamSession, inputs: &[_], outputs: &[_]| {
        resident.enqueue(stream, inputs, outputs).expect_err("that does not fit").to_string()
    };
    assert!(refused(&mut resident, &[], &[output]).contains("the plan has 1 inputs, got 0"));
    assert!(refused(&mut resident, &[short], &[output]).contains("`x` must have 4320 bytes, got 4"));
    own();
    resident.enqueue(stream, &[input], &[output]).unwrap_or_else(|error| panic!("{error}"));
    let mut bytes = vec![0; y.size()];
    y.read(0, &mut bytes).expect("it gives them");
    let port = &plan.outputs[0];
    let tensor = Tensor::from_le_bytes(port.dtype, port.shape.clone(), &bytes).expect("it is whole");
    std::fs::write(folder.join("y.npy"), npy::write(&tensor)).expect("the folder is ours");
    own();
    drop(resident);
}
