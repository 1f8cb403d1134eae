from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref.cli import main
from fp4ref.cli.vectors import export_vectors
from fp4ref.conformance.vectors.export import SUMS, export
from fp4ref.errors import DomainError, FileError, LayoutError

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "golden_vectors.c"
COMPILERS = [name for name in ("gcc", "cc", "clang") if shutil.which(name)][:1]
STRICT = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
WORDS = {"float32": "<f4", "bfloat16": "<u2", "float16": "<f2"}


def read(folder: Path, name: str):
    """Every vector of a specification, by JSON and binary alone: its entry and its arrays as bytes."""
    record = json.loads((folder / f"{name}.json").read_text())
    raw = (folder / record["binary"]).read_bytes()
    for entry in record["vectors"]:
        yield entry, {part: raw[at["offset"] : at["offset"] + at["size"]] for part, at in entry["parts"].items()}


@pytest.mark.rule("CNF-7")
def test_the_same_command_writes_the_same_bytes(tmp_path):
    few = {"families": ["normal", "nan"], "dtypes": ["float32"]}
    first, again = (export(tmp_path / name, ["nvfp4", "mxfp8-e4m3"], **few) for name in ("a", "b"))
    assert [path.name for path in first] == [path.name for path in again]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, again, strict=True))


def test_checksums_are_those_of_the_files(tmp_path):
    paths = export(tmp_path, ["nvfp4"], families=["normal"])
    sums = dict(reversed(line.split("  ")) for line in (tmp_path / SUMS).read_text().splitlines())
    assert set(sums) == {path.name for path in paths} - {SUMS}
    for name, digest in sums.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "-c", "--strict", SUMS], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.rule("CNF-1", "PACK-1", "LAY-3")
@pytest.mark.parametrize(
    "spec, layout, direction",
    [
        ("nvfp4", "linear", "row"),
        ("nvfp4", "tiled_128x4", "column"),
        ("nvfp4-row-scaled", "linear", "row"),
        ("mxfp8-2d", "tiled_8x4", "row"),
    ],
)
def test_the_binary_holds_what_the_public_function_makes(tmp_path, spec, layout, direction):
    families = ["ragged", "normal", "given-amax", "minus-zero"]
    families = [name for name in families if name in fp4ref_families()]
    export(tmp_path, [spec], scale_layout=layout, direction=direction, families=families)
    checked = 0
    for entry, parts in read(tmp_path, spec.replace("-", "_")):
        x = np.frombuffer(parts["x"], WORDS[entry["dtype"]]).reshape(entry["shape"])
        x = x.view(ml_dtypes.bfloat16) if entry["dtype"] == "bfloat16" else x
        amax = np.frombuffer(parts["amax"], "<f4") if entry["amax_given"] else None
        q = fp4ref.quantize(x, spec, direction, scale_layout=layout, amax=amax)
        got, _ = q.direction(direction)
        assert np.asarray(got.data).tobytes() == parts["data"], entry["name"]
        assert np.asarray(got.scales).tobytes() == parts["scales"], entry["name"]
        assert list(np.shape(got.scales)) == entry["scale_shape"]
        assert (b"" if got.amax is None else np.asarray(got.amax).tobytes()) == parts.get("amax", b"")
        checked += 1
    assert checked > 20


@pytest.mark.rule("CNF-19")
@pytest.mark.parametrize(("direction", "multiple"), [("row", (16, 64)), ("column", (128, 32)), ("row", (128, 128))])
def test_vectors_of_multiples_keep_every_family(tmp_path, direction, multiple):
    few = ["normal", "ragged", "element-ties", "nan", "zero-blocks", "large"]
    settings = {"direction": direction, "families": few, "dtypes": ["bfloat16"]}
    export(tmp_path / "all", ["mxfp4"], **settings)
    export(tmp_path / "some", ["mxfp4"], multiple=multiple, **settings)
    exported = [*read(tmp_path / "some", "mxfp4")]
    assert {entry["family"] for entry, _ in exported} == {
        entry["family"] for entry, _ in read(tmp_path / "all", "mxfp4")
    }
    for entry, parts in exported:
        x = np.frombuffer(parts["x"], "<u2").reshape(entry["shape"]).view(ml_dtypes.bfloat16)
        rows, columns = entry["matrix"] if direction == "row" else entry["matrix"][::-1]
        assert rows % multiple[0] == columns % multiple[1] == 0
        got, _ = fp4ref.quantize(x, "mxfp4", direction).direction(direction)
        assert np.asarray(got.data).tobytes() == parts["data"], entry["name"]
    assert json.loads((tmp_path / "some" / "mxfp4.json").read_text())["multiple"] == list(multiple)


def fp4ref_families():
    from fp4ref.conformance.families import FAMILIES

    return FAMILIES


@pytest.mark.rule("SR-1")
def test_random_bits_are_exported(tmp_path):
    spec = fp4ref.NVFP4.replace(name="mine 4", element=fp4ref.formats.STOCHASTIC_E2M1)
    export(tmp_path, [spec], families=["normal"])
    for entry, parts in read(tmp_path, "mine_4"):
        assert len(parts["random_bits"]) == np.prod(entry["matrix"])
    assert "fp4ref_mine_4_count" in (tmp_path / "mine_4.h").read_text()


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
@pytest.mark.rule("MXS-1", "E2M1-3", "E8M0-2", "BLK-10")
def test_the_example_checks_a_quantizer(tmp_path):
    golden = tmp_path / "golden"
    export(golden, ["mxfp4"])
    text = EXAMPLE.read_text()
    for source, differ in ((text, 0), (text.replace("(a > 2.5f)", "(a >= 2.5f)"), None)):
        (tmp_path / "check.c").write_text(source)
        subprocess.run([*COMPILERS, *STRICT, "-Igolden", "check.c", "-o", "check"], cwd=tmp_path, check=True)
        run = subprocess.run(["./check", "golden/mxfp4.bin"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (run.returncode == 0) == (differ == 0), run.stdout
        assert f"{'0' if differ == 0 else ''} of " in run.stdout
    assert "element-ties/" in run.stdout


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
@pytest.mark.parametrize("spec", ["nvfp4", "torchao.mxfp8_e5m2_even"])
def test_headers_compile_alone(tmp_path, spec):
    paths = export(tmp_path, [spec], families=["normal"])
    for header in (path.name for path in paths if path.suffix == ".h"):
        source = f'#include "{header}"\n#include "{header}"\nint unused;\n'
        arguments = [*COMPILERS, *STRICT, "-Wno-unused-const-variable", "-x", "c", "-c", "-", "-o", "x.o"]
        subprocess.run([*arguments, "-I."], cwd=tmp_path, check=True, input=source, text=True)


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"specs": ["nvfp5"]}, DomainError, "nvfp5"),
        ({"specs": ["nvfp4"], "scale_layout": "tiled"}, LayoutError, "tiled"),
        ({"specs": ["nvfp4"], "dtypes": ["float64"]}, DomainError, "float64"),
        ({"specs": ["nvfp4"], "families": ["unknown"]}, DomainError, "unknown"),
        ({"specs": ["nvfp4-rht"], "direction": "column", "dtypes": ["float32"]}, DomainError, "no case"),
        ({"specs": ["nvfp4", "nvfp4"]}, FileError, "different names"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path, arguments, error, words):
    with pytest.raises(error, match=words):
        export(tmp_path / "new", **arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [line.strip() for line in export_vectors.epilog.splitlines() if line.strip().startswith("fp4ref")]
)
def test_help_examples_run(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, line.split()[1:])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "golden" / SUMS).exists()
