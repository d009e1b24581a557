//! [`Trial`]: an operator case in one precision, compiled, with the tolerance of its results.

use cases::Case;
use cases::bounds::{Arithmetic, bounds, has_attention, is_chain};
use cases::forms::{
    has_activation, is_one_product, is_product, is_recurrent, map_constants, tensor_to_tf32, to_half_precision,
};
use cases::judge::{Allowed, ELEVEN_BITS, inputs, small_integers};
use compiler::gpu::{GpuCompiler, Libraries, Precision};
use compiler::{Compiled, Model};
use cuda::MathMode;
use ir::{Graph, Op, ValueDef, evaluate};
use lower::cuda::CudaTarget;
use types::{DType, Tensor};

/// Seed of the inputs.
const SEED: u64 = 3;

/// The GPU as a target of one precision.
pub(crate) struct TargetUnderTest {
    pub(crate) precision: Precision,
    pub(crate) compiler: GpuCompiler,
}

/// A graph to run.
pub(crate) struct Trial {
    pub(crate) name: String,
    /// The compiler's input.
    pub(crate) graph: Graph,
    /// The graph with its rounding between kernels, which the reference evaluates.
    rounded: Graph,
    pub(crate) given: Vec<Tensor>,
    tolerance: Tolerance,
    /// The plan, or the reason for a refusal.
    pub(crate) compiled: Result<Compiled, String>,
}

/// Sources of permitted differences.
#[derive(Clone, Copy, PartialEq)]
enum Tolerance {
    /// Rounding of stored values.
    Stored(DType),
    /// Rounding of each term to eleven bits, in steps.
    Terms(f64),
    /// The order of a library's sums.
    Sums,
    /// Rounding of stored values, and of the value between a library's product and its epilogue.
    Between(DType),
    /// The rounding of several products and of the values between them, each carried to the results.
    Chain(Arithmetic),
    /// Rounding of the states and weights of a recurrent layer.
    States(DType),
    /// None: every sum is exact.
    Exact,
}

/// Reference results of a trial.
pub(crate) struct Reference {
    pub(crate) outputs: Vec<Tensor>,
    pub(crate) allowed: Vec<Allowed>,
}

impl Trial {
    fn new(name: String, graph: Graph, given: Vec<Tensor>, tolerance: Tolerance, target: &CudaTarget) -> Trial {
        let (rounded, compiled) = compile(&graph, target);
        Trial { name, graph, rounded, given, tolerance, compiled }
    }

    /// Evaluates the definition.
    ///
    /// # Errors
    /// The evaluator fails.
    pub(crate) fn reference(&self) -> Result<Reference, String> {
        let Trial { rounded, given, .. } = self;
        let failed = |error: ir::EvalError| format!("the reference has no result: {error}");
        let outputs = evaluate(rounded, given).map_err(failed)?;
        let allowed = match self.tolerance {
            Tolerance::Stored(dtype) => outputs.iter().map(|want| Allowed::of(want, dtype)).collect(),
            Tolerance::Terms(steps) => vec![Allowed::of_rounded(rounded, given, steps).map_err(failed)?],
            Tolerance::Between(dtype) => vec![Allowed::of_rounded_between(rounded, given, dtype).map_err(failed)?],
            Tolerance::Chain(arithmetic) => {
                bounds(rounded, given, arithmetic).ok_or("there is no bound for an operator of the compiled graph")?
            }
            Tolerance::States(dtype) => outputs.iter().map(|want| Allowed::of_states(want, dtype)).collect(),
            Tolerance::Exact => outputs.iter().map(|_| Allowed::NOTHING).collect(),
            Tolerance::Sums => vec![Allowed::of_sums(rounded, given).map_err(failed)?],
        };
        Ok(Reference { outputs, allowed })
    }
}

/// The trials of a case on a target.
///
/// Half precision has two: all values in half precision, and only those between kernels, if there are any. If emitted
/// kernels round operands to eleven bits there are two as well: operands that eleven bits hold exactly, and others. A graph of
/// several products has another one on small integers, which no precision rounds.
pub(crate) fn trials(case: &Case, target: &CudaTarget, precision: Precision, libraries: Libraries) -> Vec<Trial> {
    let Case { name, graph } = case;
    let trial = |name: String, graph: Graph, given: Vec<Tensor>, tolerance: Tolerance| {
        Trial::new(name, graph, given, tolerance, target)
    };
    let plain = |tolerance: Tolerance| trial(name.clone(), graph.clone(), inputs(graph, SEED), tolerance);
    let dtype = precision.dtype();
    if is_recurrent(graph) && (dtype.is_half() || precision == Precision::Tf32) {
        return vec![plain(Tolerance::States(dtype))];
    }
    if (is_chain(graph) || has_attention(graph)) && (dtype.is_half() || precision == Precision::Tf32) {
        return chain(case, target, precision, libraries);
    }
    if dtype.is_half() {
        let own = plain(Tolerance::Stored(dtype));
        let all = to_half_precision(graph, dtype).filter(|_| has(graph, DType::F32)).map(|graph| {
            let (given, name) = (inputs(&graph, SEED), format!("{name}, all {dtype}"));
            let is_between = library(&graph, libraries).is_some() && has_activation(&graph);
            let tolerance = if is_between { Tolerance::Between(dtype) } else { Tolerance::Stored(dtype) };
            trial(name, graph, given, tolerance)
        });
        let is_kept = all.is_none() || (has(&own.rounded, dtype) && !has(graph, dtype));
        return Some(own).filter(|_| is_kept).into_iter().chain(all).collect();
    }
    match rounding(graph, precision, libraries) {
        Rounding::None => vec![plain(Tolerance::Stored(DType::F32))],
        Rounding::Sums => vec![plain(Tolerance::Sums)],
        // An activation at most doubles a difference.
        Rounding::Library(steps) => {
            vec![plain(Tolerance::Terms(if has_activation(graph) { 2.0 * steps } else { steps }))]
        }
        Rounding::Operands => {
            let exact = map_constants(graph, tensor_to_tf32);
            let given = inputs(graph, SEED).iter().map(tensor_to_tf32).collect();
            let exact = trial(format!("{name}, 11-bit operands"), exact, given, Tolerance::Stored(DType::F32));
            // Emitted epilogues may amplify a difference, so only plain sums have a bound.
            let rough = (!has_activation(graph)).then(|| plain(Tolerance::Terms(1.0)));
            rough.into_iter().chain([exact]).collect()
        }
    }
}

