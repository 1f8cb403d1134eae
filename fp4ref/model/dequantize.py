"""From bytes back to values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import hadamard, packing
from fp4ref.formats import Codes, F, Floats, ignoring_float_warnings
from fp4ref.model.quantize import constants, made_nan
from fp4ref.model.tiles import tiles
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec


@ignoring_float_warnings
def dequantize(
    direction: DirectionData,
    shape: tuple[int, int],
    spec: Spec,
    dtype: np.dtype[Any],
    source: np.dtype[Any],
    inverse_hadamard: bool = False,
) -> NDArray[Any]:
    """Values [rows, columns] of one direction, rounded once to `dtype`.

    direction: data and amax as `quantize` returns them, scales linear [rows, blocks]. source: the type of the tensor
    that was quantized, which some profiles round to. inverse_hadamard: undo the transform, in float32.

    Rules: NUM-2, DEQ-1, DEQ-2, DEQ-3, DEQ-4, DEQ-5, DEQ-6, HAD-6.
    """
    result = np.empty(shape, dtype)
    k = constants(spec, source)
    for row, column in tiles(shape, spec.block):
        count = column.stop - column.start
        start = packing.width(column.start, spec.element.format)
        packed = direction.data[row, start : start + packing.width(count, spec.element.format)]
        q = spec.element.decode(packing.unpack(packed, count, spec.element.format))
        s = _of_elements(direction.scales[row], column, spec)
        if direction.amax is None:
            values = made_nan(q * s, q, s)
        else:
            amax = _of_rows(direction, row, spec)
            values = made_nan(spec.arithmetic.dequantized(q, s, amax, k), q, s, amax)
        if inverse_hadamard and spec.hadamard:
            values = hadamard.inverse(values, spec.hadamard.signs)
        result[row, column] = values.astype(dtype)
    return result


def _of_elements(scales: Codes, column: slice, spec: Spec) -> Floats:
    """Return the scale of every element of a range of columns."""
    width = spec.block.columns
    decoded = spec.scale.decode(scales[:, column.start // width : -(-column.stop // width)])
    return np.repeat(decoded, width, axis=1)[:, : column.stop - column.start]


def _of_rows(direction: DirectionData, rows: slice, spec: Spec) -> Floats:
    amax = np.asarray(direction.amax, F)
    return (amax[rows] if spec.global_scale is Granularity.ROW else amax)[:, None]
