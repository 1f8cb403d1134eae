"""Shared parts of commands: names of specifications and tensors, and output that fits the terminal or file."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fp4ref.catalogue import resolve
from fp4ref.errors import FileError, UnknownNameError
from fp4ref.names import VARIABLE, failures, import_extension
from fp4ref.spec import Spec, from_json

if TYPE_CHECKING:
    from rich.console import Console

DIFFERS, REFUSED, INTERNAL = 1, 2, 3  # exit statuses; 0 is success
PIPE_WIDTH = 10_000
LEAST_PROSE = 24  # columns that words are folded into; in fewer they are hard to read
QUIET, BETWEEN = 2.0, 15.0  # seconds until the first line of progress, and until the next
IMPORTED = "fp4ref.imported"  # modules that the user named, in a command's context
JSON_MAX = 1 << 20  # bytes of a specification in a file
Made = TypeVar("Made")


def spec_files(*names: str | None) -> list[Path]:
    """Return the JSON files among names of specifications: files that a command reads."""
    return [Path(name) for name in names if name is not None and name.endswith(".json")]


def load_spec(name: str) -> Spec:
    """Return a registered specification, or the one in a JSON file. Rules: SPC-3, SPC-4."""
    if not name.endswith(".json"):
        return resolve(name)
    with Path(name).open("rb") as file:
        text = file.read(JSON_MAX + 1)
    if len(text) > JSON_MAX:
        raise FileError(f"read {name}", f"more than {JSON_MAX} bytes", "the JSON form of a specification", "SPC-3")
    return from_json(text.decode(errors="replace"))


class Seconds(click.FloatRange):
    """A time on the command line: a number in a range, infinity included, or an error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of seconds; NaN is in no range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return float(number)


def import_named(ctx: click.Context, place: str) -> None:
    """Import a module that the user named; child processes import it, too, as long as the command runs."""
    before = os.environ.get(VARIABLE)
    ctx.find_root().call_on_close(lambda: _restored(before))
    import_extension(place)


def with_names_of(target: str, make: Callable[[], Made]) -> Made:
    """Call `make`; if it meets an unknown name, import the module of a target, then call it again.

    target: MODULE:FUNCTION or FILE.py:FUNCTION.

    Rules: SPC-4, CNF-8.
    """
    place = target.rpartition(":")[0]
    try:
        return make()
    except UnknownNameError:
        if not place:
            raise
    import_named(click.get_current_context(), place)
    return make()


def load_every_extension() -> None:
    """Import what distributions declare, before names are listed; say on standard error which could not be imported."""
    for place, why in failures().items():
        click.echo(f"not listed: {place}: {why}", err=True)


def _each_imported(ctx: click.Context, _: click.Parameter, places: tuple[str, ...]) -> None:
    ctx.meta[IMPORTED] = places
    for place in places:
        import_named(ctx, place)


def _restored(before: str | None) -> None:
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


import_option = click.option(
    "--import",
    metavar="MODULE",
    multiple=True,
    is_eager=True,
    expose_value=False,
    callback=_each_imported,
    help="Import a module or file first, which registers formats, layouts, mistakes or specifications; repeatable.",
)


def with_imports(command: click.Command) -> click.Command:
    """Give a command, and all commands below it, the option `--import`."""
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        with_imports(below)
    if not any("--import" in parameter.opts for parameter in command.params):
        import_option(command)
    return command


force_option = click.option("--force", is_flag=True, help="Replace an existing file of another kind.")


def given_options() -> frozenset[str]:
    """Return the options that stand on the command line, by the first spelling of each."""
    context = click.get_current_context()
    # Arguments are left out: click 8.2 counts an argument that may be empty as given.
    named = {option.name: option.opts[0] for option in context.command.params if isinstance(option, click.Option)}
    source = click.core.ParameterSource.COMMANDLINE
    return frozenset(option for name, option in named.items() if name and context.get_parameter_source(name) is source)


def refuse_options(given: Iterable[str], reason: str) -> None:
    """Refuse options that a command would ignore. reason: where they apply."""
    names = sorted(given)
    if names:
        said = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        raise click.UsageError(f"{said}: {reason}")


def repeat_options(options: Iterable[str]) -> str:
    """Return those of some options that stand on the command line, as a shell takes them."""
    context = click.get_current_context()
    given = given_options()
    values = {each.opts[0]: context.params[each.name] for each in context.command.params if each.name in context.params}
    values["--import"] = context.meta.get(IMPORTED, ())
    repeated = ((option, values[option]) for option in options if option in given)
    each = ((option, value) for option, found in repeated for value in (found if isinstance(found, tuple) else [found]))
    return shlex.join(str(word) for pair in each for word in pair)


