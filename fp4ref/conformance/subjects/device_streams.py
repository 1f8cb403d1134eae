"""Calls that run at once, each on a stream of its own of a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

GATE = 50_000_000  # cycles that a device waits, so that all calls are queued before the first runs


def on_streams(device: str, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make calls, each with another current stream, and return their results when the device has finished.

    Work queued before comes first: no stream starts before a delay on the current one has passed.

    Rules: CNF-14.
    """
    import torch

    where = torch.device(device)
    with torch.cuda.device(where):
        streams = [torch.cuda.Stream(where) for _ in calls]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(where)
        torch.cuda._sleep(GATE)  # type: ignore[no-untyped-call]  # torch has no public delay
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(where))
        found = []
        for stream, call in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                found.append(call())
        torch.cuda.synchronize(where)
    return found
