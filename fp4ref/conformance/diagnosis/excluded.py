"""Pairs of changes that are refuted without being tried, because one of them does nothing somewhere.

Where one change makes every intermediate value of a case that the specification makes, and reads nothing that the other
one changes, the two together are the other one alone. So they are refuted if its bytes are wrong there. For example,
"the maximum misses the last row" does nothing in a tensor of one row whose last row it sees, so that it does not come
with "the global scale is 448 / amax" if the scale byte of that tensor is not what this makes alone. Whole cases are
compared, and one product of matrices refutes most of all pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import SMALL, Part
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide, same
from fp4ref.conformance.mistakes.record import Mistake
from fp4ref.formats import F
from fp4ref.model.quantize import constants
from fp4ref.model.tiles import split
from fp4ref.spec import Granularity

Bools = NDArray[np.bool_]
Fields = frozenset[str]
# The fields of a kernel up to the scale bytes, each with the step in which its function is called. What a field makes
# is read in later steps. Maxima of the tensor and of blocks are made on their own, between VALUES and JOINED.
VALUES = {"read": 0, "values": 1, "transform": 2, "turned": 2}
OF_TENSOR = {"keep_nan": 3, "takes_amax": 3, "amax": 3, "used": 3, "report": 3, "constants": 4, "global_scale": 4}
OF_BLOCKS = {"block": 3, "quantized": 3, "elements": 3, "tails": 4, "keep_block_nan": 4, "block_amax": 4}
JOINED = {"block_scale": 5, "search": 5, "scale_value": 6, "scale_codec": 7, "scale_byte": 8, "stored": 9, "scales": 10}
STEPS = VALUES | OF_TENSOR | OF_BLOCKS | JOINED
# Fields that say how codes are made, and which parts serve
WITHOUT_SCALES = frozenset(
    ("whole", "bits", "codec", "working", "used_scale", "element_global", "scaled", "value", "round", "code", "codes")
)
ALL = frozenset(field.name for field in dataclasses.fields(Kernel))
KEEPS = frozenset(("keep_nan", "keep_block_nan"))  # read by `amax` and `block_amax` alone
# Fields that choose between the two candidates of 4over6, and say how codes are made, but not what bytes are tried
CHOICES = WITHOUT_SCALES | {"search", "counted", "second", "kept"}
NEVER_IDLE = frozenset(("constants", "search"))  # whose results are not compared


class Change(NamedTuple):
    """A change on some cases, each a part of the evidence.

    fields: of the kernel that it changes, those of codes left out. reads: the fields that decide what it changes.
    idle: where all that it makes up to the scale bytes is what the specification makes. either: where that holds
    whether maxima keep NaN or not. wrong: where the scale bytes that it makes alone are not the candidate's.
    """

    fields: Fields
    reads: Fields
    idle: Bools
    either: Bools
    wrong: Bools


class Changes:
    """Changes of a kernel on some parts. sides: of the kernel on each of them, up to the scales."""

    def __init__(self, plain: Kernel, parts: Sequence[Part], sides: Sequence[ScaleSide | None]) -> None:
        self.plain, self.parts, self.sides = plain, parts, sides
        self._seen: set[str] = set()
        self._traced = _traced(plain, self._seen)

    def of(self, kernel: Kernel, mistake: Mistake, sides: Sequence[ScaleSide | None]) -> Change:
        """Return the change that a mistake makes of the kernel. kernel, sides: with the mistake."""
        return self._change(kernel, changed(self.plain, kernel), self._reads(mistake), sides)

    def of_profile(self, kernel: Kernel, sides: Sequence[ScaleSide | None]) -> Change:
        """Return the change that another specification makes; its own fields stand for those that read it."""
        spec, other = self.plain.spec, kernel.spec
        fields = changed(self.plain, kernel) - {"spec"}
        if kernel.search is not None:  # whatever makes codes may choose the scales
            fields |= {"block_scale", "search"}
        if spec.global_scale is not other.global_scale:
            fields |= {"amax"}
        one, two = constants(spec, np.dtype(F)), constants(other, np.dtype(F))
        if any(a != b for name, a, b in zip(one._fields, one, two, strict=True) if name != "narrow"):
            fields |= {"constants"}
        return self._change(kernel, fields, frozenset(), sides)

    def _change(self, kernel: Kernel, fields: Fields, reads: Fields, sides: Sequence[ScaleSide | None]) -> Change:
        idle, either, wrong = np.zeros((3, len(self.parts)), np.bool_)
        for place, (part, side, plain) in enumerate(zip(self.parts, sides, self.sides, strict=True)):
            if side is None or plain is None or part.item.size > SMALL:
                continue  # only whole cases are compared
            wrong[place] = part.surely_wrong(kernel, side) or _other_amax(part, kernel, side)
            idle[place] = not fields & NEVER_IDLE and self._same(part, kernel, side, plain)
            either[place] = idle[place] and self._free_of_nan[place] and self._with_nan(part, kernel, side)
        return Change(fields, reads, idle, either, wrong)

    @cached_property
    def _free_of_nan(self) -> list[bool]:
        """The parts in which the kernel's own maxima are the same whether NaN is kept or not."""
        found = zip(self.parts, self.sides, strict=True)
        return [side is not None and self._with_nan(part, self.plain, side) for part, side in found]

    def _with_nan(self, part: Part, kernel: Kernel, side: ScaleSide) -> bool:
        """Return True if the maxima that a kernel makes itself are the same whether NaN is kept or not."""
        values, seen = part.item.exhibit.quantized(kernel), side.blocks
        if kernel.tails is not same or kernel.elements is not None:
            seen = split(kernel.tails(part.item.exhibit.changed(kernel)), kernel.block)
        if not _identical(kernel.block_amax(seen, False), kernel.block_amax(seen, True)):
            return False
        by_row = kernel.spec.global_scale is Granularity.ROW
        return _identical(kernel.amax(values, False, by_row), kernel.amax(values, True, by_row))

    def _reads(self, mistake: Mistake) -> Fields:
        """Return the fields of the kernel that decide what a mistake changes."""
        self._seen.clear()
        mistake.apply(self._traced)
        return ALL if self._seen - ALL - {"but"} else frozenset(self._seen - {"but"})

    def _same(self, part: Part, kernel: Kernel, side: ScaleSide, plain: ScaleSide) -> bool:
        """Return True if a kernel makes the plain one's intermediate values."""
        exhibit = part.item.exhibit
        made = (side.t, side.byte, side.scales, side.g, side.used, side.amax, side.maxima, side.blocks)
        wanted = (plain.t, plain.byte, plain.scales, plain.g, plain.used, plain.amax, plain.maxima, plain.blocks)
        if not all(starmap(_identical, zip(made, wanted, strict=True))):
            return False
        own, other = exhibit.quantized(kernel), exhibit.quantized(self.plain)
        if not (_identical(own.raw, other.raw) and _identical(own.transformed, other.transformed)):
            return False
        return _identical(exhibit.changed(kernel), exhibit.changed(self.plain))


