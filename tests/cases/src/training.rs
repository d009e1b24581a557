//! Operators of training steps: normalization with batch statistics, dropout, losses, gradients and updates.

use ir::ops::*;
use ir::{Graph, Op, ValueId};
use types::update::{Adadelta, Adagrad, Adam, Lamb, Lion, RmsProp, Sgd, UpdateRule};
use types::{DType, Scope, Shape, pointwise};

use crate::{Case, F, case, dims};

/// Every operator of training.
pub fn all() -> Vec<Case> {
    [
        run_time_weights(),
        convolution_gradients(),
        pool_gradients(),
        normalizations(),
        losses(),
        scatters(),
        dropouts(),
        updates(),
        recurrent(false),
    ]
    .concat()
}

/// A graph under construction.
struct Maker(Graph);

impl Maker {
    fn new(name: &str) -> Maker {
        Maker(Graph::new(name))
    }

    fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> ValueId {
        self.0.add_input(name, dtype, shape.into())
    }

    fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId], scope: &str) -> Vec<ValueId> {
        let name = self.0.name.clone();
        let outputs = self.0.add(op.into(), inputs, Scope::new(scope));
        outputs.unwrap_or_else(|refusal| panic!("{name}: {refusal}")).to_vec()
    }

    fn case(mut self, outputs: &[ValueId]) -> Case {
        let named = outputs.iter().enumerate().map(|(ix, &output)| (format!("y{ix}"), output)).collect();
        self.0.set_outputs(named);
        Case { name: self.0.name.clone(), graph: self.0 }
    }
}

/// Convolutions, data gradients and products whose weights are run-time values, as those of a network in training. Most
/// have as many channels as it takes for blocked layouts.
fn run_time_weights() -> Vec<Case> {
    // Input, output channels, side of the kernel, stride, dilation, pad, groups.
    type Row<'a> = (&'a [usize], usize, usize, usize, usize, usize, usize);
    let rows: &[Row] = &[
        (&[2, 32, 16, 16], 64, 3, 1, 1, 1, 1),
        (&[2, 64, 17, 15], 32, 3, 2, 1, 1, 1),
        (&[1, 48, 14, 14], 40, 1, 1, 1, 0, 1),
        (&[3, 64, 14, 14], 32, 1, 2, 1, 0, 1),
        (&[2, 32, 14, 14], 32, 3, 1, 1, 1, 32),
        (&[2, 32, 15, 15], 32, 3, 2, 1, 1, 32),
        (&[1, 64, 12, 12], 64, 3, 1, 1, 1, 2),
        (&[2, 3, 23, 23], 32, 7, 2, 1, 3, 1),
        (&[1, 32, 16, 16], 33, 3, 1, 2, 2, 1),
        (&[2, 20, 12, 12], 50, 5, 1, 1, 0, 1),
        (&[1, 64, 7, 7], 128, 3, 1, 1, 1, 1),
    ];
    let mut cases = Vec::new();
    for &(shape, channels, side, stride, dilation, pad, groups) in rows {
        let (pads, stride, dilation) = ([[pad, pad]; 2], [stride; 2], [dilation; 2]);
        let weights = [channels, shape[1] / groups, side, side];
        for bias in [false, true] {
            let epilogue = Epilogue { bias, ..Epilogue::default() };
            let conv =
                Conv { stride: dims(&stride), dilation: dims(&dilation), pad: dims(&pads), groups, zero: 0, epilogue };
            let mut maker = Maker::new(&format!("run-time weights {weights:?} of {shape:?}, {conv:?}"));
            let x = maker.input("x", F, shape);
            let weight = maker.input("weight", F, &weights);
            // Smaller weights keep all sums near 1.
            let smaller = Unary(pointwise::Unary::Affine { scale: 0.0625, shift: 0.0 });
            let mut operands = vec![x, maker.add(smaller, &[weight], "smaller")[0]];
            operands.extend(bias.then(|| maker.input("bias", F, &[channels])));
            let y = maker.add(conv, &operands, "conv")[0];
            let y = maker.add(Unary(pointwise::Unary::Relu), &[y], "relu")[0];
            if bias {
                cases.push(maker.case(&[y]));
                continue;
            }
            let places = maker.0.ty(y).shape.clone();
            let reach = (side - 1) * dilation[0] + 1;
            let output_pad = [2, 3].map(|axis| shape[axis] + 2 * pad - reach - (places[axis] - 1) * stride[0]);
            let gradient = ConvTranspose {
                stride: dims(&stride),
                dilation: dims(&dilation),
                pad: dims(&pads),
                output_pad: dims(&output_pad),
                groups,
                epilogue: Epilogue::default(),
            };
            let dx = maker.add(gradient, &[y, operands[1]], "data")[0];
            let gradient = ConvWeightGradient {
                stride: dims(&stride),
                dilation: dims(&dilation),
                pad: dims(&pads),
                groups,
                kernel: dims(&[side; 2]),
            };
            let dw = maker.add(gradient, &[x, y], "weight")[0];
            cases.push(maker.case(&[dx, dw]));
        }
    }
    for (m, k, n) in [(3, 5, 7), (9, 70, 33), (40, 130, 64)] {
        for batch in [&[][..], &[2, 3]] {
            let op = MatMul { transposed: true, ..MatMul::default() };
            let shapes = [batch, &[m, k]].concat();
            let right = [batch, &[n, k]].concat();
            cases.push(case(&format!("{batch:?} {m} x {k} by {n} rows"), op, &[(F, &shapes), (F, &right)]));
        }
    }
    cases
}

