//! Recurrent layers whose steps run on tensor cores, against their definition.

use cases::forms::is_recurrent;
use cases::judge::{Allowed, Verdict, inputs};
use ir::{Graph, evaluate};
use types::DType;

use super::{ADDRESSES, run_given, target};

/// Layers of all cells with constant weights, in each precision that tensor cores multiply.
#[test]
fn steps_on_tensor_cores_match_the_definition_under_a_sanitizer() {
    let test = "cuda::recurrent::steps_on_tensor_cores_match_the_definition_under_a_sanitizer";
    let all = cases::recurrent::all().into_iter().map(|case| (case.name, case.graph));
    let is_whole = |(_, graph): &(String, Graph)| graph.ty(graph.inputs()[0]).shape.elements() != 0;
    let graphs: Vec<(String, Graph)> = all.filter(|case| is_recurrent(&case.1) && is_whole(case)).collect();
    assert!(24 < graphs.len(), "{}", graphs.len());
    for (name, dtype) in [("f16", DType::F16), ("bf16", DType::Bf16), ("tf32", DType::F32)] {
        let target = if dtype == DType::F32 { target(dtype).rounding() } else { target(dtype) };
        let flags: &[&str] = if dtype == DType::F16 { &ADDRESSES } else { &["-O1"] };
        let given = graphs.iter().map(|(_, graph)| inputs(graph, 3)).collect();
        let Some(runs) = run_given(test, &format!("cuda-recurrent-{name}"), &graphs, given, &target, flags) else {
            return;
        };
        let (mut wrong, mut rounded) = (Vec::new(), 0);
        for ((name, graph), run) in graphs.iter().zip(&runs) {
            let want = evaluate(graph, &run.given).expect("the graph verifies");
            for (got, want) in run.got.iter().zip(&want) {
                let verdict = Verdict::of(got, want, &Allowed::of_states(want, dtype)).expect("types agree");
                wrong.extend(verdict.first.map(|first| format!("{name}: {first}")));
                rounded += usize::from(0.01 < verdict.part);
            }
        }
        assert!(wrong.is_empty(), "{name}, {} differ:\n{}", wrong.len(), wrong.join("\n"));
        assert!(graphs.len() / 2 < rounded, "{name}: operands are rounded: of {rounded} in {}", graphs.len());
    }
}
