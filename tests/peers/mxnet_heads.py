"""Records MXNet's gradients of its losses with all of their parameters, for `crates/passes/tests/it/training.rs`.

    python tests/peers/mxnet_heads.py FILE.json

Requires mxnet==1.9.1 and numpy<1.24; `cargo xtask fetch --with-mxnet` creates an environment with both. A row has the
operator, its attributes, the shape and the elements of data and labels, and the gradient of the data.
"""

import itertools
import json
import sys

import mxnet as mx
import numpy as np


def softmax_rows(random):
    """`SoftmaxOutput` in its forms: a matrix, each row of a tensor, each position of channels."""
    forms = [({}, (3, 4), (3,)), ({"preserve_shape": True}, (2, 3, 4), (2, 3))]
    forms += [({"multi_output": True}, (2, 4, 3), (2, 3)), ({"multi_output": True}, (3, 4), (3,))]
    for (form, data, label), mean, ignored, spread in itertools.product(
        forms, ["null", "batch", "valid"], [None, 1, -1], [0.0, 0.2]
    ):
        classes = data[1] if "multi_output" in form else data[-1] if "preserve_shape" in form else int(np.prod(data[1:]))
        labels = random.randint(0, classes, label).astype("float32")
        attributes = {**form, "normalization": mean, "smooth_alpha": spread, "grad_scale": 0.5 if spread else 1.0}
        if ignored is not None:
            labels.reshape(-1)[0] = ignored
            attributes.update(use_ignore=True, ignore_label=ignored)
        yield "SoftmaxOutput", attributes, random.randn(*data), labels


def other_rows(random):
    for op, scale, shape in itertools.product(
        ["LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"], [1.0, 0.3], [(3, 1), (2, 3, 2)]
    ):
        yield op, {"grad_scale": scale}, random.randn(*shape), random.rand(*shape)
    for linear, (margin, factor) in itertools.product([False, True], [(1.0, 1.0), (0.5, 0.2)]):
        attributes = {"margin": margin, "regularization_coefficient": factor, "use_linear": linear}
        yield "SVMOutput", attributes, random.randn(3, 4), random.randint(0, 4, 3)
    for mean, scale, threshold in itertools.product(["null", "batch", "valid"], [1.0, 0.4], [0.0, 0.5]):
        attributes = {"normalization": mean, "grad_scale": scale, "valid_thresh": threshold}
        yield "MakeLoss", attributes, random.randn(3, 4), None


def main():
    random, rows = np.random.RandomState(5), []
    for op, attributes, data, label in itertools.chain(softmax_rows(random), other_rows(random)):
        x = mx.nd.array(data)
        x.attach_grad()
        operands = [x] if label is None else [x, mx.nd.array(label)]
        with mx.autograd.record():
            y = getattr(mx.nd, op)(*operands, **attributes)
        y.backward()
        row = {"op": op, "attrs": {key: str(value) for key, value in attributes.items()}}
        row.update(shape=list(data.shape), data=[float(np.float32(item)) for item in data.reshape(-1)])
        row["label"] = None if label is None else [float(np.float32(item)) for item in label.reshape(-1)]
        row["gradient"] = [float(item) for item in x.grad.asnumpy().reshape(-1)]
        rows.append(row)
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print(len(rows), "rows")


main()
