#!/usr/bin/env python3
"""Runs files with ONNX Runtime for the tests.

Requires onnxruntime and numpy; `cargo xtask fetch --with-onnxruntime` creates an environment with both.
Usage: onnxruntime_run.py FOLDER NAME... Reads NAME.onnx and NAME_PORT.npy for each of its inputs, and writes
NAME_output0.npy, .. in the order of its outputs.
"""

import sys

import numpy as np
import onnxruntime


def main() -> None:
    folder, names = sys.argv[1], sys.argv[2:]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for name in names:
        session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
        inputs = {port.name: np.load(f"{folder}/{name}_{port.name}.npy") for port in session.get_inputs()}
        for ix, output in enumerate(session.run(None, inputs)):
            np.save(f"{folder}/{name}_output{ix}.npy", output)


main()
