"""`fp4ref quantize` of a whole checkpoint, into a convention with its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fp4ref.cli.checkpoint_options import carry_out, specs_of


def quantize_checkpoint(source: Path, target: Path, given: dict[str, Any], where: dict[str, Any]) -> None:
    """Quantize the matrices of a checkpoint. given: the other options of the command."""
    from fp4ref.checkpoints.transfer.converting import request_to_convert

    request = request_to_convert(
        source,
        target,
        to=given["to"],
        specs=specs_of(given["specs"]),
        requantize=False,
        include=given["include"],
        exclude=given["exclude"],
        shard_bytes=given["shard_bytes"],
    )
    carry_out(request, where, as_json=given["as_json"], what="quantize")
