"""Claims about searches under global maxima near both ends of float32, where products can be subnormal or overflow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, F, Floats
from fp4ref.proof import blocks, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST
from fp4ref.proof.golden_scales import _encoding, _factor, _once
from fp4ref.specs import NVFP4_4OVER6

TOP = 448
POWERS = (-126, -118, -110, -90, -61, -31, 99, 110, 124)  # of the global maxima
SIGNIFICANDS = np.arange(128, 256, 9)  # of block maxima, from the global one's down
BINADES, BLOCK = 6, 16
BESIDE = 128  # elements beside a maximum


def elements(power: int) -> tuple[float, Floats]:
    """Return a global maximum, and blocks of two elements: a block maximum, and another one below it."""
    amax = F(np.ldexp(1.4140625, power))
    largest = np.concatenate([np.ldexp(SIGNIFICANDS / 256 * float(amax), -n) for n in range(BINADES)]).astype(F)
    share = (np.arange(BESIDE) + 0.5) / BESIDE
    x = np.zeros((len(largest), BESIDE, BLOCK), F)
    x[:, :, 0] = largest[:, None]
    x[:, :, 3] = -(largest[:, None].astype(np.float64) * share).astype(F)
    return float(amax), x.reshape(-1, BLOCK)


@np.errstate(all="ignore")
def wanted(amax: float, x: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return codes and scale bytes. Rules: BLK-3, BLK-4, BLK-5, FOS-1, FOS-2, FOS-3, FOS-5, FOS-6."""
    g = _encoding(np.array([amax], F), TOP)
    sixth = _once(g.astype(np.float64) * np.float64(_once(1.0 / 6.0)))
    before = _once(np.abs(x).max(axis=1).astype(np.float64) * sixth.astype(np.float64))
    values, found = blocks.values_of(CUDA_E2M1), []
    for t in (before, _once(before.astype(np.float64) * 1.5)):
        byte = blocks._encoded(CUDA_E4M3, t)
        s = blocks.values_of(CUDA_E4M3)[byte]
        y = _once(x.astype(np.float64) * _factor(s.astype(F), g).astype(np.float64)[:, None])
        codes = blocks._encoded(CUDA_E2M1, y.ravel()).reshape(y.shape)
        q = np.where(codes & 8, -values[codes & 7], values[codes & 7])
        product = _once(_once(q * s[:, None]).astype(np.float64) * amax)
        value = _once(product.astype(np.float64) / (6.0 * TOP))
        error = np.abs(_once(value.astype(np.float64) - x.astype(np.float64)))
        found.append((codes, byte, _once(error[:, 0].astype(np.float64) + error[:, 3].astype(np.float64))))
    (codes, byte, first), (other_codes, other_byte, second) = found
    better = second < first
    return np.where(better[:, None], other_codes, codes), np.where(better, other_byte, byte)


def searched(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize the blocks under each global maximum, and compare scale bytes and codes."""
    quantize: Any = api.quantize
    for number, power in enumerate(POWERS):
        amax, x = elements(power)
        codes, byte = wanted(amax, x)
        rows = whole._array(x.reshape(-1, 4 * BLOCK), subject)
        given = whole._array(np.array([amax], F), subject)
        got = quantize(rows, NVFP4_4OVER6, amax=given, backend=whole.BACKENDS[subject]).row.mapped(whole._host)
        mine = np.stack([got.data & 15, got.data >> 4], axis=-1).reshape(codes.shape)
        wrong = (mine != codes).any(axis=1) | (got.scales.ravel() != byte)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            pair = f"{x[at, 0]!s} and {x[at, 3]!s} under the amax {amax!r}"
            said = f"the byte is {got.scales.ravel()[at]:02X}, needs {byte[at]:02X}"
            return Replayed(number * len(x), f"a block of {pair}: {said}")
        tell((number + 1) / len(POWERS))
    return Replayed(SIZE)


SIZE = len(POWERS) * len(SIGNIFICANDS) * BINADES * BESIDE


def claims() -> Iterator[ProofClaim]:
    """Yield the claim for each backend."""
    for subject in ON_HOST:
        yield ProofClaim(
            name=f"search-far/{subject}",
            rules=("FOS-1", "FOS-3", "FOS-6"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="A search keeps the candidate with the smaller error under the smallest and the largest global "
            "maxima, too.",
            domain=f"{len(POWERS)} global maxima from 2^{POWERS[0]} to 2^{POWERS[-1]}, block maxima in {BINADES} "
            "binades, each beside elements below it",
            size=SIZE,
            decide=partial(searched, subject),
            covers=(
                *whole.QUANTIZED[subject],
                whole.value_of("nvfp4-4over6", "fp4ref.specs:NVFP4_4OVER6", subject),
            ),
            reduction="how a quotient is computed depends on the global maximum alone, and these stand on both sides "
            "of each number at which it changes",
        )
