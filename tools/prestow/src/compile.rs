//! `prestow compile`: a model becomes an executable.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use compiler::{Compiled, source};
use serde_json::json;
use types::Bytes;

use crate::arguments::Compile;
use crate::dump::Dump;

/// Compiles and says what came of it.
#[expect(clippy::disallowed_methods, reason = "how long compiling takes is told, and goes nowhere else")]
pub(crate) fn compile(request: &Compile) -> Result<String, String> {
    let start = Instant::now();
    let runner = read_runner(request.runner.as_deref())?;
    let output = output_path(request)?;
    let model = source::load(&request.source).map_err(|error| error.to_string())?;
    let mut dump = request.dump_ir.as_deref().map(Dump::new).transpose()?;
    let target = lower::cpu::CpuTarget::new();
    let watch = |pass: &'static str, graph: &ir::Graph| {
        if let Some(dump) = &mut dump {
            dump.show(pass, graph);
        }
    };
    let compiled = compiler::compile(model, &target, watch).map_err(|error| error.to_string())?;
    if let Some(dump) = dump {
        dump.finish()?;
    }
    compiler::write_executable(&output, &runner, &compiled).map_err(|error| error.to_string())?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(if request.json { as_json(&compiled, &output, seconds) } else { as_text(&compiled, &output, seconds) })
}

fn read_runner(given: Option<&Path>) -> Result<Vec<u8>, String> {
    let path = match given {
        Some(path) => path.to_path_buf(),
        None => {
            let own = std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
            own.with_file_name("prestow-runner")
        }
    };
    std::fs::read(&path).map_err(|error| {
        format!(
            "cannot read the runner `{}`: {error}; build it with `cargo build --release -p prestow-runner`",
            path.display()
        )
    })
}

fn output_path(request: &Compile) -> Result<PathBuf, String> {
    let output = match &request.output {
        Some(path) => path.clone(),
        None => Path::new("target/prestow").join(request.source.name()),
    };
    if output.is_dir() {
        return Err(format!("`{}` is a directory; name a file with -o", output.display()));
    }
    Ok(output)
}

fn as_json(compiled: &Compiled, output: &Path, seconds: f64) -> String {
    let plan = &compiled.plan;
    let report = json!({
        "model": plan.model,
        "target": plan.target,
        "batch": plan.batch,
        "output": output,
        "arena_bytes": plan.arena.size.0,
        "lower_bound_bytes": plan.arena.lower_bound.0,
        "optimal": plan.arena.is_optimal(),
        "weights_bytes": plan.constants_size.0,
        "steps": plan.steps.len(),
        "parameters": plan.parameters,
        "flops": plan.flops,
        "compile_ms": seconds * 1e3,
    });
    format!("{report:#}\n")
}

fn as_text(compiled: &Compiled, output: &Path, seconds: f64) -> String {
    let plan = &compiled.plan;
    let mut text = String::new();
    let proof = match plan.arena.is_optimal() {
        true => "optimal: equals the lower bound".to_string(),
        false => format!("lower bound {}", plan.arena.lower_bound),
    };
    let _ = writeln!(text, "{} for {}, batch {}", plan.model, plan.target, plan.batch);
    let _ = writeln!(
        text,
        "  {} steps, {:.2} M parameters, {:.2} GFLOP a run",
        plan.steps.len(),
        plan.parameters as f64 / 1e6,
        plan.flops as f64 / 1e9
    );
    let _ = writeln!(text, "  arena {} ({proof}), weights {}", plan.arena.size, plan.constants_size);
    for (scope, size) in largest_scopes(compiled) {
        let _ = writeln!(text, "  {size:>12}  {scope}");
    }
    let _ = writeln!(text, "wrote {} in {:.2} s; run it", output.display(), seconds);
    text
}

/// The three largest buffers alive at the peak.
fn largest_scopes(compiled: &Compiled) -> Vec<(String, Bytes)> {
    let step = compiled.plan.arena.peak_step;
    let alive = compiled.plan.buffers.iter().filter(|buffer| (buffer.first_step..=buffer.last_step).contains(&step));
    let mut largest: Vec<(String, Bytes)> = alive.map(|buffer| (buffer.tag.to_string(), buffer.size)).collect();
    largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    largest.truncate(3);
    largest
}

/// The networks that have a name.
pub(crate) fn models(json: bool) -> String {
    let models = source::models();
    if json {
        let rows: Vec<_> = models
            .iter()
            .map(|model| json!({ "name": model.name, "parameters": model.parameters, "pretrained": model.pretrained }))
            .collect();
        return format!("{:#}\n", json!(rows));
    }
    let mut text = String::new();
    for model in models {
        let pretrained = if model.pretrained { "  --pretrained" } else { "" };
        let _ = writeln!(text, "{:<18} {:>12} parameters{pretrained}", model.name, model.parameters);
    }
    text
}
