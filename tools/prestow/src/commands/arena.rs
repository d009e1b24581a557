//! `prestow arena`: the memory planner alone, for tables in minimalloc's format.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use arena::{Aim, BufferIx, Limits, PlaceError, Placement, check, csv, place};
use serde_json::json;
use types::{Bytes, EntityId};

use super::{Answer, message};
use crate::progress::Progress;

/// The largest table: some ten million buffers.
const TABLE_MAX: Bytes = Bytes(1 << 30);

/// Flags of `prestow arena`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Table of buffers with the columns id,lower,upper,size and optionally alignment, offset, gaps.
    file: PathBuf,
    /// Place within this many bytes; exit code 1 if that is impossible or no placement is found.
    #[arg(long, value_name = "BYTES")]
    pub(crate) capacity: Option<u64>,
    /// Search for the least height even if a capacity is given (default without --capacity).
    #[arg(long, alias = "minimise")]
    minimize: bool,
    /// Work of the search, in units that are the same on every machine (default 200000000).
    #[arg(long, value_name = "UNITS")]
    budget: Option<u64>,
    /// Write the table with a column `offset`.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Places the buffers of a file. The answer is no if the capacity is not met.
#[expect(clippy::disallowed_methods, reason = "the report states how long placing took")]
pub(crate) fn run(args: &Args) -> Result<Answer, String> {
    let name = args.file.display();
    let text = files::read_text(&args.file, TABLE_MAX).map_err(message)?;
    let table = csv::parse(&text).map_err(|error| format!("`{name}`: {error}"))?;
    let problem = arena::Problem { capacity: args.capacity.map(Bytes), ..table.problem.clone() };
    let id = |buffer: BufferIx| table.ids[buffer.index()].clone();
    let aim = if args.minimize { Aim::Least } else { Aim::Capacity };
    let work = args.budget.unwrap_or(Limits::default().work);

    let progress = Progress::spinner("searching for a placement");
    let start = Instant::now();
    let outcome = place(&problem, Limits { work, aim });
    let seconds = start.elapsed().as_secs_f64();
    drop(progress);
    let placement = match outcome {
        Ok(placement) => placement,
        Err(PlaceError::Problem(error)) => return Err(format!("`{name}`: {}", error.text(id))),
        Err(error) => return Ok(Answer { text: refusal(args, &error, seconds), yes: false }),
    };
    if let Err(violations) = check(&problem, &placement.offsets, placement.height()) {
        let faults: Vec<String> = violations.iter().map(|violation| violation.text(id)).collect();
        return Err(format!("internal error: the placement is not valid: {}", faults.join("; ")));
    }
    if let Some(output) = &args.output {
        let text = csv::write(&table, Some(&placement.offsets));
        files::write(output, text.as_bytes()).map_err(message)?;
    }
    let text = match args.json {
        true => as_json(&problem, &placement, seconds),
        false => as_text(&problem, &placement, seconds),
    };
    Ok(Answer { text, yes: true })
}

fn as_json(problem: &arena::Problem, placement: &Placement, seconds: f64) -> String {
    let certificate = &placement.certificate;
    let report = json!({
        "buffers": problem.buffers.len(),
        "capacity_bytes": problem.capacity.map(|capacity| capacity.0),
        "height_bytes": placement.height().0,
        "lower_bound_bytes": certificate.lower_bound.0,
        "least_bytes": certificate.least.0,
        "peak_step": placement.peak_step,
        "state": certificate.proof().name(),
        "seconds": seconds,
    });
    format!("{report:#}\n")
}

fn as_text(problem: &arena::Problem, placement: &Placement, seconds: f64) -> String {
    let certificate = &placement.certificate;
    let mut text = String::new();
    let _ = writeln!(text, "buffers      {}", problem.buffers.len());
    let _ = writeln!(text, "height       {} ({})", placement.height().0, placement.height());
    let _ = writeln!(text, "lower bound  {} at step {}", certificate.lower_bound.0, placement.peak_step);
    if certificate.lower_bound < certificate.least {
        let _ = writeln!(text, "ruled out    all below {}", certificate.least.0);
    }
    let _ = writeln!(text, "state        {}", certificate.text());
    let _ = writeln!(text, "time         {seconds:.3} s");
    text
}

/// The report of no placement within the capacity: impossible, or not found.
fn refusal(args: &Args, error: &PlaceError, seconds: f64) -> String {
    let state = match error {
        PlaceError::NotFound { .. } | PlaceError::Overflow { .. } => "not_found",
        _ => "impossible",
    };
    match args.json {
        true => format!("{:#}\n", json!({ "state": state, "reason": error.to_string(), "seconds": seconds })),
        false => format!("{error}\n"),
    }
}
