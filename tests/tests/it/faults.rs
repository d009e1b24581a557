//! Faults at every site: executables that were cut off, system calls that fail, allocations that fail. Each ends in an
//! error or in the right answer, never in a signal, and leaves no half-written file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use onnx_suite::model::{Dim, Model, info, node};
use plan::image::Trailer;
use runtime::{Host, ImageFile, heap};
use types::{DType, Random, Shape, Tensor};

use crate::environment;
use crate::executables::{compile, folder, output_of, program, started, text};
use crate::support::{effort, skip};

/// Linux refuses to start a file whose program headers are cut off.
const ENOEXEC: i32 = 8;

#[test]
fn truncated_executable_refuses_with_a_message() {
    let folder = folder("truncated");
    let whole = std::fs::read(compile(&folder, &["lenet"])).expect("it was written");
    let cut = folder.join("cut");
    let mut random = Random::new(5);
    let some = (0..60).map(|_| random.below(whole.len() as u64) as usize);
    let ends = [
        0,
        1,
        64,
        4096,
        whole.len() - 1,
        whole.len() - Trailer::SIZE,
        whole.len() - Trailer::SIZE - 1,
        whole.len() - 4096,
    ];
    for length in ends.into_iter().chain(some) {
        // A new file: the system refuses to write to one that may still run.
        let _ = std::fs::remove_file(&cut);
        std::fs::write(&cut, &whole[..length]).expect("writable");
        make_executable(&cut);
        match started(Command::new(&cut).arg("run").stdin(Stdio::null())) {
            Err(error) => assert_eq!(error.raw_os_error(), Some(ENOEXEC), "length {length}: {error}"),
            Ok(done) => {
                assert_eq!(done.status.code(), Some(2), "length {length}: {:?}", done.status);
                assert!(text(&done.stderr).contains("cannot run"), "length {length}: {}", text(&done.stderr));
            }
        }
    }
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("the file is ours");
}

#[test]
fn damaged_program_of_an_executable_is_refused() {
    let folder = folder("damaged-program");
    let whole = std::fs::read(compile(&folder, &["lenet"])).expect("it was written");
    let path = folder.join("damaged");
    let mut random = Random::new(6);
    for _ in 0..20 {
        let mut damaged = whole.clone();
        let at = random.below((whole.len() - Trailer::SIZE) as u64) as usize;
        damaged[at] ^= 1 << random.below(8);
        std::fs::write(&path, &damaged).expect("writable");
        let error = ImageFile::open(&path).err().unwrap_or_else(|| panic!("byte {at} has no checksum"));
        assert!(error.to_string().contains("is damaged"), "byte {at}: {error}");
    }
}

/// System calls that fail in practice, each with an error that it has.
const CALLS: [(&str, &str); 23] = [
    ("openat", "EIO"),
    ("read", "EIO"),
    ("pread64", "EIO"),
    ("mmap", "ENOMEM"),
    ("mprotect", "ENOMEM"),
    ("munmap", "ENOMEM"),
    ("fstat", "EIO"),
    ("newfstatat", "EIO"),
    ("statx", "EIO"),
    ("readlink", "EIO"),
    ("lseek", "EIO"),
    ("getdents64", "EIO"),
    ("write", "ENOSPC"),
    ("mkdir", "EACCES"),
    // An output without a name gets its first one.
    ("linkat", "EIO"),
    ("rename", "EIO"),
    ("fsync", "EIO"),
    ("fdatasync", "EIO"),
    ("flock", "ENOLCK"),
    ("ftruncate", "EIO"),
    ("fchmod", "EPERM"),
    ("clone3", "EAGAIN"),
    ("sched_getaffinity", "EPERM"),
];

/// A command, run once for every system call that it and its children make in `main`, which begins with a look at the
/// program's own path: that call fails.
struct Faults<'a> {
    test: &'a str,
    command: &'a [&'a str],
    /// A file for strace.
    log: &'a Path,
    /// The most runs; they are spread over the calls.
    runs_max: usize,
    /// The part of a line of the output that is the same in every run.
    plain: PlainLine,
}

