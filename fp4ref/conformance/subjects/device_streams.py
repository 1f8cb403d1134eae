"""Calls that run at once, each on a stream of its own of a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

GATE = 50_000_000  # cycles that a device waits, so that all calls are queued before the first runs


def on_streams(device: str, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make calls, each with another current stream, and return their results when the device has finished.

    No stream starts before a delay on one more has passed. The device's default stream waits for none of them.

    Rules: CNF-66.
    """
    import torch

    where = torch.device(device)
    with torch.cuda.device(where):
        gate, *streams = [torch.cuda.Stream(where) for _ in range(len(calls) + 1)]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(where)
        with torch.cuda.stream(gate):
            torch.cuda._sleep(GATE)  # type: ignore[no-untyped-call]  # torch has no public delay
        for stream in streams:
            stream.wait_stream(gate)
        found = []
        for stream, call in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                found.append(call())
        torch.cuda.synchronize(where)
    return found
