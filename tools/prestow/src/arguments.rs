//! Command lines to [`Command`]s. All words are judged before anything is done.

use std::path::PathBuf;

use compiler::gpu::{Libraries, Precision};
use compiler::source::{Request, Weights};
use cpu::Level;
use cuda::{Facts, Math};
use lexopt::prelude::*;
use lower::cpu::CpuTarget;
use lower::cuda::CudaTarget;
use report::Request as Report;
use types::{Bytes, Shape};

/// What is asked of the compiler.
pub(crate) enum Command {
    Compile(Box<Compile>),
    Export(Box<Compile>),
    Models { json: bool },
    Arena(PlaceFile),
    Diff(Box<Compare>),
    WhatIf(Box<WhatIf>),
    Profile(Box<Profile>),
    Record(Record),
    Help,
    Version,
}

/// One model to compile.
pub(crate) struct Compile {
    pub(crate) source: Request,
    pub(crate) output: Option<PathBuf>,
    pub(crate) runner: Option<PathBuf>,
    pub(crate) dump_ir: Option<PathBuf>,
    pub(crate) json: bool,
    pub(crate) budget: Option<Bytes>,
    pub(crate) level: Level,
    /// The GPUs to plan for, if it is not processors.
    pub(crate) device: Option<Gpu>,
    pub(crate) libraries: Libraries,
    /// What was decided is told one by one.
    pub(crate) verbose: bool,
    pub(crate) exact: bool,
    /// Several, distinct ones, for what-if alone.
    pub(crate) dtypes: Vec<Precision>,
    /// Distinct; none means what the model says.
    pub(crate) batches: Vec<usize>,
    pub(crate) tune: Option<Tune>,
}

/// The GPUs to plan for.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(crate) target: CudaTarget,
    /// One of them, by its file of facts; none where the plan is for all of the architecture.
    pub(crate) facts: Option<(PathBuf, Facts)>,
}

/// How layers are measured.
pub(crate) struct Tune {
    /// For about so long, all layers together.
    pub(crate) seconds: f64,
    /// None: as many as there are cores.
    pub(crate) threads: Option<usize>,
    /// None: in the user's folder of caches.
    pub(crate) cache: Option<PathBuf>,
}

/// How long measuring takes if nobody says how long.
const TUNE_SECONDS: f64 = 20.0;

/// A placement problem in a file.
pub(crate) struct PlaceFile {
    pub(crate) file: PathBuf,
    pub(crate) capacity: Option<u64>,
    pub(crate) minimise: bool,
    pub(crate) budget: Option<u64>,
    pub(crate) output: Option<PathBuf>,
    pub(crate) json: bool,
}

/// Two plans to compare.
pub(crate) struct Compare {
    pub(crate) files: [PathBuf; 2],
    pub(crate) batch: Option<u64>,
    pub(crate) report: Report,
    pub(crate) json: bool,
}

/// One model to plan for several batches.
pub(crate) struct WhatIf {
    pub(crate) compile: Compile,
    pub(crate) report: Report,
}

/// Profiles in files.
pub(crate) struct Profile {
    pub(crate) action: Action,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) batch: Option<u64>,
    pub(crate) report: Report,
    pub(crate) json: bool,
}

/// A GPU to take facts from.
pub(crate) struct Record {
    pub(crate) device: usize,
    pub(crate) data: PathBuf,
    /// None: they are printed.
    pub(crate) output: Option<PathBuf>,
}

/// What is done with profiles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// The views.
    Import,
    /// TBD's sums by keyword.
    Analysis,
    /// The largest entries by category.
    Entries,
}

