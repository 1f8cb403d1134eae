"""The tensor of the Python reference of NVFP4: bytes without padding, and its copy in the buffers of the product."""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage
from fp4ref.te.storage import QuantizedTensorStorage


class NVFP4TensorRef(QuantizedTensorStorage):
    """Bytes of the reference: data uint8 [M, K/2], scale float8_e4m3fn [M, K/16], no padding; *_t of the transpose."""

    BUFFERS = ("data", "data_t", "scale", "scale_t", "global_amax_row", "global_amax_col")
    SETTINGS = ("original_shape",)
    data: Tensor | None
    data_t: Tensor | None
    scale: Tensor | None
    scale_t: Tensor | None
    global_amax_row: Tensor | None
    global_amax_col: Tensor | None
    original_shape: tuple[int, ...]
    custom = True

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized."""
        return torch.Size(self.original_shape)

    def directions(self) -> list[str]:
        """Return the directions whose bytes exist."""
        return [name for name, data in (("row", self.data), ("column", self.data_t)) if data is not None]

    def global_amax(self, direction: str) -> Tensor | None:
        """Return the amax of one direction."""
        return self.global_amax_row if direction == "row" else self.global_amax_col

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Keep the wanted directions and free the others.

        Errors: SettingError for a direction that is missing.
        """
        if rowwise_usage is False:
            self.data = self.scale = None
        if columnwise_usage is False:
            self.data_t = self.scale_t = None
        for wanted, direction in ((rowwise_usage, "row"), (columnwise_usage, "column")):
            if wanted and direction not in self.directions():
                raise SettingError("NVFP4TensorRef", f"no {direction} direction", "one that was quantized")

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return values of the row direction. Rules: DEQ-1, DEQ-3."""
        values: Tensor = self._get_quantizer().dequantize(self, dtype)
        return values

    def as_native(self) -> NVFP4TensorStorage:
        """Return the same codes, scales and amaxes in the buffers of `NVFP4Tensor`, for the matrix product."""
        quantizer = self._get_quantizer()
        return NVFP4TensorStorage(
            rowwise_data=self.data,
            rowwise_scale_inv=_padded(self.scale),
            columnwise_data=self.data_t,
            columnwise_scale_inv=_padded(self.scale_t),
            amax_rowwise=_flat(self.global_amax_row),
            amax_columnwise=_flat(self.global_amax_col),
            row_scaled_nvfp4=quantizer.row_scaled_nvfp4,
            nvfp4_use_4over6=quantizer.nvfp4_use_4over6,
            nvfp4_e4m3_max=quantizer.nvfp4_e4m3_max,
            fake_dtype=self._dtype,
        )


def _padded(scale: Tensor | None) -> Tensor | None:
    if scale is None:
        return None
    rows, blocks = scale.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-blocks // 4) * 4, dtype=torch.uint8, device=scale.device)
    padded[:rows, :blocks] = scale.view(torch.uint8)
    return padded


def _flat(amax: Tensor | None) -> Tensor | None:
    return None if amax is None else amax.reshape(-1)
