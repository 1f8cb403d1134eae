"""The code of one rule by what it is for: what computes the bytes, then what checks, proves, draws or uses them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fp4ref import rules
from fp4ref.rules import Citation, Index, Tree
from fp4ref.source_files import sources

MODEL = "functions"  # the golden model, and the values that hold its numbers
ROOMS = {  # folders of the package; the first that holds a file decides, and others belong to the golden model
    "conformance/oracle": "oracle",
    "conformance": "kit",
    "proof": "proofs",
    "theorems": "proofs",
    "diagrams": "figures",
    "explorer": "figures",
    "checkpoints": "tools",
    "cli": "tools",
    "standard": "tools",
    "te": "tools",
}
ORDER = (MODEL, "oracle", "kit", "proofs", "figures", "tools")


def by_room(index: Index, rule: str, tree: Tree | None = None) -> dict[str, list[Citation]]:
    """Return the functions of the package that cite a rule, by room; the golden model's begin with its values."""
    tree = tree or rules.here()
    found: dict[str, list[Citation]] = {room: [] for room in ORDER}
    found[MODEL] += values(tree, rule)
    for each in index.citing(rule)["functions"]:
        found[_room(each.place.removeprefix(f"{tree.package.name}/"))].append(each)
    return found


def values(tree: Tree, rule: str) -> Iterator[Citation]:
    """Yield the values of the golden model that are made with a rule's ID, such as a layout and its digits."""
    for path, source in sources(tree.package, (".py",)):
        if f'"{rule}"' not in source or _room(path.relative_to(tree.package).as_posix()) != MODEL:
            continue
        for statement in ast.parse(source).body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                yield from _made_with(rule, statement, path, tree)


def _made_with(rule: str, statement: ast.Assign | ast.AnnAssign, path: Path, tree: Tree) -> Iterator[Citation]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    name = ", ".join(ast.unparse(target) for target in targets)
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant) and node.value == rule:
            yield Citation(rule, f"{path.relative_to(tree.package.parent).as_posix()}:{node.lineno}", name)


def _room(path: str) -> str:
    """Return the room of a file, by its path in the package."""
    return next((room for folder, room in ROOMS.items() if Path(folder) in Path(path).parents), MODEL)
