"""The files that `fp4ref verify` reads: which arguments are streams, and what a directory contains."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from fp4ref.catalogue import PROFILES
from fp4ref.cli.common import spec_files
from fp4ref.errors import FileError, Fp4Error
from fp4ref.files import SUFFIXES, files_of, is_side_file, open_tensors


def sources(paths: Iterable[Path], spec: str | None) -> Iterator[Path]:
    """Yield every file that the command may read. Rules: FIL-6."""
    for path in paths:
        yield from _below(path) if path.is_dir() else files_of(path)
    yield from spec_files(spec)


def _below(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file()]


def is_stream(path: Path) -> bool:
    """Return True if an argument names a stream: -, a specification that is no file, or a file of results."""
    if str(path) == "-" or (str(path) in PROFILES and not path.exists()):
        if sys.stdin.isatty():
            got = f"{path}: standard input is a terminal"
            raise FileError("verify", got, f"a program's results: fp4ref gen {path} | PROGRAM | fp4ref verify {path}")
        return True
    if path.suffix.lower() in SUFFIXES or not path.is_file():
        return False
    from fp4ref.conformance.run.stream import MAGIC
    from fp4ref.conformance.run.stream import is_stream as begins_stream

    with path.open("rb") as file:
        return begins_stream(file.read(len(MAGIC)))


def dump_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files to verify; in a directory, all tensor files below it that hold quantized bytes."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        below = [file for file in _below(path) if file.suffix.lower() != ".json" or is_side_file(file)]
        kept = [file for file in below if _may_be_dump(file)]
        for file in below:
            if file not in kept:
                click.echo(f"skipped {file}: no quantized bytes in it", err=True)
        if not kept:
            raise FileError(f"verify {path}", "a directory without dumps", " or ".join(SUFFIXES), "FIL-42")
        found += kept
    return found


def _may_be_dump(path: Path) -> bool:
    """Return True if a file has an entry for quantized data, or cannot be read, which is then reported."""
    try:
        with open_tensors(path) as file:
            return any(name == "data" or name.endswith(".data") for name in file.names)
    except Fp4Error:
        return True
