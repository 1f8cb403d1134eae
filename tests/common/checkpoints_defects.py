"""Defects of checkpoints, each modelled on a public thread: a base, a change, and the code that must be found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import checkpoints_corpus as corpus

UP = "model.layers.0.mlp.up_proj"
GATE = "model.layers.0.mlp.gate_proj"
DOWN = "model.layers.1.mlp.down_proj"
Q = "model.layers.0.self_attn.q_proj"
K = "model.layers.1.self_attn.k_proj"


@dataclass(frozen=True)
class Defect:
    """code, tensor: what must be found, and a name that must be in it. most: findings that are allowed."""

    name: str
    base: str
    code: str
    tensor: str
    change: Callable[[Any], None]
    source: bool = False
    most: int = 1

    def options(self, folder: Path, corpus: Any) -> dict[str, Any]:
        return {"source": corpus.source().write(folder / "source")} if self.source else {}


DEFECTS: list[Defect] = []


def defect(base: str, code: str, tensor: str, **more: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def add(change: Callable[[Any], None]) -> Callable[[Any], None]:
        DEFECTS.append(Defect(f"{code}:{change.__name__}", base, code, tensor, change, **more))
        return change

    return add


def retype(e: Any, name: str, dtype: str, convert: Callable[[np.ndarray], np.ndarray]) -> None:
    e.put(name, dtype, convert(e.array(name)))


def shard_path(folder: Path, number: int = 1) -> Path:
    return folder / f"model-{number:05}-of-00002.safetensors"


def change_index(folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
    """Change the entries of an index."""
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


# Files


@defect("modelopt-nvfp4", "index", "model-00002-of-00002")
def a_shard_is_gone(e):
    e.after.append(lambda folder: shard_path(folder, 2).unlink())


@defect("modelopt-nvfp4", "index", "model-00002-of-00002")
def a_shard_and_the_index_are_gone(e):
    e.after += [lambda folder: shard_path(folder, 2).unlink()]
    e.after += [lambda folder: (folder / "model.safetensors.index.json").unlink()]


@defect("compressed-nvfp4", "index", UP)
def the_index_names_a_tensor_twice_elsewhere(e):
    def change(folder):
        def move(entries):
            other = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
            (entries[f"{UP}.weight_scale"],) = other - {entries[f"{UP}.weight_scale"]}

        change_index(folder, move)

    e.after.append(change)


@defect("compressed-nvfp4", "index", "model.layers.9")
def the_index_names_a_tensor_that_no_shard_has(e):
    def change(folder):
        change_index(folder, lambda entries: entries.update({"model.layers.9.x": "model-00001-of-00002.safetensors"}))

    e.after.append(change)


@defect("modelopt-nvfp4", "duplicate-tensor", "weight")
def a_tensor_is_in_two_shards(e):
    def change(folder):
        names = [*e.tensors]
        twice = next(name for name in names if name.endswith("weight"))
        part = {name: e.tensors[name] for name in [*names[len(names) // 2 :], twice]}
        shard_path(folder, 2).write_bytes(corpus.safetensors_bytes(part, {}))

    e.after.append(change)


# Names


@defect("modelopt-nvfp4", "missing-tensor", f"{UP}.weight_scale")
def no_block_scale(e):
    e.drop(f"{UP}.weight_scale")


@defect("modelopt-nvfp4", "missing-tensor", f"{UP}.weight_scale_2")
def no_global_scale(e):
    e.drop(f"{UP}.weight_scale_2")


@defect("modelopt-nvfp4", "missing-tensor", f"{DOWN}.weight")
def no_weight(e):
    e.drop(f"{DOWN}.weight")


@defect("modelopt-nvfp4-experts", "missing-tensor", "experts.3.up_proj.input_scale")
def an_expert_that_calibration_never_reached(e):
    for name in ("gate_proj", "up_proj", "down_proj"):
        e.drop(f"model.layers.1.mlp.experts.3.{name}.input_scale")


@defect("modelopt-nvfp4-experts", "missing-tensor", "experts.2.")
def no_expert(e):
    e.drop(*[name for name in e.tensors if "layers.0.mlp.experts.2." in name])


@defect("compressed-nvfp4", "missing-tensor", f"{Q}.input_global_scale")
def no_input_scale(e):
    e.drop(f"{Q}.input_global_scale")


@defect("compressed-mxfp4", "missing-tensor", f"{UP}.weight_scale")
def no_mx_scale(e):
    e.drop(f"{UP}.weight_scale")


@defect("torchao-nvfp4", "missing-tensor", f"{UP}._weight_per_tensor_scale")
def listed_but_not_stored(e):
    e.drop(f"{UP}._weight_per_tensor_scale")


@defect("gpt-oss", "missing-tensor", "down_proj_scales")
def no_scales_of_experts(e):
    e.drop("model.layers.1.mlp.experts.down_proj_scales")


@defect("mlx-nvfp4", "missing-tensor", f"{UP}.scales")
def no_scales(e):
    e.drop(f"{UP}.scales")


@defect("deepseek-fp8", "missing-tensor", f"{UP}.weight_scale_inv")
def no_inverse(e):
    e.drop(f"{UP}.weight_scale_inv")


@defect("modelopt-nvfp4", "orphan-tensor", "weight_quantizer._amax")
def the_state_of_a_quantizer(e):
    e.put(f"{UP}.weight_quantizer._amax", "F32", 1.0)
    e.put(f"{Q}.input_quantizer._amax", "F32", 1.0)


@defect("modelopt-nvfp4", "orphan-tensor", "o_gate.weight_scale")
def a_scale_without_weight(e):
    e.put("model.layers.0.mlp.o_gate.weight_scale", "F8_E4M3", np.full((8, 8), 0x40))


@defect("compressed-nvfp4", "orphan-tensor", "lm_head.weight_scale")
def a_scale_of_a_plain_weight(e):
    e.put("lm_head.weight_scale", "F8_E4M3", np.full((256, 8), 0x40))


@defect("gguf-nvfp4", "orphan-tensor", "blk.0.ffn_up.weight.scale")
def the_other_sidecar_name(e):
    e.tensors["blk.0.ffn_up.weight.scale"] = e.tensors.pop("blk.0.ffn_up.scale")


# Types and shapes


@defect("modelopt-nvfp4", "dtype", f"{UP}.weight_scale")
def scales_as_bytes(e):
    retype(e, f"{UP}.weight_scale", "U8", lambda a: a)


@defect("modelopt-nvfp4", "dtype", f"{UP}.weight_scale")
def scales_as_floats(e):
    retype(e, f"{UP}.weight_scale", "F32", lambda a: a.astype(np.float32))


@defect("modelopt-nvfp4", "dtype", f"{UP}.weight_scale_2")
def half_a_global_scale(e):
    retype(e, f"{UP}.weight_scale_2", "BF16", lambda a: np.uint16(0x3A00))


@defect("modelopt-nvfp4", "dtype", f"{UP}.weight")
def a_weight_in_bfloat16(e):
    retype(e, f"{UP}.weight", "BF16", lambda a: np.zeros((256, 128)))


@defect("torchao-mxfp8", "dtype", f"{UP}._weight_qdata")
def elements_as_bytes(e):
    retype(e, f"{UP}._weight_qdata", "U8", lambda a: a)


@defect("modelopt-nvfp4", "shape", f"{UP}.weight_scale")
def scales_of_another_height(e):
    retype(e, f"{UP}.weight_scale", "F8_E4M3", lambda a: a[:-8])


@defect("modelopt-nvfp4", "shape", f"{UP}.weight_scale")
def transposed_scales(e):
    retype(e, f"{UP}.weight_scale", "F8_E4M3", lambda a: a.T.copy())


@defect("modelopt-nvfp4", "shape", f"{UP}.weight_scale_2")
def a_vector_for_a_scalar(e):
    e.put(f"{UP}.weight_scale_2", "F32", np.full(3, 0.001))


@defect("gpt-oss", "shape", "down_proj_blocks")
def too_few_experts(e):
    for part in ("blocks", "scales"):
        retype(e, f"model.layers.0.mlp.experts.down_proj_{part}", "U8", lambda a: a[:3].copy())


@defect("modelopt-nvfp4", "scale-layout", f"{UP}.weight_scale")
def one_dimension_of_tiles(e):
    retype(e, f"{UP}.weight_scale", "U8", np.ravel)


@defect("modelopt-nvfp4", "scale-layout", f"{K}.weight_scale")
def padded_to_tiles(e):
    retype(e, f"{K}.weight_scale", "F8_E4M3", lambda a: np.concatenate([a, np.zeros((64, 8), np.uint8)]))


@defect("modelopt-nvfp4", "group-size", "hf_quant_config.json")
def declared_32(e):
    e.hf["quantization"]["group_size"] = 32


@defect("compressed-mxfp4", "group-size", UP, most=1)
def declared_16(e):
    e.config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 16


@defect("mlx-nvfp4", "group-size", UP)
def mlx_declares_32(e):
    e.config["quantization"]["group_size"] = 32


@defect("torchao-nvfp4", "group-size", UP)
def metadata_declares_32(e):
    e.metadata = {name: text.replace('"block_size": 16', '"block_size": 32') for name, text in e.metadata.items()}


@defect("deepseek-fp8", "group-size", UP)
def blocks_of_64_declared(e):
    e.config["quantization_config"]["weight_block_size"] = [64, 64]


# Declarations


@defect("modelopt-nvfp4", "config", "hf_quant_config.json")
def declared_as_fp8(e):
    e.hf["quantization"]["quant_algo"] = "FP8"
    e.config["quantization_config"]["quant_algo"] = "FP8"
    del e.config["quantization_config"]["config_groups"]


@defect("modelopt-nvfp4", "config", "config.json")
def two_algorithms(e):
    e.config["quantization_config"]["quant_algo"] = "FP8"


@defect("compressed-nvfp4", "config", "config.json")
def another_format(e):
    record = e.config["quantization_config"]
    record["format"] = record["config_groups"]["group_0"]["format"] = "mxfp4-pack-quantized"


@defect("compressed-nvfp4", "config", "config.json")
def integers_declared(e):
    e.config["quantization_config"]["config_groups"]["group_0"]["weights"]["type"] = "int"


@defect("compressed-nvfp4", "config", "config.json")
def another_method(e):
    e.config["quantization_config"]["quant_method"] = "fp8"


@defect("compressed-nvfp4", "config", "config.json")
def nothing_declared(e):
    del e.config["quantization_config"]


@defect("torchao-nvfp4", "config", UP)
def another_type_in_metadata(e):
    name = f"{UP}.weight"
    e.metadata[name] = e.metadata[name].replace("NVFP4Tensor", "MXTensor")


@defect("modelopt-nvfp4-kv", "config", "config.json")
def cache_scales_that_nobody_declares(e):
    e.hf["quantization"]["kv_cache_quant_algo"] = None
    del e.config["quantization_config"]["kv_cache_scheme"]


@defect("modelopt-nvfp4", "exclude-list", "lm_head")
def lm_head_is_not_excluded(e):
    e.hf["quantization"]["exclude_modules"].remove("lm_head")
    e.config["quantization_config"]["ignore"].remove("lm_head")


@defect("modelopt-nvfp4", "exclude-list", UP)
def a_quantized_module_is_excluded(e):
    e.hf["quantization"]["exclude_modules"].append("model.layers.0.mlp*")
    e.config["quantization_config"]["ignore"].append("model.layers.0.mlp*")


@defect("modelopt-nvfp4", "exclude-list", GATE)
def gate_swallows_gate_up(e):
    e.hf["quantization"]["exclude_modules"].append("model.layers.0.mlp.gate")
    e.config["quantization_config"]["ignore"].append("model.layers.0.mlp.gate")


@defect("compressed-nvfp4", "exclude-list", "lm_head")
def nothing_is_ignored(e):
    e.config["quantization_config"]["ignore"] = []


# Scales of tensors


@defect("modelopt-nvfp4", "global-scale-value", f"{DOWN}.weight_scale_2")
def zero_global(e):
    e.put(f"{DOWN}.weight_scale_2", "F32", 0.0)


@defect("compressed-nvfp4", "global-scale-value", f"{DOWN}.weight_global_scale")
def infinite_global(e):
    e.put(f"{DOWN}.weight_global_scale", "F32", [np.inf])


@defect("modelopt-nvfp4", "fused-global-scale", f"{UP}.weight_scale_2")
def gate_and_up_differ(e):
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.up_proj.weight_scale_2"
        e.put(name, "F32", e.array(name) * np.float32(1.5))


@defect("compressed-nvfp4", "fused-global-scale", f"{Q}.input_global_scale")
def inputs_differ(e):
    e.put(f"{Q}.input_global_scale", "F32", e.array(f"{Q}.input_global_scale") * np.float32(1.25))


@defect("modelopt-nvfp4", "input-scale", f"{DOWN}.input_scale")
def zero_input(e):
    e.put(f"{DOWN}.input_scale", "F32", 0.0)


@defect("modelopt-nvfp4", "input-scale", f"{DOWN}.input_scale")
def input_never_set(e):
    e.put(f"{DOWN}.input_scale", "F32", 1.0)


@defect("modelopt-nvfp4", "input-scale", f"{DOWN}.input_scale")
def input_from_fresh_memory(e):
    e.put(f"{DOWN}.input_scale", "F32", 3e-41)


@defect("modelopt-nvfp4-kv", "kv-scale", "v_scale")
def no_value_scale(e):
    e.drop("model.layers.1.self_attn.v_proj.v_scale")


@defect("modelopt-nvfp4-kv", "kv-scale", "k_scale")
def a_vector_of_key_scales(e):
    e.put("model.layers.1.self_attn.k_proj.k_scale", "F32", np.full(2, 0.1))


@defect("modelopt-nvfp4-kv", "kv-scale", "k_scale")
def nan_key_scale(e):
    e.put("model.layers.1.self_attn.k_proj.k_scale", "F32", np.nan)


# Bytes of scales


def edit(e: Any, name: str, change: Callable[[np.ndarray], Any]) -> None:
    """Change an array in place."""
    array = e.array(name).copy()
    change(array)
    e.tensors[name] = e.tensors[name][0], array


@defect("modelopt-nvfp4", "scale-nan", f"{UP}.weight_scale")
def nan_in_a_scale(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__((3, 2), 0x7F))


@defect("compressed-mxfp4", "scale-nan", f"{UP}.weight_scale")
def nan_exponent(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__((3, 2), 0xFF))


@defect("modelopt-fp8", "scale-nan", f"{UP}.weight_scale")
def nan_tensor_scale(e):
    e.put(f"{UP}.weight_scale", "F32", np.nan)


@defect("compressed-nvfp4", "scale-negative", f"{UP}.weight_scale")
def negative_scales(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__((slice(3, 6), 1), a[3:6, 1] | 0x80))


@defect("deepseek-fp8", "scale-negative", f"{UP}.weight_scale_inv")
def negative_square(e):
    edit(e, f"{UP}.weight_scale_inv", lambda a: a.__setitem__((0, 0), -a[0, 0]))


@defect("modelopt-nvfp4", "scale-zero", f"{UP}.weight_scale")
def zero_scales(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__((slice(3, 9), 1), 0))


@defect("torchao-nvfp4", "scale-zero", f"{UP}._weight_scale")
def one_zero_scale(e):
    edit(e, f"{UP}._weight_scale", lambda a: a.__setitem__((8, 1), 0))


@defect("compressed-mxfp4", "scale-value-cast", f"{UP}.weight_scale")
def exponents_as_numbers(e):
    retype(e, f"{UP}.weight_scale", "F32", lambda a: a.astype(np.float32))


@defect("compressed-mxfp8", "scale-value-cast", f"{UP}.weight_scale")
def numbers_rounded_to_bytes(e):
    retype(e, f"{UP}.weight_scale", "U8", lambda a: (2.0 ** (a.astype(float) - 127)).astype(np.uint8))


@defect("deepseek-fp8-ue8m0", "scale-value-cast", f"{UP}.weight_scale_inv")
def squares_rounded_to_bytes(e):
    retype(e, f"{UP}.weight_scale_inv", "U8", lambda a: a * 0)


@defect("deepseek-fp8", "scale-value-cast", f"{UP}.weight_scale_inv")
def squares_as_numbers(e):
    retype(e, f"{UP}.weight_scale_inv", "F32", lambda a: np.ceil(np.log2(a)) + 127)


@defect("compressed-mxfp4", "dtype", f"{UP}.weight_scale")
def exponents_as_powers(e):
    retype(e, f"{UP}.weight_scale", "F32", lambda a: 2.0 ** (a.astype(np.float32) - 127))


@defect("modelopt-nvfp4", "scale-layout", f"{Q}.weight_scale")
def tiles_read_as_rows(e):
    for name in [
        name for name in e.tensors if name.endswith(".weight_scale") and "k_proj" not in name and "v_proj" not in name
    ]:
        retype(e, name, "F8_E4M3", corpus.tiled)


@defect("comfy-nvfp4", "scale-layout", "double_blocks.1.img_attn.qkv.weight_scale")
def rows_read_as_tiles(e):
    for index in (1, 2):
        name = f"double_blocks.{index}.img_attn.qkv.weight_scale"
        array = e.array(name)
        high, wide = array.shape
        parts = array.reshape(high // 128, wide // 4, 32, 4, 4).transpose(0, 3, 2, 1, 4)
        retype(e, name, "F8_E4M3", lambda a, parts=parts: np.ascontiguousarray(parts).reshape(a.shape))


# Regions


@defect("modelopt-nvfp4", "unwritten", f"{UP}.weight")
def rows_of_zeros(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__(slice(200, None), 0))
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__(slice(200, None), 0))


@defect("modelopt-nvfp4", "unwritten", f"{UP}.weight_scale")
def rows_of_zero_scales(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__(slice(128, None), 0))


@defect("compressed-nvfp4", "unwritten", f"{UP}.weight_scale")
def scales_of_foreign_memory(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__(slice(60, 70), 0x4D))


@defect("compressed-nvfp4", "unwritten", f"{UP}.weight")
def elements_never_written(e):
    edit(e, f"{UP}.weight_packed", lambda a: a.__setitem__(slice(60, 70), 0))


@defect("compressed-mxfp4", "unwritten", f"{UP}.weight_scale")
def exponents_of_foreign_memory(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__(slice(60, 70), 0xCD))


@defect("gpt-oss", "unwritten", "gate_up_proj")
def an_expert_never_written(e):
    for part in ("blocks", "scales"):
        edit(e, f"model.layers.0.mlp.experts.gate_up_proj_{part}", lambda a: a.__setitem__(2, 0))


@defect("modelopt-nvfp4", "unwritten", f"{UP}.weight_scale")
def scales_left_at_one(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.fill(0x38))


@defect("modelopt-mxfp8", "unwritten", f"{UP}.weight")
def elements_of_foreign_memory(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__(slice(60, 70), 0x4D))


@defect("compressed-mxfp4", "bit-damage", f"{UP}.weight_scale")
def a_flipped_exponent(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__((7, 1), a[7, 1] ^ 0x40))


@defect("modelopt-nvfp4", "bit-damage", f"{UP}.weight")
def a_flipped_element(e):
    def change(a):
        codes = np.stack([a & 15, a >> 4], -1).reshape(256, 8, 16)
        block = next(index for index in range(8) if (codes[9, index] & 7 == 7).sum() == 1)
        codes[9, block][codes[9, block] & 7 == 7] ^= 4
        flat = codes.reshape(256, -1)
        a[...] = flat[:, 0::2] | flat[:, 1::2] << 4

    edit(e, f"{UP}.weight", change)


# Elements


@defect("modelopt-nvfp4", "saturation", f"{UP}.weight")
def scales_of_half_the_size(e):
    import ml_dtypes

    halves = e.array(f"{UP}.weight_scale") - 8
    e.put(f"{UP}.weight_scale", "F8_E4M3", halves)
    factors = halves.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * e.array(f"{UP}.weight_scale_2")
    scaled = corpus.model()[UP] / np.repeat(factors, 16, 1)
    codes = np.searchsorted(np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]), np.abs(scaled)).astype(np.uint8)
    codes |= np.signbit(scaled).astype(np.uint8) << 3
    e.put(f"{UP}.weight", "U8", codes[:, 0::2] | codes[:, 1::2] << 4)


@defect("modelopt-nvfp4", "range-unused", f"{UP}.weight")
def scales_of_twice_the_size(e):
    def change(a):
        half = np.uint8([0, 0, 1, 2, 2, 3, 4, 5])
        low, high = half[a & 7] | a & 8, half[a >> 4 & 7] | a >> 4 & 8
        a[...] = low | high << 4

    edit(e, f"{UP}.weight", change)


@defect("modelopt-nvfp4", "code-histogram", f"{UP}.weight")
def two_s_complement(e):
    rng = np.random.default_rng(5)
    codes = (np.clip(np.round(rng.normal(0, 2.5, (256, 128))), -8, 7).astype(int) & 15).astype(np.uint8)
    e.put(f"{UP}.weight", "U8", codes[:, 0::2] | codes[:, 1::2] << 4)


@defect("compressed-mxfp4", "code-histogram", f"{UP}.weight_packed")
def signs_lost(e):
    edit(e, f"{UP}.weight_packed", lambda a: np.bitwise_and(a, 0x77, out=a))


@defect("modelopt-fp8", "code-histogram", f"{UP}.weight")
def integers_in_fp8(e):
    rng = np.random.default_rng(5)
    e.put(f"{UP}.weight", "F8_E4M3", rng.normal(0, 30, (256, 128)).astype(np.int8).view(np.uint8))


@defect("modelopt-mxfp8", "element-nan", f"{UP}.weight")
def nan_elements(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__((3, slice(4)), 0x7F))


@defect("comfy-nvfp4", "padding", "double_blocks.0.img_attn.qkv.weight_scale")
def poisoned_padding(e):
    outside = corpus.tiled(np.ones((48, 7), np.uint8)) == 0  # rows and blocks of the tiles that no element has
    edit(e, "double_blocks.0.img_attn.qkv.weight_scale", lambda a: a.__setitem__(outside, 0x38))


@defect("comfy-nvfp4", "padding", "double_blocks.0.img_attn.qkv.weight")
def rows_below_the_bias(e):
    edit(e, "double_blocks.0.img_attn.qkv.weight", lambda a: a.__setitem__(slice(44, None), 0x21))


@defect("mlx-nvfp4", "producer-bytes", f"{UP}.weight")
def minus_zero_by_mlx(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__((0, 0), a[0, 0] & 0xFFFFFFF0 | 8))


@defect("modelopt-mxfp4", "producer-bytes", f"{UP}.weight")
def plus_zero_by_modelopt(e):
    edit(e, f"{UP}.weight", lambda a: a.__setitem__((5, slice(0, 16)), 0))
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__((5, 0), 0))


# Directions


@defect("modelopt-nvfp4", "scale-direction", f"{UP}.weight_scale_2")
def a_divisor_for_a_multiplier(e):
    for name in [name for name in e.tensors if name.endswith(".weight_scale_2")]:
        e.put(name, "F32", 1 / e.array(name))


@defect("modelopt-nvfp4", "scale-direction", f"{UP}.weight_scale_2")
def the_amax_for_a_multiplier(e):
    for name in [name for name in e.tensors if name.endswith(".weight_scale_2")]:
        e.put(name, "F32", 2688 * e.array(name))


@defect("compressed-nvfp4", "scale-direction", f"{UP}.weight_global_scale")
def a_multiplier_for_a_divisor(e):
    for member in ("gate_proj", "up_proj"):
        name = f"model.layers.0.mlp.{member}.weight_global_scale"
        e.put(name, "F32", 1 / e.array(name))


@defect("compressed-nvfp4", "scale-direction", f"{UP}.weight_global_scale")
def one_multiplier_for_a_divisor(e):
    e.put(f"{UP}.weight_global_scale", "F32", 1 / e.array(f"{UP}.weight_global_scale"))


@defect("comfy-nvfp4", "scale-direction", "double_blocks.1.img_attn.qkv.weight_scale_2")
def a_divisor_in_comfy(e):
    for index in range(3):
        name = f"double_blocks.{index}.img_attn.qkv.weight_scale_2"
        e.put(name, "F32", 1 / e.array(name))


@defect("deepseek-fp8", "scale-direction", f"{UP}.weight_scale_inv")
def really_inverse(e):
    for name in [name for name in e.tensors if name.endswith(".weight_scale_inv")]:
        e.put(name, "F32", 1 / e.array(name))


@defect("modelopt-nvfp4", "scale-direction", f"{UP}.input_scale")
def inputs_as_divisors(e):
    for name in [name for name in e.tensors if name.endswith(".input_scale")]:
        e.put(name, "F32", 1 / e.array(name))


@defect("compressed-nvfp4", "scale-direction", f"{UP}.input_global_scale")
def inputs_as_multipliers(e):
    for name in [name for name in e.tensors if name.endswith(".input_global_scale")]:
        e.put(name, "F32", 1 / e.array(name))


@defect("modelopt-nvfp4", "nibble-order", f"{UP}.weight")
def high_nibble_first(e):
    for name in [name for name in e.tensors if e.tensors[name][0] == "U8" and name.endswith(".weight")]:
        edit(e, name, lambda a: a.__setitem__(..., a >> 4 | a << 4))


# With the source


@defect("modelopt-nvfp4", "value-factor", f"{UP}.weight", source=True)
def values_of_four_thirds(e):
    e.put(f"{GATE}.weight_scale_2", "F32", e.array(f"{GATE}.weight_scale_2") * np.float32(4 / 3))
    e.put(f"{UP}.weight_scale_2", "F32", e.array(f"{UP}.weight_scale_2") * np.float32(4 / 3))


@defect("compressed-nvfp4", "nibble-order", f"{UP}.weight_packed", source=True)
def one_tensor_with_high_nibbles_first(e):
    edit(e, f"{UP}.weight_packed", lambda a: a.__setitem__(..., a >> 4 | a << 4))


@defect("mlx-mxfp4", "nibble-order", f"{UP}.weight", source=True)
def words_with_high_nibbles_first(e):
    def change(a):
        data = a.view(np.uint8)
        data[...] = data >> 4 | data << 4

    edit(e, f"{UP}.weight", change)


@defect("mlx-mxfp4", "element-order", f"{UP}.weight", source=True)
def words_of_big_endian(e):
    edit(e, f"{UP}.weight", lambda a: a.byteswap(inplace=True))


@defect("modelopt-mxfp4", "element-order", f"{UP}.weight", source=True)
def halves_of_a_block_interleaved(e):
    def change(a):
        codes = np.stack([a & 15, a >> 4], -1).reshape(-1, 2, 16)
        a[...] = (codes[:, 0] | codes[:, 1] << 4).reshape(a.shape)

    edit(e, f"{UP}.weight", change)


@defect("modelopt-nvfp4", "row-order", f"{UP}.weight", source=True)
def rows_interleaved(e):
    order = np.arange(256).reshape(2, 128).T.ravel()
    for part in ("weight", "weight_scale"):
        edit(e, f"{UP}.{part}", lambda a: a.__setitem__(..., a[order]))


@defect("modelopt-nvfp4", "scale-layout", f"{UP}.weight_scale", source=True)
def one_tiled_tensor(e):
    retype(e, f"{UP}.weight_scale", "F8_E4M3", corpus.tiled)


@defect("modelopt-nvfp4", "scale-direction", f"{UP}.weight_scale_2", source=True)
def amax_by_source(e):
    for part in (UP, GATE):
        e.put(f"{part}.weight_scale_2", "F32", e.array(f"{part}.weight_scale_2") * np.float32(2688))


@defect("modelopt-nvfp4", "bit-damage", f"{UP}.weight", source=True)
def a_flipped_scale(e):
    edit(e, f"{UP}.weight_scale", lambda a: a.__setitem__((7, 1), a[7, 1] ^ 0x04))


@defect("modelopt-nvfp4", "value-mismatch", f"{UP}.weight", source=True)
def another_layer_s_weight(e):
    other = "model.layers.1.mlp.up_proj"
    for part in ("weight", "weight_scale"):
        e.tensors[f"{UP}.{part}"] = e.tensors[f"{other}.{part}"]


@defect("modelopt-nvfp4", "value-mismatch", f"{UP}.weight", source=True)
def another_layer_s_scales(e):
    e.tensors[f"{UP}.weight_scale"] = e.tensors["model.layers.1.mlp.up_proj.weight_scale"]


@defect("modelopt-nvfp4", "value-mismatch", "model.norm.weight", source=True)
def another_model_s_norm(e):
    e.put("model.norm.weight", "BF16", np.full(128, 0x3FC0))


@defect("deepseek-fp8", "missing-tensor", f"{UP}.weight_scale_inv")
def another_producer_s_name(e):
    e.tensors[f"{UP}.weight_scale"] = e.tensors.pop(f"{UP}.weight_scale_inv")


@defect("modelopt-nvfp4", "missing-tensor", "model.layers.1")
def no_last_layer(e):
    e.drop(*[name for name in e.tensors if name.startswith("model.layers.1.")])


@defect("torchao-nvfp4", "missing-tensor", UP)
def nothing_of_a_listed_tensor(e):
    e.drop(*[name for name in e.tensors if name.startswith(f"{UP}._weight")])


@defect("deepseek-fp8", "config", "config.json")
def powers_of_two_declared(e):
    e.config["quantization_config"]["scale_fmt"] = "ue8m0"


@defect("mlx-mxfp8", "config", "config.json")
def four_bits_declared(e):
    e.config["quantization"]["bits"] = 4
