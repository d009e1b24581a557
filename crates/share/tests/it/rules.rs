//! The rules of [`Core`] one by one, each in the shortest history that shows it.

use prestow_share::core::{
    ClientId, Core, Decision, Denial, EVERYONE, EvictionPolicy, ExtentId, Granularity, LeaseId, ModelId, ModelKey,
    ModelState, SourceKind, Waiter,
};

const CLIENT: ClientId = ClientId(10);

fn key(user: u32, number: u8) -> ModelKey {
    let (granularity, source) = (Granularity::Model, SourceKind::Image);
    ModelKey { user, granularity, source, digest: [number; 32], size: 10 }
}

fn waiter(name: &str) -> Waiter {
    Waiter { client: CLIENT, request: 1, lease: true, pin: false, name: name.into() }
}

/// Loads the model of a key, `bytes` in an extent of its number, for a request. Returns the model and its lease.
fn load(core: &mut Core, key: ModelKey, waiter: Waiter, bytes: u64) -> (ModelId, Option<LeaseId>) {
    let Decision::Load(id) = core.open(key, waiter, bytes, true) else { panic!("no bytes serve the key") };
    let grants = core.loaded(id, &[(ExtentId(key.digest[0].into()), bytes)], bytes);
    assert_eq!(core.check(), Ok(()));
    (id, grants[0].lease)
}

/// The same without a lease at its end.
fn idle(core: &mut Core, key: ModelKey, name: &str, bytes: u64) -> ModelId {
    let (id, lease) = load(core, key, waiter(name), bytes);
    assert!(core.close(CLIENT, lease.expect("it was requested")));
    id
}

fn is_resident(core: &Core, id: ModelId) -> bool {
    core.get(id).is_some_and(|model| model.state == ModelState::Committed)
}

#[test]
fn draining_grants_no_lease_by_key_or_name() {
    let mut core = Core::new(100, EvictionPolicy::Lru);
    idle(&mut core, key(1, 1), "m", 10);
    core.drain();
    assert_eq!(core.open(key(1, 1), waiter(""), 10, true), Decision::Denied(Denial::Draining));
    assert_eq!(core.open_name(1, "m", waiter(""), |_| true), Decision::Denied(Denial::Draining));
}

#[test]
fn drain_waits_for_loads_and_leases() {
    let mut core = Core::new(100, EvictionPolicy::Lru);
    let (_, lease) = load(&mut core, key(1, 1), waiter(""), 10);
    // Nothing is reserved for the second one.
    let Decision::Load(second) = core.open(key(1, 2), waiter(""), 0, true) else { panic!("it is not resident") };
    core.drain();
    assert!(!core.is_drained());
    core.close(CLIENT, lease.expect("it was requested"));
    assert!(!core.is_drained(), "a load runs");
    core.failed(second);
    assert!(core.is_drained());
}

#[test]
fn empty_record_of_everyone_hides_no_model_of_a_user() {
    let mut core = Core::new(100, EvictionPolicy::Lru);
    let shared = idle(&mut core, key(EVERYONE, 1), "", 10);
    assert_eq!(core.find(&key(7, 1)), Some(shared), "everyone may lease it");
    core.evict(shared, false).expect("it is idle");
    let own = idle(&mut core, key(7, 1), "", 10);
    assert_ne!(own, shared, "the file of a user does not serve everyone");
    assert_eq!(core.get(own).map(|model| model.key.user), Some(7));
    assert_eq!(core.find(&key(7, 1)), Some(own));
    assert!(matches!(core.open(key(7, 1), waiter(""), 10, true), Decision::Hit(grant) if grant.model == own));
}

#[test]
fn own_name_is_found_before_that_of_everyone() {
    let mut core = Core::new(100, EvictionPolicy::Lru);
    let shared = idle(&mut core, key(EVERYONE, 1), "m", 10);
    let own = idle(&mut core, key(7, 2), "m", 10);
    assert_eq!([core.named(7, "m"), core.named(8, "m")], [Some(own), Some(shared)]);
}

