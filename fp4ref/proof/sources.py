"""The definitions that a claim covers, found by reading sources: those that it names, and those that these use.

A digest of a definition does not change with comments, docstrings, blank lines or the definitions around it. A
reference is `package.module:name` or `package.module:Class.method` in Python, `file.h:name` or `file.h:struct::name` in
the shared header, or `package/folder/file.h`, a whole file in C++. A class that is used by name counts without its
methods: a claim names the methods that it covers.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from fp4ref.errors import UnknownNameError
from fp4ref.proof import cpp_sources

PACKAGES = ("fp4ref", "fp4ref_torch")  # whose definitions are followed
# Modules that run claims, or pass calls and arrays on; a replay runs them, and they compute no byte.
HARNESS = (
    *("fp4ref.proof.claims", "fp4ref.proof.native", "fp4ref.errors"),
    *("fp4ref.api", "fp4ref.arguments", "fp4ref.arrays", "fp4ref.catalogue", "fp4ref.memory", "fp4ref.quantized"),
)
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def digests(references: tuple[str, ...]) -> dict[str, str]:
    """Return a digest of each definition that the references name or use, by reference.

    Errors: UnknownNameError for a reference that names nothing.
    """
    headers = tuple(name for name in references if ".h:" in name)
    found = dict(cpp_sources.texts(headers)) if headers else {}
    found |= {name: cpp_sources.file_text(name) for name in references if ":" not in name}
    pending = [name for name in references if ":" in name and ".h:" not in name]
    while pending:
        reference = pending.pop()
        if reference not in found:
            module, _, name = reference.partition(":")
            found[reference] = _text(module, name)
            pending += _used(module, name)
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in sorted(found.items())}


def total(parts: dict[str, str]) -> str:
    """Return one digest of all."""
    return hashlib.sha256("\n".join(f"{name} {part}" for name, part in sorted(parts.items())).encode()).hexdigest()[:32]


@lru_cache
def _source(module: str) -> str:
    found = find_spec(module)
    if found is None or found.origin is None:
        raise UnknownNameError("prove", f"no module {module}", "an installed one")
    return Path(found.origin).read_text("utf-8")


@lru_cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


@lru_cache
def _definitions(module: str) -> dict[str, Definition]:
    found: dict[str, Definition] = {}
    for node in _tree(module).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


@lru_cache
def _imports(module: str) -> dict[str, str]:
    """Return references by the names under which they are imported; a module's has no name after the colon."""
    found = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            for alias in node.names:
                child = f"{node.module}.{alias.name}"
                found[alias.asname or alias.name] = f"{child}:" if _is_module(child) else f"{node.module}:{alias.name}"
    return found


@lru_cache
def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _node(module: str, name: str) -> Definition:
    first, _, rest = name.partition(".")
    node = _definitions(module).get(first)
    if rest and isinstance(node, ast.ClassDef):
        node = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == rest), None)
    if node is None:
        raise UnknownNameError("prove", f"{module} has no {name}", "a function, class or constant of it")
    return node


def _text(module: str, name: str) -> str:
    """Return the definition's lines without comments, docstrings and blank lines; a class without its methods."""
    node = _node(module, name)
    lines = _source(module).splitlines()
    dropped: set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part) is not None:
            dropped |= _lines(part.body[0])
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            dropped |= _lines(method) if isinstance(method, ast.FunctionDef) else set()
    kept = "\n".join(lines[i - 1] for i in sorted(_lines(node) - dropped))
    return "\n".join(line.rstrip() for line in _without_comments(kept) if line.strip())


def _lines(node: ast.stmt) -> set[int]:
    decorators = getattr(node, "decorator_list", [])
    return set(range(min([node.lineno, *(part.lineno for part in decorators)]), (node.end_lineno or node.lineno) + 1))


def _without_comments(text: str) -> list[str]:
    lines = text.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    except (tokenize.TokenError, IndentationError):  # a class without its methods need not be a whole statement
        pass
    return lines


def _used(module: str, name: str) -> Iterator[str]:
    """Yield references of what a definition uses, within the packages that are followed."""
    definitions, imports, owner = _definitions(module), _imports(module), name.partition(".")[0]
    node = _node(module, name)
    methods = (
        [part for part in node.body if isinstance(part, ast.FunctionDef)] if isinstance(node, ast.ClassDef) else []
    )
    skipped = {id(part) for method in methods for part in ast.walk(method)}
    for part in ast.walk(node):
        reference = None
        if id(part) in skipped:
            continue
        if isinstance(part, ast.Name):
            reference = imports.get(part.id) or (f"{module}:{part.id}" if part.id in definitions else None)
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            base = imports.get(part.value.id, "")
            if base.endswith(":") and part.attr in _definitions(base[:-1]):
                reference = base + part.attr
            elif part.value.id == "self" and "." in name and _has(module, owner, part.attr):
                reference = f"{module}:{owner}.{part.attr}"
        if reference and not reference.endswith(":") and reference.partition(":")[0] not in HARNESS:
            yield from _resolved(reference)


def _has(module: str, owner: str, attribute: str) -> bool:
    node = _definitions(module).get(owner)
    return isinstance(node, ast.ClassDef) and any(
        isinstance(part, ast.FunctionDef) and part.name == attribute for part in node.body
    )


def _resolved(reference: str) -> Iterator[str]:
    """Yield a reference, followed through modules that only pass a name on; nothing if it is not defined in Python."""
    module, _, name = reference.partition(":")
    if name.partition(".")[0] in _definitions(module):
        yield reference
    elif name in _imports(module) and not _imports(module)[name].endswith(":"):
        yield from _resolved(_imports(module)[name])
