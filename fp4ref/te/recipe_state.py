"""From a recipe to quantizers: one per operand of a module, chosen by the operand's role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fp4ref.te.delayed_scaling import resized
from fp4ref.te.dtypes import DType, torch_dtype
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.float8_block_quantizer import Float8BlockQuantizer
from fp4ref.te.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
from fp4ref.te.mxfp8_quantizer import MXFP8Quantizer
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.quantizer import Quantizer
from fp4ref.te.recipe import DelayedScaling, Format
from fp4ref.te.roles import DelayedScalingRequest, QuantizerRole

# The order in which a caller without roles lists its operands, forward and backward, repeated per GEMM.
UNNAMED = {"forward": ("input", "weight", "output"), "backward": ("grad_output", "grad_input")}
TENSORS = {name for names in UNNAMED.values() for name in names}
TWO_SIDED_WEIGHTS = ("linear", "grouped_linear")


class RecipeState:
    """Makes the quantizers of one direction of one module.

    mode: "forward" or "backward". roles: one per quantizer, None where the operand's consumer is unknown; without
    roles the operands are input, weight, output (grad_output, grad_input) in turn.
    """

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
        for matches, kind in (
            (recipe.nvfp4(), NVFP4BlockScalingRecipeState),
            (recipe.mxfp8(), MXFP8BlockScalingRecipeState),
            (recipe.float8_current_scaling(), Float8CurrentScalingRecipeState),
            (recipe.delayed(), DelayedScalingRecipeState),
            (recipe.float8_block_scaling(), Float8BlockScalingRecipeState),
            (recipe.custom(), CustomRecipeState),
        ):
            if matches:
                return kind(recipe, mode=mode, num_quantizers=num_quantizers, device=device, roles=roles)
        raise SettingError("RecipeState", type(recipe).__name__, "an emulated recipe")

    def make_quantizers(self) -> list[Any]:
        """Return one quantizer per operand, in order."""
        quantizers = []
        for index in range(self.num_quantizers):
            role = self._role(index)
            quantizer = self._make(role)
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

    def _make(self, role: QuantizerRole) -> Any:
        raise NotImplementedError


class NVFP4BlockScalingRecipeState(RecipeState):
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


class MXFP8BlockScalingRecipeState(RecipeState):
    """Quantizers of `MXFP8BlockScaling`. Rules: TEL-2, TEL-20."""

    @property
    def dtype(self) -> DType:
        """Element type of this direction."""
        return fp8_dtype(self.recipe, self.mode)

    def _make(self, role: QuantizerRole) -> MXFP8Quantizer:
        tiles = self.mode == "forward" and role.tensor_type == "weight" and self.recipe.enable_2d_quantization
        tiles = tiles and role.module_type in TWO_SIDED_WEIGHTS
        return MXFP8Quantizer(fp8_dtype=self.dtype, with_2d_quantization=tiles)


class Float8CurrentScalingRecipeState(RecipeState):
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


class DelayedScalingRecipeState(RecipeState):
    """Quantizers of `DelayedScaling`, whose scales and maxima are the elements of two tensors.

    scale: float32 [operands]. amax_history: float32 [length, operands]. group: the processes that share their maxima.

    Rules: TEL-44.
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

    def adopt(self, recipe: Any) -> None:
        """Follow another recipe of the same kind; scales and maxima stay."""
        self.recipe = recipe
        if recipe.amax_history_len != self.amax_history.shape[0]:
            self.amax_history = resized(self.amax_history, recipe.amax_history_len)

    def make_quantizers(self) -> list[Any]:
        """Return one quantizer per operand, in order, each with its scale and its place in the history."""
        quantizers: list[Any] = []
        for index in range(self.num_quantizers):
            made = Float8Quantizer(self.scale[index], self.amax_history[0, index].reshape(1), self.dtype)
            made.role = self._role(index).tensor_type
            quantizers.append(made)
        return quantizers


class Float8BlockScalingRecipeState(RecipeState):
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


class CustomRecipeState(RecipeState):
    """Quantizers that the recipe's `qfactory(role)` returns; the role of an operand with no known consumer is None.

    delayed: the state of the operands for which the factory asked for delayed scaling.
    """

    delayed: DelayedScalingRecipeState | None = None

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
        roles = [self._given(index) for index in asking]
        self.delayed = DelayedScalingRecipeState(
            DelayedScaling(**vars(requests[0])),
            mode=self.mode,
            num_quantizers=len(asking),
            device=self.device,
            roles=roles,
        )
        for index, made in zip(asking, self.delayed.make_quantizers(), strict=True):
            quantizers[index] = made
        return quantizers

    def _role(self, index: int) -> QuantizerRole:
        return self._given(index)

    def _make(self, role: QuantizerRole) -> Any:
        consumed = role.tensor_type not in {"output", "grad_input"}
        quantizer = self.recipe.qfactory(role if consumed else None)
        if quantizer is None and consumed:
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
