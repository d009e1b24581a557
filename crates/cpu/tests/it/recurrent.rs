//! Recurrent networks against their formulas in `f64`, on every ISA and several numbers of threads.

use prestow_cpu::{Isa, Kernel, Pool, Recurrent, RecurrentGradient, StorageType, Weights};
use types::Random;
use types::pointwise::Unary;
use types::recurrent::{Cell, Direction, Reset};

use super::common::{cases, numbers_of, pools, run_bytes, run_over};

struct Case {
    kernel: Recurrent,
    gates: Vec<f32>,
    weight: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
    extra: Vec<f32>,
}

impl Case {
    fn new(kernel: Recurrent, random: &mut Random) -> Case {
        let Recurrent { cell, direction, seq, batch, units, .. } = &kernel;
        let columns = direction.count() * cell.gates() * units;
        // Rows of the weights have length 1, so that gates neither saturate nor stay constant.
        let bound = (3.0 / (*units).max(1) as f32).sqrt();
        let mut numbers =
            |len: usize, bound: f32| -> Vec<f32> { (0..len).map(|_| random.uniform(-bound, bound)).collect() };
        Case {
            gates: numbers(seq * batch * columns, 2.0),
            weight: numbers(columns * units, bound),
            h: numbers(direction.count() * batch * units, 1.0),
            c: numbers(direction.count() * batch * units, 2.0),
            extra: numbers(direction.count() * cell.extras() * units, 1.0),
            kernel,
        }
    }

    /// The states after all steps, the last `h` and the last `c`.
    fn want(&self) -> Vec<Vec<f64>> {
        let Recurrent { cell, direction, seq, batch, units, .. } = &self.kernel;
        let (directions, n_gates, units) = (direction.count(), cell.gates(), *units);
        let wide = |items: &[f32]| items.iter().map(|&item| f64::from(item)).collect::<Vec<f64>>();
        let (gates, weight, extra) = (wide(&self.gates), wide(&self.weight), wide(&self.extra));
        let (mut h, mut c) = (wide(&self.h), wide(&self.c));
        let mut y = vec![0.0; seq * h.len()];
        for (direction, row) in (0..directions).flat_map(|direction| (0..*batch).map(move |row| (direction, row))) {
            for step in 0..*seq {
                let backwards = direction == 1 || self.kernel.direction == Direction::Reverse;
                let position = if backwards { seq - 1 - step } else { step };
                let state = (direction * batch + row) * units;
                let old = h[state..state + units].to_vec();
                let x = |gate: usize, unit: usize| {
                    gates[(((position * batch + row) * directions + direction) * n_gates + gate) * units + unit]
                };
                let product = |gate: usize, unit: usize, from: &[f64]| -> f64 {
                    let row = ((direction * n_gates + gate) * units + unit) * units;
                    (0..units).map(|k| from[k] * weight[row + k]).sum()
                };
                let more = |row: usize, unit: usize| extra[(direction * cell.extras() + row) * units + unit];
                for unit in 0..units {
                    let at = state + unit;
                    let sum = |gate: usize| x(gate, unit) + product(gate, unit, &old);
                    h[at] = match cell {
                        Cell::Lstm { activation: [f, g, out], peepholes } => {
                            let hole = |row: usize, c: f64| if *peepholes { more(row, unit) * c } else { 0.0 };
                            let [input, forget] =
                                [(0, 0), (2, 2)].map(|(gate, row)| f.eval(sum(gate) + hole(row, c[at])));
                            c[at] = forget * c[at] + input * g.eval(sum(3));
                            f.eval(sum(1) + hole(1, c[at])) * out.eval(c[at])
                        }
                        Cell::Gru { activation: [f, g], reset } => {
                            let gate = |unit: usize| f.eval(x(1, unit) + product(1, unit, &old));
                            let candidate = match reset {
                                Reset::AfterProduct => gate(unit) * (product(2, unit, &old) + more(0, unit)),
                                Reset::BeforeProduct => {
                                    let kept: Vec<f64> = (0..units).map(|k| gate(k) * old[k]).collect();
                                    product(2, unit, &kept)
                                }
                            };
                            let update = f.eval(sum(0));
                            (1.0 - update) * g.eval(x(2, unit) + candidate) + update * old[unit]
                        }
                        Cell::Rnn { activation } => activation.eval(sum(0)),
                    };
                }
                let at = ((position * directions + direction) * batch + row) * units;
                y[at..at + units].copy_from_slice(&h[state..state + units]);
            }
        }
        if cell.has_memory() { vec![y, h, c] } else { vec![y, h] }
    }

