"""Repairs of checkpoints: the command that the linter prints for a defect is run, and its result compared."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import checkpoints_corpus as corpus
import checkpoints_defects as defects
import checkpoints_fifth  # noqa: F401 - adds defects, as the next ones do
import checkpoints_fourth  # noqa: F401
import checkpoints_third as third
import checkpoints_unseen  # noqa: F401
from fp4ref.checkpoints import lint
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.repairs import REPAIRS
from fp4ref.cli import main

UP = defects.UP
DEFECTS = {each.name: each for each in (*defects.DEFECTS, *third.third()) if each.code in REPAIRS}
LOST = {  # what these defects overwrote or renamed cannot be derived from the file
    "orphan-tensor:the_other_sidecar_name": "the global scale has another name, and dropping it would lose it",
    "group-size:blocks_of_64": "half of the scales are not stored",
    "scale-nan:nan_in_a_scale": "elements that are not zero",
    "scale-nan:nan_exponent": "elements that are not zero",
    "scale-nan:nan_in_a_tile": "elements that are not zero",
    "scale-nan:nan_tensor_scale": "a float scale",
    "scale-nan:an_exponent_of_255_in_gguf": "elements that are not zero",
    "scale-nan:nan_exponents_of_torchao": "elements that are not zero",
    "exclude-list:gate_swallows_gate_up": "the list is right, one consumer matches it by substring",
}
ZEROS = {"scale-nan:the_blocks_of_a_dead_neuron"}  # elements that were another number once, and stay zeros
QUICK = (
    "nibble-order:one_tensor_with_high_nibbles_first",
    "scale-layout:one_dimension_of_tiles",
    "scale-layout:padded_to_tiles",
    "padding:rows_below_the_bias",
    "orphan-tensor:the_state_of_a_quantizer",
    "config:cache_scales_that_nobody_declares",
    "exclude-list:lm_head_is_not_excluded",
    "group-size:declared_32",
)


def named(names: Any, quick: tuple[str, ...] = ()) -> list[Any]:
    return [pytest.param(each, marks=[] if each in quick else [pytest.mark.heavy]) for each in names]


def tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = open_checkpoint(path)
    assert found.problems == []
    return {name: (each.dtype, each.shape, each.bytes()) for name, each in found.tensors.items()}


def failures(path: Path, **options: Any) -> list[Any]:
    return [each for each in lint(path, **options).findings if each.severity != "note"]


def repaired(command: str, target: Path) -> Path:
    words = [str(target) if word == "REPAIRED" else word for word in shlex.split(command)]
    assert words[0] == "fp4ref"
    result = CliRunner().invoke(main, words[1:])
    assert result.exit_code == 0, result.output
    return target


@pytest.mark.sampled(4)
@pytest.mark.rule("CNV-54")
@pytest.mark.parametrize("name", named([each for each in DEFECTS if each not in LOST], QUICK))
def test_the_printed_command_repairs_a_defect(name: str, tmp_path: Path) -> None:
    defect = DEFECTS[name]
    export, clean = corpus.CLEAN[defect.base](), corpus.CLEAN[defect.base]()
    defect.change(export)
    commands = {each.repair for each in failures(export.write(tmp_path / "broken"), **defect.options(tmp_path, corpus))}
    assert len(commands) == 1
    mended = repaired(commands.pop(), tmp_path / "mended")
    assert failures(mended) == []
    if defect.code != "fused-global-scale" and name not in ZEROS:  # the first is not undone, but rounded to one scale
        assert tensors(mended) == tensors(clean.write(tmp_path / "clean"))


@pytest.mark.rule("CNV-54")
@pytest.mark.parametrize("name", named(LOST, ("scale-nan:nan_in_a_scale", "scale-nan:nan_tensor_scale")))
def test_no_command_is_printed_for_what_is_lost(name: str, tmp_path: Path) -> None:
    export = corpus.CLEAN[DEFECTS[name].base]()
    DEFECTS[name].change(export)
    found = lint(export.write(tmp_path / "broken")).findings
    assert [(each.code, each.repair) for each in found] == [(DEFECTS[name].code, "")] * len(found)


def nan_above_zeros(export: Any) -> None:
    export.array(f"{UP}.weight_scale")[5, 3] = 0x7F
    export.array(f"{UP}.weight")[5, 24:32] = 0x80  # zeros of both signs


@pytest.mark.rule("CNV-11")
def test_nan_above_zeros_is_repaired_by_the_printed_command(tmp_path: Path) -> None:
    export = corpus.CLEAN["modelopt-nvfp4"]()
    nan_above_zeros(export)
    (found,) = failures(export.write(tmp_path / "broken"))
    mended = repaired(found.repair, tmp_path / "mended")
    assert failures(mended) == []
    export.array(f"{UP}.weight_scale")[5, 3] = 0x38  # what modelopt gives blocks of zeros
    assert tensors(mended) == tensors(export.write(tmp_path / "expected"))


VENDORS = Path(__file__).parents[1] / "CONTRIBUTING.md"


@pytest.mark.rule("CNV-11", "SPC-4")
def test_a_vendors_repair_mends_what_its_code_names(tmp_path: Path) -> None:
    text = VENDORS.read_text(encoding="utf-8").partition("\n## Add a repair\n")[2]
    (tmp_path / "acme_repairs.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    export = corpus.CLEAN["modelopt-nvfp4"]()
    scales = export.array(f"{UP}.weight_scale")
    scales[5, 3] = 0x7F  # above elements that are not zero
    broken = export.write(tmp_path / "broken")
    arguments = ["convert", str(broken), str(tmp_path / "mended"), "--repair", "acme.scale-nan"]
    done = CliRunner().invoke(main, [*arguments, "--import", str(tmp_path / "acme_repairs.py")])
    REPAIRS.forget("acme.scale-nan")
    assert done.exit_code == 0, done.output
    assert failures(tmp_path / "mended") == []
    scales[5, 3] = 0x7E
    assert tensors(tmp_path / "mended") == tensors(export.write(tmp_path / "expected"))


@pytest.mark.rule("CNV-68")
def test_a_command_repairs_what_else_would_refuse_it(tmp_path: Path) -> None:
    """A stray scale makes every conversion fail, also one that repairs another finding."""
    export = corpus.CLEAN["modelopt-nvfp4"]()
    nan_above_zeros(export)
    export.put("model.layers.0.mlp.o_gate.weight_scale", "F8_E4M3", np.zeros((4, 4)))
    found = {each.code: each.repair for each in failures(export.write(tmp_path / "broken"))}
    assert set(found) == {"orphan-tensor", "scale-nan"}
    assert "--repair scale-nan --repair orphan-tensor" in found["scale-nan"] or (
        "--repair orphan-tensor --repair scale-nan" in found["scale-nan"]
    )
    assert failures(repaired(found["scale-nan"], tmp_path / "mended")) == []


@pytest.mark.rule("CNV-68")
def test_a_chosen_convention_is_part_of_the_command(tmp_path: Path) -> None:
    export = corpus.CLEAN["modelopt-nvfp4"]()
    nan_above_zeros(export)
    (found,) = failures(export.write(tmp_path / "broken"), convention="modelopt")
    assert found.repair.endswith("--convention modelopt")
    assert failures(repaired(found.repair, tmp_path / "mended")) == []


def rows_of_sizes(seed: int, spread: float) -> np.ndarray:
    """A matrix whose rows have sizes 2^(spread * normal)."""
    draw = np.random.default_rng(seed)
    sizes = np.exp2(spread * draw.standard_normal((256, 1)))
    return (draw.standard_normal((256, 512)) * sizes).astype(np.float32)


@pytest.mark.rule("CKP-15", "CNV-11")
@pytest.mark.parametrize("number", [4, 1])
def test_the_layout_of_scales_is_that_of_their_writer(number: int, tmp_path: Path) -> None:
    """Two of four matrices show the layout. All are tiled: all are named and repaired. One is: it alone is named."""
    export = corpus.Export()
    spreads = {"q_proj": 0.7, "o_proj": 0.7, "k_proj": 0.12, "v_proj": 0.12}
    for seed, (name, spread) in enumerate(spreads.items()):
        values = rows_of_sizes(seed, spread)
        corpus.put_modelopt(export, "nvfp4", f"model.layers.0.self_attn.{name}", values, np.float32(30))
    right = export.write(tmp_path / "right")
    for name in [*spreads][:number]:
        scales = f"model.layers.0.self_attn.{name}.weight_scale"
        export.put(scales, "F8_E4M3", corpus.tiled(export.array(scales)).reshape(256, 32))
    wrong = export.write(tmp_path / "wrong")
    report = lint(wrong)
    (found,) = [each for each in report.findings if each.code == "scale-layout"]
    assert len(found.tensors) == number
    said = any("cannot tell for 2 of 4 tensors" in text for text in report.remarks)
    assert said is (number == 1)
    assert not [each for each in lint(right).findings if each.code == "scale-layout"]
    result = CliRunner().invoke(
        main, ["convert", f"{wrong}", f"{tmp_path / 'out'}", "--to", "modelopt", "--repair", "scale-layout"]
    )
    assert result.exit_code == 0, result.output
    assert tensors(tmp_path / "out") == tensors(right)
