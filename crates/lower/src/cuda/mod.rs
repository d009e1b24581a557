//! The CUDA target: each node becomes kernels in CUDA C, with all extents known to the compiler.
//!
//! What kernels share stands in the folder `cuda/` as templates without includes; what is emitted here for a node is one
//! `extern "C"` function that calls them with its numbers. [`assemble`] brings the functions of a plan together as one
//! source, each text once, and leaves a [`StepCode`] in each step: which function and how many threads, what cuDNN planned,
//! or what cuBLASLt is to do. Where operands lie is known by then, and how many of their bytes can be copied at once.
//!
//! A function's parameters are pointers to the step's inputs, then to its outputs and its workspace, in this order, and the
//! number of the launch where a step is several.

mod ceilings;
mod layout;
mod library;
mod moves;
mod pointwise;
mod products;
mod recurrent;
mod rows;
mod spare;
mod tensor;
mod text;
mod windows;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use ::cuda::cublas::Product;
use ::cuda::cudnn::{CudnnPlan, Planner};
use ::cuda::{Launch, MathMode, StepCode};
use ir::ops::ReduceKind;
use ir::{Graph, HalfSupport, Node, NodeId, Op, TensorType, ValueId};
use plan::{Operand, Place, Plan, Step};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{Bytes, DType, Layout, Shape};

use crate::halves::{follows, is_of_numbers};
use crate::{Call, CallInput, FREE_SCRATCH, LowerError, Pack, Target};
use spare::spare;
use text::ctype;

pub use ceilings::{BURSTS, Burst, COPIED, COPY, ceilings};
pub use library::WORKSPACE_MAX;

/// What the driver aligns allocations to, and more than any vector load asks for.
const ALIGNMENT: Bytes = Bytes(256);

/// The threads of a block, `THREADS` in `cuda/templates/base.cu`.
pub const THREADS: u32 = 256;
/// The most blocks along the second and third axis of a grid.
const GRID_MAX: u32 = 65_535;
/// The C type of a launch's number.
const TURN: &str = "unsigned long long";
/// Elements are counted in 31 bits.
const ELEMENTS_MAX: usize = i32::MAX as usize;

/// What a step's kernel is called where it is a convolution of cuDNN's.
pub const CUDNN_CONV: &str = "cudnn_conv";

/// What a step's kernel is called where it is a product of cuBLASLt's.
pub const CUBLAS_PRODUCT: &str = "cublaslt_product";

/// What steps' kernels are called where a convolution is emitted.
pub const EMITTED_CONVS: [&str; 2] = ["cuda_conv", "cuda_conv_each"];

/// What steps' kernels are called where a product is emitted.
pub const EMITTED_PRODUCTS: [&str; 1] = ["cuda_product"];

/// How cuBLASLt computes, where it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cublas {
    /// How sums of products of `f32` may be computed.
    pub math: MathMode,
    /// The most workspace that a product has.
    pub workspace: Bytes,
    /// Which algorithm is taken for a product, where that is not the first one.
    pub preferred: Rc<BTreeMap<Product, u32>>,
}

/// Plans for GPUs of one architecture.
#[derive(Clone, Debug)]
pub struct CudaTarget {
    arch: &'static str,
    dtype: DType,
    /// Whether operands of `f32` are rounded where tensor cores can multiply them.
    rounds: bool,
    cudnn: Option<Rc<Planner>>,
    cublas: Option<Cublas>,
    /// Whether kernels take workspace that the arena has to spare.
    fills: bool,
}

