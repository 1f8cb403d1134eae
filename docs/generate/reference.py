"""Write the reference pages: every public name with its docstring.

python docs/generate/reference.py OUT
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import NamedTuple

from click.testing import CliRunner

from fp4ref.diagrams import pipeline
from fp4ref.diagrams.request import Request
from fp4ref.spec import Spec

UNQUOTED = re.compile(r"(: |-> )'([^']*)'")
FORWARD = re.compile(r"ForwardRef\('([^']*)'\)")
ENUM = re.compile(r"<(\w+\.\w+): [^>]*>")
HELP = re.compile(
    r"(Usage: .*?)\n\n(.*?)\n\n(\w[^\n]*:\n.*)", re.DOTALL
)  # of a command: how it is called, prose, options
TYPED = re.compile(r"(`[^`]*`)|(?<![\w-])--?[a-z][\w-]*|\S*\w=\S*\w\"?")  # in prose: what a user types, or code already
WIDTH = 90
SOME = 6  # of the names of a mapping
MODULES = {
    "fp4ref": "The public functions and records",
    "fp4ref.testing": "Assertions on kernels, for any test runner",
    "fp4ref.strategies": "Hypothesis strategies",
    "fp4ref.registry": "Backends",
    "fp4ref.te": "The emulation layer",
}


def main(target: Path) -> None:
    """Write a page for each module and one for the command line."""
    target.mkdir(parents=True)
    for name, title in MODULES.items():
        (target / f"{name}.md").write_text("\n".join(page(name, title)) + "\n", "utf-8")
    (target / "command-line.md").write_text("\n".join(commands()) + "\n", "utf-8")
    toc = "\n".join(["# Reference", "", "```{toctree}", *MODULES, "command-line", "```"])
    (target / "index.md").write_text(toc + "\n", "utf-8")


def page(name: str, title: str) -> Iterator[str]:
    """Public names of a module, in the order of its kinds: functions, classes, values."""
    module = import_module(name)
    yield f"# {name}: {title[0].lower()}{title[1:]}\n"
    yield from prose(inspect.cleandoc(module.__doc__ or ""))
    for kind, heading in (("function", "Functions"), ("class", "Classes"), ("data", "Values")):
        members = [member for member in public(module) if kind_of(getattr(module, member)) == kind]
        if members:
            yield f"## {heading}\n"
        for member in members:
            yield from entry(module, member, kind)


def public(module: ModuleType) -> list[str]:
    """Names that a module offers, without the modules that it imports."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    own = [name for name in names if not inspect.ismodule(getattr(module, name, None)) and hasattr(module, name)]
    if not hasattr(module, "__all__"):
        own = [name for name in own if getattr(getattr(module, name), "__module__", "") == module.__name__]
    return sorted(own, key=str.lower)


def kind_of(value: object) -> str:
    """Return the kind of a documented name."""
    if inspect.isclass(value):
        return "class"
    return "function" if callable(value) else "data"


def entry(module: ModuleType, name: str, kind: str) -> Iterator[str]:
    """One name: its signature and its docstring as it is written, which is plain text."""
    value = getattr(module, name)
    yield f"### {name}\n"
    if kind == "data":
        yield f"```python\n{module.__name__}.{name} = {short(value)}\n```\n"
        yield from described(value)
        return
    called = signature(f"{module.__name__}.{name}", value) if kind == "function" else made(name, value)
    if called:
        yield f"```python\n{called}\n```\n"
    yield from prose(inspect.cleandoc(value.__doc__ or ""))


def made(name: str, value: type) -> str:
    """Return a class as it is called or, if it is an enum, its members; nothing if Python does not know how."""
    if issubclass(value, Enum):
        return "\n".join(f"{name}.{member}" for member in value.__members__)
    try:
        found = inspect.signature(value)
    except ValueError:
        return ""
    kinds = {one.kind for one in found.parameters.values()}
    if found.parameters and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return ""
    return re.sub(r" -> (None|Self)$", "", signature(name, value))


def plain(text: str) -> str:
    """Return a signature's text without the quotes and enum reprs that Python puts around names."""
    return ENUM.sub(r"\1", UNQUOTED.sub(r"\1\2", FORWARD.sub(r"\1", text)))


