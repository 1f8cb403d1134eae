"""Claims about the mean of stochastic rounding: how many of the 256 bytes move a magnitude up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import STOCHASTIC_E2M1, F
from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.steps import shown

SIX = 0x40C00000  # as a float32 pattern
EXCEPTIONS = 576
# `frac` and its 256-fold are exact in double precision. A byte moves y if it is one of the `moving` largest.
COUNTED = """
    const double y = (double)float_of((unsigned)i), step = y >= 4.0 ? 2.0 : y >= 2.0 ? 1.0 : 0.5;
    const unsigned steps = (unsigned)(y / step), lower = y >= 4.0 ? steps + 4u : y >= 2.0 ? steps + 2u : steps;
    const double part = 256.0 * (y / step - (double)steps);
    const unsigned whole = (unsigned)part;
    const bool one_more = y < 0.25 && (double)(whole + 1u) - part <= 0x1p-17;
"""
MOVED = """
    using Drawn = Codec<e2m1, Rounding::stochastic, Sign::bit, 7, 7, -1>;
    const float x = float_of((unsigned)i);
    const unsigned moving = whole + one_more, last = 255u - moving, first = moving ? last + 1u : 255u;
    return (Drawn::encode(x, 0u) != lower) | (Drawn::encode(x, last) != lower)
        | (Drawn::encode(x, first) != lower + (moving > 0)) | (Drawn::encode(x, 255u) != lower + (moving > 0));
"""


def in_header(tell: Tell) -> Replayed:
    """Compare codes at the byte that is to be the first one that moves a magnitude, and count the exceptions."""
    size = SIX + 1
    source = native.text({"moved": COUNTED + MOVED, "more": COUNTED + "(void)lower; return one_more;"})
    wrong, first = native.sweep(source, "moved", size, lambda done: tell(done / 2))
    if first is not None:
        return Replayed(size, f"{shown(first)} is moved by another number of bytes; {wrong} magnitudes are wrong")
    found, _ = native.sweep(source, "more", size, lambda done: tell(0.5 + done / 2))
    return Replayed(size, None if found == EXCEPTIONS else f"{found} magnitudes are moved by one byte more")


def moving_bytes(patterns: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return how many bytes move magnitudes up to 6. Rules: SR-4."""
    y = patterns.view(F).astype(np.float64)
    step = np.where(y >= 4, 2.0, np.where(y >= 2, 1.0, 0.5))
    part = 256 * (y / step - np.floor(y / step))
    one_more = (y < 0.25) & (np.floor(part) + 1 - part <= 2.0**-17)
    return np.asarray(np.floor(part) + one_more, np.int64)


def magnitudes() -> NDArray[np.uint32]:
    """Return all bfloat16 up to 6, and the float32 around each number of bytes that is whole."""
    halves = np.arange((SIX >> 16) + 1, dtype=np.uint32) << 16
    whole = np.concatenate(
        [
            (low + step * np.arange(257) / 256)
            for low, step in ((0, 0.5), (0.5, 0.5), (1, 0.5), (1.5, 0.5), (2, 1), (3, 1), (4, 2))
        ]
    )
    near = whole.astype(F).view(np.uint32).astype(np.int64)[:, None] + np.arange(-4, 5)
    near = near[(near >= 0) & (near <= SIX)].astype(np.uint32)
    return np.unique(np.concatenate([halves, near]))