impl CudaTarget {
    /// The architectures that there are, as NVRTC calls them: Ampere, Hopper and two of Blackwell.
    pub const ARCHITECTURES: [&'static str; 4] = ["sm_80", "sm_90", "sm_100", "sm_120"];

    /// The target with a name, as `cuda:sm_90`.
    pub fn named(name: &str) -> Option<CudaTarget> {
        let arch = CudaTarget::ARCHITECTURES.into_iter().find(|arch| name.strip_prefix("cuda:") == Some(arch))?;
        Some(CudaTarget { arch, dtype: DType::F32, rounds: false, cudnn: None, cublas: None, fills: false })
    }

    /// With results between kernels, and the weights of products and convolutions, stored as `f16` or `bf16`, or as `f32`.
    ///
    /// # Panics
    /// Another dtype.
    #[must_use]
    pub fn storing(self, dtype: DType) -> CudaTarget {
        assert!(dtype == DType::F32 || dtype.is_half(), "nothing is stored as {dtype} between kernels");
        CudaTarget { dtype, ..self }
    }

    /// With operands of emitted products and convolutions rounded to eleven bits where tensor cores can multiply them (TF32).
    /// What is stored stays `f32`, and so do sums. How libraries compute is said where they are asked for.
    ///
    /// # Panics
    /// What is stored are halves, which tensor cores multiply as they are.
    #[must_use]
    pub fn rounding(self) -> CudaTarget {
        assert!(self.dtype == DType::F32, "{} is not rounded", self.dtype);
        CudaTarget { rounds: true, ..self }
    }

    /// With cuDNN for the convolutions that it has engines for. What is planned is for the GPU that it knows.
    #[must_use]
    pub fn with_cudnn(self, planner: Rc<Planner>) -> CudaTarget {
        CudaTarget { cudnn: Some(planner), ..self }
    }

    /// With cuBLASLt for the products that it has functions for. `workspace` is the most that each of them has in the arena;
    /// without it, what NVIDIA recommends for the architecture (`cublasSetWorkspace`): 32 MiB from `sm_90` on, 4 MiB before.
    #[must_use]
    pub fn with_cublas(self, math: MathMode, workspace: Option<Bytes>) -> CudaTarget {
        let recommended = if self.arch == "sm_80" { Bytes(4 << 20) } else { Bytes(32 << 20) };
        let cublas = Cublas { math, workspace: workspace.unwrap_or(recommended), preferred: Rc::default() };
        CudaTarget { cublas: Some(cublas), ..self }
    }

    /// With the algorithms that somebody measured to be the fastest, for products as they are without.
    #[must_use]
    pub fn preferring(mut self, algorithms: BTreeMap<Product, u32>) -> CudaTarget {
        if let Some(cublas) = &mut self.cublas {
            cublas.preferred = Rc::new(algorithms);
        }
        self
    }

    /// Why cuBLASLt does not do a node that is a product; none where it does, and where nobody asked for it.
    pub fn refused_by_cublas(&self, graph: &Graph, id: NodeId) -> Option<String> {
        let (Op::MatMul(product), Some(cublas)) = (&graph.node(id).op, &self.cublas) else { return None };
        products::matmul(&View::new(graph, graph.node(id)), product, cublas, FREE_SCRATCH).err()
    }

    /// Why cuDNN does not do a node that is a convolution; none where it does, and where nobody asked it.
    pub fn refused_by_cudnn(&self, graph: &Graph, id: NodeId) -> Option<String> {
        let (Op::Conv(conv), Some(planner)) = (&graph.node(id).op, &self.cudnn) else { return None };
        let node = graph.node(id);
        library::conv(&View::new(graph, node), conv, planner, FREE_SCRATCH, graph.value(node.outputs[0]).layout).err()
    }

    /// The architecture, as NVRTC calls it.
    pub fn arch(&self) -> &'static str {
        self.arch
    }
}

/// Everything a plan's steps launch, as one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// CUDA C without includes.
    pub text: String,
    /// Its functions, in order.
    pub entries: Vec<Entry>,
}

/// A function of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The C types of its parameters.
    pub parameters: Vec<String>,
}

impl Source {
    /// The source for a C++ compiler, behind `cuda/mock/cpp/shim.h`, with the table of its functions that `cuda/mock/cpp/shim.cpp` reads.
    pub fn for_shim(&self) -> String {
        let row = |Entry { name, parameters }: &Entry| {
            let pointers = parameters.iter().enumerate().map(|(ix, ty)| format!("({ty})a[{ix}]"));
            let call = format!("{name}({})", pointers.collect::<Vec<_>>().join(", "));
            let numbers = parameters.iter().filter(|ty| *ty == TURN).count();
            format!("    {{\"{name}\", {}, {numbers}, [](void** a) {{ {call}; }}}},\n", parameters.len())
        };
        let rows: String = self.entries.iter().map(row).collect();
        let kernel =
            "struct Kernel {\n    const char* name;\n    int parameters, numbers;\n    void (*call)(void**);\n};\n";
        format!("{}{kernel}static const Kernel kernels[] = {{\n{rows}}};\n", self.text)
    }
}

