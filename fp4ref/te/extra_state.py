"""The record of a module's recipe in a checkpoint: scales and histories of delayed scaling, or the recipe's name."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import torch

from fp4ref.te.errors import SettingError
from fp4ref.te.pickled_state import read_archive, read_pickle, should_load_extra_state_pickle
from fp4ref.te.recipe import DelayedScaling
from fp4ref.te.recipe_base import RecipeFormat
from fp4ref.te.recipe_state import DelayedScalingRecipeState
from fp4ref.te.recomputation import delayed_state

ARCHIVE, TEXT = b"PK", b"{"  # the first bytes of a file that torch.save writes, and of JSON
CUSTOM = "CustomRecipe"
PARTS = ("scale", "amax_history")
MODES = {"fwd": "forward", "bwd": "backward"}
DIRECTIONS = {"fwd": "scaling_fwd", "bwd": "scaling_bwd"}


@dataclass(frozen=True)
class Loaded:
    """The content of a record: tensors by name, the recipe that they belong to; inner: one that a factory asked for."""

    recipe: DelayedScaling
    tensors: dict[str, Any]
    inner: bool

    def restore(self, module: Any) -> None:
        """Copy scales and maxima into a module's states; if they do not fit, the module stays as it was.

        Errors: SettingError for another count of operands.

        Rules: TEL-52.
        """
        counts = {direction: self._count(module, direction) for direction in DIRECTIONS if self._holds(direction)}
        for direction, count in counts.items():
            key = DIRECTIONS[direction]
            if self.inner:
                mode = MODES[direction]
                module.fp8_meta[key] = DelayedScalingRecipeState(self.recipe, mode=mode, num_quantizers=count)
            else:
                module.set_meta_tensor(fwd=direction == "fwd", recipe=self.recipe)
            for part in PARTS:
                getattr(module.fp8_meta[key], part).copy_(self.tensors[f"{part}_{direction}"])

    def _holds(self, direction: str) -> bool:
        return f"scale_{direction}" in self.tensors

    def _count(self, module: Any, direction: str) -> int:
        """Return the count of a direction's operands; SettingError if the record has another."""
        scales = self.tensors[f"scale_{direction}"]
        count = len(scales) if self.inner else len(module.operand_roles(direction == "fwd"))
        for part, shape in zip(PARTS, ([count], [self.recipe.amax_history_len, count]), strict=True):
            got = list(self.tensors[f"{part}_{direction}"].shape)
            if got != shape:
                raise SettingError("set_extra_state", f"{part}_{direction} of shape {got}", f"{shape}", "TEL-52")
        return count


def saved_state(fp8_meta: dict[str, Any]) -> torch.Tensor:
    """Return the record of a module as bytes. Rules: TEL-94."""
    name = type(fp8_meta["recipe"]).__name__ if "recipe" in fp8_meta else CUSTOM  # that of a state just loaded
    states = {direction: delayed_state(fp8_meta, key) for direction, key in DIRECTIONS.items()}
    kept = {direction: state for direction, state in states.items() if state is not None}
    if not kept:
        return _bytes(json.dumps({"recipe": name}).encode())
    record: dict[str, Any] = {"recipe": name}
    for direction, state in kept.items():
        record["fp8_format"] = state.recipe.fp8_format.name
        for part in PARTS:
            record[f"{part}_{direction}"] = getattr(state, part).detach().cpu().clone()
    file = io.BytesIO()
    torch.save(record, file)
    return _bytes(file.getvalue())


def loaded_state(record: Any, context: str) -> Loaded | None:
    """Return the content of a record, None if it has no scales.

    context: the module's name, for errors.

    Errors: SettingError for scales in a pickle that nobody allowed to read, for damaged bytes and for other objects.

    Rules: TEL-52.
    """
    if record is not None and not isinstance(record, torch.Tensor):
        raise SettingError("set_extra_state", f"{context}: a {type(record).__name__}", "a tensor of bytes", "TEL-52")
    data = b"" if record is None else record.detach().cpu().numpy().tobytes()
    if data.startswith(TEXT):
        return None
    if data.startswith(ARCHIVE):
        tensors = read_archive(data)
        inner = tensors["recipe"] == CUSTOM
    elif should_load_extra_state_pickle(data, context):
        tensors = read_pickle(data)
        inner = False
    else:
        return None
    directions = [direction for direction in DIRECTIONS if f"scale_{direction}" in tensors]
    missing = [
        f"{part}_{direction}" for direction in directions for part in PARTS if f"{part}_{direction}" not in tensors
    ]
    if missing or not directions:
        got = f"{context}: no {', '.join(missing) or 'scales'}"
        raise SettingError("set_extra_state", got, "scales and histories", "TEL-52")
    length = tensors[f"amax_history_{directions[0]}"].shape[0]
    return Loaded(
        DelayedScaling(fp8_format=RecipeFormat[tensors["fp8_format"]], amax_history_len=length), tensors, inner
    )


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