#[test]
fn pinned_models_stay() {
    let pinned = || Waiter { pin: true, ..waiter("") };
    // Behind their last lease, whatever the policy.
    let mut core = Core::new(10, EvictionPolicy::Eager);
    let (id, lease) = load(&mut core, key(1, 1), pinned(), 10);
    core.close(CLIENT, lease.expect("it was requested"));
    assert!(is_resident(&core, id));
    assert_eq!(core.evict(id, false), Err(Denial::Pinned));
    // When another one needs room.
    for policy in [EvictionPolicy::Lru, EvictionPolicy::Flush] {
        let mut core = Core::new(10, policy);
        let (id, lease) = load(&mut core, key(1, 1), pinned(), 10);
        core.close(CLIENT, lease.expect("it was requested"));
        let denied = core.open(key(1, 2), waiter(""), 10, true);
        assert!(matches!(denied, Decision::Denied(Denial::Exhausted { pinned: 1, .. })), "{denied:?}");
        core.pin(id, false).expect("it is resident");
        assert!(matches!(core.open(key(1, 2), waiter(""), 10, true), Decision::Load(_)));
    }
}

#[test]
fn load_larger_than_its_estimate_does_not_evict_itself() {
    let mut core = Core::new(10, EvictionPolicy::Lru);
    let Decision::Load(id) = core.open(key(1, 1), Waiter { lease: false, ..waiter("") }, 5, true) else {
        panic!("it is not resident")
    };
    core.loaded(id, &[(ExtentId(1), 20)], 20);
    assert!(is_resident(&core, id));
    assert_eq!(core.budget(), (10, 20, 0));
}

#[test]
fn name_that_moves_retires_a_model_without_other_name_or_pin() {
    let with = |prepare: fn(&mut Core, ModelId)| {
        let mut core = Core::new(100, EvictionPolicy::Lru);
        let old = idle(&mut core, key(1, 1), "m", 10);
        prepare(&mut core, old);
        let new = idle(&mut core, key(1, 2), "m", 10);
        assert_eq!(core.named(1, "m"), Some(new));
        assert_eq!(core.check(), Ok(()));
        core.find(&key(1, 1)) == Some(old)
    };
    assert!(!with(|_, _| ()), "it had one name");
    assert!(with(|core, old| core.pin(old, true).expect("it is resident")), "it is pinned");
    let second_name = |core: &mut Core, old: ModelId| {
        let Decision::Hit(grant) = core.open(key(1, 1), waiter("second"), 10, true) else { panic!("it is resident") };
        assert_eq!(grant.model, old);
    };
    assert!(with(second_name), "it has a second name");
    // The same model under the same name.
    let mut core = Core::new(100, EvictionPolicy::Lru);
    let id = idle(&mut core, key(1, 1), "m", 10);
    assert!(matches!(core.open(key(1, 1), waiter("m"), 10, true), Decision::Hit(_)));
    assert_eq!((core.named(1, "m"), core.find(&key(1, 1))), (Some(id), Some(id)));
}

#[test]
fn room_is_made_with_as_few_models_as_needed() {
    for (policy, left) in [(EvictionPolicy::Lru, 2), (EvictionPolicy::Fifo, 2), (EvictionPolicy::Flush, 0)] {
        let mut core = Core::new(30, policy);
        let models = [1, 2, 3].map(|number| idle(&mut core, key(1, number), "", 10));
        assert!(matches!(core.open(key(1, 4), waiter(""), 10, true), Decision::Load(_)));
        assert_eq!(models.iter().filter(|id| is_resident(&core, **id)).count(), left, "{}", policy.name());
        assert_eq!(core.check(), Ok(()));
    }
}

#[test]
fn reservations_of_loads_take_room() {
    let mut core = Core::new(10, EvictionPolicy::Lru);
    let Decision::Load(first) = core.open(key(1, 1), waiter(""), 6, true) else { panic!("it is not resident") };
    let second = |core: &mut Core| core.open(key(1, 2), waiter(""), 5, true);
    assert!(matches!(second(&mut core), Decision::Denied(Denial::Exhausted { loading: 1, available: 4, .. })));
    core.failed(first);
    assert!(matches!(second(&mut core), Decision::Load(_)));
}

#[test]
fn extent_of_a_model_in_use_is_no_room() {
    let mut core = Core::new(30, EvictionPolicy::Lru);
    idle(&mut core, key(1, 1), "", 10);
    let Decision::Load(second) = core.open(key(1, 2), waiter(""), 10, true) else { panic!("it is not resident") };
    core.loaded(second, &[(ExtentId(1), 10), (ExtentId(2), 10)], 20);
    let third = core.open(key(1, 3), waiter(""), 20, true);
    assert!(matches!(third, Decision::Denied(Denial::Exhausted { available: 10, .. })), "{third:?}");
    assert_eq!(core.budget(), (30, 20, 0));
}

