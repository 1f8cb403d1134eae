"""Conventions as values: recognition, writers of declarations, consumers, bounds, and conventions of other people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import checkpoints_corpus as corpus
import forked
import fp4ref
from fp4ref.checkpoints import CONVENTIONS, access, bounds, lint
from fp4ref.checkpoints.access import rows_of_a_piece
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.consumers import BREAKS, CONSUMERS, HARMLESS, Consumer
from fp4ref.checkpoints.convention import families
from fp4ref.checkpoints.declarations import CheckpointDeclaration
from fp4ref.checkpoints.findings import CODES
from fp4ref.checkpoints.groups import recognize
from fp4ref.cli import main
from fp4ref.formats import FORMATS, Format
from fp4ref.layout import TILED_128X4
from fp4ref.packings import packing

FIRST = {"modelopt-nvfp4", "compressed-mxfp4", "gpt-oss", "torchao-nvfp4", "comfy-nvfp4", "deepseek-fp8", "mlx-mxfp8"}

# As exported by modelopt 0.47.0 and llmcompressor 0.14.0.1 for a small Llama
MODELOPT = json.loads(
    '{"config_groups": {"group_0": {"input_activations": {"dynamic": false, "num_bits": 4, "type": "float", '
    '"group_size": 16}, "weights": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16}, "targets": '
    '["Linear"]}}, "ignore": ["lm_head", "model.embed_tokens"], "quant_algo": "NVFP4", "kv_cache_scheme": "NVFP4", '
    '"producer": {"name": "modelopt", "version": "0.47.0"}, "quant_method": "modelopt"}'
)
MODELOPT_FILE = json.loads(
    '{"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": {"quant_algo": "NVFP4", '
    '"kv_cache_quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "model.embed_tokens"]}}'
)
COMPRESSED = json.loads(
    '{"format": "nvfp4-pack-quantized", "input_activations": {"dynamic": "local", "group_size": 16, "num_bits": 4, '
    '"scale_dtype": "torch.float8_e4m3fn", "strategy": "tensor_group", "symmetric": true, "type": "float"}, "targets": '
    '["Linear"], "weights": {"dynamic": false, "group_size": 16, "num_bits": 4, "scale_dtype": "torch.float8_e4m3fn", '
    '"strategy": "tensor_group", "symmetric": true, "type": "float"}}'
)
TORCHAO = json.loads(
    '{"_type": "NVFP4Tensor", "_data": {"is_swizzled_scales": true, "use_triton_kernel": false, "act_quant_kwargs": '
    'null, "block_size": 16, "orig_dtype": {"_type": "torch.dtype", "_data": "bfloat16"}}, "_tensor_data_names": '
    '["per_tensor_scale", "qdata", "scale"]}'
)


def files_of(name: str, module: str = "model.layers.0.mlp.up_proj", **more: Any) -> Any:
    convention = CONVENTIONS[name]
    return convention.configuration.write(CheckpointDeclaration({module: convention}, **more))


@pytest.mark.rule("CKP-31")
def test_declarations_are_those_of_the_exporters() -> None:
    excluded = ("lm_head", "model.embed_tokens")
    written = files_of("modelopt.nvfp4", excluded=excluded, kv="nvfp4")
    assert written.files["config.json"]["quantization_config"] == MODELOPT
    assert written.files["hf_quant_config.json"] == MODELOPT_FILE
    record = files_of("compressed-tensors.nvfp4", excluded=("lm_head",)).files["config.json"]["quantization_config"]
    assert record["config_groups"] == {"group_0": COMPRESSED}
    assert (record["format"], record["ignore"]) == ("nvfp4-pack-quantized", ["lm_head"])
    written = files_of("torchao.nvfp4", facts={"model.layers.0.mlp.up_proj": {"is_swizzled_scales": True}})
    assert json.loads(written.metadata["model.layers.0.mlp.up_proj.weight"]) == TORCHAO
    assert files_of("mlx.mxfp4").files["config.json"]["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "mxfp4",
    }


@pytest.mark.rule("CKP-12", "CKP-37")
@pytest.mark.parametrize(
    "name",  # one of each family by default
    [
        pytest.param(name, marks=[] if name in FIRST else [pytest.mark.heavy])
        for name in corpus.CLEAN
        if name != "source"
    ],
)
def test_what_a_family_writes_declares_its_tensors(name: str, tmp_path: Path) -> None:
    """Replace the declarations of a clean export by those that its family writes: it stays clean."""
    export = corpus.CLEAN[name]()
    found = recognize(open_checkpoint(export.write(tmp_path / "before")))
    declaration = CheckpointDeclaration(
        {group.module: group.convention for group in found.groups},
        excluded=tuple(found.config.ignore),
        facts={group.module: group.facts for group in found.groups},
        kv=found.config.kv,
        names=tuple(json.loads(found.checkpoint.metadata.get("tensor_names", "[]"))),
    )
    written = found.configuration.write(declaration)
    for key in ("quantization_config", "quantization"):
        (export.config or {}).pop(key, None)
    export.config = {**(export.config or {}), **written.files.get("config.json", {})} or None
    if export.hf is not None:
        export.hf = dict(written.files["hf_quant_config.json"])
    export.metadata = {"format": "pt", **written.metadata}
    report = lint(export.write(tmp_path / "after"), header_only=True)
    assert [each.message for each in report.findings] == []
    assert report.facts == lint(tmp_path / "before", header_only=True).facts


@pytest.mark.rule("CKP-12")
@pytest.mark.parametrize("method", ["awq", "", "modelopt"])
def test_a_method_that_no_family_declares_names_none(method: str, tmp_path: Path) -> None:
    """Integer formats are not judged here."""
    export = corpus.Export(config={"quantization_config": {"quant_method": method, "bits": 4}}, shards=1)
    export.put("model.layers.0.mlp.up_proj.qweight", "I32", np.zeros((8, 8)))
    found = recognize(open_checkpoint(export.write(tmp_path)))
    assert found.config.family == ("modelopt" if method == "modelopt" else "")


@pytest.mark.rule("CKP-28")
def test_names_lead_to_modules_and_back() -> None:
    assert CONVENTIONS["torchao.nvfp4"].names("a.b")["scales"] == "a.b._weight_scale"
    assert CONVENTIONS["te.nvfp4"].names("a.b")["global_scale"] == "a.b.weight.amax_rowwise"
    for each in CONVENTIONS.values():
        stem = each.names("a.b")["codes"].removesuffix(each.codes.suffix)
        assert each.module(stem) == "a.b"
        assert each.variant_of in {"", *CONVENTIONS}
        assert packing(each.packing) in {each.packing, packing("low_first")}
        assert all(spec in fp4ref.profiles for spec in each.specs)
    assert len({form for members in families().values() for form in {each.codes for each in members}}) > 10


@pytest.mark.rule("CKP-29", "CKP-24")
@pytest.mark.parametrize("spec", ["nvfp4", "mxfp4", "mxfp8-e4m3", "nvfp4-4over6", "fouroversix.nvfp4_mse"])
def test_a_file_of_this_project_is_recognized(spec: str, tmp_path: Path) -> None:
    source = corpus.Export(shards=1)
    source.put("up.weight", "F32", corpus.weight(1, (64, 128)))
    path = source.write(tmp_path / "source") / "model.safetensors"
    for layout in ("linear", "tiled_128x4"):
        out = tmp_path / f"{layout}.safetensors"
        arguments = ["quantize", path, "-o", out, "--spec", spec, "--layout", layout]
        assert CliRunner().invoke(main, list(map(str, arguments))).exit_code == 0
        report = lint(out, source=tmp_path / "source")
        assert report.findings == []
        assert report.families[0].startswith("fp4ref.")
        assert report.facts["up.weight"]["closest_spec"] == spec
        assert report.facts["up.weight"]["differing_bytes"] == 0


@pytest.mark.rule("CKP-29")
@pytest.mark.parametrize("swizzled", [False, True])
def test_buffers_of_transformer_engine_are_recognized(swizzled: bool, tmp_path: Path) -> None:
    export = corpus.Export(shards=1)
    values = corpus.weight(1, (64, 160))
    amax = np.abs(values).max()
    data, scales = corpus.quantized(values, "nvfp4", amax)
    padded = corpus.tiled(scales) if swizzled else np.pad(scales, ((0, 64), (0, 2)), constant_values=0x77)
    export.put("up.weight.rowwise_data", "U8", data)
    export.put("up.weight.rowwise_scale_inv", "U8", padded)
    export.put("up.weight.amax_rowwise", "F32", [amax])
    facts = {"up": {"with_gemm_swizzled_scales": swizzled}}
    export.metadata = dict(CONVENTIONS["te.nvfp4"].configuration.write(CheckpointDeclaration({}, facts=facts)).metadata)
    source = corpus.Export(shards=1)
    source.put("up.weight", "F32", values)
    report = lint(export.write(tmp_path / "te"), source=source.write(tmp_path / "source"))
    assert report.findings == []
    assert report.families == ["te.nvfp4"]
    assert report.facts["up.weight"]["differing_bytes"] == 0
    export.put("up.weight.rowwise_scale_inv", "U8", scales)
    assert {each.code for each in lint(export.write(tmp_path / "te"), header_only=True).findings} == {"scale-layout"}


MODULE = """
from dataclasses import replace

