//! [`Server`]: one thread that waits on all sockets and owns the [`Core`]; worker threads that read files. The daemon maps
//! no weights. Replies never wait: a client that does not read is not read from.
//!
//! Here are the state and the loop; the modules have the parts of its turns.

mod bind;
mod connections;
mod device;
mod loads;
mod requests;
mod settling;
mod status;
mod uploads;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, epoll, eventfd};

pub use bind::{Binding, ServeError};
pub use device::DeviceOptions;

use self::device::{DEVICES_MAX, DeviceTier};
use self::work::{Finished, Job, worker};
use crate::core::{ClientId, Core, CoreEvent, EvictionPolicy, ExtentId, Granularity, ModelId};
use crate::load::{LoadPace, Resident, ResidentPool};
use crate::memory::Extent;
use crate::metrics::Metrics;
use crate::system::ShortSlices;
use crate::trace::{Recorder, now};
use crate::wire::{PACKET_MAX, Reply};

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
}
