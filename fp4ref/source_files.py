"""Source files and the definitions in them: Python as syntax trees, C++ and CUDA as text."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path

NAMED = re.compile(r"\b(?:struct|class)\s+(\w+)|\busing\s+(\w+)\s*=|\b((?!__)\w+)\s*\(")
PARAMETERS = re.compile(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>")  # of a template: they name nothing that is declared
Kinds = type[ast.AST] | tuple[type[ast.AST], ...]
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)  # where definitions are


def sources(folder: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder with one of these suffixes, and their text, in order."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and path.is_file():
            yield path, path.read_text("utf-8")


def declared(source: str) -> str:
    """Return the name that the paragraph behind a comment declares; empty for a preprocessor line or a blank one."""
    paragraph = PARAMETERS.sub("", source.removeprefix("\n").split("\n\n", 1)[0])
    named = None if paragraph.lstrip().startswith("#") else NAMED.search(paragraph)
    return next(filter(None, named.groups())) if named else ""


def named_nodes(
    node: ast.AST, kinds: Kinds = ast.AST, wanted: Callable[[ast.AST], bool] = lambda node: True
) -> Iterator[tuple[ast.AST, str]]:
    """Yield every node below nodes of these kinds, in order, with the dotted name of the definition that it belongs to.

    A decorator belongs to what it marks. wanted: false for a node below which nothing is looked for.
    """
    pending = [(node, "")]  # a stack: nested generators would take three times as long
    while pending:
        node, name = pending.pop()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{name}.{node.name}" if name else node.name
        yield node, name
        children = [(child, name) for child in ast.iter_child_nodes(node) if isinstance(child, kinds) and wanted(child)]
        pending += children[::-1]


def on_lines_with(text: str, source: str) -> Callable[[ast.AST], bool]:
    """Return the function that is false for a node without a line with a text, decorators included."""
    found = [number for number, line in enumerate(source.split("\n"), 1) if text in line]

    def wanted(node: ast.AST) -> bool:
        if not hasattr(node, "lineno"):
            return True
        parts = (node, *getattr(node, "decorator_list", ()))
        at = bisect_left(found, min(part.lineno for part in parts))
        return at < len(found) and found[at] <= getattr(node, "end_lineno", 0)

    return wanted
