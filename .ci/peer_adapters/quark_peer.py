"""AMD Quark: the values of its fake quantization, with the element function that it compiles for a CPU."""

import numpy as np
from quark.torch.kernel.hw_emulation.hw_emulation_interface import fake_quantize_mx
from tensors import tensor

TYPES = ("float32", "bfloat16", "float16")
ELEMENTS = {
    "mxfp4": "fp4",
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp8_e4m3": "fp8_e4m3",
    "mxfp8_e5m2": "fp8_e5m2",
}


def _quantizer(element, mode):
    def quantize(x):
        values = fake_quantize_mx(tensor(x), -1, 32, mode, mx_element_dtype=element)
        return {"values": values.float().numpy().astype(np.float32)}

    return quantize


PROFILES = {
    f"quark.{name}_{mode}": _quantizer(element, mode)
    for name, element in ELEMENTS.items()
    for mode in ("even", "floor", "ceil")
}
