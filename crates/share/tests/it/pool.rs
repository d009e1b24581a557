//! [`ResidentPool`] without a daemon: memory that models share, and damage.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use prestow_share::core::{Granularity, ModelKey};
use prestow_share::load::{LoadPace, Resident, ResidentPool, identify};

use crate::support::{Folder, tensors, write_image};

const KIB: usize = 1024;

fn load(pool: &ResidentPool, path: &Path, granularity: Granularity, user: u32) -> Resident {
    let file = File::open(path).expect("it was written");
    let key = ModelKey { user, ..identify(&file, path, granularity).expect("it is an executable") };
    pool.load(&file, &key, "model", LoadPace::Behind).expect("it is whole")
}

fn extents(resident: &Resident) -> Vec<u64> {
    resident.extents.iter().map(|extent| extent.id.0).collect()
}

/// The user's file vouches for the bytes; another user's does not.
#[test]
fn users_share_no_memory() {
    let folder = Folder::new();
    write_image(&folder.file("m"), &tensors(&[(1, 100 * KIB), (2, 40 * KIB)]));
    for granularity in [Granularity::Model, Granularity::Layer] {
        let pool = ResidentPool::new(None);
        let [first, again, other] = [1, 1, 2].map(|user| load(&pool, &folder.file("m"), granularity, user));
        assert_eq!(extents(&first), extents(&again), "{}", granularity.name());
        assert!(extents(&other).iter().all(|id| !extents(&first).contains(id)), "{}", granularity.name());
        assert_eq!(other.shared, 0);
        drop((again, other));
    }
}

#[test]
fn bytes_that_differ_from_their_digest_are_noticed() {
    let folder = Folder::new();
    write_image(&folder.file("m"), &tensors(&[(1, 100 * KIB), (2, 900)]));
    let pool = ResidentPool::new(None);
    let mut whole = load(&pool, &folder.file("m"), Granularity::Model, 1);
    assert!(whole.verify().expect("memory is readable"));
    whole.digest = whole.digest.map(|digest| digest.map(|byte| !byte));
    assert!(!whole.verify().expect("memory is readable"));
    for tensor in 0..2 {
        let mut layers = load(&pool, &folder.file("m"), Granularity::Layer, 1);
        assert!(layers.verify().expect("memory is readable"));
        Arc::make_mut(&mut layers.tensors).tensors[tensor].digest[31] ^= 1;
        assert!(!layers.verify().expect("memory is readable"), "tensor {tensor}");
    }
}
