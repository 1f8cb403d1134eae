"""Work on several parts of a checkpoint at once, in processes: counting bytes holds the interpreter's lock."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Any, TypeVar

from fp4ref.checkpoints.in_threads import in_threads
from fp4ref.checkpoints.shards import Shard

Part = TypeVar("Part")
Result = TypeVar("Result")
THREADS = ("FP4REF_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # variables that limit threads
AHEAD = 16  # parts of each process that may be done before one that takes long
_begun: list[tuple[Callable[[Any], Any], Sequence[Any], Sequence[Shard]]] = []  # what the copies of this process do


def in_processes(
    work: Callable[[Part], Result], parts: Sequence[Part], count: int, shards: Sequence[Shard] = ()
) -> Iterator[Result]:
    """Yield the results of parts in their order; at most `count` parts are worked on at a time.

    The processes are copies of this one, so that only results are sent; what a process that ends has lost is done here.
    Threads take their place where a process cannot be copied safely. shards: files whose bytes read are counted here.

    Rules: CKP-30.
    """
    count = min(count, len(parts))
    if count < 2 or sys.platform != "linux":
        yield from in_threads(work, parts, max(count, 1))
        return
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _begin, (count,))
    entry, done = (work, parts, shards), 0
    _begun.append(entry)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the thread of a bar, which no copy uses
            waiting = [pool.submit(_do, number) for number in range(min(AHEAD * count, len(parts)))]
        while done < len(parts):
            result, read = waiting.pop(0).result()
            if (number := done + AHEAD * count) < len(parts):
                waiting.append(pool.submit(_do, number))
            done += 1
            for shard, more in zip(shards, read, strict=True):
                shard.read_bytes += more
            yield result
    except BrokenProcessPool:
        yield from map(work, parts[done:])
    finally:
        _begun.remove(entry)
        pool.shutdown(cancel_futures=True)


def _do(number: int) -> tuple[Any, list[int]]:
    """Return the result of a part, and the bytes of each shard that were read for it, in a copy of the process."""
    work, parts, shards = _begun[-1]
    before = [each.read_bytes for each in shards]
    result = work(parts[number])
    return result, [each.read_bytes - count for each, count in zip(shards, before, strict=True)]


def _begin(count: int) -> None:
    """Begin a process of a pool: a share of the processors, and no end of its own by a key of the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in THREADS:
        os.environ.setdefault(name, str(max((os.cpu_count() or 1) // count, 1)))
    end_with_parent()


def end_with_parent() -> None:
    """End this process of a pool when its parent has ended: the pool's queue alone would let it wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()
