"""Answers to scripts that ask which kernels attend: one computation does, under the names of two kinds of kernels."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import torch

from fp4ref.te.absent import Absent
from fp4ref.te.helpers import check_set_window_size  # noqa: F401 - scripts read it here


class NVTE_Fused_Attn_Backend(IntEnum):  # noqa: N801 - the emulated library's name
    """The kinds of fused kernels, by the names and numbers of the emulated library."""

    NVTE_No_Backend = -1
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


FusedAttnBackend = {kind.name.partition("_")[2].removesuffix("_Backend"): kind for kind in NVTE_Fused_Attn_Backend}

# What modules read before they choose kernels; here nothing is chosen, so scripts only write it.
_attention_backends: dict[str, Any] = {
    "attention_params": None,
    "use_flash_attention": None,
    "flash_attention_backend": None,
    "use_fused_attention": None,
    "fused_attention_backend": None,
    "use_unfused_attention": None,
    "backend_selection_requires_update": False,
}


@dataclass
class AttentionParams:
    """The call that a script looks for kernels for: the arguments of `DotProductAttention` and of its tensors."""

    qkv_type: type = torch.Tensor
    qkv_dtype: torch.dtype = torch.bfloat16
    qkv_layout: str = "sbh3d"
    batch_size: int = 1
    num_heads: int = 16
    num_gqa_groups: int = 16
    max_seqlen_q: int = 128
    max_seqlen_kv: int = 128
    head_dim_qk: int = 64
    head_dim_v: int = 64
    attn_mask_type: str = "no_mask"
    window_size: tuple[int, int] | None = None
    bottom_right_diagonal: bool = True
    alibi_slopes_shape: Any = None
    core_attention_bias_type: str = "no_bias"
    core_attention_bias_shape: str | None = "1hss"
    core_attention_bias_requires_grad: bool = True
    pad_between_seqs: bool = False
    attention_dropout: float = 0.0
    context_parallel: bool = False
    cp_comm_type: str = "p2p"
    cp_size: int = 1
    deterministic: bool = False
    is_training: bool = True
    fp8: bool = False
    fp8_meta: dict[str, Any] | None = None
    inference_params: Any = None
    softmax_type: str = "vanilla"
    return_max_logit: bool = False
    cuda_graph: bool = False
    num_splits: int = 1
    fp8_output: bool = False
    checkpoint_core_attention: bool = False
    has_score_mod: bool = False
    has_score_mod_bprop: bool = False


def get_attention_backend(
    attention_params: AttentionParams,
) -> tuple[bool, None, bool, NVTE_Fused_Attn_Backend, bool, list[bool]]:
    """Return which kinds of kernels serve a call: of flash attention none; fused and unfused are the same computation.

    Quantized attention, context parallelism, a cache of keys and functions of the scores are served by none. The
    variables NVTE_FUSED_ATTN=0 and NVTE_UNFUSED_ATTN=0 take a name away.

    Result: use flash, its version, use fused, which one, use unfused, and all three that could serve it; the first of
    them is used.

    Rules: TEM-31.
    """
    asked = attention_params
    served = not (asked.fp8 or asked.context_parallel or asked.inference_params is not None or asked.has_score_mod)
    fused, unfused = (served and os.environ.get(name, "1") != "0" for name in ("NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"))
    kind = FusedAttnBackend["F16_arbitrary_seqlen" if fused else "No"]
    return False, None, fused, kind, unfused and not fused, [False, fused, unfused]


class FlashAttentionUtils(metaclass=Absent):
    """The packages of flash attention that are used here: none. Other attributes raise by name."""

    path = "transformer_engine.pytorch.attention.dot_product_attention.utils.FlashAttentionUtils"
    is_installed = v3_is_installed = v4_is_installed = use_v3 = use_v4 = False
    v2_plus = v2_1_plus = v2_3_plus = v2_4_plus = v2_4_1_plus = v2_5_plus = v2_5_7_plus = v2_6_0_plus = False
    v2_7_0_plus = v3_0_0_beta = False


class FusedMLAQUpProjRopeQuant(metaclass=Absent):
    """A fused kernel that is not emulated, and says so when it is asked."""

    path = "transformer_engine.pytorch.attention.FusedMLAQUpProjRopeQuant"

    @staticmethod
    def is_supported() -> bool:
        """Return False."""
        return False


class AttentionLogging:
    """The log of the choice between kernels, which has nothing to say here."""

    fa_logger = logging.getLogger(__name__)
    _is_logging_setup: ClassVar[bool] = False

    @classmethod
    def setup_logging(cls) -> None:
        """Take note that a script wants the log."""
        cls._is_logging_setup = True
