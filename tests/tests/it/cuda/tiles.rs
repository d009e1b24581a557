//! Tiles, split-K and grids of products and convolutions.

use super::*;

/// Tensor-core kernels copy operands in the widest units that the alignment allows.
#[test]
fn copy_width_follows_the_operands_alignment() {
    let by = |target: &CudaTarget, graph: Graph| {
        let mut plan = compiled_for(graph, target).expect("there are kernels").1.plan;
        let text = assemble([&mut plan]).text;
        let call = &text[text.find("extern \"C\"").expect("there is a function")..];
        let behind = |start: &str| call.find(start).map(|at| &call[at..]);
        // The last arguments: for matrices with whether the right one has a line for each column.
        let (arguments, end, more) = match behind("Matrices<") {
            Some(matrices) => (matrices, ">{", 1),
            None => (behind("_by_cores<").expect("tensor cores multiply"), ">(", 0),
        };
        let arguments = arguments.split(end).next().unwrap_or_default();
        let numbers: Vec<usize> =
            arguments.rsplit(", ").skip(more).take(2).filter_map(|number| number.parse().ok()).collect();
        (numbers[1], numbers[0])
    };
    let graphs: Vec<(String, Graph)> = copied().into_iter().map(|case| (case.name, case.graph)).collect();
    let halves: Vec<(usize, usize)> = graphs
        .iter()
        .map(|(_, graph)| by(&target(DType::F16), to_half_precision(graph, DType::F16).expect("it takes halves")))
        .collect();
    // Left and right operands, whole and as parts of a larger tensor; then weights and pixels.
    let products = [(16, 16), (2, 16), (8, 8), (2, 8), (4, 4), (2, 4), (2, 2), (2, 2)];
    assert_eq!(halves, [&products[..], &[(16, 16), (8, 8), (4, 4), (2, 2)]].concat());
    let words: Vec<(usize, usize)> =
        graphs.iter().map(|(_, graph)| by(&target(DType::F32).rounding(), graph.clone())).collect();
    let products = [(16, 16), (4, 16), (16, 16), (4, 16), (8, 8), (4, 8), (4, 4), (4, 4)];
    assert_eq!(words, [&products[..], &[(16, 16), (16, 16), (8, 8), (4, 4)]].concat());
}

/// Half-precision products and convolutions run on tensor cores, with large tiles if there are many.
#[test]
fn large_half_precision_products_use_large_tiles() {
    let cases = large();
    let kinds = [("f16", DType::F16), ("bf16", DType::Bf16)];
    for (name, dtype) in kinds {
        let mut plans: Vec<Compiled> =
            cases.iter().map(|case| compiled_as(case.graph.clone(), dtype).expect("there are kernels").1).collect();
        let source = assemble(plans.iter_mut().map(|compiled| &mut compiled.plan));
        let shape = "Tile<2, 4, 4, 4>";
        let product = format!("Matrices<{name}, {shape}, 1030, 1029, 37, 2, 2, false>{{a, b}}, y, i, finish");
        assert!(source.text.contains(&product), "{}", source.text);
        let window = "Window<63, 66, 63, 66, 3, 3, 1, 1, 1, 1, 1, 1>";
        let conv = format!("convolve_by_cores<{name}, {window}, {shape}, 5, 261, 1, 1, 2, 2>(a0, a1, y, finish)");
        assert!(source.text.contains(&conv), "{}", source.text);
        let grids: Vec<[u32; 3]> = plans
            .iter()
            .map(|compiled| launch(&compiled.plan.steps.last().expect("there are steps").code).grid)
            .collect();
        assert_eq!(grids, [[9, 9, 1], [33, 3, 1]]);
    }
    // `f32` operands are multiplied in `f32`.
    let mut plan = compiled(cases[0].graph.clone()).expect("there are kernels").plan;
    let text = assemble([&mut plan]).text;
    assert!(text.contains("product<1030, 1029, 37, 1>(0, left, right, store)") && !text.contains("mma.sync"), "{text}");
}

