//! The planner compared with others: `cargo xtask bench planner [challenge|large|families|networks [NETWORK]...|generated|scale|budget [NETWORK]...|windows [NETWORK]...]` prints tables
//! in Markdown.
//!
//! Heights do not depend on the machine; times do. They are CPU seconds if the system reports them. With
//! `PRESTOW_MINIMALLOC=FILE`, the path of a built `minimalloc`, its time is measured interleaved.
//!
//! `families` takes options: `count=10000,100000`, `seeds=201..210`, and words of a family's name, as in
//! `families rectangle count=10000 seeds=201..210`.
//!
//! `generated` compares generated networks with a naive plan, worst first; it takes `seeds=` and names of families too, and paths of
//! ONNX files instead.
//! `scale` has the compile times of generated networks by their number of nodes: `nodes=1000,5000`, `seeds=`, `goal=time`, names of families.

mod budget;
mod windows;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use arena::{Aim, Buffer, Lifetime, Limits, Placement, Problem, check, csv, place};
use cases::naive::naive_arena;
use cases::networks::{Family as NetworkFamily, Scale};
use compiler::source::{Request, load, models};
use compiler::{Goal, Model, Optimize};
use lower::cpu::CpuTarget;
use types::{Bytes, Proof, Random, Role};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let is_asked = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    for (name, table) in [("challenge", challenge as fn()), ("large", large)] {
        if is_asked(name) {
            table();
        }
    }
    if is_asked("families") {
        families(&words);
    }
    if words.iter().any(|word| word == "budget") {
        budget::budget(&words);
        return;
    }
    if words.iter().any(|word| word == "windows") {
        windows::windows(&words);
        return;
    }
    if is_asked("generated") {
        generated(&words);
    }
    if is_asked("scale") {
        scale(&words);
    }
    if is_asked("networks") {
        let names: Vec<&str> = models().iter().map(|model| model.name).collect();
        let asked: Vec<&str> = names.iter().copied().filter(|name| words.iter().any(|word| word == name)).collect();
        networks(if asked.is_empty() { &names } else { &asked });
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("benches are in the workspace").to_path_buf()
}

/// A file of the benches or of the arena's tests.
fn path_of(file: &str) -> PathBuf {
    let own = root().join("benches/data/planner").join(file);
    if own.exists() { own } else { root().join("crates/arena/tests/data").join(file) }
}

fn read(file: &str) -> Problem {
    let text = std::fs::read_to_string(path_of(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    csv::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}")).problem
}

#[expect(clippy::disallowed_methods, reason = "benches measure time")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let (start, start_s) = (Instant::now(), processor_s());
    let result = work();
    let wall_s = start.elapsed().as_secs_f64();
    (result, start_s.zip(processor_s()).map_or(wall_s, |(start, end)| end - start))
}

/// The CPU seconds of this thread, if Linux reports them.
fn processor_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

/// Places and checks; returns the seconds of placing.
fn placed(problem: &Problem, limits: Limits) -> (Placement, f64) {
    let (placement, seconds) = timed(|| place(problem, limits).unwrap_or_else(|error| panic!("{error}")));
    check(problem, &placement.offsets, placement.height()).expect("a placement is valid");
    (placement, seconds)
}

fn gap(height: u64, bound: u64) -> String {
    match bound {
        0 => "no bound".into(),
        _ => format!("{:.3} %", 100.0 * (height as f64 / bound as f64 - 1.0)),
    }
}

fn state(proof: Proof) -> &'static str {
    match proof {
        Proof::Bound => "= bound",
        Proof::Search => "searched",
        Proof::Gap => "gap",
    }
}

