"""`fp4ref manifest`: digests of every tensor, by which two engines can compare what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fp4ref.cli.common import force_option, progress
from fp4ref.errors import FileError
from fp4ref.files.targets import beginning_with, write_bytes
from fp4ref.files.tensors import reason

if TYPE_CHECKING:
    from fp4ref.checkpoints.manifest import TensorSignature

EPILOG = """\b
Examples:
  fp4ref manifest Qwen3-8B-NVFP4/ -o rollout.json
  fp4ref manifest train.py:model -o training.json
"""
MANIFEST = beginning_with("a manifest of fp4ref", lambda head: head.startswith(b'{"fp4ref_manifest"'))


@click.command("manifest", epilog=EPILOG, short_help="Write digests of every tensor.")
@click.argument("subject", metavar="PATH|MODULE:FUNCTION")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file instead of standard output.")
@force_option
def manifest(subject: str, output: Path | None, force: bool) -> None:
    """Write a digest of the codes, block scales and global scale of every tensor, whatever its convention.

    PATH is a checkpoint. FUNCTION returns a torch module, an fp4ref.te model, or tensors by name.
    """
    from fp4ref.checkpoints.manifest import to_text

    text = to_text(signatures(subject))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_bytes(output, text.encode(), MANIFEST, [subject], force=force)
        click.echo(f"{output}: {len(text):,} bytes")


def signatures(subject: str) -> dict[str, TensorSignature]:
    """Return the signatures of a checkpoint, of a manifest's file, or of what a function returns."""
    from fp4ref.checkpoints.checkpoint import READERS
    from fp4ref.checkpoints.manifest import from_text, manifest_of_checkpoint, manifest_of_object

    path = Path(subject)
    if path.is_dir() or path.suffix.lower() in READERS:
        with progress(None, "manifest") as step:
            return manifest_of_checkpoint(path, step)
    if path.is_file() and path.suffix != ".py":
        try:
            return from_text(path.read_text("utf-8", errors="replace"), subject)
        except OSError as error:
            raise FileError(f"read {subject}", reason(error), "a readable file", "CNV-16") from None
    if ":" not in subject:
        raise FileError(f"read {subject}", "no such file or directory", "a checkpoint or MODULE:FUNCTION", "CNV-16")
    from fp4ref.conformance.subjects.loading import load

    return manifest_of_object(load(subject)())