import fp4ref
from fp4ref.checkpoints import CONVENTIONS, Consumer

BASE = CONVENTIONS["modelopt.nvfp4"]
fp4ref.register(
    replace(
        BASE,
        name="acme.nvfp4",
        codes=BASE.codes._replace(suffix=".acme", own=True),
        scales=BASE.scales._replace(suffix=".acme_scale"),
        global_scale=BASE.global_scale._replace(suffix=".acme_scale_2"),
        input_scale=None,
        declared=("acme4",),
        configuration=replace(BASE.configuration, methods=("acme",), file="", required=False, closed=False),
    ),
    source="our exporter",
)
fp4ref.register(Consumer(name="acme.serve", loads=("acme",), breaks={"scale-nan": "answers nonsense"}), source="ours")
"""


@pytest.mark.slow  # starts the program three times
@pytest.mark.rule("CKP-28", "CKP-32", "CKP-36")
def test_a_convention_of_a_distribution_is_recognized(tmp_path: Path) -> None:
    export = corpus.modelopt()
    for name in [name for name in export.tensors if name.endswith("weight_scale_2")]:
        head = name.removesuffix(".weight_scale_2")
        for old, new in ((".weight", ".acme"), (".weight_scale", ".acme_scale"), (".weight_scale_2", ".acme_scale_2")):
            export.tensors[head + new] = export.tensors.pop(head + old)
        export.drop(f"{head}.input_scale")
    export.hf, export.config = None, {"quantization_config": {"quant_method": "acme", "quant_algo": "acme4"}}
    export.array("model.layers.0.mlp.up_proj.acme_scale")[0, 0] = 0x7F
    export.write(tmp_path / "checkpoint")
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (tmp_path / "acme_conventions.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fp4ref.values]\nacme = acme_conventions\n")
    work = tmp_path / "work"
    work.mkdir()
    installed = {**os.environ, "PYTHONPATH": str(tmp_path)}
    option = ["--import", str(tmp_path / "acme_conventions.py")]
    for environment, more in ((installed, []), (dict(os.environ), option)):
        command = ["fp4ref", "lint", "../checkpoint", "--json", "--consumer", "acme.serve", *more]
        done = forked.run(command, work, environment)
        record = json.loads(done.stdout)
        assert record["convention"] == ["acme.nvfp4"]
        assert [(each["code"], each["consumers"]) for each in record["findings"]] == [
            ("scale-nan", {"acme.serve": "answers nonsense"})
        ]
    assert forked.run(["fp4ref", "lint", "../checkpoint", "--convention", "acme"], work).returncode == 2


@pytest.mark.rule("CKP-28", "LAY-9")
@pytest.mark.parametrize("piece", [access.PIECE, 1], ids=["large", "small"])
def test_scales_whose_rows_lie_apart_are_linted_and_converted(piece: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Blocks go down before rows, and codes are in the field's order of pairs: nothing of it is in a list of names."""
    monkeypatch.setattr(access, "PIECE", piece)
    base = CONVENTIONS["modelopt.nvfp4"]
    apart = fp4ref.Layout("acme.apart", "m(16,*) k(2,*): k0 m0 m1 k1")
    assert rows_of_a_piece(apart, 64, 4) == 64
    assert rows_of_a_piece(TILED_128X4, 300, 4) == 128
    turned = replace(
        base,
        name="acme.nvfp4",
        codes=base.codes._replace(suffix=".acme", own=True),
        scales=base.scales._replace(suffix=".acme_scale"),
        packing=fp4ref.PACKINGS["pairs_16"],
        layout=apart,
    )
    CONVENTIONS.register(turned, "a test")
    try:
        given = corpus.modelopt().write(tmp_path / "given")
        for source, target, to in ((given, "acme", "acme.nvfp4"), (tmp_path / "acme", "again", "modelopt.nvfp4")):
            done = CliRunner().invoke(main, ["convert", str(source), str(tmp_path / target), "--to", to])
            assert done.exit_code == 0, done.output
        assert {each.code for each in lint(tmp_path / "acme").findings} <= {"config"}  # it is modelopt's
    finally:
        CONVENTIONS.forget("acme.nvfp4")
    stored, found, again = (open_checkpoint(tmp_path / name).tensors for name in ("given", "acme", "again"))
    linear = np.frombuffer(stored["model.layers.0.mlp.up_proj.weight_scale"].bytes(), np.uint8)
    rows, blocks = stored["model.layers.0.mlp.up_proj.weight_scale"].shape
    index = [apart.offset(i, j, blocks, rows) for i in range(rows) for j in range(blocks)]
    moved = np.frombuffer(found["model.layers.0.mlp.up_proj.acme_scale"].bytes(), np.uint8)
    np.testing.assert_array_equal(moved[index], linear)
    assert all(again[name].bytes() == tensor.bytes() for name, tensor in stored.items())


