"""Single operators of random shapes beside onnxruntime: results and times, one thread.

usage: operators.py PRESTOW [--seed N] [--count N] [--only FAMILY] [--rounds N] [--shown N] [--keep FOLDER]

Each family draws --count models of one operator. PRESTOW compiles each, its executable and onnxruntime run it in turns, and
the outputs are compared. Prints the slowest first: the ratio of the least times, both in microseconds, the largest difference
of the outputs relative to their size, the model. Models that both take less than 20 microseconds for are compared and not
timed: the call from Python counts there. --keep leaves the models and executables in a folder.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

DTYPES = {"f32": (np.float32, TensorProto.FLOAT), "i64": (np.int64, TensorProto.INT64), "i32": (np.int32, TensorProto.INT32),
          "u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8), "bool": (np.bool_, TensorProto.BOOL),
          "f64": (np.float64, TensorProto.DOUBLE), "f16": (np.float16, TensorProto.FLOAT16),
          "u16": (np.uint16, TensorProto.UINT16), "i16": (np.int16, TensorProto.INT16)}
OPSET = 20


class Case:
    """A model of few nodes: inputs by name, constants, nodes, outputs."""

    def __init__(self, name):
        self.name, self.inputs, self.constants, self.nodes, self.outputs = name, [], [], [], []
        # The largest difference, relative to the largest magnitude of an output.
        self.tolerance = 1e-4

    def input(self, name, shape, dtype="f32"):
        self.inputs.append((name, list(shape), dtype))
        return name

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op, inputs, outputs=("y",), **attributes):
        self.nodes.append(helper.make_node(op, inputs, list(outputs), **attributes))
        self.outputs = list(outputs)
        return outputs[0]

    def model(self):
        values = [helper.make_tensor_value_info(name, DTYPES[dtype][1], shape) for name, shape, dtype in self.inputs]
        # Types of outputs are inferred.
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, self.name, values, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(inferred)
        return inferred

    def values(self, random):
        def draw(shape, dtype):
            if dtype in ("f32", "f64", "f16"):
                return random.standard_normal(shape).astype(DTYPES[dtype][0])
            return random.integers(1, 2 if dtype == "bool" else 50, shape).astype(DTYPES[dtype][0])
        return {name: draw(shape, dtype) for name, shape, dtype in self.inputs}


class Draw:
    """Random choices."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def of(self, *choices):
        return choices[self.random.integers(len(choices))]

    def number(self, low, high):
        """A whole number, each magnitude as likely."""
        return int(round(np.exp(self.random.uniform(np.log(low), np.log(high)))))

    def weights(self, *shape):
        return (self.random.standard_normal(shape) * 0.1).astype(np.float32)

    def image(self, channels=None):
        channels = channels or self.number(1, 256)
        side = self.number(4, max(5, min(160, int((1 << 20) ** 0.5 / channels ** 0.5 * 2))))
        return [self.of(1, 1, 1, 4), channels, side, self.of(side, side, self.number(2, 2 * side))]

    def shape(self, elements=1 << 20):
        rank = self.of(1, 2, 3, 4, 4, 5)
        shape = [self.number(1, 64) for _ in range(rank)]
        while np.prod(shape) < elements / 64:
            shape[self.random.integers(rank)] *= 3
        while elements < np.prod(shape):
            shape[int(np.argmax(shape))] //= 2
        return shape


def words(*parts):
    return " ".join("x".join(map(str, part)) if isinstance(part, (list, tuple)) else str(part) for part in parts)


def unary(draw):
    op = draw.of(*"Abs Neg Exp Log Sqrt Sin Cos Tan Atan Tanh Sigmoid Erf Relu Elu Selu Celu Softplus Softsign HardSigmoid HardSwish "
                 "Mish LeakyRelu ThresholdedRelu Ceil Floor Round Sign Reciprocal Gelu IsNaN IsInf".split())
    shape = draw.shape()
    case = Case(words(op, shape))
    case.node(op, [case.input("x", shape)])
    return case


def binary(draw):
    op = draw.of(*"Add Sub Mul Div Max Min PRelu Greater Equal Pow And Or".split())
    dtype = "bool" if op in ("And", "Or") else "f32" if op in ("Pow", "PRelu", "Div") else draw.of("f32", "f32", "i64", "i32", "u8")
    if op in ("Max", "Min", "Greater") and dtype == "u8":
        dtype = "f32"
    shape = draw.shape()
    other = [extent if draw.of(True, False) else 1 for extent in shape]
    other = draw.of(shape, other, other, [shape[-1]])
    case = Case(words(op, dtype, shape, other))
    case.node(op, [case.input("x", shape, dtype), case.input("z", other, dtype)])
    return case


