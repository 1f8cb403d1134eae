"""From a recipe to quantizers: one per operand of a module, chosen by the operand's role."""

from __future__ import annotations

from typing import Any

import torch

from fp4ref.te.delayed_scaling import resized
from fp4ref.te.dtypes import DType, torch_dtype
from fp4ref.te.errors import SettingError
from fp4ref.te.float8_block_quantizer import Float8BlockQuantizer
from fp4ref.te.float8_quantizer import Float8CurrentScalingQuantizer, Float8Quantizer
from fp4ref.te.mxfp8_quantizer import MXFP8Quantizer
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.recipe import DelayedScaling, Format
from fp4ref.te.recipe_state_base import UNNAMED, RecipeState
from fp4ref.te.roles import DelayedScalingRequest, QuantizerRole

TWO_SIDED_WEIGHTS = ("linear", "grouped_linear")


class NVFP4BlockScalingRecipeState(RecipeState, asked="nvfp4"):
    """Quantizers of `NVFP4BlockScaling`. Rules: TEL-1, TEL-16, TEL-18."""

    @property
    def dtype(self) -> DType:
        """Element type."""
        if self.recipe.fp4_format is not Format.E2M1:
            raise SettingError("NVFP4BlockScaling", f"fp4_format {self.recipe.fp4_format}", "Format.E2M1")
        return DType.kFloat4E2M1

    def _make(self, role: QuantizerRole) -> NVFP4Quantizer:
        forward, weight = role.tensor_type not in UNNAMED["backward"], role.tensor_type == "weight"
        if not forward:
            chosen = self.recipe.fp4_quant_bwd_grad
        else:
            chosen = self.recipe.fp4_quant_fwd_weight if weight else self.recipe.fp4_quant_fwd_inp
        search = forward and self.recipe.uses_4over6(role.tensor_type)
        if search and chosen.random_hadamard_transform:
            got = f"nvfp4_4over6={self.recipe.nvfp4_4over6!r} with the Hadamard transform of {role.tensor_type}"
            raise SettingError("NVFP4BlockScaling", got, "disable_rht, or 4over6 of other operands", "TEL-18")
        return NVFP4Quantizer(
            fp4_dtype=self.dtype,
            rowwise=True,
            columnwise=True,
            with_rht=chosen.random_hadamard_transform,
            with_post_rht_amax=chosen.random_hadamard_transform,
            with_2d_quantization=chosen.fp4_2d_quantization,
            stochastic_rounding=chosen.stochastic_rounding,
            row_scaled_nvfp4=self.mode == "forward" and not weight and self.recipe.row_scaled_activation,
            nvfp4_use_4over6=search,
            nvfp4_e4m3_max=self.recipe.e4m3_max(role.tensor_type) if search else 448,
            nvfp4_4over6_err_mode=self.recipe.nvfp4_4over6_err_mode,
        )


class MXFP8BlockScalingRecipeState(RecipeState, asked="mxfp8"):
    """Quantizers of `MXFP8BlockScaling`. Rules: TEL-2, TEL-20."""

    @property
    def dtype(self) -> DType:
        """Element type of this direction."""
        return fp8_dtype(self.recipe, self.mode)

    def _make(self, role: QuantizerRole) -> MXFP8Quantizer:
        tiles = self.mode == "forward" and role.tensor_type == "weight" and self.recipe.enable_2d_quantization
        tiles = tiles and role.module_type in TWO_SIDED_WEIGHTS
        return MXFP8Quantizer(fp8_dtype=self.dtype, with_2d_quantization=tiles)


class Float8CurrentScalingRecipeState(RecipeState, asked="float8_current_scaling"):
    """Quantizers of `Float8CurrentScaling`."""

    @property
    def dtype(self) -> DType:
        """Element type of this direction."""
        return fp8_dtype(self.recipe, self.mode)

    def _make(self, role: QuantizerRole) -> Float8CurrentScalingQuantizer:
        forward, weight = role.tensor_type not in UNNAMED["backward"], role.tensor_type == "weight"
        if not forward:
            chosen = self.recipe.fp8_quant_bwd_grad
        else:
            chosen = self.recipe.fp8_quant_fwd_weight if weight else self.recipe.fp8_quant_fwd_inp
        return Float8CurrentScalingQuantizer(
            fp8_dtype=self.dtype,
            device=self.device,
            force_pow_2_scales=chosen.power_2_scale,
            amax_epsilon=chosen.amax_epsilon,
        )


