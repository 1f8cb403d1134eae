"""Defects that authors who had not read the checks wrote, and that were missed at first, or told twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import checkpoints_corpus as corpus
import checkpoints_defects as defects
from fp4ref.checkpoints import lint
from fp4ref.cli import main
from fp4ref.files import write_tensors

# Kinds of defects that an author who had not read the checks wrote, and that were missed at first


def written(folder: Path, base: str, change: Any = None, **files: Any) -> Path:
    """A clean export with a change before it is written, and of its JSON files after that."""
    export = corpus.CLEAN[base]()
    if change is not None:
        change(export)
    path = export.write(folder)
    for name, edited in files.items():
        target = path / f"{name}.json"
        target.write_text(json.dumps(edited(json.loads(target.read_text()))))
    return path


def coded(path: Path, **options: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in lint(path, **options).findings:
        found.setdefault(each.code, set()).update(each.tensors)
    return found


@pytest.mark.rule("CKP-10")
@pytest.mark.parametrize(("key", "value"), [("hidden_size", 64), ("num_key_value_heads", 4)])
def test_a_declared_size_that_no_tensor_has(tmp_path: Path, key: str, value: int) -> None:
    assert coded(written(tmp_path / "clean", "modelopt-nvfp4")) == {}
    found = coded(written(tmp_path / "a", "modelopt-nvfp4", config=lambda record: {**record, key: value}))
    assert found.keys() == {"shape"}
    assert {"config.json", "model.layers.0.self_attn.k_proj.weight"} <= found["shape"]


@pytest.mark.rule("CKP-4")
def test_a_file_that_an_older_export_left(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", "modelopt-nvfp4")
    shard = min(folder.glob("*.safetensors"))
    for name, reader in (("model.safetensors", "; transformers reads it"), ("old.safetensors", "every file reads it")):
        (folder / name).write_bytes(shard.read_bytes())
        (found,) = lint(folder).findings
        assert (found.code, found.severity, found.tensors[0]) == ("duplicate-tensor", "warning", name)
        assert reader in found.message
        (folder / name).unlink()
    write_tensors(folder / "mtp.safetensors", [("mtp.weight", "F32", (4,))], {}, [np.ones(4, np.float32)])
    assert coded(folder) == {}  # other tensors


@pytest.mark.rule("CKP-9")
def test_a_scale_of_the_cache_that_is_an_integer(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.k_scale"

    def change(export: Any) -> None:
        defects.retype(export, name, "I32", lambda array: np.ones(array.shape, np.int32))

    assert coded(written(tmp_path / "a", "modelopt-nvfp4-kv", change)) == {"dtype": {name}}


@pytest.mark.rule("CKP-12")
@pytest.mark.parametrize("base", ["modelopt-nvfp4-kv", "compressed-nvfp4", "deepseek-fp8"])
def test_a_plain_model_with_the_configuration_of_a_quantized_one(tmp_path: Path, base: str) -> None:
    folder = written(tmp_path / "a", base)
    for each in (*folder.glob("*.safetensors"), *folder.glob("*.index.json")):
        each.unlink()
    plain = corpus.source().write(tmp_path / "source")
    for each in plain.iterdir():
        if each.suffix == ".safetensors" or each.name.endswith(".index.json"):
            (folder / each.name).write_bytes(each.read_bytes())
    assert coded(folder).keys() == {"config"}
    config = json.loads((folder / "config.json").read_text())
    if base == "compressed-nvfp4":
        config["quantization_config"]["quantization_status"] = "frozen"  # saved without compression
        (folder / "config.json").write_text(json.dumps(config))
        assert coded(folder) == {}


@pytest.mark.rule("CKP-12")
def test_a_module_that_mlx_is_told_not_to_quantize(tmp_path: Path) -> None:
    module = "model.layers.0.mlp.up_proj"

    def refused(record: dict[str, Any]) -> dict[str, Any]:
        keys = [key for key in ("quantization", "quantization_config") if key in record]
        return record | {key: {**record[key], module: False} for key in keys}

    assert coded(written(tmp_path / "a", "mlx-nvfp4", config=refused)) == {"config": {"config.json", module}}


@pytest.mark.rule("CKP-24", "CKP-22")
def test_a_member_of_a_fused_set_that_is_another_weight_is_one_finding(tmp_path: Path) -> None:
    q, o = (f"model.layers.0.self_attn.{name}" for name in ("q_proj", "o_proj"))

    def exchange(export: Any) -> None:
        for suffix in ("weight", "weight_scale", "weight_scale_2"):
            one, two = export.array(f"{q}.{suffix}"), export.array(f"{o}.{suffix}")
            one[...], two[...] = two.copy(), one.copy()
        export.array(f"{q}.weight_scale_2")[...] *= np.float32(1.5)  # of its own
        export.array(f"{q}.weight_scale")[...] = export.array(f"{q}.weight_scale")

    source = corpus.source().write(tmp_path / "source")
    found = coded(written(tmp_path / "a", "modelopt-nvfp4", exchange), source=source)
    assert found.keys() == {"value-mismatch"}


@pytest.mark.rule("CKP-28")
def test_torchao_s_elements_of_e5m2_are_a_convention(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", "torchao-mxfp8")
    for each in folder.glob("*.safetensors"):  # types and metadata have as many letters
        data = each.read_bytes().replace(b'"F8_E4M3"', b'"F8_E5M2"').replace(b"float8_e4m3fn", b"float8_e5m2  ")
        each.write_bytes(data)
    assert lint(folder).families == ["torchao.mxfp8_e5m2"]
    assert "dtype" not in coded(folder)


@pytest.mark.rule("CKP-22")
@pytest.mark.parametrize("consumer", ["vllm", "sglang", "tensorrt-llm"])
def test_an_uneven_fused_set_breaks_each_consumer_that_fuses(tmp_path: Path, consumer: str) -> None:
    def change(export: Any) -> None:
        export.array("model.layers.0.mlp.up_proj.weight_scale_2")[...] *= 2

    (found,) = lint(written(tmp_path / "a", "modelopt-nvfp4", change), consumer=consumer).findings
    assert (found.code, found.severity, [*found.consumers]) == ("fused-global-scale", "warning", [consumer])


UP = "model.layers.0.mlp.up_proj"


@pytest.mark.rule("CKP-13")
def test_a_regular_expression_is_only_compressed_tensors_own(tmp_path: Path) -> None:
    """modelopt's lists have wildcards: an entry with re: matches nothing there."""

    def listed(record: dict[str, Any]) -> dict[str, Any]:
        section = record.get("quantization_config") or record.get("quantization") or {}
        for key in {"ignore", "exclude_modules"} & section.keys():
            section[key] = ["re:.*lm_head", "re:.*embed_tokens"]
        return record

    found = lint(written(tmp_path / "a", "modelopt-nvfp4", config=listed, hf_quant_config=listed)).findings
    assert [each.code for each in found] == ["exclude-list"]
    assert "no regular expressions" in found[0].message
    assert coded(written(tmp_path / "b", "compressed-nvfp4", config=listed)) == {}