/// Weight gradients of convolutions: plain, strided, dilated, padded on one side, grouped, depthwise, of 1 to 3 axes.
fn convolution_gradients() -> Vec<Case> {
    // Input, output channels, kernel, stride, dilation, pad in front and behind, groups.
    type Row<'a> = (&'a [usize], usize, &'a [usize], usize, usize, [usize; 2], usize);
    let rows: &[Row] = &[
        (&[2, 3, 9, 7], 5, &[3, 3], 1, 1, [1, 1], 1),
        (&[3, 17, 6, 6], 33, &[1, 1], 1, 1, [0, 0], 1),
        (&[1, 4, 11, 8], 6, &[3, 2], 2, 1, [0, 1], 2),
        (&[2, 8, 10, 9], 8, &[3, 3], 1, 1, [1, 1], 8),
        (&[2, 8, 7, 7], 16, &[5, 3], 2, 1, [2, 1], 8),
        (&[2, 3, 12, 13], 4, &[3, 3], 2, 2, [2, 2], 1),
        (&[1, 3, 31, 31], 8, &[7, 7], 2, 1, [3, 3], 1),
        (&[4, 16, 14, 14], 24, &[3, 3], 1, 1, [1, 1], 1),
        (&[3, 5, 40], 7, &[4], 3, 1, [1, 2], 1),
        (&[1, 2, 4, 5, 6], 3, &[2, 2, 3], 1, 1, [1, 0], 1),
        (&[2, 3, 4, 4], 2, &[4, 4], 1, 1, [0, 0], 1),
    ];
    let gradient = |&(x, channels, kernel, stride, dilation, pad, groups): &Row| {
        let spatial = kernel.len();
        let op = ConvWeightGradient {
            stride: dims(&vec![stride; spatial]),
            dilation: dims(&vec![dilation; spatial]),
            pad: dims(&vec![pad; spatial]),
            groups,
            kernel: dims(kernel),
        };
        let places = |axis: usize| (x[2 + axis] + pad[0] + pad[1] - (kernel[axis] - 1) * dilation - 1) / stride + 1;
        let dy: Vec<usize> = [x[0], channels].into_iter().chain((0..spatial).map(places)).collect();
        case(&format!("weight gradient {x:?} by {kernel:?}, {op:?}"), op, &[(F, x), (F, &dy)])
    };
    rows.iter().map(gradient).collect()
}

