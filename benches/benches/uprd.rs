//! Weights of the daemon compared with private ones; a process a request, rounds interleaved. Tables in Markdown.
//!
//! `cargo xtask bench uprd [attach|sizes|networks|memory|grid]... [--rounds=N] [NETWORK]...`

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plan::{Constant, Plan, image};
use serde_json::Value;
use share::Client;
use share::client::{Attached, AttachedWeights};
use share::core::Granularity;
use share::load::identify;
use share::memory::Mapped;
use share::trace::now;
use share::wire::Ask;
use types::{Bytes, DType, Random, Role, Scope, Shape, Tag};

/// Networks of the usual run, from 5 to 550 MB: those of the paper's table that the zoo has.
const NETWORKS: [&str; 10] = [
    "squeezenet1_1",
    "googlenet",
    "resnet18",
    "inception_v3",
    "resnet50",
    "dlbs/inception4",
    "resnet101",
    "alexnet",
    "dlbs/resnet269",
    "vgg16",
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let rounds = words.iter().find_map(|word| word.strip_prefix("--rounds=")?.parse().ok()).unwrap_or(10);
    let sections = ["attach", "sizes", "networks", "memory", "grid"];
    let chosen =
        |name: &str| words.iter().all(|word| !sections.contains(&&**word)) || words.iter().any(|word| word == name);
    let networks: Vec<&str> =
        words.iter().map(|word| &**word).filter(|word| !sections.contains(word) && !word.starts_with("--")).collect();
    let networks = if networks.is_empty() { NETWORKS.to_vec() } else { networks };
    let folder = root().join("target/bench-uprd");
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    if chosen("attach") {
        attach(&folder, rounds);
    }
    if chosen("sizes") {
        sizes(&folder, rounds);
    }
    if chosen("networks") {
        compare(&folder, &networks, rounds);
    }
    if chosen("memory") {
        memory(&folder);
    }
    if chosen("grid") {
        grid(&folder, &networks, rounds);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the benches are in the workspace").to_path_buf()
}

fn program(name: &str) -> PathBuf {
    root().join("target/release").join(name)
}

/// A daemon with a budget.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(folder: &Path, arguments: &[&str]) -> Daemon {
        let socket = folder.join("run/uprd.sock");
        let mut command = Command::new(program("uprd"));
        command.arg("--socket").arg(&socket).arg("serve").args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("`cargo xtask bench uprd` builds the daemon");
        let daemon = Daemon { child, socket };
        while Client::connect(&daemon.socket, true).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        daemon
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket, true).expect("it listens")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value at a fraction of sorted ones.
fn quantile(times: &mut [f64], fraction: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * fraction).round() as usize]
}

/// Writes an executable without a runner with `count` constants of together `size` bytes.
fn write_image(path: &Path, size: usize, count: usize, seed: u64) {
    if path.exists() {
        return;
    }
    let (each, mut plan) = ((size / count).next_multiple_of(64), Plan { model: "bench".into(), ..Plan::default() });
    let mut random = Random::new(seed);
    let section: Vec<u8> =
        std::iter::repeat_with(|| random.bits().to_le_bytes()).take(each * count / 8).flatten().collect();
    plan.constants = (0..count)
        .map(|ix| Constant {
            tag: Tag { scope: Scope::new(&format!("t{ix}")), role: Role::Weight },
            dtype: DType::U8,
            shape: Shape::from([each]),
            offset: Bytes((ix * each) as u64),
            size: Bytes(each as u64),
        })
        .collect();
    plan.constants_size = Bytes(section.len() as u64);
    let mut file = File::create(path).expect("the target folder is writable");
    image::write(&mut file, b"runner", &[plan], &section).expect("the plan is valid");
}

fn open(client: &mut Client, path: &Path, granularity: Granularity) -> Attached {
    let file = File::open(path).expect("it was written");
    let key = identify(&file, path, granularity).expect("it is an executable");
    client.open(&key, Some(&file), 0, "").expect("the budget suffices")
}

fn map(attached: Attached) -> Mapped {
    match attached.weights {
        AttachedWeights::Section { file, size } => Mapped::whole(file.into(), size).expect("it is sealed"),
        AttachedWeights::Tensors { mapped, .. } => mapped,
    }
}

