//! Effects of the core's events after each turn of the loop: released memory, figures, history, spans.

use super::{HISTORY_MAX, Server};
use crate::core::{CoreEvent, ModelState};
use crate::trace::now;

impl Server {
    /// Drops memory that the core released, and updates history and figures.
    pub(super) fn settle(&mut self) {
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

    pub(super) fn remember(&mut self, event: CoreEvent) {
        self.events += 1;
        if HISTORY_MAX <= self.history.len() {
            self.history.pop_front();
        }
        self.history.push_back((self.events, now(), event));
    }

    pub(super) fn span(
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
}
