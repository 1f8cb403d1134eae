"""Learning a place over the units of many cases: from some units of each, then again with those that it gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.place_learning import Labelled, joined, learn
from fp4ref.conformance.mistakes.places import Place, Units

Bools = NDArray[np.bool_]
DRAWN = 600  # units of a case from which a place is learnt at first
ROUNDS = 6  # of learning, each with the units that the last place got wrong


class Site(Protocol):
    """A case, or a part of one, whose blocks or elements have places."""

    @property
    def family(self) -> str | None:
        """The family of the case."""

    def units(self, chosen: Bools, count: int, *, by_element: bool) -> Units:
        """Return some of the units that are marked, as arrays."""

    def inside(self, place: Place, *, by_element: bool) -> Bools:
        """Return which units are in a place."""


Marked = tuple[Site, Bools, Bools]  # a site, the units that must be inside, and those that must be outside


def learnt(
    marked: Sequence[Marked], tick: Callable[[], None], *, by_element: bool, about_tensor: bool = False
) -> Place | None:
    """Return the place that separates the units of all sites; None without one that is supported.

    tick: is called before each round.

    Rules: CNF-26.
    """

    def sample(site: Site, chosen: Bools, wanted: bool) -> tuple[Units, Bools]:
        units = site.units(chosen, DRAWN, by_element=by_element)
        return units, np.full(len(units.row), wanted)

    samples = [[sample(site, inside, True), sample(site, outside, False)] for site, inside, outside in marked]
    families = [site.family for site, *_ in marked]
    for _ in range(ROUNDS if samples else 0):
        tick()
        place = learn(recorded(samples, families), about_tensor=about_tensor, by_element=by_element)
        if place is None:
            return None
        missed = False
        for (site, inside, outside), known in zip(marked, samples, strict=True):
            held = site.inside(place, by_element=by_element)
            for wanted, wrong in ((True, inside & ~held), (False, outside & held)):
                if wrong.any():
                    missed = True
                    known.append(sample(site, wrong, wanted))
        if not missed:
            return place
    return None


def recorded(samples: Sequence[Sequence[tuple[Units, Bools]]], families: Sequence[str | None] = ()) -> Labelled:
    """Return the samples of every case as one record, in which a case has one number."""
    given = joined([sample for case in samples for sample in case])
    numbers = np.repeat(np.arange(len(samples)), [sum(len(labels) for _, labels in case) for case in samples])
    return given._replace(case=numbers, families=tuple(families))


def drawn(chosen: Bools, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of some marks, evenly spread."""
    row, column = np.nonzero(chosen)
    if len(row) > count:
        some = np.unique(np.linspace(0, len(row) - 1, count).astype(np.int64))
        row, column = row[some], column[some]
    return row, column