/// The part of a line that is compared, `None` for a line that is not.
type PlainLine = fn(&str) -> Option<&str>;

/// The line, unless it has a time or a number of threads.
fn without_times(line: &str) -> Option<&str> {
    (!line.contains(" ms") && !line.contains(" s")).then_some(line)
}

fn whole_line(line: &str) -> Option<&str> {
    Some(line)
}

/// Whether a line has words: those of steps begin with times, by which they are sorted.
fn is_text(line: &str) -> Option<&str> {
    line.trim_start().starts_with(|c: char| c.is_alphabetic()).then_some("a line")
}

/// The key of a result line.
fn key_of_line(line: &str) -> Option<&str> {
    line.split_once('=').map(|(key, _)| key)
}

/// The line without the path of the results.
fn counts_of_line(line: &str) -> Option<&str> {
    line.split(';').next()
}

impl Faults<'_> {
    fn strace(&self, words: &[&str]) -> Command {
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq"]).args(words).args(self.command).env_remove("UPRD_SOCKET");
        traced.env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
        traced
    }

    /// Runs the command without and with faults. `check` inspects its files after each run. Returns the number of runs, `None`
    /// if strace cannot trace here.
    fn inject(&self, mut check: impl FnMut(&str, bool)) -> Option<usize> {
        if Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            skip(self.test, "strace is missing");
            return None;
        }
        let whole = output_of(&mut self.strace(&["-o", self.log.to_str().expect("UTF-8")]));
        if text(&whole.stderr).contains("PTRACE") {
            skip(self.test, "this system does not permit ptrace");
            return None;
        }
        assert!(whole.status.success(), "{}", text(&whole.stderr));
        check("no fault", true);
        let sites = sites(&std::fs::read_to_string(self.log).expect("strace wrote its log"));
        let stride = sites.len().div_ceil(self.runs_max).max(1);
        let chosen = sites.iter().step_by(stride);
        for (name, error, number) in chosen.clone() {
            let (trace, inject) = (format!("trace={name}"), format!("inject={name}:error={error}:when={number}"));
            let done = output_of(&mut self.strace(&["-o", "/dev/null", "-e", &trace, "-e", &inject]));
            let fault = format!("{name} {number} fails with {error}");
            match done.status.code() {
                Some(0) => {
                    let [got, want] = [&done.stdout, &whole.stdout].map(|bytes| text(bytes));
                    let [plain, wanted] = [&got, &want].map(|all| all.lines().filter_map(self.plain));
                    assert!(plain.eq(wanted), "{fault}: {got}");
                }
                // The answer "no" is a failure that the command reports, of one of its rows.
                Some(1) => assert!(text(&done.stderr).contains("fail"), "{fault}: {}", text(&done.stderr)),
                Some(2) => assert!(text(&done.stderr).contains("error: "), "{fault}: {}", text(&done.stderr)),
                _ => panic!("{fault}: {:?}: {}", done.status, text(&done.stderr)),
            }
            check(&fault, done.status.success());
        }
        Some(chosen.count())
    }
}

/// The system calls behind the loader's and the C library's, by name: each with its error and its number.
fn sites(log: &str) -> Vec<(&'static str, &'static str, usize)> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut is_main = false;
    for line in log.lines() {
        let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
        is_main |= call.starts_with("readlink(\"/proc/self/exe\"");
        let Some((name, _)) = call.split_once('(') else { continue };
        let count = counts.entry(name).or_default();
        count.1 += 1;
        if !is_main {
            count.0 += 1;
        }
    }
    assert!(is_main, "the program looks at its own path:\n{log}");
    let of_call = |(name, error): (&'static str, &'static str)| {
        let (before, all) = counts.get(name).copied().unwrap_or_default();
        (before + 1..=all).map(move |number| (name, error, number))
    };
    CALLS.into_iter().flat_map(of_call).collect()
}

