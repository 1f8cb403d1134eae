"""`fp4ref diagram`: figures drawn from the objects that the code runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fp4ref import relayouts
from fp4ref.cli.common import force_option, load_spec, paragraph, print_sum, spec_files, table, terminal_width
from fp4ref.diagrams import catalogue
from fp4ref.diagrams.layout_text import WIDTH
from fp4ref.diagrams.palette import THEMES
from fp4ref.diagrams.place import Geometry, named
from fp4ref.diagrams.png import ZOOM, png
from fp4ref.diagrams.request import parse_element, parse_shape, parse_sizes, parse_window
from fp4ref.files import kinds
from fp4ref.files.targets import write_bytes
from fp4ref.quantized import DIRECTIONS

EPILOG = """\b
Examples:
  fp4ref diagram
  fp4ref diagram tiled_128x4 --shape 128x256 --element 37,130
  fp4ref diagram tiled_128x4 --shape 300x288 -o tiled.svg
  fp4ref diagram linear-tiled --shape 160x256 --element 37,130 -o sides.svg
  fp4ref diagram memory --layout vllm.kv_v_scale --shape 2x4x8x4 -o pages.svg
  fp4ref diagram blocks --spec nvfp4-2d -o blocks.svg
  fp4ref diagram pipeline --spec nvfp4-4over6 --theme dark -o pipeline.png
  fp4ref diagram tiled_128x4 --shape 8192x8192 --window 0:256,4:12 -o part.svg
  fp4ref diagram --all figures
"""
SUFFIXES = {".svg": "svg", ".png": "png", ".txt": "text"}
KINDS = {"text": kinds.TEXT, "svg": kinds.SVG, "png": kinds.PNG}


@click.command("diagram", epilog=EPILOG, short_help="Draw formats, layouts and pipelines.")
@click.argument("what", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="An .svg or .png file.")
@click.option(
    "--as", "kind", type=click.Choice(["text", "svg", "png"]), help="The format, where no suffix of a file names it."
)
@click.option("--spec", help="A profile, or a JSON file of one.")
@click.option(
    "--shape", help="The shape of the tensor, MxK. With memory, packings and layouts of more axes: a size for each."
)
@click.option("--direction", type=click.Choice(DIRECTIONS), help="The direction of the tensor.")
@click.option(
    "--layout",
    "layout_name",
    help="With linear-tiled and tile-offsets: the tiled layout. With memory: any layout or packing.",
)
@click.option("--element", help="ROW,COLUMN of the tensor, to highlight.")
@click.option("--window", help="The part to draw, ROWS,COLUMNS like 0:256,4:12; of scales, elements or codes.")
@click.option(
    "--theme", type=click.Choice(THEMES), default="auto", show_default=True, help="The colours; auto follows the page."
)
@click.option("--zoom", type=click.FloatRange(0.1, 10), default=ZOOM, show_default=True, help="PNG: pixels per unit.")
@click.option(
    "--all", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write every figure to a folder."
)
@force_option
def diagram(
    what: str | None,
    output: Path | None,
    kind: str | None,
    spec: str | None,
    shape: str | None,
    direction: str | None,
    layout_name: str | None,
    element: str | None,
    window: str | None,
    theme: str,
    zoom: float,
    folder: Path | None,
    force: bool,
) -> None:
    """Draw a figure; without WHAT, list the figures.

    WHAT is also the name of any registered layout, packing or format, yours included. A layout is printed as text
    unless you name a file; other figures are SVG. All content comes from the code's own
    layouts, formats and specifications, and the same command writes the same bytes.
    """
    if folder is not None:
        _all(folder, kind, theme, zoom, force=force)
    elif what is None:
        _list()
    else:
        by_axis = "sizes" in catalogue.figure(what).takes
        options: dict[str, Any] = {
            "spec": load_spec(spec) if spec else None,
            "shape": parse_shape(shape) if shape and not by_axis else None,
            "sizes": parse_sizes(shape) if shape and by_axis else None,
            "direction": direction,
            "layout": relayouts.named(layout_name) if layout_name else None,
            "element": parse_element(element) if element else None,
            "window": parse_window(window) if window else None,
        }
        given = {name: value for name, value in options.items() if value is not None}

        def write(content: bytes, kind: str) -> None:
            if output is None:
                click.echo(content, nl=False)
            else:
                write_bytes(output, content, KINDS[kind], spec_files(spec), force=force)

        _one(what, given, output, kind, theme, zoom, write)


def _one(
    what: str,
    options: dict[str, Any],
    output: Path | None,
    kind: str | None,
    theme: str,
    zoom: float,
    write: Callable[[bytes, str], None],
) -> None:
    kind = _kind(output, kind, catalogue.figure(what).text is not None)
    if kind == "text":
        width = WIDTH if output else min(terminal_width() or WIDTH, WIDTH)
        write(catalogue.text(what, width, **options).encode(), kind)
        return
    svg = catalogue.draw(what, theme=theme, **options)
    write(png(svg, zoom) if kind == "png" else svg.encode(), kind)
    if output:
        click.echo(f"{output}: {what}")
        request = catalogue.request(what, **options)
        if request.element and request.shape:
            place = Geometry(request.spec, request.shape, request.direction).place(*request.element)
            paragraph(place.sentence(named(request.layout)))
            for line in place.sums(named(request.layout)):
                print_sum(line)


def _kind(output: Path | None, asked: str | None, has_text: bool) -> str:
    """Return the format of the content; a suffix and --as that contradict each other are refused."""
    if output is None:
        return asked or ("text" if has_text else "svg")
    named = SUFFIXES.get(output.suffix.lower())
    if named is None and asked is None:
        raise click.UsageError(f"{output}: the suffix names no kind; use .svg, .png or .txt, or --as")
    if asked and named and asked != named:
        raise click.UsageError(f"{output}: its suffix names {named}, --as {asked}; use only one of them")
    return asked or str(named)


def _list() -> None:
    rows = []
    for name, figure in catalogue.FIGURES.items():
        takes = f"  [{' '.join(figure.options)}]" if figure.takes else ""
        rows.append((name, figure.summary + takes))
    columns = ("figure", "~what it shows, and the options that it takes")
    click.echo("\n".join(table(columns, rows, terminal_width() or sys.maxsize)))


def _all(folder: Path, kind: str | None, theme: str, zoom: float, *, force: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    suffix = kind or "svg"
    if suffix == "text":
        raise click.UsageError("--all writes svg or png")
    count = 0
    for name, svg in catalogue.all_figures(theme):
        content = png(svg, zoom) if suffix == "png" else svg.encode()
        write_bytes(folder / f"{name}.{suffix}", content, KINDS[suffix], force=force)
        count += 1
    click.echo(f"{folder}: {count} figures")
