"""Anchors: tensors in high precision, from which the size and the column order of quantized weights can be judged."""

from __future__ import annotations

import math
import re
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.convention import FLOATS
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.files.tensors import DTYPES

SAMPLE = 1 << 20  # elements of a large tensor that are read
NORMS = {  # the norm whose output a module reads, in the names of Hugging Face's models
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "input_layernorm"),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), "post_attention_layernorm"),
}
LAYER = re.compile(r"(.*\.layers\.\d+)\.(.+)")


def floats(tensor: StoredTensor, most: int = SAMPLE) -> NDArray[np.float32]:
    """Return the first elements of a tensor of floating-point type."""
    kind = DTYPES[tensor.dtype].array
    count = min(tensor.size, most)
    return np.frombuffer(tensor.bytes(0, count * kind.itemsize), kind).astype(np.float32)


def usual_amax(found: Recognized) -> float | None:
    """Return the median amax of the matrices in high precision; None if there are none."""
    amaxes = [
        float(np.abs(floats(tensor)).max(initial=0))
        for name, tensor in found.plain.items()
        if tensor.dtype in FLOATS and len(tensor.shape) == 2 and min(tensor.shape) >= 16 and "norm" not in name
    ]
    good = [amax for amax in amaxes if amax > 0 and math.isfinite(amax)]
    return median(good) if good else None


def norm_of(found: Recognized, group: TensorGroup) -> StoredTensor | None:
    """Return the weight of the norm whose output a module reads, if names show it."""
    match = LAYER.fullmatch(group.module)
    name = f"{match[1]}.{NORMS[match[2]]}.weight" if match and match[2] in NORMS else ""
    tensor = found.plain.get(name)
    return tensor if tensor is not None and tensor.dtype in FLOATS and tensor.size == group.columns else None


def largest_input(found: Recognized, group: TensorGroup) -> float | None:
    """Return a bound on the inputs of a module that reads a norm's output: sqrt(columns) times the largest weight."""
    tensor = norm_of(found, group)
    if tensor is None or f"{tensor.name.removesuffix('weight')}bias" in found.plain:
        return None
    weight = floats(tensor)
    if not np.isfinite(weight).all():
        return None
    return math.sqrt(group.columns) * (1 + float(np.abs(weight).max()))  # some models store the weight less 1
