//! `prestow arena`: the placer on its own, for problems in minimalloc's form.

use std::fmt::Write as _;
use std::time::Instant;

use arena::{Aim, BufferIx, Limits, PlaceError, Placement, check, csv, place};
use serde_json::json;
use types::{Bytes, EntityId};

use crate::Answer;
use crate::arguments::PlaceFile;

/// Places the buffers of a file and says how well.
#[expect(clippy::disallowed_methods, reason = "how long placing takes is told, and goes nowhere else")]
pub(crate) fn arena(request: &PlaceFile) -> Result<Answer, String> {
    let name = request.file.display();
    let text = std::fs::read_to_string(&request.file).map_err(|error| format!("cannot read `{name}`: {error}"))?;
    let table = csv::parse(&text).map_err(|error| format!("`{name}`: {error}"))?;
    let problem = arena::Problem { capacity: request.capacity.map(Bytes), ..table.problem.clone() };
    let id = |buffer: BufferIx| table.ids[buffer.index()].clone();
    let aim = if request.minimise { Aim::Least } else { Aim::Capacity };
    let work = request.budget.unwrap_or(Limits::default().work);

    let start = Instant::now();
    let outcome = place(&problem, Limits { work, aim });
    let seconds = start.elapsed().as_secs_f64();
    let placement = match outcome {
        Ok(placement) => placement,
        Err(PlaceError::Problem(error)) => return Err(format!("`{name}`: {}", error.text(id))),
        Err(error) => return Ok(Answer { text: refusal(request, &error, seconds), yes: false }),
    };
    if let Err(violations) = check(&problem, &placement.offsets, placement.height()) {
        let faults: Vec<String> = violations.iter().map(|violation| violation.text(id)).collect();
        return Err(format!("internal error: the placement is not valid: {}", faults.join("; ")));
    }
    if let Some(output) = &request.output {
        let text = csv::write(&table, Some(&placement.offsets));
        files::write(output, text.as_bytes()).map_err(|error| error.to_string())?;
    }
    let text = match request.json {
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

/// No placement within the capacity: there is none, or none was found.
fn refusal(request: &PlaceFile, error: &PlaceError, seconds: f64) -> String {
    let state = match error {
        PlaceError::NotFound { .. } | PlaceError::Overflow { .. } => "not_found",
        _ => "impossible",
    };
    match request.json {
        true => format!("{:#}\n", json!({ "state": state, "reason": error.to_string(), "seconds": seconds })),
        false => format!("{error}\n"),
    }
}
