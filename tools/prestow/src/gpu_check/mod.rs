//! `prestow gpu-check`: operators and networks on the GPU at hand: results, memory and speed, in one report and one file.
//! This file has the command and the report; `operators` the cases of operators, beside their definitions, and `trials` what
//! they are in which numbers; `networks` the rows of networks, beside this machine's processor, `ceilings` what the GPU does at
//! most, `peers` the other runtimes.

mod ceilings;
mod networks;
mod operators;
mod peers;
mod trials;

use std::io::Write;
use std::sync::Arc;

use cuda::cublas::CublasLt;
use cuda::driver::Gpu;
use cuda::{Math, Properties};
use lower::cuda::CudaTarget;
use serde_json::{Value as Json, json};
use types::Bytes;

use crate::Answer;
use crate::arguments::{GpuCheck, Libraries, Numbers};
use crate::device::{Device, places};

pub(crate) use peers::NAMES as PEERS;

use ceilings::Ceilings;
use peers::Peers;

/// Checks all operators and networks asked for, one after the other; the tables are shown as they grow. The answer is no where
/// one is wrong, or uses other memory than was planned.
pub(crate) fn gpu_check(asked: &GpuCheck) -> Result<Answer, String> {
    let cases = asked.operators.as_deref().map(operators::chosen).transpose()?;
    let gpu = Gpu::open(asked.device).map_err(|error| error.to_string())?;
    let maker = Maker::new(asked, &gpu)?;
    let mut report = Report::new(asked, &gpu, &maker)?;
    let mut yes = true;
    if let Some(cases) = cases {
        yes &= operators::check(&maker, &cases, &mut report)?;
    }
    if asked.networks {
        yes &= networks(maker, &mut report)?;
    }
    let text = if asked.json { report.text() } else { String::new() };
    Ok(Answer { text, yes })
}

/// Networks, beside what the GPU does at most and other runtimes; whether all are right.
fn networks(maker: Maker, report: &mut Report) -> Result<bool, String> {
    let asked = maker.asked;
    let measured = Ceilings::measure(&maker.gpu, asked);
    let mut check = Check { asked, maker, ceilings: None, peers: None };
    match measured {
        Ok(ceilings) => {
            report.tell("ceilings", ceilings.json(), &ceilings.text())?;
            check.ceilings = Some(ceilings);
        }
        Err(why) => {
            report.tell("ceilings", json!({ "not_measured": why }), &format!("ceilings not measured: {why}\n"))?;
        }
    }
    if !asked.peers.is_empty() {
        let peers = Peers::find(asked)?;
        report.tell("peers", peers.json(), &peers.text())?;
        check.peers = peers.are_there().then_some(peers);
    }
    networks::rows(&check, report)
}

/// What networks are checked with.
struct Check<'a> {
    asked: &'a GpuCheck,
    maker: Maker<'a>,
    /// None where they could not be measured.
    ceilings: Option<Ceilings>,
    /// None where there is none.
    peers: Option<Peers>,
}

/// Makes the GPU a target for one kind of numbers, on whichever thread compiles.
struct Maker<'a> {
    asked: &'a GpuCheck,
    /// The target's name.
    name: String,
    gpu: Arc<Gpu>,
    /// Where cuDNN is asked for.
    properties: Option<Properties>,
}

impl Maker<'_> {
    fn new<'a>(asked: &'a GpuCheck, gpu: &Arc<Gpu>) -> Result<Maker<'a>, String> {
        let name = format!("cuda:{}", gpu.arch());
        if CudaTarget::named(&name).is_none() {
            let (own, arch, known) = (gpu.name(), gpu.arch(), CudaTarget::ARCHITECTURES.join(", "));
            return Err(format!("{own} is {arch}, for which there are no kernels; there are some for {known}"));
        }
        let facts = asked.libraries.cudnn.map(|_| gpu.facts()).transpose().map_err(|error| error.to_string())?;
        Ok(Maker { asked, name, gpu: gpu.clone(), properties: facts.map(|facts| facts.device) })
    }

    fn device(&self, numbers: Numbers) -> Result<Device, String> {
        let target = numbers.on(CudaTarget::named(&self.name).expect("it was known when this was made"));
        Device::find(target, self.asked.libraries.of(numbers), self.properties.as_ref(), &self.asked.data)
    }
}

