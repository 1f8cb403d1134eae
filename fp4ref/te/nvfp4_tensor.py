"""An NVFP4 tensor that torch sees as a tensor: views, pieces, and the shards of a parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref.te import fsdp
from fp4ref.te.dtypes import NVFP4_BLOCK_SCALING_SIZE as BLOCK
from fp4ref.te.errors import NotSupportedError
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage, scale_shape
from fp4ref.te.tensor import QuantizedTensor


class NVFP4Tensor(QuantizedTensor, NVFP4TensorStorage):  # type: ignore[misc]
    """An NVFP4 tensor that torch sees as a tensor of a high-precision type."""

    def viewed(self, shape: tuple[int, ...]) -> Any:
        """Return the same bytes under other leading dimensions; the values if the last one changes too."""
        if shape[-1:] != tuple(self.shape[-1:]):
            return NotImplemented
        return self.rebuilt(self.viewed_buffers(shape), shape=shape)

    def pieces(self, sizes: list[int], dim: int) -> Any:
        """Return pieces of whole blocks of rows with the amax of the whole, or the values. Rules: TEL-27."""
        if (
            dim
            or self.dim() != 2
            or self._row_scaled_nvfp4
            or self._with_gemm_swizzled_scales
            or any(size % BLOCK for size in sizes)
        ):
            return NotImplemented
        made, start = [], 0
        for size in sizes:
            made.append(self._rows(start, size))
            start += size
        return tuple(made)

    def fsdp_pre_all_gather(
        self, mesh: Any, orig_size: Any, contiguous_orig_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Return the parts that a shard [m, K] sends: codes and scales of its rows.

        Errors: NotSupportedError for scales in the GEMM layout, row scaling, or columns without 16x16 tiles;
        TensorShapeError for a shard of broken blocks.

        Rules: TEL-9, TEL-15. Certificates: shards-sent.
        """
        self.require_not_row_scaled("fsdp_pre_all_gather")
        fsdp.require_shard(self, BLOCK, mesh, orig_size)
        quantizer = self._get_quantizer()
        columns = quantizer.columnwise_usage
        if columns and not quantizer.with_2d_quantization:
            raise NotSupportedError("fsdp_pre_all_gather", "columns of 1x16 blocks", "2D quantization", "TEL-37")
        fsdp.share_amax(quantizer, mesh)
        return self._sent(), (self._amax_rowwise, columns, self.shape[1])

    def fsdp_post_all_gather(
        self, all_gather_outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Any = None
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the whole parameter from the parts, into `out` if given. Rules: TEL-15, TEL-37."""
        data, scales = fsdp.whole_parts(all_gather_outputs, self._sent())
        amax, columns, width = metadata
        shape = (data.shape[0], width)
        values: dict[str, Tensor | None] = {
            "rowwise_data": fsdp.owned(data),
            "rowwise_scale_inv": fsdp.repadded(scales, scale_shape(shape, columnwise=False)),
            "columnwise_data": None,
            "columnwise_scale_inv": None,
            "amax_rowwise": amax,
            "amax_columnwise": None,
        }
        whole = self.rebuilt(values, shape=shape, dtype=param_dtype)
        if columns:
            whole.update_usage(columnwise_usage=True)
        made = {name.lstrip("_"): getattr(whole, name) for name in self.BUFFERS}
        return fsdp.received(out, made, lambda _: whole), all_gather_outputs

    def _sent(self) -> tuple[Tensor, Tensor]:
        return self._needed(self._rowwise_data, "row"), self.scales_buffer("row")[: self.shape[0]]

    def _rows(self, start: int, size: int) -> Any:
        columns = self.shape[1]
        changes: dict[str, Tensor] = {}
        if self._rowwise_data is not None:
            scales = self.scales_buffer("row")
            padded = scales.new_zeros(scale_shape((size, columns), columnwise=False))
            padded[:size] = scales[start : start + size]
            changes |= {"rowwise_data": self._rowwise_data[start : start + size], "rowwise_scale_inv": padded}
        if self._columnwise_data is not None:
            scales = self.scales_buffer("column")
            padded = scales.new_zeros(scale_shape((size, columns), columnwise=True))
            padded[:, : size // BLOCK] = scales[:, start // BLOCK : (start + size) // BLOCK]
            data = self._columnwise_data[:, start // 2 : (start + size) // 2].contiguous()
            changes |= {"columnwise_data": data, "columnwise_scale_inv": padded}
        return self.rebuilt(changes, shape=(size, columns))
