"""Known mistakes in how an operand is read that hold in some blocks of the depth only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes.gathered_rows import GATHERS, Gather
from fp4ref.conformance.mistakes.operand_pairs import OperandPair, OperandSide, Wide, product
from fp4ref.conformance.mistakes.products import READERS, SIDES, Change, Reading

Blocks = Callable[[Any, int], Any]  # of the indices of blocks and their count, which are inside
IN_BLOCKS: tuple[tuple[str, str, Blocks], ...] = (
    ("last", "in the last block", lambda k, count: k == count - 1),
    ("first", "in the first block", lambda k, count: k == 0),
    *(
        (f"{r}-of-{n}", f"where block % {n} == {r}", partial(lambda n, r, k, count: k % n == r, n, r))
        for n in (2, 4, 8)
        for r in (0, n - 1)
    ),
    *(
        (f"{n // 2}-to-{n - 1}-of-{n}", f"where block % {n} >= {n // 2}", partial(lambda n, k, _: k % n >= n // 2, n))
        for n in (4, 8, 16)
    ),
    *((f"from-{n}", f"in blocks from {n} on", partial(lambda n, k, _: k >= n, n)) for n in (1, 2, 4, 8, 16, 32, 64)),
    *(
        (
            f"past-{n}",
            f"in blocks past the last multiple of {n}",
            partial(lambda n, k, count: k >= count // n * n, n),
        )
        for n in (2, 4, 8)
    ),
)


def _row_gathered(gather: Gather, part: str, s: OperandSide, layout: str) -> OperandSide | None:
    elements = s.elements if part == "scales" else gather(s.elements)
    return replace(s, elements=elements, scales=s.scales if part == "elements" else gather(s.scales))


def _block_gathered(gather: Gather, s: OperandSide, layout: str) -> OperandSide | None:
    return replace(s, scales=gather(s.scales, 1))


def _no_elements(s: OperandSide, layout: str) -> OperandSide | None:
    return replace(s, elements=np.zeros_like(s.elements))


def _changes() -> Iterator[tuple[str, str, Change]]:
    """Yield ways to misread an operand that may differ from block to block."""
    yield "elements-zero", "the elements of {} are taken as 0", _no_elements
    yield from READERS
    for gather in GATHERS[:4]:
        what = gather.text("elements of {}")
        yield f"elements-{gather.name}", what, partial(_row_gathered, gather, "elements")
        yield f"scales-{gather.name}", gather.text("block scales of {}"), partial(_row_gathered, gather, "scales")
        words = gather.text("scale of {}", "block")
        yield f"block-scales-{gather.name}", words, partial(_block_gathered, gather)


def gathered_readings() -> Iterator[Reading]:
    """Yield operands whose blocks use the scales of other blocks, and those whose rows use the elements of others."""
    for gather in GATHERS:
        for which, said in SIDES:
            text = gather.text(f"scale of {said}", "block")
            change = partial(_block_gathered, gather)
            yield Reading(f"block-scales-{gather.name}-{which}", text, partial(_read, change, _all, which), side=which)
            for part, what in (("elements", "elements"), ("both", "elements and block scales")):
                of_rows = partial(_read, partial(_row_gathered, gather, part), _all, which)
                name, text = f"{part}-{gather.name}-{which}", gather.text(f"{what} of {said}")
                yield Reading(name, text, of_rows, bounded=True, side=which)


def placed_readings() -> Iterator[Reading]:
    """Yield the mistakes in some blocks, each with the place in its words."""
    for name, text, change in _changes():
        for place, where, blocks in IN_BLOCKS:
            for which, said in SIDES:
                sums = partial(_read, change, blocks, which)
                yield Reading(f"{name}-{which}-in-{place}", f"{text.format(said)}, {where}", sums)


def _all(k: NDArray[np.int64], count: int) -> Any:
    return k >= 0


def _read(change: Change, blocks: Blocks, which: str, pair: OperandPair) -> Wide | None:
    found = []
    for name, s in (("a", pair.a), ("b", pair.b)):
        changed = change(s, pair.layout) if name in which else s
        if changed is None:
            return None
        found.append(_mixed(s, changed, blocks))
    return product(found[0], found[1])


def _mixed(s: OperandSide, changed: OperandSide, blocks: Blocks) -> OperandSide:
    """Return an operand that is changed in some blocks."""
    count, depth = s.scales.shape[1], s.elements.shape[1]
    inside = np.asarray(blocks(np.arange(count), count))
    elements = np.where(np.repeat(inside, s.width)[:depth], changed.elements, s.elements)
    return replace(s, elements=elements, scales=np.where(inside, changed.scales, s.scales))
