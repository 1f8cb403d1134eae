"""A third set of defects, modelled on public threads and written by somebody who had not read the checks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import checkpoints_corpus as corpus
from checkpoints_defects import DOWN, GATE, UP, K, Q, defect, edit, retype, shard_path
from checkpoints_unseen import DEFECTS

EXPERT = "model.layers.0.mlp.experts.2"
V = "model.layers.1.self_attn.v_proj"
FIRST = len(DEFECTS)


def halve(e: Any, name: str) -> None:
    e.put(name, "F32", e.array(name) * np.float32(0.5))


def change_header(e: Any, number: int, change: Any) -> None:
    """Change the JSON header of a shard; its length stays, by spaces."""

    def act(folder: Any) -> None:
        path = shard_path(folder, number)
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header, separators=(",", ":")).encode()
        path.write_bytes(data[:8] + text.ljust(size) + data[8 + size :])

    e.after.append(act)


# Sets that share a scale: vllm 54974, 55073, NeMo-RL 2983, TensorRT-LLM 18772


@defect("modelopt-nvfp4-experts", "fused-global-scale", f"{EXPERT}.gate_proj.weight_scale_2")
def one_pair_of_one_expert(e):
    halve(e, f"{EXPERT}.gate_proj.weight_scale_2")


@defect("modelopt-nvfp4", "fused-global-scale", f"{V}.input_scale")
def the_input_scale_of_v(e):
    halve(e, f"{V}.input_scale")


@defect("compressed-nvfp4", "fused-global-scale", f"{K}.weight_global_scale")
def the_divisor_of_k(e):
    name = f"{K}.weight_global_scale"
    e.put(name, "F32", e.array(name) * np.float32(1.25))


# Numbers of tensors: sglang 40243, Model-Connect 390, vllm 54189


@defect("modelopt-nvfp4-kv", "kv-scale", "k_scale")
def a_negative_key_scale(e):
    name = "model.layers.0.self_attn.k_proj.k_scale"
    e.put(name, "F32", -e.array(name))


@defect("modelopt-nvfp4-kv", "kv-scale", "v_scale")
def a_value_scale_of_zero(e):
    e.put("model.layers.0.self_attn.v_proj.v_scale", "F32", 0.0)


@defect("modelopt-nvfp4", "input-scale", f"{DOWN}.input_scale")
def an_input_scale_of_nan(e):
    e.put(f"{DOWN}.input_scale", "F32", np.nan)


@defect("modelopt-nvfp4", "global-scale-value", f"{DOWN}.weight_scale_2")
def a_global_scale_of_nan(e):
    e.put(f"{DOWN}.weight_scale_2", "F32", np.nan)


@defect("torchao-nvfp4", "global-scale-value", f"{DOWN}._weight_per_tensor_scale")
def a_tensor_scale_of_zero(e):
    e.put(f"{DOWN}._weight_per_tensor_scale", "F32", 0.0)


@defect("gguf-nvfp4", "global-scale-value", "blk.0.ffn_up.scale")
def an_infinite_sidecar(e):
    e.put("blk.0.ffn_up.scale", "F32", e.array("blk.0.ffn_up.scale") * np.float32(np.inf))


@defect("modelopt-fp8", "scale-zero", f"{UP}.weight_scale")
def a_tensor_scale_of_zero_in_fp8(e):
    e.put(f"{UP}.weight_scale", "F32", 0.0)


@defect("deepseek-fp8", "scale-zero", f"{UP}.weight_scale_inv")
def a_square_of_zero(e):
    edit(e, f"{UP}.weight_scale_inv", lambda a: a.__setitem__((-1, -1), 0))


@defect("modelopt-fp8", "scale-negative", f"{DOWN}.weight_scale")
def a_negative_tensor_scale(e):
    e.put(f"{DOWN}.weight_scale", "F32", -e.array(f"{DOWN}.weight_scale"))


# Bytes of scales and elements


@defect("torchao-nvfp4-swizzled", "scale-nan", f"{UP}._weight_scale")
def nan_in_a_tile(e):
    edit(e, f"{UP}._weight_scale", lambda a: a.reshape(-1).__setitem__(17, 0x7F))


@defect("modelopt-nvfp4-experts", "scale-negative", f"{EXPERT}.up_proj.weight_scale")
def signs_of_a_whole_expert(e):
    edit(e, f"{EXPERT}.up_proj.weight_scale", lambda a: np.bitwise_or(a, 0x80, out=a))


@defect("comfy-nvfp4", "scale-zero", "double_blocks.2.img_attn.qkv.weight_scale")
def zeros_in_a_tile(e):
    edit(e, "double_blocks.2.img_attn.qkv.weight_scale", lambda a: a.reshape(-1).__setitem__(slice(20, 23), 0))


@defect("torchao-nvfp4-swizzled", "padding", f"{K}._weight_scale")
def a_tile_with_foreign_padding(e):
    def change(a: Any) -> None:
        outside = np.flatnonzero(corpus.tiled(np.ones((64, 8), np.uint8)).reshape(-1) == 0)
        a.reshape(-1)[outside[5:40]] = 0x51

    edit(e, f"{K}._weight_scale", change)


@defect("torchao-mxfp8", "element-nan", f"{UP}._weight_qdata")
def nan_elements_of_torchao(e):
    edit(e, f"{UP}._weight_qdata", lambda a: a.__setitem__((5, slice(3, 6)), 0x7F))


@defect("modelopt-mxfp8", "unwritten", f"{UP}.weight_scale")
def exponents_left_at_one(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.fill(127))


@defect("compressed-mxfp4", "unwritten", f"{UP}.weight_packed")
def rows_of_ones_bits(e):
    edit(e, f"{UP}.weight_packed", lambda a: a.__setitem__(slice(-16, None), 0xFF))


@defect("gpt-oss", "unwritten", "down_proj")
def the_last_expert_is_zero(e):
    for part in ("blocks", "scales"):
        edit(e, f"model.layers.1.mlp.experts.down_proj_{part}", lambda a: a.__setitem__(3, 0))


@defect("modelopt-mxfp4", "scale-value-cast", f"{UP}.weight_scale")
def exponents_cast_by_copy(e):
    retype(e, f"{UP}.weight_scale", "U8", lambda a: np.floor(2.0 ** (a.astype(float) - 127)))


@defect("gpt-oss", "scale-value-cast", "gate_up_proj_scales")
def exponents_of_experts_as_numbers(e):
    retype(e, "model.layers.0.mlp.experts.gate_up_proj_scales", "F32", lambda a: a.astype(np.float32))


@defect("compressed-nvfp4", "scale-layout", f"{UP}.weight_scale")
def tiles_in_compressed_tensors(e):
    for name in [name for name in e.tensors if name.endswith(".weight_scale") and e.array(name).shape[0] % 128 == 0]:
        retype(e, name, "F8_E4M3", corpus.tiled)


@defect("torchao-nvfp4-swizzled", "scale-layout", "_weight_scale")
def linear_but_declared_swizzled(e):
    for name in [name for name in e.tensors if name.endswith("_weight_scale")]:
        array, across = e.array(name), 4 if "down_proj" in name else 2
        parts = array.reshape(-1, across, 32, 4, 4).transpose(0, 3, 2, 1, 4)
        e.put(name, "F8_E4M3", parts.reshape(array.shape))


@defect("compressed-nvfp4", "nibble-order", ".weight_packed")
def high_nibbles_first_in_compressed_tensors(e):
    for name in [name for name in e.tensors if name.endswith(".weight_packed")]:
        retype(e, name, "U8", lambda a: a >> 4 | a << 4)


@defect("compressed-nvfp4", "scale-direction", "weight_global_scale")
def amaxes_for_divisors(e):
    for name in [name for name in e.tensors if name.endswith(".weight_global_scale")]:
        e.put(name, "F32", np.float32(2688) / e.array(name))


@defect("torchao-nvfp4", "scale-direction", f"{UP}._weight_per_tensor_scale")
def a_divisor_in_torchao(e):
    e.put(f"{UP}._weight_per_tensor_scale", "F32", 1 / e.array(f"{UP}._weight_per_tensor_scale"))


# Files: sglang 14465, vllm 53537


@defect("modelopt-nvfp4", "index", "other.safetensors")
def the_index_leaves_the_directory(e):
    def act(folder: Any) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"][f"{UP}.weight"] = "../other.safetensors"
        path.write_text(json.dumps(index))

    e.after.append(act)


@defect("modelopt-nvfp4", "header", "norm.weight", most=2)
def two_tensors_at_one_place(e):
    def change(header: Any) -> None:
        names = [name for name in header if header[name].get("shape") == [128]]
        header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]

    for name in sorted(name for name, (_, array) in e.tensors.items() if array.shape == (128,)):
        e.tensors[name] = e.tensors.pop(name)  # to the last shard
    change_header(e, 2, change)


@defect("compressed-nvfp4", "header", ".weight")
def a_shape_of_more_bytes(e):
    def change(header: Any) -> None:
        name = next(name for name in header if name.endswith(".weight"))
        header[name]["shape"][0] += 1

    change_header(e, 1, change)


@defect("modelopt-nvfp4", "truncated", "model-00002-of-00002")
def one_byte_less(e):
    e.after.append(lambda folder: shard_path(folder, 2).write_bytes(shard_path(folder, 2).read_bytes()[:-1]))


# Names, types and shapes


@defect("modelopt-nvfp4", "missing-tensor", V)
def a_module_is_not_stored(e):
    e.drop(*[name for name in e.tensors if name.startswith(f"{V}.")])


@defect("compressed-nvfp4", "missing-tensor", f"{DOWN}.weight_packed")
def elements_are_not_stored(e):
    e.drop(f"{DOWN}.weight_packed")


@defect("compressed-nvfp4", "orphan-tensor", "lm_head.weight_global_scale")
def a_divisor_of_a_plain_weight(e):
    e.put("lm_head.weight_global_scale", "F32", [1.0])


@defect("modelopt-nvfp4", "orphan-tensor", "output_quantizer._amax")
def the_amax_of_outputs(e):
    e.put("model.layers.0.self_attn.k_proj.output_quantizer._amax", "F32", 3.0)


@defect("compressed-mxfp4", "dtype", f"{UP}.weight_scale")
def signed_exponents(e):
    retype(e, f"{UP}.weight_scale", "I8", lambda a: a.view(np.int8))


@defect("mlx-nvfp4", "dtype", f"{UP}.weight")
def bytes_for_words(e):
    retype(e, f"{UP}.weight", "U8", lambda a: a.view(np.uint8))


@defect("modelopt-nvfp4", "shape", f"{K}.weight")
def heads_repeated_for_ranks(e):
    for part, dtype in (("weight", "U8"), ("weight_scale", "F8_E4M3")):
        retype(e, f"{K}.{part}", dtype, lambda a: np.concatenate([a, a]))


@defect("mlx-nvfp4", "shape", f"{UP}.scales")
def transposed_scales_of_mlx(e):
    retype(e, f"{UP}.scales", "U8", lambda a: a.T.copy())


# Declarations


@defect("compressed-nvfp4", "exclude-list", UP)
def a_pattern_that_takes_the_mlp(e):
    e.config["quantization_config"]["ignore"].append("re:.*layers.0.mlp.*")


@defect("modelopt-nvfp4", "exclude-list", "model.layers.1")
def the_name_of_a_layer(e):
    for record in (e.hf["quantization"]["exclude_modules"], e.config["quantization_config"]["ignore"]):
        record.append("model.layers.1")


@defect("modelopt-nvfp4-kv", "config", "config.json")
def the_cache_in_one_file_only(e):
    del e.config["quantization_config"]["kv_cache_scheme"]


@defect("compressed-nvfp4", "config", "config.json")
def channels_declared(e):
    e.config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"] = "channel"


@defect("deepseek-fp8", "config", "config.json")
def e5m2_declared(e):
    e.config["quantization_config"]["fmt"] = "e5m2"


@defect("modelopt-nvfp4", "config", "config.json")
def fp8_activations_declared(e):
    e.hf["quantization"]["quant_algo"] = e.config["quantization_config"]["quant_algo"] = "W4A8_NVFP4_FP8"


@defect("compressed-nvfp4", "group-size", UP)
def groups_of_32_declared(e):
    e.config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 32


# With the source


@defect("compressed-mxfp4", "element-order", f"{UP}.weight_packed", source=True)
def halves_of_blocks_in_one_byte(e):
    def change(a: Any) -> None:
        codes = np.stack((a & 15, a >> 4), -1).reshape(len(a), -1, 2, 16)
        a[:] = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(a.shape)

    edit(e, f"{UP}.weight_packed", change)


@defect("mlx-mxfp4", "row-order", f"{GATE}.weight", source=True)
def even_rows_first(e):
    for part in ("weight", "scales"):
        edit(e, f"{GATE}.{part}", lambda a: a.__setitem__(..., np.concatenate([a[::2], a[1::2]])))


@defect("compressed-mxfp8", "value-mismatch", f"{Q}.weight", source=True)
def layers_exchanged(e):
    for part in ("weight", "weight_scale"):
        a, b = f"{Q}.{part}", f"{Q.replace('layers.0', 'layers.1')}.{part}"
        e.tensors[a], e.tensors[b] = e.tensors[b], e.tensors[a]


@defect("torchao-nvfp4", "value-factor", f"{DOWN}._weight_qdata", source=True)
def twice_too_large(e):
    name = f"{DOWN}._weight_per_tensor_scale"
    e.put(name, "F32", e.array(name) * np.float32(2))


@defect("compressed-nvfp4", "bit-damage", f"{UP}.weight_packed", source=True)
def bytes_of_a_bad_disk(e):
    edit(e, f"{UP}.weight_packed", lambda a: a.__setitem__((slice(40, 44), 7), a[40:44, 7] ^ 0x44))


LAST = len(DEFECTS)


def third() -> list[Any]:
    """Return the defects of this file."""
    return DEFECTS[FIRST:LAST]