/// A template of the folder `cuda/`, behind those that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Template {
    Base,
    Pointwise,
    Product,
    Tensor,
    Window,
    Convolution,
    Pool,
    Rows,
    Recurrent,
}

impl Template {
    const ALL: [(Template, &'static str); 9] = [
        (Template::Base, cuda_kernels::BASE),
        (Template::Pointwise, cuda_kernels::POINTWISE),
        (Template::Product, cuda_kernels::PRODUCT),
        (Template::Tensor, cuda_kernels::TENSOR),
        (Template::Window, cuda_kernels::WINDOW),
        (Template::Convolution, cuda_kernels::CONVOLUTION),
        (Template::Pool, cuda_kernels::POOL),
        (Template::Rows, cuda_kernels::ROWS),
        (Template::Recurrent, cuda_kernels::RECURRENT),
    ];
}

/// What a library does in a step of a plan that is not assembled yet; none where a kernel is emitted.
pub fn library_work(code: &[u8]) -> Option<StepCode> {
    match postcard::from_bytes(code) {
        Ok(Chosen::Cudnn(planned)) => Some(StepCode::Cudnn(planned)),
        Ok(Chosen::Cublas(product)) => Some(StepCode::Cublas(product)),
        _ => None,
    }
}

/// What does a step's work, before functions have names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Chosen {
    Emitted(Emitted),
    Cudnn(CudnnPlan),
    Cublas(Product),
}

/// A kernel as it is emitted, before it has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Emitted {
    kind: String,
    /// C types and names.
    parameters: Vec<(String, String)>,
    /// What stands between the braces.
    body: String,
    grid: [u32; 3],
    /// As [`Launch`] has it.
    turns: Option<u32>,
    needs: Vec<Template>,
}

impl Emitted {
    /// The parameters, with the number of a launch where there are several.
    fn all_parameters(&self) -> impl Iterator<Item = (String, String)> {
        let turn = self.turns.map(|_| (TURN.to_string(), "turn".to_string()));
        self.parameters.clone().into_iter().chain(turn)
    }
}

impl Target for CudaTarget {
    fn name(&self) -> String {
        match self.dtype {
            DType::F32 if self.rounds => format!("cuda:{}+tf32", self.arch),
            DType::F32 => format!("cuda:{}", self.arch),
            stored => format!("cuda:{}+{stored}", self.arch),
        }
    }

    fn alignment(&self) -> Bytes {
        ALIGNMENT
    }

    fn blocked(&self) -> Option<Layout> {
        // Tensor cores' engines want channels as neighbours; those that multiply f32 as it is take row-major values.
        let by_cores = |planner: &Rc<Planner>| self.dtype.is_half() || planner.math() == MathMode::Tf32;
        self.cudnn.as_ref().is_some_and(by_cores).then_some(Layout::ChannelsLast)
    }

    fn time(&self, graph: &Graph, id: NodeId, layout: Layout) -> Option<u64> {
        let node = graph.node(id);
        let workspace = match (&node.op, &self.cudnn) {
            (Op::Conv(conv), Some(planner)) => {
                let calls = library::conv(&View::new(graph, node), conv, planner, FREE_SCRATCH, layout);
                calls.ok().map(|calls| calls[0].workspace.0)
            }
            _ => None,
        };
        layout::time(graph, node, layout, workspace)
    }

    fn reads_blocked(&self, graph: &Graph, id: NodeId, input: usize) -> bool {
        layout::reads_last(graph, graph.node(id), input)
    }

