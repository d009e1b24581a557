//! `cargo xtask`: the build tool. No dependencies, so that it answers at once on a fresh machine.
//!
//! Every command exits with 0 when done and with 1 or 2 when not, and says why.

mod aarch64;
mod bench;
mod bindgen;
mod compile;
mod fetch;
mod pack;
mod peers;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
usage: cargo xtask compile MODEL|FILE.onnx [flags]   build what is needed, compile one model (compile --help)
       cargo xtask models                            the networks that have a name
       cargo xtask export MODEL|FILE -o NET.onnx     the model as ONNX, for other runtimes
       cargo xtask arena FILE.csv [flags]            place buffers alone, with a proof (arena --help)
       cargo xtask diff A B                          how two plans differ (diff --help)
       cargo xtask what-if MODEL --batch 1,2,4       one model planned for each batch (what-if --help)
       cargo xtask profile import FILE               profiles of MXNet and TBD in our views (profile --help)
       cargo xtask gpu-check [MODEL]...              operators and networks on the GPU at hand: results, memory and speed
       cargo xtask gpu-check --pack DIR [words]      the same as a folder for a machine that has the GPU and nothing else
       cargo xtask target record [-o FILE.json]      the facts of the GPU at hand, as a file for --target
       cargo xtask test [--cuda-tools]               every test; ends with a count of passed, failed and skipped; those
                                                     that need NVIDIA's libraries run where these are, or are fetched so
       cargo xtask test --asan                       the kernels' tests under AddressSanitizer
       cargo xtask test --aarch64                    the kernels' tests and some networks for aarch64, by an emulator
       cargo xtask ci                                formatting, lints, tidy, then all of test, --asan and --aarch64
       cargo xtask fetch [--with-mxnet] [--with-onnxruntime]
                         [--cuda] [--nvrtc] [--cublas] [--cudnn] [--cupti]
                                                     public weights, pictures and test data into data/; the runtimes as
                                                     well, for the tests that compare with them; NVIDIA's libraries, all
                                                     of them or one: the compiler for --target cuda:ARCH, cuBLASLt and
                                                     cuDNN for --cublas and --cudnn, CUPTI for the record of a driver's
                                                     allocations (EXE memory --actual)
       cargo xtask tidy                              arrows between crates, names of files in docs, unsafe notes
       cargo xtask bindgen [--headers DIR] [--check] the tables of crates/cuda-sys from NVIDIA's headers in pip's packages
       cargo xtask bench [NAME]                      criterion benches of networks
       cargo xtask bench planner [TABLE]...          the planner beside others': challenge, large, families, networks
       cargo xtask bench cpu [--peers[=NAME,...]] [--cold] [--rounds=N] [--batch=N] [NETWORK|FILE]...
                                                     executables, beside other runtimes (docs/measurements/cpu.md)
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    let outcome = match command.as_str() {
        "gpu-check" if rest.first().is_some_and(|word| word == "--pack") => match rest.get(1) {
            Some(folder) => pack::run(Path::new(folder), &rest[2..]),
            None => Err("--pack takes the folder that is to be made".into()),
        },
        "gpu-check" => compile::gpu_check(&rest),
        "compile" | "models" | "export" | "arena" | "diff" | "what-if" | "profile" | "target" => {
            compile::run(&command, &rest)
        }
        "test" => test::run(&rest),
        "ci" => ci(),
        "fetch" => fetch::run(&rest),
        "tidy" => tidy::run(&rest),
        "bindgen" => bindgen::run(&rest),
        "bench" => bench::run(&rest),
        "" | "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(0)
        }
        other => Err(format!("`{other}` is not a command\n{HELP}")),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Formatting, lints and tidiness, the kernels under a sanitizer, then every test.
fn ci() -> Result<u8, String> {
    check("formatting", cargo().args(["fmt", "--all", "--check"]))?;
    let native = ["fmt", "--manifest-path", "benches/peers/native/Cargo.toml", "--check"];
    check("formatting of native peers", cargo().args(native))?;
    check("lints", cargo().args(["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    check(
        "documentation",
        cargo().args(["doc", "--release", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    // cust looks for CUDA when it is built, unless somebody only reads its documentation.
    let interop = ["check", "--release", "-p", "prestow-cust", "--features", "cust", "--examples"];
    check("the crate for cust", cargo().args(interop).env("DOCS_RS", "1"))?;
    test::ci()
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
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
fn check(what: &str, command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed ({status}): {command:?}")),
        Err(error) => Err(format!("{what}: cannot run {command:?}: {error}")),
    }
}