class DelayedScalingRecipeState(RecipeState, asked="delayed"):
    """Quantizers of `DelayedScaling`, whose scales and maxima are the elements of two tensors.

    scale: float32 [operands]. amax_history: float32 [length, operands]. group: the processes that share their maxima.

    Rules: TEL-44, TEL-66.
    """

    def __init__(self, recipe: Any, *, mode: str, num_quantizers: int = 1, **options: Any) -> None:
        super().__init__(recipe, mode=mode, num_quantizers=num_quantizers, **options)
        self.scale = torch.ones(num_quantizers, dtype=torch.float32, device=self.device)
        self.amax_history = torch.zeros(
            recipe.amax_history_len, num_quantizers, dtype=torch.float32, device=self.device
        )
        self.group: Any = None

    @property
    def dtype(self) -> DType:
        """Element type of this direction."""
        return fp8_dtype(self.recipe, self.mode)

    @property
    def largest(self) -> float:
        """The largest value of the element type."""
        return torch.finfo(torch_dtype(self.dtype)).max

    def inherit_state_from(self, other: RecipeState | None) -> None:
        """Take over the scales and maxima of an earlier state of as many operands, the very tensors. Rules: TEL-44."""
        if not isinstance(other, DelayedScalingRecipeState) or other.num_quantizers != self.num_quantizers:
            return
        self.scale, self.amax_history, self.group = other.scale, other.amax_history, other.group
        if self.recipe.amax_history_len != self.amax_history.shape[0]:
            self.amax_history = resized(self.amax_history, self.recipe.amax_history_len)

    def make_quantizers(self) -> list[Any]:
        """Return one quantizer per operand, in order, each with its scale and its place in the history."""
        quantizers: list[Any] = []
        for index in range(self.num_quantizers):
            made = Float8Quantizer(self.scale[index], self.amax_history[0, index].reshape(1), self.dtype)
            made.role = self._role(index).tensor_type
            quantizers.append(made)
        return quantizers


class Float8BlockScalingRecipeState(RecipeState, asked="float8_block_scaling"):
    """Quantizers of `Float8BlockScaling`. Rules: TEL-48."""

    def _make(self, role: QuantizerRole) -> Float8BlockQuantizer:
        recipe = self.recipe
        if role.tensor_type == "weight":
            chosen, dim, mode = recipe.fp8_quant_fwd_weight, recipe.w_block_scaling_dim, "forward"
        elif role.tensor_type in UNNAMED["backward"]:
            chosen, dim, mode = recipe.fp8_quant_bwd_grad, recipe.grad_block_scaling_dim, "backward"
        else:
            chosen, dim, mode = recipe.fp8_quant_fwd_inp, recipe.x_block_scaling_dim, "forward"
        return Float8BlockQuantizer(
            fp8_dtype(recipe, mode),
            rowwise=True,
            columnwise=True,
            amax_epsilon=chosen.amax_epsilon,
            force_pow_2_scales=chosen.power_2_scale,
            block_scaling_dim=dim,
        )


