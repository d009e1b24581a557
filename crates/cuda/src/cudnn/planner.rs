//! [`Planner`]: a convolution's engine, workspace and plan for a device description, without the GPU.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use cuda_sys::cudnn as sys;

use super::descriptor::{Descriptor, Kind, Name, bytes};
use super::{CudnnError, CudnnLibrary, CudnnPlan};
use crate::{DeviceProperties, FloatType, LibraryPaths, MathMode};

/// The layout of a convolution's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorLayout {
    /// Row-major in the order of the extents.
    Listed,
    /// Channels are innermost: `[n, h, w, c]`, and weights `[k, r, s, c / groups]`.
    ChannelsLast,
}

/// A convolution of `x: [n, c, h, w]` with `weight: [k, c / groups, r, s]`, and its epilogue. Its operands are, in this order:
/// `x`, `weight`, the bias, the residual, the output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Convolution {
    /// The data type of all operands.
    pub number: FloatType,
    /// Their layout.
    pub order: TensorLayout,
    /// The input's extents.
    pub x: [usize; 4],
    /// The weights' extents.
    pub weight: [usize; 4],
    /// The output's extents.
    pub out: [usize; 4],
    /// Strides of the window.
    pub stride: [usize; 2],
    /// Dilation of the window.
    pub dilation: [usize; 2],
    /// Padding at the start of each spatial axis.
    pub front: [usize; 2],
    /// Padding at the end.
    pub back: [usize; 2],
    /// Whether a vector `[k]` is added.
    pub bias: bool,
    /// Whether a tensor of the output's shape is added.
    pub residual: bool,
    /// Whether ReLU follows.
    pub relu: bool,
    /// The bytes that the address of each operand is a multiple of: a power of two, at least the size of an element.
    pub alignment: u64,
}

/// The choice among valid engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EngineChoice {
    /// The measured fastest, or else the first one of cuDNN's heuristic.
    Fastest,
    /// The least workspace.
    Smallest,
}

/// A convolution, the choice of engine, and the most workspace.
type Question = (Convolution, EngineChoice, u64);

/// cuDNN with a device description.
pub struct Planner {
    library: Arc<CudnnLibrary>,
    device: Arc<Descriptor>,
    math: MathMode,
    /// Cache of earlier results: kernels are compared several times.
    known: RefCell<BTreeMap<Question, Result<CudnnPlan, String>>>,
    /// The measured fastest plans.
    preferred: RefCell<BTreeMap<Convolution, CudnnPlan>>,
}

use sys::cudnnBackendBehaviorNote_t as Behavior;
use sys::cudnnBackendNumericalNote_t as Numerics;