/// minimalloc's challenge: placements within 1 048 576 bytes, and the least heights found within minutes.
fn challenge() {
    let peer = std::env::var_os("PRESTOW_MINIMALLOC").map(PathBuf::from);
    println!("| instance | buffers | lower bound | height within 1 048 576 | s | minimalloc s |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let (mut ours, mut theirs) = (0.0, 0.0);
    for name in "ABCDEFGHIJK".chars() {
        let file = format!("{name}.1048576.csv");
        let mut problem = read(&file);
        problem.capacity = Some(Bytes(1 << 20));
        let (placement, seconds) = placed(&problem, Limits { aim: Aim::Capacity, ..Limits::default() });
        let beside = peer.as_deref().map(|peer| minimalloc(peer, &path_of(&file)));
        ours += seconds;
        theirs += beside.unwrap_or(0.0);
        let beside = beside.map_or("not built".into(), |seconds| format!("{seconds:.3}"));
        println!(
            "| {name} | {} | {} | {} | {seconds:.3} | {beside} |",
            problem.buffers.len(),
            placement.certificate.lower_bound.0,
            placement.height().0
        );
    }
    println!("| all | | | | {ours:.3} | {} |\n", if peer.is_some() { format!("{theirs:.3}") } else { String::new() });
    println!("| instance | aim | height | s |\n| --- | --- | --- | --- |");
    for (name, goal) in [('C', 1_039_360), ('D', 999_424), ('D', 992_256), ('J', 1_024_000), ('J', 1_010_688)] {
        let mut problem = read(&format!("{name}.1048576.csv"));
        problem.capacity = Some(Bytes(goal));
        let limits = Limits { work: 4_000_000_000, aim: Aim::Capacity };
        let (outcome, seconds) = timed(|| place(&problem, limits));
        let height = outcome.map_or_else(|error| error.to_string(), |placement| placement.height().0.to_string());
        println!("| {name} | {goal} | {height} | {seconds:.3} |");
    }
    println!();
}

/// The seconds that minimalloc prints. Panics if a run fails.
fn minimalloc(program: &Path, input: &Path) -> f64 {
    let output = std::env::temp_dir().join("prestow-minimalloc.csv");
    let words = [format!("--input={}", input.display()), format!("--output={}", output.display())];
    let done = Command::new(program).args(words).args(["--capacity=1048576", "--timeout=600s"]).output();
    let done = done.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let text = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
    let seconds = text.split_whitespace().find_map(|word| word.trim_matches(|c: char| c.is_alphabetic()).parse().ok());
    seconds.unwrap_or_else(|| panic!("{} printed no time: {text}", program.display()))
}

/// Large real problems.
fn large() {
    println!("| problem | buffers | lower bound | height | gap | state | s |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for file in ["G_1.csv", "resnet50.csv", "pangu_2.6B.csv", "S_1.csv", "Y_1.csv"] {
        row(file.trim_end_matches(".csv"), &read(file));
    }
    println!();
}

fn row(name: &str, problem: &Problem) {
    let (placement, seconds) = placed(problem, Limits::default());
    let bound = placement.certificate.lower_bound.0;
    println!(
        "| {name} | {} | {bound} | {} | {} | {} | {seconds:.3} |",
        problem.buffers.len(),
        placement.height().0,
        gap(placement.height().0, bound),
        state(placement.certificate.proof())
    );
}

/// A kind of generated problems: its name, and the problem for a number of buffers and a seed.
type Family = (&'static str, fn(usize, u64) -> Problem);

const FAMILIES: [Family; 6] = [
    ("rectangle cut up", cut_rectangle),
    ("rectangle cut unevenly", cut_unevenly),
    ("random lifetimes", random_lifetimes),
    ("nested lifetimes", nested_lifetimes),
    ("few long among short", few_long),
    ("every magnitude", every_magnitude),
];

/// The text of a word `key=text`.
fn option<'a>(words: &'a [String], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key))
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|error| panic!("`{text}`: {error}"))
}

/// The seeds of `seeds=first..last`.
fn seeds(words: &[String]) -> Option<RangeInclusive<u64>> {
    option(words, "seeds=").map(|text| {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        number(first)..=number(last)
    })
}

/// Generated problems of all families and sizes, or of the requested ones.
fn families(words: &[String]) {
    let counts = option(words, "count=").map(|text| text.split(',').map(|count| number(count) as usize).collect());
    let counts: Vec<usize> = counts.unwrap_or(vec![100, 1_000, 10_000, 100_000, 1_000_000]);
    let seeds = seeds(words);
    let is_named = |name: &str| words.iter().any(|word| name.contains(word.as_str()));
    let is_any_named = FAMILIES.iter().any(|(name, _)| is_named(name));
    println!("| problem | buffers | lower bound | height | gap | state | s |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for count in counts {
        for (name, make) in FAMILIES {
            if is_any_named && !is_named(name) {
                continue;
            }
            for seed in seeds.clone().unwrap_or(11..=12) {
                row(&format!("{name}, seed {seed}"), &make(count, seed));
            }
        }
    }
    println!();
}

fn buffer(first: u64, end: u64, size: u64) -> Buffer {
    Buffer::new(Lifetime { first: first as u32, end: end as u32 }, Bytes(size))
}

