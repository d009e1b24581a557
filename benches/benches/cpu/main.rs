//! Executables compared with other runtimes: `cargo xtask bench cpu [--peers[=NAME,...]] [--cold] [NETWORK|FILE]...`.
//!
//! Each peer is a separate process (`benches/peers`) with the same network: the same file, or a network of the zoo
//! exported with the same weights. Peers and executable run interleaved, one at a time, in an order shuffled for each
//! round: other load of the machine affects all alike, so ratios are taken within a round.

mod difference;
mod model;
mod peer;
mod process;

use types::{Random, Tensor};

use difference::Difference;
use model::Model;
use peer::{Peer, Program};
use process::Once;

/// The default networks. Files are measured if `cargo xtask fetch` has downloaded them.
const MODELS: [&str; 10] = [
    "resnet50",
    "vgg19",
    "densenet121",
    "googlenet",
    "inception_v3",
    "squeezenet1_1",
    "mobilenet_v2",
    "efficientnet_lite0",
    "data/models/ppocrv4/ch_PP-OCRv4_rec_infer.onnx:x=1x3x48x320",
    "data/models/ppocrv4/ch_PP-OCRv4_det_infer.onnx:x=1x3x320x320",
];

/// The default length of a visit.
const VISIT_MS: f64 = 400.0;

fn main() {
    let outcome = Options::parse(std::env::args().skip(1)).and_then(|options| match options.cold {
        true => cold(&options),
        false => warm(&options),
    });
    if let Err(error) = outcome {
        eprintln!("error: {error}");
        std::process::exit(2);
    }
}

struct Options {
    peers: Vec<Program>,
    rounds: usize,
    /// The runs of a visit.
    runs: Option<usize>,
    threads: usize,
    /// For networks of the zoo.
    batch: usize,
    /// The dtype that executables store between kernels and OpenVINO computes in: `f32`, `bf16` or `f16`.
    dtype: String,
    cold: bool,
    models: Vec<String>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            peers: Vec::new(),
            rounds: 7,
            runs: None,
            threads: 2,
            batch: 1,
            dtype: "f32".into(),
            cold: false,
            models: Vec::new(),
        };
        for word in words {
            let (flag, value) = word.split_once('=').unwrap_or((&word, ""));
            let number = || match value.parse() {
                Ok(number) if 0 < number => Ok(number),
                _ => Err(format!("{flag} takes a number from 1, not `{value}`")),
            };
            match flag {
                // `xtask/src/peers.rs` derives these from `--peers`.
                "--python" | "--native" => options.peers.push(Program::parse(flag, value)?),
                "--rounds" => options.rounds = number()?,
                "--runs" => options.runs = Some(number()?),
                "--threads" => options.threads = number()?,
                "--batch" => options.batch = number()?,
                "--dtype" => options.dtype = value.into(),
                "--cold" => options.cold = true,
                // An argument of Cargo.
                "--bench" => {}
                flag if flag.starts_with("--") => return Err(format!("`{flag}` is not a flag of this bench")),
                _ => options.models.push(word),
            }
        }
        if options.models.is_empty() {
            let is_here = |file: &str| !model::is_file(file) || (options.batch == 1 && model::at_root(file).exists());
            let is_here = |model: &&str| model.split(':').next().is_some_and(is_here);
            options.models = MODELS.into_iter().filter(is_here).map(str::to_string).collect();
        }
        Ok(options)
    }
}

/// The table of latencies.
fn warm(options: &Options) -> Result<(), String> {
    let reference = options.peers.first().map_or("nothing", |peer| &peer.name);
    println!(
        "| network | prestow ms | {}ratio to the best | least | most | of the least latencies | differs from {reference} |",
        heads(options)
    );
    println!("| --- | --- | {}--- | --- | --- | --- | --- |", "--- | ".repeat(options.peers.len()));
    for model in &options.models {
        println!("{}", warm_row(options, &Model::prepare(options, model)?)?);
    }
    Ok(())
}

fn heads(options: &Options) -> String {
    options.peers.iter().map(|peer| format!("{} ms | ", peer.name)).collect()
}

