"""The work on a conversion: a directory beside the target that holds what is finished, until it becomes the target."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fp4ref.checkpoints.access import keep_freed_memory
from fp4ref.checkpoints.transfer.plan import ConversionPlan, PlannedShard
from fp4ref.checkpoints.transfer.planning import MANIFEST, make_plan
from fp4ref.checkpoints.transfer.request import ConversionRequest, request_of, require_state, with_state
from fp4ref.checkpoints.transfer.shard_files import ShardReport, read_report, write_shard
from fp4ref.errors import DomainError, FileError
from fp4ref.files.targets import replacing
from fp4ref.files.tensors import reason, shown
from fp4ref.spec import SPEC_VERSION

PARTIAL, JOB, DONE = ".partial", "job.json", ".done"
CHUNK = 1 << 22
Step = Callable[[str, int], None]


def partial_of(target: str | os.PathLike[str]) -> Path:
    """Return the directory that holds a target's parts until all are there."""
    path = Path(target)
    return path.with_name(path.name + PARTIAL)


@contextmanager
def _in_words(operation: str) -> Iterator[None]:
    """Turn an error of the system into one line. Rules: FIL-4."""
    try:
        yield
    except OSError as error:
        raise FileError(operation, reason(error), "a place to write", "CNV-8") from error


def begin(request: ConversionRequest) -> tuple[Path, ConversionPlan]:
    """Plan a conversion, and make the directory of its parts or go on with the one that is there.

    Errors: FileError for a target that exists, or parts of another conversion.

    Rules: CNV-9, CNV-10, CNV-29, CNV-31, CNV-60.
    """
    target = Path(request.target)
    if target.exists() or target.is_symlink():
        raise FileError(f"write {shown(target)}", "it exists", "a new name", "CNV-29")
    if target.resolve().is_relative_to(Path(request.source).resolve()):
        raise FileError(f"write {shown(target)}", "a place inside the source", "one outside of it", "CNV-29")
    request = with_state(request)
    partial = partial_of(target)
    job = partial / JOB
    if job.exists() and not _is_same(job.read_text("utf-8"), request):
        got = "parts of another conversion, or of a source that changed since"
        raise FileError(f"write {shown(partial)}", got, "to remove them, or to repeat that command", "CNV-31")
    plan = _planned(request.to_json())
    with _in_words(f"write {shown(partial)}"):
        partial.mkdir(exist_ok=True)
        if not job.exists() or job.read_text("utf-8") != request.to_json():
            with replacing(job) as file:
                file.write(request.to_json().encode())
    return partial, plan


def _is_same(job: str, request: ConversionRequest) -> bool:
    """Return True if two requests make the same shards: the permission of losses may differ."""
    return replace(request_of(job), lossy=request.lossy) == request


def discard(partial: Path) -> None:
    """Remove a directory of parts in which no shard is finished."""
    if not [*partial.glob(f"*{DONE}")]:
        shutil.rmtree(partial, ignore_errors=True)


@lru_cache(maxsize=2)
def _planned(job: str) -> ConversionPlan:
    plan = make_plan(request := request_of(job))
    require_state(request, request.state)
    return plan


def job_of(partial: Path) -> str:
    """Return the request of a directory of parts, as text. Errors: FileError if there is none."""
    try:
        return (partial / JOB).read_text("utf-8")
    except OSError as error:
        needed = "the parts of a conversion that was begun"
        raise FileError(f"read {shown(partial / JOB)}", reason(error), needed, "CNV-9") from None


def finished(partial: Path, name: str) -> ShardReport | None:
    """Return the report of a shard that is complete; None if it is still to be written. Rules: CNV-9."""
    report = read_report(partial / f"{name}{DONE}")
    with suppress(OSError):
        if report is not None and (partial / name).stat().st_size == report.size:
            return report
    return None


