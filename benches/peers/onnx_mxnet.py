"""ONNX files as MXNet symbols. MXNet's own importer ends at older versions of ONNX than what is exported today."""

import mxnet as mx
import numpy as np

import onnx_nodes


def symbol(file, shapes):
    """A symbol with the outputs of a file, for inputs of such shapes by name, and its parameters by name."""
    inputs, nodes, constants, outputs = onnx_nodes.read(file)
    build = Build(constants, shapes)
    for name in inputs:
        build.values[name] = mx.sym.Variable(name)
    for node in nodes:
        row = ROWS.get(node.kind)
        if row is None:
            raise node.refused()
        build.values[node.outputs[0]] = row(build, node)
    return mx.sym.Group([build.value(name) for name in outputs]), build.parameters


class Build:
    """Symbols that grow, with their parameters."""

    def __init__(self, constants, shapes):
        self.constants, self.shapes, self.values, self.parameters = constants, shapes, {}, {}

    def value(self, name):
        """A symbol; a constant becomes a parameter."""
        if name not in self.values:
            self.values[name] = self.parameter(self.constants[name])
        return self.values[name]

    def parameter(self, array):
        name = f"constant{len(self.parameters)}"
        # MXNet has no rank 0; whole numbers and truth values are numbers in f32, also as indices.
        array = array.reshape(array.shape or (1,))
        self.parameters[name] = mx.nd.array(array, dtype="float32")
        return mx.sym.Variable(name, shape=array.shape)

    def shape(self, value):
        _, (shape,), _ = value.infer_shape(**{name: shape for name, shape in self.shapes.items()
                                              if name in value.list_inputs()})
        return shape


def convolution(operator):
    def row(build, node):
        weight, bias = node.array(1), node.input(2)
        kernel, groups = weight.shape[2:], node.get("group", 1)
        channels = weight.shape[0] if node.kind == "Conv" else groups * weight.shape[1]
        operands = [build.value(name) for name in node.inputs if name]
        strides, dilations, before, after = node.window(len(kernel))
        if before != after:
            if node.kind != "Conv" or len(kernel) < 2:
                raise node.refused("with other pads in front than behind")
            pads = [pad for pair in zip(before, after) for pad in pair]
            operands[0] = mx.sym.pad(operands[0], mode="constant", pad_width=(0, 0, 0, 0, *pads), constant_value=0)
            before = (0,) * len(kernel)
        more = {} if node.kind == "Conv" else {"adj": tuple(node.get("output_padding", [0] * len(kernel)))}
        return operator(*operands, kernel=kernel, num_filter=channels, num_group=groups, no_bias=bias is None,
                        stride=strides, dilate=dilations, pad=before, **more)
    return row


def pool(kind):
    def row(build, node):
        kernel = tuple(node.get("kernel_shape"))
        strides, dilations, before, after = node.window(len(kernel))
        if before != after or set(dilations) != {1}:
            raise node.refused("with dilations, or other pads in front than behind")
        convention = "full" if node.get("ceil_mode", 0) else "valid"
        return mx.sym.Pooling(build.value(node.input(0)), kernel=kernel, pool_type=kind, pooling_convention=convention,
                              count_include_pad=bool(node.get("count_include_pad", 0)), stride=strides, pad=before)
    return row


def batch_norm(build, node):
    operands = [build.value(name) for name in node.inputs]
    return mx.sym.BatchNorm(*operands, eps=node.get("epsilon", 1e-5), fix_gamma=False, use_global_stats=True)


def layer_norm(build, node):
    operands = [build.value(name) for name in node.inputs]
    if node.array(1).ndim != 1:
        raise node.refused("over several axes")
    return mx.sym.LayerNorm(*operands, axis=-1, eps=node.get("epsilon", 1e-5))


def lrn(build, node):
    numbers = {"alpha": node.get("alpha", 1e-4), "beta": node.get("beta", 0.75), "knorm": node.get("bias", 1.0)}
    return mx.sym.LRN(build.value(node.input(0)), nsize=node.get("size"), **numbers)


def linear(build, x, weight, bias=None):
    # MXNet's layer has its weights in rows of inputs.
    operands = [x, build.parameter(np.ascontiguousarray(weight.T))] + ([] if bias is None else [bias])
    return mx.sym.FullyConnected(*operands, num_hidden=weight.shape[1], no_bias=bias is None, flatten=False)


def gemm(build, node):
    if (node.get("alpha", 1.0), node.get("beta", 1.0), node.get("transA", 0)) != (1.0, 1.0, 0):
        raise node.refused("with factors")
    weight, bias = node.array(1), node.input(2)
    bias = None if bias is None else build.value(bias)
    return linear(build, build.value(node.input(0)), weight.T if node.get("transB", 0) else weight, bias)


def matmul(build, node):
    weight = node.constants.get(node.input(1))
    if weight is not None and weight.ndim == 2:
        return linear(build, build.value(node.input(0)), weight)
    return mx.sym.linalg_gemm2(build.value(node.input(0)), build.value(node.input(1)))


def clip(build, node):
    low, high = (array if array is None else float(array) for array in (node.array(1), node.array(2)))
    x = build.value(node.input(0))
    return mx.sym.clip(x, -np.inf if low is None else low, np.inf if high is None else high)


