"""The order of the axes of queries, keys and values, and packed sequences as padded ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fp4ref.te.attention.masks import from_lengths
from fp4ref.te.errors import SettingError, TensorShapeError

FORMATS = ("sbhd", "bshd", "thd")


def require_format(name: str) -> str:
    """Return a format if it is known; SettingError otherwise."""
    if name not in FORMATS:
        raise SettingError("attention", f"qkv_format {name!r}", ", ".join(FORMATS))
    return name


def operands(
    given: tuple[Tensor | None, Tensor | None, Tensor | None], qkv: Tensor | None, kv: Tensor | None, axis: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, given one by one, or all, or the last two, in a tensor with one more axis.

    Errors: SettingError for another combination, TensorShapeError for another number of parts.
    """
    together, parts = (kv, 2) if qkv is None else (qkv, 3)
    alone = given if together is None else given[: 3 - parts]
    spare = () if together is None else given[3 - parts :]
    if any(x is None for x in alone) or any(x is not None for x in spare) or None not in (qkv, kv):
        names = zip(("query", "key", "value", "qkv", "kv"), (*given, qkv, kv), strict=True)
        got = ", ".join(f"{name}_layer" for name, x in names if x is not None) or "no tensors"
        raise SettingError("DotProductAttention", got, "queries, keys and values, each once")
    if together is None:
        return given  # type: ignore[return-value]
    if axis not in (-3, -2) or together.shape[axis] != parts:
        got = f"shape {list(together.shape)} with qkv_interleave_dim {axis}"
        raise TensorShapeError("DotProductAttention", got, f"axis -3 or -2 of size {parts}")
    return *alone, *together.unbind(axis)  # type: ignore[return-value]


@dataclass(frozen=True)
class Packed:
    """The places of sequences in one row of tokens.

    places: the token of each place, [batch, longest]. padded: True for places without a token, [batch, longest].
    tokens: how many tokens the row has.
    """

    places: Tensor
    padded: Tensor
    tokens: int

    @classmethod
    def of(cls, tokens: int, lengths: Tensor, starts: Tensor | None, longest: int | None) -> Packed:
        """Locate the sequences of the summed lengths [batch + 1]; starts: where each begins, if there are gaps."""
        longest = int(lengths.diff().max()) if longest is None else int(longest)
        starts = lengths if starts is None else starts
        padded = from_lengths(lengths, longest)
        places = starts[:-1].unsqueeze(1) + torch.arange(longest, device=lengths.device)
        return cls(places.masked_fill(padded, 0).long(), padded, tokens)

    def unpack(self, x: Tensor) -> Tensor:
        """Return [tokens, h, d] as [batch, h, longest, d]; padded places repeat a token."""
        return x[self.places].transpose(1, 2)

    def pack(self, y: Tensor) -> Tensor:
        """Return [batch, h, longest, d] as [tokens, h, d], 0 for tokens between the sequences."""
        kept = ~self.padded
        rows = y.new_zeros(self.tokens, y.shape[1], y.shape[3])
        return rows.index_put((self.places[kept],), y.transpose(1, 2)[kept])


def heads_first(x: Tensor, qkv_format: str) -> Tensor:
    """Return [s, b, h, d] or [b, s, h, d] as [b, h, s, d]."""
    if x.dim() != 4:
        raise TensorShapeError("attention", f"shape {list(x.shape)} in the format {qkv_format}", "four dimensions")
    return x.permute(1, 2, 0, 3) if qkv_format == "sbhd" else x.transpose(1, 2)


def heads_last(y: Tensor, qkv_format: str) -> Tensor:
    """Return [b, h, s, d] with the heads side by side: [s, b, h d] or [b, s, h d]."""
    return (y.permute(2, 0, 1, 3) if qkv_format == "sbhd" else y.transpose(1, 2)).flatten(-2)
