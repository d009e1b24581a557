//! Worker threads: they read files and verify memory, so that the server's loop never waits for a disk.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use super::device::{self, Block, OnDevice};
use crate::core::{ModelId, ModelKey};
use crate::device::ExportingDevice;
use crate::load::{LoadFailure, LoadPace, Resident, ResidentPool};
use crate::trace::{Recorder, now};

/// Work.
pub(super) enum Job {
    Load { model: ModelId, key: ModelKey, file: Arc<File>, name: String },
    Verify { model: ModelId, resident: Resident },
    Upload { ix: usize, request: u32, memory: Arc<dyn ExportingDevice>, resident: Resident, known: Vec<Option<Block>> },
    VerifyDevice { model: ModelId, memory: Arc<dyn ExportingDevice>, on_device: OnDevice },
}

/// Its result.
pub(super) enum Finished {
    Loaded { model: ModelId, outcome: Result<Resident, LoadFailure>, nanoseconds: u64 },
    Verified { model: ModelId, outcome: io::Result<bool> },
    Uploaded { ix: usize, request: u32, outcome: Result<OnDevice, LoadFailure> },
}

/// The nice value of loads behind clients: those that compute with their own copies come first.
const NICE_BEHIND: i32 = 5;

/// Works until the queue closes.
pub(super) fn worker(
    thread: u64,
    pace: LoadPace,
    queue: &Mutex<Receiver<Job>>,
    done: &Sender<Finished>,
    wake: &OwnedFd,
    pool: &ResidentPool,
    recorder: Option<&Recorder>,
) {
    if pace == LoadPace::Behind {
        // Linux has a priority for each thread. If the system refuses, the loads are only less polite.
        let _ = rustix::process::setpriority_process(None, NICE_BEHIND);
    }
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let start = now();
        let finished = match job {
            Job::Load { model, key, file, name } => {
                // A file of a client can have any content: a fault of a reader must not end the daemon.
                let loaded = catch_unwind(AssertUnwindSafe(|| pool.load(&file, &key, &name, pace)));
                let outcome = loaded.unwrap_or(Err(LoadFailure::Panic));
                if let Some(recorder) = recorder {
                    recorder.add("to_layers_from_disk", "load", thread, start, Vec::new());
                    let arguments = vec![("model_name", name), ("byte_count", key.size.to_string())];
                    recorder.add("load_owned", "load", thread, start, arguments);
                }
                Finished::Loaded { model, outcome, nanoseconds: now() - start }
            }
            Job::Upload { ix, request, memory, resident, known } => {
                let outcome = catch_unwind(AssertUnwindSafe(|| device::upload(&*memory, &resident, known, pool)));
                if let Some(recorder) = recorder {
                    let arguments = vec![("byte_count", resident.size.to_string())];
                    recorder.add("to_layers_from_cpu_mem", "load", thread, start, arguments);
                }
                Finished::Uploaded { ix, request, outcome: outcome.unwrap_or(Err(LoadFailure::Panic)) }
            }
            Job::VerifyDevice { model, memory, on_device } => {
                let outcome = device::verify(&*memory, &on_device).map_err(io::Error::other);
                Finished::Verified { model, outcome }
            }
            Job::Verify { model, resident } => Finished::Verified { model, outcome: resident.verify() },
        };
        if done.send(finished).is_err() {
            return;
        }
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    }
}
