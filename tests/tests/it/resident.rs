//! `--resident BYTES`: plans that read weights in every run give the bits of plans with all weights in memory, use the
//! planned memory, and end in an error when the file does not have its bytes any more.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use cases::judge::inputs;
use cases::networks::{Family, Scale};
use compiler::residency::{Within, within};
use compiler::{Compiled, Program};
use ir::Graph;
use runtime::{Host, RunError, Session, WeightSource, audit};
use types::{Bytes, Tensor};

use crate::executables::{self, folder, json, output_of, program, text};
use crate::support::{compiled, open, root, skip};
use crate::{pass_results, state, transformers};

/// A program within a limit, with its constants in a file behind a page of other bytes.
struct Paged {
    program: Program,
    file: Arc<File>,
    path: PathBuf,
}

/// Where the constants start in the file.
const START: u64 = 4096;

impl Paged {
    /// `None` if all constants fit.
    fn new(name: &str, parts: Vec<Compiled>, limit: Bytes) -> Option<Paged> {
        let mut program = Program::join(parts);
        match within(&mut program, limit).unwrap_or_else(|error| panic!("{name}: {error}")) {
            Within::Whole => return None,
            Within::Reads => {}
        }
        for plan in &program.plans {
            plan::check(plan).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        }
        let path = folder(&format!("resident-{name}")).join("weights");
        std::fs::write(&path, [vec![0xff; START as usize], program.constants.to_vec()].concat()).expect("writable");
        let file = File::options().read(true).write(true).open(&path).expect("readable");
        Some(Paged { program, file: Arc::new(file), path })
    }

    fn open(&self, threads: usize) -> Result<Session, RunError> {
        let plans = self.program.plans.iter().cloned().map(Arc::new).collect();
        let size = self.program.constants.size().0;
        let source = WeightSource::File { file: self.file.clone(), offset: START, size };
        runtime::open_all(plans, source, &Host { threads })
    }
}

/// The least limit of a program, by the error of a limit of one byte.
fn least(parts: &[Compiled]) -> Bytes {
    let mut program = Program::join(parts.to_vec());
    within(&mut program, Bytes(1)).map(|_| Bytes(1)).unwrap_or_else(|error| error.least)
}

/// Arena and constants, in whole pages.
fn whole(compiled: &Compiled) -> Bytes {
    let pages = compiled.plan.constants.iter().map(|constant| constant.size.align_up(Bytes(4096)));
    compiled.plan.arena.size() + pages.sum()
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(Tensor::to_le_bytes).collect()
}

