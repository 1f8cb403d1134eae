from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import ml_dtypes
import numpy as np
import pypdf
import pytest
from click.testing import CliRunner, Result

import fp4ref
from fp4ref import analysis
from fp4ref.cli import main, report
from fp4ref.files import open_tensors, write_tensors

BF16 = ml_dtypes.bfloat16


def naive(x: Any, spec: fp4ref.Spec, direction: str) -> dict[str, Any]:
    """The definitions of the statistics, an element at a time."""
    wide = np.asarray(x).reshape(-1, x.shape[-1])
    taken = wide.astype(BF16) if spec.hadamard else wide
    q = fp4ref.quantize(taken, spec, direction, backend="numpy")
    y = fp4ref.dequantize(q, direction=direction, inverse_hadamard=bool(spec.hadamard), backend="numpy")
    y = y if direction == "row" else y.T
    largest = spec.element.format.max
    out: Counter[str] = Counter()
    errors = []
    plain = fp4ref.dequantize(q, direction=direction, backend="numpy")
    data = q.row if direction == "row" else q.column
    assert data is not None
    for index, given in np.ndenumerate(wide):
        a, b = float(given), float(y[index])
        out["elements"] += 1
        if not (math.isfinite(a) and math.isfinite(b)):
            out["nonfinite"] += 1
            continue
        place = index if direction == "row" else index[::-1]
        byte = int(data.data[place[0], place[1] // 2 if largest == 6 else place[1]])
        code = (byte >> 4 * (place[1] % 2)) & 0xF if largest == 6 else byte
        magnitude = abs(float(spec.element.decode(np.uint8([code]))[0]))
        out["saturated"] += magnitude == largest and abs(a) > abs(b)
        out["nonzero"] += a != 0
        out["underflowed"] += a != 0 and b == 0
        errors.append((a, b - a))
    relative = [abs(e / a) for a, e in errors if a]
    assert plain.shape == (y.shape if direction == "row" else y.T.shape)
    return dict(out) | {
        "signal": math.fsum(a * a for a, _ in errors),
        "noise": math.fsum(e * e for _, e in errors),
        "relative": math.fsum(relative),
        "relative_max": max(relative, default=0.0),
        "error_max": max((abs(e) for _, e in errors), default=0.0),
        "blocks": Counter(np.asarray(data.scales).ravel().tolist()),
    }


def some(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(seed).standard_t(2, shape).astype(np.float32)
    x.flat[::7] = 0
    return x


@pytest.mark.parametrize("direction", ["row", "column"])
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-2d", "nvfp4-row-scaled", "nvfp4-4over6", "mxfp4", "mxfp8-e4m3"])
def test_statistics_are_their_definitions(name: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "CHUNK", 100)  # so that a tensor has several parts
    x = some((2, 9, 37))
    x[0, 0, :4] = [np.nan, np.inf, -0.0, 1e-30]
    spec = fp4ref.profiles[name]
    compared(fp4ref.error_statistics(x, spec, direction), naive(x, spec, direction))  # type: ignore[arg-type]


def test_hadamard_is_undone_and_compared_with_what_was_given() -> None:
    x = some((32, 24), 1)
    found = fp4ref.error_statistics(x, "nvfp4-rht")
    compared(found, naive(x, fp4ref.NVFP4_RHT, "column"))
    assert found.sqnr > 15


def compared(found: fp4ref.ErrorStatistics, wanted: dict[str, Any]) -> None:
    blocks = wanted.pop("blocks")
    assert {byte: int(count) for byte, count in enumerate(found.scales) if count} == dict(blocks)
    for name, value in wanted.items():
        if isinstance(value, float):  # sums in another order
            assert getattr(found, name) == pytest.approx(value, rel=1e-12), name
        else:
            assert getattr(found, name) == value, name


def test_numbers_of_a_tensor_worked_by_hand() -> None:
    # amax 6, so every scale is 448 and the codes are the values: 5 ties to 4, 0.25 to 0, 2.6 rounds to 3.
    found = fp4ref.error_statistics(np.float32([[6, 5, 0.25, 2.5, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]), fp4ref.NVFP4)
    assert (found.elements, found.nonzero, found.underflowed, found.saturated) == (16, 15, 1, 0)
    assert found.noise == pytest.approx(1 + 0.0625 + 0.25, rel=1e-6)
    assert found.signal == 36 + 25 + 0.0625 + 6.25 + 11
    assert found.relative_max == 1.0
    assert found.powers == {8: 1}
    assert found.sqnr == pytest.approx(10 * math.log10(found.signal / found.noise))


def test_saturated_elements_were_larger_than_the_largest_code() -> None:
    found = fp4ref.error_statistics(np.full((1, 16), 6.3, np.float32), "nvfp4")
    assert found.saturated in {0, 16}
    spec = fp4ref.NVFP4
    x = np.full((1, 16), 7.0, np.float32)
    given = fp4ref.quantize(x, spec, amax=0.5)
    assert fp4ref.dequantize(given).max() < 7


@pytest.mark.parametrize("shape", [(0, 16), (3, 0)])
def test_empty_tensors_have_no_error(shape: tuple[int, ...]) -> None:
    found = fp4ref.error_statistics(np.zeros(shape, np.float32), "nvfp4")
    assert found.elements == 0
    assert math.isnan(found.sqnr)
    assert found.share(found.saturated) == 0
    json.dumps(found.to_record(), allow_nan=False)


def test_zeros_have_no_noise() -> None:
    found = fp4ref.error_statistics(np.zeros((2, 16), np.float32), "nvfp4")
    assert found.sqnr == math.inf
    assert found.zero_scales == 2
    assert found.powers == {}


def test_sums_of_parts_are_those_of_the_whole() -> None:
    x = some((8, 64))
    whole = fp4ref.error_statistics(x, "mxfp8-e4m3")
    parts = fp4ref.error_statistics(x[:3], "mxfp8-e4m3") + fp4ref.error_statistics(x[3:], "mxfp8-e4m3")
    assert (parts.scales == whole.scales).all()
    assert parts.noise == pytest.approx(whole.noise, rel=1e-12)
    assert (parts.relative_max, parts.elements) == (whole.relative_max, whole.elements)


def test_stochastic_specifications_are_refused() -> None:
    spec = fp4ref.NVFP4.replace(name="sr", element=fp4ref.formats.STOCHASTIC_E2M1)  # type: ignore[attr-defined]
    with pytest.raises(fp4ref.DomainError, match="SR-1"):
        fp4ref.error_statistics(np.ones((1, 16), np.float32), spec)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "<b>model.safetensors"
    arrays = {
        "a.weight": some((32, 48)),
        "<script>": some((17, 33), 2).astype(BF16),
        "half": some((2, 3, 16), 3).astype(np.float16),
        "bias": some((40,)),
        "ids": np.arange(4),
    }
    kinds = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64"}
    entries = [(name, kinds[x.dtype.name], x.shape) for name, x in arrays.items()]
    write_tensors(path, entries, {}, iter(arrays.values()))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_json_has_every_tensor_and_specification(source: Path) -> None:
    result = run(source, "--specs", "nvfp4,nvfp4:column,nvfp4-rht,mxfp8-e4m3", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert {tensor["tensor"] for tensor in record["tensors"]} == {"a.weight", "<script>", "half"}
    with open_tensors(source) as file:
        for tensor in record["tensors"]:
            x = file.read(tensor["tensor"])
            for label, numbers in tensor["specs"].items():
                if "refused" in numbers:
                    assert label == "nvfp4-rht"
                    assert "HAD-5" in numbers["refused"]
                    continue
                name, _, direction = label.partition(":")
                expected = fp4ref.error_statistics(x, name, direction or None)  # type: ignore[arg-type]
                assert numbers == expected.to_record()
    assert record["total"]["nvfp4"]["elements"] == 32 * 48 + 17 * 33 + 96


def test_text_and_page_say_the_same(source: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    result = run(source, "--specs", "nvfp4,nvfp4-rht,mxfp4", "--html", page)
    assert result.exit_code == 0, result.output
    html = page.read_text().replace("<wbr>", "")
    with open_tensors(source) as file:
        sqnr = f"{fp4ref.error_statistics(file.read('a.weight'), 'nvfp4').sqnr:.2f}"
    assert sqnr in result.stdout
    assert f"<td>{sqnr}</td>" in html
    first, *table = re.findall(r"<tr>.*?</tr>", html[html.index("tensor, SQNR in dB") - 30 :], re.DOTALL)[:4]
    assert len(table) == html.count("<details>") == 3
    assert any("a.weight" in row and sqnr in row and "<b>" in row for row in table)
    assert all(name in first for name in ("nvfp4", "nvfp4-rht", "mxfp4"))
    assert sum("refused" in row for row in table) == 2
    assert len(re.findall(r"SQNR [\d.]+ to [\d.]+ dB</summary>", html)) == 3  # closed rows show numbers
    assert "hadamard of 17 rows, need a multiple of 16" in result.stdout
    assert "hadamard of 17 rows, need a multiple of 16" in html
    assert "skipped 2, of one dimension or another element type: ids, bias" in result.stderr
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert not re.search(r"(?:src|href)=|url\(|@import|https?:", html)  # nothing is fetched
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 1 + 3 + 2 + 2
    for drawing in drawings:
        assert ET.fromstring(drawing).get("aria-label")
    dots = ET.fromstring(drawings[0]).findall("circle")
    assert len(dots) == 3 + 2 + 2


def test_columns_asks_for_a_width_where_there_is_no_terminal(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = run(source, "--specs", "nvfp4,mxfp4", "--tensors", "a.weight").output.splitlines()
    assert max(map(len, wide)) > 60
    monkeypatch.setenv("COLUMNS", "60")
    folded = run(source, "--specs", "nvfp4,mxfp4", "--tensors", "a.weight").output.splitlines()
    tables = [line for line in folded if re.search(r"\S {2,}\S", line)]
    assert tables
    assert max(map(len, tables)) <= 60


def test_a_row_fits_eighty_columns() -> None:
    """With the default specifications, for the scales of ordinary weights: names, numbers and scales on one line."""
    x = np.random.default_rng(0).standard_normal((64, 128), np.float32) * np.float32(1e-6)
    results: dict[str, analysis.ErrorStatistics | str] = {}
    for name in report.SPECS.split(","):
        spec, _, direction = name.partition(":")
        results[name] = analysis.error_statistics(x, fp4ref.profiles[spec], "column" if direction else None)
    lines = report._side_by_side(results, 80)
    assert len(lines) == 1 + len(results)
    assert all(line.startswith(name) for line, name in zip(lines[1:], results, strict=True))
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "options, words",
    [
        (["--specs", "nvfp44"], ["nvfp44", "nvfp4"]),
        (["--specs", "nvfp4:up"], ["'up'", "row or column"]),
        (["--tensors", "ids"], ["no tensor"]),
        (["--tensors", "none*"], ["nothing matches"]),
        (["--backend", "abacus"], ["abacus"]),
    ],
)
def test_a_refusal_is_one_line(source: Path, options: list[str], words: list[str]) -> None:
    result = run(source, *options)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_a_tensor_of_one_dimension_can_be_named(source: Path) -> None:
    result = run(source, "--specs", "nvfp4", "--tensors", "bias")
    assert result.exit_code == 0
    assert "bias  float32 [40]" in result.stdout


def test_examples_of_the_help_run(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(source.read_bytes())
    shown = CliRunner().invoke(main, ["report", "--help"]).output
    lines = [line.strip() for line in shown.splitlines() if line.strip().startswith("fp4ref report ")]
    assert len(lines) == 3
    for line in lines:
        words = [word.strip("'") for word in line.split()[1:]]
        words = ["*weight" if "attention" in word else word for word in words]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, (line, result.output)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("part", [["--tensors", "*layer.0.*"], pytest.param([], marks=pytest.mark.heavy)])
def test_a_real_model(part: list[str], real_model_path: Path) -> None:
    record = json.loads(run(real_model_path, *part, "--json").stdout)
    assert len(record["tensors"]) == (6 if part else 40)
    total = {label: part["sqnr_db"] for label, part in record["total"].items()}
    assert 30 < total["mxfp8-e4m3"] < 33
    assert total["nvfp4-2d"] < total["nvfp4"] < total["nvfp4-4over6"]
    assert total["mxfp4"] < total["nvfp4"]


def test_paper_has_every_name_in_one_line(chromium: Any, tmp_path: Path) -> None:
    """Eight specifications stand beside each name."""
    names = [f"model.layers.{i}.{part}_proj.weight" for i in range(9) for part in ("self_attn.q", "mlp.gate")]
    x = np.random.default_rng(4).standard_normal((32, 64)).astype(np.float32)
    np.savez(tmp_path / "m.npz", **dict.fromkeys(names, x))
    run(tmp_path / "m.npz", "--html", tmp_path / "r.html")
    chromium.get((tmp_path / "r.html").as_uri())
    printed = b64decode(chromium.execute_cdp_cmd("Page.printToPDF", {})["data"])
    lines = [line for page in pypdf.PdfReader(BytesIO(printed)).pages for line in page.extract_text().splitlines()]
    assert [name for name in names if not any(re.match(rf"{name} \d", line) for line in lines)] == []
