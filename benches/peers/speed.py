"""One other runtime on one ONNX file, under the control of `benches/benches/cpu.rs`.

usage: speed.py PEER REQUEST.json            loads, says `ready VERSION`, then obeys lines from standard input:
                                             `run N` runs N times and prints the milliseconds of each on one line;
                                             `save DIR` writes the outputs of one run as DIR/0.npy, 1.npy, ..., prints `saved`
       speed.py PEER REQUEST.json --once     loads, runs once and prints one line of JSON: what that took and needed

REQUEST.json: {"model": FILE.onnx, "plain": FILE.onnx, "threads": N, "dtype": "f32", "inputs": [[NAME, FILE.npy], ...],
               "outputs": [NAME, ...]}; "plain" is the model as prestow exports it, which translators read
A peer's package is imported here and nowhere else; what is not asked for need not be there.
"""

import contextlib
import importlib.metadata
import json
import os
import sys
import time

import numpy as np


class Onnxruntime:
    def __init__(self, request, inputs):
        import onnxruntime
        self.imported = time.perf_counter()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = request["threads"]
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(request["model"], options, providers=["CPUExecutionProvider"])
        self.inputs, self.outputs = inputs, request["outputs"]

    def run(self):
        return self.session.run(self.outputs, self.inputs)


class Openvino:
    def __init__(self, request, inputs):
        import openvino
        self.imported = time.perf_counter()
        core = openvino.Core()
        graph = core.read_model(request["model"])
        graph.reshape({name: list(array.shape) for name, array in inputs.items()})
        # By default it computes in bf16 where the processor can, whoever asks for f32.
        options = {"INFERENCE_PRECISION_HINT": request["dtype"], "INFERENCE_NUM_THREADS": request["threads"],
                   "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        compiled = core.compile_model(graph, "CPU", options)
        self.request = compiled.create_infer_request()
        # Set once, so that no run copies them.
        self.arrays = list(inputs.values())
        for name, array in inputs.items():
            self.request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        self.outputs = request["outputs"]

    def run(self):
        self.request.infer()
        return [self.request.get_tensor(name).data for name in self.outputs]


class Mnn:
    def __init__(self, request, inputs):
        from MNN import expr, nn
        self.imported = time.perf_counter()
        model = request["model"]
        converted = model + ".mnn"
        if not os.path.exists(converted) or os.path.getmtime(converted) < os.path.getmtime(model):
            # What the script `mnnconvert` calls; the script itself also installs a package and reports to its makers.
            import _tools
            _tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", model, "--MNNModel", converted + ".part",
                               "--bizCode", "none"])
            os.replace(converted + ".part", converted)
        options = {"backend": "CPU", "precision": "high", "numThread": request["threads"]}
        runtime = nn.create_runtime_manager((options,))
        self.module = nn.load_module_from_file(converted, list(inputs), request["outputs"], runtime_manager=runtime)
        kinds = {"float32": expr.float, "int32": expr.int, "int64": expr.int64}
        self.inputs = [expr.const(array, list(array.shape), expr.NCHW, kinds[str(array.dtype)])
                       for array in inputs.values()]
        self.convert = lambda value: expr.convert(value, expr.NCHW).read()

    def run(self):
        return [self.convert(value) for value in self.module.onForward(self.inputs)]


class Torch:
    """Compiled ahead of the runs by inductor, with the parameters as constants: its fastest way."""

    def __init__(self, request, inputs):
        import torch
        self.imported = time.perf_counter()
        import onnx_torch
        torch.set_num_threads(request["threads"])
        torch.set_grad_enabled(False)
        self.module = onnx_torch.module(request["plain"])
        self.inputs = [torch.from_numpy(array) for array in inputs.values()]
        self.prepare(torch)

    def prepare(self, torch):
        import torch._inductor.config
        torch._inductor.config.freezing = True
        self.module = torch.compile(self.module)
        self.module(*self.inputs)

    def channels_last(self, torch):
        self.module = self.module.to(memory_format=torch.channels_last)
        self.inputs = [tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
                       for tensor in self.inputs]

    def run(self):
        return [output.numpy() for output in self.module(*self.inputs)]


