"""Orders of elements and of scale bytes that are measured: each place is compared with each, the best fit is taken.

So an order needs no name, and is found even where the bytes have another mistake as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.diagnosis.measured.swizzles import Swizzle, swizzled
from fp4ref.conformance.mistakes.data_readers import ABSENT, LOW_FIRST, DataReader, unpacked
from fp4ref.conformance.mistakes.foreign import is_tiled
from fp4ref.conformance.mistakes.gathered_rows import EXCHANGES, Gather
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide
from fp4ref.conformance.mistakes.readers import DECLARED, ScaleReader, by_layout, digit_readers, tiles_down
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.mistakes.said import moved
from fp4ref.conformance.mistakes.sides import code_side
from fp4ref.conformance.mistakes.tile_places import Offsets, Place
from fp4ref.formats import Codes, Format
from fp4ref.layout import TILED_128X4, Layout

Order = tuple[int, ...]
Pair = tuple[Codes, Codes]  # groups of the candidate and the right ones, [n, size]
GROUPS = (2, 4, 8, 16, 32, 64, 128)
UNITS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
CLEARLY = 1.5  # the best fit of a place against the second best
FITS = 0.3  # the least share of equal bytes of a best fit
NEARLY = 0.95  # of the best fit of any size: the smallest such size is taken
SEEN = 4  # groups that are compared at least
MENDED = 0.5  # the least share of the wrong bytes that an exchange makes
SEED = 20260822
MOST = 1 << 15  # bytes that are compared at most, drawn by chance: a step would hide a period
SHUFFLED = 1 << 16  # groups, of which more are not shuffled
NAMED_ON = (384, 12)  # rows and blocks on which two orders are compared
SOME = ([1, 34, 200], [1, 6])  # and those of them that are compared first


def smallest(pairs: Iterable[Pair]) -> Order | None:
    """Return the order of the smallest size that fits nearly as well as that of any size."""
    found = [fit for got, wanted in pairs if (fit := fitted(got, wanted)) is not None]
    most = max((share for _, share in found), default=1.0)
    return next((order for order, share in found if share >= NEARLY * most), None)


def fitted(got: Codes, wanted: Codes) -> tuple[Order, float] | None:
    """Return for each place of groups [n, size] the place of its bytes, and the share of bytes that fit.

    Returns None if that is not clear, or is the same place for all.
    """
    if len(got) < SEEN:
        return None
    random, count = np.random.default_rng(SEED), MOST // got.shape[1]
    many = len(got) > SHUFFLED
    some = random.choice(len(got), count, replace=False) if many else random.permutation(len(got))[:count]
    fit = (wanted[some, :, None] == got[some, None, :]).mean(axis=0)
    best = fit.argmax(axis=1)
    ranked = np.sort(fit, axis=1)
    top, next_best = ranked[:, -1], ranked[:, -2]
    clear = (top >= FITS) & ((top > CLEARLY * next_best) | ((top == 1) & (next_best < 1)))
    order = tuple(best.tolist())
    same = order == tuple(range(len(order)))
    if not clear.all() or same or len(set(order)) < len(order):
        return None
    return order, float(top.mean())


def order_along(axis: int, pairs: Sequence[Pair]) -> Order | None:
    """Return the order in groups of the smallest size that shows one, along an axis. pairs: of matrices."""
    return smallest(
        (groups((got for got, _ in pairs), n, axis), groups((right for _, right in pairs), n, axis)) for n in GROUPS
    )


# Elements


def element_orders(kernel: Kernel, pairs: Sequence[tuple[Part, ScaleSide]]) -> Iterator[DataReader]:
    """Other orders of the elements, or of the rows, in groups of the smallest size that shows one."""
    seen: list[tuple[Codes, Codes]] = []
    for part, side in pairs:
        got = part.item.codes(LOW_FIRST)
        if got is not None and part.whole:
            seen.append((got, code_side(kernel, side)))
    for axis, what in ((1, "elements"), (0, "rows of elements")):
        order = order_along(axis, seen)
        if order is not None:
            yield from _in_groups(order, axis, what)
        swap = swapped(seen, axis)
        if swap is not None:
            yield DataReader(
                f"data-exchanged-{swap.name}{'-rows' * (axis == 0)}",
                Slot.PACKING,
                swap.text("elements", "column" if axis else "row"),
                partial(_gathered, swap, axis),
            )
    per_byte = 8 // kernel.codec.format.bits  # of 6-bit codes single ones
    swizzle = swizzled(seen, per_byte)
    if swizzle is not None:
        text = swizzle.text("byte", "bytes of data", per_byte)
        yield DataReader(f"data-swizzled-{swizzle.name}", Slot.PACKING, text, partial(_unswizzled, swizzle), fills=True)


def groups(codes: Iterable[Any], size: int, axis: int) -> Any:
    """Return whole groups along an axis, [n, size]."""
    found = []
    for matrix in codes:
        rows = matrix if axis else matrix.T
        whole = rows.shape[1] // size * size
        found.append(rows[:, :whole].reshape(-1, size))
    return np.concatenate(found) if found else np.zeros((0, size), np.uint8)


def reordered(order: Order, rows: Any) -> Any:
    """Return rows of which each whole group has at place i what was at order[i]; the rest stays."""
    size = len(order)
    whole = rows.shape[1] // size * size
    turned = rows[:, :whole].reshape(len(rows), -1, size)[:, :, list(order)].reshape(len(rows), whole)
    return np.concatenate([turned, rows[:, whole:]], axis=1)


def _gathered(swap: Gather, axis: int, data: Codes, shape: tuple[int, int], form: Format) -> Any:
    codes = unpacked(data, shape, form)
    if codes is None:
        return None
    rows = (codes.T if axis else codes).astype(np.uint16)
    return swap(rows).T if axis else swap(rows)


def _unswizzled(swizzle: Swizzle, data: Codes, shape: tuple[int, int], form: Format) -> Any:
    if unpacked(data, shape, form) is None:
        return None
    rows = np.ascontiguousarray(data).reshape(shape[0], -1)
    return unpacked(swizzle.undone.of_data(rows, shape[1], form), shape, form)


def _reordered(order: Order, axis: int, fill: bool, data: Codes, shape: tuple[int, int], form: Format) -> Any:
    codes = unpacked(data, shape, form)
    if codes is None:
        return None
    rows = (codes if axis else codes.T).astype(np.uint16)
    width, size = rows.shape[1], len(order)
    padded = np.pad(rows, ((0, 0), (0, -width % size if fill else 0)), constant_values=ABSENT)
    found = reordered(order, padded)[:, :width]
    return found if axis else found.T


# Scale bytes


def scale_orders(kernel: Kernel, parts: Sequence[Part]) -> Iterator[ScaleReader]:
    """Other orders of the scale bytes, in units of the smallest size that shows one; of tiles in both orders."""
    usable = [part for part in parts if part.whole and part.item.blocks and part.item.rows > 1]
    if not usable or kernel.block.rows != 1:
        return
    declared = usable[0].item.declared
    sides = [(part, side) for part in usable if (side := part.side(kernel)) is not None]
    yield from _exchanges(declared, sides)
    starts: list[tuple[str, Place]] = [("", partial(by_layout, declared))]
    if is_tiled(declared):
        high, wide = declared.tile
        starts.append((f", {high}x{wide} tiles down the rows first", partial(tiles_down, declared)))
    for words, place in starts:
        order = smallest(_all_units(sides, place, unit) for unit in UNITS)
        if order is not None:
            unit = len(order)
            measured = ScaleReader(
                f"layout-inferred-{unit}{'-down' * bool(words)}",
                Slot.LAYOUT,
                f"{moved(order, 'scale bytes')}{words}",
                partial(_moved, place, order),
            )
            yield _named(measured, declared)


def _exchanges(declared: Layout, sides: Sequence[tuple[Part, ScaleSide]]) -> Iterator[ScaleReader]:
    """Yield rows or blocks of scales that changed places in groups of the smallest size that shows it."""
    seen = []
    for part, side in sides:
        got = part.item.scales(DECLARED)
        if got is not None and got.shape == side.scales.shape:
            seen.append((got, side.scales))
    swizzle = swizzled(seen)
    if swizzle is not None:
        text = swizzle.text("scale byte", "scale bytes")
        place = partial(_at_swizzled, swizzle, declared)
        yield ScaleReader(f"layout-swizzled-{swizzle.name}", Slot.LAYOUT, text, place)
    for axis, what in ((0, "rows of scale bytes"), (1, "scale bytes along a row")):
        order = order_along(axis, seen)
        if order is not None:
            yield ScaleReader(
                f"layout-inferred-{'blocks' if axis else 'rows'}-{len(order)}",
                Slot.LAYOUT,
                f"{moved(order, what)}; the rest stays",
                partial(_exchanged, declared, order, axis),
            )
        swap = swapped(seen, axis)
        if swap is not None:
            yield ScaleReader(
                f"layout-exchanged-{'blocks' if axis else 'rows'}-{swap.name}",
                Slot.LAYOUT,
                swap.text("scale bytes", "block" if axis else "row"),
                partial(_swapped, declared, swap, axis),
            )


def _at_swizzled(swizzle: Swizzle, form: Layout, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    return np.asarray(form.offset(row, swizzle.undone.source(block, row, blocks), blocks, rows))


def _in_groups(order: Order, axis: int, what: str) -> Iterator[DataReader]:
    """Yield the order of each whole group; what fills no group stays, or is filled up."""
    for rest, words in (("kept", "the rest stays"), ("filled", "the rest is filled up")):
        yield DataReader(
            f"data-order-inferred-{len(order)}{'-rows' * (axis == 0)}-{rest}",
            Slot.PACKING,
            f"{moved(order, what)}; {words}",
            partial(_reordered, order, axis, rest == "filled"),
        )


def swapped(pairs: Sequence[Pair], axis: int) -> Gather | None:
    """Return the exchange of rows (axis 0) or columns that explains at least half of the wrong bytes."""
    shares = [sum(int(np.count_nonzero(got == right)) for got, right in pairs)]
    for gather in EXCHANGES:
        pairwise = ((got, gather(right, axis)) for got, right in pairs)
        shares.append(sum(int(np.count_nonzero(got == right)) for got, right in pairwise))
    best = shares.index(max(shares))
    wrong = sum(got.size for got, _ in pairs) - shares[0]
    return EXCHANGES[best - 1] if best and shares[best] - shares[0] >= MENDED * wrong else None


def _swapped(form: Layout, swap: Gather, axis: int, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    if axis:
        return np.asarray(form.offset(row, swap.place(block, blocks), blocks, rows))
    return np.asarray(form.offset(swap.place(row, rows), block, blocks, rows))


def _exchanged(form: Layout, order: Order, axis: int, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """Return the offsets of scales if rows (axis 0) or blocks are stored in another order in each whole group."""
    index, count = (block, blocks) if axis else (row, rows)
    size = len(order)
    at = np.where(index < count // size * size, index // size * size + np.array(order)[index % size], index)
    return np.asarray(form.offset(row, at, blocks, rows) if axis else form.offset(at, block, blocks, rows))


def _all_units(sides: Sequence[tuple[Part, ScaleSide]], place: Place, unit: int) -> Pair:
    none = np.zeros((0, unit), np.uint8)
    pairs = [(none, none), *(found for part, side in sides if (found := _units(part, side, place, unit)) is not None)]
    return np.concatenate([got for got, _ in pairs]), np.concatenate([wanted for _, wanted in pairs])


def _named(measured: ScaleReader, declared: Layout) -> ScaleReader:
    """Return the order of digits that is the measured one, if one is."""
    if declared.map != TILED_128X4.map:
        return measured
    wanted = measured.offsets(declared, *NAMED_ON)
    down, across = np.ix_(*SOME)

    def same(reader: ScaleReader) -> bool:
        assert reader.place is not None
        if not np.array_equal(reader.place(down, across, *NAMED_ON), wanted[down, across]):
            return False
        return np.array_equal(reader.offsets(declared, *NAMED_ON), wanted)

    return next(filter(same, digit_readers()), measured)


def _units(part: Part, side: ScaleSide, place: Place, unit: int) -> Pair | None:
    """Whole units of the stored bytes, and what should be there: [n, unit], those that are all scales."""
    item = part.item
    offsets = np.broadcast_to(
        place(np.arange(item.rows)[:, None], np.arange(item.blocks)[None, :], item.rows, item.blocks),
        (item.rows, item.blocks),
    )
    size = item.stored.size // unit * unit
    if side.scales.shape != offsets.shape or int(offsets.max()) >= item.stored.size:
        return None
    wanted, there = np.zeros(item.stored.size, np.uint8), np.zeros(item.stored.size, np.bool_)
    wanted[offsets], there[offsets] = side.scales, True
    full = there[:size].reshape(-1, unit).all(axis=1)
    return item.stored[:size].reshape(-1, unit)[full], wanted[:size].reshape(-1, unit)[full]


def _moved(place: Place, order: Order, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    offset, unit = place(row, block, rows, blocks), len(order)
    return np.asarray(offset // unit * unit + np.array(order)[offset % unit])
