"""Writes a transformer encoder with random weights as ONNX: a model of any size, to measure memory and time with.

    python3 encoder.py --layers 24 --width 1024 --heads 16 --words 30522 --tokens 128 -o bert-large.onnx

The input `ids` is int64[1, tokens], the output `hidden` float[1, tokens, width]. Needs onnx and numpy; the file must stay
below 2 GiB, the limit of protobuf.
"""

import argparse

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--words", type=int, default=30522)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", required=True)
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    nodes, weights = [], []
    width, heads, tokens = args.width, args.heads, args.tokens

    def constant(name, array):
        weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(name, *shape):
        return constant(name, random.standard_normal(shape, dtype=np.float32) * np.float32(0.02))

    def node(op, inputs, name, **attributes):
        nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def linear(x, name, rows, columns):
        product = node("MatMul", [x, weight(name + ".weight", rows, columns)], name + "/product")
        return node("Add", [product, weight(name + ".bias", columns)], name)

    def normalized(x, name):
        scale = constant(name + ".scale", 1 + random.standard_normal(width, dtype=np.float32) * np.float32(0.02))
        return node("LayerNormalization", [x, scale, weight(name + ".bias", width)], name, axis=-1, epsilon=1e-12)

    split = constant("split", np.array([1, tokens, heads, width // heads], np.int64))
    joined = constant("joined", np.array([1, tokens, width], np.int64))
    divisor = constant("divisor", np.array(np.sqrt(width / heads), np.float32))
    x = node("Gather", [weight("words", args.words, width), "ids"], "embedding", axis=0)
    x = normalized(node("Add", [x, weight("positions", 1, tokens, width)], "embedding/sum"), "embedding/norm")
    for layer in range(args.layers):
        at = f"layer{layer}/"

        def head(name, order):
            y = node("Reshape", [linear(x, at + name, width, width), split], at + name + "/split")
            return node("Transpose", [y], at + name + "/heads", perm=order)

        query, key, value = head("query", [0, 2, 1, 3]), head("key", [0, 2, 3, 1]), head("value", [0, 2, 1, 3])
        scores = node("Div", [node("MatMul", [query, key], at + "products"), divisor], at + "scores")
        mixed = node("MatMul", [node("Softmax", [scores], at + "softmax", axis=-1), value], at + "mixed")
        mixed = node("Reshape", [node("Transpose", [mixed], at + "tokens", perm=[0, 2, 1, 3]), joined], at + "joined")
        y = linear(mixed, at + "output", width, width)
        x = normalized(node("Add", [x, y], at + "first"), at + "first/norm")
        y = node("Gelu", [linear(x, at + "wide", width, 4 * width)], at + "gelu")
        x = normalized(node("Add", [x, linear(y, at + "narrow", 4 * width, width)], at + "second"), at + "second/norm")
    node("Identity", [x], "hidden")
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, tokens])],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [1, tokens, width])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), args.output)


if __name__ == "__main__":
    main()
