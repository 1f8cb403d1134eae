"""A verdict is never lost: whatever is wrong with a dump or a kernel, every output is complete."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from xml.etree import ElementTree as ET

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import fp4ref
from collected import collected
from commands import fp4
from covering import few
from fp4ref import testing
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import PROFILES
from fp4ref.cli import main, verify_text
from fp4ref.cli.common import DIFFERS, REFUSED
from fp4ref.conformance import families
from fp4ref.conformance.diagnosis import dumps as dump_diagnosis
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.evidence import SMALL, Item
from fp4ref.conformance.diagnosis.explanations import Diagnosis
from fp4ref.conformance.diagnosis.likely_pairs import LikelyPairs
from fp4ref.conformance.diagnosis.search import Search
from fp4ref.conformance.dumps.files import Dump, write_dump
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.reports import html, view
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict import dump_report, kernel_report, product_runs, stochastic, telling
from fp4ref.conformance.verdict import dumps as verifying
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.kernels import Declaration
from fp4ref.layout import layout
from fp4ref.quantized import DIRECTIONS, DirectionData, Directions
from fp4ref.specs import NVFP4
from standard_rules import rows_of


class Case:
    """The least that evidence needs."""

    direction = "row"
    amax = random_bits = None

    def __init__(self, x):
        self.x = x


def normal(rows, columns, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32).astype(dtype)


def quantized(x):
    return fp4ref.quantize(x, "nvfp4", backend="numpy").row


def large_evidence(rows=64, columns=256):
    x = normal(rows, columns)
    assert x.size > SMALL
    return Case(x), quantized(normal(rows, columns, seed=1))


@pytest.mark.rule("CNF-2")
def test_two_mistakes_are_weighed_where_every_tensor_is_large() -> None:
    search = Search(NVFP4, [Item(*large_evidence(), NVFP4, layout("linear"))], False, float("inf"), False)
    start, names = search.starts[0], ("input-bf16-cut", "global-one", "scale-stored-plus-1")
    mistakes = [mistake for mistake in search.mistakes if mistake.name in names]
    singles = [(mistake, changed) for mistake in mistakes if (changed := start.but(mistake)) is not None]
    assert len(singles) == len(names)
    assert len([*LikelyPairs(start, singles, search.parts, lambda: None).likeliest()]) == 3


@pytest.mark.rule("CNF-2")
def test_a_diagnosis_without_time_says_so():
    x = normal(64, 256)
    right = quantized(x)
    found = diagnose(NVFP4, "linear", [(Case(x), right._replace(scales=right.scales[::-1].copy()))], -1.0)
    assert not found.complete
    assert found.where.startswith("in ")


def broken(*_, **__):
    raise ValueError("broken on\npurpose")


def write_wrong(path, rows=32, columns=64, name="w"):
    """Write a dump of which one code differs."""
    x = normal(rows, columns)
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    data = q.row.data.copy()
    data[0, 0] ^= 1
    write_dump(path, [Dump(name, x, replace(q, row=q.row._replace(data=data)))])
    return path


KERNELS = """
import fp4ref
import numpy as np

