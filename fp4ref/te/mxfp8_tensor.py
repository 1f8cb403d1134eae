"""MXFP8 bytes in the buffers that scripts know.

rowwise_data, columnwise_data: uint8 [..., K], neither transposed. Scales: uint8 [pad128(M), pad4(K/32)] of rows and
[pad4(M/32), pad128(K)] of columns; in the GEMM layout both hold tiles, the columns' as those of the transpose.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from fp4ref import api
from fp4ref.layout import LINEAR_PADDED
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.te import fsdp, mxfp8_columns, specifications
from fp4ref.te.cast import turned
from fp4ref.te.dtypes import MXFP8_BLOCK_SCALING_SIZE as BLOCK
from fp4ref.te.dtypes import DType
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.storage import CodeMatrix, QuantizedTensorStorage
from fp4ref.te.swizzle import COMPACT, GEMM
from fp4ref.te.tensor import QuantizedTensor


class MXFP8TensorStorage(QuantizedTensorStorage):
    """The bytes of an MXFP8 tensor."""

    BUFFERS = ("_rowwise_data", "_columnwise_data", "_rowwise_scale_inv", "_columnwise_scale_inv")
    SETTINGS = ("_fp8_dtype", "_with_gemm_swizzled_scales")
    ORDER = (
        *("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"),
        *("fp8_dtype", "quantizer", "with_gemm_swizzled_scales"),
    )
    _rowwise_data: Tensor | None
    _columnwise_data: Tensor | None
    _rowwise_scale_inv: Tensor | None
    _columnwise_scale_inv: Tensor | None
    _fp8_dtype = DType.kFloat8E4M3
    _with_gemm_swizzled_scales = False

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized."""
        data = self._rowwise_data if self._rowwise_data is not None else self._columnwise_data
        if data is None:
            raise SettingError("MXFP8Tensor", "no data", "a tensor with the buffers of one direction")
        return data.shape

    def directions(self) -> list[str]:
        """Return the directions whose bytes exist."""
        present = {"row": self._rowwise_data, "column": self._columnwise_data}
        return [name for name, data in present.items() if data is not None]

    def scales_buffer(self, direction: str) -> Tensor:
        """Return the buffer of one direction's scales."""
        scales = self._rowwise_scale_inv if direction == "row" else self._columnwise_scale_inv
        if scales is None:
            got = f"a tensor without its {direction} direction"
            raise SettingError("MXFP8Tensor", got, f"one quantized with {direction}wise=True")
        return scales

    def matrix(self, direction: str) -> CodeMatrix:
        """Return one direction as a matrix whose rows hold the blocks: for columns, the transpose."""
        scales = self.scales_buffer(direction)
        data = self._rowwise_data if direction == "row" else self._columnwise_data
        assert data is not None
        codes = data if data.dim() == 2 else data.reshape(-1, data.shape[-1])
        if direction == "column":
            codes = codes.t()
            scales = scales.view(scales.shape[::-1]) if self._with_gemm_swizzled_scales else scales.t()
        return CodeMatrix(specifications.mxfp8(self._fp8_dtype), (codes.shape[0], codes.shape[1]), codes, scales)

    def record(self, direction: str) -> Quantized[DirectionData, None]:
        """Return the same as a record."""
        of = self.matrix(direction)
        lie = GEMM if self._with_gemm_swizzled_scales else COMPACT
        return Quantized(of.spec, of.shape, "float32", lie, row=DirectionData(of.codes, of.scales, None))

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return values of the row direction if it exists, else of the column direction.

        Rules: DEQ-2, DEQ-3, TEL-8, TEL-95. Certificates: rows-decoded.
        """
        data = self._rowwise_data
        shape = self.logical_shape() if data is None else data.shape
        if not shape.numel():
            return torch.empty(shape, dtype=dtype, device=self.device)
        if data is None:
            codes, how = self._columnwise_data, (self._fp8_dtype, self._with_gemm_swizzled_scales)
            assert codes is not None
            found = mxfp8_columns.values(codes, self._columnwise_scale_inv, *how, dtype)
            if found is not None:
                return found
            q = self.record("column")
            row = q.row.mapped(lambda part: part if part.is_contiguous() else turned(part.t()))
            return cast(Tensor, api.dequantize(replace(q, row=row), dtype)).t().contiguous().view(shape)
        values: Tensor = api.dequantize(self.record("row"), dtype)
        return values if len(shape) == 2 else values.view(shape)

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Keep the wanted directions and free the others.

        Errors: SettingError for a direction that is missing.

        Rules: TEL-25.
        """
        for wanted, direction in ((rowwise_usage, "row"), (columnwise_usage, "column")):
            if wanted is False:
                setattr(self, f"_{direction}wise_data", None)
                setattr(self, f"_{direction}wise_scale_inv", None)
            elif wanted:
                self.scales_buffer(direction)

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        """Return the attributes of the buffers that a shard sends. Rules: TEL-15."""
        return tuple(f"_{name}wise_{part}" for name in self.directions() for part in ("data", "scale_inv"))

    def fsdp_extract_buffers(self) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return the buffers that a shard sends, without padding rows of scales, and their attributes.

        Errors: NotSupportedError for scales in the GEMM layout.

        Rules: TEL-15, TEL-38, TEL-81. Certificates: shards-sent.
        """
        fsdp.require_compact("fsdp_extract_buffers", self)
        names, shape = self.fsdp_buffer_fields(), self.logical_shape()
        rows = {"_rowwise_scale_inv": shape[:-1].numel(), "_columnwise_scale_inv": shape[:-1].numel() // BLOCK}
        return tuple(getattr(self, name)[: rows.get(name)] for name in names), {"field_names": names}

    def fsdp_assign_gathered(self, gathered: tuple[Any, ...], meta: dict[str, Any]) -> None:
        """Take over gathered buffers, and pad their scales with zeros again. Rules: TEL-15, LAY-2."""
        given = dict(zip(meta["field_names"], gathered, strict=True))
        for direction in ("row", "column"):
            codes = given.get(f"_{direction}wise_data")
            if codes is not None:
                padded = scale_shape(tuple(codes.shape), columnwise=direction == "column")
                setattr(self, f"_{direction}wise_data", codes)
                scales = fsdp.repadded(given[f"_{direction}wise_scale_inv"], padded)
                setattr(self, f"_{direction}wise_scale_inv", scales)

    def view(self, *shape: Any) -> Any:
        """Return the same bytes under other leading dimensions."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return MXFP8TensorStorage(**(self.get_metadata() | self.viewed_buffers(tuple(sizes))), fake_dtype=self._dtype)

    def viewed_buffers(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Return the buffers whose shape a view changes. Rules: TEL-26."""
        whole = self.logical_shape()
        if shape[-1] not in {whole[-1], -1}:
            got = f"{list(whole)} as {list(shape)}"
            raise TensorShapeError("view of an MXFP8 tensor", got, "the same last dimension", "TEL-26")
        names = ("_rowwise_data", "_columnwise_data")
        return {name.lstrip("_"): data.view(shape) for name in names if (data := getattr(self, name)) is not None}


class MXFP8Tensor(QuantizedTensor, MXFP8TensorStorage):  # type: ignore[misc]
    """An MXFP8 tensor that torch sees as a tensor of a high-precision type."""

    def viewed(self, shape: tuple[int, ...]) -> Any:
        """Return the same bytes under other leading dimensions; the values if the last one changes too."""
        if shape[-1:] != tuple(self.shape[-1:]):
            return NotImplemented
        return self.rebuilt(self.viewed_buffers(shape), shape=shape)

    def pieces(self, sizes: list[int], dim: int) -> Any:
        """Return pieces of whole blocks along the first dimension, if the scales are compact; else the values.

        Rules: TEL-27.
        """
        if dim or self.dim() != 2 or self._with_gemm_swizzled_scales or any(size % BLOCK for size in sizes):
            return NotImplemented
        made, start = [], 0
        for size in sizes:
            made.append(self._rows(start, size))
            start += size
        return tuple(made)

    def fsdp_pre_all_gather(
        self, mesh: Any, orig_size: Any, contiguous_orig_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Return the parts that a shard [m, K] sends: codes and scales of its directions. Rules: TEL-15.

        Errors: NotSupportedError for scales in the GEMM layout, TensorShapeError for a shard of broken blocks.
        """
        fsdp.require_shard(self, BLOCK, mesh, orig_size)
        return self.fsdp_extract_buffers()[0], (tuple(self.directions()), self.shape[1])

    def fsdp_post_all_gather(
        self, all_gather_outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Any = None
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the whole parameter from the parts, into `out` if given. Rules: TEL-15."""
        directions, width = metadata
        values: dict[str, Tensor | None] = dict.fromkeys(name.lstrip("_") for name in self.BUFFERS)
        parts = fsdp.whole_parts(all_gather_outputs, self.fsdp_extract_buffers()[0])
        shape = (parts[0].shape[0], width)
        for direction, data, scales in zip(directions, parts[::2], parts[1::2], strict=True):
            values[f"{direction}wise_data"] = fsdp.owned(data)
            padded = scale_shape(shape, columnwise=direction == "column")
            values[f"{direction}wise_scale_inv"] = fsdp.repadded(scales, padded)

        def new(buffers: dict[str, Tensor | None]) -> Any:
            return self.rebuilt(buffers, shape=shape, dtype=param_dtype)

        return fsdp.received(out, values, new), all_gather_outputs

    def _rows(self, start: int, size: int) -> Any:
        shape = (size, self.shape[1])
        changes: dict[str, Tensor] = {}
        if self._rowwise_data is not None:
            scales = self.scales_buffer("row")
            padded = scales.new_zeros(scale_shape(shape, columnwise=False))
            padded[:size] = scales[start : start + size]
            changes |= {"rowwise_data": self._rowwise_data[start : start + size], "rowwise_scale_inv": padded}
        if self._columnwise_data is not None:
            scales = self.scales_buffer("column")
            padded = scales.new_zeros(scale_shape(shape, columnwise=True))
            padded[: size // BLOCK] = scales[start // BLOCK : (start + size) // BLOCK]
            changes |= {"columnwise_data": self._columnwise_data[start : start + size], "columnwise_scale_inv": padded}
        return self.rebuilt(changes, shape=shape)


@lru_cache(maxsize=4096)
def scale_shape(shape: tuple[int, ...], *, columnwise: bool) -> tuple[int, int]:
    """Shape of the scales of a tensor [..., K]. Rules: LAY-2, TEL-22."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    outer, inner = (columns, rows) if columnwise else (rows, columns)
    padded = LINEAR_PADDED.padded_shape(outer, -(-inner // BLOCK))
    return padded[::-1] if columnwise else padded
