"""Further defects, modelled on public threads and written before the linter was run on them.

The page of the corpus gives how many of them were found at first, and how many are found now.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkpoints_corpus import quantized, tiled, weight
from checkpoints_defects import DEFECTS, DOWN, GATE, UP, Q, defect, edit, retype, shard_path

FIRST = len(DEFECTS)
EXPERT = "model.layers.1.mlp.experts.2"


# Files


@defect("modelopt-nvfp4", "header", "model-00002-of-00002")
def a_pointer_instead_of_a_shard(e):
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4294967296\n"
    e.after.append(lambda folder: shard_path(folder, 2).write_bytes(text))


@defect("compressed-nvfp4", "header", "model-00001-of-00002")
def bytes_behind_the_last_tensor(e):
    e.after.append(lambda folder: shard_path(folder).write_bytes(shard_path(folder).read_bytes() + bytes(64)))


@defect("modelopt-mxfp8", "truncated", "model-00002-of-00002")
def a_download_that_stopped(e):
    e.after.append(lambda folder: shard_path(folder, 2).write_bytes(shard_path(folder, 2).read_bytes()[:-50_000]))


@defect("gguf-mxfp4", "truncated", "model.gguf")
def a_gguf_that_stopped(e):
    def change(folder):
        path = folder / "model.gguf"
        path.write_bytes(path.read_bytes()[:-3000])

    e.after.append(change)


@defect("modelopt-nvfp4", "index", "model-00003-of-00003")
def a_shard_of_another_series(e):
    def change(folder):
        path = folder / "model.safetensors.index.json"
        path.write_text(path.read_text().replace("model-00002-of-00002", "model-00003-of-00003"))

    e.after.append(change)


# Names: ollama 16527, vllm 54189 and 52501, Model-Optimizer 2038


@defect("modelopt-nvfp4", "missing-tensor", "lm_head.weight_scale_2")
def the_scale_of_the_head_is_dropped(e):
    for record in (e.hf["quantization"]["exclude_modules"], e.config["quantization_config"]["ignore"]):
        record.remove("lm_head")
    values = weight(5, e.array("lm_head.weight").shape)
    data, scales = quantized(values, "modelopt.nvfp4", np.abs(values).max())
    e.put("lm_head.weight", "U8", data)
    e.put("lm_head.weight_scale", "F8_E4M3", scales)
    e.put("lm_head.input_scale", "F32", np.float32(7 / 2688))


@defect("modelopt-nvfp4", "orphan-tensor", "_double_scale")
def an_internal_double_scale(e):
    e.put(f"{UP}.weight_quantizer._double_scale", "F32", 1.0)
    e.put(f"{UP}.weight_quantizer._scale", "F8_E4M3", np.full((256, 8), 0x40))


@defect("modelopt-nvfp4-experts", "missing-tensor", f"{EXPERT}.down_proj.weight_scale")
def the_scales_of_one_expert(e):
    e.drop(f"{EXPERT}.down_proj.weight_scale")


@defect("deepseek-fp8-ue8m0", "missing-tensor", f"{DOWN}.weight_scale_inv")
def one_square_scale_less(e):
    e.drop(f"{DOWN}.weight_scale_inv")


# Types and shapes


@defect("compressed-nvfp4", "shape", f"{UP}.weight_packed")
def packed_and_transposed(e):
    retype(e, f"{UP}.weight_packed", "U8", lambda a: a.T.copy())


@defect("modelopt-fp8", "dtype", f"{UP}.weight")
def signed_bytes_for_fp8(e):
    retype(e, f"{UP}.weight", "I8", lambda a: a.view(np.int8))


@defect("compressed-nvfp4", "dtype", f"{UP}.weight_global_scale")
def a_global_scale_of_eight_bits(e):
    e.put(f"{UP}.weight_global_scale", "F8_E4M3", [0x7E])


@defect("gpt-oss", "shape", "gate_up_proj_scales")
def scales_of_experts_transposed(e):
    retype(e, "model.layers.0.mlp.experts.gate_up_proj_scales", "U8", lambda a: a.transpose(0, 2, 1).copy())


@defect("modelopt-mxfp8", "group-size", f"{UP}.weight_scale")
def blocks_of_64(e):
    retype(e, f"{UP}.weight_scale", "U8", lambda a: a[:, ::2].copy())


@defect("comfy-nvfp4", "scale-layout", "double_blocks.0.img_attn.qkv.weight_scale")
def scales_without_tiles(e):
    name = "double_blocks.0.img_attn.qkv.weight_scale"
    tiles = e.array(name).reshape(1, 2, 32, 4, 4)  # 128 x 8 in tiles of 128 x 4: rows 32, 4, then columns
    e.put(name, "F8_E4M3", tiles.transpose(0, 3, 2, 1, 4).reshape(128, 8)[:48, :7])


@defect("torchao-nvfp4", "scale-layout", "_weight_scale")
def swizzled_but_declared_linear(e):
    for name in [name for name in e.tensors if name.endswith("_weight_scale") and e.array(name).shape[0] % 128 == 0]:
        retype(e, name, "F8_E4M3", tiled)


# Declarations: ROCmFPX 79, sglang 40022, prismaquant 26


@defect("compressed-nvfp4", "config", "config.json")
def two_groups_take_one_module(e):
    record = e.config["quantization_config"]
    record["format"] = "mixed-precision"
    other = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    group = {"format": "float-quantized", "targets": ["re:.*layers.1.*"], "weights": other, "input_activations": None}
    record["config_groups"] = {"group_0": group, "group_1": record["config_groups"]["group_0"]}


@defect("compressed-mxfp4", "config", "config.json")
def eight_bits_declared(e):
    e.config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 8


@defect("mlx-nvfp4", "config", "")
def another_mode(e):
    e.config["quantization"]["mode"] = "affine"


@defect("comfy-nvfp4", "config", "double_blocks.1.img_attn.qkv")
def another_format_of_a_layer(e):
    text = e.metadata["_quantization_metadata"]
    e.metadata["_quantization_metadata"] = text.replace(
        '"double_blocks.1.img_attn.qkv": {"format": "nvfp4"}',
        '"double_blocks.1.img_attn.qkv": {"format": "float8_e4m3fn"}',
    )


@defect("modelopt-nvfp4", "exclude-list", "model.layers.1")
def a_layer_is_excluded_that_is_quantized(e):
    for record in (e.hf["quantization"]["exclude_modules"], e.config["quantization_config"]["ignore"]):
        record.append("model.layers.1.*")


@defect("modelopt-nvfp4-experts", "exclude-list", "mlp.gate")
def the_router_is_not_excluded(e):
    for record in (e.hf["quantization"]["exclude_modules"], e.config["quantization_config"]["ignore"]):
        record.remove("model.layers.1.mlp.gate")


# Scales of tensors: vllm 54974, sglang 40243, ATOM 2292, compressed-tensors 315


@defect("modelopt-nvfp4-experts", "fused-global-scale", f"{EXPERT}.up_proj.weight_scale_2")
def gate_and_up_of_experts_differ(e):
    for layer in range(2):
        for expert in range(4):
            name = f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight_scale_2"
            e.put(name, "F32", e.array(name) / np.float32(1 + expert))


@defect("modelopt-nvfp4", "global-scale-value", f"{DOWN}.weight_scale_2")
def a_global_scale_of_fresh_memory(e):
    e.put(f"{DOWN}.weight_scale_2", "F32", 1.4e-43)


@defect("compressed-nvfp4", "global-scale-value", f"{DOWN}.weight_global_scale")
def a_negative_global_scale(e):
    e.put(f"{DOWN}.weight_global_scale", "F32", -e.array(f"{DOWN}.weight_global_scale"))


@defect("compressed-nvfp4", "input-scale", f"{DOWN}.input_global_scale")
def an_infinite_input_scale(e):
    e.put(f"{DOWN}.input_global_scale", "F32", [np.inf])


@defect("modelopt-nvfp4-kv", "kv-scale", "v_scale")
def an_infinite_value_scale(e):
    e.put("model.layers.0.self_attn.v_proj.v_scale", "F32", np.inf)


@defect("modelopt-nvfp4-kv", "kv-scale", "k_scale")
def no_cache_scales_at_all(e):
    e.drop(*[name for name in e.tensors if name.endswith(("k_scale", "v_scale"))])


@defect("gguf-nvfp4", "scale-direction", ".scale")
def divisors_in_gguf(e):
    for name in [name for name in e.tensors if name.endswith(".scale")]:
        e.put(name, "F32", 1 / e.array(name))


# Bytes: sglang 29151, vllm 53537, sglang 26701


@defect("gguf-nvfp4", "scale-negative", "blk.0.ffn_up.weight")
def a_sign_in_gguf(e):
    def change(a):
        a[3, 1] |= 0x80
        a[5, 38] |= 0x80

    edit(e, "blk.0.ffn_up.weight", change)


@defect("gguf-mxfp4", "scale-nan", "blk.1.attn_q.weight")
def an_exponent_of_255_in_gguf(e):
    edit(e, "blk.1.attn_q.weight", lambda a: a.__setitem__((7, 17), 0xFF))


@defect("modelopt-nvfp4-experts", "unwritten", f"{EXPERT}.up_proj.weight")
def an_expert_of_zeros(e):
    for part in ("weight", "weight_scale"):
        edit(e, f"{EXPERT}.up_proj.{part}", lambda a: a.fill(0))


@defect("compressed-nvfp4", "unwritten", f"{UP}.weight_packed")
def a_page_of_zeros(e):
    edit(e, f"{UP}.weight_packed", lambda a: a.reshape(-1).__setitem__(slice(4096, 8192), 0))


@defect("modelopt-mxfp8", "unwritten", f"{UP}.weight")
def a_page_of_zeros_in_fp8(e):
    edit(e, f"{UP}.weight", lambda a: a.reshape(-1).__setitem__(slice(8192, 12288), 0))


@defect("deepseek-fp8", "element-nan", f"{UP}.weight")
def nan_elements_of_a_square(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__((slice(100, 104), slice(30, 34)), 0xFF))


@defect("gpt-oss", "scale-value-cast", "down_proj_scales")
def exponents_of_experts_rounded(e):
    retype(e, "model.layers.1.mlp.experts.down_proj_scales", "U8", lambda a: (a * 0).astype(np.uint8))


@defect("torchao-mxfp8", "scale-nan", f"{UP}._weight_scale")
def nan_exponents_of_torchao(e):
    edit(e, f"{UP}._weight_scale", lambda a: a.__setitem__((slice(2, 4), 0), 0xFF))


@defect("compressed-mxfp8", "bit-damage", f"{UP}.weight_scale")
def a_flipped_bit_of_an_exponent(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__((70, 3), a[70, 3] ^ 0x20))


# With the source: sglang 27204, 26701, llama.cpp 21095, Model-Optimizer 1372


@defect("modelopt-nvfp4", "row-order", f"{Q}.weight", source=True)
def heads_permuted_for_rope(e):
    order = np.arange(128).reshape(4, 2, 16).transpose(0, 2, 1).ravel()
    for part in ("weight", "weight_scale"):
        edit(e, f"{Q}.{part}", lambda a: a.__setitem__(..., a[order]))


@defect("modelopt-nvfp4", "value-factor", f"{UP}.weight", source=True)
def six_times_too_large(e):
    for part in (UP, GATE):
        e.put(f"{part}.weight_scale_2", "F32", e.array(f"{part}.weight_scale_2") * np.float32(6))


@defect("modelopt-nvfp4", "value-mismatch", f"{UP}.weight", source=True)
def gate_and_up_exchanged(e):
    for part in ("weight", "weight_scale"):
        a, b = f"{UP}.{part}", f"{GATE}.{part}"
        e.tensors[a], e.tensors[b] = e.tensors[b], e.tensors[a]


@defect("compressed-mxfp4", "value-factor", f"{UP}.weight_packed", source=True)
def exponents_one_too_large(e):
    edit(e, f"{UP}.weight_scale", lambda a: np.add(a, 1, out=a))


@defect("mlx-mxfp8", "element-order", f"{UP}.weight", source=True)
def words_of_fp8_reversed(e):
    edit(e, f"{UP}.weight", lambda a: a.byteswap(inplace=True))


@defect("compressed-mxfp8", "bit-damage", f"{UP}.weight", source=True)
def a_few_flipped_bytes(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__((slice(9, 12), 5), a[9:12, 5] ^ 0x40))


@defect("torchao-nvfp4", "row-order", f"{UP}._weight_qdata", source=True)
def halves_exchanged(e):
    for part in ("_weight_qdata", "_weight_scale"):
        edit(e, f"{UP}.{part}", lambda a: a.__setitem__(..., np.roll(a, 128, 0)))


@defect("modelopt-mxfp4", "bit-damage", "model.layers.0.input_layernorm.weight", source=True)
def a_flipped_bit_of_a_norm(e):
    edit(e, "model.layers.0.input_layernorm.weight", lambda a: a.__setitem__(5, a[5] ^ 0x4000))


LAST = len(DEFECTS)


def unseen() -> list[Any]:
    """Return the defects of this file."""
    return DEFECTS[FIRST:LAST]
