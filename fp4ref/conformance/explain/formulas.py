"""The one-line formula of a function of the arithmetic, and the rules that it implements, from its docstring."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fp4ref.formats import F

RULE_ID = re.compile(r"\b[A-Z][A-Z0-9]*-\d+\b")


def formula(function: Callable[..., Any]) -> str:
    """Return the first line of the docstring, without the rules that it cites, and the values that it is used with.

    A truth value picks a word: with up=False, "rounded up or down" is "rounded down". Without such words it is a value.
    """
    text = (_undecorated(function).__doc__ or "no formula given").strip().splitlines()[0]
    text = text.partition(" Rules:")[0].rstrip(".")
    bound = function.keywords if isinstance(function, partial) else {}
    left = []
    for name, value in bound.items():
        said = re.sub(rf"\b({name}) or (\w+)", r"\1" if value else r"\2", text) if isinstance(value, bool) else text
        left += [f"{name} {value}"] if said == text else []
        text = said
    return f"{text} ({', '.join(left)})" if left else text


def cited(function: Callable[..., Any], default: str = "PRO-3") -> tuple[str, ...]:
    """Return the rules that the docstring cites, or the default for an implementation's own order of operations."""
    return tuple(RULE_ID.findall((_undecorated(function).__doc__ or "").partition("Rules:")[2])) or (default,)


def _undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    return function


def decimal(value: Any) -> str:
    """Return the shortest decimal that is this float32."""
    return str(F(value)).removesuffix(".0")


def float_bits(value: Any) -> str:
    """Return the bits of one number in hex, as wide as its type."""
    array = np.asarray(value)
    return f"0x{int(array.view(f'uint{8 * array.itemsize}')):0{2 * array.itemsize}x}"
