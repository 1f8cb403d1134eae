"""Mistakes in where a result is written, or in what it finally is, whatever was computed.

They change an array [rows, columns] of right results: values, or bytes in rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes.elsewhere import IndexMap, clipped, exchanged, first_of, modulo, taken

Values = NDArray[Any]
STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
MIRRORS = (3, 7, 15, 31, 96)  # groups in reverse order, and the middle two of four groups of 32
TILES = (8, 16, 32, 64, 128)


class ResultMistake(NamedTuple):
    """A change of right results. text: with {} for what the results are called."""

    name: str
    text: str
    change: Callable[[Values], Values]


def result_mistakes(*, numbers: bool) -> Iterator[ResultMistake]:
    """Yield each mistake. numbers: results are numbers, not bytes."""
    yield ResultMistake("results-zero", "{} are 0, or not written", np.zeros_like)
    for axis, word in ((0, "row"), (1, "column")):
        yield from _moved(axis, word)
    if numbers:
        yield ResultMistake("results-negated", "{} have the opposite sign", np.negative)
        yield ResultMistake("results-unsigned", "{} lose their sign", np.abs)
        yield from _of_other_sign()
        yield ResultMistake("results-clamped", "negative {} become 0", _clamped)
        for factor in (2, 0.5, 4, 0.25):
            text = f"{{}} are multiplied by {factor:g}"
            yield ResultMistake(f"results-times-{factor:g}", text, partial(_times, factor))


def _moved(axis: int, word: str) -> Iterator[ResultMistake]:
    """Yield results that are those of another row or column."""

    def of(name: str, text: str, order: IndexMap) -> ResultMistake:
        return ResultMistake(f"results-{name}", f"{{}} {text}", partial(taken, order, axis))

    for count in STEPS:
        for way, sign, step in (("before", "-", -count), ("after", "+", count)):
            yield of(f"of-{word}-{count}-{way}", f"are those of {word} {sign} {count}", partial(clipped, step))
    for count in (*STEPS, *MIRRORS):
        text = f"of {word}s {word[0]} and {word[0]} ^ {count} are exchanged"
        yield of(f"{word}-xor-{count}", text, partial(exchanged, count))
    for count in TILES:
        yield of(f"{word}-tiles-{count}", f"are those of the first {word} of each {count}", partial(first_of, count))
        text = f"of {word}s from {count} on are those of {word} % {count}"
        yield of(f"{word}-modulo-{count}", text, partial(modulo, count))


def _of_other_sign() -> Iterator[ResultMistake]:
    """Yield results that have the sign of another column, or row."""
    for axis, word in ((1, "column"), (0, "row")):
        for way, sign, step in (("before", "-", -1), ("after", "+", 1)):
            signs = partial(taken, partial(clipped, step), axis)
            text = f"{{}} have the sign of {word} {sign} 1"
            yield ResultMistake(f"results-sign-of-{word}-{way}", text, partial(_signed, signs))


def _signed(signs: Callable[[Values], Values], values: Values) -> Values:
    return np.asarray(np.copysign(values, signs(values)))


def _clamped(values: Values) -> Values:
    return np.where(values < 0, values.dtype.type(0), values)


def _times(factor: float, values: Values) -> Values:
    return np.asarray(values * values.dtype.type(factor))
