//! `--tune` for GPUs: measures the algorithms that cuDNN and cuBLASLt offer for each layer, and selects the fastest; then the
//! library's work for a layer and the emitted kernel that can take its place, with the kernels that follow them.
//!
//! Results are stored in a file, by GPU, library and layer. Layers in the file are not measured again, so the same file
//! gives the same executable. A row of an emitted kernel names its source by a digest: another kernel is measured again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cuda::cublas::{self, Product};
use cuda::cudnn::{self, Convolution, CudnnPlan};
use cuda::driver::{DeviceCall, DeviceMemory, DriverError, Gpu, Module};
use cuda::{LibraryPaths, StepCode, Timer};
use ir::Target;
use lower::cuda::{CudaTarget, KernelOrigin, WORKSPACE_MAX, assemble, is_library_taken, kernel_digest, library_layer};
use plan::{Operand, Place, Plan, Step};
use types::{Bytes, DType, Random, Tensor};

use super::GpuCompiler;
use crate::{TuneOutcome, default_tune_cache, read_tune_rows};

/// The most cuDNN engines that are measured per layer.
const ENGINES: usize = 16;
/// Launches between two reads of the clock.
const LAUNCHES: usize = 5;
/// Limits of the repeats of one layer.
const REPEATS_MIN: usize = 3;
const REPEATS_MAX: usize = 40;
/// A later candidate replaces an earlier one only if it takes at most this part of its time.
const WORTHWHILE: f64 = 0.97;
/// The first lines of the file.
const HEADER: &str = "# prestow: the fastest of what libraries have for a layer, as measured";
const COLUMNS: &str = "# GPU\tlibrary\tlayer\tits place in the library's order\tmicroseconds of each";

/// Options of [`tune`].
pub struct TuneOptions<'a> {
    /// Approximate time for all layers together.
    pub seconds: f64,
    /// The file of results. `None`: `tuned-gpu.tsv` in the user's cache folder.
    pub cache: Option<&'a Path>,
    /// Folders with NVIDIA's libraries.
    pub paths: &'a LibraryPaths,
    /// Receives one line per measured layer.
    pub progress: &'a dyn Fn(&str),
}

/// Plans of all batches for a target, before they are assembled.
pub type PlansFor<'a> = dyn FnMut(&CudaTarget) -> Result<Vec<Plan>, String> + 'a;

/// GPU, library and layer.
type Key = [String; 3];
/// The rows of a file: index of the fastest candidate, and the text of all times.
type Rows = BTreeMap<Key, (usize, String)>;

/// A layer that a library computes.
#[derive(PartialEq)]
enum Layer {
    Convolution(Box<Convolution>, Vec<CudnnPlan>),
    Product(Box<Product>),
}

impl Layer {
    /// The bytes of each operand.
    fn operands(&self) -> Vec<u64> {
        match self {
            Layer::Convolution(own, _) => {
                let bytes = |extents: &[usize]| (extents.iter().product::<usize>() * own.number.size()) as u64;
                let mut all = vec![bytes(&own.x), bytes(&own.weight)];
                all.extend(own.bias.then(|| bytes(&own.weight[..1])));
                all.extend(own.residual.then(|| bytes(&own.out)));
                all.push(bytes(&own.out));
                all
            }
            Layer::Product(own) => own.sizes().expect("it comes from a plan"),
        }
    }

    fn workspace(&self) -> u64 {
        match self {
            Layer::Convolution(_, planned) => planned.iter().map(|own| own.workspace).max().unwrap_or_default(),
            Layer::Product(own) => own.workspace,
        }
    }

    fn dtype(&self) -> DType {
        let number = match self {
            Layer::Convolution(own, _) => own.number,
            Layer::Product(own) => own.factors,
        };
        match number {
            cuda::FloatType::F32 => DType::F32,
            cuda::FloatType::F16 => DType::F16,
            cuda::FloatType::Bf16 => DType::Bf16,
        }
    }

