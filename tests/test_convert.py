"""Conversions of checkpoints: bytes against formulas, round trips, repairs, and runs that are interrupted."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from checkpoints_corpus import of_layers
from commands import convert, fp4
from covering import few
from fp4ref.checkpoints import CONVENTIONS, access, lint
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.convention import families
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.in_threads import usual_count
from fp4ref.checkpoints.repairs import REPAIRS, repair_command, scale_table
from fp4ref.checkpoints.transfer import quantizing, running, work
from fp4ref.checkpoints.transfer import request as requests
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.request import require_state
from fp4ref.checkpoints.transfer.running import run
from fp4ref.checkpoints.transfer.scales import Cost, StoredScale
from fp4ref.checkpoints.transfer.work import begin, finish, partial_of, remaining, write_part
from fp4ref.errors import DomainError, FileError
from standard_rules import rows_of

corpus = of_layers(1)
QUICK = ("modelopt-nvfp4", "compressed-mxfp4", "torchao-nvfp4-swizzled", "comfy-nvfp4", "gguf-mxfp4", "mlx-nvfp4")
EXPORTS = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.heavy]) for name in corpus.CLEAN if name != "source"
]
Stored = dict[str, tuple[str, tuple[int, ...], bytes]]
E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def tensors(path: Path) -> Stored:
    """Every tensor of a checkpoint: element type, shape and bytes."""
    checkpoint = open_checkpoint(path)
    assert checkpoint.problems == []
    return {name: (each.dtype, each.shape, each.bytes()) for name, each in checkpoint.tensors.items()}


def array(stored: Stored, name: str, dtype: Any = np.uint8) -> np.ndarray:
    _, shape, data = stored[name]
    return np.frombuffer(data, dtype).reshape(shape)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that writes an export once."""
    folder = tmp_path_factory.mktemp("exports")

    def export(name: str) -> Path:
        return folder / name if (folder / name).exists() else corpus.CLEAN[name]().write(folder / name)

    return export


@pytest.mark.rule("CNV-1", "CNV-3", "CNV-4", "CNV-5", "CNV-6", "CNV-14", "CNV-35")
@pytest.mark.parametrize("name", few([*EXPORTS], 4))
def test_a_round_trip_gives_every_byte(name: str, exports: Any, tmp_path: Path) -> None:
    source = exports(name)
    before, own = tensors(source), recognize(open_checkpoint(source))
    tried = []
    for family in families():
        there, back = tmp_path / family, tmp_path / f"{family}-back"
        refused = ""
        try:
            convert(source, there, family)
        except DomainError as error:
            refused = error.rule
        if refused:
            assert refused in {"CNV-4", "CNV-6", "CNV-14", "CNV-34", "CNV-35", "CNV-36"}
            assert not there.exists()
            assert not partial_of(there).exists()
            continue
        convert(there, back, own.groups[0].convention.name if len(own.conventions) == 1 else own.family)
        assert tensors(back) == before
        tried.append(family)
    assert own.family in tried


@pytest.mark.rule("CNV-1", "CNV-14")
@pytest.mark.parametrize(
    ("name", "family"),
    [
        *[("modelopt-nvfp4", each) for each in ("compressed-tensors", "torchao", "comfy", "gguf")],
        *[("compressed-nvfp4", each) for each in ("modelopt", "torchao")],
        ("torchao-mxfp8", "modelopt"),
        ("modelopt-mxfp8", "compressed-tensors"),
        ("compressed-mxfp4", "torchao"),
        ("gpt-oss", "compressed-tensors"),
        ("modelopt-fp8-row", "compressed-tensors"),
        ("compressed-fp8-row", "modelopt"),
        *[("compressed-fp8-square", each) for each in ("modelopt", "deepseek")],
        ("deepseek-fp8", "compressed-tensors"),
    ],
)
def test_the_linter_has_nothing_to_say_of_a_conversion(name: str, family: str, exports: Any, tmp_path: Path) -> None:
    convert(exports(name), tmp_path / "out", family)
    assert [each for each in lint(tmp_path / "out").findings if each.severity != "note"] == []


@pytest.mark.rule("CNV-12", "CNV-14")
@pytest.mark.parametrize("family", ["modelopt", "compressed-tensors"])
def test_scales_that_consumers_fuse_can_be_made_one(family: str, exports: Any, tmp_path: Path) -> None:
    """torchao gives each member of a set a scale of its own, and stores no input scales."""
    manifest = convert(exports("torchao-nvfp4"), tmp_path / "out", family)
    assert findings(tmp_path / "out") == {"fused-global-scale"}
    assert "2 fused sets have members with different global scales" in " ".join(manifest["remarks"])
    convert(tmp_path / "out", tmp_path / "mended", repairs=["fused-global-scale"])
    assert findings(tmp_path / "mended") == set()


@pytest.mark.rule("CKP-29")
def test_a_bias_does_not_hide_the_type_of_a_weight(tmp_path: Path) -> None:
    convert(corpus.CLEAN["comfy-nvfp4"]().write(tmp_path / "source"), tmp_path / "out", "torchao")
    found = recognize(open_checkpoint(tmp_path / "out"))
    assert found.conventions == ["torchao.nvfp4"]
    assert len(found.groups) == 3


def test_losses_are_named_and_refused(exports: Any, tmp_path: Path) -> None:
    source = exports("modelopt-nvfp4")
    refused = fp4("convert", source, tmp_path / "out", "--to", "mlx")
    assert refused.exit_code == 2
    assert "an input scale, for which mlx.nvfp4 has no place" in refused.stderr
    assert not (tmp_path / "out").exists()
    accepted = fp4("convert", source, tmp_path / "out", "--to", "mlx", "--lossy")
    assert accepted.exit_code == 0
    assert "loss: " in accepted.stdout


MODULE = "model.layers.0.mlp.down_proj"


def test_compressed_tensors_divide(exports: Any, tmp_path: Path) -> None:
    source = tensors(exports("modelopt-nvfp4"))
    convert(exports("modelopt-nvfp4"), tmp_path / "out", "compressed-tensors")
    found = tensors(tmp_path / "out")
    assert found[f"{MODULE}.weight_packed"] == source[f"{MODULE}.weight"]
    assert found[f"{MODULE}.weight_scale"] == source[f"{MODULE}.weight_scale"]
    for old, new in (("weight_scale_2", "weight_global_scale"), ("input_scale", "input_global_scale")):
        divisor = np.float32(1) / array(source, f"{MODULE}.{old}", np.float32)
        assert found[f"{MODULE}.{new}"] == ("F32", (1,), divisor.tobytes())


