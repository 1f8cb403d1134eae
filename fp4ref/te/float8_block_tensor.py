"""Block-scaled FP8 in the buffers that scripts know.

rowwise_data: uint8 [..., K]. columnwise_data: uint8 [K, ...], transposed. Scales are float32, padded to a multiple of 4
on the last axis: one per block of 128, as [blocks of K, M] of rows and [blocks of M, K] of columns; or one per tile of
128x128, as [blocks of M, blocks of K], and the transpose of that for columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp4ref import registry, repeats
from fp4ref.registry import Call
from fp4ref.te.cast import fp8_values
from fp4ref.te.dtypes import DType, torch_dtype
from fp4ref.te.errors import NotSupportedError, SettingError, TensorShapeError
from fp4ref.te.fsdp import repadded
from fp4ref.te.one_pass import server
from fp4ref.te.per_tensor import decodable
from fp4ref.te.specifications import mxfp8
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.tensor import QuantizedTensor

BLOCK = 128
ALIGNMENT = 4  # of the last axis of the scales, which the matrix product loads in groups


def blocks(size: int) -> int:
    """Return how many blocks hold a number of elements."""
    return -(-size // BLOCK)


def scale_shape(shape: tuple[int, ...], *, tiles: bool, columnwise: bool) -> tuple[int, int]:
    """Shape of the scales of one direction of a tensor [..., K]. Rules: TEL-49."""
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
    if columnwise:
        rows, columns = columns, rows
    first, last = (blocks(rows), blocks(columns)) if tiles else (blocks(columns), rows)
    return first, -(-last // ALIGNMENT) * ALIGNMENT


class Float8BlockwiseQTensorStorage(QuantizedTensorStorage):
    """The bytes of a block-scaled FP8 tensor."""

    BUFFERS = ("_rowwise_data", "_columnwise_data", "_rowwise_scale_inv", "_columnwise_scale_inv")
    SETTINGS = ("_fp8_dtype", "_is_2D_scaled")
    ORDER = (
        *("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"),
        *("fp8_dtype", "quantizer", "is_2D_scaled"),
    )
    _rowwise_data: Tensor | None
    _columnwise_data: Tensor | None
    _rowwise_scale_inv: Tensor | None
    _columnwise_scale_inv: Tensor | None
    _fp8_dtype = DType.kFloat8E4M3
    _is_2D_scaled = False  # noqa: N815 - a public name
    _FSDP_BLOCK_LEN = BLOCK

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized."""
        if self._rowwise_data is not None:
            return self._rowwise_data.shape
        if self._columnwise_data is None:
            raise SettingError("Float8BlockwiseQTensor", "no data", "a tensor with the buffers of one direction")
        transposed = self._columnwise_data.shape
        return torch.Size((*transposed[1:], *transposed[:1]))

    def directions(self) -> list[str]:
        """Return the directions whose bytes exist."""
        present = {"row": self._rowwise_data, "column": self._columnwise_data}
        return [name for name, data in present.items() if data is not None]

    def scales_buffer(self, direction: str) -> Tensor:
        """Return the buffer of one direction's scales."""
        scales = self._rowwise_scale_inv if direction == "row" else self._columnwise_scale_inv
        if scales is None:
            got = f"a tensor without its {direction} direction"
            raise SettingError("Float8BlockwiseQTensor", got, f"one quantized with {direction}wise=True", "TEL-25")
        return scales

    def code_bytes(self, direction: str) -> Tensor:
        """Return one direction's codes as uint8, a matrix whose rows hold the blocks."""
        data = self._rowwise_data if direction == "row" else self._columnwise_data
        self.scales_buffer(direction)
        assert data is not None
        across = data.shape[-1:] if direction == "row" else data.shape[1:]
        down = data.shape[:-1] if direction == "row" else data.shape[:1]
        return data.reshape(math.prod(down), math.prod(across))

    def codes(self, direction: str) -> Tensor:
        """Return one direction's elements as torch's FP8 type, a matrix whose rows hold the blocks."""
        return self.code_bytes(direction).view(torch_dtype(self._fp8_dtype))

    def block_scales(self, direction: str) -> Tensor:
        """Return one direction's scales, one per row and block of its matrix. Rules: TEL-49."""
        scales, (rows, columns) = self.scales_buffer(direction), self.code_bytes(direction).shape
        if not self._is_2D_scaled:
            return scales[:, :rows].t()
        return scales[:, : blocks(columns)].repeat_interleave(BLOCK, 0)[:rows]

    def matrix_values(self, direction: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return code * scale of one direction's matrix, computed in float32 and rounded once. Rules: TEL-8."""
        found = self._in_one_pass(direction, dtype)
        return self._by_steps(direction, dtype) if found is None else found

    def _by_steps(self, direction: str, dtype: torch.dtype) -> Tensor:
        codes = fp8_values(self.code_bytes(direction), self._fp8_dtype, dtype)
        rows, columns = codes.shape
        scales = self.block_scales(direction)
        if scales.device.type == "cpu" and torch.equal(scales.to(dtype).to(torch.float32), scales):
            scales = scales.to(dtype)  # one type multiplies faster, and rounds alike; elsewhere the test would wait
        if columns % BLOCK:
            codes, scales = codes[:, None], scales.repeat_interleave(BLOCK, 1)[:, None, :columns]
        else:
            codes, scales = codes.view(rows, blocks(columns), BLOCK), scales[:, :, None]
        return torch.mul(codes, scales, out=torch.empty_like(codes)).view(rows, columns)

    def _in_one_pass(self, direction: str, dtype: torch.dtype) -> Tensor | None:
        """Return the same by a backend that does it in one pass; None without one."""
        key, held = None, self.__dict__
        data, beside = held[f"_{direction}wise_data"], held[f"_{direction}wise_scale_inv"]
        if data is not None and data.is_cpu and not torch.compiler.is_compiling():
            kinds = repeats.number_of_kinds(("te.block_values", data.shape), (data, beside))
            how = kinds, direction, self._fp8_dtype, self._is_2D_scaled, dtype
            key = None if kinds is None else ("te.block_values", *how)
            again = repeats.find(key) if key else None
            if again is not None:
                made: Tensor = again(data, beside)
                return made
        served = self.values_server(direction, dtype)
        if served is None:
            return None
        found, codes, scales = served
        values: Tensor = found[1](found[0], codes, scales, self._is_2D_scaled)
        flat, bind = codes.shape == data.shape, registry.binder(found[0], None) if key else None
        bound = bind(found[0], codes, scales, self._is_2D_scaled) if bind and data.is_contiguous() else None
        if bound is not None:
            repeats.keep(key, bound if flat else lambda data, scales: bound(data.view(codes.shape), scales))
        return values

    def values_server(
        self, direction: str, dtype: torch.dtype
    ) -> tuple[tuple[Call, Callable[..., Any]], Tensor, Tensor] | None:
        """Return a backend's call of `block_values`, its function, and codes and scales of a direction for it."""
        codes, scales = self.code_bytes(direction), self.scales_buffer(direction)
        matrix = codes.shape[0], codes.shape[1]
        padded = scale_shape(matrix, tiles=self._is_2D_scaled, columnwise=False)
        if not (decodable(codes, scales, dtype) and scales.is_contiguous() and scales.shape == padded):
            return None
        found = server("block_values", codes.device, matrix, spec=mxfp8(self._fp8_dtype), to=dtype)
        return None if found is None else (found, codes, scales)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return values of the row direction if it exists, else of the column direction. Rules: TEL-8."""
        shape, direction = self.logical_shape(), "column" if self._rowwise_data is None else "row"
        if not shape.numel():
            return torch.empty(shape, dtype=dtype, device=self.device)
        values = self._in_one_pass(direction, dtype)
        if values is None:
            values = self._by_steps(direction, torch.float32).to(dtype)
        if direction == "column":
            values = values.t().contiguous()
        return values if len(shape) == 2 else values.view(shape)

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Keep the wanted directions, derive the columns of tiles from the rows, and free the others.

        Errors: SettingError for a direction that is missing and cannot be derived.

        Rules: TEL-25, TEL-40.
        """
        if columnwise_usage and self._columnwise_data is None and self._is_2D_scaled:
            self._derive_columns()
        for wanted, direction in ((rowwise_usage, "row"), (columnwise_usage, "column")):
            if wanted is False:
                setattr(self, f"_{direction}wise_data", None)
                setattr(self, f"_{direction}wise_scale_inv", None)
            elif wanted:
                self.scales_buffer(direction)

    def _derive_columns(self) -> None:
        codes, scales = self.code_bytes("row"), self.scales_buffer("row")
        shape = self.logical_shape()
        tiles = scales[:, : blocks(codes.shape[1])].t()
        padded = scale_shape(tuple(shape), tiles=True, columnwise=True)
        self._columnwise_data = codes.t().contiguous().view(shape[-1], *shape[:-1])
        self._columnwise_scale_inv = pad(tiles, (0, padded[1] - tiles.shape[1])).contiguous()

    def _fsdp_logical_mn(self) -> tuple[int, int]:
        """Return the shape of the matrix of rows."""
        shape = self.logical_shape()
        return shape[:-1].numel(), shape[-1]

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        """Return the attributes of the buffers of the directions that there are. Rules: TEL-15.

        Errors: NotSupportedError unless one scale belongs to a square, whose rows are all in one shard.
        """
        if not self._is_2D_scaled:
            got = "FSDP2 of blocks in one row: 1D block scaling is not supported"
            raise NotSupportedError("Float8BlockwiseQTensor", got, "squares of 128x128", "TEL-99")
        return tuple(f"_{name}wise_{part}" for name in self.directions() for part in ("data", "scale_inv"))

    def fsdp_extract_buffers(self) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
        """Return codes [..., K] and scales [squares down, squares across] of the rows, or of the columns alone.

        Errors: NotSupportedError for blocks in one row, TensorShapeError for a shard of broken squares.

        Rules: TEL-15, TEL-81, TEL-99.
        """
        names, (rows, columns) = self.fsdp_buffer_fields(), self._fsdp_logical_mn()
        if rows % BLOCK:
            got = f"a shard of {rows} rows is not a multiple of {BLOCK}"
            raise TensorShapeError("fsdp_extract_buffers", got, "whole squares", "TEL-99")
        direction = self.directions()[0]
        scales = self.scales_buffer(direction)
        if direction == "row":
            data = self._rowwise_data
        else:
            assert self._columnwise_data is not None
            data, scales = self._columnwise_data.movedim(0, -1).contiguous(), scales.t()
        sent = scales[: blocks(rows), : blocks(columns)].contiguous()
        return (data, sent), {"field_names": names, "direction": f"{direction}wise"}

    def fsdp_assign_gathered(self, gathered: tuple[Tensor | None, ...], meta: dict[str, Any]) -> None:
        """Take over gathered codes and scales, and derive the columns if the shards have them. Rules: TEL-15, TEL-40.

        Errors: SettingError for scales of other squares.
        """
        data, scales = gathered
        if data is None or scales is None:
            raise SettingError("fsdp_assign_gathered", "a buffer that is None", "codes and scales", "TEL-15")
        squares = blocks(data.shape[:-1].numel()), blocks(data.shape[-1])
        if tuple(scales.shape) != squares:
            got = f"gathered scale geometry {list(scales.shape)} does not match gathered data {list(data.shape)}"
            raise SettingError("fsdp_assign_gathered", got, f"{list(squares)}", "TEL-15")
        turned = meta["direction"] == "columnwise"
        padded = scale_shape(tuple(data.shape), tiles=True, columnwise=turned)
        scales = repadded(scales.t() if turned else scales, padded)
        if turned:
            self._columnwise_data, self._columnwise_scale_inv = data.movedim(-1, 0).contiguous(), scales
            return
        self._rowwise_data, self._rowwise_scale_inv = data, scales
        if "_columnwise_data" in meta["field_names"]:
            self._derive_columns()

    def view(self, *shape: Any) -> Any:
        """Return the same bytes under other leading dimensions."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return Float8BlockwiseQTensorStorage(
            **(self.get_metadata() | self.viewed_buffers(tuple(sizes))), fake_dtype=self._dtype
        )

    def viewed_buffers(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Return the buffers whose shape a view changes. Rules: TEL-26."""
        whole = self.logical_shape()
        if shape[-1] not in {whole[-1], -1}:
            got = f"{list(whole)} as {list(shape)}"
            raise TensorShapeError("view of a block-scaled tensor", got, "the same last dimension", "TEL-26")
        changed = {}
        if self._rowwise_data is not None:
            changed["rowwise_data"] = self._rowwise_data.view(shape)
        if self._columnwise_data is not None:
            changed["columnwise_data"] = self._columnwise_data.view(whole[-1], *shape[:-1])
        return changed


class Float8BlockwiseQTensor(QuantizedTensor, Float8BlockwiseQTensorStorage):  # type: ignore[misc]
    """A block-scaled FP8 tensor that torch sees as a tensor of a high-precision type."""

    def viewed(self, shape: tuple[int, ...]) -> Any:
        """Return the same bytes under other leading dimensions; the values if the last one changes too."""
        if shape[-1:] != tuple(self.shape[-1:]):
            return NotImplemented
        return self.rebuilt(self.viewed_buffers(shape), shape=shape)

    def pieces(self, sizes: list[int], dim: int) -> Any:
        """Return pieces of whole squares along the first dimension; others are pieces of values. Rules: TEL-27."""
        if dim or self.dim() != 2 or not self._is_2D_scaled or any(size % BLOCK for size in sizes):
            return NotImplemented
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return tuple(self._rows(start, size) for start, size in zip(starts, sizes, strict=True))

    def _rows(self, start: int, size: int) -> Any:
        shape, stop = (size, self.shape[1]), start + size
        changes: dict[str, Tensor] = {}
        if self._rowwise_data is not None:
            changes["rowwise_data"] = self._rowwise_data[start:stop]
            changes["rowwise_scale_inv"] = self.scales_buffer("row")[start // BLOCK : stop // BLOCK]
        if self._columnwise_data is not None:
            scales = self.scales_buffer("column")[:, start // BLOCK : stop // BLOCK]
            changes["columnwise_data"] = self._columnwise_data[:, start:stop].contiguous()
            changes["columnwise_scale_inv"] = repadded(scales, scale_shape(shape, tiles=True, columnwise=True))
        return self.rebuilt(changes, shape=shape)
