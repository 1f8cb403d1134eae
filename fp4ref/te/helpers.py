"""Small functions that scripts import beside the rest of the emulated library."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.capability import get_device_compute_capability
from fp4ref.te.errors import TensorShapeError

__all__ = [
    "SplitAlongDim",
    "assert_dim_for_fp8_exec",
    "attention_mask_func",
    "cast_if_needed",
    "check_dim_for_fp8_exec",
    "check_set_window_size",
    "clear_tensor_data",
    "divide",
    "get_cublasLt_version",
    "get_cudnn_version",
    "get_default_init_method",
    "get_device_compute_capability",
    "get_nvtx_range_context",
    "gpu_autocast_ctx",
    "init_method_constant",
    "init_method_normal",
    "is_bf16_available",
    "is_bf16_compatible",
    "is_non_tn_fp8_gemm_supported",
    "make_weak_ref",
    "nvtx_range_pop",
    "nvtx_range_push",
    "requires_grad",
    "round_up_to_nearest_multiple",
    "scaled_init_method_normal",
    "torch_version",
]
gpu_autocast_ctx = partial(torch.autocast, device_type="cuda" if torch.cuda.is_available() else "cpu")
CUBLASLT_VERSION = 130600  # the first whose block-scaled products know every layout on every device


def torch_version() -> tuple[int, ...]:
    """Return the version of torch, as numbers."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:3] if part.isdigit())


def get_cublasLt_version() -> int:  # noqa: N802 - a public name
    """Return the version of the matrix library whose features are emulated."""
    return CUBLASLT_VERSION


def get_cudnn_version() -> tuple[int, int, int]:
    """No version: nothing is computed by that library."""
    return (0, 0, 0)


def is_bf16_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Return True: bfloat16 is computed everywhere; with an empty reason."""
    return (True, "") if return_reason else True


def is_bf16_compatible() -> bool:
    """Return True: bfloat16 is computed everywhere."""
    return True


def is_non_tn_fp8_gemm_supported() -> bool:
    """Return True if the emulated device multiplies per-tensor FP8 in every layout, so that no transpose is kept."""
    return get_device_compute_capability() >= (10, 0)


def round_up_to_nearest_multiple(value: int, multiple: int) -> int:
    """Return the least multiple that is not less than value."""
    return -(-value // multiple) * multiple


def divide(numerator: int, denominator: int) -> int:
    """numerator / denominator, exactly; TensorShapeError otherwise."""
    if numerator % denominator:
        raise TensorShapeError("divide", f"{numerator} by {denominator}", f"a multiple of {denominator}")
    return numerator // denominator


def check_dim_for_fp8_exec(tensor: Tensor) -> bool:
    """Return True if the rows of a tensor are a multiple of 8, and its columns of 16."""
    return not (tensor.shape[:-1].numel() % 8 or tensor.shape[-1] % 16)


def assert_dim_for_fp8_exec(*tensors: Tensor) -> None:
    """Raise TensorShapeError, which is an AssertionError, for a tensor that `check_dim_for_fp8_exec` is False of."""
    for tensor in tensors:
        if not check_dim_for_fp8_exec(tensor):
            got = f"shape {list(tensor.shape)}"
            raise TensorShapeError("FP8 execution", got, "rows divisible by 8 and columns by 16")


def cast_if_needed(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the tensor in a type, itself if it has that already."""
    return None if tensor is None else tensor.to(dtype)


def requires_grad(*tensors: Tensor | None) -> bool:
    """Return True if any of these needs a gradient."""
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


class SplitAlongDim:
    """torch.split by the name and arguments of the emulated library's autograd function."""

    @staticmethod
    def apply(tensor: Tensor, dim: int, sizes: int | Iterable[int], squeeze: bool = False) -> tuple[Tensor, ...]:
        """Return the parts along a dimension, without it if asked for."""
        parts = torch.split(tensor, sizes if isinstance(sizes, int) else list(sizes), dim)
        return tuple(part.squeeze(dim) for part in parts) if squeeze else tuple(parts)


def make_weak_ref(x: Any) -> Any:
    """Return x itself: memory is freed by torch, not by a graph's owner."""
    return x


def clear_tensor_data(*tensors: Any) -> None:
    """Free the memory of tensors and of quantized tensors; None is passed over."""
    for tensor in tensors:
        if hasattr(tensor, "clear"):
            tensor.clear()
        elif tensor is not None:
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def get_nvtx_range_context(msg: str) -> AbstractContextManager[None]:
    """Return a context that records nothing."""
    return nullcontext()


def nvtx_range_push(msg: str) -> None:
    """Record nothing."""


def nvtx_range_pop(msg: str | None = None) -> None:
    """Record nothing."""


def init_method_normal(sigma: float) -> Callable[[Tensor], Tensor]:
    """Return a function that fills a tensor by N(0, sigma)."""
    return partial(torch.nn.init.normal_, mean=0.0, std=sigma)


def scaled_init_method_normal(sigma: float, num_layers: int) -> Callable[[Tensor], Tensor]:
    """Return a function that fills a tensor by N(0, sigma / sqrt(2 num_layers))."""
    return partial(torch.nn.init.normal_, mean=0.0, std=sigma / (2.0 * num_layers) ** 0.5)


def init_method_constant(val: float) -> Callable[[Tensor], Tensor]:
    """Return a function that fills a tensor with one value."""
    return partial(torch.nn.init.constant_, val=val)


def get_default_init_method() -> Callable[[Tensor], Tensor]:
    """Return the default initialization of weights."""
    return init_method_normal(0.023)


def attention_mask_func(attention_scores: Tensor, attention_mask: Tensor) -> Tensor:
    """Return scores with -10000 in the places that are masked, in their own memory."""
    return attention_scores.masked_fill_(attention_mask, -10000.0)


def check_set_window_size(attn_mask_type: str, window_size: Iterable[int] | None = None) -> tuple[int, int]:
    """Return the sliding window (left, right) of a mask: -1 is unlimited; a causal mask sees nothing to the right.

    (-1, -1) and (-1, 0) both mean no window, of either kind of mask.

    Errors: TensorShapeError for a window that the mask does not have.
    """
    causal = "causal" in attn_mask_type
    unlimited = (-1, 0) if causal else (-1, -1)
    left, right = unlimited if window_size is None else tuple(window_size)
    if (left, right) in {(-1, -1), (-1, 0)}:
        return unlimited
    if left < 0 or right < 0:
        got = f"window_size {(left, right)} with mask {attn_mask_type}"
        raise TensorShapeError("check_set_window_size", got, "two sizes of at least 0, or -1 for no limit")
    return (left, 0) if causal else (left, right)