@pytest.mark.rule("CNV-1", "CNV-14")
def test_fp8_scales_of_rows_have_the_shape_and_the_declaration_of_each(exports: Any, tmp_path: Path) -> None:
    source = tensors(exports("modelopt-fp8-row"))
    convert(exports("modelopt-fp8-row"), tmp_path / "out", "compressed-tensors")
    found = tensors(tmp_path / "out")
    kind, shape, data = source[f"{MODULE}.weight_scale"]
    assert found[f"{MODULE}.weight_scale"] == (kind, (*shape, 1), data)
    assert found[f"{MODULE}.weight"] == source[f"{MODULE}.weight"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    (group,) = config["config_groups"].values()
    assert (config["format"], group["weights"]["strategy"]) == ("float-quantized", "channel")
    assert (group["input_activations"]["strategy"], group["input_activations"]["dynamic"]) == ("token", True)
    convert(tmp_path / "out", tmp_path / "back", "modelopt")
    assert tensors(tmp_path / "back") == source
    quantization = json.loads((tmp_path / "back" / "hf_quant_config.json").read_text())["quantization"]
    assert quantization["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN"


@pytest.mark.rule("CNV-1", "CKP-10")
def test_modelopts_squares_have_sizes_of_1_beside_theirs(exports: Any, tmp_path: Path) -> None:
    """Its export gives a weight of [256, 128] scales of shape [2, 1, 1, 1] (modelopt 0.47.0)."""
    convert(exports("compressed-fp8-square"), tmp_path / "out", "modelopt")
    name = MODULE.replace("down_proj", "up_proj")
    kind, shape, data = tensors(exports("compressed-fp8-square"))[f"{name}.weight_scale"]
    assert (kind, shape) == ("BF16", (2, 1))
    assert tensors(tmp_path / "out")[f"{name}.weight_scale"] == (kind, (2, 1, 1, 1), data)
    assert findings(tmp_path / "out") == set()


def test_comfy_has_tiles_and_the_high_nibble_first(exports: Any, tmp_path: Path) -> None:
    source = tensors(exports("modelopt-nvfp4"))
    convert(exports("modelopt-nvfp4"), tmp_path / "out", "comfy")
    found = tensors(tmp_path / "out")
    data = array(source, f"{MODULE}.weight")
    assert (array(found, f"{MODULE}.weight") == (data >> 4 | data << 4)).all()
    scales = corpus.tiled(array(source, f"{MODULE}.weight_scale"))
    assert (array(found, f"{MODULE}.weight_scale") == scales).all()


def test_gguf_has_structs(exports: Any, tmp_path: Path) -> None:
    source = tensors(exports("compressed-mxfp4"))
    convert(exports("compressed-mxfp4"), tmp_path / "out", "gguf")
    kind, shape, stored = tensors(tmp_path / "out")[f"{MODULE}.weight"]
    data, scales = array(source, f"{MODULE}.weight_packed"), array(source, f"{MODULE}.weight_scale")
    codes = np.stack([data & 15, data >> 4], -1).reshape(-1, 32)
    structs = np.concatenate([scales.reshape(-1, 1), codes[:, :16] | codes[:, 16:] << 4], 1)
    assert (kind, shape, stored) == ("MXFP4", (data.shape[0], 2 * data.shape[1]), structs.tobytes())


@pytest.mark.rule("CNV-36")
def test_a_gguf_keeps_its_metadata_or_says_that_it_has_none(exports: Any, tmp_path: Path) -> None:
    export = corpus.CLEAN["gguf-nvfp4"]()
    export.put("blk.0.ffn_up.input_scale", "F32", [0.5])
    source = export.write(tmp_path / "source")
    manifest = convert(source, tmp_path / "same")
    assert manifest["remarks"] == []
    before, after = (open_checkpoint(path).metadata for path in (source, tmp_path / "same"))
    assert after.items() >= before.items() >= {"general.architecture": "llama", "tokens": "['a', 'b']"}.items()
    manifest = convert(exports("compressed-mxfp4"), tmp_path / "other", "gguf")
    assert any("llama.cpp loads no model from it" in text for text in manifest["remarks"])
    written = open_checkpoint(tmp_path / "other").metadata
    assert (written["general.architecture"], written["general.quantization_version"]) == ("llama", "2")


def test_mlx_has_words(exports: Any, tmp_path: Path) -> None:
    source = tensors(exports("compressed-mxfp4"))
    convert(exports("compressed-mxfp4"), tmp_path / "out", "mlx")
    found = tensors(tmp_path / "out")
    data = array(source, f"{MODULE}.weight_packed")
    assert found[f"{MODULE}.weight"] == ("U32", (data.shape[0], data.shape[1] // 4), data.tobytes())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] | {"group_size": 32, "bits": 4, "mode": "mxfp4"} == config["quantization"]


@pytest.mark.rule("CNV-3", "CNV-25")
@pytest.mark.parametrize(("number", "cost"), [(2.0**-12, Cost.EXACT), (1.9999999, Cost.ULP), (3.0, Cost.ROUNDED)])
def test_a_direction_is_proved(number: float, cost: Cost) -> None:
    multiplier, divisor = (CONVENTIONS[f"{name}.nvfp4"].global_direction for name in ("modelopt", "compressed-tensors"))
    scale = StoredScale(np.float32([number]), multiplier)
    assert scale.cost(divisor) is cost
    back = np.float32(1) / (np.float32(1) / np.float32(number))
    assert (back == np.float32(number)) is np.bool_(cost is not Cost.ULP)
    exact = Fraction(float(np.float32(1) / np.float32(number))) * Fraction(float(np.float32(number)))
    assert (exact == 1) is (cost is Cost.EXACT)


@pytest.mark.rule("CNV-64")
def test_a_number_that_was_changed_counts(exports: Any, tmp_path: Path) -> None:
    """The kept bits of a scale must not hide that somebody set another one."""
    convert(exports("modelopt-nvfp4"), tmp_path / "ct", "compressed-tensors")
    checkpoint = open_checkpoint(tmp_path / "ct")
    tensor = checkpoint.tensors[f"{MODULE}.weight_global_scale"]
    with tensor.shard.path.open("r+b") as file:
        file.seek(tensor.start)
        file.write(np.float32(512).tobytes())
    convert(tmp_path / "ct", tmp_path / "back", "modelopt")
    assert array(tensors(tmp_path / "back"), f"{MODULE}.weight_scale_2", np.float32) == 1 / 512


@pytest.mark.rule("CNV-4", "CNV-67")
def test_a_scale_byte_that_a_reader_misreads_is_a_loss(tmp_path: Path) -> None:
    export = corpus.CLEAN["torchao-nvfp4"]()
    export.array(f"{MODULE}._weight_scale")[3, 2] |= 0x80
    source = export.write(tmp_path / "source")
    with pytest.raises(DomainError, match=f"{MODULE}: 1 scale bytes that readers of gguf.nvfp4 decode otherwise"):
        convert(source, tmp_path / "out", "gguf")
    assert not (tmp_path / "out").exists()
    assert "1 scale bytes" in convert(source, tmp_path / "out", "gguf", lossy=True)["losses"][0]


@pytest.mark.rule("CNV-28")
def test_shards_are_those_of_the_source_or_cut(exports: Any, tmp_path: Path) -> None:
    source = exports("modelopt-nvfp4")
    homes = {name: each.shard.name for name, each in open_checkpoint(source).tensors.items()}
    sizes: dict[str, int] = {}
    for name, each in open_checkpoint(source).tensors.items():
        sizes[homes[name]] = sizes.get(homes[name], 0) + each.count
    assert len(sizes) == 2
    for limit in (2 * max(sizes.values()), min(sizes.values()) // 2):
        folder = tmp_path / str(limit)
        convert(source, folder, "compressed-tensors", shard_bytes=limit)
        written: dict[str, set[str]] = {}
        lengths: dict[str, int] = {}
        for name, each in open_checkpoint(folder).tensors.items():
            module = name.rpartition(".")[0]
            written.setdefault(each.shard.name, set()).update(
                home for other, home in homes.items() if other == f"{module}.weight"
            )
            lengths[each.shard.name] = lengths.get(each.shard.name, 0) + each.count
        assert all(len(of) == 1 for of in written.values()), written
        assert {next(iter(of)) for of in written.values()} == {*sizes}
        assert len(written) == 2 if limit > max(sizes.values()) else len(written) >= 4
        members = [each.shard.name for each in open_checkpoint(folder).tensors.values()]
        assert all(size <= limit or members.count(name) == 1 for name, size in lengths.items())


@pytest.mark.rule("CNV-2")
def test_pieces_make_the_same_bytes(exports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {}
    for family in ("comfy", "gguf", "torchao"):
        convert(exports("modelopt-nvfp4"), tmp_path / family, family)
        whole[family] = tensors(tmp_path / family)
    monkeypatch.setattr(access, "PIECE", 4096)
    for family, expected in whole.items():
        convert(exports("modelopt-nvfp4"), tmp_path / f"{family}-pieces", family)
        assert tensors(tmp_path / f"{family}-pieces") == expected


# Repairs


def findings(path: Path) -> set[str]:
    return {each.code for each in lint(path).findings if each.severity != "note"}


@pytest.mark.rule("CNV-11")
def test_a_code_without_a_finding_is_refused(exports: Any, tmp_path: Path) -> None:
    result = fp4("convert", exports("modelopt-nvfp4"), tmp_path / "out", "--repair", "nibble-order")
    assert (result.exit_code, "no finding 'nibble-order'" in result.stderr) == (2, True)
    result = fp4("convert", exports("modelopt-nvfp4"), tmp_path / "out", "--repair", "row-order")
    assert (result.exit_code, "no repair of 'row-order'" in result.stderr) == (2, True)
    assert repair_command("a b", ["padding"]) == "fp4ref convert 'a b' REPAIRED --repair padding"
    assert set(REPAIRS) >= {"nibble-order", "scale-layout", "padding", "scale-nan", "fused-global-scale"}


@pytest.mark.rule("CNV-11")
def test_nibbles_are_exchanged(exports: Any, tmp_path: Path) -> None:
    export = corpus.CLEAN["modelopt-nvfp4"]()
    data = export.array(f"{MODULE}.weight")
    data[:] = data >> 4 | data << 4
    source = export.write(tmp_path / "source")
    convert(source, tmp_path / "out", repairs={"nibble-order": [MODULE]})
    assert tensors(tmp_path / "out") == tensors(exports("modelopt-nvfp4"))


@pytest.mark.rule("CNV-11")
def test_tiles_become_linear(exports: Any, tmp_path: Path) -> None:
    export = corpus.CLEAN["modelopt-nvfp4"]()
    name = f"{MODULE}.weight_scale"
    export.put(name, "F8_E4M3", corpus.tiled(export.array(name)))
    source = export.write(tmp_path / "source")
    convert(source, tmp_path / "out", repairs={"scale-layout": [name]})
    assert tensors(tmp_path / "out") == tensors(exports("modelopt-nvfp4"))


@pytest.mark.rule("CNV-11")
def test_nan_scales_of_zeros_become_those_of_zeros(tmp_path: Path) -> None:
    export = corpus.CLEAN["modelopt-nvfp4"]()
    export.array(f"{MODULE}.weight_scale")[5, 3] = 0x7F
    kept = export.array(f"{MODULE}.weight").copy()
    broken = export.write(tmp_path / "broken")
    assert "scale-nan" in findings(broken)
    with pytest.raises(DomainError, match="1 blocks with elements that are not zero"):
        convert(broken, tmp_path / "out", repairs=["scale-nan"])
    export.array(f"{MODULE}.weight")[5, 24:32] = 0x80  # zeros of both signs
    source = export.write(tmp_path / "source")
    convert(source, tmp_path / "mended", repairs=["scale-nan"])
    found = tensors(tmp_path / "mended")
    assert array(found, f"{MODULE}.weight_scale")[5, 3] == 0x38  # that of 1: modelopt gives it to zeros
    kept[5, 24:32] = 0x80
    assert (array(found, f"{MODULE}.weight") == kept).all()
    assert "scale-nan" not in findings(tmp_path / "mended")


def decoded(stored: Stored, module: str) -> np.ndarray:
    """Values of a modelopt NVFP4 weight, by the formula: code times scale times global scale."""
    data = array(stored, f"{module}.weight")
    codes = np.stack([data & 15, data >> 4], -1).reshape(len(data), -1)
    scales = array(stored, f"{module}.weight_scale").view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    factor = np.float64(array(stored, f"{module}.weight_scale_2", np.float32))
    return E2M1[codes].astype(np.float64) * np.repeat(scales, 16, -1) * factor


@pytest.mark.rule("CNV-12", "CNV-55", "CNV-62")
def test_a_fused_set_gets_one_scale_within_the_reported_error(tmp_path: Path) -> None:
    export = corpus.CLEAN["modelopt-nvfp4"]()
    gate, up = (f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up"))
    values = corpus.model()[gate]
    corpus.put_modelopt(export, "nvfp4", gate, values, np.abs(values).max() * np.float32(1.7))
    source = export.write(tmp_path / "source")
    assert "fused-global-scale" in findings(source)
    manifest = convert(source, tmp_path / "out", repairs=["fused-global-scale"])
    before, after = tensors(source), tensors(tmp_path / "out")
    assert findings(tmp_path / "out") == set()
    scales = [array(before, f"{each}.weight_scale_2", np.float32) for each in (gate, up)]
    assert array(after, f"{gate}.weight_scale_2", np.float32) == max(scales)
    moved = gate if scales[0] < scales[1] else up
    assert after[f"{moved}.weight"] == before[f"{moved}.weight"]
    one, two = decoded(before, moved), decoded(after, moved)
    worst = np.max(np.abs(two[one != 0] / one[one != 0] - 1))
    said = next(text for text in manifest["remarks"] if text.startswith(moved))
    reported = float(said.rpartition(" ")[2])
    assert reported == pytest.approx(worst, rel=1e-5)
    assert 0 < reported <= 1 / 16


@pytest.mark.rule("CNV-55")
@pytest.mark.parametrize("ratio", [Fraction(1, 2), Fraction(1, 3), Fraction(1, 7), Fraction(1, 1000)])
def test_block_scales_are_rounded_once(ratio: Fraction) -> None:
    table, errors = scale_table(ratio)
    values = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    for byte in range(1, 127):
        exact = Fraction(values[byte]) * ratio
        above = int(np.searchsorted(values, float(exact)))
        distance = {code: abs(Fraction(values[code]) - exact) for code in range(max(above - 2, 0), min(above + 3, 127))}
        nearest = [code for code in distance if distance[code] == min(distance.values())]
        assert table[byte] in nearest
        assert len(nearest) == 1 or table[byte] % 2 == 0
        assert errors[byte] == abs(Fraction(values[table[byte]]) / exact - 1)
    assert (table[128:255] == table[:127] | 128).all()


# Quantizing


@pytest.mark.rule("CNV-7", "CNV-13", "CNV-28")
@pytest.mark.parametrize(
    ("family", "spec", "codes", "scale"),
    [
        ("modelopt", "modelopt.nvfp4", "weight", "weight_scale_2"),
        ("compressed-tensors", "compressed_tensors.nvfp4", "weight_packed", "weight_global_scale"),
    ],
)
def test_a_checkpoint_is_quantized(family: str, spec: str, codes: str, scale: str, tmp_path: Path) -> None:
    """The members of a fused set are in different shards of the source, and share an amax."""
    export = corpus.source()
    export.shards = 5
    source = export.write(tmp_path / "source")
    result = fp4("quantize", source, "-o", tmp_path / "out", "--to", family, "--spec", spec)
    assert result.exit_code == 0, result.output
    stored, given = tensors(tmp_path / "out"), tensors(source)
    for module, amax in corpus.amaxes(corpus.model()).items():
        values = array(given, f"{module}.weight", np.uint16).view(ml_dtypes.bfloat16)
        expected = fp4ref.quantize(values, spec, amax=amax, backend="numpy").row
        assert (array(stored, f"{module}.{codes}") == expected.data).all()
        assert (array(stored, f"{module}.weight_scale") == expected.scales).all()
        number = amax / np.float32(2688) if family == "modelopt" else np.float32(2688) / amax
        assert array(stored, f"{module}.{scale}", np.float32) == number
    shards = {name: each.shard.name for name, each in open_checkpoint(tmp_path / "out").tensors.items()}
    for members in corpus.SETS:
        homes = [shard for name, shard in shards.items() if any(f"{each}.weight" in name for each in members)]
        assert len(set(homes)) == 1
    assert findings(tmp_path / "out") == set()


@pytest.mark.rule("CNV-13")
def test_patterns_choose_the_specification(tmp_path: Path) -> None:
    source = corpus.source().write(tmp_path / "source")
    arguments = ("--to", "compressed-tensors", "--spec", "*.mlp.*=mxfp4", "--spec", "mxfp8-e4m3")
    result = fp4(
        "quantize",
        source,
        "-o",
        tmp_path / "out",
        *arguments,
        "--exclude",
        "*o_proj",
        "--exclude",
        "*embed*",
        "--exclude",
        "lm_head",
    )
    assert result.exit_code == 0, result.output
    found = recognize(open_checkpoint(tmp_path / "out"))
    kinds = {group.module.rpartition(".")[2]: group.convention.name for group in found.groups}
    assert kinds == {
        **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "compressed-tensors.mxfp4"),
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "compressed-tensors.mxfp8"),
    }


@pytest.mark.rule("CNV-13")
def test_what_exporters_keep_is_quantized_only_if_it_is_named(exports: Any, tmp_path: Path) -> None:
    wanted = [("lm_head", fp4ref.profiles["mxfp8-e4m3"]), ("*", fp4ref.profiles["mxfp4"])]
    for name, specs, head in (("out", wanted[1:], set()), ("named", wanted, {"lm_head"})):
        convert(exports("modelopt-mxfp4"), tmp_path / name, specs=specs, lossy=True)
        groups = {group.module for group in recognize(open_checkpoint(tmp_path / name)).groups}
        assert {module for module in groups if not module.endswith("_proj")} == head


@pytest.mark.rule("CNV-13")
@pytest.mark.parametrize(
    ("patterns", "named"),
    [
        (["*"], set()),
        (["*.mlp.gate_proj", "*"], set()),
        (["*lm_head*"], {"lm_head", "language_model.lm_head"}),
        (["*.embed_*"], {"model.embed_tokens"}),
        (["*.mlp.gate*"], {"model.layers.0.mlp.gate"}),
    ],
)
def test_a_pattern_names_what_exporters_keep(patterns: list[str], named: set[str]) -> None:
    modules = {"lm_head", "language_model.lm_head", "model.embed_tokens", "model.layers.0.mlp.gate", "model.norm"}
    specs = [(pattern, fp4ref.profiles["mxfp4"]) for pattern in patterns]
    left = request_to_convert("source", "out", specs=specs).exclude
    assert {module for module in modules if not any(fnmatchcase(module, each) for each in left)} == named


@pytest.mark.rule("CNV-11", "CNV-27")
@pytest.mark.parametrize("origin", [False, True])
def test_rows_of_padding_are_known_by_the_bias_or_the_metadata(origin: bool, tmp_path: Path) -> None:
    name = "double_blocks.0.img_attn.qkv"
    source = corpus.comfy().write(tmp_path / "padded")
    expected = tensors(source)
    if origin:
        convert(source, tmp_path / "linear", to="modelopt")
        assert array(tensors(tmp_path / "linear"), f"{name}.weight").shape == (40, 56)
        assert findings(tmp_path / "linear") == set()
        source = tmp_path / "again"
        convert(tmp_path / "linear", source, to="comfy")
    assert tensors(source) == expected
    data = bytearray((path := next(source.glob("*.safetensors"))).read_bytes())
    weight = open_checkpoint(source).tensors[f"{name}.weight"]
    data[weight.start + 44 * 56] = 0x11
    path.write_bytes(data)
    with pytest.raises(DomainError, match="padding that is not zero"):
        convert(source, tmp_path / "refused", to="modelopt")
    convert(source, tmp_path / "mended", repairs=["padding"])
    assert tensors(tmp_path / "mended") == expected


@pytest.mark.rule("CNV-56")
def test_what_cannot_be_quantized_is_refused(tmp_path: Path) -> None:
    export = corpus.source()
    export.array(f"{MODULE}.weight")[0, 0] = 0x7F80
    source = export.write(tmp_path / "source")
    for arguments, said in (
        (("--spec", "nvfp4"), "values that are not finite"),
        (("--spec", "nvfp4-row-scaled"), "one global scale per tensor or none"),
        (("--include", "nothing"), "no matrix that the patterns take"),
        (("--layout", "tiled_128x4"), "for a dump, not for a checkpoint"),
    ):
        result = fp4("quantize", source, "-o", tmp_path / "out", "--to", "modelopt", *arguments)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
        assert not (tmp_path / "out").exists()
    assert "or --to CONVENTION" in fp4("quantize", source, "-o", tmp_path / "out").stderr


@pytest.mark.rule("CNV-13")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("largest", [0.0, -0.0, 2.0**-24, -3.5, 65504.0])
def test_the_largest_magnitude_is_that_of_the_values(dtype: Any, largest: float) -> None:
    values = np.array([[0, largest, -0.0], [largest / 2, 0, 0]], dtype)
    assert quantizing.largest_magnitude("m", values) == abs(float(dtype(largest)))
    for wrong in (np.nan, -np.nan, np.inf, -np.inf):
        values[1, 2] = wrong
        with pytest.raises(DomainError, match="m: values that are not finite"):
            quantizing.largest_magnitude("m", values)


@pytest.mark.rule("CNV-4", "CNV-13", "CNV-51", "CNV-66")
def test_requantizing_counts_the_values_that_move(exports: Any, tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=r"decoded values differ, SQNR \d+\.\d dB; not exact: .*row \d+, column"):
        convert(exports("mlx-nvfp4"), tmp_path / "lossy", specs=[("*", fp4ref.profiles["mxfp4"])])
    with pytest.raises(DomainError, match=r"v_proj and 4 more: an input scale, which is for other formats"):
        convert(exports("modelopt-nvfp4"), tmp_path / "lossy", specs=[("*", fp4ref.profiles["mxfp4"])])
    source = exports("modelopt-mxfp4")
    manifest = convert(source, tmp_path / "same", specs=[("*", fp4ref.profiles["mxfp4"])])
    assert manifest["losses"] == []
    assert decoded_mx(tmp_path / "same") == decoded_mx(source)


def decoded_mx(path: Path) -> bytes:
    """Values of one MXFP4 weight, by the formula: code times power of two."""
    stored = tensors(path)
    data = array(stored, f"{MODULE}.weight")
    codes = np.stack([data & 15, data >> 4], -1).reshape(len(data), -1)
    scales = np.exp2(array(stored, f"{MODULE}.weight_scale").astype(np.float64) - 127)
    return (E2M1[codes] * np.repeat(scales, 32, -1) + 0.0).tobytes()


# The target, and runs that are interrupted


def files(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(path.iterdir())}


@pytest.mark.rule("CNV-29")
def test_a_target_that_exists_is_refused(exports: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    result = fp4("convert", exports("modelopt-nvfp4"), tmp_path / "out", "--to", "torchao")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "it exists" in result.stderr


@pytest.mark.rule("CNV-29")
def test_a_target_inside_the_source_is_refused(exports: Any, tmp_path: Path) -> None:
    source = exports("modelopt-nvfp4")
    before = files(source)
    (tmp_path / "link").symlink_to(source)
    for target in (source / "out", tmp_path / "link" / "out"):
        result = fp4("convert", source, target, "--to", "torchao")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "inside the source" in result.stderr
        assert files(source) == before


@pytest.mark.rule("CNV-8", "CNV-9", "CNV-60")
def test_a_full_disk_loses_nothing(exports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = exports("modelopt-nvfp4")
    before, write = files(source), os.pwrite
    written = 0

    def pwrite(file: int, data: Any, offset: int) -> int:
        nonlocal written
        written += len(data)
        if written > 200_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(FileError, match="no space left on device"):
        convert(source, tmp_path / "out", "torchao", shard_bytes=50_000)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    assert not [each for each in partial_of(tmp_path / "out").iterdir() if each.suffix == ".tmp"]
    kept = {each: each.stat().st_mtime_ns for each in partial_of(tmp_path / "out").glob("*.safetensors")}
    assert kept
    request = request_to_convert(source, tmp_path / "out", to="torchao", shard_bytes=50_000)
    partial, plan = begin(request)
    assert len(remaining(partial, plan)) == len(plan.shards) - len(kept)
    assert run(request) is not None
    assert {(tmp_path / "out" / each.name).stat().st_mtime_ns for each in kept} == set(kept.values())
    convert(source, tmp_path / "once", "torchao", shard_bytes=50_000)
    assert files(tmp_path / "out") == files(tmp_path / "once")
    assert files(source) == before


@pytest.mark.rule("CNV-10", "CNV-31")
def test_a_source_that_changes_is_noticed(tmp_path: Path) -> None:
    source = corpus.CLEAN["modelopt-nvfp4"]().write(tmp_path / "source")
    partial, plan = begin(request_to_convert(source, tmp_path / "out", to="torchao"))
    write_part(str(partial), 0)
    shard = source / "model-00002-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(FileError, match="changed while it was read"):
        write_part(str(partial), 1)
    with pytest.raises(FileError, match="parts of another conversion, or of a source that changed"):
        begin(request_to_convert(source, tmp_path / "out", to="torchao"))
    assert len(plan.shards) == 2


@pytest.mark.rule("CNV-33")
def test_a_byte_that_changes_under_the_same_size_and_times_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus.CLEAN["modelopt-nvfp4"]().write(tmp_path / "source")
    partial, plan = begin(request_to_convert(source, tmp_path / "out", to="torchao"))
    stored, changed = open_checkpoint(source).tensors, list[str]()
    monkeypatch.setattr(work, "require_state", lambda *request: None)  # as if the file system showed the old ones

    def step(name: str, count: int) -> None:
        if name in stored and not changed:
            changed.append(name)
            with stored[name].shard.path.open("r+b") as file:
                file.seek(stored[name].start)
                file.write(bytes([stored[name].bytes(0, 1)[0] ^ 1]))

    with pytest.raises(FileError, match="changed while it was read"):
        write_part(str(partial), 0, step)
    assert changed
    assert remaining(partial, plan) == [0, 1]
    assert not (partial / plan.shards[0].name).exists()


@pytest.mark.rule("CNV-10", "CNV-32")
def test_a_shard_compares_only_the_files_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files for each shard would be work that grows with the square of their number."""
    source = corpus.CLEAN["modelopt-nvfp4"]().write(tmp_path / "source")
    partial, plan = begin(request_to_convert(source, tmp_path / "out", to="torchao"))
    compared: dict[str, list[set[str]]] = {"_state": [], "_heads": []}
    for name, seen in compared.items():
        original = getattr(requests, name)
        monkeypatch.setattr(
            requests, name, lambda path, names, seen=seen, own=original: (seen.append({*names}), own(path, names))[1]
        )
    write_part(str(partial), 0)
    read = {each.path.name for each in plan.sources if each.journal}
    assert compared == {"_state": [read], "_heads": [read]}
    assert len(read) < len(plan.request.heads)
    monkeypatch.undo()
    other = next(each.path for each in plan.sources if each.path.name not in read)
    for damaged in (
        replace(plan.request, heads=plan.request.heads | {other.name: "0"}),
        replace(plan.request, state=plan.request.state | {other.name: "0"}),
    ):
        require_state(damaged, read)
        for names in (None, {other.name}):
            with pytest.raises(FileError, match="changed while it was read"):
                require_state(damaged, names)


@pytest.mark.rule("CNV-15")
def test_workers_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("FP4REF_NUM_THREADS", raising=False)
    with running._processors(1):
        assert (os.environ["FP4REF_NUM_THREADS"], os.environ["OMP_NUM_THREADS"]) == ("1", "7")
    assert "FP4REF_NUM_THREADS" not in os.environ


@pytest.mark.rule("CNV-9", "CNV-15")
def test_ranks_and_processes_write_the_same_bytes(exports: Any, tmp_path: Path) -> None:
    source, common = exports("modelopt-nvfp4"), ("--to", "gguf", "--shard-bytes", 60_000)
    assert fp4("convert", source, tmp_path / "one", *common).exit_code == 0
    for rank in (1, 0):
        early = fp4("merge", tmp_path / "ranks")
        assert early.exit_code == 2
        result = fp4("convert", source, tmp_path / "ranks", *common, "--rank", rank, "--world", 2)
        assert result.exit_code == 0, result.output
        assert not (tmp_path / "ranks").exists()
    assert fp4("merge", tmp_path / "ranks").exit_code == 0
    assert files(tmp_path / "ranks") == files(tmp_path / "one")
    assert len(files(tmp_path / "one")) > 4


@pytest.mark.rule("CNV-30")
def test_the_manifest_has_a_checksum_of_each_tensor(
    exports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "PIECE", 4096)
    convert(exports("modelopt-nvfp4"), tmp_path / "out", "compressed-tensors")
    manifest = json.loads((tmp_path / "out" / "fp4ref_manifest.json").read_text())
    stored = {name: data for name, (_, _, data) in tensors(tmp_path / "out").items()}
    sums = {name: text for found in manifest["tensors"].values() for name, text in found.items()}
    assert sums == {name: f"crc32:{zlib.crc32(data):08x}" for name, data in stored.items()}
    for name in manifest["tensors"]:
        assert manifest["files"][name]["size"] == (tmp_path / "out" / name).stat().st_size


@pytest.mark.rule("CNV-15")
@pytest.mark.parametrize(("said", "count"), [("1", 1), ("3", 3), ("500", 8)])
def test_a_process_works_in_as_many_threads_as_it_may(said: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FP4REF_NUM_THREADS", said)
    assert usual_count() == count
    monkeypatch.delenv("FP4REF_NUM_THREADS")
    assert 1 <= usual_count() <= 8


@pytest.mark.rule("CNV-15")
@pytest.mark.parametrize("to", ["compressed-tensors", "gguf"])
def test_threads_of_one_shard_write_the_same_bytes(to: str, tmp_path: Path) -> None:
    stored = corpus.CLEAN["modelopt-nvfp4"]()
    stored.shards = 1
    source = stored.write(tmp_path / "source")
    request = {name: request_to_convert(source, tmp_path / name, to=to) for name in ("one", "four")}
    steps: list[str] = []
    run(request["one"])
    run(request["four"], workers=4, tell=steps.append)
    assert files(tmp_path / "four") == files(tmp_path / "one")
    assert "(0.00 of 0.00 GB" in steps[-1]


@pytest.mark.rule("CNV-4", "CNV-8")
def test_a_loss_in_one_thread_leaves_no_file(tmp_path: Path) -> None:
    stored = corpus.CLEAN["modelopt-nvfp4"]()
    stored.shards = 1
    stored.array(f"{MODULE}.weight_scale")[3, 2] |= 0x80
    with pytest.raises(DomainError, match="1 scale bytes that readers of gguf.nvfp4"):
        run(request_to_convert(stored.write(tmp_path / "source"), tmp_path / "out", to="gguf"), workers=4)
    assert not (tmp_path / "out").exists()
    assert not partial_of(tmp_path / "out").exists()


@pytest.mark.rule("CNV-47")
@pytest.mark.heavy
def test_a_worker_that_is_killed_is_replaced(exports: Any, tmp_path: Path) -> None:
    source = exports("modelopt-nvfp4")
    convert(source, tmp_path / "one", "torchao", shard_bytes=30_000)
    command = [sys.executable, "-m", "fp4ref", "convert", source, tmp_path / "many", "--to", "torchao"]
    process = subprocess.Popen([*map(str, command), "--shard-bytes", "30000", "--workers", "3"])
    killed = False
    while process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        names = children.read_text().split() if children.exists() else []
        if not killed and len(names) > 2 and [*partial_of(tmp_path / "many").glob("*.done")]:
            os.kill(int(names[-1]), signal.SIGKILL)
            killed = True
        time.sleep(0.01)
    assert killed
    assert process.returncode == 0
    assert files(tmp_path / "many") == files(tmp_path / "one")


@pytest.mark.rule("CNV-8", "CNV-9")
@pytest.mark.heavy
def test_a_run_that_is_killed_goes_on(exports: Any, tmp_path: Path) -> None:
    source = exports("modelopt-nvfp4")
    convert(source, tmp_path / "once", "comfy", shard_bytes=5_000)
    shards = len([*(tmp_path / "once").glob("*.safetensors")])
    command = [sys.executable, "-m", "fp4ref", "convert", source, tmp_path / "out", "--to", "comfy"]
    rng = np.random.default_rng(7)
    kept: dict[Path, int] = {}
    killed = 0
    while not (tmp_path / "out").exists():
        process = subprocess.Popen([*map(str, command), "--shard-bytes", "5000"])
        more = len(kept) + int(rng.integers(1, 4))
        while process.poll() is None and len(done := [*partial_of(tmp_path / "out").glob("*.done")]) < more:
            time.sleep(float(rng.uniform(0, 0.002)))
        if process.poll() is None:
            process.kill()
            killed += process.wait() == -signal.SIGKILL
            if (tmp_path / "out").exists():
                break
            if len([*partial_of(tmp_path / "out").glob("*.safetensors")]) == shards:
                subprocess.run([*map(str, command), "--shard-bytes", "5000"], check=True)
                break  # it was killed when all was written, where the marks of what is done go
            assert {each: each.stat().st_mtime_ns for each in kept} == kept
            kept = {each: each.stat().st_mtime_ns for each in done}
    assert killed > 1
    assert files(tmp_path / "out") == files(tmp_path / "once")
    assert not partial_of(tmp_path / "out").exists()


@pytest.mark.rule("CNV-15")
def test_parts_are_not_joined_before_all_are_there(exports: Any, tmp_path: Path) -> None:
    partial, _ = begin(
        request_to_convert(exports("modelopt-nvfp4"), tmp_path / "out", to="torchao", shard_bytes=30_000)
    )
    write_part(str(partial), 0)
    with pytest.raises(FileError, match="shards are not written, such as model-00002-of-"):
        finish(tmp_path / "out")


CLUSTER = """
import json, sys, time
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(json.dumps([cluster.scheduler_address, [each.pid for each in cluster.workers.values()]]), flush=True)
        time.sleep(600)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """A scheduler in a process of its own, with two workers: the process, its address, the workers' processes."""
    pytest.importorskip("distributed")
    (tmp_path / "cluster.py").write_text(CLUSTER)
    command = [sys.executable, str(tmp_path / "cluster.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address, workers = json.loads(process.stdout.readline())
        yield process, address, workers
        process.kill()
        for each in workers:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def after_a_shard(process: subprocess.Popen[str], target: Path) -> None:
    """Wait until a run has finished a shard, and not all."""
    while not [*partial_of(target).glob("*.done")]:
        assert process.poll() is None
        time.sleep(0.01)


def on_cluster(source: Path, target: Path, address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fp4ref", "convert", source, target, "--to", "torchao", "--shard-bytes", 5_000]
    return subprocess.Popen([*map(str, command), "--scheduler", address], stderr=subprocess.PIPE, text=True)


@pytest.mark.rule("CNV-9", "CNV-15")
@pytest.mark.release
def test_a_cluster_writes_the_same_bytes_though_a_worker_is_killed(
    cluster: tuple[Any, str, list[int]], exports: Any, tmp_path: Path
) -> None:
    source, (_, address, workers) = exports("modelopt-nvfp4"), cluster
    convert(source, tmp_path / "one", "torchao", shard_bytes=5_000)
    process = on_cluster(source, tmp_path / "many", address)
    after_a_shard(process, tmp_path / "many")
    os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert files(tmp_path / "many") == files(tmp_path / "one")


@pytest.mark.rule("CNV-9", "CNV-61")
@pytest.mark.example("CNV-61")
@pytest.mark.release
def test_a_scheduler_that_is_lost_stops_the_run_in_one_line(
    cluster: tuple[Any, str, list[int]], exports: Any, tmp_path: Path
) -> None:
    source, (scheduler, address, _) = exports("modelopt-nvfp4"), cluster
    assert rows_of("CNV-61") == [
        ["ends in the middle of a run", "one line; the command again writes the other shards"],
    ]
    process = on_cluster(source, tmp_path / "out", address)
    after_a_shard(process, tmp_path / "out")
    scheduler.kill()
    _, said = process.communicate()
    errors = [line for line in said.splitlines() if not line.startswith("convert: ")]  # lines of progress
    assert (process.returncode, len(errors)) == (2, 1), said
    assert "need to run the same command again, which goes on with what is finished" in said
    assert not (tmp_path / "out").exists()
    kept = [each.name.removesuffix(".done") for each in partial_of(tmp_path / "out").glob("*.done")]
    times = {name: (partial_of(tmp_path / "out") / name).stat().st_mtime_ns for name in kept}
    convert(source, tmp_path / "out", "torchao", shard_bytes=5_000)
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in kept} == times
    convert(source, tmp_path / "once", "torchao", shard_bytes=5_000)
    assert files(tmp_path / "out") == files(tmp_path / "once")


# Real tools


@pytest.mark.release
@pytest.mark.rule("CNV-1", "CNV-14")
def test_torchao_loads_a_conversion(exports: Any, tmp_path: Path) -> None:
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    load_file = pytest.importorskip("safetensors.torch").load_file
    source = tensors(exports("modelopt-nvfp4"))
    convert(exports("modelopt-nvfp4"), tmp_path / "out", "torchao")
    for path in sorted((tmp_path / "out").glob("*.safetensors")):
        found, left = support.unflatten_tensor_state_dict(load_file(path), open_checkpoint(path).metadata)
        assert left == {}
        for name, tensor in found.items():
            if type(tensor).__name__ == "NVFP4Tensor":
                values = np.float32(tensor.dequantize().float().numpy())
                expected = decoded(source, name.removesuffix(".weight"))
                assert np.allclose(values, expected, rtol=2**-8, atol=0)  # torchao returns bfloat16


@pytest.mark.release
@pytest.mark.rule("CNV-1", "CNV-14")
@pytest.mark.parametrize("name", ["modelopt-nvfp4", "compressed-mxfp4"])
def test_gguf_reads_a_conversion(name: str, exports: Any, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    convert(exports(name), tmp_path / "out", "gguf")
    readers = [gguf.GGUFReader(path) for path in sorted((tmp_path / "out").glob("*.gguf"))]
    for reader in readers:
        assert reader.fields["general.architecture"].contents() == "llama"
        assert reader.fields["general.quantization_version"].contents() == 2
    up = next(each for reader in readers for each in reader.tensors if each.tensor_type.name in {"MXFP4", "NVFP4"})
    values = gguf.quants.dequantize(up.data, up.tensor_type)
    source, stem = tensors(exports(name)), up.name.removesuffix(".weight")
    if name == "modelopt-nvfp4":
        expected = decoded(source, stem) / np.float64(array(source, f"{stem}.weight_scale_2", np.float32))
    else:
        data = array(source, f"{stem}.weight_packed")
        codes = np.stack([data & 15, data >> 4], -1).reshape(len(data), -1)
        scales = np.exp2(array(source, f"{stem}.weight_scale").astype(np.float64) - 127)
        expected = E2M1[codes].astype(np.float64) * np.repeat(scales, 32, -1)
    assert (values == np.float32(expected)).all()


@pytest.mark.real
@pytest.mark.heavy
@pytest.mark.rule("CNV-1", "CNV-13")
def test_a_real_model_is_quantized_and_converted_back(real_model_path: Path, tmp_path: Path) -> None:
    result = fp4(
        "quantize", real_model_path, "-o", tmp_path / "modelopt", "--to", "modelopt", "--shard-bytes", 8_000_000
    )
    assert result.exit_code == 0, result.output
    before = tensors(tmp_path / "modelopt")
    assert sum(name.endswith(".weight_scale_2") for name in before) >= 36
    for family in ("compressed-tensors", "torchao", "comfy"):
        convert(tmp_path / "modelopt", tmp_path / family, family)
        convert(tmp_path / family, tmp_path / f"{family}-back", "modelopt")
        assert tensors(tmp_path / f"{family}-back") == before


LAYER = "model.layers.0"
CACHE = {f"{LAYER}.self_attn.{letter}_proj.{letter}_scale": f"{LAYER}.self_attn.{letter}_scale" for letter in "kv"}


@pytest.mark.rule("CNV-34")
@pytest.mark.parametrize(
    "export, names",
    [("modelopt-nvfp4-kv", CACHE), ("modelopt-fp8", dict.fromkeys([f"{LAYER}.mlp.up_proj.weight_scale"]))],
)
def test_scales_have_the_shape_that_the_target_loads(
    exports: Any, export: str, names: dict[str, str | None], tmp_path: Path
) -> None:
    """transformers refuses a scale without a dimension where compressed-tensors registers one of one number."""
    source = exports(export)
    convert(source, tmp_path / "there", "compressed-tensors")
    convert(tmp_path / "there", tmp_path / "back", "modelopt")
    first, there, back = (open_checkpoint(path).tensors for path in (source, tmp_path / "there", tmp_path / "back"))
    for old, new in names.items():
        scales = first[old], there[new or old], back[old]
        assert [scale.shape for scale in scales] == [(), (1,), ()]
        assert len({scale.bytes() for scale in scales}) == 1
    assert tensors(source) == tensors(tmp_path / "back")


@pytest.mark.rule("CNV-14")
@pytest.mark.parametrize("family", ["modelopt", "compressed-tensors"])
def test_the_head_of_tied_embeddings_stays_in_high_precision(family: str, tmp_path: Path) -> None:
    """Without an entry, transformers looks for a quantized weight of the head, which the file does not store."""
    export = corpus.torchao()
    export.drop("lm_head.weight")
    convert(export.write(tmp_path / "source"), tmp_path / "out", family)
    record = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert "lm_head" in record["ignore"]
    assert [each.code for each in lint(tmp_path / "out").findings if each.severity == "error"] == []


@pytest.mark.rule("CKP-40")
def test_a_tied_head_that_is_not_in_the_list_breaks_transformers(tmp_path: Path) -> None:
    found = {}
    for name, tied, ignore in (("listed", True, ["lm_head"]), ("own", False, []), ("tied", True, [])):
        export = corpus.CLEAN["compressed-nvfp4"]()
        export.drop("lm_head.weight")
        values = corpus.bf16(corpus.weight(9, (64, corpus.HIDDEN)))
        export.put("model.embed_tokens.weight", "BF16", values)
        export.config |= {"tie_word_embeddings": tied, "architectures": ["LlamaForCausalLM"], "vocab_size": 64}
        export.config["quantization_config"]["ignore"] = ignore
        path = export.write(tmp_path / name)
        found[name] = [each for each in lint(path).findings if each.tensors == ("lm_head",)]
    assert found["listed"] == found["own"] == []
    assert [(each.code, each.severity, [*each.consumers]) for each in found["tied"]] == [
        ("exclude-list", "warning", ["transformers"])
    ]
    assert [each.severity for each in lint(path, consumer="vllm").findings] == ["note"]


@pytest.mark.rule("CNV-14")
def test_mxfp8_in_names_of_deepseek_is_declared_as_its_loader_reads_it(tmp_path: Path) -> None:
    source = corpus.CLEAN["modelopt-mxfp8"]().write(tmp_path / "source")
    convert(source, tmp_path / "out", "deepseek")
    record = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert (record["quant_method"], record["weight_block_size"]) == ("mxfp8", [1, 32])
    assert lint(tmp_path / "out").findings == []
    convert(tmp_path / "out", tmp_path / "back", "modelopt")
    assert tensors(source) == tensors(tmp_path / "back")


@pytest.mark.rule("CNV-6")
def test_a_target_without_the_formats_names_those_that_have_them(tmp_path: Path) -> None:
    source = corpus.CLEAN["modelopt-nvfp4"]().write(tmp_path / "source")
    with pytest.raises(DomainError, match="for deepseek, or --to modelopt, compressed-tensors, .*gguf"):
        convert(source, tmp_path / "out", "deepseek")
