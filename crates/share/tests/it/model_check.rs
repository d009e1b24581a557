//! Visits the states of [`Core`] for two clients and three models that overlap in memory, and compares each step with a
//! shadow of its promises: one load at a time for a model, every waiter is answered once, bytes under a lease stay. All
//! states if each client holds one lease or request; the first ones, breadth first, if each may hold two.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use prestow_share::core::{
    ClientId, Core, Decision, EvictionPolicy, ExtentId, Granularity, LeaseId, ModelId, ModelKey, ModelState,
    SourceKind, Waiter,
};

/// The extents of each model, with their sizes: the second shares one with the first.
const CONTENT: [&[(ExtentId, u64)]; 3] =
    [&[(ExtentId(1), 2)], &[(ExtentId(1), 2), (ExtentId(2), 1)], &[(ExtentId(3), 2)]];
const LIMIT: u64 = 4;
const CLIENTS: [ClientId; 2] = [ClientId(10), ClientId(11)];

fn key(ix: usize) -> ModelKey {
    let size = CONTENT[ix].iter().map(|(_, bytes)| bytes).sum();
    ModelKey { user: 0, granularity: Granularity::Layer, source: SourceKind::Image, digest: [ix as u8; 32], size }
}

#[derive(Clone)]
struct World {
    core: Core,
    /// Requests that wait: client, model.
    waiting: Vec<(ClientId, ModelId)>,
    /// Leases: client, model, generation.
    leases: BTreeMap<LeaseId, (ClientId, ModelId, u64)>,
    /// Memory that exists, as the server would hold it.
    memory: BTreeSet<ExtentId>,
    /// Leases and requests that a client may hold.
    held_max: usize,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open { client: usize, model: usize, named: bool },
    OpenName { client: usize },
    Loaded(ModelId),
    Failed(ModelId),
    Close(ClientId, LeaseId),
    Gone(usize),
    Pin(ModelId, bool),
    Evict(ModelId, bool),
    Drain,
}

