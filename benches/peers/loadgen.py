"""MLPerf's LoadGen and the scenarios of `prestow benchmark`, in turns on one executable.

usage: loadgen.py PRESTOW EXECUTABLE [--rounds N] [--queries N] [--seconds S] [--rate QPS] [--bound MS] [--batch8 EXECUTABLE]
                  [--threads N]

EXECUTABLE has batch 1. LoadGen drives it through `prestow benchmark --answer-queries`: a line for each query, which comes back
when the query is complete. --batch8 names an executable of the same model with batch 8 for the multi-stream and offline
scenarios, which are left out without it. --threads is for the executable: with as many as there are processors, those of
LoadGen, which do not sleep while they wait, take one from it. The rate of the server scenario is by default half of that of runs without pause.

Prints a row for each scenario: the result of LoadGen, ours, the median over the rounds of ours / LoadGen's, its extremes. LoadGen's
latencies contain the way through Python and two pipes, and cores that slept in between; the row `run p90` has the times of the
runs alone, as the executable measures them under LoadGen.
The server scenario has the same arrivals in both, to the nanosecond. The scheduling seed is 7.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading

import mlperf_loadgen as lg

SEED = 7


def benchmark(prestow, path, options):
    words = [prestow, "benchmark", path, "--num_batches", "1", "--num_warmup_batches", "5"]
    return words + (["--threads", str(options.threads)] if options.threads else [])


class Executable:
    """A session that runs a query for each line."""

    def __init__(self, prestow, path, options):
        words = [*benchmark(prestow, path, options), "--answer-queries"]
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, bufsize=1)
        self.groups, self.lock, self.number, self.runs_ns = {}, threading.Lock(), 0, []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.child.stdout:
            # The result lines of the runs before the queries.
            if line.startswith("__"):
                continue
            number, run_ns = line.split("\t")
            with self.lock:
                samples = self.groups.pop(int(number))
            self.runs_ns.append(int(run_ns))
            lg.QuerySamplesComplete([lg.QuerySampleResponse(sample, 0, 0) for sample in samples])

    def issue(self, samples, batch):
        for first in range(0, len(samples), batch):
            with self.lock:
                self.number += 1
                number = self.number
                self.groups[number] = [sample.id for sample in samples[first:first + batch]]
            self.child.stdin.write(f"{number}\n")
        self.child.stdin.flush()

    def end(self):
        self.child.stdin.close()
        self.reader.join()
        if self.child.wait() != 0:
            sys.exit(f"the executable failed: {self.child.stderr.read()}")


def loadgen(prestow, path, scenario, batch, options):
    """The summary of a run of LoadGen as numbers by name."""
    executable = Executable(prestow, path, options)
    sut = lg.ConstructSUT(lambda samples: executable.issue(samples, batch), lambda: None)
    library = lg.ConstructQSL(64, 64, lambda samples: None, lambda samples: None)
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = lg.TestMode.PerformanceOnly
    settings.schedule_rng_seed = SEED
    settings.min_query_count = options.queries
    settings.min_duration_ms = int(1e3 * options.seconds)
    settings.multi_stream_samples_per_query = batch
    settings.server_target_qps = options.rate
    settings.server_target_latency_ns = int(1e6 * options.bound)
    settings.offline_expected_qps = options.expected
    with tempfile.TemporaryDirectory() as folder:
        output, logs = lg.LogOutputSettings(), lg.LogSettings()
        output.outdir, output.copy_summary_to_stdout = folder, False
        logs.log_output = output
        lg.StartTestWithLogSettings(sut, library, settings, logs)
        executable.end()
        with open(os.path.join(folder, "mlperf_log_summary.txt")) as file:
            text = file.read()
    lg.DestroyQSL(library)
    lg.DestroySUT(sut)
    found = re.findall(r"^\s*([\w.()/ ]+?)\s*(?::|=)\s*([\d.]+)\s*$", text, re.M)
    summary = {name: float(value) for name, value in found}
    runs = sorted(executable.runs_ns)
    return {**summary, RUN_P90: runs[max(0, -(-9 * len(runs) // 10) - 1)]}


def ours(prestow, path, scenario, options):
    """The result lines of our scenario as texts by name."""
    words = [*benchmark(prestow, path, options), "--scenario", scenario, "--min-queries", str(options.queries),
             "--min-duration", str(options.seconds), "--seed", str(SEED)]
    if scenario == "server":
        words += ["--rate", str(options.rate), "--latency-bound", str(options.bound)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return dict(re.findall(r"^__results\.(\w+)__=(.*)$", done.stdout, re.M))


def latency(result):
    return float(result["scenario_latency"])


def rate(result):
    return float(result["scenario_throughput"])


RUN_P90 = "90th percentile of the runs alone (ns)"

# Scenario of each program; the name of the result in LoadGen's summary and its unit in ours; our result.
ROWS = [
    ("SingleStream", "single-stream", "p90 ms", "90.00 percentile latency (ns)", 1e-6, latency),
    ("SingleStream", "single-stream", "run p90 ms", RUN_P90, 1e-6, latency),
    ("SingleStream", "single-stream", "queries/s", "QPS w/o loadgen overhead", 1, rate),
    ("Server", "server", "p99 ms", "99.00 percentile latency (ns)", 1e-6, latency),
    ("Server", "server", "queries/s", "Completed samples per second", 1, rate),
    ("MultiStream", "multi-stream", "p99 ms", "99.00 percentile latency (ns)", 1e-6, latency),
    ("Offline", "offline", "samples/s", "Samples per second", 1, rate),
]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("prestow")
    parser.add_argument("executable")
    parser.add_argument("--batch8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--bound", type=float, default=1000)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    options.expected = 1
    short = argparse.Namespace(queries=100, seconds=0.5, threads=options.threads)
    first = ours(options.prestow, options.executable, "single-stream", short)
    options.rate = options.rate or rate(first) / 2
    # LoadGen's offline scenario has one query with the expected samples of 1.1 times the duration.
    options.expected = max(rate(first), options.queries / (1.1 * options.seconds))
    print(f"server at {options.rate:.1f} queries/s; {options.rounds} rounds in turns")
    found = {}
    for number in range(options.rounds):
        for scenario in ["SingleStream", "Server", "MultiStream", "Offline"]:
            name = next(row[1] for row in ROWS if row[0] == scenario)
            wide = scenario in ["MultiStream", "Offline"]
            if wide and not options.batch8:
                continue
            path, batch = (options.batch8, 8) if wide else (options.executable, 1)
            turns = [lambda: loadgen(options.prestow, path, scenario, batch, options),
                     lambda: ours(options.prestow, path, name, options)]
            first, second = (0, 1) if number % 2 == 0 else (1, 0)
            results = {first: turns[first](), second: turns[second]()}
            found.setdefault(scenario, []).append((results[0], results[1]))
    print(f"{'scenario':<14} {'result':<10} {'LoadGen':>10} {'prestow':>10}  ratio, least to most")
    for scenario, name, result, key, scale, own in ROWS:
        pairs = [(scale * theirs[key], own(mine)) for theirs, mine in found.get(scenario, [])]
        if pairs:
            ratios = sorted(mine / theirs for theirs, mine in pairs)
            medians = [statistics.median(values) for values in zip(*pairs)]
            print(f"{name:<14} {result:<10} {medians[0]:>10.3f} {medians[1]:>10.3f}  {statistics.median(ratios):.3f}, "
                  f"{ratios[0]:.3f} to {ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