    fn text(&self) -> String {
        match self {
            Layer::Convolution(own, _) => format!("{own:?}"),
            Layer::Product(own) => format!("{own:?}"),
        }
    }
}

/// Measures the layers that libraries can compute on a GPU, and makes the compiler prefer the fastest algorithms, and the faster
/// of a library and an emitted kernel. To use them, compile the model again.
///
/// # Errors
/// The GPU is not the compiler's; a model cannot be planned; the file of results cannot be read or written; NVRTC, a library or
/// the driver fails.
pub fn tune(
    compiler: &mut GpuCompiler,
    gpu: &Arc<Gpu>,
    plans_for: &mut PlansFor,
    options: &TuneOptions,
) -> Result<TuneOutcome, String> {
    let is_other = compiler.device_name.as_ref().is_some_and(|name| name != gpu.name());
    if gpu.arch() != compiler.target.arch() || is_other {
        let wanted = compiler.device_name.clone().unwrap_or_else(|| compiler.target.arch().to_string());
        let (name, arch) = (gpu.name(), gpu.arch());
        return Err(format!("tuning requires the target's GPU, {wanted}, got {name} ({arch})"));
    }
    let cache = match options.cache {
        Some(path) => path.to_path_buf(),
        None => default_tune_cache("tuned-gpu.tsv")
            .ok_or("no home directory for the file of tuning results; name a file")?,
    };
    let by_library = plans_for(&compiler.target.clone().taking(KernelOrigin::Library))?;
    let layers = layers(compiler, &by_library)?;
    let mut measurement = Measurement::new(gpu, options.paths, &layers)?;
    let mut rows = Rows::from_iter(read_tune_rows(&cache, parse)?);
    let math = compiler.planner.as_ref().map_or("", |planner| planner.math().name());
    let keys: Vec<Key> = layers.iter().map(|layer| measurement.key(layer, math)).collect();
    let unknown = keys.iter().filter(|key| !rows.contains_key(*key)).count();
    let mut done = 0;
    for (layer, key) in layers.iter().zip(&keys).filter(|(_, key)| !rows.contains_key(*key)).collect::<Vec<_>>() {
        let candidates = measurement.candidates(layer)?;
        // Half of the time is for the emitted kernels.
        let (fastest, times) = measurement.measure(candidates, options.seconds / 2.0 / unknown as f64)?;
        done += 1;
        (options.progress)(&format!("tuning {done}/{unknown}: {}: {fastest} ({times})", layer.text()));
        rows.insert(key.clone(), (fastest, times));
        // Written after each layer, so that an interrupted run loses nothing.
        write(&cache, &rows)?;
    }
    let (mut changed, mut algorithms) = (0, BTreeMap::new());
    for (layer, key) in layers.iter().zip(&keys) {
        let (fastest, _) = rows[key];
        changed += usize::from(0 < fastest);
        match layer {
            Layer::Convolution(problem, candidates) => {
                // A file from a machine with more engines may have an index that is out of range here.
                let (planner, planned) = (compiler.planner.as_ref(), candidates.get(fastest));
                if let (Some(planner), Some(planned)) = (planner, planned) {
                    planner.prefer((**problem).clone(), planned.clone());
                }
            }
            Layer::Product(product) => {
                algorithms.insert((**product).clone(), fastest as u32);
            }
        }
    }
    compiler.target = compiler.target.clone().preferring(algorithms);
    let mut comparison = Comparison::new(compiler, &mut measurement, plans_for, math)?;
    let known = comparison.layers.iter().filter(|layer| rows.contains_key(&layer.key)).count();
    let unmeasured = comparison.layers.len() - known;
    let mut times = BTreeMap::new();
    for (ix, layer) in comparison.layers.iter().enumerate() {
        if !rows.contains_key(&layer.key) {
            let calls = comparison.drafts.calls(compiler, &measurement, layer)?;
            let measured = measurement.measure(calls, options.seconds / 2.0 / unmeasured as f64)?;
            let name = &layer.key[2];
            (options.progress)(&format!(
                "tuning layer {} of {}: {name}: {}",
                ix + 1,
                comparison.layers.len(),
                measured.1
            ));
            rows.insert(layer.key.clone(), measured);
            write(&cache, &rows)?;
        }
        let (fastest, text) = &rows[&layer.key];
        if let Some(of_both) = picoseconds(text) {
            changed += usize::from((*fastest == 0) != layer.is_modelled_by_library);
            times.insert(layer.key[2].clone(), of_both);
        }
    }
    compiler.target = compiler.target.clone().with_measured(times);
    let (measured, known) = (unknown + unmeasured, layers.len() - unknown + known);
    Ok(TuneOutcome { measured, known, changed, cache })
}

