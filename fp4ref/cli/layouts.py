"""`fp4ref layouts`: the layouts and packings by name, where two of them differ, and which one a buffer is in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fp4ref import relayouts
from fp4ref.cli.common import DIFFERS, load_every_extension, paragraph, terminal_width
from fp4ref.cli.layouts_where import numbers, starts, where
from fp4ref.cli.selection import listed
from fp4ref.errors import FileError, ShapeError
from fp4ref.files.tensors import shown
from fp4ref.layout import LAYOUTS, ORIGINS, Layout

EPILOG = """\b
Examples:
  fp4ref layouts
  fp4ref layouts --match "*gfx1250*"
  fp4ref layouts --consumer hipBLASLt --json
  fp4ref layouts compare tiled_128x4 triton.blackwell_scale
  fp4ref layouts compare rocm.gfx950_32x8 aiter.shuffle_scale --shape 300x9
  fp4ref layouts find scales.npy shuffled.npy
  fp4ref layouts where vllm.kv_v_scale 1,0,5,3 --shape 2x4x16x8
  fp4ref layouts starts tiled_128x4 3x8 130x8
"""
COMPARE_EPILOG = """\b
Examples:
  fp4ref layouts compare tiled_128x4 cutlass.sf_mn_major
  fp4ref layouts compare tiled_128x4 tiled_8x4 --shape 128x8
  fp4ref layouts compare low_first high_first --shape 4x64
"""
FIND_EPILOG = """\b
Examples:
  fp4ref layouts find scales.npy shuffled.npy
  fp4ref layouts find codes.npy blocks.npy --bits 4
  fp4ref layouts find scales.bin shuffled.bin --shape 256x16 --json
"""


@click.group("layouts", epilog=EPILOG, invoke_without_command=True, short_help="List the layouts; compare, find them.")
@click.option("--match", "pattern", default="*", metavar="PATTERN", help="Only names like aiter* or *gfx950*.")
@click.option("--consumer", default="", metavar="TEXT", help="Only layouts whose consumers contain this text.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def layouts(context: click.Context, pattern: str, consumer: str, as_json: bool) -> None:
    """List the layouts of scales and the packings of data: this standard's, those of the field, and yours.

    A name works wherever a layout is asked for. The text says at which unit of a buffer an index is stored.
    """
    if context.invoked_subcommand is not None:
        return
    load_every_extension()
    names = listed(relayouts.every(), pattern)
    names = [name for name in names if consumer.lower() in relayouts.consumer(name).lower()]
    if as_json:
        click.echo(json.dumps([_record(name) for name in names], indent=1))
        return
    for source in dict.fromkeys(map(relayouts.source, names)):
        paragraph(source or "registered by a user", bold=True)
        for name in names:
            if relayouts.source(name) == source:
                _line(name, relayouts.named(name).text)
                if name in ORIGINS:
                    paragraph(f"{ORIGINS[name].note}; for {ORIGINS[name].consumer}", 6, dim=True)
        click.echo()
    click.echo(f"{len(names)} of {len(relayouts.every())} layouts and packings")


def _line(name: str, text: str) -> None:
    """Print a layout's name and its text, in lines of its own below the name where the terminal is too narrow."""
    line, width = f"  {name:<30} {text}", terminal_width()
    if width is None or len(line) <= width:
        click.echo(line)
    else:
        click.echo(f"  {name}")
        paragraph(text, 6)


def _record(name: str) -> dict[str, Any]:
    form = relayouts.named(name)
    origin = ORIGINS[name]._asdict() if name in ORIGINS else {"owner": relayouts.source(name)}
    kind = "layout" if name in LAYOUTS else "packing"
    axes = [axis.name for axis in form.axes]
    return {"name": name, "kind": kind, "axes": axes, "unit": form.unit, "text": form.text, "rule": form.rule, **origin}


@layouts.command("compare", epilog=COMPARE_EPILOG, short_help="Show on which shapes two layouts differ, and where.")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--shape", help="The size of each axis, such as 128x8; without it, several shapes are tried.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(first: str, second: str, shape: str | None, as_json: bool) -> None:
    """Compare two layouts: the first index that they store apart, on one shape or on several.

    Exit status: 1 if they differ on a shape.
    """
    a, b = relayouts.named(first), relayouts.named(second)
    if shape is None:
        relayouts.differ(a, b, [0] * len(a.axes))  # fails for layouts that no shape compares
        found = {sizes: _compared(a, b, sizes) for sizes in relayouts.sample_sizes(a, b)}
    else:
        sizes = numbers(shape, "x", len(a.axes), "shape")
        found = {sizes: _difference(a, b, sizes)}
    if as_json:
        records = [{"shape": list(sizes), **record} for sizes, record in found.items()]
        click.echo(json.dumps({"a": first, "b": second, "shapes": records}, indent=1))
    else:
        click.echo(f"A = {first}: {a.text}\nB = {second}: {b.text}")
        for sizes, record in found.items():
            click.echo(f"  {' x '.join(map(str, sizes)):<12} {record['result']}{_after(record)}")
    if any(record["result"] == "differ" for record in found.values()):
        raise SystemExit(DIFFERS)


