"""Comparison with the checkpoint in high precision: which specification reproduces the bytes, else what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp4ref.api import dequantize, quantize
from fp4ref.catalogue import PROFILES
from fp4ref.checkpoints.access import Bytes, Floats, GroupPiece, decoded, pieces
from fp4ref.checkpoints.anchors import floats
from fp4ref.checkpoints.bounds import least_decibels
from fp4ref.checkpoints.check_bytes import readable
from fp4ref.checkpoints.check_scales import Verdict
from fp4ref.checkpoints.checkpoint import Checkpoint, open_checkpoint
from fp4ref.checkpoints.convention import FLOATS, Direction, ScaleWay
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.permutations import column_order, row_order
from fp4ref.checkpoints.scalars import numbers
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.files.tensors import DTYPES
from fp4ref.formats import FORMATS
from fp4ref.layout import LINEAR, TILED_128X4

LOSS = 4.0  # decibels below the reference that show a defect
NEIGHBOURS = "neighbours"  # bytes that differ as another rounding of ties would make them
SINGLE = 16  # bytes that count as damage where all others are reproduced
Facts = dict[str, float | str]


@dataclass
class _Error:
    """Sums of squares: the source's, the error's, and the product of both."""

    source: float = 0.0
    error: float = 0.0
    product: float = 0.0
    stored: float = 0.0

    def add(self, source: Floats, values: Floats) -> None:
        a, b = source.astype(np.float64), np.where(np.isfinite(values), values, 0).astype(np.float64)
        self.source += float((a * a).sum())
        self.error += float(((a - b) ** 2).sum())
        self.product += float((a * b).sum())
        self.stored += float((b * b).sum())

    @property
    def decibels(self) -> float:
        return _decibels(self.source, self.error)

    @property
    def factor(self) -> float:
        """The constant by which the source's values are best multiplied to give the stored ones."""
        return self.product / self.source if self.source else 1.0

    @property
    def scaled(self) -> float:
        """Decibels after the stored values are divided by the factor."""
        factor = self.factor
        if not factor:
            return -math.inf
        return _decibels(self.source, self.source - 2 * self.product / factor + self.stored / factor**2)


def _decibels(signal: float, error: float) -> float:
    return 10 * math.log10(signal / error) if signal > 0 and error > 0 else math.inf if signal > 0 else 0.0


def check_source(
    found: Recognized, path: str, facts: dict[str, Facts], broken: set[str], step: Callable[[str], None]
) -> Iterator[LintFinding | str]:
    """Compare every group with the tensor of its name in a checkpoint of high precision.

    facts: per group, to which the signal-to-noise ratio and the specification are added. broken: names of tensors with
    a finding, which are not compared.

    Rules: CKP-24.
    """
    source = open_checkpoint(path)
    merged: dict[tuple[str, str], list[tuple[str, str]]] = {}
    compared = 0
    for group in found.groups:
        tensor = _counterpart(source, group)
        if tensor is None or broken & set(group.names) or not readable(group):
            continue
        step(group.name)
        compared += 1
        for code, severity, name, message in _compare(found, source, group, tensor, facts.setdefault(group.name, {})):
            merged.setdefault((code, severity), []).append((name, message))
    rounded = merged.pop((NEIGHBOURS, WARNING), [])
    if len(rounded) == 1:  # in several groups it is the producer's rounding
        merged.setdefault(("bit-damage", WARNING), []).extend(rounded)
    for (code, severity), entries in merged.items():
        yield finding(code, severity, [name for name, _ in entries], entries[0][1])
    yield from _plain(found, source)
    source.require_unchanged()
    if not compared:
        yield f"source: no quantized module has a tensor of its name and shape in {path}"


def _counterpart(source: Checkpoint, group: TensorGroup) -> StoredTensor | None:
    """Return the source's tensor of a group, if it has one."""
    names = [f"{group.module}.weight", group.module, *(tensor.name for tensor in group.parts.values())]
    return next((source.tensors[name] for name in names if _is_float(source.tensors.get(name))), None)