/// Products and convolutions with few tiles and many terms, after the reduction of a wide input.
fn deep_products() -> Vec<(String, Graph)> {
    let known = |graph: &mut Graph, shape: &[usize]| {
        let item = |ix: usize| ((ix * 29) % 31) as f32 * 0.06 - 0.9;
        graph.add_weight("weight", Tensor::from_fn(types::Shape::from(shape), item))
    };
    let vector = |graph: &mut Graph, extent: usize| {
        graph.add_weight("bias", Tensor::from_fn(types::Shape::from([extent]), |ix| ix as f32 * 0.125))
    };
    let begun = || {
        let mut graph = Graph::new("deep");
        let wide = graph.add_input("wide", DType::F32, types::Shape::from([1 << 18]));
        let kind = ir::ops::ReduceKind::Max;
        let reduce = ir::ops::Reduce { kind, axes: [0].into_iter().collect(), keep: true };
        let most = graph.add1(reduce.into(), &[wide], types::Scope::new("most")).expect("it is accepted");
        (graph, ("most".to_string(), most))
    };
    let mut graphs = Vec::new();
    for (batch, [rows, terms, columns]) in
        [(1, [3, 1000, 70]), (3, [65, 257, 9]), (1, [1, 4099, 5]), (2, [70, 640, 66]), (1, [64, 128, 64])]
    {
        let (mut graph, most) = begun();
        let x = graph.add_input("x", DType::F32, types::Shape::from([batch, rows, terms]));
        let shapes: [&[usize]; 2] = [&[terms, columns], &[batch, terms, columns]];
        let (weight, bias) = (known(&mut graph, shapes[usize::from(1 < batch)]), vector(&mut graph, columns));
        // This operand orders the reduction of the wide input before the product.
        let x = graph.add1(ir::ops::Binary(types::pointwise::Binary::Mul).into(), &[x, most.1], types::Scope::new("x"));
        let x = x.expect("it is accepted");
        let residual = graph.add_input("residual", DType::F32, types::Shape::from([batch, rows, columns]));
        let epilogue = ir::ops::Epilogue { residual: true, ..ir::ops::Epilogue::bias(true) };
        let product = ir::ops::MatMul { epilogue, ..Default::default() };
        let y = graph.add1(product.into(), &[x, weight, bias, residual], types::Scope::new("deep"));
        graph.set_outputs(vec![most, ("y".into(), y.expect("it is accepted"))]);
        graphs.push((format!("{batch} of {rows}x{terms}x{columns}"), graph));
    }
    for (groups, [ins, outs, size]) in [(1, [96, 40, 7]), (2, [64, 16, 5]), (1, [130, 8, 3])] {
        let (mut graph, most) = begun();
        let x = graph.add_input("x", DType::F32, types::Shape::from([2, ins * groups, size, size]));
        let (weight, bias) = (known(&mut graph, &[outs * groups, ins, 3, 3]), vector(&mut graph, outs * groups));
        let epilogue = ir::ops::Epilogue::bias(true);
        let conv = ir::ops::Conv { groups, epilogue, ..ir::ops::Conv::square(1, 1) };
        let y = graph.add1(conv.into(), &[x, weight, bias], types::Scope::new("deep")).expect("it is accepted");
        graph.set_outputs(vec![most, ("y".into(), y)]);
        graphs.push((format!("{groups} groups of {ins} to {outs}, {size} x {size}"), graph));
    }
    graphs
}