def printable(text: str) -> str:
    """Return text whose control characters are shown escaped: names from files do not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def console() -> Console:
    """Return standard output: as wide as the terminal, or as the content where there is none, and plain there."""
    from rich.console import Console

    return Console(highlight=False, width=terminal_width() or PIPE_WIDTH)


def wrapped_text(text: str, indent: int, width: int | None) -> list[str]:
    """Return the lines of a paragraph of a width."""
    pad = " " * indent
    if width is None:
        return [pad + text]
    return wrap(
        text, width, initial_indent=pad, subsequent_indent=pad + "  ", break_long_words=False, break_on_hyphens=False
    )


def print_lines(out: Console, lines: Iterable[str], style: str | None = None) -> None:
    """Print lines: names of tensors are not markup, and on a terminal a long line is wrapped between its words."""
    for line in map(printable, lines):
        text = line.lstrip()
        fits = not out.is_terminal or len(line) <= out.width
        for part in [line] if fits else wrapped_text(text, len(line) - len(text), out.width):
            out.print(part, style=style, markup=False, emoji=False, soft_wrap=True)


def paragraph(text: str, indent: int = 0, **style: Any) -> None:
    """Print a paragraph in lines that fit the terminal. style: as for click.secho."""
    click.secho("\n".join(wrapped_text(text, indent, terminal_width())), **style)


def print_sum(text: str) -> None:
    """Print a worked sum in lines that fit the terminal, each of whole terms."""
    from fp4ref.diagrams.layout_text import sum_lines

    click.echo("\n".join(sum_lines(text, terminal_width() or PIPE_WIDTH, "  ")))


def terminal_width() -> int | None:
    """Return the columns of the terminal, or those that COLUMNS asks for; None without either: nothing is wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or os.environ.get("COLUMNS") else None


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return lines of an unframed table; a column whose name begins with > is right-aligned.

    Where the table is too wide, a last column whose name begins with ~ is folded between words. Without one, the first
    column has lines of its own, and the others as many lines as they need, without columns that are empty: no cell is
    cut, and the names of the columns are arranged as their cells are.
    """
    cells = [[name.lstrip(">~") for name in columns], *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    if columns[-1].startswith("~") and LEAST_PROSE <= left < widths[-1]:
        cells = [line for row in cells for line in _folded(row, left)]
        widths[-1] = left
    sides = [">" if name.startswith(">") else "<" for name in columns]
    padded = [[f"{cell:{side}{size}}" for cell, side, size in zip(row, sides, widths, strict=True)] for row in cells]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        return ["  ".join(row).rstrip() for row in padded]
    used = [any(row[place] for row in rows) or not place for place in range(len(columns))]
    padded = [list(compress(row, used)) for row in padded]
    parts = _parts(list(compress(widths, used)), width)
    lines = (("  " if start else "") + "  ".join(row[start:end]) for row in padded for start, end in parts)
    return [line.rstrip() for line in lines if line.strip()]


def _folded(row: Sequence[str], width: int) -> Iterator[list[str]]:
    """Yield a row with the words of its last cell on lines of a width, the other cells on the first of them."""
    first, *more = wrap(row[-1], width, break_long_words=False, break_on_hyphens=False) or [""]
    yield [*row[:-1], first]
    for line in more:
        yield [*[""] * (len(row) - 1), line]


def _parts(widths: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Return the columns of each line, as first and past the last: the first alone, then as many as a line takes."""
    parts, start = [(0, 1)], 1
    for end in range(2, len(widths) + 1):
        if sum(widths[start:end]) + 2 * (end - start) > width:
            parts.append((start, max(end - 1, start + 1)))
            start = parts[-1][1]
    return [*parts, (start, len(widths))] if start < len(widths) else parts


@contextmanager
def _lines(what: str) -> Iterator[Callable[[str], None]]:
    """Show the step at work, in a line of standard error after a while, and then now and again."""
    current, done, stream = ["starting"], threading.Event(), sys.stderr

    def tell() -> None:
        wait, told = QUIET, ""
        while not done.wait(wait):
            if current[0] != told:
                told = current[0]
                stream.write(f"{what}: {told}\n")
                stream.flush()
            wait = BETWEEN

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield lambda name: current.__setitem__(0, printable(name))
    finally:
        done.set()
        thread.join()


@contextmanager
def progress(total: int | None, what: str) -> Iterator[Callable[[str], None]]:
    """Show a bar on standard error, or lines without a terminal; yield a function that takes the next step's name.

    total: the number of steps, which are counted then; None if it is not known.
    """
    if not sys.stderr.isatty():
        with _lines(what) as step:
            yield step
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    counted = [] if total is None else [MofNCompleteColumn()]
    columns = TextColumn(what), BarColumn(), *counted, TextColumn("{task.fields[name]}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, name="")
        started = 0

        def step(name: str) -> None:
            nonlocal started
            started += 1
            bar.update(task, completed=0 if total is None else started, name=name)

        yield step
