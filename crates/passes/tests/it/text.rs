//! Passes as text in, text out: one file a case under `crates/passes/tests/cases`.
//!
//! ```text
//! # What the case shows.
//! passes: canonicalize, dce
//! graph "power"
//! ...
//! ---
//! graph "power"
//! ...
//! ```
//!
//! The first part is the graph before the passes, the part behind `---` the graph after them. `BLESS=1 cargo test -p
//! prestow-passes text` writes the second part. Both graphs must verify and compute the same outputs for random inputs, up
//! to `tolerance:` (0.00001 of the largest element, unless the case states another).

use std::fs;
use std::path::{Path, PathBuf};

use ir::{
    Call, CallInput, Candidate, Formats, Graph, NoKernel, NodeId, Op, Pack, Packer, Query, Target, ValueId, evaluate,
    text, verify,
};
use smallvec::SmallVec;
use types::{Bytes, DType, Layout, Random, Tensor, WeightFormat};

use crate::passes;

const TOLERANCE: f64 = 1e-5;

struct Case {
    path: PathBuf,
    /// Comment and settings, as they are written.
    head: String,
    passes: Vec<String>,
    tolerance: f64,
    before: String,
    after: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn cases() -> Vec<Case> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder())
        .expect("the folder is there")
        .map(|entry| entry.expect("it is readable").path())
        .collect();
    paths.sort();
    paths.into_iter().map(read).collect()
}

fn read(path: PathBuf) -> Case {
    let text = fs::read_to_string(&path).expect("a case is text");
    let (input, after) = text.split_once("\n---\n").unwrap_or((text.trim_end(), ""));
    let start = input.find("graph ").unwrap_or_else(|| panic!("{}: expected a graph", path.display()));
    let (head, before) = input.split_at(start);
    let setting = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let passes = setting("passes:").unwrap_or_else(|| panic!("{}: expected a line `passes: NAME, ..`", path.display()));
    Case {
        passes: passes.split(',').map(|name| name.trim().to_string()).collect(),
        tolerance: setting("tolerance:").map_or(TOLERANCE, |number| number.parse().expect("a number")),
        head: head.to_string(),
        before: before.to_string(),
        after: after.to_string(),
        path,
    }
}

/// Packs no bytes.
struct Nothing;

impl Packer for Nothing {
    fn size(&self, _tensor: &Tensor) -> Bytes {
        Bytes::ZERO
    }

    fn pack(&self, _tensor: &Tensor, _part: usize) -> Vec<u8> {
        Vec::new()
    }
}

/// A target with kernels for every format: `f16` between kernels, convolutions that are faster with channels in blocks of
/// four, pairs of convolutions as one step, and weights of `bf16`.
struct AnyKernel;

impl Target for AnyKernel {
    fn name(&self) -> String {
        "test".into()
    }

    fn alignment(&self) -> Bytes {
        Bytes(1)
    }

    fn precision(&self) -> DType {
        DType::F16
    }

    fn weight_format(&self) -> Option<WeightFormat> {
        Some(WeightFormat::Bf16)
    }

    fn layout(&self) -> Option<Layout> {
        Some(Layout::ChannelsBlocked(4))
    }

    fn candidates(&self, graph: &Graph, nodes: &[NodeId], query: &Query) -> Result<Vec<Candidate>, NoKernel> {
        let [id] = *nodes else {
            return Ok(nodes
                .get(..2)
                .filter(|_| nodes.len() == 2)
                .map_or_else(Vec::new, |pair| vec![Candidate::given(graph, pair[1])]));
        };
        let is_product = matches!(graph.node(id).op, Op::Conv(_) | Op::MatMul(_));
        Ok(match query.formats {
            Formats::Half(half) if is_product => Candidate::with_half_operands(graph, id, half, &[0, 1]),
            Formats::Half(half) => Candidate::in_half(graph, id, half),
            Formats::Layout(layout) => {
                let mut candidate = Candidate::given(graph, id);
                candidate.operands.iter_mut().for_each(|operand| operand.layout = layout);
                candidate.result.layout = layout;
                candidate.cost = if is_product && layout == Layout::RowMajor { 100 } else { 1 };
                vec![candidate]
            }
            // Tables are read in the form of a product's right factor.
            Formats::Given if matches!(graph.node(id).op, Op::Gather(_)) => {
                let table = CallInput::Packed { input: 0, pack: Pack::new(Nothing) };
                let call = Call {
                    kernel: "gather",
                    label: String::new(),
                    code: Vec::new(),
                    inputs: vec![table, CallInput::Value(1)],
                    workspace: Bytes::ZERO,
                    in_place: SmallVec::new(),
                    slice: None,
                };
                vec![Candidate::given(graph, id).with_calls(vec![call])]
            }
            Formats::Given | Formats::Int8Operands | Formats::Int8Result | Formats::Int8Residual => {
                vec![Candidate::given(graph, id)]
            }
        })
    }