def in_python(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Count the bytes that move magnitudes, all 256 tried."""
    patterns = magnitudes()
    count = np.zeros(len(patterns), np.int64)
    lowest = _codes(patterns, 0, subject).astype(np.int64)
    for byte in range(256):
        codes = _codes(patterns, byte, subject).astype(np.int64)
        odd = np.flatnonzero((codes != lowest) & (codes != lowest + 1))
        if len(odd):
            return Replayed(len(patterns) << 8, f"{shown(int(patterns[odd[0]]))} under the byte {byte:02X}")
        count += codes != lowest
        tell((byte + 1) / 256)
    (wrong,) = np.nonzero(count != moving_bytes(patterns))
    if not len(wrong):
        return Replayed(len(patterns) << 8)
    at = int(wrong[0])
    needed = moving_bytes(patterns[at : at + 1])[0]
    return Replayed(len(patterns) << 8, f"{shown(int(patterns[at]))} is moved by {count[at]} bytes, needs {needed}")


def expected(tell: Tell) -> Replayed:
    """Compare the golden model's means with the values beside a magnitude, weighted by the bytes that move it."""
    patterns = magnitudes()
    y, values = patterns.view(F).astype(np.float64), np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 6])
    lower = np.searchsorted(values[:-1], y, side="right") - 1
    moving = moving_bytes(patterns)
    want = ((256 - moving) * values[lower] + moving * values[lower + 1]) / 256  # sums of integers over 512
    for sign in (1, -1):
        got = STOCHASTIC_E2M1.expectation((sign * y).astype(F))
        (wrong,) = np.nonzero(got != sign * want)
        if len(wrong):
            at = int(wrong[0])
            return Replayed(len(patterns), f"the mean of {sign * y[at]} is {got[at]}, needs {sign * want[at]}")
        tell(1.0)
    return Replayed(2 * len(patterns))


def _codes(patterns: NDArray[np.uint32], byte: int, subject: ClaimSubject) -> NDArray[np.uint8]:
    given = np.full(len(patterns), byte, np.uint8)
    if subject is ClaimSubject.GOLDEN:
        return STOCHASTIC_E2M1.encode(patterns.view(F), given)
    import torch

    from fp4ref_torch import codecs

    values: Any = torch.from_numpy(patterns.view(np.int32)).view(torch.float32)
    return np.asarray(codecs.encode(values, STOCHASTIC_E2M1, torch.from_numpy(given)))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the mean of stochastic rounding."""
    statement = (
        "floor(256 * frac) bytes move a magnitude up to 6 to the next value, and one more for those below 0.25 that "
        "SR-4 names."
    )
    yield ProofClaim(
        name="stochastic-mean/header",
        rules=("SR-4",),
        method=Method.ARGUMENT,
        subject=ClaimSubject.HEADER,
        statement=f"{statement} These are {EXCEPTIONS}.",
        domain="all float32 magnitudes up to 6 under all 256 bytes",
        size=(SIX + 1) << 8,
        decide=in_header,
        covers=("codec.h:Codec::encode", "codec.h:Codec::stochastic_index"),
        reduction="a rounded sum never falls as the byte grows, so four bytes decide which of them move a magnitude",
    )
    for subject, covers in (
        (ClaimSubject.GOLDEN, ("fp4ref.formats.codec:Codec.encode", "fp4ref.formats.codec:STOCHASTIC_E2M1")),
        (ClaimSubject.TORCH, ("fp4ref_torch.codecs:encode", "fp4ref.formats.codec:STOCHASTIC_E2M1")),
    ):
        yield ProofClaim(
            name=f"stochastic-mean/{subject}",
            rules=("SR-4",),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement=statement,
            domain="all bfloat16 magnitudes up to 6, and float32 around each whole number of bytes, under all bytes",
            size=len(magnitudes()) << 8,
            decide=partial(in_python, subject),
            covers=covers,
        )
    yield ProofClaim(
        name="stochastic-expectation/golden",
        rules=("SR-4",),
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.GOLDEN,
        statement="The mean that the golden model states is that of the two values beside a number, weighted by bytes.",
        domain="all bfloat16 up to 6, and float32 around each whole number of bytes, of both signs",
        size=2 * len(magnitudes()),
        decide=expected,
        covers=("fp4ref.formats.codec:Codec.expectation", "fp4ref.formats.codec:STOCHASTIC_E2M1"),
        rests_on=("stochastic-mean/golden",),
    )
