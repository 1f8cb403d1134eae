"""Experts in one tensor: quantized along their inputs, whole for gpt-oss and one by one for other conventions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints_corpus as corpus
import fp4ref
from fp4ref.catalogue import PROFILES
from fp4ref.checkpoints import lint
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.running import run
from fp4ref.errors import DomainError

HIDDEN, INTER, EXPERTS = 64, 96, 3
HEAD = "model.layers.0.mlp.experts"
SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "sliding_window": 32,
}


class Model:
    """A layer with experts, each as a matrix [outputs, inputs], and a checkpoint that stores them in some form."""

    def __init__(self, *, turned: bool, alternate: bool, suffix: str = "", inter: int = INTER) -> None:
        self.weights: dict[str, np.ndarray] = {}
        self.biases: dict[str, np.ndarray] = {}
        self.config: dict[str, Any] = dict(SIZES)
        kind = "intermediate_size" if alternate else "moe_intermediate_size"
        self.config |= {kind: inter, "num_local_experts": EXPERTS, "model_type": "gpt_oss" if alternate else "some_moe"}
        self.alternate = alternate
        rng = np.random.default_rng(inter)
        for expert in range(EXPERTS):
            for name, shape in (
                ("gate_proj", (inter, HIDDEN)),
                ("up_proj", (inter, HIDDEN)),
                ("down_proj", (HIDDEN, inter)),
            ):
                self.weights[f"{expert}.{name}"] = corpus.weight(int(rng.integers(1 << 30)), shape)
                self.biases[f"{expert}.{name}"] = corpus.weight(int(rng.integers(1 << 30)), shape[:1])
        self.export = corpus.Export(config=self.config, shards=2)
        for name in ("q_proj", "o_proj"):
            self.export.put(f"model.layers.0.self_attn.{name}.weight", "BF16", corpus.bf16(corpus.weight(9, (64, 64))))
        for part, names in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            stacked = np.stack([self.joined(expert, names, self.weights) for expert in range(EXPERTS)])
            if turned:
                stacked = stacked.swapaxes(1, 2)
            self.export.put(f"{HEAD}.{part}{suffix}", "BF16", corpus.bf16(stacked))
            if alternate:
                both = np.stack([self.joined(expert, names, self.biases) for expert in range(EXPERTS)])
                self.export.put(f"{HEAD}.{part}_bias", "BF16", corpus.bf16(both))

    def joined(self, expert: int, names: tuple[str, ...], values: dict[str, np.ndarray]) -> np.ndarray:
        """The rows of two weights, one after the other or in turn."""
        each = [values[f"{expert}.{name}"] for name in names]
        if len(each) == 1 or not self.alternate:
            return np.concatenate(each)
        whole = np.empty((2 * len(each[0]), *each[0].shape[1:]), np.float32)
        whole[0::2], whole[1::2] = each
        return whole


FORMS: dict[str, dict[str, Any]] = {
    "gpt-oss": {"turned": True, "alternate": True},
    "turned": {"turned": True, "alternate": False},
    "straight": {"turned": False, "alternate": False},
    "named as weights": {"turned": False, "alternate": False, "suffix": ".weight"},
}


def quantized(source: Path, target: Path, to: str, spec: str, **options: Any) -> dict[str, Any]:
    """Quantize a checkpoint, and return its tensors by name."""
    run(request_to_convert(source, target, to=to, specs=[("*", PROFILES[spec])], requantize=False, **options))
    return open_checkpoint(target).tensors


@pytest.mark.sampled(4)
@pytest.mark.rule("CNV-24", "CNV-58")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("to", "spec"), [("modelopt", "nvfp4"), ("compressed-tensors", "mxfp4"), ("mlx", "mxfp8-e4m3")]
)
def test_each_expert_has_the_bytes_of_its_weight_alone(form: str, to: str, spec: str, tmp_path: Path) -> None:
    model = Model(**FORMS[form])
    found = quantized(model.export.write(tmp_path / "in"), tmp_path / "out", to, spec)
    code = ".weight_packed" if to == "compressed-tensors" else ".weight"
    for name, values in model.weights.items():
        together = [name, *(f"{name[0]}.{other}" for other in ("gate_proj", "up_proj") if "down" not in name)]
        shared = max(np.abs(model.weights[each]).max() for each in together) if spec == "nvfp4" else None
        expected = fp4ref.quantize(values, spec, amax=shared, backend="numpy").row
        assert found[f"{HEAD}.{name}{code}"].bytes() == np.asarray(expected.data).tobytes()
        scales = "scales" if to == "mlx" else "weight_scale"
        assert found[f"{HEAD}.{name}.{scales}"].bytes() == np.asarray(expected.scales).tobytes()
        bias = found.get(f"{HEAD}.{name}.bias")
        assert (bias is not None) == model.alternate
        if bias is not None:
            assert bias.bytes() == corpus.bf16(model.biases[name]).tobytes()
    assert not [name for name in found if "gate_up_proj" in name or name == f"{HEAD}.down_proj"]
    assert [each.code for each in lint(tmp_path / "out", source=tmp_path / "in").findings] == []


@pytest.mark.rule("CNV-58")
def test_gpt_oss_gets_its_experts_whole_and_nothing_else(tmp_path: Path) -> None:
    model = Model(turned=True, alternate=True)
    found = quantized(model.export.write(tmp_path / "in"), tmp_path / "out", "gpt-oss", "mxfp4")
    for part, names in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        blocks, scales = [], []
        for expert in range(EXPERTS):
            row = fp4ref.quantize(model.joined(expert, names, model.weights), "mxfp4", backend="numpy").row
            blocks.append(np.asarray(row.data))
            scales.append(np.asarray(row.scales))
        stored = found[f"{HEAD}.{part}_blocks"]
        rows, columns = blocks[0].shape[0], blocks[0].shape[1] * 2
        assert stored.shape == (EXPERTS, rows, columns // 32, 16)
        assert stored.bytes() == np.stack(blocks).tobytes()
        assert found[f"{HEAD}.{part}_scales"].shape == (EXPERTS, rows, columns // 32)
        assert found[f"{HEAD}.{part}_scales"].bytes() == np.stack(scales).tobytes()
        assert found[f"{HEAD}.{part}_bias"].bytes() == model.export.array(f"{HEAD}.{part}_bias").tobytes()
    kept = {name: each for name, each in found.items() if "experts" not in name}
    assert {each.dtype for each in kept.values()} == {"BF16"}
    assert [each.code for each in lint(tmp_path / "out", source=tmp_path / "in").findings] == []
    with pytest.raises(DomainError, match="gpt-oss stores no other weight quantized"):
        quantized(tmp_path / "in", tmp_path / "other", "gpt-oss", "mxfp4", include=["*self_attn*"])


@pytest.mark.rule("CNV-24", "CNV-19")
@pytest.mark.parametrize("spec", ["mxfp4", "nvfp4"])
def test_a_gguf_of_gpt_oss_has_gate_and_up_apart(spec: str, tmp_path: Path) -> None:
    model = Model(turned=True, alternate=True, inter=128)  # structs of NVFP4 have 64 columns
    found = quantized(model.export.write(tmp_path / "in"), tmp_path / "out", "gguf", spec)
    for name in ("gate", "up"):
        assert found[f"blk.0.ffn_{name}_exps.weight"].shape == (EXPERTS, 128, HIDDEN)
    assert [each.code for each in lint(tmp_path / "out", source=tmp_path / "in").findings] == []


@pytest.mark.rule("CNV-24")
def test_an_axis_that_no_size_shows_is_refused(tmp_path: Path) -> None:
    model = Model(turned=True, alternate=False)
    del model.config["hidden_size"]
    source = model.export.write(tmp_path / "in")
    with pytest.raises(DomainError, match=r"experts\.gate_up_proj of shape .*hidden_size"):
        quantized(source, tmp_path / "out", "modelopt", "nvfp4")
    found = quantized(source, tmp_path / "out", "modelopt", "nvfp4", exclude=["*experts*"])
    assert found[f"{HEAD}.gate_up_proj"].dtype == "BF16"
    with pytest.raises(DomainError, match=r"gpt-oss\.original"):
        quantized(
            Model(turned=True, alternate=True).export.write(tmp_path / "b"), tmp_path / "c", "gpt-oss.original", "mxfp4"
        )


@pytest.mark.rule("CNV-24")
def test_convolutions_stay_as_they_are(tmp_path: Path) -> None:
    export = corpus.source()
    export.put("model.layers.0.mixer.conv1d.weight", "BF16", corpus.bf16(corpus.weight(1, (64, 1, 32))))
    source = export.write(tmp_path / "in")
    found = quantized(source, tmp_path / "out", "modelopt", "nvfp4")
    assert found["model.layers.0.mixer.conv1d.weight"].dtype == "BF16"
    asked = quantized(source, tmp_path / "asked", "modelopt", "nvfp4", include=["*conv1d"])
    assert asked["model.layers.0.mixer.conv1d.weight"].dtype == "U8"
