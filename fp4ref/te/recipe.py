"""Recipes: which operand of fprop, dgrad and wgrad is quantized how.

Defaults that an environment variable sets are read when this module is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from fp4ref.errors import DomainError
from fp4ref.te.errors import SettingError

SCOPES = ("none", "weights", "activations", "all")
Factory = TypeVar("Factory", bound=Callable[..., Any])
BACKWARD_OVERRIDES = (None, "high_precision", "dequantized")


def _flag(name: str) -> bool:
    return os.environ.get(name, "0") == "1"


class Range(NamedTuple):
    """Largest magnitudes of the forward and of the backward format."""

    max_fwd: float
    max_bwd: float


class Format(Enum):
    """Element formats of a recipe: forward and backward."""

    E2M1 = Range(6, 6)
    E4M3 = Range(448, 448)
    E5M2 = Range(57344, 57344)
    HYBRID = Range(448, 57344)


@dataclass(frozen=True)
class MMParams:
    """The accumulation of a matrix product; emulated products always accumulate in float32."""

    use_split_accumulator: bool = True


@dataclass(frozen=True)
class QParams:
    """The quantization of one operand."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0
    random_hadamard_transform: bool = False
    stochastic_rounding: bool = False
    fp4_2d_quantization: bool = False

    def __repr__(self) -> str:
        return f"Qparams({', '.join(f'{field.name}={getattr(self, field.name)}' for field in fields(self))})"


class Recipe:
    """The base of all recipes: predicates by kind, on classes and instances."""

    @classmethod
    def nvfp4(cls) -> bool:
        """Return True if this is NVFP4 block scaling."""
        return issubclass(cls, NVFP4BlockScaling)

    @classmethod
    def mxfp8(cls) -> bool:
        """Return True if this is MXFP8 block scaling."""
        return issubclass(cls, MXFP8BlockScaling)

    @classmethod
    def float8_current_scaling(cls) -> bool:
        """Return True if this is per-tensor FP8 with a scale from the tensor itself."""
        return issubclass(cls, Float8CurrentScaling)

    @classmethod
    def float8_per_tensor_scaling(cls) -> bool:
        """Return True if this is FP8 with one scale per tensor."""
        return issubclass(cls, (Float8CurrentScaling, DelayedScaling))

    @classmethod
    def delayed(cls) -> bool:
        """Return True if scales come from earlier tensors."""
        return issubclass(cls, DelayedScaling)

    @classmethod
    def float8_block_scaling(cls) -> bool:
        """Return True if this is FP8 with float32 block scales."""
        return issubclass(cls, Float8BlockScaling)

    @classmethod
    def custom(cls) -> bool:
        """Return True if a factory makes the quantizers."""
        return issubclass(cls, CustomRecipe)

    def __repr__(self) -> str:
        values = []
        for name, value in vars(self).items():
            text = value.name if isinstance(value, Format) else value
            values.append(f"{'format' if name in {'fp4_format', 'fp8_format'} else name}={text}")
        return ", ".join([f"recipe_type={type(self).__name__}", *values])


def _require_backward_override(value: str | None) -> None:
    if value not in BACKWARD_OVERRIDES:
        raise SettingError(
            "recipe", f"backward_override {value!r}", "None, 'high_precision' or 'dequantized'", "TEL-19"
        )


def _require_format(recipe: Recipe, name: str, *allowed: Format) -> None:
    got = getattr(recipe, name)
    if got not in allowed:
        needed = " or ".join(value.name for value in allowed)
        shown = got.name if isinstance(got, Format) else repr(got)
        raise SettingError(type(recipe).__name__, f"{name} {shown}", needed, "TEL-1")


def _require_no_attention(recipe: Any) -> None:
    for name in ("fp8_dpa", "fp8_mha"):
        if getattr(recipe, name):
            raise SettingError(type(recipe).__name__, f"{name}=True", "False: attention is not quantized", "TEL-1")


