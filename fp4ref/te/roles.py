"""The role of an operand, by which a recipe chooses its quantizer, and what a factory may return instead of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fp4ref.te.recipe_base import Format


@dataclass(frozen=True)
class QuantizerRole:
    """The operand that asks for a quantizer.

    module_type: "linear" or "grouped_linear". tensor_type: "input", "weight", "output", "grad_output", "grad_input".
    name: of the module, as its caller gave it. Factories that were written for plain strings compare a role with
    "linear_input" and the like, which is equal to such a role of any linear module.
    """

    module_type: str = ""
    tensor_type: str = ""
    name: str = ""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return other == f"linear_{self.tensor_type}"
        return isinstance(other, QuantizerRole) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(f"linear_{self.tensor_type}")

    def __str__(self) -> str:
        said = [f"{field}={value}" for field, value in vars(self).items() if value]
        return "|".join(said) or "QuantizerRole()"


@dataclass(frozen=True)
class QuantizerRequest:
    """The base of a factory's requests for quantizers whose state the module keeps."""


@dataclass(frozen=True)
class DelayedScalingRequest(QuantizerRequest):
    """Asks for a quantizer of delayed scaling; the fields are those of the recipe `DelayedScaling`."""

    fp8_format: Format = Format.HYBRID
    margin: int = 0
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[..., Any] = "max"
    scaling_factor_compute_algo: Callable[..., Any] | None = None
    reduce_amax: bool = True
