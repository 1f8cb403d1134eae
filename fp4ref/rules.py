"""The rules of the standard, and the functions, tests and vectors that cite them, found by reading sources.

Nothing is imported or run: chapters are parsed, Python is read as syntax trees, C++ and CUDA as comments.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fp4ref.source_files import STATEMENTS, declared, named_nodes, on_lines_with, sources
from fp4ref.spec_root import PACKAGE, spec_root


class RuleKind(StrEnum):
    """The kind of a rule: its demand on an implementation."""

    SHALL = "shall"  # every bit
    BOUND = "bound"  # a value of a set that the rule defines
    CHOICE = "choice"  # one of a closed list, declared
    RECOMMEND = "recommend"
    THEOREM = "theorem"  # nothing: it follows from other rules


@dataclass(frozen=True)
class Rule:
    """A rule: the parts of its heading, its chapter, and its text in Markdown."""

    id: str
    title: str
    kind: RuleKind
    chapter: str
    text: str

    @property
    def prefix(self) -> str:
        """The topic: what stands before the number."""
        return self.id.rpartition("-")[0]


class Citation(NamedTuple):
    """A place that cites a rule."""

    rule: str
    place: str  # path:line
    name: str  # of the function, class, test or vector group


@dataclass(frozen=True)
class Tree:
    """Folders to read. tests is None where they are not installed."""

    spec: Path
    package: Path
    backends: tuple[Path, ...] = ()
    tests: Path | None = None


@dataclass
class Index:
    """The result of reading a tree: rules by ID, citations by kind, gaps, and notes on unchecked parts."""

    rules: dict[str, Rule] = field(default_factory=dict)
    functions: list[Citation] = field(default_factory=list)  # of the package
    backends: list[Citation] = field(default_factory=list)
    tests: list[Citation] = field(default_factory=list)
    vectors: list[Citation] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def citing(self, rule: str) -> dict[str, list[Citation]]:
        """Return the citations of one rule, by kind."""
        kinds = ("functions", "backends", "tests", "vectors")
        return {kind: [found for found in getattr(self, kind) if found.rule == rule] for kind in kinds}


ID = r"[A-Z][A-Z0-9]*-[1-9][0-9]*"
HEADING = re.compile(rf"#### (?P<id>{ID}) · (?P<title>\S.*) \((?P<kind>{'|'.join(RuleKind)})\)")
FIRST_LINE = re.compile(r"# (?P<number>\d\d) · \S.* \((?P<prefixes>[A-Z0-9]+(?:, [A-Z0-9]+)*)\)")
CITED = re.compile(r"\bRules:\s*(.*?)(?:\.(?=\s|\Z)|\Z)", re.DOTALL)
COMMENT = re.compile(r"//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/", re.DOTALL)
ANYTHING = re.compile("")
NATIVE = (".h", ".hpp", ".cuh", ".c", ".cpp", ".cu")


def here(package: Path = PACKAGE) -> Tree:
    """Return the tree that this package belongs to: a checkout with backends and tests, or an installation."""
    spec, root = spec_root(package), package.parent
    if spec.parent == root:
        return Tree(spec, package, tuple(sorted((root / "backends").glob("fp4ref_*/"))), root / "tests")
    return Tree(spec, package, tuple(sorted(path for path in root.glob("fp4ref_*") if path.is_dir())))


def chapters(spec: Path) -> list[Path]:
    """Return the chapters by volume: those on bytes first, then those of each companion, a folder of its own."""
    return sorted(spec.rglob("[0-9][0-9]-*.md"), key=lambda path: (path.parent != spec, path))


def check(tree: Tree | None = None) -> list[str]:
    """Return the gaps, one line each; empty if every rule is defined once and covered."""
    return read(tree).gaps


def defined(tree: Tree | None = None) -> dict[str, Rule]:
    """Return the rules alone, by ID; only the chapters are read."""
    index = Index()
    _read_chapters(tree or here(), index)
    return index.rules


@cache
def known() -> Mapping[str, Rule]:
    """Return the rules of the standard that is installed, by ID, in its order."""
    return defined()


def prefix_of(rule: str) -> str:
    """Return the prefix of a rule; empty for one that the standard has not."""
    return known()[rule].prefix if rule in known() else ""


def is_of(rule: str, named: Collection[str]) -> bool:
    """Return True if a rule is one of those that are named, or has one of the prefixes that are."""
    return rule in named or prefix_of(rule) in named


def read(tree: Tree | None = None, only: Collection[str] | None = None) -> Index:
    """Read a tree: chapters, then who cites their rules, or `only` some, whose gaps are not looked for then."""
    tree = tree or here()
    index = Index()
    _read_chapters(tree, index)
    asked = re.compile("|".join(map(re.escape, only))) if only else ANYTHING
    index.functions = list(_functions(tree, tree.package, index, asked))
    index.backends = [found for folder in tree.backends for found in _functions(tree, folder, index, asked)]
    index.vectors = list(_vectors(tree, index))
    if tree.tests is None:
        index.notes.append("tests are not installed here: coverage by tests was not checked")
    else:
        index.tests = list(marked(tree, tree.tests, asked=asked))
    if only is not None:
        return index
    _require_defined(index)
    _require_mentions_defined(tree, index)
    _require_one_obligation(index)
    _require_covered(index, tests_known=tree.tests is not None)
    return index


# Chapters


def _read_chapters(tree: Tree, index: Index) -> None:
    owners: dict[tuple[Path, str], str] = {}
    for path in chapters(tree.spec):
        lines = path.read_text("utf-8").splitlines()
        first = FIRST_LINE.fullmatch(lines[0] if lines else "")
        if not first or not path.name.startswith(first["number"]):
            index.gaps.append(f"{path.name}: first line is not `# {path.name[:2]} · Title (PREFIX, ...)`")
            continue
        prefixes = first["prefixes"].split(", ")
        for prefix in prefixes:
            owner = owners.setdefault((path.parent, prefix), path.stem)
            if owner != path.stem:
                index.gaps.append(f"{path.name}: prefix {prefix} belongs to {owner}")
        for number, heading, text in _sections(lines):
            _add_rule(index, path, number, heading, text, prefixes)


def _sections(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line number, heading and text of every section of level four or deeper; headings in code do not count."""
    starts, fenced = [], False
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            starts.append(number)
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        if lines[start].startswith("####"):
            yield start + 1, lines[start], "\n".join(lines[start + 1 : stop]).strip()