#[test]
fn failed_system_call_of_a_run_is_an_error_or_the_right_answer() {
    let folder = folder("faults-run");
    let exe = compile(&folder, &["lenet"]);
    let (input, out) = (folder.join("digit.npy"), folder.join("out"));
    let digit = Tensor::full(Shape::from([1, 1, 28, 28]), 0.5f32);
    std::fs::write(&input, weights::npy::write(&digit)).expect("writable");
    let (exe, given) = (exe.display().to_string(), format!("input={}", input.display()));
    let out_dir = out.display().to_string();
    let mut want: Option<Vec<u8>> = None;
    let check = |fault: &str, is_success: bool| {
        let got = std::fs::read(out.join("logits.npy")).ok();
        assert!(!is_success || got.is_some(), "{fault}: the output is missing");
        if let Some(got) = got {
            assert_eq!(*want.get_or_insert_with(|| got.clone()), got, "{fault}: another output");
        }
        // A temporary file whose removal fails is removed by the next run.
        let _ = std::fs::remove_dir_all(&out);
    };
    let words = [&exe, "run", "--threads", "2", "--input", &given, "--output-dir", &out_dir];
    let test = "failed_system_call_of_a_run_is_an_error_or_the_right_answer";
    let (log, plain) = (folder.join("calls.txt"), without_times);
    if let Some(runs) = (Faults { test, command: &words, log: &log, runs_max: usize::MAX, plain }).inject(check) {
        assert!(20 < runs, "only {runs} system calls were made");
    }
}

#[test]
fn failed_system_call_of_compile_leaves_a_whole_file_or_none() {
    let folder = folder("faults-compile");
    let model = onnx(&folder);
    let exe = folder.join("exe");
    let (model, output) = (model.display().to_string(), exe.display().to_string());
    let mut want: Option<Vec<u8>> = None;
    let check = |fault: &str, is_success: bool| {
        let got = std::fs::read(&exe).ok();
        assert!(!is_success || got.is_some(), "{fault}: the executable is missing");
        if let Some(got) = got {
            assert!(*want.get_or_insert_with(|| got.clone()) == got, "{fault}: another executable");
        }
        let entries =
            std::fs::read_dir(&folder).expect("it is there").map(|entry| entry.expect("readable").file_name());
        let parts = entries.filter(|name| name.to_string_lossy().ends_with(".part"));
        assert_eq!(parts.count(), 0, "{fault}: a temporary file stays");
        let _ = std::fs::remove_file(&exe);
    };
    let prestow = program("prestow").display().to_string();
    let words = [&prestow, "compile", &model, "-o", &output];
    let test = "failed_system_call_of_compile_leaves_a_whole_file_or_none";
    let (log, plain) = (folder.join("calls.txt"), without_times);
    if let Some(runs) = (Faults { test, command: &words, log: &log, runs_max: usize::MAX, plain }).inject(check) {
        assert!(50 < runs, "only {runs} system calls were made");
    }
}

/// Runs of a test whose command makes thousands of calls; `PRESTOW_FUZZ` multiplies them.
const SOME_RUNS: usize = 40;

#[test]
fn failed_system_call_of_a_profile_is_an_error_or_the_right_answer() {
    let folder = folder("faults-profile");
    let exe = compile(&folder, &["lenet"]).display().to_string();
    let prestow = program("prestow").display().to_string();
    let report = folder.join("report.json").display().to_string();
    let memory = output_of(Command::new(&exe).args(["memory", "--json"]));
    std::fs::write(&report, &memory.stdout).expect("writable");
    let commands: [(&[&str], PlainLine); 3] = [
        (&[&exe, "profile", "--iters", "2", "--threads", "2"], is_text),
        (&[&prestow, "profile", "analysis", &report, &exe], whole_line),
        (&[&prestow, "profile", "entries", &report], whole_line),
    ];
    let test = "failed_system_call_of_a_profile_is_an_error_or_the_right_answer";
    for (command, plain) in commands {
        let log = folder.join("calls.txt");
        let faults = Faults { test, command, log: &log, runs_max: SOME_RUNS * effort(), plain };
        if let Some(runs) = faults.inject(|_, _| ()) {
            assert!(10 < runs, "only {runs} system calls were made");
        }
    }
}

