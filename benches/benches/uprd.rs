//! Weights of the daemon compared with private ones; a process a request, rounds interleaved. Tables in Markdown.
//!
//! `cargo xtask bench uprd [attach|sizes|networks|large|memory|grid|policies]... [--rounds=N] [--requests=N] [--plots=DIR]
//! [NETWORK]...`

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

/// The usual networks: 37 of the zoo, from 5 to 575 MB of weights.
const NETWORKS: [&str; 37] = [
    "squeezenet1_1",
    "squeezenet1_0",
    "googlenet",
    "dlbs/googlenet",
    "densenet121",
    "gluon/densenet169",
    "gluon/densenet201",
    "gluon/densenet161",
    "resnet18",
    "gluon/resnet18_v2",
    "resnet34",
    "gluon/resnet34_v2",
    "inception_v3",
    "resnet50",
    "gluon/resnet50_v1",
    "gluon/resnet50_v2",
    "dlbs/inception4",
    "resnet101",
    "gluon/resnet101_v1",
    "gluon/resnet101_v2",
    "dlbs/inception_resnet_v2",
    "resnet152",
    "gluon/resnet152_v1",
    "gluon/resnet152_v2",
    "dlbs/resnet200",
    "dlbs/resnet269",
    "alexnet",
    "gluon/alexnet",
    "dlbs/alexnet",
    "dlbs/alexnet_owt",
    "vgg11",
    "vgg13",
    "vgg16",
    "gluon/vgg16",
    "gluon/vgg16_bn",
    "vgg19",
    "vit_b_16",
];

/// Networks whose first dense layer grows with the picture: name and picture sizes.
const LARGE: [(&str, &[usize]); 2] = [("dlbs/alexnet", &[227, 454, 681, 908]), ("dlbs/vgg16", &[224, 448, 672])];

/// The switches of a run.
struct Options {
    rounds: usize,
    /// Requests in a cell of the grid.
    requests: usize,
    folder: PathBuf,
    plots: Option<PathBuf>,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
    let number = |name: &str, usual: usize| value(name).and_then(|text| text.parse().ok()).unwrap_or(usual);
    let sections = ["attach", "sizes", "networks", "large", "memory", "grid", "policies"];
    let chosen =
        |name: &str| words.iter().all(|word| !sections.contains(&&**word)) || words.iter().any(|word| word == name);
    let networks: Vec<&str> =
        words.iter().map(|word| &**word).filter(|word| !sections.contains(word) && !word.starts_with("--")).collect();
    let networks = if networks.is_empty() { NETWORKS.to_vec() } else { networks };
    let options = Options {
        rounds: number("--rounds=", 10),
        requests: number("--requests=", 40),
        folder: root().join("target/bench-uprd"),
        plots: value("--plots=").map(PathBuf::from),
    };
    std::fs::create_dir_all(&options.folder).expect("the target folder is writable");
    if chosen("attach") {
        attach(&options.folder, options.rounds);
    }
    if chosen("sizes") {
        sizes(&options.folder, options.rounds);
    }
    if chosen("memory") {
        memory(&options.folder);
    }
    if chosen("networks") {
        let paths = networks.iter().map(|network| executable(&options.folder, network)).collect();
        compare(&options, "small", paths);
    }
    if chosen("large") {
        let all = LARGE.iter().flat_map(|(network, sizes)| sizes.iter().map(move |size| (*network, *size)));
        let paths = all.map(|(network, size)| executable_of_size(&options.folder, network, size)).collect();
        compare(&options, "large", paths);
    }
    if chosen("grid") {
        grid(&options, &networks, &["lru"], 10);
    }
    if chosen("policies") {
        let policies = ["lru", "fifo", "lcu", "lfu", "size-aware", "random", "flush", "eager", "never"];
        grid(&options, &networks, &policies, 1);
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
            recipe: None,
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
        AttachedWeights::Device { .. } => unreachable!("host memory was requested"),
    }
}

