"""Names that a user selects by patterns, and how many there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import click

from fp4ref.errors import DomainError


def is_pattern(text: str) -> bool:
    """Return True if a selection can match many names."""
    return any(character in text for character in "*?[")


def select(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that a pattern matches, or all without one; a pattern that matches none is an error."""
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
            raise DomainError("tensors", f"nothing matches {pattern!r}", f"names like {some}" if names else "tensors")
    return [name for name in names if not patterns or any(matches(name, pattern) for pattern in patterns)]


def listed(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that a list's pattern matches; where none does, say on stderr how to ask for a part of one."""
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        part = "" if is_pattern(pattern) else f"; --match '*{pattern}*' lists the names that contain it"
        click.echo(f"no name matches {pattern!r}{part}", err=True)
    return found


def matches(name: str, pattern: str) -> bool:
    """Return True if a name is the pattern, or fits it; `*` takes dots too."""
    return name == pattern or fnmatchcase(name, pattern)


def tensor_count(count: int) -> str:
    """Return a number of tensors in words."""
    return f"{count} tensor{'' if count == 1 else 's'}"