impl Planner {
    /// Loads cuDNN and passes it the device description.
    ///
    /// # Errors
    /// cuDNN is not found, or rejects the description.
    pub fn new(places: &LibraryPaths, device: &DeviceProperties, math: MathMode) -> Result<Planner, CudnnError> {
        let library = CudnnLibrary::find(places)?;
        let facts = || {
            let mut facts = Descriptor::new(&library, Kind::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?;
            facts.set(Name::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, &bytes(&device.json()))?;
            facts.finalize()
        };
        let device = facts().map_err(|why| CudnnError::Description { version: library.version(), why })?;
        Ok(Planner { library, device, math, known: RefCell::default(), preferred: RefCell::default() })
    }

    /// cuDNN's version.
    pub fn version(&self) -> String {
        self.library.version()
    }

    /// A plan with at most `workspace_max` bytes of workspace.
    ///
    /// # Errors
    /// The reason for the absence of a plan.
    pub fn convolution(
        &self,
        problem: &Convolution,
        take: EngineChoice,
        workspace_max: u64,
    ) -> Result<CudnnPlan, String> {
        let preferred = self.preferred.borrow().get(problem).cloned();
        if let Some(preferred) = preferred.filter(|own| take == EngineChoice::Fastest && own.workspace <= workspace_max)
        {
            return Ok(preferred);
        }
        let key = (problem.clone(), take, workspace_max);
        if let Some(known) = self.known.borrow().get(&key) {
            return known.clone();
        }
        let found = self.ask(problem, take, workspace_max);
        self.known.borrow_mut().insert(key, found.clone());
        found
    }

    /// The permitted arithmetic.
    pub fn math(&self) -> MathMode {
        self.math
    }

    /// The convolution that this planner made a plan for.
    pub fn problem_of(&self, planned: &CudnnPlan) -> Option<Convolution> {
        let known = self.known.borrow();
        let own =
            known.iter().find(|(_, found)| found.as_ref() == Ok(planned)).map(|((problem, _, _), _)| problem.clone());
        own.or_else(|| {
            self.preferred.borrow().iter().find(|(_, own)| *own == planned).map(|(problem, _)| problem.clone())
        })
    }

    /// The plans of valid engines with at most `workspace_max` bytes of workspace, in cuDNN's order, at most `most`.
    ///
    /// # Errors
    /// The reason for the absence of a plan.
    pub fn candidates(&self, problem: &Convolution, workspace_max: u64, most: usize) -> Result<Vec<CudnnPlan>, String> {
        let mut all: Vec<CudnnPlan> = Vec::new();
        self.each(problem, workspace_max, |planned| {
            if !all.contains(&planned) {
                all.push(planned);
            }
            if all.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(all)
    }

    /// Prefers a plan for a convolution wherever its workspace fits.
    pub fn prefer(&self, problem: Convolution, planned: CudnnPlan) {
        self.preferred.borrow_mut().insert(problem, planned);
    }

    fn ask(&self, problem: &Convolution, take: EngineChoice, workspace_max: u64) -> Result<CudnnPlan, String> {
        let mut best: Option<CudnnPlan> = None;
        self.each(problem, workspace_max, |planned| {
            let enough = take == EngineChoice::Fastest || planned.workspace == 0;
            if best.as_ref().is_none_or(|best| planned.workspace < best.workspace) {
                best = Some(planned);
            }
            if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(best.expect("there is one where that is no error"))
    }

    /// Visits the plans of valid engines, in cuDNN's order.
    ///
    /// # Errors
    /// The reason for the absence of a plan.
    fn each(
        &self,
        problem: &Convolution,
        workspace_max: u64,
        mut visit: impl FnMut(CudnnPlan) -> ControlFlow<()>,
    ) -> Result<(), String> {
        let graph = self.graph(problem)?;
        let mut refused: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut found = false;
        use sys::cudnnBackendHeurMode_t as Mode;
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            let mut ask = self.new_object(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
            ask.refer(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&graph])?;
            ask.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?;
            ask.refer(Name::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, &[&self.device])?;
            // A mode may not support the kind of graph.
            let Ok(ask) = ask.finalize() else { continue };
            let (name, kind) = (Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
            for config in ask.others(name, kind, true)? {
                match self.judge(Arc::new(config), workspace_max, problem)? {
                    Ok(planned) => {
                        found = true;
                        if visit(planned).is_break() {
                            return Ok(());
                        }
                    }
                    Err(reason) => *refused.entry(reason).or_default() += 1,
                }
            }
        }
        if found {
            return Ok(());
        }
        if refused.is_empty() {
            return Err("cuDNN has no engine for it".into());
        }
        let reasons: Vec<String> = refused.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        Err(format!("of cuDNN's engines for it {}", reasons.join(", ")))
    }

    /// The plan of an engine configuration, or the reason for rejecting it.
    fn judge(
        &self,
        config: Arc<Descriptor>,
        workspace_max: u64,
        problem: &Convolution,
    ) -> Result<Result<CudnnPlan, &'static str>, String> {
        let engine = config.others(Name::CUDNN_ATTR_ENGINECFG_ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR, false)?;
        let engine = engine.first().ok_or("a configuration without an engine")?;
        let behavior: Vec<Behavior> =
            engine.values(Name::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, 32, Behavior::CUDNN_BEHAVIOR_NOTE_TYPE_COUNT)?;
        let numerics: Vec<Numerics> =
            engine.values(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 32, Numerics::CUDNN_NUMERICAL_NOTE_TYPE_COUNT)?;
        if let Some(reason) = refused(&behavior, &numerics, self.math, problem.number) {
            return Ok(Err(reason));
        }
        let index = engine.number(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?;
        let mut plan = self.new_object(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.refer(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[&config])?;
        plan.refer(Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[&self.device])?;
        let Ok(plan) = plan.finalize() else { return Ok(Err("do not take its extents")) };
        let workspace = plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        let workspace = u64::try_from(workspace).map_err(|_| format!("a workspace of {workspace} bytes"))?;
        if workspace_max < workspace {
            return Ok(Err("want more workspace"));
        }
        let json = plan.text(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)?;
        let planned =
            CudnnPlan { version: self.version(), engine: index, workspace, alignment: problem.alignment, json };
        Ok(if self.reads(&planned) { Ok(planned) } else { Err("are not read back from their text") })
    }

    /// Whether cuDNN loads the plan's text for the device, as it must at run time.
    fn reads(&self, planned: &CudnnPlan) -> bool {
        let read = || {
            let mut plan = self.new_object(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
            plan.refer(Name::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, &[&self.device])?;
            plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, &bytes(&planned.json))?;
            plan.finalize()?.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)
        };
        let workspace: Result<i64, String> = read();
        workspace.is_ok_and(|workspace| u64::try_from(workspace) == Ok(planned.workspace))
    }

    fn new_object(&self, kind: Kind) -> Result<Descriptor, String> {
        Descriptor::new(&self.library, kind)
    }

    /// cuDNN's operation graph: convolution, residual, bias, ReLU, in the order of cuDNN's fused engines.
    fn graph(&self, problem: &Convolution) -> Result<Arc<Descriptor>, String> {
        let Convolution { x, weight, out, bias, residual, relu, .. } = problem;
        let operand = |id: i64, extents: &[usize; 4]| self.tensor(id, extents, problem);
        // Identifiers: operands have their positions, virtual tensors the numbers after them.
        let last = 3 + i64::from(*bias) + i64::from(*residual);
        let mut between = last;
        let (mut vectors, mut fused) = (Vec::new(), Vec::new());
        if *residual {
            fused.push((sys::cudnnPointwiseMode_t::CUDNN_POINTWISE_ADD, Some((last - 1, *out))));
        }
        if *bias {
            fused.push((sys::cudnnPointwiseMode_t::CUDNN_POINTWISE_ADD, Some((3, [1, out[1], 1, 1]))));
        }
        if *relu {
            fused.push((sys::cudnnPointwiseMode_t::CUDNN_POINTWISE_RELU_FWD, None));
        }
        let mut result = |left: usize| match left {
            0 => operand(last, out),
            _ => {
                between += 1;
                self.between(between, out, problem.order)
            }
        };
        let mut sum = result(fused.len())?;
        vectors.push(self.convolve(problem, &operand(1, x)?, &operand(2, weight)?, &sum)?);
        let count = fused.len();
        for (ix, (mode, added)) in fused.into_iter().enumerate() {
            let added = added.map(|(id, extents)| operand(id, &extents)).transpose()?;
            let next = result(count - 1 - ix)?;
            vectors.push(self.pointwise(mode, &sum, added.as_ref(), &next)?);
            sum = next;
        }
        let mut graph = self.new_object(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.refer(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &vectors.iter().collect::<Vec<_>>())?;
        graph.finalize()
    }

    fn tensor(&self, id: i64, extents: &[usize; 4], problem: &Convolution) -> Result<Arc<Descriptor>, String> {
        let number = match problem.number {
            FloatType::F32 => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            FloatType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
            FloatType::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        };
        let mut tensor = self.described(id, extents, problem.order)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[number])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[problem.alignment as i64])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[false])?;
        tensor.finalize()
    }

    /// A virtual tensor: an intermediate value without memory.
    fn between(&self, id: i64, extents: &[usize; 4], order: TensorLayout) -> Result<Arc<Descriptor>, String> {
        let mut tensor = self.described(id, extents, order)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[sys::cudnnDataType_t::CUDNN_DATA_FLOAT])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[4i64])?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, &[true])?;
        tensor.finalize()
    }