pub(crate) const HELP: [&str; 2] = [
    "\
usage: prestow compile MODEL|FILE [flags]          write one planned executable; FILE is MODEL.onnx or NET-symbol.json
       prestow models                              the networks that have a name (also `compile --list`)
       prestow export MODEL|FILE -o NET.onnx       write the model as ONNX, with the flags of compile for the model
       prestow arena FILE.csv [flags]              place buffers: id,lower,upper,size[,alignment,offset,gaps]
       prestow diff A B [flags]                    what B's plan does otherwise; exit code 1 if it does
       prestow what-if MODEL --batch 1,2,4 [flags] the same model planned for each batch, exactly
       prestow profile import FILE [flags]         the views of a profile: an executable, a report's JSON, MXNet's CSV
                                                   (either form), TBD's log
       prestow profile analysis FILE...            sums by TBD's keywords
       prestow profile entries FILE [flags]        the largest entries by category
       prestow target record [flags]               the facts of the GPU at hand, as a file for --target

compile: --batch N[,N...]      the first extent of the inputs (default 1); several share one arena and the weights
         --shape NAME=1x3xHxW  the shape of an input; repeat for several
         --fix NAME=NUMBER     an input of an ONNX file that is always this number; repeat for several
         --weights FILE|seed:N weights from a safetensors, npz, pth, params or pickle file, or made up (default seed:1)
         --names FILE          what a weights file calls its tensors, a line each: `its.* ours.*`
         --params FILE         the arrays of an MXNet symbol, NET-0000.params
         --pretrained          weights, preprocessing and class names that `cargo xtask fetch` brought
         --data DIR            where those are (default data)
         --target cpu          what is compiled for: cpu (any of this architecture), cpu:native, cpu:x86-64,
                               cpu:x86-64-v3, cpu:x86-64-v4, cpu:aarch64; or cuda:sm_80, cuda:sm_90, cuda:sm_100,
                               cuda:sm_120, for which `cargo xtask fetch --nvrtc` brings the compiler; or FILE.json, the
                               facts of one GPU, as targets/cuda-sm_90-h200.json
         --cudnn[=tf32]        convolutions by cuDNN where it has an engine, planned for the GPU of --target FILE.json and
                               without it (`cargo xtask fetch --cudnn` brings the library, which the executable then needs
                               as well); tf32: with operands rounded for tensor cores
         --cublas[=tf32]       products by cuBLASLt (`cargo xtask fetch --cublas` brings the library for the executable,
                               which needs it); their algorithms are chosen where the executable runs, within
         --cublas-workspace BYTES
                               so much of the arena (default 32MiB; for sm_80 4MiB)
         --verbose             which convolutions cuDNN, and which products cuBLASLt does not do, and why
         --dtype f32           how weights, and results between kernels, are stored: f32, f16 or bf16; kernels compute
                               in f32, inputs and outputs stay as they are. tf32, for GPUs: as f32, with operands of
                               products and convolutions rounded for tensor cores, those of libraries as well
         --exact               no algorithm that trades rounding for speed (Winograd's)
         --tune[=SECONDS]      measure on this machine how layers are computed fastest (default: for 20 seconds); for a GPU,
                               which is then to be here as the first one, which of cuDNN's engines and of cuBLASLt's
                               algorithms are
         --tune-threads N      with so many threads (default: as many as there are cores)
         --tune-cache FILE     keep and take what was measured there (default ~/.cache/prestow/tuned.tsv, and tuned-gpu.tsv)
         --budget BYTES        the most that the arena may take, as 4GiB, 3.5MiB or 1000000: the fastest plan that fits
         -o, --output PATH     the executable (default target/prestow/NAME)
         --dump-ir DIR         write the graph's text form after each pass
         --runner FILE         the runner (default: prestow-runner beside this program)
arena:   --capacity BYTES      place within these; exit code 1 where that is impossible or not found
         --minimise            go on to the least height, with a proof if there is time (default without --capacity)
         --budget UNITS        how much to search, in units of work: the same on every machine (default 200000000)
         -o, --output FILE     the same table with a column `offset`
what-if: the flags of compile for the model, --dtype f32,f16 for each, and
         --fits BYTES          the largest batch that fits, as 8GiB; exit code 1 if one that was asked for does not
         --csv, --svg, --html FILE
                               the table, the curve, a page with both and the largest plan that fits
target record: --device N, --data DIR, -o FILE
diff:    --batch N, --top K, --width N, --html FILE
profile: --batch N             of an executable with several
",
    "all:     --json                for machines
         --help, --version
",
];

/// Parses a command line.
pub(crate) fn parse(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let command = match words.next().map_err(text)? {
        None | Some(Long("help") | Short('h')) => return Ok(Command::Help),
        Some(Long("version") | Short('V')) => return Ok(Command::Version),
        Some(Value(word)) => word.string().map_err(text)?,
        Some(other) => return Err(text(other.unexpected())),
    };
    match command.as_str() {
        "compile" => parse_compile(words),
        "export" => parse_export(words),
        "models" => {
            let mut json = false;
            while let Some(word) = words.next().map_err(text)? {
                match word {
                    Long("json") => json = true,
                    Long("help") | Short('h') => return Ok(Command::Help),
                    other => return Err(text(other.unexpected())),
                }
            }
            Ok(Command::Models { json })
        }
        "arena" => parse_arena(words),
        "diff" => parse_diff(words),
        "what-if" => parse_what_if(words),
        "profile" => parse_profile(words),
        "target" => parse_record(words),
        other => Err(format!(
            "`{other}` is not a command; there are compile, export, models, arena, diff, what-if, profile and \
             target"
        )),
    }
}

/// What commands over finished plans share: files, a batch, the flags of reports.
#[derive(Default)]
struct Common {
    files: Vec<PathBuf>,
    batch: Option<u64>,
    report: Report,
    json: bool,
}

/// None where help was asked for.
fn parse_common(mut words: lexopt::Parser) -> Result<Option<Common>, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let mut common = Common::default();
    while let Some(word) = words.next().map_err(text)? {
        match word {
            Value(word) => common.files.push(word.into()),
            Long("batch") => common.batch = Some(number("batch", &mut words)?),
            Long("json") => common.json = true,
            Long("help") | Short('h') => return Ok(None),
            Long(flag) if Report::takes(flag) => {
                let flag = flag.to_string();
                common.report.set(&flag, words.value().map_err(text)?)?;
            }
            other => return Err(text(other.unexpected())),
        }
    }
    Ok(Some(common))
}

