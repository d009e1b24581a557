//! The device tier: a [`Core`] for each device, with its own budget and policy. Bytes come from the host tier, whose copy has a
//! lease of the daemon's own while they are copied.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3Default;

use crate::core::{ClientId, Core, EvictionPolicy, ExtentId, LeaseId, ModelId};
use crate::device::{DeviceFailure, ExportingDevice};
use crate::load::{LoadFailure, Resident, ResidentPool};
use crate::manifest::Manifest;
use crate::memory::{Extent, Filling, Segment};
use crate::wire::Tier;

/// Numbers of models and leases of a device begin at its position, from 1, times this.
const NUMBERS: u64 = 1 << 48;
/// The connections of requests that the daemon makes for devices: 1 and following.
pub(super) const DEVICES_MAX: usize = 15;

/// A device of the options.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// The device.
    pub memory: Arc<dyn ExportingDevice>,
    /// Bytes of its budget.
    pub limit: u64,
    /// The order of eviction.
    pub policy: EvictionPolicy,
}

/// A block of device memory and XXH3-64 of its bytes.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) extent: Arc<Extent>,
    /// The host extent that it was copied from.
    pub(super) origin: ExtentId,
    size: u64,
    checksum: u64,
}

/// A model in device memory.
#[derive(Clone, Debug)]
pub(super) struct OnDevice {
    pub(super) blocks: Vec<Block>,
    /// For granularity `layer`: in host memory.
    pub(super) manifest: Option<Arc<Extent>>,
    /// Bytes of the section or of the range.
    pub(super) size: u64,
    pub(super) referenced: u64,
}

/// A copy to the device that runs or waits for the host tier.
pub(super) struct Upload {
    pub(super) model: ModelId,
    pub(super) start: u64,
    /// The lease of the host's copy, and its model.
    pub(super) host: Option<(LeaseId, ModelId)>,
    /// Where the bytes came from.
    pub(super) from: Tier,
}

/// One device.
pub(super) struct DeviceTier {
    pub(super) memory: Arc<dyn ExportingDevice>,
    pub(super) core: Core,
    pub(super) residents: BTreeMap<ModelId, (OnDevice, u64)>,
    pub(super) blocks: BTreeMap<ExtentId, Block>,
    pub(super) uploads: BTreeMap<u32, Upload>,
    next: u32,
}

impl DeviceTier {
    /// The tier of the device at a position of the options.
    pub(super) fn new(ix: usize, options: &DeviceOptions) -> DeviceTier {
        DeviceTier {
            memory: options.memory.clone(),
            core: Core::new(options.limit, options.policy).numbered_from((ix as u64 + 1) * NUMBERS),
            residents: BTreeMap::new(),
            blocks: BTreeMap::new(),
            uploads: BTreeMap::new(),
            next: 0,
        }
    }

    /// Records a copy; returns the number of the request for the host's bytes.
    pub(super) fn begin(&mut self, model: ModelId, start: u64) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.uploads.insert(self.next, Upload { model, start, host: None, from: Tier::Host });
        self.next
    }

    /// The blocks that hold copies of host extents already.
    pub(super) fn known(&self, resident: &Resident) -> Vec<Option<Block>> {
        let find = |extent: &Arc<Extent>| self.blocks.values().find(|block| block.origin == extent.id).cloned();
        resident.extents.iter().map(find).collect()
    }

    /// Takes the blocks of a new model; another copy may have made some of them meanwhile.
    pub(super) fn adopt(&mut self, on_device: &mut OnDevice) {
        for block in &mut on_device.blocks {
            match self.blocks.values().find(|own| own.origin == block.origin) {
                Some(own) => *block = own.clone(),
                None => drop(self.blocks.insert(block.extent.id, block.clone())),
            }
        }
    }

    /// Drops blocks that the core released.
    pub(super) fn sweep(&mut self) {
        for extent in self.core.take_freed() {
            self.blocks.remove(&extent);
        }
    }

    pub(super) fn status(&self) -> Value {
        let (limit, used, reserved) = self.core.budget();
        let resident: Vec<u64> = self.residents.values().map(|(on_device, _)| on_device.referenced).collect();
        let tensors: u64 = resident.iter().sum();
        json!({
            "device": self.memory.uuid(), "limit_bytes": limit, "resident_bytes": used, "reserved_bytes": reserved,
            "tensor_bytes": tensors, "policy": self.core.policy().name(), "models": resident.len(),
            "leases": self.core.lease_count(), "extents": self.blocks.len(),
        })
    }
}

