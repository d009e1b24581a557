"""Other runtimes on a GPU, on one ONNX file, controlled by `prestow-gpu-check`.

usage: gpu.py --list [DEVICE]     prints one line of JSON: {NAME: {"version": ...} or {"missing": why}, ...}
       gpu.py NAME REQUEST.json   loads, prints one line of JSON: {"load_ms": ..., "how": ...} or {"refused": why}, then
                                  obeys lines from standard input:
                                  `run N`   runs N times, each waited for: the milliseconds of each, on one line
                                  `queue N` runs N times one behind the other, waited for once: the milliseconds of one
                                  `save DIR` writes the outputs of one run as DIR/0.npy, 1.npy, ..., prints `saved`

REQUEST.json: {"model": FILE.onnx, "device": "cuda:0", "dtype": "f32" | "tf32" | "f16" | "bf16",
               "inputs": [[NAME, FILE.npy], ...], "outputs": [NAME, ...]}
Inputs are on the device before anything is timed, and outputs stay there. A peer's package is imported here and nowhere
else; what is not asked for need not be there.
"""

import contextlib
import json
import os
import sys
import time


class Refused(Exception):
    """What a peer does not do, in words."""


class Torch:
    """Operator by operator; images have their channels first or last, whichever is faster here."""

    def __init__(self, request, inputs):
        import onnx_torch
        import torch
        self.torch, self.device = torch, request["device"]
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16}.get(request["dtype"], torch.float32)
        rounds = request["dtype"] == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounds
        # Its autotuner of convolutions is what its users switch on for fixed shapes.
        torch.backends.cudnn.benchmark = True
        torch.set_grad_enabled(False)
        self.module = onnx_torch.module(request["model"], dtype).to(self.device)
        on_device = (torch.from_numpy(array).to(self.device) for array in inputs.values())
        self.inputs = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in on_device]
        self.how = self.prepare()

    def prepare(self):
        return self.faster_layout()

    def faster_layout(self):
        if not any(tensor.ndim == 4 for tensor in self.inputs):
            return "eager"
        layouts = [("channels first", self.torch.contiguous_format), ("channels last", self.torch.channels_last)]
        taken = []
        for name, layout in layouts:
            self.lay(layout)
            self.queue(3)
            taken.append((self.queue(10), name, layout))
        _, name, layout = min(taken, key=lambda row: row[0])
        self.lay(layout)
        return f"eager, {name}"

    def lay(self, layout):
        self.module = self.module.to(memory_format=layout)
        self.inputs = [tensor.contiguous(memory_format=layout) if tensor.ndim == 4 else tensor for tensor in self.inputs]

    def wait(self):
        if self.device.startswith("cuda"):
            self.torch.cuda.synchronize(self.device)

    def run(self):
        outputs = self.module(*self.inputs)
        self.wait()
        return outputs

    def queue(self, count):
        self.wait()
        start = time.perf_counter()
        for _ in range(count):
            self.module(*self.inputs)
        self.wait()
        return 1e3 * (time.perf_counter() - start) / count

    def outputs(self):
        return [output.float().cpu().numpy() if output.is_floating_point() else output.cpu().numpy()
                for output in self.run()]


class TorchCompile(Torch):
    """Compiled, with parameters as constants and kernels chosen by measuring: its fastest way."""

    def prepare(self):
        import torch._inductor.config
        torch._inductor.config.freezing = True
        layout = self.faster_layout()
        self.module = self.torch.compile(self.module, mode="max-autotune")
        # Its records are made by the first runs.
        self.queue(3)
        return f"max-autotune, {layout.removeprefix('eager').lstrip(', ') or 'no images'}"


