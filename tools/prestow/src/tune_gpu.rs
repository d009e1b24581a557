//! `--tune` for GPUs: what cuDNN and cuBLASLt have for each layer is measured on the GPU at hand, and the fastest is taken and
//! kept in a file, by GPU, library and layer. What the file knows is not measured again, so that the same file gives the
//! same executable.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cuda::cublas::{self, Product};
use cuda::cudnn::{self, Convolution, Planned};
use cuda::driver::{Call, DriverError, Gpu, Memory};
use cuda::{Places, Timer, Work};
use lower::cuda::WORKSPACE_MAX;
use plan::Plan;
use types::{Bytes, DType, Random, Tensor};

use crate::device::Device;
use crate::tune::{Outcome, read_rows, usual_cache};

/// The most engines of cuDNN's that are measured for a layer.
const ENGINES: usize = 16;
/// Launches between two looks at the clock, and how often it is looked at: at least, and at most.
const LAUNCHES: usize = 5;
const TURNS_MIN: usize = 3;
const TURNS_MAX: usize = 40;
/// What comes later in a library's order has to be faster by this factor.
const WORTHWHILE: f64 = 0.97;
/// The first line of the file.
const HEADER: &str = "# prestow: the fastest of what libraries have for a layer, as measured";
const COLUMNS: &str = "# GPU\tlibrary\tlayer\tits place in the library's order\tmicroseconds of each";

/// How layers are measured.
pub(crate) struct How<'a> {
    /// For about so long, all layers together.
    pub(crate) seconds: f64,
    /// None: in the user's folder of caches.
    pub(crate) cache: Option<&'a Path>,
    pub(crate) places: &'a Places,
}

/// GPU, library and layer.
type Key = [String; 3];
/// The rows of a file: what is fastest, and the measured times as they stand there.
type Rows = BTreeMap<Key, (usize, String)>;

/// A layer that a library computes.
#[derive(PartialEq)]
enum Layer {
    Convolution(Box<Convolution>, Vec<Planned>),
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
            Layer::Product(own) => own.sizes().expect("it is of a plan"),
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
            cuda::Number::F32 => DType::F32,
            cuda::Number::F16 => DType::F16,
            cuda::Number::Bf16 => DType::Bf16,
        }
    }

    fn text(&self) -> String {
        match self {
            Layer::Convolution(own, _) => format!("{own:?}"),
            Layer::Product(own) => format!("{own:?}"),
        }
    }
}

/// Measures what libraries do in plans for a device, and has the device prefer what is fastest: who compiles again has plans
/// of that.
///
/// # Errors
/// A GPU that is not the device's; a file of choices that cannot be read or written; a library or a driver that fails.
pub(crate) fn tune(device: &mut Device, gpu: &Arc<Gpu>, plans: &[&Plan], how: &How) -> Result<Outcome, String> {
    if gpu.arch() != device.target.arch() || device.named.as_ref().is_some_and(|named| named != gpu.name()) {
        let wanted = device.named.clone().unwrap_or_else(|| device.target.arch().to_string());
        let (name, arch) = (gpu.name(), gpu.arch());
        return Err(format!("--tune measures on the GPU at hand, which is {name} ({arch}), but --target is {wanted}"));
    }
    let cache = match how.cache {
        Some(path) => path.to_path_buf(),
        None => usual_cache("tuned-gpu.tsv")
            .ok_or("there is no home directory for what is measured; name a file with --tune-cache")?,
    };
    let layers = layers(device, plans)?;
    let mut measuring = Measuring::new(gpu, how.places, &layers)?;
    let mut rows = Rows::from_iter(read_rows(&cache, parse)?);
    let math = device.planner.as_ref().map_or("", |planner| planner.math().name());
    let keys: Vec<Key> = layers.iter().map(|layer| measuring.key(layer, math)).collect();
    let unknown = keys.iter().filter(|key| !rows.contains_key(*key)).count();
    let mut done = 0;
    for (layer, key) in layers.iter().zip(&keys).filter(|(_, key)| !rows.contains_key(*key)).collect::<Vec<_>>() {
        let (fastest, times) = measuring.measure(layer, how.seconds / unknown as f64)?;
        done += 1;
        eprintln!("tuning {done}/{unknown}: {}: {fastest} ({times})", layer.text());
        rows.insert(key.clone(), (fastest, times));
        // After each layer: what was measured is kept, whatever happens next.
        write(&cache, &rows)?;
    }
    let (mut changed, mut algorithms) = (0, BTreeMap::new());
    for (layer, key) in layers.iter().zip(&keys) {
        let (fastest, _) = rows[key];
        changed += usize::from(0 < fastest);
        match layer {
            Layer::Convolution(problem, candidates) => {
                // A file of somebody who had more engines says nothing of ours.
                let (planner, planned) = (device.planner.as_ref(), candidates.get(fastest));
                if let (Some(planner), Some(planned)) = (planner, planned) {
                    planner.prefer((**problem).clone(), planned.clone());
                }
            }
            Layer::Product(product) => {
                algorithms.insert((**product).clone(), fastest as u32);
            }
        }
    }
    device.target = device.target.clone().preferring(algorithms);
    Ok(Outcome { measured: unknown, known: layers.len() - unknown, changed, cache })
}

