"""A verdict is never lost: whatever is wrong with a dump or a kernel, every output is complete."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref import testing
from fp4ref.cli import main
from fp4ref.conformance import (
    dump_diagnosis,
    kernel_report,
    stochastic,
)
from fp4ref.conformance.dumps import Dump, write_dump
from fp4ref.conformance.evidence import SMALL, Item
from fp4ref.conformance.hypotheses import Search
from fp4ref.conformance.products import report as product_report
from fp4ref.conformance.reports import html, view
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.layout import layout
from fp4ref.specs import NVFP4


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
    assert len([*search._likeliest(start, singles)]) == 3


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def broken(*_, **__):
    raise ValueError("broken on\npurpose")


def write_wrong(path, rows=32, columns=64):
    """Write a dump of which one code differs."""
    x = normal(rows, columns)
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    data = q.row.data.copy()
    data[0, 0] ^= 1
    write_dump(path, [Dump("w", x, replace(q, row=q.row._replace(data=data)))])
    return path


KERNELS = """
import fp4ref
import numpy as np

def quantize(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    return q.data ^ 1, q.scales, q.amax

@fp4ref.kernel(operation="dequantize", inputs=("data", "scales", "amax"), outputs=("values",), multiple=(1, 16))
def dequantize(data, scales, amax):
    return np.zeros((len(data), 2 * data.shape[1]), np.float32)

@fp4ref.kernel(operation="gemm", inputs=("a_data", "rows", "columns"), outputs=("values",))
def gemm(a_data, rows, columns):
    return np.zeros((rows, columns), np.float32)
"""


@pytest.mark.rule("CNF-10", "CNF-11")
def test_a_broken_diagnosis_of_a_dump_costs_the_diagnosis_only(tmp_path, monkeypatch):
    path, junit, page = write_wrong(tmp_path / "d.npz"), tmp_path / "r.xml", tmp_path / "r.html"
    healthy = json.loads(run("verify", path, "--json", "--no-diagnosis").stdout)
    monkeypatch.setattr(dump_diagnosis, "diagnose", broken)
    text = run("verify", path, "--junit", junit, "--html", page)
    assert text.exit_code == 1
    headline, *lines = text.stdout.splitlines()
    assert headline.endswith(
        "wrong: not explained, since the diagnosis failed (ValueError); differs from nvfp4 in 1 code"
    )
    (line,) = [line for line in lines if line.startswith("internal error")]
    assert line.startswith("internal error, the diagnosis failed: ValueError: broken on purpose (test_never_lost.py:")
    assert "first mismatch" in text.stdout
    found = json.loads(run("verify", path, "--json").stdout)
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
    monkeypatch.setattr("fp4ref.conformance.verify._profiles", broken)
    monkeypatch.setattr(html, "pictures", broken)
    monkeypatch.setattr("fp4ref.conformance.reports.intermediates.explained", broken)
    found = run("verify", path, "--json", "--html", page, "--no-diagnosis")
    assert found.exit_code == 1
    record = json.loads(found.stdout)["files"][0]
    assert record["verdict"] == "wrong"
    parts = [error["part"] for error in record["internal_errors"]]
    assert parts == ["comparison with profiles", "list of intermediate values"]
    assert "picture of w failed: ValueError" in page.read_text(encoding="utf-8")
    monkeypatch.setattr(view, "expected", broken)
    (record,) = json.loads(run("verify", path, "--json", "--no-diagnosis").stdout)["files"]
    assert record["internal_errors"][-1]["part"] == "choice of tensors to show"


@pytest.mark.rule("CNF-10")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "family", "module", "name"),
    [
        ("quantize", "positions", kernel_report, "diagnose"),
        ("dequantize", "positions", kernel_report, "diagnose_operation"),
        ("gemm", "dense", product_report, "diagnose"),
    ],
)
def test_a_broken_diagnosis_of_a_kernel_costs_the_diagnosis_only(
    operation, family, module, name, tmp_path, monkeypatch
):
    kernel, junit, page = tmp_path / "k.py", tmp_path / "r.xml", tmp_path / "r.html"
    kernel.write_text(KERNELS, encoding="utf-8")
    monkeypatch.setattr(module, name, broken)
    given = "--kernel", f"{kernel}:{operation}", "--spec", "nvfp4", "--family", family
    found = run("verify", *given, "--junit", junit, "--html", page, "--json")
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


@pytest.mark.rule("CNF-10")
def test_a_broken_diagnosis_of_random_bits_costs_the_diagnosis_only(monkeypatch):
    spec = NVFP4.replace(name="drawn", element=STOCHASTIC_E2M1)
    x = stochastic.aimed_inputs("float32")[1]
    data = fp4ref.quantize(x, spec, random_bits=np.zeros(x.shape, np.uint8), backend="numpy").row
    monkeypatch.setattr(stochastic, "_mistakes", broken)
    report = stochastic.judge_stochastic(spec, [stochastic.Trial(x, {"row": data})])
    assert not report.ok
    assert "the diagnosis failed (ValueError)" in report.headline
    assert report.to_json()["internal_errors"][0]["message"] == "broken on purpose"


@pytest.mark.rule("CNF-11")
def test_an_unexpected_exception_has_a_status_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("fp4ref.conformance.verify._compared", broken)
    found = run("verify", write_wrong(tmp_path / "d.npz"))
    assert found.exit_code == 3
    assert not found.stdout
    (line,) = found.stderr.splitlines()
    assert line.startswith("fp4ref: internal error: ValueError: broken on purpose (test_never_lost.py:")
    assert "FP4REF_TRACEBACK=1" in line
    monkeypatch.setenv("FP4REF_TRACEBACK", "1")
    assert "in broken" in run("verify", tmp_path / "d.npz").stderr


@pytest.mark.rule("CNF-10")
def test_a_diagnosis_can_be_left_out_or_limited(tmp_path, monkeypatch):
    path, budgets = write_wrong(tmp_path / "d.npz"), []
    monkeypatch.setattr(dump_diagnosis, "diagnose", lambda *given: budgets.append(given[-1]) or broken())
    for option in (["--no-diagnosis"], ["--diagnosis-seconds", "0"]):
        found = run("verify", path, *option)
        assert found.exit_code == 1
        assert "\ndiagnosis" not in found.stdout
        assert "first mismatch" in found.stdout
    assert not budgets
    run("verify", path, "--diagnosis-seconds", "1.5")
    run("verify", path)
    assert budgets == [1.5, dump_diagnosis.SECONDS]
