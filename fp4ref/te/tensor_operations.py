"""Operations of torch that a quantized tensor serves from its bytes; all others read its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fp4ref.te.storage import QuantizedTensorStorage

aten = torch.ops.aten
Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
HANDLERS: dict[Any, Handler] = {}


def values_of(x: Any) -> Any:
    """Return the values of a quantized tensor in its nominal type; anything else as it is."""
    return x.decode(x._dtype) if _is_quantized(x) else x


def _is_quantized(x: Any) -> bool:
    return isinstance(x, QuantizedTensorStorage)


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a function that serves operations from the bytes; it returns NotImplemented to decline."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


@handles(aten.detach.default, aten.alias.default)
def _detach(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tensor.rebuilt()


@handles(aten.clone.default)
def _clone(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tensor.rebuilt(tensor.with_buffers(torch.clone))


@handles(aten.empty_like.default)
def _empty_like(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("dtype") not in (None, tensor._dtype):
        return NotImplemented
    device = kwargs.get("device")
    return tensor.rebuilt(tensor.with_buffers(lambda buffer: torch.empty_like(buffer, device=device)))


@handles(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tensor.viewed(_resolve(args[1], tensor.numel()))


@handles(aten.expand.default)
def _expand(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tensor.rebuilt() if tuple(args[1]) == tuple(tensor.shape) else NotImplemented


@handles(aten.as_strided.default)
def _as_strided(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    same = (tuple(args[1]), tuple(args[2])) == (tuple(tensor.shape), tensor.stride()) and not offset
    return tensor.rebuilt() if same else tensor.viewed_through(aten.as_strided.default, args, kwargs)


@handles(aten.slice.Tensor)
def _slice(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def whole(dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> bool:
        return not start and step == 1 and (end is None or end >= tensor.shape[dim])

    if whole(*args[1:], **kwargs):
        return tensor.rebuilt()
    return tensor.viewed_through(aten.slice.Tensor, args, kwargs)


@handles(aten.new_zeros.default)
def _new_zeros(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = torch.device(kwargs.get("device") or tensor.device)
    return tensor.zeros(tuple(args[1]), kwargs.get("dtype") or tensor._dtype, device)


@handles(aten.record_stream.default)
def _record_stream(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for buffer in tensor.buffers():
        if buffer.is_cuda:
            buffer.record_stream(args[1])


@handles(aten._to_copy.default)
def _to(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    if dtype is not None and dtype != tensor._dtype:
        return NotImplemented
    return tensor.rebuilt(
        tensor.with_buffers(lambda buffer: buffer.to(device) if device is not None else buffer.clone())
    )


@handles(aten.copy_.default)
def _copy(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[1]
    if not _is_quantized(target):
        target.copy_(source.decode(target.dtype if target.dtype.is_floating_point else source._dtype))
        return target
    if type(source) is type(target) and target.like(source):
        target.copy_from_storage(source)
    else:
        target.quantize_(values_of(source))
    return target


@handles(aten.split.Tensor, aten.split_with_sizes.default)
def _split(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    sizes = args[1]
    total = tensor.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    return tensor.pieces(list(sizes), dim % tensor.dim())


def _resolve(shape: Iterable[int], count: int) -> tuple[int, ...]:
    sizes = list(shape)
    if -1 in sizes:
        known = 1
        for size in sizes:
            known *= size if size != -1 else 1
        sizes[sizes.index(-1)] = count // known if known else 0
    return tuple(sizes)
