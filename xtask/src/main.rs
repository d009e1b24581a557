//! `cargo xtask`: the build tool. It has no dependencies, so that it starts within seconds on a fresh machine.
//!
//! Exit code 0: done. 1: the answer is no. 2: an error, with a message.

mod aarch64;
mod bench;
mod bindgen;
mod deny;
mod fetch;
mod fuzz;
mod new_op;
mod pack;
mod peers;
mod test;
mod tidy;
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
usage: cargo xtask COMMAND [arguments]

Models; `cargo xtask COMMAND --help` prints the flags (docs/reference/cli.md):
  compile MODEL|FILE           compile a model to one executable, target/prestow/NAME
  models                       list the networks of the zoo
  export MODEL|FILE            write a model as ONNX
  what-if MODEL --batch 1,2    plan a model for several batches; find the largest that fits
  diff A B                     compare two plans
  arena FILE.csv               place the buffers of a table in one arena
  profile import FILE          show the profile of an executable or of another program
  benchmark MODEL|FILE         measure a model, with the flags and result lines of DLBS
  experiment run FILE          run a grid of benchmarks; report, parse: its results
  im2rec PREFIX ROOT           pack image files into RecordIO
  target probe                 describe this machine's GPU, for --target FILE.json
  completions SHELL            print a completion script for a shell
  gpu-check [MODEL]...         check operators and networks on this machine's GPU: results, memory, speed
  gpu-check --pack DIR         write the check as a folder for a machine with a GPU and no Rust
  sass MODEL...                time each kernel by a model of its machine code for cuda:sm_90, without a GPU

Data; needs python3 with pip and venv:
  fetch                        download public weights, images and test data into data/
  fetch --with-mxnet, --with-onnxruntime
                               and the runtimes that tests compare with
  fetch --cuda | --nvrtc | --cublas | --cudnn | --cupti
                               and NVIDIA's libraries: all; the compiler for --target cuda:ARCH; cuBLASLt; cuDNN; CUPTI,
                               which counts a driver's allocations (EXE memory --actual)

Development:
  test [--cuda-tools]          every test, with counts of passed, failed and skipped; --cuda-tools fetches NVIDIA's libraries
  test --asan                  tests of the kernels under AddressSanitizer
  test --tsan                  tests of the thread pool under ThreadSanitizer
  test --miri                  tests of types, plans, placements and the thread pool under Miri; needs nightly with miri and rust-src
  test --aarch64               tests of the kernels and some networks for aarch64, in QEMU
  fuzz [TARGET]... [--minutes N] [--seed N] [--corpus DIR]
                               fuzz readers and random models, guided by coverage, N minutes each (default 3 seconds);
                               DIR keeps inputs from run to run
  fuzz TARGET FILE             run one input again
  ci                           formatting, lints, dependencies, tidy, documentation, then every test
  tidy [--bless]               rules that no compiler checks; --bless lowers budgets in xtask/ratchet.txt
  deny [--advisories]          licenses, duplicates and sources of dependencies, by cargo-deny; --advisories needs the
                               database of advisories, from the network
  new-op NAME                  write the files and rows of a new operator, list the decisions (docs/add-an-operator.md)
  bench [NAME]                 criterion benches of networks
  bench planner [TABLE]...     the planner compared with others: challenge, large, families, networks, generated,
                               scale; budget: arenas and times within a budget; windows: bytes
                               that lives of parts of concatenations would save at most
  bench cpu [--peers[=NAME,...]] [--cold] [--rounds=N] [--batch=N] [NETWORK|FILE]...
                               executables compared with other runtimes (docs/measurements/cpu.md)
  bench training [--peers[=NAME,...]] [--rounds=N] [--threads=N] [--optimize=GOAL] [NETWORK:BATCH[:OPTIMIZER]]...
                               training steps compared with others: torch-eager, torch (compiled), tensorflow, mxnet;
                               torch/NAME and timm/NAME are networks that PyTorch exports
  bench training memory [NETWORK]...
                               planned bytes of training steps compared with MXNet's
  bench data [--peers[=NAME,...]] [--rounds=N] [--threads=N] [--options=OPTION,...] FILE.rec
                               images a second of a data pipeline, compared with others
  bench uprd [attach|sizes|networks|large|memory|grid|policies]... [--rounds=N] [--requests=N] [--plots=DIR] [NETWORK]...
                               weights of the daemon compared with private ones (docs/measurements/weights-daemon.md)
  bench kernels [--threads=N] [--ms=N] [--below=PERCENT] [FAMILY[:PART]|NETWORK|FILE]...
                               steps far below their bound, over families of shapes or networks
  bench times [--seconds=N] [--layers=N] [--worst=N] [--record=FILE] [--level=NAME] [--families=NAME,...] [--write]
                               [NETWORK|FILE]...
                               kernels timed and the model of times fitted to them, networks as its test
  store                        build prestow-store, which reads data sets at URLs (docs/guide/data.md)
  bindgen [--headers DIR] [--check]
                               the tables of crates/cuda-sys, from NVIDIA's headers
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let is_help = arguments.iter().any(|argument| argument == "--help" || argument == "-h");
    let outcome = match command.as_str() {
        "gpu-check" if arguments.first().is_some_and(|argument| argument == "--pack") => match arguments.get(1) {
            Some(folder) => pack::run(Path::new(folder), &arguments[2..]),
            None => Err("--pack needs a folder: gpu-check --pack DIR".into()),
        },
        "gpu-check" => tools::gpu_check(&arguments),
        "sass" => tools::gpu_check(&[vec!["--sass".to_string()], arguments].concat()),
        command if tools::COMMANDS.contains(&command) => tools::run(command, &arguments),
        "" | "help" | "--help" | "-h" => help(),
        _ if is_help => help(),
        "test" => test::run(&arguments),
        "ci" => ci(),
        "fetch" => fetch::run(&arguments),
        "new-op" => new_op::run(&arguments),
        "tidy" => tidy::run(&arguments),
        "deny" => deny::run(&arguments),
        "fuzz" => fuzz::run(&arguments),
        "bindgen" => bindgen::run(&arguments),
        "bench" => bench::run(&arguments),
        "store" => tools::store().map(|path| {
            println!("{}", path.display());
            0
        }),
        "version" | "--version" | "-V" => {
            println!("prestow {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        other => Err(format!("`{other}` is not a command; `cargo xtask help` lists the commands")),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn help() -> Result<u8, String> {
    print!("{HELP}");
    Ok(0)
}

/// Formatting, lints, dependencies, documentation, then every test.
fn ci() -> Result<u8, String> {
    check("formatting", cargo().args(["fmt", "--all", "--check"]))?;
    for workspace in ["benches/peers/native", tools::STORE] {
        let words = ["fmt", "--manifest-path", &format!("{workspace}/Cargo.toml"), "--check"];
        check(&format!("formatting of {workspace}"), cargo().args(words))?;
    }
    check("lints", cargo().args(["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    deny::dependencies(&[])?;
    check(
        "documentation",
        cargo().args(["doc", "--release", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    // The build script of cust needs CUDA, except for documentation builds.
    let interop = ["check", "--release", "-p", "prestow-cust", "--features", "cust", "--examples"];
    check("the crate for cust", cargo().args(interop).env("DOCS_RS", "1"))?;
    test::ci()
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace").to_path_buf()
}

/// Where builds go.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// Cargo, in the workspace.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command and makes an error of its failure.
fn check(name: &str, command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed ({status}): {command:?}")),
        Err(error) => Err(format!("{name}: cannot run {command:?}: {error}")),
    }
}