def cast(draw):
    common, rare = ("f32", "i64", "i32", "u8", "bool"), ("f64", "f16", "i8", "u16", "i16")
    source, target = (draw.of(*common, draw.of(*rare)) for _ in range(2))
    shape = draw.shape()
    case = Case(words("Cast", source, target, shape))
    x = case.input("x", shape, source)
    if source in ("f32", "f64", "f16") and target in ("u8", "u16"):
        # The conversion of negative numbers is undefined.
        x = case.node("Abs", [x], ["positive"])
    case.node("Cast", [x], to=DTYPES[target][1])
    return case


def select(draw):
    op = draw.of("Where", "Where", "Clip", "Mod", "Equal", "Less", "GreaterOrEqual")
    shape = draw.shape()
    part = lambda: draw.of(shape, shape, [extent if draw.of(True, False) else 1 for extent in shape])
    match op:
        case "Where":
            dtype, shapes = draw.of("f32", "f32", "i64", "i32", "u8"), [part(), part(), part()]
            case = Case(words(op, dtype, *shapes))
            case.node(op, [case.input(name, own, kind) for name, own, kind in zip("cxz", shapes, ["bool", dtype, dtype])])
        case "Clip":
            dtype = draw.of("f32", "i64", "i32", "u8")
            case = Case(words(op, dtype, shape))
            bounds = [case.constant(name, DTYPES[dtype][0](bound)) for name, bound in (("a", 1), ("b", 6))]
            case.node(op, [case.input("x", shape, dtype)] + bounds)
        case _:
            dtype, other = draw.of("i64", "i32", "f32" if op != "Mod" else "i64"), part()
            case = Case(words(op, dtype, shape, other))
            case.node(op, [case.input("x", shape, dtype), case.input("z", other, dtype)])
    return case


