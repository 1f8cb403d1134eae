"""Manifests and comparisons: two engines that should hold the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fp4ref
from checkpoints_corpus import of_layers
from commands import fp4
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.compare import Sameness, compare
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.manifest import from_text, manifest_of_checkpoint, manifest_of_object, to_text
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.reading import read_weight
from fp4ref.checkpoints.transfer.running import run
from fp4ref.errors import FileError

corpus = of_layers(1)
KEPT = ("*embed*", "lm_head")
MODULE = "model.layers.0.mlp.gate_proj"


def export(folder: Path, name: str = "modelopt-nvfp4", **change: Any) -> Path:
    made = corpus.CLEAN[name]()
    for tensor, array in change.items():
        made.array(tensor.replace("__", "."))[...] = array
    return made.write(folder)


def kinds(one: Path, two: Path) -> dict[str, list[str]]:
    record = json.loads(fp4("compare", one, two, "--json").stdout)
    found: dict[str, list[str]] = {}
    for each in record["differences"]:
        found.setdefault(each["kind"], []).append(each["name"])
    return found


@pytest.mark.rule("CNV-16")
@pytest.mark.parametrize("family", ["compressed-tensors", "comfy", "gguf", "torchao"])
def test_digests_do_not_depend_on_the_convention(family: str, tmp_path: Path) -> None:
    source = export(tmp_path / "source")
    run(request_to_convert(source, tmp_path / "out", to=family))
    assert manifest_of_checkpoint(source) == manifest_of_checkpoint(tmp_path / "out")
    result = fp4("compare", source, tmp_path / "out")
    assert (result.exit_code, "the same bytes" in result.stdout) == (0, True)


def test_a_comparison_fits_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = export(tmp_path / "one"), export(tmp_path / "two", **{MODULE.replace(".", "__") + "__weight": 0x11})
    whole = fp4("compare", one, two).stdout
    monkeypatch.setenv("COLUMNS", "60")
    fitted = fp4("compare", one, two).stdout
    assert max(map(len, whole.splitlines())) > 60 >= max(map(len, fitted.splitlines()))
    assert fitted.split() == whole.split()
    assert "other codes: 1 tensor: " in whole


@pytest.mark.rule("CNV-59")
def test_an_entry_is_short_and_read_back(tmp_path: Path) -> None:
    source = export(tmp_path / "source")
    text = to_text(manifest_of_checkpoint(source))
    entries = [line.rstrip(",") for line in text.splitlines()[1:-1]]
    assert len(entries) > 10
    assert all(len(line) - len(line.partition(": ")[0]) < 200 for line in entries)
    (tmp_path / "m.json").write_text(text)
    assert fp4("compare", source, tmp_path / "m.json").exit_code == 0
    (tmp_path / "m.json").write_text("{}")
    refused = fp4("compare", source, tmp_path / "m.json")
    assert (refused.exit_code, "a manifest of fp4ref" in refused.stderr) == (2, True)


@pytest.mark.rule("CNV-16")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"fp4ref_manifest": 99}', "a manifest of version 99"),
        ('{"fp4ref_manifest": 3}', "without the entries of tensors"),
        ('{"fp4ref_manifest": 3, "tensors": {"a": ["U8"]}}', "without the entries of tensors"),
        ("[]", "without the entries of tensors"),
        ("{", "expecting"),
    ],
)
def test_what_is_no_manifest_is_named(text: str, said: str) -> None:
    with pytest.raises(FileError, match=said):
        from_text(text, "m.json")


@pytest.mark.rule("CNV-16")
def test_what_is_in_memory_has_the_same_digests(tmp_path: Path) -> None:
    source = corpus.source().write(tmp_path / "source")
    run(request_to_convert(source, tmp_path / "out", to="torchao", specs=[("*.mlp.*", fp4ref.profiles["nvfp4"])]))
    values = corpus.model()[MODULE]
    held = manifest_of_object(
        {
            f"{MODULE}.weight": fp4ref.quantize(np.float32(values), "nvfp4", scale_layout="tiled_128x4"),
            "model.norm.weight": corpus.bf16(np.ones(corpus.HIDDEN)),
        }
    )
    stored = manifest_of_checkpoint(tmp_path / "out")
    assert held[f"{MODULE}.weight"] == stored[f"{MODULE}.weight"]
    assert held["model.norm.weight"].codes == stored["model.norm.weight"].codes


@pytest.mark.slow
def test_a_module_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    te = pytest.importorskip("fp4ref.te")
    linear = torch.nn.Linear(32, 16, dtype=torch.bfloat16)
    quantizer = te.NVFP4Quantizer(rowwise=True, columnwise=False)
    with torch.no_grad():
        tensor = quantizer(linear.weight.detach())
    held = manifest_of_object({"weight": tensor})["weight"]
    expected = manifest_of_object({"weight": fp4ref.quantize(linear.weight.detach(), "nvfp4")})["weight"]
    assert held == expected
    plain = manifest_of_object(linear)
    assert plain["weight"][:2] == ("BF16", (16, 32))
    (tmp_path / "held.py").write_text("import numpy\ndef tensors(): return {'a': numpy.float32([1, 2])}\n")
    assert '"a": ["F32",[2]' in fp4("manifest", f"{tmp_path / 'held.py'}:tensors").stdout


TRAINING = """
import torch
from fp4ref import te

