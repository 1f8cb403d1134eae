"""The names of specifications: ours, other implementations', and those that a user registers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from fp4ref.errors import DomainError, UnknownNameError
from fp4ref.spec import Spec


class Catalogue(Mapping[str, Spec]):
    """Specifications by name, each with a note on where its numbers come from.

    Rules: SPC-4, SPC-5.
    """

    def __init__(self) -> None:
        self._specs: dict[str, Spec] = {}
        self._sources: dict[str, str] = {}

    def register(self, spec: Spec, source: str = "") -> Spec:
        """Add a specification under its own name; third parties use `vendor.name`. Returns it."""
        if self._specs.get(spec.name, spec) != spec:
            raise DomainError("register", f"{spec.name} twice with other settings", "a new name", "SPC-4")
        self._specs[spec.name] = spec
        self._sources[spec.name] = source
        return spec

    def source(self, name: str) -> str:
        """Where the numbers of a profile come from, and how far that was checked."""
        return self._sources[self[name].name]

    def __getitem__(self, name: str) -> Spec:
        if name not in self._specs:
            near = difflib.get_close_matches(str(name), self._specs, n=3) or ["see `fp4ref profiles`"]
            raise UnknownNameError(
                "profile", f"unknown name {name!r}", f"a registered one ({', '.join(near)})", "SPC-4"
            )
        return self._specs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


PROFILES = Catalogue()


def resolve(spec: Spec | str) -> Spec:
    """A specification, or the one of that name."""
    return spec if isinstance(spec, Spec) else PROFILES[spec]
