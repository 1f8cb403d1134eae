"""Weights as operands, quantized and kept over microbatches, and what stands for a gradient that is added elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fp4ref.te.availability import check_nvfp4_support
from fp4ref.te.errors import SettingError
from fp4ref.te.module.device import default_device
from fp4ref.te.mxfp8_quantizer import MXFP8Quantizer
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.tensor import QuantizedTensor

_2X_ACC_FPROP, _2X_ACC_DGRAD, _2X_ACC_WGRAD = False, True, True  # read by callers; every product adds in float32
_PLACEHOLDERS: dict[tuple[tuple[int, ...], torch.dtype, torch.device], torch.Tensor] = {}


def parameters_of(module: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Return the parameters by name; those of a module without others, the usual one, in a tenth of the time."""
    if module._modules:
        return module.named_parameters()
    return [(name, each) for name, each in module._parameters.items() if each is not None]


def quantize_weight(
    *,
    tensor: torch.Tensor | None = None,
    quantizer: Any = None,
    workspace: Any = None,
    update_workspace: bool = True,
    skip_update_flag: torch.Tensor | None = None,
    fsdp_group: Any = None,
    workspace_dtype: torch.dtype | None = None,
    cache: bool = False,
) -> tuple[Any, Any]:
    """Return a quantized weight, and the workspace that is to be kept for the next call, None if nothing new is.

    tensor: the weight; a packed one is its own result. workspace: what an earlier call returned to be kept. It is
    quantized into again if update_workspace, with every address unchanged, unless skip_update_flag [1] holds 1; one
    that lacks a direction which the quantizer is asked for, or has another type than workspace_dtype, is not used.

    Errors: SettingError without what is needed to make one.

    Rules: TEM-3, TEM-17, TEM-18, TEM-20, TEM-44.
    """
    if isinstance(tensor, QuantizedTensor):
        _require_usages(tensor, quantizer)
        return tensor, None
    if workspace is not None and quantizer is not None and not _fits(workspace, quantizer, workspace_dtype):
        workspace = None
    if tensor is None or quantizer is None:
        if workspace is None or update_workspace:
            raise SettingError("get_weight_workspace", "no tensor or no quantizer", "both, to quantize a weight")
        return workspace, None
    if workspace is None:
        made = quantizer.quantize(tensor, dtype=workspace_dtype)
        return made, made if cache else None
    if update_workspace or skip_update_flag is not None:
        _update(workspace, tensor, quantizer, skip_update_flag)
    return workspace, None


def _fits(quantized: Any, quantizer: Any, dtype: torch.dtype | None) -> bool:
    held = quantized.directions()
    usages = ("row" in held or not quantizer.rowwise_usage) and ("column" in held or not quantizer.columnwise_usage)
    return usages and dtype in {None, quantized.dtype}


def _require_usages(quantized: Any, quantizer: Any) -> None:
    if quantizer is not None:
        quantized.update_usage(
            rowwise_usage=True if quantizer.rowwise_usage else None,
            columnwise_usage=True if quantizer.columnwise_usage else None,
        )


def _update(cached: Any, tensor: torch.Tensor, quantizer: Any, skip_update_flag: torch.Tensor | None) -> None:
    """Quantize into the buffers that are there, all of them, so that none is freed."""
    held = cached.directions()
    quantizer.set_usage(rowwise="row" in held, columnwise="column" in held)
    quantizer.update_quantized(tensor.to(cached.dtype), cached, noop_flag=skip_update_flag)


def get_dummy_wgrad(
    shape: Sequence[int], dtype: torch.dtype, zero: bool = False, device: torch.device | None = None
) -> torch.Tensor:
    """Return the placeholder of a weight's gradient that was added elsewhere: one per shape, type and device.

    zero: fill it with zeros, whatever was added to it since.
    """
    key = tuple(shape), dtype, device or default_device(None)
    placeholder = _PLACEHOLDERS.get(key)
    if placeholder is None:
        placeholder = _PLACEHOLDERS[key] = torch.zeros(key[0], dtype=dtype, device=key[2])
    if zero:
        placeholder.zero_()
    return placeholder.detach()


def placeholder_for(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the placeholder gradient of a parameter whose `main_grad` has it already, if its owner asks for one."""
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    zero = getattr(parameter, "zero_out_wgrad", False)
    return get_dummy_wgrad(parameter.shape, parameter.dtype, zero, parameter.device)


def get_workspace() -> torch.Tensor:
    """Return memory for a matrix library that needs some; none of ours does."""
    return torch.empty(0, dtype=torch.uint8, device=default_device(None))


def get_multi_stream_cublas_workspace() -> list[torch.Tensor]:
    """Return the same, per stream."""
    return [get_workspace()]


def enable_weight_preswizzle(quantizer: Any, weight: torch.Tensor) -> bool:
    """Return True if quantizing a weight writes its scales in the GEMM layout right away.

    MXFP8: always. NVFP4: where the kernel can, so that a cached weight's buffers never move: 16x16 tiles at multiples
    of 128, Hadamard at multiples of 64 and 128. Never for packed parameters, which others read in the compact layout.
    """
    blocks = isinstance(quantizer, MXFP8Quantizer)
    if not (blocks or isinstance(quantizer, NVFP4Quantizer)) or isinstance(weight, QuantizedTensor):
        return False
    if not check_nvfp4_support()[0]:
        return False
    if blocks:
        return True
    rows, columns = weight.shape[0], weight.shape[-1]
    if quantizer.with_rht:
        return rows % 64 == 0 and columns % 128 == 0
    plain = quantizer.row_scaled_nvfp4 or quantizer.nvfp4_use_4over6 or not quantizer.with_2d_quantization
    return not plain and rows % 128 == 0 and columns % 128 == 0
