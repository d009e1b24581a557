//! Weights and tensors of 2 to 8 bits.

use onnx_suite::model::{Attr, Dim, Message, Model, info, node};
use types::{DType, Shape, Tensor};

use crate::attention::{assert_near, fused, loaded, numbers, results};
use crate::models::{check, floats, ints, refusal, x};

/// Rows of numbers, each from a byte of its own on, lowest bits first.
fn packed(codes: &[u8], columns: usize, bits: usize) -> Vec<u8> {
    codes
        .chunks(columns)
        .flat_map(|row| {
            row.chunks(8 / bits)
                .map(move |part| part.iter().enumerate().fold(0, |byte, (ix, code)| byte | code << (ix * bits)))
        })
        .collect()
}

/// Some numbers of few bits.
fn codes(count: usize, bits: usize) -> Vec<u8> {
    (0..count).map(|at| ((at * 37 + at / 5 * 11) % (1 << bits)) as u8).collect()
}

fn product(bits: i64, terms: i64, columns: i64, block: i64) -> Vec<(&'static str, Attr)> {
    let of = [("bits", bits), ("K", terms), ("N", columns), ("block_size", block), ("accuracy_level", 4)];
    of.into_iter().map(|(name, value)| (name, Attr::Int(value))).collect()
}

#[test]
fn products_of_few_bits_follow_their_definition() {
    // 40 terms: the second block is not full.
    let (terms, columns, block, blocks) = (40, 3, 32, 2);
    for bits in [2, 4, 8] {
        let all = codes(columns * blocks * block, bits);
        let weights = Tensor::new(Shape::from([columns, blocks, block * bits / 8]), packed(&all, blocks * block, bits));
        let scales = numbers(&[columns, blocks], 3);
        let zero_codes = codes(columns * blocks, bits);
        let zeros = Tensor::vector(packed(&zero_codes, blocks, bits));
        let x = numbers(&[2, 1, terms], 4);
        let bias = numbers(&[columns], 5);
        let order: Vec<i32> = (0..terms).map(|term| (term % blocks) as i32).collect();
        let middle = f64::from(1 << (bits - 1));
        for form in ["zero points", "middle", "floats", "order", "bias"] {
            let mut operands = vec![("A", x.clone()), ("B", weights.clone().unwrap()), ("scales", scales.clone())];
            let mut names = vec!["A", "B", "scales", "", "", ""];
            let mut add = |ix: usize, name: &'static str, tensor: Tensor| {
                names[ix] = name;
                operands.push((name, tensor));
            };
            match form {
                "zero points" => add(3, "zeros", zeros.clone()),
                "floats" => add(3, "zeros", numbers(&[columns, blocks], 6)),
                "order" => add(4, "order", Tensor::vector(order.clone())),
                "bias" => add(5, "bias", bias.clone()),
                _ => {}
            }
            let want: Vec<f64> = (0..2 * columns)
                .map(|at| {
                    let (row, column) = (at / columns, at % columns);
                    let sum = (0..terms).map(|term| {
                        let block_ix = if form == "order" { term % blocks } else { term / block };
                        let zero = match form {
                            "zero points" => f64::from(zero_codes[column * blocks + block_ix]),
                            "floats" => numbers(&[columns, blocks], 6).to_f64()[column * blocks + block_ix],
                            _ => middle,
                        };
                        let code = f64::from(all[column * blocks * block + term]);
                        x.to_f64()[row * terms + term] * (code - zero) * scales.to_f64()[column * blocks + block_ix]
                    });
                    sum.sum::<f64>() + if form == "bias" { bias.to_f64()[column] } else { 0.0 }
                })
                .collect();
            let attributes = product(bits as i64, terms as i64, columns as i64, block as i64);
            let known = ["B", "scales", "zeros", "order", "bias"];
            let got = results(fused("MatMulNBits", &names, &["y"], &attributes), &operands, &known, &["y"]);
            assert_eq!(got[0].shape()[..], [2, 1, columns]);
            for (got, want) in got[0].to_f64().iter().zip(&want) {
                assert!((got - want).abs() < 1e-5 * (1.0 + want.abs() * 10.0), "{bits} bits, {form}: {got}, {want}");
            }
        }
    }
}

