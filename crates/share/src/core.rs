//! [`Core`]: models, leases, extents and the budget of the daemon as one state machine. No descriptor, clock, thread or
//! byte of weights is in here, so that a test can visit every state. The file stays whole: every rule reads the same maps.
//!
//! A model is EMPTY, then RW (one load runs, everyone else waits for it), then COMMITTED (sealed, no lease), then RO (one
//! lease or more). A *retired* model is hidden from new leases and dropped when its last lease ends. An *extent* is one
//! sealed block of memory; with granularity `layer` several models refer to one.

use std::collections::{BTreeMap, BTreeSet};

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// A model, for as long as the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelId(pub u64);

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// One sealed block of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtentId(pub u64);

/// The unit that processes share: whole models, or single tensors of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Granularity {
    /// One block for a model.
    #[default]
    Model,
    /// Tensors with equal bytes are held once for all models of a user.
    Layer,
}

impl Granularity {
    /// The word of `UPR_SHARING_GRANULARITY`.
    pub fn name(self) -> &'static str {
        match self {
            Granularity::Model => "model",
            Granularity::Layer => "layer",
        }
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Granularity::Layer => 1,
            Granularity::Model => 2,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<Granularity> {
        [Granularity::Layer, Granularity::Model].into_iter().find(|own| own.code() == code)
    }
}

/// The kind of file that a model is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceKind {
    /// The constants of an executable: packed, with their digest in the file's trailer.
    Image,
    /// A file of named tensors: safetensors, npz, params. Rows are kept as they are.
    Tensors,
}

impl SourceKind {
    pub(crate) fn code(self) -> u8 {
        match self {
            SourceKind::Image => 1,
            SourceKind::Tensors => 2,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<SourceKind> {
        [SourceKind::Image, SourceKind::Tensors].into_iter().find(|own| own.code() == code)
    }
}

/// The user of models that everyone on the allow-list may lease.
pub const EVERYONE: u32 = u32::MAX;

/// The identity of a model: its bytes, and who vouches for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelKey {
    /// The user whose file it was, or [`EVERYONE`]. Users do not provide each other's weights.
    pub user: u32,
    /// The granularity.
    pub granularity: Granularity,
    /// The kind of file.
    pub source: SourceKind,
    /// BLAKE3 of the packed section; of the whole file for [`SourceKind::Tensors`]. Other bytes with this digest cannot be
    /// made.
    pub digest: [u8; 32],
    /// Bytes of the section; of the file for [`SourceKind::Tensors`].
    pub size: u64,
}

/// The order in which idle models are evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Least recently used first.
    #[default]
    Lru,
    /// First loaded first.
    Fifo,
    /// Fewest leases since it was loaded first.
    Lcu,
    /// Nothing is evicted; the request is refused.
    Never,
    /// All idle models at once.
    Flush,
    /// A model is dropped when its last lease ends. If that does not suffice: least recently used first.
    Eager,
    /// Fewest leases ever first, also before it was evicted.
    Lfu,
    /// Largest first, weighted by the time since its last use.
    SizeAware,
    /// In pseudorandom order.
    Random,
}

/// The words of `UPRD_EVICTION_POLICY`.
pub const POLICIES: [(&str, EvictionPolicy); 10] = [
    ("lru", EvictionPolicy::Lru),
    ("fifo", EvictionPolicy::Fifo),
    ("lcu", EvictionPolicy::Lcu),
    ("never", EvictionPolicy::Never),
    ("flush", EvictionPolicy::Flush),
    ("all", EvictionPolicy::Flush),
    ("eager", EvictionPolicy::Eager),
    ("lfu", EvictionPolicy::Lfu),
    ("size-aware", EvictionPolicy::SizeAware),
    ("random", EvictionPolicy::Random),
];

impl EvictionPolicy {
    /// The first word of the policy in [`POLICIES`].
    pub fn name(self) -> &'static str {
        POLICIES.iter().find(|(_, policy)| *policy == self).expect("every policy has a row").0
    }
}

/// A request that waits for a load or is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The connection.
    pub client: ClientId,
    /// The number of its request.
    pub request: u32,
    /// Whether it gets a lease.
    pub lease: bool,
    /// Whether the model is pinned.
    pub pin: bool,
    /// The name to publish under; may be empty.
    pub name: String,
}

