"""The bytes of a quantized tensor, without the interface of a tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from fp4ref.errors import Fp4Error
from fp4ref.quantized import Quantized
from fp4ref.spec import Spec
from fp4ref.te.errors import NotSupportedError, SettingError


class CodeMatrix(NamedTuple):
    """Codes and block scales of one direction of a tensor, as a matrix whose rows hold the blocks."""

    spec: Spec
    shape: tuple[int, int]
    codes: Tensor
    scales: Tensor


class QuantizedTensorStorage:
    """Buffers by attribute name, settings, and the quantizer that made them.

    BUFFERS: attributes of buffers, in the order in which they are saved. SETTINGS: attributes that say how to read
    them. A name without its leading underscore is the constructor's argument. ORDER: arguments by position.
    """

    BUFFERS: ClassVar[tuple[str, ...]] = ()
    SETTINGS: ClassVar[tuple[str, ...]] = ()
    ORDER: ClassVar[tuple[str, ...]] = ()
    _quantizer: Any
    _dtype: torch.dtype

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Return storage from arguments named as in `get_metadata`, or in the order that the class says."""
        instance = super().__new__(cls)
        instance._assign(**cls._by_position(args), **settings)
        return instance

    @classmethod
    def _by_position(cls, args: tuple[Any, ...]) -> dict[str, Any]:
        if len(args) > len(cls.ORDER):
            got = f"{len(args)} arguments by position"
            raise SettingError(cls.__name__, got, f"at most {len(cls.ORDER)} ({', '.join(cls.ORDER)})")
        return dict(zip(cls.ORDER, args, strict=False))

    @classmethod
    @cache
    def _attributes(cls) -> dict[str, str]:
        """Return the attribute of each argument that stands for a buffer or a setting."""
        return {name.lstrip("_"): name for name in (*cls.BUFFERS, *cls.SETTINGS)}

    def _assign(self, quantizer: Any = None, fake_dtype: torch.dtype | None = None, **values: Any) -> None:
        known = self._attributes()
        unknown = values.keys() - known.keys()
        if unknown:
            raise SettingError(type(self).__name__, f"argument {min(unknown)}", ", ".join(known))
        given = {known[name]: value for name, value in values.items()}
        self.__dict__.update(dict.fromkeys(self.BUFFERS), **given)
        self._quantizer = None if quantizer is None else quantizer.copy()
        self._dtype = fake_dtype or torch.float32

    @classmethod
    def holding(cls, values: dict[str, Any], quantizer: Any, dtype: torch.dtype) -> Self:
        """Return storage that owns these attributes, all its buffers and settings, as a quantizer made it of a type."""
        made = object.__new__(cls)
        values["_quantizer"], values["_dtype"] = quantizer.copy(), dtype
        made.__dict__ = values
        return made

    def get_metadata(self) -> dict[str, Any]:
        """Return everything but shape and nominal type, by name: what the constructor takes."""
        values = {name.lstrip("_"): getattr(self, name) for name in (*self.BUFFERS, *self.SETTINGS)}
        return values | {"quantizer": self._quantizer}

    def buffers(self) -> list[Tensor]:
        """Return the buffers that exist."""
        return [value for name in self.BUFFERS if (value := getattr(self, name)) is not None]

    def with_buffers(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return changed buffers by name, None for those that there are not: arguments of the constructor."""
        values = {name: getattr(self, name) for name in self.BUFFERS}
        return {name.lstrip("_"): None if value is None else change(value) for name, value in values.items()}

    def get_data_tensors(self) -> tuple[Tensor | None, ...]:
        """Return the buffers that hold elements, row direction first; None where there is none."""
        return tuple(getattr(self, name) for name in self.BUFFERS[:2])

    def clear(self) -> None:
        """Free the memory of every buffer."""
        for buffer in self.buffers():
            buffer.data = torch.empty(0, dtype=buffer.dtype, device=buffer.device)

    def prepare_for_saving(self) -> tuple[list[Tensor | None], Any]:
        """Return the buffers, to be saved for backward, and this object, which lets go of them."""
        values = self.__dict__
        saved: list[Tensor | None] = []
        for name in self.BUFFERS:
            saved.append(values[name])
            values[name] = None
        return saved, self

    def restore_from_saved(self, tensors: list[Tensor | None]) -> list[Tensor | None]:
        """Take the buffers back from the front of a list; returns the rest of it."""
        values = self.__dict__
        for at, name in enumerate(self.BUFFERS):
            values[name] = tensors[at]
        return tensors[len(self.BUFFERS) :]

    def update_quantizer(self, quantizer: Any) -> None:
        """Set the quantizer of later in-place updates.

        Errors: SettingError for a tensor that no quantizer made.
        """
        if self._get_quantizer() is not quantizer:
            warnings.warn("Quantizer is being updated, this may affect model behavior", stacklevel=2)
            self._quantizer = quantizer

    def _get_quantizer(self) -> Any:
        if self._quantizer is None:
            raise SettingError(type(self).__name__, "no quantizer", "a tensor that was made by one")
        return self._quantizer

    def quantize_(self, tensor: Tensor, *, noop_flag: Tensor | None = None) -> Any:
        """Quantize a high-precision tensor into the buffers. Rules: TEL-5."""
        if isinstance(tensor, QuantizedTensorStorage):
            return self.quantize_(tensor.dequantize(), noop_flag=noop_flag)
        return self._get_quantizer().update_quantized(tensor, self, noop_flag=noop_flag)

    def copy_from_storage(self, src: QuantizedTensorStorage) -> None:
        """Copy the bytes of storage with the same settings."""
        for name in self.SETTINGS:
            mine, theirs = getattr(self, name), getattr(src, name, None)
            if mine != theirs:
                raise SettingError("copy_from_storage", f"{name.lstrip('_')} {theirs}", f"{mine}, as the target has")
        for name in self.BUFFERS:
            mine, theirs = getattr(self, name), getattr(src, name)
            if mine is not None and theirs is not None:
                mine.copy_(theirs)

    @property
    def device(self) -> torch.device:
        """The device of the buffers."""
        return self._some_buffer().device

    @property
    def is_cuda(self) -> bool:
        """True if the buffers are on a CUDA device."""
        return self._some_buffer().is_cuda

    @property
    def dtype(self) -> torch.dtype:
        """The nominal type."""
        return self._dtype

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor that was quantized."""
        return self.logical_shape()

    def _some_buffer(self) -> Tensor:
        values = self.__dict__
        for name in self.BUFFERS:
            buffer: Tensor | None = values[name]
            if buffer is not None:
                return buffer
        raise SettingError(type(self).__name__, "no data", "a tensor with the buffers of one direction")

    def size(self, dim: int | None = None) -> Any:
        """Return the shape of the tensor that was quantized, or one of its sizes."""
        shape = self.logical_shape()
        return shape if dim is None else shape[dim]

    def numel(self) -> int:
        """Return the number of elements."""
        return self.logical_shape().numel()

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized, read off the buffers."""
        raise NotImplementedError

    def directions(self) -> list[str]:
        """Return the directions whose bytes exist: "row", "column"."""
        raise NotImplementedError

    def get_usages(self) -> dict[str, bool]:
        """Return which directions exist."""
        held = self.directions()
        return {"rowwise": "row" in held, "columnwise": "column" in held}

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Keep the wanted directions and free the others; an error for one that is missing."""
        raise NotImplementedError

    def record(self, direction: str) -> Quantized:
        """Return one direction as a record: codes and block scales of a matrix, without a global scale."""
        raise NotImplementedError

    def scales_buffer(self, direction: str) -> Tensor:
        """Return the buffer of one direction's scales."""
        raise NotImplementedError

    def set_scales_buffer(self, direction: str, scales: Tensor) -> None:
        """Give one direction another buffer of scales."""
        current = self.scales_buffer(direction)
        name = next(name for name in self.BUFFERS if getattr(self, name) is current)
        setattr(self, name, scales)

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        """Return the attributes of the buffers that a shard sends. Rules: TEL-15.

        Errors: NotSupportedError for a format whose parts cannot be gathered.
        """
        got = f"{type(self).__name__}"
        raise NotSupportedError("fsdp_buffer_fields", got, "a format whose shards can be gathered", "TEL-15")

    def fsdp_extract_buffers(self) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
        """Return the buffers that a shard sends, and their attributes. Rules: TEL-15."""
        names = self.fsdp_buffer_fields()
        return tuple(getattr(self, name) for name in names), {"field_names": names}

    def fsdp_assign_gathered(self, gathered: tuple[Tensor | None, ...], meta: dict[str, Any]) -> None:
        """Take over gathered buffers. Rules: TEL-15."""
        for name, value in zip(meta["field_names"], gathered, strict=True):
            setattr(self, name, value)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the values, rounded once to a high-precision type."""
        raise NotImplementedError

    def dequantize(self, *, dtype: torch.dtype | None = None) -> Tensor:
        """Return values, rounded once to `dtype`, the nominal type unless given. Rules: DEQ-1, DEQ-2, DEQ-3."""
        return self.decode(dtype or self._dtype)

    def shown(self) -> str:
        """Return the values as text, or why there are none."""
        try:
            return str(self.decode(torch.float32))
        except Fp4Error as error:
            return f"<{error.got}>"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown()})"


def sharing_buffers(operand: Any) -> Any:
    """Return another object with the same buffers, so that one may let go of them."""
    if isinstance(operand, Tensor):
        return operand.detach()
    other = object.__new__(type(operand))
    values = other.__dict__ = operand.__dict__.copy()
    values["_quantizer"] = values["_quantizer"] and values["_quantizer"].copy()
    return other


def prepare_for_saving(*tensors: Any) -> tuple[list[Tensor | None], list[Any]]:
    """Return tensors to save for backward, and the objects that take them back; ordinary tensors pass."""
    saved: list[Tensor | None] = []
    objects: list[Any] = []
    for tensor in tensors:
        of_storage = isinstance(tensor, QuantizedTensorStorage)
        buffers, kept = tensor.prepare_for_saving() if of_storage else ([tensor], None)
        saved += buffers
        objects.append(kept)
    return saved, objects


def restore_from_saved(
    tensors: list[Any], saved_tensors: Any, return_saved_tensors: bool = False
) -> list[Any] | tuple[list[Any], list[Any]]:
    """Return the inverse of `prepare_for_saving`."""
    remaining = list(saved_tensors)
    restored = []
    for tensor in tensors:
        if isinstance(tensor, QuantizedTensorStorage):
            remaining = tensor.restore_from_saved(remaining)
            restored.append(tensor)
        else:
            restored.append(remaining.pop(0))
    return (restored, remaining) if return_saved_tensors else restored


def restore_from_func_ctx(ctx: Any, return_saved_tensors: bool = False) -> list[Any] | tuple[list[Any], list[Any]]:
    """Return the tensors that `prepare_for_saving` took apart, made whole again; the context lets go of them.

    Errors: AttributeError for a context without `tensor_objects`.
    """
    objects = getattr(ctx, "tensor_objects", None)
    if objects is None:
        raise AttributeError("restore_from_func_ctx: the context needs .tensor_objects, from prepare_for_saving")
    restored = restore_from_saved(objects, ctx.saved_tensors, return_saved_tensors)
    ctx.tensor_objects = None
    return restored