#[test]
fn products_of_few_bits_that_cannot_be_read_are_refused() {
    let bytes = |shape: &[usize]| Tensor::full(shape.into(), 0u8);
    let refused = |attributes: &[(&str, Attr)], weights: Tensor, order: Option<Vec<i32>>, known: &[&str]| {
        let mut operands = vec![("A", numbers(&[1, 32], 1)), ("B", weights), ("s", numbers(&[2, 2], 2))];
        operands.extend(order.map(|order| ("order", Tensor::vector(order))));
        let names = ["A", "B", "s", "", if operands.len() == 4 { "order" } else { "" }];
        let node = fused("MatMulNBits", &names, &["y"], attributes);
        loaded(node, &operands, known, &["y"]).expect_err("it is refused").to_string()
    };
    let known = ["B", "s", "order"];
    let weights = bytes(&[2, 2, 8]);
    assert!(refused(&product(3, 32, 2, 16), weights.clone(), None, &known).ends_with("must be 2, 4 or 8, got 3"));
    assert!(
        refused(&product(4, 32, 2, 24), weights.clone(), None, &known).contains("a power of 2 and at least 16, got 24")
    );
    assert!(
        refused(&product(4, 32, 2, 8), weights.clone(), None, &known).contains("a power of 2 and at least 16, got 8")
    );
    assert!(refused(&product(4, 0, 2, 16), weights.clone(), None, &known).contains("attribute `K` must be at least 1"));
    let text = refused(&product(8, 32, 2, 16), weights.clone(), None, &known);
    assert!(text.ends_with("`B` must be u8 with 2 rows of 32 bytes, got u8 [2,2,8]"), "{text}");
    assert!(refused(&product(4, 32, 2, 16), weights.clone(), None, &["s"]).contains("`B` must be constant"));
    let outside = vec![2; 32];
    assert!(refused(&product(4, 32, 2, 16), weights.clone(), Some(outside), &known).contains("must be in 0..2, got 2"));
    assert!(
        refused(&product(4, 32, 2, 16), weights.clone(), Some(vec![0; 31]), &known).contains("must have 32 numbers")
    );
    let mut prepacked = product(4, 32, 2, 16);
    prepacked.push(("weight_prepacked", Attr::Int(1)));
    assert!(refused(&prepacked, weights, None, &known).contains("attribute `weight_prepacked` must be 0"));
}