/// Gradients of pools, of maxima both with positions and by search.
fn pool_gradients() -> Vec<Case> {
    let mut cases = Vec::new();
    let windows: [(&[usize], Pool); 6] = [
        (&[2, 3, 8, 8], Pool::square(PoolKind::Max, 2, 2, 0)),
        (&[1, 17, 9, 7], Pool::square(PoolKind::Max, 3, 2, 1)),
        (&[2, 5, 6, 6], Pool::square(PoolKind::Max, 3, 1, 1)),
        (&[1, 3, 7, 7], Pool { ceil: true, ..Pool::square(PoolKind::Max, 2, 2, 0) }),
        (&[1, 2, 11, 11], Pool { dilation: dims(&[2, 2]), ..Pool::square(PoolKind::Max, 3, 3, 2) }),
        (
            &[2, 3, 19],
            Pool {
                kernel: dims(&[4]),
                stride: dims(&[3]),
                dilation: dims(&[1]),
                pad: dims(&[[1, 0]]),
                ..Pool::square(PoolKind::Max, 1, 1, 0)
            },
        ),
    ];
    for (shape, pool) in windows {
        for kind in [PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding] {
            let pool = Pool { kind, ..pool.clone() };
            let mut maker = Maker::new(&format!("gradient of {pool:?} of {shape:?}"));
            let x = maker.input("x", F, shape);
            let y = maker.add(pool.clone(), &[x], "pool")[0];
            let extents = maker.0.ty(y).shape.clone();
            let dy = maker.input("dy", F, &extents);
            let operands: &[ValueId] = if kind == PoolKind::Max { &[dy, x] } else { &[dy] };
            let gradient = PoolGradient { pool: pool.clone(), extents: dims(&shape[2..]), positions: false };
            let dx = maker.add(gradient.clone(), operands, "gradient")[0];
            cases.push(maker.case(&[y, dx]));
            if kind == PoolKind::Max {
                let mut maker = Maker::new(&format!("gradient of {pool:?} of {shape:?} by positions"));
                let (x, dy) = (maker.input("x", F, shape), maker.input("dy", F, &extents));
                let results = maker.add(PoolWithPositions { pool }, &[x], "pool");
                let gradient = PoolGradient { positions: true, ..gradient };
                let dx = maker.add(gradient, &[dy, results[1]], "gradient")[0];
                cases.push(maker.case(&[results[0], dx]));
            }
        }
    }
    // Many equal elements: the first of a window takes the gradient. Channels as blocked layouts take them, and few.
    for channels in [3, 32] {
        for positions in [false, true] {
            let mut maker = Maker::new(&format!("gradient of a maximum of equal elements {channels} {positions}"));
            let (x, dy) = (maker.input("x", F, &[1, channels, 12, 12]), maker.input("dy", F, &[1, channels, 6, 6]));
            let x = maker.add(Unary(pointwise::Unary::Relu), &[x], "relu")[0];
            let pool = Pool::square(PoolKind::Max, 2, 2, 0);
            let read = match positions {
                true => maker.add(PoolWithPositions { pool: pool.clone() }, &[x], "pool")[1],
                false => x,
            };
            let op = PoolGradient { pool, extents: dims(&[12, 12]), positions };
            let dx = maker.add(op, &[dy, read], "gradient")[0];
            cases.push(maker.case(&[dx]));
        }
    }
    cases
}

/// Batch normalization with the statistics of the batch, and its gradient.
fn normalizations() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[4, 3, 5, 5][..], &[32, 16], &[2, 33, 7], &[1, 8, 16, 16], &[3, 1, 2, 3, 4]] {
        let op = BatchNormTraining { epsilon: 1e-5 };
        let mut maker = Maker::new(&format!("{op:?} of {shape:?}"));
        let x = maker.input("x", F, shape);
        let (scale, shift) = (maker.input("scale", F, &shape[1..2]), maker.input("shift", F, &shape[1..2]));
        let outputs = maker.add(op, &[x, scale, shift], "norm");
        cases.push(maker.case(&outputs));
        let op = BatchNormGradient { epsilon: 1e-3 };
        let mut maker = Maker::new(&format!("{op:?} of {shape:?}"));
        let (dy, x) = (maker.input("dy", F, shape), maker.input("x", F, shape));
        let (scale, mean) = (maker.input("scale", F, &shape[1..2]), maker.input("mean", F, &shape[1..2]));
        let root = maker.input("deviation", F, &shape[1..2]);
        let variance = squared(&mut maker, root);
        let outputs = maker.add(op, &[dy, x, scale, mean, variance], "gradient");
        cases.push(maker.case(&outputs));
    }
    cases
}

/// A value that is not negative.
fn squared(maker: &mut Maker, value: ValueId) -> ValueId {
    maker.add(Binary(pointwise::Binary::Mul), &[value, value], "square")[0]
}

