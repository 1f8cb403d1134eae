"""GGUF files with the names, orders of rows and numbers that llama.cpp reads: bytes against plain loops."""

from __future__ import annotations

import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_models
from checkpoints_corpus import Export, of_layers
from commands import convert
from fp4ref.checkpoints import lint
from fp4ref.checkpoints.checkpoint import Checkpoint, open_checkpoint
from fp4ref.checkpoints.compare import Sameness, compare
from fp4ref.checkpoints.gguf_names import ARCHITECTURES, why_not
from fp4ref.checkpoints.gguf_views import as_on_the_hub
from fp4ref.checkpoints.manifest import manifest_of_checkpoint
from fp4ref.checkpoints.transfer.gguf_units import rope_factors
from fp4ref.errors import DomainError, FileError

pytestmark = pytest.mark.rule("CNV-19")
corpus = of_layers(1)
of_type, mixture = (partial(make, corpus=corpus) for make in (gguf_models.of_type, gguf_models.mixture))
NAMES = {  # by gguf 0.19.0, `get_tensor_name_map`
    ("llama", "model.embed_tokens.weight"): "token_embd.weight",
    ("llama", "model.norm.weight"): "output_norm.weight",
    ("llama", "lm_head.weight"): "output.weight",
    ("llama", "model.layers.7.input_layernorm.weight"): "blk.7.attn_norm.weight",
    ("llama", "model.layers.7.post_attention_layernorm.weight"): "blk.7.ffn_norm.weight",
    ("llama", "model.layers.7.self_attn.q_proj.weight"): "blk.7.attn_q.weight",
    ("llama", "model.layers.7.self_attn.k_proj.weight"): "blk.7.attn_k.weight",
    ("llama", "model.layers.7.self_attn.v_proj.weight"): "blk.7.attn_v.weight",
    ("llama", "model.layers.7.self_attn.o_proj.weight"): "blk.7.attn_output.weight",
    ("llama", "model.layers.7.mlp.gate_proj.weight"): "blk.7.ffn_gate.weight",
    ("llama", "model.layers.7.mlp.up_proj.weight"): "blk.7.ffn_up.weight",
    ("llama", "model.layers.7.mlp.down_proj.weight"): "blk.7.ffn_down.weight",
    ("mixtral", "model.layers.7.block_sparse_moe.gate.weight"): "blk.7.ffn_gate_inp.weight",
    ("mixtral", "model.layers.7.block_sparse_moe.experts.3.w1.weight"): "blk.7.ffn_gate_exps.weight",
    ("mixtral", "model.layers.7.block_sparse_moe.experts.3.w2.weight"): "blk.7.ffn_down_exps.weight",
    ("mixtral", "model.layers.7.block_sparse_moe.experts.3.w3.weight"): "blk.7.ffn_up_exps.weight",
    ("qwen2", "model.layers.7.self_attn.q_proj.bias"): "blk.7.attn_q.bias",
    ("qwen3", "model.layers.7.self_attn.q_norm.weight"): "blk.7.attn_q_norm.weight",
    ("qwen3", "model.layers.7.self_attn.k_norm.weight"): "blk.7.attn_k_norm.weight",
    ("qwen3_moe", "model.layers.7.mlp.gate.weight"): "blk.7.ffn_gate_inp.weight",
    ("qwen3_moe", "model.layers.7.mlp.experts.3.gate_proj.weight"): "blk.7.ffn_gate_exps.weight",
    ("qwen3_moe", "model.layers.7.mlp.experts.3.down_proj.weight"): "blk.7.ffn_down_exps.weight",
    ("gpt_oss", "model.layers.7.self_attn.sinks"): "blk.7.attn_sinks.weight",
    ("gpt_oss", "model.layers.7.self_attn.o_proj.bias"): "blk.7.attn_output.bias",
    ("gpt_oss", "model.layers.7.post_attention_layernorm.weight"): "blk.7.post_attention_norm.weight",
    ("gpt_oss", "model.layers.7.mlp.router.weight"): "blk.7.ffn_gate_inp.weight",
    ("gpt_oss", "model.layers.7.mlp.router.bias"): "blk.7.ffn_gate_inp.bias",
    ("gpt_oss", "model.layers.7.mlp.experts.down_proj.weight"): "blk.7.ffn_down_exps.weight",
    ("gpt_oss", "model.layers.7.mlp.experts.down_proj_bias"): "blk.7.ffn_down_exps.bias",
}


