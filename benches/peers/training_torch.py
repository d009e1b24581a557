"""Networks of PyTorch and their training steps, for `training.py`.

Networks without a folder have the layers and sizes of prestow's zoo, and like those no dropout. Those of `torch/` are
exported, so that both sides train the same operators; `timm/NAME` is a network of timm, where that is installed.
"""

import warnings

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


class Bottleneck(nn.Module):
    """A unit of ResNet-50, with the stride in its 3 x 3 convolution."""

    def __init__(self, ins, width, stride):
        super().__init__()
        first = conv_norm(ins, width, 1, function=nn.ReLU(inplace=True))
        middle = conv_norm(width, width, 3, stride, function=nn.ReLU(inplace=True))
        self.layers = nn.Sequential(first, middle, conv_norm(width, 4 * width, 1))
        self.skip = conv_norm(ins, 4 * width, 1, stride) if (ins, stride) != (4 * width, 1) else nn.Identity()

    def forward(self, x):
        return F.relu(self.layers(x) + self.skip(x), inplace=True)


def resnet50():
    layers, ins = [conv_norm(3, 64, 7, 2, function=nn.ReLU(inplace=True)), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for unit in range(count):
            layers.append(Bottleneck(ins, width, stride if unit == 0 else 1))
            ins = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


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


class Bert(nn.Module):
    """A classifier of sequences, of the size of BERT-base."""

    def __init__(self, tokens, length, layers, width, heads):
        super().__init__()
        self.embed, self.norm = nn.Embedding(tokens, width), nn.LayerNorm(width)
        self.places = nn.Parameter(0.02 * torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.layers(self.norm(self.embed(x) + self.places))[:, 0])


class Translator(nn.Module):
    """LSTM layers over a source, both ways, and over a target, with attention: the class of the last word. A translator's
    layers, with the vocabulary and widths of Sockeye's first recipes."""

    def __init__(self, words=10000, width=512):
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.mix, self.head = nn.Linear(2 * width, width), nn.Linear(width, words)

    def forward(self, x):
        read, written = self.encoder(self.source(x))[0], self.decoder(self.target(x))[0]
        weights = torch.softmax(written @ read.transpose(1, 2), 2)
        mixed = torch.tanh(self.mix(torch.cat([written, weights @ read], 2)))
        return self.head(mixed[:, -1])


class Words(nn.Module):
    """A recurrent classifier of tokens."""

    def __init__(self, cell, width):
        super().__init__()
        self.embed, self.cells = nn.Embedding(1000, 64), cell(64, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.cells(self.embed(x))[0][:, -1])


class UNet(nn.Module):
    """Two levels; the classes are those of the picture's mean."""

    def __init__(self, width):
        super().__init__()
        double = lambda ins, outs: nn.Sequential(
            nn.Conv2d(ins, outs, 3, padding=1), nn.ReLU(), nn.Conv2d(outs, outs, 3, padding=1), nn.ReLU())
        self.top, self.low, self.bottom = double(3, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)])
        self.back = nn.ModuleList([double(4 * width, 2 * width), double(2 * width, width)])
        self.out = nn.Conv2d(width, 10, 1)

    def forward(self, x):
        top = self.top(x)
        low = self.low(F.max_pool2d(top, 2))
        y = self.up[0](self.bottom(F.max_pool2d(low, 2)))
        y = self.up[1](self.back[0](torch.cat([low, y], 1)))
        return self.out(self.back[1](torch.cat([top, y], 1))).mean((2, 3))


def small(channels, kernel, pool, function=nn.ReLU):
    """Convolutions of some channels, each with a pool of a kind, over pictures of 32 x 32."""
    pools = {"max": lambda: nn.MaxPool2d(2), "max3": lambda: nn.MaxPool2d(3, 2, 1), "mean": lambda: nn.AvgPool2d(2)}
    layers, ins = [], 3
    for outs in channels:
        layers += [nn.Conv2d(ins, outs, kernel, padding=kernel // 2), function(), pools[pool]()]
        ins = outs
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))


def sequence():
    """One-dimensional convolutions over 1,024 steps."""
    front = [nn.Conv1d(3, 20, 9, padding=4), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(20, 36, 5, padding=2), nn.ReLU()]
    return nn.Sequential(*front, nn.MaxPool1d(4), nn.Conv1d(36, 50, 3, dilation=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
                         nn.Flatten(), nn.Linear(50, 10))


def volume():
    """Three-dimensional convolutions."""
    front = [nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*front, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 10))


def grouped():
    layers = [conv_norm(3, 24, 3, 2, function=nn.ReLU())]
    for stride in [1, 2, 1]:
        layers.append(conv_norm(24, 24, 3, stride, groups=3, function=nn.LeakyReLU(0.1)))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


# Network, shape of a sample (of tokens: its length), classes.
NETWORKS = {
    "mnist_cnn": (mnist_cnn, (1, 28, 28), 10),
    "resnet18": (resnet18, (3, 224, 224), 1000),
    "resnet50": (resnet50, (3, 224, 224), 1000),
    "mobilenet_v2": (mobilenet_v2, (3, 224, 224), 1000),
    "vgg11": (vgg11, (3, 224, 224), 1000),
    "torch/bert": (lambda: Bert(30522, 128, 12, 768, 12), (128,), 2),
    "torch/minilm": (lambda: Bert(30522, 128, 6, 384, 12), (128,), 2),
    "torch/translator": (Translator, (60,), 10000),
    "torch/lstm": (lambda: Words(nn.LSTM, 100), (50,), 10),
    "torch/gru": (lambda: Words(nn.GRU, 200), (50,), 10),
    "torch/small_max": (lambda: small([20, 50], 5, "max", nn.Tanh), (3, 32, 32), 10),
    "torch/small_max3": (lambda: small([10, 24, 40], 3, "max3"), (3, 32, 32), 10),
    "torch/small_mean": (lambda: small([6, 16, 120], 5, "mean", nn.Sigmoid), (3, 32, 32), 10),
    "torch/small_wide": (lambda: small([96, 192], 3, "max"), (3, 32, 32), 10),
    "torch/unet": (lambda: UNet(12), (3, 64, 64), 10),
    "torch/sequence": (sequence, (3, 1024), 10),
    "torch/volume": (volume, (1, 16, 32, 32), 10),
    "torch/grouped": (grouped, (3, 64, 64), 10),
    "torch/perceptron": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10)),
                         (1, 28, 28), 10),
}


def network(name):
    if name.startswith("timm/"):
        import timm

        return timm.create_model(name.removeprefix("timm/"), num_classes=1000), (3, 224, 224), 1000
    build, shape, classes = NETWORKS[name]
    return build(), shape, classes


def samples(shape, classes, batch):
    x = torch.randint(1000, (batch, *shape)) if len(shape) == 1 else torch.randn(batch, *shape)
    return x, torch.randint(classes, (batch,))


def export(name, batch, file):
    warnings.filterwarnings("ignore")
    torch.manual_seed(1)
    net, shape, classes = network(name)
    x, _ = samples(shape, classes, batch)
    net.train()(x)
    mode = torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(net, (x,), file, input_names=["x"], output_names=["y"], dynamo=False, training=mode,
                      do_constant_folding=False, opset_version=17)


def step(mode, name, batch, threads, optimizer):
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    net, shape, classes = network(name)
    x, y = samples(shape, classes, batch)
    net.train()(x)
    if optimizer == "sgd":
        update = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, fused=True)
    else:
        update = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(net) if mode == "torch" else net

    def run():
        update.zero_grad(set_to_none=True)
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        update.step()
        return loss.item()

    return run
