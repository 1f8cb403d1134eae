"""Mistakes in which elements share a scale, and in the maxima of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref.arithmetic import FLT_MAX, SIXTH
from fp4ref.conformance.mistakes.inputs import TINY
from fp4ref.conformance.mistakes.kernel import after, over_block
from fp4ref.conformance.mistakes.maxima_of_blocks import (
    absolute_block,
    averaged,
    block_of,
    by_bits,
    forgetting,
    from_the_first,
    grouped,
    joint,
    kept_over_zeros,
    no_zero,
    plain_block,
    plain_from_zero,
    ranked,
    shifted,
    up_to_bfloat16,
)
from fp4ref.conformance.mistakes.parts_of_blocks import OF_PARTS, OF_PARTS_DOWN
from fp4ref.conformance.mistakes.record import NARROW, Mistake, Slot, collect, known, nv, one_row, several_rows
from fp4ref.conformance.mistakes.tensor_maxima import FLOORS
from fp4ref.formats import F, Floats
from fp4ref.model.quantize import largest


def _signed(lanes: slice, blocks: Floats) -> Floats:
    """Return magnitudes, and of some lanes what is not negative."""
    found = np.abs(blocks)
    found[..., lanes] = np.fmax(blocks[..., lanes], F(0))
    return found


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
    *(
        (f"{name}-signed", f"take {words} with the sign, so that negative ones do not count", partial(_signed, lanes))
        for name, words, lanes in (
            ("last", "the last element", slice(-1, None)),
            ("first", "the first element", slice(0, 1)),
            ("odd", "odd elements", slice(1, None, 2)),
            ("even", "even elements", slice(0, None, 2)),
        )
    ),
)

block = partial(known, Slot.BLOCK)
CUT = ("BLK-1", "BLK-7")  # the rules that blocks of another size break


OTHER_VALUES = (
    *(
        block(
            f"block-rank-{rank}",
            f"the {words} largest magnitude of a block is taken for its maximum",
            block_amax=partial(ranked, rank),
        )
        for rank, words in ((2, "second"), (3, "third"), (4, "fourth"))
    ),
    *(
        block(
            f"block-mean-{power}",
            f"the {words} of a block is taken for its maximum",
            block_amax=partial(averaged, power),
        )
        for power, words in ((1, "mean magnitude"), (2, "root mean square"))
    ),
    *(block(f"block-{name}", f"block maxima {text}", block_amax=block_of(chosen)) for name, text, chosen in PARTS),
    *(
        block(
            f"block-signed-{name}",
            "block maxima are max x, which can be negative or -0, instead of max |x|",
            block_amax=maxima,
        )
        for name, maxima in (("plain", plain_block), ("zero", plain_from_zero))
    ),
    *(
        block(
            f"block-bits-{name}",
            f"block maxima compare the bits of x, its sign among them, as {words}",
            block_amax=partial(by_bits, kind),
        )
        for name, words, kind in (
            ("unsigned", "unsigned integers: a negative element is larger than any positive one", np.uint32),
            ("signed", "signed integers: a negative element counts only where no other is", np.int32),
        )
    ),
    block("block-absolute", "block maxima are |max x| instead of max |x|", block_amax=absolute_block),
)


def _larger(factor: int) -> Iterator[Mistake]:
    """Yield blocks of several times the width, and squares of several times the height."""
    yield block(
        f"block-{factor}-across",
        f"{factor} neighbouring blocks of a row share their scale (blocks that much wider)",
        breaks=CUT,
        block_amax=grouped(1, factor),
        whole=True,
    )
    yield block(
        f"block-{factor}-down",
        f"{factor} neighbouring blocks of a column share their scale (blocks that much higher)",
        several_rows,
        breaks=CUT,
        block_amax=grouped(factor, 1),
        whole=True,
    )


OTHER_SHAPES = (
    *(
        block(
            f"block-{rows}-rows",
            f"the blocks of {rows} rows share their scale (2-D blocks instead of 1-D)",
            one_row,
            block_amax=grouped(rows, 1),
            whole=True,
        )
        for rows in (2, 4, 8, 16, 32, 64, 128)
    ),
    block(
        "block-one-row",
        "each row of a block has its own scale (1-D blocks instead of 2-D)",
        several_rows,
        block_amax=lambda blocks, keep_nan: largest(blocks, (3,), keep_nan),
    ),
    block(
        "block-top-row",
        "block maxima are those of the first row of the block",
        several_rows,
        block_amax=block_of(lambda b: b[:, :, :1]),
    ),
    block(
        "block-one-column",
        "block maxima are those of the first column of the block",
        several_rows,
        block_amax=block_of(lambda b: b[..., :1]),
    ),
)

OF_OTHERS = (
    block("block-whole-row", "one maximum for the whole row", block_amax=grouped(1, 1 << 20), whole=True),
    block("block-whole", "the tensor's maximum for every block", block_amax=grouped(1 << 20, 1 << 20), whole=True),
    *(
        block(
            f"block-{name}",
            f"the maximum is that of the {words}",
            block_amax=after(over_block, partial(shifted, down, across)),
            whole=True,
        )
        for name, words, down, across in (
            ("next", "next block", 0, 1),
            ("previous", "previous block", 0, -1),
            ("below", "block below", 1, 0),
            ("above", "block above", -1, 0),
        )
    ),
    *(
        block(
            f"block-and-{name}",
            f"the maximum is taken over the block and {words}",
            block_amax=partial(joint, across),
            whole=True,
        )
        for name, across, words in (
            ("next", 1, "the next one"),
            ("previous", -1, "the previous one"),
            ("next-2", 2, "the second one after it"),
            ("previous-2", -2, "the second one before it"),
        )
    ),
)

ROUNDED = tuple(
    block(f"block-amax-{name}", f"block maxima are {text}", block_amax=after(over_block, narrow))
    for name, text, narrow in (*NARROW, ("bf16-up", "rounded up to bfloat16", up_to_bfloat16))
)


def _floored(floor: float) -> Iterator[Mistake]:
    """Yield maxima with a lower limit, and maxima to which it is added."""
    name, least = f"{floor:.0e}", F(floor)
    for way, text, change in (
        ("floor", f"block maxima are clamped below at {floor:.3g}", np.maximum),
        ("plus", f"{floor:.3g} is added to block maxima", np.add),
    ):
        yield block(f"block-{way}-{name}", text, special=True, block_amax=after(over_block, partial(change, least)))


FROM_THE_FIRST = "block maxima start with the first element"
NAN = (
    block(
        "block-first-nan",
        f"{FROM_THE_FIRST}, not with 0, so that a NaN there stays",
        special=True,
        block_amax=from_the_first,
    ),
    block(
        "block-nan-forgets",
        "block maxima forget what comes before a NaN, and a NaN that comes last stays",
        special=True,
        block_amax=forgetting,
    ),
    block(
        "block-nan-scales",
        "block maxima keep NaN, and so do their scales, but elements are scaled by at most FLT_MAX",
        nv,
        special=True,
        keep_block_nan=True,
        block_scale=lambda a, g, k: np.minimum(a * (g * SIXTH), FLT_MAX),
    ),
    *(
        block(
            f"{name}-unlimited",
            f"{text}, and no limit of a later stage replaces it",
            nv,
            special=True,
            block_scale=lambda a, g, k: np.minimum(a * (g * SIXTH), FLT_MAX),
            scaled=lambda x, s, g, k: x * np.minimum(F(1) / (s * (F(1) / g)), FLT_MAX),
            **maxima,
        )
        for name, text, maxima in (
            ("block-nan", "block maxima keep NaN", {"keep_block_nan": True}),
            ("block-first-nan", f"{FROM_THE_FIRST}, so that a NaN there stays", {"block_amax": from_the_first}),
            (
                "block-nan-forgets",
                "block maxima forget what comes before a NaN, one that comes last stays",
                {"block_amax": forgetting},
            ),
        )
    ),
)

REPLACED = (
    *(
        block(
            f"block-zero-{name}",
            f"a block maximum of 0 is replaced by {value:.3g}",
            special=True,
            block_amax=after(over_block, partial(no_zero, F(value))),
        )
        for name, value in (("one", 1.0), ("tiny", float(TINY)))
    ),
    block(
        "block-zero-keeps",
        "the scale byte of a block of zeros is that of the last block before it that has another element",
        special=True,
        whole=True,
        stored=kept_over_zeros,
    ),
    block(
        "block-inf",
        "block maxima leave out infinities",
        special=True,
        block_amax=block_of(lambda b: np.where(np.isinf(b), F(0), b)),
    ),
)

BLOCK_MAXIMA = collect(
    OTHER_VALUES,
    *map(_larger, (2, 4, 8)),
    OTHER_SHAPES,
    OF_PARTS,
    OF_PARTS_DOWN,
    OF_OTHERS,
    ROUNDED,
    *map(_floored, FLOORS),
    NAN,
    REPLACED,
)