def _add_rule(index: Index, path: Path, number: int, heading: str, text: str, prefixes: list[str]) -> None:
    match = HEADING.fullmatch(heading)
    if not match:
        index.gaps.append(f"{path.name}:{number}: heading is not `#### ID-1 · Title ({'|'.join(RuleKind)})`: {heading}")
        return
    rule = Rule(match["id"], match["title"], RuleKind(match["kind"]), path.stem, text)
    if rule.id in index.rules:
        index.gaps.append(f"{path.name}:{number}: {rule.id} is defined twice, also in {index.rules[rule.id].chapter}")
        return
    if rule.prefix not in prefixes:
        index.gaps.append(f"{path.name}:{number}: {rule.id} has a prefix that is not its chapter's")
    index.rules[rule.id] = rule


# Citations


def _place(path: Path, tree: Tree, line: int) -> str:
    return f"{path.relative_to(tree.package.parent).as_posix()}:{line}"


def _functions(tree: Tree, folder: Path, index: Index, asked: re.Pattern[str]) -> Iterator[Citation]:
    """Yield citations in docstrings of modules, classes and functions, and in native comments."""
    for path, source in sources(folder, (".py",)):
        cites = "Rules:" in source and asked.search(source)
        for node, name in named_nodes(ast.parse(source), STATEMENTS) if cites else ():
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                line = getattr(node, "lineno", 1)
                yield from _cited(ast.get_docstring(node) or "", _place(path, tree, line), name or path.stem, index)
    for path, source in sources(folder, NATIVE):
        for comment in COMMENT.finditer(source):
            text = re.sub(r"(?m)^[ \t]*(?://+|/?\*+/?)", "", comment[0]).removesuffix("*/")
            line = source.count("\n", 0, comment.start()) + 1
            name = declared(source[comment.end() :]) or path.stem
            yield from _cited(text, _place(path, tree, line), name, index)


