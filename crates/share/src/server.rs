//! [`Server`]: one thread that waits on all sockets and owns the [`Core`]; worker threads that read files. The daemon maps
//! no weights. Replies never wait: a client that does not read is not read from.
//!
//! The file stays whole: each request is a method that changes the core, the connections and the figures together.

mod bind;
mod device;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use serde_json::{Value, json};

pub use bind::{Binding, ServeError};
pub use device::DeviceOptions;

use self::device::{DEVICES_MAX, DeviceTier, OnDevice, client_of, device_of};
use self::work::{Finished, Job, worker};
use crate::core::{
    ClientId, Core, CoreEvent, Decision, Denial, EVERYONE, EvictionPolicy, ExtentId, Grant, Granularity, LeaseId,
    ModelId, ModelKey, ModelState, Waiter,
};
use crate::load::{LoadPace, Resident, ResidentPool};
use crate::memory::{Extent, huge_page_setting};
use crate::metrics::Metrics;
use crate::socket::{self, Received};
use crate::system::ShortSlices;
use crate::trace::{Recorder, now};
use crate::wire::{Ask, Code, DESCRIPTORS_MAX, LoadMode, NAME_MAX, PACKET_MAX, Reply, TEXT_MAX, Tier};

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Users that may connect. Root and the daemon's own user always may.
    pub allow: Vec<u32>,
    /// Whether all users share models. Otherwise each user has its own, and those that the daemon's user preloads.
    pub one_namespace: bool,
    /// Bytes of the host tier.
    pub limit: u64,
    /// The order of eviction.
    pub policy: EvictionPolicy,
    /// Factor on a model's bytes in the estimate.
    pub estimation_rate: f64,
    /// Whether the estimate includes the client's memory.
    pub with_internal: bool,
    /// Threads that load.
    pub workers: usize,
    /// The most connections.
    pub clients_max: usize,
    /// The most leases of a connection.
    pub leases_max: usize,
    /// Whether spans are recorded.
    pub record: bool,
    /// Devices with memory of their own, at most 15.
    pub devices: Vec<DeviceOptions>,
    /// Whether the host's copy of a model stays when a device has it.
    pub persist_host: bool,
    /// Models to load at the start: file, its path, and the granularity. They are published under their names and pinned.
    pub preload: Vec<(PathBuf, String, Granularity)>,
    /// The folder with the files of separate weights.
    pub base: Option<PathBuf>,
}

impl ServerOptions {
    /// A server with a budget; everything else by default.
    pub fn new(limit: u64) -> ServerOptions {
        ServerOptions {
            allow: Vec::new(),
            one_namespace: false,
            limit,
            policy: EvictionPolicy::Lru,
            estimation_rate: 1.0,
            with_internal: true,
            workers: 2,
            clients_max: 4096,
            leases_max: 1024,
            record: false,
            devices: Vec::new(),
            persist_host: true,
            preload: Vec::new(),
            base: None,
        }
    }
}

/// Replies that a client may leave unread before it is not read from any more.
const UNREAD_MAX: usize = 16;
/// Requests of one client that may wait for loads.
const WAITING_MAX: usize = 64;
/// Loads behind clients that may wait for their turn: each holds a descriptor and a part of the budget.
const FILLS_MAX: usize = 64;
/// Descriptors of the process itself: standard streams, sockets, epoll, signals, lock.
const OWN_DESCRIPTORS: u64 = 14;
/// Events of the history.
const HISTORY_MAX: usize = 4096;

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const SIGNALS: u64 = 2;
/// The connection of requests that the daemon makes itself.
const SELF: ClientId = ClientId(0);
const FIRST_CLIENT: u64 = 16;

struct Connection {
    socket: OwnedFd,
    user: u32,
    process: i32,
    /// Packets that the socket did not take yet, with the memory whose descriptors go along.
    unsent: VecDeque<(Vec<u8>, Vec<Arc<Extent>>)>,
    /// Requests that wait for a worker.
    waiting: usize,
    /// The events that are waited for.
    watched: epoll::EventFlags,
}

/// A load that runs. Others may wait for it; if its file is bad, theirs is tried.
struct Loading {
    /// The request that brought the file; it may have ended.
    request: (ClientId, u32),
    /// The source of a name once the load succeeds.
    file: Arc<File>,
    /// Requests that wait, with the files that they brought.
    others: VecDeque<((ClientId, u32), Arc<File>)>,
    /// For the format of tensor files.
    name: String,
}