def gpt_oss() -> Export:
    export = of_type("gpt-oss", "gpt_oss", num_experts_per_tok=2, sliding_window=128)
    export.put("model.layers.0.self_attn.sinks", "BF16", [0x3F80, 0x4000, 0xC000, 0x3E80])
    return export


def written(export: Export, folder: Path, **settings: Any) -> Checkpoint:
    """The GGUF that an export becomes."""
    convert(export.write(folder / "source"), folder / "gguf", "gguf", **settings)
    checkpoint = open_checkpoint(folder / "gguf")
    assert checkpoint.problems == []
    return checkpoint


def structs(export: Export, name: str) -> np.ndarray:
    """Records of 36 bytes of the rows of an NVFP4 weight, by a loop over elements."""
    packed, scales = export.array(f"{name}.weight"), export.array(f"{name}.weight_scale")
    rows = []
    for codes, each in zip(np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1), scales, strict=True):
        row = b""
        for record in range(len(codes) // 64):
            row += bytes(each[4 * record : 4 * record + 4])
            for block in range(4):
                part = codes[64 * record + 16 * block :][:16]
                row += bytes(int(part[index]) | int(part[index + 8]) << 4 for index in range(8))
        rows.append(np.frombuffer(row, np.uint8))
    return np.stack(rows)


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows in llama.cpp's order, one by one: 2 i + j of a head is row i of its half j."""
    result = rows.copy()
    width = len(rows) // heads
    for head in range(heads):
        for index in range(width // 2):
            for half in range(2):
                result[head * width + 2 * index + half] = rows[head * width + half * width // 2 + index]
    return result


@pytest.mark.parametrize(("model_type", "hub"), NAMES)
def test_names_are_those_of_the_package_gguf(model_type: str, hub: str) -> None:
    (place,) = ARCHITECTURES[model_type].place(hub)
    assert place.name == NAMES[model_type, hub]
    back, _ = ARCHITECTURES[model_type].hub_name(place.name) or ("", None)
    assert back.replace("{e}", "3") == hub


@pytest.mark.parametrize("name", ["model.layers.07.mlp.up_proj.weight", "model.layers.0.mlp.up_proj", "up_proj.weight"])
def test_other_names_have_no_place(name: str) -> None:
    assert ARCHITECTURES["llama"].place(name) == []


def test_rows_of_a_llama_are_reordered_by_heads(tmp_path: Path) -> None:
    export = of_type("modelopt-nvfp4", "llama")
    found = written(export, tmp_path).tensors
    for last, new, heads in (("q_proj", "attn_q", 4), ("k_proj", "attn_k", 2)):
        expected = interleaved(structs(export, f"model.layers.0.self_attn.{last}"), heads)
        assert found[f"blk.0.{new}.weight"].bytes() == expected.tobytes()
    plain = structs(export, "model.layers.0.self_attn.v_proj")
    assert found["blk.0.attn_v.weight"].bytes() == plain.tobytes()
    scale = export.array("model.layers.0.self_attn.q_proj.weight_scale_2")
    assert (found["blk.0.attn_q.scale"].shape, found["blk.0.attn_q.scale"].bytes()) == ((1,), scale.tobytes())


def test_rows_of_a_qwen_stay_in_order(tmp_path: Path) -> None:
    export = of_type("modelopt-nvfp4", "qwen2")
    export.put("model.layers.0.self_attn.q_proj.bias", "BF16", np.arange(128) + 0x3F80)
    found = written(export, tmp_path).tensors
    expected = structs(export, "model.layers.0.self_attn.q_proj")
    assert found["blk.0.attn_q.weight"].bytes() == expected.tobytes()
    bias = (np.arange(128, dtype=np.uint32) + 0x3F80 << 16).tobytes()
    assert (found["blk.0.attn_q.bias"].dtype, found["blk.0.attn_q.bias"].bytes()) == ("F32", bias)


def test_biases_of_a_llama_are_reordered_too(tmp_path: Path) -> None:
    export = of_type("modelopt-nvfp4", "llama")
    export.put("model.layers.0.self_attn.q_proj.bias", "BF16", np.arange(128) + 0x3F80)
    found = written(export, tmp_path).tensors["blk.0.attn_q.bias"]
    bias = np.arange(128, dtype=np.uint32) + 0x3F80 << 16
    assert found.bytes() == interleaved(bias[:, None], 4).tobytes()


@pytest.mark.rule("CNV-63")
def test_the_metadata_of_a_gguf_keeps_the_types_of_what_became_float32(tmp_path: Path) -> None:
    export = mixture()
    norm = export.array("model.layers.0.input_layernorm.weight").astype(np.uint32) << 16
    export.put("model.layers.0.input_layernorm.weight", "F32", norm.view(np.float32))
    found = written(export, tmp_path)
    kept = json.loads(found.metadata["fp4ref.dtypes"])
    assert kept["output_norm.weight"] == kept["blk.0.ffn_gate_inp.weight"] == "BF16"
    assert not {"blk.0.attn_norm.weight", "token_embd.weight"} & kept.keys()


@pytest.mark.rule("CNV-38")
def test_norms_and_routers_become_float32_and_matrices_do_not(tmp_path: Path) -> None:
    export = mixture()
    found = written(export, tmp_path).tensors
    for hub, new in (
        ("model.norm", "output_norm"),
        ("model.layers.0.input_layernorm", "blk.0.attn_norm"),
        ("model.layers.0.mlp.gate", "blk.0.ffn_gate_inp"),
    ):
        bits = export.array(f"{hub}.weight").astype(np.uint32) << 16
        assert (found[f"{new}.weight"].dtype, found[f"{new}.weight"].bytes()) == ("F32", bits.tobytes())
    assert found["token_embd.weight"].dtype == "BF16"


@pytest.mark.rule("CNV-37")
def test_experts_are_stacked_with_a_scale_each(tmp_path: Path) -> None:
    export = mixture()
    found = written(export, tmp_path).tensors
    for last in ("gate", "up", "down"):
        modules = [f"model.layers.0.mlp.experts.{number}.{last}_proj" for number in range(corpus.EXPERTS)]
        expected = b"".join(structs(export, each).tobytes() for each in modules)
        tensor = found[f"blk.0.ffn_{last}_exps.weight"]
        assert tensor.bytes() == expected
        assert tensor.shape == (
            corpus.EXPERTS,
            *(n * k for n, k in zip(export.array(f"{modules[0]}.weight").shape, (1, 2), strict=True)),
        )
        scales = np.array([export.array(f"{each}.weight_scale_2") for each in modules], np.float32)
        assert found[f"blk.0.ffn_{last}_exps.scale"].shape == (corpus.EXPERTS,)
        assert found[f"blk.0.ffn_{last}_exps.scale"].bytes() == scales.tobytes()


@pytest.mark.rule("CNV-41")
def test_a_missing_expert_is_refused(tmp_path: Path) -> None:
    export = mixture()
    for suffix in ("weight", "weight_scale", "weight_scale_2", "input_scale"):
        export.drop(f"model.layers.0.mlp.experts.1.up_proj.{suffix}")
    with pytest.raises(DomainError, match="ffn_up_exps.weight without expert 1"):
        written(export, tmp_path)


@pytest.mark.rule("CNV-41")
def test_an_expert_in_another_form_is_refused(tmp_path: Path) -> None:
    export = mixture()
    for suffix in ("weight_scale", "weight_scale_2", "input_scale"):
        export.drop(f"model.layers.0.mlp.experts.1.up_proj.{suffix}")
    export.put("model.layers.0.mlp.experts.1.up_proj.weight", "BF16", np.zeros((256, 128)))
    with pytest.raises(DomainError, match="the same tensors of each expert"):
        written(export, tmp_path)


def test_gate_and_up_of_gpt_oss_are_two_tensors(tmp_path: Path) -> None:
    export = gpt_oss()
    found = written(export, tmp_path).tensors
    blocks = export.array("model.layers.0.mlp.experts.gate_up_proj_blocks")
    scales = export.array("model.layers.0.mlp.experts.gate_up_proj_scales")
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:3], 32)
    whole = np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], -1)
    bias = export.array("model.layers.0.mlp.experts.gate_up_proj_bias").astype(np.uint32) << 16
    for first, new in enumerate(("gate", "up")):
        tensor = found[f"blk.0.ffn_{new}_exps.weight"]
        assert (tensor.dtype, tensor.shape) == ("MXFP4", (4, 64, 64))
        assert tensor.bytes() == whole[:, first::2].tobytes()
        assert found[f"blk.0.ffn_{new}_exps.bias"].bytes() == bias[:, first::2].tobytes()
    assert found["blk.0.attn_sinks.weight"].bytes() == struct.pack("<4f", 1, 2, -2, 0.25)