@pytest.mark.rule("CKP-32")
def test_every_code_says_how_it_breaks_a_consumer() -> None:
    special = {code for each in CONSUMERS.values() for code in each.breaks}
    assert {*BREAKS, *HARMLESS, *special, "exclude-list"} == {*CODES}
    assert Consumer(name="acme.x", loads=("te",)).takes("te.nvfp4")
    assert not CONSUMERS["comfyui"].takes("modelopt.nvfp4")


@pytest.mark.rule("CKP-38")
def test_a_consumer_that_is_spared_gets_a_note(tmp_path: Path) -> None:
    export = corpus.compressed()
    name = "model.layers.0.mlp.up_proj.weight_global_scale"
    export.put(name, "F32", export.array(name) * np.float32(1.25))
    folder = export.write(tmp_path)
    (found,) = lint(folder).findings
    assert (found.code, found.severity) == ("fused-global-scale", "warning")
    assert {*found.consumers} == {"vllm", "sglang"}
    (judged,) = lint(folder, consumer="vllm").findings
    assert (judged.severity, {*judged.consumers}) == ("warning", {"vllm"})
    report = lint(folder, consumer="transformers")
    assert [(each.severity, each.consumers) for each in report.findings] == [("note", {})]
    assert report.status == 0
    remarks = lint(folder, consumer="comfyui").remarks
    assert "comfyui: no loader of compressed-tensors.nvfp4 is known" in remarks


