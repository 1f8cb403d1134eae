"""NVFP4 bytes in the buffers that scripts know.

rowwise_data: uint8 [..., K/2]; columnwise_data: uint8 [K, M/2], the transpose. Scales: uint8
[pad128(rows), pad4(blocks)] per direction. amax: float32 [1], or one per row (column) of a row-scaled tensor.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp4ref import api
from fp4ref.layout import LINEAR_PADDED
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.te import specifications
from fp4ref.te.dtypes import NVFP4_BLOCK_SCALING_SIZE as BLOCK
from fp4ref.te.dtypes import DType
from fp4ref.te.errors import NotSupportedError, SettingError, TensorShapeError
from fp4ref.te.new_buffers import Shape, Shapes
from fp4ref.te.storage import CodeMatrix, QuantizedTensorStorage
from fp4ref.te.swizzle import COMPACT, GEMM

OF_DIRECTION = {
    direction: (f"_{direction}wise_data", f"_{direction}wise_scale_inv", f"_amax_{direction}wise")
    for direction in ("row", "column")
}


class NVFP4TensorStorage(QuantizedTensorStorage):
    """The bytes of an NVFP4 tensor."""

    BUFFERS = (
        "_rowwise_data",
        "_columnwise_data",
        "_rowwise_scale_inv",
        "_columnwise_scale_inv",
        "_amax_rowwise",
        "_amax_columnwise",
    )
    SETTINGS = (
        "_fp4_dtype",
        "_with_gemm_swizzled_scales",
        "_row_scaled_nvfp4",
        "_nvfp4_use_4over6",
        "_nvfp4_e4m3_max",
    )
    ORDER = (
        *("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"),
        *("amax_rowwise", "amax_columnwise", "fp4_dtype", "quantizer", "with_gemm_swizzled_scales"),
    )
    _rowwise_data: Tensor | None
    _columnwise_data: Tensor | None
    _rowwise_scale_inv: Tensor | None
    _columnwise_scale_inv: Tensor | None
    _amax_rowwise: Tensor | None
    _amax_columnwise: Tensor | None
    _fp4_dtype = DType.kFloat4E2M1
    _with_gemm_swizzled_scales = False
    _row_scaled_nvfp4 = False
    _nvfp4_use_4over6 = False
    _nvfp4_e4m3_max = 448

    @property
    def rowwise_data(self) -> Tensor | None:
        """Packed codes of the row direction."""
        return self._rowwise_data

    @property
    def columnwise_data(self) -> Tensor | None:
        """Packed codes of the column direction."""
        return self._columnwise_data

    @property
    def rowwise_scale_inv(self) -> Tensor | None:
        """Block scales of the row direction."""
        return self._rowwise_scale_inv

    @property
    def columnwise_scale_inv(self) -> Tensor | None:
        """Block scales of the column direction."""
        return self._columnwise_scale_inv

    @property
    def amax_rowwise(self) -> Tensor | None:
        """Largest magnitude of the tensor, or of each row."""
        return self._amax_rowwise

    @property
    def amax_columnwise(self) -> Tensor | None:
        """Largest magnitude of the (transformed) transpose, or of each column."""
        return self._amax_columnwise

    @property
    def row_scaled_nvfp4(self) -> bool:
        """True if every row has an amax of its own."""
        return self._row_scaled_nvfp4

    @property
    def nvfp4_use_4over6(self) -> bool:
        """True if blocks chose between two scales."""
        return self._nvfp4_use_4over6

    @property
    def nvfp4_e4m3_max(self) -> int:
        """The block scale of the global maximum."""
        return self._nvfp4_e4m3_max

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized; two dimensions if only the column direction exists."""
        if self._rowwise_data is not None:
            *leading, width = self._rowwise_data.shape
            return torch.Size([*leading, 2 * width])
        if self._columnwise_data is not None:
            columns, width = self._columnwise_data.shape
            return torch.Size([2 * width, columns])
        raise SettingError("NVFP4Tensor", "no data", "a tensor with the buffers of one direction")

    def directions(self) -> list[str]:
        """Return the directions whose bytes exist."""
        present = {"row": self._rowwise_data, "column": self._columnwise_data}
        return [name for name, data in present.items() if data is not None]

    def global_amax(self, direction: str) -> Tensor | None:
        """Return the amax of one direction."""
        return self._amax_rowwise if direction == "row" else self._amax_columnwise

    def scales_buffer(self, direction: str) -> Tensor:
        """Return the buffer of one direction's scales."""
        scales = self._rowwise_scale_inv if direction == "row" else self._columnwise_scale_inv
        return self._needed(scales, direction)

    def _needed(self, buffer: Tensor | None, direction: str) -> Tensor:
        if buffer is None:
            raise self._lacking(direction)
        return buffer

    @staticmethod
    def _lacking(direction: str) -> SettingError:
        got = f"a tensor without its {direction} direction"
        return SettingError("NVFP4Tensor", got, f"one quantized with {direction}wise=True")

    def matrix(self, direction: str) -> CodeMatrix:
        """Return one direction as a matrix of codes under block scales, without a global scale."""
        row = direction == "row"
        data = self._rowwise_data if row else self._columnwise_data
        scales = self._rowwise_scale_inv if row else self._columnwise_scale_inv
        if data is None or scales is None:
            raise self._lacking(direction)
        *leading, width = data.shape
        packed = data if len(leading) == 1 else data.reshape(math.prod(leading), width)
        return CodeMatrix(specifications.NVFP4_OPERAND, (packed.shape[0], 2 * width), packed, scales)

    def record(self, direction: str) -> Quantized:
        """Return one direction as a record: codes and block scales of a matrix, without a global scale."""
        of = self.matrix(direction)
        lie = GEMM if self._with_gemm_swizzled_scales else COMPACT
        return Quantized(of.spec, of.shape, "float32", lie, row=DirectionData(of.codes, of.scales, None))

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return values of the row direction, from compact or GEMM scales. Rules: DEQ-1, DEQ-3, LAY-6, TEL-8, TEL-95.

        Errors: NotSupportedError if only the column direction exists.
        """
        data = self._rowwise_data
        if data is None:
            self.logical_shape()
            raise NotSupportedError("dequantize", "an NVFP4 tensor with columnwise data only", "rowwise data", "TEL-8")
        if not data.numel():
            return torch.empty(self.logical_shape(), dtype=dtype, device=data.device)
        *leading, width = data.shape
        plain = len(leading) == 1
        packed = data if plain else data.reshape(-1, width)
        spec = specifications.stored_nvfp4(
            self._row_scaled_nvfp4, self._nvfp4_e4m3_max if self._nvfp4_use_4over6 else None
        )
        row = DirectionData(packed, self._needed(self._rowwise_scale_inv, "row"), self._amax_rowwise)
        lie = GEMM if self._with_gemm_swizzled_scales else COMPACT
        values: Tensor = api.dequantize(Quantized(spec, (packed.shape[0], 2 * width), "float32", lie, row), dtype)
        return values if plain else values.view(*leading, 2 * width)

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Keep the wanted directions and free the others; the column direction of 16x16 tiles is derived if missing.

        Errors: SettingError for a direction that is missing.

        Rules: TEL-25.
        """
        if columnwise_usage and self._columnwise_data is None and self._rowwise_data is not None:
            self._create_columnwise()
        for wanted, direction in ((rowwise_usage, "row"), (columnwise_usage, "column")):
            if wanted is False:
                self.__dict__.update(dict.fromkeys(OF_DIRECTION[direction]))
            elif wanted:
                self.scales_buffer(direction)
                self._needed(self.global_amax(direction), direction)

    def _create_columnwise(self) -> None:
        """Make the column direction of 16x16 tiles by transposing the bytes of the rows. Rules: TEL-25, TEL-40."""
        quantizer = self._quantizer
        if quantizer is None or not quantizer.with_2d_quantization:
            raise SettingError("update_usage", "no columnwise data", "2D quantization, to derive it", "TEL-25")
        self.require_not_row_scaled("update_usage")
        rows, columns = self.record("row").shape
        if self._with_gemm_swizzled_scales:
            raise SettingError("update_usage", "GEMM-swizzled scales", "compact ones, to transpose them", "TEL-25")
        assert self._rowwise_data is not None
        assert self._amax_rowwise is not None
        packed = self._rowwise_data.reshape(rows, columns // 2)
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).reshape(rows, columns).t()
        self._columnwise_data = (codes[:, 0::2] | codes[:, 1::2] << 4).contiguous()
        tiles = self.scales_buffer("row")[:rows:BLOCK, : columns // BLOCK].t()
        scales = packed.new_zeros(scale_shape((rows, columns), columnwise=True))
        scales[:columns, : rows // BLOCK] = tiles.repeat_interleave(BLOCK, dim=0)
        self._columnwise_scale_inv = scales
        self._amax_columnwise = self._amax_rowwise.clone()

    def require_not_row_scaled(self, operation: str) -> None:
        """Raise for a row-scaled tensor, which only dequantizing and the matrix product read. Rules: TEL-9."""
        if self._row_scaled_nvfp4:
            raise NotSupportedError(operation, "a row-scaled NVFP4 tensor", "one amax per tensor", "TEL-9")

    def view(self, *shape: Any) -> Any:
        """Return the same bytes under other leading dimensions."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return NVFP4TensorStorage(**(self.get_metadata() | self.viewed_buffers(tuple(sizes))), fake_dtype=self._dtype)

    def viewed_buffers(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Return the buffers whose shape a view changes. Rules: TEL-26."""
        whole = self.logical_shape()
        if -1 in shape:
            known = -math.prod(shape)
            shape = tuple(whole.numel() // known if size == -1 else size for size in shape)
        if shape[-1] != whole[-1] or math.prod(shape) != whole.numel():
            got = f"{list(whole)} as {list(shape)}"
            raise TensorShapeError("view of an NVFP4 tensor", got, "the same last dimension", "TEL-26")
        if self._rowwise_data is None:
            return {}
        return {"rowwise_data": self._rowwise_data.view(*shape[:-1], shape[-1] // 2)}


@lru_cache(maxsize=4096)
def scale_shape(shape: tuple[int, ...], *, columnwise: bool) -> tuple[int, int]:
    """Shape of the scales of a tensor [..., K]: rows padded to 128, blocks to 4. Rules: LAY-2, TEL-22."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if columnwise:
        rows, columns = columns, rows
    return LINEAR_PADDED.padded_shape(rows, -(-columns // BLOCK))


@lru_cache(maxsize=4096)
def shapes_of_buffers(
    shape: Shape, rowwise: bool, columnwise: bool, row_scaled: bool
) -> tuple[list[str], Shapes, Shapes]:
    """Return the attributes of buffers, then the shapes of codes and scales, and those of maxima. Rules: TEL-22."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    used = [name for name, use in (("row", rowwise), ("column", columnwise)) if use]
    codes = {"row": (*shape[:-1], columns // 2), "column": (columns, rows // 2)}
    counts = {"row": rows, "column": columns} if row_scaled else {"row": 1, "column": 1}
    names = [OF_DIRECTION[name][part] for part in range(3) for name in used]
    scales = [scale_shape(shape, columnwise=name == "column") for name in used]
    return (
        names,
        (*[codes[name] for name in used], *scales),
        tuple((counts[name],) for name in used),
    )
