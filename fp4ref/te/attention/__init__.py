"""Attention in high precision, by the interface of the emulated library: its recipes quantize linear layers only."""

from fp4ref.te.attention.dot_product_attention import DotProductAttention
from fp4ref.te.attention.rope import RotaryPositionEmbedding, apply_rotary_pos_emb
from fp4ref.te.helpers import SplitAlongDim as _SplitAlongDim  # noqa: F401 - read by scripts

__all__ = ["DotProductAttention", "RotaryPositionEmbedding", "apply_rotary_pos_emb"]