/// A granted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The connection.
    pub client: ClientId,
    /// The number of its request.
    pub request: u32,
    /// The lease, if it requested one.
    pub lease: Option<LeaseId>,
    /// The model.
    pub model: ModelId,
    /// The load that the bytes are from.
    pub generation: u64,
}

/// The answer to a request for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The model is resident.
    Hit(Grant),
    /// Another request loads it; [`Core::loaded`] grants both.
    Wait(ModelId),
    /// The caller loads it and reports [`Core::loaded`] or [`Core::failed`].
    Load(ModelId),
    /// No.
    Denied(Denial),
}

/// Reason why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Denial {
    #[error("no such model is resident")]
    NotFound,
    #[error("the daemon is draining and grants no new lease")]
    Draining,
    #[error(
        "the load needs {needed} bytes, {available} of {limit} are available; {in_use} models are in use, {pinned} are \
         pinned, {loading} are loading; {}",
        if limit < needed { "raise the budget" } else { "evict or unpin some, or raise the budget" }
    )]
    Exhausted { needed: u64, available: u64, limit: u64, in_use: usize, pinned: usize, loading: usize },
    #[error("the model is in use by {leases} leases")]
    InUse { leases: u32 },
    #[error("the model is pinned")]
    Pinned,
    #[error("the model is being loaded")]
    Loading,
}

/// The state of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// Only its record is left.
    Empty,
    /// One load runs; this much of the budget is reserved.
    Loading {
        /// Bytes.
        reserved: u64,
    },
    /// Sealed and resident.
    Committed,
}

/// The record of a model.
#[derive(Clone, Debug)]
pub struct ModelRecord {
    /// Its identity.
    pub key: ModelKey,
    /// Its state.
    pub state: ModelState,
    /// Grows with every load.
    pub generation: u64,
    /// The blocks that hold its bytes.
    pub extents: Vec<ExtentId>,
    /// Bytes of its tensors, shared or not.
    pub referenced: u64,
    /// Leases that have not ended.
    pub leases: u32,
    /// Whether it is kept resident.
    pub pinned: bool,
    /// Whether it is hidden and dropped with its last lease.
    pub retired: bool,
    /// Requests that wait for the load.
    pub waiters: Vec<Waiter>,
    /// When it was loaded, by the logical clock.
    pub loaded_at: u64,
    /// When a lease was granted or ended last, by the logical clock.
    pub used_at: u64,
    /// Leases since it was loaded.
    pub uses: u64,
    /// Leases ever.
    pub uses_ever: u64,
}

impl ModelRecord {
    /// The word of its state.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            ModelState::Empty => "EMPTY",
            ModelState::Loading { .. } => "RW",
            ModelState::Committed if self.retired => "DRAINING",
            ModelState::Committed if self.leases == 0 => "COMMITTED",
            ModelState::Committed => "RO",
        }
    }

    fn is_idle(&self) -> bool {
        self.state == ModelState::Committed && self.leases == 0 && !self.pinned
    }
}

#[derive(Clone, Copy, Debug)]
struct ExtentRecord {
    bytes: u64,
    models: u32,
}

#[derive(Clone, Copy, Debug)]
struct LeaseRecord {
    client: ClientId,
    model: ModelId,
}

/// A change of state, for the event history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreEvent {
    /// One of `load`, `commit`, `fail`, `lease`, `release`, `evict`, `retire`, `publish`, `unname`, `pin`, `unpin`.
    pub kind: &'static str,
    /// The model.
    pub model: ModelId,
    /// The connection, for `lease` and `release`.
    pub client: Option<ClientId>,
}

/// Records of models without bytes that are kept for `lfu` and for `list`.
const RECORDS_MAX: usize = 65_536;

/// The state machine.
#[derive(Clone, Debug)]
pub struct Core {
    limit: u64,
    policy: EvictionPolicy,
    draining: bool,
    clock: u64,
    next: u64,
    used: u64,
    reserved: u64,
    models: BTreeMap<ModelId, ModelRecord>,
    keys: BTreeMap<ModelKey, ModelId>,
    names: BTreeMap<(u32, String), ModelId>,
    extents: BTreeMap<ExtentId, ExtentRecord>,
    leases: BTreeMap<LeaseId, LeaseRecord>,
    /// The leases by connection, so that the end of one costs nothing for the others.
    held: BTreeSet<(ClientId, LeaseId)>,
    /// The models that load.
    loads: BTreeSet<ModelId>,
    /// Bytes of the tensors of resident models, shared or not.
    referenced: u64,
    freed: Vec<ExtentId>,
    events: Vec<CoreEvent>,
}

