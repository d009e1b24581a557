//! [`Session`]: opened plans.

use std::collections::BTreeMap;
use std::sync::Arc;

use plan::{Plan, Port, StatePort};
use types::Tensor;

use crate::WeightSource;
use crate::device::{Backend, Device, PagerUsage};
use crate::process::{DeviceUsage, MemoryItem};

/// Reason why a plan does not open or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RunError {
    #[error("the plan is for `{plan}`, this device is `{device}`; compile the model with --target {device}")]
    Target { plan: String, device: String },
    #[error("the plan needs {want} bytes of constants, got {got}")]
    Constants { want: u64, got: u64 },
    #[error("cannot read the weights: {0}")]
    WeightsFile(String),
    #[error(
        "the weights are in memory of a device, which `{target}` cannot import; give host bytes or a file descriptor"
    )]
    DeviceWeights { target: String },
    #[error("a plan with state must be opened alone, got plans for {0} batches; compile the model for one batch")]
    SeveralPlansWithState(usize),
    #[error("there is no state named `{name}`; the states are {known}")]
    NoState { name: String, known: String },
    #[error("no memory for an arena of {bytes} bytes: {error}")]
    Arena { bytes: u64, error: String },
    #[error("constants cannot be read in each run: {0}; compile the model again")]
    Residency(String),
    #[error("cannot read constant `{name}` from the file: {error}")]
    ReadConstant { name: String, error: String },
    #[error("{0}")]
    Device(String),
    #[error("step {step} (`{scope}`): {reason}; the file is damaged or of another build, compile the model again")]
    Kernel { step: usize, scope: String, reason: String },
    #[error("step {step} (`{scope}`): {reason}")]
    Library { step: usize, scope: String, reason: String },
    #[error("no input is named `{name}`; the inputs are {known}")]
    NoInput { name: String, known: String },
    #[error("`{name}` must be {want}, got {got}")]
    InputType { name: String, want: String, got: String },
    #[error("input `{name}` is missing")]
    MissingInput { name: String },
}

/// Opens a plan: reserves its arena, decodes its kernels, starts threads, and gives states their initial values.
///
/// # Errors
/// A plan for another target, constants of another size, too little memory, a kernel that does not fit its operands.
pub fn open(plan: Arc<Plan>, weights: impl Into<WeightSource>, device: &dyn Device) -> Result<Session, RunError> {
    open_all(vec![plan], weights, device)
}

/// Opens several plans; one runs at a time. They share the constants and one arena, as large as the largest needs.
/// The first is selected.
///
/// # Errors
/// Those of [`open`]; several plans with state.
///
/// # Panics
/// Without any plan.
pub fn open_all(
    plans: Vec<Arc<Plan>>,
    weights: impl Into<WeightSource>,
    device: &dyn Device,
) -> Result<Session, RunError> {
    let weights = weights.into();
    check_plans(&plans, &weights)?;
    let backend = device.open(&plans, &weights)?;
    let mut session = Session { plans, selected: 0, backend };
    session.reset_states()?;
    Ok(session)
}

/// Checks that plans can be opened together with these constants.
pub(crate) fn check_plans(plans: &[Arc<Plan>], weights: &WeightSource) -> Result<(), RunError> {
    assert!(!plans.is_empty(), "there is a plan to open");
    if 1 < plans.len() && plans.iter().any(|plan| !plan.states.is_empty()) {
        return Err(RunError::SeveralPlansWithState(plans.len()));
    }
    let got = weights.size();
    match plans.iter().map(|plan| plan.constants_size.0).find(|&want| want != got) {
        Some(want) => Err(RunError::Constants { want, got }),
        None => Ok(()),
    }
}

/// Opened plans with their memory and threads, one of them selected. Runs allocate nothing.
pub struct Session {
    plans: Vec<Arc<Plan>>,
    selected: usize,
    backend: Box<dyn Backend>,
}

impl Session {
    /// A session of one plan on a given device, for tests.
    #[cfg(test)]
    pub(crate) fn of_backend(plan: Arc<Plan>, backend: Box<dyn Backend>) -> Session {
        Session { plans: vec![plan], selected: 0, backend }
    }

    /// The selected plan.
    pub fn plan(&self) -> &Plan {
        &self.plans[self.selected]
    }

