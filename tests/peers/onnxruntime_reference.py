"""Records what onnxruntime computes, for the tests to compare with.

usage: onnxruntime_reference.py DATA OUTDIR     (needs onnx 1.17.0, onnxruntime 1.31.1, numpy; DATA from `cargo xtask fetch`)

The light networks come with constant weights, under which a wrong convolution gives the right answer. They are given
weights from a seed here, and `tests/tests/it/reference.rs` gives them the same: SplitMix64 seeded by 1 and the tensor's
name (FNV-1a), the upper 24 bits as a number in [0, 1); tensors of rank 2 and more uniform in +-sqrt(6 / fan_in), rank 1
uniform in [0.5, 1). What is compared is the input of the softmax, which would hide differences by saturating.
"""

import os
import sys

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime


def random_units(seed, name, count):
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(seed ^ state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float32) / np.float32(16777216.0)


def uniform(seed, name, shape, low, high):
    low, high = np.float32(low), np.float32(high)
    return (low + (high - low) * random_units(seed, name, int(np.prod(shape)))).reshape(shape)


def weight(name, shape):
    if len(shape) < 2:
        return uniform(1, name, shape, 0.5, 1.0)
    bound = np.sqrt(np.float32(6.0) / np.float32(np.prod(shape[1:])))
    return uniform(1, name, shape, -bound, bound)


def reweighted(path):
    """The model with seeded weights, and its softmax's input for its output."""
    model = onnx.load(path)
    shapes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes, used = [], set()
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            tensor = weight(node.output[0], [int(extent) for extent in shapes[node.input[0]]])
            model.graph.initializer.append(onnx.numpy_helper.from_array(tensor, node.output[0]))
            used.add(node.input[0])
        else:
            nodes.append(node)
    output = model.graph.output[0].name
    if nodes[-1].op_type == "Softmax":
        output = nodes.pop().input[0]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for kept in [model.graph.input, model.graph.initializer]:
        rest = [item for item in kept if item.name not in used]
        del kept[:]
        kept.extend(rest)
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))
    return model


def run(model, inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def main(data, out):
    os.makedirs(out, exist_ok=True)
    light = os.path.join(data, "onnx-test-data/light")
    for name in sorted(os.listdir(light)):
        if not name.endswith(".onnx"):
            continue
        model = reweighted(os.path.join(light, name))
        known = {tensor.name for tensor in model.graph.initializer}
        port = next(port for port in model.graph.input if port.name not in known)
        shape = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
        result, = run(model, {port.name: uniform(7, "input", shape, -1.0, 1.0)})
        np.save(os.path.join(out, name.replace(".onnx", ".npy")), result.astype(np.float32))
        print(name, result.shape, float(np.abs(result).max()))
    for name, shape in [("ch_PP-OCRv4_det_infer", [1, 3, 64, 96]), ("ch_PP-OCRv4_rec_infer", [1, 3, 48, 64]),
                        ("ch_ppocr_mobile_v2.0_cls_infer", [1, 3, 48, 192])]:
        model = onnx.load(os.path.join(data, "models/ppocrv4", name + ".onnx"))
        result, = run(model, {"x": uniform(7, "input", shape, -1.0, 1.0)})
        np.save(os.path.join(out, name + ".npy"), result)
        print(name, result.shape, float(np.abs(result).max()))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
