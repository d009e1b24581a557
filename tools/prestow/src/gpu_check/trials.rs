//! [`Trial`]: a case of an operator in the numbers that a run is about, compiled, with what its results are held to.

use cases::Case;
use cases::forms::{has_activation, in_halves, is_one_product, is_product, of_eleven_bits, with_known};
use cases::judge::{Allowed, inputs};
use compiler::{Compiled, Model};
use cuda::Math;
use ir::{Graph, Op, evaluate};
use lower::cuda::CudaTarget;
use types::{DType, Tensor};

use crate::arguments::{Libraries, Numbers};
use crate::device::Device;

/// What a case's inputs are made of.
const SEED: u64 = 3;

/// A GPU as a target for one kind of numbers.
pub(super) struct On {
    pub(super) numbers: Numbers,
    pub(super) device: Device,
}

/// A graph to run, and what comes of it.
pub(super) struct Trial {
    pub(super) name: String,
    /// As it is given to the compiler.
    pub(super) graph: Graph,
    /// With what is rounded between kernels: what the definition is taken of.
    rounded: Graph,
    pub(super) given: Vec<Tensor>,
    bound: Bound,
    /// Or why there is no plan.
    pub(super) compiled: Result<Compiled, String>,
}

/// What results may differ by.
#[derive(Clone, Copy, PartialEq)]
enum Bound {
    /// By the rounding of what is stored.
    Stored(DType),
    /// By so many steps of eleven bits of each term.
    Rounded(f64),
    /// By the order of a library's sums.
    Sums,
    /// By the rounding of what is stored, and of what lies between a library's product and the functions that follow.
    Between(DType),
}

/// What is wanted of a trial.
pub(super) struct Wanted {
    pub(super) outputs: Vec<Tensor>,
    pub(super) allowed: Vec<Allowed>,
}

impl Trial {
    fn new(name: String, graph: Graph, given: Vec<Tensor>, bound: Bound, target: &CudaTarget) -> Trial {
        let (rounded, compiled) = compile(&graph, target);
        Trial { name, graph, rounded, given, bound, compiled }
    }

    /// By the definition.
    pub(super) fn wanted(&self) -> Result<Wanted, String> {
        let Trial { rounded, given, .. } = self;
        let failed = |error: ir::EvalError| format!("the definition has no result: {error}");
        let outputs = evaluate(rounded, given).map_err(failed)?;
        let allowed = match self.bound {
            Bound::Stored(dtype) => outputs.iter().map(|want| Allowed::of(want, dtype)).collect(),
            Bound::Rounded(steps) => vec![Allowed::of_rounded(rounded, given, steps).map_err(failed)?],
            Bound::Between(dtype) => {
                vec![Allowed::of_rounded_between(rounded, given, dtype).map_err(failed)?]
            }
            Bound::Sums => vec![Allowed::of_sums(rounded, given).map_err(failed)?],
        };
        Ok(Wanted { outputs, allowed })
    }
}

/// A case in the numbers of a target. Of halves there are two: with all numbers in them, and with those between kernels, where
/// there are some. Of operands that emitted kernels round there are two as well: some that eleven bits hold, whose products are
/// exact, and others.
pub(super) fn trials(case: &Case, on: &On, libraries: Libraries) -> Vec<Trial> {
    let target = &on.device.target;
    let Case { name, graph } = case;
    let trial =
        |name: String, graph: Graph, given: Vec<Tensor>, bound: Bound| Trial::new(name, graph, given, bound, target);
    let plain = |bound: Bound| trial(name.clone(), graph.clone(), inputs(graph, SEED), bound);
    let dtype = on.numbers.dtype();
    if dtype.is_half() {
        let own = plain(Bound::Stored(dtype));
        let all = in_halves(graph, dtype).filter(|_| has(graph, DType::F32)).map(|graph| {
            let (given, name) = (inputs(&graph, SEED), format!("{name}, all {dtype}"));
            let is_between = library(&graph, libraries).is_some() && has_activation(&graph);
            let bound = if is_between { Bound::Between(dtype) } else { Bound::Stored(dtype) };
            trial(name, graph, given, bound)
        });
        let is_kept = all.is_none() || (has(&own.rounded, dtype) && !has(graph, dtype));
        return Some(own).filter(|_| is_kept).into_iter().chain(all).collect();
    }
    match rounding(graph, on.numbers, libraries) {
        Rounding::None => vec![plain(Bound::Stored(DType::F32))],
        Rounding::Sums => vec![plain(Bound::Sums)],
        // Functions that follow make at most twice of a difference.
        Rounding::Library(steps) => {
            vec![plain(Bound::Rounded(if has_activation(graph) { 2.0 * steps } else { steps }))]
        }
        Rounding::Operands => {
            let exact = with_known(graph, of_eleven_bits);
            let given = inputs(graph, SEED).iter().map(of_eleven_bits).collect();
            let exact = trial(format!("{name}, of eleven bits"), exact, given, Bound::Stored(DType::F32));
            // What follows a sum may make more of a difference than it is.
            let rough = (!has_activation(graph)).then(|| plain(Bound::Rounded(1.0)));
            rough.into_iter().chain([exact]).collect()
        }
    }
}

/// How results of `f32` are rounded beside what is stored.
enum Rounding {
    None,
    /// A library adds in an order of its own, or by Winograd's algorithm.
    Sums,
    /// Operands are rounded to eleven bits, and nothing else.
    Operands,
    /// A library does so, or rounds what Winograd's algorithm makes of them; a product is off by so many steps.
    Library(f64),
}

fn rounding(graph: &Graph, numbers: Numbers, libraries: Libraries) -> Rounding {
    if !is_product(graph) {
        return Rounding::None;
    }
    match (library(graph, libraries), numbers) {
        // It may cut operands off instead of rounding them: each is off by twice as much.
        (Some(Math::Tf32), _) => Rounding::Library(2.0),
        (_, Numbers::Tf32) => Rounding::Operands,
        (Some(_), _) => Rounding::Sums,
        (None, _) => Rounding::None,
    }
}

/// How the library computes that is asked for the one product that a graph is; none where there is none.
fn library(graph: &Graph, libraries: Libraries) -> Option<Math> {
    let is_conv = graph.nodes().values().any(|node| matches!(node.op, Op::Conv(_)));
    if is_conv { libraries.cudnn } else { libraries.cublas }.filter(|_| is_one_product(graph))
}

fn has(graph: &Graph, dtype: DType) -> bool {
    graph.values().values().any(|value| value.ty.dtype == dtype)
}

/// A graph as its results are rounded between kernels, and its plan.
pub(super) fn compile(graph: &Graph, target: &CudaTarget) -> (Graph, Result<Compiled, String>) {
    let mut rounded = graph.clone();
    let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
    let compiled = compiler::compile(model, target, None, |pass, graph| {
        if pass == "convert_to_half" {
            rounded = graph.clone();
        }
    });
    (rounded, compiled.map_err(|error| error.to_string()))
}
