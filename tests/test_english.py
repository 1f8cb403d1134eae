"""Shapes of sentences that a reader stops at, which the documentation, the help and the docstrings do without."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fp4ref.cli import main
from fp4ref.source_files import STATEMENTS, named_nodes
from trees import tree

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "spec").rglob("*.md")), *sorted((ROOT / "docs/site").rglob("*.md"))]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md"]
FOLDERS = ("fp4ref", "backends", "plugins", "docs", "benchmarks")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
PROGRAM = ("fp4ref", "backends", "plugins")
RECORDED = ("fp4ref/conformance/vectors/sources", "fp4ref/proof")  # texts that recorded data contain

BEGIN = r"(?:\A|(?<=[.!?] )|(?<=[.!?]\) ))"  # of a paragraph or a sentence
THINGS = r"\b(?:[Vv]alues?|[Ff]iles?|[Rr]ules?|[Kk]ernels?|[Bb]ytes|[Tt]ensors?|[Ss]hapes?|[Ll]ayouts?|[Ss]cales?)"
SHAPES = {  # name: expression, and a sentence that it finds
    "a bare Of": (BEGIN + r"Of [^?]*?(?:\.|\Z)", "Of which rows and columns must be."),
    "a bare What": (BEGIN + r"What [^?]*?(?:\.(?: |\Z)|\Z)", "What is written is stored without a date."),
    "a bare Whether": (BEGIN + r"Whether ", "It is fast. Whether it is right."),
    "a bare None": (BEGIN + r"None (?!of )", "None where it means nothing."),
    "a bare One": (BEGIN + r"One (?:of|that|which|per|in|for|with|to|as|at|by|on|whose|where)\b", "One per row."),
    "bytes that lie": (
        r"\b(?:lies?|lying) (?:at|in|so|along|beside|between|behind|there|as|by|within|elsewhere)\b",
        "The scale lies at offset 4.",
    ),
    "bytes that just lie": (
        r"\b(?:bytes|buffers|scales|codes|tensors|rows|data|weights|files) (?:lies?|lay)(?=[.,;:]|\Z)",
        "Return where the buffers lie.",
    ),
    "what came of": (r"\bwhat came of\b", "Show what came of a call."),
    "what a thing says": (r"\bwhat (?:the|an?) \w+ says\b", "Say what the codec says."),
    "a Return of what": (r"\AReturn what\b", "Return what a product reads of it."),
    "a Return of a clause": (
        r"\AReturn (?:an?|the|each|every) \w+ (?:takes|is|has|are|gets|needs|holds|gives)\b",
        "Return a lane takes two columns.",
    ),
    "so many": (r"\bso many\b", "so many values to a row"),
    "that which": (r"\bthat which\b", "Refused is that which is refused."),
    "one of another kind": (r"\bone of another kind\b", "one of another kind is an error"),
    "there is none that": (r"\b[Tt]here is none (?:that|of)\b", "there is none that fits"),
    "a thing that thinks": (THINGS + r" (?:knows?|tells?|believes?|wish(?:es)?)\b", "A kernel knows its layout."),
    "a heading that asks": (r"\AHow (?:to|we|do|does)\b", "How to feed cuBLAS"),
}


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, headings, items and table cells of a text with their lines; code is left out."""
    text = re.sub(r"^(```|~~~).*?^\1$", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    number = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*(?:[*+>-]|\d+\.|#+|\|) ))", text):
        cells = block.strip().strip("|").split(" | ") if block.lstrip().startswith("|") else [block]
        for cell in cells if block.strip() else ():
            plain = re.sub(r"`[^`]*`", "``", re.sub(r"^\s*(?:[*+>-]|\d+\.|#+) ", "", cell))
            yield number, re.sub(r"\s+", " ", plain).strip()
        number += block.count("\n")


def pages() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for number, text in paragraphs(path.read_text("utf-8")):
            yield f"{path.relative_to(ROOT)}:{number}", text


def docstrings() -> Iterator[tuple[str, str]]:
    for path in SOURCES:
        for node, _ in named_nodes(tree(path), STATEMENTS):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                for _, text in paragraphs(ast.get_docstring(node) or ""):
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


def messages() -> Iterator[tuple[str, str]]:
    """Verdicts, mistakes, reasons of families, errors: the literals of three words and more that are no docstrings."""
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(PROGRAM) or place.startswith(RECORDED):
            continue
        nodes = [*ast.walk(tree(path))]
        inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        inside |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if id(node) in inside or not isinstance(node, (ast.Constant, ast.JoinedStr)):
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(
                str(getattr(part, "value", "``")) if isinstance(part, ast.Constant) else "``" for part in parts
            )
            if len(re.findall(r"[a-z]{2,}", text)) >= 3:
                yield from ((f"{place}:{node.lineno}", each) for _, each in paragraphs(text))


def helps(command: click.Command = main, name: str = "fp4ref") -> Iterator[tuple[str, str]]:
    for text in (command.help, command.short_help, *(getattr(option, "help", "") for option in command.params)):
        for _, line in paragraphs(text or ""):
            yield name, line
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from helps(found, f"{name} {child}")


def faults(texts: Iterator[tuple[str, str]]) -> list[str]:
    return [
        f"{place}: {name}: ...{text[max(0, match.start() - 20) : match.end() + 40]}..."
        for place, text in texts
        for name, (shape, _) in SHAPES.items()
        if (match := re.search(shape, text))
    ]


@pytest.mark.parametrize("texts", [pages, docstrings, messages, helps])
def test_sentences_are_plain(texts) -> None:
    seen = list(texts())
    assert len(seen) > 100
    assert faults(iter(seen)) == []


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_is_found(name) -> None:
    planted = SHAPES[name][1]
    text = f"# A heading\n\nA plain sentence of one value.\n\n* {planted}\n\n```\n{planted}\n```\n"
    assert [fault.split(": ")[1] for fault in faults(paragraphs(text))] == [name]
    assert faults(paragraphs(f"`{planted}`\n\nSet it, if it knows of none.")) == []
