"""The record of a module's recipe in a checkpoint: scales and histories of delayed scaling, or the recipe's name."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import torch

from fp4ref.te.errors import SettingError
from fp4ref.te.recipe import DelayedScaling, Format
from fp4ref.te.recipe_state import DelayedScalingRecipeState

ARCHIVE = b"PK"  # the first bytes of a file that torch.save writes
PARTS = ("scale", "amax_history")
DIRECTIONS = {"fwd": "scaling_fwd", "bwd": "scaling_bwd"}


@dataclass(frozen=True)
class Loaded:
    """The content of a record: a recipe, and tensors by name."""

    recipe: DelayedScaling
    tensors: dict[str, Any]

    def restore(self, state: DelayedScalingRecipeState, *, forward: bool) -> None:
        """Copy scales and maxima into a module's state. Rules: TEL-52.

        Errors: SettingError for another count of operands.
        """
        for part in PARTS:
            target, value = getattr(state, part), self.tensors[f"{part}_{'fwd' if forward else 'bwd'}"]
            if value.shape != target.shape:
                got = f"{part} of shape {list(value.shape)}"
                raise SettingError("set_extra_state", got, f"{list(target.shape)}", "TEL-52")
            target.copy_(value)


def saved_state(fp8_meta: dict[str, Any]) -> torch.Tensor:
    """Return the record of a module as bytes. Rules: TEL-52."""
    recipe = fp8_meta["recipe"]
    if not isinstance(fp8_meta.get("scaling_fwd"), DelayedScalingRecipeState):
        return _bytes(json.dumps({"recipe": type(recipe).__name__}).encode())
    record: dict[str, Any] = {"recipe": type(recipe).__name__, "fp8_format": recipe.fp8_format.name}
    for direction, key in DIRECTIONS.items():
        for part in PARTS:
            record[f"{part}_{direction}"] = getattr(fp8_meta[key], part).detach().cpu().clone()
    file = io.BytesIO()
    torch.save(record, file)
    return _bytes(file.getvalue())


def loaded_state(record: Any) -> Loaded | None:
    """Return the content of a record, None if it has no scales.

    Errors: SettingError for scales in a pickle, whose reading could execute code.

    Rules: TEL-52.
    """
    data = record.detach().cpu().numpy().tobytes() if isinstance(record, torch.Tensor) else b""
    if b"scale_fwd" not in data:
        return None
    if not data.startswith(ARCHIVE):
        got = "scales of delayed scaling as a pickle"
        raise SettingError("set_extra_state", got, "a record that this layer has written", "TEL-52")
    tensors = torch.load(io.BytesIO(data), weights_only=True)
    length = tensors["amax_history_fwd"].shape[0]
    return Loaded(DelayedScaling(fp8_format=Format[tensors["fp8_format"]], amax_history_len=length), tensors)


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
