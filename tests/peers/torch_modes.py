"""Records files that PyTorch exports in training mode, and the results of their networks in inference mode, for the tests.

Usage: torch_modes.py OUTDIR     (requires torch 2.15.0, onnx 1.23.2, numpy)

`modes_OPSET.onnx` is of the older exporter, `modes_dynamo.onnx` of the newer one, which writes batch normalization in inference
mode. `modes.npz` has an input `x`, and for each file the result of the network with the statistics of the file.
"""

import copy
import sys

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.norm(self.conv(x))).mean((2, 3))))


def main(folder):
    torch.manual_seed(0)
    network = Network()
    network.norm.running_mean.normal_()
    network.norm.running_var.uniform_(0.5, 2)
    x = torch.randn(3, 2, 5, 5)
    results = {"x": x.numpy()}
    for kind in [9, 11, 12, 14, 17, "dynamo"]:
        path = f"{folder}/modes_{kind}.onnx"
        exported = copy.deepcopy(network).train()
        if kind == "dynamo":
            torch.onnx.export(exported, (x,), path, dynamo=True, optimize=False, opset_version=18, external_data=False)
        else:
            mode = torch.onnx.TrainingMode.TRAINING
            options = {"do_constant_folding": False, "dynamo": False, "input_names": ["x"]}
            torch.onnx.export(exported, (x,), path, opset_version=kind, training=mode, **options)
        model = onnx.load(path)
        for node in model.graph.node:
            node.doc_string = ""
            del node.metadata_props[:]
        onnx.save(model, path)
        # Tracing moves the running statistics.
        inference = copy.deepcopy(network).eval()
        tensors = {item.name: torch.tensor(numpy_helper.to_array(item)) for item in model.graph.initializer}
        inference.load_state_dict({name: tensors.get(name, old) for name, old in inference.state_dict().items()})
        with torch.no_grad():
            results[f"modes_{kind}"] = inference(x).numpy()
    np.savez(f"{folder}/modes.npz", **results)


main(sys.argv[1])