class CustomRecipeState(RecipeState, asked="custom"):
    """Quantizers that the recipe's `qfactory(role)` returns; the role of an operand with no known consumer is None.

    delayed: the state of the operands for which the factory asked for delayed scaling.
    """

    delayed: DelayedScalingRecipeState | None = None
    _before: DelayedScalingRecipeState | None = None

    def inherit_state_from(self, other: RecipeState | None) -> None:
        """Keep the scales and maxima of an earlier state for the operands that ask for them again. Rules: TEL-44."""
        before = other.delayed if isinstance(other, CustomRecipeState) else other
        self._before = before if isinstance(before, DelayedScalingRecipeState) else None

    def make_quantizers(self) -> list[Any]:
        """Return one quantizer per operand, in order, those that a factory asked for included. Rules: TEL-44."""
        quantizers = super().make_quantizers()
        asking = [i for i, made in enumerate(quantizers) if isinstance(made, DelayedScalingRequest)]
        if not asking:
            return quantizers
        requests = [quantizers[i] for i in asking]
        for index, request in zip(asking, requests, strict=True):
            if request != requests[0]:
                got = f"{request} at index {index}"
                raise SettingError("CustomRecipe", got, f"{requests[0]}, as at index {asking[0]}", "TEL-44")
        self.delayed = self._delayed_state(DelayedScaling(**vars(requests[0])), asking)
        for index, made in zip(asking, self.delayed.make_quantizers(), strict=True):
            quantizers[index] = made
        return quantizers

    def _delayed_state(self, recipe: DelayedScaling, asking: list[int]) -> DelayedScalingRecipeState:
        """Return the earlier state if it fits, else a new one that begins with its scales and maxima if they fit."""
        state = DelayedScalingRecipeState(
            recipe,
            mode=self.mode,
            num_quantizers=len(asking),
            device=self.device,
            roles=[self._given(index) for index in asking],
        )
        before = self._before
        if before is not None and (before.num_quantizers, before.recipe) == (state.num_quantizers, recipe):
            before.roles = state.roles
            return before
        state.inherit_state_from(before)
        return state

    @property
    def scale(self) -> torch.Tensor | None:
        """The scales of delayed scaling, None without any."""
        return None if self.delayed is None else self.delayed.scale

    @property
    def amax_history(self) -> torch.Tensor | None:
        """The maxima of delayed scaling, None without any."""
        return None if self.delayed is None else self.delayed.amax_history

    @property
    def _ds_state(self) -> DelayedScalingRecipeState | None:
        return self.delayed

    @property
    def _has_delayed_scaling(self) -> bool:
        return self.delayed is not None

    @property
    def _inner_delayed_scaling_recipe(self) -> DelayedScaling | None:
        return None if self.delayed is None else self.delayed.recipe

    def _role(self, index: int) -> QuantizerRole:
        return self._given(index)

    def _consumed(self, index: int) -> bool:
        """Return False for a result whose consumer is unknown."""
        if self.roles is not None:
            return self.roles[index] is not None
        return self._by_position(index) not in {"output", "grad_input"}

    def _make_at(self, index: int, role: QuantizerRole) -> Any:
        quantizer = self.recipe.qfactory(role if self._consumed(index) else None)
        if quantizer is None and self._consumed(index):
            raise SettingError("CustomRecipe", f"no quantizer for {role}", "one per operand")
        return quantizer


def get_fp8_te_dtype(fp8_recipe: Any, fprop_tensor: bool = True) -> DType:
    """Return element type of an FP8 recipe's forward tensors, or of its gradients."""
    return fp8_dtype(fp8_recipe, "forward" if fprop_tensor else "backward")


def get_fp8_torch_dtype(fp8_recipe: Any, fprop_tensor: bool = True) -> torch.dtype:
    """Return the same as a torch type."""
    return torch_dtype(get_fp8_te_dtype(fp8_recipe, fprop_tensor))


def get_fp4_te_dtype(fp4_recipe: Any) -> DType:
    """Return element type of an FP4 recipe; SettingError unless it is E2M1."""
    return NVFP4BlockScalingRecipeState(fp4_recipe, mode="forward").dtype


def fp8_dtype(recipe: Any, mode: str) -> DType:
    """Return an FP8 recipe's type: E5M2 for the gradients of HYBRID. Rules: TEL-2. Certificates: recipe-fp8."""
    hybrid_gradients = recipe.fp8_format is Format.HYBRID and mode == "backward"
    return DType.kFloat8E5M2 if hybrid_gradients or recipe.fp8_format is Format.E5M2 else DType.kFloat8E4M3
