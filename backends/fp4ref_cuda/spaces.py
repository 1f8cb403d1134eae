"""Memory that the launches of one call leave for each other, remembered for the next call on the same stream.

The work of a stream runs in order, so that a later call writes where an earlier one has read: torch's allocator gives
out memory that was freed in the same order. A piece belongs to one call while that starts its launches, whichever
thread it is on; a call that finds none, or that a caller captures, allocates as for a result. Pieces come from the
driver, because memory of torch's allocator may belong to a pool that the caller frees, or replays a graph in.
"""

from __future__ import annotations

from fp4ref.errors import BackendError
from fp4ref_cuda.graphs import relaxed_capture
from fp4ref_cuda.launch import require

SIZE = 1 << 16  # bytes of a piece: maxima of the blocks of a device, and scales of small tensors
MOST = 64  # pieces of a process, at most
OF_THREADS = 2  # the handle that stands for another stream in each thread

_free: dict[tuple[int, int], list[int]] = {}  # addresses by device and stream; its operations are atomic
_made: list[int | None] = []  # None for one that there was no memory for


def take(ordinal: int, stream: int) -> int | None:
    """Return the address of SIZE bytes on the current device that nothing else writes until they are given back.

    Returns None where there are none: the caller allocates.
    """
    try:
        return _free[ordinal, stream].pop()
    except (KeyError, IndexError):
        return _new(stream)


def give_back(ordinal: int, stream: int, address: int) -> None:
    """Let the next call on the stream have the bytes, once all launches that use them are started."""
    try:
        _free[ordinal, stream].append(address)
    except KeyError:
        _free.setdefault((ordinal, stream), []).append(address)


def _new(stream: int) -> int | None:
    """Return the address of new memory, which is kept until the process ends; None without room.

    A device that had none left is not asked again.
    """
    if len(_made) >= MOST or None in _made or stream == OF_THREADS:
        return None
    from cuda.bindings import driver

    try:
        with relaxed_capture():
            address: int | None = int(require(driver.cuMemAlloc(SIZE)))
    except (BackendError, RuntimeError):  # no memory left, or no driver
        address = None
    _made.append(address)
    return address
