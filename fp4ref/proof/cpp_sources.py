"""Definitions of the shared C++ header by name, and those that they use: enough of C++ to read that header.

A function, constant, alias, macro or enumeration is one definition; so is a struct without its functions. Definitions
of one name, such as overloads, count as one. The owner of a name behind a dot or behind a template's parameter is not
known to a reader: every definition of that name is used, of the arithmetics only those that a claim names, or that its
lowered specifications name, with their bases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fp4ref.errors import UnknownNameError

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DIRECTIVE = re.compile(r"[ \t]*#(?:[^\n]*\\\n)*[^\n]*\n")
MACRO = re.compile(r"\s*#\s*define\s+(\w+)")
INCLUDED = re.compile(r'#include "([^"]+)"')
USED = re.compile(r"((?:\w+::)*)(?:template )?\b([A-Za-z_]\w*)")
HEADER = "header"  # before the names of its definitions
CHOSEN = "arithmetic"  # the scope whose structs a claim chooses among
OPENED = {"{": "}", "(": ")", "[": "]"}


class _Scanner(NamedTuple):
    text: str
    found: dict[str, str]

    def scope(self, at: int, owners: tuple[str, ...]) -> int:
        """Read declarations from a place to the brace that ends their scope; return the place behind it."""
        kept = []
        while at < len(self.text):
            if self.text[at].isspace() or self.text[at] == ";":
                at += 1
            elif self.text[at] == "}":
                break
            elif directive := DIRECTIVE.match(self.text, at):
                at = directive.end()
                if macro := MACRO.match(directive[0]):
                    self.add((macro[1],), directive[0])
            else:
                at, rest = self.declaration(at, owners)
                kept.append(rest)
        if owners:
            self.add(owners, " ".join(part for part in kept if part))
        return at + 1

    def declaration(self, start: int, owners: tuple[str, ...]) -> tuple[int, str]:
        """Read one declaration; return the place behind it, and its text if it belongs to the scope itself."""
        at = start
        while self.text[at] not in ";{":
            at = self.closed(at) if self.text[at] in "([" else at + 1
        head = _without_parameters(self.text[start:at])
        scope = re.match(r"(?:namespace|struct)\s+(?:alignas\(\d+\)\s*)?(\w+)", head)
        if self.text[at] == "{" and scope:
            inside = () if scope[1] == "fp4ref" else (*owners, scope[1])
            if not head.startswith("namespace"):
                self.add(inside, self.text[start:at])
            return self.scope(at + 1, inside), ""
        function = self.text[at] == "{" and "(" in head and "=" not in head.partition("(")[0]
        end = self.closed(at) if function else self.semicolon(at)
        text = self.text[start:end]
        name = _named(head, function)
        if name:
            self.add((*owners, name), text)
        return end, "" if function else text

    def add(self, names: tuple[str, ...], text: str) -> None:
        name = "::".join(names)
        self.found[name] = " ".join([*self.found.get(name, "").split(), *text.split()])

    def closed(self, at: int) -> int:
        """Return the place behind the bracket that closes the one at a place."""
        depth = 0
        for place in range(at, len(self.text)):
            depth += (self.text[place] in OPENED) - (self.text[place] in OPENED.values())
            if not depth:
                return place + 1
        return len(self.text)

    def semicolon(self, at: int) -> int:
        while self.text[at] != ";":
            at = self.closed(at) if self.text[at] in OPENED else at + 1
        return at + 1


def _without_parameters(head: str) -> str:
    """Return a declaration's head without `template <...>` in front."""
    while head.startswith("template"):
        depth, at = 0, head.index("<")
        for at in range(head.index("<"), len(head)):
            depth += (head[at] == "<") - (head[at] == ">")
            if not depth:
                break
        head = head[at + 1 :].lstrip()
    return head


def _named(head: str, function: bool) -> str:
    """Return the name that a declaration's head declares."""
    if function or ("(" in head and "=" not in head):
        found = re.search(r"(\w+)\s*\($", head[: head.index("(") + 1])
    else:
        found = re.search(r"(\w+)\s*(?:<[^=]*>)?\s*(?:\[[^\]]*\]\s*)?$", head.partition("=")[0].rstrip())
    return found[1] if found else ""


def folder() -> Path:
    """Return the folder of the shared header."""
    found = find_spec("fp4ref_numerics")
    if found is None or found.origin is None:
        raise UnknownNameError("prove", "no shared header", "fp4ref_numerics, installed")
    return Path(found.origin).parent / "include" / "fp4ref"


