"""ONNX files as plain nodes, for peers that do not read them: `onnx_torch.py` and `onnx_mxnet.py`.

They are meant for what prestow itself exports: shapes are fixed, and arguments such as the shape of a `Reshape` are
constants. What a translator has no row for is refused by name.
"""

import onnx
from onnx import numpy_helper


class Refused(Exception):
    """A node that a translator has no counterpart for."""


class Node:
    """One node; `constants` are all of the file's, by name."""

    def __init__(self, proto, constants):
        self.kind, self.constants = proto.op_type, constants
        # Inputs that are left out have an empty name.
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self.attributes = {item.name: onnx.helper.get_attribute_value(item) for item in proto.attribute}

    def get(self, name, default=None):
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def input(self, ix):
        """The name of an input, or None where it is left out."""
        return self.inputs[ix] if ix < len(self.inputs) and self.inputs[ix] else None

    def array(self, ix):
        """An input that must be a constant, or None where it is left out."""
        name = self.input(ix)
        if name is None:
            return None
        if name not in self.constants:
            raise self.refused(f"whose input {ix} is no constant")
        return self.constants[name]

    def numbers(self, ix):
        array = self.array(ix)
        return None if array is None else [int(item) for item in array.reshape(-1)]

    def window(self, rank):
        """Strides, dilations and pads (in front, behind) of a convolution or a pool over `rank` dimensions."""
        pads = list(self.get("pads", [0] * 2 * rank))
        strides, dilations = self.get("strides", [1] * rank), self.get("dilations", [1] * rank)
        if self.get("auto_pad", "NOTSET") != "NOTSET":
            raise self.refused("with `auto_pad`")
        return tuple(strides), tuple(dilations), tuple(pads[:rank]), tuple(pads[rank:])

    def refused(self, what=""):
        return Refused(f"`{self.kind}` {what}".strip() + " is not translated")


def read(file):
    """Names of inputs, nodes in order, constants by name, names of outputs."""
    if file is None:
        raise Refused("there is no export of it to translate")
    graph = onnx.load(file).graph
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    inputs = [item.name for item in graph.input if item.name not in constants]
    return inputs, [Node(node, constants) for node in graph.node], constants, [item.name for item in graph.output]
