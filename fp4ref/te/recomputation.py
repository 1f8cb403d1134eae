"""Scales of delayed scaling that a forward pass used, kept for its recomputation, by the names that scripts call."""

from __future__ import annotations

from collections import deque
from typing import Any

from fp4ref.te.errors import SettingError
from fp4ref.te.recipe_state import DelayedScalingRecipeState

KEPT = "global_fp8_buffer_pos_fwd_recompute"  # where a module's `fp8_meta` holds what was kept


class Recomputation:
    """Methods on a module's `fp8_meta`; they do nothing without delayed scaling. Rules: TEL-71.

    `fp4ref.te.checkpoint` needs none of them: it keeps the scales of every module that it runs.
    """

    @staticmethod
    def copy_forward_fp8_meta_tensors_for_recompute(fp8_meta: dict[str, Any]) -> None:
        """Keep the scales and histories that the forward pass is about to use."""
        state = delayed_state(fp8_meta)
        if state is not None:
            fp8_meta.setdefault(KEPT, deque()).append((state.amax_history.clone(), state.scale.clone()))

    @staticmethod
    def get_old_fp8_meta_tensors_for_recompute(fp8_meta: dict[str, Any]) -> None:
        """Return to the scales and histories that were kept first, for the recomputation.

        Errors: SettingError if none is left.
        """
        state = delayed_state(fp8_meta)
        if state is None:
            return
        if not fp8_meta.get(KEPT):
            needed = "a call of copy_forward_fp8_meta_tensors_for_recompute for each recomputation"
            raise SettingError("get_old_fp8_meta_tensors_for_recompute", "nothing kept", needed, "TEL-47")
        fp8_meta["updated_amax_history_fwd"], fp8_meta["updated_scale_fwd"] = (
            state.amax_history.clone(),
            state.scale.clone(),
        )
        history, scale = fp8_meta[KEPT].popleft()
        state.amax_history.copy_(history)
        state.scale.copy_(scale)

    @staticmethod
    def restore_fp8_meta_tensors(fp8_meta: dict[str, Any]) -> None:
        """Return to the scales and histories of before the recomputation."""
        state = delayed_state(fp8_meta)
        if state is not None:
            state.amax_history.copy_(fp8_meta["updated_amax_history_fwd"])
            state.scale.copy_(fp8_meta["updated_scale_fwd"])


def delayed_state(fp8_meta: dict[str, Any], key: str = "scaling_fwd") -> DelayedScalingRecipeState | None:
    """Return the state of delayed scaling of one direction, one that a factory asked for included, None without any."""
    state = fp8_meta.get(key)
    state = getattr(state, "delayed", state)
    return state if isinstance(state, DelayedScalingRecipeState) else None