    fn relayout_time(&self, graph: &Graph, value: ValueId) -> u64 {
        layout::relayout_time(graph, value)
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn filling(&self) -> Option<Box<dyn Target>> {
        Some(Box::new(CudaTarget { fills: true, ..self.clone() }))
    }

    fn halves(&self, graph: &Graph, id: NodeId) -> HalfSupport {
        let node = graph.node(id);
        match &node.op {
            _ if !is_of_numbers(graph, node) => HalfSupport::None,
            Op::Conv(_) | Op::ConvTranspose(_) | Op::MatMul(_) => HalfSupport::Operands([0, 1].into_iter().collect()),
            Op::Pool(_) | Op::Attention(_) => HalfSupport::Follow,
            // Sums leave the range of halves.
            Op::Reduce(reduce) => match reduce.kind {
                ReduceKind::Mean | ReduceKind::Max | ReduceKind::Min => HalfSupport::Follow,
                _ => HalfSupport::None,
            },
            _ if follows(graph, node) => HalfSupport::Follow,
            _ => HalfSupport::None,
        }
    }

    fn calls(&self, graph: &Graph, id: NodeId, scratch: Bytes) -> Result<Vec<Call>, LowerError> {
        let node = graph.node(id);
        let mut view = View { rounds: self.rounds, ..View::new(graph, node) };
        if self.fills && matches!(node.op, Op::Conv(_) | Op::MatMul(_)) {
            view.spare = spare(graph, id);
        }
        let values = || node.inputs.iter().chain(&node.outputs);
        let large = values().find(|&&value| ELEMENTS_MAX < graph.ty(value).shape.elements());
        let calls = match (large, layout::misplaced(graph, node)) {
            (Some(&value), _) => Err(format!("{} has more than 2^31 elements", graph.ty(value))),
            (_, Some(layout)) => Err(format!("a value in layout {layout}")),
            (None, None) => self.select(&view, scratch),
        };
        calls.map_err(|reason| LowerError::Unsupported {
            scope: node.scope.to_string(),
            op: node.op.name(),
            target: self.name(),
            reason,
        })
    }
}

/// A node with the graph around it.
struct View<'a> {
    graph: &'a Graph,
    node: &'a Node,
    op: Cow<'a, Op>,
    inputs: SmallVec<[TensorType; 4]>,
    output: TensorType,
    /// Of the result.
    layout: Layout,
    /// Whether operands of `f32` may be rounded for tensor cores.
    rounds: bool,
    /// Workspace that the arena has room for beside what lives while the node runs.
    spare: Bytes,
}

impl<'a> View<'a> {
    fn new(graph: &'a Graph, node: &'a Node) -> View<'a> {
        let layout = graph.value(node.outputs[0]).layout;
        let (op, inputs, output) = match graph.physical(node) {
            Some(physical) => (physical.op, physical.inputs, physical.output),
            None => {
                let inputs = node.inputs.iter().map(|&input| graph.ty(input).clone()).collect();
                (Cow::Borrowed(&node.op), inputs, graph.ty(node.outputs[0]).clone())
            }
        };
        View { graph, node, op, inputs, output, layout, rounds: false, spare: Bytes::ZERO }
    }
}

impl View<'_> {
    fn op(&self) -> &Op {
        &self.op
    }

    fn inputs(&self) -> usize {
        self.inputs.len()
    }

    fn input(&self, ix: usize) -> &TensorType {
        &self.inputs[ix]
    }

    fn output(&self) -> &TensorType {
        &self.output
    }

    /// Whether an operand is known before a run.
    fn is_known(&self, ix: usize) -> bool {
        self.graph.value(self.node.inputs[ix]).tensor().is_some()
    }

    /// How an operand is read: known ones lie as the kernel of the physical form wants them.
    fn read(&self, ix: usize) -> CallInput {
        let shape = &self.input(ix).shape;
        let rank = shape.rank();
        let moves = 2 < rank && shape[rank - 1] != 1 && shape[1..rank - 1].iter().any(|&extent| extent != 1);
        match self.layout == Layout::ChannelsLast && self.is_known(ix) && moves {
            false => CallInput::Value(ix),
            true => {
                // As the extents are listed, with those that a broadcast adds.
                let mut listed = shape.clone();
                let channels = listed.remove(rank - 1);
                listed.insert(1, channels);
                CallInput::Packed { input: ix, pack: Pack::new(move |tensor| layout::turned(tensor, &listed)) }
            }
        }
    }

    /// Refuses what is not stored as `f32` or halves.
    fn all_stored(&self) -> Result<(), String> {
        self.all(|dtype| dtype == DType::F32 || dtype.is_half())
    }

    fn all_f32(&self) -> Result<(), String> {
        self.all(|dtype| dtype == DType::F32)
    }

    fn all(&self, fits: impl Fn(DType) -> bool) -> Result<(), String> {
        let mut values = self.node.inputs.iter().chain(&self.node.outputs);
        match values.find(|&&value| !fits(self.graph.ty(value).dtype)) {
            Some(&value) => Err(format!("its kernel computes in f32, not with {}", self.graph.ty(value))),
            None => Ok(()),
        }
    }

    /// `const T* a0, ..` for some operands and `T* y` for the result.
    fn parameters(&self, operands: &[usize]) -> Vec<(String, String)> {
        let input = |&ix: &usize| (format!("const {}*", ctype(self.input(ix).dtype)), format!("a{ix}"));
        let output = (format!("{}*", ctype(self.output().dtype)), "y".to_string());
        operands.iter().map(input).chain([output]).collect()
    }
}