/// Cross-entropies and their gradients, with ignored and smoothed labels.
fn losses() -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = SoftmaxCrossEntropy { ignore: None, smoothing: 0.0 };
    let ignoring = SoftmaxCrossEntropy { ignore: Some(1), ..plain.clone() };
    let smooth = SoftmaxCrossEntropy { smoothing: 0.1, ..ignoring.clone() };
    for (rows, classes, label) in
        [(&[7][..], 10, DType::I64), (&[3, 5], 33, DType::I32), (&[], 4, DType::I64), (&[2], 1000, DType::I32)]
    {
        for loss in [&plain, &ignoring, &smooth] {
            let logits: Vec<usize> = rows.iter().copied().chain([classes]).collect();
            let name = format!("{loss:?} of {logits:?} with {label}");
            cases.push(case(&name, loss.clone(), &[(F, &logits), (label, rows)]));
            let op = SoftmaxCrossEntropyGradient { loss: loss.clone() };
            cases.push(case(&format!("gradient of {name}"), op, &[(F, rows), (F, &logits), (label, rows)]));
        }
    }
    // Labels of the cases are below 3: some are the blank, some repeat, and there may be more than steps.
    for (steps, batch, classes, length, blank) in
        [(6, 2, 5, 2, 0), (12, 3, 7, 4, 1), (1, 1, 3, 1, 2), (40, 5, 30, 9, 29), (2, 2, 4, 3, 0), (5, 2, 4, 0, 0)]
    {
        for label in [DType::I32, DType::I64] {
            let loss = Ctc { blank };
            let (logits, labels) = ([steps, batch, classes], [batch, length]);
            let name = format!("{loss:?} of {logits:?} with {label} {labels:?}");
            let op = CtcGradient { loss: loss.clone() };
            cases.push(case(&format!("gradient of {name}"), op, &[(F, &[batch]), (F, &logits), (label, &labels)]));
            cases.push(case(&name, loss, &[(F, &logits), (label, &labels)]));
        }
    }
    cases.push(joined_losses());
    cases
}

/// Losses as parts of one value, which begin at any multiple of four bytes.
fn joined_losses() -> Case {
    let mut maker = Maker::new("losses of three sequences behind three others");
    let logits = [0, 1].map(|ix| maker.input(&format!("x{ix}"), F, &[4, 3, 5]));
    let labels = maker.input("labels", DType::I32, &[3, 2]);
    let losses = logits.map(|logits| maker.add(Ctc { blank: 0 }, &[logits, labels], "loss")[0]);
    let joined = maker.add(Concat { axis: 0 }, &losses, "joined");
    maker.case(&joined)
}

/// Sums of slices by index, on the first, a middle and the last axis; indices repeat.
fn scatters() -> Vec<Case> {
    type Row = (&'static [usize], &'static [usize], usize, usize, DType);
    let rows: [Row; 5] = [
        (&[9], &[9, 5], 0, 4, DType::I64),
        (&[2, 30], &[2, 30, 8], 0, 3, DType::I32),
        (&[7], &[3, 7, 4], 1, 11, DType::I32),
        (&[2, 2], &[3, 2, 2], 1, 3, DType::I64),
        (&[], &[6, 5], 1, 3, DType::I64),
    ];
    let scatter = |(index, updates, axis, extent, dtype): Row| {
        let op = ScatterAdd { axis, extent };
        case(&format!("{op:?} of {updates:?} by {dtype}{index:?}"), op, &[(dtype, index), (F, updates)])
    };
    // An index without axes: updates lack the indexed axis.
    rows.into_iter().map(scatter).collect()
}

/// Dropouts of several rates and extents around a block of random numbers.
fn dropouts() -> Vec<Case> {
    let mut cases = Vec::new();
    for (ix, shape) in [&[1][..], &[4], &[3, 5], &[2, 3, 7, 11], &[5003]].into_iter().enumerate() {
        for rate in [0.1, 0.5, 0.0] {
            let op = Dropout { rate, stream: ix as u32 };
            cases.push(case(&format!("{op:?} of {shape:?}"), op, &[(F, shape), (DType::I64, &[2])]));
        }
    }
    cases
}

