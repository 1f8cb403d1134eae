"""Write small checkpoints with the real exporters: python .ci/checkpoints/write.py OUT [FAMILY ...].

Install .ci/checkpoints/writers.txt in an environment of its own. The models are a Llama and a Qwen3-MoE of two layers,
whose weights have rows and columns of different energy, as trained ones have. OUT/clean/NAME is an export, and
OUT/source/NAME the model in bfloat16. No GPU is used.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
READS_NORM = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "input_layernorm"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj"), "post_attention_layernorm"),
}


def shaped(shape: tuple[int, ...], columns: torch.Tensor | None = None) -> torch.Tensor:
    """Return a weight whose rows and columns differ in energy."""
    rows = torch.exp(0.5 * torch.randn(*shape[:-1], 1))
    columns = torch.exp(0.5 * torch.randn(shape[-1])) if columns is None else columns
    return (0.02 * torch.randn(*shape) * rows * columns).to(torch.bfloat16)


def prepared(model: Any) -> Any:
    """Give a model norms that differ by channel, and the columns that read them the reciprocal energy."""
    model = model.to(torch.bfloat16)
    model.config.architectures = [type(model).__name__]
    parameters = dict(model.named_parameters())
    for name, value in parameters.items():
        if "norm" in name:
            value.data = torch.exp(0.4 * torch.randn_like(value.float())).to(value.dtype)
    for name, value in parameters.items():
        if value.dim() > 1:
            parts = name.removesuffix(".weight").split(".")
            norm = READS_NORM.get(parts[-1])
            layer = ".".join(parts[:3])
            columns = 1 / parameters[f"{layer}.{norm}.weight"].float() if norm else None
            value.data = shaped(tuple(value.shape), columns)
    return model


def llama() -> Any:
    """Return a small Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    return prepared(LlamaForCausalLM(LlamaConfig(**SIZES)))


