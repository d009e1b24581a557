//! [`Model`]: a network with its executable and the files of peers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use compiler::source::Request;
use serde_json::{Value as Json, json};
use types::{DType, Random, Shape, Tensor};
use weights::npy;

use crate::Options;
use crate::process::{Once, Visit, first_line, output_of, parse};

/// A network with its executable and the files of peers.
pub(crate) struct Model {
    pub(crate) name: String,
    /// The folder of its inputs, outputs and `request.json`.
    pub(crate) folder: PathBuf,
    exe: PathBuf,
    inputs: Vec<(String, PathBuf)>,
    pub(crate) output_names: Vec<String>,
}

impl Model {
    /// Compiles, exports, and makes inputs.
    pub(crate) fn prepare(options: &Options, model: &str) -> Result<Model, String> {
        let (source, shapes) = model.split_once(':').map_or((model, None), |(source, shapes)| (source, Some(shapes)));
        let (mut name, mut words) = (Request { model: source.into(), ..Request::default() }.name(), Vec::new());
        for shape in shapes.iter().flat_map(|shapes| shapes.split(',')) {
            words.extend(["--shape".to_string(), shape.to_string()]);
        }
        if 1 < options.batch {
            if is_file(source) {
                return Err(format!(
                    "`{source}`: --batch is for networks of the zoo; a file takes `{source}:INPUT=DIMS`"
                ));
            }
            name = format!("{name}-batch{}", options.batch);
            words.extend(["--batch".to_string(), options.batch.to_string()]);
        }
        let folder = target().join("bench-cpu").join(&name);
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make `{}`: {error}", folder.display()))?;
        let ours = |command: &str, options: &[&str], output: &Path| {
            let mut ours = Command::new(target().join("release/prestow"));
            ours.arg(command).arg(if is_file(source) { at_root(source) } else { source.into() });
            output_of(ours.args(&words).args(options).arg("-o").arg(output))
        };
        let exe = folder.join("exe");
        ours("compile", &["--dtype", &options.dtype], &exe)?;

        // The exported model: for networks of the zoo, and for peers that do not read ONNX files.
        let plain = folder.join("model.onnx");
        let mut is_plain = !options.peers.is_empty();
        if is_plain && let Err(error) = ours("export", &[], &plain) {
            if !is_file(source) {
                return Err(error);
            }
            eprintln!("{name}: {error}");
            is_plain = false;
        }
        let file = if is_file(source) { at_root(source) } else { plain.clone() };

        let described: Json = parse(&output_of(Command::new(&exe).args(["describe", "--json"]))?)?;
        let mut random = Random::new(1);
        let mut inputs = Vec::new();
        for (ix, port) in described["inputs"].as_array().into_iter().flatten().enumerate() {
            let path = folder.join(format!("input{ix}.npy"));
            write(&path, &npy::write(&made_up(&mut random, port)?))?;
            inputs.push((text(&port["name"]), path));
        }
        let output_names: Vec<String> =
            described["outputs"].as_array().into_iter().flatten().map(|port| text(&port["name"])).collect();
        let request = json!({
            "model": file,
            "plain": is_plain.then_some(plain),
            "threads": options.threads,
            "dtype": options.dtype,
            "inputs": inputs,
            "outputs": output_names,
        });
        write(&folder.join("request.json"), request.to_string().as_bytes())?;
        Ok(Model { name, folder, exe, inputs, output_names })
    }

    /// Some runs of the executable, as a new process; its file is in the page cache.
    pub(crate) fn visit(&self, threads: usize, runs: usize) -> Result<Visit, String> {
        let mut command = Command::new(&self.exe);
        command.args([
            "bench",
            "--json",
            "--warmup",
            "3",
            "--iters",
            &runs.to_string(),
            "--threads",
            &threads.to_string(),
        ]);
        let report = parse(&output_of(&mut command)?)?;
        let latency = |name: &str| {
            report["latency_ms"][name].as_f64().ok_or_else(|| format!("{command:?} told no latency `{name}`"))
        };
        Ok(Visit { median: latency("p50")?, least: latency("min")? })
    }

    fn run(&self) -> Command {
        let mut command = Command::new(&self.exe);
        command.arg("run");
        for (name, path) in &self.inputs {
            command.arg("--input").arg(format!("{name}={}", path.display()));
        }
        command
    }

    pub(crate) fn outputs(&self) -> Result<Vec<Tensor>, String> {
        let folder = self.folder.join("outputs");
        output_of(self.run().arg("--output-dir").arg(&folder))?;
        let file = |name: &String| folder.join(format!("{}.npy", name.replace(['/', '\\', '\0'], "_")));
        self.output_names.iter().map(|name| read(&file(name))).collect()
    }

    pub(crate) fn once(&self, threads: usize) -> Result<Once, String> {
        let threads = ["--threads".to_string(), threads.to_string()];
        let (_, all_ms) = first_line(self.run().args(&threads))?;
        let report = parse(&output_of(Command::new(&self.exe).args(["memory", "--actual", "--json"]).args(&threads))?)?;
        let peak_rss_bytes = report["actual"]["peak_rss_bytes"].as_f64().unwrap_or(f64::NAN);
        Ok(Once { all_ms, load_ms: None, first_ms: None, peak_rss_bytes })
    }
}

/// Floats in [-1, 1), integers 0 and 1.
fn made_up(random: &mut Random, port: &Json) -> Result<Tensor, String> {
    let extents = port["shape"].as_array().into_iter().flatten().map(|extent| extent.as_u64().unwrap_or(0) as usize);
    let shape: Shape = extents.collect::<Vec<_>>()[..].into();
    let dtype = [DType::F32, DType::I64, DType::I32, DType::Bool]
        .into_iter()
        .find(|dtype| dtype.to_string() == text(&port["dtype"]));
    match dtype {
        Some(DType::F32) => Ok(Tensor::from_fn(shape, |_| random.uniform(-1.0, 1.0))),
        Some(dtype) => Ok(Tensor::from_fn(shape, |_| random.below(2) as i64).cast(dtype)),
        None => Err(format!("inputs of {} are not made up", port["dtype"])),
    }
}

pub(crate) fn is_file(model: &str) -> bool {
    model.ends_with(".onnx")
}

pub(crate) fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("benches are in the workspace").join(path)
}

/// The target folder, which has this program under `release/deps`.
fn target() -> PathBuf {
    let own = std::env::current_exe().expect("this program has a file");
    own.ancestors().nth(3).expect("benches are in a target folder").to_path_buf()
}

fn text(json: &Json) -> String {
    json.as_str().unwrap_or_default().to_string()
}

pub(crate) fn read(path: &Path) -> Result<Tensor, String> {
    let bytes = fs::read(path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
    npy::read(&bytes).map_err(|error| format!("`{}`: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}