/// Layers that keep the values of their gates, and gradients that read them. Only processors have kernels for them.
pub fn kept_gates() -> Vec<Case> {
    use types::recurrent::{Cell, Direction};
    let mut cases = recurrent(true);
    let recurrent = Recurrent { cell: Cell::LSTM, direction: Direction::Bidirectional };
    let state: &[usize] = &[2, 2, 3];
    let operands = [(F, &[3, 2, 24][..]), (F, &[2, 12, 3]), (F, state), (F, state)];
    cases.push(case("kept gates of an LSTM", RecurrentWithGates { recurrent }, &operands));
    cases
}

/// Gradients of recurrent layers, of each cell and direction; with `keeps_gates`, of those that may keep them.
fn recurrent(keeps_gates: bool) -> Vec<Case> {
    use types::recurrent::{Cell, Direction, Reset};
    let functions = [pointwise::Unary::Sigmoid, pointwise::Unary::Tanh, pointwise::Unary::Softsign];
    let cells = [
        Cell::LSTM,
        Cell::Lstm { activation: functions, peepholes: true },
        Cell::gru(Reset::BeforeProduct),
        Cell::gru(Reset::AfterProduct),
        Cell::Rnn { activation: pointwise::Unary::Tanh },
        Cell::Rnn { activation: pointwise::Unary::Relu },
        Cell::Rnn { activation: pointwise::Unary::Softsign },
    ];
    let mut cases = Vec::new();
    let has_case = |cell: &Cell| !keeps_gates || cell.gradient_follows_from_gates();
    for (ix, cell) in cells.into_iter().filter(has_case).enumerate() {
        // The last one has rows for several chunks of steps.
        for (number, [seq, batch, units]) in [[1, 1, 5], [7, 3, 4], [4, 2, 17], [5, 171, 3]].into_iter().enumerate() {
            let direction = [Direction::Forward, Direction::Reverse, Direction::Bidirectional][(ix + number) % 3];
            let (d, columns) = (direction.count(), cell.gates() * units);
            let op = Recurrent { cell: cell.clone(), direction };
            let from = if keeps_gates { " from kept gates" } else { "" };
            let mut maker = Maker::new(&format!("gradient{from} of {op:?} {seq} x {batch} x {units}"));
            let (gates, r) =
                (maker.input("gates", F, &[seq, batch, d * columns]), maker.input("r", F, &[d, columns, units]));
            // Larger weights would let rounding errors grow with every iteration.
            let bound = maker.0.add_constant("bound", types::Tensor::scalar((1.0 / units as f32).sqrt()));
            let r = maker.add(Binary(pointwise::Binary::Mul), &[r, bound], "scaled")[0];
            let state = [d, batch, units];
            let mut operands = vec![gates, r, maker.input("h", F, &state)];
            if cell.has_memory() {
                operands.push(maker.input("c", F, &state));
            }
            if 0 < cell.extras() {
                operands.push(maker.input("extra", F, &[d, cell.extras() * units]));
            }
            let results = match keeps_gates {
                true => maker.add(RecurrentWithGates { recurrent: op.clone() }, &operands, "layer"),
                false => maker.add(op.clone(), &operands, "layer"),
            };
            let (kept, results) = results.split_at(usize::from(keeps_gates));
            operands.drain(..usize::from(!cell.saves_gates()));
            operands.push(results[0]);
            for (ix, &result) in results.iter().enumerate() {
                let shape = maker.0.ty(result).shape.clone();
                operands.push(maker.input(&format!("gradient {ix}"), F, &shape));
            }
            if let [kept] = kept {
                operands[0] = *kept;
            }
            let op = RecurrentGradient { recurrent: op, values: keeps_gates };
            let outputs = maker.add(op, &operands, "gradient");
            cases.push(maker.case(&outputs));
        }
    }
    cases
}

