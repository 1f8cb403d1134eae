"""Tensors that are given as bytes, for kernels that read them: every scale byte, every code, every kind of amax."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.conformance.families.case import Aim, Family, Member
from fp4ref.conformance.families.rules import dequantized
from fp4ref.formats import Codes, F, Floats, Format
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity

ACROSS = 16  # blocks of a row
AMAXES = {  # beside the one under which a scale byte means itself
    "amax-zero": F(0),
    "amax-least": np.finfo(F).smallest_subnormal,
    "amax-largest": np.finfo(F).max,
    "amax-inf": F(np.inf),
    "amax-nan": F(np.nan),
}


def every_byte(aimed: Aim) -> Iterator[Member]:
    """Every code under every scale byte: those that are numbers, all of them, and all under unusual amaxes.

    Rules: CNF-47, CNF-70.
    """
    if not aimed.reach.encoded:
        return
    spec = aimed.spec
    elements, scales = _codes(spec.element.format), _codes(spec.scale.format)
    numbers = _tensor(aimed, _finite(elements, spec.element.decode), _finite(scales, spec.scale.decode))
    yield Member("numbers", _shape_of(aimed, numbers), encoded=numbers)
    whole = _tensor(aimed, elements, scales)
    if whole.scales.shape != numbers.scales.shape or not np.array_equal(whole.scales, numbers.scales):
        yield Member("all", _shape_of(aimed, whole), encoded=whole)
    if spec.global_scale is not Granularity.NONE:
        for label, amax in AMAXES.items():
            yield Member(label, _shape_of(aimed, numbers), encoded=_with_amax(aimed, numbers, amax))


def _codes(form: Format) -> Codes:
    return np.arange(1 << form.bits).astype(np.uint8)


def _finite(codes: Codes, decode: Callable[[Codes], Floats]) -> Codes:
    return np.asarray(codes[np.isfinite(decode(codes))], np.uint8)


def _tensor(aimed: Aim, elements: Codes, scales: Codes) -> DirectionData:
    """Return bytes in which every element stands under every scale byte; scales are linear.

    Each block of codes begins at another code, so that no two neighbours are alike.
    """
    high, wide = aimed.spec.block
    repeats = -(-len(elements) // aimed.area)
    blocks = np.resize(np.repeat(scales, repeats), -(-len(scales) * repeats // ACROSS) * ACROSS)
    part = np.arange(len(blocks)) % repeats * aimed.area + np.arange(len(blocks)) // repeats
    codes = elements[(part[:, None] + np.arange(aimed.area)) % len(elements)]
    grid = codes.reshape(-1, ACROSS, high, wide).transpose(0, 2, 1, 3).reshape(-1, ACROSS * wide)
    rows = np.repeat(blocks.reshape(-1, ACROSS), high, axis=0)
    data = packing.pack(np.ascontiguousarray(grid), aimed.spec.element.format)
    found = DirectionData(data, rows, None)
    return _with_amax(aimed, found, F(aimed.unit_amax)) if aimed.unit_amax else found


def _with_amax(aimed: Aim, q: DirectionData, amax: F) -> DirectionData:
    count = len(q.scales) if aimed.spec.global_scale is Granularity.ROW else 1
    return q._replace(amax=np.full(count, amax, F))


def _shape_of(aimed: Aim, q: DirectionData) -> NDArray[np.generic]:
    """Return zeros in the type and the shape of the tensor whose bytes these are."""
    rows, blocks = np.shape(q.scales)
    return np.zeros((rows, blocks * aimed.spec.block.columns), aimed.dtype)


FAMILIES = (
    Family(
        "every-byte",
        "A scale byte or a code that no quantizer writes is decoded as something else.",
        dequantized,
        every_byte,
    ),
)