RECIPES = {
    "mxfp8": te.recipe.MXFP8BlockScaling, "nvfp4": te.recipe.NVFP4BlockScaling,
    "tensor": te.recipe.Float8CurrentScaling, "block": te.recipe.Float8BlockScaling,
}


def model(kind, layers=2):
    torch.manual_seed(0)
    found = torch.nn.Module()
    with te.quantized_model_init(enabled=True, recipe=RECIPES[kind]()):
        for layer in range(layers):
            mlp = torch.nn.Module()
            mlp.gate_up_proj = te.Linear(128, 128, bias=False, params_dtype=torch.bfloat16, device="cpu")
            mlp.gate = torch.nn.Linear(128, 4, bias=False, dtype=torch.bfloat16)
            found.add_module(f"layer_{layer}", torch.nn.Module())
            getattr(found, f"layer_{layer}").mlp = mlp
    return found


def training():
    return model("mxfp8")


def excluded_by_substring():
    held = training().state_dict()
    inside = [name for name in held if "mlp.gate_up" in name and "extra" not in name]
    return held | {name: held[name].dequantize() for name in inside}


def again():
    quantizer = te.MXFP8Quantizer(te.DType.kFloat8E4M3, rowwise=True, columnwise=False)
    held = dict(training().named_parameters())
    return {n: quantizer(v.dequantize().to(torch.bfloat16)) if "gate_up" in n else v for n, v in held.items()}


def nvfp4():
    return model("nvfp4")


def tensor():
    return model("tensor")


def block():
    return model("block")


def both():
    quantizer = te.HybridQuantizer(
        rowwise_quantizer=te.MXFP8Quantizer(te.DType.kFloat8E4M3, rowwise=True, columnwise=False),
        columnwise_quantizer=te.NVFP4Quantizer(rowwise=False, columnwise=True),
    )
    lines = te.Float8BlockQuantizer(te.DType.kFloat8E5M2, rowwise=True, columnwise=False, block_scaling_dim=1)
    values = torch.arange(16384, dtype=torch.float32).reshape(128, 128)
    return {"hybrid": quantizer(values), "high": te.IdentityQuantizer()(values), "lines": lines(values)}


def columns():
    tensor = te.NVFP4Quantizer(rowwise=True, columnwise=True)(torch.ones(128, 128))
    tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    return {"w": tensor}
"""


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.rule("CNV-16", "CNV-17")
def test_models_of_te_are_compared_by_the_commands(tmp_path: Path) -> None:
    """A training engine's model and what a rollout engine holds: the cases of public threads, by command."""
    pytest.importorskip("torch")
    module = tmp_path / "engines.py"
    module.write_text(TRAINING)
    assert fp4("manifest", f"{module}:training", "-o", tmp_path / "training.json").exit_code == 0
    excluded = fp4("compare", tmp_path / "training.json", f"{module}:excluded_by_substring")
    assert excluded.exit_code == 1
    assert excluded.stdout.splitlines()[-1] == "4 tensors, 2 differ: not quantized alike"
    assert "quantized in A only: 2 tensors: layer_0.mlp.gate_up_proj.weight (e4m3/e8m0/32 and BF16)" in excluded.stdout
    moved = fp4("compare", f"{module}:training", f"{module}:again")
    assert "same values in other bytes: 2 tensors" in moved.stdout  # every block moves, no value does
    assert "(another block scale, e4m3/e8m0/32)" in moved.stdout
    assert fp4("compare", tmp_path / "training.json", f"{module}:training").exit_code == 0
    forms = {"nvfp4": "e2m1/e4m3/16", "tensor": "e4m3/float/tensor", "block": "e4m3/float/square"}
    for kind, form in forms.items():
        found = fp4("compare", tmp_path / "training.json", f"{module}:{kind}").stdout
        assert f"another format: 2 tensors: layer_0.mlp.gate_up_proj.weight (e4m3/e8m0/32 and {form}" in found
    both = fp4("manifest", f"{module}:both").stdout
    assert [line.split('"')[3] for line in both.splitlines()[1:4]] == ["e4m3/e8m0/32", "F32", "e5m2/float/1x128"]
    columns = fp4("manifest", f"{module}:columns")
    assert (columns.exit_code, len(columns.output.splitlines())) == (2, 1)
    assert "w without its row direction" in columns.output


