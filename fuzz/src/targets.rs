//! [`TARGETS`]: one for each reader of files that are not trusted, one for plans, one for random models.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use data::DataSpec;
use plan::Plan;
use runtime::{Host, ImageFile};
use share::core::{Granularity, ModelKey};
use share::load::{LoadPace, ResidentPool, identify};
use types::{Bytes, LoadBudget, LoadLimit, Shape, Tensor};
use xxhash_rust::xxh3::xxh3_64;

use crate::{forge, models, seeds};

/// A function of bytes that must not panic, hang, or end the process.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Runs one input. Returns whether it was accepted.
    pub(crate) run: fn(&[u8]) -> bool,
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// The number of inputs in a run of the tests.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
    pub(crate) executions: u64,
}

const fn target(name: &'static str, executions: u64, seeds: fn() -> Vec<Vec<u8>>, run: fn(&[u8]) -> bool) -> Target {
    Target { name, run, seeds, executions }
}

/// All targets.
pub(crate) static TARGETS: [Target; 29] = [
    target("onnx", 3000, seeds::onnx, |bytes| {
        let options = load::onnx::Options { limit: limit(), ..load::onnx::Options::default() };
        load::onnx::load(bytes, None, &options).is_ok_and(|graph| verified(&graph))
    }),
    target("mxnet", 3000, seeds::symbols, mxnet),
    target("params", 3000, seeds::params, |bytes| weights_of("a.params", bytes)),
    target("npy", 5000, seeds::npy, |bytes| weights_of("a.npy", bytes)),
    target("npz", 3000, seeds::npz, |bytes| weights_of("a.npz", bytes)),
    target("safetensors", 5000, seeds::safetensors, |bytes| weights_of("a.safetensors", bytes)),
    target("pickle", 5000, seeds::pickles, |bytes| weights_of("a.pkl", bytes)),
    target("png", 3000, seeds::png, picture),
    target("jpeg", 3000, seeds::jpeg, picture),
    target("recordio", 1000, seeds::recordio, recordio),
    target("csv", 1000, seeds::csv, |bytes| dataset("csv", &[("table.csv", bytes)])),
    target("idx", 1000, seeds::idx, idx),
    target("index", 1000, seeds::index, index),
    target("arrays", 1000, seeds::npz, |bytes| dataset("npz", &[("arrays.npz", bytes)])),
    target("plan", 1000, seeds::plans, plans),
    target("forged", 500, seeds::choices, forge::run),
    target("image", 3000, seeds::images, |bytes| {
        let path = written("image", bytes);
        ImageFile::open(&path).is_ok() | plan::image::read(bytes).is_ok()
    }),
    target("executable", 500, seeds::executables, executable),
    target("device", 3000, seeds::devices, |bytes| {
        str::from_utf8(bytes).is_ok_and(|text| cuda::DeviceDescription::parse(text).is_ok())
    }),
    target("profile", 3000, seeds::profiles, |bytes| {
        let Ok(report) = report::import("profile", bytes) else { return false };
        !report.text(report::View::Headline, &report::ViewOptions::default()).is_empty()
    }),
    target("report", 1000, seeds::reports, |bytes| {
        let Ok(report) = report::read(bytes) else { return false };
        report::View::ALL.iter().for_each(|view| drop(report.text(*view, &report::ViewOptions::default())));
        drop((report.mxnet_csv(), report.tbd_analysis(), report.trace_json(None), report.pprof()));
        report::read(report.to_json().as_bytes()).is_ok()
    }),
    target("groups", 3000, seeds::groups, |bytes| {
        str::from_utf8(bytes).is_ok_and(|text| report::Groups::parse(text).is_ok())
    }),
    target("frame", 5000, seeds::frames, |bytes| {
        manifest(bytes) | share::wire::Ask::decode(bytes).is_ok() | share::wire::Reply::decode(bytes).is_ok()
    }),
    target("recipe", 3000, seeds::recipes, recipe),
    target("checkpoint", 3000, seeds::checkpoints, checkpoint),
    target("experiment", 3000, seeds::experiments, |bytes| {
        let Ok(text) = str::from_utf8(bytes) else { return false };
        bench_suite::experiment::Config::parse(text).is_ok_and(|config| config.plan().is_ok())
    }),
    target("table", 3000, seeds::tables, |bytes| {
        let Ok(text) = str::from_utf8(bytes) else { return false };
        arena::csv::parse(text).is_ok_and(|table| table.problem.verify().is_ok())
    }),
    target("text", 3000, seeds::texts, |bytes| {
        let Ok(text) = str::from_utf8(bytes) else { return false };
        ir::text::parse(text, |_| None).is_ok_and(|graph| ir::verify(&graph).is_ok())
    }),
    target("models", 60, seeds::choices, models::run),
];

/// What one input may take.
fn limit() -> LoadLimit {
    LoadLimit::of(Bytes(64 << 20))
}