@pytest.mark.sampled(3)
@pytest.mark.rule("CNV-42", "CNV-39")
@pytest.mark.parametrize("make", [lambda: of_type("modelopt-nvfp4", "llama"), mixture, gpt_oss])
@pytest.mark.parametrize("shard_bytes", [50_000, 5_000_000])
def test_the_way_back_gives_every_byte(make: Any, shard_bytes: int, tmp_path: Path) -> None:
    export = make()
    source = export.write(tmp_path / "source")
    convert(source, tmp_path / "gguf", "gguf", shard_bytes=shard_bytes)
    convert(tmp_path / "gguf", tmp_path / "back", "gpt-oss" if make is gpt_oss else "modelopt")
    one, two = (
        {name: (each.dtype, each.shape, each.bytes()) for name, each in open_checkpoint(path).tensors.items()}
        for path in (source, tmp_path / "back")
    )
    assert one == two
    manifests = [manifest_of_checkpoint(path) for path in (source, tmp_path / "gguf", tmp_path / "back")]
    assert compare(manifests[0], manifests[1]).sameness is Sameness.BYTES
    assert compare(manifests[0], manifests[2]).sameness is Sameness.BYTES


def test_hyperparameters_have_their_keys_and_types(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "rope_theta": 150000.0}
    export = gpt_oss()
    export.config |= {"rope_parameters": scaling}
    del export.config["rope_theta"]
    checkpoint = written(export, tmp_path, shard_bytes=20_000)
    assert len(checkpoint.shards) > 1
    for number, shard in enumerate(checkpoint.shards):
        values = {key: shard.read(*place) for key, place in shard.entries.items()}
        assert values["split.no"] == struct.pack("<IH", 2, number)
        assert values["split.count"] == struct.pack("<IH", 2, len(checkpoint.shards))
        assert values["split.tensors.count"] == struct.pack("<Ii", 5, len(checkpoint.tensors))
        numbers = {
            "block_count": 1,
            "context_length": 128,
            "embedding_length": 64,
            "feed_forward_length": 256,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.sliding_window": 128,
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 256,
            "vocab_size": 256,
            "rope.scaling.original_context_length": 4096,
        }
        for key, value in numbers.items():
            assert values[f"gpt-oss.{key}"] == struct.pack("<II", 4, value), key
        for key, real in (
            ("attention.layer_norm_rms_epsilon", 1e-6),
            ("rope.freq_base", 150000.0),
            ("rope.scaling.factor", 32.0),
        ):
            assert values[f"gpt-oss.{key}"] == struct.pack("<If", 6, real), key
        texts = {"general.architecture": "gpt-oss", "gpt-oss.rope.scaling.type": "yarn", "general.type": "model"}
        for key, text in texts.items():
            assert values[key] == struct.pack("<IQ", 8, len(text)) + text.encode()
        assert values["general.file_type"] == struct.pack("<II", 4, 38)


