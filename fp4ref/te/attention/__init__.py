"""Attention in high precision, by the interface of the emulated library: its recipes quantize linear layers only."""

from fp4ref.te.attention.backends import FusedMLAQUpProjRopeQuant  # noqa: F401 - read by scripts
from fp4ref.te.attention.dot_product_attention import DotProductAttention
from fp4ref.te.attention.multi_head_attention import MultiheadAttention
from fp4ref.te.attention.rope import RotaryPositionEmbedding, apply_rotary_pos_emb
from fp4ref.te.helpers import SplitAlongDim as _SplitAlongDim  # noqa: F401 - read by scripts

__all__ = ["DotProductAttention", "MultiheadAttention", "RotaryPositionEmbedding", "apply_rotary_pos_emb"]
