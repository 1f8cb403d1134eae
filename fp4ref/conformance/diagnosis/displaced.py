"""Mistakes that are tried in one place only, because no kernel makes them everywhere.

Bytes that belong elsewhere: those of another row, block or column, exchanged ones, and one byte for all. And changes of
the input that the maxima of the tensor do not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.elsewhere import exchanged, inside, taken
from fp4ref.conformance.mistakes.kernel import Codes2, Kernel, Map, Values, after, same
from fp4ref.conformance.mistakes.maxima_of_blocks import block_of
from fp4ref.conformance.mistakes.record import Mistake, Slot, has_global, known, several_rows
from fp4ref.formats import Codec, Codes, Floats

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
ACROSS = (1, 2, 4, 8, 16)
COLUMNS = (*ACROSS, 32, 64, 128)
TAILS = (2, 4, 8, 16, 32, 64, 128)
MASKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)  # of groups that change places, or the middle two of four


def displaced(width: int) -> Iterator[Mistake]:
    """Yield the mistakes. width: columns of a block."""
    yield from _bytes_elsewhere(width)
    yield from _codes_elsewhere()


def _bytes_elsewhere(width: int) -> Iterator[Mistake]:
    """Yield bytes that are those of other rows or blocks."""
    for count in ROWS:
        for way, sign, step in (("before", "-", count), ("after", "+", -count)):
            yield _moved(f"bytes-of-row-{count}-{way}", f"bytes are those of row {sign} {count}", 0, step, step)
    for count in ROWS[:4]:
        for way, sign, step in (("before", "-", count), ("after", "+", -count)):
            text = f"bytes are those of row {sign} {count}, where there is such a row"
            rows = partial(taken, partial(inside, -step), 0)
            yield _mistake(f"bytes-of-row-{count}-{way}-inside", Slot.DIRECTION, text, scales=rows, codes=rows)
    for count in ACROSS:
        for way, sign, step in (("before", "-", count), ("after", "+", -count)):
            yield _moved(
                f"bytes-of-block-{count}-{way}", f"bytes are those of block {sign} {count}", 1, step, step * width
            )
    for count in TAILS:
        text = f"bytes are those of the last row of the last whole group of {count} rows, past it"
        move = partial(taken, partial(_clamped, count), 0)
        yield _mistake(f"bytes-clamped-{count}", Slot.DIRECTION, text, scales=move, codes=move)


def _codes_elsewhere() -> Iterator[Mistake]:
    """Yield codes that are those of other rows or columns."""
    for axis, word, counts in ((0, "row", ROWS), (1, "column", COLUMNS)):
        for count in TAILS:
            text = f"codes are those of the last {word} of the last whole group of {count} {word}s, past it"
            yield recoded(f"codes-{word}-clamped-{count}", text, partial(taken, partial(_clamped, count), axis))
        for count in counts:
            for way, sign, step in (("before", "-", count), ("after", "+", -count)):
                yield _moved(
                    f"codes-of-{word}-{count}-{way}", f"codes are those of {word} {sign} {count}", axis, 0, step
                )


def scales_elsewhere() -> Iterator[Mistake]:
    """Yield the mistakes that the scale bytes alone are those of other rows or blocks."""
    for axis, word, bytes_ in ((0, "row", "rows of scale bytes"), (1, "block", "scale bytes along a row")):
        for count in TAILS if axis == 0 else TAILS[:3]:
            text = f"the scale bytes are those of the last {word} of the last whole group of {count} {word}s, past it"
            move = partial(taken, partial(_clamped, count), axis)
            yield _mistake(f"scales-of-{word}-clamped-{count}", Slot.LAYOUT, text, scales=move)
        for count in ROWS if axis == 0 else ACROSS:
            for way, sign, step in (("before", "-", count), ("after", "+", -count)):
                name, text = f"scales-of-{word}-{count}-{way}", f"the scale bytes are those of {word} {sign} {count}"
                yield _mistake(name, Slot.LAYOUT, text, scales=partial(np.roll, shift=step, axis=axis))
                text += f", where there is such a {word}"
                yield _mistake(f"{name}-inside", Slot.LAYOUT, text, scales=partial(taken, partial(inside, -step), axis))
        for mask in MASKS if axis == 0 else MASKS[:8]:
            pair = "2i and 2i + 1" if mask == 1 else f"i and i ^ {mask}"
            for name, text, kept in (("", "", True), ("-zero", "; 0 where there is none", False)):
                moved = _mistake(
                    f"scales-of-{word}-xor-{mask}{name}",
                    Slot.LAYOUT,
                    f"{bytes_} {pair} are exchanged{text}",
                    scales=partial(swapped, mask, axis, kept),
                )
                yield moved if kept else replace(moved, grid=partial(swapped, mask, axis, True))


def scales_used_elsewhere() -> Iterator[Mistake]:
    """Yield the mistakes that elements are scaled by the decoded scale of another block; bytes are right."""
    for axis, short, word, counts in ((1, "block", "block", ACROSS), (0, "row", "row of blocks", ROWS)):
        for count in counts:
            for way, sign, step in (("before", "-", count), ("after", "+", -count)):
                text = f"elements are scaled with the scale of {word} {sign} {count}; the scale bytes are right"
                used = partial(taken, partial(inside, -step), axis)
                name = f"encode-of-{short}-{count}-{way}"
                yield known(Slot.ENCODE, name, text, used_scale=used, whole=True)


SEEN_ROWS: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("first-half", "the first half of the block's rows", lambda b: b[:, :, : b.shape[2] // 2]),
    ("second-half", "the second half of the block's rows", lambda b: b[:, :, b.shape[2] // 2 :]),
    ("even", "the block's even rows", lambda b: b[:, :, ::2]),
    ("odd", "the block's odd rows", lambda b: b[:, :, 1::2]),
    ("first", "the block's first row", lambda b: b[:, :, :1]),
)


def maxima_of_some_rows() -> Iterator[Mistake]:
    """Yield the maxima of squares that see some of their rows."""
    for name, words, chosen in SEEN_ROWS:
        text = f"block maxima are those of {words}"
        yield known(Slot.BLOCK, f"block-rows-{name}", text, several_rows, block_amax=block_of(chosen))


def rows_read() -> Iterator[Mistake]:
    """Yield the mistakes that a row before or after is read."""
    for count in ROWS:
        for way, sign, by in (("before", "-", count), ("after", "+", -count)):
            text = f"row {sign} {count} of x is read"
            values = partial(np.roll, shift=by, axis=0)
            yield known(Slot.INPUT, f"input-of-row-{count}-{way}", text, breaks=("NUM-4",), values=values, whole=True)


def constant_codes(code: int) -> Mistake:
    """Return the mistake that all codes are one."""
    text = f"codes are {code:#x}" + (" (not written, or zeros)" if code == 0 else "")
    made = _mistake(f"codes-constant-{code:#x}", Slot.PACKING, text, codes=partial(_constant, code), whole=False)
    return replace(made, constant=True)


def constant_scales(byte: int) -> Mistake:
    """Return the mistake that all stored scale bytes are one, though elements are divided by the right ones."""
    text = f"scale bytes are {byte:#04x}" + (" (not written, or zeros)" if byte == 0 else "")
    made = _mistake(f"scales-constant-{byte:#04x}", Slot.LAYOUT, text, scales=partial(_constant, byte), whole=False)
    return replace(made, constant=True)


def constant_bytes(byte: int, code: int) -> Mistake:
    """Return the mistake that all scale bytes are one, and all codes."""
    text = "nothing but zeros is written" if byte == code == 0 else f"scale bytes are {byte:#04x} and codes {code:#x}"
    scales, codes = partial(_constant, byte), partial(_constant, code)
    name = f"bytes-constant-{byte:#04x}-{code:#x}"
    return replace(_mistake(name, Slot.PACKING, text, scales=scales, codes=codes, whole=False), constant=True)


LATER = (  # name, text, who sees the change: maxima of blocks, elements
    ("after-amax", "; the amax of the tensor is that of x", True, True),
    ("elements", ", where elements are scaled only: maxima are those of x", False, True),
    ("maxima", ", where block maxima are taken only: the amax and the elements are those of x", True, False),
)
RIGHT = "; the amax of the tensor is the right one"  # where the transform is wrong: not that of x


def later(mistake: Mistake) -> Iterator[Mistake]:
    """Yield a mistake in the input or the transform as it is where only later stages see it.

    For example, the last row is taken as zeros after the tensor's amax was taken; or inputs are rounded to bfloat16
    where they are scaled, and all maxima are those of x.
    """
    for name, text, maxima, elements in LATER:
        apply = partial(_later, mistake, maxima, elements)
        said = RIGHT if mistake.stage is Slot.HADAMARD else text
        yield Mistake(f"{mistake.name}-{name}", mistake.stage, f"{mistake.text}{said}", apply, mistake.special)


def _later(mistake: Mistake, maxima: bool, elements: bool, kernel: Kernel) -> Kernel | None:
    changed = mistake.apply(kernel)
    if changed is None or changed.turned != kernel.turned or (elements and maxima and not has_global(kernel)):
        return None
    if mistake.stage is Slot.HADAMARD:
        return changed.but(amax=partial(_untouched, kernel.amax, kernel.transform)) if maxima and elements else None
    if kernel.transform is not None or changed.values is kernel.values:
        return None
    done = after(kernel.quantized, changed.values)
    if not maxima:
        return kernel.but(elements=done, whole=changed.whole)
    return kernel.but(quantized=done, elements=None if elements else kernel.quantized, whole=changed.whole)


def _untouched(
    amax: Callable[[Values, bool, bool], Floats], transform: Map | None, values: Values, keep_nan: bool, by_row: bool
) -> Floats:
    """Return the maxima of the values under the right transform."""
    turned = values.transformed is not values.raw
    right = values if transform is None or not turned else Values(values.raw, transform(values.raw))
    return amax(right, keep_nan, by_row)


def _clamped(size: int, index: Any, count: int) -> Any:
    """Return the indices; past the last whole group, the last one of it."""
    return index if count < size else np.minimum(index, count // size * size - 1)


def _moved(name: str, text: str, axis: int, scales: int, codes: int) -> Mistake:
    stage = Slot.DIRECTION if scales else Slot.PACKING
    moves = partial(np.roll, shift=codes, axis=axis)
    return _mistake(
        name, stage, text, scales=partial(np.roll, shift=scales, axis=axis) if scales else None, codes=moves
    )


def swapped(mask: int, axis: int, kept: bool, scales: Codes) -> Codes:
    """Return the bytes of index ^ mask. kept: one without such keeps its own; it has 0 otherwise."""
    found = taken(partial(exchanged, mask), axis, scales)
    there = np.arange(scales.shape[axis]) ^ mask < scales.shape[axis]
    return found if kept else np.where(np.expand_dims(there, 1 - axis), found, np.uint8(0))


def of_sign(mistake: Mistake) -> Iterator[Mistake]:
    """Yield a mistake in the codes as it is for elements of one sign only."""
    for name, negative in (("negative", True), ("positive", False)):
        yield Mistake(
            f"{mistake.name}-{name}",
            mistake.stage,
            f"{mistake.text}, of {name} elements",
            partial(_of_sign, mistake, negative),
            mistake.special,
        )


def _of_sign(mistake: Mistake, negative: bool, kernel: Kernel) -> Kernel | None:
    changed = mistake.apply(kernel)
    fields = ("value", "round", "code")
    if changed is None or changed != kernel.but(**{name: getattr(changed, name) for name in fields}):
        return None

    def rounded(y: Floats, bits: Codes | None, codec: Codec) -> Codes:
        """Return the codes of both."""
        own, other = (k.code(k.round(k.value(y), bits, codec)) for k in (kernel, changed))
        return np.where(np.signbit(y) == negative, other, own)

    return kernel.but(value=same, code=same, round=rounded)


def recoded(name: str, text: str, codes: Codes2, *, fills: bool = False) -> Mistake:
    """Return a mistake in the order of codes, or in what is written of them. fills: spare bits hold codes, too."""
    return replace(_mistake(name, Slot.PACKING, text, codes=codes), fills=fills)


def _mistake(
    name: str,
    stage: Slot,
    text: str,
    scales: Codes2 | None = None,
    codes: Codes2 | None = None,
    *,
    whole: bool = True,
) -> Mistake:
    """Return a change of scale bytes or codes. whole: it needs all rows to say what the bytes of some are."""

    def apply(kernel: Kernel) -> Kernel | None:
        return kernel.but(
            scales=kernel.scales if scales is None else after(kernel.scales, scales),
            codes=kernel.codes if codes is None else after(kernel.codes, codes),
            whole=kernel.whole or whole,
        )

    return Mistake(name, stage, text, apply)


def _constant(value: int, codes: Codes) -> Codes:
    return np.full_like(codes, value)
