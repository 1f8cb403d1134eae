"""The checks of bytes: one streaming pass over every group, then what all groups together show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fp4ref.checkpoints.check_elements import judge_elements, judge_padding
from fp4ref.checkpoints.check_scales import Verdict, judge_float_scales, judge_scales
from fp4ref.checkpoints.check_shapes import sound
from fp4ref.checkpoints.directions import check_directions
from fp4ref.checkpoints.findings import LintFinding, finding
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.in_threads import in_threads
from fp4ref.checkpoints.measure import Measured, measure
from fp4ref.checkpoints.scalars import check_fused
from fp4ref.checkpoints.suspicions import suspect_layout, suspect_nibbles


def readable(group: TensorGroup) -> bool:
    """Return True if the headers leave no doubt about where a group's codes and scales are stored."""
    convention = group.convention
    if not sound(group) or not group.matrices * group.rows * group.columns:
        return False
    scales = group.parts.get("scales")
    if convention.struct:
        return True
    return scales is not None and convention.scales is not None and scales.dtype in convention.scales.dtypes


def check_bytes(found: Recognized, step: Callable[[str], None], workers: int = 1) -> Iterator[LintFinding | str]:
    """Yield findings on the bytes, and remarks on what cannot be told.

    workers: groups that are read at once.

    Rules: CKP-30.
    """
    measured: list[Measured] = []
    merged: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def judged(group: TensorGroup) -> tuple[list[Verdict], Measured | None]:
        step(group.name)
        verdicts = [*judge_float_scales(group)]
        if not readable(group):
            return verdicts, None
        counts = measure(group)
        padding = [*judge_padding(counts, found.checkpoint.tensors.get(f"{group.name}.bias"))]
        verdicts += padding or judge_scales(counts)
        if not any(code == "unwritten" for code, *_ in verdicts):
            verdicts += judge_elements(counts)
        return verdicts, counts

    for verdicts, counts in in_threads(judged, found.groups, workers):
        measured += [counts] if counts is not None else []
        for code, severity, name, message in verdicts:
            merged.setdefault((code, severity), []).append((name, message))
    for (code, severity), entries in merged.items():
        yield finding(code, severity, [name for name, _ in entries], entries[0][1])
    broken = {name for entries in merged.values() for name, _ in entries}
    intact = [each for each in measured if not broken & set(each.group.names)]
    turned = [*check_directions(found, intact)]
    yield from turned
    yield from check_fused(found, {name for each in turned for name in each.tensors})
    yield from suspect_layout(intact)
    yield from suspect_nibbles(found, intact)