#[test]
fn omitted_weights_are_zeros() {
    let operands = [
        ("A", numbers(&[2, 32], 1)),
        ("B", Tensor::full([0, 2, 8].into(), 0u8)),
        ("bias", floats(&[3], &[1.0, 2.0, 3.0])),
    ];
    let node = fused("MatMulNBits", &["A", "B", "B", "", "", "bias"], &["y"], &product(4, 32, 3, 16));
    assert_near(&results(node, &operands, &["B", "bias"], &["y"])[0], &[2, 3], &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
}

#[test]
fn four_bit_tables_are_looked_up() {
    // Blocks of 16 go on from row to row: K is 24.
    let bytes: Vec<u8> = (0..36).map(|at| (at * 29 % 251) as u8).collect();
    let scales = floats(&[5], &[1.0, 2.0, 0.5, 3.0, 0.25]);
    let code = |at: usize| usize::from(if at.is_multiple_of(2) { bytes[at / 2] >> 4 } else { bytes[at / 2] & 15 });
    // Two landmarks of each table (bitsandbytes).
    for (kind, landmarks) in [(0, [(3usize, 1.0f64), (12, -1.0 / 3.0)]), (1, [(0, -1.0), (15, 1.0)])] {
        let identity = Tensor::from_fn(Shape::from([24, 24]), |at| if at / 24 == at % 24 { 1.0f32 } else { 0.0 });
        let attributes =
            [("K", 24), ("N", 3), ("block_size", 16), ("quant_type", kind)].map(|(n, v)| (n, Attr::Int(v)));
        let operands = [("A", identity), ("B", Tensor::vector(bytes.clone())), ("s", scales.clone())];
        let got = results(fused("MatMulBnb4", &["A", "B", "s"], &["y"], &attributes), &operands, &["B", "s"], &["y"]);
        let got = got[0].to_f64();
        let mut seen = 0;
        for (term, column) in (0..24).flat_map(|term| (0..3).map(move |column| (term, column))) {
            let at = column * 24 + term;
            for (landmark, value) in landmarks {
                if code(at) == landmark {
                    seen += 1;
                    let want = value * scales.to_f64()[at / 16];
                    assert!((got[term * 3 + column] - want).abs() < 1e-6, "{kind}: {term}, {column}");
                }
            }
        }
        assert!(seen > 3);
    }
}

#[test]
fn rows_of_a_table_are_decoded_after_they_are_gathered() {
    let (rows, columns, block) = (5, 32, 16);
    for bits in [2usize, 4, 8] {
        let all = codes(rows * columns, bits);
        let zero_codes = codes(rows * 2, bits);
        let table = Tensor::new(Shape::from([rows, columns * bits / 8]), packed(&all, columns, bits)).unwrap();
        let zeros = Tensor::new(Shape::from([rows, (2 * bits).div_ceil(8)]), packed(&zero_codes, 2, bits)).unwrap();
        let scales = numbers(&[rows, 2], 8);
        // The last one is outside of the table.
        let index = ints(&[3, -1, 0, 7]);
        let operands = [("t", table), ("i", index), ("s", scales.clone()), ("z", zeros)];
        let attributes =
            [("bits", bits as i64), ("block_size", block as i64)].map(|(name, value)| (name, Attr::Int(value)));
        let node = fused("GatherBlockQuantized", &["t", "i", "s", "z"], &["y"], &attributes);
        let got = results(node, &operands, &["t", "s", "z"], &["y"]);
        let want: Vec<f64> = [3usize, 4, 0, 7]
            .iter()
            .flat_map(|&row| (0..columns).map(move |column| (row, column)))
            .map(|(row, column)| {
                if rows <= row {
                    return 0.0;
                }
                let at = row * 2 + column / block;
                (f64::from(all[row * columns + column]) - f64::from(zero_codes[at])) * scales.to_f64()[at]
            })
            .collect();
        assert_near(&got[0], &[4, columns], &want);
    }
}

/// A tensor of an element type of few bits.
fn narrow(name: &str, element: i64, dims: &[usize], raw: &[u8]) -> Message {
    let dims = dims.iter().fold(Message::new(), |message, &extent| message.int(1, extent as i64));
    dims.int(2, element).text(8, name).bytes(9, raw)
}

#[test]
fn tensors_of_few_bits_are_dequantized() {
    // Elements `int4` 1, -2, 7, -8, 3 and `uint4` likewise; two blocks of three, the second not full.
    let raw = [0xe1, 0x87, 0x03];
    for (element, numbers) in [(22, [1.0, -2.0, 7.0, -8.0, 3.0]), (21, [1.0, 14.0, 7.0, 8.0, 3.0])] {
        let attributes = [("axis", Attr::Int(0)), ("block_size", Attr::Int(3))];
        let mut model = Model::new(21, vec![x(&[5])], vec![], "y");
        model.initializers.push(narrow("q", element, &[5], &raw));
        model = model.with("s", &floats(&[2], &[0.5, 2.0]));
        model.nodes =
            vec![node("DequantizeLinear", &["q", "s"], &["w"], &attributes), node("Mul", &["x", "w"], &["y"], &[])];
        let want: Vec<f64> = (0..5).map(|at| numbers[at] * [0.5, 2.0][at / 3]).collect();
        check(&model, &[floats(&[5], &[1.0; 5])], &want);
    }
    // Floats of 8 bits: 1.5, -448, 2^-9 of `e4m3fn`, and scales in half precision.
    let mut model = Model::new(19, vec![x(&[3])], vec![], "y");
    model.initializers.push(narrow("q", 17, &[3], &[0x3c, 0xfe, 0x01]));
    model = model.with("s", &floats(&[], &[2.0]).cast(DType::F16));
    model.nodes = vec![
        node("DequantizeLinear", &["q", "s"], &["h"], &[]),
        node("Cast", &["h"], &["w"], &[("to", Attr::Int(1))]),
        node("Mul", &["x", "w"], &["y"], &[]),
    ];
    check(&model, &[floats(&[3], &[1.0; 3])], &[3.0, -896.0, 0.00390625]);
}

#[test]
fn few_bits_in_integers_and_with_a_wrong_size_are_read_or_refused() {
    let of = |tensor: Message| {
        let mut model = Model::new(28, vec![x(&[])], vec![], "y");
        model.initializers.push(tensor);
        model.nodes =
            vec![node("Cast", &["q"], &["w"], &[("to", Attr::Int(1))]), node("Mul", &["x", "w"], &["y"], &[])];
        model
    };
    let one = || floats(&[], &[1.0]);
    // Two numbers for each integer, and three of 6 bits, one for each.
    let four = Message::new().int(1, 3).int(2, 22).text(8, "q").int(5, 0xe1).int(5, 0x07);
    check(&of(four), &[one()], &[1.0, -2.0, 7.0]);
    let six = Message::new().int(1, 2).int(2, 27).text(8, "q").int(5, 0x1f).int(5, 0x21);
    check(&of(six), &[one()], &[7.5, -0.125]);
    // 6 bits across bytes: 0x1f, 0x21, 0x01.
    check(&of(narrow("q", 27, &[3], &[0x5f, 0x18, 0x00])), &[one()], &[7.5, -0.125, 0.125]);
    check(&of(narrow("q", 25, &[5], &[0xe4, 0x02])), &[one()], &[0.0, 1.0, 2.0, 3.0, 2.0]);
    let text = refusal(&of(narrow("q", 22, &[3], &[0xe1])));
    assert_eq!(text, "tensor `q`: 3 numbers of int4 must be in 2 bytes, got 1");
}

#[test]
fn quantization_to_few_bits_saturates_to_their_range() {
    let input = floats(&[4], &[-100.0, 3.4, 3.6, 100.0]);
    for (element, raw, want) in [(22, [0x0f], [-8.0, 2.0, 3.0, 7.0]), (21, [0x02], [0.0, 5.0, 6.0, 15.0])] {
        let mut model = Model::new(21, vec![x(&[4])], vec![], "y").with("s", &floats(&[], &[1.0]));
        // The zero point is -1 or 2, and keeps its type when it is reshaped.
        model.initializers.push(narrow("flat", element, &[1], &raw));
        model = model.with("none", &Tensor::new(Shape::from([0]), Vec::<i64>::new()).unwrap());
        model.nodes = vec![
            node("Reshape", &["flat", "none"], &["z"], &[]),
            node("QuantizeLinear", &["x", "s", "z"], &["y"], &[]),
        ];
        check(&model, std::slice::from_ref(&input), &want);
    }
    let declared = Model::new(25, vec![x(&[4])], vec![], "y").with("s", &floats(&[], &[1.0]));
    let of = |element: i64| {
        let attributes = [("output_dtype", Attr::Int(element))];
        Model { nodes: vec![node("QuantizeLinear", &["x", "s"], &["y"], &attributes)], ..declared.clone() }
    };
    check(&of(26), std::slice::from_ref(&input), &[-2.0, 1.0, 1.0, 1.0]);
    assert!(refusal(&of(17)).ends_with("quantization to float8e4m3fn is not supported"));
}

#[test]
fn integers_wrap_to_few_bits_and_floats_are_refused() {
    let of = |dtype: DType, to: i64| {
        let given = info("x", dtype, &[Dim::Is(4)]);
        Model::new(21, vec![given], vec![node("Cast", &["x"], &["y"], &[("to", Attr::Int(to))])], "y")
    };
    check(&of(DType::I64, 22), &[ints(&[7, 8, -9, 100])], &[7.0, -8.0, 7.0, 4.0]);
    check(&of(DType::I64, 25), &[ints(&[3, 4, -1, 6])], &[3.0, 0.0, 3.0, 2.0]);
    assert!(refusal(&of(DType::F32, 22)).contains("conversion of f32 to int4 is not supported"));
    assert!(refusal(&of(DType::I64, 19)).contains("conversion of i64 to float8e5m2 is not supported"));
}

#[test]
fn bits_are_read_as_another_type() {
    let of = |dtype: DType, to: i64| {
        let given = info("x", dtype, &[Dim::Is(2)]);
        Model::new(26, vec![given], vec![node("BitCast", &["x"], &["y"], &[("to", Attr::Int(to))])], "y")
    };
    check(&of(DType::F32, 6), &[floats(&[2], &[1.0, -0.0])], &[1065353216.0, -2147483648.0]);
    check(&of(DType::I64, 11), &[ints(&[0x3ff0_0000_0000_0000, 0])], &[1.0, 0.0]);
    check(&of(DType::Bool, 2), &[Tensor::vector(vec![true, false])], &[1.0, 0.0]);
    assert!(refusal(&of(DType::F32, 7)).contains("dtypes must have the same size and not be bool, got f32 and i64"));
    assert!(refusal(&of(DType::U8, 21)).contains("bits of uint4 are not supported"));
}
