"""Bytes that are not written, measured: which rule for their places fits all that are one and the same byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.kernel import Codes2, Kernel, ScaleSide
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.record import Mistake, Slot, known
from fp4ref.conformance.mistakes.sides import code_side
from fp4ref.formats import Codes
from fp4ref.layout import Layout

SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
LEAST = 4  # bytes that must be missing, in all
SHOWN = 4  # residues that are said

Place = NDArray[np.int64]
Places = tuple[Place, Place, Place]  # row, column and offset of every byte of a matrix


class Seen(NamedTuple):
    """A matrix of the candidate, the right one, which of it counts, and where its bytes are stored."""

    got: Codes
    wanted: Codes
    counts: NDArray[np.bool_]
    places: Places


class MissingRule(NamedTuple):
    """A place at which bytes are missing. key: for a name; words: for a sentence."""

    key: str
    words: str
    holds: Callable[[Places], NDArray[np.bool_]]


def missing_scales(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Scale bytes that are not written."""
    seen, declared = [], None
    for part in parts:
        side, got = part.side(kernel) if part.whole else None, part.item.scales(DECLARED)
        if side is None or got is None or got.shape != side.scales.shape or kernel.search is not None:
            continue
        declared = part.item.declared
        counts = np.ones(got.shape, np.bool_) if part.blocks is None else part.blocks
        seen.append(Seen(got, side.scales, counts, _in_layout(declared, *got.shape)))
    rule = _rule(seen, ("rows", "blocks", "offsets"))
    if rule is None or declared is None:
        return None
    return known(
        Slot.LAYOUT,
        f"unwritten-inferred-{rule[0].key}",
        f"scale bytes {rule[0].words} are not written ({rule[1]:#04x})",
        scales=partial(_left_out, kernel.scales, rule[0], rule[1], partial(_in_layout, declared)),
        whole=True,
    )


def missing_codes(kernel: Kernel, pairs: Sequence[tuple[Part, ScaleSide]]) -> Mistake | None:
    """Codes that are not written."""
    seen = []
    for part, side in pairs:
        got = part.item.codes(LOW_FIRST)
        if got is None or not part.whole:
            continue
        counts = np.ones(got.shape, np.bool_) if part.elements is None else part.elements
        seen.append(Seen(got, code_side(kernel, side), counts, _in_rows(*got.shape)))
    rule = _rule(seen, ("rows", "columns", "elements"))
    if rule is None:
        return None
    return known(
        Slot.PACKING,
        f"unwritten-codes-inferred-{rule[0].key}",
        f"codes {rule[0].words} are not written ({rule[1]:#04x})",
        codes=partial(_left_out, kernel.codes, rule[0], rule[1], _in_rows),
        whole=True,
    )


def _in_rows(rows: int, columns: int) -> Places:
    row, column = np.indices((rows, columns))
    return row, column, row * columns + column


def _in_layout(form: Layout, rows: int, blocks: int) -> Places:
    row, block = np.indices((rows, blocks))
    return row, block, np.asarray(form.offset(row, block, blocks, rows))


def _left_out(
    before: Codes2, rule: MissingRule, byte: int, places: Callable[[int, int], Places], codes: Codes
) -> Codes:
    made = before(codes)
    return np.where(rule.holds(places(made.shape[0], made.shape[1])), np.uint8(byte), made)


def _rule(seen: Sequence[Seen], axes: tuple[str, str, str]) -> tuple[MissingRule, int] | None:
    """Return the first rule that fits, and the byte that stands in the place of what is missing."""
    wrong = [(part.got != part.wanted) & part.counts for part in seen]
    found = np.concatenate([np.zeros(0, np.uint8), *(part.got[bad] for part, bad in zip(seen, wrong, strict=True))])
    if found.size < LEAST or (found != found[0]).any():
        return None
    byte = int(found[0])
    for rule in _rules(seen, wrong, axes):
        masks = (rule.holds(part.places) for part in seen)
        if all(_fits(part, mask, byte) for part, mask in zip(seen, masks, strict=True)):
            return rule, byte
    return None


def _fits(part: Seen, mask: NDArray[np.bool_], byte: int) -> bool:
    right = np.where(mask, part.got == byte, part.got == part.wanted)
    return bool(right[part.counts].all())


def _rules(
    seen: Sequence[Seen], wrong: Sequence[NDArray[np.bool_]], axes: tuple[str, str, str]
) -> Iterator[MissingRule]:
    yield MissingRule("everywhere", "everywhere", partial(_from, 0, 0))
    for axis, what in enumerate(axes):
        at = np.concatenate([part.places[axis][bad] for part, bad in zip(seen, wrong, strict=True)])
        for size in SIZES if axis < 2 else ():
            words = f"of {what} past the last multiple of {size}"
            yield MissingRule(f"{what}-{size}", words, partial(_past, axis, size))
        first, last = int(at.min()), int(at.max())
        yield MissingRule(f"{what}-last", f"of the last of the {what}", partial(_last, axis))
        if first:
            yield MissingRule(f"{what}-from-{first}", f"of {what} from {first} on", partial(_from, axis, first))
        yield MissingRule(f"{what}-to-{last}", f"of {what} up to {last}", partial(_up_to, axis, last))
        for size in SIZES:
            residues = np.unique(at % size)
            if len(residues) <= size // 2:
                said = ", ".join(map(str, residues[:SHOWN])) + (" ..." if len(residues) > SHOWN else "")
                yield MissingRule(
                    f"{what}-modulo-{size}", f"of {what} {said} of {size}", partial(_modulo, axis, size, residues)
                )


def _past(axis: int, size: int, places: Places) -> Any:
    length = places[axis].max(initial=-1) + 1
    return places[axis] >= length // size * size


def _last(axis: int, places: Places) -> Any:
    return places[axis] == places[axis].max(initial=-1)


def _from(axis: int, first: int, places: Places) -> Any:
    return places[axis] >= first


def _up_to(axis: int, last: int, places: Places) -> Any:
    return places[axis] <= last


def _modulo(axis: int, size: int, residues: Place, places: Places) -> Any:
    return np.isin(places[axis] % size, residues)
