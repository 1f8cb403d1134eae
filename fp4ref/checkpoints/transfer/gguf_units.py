"""Units of a GGUF that llama.cpp loads: names, orders of rows, stacks of experts, and float32 where it asks for it.

Rules: CNV-19.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.gguf_names import (
    EXPERT_NUMBERS,
    HEADS,
    HEADS_OF_KEYS,
    IN_FLOAT32,
    ROPE_FACTORS,
    GgufArchitecture,
    Placement,
    RowOrder,
    is_number,
    model_numbers,
    rope_scaling,
    row_axis,
)
from fp4ref.checkpoints.transfer.placing import Emit, Placed
from fp4ref.checkpoints.transfer.units import Unit
from fp4ref.errors import DomainError
from fp4ref.files.tensors import DTYPES

Bytes = NDArray[np.uint8]
FLOATS = ("BF16", "F16", "F64")


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of GGUF that is made of one of the Hub's, or of one for each expert.

    members: those in their order, each as the number of its unit and the tensor. order: of its rows. together: rows
    that are reordered among themselves, or divided between two tensors.
    """

    name: str
    members: tuple[tuple[int, Placed], ...]
    order: RowOrder
    together: int
    stacked: bool

    @property
    def source(self) -> Placed:
        """The first member."""
        return self.members[0][1]

    @property
    def widened(self) -> bool:
        """True if the values become float32: norms, biases, routers, and all else of one dimension."""
        return self.source.dtype in FLOATS and (self.name.endswith(IN_FLOAT32) or len(self.source.shape) < 2)

    @property
    def halved(self) -> bool:
        """True if the tensor has every second row."""
        return self.order in {RowOrder.EVEN, RowOrder.ODD} and not is_number(self.name)

    @cached_property
    def placed(self) -> Placed:
        """The tensor as it is stored."""
        shape, count = [*self.source.shape], self.source.length
        if self.halved:
            axis = row_axis(self.name)
            shape[axis], count = shape[axis] // 2, count // 2
        if self.widened:
            count = 4 * math.prod(shape)
        if self.stacked:
            shape = [len(self.members), *(shape if shape != [1] else [])]
        dtype = "F32" if self.widened else self.source.dtype
        return Placed(self.name, dtype, tuple(shape), count * len(self.members))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a member; of a bias, of an element."""
        if row_axis(self.name) == -1:
            return 4 if self.widened else DTYPES[self.source.dtype].bits // 8
        rows = math.prod(self.source.shape[:-1])
        return (4 * self.source.shape[-1]) if self.widened else self.source.length // max(rows, 1)

    def changed(self, data: Bytes) -> Bytes:
        """Return the bytes of whole groups of rows as they are stored."""
        if self.order is RowOrder.SAME or is_number(self.name):
            return data
        groups = data.reshape(-1, self.together, self.row_bytes)
        if self.halved:
            return np.ascontiguousarray(groups[:, self.order is RowOrder.ODD :: 2])
        return alternated(groups)


def alternated(groups: Bytes) -> Bytes:
    """Return the rows of each head, [heads, rows, bytes], so that those of its halves alternate."""
    count, rows, width = groups.shape
    return np.ascontiguousarray(groups.reshape(count, 2, rows // 2, width).swapaxes(1, 2))


def widen(data: Any, dtype: str) -> Bytes:
    """Return floating-point numbers as the bytes of float32. Rules: CNV-38."""
    return np.frombuffer(data, DTYPES[dtype].array).astype(np.float32).view(np.uint8)


@dataclass(frozen=True)
class GgufUnit:
    """A unit of the Hub's tensors, or one for each expert, that is written as tensors of GGUF.

    Rules: CNV-19, CNV-37.
    """

    units: Sequence[Unit]
    made: Sequence[GgufTensor]

    @property
    def home(self) -> str:
        """The source's shard of the first unit."""
        return self.units[0].home

    def tensors(self) -> list[Placed]:
        """Return the tensors of GGUF."""
        return [each.placed for each in self.made]

    def remarks(self) -> list[str]:
        """Return the remarks of all units."""
        return [text for each in self.units for text in each.remarks()]

    def write(self, emit: Emit) -> list[str]:
        """Emit every tensor; rows that are reordered among themselves are kept until all of them are there."""
        done = dict.fromkeys((each.name for each in self.made), 0)
        losses: list[str] = []
        for number, unit in enumerate(self.units):
            targets: dict[str, list[GgufTensor]] = {}
            for each in self.made:
                for index, placed in each.members:
                    if index == number:
                        targets.setdefault(placed.name, []).append(each)
            kept: dict[str, Bytes] = {}

            def part(
                name: str,
                offset: int,
                data: Any,
                targets: Mapping[str, list[GgufTensor]] = targets,
                kept: dict[str, Bytes] = kept,
            ) -> None:
                del offset  # each tensor's bytes come in order
                first = targets[name][0]
                given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else _flat(data)
                if first.widened:
                    given = widen(given, first.source.dtype)
                if name in kept:
                    given = np.concatenate([kept.pop(name), given])
                whole = len(given)
                if first.order is not RowOrder.SAME and not is_number(first.name):
                    whole -= whole % (first.together * first.row_bytes)
                if whole < len(given):
                    kept[name] = given[whole:].copy()
                for each in targets[name]:
                    made = each.changed(given[:whole]).reshape(-1)
                    if len(made):
                        emit(each.name, done[each.name], made)
                        done[each.name] += len(made)

            losses += unit.write(part)
        return losses