impl Core {
    /// A machine with a budget in bytes.
    pub fn new(limit: u64, policy: EvictionPolicy) -> Core {
        Core {
            limit,
            policy,
            draining: false,
            clock: 0,
            next: 1,
            used: 0,
            reserved: 0,
            models: BTreeMap::new(),
            keys: BTreeMap::new(),
            names: BTreeMap::new(),
            extents: BTreeMap::new(),
            leases: BTreeMap::new(),
            held: BTreeSet::new(),
            loads: BTreeSet::new(),
            referenced: 0,
            freed: Vec::new(),
            events: Vec::new(),
        }
    }

    /// The machine with numbers of models and leases from `first` on, so that those of several machines differ.
    pub fn numbered_from(self, first: u64) -> Core {
        Core { next: first, ..self }
    }

    /// A request for the model of a key. `need` is the estimate in bytes that a load must have room for. A model of
    /// [`EVERYONE`] with the same bytes serves a request as well.
    pub fn open(&mut self, key: ModelKey, waiter: Waiter, need: u64, load: bool) -> Decision {
        if self.draining {
            return Decision::Denied(Denial::Draining);
        }
        let id = match self.find(&key) {
            Some(id) => id,
            None if !load => return Decision::Denied(Denial::NotFound),
            None => self.record(key),
        };
        self.open_model(id, waiter, need, load)
    }

    /// The record that serves a key: that of [`EVERYONE`] unless it has no bytes, else the user's own.
    pub fn find(&self, key: &ModelKey) -> Option<ModelId> {
        let shared = ModelKey { user: EVERYONE, ..*key };
        let is_resident = |id: &&ModelId| self.models[*id].state != ModelState::Empty;
        self.keys.get(&shared).filter(is_resident).or_else(|| self.keys.get(key)).copied()
    }

    /// Whether no bytes serve a key, and no load of them runs.
    pub fn is_empty(&self, key: &ModelKey) -> bool {
        self.find(key).is_none_or(|id| self.models[&id].state == ModelState::Empty)
    }

    /// A request for the model of a name, the user's own first. `load` is whether the caller can read its file again.
    pub fn open_name(&mut self, user: u32, name: &str, waiter: Waiter, load: impl Fn(ModelId) -> bool) -> Decision {
        if self.draining {
            return Decision::Denied(Denial::Draining);
        }
        let Some(id) = self.named(user, name) else { return Decision::Denied(Denial::NotFound) };
        let size = self.models[&id].key.size;
        self.open_model(id, waiter, size, load(id))
    }

    /// The model of a user's name.
    pub fn named(&self, user: u32, name: &str) -> Option<ModelId> {
        let find = |user: u32| self.names.get(&(user, name.to_string())).copied();
        find(user).or_else(|| find(EVERYONE))
    }

    fn record(&mut self, key: ModelKey) -> ModelId {
        self.forget_records();
        let id = ModelId(self.number());
        let model = ModelRecord {
            key,
            state: ModelState::Empty,
            generation: 0,
            extents: Vec::new(),
            referenced: 0,
            leases: 0,
            pinned: false,
            retired: false,
            waiters: Vec::new(),
            loaded_at: 0,
            used_at: self.clock,
            uses: 0,
            uses_ever: 0,
        };
        self.models.insert(id, model);
        self.keys.insert(key, id);
        id
    }

    /// Forgets the oldest eighth of the records without bytes and names if there are too many.
    fn forget_records(&mut self) {
        if self.models.len() < RECORDS_MAX {
            return;
        }
        let is_named = |id: &ModelId| self.names.values().any(|named| named == id);
        let mut empty: Vec<(u64, ModelId)> = self
            .models
            .iter()
            .filter(|(id, model)| model.state == ModelState::Empty && !is_named(id))
            .map(|(&id, model)| (model.used_at, id))
            .collect();
        empty.sort_unstable();
        empty.truncate(RECORDS_MAX / 8);
        for (_, id) in empty {
            let model = self.models.remove(&id).expect("it was listed");
            self.keys.remove(&model.key);
        }
    }

