"""Known mistakes of kernels that multiply quantized operands.

A mistake is made while reading operands, while the amaxes are applied, or at the cast. Sums are computed in float64,
which is exact for aimed cases, whatever is mistaken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fp4ref import packing
from fp4ref.conformance.mistakes.gathered_rows import GATHERS
from fp4ref.conformance.mistakes.operand_pairs import OperandPair, OperandSide, Wide, product, summed_blocks
from fp4ref.conformance.subjects.subject import poisoned
from fp4ref.formats import E8M0
from fp4ref.layout import LAYOUTS, Layout, scale_layouts

Sums = Callable[[OperandPair], Wide | None]  # None where the mistake does not apply


Change = Callable[[OperandSide, str], OperandSide | None]


@dataclass(frozen=True)
class Reading:
    """A mistake in what is summed.

    bounded: sums are exact where operands are `integers` only. side: of the operand, "a" or "b", that it is about.
    """

    name: str
    text: str
    sums: Sums
    bounded: bool = False
    side: str = ""


SWAPS: tuple[tuple[str, str, Callable[[int], list[int]]], ...] = (
    ("neighbours", "neighbouring blocks are swapped", lambda n: [k ^ 1 if k ^ 1 < n else k for k in range(n)]),
    ("shifted", "blocks are shifted by one", lambda n: [*range(1, n), 0]),
    ("reversed", "blocks are in reverse order", lambda n: list(range(n))[::-1]),
    ("first-two", "the first two blocks are swapped", lambda n: [1, 0, *range(2, n)] if n > 1 else [0]),
)


# How one operand is read


def _scales(change: Callable[[Wide], Wide], s: OperandSide, layout: str) -> OperandSide | None:
    return replace(s, scales=change(s.scales))


def _permuted(order: Callable[[int], list[int]], s: OperandSide, layout: str) -> OperandSide | None:
    return replace(s, scales=s.scales[:, order(s.scales.shape[1])])


def _laid(read: Layout, s: OperandSide, layout: str) -> OperandSide | None:
    """Read scale bytes of the declared layout as those of another one."""
    (rows, columns), width = s.part.shape, s.width
    blocks = -(-columns // width)
    if read.name == layout or read.refuses(rows, blocks):
        return None
    given = poisoned(s.part.data.scales, layout)
    shape = read.padded_shape(rows, blocks)
    flat = np.zeros(max(shape[0] * shape[1], given.size), np.uint8)
    flat[: given.size] = given.ravel()
    found = read.to_linear(flat[: shape[0] * shape[1]].reshape(shape), rows, blocks)
    return replace(s, scales=s.part.spec.scale.decode(found).astype(np.float64))


def _columns_first(s: OperandSide, layout: str) -> OperandSide | None:
    """Scale bytes read with rows fastest."""
    rows, blocks = s.scales.shape
    return replace(s, scales=s.scales.reshape(blocks, rows).T)


def _nibbles(s: OperandSide, layout: str) -> OperandSide | None:
    if s.part.spec.element.format.bits == 8 or s.elements.shape[1] % 2:
        return None
    return replace(s, elements=s.elements.reshape(len(s.elements), -1, 2)[:, :, ::-1].reshape(s.elements.shape))


def _whole_nibbles(s: OperandSide, layout: str) -> OperandSide | None:
    """Exchange the elements of each pair; an odd last one stays."""
    return _turned_pairs(s, s.elements.shape[1] % 2)


def _spare_nibbles(s: OperandSide, layout: str) -> OperandSide | None:
    """Exchange the elements of each pair, an odd last one with the spare nibble, which is zero."""
    return _turned_pairs(s, 0)


def _turned_pairs(s: OperandSide, left: int) -> OperandSide | None:
    if s.part.spec.element.format.bits == 8:
        return None
    rows, depth = s.elements.shape
    padded = np.pad(s.elements[:, : depth - left], ((0, 0), (0, (depth - left) % 2)))
    turned = padded.reshape(rows, -1, 2)[:, :, ::-1].reshape(padded.shape)
    return replace(s, elements=np.concatenate([turned, s.elements[:, depth - left :]], axis=1)[:, :depth])


def _last_partial(s: OperandSide, layout: str) -> OperandSide | None:
    """Take the scale of the block before for a last block that is not full."""
    blocks = s.scales.shape[1]
    if s.elements.shape[1] % s.width == 0 or blocks == 1:
        return s
    return replace(s, scales=np.concatenate([s.scales[:, :-1], s.scales[:, -2:-1]], axis=1))


def _byte_zero(s: OperandSide, layout: str) -> OperandSide | None:
    if s.part.spec.scale.format is not E8M0:
        return None
    return replace(s, scales=np.where(s.scales == 2.0**-127, 0, s.scales))


def _wider(s: OperandSide, layout: str) -> OperandSide | None:
    """Let the scale of a block serve the next one as well."""
    return replace(s, scales=s.scales[:, np.arange(s.scales.shape[1]) // 2 * 2])


def _as_e8m0(s: OperandSide, layout: str) -> OperandSide | None:
    if s.part.spec.scale.format is E8M0:
        return None
    codes = s.part.data.scales.astype(np.float64)
    return replace(s, scales=np.exp2(codes - 127))


def _without_subnormals(s: OperandSide, layout: str) -> OperandSide | None:
    if s.part.spec.scale.format is E8M0:
        return None
    return replace(s, scales=np.where(np.abs(s.scales) < 2.0**-6, 0, s.scales))


def _of_other(part: str, s: OperandSide, layout: str) -> OperandSide | None:
    """Bytes of the tensor's other direction where this one's are meant: the data, the scales, or both."""
    if s.other is None:
        return None
    (rows, columns), spec, found = s.part.shape, s.part.spec, s
    if part != "scales":
        data = np.resize(s.other.data, s.part.data.data.shape)
        codes = packing.unpack(data, columns, spec.element.format)
        found = replace(found, elements=spec.element.decode(codes).astype(np.float64))
    if part != "data":
        order, blocks = LAYOUTS[layout], -(-columns // s.width)
        buffer = np.resize(poisoned(s.other.scales, layout), order.padded_shape(rows, blocks))
        scales = spec.scale.decode(order.to_linear(buffer, rows, blocks))
        found = replace(found, scales=scales.astype(np.float64))
    return found


def _as_it_lies(s: OperandSide, layout: str) -> OperandSide | None:
    """Return data [K, rows] read as [rows, K]."""
    if not s.transposed:
        return None
    return replace(s, elements=s.elements.T.reshape(s.elements.shape))


OTHERS: tuple[tuple[str, str, Change], ...] = (
    ("other-direction", "the bytes of {} are those of its tensor's other direction", partial(_of_other, "both")),
    ("other-data", "the data of {} are those of its tensor's other direction", partial(_of_other, "data")),
    ("other-scales", "the scales of {} are those of its tensor's other direction", partial(_of_other, "scales")),
    ("not-turned", "the transposed data of {} are read as if they were not", _as_it_lies),
)


READERS: tuple[tuple[str, str, Change], ...] = (
    ("scale-missing", "the block scales of {} are left out", partial(_scales, np.ones_like)),
    ("scale-squared", "the block scales of {} are multiplied twice", partial(_scales, np.square)),
    ("scale-inverse", "{} is divided by its block scales", partial(_scales, lambda s: 1 / s)),
    *(
        (f"scales-of-blocks-{name}", f"the block scales of {{}}: {text}", partial(_permuted, order))
        for name, text, order in SWAPS
    ),
    ("columns-first", "the scales of {} are read with rows fastest", _columns_first),
    ("nibbles", "the high nibble of {} is taken first", _nibbles),
    ("nibbles-whole", "the high nibble of {} is taken first", _whole_nibbles),
    ("nibbles-spare", "the high nibble of {} is taken first", _spare_nibbles),
    ("unsigned", "the signs of {} are lost", lambda s, layout: replace(s, elements=np.abs(s.elements))),
    ("wider", "a block scale of {} serves two blocks", _wider),
    ("e8m0", "the scales of {} are read as e8m0", _as_e8m0),
    ("subnormal-scales", "subnormal scales of {} are flushed to zero", _without_subnormals),
    ("byte-0-zero", "scale byte 0 of {} is decoded as 0 instead of 2^-127", _byte_zero),
    ("last-partial", "the last, partial block of {} takes the scale of the block before", _last_partial),
)


SIDES = (("a", "A"), ("b", "B"), ("ab", "A and B"))


def _readers(*, both: bool) -> Iterator[tuple[str, str, Change, bool]]:
    """Yield each way to misread an operand, and whether its sums are exact for integers only."""
    yield from ((*reader, False) for reader in READERS)
    for form in scale_layouts():
        yield f"layout-{form.name}", f"the scales of {{}} are read as {form.name}", partial(_laid, form), False
    yield from ((*reader, True) for reader in (OTHERS if both else OTHERS[-1:]))


def _read(change: Change, which: str, pair: OperandPair) -> Wide | None:
    sides = [change(s, pair.layout) if name in which else s for name, s in (("a", pair.a), ("b", pair.b))]
    return None if sides[0] is None or sides[1] is None else product(sides[0], sides[1])


def _not_transposed(pair: OperandPair) -> Wide | None:
    square = pair.b.elements.shape[0] == pair.b.elements.shape[1]
    return pair.a.values @ pair.b.values if square else None


def _result_transposed(pair: OperandPair) -> Wide | None:
    sums = product(pair.a, pair.b)
    return sums.T if sums.shape[0] == sums.shape[1] else None


def _result_in_columns(pair: OperandPair) -> Wide | None:
    sums = product(pair.a, pair.b)
    return None if 1 in sums.shape else sums.T.reshape(sums.shape)


def _scales_exchanged(pair: OperandPair) -> Wide | None:
    if pair.a.scales.shape != pair.b.scales.shape:
        return None
    return product(replace(pair.a, scales=pair.b.scales), replace(pair.b, scales=pair.a.scales))


def _summed_scales(pair: OperandPair) -> Wide | None:
    """Multiply by one product of scales per row and column, that of the first block."""
    one = replace(pair.a, scales=np.repeat(pair.a.scales[:, :1], pair.a.scales.shape[1], axis=1))
    two = replace(pair.b, scales=np.repeat(pair.b.scales[:, :1], pair.b.scales.shape[1], axis=1))
    return product(one, two)


def readings(*, both: bool) -> Iterator[Reading]:
    """Yield every known mistake in how operands are read, the right way first.

    both: the kernel is given both directions of the tensors.
    """
    yield Reading("right", "", lambda pair: product(pair.a, pair.b))
    for name, text, order in SWAPS:
        yield Reading(
            f"blocks-{name}",
            f"{text} in one operand",
            partial(lambda o, p: summed_blocks(p.a, p.b, o, of_b=True), order),
        )
    for name, text, change, bounded in _readers(both=both):
        for which, said in SIDES:
            yield Reading(f"{name}-{which}", text.format(said), partial(_read, change, which), bounded, which)
    for gather in GATHERS:
        for which, said in SIDES:
            change = partial(lambda gather, s, layout: replace(s, scales=gather(s.scales)), gather)
            text = gather.text(f"block scales of {said}")
            yield Reading(f"scales-{gather.name}-{which}", text, partial(_read, change, which), side=which)
    yield Reading("not-transposed", "B is not transposed: d = A B instead of A B^T", _not_transposed)
    yield Reading("result-in-columns", "the result is written transposed, column by column", _result_in_columns)
    yield Reading("result-transposed", "the result is transposed where it is square", _result_transposed)
    yield Reading("scales-exchanged", "A is scaled by B's block scales, and B by A's", _scales_exchanged)
    yield Reading("first-block-scales", "the scales of the first block serve all blocks", _summed_scales)