impl CudaTarget {
    /// A library's call where there is one, or those of what we emit.
    fn select(&self, node: &View, scratch: Bytes) -> Result<Vec<Call>, String> {
        if let (Op::Conv(conv), Some(planner)) = (node.op(), &self.cudnn)
            && let Ok(calls) = library::conv(node, conv, planner, scratch, node.layout)
        {
            return Ok(calls);
        }
        if let (Op::MatMul(product), Some(cublas)) = (node.op(), &self.cublas)
            && let Ok(calls) = products::matmul(node, product, cublas, scratch)
        {
            return Ok(calls);
        }
        let mut calls = select(node, scratch)?;
        for input in calls.iter_mut().flat_map(|call| &mut call.inputs) {
            if let CallInput::Value(ix) = *input {
                *input = node.read(ix);
            }
        }
        Ok(calls)
    }
}

/// The calls that do a node's work with what we emit, or why there are none.
fn select(node: &View, scratch: Bytes) -> Result<Vec<Call>, String> {
    if node.layout == Layout::ChannelsLast && matches!(node.op(), Op::Conv(_)) {
        return Err("cuDNN does not do it, and what is emitted is for row-major values".into());
    }
    match node.op() {
        Op::Unary(_) | Op::Binary(_) | Op::Chain(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_) => {
            pointwise::lower(node).map(|call| vec![call])
        }
        Op::Conv(conv) => windows::conv(node, conv, scratch),
        Op::ConvTranspose(conv) => windows::conv_transpose(node, conv),
        Op::Pool(pool) => windows::pool(node, pool),
        Op::MatMul(product) => rows::matmul(node, product, scratch),
        Op::Softmax(softmax) => rows::softmax(node, softmax),
        Op::LayerNorm(norm) => rows::layer_norm(node, norm),
        Op::Attention(attention) => rows::attention(node, attention),
        Op::Reduce(reduce) => rows::reduce(node, reduce),
        Op::ArgExtreme(extreme) => rows::arg_extreme(node, extreme),
        Op::Lrn(lrn) => rows::lrn(node, lrn),
        Op::Transpose(transpose) => Ok(moves::transposed(node, &transpose.order)),
        Op::Slice(slice) => Ok(moves::sliced(node, slice)),
        Op::Expand(expand) => Ok(moves::expanded(node, &expand.shape)),
        Op::Concat(concat) => Ok(moves::concatenated(node, concat.axis)),
        Op::Pad(pad) => Ok(moves::padded(node, pad)),
        Op::Gather(gather) => Ok(moves::gathered(node, gather.axis)),
        Op::Resize(resize) => moves::resized(node, resize),
        Op::Reshape(_) => Err("it is always an alias".into()),
        Op::BatchNorm(_) => Err("its statistics are not known before the run".into()),
        Op::Recurrent(op) => recurrent::recurrent(node, op),
        Op::Relayout(_) => Ok(moves::laid_out(node)),
        Op::ConvChain(_) => Err("it belongs to processors".into()),
    }
}

/// How many blocks it takes for so many elements, one a thread.
fn blocks(elements: usize) -> [u32; 3] {
    [(elements.max(1) as u32).div_ceil(THREADS), 1, 1]
}

/// A call of an emitted kernel that reads these operands.
fn call(emitted: Emitted, label: String, operands: &[usize], in_place: &[usize]) -> Call {
    Call {
        kernel: kind_name(&emitted.kind),
        label,
        code: postcard::to_stdvec(&Chosen::Emitted(emitted.clone())).expect("kernels are plain data"),
        inputs: operands.iter().map(|&ix| CallInput::Value(ix)).collect(),
        workspace: Bytes::ZERO,
        in_place: in_place.iter().copied().collect(),
        part: None,
    }
}

