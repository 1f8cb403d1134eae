"""Claims about maxima that a caller gives: every row's own one is kept as it is, and its scales are those of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import api
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, F, Floats
from fp4ref.proof import blocks, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST
from fp4ref.proof.golden_scales import _encoding, _factor, _once
from fp4ref.proof.maxima import BLOCK, ROW_SCALED
from fp4ref.quantized import DIRECTIONS

FINITE = 0x7F80  # bfloat16 patterns from 0 to the largest one
ALONE = (0.0, 1e-45, 2.0**-126, 0.75, 1.0, 2688.0, 3.4028234663852886e38, np.inf)  # of whole tensors
SIZE = 2 * (FINITE + len(ALONE))
SHARES = np.array([1, -0.7, 0.31, 1 / 6, -0.25, 0.083, 0.042, 0, 0.5, -1, 0.9, 0.0417, 1 / 3, 0.75, -0.583, 1e-5], F)


def tensor(maxima: Floats) -> Floats:
    """Return a row for each maximum: shares of it, of which the largest is half of it in a second block."""
    return np.asarray(maxima[:, None] * np.concatenate([SHARES, np.roll(SHARES, 3) * F(0.5)])[None, :], F)


@np.errstate(all="ignore")
def wanted(x: Floats, amaxes: Floats) -> tuple[Any, Any]:
    """Return the packed codes and the scale bytes of rows under an amax each. Rules: GLB-2, GLB-5, BLK-3, BLK-4."""
    g = _encoding(amaxes, 448)
    sixth = _once(g.astype(np.float64) * np.float64(_once(1.0 / 6.0)))
    largest = np.abs(x).reshape(len(x), -1, BLOCK).max(axis=2)
    before = _once(largest.astype(np.float64) * sixth[:, None].astype(np.float64))
    scales = blocks._encoded(CUDA_E4M3, before.ravel()).reshape(before.shape)
    factor = _factor(blocks.values_of(CUDA_E4M3).astype(F)[scales], g[:, None])
    y = _once(x.astype(np.float64) * np.repeat(factor, BLOCK, axis=1).astype(np.float64))
    codes = blocks._encoded(CUDA_E2M1, y.ravel()).reshape(y.shape)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales


def kept(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize rows under amaxes of other rows, and one row under each amax of a few, in both directions."""
    maxima = (np.arange(FINITE, dtype=np.uint32) << 16).view(F)
    cases = [(ROW_SCALED, tensor(maxima), np.roll(maxima, 77))]
    cases += [("nvfp4", tensor(np.array([3], F)), np.array([amax], F)) for amax in ALONE]
    count = 0
    for spec, x, amaxes in cases:
        want = dict(zip(("data", "scales"), wanted(x, amaxes), strict=True), amax=amaxes)
        for direction in DIRECTIONS:
            given = whole._array(np.ascontiguousarray(x if direction == "row" else x.T), subject)
            quantize: Any = api.quantize
            amax = whole._array(amaxes, subject)
            q = quantize(given, spec, direction, amax=amax, backend=whole.BACKENDS[subject])
            got = q.direction(direction)[0].mapped(whole._host)
            for name, its in want.items():
                mine = getattr(got, name)
                wrong = np.argwhere(mine != its)
                if len(wrong) or mine.shape != its.shape:
                    row = int(wrong[0][0]) if len(wrong) else 0
                    return Replayed(count, f"{spec}, {direction}: {name} of a row with the amax {amaxes[row]!s}")
            count += len(x)
            tell(count / SIZE)
    return Replayed(count)


def claims() -> Iterator[ProofClaim]:
    """Yield the claim for each backend."""
    for subject in ON_HOST:
        values = {ROW_SCALED: "fp4ref.specs:NVFP4_ROW_SCALED", "nvfp4": whole.VALUES["nvfp4"]}
        yield ProofClaim(
            name=f"amax-kept/{subject}",
            rules=("GLB-4", "GLB-5", "GLB-7"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="An amax that is given is stored as it is, and decides the scales, whatever the elements are.",
            domain=f"every finite bfloat16 as the amax of a row with other elements, and {len(ALONE)} amaxes of a "
            "tensor, in both directions",
            size=SIZE,
            decide=partial(kept, subject),
            covers=(
                *whole.QUANTIZED[subject],
                *(whole.value_of(spec, reference, subject) for spec, reference in values.items()),
            ),
            reduction="the arithmetic is that of an amax that is found, so rows whose amax is another's show which "
            "one is taken",
            rests_on=(f"row-scaled/{subject}",),
        )
