"""A maximum that is not the tensor's: which elements it sees, by which factor it is off, or only what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.diagnosis.measured.scales import nicest
from fp4ref.conformance.mistakes.kernel import Kernel, Values, over_tensor
from fp4ref.conformance.mistakes.record import Mistake, Slot, by_row, by_tensor, known
from fp4ref.conformance.mistakes.said import of_every, plural
from fp4ref.formats import F, Floats

SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CLOSE = 3e-7  # of two roundings of float32, as a share of a maximum
LEAST = 3  # maxima that a rule must be seen in
FOLLOWING = "; scales and codes follow from it"
RUNS = 2  # of residues that are told, unless they are evenly spaced; more of them follow from the data by chance
Bools = NDArray[np.bool_]
Index = NDArray[np.intp]


class Maximum(NamedTuple):
    """A case's values, and its maxima: the candidate's and the right ones, [1] or [rows]."""

    values: Values
    got: Floats
    right: Floats


class SeenRule(NamedTuple):
    """The rows or columns that a maximum sees. axis: 0 for rows, 1 for columns; sees: takes indices and their count."""

    key: str
    words: str
    axis: int
    sees: Callable[[Index, int], Bools]

    def mask(self, shape: tuple[int, int]) -> Bools:
        """Return which elements of a matrix are seen, broadcast to it."""
        length = shape[self.axis]
        seen = self.sees(np.arange(length), length)
        return np.asarray(seen[:, None] if self.axis == 0 else seen[None, :])


def measured_amax(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Return the mistake that makes all of the candidate's maxima, the one that says most."""
    found = _maxima(kernel, parts)
    if found is None or sum(_differ(one) for one in found) == 0:
        return None
    finite = [one for one in found if np.isfinite(one.values.transformed).all()]
    return _seen(kernel, finite) or _factor(kernel, finite) or _bounded(finite) or _other(kernel, found)