    /// The kernel's results over memory that holds NaN.
    fn run(&self, pool: &Pool) -> Vec<Vec<f32>> {
        let packed = match self.kernel.weights {
            Weights::Packed => self.kernel.pack(&self.weight),
            Weights::Dynamic => self.weight.clone(),
        };
        let mut operands = vec![&self.gates, &packed, &self.h];
        if self.kernel.cell.has_memory() {
            operands.push(&self.c);
        }
        if 0 < self.kernel.cell.extras() {
            operands.push(&self.extra);
        }
        let operands: Vec<&[f32]> = operands.into_iter().map(Vec::as_slice).collect();
        run_over(&self.kernel.clone().into(), &operands, None, f32::NAN, pool)
    }
}

fn cells() -> Vec<Cell> {
    let sigmoid_tanh = [Unary::Sigmoid, Unary::Tanh];
    vec![
        Cell::LSTM,
        Cell::Lstm { activation: [Unary::Sigmoid, Unary::Tanh, Unary::Tanh], peepholes: true },
        Cell::Lstm {
            activation: [Unary::HardSigmoid { alpha: 0.2, beta: 0.5 }, Unary::Softsign, Unary::Tanh],
            peepholes: false,
        },
        Cell::Gru { activation: sigmoid_tanh, reset: Reset::BeforeProduct },
        Cell::Gru { activation: sigmoid_tanh, reset: Reset::AfterProduct },
        Cell::Rnn { activation: Unary::Tanh },
        Cell::Rnn { activation: Unary::Sigmoid },
    ]
}

#[test]
fn recurrent_cells_match_their_formulas() {
    let mut random = Random::new(17);
    let pools: Vec<Pool> = pools([1, 2, 3, 5]).into_iter().flatten().collect();
    let mut shapes = vec![[0, 2, 5], [3, 0, 4], [3, 2, 0], [1, 1, 1], [9, 15, 33], [30, 1, 128], [4, 29, 16]];
    shapes.extend(
        (0..cases(40)).map(|_| [1 + random.below(9), 1 + random.below(5), 1 + random.below(130)].map(|n| n as usize)),
    );
    for (ix, [seq, batch, units]) in shapes.into_iter().enumerate() {
        for (number, cell) in cells().into_iter().enumerate() {
            let direction = [Direction::Forward, Direction::Reverse, Direction::Bidirectional][(ix + number) % 3];
            let weights = [Weights::Packed, Weights::Dynamic][(ix / 2 + number) % 2];
            let kernel = Recurrent { cell, direction, seq, batch, units, weights, keeps_gates: false };
            let case = Case::new(kernel, &mut random);
            let want = case.want();
            let mut first: Option<(Isa, Vec<Vec<f32>>)> = None;
            for pool in &pools {
                let got = case.run(pool);
                assert_eq!(got.len(), want.len());
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got.len(), want.len());
                    let worst = got.iter().zip(want).map(|(&got, want)| (f64::from(got) - want).abs());
                    // Sums of at most 130 products of numbers about 1, through at most 30 steps with forgetting. NaN
                    // fails the comparison.
                    let near = worst.clone().all(|difference| difference < 1e-5);
                    assert!(near, "{:?}, {}, {} threads", case.kernel, pool.isa(), pool.threads());
                }
                match &first {
                    Some((isa, bits)) if *isa == pool.isa() => assert_eq!(*bits, got, "{:?}", case.kernel),
                    _ => first = Some((pool.isa(), got)),
                }
            }
        }
    }
}

