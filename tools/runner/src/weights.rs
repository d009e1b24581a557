//! [`Attachment`]: the weights of a run, from the daemon or from the executable's own file, and the trace of the run.
//! [`Loaded`]: the weights of the other commands.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plan::Plan;
use runtime::{CudaDevice, DevicePart, ImageFile, LibraryPaths, Session, WeightSource};
use serde_json::{Value, json};
use share::Client;
use share::client::{Attached, AttachedWeights, ClientError, Opened};
use share::load::identify;
use share::manifest::Manifest;
use share::settings::ClientSettings;
use share::system::ShortSlices;
use share::trace::{Recorder, now};
use share::wire::Code;
use types::Bytes;

use crate::arguments::{Common, WeightsFrom};
use crate::commands::{check_weights, open_image, own_path};
use crate::say;

/// The executable of a run, and where its weights come from.
pub(crate) struct Attachment {
    pub(crate) image: ImageFile,
    pub(crate) settings: ClientSettings,
    pub(crate) recorder: Recorder,
    /// For `--json`: the tier and the time, or the reason of a private load.
    pub(crate) origin: Value,
    from: WeightsFrom,
    path: PathBuf,
    /// The lease ends with the connection.
    client: Option<Client>,
    early: Option<Result<Lease, Reason>>,
    /// The GPU of the run, for plans that need one.
    gpu: Option<CudaDevice>,
}

/// The reply of a daemon that serves.
enum Lease {
    Found(Found),
    /// The daemon loads the weights behind this process, which uses its own.
    Filling {
        model: u64,
    },
}

/// A lease.
struct Found {
    client: Client,
    attached: Attached,
    /// When the request began.
    start: u64,
    /// Why the weights of a plan for a GPU are in host memory.
    not_on_device: Option<String>,
}

/// Reason why weights are private.
enum Reason {
    /// A setting, or there is no daemon.
    Expected(String),
    /// A daemon is there and did not serve.
    Failed(String),
}

impl Attachment {
    /// Opens the executable without a read of its weights. With `UPR_INITIALIZE_EAGER_ASYNC`, a thread requests them while
    /// the plan is decoded.
    pub(crate) fn new(common: &Common, from: WeightsFrom) -> Result<Attachment, String> {
        let settings = ClientSettings::read(&|name| std::env::var_os(name), env!("CARGO_PKG_VERSION"));
        let settings = settings.map_err(|error| error.to_string())?;
        let recorder = Recorder::default();
        let path = own_path()?;
        let start = now();
        let open = || ImageFile::own().map_err(|error| error.to_string());
        let is_patient = from == WeightsFrom::Daemon;
        let is_early = settings.eager_async && settings.enabled && from != WeightsFrom::Private;
        let (image, early) = match is_early {
            false => (open()?, None),
            true => std::thread::scope(|scope| {
                let early = std::thread::Builder::new().spawn_scoped(scope, || {
                    let file = ImageFile::own_file().map_err(|error| Reason::Failed(error.to_string()))?;
                    attach(&settings, &path, &file, 0, None, is_patient)
                });
                let image = open()?;
                // Without a thread, the weights are requested later.
                Ok::<_, String>((image, early.ok().and_then(|early| early.join().ok())))
            })?,
        };
        match settings.eager || settings.eager_async {
            true => recorder.restart(),
            false => recorder.add("load_symbol", "create", 0, start, Vec::new()),
        }
        let gpu = image.plans.iter().any(|plan| plan.target.starts_with("cuda:")).then(|| CudaDevice {
            ordinal: common.device.unwrap_or(0),
            places: LibraryPaths::of(|name| std::env::var_os(name)),
        });
        // A lease that was requested before the plan was known is of host memory.
        let early = early.filter(|_| gpu.is_none());
        Ok(Attachment { image, settings, recorder, origin: Value::Null, from, path, client: None, early, gpu })
    }

