//! Weights that are stored in fewer bits: kernels on the stored form against the same kernels on the numbers it represents.

use prestow_cpu::{
    CompactConv, Conv, ConvTranspose, ConvUnbuffered, Epilogue, Gather, GatherTable, Kernel, MatMul, MatMulB, Packing,
    PlainConv, StorageType, Weights, Window,
};
use types::{ChannelAxis, DType, Random, Shape, Tensor, WeightFormat};

use super::common::{numbers_of, pools, run_bytes};

fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.uniform(-1.0, 1.0)).collect()
}

#[test]
fn gathered_rows_are_those_of_the_decoded_table() {
    let (mut random, pools) = (Random::new(71), pools([1, 3]));
    for (rows, row) in [(1, 1), (5, 3), (16, 8), (33, 37), (48, 16), (65, 4), (3, 2100)] {
        let items = numbers(&mut random, rows * row);
        let indices: Vec<i64> = (0..40).map(|_| random.below(2 * rows as u64) as i64 - rows as i64).collect();
        let index: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        for format in WeightFormat::ALL {
            let decoded = format.decoded(&items, rows, |at| at / row);
            let at = |index: i64| if index < 0 { (index + rows as i64) as usize } else { index as usize };
            let want: Vec<f32> = indices.iter().flat_map(|&index| decoded[at(index) * row..][..row].to_vec()).collect();
            let weights = Some(format);
            for (table, packing) in [
                (GatherTable::Rows, Packing::Table { rows, weights: format }),
                (GatherTable::Packed, Packing::TransposedFactor { k: row, n: rows, weights }),
            ] {
                let tensor = Tensor::from_fn(Shape::from([rows, row]), |at| items[at]);
                let bytes = packing.apply(&tensor);
                assert_eq!(packing.size(items.len()), Ok(Some(bytes.len() as u64)));
                assert_eq!(packing.dtype(), Some(format.dtype()));
                // Packing is a projection too.
                let rounded = Tensor::from_fn(Shape::from([rows, row]), |at| decoded[at]);
                assert!(packing.apply(&rounded) == bytes, "{packing:?}");
                let inner_bytes = 4 * row;
                let kernel = Gather { outer: 1, axis: rows, inner_bytes, indices: 40, wide: true, table, weights };
                for pool in pools.iter().flatten() {
                    let out = run_bytes(&kernel.clone().into(), &[bytes.clone(), index.clone()], None, 0.0, pool);
                    // An integer has no negative zero.
                    assert!(numbers_of(StorageType::F32, &out[0]) == want, "{kernel:?}");
                }
            }
        }
    }
}

#[test]
fn row_major_convolutions_equal_those_by_decoded_weights() {
    let (mut random, pools) = (Random::new(72), pools([1, 3]));
    let window =
        Window { input: [9, 7], output: [5, 7], kernel: [3, 3], stride: [2, 1], dilation: [1, 1], pad: [1, 1] };
    for (groups, of_group) in [(1, [5, 7]), (1, [40, 3]), (2, [4, 6]), (3, [1, 2])] {
        let [in_channels, out_channels] = of_group.map(|channels| groups * channels);
        let (batch, epilogue, weights) = (2, Epilogue::default(), Weights::Dynamic);
        let conv = Conv {
            batch,
            in_channels,
            out_channels,
            groups,
            window,
            weights,
            epilogue: epilogue.clone(),
            workspace_max: 1 << 16,
        };
        let back = ConvTranspose { batch, in_channels, out_channels, groups, window, weights, epilogue };
        let unbuffered = ConvUnbuffered {
            batch,
            in_channels,
            out_channels,
            groups,
            depth: Window::ONE,
            window,
            transposed: false,
            epilogue: Epilogue::default(),
        };
        let forward = [out_channels, of_group[0], 3, 3];
        let backward = [in_channels, of_group[1], 3, 3];
        let cases: [(PlainConv, Kernel, [usize; 4], ChannelAxis); 3] = [
            (PlainConv::Conv(conv.clone()), conv.into(), forward, ChannelAxis::First),
            (PlainConv::Transpose(back.clone()), back.into(), backward, ChannelAxis::Groups(groups)),
            (PlainConv::Unbuffered(unbuffered.clone()), unbuffered.into(), forward, ChannelAxis::First),
        ];
        for (conv, plain, shape, axis) in cases {
            let sizes = plain.sizes().expect("consistent parameters");
            let x = StorageType::F32.bytes(&numbers(&mut random, sizes.inputs[0] as usize / 4));
            let items = Tensor::from_fn(Shape::from(shape), |_| random.uniform(-1.0, 1.0));
            for format in WeightFormat::ALL {
                let function = types::TensorFunction::StoredWeight { format, channels: axis };
                let decoded = function.apply(&[&items]).expect("the weights have channels");
                let extents = CompactConv::extents_of(&shape, axis);
                let kernel = CompactConv { conv: conv.clone(), weights: format, extents };
                let packing = Packing::CompactConvolution(kernel.clone());
                let stored = packing.apply(&items);
                assert_eq!(packing.size(items.elements()), Ok(Some(stored.len() as u64)));
                assert!(packing.apply(&decoded) == stored, "a projection");
                let kernel = Kernel::from(kernel);
                for pool in pools.iter().flatten() {
                    let got = run_bytes(&kernel, &[x.clone(), stored.clone()], None, f32::NAN, pool);
                    let want = run_bytes(&plain, &[x.clone(), decoded.to_le_bytes()], None, f32::NAN, pool);
                    assert!(got == want, "{}: {kernel:?}", pool.isa());
                }
            }
        }
    }
}

#[test]
fn weights_of_other_operands_than_f32_are_refused() {
    let product = MatMul {
        batch: Vec::new(),
        a_strides: Vec::new(),
        b_strides: Vec::new(),
        m: 3,
        k: 8,
        n: 5,
        b: MatMulB::Packed,
        operands: StorageType::F32,
        weights: Some(WeightFormat::Int8),
        zero_point: 0,
        result: StorageType::F32,
        epilogue: Epilogue::default(),
    };
    let refused = |kernel: MatMul| Kernel::from(kernel).sizes().is_err();
    assert!(!refused(product.clone()));
    assert!(refused(MatMul { b: MatMulB::Dynamic, ..product.clone() }));
    assert!(refused(MatMul { operands: StorageType::Bf16, ..product.clone() }));
    assert!(refused(MatMul { result: StorageType::F16, ..product.clone() }));
    assert!(refused(MatMul { operands: StorageType::U8, ..product }));
    assert_eq!(Packing::Padded.dtype(), None::<DType>);
}
