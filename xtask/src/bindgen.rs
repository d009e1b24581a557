//! `cargo xtask bindgen`: the tables of `crates/cuda-sys` from NVIDIA's headers.
//!
//! bindgen is a program and not a dependency: it is installed into the target folder on first use. Headers and libclang come
//! from pip's packages. The tables are checked in and begin with the versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cargo, check, peers, root, target};

/// bindgen's version, which decides the form of the tables.
const VERSION: &str = "0.73.2";

/// The list of packages with libclang and with the headers, in the versions of `fetch --cuda`.
const HEADERS: &str = "headers";

/// A library's table.
struct Table {
    /// The file in `crates/cuda-sys/src`.
    file: &'static str,
    /// The name of the struct.
    name: &'static str,
    header: &'static str,
    /// The header with the version, and its macros.
    version: (&'static str, &'static [&'static str]),
    functions: &'static str,
    /// Types that are not in a signature: values of attributes.
    types: &'static str,
}

const TABLES: [Table; 5] = [
    Table {
        file: "cublaslt.rs",
        name: "CublasLt",
        header: "nvidia/cu13/include/cublasLt.h",
        version: (
            "nvidia/cu13/include/cublas_api.h",
            &["CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH", "CUBLAS_VER_BUILD"],
        ),
        functions: "cublasLtCreate|cublasLtDestroy|cublasLtGetVersion|cublasLtGetStatusName|cublasLtMatmul|\
                    cublasLtMatmulDesc(Create|Destroy|SetAttribute)|cublasLtMatrixLayout(Create|Destroy|SetAttribute)|\
                    cublasLtMatmulPreference(Create|Destroy|SetAttribute)|cublasLtMatmulAlgoGetHeuristic",
        types: "cublasLtMatmulDescAttributes_t|cublasLtMatrixLayoutAttribute_t|cublasLtMatmulPreferenceAttributes_t|\
                cublasLtEpilogue_t|cublasLtReductionScheme_t",
    },
    Table {
        file: "cudnn.rs",
        name: "Cudnn",
        header: "nvidia/cudnn/include/cudnn_graph.h",
        version: ("nvidia/cudnn/include/cudnn_version.h", &["CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"]),
        functions: "cudnnBackend(Create|Destroy)Descriptor|cudnnBackend(Finalize|SetAttribute|GetAttribute|Execute)|\
                    cudnnCreate|cudnnDestroy|cudnnSetStream|cudnnGetVersion|cudnnGetErrorString|cudnnGetLastErrorString",
        types: "cudnnDataType_t|cudnnConvolutionMode_t|cudnnPointwiseMode_t|cudnnBackend(HeurMode|NumericalNote|BehaviorNote)_t",
    },
    Table {
        file: "cupti.rs",
        name: "Cupti",
        header: "nvidia/cu13/include/cupti.h",
        version: ("nvidia/cu13/include/cupti_version.h", &["CUPTI_API_VERSION"]),
        functions: "cuptiGetVersion|cuptiGetResultString|\
                    cuptiActivity(RegisterCallbacks|Enable|Disable|FlushAll|GetNextRecord|GetNumDroppedRecords)",
        types: "CUpti_ActivityMemory4",
    },
    Table {
        file: "nccl.rs",
        name: "Nccl",
        header: "nvidia/nccl/include/nccl.h",
        version: ("nvidia/nccl/include/nccl.h", &["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"]),
        functions: "ncclGetVersion|ncclGetUniqueId|ncclCommInitRankConfig|ncclComm(Finalize|Destroy|Abort|Split)|\
                    ncclComm(Count|CuDevice|UserRank|GetAsyncError|Register|Deregister)|ncclMem(Alloc|Free)|\
                    ncclGetErrorString|ncclGetLastError|ncclGroup(Start|End)|ncclAllReduce|ncclAllGather|ncclBroadcast|\
                    ncclReduce|ncclReduceScatter|ncclSend|ncclRecv",
        types: "",
    },
    Table {
        file: "nvml.rs",
        name: "Nvml",
        header: "nvidia/cu13/include/nvml.h",
        version: ("nvidia/cu13/include/nvml.h", &["NVML_API_VERSION"]),
        functions: "nvmlInit_v2|nvmlShutdown|nvmlErrorString|nvmlSystemGetDriverVersion|nvmlDeviceGetCount_v2|\
                    nvmlDeviceGetHandleByIndex_v2|nvmlDeviceGetHandleByPciBusId_v2|nvmlDeviceGetName|\
                    nvmlDeviceGetPowerUsage|nvmlDeviceGetMemoryInfo_v2|nvmlDeviceGetUtilizationRates|\
                    nvmlDeviceGetComputeRunningProcesses_v3",
        types: "",
    },
];

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    let (mut headers, mut compare) = (None, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--check" => compare = true,
            "--headers" => headers = Some(PathBuf::from(words.next().ok_or("--headers needs a folder")?)),
            other => return Err(format!("`{other}` is not a flag; bindgen takes --headers DIR and --check")),
        }
    }
    let headers = match headers {
        Some(headers) => headers,
        None => {
            peers::environment(&root().join("data/headers"), &[HEADERS])?;
            packages(&root().join("data/headers")).ok_or("data/headers has no folder of packages")?
        }
    };
    let bindgen = install()?;
    let mut differing = Vec::new();
    for table in &TABLES {
        let text = generate(&bindgen, &headers, table)?;
        let path = root().join("crates/cuda-sys/src").join(table.file);
        match compare {
            true if fs::read_to_string(&path).ok().as_ref() != Some(&text) => differing.push(table.file),
            true => {}
            false => fs::write(&path, text).map_err(|error| format!("cannot write `{}`: {error}", path.display()))?,
        }
    }
    if differing.is_empty() {
        return Ok(0);
    }
    println!("{} differ; run `cargo xtask bindgen`", differing.join(", "));
    Ok(1)
}

