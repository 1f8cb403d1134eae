"""Buffers of tensors filled where they are in the CPU's memory, by a backend that has served others of their kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from torch import Tensor

from fp4ref.memory import apart
from fp4ref.te.steps import Filled

# Of a tensor without gaps, the buffers that are filled, and what is drawn, if anything; it reads addresses alone.
Into: TypeAlias = Callable[..., Any]


def filled(
    tensor: Tensor,
    dst: Any,
    names: Sequence[str],
    held: Sequence[Any],
    made: Sequence[Any],
    into: Into | None,
    draw: Callable[[Any], Any] | None = None,
) -> Filled | None:
    """Return a function that fills tensors of a kind; None without a function that does so at given buffers.

    names: of the buffers of `dst`, attributes. held: the same buffers, seen in the order in which their bytes are
    filled. made: new ones of the types and shapes that are filled. draw: what a quantizer draws. The quantizer decides
    about buffers that are others, have gaps or share memory.
    """
    present = [at for at, each in enumerate(held) if each is not None]
    if into is None or not present or [_facts(each) for each in held] != [_facts(each) for each in made]:
        return None
    read, places, unit = itemgetter(*names), itemgetter(*present, -1), tensor.element_size()
    are_apart = apart(places((*held, tensor)))

    def again(x: Tensor, quantizer: Any, dst: Any, flag: Tensor | None) -> None:
        buffers = read(dst.__dict__)
        if not are_apart(places((*buffers, x))) or x.data_ptr() % unit:
            quantizer.fill(x, dst)
        elif draw is None:
            into(x, buffers)
        else:
            into(x, buffers, draw(quantizer))

    return again


def _facts(buffer: Any) -> Any:
    return None if buffer is None else (buffer.dtype, buffer.shape)