    /// Compares `UPR_INPUT_CHANNELS`, `UPR_INPUT_HEIGHT` and `UPR_INPUT_WIDTH`, where set, with the plan's input.
    pub(crate) fn check_input(&self, plan: &Plan) -> Result<(), String> {
        let names = ["UPR_INPUT_CHANNELS", "UPR_INPUT_HEIGHT", "UPR_INPUT_WIDTH"];
        for (axis, (name, want)) in names.into_iter().zip(self.settings.input).enumerate() {
            let Some(want) = want else { continue };
            let got = plan.inputs.first().filter(|port| port.shape.len() == 4).map(|port| port.shape[axis + 1]);
            if got != Some(want) {
                let got = got.map_or("an input without it".to_string(), |got| got.to_string());
                return Err(format!("{name} is {want}, the plan has {got}; compile the model for that shape"));
            }
        }
        Ok(())
    }

    /// The weights: of the daemon if it is enabled and serves them, else of the executable's file, which is checked then.
    pub(crate) fn weights(&mut self) -> Result<WeightSource, String> {
        let is_separate = self.image.trailer().is_separate();
        let reads_in_runs = self.image.reads_in_runs();
        if reads_in_runs && self.from == WeightsFrom::Daemon {
            return Err("--weights-from uprd: the executable reads weights within its limit of memory (compile \
                        --resident), and a daemon has all of them in memory"
                .into());
        }
        let outcome = match (self.from, self.early.take()) {
            (_, _) if reads_in_runs => Err(Reason::Expected("they are read within the limit of --resident".into())),
            (WeightsFrom::Private, _) => Err(Reason::Expected("--weights-from private".into())),
            (WeightsFrom::Any, None) if !self.settings.enabled => Err(Reason::Expected("UPR_ENABLED is false".into())),
            // An early request does not wait, because it was made before the file was known to have no weights.
            (_, Some(outcome)) if !(is_separate && matches!(outcome, Ok(Lease::Filling { .. }))) => outcome,
            (_, _) => {
                let arenas = self.image.plans.iter().map(|plan| plan.arena.size().0);
                let arena = arenas.max().unwrap_or_default();
                let is_patient = self.from == WeightsFrom::Daemon || is_separate;
                attach(&self.settings, &self.path, self.image.file(), arena, self.gpu.as_ref(), is_patient)
            }
        };
        let outcome = outcome.and_then(|lease| match &lease {
            Lease::Found(found) => self.check(&found.attached.weights).map(|()| lease),
            Lease::Filling { .. } => Ok(lease),
        });
        let (text, is_noted, filling) = match outcome {
            Ok(Lease::Found(found)) => return self.shared(found),
            Ok(Lease::Filling { model }) => ("the daemon is filling, later runs attach".to_string(), true, Some(model)),
            Err(Reason::Expected(text)) => (text, self.settings.is_client, None),
            Err(Reason::Failed(text)) => (text, true, None),
        };
        if self.from == WeightsFrom::Daemon {
            return Err(format!("--weights-from uprd: {text}"));
        }
        if is_separate {
            let name = plan::image::weights_name(&self.image.plans);
            return Err(format!(
                "the executable has no weights of its own, and there are none from a daemon: {text}; start `uprd serve \
                 --base DIR`, where DIR has a file of weights named `{name}`"
            ));
        }
        if is_noted {
            say::note(&format!("weights are private: {text}"));
        }
        let start = now();
        let name = if self.settings.profile_io && !self.settings.enabled { "read_params" } else { "load_params" };
        self.image.check_constants().map_err(|error| error.to_string())?;
        self.recorder.add(name, if name == "read_params" { "io" } else { "create" }, 0, start, Vec::new());
        let load_us = (now() - start) / 1000;
        self.origin = json!({ "from": "private", "reason": text, "load_us": load_us, "filling": filling });
        Ok(WeightSource::from(&self.image))
    }

