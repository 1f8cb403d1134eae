"""Operands with a tensor per direction, and operands that stay in high precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError
from fp4ref.te.storage import QuantizedTensorStorage, sharing_buffers


class IdentityTensorStorage(QuantizedTensorStorage):
    """A tensor in high precision where a quantized one is expected; it serves both directions."""

    BUFFERS = ("_hp_data",)
    _hp_data: Tensor | None

    def logical_shape(self) -> torch.Size:
        """Return the tensor's shape."""
        return self.read_in("row").shape

    def directions(self) -> list[str]:
        """Return both directions, or none if the tensor was freed."""
        return [] if self._hp_data is None else ["row", "column"]

    def read_in(self, direction: str) -> Tensor:
        """Return the tensor, which a product reads in either direction."""
        if self._hp_data is None:
            raise SettingError("IdentityTensor", "no data", "a tensor with data")
        return self._hp_data

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Free the tensor if neither direction is wanted."""
        if rowwise_usage is False and columnwise_usage is False:
            self._hp_data = None
        elif rowwise_usage or columnwise_usage:
            self.read_in("row")

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the values, rounded once to another type."""
        return self.read_in("row").to(dtype)


class HybridQuantizedTensorStorage(QuantizedTensorStorage):
    """Two quantized tensors of one tensor's values: one is read by rows, the other by columns."""

    SETTINGS = ("_rowwise_storage", "_columnwise_storage")
    _rowwise_storage: Any
    _columnwise_storage: Any

    def _parts(self) -> list[Any]:
        return [part for part in (self._rowwise_storage, self._columnwise_storage) if part is not None]

    def buffers(self) -> list[Tensor]:
        """Return the buffers of both parts."""
        return [buffer for part in self._parts() for buffer in part.buffers()]

    def _some_buffer(self) -> Tensor:
        buffers = self.buffers()
        if not buffers:
            raise SettingError(type(self).__name__, "no data", "a tensor with one direction")
        return buffers[0]

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized."""
        parts = self._parts()
        if not parts:
            raise SettingError("HybridQuantizedTensor", "no data", "a tensor with one direction")
        return parts[0].logical_shape()  # type: ignore[no-any-return]

    def directions(self) -> list[str]:
        """Return the directions that have a part."""
        both = {"row": self._rowwise_storage, "column": self._columnwise_storage}
        return [name for name, part in both.items() if part is not None]

    def read_in(self, direction: str) -> Any:
        """Return the part that a product reads in one direction. Rules: TEL-56."""
        part = self._rowwise_storage if direction == "row" else self._columnwise_storage
        if part is None:
            got = f"a tensor without its {direction} direction"
            raise SettingError("HybridQuantizedTensor", got, f"one quantized with {direction}wise=True", "TEL-25")
        return part

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Keep the wanted parts and let go of the others.

        Errors: SettingError for a part that is missing.

        Rules: TEL-25.
        """
        for wanted, name in ((rowwise_usage, "row"), (columnwise_usage, "column")):
            if wanted:
                self.read_in(name)
            elif wanted is False:
                setattr(self, f"_{name}wise_storage", None)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the values of the rows, or of the columns if there are no rows. Rules: TEL-8."""
        values: Tensor = self.read_in(self.directions()[0] if self.directions() else "row").decode(dtype)
        return values

    def prepare_for_saving(self) -> tuple[list[Tensor | None], Any]:
        """Return the buffers of both parts, and this object, whose parts let go of them."""
        saved: list[Tensor | None] = []
        for name in self.SETTINGS:
            part = getattr(self, name)
            if part is not None:
                part = sharing_buffers(part)  # others may hold the same part
                tensors, kept = part.prepare_for_saving()
                setattr(self, name, kept)
                saved += tensors
        return saved, self

    def restore_from_saved(self, tensors: list[Tensor | None]) -> list[Tensor | None]:
        """Take the buffers back from the front of a list; returns the rest of it."""
        for part in self._parts():
            tensors = part.restore_from_saved(tensors)
        return tensors


def read_in(x: Any, direction: str) -> Any:
    """Return the operand that a product reads in a direction. Rules: TEL-56."""
    while isinstance(x, (HybridQuantizedTensorStorage, IdentityTensorStorage)):
        x = x.read_in(direction)
    return x
