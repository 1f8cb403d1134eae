"""Cases of which some suffice by default. The heavy step runs the others.

Specifications are enough if each of their parts is in one; of a sweep over many cases, `sampled` takes each third, say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest

import fp4ref


def parts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the parts of a field: the name of an arithmetic or format, each field of another record, or the value."""
    named = name.endswith(("arithmetic", "format"))
    if named or not dataclasses.is_dataclass(value):
        yield name, value.name if named else repr(value)
        return
    for field in dataclasses.fields(value):
        yield from parts(f"{name}.{field.name}", getattr(value, field.name))


def parts_of(spec: fp4ref.Spec) -> set[tuple[str, str]]:
    """Return all parts of a specification but its name."""
    fields = (field.name for field in dataclasses.fields(spec) if field.name != "name")
    return {part for name in fields for part in parts(name, getattr(spec, name))}


def names_by_parts(specs: Iterable[fp4ref.Spec]) -> list[Any]:
    """Return names as values of a parameter; a peer's is heavy if all of its parts are in others."""
    specs = list(specs)
    values = by_parts((spec for spec in specs if "." not in spec.name), specs)
    return [
        pytest.param(value.values[0].name, marks=value.marks) if hasattr(value, "marks") else value.name
        for value in values
    ]


def choices_of_elements(spec: fp4ref.Spec) -> set[tuple[str, str]]:
    """Return the parts of a specification's element codec but its codes of NaN, which are numbers."""
    return {part for part in parts("element", spec.element) if part[0] != "element.nan"}


def by_parts(
    first: Iterable[fp4ref.Spec],
    others: Iterable[fp4ref.Spec],
    of: Callable[[fp4ref.Spec], set[tuple[str, str]]] = parts_of,
) -> list[Any]:
    """Return specifications as values of a parameter; those whose parts are all in others are heavy.

    The one with the most new parts is taken first, so that few are enough.
    """
    values: list[Any] = list(first)
    seen: set[tuple[str, str]] = set().union(*map(of, values))
    names = {spec.name for spec in values}  # an equal specification of another name is another value
    left = {spec.name: (spec, of(spec)) for spec in others if spec.name not in names}
    chosen = set()
    while True:
        name = max(left, key=lambda name: len(left[name][1] - seen) * (name not in chosen), default="")
        if not name or left[name][1] <= seen:
            break
        chosen.add(name)
        seen |= left[name][1]
    return values + [
        spec if name in chosen else pytest.param(spec, marks=pytest.mark.heavy) for name, (spec, _) in left.items()
    ]


def few(values: Sequence[Any], count: int, every: int = 1) -> list[Any]:
    """Return values of parameters, of which all but the first are heavy: they are of kinds that the first ones show.

    every: of the heavy ones CI runs each second, third and so on; the others wait for a release.
    """
    each = [
        value if hasattr(value, "marks") else pytest.param(*(value if isinstance(value, tuple) else (value,)))
        for value in values
    ]
    others = (
        value._replace(marks=[*value.marks, pytest.mark.heavy, *[pytest.mark.release] * bool(place % every)])
        for place, value in enumerate(each[count:])
    )
    return [*each[:count], *others]


def crossed(*kinds: Sequence[Any], every: int) -> list[Any]:
    """Return all combinations of values as parameters, of which CI runs a part; the others wait for a release.

    The places of the values add up to a multiple of `every`, so that CI tries every value.
    """
    combinations = product(*map(enumerate, kinds))
    return [
        pytest.param(
            *(value for _, value in each), marks=[pytest.mark.release] * bool(sum(place for place, _ in each) % every)
        )
        for each in combinations
    ]


def sample(cases: Sequence[Any]) -> None:
    """Have a sample of a function's cases run by default if it is marked `sampled`: the others become heavy.

    A case runs by default if the places of its values add up to a multiple of the mark's number, so that the sample has
    every value of a parameter that is crossed with others.
    """
    mark = cases[0].get_closest_marker("sampled") if cases else None
    if mark is None:
        return
    lists = [each.args[0] for each in cases[0].iter_markers("parametrize")]
    kinds = [[each.strip() for each in names.split(",")] if isinstance(names, str) else [*names] for names in lists]
    direct = {name for names in kinds for name in names}
    kinds += [[name] for name in cases[0].callspec.params if name not in direct]  # those of fixtures
    places: list[dict[Any, int]] = [{} for _ in kinds]
    for case in cases:
        values = case.callspec.params
        met = [tuple(id(values[name]) for name in names if name in values) for names in kinds]
        if sum(of.setdefault(value, len(of)) for of, value in zip(places, met, strict=True)) % mark.args[0]:
            case.add_marker(pytest.mark.heavy)


def heavy_or_release(names: Iterable[str], heavy: Iterable[str]) -> Any:
    """Return a mark that runs a test for each name: those of the second argument in CI, all before a release."""
    marks = {True: pytest.mark.heavy, False: pytest.mark.release}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name in heavy]) for name in names])
