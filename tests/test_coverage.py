from __future__ import annotations

import json

import numpy as np
import pytest

import fp4ref
from commands import GOOD, good
from covering import few
from fp4ref.cli import main
from fp4ref.conformance.families import FAMILIES, Reach
from fp4ref.conformance.families.absence import absence
from fp4ref.conformance.judge.coverage import BROKE, Extent, required
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.conformance.verdict.dumps import DumpRequest, verify
from fp4ref.conformance.verdict.statement import NamedSubject, of_product
from fp4ref.errors import DomainError
from fp4ref.testing import ExpectedFailure, ExpectedFailures, assert_conforms, cases

KERNELS = """

@fp4ref.kernel(dtypes=("bfloat16",), outputs=("data", "scales"))
def silent(x):
    return good(x)[:2]

def plus_zero(x):
    return good(x + 0)

@fp4ref.kernel(operation="gemm", inputs=("a_data", "a_scales", "b_data", "b_scales"), outputs=("values",))
def gemm(*operands):
    raise ValueError("not here")
"""


def told(x, amax):
    q = fp4ref.quantize(x, "nvfp4", amax=amax, backend="numpy")
    return q.row.data, q.row.scales, q.row.amax


@pytest.fixture
def kernels(tmp_path):
    path = tmp_path / "coverage_kernels.py"
    path.write_text(GOOD + KERNELS)
    return path


