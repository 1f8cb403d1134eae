"""The base of what makes a module's quantizers from a recipe: one per operand, chosen by the operand's role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.quantizer import Quantizer
from fp4ref.te.roles import QuantizerRole

# The order in which a caller without roles lists its operands, forward and backward, repeated per GEMM.
UNNAMED = {"forward": ("input", "weight", "output"), "backward": ("grad_output", "grad_input")}
TENSORS = {name for names in UNNAMED.values() for name in names}


class RecipeState:
    """Makes the quantizers of one direction of one module.

    mode: "forward" or "backward". roles: one per quantizer, None where the operand's consumer is unknown; without
    roles the operands are input, weight, output (grad_output, grad_input) in turn.
    """

    _kinds: ClassVar[dict[str, type[RecipeState]]] = {}

    def __init_subclass__(cls, *, asked: str = "") -> None:
        """Let `create` return this class for recipes whose method of this name, if any, returns True."""
        if asked:
            RecipeState._kinds[asked] = cls

    def __init__(
        self,
        recipe: Any,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: Any = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> None:
        if mode not in UNNAMED:
            raise SettingError("RecipeState", f"mode {mode!r}", "forward or backward")
        if roles is not None and len(roles) != num_quantizers:
            raise TensorShapeError("RecipeState", f"{len(roles)} roles", f"{num_quantizers}, one per quantizer")
        self.recipe, self.mode, self.num_quantizers = recipe, mode, num_quantizers
        self.device, self.roles = device, roles

    @staticmethod
    def create(
        recipe: Any,
        *,
        mode: str,
        num_quantizers: int = 1,
        device: Any = None,
        roles: Sequence[QuantizerRole | None] | None = None,
    ) -> RecipeState:
        """Return the state of a recipe.

        Errors: SettingError for a recipe that is not emulated.
        """
        for asked, kind in RecipeState._kinds.items():
            if getattr(recipe, asked)():
                return kind(recipe, mode=mode, num_quantizers=num_quantizers, device=device, roles=roles)
        raise SettingError("RecipeState", type(recipe).__name__, "an emulated recipe")

    def inherit_state_from(self, other: RecipeState | None) -> None:
        """Keep nothing of an earlier state of the module: only scales and maxima are kept."""

    def make_quantizers(self) -> list[Any]:
        """Return one quantizer per operand, in order."""
        quantizers = []
        for index in range(self.num_quantizers):
            role = self._role(index)
            quantizer = self._make_at(index, role)
            if isinstance(quantizer, Quantizer):
                quantizer.role = role.tensor_type
            quantizers.append(quantizer)
        return quantizers

    def _role(self, index: int) -> QuantizerRole:
        """Return an operand's role, whose tensor is that of its position unless the role names one. Rules: TEL-43."""
        given = self._given(index)
        return given if given.tensor_type in TENSORS else replace(given, tensor_type=self._by_position(index))

    def _given(self, index: int) -> QuantizerRole:
        """Return the role that the caller gave, or one by position."""
        given = None if self.roles is None else self.roles[index]
        return QuantizerRole(tensor_type=self._by_position(index)) if given is None else given

    def _by_position(self, index: int) -> str:
        order = UNNAMED[self.mode]
        return order[index % len(order)]

    def _make_at(self, index: int, role: QuantizerRole) -> Any:
        return self._make(role)

    def _make(self, role: QuantizerRole) -> Any:
        raise NotImplementedError

    # The names that the library has for the last three.

    def _slot_role(self, idx: int) -> QuantizerRole:
        """Return the role that the caller gave, or one without any name."""
        given = None if self.roles is None else self.roles[idx]
        return QuantizerRole() if given is None else given

    def _slot_tensor_type(self, idx: int) -> str:
        """Return the tensor as which an operand is quantized. Rules: TEL-43."""
        return RecipeState._role(self, idx).tensor_type
