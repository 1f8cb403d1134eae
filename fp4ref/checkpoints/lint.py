"""Lint a checkpoint: first what its headers and declarations say, then its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fp4ref.checkpoints.access import keep_freed_memory
from fp4ref.checkpoints.check_bytes import check_bytes
from fp4ref.checkpoints.check_config import check_config
from fp4ref.checkpoints.check_excludes import check_excludes, require_consumer
from fp4ref.checkpoints.check_geometry import check_geometry
from fp4ref.checkpoints.check_presence import check_presence
from fp4ref.checkpoints.check_shapes import check_shapes
from fp4ref.checkpoints.checkpoint import Checkpoint, open_checkpoint
from fp4ref.checkpoints.consumers import CONSUMERS, with_consumers
from fp4ref.checkpoints.findings import ERROR, LintFinding, is_failure, listed, merged
from fp4ref.checkpoints.gguf_views import as_on_the_hub
from fp4ref.checkpoints.groups import Recognized, recognize
from fp4ref.checkpoints.places import StoredPlace, places_of
from fp4ref.checkpoints.repairs import REPAIRS
from fp4ref.checkpoints.scalars import check_fused, check_kv, check_values
from fp4ref.errors import FileError

SCALARS = ("global-scale-value", "input-scale")  # codes of findings on single numbers


@dataclass
class LintReport:
    """The findings on a checkpoint, and what they rest on.

    failure: why the checkpoint could not be read to its end; "" if it was. facts: per quantized module, its convention
    and measured numbers. places: where each code and name of a finding is stored.
    """

    path: str
    findings: list[LintFinding] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    read_bytes: int = 0
    tensors: int = 0
    header_only: bool = False
    failure: str = ""
    places: dict[tuple[str, str], StoredPlace] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The exit status: 0 nothing, 1 an error or a warning, 2 the checkpoint cannot be read. Rules: CKP-6."""
        return 2 if self.failure else int(is_failure(self.findings))

    def to_record(self) -> dict[str, Any]:
        """Return the report as JSON data. Rules: CKP-6."""
        return {
            "path": self.path,
            "convention": self.families,
            "recognized_by": self.evidence,
            "findings": [each.to_record() for each in self.findings],
            "remarks": self.remarks,
            "consumers": sorted({name for each in self.findings for name in each.consumers}),
            "tensors": self.facts,
            "tensor_count": self.tensors,
            "header_only": self.header_only,
            "bytes_read": self.read_bytes,
            **({"failure": self.failure} if self.failure else {}),
        }


def lint(
    path: str | os.PathLike[str],
    *,
    source: str | os.PathLike[str] | None = None,
    consumer: str | None = None,
    convention: str | None = None,
    header_only: bool = False,
    workers: int = 1,
    step: Callable[[str], None] = lambda name: None,
) -> LintReport:
    """Check a checkpoint, and return everything that is wrong with it.

    path: a directory, a `.safetensors` or a `.gguf` file. source: the checkpoint in high precision. consumer: judge for
    this one only: its rule for the list of excluded modules, and notes for warnings that break others. convention: a
    name or a family, instead of the recognized one. header_only: read no tensor, so that of each file only the head
    need be present. workers: processes, each of which reads a module at a time. step: is told each module's name.

    Errors: FileError if nothing can be read.

    Rules: CKP-6.
    """
    require_consumer(consumer)
    keep_freed_memory()
    checkpoint = open_checkpoint(path, head_only=header_only)
    report = LintReport(os.fspath(path), header_only=header_only)
    report.findings += checkpoint.problems
    report.tensors = len(checkpoint.tensors)
    if not checkpoint.tensors and checkpoint.problems:
        report.failure = checkpoint.problems[0].message
        report.places = places_of(checkpoint, [], report.findings)
        report.read_bytes = checkpoint.read_bytes
        return report
    if header_only and (short := cut_files(checkpoint)):
        report.remarks.append(f"truncated, unless only their heads were fetched: {listed(short)}")
    found = recognize(checkpoint, convention)
    report.families, report.evidence = found.conventions or [found.family or "none"], found.evidence
    report.facts = {group.name: _facts(group) for group in found.groups}
    try:
        for each in _checks(found, consumer, header_only, step, report, source, workers):
            if isinstance(each, str):
                report.remarks.append(each)
            else:
                report.findings.append(each)
        checkpoint.require_unchanged()
    except FileError as error:
        report.failure = str(error)
    report.findings = _without_consequences(found, report.findings)
    conventions = found.conventions or [found.family]
    judged = [with_consumers(each, conventions, consumer) for each in merged(report.findings)]
    options = {"source": os.fspath(source or ""), "convention": convention or ""}
    report.findings = judged if report.failure else _repairable(judged, report, **options)
    if consumer is not None and found.groups and not any(map(CONSUMERS[consumer].takes, conventions)):
        report.remarks.append(f"{consumer}: no loader of {', '.join(conventions)} is known")
    report.places = places_of(checkpoint, found.groups, report.findings)
    report.read_bytes = checkpoint.read_bytes
    return report


