//! [`Timer`] measures GPU time by the GPU's clock, with a pair of events.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::driver::{DriverError, Gpu, failed};

/// A CUDA event on the GPU's stream.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: as for `Gpu`: every function makes its context current.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event with timing.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Event, DriverError> {
        gpu.enter()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = result::event::create(flags).map_err(failed("making an event"))?;
        Ok(Event { gpu: gpu.clone(), event })
    }

    /// Records the event after all work enqueued so far.
    pub(crate) fn record(&self) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: event and stream are alive and of the same context.
        unsafe { result::event::record(self.event, self.gpu.stream()) }.map_err(failed("recording an event"))
    }

    /// Waits until the GPU reaches the event.
    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.event) }.map_err(failed("waiting for an event"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: this struct owns the event.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// A pair of events around measured work.
pub struct Timer {
    start: Event,
    end: Event,
}

impl Timer {
    /// Creates a timer for the GPU's stream.
    ///
    /// # Errors
    /// The driver refuses an event.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Timer, DriverError> {
        Ok(Timer { start: Event::new(gpu)?, end: Event::new(gpu)? })
    }

    /// Calls `work`, which enqueues work on the stream, and waits for it. Returns the GPU's time in seconds, with a resolution of
    /// half a microsecond. Allocates nothing.
    ///
    /// # Errors
    /// `work` or the driver fails.
    pub fn seconds(&self, work: impl FnOnce() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        self.start.record()?;
        work()?;
        self.end.record()?;
        self.end.wait()?;
        // SAFETY: both events are alive, have timing, and were recorded on the same stream.
        let ms = unsafe { result::event::elapsed(self.start.event, self.end.event) };
        Ok(f64::from(ms.map_err(failed("reading a time"))?) / 1e3)
    }
}
