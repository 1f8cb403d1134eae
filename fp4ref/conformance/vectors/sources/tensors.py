"""Aimed tensors: random ones that are the same everywhere, and tests with the oracle's bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals
from fp4ref.conformance.vectors.sources.layouts import stored
from fp4ref.conformance.vectors.sources.parts import (
    ORACLE,
    Json,
    block,
    expected,
    floats,
    group,
    named,
    tensor_fields,
    test,
)
from fp4ref.conformance.vectors.text import format_rows, format_words
from fp4ref.formats import STOCHASTIC_E2M1, F
from fp4ref.quantized import Direction
from fp4ref.spec import Spec
from fp4ref.specs import NVFP4

BINARY = {"float32": rationals.FLOAT32, "bfloat16": rationals.BFLOAT16, "float16": rationals.FLOAT16}
NVFP4_STOCHASTIC = NVFP4.replace(name="nvfp4 stochastic", element=STOCHASTIC_E2M1)


def quantized(
    flags: str,
    comment: str,
    spec: Spec,
    x: NDArray[Any],
    direction: Direction = "row",
    amax: Any = None,
    random_bits: NDArray[np.uint8] | None = None,
    scale_layout: str = "linear",
    share: str = "",
) -> Json:
    """Return a test with the oracle's bytes; share: a name under which tests share x."""
    given = None if amax is None else floats(amax)
    result = oracle.quantize(x, spec, direction, None if given is None else given.tolist(), random_bits)
    more: Json = {"input": share} if share else {}
    if direction != "row":
        more["direction"] = direction
    if given is not None:
        more["amax"] = format_words(given)
    if random_bits is not None:
        more["random_bits"] = format_rows(random_bits)
    if scale_layout != "linear":
        more["scale_layout"] = scale_layout
        result = result._replace(scales=stored(result.scales, scale_layout))
    return test(flags, comment, **tensor_fields(x), **more, expected=expected(result))


Row = tuple[Any, ...]  # flags, comment, x, and perhaps a dictionary of other arguments of `quantized`


def aimed(rules: str, spec: Spec, rows: Iterable[Row]) -> Json:
    """Return a group of tests of one specification, a row for each."""
    tests = [quantized(flags, comment, spec, x, **dict(*how)) for flags, comment, x, *how in rows]
    return group(rules, ORACLE, tests, spec=named(spec))


def both(flags: str, comment: str, x: NDArray[Any]) -> list[Row]:
    """Return the two directions of one tensor, as rows."""
    column = flags if "ColumnDirection" in flags else f"{flags} ColumnDirection"
    return [(flags, comment, x), (column, f"{comment}; columns", x, {"direction": "column"})]


def spread(shape: tuple[int, ...], dtype: str, seed: int, spread_exponent: int = 3) -> NDArray[Any]:
    """Random values whose exponents spread, the same on every machine."""
    count = math.prod(shape)
    state, words = seed * 0x9E3779B97F4A7C15, np.empty(count, np.uint64)
    for i in range(count):  # splitmix64
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        words[i] = z ^ z >> 31
    mantissa = 1 + (words >> 41).astype(np.float64) / 2**23
    exponent = (words % np.uint64(2 * spread_exponent + 1)).astype(int) - spread_exponent
    sign = np.where(words >> 20 & 1, -1.0, 1.0)
    values: NDArray[Any] = np.ldexp(sign * mantissa, exponent).astype(F).astype(INPUT_DTYPES[dtype])
    return values.reshape(shape)


def two_blocks(first: str, second: str) -> NDArray[Any]:
    """Two blocks of 16 from decimals, [1, 32]."""
    return np.concatenate([block(floats(first)), block(floats(second))], axis=1)
