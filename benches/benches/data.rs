//! Images a second of a RecordIO file to normalized batches, compared with other data pipelines.
//!
//! `cargo xtask bench data [--peers[=NAME,...]] [--rounds=N] [--threads=N] [--options=OPTION,...] FILE.rec`: center crop of
//! 224 x 224, batches of 64 in f32, planes of channels. Pipelines take turns, one at a time, each reads the file once in a turn,
//! and ratios are taken within a round, so that other load of the machine affects all alike. `--options` are options of a data
//! set, such as `resize=256`, for a row of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use data::{BatchInput, BatchOptions, Batcher, DataSpec, ImageTarget, OpenOptions, Position, Prefetcher};
use types::{DType, Shape};

const SIDE: usize = 224;
const BATCH: usize = 64;
const NORMALIZE: &str = "scale=1,mean=123.675/116.28/103.53,std=58.395/57.12/57.375";

/// One reading of the file.
struct Turn {
    images_per_second: f64,
    /// The mean absolute value of the last batch.
    mean: f64,
}

enum Pipeline {
    /// A batcher and its threads.
    Own(Arc<Batcher>, usize),
    Peer(Child, ChildStdin, BufReader<ChildStdout>),
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let Err(error) = run(&words) {
        eprintln!("error: {error}");
        std::process::exit(2);
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let (mut rounds, mut threads, mut file) = (7, 2, None);
    let (mut options, mut pythons) = (Vec::new(), Vec::new());
    for word in words {
        match word.split_once('=') {
            Some(("--rounds", value)) => rounds = value.parse().map_err(|_| format!("`{word}`: must be a number"))?,
            Some(("--threads", value)) => threads = value.parse().map_err(|_| format!("`{word}`: must be a number"))?,
            Some(("--options", value)) => options.push(value.to_string()),
            Some(("--python", peer)) => {
                let (name, python) = peer.split_once('=').ok_or("`--python` must be NAME=PYTHON")?;
                pythons.push((name.to_string(), python.to_string()));
            }
            _ if !word.starts_with('-') && file.is_none() => file = Some(word.clone()),
            _ => return Err(format!("`{word}` is not a word of this bench")),
        }
    }
    let file = file.ok_or("a RecordIO file of images is required; `benches/peers/data.py make` makes one")?;
    let mut pipelines = vec![("prestow".to_string(), own(&file, "", threads)?)];
    for options in options {
        pipelines.push((format!("prestow {options}"), own(&file, &format!(",{options}"), threads)?));
    }
    for (name, python) in pythons {
        let pipeline = peer(&name, &python, &file, threads)?;
        pipelines.push((name, pipeline));
    }
    // The first turn reads the file into the page cache and is not counted.
    let mut turns: Vec<Vec<Turn>> = pipelines.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for ((_, pipeline), turns) in pipelines.iter_mut().zip(&mut turns) {
            let turn = turn(pipeline)?;
            if 0 < round {
                turns.push(turn);
            }
        }
    }
    println!("| pipeline | images/s, median | best | prestow / it, median | least | mean of the last batch |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for ((name, _), own_turns) in pipelines.iter().zip(&turns) {
        let speeds = sorted(own_turns.iter().map(|turn| turn.images_per_second));
        let ratios = turns[0].iter().zip(own_turns).map(|(own, turn)| own.images_per_second / turn.images_per_second);
        let ratios = sorted(ratios);
        let middle = rounds / 2;
        println!(
            "| {name} | {:.0} | {:.0} | {:.2} | {:.2} | {:.6} |",
            speeds[middle],
            speeds[rounds - 1],
            ratios[middle],
            ratios[0],
            own_turns[0].mean
        );
    }
    Ok(())
}

fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}

fn own(file: &str, options: &str, threads: usize) -> Result<Pipeline, String> {
    let spec: DataSpec = format!("rec:{file},{NORMALIZE}{options}").parse().map_err(|error| format!("{error}"))?;
    let image = Some(ImageTarget { height: SIDE, width: SIDE, channels: 3 });
    let dataset = spec.open(&OpenOptions { image, ..OpenOptions::default() }).map_err(|error| error.to_string())?;
    let pixels =
        BatchInput { normalize: spec.normalize(), ..BatchInput::new(0, DType::F32, Shape::from([3, SIDE, SIDE])) };
    let options = BatchOptions { batch: BATCH, ..BatchOptions::default() };
    let batcher = Batcher::new(Arc::from(dataset), vec![pixels], options).map_err(|error| error.to_string())?;
    Ok(Pipeline::Own(Arc::new(batcher), threads))
}

fn peer(name: &str, python: &str, file: &str, threads: usize) -> Result<Pipeline, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/data.py");
    let mut command = Command::new(python);
    command.args([script, name, file, &BATCH.to_string(), &threads.to_string()]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start `{python}`: {error}"))?;
    let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    match stdout.read_line(&mut line) {
        Ok(_) if line.trim() == "ready" => Ok(Pipeline::Peer(child, stdin, stdout)),
        _ => Err(format!("the peer `{name}` did not start; its words are above")),
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn turn(pipeline: &mut Pipeline) -> Result<Turn, String> {
    match pipeline {
        Pipeline::Own(batcher, threads) => {
            let start = Instant::now();
            let mut prefetcher = Prefetcher::new(batcher, Position::default(), *threads, 2 * *threads)
                .map_err(|error| error.to_string())?;
            let batches = batcher.batches();
            for _ in 1..batches {
                prefetcher.next_batch().map_err(|error| error.to_string())?;
            }
            let last = prefetcher.next_batch().map_err(|error| error.to_string())?;
            let seconds = start.elapsed().as_secs_f64();
            let values = last.inputs[0].as_chunks::<4>().0;
            let sum: f64 = values.iter().map(|value| f64::from(f32::from_le_bytes(*value).abs())).sum();
            let images = batches as f64 * BATCH as f64;
            Ok(Turn { images_per_second: images / seconds, mean: sum / values.len() as f64 })
        }
        Pipeline::Peer(_, stdin, stdout) => {
            let mut line = String::new();
            writeln!(stdin).and_then(|()| stdin.flush()).map_err(|error| error.to_string())?;
            stdout.read_line(&mut line).map_err(|error| error.to_string())?;
            let value: serde_json::Value = serde_json::from_str(&line).map_err(|error| format!("`{line}`: {error}"))?;
            let number = |name: &str| value[name].as_f64().ok_or_else(|| format!("`{line}` has no `{name}`"));
            Ok(Turn { images_per_second: number("images")? / number("seconds")?, mean: number("mean")? })
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if let Pipeline::Peer(child, ..) = self {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