/// The most files that wait for one load to fail.
const OTHERS_MAX: usize = 16;

/// The daemon.
pub struct Server {
    options: ServerOptions,
    binding: Binding,
    metrics: Arc<Metrics>,
    recorder: Arc<Recorder>,
    poll: OwnedFd,
    wake: Arc<OwnedFd>,
    /// Opened to be closed when descriptors run out, so that a connection can be accepted and refused.
    spare: Option<File>,
    core: Core,
    devices: Vec<DeviceTier>,
    pool: Arc<ResidentPool>,
    jobs: Option<Sender<Job>>,
    /// Loads that no client waits for: one at a time, at low priority.
    fills: Option<Sender<Job>>,
    finished: Receiver<Finished>,
    threads: Vec<std::thread::JoinHandle<()>>,
    clients: BTreeMap<ClientId, Connection>,
    next_client: u64,
    residents: BTreeMap<ModelId, (Resident, u64)>,
    extents: BTreeMap<ExtentId, Arc<Extent>>,
    sources: BTreeMap<ModelId, (Arc<File>, String)>,
    /// Loads that run.
    loading: BTreeMap<ModelId, Loading>,
    /// Loads behind clients that have not ended.
    filling: BTreeSet<ModelId>,
    verifying: BTreeMap<ModelId, Vec<(ClientId, u32)>>,
    drains: Vec<(ClientId, u32)>,
    history: VecDeque<(u64, u64, CoreEvent)>,
    events: u64,
    started: u64,
    buffer: Vec<u8>,
}

