//! [`CudaDevice`]: plans for `cuda` targets, on an NVIDIA GPU.
//!
//! One block of device memory holds the arena, then the constants, which may be imported from another process. Every step is a launch, or a call of a library, with
//! addresses that are fixed when the plan is opened. The calls of a plan are captured as one CUDA graph: a run is one call.

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda::cublas::{self, CublasError};
use cuda::cudnn::{self, CudnnError};
use cuda::cupti::{MemoryEvent, MemoryKind, Recording};
use cuda::driver::{self, CudaGraph, DeviceCall, DeviceMemory, DriverError, Module};
use cuda::{ExternalBuffer, ExternalStream, LibraryPaths, StepCode, Timer, nvml};
use plan::{Operand, Place, Plan, Step};
use types::Bytes;

use super::{Backend, Device};
use crate::process::{DeviceUsage, MemoryItem, Unavailable};
use crate::{DevicePart, RunError, WeightSource};

/// A GPU of this machine. Its primary context stays current for a thread that opened or ran a session on it;
/// [`StreamSession`](super::StreamSession) gives a caller's back.
#[derive(Clone, Debug, Default)]
pub struct CudaDevice {
    /// Its ordinal, as the driver counts.
    pub ordinal: usize,
    /// The search paths of NVIDIA's libraries, for plans that need one.
    pub places: LibraryPaths,
}

impl From<DriverError> for RunError {
    fn from(error: DriverError) -> RunError {
        RunError::Device(error.to_string())
    }
}

impl From<CudnnError> for RunError {
    fn from(error: CudnnError) -> RunError {
        RunError::Device(error.to_string())
    }
}

impl From<CublasError> for RunError {
    fn from(error: CublasError) -> RunError {
        RunError::Device(error.to_string())
    }
}

impl CudaDevice {
    /// The GPU's UUID, by which a daemon finds it. Makes no context.
    ///
    /// # Errors
    /// There is no driver or no such GPU.
    pub fn uuid(&self) -> Result<String, RunError> {
        Ok(driver::uuid_of(self.ordinal)?)
    }
}

impl Device for CudaDevice {
    fn open(&self, plans: &[Arc<Plan>], weights: &WeightSource) -> Result<Box<dyn Backend>, RunError> {
        Ok(Box::new(CudaBackend::open(self, plans, weights)?))
    }
}

impl CudaBackend {
    pub(super) fn open(
        device: &CudaDevice,
        plans: &[Arc<Plan>],
        weights: &WeightSource,
    ) -> Result<CudaBackend, RunError> {
        if let Some(other) = plans.iter().find(|plan| !plan.target.starts_with("cuda:")) {
            return Err(RunError::Target { plan: other.target.clone(), device: "cuda".into() });
        }
        let gpu = driver::Gpu::open(device.ordinal)?;
        let mut stages = Stages::new(&gpu)?;
        let arena = plans.iter().map(|plan| plan.arena.size()).max().unwrap_or_default();
        let alignment = plans.iter().map(|plan| plan.arena.alignment).max().unwrap_or(Bytes(1));
        let constants_at = arena.align_up(alignment);
        let (memory, constants_at) = match weights {
            WeightSource::Device { parts, .. } => imported(&gpu, constants_at, parts)?,
            WeightSource::Host(_) | WeightSource::Image(_) | WeightSource::File { .. } => {
                let weights = weights.to_host(plans)?;
                let constants = weights.bytes();
                let size = index(constants_at + Bytes(constants.len() as u64))?;
                let memory = DeviceMemory::new(&gpu, size)?;
                memory.upload(constants_at.0 as usize, constants)?;
                // From now on they are read from the memory of the device.
                weights.release(0..constants.len());
                (memory, constants_at)
            }
        };
        let memory = Arc::new(memory);
        stages.end("arena and constants")?;
        let mut works = Vec::with_capacity(plans.len());
        for plan in plans {
            works.push(works_of(plan)?);
        }
        let does = |kind: fn(&StepCode) -> bool| works.iter().flatten().any(kind);
        let mut cudnn = None;
        if does(|work| matches!(work, StepCode::Cudnn(_))) {
            cudnn = Some(cudnn::Handle::new(&device.places, &gpu)?);
            stages.end("cuDNN")?;
        }
        let mut cublas = None;
        if does(|work| matches!(work, StepCode::Cublas(_))) {
            cublas = Some(cublas::Handle::new(&device.places, &gpu)?);
            stages.end("cuBLASLt")?;
        }
        let place = Block { gpu: &gpu, memory: &memory, constants_at, cudnn: cudnn.as_ref(), cublas: cublas.as_ref() };
        let opened: Result<Vec<Opened>, RunError> =
            plans.iter().zip(&works).map(|(plan, works)| Opened::new(&place, plan, works)).collect();
        let opened = opened?;
        // Run once on uninitialized memory, so that the driver loads everything that it loads lazily.
        opened.iter().try_for_each(|opened| opened.graph.launch())?;
        gpu.finish()?;
        stages.end("code and records")?;
        stages.add_workspace(&opened);
        let mirror = Mirror { bytes: Vec::new(), is_out: false, size: arena.0 as usize };
        let places = device.places.clone();
        Ok(CudaBackend { plans: opened, memory, constants_at, stages, mirror, timer: None, gpu, places })
    }

