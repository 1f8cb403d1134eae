"""Converted checkpoints have no finding that their source lacks, unless the conversion said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fp4ref
from checkpoints_corpus import of_layers
from fp4ref.checkpoints import lint
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.convention import families
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.running import run
from fp4ref.errors import DomainError

corpus = of_layers(1)
QUICK = ("modelopt-nvfp4", "compressed-nvfp4", "gpt-oss-original", "comfy-nvfp4", "gguf-mxfp4", "mlx-mxfp8")
EXPORTS = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.heavy]) for name in corpus.CLEAN if name != "source"
]


def with_a_dead_row(export: Any) -> Any:
    """Return an export in which a row of a quantized weight is zero."""
    for name, (_, array) in export.tensors.items():
        if array.dtype == np.uint8 and array.ndim == 2 and "weight" in name and "scale" not in name:
            array[17] = 0
            break
    return export


def findings(path: Path) -> set[tuple[str, str]]:
    return {(each.code, each.severity) for each in lint(path).findings}


@pytest.mark.sampled(3)
@pytest.mark.rule("CNV-1", "CKP-13", "CKP-27")
@pytest.mark.parametrize("export", EXPORTS)
def test_what_is_written_is_not_blamed(export: str, tmp_path: Path) -> None:
    source = with_a_dead_row(corpus.CLEAN[export]()).write(tmp_path / "source")
    source = next(source.glob("*.gguf"), source)
    before, written = findings(source), 0
    for to in families():
        try:
            manifest = run(request_to_convert(source, tmp_path / to, to=to, lossy=True))
        except DomainError:
            continue
        assert manifest is not None
        written += 1
        said = " ".join(manifest["remarks"])
        known = {
            "fused-global-scale": "members with different global scales" in said,
            "exclude-list": "for excluded" in said,
            "missing-tensor": "have no input scale" in said,
        }
        new = findings(tmp_path / to) - before
        assert not {each for each in new if not known.get(each[0])}, to
    assert written > 1


@pytest.mark.rule("CNV-14", "CNV-35")
def test_a_conversion_says_what_a_loader_lacks(tmp_path: Path) -> None:
    """Input scales of some weights; a module whose name has an excluded one in it."""
    export = corpus.CLEAN["modelopt-nvfp4"]()
    some = [name for name in export.tensors if name.endswith(".input_scale")]
    export.drop(*some[1:])
    export.put("down.weight", "BF16", np.ones((16, 16)))
    source = export.write(tmp_path / "source")
    manifest = run(request_to_convert(source, tmp_path / "out", to="modelopt"))
    assert manifest is not None
    assert any(f"{len(some) - 1} of {len(some)} weights in modelopt.nvfp4" in each for each in manifest["remarks"])
    assert any("reads 'down' as" in each and "down_proj" in each for each in manifest["remarks"])
    assert {"missing-tensor", "exclude-list"} <= {code for code, _ in findings(tmp_path / "out")}


def plain_model(**weights: np.ndarray) -> Any:
    """Return an export in high precision of some modules of a layer, with embeddings and a router."""
    export = corpus.Export(config={"model_type": "llama"})
    for name, values in weights.items():
        export.put(f"model.layers.0.{name.replace('__', '.')}.weight", "F32", values)
    export.put("model.embed_tokens.weight", "F32", drawn(64, 32))
    export.put("lm_head.weight", "F32", drawn(64, 32))
    return export


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def remarks(source: Path, target: Path, to: str, **settings: Any) -> list[str]:
    manifest = run(request_to_convert(source, target, to=to, **settings))
    assert manifest is not None
    return [*manifest["remarks"]]


@pytest.mark.rule("CNV-13")
def test_quantizing_says_what_its_scales_lose_and_loaders_refuse(tmp_path: Path) -> None:
    """A matrix that vanishes beside its fused partner; columns that end within a block, which the own form may have."""
    tiny = drawn(32, 40) * np.float32(1e-30)
    tiny[5] = 0
    source = plain_model(mlp__gate_proj=drawn(32, 40), mlp__up_proj=tiny).write(tmp_path / "source")
    specs = [("*", fp4ref.profiles["nvfp4"])]
    said = remarks(source, tmp_path / "out", "modelopt", specs=specs)
    up = "model.layers.0.mlp.up_proj"
    assert [text for text in said if text.startswith(f"{up}: {31 * 3} blocks that are not zero have a scale of 0")]
    assert [text for text in said if f"{up}: 40 columns, no multiple of the block of 16" in text]
    said = remarks(source, tmp_path / "own", "fp4ref", specs=specs)
    assert not [text for text in said if "columns" in text]


@pytest.mark.rule("CNV-13")
def test_a_pattern_to_exclude_includes_nothing(tmp_path: Path) -> None:
    source = plain_model(mlp__up_proj=drawn(32, 32), self_attn__o_proj=drawn(32, 32)).write(tmp_path / "source")
    specs = [("*", fp4ref.profiles["nvfp4"])]
    remarks(source, tmp_path / "out", "modelopt", specs=specs, exclude=["*self_attn*"])
    groups = recognize(open_checkpoint(tmp_path / "out")).groups
    assert [group.module for group in groups] == ["model.layers.0.mlp.up_proj"]


@pytest.mark.rule("CNV-1")
def test_gpt_oss_has_no_dense_weights(tmp_path: Path) -> None:
    source = corpus.CLEAN["modelopt-mxfp4"]().write(tmp_path / "source")
    assert any("experts alone" in text for text in remarks(source, tmp_path / "out", "gpt-oss"))
    experts = corpus.CLEAN["gpt-oss"]().write(tmp_path / "experts")
    assert not any("experts alone" in text for text in remarks(experts, tmp_path / "again", "gpt-oss"))


@pytest.mark.rule("CKP-3")
def test_an_empty_shard_of_a_series_loses_nothing(tmp_path: Path) -> None:
    source = corpus.CLEAN["modelopt-nvfp4"]().write(tmp_path / "source")
    empty = corpus.safetensors_bytes({}, {"format": "pt"})
    (source / "model-00000-of-00002.safetensors").write_bytes(empty)
    assert findings(source) == set()
    (source / "model-00000-of-00002.safetensors").write_bytes(empty[:-3])
    assert findings(source) == {("index", "error")}
