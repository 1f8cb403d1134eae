"""The search: which small changes of a quantizer make the candidate's bytes.

A hypothesis is a kernel with a few known mistakes, each of which replaces one stage: "ties go away from zero", or
"block scales are rounded up", or both. Every hypothesis is run on pieces of the evidence, and an explanation is one
that makes every byte of it.

Scales are explained before codes, because codes depend on them. Suppose a candidate has both mistakes above. Among the
single mistakes before the scale bytes, only "block scales are rounded up" makes the candidate's scale bytes on the
first piece. All others are dropped there, before a code is computed, and only the one that is left is combined with
each mistake of the element codec. So pairs cost little more than single mistakes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.marks import Tier
from fp4ref.conformance.diagnosis.special_input import Special
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST, DataReader
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.readers import DECLARED, ScaleReader
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.spec import Spec

ORDER = list(Slot)


# A mistake of these stages leaves the scale bytes alone, unless 4over6 chooses them by the codes
AFTER_SCALES = frozenset({Slot.ENCODE, Slot.CODE, Slot.SIGN, Slot.PACKING})


@dataclass(frozen=True)
class Hypothesis:
    """A kernel, and where its bytes are stored; mistakes: what was changed to get there, by name.

    profile: the specification that the kernel started from, where it is another one.
    """

    kernel: Kernel
    profile: str | None = None
    mistakes: tuple[Mistake, ...] = ()
    scales: ScaleReader = DECLARED
    data: DataReader = LOW_FIRST
    padding: tuple[str, ...] = ()

    def but(self, mistake: Mistake) -> Hypothesis | None:
        """With one mistake more, if that means anything."""
        kernel = mistake.apply(self.kernel)
        if kernel is None:
            return None
        mistakes = (*self.mistakes, mistake)
        if len(mistakes) > 1:
            mistakes = tuple(sorted(mistakes, key=lambda m: ORDER.index(m.stage)))
        return Hypothesis(kernel, self.profile, mistakes, self.scales, self.data, self.padding)

    def reading(self, scales: ScaleReader | None = None, data: DataReader | None = None) -> Hypothesis:
        """With other places of bytes."""
        return Hypothesis(
            self.kernel, self.profile, self.mistakes, scales or self.scales, data or self.data, self.padding
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its mistakes."""
        return tuple(mistake.name for mistake in self.mistakes)

    @property
    def cost(self) -> int:
        """The amount that it assumes, for ranking."""
        named = (self.profile is not None) + (self.scales is not DECLARED) + (self.data is not LOW_FIRST)
        return named + len(self.mistakes)

    @property
    def measured(self) -> bool:
        """True if a function in it was measured in the candidate's bytes, which two named mistakes may make as well."""
        return any(mistake.measured for mistake in self.mistakes)

    @property
    def stages(self) -> set[Slot]:
        """The stages that it changes."""
        return {mistake.stage for mistake in self.mistakes}

    def explains(self, item: Item, tier: Tier = True) -> bool:
        """Return True if it makes every byte of a case."""
        return item.matches(self.kernel, self.scales, self.data, tier)

    def explains_all(self, items: Iterable[Item], tier: Tier) -> bool:
        """Return True if it makes every byte of a tier; a case of which it makes all is asked for no other tier."""
        return all(self.explains(item) or self.explains(item, tier) for item in items)


def pairs(mistakes: Sequence[Mistake]) -> Iterator[tuple[Mistake, Mistake]]:
    """All pairs of different stages, in the order of computation."""
    for one, other in itertools.combinations(mistakes, 2):
        if one.stage is not other.stage:
            yield (one, other) if ORDER.index(one.stage) < ORDER.index(other.stage) else (other, one)


def together(start: Hypothesis, first: Mistake, second: Mistake) -> Hypothesis | None:
    """With both mistakes, if that means anything."""
    made = start.but(first)
    return made.but(second) if made else None


def similar(a: Spec, b: Spec) -> bool:
    """Return True if two different specifications have buffers of the same shapes."""

    def form(spec: Spec) -> tuple[object, ...]:
        return spec.element.format.bits, spec.block.columns, spec.stochastic

    return form(a) == form(b) and a != b


def special_kinds(items: Iterable[Item]) -> list[Special]:
    """Return the classes that occur in the evidence, in their order."""
    found: set[Special] = set()
    for item in items:
        found |= item.kinds()
    return [kind for kind in Special if kind in found]