def write_part(folder: str, number: int, step: Step = lambda name, count: None, threads: int = 1) -> int:
    """Write one shard of a conversion, unless it is finished; return its number. Any process may call this.

    threads: parts of the shard that are written at once.

    Errors: FileError for a source that changed; DomainError for a loss that is not allowed.

    Rules: CNV-4, CNV-8, CNV-9, CNV-10.
    """
    keep_freed_memory()
    partial = Path(folder)
    job = job_of(partial)
    plan = _planned(job)
    shard = plan.shards[number]
    if finished(partial, shard.name) is not None:
        return number
    report = _written(partial / shard.name, plan, shard, step, threads)
    if report.losses and not plan.request.lossy:
        (partial / shard.name).unlink()
        more = f" ({len(report.losses)} losses in this shard)" if len(report.losses) > 1 else ""
        raise DomainError("convert", f"{report.losses[0]}{more}", "--lossy, to accept it", "CNV-4")
    with replacing(partial / f"{shard.name}{DONE}") as file:
        file.write(json.dumps(report._asdict(), indent=1).encode())
    return number


def _written(path: Path, plan: ConversionPlan, shard: PlannedShard, step: Step, threads: int) -> ShardReport:
    """Write a shard; remove it if its source changed meanwhile: every part is read again and its checksum compared.

    Rules: CNV-33.
    """
    for each in plan.sources:
        each.journal = {}
    report = write_shard(path, shard.units, shard.metadata, step, threads)
    try:
        read = [each for each in plan.sources if each.journal]
        for each in read:
            each.require_same_bytes()
        require_state(plan.request, {each.path.name for each in read})
    except FileError:
        path.unlink(missing_ok=True)
        raise
    return report


def remaining(partial: Path, plan: ConversionPlan) -> list[int]:
    """Return the numbers of the shards that are still to be written."""
    return [number for number, shard in enumerate(plan.shards) if finished(partial, shard.name) is None]


def finish(target: str | os.PathLike[str]) -> dict[str, Any]:
    """Make the target of its parts, in one step, and return the manifest.

    Errors: FileError if a part is missing, or the source changed.

    Rules: CNV-8, CNV-10, CNV-15, CNV-30.
    """
    partial, target = partial_of(target), Path(target)
    if target.exists():
        raise FileError(f"write {shown(target)}", "it exists", "a new name", "CNV-29")
    plan = _planned(job_of(partial))
    missing = [plan.shards[number].name for number in remaining(partial, plan)]
    if missing:
        got = f"{len(missing)} of {len(plan.shards)} shards are not written, such as {missing[0]}"
        raise FileError(f"write {shown(target)}", got, "to run the ranks that write them", "CNV-15")
    require_state(plan.request)
    reports = [report for shard in plan.shards if (report := finished(partial, shard.name)) is not None]
    with _in_words(f"write {shown(partial)}"):
        files = {report.name: {"size": report.size, "header": report.head} for report in reports}
        for name, text in plan.files.items():
            files[name] = _stored(partial / name, [text.encode()])
        for each in plan.copies:
            files[each.name] = _stored(partial / each.name, _chunks(each))
        manifest = _manifest(plan, reports, files)
        _stored(partial / MANIFEST, [json.dumps(manifest, indent=1).encode() + b"\n"])
        for each in partial.iterdir():
            if each.name == JOB or each.name.endswith((DONE, ".tmp")):
                each.unlink()
        os.sync() if not hasattr(os, "O_DIRECTORY") else _synced(partial)
        partial.rename(target)
    return manifest


def _synced(folder: Path) -> None:
    place = os.open(folder, os.O_DIRECTORY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _stored(path: Path, chunks: Any) -> dict[str, Any]:
    """Write a file, and return its size and digest."""
    digest, size = hashlib.sha256(), 0
    with replacing(path) as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def _manifest(plan: ConversionPlan, reports: list[ShardReport], files: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a conversion: no times and no paths, so that it is the same wherever it ran."""
    return {
        "spec_version": SPEC_VERSION,
        "source": Path(plan.request.source).name,
        "conventions": dict(plan.conventions),
        "scales": dict(plan.scales),
        "largest_scale_error": plan.scale_error,
        "losses": [*plan.losses, *(text for report in reports for text in report.losses)],
        "remarks": [*plan.remarks, *(text for report in reports for text in report.remarks)],
        "files": files,
        "tensors": {report.name: report.digests for report in reports},
    }
