"""Callables that a GPU would replay from a captured graph; here they are called as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fp4ref.te.errors import SettingError
from fp4ref.te.quantization import autocast


def make_graphed_callables(
    modules: Callable[..., Any] | tuple[Callable[..., Any], ...],
    sample_args: Any,
    num_warmup_iters: int = 3,
    *,
    enabled: bool | tuple[bool, ...] | None = None,
    recipe: Any = None,
    calibrating: bool = False,
    amax_reduction_group: Any = None,
    fp8_enabled: bool | tuple[bool, ...] | None = None,
    fp8_recipe: Any = None,
    **_capture: Any,
) -> Any:
    """Return a function for each callable, or one for one, that computes the callable in its `autocast` state.

    sample_args: as many tuples as callables; nothing is captured, so that they are not read. enabled, recipe,
    calibrating, amax_reduction_group: those of `autocast`. Options of the capture are accepted and change nothing.

    Errors: SettingError for counts that differ.
    """
    several = isinstance(modules, tuple)
    callables = modules if isinstance(modules, tuple) else (modules,)
    asked = fp8_enabled if enabled is None else enabled
    states = asked if isinstance(asked, tuple) else (bool(asked),) * len(callables)
    if len(states) != len(callables) or (several and len(sample_args) != len(callables)):
        got = f"{len(callables)} callables, {len(states)} states"
        raise SettingError("make_graphed_callables", got, "one state and one tuple of sample_args for each callable")
    chosen = fp8_recipe if recipe is None else recipe

    def under(function: Callable[..., Any], state: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with autocast(state, calibrating, chosen, amax_reduction_group):
                return function(*args, **kwargs)

        return call

    made = tuple(under(function, state) for function, state in zip(callables, states, strict=True))
    return made if several else made[0]
