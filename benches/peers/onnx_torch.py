"""ONNX files as PyTorch modules: a graph of torch's functions with the file's constants as parameters."""

import numpy as np
import torch
import torch.nn.functional as F

import onnx_nodes


def module(file, dtype=torch.float32):
    """A module that takes the inputs of a file, in order, and yields a tuple of its outputs. What is f32 in the file is of
    `dtype` in the module."""
    inputs, nodes, constants, outputs = onnx_nodes.read(file)
    build = Build(constants, dtype)
    for name in inputs:
        build.values[name] = build.graph.placeholder(f"input{len(build.values)}")
    for node in with_attention(nodes, constants, outputs):
        row = ROWS.get(node.kind)
        if row is None:
            raise node.refused()
        build.values[node.outputs[0]] = row(build, node)
    build.graph.output(tuple(build.value(name) for name in outputs))
    return torch.fx.GraphModule(build.root, build.graph).eval()


class Build:
    """A graph that grows."""

    def __init__(self, constants, dtype):
        self.root, self.graph, self.constants, self.values = torch.nn.Module(), torch.fx.Graph(), constants, {}
        self.dtype = dtype

    def value(self, name):
        """A value of the graph, or None for an input that is left out; a constant becomes a parameter."""
        if name is None:
            return None
        if name not in self.values:
            self.values[name] = self.parameter(self.constants[name])
        return self.values[name]

    def parameter(self, array):
        name = f"constant{len(list(self.root.parameters()))}"
        tensor = torch.from_numpy(np.array(array))
        if tensor.dtype == torch.float32:
            tensor = tensor.to(self.dtype)
        self.root.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        return self.graph.get_attr(name)

    def call(self, function, *arguments, **named):
        return self.graph.call_function(function, arguments, named)


class Attention:
    """What a MatMul, a factor, perhaps a mask, a Softmax and a MatMul are together."""

    kind = "Attention"

    def __init__(self, q, turned_k, v, factor, mask, output):
        self.inputs, self.factor, self.outputs = [q, turned_k, v, mask], factor, [output]


def with_attention(nodes, constants, outputs):
    """The nodes with `Attention` where they have it, as PyTorch's own models call it by one function."""
    makers = {name: node for node in nodes for name in node.outputs}
    uses = {}
    for name in [name for node in nodes for name in node.inputs] + outputs:
        uses[name] = uses.get(name, 0) + 1
    gone, attentions = set(), {}

    def maker(name, kinds):
        """The node of one of these kinds that makes a value which nobody else uses."""
        node = makers.get(name)
        return node if node is not None and node.kind in kinds and uses[name] == 1 else None

    for last in nodes:
        softmax = maker(last.inputs[0], ["Softmax"]) if last.kind == "MatMul" else None
        if softmax is None or softmax.get("axis", -1) not in (-1, 3):
            continue
        inner, mask = softmax.inputs[0], None
        masked = maker(inner, ["Add"])
        if masked is not None:
            inner, mask = masked.inputs
        scaled = maker(inner, ["Mul", "Div"])
        factor = constants.get(scaled.inputs[1]) if scaled is not None else None
        scores = maker(scaled.inputs[0], ["MatMul"]) if factor is not None and factor.size == 1 else None
        if scores is None:
            continue
        factor = float(factor.reshape(())) if scaled.kind == "Mul" else 1.0 / float(factor.reshape(()))
        attentions[id(last)] = Attention(*scores.inputs, last.inputs[1], factor, mask, last.outputs[0])
        gone |= {id(node) for node in (softmax, masked, scaled, scores) if node is not None}
    return [attentions.get(id(node), node) for node in nodes if id(node) not in gone]


def attention(build, node):
    q, turned_k, v, mask = (build.value(name) for name in node.inputs)
    k = build.call(torch.transpose, turned_k, -1, -2)
    return build.call(F.scaled_dot_product_attention, q, k, v, attn_mask=mask, scale=node.factor)


