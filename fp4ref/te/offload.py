"""Offloading of activations to the CPU: an emulator has nothing to offload to, so the contexts do nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fp4ref.te.errors import SettingError
from fp4ref.te.module.options import require_only_supported
from fp4ref.te.storage import QuantizedTensorStorage, sharing_buffers


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


class OffloadableLayerState:
    """The tensors of one layer, each kept where it is: "offloading" is a state, in the order that the library demands.

    A quantized tensor is kept as its buffers and an object that takes them back.
    """

    def __init__(self, offload_stream: Any = None, retain_pinned_cpu_buffers: bool = False) -> None:
        self.offload_stream, self.retain_pinned_cpu_buffers = offload_stream, retain_pinned_cpu_buffers
        self.state = "not_offloaded"
        self._kept: list[Any] = []

    def _enter(self, name: str, before: str, after: str) -> None:
        self._require(name, before)
        self.state = after

    def _require(self, name: str, *allowed: str) -> None:
        if self.state not in allowed:
            raise SettingError(name, f"state {self.state}", " or ".join(allowed))

    def start_offload(self) -> None:
        """Begin to offload the tensors that were pushed."""
        self._enter("start_offload", "not_offloaded", "offload_started")

    def release_activation_forward_gpu_memory(self) -> None:
        """Wait for the end of offloading."""
        self._enter("release_activation_forward_gpu_memory", "offload_started", "offload_finished")

    def start_reload(self) -> None:
        """Begin to bring the tensors back."""
        self._enter("start_reload", "offload_finished", "reload_started")

    def push_tensor(self, tensor: Any) -> Any:
        """Keep a tensor; return what `pop_tensor` takes."""
        self._require("push_tensor", "not_offloaded")
        if isinstance(tensor, QuantizedTensorStorage):
            saved, kept = sharing_buffers(tensor).prepare_for_saving()
            return [None if each is None else self.push_tensor(each) for each in saved], [kept]
        self._kept.append(tensor)
        return len(self._kept) - 1

    def pop_tensor(self, tensor_or_tensor_id: Any) -> Any:
        """Return a tensor that was pushed."""
        self._require("pop_tensor", "not_offloaded", "reload_started")
        if isinstance(tensor_or_tensor_id, tuple):
            pushed, (kept,) = tensor_or_tensor_id
            kept.restore_from_saved([None if each is None else self.pop_tensor(each) for each in pushed])
            return kept
        return self._kept[tensor_or_tensor_id] if isinstance(tensor_or_tensor_id, int) else tensor_or_tensor_id

    def release_all_memory(self) -> None:
        """Let go of every tensor."""
        self.state, self._kept = "not_offloaded", []

    def get_offloaded_total_size_mb(self) -> float:
        """Return the size of the tensors that were offloaded, in MB: nothing is."""
        return 0.0


def is_cpu_offload_enabled() -> bool:
    """Return False: nothing is ever offloaded."""
    return False


def mark_not_offload(*tensors: Any) -> None:
    """Do nothing: nothing is ever offloaded."""


def mark_activation_offload(*tensors: Any) -> None:
    """Do nothing: nothing is ever offloaded."""


def _same(x: Any) -> Any:
    return x
