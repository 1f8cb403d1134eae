"""Fitting a case to a kernel's multiples: its own rows and columns follow again until both counts are multiples."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.conformance.families.case import Case
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity


def fitted(case: Case, multiple: tuple[int, int]) -> Case:
    """Wrap the rows and columns of a case around until the matrix of its direction has multiples of both.

    Random bits, an amax per row and given bytes follow their elements, so a copy of a block has the bytes of that
    block. A tensor of three dimensions grows in the first and the last one. A vector keeps its single row or column.

    Rules: CNF-19.
    """
    rows, columns = case.matrix
    if rows % multiple[0] == 0 and columns % multiple[1] == 0:
        return case
    x = case.x
    below, across = multiple if case.direction == "row" else multiple[::-1]
    if x.ndim > 1:
        x = _wrapped(x, 0, _least_slabs(x, below))
    found = replace(case, x=_wrapped(x, -1, -(-x.shape[-1] // across) * across))
    bits, amax = case.random_bits, case.amax
    if bits is not None:
        bits = _wrapped(_wrapped(bits, 0, found.matrix[0]), 1, found.matrix[1])
    if amax is not None and amax.size == rows > 1:
        amax = _wrapped(amax, 0, found.matrix[0])
    encoded = None if case.encoded is None else _grown(case.encoded, case, found.matrix)
    return replace(found, random_bits=bits, amax=amax, encoded=encoded)


def _grown(q: DirectionData, case: Case, shape: tuple[int, int]) -> DirectionData:
    """Return bytes of whole blocks whose rows and columns repeat up to a shape."""
    spec = case.spec
    codes = packing.unpack(np.asarray(q.data), case.matrix[1], spec.element.format)
    codes = _wrapped(_wrapped(codes, 0, shape[0]), 1, shape[1])
    scales = _wrapped(_wrapped(np.asarray(q.scales), 0, shape[0]), 1, -(-shape[1] // spec.block.columns))
    amax = None if q.amax is None else np.resize(q.amax, shape[0] if spec.global_scale is Granularity.ROW else 1)
    return DirectionData(packing.pack(codes, spec.element.format), scales, amax)


def _least_slabs(x: NDArray[Any], multiple: int) -> int:
    """Return the smallest sufficient length of the first axis for which the rows of the matrix are a multiple."""
    step = multiple // gcd(multiple, prod(x.shape[1:-1]))
    return -(-len(x) // step) * step


def _wrapped(array: NDArray[Any], axis: int, length: int) -> NDArray[Any]:
    """Return the array with an axis of the given length, on which its own entries repeat."""
    own = array.shape[axis]
    if own in (0, length):
        return array
    return np.ascontiguousarray(array.take(np.arange(length) % own, axis=axis))
