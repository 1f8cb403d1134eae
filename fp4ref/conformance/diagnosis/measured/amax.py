"""A maximum that is not the tensor's: which elements it sees, by which factor it is off, or only what it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fp4ref.conformance.diagnosis.evidence import Item, Part
from fp4ref.conformance.diagnosis.measured.amax_seen import LEAST, Maximum, differ, seen
from fp4ref.conformance.diagnosis.measured.scales import nicest
from fp4ref.conformance.mistakes.kernel import Kernel, Values, after, over_tensor
from fp4ref.conformance.mistakes.record import Mistake, Slot, by_row, by_tensor, known
from fp4ref.formats import F, Floats

CLOSE = 3e-7  # of two roundings of float32, as a share of a maximum
FOLLOWING = "; scales and codes follow from it"


class Inferred(NamedTuple):
    """A mistake whose maxima were measured. told: the rest of a sentence that begins with the amax."""

    mistake: Mistake
    told: str


def measured_amax(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Return the mistake that makes all of the candidate's maxima, the one that says most."""
    found = _maxima(kernel, _items(parts))
    if found is None or sum(differ(one) for one in found) == 0:
        return None
    finite = [one for one in found if np.isfinite(one.values.transformed).all()]
    named = seen(kernel, finite)
    if named is not None:
        return named
    factor = _factor(finite)
    if factor is not None:
        return factor.mistake
    other = _other(kernel, found)
    return _bounded(finite) or _kept(other, found) or (other and other.mistake)


def returned_amax(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Return the mistake that another number is returned than the maximum that the scales are made of."""
    found = _maxima(kernel, _items(parts))
    if not found or sum(differ(one) for one in found) == 0:
        return None
    finite = [one for one in found if np.isfinite(one.values.transformed).all()]
    other = _constant(found) or _factor(finite) or _other(kernel, found)
    if other is None:
        return None

    def apply(right: Kernel) -> Kernel | None:
        changed = other.mistake.apply(right)
        return changed and changed.but(used=lambda _, values: over_tensor(values, right.keep_nan, by_row(right)))

    text = f"the amax that is returned {other.told}; scales and codes are made of the right one"
    return replace(other.mistake, name=f"{other.mistake.name}-returned", text=text, apply=apply)


def bounded_amax(kernel: Kernel, items: Iterable[Item]) -> Mistake | None:
    """Return the mistake that no maximum is returned below, or above, a number."""
    found = _maxima(kernel, items)
    return _bounded([one for one in found if np.isfinite(one.values.transformed).all()]) if found else None


def _constant(found: Sequence[Maximum]) -> Inferred | None:
    """Return the one number that every maximum is."""
    numbers = np.unique(np.concatenate([one.got for one in found]).view(np.uint32)).view(F)
    if len(numbers) != 1:
        return None
    told = f"is always {numbers[0]:g}"
    constant = known(
        Slot.AMAX,
        f"amax-inferred-always-{numbers[0]:g}",
        f"amax {told}",
        amax=after(over_tensor, partial(np.full_like, fill_value=numbers[0])),
    )
    return Inferred(constant, told)


def _items(parts: Iterable[Part]) -> Iterable[Item]:
    return {id(part.item): part.item for part in parts}.values()


def _maxima(kernel: Kernel, items: Iterable[Item]) -> list[Maximum] | None:
    """Every case with a maximum of its own; None where one is not returned."""
    found = []
    for item in items:
        if item.amax is None:
            return None
        if item.exhibit.case.amax is not None and kernel.takes_amax:
            continue
        values = item.exhibit.quantized(kernel)
        right = over_tensor(values, kernel.keep_nan, by_row(kernel))
        if item.amax.shape != right.shape:
            return None
        found.append(Maximum(values, item.amax, right, item.call))
    return found


# A factor, or no rule at all


@np.errstate(all="ignore")
def _factor(found: Sequence[Maximum]) -> Inferred | None:
    """Return one number by which all maxima are multiplied too much."""
    got, right = (np.concatenate([getattr(one, name) for one in found]).astype(np.float64) for name in ("got", "right"))
    use = (right > 2.0**-120) & (right < 2.0**120) & np.isfinite(got)
    if np.count_nonzero(use) < LEAST:
        return None
    ratio = got[use] / right[use]
    low, high = float(ratio.max()) * (1 - CLOSE), float(ratio.min()) * (1 + CLOSE)
    if not 0 < low < high or low <= 1 <= high:
        return None
    number = nicest(low, high)
    told = f"is {number:g} times what it should be"
    return Inferred(
        known(
            Slot.AMAX,
            f"amax-inferred-times-{number:g}",
            f"amax {told}",
            amax=after(over_tensor, partial(np.multiply, F(number))),
        ),
        told,
    )


def _bounded(found: Sequence[Maximum]) -> Mistake | None:
    """Return the number below which, or above which, no maximum is returned."""
    got, right = (np.concatenate([getattr(one, name) for one in found]) for name in ("got", "right"))
    wrong = np.unique(got[got != right])
    if len(wrong) != 1 or np.count_nonzero(got != right) < LEAST:
        return None
    number = wrong[0]
    for bound, word in ((np.maximum, "below"), (np.minimum, "above")):
        if (bound(right, number) == got).all():
            return known(
                Slot.AMAX,
                f"amax-inferred-{word}-{number:g}",
                f"amax is clamped {word} at {number:g}, and returned so",
                amax=after(over_tensor, partial(bound, number)),
            )
    return None


def _kept(other: Inferred | None, found: Sequence[Maximum]) -> Mistake | None:
    """Return the mistake that a maximum is not reset between calls, or is that of the call before."""
    if other is None or sum(differ(one) for one in found) < LEAST:
        return None
    called = sorted(found, key=lambda one: one.call)
    got, own = (np.array([getattr(one, name)[0] for one in called]) for name in ("got", "right"))
    calls = np.array([one.call for one in called])
    if (got[1:] >= got[:-1]).all() and (got >= own).all() and all(got[n] in own[: n + 1] for n in range(len(got))):
        text = f"amax is the largest of this call and of all calls before: it is not reset between calls{FOLLOWING}"
        return replace(other.mistake, name="amax-kept-between-calls", text=text)
    after = np.flatnonzero(np.diff(calls) == 1)
    if len(after) >= LEAST and (got[after + 1] == own[after]).all():
        text = f"amax is that of the call before{FOLLOWING}"
        return replace(other.mistake, name="amax-of-the-call-before", text=text)
    return None


def _other(kernel: Kernel, found: Sequence[Maximum]) -> Inferred | None:
    """Return the candidate's own maxima, each for its tensor; None where equal tensors have unequal ones."""
    if not by_tensor(kernel):
        return None
    own: dict[bytes, Floats] = {}
    for one in found:
        if own.setdefault(_key(one.values), one.got).tobytes() != one.got.tobytes():
            return None
    got, right = next((float(one.got[0]), float(one.right[0])) for one in found if differ(one))
    told = f"is not the tensor's: {got:.9g} instead of {right:.9g}"
    other = known(Slot.AMAX, "amax-other", f"amax {told}{FOLLOWING}", by_tensor, amax=partial(_own, own))
    return Inferred(other, told)


def _key(values: Values) -> bytes:
    return repr(values.raw.shape).encode() + np.ascontiguousarray(values.raw).tobytes()


def _own(own: Mapping[bytes, Floats], values: Values, keep_nan: bool, by_rows: bool) -> Any:
    found = own.get(_key(values))
    return over_tensor(values, keep_nan, by_rows) if found is None else found
