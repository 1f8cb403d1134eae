"""Mistakes in what the quantizer reads: the inputs, the tensor's maximum, the blocks' maxima."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel, Values, flushed, over_tensor
from fp4ref.conformance.mistakes.record import (
    NARROW,
    Mistake,
    Stage,
    by_row,
    by_tensor,
    has_global,
    known,
    of,
    turns,
)
from fp4ref.formats import F, Floats
from fp4ref.model.quantize import largest
from fp4ref.spec import Block

SIZES = (2, 4, 8, 16, 32, 64, 128)
TINY = np.finfo(F).tiny


def cleared(rows: int, columns: int, values: Floats) -> Floats:
    """Zeros past the last whole multiple of so many rows and columns."""
    values = values.copy()
    values[values.shape[0] // rows * rows :] = 0
    values[:, values.shape[1] // columns * columns :] = 0
    return values


def inputs() -> Iterator[Mistake]:
    """Mistakes that change the values before anything is computed."""
    stage = Stage.INPUT
    for name, text, narrow in NARROW:
        yield known(stage, f"input-{name}", f"inputs are {text} first", values=narrow)
    for size in SIZES[1:]:
        for way, words, change in (
            ("columns", "columns", partial(cleared, 1, size)),
            ("rows", "rows", partial(cleared, size, 1)),
        ):
            yield known(
                Stage.BLOCK,
                f"dropped-{way}-{size}",
                f"{words} past the last multiple of {size} are quantized as zeros, and count in the amax only",
                has_global,
                quantized=change,
            )
        yield known(
            stage,
            f"input-columns-{size}",
            f"columns past the last multiple of {size} are taken as zeros",
            values=partial(cleared, 1, size),
        )
        yield known(
            stage,
            f"input-rows-{size}",
            f"rows past the last multiple of {size} are taken as zeros",
            values=partial(cleared, size, 1),
        )
    yield known(stage, "input-last-row", "the last row is taken as zeros", values=lambda v: _without(v, -1, None))
    yield known(stage, "input-last-column", "the last column is taken as zeros", values=lambda v: _without(v, None, -1))
    yield known(stage, "input-flush", "subnormal inputs are flushed to zero", special=True, values=flushed)
    yield known(
        stage,
        "input-flush-unsigned",
        "subnormal inputs are flushed to +0",
        special=True,
        values=lambda v: np.where(np.abs(v) < TINY, F(0), v),
    )
    yield known(
        stage, "input-nan-zero", "NaN is taken as 0", special=True, values=lambda v: np.where(np.isnan(v), F(0), v)
    )
    yield known(
        stage,
        "input-inf-max",
        "infinities are taken as the largest finite value",
        special=True,
        values=lambda v: np.where(np.isinf(v), np.copysign(np.finfo(F).max, v), v),
    )
    yield known(
        stage,
        "input-special-zero",
        "NaN and infinities are taken as 0",
        special=True,
        values=lambda v: np.where(np.isfinite(v), v, F(0)),
    )


def _without(values: Floats, row: int | None, column: int | None) -> Floats:
    values = values.copy()
    if row is not None:
        values[row:] = 0
    if column is not None:
        values[:, column:] = 0
    return values


# The tensor's maximum


def amax_of(chosen: Callable[[Floats], Floats], values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """The maximum magnitude of what a function makes of the values."""
    return over_tensor(Values(values.raw, chosen(values.transformed)), keep_nan, by_row)


def amax_raw(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Before the transform."""
    return over_tensor(Values(values.raw, values.raw), keep_nan, by_row)