/// The times in a row of a library's and an emitted kernel; one that did not run takes forever. `None` if neither ran.
fn picoseconds(text: &str) -> Option<[u64; 2]> {
    let times: Option<Vec<f64>> = text.split(", ").map(|own| own.parse().ok()).collect();
    let times: [f64; 2] = times?.try_into().ok()?;
    // The conversion ends at the largest number.
    times.iter().any(|own| own.is_finite()).then(|| times.map(|own| (own * 1e6).round() as u64))
}

/// A layer that a library and an emitted kernel can compute.
struct ComparedLayer {
    key: Key,
    /// The plan and the steps of the library, and of the emitted kernel.
    steps: [(usize, Range<usize>); 2],
    /// Whether the library is faster by the modelled times.
    is_modelled_by_library: bool,
}

/// The layers that are measured both ways, and the plans that have their steps.
struct Comparison {
    layers: Vec<ComparedLayer>,
    drafts: Drafts,
}

/// Plans with kernels of libraries and with emitted ones, and their code once a layer is measured.
struct Drafts {
    plans: [Vec<Plan>; 2],
    loaded: Option<Loaded>,
}

/// Assembled plans on a GPU.
struct Loaded {
    plans: [Vec<Plan>; 2],
    modules: [Arc<Module>; 2],
    memory: Arc<DeviceMemory>,
}

impl Comparison {
    fn new(
        compiler: &GpuCompiler,
        measurement: &mut Measurement,
        plans_for: &mut PlansFor,
        math: &str,
    ) -> Result<Comparison, String> {
        let mut plans_of = |origin| plans_for(&compiler.target.clone().taking(origin));
        let plans = [plans_of(KernelOrigin::Library)?, plans_of(KernelOrigin::Emitted)?];
        let [by_library, emitted] = plans.each_ref().map(|plans| layer_steps(plans));
        let mut layers = Vec::new();
        for (layer, library) in by_library {
            let Some(emitted) = emitted.get(&layer) else { continue };
            let code = |of: usize, (plan, steps): &(usize, Range<usize>)| &plans[of][*plan].steps[steps.start];
            let step = code(0, &library);
            let choice = plans[0][library.0].choices.iter().find(|choice| choice.scope == step.scope);
            let digest = kernel_digest(&code(1, emitted).code);
            let name = match lower::cuda::library_work(&step.code) {
                Some(StepCode::Cudnn(_)) => format!("cuDNN {} {math}", measurement.cudnn().version()),
                _ => format!("cuBLASLt {}", measurement.cublas().version()),
            };
            layers.push(ComparedLayer {
                key: [measurement.gpu_name(), format!("{name}, then emitted {digest:016x}"), layer],
                is_modelled_by_library: choice.is_none_or(|choice| is_library_taken(choice.times)),
                steps: [library, emitted.clone()],
            });
        }
        Ok(Comparison { layers, drafts: Drafts { plans, loaded: None } })
    }
}

/// By layer of a library, the first steps that do its work: a plan, and its steps.
fn layer_steps(plans: &[Plan]) -> BTreeMap<String, (usize, Range<usize>)> {
    let mut found = BTreeMap::new();
    for (ix, plan) in plans.iter().enumerate() {
        for (at, step) in plan.steps.iter().enumerate() {
            let Some(layer) = library_layer(&step.code) else { continue };
            // Activations behind the library's call are in place.
            let is_behind = |next: &&Step| next.scope == step.scope && next.inputs == next.outputs;
            let behind = plan.steps[at + 1..].iter().take_while(is_behind).count();
            found.entry(layer).or_insert((ix, at..at + 1 + behind));
        }
    }
    found
}