fn parse_diff(words: lexopt::Parser) -> Result<Command, String> {
    let Some(Common { files, batch, report, json }) = parse_common(words)? else { return Ok(Command::Help) };
    let count = files.len();
    let files = files.try_into();
    let files = files.map_err(|_| format!("diff takes two executables or reports, not {count}: prestow diff A B"))?;
    only_pages("diff", &report)?;
    Ok(Command::Diff(Box::new(Compare { files, batch, report, json })))
}

/// `diff` writes a page and no other form.
fn only_pages(command: &str, report: &Report) -> Result<(), String> {
    let pages = report.files.iter().all(|(form, _)| *form == report::Form::Html);
    if pages && report.views.is_empty() && report.fits.is_none() {
        return Ok(());
    }
    Err(format!("{command} takes --batch, --top, --width, --html and --json; --help lists what there is"))
}

fn parse_record(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    match words.next().map_err(text)? {
        Some(Value(word)) if word == "record" => {}
        Some(Long("help") | Short('h')) => return Ok(Command::Help),
        _ => return Err("target what? there is `target record`, which writes down the GPU at hand".into()),
    }
    let mut record = Record { device: 0, data: Request::default().data, output: None };
    while let Some(word) = words.next().map_err(text)? {
        match word {
            Long("device") => record.device = number("device", &mut words)? as usize,
            Long("data") => record.data = text_value(&mut words)?.into(),
            Long("output") | Short('o') => record.output = Some(text_value(&mut words)?.into()),
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(text(other.unexpected())),
        }
    }
    Ok(Command::Record(record))
}

