//! The ONNX backend tests with compiled plans.

use ir::Graph;
use onnx_suite::{Failure, check_suite};
use types::Tensor;

use crate::environment;
use crate::support::{compiled, data, open};

#[test]
fn backend_tests_pass_with_compiled_plans() {
    let Some(root) = data("backend_tests_pass_with_compiled_plans", "onnx-test-data") else { return };
    check_suite(&root, environment("PRESTOW_BLESS").is_some(), &execute);
}

fn execute(graph: Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
    let compiled = compiled(graph).map_err(|error| Failure::Unsupported(error.to_string()))?;
    open(&compiled, 2).run_tensors(inputs).map_err(|error| Failure::Defect(error.to_string()))
}