    /// Selects the plan for a batch; returns whether there is one. The contents of inputs and outputs are lost.
    pub fn select(&mut self, batch: u64) -> bool {
        let found = self.plans.iter().position(|plan| plan.batch == batch);
        self.selected = found.unwrap_or(self.selected);
        found.is_some()
    }

    /// A short description of the device.
    pub fn device(&self) -> String {
        self.backend.describe()
    }

    /// A hint for users about the device's speed, if there is one.
    pub fn remark(&self) -> Option<&'static str> {
        self.backend.remark()
    }

    /// The number of threads that compute.
    pub fn threads(&self) -> usize {
        self.backend.threads()
    }

    /// Writes input number `ix`, little-endian elements in the port's layout.
    ///
    /// # Panics
    /// If `bytes` has another length than the port. [`Session::run_tensors`] checks.
    ///
    /// # Errors
    /// The device fails; processors do not.
    pub fn write_input(&mut self, ix: usize, bytes: &[u8]) -> Result<(), RunError> {
        self.backend.write(self.selected, &self.plans[self.selected].inputs[ix].operand, bytes)
    }

    /// Runs all steps once. A run may overwrite its inputs: write them again before the next run. States are kept.
    ///
    /// # Errors
    /// The device fails; constants that are read in every run cannot be read.
    pub fn run(&mut self) -> Result<(), RunError> {
        self.backend.run(self.selected)
    }

    /// Runs all steps `runs` times in sequence, waits once, and returns the total in seconds by the device's own clock, which
    /// excludes the host's time to start and to wait. `None`, without a run, if the device has no clock.
    ///
    /// # Errors
    /// The device fails; processors do not.
    pub fn run_timed(&mut self, runs: usize) -> Result<Option<f64>, RunError> {
        self.backend.run_timed(self.selected, runs)
    }

    /// Runs one step, for callers that inspect the arena between steps.
    ///
    /// # Errors
    /// The device fails; processors do not.
    pub fn run_step(&mut self, step: usize) -> Result<(), RunError> {
        self.backend.step(self.selected, step)
    }

    /// Whether a step writes every byte of its workspace.
    pub(crate) fn fills_workspace(&self, step: usize) -> bool {
        self.backend.fills_workspace(self.selected, step)
    }

    /// Reads output number `ix`.
    ///
    /// # Panics
    /// If `bytes` has another length than the port.
    ///
    /// # Errors
    /// The device fails; processors do not.
    pub fn read_output(&self, ix: usize, bytes: &mut [u8]) -> Result<(), RunError> {
        self.backend.read(self.selected, &self.plan().outputs[ix].operand, bytes)
    }

    /// Gives every state its initial value, as [`open`] did.
    ///
    /// # Errors
    /// The device fails; processors do not.
    pub fn reset_states(&mut self) -> Result<(), RunError> {
        reset_states(&self.plans[self.selected], self.selected, &mut *self.backend)
    }

    /// A state as the last run left it.
    ///
    /// # Errors
    /// No state has that name; the device fails.
    pub fn state(&self, name: &str) -> Result<Tensor, RunError> {
        self.tensor(&state_port(self.plan(), name)?.port)
    }

    /// Replaces a state, for the next run to read.
    ///
    /// # Errors
    /// No state has that name; a tensor of another dtype or shape; the device fails.
    pub fn set_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        let plan = self.plans[self.selected].clone();
        let port = &state_port(&plan, name)?.port;
        check_input(port, tensor)?;
        self.backend.write(self.selected, &port.operand, &tensor.to_le_bytes())
    }

    /// Every state by name, as the last run left it.
    ///
    /// # Errors
    /// The device fails.
    pub fn all_states(&self) -> Result<BTreeMap<String, Tensor>, RunError> {
        let state = |state: &StatePort| Ok((state.port.name.clone(), self.tensor(&state.port)?));
        self.plan().states.iter().map(state).collect()
    }

    /// The bytes of every state, in the plan's order.
    pub(crate) fn states(&self) -> Result<Vec<Vec<u8>>, RunError> {
        self.plan().states.iter().map(|state| self.bytes(&state.port)).collect()
    }

    /// Writes the bytes of every state, in the plan's order.
    pub(crate) fn write_states(&mut self, states: &[Vec<u8>]) -> Result<(), RunError> {
        let plan = self.plans[self.selected].clone();
        let mut pairs = plan.states.iter().zip(states);
        pairs.try_for_each(|(state, bytes)| self.backend.write(self.selected, &state.port.operand, bytes))
    }

    /// The arena, or a copy that is written back before the next operation. It is as large as the largest plan needs.
    ///
    /// # Errors
    /// The device fails; processors do not.
    pub fn arena(&mut self) -> Result<&mut [u8], RunError> {
        self.backend.arena()
    }

    /// The used memory of the device by purpose. Empty if its memory is the host's.
    ///
    /// # Errors
    /// The device does not report it.
    pub fn device_memory(&self) -> Result<Vec<MemoryItem>, RunError> {
        self.backend.device_memory()
    }

    /// Memory by process as the device's management reports it, and driver allocations in one more run. Empty if memory is
    /// the host's.
    ///
    /// # Errors
    /// The run fails.
    pub fn device_usage(&mut self) -> Result<DeviceUsage, RunError> {
        self.backend.device_usage(self.selected)
    }

    /// Memory and reads of constants that are read in every run. `None` if all constants are in memory.
    pub fn pager_usage(&self) -> Option<PagerUsage> {
        self.backend.pager_usage()
    }

    /// The sum of [`Session::device_memory`].
    ///
    /// # Errors
    /// The device does not report it.
    pub fn device_bytes(&self) -> Result<u64, RunError> {
        Ok(self.device_memory()?.iter().map(|item| item.bytes).sum())
    }

    /// Writes all inputs by position, runs, and reads all outputs. Allocates.
    ///
    /// # Errors
    /// An input that is missing or has another dtype or shape than its port; the device fails.
    pub fn run_tensors(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RunError> {
        for (ix, port) in self.plans[self.selected].clone().inputs.iter().enumerate() {
            let tensor = inputs.get(ix).ok_or_else(|| RunError::MissingInput { name: port.name.clone() })?;
            check_input(port, tensor)?;
            self.write_input(ix, &tensor.to_le_bytes())?;
        }
        self.run()?;
        self.outputs()
    }

    /// Output number `ix` as a tensor.
    ///
    /// # Errors
    /// The device fails; processors do not.
    pub fn output(&self, ix: usize) -> Result<Tensor, RunError> {
        self.tensor(&self.plan().outputs[ix])
    }

    /// All outputs as tensors.
    ///
    /// # Errors
    /// The device fails; processors do not.
    pub fn outputs(&self) -> Result<Vec<Tensor>, RunError> {
        self.plan().outputs.iter().map(|port| self.tensor(port)).collect()
    }

    fn tensor(&self, port: &Port) -> Result<Tensor, RunError> {
        let tensor = Tensor::from_le_bytes(port.dtype, port.shape.clone(), &self.bytes(port)?);
        Ok(tensor.expect("a checked plan's ports have the bytes of their types"))
    }

    fn bytes(&self, port: &Port) -> Result<Vec<u8>, RunError> {
        let mut bytes = vec![0; port.operand.size.0 as usize];
        self.backend.read(self.selected, &port.operand, &mut bytes)?;
        Ok(bytes)
    }
}

fn state_port<'a>(plan: &'a Plan, name: &str) -> Result<&'a StatePort, RunError> {
    let known = || plan.states.iter().map(|state| format!("`{}`", state.port.name)).collect::<Vec<_>>().join(", ");
    let found = plan.states.iter().find(|state| state.port.name == name);
    found.ok_or_else(|| RunError::NoState { name: name.to_string(), known: known() })
}

/// Writes the initial bytes of each state of a plan.
pub(crate) fn reset_states(plan: &Plan, ix: usize, backend: &mut dyn Backend) -> Result<(), RunError> {
    plan.states.iter().try_for_each(|state| backend.initialize(ix, &state.port.operand, state.initial))
}

/// Refuses a tensor of another dtype or shape than the port's.
///
/// # Errors
/// [`RunError::InputType`], naming the port.
pub fn check_input(port: &Port, tensor: &Tensor) -> Result<(), RunError> {
    if (tensor.dtype(), tensor.shape()) == (port.dtype, &port.shape) {
        return Ok(());
    }
    let want = format!("{}{}", port.dtype, port.shape);
    Err(RunError::InputType { name: port.name.clone(), want, got: format!("{}{}", tensor.dtype(), tensor.shape()) })
}
