"""Offloading of activations to the CPU: an emulator has nothing to offload to, so the contexts do nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fp4ref.te.module.options import require_only_supported


def get_cpu_offload_context(
    enabled: bool = False,
    num_layers: int | None = 1,
    model_layers: int = 1,
    offload_activations: bool = True,
    offload_weights: bool = False,
    double_buffering: bool = False,
    manual_synchronization: bool = False,
    **_advice: Any,
) -> tuple[AbstractContextManager[None], Callable[[Any], Any]]:
    """Return a context for the layers, and a function that marks the end of a layer; neither changes a value.

    Errors: NotSupportedError for synchronization by hand.
    """
    require_only_supported("get_cpu_offload_context", manual_synchronization=manual_synchronization)
    return _Layers(), _same


class _Layers(AbstractContextManager[None]):
    """A context that only says whether it is entered, as frameworks ask."""

    inside_context = False

    def __enter__(self) -> None:
        self.inside_context = True

    def __exit__(self, *_error: object) -> None:
        self.inside_context = False


def is_cpu_offload_enabled() -> bool:
    """Return False: nothing is ever offloaded."""
    return False


def mark_not_offload(*tensors: Any) -> None:
    """Do nothing: nothing is ever offloaded."""


def mark_activation_offload(*tensors: Any) -> None:
    """Do nothing: nothing is ever offloaded."""


def _same(x: Any) -> Any:
    return x
