"""Training steps of TensorFlow in graph mode, for `training.py`. Pictures are channels-last, as its kernels expect."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from tensorflow import keras

from networks import NETWORKS


class Place(keras.layers.Layer):
    """Adds a parameter."""

    def __init__(self, shape):
        super().__init__()
        self.value = self.add_weight(shape=shape, initializer=keras.initializers.RandomNormal(stddev=0.02))

    def call(self, x):
        return x + self.value


class Layers:
    relu, tanh = keras.layers.ReLU(), keras.layers.Activation("tanh")
    relu6, flatten = keras.layers.ReLU(6.0), keras.layers.Flatten()
    mean, softmax = keras.layers.GlobalAveragePooling2D(), keras.layers.Softmax()
    gelu = keras.layers.Activation("gelu")

    def conv(self, x, outs, kernel, stride=1, pad=0, groups=1, bias=True):
        x = keras.layers.ZeroPadding2D(pad)(x) if pad and stride != 1 else x
        padding = "same" if pad and stride == 1 else "valid"
        if groups == 1:
            return keras.layers.Conv2D(outs, kernel, stride, padding, use_bias=bias)(x)
        return keras.layers.DepthwiseConv2D(kernel, stride, padding, use_bias=bias)(x)

    def norm(self, x):
        return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    def max_pool(self, x, kernel, stride, pad=0):
        # Behind a ReLU, zeros are as good as nothing.
        x = keras.layers.ZeroPadding2D(pad)(x) if pad else x
        return keras.layers.MaxPooling2D(kernel, stride)(x)

    def linear(self, x, outs):
        return keras.layers.Dense(outs)(x)

    def embed(self, x, words, width):
        return keras.layers.Embedding(words, width)(x)

    def add_parameter(self, x, shape):
        return Place(shape)(x)

    def layer_norm(self, x):
        return keras.layers.LayerNormalization(epsilon=1e-5)(x)

    def attention(self, x, heads, width):
        return keras.layers.MultiHeadAttention(heads, width // heads)(x, x)

    def lstm(self, x, width, both):
        cells = keras.layers.LSTM(width, return_sequences=True)
        return keras.layers.Bidirectional(cells)(x) if both else cells(x)

    def multiply(self, a, b, transposed=False):
        return keras.ops.matmul(a, keras.ops.transpose(b, (0, 2, 1)) if transposed else b)

    def join(self, a, b):
        return keras.layers.Concatenate()([a, b])

    def step(self, x, index):
        return x[:, index]


def step(_, name, batch, threads, optimizer):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    build, shape, classes = NETWORKS[name]
    tokens = len(shape) == 1
    shape = shape if tokens else (*shape[1:], shape[0])
    given = keras.Input(shape, batch, dtype="int32" if tokens else "float32")
    net = keras.Model(given, build(Layers(), given))
    random = np.random.default_rng(1)
    x = random.integers(0, 1000, (batch, *shape)) if tokens else random.standard_normal((batch, *shape), "float32")
    x = tf.constant(x.astype("int32") if tokens else x)
    y = tf.constant(random.integers(0, classes, batch).astype("int32"))
    update = keras.optimizers.SGD(1e-3, momentum=0.9) if optimizer == "sgd" else keras.optimizers.Adam(1e-3)

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x, training=True)))
        update.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
        return loss

    return lambda: float(run())
