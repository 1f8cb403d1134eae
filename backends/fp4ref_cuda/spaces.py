"""Memory that the launches of one call leave for each other, remembered for the next call on the same stream.

The work of a stream runs in order, so that a later call writes where an earlier one has read: torch's allocator gives
out memory that was freed in the same order. A call takes a piece from its stream's free ones until all its launches are
started, so that no other thread, and nothing that runs between its launches, has the same one. A call that is captured
takes none. Pieces come from the driver, because memory of torch's allocator may belong to a pool that the caller frees,
or replays a graph in.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from fp4ref.errors import BackendError
from fp4ref_cuda.graphs import relaxed_capture
from fp4ref_cuda.launch import require

SIZE = 1 << 16  # bytes of a piece: maxima of the blocks of a device, and scales of small tensors
MOST = 64  # pieces of a process, at most
OF_THREADS = 2  # the handle that stands for another stream in each thread

_made: list[int | None] = []  # None for one that there was no memory for


@lru_cache
def free_on(ordinal: int) -> defaultdict[int, list[int]]:
    """Return the addresses of the pieces of a device that no call uses, by stream; taking and giving is atomic."""
    return defaultdict(list)


def new_piece(stream: int) -> int | None:
    """Return the address of SIZE new bytes on the current device, kept until the process ends; None without room.

    A device that had none left is not asked again.
    """
    if len(_made) >= MOST or None in _made or stream == OF_THREADS:
        return None
    try:
        from cuda.bindings import driver

        with relaxed_capture():
            address: int | None = int(require(driver.cuMemAlloc(SIZE)))
    except (BackendError, ImportError, RuntimeError):  # no memory left, or no driver, as where launches run on the host
        address = None
    _made.append(address)
    return address