impl Drafts {
    /// The steps of a layer, ready to run on random operands: the library's, then the emitted one. `None` for those that a library
    /// rejects.
    fn calls(
        &mut self,
        compiler: &GpuCompiler,
        measurement: &Measurement,
        layer: &ComparedLayer,
    ) -> Result<Vec<Option<Vec<DeviceCall>>>, String> {
        if self.loaded.is_none() {
            self.loaded = Some(Loaded::new(self.plans.clone(), compiler, measurement.gpu)?);
        }
        let loaded = self.loaded.as_ref().expect("it was loaded above");
        let of = |origin: usize| {
            let (plan, steps) = &layer.steps[origin];
            let plan = &loaded.plans[origin][*plan];
            let calls = plan.steps[steps.clone()].iter().map(|step| loaded.call(measurement, origin, plan, step));
            calls.collect::<Result<Option<Vec<DeviceCall>>, String>>()
        };
        Ok(vec![of(0)?, of(1)?])
    }
}

impl Loaded {
    fn new(mut plans: [Vec<Plan>; 2], compiler: &GpuCompiler, gpu: &Arc<Gpu>) -> Result<Loaded, String> {
        let text = |error: DriverError| error.to_string();
        let load = |plans: &mut Vec<Plan>| -> Result<Arc<Module>, String> {
            let code = compiler.code()(&assemble(plans.iter_mut()).text, compiler.target.arch())?;
            Ok(Arc::new(Module::load(gpu, &code.code).map_err(text)?))
        };
        let [library, emitted] = &mut plans;
        let modules = [load(library)?, load(emitted)?];
        let size = |plan: &Plan| constants_at(plan) + plan.constants_size;
        let size = plans.iter().flatten().map(size).max().unwrap_or_default();
        let size = size.index().ok_or("a plan is larger than the address space")?;
        let memory = Arc::new(DeviceMemory::new(gpu, size).map_err(text)?);
        fill_operands(&memory, size, compiler.target.precision()).map_err(text)?;
        Ok(Loaded { plans, modules, memory })
    }

    /// A step with the addresses that it has in its plan. `None` if a library rejects it.
    fn call(
        &self,
        measurement: &Measurement,
        origin: usize,
        plan: &Plan,
        step: &Step,
    ) -> Result<Option<DeviceCall>, String> {
        let place = |operand: &Operand| match operand.place {
            Place::Buffer(_) => plan.arena_range(operand).map_or(0, |range| range.start as usize),
            Place::Constant(ix) => {
                (constants_at(plan) + plan.constants[ix.0 as usize].offset + operand.offset).0 as usize
            }
        };
        let mut places: Vec<usize> = step.inputs.iter().chain(&step.outputs).map(place).collect();
        let (memory, workspace) = (&self.memory, step.workspace.as_ref().map(place));
        Ok(match StepCode::from_code(&step.code).ok_or("a step's code cannot be decoded")? {
            StepCode::Launch(launch) => {
                places.extend(workspace);
                let call = self.modules[origin].call(&launch, memory, &places);
                Some(DeviceCall::Kernel(call.map_err(|error| error.to_string())?))
            }
            StepCode::Cudnn(planned) => {
                let call = cudnn::Execution::new(measurement.cudnn(), &planned, memory, &places, workspace);
                call.ok().map(DeviceCall::Cudnn)
            }
            StepCode::Cublas(product) => {
                let call = cublas::Execution::new(measurement.cublas(), &product, memory, &places, workspace);
                call.ok().map(DeviceCall::Cublas)
            }
        })
    }
}

/// The start of a plan's constants in a block that begins with its arena.
fn constants_at(plan: &Plan) -> Bytes {
    plan.arena.size().align_up(plan.arena.alignment)
}

