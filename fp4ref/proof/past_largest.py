"""Claims about elements past the largest value of their format, which a scale rounded down or a given amax leaves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fp4ref import api
from fp4ref.arithmetic import OCP_FLOOR
from fp4ref.formats import CUDA_E2M1, CUDA_E2M3, CUDA_E3M2, Codec, F, Floats
from fp4ref.proof import blocks, whole
from fp4ref.proof.blocks import TYPES
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST
from fp4ref.proof.packed_rows import _in_bytes
from fp4ref.quantized import DIRECTIONS
from fp4ref.spec import Spec
from fp4ref.specs import MXFP4, MXFP6_E2M3, MXFP6_E3M2, NVFP4

COLUMNS = 1024  # enough for a group of blocks that is encoded in one way
WIDE = 16.0  # units, to which elements stand in such rows too
POWERS = (-100, 0, 7, 100)  # of the block maxima
INFINITY = 0x7F800000
LARGEST_SCALE = 448.0
GIVEN = 6 * LARGEST_SCALE  # under this amax S_enc is 1, and a block with a larger element has the largest scale
NEAR = 4  # float32 on either side of a tie


FLOOR = "arithmetic.h:arithmetic::ocp_floor::block_scale"


class Past(NamedTuple):
    """A specification whose elements can be larger than the largest value. offset: of the byte of a block maximum."""

    spec: Spec
    element: Codec
    block: int
    rules: tuple[str, ...]
    offset: int | None = None  # None: a given amax makes them so


def _rounded_down(spec: Spec, element: Codec, power: int, *rules: str) -> Past:
    """Return the case of a specification whose scale is rounded down. power: of the largest value's binade."""
    return Past(spec.replace(name="floor", arithmetic=OCP_FLOOR), element, 32, (*rules, "MXS-2"), 127 - power)


CASES = {
    "nvfp4": Past(NVFP4, CUDA_E2M1, 16, ("E2M1-3", "E2M1-4", "GLB-4")),
    "mxfp4": _rounded_down(MXFP4, CUDA_E2M1, 2, "E2M1-3", "E2M1-4"),
    "mxfp6-e2m3": _rounded_down(MXFP6_E2M3, CUDA_E2M3, 2, "E2M3-2", "E2M3-3"),
    "mxfp6-e3m2": _rounded_down(MXFP6_E3M2, CUDA_E3M2, 4, "E3M2-2", "E3M2-3"),
}


def _magnitudes(case: Past) -> Floats:
    """Return bfloat16 of whole binades, and float32 around the ties in the upper part of each."""
    tops = [2.0**power for power in POWERS] if case.offset is not None else [1024.0, 2048.0]
    found = []
    for top in tops:
        first = int(np.array([top], F).view(np.uint32)[0])
        found.append(np.arange(first, first + (1 << 23), 1 << 16))
        eighths = first + (np.arange(1, 32) << 18)  # of E2M1, E2M3 and E3M2
        found.append((eighths[:, None] + np.arange(-NEAR, NEAR + 1)).ravel())
    if case.offset is None:  # up to infinity; and 5 and 7 units
        found.append(np.arange(int(np.array([4096], F).view(np.uint32)[0]), INFINITY + 1, 1 << 16))
        ties = np.array([5, 7], F) * F(LARGEST_SCALE)
        found.append((ties.view(np.uint32).astype(np.int64)[:, None] + np.arange(-NEAR, NEAR + 1)).ravel())
    return np.unique(np.concatenate(found)).astype(np.uint32).view(F)


@lru_cache
def elements(name: str, dtype: str, columns: int) -> Any:
    """Return the elements that the type holds, of alternating sign, for rows of some columns."""
    found = _magnitudes(CASES[name])
    if CASES[name].offset is None and columns == COLUMNS:
        found = found[found <= WIDE * LARGEST_SCALE]
    with np.errstate(all="ignore"):
        held = found.astype(TYPES[dtype])
    held = held[held.astype(F) == found]
    return np.where(np.arange(len(held)) % 2, -held, held).astype(TYPES[dtype])