    fn open_model(&mut self, id: ModelId, waiter: Waiter, need: u64, load: bool) -> Decision {
        match self.models[&id].state {
            ModelState::Committed => Decision::Hit(self.grant(id, waiter)),
            ModelState::Loading { .. } => {
                self.model(id).waiters.push(waiter);
                Decision::Wait(id)
            }
            ModelState::Empty if !load => Decision::Denied(Denial::NotFound),
            ModelState::Empty => match self.make_room(need, None) {
                Err(denial) => Decision::Denied(denial),
                Ok(()) => {
                    self.reserved += need;
                    let model = self.model(id);
                    model.state = ModelState::Loading { reserved: need };
                    model.waiters.push(waiter);
                    self.loads.insert(id);
                    self.event("load", id, None);
                    Decision::Load(id)
                }
            },
        }
    }

    /// A load succeeded: the model's bytes are in these extents, each with its size. Grants every request that waited.
    pub fn loaded(&mut self, id: ModelId, extents: &[(ExtentId, u64)], referenced: u64) -> Vec<Grant> {
        let (clock, generation) = (self.tick(), self.number());
        for &(extent, bytes) in extents {
            let record = self.extents.entry(extent).or_insert_with(|| {
                self.used += bytes;
                ExtentRecord { bytes, models: 0 }
            });
            record.models += 1;
        }
        let model = self.models.get_mut(&id).expect("a model that loads has a record");
        let ModelState::Loading { reserved } = model.state else { unreachable!("only a load reports `loaded`") };
        self.reserved -= reserved;
        self.loads.remove(&id);
        self.referenced += referenced;
        model.state = ModelState::Committed;
        model.generation = generation;
        model.extents = extents.iter().map(|(extent, _)| *extent).collect();
        model.referenced = referenced;
        (model.loaded_at, model.used_at, model.uses) = (clock, clock, 0);
        let waiters = std::mem::take(&mut model.waiters);
        self.event("commit", id, None);
        let grants = waiters.into_iter().map(|waiter| self.grant(id, waiter)).collect();
        // The estimate may have been too low. Models in use stay.
        let _ = self.make_room(0, Some(id));
        grants
    }

    /// Ends a request that waits for a load; the load goes on. Returns whether it waited.
    pub fn withdraw(&mut self, id: ModelId, client: ClientId, request: u32) -> bool {
        let Some(model) = self.models.get_mut(&id) else { return false };
        // The last one: a client may have used the number before.
        let at = model.waiters.iter().rposition(|waiter| (waiter.client, waiter.request) == (client, request));
        at.map(|at| model.waiters.remove(at)).is_some()
    }

    /// A load failed. Returns every request that waited for it.
    pub fn failed(&mut self, id: ModelId) -> Vec<Waiter> {
        let model = self.models.get_mut(&id).expect("a model that loads has a record");
        let ModelState::Loading { reserved } = model.state else { unreachable!("only a load reports `failed`") };
        self.reserved -= reserved;
        self.loads.remove(&id);
        model.state = ModelState::Empty;
        let waiters = std::mem::take(&mut model.waiters);
        self.event("fail", id, None);
        waiters
    }

    fn grant(&mut self, id: ModelId, waiter: Waiter) -> Grant {
        let clock = self.tick();
        let lease = waiter.lease.then(|| LeaseId(self.number()));
        let model = self.model(id);
        model.pinned |= waiter.pin;
        if lease.is_some() {
            model.leases += 1;
            model.uses += 1;
            model.uses_ever += 1;
            model.used_at = clock;
        }
        let (user, generation) = (model.key.user, model.generation);
        if waiter.pin {
            self.event("pin", id, None);
        }
        if let Some(lease) = lease {
            self.leases.insert(lease, LeaseRecord { client: waiter.client, model: id });
            self.held.insert((waiter.client, lease));
            self.event("lease", id, Some(waiter.client));
        }
        if !waiter.name.is_empty() {
            self.publish(user, waiter.name, id);
        }
        Grant { client: waiter.client, request: waiter.request, lease, model: id, generation }
    }

    /// Gives a name to a model. The model that had it is retired if it has no other name and no pin. A pin of
    /// [`EVERYONE`]'s model is of its names: it ends with the last one.
    fn publish(&mut self, user: u32, name: String, id: ModelId) {
        let old = self.names.insert((user, name), id);
        self.event("publish", id, None);
        if let Some(old) = old
            && old != id
            && !self.names.values().any(|named| *named == old)
        {
            self.event("unname", old, None);
            let model = self.model(old);
            let ends_pin = model.pinned && user == EVERYONE;
            model.pinned &= !ends_pin;
            let is_over = !model.pinned && model.state == ModelState::Committed;
            if ends_pin {
                self.event("unpin", old, None);
            }
            if is_over {
                self.retire(old);
            }
        }
    }