def rearrangement(draw):
    op, block = draw.of("DepthToSpace", "SpaceToDepth"), draw.of(2, 2, 3, 4)
    batch, channels, height, width = draw.image()
    if op == "DepthToSpace":
        shape = [batch, -(-channels // (block * block)) * block * block, -(-height // block), -(-width // block)]
    else:
        shape = [batch, channels, -(-height // block) * block, -(-width // block) * block]
    more = {"mode": draw.of("DCR", "CRD")} if op == "DepthToSpace" else {}
    case = Case(words(op, shape, "by", block, *more.values()))
    case.node(op, [case.input("x", shape)], blocksize=block, **more)
    return case


def quantization(draw):
    op, shape = draw.of("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), draw.shape()
    dtype = "u8" if op == "DynamicQuantizeLinear" else draw.of("u8", "i8")
    case = Case(words(op, dtype, shape))
    if op == "DynamicQuantizeLinear":
        case.node(op, [case.input("x", shape)], ("y", "s", "z"))
        return case
    # Scales for each element of the axis, or one.
    axis = draw.of(None, int(draw.random.integers(len(shape))))
    case.name += f" axis {axis}"
    scale = np.abs(draw.weights(*([] if axis is None else [shape[axis]]))) + np.float32(0.02)
    inputs = [case.input("x", shape, "f32" if op == "QuantizeLinear" else dtype), case.constant("s", scale),
              case.constant("z", np.full(np.shape(scale), 3, DTYPES[dtype][0]))]
    case.node(op, inputs, **({} if axis is None else {"axis": axis}))
    return case


def integers(draw):
    """Products and convolutions of bytes."""
    op = draw.of("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv")
    left, right = "u8", draw.of("i8", "i8", "u8")
    number = lambda name, value, dtype: case.constant(name, DTYPES[dtype][0](value))
    zero = 128 if right == "u8" else 0
    weights = lambda *shape: (np.clip(np.round(draw.random.standard_normal(shape) * 30), -127, 127) + zero).astype(DTYPES[right][0])
    if "MatMul" in op:
        m, k, n = draw.number(1, 500), draw.number(8, 2000), draw.number(1, 2000)
        while 1e8 < m * k * n:
            m, k, n = -(-m // 2), -(-k // 2), -(-n // 2)
        case = Case(words(op, right, [m, k], "by", [k, n]))
        pair = case.input("x", [m, k], left), case.constant("w", weights(k, n))
        more = {}
    else:
        groups, ins, outs = draw.of(1, 1, "depthwise"), draw.number(1, 256), draw.number(1, 256)
        if groups == "depthwise":
            groups = outs = ins
        kernel, stride = draw.of(1, 3, 3, 5), draw.of(1, 1, 2)
        side = draw.number(kernel, max(kernel, min(112, int((1e8 * groups / (ins * outs * kernel**2)) ** 0.5))))
        case = Case(words(op, right, ins, "to", outs, [kernel] * 2, "at", side, f"stride {stride} groups {groups}"))
        pair = case.input("x", [1, ins, side, side], left), case.constant("w", weights(outs, ins // groups, kernel, kernel))
        more = dict(strides=[stride] * 2, pads=[kernel // 2] * 4, group=groups)
    zeros = number("xz", 7, left), number("wz", zero, right)
    # Requantized results may differ by one step at rounding ties.
    case.tolerance = 0.02 if "QLinear" in op else 0.0
    if "Integer" in op:
        case.node(op, [*pair, *zeros], **more)
    else:
        case.node(op, [pair[0], number("xs", 0.02, "f32"), zeros[0], pair[1], number("ws", 0.01, "f32"), zeros[1],
                       number("ys", 0.1, "f32"), number("yz", 100, left)], **more)
    return case


def sampling(draw):
    shape, mode = draw.image(), draw.of("linear", "nearest")
    height, width = draw.number(1, 128), draw.number(1, 128)
    more = dict(padding_mode=draw.of("zeros", "border", "reflection"), align_corners=draw.of(0, 1))
    case = Case(words("GridSample", mode, shape, "to", [height, width], *more.values()))
    grid = draw.random.uniform(-1.1, 1.1, (shape[0], height, width, 2)).astype(np.float32)
    case.node("GridSample", [case.input("x", shape), case.constant("g", grid)], mode=mode, **more)
    return case


def contraction(draw):
    equation = draw.of("bhqd,bhkd->bhqk", "bhqk,bhkd->bqhd", "bqhd,bkhd->bhqk", "bij,bjk->bik", "bnd,de->bne", "bi,bj->bij",
                       "bhwc,hkc->bhwk", "bcs,bct->bst", "ij,ij->i", "bij->bji")
    extents = {letter: draw.number(1, 64) for letter in sorted(set(equation) & set("bchwijknqsdet"))}
    case = Case(words("Einsum", equation, *(f"{letter}={extent}" for letter, extent in extents.items())))
    terms = equation.split("->")[0].split(",")
    inputs = [case.input(name, [extents[letter] for letter in term]) for name, term in zip("xz", terms)]
    case.node("Einsum", inputs, equation=equation)
    return case


def conv(draw):
    dims = draw.of(1, 2, 2, 2, 3)
    groups = draw.of(1, 1, 1, "depthwise", draw.of(2, 4, 8))
    ins = draw.number(1, 512)
    outs = draw.number(1, 512)
    if groups == "depthwise":
        groups = outs = ins
    ins, outs = -(-ins // groups) * groups, -(-outs // groups) * groups
    kernel = [draw.of(1, 3, 3, 5, 7, draw.number(1, 12)) for _ in range(dims)] if draw.of(True, False) else [draw.of(1, 3)] * dims
    stride, dilation = draw.of(1, 1, 1, 2), draw.of(1, 1, 1, 2, draw.number(1, 8))
    work = ins // groups * outs * np.prod(kernel)
    side = draw.number(3, max(4, min(224 if dims == 2 else 8000 if dims == 1 else 24, int((3e8 / work) ** (1 / dims)))))
    pads = [(extent - 1) * dilation // 2 for extent in kernel]
    extents = [max(side, (extent - 1) * dilation + 1 - 2 * pad) for extent, pad in zip(kernel, pads)]
    case = Case(words("Conv", ins, "to", outs, kernel, "at", extents, f"stride {stride} dilation {dilation} groups {groups}"))
    inputs = [case.input("x", [1, ins] + extents), case.constant("w", draw.weights(outs, ins // groups, *kernel)),
              case.constant("b", draw.weights(outs))]
    case.node("Conv", inputs, strides=[stride] * dims, dilations=[dilation] * dims, group=groups, pads=pads * 2)
    return case


def transposed(draw):
    dims, groups = draw.of(1, 2, 2), draw.of(1, 1, 2)
    ins, outs = 2 * draw.number(1, 128), 2 * draw.number(1, 128)
    kernel, stride = draw.of(2, 3, 4, 4, 5, 8), draw.of(1, 2, 2, 4)
    work = ins * outs * kernel ** dims / groups
    side = draw.number(1, max(2, min(2000 if dims == 1 else 64, int((1e8 / work) ** (1 / dims)))))
    case = Case(words("ConvTranspose", ins, "to", outs, [kernel] * dims, "at", side, f"stride {stride} groups {groups}"))
    inputs = [case.input("x", [1, ins] + [side] * dims), case.constant("w", draw.weights(ins, outs // groups, *[kernel] * dims))]
    case.node("ConvTranspose", inputs, strides=[stride] * dims, group=groups)
    return case


def pool(draw):
    op, dims = draw.of("MaxPool", "AveragePool"), draw.of(1, 2, 2, 2, 3)
    kernel, stride = draw.of(2, 3, 3, 5, 7), draw.of(1, 2, 2, 3)
    shape = draw.image()[:2] + [draw.number(kernel, [2000, 112, 24][dims - 1]) for _ in range(dims)]
    while 4 << 20 < np.prod(shape):
        shape[1] = -(-shape[1] // 2)
    case = Case(words(op, [kernel] * dims, f"stride {stride}", shape))
    case.node(op, [case.input("x", shape)], kernel_shape=[kernel] * dims, strides=[stride] * dims, pads=[kernel // 2] * 2 * dims)
    return case


def of_all(draw):
    op, shape = draw.of("GlobalMaxPool", "GlobalAveragePool"), draw.image()
    case = Case(words(op, shape))
    case.node(op, [case.input("x", shape)])
    return case


def product(draw):
    batch = draw.of([], [], [draw.number(1, 16)], [draw.of(1, 2), draw.of(8, 12)])
    m, k, n = draw.of(1, draw.number(1, 1000)), draw.number(1, 4000), draw.of(1, draw.number(1, 4000), draw.number(1, 4000))
    while 3e8 < np.prod(batch) * m * k * n:
        m, k, n = -(-m // 2), -(-k // 2), -(-n // 2)
    is_constant = draw.of(True, False)
    case = Case(words("MatMul", batch + [m, k], "by", "constant" if is_constant else "", batch * (not is_constant) + [k, n]))
    right = case.constant("w", draw.weights(k, n)) if is_constant else case.input("z", batch + [k, n])
    case.node("MatMul", [case.input("x", batch + [m, k]), right])
    return case


def reduction(draw):
    op = draw.of(*"ReduceMean ReduceSum ReduceMax ReduceMin ReduceL2 ReduceProd ReduceLogSumExp ReduceSumSquare ReduceL1".split())
    shape = draw.shape()
    axes = [axis for axis in range(len(shape)) if draw.of(True, False)] or [len(shape) - 1]
    case = Case(words(op, shape, "over", axes))
    case.node(op, [case.input("x", shape), case.constant("axes", np.array(axes, np.int64))], keepdims=draw.of(0, 1))
    return case


def arg(draw):
    op, shape = draw.of("ArgMax", "ArgMin"), draw.shape()
    axis = int(draw.random.integers(len(shape)))
    case = Case(words(op, shape, "along", axis))
    case.node(op, [case.input("x", shape)], axis=axis)
    return case


def softmax(draw):
    op, shape = draw.of("Softmax", "LogSoftmax"), draw.shape()
    axis = draw.of(len(shape) - 1, int(draw.random.integers(len(shape))))
    case = Case(words(op, shape, "along", axis))
    case.node(op, [case.input("x", shape)], axis=axis)
    return case


def normalization(draw):
    op, shape = draw.of("LayerNormalization", "InstanceNormalization", "BatchNormalization", "LRN"), draw.image()
    case = Case(words(op, shape))
    x = case.input("x", shape)
    vector = lambda name, size: case.constant(name, np.abs(draw.weights(size)) + 0.5)
    match op:
        case "LayerNormalization":
            case.node(op, [x, vector("s", shape[-1]), vector("b", shape[-1])], axis=-1)
        case "InstanceNormalization":
            case.node(op, [x, vector("s", shape[1]), vector("b", shape[1])])
        case "BatchNormalization":
            case.node(op, [x] + [vector(name, shape[1]) for name in "sbmv"])
        case _:
            case.node(op, [x], size=draw.of(3, 5))
    return case


def resize(draw):
    shape, mode = draw.image(), draw.of("nearest", "linear", "cubic")
    transformation = draw.of("half_pixel", "asymmetric", "align_corners")
    scale = draw.of(2.0, 2.0, 4.0, 0.5, float(draw.number(10, 40)) / 16)
    case = Case(words("Resize", mode, transformation, shape, "by", scale))
    scales = case.constant("scales", np.array([1, 1, scale, scale], np.float32))
    case.node("Resize", [case.input("x", shape), "", scales], mode=mode, coordinate_transformation_mode=transformation)
    return case


def transpose(draw):
    shape = draw.shape()
    order = [int(axis) for axis in draw.random.permutation(len(shape))]
    dtype = draw.of("f32", "f32", "i64", "u8")
    case = Case(words("Transpose", dtype, shape, order))
    case.node("Transpose", [case.input("x", shape, dtype)], perm=order)
    return case


def movement(draw):
    shape = draw.shape()
    rank, axis = len(shape), int(draw.random.integers(len(shape)))
    op = draw.of("Concat", "Slice", "Pad", "Tile", "Expand", "Split")
    case = Case(words(op, shape, "along", axis))
    x = case.input("x", shape)
    numbers = lambda name, items: case.constant(name, np.array(items, np.int64))
    match op:
        case "Concat":
            case.node(op, [x, case.input("z", shape)], axis=axis)
        case "Slice":
            step = draw.of(1, 2, -1)
            bounds = [[0], [shape[axis]]] if 0 < step else [[shape[axis]], [-shape[axis] - 1]]
            case.node(op, [x, numbers("s", bounds[0]), numbers("e", bounds[1]), numbers("a", [axis]), numbers("t", [step])])
        case "Pad":
            mode = draw.of("constant", "edge", "reflect")
            pads = [min(2, extent - 1) if at == axis else 0 for at, extent in enumerate(shape)] * 2
            case.name = words(op, mode, shape, "along", axis)
            case.node(op, [x, numbers("p", pads)], mode=mode)
        case "Tile":
            case.node(op, [x, numbers("r", [2 if at == axis else 1 for at in range(rank)])])
        case "Expand":
            case.inputs[0] = ("x", [1 if at == axis else extent for at, extent in enumerate(shape)], "f32")
            case.node(op, [x, numbers("r", shape)])
        case _:
            case.inputs[0] = ("x", [2 * extent if at == axis else extent for at, extent in enumerate(shape)], "f32")
            case.node(op, [x], ("a", "b"), axis=axis, num_outputs=2)
    return case


def gather(draw):
    op, shape = draw.of("Gather", "GatherElements", "ScatterND", "TopK", "CumSum"), draw.shape(1 << 18)
    axis = int(draw.random.integers(len(shape)))
    case = Case(words(op, shape, "along", axis))
    x = case.input("x", shape)
    match op:
        case "Gather":
            index = draw.random.integers(0, shape[axis], draw.number(1, 256))
            case.node(op, [x, case.constant("i", index)], axis=axis)
        case "GatherElements":
            case.node(op, [x, case.constant("i", draw.random.integers(0, shape[axis], shape))], axis=axis)
        case "ScatterND":
            index = draw.random.permutation(shape[0])[: max(1, shape[0] // 2)].reshape(-1, 1)
            case.node(op, [x, case.constant("i", index), case.input("u", [len(index)] + shape[1:])])
        case "TopK":
            k = draw.number(1, shape[axis])
            case.name = words(op, k, "of", shape, "along", axis)
            case.node(op, [x, case.constant("k", np.array([k], np.int64))], ("y", "i"), axis=axis)
        case _:
            case.node(op, [x, case.constant("a", np.array(axis, np.int64))])
    return case


def recurrent(draw):
    op, gates = draw.of(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    hidden, size, steps, batch = draw.number(8, 512), draw.number(4, 512), draw.number(1, 64), draw.of(1, 1, draw.number(1, 8))
    ways = draw.of(1, 2)
    case = Case(words(op, f"hidden {hidden} of {size}, {steps} steps, batch {batch}, {ways} ways"))
    inputs = [case.input("x", [steps, batch, size]), case.constant("w", draw.weights(ways, gates * hidden, size)),
              case.constant("r", draw.weights(ways, gates * hidden, hidden)), case.constant("b", draw.weights(ways, 2 * gates * hidden))]
    more = {"linear_before_reset": draw.of(0, 1)} if op == "GRU" else {}
    case.node(op, inputs, hidden_size=hidden, direction=["forward", "bidirectional"][ways - 1], **more)
    return case


FAMILIES = [unary, binary, cast, conv, transposed, pool, of_all, product, reduction, arg, softmax, normalization, resize, transpose,
            movement, gather, recurrent, select, rearrangement, quantization, integers, sampling, contraction]


def difference(got, want):
    """The largest difference, relative to the largest magnitude of the output."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    if want.size == 0:
        return 0.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    is_same = (got == want) | (np.isnan(got) & np.isnan(want))
    finite = want[np.isfinite(want)]
    with np.errstate(invalid="ignore"):
        error = np.where(is_same, 0.0, np.abs(got - want))
    return float(np.nan_to_num(error, nan=np.inf).max() / max(1.0, np.abs(finite).max() if finite.size else 1.0))


def compare(prestow, case, folder, options):
    """`(ratio, own us, peer us, difference)`; an error is a text."""
    model, executable = os.path.join(folder, "model.onnx"), os.path.join(folder, "model")
    onnx.save(case.model(), model)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        values = case.values(np.random.default_rng(1))
        want = session.run(None, values)
    except Exception as error:  # pylint: disable=broad-except
        return f"onnxruntime: {str(error).splitlines()[0]}"
    done = subprocess.run([prestow, "compile", model, "-o", executable], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    words_of_inputs = []
    for name, array in values.items():
        np.save(os.path.join(folder, f"{name}.npy"), array)
        words_of_inputs += ["--input", f"{name}={folder}/{name}.npy"]
    done = subprocess.run([executable, "run", *words_of_inputs, "--output-dir", folder], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    outputs = [np.load(os.path.join(folder, f"{output.name}.npy")) for output in session.get_outputs()]
    error = max(difference(own, theirs) for own, theirs in zip(outputs, want))
    start = time.perf_counter()
    session.run(None, values)
    count = int(np.clip(0.05 / (time.perf_counter() - start), 4, 300))
    own, theirs = [], []
    for _ in range(options.rounds):
        for _ in range(count):
            start = time.perf_counter()
            session.run(None, values)
            theirs.append(time.perf_counter() - start)
        bench = [executable, "bench", "--threads", "1", "--iters", str(count), "--json", *words_of_inputs]
        own.append(json.loads(subprocess.run(bench, capture_output=True, text=True, check=True).stdout)["latency_ms"]["min"])
    own, theirs = 1e3 * min(own), 1e6 * min(theirs)
    return own / theirs, own, theirs, error


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("prestow")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--only")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shown", type=int, default=40)
    parser.add_argument("--keep")
    options = parser.parse_args()
    rows, failures = [], []
    with tempfile.TemporaryDirectory() as temporary:
        for number, family in enumerate(FAMILIES):
            if options.only not in (None, family.__name__):
                continue
            draw = Draw([options.seed, number])
            for index in range(options.count):
                case = family(draw)
                folder = os.path.join(options.keep or temporary, f"{family.__name__}-{index}")
                os.makedirs(folder, exist_ok=True)
                found = compare(options.prestow, case, folder, options)
                if isinstance(found, str):
                    failures.append((case.name, found))
                else:
                    rows.append((*found, family.__name__, index, case.name))
                    if case.tolerance < found[3]:
                        failures.append((case.name, f"differs by {found[3]:.1e}"))
                print(f"\r{family.__name__} {index + 1}/{options.count}   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    timed = sorted((row for row in rows if 20 < max(row[1], row[2])), reverse=True)
    print(f"{len(rows)} compared, {len(timed)} timed, {len(failures)} failed; geometric mean of the ratios "
          f"{np.exp(np.mean([np.log(row[0]) for row in timed])):.2f}")
    for row in timed[: options.shown]:
        print(f"{row[0]:6.2f} {row[1]:10.1f} {row[2]:10.1f} us  {row[3]:8.1e}  {row[4]}-{row[5]}: {row[6]}")
    print("largest differences:")
    for row in sorted(rows, key=lambda row: -row[3])[:8]:
        print(f"  {row[3]:8.1e}  {row[4]}-{row[5]}: {row[6]}")
    for name, failure in failures:
        print(f"failed: {name}: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
