"""Running a conversion: in this process, in several, as a rank of any launcher, or on a Dask cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from fp4ref.checkpoints.in_processes import THREADS, end_with_parent
from fp4ref.checkpoints.in_threads import usual_count
from fp4ref.checkpoints.transfer.plan import ConversionPlan
from fp4ref.checkpoints.transfer.request import ConversionRequest
from fp4ref.checkpoints.transfer.work import begin, discard, finish, remaining, write_part
from fp4ref.errors import DomainError, FileError, Fp4Error

RETRIES = 2
CONNECT = "10s"
Tell = Callable[[str], None]
AGAIN = "to run the same command again, which goes on with what is finished"


@dataclass
class Meter:
    """The progress of a run: bytes that are written, their rate, and the time that is left."""

    total: int
    tell: Tell
    done: int = 0
    begun: float = field(default_factory=time.monotonic)
    lock: Lock = field(default_factory=Lock)

    def step(self, name: str, count: int) -> None:
        """Count bytes of a tensor, and tell how far the run is. Any thread may call this."""
        with self.lock:
            self._step(name, count)

    def _step(self, name: str, count: int) -> None:
        self.done += count
        passed = time.monotonic() - self.begun
        rate = self.done / passed if passed else 0.0
        left = f", {(self.total - self.done) / rate:.0f} s left" if rate else ""
        sizes = f"{self.done / 1e9:.2f} of {self.total / 1e9:.2f} GB"
        self.tell(f"{name} ({sizes}, {rate / 1e6:.0f} MB/s{left})")


def run(
    request: ConversionRequest,
    *,
    rank: int = 0,
    world: int = 1,
    workers: int = 1,
    scheduler: str = "",
    tell: Tell = lambda text: None,
) -> dict[str, Any] | None:
    """Do a conversion, and return its manifest; None for one rank of several, which `finish` joins.

    rank, world: write only every world-th shard, from rank on. workers: local processes. scheduler: the address of a
    Dask scheduler, whose workers see the same files.

    Errors: FileError, DomainError.

    Rules: CNV-8, CNV-9, CNV-15.
    """
    if not 0 <= rank < world or workers < 1:
        raise DomainError("convert", f"rank {rank} of {world}, {workers} workers", "0 <= rank < world", "CNV-15")
    partial, plan = begin(request)
    try:
        _write(partial, plan, rank, world, workers, scheduler, tell)
    except DomainError:
        discard(partial)
        raise
    return finish(request.target) if world == 1 else None


def _write(
    partial: Path, plan: ConversionPlan, rank: int, world: int, workers: int, scheduler: str, tell: Tell
) -> None:
    """Write the shards of a rank that are still missing."""
    numbers = [number for number in remaining(partial, plan) if number % world == rank]
    meter = Meter(sum(plan.shards[number].length for number in numbers), tell)
    if scheduler:
        _on_cluster(partial, plan, numbers, scheduler, meter)
    elif workers > 1 and len(numbers) > 1:
        _in_processes(partial, plan, numbers, workers, meter)
    else:
        for number in numbers:
            write_part(str(partial), number, meter.step, max(workers, usual_count()))


def _in_processes(partial: Path, plan: ConversionPlan, numbers: list[int], workers: int, meter: Meter) -> None:
    """Write shards in local processes, of which this is one, and in threads of these if there are more processors.

    This process takes shards from the end while the others start. The work of a process that ends is done again.

    Rules: CNV-15, CNV-47.
    """
    context = multiprocessing.get_context("spawn")
    each_process = max((os.cpu_count() or 1) // workers, 1)

    def count(future: Future[int]) -> None:
        if not future.cancelled() and future.exception() is None:
            shard = plan.shards[future.result()]
            meter.step(shard.name, shard.length)

    for _ in range(1 + RETRIES):
        try:
            others = max(min(workers, len(numbers)) - 1, 1)
            with _processors(each_process), ProcessPoolExecutor(others, context, end_with_parent) as pool:
                threads = max(-(-workers // len(numbers)), usual_count())
                futures = [pool.submit(write_part, str(partial), number, threads=threads) for number in numbers]
                for each in futures:
                    each.add_done_callback(count)
                try:
                    for number, own in zip(reversed(numbers), reversed(futures), strict=True):
                        if own.cancel():
                            write_part(str(partial), number, meter.step, threads)
                        _raise_first(futures)
                    for each in futures:
                        if not each.cancelled():
                            each.result()
                except Fp4Error:
                    pool.shutdown(cancel_futures=True)
                    raise
        except BrokenProcessPool:
            pass
        numbers = [number for number in remaining(partial, plan) if number in numbers]
        if not numbers:
            return
    raise FileError("convert", f"worker processes ended {1 + RETRIES} times", AGAIN, "CNV-47")


@contextmanager
def _processors(count: int) -> Iterator[None]:
    """Limit the threads of this process and of those that it starts meanwhile, where the user has set no limit."""
    added = [name for name in THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, str(count)))
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _raise_first(futures: list[Future[int]]) -> None:
    """Raise the error of a future that is done, if there is one."""
    for each in futures:
        if each.done() and not each.cancelled():
            each.result()


def _on_cluster(partial: Path, plan: ConversionPlan, numbers: list[int], scheduler: str, meter: Meter) -> None:
    """Write shards on a Dask cluster, with retries. Rules: CNV-15, CNV-61."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise FileError("convert", "no package distributed", "pip install 'fp4ref[checkpoints]'", "CNV-15") from None
    try:
        with _quiet("distributed"), distributed.Client(scheduler, timeout=CONNECT) as client:
            futures = client.map(write_part, [str(partial)] * len(numbers), numbers, retries=RETRIES, pure=False)
            for each in distributed.as_completed(futures):
                shard = plan.shards[each.result()]
                meter.step(shard.name, shard.length)
    except Fp4Error:
        raise
    except Exception as error:  # noqa: BLE001 - a cluster that fails has no common class of error
        said = " ".join(str(error).split())[:100] or type(error).__name__
        raise FileError("convert", f"the cluster at {scheduler} failed ({said})", AGAIN, "CNV-61") from None


@contextmanager
def _quiet(package: str) -> Iterator[None]:
    """Keep a package from logging: a cluster that is lost is one error, and not a traceback of each of its tasks."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.split(".")[0] == package]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
