"""`fp4ref theorems`: evaluate the theorems of the standard on tensors of a file or checkpoint."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path

import click
import numpy as np

from fp4ref.cli.common import load_spec
from fp4ref.errors import DomainError, FileError
from fp4ref.files import open_tensors
from fp4ref.files.tensors import shown
from fp4ref.formats import F
from fp4ref.quantized import matrix_shape
from fp4ref.theorems import returning

FLOATS = frozenset({"F32", "BF16", "F16"})

EPILOG = """\b
Examples:
  fp4ref theorems model.safetensors --spec mxfp4
  fp4ref theorems Qwen3-8B/ --spec nvfp4 --tensors '*weight' --json
  fp4ref rules --kind theorem
"""


@click.command("theorems", epilog=EPILOG, short_help="Evaluate theorems on tensors: what a second quantization keeps.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--spec", required=True, help="The specification by which the tensors are quantized.")
@click.option("--tensors", "patterns", multiple=True, metavar="PATTERN", help="Only these names; `*` matches any text.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def theorems(path: Path, spec: str, patterns: tuple[str, ...], as_json: bool) -> None:
    """Quantize each tensor of a file or checkpoint, and say which theorems apply to it and what they promise.

    Only tensors of floats with at least two dimensions are used. Exit status: 0, or 1 if a theorem whose condition is
    met does not hold, which is a defect of fp4ref.
    """
    chosen, found = load_spec(spec), {}
    if chosen.stochastic:
        raise DomainError("theorems", f"{spec}, which rounds by random bits", "nearest rounding", "THM-1")
    for part in _files(path):
        with open_tensors(part) as file:
            for name in file.names:
                kind, shape = file.entry(name)[:2]
                wanted = not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
                if not wanted or kind not in FLOATS or len(shape) < 2 or 0 in shape:
                    continue
                x = file.read(name)
                x = x.reshape(matrix_shape(x.shape))
                if not np.isfinite(x.astype(F)).all():
                    click.echo(f"{name}: not evaluated: it has elements that are not finite", err=True)
                    continue
                found[name] = returning.evaluate(x, chosen)
    if patterns and not found:
        raise DomainError("theorems", f"no tensor to evaluate named {', '.join(patterns)}", "one of floats", "THM-1")
    if as_json:
        records = {name: [each._asdict() for each in results] for name, results in found.items()}
        click.echo(json.dumps(records, indent=1))
    else:
        for name, results in found.items():
            click.echo(f"{name}:")
            for each in results:
                click.echo(f"  {each.rule} {each.title}: {each.state}: {each.text}")
        click.echo(f"{len(found)} tensors")
    if any(each.applies and not each.holds for results in found.values() for each in results):
        raise SystemExit(1)


def _files(path: Path) -> list[Path]:
    """Return a file, or the shards of a directory. Errors: FileError for a directory without any."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise FileError(f"read {shown(path)}", "a directory without shards", "*.safetensors", "FIL-42")
    return found
