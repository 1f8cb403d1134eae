"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref.te.attention.formats import require_format
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.module.device import default_device
from fp4ref.te.module.options import require_only_supported


class RotaryPositionEmbedding(torch.nn.Module):
    """Makes the angles of positions: [positions, 1, 1, dim], float32, each angle for a pair of elements.

    rotary_percent: the part of a head that is turned. seq_len_interpolation_factor: positions are divided by it, or
    by more if the sequence is longer than pretrained_max_position_embeddings times the factor. interleaved: the two
    elements of a pair are neighbours, instead of one from each half.
    """

    inv_freq: Tensor

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: int | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        dim = int(dim * rotary_percent) if rotary_percent < 1.0 else dim
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        self.rotary_base, self.interleaved = rotary_base, interleaved
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=default_device(None)) / dim
        self.register_buffer("inv_freq", 1.0 / rotary_base**exponents)

    def forward(self, max_seq_len: int, offset: int = 0) -> Tensor:
        """Return the angles of positions offset, offset + 1, ... [max_seq_len, 1, 1, dim]."""
        positions = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=self.inv_freq.dtype) + offset
        trained, factor = self.pretrained_max_position_embeddings, self.seq_len_interpolation_factor
        if trained is not None and factor is not None:
            positions = positions * (1 / max(max_seq_len / trained, factor))
        angles = torch.outer(positions, self.inv_freq)
        both = torch.stack((angles, angles), -1 if self.interleaved else -2).flatten(-2)
        return both.view(max_seq_len, 1, 1, -1)


def apply_rotary_pos_emb(
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    start_positions: Tensor | None = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """Turn the first elements of each head of t [s, b, h, d], [b, s, h, d] or [t, h, d] by angles [positions, 1, 1, r].

    start_positions: the position of each sequence's first token. fused: turn in float32 and round once, as the fused
    kernel does; else sine and cosine are rounded to the type of t first. cu_seqlens: the summed lengths, for [t, h, d].

    Errors: SettingError, TensorShapeError, NotSupportedError for context parallelism.
    """
    require_only_supported("apply_rotary_pos_emb", cp_size=cp_size > 1)
    require_format(tensor_format)
    if tensor_format == "thd":
        if cu_seqlens is None:
            raise SettingError("apply_rotary_pos_emb", "the format thd without cu_seqlens", "the summed lengths")
        lengths = cu_seqlens.diff()
        place = torch.arange(t.shape[0], device=t.device) - cu_seqlens[:-1].repeat_interleave(lengths)
        if start_positions is not None:
            place = place + start_positions.repeat_interleave(lengths)
        chosen = _chosen(freqs, place)[:, 0]  # [t, 1, r]
    else:
        length = t.shape[0 if tensor_format == "sbhd" else 1]
        place = torch.arange(length, device=t.device).unsqueeze(1)
        if start_positions is not None:
            place = place + start_positions
        chosen = _chosen(freqs, place)[:, :, 0]  # [s, b or 1, 1, r]
        chosen = chosen if tensor_format == "sbhd" else chosen.transpose(0, 1)
    width = freqs.shape[-1]
    turned, rest = t[..., :width], t[..., width:]
    wide: Any = torch.float32 if fused else t.dtype
    cosine, sine, x = chosen.cos().to(wide), chosen.sin().to(wide), turned.to(wide)
    return torch.cat(((x * cosine + _quarter_turned(x, interleaved) * sine).to(t.dtype), rest), -1)


def _chosen(freqs: Tensor, place: Tensor) -> Tensor:
    if place.numel() and int(place.max()) >= freqs.shape[0]:
        needed = f"at most {freqs.shape[0]}"
        raise TensorShapeError("apply_rotary_pos_emb", f"{int(place.max()) + 1} positions", needed)
    return freqs[place].float()


def _quarter_turned(x: Tensor, interleaved: bool) -> Tensor:
    """Return -odd, even of each pair."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)
