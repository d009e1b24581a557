//! Cases of every operator, each a small graph with a name: what every executor is held to, on a processor, behind the shim
//! and on a GPU.
//!
//! [`all`] has them, by kind: [`pointwise`], [`bytes`], [`windows`], [`reductions`], [`moves`], [`products`],
//! [`transformers`], [`recurrent`]. Extents are small but for a few, odd, and on both sides of what kernels cut work into:
//! tiles of 64 and 128, stages of 16 and 32 terms, blocks of 256 threads. [`forms`] stores a case in halves or in eleven
//! bits; [`judge`] says what results may differ by, and why. Nothing here runs anything: the definition is `ir::evaluate`.

#[cfg(test)]
mod axes;
pub mod bytes;
pub mod forms;
pub mod judge;
pub mod moves;
pub mod pointwise;
pub mod products;
pub mod recurrent;
pub mod reductions;
pub mod transformers;
pub mod windows;

use ir::{Graph, Op, ValueId};
use types::{DType, Random, Scope, Shape, Tensor};

/// A graph with a name.
#[derive(Clone, Debug)]
pub struct Case {
    /// What sort of case it is, with its extents; no two have the same.
    pub name: String,
    /// What is computed.
    pub graph: Graph,
}

/// A case of one op on inputs of the given types.
pub(crate) fn case(name: &str, op: impl Into<Op>, types: &[(DType, &[usize])]) -> Case {
    let mut graph = Graph::new(name);
    let ids: Vec<ValueId> = types
        .iter()
        .enumerate()
        .map(|(ix, (dtype, shape))| graph.add_input(&format!("x{ix}"), *dtype, (*shape).into()))
        .collect();
    let y = graph.add1(op.into(), &ids, Scope::new("node")).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    graph.set_outputs(vec![("y".into(), y)]);
    Case { name: name.into(), graph }
}

/// A case of one op whose operands after the first are weights.
pub(crate) fn with_weights(name: &str, op: impl Into<Op>, x: &[usize], weights: &[&[usize]]) -> Case {
    let mut graph = Graph::new(name);
    let mut ids = vec![graph.add_input("x", DType::F32, x.into())];
    for (ix, shape) in weights.iter().enumerate() {
        let mut random = Random::for_name(5, &format!("{name}/{ix}"));
        let tensor = Tensor::from_fn(Shape::from(*shape), |_| random.uniform(-1.0, 1.0));
        ids.push(graph.add_weight(&format!("w{ix}"), tensor));
    }
    let y = graph.add1(op.into(), &ids, Scope::new("node")).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    graph.set_outputs(vec![("y".into(), y)]);
    Case { name: name.into(), graph }
}

/// What most cases are stored as.
pub(crate) const F: DType = DType::F32;

/// A short list as the list that attributes have.
pub(crate) fn dims<T: Copy, L: FromIterator<T>>(items: &[T]) -> L {
    items.iter().copied().collect()
}

/// Every case.
pub fn all() -> Vec<Case> {
    let kinds = [
        pointwise::all,
        bytes::all,
        windows::convolutions,
        reductions::all,
        moves::all,
        products::all,
        transformers::all,
        recurrent::all,
    ];
    kinds.iter().flat_map(|cases| cases()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_case_has_a_name_of_its_own_and_verifies() {
        let cases = all();
        let mut names = BTreeSet::new();
        for Case { name, graph } in &cases {
            assert!(names.insert(name), "two cases are called {name}");
            assert_eq!(ir::verify(graph), Ok(()), "{name}");
        }
    }
}