# The cases of public threads, in miniature


@pytest.mark.rule("CNV-17")
def test_one_engine_leaves_a_module_in_high_precision(tmp_path: Path) -> None:
    """An exclude list that is matched by substring keeps gate_proj in BF16 where training has it in NVFP4."""
    source = corpus.source().write(tmp_path / "source")
    kept = ("--exclude", "*embed*", "--exclude", "lm_head")
    for name, more in (("training", ()), ("rollout", ("--exclude", "*mlp.gate*"))):
        result = fp4("quantize", source, "-o", tmp_path / name, "--to", "modelopt", *kept, *more)
        assert result.exit_code == 0, result.output
    found = kinds(tmp_path / "training", tmp_path / "rollout")
    assert found.pop("quantized in A only") == [f"{MODULE}.weight"]
    assert set(found) <= {"another global scale"}  # without gate_proj, the amax of up_proj is its own


@pytest.mark.rule("CNV-17")
def test_the_first_stage_that_differs_is_named(tmp_path: Path) -> None:
    base = export(tmp_path / "base")
    name = f"{MODULE}.weight"
    for folder, tensor, kind in (
        ("global", "weight_scale_2", "another global scale"),
        ("scales", "weight_scale", "another block scale"),
        ("codes", "weight", "other codes"),
    ):
        made = corpus.CLEAN["modelopt-nvfp4"]()
        array = made.array(f"{MODULE}.{tensor}")
        if array.dtype == np.float32:
            array *= 2
        else:
            array[3, 1] ^= 1
        found = kinds(base, made.write(tmp_path / folder))
        assert found == {kind: [name]}
    result = fp4("compare", base, tmp_path / "global")
    assert "B / A = 2" in result.stdout
    assert result.exit_code == 1
    assert fp4("compare", base, tmp_path / "global", "--require", "decisions").exit_code == 0


@pytest.mark.rule("CNV-17")
def test_zeros_are_the_same_values_in_other_bytes(tmp_path: Path) -> None:
    """Exporters write blocks of zeros with scales of their own, and zeros of either sign."""
    folders = []
    for number, (scale, code) in enumerate(((0x38, 0x00), (0x08, 0x88))):
        made = corpus.CLEAN["modelopt-nvfp4"]()
        made.array(f"{MODULE}.weight")[2, :8] = code
        made.array(f"{MODULE}.weight_scale")[2, 0] = scale
        folders.append(made.write(tmp_path / str(number)))
    result = compare(*map(manifest_of_checkpoint, folders))
    assert [(each.name, each.sameness) for each in result.differences] == [(f"{MODULE}.weight", Sameness.VALUES)]
    assert fp4("compare", *folders).exit_code == 1
    assert fp4("compare", *folders, "--require", "values").exit_code == 0


@pytest.mark.rule("CNV-16", "CNV-17")
def test_moved_scales_with_the_same_numbers_are_the_same_values(tmp_path: Path) -> None:
    """E4M3 codes of twice the exponent's step less, under scales of twice the value; one code more is another value."""
    folders = []
    for number, (code, exponent) in enumerate(((0x40, 120), (0x38, 121), (0x39, 121))):  # 2 and 1, scales 2^-7 and 2^-6
        made = corpus.CLEAN["modelopt-mxfp8"]()
        made.array(f"{MODULE}.weight").view(np.uint8)[...] = code
        made.array(f"{MODULE}.weight_scale")[...] = exponent
        folders.append(made.write(tmp_path / str(number)))
    first, moved, other = map(manifest_of_checkpoint, folders)
    (found,) = compare(first, moved).differences
    assert (found.sameness, found.kind) == (Sameness.VALUES, "same values in other bytes")
    assert "another block scale" in found.text
    (found,) = compare(first, other).differences
    assert (found.sameness, found.kind) == (Sameness.DECISIONS, "another block scale")


@pytest.mark.rule("CNV-16", "CNV-17")
def test_a_cast_without_loss_is_another_format_of_the_same_values(tmp_path: Path) -> None:
    source = export(tmp_path / "source", "modelopt-mxfp4")
    result = fp4("convert", source, tmp_path / "out", "--to", "modelopt", "--spec", "nvfp4")
    assert result.exit_code == 0, result.output
    text = fp4("compare", source, tmp_path / "out").stdout
    assert "(e2m1/e8m0/32 and e2m1/e4m3/16, the same values)" in text