@pytest.mark.rule("CKP-33")
def test_bounds_follow_from_the_formats() -> None:
    nv, mx, mx8 = (CONVENTIONS[f"modelopt.{name}"] for name in ("nvfp4", "mxfp4", "mxfp8"))
    assert bounds.most_crowded(nv) == 1.15 * (1 - 5 / (6 * 17 / 16))  # elements above 5 round to 6
    assert bounds.most_crowded(mx) == 1.15 * (1 - 5 / 8)
    assert [bounds.always_reached(each) for each in (nv, mx)] == [7, 5]  # 6, and 3 = 6 / 2
    assert [bounds.often_reached(each) for each in (nv, mx)] == [7, 6]
    assert bounds.zero_scales("e4m3") == {0x38, 0x20, 0x08, 0x00}
    assert bounds.zero_scales("e8m0") == {0x00, 0x7F}
    assert [int(code) for code in np.flatnonzero(bounds.nan_codes("e4m3"))] == [0x7F, 0xFF]
    assert [int(code) for code in np.flatnonzero(bounds.nan_codes("e8m0"))] == [0xFF]
    assert np.flatnonzero(bounds.negative_codes("e4m3")).tolist() == list(range(0x80, 0xFF))
    assert not bounds.negative_codes("e8m0").any()
    assert bounds.code_at(fp4ref.formats.E4M3, 256.0) == 0x78
    rng = np.random.default_rng(1)  # uniform between two powers of two, rounded to the nearest
    for name in ("e2m1", "e4m3", "e5m2"):
        x = rng.uniform(1, 2, 100_000)
        grid = bounds.values(name)
        near = np.sort(grid[np.isfinite(grid) & (grid >= 1) & (grid <= 2)])
        y = near[np.abs(x[:, None] - near).argmin(1)]
        ratio = 10 * np.log10((x**2).sum() / ((x - y) ** 2).sum())
        assert abs(bounds.least_decibels(name) + 10 - ratio) < 0.1
    assert bounds.overshoot(replace(mx8, element="e5m2")) == 2**16 / 57344


