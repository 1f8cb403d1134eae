"""Claims about matrices of every kind of size: how they are cut into blocks, turned, and put together again.

The expected bytes are found element by element: a block has the maximum of its rows and columns, and an element the
code of its block. A given global maximum makes the global scale 1, so that a block is known by its own elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.formats import F, Floats
from fp4ref.proof import blocks, sources, whole
from fp4ref.proof.blocks import PIPELINES, Pipeline
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.quantized import DIRECTIONS

UNIT = 2688.0  # a global maximum whose global scale is 1
LARGE = (
    (3, 4113),
    (1030, 19),
)  # matrices of several tiles of the golden model, which are 2,048 columns or 2^18 elements
WHERE = {"both": "in both directions", "row": "whose row direction is not transformed"}
ON_HOST = (ClaimSubject.GOLDEN, ClaimSubject.CPU, ClaimSubject.TORCH)


class CutSpec(NamedTuple):
    """A specification, and that of the blocks in a row whose arithmetic it has."""

    name: str
    arithmetic: str
    rows: int  # of a block
    columns: int
    value: str  # the reference of the specification
    directions: Any = "both"


CUT = (
    CutSpec("nvfp4", "nvfp4", 1, 16, "fp4ref.specs:NVFP4"),
    CutSpec("nvfp4-2d", "nvfp4", 16, 16, "fp4ref.specs:NVFP4_2D"),
    CutSpec("nvfp4-rht", "nvfp4", 1, 16, "fp4ref.specs:NVFP4_RHT", "row"),
    CutSpec("mxfp4", "mxfp4", 1, 32, "fp4ref.specs:MXFP4"),
    CutSpec("mxfp8-2d", "mxfp8-e4m3", 32, 32, "fp4ref.specs:MXFP8_2D"),
)


class Encoded(NamedTuple):
    """The bytes of one direction, linear scales, and its values [rows, columns]."""

    data: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    values: Floats


def sizes(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return shapes with no, one and two blocks along either side, one element more and one less."""
    along = {0, 1, 2, *(n * columns + more for n in (1, 2) for more in (-1, 0, 1))}
    across = {0, 1, 3, *(n * rows + more for n in (1, 2) for more in (-1, 0, 1))}
    found = {(m, k) for m in across for k in along} | {(k, m) for m in across for k in along}
    return [*sorted(found), *LARGE]


def shapes(spec: CutSpec) -> int:
    """Return how many matrices a claim quantizes."""
    return len(sizes(spec.rows, spec.columns))