/// What is found out, on the screen and in a file as it grows: who is stopped in the middle loses nothing.
struct Report<'a> {
    asked: &'a GpuCheck,
    json: Json,
}

impl Report<'_> {
    /// With its head.
    fn new<'a>(asked: &'a GpuCheck, gpu: &Gpu, maker: &Maker) -> Result<Report<'a>, String> {
        let (free, total) = gpu.memory().map_err(|error| error.to_string())?;
        // That each kind of numbers has a target is known before anything is run.
        let all: Result<Vec<Device>, String> = asked.dtypes.iter().map(|&numbers| maker.device(numbers)).collect();
        let all = all?;
        let (version, libraries) = (all[0].version()?, asked.libraries);
        let cudnn = libraries.cudnn.and(all[0].cudnn.clone());
        let found = || CublasLt::find(&places(&asked.data)).map_err(|error| error.to_string());
        let cublas = libraries.cublas.map(|_| Ok::<_, String>(found()?.version())).transpose()?;
        // How a library computes may depend on what is stored.
        let maths = |of: fn(Libraries) -> Option<Math>| -> String {
            let mut names: Vec<&str> =
                asked.dtypes.iter().filter_map(|&numbers| of(libraries.of(numbers))).map(Math::name).collect();
            names.dedup();
            names.join(", ")
        };
        let (cudnn_math, cublas_math) = (maths(|own| own.cudnn), maths(|own| own.cublas));
        let named = |what: &str, library: &Option<String>, math: &str| match library {
            Some(version) => format!(", {what} {version} ({math})"),
            None => String::new(),
        };
        let by = named("cuDNN", &cudnn, &cudnn_math) + &named("products by cuBLASLt", &cublas, &cublas_math);
        let (name, arch) = (gpu.name(), gpu.arch());
        let (free_text, total_text) = (Bytes(free as u64), Bytes(total as u64));
        let text = format!("{name} ({arch}), {free_text} of {total_text} free, NVRTC {version}{by}\n");
        let library =
            |library: Option<String>, math: String| library.map(|version| json!({ "version": version, "math": math }));
        let dtypes: Vec<&str> = asked.dtypes.iter().map(|numbers| numbers.name()).collect();
        let json = json!({
            "format": "prestow-gpu-check",
            "gpu": name,
            "arch": arch,
            "memory_bytes": total,
            "free_bytes": free,
            "nvrtc": version,
            "cudnn": library(cudnn, cudnn_math),
            "cublas": library(cublas, cublas_math),
            "dtypes": dtypes,
            "operators": [],
            "operators_summary": [],
            "networks": [],
        });
        let report = Report { asked, json };
        report.show(&text);
        Ok(report)
    }

    /// Has a part of it, with what is shown of that.
    fn tell(&mut self, key: &str, part: Json, text: &str) -> Result<(), String> {
        self.json[key] = part;
        self.show(text);
        self.save()
    }

    /// One more row of a list.
    fn add(&mut self, key: &str, row: Json, text: &str) -> Result<(), String> {
        self.json[key].as_array_mut().expect("it is a list").push(row);
        self.show(text);
        self.save()
    }

    fn show(&self, text: &str) {
        if !self.asked.json {
            // Whoever closes the pipe has read enough.
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }

    fn text(&self) -> String {
        format!("{:#}\n", self.json)
    }

    fn save(&self) -> Result<(), String> {
        let Some(path) = &self.asked.output else { return Ok(()) };
        files::write(path, self.text().as_bytes()).map_err(|error| error.to_string())
    }
}
