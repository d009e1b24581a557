//! [`StreamSession`]: plans whose inputs and outputs stay on the GPU, for programs that use the GPU through other libraries.

use std::sync::Arc;

use cuda::{ContextGuard, ExternalBuffer, ExternalStream};
use plan::{Plan, Port};

use super::cuda::{CudaBackend, CudaDevice};
use crate::{RunError, WeightSource, session};

/// Plans opened on a GPU, one of them selected, that read and write a caller's memory on a caller's stream. Nothing waits
/// for the GPU, and nothing allocates after it is opened. A thread's current context is the caller's before and after.
pub struct StreamSession {
    plans: Vec<Arc<Plan>>,
    selected: usize,
    /// `None` while it is dropped.
    backend: Option<CudaBackend>,
}

impl StreamSession {
    /// Opens plans; one runs at a time. The first is selected.
    ///
    /// # Errors
    /// Those of [`open_all`](crate::open_all).
    ///
    /// # Panics
    /// Without any plan.
    pub fn open(
        plans: Vec<Arc<Plan>>,
        weights: impl Into<WeightSource>,
        gpu: &CudaDevice,
    ) -> Result<StreamSession, RunError> {
        let weights = weights.into();
        session::check_plans(&plans, &weights)?;
        let _guard = ContextGuard::save();
        let mut backend = CudaBackend::open(gpu, &plans, &weights)?;
        session::reset_states(&plans[0], 0, &mut backend)?;
        Ok(StreamSession { plans, selected: 0, backend: Some(backend) })
    }

    /// The selected plan.
    pub fn plan(&self) -> &Plan {
        &self.plans[self.selected]
    }

    /// Selects the plan for a batch; returns whether there is one.
    pub fn select(&mut self, batch: u64) -> bool {
        let found = self.plans.iter().position(|plan| plan.batch == batch);
        self.selected = found.unwrap_or(self.selected);
        found.is_some()
    }

    /// Enqueues a run on a stream: copies the inputs, runs all steps, copies the outputs, in the order of the plan's ports.
    ///
    /// # Errors
    /// Another number of inputs, outputs or bytes than the plan has; the driver fails.
    pub fn enqueue(
        &mut self,
        stream: ExternalStream,
        inputs: &[ExternalBuffer],
        outputs: &[ExternalBuffer],
    ) -> Result<(), RunError> {
        let plan = &self.plans[self.selected];
        check_buffers("inputs", &plan.inputs, inputs)?;
        check_buffers("outputs", &plan.outputs, outputs)?;
        let _guard = ContextGuard::save();
        let backend = self.backend.as_mut().expect("it is open until it is dropped");
        backend.enqueue(self.selected, stream, inputs, outputs)
    }
}

impl Drop for StreamSession {
    fn drop(&mut self) {
        let _guard = ContextGuard::save();
        self.backend = None;
    }
}

/// Checks that there is a buffer for each port, of its size.
fn check_buffers(kind: &str, ports: &[Port], given: &[ExternalBuffer]) -> Result<(), RunError> {
    if ports.len() != given.len() {
        return Err(RunError::Device(format!("the plan has {} {kind}, got {}", ports.len(), given.len())));
    }
    let other = ports.iter().zip(given).find(|(port, memory)| port.operand.size.0 != memory.size() as u64);
    match other {
        None => Ok(()),
        Some((port, memory)) => {
            let want = port.operand.size.0;
            Err(RunError::Device(format!("`{}` must have {want} bytes, got {}", port.name, memory.size())))
        }
    }
}
