"""Recompute a part of a model in the backward pass, under the recipe of its forward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from typing import Any

import torch.utils.checkpoint

from fp4ref.te.module.options import require_only_supported
from fp4ref.te.quantization import FP8GlobalState, FP8GlobalStateManager

Used = list[tuple[Any, torch.Tensor]]  # states of delayed scaling, and the scales that they had


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = True,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    tp_group: Any = None,
    **kwargs: Any,
) -> Any:
    """Call a function and keep its arguments only; its backward pass calls it again, in the same `autocast` state.

    With delayed scaling, the second call uses the scales of the first one, and its maxima do not count. Inside of both
    calls `is_fp8_activation_recompute_enabled` is True, inside of the second `in_fp8_activation_recompute_phase`, too.

    use_reentrant: either way gives the same values; the recomputation is torch's non-reentrant one.
    get_rng_state_tracker: returns a tracker of named random states, with `get_states` and `set_states`; the second call
    draws from them what the first one drew, and leaves them as they were.

    Errors: NotSupportedError for saved activations that are distributed.

    Rules: TEM-4, TEL-71.
    """
    require_only_supported("checkpoint", distribute_saved_activations=distribute_saved_activations)
    state = FP8GlobalStateManager.get_autocast_state()
    used: Used = []
    drawing = nullcontext() if get_rng_state_tracker is None else _Drawing(get_rng_state_tracker)
    return torch.utils.checkpoint.checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=lambda: (_Noting(used), _Under(state, used, drawing)),
        **kwargs,
    )


class _Drawing:
    """A context in which a tracker's random states are those of the time when it was made."""

    def __init__(self, tracker: Callable[[], Any]) -> None:
        self.tracker, self.states = tracker, tracker().get_states()
        self.before: Any = None

    def __enter__(self) -> None:
        self.before = self.tracker().get_states()
        self.tracker().set_states(dict(self.states))

    def __exit__(self, *error: object) -> None:
        self.tracker().set_states(self.before)


class _Noting:
    """A context in which the scales that a forward pass uses are noted."""

    def __init__(self, used: Used) -> None:
        self.used = used
        self.before: Used | None = None
        self.phase = activation_recompute_forward(True)

    def __enter__(self) -> None:
        self.phase.__enter__()
        state = FP8GlobalStateManager.quantization_state
        self.before, state.scales_used = state.scales_used, self.used

    def __exit__(self, *error: object) -> None:
        FP8GlobalStateManager.quantization_state.scales_used = self.before
        self.phase.__exit__(*error)


class _Under:
    """A context in which a recorded state and recorded scales hold; one backward pass after another may enter it."""

    def __init__(self, state: FP8GlobalState, used: Used, drawing: AbstractContextManager[None]) -> None:
        self.state, self.before = state, state
        self.used, self.drawing = used, drawing
        self.kept: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
        self.phase = activation_recompute_forward(True, True)

    def __enter__(self) -> None:
        self.phase.__enter__()
        self.drawing.__enter__()
        self.before = FP8GlobalStateManager.get_autocast_state()
        FP8GlobalStateManager.set_autocast_state(self.state)
        self.kept = [(state, state.scale.clone(), state.amax_history.clone()) for state, _ in self.used]
        for state, scale in self.used:
            state.scale.copy_(scale)

    def __exit__(self, *error: object) -> None:
        FP8GlobalStateManager.set_autocast_state(self.before)
        for state, scale, history in self.kept:
            state.scale.copy_(scale)
            state.amax_history.copy_(history)
        self.drawing.__exit__(None, None, None)
        self.phase.__exit__(*error)


class activation_recompute_forward(ContextDecorator):  # noqa: N801 - a public name
    """Says for its duration that activations are recomputed, and whether this is the recomputation."""

    recomputes = recomputation = False

    def __init__(self, activation_recompute: bool = False, recompute_phase: bool = False) -> None:
        self.said = activation_recompute, recompute_phase
        self.before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        outer = activation_recompute_forward
        self.before.append((outer.recomputes, outer.recomputation))
        outer.recomputes, outer.recomputation = self.said

    def __exit__(self, *error: object) -> None:
        outer = activation_recompute_forward
        outer.recomputes, outer.recomputation = self.before.pop()


def is_fp8_activation_recompute_enabled() -> bool:
    """Return True where activations are recomputed and an `autocast` is active."""
    return activation_recompute_forward.recomputes and FP8GlobalStateManager.is_fp8_enabled()


def in_fp8_activation_recompute_phase() -> bool:
    """Return True within a recomputation."""
    return activation_recompute_forward.recomputation


def get_activation_recompute_contexts() -> tuple[activation_recompute_forward, activation_recompute_forward]:
    """Return the contexts of the forward pass and of its recomputation."""
    return activation_recompute_forward(True), activation_recompute_forward(True, True)