    /// Ends a lease of a client. Returns whether there was one.
    pub fn close(&mut self, client: ClientId, lease: LeaseId) -> bool {
        if self.leases.get(&lease).is_none_or(|record| record.client != client) {
            return false;
        }
        let model = self.leases.remove(&lease).expect("it was found").model;
        self.held.remove(&(client, lease));
        self.release(client, model);
        true
    }

    /// Ends all leases and requests of a client.
    pub fn gone(&mut self, client: ClientId) {
        for id in &self.loads {
            let model = self.models.get_mut(id).expect("a model that loads has a record");
            model.waiters.retain(|waiter| waiter.client != client);
        }
        let leases: Vec<(LeaseId, ModelId)> = self.leases_of(client).collect();
        for (lease, model) in leases {
            self.leases.remove(&lease);
            self.held.remove(&(client, lease));
            self.release(client, model);
        }
    }

    fn release(&mut self, client: ClientId, id: ModelId) {
        let (clock, policy) = (self.tick(), self.policy);
        let model = self.model(id);
        model.leases -= 1;
        model.used_at = clock;
        let is_over = model.leases == 0 && (model.retired || policy == EvictionPolicy::Eager && !model.pinned);
        self.event("release", id, Some(client));
        if is_over {
            self.drop_bytes(id);
        }
    }

    /// Pins or unpins a resident model.
    ///
    /// # Errors
    /// It is not resident.
    pub fn pin(&mut self, id: ModelId, pin: bool) -> Result<(), Denial> {
        match self.models.get_mut(&id) {
            Some(model) if model.state == ModelState::Committed && !model.retired => model.pinned = pin,
            Some(model) if matches!(model.state, ModelState::Loading { .. }) => return Err(Denial::Loading),
            _ => return Err(Denial::NotFound),
        }
        self.event(if pin { "pin" } else { "unpin" }, id, None);
        Ok(())
    }

    /// Drops an idle model. With `drain`, hides a model in use from new leases and drops it with its last lease.
    ///
    /// # Errors
    /// It is not resident, is pinned, loads, or is in use and `drain` is false.
    pub fn evict(&mut self, id: ModelId, drain: bool) -> Result<(), Denial> {
        let model = self.models.get(&id).ok_or(Denial::NotFound)?;
        match model.state {
            ModelState::Empty => Err(Denial::NotFound),
            ModelState::Loading { .. } => Err(Denial::Loading),
            ModelState::Committed if model.pinned => Err(Denial::Pinned),
            ModelState::Committed if model.leases == 0 => {
                self.drop_bytes(id);
                Ok(())
            }
            ModelState::Committed if drain => {
                self.retire(id);
                Ok(())
            }
            ModelState::Committed => Err(Denial::InUse { leases: model.leases }),
        }
    }

    /// Drops a model whose bytes are damaged: hidden at once, also if it is pinned or in use.
    pub fn condemn(&mut self, id: ModelId) {
        if let Some(model) = self.models.get_mut(&id)
            && model.state == ModelState::Committed
        {
            model.pinned = false;
            self.retire(id);
        }
    }

    /// Hides a resident model from new leases; drops it now or with its last lease.
    fn retire(&mut self, id: ModelId) {
        let model = self.model(id);
        if model.retired {
            return;
        }
        model.retired = true;
        let (key, is_idle) = (model.key, model.leases == 0);
        self.keys.remove(&key);
        self.names.retain(|_, named| *named != id);
        self.event("retire", id, None);
        if is_idle {
            self.drop_bytes(id);
        }
    }

    /// Drops the bytes of a model without leases; a retired one loses its record too.
    fn drop_bytes(&mut self, id: ModelId) {
        let model = self.models.get_mut(&id).expect("the caller has the id of a model");
        assert!(model.leases == 0, "a model in use keeps its bytes");
        model.state = ModelState::Empty;
        model.pinned = false;
        self.referenced -= model.referenced;
        let extents = std::mem::take(&mut model.extents);
        if model.retired {
            self.models.remove(&id);
        }
        for extent in extents {
            let record = self.extents.get_mut(&extent).expect("a model's extents have records");
            record.models -= 1;
            if record.models == 0 {
                self.used -= record.bytes;
                self.extents.remove(&extent);
                self.freed.push(extent);
            }
        }
        self.event("evict", id, None);
    }

