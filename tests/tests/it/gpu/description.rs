//! Device descriptions: probed from the driver's mock, and as `--target`.

use super::*;

/// A device description is recorded with a driver, and compiling for it needs none.
#[test]
fn device_description_is_probed_and_compiled_for() {
    let test = "gpu::description::device_description_is_probed_and_compiled_for";
    let graph = crate::pass_results::random_graph(5);
    let Some(mocked) = Mocked::new(test, "gpu-facts", graph, with_cudnn(None)) else { return };
    let file = mocked.folder.join("mock.json");
    let prestow = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = without_libraries(&program("prestow"));
        // With the driver's mock only the libraries' mocks may be found, so the data folder is an empty one.
        let data = if variables.is_empty() { root().join("data") } else { mocked.folder.join("data") };
        let out = command.args(words).arg("--data").arg(&data).envs(variables.iter().copied()).output();
        let out = out.expect("it is built");
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    let library = mocked.folder.to_str().expect("it is text");
    let driver = [("LD_LIBRARY_PATH", library), ("PRESTOW_MOCK_MEMORY", "200000000")];
    let path = file.to_str().expect("it is text");
    let (code, said) = prestow(&["target", "record", "-o", path], &driver);
    assert!(code == Some(0) && said.contains("Mock GPU (sm_90), recorded from the device"), "{said}");
    let recorded = std::fs::read_to_string(&file).expect("it is written");
    assert_eq!(prestow(&["target", "record"], &driver), (Some(0), recorded.clone()));
    let facts = DeviceDescription::parse(&recorded).expect("it is whole");
    let device = &facts.device;
    assert_eq!((facts.source, device.multi_processor_count), (cuda::DescriptionSource::Recorded, 132));
    assert_eq!((device.total_global_mem, device.max_grid_size), (200_000_000, [2_147_483_647, 65_535, 65_535]));
    let taken = cuda::MeasuredMemory { context_bytes: 0, cudnn_bytes: Some(1 << 20), cublas_bytes: Some(1 << 16) };
    assert_eq!(facts.measured, Some(taken));
    let versions = ["driver", "cudnn", "cublaslt"].map(|library| &facts.libraries[library][..]);
    assert_eq!(versions, ["13.0", "9.19.0", "13.1.0"]);
    // A library that fails is reported, and the versions of the others are written.
    for (call, name, left) in [("cudnnCreate", "cuDNN", "cublaslt"), ("cublasLtCreate", "cuBLASLt", "cudnn")] {
        let other = mocked.folder.join("other.json");
        let words = ["target", "record", "-o", other.to_str().expect("it is text")];
        let (code, said) = prestow(&words, &[driver[0], ("PRESTOW_MOCK_FAIL", &format!("{call}:1:14"))]);
        let note = format!("note: no version of {name}: {name} failed at initialization");
        assert!(code == Some(0) && said.contains(&note), "{call}: {said}");
        let facts =
            DeviceDescription::parse(&std::fs::read_to_string(&other).expect("it is written")).expect("it is whole");
        let libraries: Vec<&str> = facts.libraries.keys().map(|name| &name[..]).collect();
        let known = libraries.iter().filter(|name| ["cudnn", "cublaslt"].contains(*name));
        assert_eq!(known.collect::<Vec<_>>(), [&left], "{call}");
    }
    let (code, said) = prestow(&["target", "record"], &[driver[0], ("PRESTOW_MOCK_FAIL", "cuDeviceTotalMem_v2:1:999")]);
    assert!(code == Some(2) && said.contains("the GPU failed at reading its memory"), "{said}");
    let (code, said) = prestow(&["target", "forget"], &[]);
    assert!(code == Some(2) && said.contains("'forget'"), "{said}");

    // Device descriptions that are missing, incomplete or unsupported.
    let out = mocked.folder.join("lenet");
    let compile = |target: &str, more: &[&str]| {
        let words = ["compile", "lenet", "--target", target, "-o", out.to_str().expect("it is text")];
        prestow(&[&words, more].concat(), &[])
    };
    let (code, said) = compile("nowhere.json", &[]);
    assert!(code == Some(2) && said.contains("nowhere.json") && said.contains("target probe"), "{said}");
    let broken = mocked.folder.join("broken.json");
    std::fs::write(&broken, recorded.replace("maxCtasPerSM", "maxBlocks")).expect("the folder is ours");
    let (code, said) = compile(broken.to_str().expect("it is text"), &[]);
    assert!(code == Some(2) && said.contains("broken.json") && said.contains("`maxCtasPerSM`"), "{said}");
    std::fs::write(&broken, recorded.replace("sm_90", "sm_70").replace(": 900", ": 700")).expect("the folder is ours");
    let (code, said) = compile(broken.to_str().expect("it is text"), &[]);
    assert!(code == Some(2) && said.contains("no kernels for sm_70") && said.contains("cuda:sm_90"), "{said}");

    // Complete ones.
    if crate::cuda::compiler(test).is_none() {
        return;
    }
    let measured = recorded.replace("\"context_bytes\": 0", "\"context_bytes\": 4194304");
    std::fs::write(&file, measured).expect("the folder is ours");
    let (code, said) = compile(path, &[]);
    assert!(code == Some(0) && said.contains("lenet for cuda:sm_90") && said.contains("on Mock GPU: "), "{said}");
    assert!(said.contains("4.00 MiB  context") && said.contains("as measured for the description"), "{said}");
    assert!(!said.contains("cuDNN"), "{said}");
    let (code, said) = compile(path, &["--cudnn"]);
    assert!(code == Some(0) || said.contains("cannot find libcu"), "{said}");
    assert!(code != Some(0) || said.contains("1.00 MiB  cuDNN: outside the plan"), "{said}");
    let own = root().join("targets/cuda-sm_90-h200.json");
    let (code, said) = compile(own.to_str().expect("it is text"), &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let planned = report["arena_bytes"].as_u64().map(|arena| Bytes(arena).align_up(Bytes(256)).0);
    assert_eq!(
        report["device"]["planned_bytes"].as_u64(),
        planned.zip(report["weights_bytes"].as_u64()).map(|(a, b)| a + b)
    );
    assert_eq!((code, report["device"]["source"].as_str()), (Some(0), Some("from the data sheet, not recorded")));
    // A plan that is larger than the device's memory.
    let (code, said) = compile(path, &["--batch", "16384"]);
    assert!(code == Some(2) && said.contains("Mock GPU has 190.73 MiB") && said.contains("smaller --batch"), "{said}");
}
