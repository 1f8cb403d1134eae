"""Mistakes in which elements share a scale, and in the maxima of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.arithmetic import FLT_MAX, SIXTH
from fp4ref.conformance.mistakes.inputs import TINY
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import NARROW, Mistake, Slot, known, nv, of
from fp4ref.conformance.mistakes.tensor_maxima import FLOORS
from fp4ref.formats import F, Floats
from fp4ref.model.quantize import largest
from fp4ref.spec import Block


def block_of(chosen: Callable[[Floats], Floats]) -> Any:
    """Return the maxima of what a function makes of the blocks."""
    return lambda blocks, keep_nan: largest(chosen(blocks), (2, 3), keep_nan)


def grouped(down: int, across: int) -> Any:
    """Return maxima that `down` times `across` neighbouring blocks share."""

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
    """Return |max x| of each block."""
    return np.asarray(np.abs(np.nanmax(blocks, axis=(2, 3), keepdims=True, initial=np.finfo(F).min)), F)


def plain_block(blocks: Floats, keep_nan: bool) -> Floats:
    """Return max x of each block, which can be negative or -0."""
    return np.asarray(np.fmax.reduce(blocks, axis=(2, 3), keepdims=True), F)


def plain_from_zero(blocks: Floats, keep_nan: bool) -> Floats:
    """Return max x of each block and zero, which can be -0."""
    return np.asarray(np.fmax.reduce(blocks, axis=(2, 3), keepdims=True, initial=F(0)), F)


def shifted(down: int, across: int, maxima: Floats) -> Floats:
    """Return the maxima of the blocks `down` and `across` places away; past an edge, those at the edge."""
    rows = np.clip(np.arange(maxima.shape[0]) + down, 0, maxima.shape[0] - 1)
    columns = np.clip(np.arange(maxima.shape[1]) + across, 0, maxima.shape[1] - 1)
    return maxima[rows][:, columns]


def _joint(across: int, blocks: Floats, keep_nan: bool) -> Floats:
    """Return the larger maximum of each block and of the one `across` places away."""
    own = largest(blocks, (2, 3), keep_nan)
    return np.asarray(np.maximum(own, shifted(0, across, own)), F)


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
    """Return the magnitude of a given rank in each block; rank 1 is the largest."""
    magnitude = np.abs(blocks).reshape(*blocks.shape[:2], 1, -1)
    magnitude = magnitude if keep_nan else np.nan_to_num(magnitude, nan=0, posinf=np.inf)
    return np.asarray(np.sort(magnitude, axis=3)[..., -rank, None])


def averaged(power: int, blocks: Floats, keep_nan: bool) -> Floats:
    """Return the mean magnitude of a block, or the root of its mean square."""
    magnitude = np.abs(blocks) if keep_nan else np.nan_to_num(np.abs(blocks), nan=0, posinf=np.inf)
    mean = (magnitude**power).mean(axis=(2, 3), keepdims=True)
    return np.asarray(mean if power == 1 else np.sqrt(mean), F)


def block_amax() -> Iterator[Mistake]:
    """Mistakes in which elements share a scale, and in their maxima."""
    stage = Slot.BLOCK
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
    yield from _larger()
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
    for name, across, words in (
        ("next", 1, "the next one"),
        ("previous", -1, "the previous one"),
        ("next-2", 2, "the second one after it"),
        ("previous-2", -2, "the second one before it"),
    ):
        yield known(
            stage,
            f"block-and-{name}",
            f"the maximum is taken over the block and {words}",
            block_amax=partial(_joint, across),
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
            f"block maxima are clamped below at {floor:.3g}",
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
    yield known(
        stage,
        "block-first-nan",
        "block maxima start with the first element, not with 0, so that a NaN there stays",
        special=True,
        block_amax=_from_the_first,
    )
    for name, text, maxima in (
        ("block-nan", "block maxima keep NaN", {"keep_block_nan": True}),
        (
            "block-first-nan",
            "block maxima start with the first element, so that a NaN there stays",
            {"block_amax": _from_the_first},
        ),
    ):
        yield known(
            stage,
            f"{name}-unlimited",
            f"{text}, and no limit of a later stage replaces it",
            nv,
            special=True,
            block_scale=lambda a, g, k: np.minimum(a * (g * SIXTH), FLT_MAX),
            scaled=lambda x, s, g, k: x * np.minimum(F(1) / (s * (F(1) / g)), FLT_MAX),
            **maxima,
        )
    yield from _replaced_maxima()


def _from_the_first(blocks: Floats, keep_nan: bool) -> Floats:
    first = np.isnan(blocks[:, :, :1, :1])
    return np.where(first, F(np.nan), largest(blocks, (2, 3), keep_nan))


def _larger() -> Iterator[Mistake]:
    """Yield blocks of several times the width, and squares of several times the height."""
    for factor in (2, 4, 8):
        yield known(
            Slot.BLOCK,
            f"block-{factor}-across",
            f"{factor} neighbouring blocks of a row share their scale (blocks that much wider)",
            block_amax=grouped(1, factor),
            whole=True,
        )
        yield known(
            Slot.BLOCK,
            f"block-{factor}-down",
            f"{factor} neighbouring blocks of a column share their scale (blocks that much higher)",
            lambda kernel: kernel.block.rows > 1,
            block_amax=grouped(factor, 1),
            whole=True,
        )


def _narrower(parts: int, kernel: Kernel) -> Block:
    return Block(1, kernel.block.columns // parts)


def _one_of(parts: int, stored: Callable[[Any], Any], scales: Any) -> Any:
    padded = np.pad(scales, ((0, 0), (0, -scales.shape[1] % parts)))
    return stored(padded.reshape(len(padded), padded.shape[1] // parts, parts))


def _replaced_maxima() -> Iterator[Mistake]:
    """Zero blocks whose maximum is replaced."""
    for name, value in (("one", 1.0), ("tiny", float(TINY))):
        yield known(
            Slot.BLOCK,
            f"block-zero-{name}",
            f"a block maximum of 0 is replaced by {value:.3g}",
            special=True,
            block_amax=partial(lambda to, b, nan: _no_zero(largest(b, (2, 3), nan), to), F(value)),
        )
    yield known(
        Slot.BLOCK,
        "block-inf",
        "block maxima leave out infinities",
        special=True,
        block_amax=block_of(lambda b: np.where(np.isinf(b), F(0), b)),
    )


def _no_zero(maxima: Floats, value: np.float32) -> Floats:
    return np.where(maxima == 0, value, maxima)
