"""Mistakes in the direction: what is the other direction's stands in the place of this one's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.kernel import BothDirections, Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, by_row, known
from fp4ref.conformance.mistakes.sides import code_side
from fp4ref.formats import Codes

Made = tuple[Codes, Codes]  # codes [rows, columns] and scale bytes [rows, blocks]
OTHERS: tuple[tuple[str, str, Callable[[Codes, Codes], Made]], ...] = (
    ("axis", "blocks run along the wrong axis", lambda codes, scales: (codes.T, scales)),
    ("axis-t", "blocks run along the wrong axis, scales transposed", lambda codes, scales: (codes.T, scales.T)),
    ("other", "the buffers contain the other direction's codes and scales", lambda codes, scales: (codes, scales)),
)


def _one_direction(kernel: Kernel) -> bool:
    return kernel.block.rows == 1 and not by_row(kernel)


def directions() -> Iterator[Mistake]:
    """Yield mistakes that put the other direction's bytes, or its scales alone, into this direction's buffers."""
    stage = Slot.DIRECTION
    for name, text, other in OTHERS:
        made = partial(_reshaped, other)
        yield known(stage, f"direction-{name}", text, _one_direction, other=made, whole=True)
    for name, text, used in (
        ("stored", "the scale bytes that are stored are those of the other direction; elements use their own", False),
        ("scales", "the block scales are those of the other direction; elements are divided by them", True),
    ):
        made = partial(_with_scales, used)
        yield known(stage, f"direction-{name}", text, _one_direction, alone=True, other=made, whole=True)


def _reshaped(other: Callable[[Codes, Codes], Made], both: BothDirections) -> Made:
    """Codes and scales in the shapes that this direction has, if they have as many elements."""
    (codes, scales), shape = other(both.codes, both.scales), both.own.shape
    width = -(-shape[1] // max(round(codes.size / max(scales.size, 1)), 1))
    codes = codes.reshape(shape) if codes.size == shape[0] * shape[1] else np.zeros(shape, np.uint8)
    fits = scales.size == shape[0] * width
    return codes, scales.reshape(shape[0], width) if fits else np.zeros((shape[0], width), np.uint8)


def _with_scales(used: bool, both: BothDirections) -> Made:
    """Return this direction's codes, followed by as many of the other's scale bytes as fit."""
    own = both.own
    found = np.zeros(own.scales.size, np.uint8)
    flat = both.scales.reshape(-1)[: found.size]
    found[: flat.size] = flat
    scales = found.reshape(own.scales.shape)
    byte = scales[:, :, None, None]  # blocks of one row
    return code_side(both.kernel, own._replace(byte=byte) if used else own), scales
