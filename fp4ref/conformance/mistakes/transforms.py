"""Mistakes in the Hadamard transform, and in the choice of 4over6."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel, Turn, same
from fp4ref.conformance.mistakes.maxima_of_blocks import block_of
from fp4ref.conformance.mistakes.maxima_of_tensors import amax_of
from fp4ref.conformance.mistakes.record import (
    Mistake,
    Slot,
    cut_bfloat16,
    known,
    of,
    to_bfloat16,
    to_float16,
    turns,
)
from fp4ref.formats import F, Floats
from fp4ref.hadamard import POINTS, butterfly, sign_vector

Sums = Callable[[Floats], Floats]


SYLVESTER = np.array([[(-1) ** (i & j).bit_count() for j in range(POINTS)] for i in range(POINTS)], np.float64)


def exact_sums(groups: Floats) -> Floats:
    """Return sums in double precision."""
    return (groups.astype(np.float64) @ SYLVESTER).astype(F) + F(0)


def ordered_sums(groups: Floats) -> Floats:
    """Return sums left to right in float32."""
    total = groups[..., :1] * SYLVESTER[0].astype(F)
    for i in range(1, POINTS):
        total = total + groups[..., i : i + 1] * SYLVESTER[i].astype(F)
    return np.asarray(total + F(0), F)


def other_orders(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the same kernel with the transform's sums in other orders, which are not mistakes. Rules: HAD-7."""
    if not isinstance(kernel.transform, Turn):
        return ()
    return tuple(
        kernel.but(transform=transformed(sums=sums, signs=kernel.transform.signs))
        for sums in (exact_sums, ordered_sums)
    )


def transformed(
    sums: Sums = butterfly,
    signs: int = 0,
    factor: float = 0.25,
    after: int | None = None,
    narrow: Callable[[Floats], Floats] = to_bfloat16,
    size: int = POINTS,
    whole: bool = False,
    zeros: bool = False,
) -> Callable[[Floats], Floats]:
    """Return the transform with other signs, another factor, signs after the sums, another last rounding.

    whole: groups of another size take all signs of the mask in turn, not each its first ones. zeros: of signs after the
    sums, -0 becomes +0.
    """

    def transform(values: Floats) -> Floats:
        width = values.shape[-1]
        padded = np.pad(values, ((0, 0), (0, -width % size)))
        before = np.resize(sign_vector(signs), padded.shape[-1] if whole else size)
        groups = padded.reshape(*values.shape[:-1], -1, size)
        summed = sums(groups * (before * F(factor)).reshape(-1, size))
        if after is not None:
            summed = summed * np.resize(sign_vector(after), size)
            summed = summed + F(0) if zeros else summed
        return narrow(summed).reshape(padded.shape)[..., :width]

    return transform


def _reversed16(mask: int) -> int:
    return int(f"{mask:016b}"[::-1], 2)


def _swapped_bytes(mask: int) -> int:
    return (mask >> 8 | mask << 8) & 0xFFFF