/// Microseconds to connect, lease and map, each time with a connection of its own.
fn attach_times(daemon: &Daemon, path: &Path, granularity: Granularity, count: usize) -> Vec<f64> {
    let once = |_| {
        let start = now();
        let mut client = daemon.client();
        let mapped = map(open(&mut client, path, granularity));
        let time = (now() - start) as f64 / 1e3;
        drop(mapped);
        time
    };
    (0..count).map(once).collect()
}

fn attach(folder: &Path, rounds: usize) {
    println!("\n## Attach to a resident model of 1 GB\n");
    println!(
        "| tensors | granularity | clients | manifests | p50 us | p99 us |\n| --- | --- | --- | --- | --- | --- |"
    );
    let daemon = Daemon::start(folder, &["--budget", "12GiB"]);
    let count = 100 * rounds;
    let cases: Vec<(usize, Granularity, PathBuf)> = [228, 1346]
        .into_iter()
        .flat_map(|tensors| [Granularity::Model, Granularity::Layer].map(|granularity| (tensors, granularity)))
        .map(|(tensors, granularity)| (tensors, granularity, folder.join(format!("synthetic-{tensors}"))))
        .collect();
    for (tensors, granularity, path) in &cases {
        write_image(path, 1_000_000_000, *tensors, *tensors as u64);
        drop(map(open(&mut daemon.client(), path, *granularity)));
    }
    let print = |clients: usize, manifests: usize| {
        for (tensors, granularity, path) in &cases {
            let mut times = attach_times(&daemon, path, *granularity, count);
            let (p50, p99) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
            println!("| {tensors} | {} | {clients} | {manifests} | {p50:.1} | {p99:.1} |", granularity.name());
        }
    };
    print(0, 3);
    let mut client = daemon.client();
    let small = folder.join("small");
    for seed in 0..10_000 {
        let _ = std::fs::remove_file(&small);
        write_image(&small, 64, 1, 1000 + seed);
        drop(open(&mut client, &small, Granularity::Model));
    }
    drop(client);
    let clients: Vec<Client> = (0..1000).map(|_| daemon.client()).collect();
    print(clients.len(), 10_003);
}

fn sizes(folder: &Path, rounds: usize) {
    println!("\n## Weights by size: private open (map and checksum), daemon\n");
    println!("| MB | private ms | attach ms | attach and read a byte a page ms | private / (attach and read) |");
    println!("| --- | --- | --- | --- | --- |");
    let daemon = Daemon::start(folder, &["--budget", "12GiB"]);
    for size in [5, 50, 500, 1500] {
        let path = folder.join(format!("size-{size}"));
        write_image(&path, size * 1_000_000, 100, size as u64);
        drop(map(open(&mut daemon.client(), &path, Granularity::Model)));
        let (mut private, mut attach, mut read) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds.max(3) {
            let start = now();
            drop(runtime::ImageFile::open(&path).expect("it is an executable"));
            private.push((now() - start) as f64 / 1e6);
            let start = now();
            let mut client = daemon.client();
            let mapped = map(open(&mut client, &path, Granularity::Model));
            attach.push((now() - start) as f64 / 1e6);
            let sum = mapped.as_ref().iter().step_by(4096).fold(0u64, |sum, byte| sum.wrapping_add((*byte).into()));
            std::hint::black_box(sum);
            read.push((now() - start) as f64 / 1e6);
        }
        let [private, attach, read] = [private, attach, read].map(|mut times| quantile(&mut times, 0.5));
        println!("| {size} | {private:.2} | {attach:.3} | {read:.2} | {:.1} |", private / read);
    }
}

/// Compiles a network once.
fn executable(folder: &Path, network: &str) -> PathBuf {
    let path = folder.join(network.replace('/', "-"));
    if !path.exists() {
        let mut command = Command::new(program("prestow"));
        command.args(["compile", network, "-o"]).arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(command.status().expect("it was built").success(), "{network} compiles");
    }
    path
}

