"""A fifth set of defects, written to slip through the checks: other forms of known kinds."""

from __future__ import annotations

import shutil
from typing import Any

import ml_dtypes
import numpy as np

import checkpoints_corpus as corpus
from checkpoints_defects import DOWN, UP, defect, edit, retype, shard_path
from checkpoints_fourth import DEFECTS

FIRST = len(DEFECTS)
IGNORED = ["lm_head"]


@defect("deepseek-fp8", "duplicate-tensor", "model-00003")
def a_copy_of_a_shard(e):
    e.after.append(lambda folder: shutil.copy(shard_path(folder, 2), folder / "model-00003-of-00002.safetensors"))


@defect("gpt-oss", "missing-tensor", "down_proj_bias")
def the_bias_of_one_layer_s_experts(e):
    e.drop("model.layers.1.mlp.experts.down_proj_bias")


@defect("modelopt-nvfp4", "missing-tensor", "model.norm.weight")
def no_last_norm(e):
    e.drop("model.norm.weight")


@defect("modelopt-nvfp4", "missing-tensor", "model.embed_tokens.weight")
def no_embeddings(e):
    e.drop("model.embed_tokens.weight")


@defect("compressed-mxfp8", "orphan-tensor", f"{UP}.weight_global_scale")
def a_second_level_of_another_format(e):
    e.put(f"{UP}.weight_global_scale", "F32", [3.0])


@defect("compressed-nvfp4", "orphan-tensor", f"{UP}.weight")
def the_weight_itself_is_left_over(e):
    e.put(f"{UP}.weight", "BF16", corpus.bf16(corpus.weight(1, (256, 128))))


@defect("compressed-nvfp4", "shape", f"{UP}.weight_packed")
def the_last_row_is_missing(e):
    retype(e, f"{UP}.weight_packed", "U8", lambda a: a[:-1].copy())


@defect("gpt-oss", "shape", "gate_up_proj_bias")
def biases_of_half_the_rows(e):
    e.put("model.layers.0.mlp.experts.gate_up_proj_bias", "BF16", np.zeros((corpus.EXPERTS, 64)))


@defect("comfy-nvfp4", "shape", "double_blocks.1.img_attn.qkv.weight")
def rows_that_are_not_padded(e):
    retype(e, "double_blocks.1.img_attn.qkv.weight", "U8", lambda a: a[:250].copy())


@defect("compressed-nvfp4", "config", "config.json")
def input_scales_of_inputs_that_are_not_quantized(e):
    e.config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = None


@defect("modelopt-nvfp4", "scale-value-cast", ".weight_scale")
def codes_of_scales_as_numbers(e):
    for name in [name for name in e.tensors if name.endswith(".weight_scale")]:
        values = e.array(name).astype(ml_dtypes.float8_e4m3fn)
        e.put(name, "F8_E4M3", values.view(np.uint8))


@defect("deepseek-fp8", "unwritten", f"{UP}.weight")
def rows_of_zeros_between_others(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__(slice(100, 120), 0))


@defect("mlx-mxfp4", "code-histogram", f"{UP}.weight")
def one_code_everywhere(e):
    edit(e, f"{UP}.weight", lambda a: a.fill(0x55555555))


@defect("deepseek-fp8", "element-nan", f"{UP}.weight")
def a_row_of_nan(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__(200, 0x7F))


@defect("modelopt-nvfp4", "row-order", f"{UP}.weight", source=True)
def rows_moved_without_their_scales(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__(..., np.roll(a, 1, 0)))


@defect("modelopt-nvfp4", "row-order", f"{DOWN}.weight", source=True)
def scales_moved_without_their_rows(e):
    edit(e, f"{DOWN}.weight_scale", lambda a: a.__setitem__(..., np.roll(a, 5, 0)))


# Kinds that an outside author's trial showed to be missed


@defect("compressed-nvfp4", "missing-tensor", "model.layers.1.self_attn")
def a_layer_without_its_attention(e):
    e.drop(*[name for name in e.tensors if name.startswith("model.layers.1.self_attn.")])


@defect("compressed-nvfp4", "config", "config.json")
def another_format_above_the_groups(e):
    e.config["quantization_config"]["format"] = "float-quantized"


@defect("compressed-nvfp4", "unwritten", f"{UP}.weight_packed")
def rows_of_floats_where_elements_are(e):
    floats = np.random.default_rng(4).normal(0, 0.02, (100, 16)).astype(np.float32)
    edit(e, f"{UP}.weight_packed", lambda a: a.__setitem__(slice(100, 200), floats.view(np.uint8)))


@defect("deepseek-fp8", "unwritten", f"{UP}.weight")
def elements_of_zero_under_ordinary_scales(e):
    edit(e, f"{UP}.weight", lambda a: a.fill(0))


@defect("compressed-nvfp4", "bit-damage", f"{UP}.weight_packed", source=True)
def thirty_flipped_bits(e):
    rng = np.random.default_rng(6)

    def change(a: Any) -> None:
        for place in rng.choice(a.size, 30, replace=False):
            a.reshape(-1)[place] ^= rng.choice([0x40, 0x04])

    edit(e, f"{UP}.weight_packed", change)


@defect("gpt-oss", "shape", "down_proj_blocks")
def no_axis_of_blocks(e):
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    retype(e, name, "U8", lambda a: a.reshape(*a.shape[:2], -1))


@defect("modelopt-nvfp4", "scale-nan", f"{UP}.weight_scale")
def the_blocks_of_a_dead_neuron(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__(17, 0))
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__(17, 0x7F))


@defect("modelopt-nvfp4", "config", "config.json")
def the_method_of_another_writer(e):
    e.hf = None
    e.config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": IGNORED,
    }


@defect("mlx-nvfp4", "config", "config.json")
def another_mode_and_its_size(e):
    e.config["quantization"] |= {"mode": "mxfp4", "group_size": 32}


def fifth() -> list[Any]:
    """Return the defects of this file."""
    return DEFECTS[FIRST:]
