"""Records gradients of PyTorch for the tests.

Usage: torch_gradients.py OUTDIR     (requires torch 2.15.0, onnx 1.23.2, numpy)

Each network is small and has another structure. It is exported to ONNX with its parameters as inputs, so that loading
computes nothing from them. The gradients of a random linear function of its output (`factors`) for all parameters and float
inputs are computed in `f64`. In the networks named `training`, batch normalization takes the statistics of the batch; the
exported file has its inference form.
"""

import io
import sys

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Bottlenecks with projections, batch normalization, global pool."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.a = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1, bias=False),
                               nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 12, 1, bias=False), nn.BatchNorm2d(12))
        self.project = nn.Sequential(nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12))
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(self.a(x) + self.project(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Mobile(nn.Module):
    """Depthwise convolutions, squeeze and excitation, hard functions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.Hardswish())
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU6(), nn.Conv2d(16, 16, 5, 1, 2, groups=16), nn.ReLU6())
        self.squeeze = nn.Sequential(nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Hardsigmoid())
        self.project = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        y = self.expand(x)
        y = y * self.squeeze(F.adaptive_avg_pool2d(y, 1))
        return self.head((x + self.project(y)).mean((2, 3)))


class Inception(nn.Module):
    """Branches with windows of several shapes, joined; average pools; local response normalization."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.branches = nn.ModuleList([nn.Conv2d(6, 3, 1), nn.Conv2d(6, 4, (1, 7), padding=(0, 3)), nn.Conv2d(6, 2, 3, padding=2, dilation=2)])
        self.last = nn.Conv2d(15, 6, 3, stride=2, groups=3)
        self.head = nn.Linear(6 * 2 * 2, 4)

    def forward(self, x):
        x = F.local_response_norm(F.elu(self.stem(x)), 5, alpha=0.2)
        x = torch.cat([branch(x) for branch in self.branches] + [F.avg_pool2d(x, 3, 1, 1)], 1)
        x = F.avg_pool2d(F.leaky_relu(self.last(x)), 2, ceil_mode=False)
        return self.head(x.flatten(1))


class Unet(nn.Module):
    """Transposed convolutions, interpolation, skips, padding by reflection, slices."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, stride=2)
        self.bottom = nn.Conv2d(4, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1)
        self.wide = nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2)
        self.head = nn.Conv2d(8, 2, 1)
        self.slope = nn.Parameter(torch.full((4,), 0.3))

    def forward(self, x):
        x = F.pad(x, (1, 2, 2, 1), mode="reflect")
        skip = F.prelu(self.down(x), self.slope)
        y = F.softplus(self.bottom(F.max_pool2d(skip, 2)))
        y = self.up(y)
        y = torch.cat([skip[:, :, : y.shape[2], : y.shape[3]], y], 1)
        y = y[:, :4] * torch.sigmoid(y[:, 4:])
        y = F.interpolate(self.wide(y), scale_factor=2, mode="bilinear", align_corners=False)
        z = F.interpolate(self.wide(skip[:, :, ::2, 1::2]), size=y.shape[2:], mode="nearest")
        return self.head(torch.cat([y, z], 1))


class Words(nn.Module):
    """Embedding, attention with a mask, layer normalization, GELU, a tied output."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.place = nn.Parameter(torch.randn(6, 8) * 0.3)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, ids):
        x = self.embedding(ids) + self.place
        n, t, c = 2, 6, 8
        q, k, v = (part.reshape(n, t, 2, 4).transpose(1, 2) for part in self.qkv(self.norms[0](x)).split(8, 2))
        mask = torch.triu(torch.full((t, t), -1e9), 1)
        weights = torch.softmax(q @ k.transpose(2, 3) / 2.0 + mask, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, t, c))
        x = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return torch.log_softmax(x @ self.embedding.weight.t(), -1)


class Recurrent(nn.Module):
    """Layers of LSTM and GRU, both directions."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, bidirectional=True)
        self.gru = nn.GRU(10, 3)
        self.rnn = nn.RNN(3, 4, nonlinearity="tanh")
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x, _ = self.lstm(x)
        x, _ = self.gru(x)
        x, last = self.rnn(x)
        return self.head(x) + last.mean(0)[:, :3]


class Sound(nn.Module):
    """Convolutions of one axis, gated; norms of groups; statistics over time."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(2, 8, 5, stride=2), nn.Conv1d(4, 6, 3, dilation=2, padding=2)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        x = F.glu(self.norm(self.a(x)), 1)
        x = torch.tanh(self.b(x)) * F.silu(self.b(x))
        mean, deviation = x.mean(2), (x.var(2, unbiased=False) + 1e-3).sqrt()
        return self.head(torch.cat([mean, deviation], 1)).pow(2) / 3


class Volume(nn.Module):
    """Three dimensions, instance normalization, norms and extremes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(1, 3, 3, padding=1)
        self.norm = nn.InstanceNorm3d(3, affine=True)
        self.head = nn.Linear(9, 2)

    def forward(self, x):
        x = F.max_pool3d(F.mish(self.norm(self.conv(x))), 2).flatten(2)
        parts = [x.amax(2), x.norm(dim=2), torch.logsumexp(x, 2)]
        return torch.exp(-self.head(torch.cat(parts, 1)).abs())


def image(n, c, h, w):
    return torch.randn(n, c, h, w)


NETWORKS = {
    "residual": (Residual, lambda: image(2, 3, 21, 18), False),
    "residual_training": (Residual, lambda: image(4, 3, 17, 17), True),
    "mobile": (Mobile, lambda: image(2, 3, 12, 10), False),
    "inception": (Inception, lambda: image(2, 3, 11, 11), False),
    "unet": (Unet, lambda: image(1, 2, 14, 14), False),
    "words": (Words, lambda: torch.randint(0, 11, (2, 6)), False),
    "recurrent": (Recurrent, lambda: torch.randn(5, 2, 4), False),
    "sound": (Sound, lambda: torch.randn(2, 2, 23), False),
    "volume": (Volume, lambda: torch.randn(2, 1, 4, 6, 5), False),
}


def main(folder):
    for seed, (name, (build, draw, training)) in enumerate(NETWORKS.items()):
        torch.manual_seed(seed)
        network = build()
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.3)
                nn.init.normal_(module.running_mean, 0, 0.3)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
            if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm3d)):
                # Equal parameters would be one in the file.
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0, 0.3)
        network.train(training)
        x = draw()
        file = io.BytesIO()
        # Otherwise batch normalization is folded into convolutions.
        mode = torch.onnx.TrainingMode.PRESERVE
        torch.onnx.export(network.eval(), x, file, opset_version=17, do_constant_folding=False, dynamo=False, training=mode,
                          input_names=["x"], output_names=["y"])
        model = onnx.load_from_string(file.getvalue())
        parameters = dict(network.named_parameters())
        for tensor in [tensor for tensor in model.graph.initializer if tensor.name in parameters]:
            model.graph.initializer.remove(tensor)
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        onnx.save(model, f"{folder}/{name}.onnx")
        values = {f"in/{key}": value.detach().numpy() for key, value in parameters.items()}
        network = network.double().train(training)
        given = x.double().requires_grad_() if x.is_floating_point() else x
        y = network(given)
        factors = torch.randn_like(y)
        (y * factors).sum().backward()
        arrays = {"in/x": x.numpy(), "y": y.detach().numpy(), "factors": factors.numpy(), **values}
        if x.is_floating_point():
            arrays["grad/x"] = given.grad.numpy()
        for parameter, tensor in network.named_parameters():
            arrays[f"grad/{parameter}"] = tensor.grad.numpy()
        arrays = {key: array.astype(np.float32) if array.dtype == np.float64 else array for key, array in arrays.items()}
        np.savez_compressed(f"{folder}/{name}.npz", **arrays)
        print(name, sum(key.startswith("grad/") for key in arrays), "gradients")


main(sys.argv[1])