/// The program, built on first use.
fn install() -> Result<PathBuf, String> {
    let folder = target().join("tools");
    let program = program();
    if !program.exists() {
        let mut install = cargo();
        install.args(["install", "bindgen-cli", "--locked", "--version", VERSION, "--root"]).arg(&folder);
        check("installing bindgen", &mut install)?;
    }
    Ok(program)
}

fn program() -> PathBuf {
    target().join("tools/bin/bindgen")
}

/// The folder with the packages of a Python environment.
fn packages(environment: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(environment.join("lib")).ok()?.flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("site-packages")).collect();
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    folders.into_iter().next()
}

/// The text of a table.
fn generate(bindgen: &Path, headers: &Path, table: &Table) -> Result<String, String> {
    let header = headers.join(table.header);
    if !header.exists() {
        return Err(format!(
            "`{}` does not exist; --headers names the `site-packages` of an environment with the packages of \
             `xtask/requirements/{HEADERS}.txt`",
            header.display()
        ));
    }
    let version = version(headers, table)?;
    let mut command = Command::new(bindgen);
    command.arg(&header).args(["--dynamic-loading", table.name, "--default-enum-style", "newtype"]);
    command.args(["--no-prepend-enum-name", "--no-layout-tests", "--no-doc-comments", "--with-derive-eq"]);
    command.args(["--rust-target", "1.85", "--rust-edition", "2024", "--wrap-unsafe-ops", "--disable-header-comment"]);
    command.args(["--allowlist-function", table.functions]);
    if !table.types.is_empty() {
        command.args(["--allowlist-type", table.types]);
    }
    command.arg("--rustfmt-configuration-file");
    command.arg(root().join("rustfmt.toml"));
    command.arg("--").args(["-x", "c"]);
    for folder in ["nvidia/cudnn/include", "nvidia/cu13/include"] {
        command.arg("-I").arg(headers.join(folder));
    }
    // The package of libclang lacks the compiler's own headers.
    if let Ok(out) = Command::new("gcc").arg("-print-file-name=include").output() {
        command.arg("-isystem").arg(String::from_utf8_lossy(&out.stdout).trim());
    }
    let clang = headers.join("clang/native");
    if clang.is_dir() {
        command.env("LIBCLANG_PATH", clang);
    }
    let out = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !out.status.success() {
        return Err(format!("bindgen failed at `{}`: {}", header.display(), String::from_utf8_lossy(&out.stderr)));
    }
    let head = format!("// Written by `cargo xtask bindgen`: {} {version}, bindgen {VERSION}.\n\n", table.name);
    Ok(head + &String::from_utf8_lossy(&out.stdout))
}

/// The version in a library's header.
fn version(headers: &Path, table: &Table) -> Result<String, String> {
    let (file, macros) = table.version;
    let path = headers.join(file);
    let text = fs::read_to_string(&path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
    let value = |name: &&str| {
        let line = text.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(*name)?.strip_prefix(' '));
        let value = line.and_then(|rest| rest.split_whitespace().next());
        value.ok_or_else(|| format!("`{}` has no {name}", path.display()))
    };
    let parts: Result<Vec<&str>, String> = macros.iter().map(value).collect();
    Ok(parts?.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Skipped without bindgen or the headers.
    #[test]
    fn tables_match_the_headers() {
        let headers = packages(&root().join("data/headers"));
        let (true, Some(headers)) = (program().exists(), headers) else {
            let test = "bindgen::tables_match_the_headers";
            return crate::test::skip(test, "`cargo xtask bindgen` has not installed the headers");
        };
        for table in &TABLES {
            let path = root().join("crates/cuda-sys/src").join(table.file);
            let own = fs::read_to_string(path).expect("it is checked in");
            assert!(generate(&program(), &headers, table).expect("it works") == own, "{}", table.file);
        }
    }
}