/// The position of the device of one of the daemon's own connections.
pub(super) fn device_of(client: ClientId) -> Option<usize> {
    (1..=DEVICES_MAX as u64).contains(&client.0).then(|| client.0 as usize - 1)
}

/// The daemon's own connection for a device.
pub(super) fn client_of(ix: usize) -> ClientId {
    ClientId(ix as u64 + 1)
}

/// Copies a resident model to a device. `known` are the extents that are there already.
pub(super) fn upload(
    memory: &dyn ExportingDevice,
    resident: &Resident,
    known: Vec<Option<Block>>,
    pool: &ResidentPool,
) -> Result<OnDevice, LoadFailure> {
    let mut blocks = Vec::with_capacity(known.len());
    for (extent, known) in resident.extents.iter().zip(known) {
        blocks.push(match known {
            Some(block) => block,
            None => copy(memory, extent, pool)?,
        });
    }
    let manifest = match &resident.manifest {
        None => None,
        Some(_) => {
            let bytes = manifest_of(&resident.tensors, &blocks).encode();
            let filling = Filling::new("uprd-manifest", bytes.len() as u64)?;
            filling.write(&bytes, 0)?;
            Some(Arc::new(filling.seal(pool.number())?))
        }
    };
    let size = match manifest {
        None => resident.size,
        Some(_) => blocks.iter().map(|block| block.extent.bytes).sum(),
    };
    Ok(OnDevice { blocks, manifest, size, referenced: resident.referenced })
}

fn copy(memory: &dyn ExportingDevice, extent: &Arc<Extent>, pool: &ResidentPool) -> Result<Block, LoadFailure> {
    let mut hash = Xxh3Default::new();
    let mut read = |at: u64, bytes: &mut [u8]| -> io::Result<()> {
        extent.file.read_exact_at(bytes, at)?;
        hash.update(bytes);
        Ok(())
    };
    let (descriptor, bytes) = memory.export(extent.bytes, &mut read)?;
    let own = Arc::new(Extent { id: pool.number(), file: descriptor.into(), bytes, huge_bytes: 0 });
    Ok(Block { extent: own, origin: extent.id, size: extent.bytes, checksum: hash.digest() })
}

/// The manifest of the same tensors in whole blocks, one after the other.
fn manifest_of(host: &Manifest, blocks: &[Block]) -> Manifest {
    let (mut segments, mut length) = (Vec::with_capacity(blocks.len()), 0);
    for (ix, block) in blocks.iter().enumerate() {
        segments.push(Segment { extent: ix as u32, from: 0, to: length, length: block.extent.bytes });
        length += block.extent.bytes;
    }
    let mut tensors = host.tensors.clone();
    for tensor in &mut tensors {
        let own =
            host.segments.iter().find(|own| own.to <= tensor.at && tensor.at + tensor.size <= own.to + own.length);
        let own = own.expect("every tensor of a manifest is in a segment");
        tensor.at = segments[own.extent as usize].to + own.from + (tensor.at - own.to);
    }
    Manifest { length, segments, tensors }
}

/// Compares a model's bytes on the device with the checksums of the copies.
pub(super) fn verify(memory: &dyn ExportingDevice, on_device: &OnDevice) -> Result<bool, DeviceFailure> {
    for block in &on_device.blocks {
        let mut hash = Xxh3Default::new();
        memory.read(block.extent.file.as_fd(), block.size, &mut |bytes| hash.update(bytes))?;
        if hash.digest() != block.checksum {
            return Ok(false);
        }
    }
    Ok(true)
}
