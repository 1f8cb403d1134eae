"""The checks of bytes: one streaming pass over every group, then what all groups together show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fp4ref.checkpoints.check_elements import judge_elements, judge_padding, suspect_saturation
from fp4ref.checkpoints.check_float_scales import judge_float_scales
from fp4ref.checkpoints.check_scales import Verdict, cast_codes, judge_scales
from fp4ref.checkpoints.check_shapes import sound
from fp4ref.checkpoints.directions import check_directions
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.in_processes import in_processes
from fp4ref.checkpoints.measure import Measured, measure
from fp4ref.checkpoints.scalars import bad, check_fused, numbers
from fp4ref.checkpoints.suspicions import suspect_layout, suspect_nibbles


def readable(group: TensorGroup) -> bool:
    """Return True if the headers leave no doubt about where a group's codes and scales are stored."""
    convention = group.convention
    stored = [*group.parts.values()]
    refused = {name for tensor in stored for each in tensor.shard.problems for name in each.tensors}
    if not sound(group) or refused & {tensor.name for tensor in stored}:
        return False
    if not group.matrices * group.rows * group.columns:
        return False
    scales = group.parts.get("scales")
    if convention.struct:
        return True
    return scales is not None and convention.scales is not None and scales.dtype in convention.scales.dtypes


def check_bytes(found: Recognized, step: Callable[[str], None], workers: int = 1) -> Iterator[LintFinding | str]:
    """Yield findings on the bytes, and remarks on what cannot be told.

    workers: processes, each of which reads a group at a time.

    Rules: CKP-30.
    """
    measured: list[Measured] = []
    merged: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def judged(group: TensorGroup) -> tuple[list[Verdict], Measured | None]:
        verdicts = [*judge_float_scales(group)]
        if not readable(group):
            return verdicts, None
        counts = measure(group)
        if counts.without_scales:  # no element means anything, and a global scale that is no number is the cause
            caused = any(map(bad, numbers(group.parts.get("global_scale"))))
            return verdicts if caused else [*verdicts, *judge_scales(counts)], None
        padding = [*judge_padding(counts)]
        verdicts += padding or judge_scales(counts)
        if not any(code == "unwritten" for code, *_ in verdicts):
            verdicts += judge_elements(counts)
        return verdicts, counts

    results = in_processes(judged, found.groups, workers, found.checkpoint.shards)
    for group, (verdicts, counts) in zip(found.groups, results, strict=True):
        step(group.name)
        if counts is not None:
            counts.group = group
            measured.append(counts)
        for code, severity, name, message in verdicts:
            merged.setdefault((code, severity), []).append((name, message))
    if cast := cast_codes(measured):
        for entries in merged.values():
            entries[:] = [entry for entry in entries if entry[0] not in cast]
        text = "no block scale is above 128, in any tensor: codes of E4M3 converted as numbers"
        merged["scale-value-cast", ERROR] = [(name, text) for name in cast]
    broken = {name for entries in merged.values() for name, _ in entries}
    intact = [each for each in measured if not broken & set(each.group.names)]
    for code, severity, name, message in suspect_saturation(intact):
        merged.setdefault((code, severity), []).append((name, message))
    layouts = [*suspect_layout(intact)]
    if any(isinstance(each, LintFinding) for each in layouts):
        layouts = _with_padding(found, layouts, merged.get(("padding", WARNING), []))
    for (code, severity), entries in merged.items():
        if entries:
            yield finding(code, severity, [name for name, _ in entries], entries[0][1])
    turned = [*check_directions(found, intact)]
    yield from turned
    yield from check_fused(found, {name for each in turned for name in each.tensors})
    yield from layouts
    yield from suspect_nibbles(found, intact)


def _with_padding(
    found: Recognized, layouts: list[LintFinding | str], padding: list[tuple[str, str]]
) -> list[LintFinding | str]:
    """Return suspicions of a layout with the scales whose padding is not zero: those of another layout are there."""
    scales = {group.parts["scales"].name for group in found.groups if "scales" in group.parts}
    filled = [name for name, _ in padding if name in scales]
    padding[:] = [each for each in padding if each[0] not in scales]
    return [
        replace(each, tensors=(*each.tensors, *filled)) if isinstance(each, LintFinding) else each for each in layouts
    ]
