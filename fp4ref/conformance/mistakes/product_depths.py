"""Known mistakes in how far a product sums: blocks, the end of K, and parts of a K that is split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.operand_pairs import OperandPair, Wide, product, summed_blocks
from fp4ref.conformance.mistakes.product_roundings import narrowed
from fp4ref.conformance.mistakes.products import Reading
from fp4ref.formats import F

WHOLE = (16, 32, 64)  # depths of an instruction, of which only whole ones may be summed
DEPTHS = (128, 256, 512, 1024, 2048, 4096)
PIECES = (32, 64, 128, 256)  # of K, after which sums may be rounded
PARTS = (2, 3, 4, 8)


# Blocks


def _without_last(tail: int, count: int) -> list[int]:
    return list(range(max(count - tail, 0)))


def _in_tiles(tile: int, count: int) -> list[int]:
    return list(range(count // tile * tile))


ORDERS: tuple[tuple[str, str, Callable[[int], list[int]]], ...] = (
    ("first-missing", "the first block is left out", lambda n: list(range(1, n))),
    *(
        (f"last-{tail}-missing", f"the last {tail} blocks are left out", partial(_without_last, tail))
        for tail in (2, 4, 8)
    ),
    ("last-missing", "the last block is left out", partial(_without_last, 1)),
    ("odd-last-missing", "the last block is left out where their count is odd", partial(_in_tiles, 2)),
    *(
        (f"tail-of-{tile}-missing", f"blocks that do not fill a tile of {tile} are left out", partial(_in_tiles, tile))
        for tile in (4, 8)
    ),
    ("first-twice", "the first block is added twice", lambda n: [0, *range(n)]),
    ("last-twice", "the last block is added twice", lambda n: [*range(n), n - 1]),
    ("one-missing", "the second block is left out", lambda n: [0, *range(2, n)]),
    ("second-twice", "the second block is added twice", lambda n: [0, 1, *range(1, n)] if n > 1 else [0]),
    ("odd-missing", "every other block is left out", lambda n: list(range(0, n, 2))),
)


# The end of K, and its parts


def _kept(keep: Any, pair: OperandPair) -> Wide | None:
    """Return the sums over some of the depth; None where it is all of it."""
    depth = pair.a.elements.shape[1]
    mask = keep(np.arange(depth), depth, pair.a.width)
    return None if mask.all() else product(replace(pair.a, elements=np.where(mask, pair.a.elements, 0)), pair.b)


def _whole(size: int, k: Any, depth: int, width: int) -> Any:
    return (k < depth // size * size) | (depth < size)


def _tiles(size: int, k: Any, depth: int, width: int) -> Any:
    return k < depth // size * size


def _from(size: int, k: Any, depth: int, width: int) -> Any:
    return (k >= size) | (depth <= size)


def _part(place: int, size: Callable[[int, int], int], most: int | None, k: Any, depth: int, width: int) -> Any:
    """Return the places of the depth in the first part (0) or the last one (-1).

    size: of a part. most: the number of parts, of which the last one has the rest too; None: as many as there are.
    """
    each = size(depth, width) or depth  # a depth of less than a block for each part is not split
    part = k // each if most is None else np.minimum(k // each, most - 1)
    return part == (part[-1] if place else 0)


def _share(count: int, depth: int, width: int) -> int:
    """Return the elements of each of `count` parts, which are whole blocks."""
    blocks = -(-depth // width)
    return -(-blocks // count) * width


def _whole_share(count: int, depth: int, width: int) -> int:
    """Return the elements of each of `count` parts but the last, which are as many whole blocks as fit."""
    return depth // count // width * width


def _fixed(size: int, depth: int, width: int) -> int:
    return size


def _rounded(size: int, name: str, pair: OperandPair) -> Wide | None:
    """Return sums that are rounded to a type after each part of the depth; None where there is one part."""
    depth = pair.a.elements.shape[1]
    if depth <= size:
        return None
    k = np.arange(depth)
    total = np.zeros((len(pair.a.elements), len(pair.b.elements)), F)
    for start in range(0, depth, size):
        elements = np.where(k // size == start // size, pair.a.elements, 0)
        total = narrowed(name, total + np.asarray(product(replace(pair.a, elements=elements), pair.b), F))
    return np.asarray(total)


def depths() -> Iterator[Reading]:
    """Yield every known mistake in how much is summed."""
    for name, text, order in ORDERS:
        yield Reading(f"block-{name}", text, partial(lambda order, p: summed_blocks(p.a, p.b, order), order))
    for size in DEPTHS:
        for name, text, keep in (
            ("until", f"depth past {size} is left out", lambda size, k, depth, width: k < size),
            ("whole", f"depth past the last multiple of {size} is left out", _whole),
        ):
            yield Reading(f"depth-{name}-{size}", text, partial(_kept, partial(keep, size)))
    for size in WHOLE:
        text = f"depth past the last multiple of {size} is left out"
        yield Reading(f"depth-whole-{size}", text, partial(_kept, partial(_whole, size)))
        yield Reading(f"depth-whole-{size}", text, partial(_kept, partial(_tiles, size)))
    for size in DEPTHS:
        text = f"depth up to {size} is left out where there is more, as if its sums were overwritten"
        yield Reading(f"depth-from-{size}", text, partial(_kept, partial(_from, size)))
    splits: list[tuple[str, str, Callable[[int, int], int], int | None]] = []
    for count in PARTS:
        splits.append((f"in {count} parts", f"{count}-parts", partial(_share, count), None))
        splits.append((f"in {count} parts", f"{count}-parts", partial(_whole_share, count), count))
    splits += [(f"every {size}", f"every-{size}", partial(_fixed, size), None) for size in (64, *DEPTHS)]
    for text, name, each, most in splits:
        for end, words, place in (
            ("last", "and the last part overwrites the others instead of being added", -1),
            ("first", "and only the first part is written", 0),
        ):
            keep = partial(_part, place, each, most)
            yield Reading(f"split-{name}-{end}", f"K is split {text}, {words}", partial(_kept, keep))
    for size in PIECES:
        for name in ("bfloat16", "float16"):
            text = f"sums are rounded to {name} after every {size} of K"
            yield Reading(f"rounded-every-{size}-{name}", text, partial(_rounded, size, name))