class Onnxruntime:
    """Its CUDA provider, with a record of the graph where it can make one."""

    def __init__(self, request, inputs):
        import onnxruntime
        dtype, device = request["dtype"], request["device"]
        if dtype == "bf16":
            raise Refused("its converter of files has no bf16")
        model = request["model"]
        if dtype == "f16":
            import onnx
            from onnxruntime.transformers.float16 import convert_float_to_float16
            model = convert_float_to_float16(onnx.load(model), keep_io_types=False).SerializeToString()
        kind, _, number = device.partition(":")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        cuda = {"device_id": number or "0", "use_tf32": "1" if dtype == "tf32" else "0",
                "cudnn_conv_algo_search": "EXHAUSTIVE", "enable_cuda_graph": "1"}
        providers = [("CUDAExecutionProvider", cuda)] if kind == "cuda" else ["CPUExecutionProvider"]
        try:
            self.load(onnxruntime, model, options, providers, inputs, kind, number, request["outputs"])
            self.how = "CUDA graph" if kind == "cuda" else "CPU"
        except Exception as error:
            if kind != "cuda":
                raise
            # A graph that is not on the device as a whole cannot be recorded.
            cuda["enable_cuda_graph"] = "0"
            self.load(onnxruntime, model, options, providers, inputs, kind, number, request["outputs"])
            self.how = f"without a CUDA graph: {str(error).splitlines()[0][:120]}"

    def load(self, onnxruntime, model, options, providers, inputs, kind, number, outputs):
        self.session = onnxruntime.InferenceSession(model, options, providers=providers)
        if providers[0] != "CPUExecutionProvider" and self.session.get_providers()[0] != "CUDAExecutionProvider":
            raise Refused("its CUDA provider does not load; its message is on standard error")
        place = (kind, int(number or 0))
        self.binding = self.session.io_binding()
        wanted = {item.name: item for item in self.session.get_inputs()}
        for name, array in inputs.items():
            if wanted[name].type == "tensor(float16)":
                array = array.astype(np.float16)
            self.binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, *place))
        # Outputs of known places, as records want them.
        numbers = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
                   "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
        shapes = {item.name: item for item in self.session.get_outputs()}
        self.results = []
        for name in outputs:
            item = shapes[name]
            value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(item.shape, numbers[item.type], *place)
            self.binding.bind_ortvalue_output(name, value)
            self.results.append(value)
        for _ in range(3):
            self.run()

    def run(self):
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def queue(self, count):
        start = time.perf_counter()
        for _ in range(count):
            self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()
        return 1e3 * (time.perf_counter() - start) / count

    def outputs(self):
        self.run()
        arrays = [value.numpy() for value in self.results]
        return [array.astype(np.float32) if array.dtype == np.float16 else array for array in arrays]


PEERS = {"torch-eager": Torch, "torch-compile": TorchCompile, "onnxruntime": Onnxruntime}


def known(name, device):
    """The version of a peer's package, if it can run on the device."""
    try:
        import numpy
        if name.startswith("torch"):
            import onnx
            import torch
            if device.startswith("cuda") and not torch.cuda.is_available():
                return {"missing": f"torch {torch.__version__} sees no GPU"}
            return {"version": torch.__version__, "onnx": onnx.__version__, "numpy": numpy.__version__}
        import onnxruntime
        if device.startswith("cuda") and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            return {"missing": f"onnxruntime {onnxruntime.__version__} is built without CUDA"}
        return {"version": onnxruntime.__version__}
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}"}


def serve(peer, say):
    for line in sys.stdin:
        command, _, word = line.rstrip("\n").partition(" ")
        if command == "run":
            times = []
            for _ in range(int(word)):
                start = time.perf_counter()
                peer.run()
                times.append(1e3 * (time.perf_counter() - start))
            say(" ".join(f"{ms:.5f}" for ms in times))
        elif command == "queue":
            say(f"{peer.queue(int(word)):.5f}")
        elif command == "save":
            for number, output in enumerate(peer.outputs()):
                np.save(os.path.join(word, f"{number}.npy"), np.ascontiguousarray(output))
            say("saved")
        else:
            sys.exit(f"`{command}` is not a command")


def main(words):
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # What libraries print is not an answer.
    os.dup2(2, 1)

    def say(text):
        # Whoever closes the pipe has read enough.
        with contextlib.suppress(BrokenPipeError):
            print(text, file=answers, flush=True)

    if words[0] == "--list":
        device = words[1] if 1 < len(words) else "cuda:0"
        say(json.dumps({name: known(name, device) for name in PEERS}))
        return
    global np
    import numpy as np
    name, request = words
    with open(request) as file:
        request = json.load(file)
    inputs = {name: np.load(file) for name, file in request["inputs"]}
    start = time.perf_counter()
    try:
        peer = PEERS[name](request, inputs)
        peer.run()
    except Exception as error:
        say(json.dumps({"refused": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}))
        raise
    say(json.dumps({"load_ms": 1e3 * (time.perf_counter() - start), "how": peer.how}))
    serve(peer, say)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in [*PEERS, "--list"] or (sys.argv[1] != "--list" and len(sys.argv) != 3):
        sys.exit(__doc__)
    main(sys.argv[1:])