    /// Evicts idle models other than `except` until `need` more bytes fit: all that it takes, or none.
    fn make_room(&mut self, need: u64, except: Option<ModelId>) -> Result<(), Denial> {
        let over = (self.used + self.reserved + need).saturating_sub(self.limit);
        if over == 0 {
            return Ok(());
        }
        let mut idle: Vec<ModelId> = match self.policy {
            EvictionPolicy::Never => Vec::new(),
            _ => self
                .models
                .iter()
                .filter(|(id, model)| model.is_idle() && Some(**id) != except)
                .map(|(id, _)| *id)
                .collect(),
        };
        idle.sort_by_cached_key(|id| self.rank(*id));
        let (mut left, mut gain, mut victims) = (BTreeMap::new(), 0, 0);
        for id in &idle {
            if over <= gain && self.policy != EvictionPolicy::Flush {
                break;
            }
            victims += 1;
            for extent in &self.models[id].extents {
                let record = self.extents[extent];
                let left = left.entry(*extent).or_insert(record.models);
                *left -= 1;
                gain += if *left == 0 { record.bytes } else { 0 };
            }
        }
        if gain < over {
            let count = |has: &dyn Fn(&ModelRecord) -> bool| self.models.values().filter(|model| has(model)).count();
            return Err(Denial::Exhausted {
                needed: need,
                available: (self.limit + gain).saturating_sub(self.used + self.reserved),
                limit: self.limit,
                in_use: count(&|model| 0 < model.leases),
                pinned: count(&|model| model.pinned),
                loading: count(&|model| matches!(model.state, ModelState::Loading { .. })),
            });
        }
        idle[..victims].iter().for_each(|id| self.drop_bytes(*id));
        Ok(())
    }

    /// The position of a model in the order of eviction; the lowest goes first.
    fn rank(&self, id: ModelId) -> (u64, u64, ModelId) {
        let model = &self.models[&id];
        let bytes: u64 = model.extents.iter().map(|extent| self.extents[extent].bytes).sum();
        let age = 1 + self.clock - model.used_at;
        let first = match self.policy {
            EvictionPolicy::Fifo => model.loaded_at,
            EvictionPolicy::Lcu => model.uses,
            EvictionPolicy::Lfu => model.uses_ever,
            EvictionPolicy::SizeAware => u64::MAX - bytes.saturating_mul(age),
            EvictionPolicy::Random => types::Random::new(self.clock ^ id.0 << 20).bits(),
            _ => model.used_at,
        };
        (first, model.used_at, id)
    }

    /// Grants no new lease from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether the machine drains, and no lease and no load is left.
    pub fn is_drained(&self) -> bool {
        self.draining && self.leases.is_empty() && self.reserved == 0 && self.loading() == 0
    }

    /// Whether the machine drains.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Changes budget and policy; models over a lower budget are evicted as far as they are idle.
    pub fn configure(&mut self, limit: u64, policy: EvictionPolicy) {
        (self.limit, self.policy) = (limit, policy);
        let _ = self.make_room(0, None);
    }

    /// Bytes of extents that nothing refers to any more, since the last call.
    pub fn take_freed(&mut self) -> Vec<ExtentId> {
        std::mem::take(&mut self.freed)
    }

    /// Whether a model was evicted since the last call of [`Core::take_events`].
    pub fn has_evicted(&self) -> bool {
        self.events.iter().any(|event| event.kind == "evict")
    }

    /// Events since the last call.
    pub fn take_events(&mut self) -> Vec<CoreEvent> {
        std::mem::take(&mut self.events)
    }

    /// The records of all models, by number.
    pub fn models(&self) -> impl Iterator<Item = (ModelId, &ModelRecord)> {
        self.models.iter().map(|(id, model)| (*id, model))
    }

    /// The records from a number on.
    pub fn models_from(&self, from: u64) -> impl Iterator<Item = (ModelId, &ModelRecord)> {
        self.models.range(ModelId(from)..).map(|(id, model)| (*id, model))
    }

    /// The record of a model.
    pub fn get(&self, id: ModelId) -> Option<&ModelRecord> {
        self.models.get(&id)
    }