/// Microseconds to lease and map on connections that stay, at `rate` leases a second of all of them together.
fn paced_times(
    clients: &mut [Client],
    path: &Path,
    granularity: Granularity,
    rate: usize,
    per_client: usize,
) -> Vec<f64> {
    const THREADS: usize = 8;
    let chunk = clients.len().div_ceil(THREADS);
    let work = |(ix, clients): (usize, &mut [Client])| {
        let mut random = Random::new(ix as u64);
        let mut times = Vec::new();
        for _ in 0..per_client {
            for client in &mut *clients {
                // Gaps of a Poisson process.
                let gap = -(1.0 - f64::from(random.unit())).ln() * THREADS as f64 / rate as f64;
                std::thread::sleep(Duration::from_secs_f64(gap));
                let start = now();
                let attached = open(client, path, granularity);
                let lease = attached.lease;
                let mapped = map(attached);
                times.push((now() - start) as f64 / 1e3);
                drop(mapped);
                client.done(&Ask::Close { lease }, &[], Duration::from_secs(10)).expect("it is open");
            }
        }
        times
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = clients.chunks_mut(chunk).enumerate().map(|own| scope.spawn(move || work(own))).collect();
        all.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    })
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
        "First each attach has a connection of its own. Then 1000 clients have a connection and a lease each: one more"
    );
    println!("attaches at a time; last, all together open 1000 times a second.\n");
    println!("| tensors | granularity | clients | manifests | opens a second | p50 us | p99 us | p99.9 us |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    share::system::raise_descriptor_limit();
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
    let row = |case: &(usize, Granularity, PathBuf), conditions: &str, mut times: Vec<f64>| {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|fraction| quantile(&mut times, fraction));
        println!("| {} | {} | {conditions} | {p50:.1} | {p99:.1} | {p999:.1} |", case.0, case.1.name());
    };
    for case in &cases {
        row(case, "0 | 3 | -", attach_times(&daemon, &case.2, case.1, count));
    }
    let mut client = daemon.client();
    let small = folder.join("small");
    for seed in 0..10_000 {
        let _ = std::fs::remove_file(&small);
        write_image(&small, 64, 1, 1000 + seed);
        let attached = open(&mut client, &small, Granularity::Model);
        client.close(attached).expect("it can be closed");
    }
    drop(client);
    let mut clients: Vec<Client> = (0..1000).map(|_| daemon.client()).collect();
    for (ix, client) in clients.iter_mut().enumerate() {
        // The lease stays with the connection, without its descriptors.
        drop(open(client, &cases[ix % cases.len()].2, cases[ix % cases.len()].1));
    }
    for case in &cases {
        row(case, "1000 | 10003 | -", attach_times(&daemon, &case.2, case.1, count));
    }
    for case in &cases {
        row(case, "1000 | 10003 | 1000", paced_times(&mut clients, &case.2, case.1, 1000, rounds.div_ceil(2)));
    }
}

