"""microxcaling: the values of quantized tensors, from its PyTorch code without the extension.

Its name on PyPI is not registered, so that it needs a folder: a checkout of its repository.
"""

import numpy as np
from mx.mx_ops import _quantize_mx
from tensors import tensor

TYPES = ("float32", "bfloat16")
ELEMENTS = {
    "mxfp4": "fp4_e2m1",
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp8_e4m3": "fp8_e4m3",
    "mxfp8_e5m2": "fp8_e5m2",
    "mxint8": "int8",
}


def _quantizer(element, rounding):
    def quantize(x):
        values = _quantize_mx(tensor(x), 8, element, axes=[-1], block_size=32, round=rounding)
        return {"values": values.float().numpy().astype(np.float32)}

    return quantize


PROFILES = {
    f"microxcaling.{name}_{rounding}": _quantizer(element, rounding)
    for name, element in ELEMENTS.items()
    for rounding in ("nearest", "even", "floor")
}
