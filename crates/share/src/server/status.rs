//! The status as JSON: models, connections, devices, settings, events.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Server;
use super::connections::open_descriptors;
use super::device::DeviceTier;
use crate::core::{EVERYONE, ModelId, ModelState};
use crate::memory::huge_page_setting;
use crate::trace::now;
use crate::wire::{NAME_MAX, TEXT_MAX};

impl Server {
    pub(super) fn status(&self) -> Value {
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
                    "huge_page_bytes": self.extents.values().map(|extent| extent.huge_bytes).sum::<u64>(),
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

    pub(super) fn settings(&self) -> Value {
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

    pub(super) fn row(&self, id: ModelId) -> Value {
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
pub(super) fn page(rows: impl Iterator<Item = (u64, Value)>) -> (Value, u64) {
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
