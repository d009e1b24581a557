//! Loads and verifications that workers have ended, and the preload list.

use std::fs::File;
use std::io;

use super::device::device_of;
use super::work::{Finished, Job};
use super::{Loading, SELF, Server};
use crate::core::{ClientId, Denial, EVERYONE, ExtentId, ModelId, ModelKey, Waiter};
use crate::load::Resident;
use crate::wire::{Code, LoadMode, Reply, Tier};

impl Server {
    /// Loads the models of the options; each is a request of the daemon's own.
    pub(super) fn preload(&mut self) {
        for (path, name, granularity) in std::mem::take(&mut self.options.preload) {
            let opened = File::open(&path).map_err(|error| error.to_string()).and_then(|file| {
                let key = crate::load::identify(&file, &path, granularity).map_err(|error| error.to_string())?;
                Ok((file, key))
            });
            match opened {
                Ok((file, key)) => {
                    let key = ModelKey { user: EVERYONE, ..key };
                    let waiter = Waiter { client: SELF, request: 0, lease: false, pin: true, name: name.clone() };
                    self.open(key, waiter, 0, Some(file), &name, LoadMode::Wait);
                }
                Err(error) => (self.binding.warn)(&format!("cannot preload `{}`: {error}", path.display())),
            }
        }
        self.settle();
    }

    /// Takes the results of workers.
    pub(super) fn collect(&mut self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        while let Ok(finished) = self.finished.try_recv() {
            match finished {
                Finished::Loaded { model, outcome, nanoseconds } => self.loaded(model, outcome, nanoseconds),
                Finished::Verified { model, outcome } => self.verified(model, outcome),
                Finished::Uploaded { ix, request, outcome } => self.uploaded(ix, request, outcome),
            }
        }
    }

    pub(super) fn loaded(
        &mut self,
        model: ModelId,
        outcome: Result<Resident, crate::load::LoadFailure>,
        nanoseconds: u64,
    ) {
        self.filling.remove(&model);
        let load = self.loading.remove(&model);
        let load_us = nanoseconds / 1000;
        match outcome {
            Ok(resident) => {
                self.metrics.loads.add();
                self.metrics.load_times.add(nanoseconds);
                let all: Vec<(ExtentId, u64)> =
                    resident.extents.iter().chain(&resident.manifest).map(|extent| (extent.id, extent.bytes)).collect();
                for extent in resident.extents.iter().chain(&resident.manifest) {
                    self.extents.insert(extent.id, extent.clone());
                }
                let referenced = resident.referenced;
                self.residents.insert(model, (resident, load_us));
                let grants = self.core.loaded(model, &all, referenced);
                let name = self.core.names_of(model).next().map(|(_, name)| name.to_string());
                if let (Some(name), Some(load)) = (name, load) {
                    self.sources.insert(model, (load.file, name));
                }
                for grant in grants.iter().filter(|grant| grant.client != SELF) {
                    self.waited(grant.client);
                    self.grant(grant, Tier::Disk);
                }
            }
            Err(failure) => {
                self.metrics.load_failures.add();
                if load.is_some_and(|load| self.load_again(model, load, &failure)) {
                    return;
                }
                let waiters = self.core.failed(model);
                if waiters.is_empty() {
                    // A load behind a client, or one whose client is gone.
                    (self.binding.warn)(&format!("cannot load model {}: {failure}", model.0));
                }
                for waiter in waiters {
                    self.waited(waiter.client);
                    if waiter.client == SELF {
                        (self.binding.warn)(&format!("cannot preload `{}`: {failure}", waiter.name));
                        continue;
                    }
                    self.refuse(waiter.client, waiter.request, failure.code(), &failure.to_string());
                }
            }
        }
    }

    /// Refuses the request whose file is bad and loads the file of the next one that waits; returns whether there is one.
    pub(super) fn load_again(&mut self, model: ModelId, mut load: Loading, failure: &crate::load::LoadFailure) -> bool {
        let is_here = |client: ClientId| device_of(client).is_some() || self.clients.contains_key(&client);
        let next = loop {
            match load.others.pop_front() {
                Some(((client, request), file)) if is_here(client) => break Some(((client, request), file)),
                Some(_) => {}
                None => break None,
            }
        };
        let Some((request, file)) = next else { return false };
        let (client, number) = load.request;
        if self.core.withdraw(model, client, number) {
            self.waited(client);
            match client == SELF {
                true => (self.binding.warn)(&format!("cannot preload `{}`: {failure}", load.name)),
                false => self.refuse(client, number, failure.code(), &failure.to_string()),
            }
        }
        let key = self.core.get(model).expect("a model that loads has a record").key;
        let job = Job::Load { model, key, file: file.clone(), name: load.name.clone() };
        self.loading.insert(model, Loading { request, file, ..load });
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job).is_ok());
        debug_assert!(sent == Some(true), "workers live as long as the server");
        true
    }

    pub(super) fn verify(&mut self, client: ClientId, request: u32, user: u32, model: &str) {
        let Some(id) = self.select(user, model) else { return self.deny(client, request, &Denial::NotFound) };
        let on_device = self.devices.iter().find_map(|device| {
            let (on_device, _) = device.residents.get(&id)?;
            Some(Job::VerifyDevice { model: id, memory: device.memory.clone(), on_device: on_device.clone() })
        });
        let on_host = || self.residents.get(&id).map(|own| Job::Verify { model: id, resident: own.0.clone() });
        let Some(job) = on_device.or_else(on_host) else {
            return self.deny(client, request, &Denial::NotFound);
        };
        let waiters = self.verifying.entry(id).or_default();
        waiters.push((client, request));
        if waiters.len() == 1 {
            let sent = self.jobs.as_ref().map(|jobs| jobs.send(job).is_ok());
            debug_assert!(sent == Some(true), "workers live as long as the server");
        }
    }

    pub(super) fn verified(&mut self, model: ModelId, outcome: io::Result<bool>) {
        let waiters = self.verifying.remove(&model).unwrap_or_default();
        if let Ok(false) = outcome {
            self.core_of(model).condemn(model);
        }
        for (client, request) in waiters {
            match &outcome {
                Ok(true) => self.reply(client, request, &Reply::Done, Vec::new()),
                Ok(false) => {
                    let text = "the resident bytes differ from their digests; the model is hidden from new leases";
                    self.refuse(client, request, Code::Damaged, text);
                }
                Err(error) => self.refuse(client, request, Code::System, &error.to_string()),
            }
        }
    }
}
