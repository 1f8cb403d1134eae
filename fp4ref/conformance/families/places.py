"""Places: aimed blocks everywhere in tensors of many tiles, and more rows, columns or elements than a counter holds.

A kernel can be wrong only from some row or column on, in one lane of a warp or in the last tile. A tie there shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.families.aiming import beside, element_thresholds, filled, scale_thresholds, scale_values
from fp4ref.conformance.families.case import Aim, Family, Member
from fp4ref.conformance.families.rules import element_rules, rules
from fp4ref.conformance.families.ties import block_maxima, scale_ties, smaller, tied
from fp4ref.formats import F
from fp4ref.model.tiles import join
from fp4ref.spec import Granularity

KINDS = 64  # blocks of each kind
TILED = ((300, 337), (260, 1136))  # odd tails; past rows of 128 and 256, and past multiples of 64 and 1024 columns
LEADING = (4, 75, 336)
PAST_16_BITS = (1 << 16) + 16
PAST_24_BITS = (1 << 12) + 16  # its square is more than 2^24
LARGEST = 1 << 25  # elements of a case; multiples that need more leave it to `--huge`


def everywhere(aimed: Aim) -> Iterator[Member]:
    """Tensors of many tiles with tails, each block drawn from aimed ones; the one maximum is the last element.

    Rules: CNF-20.
    """
    pool = aimed_blocks(aimed)
    for shape in dict.fromkeys(aimed.shape(*tiled) for tiled in TILED):
        yield Member("x".join(map(str, shape)), drawn(aimed, pool, *shape))
    yield Member("leading", drawn(aimed, pool, LEADING[0] * LEADING[1], LEADING[2]).reshape(LEADING))


def sizes(aimed: Aim) -> Iterator[Member]:
    """More rows or columns than 16 bits count, and at level 2 more elements than a float32 counts.

    Level 1 has them in one type that the kernel takes, a narrowest; level 2 in every type, but most elements in one.

    Rules: CNF-20, CNF-104.
    """
    if aimed.level == 1 and not aimed.narrowest:
        return
    few = max(aimed.spec.block.columns, 16)
    shapes = [(PAST_16_BITS, few), (max(aimed.spec.block.rows, 16), PAST_16_BITS)]
    if aimed.level > 1 and aimed.narrowest:
        shapes.append((PAST_24_BITS, PAST_24_BITS))
    pool = aimed_blocks(aimed)
    for rows, columns in dict.fromkeys(aimed.shape(*shape) for shape in shapes):
        if rows * columns <= LARGEST:
            yield Member(f"{rows}x{columns}", drawn(aimed, pool, rows, columns))


def aimed_blocks(aimed: Aim) -> NDArray[Any]:
    """Blocks [n, area] of ties, of scales on ties and on either side of a step, beside boundaries, of zeros and others.

    Under a global scale all are less than half of the amax under which scale bytes mean themselves.
    """
    unit = aimed.unit_amax
    scales = aimed.rng.permutation(scale_values(aimed))[:KINDS]
    maxima = block_maxima(aimed, unit, KINDS // 4)
    up = element_thresholds(aimed, maxima, unit)
    near = np.stack([up, beside(aimed, up, -1)], axis=2).reshape(len(maxima), -1)
    steps = scale_thresholds(aimed, unit)
    steps = aimed.rng.permutation(np.concatenate([steps, beside(aimed, steps, -1)]))[: 2 * KINDS]
    zeros = np.zeros((2, aimed.area))
    zeros[1] = -0.0
    blocks = np.concatenate(
        [
            tied(aimed, scales),
            smaller(aimed, aimed.narrow(aimed.rng.permutation(scale_ties(aimed))[:KINDS])),
            smaller(aimed, steps),
            filled(aimed, maxima, np.minimum(near, maxima[:, None])),
            aimed.narrow(zeros),
            aimed.narrow(aimed.normal(KINDS // 4, aimed.area)),
        ]
    )
    largest = np.abs(blocks.astype(F)).max(axis=1)
    return blocks[largest < unit / 2] if unit else blocks


def drawn(aimed: Aim, pool: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Return a matrix of blocks of a pool in no order; its last element, or that of each row, holds the global amax."""
    height, width = aimed.spec.block
    down, across = -(-rows // height), -(-columns // width)
    index = aimed.rng.integers(0, len(pool), (down, across))
    values = join(pool[index].reshape(down, across, height, width), (rows, columns))
    if aimed.unit_amax:
        lead = -1 if aimed.spec.global_scale is Granularity.TENSOR else slice(None)
        values[lead, -1] = aimed.narrow(aimed.unit_amax)
    return np.ascontiguousarray(values)


FAMILIES = (
    Family(
        "everywhere",
        "A rule is broken in some rows, columns, lanes or tiles only.",
        lambda spec: (*element_rules(spec), "BLK-1"),
        everywhere,
    ),
    Family("sizes", "Rows, columns or elements are lost past what a counter or a grid holds.", rules("BLK-1"), sizes),
)
