//! [`Timer`]: how long the GPU takes, by its own clock; and the events it is made of, which mark how far a stream is.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::driver::{DriverError, Gpu, failed};

/// A mark in the stream's order.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: as for `Gpu`, whose context every function makes current.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// One with a time.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Event, DriverError> {
        gpu.enter()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = result::event::create(flags).map_err(failed("making an event"))?;
        Ok(Event { gpu: gpu.clone(), event })
    }

    /// Marks the end of all that was begun before.
    pub(crate) fn record(&self) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: event and stream are alive, and of one context.
        unsafe { result::event::record(self.event, self.gpu.stream()) }.map_err(failed("recording an event"))
    }

    /// Waits until the GPU has come to the mark.
    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.event) }.map_err(failed("waiting for an event"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: the event is ours.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// Two events around what is measured.
pub struct Timer {
    start: Event,
    end: Event,
}

impl Timer {
    /// One for the GPU's stream.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Timer, DriverError> {
        Ok(Timer { start: Event::new(gpu)?, end: Event::new(gpu)? })
    }

    /// Does what begins work on the stream, waits until it is done, and says how many seconds the GPU took for it. The GPU's
    /// clock counts half microseconds. Allocates nothing.
    ///
    /// # Errors
    /// What `work` says, and what failed meanwhile.
    pub fn seconds(&self, work: impl FnOnce() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        self.start.record()?;
        work()?;
        self.end.record()?;
        self.end.wait()?;
        // SAFETY: both events are alive, have times, and were recorded on one stream.
        let ms = unsafe { result::event::elapsed(self.start.event, self.end.event) };
        Ok(f64::from(ms.map_err(failed("being asked for a time"))?) / 1e3)
    }
}
