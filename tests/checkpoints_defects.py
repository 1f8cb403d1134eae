"""Defects of checkpoints, each modelled on a public thread: a base, a change, and the code that must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
        path = folder / "model.safetensors.index.json"
        old = f'"{UP}.weight_scale": "model-00001'
        path.write_text(path.read_text().replace(old, f'"{UP}.weight_scale": "model-00002'))

    e.after.append(change)


@defect("compressed-nvfp4", "index", "model.layers.9")
def the_index_names_a_tensor_that_no_shard_has(e):
    def change(folder):
        path = folder / "model.safetensors.index.json"
        path.write_text(
            path.read_text().replace(
                '{"model.emb', '{"model.layers.9.x": "model-00001-of-00002.safetensors", "model.emb'
            )
        )

    e.after.append(change)


@defect("modelopt-nvfp4", "duplicate-tensor", "model.norm.weight")
def a_tensor_is_in_two_shards(e):
    def change(folder):
        import checkpoints_corpus as corpus

        part = {name: e.tensors[name] for name in [*e.tensors][len(e.tensors) // 2 :]}
        part["model.norm.weight"] = e.tensors["model.norm.weight"]
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
