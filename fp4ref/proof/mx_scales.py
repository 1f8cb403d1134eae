"""Claims about the choice of an MX scale: every block maximum gets the byte that its value calls for.

The expected bytes come from fractions: one begins where the exponent of the maximum, rounded as the rule says, grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arithmetic import OCP_CEIL, OCP_EVEN, OCP_FLOOR, Arithmetic, Constants
from fp4ref.formats import CUDA_E8M0, E2M1, E4M3, E5M2, F, Format
from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.steps import INFINITY, SIGN, CodeSteps, _first, shown
from fp4ref.specs import MXFP4, MXFP8_E4M3, MXFP8_E5M2

ELEMENTS = {MXFP4: E2M1, MXFP8_E4M3: E4M3, MXFP8_E5M2: E5M2}
MAXIMA = SIGN  # patterns without a sign, NaN included
NAN, LAST = 0xFF, 0xFE
BESIDE = 4  # patterns on either side of the place at which a byte begins


def _floor(power: int, element: Format) -> tuple[Fraction, bool]:
    return _two(power), True


def _ceil(power: int, element: Format) -> tuple[Fraction, bool]:
    return _two(power - 1), False


def _even(power: int, element: Format) -> tuple[Fraction, bool]:
    half_step = _two(power - 1 - element.mantissa_bits) / 2
    return _two(power) - half_step, True


# By mode: the rule, the order of operations, and the magnitude from which on the exponent counts as `power`; the flag
# says whether that magnitude itself does.
Edge = Callable[[int, Format], tuple[Fraction, bool]]
MODES: dict[str, tuple[str, Arithmetic, Edge]] = {
    "floor": ("MXS-2", OCP_FLOOR, _floor),
    "ceil": ("MXS-3", OCP_CEIL, _ceil),
    "even": ("MXS-4", OCP_EVEN, _even),
}


def _two(power: int) -> Fraction:
    return Fraction(2) ** power


@lru_cache
def bytes_of(mode: str, element: Format) -> CodeSteps:
    """Return the scale byte of every maximum's pattern. Rules: MXS-2, MXS-3, MXS-4, MXS-5."""
    edge = MODES[mode][2]
    starts, found = [0], [0]
    for field in range(element.emax + 1, 256):
        start = _first(*edge(field - 127, element))
        if start < INFINITY:
            starts.append(start)
            found.append(min(field - element.emax, LAST))
    return CodeSteps(np.array([*starts, INFINITY], np.uint64), np.array([*found, NAN], np.uint8))


def header_text(mode: str) -> str:
    """Return the checks of a mode, one for each element format."""
    import fp4ref_numerics  # lazy: a backend's package

    arithmetic = MODES[mode][1]
    types = [
        fp4ref_numerics.lower(spec.replace(name="claim", arithmetic=arithmetic), f"Of_{element.name}")
        for spec, element in ELEMENTS.items()
    ]
    checks = {
        element.name: f"Of_{element.name}::Scale::encode(block_scale<Of_{element.name}, float32>(float_of(bits), 1.0f))"
        for element in ELEMENTS.values()
    }
    return native.step_text(checks, "".join(types))


def header(mode: str, tell: Tell) -> Replayed:
    """Compare the header's bytes with the steps, for every maximum and each element format."""
    for place, element in enumerate(ELEMENTS.values()):
        want = bytes_of(mode, element)
        numbers = [len(want.starts), *want.starts.tolist(), *want.codes.tolist()]
        wrong, first = native.sweep(header_text(mode), element.name, MAXIMA, tell, numbers)
        if first is not None:
            return Replayed((place + 1) * MAXIMA, f"{_told(first, element, want)}; {wrong} maxima are wrong")
    return Replayed(len(ELEMENTS) * MAXIMA)


def maxima(want: CodeSteps) -> NDArray[np.uint32]:
    """Return the patterns around each start, and those of all bfloat16."""
    near = (want.starts.astype(np.int64)[:, None] + np.arange(-BESIDE, BESIDE + 1)).ravel()
    return np.unique(np.concatenate([near[near >= 0], np.arange(SIGN >> 16) << 16])).astype(np.uint32)


def array(mode: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare the bytes of the golden model or of torch with the steps, for the maxima that decide them."""
    count = 0
    for spec, element in ELEMENTS.items():
        want = bytes_of(mode, element)
        patterns = maxima(want)
        of = _golden if subject is ClaimSubject.GOLDEN else _torch
        got, right = of(mode, spec, patterns.view(F)), want.of(patterns)
        (wrong,) = np.nonzero(got != right)
        count += len(patterns)
        if len(wrong):
            return Replayed(count, f"{_told(int(patterns[wrong[0]]), element, want)}; got {got[wrong[0]]:02X}")
    return Replayed(count)


@np.errstate(all="ignore")
def _golden(mode: str, spec: Any, amax: NDArray[np.float32]) -> NDArray[np.uint8]:
    k = Constants(spec.element.format, CUDA_E8M0, F(spec.element.format.max), F(1), lambda values: values)
    return CUDA_E8M0.encode(MODES[mode][1].block_scale(amax, np.ones(1, F), k))


def _torch(mode: str, spec: Any, amax: NDArray[np.float32]) -> NDArray[np.uint8]:
    import torch

    from fp4ref_torch import arithmetic, codecs, known

    spec = spec.replace(name="claim", arithmetic=MODES[mode][1])
    values = torch.from_numpy(amax)
    scale = arithmetic.block_scale(values, torch.ones(1), known.Known(spec, torch.float32, values))
    found: NDArray[np.uint8] = codecs.encode(scale, CUDA_E8M0).numpy()
    return found


def _told(pattern: int, element: Format, want: CodeSteps) -> str:
    right = int(want.of(np.array([pattern], np.uint32))[0])
    return f"the maximum {shown(pattern)} of {element.name} needs the byte {right:02X}"


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about FLOOR, CEIL and EVEN."""
    reduction = "bits and sums of bits never fall as a magnitude grows, so the patterns beside each start decide it"
    for mode, (rule, arithmetic, _) in MODES.items():
        shared: dict[str, Any] = {
            "rules": (rule, "MXS-5"),
            "statement": f"A block maximum has the scale byte of {mode.upper()}, FF if it is not finite.",
            "domain": "all float32 maxima, NaN included, of blocks of E2M1, E4M3 and E5M2",
            "size": len(ELEMENTS) * MAXIMA,
        }
        struct = f"arithmetic.h:arithmetic::{arithmetic.name.replace('-', '_')}::block_scale"
        yield ProofClaim(
            name=f"mx-{mode}/header",
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.HEADER,
            decide=partial(header, mode),
            covers=(struct, "block.h:block_scale", "codec.h:Codec::encode"),
            **shared,
        )
        for subject, covers in (
            (ClaimSubject.GOLDEN, (f"fp4ref.arithmetic:block_scale_{mode}", "fp4ref.formats.codec:Codec.encode")),
            (ClaimSubject.TORCH, ("fp4ref_torch.arithmetic:block_scale", "fp4ref_torch.codecs:encode")),
        ):
            yield ProofClaim(
                name=f"mx-{mode}/{subject}",
                method=Method.ARGUMENT,
                subject=subject,
                decide=partial(array, mode, subject),
                covers=covers,
                reduction=reduction,
                **shared,
            )