def test_factors_of_a_llama3_rotation(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    export = of_type("modelopt-nvfp4", "llama", head_dim=128, rope_theta=500000.0, rope_scaling=scaling)
    expected = []
    for index in range(64):
        length = 2 * np.pi * 500000.0 ** (2 * index / 128)
        if length < 8192 / 4:
            expected.append(1.0)
        elif length > 8192 / 1:
            expected.append(8.0)
        else:
            smooth = (8192 / length - 1) / (4 - 1)
            expected.append(1 / ((1 - smooth) / 8 + smooth))
    assert {1, 8} < {*expected}
    made = rope_factors(export.config)
    assert (np.abs(made.view(np.int32) - np.float32(expected).view(np.int32)) <= 1).all()
    checkpoint = written(of_type("modelopt-nvfp4", "llama", rope_theta=500000.0, rope_scaling=scaling), tmp_path)
    assert (checkpoint.tensors["rope_freqs.weight"].dtype, checkpoint.tensors["rope_freqs.weight"].shape) == (
        "F32",
        (16,),
    )
    convert(tmp_path / "gguf", tmp_path / "back", "modelopt")
    assert "rope_freqs.weight" not in open_checkpoint(tmp_path / "back").tensors


@pytest.mark.rule("CNV-40")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "deepseek_v3"}, "no map is known for model_type 'deepseek_v3'"),
        ({"model_type": None}, "no map is known for model_type None"),
        ({"rms_norm_eps": None}, "no usable rms_norm_eps"),
        ({"num_attention_heads": 0}, "no usable num_attention_heads"),
        ({"vocab_size": True}, "no usable vocab_size"),
        ({"rope_theta": float("inf")}, "no usable rope_theta"),
        ({"hidden_size": 1 << 40}, "no usable hidden_size"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "no usable factor of its rotation"),
    ],
)
def test_a_model_that_llama_cpp_would_read_otherwise_keeps_its_names(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    export = of_type("modelopt-nvfp4", "llama")
    export.config |= changes
    manifest = convert(export.write(tmp_path / "source"), tmp_path / "gguf", "gguf")
    (remark,) = manifest["remarks"]
    assert why in remark
    assert "llama.cpp loads no model from it" in remark
    assert "model.layers.0.self_attn.q_proj.weight" in open_checkpoint(tmp_path / "gguf").tensors


@pytest.mark.rule("CNV-40")
def test_a_router_that_does_not_normalize_is_no_model_of_llama_cpp() -> None:
    export = mixture()
    assert why_not(export.config) == ""
    del export.config["norm_topk_prob"]
    assert why_not(export.config) == "norm_topk_prob is False, and llama.cpp computes as if it were True"
    assert why_not(None) == "there is no config.json"


@pytest.mark.rule("CNV-41")
def test_a_tensor_without_a_name_is_refused(tmp_path: Path) -> None:
    export = of_type("modelopt-nvfp4", "llama")
    export.put("model.layers.0.self_attn.q_norm.weight", "BF16", np.zeros(32))
    with pytest.raises(DomainError, match=r"q_norm.weight, for which llama.cpp's llama has no name"):
        written(export, tmp_path)
    assert not (tmp_path / "gguf").exists()


@pytest.mark.rule("CNV-41")
def test_rows_that_are_no_whole_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="q_proj.weight with 128 rows"):
        written(of_type("modelopt-nvfp4", "llama", num_attention_heads=3, head_dim=32), tmp_path)


