//! Test cases of every operator, each a small graph with a name. Every executor must pass them: on a CPU, behind the
//! shim and on a GPU.
//!
//! [`all`] returns the cases of all kinds: [`pointwise`], [`bytes`], [`windows`], [`reductions`], [`moves`],
//! [`products`], [`transformers`], [`recurrent`], [`training`]. With few exceptions, extents are small, odd, and around the sizes
//! into which kernels divide work: tiles of 64 and 128, stages of 16 and 32 terms, blocks of 256 threads. [`forms`]
//! converts a case to half precision or its constants to TF32; [`judge`] defines the allowed differences,
//! and [`bounds`] those of graphs of several products. [`networks`]
//! generates whole networks, and [`naive`] the memory plan that their arenas are compared with. This crate
//! runs no kernel: the definition is `ir::evaluate`.

#[cfg(test)]
mod axes;
pub mod bounds;
pub mod bytes;
pub mod forms;
#[cfg(test)]
mod gradients;
pub mod judge;
pub mod moves;
pub mod naive;
pub mod networks;
pub mod pointwise;
pub mod products;
pub mod recurrent;
pub mod reductions;
pub mod training;
pub mod transformers;
pub mod windows;

use ir::{Graph, Op, ValueId};
use types::{DType, Random, Scope, Shape, Tensor};

/// A graph with a name.
#[derive(Clone, Debug)]
pub struct Case {
    /// The kind of case with its extents; unique.
    pub name: String,
    /// The graph to run.
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

/// The dtype of most cases.
pub(crate) const F: DType = DType::F32;

/// A slice as the list type of an op's attributes.
pub(crate) fn dims<T: Copy, L: FromIterator<T>>(items: &[T]) -> L {
    items.iter().copied().collect()
}

/// The cases of every kind.
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
        training::all,
        training::kept_gates,
        training::updates_by_factors,
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
