"""Definitions of Python modules by name, and those that they use, found by reading syntax trees.

The class of an object is not known to a reader. So a covered definition uses, by `.name`, every method of that name of
every covered class, its own and inherited ones; and each covered class uses its methods with two underscores, which no
text names. A constant counts with all statements of its module that change it.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from fp4ref.errors import UnknownNameError
from fp4ref.proof.syntax import dotted, nested, statements, walk

PACKAGES = ("fp4ref", "fp4ref_torch", "fp4ref_numerics")  # whose definitions are followed
# What runs claims, looks values up by name, checks or names them, or passes arrays on; it computes no byte.
HARNESS = (
    *("fp4ref.proof.claims", "fp4ref.proof.native", "fp4ref.errors", "fp4ref.names", "fp4ref.remembered"),
    *("fp4ref.api", "fp4ref.arguments", "fp4ref.arrays", "fp4ref.catalogue", "fp4ref.memory", "fp4ref.quantized"),
    *("fp4ref.layout.registry", "fp4ref.plans", "fp4ref.registry", "fp4ref.operands", "fp4ref_torch"),
    *(
        "fp4ref_numerics.cache",
        "fp4ref.spec_json",
        "fp4ref.spec:SPEC_VERSION",
        "fp4ref.spec:from_json",
        "fp4ref.spec:_coerce",
        "fp4ref.spec:_require_legal",
    ),
)
Part = tuple[str, str]  # a module, and a name in it


def texts(references: tuple[str, ...]) -> dict[str, str]:
    """Return the text of each definition that the references name or use, by reference.

    Errors: UnknownNameError for a reference that names nothing.
    """
    found: dict[str, str] = {}
    named: set[str] = set()  # behind a dot, in any covered definition
    classes: dict[Part, dict[str, list[ast.stmt]]] = {}  # the methods of each covered class
    used: list[Part] = []
    pending = [_part(reference) for reference in references]
    while pending:
        for module, name in pending:
            if f"{module}:{name}" in found:
                continue
            found[f"{module}:{name}"] = _text(module, name)
            attributes, uses = _used(module, name)
            named |= attributes
            used += uses
            owner = name.partition(".")[0]
            if _is_class(module, owner):
                classes |= {(module, owner): _methods(module, owner)}
                used.append((module, owner))
        called = [
            (module, f"{owner}.{method}")
            for (module, owner), methods in classes.items()
            for method in methods
            if method in named or method.startswith("__")
        ]
        pending = [part for part in dict.fromkeys((*used, *called)) if ":".join(part) not in found]
        used = []
    return found


@cache
def strings(reference: str) -> str:
    """Return the strings in a definition, one a line."""
    nodes = (node for node in _inside(*_part(reference)) if isinstance(node, ast.Constant))
    return "\n".join(node.value for node in nodes if isinstance(node.value, str))


def _part(reference: str) -> Part:
    module, _, name = reference.partition(":")
    return module, name


@cache
def find_module(module: str) -> ModuleSpec | None:
    """Find a module without importing its packages: they may need a library that is not installed."""
    package, _, name = module.rpartition(".")
    if not package:
        return find_spec(name)
    above = find_module(package)
    places = above.submodule_search_locations if above is not None else None
    return PathFinder.find_spec(module, places) if places is not None else None  # without places, it searches sys.path


@cache
def _source(module: str) -> str:
    found = find_module(module)
    if found is None or found.origin is None:
        raise UnknownNameError("prove", f"no module {module}", "an installed one")
    return Path(found.origin).read_text("utf-8")


@cache
def _source_lines(module: str) -> tuple[str, ...]:
    return tuple(_source(module).splitlines())


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


@cache
def _definitions(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module that define or change each name."""
    found: dict[str, list[ast.stmt]] = {}
    for node in statements(_tree(module).body):
        for name in _changed(node):
            found.setdefault(name, []).append(node)
    return found


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module defines, assigns parts of, or calls methods of."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return
    calls = isinstance(node, (ast.Expr, ast.For))
    names = set()
    for part in walk(node):
        owner = getattr(part, "value", None)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            names.add(part.id)
        elif isinstance(owner, ast.Name) and (
            (isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store))
            or (isinstance(part, ast.Attribute) and calls)
        ):
            names.add(owner.id)
    yield from sorted(names)


