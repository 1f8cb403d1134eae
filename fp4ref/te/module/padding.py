"""Rows of zeros between the groups of a GroupedLinear, so that each group has whole blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fp4ref.te.errors import TensorShapeError
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.quantization import FP8GlobalStateManager, get_align_size_for_quantization


class _Aligned(torch.nn.Module):
    """The settings that padding and unpadding share; without an align_size the first call takes the recipe's."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def padded(self, m_splits: Sequence[int]) -> list[int]:
        """Return the rows of each group after padding."""
        if len(m_splits) != self.num_gemms:
            raise TensorShapeError(type(self).__name__, f"{len(m_splits)} m_splits", f"{self.num_gemms}, one per group")
        if self.align_size is None:
            self.align_size = get_align_size_for_quantization(FP8GlobalStateManager.get_fp8_recipe())
        return [-(-size // self.align_size) * self.align_size for size in m_splits]

    def pieces(self, inp: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        """Return the rows of inp [..., K] by group."""
        rows = inp.reshape(-1, inp.shape[-1])
        if sum(sizes) != len(rows) or min(sizes, default=0) < 0:
            raise TensorShapeError(
                type(self).__name__, f"groups of {sizes} in {len(rows)} rows", "groups that fill them"
            )
        return torch.split(rows, sizes)


class Fp8Padding(_Aligned):
    """Appends rows of zeros to each group, up to a multiple of align_size."""

    @not_compiled
    def forward(self, inp: Tensor, m_splits: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Return the padded rows of inp [rows, K], and the rows of each group."""
        sizes = self.padded(m_splits)
        pieces = self.pieces(inp, list(m_splits))
        rows = [torch.nn.functional.pad(x, (0, 0, 0, size - len(x))) for x, size in zip(pieces, sizes, strict=True)]
        return torch.cat(rows), sizes


class Fp8Unpadding(_Aligned):
    """Takes the rows that Fp8Padding appended away again."""

    @not_compiled
    def forward(self, inp: Tensor, m_splits: Sequence[int]) -> Tensor:
        """Return the rows of the groups; m_splits: the rows of each group without padding."""
        pieces = self.pieces(inp, self.padded(m_splits))
        return torch.cat([x[:size] for x, size in zip(pieces, m_splits, strict=True)])
