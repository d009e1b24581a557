//! `uprd attach`: leases as an executable's, timed.

use std::io::Read;
use std::path::PathBuf;

use serde_json::json;
use share::client::{Attached, AttachedWeights};
use share::core::ModelKey;
use share::load::identify;
use share::memory::Mapped;
use share::system::ShortSlices;
use share::trace::now;

use crate::cli::AttachArgs;
use crate::gpu::Gpu;
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
    if let Some(device) = &args.device {
        let (Some(key), Some(file)) = (&key, &file) else {
            return Err(Failure::Error("--device needs an executable: names are those of the host tier".into()));
        };
        return on_device(args, place, device, key, file);
    }
    // As an executable attaches.
    let _slices = ShortSlices::new();
    let (mut times, mut held) = (Vec::new(), None);
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
    report(args, attached.0, attached.1.as_ref().len() as u64, times)
}

/// Leases in memory of a GPU, mapped there.
fn on_device(
    args: &AttachArgs,
    place: &Place,
    device: &str,
    key: &ModelKey,
    file: &std::fs::File,
) -> Result<String, Failure> {
    let gpu = Gpu::open(device).map_err(Failure::Error)?;
    let (mut times, mut held) = (Vec::new(), None);
    for _ in 0..args.count.max(1) {
        let start = now();
        let mut client = place.connect()?;
        let attached = client.open_device(key, file, 0, gpu.uuid())?;
        let head = (attached.model, attached.generation, attached.tier.name());
        let AttachedWeights::Device { parts, size, .. } = attached.weights else {
            return Err(Failure::Error("the daemon granted memory of the host".into()));
        };
        let mapped = gpu.map(&parts).map_err(Failure::Error)?;
        times.push(now() - start);
        held = Some((client, mapped, head, size));
    }
    let (_client, _mapped, head, size) = held.expect("there was one round");
    report(args, head, size, times)
}

/// The text of the last attach and of all times. With --hold, prints it and waits first.
fn report(args: &AttachArgs, head: (u64, u64, &str), bytes: u64, mut times: Vec<u64>) -> Result<String, Failure> {
    times.sort_unstable();
    let at = |fraction: f64| times[((times.len() - 1) as f64 * fraction).round() as usize] as f64 / 1e3;
    let (model, generation, tier) = head;
    let text = match args.json {
        true => format!(
            "{}\n",
            json!({
                "model": model, "generation": generation, "tier": tier, "bytes": bytes,
                "attaches": times.len(), "p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1.0),
            })
        ),
        false => format!(
            "model {model} generation {generation} from {tier}: {bytes} bytes attached in {:.1} us (p99 {:.1} us of {})\n",
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
        AttachedWeights::Device { .. } => return Err(Failure::Error("the daemon granted memory of a device".into())),
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
