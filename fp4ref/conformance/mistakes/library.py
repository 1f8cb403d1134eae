"""The library of mistakes: those of this project, then those that users register."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from fp4ref.conformance.mistakes.record import Mistake
from fp4ref.errors import DomainError
from fp4ref.names import Names, has_vendor


class MistakeLibrary(Sequence[Mistake]):
    """Known mistakes in the order in which they are tried. own: those of this project."""

    def __init__(self, own: tuple[Mistake, ...]) -> None:
        self._own = own
        self._names = {mistake.name for mistake in own}
        self._added: Names[Mistake] = Names("mistake")

    def register(self, mistake: Mistake, source: str = "") -> Mistake:
        """Add a mistake, which every later diagnosis tries, and return it. source: where it was seen.

        Errors: DomainError if another mistake has its name, or if its name has no vendor.

        Rules: SPC-21, SPC-22.
        """
        if mistake.name in self._names:
            raise DomainError("register", f"mistake {mistake.name} twice with other settings", "a new name", "SPC-21")
        if not has_vendor(mistake.name):
            raise DomainError("register", f"mistake {mistake.name!r}", "a name of the form vendor.name", "SPC-22")
        return self._added.register(mistake, source)

    def source(self, name: str) -> str:
        """Return where a mistake that was registered was seen; empty for those of this project."""
        return "" if name in self._names else self._added.source(name)

    def forget(self, name: str) -> None:
        """Remove a mistake that was registered, as a test does at its end."""
        self._added.forget(name)

    def __iter__(self) -> Iterator[Mistake]:
        yield from self._own
        yield from self._added.values()

    def __len__(self) -> int:
        return len(self._own) + len(self._added)

    @overload
    def __getitem__(self, index: int) -> Mistake: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Mistake, ...]: ...

    def __getitem__(self, index: int | slice) -> Mistake | tuple[Mistake, ...]:
        """Return one mistake, or some."""
        return tuple(self)[index]