/// With few tiles, a product uses split-K. Results are right in every precision, and the planned workspace does not
/// raise the arena's peak.
#[test]
fn few_tiles_use_split_k() {
    let test = "cuda::tiles::few_tiles_use_split_k";
    let graphs = deep_products();
    let planned = |graph: &Graph, numbers: &CudaTarget| {
        let mut plan = compiled_for(graph.clone(), numbers).expect("there are kernels").1.plan;
        assemble([&mut plan]);
        let deep = |step: &&plan::Step| ["cuda_product", "cuda_conv"].contains(&&step.kernel[..]);
        let step = plan.steps.iter().find(deep).expect("there is one").clone();
        (plan, launch(&step.code), step.workspace.map(|workspace| workspace.size.0))
    };
    for (name, numbers, step) in [
        ("f32", target(DType::F32), 0.0),
        ("tf32", target(DType::F32).rounding(), 1.0 / 1024.0),
        ("f16", target(DType::F16), 1.0 / 1024.0),
        ("bf16", target(DType::Bf16), 1.0 / 128.0),
    ] {
        let mut cut = 0;
        for (which, graph) in &graphs {
            let (plan, Launch { grid, repeat, .. }, workspace) = planned(graph, &numbers);
            assert!(grid.iter().product::<u32>() <= 128, "{which}: {grid:?}");
            assert_eq!(repeat.is_some(), workspace.is_some(), "{which}");
            if let (Some(repeat), Some(workspace)) = (repeat, workspace) {
                // The workspace has an `f32` sum for each result and part, and at least three parts.
                let sums = 4 * graph.ty(graph.outputs()[1].value).shape.elements() as u64;
                assert!(repeat == 2 && workspace.is_multiple_of(sums) && 3 * sums <= workspace, "{which}");
                cut += 1;
            }
            // The peak is at the wide input, before the workspace is live.
            let wide = |buffer: &plan::Buffer| buffer.size.0 == 1 << 20;
            let last = plan.buffers.iter().find(|buffer| wide(buffer)).expect("it is there").last_step;
            assert!(plan.arena.peak_step <= last, "{which}: the arena is largest at {}", plan.arena.peak_step);
        }
        assert!(6 <= cut, "{name}: {cut}");
        let given: Vec<Vec<Tensor>> = graphs.iter().map(|(_, graph)| inputs(graph, 3)).collect();
        let Some(runs) = run_given(test, &format!("cuda-parts-{name}"), &graphs, given, &numbers, &SANITIZERS) else {
            return;
        };
        for ((which, _), Run { given, got, rounded }) in graphs.iter().zip(&runs) {
            let want = evaluate(rounded, given).expect("the graph verifies");
            let largest = want[1].to_f64().into_iter().fold(0.0f64, |a, b| a.max(b.abs()));
            let apart = difference(&got[1], &want[1], 4e-5 + step, (4e-5 + step) * largest);
            assert_eq!(apart, None, "{name}: {which}");
        }
    }
    // A product at the peak has no spare workspace.
    let mut graph = Graph::new("alone");
    let x = graph.add_input("x", DType::F32, types::Shape::from([3, 1000]));
    let weight = graph.add_weight("weight", Tensor::from_fn(types::Shape::from([1000, 70]), |_| 0.5f32));
    let y = graph.add1(ir::ops::MatMul::default().into(), &[x, weight], types::Scope::new("alone"));
    graph.set_outputs(vec![("y".into(), y.expect("it is accepted"))]);
    let (_, Launch { repeat, .. }, workspace) = planned(&graph, &target(DType::F32));
    assert_eq!((repeat, workspace), (None, None));
}

/// A grid has at most 65535 blocks along its second and third axis. Convolutions that need more use one thread per
/// output.
#[test]
fn grids_stay_within_the_hardware_limit() {
    let conv = |batch: usize, outs: usize| -> (String, [u32; 3]) {
        let mut graph = Graph::new("wide");
        let x = graph.add_input("x", DType::F32, types::Shape::from([batch, 1, 1, 1]));
        let weight = graph.add_weight("weight", Tensor::from_fn(types::Shape::from([outs, 1, 1, 1]), |_| 0.5f32));
        let y = graph.add1(ir::ops::Conv::square(1, 0).into(), &[x, weight], types::Scope::new("wide"));
        graph.set_outputs(vec![("y".into(), y.expect("it is accepted"))]);
        let mut plan = compiled(graph).expect("there are kernels").plan;
        let text = assemble([&mut plan]).text;
        assert!(text.contains("convolve"), "{text}");
        let Launch { entry, grid, .. } = launch(&plan.steps.last().expect("there are steps").code);
        (entry, grid)
    };
    const MAX: usize = 65_535;
    assert_eq!(conv(1, 64 * MAX), ("conv_0".into(), [1, MAX as u32, 1]));
    assert_eq!(conv(1, 64 * MAX + 1), ("conv_each_0".into(), [(64 * MAX as u32 + 1).div_ceil(256), 1, 1]));
    assert_eq!(conv(MAX, 8), ("conv_0".into(), [1, 1, MAX as u32]));
    assert_eq!(conv(MAX + 1, 8), ("conv_each_0".into(), [(8 * (MAX as u32 + 1)).div_ceil(256), 1, 1]));
}
