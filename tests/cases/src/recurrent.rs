//! Recurrent networks.

use ir::Graph;
use ir::ops::*;
use types::{Random, Scope, Shape, Tensor, pointwise, recurrent};

use crate::{Case, F};

/// Recurrent networks with constant and with dynamic weights; all outputs are results of the graph.
pub fn all() -> Vec<Case> {
    use pointwise::Unary as U;
    use recurrent::{Cell, Direction, Reset};
    let cells = [
        Cell::LSTM,
        Cell::Lstm { activation: [U::HardSigmoid { alpha: 0.2, beta: 0.5 }, U::Tanh, U::Softsign], peepholes: true },
        Cell::gru(Reset::BeforeProduct),
        Cell::gru(Reset::AfterProduct),
        Cell::Rnn { activation: U::Relu },
        Cell::Rnn { activation: U::Tanh },
    ];
    let mut random = Random::new(23);
    let mut shapes = vec![[0, 2, 3], [5, 1, 128], [2, 17, 40], [3, 33, 24], [2, 70, 50]];
    shapes
        .extend((0..6).map(|_| [1 + random.below(8), 1 + random.below(5), 1 + random.below(130)].map(|n| n as usize)));
    let mut cases = Vec::new();
    for (ix, [seq, batch, units]) in shapes.into_iter().enumerate() {
        for (number, cell) in cells.iter().enumerate() {
            let direction = [Direction::Forward, Direction::Reverse, Direction::Bidirectional][(ix + number) % 3];
            let (d, columns) = (direction.count(), cell.gates() * units);
            let op = Recurrent { cell: cell.clone(), direction };
            let name = format!("{op:?} {seq} x {batch} x {units}");
            let mut graph = Graph::new(&name);
            let mut ids = vec![graph.add_input("gates", F, Shape::from([seq, batch, d * columns]))];
            let is_known = (ix + number) % 2 == 0;
            let bound = (1.0 / units as f32).sqrt();
            ids.push(match is_known {
                true => graph.add_weight(
                    "r",
                    Tensor::from_fn(Shape::from([d, columns, units]), |_| random.uniform(-bound, bound)),
                ),
                // Larger weights would make the recurrence chaotic: rounding errors would grow with every iteration.
                false => {
                    let r = graph.add_input("r", F, Shape::from([d, columns, units]));
                    let bound = graph.add_constant("bound", Tensor::scalar(bound));
                    let scaled = graph.add1(Binary(pointwise::Binary::Mul).into(), &[r, bound], Scope::new("scaled"));
                    scaled.expect("the case is well made")
                }
            });
            ids.push(graph.add_input("h", F, Shape::from([d, batch, units])));
            if cell.has_memory() {
                ids.push(graph.add_input("c", F, Shape::from([d, batch, units])));
            }
            if 0 < cell.extras() {
                let extra = Tensor::from_fn(Shape::from([d, cell.extras() * units]), |_| random.uniform(-1.0, 1.0));
                ids.push(graph.add_weight("extra", extra));
            }
            let outputs = graph.add(op.into(), &ids, Scope::new("node")).expect("the case is well made");
            let named = outputs.iter().enumerate().map(|(ix, &output)| (format!("y{ix}"), output));
            graph.set_outputs(named.collect());
            cases.push(Case { name, graph });
        }
    }
    cases
}
