"""Claims about what ends inside a unit of work: rows of scales of every length, and largest elements at every place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import api
from fp4ref.formats import F
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST
from fp4ref.proof.maxima import ROW_SCALED
from fp4ref.proof.nan_signs import DIVIDING, NAN_CODES
from fp4ref.proof.offsets import STATED, wrongly_moved
from fp4ref.quantized import DIRECTIONS

ROWS, LONGEST = 9, 196  # of scales
ELEMENTS = 48  # of a row
LARGEST, NUMBER = 3.0, 1.0
RELAYOUTS = {
    ClaimSubject.GOLDEN: ("fp4ref.model.backend:to_layout",),
    ClaimSubject.CPU: ("fp4ref_cpu/csrc/relayout.h",),
    ClaimSubject.TORCH: ("fp4ref_torch.operations:to_layout",),
}


def moved(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Move rows of scales of each length into each layout and out of it; compare both with the formulas."""
    for k in range(1, LONGEST + 1):
        scales = (np.arange(ROWS * k).reshape(ROWS, k) * 37 % 251).astype(np.uint8)
        for stated in STATED:
            wrong = wrongly_moved(stated, scales, subject)
            if wrong:
                return Replayed(k - 1, f"rows of {k} scales {wrong}")
        tell(k / LONGEST)
    return Replayed(LONGEST)


def largest(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize rows with the largest element at each place and a NaN at each other one, or none; compare the amaxes."""
    at, nan = (places.ravel() for places in np.indices((ELEMENTS, ELEMENTS)))
    x = np.full((len(at), ELEMENTS), NUMBER, F)
    x[np.arange(len(at)), nan] = np.nan
    x[np.arange(len(at)), at] = -LARGEST
    want = np.full(len(at), LARGEST, F)
    quantize: Any = api.quantize
    for number, direction in enumerate(DIRECTIONS):
        given = whole._array(x if direction == "row" else np.ascontiguousarray(x.T), subject)
        q = quantize(given, ROW_SCALED, direction, backend=whole.BACKENDS[subject])
        (wrong,) = np.nonzero(whole._host(q.direction(direction)[0].amax) != want)
        if len(wrong):
            row = int(wrong[0])
            beside = f" beside a NaN at {nan[row]}" if nan[row] != at[row] else ""
            return Replayed(len(at), f"{direction}: the largest element at {at[row]}{beside} is not the amax")
        tell((number + 1) / 3)
    for place in range(ELEMENTS):
        tensor = np.roll(np.array([-LARGEST, np.nan, *[NUMBER] * (ELEMENTS - 2)], F), place)[None]
        q = quantize(whole._array(tensor, subject), "nvfp4", backend=whole.BACKENDS[subject])
        if whole._host(q.direction("row")[0].amax).tolist() != [LARGEST]:
            return Replayed(2 * len(at) + place, f"the largest element at {place} is not the amax of the tensor")
    return Replayed(SIZE)


SIZE = 2 * ELEMENTS**2 + ELEMENTS


def spare(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize rows of zeros of each odd length, whose scale and so whose codes are NaN; the last nibble is spare."""
    quantize: Any = api.quantize
    lengths = range(1, 2 * ELEMENTS, 2)
    for count, length in enumerate(lengths):
        for rows in (1, ROWS):
            given = whole._array(np.zeros((rows, length), F), subject)
            amax = whole._array(np.zeros(1, F), subject)
            q = quantize(given, DIVIDING, amax=amax, backend=whole.BACKENDS[subject])
            got = whole._host(q.direction("row")[0].data)
            want = np.full((rows, length // 2 + 1), NAN_CODES[1] * 0x11, np.uint8)
            want[:, -1] = NAN_CODES[1]
            if got.shape != want.shape or (got != want).any():
                return Replayed(count, f"{rows} rows of {length} NaN end with {got[:, -1].tolist()}")
        tell((count + 1) / len(lengths))
    return Replayed(len(lengths))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims of this module."""
    for subject in ON_HOST:
        yield ProofClaim(
            name=f"moved-tails/{subject}",
            rules=("LAY-1", "LAY-2", "LAY-3", "LAY-4"),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="Rows of scales of every length are stored where the formulas say, wherever a unit of work ends.",
            domain=f"{ROWS} rows of up to {LONGEST} scales, into each layout and out of it",
            size=LONGEST,
            decide=partial(moved, subject),
            covers=RELAYOUTS[subject],
        )
        yield ProofClaim(
            name=f"spare-nibbles/{subject}",
            rules=("PACK-2",),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="The spare nibble of a row is 0, also if the codes before it are those of NaN.",
            domain=f"1 and {ROWS} rows of each odd length below {2 * ELEMENTS}, whose scales are NaN",
            size=ELEMENTS,
            decide=partial(spare, subject),
            covers=whole.QUANTIZED[subject],
        )
        yield ProofClaim(
            name=f"amax-places/{subject}",
            rules=("BLK-2", "GLB-1", "GLB-5"),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="The amax is that of the largest number, wherever it is, and wherever a NaN is.",
            domain=f"rows of {ELEMENTS} elements, the largest at each place and a NaN at each, in both directions; and "
            "tensors of one row",
            size=SIZE,
            decide=partial(largest, subject),
            covers=whole.QUANTIZED[subject],
        )
