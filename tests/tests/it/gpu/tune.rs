//! `--tune` for a GPU, on the driver's mock. The libraries' mocks have two algorithms, the first one slow.

use std::path::Path;

use cuda::MathMode;
use cuda_mock::Library;
use types::{Bytes, DType};

use crate::executables::{program, text};
use crate::gpu::{How, Mocked, build_mock, without_libraries};
use crate::support::root;

#[test]
fn fastest_algorithms_are_used_and_cached() {
    let test = "gpu::tune::fastest_algorithms_are_used_and_cached";
    let request = compiler::source::Request { model: "lenet".into(), batch: Some(2), ..Default::default() };
    let graph = compiler::source::load(&request).expect("it has a name").graph;
    let cublas = Some((MathMode::Strict, Bytes(1 << 20)));
    let how = How { code: None, cudnn: Some(MathMode::Strict), cublas, dtype: DType::F32, ..How::default() };
    let Some(mocked) = Mocked::new(test, "gpu-tune", graph, how) else { return };
    // Emitted kernels are measured too: NVRTC's mock compiles them for the processor.
    assert!(build_mock(Library::Nvrtc, &mocked.folder), "the driver was built");
    let own = |name: &str| mocked.folder.join(name).to_str().expect("it is text").to_string();
    let run = |name: &str, words: &[&str], more: &[(&str, &str)]| {
        let mut command = without_libraries(&program(name));
        command.args(words).arg("--data").arg(root().join("data"));
        command.env("LD_LIBRARY_PATH", &mocked.folder).env("PRESTOW_CUDA_LIBS", &mocked.folder);
        command.env("PRESTOW_MOCK_CUDNN_SLOW", "4").env("PRESTOW_MOCK_CUBLAS_ALGORITHMS", "two");
        // NVRTC's mock calls the C++ compiler.
        command.env("PATH", crate::environment("PATH").unwrap_or_default());
        command.env("PRESTOW_MOCK_NVRTC_SHIM", cuda_mock::headers());
        let out = command.envs(more.iter().copied()).output().expect("it is built");
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let prestow = |words: &[&str], more: &[(&str, &str)]| run("prestow", words, more);
    let (facts, cache) = (own("mock.json"), own("tuned-gpu.tsv"));
    assert_eq!(prestow(&["target", "record", "-o", &facts], &[]).0, Some(0));
    let compile = |exe: &str, more: &[&str]| {
        let words = ["compile", "lenet", "--batch", "2", "--target", &facts, "--cublas-workspace", "1MiB", "-o", exe];
        prestow(&[&words, more].concat(), &[])
    };
    let libraries = ["--cudnn", "--cublas"];
    let tuned = |exe: &str, seconds: &str| {
        let tune = format!("--tune={seconds}");
        let words = [&libraries[..], &[&tune, "--tune-cache", &cache, "--json"]].concat();
        let (code, said, errors) = compile(exe, &words);
        assert_eq!(code, Some(0), "{errors}");
        (serde_json::from_str::<serde_json::Value>(&said).expect("it is JSON"), errors)
    };
    // Labels are plain text in a plan.
    let has = |exe: &str, label: &str| {
        let bytes = std::fs::read(exe).expect("it was written");
        bytes.windows(label.len()).any(|own| own == label.as_bytes())
    };
    // With the first choice of the libraries.
    let (plain, first, again) = (own("plain"), own("first"), own("again"));
    let (code, _, said) = compile(&plain, &libraries);
    assert_eq!(code, Some(0), "{said}");
    // With the fastest choice.
    let (report, said) = tuned(&first, "0.05");
    let count = |key: &str| report["tuned"][key].as_u64().unwrap_or_else(|| panic!("{report}"));
    let layers = count("layers");
    // Each layer has its algorithms, and then the fastest of them next to an emitted kernel. On the mock each call takes as long as
    // another, so that the library's stay.
    assert!(6 < layers && layers.is_multiple_of(2), "{}", report["tuned"]);
    assert!(count("measured") == layers && count("changed") == layers / 2, "{}", report["tuned"]);
    assert!(said.contains("tuning 1/") && said.contains("Convolution {") && said.contains("Product {"), "{said}");
    assert!(said.contains("tuning layer 1 of"), "{said}");
    assert!(has(&plain, ", engine 4") && !has(&plain, ", engine 0"));
    assert!(has(&first, ", engine 0") && !has(&first, ", engine 4"));
    // Cached choices are not measured again, and give the same executable.
    let (report, said) = tuned(&again, "9");
    assert_eq!(
        (report["tuned"]["measured"].as_u64(), report["tuned"]["changed"].as_u64()),
        (Some(0), Some(layers / 2))
    );
    let read = |path: &str| std::fs::read(path).expect("it was written");
    assert!(!said.contains("tuning") && read(&first) == read(&again) && read(&first) != read(&plain), "{said}");
    // The measured algorithm is the one that runs, and memory is as planned.
    let ran = |exe: &str| {
        let mut command = without_libraries(Path::new(exe));
        command.args(["memory", "--actual"]).env("LD_LIBRARY_PATH", &mocked.folder);
        command.env("PRESTOW_CUDA_LIBS", &mocked.folder).env("PRESTOW_MOCK_CUBLAS_ALGORITHMS", "two");
        let out = command.output().expect("it is there");
        assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
        let mut command = without_libraries(Path::new(exe));
        command.args(["bench", "--warmup", "0", "--iters", "1", "--json"]).env("LD_LIBRARY_PATH", &mocked.folder);
        command.env("PRESTOW_CUDA_LIBS", &mocked.folder).env("PRESTOW_MOCK_CUBLAS_ALGORITHMS", "two");
        let out = command.env("PRESTOW_MOCK_CUDNN_SLOW", "4").output().expect("it is there");
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
        report["device_ms"]["p50"].as_f64().expect("a number")
    };
    let steps = mocked.plan.steps.iter().filter(|step| ["cudnn_conv", "cublaslt_product"].contains(&&step.kernel[..]));
    assert_eq!(ran(&plain) - ran(&first), steps.count() as f64, "a millisecond each");
    // Rows of the cache name the GPU and the library. For another GPU everything is measured again.
    let rows = String::from_utf8(read(&cache)).expect("it is text");
    assert!(rows.lines().skip(2).all(|row| row.starts_with("Mock GPU\tcu") && row.split('\t').count() == 5), "{rows}");
    let other = own("other.tsv");
    std::fs::write(&other, rows.replace("Mock GPU", "Other GPU")).expect("the folder is ours");
    let words = [&libraries[..], &["--tune=0", "--tune-cache", &other]].concat();
    let (code, said, _) = compile(&again, &words);
    assert!(code == Some(0) && said.contains(&format!("{layers} measured, 0 from")), "{said}");
    assert!(read(&first) == read(&again), "the same choices");
    // `prestow-gpu-check` uses the cache, too.
    let words = ["lenet", "--batch", "2", "--dtype", "f32", "--iters", "1", "--peers", "none"];
    let more = ["--cudnn", "--cublas", "--cublas-workspace", "1MiB", "--tune=0.05", "--tune-cache", &cache];
    // Without probes of peaks, which would run for minutes on a processor.
    let probes = [("PRESTOW_MOCK_NVRTC_REPLACE", "peak_=>probe_")];
    let (code, said, errors) = run("prestow-gpu-check", &[&words[..], &more[..]].concat(), &probes);
    assert!(code == Some(0) && said.contains("  equal\n") && !errors.contains("tuning"), "{said}{errors}");

    // Invalid options, invalid files and failures.
    let fails = |words: &[&str], says: &str| {
        let (code, _, said) = compile(&again, words);
        assert!(code == Some(2) && said.contains(says) && !said.contains("panicked"), "{words:?}: {said}");
    };
    let (code, _, said) = prestow(&["compile", "lenet", "--target", &facts, "--tune"], &[]);
    assert!(code == Some(2) && said.contains("--tune needs --cudnn or --cublas"), "{said}");
    fails(&["--cublas", "--tune", "--tune-threads", "2"], "--tune-threads needs a processor");
    std::fs::write(&other, "Mock GPU\tno row\n").expect("the folder is ours");
    fails(&["--cublas", "--tune", "--tune-cache", &other], "line 1: not a row of choices");
    let anew = own("anew.tsv");
    let words = ["compile", "lenet", "--target", &facts, "--cublas", "--tune=0", "--tune-cache", &anew];
    let (code, _, said) = prestow(&words, &[("PRESTOW_MOCK_FAIL", "cuEventRecord:1:719")]);
    assert!(code == Some(2) && said.contains("the GPU was lost"), "{said}");
    // An engine that fails to run is not chosen.
    let lame = own("lame.tsv");
    let words = ["compile", "lenet", "--batch", "2", "--target", &facts, "--cudnn", "--tune=0", "--tune-cache", &lame];
    let (code, _, said) =
        prestow(&[&words[..], &["-o", &again]].concat(), &[("PRESTOW_MOCK_FAIL", "cudnnBackendExecute:1:3000")]);
    assert!(code == Some(0) && said.contains("(inf, "), "{said}");
    let h200 = root().join("targets/cuda-sm_90-h200.json");
    let words = ["compile", "lenet", "--target", h200.to_str().expect("it is text"), "--cublas", "--tune"];
    let (code, _, said) = prestow(&words, &[]);
    assert!(code == Some(2) && said.contains("requires the target's GPU, NVIDIA H200, got Mock GPU (sm_90)"), "{said}");
}