def amax_both(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """The larger of before and after the transform."""
    return np.maximum(amax_raw(values, keep_nan, by_row), over_tensor(values, keep_nan, by_row))


def amax_after(narrow: Callable[[Floats], Floats], values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """The maximum, rounded."""
    return narrow(over_tensor(values, keep_nan, by_row))


def signed_plain(start: np.float32, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """max x, which can be -0, and from another start than 0 negative."""
    found = np.fmax.reduce(values.transformed, axis=1 if by_row else None, initial=start)
    return np.asarray(found, F).reshape(-1)


def absolute_of_signed(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """|max x|."""
    found = np.nanmax(values.transformed, axis=1 if by_row else None, initial=-np.inf)
    return np.abs(np.where(np.isfinite(found), found, F(0))).reshape(-1).astype(F)


def largest_bits(kind: str, absolute: bool, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """The value whose bits are the largest integer."""
    bits = np.ascontiguousarray(values.transformed, F).view(kind)
    found = np.asarray(bits.max(axis=1 if by_row else None, initial=0), kind).reshape(-1).view(F)
    return np.abs(found) if absolute else found


def by_groups(rows: int, amax: Floats, values: Values) -> Floats:
    """Each row's is that of its group of so many rows."""
    own = over_tensor(values, keep_nan=False, by_row=True)
    groups = np.maximum.reduceat(own, range(0, own.size, rows)) if own.size else own
    return np.repeat(groups, rows)[: own.size]


def of_first(count: int, amax: Floats, values: Values) -> Floats:
    """That of the first elements."""
    return over_tensor(Values(values.raw, values.transformed.reshape(1, -1)[:, :count]), keep_nan=False, by_row=False)


SEEN: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("signed", "is taken over signed values, max x instead of max |x|", lambda v: np.maximum(v, F(0))),
    ("negative", "is taken over negative values only", lambda v: np.minimum(v, F(0))),
    ("last-row", "misses the last row", lambda v: v[: max(v.shape[0] - 1, 1)]),
    ("last-column", "misses the last column", lambda v: v[:, : max(v.shape[1] - 1, 1)]),
    ("first-row", "misses the first row", lambda v: v[1:]),
    ("first-column", "misses the first column", lambda v: v[:, 1:]),
    ("last-block", "misses the last 16 columns", lambda v: v[:, : max(v.shape[1] - 1, 0) // 16 * 16]),
    ("last-block-32", "misses the last 32 columns", lambda v: v[:, : max(v.shape[1] - 1, 0) // 32 * 32]),
    ("last-rows", "misses the last 16 rows", lambda v: v[: max(v.shape[0] - 1, 0) // 16 * 16]),
    ("only-row", "is that of the first row only", lambda v: v[:1]),
    ("last-only-row", "is that of the last row only", lambda v: v[-1:]),
    ("even-columns", "is taken over even columns only", lambda v: v[:, ::2]),
    ("odd-columns", "is taken over odd columns only", lambda v: v[:, 1::2]),
    ("even-rows", "is taken over even rows only", lambda v: v[::2]),
    ("odd-rows", "is taken over odd rows only", lambda v: v[1::2]),
    *(
        (f"first-{size}-rows", f"is that of the first {size} rows only", partial(lambda n, v: v[:n], size))
        for size in (16, 32, 64, 128)
    ),
    *(
        (f"first-{size}-columns", f"is that of the first {size} columns only", partial(lambda n, v: v[:, :n], size))
        for size in (16, 32, 64, 128)
    ),
    *(
        (
            f"tail-columns-{size}",
            f"misses the columns past the last multiple of {size}",
            partial(lambda n, v: v[:, : v.shape[1] // n * n], size),
        )
        for size in SIZES
    ),
    *(
        (
            f"tail-rows-{size}",
            f"misses the rows past the last multiple of {size}",
            partial(lambda n, v: v[: v.shape[0] // n * n], size),
        )
        for size in SIZES
    ),
)
REPORTED: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("encode", "the encode scale 2688 / amax is returned as amax", lambda a: F(2688) / a),
    ("decode", "the decode scale amax / 2688 is returned as amax", lambda a: a / F(2688)),
    ("inverse", "1 / amax is returned as amax", lambda a: F(1) / a),
    ("sixth", "amax / 6 is returned as amax", lambda a: a / F(6)),
    ("448th", "amax / 448 is returned as amax", lambda a: a / F(448)),
    ("zero", "0 is returned as amax", np.zeros_like),
    ("one", "1 is returned as amax", np.ones_like),
    ("previous-row", "the amax of the previous row is returned", lambda a: np.roll(a, 1)),
    ("next-row", "the amax of the next row is returned", lambda a: np.roll(a, -1)),
)
FLOORS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, float(TINY))


def tensor_amax() -> Iterator[Mistake]:
    """Mistakes in the tensor's maximum, and in who uses it."""
    stage = Stage.AMAX
    for name, text, chosen in SEEN:
        when = by_tensor if "row" in name else has_global
        yield known(stage, f"amax-{name}", f"amax {text}", when, amax=partial(amax_of, chosen))
    for name, start in (("zero", F(0)), ("plain", F(-np.inf))):
        text = "amax is max x, which can be negative or -0, instead of max |x|"
        yield known(stage, f"amax-signed-{name}", text, has_global, amax=partial(signed_plain, start))
    yield known(stage, "amax-absolute", "amax is |max x| instead of max |x|", has_global, amax=absolute_of_signed)
    for name, text, narrow in NARROW:
        yield known(stage, f"amax-{name}", f"amax is {text}", has_global, amax=partial(amax_after, narrow))
        yield known(
            stage,
            f"amax-used-{name}",
            f"the amax that the global scale is made of is {text}",
            has_global,
            used=partial(lambda rounding, a, values: rounding(a), narrow),
        )
    yield known(stage, "amax-raw", "amax is taken before the Hadamard transform", turns, amax=amax_raw)
    yield known(
        stage, "amax-both", "amax is the larger of before and after the Hadamard transform", turns, amax=amax_both
    )
    yield known(
        stage,
        "amax-used-raw",
        "the global scale is made of the amax before the Hadamard transform",
        turns,
        used=lambda a, values: amax_raw(values, keep_nan=False, by_row=False),
    )
    yield known(
        stage,
        "amax-row-used",
        "each row's own amax is used instead of the tensor's",
        by_tensor,
        used=lambda a, values: over_tensor(values, keep_nan=False, by_row=True),
    )
    yield known(
        stage,
        "amax-row-reported",
        "one amax for the tensor is used instead of each row's",
        by_row,
        used=lambda a, values: np.broadcast_to(a.max(initial=F(0)), a.shape),
    )
    yield known(
        stage,
        "amax-tensor-everywhere",
        "the tensor's amax stands in every row",
        by_row,
        amax=lambda values, nan, rows: np.repeat(over_tensor(values, nan, by_row=False), len(values.raw)),
    )
    for kind, name in (("u4", "unsigned"), ("i4", "signed")):
        for absolute in (True, False):
            yield known(
                stage,
                f"amax-bits-{name}{'' if absolute else '-plain'}",
                f"amax is the maximum of the bits of x as {name} integers{', without its sign' if absolute else ''}",
                has_global,
                amax=partial(largest_bits, kind, absolute),
            )
    for rows in (2, 4, 8, 16, 32, 64, 128, 256):
        yield known(
            stage,
            f"amax-by-{rows}-rows",
            f"each {rows} rows use their own amax instead of the tensor's",
            by_tensor,
            used=partial(by_groups, rows),
            whole=True,
        )
    for size in (*SIZES, 256, 512, 1024):
        yield known(
            stage,
            f"amax-tail-flat-{size}",
            f"amax misses the elements past the last multiple of {size}, counted over the whole tensor",
            by_tensor,
            amax=lambda values, nan, rows, n=size: of_first(values.raw.size // n * n, values.raw, values),
        )
    for power in range(4, 17):
        yield known(
            stage,
            f"amax-first-{1 << power}",
            f"amax is that of the first {1 << power} elements only",
            by_tensor,
            amax=lambda values, nan, rows, n=1 << power: of_first(n, values.raw, values),
        )
        yield known(
            stage,
            f"amax-used-first-{1 << power}",
            f"the amax that the global scale is made of is that of the first {1 << power} elements only",
            by_tensor,
            used=partial(of_first, 1 << power),
        )
    for more in (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        yield known(
            stage,
            f"amax-plus-{more:.0e}",
            f"{more:g} is added to the amax that the global scale is made of",
            has_global,
            used=partial(lambda by, a, values: a + by, F(more)),
        )
    yield known(stage, "amax-given-ignored", "the caller's amax is ignored", has_global, takes_amax=False)
    for name, text, report in REPORTED:
        yield known(stage, f"amax-reported-{name}", text, has_global, report=report)
    for floor in FLOORS:
        yield known(
            stage,
            f"amax-floor-{floor:.0e}",
            f"amax is held at {floor:.3g} at least",
            has_global,
            special=True,
            used=partial(lambda low, a, values: np.maximum(a, low), F(floor)),
        )
    yield known(stage, "amax-nan", "amax keeps NaN", has_global, special=True, keep_nan=True)
    yield known(stage, "block-nan", "block maxima keep NaN", special=True, keep_block_nan=True)
    yield known(stage, "all-nan", "all maxima keep NaN", has_global, special=True, keep_nan=True, keep_block_nan=True)
    yield known(stage, "no-nan", "maxima ignore NaN", special=True, keep_nan=False, keep_block_nan=False)
    yield known(
        stage,
        "amax-inf",
        "amax leaves out infinities",
        has_global,
        special=True,
        amax=partial(amax_of, lambda v: np.where(np.isinf(v), F(0), v)),
    )


# The blocks' maxima


def block_of(chosen: Callable[[Floats], Floats]) -> Any:
    """The maxima of what a function makes of the blocks."""
    return lambda blocks, keep_nan: largest(chosen(blocks), (2, 3), keep_nan)


def grouped(down: int, across: int) -> Any:
    """One maximum for so many neighbouring blocks."""

    def maxima(blocks: Floats, keep_nan: bool) -> Floats:
        found = largest(blocks, (2, 3), keep_nan)
        rows, columns = found.shape[:2]
        high, wide = min(down, rows), min(across, columns)
        padded = np.pad(found[:, :, 0, 0], ((0, -rows % high), (0, -columns % wide)))
        tiles = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
        wide = np.repeat(np.repeat(tiles.max(axis=(1, 3)), high, axis=0), wide, axis=1)
        return np.ascontiguousarray(wide[:rows, :columns, None, None])

    return maxima


def absolute_block(blocks: Floats, keep_nan: bool) -> Floats:
    """|max x| of each block."""
    return np.asarray(np.abs(np.nanmax(blocks, axis=(2, 3), keepdims=True, initial=np.finfo(F).min)), F)


def plain_block(blocks: Floats, keep_nan: bool) -> Floats:
    """max x of each block, which can be negative or -0."""
    return np.asarray(np.fmax.reduce(blocks, axis=(2, 3), keepdims=True), F)


def plain_from_zero(blocks: Floats, keep_nan: bool) -> Floats:
    """max x of each block and zero, which can be -0."""
    return np.asarray(np.fmax.reduce(blocks, axis=(2, 3), keepdims=True, initial=F(0)), F)


def shifted(down: int, across: int, maxima: Floats) -> Floats:
    """Those of the block so far away, the last one at an edge."""
    rows = np.clip(np.arange(maxima.shape[0]) + down, 0, maxima.shape[0] - 1)
    columns = np.clip(np.arange(maxima.shape[1]) + across, 0, maxima.shape[1] - 1)
    return maxima[rows][:, columns]


PARTS: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("signed", "are taken over signed values, max x instead of max |x|", lambda b: np.maximum(b, F(0))),
    ("last-element", "miss the last element", lambda b: b[..., :-1]),
    ("first-element", "miss the first element", lambda b: b[..., 1:]),
    ("even", "are taken over even elements only", lambda b: b[..., ::2]),
    ("odd", "are taken over odd elements only", lambda b: b[..., 1::2]),
    ("first-half", "are those of the first half of the block", lambda b: b[..., : b.shape[-1] // 2]),
    ("second-half", "are those of the second half of the block", lambda b: b[..., b.shape[-1] // 2 :]),
    ("first-quarter", "are those of the first quarter of the block", lambda b: b[..., : b.shape[-1] // 4]),
    ("first", "are that of the first element", lambda b: b[..., :1]),
)


def ranked(rank: int, blocks: Floats, keep_nan: bool) -> Floats:
    """The magnitude of a block that so many others reach, 1 for the largest."""
    magnitude = np.abs(blocks).reshape(*blocks.shape[:2], 1, -1)
    magnitude = magnitude if keep_nan else np.nan_to_num(magnitude, nan=0, posinf=np.inf)
    return np.asarray(np.sort(magnitude, axis=3)[..., -rank, None])


def averaged(power: int, blocks: Floats, keep_nan: bool) -> Floats:
    """The mean magnitude of a block, or the root of its mean square."""
    magnitude = np.abs(blocks) if keep_nan else np.nan_to_num(np.abs(blocks), nan=0, posinf=np.inf)
    mean = (magnitude**power).mean(axis=(2, 3), keepdims=True)
    return np.asarray(mean if power == 1 else np.sqrt(mean), F)


def block_amax() -> Iterator[Mistake]:
    """Mistakes in which elements share a scale, and in their maxima."""
    stage = Stage.BLOCK
    for rank, words in ((2, "second"), (3, "third"), (4, "fourth")):
        yield known(
            stage,
            f"block-rank-{rank}",
            f"the {words} largest magnitude of a block is taken for its maximum",
            block_amax=partial(ranked, rank),
        )
    for power, words in ((1, "mean magnitude"), (2, "root mean square")):
        yield known(
            stage,
            f"block-mean-{power}",
            f"the {words} of a block is taken for its maximum",
            block_amax=partial(averaged, power),
        )
    for name, text, chosen in PARTS:
        yield known(stage, f"block-{name}", f"block maxima {text}", block_amax=block_of(chosen))
    for name, block in (("plain", plain_block), ("zero", plain_from_zero)):
        text = "block maxima are max x, which can be negative or -0, instead of max |x|"
        yield known(stage, f"block-signed-{name}", text, block_amax=block)
    yield known(stage, "block-absolute", "block maxima are |max x| instead of max |x|", block_amax=absolute_block)
    for factor in (2, 4, 8):
        yield known(
            stage,
            f"block-{factor}-across",
            f"{factor} neighbouring blocks of a row share their scale (blocks that much wider)",
            block_amax=grouped(1, factor),
            whole=True,
        )
    for rows in (2, 4, 8, 16, 32, 64, 128):
        yield known(
            stage,
            f"block-{rows}-rows",
            f"the blocks of {rows} rows share their scale (2-D blocks instead of 1-D)",
            lambda kernel: kernel.block.rows == 1,
            block_amax=grouped(rows, 1),
            whole=True,
        )
    yield known(
        stage,
        "block-one-row",
        "each row of a block has its own scale (1-D blocks instead of 2-D)",
        lambda kernel: kernel.block.rows > 1,
        block_amax=lambda blocks, keep_nan: largest(blocks, (3,), keep_nan),
    )
    yield known(
        stage,
        "block-top-row",
        "block maxima are those of the first row of the block",
        lambda kernel: kernel.block.rows > 1,
        block_amax=block_of(lambda b: b[:, :, :1]),
    )
    yield known(
        stage,
        "block-one-column",
        "block maxima are those of the first column of the block",
        lambda kernel: kernel.block.rows > 1,
        block_amax=block_of(lambda b: b[..., :1]),
    )
    for parts in (2, 4):
        for name, text, stored in (
            ("first", "the first one's scale is stored", lambda s: s[..., 0]),
            ("last", "the last one's scale is stored", lambda s: s[..., -1]),
            ("largest", "the largest of their scales is stored", lambda s: s.max(axis=-1)),
        ):
            yield known(
                stage,
                f"block-own-{parts}-{name}",
                f"each 1/{parts} of a block is divided by the scale of its own maximum, {text}",
                lambda kernel: kernel.block.rows == 1,
                block=of(partial(_narrower, parts)),
                scales=partial(_one_of, parts, stored),
            )
    for name, text, tails in (
        ("next-row", "what follows the row in memory, the next row", _next_row),
        ("own-row", "the head of its own row", _own_row),
    ):
        yield known(
            stage,
            f"block-tail-{name}",
            f"the maximum of a row's last partial block sees {text}",
            lambda kernel: kernel.block.rows == 1,
            tails=of(partial(_filled, tails)),
            whole=True,
        )
    yield known(stage, "block-whole-row", "one maximum for the whole row", block_amax=grouped(1, 1 << 20), whole=True)
    yield known(
        stage, "block-whole", "the tensor's maximum for every block", block_amax=grouped(1 << 20, 1 << 20), whole=True
    )
    for name, down, across in (("next", 0, 1), ("previous", 0, -1), ("below", 1, 0), ("above", -1, 0)):
        yield known(
            stage,
            f"block-{name}",
            f"the maximum is that of the {name} block" if not down else f"the maximum is that of the block {name}",
            block_amax=partial(lambda d, a, b, nan: shifted(d, a, largest(b, (2, 3), nan)), down, across),
            whole=True,
        )
    for name, text, narrow in NARROW:
        yield known(
            stage,
            f"block-amax-{name}",
            f"block maxima are {text}",
            block_amax=partial(lambda rounding, b, nan: rounding(largest(b, (2, 3), nan)), narrow),
        )
    for floor in FLOORS:
        yield known(
            stage,
            f"block-floor-{floor:.0e}",
            f"block maxima are held at {floor:.3g} at least",
            special=True,
            block_amax=partial(lambda low, b, nan: np.maximum(largest(b, (2, 3), nan), low), F(floor)),
        )
        yield known(
            stage,
            f"block-plus-{floor:.0e}",
            f"{floor:.3g} is added to block maxima",
            special=True,
            block_amax=partial(lambda low, b, nan: largest(b, (2, 3), nan) + low, F(floor)),
        )
    yield from _replaced_maxima()


def _narrower(parts: int, kernel: Kernel) -> Block:
    return Block(1, kernel.block.columns // parts)


def _one_of(parts: int, stored: Callable[[Any], Any], scales: Any) -> Any:
    padded = np.pad(scales, ((0, 0), (0, -scales.shape[1] % parts)))
    return stored(padded.reshape(len(padded), padded.shape[1] // parts, parts))


def _filled(heads: Callable[[Floats, int], Floats], kernel: Kernel) -> Callable[[Floats], Floats]:
    """Values with a last partial block filled by what lies elsewhere."""
    return lambda values: np.concatenate([values, heads(values, -values.shape[1] % kernel.block.columns)], axis=1)


def _next_row(values: Floats, count: int) -> Floats:
    """What follows each row in memory; zeros behind the last one."""
    rows, columns = values.shape
    flat = np.concatenate([values.reshape(-1), np.zeros(count, F)])
    return np.asarray(flat[(np.arange(rows)[:, None] + 1) * columns + np.arange(count)])


def _own_row(values: Floats, count: int) -> Floats:
    return values[:, :count]


def _replaced_maxima() -> Iterator[Mistake]:
    """Zero blocks whose maximum is replaced."""
    for name, value in (("one", 1.0), ("tiny", float(TINY))):
        yield known(
            Stage.BLOCK,
            f"block-zero-{name}",
            f"a block maximum of 0 is replaced by {value:.3g}",
            special=True,
            block_amax=partial(lambda to, b, nan: _no_zero(largest(b, (2, 3), nan), to), F(value)),
        )
    yield known(
        Stage.BLOCK,
        "block-inf",
        "block maxima leave out infinities",
        special=True,
        block_amax=block_of(lambda b: np.where(np.isinf(b), F(0), b)),
    )


def _no_zero(maxima: Floats, value: np.float32) -> Floats:
    return np.where(maxima == 0, value, maxima)


def directions() -> Iterator[Mistake]:
    """Blocks along the wrong axis: the other direction's bytes, in this direction's buffers."""
    ways: tuple[tuple[str, str, Any], ...] = (
        ("axis", "blocks run along the wrong axis", lambda c, s, shape: (c.T, s)),
        ("axis-t", "blocks run along the wrong axis, scales transposed", lambda c, s, shape: (c.T, s.T)),
        ("other", "the other direction's codes and scales stand in the buffers", lambda c, s, shape: (c, s)),
    )
    for name, text, other in ways:
        yield known(
            Stage.DIRECTION,
            f"direction-{name}",
            text,
            lambda kernel: kernel.block.rows == 1 and not by_row(kernel),
            other=partial(_reshaped, other),
            whole=True,
        )


def _reshaped(other: Any, codes: Any, scales: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Codes and scales in the shapes that this direction has, if they have as many elements."""
    codes, scales = other(codes, scales, shape)
    width = -(-shape[1] // max(round(codes.size / max(scales.size, 1)), 1))
    codes = codes.reshape(shape) if codes.size == shape[0] * shape[1] else np.zeros(shape, np.uint8)
    fits = scales.size == shape[0] * width
    return codes, scales.reshape(shape[0], width) if fits else np.zeros((shape[0], width), np.uint8)