def moe() -> Any:
    """Return a small Qwen3-MoE."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(2)
    experts = {
        "moe_intermediate_size": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 32,
        "norm_topk_prob": True,
    }
    return prepared(Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts)))


def modelopt(out: Path, source: Path) -> Iterator[str]:
    """Quantize with max calibration and export as modelopt's recipes do."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.utils import update_quant_cfg_with_kv_cache_quant

    for name, make, recipe, cache, more in (
        ("llama-nvfp4", llama, "NVFP4_DEFAULT_CFG", "", {"max_shard_size": "300KB"}),
        ("llama-nvfp4-kv", llama, "NVFP4_DEFAULT_CFG", "FP8_KV_CFG", {}),
        ("llama-mxfp4", llama, "MXFP4_DEFAULT_CFG", "", {}),
        ("llama-mxfp8", llama, "MXFP8_DEFAULT_CFG", "", {}),
        ("llama-fp8", llama, "FP8_DEFAULT_CFG", "", {}),
        ("llama-fp8-row", llama, "FP8_PER_CHANNEL_PER_TOKEN_CFG", "", {}),
        ("llama-fp8-square", llama, "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "", {}),
        ("llama-w4a8", llama, "W4A8_NVFP4_FP8_CFG", "", {}),
        ("moe-nvfp4", moe, "NVFP4_DEFAULT_CFG", "", {"max_shard_size": "60KB"}),
        ("moe-mlp-only", moe, "NVFP4_MLP_ONLY_CFG", "", {}),
    ):
        model = make()
        config = copy.deepcopy(getattr(mtq, recipe))
        if cache:
            config = update_quant_cfg_with_kv_cache_quant(config, getattr(mtq, cache)["quant_cfg"])

        def calibrate(model: Any) -> None:
            for _ in range(4):
                model(torch.randint(0, 512, (4, 64)))

        mtq.quantize(model, config, calibrate)
        export_hf_checkpoint(model, export_dir=str(out / f"modelopt-{name}"), **more)
        yield f"modelopt-{name}"


def compressed(out: Path, source: Path) -> Iterator[str]:
    """Quantize with llm-compressor and save compressed."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[UNK]", unk_token="[UNK]")
    mixed = lambda: {  # noqa: E731
        "g0": preset_name_to_scheme("NVFP4", ["re:.*mlp.*"]),
        "g1": preset_name_to_scheme("FP8_DYNAMIC", ["re:.*self_attn.*"]),
    }
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    for name, kind, settings in (
        ("llama-nvfp4", "llama", {"scheme": "NVFP4"}),
        ("llama-nvfp4a16", "llama", {"scheme": "NVFP4A16"}),
        ("llama-mxfp4", "llama", {"scheme": "MXFP4"}),
        ("llama-mxfp8", "llama", {"scheme": "MXFP8"}),
        ("llama-fp8-dynamic", "llama", {"scheme": "FP8_DYNAMIC"}),
        ("llama-fp8-block", "llama", {"scheme": "FP8_BLOCK"}),
        ("llama-mixed", "llama", {"config_groups": mixed()}),
        ("llama-no-attention", "llama", {"scheme": "NVFP4", "ignore": ["lm_head", "re:.*self_attn.*"]}),
        ("llama-nvfp4-kv", "llama", {"scheme": "NVFP4", "kv_cache_scheme": cache}),
        ("moe-nvfp4", "moe", {"scheme": "NVFP4", "ignore": ["lm_head", "re:.*mlp.gate$"]}),
    ):
        tokenizer.save_pretrained(str(source / kind))
        model = AutoModelForCausalLM.from_pretrained(str(source / kind), dtype=torch.bfloat16)
        targets = {} if "config_groups" in settings else {"targets": "Linear"}
        recipe = QuantizationModifier(**{"ignore": ["lm_head"], **targets, **settings})
        rows = [{"input_ids": torch.randint(0, 512, (32,)).tolist(), "attention_mask": [1] * 32} for _ in range(8)]
        data = Dataset.from_list(rows)
        oneshot(
            model=model, processor=tokenizer, dataset=data, recipe=recipe, num_calibration_samples=8, max_seq_length=32
        )
        model.save_pretrained(str(out / f"compressed-{name}"), save_compressed=True)
        yield f"compressed-{name}"


def linear(source: Path) -> dict[str, torch.Tensor]:
    """Return the linear weights of the Llama by name."""
    from safetensors.torch import load_file

    tensors = load_file(source / "llama" / "model.safetensors")
    return {name: value for name, value in tensors.items() if "_proj" in name}


def torchao(out: Path, source: Path) -> Iterator[str]:
    """Save tensor subclasses with their metadata."""
    from safetensors.torch import load_file
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    for name in ("nvfp4", "nvfp4-swizzled", "mxfp8", "mxfp4"):
        state = load_file(source / "llama" / "model.safetensors")
        for key, value in linear(source).items():
            if name.startswith("nvfp4"):
                scale = per_tensor_amax_to_scale(value.abs().max())
                state[key] = NVFP4Tensor.to_nvfp4(
                    value, per_tensor_scale=scale, is_swizzled_scales=name.endswith("swizzled")
                )
            else:
                element = torch.float8_e4m3fn if name == "mxfp8" else torch.float4_e2m1fn_x2
                state[key] = MXTensor.to_mx(value, element, 32)
        flat, metadata = flatten_tensor_state_dict(state)
        target = out / f"torchao-{name}"
        target.mkdir(parents=True, exist_ok=True)
        save_file({key: value.contiguous() for key, value in flat.items()}, target / "model.safetensors", metadata)
        yield f"torchao-{name}"


def comfy(out: Path, source: Path) -> Iterator[str]:
    """Save weights of a diffusion model in Comfy's layout, with and without metadata."""
    from comfy_kitchen.tensor import QuantizedTensor

    torch.manual_seed(3)
    state, high = {}, {}
    for index, (rows, columns) in enumerate(((40, 104), (256, 256), (128, 512))):
        weight = shaped((rows, columns))
        name = f"double_blocks.{index}.img_attn.qkv"
        high[f"{name}.weight"] = weight
        state.update(QuantizedTensor.from_float(weight, "TensorCoreNVFP4Layout").state_dict(f"{name}.weight"))
        for part in (state, high):
            part[f"{name}.bias"] = torch.zeros(rows)
            part[f"double_blocks.{index}.norm.weight"] = torch.ones(columns)
    layers = {f"double_blocks.{index}.img_attn.qkv": {"format": "nvfp4"} for index in range(3)}
    text = json.dumps({"format_version": "1.0", "layers": layers})
    (source / "flux").mkdir(parents=True, exist_ok=True)
    save_file(high, source / "flux" / "model.safetensors")
    for name, metadata in (("nvfp4", {"_quantization_metadata": text}), ("nvfp4-bare", None)):
        target = out / f"comfy-{name}"
        target.mkdir(parents=True, exist_ok=True)
        save_file({key: value.contiguous() for key, value in state.items()}, target / "model.safetensors", metadata)
        yield f"comfy-{name}"


def mlx(out: Path, source: Path) -> Iterator[str]:
    """Quantize the Llama's linear weights with mlx.core, and save them as mlx.nn does."""
    import mlx.core as mx
    from safetensors.torch import load_file

    for mode, size, bits in (("nvfp4", 16, 4), ("mxfp4", 32, 4), ("mxfp8", 32, 8)):
        arrays = {}
        for key, value in load_file(source / "llama" / "model.safetensors").items():
            array = mx.array(value.float().numpy()).astype(mx.bfloat16)
            if "_proj" in key:
                codes, scales = mx.quantize(array, group_size=size, bits=bits, mode=mode)
                arrays |= {key: codes, key.replace("weight", "scales"): scales}
            else:
                arrays[key] = array
        target = out / f"mlx-{mode}"
        target.mkdir(parents=True, exist_ok=True)
        mx.save_safetensors(str(target / "model.safetensors"), arrays, metadata={"format": "mlx"})
        settings = {"group_size": size, "bits": bits, "mode": mode}
        config = json.loads((source / "llama" / "config.json").read_text())
        config |= {"quantization": settings, "quantization_config": settings}
        (target / "config.json").write_text(json.dumps(config))
        yield f"mlx-{mode}"


def gguf(out: Path, source: Path) -> Iterator[str]:
    """Write MXFP4 with the quantizer of gguf."""
    import gguf as library

    target = out / "gguf-mxfp4"
    target.mkdir(parents=True, exist_ok=True)
    kind = library.GGMLQuantizationType.MXFP4
    writer = library.GGUFWriter(str(target / "model.gguf"), "llama")
    for key, value in linear(source).items():
        if "up_proj" in key or "q_proj" in key:
            data = library.quants.quantize(value.float().numpy(), kind)
            layer, name = key.split(".")[2], "ffn_up" if "up_proj" in key else "attn_q"
            writer.add_tensor(f"blk.{layer}.{name}.weight", data, raw_dtype=kind)
            writer.add_tensor(f"blk.{layer}.{name}_norm.weight", np.ones(128, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    yield "gguf-mxfp4"


FAMILIES: dict[str, Callable[[Path, Path], Iterator[str]]] = {
    each.__name__: each for each in (modelopt, torchao, comfy, mlx, gguf, compressed)
}


def main(arguments: list[str]) -> None:
    """Write the sources, then the exports of each family."""
    out = Path(arguments[0])
    source = out / "source"
    for name, make in (("llama", llama), ("moe", moe)):
        make().save_pretrained(str(source / name))
    for family in arguments[1:] or FAMILIES:
        try:
            for name in FAMILIES[family](out / "clean", source):
                print(f"wrote {name}", flush=True)
        except Exception as error:  # noqa: BLE001 - one family that cannot run leaves the others
            print(f"{family}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