class TorchEager(Torch):
    """Operator by operator, images with their channels last."""

    def prepare(self, torch):
        self.channels_last(torch)


class TorchJit(Torch):
    """Traced, frozen, with oneDNN's fusions."""

    def prepare(self, torch):
        self.channels_last(torch)
        traced = torch.jit.trace(self.module, tuple(self.inputs))
        self.module = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
        # Its executor optimises again in the first two runs.
        for _ in range(2):
            self.module(*self.inputs)


class Mxnet:
    """A bound executor with MKL-DNN's fusions."""

    def __init__(self, request, inputs):
        # All are read when the library is loaded. Its usual engine computes in threads of its own, each of which leaves a
        # core to the others: of two threads one remains. In the naive engine all compute.
        os.environ.update(OMP_NUM_THREADS=str(request["threads"]), MXNET_ENGINE_TYPE="NaiveEngine",
                          MXNET_SUBGRAPH_BACKEND="MKLDNN")
        import mxnet
        self.imported = time.perf_counter()
        import onnx_mxnet
        kinds = {name: str(array.dtype) for name, array in inputs.items()}
        shapes = {name: array.shape for name, array in inputs.items()}
        symbol, parameters = onnx_mxnet.symbol(request["plain"], shapes)
        self.executor = symbol.simple_bind(mxnet.cpu(), grad_req="null", type_dict=kinds, **shapes)
        auxiliary = set(symbol.list_auxiliary_states())
        self.executor.copy_params_from({name: array for name, array in parameters.items() if name not in auxiliary},
                                       {name: array for name, array in parameters.items() if name in auxiliary})
        for name, array in inputs.items():
            self.executor.arg_dict[name][:] = array

    def run(self):
        return [output.asnumpy() for output in self.executor.forward(is_train=False)]


PEERS = {"onnxruntime": Onnxruntime, "openvino": Openvino, "mnn": Mnn, "torch": Torch, "torch-eager": TorchEager,
         "torch-jit": TorchJit, "mxnet": Mxnet}


def version(peer):
    """Of the package; none if it was built from source."""
    try:
        return importlib.metadata.version(peer.split("-")[0])
    except importlib.metadata.PackageNotFoundError:
        return ""


def timed(peer):
    start = time.perf_counter()
    outputs = peer.run()
    return 1e3 * (time.perf_counter() - start), outputs


def peak_rss_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def once(peer, say):
    first_ms, _ = timed(peer)
    load_ms = 1e3 * (time.perf_counter() - peer.imported) - first_ms
    say(json.dumps({"load_ms": load_ms, "first_ms": first_ms, "peak_rss_bytes": peak_rss_bytes()}))


def serve(peer, say, version):
    say(f"ready {version}".rstrip())
    for line in sys.stdin:
        command, _, word = line.rstrip("\n").partition(" ")
        if command == "run":
            say(" ".join(f"{timed(peer)[0]:.4f}" for _ in range(int(word))))
        elif command == "save":
            for number, output in enumerate(peer.run()):
                np.save(os.path.join(word, f"{number}.npy"), np.ascontiguousarray(output))
            say("saved")
        else:
            sys.exit(f"`{command}` is not a command")


def main(name, request, words):
    with open(request) as file:
        request = json.load(file)
    inputs = {name: np.load(file) for name, file in request["inputs"]}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What libraries print is not an answer.
    os.dup2(2, 1)

    def say(text):
        # Whoever closes the pipe has read enough.
        with contextlib.suppress(BrokenPipeError):
            print(text, file=answers, flush=True)

    peer = PEERS[name](request, inputs)
    if "--once" in words:
        once(peer, say)
    else:
        serve(peer, say, version(name))


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in PEERS:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
