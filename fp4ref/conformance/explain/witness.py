"""The smallest input on which two specifications differ: found in a tensor, then shrunk."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.conformance.explain import difference
from fp4ref.conformance.explain.difference import Count
from fp4ref.conformance.explain.formulas import decimal
from fp4ref.conformance.explain.notation import write_values
from fp4ref.conformance.explain.probes import InputKind, Probe, SpecPair, ordinary, oriented
from fp4ref.conformance.explain.shrink import shrunk
from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.hadamard import POINTS
from fp4ref.model.dequantize import dequantize
from fp4ref.model.quantize import global_amax
from fp4ref.model.tiles import split, widen
from fp4ref.names import named_places
from fp4ref.quantized import Direction, matrix_shape
from fp4ref.spec import Block, Granularity, Spec

BLOCKS_LOOKED_AT = 1000  # of one tensor
BLOCKS_TRIED = 6  # differing blocks of one tensor and of one sort that are tried as a witness


@dataclass(frozen=True)
class SpecOutcome:
    """The result of one specification for one element of a witness."""

    spec: str
    scale: int
    code: int
    value: np.float32


@dataclass(frozen=True)
class Witness:
    """A shrunk input, the first element [row, column] of it on which the two differ, and both outcomes."""

    kind: InputKind
    probe: Probe
    row: int
    column: int
    outcomes: tuple[SpecOutcome, SpecOutcome]

    def command(self, spec: Spec) -> str:
        """Return the command line that explains the element under one of the specifications."""
        x, words = self.probe.x, [f"fp4ref explain --spec {spec.name}"]
        words.append(f'--values "{write_values(x)}"')
        index = self.row * x.shape[1] + self.column
        words += [f"--columns {x.shape[1]}"] if x.shape[0] > 1 else []
        words += [f"--index {index}"] if index else []
        words += [f"--dtype {x.dtype.name}"] if x.dtype != F else []
        words += [f"--direction {self.probe.direction}"] if self.probe.direction != "row" else []
        if self.probe.amax is not None and spec.global_scale is not Granularity.NONE:
            words.append(f"--amax {decimal(self.probe.amax)}")
        words += [f"--random-byte {difference.RANDOM_BYTE}"] if spec.stochastic else []
        words += [f"--import {shlex.quote(place)}" for place in named_places()]
        return " ".join(words)


@ignoring_float_warnings
def suspects(pair: SpecPair, x: NDArray[Any], direction: Direction, backend: str | None = "numpy") -> list[Probe]:
    """Small inputs from a tensor on which two specifications differ; each of them may differ as well.

    Differing blocks alone, with the tensor's amax, and together with the block that holds it.
    """
    matrix = x.reshape(-1, x.shape[-1]) if direction == "row" else x.reshape(-1, x.shape[-1]).T
    height = math.lcm(pair.a.block.rows, pair.b.block.rows)
    width = math.lcm(pair.a.block.columns, pair.b.block.columns)
    amax = _global_amax(pair, x, direction)
    given = (None, amax) if np.isfinite(amax) else (None,)
    other = _block(matrix, _largest(matrix), height, width)
    found = []
    for at in _differing(pair, x, direction, (height, width), backend):
        block = _block(matrix, at, height, width)
        for part in (block, _with_specials_kept(block)):
            found += [Probe(oriented(part, direction), direction, value) for value in given]
        if other.shape == block.shape:
            found.append(Probe(oriented(np.concatenate([block, other]), direction), direction))
    return found


def find(pair: SpecPair, probes: list[Probe], kind: InputKind) -> Witness | None:
    """Return a shrunk witness of one kind, or None if no small input tells the two apart by it."""
    probe = next((probe for probe in probes if pair.tells(probe, kind)), None)
    if probe is None:
        return None
    witness: Witness = _witness(pair, shrunk(pair, probe, kind), kind)
    return witness


def _block(matrix: NDArray[Any], at: tuple[int, int], height: int, width: int) -> NDArray[Any]:
    """Return the block that holds an element, as far as the matrix reaches."""
    row, column = at[0] // height * height, at[1] // width * width
    return matrix[row : row + height, column : column + width]


def _largest(matrix: NDArray[Any]) -> tuple[int, int]:
    """Return the index of the largest finite magnitude."""
    best, at = -1.0, (0, 0)
    for row, values in enumerate(matrix):
        magnitude = np.abs(widen(values))
        magnitude[~np.isfinite(magnitude)] = 0
        column = int(magnitude.argmax())
        if magnitude[column] > best:
            best, at = float(magnitude[column]), (row, column)
    return at


def _global_amax(pair: SpecPair, x: NDArray[Any], direction: Direction) -> float:
    """Return the tensor's amax, or NaN where no specification has a use for it."""
    for spec in (pair.a, pair.b):
        if spec.global_scale is not Granularity.NONE:
            return float(global_amax(x, spec, direction).max(initial=0))
    return math.nan


