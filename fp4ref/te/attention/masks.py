"""The keys that a query does not attend to, by the kind of mask, the sliding window and the lengths of sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError

AttnMaskTypes = (
    *("no_mask", "padding", "causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right"),
    "arbitrary",
)


def canonical(mask_type: str) -> str:
    """Return a kind of mask by its one name: "padding,causal" and "causal,padding" are "padding_causal".

    Errors: SettingError for an unknown kind.
    """
    name = mask_type.replace(",", "_")
    name = "padding_causal" if name == "causal_padding" else name
    if name not in AttnMaskTypes:
        raise SettingError("attention", f"mask {mask_type!r}", ", ".join(AttnMaskTypes))
    return name


def from_lengths(cumulative: Tensor, longest: int) -> Tensor:
    """Return True for the padded places of sequences [batch, longest], whose lengths are summed up in [batch + 1]."""
    lengths = cumulative.diff().unsqueeze(1)
    return torch.arange(longest, device=cumulative.device) >= lengths


def hidden(
    mask_type: str,
    queries: int,
    keys: int,
    *,
    window: tuple[int, int],
    bottom_right: bool,
    padded: tuple[Tensor, Tensor] | None = None,
    given: Tensor | None = None,
    device: torch.device,
) -> Tensor | None:
    """Return True where query i of [queries] does not see key j of [keys], in [batch or 1, 1, i, j]; None for nowhere.

    window: how far a query sees to the left and to the right of its diagonal, -1 for no limit. bottom_right: the
    diagonal ends at the last query and key, of each sequence by itself where it is padded; else it begins at the first
    ones. padded: True for the padded queries and keys, [batch, length] each. given: the mask of the kind "arbitrary".
    """
    masked = _outside(window, queries, keys, shift(queries, keys, padded) if bottom_right else 0, device)
    if "padding" in mask_type and padded is not None:
        beyond = padded[0][:, None, :, None] | padded[1][:, None, None, :]
        masked = beyond if masked is None else masked | beyond
    if mask_type == "arbitrary" and given is not None:
        masked = given if masked is None else masked | given
    return masked


def shift(queries: int, keys: int, padded: tuple[Tensor, Tensor] | None) -> Any:
    """Return by how many places the diagonal is moved to the right, per sequence where lengths differ."""
    if padded is None:
        return keys - queries
    query_lengths, key_lengths = ((~places).sum(1) for places in padded)
    return (key_lengths - query_lengths).view(-1, 1, 1, 1)


def _outside(window: tuple[int, int], queries: int, keys: int, shift: Any, device: torch.device) -> Tensor | None:
    left, right = window
    place = torch.arange(keys, device=device).view(1, 1, 1, keys)
    diagonal = torch.arange(queries, device=device).view(1, 1, queries, 1) + shift
    outside = None
    if left >= 0:
        outside = place < diagonal - left
    if right >= 0:
        beyond = place > diagonal + right
        outside = beyond if outside is None else outside | beyond
    return outside


def slopes(heads: int, device: torch.device) -> Tensor:
    """Return ALiBi's slopes of each head, float32 [heads]: 2^(-8 i / n) for the first n, n the largest power of two.

    The others have the slopes of twice as many heads, every second one.
    """
    n = 1 << (heads.bit_length() - 1)
    exponents = [-8.0 * i / n for i in range(1, n + 1)] + [-4.0 * i / n for i in range(1, 2 * (heads - n), 2)]
    return torch.exp2(torch.tensor(exponents, dtype=torch.float64)).to(device, torch.float32)


def distances(slopes: Tensor, queries: int, keys: int, shift: Any) -> Tensor:
    """Return ALiBi's bias: minus the slope times the distance of key j from the diagonal i + shift of query i.

    slopes: [heads] or [batch, heads]. shift: a number, or one per sequence. Result: float32 [batch or 1, heads, i, j].
    """
    place = torch.arange(keys, device=slopes.device).view(1, 1, 1, keys)
    diagonal = torch.arange(queries, device=slopes.device).view(1, 1, queries, 1) + shift
    bias: Tensor = -slopes.view(-1, slopes.shape[-1], 1, 1).float() * (place - diagonal).abs()
    return bias
