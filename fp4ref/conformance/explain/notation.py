"""Values as text: what `explain` reads from a command line, and what a witness is printed as."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.explain.formulas import decimal, float_bits
from fp4ref.errors import DomainError
from fp4ref.formats import F, ignoring_float_warnings

COUNT_MAX = 1 << 20
TOKEN = re.compile(r"(?P<value>[^*]+?)(\*(?P<count>\d+))?")
NEEDED = "numbers, or bits like 0x3f800000, each with *COUNT to repeat it"


@ignoring_float_warnings
def parse_values(text: str, dtype: str = "float32") -> NDArray[Any]:
    """Read values separated by spaces or commas: decimals, nan, inf, or bits in hex; `0*15` repeats.

    A decimal is rounded to float32, then to dtype; hex has exactly the bits of dtype.

    >>> parse_values("1 -0.5 0x40c00000 0*3")
    array([ 1. , -0.5,  6. ,  0. ,  0. ,  0. ], dtype=float32)

    Rules: NUM-3.
    """
    parts = [_token(token, INPUT_DTYPES[dtype]) for token in text.replace(",", " ").split()]
    if not parts:
        raise DomainError("values", "none", NEEDED, "NUM-3")
    if sum(len(part) for part in parts) > COUNT_MAX:
        raise DomainError("values", "too many", f"at most {COUNT_MAX}", "NUM-3")
    return np.concatenate(parts)


def _token(token: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    match = TOKEN.fullmatch(token)
    if match is None:
        raise DomainError("values", repr(token), NEEDED, "NUM-3")
    count = int(match["count"] or 1)
    if count > COUNT_MAX:
        raise DomainError("values", repr(token), f"at most {COUNT_MAX} values", "NUM-3")
    return np.repeat(_number(match["value"], dtype), count)


def _number(text: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    digits = 2 * dtype.itemsize
    if text.lower().startswith("0x"):
        if not re.fullmatch(f"0x[0-9a-f]{{{digits}}}", text.lower()):
            raise DomainError("values", repr(text), f"{digits} hex digits, the bits of a {dtype.name}", "NUM-3")
        return np.array([int(text, 16)], f"uint{4 * digits}").view(dtype)
    try:
        exact = np.float64(text)
    except ValueError:
        raise DomainError("values", repr(text), NEEDED, "NUM-3") from None
    value = np.array([exact]).astype(F).astype(dtype)
    if np.isinf(value[0].astype(F)) and not np.isinf(exact):
        raise DomainError("values", repr(text), f"a value in the range of {dtype.name}", "NUM-3")
    return value


def write_values(values: NDArray[Any]) -> str:
    """Values in the notation that `parse_values` reads back bit for bit, runs shortened."""
    words = [_word(value) for value in values.ravel()]
    runs = [(word, len(list(group))) for word, group in itertools.groupby(words)]
    return " ".join(word if count == 1 else f"{word}*{count}" for word, count in runs)


def _word(value: Any) -> str:
    text = decimal(value)
    same = float_bits(_number(text, np.asarray(value).dtype)[0]) == float_bits(value)
    return text if same else float_bits(value)