def butterfly_of(
    groups: Floats, narrow: Callable[[Floats], Floats] = same, *, positive: bool = True, without: int = 0
) -> Floats:
    """Return a butterfly of any power of two whose every sum is rounded.

    positive: +0 is added at its end. without: a stride that is left out.
    """
    shape, size = groups.shape, groups.shape[-1]
    for stride in (1 << bit for bit in range(size.bit_length() - 1) if 1 << bit != without):
        pairs = groups.reshape(*shape[:-1], size // (2 * stride), 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        groups = np.stack([narrow(low + high), narrow(low - high)], axis=-2)
    return groups.reshape(shape) + (F(0) if positive else F(-0.0))


signed_zeros = partial(butterfly_of, positive=False)


def turned_butterfly(stride: int, groups: Floats) -> Floats:
    """Return a butterfly whose differences at one stride are high - low: the results with that bit change sign."""
    return np.where(np.arange(POINTS) & stride, F(0) - butterfly(groups), butterfly(groups)) + F(0)


def sequency(groups: Floats) -> Floats:
    """Return the rows of the matrix ordered by their sign changes (Walsh)."""
    order = np.argsort([np.count_nonzero(np.diff(row)) for row in SYLVESTER], kind="stable")
    return butterfly(groups)[..., order]


def bit_reversed(groups: Floats) -> Floats:
    """Return the outputs in bit-reversed order."""
    order = [int(f"{i:04b}"[::-1], 2) for i in range(POINTS)]
    return butterfly(groups)[..., order]


SIGNS: tuple[tuple[str, str, Callable[[int], dict[str, Any]]], ...] = (
    ("none", "no signs are applied", lambda m: {"signs": 0}),
    ("reversed", "the sign mask is read in reverse, bit 15 for element 0", lambda m: {"signs": _reversed16(m)}),
    ("bytes", "the two bytes of the sign mask are exchanged", lambda m: {"signs": _swapped_bytes(m)}),
    ("nibbles", "the sign mask's bytes are each read in reverse", lambda m: {"signs": _swapped_bytes(_reversed16(m))}),
    ("inverted", "the sign mask is inverted", lambda m: {"signs": m ^ 0xFFFF}),
    ("after", "signs are applied after the sums, H * D instead of D * H", lambda m: {"signs": 0, "after": m}),
    (
        "after-zeros",
        "signs are applied after the sums, H * D instead of D * H, and every zero is +0",
        lambda m: {"signs": 0, "after": m, "zeros": True},
    ),
    ("both", "signs are applied before and after the sums", lambda m: {"signs": m, "after": m}),
    ("default", "the sign mask is 0xD7E8 instead of the given one", lambda m: {"signs": 0xD7E8}),
    ("low", "only the lower byte of the sign mask is applied", lambda m: {"signs": m & 0xFF}),
)


PARTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("no-quarter", "the factor 1/4 is missing", {"factor": 1.0}),
    ("sixteenth", "the factor is 1/16 instead of 1/4", {"factor": 1 / 16}),
    ("half", "the factor is 1/2 instead of 1/4", {"factor": 0.5}),
    ("eighth", "the factor is 1/8 instead of 1/4", {"factor": 0.125}),
    ("fp32", "the result is not rounded to bfloat16", {"narrow": lambda v: v}),
    ("fp16", "the result is rounded to float16 instead of bfloat16", {"narrow": to_float16}),
    (
        "through-fp16",
        "the result is rounded to float16 and then to bfloat16",
        {"narrow": lambda v: to_bfloat16(to_float16(v))},
    ),
    ("bf16-sums", "every sum is rounded to bfloat16", {"sums": partial(butterfly_of, narrow=to_bfloat16)}),
    ("fp16-sums", "every sum is rounded to float16", {"sums": partial(butterfly_of, narrow=to_float16)}),
    ("signed-zeros", "a sum of zeros keeps the sign -0", {"sums": signed_zeros}),
    ("sequency", "the matrix is in sequency order", {"sums": sequency}),
    ("bit-reversed", "the results are in bit-reversed order", {"sums": bit_reversed}),
    *(
        (
            f"turned-{stride}",
            f"the butterfly of stride {stride} subtracts the other way round: results with index bit {bit} change sign",
            {"sums": partial(turned_butterfly, stride)},
        )
        for bit, stride in enumerate((1, 2, 4, 8))
    ),
    *(
        (
            f"without-{stride}",
            f"the butterfly of stride {stride} is left out",
            {"sums": partial(butterfly_of, without=stride)},
        )
        for stride in (1, 2, 4, 8)
    ),
    ("size-8", "groups of 8 are transformed instead of 16", {"sums": butterfly_of, "size": 8, "factor": 8**-0.5}),
    ("size-32", "groups of 32 are transformed instead of 16", {"sums": butterfly_of, "size": 32, "factor": 32**-0.5}),
    ("size-4", "groups of 4 are transformed instead of 16", {"sums": butterfly_of, "size": 4, "factor": 0.5}),
    (
        "size-8-signs",
        "groups of 8 are transformed instead of 16, under all 16 signs",
        {"sums": butterfly_of, "size": 8, "factor": 8**-0.5, "whole": True},
    ),
    (
        "size-4-signs",
        "groups of 4 are transformed instead of 16, under all 16 signs",
        {"sums": butterfly_of, "size": 4, "factor": 0.5, "whole": True},
    ),
    ("not", "the Hadamard matrix is missing, only signs and 1/4 are applied", {"sums": lambda v: v}),
)