def reduce(operator):
    def row(build, node):
        axes = node.numbers(1)
        if not axes:
            raise node.refused("without axes")
        x, keep = build.value(node.input(0)), bool(node.get("keepdims", 1))
        if node.kind != "ReduceMean" or axes != [2, 3]:
            return operator(x, axis=tuple(axes), keepdims=keep)
        # The mean over a picture is a pool there, which is what MKL-DNN has a kernel for.
        mean = mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1))
        return mean if keep else mx.sym.Flatten(mean)
    return row


def softmax(operator):
    return lambda build, node: operator(build.value(node.input(0)), axis=node.get("axis", -1))


def hard_sigmoid(build, node):
    return mx.sym.hard_sigmoid(build.value(node.input(0)), alpha=node.get("alpha", 0.2), beta=node.get("beta", 0.5))


def hard_swish(build, node):
    x = build.value(node.input(0))
    return x * mx.sym.hard_sigmoid(x, alpha=1.0 / 6.0, beta=0.5)


def gelu(build, node):
    if node.get("approximate", "none") != "none":
        raise node.refused("by the hyperbolic tangent")
    return mx.sym.LeakyReLU(build.value(node.input(0)), act_type="gelu")


def activation(kind):
    return lambda build, node: mx.sym.Activation(build.value(node.input(0)), act_type=kind)


def pointwise(operator):
    return lambda build, node: operator(*(build.value(name) for name in node.inputs))


def add(build, node):
    # The sum of two values of one shape is an operator of its own, and the one that MKL-DNN joins to a convolution.
    values = [build.value(name) for name in node.inputs]
    is_spread = build.shape(values[0]) != build.shape(values[1])
    return (mx.sym.broadcast_add if is_spread else mx.sym.elemwise_add)(*values)


def cast(build, node):
    # To f32 from whatever it is; inputs that are whole numbers come as such, and all else is of f32.
    if node.get("to") != 1:
        raise node.refused("to such a type")
    return mx.sym.cast(build.value(node.input(0)), dtype="float32")


def reshape(build, node):
    shape = node.numbers(1)
    if node.get("allowzero", 0) or not shape:
        raise node.refused("to such a shape")
    return mx.sym.reshape(build.value(node.input(0)), shape=tuple(shape))


def expand(build, node):
    return mx.sym.broadcast_to(build.value(node.input(0)), shape=tuple(node.numbers(1)))


def transpose(build, node):
    return mx.sym.transpose(build.value(node.input(0)), axes=tuple(node.get("perm")))


def concat(build, node):
    return mx.sym.concat(*(build.value(name) for name in node.inputs), dim=node.get("axis"))


def cut(build, node):
    starts, ends = node.numbers(1), node.numbers(2)
    axes = node.numbers(3) or list(range(len(starts)))
    if set(node.numbers(4) or [1]) != {1}:
        raise node.refused("with steps")
    x = build.value(node.input(0))
    for axis, start, end in zip(axes, starts, ends):
        x = mx.sym.slice_axis(x, axis=axis, begin=start, end=None if end > 2**31 else end)
    return x


def resize(build, node):
    how = node.get("mode", "nearest"), node.get("coordinate_transformation_mode"), node.get("nearest_mode")
    x = build.value(node.input(0))
    extents, sizes, scales = build.shape(x), node.numbers(3), node.array(2)
    if sizes is None:
        sizes = [int(extent * scale) for extent, scale in zip(extents, scales)]
    factors = [size / extent for size, extent in zip(sizes, extents)]
    if how != ("nearest", "asymmetric", "floor") or factors != [1, 1, int(factors[2]), factors[2]]:
        raise node.refused("other than by one whole number to the nearest")
    return mx.sym.UpSampling(x, scale=int(factors[2]), sample_type="nearest")


def gather(build, node):
    return mx.sym.take(build.value(node.input(0)), build.value(node.input(1)), axis=node.get("axis", 0))


ROWS = {
    "Add": add,
    "AveragePool": pool("avg"),
    "BatchNormalization": batch_norm,
    "Cast": cast,
    "Clip": clip,
    "Concat": concat,
    "Conv": convolution(mx.sym.Convolution),
    "ConvTranspose": convolution(mx.sym.Deconvolution),
    "Div": pointwise(mx.sym.broadcast_div),
    "Exp": pointwise(mx.sym.exp),
    "Expand": expand,
    "Gather": gather,
    "Gelu": gelu,
    "Gemm": gemm,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "LRN": lrn,
    "LayerNormalization": layer_norm,
    "LogSoftmax": softmax(mx.sym.log_softmax),
    "MatMul": matmul,
    "Max": pointwise(mx.sym.broadcast_maximum),
    "MaxPool": pool("max"),
    "Min": pointwise(mx.sym.broadcast_minimum),
    "Mul": pointwise(mx.sym.broadcast_mul),
    "Pow": pointwise(mx.sym.broadcast_power),
    "ReduceMax": reduce(mx.sym.max),
    "ReduceMean": reduce(mx.sym.mean),
    "ReduceSum": reduce(mx.sym.sum),
    "Relu": activation("relu"),
    "Reshape": reshape,
    "Resize": resize,
    "Sigmoid": activation("sigmoid"),
    "Slice": cut,
    "Softmax": softmax(mx.sym.softmax),
    "Sqrt": pointwise(mx.sym.sqrt),
    "Sub": pointwise(mx.sym.broadcast_sub),
    "Tanh": activation("tanh"),
    "Transpose": transpose,
}
