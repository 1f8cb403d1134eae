"""Quantized tensors as torch tensors: they show a high-precision type, and hold packed bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fp4ref.te import fsdp
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.tensor_operations import HANDLERS, values_of


class _Dequantize(torch.autograd.Function):
    """Dequantize; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: QuantizedTensor, dtype: torch.dtype) -> Tensor:  # noqa: ARG004 - torch's signature
        return tensor.decode(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad, None


class QuantizedTensor(torch.Tensor, fsdp.Gathered, QuantizedTensorStorage):  # type: ignore[misc]
    """A tensor of a high-precision type whose elements are quantized bytes.

    Views, copies and detaching keep the bytes. An operation in place is done on the values, which are quantized again
    into the same buffers. Every other operation reads the values in the nominal type.
    """

    _dtype: torch.dtype

    def __new__(
        cls,
        *args: Any,
        shape: Iterable[int],
        dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
        device: torch.device | None = None,
        stride: Iterable[int] | None = None,
        storage_offset: int = 0,
        **settings: Any,
    ) -> Self:
        """Return a tensor from the storage's arguments, a shape and a nominal type."""
        values = cls._by_position(args) | settings
        if device is None:
            buffers = [value for value in values.values() if isinstance(value, Tensor)]
            device = buffers[0].device if buffers else torch.device("cpu")
        how: dict[str, Any] = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        if stride is not None:
            how |= {"strides": tuple(stride), "storage_offset": storage_offset}
        instance = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), **how)
        instance._assign(**values, fake_dtype=dtype)
        return instance

    @classmethod
    def wrapping(
        cls,
        values: dict[str, Any],
        quantizer: Any,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        device: torch.device,
        *,
        requires_grad: bool = False,
    ) -> Self:
        """Return a tensor that owns these attributes, all its buffers and settings, as `holding` returns storage."""
        made = torch.Tensor._make_wrapper_subclass(  # whose arguments take it a fifth longer by name
            cls, shape, None, None, None, dtype, torch.strided, device, False, requires_grad
        )
        values["_quantizer"], values["_dtype"] = quantizer.copy(), dtype
        made.__dict__ = values
        return made

    def dequantize(self, *, dtype: torch.dtype | None = None) -> Tensor:
        """Return values, rounded once to `dtype`, the nominal type unless given; gradients pass through.

        Rules: DEQ-1, DEQ-2, DEQ-3.
        """
        kind = dtype or self._dtype
        if self.requires_grad and torch.is_grad_enabled():
            values: Tensor = _Dequantize.apply(self, kind)  # type: ignore[no-untyped-call]
            return values
        return self.decode(kind)

    def rebuilt(
        self, changes: dict[str, Any] | None = None, *, shape: Iterable[int] | None = None, dtype: Any = None
    ) -> Any:
        """Return the same bytes, with changed buffers or settings, shape or nominal type."""
        metadata = self.get_metadata() | (changes or {})
        sizes = self.shape if shape is None else tuple(shape)
        return type(self)(shape=sizes, dtype=dtype or self._dtype, **metadata)

    @classmethod
    def make_like(cls, tensor: Any, *, shape: Iterable[int] | None = None, dtype: torch.dtype | None = None) -> Any:
        """Return a tensor that shares the bytes of another, under another shape or nominal type if given."""
        return tensor.rebuilt(shape=shape, dtype=dtype)

    def viewed_through(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a view of torch on the same bytes, or decline: most views break blocks."""
        return NotImplemented

    def like(self, source: Any) -> bool:
        """Return True if `copy_from_storage` can copy a source's bytes: equal settings, and buffers of equal shapes."""
        return bool(self._forms() == source._forms())

    def _forms(self) -> list[Any]:
        values = [getattr(self, name) for name in (*self.SETTINGS, *self.BUFFERS)]
        return [tuple(value.shape) if isinstance(value, Tensor) else value for value in values]

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
        """Return zeros that are quantized alike, which a shard is copied into; zeros of another type are ordinary."""
        if dtype != self._dtype or self._quantizer is None or len(shape) != self.dim():
            return NotImplemented
        made = self._quantizer.make_empty(shape, dtype=dtype, device=device)
        for buffer in made.buffers():
            buffer.zero_()
        for name in self.BUFFERS:
            if getattr(self, name) is None:
                setattr(made, name, None)
        return made

    @property
    def data(self) -> Any:
        """The tensor without its history; assigning takes over another one's bytes, quantized if need be."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Tensor) -> None:
        taken = value if type(value) is type(self) else self._get_quantizer().quantize(value.detach())
        torch.Tensor.data.__set__(self, taken.rebuilt())  # type: ignore[attr-defined]
        for name in (*self.BUFFERS, *self.SETTINGS, "_dtype"):
            setattr(self, name, getattr(taken, name))

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return the memory of the first buffer that exists; others are elsewhere."""
        buffers = self.buffers()
        return buffers[0].untyped_storage() if buffers else torch.UntypedStorage(0, device=self.device)  # type: ignore[no-untyped-call]

    def float(self) -> Tensor:
        """Return values as float32."""
        return self.dequantize(dtype=torch.float32)

    def bfloat16(self) -> Tensor:
        """Return values as bfloat16."""
        return self.dequantize(dtype=torch.bfloat16)

    def half(self) -> Tensor:
        """Return values as float16."""
        return self.dequantize(dtype=torch.float16)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> Any:
        """Return the same bytes in the CPU's memory."""
        return self.to(device=torch.device("cpu"), memory_format=memory_format)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={self._dtype}, data={self.shown()})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        metadata = {**self.get_metadata(), "shape": tuple(self.shape), "dtype": self._dtype}
        return rebuild, (type(self), metadata, self.requires_grad)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Serve an operation from the bytes if a handler does, else from the values."""
        kwargs = kwargs or {}
        handler = HANDLERS.get(func)
        result = NotImplemented if handler is None else handler(args[0], args, kwargs)
        if result is not NotImplemented:
            return result
        plain_args, plain_kwargs = tree_map(values_of, args), tree_map(values_of, kwargs)
        outcome = func(*plain_args, **plain_kwargs)
        written = None
        for index, argument in enumerate(func._schema.arguments):
            if argument.is_write and (index < len(args) or argument.name in kwargs):
                by_position = index < len(args)
                written = args[index] if by_position else kwargs[argument.name]
                _write_back(written, plain_args[index] if by_position else plain_kwargs[argument.name])
        return written if isinstance(written, QuantizedTensor) else outcome


def rebuild(kind: Any, metadata: dict[str, Any], requires_grad: bool) -> Any:
    """Return a tensor from what its pickle holds."""
    return kind(**metadata, requires_grad=requires_grad)


def _write_back(target: Any, values: Any) -> None:
    """Quantize what an operation in place wrote into the values of one tensor, or of each of a list."""
    if isinstance(target, QuantizedTensor):
        target.quantize_(values)
    elif isinstance(target, (list, tuple)):
        for each, value in zip(target, values, strict=True):
            _write_back(each, value)
