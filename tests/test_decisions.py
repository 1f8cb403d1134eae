"""The kit decides by fields, enums and values of records, not by the beginnings, ends or parts of names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fp4ref

KIT = Path(fp4ref.__file__).parent / "conformance"
CUTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"}
SPLITS = {"split", "rsplit"}
MATCHES = {"match", "search", "fullmatch", "fnmatch", "fnmatchcase"}
ALONE = {"fnmatch", "fnmatchcase"}  # without a module before it
NAMED = {"name", "id", "rule", "case", "family", "stage", "text", "place", "label", "profile"}

# Functions that read text which somebody else writes, or only show text.
ALLOWED = {
    "a name that a user writes": {
        "families:family_of",
        "families:seed_of",
        "judge.coverage:required",
        "run.libraries:library",
        "run.recent:recall",
        "subjects.library.binding:bind",
        "subjects.loading:load",
        "verdict.sweep_store:_digest",
        "verdict.sweep_store:_module",
    },
    "a file that a user writes": {
        "dumps.cases:parse",
        "dumps.files:_Tensor.__init__",
        "dumps.files:_split",
        "explain.notation:_number",
        "explain.notation:_token",
        "subjects.library.signature:names",
        "verdict.expected:read_expected_failures",
        "verdict.statement_check:violations",
    },
    "the standard's vectors, and recordings of other programs": {
        "vectors.export:_listed",
        "vectors.files:problems",
        "vectors.sources.products:product",
        "vectors.sources.recorded",
    },
    "what the system, torch or a program tells": {
        "run.machine:processor",
        "run.stream:is_stream",
        "run.waiting:counts_of",
    },
    "the keys of a message of this program": {"run.messages:_of"},
    "the words of a docstring": {"explain.formulas:cited", "explain.formulas:formula"},
    "text that is shown": {
        "diagnosis.dumps:_counted.of",
        "diagnosis.measured.transform:kind_of",
        "explain.formulas:decimal",
        "reports.drawing:of_drawing",
        "reports.html:_cell",
        "reports.html:_table",
    },
}


def decisions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, int]]:
    """Yield the functions, and the lines, in which a text is cut, matched, or looked for in a name."""
    for node in ast.iter_child_nodes(tree):
        if _cuts(node):
            yield owner, node.lineno  # type: ignore[attr-defined]
        scope = f"{owner}.{node.name}".lstrip(".") if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else owner
        yield from decisions(node, scope)


def _cuts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        at = node.func.attr in SPLITS and bool(node.args) and _is_text(node.args[0])  # white space parts no name
        return at or node.func.attr in CUTS | MATCHES
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ALONE
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return _is_text(node.left) and _is_name(node.comparators[0])
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and _is_name(node.value)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_name(node: ast.expr) -> bool:
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) in NAMED


@cache
def found() -> dict[str, list[str]]:
    """Return the places of the kit, by function."""
    places: dict[str, list[str]] = {}
    for path in sorted(KIT.rglob("*.py")):
        module = ".".join(path.relative_to(KIT).with_suffix("").parts).removesuffix(".__init__")
        for function, line in decisions(ast.parse(path.read_text("utf-8"))):
            places.setdefault(f"{module}:{function}", []).append(f"{path.name}:{line}")
    return places


def test_the_kit_decides_by_no_part_of_a_name() -> None:
    allowed = {name for names in ALLOWED.values() for name in names}
    places = found()
    new = {name: lines for name, lines in places.items() if not {name, name.partition(":")[0]} & allowed}
    assert new == {}, "decide by a field of the record; text of others is read in a function that ALLOWED lists"


def test_the_list_names_nothing_that_is_gone() -> None:
    known = {part for name in found() for part in (name, name.partition(":")[0])}
    assert {name for names in ALLOWED.values() for name in names} <= known


@pytest.mark.parametrize(
    "line",
    [
        'case.id.startswith(f"{family}/")',
        'rule.rpartition("-")[0]',
        'form.text.split("; ")',
        'form.name.removeprefix("tiled_")',
        're.fullmatch(r"rows-\\d+", name)',
        '"next" not in gather.name',
        '"row" in place',
        'rule[:3] == "LAY"',
        'fnmatch(mistake.name, "amax-*")',
    ],
)
def test_a_new_decision_is_found(line: str) -> None:
    assert [*decisions(ast.parse(f"class A:\n    def b(self):\n        return {line}\n"))] == [("A.b", 3)]


@pytest.mark.parametrize("line", ["case.family == family", '" ".join(text.split())', '"amax" in declared.outputs'])
def test_decisions_by_fields_are_not(line: str) -> None:
    assert [*decisions(ast.parse(f"def b():\n    return {line}\n"))] == []
