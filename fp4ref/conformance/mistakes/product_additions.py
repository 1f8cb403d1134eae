"""Known mistakes with a bias and with what is already there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.mistakes.gathered_rows import GATHERS, Gather
from fp4ref.conformance.mistakes.operand_pairs import OperandPair
from fp4ref.conformance.mistakes.product_roundings import narrowed
from fp4ref.conformance.mistakes.record import cut_bfloat16
from fp4ref.formats import F, Floats

Value = Callable[[Floats, Floats], Floats]  # of what is added, [1, N] or [M, N], and of what it is added to


@dataclass(frozen=True)
class Adding:
    """The way in which a bias or C is added. value: the values added in its place; early: to the sums, before alpha."""

    name: str
    text: str
    value: Value
    early: bool = False
    narrow: bool = False  # the product is rounded to the result's type first
    rounded: str = ""  # the type to which the product is rounded first
    alone: bool = False  # without the product


def _gathered(gather: Gather, bias: Floats, y: Floats) -> Floats:
    return np.asarray(gather(bias[0])[None], F)


def _nothing(part: Floats, y: Floats) -> Floats:
    return np.full_like(part, -0.0)  # the only number that leaves -0 as it is


def _by_rows(bias: Floats, y: Floats) -> Floats:
    return np.resize(bias[0], len(y))[:, None]


def _if_square(part: Floats, y: Floats) -> Floats:
    return part.T if y.shape[0] == y.shape[1] else part


BIAS = (
    Adding("right", "", lambda b, y: b),
    Adding("bias-missing", "the bias is not added", _nothing),
    Adding("bias-zero", "the bias is not added", lambda b, y: np.zeros_like(b)),
    Adding("bias-twice", "the bias is added twice", lambda b, y: b + b),
    Adding("bias-subtracted", "the bias is subtracted", lambda b, y: -b),
    Adding("bias-early", "the bias is added before alpha", lambda b, y: b, early=True),
    Adding("bias-bf16", "the bias is rounded to bfloat16", lambda b, y: narrowed("bfloat16", b)),
    Adding("bias-fp16", "the bias is rounded to float16", lambda b, y: narrowed("float16", b)),
    Adding("bias-cut", "the bias is truncated to bfloat16", lambda b, y: cut_bfloat16(b)),
    Adding("bias-rows", "the bias is added by rows instead of columns", _by_rows),
    Adding("bias-rows-square", "the bias is added by rows instead of columns, if there are as many", _if_square),
    *(
        Adding(f"bias-after-{to}", f"results are rounded to {to} before the bias is added", lambda b, y: b, rounded=to)
        for to in ("bfloat16", "float16")
    ),
)
OF_OTHERS = tuple(
    Adding(f"bias-{gather.name}", gather.text("bias", "column"), partial(_gathered, gather)) for gather in GATHERS
)
ACCUMULATE = (
    Adding("right", "", lambda c, y: c),
    Adding("c-missing", "C is not added: it is ignored, or overwritten", _nothing),
    Adding("c-zero", "C is not added: it is ignored, or overwritten", lambda c, y: np.zeros_like(c)),
    Adding("c-twice", "C is added twice", lambda c, y: c + c),
    Adding("c-subtracted", "C is subtracted", lambda c, y: -c),
    Adding("c-scaled", "C is scaled by alpha", lambda c, y: c, early=True),
    Adding("c-narrow", "the product is rounded to the result's type before C is added", lambda c, y: c, narrow=True),
    Adding("c-alone", "the product is lost, the result is C", lambda c, y: c, alone=True),
    Adding("c-transposed", "C is added transposed", lambda c, y: c.reshape(c.shape[::-1]).T),
    Adding("c-transposed-square", "C is added transposed, if it is square", _if_square),
)


@dataclass(frozen=True)
class Additions:
    """A way to add the bias and C."""

    bias: Adding
    accumulate: Adding

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its mistakes."""
        return tuple(adding.name for adding in (self.bias, self.accumulate) if adding.text)

    @property
    def texts(self) -> tuple[str, ...]:
        """The mistake, in words."""
        return tuple(filter(None, (self.bias.text, self.accumulate.text)))

    def early(self, y: Floats, pair: OperandPair) -> Floats:
        """Add those of bias and C that come before alpha to the sums [M, N]."""
        for adding, part in zip((self.bias, self.accumulate), _parts(pair), strict=True):
            y = y + adding.value(part, y) if adding.early and part is not None else y
        return np.asarray(y, F)

    def late(self, y: Floats, pair: OperandPair, to: str, *, row_scaled: bool) -> Floats:
        """Add those of bias and C that come after alpha, in the order of GEM-8. Rules: GEM-8."""
        b, c = _parts(pair)
        b = None if b is None or self.bias.early else self.bias.value(b, y)
        y = narrowed(self.bias.rounded, y) if self.bias.rounded else y
        if c is None or self.accumulate.early:
            return y if b is None else np.asarray(y + b, F)
        c = self.accumulate.value(c, y)
        if self.accumulate.alone:
            return np.broadcast_to(c, y.shape)
        if row_scaled or self.accumulate.narrow:
            return np.asarray(_cast(y if b is None else y + b, to) + c, F)
        return np.asarray(y + c if b is None else y + c + b, F)


def _parts(pair: OperandPair) -> tuple[Floats | None, Floats | None]:
    return None if pair.bias is None else pair.bias[None], pair.accumulate


def _cast(y: Floats, to: str) -> Floats:
    return np.asarray(np.asarray(y, F).astype(INPUT_DTYPES[to]).astype(F))


def ways(pair: OperandPair) -> Iterator[Additions]:
    """Yield every known way to add what a case has, the right one first, single mistakes before pairs."""
    of_bias = BIAS if pair.bias is not None else BIAS[:1]
    of_c = ACCUMULATE if pair.accumulate is not None else ACCUMULATE[:1]
    yield from sorted((Additions(*both) for both in product(of_bias, of_c)), key=lambda way: len(way.texts))


def single_ways(pair: OperandPair) -> Iterator[Additions]:
    """Yield every known way to add that has one mistake, also with a bias of other columns."""
    yield from (way for way in ways(pair) if len(way.texts) == 1)
    if pair.bias is not None:
        yield from (Additions(adding, ACCUMULATE[0]) for adding in OF_OTHERS)
