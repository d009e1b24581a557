//! Copies of models in memory of devices: requests for them, their ends and their grants.

use std::fs::File;

use super::Server;
use super::device::{OnDevice, client_of};
use super::work::Job;
use crate::core::{Decision, ExtentId, Grant, Granularity, ModelId, ModelKey, Waiter};
use crate::trace::now;
use crate::wire::{Code, LoadMode, Reply, Tier};

impl Server {
    /// Requests a model in memory of a device; returns whether it was resident there.
    pub(super) fn open_device(
        &mut self,
        key: ModelKey,
        waiter: Waiter,
        internal: u64,
        file: File,
        device: &str,
        load: LoadMode,
    ) -> bool {
        let (client, request) = (waiter.client, waiter.request);
        let Some(ix) = self.devices.iter().position(|own| own.memory.uuid() == device) else {
            let known: Vec<&str> = self.devices.iter().map(|own| own.memory.uuid()).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let text = format!("the daemon has no tier for device {device}; its devices are: {known}");
            self.refuse(client, request, Code::Unsupported, &text);
            return false;
        };
        let estimate = (key.size as f64 * self.options.estimation_rate).ceil() as u64;
        let need = estimate + if self.options.with_internal { internal } else { 0 };
        let model = match self.devices[ix].core.open(key, waiter, need, load != LoadMode::Never) {
            Decision::Hit(grant) => {
                self.grant_device(ix, &grant, Tier::Device);
                return true;
            }
            Decision::Wait(model) => {
                self.wait(client);
                model
            }
            Decision::Load(model) => {
                self.wait(client);
                let number = self.devices[ix].begin(model, now());
                let own =
                    Waiter { client: client_of(ix), request: number, lease: true, pin: false, name: String::new() };
                self.open(key, own, 0, Some(file), "", LoadMode::Wait);
                model
            }
            Decision::Denied(denial) => {
                self.deny(client, request, &denial);
                return false;
            }
        };
        // A host tier that refused has answered this request already.
        if load == LoadMode::Behind && self.devices[ix].core.withdraw(model, client, request) {
            self.waited(client);
            self.metrics.fillings.add();
            self.reply(client, request, &Reply::Filling { model: model.0 }, Vec::new());
        }
        false
    }

    /// The host tier has the bytes for a device: they are copied.
    pub(super) fn upload(&mut self, ix: usize, grant: &Grant, tier: Tier) {
        let lease = grant.lease.expect("requests for devices have leases");
        let resident = self.residents[&grant.model].0.clone();
        let device = &mut self.devices[ix];
        let known = device.known(&resident);
        let upload = device.uploads.get_mut(&grant.request).expect("it was begun");
        (upload.host, upload.from) = (Some((lease, grant.model)), tier);
        let job = Job::Upload { ix, request: grant.request, memory: device.memory.clone(), resident, known };
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job).is_ok());
        debug_assert!(sent == Some(true), "workers live as long as the server");
    }

    pub(super) fn uploaded(&mut self, ix: usize, request: u32, outcome: Result<OnDevice, crate::load::LoadFailure>) {
        let upload = self.devices[ix].uploads.remove(&request).expect("it was begun");
        if let Some((lease, model)) = upload.host {
            self.core.close(client_of(ix), lease);
            if !self.options.persist_host {
                // Others may lease or pin the host's copy.
                let _ = self.core.evict(model, false);
            }
        }
        let mut on_device = match outcome {
            Ok(on_device) => on_device,
            Err(failure) => return self.not_uploaded(ix, upload.model, failure.code(), &failure.to_string()),
        };
        let nanoseconds = now() - upload.start;
        self.metrics.loads.add();
        self.metrics.load_times.add(nanoseconds);
        let device = &mut self.devices[ix];
        device.adopt(&mut on_device);
        let blocks: Vec<(ExtentId, u64)> =
            on_device.blocks.iter().map(|block| (block.extent.id, block.extent.bytes)).collect();
        let referenced = on_device.referenced;
        device.residents.insert(upload.model, (on_device, nanoseconds / 1000));
        for grant in device.core.loaded(upload.model, &blocks, referenced) {
            self.waited(grant.client);
            self.grant_device(ix, &grant, upload.from);
        }
    }

    pub(super) fn not_uploaded(&mut self, ix: usize, model: ModelId, code: Code, text: &str) {
        self.metrics.load_failures.add();
        for waiter in self.devices[ix].core.failed(model) {
            self.waited(waiter.client);
            self.refuse(waiter.client, waiter.request, code, text);
        }
    }

    pub(super) fn grant_device(&mut self, ix: usize, grant: &Grant, tier: Tier) {
        match tier {
            Tier::Host => self.metrics.hits_host.add(),
            Tier::Disk => self.metrics.hits_disk.add(),
            Tier::Device => self.metrics.hits_device.add(),
        }
        let (on_device, load_us) = &self.devices[ix].residents[&grant.model];
        let blocks = on_device.blocks.iter().map(|block| &block.extent);
        let memory = on_device.manifest.iter().chain(blocks).cloned().collect();
        let reply = Reply::Opened {
            lease: grant.lease.map_or(0, |lease| lease.0),
            model: grant.model.0,
            generation: grant.generation,
            granularity: if on_device.manifest.is_some() { Granularity::Layer } else { Granularity::Model },
            size: on_device.size,
            tier,
            load_us: if tier == Tier::Device { 0 } else { *load_us },
        };
        self.reply(grant.client, grant.request, &reply, memory);
    }
}