@dataclass(repr=False)
class NVFP4BlockScaling(Recipe):
    """NVFP4: blocks of 16, weights in 16x16 tiles, Hadamard on both operands of wgrad, gradients rounded at random.

    disable_*: turn one of these off. row_scaled_activation: one amax per row for forward operands that are no weights.
    nvfp4_4over6: which forward operands choose between two block scales ("none", "weights", "activations", "all");
    nvfp4_4over6_e4m3_use_256: which of those reserve room for the larger one; nvfp4_4over6_err_mode: "MAE" or "MSE".
    backward_override: None, "high_precision" or "dequantized".
    fp4_quant_fwd_inp, fp4_quant_fwd_weight, fp4_quant_bwd_grad: set from these, and may be replaced.

    Errors: SettingError.

    Rules: TEL-1, TEL-17, TEL-19.
    """

    disable_rht: bool = _flag("NVTE_NVFP4_DISABLE_RHT")
    disable_stochastic_rounding: bool = _flag("NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING")
    disable_2d_quantization: bool = _flag("NVTE_NVFP4_DISABLE_2D_QUANTIZATION")
    row_scaled_activation: bool = _flag("NVTE_NVFP4_ROW_SCALED_ACTIVATION")
    nvfp4_4over6: str = os.environ.get("NVTE_NVFP4_4OVER6", "none")
    nvfp4_4over6_e4m3_use_256: str = os.environ.get("NVTE_NVFP4_4OVER6_E4M3_USE_256", "all")
    nvfp4_4over6_err_mode: str = os.environ.get("NVTE_NVFP4_4OVER6_ERR_MODE", "MAE")
    fp4_format: Format = Format.E2M1
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")

    def __post_init__(self) -> None:
        _require_format(self, "fp4_format", Format.E2M1)
        _require_format(self, "fp8_format", Format.E4M3)
        _require_no_attention(self)
        _require_backward_override(self.backward_override)
        self.nvfp4_4over6_err_mode = self.nvfp4_4over6_err_mode.upper()
        for name, allowed, rule in (
            ("nvfp4_4over6", SCOPES, "TEL-17"),
            ("nvfp4_4over6_e4m3_use_256", SCOPES, "TEL-17"),
            ("nvfp4_4over6_err_mode", ("MAE", "MSE"), "FOS-5"),
        ):
            if getattr(self, name) not in allowed:
                got = f"{name} {getattr(self, name)!r}"
                raise SettingError("NVFP4BlockScaling", got, f"one of {', '.join(allowed)}", rule)
        rht = not self.disable_rht
        self.fp4_quant_fwd_inp = QParams(random_hadamard_transform=rht)
        self.fp4_quant_fwd_weight = QParams(fp4_2d_quantization=not self.disable_2d_quantization)
        self.fp4_quant_bwd_grad = QParams(
            random_hadamard_transform=rht, stochastic_rounding=not self.disable_stochastic_rounding
        )

    def uses_4over6(self, operand: str) -> bool:
        """Return True if a forward operand, "weight" or another, chooses between two block scales. Rules: TEL-17."""
        return self.nvfp4_4over6 in {"all", "weights" if operand == "weight" else "activations"}

    def e4m3_max(self, operand: str) -> int:
        """Return the block scale of a forward operand's global maximum, 448 or 256. Rules: TEL-17."""
        scope = self.nvfp4_4over6_e4m3_use_256
        reserved = scope in {"all", "weights" if operand == "weight" else "activations"}
        return 256 if self.uses_4over6(operand) and reserved else 448


@dataclass(repr=False)
class MXFP8BlockScaling(Recipe):
    """MXFP8: blocks of 32 with power-of-two scales.

    fp8_format: E4M3, or HYBRID with E5M2 for gradients. enable_2d_quantization: weights of linear layers in 32x32
    tiles. margin is not used by block scaling.

    Errors: SettingError.

    Rules: TEL-2, TEL-20.
    """

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")
    enable_2d_quantization: bool = False

    def __post_init__(self) -> None:
        _require_format(self, "fp8_format", Format.E4M3, Format.HYBRID)
        _require_no_attention(self)
        _require_backward_override(self.backward_override)