fn parse_profile(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let action = match words.next().map_err(text)? {
        Some(Value(word)) if word == "import" => Action::Import,
        Some(Value(word)) if word == "analysis" => Action::Analysis,
        Some(Value(word)) if word == "entries" => Action::Entries,
        Some(Long("help") | Short('h')) => return Ok(Command::Help),
        _ => return Err("profile what? there are `profile import FILE`, `analysis FILE...` and `entries FILE`".into()),
    };
    let Some(Common { files, batch, mut report, json }) = parse_common(words)? else { return Ok(Command::Help) };
    if files.is_empty() || action != Action::Analysis && files.len() != 1 {
        return Err("name one file; `profile analysis` takes several".into());
    }
    if action == Action::Entries && report.options.rows == report::Options::default().rows {
        report.options.rows = 20;
    }
    Ok(Command::Profile(Box::new(Profile { action, files, batch, report, json })))
}

/// The words of `compile`, with some of a report's among them.
fn parse_what_if(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let mut report = Report::default();
    let mut rest: Vec<std::ffi::OsString> = vec!["what-if".into()];
    let mut words = words.raw_args().map_err(text)?;
    while let Some(word) = words.next() {
        let flag = word.to_str().and_then(|word| word.strip_prefix("--")).unwrap_or_default().to_string();
        let (flag, inline) = match flag.split_once('=') {
            Some((flag, value)) => (flag.to_string(), Some(value.into())),
            None => (flag, None),
        };
        if !["fits", "csv", "svg", "html", "width", "top"].contains(&&flag[..]) {
            rest.push(word);
            continue;
        }
        let value = inline.or_else(|| words.next()).ok_or_else(|| format!("--{flag} needs a value"))?;
        report.set(&flag, value)?;
    }
    match parse_compile(lexopt::Parser::from_iter(rest))? {
        Command::Compile(compile) if compile.output.is_some() || compile.runner.is_some() => {
            Err("what-if writes no executable; leave out -o and --runner".into())
        }
        Command::Compile(compile) if compile.tune.is_some() => Err("what-if measures no time; leave out --tune".into()),
        Command::Compile(compile) if compile.budget.is_some() => {
            Err("what-if plans without a budget; leave out --budget, or ask `compile` with it".into())
        }
        Command::Compile(compile) => Ok(Command::WhatIf(Box::new(WhatIf { compile: *compile, report }))),
        other => Ok(other),
    }
}

/// The words of `compile` that are about the model.
fn parse_export(words: lexopt::Parser) -> Result<Command, String> {
    match parse_compile(words)? {
        Command::Compile(compile) => {
            let planned = compile.runner.is_some()
                || compile.dump_ir.is_some()
                || compile.budget.is_some()
                || compile.tune.is_some();
            let plain = compile.dtypes == [Precision::F32] && !compile.exact && compile.device.is_none();
            if planned || !plain || compile.level != CpuTarget::new().level || 1 < compile.batches.len() {
                let flags = "--target, --dtype, --budget, --exact, --tune, --runner, --dump-ir and several batches";
                return Err(format!("export writes the model as it is; leave out {flags}"));
            }
            Ok(Command::Export(compile))
        }
        other => Ok(other),
    }
}

fn parse_arena(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let mut file = None;
    let (mut capacity, mut minimise, mut budget, mut output, mut json) = (None, false, None, None, false);
    while let Some(word) = words.next().map_err(text)? {
        match word {
            Value(word) if file.is_none() => file = Some(PathBuf::from(word)),
            Long("capacity") => capacity = Some(number("capacity", &mut words)?),
            Long("minimise") => minimise = true,
            Long("budget") => budget = Some(number("budget", &mut words)?),
            Long("output") | Short('o') => output = Some(PathBuf::from(text_value(&mut words)?)),
            Long("json") => json = true,
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(text(other.unexpected())),
        }
    }
    let file = file.ok_or("place what? name a CSV file with the columns id,lower,upper,size")?;
    Ok(Command::Arena(PlaceFile { file, capacity, minimise, budget, output, json }))
}

