"""The outcome of a theorem on a tensor, and the views of a quantized tensor that theorems speak of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.formats import E2M1, E4M3, E8M0, Floats
from fp4ref.packing import pack, unpack
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.spec import Block, Granularity, Spec
from fp4ref.theorems.moving import MXFP4_BLOCK, NVFP4_BLOCK

ONE = 2  # the code of 1 in E2M1
Bits = NDArray[np.uint8]


class Evaluated(NamedTuple):
    """A theorem on a tensor.

    holds: its statement is true of the tensor. applies: its condition is met. text: counts, in words.
    """

    rule: str
    title: str
    applies: bool
    holds: bool
    text: str

    @property
    def state(self) -> str:
        """The outcome in words."""
        if self.applies:
            return "holds" if self.holds else "FAILS"
        return "does not apply" if self.holds else "does not apply, and does not hold"


def is_mxfp4(spec: Spec) -> bool:
    """Return True for E2M1 elements with an E8M0 scale for 32 of a row, or for a square of them."""
    return spec.element.format == E2M1 and spec.scale.format == E8M0 and spec.block.columns == MXFP4_BLOCK


def is_nvfp4(spec: Spec) -> bool:
    """Return True for E2M1 elements with an E4M3 scale for 16 of a row, or for a square, and a global scale."""
    formats = spec.element.format == E2M1 and spec.scale.format == E4M3
    return formats and spec.block.columns == NVFP4_BLOCK and spec.global_scale is not Granularity.NONE


def quantized(x: Any, spec: Spec, amax: Any = None) -> Quantized:
    """Return the row direction of a tensor."""
    found: Quantized = api.quantize(x, spec, amax=amax)
    return found


def row_of(q: Quantized) -> DirectionData:
    """Return the bytes of the row direction, which is there."""
    assert q.row is not None
    return q.row


def codes_of(q: Quantized) -> Bits:
    """Return the codes of the elements, one a byte."""
    return unpack(row_of(q).data, q.matrix[1], q.spec.element.format)


def in_blocks(values: NDArray[Any], block: Block) -> NDArray[Any]:
    """Return the elements of each block: [rows of blocks, blocks across, elements]; those past an edge repeat it."""
    rows, columns = values.shape
    full = np.pad(values, ((0, -rows % block.rows), (0, -columns % block.columns)), mode="edge")
    down, across = full.shape[0] // block.rows, full.shape[1] // block.columns
    parts = full.reshape(down, block.rows, across, block.columns).swapaxes(1, 2)
    return parts.reshape(down, across, block.rows * block.columns)


def factors_of(q: Quantized) -> Floats | None:
    """Return the float32 by which the codes of each block are multiplied [M, blocks]; None for values of another kind.

    Rules: DEQ-1, DEQ-2.
    """
    codes, (rows, columns), wide = codes_of(q), q.matrix, q.spec.block.columns
    ones = pack(np.full((rows, columns), ONE, np.uint8), E2M1)
    factors = api.dequantize(replace(q, row=row_of(q)._replace(data=ones)))
    with np.errstate(all="ignore"):
        products = q.spec.element.decode(codes) * factors
    same = np.array_equal(products, api.dequantize(q), equal_nan=True)
    return np.asarray(factors[:, ::wide], np.float32) if same else None