#[test]
fn age_of_a_model_counts_against_its_size() {
    let mut core = Core::new(20, EvictionPolicy::SizeAware);
    let old = idle(&mut core, key(1, 1), "", 6);
    let large = idle(&mut core, key(1, 2), "", 7);
    for _ in 0..5 {
        let Decision::Hit(grant) = core.open(key(1, 2), waiter(""), 7, true) else { panic!("it is resident") };
        core.close(CLIENT, grant.lease.expect("it was requested"));
    }
    assert!(matches!(core.open(key(1, 3), waiter(""), 8, true), Decision::Load(_)));
    assert_eq!([is_resident(&core, old), is_resident(&core, large)], [false, true]);
}

#[test]
fn lower_budget_evicts_idle_models() {
    let mut core = Core::new(30, EvictionPolicy::Lru);
    let models = [1, 2, 3].map(|number| idle(&mut core, key(1, number), "", 10));
    core.configure(15, EvictionPolicy::Lru);
    assert_eq!(models.map(|id| is_resident(&core, id)), [false, false, true]);
    assert_eq!((core.referenced(), core.budget()), (10, (15, 10, 0)));
    assert_eq!(core.take_freed(), [ExtentId(1), ExtentId(2)]);
}

/// A client may use a number again.
#[test]
fn last_request_of_a_number_is_withdrawn() {
    let mut core = Core::new(30, EvictionPolicy::Lru);
    let Decision::Load(id) = core.open(key(1, 1), waiter("first"), 10, true) else { panic!("it is not resident") };
    assert_eq!(core.open(key(1, 1), waiter("second"), 10, true), Decision::Wait(id));
    assert!(core.withdraw(id, CLIENT, 1) && !core.withdraw(id, CLIENT, 2) && !core.withdraw(id, ClientId(11), 1));
    let names: Vec<String> = core.failed(id).into_iter().map(|waiter| waiter.name).collect();
    assert_eq!(names, ["first"]);
}

#[test]
fn damaged_model_is_hidden_although_it_is_pinned_and_in_use() {
    let mut core = Core::new(30, EvictionPolicy::Lru);
    let (id, lease) = load(&mut core, key(1, 1), Waiter { pin: true, ..waiter("m") }, 10);
    core.condemn(id);
    assert_eq!(core.check(), Ok(()));
    assert_eq!((core.find(&key(1, 1)), core.named(1, "m")), (None, None));
    assert!(is_resident(&core, id), "its lease goes on");
    core.close(CLIENT, lease.expect("it was requested"));
    assert!(core.get(id).is_none() && core.budget().1 == 0);
}

/// Records without bytes are forgotten from 65,536 on: the ones that were used last and those with names stay.
#[test]
fn oldest_records_without_a_name_are_forgotten() {
    let mut core = Core::new(30, EvictionPolicy::Lru);
    let number = |number: u32| {
        let mut key = key(1, 0);
        key.digest[..4].copy_from_slice(&number.to_le_bytes());
        key
    };
    // Loaded, used and evicted, without the check of all records.
    let used = |core: &mut Core, ix: u32| {
        let name = if ix == 1 { "named" } else { "" };
        let Decision::Load(id) = core.open(number(ix), waiter(name), 1, true) else { panic!("it is not resident") };
        let lease = core.loaded(id, &[(ExtentId(1), 1)], 1)[0].lease;
        core.close(CLIENT, lease.expect("it was requested"));
        core.evict(id, false).expect("it is idle");
        core.take_events();
        id
    };
    let models: Vec<ModelId> = (0..65_536).map(|ix| used(&mut core, ix)).collect();
    // The first one is used again.
    used(&mut core, 0);
    used(&mut core, 65_536);
    let stays = |ix: usize| core.get(models[ix]).is_some();
    assert_eq!([stays(0), stays(1), stays(2), stays(8193), stays(8194)], [true, true, false, false, true]);
    assert_eq!(core.named(1, "named"), Some(models[1]));
    assert_eq!(core.get(models[0]).map(|model| model.uses_ever), Some(2));
}
