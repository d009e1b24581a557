"""Training steps of other frameworks, under the control of `benches/benches/training`.

usage: training.py PEER NETWORK BATCH THREADS OPTIMIZER
       trains NETWORK on random samples, says `ready`, then obeys lines from standard input: `run N` takes N steps and
       prints the milliseconds of each on one line; `memory` prints the peak resident bytes of the process
       training.py export NETWORK BATCH FILE.onnx
       writes a network of PyTorch in training mode

OPTIMIZER is `sgd` (momentum 0.9) or `adam`. PEER is `torch-eager`, `torch` (compiled), `tensorflow` (graph mode) or
`mxnet` (symbols, bound).
"""

import importlib
import os
import sys
import time

MODULES = {"torch-eager": "training_torch", "torch": "training_torch", "tensorflow": "training_tensorflow",
           "mxnet": "training_mxnet"}


def peak_resident_bytes():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def main():
    mode, name, batch, *rest = sys.argv[1:]
    if mode == "export":
        return importlib.import_module("training_torch").export(name, int(batch), *rest)
    threads, optimizer = rest
    # Frameworks read it when they are imported.
    os.environ["OMP_NUM_THREADS"] = threads
    step = importlib.import_module(MODULES[mode]).step(mode, name, int(batch), int(threads), optimizer)
    for _ in range(2):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "memory":
            print(peak_resident_bytes(), flush=True)
            continue
        took = []
        for _ in range(int(words[1])):
            started = time.perf_counter()
            step()
            took.append((time.perf_counter() - started) * 1e3)
        print(" ".join(f"{ms:.4f}" for ms in took), flush=True)


main()