@pytest.mark.rule("CNV-39")
def test_a_source_in_high_precision_becomes_a_named_gguf(tmp_path: Path) -> None:
    """Quantizing on the way gives the same bytes as quantizing first: rows move whole."""
    export = of_type("source", "llama")
    source = export.write(tmp_path / "source")
    from fp4ref import NVFP4

    settings: dict[str, Any] = {"specs": [("*_proj", NVFP4)]}
    convert(source, tmp_path / "one", "gguf", **settings)
    convert(source, tmp_path / "modelopt", "modelopt.nvfp4", **settings)
    convert(tmp_path / "modelopt", tmp_path / "two", "gguf")
    one, two = (open_checkpoint(tmp_path / each).tensors for each in ("one", "two"))
    assert one["blk.0.attn_q.weight"].dtype == "NVFP4"
    for last in ("attn_output", "ffn_down"):  # no members of fused sets, whose scales modelopt has in common
        assert one[f"blk.0.{last}.weight"].dtype == "NVFP4"
        assert one[f"blk.0.{last}.weight"].bytes() == two[f"blk.0.{last}.weight"].bytes()


@pytest.mark.rule("CNV-42")
def test_lint_compares_such_a_gguf_with_its_source(tmp_path: Path) -> None:
    export, source = of_type("source", "llama"), tmp_path / "source"
    export.write(source)
    from fp4ref import NVFP4

    convert(source, tmp_path / "gguf", "gguf", specs=[("*_proj", NVFP4)])
    report = lint(tmp_path / "gguf", source=source)
    assert (report.findings, report.remarks) == ([], [])
    tensor = open_checkpoint(tmp_path / "gguf").tensors["blk.0.attn_q.weight"]
    data = bytearray(tensor.shard.path.read_bytes())
    for row in range(6):  # two elements of each
        data[tensor.start + 72 * row + 9] ^= 0x77
    tensor.shard.path.write_bytes(data)
    (found,) = lint(tmp_path / "gguf", source=source).findings
    assert found.tensors == ("blk.0.attn_q.weight",)
    assert "model.layers.0.self_attn.q_proj" in found.message


