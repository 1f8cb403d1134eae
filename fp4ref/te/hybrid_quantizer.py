"""Quantizers per direction, and those that leave values in high precision, as custom recipes ask for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref import repeats
from fp4ref.te import debug, hybrid_again
from fp4ref.te.errors import SettingError
from fp4ref.te.hybrid_tensor import HybridQuantizedTensor, HybridQuantizedTensorStorage
from fp4ref.te.identity_tensor import IdentityTensor, IdentityTensorStorage
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.quantizer import Facts, Quantizer
from fp4ref.te.recipe import CustomRecipe, Recipe
from fp4ref.te.roles import QuantizerRequest
from fp4ref.te.swizzle import COMPACT, GEMM

SOURCES = ("original", "rowwise_dequantized")


class IdentityQuantizer(Quantizer):
    """Leaves tensors in high precision; dtype: the type that they are rounded to, None for their own."""

    def __init__(self, *, dtype: torch.dtype | None = None, rowwise: bool = True, columnwise: bool = True) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = dtype

    def quantize_impl(self, tensor: Tensor) -> IdentityTensorStorage:
        """Return the tensor itself, held as a quantized one is."""
        return self._holding(tensor.detach().to(self.dtype or tensor.dtype))

    def _holding(self, data: Tensor, requires_grad: bool = False) -> IdentityTensorStorage:
        if self.internal:
            return IdentityTensorStorage(hp_data=data, quantizer=self, fake_dtype=data.dtype)
        made = IdentityTensor(
            shape=data.shape,
            dtype=data.dtype,
            hp_data=data,
            quantizer=self,
            device=data.device,
            stride=data.stride(),
            storage_offset=int(data.storage_offset()),
        )
        made.requires_grad_(requires_grad)
        return made

    def update_quantized(self, src: Tensor, dst: Any, *, noop_flag: Tensor | None = None) -> Any:
        """Copy values into the memory of `dst`, or let it hold them, unless noop_flag[0] is 1. Rules: TEL-5, TEL-24."""
        self.require_destination(dst)
        values, held = src.detach().to(self.dtype or src.dtype), dst._hp_data
        if held is None or (held.shape, held.dtype, held.device) != (values.shape, values.dtype, values.device):
            if noop_flag is None or not bool(noop_flag.reshape(-1)[0]):
                dst._hp_data, dst._dtype = values, values.dtype
        else:
            held.copy_(values if noop_flag is None else torch.where(noop_flag.reshape(-1)[0] == 1, held, values))
        return dst

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` holds a tensor in high precision."""
        if not isinstance(dst, IdentityTensorStorage):
            got = f"destination {type(dst).__name__}"
            raise SettingError("IdentityQuantizer", got, "what an IdentityQuantizer made", "TEL-5")

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Return a tensor without values."""
        requires_grad = options.pop("requires_grad", False)
        return self._holding(torch.empty(shape, dtype=self.dtype or dtype, device=device, **options), requires_grad)

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Do nothing: the memory of an existing tensor serves both directions."""

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Copy values."""
        self.update_quantized(tensor, dst, noop_flag=noop)

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return False: there are no scales."""
        return False

    def _get_compatible_recipe(self) -> type[Recipe]:
        return CustomRecipe

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Accept every shape and type."""

    def is_requantization_safe(self) -> bool:
        """Return True: a tensor's bytes depend on nothing else. Rules: TEM-42."""
        return True

    def is_quantizable(self, inp: Tensor) -> bool:
        """Return False: a part is gathered as it is."""
        return False


