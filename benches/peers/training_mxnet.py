"""Training steps of MXNet 1.9.1 with bound symbols and its fused updates, for `training.py`."""

import mxnet as mx
import numpy as np
from mxnet import sym

from networks import NETWORKS


class Layers:
    def __init__(self, batch):
        self.batch = batch

    def relu(self, x):
        return sym.Activation(x, act_type="relu")

    def tanh(self, x):
        return sym.Activation(x, act_type="tanh")

    def relu6(self, x):
        return sym.clip(x, 0.0, 6.0)

    def gelu(self, x):
        return sym.LeakyReLU(x, act_type="gelu")

    def flatten(self, x):
        return sym.Flatten(x)

    def mean(self, x):
        return sym.Flatten(sym.Pooling(x, global_pool=True, kernel=(1, 1), pool_type="avg"))

    def softmax(self, x):
        return sym.softmax(x)

    def conv(self, x, outs, kernel, stride=1, pad=0, groups=1, bias=True):
        return sym.Convolution(x, num_filter=outs, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad),
                               num_group=groups, no_bias=not bias)

    def norm(self, x):
        return sym.BatchNorm(x, fix_gamma=False, eps=1e-5, momentum=0.9)

    def max_pool(self, x, kernel, stride, pad=0):
        return sym.Pooling(x, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), pool_type="max")

    def linear(self, x, outs):
        return sym.FullyConnected(x, num_hidden=outs, flatten=False)

    def embed(self, x, words, width):
        return sym.Embedding(x, input_dim=words, output_dim=width)

    def add_parameter(self, x, shape):
        return sym.broadcast_add(x, sym.Variable("places", shape=shape))

    def layer_norm(self, x):
        return sym.LayerNorm(x, eps=1e-5)

    def attention(self, x, heads, width):
        # Steps first; each head's queries, keys and values are adjacent.
        mixed = sym.FullyConnected(sym.transpose(x, (1, 0, 2)), num_hidden=3 * width, flatten=False)
        scores = sym.softmax(sym.contrib.interleaved_matmul_selfatt_qk(mixed, heads=heads))
        found = sym.contrib.interleaved_matmul_selfatt_valatt(mixed, scores, heads=heads)
        return self.linear(sym.transpose(found, (1, 0, 2)), width)

    def lstm(self, x, width, both):
        cells = sym.RNN(sym.transpose(x, (1, 0, 2)), state_size=width, num_layers=1, mode="lstm", bidirectional=both,
                        state=sym.zeros((1 + both, self.batch, width)), state_cell=sym.zeros((1 + both, self.batch, width)))
        return sym.transpose(cells, (1, 0, 2))

    def multiply(self, a, b, transposed=False):
        return sym.batch_dot(a, b, transpose_b=transposed)

    def join(self, a, b):
        return sym.concat(a, b, dim=2)

    def step(self, x, index):
        return sym.Flatten(sym.slice_axis(x, axis=1, begin=index, end=index + 1 or None))


def step(_, name, batch, threads, optimizer):
    build, shape, classes = NETWORKS[name]
    given = sym.Variable("x")
    net = sym.SoftmaxOutput(build(Layers(batch), given), sym.Variable("y"), normalization="batch")
    random = np.random.default_rng(1)
    x = random.integers(0, 1000, (batch, *shape)) if len(shape) == 1 else random.standard_normal((batch, *shape))
    y = random.integers(0, classes, batch)
    inputs = {"x": x.shape, "y": y.shape}
    executor = net.simple_bind(mx.cpu(), grad_req={key: "null" if key in inputs else "write" for key in net.list_arguments()},
                               **inputs)
    executor.arg_dict["x"][:], executor.arg_dict["y"][:] = x, y
    update = mx.optimizer.SGD(learning_rate=1e-3, momentum=0.9) if optimizer == "sgd" else mx.optimizer.Adam(1e-3)
    updater = mx.optimizer.get_updater(update)
    weights = [key for key in net.list_arguments() if key not in inputs]
    for key in weights:
        shape = executor.arg_dict[key].shape
        executor.arg_dict[key][:] = random.standard_normal(shape) * (0.02 if 1 < len(shape) else 0.0) + key.endswith("gamma")

    def run():
        executor.forward(is_train=True)
        executor.backward()
        for index, key in enumerate(weights):
            updater(index, executor.grad_dict[key], executor.arg_dict[key])
        mx.nd.waitall()
        return float(executor.outputs[0][0, 0].asscalar())

    return run