impl World {
    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Drain];
        for (client, &id) in CLIENTS.iter().enumerate() {
            let held = self.leases.values().filter(|lease| lease.0 == id).count();
            let waits = self.waiting.iter().filter(|wait| wait.0 == id).count();
            if held + waits < self.held_max {
                steps.extend((0..3).map(|model| Step::Open { client, model, named: model == 2 && client == 0 }));
                steps.push(Step::OpenName { client });
            }
            if 0 < held + waits {
                steps.push(Step::Gone(client));
            }
        }
        for (id, model) in self.core.models() {
            match model.state {
                ModelState::Loading { .. } => steps.extend([Step::Loaded(id), Step::Failed(id)]),
                ModelState::Committed => {
                    steps.extend([Step::Evict(id, false), Step::Evict(id, true)]);
                    if model.key.digest[0] == 0 {
                        steps.push(Step::Pin(id, !model.pinned));
                    }
                }
                ModelState::Empty => {}
            }
        }
        steps.extend(self.leases.iter().map(|(lease, (client, ..))| Step::Close(*client, *lease)));
        steps
    }

    fn take(&mut self, step: Step) {
        let waiter = |client: usize, name: &str| Waiter {
            client: CLIENTS[client],
            request: 0,
            lease: true,
            pin: false,
            name: name.into(),
        };
        match step {
            Step::Open { client, model, named } => {
                let key = key(model);
                let decision = self.core.open(key, waiter(client, if named { "name" } else { "" }), key.size, true);
                self.decided(client, decision);
            }
            Step::OpenName { client } => {
                let decision = self.core.open_name(0, "name", waiter(client, ""), |_| true);
                self.decided(client, decision);
            }
            Step::Loaded(id) => {
                let content = CONTENT[self.core.get(id).expect("it loads").key.digest[0] as usize];
                self.memory.extend(content.iter().map(|(extent, _)| *extent));
                let grants = self.core.loaded(id, content, 0);
                let mut expected: Vec<ClientId> =
                    self.waiting.iter().filter(|wait| wait.1 == id).map(|wait| wait.0).collect();
                let mut granted: Vec<ClientId> = grants.iter().map(|grant| grant.client).collect();
                expected.sort_unstable();
                granted.sort_unstable();
                assert_eq!(expected, granted, "each waiter is granted once");
                self.waiting.retain(|wait| wait.1 != id);
                for grant in grants {
                    let lease = grant.lease.expect("every waiter requested one");
                    self.leases.insert(lease, (grant.client, grant.model, grant.generation));
                }
            }
            Step::Failed(id) => {
                let count = self.waiting.iter().filter(|wait| wait.1 == id).count();
                assert_eq!(self.core.failed(id).len(), count, "each waiter learns of the failure");
                self.waiting.retain(|wait| wait.1 != id);
            }
            Step::Close(client, lease) => {
                let other = CLIENTS[usize::from(client == CLIENTS[0])];
                assert!(!self.core.close(other, lease), "a lease of another client cannot be closed");
                assert!(self.core.close(client, lease));
                assert!(!self.core.close(client, lease), "closing twice does nothing");
                self.leases.remove(&lease);
            }
            Step::Gone(client) => {
                self.core.gone(CLIENTS[client]);
                self.waiting.retain(|wait| wait.0 != CLIENTS[client]);
                self.leases.retain(|_, lease| lease.0 != CLIENTS[client]);
            }
            Step::Pin(id, pin) => drop(self.core.pin(id, pin)),
            Step::Evict(id, drain) => drop(self.core.evict(id, drain)),
            Step::Drain => self.core.drain(),
        }
    }

    fn decided(&mut self, client: usize, decision: Decision) {
        match decision {
            Decision::Hit(grant) => {
                let lease = grant.lease.expect("a lease was requested");
                self.leases.insert(lease, (grant.client, grant.model, grant.generation));
            }
            Decision::Load(id) => {
                assert!(self.waiting.iter().all(|wait| wait.1 != id), "one load at a time for a model");
                self.waiting.push((CLIENTS[client], id));
            }
            Decision::Wait(id) => self.waiting.push((CLIENTS[client], id)),
            Decision::Denied(_) => {}
        }
    }

    fn check(&mut self, policy: EvictionPolicy) {
        self.core.check().expect("the invariants hold");
        for extent in self.core.take_freed() {
            assert!(self.memory.remove(&extent), "memory is freed once");
        }
        self.core.take_events();
        let known: BTreeSet<ExtentId> = self.core.extents().map(|(id, _)| id).collect();
        assert_eq!(known, self.memory, "memory lives exactly as long as a model refers to it");
        let (limit, used, reserved) = self.core.budget();
        assert!(used + reserved <= limit, "{used} + {reserved} of {limit}");
        for (client, model, generation) in self.leases.values() {
            let model = self.core.get(*model).expect("a model under a lease has a record");
            assert_eq!((model.state, model.generation), (ModelState::Committed, *generation), "{client:?}");
            let content = CONTENT[model.key.digest[0] as usize];
            assert!(content.iter().all(|(extent, _)| self.memory.contains(extent)), "bytes under a lease stay");
        }
        assert_eq!(self.core.lease_count(), self.leases.len());
        if policy == EvictionPolicy::Eager {
            let idle = self.core.models().filter(|(_, model)| {
                model.state == ModelState::Committed && model.leases == 0 && !model.pinned && 0 < model.uses
            });
            // Unpinned after its last lease: dropped by the next release or when room is needed.
            assert!(idle.count() <= 1, "eager keeps no idle model but one that was unpinned");
        }
    }

    /// The state without numbers that only grow: ids and clocks by rank. Lists start with their length.
    fn fingerprint(&self) -> Box<[u8]> {
        let mut clocks: Vec<u64> = self.core.models().flat_map(|(_, model)| [model.used_at, model.loaded_at]).collect();
        clocks.sort_unstable();
        clocks.dedup();
        let rank = |at: u64| clocks.iter().position(|own| *own == at).expect("a clock of these") as u8;
        let ids: Vec<ModelId> = self.core.models().map(|(id, _)| id).collect();
        let ix = |id: ModelId| ids.iter().position(|own| *own == id).map_or(u8::MAX, |ix| ix as u8);
        let mut text = vec![u8::from(self.core.is_draining()), ids.len() as u8];
        for (_, model) in self.core.models() {
            let state = match model.state {
                ModelState::Empty => 0,
                ModelState::Committed => 1,
                ModelState::Loading { reserved } => 2 + reserved as u8,
            };
            let bits = u8::from(model.pinned) | u8::from(model.retired) << 1 | u8::from(0 < model.uses) << 2;
            text.extend([model.key.digest[0], state, model.leases as u8, bits]);
            text.extend([rank(model.used_at), rank(model.loaded_at), model.waiters.len() as u8]);
            text.extend(model.waiters.iter().flat_map(|waiter| [waiter.client.0 as u8, waiter.name.len() as u8]));
        }
        let mut leases: Vec<[u8; 2]> =
            self.leases.values().map(|(client, model, _)| [client.0 as u8, ix(*model)]).collect();
        leases.sort_unstable();
        text.push(leases.len() as u8);
        text.extend(leases.iter().flatten());
        text.extend(self.core.names().map(|(_, id)| ix(id)));
        text.into()
    }
}

/// Visits states breadth first; returns their count and whether that is all of them.
fn visit(policy: EvictionPolicy, held_max: usize, states_max: usize) -> (usize, bool) {
    let mut first = World {
        core: Core::new(LIMIT, policy),
        waiting: Vec::new(),
        leases: BTreeMap::new(),
        memory: BTreeSet::new(),
        held_max,
    };
    first.check(policy);
    let mut seen = BTreeSet::from([first.fingerprint()]);
    let mut queue = VecDeque::from([first]);
    while let Some(world) = queue.pop_front() {
        for step in world.steps() {
            let mut next = world.clone();
            next.take(step);
            next.check(policy);
            if seen.insert(next.fingerprint()) {
                if states_max <= seen.len() {
                    return (seen.len(), false);
                }
                queue.push_back(next);
            }
        }
    }
    (seen.len(), true)
}

const CHECKED: [EvictionPolicy; 4] =
    [EvictionPolicy::Lru, EvictionPolicy::Never, EvictionPolicy::Flush, EvictionPolicy::Eager];

#[test]
fn every_state_with_one_lease_a_client_keeps_the_promises() {
    std::thread::scope(|scope| {
        for policy in CHECKED {
            scope.spawn(move || {
                let (states, is_all) = visit(policy, 1, 2_000_000);
                assert!(is_all && 1000 < states, "{}: {states} states", policy.name());
            });
        }
    });
}

#[test]
fn states_with_two_leases_a_client_keep_the_promises() {
    for policy in CHECKED {
        let (states, _) = visit(policy, 2, 20_000);
        assert_eq!(states, 20_000, "{}", policy.name());
    }
}