@pytest.mark.rule("CNV-42")
@given(begin=st.integers(0, 128 * 72), count=st.integers(0, 700))
def test_a_view_gives_any_part(begin: int, count: int, views: Any) -> None:
    tensor = views("model.layers.0.self_attn.q_proj.weight")
    count = min(count, tensor.count - begin)
    assert tensor.bytes(begin, count) == tensor.bytes()[begin : begin + count]


@given(begin=st.integers(0, 256), count=st.integers(0, 256))
def test_a_view_of_a_norm_gives_any_part(begin: int, count: int, views: Any) -> None:
    tensor = views("model.norm.weight")
    assert tensor.dtype == "BF16"
    count = min(count, tensor.count - begin)
    assert tensor.bytes(begin, count) == tensor.bytes()[begin : begin + count]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from a name on the Hub to its view."""
    folder = tmp_path_factory.mktemp("views")
    view = as_on_the_hub(written(of_type("modelopt-nvfp4", "llama"), folder))
    assert view is not None
    tensors = view.checkpoint.tensors
    return lambda name: tensors[name]


@pytest.mark.rule("CNV-42")
def test_a_norm_that_somebody_changed_is_not_rounded(tmp_path: Path) -> None:
    checkpoint = written(of_type("modelopt-nvfp4", "llama"), tmp_path)
    tensor = checkpoint.tensors["output_norm.weight"]
    data = bytearray(tensor.shard.path.read_bytes())
    data[tensor.start] ^= 1
    tensor.shard.path.write_bytes(data)
    with pytest.raises(FileError, match="'output_norm.weight' with values that BF16"):
        convert(tmp_path / "gguf", tmp_path / "back", "modelopt")


@pytest.mark.rule("CNV-40")
@pytest.mark.parametrize("heads", ["0", "3", "x", "99999999999999999999"])
def test_numbers_of_heads_that_cannot_be_true_leave_the_names(heads: str, tmp_path: Path) -> None:
    checkpoint = written(of_type("modelopt-nvfp4", "llama"), tmp_path)
    checkpoint.metadata["llama.attention.head_count"] = heads
    assert as_on_the_hub(checkpoint) is None
