//! Requests of clients: permissions, and how the core's decision becomes a reply, a wait or a load.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::json;

use super::device::device_of;
use super::status::page;
use super::work::Job;
use super::{FILLS_MAX, Loading, OTHERS_MAX, Server, WAITING_MAX};
use crate::core::{ClientId, Core, Decision, Denial, EVERYONE, Grant, Granularity, LeaseId, ModelId, ModelKey, Waiter};
use crate::trace::now;
use crate::wire::{Ask, Code, LoadMode, Reply, Tier};

impl Server {
    pub(super) fn answer(&mut self, client: ClientId, request: u32, ask: Ask, descriptors: Vec<OwnedFd>, start: u64) {
        let for_operators =
            !matches!(ask, Ask::Open { .. } | Ask::OpenDevice { .. } | Ask::OpenName { .. } | Ask::Close { .. });
        if for_operators && !self.is_operator(client) {
            let text = "only root and the daemon's own user may do this";
            return self.refuse(client, request, Code::Permission, text);
        }
        let user = self.user_of(client);
        match ask {
            Ask::Open { .. } | Ask::OpenDevice { .. } | Ask::OpenName { .. } | Ask::Preload { .. } => {
                let waiting = self.clients.get(&client).map_or(0, |client| client.waiting);
                if WAITING_MAX <= waiting || self.options.leases_max <= self.leases_of(client) {
                    let text =
                        format!("a connection has at most {} leases and {WAITING_MAX} loads", self.options.leases_max);
                    return self.refuse(client, request, Code::Exhausted, &text);
                }
                self.answer_open(client, request, ask, descriptors, user, start);
            }
            Ask::Close { lease } => {
                let lease = LeaseId(lease);
                if !self.core.close(client, lease) {
                    self.devices.iter_mut().any(|device| device.core.close(client, lease));
                }
                self.span("close", "grpc", start, Vec::new);
                self.reply(client, request, &Reply::Done, Vec::new());
            }
            Ask::Pin { model } => self.change(client, request, user, &model, |core, id| core.pin(id, true)),
            Ask::Unpin { model } => self.change(client, request, user, &model, |core, id| core.pin(id, false)),
            Ask::Evict { model, drain } => self.change(client, request, user, &model, |core, id| core.evict(id, drain)),
            Ask::Verify { model } => self.verify(client, request, user, &model),
            Ask::Drain => {
                self.drains.push((client, request));
                self.begin_drain();
            }
            Ask::Status => {
                self.text(client, request, self.status(), 0);
                self.span("info", "grpc", start, Vec::new);
            }
            Ask::Settings => self.text(client, request, self.settings(), 0),
            Ask::Configure { limit, policy } => {
                let limit = if limit == 0 { self.core.budget().0 } else { limit };
                let policy = if policy.is_empty() { Ok(self.core.policy()) } else { crate::settings::policy(&policy) };
                match policy {
                    Ok(policy) => {
                        self.core.configure(limit, policy);
                        self.text(client, request, self.settings(), 0);
                    }
                    Err(error) => self.refuse(client, request, Code::Unsupported, &error.to_string()),
                }
            }
            Ask::List { from } => {
                let on_devices = self.devices.iter().flat_map(|device| device.core.models_from(from));
                let rows = self.core.models_from(from).chain(on_devices).map(|(id, _)| (id.0, self.row(id)));
                let (rows, next) = page(rows);
                self.text(client, request, rows, next);
            }
            Ask::History { from } => {
                let rows = self.history.iter().filter(|(number, ..)| from <= *number);
                let rows = rows.map(|(number, at, event)| {
                    let client = event.client.map(|client| client.0);
                    let at_us = (at - self.started) / 1000;
                    (*number, json!({ "event": number, "at_us": at_us, "kind": event.kind, "model": event.model.0, "client": client }))
                });
                let (rows, next) = page(rows);
                self.text(client, request, rows, next);
            }
        }
    }

