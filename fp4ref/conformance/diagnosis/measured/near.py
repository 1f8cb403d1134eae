"""Differences that a few steps of float32 before a rounding make, said where no mistake explains the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.clock import OutOfTimeError
from fp4ref.conformance.diagnosis.evidence import LARGE, Item, Part
from fp4ref.conformance.diagnosis.scale_stage import given_amax, given_scales
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.sides import EVERY, before_codec
from fp4ref.formats import Codec, Codes, F, Floats, Rounding
from fp4ref.model.tiles import join

STEPS = (1, 2, 4, 8, 16)  # of float32
LEAST = 3  # differing bytes, below which nothing is said
CAUSE = "as in another order of operations, or with an approximate reciprocal"
Bools = NDArray[np.bool_]


def near_boundaries(items: Sequence[Item], tick: Callable[[], None]) -> str:
    """Return in words that everything that differs is a few steps of float32 from a boundary.

    Empty if it is not, or if the time does not suffice to say.

    Rules: CNF-44.
    """
    try:
        return _near(items, tick)
    except OutOfTimeError:
        return ""


@np.errstate(all="ignore")
def _near(items: Sequence[Item], tick: Callable[[], None]) -> str:
    """Return the words; scale bytes are judged with the candidate's own maxima, codes with its own scale bytes."""
    most, wrong = {"scale": 0, "code": 0}, {"scale": 0, "code": 0}
    for item in items:
        if (
            item.size > LARGE
            or item.spec.four_over_six is not None
            or item.spec.element.rounding is Rounding.STOCHASTIC
        ):
            return ""
        tick()
        for name, y, got, codec in _compared(item):
            steps, count = _steps(y, got, codec)
            if steps is None:
                return ""
            most[name], wrong[name] = max(most[name], steps), wrong[name] + count
    said = [
        f"{words} differ only where {what} is within {most[name]} steps of float32 of a boundary"
        for name, words, what in (("scale", "scale bytes", "a block scale"), ("code", "codes", "a scaled element"))
        if wrong[name]
    ]
    return f"{'; '.join(said)}, {CAUSE}" if sum(wrong.values()) >= LEAST else ""


def _compared(item: Item) -> Iterator[tuple[str, Floats, Codes, Codec]]:
    """Yield what is rounded, and what the candidate made of it: scales, then elements."""
    kernel, part = kernel_of(item.spec), Part(item, EVERY, EVERY, tier=True)
    side, stored, codes = part.side(given_amax(kernel, item)), item.scales(DECLARED), item.codes(LOW_FIRST)
    own = given_scales(kernel, part, DECLARED)
    if side is None or own is None or stored is None or codes is None:
        yield "scale", np.zeros(1, F), np.full(1, 255, np.uint8), item.spec.scale  # nothing is near anything
        return
    t = np.broadcast_to(side.t[:, :, 0, 0], own.byte.shape[:2])
    yield "scale", np.asarray(t, F), np.asarray(own.byte[:, :, 0, 0]), item.spec.scale
    yield "code", join(before_codec(kernel, own), own.shape), codes, item.spec.element


def _steps(y: Floats, got: Codes, codec: Codec) -> tuple[int | None, int]:
    """Return the number of steps that makes every code the candidate's, and how many are not; None without one."""
    wrong = codec.encode(np.ascontiguousarray(y)) != got
    left, codes = np.ascontiguousarray(y[wrong], F), got[wrong]
    if not left.size:
        return 0, 0
    bits = left.view(np.int32)
    fits: Bools = np.zeros(left.shape, np.bool_)
    for steps in STEPS:
        for by in (-steps, steps):
            fits |= np.isfinite(left) & (codec.encode((bits + np.int32(by)).view(F)) == codes)
        if fits.all():
            return steps, left.size
    return None, left.size