    /// Enqueues a run on an external stream, between external buffers of the ports' sizes.
    pub(super) fn enqueue(
        &mut self,
        plan: usize,
        stream: ExternalStream,
        inputs: &[ExternalBuffer],
        outputs: &[ExternalBuffer],
    ) -> Result<(), RunError> {
        let Opened { graph, plan } = &self.plans[plan];
        let at = |operand: &Operand| place(plan, operand, self.constants_at).expect("a checked plan's ports exist");
        for (port, memory) in plan.inputs.iter().zip(inputs) {
            self.memory.copy_from_external(at(&port.operand), memory, stream)?;
        }
        graph.launch_on(stream)?;
        for (port, memory) in plan.outputs.iter().zip(outputs) {
            self.memory.copy_to_external(at(&port.operand), memory, stream)?;
        }
        Ok(())
    }
}

/// The arena, and imported constants behind it, in one block.
fn imported(gpu: &Arc<driver::Gpu>, arena: Bytes, parts: &[DevicePart]) -> Result<(DeviceMemory, Bytes), RunError> {
    let sizes: Result<Vec<usize>, RunError> = parts.iter().map(|part| index(Bytes(part.size))).collect();
    let parts: Vec<_> = parts.iter().map(|part| part.handle.as_fd()).zip(sizes?).collect();
    let (memory, constants_at) = DeviceMemory::with_imported(gpu, index(arena)?, &parts)?;
    Ok((memory, Bytes(constants_at as u64)))
}

fn index(bytes: Bytes) -> Result<usize, RunError> {
    let too_large = || RunError::Arena { bytes: bytes.0, error: "it is larger than the address space".into() };
    bytes.index().ok_or_else(too_large)
}

pub(super) struct CudaBackend {
    plans: Vec<Opened>,
    memory: Arc<DeviceMemory>,
    constants_at: Bytes,
    stages: Stages,
    mirror: Mirror,
    /// Created by the first timed run.
    timer: Option<Timer>,
    gpu: Arc<driver::Gpu>,
    /// The search paths of NVIDIA's libraries.
    places: LibraryPaths,
}

/// A host copy of the arena for callers that inspect it.
struct Mirror {
    bytes: Vec<u8>,
    /// Whether a caller has it, and may have changed it.
    is_out: bool,
    size: usize,
}

/// The decrease of free memory in each stage of opening.
struct Stages {
    gpu: Arc<driver::Gpu>,
    free: usize,
    items: Vec<MemoryItem>,
}

impl Stages {
    /// Starts after the context was created.
    fn new(gpu: &Arc<driver::Gpu>) -> Result<Stages, RunError> {
        let (free, total) = gpu.memory()?;
        let items = vec![item("context, and what others hold", total.saturating_sub(free))];
        Ok(Stages { gpu: gpu.clone(), free, items })
    }

    fn end(&mut self, what: &str) -> Result<(), RunError> {
        let (free, _) = self.gpu.memory()?;
        self.items.push(item(what, self.free.saturating_sub(free)));
        self.free = free;
        Ok(())
    }

    /// Adds to cuBLASLt's stage how much of the planned workspace its algorithms use. The workspace is part of the arena and
    /// not of this stage's bytes.
    fn add_workspace(&mut self, opened: &[Opened]) {
        let calls = opened.iter().flat_map(|opened| opened.graph.calls());
        let products = calls.filter_map(|call| match call {
            DeviceCall::Cublas(execution) => Some((execution.wanted(), execution.workspace())),
            _ => None,
        });
        let most = products.reduce(|most, own| (most.0.max(own.0), most.1.max(own.1)));
        let stage = self.items.iter_mut().find(|item| item.what == "device: cuBLASLt");
        if let Some((stage, (wanted, planned))) = stage.zip(most) {
            let uses = format!("; its algorithms use up to {wanted} of the {planned} bytes of workspace in the arena");
            stage.what.push_str(&uses);
        }
    }
}

