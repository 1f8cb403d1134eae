"""States of Adam in other bits than float32: of a type of torch, or of a specification.

Nothing is listed: a type is asked how far its numbers reach and how fine they are, a specification is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import fp4ref
from fp4ref.errors import Fp4Error
from fp4ref.spec import Spec
from fp4ref.te.dtypes import DType
from fp4ref.te.errors import SettingError
from fp4ref.te.float8_quantizer import Float8Quantizer

WIDE = torch.float32
FP8_LARGEST = 448.0


@dataclass(frozen=True)
class StateType:
    """A way to keep a state: `keep` takes float32 values and their scale, if there is one; `read` returns float32.

    largest: what the largest magnitude of the tensor is scaled to; None without a scale. kept_beside: what is read has
    to be multiplied by the scale, which the state does not contain.
    """

    keep: Callable[[Tensor, Tensor | None], Any]
    read: Callable[[Any], Tensor]
    largest: float | None = None
    kept_beside: bool = False

    def scale_of(self, values: Tensor) -> Tensor | None:
        """Return the scale of values, float32 [1]; 0 for none."""
        if self.largest is None:
            return None
        found = values.abs().amax() if values.numel() else values.new_zeros(())
        return found.to(WIDE).reshape(1) / self.largest


def state_type(option: str, given: Any, master: bool) -> StateType:
    """Return how a state is kept by a type of torch, or by a specification or its name; uint8 is FP8, E4M3.

    master: values of parameters, which need steps finer than those of bfloat16.

    Errors: SettingError for what does not hold such values.
    """
    if isinstance(given, torch.dtype):
        if given is torch.uint8 and not master:
            return StateType(_fp8, lambda state: state.float(), FP8_LARGEST)
        why = _unfit(given, master)
    elif master:
        why = "a floating-point type for master values"
    else:
        try:
            return _by_specification(given)
        except (Fp4Error, TypeError) as error:
            raise SettingError("FusedAdam", f"{option}={given}", f"a type or a specification ({error})") from error
    if why:
        raise SettingError("FusedAdam", f"{option}={given}", why)
    return _by_type(given)


def _unfit(kind: torch.dtype, master: bool) -> str:
    """Return the reason why a type of torch cannot hold a state, as what it lacks; empty if it can."""
    try:
        limits = torch.finfo(kind)
        signed, finer = limits.min < 0, limits.eps < torch.finfo(torch.bfloat16).eps
        rounds = kind.is_floating_point and torch.zeros(1).to(kind).float().numel() == 1
    except (TypeError, RuntimeError):  # no limits; no limits yet, or no conversion
        rounds = False
    if not rounds:
        return "a type to which torch rounds, or uint8 for FP8"
    if not signed or limits.bits > torch.finfo(WIDE).bits:
        return "numbers of both signs in at most 32 bits"
    return "steps finer than those of bfloat16" if master and not finer else ""


def _by_type(kind: torch.dtype) -> StateType:
    """Return a floating-point type, without a scale if it reaches as far as float32."""
    if kind is WIDE:
        return StateType(lambda values, _: values, lambda state: state)
    largest = torch.finfo(kind).max
    if largest >= 2.0**127:
        return StateType(lambda values, _: values.to(kind), lambda state: state.float())
    return StateType(lambda v, scale: (v * _inverse(scale)).to(kind), lambda state: state.float(), largest / 2, True)


def _by_specification(given: Spec | str) -> StateType:
    """Return a registered specification, which has scales of its own; one row of zeros is tried."""

    def keep(values: Tensor, _: Tensor | None) -> Any:
        return fp4ref.quantize(values.reshape(values.shape or (1,)), given)

    kept = StateType(keep, lambda state: fp4ref.dequantize(state, "float32"))
    kept.read(kept.keep(torch.zeros(1, 1), None))
    return kept


def _fp8(values: Tensor, scale: Tensor | None) -> Any:
    unit = torch.where(_inverse(scale) > 0, _inverse(scale), 1.0)
    return Float8Quantizer(unit, torch.zeros_like(unit), DType.kFloat8E4M3).quantize_impl(values)


def _inverse(scale: Tensor | None) -> Tensor:
    """Return 1 over a scale; 0 for a scale of 0."""
    assert scale is not None
    return torch.where(scale > 0, scale.reciprocal(), 0.0)