#[test]
fn failed_system_call_of_a_benchmark_leaves_whole_results_or_none() {
    let folder = folder("faults-benchmark");
    let exe = compile(&folder, &["lenet"]).display().to_string();
    let prestow = program("prestow").display().to_string();
    let [json, raw] = ["results.json", "raw.jsonl"].map(|name| folder.join(name));
    let [json_name, raw_name] = [&json, &raw].map(|path| path.display().to_string());
    let words = [&prestow, "benchmark", &exe, "--num_batches", "3", "--num_warmup_batches", "1", "--threads", "2"];
    let command = [&words[..], &["--cold", "1", "--json", &json_name, "--raw", &raw_name]].concat();
    let check = |fault: &str, is_success: bool| {
        let lines = |path: &Path| std::fs::read_to_string(path).ok().map(|text| text.lines().count());
        let (results, times) = (lines(&json), lines(&raw));
        assert!(!is_success || (results, times) == (Some(1), Some(3)), "{fault}: {results:?}, {times:?}");
        assert!(results.is_none_or(|lines| lines <= 1) && times.is_none_or(|lines| [0, 3].contains(&lines)), "{fault}");
        let _ = std::fs::remove_file(&json);
        let _ = std::fs::remove_file(&raw);
    };
    // Values are times.
    let plain = key_of_line;
    let test = "failed_system_call_of_a_benchmark_leaves_whole_results_or_none";
    let log = folder.join("calls.txt");
    let runs_max = SOME_RUNS * effort();
    if let Some(runs) = (Faults { test, command: &command, log: &log, runs_max, plain }).inject(check) {
        assert!(10 < runs, "only {runs} system calls were made");
    }
}