/// NVML's figures, for a process whose block has `block` bytes.
fn device_usage(usage: &nvml::Usage, own: u32, block: u64) -> DeviceUsage {
    let item = |what: String, bytes: u64, method: &str| MemoryItem { what, method: format!("NVML, {method}"), bytes };
    let (processes, device) = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2");
    let mut device_usage = DeviceUsage::default();
    let unavailable = |figure: &str, why: String| Unavailable { what: figure.into(), why };
    match usage.of(own) {
        Ok(bytes) => {
            device_usage.items.push(item("memory of this process".into(), bytes, processes));
            let beside = format!("{processes}, without arena and constants");
            let what = "context, libraries and code of this process".into();
            device_usage.items.push(item(what, bytes.saturating_sub(block), &beside));
        }
        Err(why) => device_usage.unavailable.push(unavailable("memory of this process", why)),
    }
    match &usage.processes {
        Ok(all) => {
            let others: Vec<_> = all.iter().filter(|process| process.pid != own).collect();
            let known: Vec<u64> = others.iter().filter_map(|process| process.bytes).collect();
            let what =
                |count: usize| format!("memory of {}", counted(count as u64, "other process", "other processes"));
            if !known.is_empty() {
                device_usage.items.push(item(what(known.len()), known.iter().sum(), processes));
            }
            if known.len() < others.len() {
                let why = "the platform does not let NVML report it".into();
                device_usage.unavailable.push(unavailable(&what(others.len() - known.len()), why));
            }
        }
        Err(why) => device_usage.unavailable.push(unavailable("memory of other processes", why.to_string())),
    }
    let keeper = match &usage.driver {
        Ok(version) => format!("driver {version}"),
        Err(why) => {
            device_usage.unavailable.push(unavailable("the driver's version", why.to_string()));
            "the driver".into()
        }
    };
    match &usage.memory {
        Ok(memory) => {
            device_usage.items.push(item("in use by all processes".into(), memory.used, device));
            device_usage.items.push(item(format!("kept by {keeper} and the GPU"), memory.reserved, device));
        }
        Err(why) => {
            let what = format!("in use by all processes, and kept by {keeper} and the GPU");
            device_usage.unavailable.push(unavailable(&what, why.to_string()));
        }
    }
    device_usage
}

/// A number with its noun.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn item(what: &str, bytes: usize) -> MemoryItem {
    let method = "cuMemGetInfo, before and after".to_string();
    MemoryItem { what: format!("device: {what}"), method, bytes: bytes as u64 }
}

/// The libraries that a plan needs in addition to a driver, with their versions.
pub fn required_libraries(plan: &Plan) -> Vec<String> {
    let works = plan
        .steps
        .iter()
        .filter(|_| plan.target.starts_with("cuda:"))
        .filter_map(|step| StepCode::from_code(&step.code));
    let named = works.filter_map(|work| match work {
        StepCode::Cudnn(planned) => {
            let driver = planned.driver().map(|version| format!(", beside a driver for CUDA {version}"));
            let files = "libcudnn.so.9, and libcublasLt.so that it loads";
            Some(format!("cuDNN {} ({files}){}", planned.version, driver.unwrap_or_default()))
        }
        // Its algorithms are chosen when the plan is opened, so any version with these functions will do.
        StepCode::Cublas(_) => Some("cuBLAS 13 (libcublasLt.so.13)".to_string()),
        StepCode::Launch(_) => None,
    });
    let mut libraries: Vec<String> = named.collect();
    libraries.sort();
    libraries.dedup();
    libraries
}

/// The decoded work of each step of a plan.
fn works_of(plan: &Plan) -> Result<Vec<StepCode>, RunError> {
    let work = |(ix, step): (usize, &Step)| {
        StepCode::from_code(&step.code).ok_or_else(|| broken(ix, step, "its code cannot be decoded"))
    };
    plan.steps.iter().enumerate().map(work).collect()
}

fn broken(ix: usize, step: &Step, reason: &str) -> RunError {
    RunError::Kernel { step: ix, scope: step.scope.to_string(), reason: reason.to_string() }
}

/// An error of a library or of the driver in a step.
fn by_library(ix: usize, step: &Step, error: &dyn std::error::Error) -> RunError {
    RunError::Library { step: ix, scope: step.scope.to_string(), reason: error.to_string() }
}

