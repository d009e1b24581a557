//! `uprd attach`: leases as an executable's, timed.

use std::io::Read;
use std::path::PathBuf;

use serde_json::json;
use share::client::{Attached, AttachedWeights};
use share::core::ModelKey;
use share::load::identify;
use share::memory::Mapped;
use share::trace::now;

use crate::cli::AttachArgs;
use crate::{Failure, Place, operate};

pub(crate) fn run(args: &AttachArgs, place: &Place) -> Result<String, Failure> {
    let given = args.model.clone().unwrap_or_else(|| PathBuf::from(&place.settings.model_name));
    let granularity = args.granularity.unwrap_or(place.settings.granularity);
    let file = match given.is_file() {
        true => Some(operate::open(&given)?),
        false => None,
    };
    let key = file.as_ref().map(|file| {
        let key = identify(file, &given, granularity);
        key.map_err(|error| Failure::Error(format!("`{}`: {error}", given.display())))
    });
    let key: Option<ModelKey> = key.transpose()?;
    let (mut times, mut held) = (Vec::with_capacity(args.count), None);
    for _ in 0..args.count.max(1) {
        let start = now();
        let mut client = place.connect()?;
        let attached = match (&key, &file) {
            (Some(key), Some(file)) => client.open(key, Some(file).filter(|_| !args.resident), 0, "")?,
            _ => client.open_name(&given.to_string_lossy())?,
        };
        let attached = map(attached)?;
        times.push(now() - start);
        held = Some((client, attached));
    }
    let (_client, attached) = held.expect("there was one round");
    if args.read {
        // One byte of each page makes it part of this process's memory.
        let sum = attached.1.as_ref().iter().step_by(4096).fold(0u64, |sum, byte| sum.wrapping_add((*byte).into()));
        std::hint::black_box(sum);
    }
    times.sort_unstable();
    let at = |fraction: f64| times[((times.len() - 1) as f64 * fraction).round() as usize] as f64 / 1e3;
    let bytes = attached.1.as_ref().len();
    let text = match args.json {
        true => format!(
            "{}\n",
            json!({
                "model": attached.0.0, "generation": attached.0.1, "tier": attached.0.2, "bytes": bytes,
                "attaches": times.len(), "p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1.0),
            })
        ),
        false => format!(
            "model {} generation {} from {}: {bytes} bytes attached in {:.1} us (p99 {:.1} us of {})\n",
            attached.0.0,
            attached.0.1,
            attached.0.2,
            at(0.5),
            at(0.99),
            times.len()
        ),
    };
    if args.hold {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| Failure::Error(error.to_string()))?;
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        return Ok(String::new());
    }
    Ok(text)
}

/// Maps the weights: model, generation and tier, and the mapping.
fn map(attached: Attached) -> Result<((u64, u64, &'static str), Mapped), Failure> {
    let head = (attached.model, attached.generation, attached.tier.name());
    let mapped = match attached.weights {
        AttachedWeights::Tensors { mapped, .. } => mapped,
        AttachedWeights::Section { file, size } => {
            let mapped = Mapped::whole(file.into(), size);
            mapped.map_err(io)?
        }
    };
    Ok((head, mapped))
}

fn io(error: std::io::Error) -> Failure {
    Failure::Error(format!("cannot map the weights: {error}"))
}