def matrix(rows: int, columns: int) -> Floats:
    """Return values of E2M1 times powers of two, unlike in neighbouring blocks and places; no element is 0."""
    r, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
    value = np.array([0.5, 1, 1.5, 2, 3, 4, 6])[(5 * r + 3 * c + r * c) % 7]
    power = (3 * (r // 16) + 5 * (c // 16) + 2 * r) % 11 - 5
    return np.asarray(np.where((r * c + r + c) % 3 == 1, -value, value) * np.exp2(power), F)


def encoded(x: Floats, pipe: Pipeline, rows: int, columns: int) -> Encoded:
    """Return the bytes of a matrix in blocks of rows x columns. Rules: BLK-1, BLK-7, LAY-10, PACK-1, PACK-2."""
    high, wide = x.shape
    r, c = np.arange(high) // rows, np.arange(wide) // columns
    data = np.zeros((high, -(-wide // 2) if pipe.element.format.bits == 4 else wide), np.uint8)
    if not x.size:
        return Encoded(data, np.zeros((high, -(-wide // columns)), np.uint8), x)
    across = np.maximum.reduceat(np.abs(x), np.arange(0, wide, columns), axis=1)
    maxima = np.maximum.reduceat(across, np.arange(0, high, rows), axis=0)
    byte = pipe.byte(maxima.ravel()).reshape(maxima.shape)
    codes = np.concatenate([pipe.code(line, byte[r[m], c]) for m, line in enumerate(x)]).reshape(x.shape)
    if pipe.element.format.bits == 4:
        for place in range(2):
            part = codes[:, place::2]
            data[:, : part.shape[1]] |= part << 4 * place
    else:
        data[:] = codes
    scale = whole._decoded(pipe.scale, byte)[r[:, None], c[None, :]]
    return Encoded(data, byte[r], (whole._decoded(pipe.element, codes) * scale).astype(F))


def cut(spec: CutSpec, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize matrices of all these sizes in both directions, also with more dimensions, and dequantize them."""
    pipe = PIPELINES[spec.arithmetic]() if spec.arithmetic != "nvfp4" else blocks.nvfp4(UNIT)
    tried = sizes(spec.rows, spec.columns)
    for count, (m, k) in enumerate(tried):
        x = matrix(m, k)
        wanted = {
            direction: encoded(part, pipe, spec.rows, spec.columns)
            for direction, part in zip(DIRECTIONS, (x, x.T), strict=True)
            if spec.directions in {direction, "both"}
        }
        for shape in _dimensions(m, k):
            witness = _differs(x.reshape(shape), spec, wanted, subject)
            if witness:
                return Replayed(count, f"{spec.name} of {list(shape)}: {witness}")
        tell((count + 1) / len(tried))
    return Replayed(len(tried))


def _dimensions(m: int, k: int) -> Iterator[tuple[int, ...]]:
    """Yield shapes whose matrix is [m, k]. Rules: NUM-4."""
    yield m, k
    if m == 1:
        yield (k,)
    if m % 3 == 0 and m < 100:
        yield m // 3, 1, 3, k


def _differs(x: Floats, spec: CutSpec, wanted: dict[Any, Encoded], subject: ClaimSubject) -> str:
    """Return the first byte or value that is not the wanted one, in words; empty if all are."""
    backend, amax = whole.BACKENDS[subject], UNIT if spec.arithmetic == "nvfp4" else None
    array = whole._array(x, subject)
    q = api.quantize(array, spec.name, spec.directions, amax=amax, backend=backend)
    for direction, want in wanted.items():
        got = q.direction(direction)[0].mapped(whole._host)
        for part, mine, its in (("data", got.data, want.data), ("scales", got.scales, want.scales)):
            if mine.shape != its.shape:
                return f"{direction}: {part} of shape {list(mine.shape)}, needs {list(its.shape)}"
            wrong = np.argwhere(mine != its)
            if len(wrong):
                at = tuple(map(int, wrong[0]))
                return f"{direction}: {part} at {list(at)} is {mine[at]:02X}, needs {its[at]:02X}"
        shape = x.shape if direction == "row" else want.values.shape
        values = whole._host_values(api.dequantize(q, direction=direction, backend=backend))
        if values.shape != shape or values.tobytes() != want.values.tobytes():
            return f"{direction}: values {list(values.shape)} are not those of the codes, {list(shape)}"
    if not x.size and amax is not None:
        empty = api.quantize(array, spec.name, spec.directions, backend=backend)
        found = [float(whole._host(empty.direction(each)[0].amax)[0]) for each in wanted]
        if any(found):
            return f"the amaxes of no elements are {found}, need 0"
    return ""


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about cuts."""
    for spec in CUT:
        for subject in ON_HOST:
            native = subject is ClaimSubject.CPU
            yield ProofClaim(
                name=f"cut-{spec.name}/{subject}",
                rules=(
                    *("NUM-4", "BLK-1", "BLK-8", "BLK-9", "BLK-13", "BLK-14", "DEQ-4"),
                    *(("BLK-7", "LAY-10") if spec.rows > 1 else ()),
                    *(("HAD-4",) if spec.directions == "row" else ()),
                ),
                method=Method.ARGUMENT,
                subject=subject,
                statement=f"In {spec.name}, {WHERE[spec.directions]}, an element has the code of the block at the "
                "quotients of its row and column, whatever the leading dimensions are.",
                domain="matrices of 0, 1 and 2 blocks a side, of one element more and one less, and of several tiles",
                size=shapes(spec),
                decide=partial(cut, spec, subject),
                covers=(
                    *whole.QUANTIZED[subject],
                    *whole.DECODED[subject],
                    f"{sources.LOWERED}{spec.name}" if native else spec.value,
                ),
                reduction="a size enters by its quotient and remainder by the block's only, and a block's bytes depend "
                "on its own elements; so sizes on both sides of 0, 1 and 2 blocks decide, as long as the walk over "
                "larger matrices begins its tiles at whole blocks, which matrices of several tiles show",
                rests_on=tuple(f"quantize-{spec.arithmetic}-float32/{its}" for its in (subject,)),
            )