/// The memory and library handles of a plan's steps.
struct Block<'a> {
    gpu: &'a Arc<driver::Gpu>,
    memory: &'a Arc<DeviceMemory>,
    constants_at: Bytes,
    cudnn: Option<&'a Arc<cudnn::Handle>>,
    cublas: Option<&'a Arc<cublas::Handle>>,
}

impl Block<'_> {
    fn place(&self, plan: &Plan, operand: &Operand) -> Option<usize> {
        let start = place(plan, operand, self.constants_at)?;
        let end = start.checked_add(usize::try_from(operand.size.0).ok()?)?;
        (end <= self.memory.size()).then_some(start)
    }
}

struct Opened {
    graph: CudaGraph,
    plan: Arc<Plan>,
}

impl Opened {
    fn new(block: &Block, plan: &Arc<Plan>, works: &[StepCode]) -> Result<Opened, RunError> {
        let gpu = block.gpu;
        let own = plan.modules.iter().find(|module| module.arch == gpu.arch()).or(plan.modules.first());
        let module = own.map(|own| Module::load(gpu, &own.code)).transpose()?.map(Arc::new);
        let call = |((ix, step), work): ((usize, &Step), &StepCode)| -> Result<DeviceCall, RunError> {
            let place = |operand: &Operand| {
                block.place(plan, operand).ok_or_else(|| broken(ix, step, "an operand is in no buffer"))
            };
            let operands: Result<Vec<usize>, RunError> = step.inputs.iter().chain(&step.outputs).map(place).collect();
            let (mut places, workspace) = (operands?, step.workspace.as_ref().map(place).transpose()?);
            let given = step.workspace.map_or(0, |workspace| workspace.size.0);
            const OPENED: &str = "it is opened if a plan needs it";
            Ok(match work {
                StepCode::Launch(launch) => {
                    let none = || RunError::Device("the plan has no code for a GPU; compile the model again".into());
                    places.extend(workspace);
                    DeviceCall::Kernel(module.as_ref().ok_or_else(none)?.call(launch, block.memory, &places)?)
                }
                StepCode::Cudnn(planned) => {
                    if given != planned.workspace {
                        return Err(broken(ix, step, "its workspace must have the size that cuDNN needs"));
                    }
                    let cudnn = block.cudnn.expect(OPENED);
                    let execution = cudnn::Execution::new(cudnn, planned, block.memory, &places, workspace);
                    DeviceCall::Cudnn(execution.map_err(|error| by_library(ix, step, &error))?)
                }
                StepCode::Cublas(product) => {
                    let sizes = step.inputs.iter().chain(&step.outputs).map(|operand| operand.size.0).collect();
                    if given != product.workspace || product.sizes() != Some(sizes) {
                        return Err(broken(ix, step, "its operands must have the sizes of its product"));
                    }
                    let cublas = block.cublas.expect(OPENED);
                    let execution = cublas::Execution::new(cublas, product, block.memory, &places, workspace);
                    DeviceCall::Cublas(execution.map_err(|error| by_library(ix, step, &error))?)
                }
            })
        };
        let calls: Result<Vec<DeviceCall>, RunError> = plan.steps.iter().enumerate().zip(works).map(call).collect();
        let calls = calls?;
        // Libraries load lazily, which is not allowed during capture: run their calls once before.
        let libraries = |(_, call): &(usize, &DeviceCall)| !matches!(call, DeviceCall::Kernel(_));
        let mut late = calls.iter().enumerate().filter(libraries).peekable();
        if late.peek().is_some() {
            late.try_for_each(|(ix, call)| call.launch().map_err(|error| by_library(ix, &plan.steps[ix], &error)))?;
            gpu.finish()?;
        }
        Ok(Opened { graph: CudaGraph::capture(gpu, calls)?, plan: plan.clone() })
    }
}

/// The start of an operand in the block.
fn place(plan: &Plan, operand: &Operand, constants_at: Bytes) -> Option<usize> {
    let start = match operand.place {
        Place::Buffer(_) => plan.arena_range(operand)?.start,
        Place::Constant(ix) => {
            let constant = plan.constants.get(ix.0 as usize)?;
            constants_at.0.checked_add(constant.offset.0)?.checked_add(operand.offset.0)?
        }
    };
    usize::try_from(start).ok()
}

