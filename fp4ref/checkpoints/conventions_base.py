"""Directions, element types and fused sets that conventions of several families share. Rules: CKP-28."""

from __future__ import annotations

from fp4ref.checkpoints.convention import CONVENTIONS, Convention, Direction, ScaleWay
from fp4ref.formats import E2M1, E4M3

FULL = E2M1.max * E4M3.max  # 2688: the amax of a tensor whose global scale is 1
FULL_SCALE = Direction(ScaleWay.MULTIPLIER, FULL)
DIVISOR = Direction(ScaleWay.DIVISOR, FULL)
FP8_SCALE = Direction(ScaleWay.MULTIPLIER, E4M3.max)
ITSELF = Direction(ScaleWay.AMAX, FULL)
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("wq", "wk", "wv"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("wq_a", "wkv_a_with_mqa"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("to_q", "to_k", "to_v"),
)
E4M3_SCALES, BYTES, E8M0_BYTES = ("F8_E4M3",), ("U8",), ("U8", "F8_E8M0")
ONE_FLOAT = ("F32",)
AWQ = (".pre_quant_scale", ".svdquant_lora_a", ".svdquant_lora_b", ".lora_a", ".lora_b")
WEIGHT = ".weight"


def add(value: Convention, source: str) -> Convention:
    """Register a convention of this project, and return it."""
    return CONVENTIONS.register(value, source)
