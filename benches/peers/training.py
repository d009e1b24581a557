"""Training steps of PyTorch, under the control of `benches/benches/training.rs`.

usage: training.py torch-eager|torch NETWORK BATCH THREADS OPTIMIZER
       trains NETWORK, compiled unless it is eager, on random samples, says `ready`, then obeys lines from standard input: `run N` takes N steps and
       prints the milliseconds of each on one line; `memory` prints the peak resident bytes of the process

OPTIMIZER is `sgd` (momentum 0.9) or `adam`, fused. Networks have the layers and sizes of prestow's zoo, and like those no
dropout.
"""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


def mnist_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10), nn.Tanh())


def conv_norm(ins, outs, kernel, stride=1, groups=1, function=None):
    layers = [nn.Conv2d(ins, outs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outs)]
    return nn.Sequential(*layers, *([function] if function else []))


class Basic(nn.Module):
    """A unit of ResNet-18."""

    def __init__(self, ins, outs, stride):
        super().__init__()
        self.first = conv_norm(ins, outs, 3, stride, function=nn.ReLU(inplace=True))
        self.second = conv_norm(outs, outs, 3)
        self.skip = conv_norm(ins, outs, 1, stride) if (ins, stride) != (outs, 1) else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.skip(x), inplace=True)


def resnet18():
    layers, ins = [conv_norm(3, 64, 7, 2, function=nn.ReLU(inplace=True)), nn.MaxPool2d(3, 2, 1)], 64
    for outs, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [Basic(ins, outs, stride), Basic(outs, outs, 1)]
        ins = outs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Inverted(nn.Module):
    """A unit of MobileNetV2."""

    def __init__(self, ins, outs, stride, expand):
        super().__init__()
        wide = ins * expand
        layers = [conv_norm(ins, wide, 1, function=nn.ReLU6(inplace=True))] if expand != 1 else []
        layers.append(conv_norm(wide, wide, 3, stride, groups=wide, function=nn.ReLU6(inplace=True)))
        self.layers = nn.Sequential(*layers, conv_norm(wide, outs, 1))
        self.adds = stride == 1 and ins == outs

    def forward(self, x):
        return x + self.layers(x) if self.adds else self.layers(x)


def mobilenet_v2():
    layers, ins = [conv_norm(3, 32, 3, 2, function=nn.ReLU6(inplace=True))], 32
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expand, outs, count, stride in rows:
        for unit in range(count):
            layers.append(Inverted(ins, outs, stride if unit == 0 else 1, expand))
            ins = outs
    layers.append(conv_norm(ins, 1280, 1, function=nn.ReLU6(inplace=True)))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def vgg11():
    layers, ins = [], 3
    for outs in [64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"]:
        if outs == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(ins, outs, 3, padding=1), nn.ReLU(inplace=True)]
            ins = outs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 4096),
                         nn.ReLU(inplace=True), nn.Linear(4096, 1000))


# Network, shape of a sample, classes.
NETWORKS = {
    "mnist_cnn": (mnist_cnn, (1, 28, 28), 10),
    "resnet18": (resnet18, (3, 224, 224), 1000),
    "mobilenet_v2": (mobilenet_v2, (3, 224, 224), 1000),
    "vgg11": (vgg11, (3, 224, 224), 1000),
}


def peak_resident_bytes():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def main():
    mode, name, batch, threads, optimizer = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    build, shape, classes = NETWORKS[name]
    net = build().train()
    x, y = torch.randn(int(batch), *shape), torch.randint(classes, (int(batch),))
    if optimizer == "sgd":
        update = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, fused=True)
    else:
        update = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(net) if mode == "torch" else net

    def step():
        update.zero_grad(set_to_none=True)
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        update.step()
        return loss.item()

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