/// The distinct layers of plans that libraries compute, with what cuDNN has for each.
fn layers(device: &Device, plans: &[&Plan]) -> Result<Vec<Layer>, String> {
    let mut layers: Vec<Layer> = Vec::new();
    for step in plans.iter().flat_map(|plan| &plan.steps) {
        let layer = match (lower::cuda::library_work(&step.code), &device.planner) {
            (Some(Work::Cudnn(planned)), Some(planner)) => {
                let problem = planner.problem_of(&planned).expect("it was planned here");
                let candidates = planner.candidates(&problem, WORKSPACE_MAX.0, ENGINES)?;
                Layer::Convolution(Box::new(problem), candidates)
            }
            (Some(Work::Cublas(product)), _) => Layer::Product(Box::new(Product { algorithm: 0, ..product })),
            _ => continue,
        };
        if !layers.contains(&layer) {
            layers.push(layer);
        }
    }
    Ok(layers)
}

/// What measures.
struct Measuring<'a> {
    gpu: &'a Arc<Gpu>,
    cudnn: Option<Arc<cudnn::Handle>>,
    cublas: Option<Arc<cublas::Handle>>,
    timer: Timer,
}

impl Measuring<'_> {
    fn new<'a>(gpu: &'a Arc<Gpu>, places: &Places, layers: &[Layer]) -> Result<Measuring<'a>, String> {
        let any = |is: fn(&Layer) -> bool| layers.iter().any(is).then_some(());
        let cudnn = any(|layer| matches!(layer, Layer::Convolution(..))).map(|()| cudnn::Handle::new(places, gpu));
        let cublas = any(|layer| matches!(layer, Layer::Product(_))).map(|()| cublas::Handle::new(places, gpu));
        Ok(Measuring {
            gpu,
            cudnn: cudnn.transpose().map_err(|error| error.to_string())?,
            cublas: cublas.transpose().map_err(|error| error.to_string())?,
            timer: Timer::new(gpu).map_err(|error| error.to_string())?,
        })
    }

    /// `math` is cuDNN's: which engines there are depends on it.
    fn key(&self, layer: &Layer, math: &str) -> Key {
        let library = match layer {
            Layer::Convolution(..) => format!("cuDNN {} {math}", self.cudnn().version()),
            Layer::Product(_) => format!("cuBLASLt {}", self.cublas().version()),
        };
        [self.gpu.name().replace('\t', " "), library, layer.text()]
    }

    fn cudnn(&self) -> &Arc<cudnn::Handle> {
        self.cudnn.as_ref().expect("there is a convolution")
    }

    fn cublas(&self) -> &Arc<cublas::Handle> {
        self.cublas.as_ref().expect("there is a product")
    }

    /// What a library has for a layer, ready to run on made-up operands; none for what it does not take after all.
    fn candidates(&self, layer: &Layer) -> Result<Vec<Option<Call>>, String> {
        let told = |error: DriverError| error.to_string();
        let mut end = Bytes(0);
        let mut room = |bytes: u64| {
            let start = end.align_up(Bytes(256));
            end = start + Bytes(bytes);
            start.0 as usize
        };
        let at: Vec<usize> = layer.operands().into_iter().map(&mut room).collect();
        let workspace = room(layer.workspace());
        let size = end.index().ok_or("a layer larger than the address space")?;
        let memory = Arc::new(Memory::new(self.gpu, size).map_err(told)?);
        fill(&memory, workspace, layer.dtype()).map_err(told)?;
        Ok(match layer {
            Layer::Convolution(_, planned) => {
                let call = |own: &Planned| {
                    let at_work = (0 < own.workspace).then_some(workspace);
                    cudnn::Execution::new(self.cudnn(), own, &memory, &at, at_work).ok().map(Call::Cudnn)
                };
                planned.iter().map(call).collect()
            }
            Layer::Product(product) => {
                let own = |algorithm: usize| {
                    let product = Product { algorithm: algorithm as u32, ..(**product).clone() };
                    let at_work = (0 < product.workspace).then_some(workspace);
                    cublas::Execution::new(self.cublas(), &product, &memory, &at, at_work)
                };
                let count = own(0).map_err(|error| error.to_string())?.algorithms();
                (0..count).map(|algorithm| own(algorithm).ok().map(Call::Cublas)).collect()
            }
        })
    }

    /// Which of what a library has for a layer is fastest, in turns for about some seconds; and all times.
    #[expect(clippy::disallowed_methods, reason = "how long is measured is a wish of the caller's")]
    fn measure(&mut self, layer: &Layer, seconds: f64) -> Result<(usize, String), String> {
        let start = Instant::now();
        let mut candidates = self.candidates(layer)?;
        let mut least = vec![f64::INFINITY; candidates.len()];
        for turn in 0..=TURNS_MAX {
            if TURNS_MIN < turn && seconds <= start.elapsed().as_secs_f64() {
                break;
            }
            for (candidate, least) in candidates.iter_mut().zip(&mut least) {
                let Some(call) = candidate else { continue };
                let launches = || (0..LAUNCHES).try_for_each(|_| call.launch());
                let taken = match self.timer.seconds(launches) {
                    Ok(taken) => taken,
                    // One that its library does not run after all is none; a GPU that is lost is lost.
                    Err(_) if turn == 0 && self.gpu.finish().is_ok() => {
                        *candidate = None;
                        continue;
                    }
                    Err(error) => return Err(error.to_string()),
                };
                // The first turn loads what is loaded late.
                if 0 < turn {
                    *least = least.min(taken / LAUNCHES as f64);
                }
            }
        }
        let mut best = 0;
        for (ix, &own) in least.iter().enumerate() {
            // Numbers that are not finite are of those that do not run.
            if own < least[best] * WORTHWHILE || !least[best].is_finite() && own.is_finite() {
                best = ix;
            }
        }
        let times: Vec<String> = least.iter().map(|own| format!("{:.1}", own * 1e6)).collect();
        Ok((best, times.join(", ")))
    }
}

/// Bytes of made-up numbers that are written again and again.
const PIECE: usize = 1 << 20;

/// Fills the first bytes with numbers as they are multiplied elsewhere: of zeros a GPU computes faster.
pub(crate) fn fill(memory: &Memory, size: usize, dtype: DType) -> Result<(), DriverError> {
    let mut random = Random::for_name(1, "operands");
    let items = Tensor::from_fn([PIECE / 4].as_slice().into(), |_| random.uniform(-1.0, 1.0)).cast(dtype);
    let piece = items.to_le_bytes();
    (0..size).step_by(piece.len()).try_for_each(|start| memory.write(start, &piece[..piece.len().min(size - start)]))
}

/// A row of the file.
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