/// The distinct library layers of plans, with cuDNN's candidates for each convolution.
fn layers(compiler: &GpuCompiler, plans: &[Plan]) -> Result<Vec<Layer>, String> {
    let mut layers: Vec<Layer> = Vec::new();
    for step in plans.iter().flat_map(|plan| &plan.steps) {
        let layer = match (lower::cuda::library_work(&step.code), &compiler.planner) {
            (Some(StepCode::Cudnn(planned)), Some(planner)) => {
                let problem = planner.problem_of(&planned).expect("this planner planned it");
                let candidates = planner.candidates(&problem, WORKSPACE_MAX.0, ENGINES)?;
                Layer::Convolution(Box::new(problem), candidates)
            }
            (Some(StepCode::Cublas(product)), _) => Layer::Product(Box::new(Product { algorithm: 0, ..product })),
            _ => continue,
        };
        if !layers.contains(&layer) {
            layers.push(layer);
        }
    }
    Ok(layers)
}

/// Library handles and a clock.
struct Measurement<'a> {
    gpu: &'a Arc<Gpu>,
    cudnn: Option<Arc<cudnn::Handle>>,
    cublas: Option<Arc<cublas::Handle>>,
    timer: Timer,
}

impl Measurement<'_> {
    fn new<'a>(gpu: &'a Arc<Gpu>, paths: &LibraryPaths, layers: &[Layer]) -> Result<Measurement<'a>, String> {
        let any = |is: fn(&Layer) -> bool| layers.iter().any(is).then_some(());
        let cudnn = any(|layer| matches!(layer, Layer::Convolution(..))).map(|()| cudnn::Handle::new(paths, gpu));
        let cublas = any(|layer| matches!(layer, Layer::Product(_))).map(|()| cublas::Handle::new(paths, gpu));
        Ok(Measurement {
            gpu,
            cudnn: cudnn.transpose().map_err(|error| error.to_string())?,
            cublas: cublas.transpose().map_err(|error| error.to_string())?,
            timer: Timer::new(gpu).map_err(|error| error.to_string())?,
        })
    }

    /// `math` is cuDNN's: the list of engines depends on it.
    fn key(&self, layer: &Layer, math: &str) -> Key {
        let library = match layer {
            Layer::Convolution(..) => format!("cuDNN {} {math}", self.cudnn().version()),
            Layer::Product(_) => format!("cuBLASLt {}", self.cublas().version()),
        };
        [self.gpu_name(), library, layer.text()]
    }

    fn gpu_name(&self) -> String {
        self.gpu.name().replace('\t', " ")
    }

    fn cudnn(&self) -> &Arc<cudnn::Handle> {
        self.cudnn.as_ref().expect("there is a convolution")
    }

    fn cublas(&self) -> &Arc<cublas::Handle> {
        self.cublas.as_ref().expect("there is a product")
    }

    /// The candidates of a layer, ready to run on random operands. `None` for a candidate that its library rejects.
    fn candidates(&self, layer: &Layer) -> Result<Vec<Option<Vec<DeviceCall>>>, String> {
        let text = |error: DriverError| error.to_string();
        let mut end = Bytes(0);
        let mut reserve = |bytes: u64| {
            let start = end.align_up(Bytes(256));
            end = start + Bytes(bytes);
            start.0 as usize
        };
        let offsets: Vec<usize> = layer.operands().into_iter().map(&mut reserve).collect();
        let workspace = reserve(layer.workspace());
        let size = end.index().ok_or("a layer is larger than the address space")?;
        let memory = Arc::new(DeviceMemory::new(self.gpu, size).map_err(text)?);
        fill_operands(&memory, workspace, layer.dtype()).map_err(text)?;
        Ok(match layer {
            Layer::Convolution(_, planned) => {
                let call = |own: &CudnnPlan| {
                    let workspace = (0 < own.workspace).then_some(workspace);
                    cudnn::Execution::new(self.cudnn(), own, &memory, &offsets, workspace).ok().map(DeviceCall::Cudnn)
                };
                planned.iter().map(call).map(|call| Some(vec![call?])).collect()
            }
            Layer::Product(product) => {
                let own = |algorithm: usize| {
                    let product = Product { algorithm: algorithm as u32, ..(**product).clone() };
                    let workspace = (0 < product.workspace).then_some(workspace);
                    cublas::Execution::new(self.cublas(), &product, &memory, &offsets, workspace)
                };
                let count = own(0).map_err(|error| error.to_string())?.algorithms();
                let call = |algorithm| own(algorithm).ok().map(DeviceCall::Cublas);
                (0..count).map(|algorithm| Some(vec![call(algorithm)?])).collect()
            }
        })
    }

    /// Runs the candidates of a layer, each a sequence of calls, alternately for about `seconds`. Returns the index
    /// of the fastest, and all times in microseconds as text.
    #[expect(clippy::disallowed_methods, reason = "the time limit is the caller's option")]
    fn measure(
        &mut self,
        mut candidates: Vec<Option<Vec<DeviceCall>>>,
        seconds: f64,
    ) -> Result<(usize, String), String> {
        let start = Instant::now();
        let mut least = vec![f64::INFINITY; candidates.len()];
        for repeat in 0..=REPEATS_MAX {
            if REPEATS_MIN < repeat && seconds <= start.elapsed().as_secs_f64() {
                break;
            }
            for (candidate, least) in candidates.iter_mut().zip(&mut least) {
                let Some(calls) = candidate else { continue };
                let launches = || (0..LAUNCHES).try_for_each(|_| calls.iter().try_for_each(DeviceCall::launch));
                let taken = match self.timer.seconds(launches) {
                    Ok(taken) => taken,
                    // A candidate may fail at its first launch. If the GPU still works, the candidate is dropped.
                    Err(_) if repeat == 0 && self.gpu.finish().is_ok() => {
                        *candidate = None;
                        continue;
                    }
                    Err(error) => return Err(error.to_string()),
                };
                // The first repeat includes lazy loading.
                if 0 < repeat {
                    *least = least.min(taken / LAUNCHES as f64);
                }
            }
        }
        let mut best = 0;
        for (ix, &own) in least.iter().enumerate() {
            // Dropped candidates have infinite times.
            if own < least[best] * WORTHWHILE || !least[best].is_finite() && own.is_finite() {
                best = ix;
            }
        }
        let times: Vec<String> = least.iter().map(|own| format!("{:.1}", own * 1e6)).collect();
        Ok((best, times.join(", ")))
    }
}