@cache
def _imports(module: str) -> dict[str, Part]:
    """Return each imported name with its module and its name there, which is empty for a module."""
    found = {}
    for node in nested(_tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            for alias in node.names:
                child = f"{node.module}.{alias.name}"
                found[alias.asname or alias.name] = (
                    (child, "") if _is_module(child) else (node.module or "", alias.name)
                )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in PACKAGES:
                    found[alias.asname or alias.name] = (alias.name, "")
    return found


@cache
def imported(modules: tuple[str, ...]) -> frozenset[str]:
    """Return the modules of fp4ref that some modules import, and those that these import: those that compute bytes."""
    found: set[str] = set()
    pending = [*modules]
    while pending:
        module = pending.pop()
        if module not in found:
            found.add(module)
            parts = {part for source, name in _imports(module).values() for part in (source, f"{source}.{name}")}
            pending += [
                part for part in parts if part not in HARNESS and part.startswith("fp4ref.") and _is_module(part)
            ]
    return frozenset(found)


@cache
def _is_module(name: str) -> bool:
    return find_module(name) is not None


def _is_class(module: str, name: str) -> bool:
    return any(isinstance(node, ast.ClassDef) for node in _definitions(module).get(name, ()))


@cache
def _methods(module: str, owner: str) -> dict[str, list[ast.stmt]]:
    """Return the functions of a class; those of one name, such as a property's, together."""
    found: dict[str, list[ast.stmt]] = {}
    for node in _definitions(module)[owner]:
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(part, ast.FunctionDef):
                found.setdefault(part.name, []).append(part)
    return found


def _nodes(module: str, name: str) -> list[ast.stmt]:
    first, _, rest = name.partition(".")
    nodes = _definitions(module).get(first, [])
    if rest and nodes:
        nodes = _methods(module, first).get(rest, [])
    if not nodes:
        raise UnknownNameError("prove", f"{module} has no {name}", "a function, class or constant of it")
    return nodes


@cache
def _text(module: str, name: str) -> str:
    """Return the definition's lines without comments, docstrings and blank lines; a class without its methods."""
    return "\n".join(_lines_of(module, node) for node in _nodes(module, name))


def _lines_of(module: str, node: ast.stmt) -> str:
    lines = _source_lines(module)
    dropped: set[int] = set()
    for part in nested(node):
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part) is not None:
            dropped |= _lines(part.body[0])
    for method in node.body if isinstance(node, ast.ClassDef) else ():
        dropped |= _lines(method) if isinstance(method, ast.FunctionDef) else set()
    kept = "\n".join(lines[i - 1] for i in sorted(_lines(node) - dropped))
    return "\n".join(line.rstrip() for line in _without_comments(kept) if line.strip())


def _lines(node: ast.stmt) -> set[int]:
    decorators = getattr(node, "decorator_list", [])
    return set(range(min([node.lineno, *(part.lineno for part in decorators)]), (node.end_lineno or node.lineno) + 1))


def _without_comments(text: str) -> list[str]:
    lines = text.splitlines()
    if "#" not in text:
        return lines
    try:
        for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    except (tokenize.TokenError, IndentationError):  # a class without its methods need not be a whole statement
        pass
    return lines


@cache
def _used(module: str, name: str) -> tuple[frozenset[str], tuple[Part, ...]]:
    """Return the names behind dots in a definition, and the definitions that it uses by name."""
    imports, attributes, used = _imports(module), set(), []
    for part in _inside(module, name):
        if isinstance(part, ast.Name):
            used += _resolved(module, part.id)
        elif isinstance(part, ast.Attribute):
            attributes.add(part.attr)
            owner, its = imports.get(dotted(part.value), ("", "?"))
            if not its:
                used += _resolved(owner, part.attr)
    return frozenset(attributes), tuple(dict.fromkeys(used))


def _inside(module: str, name: str) -> Iterator[ast.AST]:
    """Yield the nodes of a definition; those of a class without its methods."""
    for node in _nodes(module, name):
        body = node.body if isinstance(node, ast.ClassDef) else ()
        yield from walk(node, frozenset(id(part) for part in body if isinstance(part, ast.FunctionDef)))


def _resolved(module: str, name: str) -> list[Part]:
    """Return the definition of a name, followed through modules that only pass it on; nothing if it is not ours."""
    if module.partition(".")[0] not in PACKAGES:
        return []
    if name in _definitions(module):
        return [] if module in HARNESS or f"{module}:{name}" in HARNESS else [(module, name)]
    where, its = _imports(module).get(name, ("", ""))
    return _resolved(where, its) if its else []