    fn described(&self, id: i64, extents: &[usize; 4], order: TensorLayout) -> Result<Descriptor, String> {
        let [_, c, h, w] = *extents;
        let strides = match order {
            TensorLayout::Listed => [c * h * w, h * w, w, 1],
            TensorLayout::ChannelsLast => [c * h * w, 1, w * c, c],
        };
        let mut tensor = self.new_object(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &extents.map(|extent| extent as i64))?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_STRIDES, &strides.map(|stride| stride as i64))?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id])?;
        Ok(tensor)
    }

    fn convolve(
        &self,
        problem: &Convolution,
        x: &Arc<Descriptor>,
        weight: &Arc<Descriptor>,
        y: &Arc<Descriptor>,
    ) -> Result<Arc<Descriptor>, String> {
        let two = |numbers: [usize; 2]| numbers.map(|number| number as i64);
        let mut how = self.new_object(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[sys::cudnnDataType_t::CUDNN_DATA_FLOAT])?;
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, &[mode])?;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[2i64])?;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &two(problem.front))?;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &two(problem.back))?;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &two(problem.dilation))?;
        how.set(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &two(problem.stride))?;
        let how = how.finalize()?;
        let mut node = self.new_object(Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)?;
        node.refer(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, &[&how])?;
        node.refer(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, &[x])?;
        node.refer(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, &[weight])?;
        node.refer(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, &[y])?;
        node.set(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, &[1f32])?;
        node.set(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, &[0f32])?;
        node.finalize()
    }

    fn pointwise(
        &self,
        mode: sys::cudnnPointwiseMode_t,
        x: &Arc<Descriptor>,
        operand: Option<&Arc<Descriptor>>,
        y: &Arc<Descriptor>,
    ) -> Result<Arc<Descriptor>, String> {
        let mut how = self.new_object(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        how.set(Name::CUDNN_ATTR_POINTWISE_MODE, &[mode])?;
        how.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, &[sys::cudnnDataType_t::CUDNN_DATA_FLOAT])?;
        let how = how.finalize()?;
        let mut node = self.new_object(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        node.refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[&how])?;
        node.refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[x])?;
        if let Some(operand) = operand {
            node.refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[operand])?;
        }
        node.refer(Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[y])?;
        node.finalize()
    }
}