def returned_amax(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Return the mistake that another number is returned than the maximum that the scales are made of."""
    found = _maxima(kernel, parts)
    if not found or sum(_differ(one) for one in found) == 0:
        return None
    finite = [one for one in found if np.isfinite(one.values.transformed).all()]
    other = _constant(found) or _factor(kernel, finite) or _other(kernel, found)
    if other is None:
        return None

    def apply(right: Kernel) -> Kernel | None:
        changed = other.apply(right)
        return changed and changed.but(used=lambda _, values: over_tensor(values, right.keep_nan, by_row(right)))

    told = other.text.removesuffix(FOLLOWING).removeprefix("amax ")
    text = f"the amax that is returned {told}; scales and codes are made of the right one"
    return replace(other, name=f"{other.name}-returned", text=text, apply=apply)


def _constant(found: Sequence[Maximum]) -> Mistake | None:
    """Return the one number that every maximum is."""
    numbers = np.unique(np.concatenate([one.got for one in found]).view(np.uint32)).view(F)
    if len(numbers) != 1:
        return None
    return known(
        Slot.AMAX,
        f"amax-inferred-always-{numbers[0]:g}",
        f"amax is always {numbers[0]:g}",
        amax=lambda values, keep_nan, by_rows: np.full_like(over_tensor(values, keep_nan, by_rows), numbers[0]),
    )


def _maxima(kernel: Kernel, parts: Sequence[Part]) -> list[Maximum] | None:
    """Every case with a maximum of its own; None where one is not returned."""
    found = []
    for item in {id(part.item): part.item for part in parts}.values():
        if item.amax is None:
            return None
        if item.exhibit.case.amax is not None and kernel.takes_amax:
            continue
        values = item.exhibit.quantized(kernel)
        right = over_tensor(values, kernel.keep_nan, by_row(kernel))
        if item.amax.shape != right.shape:
            return None
        found.append(Maximum(values, item.amax, right))
    return found


def _differ(one: Maximum) -> int:
    return int(np.count_nonzero(one.got != one.right))


# The elements that are seen


def _seen(kernel: Kernel, found: Sequence[Maximum]) -> Mistake | None:
    """Return the first rule for rows or columns by which all maxima are those of what is seen."""
    if sum(_differ(one) for one in found) < LEAST:
        return None
    for rule in _rules(kernel, found):
        if all((_over(rule, kernel, one.values) == one.got).all() for one in found):
            return known(Slot.AMAX, f"amax-inferred-{rule.key}", f"amax {rule.words}", amax=partial(_amax_of, rule))
    return None


def _over(rule: SeenRule, kernel: Kernel, values: Values) -> Floats:
    return _amax_of(rule, values, kernel.keep_nan, by_row(kernel))


def _amax_of(rule: SeenRule, values: Values, keep_nan: bool, by_rows: bool) -> Floats:
    matrix = values.transformed
    seen = np.where(rule.mask((matrix.shape[0], matrix.shape[1])), matrix, F(0))
    return over_tensor(Values(values.raw, seen), keep_nan, by_rows)


def _rules(kernel: Kernel, found: Sequence[Maximum]) -> Iterator[SeenRule]:
    """Yield the rules that leave out every row or column with an element larger than the maximum."""
    for axis, one, many in ((1, "column", "columns"), (0, "row", "rows")):
        if axis == 0 and not by_tensor(kernel):
            continue
        missed, seen = [_missed(axis, of) for of in found], max(_reached(axis, of) for of in found)
        at = np.concatenate([np.flatnonzero(part) for part in missed])
        if not at.size:
            continue
        from_end = np.concatenate([len(part) - 1 - np.flatnonzero(part) for part in missed])
        last = int(from_end.max()) + 1
        words = f"misses the last {plural(last, one, many)}"
        yield SeenRule(f"{many}-last-{last}", words, axis, partial(_before_end, last))
        for size in SIZES[3:]:
            words = f"misses the last {size} {many}, or what is left of them, where there are more"
            yield SeenRule(f"{many}-last-group-{size}", words, axis, partial(_before_last_group, size))
        for size in SIZES:
            words = f"misses {many} past the last multiple of {size}, where there are at least {size}"
            yield SeenRule(f"{many}-past-{size}", words, axis, partial(_whole_groups, size))
        first, until = int(at.min()), int(at.max())
        if first > seen:
            words = f"from {first} on" if first == seen + 1 else f"from one of {seen + 1} to {first} on"
            yield SeenRule(f"{many}-from-{first}", f"misses {many} {words}", axis, partial(_below, first))
        for size in SIZES:
            for out in _residues(at % size, size):
                yield SeenRule(
                    f"{many}-modulo-{size}", of_every(out, size, one, many), axis, partial(_not_modulo, size, out)
                )
        yield SeenRule(f"{many}-to-{until}", f"misses {many} up to {until}", axis, partial(_above, until))


def _residues(at: Index, size: int) -> Iterator[Index]:
    """Yield sets of residues with those that were seen: a whole run of lanes, as far as they reach, and they alone."""
    out = np.unique(at)
    if len(out) < size:
        low, high = int(out[0]), int(out[-1])
        wide = 1 << (low ^ high).bit_length()
        if wide < size:
            yield np.arange(low // wide * wide, low // wide * wide + wide)
        if high - low + 1 < size:
            yield np.arange(low, high + 1)
        if np.count_nonzero(np.diff(out) > 1) < RUNS or len(np.unique(np.diff(out))) == 1:
            yield out


def _missed(axis: int, one: Maximum) -> Bools:
    """Return the rows or columns with an element that is larger than the maximum."""
    larger = np.abs(one.values.transformed) > one.got.reshape(-1, 1)
    return np.asarray(larger.any(axis=1 - axis))


def _reached(axis: int, one: Maximum) -> int:
    """Return the last row or column that certainly is seen: no other holds the maximum; -1 if none is certain."""
    equal = np.abs(one.values.transformed) == one.got.reshape(-1, 1)
    if axis == 1:
        equal = equal[equal.sum(axis=1) == 1]
    at = np.flatnonzero(equal.any(axis=1 - axis))
    certain = len(at) == 1 or axis == 1
    return int(at[-1]) if at.size and certain else -1


def _before_end(count: int, index: Index, length: int) -> Bools:
    return np.asarray(index < length - count)


def _whole_groups(size: int, index: Index, length: int) -> Bools:
    return np.asarray((index < length // size * size) | (length < size))


def _before_last_group(size: int, index: Index, length: int) -> Bools:
    return np.asarray((index < (length - 1) // size * size) | (length <= size))


def _not_modulo(size: int, out: Index, index: Index, length: int) -> Bools:
    return ~np.isin(index % size, out)


def _below(first: int, index: Index, length: int) -> Bools:
    return np.asarray(index < first)


def _above(last: int, index: Index, length: int) -> Bools:
    return np.asarray(index > last)


# A factor, or no rule at all


@np.errstate(all="ignore")
def _factor(kernel: Kernel, found: Sequence[Maximum]) -> Mistake | None:
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
    return known(
        Slot.AMAX,
        f"amax-inferred-times-{number:g}",
        f"amax is {number:g} times what it should be",
        amax=partial(_times, F(number)),
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
                amax=partial(_held, bound, number),
            )
    return None


def _held(bound: Any, number: np.float32, values: Values, keep_nan: bool, by_rows: bool) -> Floats:
    return np.asarray(bound(over_tensor(values, keep_nan, by_rows), number), F)


def _times(by: np.float32, values: Values, keep_nan: bool, by_rows: bool) -> Floats:
    return np.asarray(over_tensor(values, keep_nan, by_rows) * by, F)


def _other(kernel: Kernel, found: Sequence[Maximum]) -> Mistake | None:
    """Return the candidate's own maxima, each for its tensor; None where equal tensors have unequal ones."""
    if not by_tensor(kernel):
        return None
    own: dict[bytes, Floats] = {}
    for one in found:
        if own.setdefault(_key(one.values), one.got).tobytes() != one.got.tobytes():
            return None
    got, right = next((float(one.got[0]), float(one.right[0])) for one in found if _differ(one))
    return known(
        Slot.AMAX,
        "amax-other",
        f"amax is not the tensor's: {got:.9g} instead of {right:.9g}{FOLLOWING}",
        by_tensor,
        amax=partial(_own, own),
    )


def _key(values: Values) -> bytes:
    return repr(values.raw.shape).encode() + np.ascontiguousarray(values.raw).tobytes()


def _own(own: Mapping[bytes, Floats], values: Values, keep_nan: bool, by_rows: bool) -> Any:
    found = own.get(_key(values))
    return over_tensor(values, keep_nan, by_rows) if found is None else found