fn warm_row(options: &Options, model: &Model) -> Result<String, String> {
    let outputs = model.outputs()?;
    let mut peers: Vec<Option<Peer>> = options.peers.iter().map(|peer| Peer::start(peer, model)).collect();
    let runs = match options.runs {
        Some(runs) => runs,
        None => (VISIT_MS / model.visit(options.threads, 3)?.median).ceil().clamp(3.0, 200.0) as usize,
    };
    // By contestant, executable first: the median of each round, and the least latency of all rounds.
    let mut medians = vec![Vec::new(); 1 + peers.len()];
    let mut least = vec![f64::INFINITY; 1 + peers.len()];
    let mut random = Random::new(1);
    for _ in 0..options.rounds {
        for contestant in shuffled(&mut random, medians.len()) {
            let took = match contestant {
                0 => Some(model.visit(options.threads, runs)?),
                _ => match peers[contestant - 1].as_mut().map(|peer| peer.visit(runs)).transpose() {
                    Ok(took) => took,
                    Err(error) => {
                        eprintln!("{}: `{}`: {error}", model.name, options.peers[contestant - 1].name);
                        peers[contestant - 1] = None;
                        medians[contestant].clear();
                        least[contestant] = f64::INFINITY;
                        None
                    }
                },
            };
            if let Some(took) = took {
                medians[contestant].push(took.median);
                least[contestant] = least[contestant].min(took.least);
            }
        }
    }
    let middles: Vec<Option<f64>> = medians.iter().map(|medians| median(medians)).collect();
    let best = (1..middles.len())
        .filter(|&ix| middles[ix].is_some())
        .min_by(|&a, &b| middles[a].partial_cmp(&middles[b]).expect("times are numbers"));
    let mut ratios: Vec<f64> = match best {
        Some(best) => medians[0].iter().zip(&medians[best]).map(|(ours, theirs)| ours / theirs).collect(),
        None => Vec::new(),
    };
    ratios.sort_by(f64::total_cmp);
    let least_of_peers = least[1..].iter().copied().fold(f64::INFINITY, f64::min);
    let of_least = (least_of_peers < f64::INFINITY).then_some(least[0] / least_of_peers);
    let mut expected: Option<Vec<Tensor>> = None;
    for (peer, Program { name, .. }) in peers.iter_mut().zip(&options.peers) {
        let Some(peer) = peer else { continue };
        match (peer.outputs(model), &expected) {
            (Err(error), _) => eprintln!("{}: `{name}`: {error}", model.name),
            (Ok(theirs), None) => expected = Some(theirs),
            (Ok(theirs), Some(expected)) => {
                let difference = Difference::of(&theirs, expected);
                if !difference.agrees {
                    eprintln!("{}: `{name}` differs by {}", model.name, difference.text());
                }
            }
        }
    }
    let cells: String = middles.iter().map(|ms| format!("{} | ", milliseconds(*ms))).collect();
    let ratio = |ratio: Option<&f64>| ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}"));
    Ok(format!(
        "| {} | {cells}{} | {} | {} | {} | {} |",
        model.name,
        ratio(ratios.get(ratios.len() / 2)),
        ratio(ratios.first()),
        ratio(ratios.last()),
        ratio(of_least.as_ref()),
        expected.map_or("-".to_string(), |expected| Difference::of(&outputs, &expected).text())
    ))
}

/// The table of cold starts: from the start of a process to the first line that it prints about a result.
fn cold(options: &Options) -> Result<(), String> {
    println!(
        "| network | runtime | to the first result, ms | of it loading | of it the first run | peak resident, MiB |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for model in &options.models {
        let model = Model::prepare(options, model)?;
        let mut seen: Vec<Vec<Once>> = (0..=options.peers.len()).map(|_| Vec::new()).collect();
        let mut random = Random::new(1);
        // The first round brings files into the page cache and is not counted.
        for round in 0..=options.rounds {
            for contestant in shuffled(&mut random, seen.len()) {
                let once = match contestant {
                    0 => model.once(options.threads)?,
                    _ => match Peer::once(&options.peers[contestant - 1], &model) {
                        Ok(once) => once,
                        Err(error) if round == 0 => {
                            eprintln!("{}: {error}", model.name);
                            continue;
                        }
                        Err(_) => continue,
                    },
                };
                if 0 < round {
                    seen[contestant].push(once);
                }
            }
        }
        let names = std::iter::once("prestow").chain(options.peers.iter().map(|peer| peer.name.as_str()));
        for (name, seen) in names.zip(&seen) {
            let middle = |item: fn(&Once) -> Option<f64>| median(&seen.iter().filter_map(item).collect::<Vec<_>>());
            println!(
                "| {} | {name} | {} | {} | {} | {} |",
                model.name,
                milliseconds(middle(|once| Some(once.all_ms))),
                milliseconds(middle(|once| once.load_ms)),
                milliseconds(middle(|once| once.first_ms)),
                middle(|once| Some(once.peak_rss_bytes / f64::from(1 << 20)))
                    .map_or("-".into(), |mib| format!("{mib:.1}")),
            );
        }
    }
    Ok(())
}

fn median(items: &[f64]) -> Option<f64> {
    let mut sorted = items.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn milliseconds(ms: Option<f64>) -> String {
    ms.map_or("-".into(), |ms| if ms < 10.0 { format!("{ms:.2}") } else { format!("{ms:.1}") })
}

/// The numbers below `count` in a random order.
fn shuffled(random: &mut Random, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for ix in (1..count).rev() {
        order.swap(ix, random.below(ix as u64 + 1) as usize);
    }
    order
}
