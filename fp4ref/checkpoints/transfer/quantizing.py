"""Quantizing matrices of a checkpoint: one pass for the amax of a fused set, and one for the bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.api import quantize
from fp4ref.checkpoints import access
from fp4ref.checkpoints.access import WeightPiece
from fp4ref.checkpoints.convention import CONVENTIONS, Convention, Direction, ScaleWay
from fp4ref.checkpoints.lossless import LosslessVerdict, target_of
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.checkpoints.transfer.choice import choose
from fp4ref.checkpoints.transfer.placing import Emit, Placed, PlacedWeight
from fp4ref.checkpoints.transfer.recoding import global_scale, recoded, verdict_of
from fp4ref.checkpoints.transfer.scales import StoredScale
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError
from fp4ref.files.tensors import DTYPES
from fp4ref.spec import Granularity, Spec

FLOATING = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# Yields a matrix, its first row, and values that are valid until the next ones are asked for.
Rows = Callable[[int], Iterator[tuple[int, int, NDArray[Any]]]]


class MatrixValues(NamedTuple):
    """A matrix whose values are to be quantized.

    read: yields rows in order. home: the source's shard. dtype: of the values. again: the quantized weight that they
    are decoded from, if there is one; differences from it are losses.
    """

    module: str
    shape: tuple[int, ...]
    read: Rows
    home: str
    dtype: str
    again: Weight | None = None


def values_of(tensor: StoredTensor, module: str) -> MatrixValues:
    """Return the values of a tensor in high precision."""
    rows, columns = tensor.shape[-2:]
    kind = DTYPES[tensor.dtype]
    width = columns * kind.bits // 8

    def read(multiple: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        step = min(max(access.PIECE // columns // multiple, 1) * multiple, rows)
        buffer = np.empty(step * width, np.uint8)
        for matrix in range(math.prod(tensor.shape[:-2])):
            for row in range(0, rows, step):
                count = min(step, rows - row)
                data = buffer[: count * width]
                tensor.fill((matrix * rows + row) * width, data.data)
                yield matrix, row, data.view(kind.array).reshape(count, columns)

    return MatrixValues(module, tensor.shape, read, tensor.shard.name, FLOATING[tensor.dtype])


def values_again(weight: Weight, home: str) -> MatrixValues:
    """Return the decoded values of a quantized weight."""

    def read(multiple: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        for piece in weight.read(multiple):
            yield piece.matrix, piece.row, weight.decoded(piece)

    return MatrixValues(weight.module, weight.shape, read, home, "float32", weight)


def requantized(weight: Weight, spec: Spec) -> Weight:
    """Return the weight that a specification makes of the decoded values of another one."""
    return QuantizedSet([values_again(weight, "")], spec, "").unplaced()


def require_spec(spec: Spec) -> None:
    """Refuse a specification whose bytes no convention has. Rules: CNV-56."""
    needed = "nearest rounding, and one global scale per tensor or none"
    if spec.stochastic or spec.global_scale is Granularity.ROW:
        raise DomainError("quantize", f"specification {spec.name}", needed, "CNV-56")


@dataclass(frozen=True)
class QuantizedSet:
    """Matrices that share their global scale: the members of a fused set, or one alone. Rules: CNV-13."""

    members: Sequence[MatrixValues]
    spec: Spec
    to: str
    notes: list[str] = field(default_factory=list, compare=False)
    lost: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def home(self) -> str:
        """The source's shard of the first member."""
        return self.members[0].home

    @cached_property
    def placed(self) -> list[PlacedWeight]:
        """The members as weights in their convention, with a global scale that stands for the one to be found."""
        members = [self._weight(each, 1.0) for each in self.members]
        return [PlacedWeight(weight, convention_for(weight, self.spec, self.to)) for weight in members]

    def tensors(self) -> list[Placed]:
        """Return the tensors of all members."""
        return [tensor for each in self.placed for tensor in each.tensors()]

    def unplaced(self) -> Weight:
        """Return the only member, quantized."""
        (member,) = self.members
        return self._weight(member, _largest(member, self._step(1)) if self._is_scaled else 1.0)

    def write(self, emit: Emit) -> list[str]:
        """Recode all members if that is exact; otherwise find the amax of all, and quantize them.

        Return how far values that were quantized before move.

        Rules: CNV-13, CNV-50, CNV-51, CNV-57.
        """
        weights = [each.again for each in self.members if each.again is not None]
        verdict = None
        if len(weights) == len(self.members):
            verdict = verdict_of(weights, target_of(self.spec))
            if verdict is not None and verdict.lossless and self._recode(weights, verdict, emit):
                return []
        amax = 1.0
        if self._is_scaled:
            pairs = zip(self.members, self.placed, strict=True)
            amax = max((_largest(each, self._step(placed.tile)) for each, placed in pairs), default=0.0)
        losses = []
        for values, planned in zip(self.members, self.placed, strict=True):
            placed = replace(planned, weight=self._weight(values, amax))
            placed.write(emit)
            if values.again is not None and (text := _moved(values.again, placed.weight)):
                witness = f"; not exact: {verdict.witness}" if verdict is not None and verdict.witness else ""
                losses.append(text + witness)
        return losses

    def _recode(self, weights: list[Weight], verdict: LosslessVerdict, emit: Emit) -> bool:
        """Write weights whose values the specification has exactly; False if the convention cannot store them so.

        Rules: CNV-21.
        """
        target, placed = target_of(self.spec), list[PlacedWeight]()
        for old, planned in zip(weights, self.placed, strict=True):
            new = recoded(old, target, verdict, self._scale_of_zeros())
            if target.free:
                scale = global_scale(old, verdict, planned.convention.global_direction)
                if scale is None:
                    return False
                new = replace(new, global_scale=scale)
            placed.append(replace(planned, weight=replace(new, input_scale=planned.weight.input_scale)))
        for each in placed:
            each.write(emit)
            self.notes.append(f"{each.weight.module}: recoded as {self.spec.name}, every value is the same")
        return True

    def _scale_of_zeros(self) -> int:
        """Return the scale byte of a block of zeros."""
        zeros = np.zeros((self.spec.block.rows, self.spec.block.columns), np.float32)
        amax = np.float32(1) if self._is_scaled else None
        return int(np.asarray(quantize(zeros, self.spec, amax=amax).row.scales).flat[0])

    def remarks(self) -> list[str]:
        """Return which weights were recoded and not quantized, and which blocks became zero."""
        texts = (
            f"{module}: {count} blocks that are not zero have a scale of 0, too small beside the amax of the set"
            for module, count in self.lost.items()
            if count
        )
        return [*self.notes, *texts]

    @property
    def _is_scaled(self) -> bool:
        """True if there is a global scale, so that all values are read once before any is quantized."""
        return self.spec.global_scale is not Granularity.NONE

    def _step(self, multiple: int) -> int:
        """Return the number of rows that the pieces of both passes have a multiple of."""
        return math.lcm(multiple, self.spec.block.rows)

    def _weight(self, values: MatrixValues, amax: float) -> Weight:
        spec = self.spec
        constant = Direction(ScaleWay.AMAX, float(spec.scale_max * (spec.element_max or spec.element.format.max)))
        given = np.float32(amax or constant.constant) if self._is_scaled else None  # zeros get the factor 1

        def read(multiple: int) -> Iterator[WeightPiece]:
            for matrix, row, part in values.read(self._step(multiple)):
                if not self._is_scaled:  # the pass for the amax has refused what is not finite
                    largest_magnitude(values.module, part)
                result = quantize(part, spec, amax=given).row
                data, scales = np.asarray(result.data), np.asarray(result.scales)
                if row == matrix == 0:
                    self.lost[values.module] = 0
                if self._is_scaled and (zero := scales == 0).any():
                    self.lost[values.module] += _other_than_zero(part, zero, spec.block.columns)
                yield WeightPiece(matrix, row, data, scales)

        return Weight(
            module=values.module,
            element=spec.element.format.name,
            scale=spec.scale.format.name,
            block=(1, spec.block.columns),
            shape=values.shape,
            read=read,
            global_scale=None if given is None else StoredScale(np.array([given], np.float32), constant),
            input_scale=self._input_scale(values.again),
        )

    def _input_scale(self, old: Weight | None) -> StoredScale | None:
        """Return the input scale that a weight keeps: that of the same formats."""
        formats = self.spec.element.format.name, self.spec.scale.format.name, (1, self.spec.block.columns)
        return old.input_scale if old is not None and (old.element, old.scale, old.block) == formats else None

    def inputs_left_out(self) -> list[str]:
        """Return the members with an input scale that the new weight has not. Rules: CNV-65."""
        pairs = zip(self.members, self.placed, strict=True)
        return [
            values.module
            for values, placed in pairs
            if values.again is not None and values.again.input_scale is not None and not placed.scale("input_scale")
        ]