def _is_float(tensor: StoredTensor | None) -> bool:
    return tensor is not None and tensor.dtype in FLOATS and len(tensor.shape) > 1


class _Original:
    """Rows of the source in the shape of a group; experts that are stored as [E, K, N] are transposed."""

    def __init__(self, tensor: StoredTensor, group: TensorGroup) -> None:
        self.tensor, self.group = tensor, group
        *front, rows, columns = tensor.shape
        self.turned = (*front, columns, rows) == group.shape and group.convention.turned
        self.rows, self.columns = (columns, rows) if self.turned else (rows, columns)
        padded = all(
            -(-size // multiple) * multiple == stored
            for size, multiple, stored in zip(
                (rows, columns), group.convention.multiples, group.shape[-2:], strict=True
            )
        )
        self.fits = self.turned or (tuple(front) == group.shape[:-2] and padded)

    def read(self, piece: GroupPiece) -> Floats:
        """Return the rows of a piece, padded with zeros."""
        height, width = len(piece.codes), self.group.columns
        result = np.zeros((height, width), np.float32)
        if self.turned:
            whole = self._some(piece.matrix * self.rows * self.columns, self.rows * self.columns)
            return whole.reshape(self.columns, self.rows).T[piece.row : piece.row + height]
        rows = max(min(height, self.rows - piece.row), 0)
        first = (piece.matrix * self.rows + piece.row) * self.columns
        result[:rows, : self.columns] = self._some(first, rows * self.columns).reshape(rows, self.columns)
        return result

    def _some(self, first: int, count: int) -> Floats:
        kind = DTYPES[self.tensor.dtype].array
        data = self.tensor.bytes(first * kind.itemsize, count * kind.itemsize)
        return np.frombuffer(data, kind).astype(np.float32)


def _compare(
    found: Recognized, source: Checkpoint, group: TensorGroup, tensor: StoredTensor, facts: Facts
) -> Iterator[Verdict]:
    original, name = _Original(tensor, group), group.parts["codes"].name
    if not original.fits:
        yield "shape", ERROR, name, f"{[*group.shape]} where the source has {[*tensor.shape]}"
        return
    reproduced = [_reproduced(group, original, spec, amax) for spec, amax in _candidates(source, group, original)]
    best = min(reproduced, key=lambda each: each.differing, default=None)
    error = _Error()
    for piece in pieces(group):
        error.add(original.read(piece), decoded(group, piece))
    facts["sqnr_db"] = round(error.decibels, 2) if math.isfinite(error.decibels) else str(error.decibels)
    if best is not None:
        facts["reference_sqnr_db"], facts["closest_spec"] = round(best.decibels, 2), best.spec
        facts["differing_bytes"] = best.differing
    if best is not None and best.differing <= SINGLE:
        if best.values:
            kind = "bit-damage" if best.far else NEIGHBOURS
            yield kind, WARNING, name, f"{best.differing} bytes are not those that {best.spec} gives"
        return
    needed = best.decibels - LOSS if best is not None else least_decibels(group.convention.element)
    if error.decibels >= needed or not error.source:
        return
    yield _diagnosed(group, original, error, needed, name)


@dataclass
class _Reproduction:
    """The share of a group that a specification reproduces.

    values: differing bytes that change a decoded value. far: those that no other rounding explains, because the
    specification's byte is no neighbour.
    """

    spec: str
    differing: int
    values: int
    far: int
    decibels: float


def _candidates(source: Checkpoint, group: TensorGroup, original: _Original) -> Iterator[tuple[str, float | None]]:
    """Yield specifications and amaxes that may have made the bytes, those of the convention first."""
    convention = group.convention
    stored = numbers(group.parts.get("global_scale"))
    amaxes: list[float | None] = [None]
    if stored and len(stored) == 1:
        amax = float(np.abs(floats(original.tensor, original.tensor.size)).max(initial=0))
        implied = convention.global_direction.amax(stored[0])
        amaxes = [amax if abs(implied - amax) <= 1e-6 * amax else float(np.float32(implied))]
        members = [_source_amax(source, name) for name in _relatives(group)]
        amaxes += [each for each in members if each is not None and abs(each - implied) <= 1e-6 * each]
    declared = str(group.facts.get("spec", ""))
    for name in dict.fromkeys((declared, *convention.specs)):
        if name in PROFILES and tuple(PROFILES[name].block) == convention.block:
            for each in dict.fromkeys(amaxes) if PROFILES[name].global_scale != "none" else [None]:
                if each is None or (math.isfinite(each) and each >= 0):
                    yield name, each


def _relatives(group: TensorGroup) -> list[str]:
    head, _, last = group.module.rpartition(".")
    return [
        f"{head}.{other}" for members in group.convention.fused if last in members for other in members if other != last
    ]


def _source_amax(source: Checkpoint, module: str) -> float | None:
    tensor = source.tensors.get(f"{module}.weight")
    return (
        float(np.abs(floats(tensor, tensor.size)).max(initial=0)) if tensor is not None and _is_float(tensor) else None
    )


def _reproduced(group: TensorGroup, original: _Original, spec: str, amax: float | None) -> _Reproduction:
    """Quantize the source piece by piece with a specification, and count bytes that differ."""
    differing = values = far = 0
    error = _Error()
    for piece in pieces(group):
        rows = original.read(piece)
        made = quantize(rows, spec, amax=None if amax is None else np.float32(amax))
        data, scales = np.asarray(made.row.data), np.asarray(made.row.scales)
        codes = np.stack((data & 15, data >> 4), -1).reshape(len(rows), -1) if group.convention.bits == 4 else data
        codes = codes[:, : rows.shape[1]]
        assert piece.scales is not None
        different = int((codes != piece.codes).sum()) + int((scales != piece.scales).sum())
        if 0 < different <= SINGLE:
            expected = decoded(group, piece._replace(codes=codes, scales=scales))
            values += int((expected != decoded(group, piece)).sum())
            far += _far(codes, piece.codes, FORMATS[group.convention.element].sign_bit) + _far(
                scales, piece.scales, 256
            )
        differing += different
        error.add(rows, np.asarray(dequantize(made), np.float32))
    return _Reproduction(spec, differing, values, far, error.decibels)


def _far(expected: Bytes, stored: Bytes, sign: int) -> int:
    """Count codes that are not the expected ones nor neighbours of these; zeros of both signs are one."""
    wide = (each.astype(np.int64) for each in (expected, stored))
    a, b = (np.where(each & sign, -(each & (sign - 1)), each) for each in wide)
    return int((np.abs(a - b) > 1).sum())


def _diagnosed(group: TensorGroup, original: _Original, error: _Error, needed: float, name: str) -> Verdict:
    """Return the first explanation that brings the stored values near the source's."""
    low = f"{error.decibels:.1f} dB to the source, {needed + LOSS:.1f} would be reached"
    sample = next(pieces(group))
    rows, values = original.read(sample), decoded(group, sample)
    if error.scaled >= needed and abs(error.factor - 1) > 0.01:
        return _by_factor(group, error, name, low)
    if order := column_order(rows, values):
        code, text = order
        return code, ERROR, name, f"{text}; {low}"
    moved = _moved_scales(group, sample)
    if moved is not None and _sqnr(rows, moved) >= needed:
        other = TILED_128X4 if group.layout == LINEAR else LINEAR
        return "scale-layout", ERROR, group.parts["scales"].name, f"stored in layout {other.name}; {low}"
    if text := row_order(rows, values):
        return "row-order", ERROR, name, f"{text}; {low}"
    return _local(group, original, needed, name) or ("value-mismatch", ERROR, name, low)


def _sqnr(rows: Floats, values: Floats) -> float:
    error = _Error()
    error.add(rows, values)
    return error.decibels


def _by_factor(group: TensorGroup, error: _Error, name: str, low: str) -> Verdict:
    """Name the direction of the scale that explains a constant factor, or the factor itself."""
    tensor = group.parts.get("global_scale")
    stored = numbers(tensor)
    direction = group.convention.global_direction
    if tensor is not None and len(stored) == 1 and direction.way is not ScaleWay.NONE:
        for way in (ScaleWay.MULTIPLIER, ScaleWay.DIVISOR, ScaleWay.AMAX):
            other = Direction(way, direction.constant).multiplier(stored[0])
            ratio = direction.multiplier(stored[0]) / other if other else 0
            if way is not direction.way and abs(ratio / error.factor - 1) < 0.05:
                return "scale-direction", ERROR, tensor.name, f"stored as {way}, need {direction.way}; {low}"
    return "value-factor", ERROR, name, f"all values are the source's times {error.factor:.6g}; {low}"


def _moved_scales(group: TensorGroup, sample: GroupPiece) -> Floats | None:
    """Return the values of a piece with its scales read in the other layout, where both have one shape."""
    scales = sample.scales
    if scales is None or scales.shape[0] % 128 or scales.shape[1] % 4 or group.convention.struct:
        return None
    moved: Bytes = (
        TILED_128X4.to_linear(np.ascontiguousarray(scales), *scales.shape)
        if group.layout == LINEAR
        else TILED_128X4.from_linear(scales).reshape(scales.shape)
    )
    return decoded(group, sample._replace(scales=moved))


def _local(group: TensorGroup, original: _Original, needed: float, name: str) -> Verdict | None:
    """Return rows or single blocks that are wrong, if all others are right."""
    good = _Error()
    width = group.convention.group_size or group.columns
    bad_blocks, blocks = 0, 0
    bad_rows: list[NDArray[np.bool_]] = []
    for piece in pieces(group):
        rows, values = original.read(piece), decoded(group, piece)
        usable = rows.shape[1] // width * width
        a, b = (each[:, :usable].reshape(len(rows), -1, width) for each in (rows, values))
        wrong = ~(np.abs(a - b).max(-1) <= 0.3 * np.abs(a).max(-1))
        good.add(a[~wrong], b[~wrong])
        bad_blocks, blocks = bad_blocks + int(wrong.sum()), blocks + wrong.size
        bad_rows.append(wrong.mean(1) > 0.5)
    count = int(np.concatenate(bad_rows).sum())
    if good.decibels < needed or bad_blocks > 0.3 * blocks:
        return None
    if bad_blocks <= max(SINGLE, blocks // 1000):
        return "bit-damage", ERROR, name, f"{bad_blocks} of {blocks} blocks are not the source's, all others are"
    if count:
        first = int(np.flatnonzero(np.concatenate(bad_rows))[0])
        return "value-mismatch", ERROR, name, f"{count} rows from row {first} on are not the source's, the others are"
    return None


def _plain(found: Recognized, source: Checkpoint) -> Iterator[LintFinding]:
    """Compare tensors in high precision bit for bit; where most differ, a method has changed them all."""
    same = 0
    damaged: list[str] = []
    different: list[str] = []
    for name, tensor in found.plain.items():
        other = source.tensors.get(name)
        if other is None or (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
            continue
        wrong = 0
        for begin in range(0, tensor.count, 1 << 24):
            count = min(1 << 24, tensor.count - begin)
            a, b = (np.frombuffer(each.bytes(begin, count), np.uint8) for each in (tensor, other))
            wrong += int((a != b).sum())
        same += not wrong
        if wrong:
            (damaged if wrong <= SINGLE and tensor.count > 8 * SINGLE else different).append(name)
    if damaged and same > len(damaged):
        yield finding("bit-damage", ERROR, damaged, "single bytes are not the source's")
    if different and same > len(different):
        yield finding(
            "value-mismatch", ERROR, different, "not the source's, though other tensors in high precision are"
        )