def _cited(text: str, place: str, name: str, index: Index) -> Iterator[Citation]:
    for match in CITED.finditer(text):
        for item in map(str.strip, match[1].split(",")):
            if re.fullmatch(ID, item):
                yield Citation(item, place, name)
            else:
                index.gaps.append(f"{place}: {name} cites `{item}`, which is not a rule's ID")


def marked(tree: Tree, folder: Path, mark: str = "rule", asked: re.Pattern[str] = ANYTHING) -> Iterator[Citation]:
    """Yield citations by `pytest.mark.MARK("ID", ...)` on tests, classes, parameters and modules; literals only."""
    for path, source in sources(folder, (".py",)):
        wanted = on_lines_with(f".{mark}(", source)
        cites = f".{mark}(" in source and asked.search(source)
        for node, name in named_nodes(ast.parse(source), wanted=wanted) if cites else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == mark):
                continue
            if not (isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "mark"):
                continue
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield Citation(str(argument.value), _place(path, tree, node.lineno), name or path.stem)


def _vectors(tree: Tree, index: Index) -> Iterator[Citation]:
    for path in sorted((tree.spec / "vectors").glob("*.json")):
        place = _place(path, tree, 1)
        try:
            groups = json.loads(path.read_text("utf-8")).get("groups", [])
            for number, group in enumerate(groups):
                for rule in group["rules"]:
                    yield Citation(str(rule), place, f"group {number}")
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            index.gaps.append(f"{place}: not a vector file: {type(error).__name__} {error}")


def _require_defined(index: Index) -> None:
    for found in (*index.functions, *index.backends, *index.tests, *index.vectors):
        if found.rule not in index.rules:
            index.gaps.append(f"{found.place}: {found.name} cites {found.rule}, which is not defined")


def _require_mentions_defined(tree: Tree, index: Index) -> None:
    """Note IDs in prose, comments and messages, a chapter's prefix and a number, that are no rules."""
    prefixes = sorted({rule.prefix for rule in index.rules.values()})
    mention = re.compile(rf"\b(?:{'|'.join(prefixes)})-[0-9]+\b")
    known = {*index.rules, *(found.rule for found in (*index.functions, *index.backends, *index.tests))}
    texts = [(path, path.read_text("utf-8")) for path in sorted(tree.spec.rglob("*.md"))]
    for folder in (tree.package, *tree.backends, *([tree.tests] if tree.tests else [])):
        texts += sources(folder, (".py", *NATIVE))
    for path, text in texts:
        for match in mention.finditer(text) if prefixes else ():
            if match[0] not in known:
                line = text.count("\n", 0, match.start()) + 1
                index.gaps.append(f"{_place(path, tree, line)}: mentions {match[0]}, which is not defined")


def _require_one_obligation(index: Index) -> None:
    """Note rules that oblige twice, or never."""
    for rule in index.rules.values():
        count = len(re.findall(r"\bshall\b", rule.text))
        if rule.kind is RuleKind.SHALL and count != 1:
            index.gaps.append(f"{rule.id}: its text has {count} times the word `shall`, not once")


def _require_covered(index: Index, tests_known: bool) -> None:
    implemented = {found.rule for found in index.functions}
    verified = {found.rule for found in (*index.tests, *index.vectors)}
    for rule in index.rules.values():
        if rule.kind is RuleKind.SHALL:
            if rule.id not in implemented:
                index.gaps.append(f"{rule.id}: no function of the package implements it")
            if tests_known and rule.id not in verified:
                index.gaps.append(f"{rule.id}: no test or vector covers it")
        elif tests_known and rule.id not in implemented | verified | {found.rule for found in index.backends}:
            index.gaps.append(f"{rule.id}: no function or test cites it")
