"""A fourth set of defects: kinds that two further trials showed to be missed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import checkpoints_corpus as corpus
from checkpoints_defects import GATE, UP, defect, edit
from checkpoints_third import DEFECTS

FIRST = len(DEFECTS)


# Memory of a freed buffer in rows of scales: vllm 54189


@defect("modelopt-nvfp4", "unwritten", f"{GATE}.weight_scale")
def rows_of_foreign_bytes(e):
    foreign = np.random.default_rng(1).integers(0, 256, (40, 8))
    edit(e, f"{GATE}.weight_scale", lambda a: a.__setitem__(slice(100, 140), foreign))


@defect("compressed-mxfp4", "unwritten", f"{UP}.weight_scale")
def rows_of_foreign_exponents(e):
    foreign = np.random.default_rng(2).integers(0, 255, (80, 4))
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__(slice(100, 180), foreign))


# Exponents as numbers: omlx 2159, sglang 26701


@defect("gpt-oss", "scale-value-cast", "down_proj_scales")
def exponents_without_their_bias(e):
    for name in [name for name in e.tensors if name.endswith("_scales")]:
        edit(e, name, lambda a: a.__setitem__(..., a - np.uint8(127)))


@defect("compressed-mxfp4", "saturation", f"{UP}.weight_packed")
def one_module_with_scales_of_a_quarter(e):
    values, scales = corpus.model()[UP], e.array(f"{UP}.weight_scale") - np.uint8(2)
    wanted = values / np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    codes = np.searchsorted([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.abs(wanted)) + 8 * (wanted < 0)
    e.put(f"{UP}.weight_packed", "U8", codes[:, ::2] | codes[:, 1::2] << 4)
    e.put(f"{UP}.weight_scale", "U8", scales)


# Names: ollama 16527, llama.cpp 25446, ComfyUI 15273


@defect("mlx-mxfp4", "orphan-tensor", f"{UP}.biases")
def zero_points_beside_numbers_that_have_none(e):
    for name in [name for name in e.tensors if name.endswith(".scales")]:
        e.put(name.replace(".scales", ".biases"), "BF16", np.zeros(e.array(name).shape))


@defect("gguf-nvfp4", "missing-tensor", "blk.1.ffn_up.scale")
def one_second_level_is_dropped(e):
    e.drop("blk.1.ffn_up.scale")


@defect("comfy-nvfp4", "config", "double_blocks.1")
def metadata_of_another_layer(e):
    key = "_quantization_metadata"
    e.metadata[key] = e.metadata[key].replace("double_blocks.1", "double_blocks.7")


@defect("comfy-nvfp4", "missing-tensor", "double_blocks.7")
def metadata_of_a_layer_that_is_not_stored(e):
    record = json.loads(e.metadata["_quantization_metadata"])
    record["layers"]["double_blocks.7.img_attn.qkv"] = {"format": "nvfp4"}
    e.metadata["_quantization_metadata"] = json.dumps(record)


LAST = len(DEFECTS)


def fourth() -> list[Any]:
    """Return the defects of this file."""
    return DEFECTS[FIRST:LAST]
