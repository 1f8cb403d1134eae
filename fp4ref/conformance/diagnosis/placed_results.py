"""Known mistakes of operations that give one array, each searched for in the place where it holds.

A mistake is possible if every result is either its own or the specification's; then the place is what separates the
results where the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.explanations import Explanation
from fp4ref.conformance.diagnosis.likely_place import confined
from fp4ref.conformance.diagnosis.place_rounds import Bools, Marked, drawn, learnt
from fp4ref.conformance.judge.result_stages import differing
from fp4ref.conformance.mistakes.places import Place, PlaceAxis, Tensor, Units, units_of
from fp4ref.conformance.mistakes.record import Cause

Values = NDArray[Any]
KEPT = 6  # possible mistakes whose place is learnt


@dataclass(frozen=True)
class ResultSite:
    """A result [rows, units] of a case: values, or bytes of blocks.

    tensor: whose rows and columns places are about. right: the specification's result; accepted: which units are right,
    where more than one result is. width: columns of a unit; block: of a block, 1 where results have no blocks.
    """

    tensor: Tensor
    got: Values
    right: Values
    width: int = 1
    block: int = 1
    accepted: Bools | None = None

    @property
    def family(self) -> str | None:
        """The family of the case."""
        return getattr(self.tensor, "family", None)

    @cached_property
    def plain(self) -> Bools:
        """The marks of units that are the specification's."""
        return same(self.got, self.right) if self.accepted is None else self.accepted

    def labels(self, made: Values | None) -> tuple[Bools, Bools] | None:
        """Return which units are a mistake's only, and the specification's only; None if some are neither's."""
        if made is None or made.shape != self.got.shape:
            return (np.zeros_like(self.plain),) * 2 if self.plain.all() else None
        own = same(self.got, made)
        return (own & ~self.plain, self.plain & ~own) if (own | self.plain).all() else None

    def units(self, chosen: Bools, count: int, *, by_element: bool) -> Units:
        """Return some of the units that are marked, as arrays."""
        return self._units(*drawn(chosen, count))

    def inside(self, place: Place, *, by_element: bool) -> Bools:
        """Return which units are in a place."""
        row, column = np.ogrid[: self.got.shape[0], : self.got.shape[1]]
        return place.holds(self._units(row, column))

    def _units(self, row: Any, column: Any) -> Units:
        return units_of(self.tensor, self.block, row, column * self.width)


def _always(index: int) -> bool:
    return True


class KnownResult(NamedTuple):
    """A mistake: its names, its stage, a sentence, and its result at a site, None where it means nothing.

    tells: returns True at sites where its result is exact. own: the coordinate that it is about, if it is one.
    causes: each of several mistakes, where their stages are known.
    """

    names: tuple[str, ...]
    stage: str
    text: str
    made: Callable[[int], Values | None]
    tells: Callable[[int], bool] = _always
    own: PlaceAxis | None = None
    causes: tuple[Cause, ...] = ()

    def explanation(self, place: str = "") -> Explanation:
        """Return it as an explanation of everything, which may hold in a place only."""
        text = f"{self.text}, {place}" if place else self.text
        return Explanation(self.names, self.stage, text, place=place, causes=self.causes)

    def foreign(self, place: Place) -> bool:
        """Return True if a place is about another coordinate."""
        axes = {predicate.axis for predicate in place.predicates if not predicate.about_tensor}
        return self.own is not None and bool(axes) and self.own not in axes


def explained(
    sites: Sequence[ResultSite], known: Iterable[KnownResult], tick: Callable[[], None], *, by_element: bool
) -> list[Explanation]:
    """Return the mistakes that explain every unit everywhere; without one, those that do in one place.

    sites: wrong ones first, small ones first. tick: is called before each mistake at each site. The place with the
    shortest description comes first.

    Rules: CNF-26.
    """
    if all(site.plain.all() for site in sites):
        return []
    everywhere: list[KnownResult] = []
    somewhere: list[tuple[KnownResult, list[Marked]]] = []
    for mistake in known:
        tick()
        marked = _marked(sites, mistake, tick)
        if marked is None:
            continue
        if not any(outside.any() for *_, outside in marked):
            everywhere.append(mistake)
        elif len(somewhere) < KEPT and not everywhere:
            somewhere.append((mistake, marked))
    if everywhere:
        return [mistake.explanation() for mistake in everywhere]
    found: list[tuple[float, bool, int, Explanation]] = []
    for number, (mistake, marked) in enumerate(somewhere):
        place = learnt(marked, tick, by_element=by_element)
        if place is not None and place.predicates:
            found.append((place.bits, mistake.foreign(place), number, mistake.explanation(place.text)))
    if not found:
        found = [(0.0, False, n, one) for n, one in enumerate(_in_some_cases(len(sites), somewhere))]
    return [item for *_, item in sorted(found, key=lambda each: each[:3])]


def _in_some_cases(count: int, somewhere: Sequence[tuple[KnownResult, list[Marked]]]) -> Iterator[Explanation]:
    """Yield the mistakes that explain whole cases, which are too few to say in which they hold."""
    for mistake, marked in somewhere:
        inside = sum(bool(own.any()) for _, own, _ in marked)
        if not any(own.any() and outside.any() for _, own, outside in marked):
            yield mistake.explanation(f"in {inside} of {count} cases only")


def _marked(sites: Sequence[ResultSite], mistake: KnownResult, tick: Callable[[], None]) -> list[Marked] | None:
    """Return the units of every site that must be inside and outside; None if some are neither's."""
    marked: list[Marked] = []
    for index, site in enumerate(sites):
        if not mistake.tells(index):
            continue
        tick()
        labels = site.labels(mistake.made(index))
        if labels is None:
            return None
        if labels[0].any() or labels[1].any():
            marked.append((site, *labels))
    return marked if any(inside.any() for _, inside, _ in marked) else None


def place_of(sites: Sequence[ResultSite]) -> str:
    """Return where everything that differs is, in words. Rules: CNF-26."""
    return confined([(site.tensor, ~site.plain) for site in sites if site.got.size], sites[0].block).text


def same(one: Values, other: Values) -> Bools:
    """Return where bits are equal; all NaN are one. Rules: CNF-1."""
    return np.asarray(one == other if one.dtype == np.uint8 else ~differing(one, other))
