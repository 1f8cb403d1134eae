"""Processes of a group, run one after another.

An all-reduce gives each process what all of them gave in the round before, and rounds are repeated until every process
gives the same as before: then each has run as if all had run together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ROUNDS = 5  # at most; each all-reduce may depend on the one before


class BlockedError(Exception):
    """Processes whose calls of a collective differ."""


@contextmanager
def _patched(size: int, all_reduce: Callable[..., Any]) -> Iterator[None]:
    """Let torch have a group of processes."""
    import torch.distributed as dist

    changed = {"all_reduce": all_reduce, "get_world_size": lambda group=None: size, "is_initialized": lambda: True}
    usual = {name: getattr(dist, name) for name in changed}
    for name, part in changed.items():
        setattr(dist, name, part)
    try:
        yield
    finally:
        for name, part in usual.items():
            setattr(dist, name, part)


def together(members: list[Callable[[], Any]]) -> list[Any]:
    """Return the results of processes that share all-reduces by maximum. Errors: BlockedError."""
    import torch
    import torch.distributed as dist

    before: list[list[Any]] = [[] for _ in members]
    for _ in range(ROUNDS):
        now: list[list[Any]] = [[] for _ in members]
        results = []
        for own, member in zip(now, members, strict=True):

            def all_reduce(
                x: Any, op: Any, group: Any = None, own: list[Any] = own, before: list[list[Any]] = before
            ) -> None:
                if op != dist.ReduceOp.MAX:
                    raise BlockedError(f"an all-reduce by {op}")
                own.append(x.clone())
                for each in before:
                    if len(each) >= len(own):
                        torch.maximum(x, each[len(own) - 1], out=x)

            with _patched(len(members), all_reduce):
                results.append(member())
        if len({len(given) for given in now}) > 1:
            raise BlockedError(f"{[len(given) for given in now]} calls")
        same = all(
            len(one) == len(other) and all(map(torch.equal, one, other)) for one, other in zip(before, now, strict=True)
        )
        if same:
            return results
        before = now
    raise BlockedError(f"no common result after {ROUNDS} rounds")
