"""The package decides by fields, enums and values of records, not by the beginnings, ends or parts of names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fp4ref
from trees import tree

PACKAGE = Path(fp4ref.__file__).parent
KIT = PACKAGE / "conformance"
OTHERS = [PACKAGE.parent / name for name in ("fp4ref", "backends", "plugins")]
CUTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"}
SPLITS = {"split", "rsplit"}
MATCHES = {"match", "search", "fullmatch", "fnmatch", "fnmatchcase"}
ALONE = {"fnmatch", "fnmatchcase"}  # without a module before it
NAMED = {"name", "id", "rule", "case", "family", "stage", "text", "place", "label", "profile"}

# Functions of the kit that read text which somebody else writes, or only show text.
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


# The same of the rest: functions, modules, or packages.
ALLOWED_ELSEWHERE = {
    "the names of tensors and modules, and the texts of configurations, in checkpoints": {"fp4ref.checkpoints"},
    "the bytes and names of files": {
        "fp4ref.files",
        "fp4ref.cli.common:load_spec",
        "fp4ref.cli.common:spec_files",
        "fp4ref.cli.lint:lint",
        "fp4ref.cli.manifest",
        "fp4ref.cli.verify:_reporting",
        "fp4ref.cli.verify_sources:_may_be_dump",
        "fp4ref.cli.verify_statement",
        "fp4ref.modules:load_module",
        "fp4ref.te.extra_state:loaded_state",
    },
    "names and patterns that a user writes": {
        "fp4ref.catalogue",
        "fp4ref.cli.checkpoint_options:specs_of",
        "fp4ref.cli.common:with_names_of",
        "fp4ref.cli.profiles:_tensor",
        "fp4ref.cli.prove:_chosen",
        "fp4ref.cli.prove:_named",
        "fp4ref.cli.selection",
        "fp4ref.cli.theorems:theorems",
        "fp4ref.diagrams.request",
        "fp4ref.layout.text",
        "fp4ref.names",
        "fp4ref.strategies:drawn_layouts",
    },
    "source text, texts of rules, and references to code": {
        "fp4ref.cli.rules",
        "fp4ref.diagrams.catalogue",
        "fp4ref.layout.origin:Listed.origin",
        "fp4ref.proof.citations",
        "fp4ref.proof.cpp_sources",
        "fp4ref.proof.device:sweep",
        "fp4ref.proof.device_calls:_here",
        "fp4ref.proof.estimates:margins",
        "fp4ref.proof.python_sources",
        "fp4ref.proof.second_solver:confirm",
        "fp4ref.proof.sources",
        "fp4ref.proof.status:status",
        "fp4ref.rules",
        "fp4ref.source_files",
        "fp4ref.standard",
    },
    "devices, types, versions and modules, as torch and the system name them": {
        "fp4ref.arrays",
        "fp4ref.cli.prove:_missing",
        "fp4ref.kernels:device_type",
        "fp4ref.quantized:_shown",
        "fp4ref.random_source:_kind",
        "fp4ref.te.dtypes:dtype_name",
        "fp4ref.te.helpers:torch_version",
        "fp4ref.torch_modules",
        "fp4ref_cpu.build:_machine",
        "fp4ref_cuda.buffers:adopt",
        "fp4ref_cuda.cublas:_library",
        "fp4ref_cuda.randoms:_library",
        "fp4ref_cuda.recording:Recording.place",
        "fp4ref_cuda.several:_watch.Watch.__torch_dispatch__",
    },
    "names of Transformer Engine, of its modules and of its settings": {
        "fp4ref.te.absent",
        "fp4ref.te.alias",
        "fp4ref.te.attention.backends",
        "fp4ref.te.attention.dot_product_attention:DotProductAttention._bottom_right",
        "fp4ref.te.convert:convert",
        "fp4ref.te.loading",
        "fp4ref.te.ops.grouped:_weights_first",
        "fp4ref.te.packed_experts:packed_weights",
        "fp4ref.te.pickled_state",
    },
    "text that is shown": {
        "fp4ref.cli.common:table",
        "fp4ref.cli.explain:_print",
        "fp4ref.cli.profiles_diff:short_text",
        "fp4ref.cli.report",
        "fp4ref.diagrams.format_words",
        "fp4ref.diagrams.layout_text:_wrapped",
        "fp4ref.diagrams.linear_tiled:_strip",
        "fp4ref.diagrams.packing_figure:packing",
        "fp4ref.diagrams.pipeline:point",
        "fp4ref.diagrams.place",
        "fp4ref.diagrams.weight_cache:_life",
        "fp4ref.errors:Fp4Error.__str__",
        "fp4ref.explorer.operations:said",
        "fp4ref.layout.worked:_times",
    },
    "arrays whose names are those of texts": {
        "fp4ref.proof.header_parts:quotient_bytes",
        "fp4ref.proof.header_scales:told",  # names of checks; records of hours rest on the module
        "fp4ref_torch.quantize:_piece",
    },
}


def decisions(top: ast.AST, owner: str = "") -> Iterator[tuple[str, int]]:
    """Yield the functions, and the lines, in which a text is cut, matched, or looked for in a name."""
    for node in ast.iter_child_nodes(top):
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
        for function, line in decisions(tree(path)):
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


@cache
def found_elsewhere() -> dict[str, list[str]]:
    """Return the places of the rest, by function."""
    places: dict[str, list[str]] = {}
    for root in OTHERS:
        assert root.is_dir()
        for path in sorted(path for path in root.rglob("*.py") if KIT not in path.parents):
            parts = path.relative_to(PACKAGE.parent if root == PACKAGE else root).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            for function, line in decisions(tree(path)):
                places.setdefault(f"{module}:{function}", []).append(f"{path.name}:{line}")
    return places


def holders(name: str) -> set[str]:
    """Return a function, its module, and all packages that hold it."""
    parts = name.partition(":")[0].split(".")
    return {name, *(".".join(parts[:end]) for end in range(1, len(parts) + 1))}


@pytest.mark.heavy
def test_the_rest_decides_by_no_part_of_a_name() -> None:
    allowed = {name for names in ALLOWED_ELSEWHERE.values() for name in names}
    new = {name: lines for name, lines in found_elsewhere().items() if not holders(name) & allowed}
    assert new == {}, "decide by a field of the record; text of others is read in what ALLOWED_ELSEWHERE lists"
    assert allowed <= {part for name in found_elsewhere() for part in holders(name)}, "the list names what is gone"


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