    pub(super) fn answer_open(
        &mut self,
        client: ClientId,
        request: u32,
        ask: Ask,
        descriptors: Vec<OwnedFd>,
        user: u32,
        start: u64,
    ) {
        let file = descriptors.into_iter().next().map(File::from);
        let waiter = |lease, pin, name| Waiter { client, request, lease, pin, name };
        let is_hit = match ask {
            Ask::Open { key, internal, name, load } => {
                let file = file.filter(|_| load != LoadMode::Never);
                if load != LoadMode::Never && file.is_none() {
                    return self.refuse(client, request, Code::Protocol, "a load needs the descriptor of a file");
                }
                if load == LoadMode::Behind && !name.is_empty() {
                    return self.refuse(client, request, Code::Protocol, "a load behind the client has no name");
                }
                let waiter = waiter(true, false, name.clone());
                self.open(ModelKey { user, ..key }, waiter, internal, file, &name, load)
            }
            Ask::OpenDevice { key, internal, load, device } => {
                let Some(file) = file else {
                    return self.refuse(client, request, Code::Protocol, "a load needs the descriptor of a file");
                };
                let waiter = waiter(true, false, String::new());
                self.open_device(ModelKey { user, ..key }, waiter, internal, file, &device, load)
            }
            Ask::Preload { key, name, pin } => {
                let Some(file) = file else {
                    return self.refuse(client, request, Code::Protocol, "a load needs the descriptor of a file");
                };
                // An operator vouches for the file, so that everyone may lease it.
                let key = ModelKey { user: EVERYONE, ..key };
                self.open(key, waiter(false, pin, name.clone()), 0, Some(file), &name, LoadMode::Wait)
            }
            Ask::OpenName { name } => {
                let waiter = waiter(true, false, String::new());
                let decision = self.core.open_name(user, &name, waiter, |id| self.sources.contains_key(&id));
                let source = match decision {
                    Decision::Load(id) => self.sources.get(&id).map(|(file, _)| file.clone()),
                    _ => None,
                };
                self.decided(client, request, decision, source, &name, LoadMode::Wait)
            }
            _ => unreachable!("the caller passes requests for models"),
        };
        if is_hit {
            self.metrics.opens.add(now() - start);
        }
        // Of a load, this is the time until a worker has it.
        self.span("open", "grpc", start, Vec::new);
    }

    /// Requests a model; returns whether it was resident. A load behind the client is answered before it runs.
    pub(super) fn open(
        &mut self,
        key: ModelKey,
        waiter: Waiter,
        internal: u64,
        file: Option<File>,
        name: &str,
        load: LoadMode,
    ) -> bool {
        let estimate = (key.size as f64 * self.options.estimation_rate).ceil() as u64;
        let need = estimate + if self.options.with_internal { internal } else { 0 };
        let (client, request, start) = (waiter.client, waiter.request, now());
        if load == LoadMode::Behind && FILLS_MAX <= self.filling.len() && self.core.is_empty(&key) {
            let text = format!("{FILLS_MAX} loads behind clients wait, the limit");
            self.refuse(client, request, Code::Exhausted, &text);
            return false;
        }
        let decision = self.core.open(key, waiter, need, file.is_some());
        if self.options.record && self.core.has_evicted() {
            let policy = self.core.policy().name();
            self.span("perform_eviction", "evict", start, || {
                vec![("policy", policy.into()), ("model_name", name.into()), ("estimated_model_size", need.to_string())]
            });
        }
        if let (Decision::Wait(model) | Decision::Load(model), LoadMode::Behind) = (&decision, load) {
            self.core.withdraw(*model, client, request);
            self.metrics.fillings.add();
            self.reply(client, request, &Reply::Filling { model: model.0 }, Vec::new());
        }
        self.decided(client, request, decision, file.map(Arc::new), name, load)
    }