def conv(build, node):
    weight = node.array(1)
    rank = weight.ndim - 2
    strides, dilations, before, after = node.window(rank)
    x = build.value(node.input(0))
    if before != after:
        x, before = padded(build, x, before, after, 0.0), (0,) * rank
    function = [F.conv1d, F.conv2d, F.conv3d][rank - 1]
    weight, bias = build.value(node.input(1)), build.value(node.input(2))
    return build.call(function, x, weight, bias, strides, before, dilations, node.get("group", 1))


def conv_transpose(build, node):
    rank = node.array(1).ndim - 2
    strides, dilations, before, after = node.window(rank)
    if before != after:
        raise node.refused("with other pads in front than behind")
    function = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][rank - 1]
    x, weight, bias = (build.value(node.input(ix)) for ix in range(3))
    more = tuple(node.get("output_padding", [0] * rank))
    return build.call(function, x, weight, bias, strides, before, more, node.get("group", 1), dilations)


def padded(build, x, before, after, value):
    # Torch begins with the last dimension.
    pads = [pad for pair in reversed(list(zip(before, after))) for pad in pair]
    return build.call(F.pad, x, pads, "constant", value)


def max_pool(build, node):
    kernel = tuple(node.get("kernel_shape"))
    strides, dilations, before, after = node.window(len(kernel))
    x = build.value(node.input(0))
    if before != after:
        x, before = padded(build, x, before, after, float("-inf")), (0,) * len(kernel)
    function = [F.max_pool1d, F.max_pool2d, F.max_pool3d][len(kernel) - 1]
    return build.call(function, x, kernel, strides, before, dilations, bool(node.get("ceil_mode", 0)))


def average_pool(build, node):
    kernel = tuple(node.get("kernel_shape"))
    strides, dilations, before, after = node.window(len(kernel))
    with_padding = bool(node.get("count_include_pad", 0))
    x = build.value(node.input(0))
    if set(dilations) != {1} or (before != after and not with_padding):
        raise node.refused("with such pads or dilations")
    if before != after:
        x, before = padded(build, x, before, after, 0.0), (0,) * len(kernel)
    function = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][len(kernel) - 1]
    return build.call(function, x, kernel, strides, before, bool(node.get("ceil_mode", 0)), with_padding)


def batch_norm(build, node):
    x, scale, shift, mean, variance = (build.value(node.input(ix)) for ix in range(5))
    return build.call(F.batch_norm, x, mean, variance, scale, shift, False, 0.0, node.get("epsilon", 1e-5))


def layer_norm(build, node):
    x, scale, shift = (build.value(node.input(ix)) for ix in range(3))
    return build.call(F.layer_norm, x, node.array(1).shape, scale, shift, node.get("epsilon", 1e-5))


def lrn(build, node):
    numbers = node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    return build.call(F.local_response_norm, build.value(node.input(0)), node.get("size"), *numbers)


def gemm(build, node):
    if (node.get("alpha", 1.0), node.get("beta", 1.0), node.get("transA", 0)) != (1.0, 1.0, 0):
        raise node.refused("with factors")
    weight = node.array(1)
    # Torch's layer has its weights in rows of inputs.
    weight = build.parameter(np.ascontiguousarray(weight if node.get("transB", 0) else weight.T))
    return build.call(F.linear, build.value(node.input(0)), weight, build.value(node.input(2)))


def clip(build, node):
    low, high = (None if array is None else float(array) for array in (node.array(1), node.array(2)))
    x = build.value(node.input(0))
    return build.call(F.relu6, x) if (low, high) == (0.0, 6.0) else build.call(torch.clamp, x, low, high)


def reduce(function):
    def row(build, node):
        axes = node.numbers(1)
        if not axes:
            raise node.refused("without axes")
        return build.call(function, build.value(node.input(0)), axes, bool(node.get("keepdims", 1)))
    return row


def softmax(function):
    return lambda build, node: build.call(function, build.value(node.input(0)), node.get("axis", -1))


def hard_sigmoid(build, node):
    scaled = build.call(torch.mul, build.value(node.input(0)), node.get("alpha", 0.2))
    return build.call(torch.clamp, build.call(torch.add, scaled, node.get("beta", 0.5)), 0.0, 1.0)


def gelu(build, node):
    return build.call(F.gelu, build.value(node.input(0)), approximate=node.get("approximate", "none"))


