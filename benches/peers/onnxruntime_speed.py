"""Times executables beside onnxruntime on the same models, in turns, and prints the ratios as a table.

usage: onnxruntime_speed.py ROUNDS THREADS MODEL.onnx=EXE...     (needs onnxruntime 1.31.1 and numpy)

In each round every executable runs (`EXE bench --json`), then onnxruntime runs the same file, both on random inputs.
Both are warm. A round's ratio is their least latencies divided; the table has the median of the ratios, so that what else the
machine does hits both sides alike. The least of several runs is taken since noise only ever adds.
"""

import json
import statistics
import subprocess
import sys
import time

import numpy as np
import onnxruntime

ITERATIONS = 5


def ours(exe, threads):
    command = [exe, "bench", "--warmup", "2", "--iters", str(ITERATIONS), "--threads", str(threads), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["latency_ms"]["min"]


class Peer:
    def __init__(self, model, exe, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        described = json.loads(subprocess.run([exe, "describe", "--json"], check=True, capture_output=True).stdout)
        shapes = {port["name"]: port["shape"] for port in described["inputs"]}
        rng = np.random.default_rng(1)
        self.inputs = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}

    def least(self):
        times = []
        for _ in range(ITERATIONS + 2):
            start = time.perf_counter()
            self.session.run(None, self.inputs)
            times.append(1e3 * (time.perf_counter() - start))
        return min(times[2:])


def main(rounds, threads, pairs):
    models = [pair.rsplit("=", 1) for pair in pairs]
    ratios = {model: [] for model, _ in models}
    last = {}
    for _ in range(rounds):
        for model, exe in models:
            peer = Peer(model, exe, threads)
            a, b = ours(exe, threads), peer.least()
            ratios[model].append(a / b)
            last[model] = (a, b)
            del peer
    print(f"| model | prestow / onnxruntime, median of {rounds} | least | most | last pair, ms |")
    print("| --- | --- | --- | --- | --- |")
    for model, seen in ratios.items():
        a, b = last[model]
        name = model.rsplit("/", 1)[-1]
        print(f"| {name} | {statistics.median(seen):.2f} | {min(seen):.2f} | {max(seen):.2f} | {a:.1f} / {b:.1f} |")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
