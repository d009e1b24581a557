//! How conformance is tried here: by compiled plans.

use ir::Graph;
use types::Tensor;

use crate::conformance::Refusal;
use crate::support::{compiled, open};

pub(crate) const SNAPSHOT: &str = "tests/it/refusals.txt";

pub(crate) fn execute(graph: Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Refusal> {
    let compiled = compiled(graph).map_err(|error| Refusal::Load(error.to_string()))?;
    open(&compiled, 2).run_tensors(inputs).map_err(|error| Refusal::Wrong(error.to_string()))
}
