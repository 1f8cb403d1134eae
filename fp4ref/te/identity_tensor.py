"""Tensors that stay in high precision where quantized ones are expected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fp4ref.te import fsdp
from fp4ref.te.errors import SettingError, TensorDTypeError
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.tensor import QuantizedTensor
from fp4ref.te.tensor_operations import aten

VIEWS = {
    *(aten.view.default, aten._unsafe_view.default, aten.split.Tensor, aten.split_with_sizes.default),
    *(aten.as_strided.default, aten.slice.Tensor),
}


class IdentityTensorStorage(QuantizedTensorStorage):
    """A tensor in high precision where a quantized one is expected; it serves both directions."""

    BUFFERS = ("_hp_data",)
    _hp_data: Tensor | None

    def logical_shape(self) -> torch.Size:
        """Return the tensor's shape."""
        return self.read_in("row").shape

    def directions(self) -> list[str]:
        """Return both directions, or none if the tensor was let go of."""
        return [] if self._hp_data is None else ["row", "column"]

    def get_data_tensors(self) -> tuple[Tensor | None, ...]:
        """Return the tensor, which serves both directions."""
        return (self._hp_data, None)

    def read_in(self, direction: str) -> Tensor:
        """Return the tensor, which a product reads in either direction."""
        if self._hp_data is None:
            raise SettingError("IdentityTensor", "no data", "a tensor with data")
        return self._hp_data

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Do nothing: one tensor serves both directions. Rules: TEL-25."""

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the values, rounded once to another type."""
        return self.read_in("row").to(dtype)

    def view(self, *shape: Any) -> Any:
        """Return the same memory under another shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        data = self.read_in("row").view(sizes)
        return IdentityTensorStorage(hp_data=data, quantizer=self._quantizer, fake_dtype=self._dtype)

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        """Return the attribute of the buffer that a shard sends. Rules: TEL-15."""
        return self.BUFFERS


class IdentityTensor(QuantizedTensor, IdentityTensorStorage):  # type: ignore[misc]
    """The same as a tensor of torch: its views are views of the memory that it holds. Rules: TEL-60."""

    def rebuilt(
        self, changes: dict[str, Any] | None = None, *, shape: Iterable[int] | None = None, dtype: Any = None
    ) -> Any:
        """Return a tensor that holds other data, or the same, with its strides."""
        data = (changes or {}).get("hp_data", self._hp_data)
        where, sizes = {}, self.shape if shape is None else tuple(shape)
        if data is not None and shape is None:
            where, sizes = {"stride": data.stride(), "storage_offset": data.storage_offset()}, data.shape
        kind = dtype or self._dtype
        return type(self)(shape=sizes, dtype=kind, hp_data=data, quantizer=self._quantizer, device=self.device, **where)

    def viewed(self, shape: tuple[int, ...]) -> Any:
        """Return the same memory under another shape."""
        return self.rebuilt({"hp_data": self.read_in("row").view(shape)})

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
        """Return zeros of any type, or of the quantizer's."""
        kind = getattr(self._quantizer, "dtype", None) or dtype
        data = torch.zeros(shape, dtype=kind, device=device)
        return type(self)(shape=shape, dtype=kind, hp_data=data, quantizer=self._quantizer, device=device)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """The type of the data, which an update may change."""
        return self._dtype

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        """Return a tensor whose memory is contiguous, itself if it is."""
        data = self.read_in("row")
        if data.is_contiguous(memory_format=memory_format):
            return self
        return self.rebuilt({"hp_data": data.contiguous(memory_format=memory_format)})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Serve views from the memory, and whatever has no meaning of its own from the values."""
        held = args[0]
        if func in VIEWS:
            made = func(held.read_in("row"), *args[1:], **(kwargs or {}))
            return tree_map_only(Tensor, lambda data: held.rebuilt({"hp_data": data}), made)
        if func is aten.copy_.default and isinstance(held, IdentityTensor):
            source = args[1]
            held.read_in("row").copy_(source.read_in("row") if isinstance(source, IdentityTensor) else source)
            return held
        return super().__torch_dispatch__(func, types, args, kwargs)

    def fsdp_pre_all_gather(
        self, mesh: Any, orig_size: Any, contiguous_orig_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Return the tensor that a shard sends. Rules: TEL-15."""
        return self.fsdp_extract_buffers()[0], (self._quantizer,)

    def fsdp_post_all_gather(
        self, all_gather_outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Any = None
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the whole parameter, in `out` if given. Rules: TEL-15.

        Errors: TensorDTypeError for gathered data of another type than the quantizer's, or the parameter's.
        """
        (data,), (quantizer,) = all_gather_outputs, metadata
        kind = param_dtype if quantizer is None or quantizer.dtype is None else quantizer.dtype
        if data.dtype != kind:
            message = "dtype does not match its logical dtype"
            raise TensorDTypeError("IdentityTensor FSDP payload", f"{data.dtype}: {message}", f"{kind}", "TEL-15")

        def new(values: dict[str, Tensor | None]) -> Any:
            return self.rebuilt(values, dtype=kind)

        return fsdp.received(out, {"hp_data": data}, new), all_gather_outputs