    /// Weights of the daemon. For granularity `layer` the plans' constants get the offsets of the mapped range.
    fn shared(&mut self, found: Found) -> Result<WeightSource, String> {
        let Found { client, attached, start, not_on_device } = found;
        let Attached { model, generation, tier, load_us, weights, .. } = attached;
        let bytes = Bytes(self.image.trailer().constants_size);
        self.client = Some(client);
        let received = now();
        let (source, granularity, count) = match weights {
            AttachedWeights::Section { file, size } => {
                (WeightSource::File { file: Arc::new(file), offset: 0, size }, "model", 1)
            }
            AttachedWeights::Tensors { mapped, manifest } => {
                self.place(&manifest)?;
                (WeightSource::from(Arc::new(mapped)), "layer", manifest.tensors.len())
            }
            AttachedWeights::Device { parts, manifest, size } => {
                let parts = parts.into_iter().map(|(handle, size)| DevicePart { handle, size }).collect();
                let source = WeightSource::Device { parts, size };
                match manifest {
                    None => (source, "model", 1),
                    Some(manifest) => {
                        self.place(&manifest)?;
                        (source, "layer", manifest.tensors.len())
                    }
                }
            }
        };
        let is_on_device = matches!(source, WeightSource::Device { .. });
        if is_on_device {
            let arguments = vec![(granularity, self.image.plans[0].model.clone()), ("byte_count", bytes.0.to_string())];
            self.recorder.add("cudaIpcOpenMemHandle", "ipc", 0, received, arguments);
        }
        if let Some(text) = &not_on_device {
            say::note(&format!("weights are copied from host memory: {text}"));
        }
        let arguments = || {
            let mut all = vec![
                ("model_id", model.to_string()),
                ("byte_count", bytes.0.to_string()),
                ("nlayers", count.to_string()),
            ];
            // The reply to a load does not tell.
            if load_us == 0 {
                all.push(("needed_eviction", "false".into()));
            }
            all
        };
        // Inner spans end first.
        if self.settings.memory_profile {
            self.recorder.add("cudaMalloc", "memory", 0, received, vec![("size", bytes.0.to_string())]);
        }
        // The name has the original's spelling.
        self.recorder.add("convering_to_nd_array", "serialization", 0, received, arguments());
        self.recorder.add("open", "grpc", 0, start, arguments());
        let name = vec![("model_name", self.image.plans[0].model.clone())];
        self.recorder.add("load_model", "load", 0, start, name);
        let attach_us = (now() - start) as f64 / 1e3;
        let tier = tier.name();
        let loaded = if load_us == 0 { String::new() } else { format!(", loaded in {:.1} ms", load_us as f64 / 1e3) };
        say::note(&format!("weights from uprd: {bytes} from tier {tier} in {attach_us:.1} us{loaded}"));
        self.origin = json!({
            "from": "uprd", "tier": tier, "granularity": granularity, "model": model, "generation": generation,
            "bytes": bytes.0, "attach_us": attach_us, "load_us": load_us,
            "memory": if is_on_device { "device" } else { "host" }, "not_on_device": not_on_device,
        });
        Ok(source)
    }

    /// Checks that a manifest has a place for every constant. It is of the first executable with these bytes.
    fn check(&self, weights: &AttachedWeights) -> Result<(), Reason> {
        let manifest = match weights {
            AttachedWeights::Tensors { manifest, .. } | AttachedWeights::Device { manifest: Some(manifest), .. } => {
                manifest
            }
            _ => return Ok(()),
        };
        let mut constants = self.image.plans.iter().flat_map(|plan| &plan.constants).filter(|own| 0 < own.size.0);
        match constants.find(|own| manifest.find(own.offset.0, own.size.0).is_none()) {
            None => Ok(()),
            Some(own) => Err(Reason::Failed(format!("the daemon's manifest lacks the constant at {}", own.offset.0))),
        }
    }

    /// Gives the plans' constants their offsets in a range of shared tensors.
    fn place(&mut self, manifest: &Manifest) -> Result<(), String> {
        for plan in &mut self.image.plans {
            let plan = Arc::make_mut(plan);
            for constant in plan.constants.iter_mut().filter(|constant| 0 < constant.size.0) {
                let at = manifest.find(constant.offset.0, constant.size.0);
                let missing = || format!("the daemon's manifest lacks the constant at {}", constant.offset.0);
                constant.offset = Bytes(at.ok_or_else(missing)?);
            }
            plan.constants_size = Bytes(manifest.length);
        }
        Ok(())
    }