@pytest.mark.rule("CKP-21")
def test_one_scale_for_keys_and_values_is_an_old_name(tmp_path: Path) -> None:
    def change(export: Any) -> None:
        for name in [name for name in export.tensors if name.endswith(("k_scale", "v_scale"))]:
            if name.endswith("k_scale"):
                export.put(name.replace("k_proj.k_scale", "kv_scale"), "F32", export.array(name).copy())
            export.drop(name)

    found = coded(written(tmp_path / "a", "modelopt-nvfp4-kv", change))
    assert found.keys() == {"kv-scale"}
    assert "model.layers.0.self_attn.kv_scale" in found["kv-scale"]


@pytest.mark.rule("CKP-2")
def test_offsets_that_are_shifted_and_ones_that_overlap_are_one_finding(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", "mlx-mxfp4")
    path = min(folder.glob("*.safetensors"))
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    entries = [entry for name, entry in header.items() if name != "__metadata__"]

    def codes(record: dict[str, Any]) -> list[str]:
        text = json.dumps(record).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
        return [each.code for each in lint(folder).findings]

    assert codes(header) == []
    _, second = sorted(entries, key=lambda entry: entry["data_offsets"])[:2]
    offsets = second["data_offsets"]
    second["data_offsets"] = [offsets[0] - 1, offsets[1] - 1]  # one byte of the first, and a gap behind the second
    assert codes(header) == ["header"]
    second["data_offsets"] = offsets
    for entry in entries:
        entry["data_offsets"] = [offset + 8 for offset in entry["data_offsets"]]
    assert codes(header) == ["header"]


@pytest.mark.rule("CKP-10")
def test_too_few_rows_of_a_vocabulary_and_of_a_router(tmp_path: Path) -> None:
    def short(export: Any) -> None:
        name = "model.embed_tokens.weight"
        export.put(name, "BF16", export.array(name)[:-4].copy())

    assert coded(written(tmp_path / "clean", "modelopt-nvfp4", config=vocabulary)) == {}
    found = coded(written(tmp_path / "a", "modelopt-nvfp4", short, config=vocabulary))
    assert found == {"shape": {"model.embed_tokens.weight"}}

    names = [f"model.layers.{layer}.mlp.gate" for layer in range(2)]

    def experts(record: dict[str, Any]) -> dict[str, Any]:
        section = record["quantization_config"]
        section["ignore"] = [*section["ignore"], *names]
        return {**record, "num_experts": 8}

    for rows, codes in ((8, set()), (9, set()), (7, {"shape"})):  # one more: an expert that computes nothing
        router = np.ones((rows, corpus.HIDDEN), ml_dtypes.bfloat16)

        def change(export: Any, router: Any = router) -> None:
            for name in names:
                export.put(f"{name}.weight", "BF16", router)

        found = coded(written(tmp_path / f"r{rows}", "compressed-nvfp4", change, config=experts))
        assert found.keys() == codes


def vocabulary(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "vocab_size": corpus.CLEAN["modelopt-nvfp4"]().array("model.embed_tokens.weight").shape[0]}


@pytest.mark.rule("CKP-8")
def test_scales_that_belong_to_nothing(tmp_path: Path) -> None:
    def of_a_norm(export: Any) -> None:
        export.put("model.norm.scales", "U8", np.zeros((4, 2), np.uint8))

    assert coded(written(tmp_path / "a", "mlx-nvfp4", of_a_norm)) == {"orphan-tensor": {"model.norm.scales"}}
    leaked = f"{UP}.weight_double_scale"

    def leak(export: Any) -> None:
        export.put(leaked, "F32", np.float32(1).reshape(()))

    assert coded(written(tmp_path / "b", "modelopt-nvfp4", leak)).get("orphan-tensor") == {leaked}


@pytest.mark.rule("CKP-12", "CKP-28")
def test_deepseek_s_tensors_under_modelopt_s_declaration(tmp_path: Path) -> None:
    def claimed(record: dict[str, Any]) -> dict[str, Any]:
        section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
        return {**record, "quantization_config": section}

    (found,) = lint(written(tmp_path / "a", "deepseek-fp8", config=claimed)).findings
    assert found.code == "config"
    assert "the names of deepseek" in found.message


@pytest.mark.rule("CKP-12")
def test_elements_of_eight_bits_declared_as_four(tmp_path: Path) -> None:
    def four(record: dict[str, Any]) -> dict[str, Any]:
        keys = [key for key in ("quantization", "quantization_config") if key in record]
        return record | {key: {**record[key], "mode": "mxfp4", "bits": 4} for key in keys}

    assert coded(written(tmp_path / "a", "mlx-mxfp8", config=four)).keys() == {"config"}


@pytest.mark.rule("CKP-14", "CKP-17")
def test_rows_of_one_byte(tmp_path: Path) -> None:
    """A row of NaN among the scales is no second finding; under float scales, a row of one repeated element is one."""

    def nan(export: Any) -> None:
        export.array(f"{UP}.scales")[7] = 0x7F

    assert coded(written(tmp_path / "a", "mlx-nvfp4", nan)) == {"scale-nan": {f"{UP}.scales"}}

    def filled(export: Any) -> None:
        export.array(f"{UP}.weight").view(np.uint8)[16:32] = 0xCD

    assert coded(written(tmp_path / "b", "deepseek-fp8", filled)) == {"unwritten": {f"{UP}.weight"}}


@pytest.mark.rule("CKP-50")
def test_pairs_of_bytes_that_are_exchanged_are_no_nibbles(tmp_path: Path) -> None:
    def exchange(export: Any) -> None:
        array = export.array(f"{UP}.weight").view(np.uint8)
        array[...] = array.reshape(len(array), -1, 2)[:, :, ::-1].reshape(array.shape)

    source = corpus.source().write(tmp_path / "source")
    found = coded(written(tmp_path / "a", "compressed-mxfp8", exchange), source=source)
    assert found == {"element-order": {f"{UP}.weight"}}


@pytest.mark.rule("CKP-15", "CKP-16")
def test_zeros_among_scales_that_are_another_layout_s_padding(tmp_path: Path) -> None:
    """te keeps a flag for tiles; 192 rows of scales in tiles, read as rows, have zeros where elements are not."""
    values = np.random.default_rng(1).normal(size=(192, 320)).astype(np.float32)
    write_tensors(tmp_path / "model.safetensors", [("a.weight", "F32", values.shape)], {}, [values])
    command = ["quantize", f"{tmp_path}/model.safetensors", "-o", f"{tmp_path}/te", "--to", "te", "--spec", "nvfp4"]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert coded(tmp_path / "te") == {}
    path = tmp_path / "te" / "model.safetensors"
    data = bytearray(path.read_bytes())
    base = 8 + int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8:base])["a.weight.rowwise_scale_inv"]["data_offsets"]
    scales = np.frombuffer(bytes(data[base + begin : base + end]), np.uint8).reshape(2, 4, 32, 5, 4)
    data[base + begin : base + end] = scales.transpose(0, 3, 2, 1, 4).tobytes()  # CKP-15: 128 rows of 4 scales
    path.write_bytes(data)
    (found,) = lint(tmp_path / "te").findings
    assert (found.code, found.tensors) == ("scale-layout", ("a.weight.rowwise_scale_inv",))
    assert "tiled_128x4" in found.message


