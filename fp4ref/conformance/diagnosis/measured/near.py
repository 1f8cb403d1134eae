"""Distances of unexplained bytes from the right ones: beside a choice, or beside a rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.budget import NEAR
from fp4ref.conformance.diagnosis.clock import Deadline, OutOfTimeError
from fp4ref.conformance.diagnosis.evidence import LARGE, Item, Part
from fp4ref.conformance.diagnosis.measured.wrong_codes import WrongCodes
from fp4ref.conformance.diagnosis.scale_stage import given_amax, given_scales
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.exhibit import EVERY
from fp4ref.conformance.mistakes.kernel import Kernel, kernel_of
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.sides import before_codec, code_side
from fp4ref.formats import Codec, Codes, F, Floats, Rounding, grid
from fp4ref.model.tiles import join
from fp4ref.spec import Spec

STEPS = (1, 2, 4, 8, 16)  # of float32
LEAST = 3  # differing bytes, or blocks, below which nothing is said
CAUSE = "as in another order of operations, or with an approximate reciprocal"
Bools = NDArray[np.bool_]


class Nearness(NamedTuple):
    """Scales, and codes or blocks, of a case that differ, and how many steps of float32 they are away at most.

    The steps are None where some differ that are not near.
    """

    scales: int
    codes: int
    scale_steps: int | None = 0
    code_steps: int | None = 0


class Observed:
    """The scale bytes and codes that differ, as far as anything is seen of all of them."""

    def __init__(self, spec: Spec) -> None:
        self.scales = WrongCodes(spec.scale, "scale byte", "bytes", "block scale")
        self.codes = WrongCodes(spec.element, "code", "codes", "scaled element")

    def words(self, found: Sequence[Nearness]) -> str:
        """Say of all that differs that it is ties, near a boundary, or one code instead of another; or nothing.

        Rules: CNF-61.
        """
        parts = (
            ("scale bytes", "a block scale", self.scales, [one.scale_steps for one in found]),
            ("codes", "a scaled element", self.codes, [one.code_steps for one in found]),
        )
        told = [_part(*part) for part in parts if part[2].count]
        beside = any(part.beside for part in told)
        said = "; ".join(part.text for part in sorted(told, key=lambda part: part.beside))
        return "" if not all(part.text for part in told) else f"{said}, {CAUSE}" if beside else said


class BytesTold(NamedTuple):
    """A sentence on codes that differ, and whether it is that all are beside a boundary."""

    text: str
    beside: bool = False


def _part(words: str, what: str, seen: WrongCodes, steps: Sequence[int | None]) -> BytesTold:
    near = [each for each in steps if each is not None]
    if seen.of_ties or len(near) < len(steps):
        return BytesTold(seen.of_ties or seen.of_pairs)
    return BytesTold(
        f"{words} differ only where {what} is within {max(near)} steps of float32 of a boundary", beside=True
    )


def nearness(items: Sequence[Item]) -> str:
    """Return in words how near everything that differs is to what is right; empty if it is not near.

    Maxima are those of the candidate, and codes are judged with its own scale bytes.

    Rules: CNF-61.
    """
    if items and not any(item.wrong.any() for item in items):
        return _of_maxima(items)
    found: list[Nearness] = []
    tick, partly = Deadline(NEAR), False
    seen = Observed(items[0].spec) if items else None
    look = _look(items[0].spec, seen) if seen else None
    try:
        for item in (item for item in items if item.wrong.any()):
            tick()
            if item.size > LARGE:
                partly = True
                continue
            one = look(item) if look else None
            if one is None:
                return ""
            found.append(one)
    except OutOfTimeError:
        partly = True
    scales, codes = (sum(getattr(one, name) for one in found) for name in ("scales", "codes"))
    if scales + codes < LEAST:
        return ""
    if items[0].spec.four_over_six is not None:
        said = f"every block is one of the two candidates of 4over6, but {codes:,} are not the one to keep"
    elif items[0].spec.element.rounding is Rounding.STOCHASTIC:
        said = f"every code is a neighbour of its value, but {codes:,} are not those that the random bits call for"
    else:
        said = seen.words(found) if seen else ""
    return f"{said} (seen in {len(found)} cases)" if partly and said else said


def _of_maxima(items: Sequence[Item]) -> str:
    """Say that every wrong amax is the same number instead of the same other one; empty if they vary.

    Rules: CNF-133.
    """
    pairs: list[tuple[float, float]] = []
    for item in items:
        right = None if item.base.amax is None else np.asarray(item.base.amax, F)
        if item.amax is None or right is None or item.amax.shape != right.shape:
            continue
        wrong = (item.amax.view(np.uint32) != right.view(np.uint32)) & ~(np.isnan(item.amax) & np.isnan(right))
        pairs += zip(item.amax[wrong].tolist(), right[wrong].tolist(), strict=True)
    each = {f"{got:.9g} instead of {right:.9g}" for got, right in pairs}
    return f"every wrong amax is {each.pop()} ({len(pairs):,} of them)" if len(each) == 1 else ""


def _look(spec: Spec, seen: Observed) -> Callable[[Item], Nearness | None]:
    if spec.four_over_six is not None:
        return _chosen
    return _neighbours if spec.element.rounding is Rounding.STOCHASTIC else partial(_beside, seen)


@np.errstate(all="ignore")
def _chosen(item: Item) -> Nearness | None:
    """Return how many blocks are the other candidate; None if one is neither."""
    part, codes = Part(item, EVERY, EVERY, tier=True), item.codes(LOW_FIRST)
    kernel = given_amax(kernel_of(item.spec), item)
    candidates = [_own(part, codes, kernel.but(second=choice)) for choice in (_first, _second)]
    right = _own(part, codes, kernel)
    if right is None or candidates[0] is None or candidates[1] is None:
        return None
    return Nearness(0, int(np.count_nonzero(~right))) if (candidates[0] | candidates[1] | right).all() else None


def _first(second: Floats, first: Floats) -> Bools:
    return np.zeros(first.shape, np.bool_)


def _second(second: Floats, first: Floats) -> Bools:
    return np.ones(first.shape, np.bool_)


def _own(part: Part, codes: Codes | None, kernel: Kernel) -> Bools | None:
    """Return which blocks are a kernel's."""
    side, stored = part.side(kernel), part.declared_scales
    if side is None or codes is None or stored is None or stored.shape != side.scales.shape:
        return None
    starts = range(0, codes.shape[1], kernel.block.columns)
    return np.asarray(
        (stored == side.scales) & np.logical_and.reduceat(codes == code_side(kernel, side), starts, axis=1)
    )


