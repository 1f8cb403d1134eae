"""Per-tensor FP8: one float32 scale from the tensor's own largest magnitude. There are no block scales to move."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.cast import fp8_values
from fp4ref.te.dtypes import DType, torch_dtype
from fp4ref.te.errors import SettingError
from fp4ref.te.per_tensor import decoded
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.tensor import QuantizedTensor

EARLIER = ("Float8CurrentScalingQuantizer", "Float8Quantizer")  # names that this module had


class Float8TensorStorage(QuantizedTensorStorage):
    """The bytes of a per-tensor FP8 tensor: data uint8 [..., K], scale_inv float32 [1]."""

    BUFFERS = ("_data", "_scale_inv")
    SETTINGS = ("_fp8_dtype",)
    ORDER = ("data", "fp8_scale_inv", "fp8_dtype", "quantizer")
    _data: Tensor | None
    _scale_inv: Tensor | None
    _fp8_dtype = DType.kFloat8E4M3
    _transpose: Tensor | None = None  # none is kept: the products read the codes in any layout
    _transpose_invalid = True

    def get_metadata(self) -> dict[str, Any]:
        """Return everything but shape and nominal type, by the names of the constructor."""
        return super().get_metadata() | {"fp8_scale_inv": self._scale_inv}

    def _assign(self, quantizer: Any = None, fake_dtype: torch.dtype | None = None, **values: Any) -> None:
        if "fp8_scale_inv" in values:
            values["scale_inv"] = values.pop("fp8_scale_inv")
        values.pop("data_transpose", None)
        super()._assign(quantizer, fake_dtype, **values)

    def get_data_tensors(self) -> tuple[Tensor | None, ...]:
        """Return the codes, which serve both directions."""
        return (self._data, None)

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized."""
        return self._codes().shape

    def _codes(self) -> Tensor:
        if self._data is None:
            raise SettingError("Float8Tensor", "no data", "a tensor with data")
        return self._data

    def directions(self) -> list[str]:
        """Return both: one scale serves rows and columns."""
        return [] if self._data is None else ["row", "column"]

    def codes(self) -> Tensor:
        """Return elements as torch's FP8 type, [..., K]."""
        return self._codes().view(torch_dtype(self._fp8_dtype))

    def code_matrix(self) -> Tensor:
        """Return the codes, uint8 [M, K]."""
        codes = self._codes()
        return codes.reshape(-1, codes.shape[-1])

    def code_values(self, dtype: torch.dtype) -> Tensor:
        """Return the values of the codes as a matrix [M, K]; exact in float32 and bfloat16."""
        return fp8_values(self.code_matrix(), self._fp8_dtype, dtype)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """code * scale_inv in float32, rounded once to a high-precision type. Rules: TEL-8."""
        assert self._scale_inv is not None
        return decoded(self._codes(), self._scale_inv, self._fp8_dtype, dtype)

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Nothing to free: the same bytes serve both directions; both False frees them. Rules: TEL-25."""
        if rowwise_usage is False and columnwise_usage is False:
            self._data = None
        elif rowwise_usage or columnwise_usage:
            self._codes()

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        """Return the attribute of the codes: the shards have one scale, of the largest amax. Rules: TEL-15."""
        return ("_data",)

    def view(self, *shape: Any) -> Any:
        """Return the same bytes under another shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return Float8TensorStorage(
            **(super().get_metadata() | {"data": self._codes().view(sizes)}), fake_dtype=self._dtype
        )


class Float8Tensor(QuantizedTensor, Float8TensorStorage):  # type: ignore[misc]
    """A per-tensor FP8 tensor that torch sees as a tensor of a high-precision type."""

    def get_metadata(self) -> dict[str, Any]:
        """Return everything but shape and nominal type, by name."""
        return QuantizedTensorStorage.get_metadata(self)

    def viewed(self, shape: tuple[int, ...]) -> Any:
        """Return the same bytes under another shape."""
        return self.rebuilt({"data": self._codes().view(shape)}, shape=shape)

    def viewed_through(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return any view of the bytes: there are no blocks."""
        codes = func(self._codes(), *args[1:], **kwargs)
        return self.rebuilt({"data": codes}, shape=codes.shape)

    def pieces(self, sizes: list[int], dim: int) -> Any:
        """Return pieces along any dimension: there are no blocks."""
        pieces = torch.split(self._codes(), sizes, dim)
        return tuple(self.rebuilt({"data": piece}, shape=piece.shape) for piece in pieces)


def __getattr__(name: str) -> Any:
    """Return a quantizer, which checkpoints of earlier versions look for here."""
    if name in EARLIER:
        return getattr(import_module("fp4ref.te.float8_quantizer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
