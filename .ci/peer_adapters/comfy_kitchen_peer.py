"""comfy-kitchen's eager backend; it packs the even column into the high nibble and tiles the scales."""

import torch
from comfy_kitchen.backends.eager.quantization import quantize_mxfp8, quantize_nvfp4
from comfy_kitchen.float_utils import from_blocked, swap_nibbles
from tensors import as_bytes, tensor

TYPES = ("float32", "bfloat16", "float16")


def _linear(scales, rows, columns):
    return as_bytes(from_blocked(scales.view(torch.uint8), rows, columns), rows)


def _nvfp4(x):
    values = tensor(x)
    of_tensor = torch.amax(values.abs()) / (448.0 * 6.0)  # as its class of this layout
    data, scales = quantize_nvfp4(values, of_tensor.to(torch.float32))
    return as_bytes(swap_nibbles(data), len(x)), _linear(scales, len(x), x.shape[1] // 16)


def _mxfp8(x):
    data, scales = quantize_mxfp8(tensor(x))
    return as_bytes(data, len(x)), _linear(scales, len(x), x.shape[1] // 32)


PROFILES = {"comfy_kitchen.nvfp4": _nvfp4, "comfy_kitchen.mxfp8": _mxfp8}