def _without_consequences(found: Recognized, findings: list[LintFinding]) -> list[LintFinding]:
    """Return findings without fused sets that differ because a member is another weight altogether."""
    findings = _without_holes(found, findings)
    other = {name for each in findings if each.code == "value-mismatch" for name in each.tensors}
    if not other or not any(each.code == "fused-global-scale" for each in findings):
        return findings
    inside = {name for group in found.groups if other & {group.name, *group.names} for name in group.names}
    errors = {name for each in findings if each.severity == ERROR for name in each.tensors}
    kept = [each for each in findings if each.code != "fused-global-scale"]
    return [*kept, *check_fused(found, inside | errors)]


def _without_holes(found: Recognized, findings: list[LintFinding]) -> list[LintFinding]:
    """Return findings without numbers that are zero because they are stored in a hole that begins before them."""
    hole = {name for each in findings if each.code == "unwritten" for name in each.tensors}
    zeros = {name for each in findings if each.code in SCALARS and ": zero;" in each.message for name in each.tensors}
    if not hole or not zeros:
        return findings
    inside = set[str]()
    for shard in found.checkpoint.shards:
        empty = False
        for tensor in sorted(shard.tensors.values(), key=lambda each: each.start):
            empty = tensor.name in hole or (empty and tensor.name in zeros)
            inside |= {tensor.name} & zeros if empty else set()
    left = (
        replace(each, tensors=tuple(name for name in each.tensors if name not in inside))
        if each.code in SCALARS
        else each
        for each in findings
    )
    return [each for each in left if each.tensors or each.code not in SCALARS]


def cut_files(checkpoint: Checkpoint) -> list[str]:
    """Return the names of files that end before bytes that their headers promise. Rules: CKP-6."""
    ends = {
        shard.name: max((each.start + each.count for each in shard.tensors.values()), default=0)
        for shard in checkpoint.shards
    }
    return [shard.name for shard in checkpoint.shards if ends[shard.name] > shard.size]


def _repairable(findings: list[LintFinding], report: LintReport, **options: str) -> list[LintFinding]:
    """Return findings with the commands that repair them."""
    if not any(each.code in REPAIRS for each in findings):
        return findings
    from fp4ref.checkpoints.mending import with_repairs

    return with_repairs(report.path, findings, header_only=report.header_only, **options)


def _facts(group: Any) -> dict[str, Any]:
    return {"convention": group.convention.name, "shape": [*group.shape], "tensors": group.names}


def _checks(
    found: Recognized,
    consumer: str | None,
    header_only: bool,
    step: Callable[[str], None],
    report: LintReport,
    source: str | os.PathLike[str] | None,
    workers: int,
) -> Iterator[LintFinding | str]:
    """Yield findings, and remarks on what cannot be told."""
    yield from check_presence(found)
    yield from check_shapes(found)
    yield from check_geometry(found)
    yield from check_config(found)
    yield from check_excludes(found, consumer)
    yield from check_kv(found, header_only=header_only)
    if not header_only:
        yield from check_values(found)
        if source is None:
            yield from check_bytes(found, step, workers)
        else:
            yield from _with_source(found, os.fspath(source), report, step, workers)


def _with_source(
    found: Recognized, source: str, report: LintReport, step: Callable[[str], None], workers: int
) -> Iterator[LintFinding | str]:
    """Yield findings on the bytes, and then what the source shows of tensors that have none.

    A suspicion gives way to what the source proves of the same tensors.
    """
    alone = [*_without_zeros(found, source, check_bytes(found, step, workers))]
    certain = [each for each in (*report.findings, *alone) if isinstance(each, LintFinding) and each.severity == ERROR]
    broken = {name for each in certain for name in each.tensors}
    proved = [*_proved(found, source, report, broken, step, workers)]
    named = {name for each in proved if isinstance(each, LintFinding) for name in each.tensors}
    modules = {group.name for group in found.groups if named & set(group.names)}
    covered = {name for group in found.groups if group.name in modules for name in group.names}
    for each in alone:
        if isinstance(each, LintFinding) and each.severity != ERROR and set(each.tensors) <= covered:
            continue
        if not isinstance(each, str) or not proved:
            yield each
    yield from proved


def _without_zeros(
    found: Recognized, source: str, findings: Iterator[LintFinding | str]
) -> Iterator[LintFinding | str]:
    """Yield findings without the rows of zeros that look unwritten, but are zero in the source."""
    from fp4ref.checkpoints.source import zeros_in

    for each in findings:
        if isinstance(each, LintFinding) and each.code == "unwritten":
            zeros = zeros_in(found, source, {*each.tensors})
            left = tuple(name for name in each.tensors if name not in zeros)
            if left:
                yield replace(each, tensors=left) if zeros else each
        else:
            yield each


def _proved(
    found: Recognized,
    source: str,
    report: LintReport,
    broken: set[str],
    step: Callable[[str], None],
    workers: int,
) -> Iterator[LintFinding | str]:
    """Yield what the source shows; a GGUF with llama.cpp's names is compared as the model on the Hub."""
    from fp4ref.checkpoints.source import check_source

    view = as_on_the_hub(found.checkpoint)
    if view is None:
        yield from check_source(found, source, report.facts, broken, step, workers)
        return
    unread = {name for name, stored in view.stored.items() if broken & {*stored}}
    for each in check_source(recognize(view.checkpoint), source, report.facts, unread, step, workers):
        if isinstance(each, str):
            yield each
        else:
            yield replace(each, tensors=tuple(name for hub in each.tensors for name in view.stored.get(hub, (hub,))))
