//! Small handmade files of every format, real files from the data folder, and damaged copies.

use std::io::Write;
use std::path::{Path, PathBuf};

use types::{DType, Random, Shape};

use super::*;

/// Written by `pickle.dumps(OrderedDict(w=int16 big-endian [2, 3], f=float32 in Fortran order [2, 3],
/// s=[float64(2.5), (array([True, False]),)], n=None, k=3), protocol)` under NumPy 2.
const PROTOCOLS: [&[u8]; 6] = [
    include_bytes!("fixtures/protocol0.pkl"),
    include_bytes!("fixtures/protocol1.pkl"),
    include_bytes!("fixtures/protocol2.pkl"),
    include_bytes!("fixtures/protocol3.pkl"),
    include_bytes!("fixtures/protocol4.pkl"),
    include_bytes!("fixtures/protocol5.pkl"),
];

#[test]
fn pickles_of_every_protocol_are_read() {
    for bytes in PROTOCOLS {
        let tensors = read("a.pkl", bytes).unwrap();
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["f", "s.0", "s.1.0", "w"]);
        assert_eq!(tensors["w"].dtype(), DType::I16);
        assert_eq!(*tensors["w"].shape(), Shape::from([2, 3]));
        assert_eq!(tensors["w"].to_i64(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(tensors["f"].to_f64(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(tensors["s.0"], Tensor::scalar(2.5f64));
        assert_eq!(tensors["s.1.0"], Tensor::vector(vec![true, false]));
    }
}

#[test]
fn legacy_torch_file_is_read() {
    let tensors = read("a.pth", &legacy(VIEW)).unwrap();
    assert_eq!(tensors, BTreeMap::from([("w".to_string(), transposed())]));
}

#[test]
fn zipped_torch_file_is_read() {
    let tensors = read("a.pth", &zipped_torch(VIEW)).unwrap();
    assert_eq!(tensors, BTreeMap::from([("w".to_string(), transposed())]));
}

#[test]
fn npz_and_npy_are_read() {
    let tensors = read("a.npz", &npz()).unwrap();
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(tensors["b"], transposed());
    let tensors = read("dir/a.b.npy", &npy::write(&transposed())).unwrap();
    assert_eq!(tensors, BTreeMap::from([("a.b".to_string(), transposed())]));
}

/// Saved by MXNet 1.9.1, except for those of old versions, which it accepts.
const DTYPES: &[u8] = include_bytes!("fixtures/dtypes.params");
const SPARSE: &[u8] = include_bytes!("fixtures/sparse.params");
const V0: &[u8] = include_bytes!("fixtures/legacy_v0.params");
const V1: &[u8] = include_bytes!("fixtures/legacy_v1.params");

#[test]
fn params_of_every_version_are_read() {
    let tensors = read("net-0000.params", DTYPES).unwrap();
    for (name, dtype) in [
        ("float32", DType::F32),
        ("float64", DType::F64),
        ("float16", DType::F16),
        ("int32", DType::I32),
        ("int8", DType::I8),
        ("int64", DType::I64),
    ] {
        assert_eq!((tensors[name].dtype(), &tensors[name].shape()[..]), (dtype, &[2, 3][..]), "{name}");
        assert_eq!(tensors[name].to_f64(), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0], "{name}");
    }
    assert_eq!(tensors["uint8"].to_i64(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(tensors["moving_mean"], Tensor::vector(vec![0.5f32, -1.25]));
    for old in [V0, V1] {
        let want = Tensor::new(Shape::from([2, 3]), vec![0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!(read("net-0000.params", old).unwrap(), BTreeMap::from([("w".to_string(), want)]));
    }
}

#[test]
fn sparse_arrays_are_refused_by_name() {
    let error = read("net-0000.params", SPARSE).unwrap_err().to_string();
    assert_eq!(
        error,
        "`net-0000.params`: tensor `rs`: must be dense, got row_sparse; save it with `.tostype('default')`"
    );
}

#[test]
fn array_longer_than_its_file_is_refused() {
    // The number of arrays, a dimension, and the length of a name.
    for at in [16, 36, V1.len() - 13] {
        let mut bytes = V1.to_vec();
        bytes[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
        let error = *read("net-0000.params", &bytes).unwrap_err().problem;
        assert!(matches!(error, FormatError::Truncated { .. } | FormatError::Tensor { .. }), "{at}: {error}");
    }
}

#[test]
fn safetensors_is_read() {
    let tensors = read("a.bin", &safetensors_file()).unwrap();
    assert_eq!(tensors, BTreeMap::from([("w".to_string(), transposed())]));
}

#[test]
fn calls_of_other_functions_are_refused() {
    let check = |bytes: &[u8], name: &str| {
        let error = read("evil.pkl", bytes).unwrap_err();
        assert_eq!(*error.problem, FormatError::Forbidden { name: name.into() });
        let message = format!(
            "`evil.pkl`: the pickle calls `{name}`, which does not build tensors; convert the file to safetensors"
        );
        assert_eq!(error.to_string(), message);
    };
    check(b"cos\nsystem\n(S'echo'\ntR.", "os.system");
    check(b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "posix.system");
    check(b"\x80\x02cbuiltins\neval\n.", "builtins.eval");
    check(b"\x80\x02cnumpy.core.multiarray\nfromfile\n.", "numpy.core.multiarray.fromfile");
    check(b"\x80\x02ctorch\nload\n.", "torch.load");
}

#[test]
fn files_without_tensors_are_refused() {
    let check = |name: &str, bytes: &[u8], want: FormatError| assert_eq!(*read(name, bytes).unwrap_err().problem, want);
    check("a.txt", b"hello", FormatError::Unknown);
    check("a.onnx", b"", FormatError::Unknown);
    check("a.pkl", b"", FormatError::Truncated { part: "a pickle" });
    check("a.pkl", b"\x80\x02}.", FormatError::Empty);
    check("a.pkl", b"\x80\x02K\x01.", FormatError::Empty);
    check("a.pkl", b"\x80\x02\x8f.", FormatError::Opcode { opcode: 0x8f, at: 2 });
    check("a.pkl", b"\x80\x06.", FormatError::Malformed { at: 2, reason: "the pickle protocol must be at most 5" });
    check("a.pkl", b"\x80\x02(0.", FormatError::Malformed { at: 4, reason: "the pickle's stack is empty" });
    check("a.pkl", b"\x80\x02h\x05.", FormatError::Malformed { at: 4, reason: "the memo has no such entry" });
}

#[test]
fn views_beyond_their_storage_are_refused() {
    let check = |view: &[u8]| {
        let error = *read("a.pth", &legacy(view)).unwrap_err().problem;
        assert!(matches!(error, FormatError::Tensor { .. } | FormatError::Malformed { .. }), "{error}");
    };
    check(b"K\x01K\x02K\x03\x86K\x01K\x02\x86");
    check(b"K\x00K\x02K\x03\x86K\x01K\x03\x86");
    check(b"K\x00K\x02K\x03\x86K\x01\x85");
    check(b"K\x00K\x02K\x03\x86J\xff\xff\xff\xffK\x02\x86");
    check(b"K\x00K\x02K\x03\x86\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x02\x86");
}

#[test]
fn memory_is_bounded_by_the_file_length() {
    // A stride of 0: a billion elements of one.
    let error = *read("a.pth", &legacy(b"K\x00J\x00\xca\x9a\x3b\x85K\x00\x85")).unwrap_err().problem;
    assert!(matches!(error, FormatError::Limit { unit: "bytes", .. }), "{error}");

    // Each list contains the previous one twice: 2^30 leaves.
    let mut bomb = b"\x80\x02]q\x00".to_vec();
    (0..30).for_each(|_| bomb.extend(b"]q\x01(h\x00h\x00eq\x00"));
    bomb.push(b'.');
    assert!(matches!(*read("a.pkl", &bomb).unwrap_err().problem, FormatError::Limit { .. }));

    // A list that contains itself.
    assert!(matches!(*read("a.pkl", b"\x80\x02]q\x00h\x00a.").unwrap_err().problem, FormatError::Limit { .. }));

    // Zeros beyond the budget, which compress to almost nothing.
    let zeros = npy::write(&Tensor::full(Shape::from([70 << 20]), 0u8));
    let error = *read("a.npz", &archive(&[("a.npy", &zeros)])).unwrap_err().problem;
    assert!(matches!(error, FormatError::Limit { unit: "bytes", .. }), "{error}");
}

#[test]
fn strides_of_extents_of_one_are_ignored() {
    let view = b"K\x00K\x01K\x06\x86\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x01\x86";
    assert_eq!(*read("a.pth", &legacy(view)).unwrap()["w"].shape(), Shape::from([1, 6]));
    let view = b"K\x00K\x06K\x01\x86K\x01\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x86";
    assert_eq!(*read("a.pth", &legacy(view)).unwrap()["w"].shape(), Shape::from([6, 1]));
}

#[test]
fn truncation_at_every_length_is_refused() {
    for (name, bytes) in small_files() {
        for length in 0..bytes.len() {
            assert!(read(&name, &bytes[..length]).is_err(), "{name} cut to {length} of {}", bytes.len());
        }
    }
}

/// Factor for the number of random cases: `PRESTOW_FUZZ=50` for a long run.
#[expect(clippy::disallowed_methods, reason = "a switch of the test run")]
fn effort() -> usize {
    std::env::var("PRESTOW_FUZZ").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn damaged_files_never_panic() {
    let mut random = Random::new(7);
    for (name, bytes) in small_files() {
        for _ in 0..1500 * effort() {
            // Damage to elements is not detected, so tensors may be returned.
            drop(read(&name, &damage(&bytes, bytes.len(), &mut random)));
        }
    }
}

#[test]
fn efficientnet_lite0_is_read() {
    let Some(bytes) = data("efficientnet_lite0_is_read", "models/efficientnet-lite0-57934424.pth") else { return };
    let tensors = read("efficientnet-lite0-57934424.pth", &bytes).unwrap();
    assert_eq!(tensors.len(), 296);
    assert_eq!(tensors.values().map(Tensor::elements).sum::<usize>(), 4_694_073);

    // First three values, the last one and the sum, by NumPy. The file keeps kernels as HWIO with strides to match.
    let check = |name: &str, shape: &[usize], first: [f64; 3], last: f64, sum: f64| {
        let tensor = &tensors[name];
        assert_eq!(tensor.shape()[..], *shape);
        let items = tensor.to_f64();
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-6 * want.abs().max(1.0), "{name}: {got}");
        (0..3).for_each(|ix| near(items[ix], first[ix]));
        near(items[items.len() - 1], last);
        near(items.iter().sum(), sum);
    };
    let first = [-1.1103361, -1.3087704, -0.01015691];
    check("_conv_stem.weight", &[32, 3, 3, 3], first, 2.2351742e-8, -26.811376610887237);
    let first = [0.03205391, -0.01598576, 0.00529074];
    check("_fc.bias", &[1000], first, 0.031384297, -0.04981697298353538);
    let first = [-0.04561044, -0.09470871, -0.05684147];
    check("_fc.weight", &[1000, 1280], first, 0.04085797, -470.63256730128705);
    let first = [1.4789851, 1.4033256, 1.2544075];
    check("_blocks.15._bn2.running_var", &[320], first, 3.6208496, 515.4950522184372);
    assert_eq!(tensors["_bn0.num_batches_tracked"].dtype(), DType::I64);

    for part in 0..16 {
        assert!(read("a.pth", &bytes[..bytes.len() * part / 16]).is_err());
    }
    let mut random = Random::new(8);
    for _ in 0..12 {
        drop(read("a.pth", &damage(&bytes, 60_000, &mut random)));
    }
}

#[test]
fn squeezenet_is_read() {
    let Some(bytes) = data("squeezenet_is_read", "models/squeezenet11_imagenet_hwio.pkl") else { return };
    let tensors = read("squeezenet11_imagenet_hwio.pkl", &bytes).unwrap();
    assert_eq!(tensors.len(), 52);
    assert_eq!(tensors.values().map(Tensor::elements).sum::<usize>(), 1_235_496);
    let check = |name: &str, shape: &[usize], first: f64, sum: f64| {
        assert_eq!(tensors[name].shape()[..], *shape);
        let items = tensors[name].to_f64();
        assert!((items[0] - first).abs() < 1e-7, "{name}: {}", items[0]);
        assert!((items.iter().sum::<f64>() - sum).abs() < 1e-6 * sum.abs(), "{name}");
    };
    check("conv1.0", &[3, 3, 3, 64], 0.25723463, -2.9973132426930533);
    check("conv1.1", &[64], -0.01437416, 2.0016083255177364);
    check("fire9/expand3x3.0", &[3, 3, 64, 256], 0.09164338, -855.1462849080947);
    check("fire9/expand3x3.1", &[256], 0.00446479, 1.9432935516488214);
    check("conv10.0", &[1, 1, 512, 1000], -0.0358525, 3445.8273601612473);
    check("conv10.1", &[1000], 0.0360296, 10.936995808340725);
}

#[test]
fn grapheme_network_is_read() {
    let Some(bytes) = data("grapheme_network_is_read", "models/g2p_en_gru_checkpoint20.npz") else { return };
    let tensors = read("g2p_en_gru_checkpoint20.npz", &bytes).unwrap();
    assert_eq!(tensors.values().map(Tensor::elements).sum::<usize>(), 834_890);
    assert_eq!(*tensors["enc_emb"].shape(), Shape::from([29, 256]));
}

/// A file of the data folder; `None` after recording that `test` is skipped.
fn data(test: &str, name: &str) -> Option<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(name);
    if let Ok(bytes) = std::fs::read(path) {
        return Some(bytes);
    }
    let line = format!("weights::{test}: data/{name} is missing; run `cargo xtask fetch`");
    eprintln!("SKIPPED: {line}");
    if let Some(list) = std::env::var_os("PRESTOW_SKIPPED").map(PathBuf::from) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(list).expect("the list opens");
        writeln!(file, "{line}").expect("the list is written");
    }
    None
}

/// Offset, size and stride of a torch tensor of shape `[2, 3]` whose columns are contiguous.
const VIEW: &[u8] = b"K\x00K\x02K\x03\x86K\x01K\x02\x86";

/// The tensor that `VIEW` selects from 0, 1, .. 5.
fn transposed() -> Tensor {
    Tensor::new(Shape::from([2, 3]), vec![0.0f32, 2.0, 4.0, 1.0, 3.0, 5.0]).unwrap()
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// `{'w': tensor}`, whose storage has key 7 and whose persistent id ends with `tail`.
fn torch_pickle(view: &[u8], tail: &[u8]) -> Vec<u8> {
    let storage =
        [b"(", &text("storage")[..], b"ctorch\nFloatStorage\n", &text("7"), &text("cpu"), b"K\x06", tail, b"tQ"]
            .concat();
    let rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n(";
    let parts = [&b"\x80\x02}("[..], &text("w"), rebuild, &storage, view, b"\x89ccollections\nOrderedDict\n)RtRu."];
    parts.concat()
}

fn storage() -> Vec<u8> {
    (0..6).flat_map(|item| (item as f32).to_le_bytes()).collect()
}

fn legacy(view: &[u8]) -> Vec<u8> {
    let system = [b"\x80\x02}", &text("little_endian")[..], b"\x88s."].concat();
    let keys = [b"\x80\x02]", &text("7")[..], b"a."].concat();
    let version = b"\x80\x02M\xe9\x03.";
    let count = 6i64.to_le_bytes();
    [pth::LEGACY_MAGIC, version, &system, &torch_pickle(view, b"N"), &keys, &count, &storage()].concat()
}

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(vec![]));
    for (ix, (name, content)) in entries.iter().enumerate() {
        // NumPy and PyTorch store; `savez_compressed` deflates.
        let methods = [zip::CompressionMethod::Deflated, zip::CompressionMethod::Stored];
        let options = zip::write::SimpleFileOptions::default().compression_method(methods[ix % 2]);
        writer.start_file(*name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn zipped_torch(view: &[u8]) -> Vec<u8> {
    let pickle = torch_pickle(view, b"");
    archive(&[("w/data.pkl", &pickle), ("w/byteorder", b"little"), ("w/data/7", &storage()), ("w/version", b"3\n")])
}

fn npz() -> Vec<u8> {
    let a = npy::write(&Tensor::vector(vec![1i64, 2]));
    archive(&[("a.npy", &a), ("b.npy", &npy::write(&transposed()))])
}

fn safetensors_file() -> Vec<u8> {
    let header = br#"{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &transposed().to_le_bytes()].concat()
}

fn small_files() -> Vec<(String, Vec<u8>)> {
    let pickles = PROTOCOLS.iter().enumerate().map(|(ix, bytes)| (format!("protocol{ix}.pkl"), bytes.to_vec()));
    let others = [
        ("legacy.pth", legacy(VIEW)),
        ("zip.pth", zipped_torch(VIEW)),
        ("a.npz", npz()),
        ("a.safetensors", safetensors_file()),
        ("a.params", DTYPES.to_vec()),
        ("sparse.params", SPARSE.to_vec()),
        ("v0.params", V0.to_vec()),
        ("v1.params", V1.to_vec()),
    ];
    pickles.chain(others.map(|(name, bytes)| (name.to_string(), bytes))).collect()
}

/// A copy with one to four changes among the first `head` bytes.
fn damage(bytes: &[u8], head: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(head.min(bytes.len()) as u64) as usize;
        match random.below(4) {
            0 => bytes[at] = random.bits() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.remove(at)),
            _ => bytes.insert(at, random.bits() as u8),
        }
    }
    bytes
}

#[test]
fn written_tensors_are_read_back() {
    let tensors = BTreeMap::from([
        ("conv.weight".to_string(), transposed()),
        ("labels".to_string(), Tensor::vector(vec![1i64, -2])),
        ("mask \"x\"".to_string(), Tensor::vector(vec![true, false, true])),
        ("scalar".to_string(), Tensor::full(Shape::scalar(), 2.5f32)),
    ]);
    for name in ["w.safetensors", "w.npz", "w.params"] {
        let bytes = write(TensorForm::of(name).unwrap(), &tensors).unwrap();
        assert_eq!(bytes, write(TensorForm::of(name).unwrap(), &tensors).unwrap(), "{name}");
        assert_eq!(read(name, &bytes).unwrap(), tensors, "{name}");
    }
    assert_eq!(TensorForm::of("w.onnx"), None);
}

#[test]
fn metadata_of_a_safetensors_file_is_kept() {
    let texts = BTreeMap::from([("step".to_string(), "12".to_string()), ("data".to_string(), "a\nb".to_string())]);
    let file = write_safetensors(&BTreeMap::from([("w".to_string(), transposed())]), &texts);
    assert_eq!(metadata(&file), texts);
    assert!(metadata(b"PK").is_empty());
}
