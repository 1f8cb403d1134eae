"""MXFP8 bytes in the buffers that scripts know.

rowwise_data, columnwise_data: uint8 [..., K], neither transposed. Scales: uint8 [pad128(M), pad4(K/32)] of rows and
[pad4(M/32), pad128(K)] of columns; in the GEMM layout both hold tiles, the columns' as those of the transpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fp4ref import api, registry
from fp4ref.layout import layout
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.te import fsdp, specifications
from fp4ref.te.cast import write
from fp4ref.te.dtypes import MXFP8_BLOCK_SCALING_SIZE as BLOCK
from fp4ref.te.dtypes import DType
from fp4ref.te.errors import SettingError, TensorDTypeError, TensorShapeError
from fp4ref.te.quantizer import Quantizer
from fp4ref.te.recipe import MXFP8BlockScaling, Recipe
from fp4ref.te.storage import QuantizedTensorStorage
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

    def record(self, direction: str) -> Quantized:
        """Return one direction as a record of a matrix whose rows hold the blocks: for columns, the transpose."""
        scales = self.scales_buffer(direction)
        data = self._rowwise_data if direction == "row" else self._columnwise_data
        assert data is not None
        codes = data.reshape(-1, data.shape[-1])
        if direction == "column":
            codes = codes.t()
            scales = scales.view(scales.shape[::-1]) if self._with_gemm_swizzled_scales else scales.t()
        spec = specifications.mxfp8(self._fp8_dtype)
        lie = GEMM if self._with_gemm_swizzled_scales else COMPACT
        return Quantized(spec, tuple(codes.shape), "float32", lie, row=DirectionData(codes, scales, None))

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return values of the row direction if it exists, else of the column direction. Rules: DEQ-2, DEQ-3, TEL-8."""
        shape = self.logical_shape()
        if not shape.numel():
            return torch.empty(shape, dtype=dtype, device=self.device)
        direction = self.directions()[0]
        values: Tensor = api.dequantize(self.record(direction), dtype)
        return (values if direction == "row" else values.t().contiguous()).view(shape)

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
        directions = self.directions()
        sent: list[Tensor] = []
        for direction in directions:
            rows = self.shape[0] if direction == "row" else self.shape[0] // BLOCK
            data = self._rowwise_data if direction == "row" else self._columnwise_data
            assert data is not None
            sent += [data, self.scales_buffer(direction)[:rows]]
        return tuple(sent), (tuple(directions), self.shape[1])

    def fsdp_post_all_gather(
        self, all_gather_outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Any = None
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the whole parameter from the parts, into `out` if given. Rules: TEL-15."""
        directions, width = metadata
        values: dict[str, Tensor | None] = dict.fromkeys(name.lstrip("_") for name in self.BUFFERS)
        shape = (all_gather_outputs[0].shape[0], width)
        for direction, data, scales in zip(directions, all_gather_outputs[::2], all_gather_outputs[1::2], strict=True):
            values[f"{direction}wise_data"] = fsdp.owned(data)
            padded = scale_shape(shape, columnwise=direction == "column")
            values[f"{direction}wise_scale_inv"] = fsdp.repadded(scales, padded)

        def new(parts: dict[str, Tensor | None]) -> Any:
            return self.rebuilt(parts, shape=shape, dtype=param_dtype)

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


def scale_shape(shape: tuple[int, ...], *, columnwise: bool) -> tuple[int, int]:
    """Shape of the scales of a tensor [..., K]. Rules: LAY-2, TEL-22."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    outer, inner = (columns, rows) if columnwise else (rows, columns)
    padded = layout(COMPACT).padded_shape(outer, -(-inner // BLOCK))
    return padded[::-1] if columnwise else padded


class MXFP8Quantizer(Quantizer):
    """Makes MXFP8 tensors from [..., K], both dimensions of the matrix multiples of 32.

    fp8_dtype: kFloat8E4M3 or kFloat8E5M2. with_2d_quantization: 32x32 tiles.

    Rules: TEL-3, TEL-23, TEL-28.
    """

    def __init__(
        self,
        fp8_dtype: DType = DType.kFloat8E4M3,
        *,
        rowwise: bool = True,
        columnwise: bool = True,
        with_2d_quantization: bool = False,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = fp8_dtype
        self.with_2d_quantization = with_2d_quantization

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise unless the settings fit a tensor's shape and dtype. Rules: TEL-3, TEL-23."""
        if self.dtype not in {DType.kFloat8E4M3, DType.kFloat8E5M2}:
            raise SettingError("MXFP8Quantizer", f"fp8_dtype {self.dtype!r}", "kFloat8E4M3 or kFloat8E5M2", "TEL-3")
        if not shape or shape[-1] % BLOCK or math.prod(shape[:-1]) % BLOCK:
            got = f"shape {list(shape)}"
            raise TensorShapeError("MXFP8Quantizer", got, f"both matrix dimensions divisible by {BLOCK}", "TEL-23")
        if dtype not in {None, torch.float32, torch.bfloat16, torch.float16}:
            raise TensorDTypeError("MXFP8Quantizer", f"dtype {dtype}", "float32, bfloat16 or float16", "TEL-3")

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` holds MXFP8 bytes."""
        if not isinstance(dst, MXFP8TensorStorage):
            raise SettingError("MXFP8Quantizer", f"destination {type(dst).__name__}", "an MXFP8Tensor", "TEL-5")

    def is_quantizable(self, inp: Tensor) -> bool:
        """Return True if a tensor can be quantized: two dimensions at least, multiples of 32."""
        shape = tuple(inp.shape)
        return len(shape) > 1 and not (shape[-1] % BLOCK or math.prod(shape[:-1]) % BLOCK)

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, int]:
        """Shape of the scales of a tensor. Rules: LAY-2."""
        return scale_shape(tuple(shape), columnwise=columnwise)

    @staticmethod
    def get_columnwise_shape(shape: Iterable[int]) -> tuple[int, ...]:
        """Return the shape itself: columns are not transposed."""
        return tuple(shape)

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return True: every kernel writes either layout. Rules: TEL-28."""
        return True

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Make a tensor with buffers for the directions in use, storage if `internal`. Rules: TEL-3, TEL-22, TEL-28."""
        requires_grad = options.pop("requires_grad", False)
        values: dict[str, Any] = dict.fromkeys(name.lstrip("_") for name in MXFP8TensorStorage.BUFFERS)
        for used, direction in ((self.rowwise_usage, "row"), (self.columnwise_usage, "column")):
            if used:
                scales = scale_shape(shape, columnwise=direction == "column")
                values[f"{direction}wise_data"] = torch.empty(shape, dtype=torch.uint8, device=device, **options)
                values[f"{direction}wise_scale_inv"] = torch.zeros(scales, dtype=torch.uint8, device=device, **options)
        values |= {"fp8_dtype": self.dtype, "with_gemm_swizzled_scales": self.optimize_for_gemm, "quantizer": self}
        if self.internal:
            return MXFP8TensorStorage(**values, fake_dtype=dtype)
        return MXFP8Tensor(shape=shape, dtype=dtype, device=device, requires_grad=requires_grad, **values)

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Fit an existing tensor to the directions in use; buffers that exist stay. Rules: TEL-4, TEL-5."""
        if tuple(dst.shape) != shape:
            raise TensorShapeError("update_quantized", f"source {list(shape)}", f"{list(dst.shape)}", "TEL-5")
        fresh = self.allocate(shape, dst.dtype, device)
        for name in MXFP8TensorStorage.BUFFERS:
            if getattr(dst, name) is None or getattr(fresh, name) is None:
                setattr(dst, name, getattr(fresh, name))
        dst._fp8_dtype, dst._with_gemm_swizzled_scales = self.dtype, self.optimize_for_gemm

    def takes_noop(self, tensor: Tensor) -> bool:
        """Return True if a backend for the tensor's device reads the flag where it lies. Rules: LAY-12."""
        spec = specifications.mxfp8(self.dtype, self.with_2d_quantization)
        call = registry.Call("quantize", spec, device=tensor.device.type, flag=True)
        return tensor.device.type == "cpu" or registry.offers(call, None)

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Quantize into the buffers of `dst`. Rules: TEL-3, TEL-5."""
        if not tensor.numel():
            return
        x = tensor.view(-1, tensor.shape[-1])
        matrix = (x.shape[0], x.shape[1])
        spec = specifications.mxfp8(self.dtype, self.with_2d_quantization)
        lie = GEMM if dst._with_gemm_swizzled_scales else COMPACT
        if self.rowwise_usage:
            row = DirectionData(dst._rowwise_data.view(matrix), dst._rowwise_scale_inv, None)
            out = Quantized(spec, matrix, str(tensor.dtype).removeprefix("torch."), lie, row=row)
            api.quantize(x, spec, "row", lie, out=out, noop=noop)
        if self.columnwise_usage:
            column = api.quantize(x, spec, "column", lie).column
            assert column is not None
            write(dst._columnwise_data.view(matrix), column.data.t(), noop)
            scales = dst._columnwise_scale_inv
            moved = column.scales.reshape(scales.shape) if lie == GEMM else column.scales.t()
            write(scales, moved, noop)

    def _get_compatible_recipe(self) -> type[Recipe] | None:
        return MXFP8BlockScaling
