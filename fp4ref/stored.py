"""Operands of a product as tensors keep them, beside the call of a backend that decodes them."""

from __future__ import annotations

from typing import Any, NamedTuple

from fp4ref.registry import Call


class Stored(NamedTuple):
    """An operand of `multiply` as a tensor keeps it.

    arrays: a matrix; or data, scales and amax, codes, or codes and scales, that `decode` makes a matrix of. decode: a
    call of `dequantize`, `tensor_values` or `block_values`, the same object for all operands of one kind; None for a
    matrix. transposed: the operand is the transpose of that matrix. squares: as for `block_values`.
    """

    arrays: tuple[Any, ...]
    decode: Call | None = None
    transposed: bool = False
    squares: bool = False
