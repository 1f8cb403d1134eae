"""Recipes of FP8 with float32 scales: per tensor, from this tensor or from earlier ones, or per block.

Defaults that an environment variable sets are read when this module is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Any

from fp4ref.te.errors import SettingError
from fp4ref.te.recipe_base import (
    Format,
    QParams,
    Recipe,
    RecipeKind,
    flag,
    require_format,
    require_no_attention,
    require_settings,
)


@dataclass(frozen=True)
class MMParams:
    """The accumulation of a matrix product; emulated products always accumulate in float32."""

    use_split_accumulator: bool = True


@dataclass(repr=False)
class Float8CurrentScaling(Recipe):
    """Per-tensor FP8: one scale per tensor, from the tensor itself. Its scales are never moved to another layout.

    Errors: SettingError.

    Rules: TEL-2, TEL-21.
    """

    KIND = RecipeKind.CURRENT
    use_power_2_scales: bool = flag("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES")
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")

    def __post_init__(self) -> None:
        require_settings(self, Format.E4M3, Format.HYBRID)
        scale = QParams(power_2_scale=self.use_power_2_scales)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_weight = self.fp8_quant_bwd_grad = scale


@dataclass(repr=False)
class DelayedScaling(Recipe):
    """Per-tensor FP8 with scales from earlier tensors.

    margin: the scale is divided by 2^margin. fp8_format: E4M3, or HYBRID with E5M2 for gradients. amax_history_len: the
    steps that a history covers. amax_compute_algo: "max", "most_recent", or a function of the history.
    scaling_factor_compute_algo: None, or a function of (amax, scale, largest value, recipe). reduce_amax: the processes
    of a group take the largest of their maxima. interval is not read, nor are the last three, which Megatron passes.

    Errors: SettingError.

    Rules: TEL-2, TEL-44, TEL-45, TEL-46, TEL-47.
    """

    KIND = RecipeKind.DELAYED
    margin: int = 0
    interval: int = -1
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[..., Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")
    override_linear_precision: InitVar[Any] = None
    params_dtype: InitVar[Any] = None
    device: InitVar[Any] = None

    def __post_init__(self, *_ignored: Any) -> None:
        require_format(self, "fp8_format", Format.E4M3, Format.HYBRID)
        require_no_attention(self)
        for bad, got, needed in (
            (self.backward_override is not None, f"backward_override {self.backward_override!r}", "None"),
            (self.amax_history_len < 1, f"amax_history_len {self.amax_history_len}", "at least 1"),
            (
                not callable(self.amax_compute_algo) and self.amax_compute_algo not in {"max", "most_recent"},
                f"amax_compute_algo {self.amax_compute_algo!r}",
                "'max', 'most_recent' or a function",
            ),
        ):
            if bad:
                raise SettingError("DelayedScaling", got, needed, "TEL-46")


@dataclass(repr=False)
class Float8BlockScaling(Recipe):
    """FP8 with one float32 scale per block: 1x128 of activations and gradients, 128x128 of weights.

    use_f32_scales: scales are any float32 number instead of powers of two, which devices of capability 10.0 and above
    do not run. *_block_scaling_dim: 1 for blocks of 1x128, 2 for 128x128. fp8_quant_*: set from use_f32_scales, and may
    be replaced.

    Errors: SettingError.

    Rules: TEL-2, TEL-48.
    """

    KIND = RecipeKind.FP8_BLOCKS
    use_f32_scales: bool = flag("NVTE_FP8_BLOCK_SCALING_FP32_SCALES")
    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = MMParams()
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")

    def __post_init__(self) -> None:
        require_settings(self, Format.E4M3, Format.HYBRID)
        names = ("x_block_scaling_dim", "w_block_scaling_dim", "grad_block_scaling_dim")
        dims = [getattr(self, name) for name in names]
        got = ", ".join(f"{name} {dim}" for name, dim in zip(names, dims, strict=True))
        if not {*dims} <= {1, 2} or dims.count(2) > 1:
            raise SettingError("Float8BlockScaling", got, "1 or 2, and 2 for one of them at most", "TEL-48")
        for name in ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad"):
            if not getattr(self, name).use_split_accumulator:
                raise SettingError("Float8BlockScaling", f"{name} without a split accumulator", "one", "TEL-48")
        scale = QParams(power_2_scale=not self.use_f32_scales)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_weight = self.fp8_quant_bwd_grad = scale