@pytest.mark.rule("CKP-50")
def test_one_wrong_element_where_no_specification_gives_the_bytes(tmp_path: Path) -> None:
    """The source is not what the export was made of, bit for bit; every element but one is the nearest to it."""
    folder = written(tmp_path / "clean", "compressed-nvfp4")
    near = corpus.source()
    for name in [name for name in near.tensors if name.endswith("_proj.weight")]:
        values = near.array(name).view(ml_dtypes.bfloat16).astype(np.float32)
        near.put(name, "F32", (values * np.float32(1.003)).reshape(values.shape))
    source = near.write(tmp_path / "source")
    assert coded(folder, source=source) == {}

    def damage(export: Any) -> None:
        array = export.array(f"{UP}.weight_packed")
        array[3, 5] ^= 0x60

    found = coded(written(tmp_path / "a", "compressed-nvfp4", damage), source=source)
    assert found == {"bit-damage": {f"{UP}.weight_packed"}}


@pytest.mark.rule("CKP-11", "CKP-12")
def test_what_a_declaration_says_of_squares_and_of_elements(tmp_path: Path) -> None:
    def squares(record: dict[str, Any]) -> dict[str, Any]:
        (group,) = record["quantization_config"]["config_groups"].values()
        group["weights"]["block_structure"] = [64, 64]
        return record

    found = coded(written(tmp_path / "a", "compressed-fp8-square", config=squares))
    assert found.keys() == {"group-size"}
    folder = written(tmp_path / "b", "torchao-mxfp8")
    for each in folder.glob("*.safetensors"):
        each.write_bytes(each.read_bytes().replace(b"float8_e4m3fn", b"float8_e5m2  "))
    assert coded(folder).keys() == {"config"}


