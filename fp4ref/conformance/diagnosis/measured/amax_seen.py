"""Maxima that miss some rows or columns: which of them a maximum sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes.kernel import Kernel, Values, over_tensor
from fp4ref.conformance.mistakes.record import Mistake, Slot, by_row, by_tensor, known
from fp4ref.conformance.mistakes.said import of_every, plural
from fp4ref.formats import F, Floats

SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LEAST = 3  # maxima that a rule must be seen in
RUNS = 2  # of residues that are told, unless they are evenly spaced; more of them follow from the data by chance
Bools = NDArray[np.bool_]
Index = NDArray[np.intp]


class Maximum(NamedTuple):
    """A case's values, and its maxima: the candidate's and the right ones, [1] or [rows]; the number of its call."""

    values: Values
    got: Floats
    right: Floats
    call: int


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


def differ(one: Maximum) -> int:
    """Return the number of maxima that are not the right ones."""
    return int(np.count_nonzero(one.got != one.right))


def seen(kernel: Kernel, found: Sequence[Maximum]) -> Mistake | None:
    """Return the first rule for rows or columns by which all maxima are those of what is seen."""
    if sum(differ(one) for one in found) < LEAST:
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
                words, sees = of_every(out, size, one, many), partial(_not_modulo, size, out)
                yield SeenRule(f"{many}-modulo-{size}", words, axis, sees)
                words += f"; where no {one} is left, it sees all"
                yield SeenRule(f"{many}-modulo-{size}-any", words, axis, partial(_or_all, sees))
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


def _or_all(sees: Callable[[Index, int], Bools], index: Index, length: int) -> Bools:
    found = sees(index, length)
    return found if found.any() else np.ones(length, np.bool_)


def _below(first: int, index: Index, length: int) -> Bools:
    return np.asarray(index < first)


def _above(last: int, index: Index, length: int) -> Bools:
    return np.asarray(index > last)
