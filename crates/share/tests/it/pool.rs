//! [`ResidentPool`] without a daemon: memory that models share, and damage.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use plan::{Constant, ConstantRecipe, Plan, image};
use prestow_share::core::{Granularity, ModelKey};
use prestow_share::load::{LoadPace, Resident, ResidentPool, identify};

use types::{Bytes, DType, Derivation, Role, Scope, Shape, Tag, Tensor};

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

/// Between and behind constants a section has zeros, which its digest covers.
#[test]
fn packed_section_has_the_digest_of_the_compiled_one() {
    let folder = Folder::new();
    let tensor = Tensor::from_fn(Shape::from([3, 4]), |at| at as f32);
    let file = weights::write_safetensors(&BTreeMap::from([("w".to_string(), tensor.clone())]), &BTreeMap::new());
    std::fs::write(folder.file("base.safetensors"), file).expect("the folder is writable");
    let constant = |name: &str, dtype, shape: Shape, offset, size, recipe| Constant {
        tag: Tag { scope: Scope::new(name), role: Role::Weight },
        dtype,
        shape,
        offset: Bytes(offset),
        size: Bytes(size),
        recipe,
    };
    let recipe = ConstantRecipe { tensor: Derivation::stored("w"), packing: Vec::new() };
    let constants = vec![
        constant("w", DType::F32, Shape::from([3, 4]), 0, 48, Some(recipe)),
        constant("c", DType::U8, Shape::from([100]), 64, 100, None),
    ];
    let size = Bytes(192);
    let plan =
        Plan { model: "test".into(), weights_name: "base".into(), constants, constants_size: size, ..Plan::default() };
    let mut section = tensor.to_le_bytes();
    section.resize(64, 0);
    section.resize(164, 7);
    section.resize(192, 0);
    let mut file = File::create(folder.file("m")).expect("the folder is writable");
    image::write_separate(&mut file, b"runner", &[plan], &section).expect("the plan is valid");
    let pool = ResidentPool::new(Some(folder.0.clone()));
    let resident = load(&pool, &folder.file("m"), Granularity::Model, 1);
    let mut bytes = vec![0; 192];
    std::os::unix::fs::FileExt::read_exact_at(&resident.extents[0].file, &mut bytes, 0).expect("it is readable");
    assert_eq!(bytes, section);
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
