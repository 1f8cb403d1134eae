"""Tensors of two parts made and filled as others of their kind were, with nothing decided again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from fp4ref import repeats
from fp4ref.te import debug, steps
from fp4ref.te.cast import kind_of_update, repeating

Counts = list[tuple[str, str, int]]


def kind(quantizer: Any, tensor: Tensor) -> Hashable | None:
    """Return all that decides what quantizing a tensor does; None if more may."""
    of = _kinds(quantizer, tensor)
    seen = None if of is None else repeats.kind_of(tensor)
    return None if seen is None else ("te.hybrid", of, seen)


def kind_of_filling(quantizer: Any, tensor: Tensor, dst: Any, noop: Tensor | None) -> Hashable | None:
    """Return all that decides what filling a tensor does; None if more may."""
    parts, of = (dst._rowwise_storage, dst._columnwise_storage), _kinds(quantizer, tensor)
    return None if of is None else kind_of_update(("te.hybrid", of), tensor, parts, noop)


def _kinds(quantizer: Any, tensor: Tensor) -> Hashable | None:
    both = quantizer.rowwise_usage and quantizer.columnwise_usage and quantizer.columnwise_source == "original"
    if not both or not (tensor.is_cpu or tensor.is_cuda):
        return None
    row, column = quantizer.rowwise_quantizer.kind_of_call(), quantizer.columnwise_quantizer.kind_of_call()
    return None if row is None or column is None else (row, column)


def made(quantizer: Any, x: Tensor, counts: Counts) -> Callable[[Tensor, Any], Any] | None:
    """Return a function that makes other tensors of a kind, as one was just made. counts: of that."""
    at_once = _made_at_once(quantizer, x, counts)
    if at_once is not None:
        return at_once
    row, column = (each.made_again(x) for each in (quantizer.rowwise_quantizer, quantizer.columnwise_quantizer))
    if row is None or column is None:
        return None
    of = x.dtype, x.shape, x.device

    def again(x: Tensor, quantizer: Any) -> Any:
        debug.count_again(counts)
        rows, columns = row(x, quantizer.rowwise_quantizer), column(x, quantizer.columnwise_quantizer)
        return quantizer.of_parts(rows, columns, of)

    return again


def _made_at_once(quantizer: Any, x: Tensor, counts: Counts) -> Callable[[Tensor, Any], Any] | None:
    """Return the same where a backend repeats the steps of both parts as one."""
    row, column = (each.in_steps(x) for each in (quantizer.rowwise_quantizer, quantizer.columnwise_quantizer))
    if row is None or column is None:
        return None
    run = steps.repeated(("hybrid", _kinds(quantizer, x)), (x,), lambda x: (*row.act(x), *column.act(x)))
    if run is None:
        return None
    of, count = (x.dtype, x.shape, x.device), row.results

    def again(x: Tensor, quantizer: Any) -> Any:
        debug.count_again(counts)
        made = run(x)
        rows = row.hold(made[:count], quantizer.rowwise_quantizer)
        return quantizer.of_parts(rows, column.hold(made[count:], quantizer.columnwise_quantizer), of)

    return again


def filled(quantizer: Any, x: Tensor, dst: Any, noop: Tensor | None, counts: Counts) -> Callable[..., None] | None:
    """Return a function that fills other tensors of a kind, as one was just filled. counts: of that."""
    row = repeating(x, quantizer.rowwise_quantizer, dst._rowwise_storage, noop, counts)
    column = repeating(x, quantizer.columnwise_quantizer, dst._columnwise_storage, noop, [])
    if row is None or column is None or any(buffer.device != x.device for buffer in dst.buffers()):
        return None

    def again(x: Tensor, quantizer: Any, dst: Any, noop: Tensor | None) -> None:
        row(x, quantizer.rowwise_quantizer, dst._rowwise_storage, noop)
        column(x, quantizer.columnwise_quantizer, dst._columnwise_storage, noop)

    return again