    /// The names of a model, with their users.
    pub fn names_of(&self, id: ModelId) -> impl Iterator<Item = (u32, &str)> {
        self.names.iter().filter(move |(_, named)| **named == id).map(|((user, name), _)| (*user, &**name))
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = (&str, ModelId)> {
        self.names.iter().map(|((_, name), id)| (&**name, *id))
    }

    /// The leases of a client with their models.
    pub fn leases_of(&self, client: ClientId) -> impl Iterator<Item = (LeaseId, ModelId)> {
        let own = self.held.range((client, LeaseId(0))..=(client, LeaseId(u64::MAX)));
        own.map(|(_, lease)| (*lease, self.leases[lease].model))
    }

    /// Leases that have not ended.
    pub fn lease_count(&self) -> usize {
        self.leases.len()
    }

    /// Loads that run.
    pub fn loading(&self) -> usize {
        self.loads.len()
    }

    /// Bytes of the tensors of resident models, shared or not.
    pub fn referenced(&self) -> u64 {
        self.referenced
    }

    /// Extents and their bytes.
    pub fn extents(&self) -> impl Iterator<Item = (ExtentId, u64)> {
        self.extents.iter().map(|(id, record)| (*id, record.bytes))
    }

    /// Bytes of the budget, of extents, and reserved by loads.
    pub fn budget(&self) -> (u64, u64, u64) {
        (self.limit, self.used, self.reserved)
    }

    /// The policy.
    pub fn policy(&self) -> EvictionPolicy {
        self.policy
    }

    fn model(&mut self, id: ModelId) -> &mut ModelRecord {
        self.models.get_mut(&id).expect("the caller has the id of a model")
    }

    fn event(&mut self, kind: &'static str, model: ModelId, client: Option<ClientId>) {
        self.events.push(CoreEvent { kind, model, client });
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Checks every invariant, by slow and separate counting.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let ensure = |holds: bool, text: &str| if holds { Ok(()) } else { Err(text.to_string()) };
        let (mut reserved, mut references) = (0, BTreeMap::<ExtentId, u32>::new());
        for (id, model) in &self.models {
            let leases = self.leases.values().filter(|lease| lease.model == *id).count();
            ensure(leases == model.leases as usize, "a model counts its leases")?;
            let is_committed = model.state == ModelState::Committed;
            ensure(is_committed || leases == 0, "a model with a lease is resident")?;
            ensure(is_committed || model.extents.is_empty(), "a model without bytes has no extent")?;
            ensure(is_committed || !model.pinned, "a pinned model is resident")?;
            ensure(!model.retired || is_committed && 0 < leases, "a retired model is in use")?;
            ensure(model.retired != (self.keys.get(&model.key) == Some(id)), "a model has its key until it retires")?;
            let is_loading = matches!(model.state, ModelState::Loading { .. });
            ensure(is_loading || model.waiters.is_empty(), "only a load has waiters")?;
            if let ModelState::Loading { reserved: own } = model.state {
                reserved += own;
            }
            model.extents.iter().for_each(|extent| *references.entry(*extent).or_default() += 1);
        }
        let loading =
            |(id, model): (&ModelId, &ModelRecord)| matches!(model.state, ModelState::Loading { .. }).then_some(*id);
        let loads: BTreeSet<ModelId> = self.models.iter().filter_map(loading).collect();
        ensure(loads == self.loads, "the models that load are listed")?;
        let resident = self.models.values().filter(|model| model.state == ModelState::Committed);
        let sum: u64 = resident.map(|model| model.referenced).sum();
        ensure(sum == self.referenced, "referenced bytes are those of resident models")?;
        let held: BTreeSet<_> = self.leases.iter().map(|(id, lease)| (lease.client, *id)).collect();
        ensure(held == self.held, "leases are listed by client")?;
        ensure(reserved == self.reserved, "the reservation is that of the loads")?;
        let counted: BTreeMap<ExtentId, u32> = self.extents.iter().map(|(id, record)| (*id, record.models)).collect();
        ensure(references == counted, "an extent counts its models, and one without models is gone")?;
        ensure(self.used == self.extents.values().map(|extent| extent.bytes).sum::<u64>(), "used bytes are extents")?;
        ensure(self.names.values().all(|id| self.models.get(id).is_some_and(|model| !model.retired)), "names resolve")?;
        ensure(self.leases.values().all(|lease| self.models.contains_key(&lease.model)), "leases resolve")
    }
}
