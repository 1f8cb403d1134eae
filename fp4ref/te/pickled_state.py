"""Records of a module's recipe that the emulated library wrote as pickles: read without executing what they name."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import torch
import torch._utils

from fp4ref.te.alias_names import ROOT
from fp4ref.te.errors import SettingError
from fp4ref.te.recipe import Format, Range

UNSAFE_PICKLE_EXTRA_STATE_ENV = "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"
RECIPES = f"{ROOT}.common.recipe"
SCALES = {f"{part}_{direction}" for part in ("scale", "amax_history") for direction in ("fwd", "bwd")}


class CheckpointExtraStatePolicy(Enum):
    """The state that a recipe of one class has in a checkpoint: none, scales and histories, or any."""

    STATELESS = "stateless"
    STATEFUL_FP8_DELAYED_SCALING = "stateful_fp8_delayed_scaling"
    DYNAMIC = "dynamic"


_RECIPE_POLICIES = {
    (RECIPES, "DelayedScaling"): CheckpointExtraStatePolicy.STATEFUL_FP8_DELAYED_SCALING,
    (RECIPES, "CustomRecipe"): CheckpointExtraStatePolicy.DYNAMIC,
    **{
        (RECIPES, name): CheckpointExtraStatePolicy.STATELESS
        for name in ("Float8BlockScaling", "Float8CurrentScaling", "MXFP8BlockScaling", "NVFP4BlockScaling")
    },
}


def should_load_extra_state_pickle(data: bytes, context: str) -> bool:
    """Return True if a pickle may have scales and NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE is 1, False if it has none.

    context: the module's name, for the error.

    Errors: SettingError for a pickle that may have scales without that variable.

    Rules: TEL-52.
    """
    if not _may_have_scales(data):
        return False
    if os.environ.get(UNSAFE_PICKLE_EXTRA_STATE_ENV, "0") == "1":
        return True
    needed = f"a record that this layer has written, or {UNSAFE_PICKLE_EXTRA_STATE_ENV}=1"
    raise SettingError("set_extra_state", f"{context}: scales of delayed scaling as a pickle", needed, "TEL-52")


def read_pickle(data: bytes) -> dict[str, Any]:
    """Return a record's tensors and `fp8_format`, a name; what belongs to no recipe or tensor is refused, not executed.

    Errors: SettingError.

    Rules: TEL-52.
    """
    record = _checked("a pickle", _Unpickler(data).load)
    recipe = record.get("recipe")
    given = getattr(recipe, "fp8_format", None) if "recipe" in record else Format.HYBRID.value  # 1.x named no recipe
    found = next((each.name for each in Format if each.value == given), None)
    if found is None:
        raise SettingError("set_extra_state", f"a pickled recipe of {given!r}", "one with an fp8_format", "TEL-52")
    return record | {"fp8_format": found}


def read_archive(data: bytes) -> dict[str, Any]:
    """Return a record that this layer has written.

    Errors: SettingError for damaged bytes.

    Rules: TEL-52.
    """
    record = _checked("an archive", lambda: _storage_of(data))
    if record.get("fp8_format") not in Format.__members__ or "recipe" not in record:
        raise SettingError("set_extra_state", "an archive without a recipe", "scales and histories", "TEL-52")
    return record


def _checked(name: str, read: Callable[[], Any]) -> dict[str, Any]:
    try:
        record = read()
    except Exception as error:  # readers raise anything on damaged bytes
        raise SettingError("set_extra_state", f"{name}: {error}", "a recipe and tensors", "TEL-52") from error
    if not isinstance(record, dict):
        raise SettingError("set_extra_state", f"a pickled {type(record).__name__}", "a pickled dict", "TEL-52")
    wrong = [part for part in sorted(SCALES & record.keys()) if not _is_table(record[part], 2 if "amax" in part else 1)]
    if wrong:
        needed = "tensors, one number or column per operand"
        raise SettingError("set_extra_state", f"{name} with another {' and '.join(wrong)}", needed, "TEL-52")
    return record


def _is_table(value: Any, dimensions: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == dimensions


def _may_have_scales(data: bytes) -> bool:
    """Return False for a pickle that constructs nothing, or a recipe without scales; True for any other bytes."""
    if not data:
        return False
    try:
        texts, named = _names(data)
    except Exception:  # noqa: BLE001 - a reader of pickles may raise anything on bytes that are none
        return True
    policies = {_RECIPE_POLICIES[name] for name in named if name in _RECIPE_POLICIES}
    stateful = CheckpointExtraStatePolicy.STATEFUL_FP8_DELAYED_SCALING in policies
    return bool(texts & SCALES) or stateful or bool(named and not policies)


def _names(data: bytes) -> tuple[set[str], set[tuple[str, str]]]:
    """Return texts of a pickle, and names of what it constructs: module and name, recipes under the library's."""
    pushed: list[str] = []
    memo: dict[int, str] = {}
    named: set[tuple[str, str]] = set()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "MEMOIZE" or "PUT" in opcode.name:
            place = len(memo) if argument is None else argument
            memo[place] = pushed[-1] if pushed else ""
        elif opcode.name in {"GET", "BINGET", "LONG_BINGET"}:
            pushed.append(memo.get(argument, "") if isinstance(argument, int) else "")
        elif opcode.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            named.add(_public(module, name))
        elif opcode.name == "STACK_GLOBAL":
            named.add(_public(*pushed[-2:]))
        elif isinstance(argument, str | bytes):
            pushed.append(argument if isinstance(argument, str) else argument.decode(errors="replace"))
    return set(pushed), named


def _public(module: str, name: str) -> tuple[str, str]:
    """Return a name of a recipe under the library's module; ours are defined in several."""
    return (RECIPES if module.startswith("fp4ref.te.recipe") else module), name


class _Unpickler(pickle.Unpickler):
    """Makes tensors, containers, and what stands for a recipe, and nothing else.

    Instructions of a pickle may set attributes of all that it names: each of these is made for one pickle alone.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._made = dict(_constructors())

    def find_class(self, module: str, name: str) -> Any:
        found = self._made.get(_public(module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return found


def _constructors() -> Iterator[tuple[tuple[str, str], Any]]:
    yield (RECIPES, "DelayedScaling"), type("DelayedScaling", (), {})
    yield (RECIPES, "Format"), tuple
    for name in ("_FormatHelper", "Range"):
        yield (RECIPES, name), type(name, (Range,), {})
    yield ("collections", "OrderedDict"), OrderedDict
    yield ("torch._utils", "_rebuild_tensor_v2"), partial(torch._utils._rebuild_tensor_v2)
    yield ("torch.storage", "_load_from_bytes"), partial(_storage_of)


def _storage_of(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
