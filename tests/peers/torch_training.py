"""Trains networks with PyTorch and with prestow from the same weights on the same batch, and compares the losses.

    python tests/peers/torch_training.py PRESTOW [NETWORK,...] [OPTIMIZER,...]

PRESTOW is the program `prestow`. Needs torch and onnx. Each network is exported to ONNX, compiled with `--train`, and
trained for some steps; a row has the largest relative difference of a loss from that of PyTorch in `f64`. Rounding errors
grow where a ReLU switches. The exit code is 1 if a difference exceeds 1e-3, or if the memory that a step wrote differs from
its plan.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, STEPS, TOLERANCE = 8, 12, 1e-3


class Words(nn.Module):
    """A recurrent classifier of tokens."""

    def __init__(self, cell, layers, bidirectional, bias):
        super().__init__()
        kinds = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
        relu = {"nonlinearity": "relu"} if cell == "rnn_relu" else {}
        self.embed = nn.Embedding(30, 20)
        self.cells = kinds[cell.removesuffix("_relu")](
            20, 37, num_layers=layers, bidirectional=bidirectional, batch_first=True, bias=bias, **relu
        )
        self.head = nn.Linear(37 * (2 if bidirectional else 1), 5)

    def forward(self, x):
        return self.head(self.cells(self.embed(x))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        self.place = nn.Parameter(torch.randn(1, 12, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.layers(self.embed(x) + self.place).mean(1))


class Residual(nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(ins, outs, 3, stride, 1, bias=False), nn.BatchNorm2d(outs)
        self.second, self.second_norm = nn.Conv2d(outs, outs, 3, 1, 1, bias=False), nn.BatchNorm2d(outs)
        projection = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs))
        self.shortcut = projection if stride != 1 or ins != outs else nn.Identity()

    def forward(self, x):
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.top, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True)
        self.down, self.up = nn.Conv2d(8, 16, 3, 2, 1), nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 5, 3, padding=1)

    def forward(self, x):
        top = F.relu(self.norm(self.top(x)))
        low = self.up(F.max_pool2d(F.relu(self.down(top)), 2))
        low = F.interpolate(low, scale_factor=2, mode="bilinear")
        return self.out(torch.cat([top, low], 1)).mean((2, 3))


class Sound(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 16, 7, 2, 3), nn.Conv1d(16, 16, 3, padding=2, dilation=2)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = torch.tanh(self.first(x.flatten(2)[:, :, :128]))
        return self.head(F.softplus(self.second(x)).amax(2))


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 33), nn.Tanh(), nn.LayerNorm(33), nn.Linear(33, 5))


def residual():
    stem = [nn.Conv2d(3, 9, 3, 1, 1), nn.BatchNorm2d(9), nn.ReLU()]
    blocks = [Residual(9, 9, 1), Residual(9, 18, 2), Residual(18, 36, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(36, 5))


def mobile():
    front = [nn.Conv2d(3, 12, 3, 2, 1), nn.SiLU(), nn.Conv2d(12, 24, 1), nn.Hardswish()]
    middle = [nn.Conv2d(24, 24, 5, 1, 2, groups=24), nn.SiLU(), Squeeze(24), nn.Conv2d(24, 16, 1)]
    end = [nn.GroupNorm(4, 16), nn.ELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 5)]
    return nn.Sequential(*front, *middle, *end)


def grouped():
    front = [nn.Conv2d(3, 24, 3, padding=1), nn.ReLU6(), nn.Conv2d(24, 24, 3, groups=3, padding=1)]
    middle = [nn.LeakyReLU(0.1), nn.MaxPool2d(3, 2, 1), nn.Conv2d(24, 30, 3, dilation=2, groups=6), nn.PReLU()]
    return nn.Sequential(*front, *middle, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(30, 5))


# A network's constructor, and whether it reads tokens instead of images.
NETWORKS = {
    "perceptron": (perceptron, False),
    "residual": (residual, False),
    "mobile": (mobile, False),
    "grouped": (grouped, False),
    "unet": (UNet, False),
    "sound": (Sound, False),
    "transformer": (Transformer, True),
}
for cell in ["rnn", "rnn_relu", "gru", "lstm"]:
    for layers, both, bias in [(1, False, True), (1, True, False), (2, False, False), (2, True, True)]:
        name = f"{cell}_{layers}{'_both_ways' if both else ''}{'' if bias else '_without_bias'}"
        NETWORKS[name] = (lambda cell=cell, layers=layers, both=both, bias=bias: Words(cell, layers, both, bias), True)

# The optimizer of prestow, its learning rate, and torch's.
OPTIMIZERS = {
    "sgd": (
        "sgd:momentum=0.9,nesterov,weight_decay=1e-4",
        0.05,
        lambda weights, lr: torch.optim.SGD(weights, lr, momentum=0.9, nesterov=True, weight_decay=1e-4),
    ),
    "adam": ("adam", 2e-3, lambda weights, lr: torch.optim.Adam(weights, lr)),
    "adamw": ("adamw:weight_decay=0.01", 2e-3, lambda weights, lr: torch.optim.AdamW(weights, lr, weight_decay=0.01)),
    "rmsprop": ("rmsprop", 1e-3, lambda weights, lr: torch.optim.RMSprop(weights, lr)),
    "adagrad": ("adagrad", 1e-2, lambda weights, lr: torch.optim.Adagrad(weights, lr)),
}


def batch(reads_tokens):
    random = torch.Generator().manual_seed(3)
    shape = (BATCH, 12) if reads_tokens else (BATCH, 3, 16, 16)
    x = torch.randint(0, 30, shape, generator=random) if reads_tokens else torch.randn(shape, generator=random)
    return x, torch.randint(0, 5, (BATCH,), generator=random)


def losses_of_torch(network, optimizer, x, y):
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(words, folder):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def losses_of_prestow(prestow, folder, spec, rate):
    compile_words = [prestow, "compile", "network.onnx", "--train", "--loss", "softmax_cross_entropy"]
    run([*compile_words, "--optimizer", spec, "-o", "./step"], folder)
    (folder / "log.jsonl").unlink(missing_ok=True)
    train = ["./step", "train", "--data", "npz:data.npz", "--steps", str(STEPS), "--lr", str(rate), "--log", "log.jsonl"]
    run(train, folder)
    run(["./step", "memory", "--actual"], folder)
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def difference(prestow, folder, constructor, reads_tokens, optimizer):
    spec, rate, constructor_of_optimizer = OPTIMIZERS[optimizer]
    torch.manual_seed(1)
    network = constructor().train()
    x, y = batch(reads_tokens)
    torch.onnx.export(
        network,
        (x,),
        folder / "network.onnx",
        input_names=["x"],
        output_names=["y"],
        dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        opset_version=17,
    )
    np.savez(folder / "data.npz", x=x.numpy(), y=y.numpy().astype(np.int32))
    # The export has run the network, which moves the running statistics.
    torch.manual_seed(1)
    network = constructor().train().double()
    x = x if reads_tokens else x.double()
    wanted = losses_of_torch(network, constructor_of_optimizer(network.parameters(), rate), x, y)
    got = losses_of_prestow(prestow, folder, spec, rate)
    if len(got) != STEPS:
        raise RuntimeError(f"{len(got)} losses instead of {STEPS}")
    return max(abs(own - other) / max(abs(other), 1e-3) for own, other in zip(got, wanted))


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    prestow = str(Path(sys.argv[1]).resolve())
    names = sys.argv[2].split(",") if 2 < len(sys.argv) else list(NETWORKS)
    optimizers = sys.argv[3].split(",") if 3 < len(sys.argv) else list(OPTIMIZERS)
    failed = 0
    print(f"| network | {' | '.join(optimizers)} |\n| --- |{' --- |' * len(optimizers)}")
    for name in names:
        cells = []
        for optimizer in optimizers:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = difference(prestow, Path(folder), *NETWORKS[name], optimizer)
                    failed += TOLERANCE < found
                    cells.append(f"{found:.1e}")
                except RuntimeError as error:
                    failed += 1
                    print(f"{name}, {optimizer}: {error}", file=sys.stderr)
                    cells.append("failed")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    sys.exit(min(failed, 1))


main()
