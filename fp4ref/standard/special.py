"""Special values of chapter 00 in bytes: blocks of them under the standard's own specs, by the golden model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fp4ref import packing
from fp4ref.api import dequantize, quantize
from fp4ref.catalogue import PROFILES
from fp4ref.formats import F
from fp4ref.standard.tables import hexadecimal, table

SHOWN = 4  # elements of a block that are not +0


class SpecialBlock(NamedTuple):
    """A block: its first elements, the first element of a second block, and the amax that a caller gives."""

    spec: str
    elements: str
    beside: str = ""
    amax: str = ""


BLOCKS = [
    *(SpecialBlock(spec, "NaN -NaN 1 2") for spec in ("nvfp4", "mxfp6-e2m3", "mxfp8-e4m3", "mxint8")),
    *(SpecialBlock(spec, "Inf -Inf 1 0") for spec in ("nvfp4", "mxfp4", "mxfp8-e5m2", "mxint8")),
    SpecialBlock("nvfp4", "Inf 1 -1 0", amax="1"),
    *(SpecialBlock(spec, "1 -2 0.001 -0", "Inf") for spec in ("nvfp4", "nvfp4-row-scaled", "mxfp4")),
    *(SpecialBlock(spec, "0 -0 0 -0", "1") for spec in ("nvfp4", "nvfp4-fast", "mxfp8-e4m3", "mxint8")),
    *(SpecialBlock("nvfp4", "0 -0 0 -0", beside) for beside in ("", "Inf")),
    *(SpecialBlock(spec, "1e-40 -1e-45 0 -0") for spec in ("nvfp4", "mxfp4", "mxfp8-e4m3")),
    *(SpecialBlock(spec, "1e-7 -1e-7 1e-39 -0", "30000") for spec in ("nvfp4", "nvfp4-fast")),
    SpecialBlock("nvfp4", "4 -1 0.25 0", amax="1"),
    SpecialBlock("nvfp4", "3.4e+38 1e+38 -1 0"),
    *(SpecialBlock("nvfp4-4over6", "1 -0.8 0.3 0", amax=amax) for amax in ("0", "Inf")),
]


def special_values() -> str:
    """Return the table of special values in bytes.

    Rules: BLK-2, BLK-6, BLK-11, GLB-3, GLB-7, MXS-5, FOS-6, DEQ-1, DEQ-2.
    """
    head = ("spec", "first elements", "second block", "caller's amax", "amax", "scale", "codes", "dequantized")
    return table(head, map(_row, BLOCKS))


def _row(block: SpecialBlock) -> list[str]:
    spec = PROFILES[block.spec]
    width = spec.block.columns
    x = np.zeros((1, width * (2 if block.beside else 1)), F)
    x[0, :SHOWN] = [float(word) for word in block.elements.split()]
    if block.beside:
        x[0, width] = float(block.beside)
    q = quantize(x, spec, amax=F(block.amax) if block.amax else None, backend="numpy")
    codes = packing.unpack(q.row.data, x.shape[1], spec.element.format)[0, :SHOWN]
    values = dequantize(q, backend="numpy")[0, :SHOWN]
    amax = "" if q.row.amax is None else hexadecimal(q.row.amax[0])
    digits = -(-spec.element.format.bits // 4)
    return [
        f"`{block.spec}`",
        block.elements,
        block.beside,
        block.amax,
        amax,
        f"`{q.row.scales[0, 0]:02X}`",
        " ".join(f"`{code:0{digits}X}`" for code in codes),
        " ".join("NaN" if np.isnan(value) else f"`{value.view(np.uint32):08X}`" for value in values),
    ]