/// The size of the block of random numbers that is copied repeatedly.
const BLOCK_BYTES: usize = 1 << 20;

/// Fills the first `size` bytes with uniform random numbers. GPUs compute faster on zeros, so zeros would falsify
/// times.
///
/// # Errors
/// The driver fails.
pub fn fill_operands(memory: &DeviceMemory, size: usize, dtype: DType) -> Result<(), DriverError> {
    let mut random = Random::for_name(1, "operands");
    let items = Tensor::from_fn([BLOCK_BYTES / 4].as_slice().into(), |_| random.uniform(-1.0, 1.0)).cast(dtype);
    let block = items.to_le_bytes();
    (0..size).step_by(block.len()).try_for_each(|start| memory.write(start, &block[..block.len().min(size - start)]))
}

/// Parses a row of the file.
fn parse(line: &str) -> Option<(Key, (usize, String))> {
    let [gpu, library, layer, fastest, times] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
    Some(([gpu, library, layer].map(str::to_string), (fastest.parse().ok()?, times.to_string())))
}

fn write(path: &Path, rows: &Rows) -> Result<(), String> {
    let mut text = format!("{HEADER}\n{COLUMNS}\n");
    for ([gpu, library, layer], (fastest, times)) in rows {
        let _ = writeln!(text, "{gpu}\t{library}\t{layer}\t{fastest}\t{times}");
    }
    files::write(path, text.as_bytes()).map_err(|error| error.to_string())
}
