"""The current context's request to modules: whether to quantize, by which recipe, and whether parameters are packed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fp4ref.te.availability import (
    Availability,
    check_fp8_block_scaling_support,
    check_fp8_support,
    check_mxfp8_support,
    check_nvfp4_support,
    check_recipe_support,
    get_default_fp8_recipe,
    get_default_recipe,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
)
from fp4ref.te.delayed_scaling import Histories
from fp4ref.te.module.device import default_device
from fp4ref.te.recipe_state import (
    CustomRecipeState,
    DelayedScalingRecipeState,
    Float8BlockScalingRecipeState,
    Float8CurrentScalingRecipeState,
    MXFP8BlockScalingRecipeState,
    NVFP4BlockScalingRecipeState,
    get_fp4_te_dtype,
    get_fp8_te_dtype,
    get_fp8_torch_dtype,
)
from fp4ref.te.recipe_state_base import RecipeState
from fp4ref.te.recomputation import Recomputation, delayed_state
from fp4ref.te.roles import DelayedScalingRequest, QuantizerRequest, QuantizerRole

__all__ = [
    "CustomRecipeState",
    "DelayedScalingRecipeState",
    "DelayedScalingRequest",
    "FP8GlobalState",
    "FP8GlobalStateManager",
    "Float8BlockScalingRecipeState",
    "Float8CurrentScalingRecipeState",
    "MXFP8BlockScalingRecipeState",
    "NVFP4BlockScalingRecipeState",
    "QuantizerRequest",
    "QuantizerRole",
    "RecipeState",
    "autocast",
    "check_fp8_block_scaling_support",
    "check_fp8_support",
    "check_mxfp8_support",
    "check_nvfp4_support",
    "check_recipe_support",
    "fp8_autocast",
    "fp8_model_init",
    "get_align_size_for_quantization",
    "get_default_fp8_recipe",
    "get_default_recipe",
    "get_fp4_te_dtype",
    "get_fp8_te_dtype",
    "get_fp8_torch_dtype",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "quantized_model_init",
]


@dataclass
class FP8GlobalState:
    """The settings of the innermost contexts, and what outlives them.

    is_first_fp8_module: no module has run in the outermost `autocast` yet; the first one is the last in the backward
    pass. histories: the maxima of delayed scaling. scales_used: where a forward pass will be computed again, the states
    of delayed scaling that it used, with their scales.
    """

    fp8_enabled: bool = False
    fp8_calibration: bool = False
    fp8_recipe: Any = None
    fp8_distributed_group: Any = None
    fp8_parameters: bool = False
    high_precision_init_val: bool = False
    autocast_depth: int = 0
    skip_fp8_weight_update_tensor: Any = None
    fp8_graph_capturing: bool = False
    is_first_fp8_module: bool = False
    histories: Histories = field(default_factory=Histories)
    scales_used: list[tuple[Any, torch.Tensor]] | None = None


class FP8GlobalStateManager(Availability, Recomputation):
    """Reads and sets the current state, one per process."""

    quantization_state = FP8GlobalState()

    @classmethod
    def reset(cls) -> None:
        """Forget every context."""
        cls.quantization_state = FP8GlobalState()

    @staticmethod
    def get_meta_tensor_key(forward: bool = True) -> str:
        """Return where a module's `fp8_meta` and `quantizers` keep one direction."""
        return "scaling_fwd" if forward else "scaling_bwd"

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Return True if an enabled `autocast` is active."""
        return cls.quantization_state.fp8_enabled

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        """Return True if operands are only looked at, for their maxima."""
        return cls.quantization_state.fp8_calibration

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        """Return True if an enabled `quantized_model_init` is active."""
        return cls.quantization_state.fp8_parameters

    @classmethod
    def with_high_precision_init_val(cls) -> bool:
        """Return True if packed parameters keep their initial values."""
        return cls.quantization_state.high_precision_init_val

    @classmethod
    def get_fp8_recipe(cls) -> Any:
        """Return the recipe of the innermost context, or the default."""
        recipe = cls.quantization_state.fp8_recipe
        return get_default_recipe() if recipe is None else recipe

    @classmethod
    def get_fp8_group(cls) -> Any:
        """Return the process group of the innermost context."""
        return cls.quantization_state.fp8_distributed_group

    @classmethod
    def get_autocast_state(cls) -> FP8GlobalState:
        """Return a copy of the state, for `set_autocast_state`."""
        return replace(cls.quantization_state)

    @classmethod
    def set_autocast_state(cls, state: FP8GlobalState) -> None:
        """Return to a state."""
        cls.quantization_state = replace(state)

    @classmethod
    def is_first_fp8_module(cls) -> bool:
        """Return True for the first module that asks within the outermost `autocast`."""
        first, cls.quantization_state.is_first_fp8_module = cls.quantization_state.is_first_fp8_module, False
        return first

    @classmethod
    def add_fp8_tensors_to_global_buffer(cls, fp8_meta: dict[str, Any]) -> None:
        """Let the scales of a module's states be updated from now on; nothing but delayed scaling has any."""
        for key, forward in (("scaling_fwd", True), ("scaling_bwd", False)):
            state = delayed_state(fp8_meta, key)
            if state is not None:
                state.group = cls.get_fp8_group()
                cls.quantization_state.histories.add(state, forward=forward)
                if cls.quantization_state.scales_used is not None:
                    cls.quantization_state.scales_used.append((state, state.scale.clone()))

    @classmethod
    def reduce_and_update_fp8_tensors(cls, forward: bool = True) -> None:
        """Compute every scale of delayed scaling from its history. Rules: TEL-47, TEL-90."""
        cls.quantization_state.histories.update(forward=forward)

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        """Make captured graphs, which read it at every replay, keep the bytes of kept weights. Rules: TEM-3."""
        state = cls.quantization_state
        if state.skip_fp8_weight_update_tensor is None:
            state.skip_fp8_weight_update_tensor = torch.empty(1, device=default_device(None))
        state.skip_fp8_weight_update_tensor.fill_(skip)  # in place, for graphs that hold its address

    @classmethod
    def get_skip_fp8_weight_update_tensor(cls) -> Any:
        """Return the flag, or None."""
        return cls.quantization_state.skip_fp8_weight_update_tensor

    @classmethod
    def fp8_graph_capturing(cls) -> bool:
        """Return True while a graph is captured, or in an `autocast` that says so."""
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        capturing = started and torch.cuda.is_current_stream_capturing()
        return cls.quantization_state.fp8_graph_capturing or capturing

    @classmethod
    def captured_skip_flag(cls) -> Any:
        """Return the flag that a graph which is captured now reads at every replay, None without one. Rules: TEM-3."""
        flag = cls.quantization_state.skip_fp8_weight_update_tensor
        return flag if flag is not None and cls.fp8_graph_capturing() else None


