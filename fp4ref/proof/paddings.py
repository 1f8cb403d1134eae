"""Claims about padding: what quantization and conversion write around scales, in layouts that state it and in others.

The layouts are not registered but while a claim is decided; their formulas are written out beside their texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import Floats
from fp4ref.layout import LAYOUTS, Layout
from fp4ref.proof import blocks, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST, UNIT, Encoded, encoded, matrix
from fp4ref.quantized import Direction, DirectionChoice, DirectionData, Quantized

POISON = 0xA5
BLOCK = 16
ROWS = (0, 1, 3, 7, 8, 9, 16, 17, 33, 129)  # of scales
COLUMNS = (0, 1, 2, 3, 4, 5, 8, 9)
CALLS = 5  # moves there and back, and quantizations by rows, by columns and by both


class PaddedLayout(NamedTuple):
    """A layout's text, the multiples of its axes, what fills their padding, and an offset in a padded matrix."""

    name: str
    text: str
    multiples: tuple[int, int]
    fills: tuple[int, int]
    offset: Callable[[Any, Any, int, int], Any]  # of row, column, padded rows and padded columns

    def stored(self, scales: NDArray[np.uint8], poisoned: bool = False) -> NDArray[np.uint8]:
        """Return the buffer of scales; poisoned: with other bytes in the padding. Rules: LAY-5, LAY-15."""
        (m, k), (high, wide) = scales.shape, self.multiples
        shape = -(-m // high) * high, -(-k // wide) * wide
        row, column = np.indices(shape)
        values = np.where(row >= m, self.fills[0], self.fills[1]) ^ (POISON if poisoned else 0)
        values[:m, :k] = scales
        found = np.full(shape[0] * shape[1], POISON, np.uint8)
        found[self.offset(row, column, *shape).ravel()] = values.ravel()
        return found


PADDED = (
    PaddedLayout(
        *("proof.both", "m(8,*) k(4,*): k0 m0 k1 m1; pad m 16 0x7f; pad k 0x05", (16, 4), (0x7F, 0x05)),
        lambda m, k, high, wide: (m // 8 * (wide // 4) + k // 4) * 32 + m % 8 * 4 + k % 4,
    ),
    PaddedLayout(
        *("proof.turned", "m(*) k(*): m0 k0; pad m 4 0x31; pad k 8 0xe2", (4, 8), (0x31, 0xE2)),
        lambda m, k, high, wide: k * high + m,
    ),
    PaddedLayout(
        *("proof.unspecified", "m(2,*) k(*): m0 k0 m1; pad m unspecified; pad k 3 0x11", (2, 3), (0, 0x11)),
        lambda m, k, high, wide: (m // 2 * wide + k) * 2 + m % 2,
    ),
    PaddedLayout(
        *("linear_padded", "", (128, 4), (0, 0)),
        lambda m, k, high, wide: m * wide + k,
    ),
    PaddedLayout(
        *("tiled_128x4", "", (128, 4), (0, 0)),
        lambda m, k, high, wide: (m // 128 * (wide // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4,
    ),
    PaddedLayout(
        *("tiled_8x4", "", (8, 4), (0, 0)),
        lambda m, k, high, wide: (m // 8 * (wide // 4) + k // 4) * 32 + m % 8 * 4 + k % 4,
    ),
)
SIZE = len(PADDED) * len(ROWS) * len(COLUMNS) * CALLS


@contextmanager
def _known(padded: PaddedLayout) -> Iterator[None]:
    """Register a layout meanwhile, if it has a text."""
    if not padded.text:
        yield
        return
    LAYOUTS.register(Layout(padded.name, padded.text), "a claim")
    try:
        yield
    finally:
        LAYOUTS.forget(padded.name)


def written(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Move scales there and back, and quantize into buffers that hold other bytes; compare whole buffers."""
    count = 0
    for padded in PADDED:
        with _known(padded):
            for m in ROWS:
                for k in COLUMNS:
                    for witness in (_moved(padded, m, k, subject), _quantized(padded, m, k, subject)):
                        if witness:
                            return Replayed(count, f"{padded.name}, {m} x {k} scales: {witness}")
                    count += CALLS
                    tell(count / SIZE)
    return Replayed(count)


def _moved(padded: PaddedLayout, m: int, k: int, subject: ClaimSubject) -> str:
    """Return the difference after a move there or back, in words; empty if there is none."""
    scales = (np.arange(m * k) * 37 % 251 + 1).astype(np.uint8).reshape(m, k)
    data = np.zeros((m, BLOCK * k), np.uint8)
    poisoned = padded.stored(scales, poisoned=True).reshape(_shape(padded, m, k))
    for start, end, given, want in (
        ("linear", padded.name, scales, padded.stored(scales)),
        (padded.name, "linear", poisoned, scales.ravel()),
    ):
        parts = DirectionData(data, given, None).mapped(lambda part: whole._array(part, subject))
        q = Quantized(resolve("mxfp4"), (m, 2 * BLOCK * k), "float32", start, parts)
        moved = api.to_layout(q, end, backend=whole.BACKENDS[subject]).row
        if witness := _first(whole._host(moved.scales), want):
            return f"moved from {start} to {end}: {witness}"
    return ""


def _shape(padded: PaddedLayout, m: int, k: int) -> tuple[int, int]:
    high, wide = padded.multiples
    return -(-m // high) * high, -(-k // wide) * wide


@cache
def _wanted(m: int, k: int) -> tuple[Floats, Encoded, Encoded]:
    """Return a matrix with such scales in its row direction, the last block cut, and the bytes of both directions."""
    x = matrix(m, max(BLOCK * k - 3, 0))
    pipe = blocks.nvfp4(UNIT)
    return x, encoded(x, pipe, 1, BLOCK), encoded(np.ascontiguousarray(x.T), pipe, 1, BLOCK)


def _quantized(padded: PaddedLayout, m: int, k: int, subject: ClaimSubject) -> str:
    """Return the difference in buffers that held other bytes, in words; empty if there is none."""
    x, by_rows, by_columns = _wanted(m, k)
    quantize: Any = api.quantize
    cases: tuple[tuple[DirectionChoice, Floats, dict[Direction, Encoded]], ...] = (
        ("row", x, {"row": by_rows}),
        ("column", np.ascontiguousarray(x.T), {"column": by_rows}),
        ("both", x, {"row": by_rows, "column": by_columns}),
    )
    for directions, values, wanted in cases:
        given, backend = whole._array(values, subject), whole.BACKENDS[subject]
        out = quantize(given, "nvfp4", directions, padded.name, amax=UNIT, backend=backend)
        for direction in wanted:
            for part in out.direction(direction)[0]:
                part[...] = POISON
        quantize(given, "nvfp4", directions, padded.name, amax=UNIT, backend=backend, out=out)
        for direction, want in wanted.items():
            got = out.direction(direction)[0].mapped(whole._host)
            for name, mine, its in (
                ("data", got.data, want.data.ravel()),
                ("scales", got.scales, padded.stored(want.scales)),
            ):
                if witness := _first(mine, its):
                    return f"quantized, {directions}: {name} of the {direction} direction: {witness}"
    return ""


def _first(got: NDArray[np.uint8], want: NDArray[np.uint8]) -> str:
    """Return the first difference in words, empty if there is none."""
    if got.size != want.size:
        return f"{got.size} bytes, needs {want.size}"
    wrong = np.flatnonzero(got.ravel() != want)
    if not len(wrong):
        return ""
    at = int(wrong[0])
    return f"byte {at} is {got.ravel()[at]:02X}, needs {want[at]:02X}"


def claims() -> Iterator[ProofClaim]:
    """Yield the claim for each backend."""
    code = {
        ClaimSubject.GOLDEN: (*whole.QUANTIZED[ClaimSubject.GOLDEN], "fp4ref.model.backend:to_layout"),
        ClaimSubject.CPU: (
            *whole.QUANTIZED[ClaimSubject.CPU],
            f"{whole.CPU}/relayout.h",
            "fp4ref_cpu.maps:write_padding",
        ),
        ClaimSubject.TORCH: (*whole.QUANTIZED[ClaimSubject.TORCH], "fp4ref_torch.operations:to_layout"),
    }
    for subject in ON_HOST:
        yield ProofClaim(
            name=f"padding-written/{subject}",
            rules=("LAY-2", "LAY-3", "LAY-4", "LAY-5", "LAY-6", "LAY-15"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="Quantization and conversion write the fill value of its axis into padding, 0 where it is "
            "unspecified, over what was there; and no byte of padding is read.",
            domain=f"{len(PADDED)} layouts, of which three fill both axes, and arrays of {len(ROWS)} counts of rows "
            f"and {len(COLUMNS)} of columns, moved there and back and quantized",
            size=SIZE,
            decide=partial(written, subject),
            covers=(
                *code[subject],
                *(f"fp4ref.layout.registry:{name}" for name in ("LINEAR_PADDED", "TILED_128X4", "TILED_8X4")),
                whole.value_of("nvfp4", whole.VALUES["nvfp4"], subject),
            ),
            reduction="padding begins at a remainder and fills up to a multiple; the counts have every kind of "
            "remainder, with and without padding of the other axis",
            rests_on=(f"cut-nvfp4/{subject}",),
        )