/// After any fault, the experiment is complete once it runs again.
#[test]
fn failed_system_call_of_an_experiment_loses_no_cell() {
    let folder = folder("faults-experiment");
    let exe = compile(&folder, &["lenet"]).display().to_string();
    let prestow = program("prestow").display().to_string();
    let [file, out] = ["grid.toml", "out"].map(|name| folder.join(name));
    let grid = format!(
        "[parameters]\n\"exp.model\" = \"{exe}\"\n\"exp.num_batches\" = 2\n\"exp.num_warmup_batches\" = 1\n\
         [variables]\n\"exp.threads\" = [1, 2]\n"
    );
    std::fs::write(&file, grid).expect("writable");
    let [file, out_dir] = [&file, &out].map(|path| path.display().to_string());
    let command = [&prestow, "experiment", "run", &file, "-o", &out_dir];
    let check = |fault: &str, is_success: bool| {
        let again = [&command[1..], &["--resume", "--rerun", "onfail"]].concat();
        let done = output_of(Command::new(&prestow).args(&again));
        let said = text(&done.stdout);
        assert!(done.status.success(), "{fault}, then: {said}{}", text(&done.stderr));
        let kept = said.split("failed, ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
        assert!(!is_success || kept == Some(2), "{fault}: a cell was lost: {said}");
        let _ = std::fs::remove_dir_all(&out);
    };
    let plain = counts_of_line;
    let test = "failed_system_call_of_an_experiment_loses_no_cell";
    let log = folder.join("calls.txt");
    let runs_max = SOME_RUNS * effort();
    if let Some(runs) = (Faults { test, command: &command, log: &log, runs_max, plain }).inject(check) {
        assert!(10 < runs, "only {runs} system calls were made");
    }
}

/// A system that starts no more threads: less speed where the caller's own thread can do the work, else an error.
#[test]
fn thread_that_does_not_start_is_no_panic() {
    let test = "thread_that_does_not_start_is_no_panic";
    let folder = folder("faults-threads");
    let exe = compile(&folder, &["mnist_cnn", "--train"]).display().to_string();
    let images = folder.join("images");
    std::fs::create_dir(&images).expect("writable");
    for name in ["a.png", "b.png"] {
        std::fs::write(images.join(name), "its bytes are kept as they are").expect("writable");
    }
    std::fs::write(folder.join("set.lst"), "0\t1\ta.png\n1\t0\tb.png\n").expect("writable");
    let (prestow, images) = (program("prestow").display().to_string(), images.display().to_string());
    let commands: [(&[&str], i32); 4] = [
        (&[&exe, "bench", "--iters", "2", "--threads", "2"], 0),
        (&[&exe, "profile", "--iters", "2", "--threads", "2"], 0),
        (&[&prestow, "im2rec", "set", &images, "--num-thread", "2", "--pass-through"], 0),
        (&[&exe, "train", "--data", "synthetic:1", "--steps", "1"], 2),
    ];
    for (command, code) in commands {
        let inject = ["-f", "-qq", "-o", "/dev/null", "-e", "trace=clone3", "-e", "inject=clone3:error=EAGAIN"];
        let mut traced = Command::new("strace");
        traced.args(inject).args(command).current_dir(&folder).stdin(Stdio::null());
        let Ok(done) = started(&mut traced) else { return skip(test, "strace is missing") };
        if text(&done.stderr).contains("PTRACE") {
            return skip(test, "this system does not permit ptrace");
        }
        assert_eq!(done.status.code(), Some(code), "{command:?}: {}", text(&done.stderr));
        assert!(code == 0 || text(&done.stderr).contains("error: cannot start a thread"), "{}", text(&done.stderr));
    }
}

/// Writes a small model.
fn onnx(folder: &Path) -> PathBuf {
    let x = info("x", DType::F32, &[Dim::Is(1), Dim::Is(3)]);
    let nodes = vec![node("MatMul", &["x", "w"], &["h"], &[]), node("Relu", &["h"], &["y"], &[])];
    let model = Model::new(17, vec![x], nodes, "y").with("w", &Tensor::full(Shape::from([3, 5]), 0.25f32));
    let path = folder.join("m.onnx");
    std::fs::write(&path, model.write()).expect("writable");
    path
}

#[test]
fn model_that_is_no_regular_file_is_refused() {
    let folder = folder("fifo");
    let made = Command::new("mkfifo").arg(folder.join("m.onnx")).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo makes a FIFO");
    let done =
        output_of(Command::new(program("prestow")).args(["compile", "m.onnx", "-o", "none"]).current_dir(&folder));
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("it is not a regular file"), "{}", text(&done.stderr));
}

/// The folder, kind and numbers of a child of [`failed_allocation_is_an_error_or_the_right_answer`].
const CHILD: &str = "PRESTOW_FAULT";