def changed(plain: Kernel, kernel: Kernel) -> Fields:
    """Return the fields that differ, those of codes left out."""
    own, other = vars(plain), vars(kernel)
    return frozenset(name for name in ALL - WITHOUT_SCALES if own[name] is not other[name] and own[name] != other[name])


def same_change(plain: Kernel, kernel: Kernel, start: Kernel, made: Kernel) -> bool:
    """Return True if `made` differs from `start` by the same values as `kernel` from `plain`, up to the scale bytes."""
    before, own, after = vars(plain), vars(kernel), vars(made)
    if start.search is not None and any(own[name] is not before[name] for name in WITHOUT_SCALES - {"whole"}):
        return False
    base = vars(start)
    return all(after[name] is (base if own[name] is before[name] else own)[name] for name in ALL - WITHOUT_SCALES)


def same_candidates(start: Kernel, made: Kernel) -> bool:
    """Return True if both try the same scale bytes for each block, whichever of them they keep."""
    one, other = vars(start), vars(made)
    return made.search is not None and all(one[name] is other[name] for name in ALL - CHOICES)


def excluded(changes: Sequence[Change]) -> Bools:
    """Return True [changes, changes] for pairs of which one is idle where the other alone is wrong."""
    if not changes:
        return np.zeros((0, 0), np.bool_)
    kinds = list(dict.fromkeys((change.fields, change.reads) for change in changes))
    apart = np.array([[_apart(one, other) for other in kinds] for one in kinds], np.bool_)
    of = np.array([kinds.index((change.fields, change.reads)) for change in changes], np.intp)
    idle = np.array([change.idle for change in changes], np.float32)
    wrong = np.array([change.wrong for change in changes], np.float32)
    found = (idle @ wrong.T > 0) & apart[of][:, of]
    return np.asarray(found | found.T)