fn number(flag: &str, words: &mut lexopt::Parser) -> Result<u64, String> {
    let word = text_value(words)?;
    word.parse().map_err(|_| format!("--{flag} takes a whole number, not `{word}`"))
}

fn parse_compile(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let mut model = None;
    let mut request = Request::default();
    let mut weights = None;
    let (mut output, mut runner, mut dump_ir, mut json) = (None, None, None, false);
    let (mut budget, mut exact, mut batches, mut list) = (None, false, Vec::new(), false);
    let (mut tune, mut tune_threads, mut tune_cache) = (None, None, None);
    let (mut level, mut device) = (CpuTarget::new().level, None);
    let (mut libraries, mut verbose) = (Libraries::default(), false);
    let mut dtypes = vec![Precision::F32];
    while let Some(word) = words.next().map_err(text)? {
        match word {
            Value(word) if model.is_none() => model = Some(word.string().map_err(text)?),
            Long("batch") => batches = parse_batches(&text_value(&mut words)?)?,
            Long("shape") => {
                let (name, shape) = parse_shape(&text_value(&mut words)?)?;
                if request.shapes.insert(name.clone(), shape).is_some() {
                    return Err(format!("--shape is given twice for `{name}`"));
                }
            }
            Long("fix") => {
                let (name, value) = parse_fixed(&text_value(&mut words)?)?;
                if request.fixed.insert(name.clone(), value).is_some() {
                    return Err(format!("--fix is given twice for `{name}`"));
                }
            }
            Long("params") => request.params = Some(text_value(&mut words)?.into()),
            Long("names") => request.names = Some(text_value(&mut words)?.into()),
            Long("list") => list = true,
            Long("weights") => weights = Some(parse_weights(&text_value(&mut words)?)?),
            Long("pretrained") => request.pretrained = true,
            Long("data") => request.data = text_value(&mut words)?.into(),
            Long("target") => (level, device) = parse_target(&text_value(&mut words)?)?,
            Long("dtype") => dtypes = parse_dtypes(&text_value(&mut words)?)?,
            Long("output") | Short('o') => output = Some(PathBuf::from(text_value(&mut words)?)),
            Long("budget") => {
                let word = text_value(&mut words)?;
                budget = Some(word.parse().map_err(|error| format!("--budget: {error}"))?);
            }
            Long(flag) if is_of_libraries(flag) => {
                let flag = flag.to_string();
                set_library(&mut libraries, &flag, &mut words)?;
            }
            Long("verbose") => verbose = true,
            Long("exact") => exact = true,
            Long("tune") => {
                let seconds = words.optional_value().map(parse_seconds).transpose()?;
                tune = Some(seconds.unwrap_or(TUNE_SECONDS));
            }
            Long("tune-threads") => tune_threads = Some(parse_threads(&text_value(&mut words)?)?),
            Long("tune-cache") => tune_cache = Some(PathBuf::from(text_value(&mut words)?)),
            Long("runner") => runner = Some(PathBuf::from(text_value(&mut words)?)),
            Long("dump-ir") => dump_ir = Some(PathBuf::from(text_value(&mut words)?)),
            Long("json") => json = true,
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(text(other.unexpected())),
        }
    }
    if list {
        return Ok(Command::Models { json });
    }
    if weights.is_some() && request.pretrained {
        return Err("--weights and --pretrained exclude each other".into());
    }
    if tune.is_none() && (tune_threads.is_some() || tune_cache.is_some()) {
        return Err("--tune-threads and --tune-cache say how to --tune, which is missing".into());
    }
    if tune.is_some() && exact && device.is_none() {
        return Err("--tune chooses among algorithms that --exact excludes; leave out one of them".into());
    }
    if device.is_some() && tune.is_some() && libraries.cudnn.is_none() && libraries.cublas.is_none() {
        return Err("on a GPU --tune chooses among what libraries have: add --cudnn or --cublas".into());
    }
    if device.is_some() && tune_threads.is_some() {
        return Err("--tune-threads is for processors; leave it out with a GPU as --target".into());
    }
    if libraries.cudnn.is_some() && device.as_ref().is_none_or(|gpu| gpu.facts.is_none()) {
        return Err(
            "--cudnn plans for one GPU: name its facts with --target FILE.json, as targets/cuda-sm_90-h200.json; \
                    `prestow target record` writes such a file where the GPU is"
                .into(),
        );
    }
    if libraries.cublas.is_some() && device.is_none() {
        return Err(format!("--cublas is for GPUs: name one with --target, as {} or FILE.json", architectures()));
    }
    if verbose && libraries.cudnn.is_none() && libraries.cublas.is_none() {
        return Err("--verbose tells what --cudnn and --cublas, which are missing, leave to other kernels".into());
    }
    if dtypes.contains(&Precision::Tf32) && device.is_none() {
        let gpus = architectures();
        return Err(format!("--dtype tf32 is for GPUs' tensor cores: name one with --target, as {gpus} or FILE.json"));
    }
    if dtypes.contains(&Precision::Tf32) && exact {
        return Err("--dtype tf32 and --exact exclude each other".into());
    }
    let libraries = libraries.resolve(exact, &dtypes)?;
    if tune.is_some() && device.is_none() && dtypes != [Precision::F32] {
        return Err("--tune chooses among algorithms for f32; leave out --tune or --dtype".into());
    }
    if budget.is_some() && device.is_none() && dtypes != [Precision::F32] {
        return Err(
            "--budget and --dtype exclude each other on processors: what saves memory at the cost of time is there for \
             f32 alone"
                .into(),
        );
    }
    let tune = tune.map(|seconds| Tune { seconds, threads: tune_threads, cache: tune_cache });
    request.model = model.ok_or("compile what? name a model (`prestow models` lists them) or an ONNX file")?;
    request.weights = weights.unwrap_or_default();
    let compile = Compile {
        source: request,
        output,
        runner,
        dump_ir,
        json,
        budget,
        level,
        device,
        libraries,
        verbose,
        exact,
        dtypes,
        batches,
        tune,
    };
    Ok(Command::Compile(Box::new(compile)))
}

