use std::panic::{AssertUnwindSafe, catch_unwind};

use prestow_cpu::{
    ArgExtreme, Args, Attention, AxisTaps, BatchNormGradient, BatchNormTraining, Chain, ChannelSum, CompactConv, Conv,
    ConvAlgorithm, ConvBlocked, ConvDataGradient, ConvTranspose, ConvUnbuffered, ConvWeightGradient, Copy, Ctc,
    CtcGradient, CumulativeSum, DepthwiseBlocked, DepthwiseDataGradient, DepthwiseWeightGradient, Dropout, DynamicConv,
    Elementwise, ElementwiseFn, Epilogue, Fill, Front, Gather, GatherTable, HeadStrides, ImageLayout, Insert,
    Instruction, InvertedBottleneck, Kernel, KernelKind, LabeledRows, LabeledSequences, LayerNorm, Lrn, MaskStrides,
    MatMul, MatMulB, Operand, PackedConv, PlainConv, Planes, Pool, Pool2d, Pool2dKind, PoolBlocked, PoolGradient,
    PoolVolumes, PoolWithPositions, Recurrent, RecurrentGradient, Reduce, ReduceFn, Remap, Reorder, Resize, Scatter,
    ScatterAdd, Sizes, Softmax, SoftmaxCrossEntropy, SoftmaxCrossEntropyGradient, StorageType, SwapAxes, TopK, Update,
    UpdateByFactors, WeightGradientRows, WeightOrder, Weights, Window, Winograd,
};
use types::pointwise::{Binary, Compare, QuantizedSum, Unary};
use types::recurrent::{Cell, Direction, Reset};
use types::update::{Adam, Lamb, RmsProp, Sgd, UpdateRule};
use types::{DType, HeadOrder, Random, WeightFormat};

use super::counting::allocations;
use super::guarded::{Guarded, Touch};

/// Mostly small, at times enormous.
fn number(random: &mut Random) -> usize {
    match random.below(60) {
        0 => usize::MAX,
        1 => 1 << 31,
        2 => (1 << 62) + 1,
        3 => u32::MAX as usize,
        4..9 => 0,
        _ => random.below(6) as usize,
    }
}

fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize].clone()
}

/// The depth of volumes, mostly with one column.
fn depth(random: &mut Random) -> Window {
    let window = window(random);
    match random.below(20) {
        0 => window,
        1..8 => Window::ONE,
        _ => {
            let one = |[rows, _]: [usize; 2]| [rows, 1];
            let Window { input, output, kernel, stride, dilation, pad } = window;
            let [input, output, kernel, stride, dilation] = [input, output, kernel, stride, dilation].map(one);
            Window { input, output, kernel, stride, dilation, pad: [pad[0], 0] }
        }
    }
}

fn window(random: &mut Random) -> Window {
    let mut two = |least: usize, below: u64| [0, 1].map(|_| least + random.below(below) as usize);
    let mut window = Window {
        input: two(0, 7),
        output: two(0, 6),
        kernel: two(1, 3),
        stride: two(1, 3),
        dilation: two(1, 4),
        pad: two(0, 6),
    };
    if random.below(20) == 0 {
        let axis = random.below(2) as usize;
        match random.below(6) {
            0 => window.input[axis] = number(random),
            1 => window.output[axis] = number(random),
            2 => window.kernel[axis] = pick(random, &[0, usize::MAX]),
            3 => window.stride[axis] = number(random),
            4 => window.dilation[axis] = number(random),
            _ => window.pad[axis] = number(random),
        }
    }
    window
}

fn list(random: &mut Random) -> Vec<usize> {
    let rank = pick(random, &[0, 1, 2, 2, 3, 3, 4, 11]);
    (0..rank).map(|_| number(random)).collect()
}

/// Strides for a shape: row-major, with broadcast extents and now and then nonsense.
fn strides(random: &mut Random, shape: &[usize]) -> Vec<usize> {
    if random.below(12) == 0 {
        return list(random);
    }
    let mut stride = 1usize;
    let mut strides: Vec<usize> = Vec::new();
    for &extent in shape.iter().rev() {
        let own = match random.below(8) {
            0 => number(random),
            1 | 2 => 0,
            _ => stride,
        };
        if own != 0 {
            stride = stride.saturating_mul(extent);
        }
        strides.insert(0, own);
    }
    strides
}