def excluded_with(other: Change, changes: Sequence[Change]) -> Bools:
    """Return True [changes] for those that are idle where another change alone is wrong, or the reverse.

    They must change the same fields to the same values beside it, whatever they read.
    """
    if not changes:
        return np.zeros(0, np.bool_)
    kept, rest = other.fields & KEEPS, other.fields - KEEPS
    idle = np.array([change.either if kept else change.idle for change in changes], np.bool_)
    wrong = np.array([change.wrong for change in changes], np.bool_)
    free = np.array([not change.fields & kept and _unmoved(change.fields, rest) for change in changes], np.bool_)
    held = np.array([_unmoved(other.fields, change.fields) for change in changes], np.bool_)
    return np.asarray((free & (idle & other.wrong).any(axis=1)) | (held & (wrong & other.idle).any(axis=1)))


def _apart(one: tuple[Fields, Fields], other: tuple[Fields, Fields]) -> bool:
    """Return True if the first change makes the same fields and values beside the second one."""
    (fields, reads), (others, other_reads) = one, other
    return not (reads & others or other_reads & fields) and _unmoved(fields, others)


@lru_cache(maxsize=4096)
def _unmoved(fields: Fields, others: Fields) -> bool:
    """Return True if nothing that these fields' functions are given depends on the other fields."""
    if not (fields | others) <= STEPS.keys():
        return False
    return not any(_follows(field, other) for field in fields for other in others)


def _follows(field: str, other: str) -> bool:
    """Return True if a field's function may be given what another field makes, or if they are one."""
    if (field in OF_TENSOR and other in OF_BLOCKS) or (field in OF_BLOCKS and other in OF_TENSOR):
        return False
    return STEPS[field] >= STEPS[other]


def _identical(one: Any, other: Any) -> bool:
    """Return True if two arrays have the same shape and bits, or if both are None."""
    if one is other:
        return True
    if one is None or other is None:
        return False
    a, b = np.asarray(one), np.asarray(other)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _other_amax(part: Part, kernel: Kernel, side: ScaleSide) -> bool:
    """Return True if the maxima are not the candidate's; NaN may be any NaN."""
    return side.amax is not None and not np.isnan(side.amax).any() and not part.amax_matches(kernel, side)


def _traced(plain: Kernel, seen: set[str]) -> Kernel:
    """Return a kernel that notes which of its attributes are read."""

    class Traced(Kernel):
        def __getattribute__(self, name: str) -> Any:
            seen.add(name)
            return object.__getattribute__(self, name)

        def but(self, **changes: Any) -> Kernel:
            return plain.but(**changes)

    made: Kernel = object.__new__(Traced)
    object.__getattribute__(made, "__dict__").update(vars(plain))
    return made