def pointwise(function):
    def row(build, node):
        return build.call(function, *(build.value(name) for name in node.inputs))
    return row


def cast(build, node):
    # Numbers of types in ONNX's `TensorProto`.
    types = {1: build.dtype, 6: torch.int32, 7: torch.int64, 9: torch.bool}
    if node.get("to") not in types:
        raise node.refused("to such a type")
    return build.call(torch.Tensor.to, build.value(node.input(0)), types[node.get("to")])


def reshape(build, node):
    return build.call(torch.reshape, build.value(node.input(0)), node.numbers(1))


def expand(build, node):
    return build.call(torch.broadcast_to, build.value(node.input(0)), node.numbers(1))


def transpose(build, node):
    return build.call(torch.permute, build.value(node.input(0)), tuple(node.get("perm")))


def concat(build, node):
    return build.call(torch.cat, [build.value(name) for name in node.inputs], node.get("axis"))


def cut(build, node):
    starts, ends = node.numbers(1), node.numbers(2)
    axes = node.numbers(3) or list(range(len(starts)))
    steps = node.numbers(4) or [1] * len(starts)
    if min(steps) < 1:
        raise node.refused("backwards")
    x = build.value(node.input(0))
    for axis, start, end, step in zip(axes, starts, ends, steps):
        index = (slice(None),) * axis + (slice(start, end, step),)
        x = build.call(torch.Tensor.__getitem__, x, index)
    return x


def gather(build, node):
    index = node.constants.get(node.input(1))
    x, axis = build.value(node.input(0)), node.get("axis", 0)
    if index is not None and index.ndim == 0:
        return build.call(torch.select, x, axis, int(index))
    if axis == 0:
        return build.call(F.embedding, build.value(node.input(1)), x)
    raise node.refused("along another axis than the first")


def pad(build, node):
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}
    pads, value = node.numbers(1), node.array(2)
    half = len(pads) // 2
    pads = [pad for pair in reversed(list(zip(pads[:half], pads[half:]))) for pad in pair]
    mode = modes.get(node.get("mode", "constant"))
    if mode is None:
        raise node.refused("of this mode")
    value = float(value) if value is not None and mode == "constant" else None
    return build.call(F.pad, build.value(node.input(0)), pads, mode, value)


def resize(build, node):
    how = node.get("mode", "nearest"), node.get("coordinate_transformation_mode"), node.get("nearest_mode")
    sizes, scales = node.numbers(3), node.array(2)
    x = build.value(node.input(0))
    if how != ("nearest", "asymmetric", "floor"):
        raise node.refused("other than to the nearest below")
    if sizes is not None:
        return build.call(F.interpolate, x, size=sizes[2:])
    return build.call(F.interpolate, x, scale_factor=[float(scale) for scale in scales[2:]])


ROWS = {
    "Add": pointwise(torch.add),
    "Attention": attention,
    "AveragePool": average_pool,
    "BatchNormalization": batch_norm,
    "Cast": cast,
    "Clip": clip,
    "Concat": concat,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Div": pointwise(torch.div),
    "Exp": pointwise(torch.exp),
    "Expand": expand,
    "Gather": gather,
    "Gelu": gelu,
    "Gemm": gemm,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": pointwise(F.hardswish),
    "LRN": lrn,
    "LayerNormalization": layer_norm,
    "LogSoftmax": softmax(torch.log_softmax),
    "MatMul": pointwise(torch.matmul),
    "Max": pointwise(torch.maximum),
    "MaxPool": max_pool,
    "Min": pointwise(torch.minimum),
    "Mul": pointwise(torch.mul),
    "Pad": pad,
    "Pow": pointwise(torch.pow),
    "ReduceMax": reduce(torch.amax),
    "ReduceMean": reduce(torch.mean),
    "ReduceSum": reduce(torch.sum),
    "Relu": pointwise(F.relu),
    "Reshape": reshape,
    "Resize": resize,
    "Sigmoid": pointwise(torch.sigmoid),
    "Slice": cut,
    "Softmax": softmax(torch.softmax),
    "Sqrt": pointwise(torch.sqrt),
    "Sub": pointwise(torch.sub),
    "Tanh": pointwise(torch.tanh),
    "Transpose": transpose,
}