@np.errstate(all="ignore")
def _neighbours(item: Item) -> Nearness | None:
    """Return how many codes are the other neighbour of their value; None if one is no neighbour."""
    kernel, part, codes = kernel_of(item.spec), Part(item, EVERY, EVERY, tier=True), item.codes(LOW_FIRST)
    side, own, stored = part.side(given_amax(kernel, item)), given_scales(kernel, part, DECLARED), part.declared_scales
    if side is None or own is None or codes is None or stored is None or not np.array_equal(stored, side.scales):
        return None
    y, values, sign = (
        join(before_codec(kernel, own), own.shape),
        grid(kernel.codec.format),
        kernel.codec.format.sign_bit,
    )
    wrong = code_side(kernel, own) != codes
    magnitude, code = np.abs(y[wrong]), (codes[wrong] & (sign - 1)).astype(np.intp)
    lower = np.searchsorted(values[: kernel.codec.format.codes], magnitude, side="right") - 1
    near = ((code == lower) | (code == lower + 1)) & ((codes[wrong] >= sign) == np.signbit(y[wrong]))
    return Nearness(0, int(np.count_nonzero(wrong))) if near.all() else None


@np.errstate(all="ignore")
def _beside(seen: Observed, item: Item) -> Nearness | None:
    """Return how far scales and elements that differ are from a boundary; None if nothing is said of them."""
    kernel, part, codes = kernel_of(item.spec), Part(item, EVERY, EVERY, tier=True), item.codes(LOW_FIRST)
    side, own, stored = part.side(given_amax(kernel, item)), given_scales(kernel, part, DECLARED), part.declared_scales
    if side is None or own is None or codes is None or stored is None:
        return None
    high, byte = kernel.block.rows, own.byte[:, :, 0, 0]
    if not np.array_equal(np.repeat(byte, high, axis=0)[: len(stored)], stored):
        return None
    t = np.asarray(np.broadcast_to(side.t[:, :, 0, 0], byte.shape), F)
    y = join(before_codec(kernel, own), own.shape)
    values = np.repeat(item.spec.scale.decode(byte), high, axis=0)[: len(y)]
    seen.scales.add(t.reshape(-1), byte.reshape(-1))
    seen.codes.add(
        y.reshape(-1), codes.reshape(-1), np.repeat(values, kernel.block.columns, 1)[:, : y.shape[1]].reshape(-1)
    )
    scales, elements = _steps(t, byte, item.spec.scale), _steps(y, codes, item.spec.element)
    if (scales[0] is None and not seen.scales.possible) or (elements[0] is None and not seen.codes.possible):
        return None
    return Nearness(scales[1], elements[1], scales[0], elements[0])


def _steps(y: Floats, got: Codes, codec: Codec) -> tuple[int | None, int]:
    """Return the number of steps that makes every code the candidate's, None without one, and how many differ."""
    wrong = codec.encode(np.ascontiguousarray(y)) != got
    left, codes = np.ascontiguousarray(y[wrong], F), got[wrong]
    fits: Bools = np.zeros(left.shape, np.bool_)
    for steps in STEPS if left.size else ():
        for by in (-steps, steps):
            moved = (left.view(np.int32) + np.int32(by)).view(F)
            fits |= np.isfinite(left) & (codec.encode(moved) == codes)
        if fits.all():
            return steps, left.size
    return (None if left.size else 0), left.size
