"""Exports EfficientNet-Lite0 from PyTorch without optimizing the exported graph, for the tests.

Usage: torch_export.py DATA OUTDIR     (requires torch 2.15.0, efficientnet-lite-pytorch 0.1.0, onnx 1.17.0, onnxruntime 1.31.1;
                                        DATA from `cargo xtask fetch`)

Nothing is folded: shape arithmetic computes the padding of each convolution, and batch normalization is separate. The file
is written without its weights, which are inputs of the graph; the test restores them from the checkpoint under DATA. The
results of ONNX Runtime are written next to it.
"""

import io
import os
import sys

import numpy as np
import onnx
import torch
from efficientnet_lite_pytorch import EfficientNet

from onnxruntime_reference import run, uniform

NAME = "efficientnet_lite0"
CHECKPOINT = "models/efficientnet-lite0-57934424.pth"


def main(data, out):
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=os.path.join(data, CHECKPOINT)).eval()
    x = uniform(7, "input", [1, 3, 224, 224], -1.0, 1.0)
    file = io.BytesIO()
    torch.onnx.export(network, torch.from_numpy(x), file, opset_version=11, do_constant_folding=False, dynamo=False,
                      input_names=["input"], output_names=["scores"])
    model = onnx.load_from_string(file.getvalue())
    scores, = run(model, {"input": x})
    np.save(os.path.join(out, NAME + ".npy"), scores)
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    del model.graph.initializer[:]
    onnx.save(model, os.path.join(out, NAME + ".onnx"))
    with torch.no_grad():
        print(len(model.graph.node), "nodes;", abs(network(torch.from_numpy(x)).numpy() - scores).max(), abs(scores).max())


main(*sys.argv[1:])