fn sizes(folder: &Path, rounds: usize) {
    println!("\n## Weights by size: private open (map and checksum), daemon\n");
    println!("| MB | private ms | attach ms | attach and read a byte a page ms | private / (attach and read) |");
    println!("| --- | --- | --- | --- | --- |");
    let daemon = Daemon::start(folder, &["--budget", "8GiB"]);
    for size in [5, 50, 500, 1500, 3000, 6400] {
        let path = folder.join(format!("size-{size}"));
        write_image(&path, size * 1_000_000, 100, size as u64);
        drop(map(open(&mut daemon.client(), &path, Granularity::Model)));
        let (mut private, mut attach, mut read) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds.max(3) {
            let start = now();
            // SAFETY: the file is in this program's own folder, and it is written before it is mapped.
            #[expect(unsafe_code, reason = "as an executable maps its own file")]
            let image = unsafe { runtime::ImageFile::map(&path) };
            drop(image.expect("it is an executable"));
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
    compiled(folder.join(network.replace('/', "-")), &[network])
}

/// Compiles a network once for square pictures of `size` pixels.
fn executable_of_size(folder: &Path, network: &str, size: usize) -> PathBuf {
    let shape = format!("input=1x3x{size}x{size}");
    compiled(folder.join(format!("{}-{size}", network.replace('/', "-"))), &[network, "--shape", &shape])
}

fn compiled(path: PathBuf, words: &[&str]) -> PathBuf {
    if !path.exists() {
        let mut command = Command::new(program("prestow"));
        command.arg("compile").args(words).arg("-o").arg(&path).stdout(Stdio::null());
        assert!(command.status().expect("it was built").success(), "{words:?} compiles");
    }
    path
}

/// Bytes of the weights of an executable.
fn weight_bytes(path: &Path) -> u64 {
    let trailer = share::load::trailer(&File::open(path).expect("it was compiled")).expect("it is an executable");
    trailer.constants.end - trailer.constants.start
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// One process.
#[derive(Clone, Copy)]
struct Sample {
    /// Milliseconds from spawn to exit.
    whole: f64,
    /// Milliseconds of its load or attach.
    attach: f64,
    /// Milliseconds of processors that it used.
    cpu: f64,
}

/// Milliseconds of processors that the children of this process used, without those that run.
fn cpu_of_children() -> f64 {
    // SAFETY: `rusage` is plain data, which the call fills.
    #[expect(unsafe_code, reason = "the standard library does not report the time of children")]
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

fn request(path: &Path, socket: &Path, arguments: &[&str], granularity: Granularity) -> Sample {
    let mut command = Command::new(path);
    command.args(["run", "--json", "--values", "1", "--threads", "1"]).args(arguments);
    command.env("UPRD_SOCKET", socket).env("UPR_SHARING_GRANULARITY", granularity.name());
    let (start, cpu) = (now(), cpu_of_children());
    let done = command.stdin(Stdio::null()).output().expect("it was compiled");
    let (whole, cpu) = ((now() - start) as f64 / 1e6, cpu_of_children() - cpu);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let json: Value = serde_json::from_slice(&done.stdout).expect("it prints JSON");
    let weights = &json["weights"];
    let attach = weights["attach_us"].as_f64().or(weights["load_us"].as_f64()).unwrap_or(f64::NAN) / 1e3;
    Sample { whole, attach, cpu }
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

fn wait_for_loads(daemon: &Daemon) {
    let is_loading = || {
        let (text, _) = daemon.client().text(&Ask::Status).expect("it answers");
        let status: Value = serde_json::from_str(&text).expect("it is JSON");
        status["models"]["RW"].as_u64().unwrap_or(0) != 0
    };
    while is_loading() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

const PRIVATE: [&str; 2] = ["--weights-from", "private"];
const SHARED: [&str; 2] = ["--weights-from", "uprd"];

/// The samples of one network, interleaved.
#[derive(Default)]
struct Samples {
    warm: Vec<Sample>,
    hit: Vec<Sample>,
    layer: Vec<Sample>,
    private_cold: Vec<Sample>,
    daemon_cold: Vec<Sample>,
    /// A first process that demands the daemon's weights.
    daemon_wait: Vec<Sample>,
}

fn samples(options: &Options, path: &Path) -> Samples {
    let daemon = Daemon::start(&options.folder, &["--budget", "16GiB"]);
    let take = |words: &[&str], granularity| request(path, &daemon.socket, words, granularity);
    take(&SHARED, Granularity::Model);
    take(&SHARED, Granularity::Layer);
    let mut all = Samples::default();
    for _ in 0..options.rounds {
        all.warm.push(take(&PRIVATE, Granularity::Model));
        all.hit.push(take(&SHARED, Granularity::Model));
        all.layer.push(take(&SHARED, Granularity::Layer));
    }
    for _ in 0..options.rounds.min(5) {
        evict_all(&daemon);
        forget(path);
        all.private_cold.push(take(&PRIVATE, Granularity::Model));
        forget(path);
        // As a user runs it: the process uses its own weights while the daemon fills.
        all.daemon_cold.push(take(&[], Granularity::Model));
        wait_for_loads(&daemon);
        evict_all(&daemon);
        forget(path);
        all.daemon_wait.push(take(&SHARED, Granularity::Model));
    }
    all
}

/// The median of the processor times.
fn cpu(samples: &[Sample]) -> f64 {
    quantile(&mut samples.iter().map(|sample| sample.cpu).collect::<Vec<_>>(), 0.5)
}

/// The quantiles of the whole times and of the attach times.
fn at(samples: &[Sample], fraction: f64) -> (f64, f64) {
    let of = |time: fn(&Sample) -> f64| quantile(&mut samples.iter().map(time).collect::<Vec<_>>(), fraction);
    (of(|sample| sample.whole), of(|sample| sample.attach))
}

fn compare(options: &Options, title: &str, mut paths: Vec<PathBuf>) {
    paths.sort_by_key(|path| weight_bytes(path));
    println!(
        "\n## The {title} networks by size: a process a request, 1 thread, {} interleaved rounds ({} cold), ms\n",
        options.rounds,
        options.rounds.min(5)
    );
    println!(
        "| network | MB | private cold p50 | private warm p50 | p99 | load p50 | p99 | daemon cold p50 | host hit p50 | p99 | attach us p50 | p99 | layer hit p50 | attach us p50 | warm / hit | ideal speed-up | hit / ideal | daemon cold / private cold | waiting daemon cold / private cold | CPU of private warm | CPU of hit |"
    );
    println!("|{}", " --- |".repeat(21));
    let (mut rows, mut cold_rows) = (Vec::new(), Vec::new());
    for path in &paths {
        let all = samples(options, path);
        // Ideal: the run without its attach.
        let ideal: Vec<f64> = all.hit.iter().map(|sample| sample.whole - sample.attach).collect();
        let ideal = quantile(&mut ideal.clone(), 0.5);
        let (warm, hit, layer) = (at(&all.warm, 0.5), at(&all.hit, 0.5), at(&all.layer, 0.5));
        let (warm_99, hit_99) = (at(&all.warm, 0.99), at(&all.hit, 0.99));
        let (private_cold, daemon_cold) = (at(&all.private_cold, 0.5).0, at(&all.daemon_cold, 0.5).0);
        let megabytes = weight_bytes(path) as f64 / 1e6;
        let name = name_of(path);
        println!(
            "| {name} | {megabytes:.0} | {private_cold:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {daemon_cold:.1} | {:.1} | {:.1} | {:.0} | {:.0} | {:.1} | {:.0} | {:.2} | {:.2} | {:.3} | {:.2} | {:.2} | {:.1} | {:.1} |",
            warm.0,
            warm_99.0,
            warm.1,
            warm_99.1,
            hit.0,
            hit_99.0,
            hit.1 * 1e3,
            hit_99.1 * 1e3,
            layer.0,
            layer.1 * 1e3,
            warm.0 / hit.0,
            warm.0 / ideal,
            hit.0 / ideal,
            daemon_cold / private_cold,
            at(&all.daemon_wait, 0.5).0 / private_cold,
            cpu(&all.warm),
            cpu(&all.hit)
        );
        let _ = std::io::stdout().flush();
        rows.push((format!("{name} ({megabytes:.0} MB)"), warm.0 / hit.0, warm.0 / ideal));
        cold_rows.push((format!("{name} ({megabytes:.0} MB)"), private_cold / daemon_cold, private_cold / hit.0));
    }
    let mean = |pick: fn(&(String, f64, f64)) -> f64, rows: &[(String, f64, f64)]| {
        (rows.iter().map(|row| pick(row).ln()).sum::<f64>() / rows.len() as f64).exp()
    };
    println!(
        "\nGeometric means: private warm / hit {:.2}, of the ideal {:.2}; private cold / daemon cold {:.2}, private cold / hit {:.2}.",
        mean(|row| row.1, &rows),
        mean(|row| row.2, &rows),
        mean(|row| row.1, &cold_rows),
        mean(|row| row.2, &cold_rows)
    );
    plot(options, &format!("uprd-{title}-hit"), "private warm / host hit (ideal in gray)", &rows);
    plot(options, &format!("uprd-{title}-cold"), "private cold / daemon cold (private cold / hit in gray)", &cold_rows);
}

/// Writes a chart of bars: the second value in gray behind the first.
fn plot(options: &Options, name: &str, title: &str, rows: &[(String, f64, f64)]) {
    use std::fmt::Write;
    let Some(folder) = &options.plots else { return };
    let most = rows.iter().map(|row| row.1.max(row.2)).fold(1.0, f64::max);
    let (height, width) = (16 * rows.len() + 40, 760.0);
    let x = |value: f64| value / most * 440.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"18\" font-size=\"13\">{title}</text>\n"
    );
    for (ix, (name, value, behind)) in rows.iter().enumerate() {
        let y = 30 + 16 * ix;
        let _ = writeln!(
            text,
            "<text x=\"10\" y=\"{}\">{name}</text><rect x=\"240\" y=\"{y}\" width=\"{:.1}\" height=\"12\" fill=\"#cccccc\"/><rect x=\"240\" y=\"{}\" width=\"{:.1}\" height=\"8\" fill=\"#2b6cb0\"/><text x=\"690\" y=\"{}\">{value:.2}</text>",
            y + 10,
            x(*behind),
            y + 2,
            x(*value),
            y + 10
        );
    }
    let one = 240.0 + x(1.0);
    let _ = writeln!(
        text,
        "<line x1=\"{one:.1}\" y1=\"26\" x2=\"{one:.1}\" y2=\"{}\" stroke=\"#c53030\"/>\n</svg>",
        height - 8
    );
    std::fs::write(folder.join(format!("{name}.svg")), text).expect("the folder of plots is writable");
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

/// A cell of the grid.
struct Cell {
    portion: usize,
    concurrent: usize,
    p99_speedup: f64,
    throughput: f64,
}

/// Throughput over a share of the networks and concurrency; popularity by Pareto(1, 1); the budget is half of the weights.
/// The metric of a cell is the geometric mean over networks of private p99 / daemon's p99.
fn grid(options: &Options, networks: &[&str], policies: &[&str], steps: usize) {
    let requests = options.requests;
    println!("\n## Grid: budget half of the weights, popularity Pareto(1, 1), {requests} requests a cell\n");
    println!(
        "| policy | % of networks | concurrent | p99 speed-up | throughput ratio | loads | evictions | refusals |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut paths: Vec<PathBuf> = networks.iter().map(|network| executable(&options.folder, network)).collect();
    // Every share of the networks has all sizes.
    let mut random = Random::for_name(2, "order");
    for ix in (1..paths.len()).rev() {
        paths.swap(ix, random.below(ix as u64 + 1) as usize);
    }
    let budget = (paths.iter().map(|path| weight_bytes(path)).sum::<u64>() / 2).to_string();
    let cells: Vec<(usize, usize)> = match steps {
        1 => vec![(50, 2), (100, 2)],
        steps => (1..=steps).flat_map(|portion| (1..=steps).map(move |own| (portion * 100 / steps, own))).collect(),
    };
    let mut done = Vec::new();
    for (portion, concurrent) in cells {
        let paths = &paths[..(paths.len() * portion).div_ceil(100).max(1)];
        let order = popular(paths.len(), requests);
        let run = |daemon: &Daemon, words: &[&str]| workload(daemon, paths, &order, concurrent, words);
        let private = run(&Daemon::start(&options.folder, &["--budget", "1KiB"]), &PRIVATE);
        for policy in policies {
            let daemon = Daemon::start(&options.folder, &["--budget", &budget, "--policy", policy]);
            let shared = run(&daemon, &[]);
            let status: Value =
                serde_json::from_str(&daemon.client().text(&Ask::Status).expect("it answers").0).expect("JSON");
            let speedups: Vec<f64> = private
                .1
                .iter()
                .zip(&shared.1)
                .filter(|(own, _)| !own.is_empty())
                .map(|(own, other)| quantile(&mut own.clone(), 0.99) / quantile(&mut other.clone(), 0.99))
                .collect();
            let mean = (speedups.iter().map(|ratio| ratio.ln()).sum::<f64>() / speedups.len() as f64).exp();
            let throughput = private.0 / shared.0;
            println!(
                "| {policy} | {portion} | {concurrent} | {mean:.2} | {throughput:.2} | {} | {} | {} |",
                status["loads"], status["evictions"], status["refusals"]
            );
            let _ = std::io::stdout().flush();
            done.push(Cell { portion, concurrent, p99_speedup: mean, throughput });
        }
    }
    if steps != 1 {
        matrix("p99 speed-up", &done, |cell| cell.p99_speedup);
        matrix("throughput ratio", &done, |cell| cell.throughput);
        heat(options, &done);
    }
}

/// Positions of `count` requests among `n` models: weights by Pareto(1, 1), one draw each.
fn popular(n: usize, count: usize) -> Vec<usize> {
    let mut random = Random::for_name(1, "grid");
    let weights: Vec<f64> = (0..n).map(|_| 1.0 / (1.0 - f64::from(random.unit())).max(1e-6)).collect();
    let total: f64 = weights.iter().sum();
    let mut draw = || {
        let mut at = f64::from(random.unit()) * total;
        let found = weights.iter().position(|weight| {
            at -= weight;
            at <= 0.0
        });
        found.unwrap_or(0)
    };
    (0..count).map(|_| draw()).collect()
}

/// Runs requests, `concurrent` at a time. Returns the whole time and the times of each model.
fn workload(
    daemon: &Daemon,
    paths: &[PathBuf],
    order: &[usize],
    concurrent: usize,
    words: &[&str],
) -> (f64, Vec<Vec<f64>>) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let start = now();
    let times: Vec<(usize, f64)> = std::thread::scope(|scope| {
        let worker = || {
            let mut times = Vec::new();
            loop {
                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(model) = order.get(at) else { return times };
                times.push((*model, request(&paths[*model], &daemon.socket, words, Granularity::Model).whole));
            }
        };
        let workers: Vec<_> = (0..concurrent).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it does not panic")).collect()
    });
    let whole = (now() - start) as f64;
    let mut by_model = vec![Vec::new(); paths.len()];
    times.into_iter().for_each(|(model, time)| by_model[model].push(time));
    (whole, by_model)
}

fn matrix(title: &str, cells: &[Cell], value: fn(&Cell) -> f64) {
    let steps = cells.iter().map(|cell| cell.concurrent).max().unwrap_or(0);
    println!("\n{title} by share of the networks (rows, %) and concurrency (columns):\n");
    let head: String = (1..=steps).map(|own| format!(" {own} |")).collect();
    println!("| |{head}\n| --- |{}", " --- |".repeat(steps));
    for row in cells.chunks(steps) {
        let values: String = row.iter().map(|cell| format!(" {:.2} |", value(cell))).collect();
        println!("| {} |{values}", row[0].portion);
    }
}

/// Writes the speed-ups of p99 as a heat map.
fn heat(options: &Options, cells: &[Cell]) {
    use std::fmt::Write;
    let Some(folder) = &options.plots else { return };
    let mut text = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"520\" height=\"450\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"16\" font-size=\"13\">p99 speed-up: share of the networks in % (down), concurrency (right)</text>\n",
    );
    for cell in cells {
        let (x, y) = (20 + 44 * cell.concurrent, 20 + 36 * cell.portion / 10);
        // White at 1, blue above, red below.
        let strength = (cell.p99_speedup.log2().abs().min(2.0) * 90.0) as u8;
        let (red, green, blue) = match 1.0 <= cell.p99_speedup {
            true => (255 - strength, 255 - strength / 2, 255),
            false => (255, 255 - strength, 255 - strength),
        };
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"44\" height=\"36\" fill=\"rgb({red},{green},{blue})\"/><text x=\"{}\" y=\"{}\">{:.2}</text>",
            x + 10,
            y + 22,
            cell.p99_speedup
        );
        if cell.concurrent == 1 {
            let _ = writeln!(text, "<text x=\"20\" y=\"{}\">{}</text>", y + 22, cell.portion);
        }
        if cell.portion == 100 {
            let _ = writeln!(text, "<text x=\"{}\" y=\"{}\">{}</text>", x + 18, y + 52, cell.concurrent);
        }
    }
    text.push_str("</svg>\n");
    std::fs::write(folder.join("uprd-grid.svg"), text).expect("the folder of plots is writable");
}
