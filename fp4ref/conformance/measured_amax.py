"""A maximum that is not the tensor's, but that everything else follows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from fp4ref.conformance.evidence import Part
from fp4ref.conformance.mistakes.kernel import Kernel, Values, over_tensor
from fp4ref.conformance.mistakes.record import Mistake, Stage, by_tensor, known
from fp4ref.formats import F, Floats


def other_amax(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """The candidate's own maxima, each for its tensor, as the mistake that they are instead of the tensor's.

    None where a case hands the maximum in, or where tensors that are equal have unequal ones.
    """
    own: dict[bytes, Floats] = {}
    said: list[tuple[float, float]] = []
    for item in {id(part.item): part.item for part in parts}.values():
        if item.amax is None or item.amax.size != 1 or item.exhibit.case.amax is not None:
            return None
        values = item.exhibit.quantized(kernel)
        if own.setdefault(_key(values), item.amax).tobytes() != item.amax.tobytes():
            return None
        right = over_tensor(values, kernel.keep_nan, by_row=False)
        if right.tobytes() != item.amax.tobytes():
            said.append((float(item.amax[0]), float(right.reshape(-1)[0])))
    if not by_tensor(kernel) or not said:
        return None
    return known(
        Stage.AMAX,
        "amax-other",
        f"amax is not the tensor's: {said[0][0]:.9g} instead of {said[0][1]:.9g}; scales and codes follow from it",
        by_tensor,
        amax=partial(_own, own),
    )


def _key(values: Values) -> bytes:
    return repr(values.raw.shape).encode() + np.ascontiguousarray(values.raw).tobytes()


def _own(own: Mapping[bytes, Floats], values: Values, keep_nan: bool, by_row: bool) -> Floats:
    found = own.get(_key(values))
    return np.asarray(over_tensor(values, keep_nan, by_row) if found is None else found, F)