/// One process: milliseconds from spawn to exit, milliseconds of its load or attach, milliseconds of its inference.
fn request(path: &Path, socket: &Path, arguments: &[&str]) -> [f64; 3] {
    let mut command = Command::new(path);
    command.args(["run", "--json", "--values", "1", "--threads", "1"]).args(arguments).env("UPRD_SOCKET", socket);
    let start = now();
    let done = command.stdin(Stdio::null()).output().expect("it was compiled");
    let time = (now() - start) as f64 / 1e6;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let json: Value = serde_json::from_slice(&done.stdout).expect("it prints JSON");
    let weights = &json["weights"];
    let load = weights["attach_us"].as_f64().or(weights["load_us"].as_f64()).unwrap_or(f64::NAN) / 1e3;
    [time, load, json["latency_ms"].as_f64().unwrap_or(f64::NAN)]
}

/// Drops the pages of one file from the page cache.
fn forget(path: &Path) {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", path.display())).args(["of=/dev/null", "iflag=nocache", "count=0"]);
    let _ = command.stderr(Stdio::null()).status();
}

fn evict_all(daemon: &Daemon) {
    let mut client = daemon.client();
    for model in 1..10_000u64 {
        let _ = client.done(&Ask::Evict { model: model.to_string(), drain: false }, &[], Duration::from_secs(5));
        if client.text(&Ask::List { from: model + 1 }).is_ok_and(|(text, _)| text == "[]") {
            return;
        }
    }
}

fn compare(folder: &Path, networks: &[&str], rounds: usize) {
    println!("\n## Networks: a process a request, 1 thread, {rounds} interleaved rounds, medians in ms\n");
    println!(
        "| network | MB | ideal | private warm | host hit | layer hit | attach us | hit / ideal | private warm / hit | private cold | daemon cold | daemon cold / private cold |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for network in networks {
        let path = executable(folder, network);
        let daemon = Daemon::start(folder, &["--budget", "4GiB"]);
        let private = ["--weights-from", "private"];
        let shared = ["--weights-from", "uprd"];
        let layer = |arguments: &[&str]| {
            let mut command = Command::new(&path);
            command.args(["run", "--json", "--values", "1", "--threads", "1"]).args(arguments);
            command.env("UPRD_SOCKET", &daemon.socket).env("UPR_SHARING_GRANULARITY", "layer");
            let start = now();
            assert!(command.output().expect("it was compiled").status.success());
            (now() - start) as f64 / 1e6
        };
        request(&path, &daemon.socket, &shared);
        layer(&shared);
        let (mut ideal, mut warm, mut hit, mut by_layer, mut attached) = (vec![], vec![], vec![], vec![], vec![]);
        for _ in 0..rounds {
            let [time, load, _] = request(&path, &daemon.socket, &private);
            warm.push(time);
            ideal.push(time - load);
            let [time, attach, _] = request(&path, &daemon.socket, &shared);
            hit.push(time);
            attached.push(attach * 1e3);
            by_layer.push(layer(&shared));
        }
        let (mut private_cold, mut daemon_cold) = (vec![], vec![]);
        for _ in 0..rounds.min(5) {
            forget(&path);
            private_cold.push(request(&path, &daemon.socket, &private)[0]);
            evict_all(&daemon);
            forget(&path);
            daemon_cold.push(request(&path, &daemon.socket, &shared)[0]);
        }
        let trailer = share::load::trailer(&File::open(&path).expect("it was compiled")).expect("it is an executable");
        let megabytes = (trailer.constants.end - trailer.constants.start) as f64 / 1e6;
        let [ideal, warm, hit, by_layer, attached, private_cold, daemon_cold] =
            [ideal, warm, hit, by_layer, attached, private_cold, daemon_cold]
                .map(|mut times| quantile(&mut times, 0.5));
        println!(
            "| {network} | {megabytes:.0} | {ideal:.1} | {warm:.1} | {hit:.1} | {by_layer:.1} | {attached:.0} | {:.3} | {:.2} | {private_cold:.1} | {daemon_cold:.1} | {:.2} |",
            hit / ideal,
            warm / hit,
            daemon_cold / private_cold
        );
        let _ = std::io::stdout().flush();
    }
}