/// A full rectangle cut by guillotine cuts: the optimum is its height, which is the bound.
fn cut_rectangle(count: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut parts = vec![[0u64, 4 * count as u64, 0, 1 << 32]];
    let mut whole: std::collections::VecDeque<[u64; 4]> = parts.drain(..).collect();
    let mut done = Vec::new();
    while whole.len() + done.len() < count {
        let Some([left, right, low, high]) = whole.pop_front() else { break };
        let (width, height) = (right - left, high - low);
        let across = if width < 2 { false } else { height < 2 || random.below(2) == 0 };
        if width < 2 && height < 2 {
            done.push([left, right, low, high]);
        } else if across {
            let at = left + 1 + random.below(width - 1);
            whole.extend([[left, at, low, high], [at, right, low, high]]);
        } else {
            let at = low + 1 + random.below(height - 1);
            whole.extend([[left, right, low, at], [left, right, at, high]]);
        }
    }
    done.extend(whole);
    let buffers = done.into_iter().map(|[left, right, low, high]| buffer(left, right, high - low)).collect();
    Problem { buffers, capacity: None }
}

/// The same, but the next part to cut is random, so that some are cut often and others never; shuffled.
fn cut_unevenly(count: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut parts = vec![[0u64, 4 * count as u64, 0, 1 << 32]];
    while parts.len() < count {
        let ix = random.below(parts.len() as u64) as usize;
        let [left, right, low, high] = parts[ix];
        if random.below(2) == 0 && 1 < right - left {
            let at = left + 1 + random.below(right - left - 1);
            parts[ix] = [left, at, low, high];
            parts.push([at, right, low, high]);
        } else if 1 < high - low {
            let at = low + 1 + random.below(high - low - 1);
            parts[ix] = [left, right, low, at];
            parts.push([left, right, at, high]);
        }
    }
    for ix in (1..parts.len()).rev() {
        parts.swap(ix, random.below(ix as u64 + 1) as usize);
    }
    let buffers = parts.into_iter().map(|[left, right, low, high]| buffer(left, right, high - low)).collect();
    Problem { buffers, capacity: None }
}

/// Lifetimes and sizes of every order of magnitude.
fn every_magnitude(count: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let steps = 2 * count as u64;
    let mut one = || {
        let first = random.below(steps);
        let mut width = steps / 4;
        for _ in 0..3 {
            width = random.below(width + 1);
        }
        let magnitude = random.below(16);
        buffer(first, first + 1 + width, 64 * (1 + random.below(1 << magnitude)))
    };
    Problem { buffers: (0..count).map(|_| one()).collect(), capacity: None }
}

fn random_lifetimes(count: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let steps = count as u64;
    let mut one = || {
        let first = random.below(steps);
        buffer(first, first + 1 + random.below(20), 64 * (1 + random.below(4096)))
    };
    Problem { buffers: (0..count).map(|_| one()).collect(), capacity: None }
}

/// Training: each layer's result lives until its gradient is computed, with short workspaces in both passes.
fn nested_lifetimes(count: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let layers = (count / 3) as u64;
    let mut buffers = Vec::new();
    for layer in 0..layers {
        let size = 256 * (1 + random.below(4096));
        buffers.push(buffer(layer, 2 * layers - layer, size));
        buffers.push(buffer(layer, layer + 1, 256 * random.below(1024)));
        buffers.push(buffer(2 * layers - layer - 1, 2 * layers - layer + 1, size));
    }
    Problem { buffers, capacity: None }
}

fn few_long(count: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let steps = count as u64;
    let mut one = || {
        let is_long = random.below(500) == 0;
        let life = if is_long { 1 + random.below(steps) } else { 1 + random.below(30) };
        let first = random.below(steps);
        buffer(first, (first + life).min(steps + 30), 64 * (1 + random.below(2048)))
    };
    Problem { buffers: (0..count).map(|_| one()).collect(), capacity: None }
}

/// The goals that plans of generated networks are compared for; the last one decides their order.
const GOALS: [(&str, Optimize); 3] =
    [("time", Optimize::Time), ("balanced", Optimize::Balanced), ("memory", Optimize::Memory)];