@pytest.mark.rule("CNV-17")
def test_blocks_that_move_when_they_are_requantized_are_found(tmp_path: Path) -> None:
    """MXFP8 decoded to BF16 and quantized again by another rule of the exponent is not the same."""
    source = export(tmp_path / "source", "modelopt-mxfp8")
    found = recognize(open_checkpoint(source)).groups
    again = {}
    for group in found:
        weight = read_weight(group)
        values = np.concatenate([weight.decoded(piece) for piece in weight.read(1)])
        again[f"{group.module}.weight"] = fp4ref.quantize(values, "torchao.mxfp8_e4m3_floor")
    there = manifest_of_checkpoint(source)
    differences = compare({name: there[name] for name in again}, manifest_of_object(again)).differences
    assert {each.kind for each in differences} == {"another block scale"}
    specs = [("*", fp4ref.profiles["torchao.mxfp8_e4m3_floor"])]
    run(request_to_convert(source, tmp_path / "out", specs=specs, exclude=KEPT))  # recoded, which moves nothing
    assert fp4("compare", source, tmp_path / "out").exit_code == 0
    run(request_to_convert(source, tmp_path / "fp4", specs=[("*", fp4ref.profiles["mxfp4"])], exclude=KEPT, lossy=True))
    assert set(kinds(source, tmp_path / "fp4")) == {"another format"}
    assert fp4("compare", source, tmp_path / "fp4", "--require", "decisions").exit_code == 1


@pytest.mark.rule("CNV-16")
def test_a_conversion_with_scales_of_the_cache_is_the_same(tmp_path: Path) -> None:
    source = export(tmp_path / "source", "modelopt-nvfp4-kv")
    run(request_to_convert(source, tmp_path / "out", to="compressed-tensors"))
    assert fp4("compare", source, tmp_path / "out").exit_code == 0


@pytest.mark.rule("CNV-16", "CNV-17")
@pytest.mark.parametrize("sizes", [True, False])
def test_gpt_oss_is_the_same_under_both_names(sizes: bool, tmp_path: Path) -> None:
    """OpenAI's file has the rows of queries, keys and values in one tensor, whose parts only sizes tell."""
    draw = np.random.default_rng(15)

    def drawn(dtype: Any, *shape: int) -> np.ndarray:
        return draw.integers(0, 120, shape).astype(dtype)

    layer, blocks, scales = "model.layers.3", drawn(np.uint8, 2, 64, 2, 16), drawn(np.uint8, 2, 64, 2)
    parts = [drawn(np.float32, rows, 64) for rows in (48, 16, 16)]
    norm, gate, embedding = drawn(np.float32, 64), drawn(np.float32, 2, 64), drawn(np.float32, 80, 64)
    ours = corpus.Export(config={"head_dim": 16, "num_attention_heads": 3, "num_key_value_heads": 1} if sizes else {})
    hub = corpus.Export(config={"quantization_config": {"quant_method": "mxfp4"}})
    for number, part in ((1, "gate_up_proj"), (2, "down_proj")):
        for name, array in (("blocks", blocks), ("scales", scales)):
            ours.put(f"block.3.mlp.mlp{number}_weight.{name}", "U8", array)
            hub.put(f"{layer}.mlp.experts.{part}_{name}", "U8", array)
        ours.put(f"block.3.mlp.mlp{number}_bias", "F32", embedding[:2])
        hub.put(f"{layer}.mlp.experts.{part}_bias", "F32", embedding[:2])
    ours.put("block.3.attn.qkv.weight", "F32", np.concatenate(parts))
    for letter, rows in zip("qkv", parts, strict=True):
        hub.put(f"{layer}.self_attn.{letter}_proj.weight", "F32", rows)
    for one, two, array in (
        ("block.3.attn.norm.scale", f"{layer}.input_layernorm.weight", norm),
        ("block.3.mlp.norm.scale", f"{layer}.post_attention_layernorm.weight", norm),
        ("block.3.attn.sinks", f"{layer}.self_attn.sinks", norm),
        ("block.3.attn.out.weight", f"{layer}.self_attn.o_proj.weight", gate),
        ("block.3.attn.out.bias", f"{layer}.self_attn.o_proj.bias", norm),
        ("block.3.mlp.gate.weight", f"{layer}.mlp.router.weight", gate),
        ("embedding.weight", "model.embed_tokens.weight", embedding),
        ("unembedding.weight", "lm_head.weight", embedding),
        ("norm.scale", "model.norm.weight", norm),
    ):
        ours.put(one, "F32", array)
        hub.put(two, "F32", array)
    one, two = (manifest_of_checkpoint(each.write(tmp_path / name)) for name, each in (("ours", ours), ("hub", hub)))
    found = compare(one, two)
    assert len([each for each in two if "_proj" in each]) >= 5
    apart = {"block.3.attn.qkv.weight", *(f"{layer}.self_attn.{letter}_proj.weight" for letter in "qkv")}
    assert {each.name for each in found.differences} == (set() if sizes else apart)