@dataclass(repr=False)
class Float8CurrentScaling(Recipe):
    """Per-tensor FP8: one scale per tensor, from the tensor itself. Its scales are never moved to another layout.

    Errors: SettingError.

    Rules: TEL-2, TEL-21.
    """

    use_power_2_scales: bool = _flag("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES")
    fp8_format: Format = Format.HYBRID
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")

    def __post_init__(self) -> None:
        _require_format(self, "fp8_format", Format.E4M3, Format.HYBRID)
        _require_no_attention(self)
        _require_backward_override(self.backward_override)
        scale = QParams(power_2_scale=self.use_power_2_scales)
        self.fp8_quant_fwd_inp = self.fp8_quant_fwd_weight = self.fp8_quant_bwd_grad = scale


@dataclass(repr=False)
class CustomRecipe(Recipe):
    """A factory makes the quantizer of each tensor: `qfactory(role)`, None for a tensor that is not quantized.

    The role is None for a tensor whose consumer is unknown: the output, and the gradient of the input. fp8_format:
    read by scripts, does not choose anything. quantization_alignment: groups are padded to multiples of this many
    rows. qfactory_key, policy_key: names of what the factory does, taken from the factory if it has them; nothing here
    reads them.

    Rules: TEL-2.
    """

    qfactory: Callable[..., Any]
    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: str | None = os.environ.get("NVTE_BACKWARD_OVERRIDE")
    quantization_alignment: int = 128
    qfactory_key: Any = None
    policy_key: Any = None

    def __post_init__(self) -> None:
        self.qfactory_key = self.qfactory_key or getattr(self.qfactory, "qfactory_key", None)
        self.policy_key = self.policy_key or getattr(self.qfactory, "policy_key", None)
        if not callable(self.qfactory):
            raise DomainError("CustomRecipe", f"qfactory {self.qfactory!r}", "a function of a tensor's role", "TEL-2")
        if self.quantization_alignment <= 0:
            raise SettingError("CustomRecipe", f"quantization_alignment {self.quantization_alignment}", "more than 0")
        _require_backward_override(self.backward_override)


@dataclass(repr=False)
class DelayedScaling(Recipe):
    """Per-tensor FP8 with scales from earlier tensors.

    margin: the scale is divided by 2^margin. fp8_format: E4M3, or HYBRID with E5M2 for gradients. amax_history_len: the
    steps that a history covers. amax_compute_algo: "max", "most_recent", or a function of the history.
    scaling_factor_compute_algo: None, or a function of (amax, scale, largest value, recipe). reduce_amax: the processes
    of a group take the largest of their maxima. interval is not read.

    Errors: SettingError.

    Rules: TEL-2, TEL-44, TEL-45, TEL-46, TEL-47.
    """

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

    def __post_init__(self) -> None:
        _require_format(self, "fp8_format", Format.E4M3, Format.HYBRID)
        _require_no_attention(self)
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

    use_f32_scales: bool = _flag("NVTE_FP8_BLOCK_SCALING_FP32_SCALES")
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
        _require_format(self, "fp8_format", Format.E4M3, Format.HYBRID)
        _require_no_attention(self)
        _require_backward_override(self.backward_override)
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


def quantizer_factory(key: Hashable) -> Callable[[Factory], Factory]:
    """Return a decorator that names what a factory of quantizers does, as its attribute `qfactory_key`."""
    return _labelled("quantizer_factory", "qfactory_key", key)


def quantizer_policy(key: Hashable) -> Callable[[Factory], Factory]:
    """Return a decorator that names what a factory of quantizers does, as its attribute `policy_key`."""
    return _labelled("quantizer_policy", "policy_key", key)


def _labelled(decorator: str, attribute: str, key: Hashable) -> Callable[[Factory], Factory]:
    if not isinstance(key, Hashable):
        raise TypeError(f"{decorator} key must be hashable, got {key!r}")

    def label(factory: Factory) -> Factory:
        setattr(factory, attribute, key)
        return factory

    return label
