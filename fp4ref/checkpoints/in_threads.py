"""Work on several parts of a checkpoint at once, in threads: nearly all of it releases the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from fp4ref import processors

MOST = 8  # threads of which each holds a piece
Part = TypeVar("Part")
Result = TypeVar("Result")


def usual_count() -> int:
    """Return the number of threads that a process works in on checkpoints: at most 8."""
    return min(processors.count(), MOST)


def in_threads(work: Callable[[Part], Result], parts: Iterable[Part], count: int) -> Iterator[Result]:
    """Yield the results of parts in their order; at most `count` parts are worked on at a time.

    Results wait for those before them, at most twice as many as there are threads. After an error no part is begun.
    """
    if count == 1:
        yield from map(work, parts)
        return
    rest = iter(parts)
    with ThreadPoolExecutor(count, "fp4ref-checkpoint") as pool:
        waiting = [pool.submit(work, part) for part in islice(rest, 2 * count)]
        try:
            while waiting:
                yield waiting.pop(0).result()
                waiting += [pool.submit(work, part) for part in islice(rest, 1)]
        finally:
            pool.shutdown(cancel_futures=True)