@np.errstate(all="ignore")
def _wanted(case: Past, x: Floats) -> tuple[Any, Any]:
    """Return the code and the scale byte of elements that are the largest of their blocks.

    Rules: BLK-5, BLK-10, MXS-2.
    """
    if case.offset is not None:
        byte = (x.view(np.uint32) >> 23 & 0xFF).astype(np.int64) - 127 + case.offset
        units = x.astype(np.float64) / np.exp2(byte - 127.0)  # exact
        return blocks._encoded(case.element, units.astype(F)), byte.astype(np.uint8)
    pipe = blocks.nvfp4(GIVEN)
    found = pipe.byte(np.abs(x))
    return pipe.code(x, found), found


def alone(name: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize each element in a block of zeros, in a row of one block and in one of many, in both directions."""
    case, count = CASES[name], 0
    for dtype in TYPES:
        for columns in (case.block, COLUMNS):
            x = elements(name, dtype, columns)
            code, byte = _wanted(case, x.astype(F))
            row = np.arange(len(x))
            at = row * 7 % (columns // case.block) * case.block + row % case.block
            matrix, codes = np.zeros((len(x), columns), x.dtype), np.zeros((len(x), columns), np.uint8)
            scales = np.zeros((len(x), columns // case.block), np.uint8)
            matrix[row, at], codes[row, at], scales[row, at // case.block] = x, code, byte
            wanted = {"data": _in_bytes(codes, case.element.format.bits), "scales": scales}
            for direction in DIRECTIONS:
                given = whole._array(np.ascontiguousarray(matrix if direction == "row" else matrix.T), subject)
                amax = whole._array(np.array([GIVEN], F), subject) if case.offset is None else None
                quantize: Any = api.quantize
                q = quantize(given, case.spec, direction, amax=amax, backend=whole.BACKENDS[subject])
                got = q.direction(direction)[0].mapped(whole._host)
                for part, its in wanted.items():
                    wrong = np.argwhere(getattr(got, part).reshape(its.shape) != its)
                    if len(wrong):
                        place = tuple(wrong[0])
                        said = f"{part} {getattr(got, part).reshape(its.shape)[place]:02X}, needs {its[place]:02X}"
                        where = f"{dtype}, {direction}, {columns} columns"
                        return Replayed(count, f"{x[place[0]]!s} alone in a block, {where}: {said}")
                count += len(x)
                tell(count / size(name))
    return Replayed(count)


def size(name: str) -> int:
    """Return the number of blocks that a claim quantizes."""
    widths = (CASES[name].block, COLUMNS)
    return len(DIRECTIONS) * sum(len(elements(name, dtype, columns)) for dtype in TYPES for columns in widths)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims of this module."""
    for name, case in CASES.items():
        largest = float(blocks.values_of(case.element)[-1])
        given = "an amax of 2688 is given" if case.offset is None else "the scale is rounded down"
        for subject in ON_HOST:
            yield ProofClaim(
                name=f"past-largest-{name}/{subject}",
                rules=case.rules,
                method=Method.ARGUMENT,
                subject=subject,
                statement=f"Where {given}, an element past the tie above {largest:g} units has the largest code.",
                domain="all bfloat16 of whole binades, and the float32 around each tie there, alone in blocks, in "
                "rows of one block and of many, in both directions, in three types",
                size=size(name),
                decide=partial(alone, name, subject),
                covers=(
                    *whole.QUANTIZED[subject],
                    *((FLOOR,) if subject is ClaimSubject.CPU and case.offset is not None else ()),
                    whole.value_of(name, f"fp4ref.specs:{name.upper().replace('-', '_')}", subject),
                ),
                reduction="how a code is made depends on the type and on the largest element in units of its scale, "
                "so one element of each such number decides it",
            )