def _file(name: str) -> Path:
    """Return the path of a file of a package.

    Errors: UnknownNameError for a file that is not there.
    """
    package, _, inside = name.partition("/")
    found = find_spec(package)
    path = Path(found.origin).parent / inside if found and found.origin else None
    if path is None or not path.is_file():
        raise UnknownNameError("prove", f"no file {name}", "one of an installed package")
    return path


@cache
def definitions() -> dict[str, str]:
    """Return the text of every definition of the header, white space and comments left out, by qualified name."""
    found: dict[str, str] = {}
    for names in _by_file().values():
        for name, text in names.items():
            found[name] = " ".join(part for part in (found.get(name), text) if part)
    return found


def files_of(name: str) -> list[str]:
    """Return the names of the header's files that have a part of a definition."""
    return [file for file, names in _by_file().items() if name in names]


@cache
def _by_file() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder().glob("*.h")):
        if path.stem != "fp4ref":
            _Scanner(COMMENT.sub("", path.read_text("utf-8")), found.setdefault(path.name, {})).scope(0, ())
    return found


def texts(references: tuple[str, ...], lowered: dict[str, str], checks: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of the definitions that the references name or use; a whole file has the name of its path.

    lowered: texts by name, which use definitions as files do. checks: C++ that uses them, and is not yielded.

    Errors: UnknownNameError for a reference that names nothing.
    """
    known, seen = definitions(), set()
    pending = [name.partition(":")[2] for name in references if ":" in name]
    unknown = [name for name in pending if name not in known]
    if unknown:
        raise UnknownNameError("prove", f"the shared header has no {unknown[0]}", f"one of {len(known)} definitions")
    chosen = _with_bases(set(re.findall(rf"\b{CHOSEN}::(\w+)", " ".join([*pending, *lowered.values(), checks]))))
    pending += _used("", checks, chosen)
    for name, text in (*lowered.items(), *_files([name for name in references if ":" not in name])):
        yield name, " ".join(text.split())
        pending += _used("", text, chosen)
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            yield f"{HEADER}:{name}", known[name]
            pending += _used(name, known[name], chosen)
            pending += [scope for scope in (name.rpartition("::")[0],) if scope in known]


def _files(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of files and of those that they include from their own folder, comments left out."""
    pending, seen = [*names], set()
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            text = COMMENT.sub("", _file(name).read_text("utf-8"))
            yield name, text
            pending += [f"{name.rpartition('/')[0]}/{included}" for included in INCLUDED.findall(text)]


def _with_bases(structs: set[str]) -> frozenset[str]:
    """Return names of arithmetics and of the structs that they inherit from, alias, or name in their functions."""
    known, found, pending = definitions(), set[str](), {*structs}
    while pending:
        name = pending.pop()
        found.add(name)
        own = [text for path, text in known.items() if path.split("::")[:2] == [CHOSEN, name]]
        words = set(re.findall(r"\w+", " ".join(own)))
        pending |= {word for word in words if f"{CHOSEN}::{word}" in known} - found
    return frozenset(found)


@cache
def _by_last_name() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in definitions():
        found.setdefault(name.rpartition("::")[2], []).append(name)
    return found


def _used(name: str, text: str, chosen: frozenset[str]) -> Iterator[str]:
    """Yield the definitions that a text uses; name is its own, which says the scope that it is in."""
    return (found for found, arithmetic in _meant(name, text) if arithmetic is None or arithmetic in chosen)


@cache
def _meant(name: str, text: str) -> tuple[tuple[str, str | None], ...]:
    """Return the definitions that names in a text may mean, each with the arithmetic that has to be chosen, if any."""
    return tuple(dict.fromkeys(part for match in USED.finditer(text) for part in _candidates(name, text, match)))


def _candidates(name: str, text: str, match: re.Match[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the definitions that one name in a text may mean, as `_meant` does."""
    known = definitions()
    owners = name.split("::")[:-1] if name not in {"", *_scopes()} else name.split("::")
    path = [*match[1].split("::")[:-1], match[2]]
    if text[match.start() - 1 : match.start()] not in {".", ">"}:
        for part in range(len(path), 0, -1):
            wanted = "::".join(path[:part])
            candidates = ("::".join([*owners[:depth], wanted]) for depth in range(len(owners), -1, -1))
            scoped = [(candidate, None) for candidate in candidates if candidate in known][:1]
            yield from scoped
            if scoped and part == len(path):
                return
    for found in _by_last_name().get(path[-1], ()):
        scope, _, rest = found.partition("::")
        yield found, rest.partition("::")[0] if scope == CHOSEN else None


@cache
def _scopes() -> frozenset[str]:
    return frozenset(name.rpartition("::")[0] for name in definitions())