fn verified(graph: &ir::Graph) -> bool {
    assert!(ir::verify(graph).is_ok(), "a graph that was read must verify");
    // The text form is a reader as well.
    let text = ir::text::print(graph);
    drop(ir::text::parse(&text, |_| None));
    true
}

fn weights_of(name: &str, bytes: &[u8]) -> bool {
    let budget = LoadBudget::new(limit());
    weights::read_within(name, bytes, &budget).is_ok()
}

fn mxnet(bytes: &[u8]) -> bool {
    let weight = Tensor::full(Shape::from([2, 2, 3, 3]), 0.5f32);
    let options = load::mxnet::Options {
        shapes: BTreeMap::from([("data".to_string(), Shape::from([1, 2, 4, 4]))]),
        limit: limit(),
        ..load::mxnet::Options::default()
    };
    let arrays = BTreeMap::from([("w".to_string(), weight)]);
    load::mxnet::load(bytes, arrays, &options).is_ok_and(|graph| verified(&graph))
}

fn picture(bytes: &[u8]) -> bool {
    let Ok(image) = data::image::decode_within(bytes, 1 << 16) else { return false };
    let small = data::image::resize(&image, 5, 7);
    assert_eq!((small.width, small.height), (5, 7));
    true
}

/// Writes a file of this process and returns its path: some readers take paths.
fn written(name: &str, bytes: &[u8]) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let folder = base.join(format!("prestow-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder is writable");
        folder
    });
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("the folder is writable");
    path
}

fn recordio(bytes: &[u8]) -> bool {
    let Ok(file) = data::RecordFile::open(&written("a.rec", bytes)) else { return false };
    let records = (0..file.records().min(100)).filter_map(|record| file.read(record).ok());
    records.map(|record| drop(data::ImageRecord::parse(&record))).count() != 0
}

/// An index with its records behind it, `[u16 length of the index]`: each record is within its file.
fn index(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return false };
    let (text, records) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    written("b.idx", text);
    let Ok(file) = data::RecordFile::open(&written("b.rec", records)) else { return false };
    assert!(file.offsets().is_sorted_by(|a, b| a < b), "offsets are in order, each once");
    let read = (0..file.records().min(100)).filter_map(|record| file.read(record).ok());
    read.inspect(|record| assert!(record.len() <= records.len(), "a record is a part of its file")).count() != 0
}

/// An executable with a file of weights behind it, `[u32 length of the executable]`, as the daemon loads it. All of its
/// checksums are right, so that damage reaches the readers behind them.
fn executable(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return false };
    let (image, weights) = rest.split_at((u32::from_le_bytes(*length) as usize).min(rest.len()));
    let Some(image) = signed(image) else { return false };
    let weights = written(&format!("{}.safetensors", seeds::WEIGHTS), weights);
    let path = written("executable", &image);
    let is_run = ImageFile::open(&path).is_ok() | ImageFile::read_plans(&path).is_ok();
    let file = std::fs::File::open(&path).expect("it was written");
    let mut is_loaded = false;
    for granularity in [Granularity::Model, Granularity::Layer] {
        let Ok(key) = identify(&file, &path, granularity) else { continue };
        // The daemon compares it with its budget first.
        if 1 << 20 < key.size {
            continue;
        }
        let pool = ResidentPool::new(weights.parent().map(PathBuf::from));
        let key = ModelKey { user: 7, ..key };
        let Ok(resident) = pool.load(&file, &key, "executable", LoadPace::Behind) else { continue };
        assert!(resident.verify().expect("memory is readable"), "bytes that were loaded have their digests");
        is_loaded = true;
    }
    is_run | is_loaded
}