/// The value of a flag, as text.
fn text_value(words: &mut lexopt::Parser) -> Result<String, String> {
    words.value().and_then(|word| word.string()).map_err(|error| format!("{error}; --help lists what there is"))
}

fn parse_batches(given: &str) -> Result<Vec<usize>, String> {
    let mut batches = Vec::new();
    for word in given.split(',') {
        let batch = word.trim().parse().ok().filter(|batch| (1..=65_536).contains(batch));
        let batch = batch.ok_or_else(|| format!("--batch takes numbers from 1 to 65536, as 1,8,32, not `{given}`"))?;
        if batches.contains(&batch) {
            return Err(format!("--batch names {batch} twice"));
        }
        batches.push(batch);
    }
    Ok(batches)
}

fn parse_dtypes(given: &str) -> Result<Vec<Precision>, String> {
    let mut all = Vec::new();
    for name in given.split(',') {
        let precision: Precision = name.parse().map_err(|error| format!("--dtype {given}: {error}"))?;
        if all.contains(&precision) {
            return Err(format!("--dtype names {precision} twice"));
        }
        all.push(precision);
    }
    Ok(all)
}

/// Whether a flag is about libraries.
fn is_of_libraries(flag: &str) -> bool {
    ["cudnn", "cublas", "cublas-workspace"].contains(&flag)
}

