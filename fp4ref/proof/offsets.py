"""Claims about where scales are stored: the formulas of the rules, byte by byte, with what is in the padding.

A formula here is a function of whole numbers, written out from its rule; a layout's text and strides are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.errors import DomainError, LayoutError
from fp4ref.layout import layout
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.quantized import DirectionData, Quantized

POISON = 0xFF
LARGE = ((3, 70), (131, 133))  # arrays of several units of work
MEMBERS = 3  # of a group


class StatedLayout(NamedTuple):
    """A layout as its rule states it: multiples of rows and columns, and the offset of row m and column k."""

    name: str
    rule: str
    rows: int
    columns: int
    fills: bool = False  # True where padding has to be 0 (LAY-5)

    def padded(self, m: int, k: int) -> tuple[int, int]:
        """Return the shape of the buffer."""
        return -(-m // self.rows) * self.rows, -(-k // self.columns) * self.columns

    def offset(self, m: Any, k: Any, wide: int) -> Any:
        """Return offsets in a buffer whose rows have `wide` columns. Rules: LAY-1, LAY-2, LAY-3, LAY-4."""
        if self.rule in {"LAY-1", "LAY-2"}:
            return m * wide + k
        tile = m // self.rows * (wide // 4) + k // 4
        if self.rule == "LAY-4":
            return tile * 32 + m % 8 * 4 + k % 4
        return tile * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4


STATED = (
    StatedLayout("linear", "LAY-1", 1, 1),
    StatedLayout("linear_padded", "LAY-2", 128, 4),
    StatedLayout("tiled_128x4", "LAY-3", 128, 4, True),
    StatedLayout("tiled_8x4", "LAY-4", 8, 4, True),
)
REDUCED = (
    "an offset is a sum of digits of the row and of the column times strides, and a stride is a constant times counts "
    "of tiles; so the digits' ends and two counts of tiles a side decide"
)


def arrays(stated: StatedLayout) -> list[tuple[int, int]]:
    """Return shapes [M, Kb] of scales around the ends of every digit, up to two tiles and one row a side."""
    high = stated.rows if stated.rows > 1 else 8
    steps = {0, *(n * high + more for n in (0, 1, 2) for more in (-1, 0, 1))}
    digits = {n * 32 + more for n in range(high // 32 + 1) for more in (-1, 0, 1)}
    return [*((m, k) for m in sorted(steps | digits) if m >= 0 for k in range(10)), *LARGE]


def stored(stated: StatedLayout, scales: NDArray[np.uint8], padding: int) -> NDArray[np.uint8]:
    """Return the buffer of scales [M, Kb], its padding filled. Rules: LAY-5."""
    m, k = scales.shape
    buffer = np.full(stated.padded(m, k), padding, np.uint8)
    rows, columns = np.indices(scales.shape)
    buffer.reshape(-1)[stated.offset(rows, columns, buffer.shape[1]).ravel()] = scales.ravel()
    return buffer


def moved(stated: StatedLayout, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Move scales into a layout, and out of one whose padding is poisoned; compare both with the formula."""
    tried = arrays(stated)
    for count, (m, k) in enumerate(tried):
        number = np.arange(m * k).reshape(m, k)
        for plane in range(2):
            wrong = wrongly_moved(stated, (number >> 8 * plane & 0xFF).astype(np.uint8), subject)
            if wrong:
                return Replayed(count, f"{m} x {k} scales {wrong}")
        tell((count + 1) / len(tried))
    return Replayed(len(tried))


def wrongly_moved(stated: StatedLayout, scales: NDArray[np.uint8], subject: ClaimSubject) -> str:
    """Move scales into a layout, and out of it; return the first wrong byte in words, empty if there is none."""
    rows, columns = scales.shape
    data = np.zeros((rows, 16 * columns), np.uint8)
    for start, end, given, want in (
        ("linear", stated.name, scales, stored(stated, scales, 0)),
        (stated.name, "linear", stored(stated, scales, POISON), scales),
    ):
        parts = DirectionData(data, given, None).mapped(lambda part: whole._array(part, subject))
        q = Quantized(resolve("mxfp4"), (rows, 32 * columns), "float32", start, parts)
        got = whole._host(api.to_layout(q, end, backend=whole.BACKENDS[subject]).row.scales)
        if got.shape != want.shape or (got != want).any():
            return f"from {start} to {end}: {_first(got, want)}"
    return ""


def _first(got: NDArray[np.uint8], want: NDArray[np.uint8]) -> str:
    """Return the first difference in words."""
    if got.shape != want.shape:
        return f"the shape is {list(got.shape)}, needs {list(want.shape)}"
    at = int(np.flatnonzero(got.ravel() != want.ravel())[0])
    return f"byte {at} is {got.ravel()[at]:02X}, needs {want.ravel()[at]:02X}"


def members(stated: StatedLayout) -> list[tuple[int, int]]:
    """Return shapes of members: without rows or columns, one, around a tile."""
    return [*product((0, 1, stated.rows, stated.rows + 1), (0, 1, 4, 5))]


