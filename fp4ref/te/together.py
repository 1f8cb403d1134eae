"""Steps of a module that a backend repeats as one: the pass of a layer, instead of each operand and each product.

    local, y = together(kind, (rows, weight, bias), lambda rows, weight, bias: ...)

The function quantizes and multiplies, and returns quantized storage and tensors. Where a backend of the device can, the
third call of a kind runs what the second one ran on the device, and makes new storage of the same settings, with
nothing decided again in between. So `kind` has to hold all that the function decides by, besides its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

from torch import Tensor

from fp4ref import registry
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.te import debug
from fp4ref.te.device_product import PLAIN
from fp4ref.te.float8_block_tensor import Float8BlockwiseQTensorStorage
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.mxfp8_tensor import MXFP8TensorStorage
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage
from fp4ref.te.storage import QuantizedTensorStorage, sharing_buffers
from fp4ref.te.swizzle import role_of

# Storage whose methods read nothing but attributes, and how to get its buffers, and all else.
STORAGE = {
    kind: (attrgetter(*kind.BUFFERS), attrgetter("_dtype", *kind.SETTINGS))
    for kind in (NVFP4TensorStorage, MXFP8TensorStorage, Float8TensorStorage, Float8BlockwiseQTensorStorage)
}


def together(kind: Hashable | None, inputs: Sequence[Any], act: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return act(*inputs); where a backend can, by one program that an earlier call of the kind left.

    kind: None for steps that cannot be repeated. inputs: a tensor, and more tensors, quantized storage, and None. act:
    returns such, too; it draws no random numbers, and computes by operations of backends only.
    """
    device = "cuda" if inputs[0].is_cuda else inputs[0].device.type  # which takes torch five times as long
    found = None if kind is None else server(device, registry.registered())
    read = None if found is None else _opened(inputs)
    if found is None or read is None:
        return act(*inputs)
    tensors, forms = read
    acted: list[tuple[Any, ...]] = []

    def first() -> tuple[Sequence[Any], Any]:
        with debug.noted() as counts:
            results = act(*inputs)
        acted.append(results)
        made = _opened(results)
        assert made is not None, "together: results that are neither tensors nor quantized storage"
        return made[0], ([_emptied(each) for each in results], counts)

    call, serve = found
    results, (shapes, counts) = serve(call, (kind, *forms), tensors, first)
    if acted:
        return acted[0]
    debug.count_again(counts)
    return tuple(_closed(shapes, results))


@lru_cache
def server(device: str, registered: Same) -> tuple[Call, Callable[..., Any]] | None:
    """Return the call of the backend that repeats steps on a device, and the function that does.

    Returns None without one, and where another one is faster: it would serve some of the steps, by means of its own.
    """
    call = Call("together", device=device)
    return (call, registry.choose(call, None)) if registry.leads(call) else None


def kept(quantizers: Iterable[Any]) -> list[Tensor]:
    """Return the tensors by which quantizers make codes, or which they change: inputs of the steps that they take."""
    return [each for quantizer in quantizers if quantizer is not None for each in quantizer.kept()]


def kinds(quantizers: Iterable[Any]) -> tuple[Hashable, ...] | None:
    """Return the kinds of quantizers that make storage, None among them for no quantizer; None if one has no kind.

    The tensors that `kept` returns are inputs of their steps.
    """
    found: list[Hashable] = []
    for each in quantizers:
        kind = each.kind() if each is not None and each.internal else None
        if kind is None and each is not None:
            return None
        found.append(kind)
    return tuple(found)


def _opened(values: Iterable[Any]) -> tuple[list[Any], list[Hashable]] | None:
    """Return the tensors of values, and what else there is to know of these; None if one is of another kind."""
    tensors: list[Any] = []
    forms: list[Hashable] = []
    for each in values:
        kind = type(each)
        if each is None or kind in PLAIN:
            tensors.append(each)
            forms.append(None)
        elif kind in STORAGE:
            buffers, settings = STORAGE[kind]
            tensors += buffers(each)
            forms.append((kind, role_of(each), settings(each)))
        else:
            return None
    return tensors, forms


def _emptied(value: Any) -> Any:
    """Return storage without its buffers, to be filled by later calls; None for a tensor."""
    if not isinstance(value, QuantizedTensorStorage):
        return None
    form = sharing_buffers(value)
    form.__dict__.update(dict.fromkeys(form.BUFFERS))
    if form._quantizer is not None and form._quantizer.kept():
        form._quantizer = None  # it holds tensors of one module
    return form


def _closed(forms: Iterable[Any], tensors: Iterable[Any]) -> list[Any]:
    """Return tensors, and storage of given forms with the next ones as its buffers."""
    rest = iter(tensors)
    return [next(rest) if form is None else _filled(form, rest) for form in forms]


def _filled(form: Any, tensors: Iterator[Any]) -> Any:
    made = sharing_buffers(form)
    values = made.__dict__
    for name in form.BUFFERS:
        values[name] = next(tensors)
    return made