    /// Ends the run: memory first, then the lease, then the trace.
    pub(crate) fn end(self, session: Session) -> Result<(), String> {
        let plan = &self.image.plans[0];
        // The exit of the process releases memory and threads of the host faster than this process could. A driver's
        // objects are released here, unless the daemon owns the weights.
        let is_left = !self.settings.free && (plan.target.starts_with("cpu:") || self.client.is_some());
        match is_left {
            true => std::mem::forget(session),
            false => self.recorder.span("free", "prediction", || drop(session)),
        }
        let Some(target) = &self.settings.profile_target else { return Ok(()) };
        let dimensions: Vec<usize> =
            plan.inputs.first().map_or(Vec::new(), |port| port.shape.iter().copied().collect());
        let mean = plan.preprocess.as_ref().map_or([0.0; 3], |preprocess| preprocess.mean);
        let data = json!({
            "model_name": plan.model, "model_path": self.path, "model_params": self.path, "symbol_params": self.path,
            "input": { "dimensions": dimensions, "mean": mean }, "weights": self.origin,
        });
        let trace =
            self.recorder.trace(&self.settings, &format!("{} (process {})", plan.model, std::process::id()), data);
        files::write(target, trace.to_string().as_bytes()).map_err(|error| error.to_string())
    }
}

/// An executable with the weights of a command other than `run`: those of its own file, or the daemon's if they are separate.
pub(crate) struct Loaded {
    pub(crate) image: ImageFile,
    pub(crate) source: WeightSource,
    /// The lease ends with the connection.
    _client: Option<Client>,
}

impl Loaded {
    pub(crate) fn new(common: &Common) -> Result<Loaded, String> {
        let image = open_image()?;
        if image.trailer().is_separate() {
            let mut attachment = Attachment::new(common, WeightsFrom::Any)?;
            let source = attachment.weights()?;
            return Ok(Loaded { image: attachment.image, source, _client: attachment.client });
        }
        check_weights(&image)?;
        Ok(Loaded { source: (&image).into(), image, _client: None })
    }
}

/// Requests the weights of an executable: in memory of its GPU if the daemon has a tier for it, else in host memory. With
/// `is_patient` it waits while the daemon loads them; else the daemon loads them behind this process.
fn attach(
    settings: &ClientSettings,
    path: &Path,
    file: &File,
    internal: u64,
    gpu: Option<&CudaDevice>,
    is_patient: bool,
) -> Result<Lease, Reason> {
    let start = now();
    let Some(socket) = settings.socket() else {
        let places: Vec<String> = settings.sockets.iter().map(|path| format!("`{}`", path.display())).collect();
        return Err(Reason::Expected(format!("there is no daemon at {}", places.join(" or "))));
    };
    // Until the reply is here: computation has the usual slices.
    let _slices = ShortSlices::new();
    let open = || {
        let mut client = Client::connect(socket, settings.socket_is_explicit)?;
        let key = identify(file, path, settings.granularity);
        let key = key.map_err(|failure| ClientError::Reply(failure.to_string()))?;
        let mut not_on_device = None;
        if let Some(gpu) = gpu {
            let uuid = gpu.uuid().map_err(|error| ClientError::Reply(error.to_string()))?;
            let opened = match is_patient {
                true => client.open_device(&key, file, internal, &uuid).map(Opened::Attached),
                false => client.open_or_fill_device(&key, file, internal, &uuid),
            };
            match opened {
                Ok(Opened::Attached(attached)) => {
                    return Ok(Lease::Found(Found { client, attached, start, not_on_device }));
                }
                Ok(Opened::Filling { model }) => return Ok(Lease::Filling { model }),
                Err(ClientError::Refused { code: Code::Unsupported | Code::Exhausted, message }) => {
                    not_on_device = Some(message);
                }
                Err(error) => return Err(error),
            }
        }
        let opened = match is_patient {
            true => client.open(&key, Some(file), internal, "").map(Opened::Attached)?,
            false => client.open_or_fill(&key, file, internal)?,
        };
        Ok(match opened {
            Opened::Attached(attached) => Lease::Found(Found { client, attached, start, not_on_device }),
            Opened::Filling { model } => Lease::Filling { model },
        })
    };
    open().map_err(|error| Reason::Failed(ClientError::to_string(&error)))
}
