#!/usr/bin/env python3
"""Networks of the Gluon model zoo as symbols with random parameters, an input and the output of MXNet.

Requires mxnet==1.9.1 and numpy<1.24; `cargo xtask fetch --with-mxnet` creates an environment with both.
Usage: mxnet_reference.py FOLDER NETWORK... Writes NETWORK-symbol.json, NETWORK-0000.params, NETWORK.params (as
`save_parameters` does), NETWORK_input.npy and NETWORK_output.npy. Running statistics
and scales are random too: initial ones would hide errors.
"""

import sys

import mxnet as mx
import numpy as np
from mxnet.gluon.model_zoo import vision


def main() -> None:
    folder, names = sys.argv[1], sys.argv[2:]
    for name in names:
        mx.random.seed(7)
        random = np.random.RandomState(7)
        net = vision.get_model(name, pretrained=False)
        net.initialize(mx.init.MSRAPrelu())
        net.hybridize()
        side = 299 if name == "inceptionv3" else 224
        x = mx.nd.array(random.uniform(-1, 1, (1, 3, side, side)).astype("float32"))
        net(x)
        for key, parameter in net.collect_params().items():
            ranges = {"gamma": (0.7, 1.2), "beta": (-0.05, 0.05), "running_mean": (-0.05, 0.05), "running_var": (0.5, 1.5)}
            for kind, (low, high) in ranges.items():
                if key.endswith(kind):
                    parameter.set_data(mx.nd.array(random.uniform(low, high, parameter.shape)))
        y = net(x)
        net.export(f"{folder}/{name}")
        net.save_parameters(f"{folder}/{name}.params")
        np.save(f"{folder}/{name}_input.npy", x.asnumpy())
        np.save(f"{folder}/{name}_output.npy", y.asnumpy())
        print(name, y.shape, flush=True)


main()