def quantize(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    return q.data ^ 1, q.scales, q.amax

@fp4ref.kernel(operation="dequantize", inputs=("data", "scales", "amax"), outputs=("values",), multiple=(1, 16))
def dequantize(data, scales, amax):
    return np.ones((len(data), 2 * data.shape[1]), np.float32)

@fp4ref.kernel(operation="gemm", inputs=("a_data", "rows", "columns"), outputs=("values",))
def gemm(a_data, rows, columns):
    return np.ones((rows, columns), np.float32)
"""


@pytest.mark.rule("CNF-10", "CNF-11", "CNF-69")
def test_a_broken_diagnosis_of_a_dump_costs_the_diagnosis_only(tmp_path, monkeypatch):
    path, junit, page = write_wrong(tmp_path / "d.npz"), tmp_path / "r.xml", tmp_path / "r.html"
    healthy = json.loads(fp4("verify", path, "--json", "--no-diagnosis").stdout)
    monkeypatch.setattr(dump_diagnosis, "diagnose", broken)
    text = fp4("verify", path, "--junit", junit, "--html", page)
    assert text.exit_code == 1
    headline, *lines = text.stdout.splitlines()
    assert headline.endswith(
        "wrong: not explained, since the diagnosis failed (ValueError); differs from nvfp4 in 1 code"
    )
    (line,) = [line for line in lines if line.startswith("internal error")]
    assert line.startswith("internal error, the diagnosis failed: ValueError: broken on purpose (test_never_lost.py:")
    assert "first mismatch" in text.stdout
    found = json.loads(fp4("verify", path, "--json").stdout)
    assert found["files"][0]["tensors"] == healthy["files"][0]["tensors"]
    assert found["files"][0]["explained"] == healthy["files"][0]["explained"] != []
    assert healthy["files"][0]["internal_errors"] == []
    (error,) = found["files"][0]["internal_errors"]
    assert (error["part"], error["type"], error["message"]) == ("diagnosis", "ValueError", "broken on purpose")
    assert "in broken" in error["traceback"]
    assert "broken on purpose" in ET.parse(junit).find(".//failure").text
    written = page.read_text(encoding="utf-8")
    assert "What differs" in written
    assert "Internal errors" in written
    assert "in broken" in written


@pytest.mark.rule("CNF-10")
def test_broken_profiles_pictures_and_intermediates_cost_themselves_only(tmp_path, monkeypatch):
    path, page = write_wrong(tmp_path / "d.npz"), tmp_path / "r.html"
    monkeypatch.setattr("fp4ref.conformance.verdict.dumps._profiles", broken)
    monkeypatch.setattr(html, "pictures", broken)
    monkeypatch.setattr("fp4ref.conformance.reports.intermediates.explained", broken)
    found = fp4("verify", path, "--json", "--html", page, "--no-diagnosis")
    assert found.exit_code == 1
    record = json.loads(found.stdout)["files"][0]
    assert record["verdict"] == "wrong"
    parts = [error["part"] for error in record["internal_errors"]]
    assert parts == ["comparison with profiles", "list of intermediate values"]
    assert "picture of w failed: ValueError" in page.read_text(encoding="utf-8")
    monkeypatch.setattr(view, "expected", broken)
    (record,) = json.loads(fp4("verify", path, "--json", "--no-diagnosis").stdout)["files"]
    assert record["internal_errors"][-1]["part"] == "choice of tensors to show"


@pytest.mark.rule("CNF-10", "CNF-69")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "family", "module", "name"),
    [
        ("quantize", "positions", kernel_report, "diagnose_packed"),
        ("dequantize", "positions", kernel_report, "diagnose_operation"),
        ("gemm", "dense", product_runs, "diagnose"),
    ],
)
def test_a_broken_diagnosis_of_a_kernel_costs_the_diagnosis_only(
    operation, family, module, name, tmp_path, monkeypatch
):
    kernel, junit, page = tmp_path / "k.py", tmp_path / "r.xml", tmp_path / "r.html"
    kernel.write_text(KERNELS, encoding="utf-8")
    monkeypatch.setattr(module, name, broken)
    options = "--kernel", f"{kernel}:{operation}", "--spec", "nvfp4", "--family", family
    found = fp4("verify", *options, "--junit", junit, "--html", page, "--json")
    assert found.exit_code == 1, found.output
    record = json.loads(found.stdout)
    assert record["internal_errors"][0]["type"] == "ValueError"
    assert record["headline"].startswith("wrong: not explained, since the diagnosis failed (ValueError)")
    assert record["families"]
    assert "broken on purpose" in ET.parse(junit).find(".//failure").text
    assert "in broken" in page.read_text(encoding="utf-8")
    functions = {}
    exec(KERNELS, functions)
    with pytest.raises(AssertionError) as raised:
        testing.assert_conforms(functions[operation], "nvfp4", families=[family])
    assert "\ninternal error, the diagnosis failed: ValueError: broken on purpose" in str(raised.value)


@pytest.mark.rule("CNF-10", "CNF-11")
@pytest.mark.parametrize("form", few(["verdict", "report_lines", "to_json"], 1))
def test_a_diagnosis_that_cannot_be_told_costs_itself_only(form, tmp_path, monkeypatch):
    path, junit, page = write_wrong(tmp_path / "d.npz"), tmp_path / "r.xml", tmp_path / "r.html"
    if form == "to_json":
        monkeypatch.setattr(Diagnosis, "to_json", broken)
    for module in (telling, dump_report, view, verify_text):
        if hasattr(module, form):
            monkeypatch.setattr(module, form, broken)
    for more in ([], ["--json"]):
        result = fp4("verify", path, "--diagnosis-seconds", "1", "--junit", junit, "--html", page, *more)
        assert result.exit_code == 1, result.output
        assert "the diagnosis failed (ValueError); differs from nvfp4 in 1 code" in result.stdout
    assert len(json.loads(result.stdout)["files"][0]["internal_errors"]) == 1
    assert "broken on purpose" in ET.parse(junit).find(".//failure").text
    assert "broken on purpose" in page.read_text(encoding="utf-8")


def full(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.rule("CNF-12")
def test_a_report_that_cannot_be_written_costs_itself_only(tmp_path, monkeypatch):
    path = write_wrong(tmp_path / "d.npz")
    monkeypatch.setattr("fp4ref.conformance.reports.junit.write", full)
    for more in ([], ["--json"]):
        result = fp4("verify", path, "--no-diagnosis", "--junit", tmp_path / "r.xml", *more)
        assert result.exit_code == 2
        assert "differs from nvfp4 in 1 code" in result.stdout
        assert "No space left on device" in result.stderr


@pytest.mark.rule("CNF-12")
@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_verdict_on_products_outlives_a_report_that_cannot_be_written(more, tmp_path, monkeypatch):
    (tmp_path / "k.py").write_text(KERNELS, encoding="utf-8")
    monkeypatch.setattr("fp4ref.conformance.reports.junit.write", full)
    monkeypatch.setattr("fp4ref.cli.verify_statement.write_bytes", full)
    kernel = "--kernel", f"{tmp_path / 'k.py'}:gemm", "--spec", "nvfp4", "--family", "dense"
    files = "--junit", tmp_path / "r.xml", "--statement", tmp_path / "s.json"
    result = fp4("verify", *kernel, "--no-diagnosis", *files, *more)
    assert result.exit_code == 2
    assert "wrong" in result.stdout
    assert "No space left on device" in result.stderr


@pytest.mark.rule("CNF-10")
def test_a_broken_diagnosis_of_random_bits_costs_the_diagnosis_only(monkeypatch):
    spec = NVFP4.replace(name="drawn", element=STOCHASTIC_E2M1)
    x = stochastic.aimed_inputs("float32")[1]
    data = fp4ref.quantize(x, spec, random_bits=np.zeros(x.shape, np.uint8), backend="numpy").row
    monkeypatch.setattr(stochastic, "known_mistakes", broken)
    report = stochastic.judge_stochastic(spec, [stochastic.StochasticTrial(x, {"row": data})])
    assert not report.ok
    assert "the diagnosis failed (ValueError)" in report.headline
    assert report.to_json()["internal_errors"][0]["message"] == "broken on purpose"


@pytest.mark.rule("CNF-11")
def test_an_unexpected_exception_has_a_status_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("fp4ref.conformance.verdict.dumps._compared", broken)
    found = fp4("verify", write_wrong(tmp_path / "d.npz"))
    assert found.exit_code == 3
    assert not found.stdout
    (line,) = found.stderr.splitlines()
    assert line.startswith("fp4ref: internal error: ValueError: broken on purpose (test_never_lost.py:")
    assert "FP4REF_TRACEBACK=1" in line
    monkeypatch.setenv("FP4REF_TRACEBACK", "1")
    assert "in broken" in fp4("verify", tmp_path / "d.npz").stderr


@pytest.mark.rule("CNF-109")
def test_a_file_that_fails_does_not_end_the_others(tmp_path, monkeypatch):
    junit, real = tmp_path / "r.xml", verifying._compared
    write_wrong(tmp_path / "a.npz", name="right")
    write_wrong(tmp_path / "b.npz", name="defect")
    (tmp_path / "c.npz").write_bytes(b"")

    def failing(dump, *arguments, **options):
        return broken() if dump.name == "defect" else real(dump, *arguments, **options)

    monkeypatch.setattr(verifying, "_compared", failing)
    found = fp4("verify", tmp_path, "--no-diagnosis", "--json", "--junit", junit)
    assert found.exit_code == 3
    files = json.loads(found.stdout)["files"]
    assert [file.get("verdict") for file in files] == ["wrong", None, None]
    assert "ValueError: broken on purpose" in files[1]["error"]
    assert "in broken" in files[1]["internal_errors"][0]["traceback"]
    assert "archive is damaged" in files[2]["error"]
    suites = ET.parse(junit).getroot()
    assert [suite.get("failures") for suite in suites] == ["2", "1", "1"]
    text = fp4("verify", tmp_path, "--no-diagnosis")
    assert text.exit_code == 3
    assert "a.npz: wrong" in text.stdout
    assert len(text.stderr.splitlines()) == 2


@pytest.mark.example("CNF-12")
@pytest.mark.rule("CNF-12")
def test_closed_streams_do_not_change_the_status(tmp_path, monkeypatch):
    path = write_wrong(tmp_path / "d.npz")
    ((command, status),) = rows_of("CNF-12")
    assert (command, status) == (f"`fp4ref verify {path.name} >&-`", "as with a reader")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    for arguments, status in (([str(path), "--no-diagnosis"], 1), (["missing.npz"], 2)):
        with pytest.raises(SystemExit) as left:
            main(["verify", *arguments], prog_name="fp4ref")
        assert left.value.code == status


@pytest.mark.rule("CNF-10")
def test_a_diagnosis_can_be_left_out_or_limited(tmp_path, monkeypatch):
    path, budgets = write_wrong(tmp_path / "d.npz"), []
    monkeypatch.setattr(dump_diagnosis, "diagnose", lambda *given: budgets.append(given[-1]) or broken())
    for option in (["--no-diagnosis"], ["--diagnosis-seconds", "0"]):
        found = fp4("verify", path, *option)
        assert found.exit_code == 1
        assert "\ndiagnosis" not in found.stdout
        assert "first mismatch" in found.stdout
    assert not budgets
    fp4("verify", path, "--diagnosis-seconds", "1.5")
    fp4("verify", path)
    assert budgets == pytest.approx([1.5, dump_diagnosis.SECONDS], abs=0.1)  # what is left of it


@pytest.mark.rule("NUM-3", "FIL-3")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bits_of_an_input_are_read_as_the_type_that_is_named(dtype, tmp_path):
    x = normal(16, 32, dtype=INPUT_DTYPES[dtype])
    row = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    whole, apart, bits = tmp_path / "d.npz", tmp_path / "q.npz", tmp_path / "x.npz"
    np.savez(whole, x=x.view(np.uint16), data=row.data, scales=row.scales, amax=row.amax)
    np.savez(apart, data=row.data, scales=row.scales, amax=row.amax)
    np.savez(bits, x=x.view(np.uint16))
    for files in ([whole], [apart, "--input", bits]):
        found = fp4("verify", *files, "--spec", "nvfp4", "--dtype", dtype)
        assert found.exit_code == 0, found.output
        assert dtype in found.stdout
    other = "float16" if dtype == "bfloat16" else "bfloat16"
    assert fp4("verify", whole, "--spec", "nvfp4", "--dtype", other, "--no-diagnosis").exit_code == 1
    refused = fp4("verify", whole, "--spec", "nvfp4")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    assert "U16 bits and their dtype" in refused.stderr


def test_a_whole_model_that_conforms_is_one_line(tmp_path):
    x = normal(16, 32)
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    write_dump(tmp_path / "m.npz", [Dump(f"layer.{number}", x, q) for number in range(13)])
    found = fp4("verify", tmp_path / "m.npz")
    (line,) = found.stdout.splitlines()
    assert "m.npz: conforms to nvfp4; rests on 13 tensors, " in line


ENCODINGS = ("ascii", "cp1252", pytest.param("utf-8", marks=pytest.mark.heavy))  # of all other tests
COMMANDS = (
    "rules BLK-3",
    "report x.npz --specs nvfp4,mxfp4",
    "verify d.npz --no-diagnosis",
    "explain x.npz w\u2713 0 0",
    "diagram tiled_128x4",
    "diagram blocks",
    "vectors list encode",
    "where 3 5 --shape 64x64",
    "profiles",
    "doctor",
    "gen --families",
    "verify missing\u2713.npz",
    "--help",
)


@pytest.mark.example("CNF-111")
@pytest.mark.rule("CNF-111")
@pytest.mark.slow
@pytest.mark.usefixtures("rules_read_once")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_command_dies_of_an_encoding(encoding, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", **{"w\u2713": normal(16, 32)})
    write_wrong(tmp_path / "d.npz", name="w\u2713")
    for command in COMMANDS:
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        with pytest.raises(SystemExit) as left:
            main(command.split(), prog_name="fp4ref")
        for stream in streams:
            stream.flush()
        shown = "utf-8" if encoding == "ascii" else encoding  # click writes UTF-8 where only ASCII is promised
        texts = [stream.buffer.getvalue().decode(shown) for stream in streams]
        expected = DIFFERS if "d.npz" in command else REFUSED if "missing" in command else 0
        assert (left.value.code or 0) == expected, (command, texts)
        assert any(texts), command
        if command.startswith("report"):
            assert ("\u2588" if shown == "utf-8" else " 8") in texts[0]


# Dumps of ordinary sizes with ordinary damage: whatever it is, every output is complete


def bumped(part, count, rng):
    """Change some bytes of an array."""
    flat = part.reshape(-1)
    flat[rng.choice(flat.size, min(count, flat.size), replace=False)] ^= 1


def some_codes(x, q, rng):
    bumped(q.data, 5, rng)


def some_scales(x, q, rng):
    bumped(q.scales, 3, rng)


def all_codes(x, q, rng):
    q.data[...] ^= 0x11


def scales_plus_one(x, q, rng):
    q.scales[...] += 1


def zero_scales(x, q, rng):
    q.scales[...] = 0


def zeros(x, q, rng):
    q.data[...], q.scales[...] = 0, 0


def noise(x, q, rng):
    q.data[...] = rng.integers(0, 256, q.data.shape)


def noisy_scales(x, q, rng):
    q.scales[...] = rng.integers(0, 256, q.scales.shape)


def other_rows(x, q, rng):
    q.data[...], q.scales[...] = q.data[::-1].copy(), q.scales[::-1].copy()


def half_written(x, q, rng):
    q.data[len(q.data) // 2 :] = 0


def narrowed_input(x, q, rng):
    x[...] = x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def wrong_amax(x, q, rng):
    if q.amax is not None:
        q.amax[...] *= 2
    bumped(q.scales, 1, rng)


DAMAGES = (
    some_codes,
    some_scales,
    all_codes,
    scales_plus_one,
    zero_scales,
    zeros,
    noise,
    noisy_scales,
    other_rows,
    half_written,
    narrowed_input,
    wrong_amax,
)
SIZES = ((64, 128), (128, 64), (128, 256), (256, 512), (96, 1024), (1024, 1024), (1, 16384), (520, 48))
NAMED = tuple(sorted(PROFILES))


@dataclass(frozen=True)
class Wrong:
    """A dump to write, and what is done to its bytes or its input."""

    spec: str
    direction: str
    scale_layout: str
    dtype: str
    size: tuple[int, int]
    damage: Callable[..., None]
    seed: int

    def write(self, path):
        """Write it; return whether anything was changed that a rule decides."""
        spec, rng = PROFILES[self.spec], np.random.default_rng(self.seed)
        dtype = "bfloat16" if spec.hadamard and self.direction != "row" else self.dtype
        rows, columns = (-(-side // 16) * 16 for side in self.size)
        x = rng.standard_normal((rows, columns), np.float32).astype(INPUT_DTYPES[dtype])
        wanted = DIRECTIONS if self.direction == "both" else (self.direction,)
        shapes = {"row": (rows, columns), "column": (columns, rows)}
        drawn = {name: rng.integers(0, 256, shapes[name], np.uint8) for name in wanted if spec.stochastic}
        bits = Directions(**drawn)
        given = {"random_bits": bits} if spec.stochastic else {}
        q = fp4ref.quantize(x, spec, self.direction, self.scale_layout, backend="numpy", **given)
        whole, before = q.row if q.row is not None else q.column, x.copy()
        arrays = DirectionData(*(None if part is None else np.array(part) for part in whole))
        copy = DirectionData(*(None if part is None else np.array(part) for part in whole))
        self.damage(x, copy, rng)
        side = "row" if q.row is not None else "column"
        write_dump(path, [Dump("w", x, replace(q, **{side: copy}), random_bits=bits)])
        lines, along = (rows, columns) if side == "row" else (columns, rows)
        decided = layout(self.scale_layout).compared(lines, -(-along // spec.block.columns))
        for part in (arrays, copy):
            part.scales[~decided] = 0
        same = all(a is None or a.tobytes() == b.tobytes() for a, b in zip(arrays, copy, strict=True))
        return not same or before.tobytes() != x.tobytes()


PADDING_LAYOUTS = sorted(
    name
    for name, form in fp4ref.LAYOUTS.items()
    if not form.unfit_for_scales() and not any(axis.refused for axis in form.axes)
)


def wrongs(sizes):
    return st.builds(
        Wrong,
        st.sampled_from(NAMED),
        st.sampled_from(["row", "column", "both"]),
        st.sampled_from(PADDING_LAYOUTS),
        st.sampled_from(sorted(INPUT_DTYPES)),
        st.sampled_from(sizes),
        st.sampled_from(DAMAGES),
        st.integers(0, 1000),
    )


QUIETLY = {
    "deadline": None,
    "derandomize": True,
    "phases": (Phase.explicit, Phase.generate),  # every attempt to shrink would take a second
    "suppress_health_check": [HealthCheck.function_scoped_fixture],
}


def require_complete(folder, dump, seconds, failing):
    """Verify a dump; every output has to be complete, and no part of the report may have failed."""
    path, junit, page = folder / "d.npz", folder / "r.xml", folder / "r.html"
    for old in (junit, page):
        old.unlink(missing_ok=True)
    changed = dump.write(path)
    options = "--limit", "5", "--diagnosis-seconds", str(seconds), "--junit", junit, "--html", page
    found = fp4("verify", path, "--json", *options)
    assert found.exit_code in ({0, 1} if not changed or dump.damage is narrowed_input else {1}), (dump, found.output)
    (record,) = json.loads(found.stdout)["files"]
    failed = [error["traceback"] for error in record["internal_errors"]]
    assert not failed or failing, (dump, failed)
    failures = int(ET.parse(junit).getroot().get("failures"))
    assert failures >= 2 if found.exit_code else failures == 0, dump
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>"), dump
    if found.exit_code:
        assert record["headline"], dump
        assert any(tensor["counts"] for tensor in record["tensors"]), dump


@pytest.mark.rule("CNF-10")
@settings(max_examples=6, **QUIETLY)
@given(dump=wrongs(SIZES[:3]))
def test_every_output_is_complete_though_the_diagnosis_raises(dump, tmp_path):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dump_diagnosis, "diagnose", broken)
        require_complete(tmp_path, dump, 5, failing=True)


@pytest.mark.rule("CNF-10", "CNF-2")
@pytest.mark.slow
@settings(max_examples=2, **QUIETLY)  # a heavy test draws more
@given(dump=wrongs(SIZES[:3]))
def test_every_output_is_complete_whatever_is_wrong(dump, tmp_path):
    require_complete(tmp_path, dump, 1, failing=False)


@pytest.mark.rule("CNF-10", "CNF-2")
@pytest.mark.heavy
def test_a_code_of_6_bits_that_was_never_stored_ends_nothing(tmp_path):
    dump = Wrong("quark.mxfp6_e2m3_even", "both", "tiled_8x4", "float16", (128, 64), some_codes, 6)
    require_complete(tmp_path, dump, 4, failing=False)


@pytest.mark.rule("CNF-10", "CNF-2")
@pytest.mark.heavy
@pytest.mark.parametrize(  # CI does every sixth damage
    "damage", [pytest.param(damage, marks=[pytest.mark.release] * bool(i % 6)) for i, damage in enumerate(DAMAGES)]
)
@settings(max_examples=3, **QUIETLY)
@given(dump=wrongs(SIZES))
def test_every_output_is_complete_whatever_is_wrong_at_all_sizes(damage, dump, tmp_path):
    require_complete(tmp_path, replace(dump, damage=damage), 4, failing=False)


@pytest.mark.rule("CNF-2")
@pytest.mark.slow
def test_large_cases_alone_are_explained_by_assert_conforms(monkeypatch):
    monkeypatch.setattr(kernel_report, "SECONDS", 1)

    def kernel(x):
        q = fp4ref.quantize(x, "nvfp4", backend="numpy").row
        return q.data, np.zeros_like(q.scales), q.amax

    with pytest.raises(AssertionError, match="wrong: ") as raised:
        testing.assert_conforms(kernel, "nvfp4", families=["large"])
    assert "internal error" not in str(raised.value)


@pytest.mark.rule("CNF-2")
def test_results_that_differ_are_evidence_whatever_was_right_before(monkeypatch) -> None:
    """A scale byte that no quantizer writes is decoded wrongly, which the last cases alone show."""
    monkeypatch.setattr("fp4ref.conformance.verdict.tally.EVIDENCE", 1)

    def kernel(data, scales, columns):
        values = np.ldexp(1.0, np.minimum(scales, 254).astype(int) - 127).astype(np.float32)
        values = np.where(scales == 0xFF, np.float32(np.inf), values)
        codes = np.stack([data & 15, data >> 4], axis=2).reshape(len(data), -1)[:, :columns]
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        with np.errstate(all="ignore"):
            elements = np.where(codes & 8, -table[codes & 7], table[codes & 7])
            return elements * np.repeat(values, 32, axis=1)[:, :columns]

    how = Declaration(operation="dequantize", inputs=("data", "scales", "columns"), outputs=("values",))
    spec = fp4ref.profiles["mxfp4"]
    chosen = families.cases(spec, families=["normal", "every-byte"], encoded=True)
    subject = Subject("kernel", how, kernel)
    report = KernelReport("kernel", spec, how)
    runs = runner.run(subject, chosen)
    collected(report, (judge(run.case, run.outcome, how, run.expected) for run in runs))
    assert report.headline.startswith("wrong: scale byte 0xFF is decoded as infinity; ")


BREAKS = """
import itertools
import ml_dtypes
import numpy as np
import fp4ref
from fp4ref.conformance.subjects import calling

checked, calls = calling.disagreement, itertools.count()

def broken(*args):
    if next(calls) in {BROKEN}:
        raise ValueError("broken on purpose")
    return checked(*args)

calling.disagreement = broken
"""
RIGHT = """
@fp4ref.kernel
def kernel(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    return q.data, q.scales, q.amax
"""
SWAPPED = RIGHT.replace("q.data,", "q.data >> 4 | q.data << 4,")
GEMM = """
@fp4ref.kernel(operation="gemm", inputs=("a_data", "b_data"), outputs=("values",), to="float32")
def kernel(a_data, b_data):
    return np.ones((len(a_data), len(b_data)), np.float32)
"""
OWN_BITS = """
@fp4ref.kernel(inputs=("x",))
def kernel(x):
    bits = np.random.default_rng().integers(0, 256, x.shape, np.uint8)
    q = fp4ref.quantize(x, "nvfp4-sr", random_bits=bits, backend="numpy").row
    return q.data, q.scales, q.amax
"""


def whole_run(tmp_path, text, spec, *options):
    """Verify a kernel by the command, with every output; return both ways to print, and the other files."""
    (tmp_path / "mine.py").write_text(text)
    outputs = {kind: tmp_path / f"out.{kind}" for kind in ("junit", "html", "statement")}
    paths = [word for kind, path in outputs.items() for word in (f"--{kind}", str(path))]
    command = ["verify", "--kernel", f"{tmp_path / 'mine.py'}:kernel", "--spec", spec, "--force", *paths, *options]
    printed, found = (CliRunner().invoke(main, [*command, *more]) for more in ([], ["--json"]))
    assert printed.exit_code == found.exit_code
    return printed, json.loads(found.stdout), {kind: path.read_text() for kind, path in outputs.items()}


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-11", "CNF-22", "CNF-68", "CNF-69")
@pytest.mark.parametrize(
    ("text", "spec", "options", "kind", "status"),
    [
        (RIGHT, "nvfp4", ["--family", "normal"], "conforms", 0),
        (SWAPPED, "nvfp4", ["--family", "normal"], "wrong", 1),
        pytest.param(GEMM, "nvfp4", ["--family", "dense"], "wrong", 1, marks=pytest.mark.heavy),
        (OWN_BITS, "nvfp4-sr", [], "conforms", 0),
    ],
)
def test_an_error_in_one_check_leaves_every_other_verdict(tmp_path, text, spec, options, kind, status) -> None:
    """The check is named as an internal error; the other cases, the reports and the statement are whole."""
    (tmp_path / "unbroken.py").write_text(BREAKS.replace("BROKEN", "") + text)
    command = ["verify", "--kernel", f"{tmp_path / 'unbroken.py'}:kernel", "--spec", spec, "--json", *options]
    found = CliRunner().invoke(main, command)
    before = json.loads(found.stdout)
    assert (found.exit_code, before["verdict"]) == (status, kind)
    assert before["internal_errors"] == []
    printed, after, files = whole_run(tmp_path, BREAKS.replace("BROKEN", "0") + text, spec, *options)
    assert printed.exit_code == 3
    assert after["verdict"] == (kind if status else "not judged in whole")
    counts = [report["coverage"]["cases" if "cases" in report["coverage"] else "calls"] for report in (before, after)]
    assert counts[1] == counts[0] - 1
    (error,) = after["internal_errors"]
    assert (error["type"], error["message"]) == ("ValueError", "broken on purpose")
    assert "in broken" in error["traceback"]
    assert f"internal error, the {error['part']} failed: ValueError: broken on purpose" in printed.stdout
    assert f"; an internal error left {error['part'].removeprefix('check of ')} unjudged" in after["headline"]
    assert "in broken" in files["html"]
    assert "broken on purpose" in ET.fromstring(files["junit"]).find(".//failure").text
    assert "broken on purpose" in json.dumps(json.loads(files["statement"])["found"]["coverage"])


@pytest.mark.rule("CNF-11", "CNF-68", "CNF-69")
@pytest.mark.parametrize("place", ["judge.cases.compare_direction", "judge.cases.at_fault", "run.runner.golden"])
def test_errors_in_all_checks_lose_no_output(tmp_path, monkeypatch, place) -> None:
    monkeypatch.setattr(f"fp4ref.conformance.{place}", broken)
    printed, found, files = whole_run(tmp_path, BREAKS.replace("BROKEN", "") + SWAPPED, "nvfp4", "--family", "normal")
    assert printed.exit_code == 3
    assert not found["ok"]
    assert found["internal_errors"][0]["message"] == "broken on purpose"
    assert "in broken" in files["html"]
    assert json.loads(files["statement"])["found"]["conforms"] is False


@pytest.mark.rule("CNF-68")
@pytest.mark.parametrize("place", ["product_runs.judge", "stochastic_kernel.judge_stochastic"])
def test_errors_in_all_checks_of_other_kernels_lose_no_output(tmp_path, monkeypatch, place) -> None:
    monkeypatch.setattr(f"fp4ref.conformance.verdict.{place}", broken)
    text, spec = (GEMM, "nvfp4") if "product" in place else (OWN_BITS, "nvfp4-sr")
    printed, found, _ = whole_run(tmp_path, BREAKS.replace("BROKEN", "") + text, spec)
    assert printed.exit_code == 3
    assert found["verdict"] == "not judged in whole"
    assert [error["type"] for error in found["internal_errors"]] == ["ValueError"]
