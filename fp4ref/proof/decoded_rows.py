"""Claims about whole calls that decode: every row by its own amax, and columns of a transform back to elements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, F
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST, UNIT
from fp4ref.proof.golden_scales import _once
from fp4ref.proof.maxima import FINITE, ROW_SCALED
from fp4ref.proof.transforms import MASK, SIGNINGS
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Quantized

POINTS = 16
ONE, MINUS_ONE, UNIT_SCALE = 0x2, 0xA, 0x38  # codes of E2M1, and the byte of 1


def _decoded(
    spec: str, parts: DirectionData, direction: Direction, subject: ClaimSubject, **named: Any
) -> NDArray[np.uint32]:
    """Return the float32 patterns of one direction's values [rows, columns]."""
    rows, columns = parts.data.shape[0], 2 * parts.data.shape[1]
    shape = (rows, columns) if direction == "row" else (columns, rows)
    given = {direction: parts.mapped(lambda part: whole._array(part, subject))}
    q: Any = Quantized(resolve(spec), shape, "float32", "linear", **given)
    values = api.dequantize(q, direction=direction, backend=whole.BACKENDS[subject], **named)
    return np.ascontiguousarray(whole._host_values(values)).view(np.uint32)


@np.errstate(all="ignore")
def by_row(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Decode rows of all codes under every finite bfloat16 amax, in either direction, and compare."""
    amaxes = (np.arange(FINITE, dtype=np.uint32) << 16).view(F)
    codes = np.tile(np.arange(POINTS, dtype=np.uint8), (FINITE, 1))
    scales = (np.arange(FINITE) * 7 % 127).astype(np.uint8)[:, None]
    products = _once(whole._decoded(CUDA_E4M3, scales) * amaxes.astype(np.float64)[:, None])
    s = _once(products.astype(np.float64) * np.float64(_once(1.0 / UNIT)))
    want = _once(whole._decoded(CUDA_E2M1, codes) * s.astype(np.float64)).view(np.uint32)
    parts = DirectionData(codes[:, ::2] | codes[:, 1::2] << 4, scales, amaxes)
    for number, direction in enumerate(DIRECTIONS):
        wrong = np.argwhere(_decoded(ROW_SCALED, parts, direction, subject) != want)
        if len(wrong):
            row, code = map(int, wrong[0])
            said = f"code {code:X} under the scale byte {scales[row, 0]:02X} and the amax {amaxes[row]!s} of its row"
            return Replayed(number * codes.size, f"{direction}: {said}")
        tell((number + 1) / 2)
    return Replayed(2 * codes.size)


def inverted(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Undo the transform of columns of all signs, and compare with a quarter of exact sums times the signs."""
    element = np.arange(POINTS)
    negative = np.arange(SIGNINGS)[:, None] >> element & 1
    odd = np.array([[int(j & k).bit_count() & 1 for k in element] for j in element])
    sums = np.where(negative, -1, 1) @ np.where(odd, -1, 1)
    want = (sums / 4 * np.where(MASK >> element & 1, -1.0, 1.0)).astype(F).view(np.uint32)
    codes = np.where(negative, MINUS_ONE, ONE).astype(np.uint8)
    scales = np.full((SIGNINGS, 1), UNIT_SCALE, np.uint8)
    parts = DirectionData(codes[:, ::2] | codes[:, 1::2] << 4, scales, np.array([UNIT], F))
    wrong = np.argwhere(_decoded("nvfp4-rht", parts, "column", subject, inverse_hadamard=True) != want)
    tell(1.0)
    return Replayed(SIGNINGS, f"element {wrong[0][1]} of the signs {wrong[0][0]:04X}" if len(wrong) else None)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims for each backend."""
    for subject, inverse in product(ON_HOST, (False, True)):
        spec, value = ("nvfp4-rht", "NVFP4_RHT") if inverse else (ROW_SCALED, "NVFP4_ROW_SCALED")
        yield ProofClaim(
            name=f"{'columns-inverted' if inverse else 'rows-decoded-by-amax'}/{subject}",
            rules=("HAD-6",) if inverse else ("DEQ-1", "GLB-5"),
            method=Method.EXHAUSTIVE if inverse else Method.ARGUMENT,
            subject=subject,
            statement="On request, columns are the quarter of the sums of their values, times the signs."
            if inverse
            else "A value is its code times the scale of its block and the amax of its row.",
            domain="columns of all 16 signs" if inverse else "all codes under every finite bfloat16 amax of a row",
            size=SIGNINGS if inverse else 2 * FINITE * POINTS,
            decide=partial(inverted if inverse else by_row, subject),
            covers=(*whole.DECODED[subject], whole.value_of(spec, f"fp4ref.specs:{value}", subject)),
            reduction="" if inverse else "codes and scales are those of a tensor's amax, so one scale a row decides",
            rests_on=() if inverse else (f"dequantize-nvfp4/{subject}",),
        )