    pub(super) fn decided(
        &mut self,
        client: ClientId,
        request: u32,
        decision: Decision,
        file: Option<Arc<File>>,
        name: &str,
        load: LoadMode,
    ) -> bool {
        let is_behind = load == LoadMode::Behind;
        match decision {
            Decision::Hit(grant) => {
                if let Some(file) = file
                    && !name.is_empty()
                {
                    self.sources.insert(grant.model, (file, name.to_string()));
                }
                self.grant(&grant, Tier::Host);
                return true;
            }
            Decision::Wait(_) if is_behind => {}
            Decision::Wait(model) => {
                self.wait(client);
                if let (Some(file), Some(load)) = (file, self.loading.get_mut(&model))
                    && load.others.len() < OTHERS_MAX
                {
                    load.others.push_back(((client, request), file));
                }
            }
            Decision::Load(model) => {
                let file = file.expect("a load is decided only if there is a file");
                let key = self.core.get(model).expect("it was decided to load it").key;
                match is_behind {
                    true => drop(self.filling.insert(model)),
                    false => self.wait(client),
                }
                let (request, others, name) = ((client, request), VecDeque::new(), name.to_string());
                self.loading.insert(model, Loading { request, file: file.clone(), others, name: name.clone() });
                let job = Job::Load { model, key, file, name };
                let queue = if is_behind { &self.fills } else { &self.jobs };
                let sent = queue.as_ref().map(|jobs| jobs.send(job).is_ok());
                debug_assert!(sent == Some(true), "workers live as long as the server");
            }
            Decision::Denied(denial) => self.deny(client, request, &denial),
        }
        false
    }

    pub(super) fn wait(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.waiting += 1;
        }
    }

    pub(super) fn grant(&mut self, grant: &Grant, tier: Tier) {
        if let Some(ix) = device_of(grant.client) {
            return self.upload(ix, grant, tier);
        }
        let Some(lease) = grant.lease else {
            return self.reply(grant.client, grant.request, &Reply::Done, Vec::new());
        };
        match tier {
            Tier::Host => self.metrics.hits_host.add(),
            Tier::Disk => self.metrics.hits_disk.add(),
            Tier::Device => self.metrics.hits_device.add(),
        }
        let (resident, load_us) = &self.residents[&grant.model];
        let (granularity, size) = match resident.manifest {
            Some(_) => (Granularity::Layer, resident.size),
            None => (Granularity::Model, resident.size),
        };
        let memory = resident.manifest.iter().chain(&resident.extents).cloned().collect();
        let reply = Reply::Opened {
            lease: lease.0,
            model: grant.model.0,
            generation: grant.generation,
            granularity,
            size,
            tier,
            load_us: if tier == Tier::Host { 0 } else { *load_us },
        };
        self.reply(grant.client, grant.request, &reply, memory);
    }

    pub(super) fn leases_of(&self, client: ClientId) -> usize {
        let on_devices = self.devices.iter().map(|device| device.core.leases_of(client).count()).sum::<usize>();
        self.core.leases_of(client).count() + on_devices
    }

    /// The machine that has a model.
    pub(super) fn core_of(&mut self, id: ModelId) -> &mut Core {
        let on_device = self.devices.iter().position(|device| device.core.get(id).is_some());
        match on_device {
            Some(ix) => &mut self.devices[ix].core,
            None => &mut self.core,
        }
    }

    pub(super) fn waited(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.waiting = client.waiting.saturating_sub(1);
        }
    }

    /// The model of a name or number.
    pub(super) fn select(&self, user: u32, model: &str) -> Option<ModelId> {
        let named = || self.core.names().find(|(name, _)| *name == model).map(|(_, id)| id);
        let is_known = |id: &ModelId| {
            self.core.get(*id).is_some() || self.devices.iter().any(|device| device.core.get(*id).is_some())
        };
        let numbered = || model.parse().ok().map(ModelId).filter(is_known);
        self.core.named(user, model).or_else(named).or_else(numbered)
    }

    pub(super) fn change(
        &mut self,
        client: ClientId,
        request: u32,
        user: u32,
        model: &str,
        change: impl FnOnce(&mut Core, ModelId) -> Result<(), Denial>,
    ) {
        let changed = match self.select(user, model) {
            Some(id) => change(self.core_of(id), id),
            None => Err(Denial::NotFound),
        };
        match changed {
            Ok(()) => self.reply(client, request, &Reply::Done, Vec::new()),
            Err(denial) => self.deny(client, request, &denial),
        }
    }
}
