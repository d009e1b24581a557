//! Tensors that models have in common.

use std::fs::File;

use prestow_share::client::AttachedWeights;
use prestow_share::core::Granularity;
use prestow_share::server::ServerOptions;
use prestow_share::wire::{Ask, Tier};

use crate::support::{Daemon, Folder, bytes_of, open, ranges, tensors, write_image};

const KIB: usize = 1024;

#[test]
fn layers_of_a_backbone_are_held_once_and_counted_once() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let backbone = [(1, 300 * KIB), (2, 100), (3, 64 * KIB + 4), (4, 900)];
    let first = tensors(&[&backbone[..], &[(9, 40 * KIB)]].concat());
    let second = tensors(&[&backbone[..], &[(10, 50 * KIB)]].concat());
    write_image(&folder.file("first"), &first);
    write_image(&folder.file("second"), &second);

    let mut client = daemon.client();
    let a = open(&mut client, &folder.file("first"), Granularity::Layer).expect("it loads");
    let before = daemon.figure("/tiers/host/resident_bytes");
    let b = open(&mut client, &folder.file("second"), Granularity::Layer).expect("it loads");
    let grown = daemon.figure("/tiers/host/resident_bytes") - before;
    assert!((50 * KIB as u64..52 * KIB as u64).contains(&grown), "only the new head and a manifest: {grown}");
    let total: usize = first.iter().chain(&second).map(Vec::len).sum();
    assert_eq!(daemon.figure("/tiers/host/tensor_bytes"), total as u64);
    let shared = (300 * KIB + 100 + 64 * KIB + 4 + 900) as u64;
    let saved = daemon.figure("/tiers/host/saved_bytes");
    assert!(saved <= shared && shared - 4 * KIB as u64 <= saved, "{saved} of {shared}");

    // The first model goes; the second keeps its bytes.
    let AttachedWeights::Tensors { manifest, .. } = &b.weights else { panic!("granularity is layer") };
    assert_eq!(manifest.segments.len(), 2, "one mapping for the backbone, one for the head");
    assert_eq!(bytes_of(a, &ranges(&first)), first);
    client.done(&Ask::Close { lease: 0 }, &[], std::time::Duration::from_secs(5)).expect("no lease is no error");
    assert_eq!(bytes_of(b, &ranges(&second)), second);
}

#[test]
fn equal_models_of_granularity_layer_add_nothing_but_a_manifest() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let specs = tensors(&[(1, 100 * KIB), (2, 20 * KIB), (3, 77)]);
    let reversed: Vec<Vec<u8>> = specs.iter().rev().cloned().collect();
    write_image(&folder.file("one"), &specs);
    write_image(&folder.file("two"), &reversed);
    let mut client = daemon.client();
    let one = open(&mut client, &folder.file("one"), Granularity::Layer).expect("it loads");
    let before = daemon.figure("/tiers/host/resident_bytes");
    let two = open(&mut client, &folder.file("two"), Granularity::Layer).expect("it loads");
    assert!(daemon.figure("/tiers/host/resident_bytes") - before < 4 * KIB as u64);
    assert_eq!(bytes_of(one, &ranges(&specs)), specs);
    assert_eq!(bytes_of(two, &ranges(&reversed)), reversed);
}

/// A mapping for each small tensor would cost more than its bytes: they are shared only with large ones of the same section.
#[test]
fn small_tensors_alone_are_not_shared() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let small = [(1, 8 * KIB), (2, 12 * KIB)];
    let first = tensors(&[&small[..], &[(3, 40 * KIB)]].concat());
    let second = tensors(&[&small[..], &[(4, 50 * KIB)]].concat());
    write_image(&folder.file("first"), &first);
    write_image(&folder.file("second"), &second);
    let mut client = daemon.client();
    let _first = open(&mut client, &folder.file("first"), Granularity::Layer).expect("it loads");
    let before = daemon.figure("/tiers/host/resident_bytes");
    let attached = open(&mut client, &folder.file("second"), Granularity::Layer).expect("it loads");
    let grown = daemon.figure("/tiers/host/resident_bytes") - before;
    assert!(70 * KIB as u64 <= grown, "all of the second model: {grown}");
    let AttachedWeights::Tensors { manifest, .. } = &attached.weights else { panic!("granularity is layer") };
    assert_eq!(manifest.segments.len(), 1);
    assert_eq!(bytes_of(attached, &ranges(&second)), second);
}

/// A section that is resident is mapped as it is, although another model has one of its tensors too.
#[test]
fn resident_section_is_used_again_whole() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let (common, own) = ((1, 100 * KIB), (2, 60 * KIB));
    write_image(&folder.file("other"), &tensors(&[common]));
    let all = tensors(&[common, own]);
    write_image(&folder.file("m"), &all);
    let mut client = daemon.client();
    let _other = open(&mut client, &folder.file("other"), Granularity::Layer).expect("it loads");
    let _section = open(&mut client, &folder.file("m"), Granularity::Model).expect("it loads");
    let before = daemon.figure("/tiers/host/resident_bytes");
    let attached = open(&mut client, &folder.file("m"), Granularity::Layer).expect("it loads");
    let grown = daemon.figure("/tiers/host/resident_bytes") - before;
    assert!(grown < 4 * KIB as u64, "nothing but a manifest: {grown}");
    assert_eq!(bytes_of(attached, &ranges(&all)), all);
}

#[test]
fn both_granularities_of_one_model_hold_its_bytes_once() {
    for order in [[Granularity::Model, Granularity::Layer], [Granularity::Layer, Granularity::Model]] {
        let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
        let all = tensors(&[(1, 100 * KIB), (2, 20 * KIB), (3, 77)]);
        let section = write_image(&folder.file("m"), &all);
        let mut client = daemon.client();
        for granularity in order {
            let attached = open(&mut client, &folder.file("m"), granularity).expect("it loads");
            assert_eq!(bytes_of(attached, &ranges(&all)), all);
        }
        let resident = daemon.figure("/tiers/host/resident_bytes");
        assert!((section.len() as u64..section.len() as u64 + 1024).contains(&resident), "{resident}");
    }
}

#[test]
fn tensor_files_are_published_with_names_and_types() {
    let (folder, daemon) = (Folder::new(), Daemon::start(ServerOptions::new(1 << 30)));
    let path = folder.file("bias.npy");
    let tensor = types::Tensor::new(types::Shape::from([3]), vec![1.0f32, -2.0, 4.0]).expect("three elements");
    std::fs::write(&path, weights::npy::write(&tensor)).expect("the folder is writable");
    let file = File::open(&path).expect("it was written");
    let key = prestow_share::load::identify(&file, &path, Granularity::Model).expect("it is a file of tensors");
    let mut client = daemon.client();
    client.open(&key, Some(&file), 0, "bias.npy").expect("it loads");
    let attached = daemon.client().open_name("bias.npy").expect("it is published");
    assert_eq!(attached.tier, Tier::Host);
    let AttachedWeights::Tensors { mapped, manifest } = attached.weights else { panic!("tensors have names") };
    assert_eq!(manifest.tensors[0].label, "f32[3] bias");
    let at = manifest.tensors[0].at as usize;
    assert_eq!(mapped.as_ref()[at..at + 12], tensor.to_le_bytes());
}
