"""Checkpoints of the corpus whose configurations have all that llama.cpp asks for."""

from __future__ import annotations

from typing import Any

import checkpoints_corpus
from checkpoints_corpus import Export

MORE = {"max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}


def of_type(name: str, model_type: str, corpus: Any = checkpoints_corpus, **more: Any) -> Export:
    """Return an export of a corpus, by another type of model."""
    export = corpus.CLEAN[name]()
    export.config |= {"model_type": model_type, **MORE, **more}
    return export


def mixture(corpus: Any = checkpoints_corpus) -> Export:
    """Return one with experts."""
    return of_type(
        "modelopt-nvfp4-experts",
        "qwen3_moe",
        corpus,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        num_key_value_heads=2,
    )
