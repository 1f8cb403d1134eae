"""The device that is emulated: its compute capability decides which recipes run and which scales a kernel swizzles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fp4ref.errors import DomainError

_EMULATED = [(10, 0)]


def get_device_compute_capability() -> tuple[int, int]:
    """Compute capability of the emulated device, (10, 0) unless `emulate_device` says otherwise."""
    return _EMULATED[-1]


@contextmanager
def emulate_device(major: int, minor: int = 0) -> Iterator[None]:
    """Emulate a device of another compute capability within the context.

    Errors: DomainError for a negative number.
    """
    if major < 0 or minor < 0:
        raise DomainError("emulate_device", f"capability {major}.{minor}", "two numbers >= 0")
    _EMULATED.append((major, minor))
    try:
        yield
    finally:
        _EMULATED.pop()
