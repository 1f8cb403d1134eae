"""The NVFP4 quantizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from fp4ref import api, registry
from fp4ref.quantized import DirectionChoice, DirectionData, Directions, Parts, Quantized
from fp4ref.spec import Spec
from fp4ref.te import nvfp4_again, rng, swizzle
from fp4ref.te.capability import get_device_compute_capability
from fp4ref.te.dtypes import NVFP4_BLOCK_SCALING_SIZE as BLOCK
from fp4ref.te.dtypes import DType, dtype_name
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.hadamard import get_random_sign_mask_for_rht, get_rht_matrix
from fp4ref.te.new_buffers import new_buffers
from fp4ref.te.nvfp4_settings import DIRECTIONS_OF, NVFP4Settings, fast_choices, require_settings, specification
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage, scale_shape, shapes_of_buffers
from fp4ref.te.nvfp4_tensor import NVFP4Tensor
from fp4ref.te.quantizer import LASTING, Facts, InSteps, Quantizer
from fp4ref.te.recipe import NVFP4BlockScaling, Recipe

NOTHING = DirectionData(None, None, None)
_settings_of = attrgetter(*NVFP4Settings._fields)
_kind_of = attrgetter(*NVFP4Settings._fields, "rht_matrix_random_sign_mask_t", *LASTING)


class NVFP4Quantizer(Quantizer):
    """Makes NVFP4 tensors from [..., K], both dimensions of the matrix multiples of 16.

    with_rht: transform the column direction (bfloat16 only), with_post_rht_amax with it; with_random_sign_mask: its
    signs. with_2d_quantization: 16x16 tiles. stochastic_rounding: by bytes from torch's generator, or from `rng_state`
    if set. row_scaled_nvfp4: one amax per row. nvfp4_use_4over6, nvfp4_e4m3_max, nvfp4_4over6_err_mode: choose between
    two block scales. with_amax_reduction: the largest amax of `amax_reduction_group` instead of the tensor's own.

    Errors: SettingError for settings that do not fit each other.

    Rules: TEL-3, TEL-6, TEL-10, TEL-23, TEL-28, TEL-34.
    """

    def __init__(
        self,
        fp4_dtype: DType = DType.kFloat4E2M1,
        rowwise: bool = True,
        columnwise: bool = True,
        with_amax_reduction: bool = False,
        amax_reduction_group: dist.ProcessGroup | None = None,
        with_rht: bool = False,
        with_post_rht_amax: bool = False,
        with_2d_quantization: bool = False,
        stochastic_rounding: bool = False,
        row_scaled_nvfp4: bool = False,
        nvfp4_use_4over6: bool = False,
        nvfp4_e4m3_max: int = 448,
        nvfp4_4over6_err_mode: str = "MAE",
        with_random_sign_mask: bool = True,
    ) -> None:
        super().__init__(rowwise=rowwise, columnwise=columnwise)
        self.dtype = fp4_dtype
        self.with_rht = with_rht
        self.with_post_rht_amax = with_post_rht_amax
        self.with_amax_reduction = with_amax_reduction
        self.amax_reduction_group = amax_reduction_group
        self.with_2d_quantization = with_2d_quantization
        self.stochastic_rounding = stochastic_rounding
        self.row_scaled_nvfp4 = row_scaled_nvfp4
        self.nvfp4_use_4over6 = nvfp4_use_4over6
        self.nvfp4_e4m3_max = nvfp4_e4m3_max
        self.nvfp4_4over6_err_mode = nvfp4_4over6_err_mode.upper()
        self.rht_matrix_random_sign_mask_t = get_random_sign_mask_for_rht(with_random_sign_mask)
        self.rht_matrix = get_rht_matrix(with_random_sign_mask)
        self.rng_state: rng.RngState | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"amax_reduction_group": None}  # process groups cannot be pickled

    def spec(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Spec:
        """Return the specification of the bytes of a tensor of this type and shape. Rules: TEL-3."""
        return specification(self, dtype, shape)

    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise unless the settings fit each other, and a tensor's shape and dtype. Rules: TEL-3, TEL-23, TEL-34."""
        require_settings(_settings_of(self), shape, dtype)

    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` holds NVFP4 bytes."""
        if not isinstance(dst, NVFP4TensorStorage):
            raise SettingError("NVFP4Quantizer", f"destination {type(dst).__name__}", "an NVFP4Tensor", "TEL-5")

    def is_requantization_safe(self) -> bool:
        """Return True unless rounding is stochastic. Rules: TEM-42."""
        return not self.stochastic_rounding

    def is_quantizable(self, inp: Tensor) -> bool:
        """Return True if a tensor can be quantized and gathered: two dimensions at least, multiples of 16, one amax."""
        shape = tuple(inp.shape)
        return len(shape) > 1 and not (self.row_scaled_nvfp4 or shape[-1] % BLOCK or math.prod(shape[:-1]) % BLOCK)

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, int]:
        """Shape of the scales of a tensor: rows padded to 128, blocks to 4. Rules: LAY-2, TEL-22."""
        return scale_shape(tuple(shape), columnwise=columnwise)

    @staticmethod
    def convert_shape_for_fp4(shape: Iterable[int]) -> tuple[int, ...]:
        """Return the shape of packed bytes: half the last dimension."""
        sizes = tuple(shape)
        return (*sizes[:-1], sizes[-1] // 2)

    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return True if quantizing a tensor of this shape writes its scales in the GEMM layout. Rules: TEL-28."""
        matrix = math.prod(shape[:-1]), shape[-1]
        if self.with_rht:
            return swizzle.hadamard_fusion_eligible(*matrix)
        plain = not (self.row_scaled_nvfp4 or self.nvfp4_use_4over6)
        return self.with_2d_quantization and plain and swizzle.tiles_fusion_eligible(*matrix)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Make a tensor with buffers for the directions in use, storage if `internal`. Rules: TEL-3, TEL-22, TEL-28."""
        requires_grad = options.pop("requires_grad", False)
        names, codes, maxima = shapes_of_buffers(
            shape, self.rowwise_usage, self.columnwise_usage, self.row_scaled_nvfp4
        )
        made, amaxes = new_buffers(codes, maxima, torch.float32, device, **options)
        buffers: dict[str, Any] = dict.fromkeys(NVFP4TensorStorage.BUFFERS)
        buffers.update(zip(names, (*made, *amaxes), strict=True))
        swizzled = self.optimize_for_gemm and self.bakes_swizzled_scales(shape)
        values = buffers | self.settings(swizzled)
        if self.internal:
            return NVFP4TensorStorage.holding(values, self, dtype)
        return NVFP4Tensor.wrapping(values, self, dtype, shape, device, requires_grad=requires_grad)

    def kind(self) -> Hashable | None:
        """Return the settings, those of the process too; None where amaxes are reduced, and for other classes."""
        if self.with_amax_reduction or type(self) is not NVFP4Quantizer:
            return None
        return NVFP4Quantizer, _kind_of(self), fast_choices(self), get_device_compute_capability()

    def draw(self, tensor: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        """Return the random bytes of the directions in use, for stochastic rounding. Rules: TEL-6."""
        if not self.stochastic_rounding or not tensor.numel():
            return None
        return self.random_bytes((math.prod(tensor.shape[:-1]), tensor.shape[-1]), tensor.device)

    def make(self, tensor: Tensor, drawn: Any = None) -> Any:
        """Quantize a contiguous tensor into new buffers, those of the result. Rules: TEL-3, TEL-6."""
        asked = self.asked(tensor)
        if asked is None:
            return super().make(tensor)
        matrix, how, settings = asked
        bits = self.draw(tensor) if drawn is None else Directions(*drawn)
        q = api.quantize(tensor.view(matrix), *how, random_bits=bits)
        return self.made((q.row, q.column), settings, (tensor.dtype, tensor.shape, tensor.device))

    def made_again(self, tensor: Tensor) -> Callable[[Tensor, Self], Any] | None:
        """Return a function that makes other tensors of a kind; its scales are where they are moved to."""
        return nvfp4_again.made_again(self, tensor)

    def in_steps(self, tensor: Tensor) -> InSteps | None:
        """Return the one call of backends that makes a tensor; None where bytes are drawn or amaxes reduced."""
        return nvfp4_again.in_steps(self, tensor)

    def filled_again(
        self, tensor: Tensor, dst: Any, skip: Tensor | None
    ) -> Callable[[Tensor, Self, Any, Tensor | None], None] | None:
        """Return a function that fills other tensors of a kind; None where amaxes are reduced."""
        return nvfp4_again.filled_again(self, tensor, dst, skip)

    def asked(self, tensor: Tensor) -> tuple[tuple[int, int], tuple[Spec, DirectionChoice, str], dict[str, Any]] | None:
        """Return the shape of a tensor's matrix, the arguments of its `quantize`, and the settings of the result.

        Returns None where that call is not all there is to do.
        """
        directions = DIRECTIONS_OF[self.rowwise_usage, self.columnwise_usage]
        shape = tuple(tensor.shape)
        if directions is None or not tensor.numel() or self.with_amax_reduction:
            return None
        swizzled = self.optimize_for_gemm and self.bakes_swizzled_scales(shape)
        how = self.spec(tensor.dtype, shape), directions, swizzle.GEMM if swizzled else swizzle.COMPACT
        return (math.prod(shape[:-1]), shape[-1]), how, self.settings(swizzled)

    def made(self, directions: Parts, settings: dict[str, Any], of: Facts) -> Any:
        """Return the tensor of quantized bytes, storage if `internal`. of: the values."""
        dtype, shape, device = of
        (codes, scales, amax), (turned, its_scales, its_amax) = directions[0] or NOTHING, directions[1] or NOTHING
        if codes is not None and codes.dim() != len(shape):
            codes = codes.view(self.convert_shape_for_fp4(shape))
        values = {
            "_rowwise_data": codes,
            "_columnwise_data": turned,
            "_rowwise_scale_inv": scales,
            "_columnwise_scale_inv": its_scales,
            "_amax_rowwise": amax,
            "_amax_columnwise": its_amax,
            **settings,
        }
        if self.internal:
            return NVFP4TensorStorage.holding(values, self, dtype)
        return NVFP4Tensor.wrapping(values, self, dtype, shape, device)

    def settings(self, swizzled: bool) -> dict[str, Any]:
        """Return the attributes of a tensor that say how to read it."""
        return {
            "_fp4_dtype": self.dtype,
            "_with_gemm_swizzled_scales": swizzled,
            "_row_scaled_nvfp4": self.row_scaled_nvfp4,
            "_nvfp4_use_4over6": self.nvfp4_use_4over6,
            "_nvfp4_e4m3_max": self.nvfp4_e4m3_max,
        }

    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Fit an existing tensor to the directions in use; buffers that exist stay. Rules: TEL-4, TEL-5, TEL-84."""
        if tuple(dst.shape) != shape:
            raise TensorShapeError("update_quantized", f"source {list(shape)}", f"{list(dst.shape)}", "TEL-5")
        fresh = self.allocate(shape, dst.dtype, device)
        for name in NVFP4TensorStorage.BUFFERS:
            mine, wanted = getattr(dst, name), getattr(fresh, name)
            if mine is None or wanted is None or mine.shape != wanted.shape:
                setattr(dst, name, wanted)
        for name, value in self.settings(fresh._with_gemm_swizzled_scales).items():
            setattr(dst, name, value)

    def takes_noop(self, tensor: Tensor) -> bool:
        """Return True if a backend for the tensor's device reads the flag where it lies. Rules: LAY-12."""
        spec = self.spec(tensor.dtype, tuple(tensor.shape))
        call = registry.Call("quantize", spec, device=tensor.device.type, flag=True)
        return tensor.device.type == "cpu" or registry.offers(call, None)

    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Quantize into the buffers of `dst`; with a group, by the largest amax of its members.

        Rules: TEL-3, TEL-5, TEL-6, TEL-10.
        """
        shape = tuple(tensor.shape)
        matrix = math.prod(shape[:-1]), shape[-1]
        layout = swizzle.GEMM if dst._with_gemm_swizzled_scales else swizzle.COMPACT
        row, column = nvfp4_again.buffers(dst, matrix, self.rowwise_usage, self.columnwise_usage)
        directions = DIRECTIONS_OF[self.rowwise_usage, self.columnwise_usage]
        if directions is None:
            return
        spec = self.spec(tensor.dtype, shape)
        x = tensor.view(matrix)
        out = Quantized(spec, matrix, dtype_name(tensor.dtype), layout, row, column)
        bits = self.random_bytes(matrix, tensor.device) if self.stochastic_rounding and tensor.numel() else None
        if tensor.numel():
            api.quantize(x, spec, directions, layout, random_bits=bits, out=out, noop=noop)
        if self._reduce_amax(dst) and tensor.numel():
            given = Directions(*(None if part is None else part.amax.clone() for part in (row, column)))
            api.quantize(x, spec, directions, layout, amax=given, random_bits=bits, out=out, noop=noop)

    def random_bytes(self, matrix: tuple[int, int], device: torch.device) -> Directions:
        """Draw the random bytes of the directions in use. Rules: TEL-6."""
        directions = DIRECTIONS_OF[self.rowwise_usage, self.columnwise_usage]
        state = self.rng_state or rng.next_state(device)
        return Directions() if directions is None else rng.random_bytes(matrix, directions, state, device)

    def _reduce_amax(self, dst: Any) -> bool:
        """Replace the amaxes by the largest of the group; every member joins, with or without elements.

        Rules: TEL-10. Certificates: group-amax.
        """
        group = self.amax_reduction_group
        if not self.with_amax_reduction or dist.get_world_size(group) == 1:
            return False
        amaxes = [amax for amax in (dst._amax_rowwise, dst._amax_columnwise) if amax is not None]
        together = torch.cat(amaxes)
        dist.all_reduce(together, op=dist.ReduceOp.MAX, group=group)
        for amax, reduced in zip(amaxes, together, strict=True):
            amax.fill_(reduced)
        return True

    def _canonicalized_amax_reduction_group(self) -> dist.ProcessGroup | None:
        return self.amax_reduction_group if self.amax_reduction_group is not None else dist.group.WORLD

    def _get_compatible_recipe(self) -> type[Recipe] | None:
        return NVFP4BlockScaling


def quantize_nvfp4(tensor: Tensor, *, columnwise: bool = False, **settings: Any) -> Any:
    """Quantize a tensor to NVFP4 with a quantizer's settings: rows only and no signs unless asked for. Rules: TEL-3."""
    return NVFP4Quantizer(columnwise=columnwise, **({"with_random_sign_mask": False} | settings))(tensor)
