"""Comparison with the checkpoint in high precision: which specification reproduces the bytes, else what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fp4ref.api import dequantize, quantize
from fp4ref.catalogue import PROFILES
from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import Bytes, Floats, WeightPiece, codes_of, decoded, pieces
from fp4ref.checkpoints.check_bytes import readable
from fp4ref.checkpoints.check_scales import RARE, Verdict
from fp4ref.checkpoints.checkpoint import Checkpoint, open_checkpoint
from fp4ref.checkpoints.diagnoses import LOSS, SINGLE, diagnosed, judge_plain
from fp4ref.checkpoints.experts import with_each_expert
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding, listed
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.in_processes import in_processes
from fp4ref.checkpoints.matching import by_values
from fp4ref.checkpoints.originals import Original, SquaredError, amax_of, counterpart, is_matrix
from fp4ref.checkpoints.scalars import numbers
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.quantized import Quantized

NEAR = 2**-5  # of the distance of two codes: another order of operations moves a quotient across a tie by less
Facts = dict[str, float | str]


def check_source(
    found: Recognized,
    path: str,
    facts: dict[str, Facts],
    broken: set[str],
    step: Callable[[str], None],
    workers: int = 1,
) -> Iterator[LintFinding | str]:
    """Compare every group with the tensor of its name in a checkpoint of high precision.

    facts: per group, to which the signal-to-noise ratio and the specification are added. broken: names of tensors with
    a finding, which are not compared. workers: processes, each of which compares a group at a time.

    Rules: CKP-24.
    """
    source = with_each_expert(open_checkpoint(path))
    merged: dict[tuple[str, str], list[tuple[str, str]]] = {}
    fit = [group for group in found.groups if not broken & set(group.names) and readable(group)]
    named = {group.name: tensor for group in fit if (tensor := counterpart(source, group)) is not None}
    unnamed = [group for group in fit if group.name not in named] if found.checkpoint.kind == ".gguf" else []
    named |= by_values(unnamed, source)
    compared = [(group, named[group.name]) for group in fit if group.name in named]

    def judged(pair: tuple[TensorGroup, StoredTensor]) -> tuple[list[Verdict], Facts]:
        measured: Facts = {}
        return [*_compare(found, source, *pair, measured)], measured

    results = in_processes(judged, compared, workers, found.checkpoint.shards)
    for (group, _), (verdicts, measured) in zip(compared, results, strict=True):
        step(group.name)
        facts.setdefault(group.name, {}).update(measured)
        for code, severity, name, message in verdicts:
            merged.setdefault((code, severity), []).append((name, message))
    for (code, severity), entries in merged.items():
        yield finding(code, severity, [name for name, _ in entries], entries[0][1])
    yield from judge_plain(found, source)
    source.require_unchanged()
    if others := [group.name for group in unnamed if group.name not in named]:
        yield f"source: cannot tell, no tensor has the name or the values of {listed(others)}"
    elif not compared:
        yield f"source: no quantized module has a tensor of its name and shape in {path}"


def zeros_in(found: Recognized, path: str, names: set[str]) -> set[str]:
    """Return those of some tensors whose module has rows of zeros, all of which are zero in the source too."""
    source, zeros = with_each_expert(open_checkpoint(path)), set[str]()
    for group in found.groups:
        tensor = counterpart(source, group) if names & {*group.names} and readable(group) else None
        original = None if tensor is None else Original(tensor, group)
        if original is None or not original.fits:
            continue
        rows = [(~decoded(group, piece).any(-1), original.read(piece).any(-1)) for piece in pieces(group)]
        if any(stored.any() for stored, _ in rows) and not any((stored & given).any() for stored, given in rows):
            zeros |= names & {*group.names}
    return zeros


def _compare(
    found: Recognized, source: Checkpoint, group: TensorGroup, tensor: StoredTensor, facts: Facts
) -> Iterator[Verdict]:
    original, name = Original(tensor, group), group.parts["codes"].name
    if not original.fits:
        yield "shape", ERROR, name, f"{[*group.shape]} where the source has {[*tensor.shape]}"
        return
    candidates = [*_candidates(source, group, original)]
    error, best = _closest(group, original, candidates)
    facts["sqnr_db"] = round(error.decibels, 2) if math.isfinite(error.decibels) else str(error.decibels)
    if best is not None:
        facts["reference_sqnr_db"], facts["closest_spec"] = round(best.decibels, 2), best.spec
        facts["differing_bytes"] = best.differing
    single = _single(group)
    if best is not None and best.differing <= single:
        if best.far:
            text = (
                f"{best.differing} bytes are not those that {best.spec} gives, and {best.far} elements not the nearest"
            )
            yield "bit-damage", WARNING, name, text
        return
    needed = best.decibels - LOSS if best is not None else bounds.least_decibels(group.convention.element)
    if error.decibels >= needed or not error.source:
        count = sum(_astray(group, original.read(piece), piece) for piece in pieces(group))
        if 0 < count <= max(RARE, single // 2):
            yield "bit-damage", WARNING, name, f"{count} elements are far from the source's, all others are the nearest"
        return
    yield diagnosed(group, original, error, needed, name)


def _single(group: TensorGroup) -> int:
    """Return the number of bytes that count as damage where all others are right."""
    return max(SINGLE, group.matrices * group.rows * group.columns // 1000)


@dataclass
class _Reproduction:
    """The share of a group that a specification reproduces.

    far: elements of the blocks that differ, which no rounding explains: under the stored scale another code is nearer
    to the source's value.
    """

    spec: str
    differing: int
    far: int
    decibels: float


class SourceCandidate(NamedTuple):
    """A specification that may have made the bytes, and the amax that it was given, if any."""

    spec: str
    amax: float | None


def _candidates(source: Checkpoint, group: TensorGroup, original: Original) -> Iterator[SourceCandidate]:
    """Yield specifications and amaxes that may have made the bytes, those of the convention first."""
    convention = group.convention
    stored = numbers(group.parts.get("global_scale"))
    amaxes: list[float | None] = [None]
    if stored and len(stored) == 1:
        amax = amax_of(original.tensor)
        implied = convention.global_direction.amax(stored[0])
        amaxes = [amax if abs(implied - amax) <= 1e-6 * amax else float(np.float32(implied))]
        members = [_source_amax(source, name) for name in _relatives(group)]
        amaxes += [each for each in members if each is not None and abs(each - implied) <= 1e-6 * each]
    declared = str(group.facts.get("spec", ""))
    for name in dict.fromkeys((declared, *convention.specs)):
        if name in PROFILES and tuple(PROFILES[name].block) == convention.block:
            for each in dict.fromkeys(amaxes) if PROFILES[name].global_scale != "none" else [None]:
                if each is None or (math.isfinite(each) and each >= 0):
                    yield SourceCandidate(name, each)


def _relatives(group: TensorGroup) -> list[str]:
    head, _, last = group.module.rpartition(".")
    return [
        f"{head}.{other}" for members in group.convention.fused if last in members for other in members if other != last
    ]


def _source_amax(source: Checkpoint, module: str) -> float | None:
    tensor = source.tensors.get(f"{module}.weight")
    return amax_of(tensor) if is_matrix(tensor) else None


def _closest(
    group: TensorGroup, original: Original, candidates: list[SourceCandidate]
) -> tuple[SquaredError, _Reproduction | None]:
    """Return the error of the stored values, and what the candidate reproduces that gives the most of the bytes.

    The one that is nearest in the first piece is tried first: if it gives every byte, the others are not tried.
    """
    error = SquaredError()
    sample = next(pieces(group))
    rows = original.read(sample)
    nearest = sorted(candidates, key=lambda each: _count(sample, rows, each, group))
    counts = dict.fromkeys(nearest, 0)
    for number, tried in enumerate([nearest[:1], nearest[1:]]):
        for piece in pieces(group) if tried or not number else ():
            rows = original.read(piece)
            if not number:
                error.add(rows, decoded(group, piece))
            for each in tried:
                counts[each] += _count(piece, rows, each, group)
        if nearest and not counts[nearest[0]]:
            return error, _Reproduction(nearest[0].spec, 0, 0, error.decibels)
    best = min(nearest, key=lambda each: counts[each], default=None)
    return error, None if best is None else _reproduced(group, original, best)


def _count(piece: WeightPiece, rows: Floats, candidate: SourceCandidate, group: TensorGroup) -> int:
    """Return the number of codes and scales of a piece that a candidate gives otherwise."""
    return _different(*_made(rows, candidate)[1:], piece, group)


def _made(rows: Floats, candidate: SourceCandidate) -> tuple[Quantized, Bytes, Bytes]:
    amax = None if candidate.amax is None else np.float32(candidate.amax)
    made = quantize(rows, candidate.spec, amax=amax)
    return made, np.asarray(made.row.data), np.asarray(made.row.scales)


def _reproduced(group: TensorGroup, original: Original, candidate: SourceCandidate) -> _Reproduction:
    """Quantize the source piece by piece with a specification, and count bytes that differ."""
    differing = far = 0
    error = SquaredError()
    for piece in pieces(group):
        rows = original.read(piece)
        made, data, scales = _made(rows, candidate)
        different = _different(data, scales, piece, group)
        if 0 < different <= _single(group):
            expected = piece._replace(packed=data[:, : piece.packed.shape[1]], scales=scales)
            far += _far(group, rows, piece, expected)
        differing += different
        error.add(rows, np.asarray(dequantize(made), np.float32))
    return _Reproduction(candidate.spec, differing, far, error.decibels)


def _different(data: Bytes, scales: Bytes, piece: WeightPiece, group: TensorGroup) -> int:
    """Return the number of codes and scales that differ."""
    assert piece.scales is not None
    apart = data[:, : piece.packed.shape[1]] ^ piece.packed
    both = int(np.count_nonzero(apart))
    if both and group.convention.bits == 4:
        both = int(np.count_nonzero(apart & 15) + np.count_nonzero(apart >> 4))
    return both + int(np.count_nonzero(scales != piece.scales))


def _far(group: TensorGroup, rows: Floats, stored: WeightPiece, expected: WeightPiece) -> int:
    """Count elements that are not the nearest under the stored scale, in blocks that are not as expected.

    Rules: CKP-45.
    """
    assert stored.scales is not None
    width, bits = group.convention.block[1], group.convention.bits
    codes, others = (codes_of(each.packed, bits)[:, : group.columns] for each in (stored, expected))
    blocks = stored.scales != expected.scales
    at, column = np.nonzero(codes != others)
    blocks[at, column // width] = True
    at, column = np.nonzero(np.repeat(blocks, width, -1)[:, : group.columns])
    values = bounds.values(group.convention.element)
    one = int(np.flatnonzero(values == 1)[0])
    unit = decoded(group, stored._replace(packed=np.full_like(stored.packed, one * 17 if bits == 4 else one)))[
        at, column
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.nan_to_num(rows[at, column] / unit)
    grid = np.unique(values[np.isfinite(values)])
    above = np.clip(np.searchsorted(grid, wanted), 1, len(grid) - 1)
    low, high = grid[above - 1], grid[above]
    best = np.where(wanted - low <= high - wanted, low, high)
    kept = values[codes[at, column]]
    return int((abs(kept - wanted) - abs(best - wanted) > NEAR * abs(kept - best)).sum())


def _astray(group: TensorGroup, rows: Floats, piece: WeightPiece) -> int:
    """Count elements that are over three quarters of a step from the source, where another code is nearer.

    Rules: CKP-66.
    """
    values = bounds.values(group.convention.element)
    grid = np.unique(values[np.isfinite(values)])
    one = int(np.flatnonzero(values == 1)[0])
    codes = one * 17 if group.convention.bits == 4 else one
    unit = decoded(group, piece._replace(packed=np.full_like(piece.packed, codes)))
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.nan_to_num(rows / unit)
    kept = values[codes_of(piece.packed, group.convention.bits)[:, : group.columns]]
    far = np.nonzero((unit > 0) & (abs(kept - wanted) > 0.5 * np.diff(grid).min()))
    wanted, kept = wanted[far], kept[far]
    above = np.clip(np.searchsorted(grid, wanted), 1, len(grid) - 1)
    best = np.where(wanted - grid[above - 1] <= grid[above] - wanted, grid[above - 1], grid[above])
    return int((abs(kept - wanted) > 0.75 * abs(kept - best)).sum() - (kept == best).sum())
