//! The text of emitted kernels.

use super::*;

/// The emitted text of a small network, with its launches. Templates are not part of it.
#[test]
fn emitted_text_of_kernels() {
    let mut graph = Graph::new("small");
    let x = graph.add_input("x", DType::F32, types::Shape::from([1, 8, 6, 5]));
    let mut known = |name: &str, shape: &[usize]| {
        graph.add_weight(name, Tensor::from_fn(types::Shape::from(shape), |ix| ix as f32 * 0.25))
    };
    let (weight, bias, scale) = (known("weight", &[16, 8, 3, 3]), known("bias", &[16]), known("scale", &[16, 1, 1]));
    let conv = ir::ops::Conv { epilogue: ir::ops::Epilogue::bias(true), ..ir::ops::Conv::square(2, 1) };
    let mut add = |op: Op, inputs: &[ValueId], name: &str| {
        graph.add1(op, inputs, types::Scope::new(name)).expect("it is accepted")
    };
    let sum = add(conv.into(), &[x, weight, bias], "conv");
    let relu = add(ir::ops::Unary(types::pointwise::Unary::Relu).into(), &[sum], "relu");
    let scaled = add(ir::ops::Binary(types::pointwise::Binary::Mul).into(), &[relu, scale], "scale");
    let order = [0, 2, 3, 1].into_iter().collect();
    let turned = add(ir::ops::Transpose { order }.into(), &[scaled], "turned");
    let y = add(ir::ops::Softmax { axis: 3, log: false }.into(), &[turned], "y");
    graph.set_outputs(vec![("y".into(), y)]);
    let mut compiled = compiled(graph).expect("there are kernels");
    let source = assemble([&mut compiled.plan]);
    let start = source.text.find("extern \"C\"").expect("there is a function");
    insta::assert_snapshot!(&source.text[start..]);
    let launches = compiled.plan.steps.iter().map(|step| {
        let Launch { entry, grid, block, .. } = launch(&step.code);
        format!("{entry} {grid:?} {block:?}")
    });
    assert_eq!(
        launches.collect::<Vec<_>>(),
        [
            "conv_0 [1, 1, 1] [256, 1, 1]",
            "pointwise_1 [1, 1, 1] [256, 1, 1]",
            "move_2 [1, 1, 1] [256, 1, 1]",
            "softmax_3 [9, 1, 1] [256, 1, 1]",
        ]
    );
}

/// One kernel of each kind with its launch, in `f32`, in `f16` and with TF32 rounding.
#[test]
fn emitted_text_of_every_kind() {
    let (cases, _) = cases();
    let mut text = String::new();
    for target in [target(DType::F32), target(DType::F16), target(DType::F32).rounding()] {
        let graphs = match lower::Target::precision(&target) {
            DType::F32 => cases.clone(),
            dtype => half_cases(&cases, dtype),
        };
        let mut kinds = std::collections::BTreeSet::new();
        // Rounding changes products and convolutions only.
        let rounds = lower::Target::name(&target).ends_with("+tf32");
        for (name, graph) in graphs {
            let mut compiled = compiled_for(graph, &target).expect("there are kernels").1;
            let is_told = |kernel: &str| !rounds || ["cuda_conv", "cuda_product"].contains(&kernel);
            let mut is_new = |kernel: &str| is_told(kernel) && kinds.insert(kernel.to_string());
            let new: Vec<bool> = compiled.plan.steps.iter().map(|step| is_new(&step.kernel)).collect();
            let source = assemble([&mut compiled.plan]);
            for (step, _) in compiled.plan.steps.iter().zip(new).filter(|(_, new)| *new) {
                let Launch { entry, grid, block, repeat, .. } = launch(&step.code);
                let repeat = repeat.map(|repeat| format!(", {repeat} times")).unwrap_or_default();
                let head = format!(
                    "// {}, {name}: {} on {grid:?} x {block:?}{repeat}",
                    lower::Target::name(&target),
                    step.label
                );
                text.push_str(&format!("{head}\n{}\n}}\n\n", body(&source, &entry).trim_start()));
            }
        }
        assert!(if rounds { 2 } else { 10 } <= kinds.len(), "{kinds:?}");
    }
    insta::assert_snapshot!(text);
}

/// Max pooling, which has no `u8` kernel.
fn maximum() -> Op {
    ir::ops::Pool {
        kind: ir::ops::PoolKind::Max,
        kernel: [2, 2].into_iter().collect(),
        stride: [2, 2].into_iter().collect(),
        dilation: [1, 1].into_iter().collect(),
        pad: [[0, 0]; 2].into_iter().collect(),
        ceil: false,
    }
    .into()
}

/// The emitted text with half precision between kernels.
#[test]
fn emitted_text_of_half_precision_kernels() {
    let mut graph = Graph::new("halves");
    let x = graph.add_input("x", DType::F32, types::Shape::from([1, 8, 6, 5]));
    let mut known = |name: &str, shape: &[usize]| {
        graph.add_weight(name, Tensor::from_fn(types::Shape::from(shape), |ix| ix as f32 * 0.25))
    };
    let (first, bias, last) = (known("first", &[16, 8, 3, 3]), known("bias", &[16]), known("last", &[16, 3]));
    let mut add = |op: Op, inputs: &[ValueId], name: &str| {
        graph.add1(op, inputs, types::Scope::new(name)).expect("it is accepted")
    };
    let conv = ir::ops::Conv { epilogue: ir::ops::Epilogue::bias(true), ..ir::ops::Conv::square(2, 1) };
    let sum = add(conv.into(), &[x, first, bias], "conv");
    let pooled = add(maximum(), &[sum], "pool");
    let rows = add(ir::ops::Reshape { shape: types::Shape::from([1, 16]) }.into(), &[pooled], "rows");
    let y = add(ir::ops::MatMul::default().into(), &[rows, last], "y");
    graph.set_outputs(vec![("y".into(), y)]);
    let (_, mut compiled) = compiled_as(graph, DType::Bf16).expect("there are kernels");
    let source = assemble([&mut compiled.plan]);
    let start = source.text.find("extern \"C\"").expect("there is a function");
    insta::assert_snapshot!(&source.text[start..]);
}

#[test]
fn refusals_name_node_and_target() {
    let mut graph = Graph::new("bytes");
    let x = graph.add_input("x", DType::U8, types::Shape::from([1, 1, 4, 4]));
    let y = graph.add1(maximum(), &[x], types::Scope::new("stage/pool")).expect("it is accepted");
    graph.set_outputs(vec![("y".into(), y)]);
    let error = compiled(graph).expect_err("there is no such kernel").to_string();
    assert!(error.contains("stage/pool") && error.contains("cuda:sm_90") && error.contains("u8"), "{error}");
    assert!(CudaTarget::named("cuda:sm_70").is_none());

    // All unsupported nodes are in one list.
    let mut graph = Graph::new("two");
    let inputs = ["a", "b"].map(|name| graph.add_input(name, DType::U8, types::Shape::from([1, 1, 4, 4])));
    let outputs = [("first", inputs[0]), ("second", inputs[1])].map(|(name, x)| {
        let y = graph.add1(maximum(), &[x], types::Scope::new(name));
        (name.to_string(), y.expect("it is accepted"))
    });
    graph.set_outputs(outputs.to_vec());
    let error = compiled(graph).expect_err("there is no such kernel").to_string();
    assert!(error.contains("first") && error.contains("second") && error.contains("2 nodes"), "{error}");
}