impl fmt::Debug for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuDNN {}", self.version())
    }
}

/// The reason for rejecting an engine, by cuDNN's notes. `None` if it is valid.
fn refused(behavior: &[Behavior], numerics: &[Numerics], math: MathMode, number: FloatType) -> Option<&'static str> {
    const COMPILED: &[Behavior] = &[Behavior::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION];
    const OTHERS: &[Behavior] = &[
        Behavior::CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY,
        Behavior::CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER,
        Behavior::CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER,
    ];
    const TENSOR_CORE: &[Numerics] = &[Numerics::CUDNN_NUMERICAL_NOTE_TENSOR_CORE];
    const ROUNDING: &[Numerics] = &[
        Numerics::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
        Numerics::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
    ];
    const INDIRECT: &[Numerics] = &[Numerics::CUDNN_NUMERICAL_NOTE_FFT, Numerics::CUDNN_NUMERICAL_NOTE_WINOGRAD];
    let behaves = |notes: &[Behavior]| behavior.iter().any(|note| notes.contains(note));
    let counts = |notes: &[Numerics]| numerics.iter().any(|note| notes.contains(note));
    // Tensor cores multiply half-precision operands exactly.
    let (rounds, halves) = (math == MathMode::Tf32 && number == FloatType::F32, number != FloatType::F32);
    match () {
        () if behaves(COMPILED) => Some("compile at run time"),
        () if behaves(OTHERS) => Some("need another library or another layout"),
        () if counts(&[Numerics::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC]) => Some("add in any order"),
        () if counts(TENSOR_CORE) && !halves && !rounds => Some("round to fewer bits"),
        () if counts(ROUNDING) && !rounds => Some("round to fewer bits"),
        () if counts(INDIRECT) && math == MathMode::Exact => Some("are not exact"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_refused_by_their_notes() {
        let of = |behavior: &[Behavior], numerics: &[Numerics], math| refused(behavior, numerics, math, FloatType::F32);
        let of_halves = |numerics: &[Numerics], math| refused(&[], numerics, math, FloatType::F16);
        let tensor_core = [Numerics::CUDNN_NUMERICAL_NOTE_TENSOR_CORE];
        let winograd = [Numerics::CUDNN_NUMERICAL_NOTE_WINOGRAD];
        assert_eq!(of(&[], &tensor_core, MathMode::Strict), Some("round to fewer bits"));
        assert_eq!(of(&[], &tensor_core, MathMode::Tf32), None);
        assert_eq!(of(&[], &winograd, MathMode::Strict), None);
        assert_eq!(of(&[], &winograd, MathMode::Exact), Some("are not exact"));
        assert_eq!(of_halves(&tensor_core, MathMode::Strict), None);
        assert_eq!(of_halves(&winograd, MathMode::Exact), Some("are not exact"));
        let narrow = [Numerics::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION];
        assert_eq!(of(&[], &narrow, MathMode::Tf32), None);
        assert_eq!(of_halves(&narrow, MathMode::Tf32), Some("round to fewer bits"));
        let compiled = [Behavior::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION];
        assert_eq!(of(&compiled, &[], MathMode::Tf32), Some("compile at run time"));
        let any_order = [Numerics::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC];
        assert_eq!(of(&[], &any_order, MathMode::Tf32), Some("add in any order"));
        // Unknown notes of later versions are ignored.
        assert_eq!(of(&[Behavior(77)], &[Numerics(77)], MathMode::Exact), None);
    }
}
