"""The few operations that a sweep needs, on NumPy arrays and on torch tensors where they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from fp4ref.conformance.subjects.guards import numpy_dtype


class NumpyArrays:
    """Operations on NumPy arrays; patterns are unsigned integers."""

    signed = False

    def patterns(self, start: int, count: int, size: int) -> Any:
        """Return consecutive patterns of `size` bytes; past the largest one they begin again at 0."""
        found = np.arange(count, dtype=f"u{max(size, 4)}")
        found += start
        return found.astype(f"u{size}", copy=False)

    def runs(self, values: Any, lengths: Any) -> Any:
        """Return every value as often as its length says."""
        return np.repeat(values, lengths)

    def joined(self, parts: list[Any], axis: int = 0) -> Any:
        """Return arrays one after the other."""
        return np.concatenate(parts, axis)

    def pairs(self, low: Any, high: Any) -> Any:
        """Return two matrices as one, column beside column."""
        return np.stack([low, high], axis=2).reshape(len(low), -1)

    def turned(self, array: Any, by: int) -> Any:
        """Return an array whose last axis is turned by some places."""
        return np.roll(array, by, -1) if by else array

    def like(self, array: Any, *shape: int) -> Any:
        """Return a new array of the same type."""
        return np.empty(shape, array.dtype)

    def floats(self, numbers: Any) -> Any:
        """Return float32 numbers."""
        return np.asarray(numbers, np.float32)

    def x(self, patterns: Any, dtype: str) -> Any:
        """Return patterns as numbers, contiguous."""
        return np.ascontiguousarray(patterns).view(numpy_dtype(dtype))

    def bytes(self, array: Any) -> Any:
        """Return an array of bytes as numbers."""
        return np.ascontiguousarray(array).view(np.uint8)


class TorchArrays:
    """Operations on torch tensors of a device; patterns are integers with a sign."""

    signed = True

    def __init__(self, device: str) -> None:
        self.device = device

    def patterns(self, start: int, count: int, size: int) -> Any:
        """Return consecutive patterns of `size` bytes; past the largest one they begin again at 0."""
        import torch

        kind = {2: torch.int16, 4: torch.int32}[size]
        return torch.arange(start, start + count, dtype=torch.int64, device=self.device).to(kind)

    def runs(self, values: Any, lengths: Any) -> Any:
        """Return every value as often as its length says."""
        import torch

        given = (torch.from_numpy(np.ascontiguousarray(part)).to(self.device) for part in (values, lengths))
        return torch.repeat_interleave(*given)

    def joined(self, parts: list[Any], axis: int = 0) -> Any:
        """Return tensors one after the other."""
        import torch

        return torch.cat(parts, axis)

    def pairs(self, low: Any, high: Any) -> Any:
        """Return two matrices as one, column beside column."""
        import torch

        return torch.stack([low, high], 2).reshape(len(low), -1)

    def turned(self, array: Any, by: int) -> Any:
        """Return a tensor whose last axis is turned by some places."""
        return array.roll(by, -1) if by else array

    def like(self, array: Any, *shape: int) -> Any:
        """Return a new tensor of the same type."""
        return array.new_empty(shape)

    def floats(self, numbers: Any) -> Any:
        """Return float32 numbers."""
        import torch

        return torch.tensor(numbers, dtype=torch.float32, device=self.device)

    def x(self, patterns: Any, dtype: str) -> Any:
        """Return patterns as numbers, contiguous."""
        import torch

        return patterns.contiguous().view(getattr(torch, dtype))

    def bytes(self, array: Any) -> Any:
        """Return a tensor of bytes as numbers."""
        import torch

        return array.detach().contiguous().view(torch.uint8)