fn epilogue(random: &mut Random) -> Epilogue {
    Epilogue {
        scale: random.below(9) == 0,
        bias: random.below(2) == 0,
        residual: random.below(2) == 0,
        quantized_sum: (random.below(9) == 0).then_some(QuantizedSum {
            own: 0.5,
            residual: f32::NAN,
            shift: f32::INFINITY,
            limits: [9.0, f32::NAN],
        }),
        activation: pick(random, &[&[][..], &[Unary::Relu]]).iter().copied().collect(),
    }
}

/// A zero point, mostly where there may be one.
fn of_bytes(random: &mut Random, operands: StorageType) -> u8 {
    if operands.is_byte() || random.below(20) == 0 { random.bits() as u8 } else { 0 }
}

/// An epilogue that mostly fits its operands.
fn products(random: &mut Random, operands: StorageType) -> Epilogue {
    let (epilogue, other) = (epilogue(random), random.below(9) == 0);
    let is_byte = operands.is_byte();
    Epilogue { scale: is_byte != other, residual: epilogue.residual && (!is_byte || other), ..epilogue }
}

fn chain(random: &mut Random) -> Chain {
    let shape = list(random);
    let strides: Vec<Vec<usize>> = (0..random.below(10)).map(|_| strides(random, &shape)).collect();
    let known = strides.len() as u64 + 3;
    let program = (0..random.below(5)).map(|_| {
        let [a, b] = [0, 1].map(|_| random.below(known) as usize);
        match random.below(3) {
            0 => Instruction::Constant(1.0),
            1 => Instruction::Unary(Unary::Exp, a),
            _ => Instruction::Binary(Binary::Mul, a, b),
        }
    });
    let program = program.collect();
    let inputs = strides.iter().map(|_| pick(random, &StorageType::ALL)).collect();
    Chain { shape, strides, inputs, program, result: pick(random, &StorageType::ALL) }
}

fn copy(random: &mut Random) -> Copy {
    let shape = list(random);
    let in_strides = strides(random, &shape);
    let in_strides = in_strides.into_iter().map(|stride| match random.below(4) {
        0 => (stride as isize).wrapping_neg(),
        _ => stride as isize,
    });
    let in_strides = in_strides.collect();
    Copy {
        element_size: 1,
        in_elements: random.below(100) as usize,
        in_offset: 0,
        in_strides,
        out_elements: random.below(90) as usize,
        out_offset: 0,
        out_strides: strides(random, &shape),
        shape,
    }
}

fn weights(random: &mut Random) -> Weights {
    pick(random, &[Weights::Packed, Weights::Dynamic])
}

/// The form of weights.
fn format(random: &mut Random) -> Option<WeightFormat> {
    pick(random, &[None, None, Some(WeightFormat::Bf16), Some(WeightFormat::Int8)])
}

fn conv_blocked(random: &mut Random, operands: StorageType) -> ConvBlocked {
    ConvBlocked {
        batch: random.below(5) as usize,
        in_channels: number(random),
        out_channels: number(random),
        groups: pick(random, &[1, 1, 1, 2, 0]),
        joined: pick(random, &[1, 1, 1, 2, 3, 0]),
        window: window(random),
        layout: pick(random, &[ImageLayout::RowMajor, ImageLayout::Blocked]),
        algorithm: pick(random, &[ConvAlgorithm::InPlace, ConvAlgorithm::InPlace, ConvAlgorithm::Packed]),
        operands,
        weights: format(random),
        zero_point: of_bytes(random, operands),
        result: pick(random, &StorageType::ALL),
        epilogue: products(random, operands),
    }
}

fn depthwise(random: &mut Random, stored: StorageType) -> DepthwiseBlocked {
    DepthwiseBlocked {
        batch: random.below(5) as usize,
        channels: number(random),
        group: if random.below(2) == 0 { [1, 1] } else { [number(random), number(random)] },
        window: window(random),
        stored,
        zero_point: of_bytes(random, stored),
        result: if random.below(2) == 0 { stored } else { pick(random, &StorageType::ALL) },
        epilogue: products(random, stored),
    }
}

fn planes(random: &mut Random) -> Planes {
    Planes {
        batch: number(random),
        channels: number(random),
        plane: number(random),
        layout: pick(random, &[ImageLayout::RowMajor, ImageLayout::Blocked]),
    }
}

