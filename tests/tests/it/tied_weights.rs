//! A table of embeddings and the projection onto its vocabulary, which models share and exporters write twice.

use ir::ops::{Gather, MatMul, Unary};
use ir::{Graph, ValueId};
use types::{DType, Random, Scope, Shape, Tensor, pointwise};

use crate::support::{compiled, difference, open};

pub(crate) const TOKENS: usize = 7;

/// Words to scores of words. The projection is the table transposed, but for one element if it is `untied`.
pub(crate) fn language_model(words: usize, width: usize, is_tied: bool) -> Graph {
    let mut random = Random::new(11);
    let items: Vec<f32> = (0..words * width).map(|_| random.uniform(-1.0, 1.0)).collect();
    let mut graph = Graph::new("tied");
    let ids = graph.add_input("ids", DType::I64, Shape::from([1, TOKENS]));
    let table = graph.add_weight("table", Tensor::from_fn(Shape::from([words, width]), |at| items[at]));
    let classes = Tensor::from_fn(Shape::from([width, words]), |at| {
        let changed = if is_tied || 0 < at { 0.0 } else { 1.0 };
        items[at % words * width + at / words] + changed
    });
    let classes = graph.add_weight("classes", classes);
    let mut add = |op: ir::Op, inputs: &[ValueId], name: &str| {
        graph.add1(op, inputs, Scope::new(name)).expect("the op takes these")
    };
    let x = add(Gather { axis: 0 }.into(), &[table, ids], "words");
    let x = add(Unary(pointwise::Unary::Tanh).into(), &[x], "tanh");
    let y = add(MatMul::default().into(), &[x, classes], "scores");
    graph.set_outputs(vec![("y".into(), y)]);
    graph
}

#[test]
fn tied_table_and_projection_are_one_constant() {
    // Widths and vocabularies on both sides of strips of 16 and 32 columns.
    for (words, width) in [(5, 3), (16, 8), (33, 9), (48, 16), (65, 4), (100, 33)] {
        for is_tied in [true, false] {
            let graph = language_model(words, width, is_tied);
            let compiled = compiled(graph.clone()).expect("it compiles");
            let tensors = compiled.plan.constants.iter().filter(|constant| constant.shape.rank() == 2).count();
            assert_eq!(tensors, if is_tied { 1 } else { 2 }, "{words} words of {width}");
            let last = words as i64 - 1;
            let ids = [0, last, 1, last / 2, 3, 2, last];
            let ids = Tensor::from_fn(Shape::from([1, TOKENS]), |at| ids[at]);
            let x = [ids];
            let want = ir::evaluate(&graph, &x).expect("the input fits");
            let got = open(&compiled, 2).run_tensors(&x).expect("the input fits");
            assert_eq!(difference(&got[0], &want[0], 1e-5, 1e-5), None, "{words} words of {width}");
        }
    }
}