def _flat(data: Any) -> Bytes:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class MadeTensor:
    """A tensor that the source has not: its bytes are known. home: the shard beside whose tensors it is written."""

    name: str
    values: NDArray[np.float32]
    home: str

    def tensors(self) -> list[Placed]:
        """Return the tensor."""
        return [Placed(self.name, "F32", self.values.shape, self.values.nbytes)]

    def write(self, emit: Emit) -> list[str]:
        """Emit the bytes."""
        emit(self.name, 0, self.values.tobytes())
        return []

    def remarks(self) -> list[str]:
        """Return nothing."""
        return []


def for_llama_cpp(units: Iterable[Unit], architecture: GgufArchitecture, config: Mapping[str, Any]) -> list[Unit]:
    """Return units with the names, orders and types of an architecture.

    Errors: DomainError for a tensor that the architecture has no name for, experts of which some are missing or differ,
    and rows that are not whole heads.

    Rules: CNV-19, CNV-41.
    """
    numbers = model_numbers(config)
    alone: list[Unit] = []
    stacks: dict[str, dict[int, Unit]] = {}
    for unit in units:
        places = [place for tensor in unit.tensors() for place in _places(architecture, tensor)]
        experts = {place.expert for place in places}
        if experts == {None}:
            alone.append(_gguf_unit([unit], architecture, numbers))
        else:
            (expert,) = experts
            assert expert is not None
            stacks.setdefault(places[0].name, {})[expert] = unit
    declared = [numbers[key] for key in EXPERT_NUMBERS[0].config if isinstance(numbers.get(key), int)]
    for name, members in stacks.items():
        every = range(max(*declared, 1 + max(members), 0))
        if (missing := next((number for number in every if number not in members), None)) is not None:
            raise DomainError("convert", f"{name} without expert {missing}", "all experts", "CNV-41")
        alone.append(_gguf_unit([members[number] for number in sorted(members)], architecture, numbers))
    if rope_scaling(config).get("rope_type") == "llama3" and alone:
        alone.append(MadeTensor(ROPE_FACTORS, rope_factors(config), alone[0].home))
    return alone


def _places(architecture: GgufArchitecture, tensor: Placed) -> list[Placement]:
    found = architecture.place(tensor.name)
    if not found:
        got = f"{tensor.name}, for which llama.cpp's {architecture.name} has no name"
        raise DomainError("convert", got, "--exclude does not leave tensors out: a checkpoint without it", "CNV-41")
    return found


def _gguf_unit(units: list[Unit], architecture: GgufArchitecture, numbers: Mapping[str, Any]) -> GgufUnit:
    """Return the unit of one, or of those of all experts."""
    made: dict[str, GgufTensor] = {}
    for index, unit in enumerate(units):
        for tensor in unit.tensors():
            for place in _places(architecture, tensor):
                before = made.get(place.name)
                members = (*(before.members if before else ()), (index, tensor))
                together = _together(place.order, tensor, place.name, numbers)
                made[place.name] = GgufTensor(place.name, members, place.order, together, place.expert is not None)
    for each in made.values():
        kinds = {(placed.dtype, placed.shape) for _, placed in each.members}
        if len(each.members) != len(units) or len(kinds) > 1:
            got = f"{each.name} of experts that are stored in {len(kinds)} forms, {len(each.members)} of {len(units)}"
            raise DomainError("convert", got, "the same tensors of each expert", "CNV-41")
    return GgufUnit(units, [*made.values()])


def _together(order: RowOrder, tensor: Placed, name: str, numbers: Mapping[str, Any]) -> int:
    """Return how many rows are reordered among themselves, or divided."""
    if order is RowOrder.SAME or is_number(name):
        return 1
    rows = tensor.shape[row_axis(name)]
    if order in {RowOrder.EVEN, RowOrder.ODD}:
        together = 2
    else:
        key = HEADS if order is RowOrder.QUERY else HEADS_OF_KEYS
        heads = numbers.get(key) or numbers[HEADS]
        together = rows // heads if rows % heads == 0 else 0
    if not together or together % 2 or rows % together:
        raise DomainError("convert", f"{tensor.name} with {rows} rows", "a whole number of heads or pairs", "CNV-41")
    return together


def rope_factors(config: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the divisors of frequencies of a rotation of type llama3, [half a head], in float32.

    A wavelength below the first bound keeps its frequency, one above the second is divided by the factor, and between
    both the reciprocals are interpolated.

    Rules: CNV-19.
    """
    numbers, scaling = model_numbers(config), rope_scaling(config)
    width = numbers["head_dim"]
    base = float(scaling.get("rope_theta", numbers["rope_theta"]))
    factor, low, high = (
        float(scaling.get(key, usual))
        for key, usual in (("factor", 8), ("low_freq_factor", 1), ("high_freq_factor", 4))
    )
    context = float(scaling.get("original_max_position_embeddings", 8192))
    lengths = 2 * math.pi * base ** (np.arange(0, width, 2, dtype=np.float64) / width)
    smooth = np.clip((context / lengths - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float32)