fn memory(folder: &Path) {
    println!("\n## Memory of N processes of one model of 1 GB, all pages read\n");
    println!("| processes | sum of PSS MB | sum of RSS MB | private dirty MB |\n| --- | --- | --- | --- |");
    let path = folder.join("synthetic-228");
    write_image(&path, 1_000_000_000, 228, 228);
    let daemon = Daemon::start(folder, &["--budget", "4GiB"]);
    for count in [1, 5, 20] {
        let mut children: Vec<Child> = (0..count)
            .map(|_| {
                let mut command = Command::new(program("uprd"));
                command.arg("--socket").arg(&daemon.socket).args(["attach", "--hold", "--read"]).arg(&path);
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was built")
            })
            .collect();
        for child in &mut children {
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it prints");
        }
        let mut sums = [0u64; 3];
        for child in &children {
            let maps = std::fs::read_to_string(format!("/proc/{}/smaps", child.id())).expect("it runs");
            let mut is_ours = false;
            for line in maps.lines() {
                if line.contains('-') && line.contains(' ') && !line.contains(" kB") {
                    is_ours = line.contains("memfd:uprd");
                }
                for (ix, name) in ["Pss:", "Rss:", "Private_Dirty:"].into_iter().enumerate() {
                    if let Some(rest) = line.strip_prefix(name).filter(|_| is_ours) {
                        sums[ix] += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
                    }
                }
            }
        }
        let [pss, rss, dirty] = sums.map(|kib| kib as f64 * 1024.0 / 1e6);
        println!("| {count} | {pss:.1} | {rss:.1} | {dirty:.1} |");
        for mut child in children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Throughput over a share of the networks and concurrency, popularity by Pareto(1, 1), the budget half of the weights.
fn grid(folder: &Path, networks: &[&str], rounds: usize) {
    println!("\n## Throughput: budget half of the weights, popularity Pareto(1, 1), {} requests a cell\n", 4 * rounds);
    println!("| policy | networks | concurrent | private p99 ms | uprd p99 ms | p99 speed-up | throughput ratio |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let paths: Vec<PathBuf> = networks.iter().map(|network| executable(folder, network)).collect();
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    for policy in ["lru", "lcu", "size-aware"] {
        for portion in [0.3, 1.0] {
            let count = ((paths.len() as f64 * portion).ceil() as usize).max(1);
            let paths = &paths[..count];
            let largest = paths.iter().map(size).max().unwrap_or(0);
            let budget = (paths.iter().map(size).sum::<u64>() / 2).max(largest + (64 << 20));
            for concurrent in [1, 4] {
                let mut random = Random::for_name(1, "grid");
                let weights: Vec<f64> = paths.iter().map(|_| 1.0 / (1.0 - f64::from(random.unit()))).collect();
                let total: f64 = weights.iter().sum();
                let mut draw = || {
                    let mut at = f64::from(random.unit()) * total;
                    weights.iter().position(|weight| {
                        at -= weight;
                        at <= 0.0
                    })
                };
                let order: Vec<usize> = (0..4 * rounds).map(|_| draw().unwrap_or(0)).collect();
                let daemon = Daemon::start(folder, &["--budget", &format!("{budget}"), "--policy", policy]);
                let run = |from: &str| {
                    let next = std::sync::atomic::AtomicUsize::new(0);
                    let start = now();
                    let mut times: Vec<f64> = std::thread::scope(|scope| {
                        let worker = || {
                            let mut times = Vec::new();
                            loop {
                                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                                let Some(model) = order.get(at) else { return times };
                                let arguments: &[&str] =
                                    if from == "private" { &["--weights-from", from] } else { &[] };
                                times.push(request(&paths[*model], &daemon.socket, arguments)[0]);
                            }
                        };
                        let workers: Vec<_> = (0..concurrent).map(|_| scope.spawn(worker)).collect();
                        workers.into_iter().flat_map(|worker| worker.join().expect("it does not panic")).collect()
                    });
                    ((now() - start) as f64, quantile(&mut times, 0.99))
                };
                let (private, shared) = (run("private"), run("uprd"));
                println!(
                    "| {policy} | {count} | {concurrent} | {:.0} | {:.0} | {:.2} | {:.2} |",
                    private.1,
                    shared.1,
                    private.1 / shared.1,
                    private.0 / shared.0
                );
                let _ = std::io::stdout().flush();
            }
        }
    }
}
