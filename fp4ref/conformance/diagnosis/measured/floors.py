"""Numbers that hold a maximum up, or are added to it, measured in the scale bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.diagnosis.measured.scales import CLOSE, nicest, steps
from fp4ref.conformance.mistakes.kernel import Kernel, after
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.record import Mistake, Slot, has_global, known
from fp4ref.formats import F
from fp4ref.model.quantize import largest

Exact = NDArray[np.float64]
LEAST = 3  # blocks, or tensors, that must need the number


class Blocks(NamedTuple):
    """Maxima of blocks, those from which on the candidate's byte is right and too small, and whether the own one is.

    used: what the global scale is made of, for each of them.
    """

    amax: Exact
    low: Exact
    high: Exact
    right: NDArray[np.bool_]
    used: Exact


@np.errstate(all="ignore")
def floors(kernel: Kernel, parts: Sequence[Part]) -> Iterator[Mistake]:
    """Block maxima, and those of tensors, that are held at a number or to which one is added."""
    if kernel.search is not None or kernel.block.rows != 1:
        return
    borders = steps(kernel)
    seen = [found for part in parts if (found := _seen(kernel, borders, part)) is not None]
    if not seen:
        return
    blocks = Blocks(*(np.concatenate(arrays) for arrays in zip(*seen, strict=True)))
    for name, text, operation, number in _numbers(blocks.low, blocks.high, blocks.amax, blocks.right):
        yield known(
            Slot.BLOCK,
            f"block-{name}-inferred-{number:g}",
            text.format(number, "block maxima" + " are" * (name == "floor")),
            block_amax=after(kernel.block_amax, partial(operation, F(number))),
        )
    if not has_global(kernel):
        return
    share = blocks.used / blocks.amax  # the amax that a byte needs is that of the global scale, the other way round
    low, high = (
        np.where(blocks.amax > 0, share * bound, np.nan)
        for bound in (blocks.amax**2 / blocks.high, blocks.amax**2 / blocks.low)
    )
    for name, text, operation, number in _numbers(low, high, blocks.used, blocks.right):
        yield known(
            Slot.AMAX,
            f"amax-{name}-inferred-{number:g}",
            text.format(number, "the amax that the global scale is made of" + " is" * (name == "floor")),
            used=after(kernel.used, partial(operation, F(number))),
        )


def _numbers(
    low: Exact, high: Exact, before: Exact, right: NDArray[np.bool_]
) -> Iterator[tuple[str, str, Callable[..., Any], float]]:
    """Yield ways in which a number makes maxima between bounds of those before, with the number."""
    for name, text, operation, less in (
        ("plus", "{0:g} is added to {1}", np.add, before),
        ("floor", "{1} clamped below at {0:g}", np.maximum, np.zeros_like(before)),
    ):
        number = _number(low - less, high - less, right)
        if number is not None:
            yield name, text, operation, number


def _number(low: Exact, high: Exact, right: NDArray[np.bool_]) -> float | None:
    """Return the number with the fewest digits that all blocks that are wrong without it allow."""
    use = ~right & np.isfinite(low) & (high > 0)
    if np.count_nonzero(use) < LEAST:
        return None
    least, most = float(low[use].max()), float(high[use].min())
    return nicest(max(least, 0.0), most) if max(least, 0.0) < most and math.isfinite(most) and least > 0 else None


def _seen(kernel: Kernel, borders: Any, part: Part) -> Blocks | None:
    side, got = part.side(kernel), part.item.scales(DECLARED)
    if side is None or got is None or part.blocks is None:
        return None
    byte = got[part.rows, part.across]
    amax = largest(side.blocks, (2, 3), propagate_nan=False)
    unit = np.broadcast_to(kernel.block_scale(np.ones((1, 1, 1, 1), F), side.g, side.k), amax.shape)[:, :, 0, 0]
    if byte.shape != part.blocks.shape or unit.shape != byte.shape:
        return None
    count = kernel.scale_codec.format.codes
    use = part.blocks & (byte > 0) & (byte < count - 1) & np.isfinite(unit) & (unit > 0)
    used = np.ones(byte.shape) if side.used is None else np.broadcast_to(side.used[:, :, 0, 0], byte.shape)
    code = np.minimum(byte[use], count - 1)
    exact = unit[use].astype(np.float64)
    return Blocks(
        amax[:, :, 0, 0][use].astype(np.float64),
        borders.low[code] / exact * (1 - CLOSE),
        borders.high[code] / exact * (1 + CLOSE),
        (side.scales == byte)[use],
        used[use].astype(np.float64),
    )