def _after(record: dict[str, Any]) -> str:
    return f": {record['text']}" if record["text"] else ""


def _compared(a: Layout, b: Layout, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return the result for one of several shapes, which a layout may refuse."""
    try:
        return _difference(a, b, sizes)
    except ShapeError as error:
        return {"result": "refused", "text": str(error)}


def _difference(a: Layout, b: Layout, sizes: tuple[int, ...]) -> dict[str, Any]:
    found = relayouts.differ(a, b, sizes)
    if found is None:
        return {"result": "equal", "text": ""}
    apart = {"index": list(found.place), "offsets": list(found.offsets)} if found.place else {}
    return {"result": "differ", "text": found.text, **apart}


@layouts.command("find", epilog=FIND_EPILOG, short_help="Find every layout that turns one buffer into another.")
@click.argument("first", metavar="FROM", type=click.Path(path_type=Path))
@click.argument("second", metavar="TO", type=click.Path(path_type=Path))
@click.option("--shape", help="The shape of FROM, such as 128x8; needed for files other than .npy.")
@click.option("--bits", type=click.Choice(["4", "6", "8"]), help="The width of the packed codes that FROM holds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def find(first: Path, second: Path, shape: str | None, bits: str | None, as_json: bool) -> None:
    """Find every registered layout that stores the array FROM as the buffer TO.

    FROM is in row-major order: scales [rows, columns], or packed codes [rows, bytes] with --bits. TO may have any
    shape. Files are .npy arrays, or raw bytes; of a .npz, save the array
    by itself. If values are equal, several layouts may fit; distinct values decide.

    Exit status: 1 if no layout does.
    """
    array, buffer = _read(first), _read(second)
    if shape is not None:
        sizes = numbers(shape, "x", max(shape.lower().replace("×", "x").count("x") + 1, 2), "shape")
        if math.prod(sizes) != array.size:
            raise ShapeError("layouts find", f"{array.size} units in {shown(first)}", f"{shape}", "NUM-4")
        array = array.reshape(sizes)
    elif first.suffix != ".npy":
        raise ShapeError("layouts find", f"{shown(first)} without --shape", "one for files other than .npy", "LAY-7")
    found = list(relayouts.find(array, buffer, int(bits) if bits else None))
    distinct = np.unique(array).size
    if as_json:
        matches = [{**_record(match.name), "remark": match.note} for match in found]
        click.echo(json.dumps({"units": array.size, "distinct": distinct, "matches": matches}, indent=1))
    else:
        for name, note in found:
            text, consumer = relayouts.named(name).text, relayouts.consumer(name)
            click.echo(
                f"{name}: {text}" + (f"; {note}" if note else "") + (f"\n    for {consumer}" if consumer else "")
            )
        kinds = len({relayouts.named(match.name).map for match in found})
        click.echo(f"{len(found)} layouts, {kinds} different; {distinct} distinct values in {array.size} units")
        if not found and buffer.size != array.size:
            paragraph(f"the sizes differ: FROM has {array.size} units, TO {buffer.size}; a layout may add padding")
    if not found:
        raise SystemExit(DIFFERS)


def _read(path: Path) -> NDArray[Any]:
    """Return the array of a .npy file, or the bytes of any other; a file of several tensors is refused."""
    if path.suffix in (".npz", ".safetensors", ".gguf", ".json"):
        got = f"{path.suffix}, a file of several tensors"
        raise FileError(f"read {shown(path)}", got, "one array: .npy, or raw bytes with --shape", "LAY-7")
    if path.suffix != ".npy":
        return np.frombuffer(path.read_bytes(), np.uint8)
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (ValueError, EOFError, MemoryError) as error:
        why = " ".join(str(error).split())
        raise FileError(f"read {shown(path)}", f"not a .npy array ({why})", "one of numbers", "FIL-5") from None


layouts.add_command(where)
layouts.add_command(starts)
