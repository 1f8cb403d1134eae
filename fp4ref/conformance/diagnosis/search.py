"""The search for hypotheses that make every byte: scales first, then codes.

Among the hypotheses of one cost, those that make the candidate's scale bytes on the first pieces are kept, and only
they are combined with mistakes of the codes. For example, "the block scale is rounded up" is dropped at the first piece
whose scale bytes are the specification's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis.clock import OutOfTimeError, processor_time
from fp4ref.conformance.diagnosis.evidence import SMALL, Item, Part
from fp4ref.conformance.diagnosis.hypotheses import AFTER_SCALES, Hypothesis, pairs, similar, together
from fp4ref.conformance.diagnosis.likely_pairs import LikelyPairs
from fp4ref.conformance.diagnosis.marks import Tier
from fp4ref.conformance.diagnosis.measured.own_digits import named_places
from fp4ref.conformance.diagnosis.support import tellable
from fp4ref.conformance.mistakes.biases import biases
from fp4ref.conformance.mistakes.data_readers import ALL_DATA_READERS, DATA_READERS, LOW_FIRST, DataReader
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide, kernel_of
from fp4ref.conformance.mistakes.readers import DECLARED, ScaleReader, digit_readers, scale_readers
from fp4ref.conformance.mistakes.record import Mistake
from fp4ref.conformance.mistakes.transforms import other_orders
from fp4ref.spec import Spec

PAIR = 2  # causes together
FIRST = 12  # pieces on which a hypothesis that makes the same numbers as another need not fail again
GLANCED = 24  # pieces on which scales are compared before codes are


@dataclass
class Search:
    """Hypotheses about some items, tried on one tier of their bytes.

    deadline: of the processor's time. dead: what was refuted, wherever its bytes are read; a search on more cases that
    is given them does not try them again.
    """

    spec: Spec
    items: Sequence[Item]
    tier: Tier
    deadline: float
    special: bool
    dead: set[Hashable] = field(default_factory=set)
    _found: dict[int, list[Hypothesis]] = field(default_factory=dict)
    _refuted: set[Hashable] = field(default_factory=set)
    _pairs: LikelyPairs | None = None  # of the specification

    @cached_property
    def parts(self) -> list[Part]:
        """Pieces of the evidence in the order in which they are tried."""
        return [part for item in self.items for part in item.parts(self.tier)]

    @cached_property
    def mistakes(self) -> list[Mistake]:
        """The known mistakes that may count here."""
        return [*biases(self.spec), *tellable(self.items, special=self.special)]

    @cached_property
    def starts(self) -> list[Hypothesis]:
        """The specification, its harmless variations, and every profile."""
        base = Hypothesis(kernel_of(self.spec))
        others = [Hypothesis(kernel) for kernel in other_orders(base.kernel)]
        profiles = [
            Hypothesis(kernel_of(spec), profile=name) for name, spec in PROFILES.items() if similar(spec, self.spec)
        ]
        return [base, *others, *profiles]

    def explanations(self, cost: int) -> Iterator[Hypothesis]:
        """Hypotheses of a cost that make every byte of the tier."""
        for first in range(cost + 1):
            if first == cost > 0 and cost not in self._found:
                yield from filter(self.whole, self._scale_side(cost, entire=True))
                continue
            for scales in self.scale_side(first):
                yield from filter(self.whole, self._code_side(scales, cost - first))

    def whole(self, hypothesis: Hypothesis) -> bool:
        """Return True if a hypothesis makes every byte of the tier."""
        for item in self.items:
            self._tick()
            if not hypothesis.explains(item, self.tier):
                return False
        return True

    @cached_property
    def scales_right(self) -> bool:
        """True if the specification makes every maximum and scale byte of the tier, read as declared."""
        kernel = self.starts[0].kernel
        tried = ((part, part.side(kernel)) for part in self.parts if part.serves(kernel))
        return all(side is not None and part.scales_match(kernel, side, DECLARED) for part, side in tried)

    def scale_side(self, cost: int) -> list[Hypothesis]:
        """Hypotheses of a cost that make every maximum and scale byte of the first pieces."""
        if cost not in self._found:
            self._found[cost] = list(self._scale_side(cost))
        return self._found[cost]

    def _scale_side(self, cost: int, *, entire: bool = False) -> Iterator[Hypothesis]:
        """Yield hypotheses, which are tried one after the other. entire: only those that make every code as well."""
        readers = self._readers if self.items else []
        for start in self.starts:
            for changed in self._changed(start, cost - start.cost):
                key = self._key(changed), cost, entire
                if key in self.dead or (cost >= PAIR and self._doubled(changed)):
                    continue
                alive = False
                for read in self._read(changed, readers, cost - changed.cost, entire=entire):
                    alive = True
                    yield read
                if not alive:
                    self.dead.add(key)

    @cached_property
    def _readers(self) -> list[ScaleReader]:
        """The named places of scales, in the order in which they are told."""
        declared = self.items[0].declared
        right = self.scales_right
        return list(scale_readers(declared)) if right else named_places(declared, self.starts[0].kernel, self.parts)

    def _doubled(self, changed: Hypothesis) -> bool:
        """Return True if two causes would have made scale bytes that are right without either of them."""
        right = self.scales_right and self.starts[0].kernel.search is None and changed.mistakes
        return bool(right) and (changed.cost == 1 or changed.profile in self._wrong_scales)

    @cached_property
    def _wrong_scales(self) -> set[str | None]:
        """The profiles that alone do not make the scale bytes."""
        return {start.profile for start in self.starts if start.profile and not any(self._read(start, (), 0))}

    def unnamed_layouts(self) -> Iterator[Hypothesis]:
        """Yield the specification with its scales in tiles that have no name."""
        start = self.starts[0]
        for scales in self._read(start, list(digit_readers()), 1):
            yield from filter(self.whole, self._code_side(scales, 0))
            yield from filter(self.whole, self._code_side(scales, 1))

    def _changed(self, start: Hypothesis, count: int) -> Iterator[Hypothesis]:
        """Yield hypotheses with up to `count` mistakes of different stages before the scale bytes."""
        if count < 0:
            return
        yield start
        before = self._before if start.kernel.search is None else self.mistakes  # where codes choose, all move scales
        if start.profile:
            excluded = self._excluded(start) if count else None
            made = ((m, start.but(m)) for m in before if count and not m.alone)
            yield from (h for m, h in made if h is not None and not (excluded and excluded(m, h)))
            return
        singles = [(m, h) for m in before if (h := start.but(m)) is not None] if count else []
        yield from (h for _, h in singles)
        if count < 2 or (start.kernel.search is None and self.scales_right):
            return  # where the scales are right, no two mistakes made them
        singles = [(m, h) for m, h in singles if not m.alone]
        pairs_of = LikelyPairs(start, singles, self.parts, self._tick)
        if start is self.starts[0]:
            self._pairs = pairs_of
        for one, other in pairs_of.likeliest():
            self._tick()
            both = together(start, one, other)
            if both is not None:
                yield both

    def _excluded(self, profile: Hypothesis) -> Callable[[Mistake, Hypothesis], bool] | None:
        """Return a test of mistakes that are refuted together with a profile; None where no pairs were looked at."""
        if self._pairs is None or self.starts[0].kernel.search is not None:
            return None
        return self._pairs.excluded_from(profile)

    @cached_property
    def _glanced(self) -> list[Part]:
        """The first pieces, and every piece of a large case."""
        return [part for n, part in enumerate(self.parts) if n < GLANCED or part.item.size > SMALL]

    @cached_property
    def _before(self) -> list[Mistake]:
        """The mistakes that are made before the scale bytes."""
        return [mistake for mistake in self.mistakes if mistake.stage not in AFTER_SCALES]

    def _read(
        self, hypothesis: Hypothesis, readers: Sequence[ScaleReader], left: int, *, entire: bool = False
    ) -> Iterator[Hypothesis]:
        """Yield the same with every other place of scales that the evidence allows. entire: its codes as well."""
        kernel = hypothesis.kernel
        alive: Sequence[ScaleReader] = [DECLARED] if left == 0 else readers
        if left not in {0, 1}:
            return
        for part in self._glanced:
            if not part.serves(kernel):
                continue
            self._tick()
            if left == 0 and not part.may_choose(kernel):
                return
            side = part.side_after_amax(kernel)
            if side is None:
                return
            alive = list(part.matching(kernel, side, alive, self._tick))
            chosen = hypothesis.mistakes and side.codes is not None
            if not alive or (chosen and not self._packed(part, kernel, side)):
                return
            if entire and not part.codes_match(kernel, side, LOW_FIRST):
                return
        yield from (hypothesis.reading(scales=reader) for reader in alive)

    @staticmethod
    def _packed(part: Part, kernel: Kernel, side: ScaleSide) -> bool:
        """Return True if the codes that are chosen with the scales are the candidate's in some named packing."""
        return bool(part.reading(kernel, side, ALL_DATA_READERS))

    def _code_side(self, start: Hypothesis, cost: int) -> Iterator[Hypothesis]:
        """Yield hypotheses with `cost` mistakes after the scale bytes."""
        sides: dict[int, ScaleSide | None] = {}
        mark = self._mark(start)
        for changed, left in self._recoded(start, cost):
            if left > 1:
                continue
            readers: Sequence[DataReader] = DATA_READERS if left else (LOW_FIRST,)
            after = tuple(m.name for m in changed.mistakes if m.stage in AFTER_SCALES)
            key, own = (mark, after, left), (self._key(changed), left)
            if key in self._refuted or own in self.dead:
                continue
            shared, alive = sides if changed.kernel.whole == start.kernel.whole else {}, False
            for read in self._data(changed, readers, key, shared):
                alive = True
                yield read
            if not alive:
                self.dead.add(own)

    def _key(self, hypothesis: Hypothesis) -> Hashable:
        """Return the key of a hypothesis among all searches for the same specification."""
        order = self._orders.get(id(hypothesis.kernel.transform))
        return self.tier, order, hypothesis.profile, hypothesis.names, hypothesis.scales.name

    @cached_property
    def _orders(self) -> dict[int, int]:
        """The numbers of transforms in which the starts differ."""
        return {id(start.kernel.transform): number for number, start in enumerate(self.starts)}

    def _mark(self, hypothesis: Hypothesis) -> int:
        """Equal for hypotheses whose codes are made of the same numbers on the first pieces."""
        kernel, seen = hypothesis.kernel, []
        for part in self.parts[:FIRST]:
            side = part.side(kernel) if part.serves(kernel) else None
            if side is not None:
                arrays = side.t, side.g, side.byte, side.blocks, side.bits, side.codes
                seen.append(tuple(None if array is None else np.asarray(array).tobytes() for array in arrays))
        return hash((tuple(seen), hypothesis.profile, kernel.codec, kernel.scaled, kernel.value, kernel.code))

    def _recoded(self, start: Hypothesis, cost: int) -> Iterator[tuple[Hypothesis, int]]:
        """Yield hypotheses with up to `cost` mistakes of different stages, and the number left for the packing."""
        yield start, cost
        if cost < 1 or start.kernel.search is not None:
            return
        after = [m for m in self.mistakes if m.stage in AFTER_SCALES and m.stage not in start.stages]
        singles = [(m, h) for m in after if (h := start.but(m)) is not None]
        yield from ((changed, cost - 1) for _, changed in singles)
        if cost > 1:
            for one, other in pairs([mistake for mistake, _ in singles if not mistake.alone]):
                both = together(start, one, other)
                if both is not None:
                    yield both, cost - 2

    def _data(
        self, hypothesis: Hypothesis, readers: Sequence[DataReader], key: Hashable, sides: dict[int, ScaleSide | None]
    ) -> Iterator[Hypothesis]:
        """Yield the same with every packing that the evidence allows."""
        kernel = hypothesis.kernel
        for place, part in enumerate(self._glanced):
            if not part.serves(kernel):
                continue
            self._tick()
            if place not in sides:
                sides[place] = part.side(kernel)
            side = sides[place]
            readers = [] if side is None else part.reading(kernel, side, readers)
            if not readers:
                if place < FIRST:
                    self._refuted.add(key)
                return
        yield from (hypothesis.reading(data=reader) for reader in readers)

    def _tick(self) -> None:
        if processor_time.passed(self.deadline):
            raise OutOfTimeError