class HybridQuantizer(Quantizer):
    """Quantizes rows by one quantizer and columns by another, which belong to it from then on.

    columnwise_source: what the columns are quantized from, the tensor ("original") or the values of its quantized rows
    ("rowwise_dequantized").

    Errors: TypeError for what is no quantizer, SettingError for one quantizer in both directions.

    Rules: TEL-56.
    """

    def __init__(
        self,
        *,
        rowwise_quantizer: Quantizer,
        columnwise_quantizer: Quantizer,
        columnwise_source: str = "original",
    ) -> None:
        super().__init__(rowwise=True, columnwise=True)
        for name, given in (("rowwise", rowwise_quantizer), ("columnwise", columnwise_quantizer)):
            if isinstance(given, QuantizerRequest):
                got = f"{name}_quantizer {type(given).__name__}"
                raise TypeError(f"HybridQuantizer does not support nested QuantizerRequest objects: {got}")
            if not isinstance(given, Quantizer):
                raise TypeError(f"HybridQuantizer: {name}_quantizer {type(given).__name__}, need a Quantizer")
        if rowwise_quantizer is columnwise_quantizer:
            got = "one quantizer for both directions; it requires distinct rowwise and columnwise instances"
            raise SettingError("HybridQuantizer", got, "two quantizers", "TEL-56")
        if columnwise_source not in SOURCES:
            raise SettingError("HybridQuantizer", f"columnwise_source {columnwise_source!r}", " or ".join(SOURCES))
        self.rowwise_quantizer, self.columnwise_quantizer = rowwise_quantizer, columnwise_quantizer
        self.columnwise_source = columnwise_source
        rowwise_quantizer.set_usage(rowwise=True, columnwise=False)
        columnwise_quantizer.set_usage(rowwise=False, columnwise=True)

    @property
    def role(self) -> str:
        """The operand's name in `te.debug.operation_counts`."""
        return self._role

    @role.setter
    def role(self, name: str) -> None:
        self._role = name
        for quantizer in self._both():
            quantizer.role = name

    @property
    def with_amax_reduction(self) -> bool:
        """True if either direction takes the largest amax of several processes."""
        return any(getattr(quantizer, "with_amax_reduction", False) for quantizer in self._both())

    @with_amax_reduction.setter
    def with_amax_reduction(self, wanted: bool) -> None:
        self._set("with_amax_reduction", wanted)

    @property
    def amax_reduction_group(self) -> Any:
        """The processes of that reduction."""
        groups = (getattr(quantizer, "amax_reduction_group", None) for quantizer in self._both())
        return next((group for group in groups if group is not None), None)

    @amax_reduction_group.setter
    def amax_reduction_group(self, group: Any) -> None:
        self._set("amax_reduction_group", group)

    def _both(self) -> list[Quantizer]:
        named = vars(self)
        return [named[name] for name in ("rowwise_quantizer", "columnwise_quantizer") if name in named]

    def _set(self, name: str, value: Any) -> None:
        for quantizer in self._both():
            if hasattr(quantizer, name) and not getattr(quantizer, "row_scaled_nvfp4", False):
                setattr(quantizer, name, value)

    def copy(self) -> HybridQuantizer:
        """Return a quantizer with copies of both."""
        other = super().copy()
        assert isinstance(other, HybridQuantizer)
        other.rowwise_quantizer = self.rowwise_quantizer.copy()
        other.columnwise_quantizer = self.columnwise_quantizer.copy()
        return other

    def quantize_impl(self, tensor: Tensor) -> HybridQuantizedTensorStorage:
        """Quantize each direction that is asked for by its quantizer. Rules: TEL-59."""
        key = hybrid_again.kind(self, tensor)
        again = repeats.find(key) if key else None
        if again:
            made: HybridQuantizedTensorStorage = again(tensor if tensor.is_cuda else tensor.detach(), self)
            return made
        tensor = tensor.detach()
        with debug.noted() as counts:
            rows = self.rowwise_quantizer.quantize(tensor) if self.rowwise_usage else None
            columns = self.columnwise_quantizer.quantize(self._source(tensor, rows)) if self.columnwise_usage else None
        if key:
            repeats.keep(key, hybrid_again.made(self, tensor, counts), COMPACT, GEMM)
        return self.of_parts(rows, columns, (tensor.dtype, tensor.shape, tensor.device))

    def of_parts(self, rows: Any, columns: Any, of: Facts) -> HybridQuantizedTensorStorage:
        """Return a tensor of two parts, storage if `internal`. of: the values."""
        held, (dtype, shape, device) = {"_rowwise_storage": rows, "_columnwise_storage": columns}, of
        if self.internal:
            return HybridQuantizedTensorStorage.holding(held, self, dtype)
        return HybridQuantizedTensor.wrapping(held, self, dtype, shape, device)

    def _source(self, tensor: Tensor, rows: Any) -> Tensor:
        """Return the tensor itself, or the values of its quantized rows, as the quantizer's source of columns asks."""
        if self._takes_original:
            return tensor
        made = self.rowwise_quantizer.quantize(tensor) if rows is None else rows
        values: Tensor = made.dequantize(dtype=tensor.dtype)
        return values

    def update_quantized(self, src: Tensor, dst: Any, *, noop_flag: Tensor | None = None) -> Any:
        """Quantize into the parts that there are and that are asked for. Rules: TEL-5, TEL-24, TEL-56."""
        self.require_destination(dst)
        key = hybrid_again.kind_of_filling(self, src, dst, noop_flag)
        again = repeats.find(key) if key else None
        if again:
            again(src if src.is_cuda else src.detach(), self, dst, noop_flag)
            return dst
        rows = dst._rowwise_storage if self.rowwise_usage else None
        with debug.noted() as counts:
            if rows is not None:
                self.rowwise_quantizer.update_quantized(src, rows, noop_flag=noop_flag)
            if self.columnwise_usage and dst._columnwise_storage is not None:
                source = self._source(src, rows)
                self.columnwise_quantizer.update_quantized(source, dst._columnwise_storage, noop_flag=noop_flag)
        if key and key == hybrid_again.kind_of_filling(self, src, dst, noop_flag):  # no buffer was replaced
            repeats.keep(key, hybrid_again.filled(self, src.detach(), dst, noop_flag, counts), COMPACT, GEMM)
        return dst

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` has a part per direction."""
        if not isinstance(dst, HybridQuantizedTensorStorage):
            got = f"destination {type(dst).__name__}"
            raise SettingError("HybridQuantizer", got, "what a HybridQuantizer made", "TEL-5")

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Return parts without values for the directions in use."""
        requires_grad = options.pop("requires_grad", False)
        rows, columns = (
            quantizer.allocate(shape, dtype, device, **options) if used else None
            for quantizer, used in zip(self._both(), (self.rowwise_usage, self.columnwise_usage), strict=True)
        )
        made = self.of_parts(rows, columns, (dtype, shape, device))
        return made.requires_grad_(requires_grad) if isinstance(made, Tensor) else made

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Do nothing: each part is prepared by its own quantizer."""

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Quantize into both parts."""
        self.update_quantized(tensor, dst, noop_flag=noop)

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return False: scales are compact until a product reads them."""
        return False

    def _get_compatible_recipe(self) -> type[Recipe]:
        return CustomRecipe

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise unless both quantizers take a shape and a type."""
        for quantizer in self._both():
            quantizer.require(shape, dtype)

    def is_requantization_safe(self) -> bool:
        """Return True if what each direction in use is made by can be used again. Rules: TEM-42."""
        used = [self.rowwise_quantizer] if self.rowwise_usage else []
        if self.columnwise_usage:
            used += [self.columnwise_quantizer, *([] if self._takes_original else [self.rowwise_quantizer])]
        return all(quantizer.is_requantization_safe() for quantizer in used)

    def reconstructs_from_original(self) -> bool:
        """Return True if columns are made from the tensor, or from rows that can be made again. Rules: TEM-42."""
        return self._takes_original or self.rowwise_quantizer.is_requantization_safe()

    @property
    def _takes_original(self) -> bool:
        return self.columnwise_source == "original"

    def supports_only_rowwise_all_gather(self) -> bool:
        """Return True if rows can only be gathered as rows, or the columns are NVFP4, which have no values alone."""
        rows = self.rowwise_quantizer.supports_only_rowwise_all_gather()
        return rows or isinstance(self.columnwise_quantizer, NVFP4Quantizer)

    def is_quantizable(self, inp: Tensor) -> bool:
        """Return False: parts are gathered in high precision."""
        return False
