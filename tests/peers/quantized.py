"""Makes tests/data/onnxruntime/quantized_*: a small network quantized by ONNX Runtime, and its results.

    cargo xtask export tests/data/mxnet/mini_resnet_v1-symbol.json \\
        --params tests/data/mxnet/mini_resnet_v1-0000.params --shape data=2x3x64x64 -o mini.onnx
    python tests/peers/quantized.py mini.onnx        # onnxruntime 1.31.1, onnx
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

DATA = Path(__file__).parent.parent / "data"
PICTURES = np.load(DATA / "mxnet/mini_resnet_v1_input.npy")[:2]


class Pictures(CalibrationDataReader):
    def __init__(self):
        self.left = iter([{"data": PICTURES}])

    def get_next(self):
        return next(self.left, None)


def main(path):
    plain = Path(path).with_suffix(".plain.onnx")
    quant_pre_process(path, plain, skip_symbolic_shape=True)
    byte, signed = QuantType.QUInt8, QuantType.QInt8
    targets = {
        "u8": dict(per_channel=True, activation_type=byte, weight_type=signed),
        "i8": dict(activation_type=signed, weight_type=signed),
        "operators": dict(
            quant_format=QuantFormat.QOperator, per_channel=True, activation_type=byte, weight_type=signed
        ),
    }
    for name, options in targets.items():
        quantize_static(plain, DATA / f"onnxruntime/quantized_{name}.onnx", Pictures(), **options)
    quantize_dynamic(plain, DATA / "onnxruntime/quantized_dynamic.onnx", weight_type=byte)
    for name in [*targets, "dynamic"]:
        model = DATA / f"onnxruntime/quantized_{name}.onnx"
        [result] = onnxruntime.InferenceSession(model).run(None, {"data": PICTURES})
        np.save(model.with_suffix(".npy"), result)


if __name__ == "__main__":
    main(sys.argv[1])
