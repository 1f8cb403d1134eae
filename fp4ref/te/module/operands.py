"""The operands of a module: their roles, quantizers, and the scales and maxima that a checkpoint keeps."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from fp4ref.te.extra_state import loaded_state, saved_state
from fp4ref.te.float8_quantizer import Float8Quantizer
from fp4ref.te.module.device import default_device
from fp4ref.te.quantization import FP8GlobalStateManager, QuantizerRole, RecipeState

KEYS = {True: "scaling_fwd", False: "scaling_bwd"}


class QuantizedOperands(torch.nn.Module):
    """A module with a quantizer for each operand of its products.

    quantizers: {"scaling_fwd": [...], "scaling_bwd": [...]}, in the order of `operand_roles`; our own code asks
    `quantizer(operand)`. fp8_meta: the states that made them. _fp8_workspaces: weights quantized once per batch.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.fp8_initialized = False
        self.primary_weights_in_fp8 = FP8GlobalStateManager.with_fp8_parameters()
        self.fp8_meta: dict[str, Any] = {}
        self.quantizers: dict[str, list[Any]] = {"scaling_fwd": [], "scaling_bwd": []}
        self._fp8_workspaces: dict[str, Any] = {}
        self._operands: dict[str, Any] = {}
        self._recipe_seen: Any = None
        self._output_quantizer_role: QuantizerRole | None = None
        self._grad_input_quantizer_role: QuantizerRole | None = None

    def operand_roles(self, forward: bool) -> dict[str, QuantizerRole]:
        """Return operands of one direction by name, in the order of `quantizers`."""
        names = ("input", "weight", "output") if forward else ("grad_output", "grad_input")
        return {name: QuantizerRole(tensor_type=name) for name in names}

    def inner_consumers(self) -> dict[str, QuantizerRole]:
        """Return results that the module itself consumes, by name, and the roles that they have there."""
        return {}

    def get_quantizer_roles(self, *, fwd: bool, num_quantizers: int) -> list[QuantizerRole | None]:
        """Return the roles that a recipe is given, in turn; that of a result is its consumer's, None if unknown.

        Rules: TEL-58.
        """
        inner = self.inner_consumers()
        outer = {"output": self._output_quantizer_role, "grad_input": self._grad_input_quantizer_role}
        roles = [inner.get(name, outer.get(role.tensor_type, role)) for name, role in self.operand_roles(fwd).items()]
        return [roles[index % len(roles)] for index in range(num_quantizers)]

    @property
    def output_quantizer_role(self) -> QuantizerRole | None:
        """The role that the result has for its consumer; setting another one makes the quantizers anew."""
        return self._output_quantizer_role

    @output_quantizer_role.setter
    def output_quantizer_role(self, role: QuantizerRole | None) -> None:
        if role != self._output_quantizer_role:
            self._output_quantizer_role, self._recipe_seen = role, None

    @property
    def grad_input_quantizer_role(self) -> QuantizerRole | None:
        """The same for the gradient of the input."""
        return self._grad_input_quantizer_role

    @grad_input_quantizer_role.setter
    def grad_input_quantizer_role(self, role: QuantizerRole | None) -> None:
        if role != self._grad_input_quantizer_role:
            self._grad_input_quantizer_role, self._recipe_seen = role, None

    @property
    def fp8_meta_tensors_initialized(self) -> bool:
        """True if the quantizers are those of the last recipe and of the roles."""
        return self._recipe_seen is not None

    def quantizer(self, operand: str) -> Any:
        """Return the quantizer of a named operand."""
        return self._operands[operand]

    def set_meta_tensor(self, fwd: bool, recipe: Any) -> None:
        """Make the quantizers of one direction from a recipe; scales of delayed scaling stay. Rules: TEL-44."""
        roles = self.operand_roles(fwd)
        state = RecipeState.create(
            recipe,
            mode="forward" if fwd else "backward",
            num_quantizers=len(roles),
            device=next((p.device for p in self.parameters()), default_device(None)),
            roles=self.get_quantizer_roles(fwd=fwd, num_quantizers=len(roles)),
        )
        state.inherit_state_from(self.fp8_meta.get(KEYS[fwd]))
        self.fp8_meta[KEYS[fwd]], self.fp8_meta["recipe"] = state, recipe
        self.quantizers[KEYS[fwd]] = state.make_quantizers()
        self._operands |= dict(zip(roles, self.quantizers[KEYS[fwd]], strict=True))

    def init_fp8_metadata(self) -> None:
        """Make all quantizers anew, and forget the kept weights, if the recipe has changed. Rules: TEM-19, TEM-53."""
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        kind, settings = type(recipe), vars(recipe)
        if (kind, settings) == self._recipe_seen:
            return
        if self._recipe_seen and self._recipe_seen[0] is not kind and not self.primary_weights_in_fp8:
            change = f"from {self._recipe_seen[0].__name__} to {kind.__name__}"
            warnings.warn(f"Recipe type changed {change}: the quantizers are made anew.", stacklevel=4)
        self.init_fp8_meta_tensors(recipe)

    def init_fp8_meta_tensors(self, recipe: Any) -> None:
        """Make all quantizers anew from a recipe, and forget the kept weights."""
        self.set_meta_tensor(fwd=True, recipe=recipe)
        self.set_meta_tensor(fwd=False, recipe=recipe)
        self._recipe_seen, self.fp8_initialized = (type(recipe), dict(vars(recipe))), True
        self._fp8_workspaces.clear()
        self._update_weight_quantizers()

    def _update_weight_quantizers(self) -> None:
        """Let packed weights add their maxima to the histories that are there now. Rules: TEL-44."""
        for name, operand in self.weight_operands().items():
            before = getattr(getattr(self, name), "_quantizer", None)
            now = self._operands.get(operand)
            if isinstance(before, Float8Quantizer) and isinstance(now, Float8Quantizer):
                if before.amax.data_ptr() == now.amax.data_ptr():
                    continue
                made = now.copy()
                made.internal, made.optimize_for_gemm = before.internal, before.optimize_for_gemm
                made.set_usage(rowwise=before.rowwise_usage, columnwise=before.columnwise_usage)
                getattr(self, name).update_quantizer(made)

    def reduce_amax(self, operand: str) -> None:
        """Let a quantizer reduce its amax over the tensor-parallel group, where it has an amax to reduce."""
        quantizer: Any = self._operands.get(operand)
        if hasattr(quantizer, "with_amax_reduction") and not getattr(quantizer, "row_scaled_nvfp4", False):
            quantizer.with_amax_reduction, quantizer.amax_reduction_group = True, self.tp_group

    def weight_operands(self) -> dict[str, str]:
        """Return names of the weight parameters, and the operands that they are."""
        return {}

    # Checkpoints

    def get_extra_state(self) -> torch.Tensor:
        """Return uint8: scales and histories of delayed scaling, else the recipe's name; empty before quantization."""
        if not any(key in self.fp8_meta for key in KEYS.values()):
            return torch.empty(0, dtype=torch.uint8)
        return saved_state(self.fp8_meta)

    def set_extra_state(self, state: Any) -> None:
        """Take over scales and histories; any other record changes no result. Rules: TEL-52."""
        loaded = loaded_state(state, type(self).__name__)
        if loaded is not None:
            loaded.restore(self)
            self._recipe_seen = None
