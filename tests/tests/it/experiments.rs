//! `prestow experiment run` as a process that is killed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bench_suite::experiment::{CellOutcome, Journal};
use bench_suite::lines;
use rustix::process::{Pid, Signal, kill_process};
use types::Random;

use crate::executables::{compile, folder, program};

const CELLS: usize = 60;

struct Experiment {
    file: PathBuf,
    output: PathBuf,
}

impl Experiment {
    /// 60 cells of one small executable, which differ in the number of batches.
    fn new(folder: &Path) -> Experiment {
        let exe = compile(folder, &["lenet", "--batch", "1"]);
        let counts: Vec<String> = (1..=CELLS).map(|count| count.to_string()).collect();
        let grid = format!(
            "[parameters]\n\"exp.model\" = {:?}\n\"exp.threads\" = 1\n[variables]\n\"exp.num_batches\" = [{}]\n",
            exe.display().to_string(),
            counts.join(", ")
        );
        let file = folder.join("grid.toml");
        std::fs::write(&file, grid).unwrap();
        Experiment { file, output: folder.join("runs") }
    }

    fn start(&self) -> Child {
        let mut command = Command::new(program("prestow"));
        command.args(["experiment", "run", "--resume"]).arg(&self.file).arg("-o").arg(&self.output);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// The results, which must be whole and of different cells.
    fn results(&self) -> Vec<CellOutcome> {
        let path = self.output.join("results.jsonl");
        if !path.exists() {
            return vec![];
        }
        let results = Journal::read(&path).unwrap();
        let ids: BTreeSet<&str> = results.iter().map(|own| &own.id[..]).collect();
        assert_eq!(ids.len(), results.len(), "no cell has two results");
        results
    }

    /// Waits until there is this number of results, and then for a part of a cell.
    fn wait_for(&self, count: usize, part: Duration) {
        for _ in 0..6000 {
            let path = self.output.join("results.jsonl");
            if count <= std::fs::read(&path).unwrap_or_default().iter().filter(|&&byte| byte == b'\n').count() {
                std::thread::sleep(part);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{} has fewer than {count} results", self.output.display());
    }
}

#[test]
fn experiment_of_60_cells_is_killed_twice_and_resumed() {
    let experiment = Experiment::new(&folder("experiment-killed"));
    let mut random = Random::new(60);
    let mut moment = || Duration::from_millis(random.below(40));
    let mut least = 0;
    for (count, signal) in [(7, Signal::KILL), (21, Signal::KILL), (33, Signal::USR1), (45, Signal::INT)] {
        let mut child = experiment.start();
        experiment.wait_for(count, moment());
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        let found = experiment.results().len();
        assert!(least.max(count) <= found && found < CELLS, "{found} results after {signal:?}");
        least = found;
    }
    assert!(experiment.start().wait().unwrap().success());
    let results = experiment.results();
    let mut counts: Vec<u64> = results.iter().map(|own| own.values["exp.num_batches"].as_u64().unwrap()).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=CELLS as u64).collect::<Vec<_>>(), "no cell is lost, none is repeated");
    for result in &results {
        assert!(result.succeeded, "{result:?}");
        let times = result.values["results.time_data"].as_array().unwrap();
        assert_eq!(Some(times.len() as u64), result.values["exp.num_batches"].as_u64());
        // A killed process left nothing in the log of the next one.
        let log = lines::read_file(&experiment.output.join(format!("logs/{}.log", result.id))).unwrap();
        assert_eq!((&log.benchmarks[..], log.malformed), (std::slice::from_ref(&result.values), 0));
    }
}