fn labeled_sequences(random: &mut Random) -> LabeledSequences {
    LabeledSequences {
        steps: number(random),
        batch: random.below(5) as usize,
        classes: number(random),
        labels: random.below(5) as usize,
        wide: random.below(2) == 0,
        blank: random.below(5) as usize,
    }
}

fn labeled_rows(random: &mut Random) -> LabeledRows {
    LabeledRows {
        rows: number(random),
        classes: number(random),
        wide: random.below(2) == 0,
        ignore: pick(random, &[None, Some(1)]),
        smoothing: pick(random, &[0.0, 0.1, 1.0, 2.0]),
    }
}

fn update_rule(random: &mut Random) -> UpdateRule {
    let rules = [
        UpdateRule::Sgd(Sgd { momentum: pick(random, &[0.0, 0.9, 1.5]), ..Sgd::default() }),
        UpdateRule::Adam(Adam::default()),
        UpdateRule::Lamb(Lamb::default()),
        UpdateRule::RmsProp(RmsProp::default()),
    ];
    pick(random, &rules)
}

fn winograd(random: &mut Random) -> Winograd {
    let geometry = window(random);
    let three = Window { kernel: [3, 3], stride: [1, 1], dilation: [1, 1], ..geometry };
    Winograd {
        batch: random.below(5) as usize,
        in_channels: number(random),
        out_channels: number(random),
        window: if random.below(9) == 0 { geometry } else { three },
        tile: pick(random, &[2, 4, 6, 4, 3, 0, usize::MAX]),
        epilogue: epilogue(random),
        workspace_max: pick(random, &[0, 1, 10_000, Winograd::WORKSPACE_MAX, usize::MAX]),
    }
}

/// A kernel with parameters of all kinds; the table of kernels has an arm each.
fn kernel(random: &mut Random) -> Kernel {
    let kind = pick(random, KernelKind::ALL);
    kernel_of(kind, random)
}

