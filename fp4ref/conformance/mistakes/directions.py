"""Mistakes in the direction: what is the other direction's stands in the place of this one's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes.kernel import BothDirections, Kernel, Map, ScaleSide, same
from fp4ref.conformance.mistakes.record import Mistake, Slot, by_row, known, of, one_row, stochastic, to_bfloat16, turns
from fp4ref.conformance.mistakes.sides import code_side
from fp4ref.formats import Codes
from fp4ref.model import dequantize as model_dequantize
from fp4ref.model import quantize as model_quantize
from fp4ref.quantized import DIRECTIONS, Direction, matrix_shape
from fp4ref.spec import Spec

Made = tuple[Codes, Codes]  # codes [rows, columns] and scale bytes [rows, blocks]
OTHERS: tuple[tuple[str, str, Callable[[Codes, Codes], Made]], ...] = (
    ("axis", "blocks run along the wrong axis", lambda codes, scales: (codes.T, scales)),
    ("axis-t", "blocks run along the wrong axis, scales transposed", lambda codes, scales: (codes.T, scales.T)),
    ("other", "the buffers contain the other direction's codes and scales", lambda codes, scales: (codes, scales)),
)
# (columns of a block, the other direction's scale bytes, this direction) -> scale bytes in this one's shape
ScalesAt = Callable[[int, Codes, ScaleSide], Codes]


def _flat(width: int, scales: Codes, own: ScaleSide) -> Codes:
    """Return as many as there are, in the order in which they are stored; zeros follow."""
    found = np.zeros(own.scales.size, np.uint8)
    flat = scales.reshape(-1)[: found.size]
    found[: flat.size] = flat
    return found.reshape(own.scales.shape)


def _same_index(inside: bool, width: int, scales: Codes, own: ScaleSide) -> Codes:
    """Return the byte of the same row and block; past the end the last one, or 0."""
    row, block = np.indices(own.scales.shape)
    return _looked_up(inside, scales, row, block)


def _same_element(width: int, scales: Codes, own: ScaleSide) -> Codes:
    """Return the byte of the block in which the other direction has the first element of each block."""
    row, block = np.indices(own.scales.shape)
    return _looked_up(True, scales, block * width, row // width)


def _looked_up(inside: bool, scales: Codes, row: Any, block: Any) -> Codes:
    if not scales.size:
        return np.zeros(row.shape, np.uint8)
    rows, blocks = scales.shape
    found = scales[np.minimum(row, rows - 1), np.minimum(block, blocks - 1)]
    return found if inside else np.where((row < rows) & (block < blocks), found, np.uint8(0))


TAKEN: tuple[tuple[str, str, ScalesAt], ...] = (
    ("", "", _flat),
    ("-index", ", at the same row and block", partial(_same_index, True)),
    ("-index-zero", ", at the same row and block, 0 where there is none", partial(_same_index, False)),
    ("-element", ", of the block that holds the first element", _same_element),
)


def _one_direction(kernel: Kernel) -> bool:
    return one_row(kernel) and not by_row(kernel)


def directions() -> Iterator[Mistake]:
    """Yield mistakes that put the other direction's bytes, or its scales alone, into this direction's buffers."""
    stage = Slot.DIRECTION
    for name, text, other in OTHERS:
        made = partial(_reshaped, other)
        yield known(stage, f"direction-{name}", text, _one_direction, other=made, whole=True)
    for name, text, used in (
        ("stored", "the scale bytes that are stored are those of the other direction{}; elements use their own", False),
        ("scales", "the block scales are those of the other direction{}; elements are divided by them", True),
    ):
        for taken, where, scales_at in TAKEN:
            made, full = partial(_with_scales, used, scales_at), f"direction-{name}{taken}"
            yield known(stage, full, text.format(where), _one_direction, alone=True, other=made, whole=True)

    for source in DIRECTIONS:
        yield known(
            stage,
            f"direction-of-{source}-values",
            f"the values that the codes and scales of the {source} direction stand for are quantized, not the input",
            lambda kernel: not stochastic(kernel) and not turns(kernel),
            alone=True,
            whole=True,
            read=of(partial(_requantized, source)),
        )
    for own, whose in ((True, "this"), (False, "the other")):
        for narrow, through, typed in ((same, "", ""), (to_bfloat16, "-bf16", ", in bfloat16")):
            yield known(
                stage,
                f"values-of-{'own' if own else 'other'}-direction{through}",
                f"the values that the codes and scales of {whose} direction stand for{typed} are quantized, "
                "under the amax of the input",
                lambda kernel: not stochastic(kernel) and not turns(kernel),
                alone=True,
                whole=True,
                quantized=of(partial(_again, "row" if own else "column", narrow)),
            )


def _again(source: Direction, narrow: Map, kernel: Kernel) -> Map:
    read = Requantized(kernel.spec, source)
    return lambda matrix: narrow(read(matrix)) if matrix.size else matrix


def _requantized(source: Direction, kernel: Kernel) -> Requantized:
    return Requantized(kernel.spec, source)


@dataclass(frozen=True)
class Requantized:
    """The values that the codes and scales of one direction of a tensor stand for, as a function that compares."""

    spec: Spec
    source: Direction

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return float32 of the shape of x."""
        shape = matrix_shape(x.shape)
        matrix = shape if self.source == "row" else shape[::-1]
        made = model_quantize.quantize(x, self.spec, self.source)
        values = model_dequantize.dequantize(made, matrix, self.spec, np.dtype(np.float32), x.dtype)
        return np.ascontiguousarray(values if self.source == "row" else values.T).reshape(x.shape)


def _reshaped(other: Callable[[Codes, Codes], Made], both: BothDirections) -> Made:
    """Codes and scales in the shapes that this direction has, if they have as many elements."""
    (codes, scales), shape = other(both.codes, both.scales), both.own.shape
    width = -(-shape[1] // max(round(codes.size / max(scales.size, 1)), 1))
    codes = codes.reshape(shape) if codes.size == shape[0] * shape[1] else np.zeros(shape, np.uint8)
    fits = scales.size == shape[0] * width
    return codes, scales.reshape(shape[0], width) if fits else np.zeros((shape[0], width), np.uint8)


def _with_scales(used: bool, scales_at: ScalesAt, both: BothDirections) -> Made:
    """Return this direction's codes, and the scale bytes that it finds among the other's."""
    own = both.own
    scales = scales_at(both.kernel.block.columns, both.scales, own)
    byte = scales[:, :, None, None]  # blocks of one row
    return code_side(both.kernel, own._replace(byte=byte) if used else own), scales