def signature(name: str, value: Callable[..., object]) -> str:
    """Return a function's signature, one parameter to a line if a single line is too narrow."""
    found = inspect.signature(value)
    found = found.replace(parameters=[brief(one) for one in found.parameters.values()])
    line = name + plain(str(found))
    if len(line) <= WIDTH:
        return line
    star = [index for index, one in enumerate(found.parameters.values()) if one.kind is one.KEYWORD_ONLY]
    lines = [plain(str(one)) for one in found.parameters.values()]
    if star and "*" not in {one[:1] for one in lines}:
        lines.insert(star[0], "*")
    slash = [index for index, one in enumerate(found.parameters.values()) if one.kind is one.POSITIONAL_ONLY]
    if slash:
        lines.insert(slash[-1] + 1, "/")
    result = plain(str(inspect.Signature(return_annotation=found.return_annotation)))
    inner = "".join(f"    {one},\n" for one in lines)
    return f"{name}(\n{inner}){result.removeprefix('()')}"


class Shown(NamedTuple):
    """A default as it is shown: the name of a function, or dots for a long repr."""

    text: str

    def __repr__(self) -> str:
        """Return the text."""
        return self.text


def brief(one: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter whose default is short, and the same in every run."""
    if inspect.isfunction(one.default):
        return one.replace(default=Shown(one.default.__name__))
    made = repr(one.default) == "<factory>"  # as dataclasses call a default that is made for each object
    return one.replace(default=Shown("...")) if made or len(repr(one.default)) > WIDTH else one


def prose(docstring: str) -> Iterator[str]:
    """Yield a docstring's paragraphs as text, its examples and tables as they are, without their indent."""
    paragraphs = re.split(r"\n[ \t]*\n", docstring)
    while paragraphs:
        block = list(takewhile(indented, paragraphs))
        if block:
            yield set_apart("\n\n".join(block))
            del paragraphs[: len(block)]
            continue
        paragraph = paragraphs.pop(0)
        if paragraph.startswith(">>>"):
            yield f"```python\n{paragraph}\n```\n"
        else:
            parts = re.split(r"(`[^`]*`)", paragraph)
            parts[::2] = [re.sub(r"([*_<#|~$\\])", r"\\\1", part) for part in parts[::2]]
            yield "".join(parts) + "\n"


def indented(paragraph: str) -> bool:
    """Return True if a paragraph is code or a table."""
    return not paragraph.startswith(">>>") and re.search(r"^ ", paragraph, re.MULTILINE) is not None


def set_apart(text: str) -> str:
    """Return a block that stands as it is: a program, or plain text."""
    text = dedent(text)
    try:
        compile(text, "docstring", "exec")
        language = "python"
    except SyntaxError:
        language = "text"
    return f"```{language}\n{text}\n```\n"


def described(value: object) -> Iterator[str]:
    """Yield what a value is whose repr is too long to show: a specification, or a mapping of names."""
    if isinstance(value, Spec):
        yield from prose(pipeline.point(Request(spec=value)))
    elif isinstance(value, Mapping):
        first, others = list(value)[:SOME], len(value) - SOME
        more = f" and {others} others" * (others > 0)
        yield f"Values by name: {', '.join(f'`{name}`' for name in first)}{more}.\n"


def short(value: object) -> str:
    """Return a value's repr, unless it is long or an address; a registered specification as it is found."""
    if isinstance(value, Spec):
        return f'fp4ref.profiles["{value.name}"]'
    text = repr(value)
    return text if len(text) < 400 and " at 0x" not in text else f"{type(value).__name__}(...)"


def commands() -> Iterator[str]:
    """Yield the help of every command."""
    from fp4ref.cli import COMMANDS, main

    yield "# Command line\n"
    runner = CliRunner(env={"COLUMNS": "100", "PATH": ""})
    for name in COMMANDS:
        said = runner.invoke(main, [name, "--help"], prog_name="fp4ref", catch_exceptions=False).output
        usage, about, options = HELP.fullmatch(said.rstrip()).groups()  # type: ignore[union-attr]
        yield f"## fp4ref {name}\n\n```text\n{usage}\n```\n"
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", dedent(about))
        yield from prose(TYPED.sub(lambda found: found[1] or f"`{found[0]}`", text))
        yield f"```text\n{options}\n```\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
