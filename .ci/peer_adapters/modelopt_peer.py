"""NVIDIA's Model Optimizer: its packed tensors."""

import torch
from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from tensors import as_bytes, tensor

TYPES = ("float32", "bfloat16", "float16")


def _nvfp4(x):
    made, scales, _ = NVFP4QTensor.quantize(tensor(x), 16)
    return as_bytes(made._quantized_data, len(x)), as_bytes(scales.to(torch.float8_e4m3fn), len(x))


def _mxfp4(x):
    made, scales = MXFP4QTensor.quantize(tensor(x), 32)
    return as_bytes(made._quantized_data, len(x)), as_bytes(scales, len(x))


def _mxfp8(x):
    made, scales = MXFP8QTensor.quantize(tensor(x))
    return as_bytes(made._quantized_data, len(x)), as_bytes(scales, len(x))


PROFILES = {"modelopt.nvfp4": _nvfp4, "modelopt.mxfp4": _mxfp4, "modelopt.mxfp8": _mxfp8}