impl CudaBackend {
    /// The driver allocations in a run, or the reason why they are unavailable.
    fn allocations(&mut self, plan: usize) -> Result<Result<Vec<MemoryEvent>, String>, RunError> {
        let recording = match Recording::start(&self.places) {
            Ok(recording) => recording,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let ran = self.run(plan);
        let events = recording.finish().map_err(|error| error.to_string());
        ran.map(|()| events)
    }

    /// Writes the arena back if a caller has it.
    fn write_back(&mut self) -> Result<(), RunError> {
        if std::mem::take(&mut self.mirror.is_out) {
            self.memory.write(0, &self.mirror.bytes)?;
        }
        Ok(())
    }
}

impl Backend for CudaBackend {
    fn step(&mut self, plan: usize, step: usize) -> Result<(), RunError> {
        self.write_back()?;
        self.plans[plan].graph.calls()[step].launch()?;
        Ok(self.gpu.finish()?)
    }

    fn run(&mut self, plan: usize) -> Result<(), RunError> {
        self.write_back()?;
        self.plans[plan].graph.launch()?;
        Ok(self.gpu.finish()?)
    }

    fn run_timed(&mut self, plan: usize, runs: usize) -> Result<Option<f64>, RunError> {
        self.write_back()?;
        let timer = match &mut self.timer {
            Some(timer) => timer,
            none => none.insert(Timer::new(&self.gpu)?),
        };
        let graph = &self.plans[plan].graph;
        Ok(Some(timer.seconds(|| (0..runs).try_for_each(|_| graph.launch()))?))
    }

    fn write(&mut self, plan: usize, operand: &Operand, bytes: &[u8]) -> Result<(), RunError> {
        self.write_back()?;
        let start = place(&self.plans[plan].plan, operand, self.constants_at).expect("a checked plan's inputs exist");
        Ok(self.memory.write(start, bytes)?)
    }

    fn read(&self, plan: usize, operand: &Operand, bytes: &mut [u8]) -> Result<(), RunError> {
        let start = place(&self.plans[plan].plan, operand, self.constants_at).expect("a checked plan's outputs exist");
        Ok(self.memory.read(start, bytes)?)
    }

    fn arena(&mut self) -> Result<&mut [u8], RunError> {
        if !self.mirror.is_out {
            self.mirror.bytes.resize(self.mirror.size, 0);
            self.memory.read(0, &mut self.mirror.bytes)?;
            self.mirror.is_out = true;
        }
        Ok(&mut self.mirror.bytes)
    }

    fn device_memory(&self) -> Result<Vec<MemoryItem>, RunError> {
        let (free, _) = self.gpu.memory()?;
        let mut items = self.stages.items.clone();
        items.push(item("runs", self.stages.free.saturating_sub(free)));
        Ok(items)
    }

    fn device_usage(&mut self, plan: usize) -> Result<DeviceUsage, RunError> {
        let figure = "memory of this process".to_string();
        let usage = self.gpu.bus().map_err(|error| error.to_string());
        let mut seen = match usage.and_then(|bus| nvml::usage(&self.places, &bus).map_err(|error| error.to_string())) {
            Ok(usage) => device_usage(&usage, std::process::id(), self.memory.size() as u64),
            Err(why) => DeviceUsage { unavailable: vec![Unavailable { what: figure, why }], ..DeviceUsage::default() },
        };
        // Last, because CUPTI takes memory.
        match self.allocations(plan)? {
            Ok(events) => {
                let mut count = 0;
                for (side, what) in
                    [(MemoryKind::Device, "allocated"), (MemoryKind::Host, "allocated pinned host memory")]
                {
                    let sizes = events.iter().filter_map(|event| match event {
                        MemoryEvent::Allocated(own, bytes) if *own == side => Some(*bytes),
                        _ => None,
                    });
                    let times = sizes.clone().count() as u64;
                    count += times;
                    // A row for device memory even if there are no allocations.
                    if side == MemoryKind::Device || 0 < times {
                        let what = format!("{what} in a run, {}", counted(times, "time", "times"));
                        let method = "CUPTI, CUPTI_ACTIVITY_KIND_MEMORY2".to_string();
                        seen.items.push(MemoryItem { what, method, bytes: sizes.sum() });
                    }
                }
                seen.allocations_in_run = Some(count);
            }
            Err(why) => seen.unavailable.push(Unavailable { what: "allocations in a run".into(), why }),
        }
        Ok(seen)
    }

    fn threads(&self) -> usize {
        1
    }

    fn fills_workspace(&self, plan: usize, step: usize) -> bool {
        // Libraries do not document how much of it they write.
        matches!(self.plans[plan].graph.calls()[step], DeviceCall::Kernel(_))
    }

    fn describe(&self) -> String {
        format!("{} ({})", self.gpu.name(), self.gpu.arch())
    }
}
