"""torchao's MX formats and NVFP4 in eager mode on a CPU."""

import torch
from six_bits import packed
from tensors import as_bytes, tensor
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

TYPES = ("float32", "bfloat16")
ELEMENTS = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp6_e2m3": DTYPE_FP6_E2M3,
    "mxfp6_e3m2": DTYPE_FP6_E3M2,
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
}


def _mx(element, mode):
    def quantize(x):
        scales, data = to_mx(tensor(x), ELEMENTS[element], 32, mode)
        codes = as_bytes(data, len(x))
        return packed(codes) if element.startswith("mxfp6") else codes, as_bytes(scales, len(x))

    return quantize


def _nvfp4(two_levels):
    def quantize(x):
        values = tensor(x)
        scale = per_tensor_amax_to_scale(values.abs().max()) if two_levels else None
        scales, data = nvfp4_quantize(values, 16, scale)
        return as_bytes(data, len(x)), as_bytes(scales, len(x))

    return quantize


PROFILES = {f"torchao.{e}_{mode.value}": _mx(e, mode) for e in ELEMENTS for mode in ScaleCalculationMode}
PROFILES |= {"torchao.nvfp4_2lvl": _nvfp4(True), "torchao.nvfp4_1lvl": _nvfp4(False)}