fn kernel_of(kind: KernelKind, random: &mut Random) -> Kernel {
    let small = |random: &mut Random| random.below(5) as usize;
    match kind {
        KernelKind::Conv => Conv {
            batch: small(random),
            in_channels: number(random),
            out_channels: number(random),
            groups: pick(random, &[1, 1, 1, 2, 3, 0]),
            window: window(random),
            weights: weights(random),
            epilogue: epilogue(random),
            workspace_max: pick(random, &[0, 1, 100, Conv::WORKSPACE_MAX, usize::MAX]),
        }
        .into(),
        KernelKind::ConvUnbuffered => ConvUnbuffered {
            batch: small(random),
            in_channels: number(random),
            out_channels: number(random),
            groups: pick(random, &[1, 1, 1, 2, 3, 0]),
            depth: depth(random),
            window: window(random),
            transposed: random.below(2) == 0,
            epilogue: epilogue(random),
        }
        .into(),
        KernelKind::ConvTranspose => ConvTranspose {
            batch: small(random),
            in_channels: number(random),
            out_channels: number(random),
            groups: pick(random, &[1, 1, 1, 2, 0]),
            window: window(random),
            weights: weights(random),
            epilogue: epilogue(random),
        }
        .into(),
        KernelKind::CompactConv => {
            let kinds = [KernelKind::Conv, KernelKind::ConvTranspose, KernelKind::ConvUnbuffered];
            let (conv, [groups, ins, outs], window) = match kernel_of(pick(random, &kinds), random) {
                Kernel::Conv(own) => {
                    let channels = [own.groups, own.in_channels, own.out_channels];
                    (PlainConv::Conv(own.clone()), channels, own.window)
                }
                Kernel::ConvTranspose(own) => {
                    let channels = [own.groups, own.in_channels, own.out_channels];
                    (PlainConv::Transpose(own.clone()), channels, own.window)
                }
                Kernel::ConvUnbuffered(own) => {
                    let channels = [own.groups, own.in_channels, own.out_channels];
                    let own = ConvUnbuffered { depth: Window::ONE, ..own.clone() };
                    (PlainConv::Unbuffered(own.clone()), channels, own.window)
                }
                other => unreachable!("{other:?} is no such convolution"),
            };
            let (ins, taps) = (ins / groups.max(1), window.kernel[0].saturating_mul(window.kernel[1]));
            let extents = match random.below(4) {
                0 => [number(random), small(random), number(random), taps],
                1 => [groups, ins, outs / groups.max(1), taps],
                _ => [1, 1, outs, ins.saturating_mul(taps)],
            };
            CompactConv { conv, weights: pick(random, &WeightFormat::ALL), extents }.into()
        }
        KernelKind::MatMul => {
            let (batch, operands) = (list(random), pick(random, &StorageType::ALL));
            MatMul {
                a_strides: strides(random, &batch),
                b_strides: strides(random, &batch),
                batch,
                m: number(random),
                k: number(random),
                n: number(random),
                b: pick(random, &[MatMulB::Packed, MatMulB::Dynamic, MatMulB::Transposed]),
                operands,
                weights: format(random),
                zero_point: of_bytes(random, operands),
                result: pick(random, &StorageType::ALL),
                epilogue: products(random, operands),
            }
            .into()
        }
        KernelKind::PoolVolumes => {
            let pad_end = [small(random), number(random)];
            let kinds = [Pool2dKind::Max, Pool2dKind::Mean, Pool2dKind::MeanWithPadding { pad_end }];
            PoolVolumes {
                kind: pick(random, &kinds),
                volumes: number(random),
                depth: depth(random),
                depth_pad_end: small(random),
                window: window(random),
            }
            .into()
        }
        KernelKind::Pool2d => {
            let pad_end = [small(random), number(random)];
            let kinds = [Pool2dKind::Max, Pool2dKind::Mean, Pool2dKind::MeanWithPadding { pad_end }];
            Pool2d { kind: pick(random, &kinds), planes: number(random), window: window(random) }.into()
        }
        KernelKind::Reduce => {
            let shape = list(random);
            let reduced = (0..shape.len() + usize::from(random.below(20) == 0)).map(|_| random.below(2) == 0).collect();
            let function = pick(random, &[ReduceFn::Sum, ReduceFn::Mean, ReduceFn::LogSumExp, ReduceFn::Max]);
            Reduce { function, dtype: pick(random, &DType::ALL), shape, reduced }.into()
        }
        KernelKind::Softmax => {
            Softmax { outer: number(random), axis: number(random), inner: number(random), log: random.below(2) == 0 }
                .into()
        }
        KernelKind::Lrn => Lrn {
            batch: number(random),
            channels: number(random),
            inner: number(random),
            size: small(random),
            alpha: 1.0,
            beta: 0.5,
            bias: 0.0,
        }
        .into(),
        KernelKind::Chain => chain(random).into(),
        KernelKind::Elementwise => {
            let shape = list(random);
            let functions = [
                ElementwiseFn::Unary(Unary::Clip { min: 1.0, max: -1.0 }),
                ElementwiseFn::Binary(Binary::Pow),
                ElementwiseFn::Compare(Compare::Less),
                ElementwiseFn::Select,
                ElementwiseFn::Cast(DType::Bf16),
            ];
            let strides = (0..1 + random.below(3)).map(|_| strides(random, &shape)).collect();
            Elementwise { function: pick(random, &functions), dtype: pick(random, &DType::ALL), shape, strides }.into()
        }
        KernelKind::Copy => {
            let element_size = pick(random, &[1, 2, 4, 8, 3, 0]);
            let [in_offset, out_offset] = [0, 1].map(|_| pick(random, &[0, 0, 2, usize::MAX]));
            Copy { element_size, in_offset, out_offset, ..copy(random) }.into()
        }
        KernelKind::SwapAxes => {
            let [blocks, rows, columns, bytes] = [(); 4].map(|()| number(random));
            SwapAxes { blocks, rows, columns, bytes }.into()
        }
        KernelKind::Insert => {
            let out_offset = pick(random, &[0, 0, 2, usize::MAX]);
            let copy = Copy { element_size: pick(random, &[1, 2, 4, 8, 3]), out_offset, ..copy(random) };
            Insert { copy }.into()
        }
        KernelKind::Fill => {
            Fill { elements: number(random), element_size: pick(random, &[1, 2, 4, 8, 16]), pattern: [1; 8] }.into()
        }
        KernelKind::Gather => Gather {
            outer: number(random),
            axis: number(random),
            inner_bytes: number(random),
            indices: number(random),
            wide: random.below(2) == 0,
            table: if random.below(4) == 0 { GatherTable::Packed } else { GatherTable::Rows },
            weights: format(random),
        }
        .into(),
        KernelKind::Resize => {
            let shape = list(random);
            let taps = shape.iter().map(|_| {
                let taps = random.below(7) as usize;
                AxisTaps {
                    index: (0..taps).map(|_| random.below(3) as u32).collect(),
                    weight: vec![1.0; if random.below(9) == 0 { 1 } else { taps }],
                    per_output: pick(random, &[0, 1, 1, 2]),
                }
            });
            Resize { taps: taps.collect(), shape }.into()
        }
        KernelKind::Remap => {
            let shape = list(random);
            let table = |random: &mut Random| (0..random.below(5)).map(|_| random.below(4) as u32).collect();
            let tables = shape.iter().map(|_| table(random)).collect();
            Remap { element_size: pick(random, &[1, 2, 4, 8, 5]), shape, tables }.into()
        }
        KernelKind::Reorder => Reorder {
            batch: small(random),
            channels: number(random),
            plane: number(random),
            to_blocked: random.below(2) == 0,
            stored: pick(random, &StorageType::ALL),
        }
        .into(),
        KernelKind::DepthwiseBlocked => {
            let stored = pick(random, &StorageType::ALL);
            depthwise(random, stored).into()
        }
        KernelKind::PoolBlocked => {
            let pad_end = [small(random), number(random)];
            let kinds = [Pool2dKind::Max, Pool2dKind::Mean, Pool2dKind::MeanWithPadding { pad_end }];
            PoolBlocked {
                kind: pick(random, &kinds),
                batch: small(random),
                channels: number(random),
                window: window(random),
                stored: pick(random, &StorageType::ALL),
            }
            .into()
        }
        KernelKind::InvertedBottleneck => {
            let (channels, behind) = (number(random), window(random));
            let front = (random.below(2) == 0).then(|| Front {
                window: match random.below(3) {
                    0 => window(random),
                    _ => Window { output: behind.input, ..window(random) },
                },
                layout: pick(random, &[ImageLayout::RowMajor, ImageLayout::Blocked]),
                epilogue: Epilogue { residual: random.below(9) == 0, ..epilogue(random) },
            });
            InvertedBottleneck {
                batch: small(random),
                in_channels: if random.below(3) == 0 { channels } else { number(random) },
                channels,
                out_channels: number(random),
                window: behind,
                front,
                depthwise: Epilogue { residual: random.below(9) == 0, ..epilogue(random) },
                project: epilogue(random),
                band: number(random),
                weights: format(random),
            }
            .into()
        }
        KernelKind::Recurrent | KernelKind::RecurrentGradient => {
            let cells = [
                Cell::LSTM,
                Cell::Lstm { activation: [Unary::Relu, Unary::Tanh, Unary::Exp], peepholes: true },
                Cell::gru(Reset::BeforeProduct),
                Cell::gru(Reset::AfterProduct),
                Cell::Rnn { activation: Unary::Relu },
            ];
            let cell = pick(random, &cells);
            let direction = pick(random, &[Direction::Forward, Direction::Reverse, Direction::Bidirectional]);
            let (seq, batch) = (number(random), number(random));
            let units = if random.below(3) == 0 { random.below(70) as usize } else { number(random) };
            let values = cell.gradient_follows_from_gates() && random.below(2) == 0;
            match kind {
                KernelKind::Recurrent => {
                    let keeps_gates = cell.has_memory() && random.below(2) == 0;
                    let weights = weights(random);
                    Recurrent { cell, direction, seq, batch, units, weights, keeps_gates }.into()
                }
                _ => RecurrentGradient { cell, direction, seq, batch, units, values }.into(),
            }
        }
        KernelKind::ConvBlocked => {
            let operands = pick(random, &StorageType::ALL);
            conv_blocked(random, operands).into()
        }
        KernelKind::Winograd => winograd(random).into(),
        KernelKind::DynamicConv => {
            let stored = pick(random, &[StorageType::F32, StorageType::F32, StorageType::F32, StorageType::F16]);
            let conv = match random.below(3) {
                0 => PackedConv::Direct(ConvBlocked { result: stored, ..conv_blocked(random, stored) }),
                1 => PackedConv::Winograd(winograd(random)),
                _ => PackedConv::Depthwise(DepthwiseBlocked { result: stored, ..depthwise(random, stored) }),
            };
            DynamicConv { conv, order: pick(random, &[WeightOrder::Forward, WeightOrder::Gradient]) }.into()
        }
        KernelKind::ConvWeightGradient => ConvWeightGradient {
            batch: small(random),
            in_channels: number(random),
            out_channels: number(random),
            groups: pick(random, &[1, 1, 1, 2, 0]),
            window: window(random),
            layout: pick(random, &[ImageLayout::RowMajor, ImageLayout::Blocked]),
        }
        .into(),
        KernelKind::WeightGradientRows => WeightGradientRows {
            batch: small(random),
            in_channels: number(random),
            out_channels: number(random),
            groups: pick(random, &[1, 1, 1, 2, 0]),
            depth: depth(random),
            window: window(random),
        }
        .into(),
        KernelKind::DepthwiseWeightGradient => {
            DepthwiseWeightGradient { batch: small(random), channels: number(random), window: window(random) }.into()
        }
        KernelKind::DepthwiseDataGradient => {
            DepthwiseDataGradient { batch: small(random), channels: number(random), window: window(random) }.into()
        }
        KernelKind::BatchNormTraining => {
            BatchNormTraining { planes: planes(random), epsilon: 1e-5, relu: random.below(2) == 0 }.into()
        }
        KernelKind::BatchNormGradient => {
            BatchNormGradient { planes: planes(random), epsilon: 1e-5, relu: random.below(2) == 0 }.into()
        }
        KernelKind::ChannelSum => ChannelSum { planes: planes(random) }.into(),
        KernelKind::PoolGradient => {
            let pad_end = [small(random), number(random)];
            let kinds = [Pool2dKind::Max, Pool2dKind::Mean, Pool2dKind::MeanWithPadding { pad_end }];
            let window = window(random);
            let plane = window.output[0].wrapping_mul(window.output[1]);
            let positions = random.below(2) == 0;
            let planes = Planes { plane, ..planes(random) };
            PoolGradient { kind: pick(random, &kinds), planes, window, positions }.into()
        }
        KernelKind::Ctc => Ctc { sequences: labeled_sequences(random) }.into(),
        KernelKind::CtcGradient => CtcGradient { sequences: labeled_sequences(random) }.into(),
        KernelKind::PoolWithPositions => {
            let window = window(random);
            let plane = window.output[0].wrapping_mul(window.output[1]);
            PoolWithPositions { planes: Planes { plane, ..planes(random) }, window }.into()
        }
        KernelKind::Update => Update { rule: update_rule(random), elements: number(random) }.into(),
        KernelKind::UpdateByFactors => UpdateByFactors {
            rule: update_rule(random),
            m: number(random),
            k: number(random),
            n: number(random),
            band: pick(random, &[1, 1, 2, 3, 0, usize::MAX]),
        }
        .into(),
        KernelKind::Dropout => {
            Dropout { elements: number(random), rate: pick(random, &[0.0, 0.5, 1.0]), stream: 3 }.into()
        }
        KernelKind::SoftmaxCrossEntropy => SoftmaxCrossEntropy { rows: labeled_rows(random) }.into(),
        KernelKind::SoftmaxCrossEntropyGradient => SoftmaxCrossEntropyGradient { rows: labeled_rows(random) }.into(),
        KernelKind::Scatter => Scatter {
            rows: number(random),
            inner: number(random),
            indices: number(random),
            wide: random.below(2) == 0,
            dtype: pick(random, &[DType::F32, DType::F16, DType::I64, DType::U8, DType::Bool]),
            function: pick(random, &[None, None, Some(Binary::Add), Some(Binary::Min), Some(Binary::Sub)]),
        }
        .into(),
        KernelKind::ScatterAdd => ScatterAdd {
            outer: number(random),
            axis: number(random),
            inner: number(random),
            indices: number(random),
            wide: random.below(2) == 0,
        }
        .into(),
        KernelKind::ConvDataGradient => ConvDataGradient {
            batch: small(random),
            in_channels: number(random),
            out_channels: number(random),
            groups: pick(random, &[1, 1, 1, 2, 0]),
            window: match random.below(3) {
                0 => window(random),
                _ => Window { dilation: [1, 1], ..window(random) },
            },
            weights: pick(random, &[Weights::Packed, Weights::Dynamic]),
            epilogue: epilogue(random),
        }
        .into(),
        KernelKind::LayerNorm => LayerNorm {
            rows: number(random),
            columns: number(random),
            epsilon: 1e-5,
            scale: random.below(2) == 0,
            bias: random.below(2) == 0,
            stored: pick(random, &StorageType::ALL),
        }
        .into(),
        KernelKind::Attention => {
            let strides = |random: &mut Random| HeadStrides {
                batch: number(random),
                head: number(random),
                token: number(random),
            };
            let mask =
                MaskStrides { batch: small(random), head: number(random), query: small(random), key: small(random) };
            Attention {
                batch: small(random),
                heads: number(random),
                queries: number(random),
                keys: number(random),
                width: number(random),
                value_width: number(random),
                scale: 1.0,
                strides: [strides(random), strides(random), strides(random)],
                mask: pick(random, &[None, Some(mask)]),
                order: pick(random, &[HeadOrder::HeadsFirst, HeadOrder::TokensFirst]),
                stored: pick(random, &StorageType::ALL),
            }
            .into()
        }
        KernelKind::CumulativeSum => CumulativeSum {
            outer: number(random),
            axis: number(random),
            inner: number(random),
            exclusive: random.below(2) == 0,
            reverse: random.below(2) == 0,
            dtype: pick(random, &DType::ALL),
        }
        .into(),
        KernelKind::TopK => TopK {
            outer: number(random),
            axis: number(random),
            inner: number(random),
            k: number(random),
            largest: random.below(2) == 0,
            dtype: pick(random, &DType::ALL),
        }
        .into(),
        KernelKind::ArgExtreme => ArgExtreme {
            outer: number(random),
            axis: number(random),
            inner: number(random),
            max: random.below(2) == 0,
            last: random.below(2) == 0,
        }
        .into(),
    }
}

