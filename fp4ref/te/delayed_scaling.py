"""Scales from earlier tensors: histories of maxima, and the scales that are computed from them between the steps.

A history is float32 [length, operands]: row 0 collects the maxima of the current step, row 1 has the oldest ones, the
last row the newest. A state is whatever has `recipe`, `group`, `amax_history`, `scale` and `largest`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import increment_version

from fp4ref.te.dtypes import DType, torch_dtype
from fp4ref.te.one_pass import overlap, server

FLT_MAX = torch.finfo(torch.float32).max


class Histories:
    """The states whose scales are updated at the end of an `autocast` (forward) and of its backward pass."""

    def __init__(self) -> None:
        self.states: dict[bool, list[Any]] = {True: [], False: []}

    def add(self, state: Any, *, forward: bool) -> None:
        """Add a state, unless it is here, in the place of an earlier one with the same scales."""
        states = self.states[forward]
        if all(state is not known for known in states):
            states[:] = [*(known for known in states if known.scale is not state.scale), state]

    def update(self, *, forward: bool) -> None:
        """Take the largest maxima over each recipe's process group, and compute every scale anew.

        Rules: TEL-47, TEL-70, TEL-90.
        """
        if not dist.is_initialized():  # nothing to reduce
            for state in self.states[forward]:
                update_scales(state, state.amax_history[0])
            return
        together: dict[tuple[str, int, torch.device], list[Any]] = {}
        for state in self.states[forward]:
            together.setdefault((str(state.recipe), id(state.group), state.scale.device), []).append(state)
        for states in together.values():
            for state, current in zip(states, _reduced(states), strict=True):
                update_scales(state, current)


def _reduced(states: list[Any]) -> Iterable[Tensor]:
    """Return the current maxima of each state, over all processes of the group if the recipe reduces them."""
    rows, first = [state.amax_history[0] for state in states], states[0]
    if not (first.recipe.reduce_amax and dist.is_initialized() and dist.get_world_size(first.group) > 1):
        return rows
    current = torch.cat(rows)
    dist.all_reduce(current, op=dist.ReduceOp.MAX, group=first.group)
    return torch.split(current, [len(row) for row in rows])


@dataclass
class FP8TensorMeta:
    """Scales, 1 over each, and histories of operands of one direction: float32 [operands], and [length, operands]."""

    scale: Tensor = field(default_factory=lambda: torch.empty(0))
    scale_inv: Tensor = field(default_factory=lambda: torch.empty(0))
    amax_history: Tensor = field(default_factory=lambda: torch.empty(0))


def update_scales(state: Any, current: Tensor) -> None:
    """Move the history on by one step, and compute the scales, in place; current: the maxima of this step.

    Rules: TEL-45, TEL-46, TEL-65.
    """
    recipe = state.recipe
    own = callable(recipe.amax_compute_algo) or callable(recipe.scaling_factor_compute_algo)
    if own or os.environ.get("NVTE_UNFUSED_FP8_UPDATE", "0") == "1":
        state.amax_history[0].copy_(current)
        _amax_and_scale_update(state.amax_history, state.scale, state.largest, recipe)
        return
    algorithm, margin = recipe.amax_compute_algo, recipe.margin
    _move_on(state.amax_history, state.scale, current, algorithm, state.largest * 2.0**-margin)


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: Tensor,
    amax_histories: list[Tensor],
    scales: list[Tensor],
    amax_compute_algo: str,
    fp8_dtype: DType,
    margin: float,
) -> None:
    """Move histories on and compute their scales, in place; amax_reduction_buffer: the maxima of all, side by side.

    Rules: TEL-45, TEL-65.
    """
    parts = torch.split(amax_reduction_buffer, [scale.numel() for scale in scales])
    numerator = torch.finfo(torch_dtype(fp8_dtype)).max * 2.0**-margin
    for history, scale, current in zip(amax_histories, scales, parts, strict=True):
        _move_on(history, scale, current, amax_compute_algo, numerator)


def _move_on(history: Tensor, scale: Tensor, current: Tensor, algorithm: str, numerator: float) -> None:
    """Move a history on where there is a maximum, and compute its scales as numerator / amax."""
    if _moved_at_once(history, scale, current, algorithm, numerator):
        return
    newest = torch.where(current != 0, current, history[0])
    moved = history.roll(-1, 0)
    moved[-1] = newest
    amax = moved.nan_to_num(nan=0.0, posinf=torch.inf).amax(0) if algorithm == "max" else newest
    seen = newest != 0
    wanted = torch.full_like(amax, numerator) / amax  # a float / tensor would round twice
    scale.copy_(_scale(wanted, amax, scale, seen))
    moved[0] = 0
    history.copy_(torch.where(seen, moved, history))


def _moved_at_once(history: Tensor, scale: Tensor, current: Tensor, algorithm: str, numerator: float) -> bool:
    """Do the same by a backend that does it in one launch; False without one, or for what it does not read."""
    if torch.compiler.is_compiling() or history.dim() != 2:
        return False
    found = server("next_scales", history.device, (history.shape[0], history.shape[1]))
    if found is None or history.shape[1:] != scale.shape or scale.shape != current.shape:
        return False
    for each in (history, scale, current):
        plain = type(each) is Tensor and each.dtype is torch.float32 and each.is_contiguous() and not each.is_neg()
        if not plain or each.device != history.device or each.requires_grad:
            return False
    in_row_0 = current.data_ptr() == history.data_ptr()
    if overlap(history, scale) or overlap(scale, current) or (overlap(history, current) and not in_row_0):
        return False
    found[1](found[0], history, current, scale, numerator, latest=algorithm != "max")
    increment_version((history, scale))  # as after torch's own operations
    return True


def _amax_and_scale_update(amax_history: Tensor, scale: Tensor, fp8_max: float, recipe: Any) -> None:
    """Move a history on, and compute its scales by the recipe's functions, in place. Rules: TEL-69."""
    if callable(recipe.amax_compute_algo):
        amax = recipe.amax_compute_algo(amax_history)
    else:
        amax = amax_history.amax(0) if recipe.amax_compute_algo == "max" else amax_history[0].clone()
    amax_history.copy_(torch.roll(amax_history, -1, 0))
    amax_history[0].zero_()
    if callable(recipe.scaling_factor_compute_algo):
        scale.copy_(recipe.scaling_factor_compute_algo(amax, scale, fp8_max, recipe))
    else:
        _default_sf_compute(amax, scale, fp8_max, recipe.margin)


def _default_sf_compute(amax: Tensor, scale: Tensor, fp8_max: float, margin: float) -> Tensor:
    """Replace scales by fp8_max / amax / 2^margin where there is a finite maximum, and return them.

    Rules: TEL-45, TEL-86.
    """
    return scale.copy_(_scale(fp8_max / amax / 2.0**margin, amax, scale))


def _scale(wanted: Tensor, amax: Tensor, before: Tensor, seen: Tensor | None = None) -> Tensor:
    """Return the scales wanted, at most FLT_MAX, and those before where there is no finite maximum, or none was seen.

    Rules: TEL-45, TEL-67, TEL-93.
    """
    usable = (amax > 0) & (amax < torch.inf)
    usable = usable if seen is None else usable & seen
    return torch.where(usable, wanted.clamp(max=FLT_MAX), before)


def resized(history: Tensor, length: int) -> Tensor:
    """Return a history of another length: its first rows, then zeros. Rules: TEL-89."""
    if length <= history.shape[0]:
        return history[:length].clone()
    return torch.cat([history, history.new_zeros(length - history.shape[0], history.shape[1])])