class autocast(ContextDecorator):  # noqa: N801 - a public name
    """Let modules quantize the operands of their GEMMs by the recipe, within the context.

    It holds for the whole process: threads that run at the same time share one that is entered around all of them.

    calibrating: note the maxima of operands, for delayed scaling, also where enabled is False. recipe:
    MXFP8BlockScaling if none is given. amax_reduction_group: the processes that share the maxima of delayed scaling.
    _graph: what runs is captured in a graph: the flag of `set_skip_fp8_weight_update_tensor` decides for kept weights.

    Errors: SettingError for a recipe that the emulated device does not run.

    Rules: TEL-47, TEM-3.
    """

    def __init__(
        self,
        enabled: bool = True,
        calibrating: bool = False,
        recipe: Any = None,
        amax_reduction_group: Any = None,
        _graph: bool = False,
    ) -> None:
        self._asked = enabled, calibrating, recipe, amax_reduction_group, _graph
        self._before: list[FP8GlobalState] = []

    def __enter__(self) -> None:
        enabled, calibrating, recipe, group, graph = self._asked
        recipe = get_default_recipe() if recipe is None else recipe
        if enabled:
            check_recipe_support(recipe)
        before, inside = FP8GlobalStateManager.quantization_state, object.__new__(FP8GlobalState)
        vars(inside).update(vars(before), fp8_enabled=enabled, fp8_calibration=calibrating, fp8_recipe=recipe)
        inside.fp8_distributed_group, inside.fp8_graph_capturing = group, graph
        inside.autocast_depth = before.autocast_depth + 1
        inside.is_first_fp8_module = before.autocast_depth == 0 or before.is_first_fp8_module
        self._before.append(before)
        FP8GlobalStateManager.quantization_state = inside

    def __exit__(self, *error: object) -> None:
        before = FP8GlobalStateManager.quantization_state = self._before.pop()
        enabled, *_, graph = self._asked
        if enabled and before.autocast_depth == 0 and not graph and torch.is_grad_enabled():
            FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=True)


def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Any = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> Any:
    """`autocast` by its former name and arguments."""
    return autocast(enabled, calibrating, fp8_recipe, fp8_group, _graph)


@contextmanager
def quantized_model_init(
    enabled: bool = True, recipe: Any = None, preserve_high_precision_init_val: bool = False
) -> Iterator[None]:
    """Let modules be made with weights that hold packed bytes only, within the context.

    preserve_high_precision_init_val: such a parameter also has `get_high_precision_init_val()`, its initial values on
    the CPU, and `clear_high_precision_init_val()`.

    Errors: SettingError for a recipe that the emulated device does not run.
    """
    recipe = get_default_recipe() if recipe is None else recipe
    if enabled:
        check_recipe_support(recipe)
    manager = FP8GlobalStateManager
    before = manager.get_autocast_state()
    keeps = preserve_high_precision_init_val
    inside = replace(before, fp8_parameters=enabled, fp8_recipe=recipe, high_precision_init_val=keeps)
    manager.quantization_state = inside
    try:
        yield
    finally:
        manager.set_autocast_state(before)


def fp8_model_init(enabled: bool = True, recipe: Any = None, preserve_high_precision_init_val: bool = False) -> Any:
    """`quantized_model_init` by its former name."""
    return quantized_model_init(enabled, recipe, preserve_high_precision_init_val)


def get_align_size_for_quantization(recipe: Any) -> int:
    """Return rows to which a group is padded: 32 for MXFP8, 128 for NVFP4, 16 for FP8, or what a custom recipe says."""
    if recipe.custom():
        return int(recipe.quantization_alignment)
    return 32 if recipe.mxfp8() else 128 if recipe.nvfp4() else 16
