"""A quantized weight in a convention: which tensors it becomes, and the bytes of each, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.access import WeightPiece, rows_of_a_piece, struct_heads, swapped
from fp4ref.checkpoints.convention import Convention, Direction, ScaleWay, StoredRole
from fp4ref.checkpoints.float_scales import EXPONENTS, FloatScales
from fp4ref.checkpoints.transfer.scales import StoredScale
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError
from fp4ref.files.tensors import DTYPES, byte_count, is_packed
from fp4ref.layout import LINEAR, Layout
from fp4ref.packings import CANONICAL, HIGH_FIRST, LOW_FIRST, packed_shape, repack

Bytes = NDArray[np.uint8]
Emit = Callable[[str, int, Any], None]  # a tensor's name, an offset in it, and bytes


class Placed(NamedTuple):
    """A tensor that will be stored: its name, element type, shape, and number of bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class PlacedWeight:
    """A weight with the convention that it is stored in.

    Rules: CNV-1.
    """

    weight: Weight
    convention: Convention

    def __post_init__(self) -> None:
        columns, convention = self.padded[1], self.convention
        step = convention.block[1] if convention.split else convention.codes_per_item
        if convention.struct:
            step = convention.packing.axes[1].multiple
        if columns % step:
            got = f"{self.weight.module}: {columns} columns"
            raise DomainError("convert", got, f"a multiple of {step} for {convention.name}", "CNV-6")
        if self.weight.matrices > 1 and self.layout != LINEAR:
            got = f"{self.weight.module} with {self.weight.matrices} matrices"
            raise DomainError("convert", got, f"one: {convention.name} stores matrices", "CNV-6")

    @cached_property
    def own(self) -> dict[str, Any]:
        """The attributes that the weight had in this convention; nothing if it comes from another."""
        return self.weight.origin if self.weight.origin.get("convention") == self.convention.name else {}

    @cached_property
    def padded(self) -> tuple[int, int]:
        """Rows and columns as stored."""
        high, wide = self.convention.multiples
        return -(-self.weight.rows // high) * high, -(-self.weight.columns // wide) * wide

    @cached_property
    def layout(self) -> Layout:
        """The layout of the scales: the one that the weight came with, if it comes from this convention."""
        return self.convention.layout_of(self.convention, self.own.get("facts", {}))

    @property
    def blocks(self) -> int:
        """Scales of a stored row."""
        return -(-self.padded[1] // self.convention.block[1])

    def scale(self, role: str) -> StoredScale | None:
        """Return the global or the input scale in this convention's direction; None if it is not stored. Rules: CNV-3.

        A weight without a global scale gets the factor 1 where the convention needs one.
        """
        convention, weight = self.convention, self.weight
        found = weight.global_scale if role == "global_scale" else weight.input_scale
        place = convention.roles.get(role)
        if place is None:
            return None
        direction = convention.global_direction if role == "global_scale" else convention.input_direction
        if found is not None:
            left_out = self.own and not place.needed and role not in self.own.get("parts", {})
            return None if left_out and [*found.factors()] == [1] else found.to(direction)
        if role != "global_scale" or not place.needed:
            return None
        return StoredScale(np.ones(1, np.float32), Direction(ScaleWay.MULTIPLIER)).to(direction)

    def tensors(self) -> list[Placed]:
        """Return the tensors, each with its role's suffix. Rules: CNV-1."""
        return [*self._tensors]

    @cached_property
    def _tensors(self) -> list[Placed]:
        found = [self._codes()]
        if not self.convention.struct:
            found.append(self._scales())
        for role in ("global_scale", "input_scale"):
            scale = self.scale(role)
            if scale is not None:
                found.append(self._number(role, scale))
        return found

    def stored(self) -> list[str]:
        """Return the roles that are stored."""
        scales = [] if self.convention.struct else ["scales"]
        return ["codes", *scales, *(role for role in ("global_scale", "input_scale") if self.scale(role) is not None)]

    def kept(self) -> dict[str, Any]:
        """Return metadata that the way back needs beside the tensors: origin, scales and shape, if any.

        Rules: CNV-5, CNV-26, CNV-27.
        """
        weight, kept = self.weight, dict[str, Any]()
        if weight.origin and not self.own:
            kept |= weight.origin
            for role, scale in (("global_scale", weight.global_scale), ("input_scale", weight.input_scale)):
                if scale is not None:
                    kept[role] = scale.to_record()
        return kept | ({"shape": [*weight.shape]} if self.padded != weight.shape[-2:] else {})

    def name(self, role: str) -> str:
        """Return the name of the tensor of a role."""
        return self.convention.names(self.weight.module)[role]

    def _codes(self) -> Placed:
        convention, (rows, columns) = self.convention, self.padded
        front = self.weight.shape[:-2]
        name, dtype = self.name("codes"), self._dtype("codes", convention.codes)
        if convention.struct:
            count = rows * packed_shape(convention.packing, 1, columns)[-1]
            return Placed(name, dtype, (*front, rows, columns), self.weight.matrices * count)
        inner: tuple[int, ...] = (columns // convention.codes_per_item,)
        if convention.split:
            inner = (columns // convention.block[1], convention.block[1] // convention.codes_per_item)
        shape = (*front, rows, *inner)
        return Placed(name, dtype, shape, math.prod(shape) * DTYPES[dtype].bits // 8)

    def _scales(self) -> Placed:
        role = self.convention.scales
        assert role is not None
        name = self.name("scales")
        if self.weight.float_scales is not None:
            scales = self._float_scales(self.weight.float_scales, role)
            return Placed(name, scales.dtype, scales.shape, len(scales.data))
        high, wide = self.layout.padded_shape(self.padded[0], self.blocks)
        shape = self._shape("scales", (*self.weight.shape[:-2], high, wide))
        return Placed(name, self._dtype("scales", role), shape, math.prod(shape))

    def _float_scales(self, scales: FloatScales, role: StoredRole) -> FloatScales:
        """Return scales that are numbers, in a type and shape of the convention."""
        usual = role.shape if math.prod(scales.shape) == 1 else scales.shape
        if self.convention.granularity in {"row", "square"}:
            usual = self.convention.float_scale_shape(self.weight.shape)
        shape = self._shape("scales", usual)
        dtype = self._dtype("scales", role, scales.dtype)
        if dtype == scales.dtype:
            return FloatScales(dtype, shape, scales.data)
        numbers = scales.numbers()
        if dtype in EXPONENTS:
            data = (np.frexp(numbers)[1] + 126).astype(np.uint8).tobytes()
        else:
            with np.errstate(over="ignore"):
                data = numbers.astype(DTYPES[dtype].array).tobytes()
        made = FloatScales(dtype, shape, data)
        if np.array_equal(made.numbers(), numbers, equal_nan=dtype not in EXPONENTS):
            return made
        if scales.dtype not in role.dtypes:
            got = f"{self.weight.module}: scales that are no {'powers of two' if dtype in EXPONENTS else dtype}"
            raise DomainError("convert", got, f"those: {self.convention.name} stores {dtype}", "CNV-6")
        return FloatScales(scales.dtype, shape, scales.data)

    def _number(self, role: str, scale: StoredScale) -> Placed:
        place = self.convention.roles[role]
        each = (scale.values.size,) if self.convention.struct else (scale.values.size, 1, 1)  # of several matrices
        shape = self._shape(role, place.shape if scale.values.size == 1 else each)
        dtype = self._dtype(role, place)
        return Placed(self.name(role), dtype, shape, byte_count(dtype, shape))

    def _dtype(self, role: str, place: StoredRole, usual: str = "") -> str:
        """Return the element type of a role: that of the origin, else the usual one if the convention takes it."""
        kept = self.own.get("parts", {}).get(role, {}).get("dtype", usual)
        if is_packed(kept):
            kept = ""  # a shape of elements and not of bytes
        return kept if kept in place.dtypes else place.dtypes[0]

    def _shape(self, role: str, usual: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a role: that of the origin if it has as many numbers."""
        kept = tuple(self.own.get("parts", {}).get(role, {}).get("shape", usual))
        return kept if math.prod(kept) == math.prod(usual) else usual

    def write(self, emit: Emit) -> None:
        """Emit the bytes of every tensor; each tensor's in order, in pieces. Rules: CNV-1, CNV-2."""
        for role in ("global_scale", "input_scale"):
            scale = self.scale(role)
            if scale is not None:
                dtype = self._dtype(role, self.convention.roles[role])
                emit(self.name(role), 0, scale.values.astype(DTYPES[dtype].array).tobytes())
        if self.weight.float_scales is not None:
            role_of_scales = self.convention.scales
            assert role_of_scales is not None
            emit(self.name("scales"), 0, self._float_scales(self.weight.float_scales, role_of_scales).data)
        for piece in self._padded_pieces():
            self._write_piece(piece, emit)

    @cached_property
    def tile(self) -> int:
        """The number of rows that every piece has a multiple of."""
        own = 1 if self.layout == LINEAR else rows_of_a_piece(self.layout, self.padded[0], self.blocks)
        return math.lcm(own, self.convention.multiples[0])

    def _padded_pieces(self) -> Iterator[WeightPiece]:
        """Yield the weight's pieces with the convention's padding, which is zero. Rules: CNV-5."""
        rows, columns = self.padded
        width = -(-columns * self.weight.bits // 8)
        for piece in self.weight.read(self.tile):
            last = piece.row + len(piece.packed) == self.weight.rows
            high = (rows if last else piece.row + len(piece.packed)) - piece.row
            packed, scales = _grown(piece.packed, high, width), piece.scales
            yield WeightPiece(
                piece.matrix, piece.row, packed, None if scales is None else _grown(scales, high, self.blocks)
            )

    def _write_piece(self, piece: WeightPiece, emit: Emit) -> None:
        rows, columns = self.padded
        if self.convention.struct:
            data = self._structs(piece)
        else:
            data = _packed(piece.packed, self.convention.packing, columns)
            if piece.scales is not None:
                self._write_scales(piece, emit)
        emit(self.name("codes"), (piece.matrix * rows + piece.row) * data.shape[1], data)

    def _write_scales(self, piece: WeightPiece, emit: Emit) -> None:
        assert piece.scales is not None
        rows, layout = self.padded[0], self.layout
        if layout == LINEAR:
            emit(self.name("scales"), (piece.matrix * rows + piece.row) * self.blocks, piece.scales)
            return
        first = piece.matrix * math.prod(layout.padded_shape(rows, self.blocks))
        part = layout.row_range(piece.row, piece.row + len(piece.scales), rows, self.blocks)
        emit(self.name("scales"), first + part.start, layout.from_linear(np.ascontiguousarray(piece.scales)))

    def _structs(self, piece: WeightPiece) -> Bytes:
        """Return rows of structs. Rules: PACK-8."""
        assert piece.scales is not None
        rows, columns, packing = len(piece.packed), self.padded[1], self.convention.packing
        data = repack(piece.packed, rows, columns, CANONICAL, packing).reshape(rows, -1)
        heads = struct_heads(packing, rows, columns)
        structs = data.reshape(rows, self.blocks // heads, -1)
        structs[:, :, :heads] = piece.scales.reshape(rows, -1, heads)
        return data


def _grown(data: Bytes, rows: int, columns: int) -> Bytes:
    """Return a matrix with zeros behind its rows and columns."""
    if data.shape == (rows, columns):
        return data
    grown = np.zeros((rows, columns), np.uint8)
    grown[: data.shape[0], : data.shape[1]] = data
    return grown


def _packed(data: Bytes, packing: Layout, columns: int) -> Bytes:
    """Return rows of the canonical packing in another one. Rules: PACK-7."""
    if packing == LOW_FIRST or data.shape[1] == columns:  # bytes have no packing
        return data
    if packing == HIGH_FIRST:
        return swapped(data)
    return repack(data, len(data), columns, CANONICAL, packing).reshape(len(data), -1)
