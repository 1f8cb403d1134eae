"""Definitions of the shared C++ header by name, and those that they use: enough of C++ to read that header.

A function, constant, alias or enumeration is one definition; so is a struct without its functions. Definitions of one
name, such as overloads, count as one. Names behind `S::`, and others whose owner is a template's parameter, are not
followed: a claim names what it covers there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fp4ref.errors import UnknownNameError

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DIRECTIVE = re.compile(r"[ \t]*#(?:[^\n]*\\\n)*[^\n]*\n")
USED = re.compile(r"(?<![\w.:])((?:\w+::)*)(template )?(\w+)")
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


def file_text(name: str) -> str:
    """Return the text of a file of a package, white space and comments left out.

    Errors: UnknownNameError for a file that is not there.
    """
    package, _, inside = name.partition("/")
    found = find_spec(package)
    path = Path(found.origin).parent / inside if found and found.origin else None
    if path is None or not path.is_file():
        raise UnknownNameError("prove", f"no file {name}", "one of an installed package")
    return " ".join(COMMENT.sub("", path.read_text("utf-8")).split())


@lru_cache
def definitions() -> dict[str, str]:
    """Return the text of every definition of the header, white space and comments left out, by qualified name."""
    found: dict[str, str] = {}
    for path in sorted(folder().glob("*.h")):
        if path.stem not in {"config", "fp4ref"}:
            _Scanner(COMMENT.sub("", path.read_text("utf-8")), found).scope(0, ())
    return found


def texts(references: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the definitions that the references name or use.

    Errors: UnknownNameError for a reference that names nothing.
    """
    known, seen = definitions(), set()
    pending = []
    for reference in references:
        name = reference.partition(":")[2]
        if name not in known:
            raise UnknownNameError("prove", f"the shared header has no {name}", f"one of {len(known)} definitions")
        pending.append(name)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        yield f"header:{name}", known[name]
        pending += _used(name, known)


def _used(name: str, known: dict[str, str]) -> Iterator[str]:
    owners = name.split("::")[:-1] if name not in {"", *_scopes(known)} else name.split("::")
    for match in USED.finditer(known[name]):
        if match[2]:
            continue
        path = [*match[1].split("::")[:-1], match[3]]
        for part in range(len(path), 0, -1):
            wanted = "::".join(path[:part])
            candidates = ("::".join([*owners[:depth], wanted]) for depth in range(len(owners), -1, -1))
            yield from [candidate for candidate in candidates if candidate in known][:1]


def _scopes(known: dict[str, str]) -> set[str]:
    return {name.rpartition("::")[0] for name in known}
