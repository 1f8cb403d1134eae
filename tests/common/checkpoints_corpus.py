"""Small synthetic exports, one for each convention, written after its description.

Bytes come from the golden model. An `Export` is a mutable set of files, which a defect changes before it is written.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import fp4ref
from scripts import load

TYPES = {
    "U8": np.uint8,
    "I8": np.int8,
    "U32": np.uint32,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
    "I64": np.int64,
    "I32": np.int32,
}
HIDDEN, INTER, VOCAB, LAYERS, EXPERTS = 128, 256, 256, 2, 4
SHAPES = {
    "self_attn.q_proj": (128, HIDDEN),
    "self_attn.k_proj": (64, HIDDEN),
    "self_attn.v_proj": (64, HIDDEN),
    "self_attn.o_proj": (HIDDEN, 128),
    "mlp.gate_proj": (INTER, HIDDEN),
    "mlp.up_proj": (INTER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTER),
}
SETS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("mlp.gate_proj", "mlp.up_proj"),
)
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "rope_theta": float("inf"),
}


def of_layers(count: int) -> ModuleType:
    """Load a second copy of this module, whose models have `count` layers."""
    module = load(Path(__file__), f"checkpoints_corpus_of_{count}_layers")
    module.LAYERS = module.CONFIG["num_hidden_layers"] = count
    return module


@dataclass
class Export:
    """Files of a checkpoint before they are written: tensors as (dtype, array), and JSON."""

    tensors: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=lambda: {"format": "pt"})
    config: dict[str, Any] | None = None
    hf: dict[str, Any] | None = None
    shards: int = 2
    gguf: bool = False
    after: list[Callable[[Path], None]] = field(default_factory=list)

    def put(self, name: str, dtype: str, array: Any) -> None:
        self.tensors[name] = dtype, np.array(array, TYPES[dtype])

    def array(self, name: str) -> np.ndarray:
        return self.tensors[name][1]

    def drop(self, *names: str) -> None:
        for name in names:
            del self.tensors[name]

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in (("config.json", self.config), ("hf_quant_config.json", self.hf)):
            if value is not None:
                (folder / name).write_text(json.dumps(value))
        if self.gguf:
            (folder / "model.gguf").write_bytes(gguf_bytes(self.tensors))
        elif self.shards == 1:
            (folder / "model.safetensors").write_bytes(safetensors_bytes(self.tensors, self.metadata))
        else:
            names = [*self.tensors]
            index = {}
            for number in range(self.shards):
                file = f"model-{number + 1:05}-of-{self.shards:05}.safetensors"
                part = names[number * len(names) // self.shards : (number + 1) * len(names) // self.shards]
                index |= dict.fromkeys(part, file)
                data = safetensors_bytes({name: self.tensors[name] for name in part}, self.metadata)
                (folder / file).write_bytes(data)
            text = json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
            (folder / "model.safetensors.index.json").write_text(text)
        for change in self.after:
            change(folder)
        return folder


def safetensors_bytes(tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": [*array.shape], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


GGUF_TYPES = {"F32": 0, "MXFP4": 39, "NVFP4": 40}


def gguf_bytes(tensors: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """A GGUF of version 3; an array of a block type is [rows, bytes of a row]."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    data = b""
    for name, (dtype, array) in tensors.items():
        shape = array.shape
        if dtype in {"MXFP4", "NVFP4"}:
            block, size = {"MXFP4": (32, 17), "NVFP4": (64, 36)}[dtype]
            shape = (shape[0], shape[1] // size * block)
        data += b"\0" * (-len(data) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += struct.pack("<IQ", GGUF_TYPES[dtype], len(data))
        data += array.tobytes()
    return head + b"\0" * (-len(head) % 32) + data


def weight(seed: int, shape: tuple[int, ...], norm: np.ndarray | None = None) -> np.ndarray:
    """A weight with rows and columns of different energy, as trained ones have, in values of bfloat16."""
    rng = np.random.default_rng(seed)
    rows = np.exp(rng.normal(0, 0.5, shape[:-1]))[..., None]
    columns = np.exp(rng.normal(0, 0.5, shape[-1])) if norm is None else 1 / norm
    values = np.float32(rng.normal(0, 0.02, shape) * rows * columns)
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def bf16(values: np.ndarray) -> np.ndarray:
    return (np.float32(values).view(np.uint32) >> 16).astype(np.uint16)


def norms() -> list[np.ndarray]:
    return [np.exp(np.random.default_rng(900 + index).normal(0, 0.4, HIDDEN)) for index in range(2 * LAYERS)]


def model() -> dict[str, np.ndarray]:
    """The weights of two layers in high precision, by module."""
    scale = norms()
    found = {}
    for layer in range(LAYERS):
        for index, (name, shape) in enumerate(SHAPES.items()):
            norm = scale[2 * layer + (index >= 4)] if shape[1] == HIDDEN and "o_proj" not in name else None
            found[f"model.layers.{layer}.{name}"] = weight(100 * layer + index, shape, norm)
    return found


def plain(export: Export) -> None:
    """Add the tensors that every exporter keeps in high precision."""
    for name in ("model.embed_tokens", "lm_head"):
        export.put(f"{name}.weight", "BF16", bf16(weight(len(name), (VOCAB, HIDDEN))))
    for layer in range(LAYERS):
        for index, name in enumerate(("input_layernorm", "post_attention_layernorm")):
            export.put(f"model.layers.{layer}.{name}.weight", "BF16", bf16(norms()[2 * layer + index]))
    export.put("model.norm.weight", "BF16", bf16(np.ones(HIDDEN)))


def source() -> Export:
    """The model in high precision."""
    export = Export(config=dict(CONFIG), shards=1)
    plain(export)
    for name, values in model().items():
        export.put(f"{name}.weight", "BF16", bf16(values))
    return export


def amaxes(weights: dict[str, np.ndarray]) -> dict[str, np.float32]:
    """The amax of each module, one for each fused set."""
    found = {name: np.abs(values).max() for name, values in weights.items()}
    for members in SETS:
        for head in {name.removesuffix(members[0]) for name in weights if name.endswith(members[0])}:
            shared = max(found[head + member] for member in members)
            found |= {head + member: shared for member in members}
    return found


MADE: dict[tuple[bytes, str, bytes], tuple[np.ndarray, np.ndarray]] = {}


def quantized(values: np.ndarray, spec: str, amax: np.float32 | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Quantize with the golden model; the exports of a process share what they have in common."""
    key = np.float32(values).tobytes() + bytes(str(values.shape), "ascii"), spec, np.float32(amax or 0).tobytes()
    if key not in MADE:
        result = fp4ref.quantize(np.float32(values), spec, amax=amax, backend="numpy")
        MADE[key] = np.asarray(result.row.data), np.asarray(result.row.scales)
    return MADE[key][0].copy(), MADE[key][1].copy()


def input_amax(name: str) -> np.float32:
    """One for each input: q, k and v read the same, gate and up too."""
    layer, last = name.split(".")[2], name.rpartition(".")[2]
    kind = {"q_proj": 1, "k_proj": 1, "v_proj": 1, "gate_proj": 2, "up_proj": 2, "o_proj": 3, "down_proj": 4}[last]
    return np.float32(2 + kind + int(layer) / 4)


IGNORED = ["lm_head", "model.embed_tokens"]


def modelopt(form: str = "nvfp4", *, kv: bool = False, experts: bool = False) -> Export:
    export = Export(config=dict(CONFIG))
    plain(export)
    weights = model()
    ignored = [*IGNORED]
    if experts:
        for layer in range(LAYERS):
            for name in ("gate_proj", "up_proj", "down_proj"):
                dense = weights.pop(f"model.layers.{layer}.mlp.{name}")
                for expert in range(EXPERTS):
                    weights[f"model.layers.{layer}.mlp.experts.{expert}.{name}"] = np.roll(dense, 16 * expert, 0)
            export.put(f"model.layers.{layer}.mlp.gate.weight", "BF16", bf16(weight(layer, (EXPERTS, HIDDEN))))
            ignored.append(f"model.layers.{layer}.mlp.gate")
        export.config["num_experts"] = EXPERTS
    shared = amaxes(weights)
    if experts:
        for name in weights:
            if name.endswith("gate_proj"):
                other = name.replace("gate_proj", "up_proj")
                shared[name] = shared[other] = max(shared[name], shared[other])
    for name, values in weights.items():
        put_modelopt(export, form, name, values, shared[name])
        if kv and name.endswith(("k_proj", "v_proj")):
            export.put(f"{name}.{name[-6]}_scale", "F32", 0.02)
    algorithms = {"mxfp4": "mxfp4", "fp8-row": "FP8_PER_CHANNEL_PER_TOKEN"}
    algorithm = algorithms.get(form, form.upper())
    inner = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8" if kv else None, "exclude_modules": ignored}
    if form in {"nvfp4", "mxfp8"}:
        inner["group_size"] = {"nvfp4": 16, "mxfp8": 32}[form]
    producer = {"name": "modelopt", "version": "0.47.0"}
    export.hf = {"producer": producer, "quantization": inner}
    record = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": list(ignored), "producer": producer}
    if form == "nvfp4":
        numbers = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
        record["config_groups"] = {
            "group_0": {"input_activations": numbers, "weights": dict(numbers), "targets": ["Linear"]}
        }
    if kv:
        record["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    export.config["quantization_config"] = record
    return export


def put_modelopt(export: Export, form: str, name: str, values: np.ndarray, amax: np.float32) -> None:
    if form == "nvfp4":
        data, scales = quantized(values, "modelopt.nvfp4", amax)
        export.put(f"{name}.weight", "U8", data)
        export.put(f"{name}.weight_scale", "F8_E4M3", scales)
        export.put(f"{name}.weight_scale_2", "F32", np.float32(amax) / np.float32(2688))
        export.put(f"{name}.input_scale", "F32", input_amax(name) / np.float32(2688))
    elif form == "fp8-row":
        scales = np.float32(np.abs(values).max(1) / 448)
        export.put(f"{name}.weight", "F8_E4M3", fp8(values, scales[:, None]))
        export.put(f"{name}.weight_scale", "F32", scales)
    elif form == "fp8":
        export.put(f"{name}.weight", "F8_E4M3", fp8(values, np.abs(values).max() / 448))
        export.put(f"{name}.weight_scale", "F32", np.abs(values).max() / 448)
        export.put(f"{name}.input_scale", "F32", input_amax(name) / 448)
    else:
        spec = "modelopt.mxfp4" if form == "mxfp4" else "torchao.mxfp8_e4m3_rceil"
        data, scales = quantized(values, spec)
        export.put(f"{name}.weight", "U8" if form == "mxfp4" else "F8_E4M3", data)
        export.put(f"{name}.weight_scale", "U8", scales)


def fp8(values: np.ndarray, scale: Any) -> np.ndarray:
    import ml_dtypes

    return np.clip(values / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def compressed(form: str = "nvfp4") -> Export:
    export = Export(config=dict(CONFIG))
    plain(export)
    weights = model()
    shared = amaxes(weights)
    for name, values in weights.items():
        if form == "nvfp4":
            data, scales = quantized(values, "compressed_tensors.nvfp4", shared[name])
            export.put(f"{name}.weight_packed", "U8", data)
            export.put(f"{name}.weight_scale", "F8_E4M3", scales)
            export.put(f"{name}.weight_global_scale", "F32", [np.float32(2688) / shared[name]])
            export.put(f"{name}.input_global_scale", "F32", [np.float32(2688) / input_amax(name)])
        else:
            data, scales = quantized(values, f"compressed_tensors.{form}")
            code = ("weight_packed", "U8") if form == "mxfp4" else ("weight", "F8_E4M3")
            export.put(f"{name}.{code[0]}", code[1], data)
            export.put(f"{name}.weight_scale", "U8", scales)
    text = "mxfp8-quantized" if form == "mxfp8" else f"{form}-pack-quantized"
    numbers = {
        "num_bits": 8 if form == "mxfp8" else 4,
        "type": "float",
        "strategy": "tensor_group" if form == "nvfp4" else "group",
        "group_size": 16 if form == "nvfp4" else 32,
        "symmetric": True,
        "dynamic": False,
    }
    inputs = {**numbers, "dynamic": "local" if form == "nvfp4" else True}
    group = {"format": text, "targets": ["Linear"], "weights": numbers, "input_activations": inputs}
    export.config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": text,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }
    return export


def compressed_fp8(strategy: str) -> Export:
    """FP8 with a scale for each row, or for each square of 128, in bfloat16, as llm-compressor's presets write it."""
    export = Export(config=dict(CONFIG))
    plain(export)
    for name, values in model().items():
        step = 1 if strategy == "channel" else 128
        width = values.shape[1] if strategy == "channel" else 128
        rows, columns = range(0, len(values), step), range(0, values.shape[1], width)
        amax = [[np.abs(values[row : row + step, column : column + width]).max() for column in columns] for row in rows]
        scales = bf16(np.float32(amax) / 448)
        factors = (scales.astype(np.uint32) << 16).view(np.float32)
        factors = np.repeat(np.repeat(factors, step, 0)[: len(values)], width, 1)[:, : values.shape[1]]
        export.put(f"{name}.weight", "F8_E4M3", fp8(values, factors))
        export.put(f"{name}.weight_scale", "BF16", scales)
    numbers = {"num_bits": 8, "type": "float", "strategy": strategy, "group_size": None, "symmetric": True}
    weights, inputs = {**numbers, "dynamic": False}, {**numbers, "dynamic": True, "strategy": "token"}
    if strategy == "block":
        weights["block_structure"], inputs = [128, 128], {**inputs, "strategy": "group", "group_size": 128}
    group = {"format": "float-quantized", "targets": ["Linear"], "weights": weights, "input_activations": inputs}
    export.config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }
    return export


def gpt_oss(*, original: bool = False) -> Export:
    export = Export(config=dict(CONFIG, num_local_experts=EXPERTS, hidden_size=64))
    for layer in range(LAYERS):
        for index, (part, shape) in enumerate((("gate_up_proj", (EXPERTS, 128, 64)), ("down_proj", (EXPERTS, 64, 64)))):
            values = weight(10 * layer + index, shape)
            data, scales = quantized(values.reshape(-1, shape[2]), "torchao.mxfp4_floor")
            name = f"model.layers.{layer}.mlp.experts.{part}"
            if original:
                name = f"block.{layer}.mlp.mlp{index + 1}_weight"
            mark = "." if original else "_"
            export.put(f"{name}{mark}blocks", "U8", data.reshape(*shape[:2], 2, 16))
            export.put(f"{name}{mark}scales", "U8", scales.reshape(*shape[:2], 2))
            bias = f"block.{layer}.mlp.mlp{index + 1}_bias" if original else f"{name}_bias"
            export.put(bias, "BF16", bf16(np.zeros(shape[:2])))
        for name in () if original else ("q_proj", "k_proj", "v_proj", "o_proj"):
            export.put(f"model.layers.{layer}.self_attn.{name}.weight", "BF16", bf16(weight(layer, (64, 64))))
        export.put(f"model.layers.{layer}.mlp.router.weight", "BF16", bf16(weight(layer, (EXPERTS, 64))))
        export.put(f"model.layers.{layer}.input_layernorm.weight", "BF16", bf16(np.ones(64)))
    skip = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    export.config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": skip}
    return export


def tiled(scales: np.ndarray) -> np.ndarray:
    """Scales in the layout 128x4, by the formula and not by the package's layouts."""
    rows, columns = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    padded = np.zeros((rows, columns), np.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    parts = padded.reshape(rows // 128, 4, 32, columns // 4, 4)
    return parts.transpose(0, 3, 2, 1, 4).reshape(rows, columns)


def torchao(form: str = "nvfp4", *, swizzled: bool = False) -> Export:
    export = Export(config=dict(CONFIG), shards=1)
    plain(export)
    listed = []
    for name, values in model().items():
        spec = {"nvfp4": "torchao.nvfp4_2lvl", "mxfp4": "torchao.mxfp4_rceil", "mxfp8": "torchao.mxfp8_e4m3_rceil"}[
            form
        ]
        amax = np.abs(values).max()
        data, scales = quantized(values, spec, amax if form == "nvfp4" else None)
        export.put(f"{name}._weight_qdata", "F8_E4M3" if form == "mxfp8" else "U8", data)
        kind = "F8_E4M3" if form == "nvfp4" else "F8_E8M0"
        export.put(f"{name}._weight_scale", kind, tiled(scales) if swizzled else scales)
        names = ["qdata", "scale"]
        facts: dict[str, Any] = {"block_size": 16 if form == "nvfp4" else 32, "is_swizzled_scales": swizzled}
        if form == "nvfp4":
            export.put(f"{name}._weight_per_tensor_scale", "F32", amax / np.float32(2688))
            names.insert(1, "per_tensor_scale")
        else:
            facts["elem_dtype"] = "torch.float8_e4m3fn" if form == "mxfp8" else "torch.float4_e2m1fn_x2"
        kind = "NVFP4Tensor" if form == "nvfp4" else "MXTensor"
        record = {"_type": kind, "_data": facts, "_tensor_data_names": names}
        export.metadata[f"{name}.weight"] = json.dumps(record)
        listed.append(f"{name}.weight")
    export.metadata["tensor_names"] = json.dumps(listed)
    return export


def comfy(*, metadata: bool = True) -> Export:
    export = Export(shards=1)
    layers = {}
    for index, shape in enumerate(((40, 104), (256, 256), (128, 512))):
        name = f"double_blocks.{index}.img_attn.qkv"
        values = np.zeros((-(-shape[0] // 16) * 16, -(-shape[1] // 16) * 16), np.float32)
        values[: shape[0], : shape[1]] = weight(index, shape)
        amax = np.abs(values).max()
        data, scales = quantized(values, "nvfp4", amax)
        export.put(f"{name}.weight", "U8", data >> 4 | data << 4)
        export.put(f"{name}.weight_scale", "F8_E4M3", tiled(scales))
        export.put(f"{name}.weight_scale_2", "F32", amax / np.float32(2688))
        export.put(f"{name}.bias", "F32", np.zeros(shape[0]))
        layers[name] = {"format": "nvfp4"}
    if metadata:
        text = json.dumps({"format_version": "1.0", "layers": layers})
        export.metadata["_quantization_metadata"] = text
    return export


def deepseek(scale: str = "F32") -> Export:
    export = Export(config=dict(CONFIG))
    plain(export)
    for name, values in model().items():
        rows, columns = -(-values.shape[0] // 128), -(-values.shape[1] // 128)
        codes = np.zeros(values.shape, np.uint8)
        scales = np.zeros((rows, columns), np.float32)
        for row in range(rows):
            for column in range(columns):
                part = (slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128))
                scales[row, column] = np.abs(values[part]).max() / 448
                if scale != "F32":
                    scales[row, column] = 2.0 ** np.ceil(np.log2(scales[row, column]))
                codes[part] = fp8(values[part], scales[row, column])
        export.put(f"{name}.weight", "F8_E4M3", codes)
        stored = scales if scale == "F32" else np.log2(scales).astype(int) + 127
        export.put(f"{name}.weight_scale_inv", scale, stored)
    record = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    if scale != "F32":
        record["scale_fmt"] = "ue8m0"
    export.config["quantization_config"] = record
    return export


def mlx(form: str = "nvfp4") -> Export:
    export = Export(config=dict(CONFIG), shards=1, metadata={"format": "mlx"})
    plain(export)
    spec = {"nvfp4": "qwix.nvfp4", "mxfp4": "torchao.mxfp4_ceil", "mxfp8": "torchao.mxfp8_e4m3_rceil"}[form]
    for name, values in model().items():
        data, scales = quantized(values * (64 if form == "nvfp4" else 1), spec)
        if form != "mxfp8":  # the writer turns -0 into 0
            data = np.where(data & 15 == 8, data & 240, data)
            data = np.where(data >> 4 == 8, data & 15, data)
        export.put(f"{name}.weight", "U32", np.ascontiguousarray(data).view(np.uint32))
        export.put(f"{name}.scales", "U8", scales)
    bits, size = (8 if form == "mxfp8" else 4), (16 if form == "nvfp4" else 32)
    export.config["quantization"] = {"group_size": size, "bits": bits, "mode": form}
    return export


def gguf(form: str = "mxfp4") -> Export:
    export = Export(gguf=True)
    for layer in range(LAYERS):
        for name, shape in (("ffn_up", (64, 128)), ("attn_q", (128, 128))):
            values = weight(layer, shape)
            head = f"blk.{layer}.{name}"
            if form == "mxfp4":
                data, scales = quantized(values, "torchao.mxfp4_floor")
                codes = np.stack([data & 15, data >> 4], -1).reshape(-1, 32)
                body = codes[:, :16] | codes[:, 16:] << 4
                parts = np.concatenate([scales.reshape(-1, 1), body], 1)
            else:
                data, scales = quantized(values, "nvfp4", np.abs(values).max())
                codes = np.stack([data & 15, data >> 4], -1).reshape(-1, 4, 16)
                body = codes[..., :8] | codes[..., 8:] << 4
                parts = np.concatenate([scales.reshape(-1, 4), body.reshape(-1, 32)], 1)
                export.put(f"{head}.scale", "F32", [np.abs(values).max() / np.float32(2688)])
            export.tensors[f"{head}.weight"] = form.upper(), parts.reshape(shape[0], -1)
        export.put(f"blk.{layer}.attn_norm.weight", "F32", np.ones(128))
    return export


CLEAN: dict[str, Callable[[], Export]] = {
    "modelopt-nvfp4": modelopt,
    "modelopt-nvfp4-kv": lambda: modelopt(kv=True),
    "modelopt-nvfp4-experts": lambda: modelopt(experts=True),
    "modelopt-mxfp4": lambda: modelopt("mxfp4"),
    "modelopt-mxfp8": lambda: modelopt("mxfp8"),
    "modelopt-fp8": lambda: modelopt("fp8"),
    "modelopt-fp8-row": lambda: modelopt("fp8-row"),
    "compressed-nvfp4": compressed,
    "compressed-mxfp4": lambda: compressed("mxfp4"),
    "compressed-mxfp8": lambda: compressed("mxfp8"),
    "compressed-fp8-row": lambda: compressed_fp8("channel"),
    "compressed-fp8-square": lambda: compressed_fp8("block"),
    "gpt-oss": gpt_oss,
    "gpt-oss-original": lambda: gpt_oss(original=True),
    "torchao-nvfp4": torchao,
    "torchao-nvfp4-swizzled": lambda: torchao(swizzled=True),
    "torchao-mxfp4": lambda: torchao("mxfp4"),
    "torchao-mxfp8": lambda: torchao("mxfp8"),
    "comfy-nvfp4": comfy,
    "comfy-nvfp4-bare": lambda: comfy(metadata=False),
    "deepseek-fp8": deepseek,
    "deepseek-fp8-ue8m0": lambda: deepseek("U8"),
    "mlx-nvfp4": mlx,
    "mlx-mxfp4": lambda: mlx("mxfp4"),
    "mlx-mxfp8": lambda: mlx("mxfp8"),
    "gguf-mxfp4": gguf,
    "gguf-nvfp4": lambda: gguf("nvfp4"),
    "source": source,
}
