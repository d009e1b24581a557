"""Whether a difference of gradients comes from ReLUs and maximum pools that switch.

Usage: torch_switches.py PRESTOW NETWORK...     (requires torch, timm, onnx, safetensors, numpy)

A rounding error of the forward pass switches a ReLU whose operand is almost 0, and with it the gradients of all layers in
front; so it does with a maximum pool whose two largest cells are almost equal. Each network of timm is compared twice with
PyTorch in `f64`: as it is, and with each ReLU replaced by a product with the constant mask, 0 or 1, that the forward pass in
`f64` has, and each pool by its cells there. The function is the same, but nothing can switch. Prints,
for three seeds, the norm of all differences of gradients divided by the norm of all gradients: of PRESTOW and of PyTorch in
`f32`.
"""

import copy
import logging
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
import timm
import torch
from onnx import numpy_helper
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional as F

BATCH, SIZE = 4, 64
# The order in which the first epoch with the default seed reads four records: masks belong to images.
ORDER = [0, 1, 3, 2]
# One step of `sgd` with this rate moves the weights far enough that their difference has the gradient's digits.
RATE = 4096.0


class Masked(nn.Module):
    """A ReLU that records where it is open, and then a product with what it recorded."""

    def __init__(self):
        super().__init__()
        self.count, self.calls, self.records = 0, 0, True

    def forward(self, x):
        if self.records:
            self.register_buffer(f"mask{self.count}", (x > 0).to(x.dtype))
            self.count += 1
            return x.clamp(min=0)
        mask = getattr(self, f"mask{self.calls % self.count}")
        self.calls += 1
        return x * mask


class Chosen(nn.Module):
    """A maximum pool that records its cells, and then reads them."""

    def __init__(self, pool):
        super().__init__()
        self.pool, self.records = pool, True

    def forward(self, x):
        if self.records:
            pool = self.pool
            y, cells = F.max_pool2d(x, pool.kernel_size, pool.stride, pool.padding, ceil_mode=pool.ceil_mode, return_indices=True)
            self.register_buffer("cells", cells)
            return y
        return x.flatten(2).gather(2, self.cells.flatten(2)).reshape(self.cells.shape)


def network(name, seed):
    torch.manual_seed(seed)
    model = timm.create_model(name, pretrained=False, num_classes=10)
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.weight is not None:
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.1)
    # Neither zeros nor equal constants: all paths carry gradients.
    for parameter in model.parameters():
        if parameter.numel() == 1 or float(parameter.data.std()) == 0:
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return model.train()


def with_masks(model, x):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(parent, name, Masked())
            elif isinstance(child, nn.MaxPool2d):
                setattr(parent, name, Chosen(child))
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        wide(x.double())
    for own, other in zip(model.modules(), wide.modules()):
        if isinstance(own, Chosen):
            own.records = False
            own.register_buffer("cells", other.cells)
        if isinstance(own, Masked):
            own.records, own.count = False, other.count
            for ix in range(other.count):
                own.register_buffer(f"mask{ix}", getattr(other, f"mask{ix}").float())
    return model


def of_torch(model, x, y, dtype):
    model = copy.deepcopy(model).to(dtype)
    ((model(x.to(dtype)) - y.to(dtype)) ** 2).mean().backward()
    return {name: parameter.grad.double().numpy() for name, parameter in model.named_parameters()}


def of_prestow(prestow, model, x, y, folder):
    file = folder / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(copy.deepcopy(model), (x,), file, opset_version=11, dynamo=False, input_names=["x"],
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    before = {item.name: numpy_helper.to_array(item) for item in onnx.load(file).graph.initializer}
    np.savez(folder / "data.npz", x=x.numpy()[ORDER], y=y.numpy()[ORDER])

    def run(*command):
        subprocess.run([str(part) for part in command], check=True, capture_output=True)

    step = folder / "step"
    run(prestow, "compile", file, "--train", "--loss", "mse", "--optimizer", "sgd", "-o", step)
    run(step, "train", "--data", f"npz:{folder / 'data.npz'}", "--steps", 1, "--lr", RATE, "--checkpoint", folder / "states")
    run(step, "weights", "--checkpoint", folder / "states", "-o", folder / "weights.safetensors")
    after = load_file(folder / "weights.safetensors")
    names = [name for name, _ in model.named_parameters()]
    return {name: (before[name].astype(np.float64) - after[name].astype(np.float64)) / RATE for name in names}


def difference(got, want):
    square = sum(((got[name] - want[name]) ** 2).sum() for name in want)
    return (square / sum((want[name] ** 2).sum() for name in want)) ** 0.5


def main(prestow, names):
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    print("| network | seed | prestow | PyTorch f32 | prestow, masks | PyTorch f32, masks |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names:
        for seed in range(3):
            model = network(name, seed)
            x, y = torch.randn(BATCH, 3, SIZE, SIZE), torch.randn(BATCH, 10)
            cells = []
            for form in (model, with_masks(copy.deepcopy(model), x)):
                want = of_torch(form, x, y, torch.float64)
                with tempfile.TemporaryDirectory() as folder:
                    cells.append(difference(of_prestow(prestow, form, x, y, pathlib.Path(folder)), want))
                cells.append(difference(of_torch(form, x, y, torch.float32), want))
            print(f"| {name} | {seed} | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:])