/// Generated networks, or those of files, compiled, and their naive plans; the largest ratio first.
fn generated(words: &[String]) {
    let files: Vec<&String> = words.iter().filter(|word| word.ends_with(".onnx")).collect();
    let is_named = |family: &NetworkFamily| words.iter().any(|word| word == family.name());
    let all = |_: &NetworkFamily| files.is_empty() && !NetworkFamily::ALL.iter().any(is_named);
    let families = NetworkFamily::ALL.into_iter().filter(|family| is_named(family) || all(family));
    let seeds = seeds(words).unwrap_or(1..=4);
    let networks = families.flat_map(|family| seeds.clone().map(move |seed| family.network(seed, Scale::Full)));
    let loaded = files.iter().map(|file| {
        let request = Request { model: file.to_string(), ..Request::default() };
        load(&request).unwrap_or_else(|error| panic!("{file}: {error}")).graph
    });
    let mut rows = Vec::new();
    for graph in networks.chain(loaded) {
        let (name, naive) = (graph.name.clone(), naive_arena(&graph));
        let plans = GOALS.map(|(_, goal)| {
            let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
            let compile = || compiler::compile(model, &CpuTarget::new(), goal.into(), |_, _| {});
            let (compiled, seconds) = timed(compile);
            (compiled.expect("it compiles").plan, seconds)
        });
        let of_naive = plans[GOALS.len() - 1].0.arena.size().0 as f64 / naive as f64;
        rows.push((of_naive, name, naive, plans));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("| network | naive | time, of naive | balanced | memory | memory compiled in s |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (_, name, naive, plans) in rows {
        let of_naive = plans.each_ref().map(|(plan, _)| plan.arena.size().0 as f64 / naive as f64);
        let [time, balanced, memory] = of_naive.map(|ratio| format!("{ratio:.3}"));
        println!("| {name} | {naive} | {time} | {balanced} | {memory} | {:.2} |", plans[GOALS.len() - 1].1);
    }
    println!();
}

/// Seconds in which generated networks of many nodes are compiled, loading apart; `nodes=` has the counts, `goal=` one goal.
fn scale(words: &[String]) {
    let counts = option(words, "nodes=").unwrap_or("1000,5000,20000");
    let seed = seeds(words).map_or(1, |seeds| *seeds.start());
    let is_named = |family: &&NetworkFamily| words.iter().any(|word| word == family.name());
    let named: Vec<NetworkFamily> = NetworkFamily::SCALABLE.into_iter().filter(|family| is_named(&family)).collect();
    let families = if named.is_empty() { NetworkFamily::SCALABLE.to_vec() } else { named };
    println!("| network | nodes | goal | arena | gap of the order | CPU s |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for count in counts.split(',').map(|count| number(count) as usize) {
        for family in &families {
            let graph = family.network(seed, Scale::Nodes(count));
            let nodes = graph.nodes().len();
            let asked = |(name, _): &(&str, Optimize)| option(words, "goal=").is_none_or(|goal| goal == *name);
            for (name, goal) in GOALS.into_iter().filter(asked) {
                let model = Model { graph: graph.clone(), preprocess: None, labels: Vec::new() };
                let (compiled, seconds) = timed(|| compiler::compile(model, &CpuTarget::new(), goal.into(), |_, _| {}));
                let plan = compiled.expect("it compiles").plan;
                let order = gap(plan.order.value.0, plan.order.least.0);
                println!("| {} | {nodes} | {name} | {} | {order} | {seconds:.2} |", graph.name, plan.arena.size().0);
            }
        }
    }
    println!();
}

/// Reads MXNet's plans by name and batch.
fn mxnet(file: &str) -> impl Fn(&str, usize) -> Option<u64> {
    let table = std::fs::read_to_string(path_of(file)).expect("it is there");
    move |name, batch| {
        let row = table.lines().find(|line| line.starts_with(&format!("{},{batch},", mxnet_name(name))))?;
        row.split(',').nth(2)?.parse().ok()
    }
}

/// The rules of other planners on the same buffers, and MXNet's plans.
fn networks(names: &[&str]) {
    let (plain, fused) = (mxnet("mxnet_1.9.1.csv"), mxnet("mxnet_1.9.1_fused.csv"));
    println!(
        "Bytes of the arena with inputs and workspaces; *by size*, *in order* and *spatial* place the same buffers.\n"
    );
    println!(
        "| network | batch | arena | state | order | bound over all orders | by size (TFLite, IREE) | in order (ONNX \
         Runtime) | spatial (XLA) | place s | without inputs and workspaces | MXNet 1.9.1 | less | MXNet \
         fused, MiB | less |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let (mut savings, mut fused_savings) = (Vec::new(), Vec::new());
    for &name in names {
        for batch in [1, 32] {
            let request = Request { model: name.into(), batch: Some(batch), ..Request::default() };
            let model = load(&request).expect("the zoo has it");
            let plan =
                compiler::compile(model, &CpuTarget::new(), Goal::default(), |_, _| {}).expect("it compiles").plan;
            let problem = plan.problem();
            let (placement, seconds) = placed(&problem, Limits::default());
            let height = placement.height().0;
            assert_eq!(placement.height(), plan.arena.size(), "the compiler places with less work, as well");
            let others = [by_size(&problem), in_order(&problem), spatial(&problem)];
            assert!(others.iter().all(|&other| height <= other), "{}", request.model);
            let mut inner = problem.clone();
            let tags = plan.buffers.iter().map(|buffer| buffer.tag.role);
            let keep: Vec<bool> = tags.map(|role| !matches!(role, Role::Input | Role::Workspace)).collect();
            let mut keep = keep.into_iter();
            inner.buffers.retain(|_| keep.next() == Some(true));
            let inner = placed(&inner, Limits::default()).0.height().0;
            let (plain, fused) = (plain(&request.model, batch), fused(&request.model, batch));
            let less = plain.map(|bytes| saving(inner, bytes));
            // Rounded down by at most a MiB, so this is a lower bound of the saving.
            let fused_less = fused.map(|mib| saving(inner, mib << 20));
            savings.extend(less);
            fused_savings.extend(fused_less);
            println!(
                "| {} | {batch} | {height} | {} | {} | {} | {} | {} | {} | {seconds:.4} | {inner} | {} | {} | {} | {} |",
                request.model,
                plan.arena.certificate.text(),
                plan.order.text(),
                plan.order.lower_bound.0,
                others[0],
                others[1],
                others[2],
                plain.map_or("-".into(), |bytes| bytes.to_string()),
                less.map_or("-".into(), |less| format!("{less:.1} %")),
                fused.map_or("-".into(), |mib| mib.to_string()),
                fused_less.map_or("-".into(), |less| format!("{less:.1} %")),
            );
        }
    }
    println!();
    for (baseline, mut savings) in [("MXNet's plan", savings), ("its plan with fusion", fused_savings)] {
        savings.sort_by(f64::total_cmp);
        if let Some(least) = savings.first() {
            println!("below {baseline}: median {:.1} %, least {least:.1} %", savings[savings.len() / 2]);
        }
    }
}

fn saving(ours: u64, theirs: u64) -> f64 {
    100.0 * (1.0 - ours as f64 / theirs as f64)
}

/// The name in MXNet's zoo; the networks of gluon are identical.
fn mxnet_name(name: &str) -> &str {
    name.strip_prefix("gluon/").unwrap_or("-")
}

/// Places buffers in an order, each into the smallest hole among those live at the same time, otherwise on top.
fn best_fit(problem: &Problem, order: &[usize]) -> u64 {
    let mut placed: Vec<(u64, u64, Lifetime)> = Vec::new();
    for &ix in order {
        let Buffer { lifetime, size, alignment, .. } = &problem.buffers[ix];
        let (mut at, mut best) = (0, None::<(u64, u64)>);
        for &(low, high, other) in &placed {
            if !other.overlaps(*lifetime) {
                continue;
            }
            let start = u64::next_multiple_of(at, alignment.0);
            if start + size.0 <= low && best.is_none_or(|(hole, _)| low - at < hole) {
                best = Some((low - at, start));
            }
            at = at.max(high);
        }
        let start = best.map_or_else(|| u64::next_multiple_of(at, alignment.0), |(_, start)| start);
        let slot = (start, start + size.0, *lifetime);
        placed.insert(placed.partition_point(|other| other.0 < start), slot);
    }
    placed.iter().map(|&(_, high, _)| high).max().unwrap_or(0)
}

fn sorted_by<K: Ord>(problem: &Problem, key: impl Fn(&Buffer) -> K) -> Vec<usize> {
    let mut order: Vec<usize> = (0..problem.buffers.len()).collect();
    order.sort_by_key(|&ix| key(&problem.buffers[ix]));
    order
}

fn length(buffer: &Buffer) -> u32 {
    buffer.lifetime.end - buffer.lifetime.first
}

fn by_size(problem: &Problem) -> u64 {
    best_fit(problem, &sorted_by(problem, |buffer| std::cmp::Reverse(buffer.size)))
}

/// Allocation order: plans number buffers by first use.
fn in_order(problem: &Problem) -> u64 {
    best_fit(problem, &sorted_by(problem, |buffer| buffer.lifetime.first))
}

/// The better of two orders: by size and then length, by length and then size.
fn spatial(problem: &Problem) -> u64 {
    use std::cmp::Reverse;
    let size = sorted_by(problem, |buffer| (Reverse(buffer.size), Reverse(length(buffer))));
    let live = sorted_by(problem, |buffer| (Reverse(length(buffer)), Reverse(buffer.size)));
    best_fit(problem, &size).min(best_fit(problem, &live))
}
