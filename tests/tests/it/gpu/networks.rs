//! Networks in `prestow-gpu-check`, on the driver's mock.

use super::*;

/// `prestow gpu-check` on a driver without a GPU.
#[test]
fn gpu_check_reports_networks() {
    let test = "gpu::networks::gpu_check_reports_networks";
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let request = compiler::source::Request { model: "lenet".into(), batch: Some(2), ..Default::default() };
    let graph = compiler::source::load(&request).expect("it has a name").graph;
    let Some(mocked) = Mocked::new(test, "gpu-check", graph, How { code: None, ..How::default() }) else { return };
    let report = mocked.folder.join("report.json");
    let check = |more: &[&str], fail: &str| {
        let mut command = without_libraries(&program("prestow-gpu-check"));
        command.args(["lenet", "--batch", "2", "--iters", "2"]).args(more).args(["--peers", "none"]);
        if !more.contains(&"--dtype") {
            command.args(["--dtype", "f32"]);
        }
        command.arg("--data");
        command.arg(root().join("data")).arg("-o").arg(&report).env("LD_LIBRARY_PATH", &mocked.folder);
        let out = command.env("PRESTOW_MOCK_FAIL", fail).output().expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    // Refused networks do not fail the check.
    let (code, said) = check(&["nonesuch"], "");
    assert!(code == Some(0) && said.contains("Mock GPU (sm_90)") && said.contains("equal"), "{said}");
    assert!(said.contains("nonesuch") && said.contains("refused"), "{said}");
    let bytes = std::fs::read(&report).expect("it is written");
    let report: serde_json::Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let row = &report["networks"][0];
    assert_eq!((row["verdict"].as_str(), row["batch"].as_u64()), (Some("equal"), Some(2)));
    assert_eq!((row["dtype"].as_str(), &report["dtypes"]), (Some("f32"), &serde_json::json!(["f32"])));
    let items = row["device_memory"].as_array().expect("a list");
    let seen = items.iter().find(|item| item["what"] == "device: arena and constants").expect("it is told");
    assert_eq!(row["block_bytes"], seen["bytes"], "{row}");
    assert!(row["device_ms"]["p50"].as_f64().is_some_and(|ms| 0.0 < ms), "{row}");
    assert!(row["difference"].as_f64().is_some_and(|difference| difference < 1e-4), "{row}");
    assert!(row["gpu_ms"].as_f64().is_some_and(|ms| 0.0 < ms), "{row}");
    // Each precision of a run has its row. The driver's mock has no half-precision kernels here.
    let (code, said) = check(&["--dtype", "f32,bf16"], "");
    let row = |dtype: &str| {
        let line = said.lines().find(|line| line.starts_with("lenet") && line.split_whitespace().nth(2) == Some(dtype));
        line.unwrap_or_else(|| panic!("{said}"))
    };
    assert!(code == Some(1) && row("f32").ends_with("equal") && row("bf16").contains("FAILED"), "{said}");
    // Kernels that the driver's mock lacks are a failure.
    let (code, said) = check(&["dlbs/acoustic_model"], "");
    assert!(code == Some(1) && said.contains("dlbs/acoustic_model") && said.contains("FAILED"), "{said}");
    let (code, said) = check(&[], "cuInit:1:999");
    assert!(code == Some(2) && said.contains("the GPU failed at"), "{said}");
}

/// The same with convolutions by cuDNN, planned for the properties of the GPU that is present.
#[test]
fn gpu_check_runs_networks_with_cudnn() {
    let test = "gpu::networks::gpu_check_runs_networks_with_cudnn";
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let request = compiler::source::Request { model: "lenet".into(), batch: Some(2), ..Default::default() };
    let graph = compiler::source::load(&request).expect("it has a name").graph;
    let Some(mocked) = Mocked::new(test, "gpu-check-cudnn", graph, with_cudnn(None)) else { return };
    let mut command = without_libraries(&program("prestow-gpu-check"));
    command
        .args(["lenet", "--batch", "2", "--iters", "2", "--cudnn", "--dtype", "f32", "--peers", "none", "--data"])
        .arg(root().join("data"));
    command.env("LD_LIBRARY_PATH", &mocked.folder).env("PRESTOW_CUDA_LIBS", &mocked.folder);
    let out = command.env("PRESTOW_MOCK_TRACE", mocked.folder.join("trace")).output().expect("it is built");
    let said = text(&out.stdout) + &text(&out.stderr);
    assert!(out.status.success() && said.contains("cuDNN 9.19.0") && said.contains("equal"), "{said}");
    assert!(!by_cudnn(&mocked.plan).is_empty() && mocked.trace().contains("\ncudnn "), "{}", mocked.trace());
}
