"""Launches that come again with every address of earlier ones, as one graph of the driver: one start for all of them.

A loop that trains or serves gets the same memory from its allocator in each round. So the launches of a program are
the same as before, word for word, and the driver can be told of them once: a graph is started in the time of one or
two launches, however many it holds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from fp4ref.errors import BackendError
from fp4ref_cuda.buffers import Library
from fp4ref_cuda.launch import driver_library, error_name, require

MET = 2  # times that addresses are met before their graph is made, which takes as long as about 20 launches
KEPT = 128  # graphs of a program, at most: one for each layer that shares it, or two
MOST = 4096  # graphs of a process, at most, which take half a gigabyte of a device outside of torch's pool
REFUSED = 2 * KEPT  # times that there was no room before those not started since are dropped
SEEN = 1024  # addresses met fewer times, at most


class Graph:
    """Launches, ready to start again. Destroyed with its last reference, or when it has run to its end.

    idle: set by others, and taken back by a start. alive: how many there are.
    """

    alive = 0

    def __init__(self, record: Callable[[int], None], ordinal: int) -> None:
        """record: starts the launches on a stream. This runs nothing on the device, and leaves other captures alone."""
        from cuda.bindings import driver

        self._executable: Any = None
        self._destroy, self._ends = driver.cuGraphExecDestroy, sys.is_finalizing
        with _making, relaxed_capture() as relaxed:
            stream = _stream(ordinal)
            try:
                require(driver.cuStreamBeginCapture(stream, relaxed))
                record(int(stream))
            finally:
                captured = driver.cuStreamEndCapture(stream)
            graph = require(captured)
            try:
                self._executable = require(driver.cuGraphInstantiate(graph, 0))
            finally:
                driver.cuGraphDestroy(graph)
        self.idle = False
        Graph.alive += 1
        self._address, self._begin, self._lock = int(self._executable), driver_library().cuGraphLaunch, threading.Lock()

    def __del__(self) -> None:
        if self._executable is not None and not self._ends():  # at the end of the process the driver is gone
            Graph.alive -= 1
            with suppress(BackendError), relaxed_capture():
                self._destroy(self._executable)

    def start(self, stream: int) -> None:
        """Start the launches on a stream."""
        self.idle = False
        with self._lock:  # the driver leaves it to the caller that two threads do not start one graph
            error = self._begin(self._address, stream)
        if error:
            raise BackendError("cuda: a graph of launches", error_name(error), rule="CNF-5")


class Graphs:
    """The graphs of one program, `made` by the addresses of its arrays."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, ...], Graph] = {}
        self._met: dict[int, int] = {}  # by the hash of addresses: of two with one hash, one is made earlier
        self._works = True
        self._refused = 0

    def new(self, places: tuple[int, ...], record: Callable[[int], None], library: Library) -> Graph | None:
        """Return a graph of addresses that were met before; None where the launches are to be started one by one.

        They are where the caller captures them: a graph inside of another one is harder to look through. record: starts
        the launches at these addresses on a stream. A device that cannot make a graph of them, as where it has no
        memory left, is not asked again.
        """
        mark = hash(places)
        met = self._met.get(mark, 0)
        if met < MET:
            if len(self._met) >= SEEN:
                self._met.clear()
            self._met[mark] = met + 1
            return None
        if not self._works or library.captures():
            return None
        self._met[mark] = 0
        if not self._room():
            return None
        try:
            graph = self.made[places] = Graph(record, library.ordinal)
        except BackendError:
            self._works = False
            return None
        return graph

    def _room(self) -> bool:
        """Return True if there is room for a graph; now and then, those not started since the last time are dropped."""
        if Graph.alive >= MOST:
            return False
        if len(self.made) < KEPT:
            return True
        self._refused += 1
        if self._refused >= REFUSED:
            self._refused = 0
            for places, graph in list(self.made.items()):
                if graph.idle:
                    self.made.pop(places, None)
                graph.idle = True
        return len(self.made) < KEPT


_making = threading.Lock()


@contextmanager
def relaxed_capture() -> Iterator[Any]:
    """Let this thread call what ends a capture of its own, or another thread's, without ending any."""
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = require(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield relaxed
    finally:
        require(driver.cuThreadExchangeStreamCaptureMode(before))


@lru_cache
def _stream(ordinal: int) -> Any:
    """Return a stream of the current device for captures alone: nothing ever runs on it."""
    from cuda.bindings import driver

    return require(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
