"""The definitions that a claim covers, found by reading sources: those that it names, and those that these use.

A digest of a definition does not change with comments, docstrings, blank lines or the definitions around it. A
reference is `package.module:name` or `package.module:Class.method` in Python, `file.h:name` or `file.h:struct::name` in
the shared header, `package/folder/file.h`, a whole file in C++ with what it includes and uses of the header, or
`lowered:SPEC`, the text to which a specification is lowered for C++.
"""

from __future__ import annotations

import hashlib
from functools import cache

import fp4ref_numerics
from fp4ref.catalogue import resolve
from fp4ref.proof import cpp_sources, python_sources

LOWERED = "lowered:"
CHECKS = "fp4ref.proof."  # modules whose strings are C++ that calls the header


def digests(references: tuple[str, ...]) -> dict[str, str]:
    """Return a digest of each definition that the references name or use, by reference.

    Errors: UnknownNameError for a reference that names nothing.
    """
    lowered = {
        name: fp4ref_numerics.lower(resolve(name.removeprefix(LOWERED)))
        for name in references
        if name.startswith(LOWERED)
    }
    native = tuple(name for name in references if name not in lowered and (".h:" in name or ":" not in name))
    found = python_sources.texts(tuple(name for name in references if name not in {*native, *lowered}))
    checks = "\n".join(python_sources.strings(name) for name in found if name.startswith(CHECKS)) if native else ""
    found |= dict(cpp_sources.texts(native, lowered, checks))
    return {name: digest(text) for name, text in sorted(found.items())}


@cache
def digest(text: str) -> str:
    """Return a digest of the text of one definition."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def total(parts: dict[str, str]) -> str:
    """Return one digest of all, the same wherever they are: names count without modules and files."""
    named = sorted(f"{name.rpartition(':')[2]} {part}" for name, part in parts.items())
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:32]


def by_file(parts: dict[str, str]) -> dict[str, str]:
    """Return one digest of the definitions of each module, file or lowered specification, by its name."""
    found: dict[str, dict[str, str]] = {}
    for name, part in parts.items():
        found.setdefault("+".join(places(name)), {})[name] = part
    return {place: total(inside)[:16] for place, inside in sorted(found.items())}


def places(name: str) -> list[str]:
    """Return the modules or files with a definition that `digests` names; a lowered specification is its own."""
    if name.startswith(LOWERED) or ":" not in name:
        return [name]
    place, _, inside = name.partition(":")
    return cpp_sources.files_of(inside) if place == cpp_sources.HEADER else [place]
