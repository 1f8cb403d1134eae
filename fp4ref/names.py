"""Values by name: what this project registers, and what users add.

If nobody registered a name so far, two kinds of modules are imported, once, before it counts as unknown: those that
installed distributions declare in the entry-point group `fp4ref.values`, and those that the user named with `--import`.
A file holds names, never modules.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import ClassVar, Protocol, TypeVar

from fp4ref.errors import DomainError, Fp4Error, UnknownNameError
from fp4ref.modules import load_module

GROUP = "fp4ref.values"
VERSION = "@"  # between a name and a version
OPTION, IMPORTABLE = "--import", "a module or file that Python can import"
VARIABLE = "FP4REF_IMPORT"  # modules and files that the user named, for this process and its children

_begun: set[str] = set()  # extensions whose import began
_failed: dict[str, str] = {}  # those that could not be imported, and why


class Nameable(Protocol):
    """A value with a name of its own."""

    @property
    def name(self) -> str:
        """The name under which it is registered."""


Value = TypeVar("Value", bound=Nameable)


def has_vendor(name: str) -> bool:
    """Return True for a name of the form `vendor.name`, as third parties give. Rules: SPC-22."""
    return all(name.partition("."))


def near(name: object, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names that are most like a name; capitals and small letters count as equal."""
    spelled: dict[str, list[str]] = {}
    for each in known:
        spelled.setdefault(each.lower(), []).append(each)
    close = difflib.get_close_matches(str(name).lower(), spelled, n=most)
    return [each for lowered in close for each in spelled[lowered]][:most]


def meant(name: object, known: Iterable[str]) -> str:
    """Return a question after the known name that is most like a name, in brackets; empty if none is like it."""
    return "".join(f" (did you mean {each}?)" for each in near(name, known, 1))


class Names(Mapping[str, Value]):
    """Values of one kind by name, each with a note that says where it comes from.

    changes: how often a name of any kind got another value, or lost its own.

    Rules: SPC-4.
    """

    changes: ClassVar[int] = 0

    def __init__(self, kind: str, advice: str = "") -> None:
        self.kind = kind
        self._advice = advice
        self._values: dict[str, Value] = {}
        self._sources: dict[str, str] = {}
        self._other_names: dict[str, str] = {}
        self._checks: list[Callable[[Value], None]] = []

    def require(self, check: Callable[[Value], None]) -> None:
        """Call a function with each value of a third party before it is registered; the function raises what is wrong.

        This project's own values are left to its tests: checking them takes time in every import.
        """
        self._checks.append(check)

    def register(self, value: Value, source: str = "", also: Iterable[str] = ()) -> Value:
        """Add a value under its own name and return it; the same value twice is no error.

        also: other names of it, such as NAME@VERSION, which lookups accept and listings leave out.

        Rules: SPC-21, PRO-4.
        """
        if self._values.get(value.name, value) != value:
            raise DomainError("register", f"{self.kind} {value.name} twice with other settings", "a new name", "SPC-21")
        for check in self._checks if has_vendor(value.name) else ():
            check(value)
        Names.changes += 1
        self._values[value.name] = value
        self._sources[value.name] = source
        self._other_names |= dict.fromkeys(also, value.name)
        return value

    def forget(self, name: str) -> None:
        """Remove a value and its other names, as a test does at its end."""
        Names.changes += 1
        del self._values[name], self._sources[name]
        self._other_names = {other: of for other, of in self._other_names.items() if of != name}

    def source(self, name: str) -> str:
        """Return where a value comes from, and how far that was checked."""
        return self._sources[self[name].name]

    def __getitem__(self, name: str) -> Value:
        if name not in self._values:
            load_extensions()
        if name in self._values:
            return self._values[name]
        if name in self._other_names:
            return self._values[self._other_names[name]]
        if VERSION in str(name):
            return self._of_version(str(name))
        close = near(name, self._values) or [self._advice or ", ".join(self._values)]
        raise UnknownNameError(
            self.kind, unknown(f"unknown name {name!r}"), f"a registered one ({', '.join(close)})", "SPC-4"
        )

    def __contains__(self, name: object) -> bool:
        """Return True if a lookup of a name finds a value; the names that are near it are not searched for."""
        if name not in self._values and name not in self._other_names:
            load_extensions()
        if name in self._values or name in self._other_names:
            return True
        try:
            return VERSION in str(name) and bool(self._of_version(str(name)).name)
        except UnknownNameError:
            return False

    def versions(self, name: str) -> dict[str, str]:
        """Return the versions that NAME@VERSION may name, each with the name of its value. Rules: PRO-4."""
        every = {**self._other_names, **{known: known for known in self._values}}
        return {known.partition(VERSION)[2]: of for known, of in every.items() if known.startswith(f"{name}{VERSION}")}

    def _of_version(self, name: str) -> Value:
        """Return the value of NAME@VERSION; 0.40 also stands for 0.40.1, if no other version begins with it."""
        base, _, version = name.partition(VERSION)
        known = self.versions(base)
        found = {of for full, of in known.items() if full.startswith(f"{version}.")} if version else set()
        if len(found) == 1:
            return self._values[found.pop()]
        if known:
            got, needed = f"unknown version {version!r} of {base}", f"one of {', '.join(known)}"
        else:
            got, needed = f"unknown name {name!r}", f"a name that has versions; {self._advice}"
        raise UnknownNameError(self.kind, got, needed, "PRO-4")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def named_places() -> list[str]:
    """Return the modules and files that the user named, in order."""
    return [place for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place]


def load_extensions() -> None:
    """Import every module that may register values and was not imported before; failures are kept for messages.

    Rules: SPC-20.
    """
    for declared in _declared(tuple(sys.path)):
        if declared not in _begun:
            _begin(declared, declared.partition(":")[0])
    for place in named_places():
        if place not in _begun:
            _begin(place, place)


def unknown(got: str) -> str:
    """Return the words for a name that nobody registered, with the modules that could not be imported. Rules: SPC-4."""
    return "; ".join([got, *(f"{place}: {why}" for place, why in failures().items())])


def failures() -> dict[str, str]:
    """Return the declared and named modules that could not be imported, each with the reason. Rules: SPC-4."""
    load_extensions()
    return dict(_failed)


@lru_cache
def _declared(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that distributions on a path declare as values; finding them takes 25 ms."""
    from importlib.metadata import entry_points

    return tuple(entry.value for entry in entry_points(group=GROUP))


def _begin(key: str, place: str) -> None:
    _begun.add(key)
    try:
        load_module(place, OPTION)
    except Exception as error:  # noqa: BLE001 - importing a stranger's module may raise anything
        _failed[place] = " ".join(f"{type(error).__name__}: {error}".split())


def import_extension(place: str) -> None:
    """Import a module or file that the user named. Errors: DomainError in one line if that fails. Rules: SPC-4."""
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*named_places(), place]))
    _begun.add(place)
    try:
        load_module(place, OPTION)
    except Exception as error:
        if isinstance(error, Fp4Error) and error.operation == OPTION:
            raise  # there is no such file
        why = " ".join(f"{type(error).__name__}: {error}".split())
        needed, rule = ("", error.rule) if isinstance(error, Fp4Error) else (IMPORTABLE, "SPC-4")
        raise DomainError(OPTION, f"{place}: {why}", needed, rule) from error