impl Server {
    /// A server on a bound socket. `signals`, if given, is a signalfd: a first signal drains, a second one ends at once.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(binding: Binding, options: ServerOptions, signals: Option<OwnedFd>) -> io::Result<Server> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&poll, &binding.listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&poll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let mut binding = binding;
        binding.signals = signals;
        if let Some(signals) = &binding.signals {
            epoll::add(&poll, signals, epoll::EventData::new_u64(SIGNALS), epoll::EventFlags::IN)?;
        }
        let (pool, metrics, recorder) =
            (Arc::new(ResidentPool::new(options.base.clone())), Arc::<Metrics>::default(), Arc::<Recorder>::default());
        let (jobs, queue) = channel::<Job>();
        let (fills, queue_behind) = channel::<Job>();
        let (done, finished) = channel();
        let (queue, queue_behind) = (Arc::new(Mutex::new(queue)), Arc::new(Mutex::new(queue_behind)));
        let start = |ix: usize, name: String, queue: &Arc<Mutex<Receiver<Job>>>, pace: LoadPace| {
            let (queue, done, wake, pool) = (queue.clone(), done.clone(), wake.clone(), pool.clone());
            let recorder = options.record.then(|| recorder.clone());
            let run = move || worker(ix as u64 + 1, pace, &queue, &done, &wake, &pool, recorder.as_deref());
            std::thread::Builder::new().name(name).spawn(run)
        };
        let n_workers = options.workers.max(1);
        let mut threads = (0..n_workers)
            .map(|ix| start(ix, format!("load-{ix}"), &queue, LoadPace::Fast))
            .collect::<io::Result<Vec<_>>>()?;
        threads.push(start(n_workers, "fill".into(), &queue_behind, LoadPace::Behind)?);
        metrics.limit_bytes.set(options.limit);
        metrics.set_devices(options.devices.iter().map(|own| own.memory.uuid()));
        Ok(Server {
            core: Core::new(options.limit, options.policy),
            devices: options
                .devices
                .iter()
                .take(DEVICES_MAX)
                .enumerate()
                .map(|(ix, own)| DeviceTier::new(ix, own))
                .collect(),
            spare: File::open("/dev/null").ok(),
            threads,
            jobs: Some(jobs),
            fills: Some(fills),
            clients: BTreeMap::new(),
            next_client: FIRST_CLIENT,
            residents: BTreeMap::new(),
            extents: BTreeMap::new(),
            sources: BTreeMap::new(),
            loading: BTreeMap::new(),
            filling: BTreeSet::new(),
            verifying: BTreeMap::new(),
            drains: Vec::new(),
            history: VecDeque::new(),
            events: 0,
            started: now(),
            buffer: vec![0; PACKET_MAX],
            options,
            binding,
            metrics,
            recorder,
            poll,
            wake,
            pool,
            finished,
        })
    }

    /// The figures, for other threads.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// The spans, if they are recorded.
    pub fn recorder(&self) -> Arc<Recorder> {
        self.recorder.clone()
    }

    /// Serves until it is drained.
    ///
    /// # Errors
    /// The system refuses to wait for events.
    pub fn run(mut self) -> io::Result<()> {
        // The workers are threads that have started: only this one answers clients.
        let _slices = ShortSlices::preferred();
        self.preload();
        self.metrics.ready.store(true, Ordering::Relaxed);
        let mut events = Vec::with_capacity(256);
        while !self.is_over() {
            events.clear();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), None) {
                Err(rustix::io::Errno::INTR) => continue,
                waited => waited?,
            };
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => self.collect(),
                    SIGNALS => {
                        if self.signalled() {
                            return Ok(());
                        }
                    }
                    id => self.serve(ClientId(id), flags),
                }
            }
            self.settle();
        }
        self.metrics.ready.store(false, Ordering::Relaxed);
        (self.jobs, self.fills) = (None, None);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        // Who waits for the drain finds no socket and no lock after it.
        self.binding.remove();
        let waiters = std::mem::take(&mut self.drains);
        waiters.into_iter().for_each(|(client, id)| self.reply(client, id, &Reply::Done, Vec::new()));
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.core.is_drained() && self.devices.iter().all(|device| device.core.is_drained())
    }

    /// Handles a signal; returns whether to end at once.
    fn signalled(&mut self) -> bool {
        let Some(signals) = &self.binding.signals else { return false };
        // A `signalfd_siginfo` has 128 bytes.
        let mut info = [0u8; 128];
        if rustix::io::read(signals, &mut info).is_err() {
            return false;
        }
        let again = self.core.is_draining();
        self.begin_drain();
        again
    }

    fn begin_drain(&mut self) {
        self.core.drain();
        self.devices.iter_mut().for_each(|device| device.core.drain());
        self.metrics.ready.store(false, Ordering::Relaxed);
        (self.binding.notify)("STOPPING=1\nSTATUS=draining");
    }

    /// Loads the models of the options; each is a request of the daemon's own.
    fn preload(&mut self) {
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

    /// Accepts every connection that waits.
    fn accept(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.binding.listener, flags) {
                Ok(socket) => self.admit(socket),
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    // Give up the spare descriptor to accept, refuse and close one; otherwise the loop would spin on it.
                    // The system reports exhaustion also if no connection waits.
                    self.spare = None;
                    let accepted = accept_with(&self.binding.listener, flags);
                    if let Ok(socket) = &accepted {
                        let reply = Reply::refused(Code::Exhausted, "the daemon has no free descriptor");
                        let _ = socket::send(socket, &reply.encode(0), &[]);
                        self.metrics.refusals.add();
                    }
                    let is_done = accepted.is_err();
                    drop(accepted);
                    self.spare = File::open("/dev/null").ok();
                    if is_done {
                        return;
                    }
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Admits a connection by its user.
    fn admit(&mut self, socket: OwnedFd) {
        let Ok(peer) = socket_peercred(&socket) else { return };
        let (user, own) = (peer.uid.as_raw(), rustix::process::getuid().as_raw());
        let refuse = |code, message: String| {
            let _ = socket::send(&socket, &Reply::refused(code, message).encode(0), &[]);
        };
        if user != 0 && user != own && !self.options.allow.contains(&user) {
            self.metrics.strangers.add();
            return refuse(
                Code::Permission,
                format!("user {user} is not allowed; start the daemon with --allow {user}"),
            );
        }
        if self.free_descriptors() == 0 {
            self.metrics.refusals.add();
            return refuse(Code::Exhausted, "the daemon has no free descriptor; raise its limit (LimitNOFILE)".into());
        }
        if self.options.clients_max <= self.clients.len() {
            self.metrics.refusals.add();
            return refuse(Code::Exhausted, format!("the daemon has {} clients, the limit", self.clients.len()));
        }
        let id = ClientId(self.next_client);
        self.next_client += 1;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        if epoll::add(&self.poll, &socket, epoll::EventData::new_u64(id.0), flags).is_err() {
            return refuse(Code::Exhausted, "the daemon cannot watch another connection".into());
        }
        let process = peer.pid.as_raw_nonzero().get();
        self.clients
            .insert(id, Connection { socket, user, process, unsent: VecDeque::new(), waiting: 0, watched: flags });
    }

    /// Descriptors that new connections may take: a part stays free for files that clients send and for memory.
    fn free_descriptors(&self) -> u64 {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let reserve = OWN_DESCRIPTORS + (limit / 4).min(2 * DESCRIPTORS_MAX as u64);
        let on_devices: usize = self.devices.iter().map(|own| own.blocks.len() + own.residents.len()).sum();
        let files: usize = self.loading.values().map(|load| 1 + load.others.len()).sum();
        let used = self.clients.len() + self.extents.len() + self.sources.len() + files + on_devices;
        limit.saturating_sub(reserve + used as u64)
    }

    /// Serves a connection: unsent replies first, then requests until one is unsent.
    fn serve(&mut self, id: ClientId, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT) && !self.flush(id) {
            return;
        }
        if !flags.intersects(
            epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR | epoll::EventFlags::RDHUP,
        ) {
            return;
        }
        // A few packets at a time, so that one client cannot keep the others waiting.
        for _ in 0..8 {
            let Some(client) = self.clients.get(&id) else { return };
            if UNREAD_MAX <= client.unsent.len() {
                return;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            let received = socket::receive(&client.socket, &mut buffer);
            let start = now();
            let outcome = match received {
                Ok(Received::Packet { length, descriptors }) => Ok(Some((length, descriptors))),
                Ok(Received::Closed) => Ok(None),
                Ok(Received::Truncated) => Err(Some(Reply::refused(
                    Code::Protocol,
                    format!("a packet has at most {PACKET_MAX} bytes, and all of its descriptors"),
                ))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(None),
                Err(_) => Ok(None),
            };
            match outcome {
                Ok(Some((length, descriptors))) => {
                    let decoded = Ask::decode(&buffer[..length]);
                    let request = crate::wire::request_id(&buffer[..length]);
                    self.buffer = buffer;
                    match decoded {
                        Ok((request, ask)) => self.answer(id, request, ask, descriptors, start),
                        Err(error) => {
                            self.metrics.protocol_errors.add();
                            self.reply(id, request, &Reply::refused(Code::Protocol, error.to_string()), Vec::new());
                            return self.hang_up(id);
                        }
                    }
                }
                Ok(None) => {
                    self.buffer = buffer;
                    return self.hang_up(id);
                }
                Err(Some(reply)) => {
                    self.buffer = buffer;
                    self.metrics.protocol_errors.add();
                    self.reply(id, 0, &reply, Vec::new());
                    return self.hang_up(id);
                }
                Err(None) => {
                    self.buffer = buffer;
                    return;
                }
            }
        }
    }

    /// Ends a connection with its leases.
    fn hang_up(&mut self, id: ClientId) {
        if let Some(client) = self.clients.remove(&id) {
            let _ = epoll::delete(&self.poll, &client.socket);
            self.core.gone(id);
            self.devices.iter_mut().for_each(|device| device.core.gone(id));
            self.drains.retain(|(client, _)| *client != id);
        }
    }

    fn user_of(&self, client: ClientId) -> u32 {
        let user = self.clients.get(&client).map_or(EVERYONE, |client| client.user);
        if self.options.one_namespace { EVERYONE } else { user }
    }

    /// Whether a connection may use commands of operators.
    fn is_operator(&self, client: ClientId) -> bool {
        let own = rustix::process::getuid().as_raw();
        self.clients.get(&client).is_some_and(|client| client.user == 0 || client.user == own)
    }

    fn answer(&mut self, client: ClientId, request: u32, ask: Ask, descriptors: Vec<OwnedFd>, start: u64) {
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

    fn answer_open(
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
    fn open(
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

    fn decided(
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

    fn wait(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.waiting += 1;
        }
    }

    fn grant(&mut self, grant: &Grant, tier: Tier) {
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

    /// Requests a model in memory of a device; returns whether it was resident there.
    fn open_device(
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
    fn upload(&mut self, ix: usize, grant: &Grant, tier: Tier) {
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

    fn uploaded(&mut self, ix: usize, request: u32, outcome: Result<OnDevice, crate::load::LoadFailure>) {
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

    fn not_uploaded(&mut self, ix: usize, model: ModelId, code: Code, text: &str) {
        self.metrics.load_failures.add();
        for waiter in self.devices[ix].core.failed(model) {
            self.waited(waiter.client);
            self.refuse(waiter.client, waiter.request, code, text);
        }
    }

    fn grant_device(&mut self, ix: usize, grant: &Grant, tier: Tier) {
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

    fn leases_of(&self, client: ClientId) -> usize {
        let on_devices = self.devices.iter().map(|device| device.core.leases_of(client).count()).sum::<usize>();
        self.core.leases_of(client).count() + on_devices
    }

    /// The machine that has a model.
    fn core_of(&mut self, id: ModelId) -> &mut Core {
        let on_device = self.devices.iter().position(|device| device.core.get(id).is_some());
        match on_device {
            Some(ix) => &mut self.devices[ix].core,
            None => &mut self.core,
        }
    }

    /// Takes the results of workers.
    fn collect(&mut self) {
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

    fn loaded(&mut self, model: ModelId, outcome: Result<Resident, crate::load::LoadFailure>, nanoseconds: u64) {
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
    fn load_again(&mut self, model: ModelId, mut load: Loading, failure: &crate::load::LoadFailure) -> bool {
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

    fn waited(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.waiting = client.waiting.saturating_sub(1);
        }
    }

    fn verify(&mut self, client: ClientId, request: u32, user: u32, model: &str) {
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

    fn verified(&mut self, model: ModelId, outcome: io::Result<bool>) {
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

    /// The model of a name or number.
    fn select(&self, user: u32, model: &str) -> Option<ModelId> {
        let named = || self.core.names().find(|(name, _)| *name == model).map(|(_, id)| id);
        let is_known = |id: &ModelId| {
            self.core.get(*id).is_some() || self.devices.iter().any(|device| device.core.get(*id).is_some())
        };
        let numbered = || model.parse().ok().map(ModelId).filter(is_known);
        self.core.named(user, model).or_else(named).or_else(numbered)
    }

    fn change(
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

    fn deny(&mut self, client: ClientId, request: u32, denial: &Denial) {
        let code = match denial {
            Denial::NotFound => Code::NotFound,
            Denial::Draining => Code::Draining,
            Denial::Exhausted { .. } => Code::Exhausted,
            Denial::InUse { .. } | Denial::Pinned | Denial::Loading => Code::Busy,
        };
        if client == SELF {
            return (self.binding.warn)(&format!("cannot preload: {denial}"));
        }
        self.refuse(client, request, code, &denial.to_string());
    }

    fn refuse(&mut self, client: ClientId, request: u32, code: Code, message: &str) {
        if let Some(ix) = device_of(client) {
            // The host tier refuses the bytes for a device.
            if let Some(upload) = self.devices[ix].uploads.remove(&request) {
                self.not_uploaded(ix, upload.model, code, message);
            }
            return;
        }
        self.metrics.refusals.add();
        self.reply(client, request, &Reply::refused(code, message), Vec::new());
    }

    fn text(&mut self, client: ClientId, request: u32, value: Value, next: u64) {
        let text = value.to_string();
        let reply = match text.len() <= TEXT_MAX {
            true => Reply::Text { text, next },
            false => Reply::refused(Code::System, "the report is longer than a packet"),
        };
        self.reply(client, request, &reply, Vec::new());
    }

    /// Sends a reply, or keeps it until the client reads.
    fn reply(&mut self, client: ClientId, request: u32, reply: &Reply, memory: Vec<Arc<Extent>>) {
        let Some(connection) = self.clients.get_mut(&client) else { return };
        connection.unsent.push_back((reply.encode(request), memory));
        if connection.unsent.len() == 1 {
            self.flush(client);
        }
    }

    /// Sends unsent replies. Returns whether the connection still exists.
    fn flush(&mut self, id: ClientId) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return false };
        let mut failed = false;
        while let Some((packet, memory)) = client.unsent.front() {
            let descriptors: Vec<BorrowedFd> = memory.iter().map(|extent| extent.file.as_fd()).collect();
            match socket::send(&client.socket, packet, &descriptors) {
                Ok(()) => drop(client.unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    failed = true;
                    break;
                }
            }
        }
        if failed {
            self.hang_up(id);
            return false;
        }
        let mut flags = epoll::EventFlags::RDHUP;
        if client.unsent.len() < UNREAD_MAX {
            flags |= epoll::EventFlags::IN;
        }
        if !client.unsent.is_empty() {
            flags |= epoll::EventFlags::OUT;
        }
        if flags != client.watched {
            client.watched = flags;
            let _ = epoll::modify(&self.poll, &client.socket, epoll::EventData::new_u64(id.0), flags);
        }
        true
    }

    /// Drops memory that the core released, and updates history and figures.
    fn settle(&mut self) {
        for ix in 0..self.devices.len() {
            for event in self.devices[ix].core.take_events() {
                let device = &mut self.devices[ix];
                let is_resident =
                    device.core.get(event.model).is_some_and(|model| model.state == ModelState::Committed);
                if event.kind == "evict" {
                    self.metrics.evictions.add();
                    if !is_resident {
                        device.residents.remove(&event.model);
                    }
                }
                self.remember(event);
            }
            self.devices[ix].sweep();
            debug_assert_eq!(self.devices[ix].core.check(), Ok(()));
        }
        let events = self.core.take_events();
        let is_changed = events.iter().any(|event| matches!(event.kind, "evict" | "commit"));
        for event in events {
            match event.kind {
                "evict" => {
                    self.metrics.evictions.add();
                    let model = self.core.get(event.model);
                    // It may have been loaded again since the event.
                    if model.is_none_or(|model| model.state != ModelState::Committed) {
                        self.residents.remove(&event.model);
                    }
                    if model.is_none() {
                        self.sources.remove(&event.model);
                    }
                }
                "retire" | "unname" => drop(self.sources.remove(&event.model)),
                _ => {}
            }
            if self.options.record && matches!(event.kind, "evict" | "commit") {
                let name = if event.kind == "evict" { "deleting_model" } else { "make_shared" };
                self.span(name, if event.kind == "evict" { "destroy" } else { "share" }, now(), Vec::new);
            }
            self.remember(event);
        }
        for extent in self.core.take_freed() {
            self.extents.remove(&extent);
            self.pool.forget(extent);
        }
        let (limit, used, reserved) = self.core.budget();
        self.metrics.limit_bytes.set(limit);
        self.metrics.resident_bytes.set(used);
        self.metrics.reserved_bytes.set(reserved);
        if is_changed {
            let manifests: u64 =
                self.residents.values().filter_map(|(own, _)| own.manifest.as_ref()).map(|own| own.bytes).sum();
            self.metrics.shared_bytes.set((self.core.referenced() + manifests).saturating_sub(used));
        }
        self.metrics.models.set(self.residents.len() as u64);
        self.metrics.extents.set(self.extents.len() as u64);
        let on_devices: usize = self.devices.iter().map(|device| device.core.lease_count()).sum();
        self.metrics.leases.set((self.core.lease_count() + on_devices) as u64);
        for (figures, device) in self.metrics.devices().iter().zip(&self.devices) {
            let (limit, used, reserved) = device.core.budget();
            figures.limit_bytes.set(limit);
            figures.resident_bytes.set(used);
            figures.reserved_bytes.set(reserved);
        }
        self.metrics.clients.set(self.clients.len() as u64);
        debug_assert_eq!(self.core.check(), Ok(()));
    }

    fn remember(&mut self, event: CoreEvent) {
        self.events += 1;
        if HISTORY_MAX <= self.history.len() {
            self.history.pop_front();
        }
        self.history.push_back((self.events, now(), event));
    }

    fn span(
        &self,
        name: &'static str,
        category: &'static str,
        start: u64,
        arguments: impl Fn() -> Vec<(&'static str, String)>,
    ) {
        if self.options.record {
            self.recorder.add(name, category, 0, start, arguments());
        }
    }

    fn status(&self) -> Value {
        let (limit, used, reserved) = self.core.budget();
        let (tensors, saved) = (self.core.referenced(), self.metrics.shared_bytes.value());
        let mut states = BTreeMap::<&str, usize>::new();
        self.core.models().for_each(|(_, model)| *states.entry(model.state_name()).or_default() += 1);
        let metrics = &self.metrics;
        let loads: Vec<Value> = self
            .core
            .models()
            .filter_map(|(id, model)| match model.state {
                ModelState::Loading { reserved } => {
                    Some(json!({ "model": id.0, "reserved_bytes": reserved, "waiting": model.waiters.len() }))
                }
                _ => None,
            })
            .take(100)
            .collect();
        json!({
            "state": if self.core.is_draining() { "draining" } else { "ready" },
            "process": std::process::id(),
            "user": rustix::process::getuid().as_raw(),
            "socket": self.binding.path,
            "uptime_seconds": (now() - self.started) / 1_000_000_000,
            "tiers": {
                "host": {
                    "limit_bytes": limit, "resident_bytes": used, "reserved_bytes": reserved,
                    "tensor_bytes": tensors, "saved_bytes": saved,
                    "policy": self.core.policy().name(),
                    "huge_pages": huge_page_setting(),
                },
                "devices": self.devices.iter().map(DeviceTier::status).collect::<Vec<_>>(),
            },
            "models": states,
            "leases": metrics.leases.value(),
            "clients": self.clients.len(),
            "extents": self.extents.len(),
            "descriptors": open_descriptors(),
            "opens": { "device": metrics.hits_device.value(), "host": metrics.hits_host.value(), "disk": metrics.hits_disk.value(), "filling": metrics.fillings.value() },
            "loads": metrics.loads.value(), "load_failures": metrics.load_failures.value(),
            "evictions": metrics.evictions.value(), "refusals": metrics.refusals.value(),
            "strangers": metrics.strangers.value(), "protocol_errors": metrics.protocol_errors.value(),
            "loading": loads,
            "client_list": self.clients.iter().take(100).map(|(id, client)| json!({
                "client": id.0, "process": client.process, "user": client.user,
                "leases": self.leases_of(*id), "unread": client.unsent.len(),
            })).collect::<Vec<_>>(),
        })
    }

    fn settings(&self) -> Value {
        let options = &self.options;
        json!({
            "UPRD_EVICTION_POLICY": self.core.policy().name(),
            "UPRD_ESTIMATION_RATE": options.estimation_rate,
            "UPRD_ESTIMATE_WITH_INTERNAL_MEMORY": options.with_internal,
            "host_limit_bytes": self.core.budget().0,
            "allowed_users": options.allow,
            "one_namespace": options.one_namespace,
            "workers": options.workers,
            "clients_max": options.clients_max,
            "leases_max": options.leases_max,
            "name_bytes_max": NAME_MAX,
        })
    }

    fn row(&self, id: ModelId) -> Value {
        let on_device = self.devices.iter().find_map(|device| Some((device, device.core.get(id)?)));
        let tier = on_device.map_or("host", |(device, _)| device.memory.uuid());
        let model = on_device.map(|(_, model)| model).or_else(|| self.core.get(id)).expect("the caller lists models");
        let names: Vec<&str> = self.core.names_of(id).map(|(_, name)| name).collect();
        let shared = self.residents.get(&id).map_or(0, |(resident, _)| resident.shared);
        let tensors = self.residents.get(&id).map_or(0, |(resident, _)| resident.tensors.tensors.len());
        json!({
            "model": id.0, "tier": tier, "names": names, "state": model.state_name(), "generation": model.generation,
            "user": if model.key.user == EVERYONE { json!("everyone") } else { json!(model.key.user) },
            "digest": hex(&model.key.digest), "bytes": model.key.size,
            "granularity": model.key.granularity.name(), "referenced_bytes": model.referenced,
            "found_resident_bytes": shared, "tensors": tensors, "leases": model.leases, "pinned": model.pinned,
            "waiting": model.waiters.len(), "uses": model.uses_ever,
        })
    }
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().fold("blake3:".to_string(), |text, byte| text + &format!("{byte:02x}"))
}

/// As many rows as fit into a packet, and the number to continue from; 0 if these are all.
fn page(rows: impl Iterator<Item = (u64, Value)>) -> (Value, u64) {
    let (mut taken, mut size) = (Vec::new(), 2);
    for (number, row) in rows {
        size += row.to_string().len() + 1;
        if TEXT_MAX < size {
            return (Value::Array(taken), number);
        }
        taken.push(row);
    }
    (Value::Array(taken), 0)
}

/// Descriptors of this process.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.binding.remove();
    }
}