def _other_than_zero(values: NDArray[Any], zero: NDArray[np.bool_], width: int) -> int:
    """Return the number of blocks with a scale of zero that have other elements."""
    some = np.flatnonzero(zero.any(-1))
    starts = np.arange(0, values.shape[1], width)
    full = np.add.reduceat(values[some] != 0, starts, axis=1, dtype=np.int64) > 0
    return int((full & zero[some][:, : len(starts)]).sum())


def convention_for(weight: Weight, spec: Spec, to: str) -> Convention:
    """Return the convention of a family that names a specification, else the first that expresses its bytes."""
    family = to.partition(".")[0]
    named = [each for each in CONVENTIONS.values() if each.family == family and spec.name in each.specs]
    return choose(weight, to if to in CONVENTIONS or not named else named[0].name)


def largest_magnitude(module: str, values: NDArray[Any]) -> float:
    """Return the largest magnitude. Magnitudes of floating-point numbers are in the order of their bits.

    Errors: DomainError for a value that is not finite.

    Rules: CNV-56.
    """
    signed, unsigned = np.dtype(f"i{values.itemsize}"), np.dtype(f"u{values.itemsize}")
    positive = values.view(signed).max(initial=0)
    negative = int(values.view(unsigned).max(initial=0)) & np.iinfo(signed).max
    largest = unsigned.type(max(int(positive), negative)).view(values.dtype)
    if not np.isfinite(np.float64(largest)):
        raise DomainError("quantize", f"{module}: values that are not finite", "finite weights, or --exclude", "CNV-56")
    return float(largest)


def _largest(values: MatrixValues, multiple: int) -> float:
    """Return the largest magnitude of a matrix, read in pieces of a multiple of some rows."""
    return max((largest_magnitude(values.module, part) for _, _, part in values.read(multiple)), default=0.0)


def _moved(old: Weight, new: Weight) -> str:
    """Return how many decoded values differ, and by how much; "" if none. Rules: CNV-51, CNV-66."""
    count = differ = 0
    signal = noise = 0.0
    for one, two in zip(old.read(16), new.read(16), strict=True):
        before, after = old.decoded(one).astype(np.float64), new.decoded(two).astype(np.float64)
        count, differ = count + before.size, differ + int((before != after).sum())
        signal, noise = signal + float((before**2).sum()), noise + float(((before - after) ** 2).sum())
    if not differ:
        return ""
    decibels = 10 * math.log10(signal / noise) if signal and noise else math.inf
    return f"{old.module}: {differ} of {count} decoded values differ, SQNR {decibels:.1f} dB"
