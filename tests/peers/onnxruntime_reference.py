"""Records results of ONNX Runtime for the tests.

Usage: onnxruntime_reference.py DATA OUTDIR     (requires onnx 1.17.0, onnxruntime 1.31.1, numpy; DATA from `cargo xtask fetch`)

The light networks have constant weights, which hide errors of convolutions. They get seeded weights here, the same as in
`tests/tests/it/reference.rs`: SplitMix64 seeded by 1 and the tensor's
name (FNV-1a), the upper 24 bits as a number in [0, 1); tensors of rank 2 and more uniform in +-sqrt(6 / fan_in), rank 1
uniform in [0.5, 1). The input of the softmax is compared, since
a saturated softmax hides differences.

Small recurrent networks, made here as PyTorch exports them, are recorded with their files. For networks with several
inputs and outputs, each input is seeded by its name, and all outputs are recorded.
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
    """The model with seeded weights and the input of its softmax as output."""
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


def recurrent_network(name, layers, features, seq, batch):
    """Stacked recurrent layers, `(op, units, direction, attributes)` each, and a linear layer."""
    directions = {"forward": 1, "reverse": 1, "bidirectional": 2}
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}
    nodes, weights, value = [], [], "input"
    inputs = [onnx.helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, [seq, batch, features])]
    outputs = [onnx.helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, [seq, batch, 3])]

    def weigh(label, shape, bound):
        weights.append(onnx.numpy_helper.from_array(uniform(3, name + "/" + label, shape, -bound, bound), label))
        return label

    def integers(label, items):
        weights.append(onnx.numpy_helper.from_array(np.array(items, dtype=np.int64), label))
        return label

    for ix, (op, units, direction, attributes) in enumerate(layers):
        d, rows, label = directions[direction], gates[op] * units, "layer%d" % ix
        operands = [value, weigh(label + ".w", [d, rows, features], 1.0), weigh(label + ".r", [d, rows, units], 0.5),
                    weigh(label + ".b", [d, 2 * rows], 0.5), "", label + ".h"]
        yielded = [label + ".y", label + ".last_h"]
        if op == "LSTM":
            operands.append(label + ".c")
            yielded.append(label + ".last_c")
        for state in operands[5:]:
            inputs.append(onnx.helper.make_tensor_value_info(state, onnx.TensorProto.FLOAT, [d, batch, units]))
        for state in yielded[1:]:
            outputs.append(onnx.helper.make_tensor_value_info(state, onnx.TensorProto.FLOAT, [d, batch, units]))
        nodes.append(onnx.helper.make_node(op, operands, yielded, name=label, hidden_size=units, direction=direction,
                                           **attributes))
        features = d * units
        nodes.append(onnx.helper.make_node("Transpose", [label + ".y"], [label + ".t"], perm=[0, 2, 1, 3]))
        value = label + ".x"
        shape = integers(label + ".shape", [0, 0, -1])
        nodes.append(onnx.helper.make_node("Reshape", [label + ".t", shape], [value]))
    nodes.append(onnx.helper.make_node("MatMul", [value, weigh("linear.w", [features, 3], 0.5)], ["linear"]))
    nodes.append(onnx.helper.make_node("Add", ["linear", weigh("linear.b", [3], 0.5)], ["output"]))
    graph = onnx.helper.make_graph(nodes, name, inputs, outputs, weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def record(model, name, shapes, out):
    """All outputs, for inputs seeded by their names."""
    results = run(model, {port: uniform(7, port, shape, -1.0, 1.0) for port, shape in shapes.items()})
    for ix, result in enumerate(results):
        np.save(os.path.join(out, "%s.%d.npy" % (name, ix)), result)
        print(name, ix, result.shape, float(np.abs(result).max()))


def recurrent(data, out):
    networks = [
        ("recurrent_lstm", [("LSTM", 10, "bidirectional", {}), ("LSTM", 17, "forward", {})], 7, 12, 2),
        ("recurrent_gru", [("GRU", 9, "bidirectional", {"linear_before_reset": 1}), ("GRU", 20, "reverse", {}),
                           ("RNN", 5, "forward", {"activations": ["Relu"]})], 6, 11, 3),
    ]
    for name, layers, features, seq, batch in networks:
        model = recurrent_network(name, layers, features, seq, batch)
        onnx.checker.check_model(model)
        onnx.save(model, os.path.join(out, name + ".onnx"))
        shapes = {port.name: [dim.dim_value for dim in port.type.tensor_type.shape.dim] for port in model.graph.input}
        record(model, name, shapes, out)
    name = "silero_vad_16k_sequence"
    model = onnx.load(os.path.join(data, "models/silero", name + ".onnx"))
    record(model, name, {"input": [20, 576], "h": [1, 1, 128], "c": [1, 1, 128]}, out)


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
    recurrent(data, out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