/// Compares three runs and the audit with the plan without a limit, at limits from the least one to all. Returns the number
/// of plans that read in a run.
fn check(name: &str, graph: Graph) -> usize {
    let inputs = inputs(&graph, 5);
    let compiled = compiled(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    let want = bits(&open(&compiled, 2).run_tensors(&inputs).expect("the inputs fit"));
    let (least, all) = (least(std::slice::from_ref(&compiled)).0, whole(&compiled).0);
    let mut count = 0;
    for part in 0..4 {
        let limit = Bytes(least + (all - least) * part / 4);
        let Some(paged) = Paged::new(name, vec![compiled.clone()], limit) else { continue };
        count += 1;
        let mut session = paged.open(2).expect("it opens");
        for _ in 0..2 {
            session.reset_states().expect("the file is whole");
            assert!(bits(&session.run_tensors(&inputs).expect("the file is whole")) == want, "{name} within {limit}");
        }
        let usage = session.pager_usage().expect("it reads");
        let plan = session.plan().clone();
        assert_eq!(usage.read_in_run, plan.read_size().0, "{name} within {limit}");
        let block = plan.residency.as_ref().expect("it reads").size;
        assert!(plan.arena.size() + block <= limit, "{name} within {limit}");
        let audit = audit::audit(&mut session, &bits(&inputs)).expect("the file is whole");
        assert!(audit.is_equal(), "{name} within {limit}: {audit:?}");
    }
    count
}

#[test]
fn random_graphs_have_the_same_bits() {
    let count: usize = (0..25).map(|seed| check(&format!("random-{seed}"), pass_results::random_graph(seed))).sum();
    assert!(20 < count, "{count} plans read in a run");
}

#[test]
fn generated_networks_and_a_transformer_have_the_same_bits() {
    for family in Family::ALL {
        let graph = family.network(1, Scale::Small);
        assert!(0 < check(&format!("family-{}", graph.name), graph));
    }
    assert!(0 < check("transformer", transformers::transformer(2)));
}

#[test]
fn batches_share_a_limit_and_take_turns() {
    let parts: Vec<Compiled> =
        [1, 3].map(|batch| compiled(transformers::transformer(batch)).expect("it compiles")).into();
    let inputs: Vec<Vec<Tensor>> = [1, 3].map(|batch| inputs(&transformers::transformer(batch), 2)).into();
    let want: Vec<_> =
        parts.iter().zip(&inputs).map(|(part, own)| bits(&open(part, 2).run_tensors(own).expect("they fit"))).collect();
    let limit = Bytes(least(&parts).0 + 20_000);
    let paged = Paged::new("batches", parts, limit).expect("it reads");
    let mut session = paged.open(2).expect("it opens");
    for (at, batch) in [(0, 1), (1, 3), (1, 3), (0, 1), (1, 3)] {
        assert!(session.select(batch));
        assert!(bits(&session.run_tensors(&inputs[at]).expect("the file is whole")) == want[at], "batch {batch}");
    }
}

#[test]
fn initial_states_are_read_from_the_file() {
    let graph = state::graph(
        r#"graph "states"
v0: f32[1,4] = input "x"
v1: f32[1,4] = state "sum" {1,2,3,4}
v2: f32[4,4] = weight "w" {2,3,4,5,2,3,4,5,2,3,4,5,2,3,4,5}
v3: f32[4,4] = weight "v" {5,6,7,8,5,6,7,8,5,6,7,8,5,6,7,8}
v4: f32[1,4] = binary(v0, v1) "add" at "add"
v5: f32[1,4] = mat_mul(v4, v2) {} at "first"
v6: f32[1,4] = mat_mul(v5, v3) {} at "second"
output "y" v6
update v1 v4
"#,
    );
    assert!(0 < check("states", graph));
}

/// Steps in any order: the reads start again.
#[test]
fn steps_out_of_order_find_their_weights() {
    let graph = transformers::transformer(1);
    let inputs = inputs(&graph, 3);
    let compiled = compiled(graph).expect("it compiles");
    let want = bits(&open(&compiled, 1).run_tensors(&inputs).expect("the inputs fit"));
    let limit = least(std::slice::from_ref(&compiled));
    let paged = Paged::new("order", vec![compiled], limit).expect("it reads");
    let mut session = paged.open(1).expect("it opens");
    let steps = session.plan().steps.len();
    for step in [steps - 1, steps / 2, steps / 2, 0, 1, steps / 3] {
        session.run_step(step).expect("the file is whole");
    }
    assert!(bits(&session.run_tensors(&inputs).expect("the file is whole")) == want);
}

/// The error of a run, or its results.
fn result(session: &mut Session, inputs: &[Tensor]) -> Result<Vec<Vec<u8>>, RunError> {
    session.run_tensors(inputs).map(|outputs| bits(&outputs))
}

#[test]
fn file_that_was_cut_or_changed_is_an_error_and_no_signal() {
    let graph = transformers::transformer(1);
    let inputs = inputs(&graph, 3);
    let compiled = compiled(graph).expect("it compiles");
    let limit = least(std::slice::from_ref(&compiled));
    let paged = Paged::new("damaged", vec![compiled], limit).expect("it reads");
    let whole = std::fs::read(&paged.path).expect("readable");
    let mut session = paged.open(2).expect("it opens");
    let want = result(&mut session, &inputs).expect("the file is whole");

    paged.file.set_len(whole.len() as u64 / 2).expect("writable");
    // The reads of the next run may have started before.
    let cut = (0..3).find_map(|_| result(&mut session, &inputs).err()).expect("the file is too short").to_string();
    assert!(cut.starts_with("cannot read constant `") && cut.ends_with("the file was truncated"), "{cut}");
    assert!(result(&mut session, &inputs).is_err(), "it is still too short");
    assert!(matches!(paged.open(1), Err(RunError::WeightsFile(_))), "the section is not in the file");

    paged.file.write_all_at(&whole, 0).expect("writable");
    assert_eq!(result(&mut session, &inputs), Ok(want.clone()), "the file is whole again");

    let plan = session.plan().clone();
    let read = plan.residency.as_ref().expect("it reads").reads[0];
    let constant = &plan.constants[read.constant.0 as usize];
    let at = START + constant.offset.0;
    paged.file.write_all_at(&[whole[at as usize] ^ 1], at).expect("writable");
    let changed = (0..3).find_map(|_| result(&mut session, &inputs).err()).expect("a bit differs").to_string();
    let name = format!("`{}`", constant.tag.scope);
    assert!(changed.contains(&name) && changed.contains("its checksum is wrong"), "{changed}");
    paged.file.write_all_at(&whole, 0).expect("writable");
    assert_eq!(result(&mut session, &inputs), Ok(want));
}

/// A plan that was not checked is refused before anything reads by it.
#[test]
fn forged_plan_does_not_open() {
    let compiled = compiled(transformers::transformer(1)).expect("it compiles");
    let limit = least(std::slice::from_ref(&compiled));
    let mut paged = Paged::new("forged", vec![compiled], limit).expect("it reads");
    let residency = paged.program.plans[0].residency.as_mut().expect("it reads");
    residency.reads[0].offset = Bytes(1 << 40);
    let error = paged.open(1).err().expect("a constant is outside the block").to_string();
    assert!(error.contains("the constants in memory are placed wrong"), "{error}");
}

fn prestow(words: &[&str]) -> Output {
    output_of(Command::new(program("prestow")).args(words).current_dir(root()))
}

#[test]
fn unsupported_requests_are_refused() {
    let folder = folder("resident-refused");
    let out = folder.join("model");
    let out = out.to_str().expect("text");
    for (words, expected) in [
        (&["--train"][..], "--resident and --train exclude each other"),
        (&["--target", "cuda:sm_90"], "--resident is for processors"),
        (&["--separate-weights", "--weights", "x.npz"], "--resident and --separate-weights exclude each other"),
    ] {
        let done = prestow(&[&["compile", "lenet", "--resident", "1MiB", "-o", out], words].concat());
        let error = text(&done.stderr);
        assert!(done.status.code() == Some(2) && error.contains(expected), "{words:?}: {error}");
    }
}

#[test]
fn limit_below_a_step_is_refused_with_the_least_one() {
    let folder = folder("resident-least");
    let exe = folder.join("model");
    let compile =
        |limit: &str| prestow(&["compile", "alexnet", "--resident", limit, "-o", exe.to_str().expect("text")]);
    let done = compile("1MiB");
    let error = text(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{error}");
    assert!(error.contains("step ") && error.contains("classifier/1"), "{error}");
    let least = error.split(" (").find_map(|part| part.split_once(" bytes)")?.0.parse::<u64>().ok());
    let least = least.expect("the error states the least limit");
    assert_eq!(compile(&(least - 1).to_string()).status.code(), Some(2));
    let done = compile(&least.to_string());
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("stay, a run reads"), "{}", text(&done.stdout));
    let done = compile("10GiB");
    assert!(done.status.success() && text(&done.stderr).contains("all weights fit"), "{}", text(&done.stderr));
}

/// An executable within a limit of about half of its weights, and one without.
fn two_executables(name: &str) -> (PathBuf, PathBuf, u64) {
    let limit = 24 << 20;
    let whole = executables::compile(&folder(&format!("{name}-whole")), &["resnet18"]);
    let bound = executables::compile(&folder(name), &["resnet18", "--resident", &limit.to_string()]);
    (whole, bound, limit)
}

#[test]
fn executable_keeps_its_limit_and_has_the_same_bits() {
    let (whole, bound, limit) = two_executables("resident-executable");
    let values = |exe: &Path| json(exe, &["run", "--values", "all"])["outputs"].clone();
    assert_eq!(values(&whole), values(&bound));

    let report = json(&bound, &["memory", "--actual"]);
    let (planned, actual) = (&report["planned"], &report["actual"]);
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_else(|| panic!("{value} is a number"));
    assert_eq!(report["verdict"], "equal", "{report}");
    assert_eq!(actual["heap_allocations_in_run"], 0);
    assert_eq!(actual["read_bytes_in_run"], planned["resident"]["read_bytes"]);
    let block = number(&planned["resident"]["block_bytes"]);
    assert!(number(&planned["arena_bytes"]) + block <= limit);
    assert!(number(&planned["resident"]["least_read_bytes"]) <= number(&planned["resident"]["read_bytes"]));
    let resident = actual["planned_resident"].as_array().expect("rows");
    let weights = resident.iter().find(|row| row["what"] == "weights in memory").expect("the block has pages");
    assert!(number(&weights["bytes"]) <= block, "{weights}");
    // Program, libraries, heap and stacks come on top.
    let peak = number(&actual["peak_rss_bytes"]);
    assert!(peak < limit + (24 << 20), "{peak} resident at the peak");
    assert!(limit + (24 << 20) < number(&planned["weights_bytes"]) + number(&planned["arena_bytes"]));

    let screen = text(&output_of(Command::new(&bound).arg("memory")).stdout);
    assert!(screen.contains("a run reads") && screen.contains("stays in memory, the largest first"), "{screen}");
    for words in [&["bench", "--iters", "3"][..], &["profile", "--iters", "2", "--warmup", "1"], &[]] {
        let done = output_of(Command::new(&bound).args(words));
        assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
    }
    let done = output_of(Command::new(&bound).args(["run", "--weights-from", "uprd"]));
    assert!(done.status.code() == Some(2) && text(&done.stderr).contains("--resident"), "{}", text(&done.stderr));
}

#[test]
fn damaged_weight_ends_an_executable_with_its_name() {
    let (_, bound, _) = two_executables("resident-damaged");
    let mut bytes = std::fs::read(&bound).expect("readable");
    let trailer = plan::image::Trailer::read(&bytes, bytes.len() as u64).expect("it is an image");
    let middle = (trailer.constants.start + trailer.constants.end) as usize / 2;
    bytes[middle] ^= 4;
    std::fs::write(&bound, bytes).expect("writable");
    let done = output_of(Command::new(&bound).arg("run"));
    let error = text(&done.stderr);
    assert!(done.status.code() == Some(2) && error.contains("cannot read constant `"), "{error}");
}

/// The kernel kills a program that needs more than its control group permits.
#[test]
fn executable_runs_in_a_control_group_of_its_memory() {
    let (_, bound, limit) = two_executables("resident-group");
    // The rest of the process: program, heap, stacks, and what the kernel counts for it.
    let bytes = limit + (32 << 20);
    let test = "executable_runs_in_a_control_group_of_its_memory";
    let name = format!("prestow-test-{}", std::process::id());
    let groups = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
    let made = groups.into_iter().find_map(|(place, file)| {
        let group = Path::new(place).join(&name);
        std::fs::create_dir(&group).ok()?;
        // The kernel makes the files of a group; in another folder there are none.
        let is_group = group.join(file).exists() && group.join("cgroup.procs").exists();
        if is_group && std::fs::write(group.join(file), bytes.to_string()).is_ok() {
            return Some(group);
        }
        let _ = std::fs::remove_dir(&group);
        None
    });
    let Some(group) = made else { return skip(test, "this user cannot make a control group with a limit of memory") };
    let script = r#"echo $$ > "$0/cgroup.procs" && exec "$1" bench --warmup 1 --iters 3"#;
    let done = output_of(Command::new("sh").args(["-c", script]).arg(&group).arg(&bound));
    let removed = std::fs::remove_dir(&group);
    assert!(done.status.success(), "{:?} {}", done.status, text(&done.stderr));
    removed.expect("the group is empty");
}
