//! Emitted kernels of whole networks, compared with the processor's kernels.

use super::*;

/// Whole networks behind the shim, compared with the processor's kernels.
#[test]
fn networks_match_the_processor() {
    let mut graphs = vec![
        small_network("squeezenet1.1", &[1, 3, 64, 64]),
        small_network("mobilenet_v2", &[1, 3, 64, 64]),
        small_network("resnet18", &[2, 3, 40, 48]),
        small_network("densenet121", &[1, 3, 32, 32]),
    ];
    graphs.extend(small_graphs(20));
    compare("cuda::networks::networks_match_the_processor", &graphs, DType::F32);
}

/// The same with half precision between kernels and products on tensor cores.
#[test]
fn half_precision_networks_match_the_processor() {
    let test = "cuda::networks::half_precision_networks_match_the_processor";
    for (dtype, network) in [(DType::F16, "mobilenet_v2"), (DType::Bf16, "resnet18")] {
        let mut graphs = small_graphs(12);
        graphs.push(small_network(network, &[1, 3, 48, 40]));
        compare(test, &graphs, dtype);
    }
}

fn small_network(name: &str, shape: &[usize]) -> (String, Graph) {
    (name.to_string(), crate::gpu::network(name, shape))
}

/// A transformer and `count` random graphs.
fn small_graphs(count: u64) -> Vec<(String, Graph)> {
    let random = (0..count).map(|seed| (format!("random {seed}"), crate::pass_results::random_graph(seed)));
    [("transformer".to_string(), crate::transformers::transformer(2))].into_iter().chain(random).collect()
}

/// Runs graphs behind the shim and compares their results with the processor's in `f32`.
fn compare(test: &str, graphs: &[(String, Graph)], dtype: DType) {
    let Some(runs) = run_all(test, &format!("cuda-networks-{dtype}"), graphs, dtype, &["-O2"]) else { return };
    let parts = if dtype.is_half() { 8.0 * cases::judge::step(dtype) } else { 1e-3 };
    let mut stored = 0;
    for ((name, graph), Run { given, got, rounded }) in graphs.iter().zip(&runs) {
        let processor = crate::support::compiled(graph.clone()).expect("processors have kernels for it");
        let want = crate::support::open(&processor, 2).run_tensors(given).expect("the inputs fit");
        assert_near(&format!("{name}, {dtype}"), got, &want, parts);
        let halves = rounded.nodes().values().filter(|node| rounded.ty(node.outputs[0]).dtype == dtype);
        stored += usize::from(0 < halves.count());
    }
    assert!(6 <= stored, "some graphs have something that is stored: {stored}");
}

/// Whole networks have other extents than cases: no function of them has a stack frame or spills.
#[test]
fn networks_compile_without_spills() {
    let Some(compiler) = compiler("cuda::networks::networks_compile_without_spills") else { return };
    for name in ["resnet50", "bert_base", "mobilenet_v2", "densenet121", "vgg16", "dlbs/deep_speech2"] {
        let request = compiler::source::Request { model: name.into(), batch: Some(64), ..Default::default() };
        let graph = compiler::source::load(&request).unwrap_or_else(|error| panic!("{name}: {error}")).graph;
        for (arch, target) in [("sm_90", "cuda:sm_90"), ("sm_80", "cuda:sm_80")] {
            let target = CudaTarget::named(target).expect("it is known").storing(DType::F16);
            check_resources(&compiler, vec![(name.to_string(), graph.clone())], &target, &[arch]);
        }
    }
}
