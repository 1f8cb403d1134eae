"""Predicates of places, each as tight as some units that must be inside allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fp4ref.conformance.mistakes.places import BLOCK, COLUMN, PlaceAxis, Predicate

# Predicates, each as tight as some units that must be inside allow


def of_types(names: Sequence[str]) -> Predicate:
    """Return the predicate that holds for some types of x."""
    return Predicate(f"in {' and '.join(names)} only", 3.0, lambda u: np.isin(u.dtype, list(names)))


def of_direction(name: str) -> Predicate:
    """Return the predicate that holds for one direction."""
    return Predicate(f"in the {name} direction only", 2.0, lambda u: u.direction == name)


def of_rank(least: int, most: int) -> Predicate:
    """Return the predicate that holds for tensors of some numbers of dimensions."""
    if least > 2:
        words = "in tensors of more than two dimensions only"
    elif most < 2:
        words = "in tensors of one dimension only"
    else:
        words = "in matrices only" if least == most == 2 else "in tensors of at most two dimensions only"
    return Predicate(words, 3.0, lambda u: (u.rank >= least) & (u.rank <= most))


def _weight(number: int) -> float:
    """Bits of a number in a description: round numbers have few, and so have those one below a power of two."""
    number = max(number, 1)
    if number > 1 and not number & (number + 1):
        return _weight(number + 1) + 1
    return 2.0 * (number // (number & -number)).bit_length() + float(np.log2(number.bit_length()))


PRIOR = {"row": 1.0, "block": 1.5, "column": 2.0, "block number": 4.0}
OF_SIZES = 5.0  # bits of a threshold of a size, of which the evidence has few


def at_least(axis: PlaceAxis, value: int, below: int | None = None) -> Predicate:
    """Return `axis >= value`. below: the largest size that is known to be right."""
    if axis.sized:
        known = "" if below is None else f" (not with {below:,})"
        words, bits = f"in {axis.of_size.format(size=f'{value:,}', many=axis.many)} and more only{known}", OF_SIZES
    else:
        words, bits = f"in {axis.many} from {value:,} on", PRIOR[axis.one] + _weight(value)
    columns = (lambda width: at_least(COLUMN, value * width)) if axis is BLOCK else None
    return Predicate(words, bits, lambda u: axis.of(u) >= value, axis, columns)


def at_most(axis: PlaceAxis, value: int, above: int | None = None) -> Predicate:
    """Return `axis <= value`. above: the smallest size that is known to be right."""
    if axis.sized:
        known = "" if above is None else f" (not with {above:,})"
        size = axis.of_size.format(size=f"{value:,}", many=axis.many if value > 1 else axis.one)
        words = f"in {size} or fewer only{known}"
        return Predicate(words, OF_SIZES, lambda u: axis.of(u) <= value, axis)
    if value == 0:
        return Predicate(f"in {axis.one} 0", PRIOR[axis.one] + 1, lambda u: axis.of(u) == 0, axis)
    bits = PRIOR[axis.one] + _weight(value + 1)
    return Predicate(f"in {axis.many} before {value + 1:,}", bits, lambda u: axis.of(u) <= value, axis)


def equal_to(axis: PlaceAxis, value: int) -> Predicate:
    """Return `axis == value`."""
    bits = PRIOR[axis.one] + _weight(value) + 1
    return Predicate(f"in {axis.one} {value:,}", bits, lambda u: axis.of(u) == value, axis)


def multiples(axis: PlaceAxis, modulus: int, *, are: bool, width: int) -> Predicate:
    """Return the predicate on a size that is, or is not, a multiple of a power of two, of a block's width first."""
    words = f"in {axis.whose.format(many=axis.many)} {'a' if are else 'no'} multiple of {modulus} only"
    bits = OF_SIZES - (modulus == width)
    return Predicate(words, bits, lambda u: (axis.of(u) % modulus == 0) == are, axis)


def residues(axis: PlaceAxis, modulus: int, first: int, last: int) -> Predicate:
    """Return `axis % modulus` in first..last, which may pass the end of the residues."""
    count = (last - first) % modulus + 1
    name = f"{axis.one} % {modulus}"
    if count == 1:
        words = f"where {name} == {first}"
    elif count == modulus - 1:
        words = f"where {name} != {(last + 1) % modulus}"
    elif last == modulus - 1:
        words = f"where {name} >= {first}"
    elif first == 0:
        words = f"where {name} < {last + 1}"
    elif first < last:
        words = f"where {name} is {first} to {last}"
    else:
        words = (
            f"where {name} is {first} to {modulus - 1} or 0 to {last}"
            if last
            else (
                f"where {name} is {first} to {modulus - 1} or 0"
                if first < modulus - 1
                else f"where {name} is {first} or 0"
            )
        )
    ends = 1 if count == 1 else 2 - (first == 0 or last == modulus - 1) * 0.5
    bits = PRIOR[axis.one] + 3 + ends * np.log2(modulus)

    def in_columns(width: int) -> Predicate:
        return residues(COLUMN, modulus * width, first * width, last * width + width - 1)

    alone = axis is not BLOCK or count in {1, modulus - 1}
    return Predicate(words, bits, lambda u: (axis.of(u) - first) % modulus < count, axis, None if alone else in_columns)


def past_multiple(axis: PlaceAxis, modulus: int) -> Predicate:
    """Return the predicate that holds past the last whole group of a size, if an incomplete one follows."""
    return Predicate(
        f"in {axis.many} past the last multiple of {modulus}",
        PRIOR[axis.one] + 2,
        lambda u: axis.of(u) >= axis.length(u) // modulus * modulus,
        axis,
    )


def before_multiple(axis: PlaceAxis, modulus: int) -> Predicate:
    """Return the predicate that holds in whole groups of a size, as those that vectors of that size serve."""
    return Predicate(
        f"in {axis.many} before the last multiple of {modulus}",
        PRIOR[axis.one] + 2.5,
        lambda u: axis.of(u) < axis.length(u) // modulus * modulus,
        axis,
    )


def partial_block() -> Predicate:
    """Return the predicate that holds in a last block that is not full."""
    return Predicate(
        "in the last, partial block", PRIOR["block"] + 1, lambda u: u.column >= u.columns // u.width * u.width, BLOCK
    )


def last_group(axis: PlaceAxis, size: int) -> Predicate:
    """Return the predicate that holds in the last group of a size, full or not."""
    return Predicate(
        f"in the last group of {size} {axis.many}",
        PRIOR[axis.one] + 3,
        lambda u: axis.of(u) >= (axis.length(u) - 1) // size * size,
        axis,
    )


def from_end(axis: PlaceAxis, count: int) -> Predicate:
    """Return the predicate that holds for the last few."""
    words = f"in the last {axis.one}" if count == 1 else f"in the last {count:,} {axis.many}"
    bits = PRIOR[axis.one] + _weight(count)
    return Predicate(words, bits, lambda u: axis.of(u) >= axis.length(u) - count, axis)


POWERS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
