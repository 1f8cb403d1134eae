"""Scales that are no numbers to work with: refused in one line, or described, by every command on checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from checkpoints_corpus import of_layers
from commands import fp4
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.convention import Direction, ScaleWay
from fp4ref.checkpoints.float_scales import FloatScales
from fp4ref.checkpoints.shards import Shard
from fp4ref.checkpoints.transfer.scales import Cost, StoredScale

corpus = of_layers(1)
MODULE = "model.layers.0.mlp.down_proj"
ODD = [np.inf, np.nan, 0.0, -1.0, 1e-45, 1e-39, 3e38]
ROLES = [
    ("modelopt-nvfp4", "weight_scale_2", "compressed-tensors"),
    ("modelopt-nvfp4", "input_scale", "compressed-tensors"),
    ("compressed-nvfp4", "weight_global_scale", "modelopt"),
    ("compressed-nvfp4", "input_global_scale", "modelopt"),
    ("torchao-nvfp4", "_weight_per_tensor_scale", "compressed-tensors"),
]


def export_with(export: str, suffix: str, value: float, folder: Path) -> Path:
    """Return an export in which one scale has a value."""
    made = corpus.CLEAN[export]()
    name = f"{MODULE}.{suffix}"
    made.array(name)[...] = value
    return made.write(folder / "source")


def one_line(result: Result) -> bool:
    """True for an error of one line and status 2."""
    said = [line for line in result.stderr.splitlines() if line.startswith("fp4ref: ")]  # others say where it is
    return result.exit_code == 2 and len(said) == 1 and "Traceback" not in result.stderr


@pytest.mark.sampled(4)
@pytest.mark.rule("CNV-3", "CNV-16", "CKP-21")
@pytest.mark.parametrize(  # by default, each role with two or three of the values; in CI, with as many more
    ("value", "export", "suffix", "to"),
    [
        pytest.param(value, *role, marks=[(), pytest.mark.heavy, pytest.mark.release][(i + j) % 3])
        for i, value in enumerate(ODD)
        for j, role in enumerate(ROLES)
    ],
)
def test_a_scale_that_is_no_number_ends_no_command(
    value: float, export: str, suffix: str, to: str, tmp_path: Path
) -> None:
    source = export_with(export, suffix, value, tmp_path)
    usable = np.isfinite(value) and value > 0 and 1 / np.float64(np.float32(value)) < 3.4e38
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        refused = fp4("convert", source, tmp_path / "out", "--to", to)
        assert refused.exit_code == 0 if usable else one_line(refused), refused.output
        if not usable:
            assert f"{MODULE}: {'an input' if 'input' in suffix else 'a global'} scale" in refused.stderr
            left = fp4("convert", source, tmp_path / "out", "--to", to, "--lossy")
            assert (left.exit_code, "loss:" in left.output) == (0, True), left.output
        record = json.loads((tmp_path / "out" / "fp4ref_manifest.json").read_text("utf-8"))
        assert np.isfinite(record["largest_scale_error"])
        for path in (source, tmp_path / "out"):
            described = fp4("manifest", path, "-o", tmp_path / f"{path.name}.json")
            assert described.exit_code == 0, described.output
            assert fp4("compare", path, tmp_path / f"{path.name}.json").exit_code == 0
            assert fp4("lint", path).exit_code in {0, 1}
        for spec in ("nvfp4", "block-fp8"):
            judged = fp4("lossless", source, "--to", spec)
            assert judged.exit_code in {0, 1} or one_line(judged), judged.output


@pytest.mark.rule("CNV-16")
def test_scales_that_are_no_numbers_are_told_apart(tmp_path: Path) -> None:
    lines = set()
    for number, value in enumerate((np.inf, np.nan, 0.0, -1.0, 1.0)):
        source = export_with("modelopt-nvfp4", "weight_scale_2", value, tmp_path / f"{number}")
        entries = fp4("manifest", source).output.splitlines()
        lines.add(next(line for line in entries if line.startswith(f'"{MODULE}.weight"')))
    assert len(lines) == 5


@pytest.mark.rule("CKP-20")
@pytest.mark.parametrize("way", [each for each in ScaleWay if each is not ScaleWay.NONE])
def test_factors_are_the_multipliers_rounded_once(way: ScaleWay) -> None:
    values = np.random.default_rng(3).uniform(1e-6, 1e6, 1000).astype(np.float32)
    stored = StoredScale(values, Direction(way, 2688.0))
    assert [*stored.factors()] == [float(each) for each in stored.multipliers()]
    broken = StoredScale(np.float32([np.nan, 1]), Direction(way, 2688.0))
    assert broken.cost(Direction(ScaleWay.DIVISOR, 6.0)) is Cost.ULP or way is ScaleWay.DIVISOR
    assert broken.odd() == "nan"


@pytest.mark.rule("CKP-5", "CKP-34")
@pytest.mark.parametrize("shorter", [True, False])
@pytest.mark.parametrize("command", ["manifest", "lossless", "lint", "compare"])
def test_a_source_that_changes_while_it_is_read_is_an_error(
    command: str, shorter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus.CLEAN["modelopt-nvfp4"]().write(tmp_path / "source")
    kept = tmp_path / "kept.json"
    assert fp4("manifest", source, "-o", kept).exit_code == 0
    read, changed = Shard.read, list[Path]()

    def read_and_change(shard: Shard, start: int, count: int) -> bytes:
        found = read(shard, start, count)
        if not changed and start > 1 << 14:  # behind the header
            changed.append(shard.path)
            data = shard.path.read_bytes()
            shard.path.write_bytes(data[: start + 8] if shorter else data + b" ")
        return found

    monkeypatch.setattr(Shard, "read", read_and_change)
    more = {"lossless": ("--to", "mxfp4"), "compare": (kept,), "lint": ("--workers", "1")}.get(command, ())
    result = fp4(command, source, *more)
    assert changed
    assert one_line(result), result.output
    assert "changed while it was read" in result.stderr or "the file ends" in result.stderr


@pytest.mark.rule("CNV-5", "CNV-6")
@pytest.mark.parametrize("value", [3.0, np.nan, np.inf, 0.0, -2.0, 2.0])
def test_scales_that_were_exponents_are_so_again_only_if_they_can(value: float, tmp_path: Path) -> None:
    """Scales of UE8M0 become numbers elsewhere. There one is changed, and the way back keeps what it is now."""
    source = corpus.CLEAN["deepseek-fp8-ue8m0"]().write(tmp_path / "source")
    there = fp4("convert", source, tmp_path / "there", "--to", "compressed-tensors")
    assert there.exit_code == 0, there.output
    tensor = open_checkpoint(tmp_path / "there").tensors[f"{MODULE}.weight_scale"]
    assert tensor.dtype in {"F32", "BF16"}
    number = np.float32(value).tobytes()[-2 if tensor.dtype == "BF16" else 0 :]
    data = bytearray(tensor.shard.path.read_bytes())
    data[tensor.start : tensor.start + len(number)] = number
    tensor.shard.path.write_bytes(data)
    back = fp4("convert", tmp_path / "there", tmp_path / "back", "--to", "deepseek")
    assert back.exit_code == 0, back.output
    found = open_checkpoint(tmp_path / "back").tensors[f"{MODULE}.weight_scale_inv"]
    numbers = FloatScales(found.dtype, found.shape, found.bytes()).numbers()
    assert np.array_equal(numbers[0], np.float32(value), equal_nan=True)
    assert (found.dtype == tensor.dtype) is (value != 2)