/// Takes a flag about libraries.
fn set_library(libraries: &mut Libraries, flag: &str, words: &mut lexopt::Parser) -> Result<(), String> {
    let mut math = || match words.optional_value().as_ref().map(|given| given.to_string_lossy()) {
        None => Ok(Some(Math::Strict)),
        Some(word) if word == "tf32" => Ok(Some(Math::Tf32)),
        Some(word) => Err(format!("--{flag} takes nothing or tf32, as --{flag}=tf32, not `{word}`")),
    };
    match flag {
        "cudnn" => libraries.cudnn = math()?,
        "cublas" => libraries.cublas = math()?,
        _ => {
            let word = text_value(words)?;
            libraries.cublas_workspace = Some(word.parse().map_err(|error| format!("--{flag}: {error}"))?);
        }
    }
    Ok(())
}

fn parse_seconds(given: std::ffi::OsString) -> Result<f64, String> {
    let text = given.to_string_lossy();
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| format!("--tune takes seconds up to a day, as --tune=60, not `{text}`"))
}

fn parse_threads(given: &str) -> Result<usize, String> {
    let threads = given.parse().ok().filter(|threads| (1..=1024).contains(threads));
    threads.ok_or_else(|| format!("--tune-threads takes a number from 1 to 1024, not `{given}`"))
}

fn parse_shape(given: &str) -> Result<(String, Shape), String> {
    let wrong = || format!("--shape takes NAME=1x3x224x224, not `{given}`");
    let (name, extents) = given.rsplit_once('=').ok_or_else(wrong)?;
    let extents = extents.split('x').map(|extent| extent.parse().map_err(|_| wrong()));
    Ok((name.to_string(), extents.collect::<Result<Shape, String>>()?))
}

fn parse_fixed(given: &str) -> Result<(String, f64), String> {
    let (name, value) = given.rsplit_once('=').ok_or_else(|| format!("--fix takes NAME=NUMBER, not `{given}`"))?;
    let value = value.parse().map_err(|_| format!("--fix takes NAME=NUMBER, not `{given}`"))?;
    Ok((name.to_string(), value))
}

fn parse_weights(given: &str) -> Result<Weights, String> {
    match given.strip_prefix("seed:") {
        Some(seed) => {
            seed.parse().map(Weights::Seed).map_err(|_| format!("--weights takes FILE or seed:N, not `{given}`"))
        }
        None => Ok(Weights::File(given.into())),
    }
}

/// `cpu` stands for all processors of this architecture, `cpu:native` for this machine's. A GPU's runner is for this
/// architecture's processors.
fn parse_target(given: &str) -> Result<(Level, Option<Gpu>), String> {
    let here = CpuTarget::new().level;
    let found = match given {
        "cpu" => Some((here, None)),
        "cpu:native" => Level::native().map(|level| (level, None)),
        file if file.ends_with(".json") => return Ok((here, Some(read_facts(file.into())?))),
        name => match CudaTarget::named(name) {
            Some(target) => Some((here, Some(Gpu { target, facts: None }))),
            None => Level::named(name).map(|level| (level, None)),
        },
    };
    let cpus = || Level::ALL.map(|level| level.name).join(", ");
    found.ok_or_else(|| {
        let gpus = architectures();
        format!("--target {given} is not supported; there are cpu, cpu:native, {}, {gpus}, FILE.json", cpus())
    })
}

fn architectures() -> String {
    CudaTarget::ARCHITECTURES.map(|arch| format!("cuda:{arch}")).join(", ")
}

/// The GPU of a file of facts.
fn read_facts(file: PathBuf) -> Result<Gpu, String> {
    let wrong = |error: &dyn std::fmt::Display, way: &str| format!("--target {}: {error}; {way}", file.display());
    let text = std::fs::read_to_string(&file)
        .map_err(|error| wrong(&error, "`prestow target record -o FILE.json` writes such a file where the GPU is"))?;
    let facts = Facts::parse(&text)
        .map_err(|error| wrong(&error, "add it, or record the file again with `prestow target record`"))?;
    let name = format!("cuda:{}", facts.arch);
    let target = CudaTarget::named(&name).ok_or_else(|| {
        wrong(&format!("there are no kernels for {}", facts.arch), &format!("there are some for {}", architectures()))
    })?;
    Ok(Gpu { target, facts: Some((file, facts)) })
}
