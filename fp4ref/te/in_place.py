"""Buffers of tensors filled where they are in the CPU's memory, by a backend that has served others of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from torch import Tensor

from fp4ref.memory import apart
from fp4ref.te.steps import Filled


def filled(
    tensor: Tensor,
    dst: Any,
    buffers: Callable[[Any], Sequence[Any]],
    into: Callable[[Tensor, Sequence[Any]], Any] | None,
) -> Filled | None:
    """Return a function that fills tensors of a kind; None without a function that does so at given buffers.

    buffers: of a tensor that is filled, and None. into: gets a tensor and buffers of these ones' kinds. Where these
    share memory, the quantizer fills them, or refuses to.
    """
    if into is None:
        return None
    are_apart = apart([tensor, *[each for each in buffers(dst) if each is not None]])

    def again(x: Tensor, quantizer: Any, dst: Any, flag: Tensor | None) -> None:
        held = buffers(dst)
        if are_apart([x, *[each for each in held if each is not None]]):
            into(x, held)
        else:
            quantizer.fill(x, dst)

    return again


def reader(*names: str) -> Callable[[Any], Sequence[Any]]:
    """Return a function that reads attributes of a tensor that is filled."""
    of = itemgetter(*names)
    return lambda dst: of(dst.__dict__)


def alike(made: Iterable[Any], held: Iterable[Any]) -> bool:
    """Return True if some buffers have the types and shapes of others, and None where these are."""
    facts = ([None if each is None else (each.dtype, each.shape) for each in some] for some in (made, held))
    return next(facts) == next(facts)
