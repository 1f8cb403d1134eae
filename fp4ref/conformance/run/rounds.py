"""The order in which a kernel gets its cases: those that failed last time, then a seed, and for ever the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from fp4ref.conformance.families import FAMILIES, Case, family_of, seed_of
from fp4ref.conformance.subjects.subject import Declaration, cases_of
from fp4ref.spec import Spec


def in_order(
    declared: Declaration,
    spec: Spec,
    first: Sequence[str] = (),
    *,
    forever: bool = False,
    stop: Callable[[], bool] = lambda: False,
    **reach: Any,
) -> Iterator[Case]:
    """Yield the cases that `first` names, then all others.

    forever: go on with the next seed until `stop` returns True at the end of a seed. reach: arguments of `cases_of`.

    Rules: CNF-21, CNF-64, CNF-107.
    """
    allowed, start = reach.get("families"), reach.pop("seed", 0)
    wanted = [name for name in first if allowed is None or family_of(name) in allowed]
    tried = set()
    for name in wanted:
        found = named(declared, spec, name, **reach)
        if found is not None and name not in tried:
            tried.add(name)
            yield found
    for seed in count(start) if forever else (start,):
        for case in cases_of(declared, spec, seed=seed, **reach):
            if case.id not in tried:
                yield case
        if stop():
            return


def named(declared: Declaration, spec: Spec, name: str, **reach: Any) -> Case | None:
    """Return the case of a name, in which its seed may stand; None if there is none.

    Rules: CNF-103, CNF-106.
    """
    family = family_of(name)
    if family not in FAMILIES:
        return None
    own = reach | {"families": [family], "seed": seed_of(name)}
    return next((case for case in cases_of(declared, spec, **own) if case.id == name), None)