MATRIX, PRECISION, WHERE = ("HAD-1",), ("HAD-3",), ("HAD-4",)  # the rules that a mistake breaks


def transforms() -> Iterator[Mistake]:
    """Mistakes in the Hadamard transform."""
    stage, both = Slot.HADAMARD, ("row", "column")
    matrix, precise, turned = (partial(known, stage, when=turns, breaks=rules) for rules in (MATRIX, PRECISION, WHERE))
    for name, text, signs in SIGNS:
        yield matrix(f"hadamard-signs-{name}", text, transform=of(partial(_signed, signs)))
    for name, text, change in PARTS:
        breaks = PRECISION if "narrow" in change or change.get("sums") is signed_zeros else ()
        made = of(partial(_changed, change))
        yield known(stage, f"hadamard-{name}", f"Hadamard: {text}", turns, breaks=breaks, transform=made)
    cut = of(partial(_changed, {"narrow": cut_bfloat16}))
    yield precise("hadamard-cut", "Hadamard: the result is truncated to bfloat16", transform=cut)
    unrounded = of(partial(_changed, {"narrow": lambda v: v}))
    yield precise(
        "hadamard-elements-fp32",
        "Hadamard: elements are made of results that are not rounded to bfloat16, maxima of rounded ones",
        transform=unrounded,
        amax=partial(amax_of, to_bfloat16),
        block_amax=block_of(to_bfloat16),
    )
    yield precise(
        "hadamard-amax-fp32",
        "Hadamard: the amax is that of results that are not rounded to bfloat16",
        transform=unrounded,
        quantized=to_bfloat16,
    )
    yield matrix("hadamard-missing", "the Hadamard transform is not applied", transform=None)
    yield turned("hadamard-both", "both directions are transformed", turned=both)
    text = "the row direction is transformed instead of the column direction"
    yield turned("hadamard-row", text, turned=("row",))
    yield turned("hadamard-axis", "the groups of the transform run along the wrong axis", transform=of(_across))
    yield matrix("hadamard-twice", "the transform is applied twice", transform=of(_twice))
    for name, words, mask in (("added", "", 0xD7E8), ("added-plain", " without signs", 0)):
        yield known(
            stage,
            f"hadamard-{name}",
            f"a Hadamard transform{words} is applied that the specification does not have",
            lambda k: not turns(k),
            transform=Turn(mask),
            turned=both,
        )


def _mask(kernel: Kernel) -> int:
    assert kernel.spec.hadamard is not None
    return kernel.spec.hadamard.signs


def _signed(signs: Callable[[int], dict[str, Any]], kernel: Kernel) -> Any:
    return transformed(**signs(_mask(kernel)))


def _changed(change: dict[str, Any], kernel: Kernel) -> Any:
    return transformed(**{"signs": _mask(kernel), **change})


def _across(kernel: Kernel) -> Any:
    turn = transformed(signs=_mask(kernel))
    return lambda values: np.ascontiguousarray(turn(np.ascontiguousarray(values.T)).T)


def _twice(kernel: Kernel) -> Any:
    turn = transformed(signs=_mask(kernel))
    return lambda values: turn(turn(values))
