"""Steps of a quantizer that a device's backend repeats as one, into new memory or into a tensor's buffers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from fp4ref import registry
from fp4ref.arguments import FLAGS
from fp4ref.memory import apart
from fp4ref.te.dtypes import dtype_name
from fp4ref.te.one_pass import server

# Of a tensor, what its quantizer keeps, and the word of a flag: codes, and 1 over their scale.
Stepwise: TypeAlias = Callable[[Tensor, Sequence[Tensor], Tensor | None], tuple[Tensor, Tensor]]
Filling: TypeAlias = Callable[[Tensor, Sequence[Any], Sequence[Any], Tensor | None], None]
Filled: TypeAlias = Callable[[Tensor, Any, Any, Tensor | None], None]  # of a tensor, its quantizer, target and flag


def repeated(
    kind: Hashable, inputs: Sequence[Any], act: Callable[..., tuple[Any, ...]]
) -> Callable[..., tuple[Any, ...]] | None:
    """Return a function of other tensors of these ones' kinds that acts on them; None without a backend that does.

    kind: all that decides what `act` does, besides its inputs. inputs: contiguous tensors on one device, and None. act:
    computes by operations of backends alone, and makes views; returns new tensors, and none for what it only fills.
    """
    found = server("steps", inputs[0].device, (1, 1))
    bind = found and registry.binder(found[0], None)
    if found is None or bind is None or not registry.leads(found[0]):  # a faster one would serve some of the operations
        return None
    function: Callable[..., tuple[Any, ...]] | None = bind(found[0], kind, inputs, act)
    return function


def filled(
    kind: Hashable,
    tensor: Tensor,
    dst: Any,
    flag: Tensor | None,
    buffers: Callable[[Any], list[Any]],
    fill: Filling,
    like: Sequence[Any] = (),
    read: Callable[[Any], Sequence[Any]] = lambda quantizer: (),
    numbers: Callable[[Any], tuple[Any, ...]] | None = None,
) -> Filled | None:
    """Return a function that fills tensors of a kind, as `fill` does; None without a backend that repeats it.

    flag: on the tensor's device, or None. buffers: of a tensor that is filled, contiguous, and None. fill: gets a
    tensor, what `read` and `numbers` read of its quantizer, the buffers, and a word that is not 0 where nothing is to
    change. like: tensors of the kinds that `read` returns. numbers: reads integers for programs; a tensor among them
    leaves a call to `fill`.
    """
    if flag is not None and (dtype_name(flag.dtype) not in FLAGS or server("is_one", flag.device, (1, 1)) is None):
        return None
    count, held = len(like), buffers(dst)
    end = count + len(held)

    def act(x: Tensor, flag: Tensor | None, *rest: Any) -> tuple[()]:
        kept = (*rest[:count], *rest[end:])
        fill(x.detach(), kept, rest[count:end], None if flag is None else _word(flag))
        return ()

    first = tensor, flag, *like, *held
    run = repeated((kind, count), first, act)
    if run is None:
        return None
    are_apart = apart([each for each in first if each is not None])

    def again(x: Tensor, quantizer: Any, dst: Any, flag: Tensor | None) -> None:
        inputs = x, flag, *read(quantizer), *buffers(dst)
        words = numbers(quantizer) if numbers else ()
        plain = all(map(_is_integer, words))
        if plain and are_apart([each for each in inputs if each is not None]):
            run(*inputs, numbers=words)
        else:
            act(*inputs, *words)  # which refuses overlaps

    return again


def _is_integer(word: Any) -> bool:
    return type(word) is int


def written(made: Tensor, buffer: Tensor, word: Tensor | None, *, turns: bool = False) -> None:
    """Copy into a buffer by a backend, turned or as it is, unless a word on the device is not 0. Rules: TEL-24."""
    found = server("written", made.device, (1, 1))
    assert found is not None, "written: steps without a backend that writes"
    found[1](found[0], made, buffer, word, turns=turns)


def _word(flag: Tensor) -> Tensor:
    found = server("is_one", flag.device, (1, 1))
    assert found is not None, "is_one: steps without a backend that reads flags"
    word: Tensor = found[1](found[0], flag.reshape(-1)[:1])
    return word
