"""Element types by the names that scripts use."""

from __future__ import annotations

from enum import IntEnum

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # that tensors have, and values of quantized ones


class DType(IntEnum):
    """Element types of quantized and ordinary tensors."""

    kByte = 0  # noqa: N815 - a public name
    kInt16 = 1  # noqa: N815
    kInt32 = 2  # noqa: N815
    kInt64 = 3  # noqa: N815
    kFloat32 = 4  # noqa: N815
    kFloat16 = 5  # noqa: N815
    kBFloat16 = 6  # noqa: N815
    kFloat8E4M3 = 7  # noqa: N815
    kFloat8E5M2 = 8  # noqa: N815
    kFloat8E8M0 = 9  # noqa: N815
    kFloat4E2M1 = 10  # noqa: N815


class FP8FwdTensors(IntEnum):
    """Places of a module's forward quantizers."""

    GEMM1_INPUT = 0
    GEMM1_WEIGHT = 1
    GEMM1_OUTPUT = 2
    GEMM2_INPUT = 3
    GEMM2_WEIGHT = 4
    GEMM2_OUTPUT = 5
    GEMM3_INPUT = 6
    GEMM3_WEIGHT = 7
    GEMM3_OUTPUT = 8


class FP8BwdTensors(IntEnum):
    """Places of a module's backward quantizers."""

    GRAD_OUTPUT1 = 0
    GRAD_INPUT1 = 1
    GRAD_OUTPUT2 = 2
    GRAD_INPUT2 = 3
    GRAD_OUTPUT3 = 4
    GRAD_INPUT3 = 5


FP8FwdTensorIdx, FP8BwdTensorIdx = FP8FwdTensors, FP8BwdTensors

TE_DType: dict[torch.dtype, DType] = {
    torch.uint8: DType.kByte,
    torch.int16: DType.kInt16,
    torch.int32: DType.kInt32,
    torch.int64: DType.kInt64,
    torch.float32: DType.kFloat32,
    torch.float16: DType.kFloat16,
    torch.bfloat16: DType.kBFloat16,
    torch.float8_e4m3fn: DType.kFloat8E4M3,
    torch.float8_e5m2: DType.kFloat8E5M2,
}
TE_DType_To_Torch: dict[DType, torch.dtype] = {name: kind for kind, name in TE_DType.items()}

NVFP4_BLOCK_SCALING_SIZE = 16
MXFP8_BLOCK_SCALING_SIZE = 32
GemmParallelModes = ("row", "column", None)


def torch_dtype(dtype: DType | torch.dtype) -> torch.dtype:
    """Return the torch type of either kind of name."""
    return dtype if isinstance(dtype, torch.dtype) else TE_DType_To_Torch[DType(dtype)]


def dtype_name(dtype: torch.dtype) -> str:
    """Return NumPy's name of a torch type, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")
