"""Claims about maxima: rows with one of their own, and those that a caller gives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from fp4ref import api
from fp4ref.errors import Fp4Error
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, F, Floats
from fp4ref.proof import blocks, sources, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST
from fp4ref.proof.golden_scales import _encoding, _factor, _once
from fp4ref.quantized import DIRECTIONS

ROW_SCALED = "nvfp4-row-scaled"
FINITE = 0x7F80  # bfloat16 patterns from 0 to the largest one
COLUMNS, BLOCK = 32, 16
SHARES = np.array([1, -0.7, 0.31, 1 / 6, -0.25, 0.083, 0.042, 0, 0.5, -1, 0.9, 0.0417, 1 / 3, 0.75, -0.583, 1e-5], F)
PATTERNS = 1 << 16
SHAPES = {(): True, (1,): True, (1, 1): True, (2,): False, (0,): False, (1, 1, 1): False, (1, 2): False}
TYPES = {"float32": True, "float16": True, "float64": False, "int32": False, "bool": False}
NUMBERS = {True: False, 6: True, -0.0: True, -1e-50: False, 3.4028235677973366e38: False, 3.402823567797336e38: True}
GIVEN = 2 * PATTERNS + len(SHAPES) + len(TYPES) + len(NUMBERS)


def tensor() -> Floats:
    """Return a row for every finite bfloat16 maximum: shares of it, those of a second block a third as large."""
    maxima = (np.arange(FINITE, dtype=np.uint32) << 16).view(F)
    shares = np.concatenate([SHARES, np.roll(SHARES, 3) * F(0.3)])
    return np.asarray(maxima[:, None] * shares[None, :], F)


def by_row(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize rows of every maximum, and the transpose by columns; compare with each row's own scales."""
    x = tensor()
    maxima = np.abs(x).max(axis=1)
    g = _encoding(maxima, 448)
    with np.errstate(all="ignore"):
        sixth = _once(g.astype(np.float64) * np.float64(_once(1.0 / 6.0)))
        largest = np.abs(x).reshape(FINITE, -1, BLOCK).max(axis=2)
        before = _once(largest.astype(np.float64) * sixth[:, None].astype(np.float64))
        scales = blocks._encoded(CUDA_E4M3, np.minimum(before, np.finfo(F).max).ravel()).reshape(before.shape)
        s = blocks.values_of(CUDA_E4M3).astype(F)[scales]
        factor = _factor(s, g[:, None])
        y = _once(x.astype(np.float64) * np.repeat(factor, BLOCK, axis=1).astype(np.float64))
    codes = blocks._encoded(CUDA_E2M1, y.ravel()).reshape(y.shape)
    wanted = {"data": codes[:, ::2] | codes[:, 1::2] << 4, "scales": scales, "amax": maxima}
    for number, direction in enumerate(DIRECTIONS):
        given = whole._array(np.ascontiguousarray(x.T) if number else x, subject)
        q = api.quantize(given, ROW_SCALED, direction, backend=whole.BACKENDS[subject])
        got = q.direction(direction)[0].mapped(whole._host)
        for name, want in wanted.items():
            mine = getattr(got, name)
            wrong = np.argwhere(mine != want)
            if len(wrong) or mine.shape != want.shape:
                row = int(wrong[0][0]) if len(wrong) else 0
                return Replayed(row, f"{direction}: {name} of the row of maximum {maxima[row]!s}")
        tell((number + 1) / 2)
    return Replayed(2 * FINITE)


def given(tell: Tell) -> Replayed:
    """Give every bfloat16 as a maximum, as a number and in an array; then every shape and type of the table."""
    count = 0
    for pattern in range(PATTERNS):
        value = np.array([pattern], np.uint16).view(ml_dtypes.bfloat16)
        number = float(value[0])
        fits = number >= 0
        for amax in (number, value):
            witness = _told(amax, "nvfp4", abs(number) if fits else None)
            count += 1
            if witness:
                return Replayed(count, witness)
        tell(count / GIVEN)
    cases: list[tuple[Any, bool]] = [(np.full(shape, 6, F), fits) for shape, fits in SHAPES.items()]
    cases += [(np.ones(1, kind), fits) for kind, fits in TYPES.items()]
    cases += [*NUMBERS.items()]
    for amax, fits in cases:
        with np.errstate(all="ignore"):
            value = float(abs(F(np.ravel(amax)[0]))) if fits else None
        witness = _told(amax, "nvfp4", value)
        count += 1
        if witness:
            return Replayed(count, witness)
    return Replayed(count)


def _told(amax: Any, spec: str, want: float | None) -> str:
    """Return how a caller's maximum is taken, if not as `want` or, for None, refused; else empty."""
    try:
        q = api.quantize(np.zeros((0, 16), F), spec, amax=amax, backend="numpy")
    except Fp4Error:
        return "" if want is None else f"the amax {amax!r} is refused"
    assert q.row is not None
    found = np.asarray(q.row.amax)
    right = want is not None and found.tobytes() == np.array([want], F).tobytes()
    return "" if right else f"the amax {amax!r} is taken as {found}, needs {want}"


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about maxima."""
    for subject in ON_HOST:
        value = f"{sources.LOWERED}{ROW_SCALED}" if subject is ClaimSubject.CPU else "fp4ref.specs:NVFP4_ROW_SCALED"
        yield ProofClaim(
            name=f"row-scaled/{subject}",
            rules=("GLB-1", "GLB-5"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="Every row has its own amax, and the scales and codes of that amax, in both directions.",
            domain="rows of every finite bfloat16 maximum, two blocks of shares of it",
            size=2 * FINITE,
            decide=partial(by_row, subject),
            covers=(*whole.QUANTIZED[subject], value),
            reduction="the arithmetic is that of one tensor, so a row of each maximum shows that it takes that one",
            rests_on=(f"quantize-nvfp4-bfloat16/{subject}",),
        )
    yield ProofClaim(
        name="given-amax/golden",
        rules=("GLB-4",),
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.GOLDEN,
        statement="A given amax is taken as it is if it has a number, type and shape of the table, and refused if not.",
        domain="all bfloat16, as numbers and in arrays, and the shapes, types and ends of the table",
        size=GIVEN,
        decide=given,
        covers=("fp4ref.arguments:given_amax", "fp4ref.arguments:_number"),
    )