/// The trials of a graph of several products or an attention: on numbers that are rounded, and on small integers, whose products
/// must be equal if emitted kernels compute them. Libraries may sum transforms that no precision holds.
fn chain(case: &Case, target: &CudaTarget, precision: Precision, libraries: Libraries) -> Vec<Trial> {
    let (dtype, name) = (precision.dtype(), &case.name);
    let library = libraries.cudnn.or(libraries.cublas);
    let steps = match library {
        // A library may truncate operands instead of rounding them: twice the error.
        Some(MathMode::Tf32) => 2.0,
        _ if precision == Precision::Tf32 => 1.0,
        _ => 0.0,
    };
    let arithmetic = Arithmetic { operands: steps * ELEVEN_BITS, library: library.is_some() };
    let trial = |name: String, graph: &Graph, given: Vec<Tensor>, tolerance: Tolerance| {
        Trial::new(name, graph.clone(), given, tolerance, target)
    };
    let rough = |name: String, graph: &Graph| trial(name, graph, inputs(graph, SEED), Tolerance::Chain(arithmetic));
    let mut trials = vec![rough(name.clone(), &case.graph)];
    let mut stored = None;
    if dtype.is_half() && has(&case.graph, DType::F32) {
        stored = to_half_precision(&case.graph, dtype);
        trials.retain(|own| stored.is_none() || has(&own.rounded, dtype));
        trials.extend(stored.iter().map(|graph| rough(format!("{name}, all {dtype}"), graph)));
    }
    let graph = stored.as_ref().unwrap_or(&case.graph);
    let is_known =
        graph.values().values().any(|value| matches!(value.source, ValueDef::Weight(_) | ValueDef::Constant(_)));
    if library.is_none() && !is_known && is_chain(graph) {
        let given = small_integers(graph, SEED);
        trials.push(trial(format!("{name}, small integers"), graph, given, Tolerance::Exact));
    }
    trials
}

/// Rounding of `f32` results beyond storage.
enum Rounding {
    None,
    /// A library sums in its own order, or by Winograd's algorithm.
    Sums,
    /// Operands are rounded to eleven bits.
    Operands,
    /// A library rounds operands or Winograd's transforms of them; each product is off by this number of steps.
    Library(f64),
}

fn rounding(graph: &Graph, precision: Precision, libraries: Libraries) -> Rounding {
    if !is_product(graph) {
        return Rounding::None;
    }
    match (library(graph, libraries), precision) {
        // A library may truncate operands instead of rounding them: twice the error.
        (Some(MathMode::Tf32), _) => Rounding::Library(2.0),
        (_, Precision::Tf32) => Rounding::Operands,
        (Some(_), _) => Rounding::Sums,
        (None, _) => Rounding::None,
    }
}

/// The arithmetic of the library that computes a graph of one product. `None` if emitted kernels do, or for other graphs.
fn library(graph: &Graph, libraries: Libraries) -> Option<MathMode> {
    let is_conv = graph.nodes().values().any(|node| matches!(node.op, Op::Conv(_)));
    if is_conv { libraries.cudnn } else { libraries.cublas }.filter(|_| is_one_product(graph))
}

fn has(graph: &Graph, dtype: DType) -> bool {
    graph.values().values().any(|value| value.ty.dtype == dtype)
}

/// A graph with its rounding between kernels, and its plan.
pub(crate) fn compile(graph: &Graph, target: &CudaTarget) -> (Graph, Result<Compiled, String>) {
    let mut rounded = graph.clone();
    let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
    let compiled = compiler::compile(model, target, compiler::Goal::default(), |pass, graph| {
        if pass == "convert_to_half" {
            rounded = graph.clone();
        }
    });
    (rounded, compiled.map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tolerance of a chain depends on the operators of the compiled graph.
    #[test]
    fn every_case_has_a_tolerance() {
        let is_bounded = |case: &Case| is_chain(&case.graph) || has_attention(&case.graph);
        let cases: Vec<Case> = cases::all().into_iter().filter(is_bounded).collect();
        for precision in [Precision::Tf32, Precision::F16] {
            let target = CudaTarget::named("cuda:sm_90").expect("it is known").storing(precision.dtype());
            let target = if precision == Precision::Tf32 { target.rounding() } else { target };
            let all = cases.iter().flat_map(|case| trials(case, &target, precision, Libraries::default()));
            let bounded: Vec<Trial> = all.filter(|trial| matches!(trial.tolerance, Tolerance::Chain(_))).collect();
            let reasons: Vec<String> = bounded
                .iter()
                .filter(|trial| trial.compiled.is_ok())
                .filter_map(|trial| trial.reference().err().map(|reason| format!("{}: {reason}", trial.name)))
                .collect();
            assert!(40 < bounded.len() && reasons.is_empty(), "of {}: {reasons:#?}", bounded.len());
        }
    }
}