/// Not a test of its own: the process in which allocations fail.
#[test]
#[ignore = "run by failed_allocation_is_an_error_or_the_right_answer"]
fn child_with_failing_allocations() {
    let Some(asked) = environment(CHILD) else { return };
    let words: Vec<&str> = asked.split(',').collect();
    let [kind, from, count, folder] = words[..] else { panic!("four words, got {asked}") };
    let (from, count): (u64, u64) = (from.parse().expect("a number"), count.parse().expect("a number"));
    let folder = Path::new(folder);
    heap::exit_if_exhausted();
    let start = heap::allocations();
    heap::fail(start.saturating_add(from)..start.saturating_add(from).saturating_add(count));
    let answer = match kind {
        "open" => {
            let image = ImageFile::open(&folder.join("model")).expect("the file is whole");
            let mut session =
                runtime::open_all(image.plans.clone(), &image, &Host { threads: 2 }).expect("the plans are valid");
            let x = Tensor::full(Shape::from([1, 1, 28, 28]), 0.5f32);
            session.run_tensors(&[x]).expect("the input fits")[0].to_le_bytes()
        }
        _ => {
            let request = compiler::source::Request {
                model: folder.join("m.onnx").display().to_string(),
                ..compiler::source::Request::default()
            };
            let model = compiler::source::load(&request).expect("the model is valid");
            let target = lower::cpu::CpuTarget::new();
            let compiled =
                compiler::compile(model, &target, compiler::Goal::default(), |_, _| {}).expect("it compiles");
            let mut file = Vec::new();
            plan::image::write(&mut file, b"runner", &[compiled.plan], compiled.constants).expect("memory is writable");
            file
        }
    };
    let end = heap::allocations();
    heap::fail(u64::MAX..u64::MAX);
    let answer: String = answer.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("allocations={}\nanswer={answer}", end - start);
}

#[test]
fn failed_allocation_is_an_error_or_the_right_answer() {
    let folder = folder("faults-memory");
    compile(&folder, &["lenet"]);
    onnx(&folder);
    let own = std::env::current_exe().expect("this test has a file");
    let child = |kind: &str, from: u64, count: u64| {
        let mut child = Command::new(&own);
        child.args(["--exact", "faults::child_with_failing_allocations", "--ignored", "--nocapture"]);
        let asked = format!("{kind},{from},{count},{}", folder.display());
        output_of(child.env(CHILD, asked))
    };
    let part = |output: &[u8], name: &str| {
        text(output).lines().find_map(|line| line.split_once(name).map(|(_, rest)| rest.to_string()))
    };
    for (kind, sites) in [("open", 120), ("compile", 120)] {
        let whole = child(kind, u64::MAX, 0);
        assert!(whole.status.success(), "{}{}", text(&whole.stdout), text(&whole.stderr));
        let total: u64 = part(&whole.stdout, "allocations=").and_then(|n| n.parse().ok()).expect("it is printed");
        let want = part(&whole.stdout, "answer=").expect("it is printed");
        let stride = (total / (sites * effort() as u64)).max(1);
        for site in (0..total).step_by(stride as usize) {
            // One allocation that fails, and memory that stays exhausted.
            for count in [1, u64::MAX] {
                let done = child(kind, site, count);
                let fault = format!("{kind}: allocation {site} of {total}, {count} fail");
                match done.status.code() {
                    Some(0) => assert_eq!(part(&done.stdout, "answer=").as_ref(), Some(&want), "{fault}"),
                    Some(2) => assert!(text(&done.stderr).contains("memory is exhausted"), "{fault}"),
                    _ => panic!("{fault}: {:?}: {}", done.status, text(&done.stderr)),
                }
            }
        }
    }
}

/// An image that does not open, again and again: neither descriptors nor memory are lost.
#[test]
fn refused_image_leaks_nothing() {
    let folder = folder("leaks");
    let whole = std::fs::read(compile(&folder, &["lenet"])).expect("it was written");
    let plan_start = {
        let trailer = Trailer::read(&whole, whole.len() as u64).expect("it is whole");
        trailer.plans.start as usize
    };
    let path = folder.join("damaged");
    let is_mapped = || std::fs::read_to_string("/proc/self/maps").expect("Linux").contains("leaks/damaged");
    let is_open = || {
        let entries = std::fs::read_dir("/proc/self/fd").expect("Linux").flatten();
        entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|target| target == path)
    };
    for at in [100, plan_start, whole.len() - 200, whole.len() - 40] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, &damaged).expect("writable");
        assert!(ImageFile::open(&path).is_err(), "byte {at}");
        assert!(!is_open() && !is_mapped(), "byte {at}: the file stays open");
    }
    std::fs::write(&path, &whole).expect("writable");
    let image = ImageFile::open(&path).expect("it is whole");
    assert!(is_open() && !is_mapped(), "its constants are in memory");
    drop(image);
    assert!(!is_open(), "the file stays open");
    let image = mapped(&path).expect("it is whole");
    assert!(is_mapped());
    let other = Arc::new(plan::Plan { target: "cpu:none".into(), ..plan::Plan::clone(&image.plans[0]) });
    assert!(runtime::open(other, &image, &Host { threads: 1 }).is_err());
    drop(image);
    assert!(!is_open() && !is_mapped(), "a refused plan keeps its weights");
}