@pytest.mark.release  # runs some thirty commands
def test_the_page_of_garbage_shows_findings_and_repairs(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "docs/generate/checkpoint_howtos.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "page.md")], check=True)
    page = (tmp_path / "page.md").read_text("utf-8")
    for part in page.split("\n## ")[1:]:
        assert part.count("$ fp4ref lint ") >= 1
        if "$ fp4ref lint repaired" in part:
            assert ": nothing found" in part
    assert page.count(": nothing found") >= 4


def test_the_page_of_conventions_is_made_of_the_values(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "docs/generate/conventions.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "page.md")], check=True)
    page = (tmp_path / "page.md").read_text("utf-8")
    for words in (
        "elements, byte   0:    0.0+0.1    0.2+0.3    0.4+0.5",  # low half first
        "elements, byte   0:    0.1+0.0    0.3+0.2    0.5+0.4",  # Comfy
        "elements, byte   0:      scale   0.0+0.16   0.1+0.17",  # MXFP4 of GGUF: a scale, then halves of a block
        "scales, byte     0:        0.0        0.1        0.2        0.3\nscales, byte    16:        1.0",  # tiles
    ):
        assert words in page
    for each in CONVENTIONS.values():
        assert f"| `{each.name}` | `{each.stem.format(module='X')}{each.codes.suffix}` " in page
    assert (
        "| `comfy.nvfp4` | `X.weight` U8 | high_first | `X.weight_scale` F8_E4M3 e4m3 | tiled_128x4 | 1 x 16 | "
        "`X.weight_scale_2` F32, multiplier, 2688 | scale 0x00, code 0 |" in page
    )


@pytest.mark.rule("SPC-4")
def test_membership_does_not_search_for_names_that_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion asks for each module; the search for a message would take a hundred times as long."""
    monkeypatch.setattr("difflib.get_close_matches", lambda *arguments, **settings: pytest.fail("searched"))
    assert "modelopt" not in CONVENTIONS
    assert "modelopt.nvfp4" in CONVENTIONS
    assert "torchao.mxfp4_floor@0.18.0" in fp4ref.profiles
    assert "torchao.mxfp4_floor@9" not in fp4ref.profiles


def test_which_conventions_have_exponents_follows_from_the_format() -> None:
    exponents = Format("test.exponents", 8, 0, bias=127, codes=200, signed=False)
    FORMATS.register(exponents, "a test")
    try:
        assert replace(CONVENTIONS["modelopt.mxfp4"], scale=exponents.name).has_exponents
    finally:
        FORMATS.forget(exponents.name)
    assert CONVENTIONS["modelopt.mxfp4"].has_exponents
    assert not CONVENTIONS["modelopt.nvfp4"].has_exponents
    assert not next(each for each in CONVENTIONS.values() if not each.scale).has_exponents
