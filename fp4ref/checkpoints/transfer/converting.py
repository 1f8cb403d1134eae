"""Requests from what a user asks for: paths, conventions, specifications and codes of findings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from fp4ref.checkpoints.findings import tensors_of
from fp4ref.checkpoints.lossless import BLOCK_FP8
from fp4ref.checkpoints.repairs import REPAIRS
from fp4ref.checkpoints.transfer.quantizing import require_spec
from fp4ref.checkpoints.transfer.request import SHARD_BYTES, ConversionRequest
from fp4ref.errors import DomainError
from fp4ref.spec import Spec

KEPT = ("*embed*", "*lm_head", "*router*", "*.mlp.gate", "*norm*")  # modules that exporters leave in high precision


def request_to_convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str = "",
    specs: Iterable[tuple[str, Spec | str]] = (),
    requantize: bool = True,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    repairs: Mapping[str, Iterable[str]] | Iterable[str] = (),
    high_precision: str | os.PathLike[str] | None = None,
    convention: str = "",
    lossy: bool = False,
    shard_bytes: int = SHARD_BYTES,
    step: Callable[[str], None] = lambda name: None,
) -> ConversionRequest:
    """Return the request of a conversion.

    to: a convention or its family; "" keeps that of the source. specs: pairs of a pattern of modules and the
    specification for them, or block-fp8; the first match counts. requantize: also of modules that are quantized in the
    source. include, exclude: patterns of modules to quantize; without include, embeddings, heads, norms and routers
    stay as they are unless the pattern of a specification names them. repairs: the tensors to repair by the code of the
    finding, or codes alone, for the tensors that the linter names. high_precision: the checkpoint that the linter
    compares with.
    convention: the source's convention or its family, instead of the recognized one.

    Errors: DomainError for a code without a repair, or one that the linter does not find.

    Rules: CNV-9, CNV-11, CNV-13.
    """
    given, taken, left = [*specs], tuple(include), tuple(exclude)
    if given and not taken:
        chosen = [pattern.rstrip("*") for pattern, _ in given]
        left += tuple(kept for kept in KEPT if not any(fnmatchcase(pattern, kept) for pattern in chosen))
    for _, spec in given:
        if isinstance(spec, Spec):
            require_spec(spec)
        elif spec != BLOCK_FP8:
            raise DomainError("convert", f"no specification {spec!r}", f"a Spec, or {BLOCK_FP8}", "CNV-23")
    if shard_bytes < 1:
        raise DomainError("convert", f"shards of {shard_bytes} bytes", "a positive number", "CNV-28")
    named = repairs if isinstance(repairs, Mapping) else _named(source, [*repairs], high_precision, convention, step)
    return ConversionRequest(
        source=str(Path(source).absolute()),
        target=str(Path(target).absolute()),
        convention=convention,
        to=to,
        quantize=tuple((pattern, spec if isinstance(spec, str) else spec.to_json()) for pattern, spec in given),
        requantize=requantize,
        include=taken,
        exclude=left,
        repairs={code: tuple(names) for code, names in named.items()},
        lossy=lossy,
        shard_bytes=shard_bytes,
    )


def _named(
    source: str | os.PathLike[str],
    repairs: list[str],
    high_precision: str | os.PathLike[str] | None,
    convention: str,
    step: Callable[[str], None],
) -> dict[str, tuple[str, ...]]:
    """Return for each repair the tensors that the linter names by its code. Rules: CNV-11, CNV-74."""
    from fp4ref.checkpoints.lint import lint

    for name in repairs:
        if name not in REPAIRS:
            raise DomainError("convert", f"no repair of {name!r}", f"one of {', '.join(REPAIRS)}", "CNV-11")
    if not repairs:
        return {}
    findings = lint(source, source=high_precision, convention=convention or None, step=step).findings
    found = tensors_of(findings, [REPAIRS[name].code for name in repairs])
    for code, names in found.items():
        if not names:
            raise DomainError("convert", f"no finding {code!r} to repair", "a code that fp4ref lint reports", "CNV-74")
    return {name: found[REPAIRS[name].code] for name in repairs}