/// Updates whose gradients are given by their factors. Only processors have a kernel for them.
pub fn updates_by_factors() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rule, [m, k, n]) in [
        (UpdateRule::Sgd(Sgd::default()), [1, 1, 1]),
        (UpdateRule::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }), [70, 3, 33]),
        (UpdateRule::Adam(Adam::default()), [5, 40, 4099]),
        (UpdateRule::Lion(Lion { weight_decay: 0.01, ..Lion::default() }), [300, 7, 1024]),
    ] {
        let op = Update { rule, factors: true };
        let mut maker = Maker::new(&format!("{op:?} of [{m},{k}] by [{k},{n}]"));
        let mut operands = vec![maker.input("weight", F, &[m, n]), maker.input("left", F, &[m, k])];
        for name in rule.states() {
            let state = maker.input(name, F, &[m, n]);
            operands.push(squared(&mut maker, state));
        }
        operands.push(maker.input("learning_rate", F, &[]));
        if rule.reads_step() {
            operands.push(maker.input("step", DType::I64, &[]));
        }
        operands.push(maker.input("right", F, &[k, n]));
        let outputs = maker.add(op, &operands, "update");
        cases.push(maker.case(&outputs));
    }
    cases
}

/// One step of each optimizer, in each of its forms.
fn updates() -> Vec<Case> {
    let sgd = Sgd { weight_decay: 0.01, ..Sgd::default() };
    let momentum = Sgd { momentum: 0.9, ..sgd };
    let rms_prop = RmsProp { weight_decay: 0.01, ..RmsProp::default() };
    let adam = Adam { weight_decay: 0.01, ..Adam::default() };
    let rules = [
        UpdateRule::Sgd(sgd),
        UpdateRule::Sgd(momentum),
        UpdateRule::Sgd(Sgd { nesterov: true, ..momentum }),
        UpdateRule::Sgd(Sgd { buffer_of_steps: true, ..momentum }),
        UpdateRule::Adam(adam),
        UpdateRule::Adam(Adam { decoupled: true, ..adam }),
        UpdateRule::Adam(Adam { epsilon_hat: true, ..adam }),
        UpdateRule::RmsProp(rms_prop),
        UpdateRule::RmsProp(RmsProp { momentum: 0.9, ..rms_prop }),
        UpdateRule::RmsProp(RmsProp { epsilon_in_root: true, ..rms_prop }),
        UpdateRule::Adagrad(Adagrad { weight_decay: 0.01, ..Adagrad::default() }),
        UpdateRule::Adagrad(Adagrad { epsilon_in_root: true, ..Adagrad::default() }),
        UpdateRule::Adadelta(Adadelta { weight_decay: 0.01, ..Adadelta::default() }),
        UpdateRule::Lamb(Lamb { weight_decay: 0.01, ..Lamb::default() }),
        UpdateRule::Lion(Lion { weight_decay: 0.01, ..Lion::default() }),
    ];
    let mut cases = Vec::new();
    for (ix, rule) in rules.into_iter().enumerate() {
        let shape: &[usize] = [&[17, 5][..], &[1], &[2, 3, 5, 7], &[4099]][ix % 4];
        let op = Update { rule, factors: false };
        let mut maker = Maker::new(&format!("{op:?} of {shape:?}"));
        let mut operands = vec![maker.input("weight", F, shape), maker.input("gradient", F, shape)];
        for name in rule.states() {
            let state = maker.input(name, F, shape);
            operands.push(squared(&mut maker, state));
        }
        operands.push(maker.input("learning_rate", F, &[]));
        if rule.reads_step() {
            operands.push(maker.input("step", DType::I64, &[]));
        }
        let outputs = maker.add(op, &operands, "update");
        cases.push(maker.case(&outputs));
    }
    // A centered mean square is not below the square of the mean.
    let centered = RmsProp { centered: true, ..rms_prop };
    for rule in [centered, RmsProp { momentum: 0.5, ..centered }] {
        let op = Update { rule: UpdateRule::RmsProp(rule), factors: false };
        let shape = Shape::from([33]);
        let mut maker = Maker::new(&format!("{op:?} of {shape}"));
        let (w, g, average) = (maker.input("w", F, &shape), maker.input("g", F, &shape), maker.input("a", F, &shape));
        let square = squared(&mut maker, average);
        let one = maker.0.add_constant("one", types::Tensor::scalar(1.0f32));
        let square = maker.add(Binary(pointwise::Binary::Add), &[square, one], "more")[0];
        let mut operands = vec![w, g, square, average];
        if rule.momentum != 0.0 {
            operands.push(maker.input("b", F, &shape));
        }
        operands.push(maker.input("learning_rate", F, &[]));
        let outputs = maker.add(op, &operands, "update");
        cases.push(maker.case(&outputs));
    }
    cases
}