def run(arguments):
    """The exit status of the command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments, standalone_mode=False)
    return ended.value.code


@pytest.mark.rule("CNF-22")
def test_a_verdict_names_its_basis(kernels, capsys):
    command = ["verify", "--kernel", f"{kernels}:silent", "--spec", "nvfp4"]
    asked = ["--family", "normal", "--family", "overflow", "--family", "axes"]
    assert run([*command, *asked]) == 0
    first, second, third, fourth, *_ = capsys.readouterr().out.splitlines()
    count = len([*cases("nvfp4", families=["normal", "axes"], dtypes=["bfloat16"])])
    assert first.endswith(f"silent: conforms to nvfp4: no byte differs in {count} cases")
    assert second.startswith(f"rests on {count} cases of 2 of {len(FAMILIES)} families, bfloat16, up to ")
    assert third == (
        "not judged: amax (not returned), strides (x is always contiguous), writes past the results (no out= buffers), "
        "state between calls (no --repeat)"
    )
    others = len(FAMILIES) - 3
    assert fourth == f"families not tried: overflow (takes no amax); {others} that were not asked for"


@pytest.mark.rule("CNF-22")
def test_the_basis_is_in_every_kind_of_report(kernels, capsys, tmp_path):
    pages = ["--json", "--junit", str(tmp_path / "r.xml"), "--html", str(tmp_path / "r.html")]
    assert run(["verify", "--kernel", f"{kernels}:good", "--spec", "nvfp4", "--family", "axes", *pages]) == 0
    found = json.loads(capsys.readouterr().out)["coverage"]
    run_on = [*cases("nvfp4", families=["axes"])]
    assert found["cases"] == len(run_on)
    assert found["elements"] == sum(case.x.size for case in run_on)
    assert found["largest"]["elements"] == max(case.x.size for case in run_on)
    assert found["dtypes"] == ["float32", "bfloat16", "float16"]
    assert found["families"]["tried"] == {"axes": len(run_on)}
    assert set(found["families"]["not_tried"]) == set(FAMILIES) - {"axes"}
    assert set(found["not_judged"]) == {"strides", "writes past the results", "state between calls"}
    for page in ("r.xml", "r.html"):
        assert f"rests on {len(run_on)} cases of 1 of {len(FAMILIES)} families" in (tmp_path / page).read_text()


@pytest.mark.rule("CNF-22")
def test_a_dequantizer_is_judged_on_scales_of_nan():
    """No quantizer of finite values writes one, so that the bytes are given."""

    def dequantizer(nan):
        @np.errstate(all="ignore")
        def kernel(data, scales, rows, columns):
            s = np.where(scales == 0xFF, nan, np.ldexp(np.float32(1), scales.astype(int) - 127)).astype(np.float32)
            codes = np.stack([data & 15, data >> 4], axis=2).reshape(rows, -1)[:, :columns]
            values = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])[codes]
            return values * np.repeat(s, 32, axis=1)[:, :columns]

        return kernel

    how = {"operation": "dequantize", "inputs": ("data", "scales", "rows", "columns"), "outputs": ("values",)}
    families = ["normal", "nan", "every-byte"]
    assert assert_conforms(dequantizer(np.nan), "mxfp4", families=families, empty=False, **how).ok
    with pytest.raises(AssertionError, match="a NaN scale is taken as 1"):
        assert_conforms(dequantizer(1), "mxfp4", families=families, empty=False, **how)


@pytest.mark.rule("CNF-77")
@pytest.mark.parametrize(
    "function, changes, counted",
    [
        (good, {}, True),
        (lambda x: good(x)[:2], {}, False),
        (lambda x: good(x)[:2], {"outputs": ("data", "scales")}, False),
        (told, {"inputs": ("x", "amax")}, False),
    ],
)
def test_a_rule_about_bytes_that_were_not_returned_is_not_counted(function, changes, counted):
    report = assert_conforms(function, "nvfp4", families=["normal"], **changes)
    assert ("GLB-1" in report.rules) == counted
    assert ("amax" not in report.coverage.not_judged) == counted
    assert "BLK-3" in report.rules


@pytest.mark.rule("CNF-22")
def test_a_case_in_which_the_kernel_breaks_down_is_not_tried():
    def raises(x):
        if np.isinf(np.asarray(x, np.float32)).any():
            raise ValueError("no infinities")
        return good(x)

    with pytest.raises(AssertionError, match=r"families not tried: inf \(the kernel broke down in all of its cases\);"):
        assert_conforms(raises, "nvfp4", families=["inf", "axes"])


@pytest.mark.rule("CNF-22")
def test_a_dump_rests_on_its_tensors(tmp_path):
    x = np.arange(96, dtype=np.float32).reshape(2, 48)
    path = tmp_path / "d.npz"
    q = fp4ref.quantize(x, "nvfp4")
    np.savez(path, x=x, data=q.row.data, scales=q.row.scales, amax=q.row.amax)
    report = verify(DumpRequest(path=path, spec=fp4ref.NVFP4))
    assert report.coverage.lines[0] == "rests on 1 tensor, float32, up to 2 rows, 48 columns, 96 elements"
    assert "amax" not in report.coverage.not_judged
    given = verify(DumpRequest(path=path, spec=fp4ref.NVFP4, amax="given"))
    assert given.coverage.not_judged["amax"] == "taken from the file"


@pytest.mark.rule("CNF-22")
def test_families_without_a_case_have_reasons():
    every = ("float32", "bfloat16", "float16")
    assert absence("every-pattern", fp4ref.NVFP4, Reach(level=1), "row", every) == "needs --level 2"
    assert absence("every-pattern", fp4ref.NVFP4, Reach(level=2), "row", ("float32",)) == "needs bfloat16 or float16"
    assert absence("nan", fp4ref.NVFP4, Reach(level=1), "row", every) == ""
    assert absence("random-bits", fp4ref.NVFP4, Reach(level=1), "row", every) is None
    assert absence("weights", fp4ref.NVFP4, Reach(level=2), "row", every) is None


@pytest.mark.rule("CNF-23", "CNF-2")
@pytest.mark.parametrize(
    "kernel, wanted, status, headline",
    few(
        [
            ("good", ["nan"], 0, "conforms to nvfp4: no byte differs in "),
            ("good", ["nan,overflow"], 2, "incomplete: the required family overflow was not tried (takes no amax); no"),
            ("good", ["nan", "--require", "overflow"], 2, "incomplete: the required family overflow was"),
            ("good", ["all"], 2, "incomplete: the required family amax-places was not tried (not asked for), and"),
            ("plus_zero", ["overflow"], 1, "wrong on -0 only"),
        ],
        2,
    ),
)
def test_a_required_family_that_was_not_tried_is_a_failure(kernels, capsys, kernel, wanted, status, headline):
    command = ["verify", "--kernel", f"{kernels}:{kernel}", "--spec", "nvfp4"]
    families = [item for name in ("axes", "nan", "minus-zero", "overflow") for item in ("--family", name)]
    assert run([*command, *families, "--require", *wanted]) == status
    assert f"{kernel}: {headline}" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.rule("CNF-23")
def test_an_assertion_fails_for_a_required_family():
    with pytest.raises(AssertionError, match="incomplete: the required family overflow was not tried"):
        assert_conforms(good, "nvfp4", families=["axes", "overflow"], require=["overflow"])
    with pytest.raises(DomainError, match="required family 'normall'"):
        assert_conforms(good, "nvfp4", families=["axes"], require=["normall"])
    assert required(["nan, inf", "all"], FAMILIES) == ("nan", "inf", "all")


@pytest.mark.rule("CNF-23")
def test_only_kernels_and_streams_have_families(kernels, tmp_path):
    import click

    with pytest.raises(click.UsageError, match="--require"):
        main(["verify", str(tmp_path / "d.npz"), "--require", "all"], standalone_mode=False)


def test_an_extent_keeps_the_largest_of_each():
    extent = Extent()
    for dtype, rows, columns in (("float32", 3, 100), ("bfloat16", 50, 2), ("float32", 20, 20)):
        extent.add(dtype, rows, columns)
    assert (extent.rows, extent.columns, extent.largest, extent.elements) == (50, 100, 400, 800)
    assert (extent.count, extent.dtypes) == (3, ["float32", "bfloat16"])


@pytest.mark.rule("CNF-22", "CNF-23")
def test_a_gemm_has_a_basis_too():
    from fp4ref.conformance.verdict.product_runs import check

    spec = fp4ref.profiles["mxfp4"]

    def zeros(a, a_scales, b, b_scales, rows, columns):
        return np.zeros((rows, columns), np.float32)

    inputs = ("a_data", "a_scales", "b_data", "b_scales", "rows", "columns")
    subject = Subject.of(zeros, operation="gemm", inputs=inputs, outputs=("values",), specials=("nan",))
    report = check(subject, spec, ("ragged", "bias"), required=("bias",))
    assert report.kind is Verdict.WRONG
    assert report.coverage.untried["bias"] == "takes no bias"
    assert report.coverage.lines[0].startswith("rests on 3 cases of 1 of ")
    assert ", depth 95, " in report.coverage.lines[0]
    assert report.to_json()["required_but_not_tried"] == {"bias": "takes no bias"}


@pytest.mark.rule("CNF-23")
def test_a_known_failure_stands_for_its_own_family_only():
    def wrong(x):
        data, scales, amax = good(x)
        return data ^ (x.dtype == np.float16), scales, amax

    lines = [case.id for case in cases("nvfp4", families=["normal"]) if case.x.dtype == np.float16]
    known = ExpectedFailures(tuple(ExpectedFailure("*", "nvfp4", case, "its type", "here:1") for case in lines))
    few = {"families": ["normal"], "expected_failures": known}
    assert assert_conforms(wrong, "nvfp4", require=["normal"], **few).tried == {"normal": 2 * len(lines)}
    with pytest.raises(AssertionError, match="axes"):
        assert_conforms(wrong, "nvfp4", require=["axes"], **few)


@pytest.mark.rule("CNF-17", "CNF-22")
def test_a_family_whose_name_another_begins_has_findings_of_its_own():
    """Nothing of special-tails is compared, and special stays whole."""
    from fp4ref.conformance.verdict.product_runs import check

    def raising(a, a_scales, b, b_scales, rows, columns):
        raise RuntimeError("broken on purpose")

    inputs = ("a_data", "a_scales", "b_data", "b_scales", "rows", "columns")
    subject = Subject.of(raising, operation="gemm", inputs=inputs, outputs=("values",))
    report = check(subject, fp4ref.profiles["mxfp4"], ("special-tails",))
    assert {case.family for case, _ in report.findings} == {"special-tails"}
    assert report.coverage.untried["special-tails"] == BROKE
    stated = of_product(report, NamedSubject("kernel", "raising"), {})
    assert list(stated["families"]) == ["special-tails"]
    both = check(subject, fp4ref.profiles["mxfp4"], ("special", "special-tails"))
    both.findings = [pair for pair in both.findings if pair[0].family == "special-tails"]
    assert both.coverage.untried.get("special") != BROKE