/// An LSTM that keeps the values of its gates has the same results, and its gradient follows from them.
#[test]
fn kept_gates_replace_their_operands() {
    let mut random = Random::new(83);
    let of = |bytes: &[u8]| numbers_of(StorageType::F32, bytes);
    for pools in pools([1, 3]) {
        for (ix, [seq, batch, units]) in
            [[1, 1, 1], [6, 3, 5], [4, 17, 32], [5, 2, 100], [3, 201, 18]].into_iter().enumerate()
        {
            for peepholes in [false, true] {
                let cell = Cell::Lstm { activation: [Unary::Sigmoid, Unary::Tanh, Unary::Softsign], peepholes };
                let direction = [Direction::Forward, Direction::Reverse, Direction::Bidirectional][ix % 3];
                let weights = Weights::Dynamic;
                let layer = Recurrent { cell, direction, seq, batch, units, weights, keeps_gates: false };
                let case = Case::new(layer.clone(), &mut random);
                let parameters = [&case.weight, &case.h, &case.c, &case.extra];
                let parameters = &parameters[..if peepholes { 4 } else { 3 }];
                let bytes = |items: &[f32]| StorageType::F32.bytes(items);
                let mut operands = vec![bytes(&case.gates)];
                operands.extend(parameters.iter().map(|items| bytes(items)));
                let plain = run_bytes(&layer.clone().into(), &operands, None, 7.0, &pools[0]);
                let keeping = Kernel::from(Recurrent { keeps_gates: true, ..layer.clone() });
                let apart = run_bytes(&keeping, &operands, None, 7.0, &pools[1]);
                let in_place = run_bytes(&keeping, &operands, Some(0), f32::NAN, &pools[0]);
                assert!(apart == in_place && apart[1..] == plain[..], "{keeping:?}");
                let Recurrent { cell, .. } = layer;
                let again = RecurrentGradient { cell, direction, seq, batch, units, values: false };
                let dy: Vec<f32> = of(&plain[0]).iter().map(|_| random.uniform(-1.0, 1.0)).collect();
                let mut gradients = operands[1..].to_vec();
                gradients.push(plain[0].clone());
                gradients.push(bytes(&dy));
                gradients.extend([bytes(&case.c), bytes(&case.h)]);
                let from = |gates: &[u8], kernel: RecurrentGradient| {
                    let inputs: Vec<Vec<u8>> = [gates.to_vec()].into_iter().chain(gradients.iter().cloned()).collect();
                    run_bytes(&kernel.into(), &inputs, None, 7.0, &pools[1])
                };
                let want = from(&operands[0], again.clone());
                let got = from(&apart[0], RecurrentGradient { values: true, ..again });
                for (got, want) in got.iter().zip(&want) {
                    let (got, want) = (of(got), of(want));
                    let largest = want.iter().fold(1.0f32, |largest, item| largest.max(item.abs()));
                    let near = got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5 * largest);
                    assert!(near, "{keeping:?}");
                }
            }
        }
    }
}

#[test]
fn recurrent_gradients_in_place_equal_those_apart() {
    let mut random = Random::new(61);
    for pools in pools([1, 2]) {
        for (number, cell) in cells().into_iter().enumerate() {
            let direction = [Direction::Forward, Direction::Reverse, Direction::Bidirectional][number % 3];
            for direction in [direction, Direction::Bidirectional] {
                // One step, several in one chunk, several chunks.
                for [seq, batch] in [[1, 3], [5, 2], [7, 200]] {
                    let (cell, units) = (cell.clone(), 1 + number * 9);
                    let values = cell.gradient_follows_from_gates() && batch == 2;
                    let kernel = RecurrentGradient { cell: cell.clone(), direction, seq, batch, units, values };
                    let in_place = if cell.saves_gates() { 0 } else { 3 };
                    let kernel = Kernel::from(kernel);
                    let sizes = kernel.sizes().expect("the functions have derivatives").inputs;
                    let inputs: Vec<Vec<u8>> = sizes
                        .iter()
                        .map(|&bytes| (0..bytes / 4).map(|_| random.uniform(-0.5, 0.5)).collect::<Vec<f32>>())
                        .map(|numbers| StorageType::F32.bytes(&numbers))
                        .collect();
                    let apart = run_bytes(&kernel, &inputs, None, 7.0, &pools[0]);
                    let together = run_bytes(&kernel, &inputs, Some(in_place), f32::NAN, &pools[1]);
                    assert!(apart == together, "{kernel:?}");
                }
            }
        }
    }
}