/// An image whose length and checksums are made right; `None` if its trailer names no sections of it.
fn signed(image: &[u8]) -> Option<Vec<u8>> {
    const TRAILER: usize = plan::image::Trailer::SIZE;
    let mut image = image.to_vec();
    let start = image.len().checked_sub(TRAILER)?;
    let (rest, trailer) = image.split_at_mut(start);
    let number = |trailer: &[u8], at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().expect("8 bytes"));
    let section = |at: usize| {
        let (from, length) = (number(trailer, at), number(trailer, at + 8));
        Some(usize::try_from(from).ok()?..usize::try_from(from.checked_add(length)?).ok()?)
    };
    let (plans, constants) = (section(16)?, section(40)?);
    let stored = rest.get(constants.clone())?;
    let others = [rest.get(..plans.start)?, rest.get(plans.end..constants.start)?].concat();
    let numbers = [(32, xxh3_64(rest.get(plans)?)), (56, xxh3_64(stored)), (64, xxh3_64(&others))];
    if number(trailer, 112) == stored.len() as u64 {
        trailer[80..112].copy_from_slice(blake3::hash(stored).as_bytes());
    }
    for (at, value) in numbers.into_iter().chain([(72, (start + TRAILER) as u64)]) {
        trailer[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let checksum = xxh3_64(&trailer[..TRAILER - 8]);
    trailer[TRAILER - 8..].copy_from_slice(&checksum.to_le_bytes());
    Some(image)
}

fn dataset(kind: &str, files: &[(&str, &[u8])]) -> bool {
    let paths: Vec<PathBuf> = files.iter().map(|(name, bytes)| written(name, bytes)).collect();
    let spec = format!("{kind}:{}", paths[0].display());
    let spec: DataSpec = spec.parse().expect("the text is valid");
    spec.open(&data::OpenOptions::default()).is_ok()
}

/// A constant made from a stored tensor: `(recipe, extents of the tensor)`. Its size is what the packing says it is, so that
/// the packing runs.
fn recipe(bytes: &[u8]) -> bool {
    let Ok((recipe, extents)) = postcard::from_bytes::<(plan::ConstantRecipe, Vec<u8>)>(bytes) else { return false };
    let shape: Shape = extents.into_iter().take(4).map(usize::from).collect();
    let elements = shape.elements();
    if 1 << 16 < elements {
        return false;
    }
    let tensor = Tensor::from_fn(shape, |at| at as f32 - 5.0);
    let size = match postcard::from_bytes::<cpu::Packing>(&recipe.packing) {
        Ok(packing) => packing.size(elements).ok().flatten(),
        Err(_) => Some(4 * elements as u64),
    };
    let Some(size) = size.filter(|&size| size <= 1 << 20) else { return false };
    share::recipe::apply(&recipe, size, &BTreeMap::from([("w".to_string(), tensor)])).is_ok()
}

/// The tables in which the daemon's messages list tensors: each tensor of an accepted table lies within the table's bytes, and
/// a table that is written and read again is equal.
fn manifest(bytes: &[u8]) -> bool {
    let Some(read) = share::manifest::Manifest::decode(bytes) else { return false };
    let end = |tensor: &share::manifest::TensorPlace| tensor.at.checked_add(tensor.size);
    assert!(read.tensors.iter().all(|tensor| end(tensor).is_some_and(|end| end <= read.length)));
    let found = read.tensors.iter().filter_map(|tensor| read.find(tensor.offset, tensor.size));
    assert!(found.max().is_none_or(|at| at <= read.length));
    // Labels may overlap in a damaged file, and are written one after the other.
    let again = share::manifest::Manifest::decode(&read.encode());
    assert!(again.as_ref() == Some(&read), "a table that is written and read again must be equal");
    true
}

/// Checkpoints whose digest is right.
fn checkpoint(bytes: &[u8]) -> bool {
    const KEY: &[u8] = b"\"digest\":\"";
    let mut bytes = bytes.to_vec();
    let mut read = train::Checkpoint::from_bytes("step.ckpt", &bytes);
    if let Err(reason) = &read
        && let Some(digest) = reason.strip_prefix("its digest must be ").and_then(|rest| rest.get(..16))
        && let Some(at) = bytes.windows(KEY.len()).position(|window| window == KEY)
    {
        bytes[at + KEY.len()..][..digest.len()].copy_from_slice(digest.as_bytes());
        read = train::Checkpoint::from_bytes("step.ckpt", &bytes);
    }
    let Ok(checkpoint) = read else { return false };
    let written = checkpoint.to_bytes();
    let again =
        train::Checkpoint::from_bytes("step.ckpt", &written).expect("a checkpoint that was written must be readable");
    assert!(again.to_bytes() == written, "a checkpoint that was read is written alike");
    true
}

fn idx(bytes: &[u8]) -> bool {
    let Some((&split, rest)) = bytes.split_first() else { return false };
    let (images, labels) = rest.split_at(usize::from(split).min(rest.len()));
    dataset("idx", &[("a-images-idx3-ubyte", images), ("a-labels-idx1-ubyte", labels)])
}

/// Plans with right checksums: what passes the check runs within its arena.
fn plans(bytes: &[u8]) -> bool {
    let Ok(plans) = postcard::from_bytes::<Vec<Plan>>(bytes) else { return false };
    let Some(plan) = plans.into_iter().next() else { return false };
    if plan::check(&plan).is_err() {
        return false;
    }
    let constants = usize::try_from(plan.constants_size.0).ok().filter(|&size| size <= 1 << 20);
    // Larger arenas and more work are valid, but slow.
    let is_small = plan.arena.size() <= Bytes(1 << 20) && plan.steps.len() <= 50;
    let Some(constants) = constants.filter(|_| is_small) else { return true };
    drop(plan::dump(&plan));
    let weights = Arc::new(vec![1u8; constants]);
    if let Ok(mut session) = runtime::open(Arc::new(plan), weights, &Host { threads: 1 }) {
        session.run().expect("processors do not fail");
    }
    true
}