/// The outputs of a run over memory that holds `pattern`.
/// The outputs, and the allocations of this thread in the run.
fn run(kernel: &Kernel, sizes: &Sizes, inputs: &[Guarded], pattern: u8, pool: &Pool) -> (Vec<Guarded>, u64) {
    // Results that leave their bytes forwards are caught by one run, backwards by the other.
    let touch = if pattern < 0x80 { Touch::Front } else { Touch::Behind };
    let filled = |&size: &u64| Guarded::filled(size as usize, pattern, touch);
    let mut outputs: Vec<Guarded> = sizes.outputs.iter().map(filled).collect();
    let mut workspace = filled(&sizes.workspace);
    let inputs: Vec<Operand> = inputs.iter().map(|input| Operand::Bytes(input.bytes())).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Guarded::bytes_mut).collect();
    let before = allocations();
    kernel.run(Args { inputs: &inputs, outputs: &mut slices, workspace: workspace.bytes_mut() }, pool);
    let count = allocations() - before;
    (outputs, count)
}

#[test]
fn parameters_are_refused_or_run() {
    // One thread runs all tasks of a pool of one.
    let (pools, mut random) = ([Pool::new(2), Pool::new(1)], Random::new(61));
    let (mut ran, mut refused) = ([0u32; 2], 0u32);
    let mut faults = Vec::new();
    for _ in 0..40_000 {
        let kernel = kernel(&mut random);
        let Ok(sizes) = kernel.sizes() else {
            refused += 1;
            continue;
        };
        let total: u128 = sizes.inputs.iter().chain(&sizes.outputs).map(|&size| u128::from(size)).sum();
        // Accepted kernels of enormous size cannot run here.
        if 1 << 20 < total + u128::from(sizes.workspace) {
            continue;
        }
        let inputs: Vec<Guarded> = sizes
            .inputs
            .iter()
            .map(|&size| {
                let bytes: Vec<u8> = (0..size).map(|_| random.below(256) as u8).collect();
                Guarded::of(&bytes, pick(&mut random, &[Touch::Front, Touch::Behind]))
            })
            .collect();
        let pair =
            || [(0xA5, &pools[0]), (0x5A, &pools[1])].map(|(fill, pool)| run(&kernel, &sizes, &inputs, fill, pool));
        let done = catch_unwind(AssertUnwindSafe(pair));
        let Ok([(first, _), (second, count)]) = done else {
            faults.push(format!("{kernel:?} panics"));
            continue;
        };
        if count != 0 {
            faults.push(format!("{kernel:?} makes {count} allocations"));
        }
        // A copy may fill a part; all others write every byte.
        let same = first.iter().zip(&second).all(|(a, b)| a.bytes() == b.bytes());
        if !same && !matches!(kernel, Kernel::Copy(_)) {
            faults.push(format!("{kernel:?} leaves bytes of its output unwritten"));
        }
        ran[usize::from(sizes.outputs[0] != 0)] += 1;
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
    assert!(2_000 < refused && 2_000 < ran[0] && 4_000 < ran[1], "{refused} refused, {ran:?} ran");
}