    fn relayout_cost(&self, _graph: &Graph, _value: ValueId) -> u64 {
        2
    }
}

fn apply(name: &str, graph: &Graph) -> Graph {
    let pass = passes::PIPELINE.iter().find(|pass| pass.name == name);
    match pass.unwrap_or_else(|| panic!("no pass is called `{name}`")).run {
        passes::Run::Graph(run) => run(graph),
        passes::Run::Target(run) => run(graph, &AnyKernel),
        passes::Run::Schedule => passes::schedule(graph, &passes::MemoryModel::bare(graph)).ordered.graph,
    }
}

fn check_same_outputs(case: &Case, before: &Graph, after: &Graph) {
    let mut random = Random::new(7);
    let inputs: Vec<Tensor> = before
        .inputs()
        .iter()
        .map(|&input| {
            let ty = before.ty(input);
            match ty.dtype.is_float() {
                true => Tensor::from_fn(ty.shape.clone(), |_| random.uniform(-1.0, 1.0)).cast(ty.dtype),
                false => Tensor::from_fn(ty.shape.clone(), |_| random.below(3) as i64).cast(ty.dtype),
            }
        })
        .collect();
    let [want, got] = [before, after].map(|graph| evaluate(graph, &inputs).expect("the inputs fit"));
    for (want, got) in want.iter().zip(&got) {
        assert_eq!((want.dtype(), want.shape()), (got.dtype(), got.shape()), "{}", case.path.display());
        let (want, got) = (want.to_f64(), got.to_f64());
        let largest = want.iter().fold(1.0f64, |largest, item| largest.max(item.abs()));
        for (want, got) in want.iter().zip(&got) {
            let near = (want - got).abs() <= case.tolerance * largest;
            assert!(near || want.is_nan() && got.is_nan(), "{}: {got} for {want}", case.path.display());
        }
    }
}

#[test]
fn cases_rewrite_as_written() {
    let bless = std::env::var_os("BLESS").is_some();
    let mut different = Vec::new();
    for case in cases() {
        let name = case.path.display();
        let before = text::parse(&case.before, |_| None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verify(&before), Ok(()), "{name}");
        assert_eq!(
            text::print(&before),
            format!("{}\n", case.before.trim_end()),
            "{name}: the input must be as printed"
        );
        let after = case.passes.iter().fold(before.clone(), |graph, pass| apply(pass, &graph));
        assert_eq!(verify(&after), Ok(()), "{name}");
        check_same_outputs(&case, &before, &after);
        let printed = text::print(&after);
        if printed != case.after {
            if bless {
                let text = format!("{}{}\n---\n{printed}", case.head, case.before.trim_end());
                fs::write(&case.path, text).expect("the folder is writable");
            }
            different.push(format!("{name}: expected\n{}\ngot\n{printed}", case.after));
        }
    }
    assert!(bless || different.is_empty(), "run with BLESS=1 to accept:\n{}", different.join("\n"));
}

#[test]
fn every_pass_has_a_case() {
    let tested: Vec<String> = cases().into_iter().flat_map(|case| case.passes).collect();
    for pass in passes::PIPELINE {
        assert!(tested.iter().any(|name| name == pass.name), "no case of `{}` in {}", pass.name, folder().display());
    }
}
