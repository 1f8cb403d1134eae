"""Kinds of arrays: all of them that the choice of kernels can depend on. Calls that agree in it are of one kind."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any

from fp4ref_cuda.buffers import ALIGNMENT


def seen_in(
    inputs: Sequence[Any], ordinal: int, *, strided: bool = False
) -> tuple[list[Any], list[int], list[Hashable]] | None:
    """Return the arrays that are given, their addresses, and all that a path can depend on; None if one has no kind.

    A path can depend on an array's place among the inputs, its type and shape, the remainder of its address, and on
    which inputs start at the same byte. Only plain tensors on one device have kinds; those with gaps or in another
    order only where they are asked for, with their strides.
    """
    tensor = sys.modules["torch"].Tensor
    given: list[Any] = []
    starts: list[int] = []
    kinds: list[Hashable] = []
    for place, each in enumerate(inputs):
        if each is None:
            continue
        if not isinstance(each, tensor) or each.get_device() != ordinal or each.is_neg():
            return None
        start = each.data_ptr()
        given.append(each)
        starts.append(start)
        if each.is_contiguous():
            kinds.append((place, each.dtype, each.shape, start % ALIGNMENT))
        elif strided:
            kinds.append((place, each.dtype, each.shape, start % ALIGNMENT, each.stride()))
        else:
            return None
    if len({0, *starts}) <= len(given):
        kinds.append(tuple(map(starts.index, starts)))
    return given, starts, kinds


def of_addresses(starts: Sequence[int]) -> tuple[int, ...]:
    """Return facts of addresses that a path depends on: remainders, and which inputs start at the same byte."""
    remainders = [start % ALIGNMENT for start in starts]
    given = [start for start in starts if start]
    if len({*given}) < len(given):
        remainders += [starts.index(start) for start in starts]
    return tuple(remainders)
