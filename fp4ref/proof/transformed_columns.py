"""Claims about whole calls with a Hadamard transform: columns have the codes, scales and amax of their transform."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from fp4ref import api
from fp4ref.formats import F, Floats
from fp4ref.proof import blocks, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST, UNIT, encoded
from fp4ref.proof.transforms import MASK, VECTORS, signings
from fp4ref.quantized import DirectionChoice, Directions

SPEC, BLOCK, DOWN = "nvfp4-rht", 16, 4  # groups of the vectors' matrix, one below the other
CALLS: tuple[tuple[DirectionChoice, str], ...] = (("column", "linear"), ("both", "linear"), ("both", whole.TILED))
SHAPES = ((64, 64), (48, 24), (16, 136), (144, 72))  # of whole boxes of 64 x 64, and of other ones
LARGE = 8.0  # elements of the one group with the largest transform; all others are 1 or -1
GROUPS = [
    (shape, (down, across)) for shape in SHAPES for down in range(0, shape[0], BLOCK) for across in range(shape[1])
]


@lru_cache(maxsize=1)
def vectors() -> tuple[Floats, Floats]:
    """Return a matrix with every vector of signs and ties in its columns, the first again to its end; its transform."""
    more = -VECTORS % (DOWN * 64)
    x, turned = (
        np.concatenate([part, part[:more]]).reshape(DOWN, -1, BLOCK) for part in signings()
    )  # [groups down, columns, elements]
    return x.transpose(0, 2, 1).reshape(DOWN * BLOCK, -1), turned.transpose(1, 0, 2).reshape(-1, DOWN * BLOCK)


def codes(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize all vectors under a given amax, by columns and in both directions, and compare either direction."""
    x, turned = vectors()
    pipe = blocks.nvfp4(UNIT)
    wanted = {"row": encoded(x, pipe, 1, BLOCK), "column": encoded(turned, pipe, 1, BLOCK)}
    for number, (directions, layout) in enumerate(CALLS):
        q = _quantized(x, directions, layout, subject, Directions(UNIT, UNIT) if directions == "both" else UNIT)
        for direction in ("row", "column") if directions == "both" else (directions,):
            got, want = q.direction(direction)[0].mapped(whole._host), wanted[direction]
            scales = want.scales if layout == "linear" else whole.tiled(want.scales)
            for name, mine, its in (("data", got.data, want.data), ("scales", got.scales, scales)):
                wrong = np.flatnonzero(mine.ravel() != its.ravel())
                if len(wrong):
                    said = f"byte {wrong[0]} of the {name} of the {direction} direction, {directions}, {layout}"
                    needed = f"{mine.ravel()[wrong[0]]:02X}, needs {its.ravel()[wrong[0]]:02X}"
                    return Replayed(number * VECTORS, f"{said}, is {needed}")
        tell((number + 1) / len(CALLS))
    return Replayed(len(CALLS) * VECTORS)


def _quantized(x: Floats, directions: DirectionChoice, layout: str, subject: ClaimSubject, amax: Any = None) -> Any:
    given = whole._array(np.ascontiguousarray(x.astype(ml_dtypes.bfloat16)), subject)
    quantize: Any = api.quantize
    return quantize(given, SPEC, directions, layout, amax=amax, backend=whole.BACKENDS[subject])


def largest(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize with one group whose transform has the largest element, in each place; compare the amaxes."""
    element = np.arange(BLOCK)
    signs = np.where(MASK >> element & 1, -1.0, 1.0)
    for count, (shape, (down, across)) in enumerate(GROUPS):
        r, c = np.indices(shape)
        x = np.where((r * r + 3 * c + r * c) % 5 < 2, -1.0, 1.0)
        odd = np.array([int(i & (count % BLOCK)).bit_count() & 1 for i in element])
        x[down : down + BLOCK, across] = LARGE * signs * np.where(odd, -1, 1)  # whose element count % 16 is 4 * LARGE
        for directions, layout in CALLS:
            q = _quantized(x.astype(F), directions, layout, subject)
            wanted = {"row": LARGE, "column": 4 * LARGE}
            for direction in ("row", "column") if directions == "both" else (directions,):
                amax = whole._host(q.direction(direction)[0].amax)
                if amax.tobytes() != np.array([wanted[direction]], F).tobytes():
                    said = f"the {direction} direction, {directions}, {layout}, of {list(shape)}"
                    where = f"rows {down} to {down + BLOCK} of column {across}"
                    return Replayed(count, f"the amax of {said} is {amax}, with the largest in {where}")
        tell((count + 1) / len(GROUPS))
    return Replayed(len(GROUPS))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims for each backend."""
    for subject, (name, decide) in product(ON_HOST, (("columns", codes), ("column-amax", largest))):
        of_codes = decide is codes
        yield ProofClaim(
            name=f"hadamard-{name}/{subject}",
            rules=("HAD-1", "HAD-2", "HAD-3", "HAD-4") if of_codes else ("HAD-4", "HAD-8", "GLB-1"),
            method=Method.EXHAUSTIVE if of_codes else Method.ARGUMENT,
            subject=subject,
            statement="Columns have the codes and scales of their transform, rows those of the elements."
            if of_codes
            else "The amax of columns is that of their transform, the amax of rows that of the elements.",
            domain="all vectors of 16 signs, and all of two elements whose sums are ties of bfloat16, under one amax"
            if of_codes
            else f"matrices of {len(SHAPES)} shapes, the group with the largest transform at each place",
            size=len(CALLS) * VECTORS if of_codes else len(GROUPS),
            decide=partial(decide, subject),
            covers=(
                *whole.QUANTIZED[subject],
                *((f"{whole.CPU}/transform.h",) if subject is ClaimSubject.CPU and not of_codes else ()),
                f"fp4ref.layout.registry:{whole.TILED.upper()}",
                whole.value_of(SPEC, "fp4ref.specs:NVFP4_RHT", subject),
            ),
            reduction="" if of_codes else "a maximum depends on the order of elements in nothing but its place",
        )
