"""Explanations of values that are not the source's: a factor, an order, a layout, or some rows and blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.access import Bytes, Floats, WeightPiece, decoded, element_values, pieces, scale_values
from fp4ref.checkpoints.check_scales import Verdict
from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.convention import Direction, ScaleWay
from fp4ref.checkpoints.findings import ERROR, LintFinding, finding
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.originals import Original, SquaredError
from fp4ref.checkpoints.permutations import column_order, row_order
from fp4ref.checkpoints.scalars import numbers
from fp4ref.layout import LINEAR, TILED_128X4

LOSS = 4.0  # decibels below the reference that show a defect
BLOCKS = 16  # of a row that tell its scales from other rows'
FEW, ROWS = 8, 1024  # wrong rows that are looked into: at least, and at most
SINGLE = 16  # bytes that count as damage where all others are right


def diagnosed(group: TensorGroup, original: Original, error: SquaredError, needed: float, name: str) -> Verdict:
    """Return the first explanation that brings the stored values near the source's."""
    low = f"{error.decibels:.1f} dB to the source, {needed + LOSS:.1f} would be reached"
    sample = next(pieces(group))
    rows, values = original.read(sample), decoded(group, sample)
    if error.scaled >= needed and abs(error.factor - 1) > 0.01:
        return _by_factor(group, error, name, low)
    if order := column_order(rows, values, group.convention.packing if group.convention.bits == 4 else None):
        code, text = order
        return code, ERROR, name, f"{text}; {low}"
    for layout, moved in _moved_scales(group, sample):
        if _sqnr(rows, moved) >= needed:
            return "scale-layout", ERROR, group.parts["scales"].name, f"stored in layout {layout}; {low}"
    if text := row_order(rows, values):
        return "row-order", ERROR, name, f"{text}; {low}"
    if text := _order_of_parts(group, sample, rows):
        return "row-order", ERROR, name, f"{text}; {low}"
    return _local(group, original, needed, name) or ("value-mismatch", ERROR, name, low)


def _order_of_parts(group: TensorGroup, sample: WeightPiece, rows: Floats) -> str:
    """Return the order of the rows of elements without their scales, or of scales alone; "" if there is none."""
    width, blocks = group.convention.group_size, rows.shape[1] // max(group.convention.group_size, 1)
    if sample.scales is None or not width or not blocks:
        return ""
    usable = rows[:, : blocks * width].reshape(len(rows), blocks, width)
    largest = np.abs(usable).max(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        even = np.nan_to_num(usable / largest[..., None]).reshape(len(rows), -1)
        logs = [
            np.nan_to_num(np.log(each), neginf=0) for each in (largest, scale_values(group)[sample.scales[:, :blocks]])
        ]
    elements = element_values(group.convention.element, sample.packed)[:, : blocks * width]
    if text := row_order(even, elements):
        return f"of the elements without their scales, {text}"
    if blocks < BLOCKS:
        return ""
    centred = [each - each.mean(1, keepdims=True) for each in logs]
    text = row_order(*centred)
    return f"of the scales without their elements, {text}" if text else ""


def _sqnr(rows: Floats, values: Floats) -> float:
    error = SquaredError()
    error.add(rows, values)
    return error.decibels


def _by_factor(group: TensorGroup, error: SquaredError, name: str, low: str) -> Verdict:
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


def _moved_scales(group: TensorGroup, sample: WeightPiece) -> Iterator[tuple[str, Floats]]:
    """Yield the values of a piece with its scales read in other layouts that have the same shape, by their names."""
    scales = sample.scales
    if scales is None or scales.shape[0] % 128 or scales.shape[1] % 4 or group.convention.struct:
        return
    tiled, untiled = f"{TILED_128X4.name} on top of the declared one", f"{LINEAR.name}, untiled once too often"
    once = TILED_128X4.to_linear(np.ascontiguousarray(scales), *scales.shape)
    back: Bytes = TILED_128X4.from_linear(scales).reshape(scales.shape)
    twice = TILED_128X4.to_linear(np.ascontiguousarray(once), *scales.shape)
    linear = group.layout == LINEAR
    names = (
        (TILED_128X4.name, untiled, f"{TILED_128X4.name}, twice") if linear else (tiled, LINEAR.name, f"{tiled}, twice")
    )
    for name, moved in zip(names, (once, back, twice), strict=True):
        yield name, decoded(group, sample._replace(scales=moved))


def _local(group: TensorGroup, original: Original, needed: float, name: str) -> Verdict | None:
    """Return rows or single blocks that are wrong, if all others are right."""
    good = SquaredError()
    width = group.convention.group_size or group.columns
    bad_blocks, blocks, kept = 0, 0, 0
    bad_rows: list[NDArray[np.bool_]] = []
    samples: list[tuple[Floats, Floats]] = []
    for piece in pieces(group):
        rows, values = original.read(piece), decoded(group, piece)
        usable = rows.shape[1] // width * width
        a, b = (each[:, :usable].reshape(len(rows), -1, width) for each in (rows, values))
        wrong = ~(np.abs(a - b).max(-1) <= 0.3 * np.abs(a).max(-1))
        good.add(a[~wrong], b[~wrong])
        bad_blocks, blocks = bad_blocks + int(wrong.sum()), blocks + wrong.size
        bad_rows.append(wrong.mean(1) > 0.5)
        if kept < ROWS:
            samples.append((rows[bad_rows[-1]][: ROWS - kept], values[bad_rows[-1]][: ROWS - kept]))
            kept += len(samples[-1][0])
    every = np.concatenate(bad_rows)
    count = int(every.sum())
    if good.decibels < needed or bad_blocks > 0.6 * blocks:
        return None
    if bad_blocks <= max(SINGLE, blocks // 1000):
        return "bit-damage", ERROR, name, f"{bad_blocks} of {blocks} blocks are not the source's, all others are"
    where = f"{count} rows from row {int(np.flatnonzero(every)[0])} on" if count else ""
    if count >= FEW:
        source, stored = (np.concatenate(each) for each in zip(*samples, strict=True))
        code, text = _of_rows(group, source, stored, needed)
        if code:
            return code, ERROR, name, f"in {where}, {text}"
    if count and bad_blocks <= 0.3 * blocks:
        return "value-mismatch", ERROR, name, f"{where} are not the source's, the others are"
    return None


def _of_rows(group: TensorGroup, rows: Floats, values: Floats, needed: float) -> tuple[str, str]:
    """Return the code and the words for what explains some wrong rows; empty if nothing does."""
    error = SquaredError()
    error.add(rows, values)
    if error.scaled >= needed and abs(error.factor - 1) > 0.01:
        return "value-factor", f"all values are the source's times {error.factor:.6g}"
    if order := column_order(rows, values, group.convention.packing if group.convention.bits == 4 else None):
        return order
    text = "" if group.matrices > 1 else row_order(rows, values)  # experts that changed places are no order of rows
    return ("row-order", text) if text else ("", "")


def judge_plain(found: Recognized, source: Checkpoint) -> Iterator[LintFinding]:
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
