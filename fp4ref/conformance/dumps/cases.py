"""Cases: one block of a dump under a name, cut out so that its bytes can be judged alone."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api, packing
from fp4ref.conformance.dumps.files import Dump
from fp4ref.errors import DomainError
from fp4ref.layout import LINEAR, layout
from fp4ref.model.tiles import Matrix
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Directions, Quantized
from fp4ref.spec import Granularity, Spec

NOTE = "fp4ref.case"  # metadata of a file that holds one case: whose amax its bytes were made with


class CaseID(NamedTuple):
    """The name of a block, `TENSOR:DIRECTION:ROW:BLOCK`; rows and blocks are those of the direction's matrix."""

    tensor: str
    direction: Direction
    row: int
    block: int

    def __str__(self) -> str:
        """Return the text that `parse` reads; a tensor without a name has no first part."""
        place = f"{self.direction}:{self.row}:{self.block}"
        return f"{self.tensor}:{place}" if self.tensor else place


def parse(text: str) -> CaseID:
    """Read the name of a case.

    >>> parse("layer.weight:row:12:3")
    CaseID(tensor='layer.weight', direction='row', row=12, block=3)
    """
    match = re.fullmatch(r"(?:(.*):)?(row|column):(\d{1,18}):(\d{1,18})", text, re.ASCII | re.DOTALL)
    if match is None:
        raise DomainError("case", repr(text), "TENSOR:row:ROW:BLOCK or TENSOR:column:ROW:BLOCK", "CNF-2")
    direction = next(name for name in DIRECTIONS if name == match[2])
    return CaseID(match[1] or "", direction, int(match[3]), int(match[4]))


def cut(dump: Dump, case: CaseID, amax: NDArray[np.float32] | None) -> Dump:
    """Return a block of a tensor as a dump of its own, with linear scales and every row of the block.

    dump: with x. amax: of the direction, [1] or [rows], which the block's bytes are judged by; None without a global
    scale.

    Rules: BLK-1, BLK-7, LAY-3.
    """
    assert dump.x is not None
    q = dump.quantized
    got, shape = q.direction(case.direction)
    rows, columns = _area(case, q.spec, shape)
    values = Matrix(dump.x, case.direction)[rows, columns]
    codes = packing.unpack(np.asarray(got.data[rows]), shape[1], q.spec.element.format)[:, columns]
    blocks = -(-shape[1] // q.spec.block.columns)
    offsets = layout(q.scale_layout).offset(np.arange(rows.start, rows.stop), case.block, blocks, shape[0])
    own = amax[rows] if amax is not None and q.spec.global_scale is Granularity.ROW else amax
    data = DirectionData(
        packing.pack(codes, q.spec.element.format), np.asarray(got.scales).reshape(-1)[offsets][:, None], own
    )
    bits = getattr(dump.random_bits, case.direction)
    x = values if case.direction == "row" else np.ascontiguousarray(values.T)
    return Dump(
        "",
        x,
        Quantized(q.spec, x.shape, q.dtype, LINEAR.name, **{case.direction: data}),
        dump.spec_version,
        Directions(**{case.direction: None if bits is None else np.ascontiguousarray(bits[rows, columns])}),
    )


def expected(dump: Dump, direction: Direction, spec: Spec, amax: Any = None) -> DirectionData:
    """Return the golden model's bytes of one direction of a tensor, scales linear. Rules: CNF-1, GLB-4."""
    bits = getattr(dump.random_bits, direction)
    q = api.quantize(dump.x, spec, direction, amax=amax, random_bits=bits, backend="numpy")
    return q.direction(direction)[0]


def _area(case: CaseID, spec: Spec, shape: tuple[int, int]) -> tuple[slice, slice]:
    """Rows and columns of the block that holds a case."""
    blocks = -(-shape[1] // spec.block.columns)
    if not (0 <= case.row < shape[0] and 0 <= case.block < blocks):
        raise DomainError("case", str(case), f"a row below {shape[0]} and a block below {blocks}", "CNF-2")
    top, left = case.row // spec.block.rows * spec.block.rows, case.block * spec.block.columns
    return slice(top, min(top + spec.block.rows, shape[0])), slice(left, min(left + spec.block.columns, shape[1]))