def groups(stated: StatedLayout, tell: Tell) -> Replayed:
    """Add up the padded sizes of every three members, and compare with the offsets at which they start."""
    order = layout(stated.name)
    several = [*product(members(stated), repeat=MEMBERS)]
    size = {shape: stated.padded(*shape)[0] * stated.padded(*shape)[1] for shape in members(stated)}
    for count, shapes in enumerate(several):
        want = [sum(size[shape] for shape in shapes[:i]) for i in range(MEMBERS + 1)]
        if order.group_offsets(shapes) != want:
            return Replayed(count, f"members {shapes} start at {order.group_offsets(shapes)}, need {want}")
    return Replayed(len(several))


def rows_and_columns(stated: StatedLayout) -> list[tuple[int, int]]:
    """Return arrays of which every range of rows is tried: one tile column and two, around one and two tiles."""
    high = stated.rows if stated.rows > 1 else 8
    rows = (0, 1, 3, high - 1, high, high + 1, 2 * high + 1)
    return [(m, k) for m in rows for k in ((0, 1, 4, 5) if m < high - 1 else (4, 5))]


def ranges(stated: StatedLayout) -> int:
    """Return how many ranges of rows a claim tries."""
    return sum((m + 1) * (m + 2) // 2 + 2 for m, _ in rows_and_columns(stated))


def pieces(stated: StatedLayout, tell: Tell) -> Replayed:
    """Count the bytes that a range of rows owns, and those between its first and last; compare with its slice."""
    order, count = layout(stated.name), 0
    tried = rows_and_columns(stated)
    for number, (m, k) in enumerate(tried):
        high, wide = stated.padded(m, k)
        rows, columns = np.indices((high, wide))
        places = stated.offset(rows, columns, wide)
        low, top = (places.min(1), places.max(1)) if wide else (np.zeros(high, int),) * 2
        for start in range(m + 1):
            first, last = 1 << 40, -1
            for stop in range(start, m + 1):
                if stop > start:
                    upto = high if stop == m else stop
                    first = min(first, int(low[stop - 1 : upto].min()))
                    last = max(last, int(top[stop - 1 : upto].max()))
                owned = ((high if stop == m else stop) - start) * wide if stop > start else 0
                want = slice(0, 0) if not owned else slice(first, last + 1) if last + 1 - first == owned else None
                got = _range(order, start, stop, m, k)
                count += 1
                if got != want:
                    return Replayed(count, f"rows {start}:{stop} of {m} x {k} are {got}, need {want}")
        for start, stop in ((1, 0), (0, m + 1)):
            count += 1
            try:
                got = order.row_range(start, stop, m, k)
                return Replayed(count, f"rows {start}:{stop} of {m} x {k} are {got}, need a refusal")
            except DomainError:
                pass
        tell((number + 1) / len(tried))
    return Replayed(count)


def _range(order: Any, start: int, stop: int, m: int, k: int) -> slice | None:
    """Return the slice of a range of rows, None if it is refused."""
    try:
        found: slice = order.row_range(start, stop, m, k)
    except LayoutError:
        return None
    return found


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about offsets."""
    moves = {
        ClaimSubject.GOLDEN: ("fp4ref.model.backend:to_layout",),
        ClaimSubject.CPU: (f"{whole.CPU}/relayout.h", *whole.FLAGS),
        ClaimSubject.TORCH: ("fp4ref_torch.operations:to_layout",),
    }
    for stated in STATED:
        place = f"fp4ref.layout.registry:{stated.name.upper()}"
        padding = ("LAY-5", "LAY-6") if stated.fills else ("LAY-6",)
        for subject, covers in moves.items():
            yield ProofClaim(
                name=f"offset-{stated.name}/{subject}",
                rules=(stated.rule, *padding),
                method=Method.ARGUMENT,
                subject=subject,
                statement=f"In {stated.name}, every scale is at the offset of its rule, the padding is 0, and is never "
                "read.",
                domain="arrays of up to two tiles and one row or column more, and fewer, without rows or columns too",
                size=len(arrays(stated)),
                decide=partial(moved, stated, subject),
                covers=(*covers, place),
                reduction=REDUCED,
            )
        yield ProofClaim(
            name=f"group-{stated.name}/golden",
            rules=("LAY-8",),
            method=Method.ARGUMENT,
            subject=ClaimSubject.GOLDEN,
            statement=f"In {stated.name}, a member starts at the sum of the padded sizes of those before it.",
            domain="all groups of three members, without rows or columns or around one tile",
            size=len(members(stated)) ** MEMBERS,
            decide=partial(groups, stated),
            covers=("fp4ref.layout.value:Layout.group_offsets", place),
            reduction="a start is the one before it and a size, which is a product of two quotients; so groups of "
            "three with every size around none and one tile decide",
        )
        yield ProofClaim(
            name=f"piece-{stated.name}/golden",
            rules=("LAY-9", "LAY-51", "LAY-53"),
            method=Method.ARGUMENT,
            subject=ClaimSubject.GOLDEN,
            statement=f"In {stated.name}, a range of rows is one piece if its bytes follow each other, else refused.",
            domain="all ranges of rows of arrays around one and two tiles, of one and two tile columns",
            size=ranges(stated),
            decide=partial(pieces, stated),
            covers=("fp4ref.layout.value:Layout.row_range", place),
            reduction="a tile's rows repeat with every tile, so arrays of up to three tiles have each way in which a "
            "range can begin and end",
        )