def unnamed_source() -> corpus.Export:
    """The weights of the GGUF's layers under names that no map of llama.cpp's has."""
    export = corpus.Export(config={"model_type": "olmo2"}, shards=1)
    for layer in range(corpus.LAYERS):
        for name, shape in (("mlp.fc_in", (64, 128)), ("attn.query", (128, 128))):
            export.put(f"stack.{layer}.{name}.weight", "BF16", corpus.bf16(corpus.weight(layer, shape)))
    return export


@pytest.mark.rule("CKP-24")
@pytest.mark.parametrize("form", ["mxfp4", "nvfp4"])
def test_a_gguf_without_a_map_of_names_is_compared_by_values(form: str, tmp_path: Path) -> None:
    high, export = unnamed_source().write(tmp_path / "s"), corpus.gguf(form)
    report = lint(export.write(tmp_path / "clean"), source=high)
    assert report.findings == []
    assert {"sqnr_db", "closest_spec"} <= report.facts["blk.1.ffn_up"].keys()
    blocks = export.array("blk.1.ffn_up.weight")
    head, size = (1, 17) if form == "mxfp4" else (4, 36)
    each = blocks.reshape(64, -1, size)[..., head:]
    each[...] = each >> 4 | each << 4  # its values are no tensor's now, its name still has its form
    found = lint(export.write(tmp_path / "wrong"), source=high).findings
    assert [(each.code, each.tensors) for each in found] == [("nibble-order", ("blk.1.ffn_up.weight",))]


@pytest.mark.rule("CKP-24")
def test_a_gguf_of_another_model_is_not_judged(tmp_path: Path) -> None:
    source = unnamed_source()
    for name in source.tensors:
        source.put(name, "BF16", corpus.bf16(corpus.weight(77, source.array(name).shape)))
    report = lint(corpus.gguf().write(tmp_path / "q"), source=source.write(tmp_path / "s"))
    assert report.findings == []
    assert [each for each in report.remarks if each.startswith("source: cannot tell")]


@pytest.mark.rule("CKP-28")
@pytest.mark.parametrize("element", ["F6_E2M3", "F6_E3M2"])
def test_six_bits_are_judged_only_where_another_format_is_declared(element: str, tmp_path: Path) -> None:
    """No convention has elements of six bits, so that nothing says what such a weight and its scales should be."""
    values = np.random.default_rng(3).integers(0, 256, (128, 192), np.uint8)
    scales = np.full((128, 8), 120, np.uint8)
    tensors = {"a.weight": (element, (128, 256), values), "a.weight_scale": ("U8", scales.shape, scales)}
    alone, declared = tmp_path / "alone", tmp_path / "declared"
    for folder in (alone, declared):
        folder.mkdir()
        written_as = [(name, dtype, shape) for name, (dtype, shape, _) in tensors.items()]
        write_tensors(folder / "model.safetensors", written_as, {}, (data for *_, data in tensors.values()))
    (declared / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "MXFP8"}}))
    assert coded(alone) == {}
    assert coded(declared)["dtype"] == {"a.weight"}