def _with_specials_kept(block: NDArray[Any]) -> NDArray[Any]:
    """Keep at most one special value and set the others to +0: a block may differ for an ordinary reason as well."""
    special = np.argwhere(~np.isfinite(widen(block)) | ((widen(block) == 0) & np.signbit(widen(block))))
    kept = ordinary(block)
    if len(special):
        kept[tuple(special[0])] = block[tuple(special[0])]
    return kept


def _differing(
    pair: SpecPair, x: NDArray[Any], direction: Direction, size: tuple[int, int], backend: str | None
) -> Iterator[tuple[int, int]]:
    """Yield some of the blocks that differ, of each sort, spread over the tensor."""
    ours, theirs = (difference.quantize(x, spec, direction, backend=backend) for spec in (pair.a, pair.b))
    matrix = x.reshape(-1, x.shape[-1]) if direction == "row" else x.reshape(-1, x.shape[-1]).T
    changed = split(_changed(pair, ours, theirs, direction, x.dtype), Block(*size))
    blocks = np.argwhere(changed.any(axis=(2, 3))) * size
    sorts: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for row, column in blocks[np.linspace(0, len(blocks) - 1, min(BLOCKS_LOOKED_AT, len(blocks))).astype(int)]:
        values = widen(_block(matrix, (row, column), *size))
        minus_zero = bool((np.signbit(values) & (values == 0)).any())
        sort = (bool(np.isfinite(values).all()), minus_zero, bool(values.any()))
        sorts.setdefault(sort, []).append((int(row), int(column)))
    for members in sorts.values():
        for index in np.linspace(0, len(members) - 1, min(BLOCKS_TRIED, len(members))).astype(int):
            yield members[index]


def _changed(pair: SpecPair, ours: Any, theirs: Any, direction: Direction, source: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return True for elements that differ in their code, their scale byte or, if these do not compare, their value."""
    if not difference.same_bytes(pair.a, pair.b):
        return np.concatenate([*difference._different_values(ours, theirs, direction, source)])
    (first, shape), (second, _) = ours.direction(direction), theirs.direction(direction)
    form = pair.a.element.format
    codes = packing.unpack(first.data, shape[1], form) != packing.unpack(second.data, shape[1], form)
    scales = np.repeat(first.scales != second.scales, pair.a.block.columns, axis=1)[:, : shape[1]]
    changed: NDArray[np.bool_] = codes | scales
    return changed


@ignoring_float_warnings
def _witness(pair: SpecPair, probe: Probe, kind: InputKind) -> Witness:
    """Both outcomes of the first element that differs."""
    results = [difference.quantize(probe.x, spec, probe.direction, probe.amax) for spec in (pair.a, pair.b)]
    changed = _changed(pair, results[0], results[1], probe.direction, probe.x.dtype)
    matrix = widen(probe.x if probe.direction == "row" else probe.x.T)
    telling = changed & (matrix != 0) if (changed & (matrix != 0)).any() else changed
    at = tuple(int(i) for i in np.argwhere(telling)[0])
    outcomes = []
    for spec, q in zip((pair.a, pair.b), results, strict=True):
        data, shape = q.direction(probe.direction)
        code = packing.unpack(data.data, shape[1], spec.element.format)[at]
        values: Floats = dequantize(data, shape, spec, np.dtype(F), probe.x.dtype)
        scale = data.scales[at[0], at[1] // spec.block.columns]
        outcomes.append(SpecOutcome(spec.name, int(scale), int(code), values[at]))
    row, column = at if probe.direction == "row" else at[::-1]
    return Witness(kind, probe, row, column, (outcomes[0], outcomes[1]))


@dataclass(frozen=True)
class SpecComparison:
    """The differences between two specifications: counts per tensor or family, a witness per kind."""

    a: Spec
    b: Spec
    counts: list[Count]
    witnesses: list[Witness]


def compare(a: Spec, b: Spec, x: NDArray[Any] | None = None) -> SpecComparison:
    """Count the differences on a tensor, or on the built-in ones, and find a witness of every kind."""
    pair, backend = SpecPair(a, b), "numpy" if x is None else None
    counts: list[Count] = []
    probes: list[Probe] = []
    for name, direction, tensor in _tensors(a, b, x):
        counts.append(difference.count(a, b, tensor, direction, name, backend=backend))
        if counts[-1].differs:
            probes += suspects(pair, tensor, direction, backend)
    witnesses = [found for kind in InputKind if (found := find(pair, probes, kind)) is not None]
    return SpecComparison(a, b, difference.summed(counts), witnesses)


def _tensors(a: Spec, b: Spec, x: NDArray[Any] | None) -> Iterator[tuple[str, Direction, NDArray[Any]]]:
    """Yield the given tensor in the directions that its type and shape allow, or the built-in ones. Rules: HAD-5."""
    if x is None:
        yield from difference.inputs(a, b)
        return
    transformable = x.dtype == ml_dtypes.bfloat16 and x.ndim > 0 and matrix_shape(x.shape)[0] % POINTS == 0
    for direction in difference.directions(a, b):
        if direction == "row" or transformable:
            yield "tensor", direction, x
