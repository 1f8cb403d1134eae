"""Tensors of a group, one behind another in each buffer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.errors import TensorShapeError
from fp4ref.te.storage import QuantizedTensorStorage

# A packed buffer's name, and the names that it has among the buffers of a member, which depend on the format.
PACKED: dict[str, tuple[str, ...]] = {
    "rowwise_data": ("_rowwise_data", "_data"),
    "columnwise_data": ("_columnwise_data", "_transpose"),
    "scale_inv": ("_rowwise_scale_inv", "_scale_inv"),
    "columnwise_scale_inv": ("_columnwise_scale_inv",),
    "amax": ("_amax_rowwise",),
    "columnwise_amax": ("_amax_columnwise",),
}


class GroupedTensor:
    """The members of a group, quantized or not, each a view of flat buffers that hold all of them.

    shape: that of all members together; rows past the last member belong to none. first_dims, last_dims: int64
    [num_tensors] on the tensor's device, the sizes of each member, or None where all have the same. rowwise_data,
    columnwise_data, scale_inv, columnwise_scale_inv, amax, columnwise_amax: the buffers, None where no member has one.

    Rules: TEL-53, TEL-85.
    """

    rowwise_data: Tensor | None
    columnwise_data: Tensor | None
    scale_inv: Tensor | None
    columnwise_scale_inv: Tensor | None
    amax: Tensor | None
    columnwise_amax: Tensor | None

    def __init__(
        self,
        shape: tuple[int, int],
        quantizer: Any,
        first_dims: Tensor | None,
        members: Sequence[Any],
        *,
        last_dims: Tensor | None = None,
        data: Tensor | None = None,
    ) -> None:
        self.shape = self.logical_shape = shape
        self.quantizer, self.first_dims, self.last_dims = quantizer, first_dims, last_dims
        self.quantized_tensors = list(members)
        for name, sources in PACKED.items():
            setattr(self, name, _packed(self.quantized_tensors, sources))
        if data is not None:
            self.rowwise_data = data

    @staticmethod
    def make_grouped_tensor(
        num_tensors: int,
        first_dims: Tensor | None,
        last_dims: Tensor | None,
        logical_first_dim: int,
        logical_last_dim: int,
        quantizer: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> GroupedTensor:
        """Return members with uninitialized elements: ordinary ones without a quantizer.

        first_dims, last_dims: the sizes of each member, or None for equal ones: logical_first_dim / num_tensors rows,
        unless last_dims vary, and logical_last_dim columns, unless they vary.

        Errors: TensorShapeError for sizes that the whole does not hold.
        """
        rows = _sizes(num_tensors, first_dims, logical_first_dim, shared=last_dims is not None)
        columns = _sizes(num_tensors, last_dims, logical_last_dim, shared=True)
        shapes = list(zip(rows, columns, strict=True))
        whole = logical_first_dim * logical_last_dim
        ends = list(accumulate((height * width for height, width in shapes), initial=0))
        if ends[-1] > whole:
            got = f"members of {ends[-1]} elements"
            raise TensorShapeError("make_grouped_tensor", got, f"at most {whole}, as the whole has", "TEL-53")
        shape = logical_first_dim, logical_last_dim
        where: Any = {"device": device, "dtype": dtype or torch.float32}
        if quantizer is not None:
            members = [quantizer.make_empty(size, **where) for size in shapes]
            return GroupedTensor(shape, quantizer, first_dims, members, last_dims=last_dims)
        data = torch.empty(whole, **where)
        members = [data[start:end].view(size) for start, end, size in zip(ends, ends[1:], shapes, strict=False)]
        return GroupedTensor(shape, None, first_dims, members, last_dims=last_dims, data=data)

    @property
    def num_tensors(self) -> int:
        """The number of members."""
        return len(self.quantized_tensors)

    @property
    def tensor_offsets(self) -> Tensor:
        """The elements at which the members begin, and the end of the last: int64 [num_tensors + 1]."""
        ends = accumulate((member.shape.numel() for member in self.quantized_tensors), initial=0)
        return torch.tensor(list(ends), device=None if self.first_dims is None else self.first_dims.device)

    def split_into_quantized_tensors(self) -> list[Any]:
        """Return the members, in order."""
        return list(self.quantized_tensors)

    def __repr__(self) -> str:
        return f"GroupedTensor(shape={self.shape}, num_tensors={self.num_tensors}, quantizer={self.quantizer})"


def _sizes(count: int, given: Tensor | None, whole: int, *, shared: bool) -> list[int]:
    """Return one size of each member; shared: sizes that are not given are that of the whole, not a part of it."""
    if given is not None:
        return [int(size) for size in given.tolist()]
    if not shared and whole % count:
        raise TensorShapeError("make_grouped_tensor", f"{whole} rows in {count} equal parts", "a multiple", "TEL-53")
    return [whole if shared else whole // count] * count


def _packed(members: list[Any], sources: tuple[str, ...]) -> Tensor | None:
    """Return the members' buffers of these names in one, and let the members view it; None if a member has none."""
    if not all(isinstance(member, QuantizedTensorStorage) for member in members):
        return None
    for source in sources:
        buffers = [buffer for member in members if (buffer := getattr(member, source, None)) is not None]
        if not buffers or len(buffers) < len(members):
            continue
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        ends = list(accumulate((buffer.numel() for buffer in buffers), initial=0))
        for member, buffer, start, end in zip(members, buffers, ends, ends[1:], strict=False):
            setattr(member, source, flat[start:end].view(buffer.shape))
        return flat
    return None
