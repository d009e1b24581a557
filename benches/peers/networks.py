"""Networks of prestow's zoo and of `training_torch.py` from the layers of any framework.

Each takes `layers`, which has the methods that are called here and returns values of its framework, and an input.
"""


def unit(layers, x, outs, kernel, stride=1, groups=1, function=None):
    x = layers.norm(layers.conv(x, outs, kernel, stride, kernel // 2, groups, bias=False))
    return function(x) if function else x


def mnist_cnn(layers, x):
    for outs in [20, 50]:
        x = layers.max_pool(layers.tanh(layers.conv(x, outs, 5)), 2, 2)
    x = layers.tanh(layers.linear(layers.flatten(x), 500))
    return layers.tanh(layers.linear(x, 10))


def stem(layers, x):
    return layers.max_pool(unit(layers, x, 64, 7, 2, function=layers.relu), 3, 2, 1)


def resnet18(layers, x):
    x, ins = stem(layers, x), 64
    for outs, first in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        for stride in [first, 1]:
            skip = x if (ins, stride) == (outs, 1) else unit(layers, x, outs, 1, stride)
            y = unit(layers, x, outs, 3, stride, function=layers.relu)
            x, ins = layers.relu(unit(layers, y, outs, 3) + skip), outs
    return layers.linear(layers.mean(x), 1000)


def resnet50(layers, x):
    x, ins = stem(layers, x), 64
    for width, count, first in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for stride in [first] + [1] * (count - 1):
            skip = x if (ins, stride) == (4 * width, 1) else unit(layers, x, 4 * width, 1, stride)
            y = unit(layers, x, width, 1, function=layers.relu)
            y = unit(layers, y, width, 3, stride, function=layers.relu)
            x, ins = layers.relu(unit(layers, y, 4 * width, 1) + skip), 4 * width
    return layers.linear(layers.mean(x), 1000)


def mobilenet_v2(layers, x):
    x, ins = unit(layers, x, 32, 3, 2, function=layers.relu6), 32
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expand, outs, count, first in rows:
        for stride in [first] + [1] * (count - 1):
            wide = ins * expand
            y = x if expand == 1 else unit(layers, x, wide, 1, function=layers.relu6)
            y = unit(layers, y, wide, 3, stride, groups=wide, function=layers.relu6)
            y = unit(layers, y, outs, 1)
            x, ins = x + y if (stride, ins) == (1, outs) else y, outs
    x = unit(layers, x, 1280, 1, function=layers.relu6)
    return layers.linear(layers.mean(x), 1000)


def vgg11(layers, x):
    for outs in [64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"]:
        x = layers.max_pool(x, 2, 2) if outs == "pool" else layers.relu(layers.conv(x, outs, 3, 1, 1))
    x = layers.flatten(x)
    for _ in range(2):
        x = layers.relu(layers.linear(x, 4096))
    return layers.linear(x, 1000)


def bert(layers, x, words=30522, length=128, count=12, width=768, heads=12):
    x = layers.layer_norm(layers.add_parameter(layers.embed(x, words, width), (1, length, width)))
    for _ in range(count):
        x = layers.layer_norm(x + layers.attention(x, heads, width))
        x = layers.layer_norm(x + layers.linear(layers.gelu(layers.linear(x, 4 * width)), width))
    return layers.linear(layers.step(x, 0), 2)


def translator(layers, x, words=10000, width=512):
    read = layers.lstm(layers.embed(x, words, width), width // 2, both=True)
    written = layers.lstm(layers.embed(x, words, width), width, both=False)
    weights = layers.softmax(layers.multiply(written, read, transposed=True))
    mixed = layers.tanh(layers.linear(layers.join(written, layers.multiply(weights, read)), width))
    return layers.linear(layers.step(mixed, -1), words)


# Network, shape of a sample, classes.
NETWORKS = {
    "mnist_cnn": (mnist_cnn, (1, 28, 28), 10),
    "resnet18": (resnet18, (3, 224, 224), 1000),
    "resnet50": (resnet50, (3, 224, 224), 1000),
    "mobilenet_v2": (mobilenet_v2, (3, 224, 224), 1000),
    "vgg11": (vgg11, (3, 224, 224), 1000),
    "torch/bert": (bert, (128,), 2),
    "torch/translator": (translator, (60,), 10000),
}