/// An image whose file stays as it is.
fn mapped(path: &Path) -> Result<ImageFile, runtime::OpenError> {
    // SAFETY: the file is in the folder of one test, which does not write to it while the image is open.
    #[expect(unsafe_code, reason = "the file is ours")]
    unsafe {
        ImageFile::map(path)
    }
}

/// The model of [`child_that_opens_with_failing_calls`].
const OPENED: &str = "PRESTOW_OPENED";
/// A file that does not exist: a look at it marks the begin and the end of the second opening in a trace.
const MARK: &str = "/nonexistent-mark-of-the-second-opening";

/// Openings before the one whose calls fail.
const WARM_UP: usize = 15;

/// Open descriptors, mappings of the model, mappings in all, and allocated blocks of this process.
fn held(model: &Path) -> [u64; 4] {
    let blocks = heap::live_blocks();
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("Linux").count() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let of_model = maps.lines().filter(|line| line.ends_with(&*model.to_string_lossy())).count() as u64;
    [descriptors, of_model, maps.lines().count() as u64, blocks]
}

/// Opens a model on two threads, runs it and closes it, once with its constants in memory and once with the file mapped.
fn open_and_run(model: &Path) -> Result<(), String> {
    for open in [ImageFile::open, mapped] {
        let image = open(model).map_err(|error| error.to_string())?;
        let opened = runtime::open_all(image.plans.clone(), &image, &Host { threads: 2 });
        let mut session = opened.map_err(|error| error.to_string())?;
        let x = Tensor::full(Shape::from([1, 1, 28, 28]), 0.5f32);
        session.run_tensors(&[x]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Not a test of its own: opens a model again and again; system calls of the last time fail.
#[test]
#[ignore = "run by failed_opening_leaks_nothing"]
fn child_that_opens_with_failing_calls() {
    let Some(model) = environment(OPENED) else { return };
    let model = Path::new(&model);
    // Calls are numbered by thread: these go beyond the numbers of the thread that loads the libraries.
    for _ in 0..WARM_UP {
        open_and_run(model).expect("nothing fails yet");
    }
    let before = held(model);
    let _ = std::fs::File::open(MARK);
    let opened = open_and_run(model);
    let _ = std::fs::File::open(MARK);
    let message = opened.as_ref().err().cloned().unwrap_or_default();
    drop(opened);
    println!("opened={message}");
    drop(message);
    println!("held={before:?}{:?}", held(model));
}

/// In process, where no exit returns leaked memory.
#[test]
fn failed_opening_leaks_nothing() {
    let test = "failed_opening_leaks_nothing";
    let folder = folder("faults-open");
    let model = compile(&folder, &["lenet"]);
    let own = std::env::current_exe().expect("this test has a file");
    let child = |words: &[&str]| {
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq"]).args(words).arg(&own);
        traced.args(["--exact", "faults::child_that_opens_with_failing_calls", "--ignored", "--nocapture"]);
        started(traced.env(OPENED, &model).stdin(Stdio::null()))
    };
    let log = folder.join("calls.txt");
    let Ok(whole) = child(&["-o", log.to_str().expect("UTF-8")]) else { return skip(test, "strace is missing") };
    if text(&whole.stderr).contains("PTRACE") {
        return skip(test, "this system does not permit ptrace");
    }
    assert!(whole.status.success(), "{}{}", text(&whole.stdout), text(&whole.stderr));
    let (mut runs, mut errors) = (0, 0);
    let sites = calls_of_second_opening(&std::fs::read_to_string(&log).expect("written"));
    for (name, error, number) in some_of_each(&sites, 3 * effort()) {
        let (trace, inject) = (format!("trace={name}"), format!("inject={name}:error={error}:when={number}"));
        let done = child(&["-o", "/dev/null", "-e", &trace, "-e", &inject]).expect("strace is there");
        let fault = format!("{name} {number} fails with {error}");
        let said = text(&done.stdout);
        assert!(done.status.success(), "{fault}: {:?}: {said}{}", done.status, text(&done.stderr));
        let part = |name: &str| said.lines().find_map(|line| line.split_once(name).map(|(_, rest)| rest));
        errors += usize::from(part("opened=").is_some_and(|message| !message.is_empty()));
        let held = part("held=").expect("it is printed");
        let numbers: Vec<u64> = held.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        let [before, after] = [&numbers[..4], &numbers[4..]];
        assert_eq!(before[..2], after[..2], "{fault}: descriptors and mappings of the model");
        // The C library keeps the stack and the heap of a thread that ended for the next one.
        assert!(after[2] <= before[2] + 4, "{fault}: {held}: mappings");
        assert_eq!(before[3], after[3], "{fault}: {held}: allocated blocks");
        runs += 1;
    }
    assert!(5 < errors && errors <= runs, "{errors} errors in {runs} runs");
}

/// At most `most` calls of each name, spread over all of them: a file is read in hundreds.
fn some_of_each<'a>(
    sites: &'a [(&'static str, &'static str, usize)],
    most: usize,
) -> impl Iterator<Item = (&'static str, &'static str, usize)> + 'a {
    CALLS.into_iter().flat_map(move |(name, _)| {
        let own: Vec<_> = sites.iter().copied().filter(|site| site.0 == name).collect();
        let stride = own.len().div_ceil(most).max(1);
        own.into_iter().step_by(stride)
    })
}

/// The system calls of the thread that opens, between the marks, each with its error and its number in that thread, which no
/// other thread reaches.
fn calls_of_second_opening(log: &str) -> Vec<(&'static str, &'static str, usize)> {
    let mark = log.lines().find(|line| line.contains(MARK)).expect("the child marks the second opening");
    let thread = mark.split(' ').next().expect("a line begins with the thread");
    let of_thread = log.lines().filter(|line| line.split(' ').next() == Some(thread));
    let mut others: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in log.lines().filter(|line| line.split(' ').next() != Some(thread)) {
        let (own, call) = line.split_once(' ').unwrap_or_default();
        let name = call.trim_start().split('(').next().unwrap_or_default();
        *others.entry((name, own)).or_default() += 1;
    }
    let of_others = |name: &str| {
        let counts = others.iter().filter(|((call, _), _)| *call == name);
        counts.map(|(_, count)| *count).max().unwrap_or_default()
    };
    let (mut counts, mut sites, mut marks) = (BTreeMap::<&str, usize>::new(), Vec::new(), 0);
    for line in of_thread {
        let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
        let Some((name, _)) = call.split_once('(') else { continue };
        let count = counts.entry(name).or_default();
        *count += 1;
        if call.contains(MARK) {
            marks += 1;
        } else if marks == 1 {
            // A mapping whose removal fails stays: no program can do more.
            let is_ours = name != "munmap" && of_others(name) < *count;
            let known = CALLS.into_iter().find(|(known, _)| *known == name && is_ours);
            sites.extend(known.map(|(name, error)| (name, error, *count)));
        }
    }
    assert_eq!(marks, 2, "both marks are in the trace");
    sites
}
