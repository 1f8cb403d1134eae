"""Claims about theorems on one quantization: the order of values, a transposition, and another global scale."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fp4ref import api, packing
from fp4ref.arithmetic import dequantized_te
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E4M3, F
from fp4ref.proof import encoders, sources, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST, matrix, sizes
from fp4ref.proof.golden_scales import _constants
from fp4ref.proof.theorems_again import BYTES, ORDERED

CODEC_NAMES = ("CUDA_E2M1", "CUDA_E2M3", "CUDA_E3M2", "CUDA_E4M3", "CUDA_E5M2", "OCP_INT8")
ORDERED_SIZE = len(ORDERED) * 1_200_000
SQUARE = {"nvfp4-2d": 16, "mxfp4-2d": 32, "mxfp8-2d": 32}
NORMAL, LARGEST = 2.0**-6, 448.0  # of E4M3


def ordered(tell: Tell) -> Replayed:
    """Encode the deciding floats in their order, and multiply all codes in theirs by every scale.

    Rules: THM-3.
    """
    patterns = encoders.halves()
    values = patterns.view(F)
    values = np.sort(values[np.isfinite(values)])
    count = 0
    s = CUDA_E4M3.decode(BYTES)[:, None]
    powers = np.ldexp(1.0, np.arange(-127, 128)).astype(F)[:, None]
    for name, codec in ORDERED.items():
        decoded = codec.decode(codec.encode(values))
        (wrong,) = np.nonzero(~(np.diff(decoded) >= 0))
        count += len(values)
        if len(wrong):
            return Replayed(count, f"{name}: {values[wrong[0]]!s} has a larger value than {values[wrong[0] + 1]!s}")
        grid = np.unique(decoded)
        with np.errstate(all="ignore"):  # NaN where a scale times a maximum is infinite
            made = [dequantized_te(grid, s, np.array([amax], F), _constants(448)) for amax in whole.AMAXES]
            scaled = np.concatenate([grid * powers, *made])
        count += scaled.size
        if (scaled[:, 1:] < scaled[:, :-1]).any():
            return Replayed(count, f"{name}: a product falls as a code grows")
        tell(count / ORDERED_SIZE)
    return Replayed(count)


def turned(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize matrices of all kinds of sizes in both directions, and compare codes and scales of each element."""
    tried = [*product(SQUARE, sizes(16, 32))]
    for done, (name, (rows, columns)) in enumerate(tried):
        block, form = SQUARE[name], resolve(name).element.format
        x = whole._array(matrix(rows, columns) * F(1.09375), subject)
        q: Any = api.quantize(x, name, "both", backend=whole.BACKENDS[subject])
        across, down = (part.mapped(whole._host) for part in (q.row, q.column))
        codes, turned_codes = packing.unpack(across.data, columns, form), packing.unpack(down.data, rows, form)
        m, k = np.arange(rows)[:, None], np.arange(columns)[None, :]
        scales, its = across.scales[m, k // block], down.scales[k, m // block]
        for what, one, other in (("code", codes, turned_codes.T), ("scale", scales, its)):
            wrong = np.argwhere(one != other)
            if len(wrong):
                return Replayed(done, f"{name} [{rows}, {columns}]: the {what} of element {wrong[0].tolist()}")
        tell((done + 1) / len(tried))
    return Replayed(len(tried))


def rescaled(tell: Tell) -> Replayed:
    """Encode every float32 as a scale, by the ends of the ranges that an encoder takes for one number.

    Rules: THM-10.
    """
    upper = np.arange(0x7F80, dtype=np.uint32) << 16
    exact, first, last = (part.view(F) for part in (upper, upper | 1, upper + 0xFFFF))
    count = 0
    for given, ends in ((exact, (exact,)), (first, (first, last))):
        new = CUDA_E4M3.decode(CUDA_E4M3.encode(given)).astype(np.float64)
        for t in (end.astype(np.float64) for end in ends):
            count += len(t)
            wrong = np.flatnonzero((t >= NORMAL) & (t <= LARGEST) & (16 * np.abs(new - t) > t))
            if len(wrong):
                return Replayed(count, f"the scale {t[wrong[0]]:g} becomes {new[wrong[0]]:g}")
    tell(0.5)
    scales = CUDA_E4M3.decode(BYTES)
    for power in range(-15, 16):
        made = scales * F(2.0**power)
        made = made[(made >= NORMAL) & (made <= LARGEST)]
        count += len(made)
        if (CUDA_E4M3.decode(CUDA_E4M3.encode(made)) != made).any():
            return Replayed(count, f"a scale times 2^{power} changes")
    return Replayed(count)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about one quantization."""
    golden: dict[str, Any] = {"subject": ClaimSubject.GOLDEN}
    codecs = tuple(f"fp4ref.formats.codec:{name}" for name in ("Codec.encode", "_representatives", "Codec.decode"))
    yield ProofClaim(
        name="theorem-order/golden",
        rules=("THM-3",),
        method=Method.ARGUMENT,
        statement="Of two elements of a block, the larger one never has the smaller value.",
        domain="all pairs of finite float32 in six element formats, under all E8M0 scales, and all E4M3 scales with "
        f"{len(whole.AMAXES)} global maxima",
        size=len(ORDERED) << 32,
        decide=ordered,
        covers=(*codecs, "fp4ref.arithmetic:dequantized_te", *(f"fp4ref.formats.codec:{n}" for n in CODEC_NAMES)),
        reduction="a product or quotient by a positive number, rounded once, never falls as the other one grows; "
        "encoders are tables by the upper half and whether the lower half is zero",
        rests_on=("decision-key/golden",),
        **golden,
    )
    yield ProofClaim(
        name="theorem-rescaled/golden",
        rules=("THM-10",),
        method=Method.ARGUMENT,
        statement="A scale from 2^-6 to 448 that becomes an E4M3 number changes by at most 1/16 of itself; an E4M3 "
        "number times a power of two, not at all.",
        domain="all float32 from 2^-6 to 448",
        size=int(np.diff(np.array([NORMAL, LARGEST], F).view(np.uint32))[0]) + 1,
        decide=rescaled,
        covers=(*codecs, "fp4ref.formats.codec:CUDA_E4M3"),
        reduction="a change is largest at an end of the numbers that have one case of the encoder's table",
        rests_on=("decision-key/golden",),
        **golden,
    )
    for subject in ON_HOST:
        values = tuple(
            f"{sources.LOWERED}{name}"
            if subject is ClaimSubject.CPU
            else f"fp4ref.specs:{name.upper().replace('-', '_')}"
            for name in SQUARE
        )
        yield ProofClaim(
            name=f"theorem-transposed/{subject}",
            rules=("THM-8",),
            method=Method.ARGUMENT,
            subject=subject,
            statement=f"In {', '.join(SQUARE)}, the column direction has the transposed codes of the row direction, "
            "and the scales of the same blocks.",
            domain="matrices of no, one and two blocks along either side, one element more and one less, and of "
            "several tiles",
            size=len(SQUARE) * len(sizes(16, 32)),
            decide=partial(turned, subject),
            covers=(*whole.QUANTIZED[subject], *values),
            reduction="a maximum has no order, and a code depends on the element, its block's maximum and the global "
            "one; so matrices whose neighbouring blocks are unlike decide which block an element has",
        )