/// The kinds of kernels, as reports name them.
const KINDS: [&str; 15] = [
    "cuda_pointwise",
    "cuda_conv",
    "cuda_conv_each",
    "cuda_conv_transpose",
    "cuda_pool",
    "cuda_product",
    "cuda_softmax",
    "cuda_layer_norm",
    "cuda_attention",
    "cuda_reduce",
    "cuda_search",
    "cuda_lrn",
    "cuda_move",
    "cuda_resize",
    "cuda_recurrent",
];

fn kind_name(kind: &str) -> &'static str {
    KINDS.into_iter().find(|name| name.strip_prefix("cuda_") == Some(kind)).expect("the kinds are listed")
}

/// Where a step's operands begin: all that lies in front of a plan's block is a multiple of what a driver aligns it to.
fn places(plan: &Plan, step: &Step) -> Vec<usize> {
    let place = |operand: &Operand| match operand.place {
        Place::Buffer(_) => plan.arena_range(operand).map_or(1, |range| range.start as usize),
        Place::Constant(ix) => (plan.constants[ix.0 as usize].offset + operand.offset).0 as usize,
    };
    step.inputs.iter().map(place).collect()
}

/// Brings the functions of the steps of some plans together, and leaves in each step how its function is launched.
///
/// # Panics
/// A plan for another target, or one that was assembled before.
pub fn assemble<'a>(plans: impl IntoIterator<Item = &'a mut Plan>) -> Source {
    let mut source = Source::default();
    let mut needs: Vec<Template> = vec![Template::Base];
    let mut bodies: Vec<(Emitted, usize)> = Vec::new();
    for plan in plans {
        let places: Vec<Vec<usize>> = plan.steps.iter().map(|step| places(plan, step)).collect();
        for (step, places) in plan.steps.iter_mut().zip(places) {
            let emitted = match postcard::from_bytes(&step.code).expect("the steps are as they were chosen") {
                Chosen::Emitted(emitted) => Emitted { body: tensor::placed(&emitted.body, &places), ..emitted },
                Chosen::Cudnn(planned) => {
                    step.code = StepCode::Cudnn(planned).code();
                    continue;
                }
                Chosen::Cublas(product) => {
                    step.code = StepCode::Cublas(product).code();
                    continue;
                }
            };
            let same = |(other, _): &&(Emitted, usize)| {
                (&other.parameters, &other.body) == (&emitted.parameters, &emitted.body)
            };
            let entry = match bodies.iter().find(same) {
                Some((_, entry)) => *entry,
                None => {
                    let name = format!("{}_{}", emitted.kind, source.entries.len());
                    let parameters = emitted.all_parameters().map(|(ty, _)| ty).collect();
                    source.entries.push(Entry { name, parameters });
                    needs.extend(&emitted.needs);
                    bodies.push((emitted.clone(), source.entries.len() - 1));
                    source.entries.len() - 1
                }
            };
            let (entry, block) = (source.entries[entry].name.clone(), [THREADS, 1, 1]);
            let launch = Launch { entry, grid: emitted.grid, block, repeat: emitted.turns };
            step.code = StepCode::Launch(launch).code();
        }
    }
    for (template, text) in Template::ALL {
        if needs.contains(&template) {
            source.text.push_str(text);
            source.text.push('\n');
        }
    }
    for (emitted, entry) in &bodies {
        let parameters: Vec<String> = emitted.all_parameters().map(|(ty, name)| format!("{ty} {name}")).collect();
        let (name, parameters) = (&source.entries[*entry].name, parameters.join(", "));
        // Sums stay in registers, as long as a multiprocessor has two blocks at once.
        let bounds = match &emitted.kind[..] {
            "conv" | "product" => format!("{THREADS}, 2"),
            _ => THREADS.to_string(),
        };
        let head = format!("extern \"C\" __global__ void __launch_bounds__({bounds}) {name}({parameters})");
        source.text.push_str(&format!("{head} {{\n{}}}\n\n", emitted.body));
    }
    source
}

/// The extents in front of an axis, of it, and behind it.
fn around(shape: &Shape, axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}
