"""Backends: what they declare, how they are found, and which one serves a call.

A backend registers through the entry-point group `fp4ref.backends`, ours exactly as a third party's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from fp4ref.errors import BackendError
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

GROUP = "fp4ref.backends"


def everything(spec: Spec) -> list[str]:
    """No reason against any specification."""
    return []


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What a backend declares before it is loaded.

    load: imports what the operations need; ImportError, OSError or BackendError say why it cannot run.
    operations: names of functions of the loaded module; see CONTRIBUTING for their signatures.
    unsupported: reasons against a specification, none if it is served. devices: where its arrays lie.
    speed: among backends that can serve a call, the largest wins.
    flags: whether its functions that quantize take `noop`, a flag that stays on the device unread.

    Rules: CNF-5.
    """

    name: str
    load: Callable[[], ModuleType]
    operations: tuple[str, ...]
    unsupported: Callable[[Spec], list[str]] = everything
    devices: tuple[str, ...] = ("cpu",)
    speed: int = 0
    flags: bool = False


@dataclass(frozen=True)
class Call:
    """What a call will need, told before it is made.

    source, to: NumPy names of the type of x and, of dequantize, of the result.
    """

    operation: str
    spec: Spec
    source: str = "float32"
    direction: Direction = "row"
    to: str = "float32"


@lru_cache
def backends() -> dict[str, Backend]:
    """Every registered backend, by name; nothing is loaded but its declaration."""
    return {entry.name: entry.load() for entry in entry_points(group=GROUP)}


@lru_cache
def _loaded(name: str) -> ModuleType | str:
    """The backend's operations, or the reason why it cannot run."""
    try:
        return backends()[name].load()
    except (ImportError, OSError, BackendError) as error:
        return str(error).splitlines()[0]


def get(name: str) -> ModuleType:
    """The operations of a backend that was asked for by name; BackendError says why it cannot run. Rules: CNF-5."""
    if name not in backends():
        raise BackendError("backend", f"unknown name {name!r}", f"one of {', '.join(sorted(backends()))}", "CNF-5")
    module = _loaded(name)
    if isinstance(module, str):
        raise BackendError(f"backend {name}", f"unavailable: {module}", rule="CNF-5")
    return module


def available() -> list[tuple[str, str | None]]:
    """Names of all backends, fastest first, each with the reason why it cannot run, or None."""
    return [(b.name, reason if isinstance(reason := _loaded(b.name), str) else None) for b in _fastest_first()]


def _fastest_first() -> list[Backend]:
    return sorted(backends().values(), key=lambda backend: -backend.speed)


def choose(operation: str, spec: Spec | None, device: str, name: str | None, flag: bool = False) -> Callable[..., Any]:
    """The function that serves a call: the named backend's, or the fastest one's for the array's device.

    flag: only of a backend with `flags`.
    Never a silent fallback: a named backend that cannot serve the call is an error.

    Rules: CNF-5.
    """
    if name is not None:
        module = get(name)
        reasons = _reasons(backends()[name], operation, spec, device, flag)
        if reasons:
            raise BackendError(f"{operation} on backend {name}", "; ".join(reasons), "another backend", "CNF-5")
        return _function(module, operation)
    refused: list[str] = []
    for candidate in _fastest_first():
        reasons = _reasons(candidate, operation, spec, device, flag)  # before it is loaded, which can take a while
        loaded = "; ".join(reasons) or _loaded(candidate.name)
        if not isinstance(loaded, str):
            return _function(loaded, operation)
        refused.append(f"{candidate.name}: {loaded}")
    raise BackendError(operation, f"no backend for it ({' | '.join(refused)})", rule="CNF-5")


def offers(operation: str, spec: Spec, device: str, name: str | None, flag: bool = False) -> bool:
    """Whether `choose` would find a backend for an operation that few have."""
    try:
        choose(operation, spec, device, name, flag)
    except BackendError:
        return False
    return True


def _reasons(backend: Backend, operation: str, spec: Spec | None, device: str, flag: bool) -> list[str]:
    reasons = []
    if operation not in backend.operations:
        reasons.append(f"no operation {operation}")
    if device not in backend.devices:
        reasons.append(f"an array on {device}, not on {' or '.join(backend.devices)}")
    if flag and not backend.flags:
        reasons.append("no flag on a device")
    return reasons + (backend.unsupported(spec) if spec else [])


def _function(module: ModuleType, operation: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(module, operation)
    return function
