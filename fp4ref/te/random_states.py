"""Named states of the random generator of the device that a model runs on: the GPU's, or the CPU's without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError

_ALL: dict[str, Tensor] = {}


def get_all_rng_states() -> dict[str, Tensor]:
    """Return the states of the tracker that was set last."""
    return _ALL


def set_all_rng_states(states: dict[str, Tensor]) -> None:
    """Remember the states of a tracker."""
    global _ALL  # noqa: PLW0603 - one per process, as scripts read it
    _ALL = states


class CudaRNGStatesTracker:
    """Keeps a random state per name; inside `fork` the generator continues from one of them.

    Errors: SettingError for a name or a seed that is added twice, KeyError for one that was never added.
    """

    def __init__(self) -> None:
        self.states_: dict[str, Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget every state."""
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, Tensor]:
        """Return the states by name."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Tensor]) -> None:
        """Replace the states."""
        self.states_ = states
        set_all_rng_states(states)

    def add(self, name: str, seed: int) -> None:
        """Add the state of a generator that is seeded so."""
        if seed in self.seeds_:
            raise SettingError("CudaRNGStatesTracker", f"seed {seed} already exists", "another one")
        if name in self.states_:
            raise SettingError("CudaRNGStatesTracker", f"state {name} already exists", "another name")
        self.seeds_.add(seed)
        before = _state()
        torch.manual_seed(seed)
        self.states_[name] = _state()
        _set_state(before)
        set_all_rng_states(self.states_)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Draw from a named state inside the context, and from the former one afterwards."""
        if name not in self.states_:
            raise KeyError(f"random state {name} is not added")
        before = _state()
        _set_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = _state()
            _set_state(before)


def _state() -> Tensor:
    return torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.get_rng_state()


def _set_state(state: Tensor) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)
