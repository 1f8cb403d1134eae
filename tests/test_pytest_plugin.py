from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

from commands import GOOD
from fp4ref import conformance

pytest_plugins = "pytester"
pytestmark = pytest.mark.slow
KERNELS = """

def swapped(x):
    data, scales, amax = good(x)
    return data << 4 | data >> 4, scales, amax

def no_inf(x):
    import numpy as np
    if np.isinf(x.astype(np.float32)).any():
        raise ValueError("no infinities")
    return good(x)
"""
SUITE = """
from kernels import good, swapped, no_inf

def test_good(assert_conforms):
    assert assert_conforms(good, "nvfp4").ok

def test_swapped(assert_conforms):
    assert_conforms(swapped, "nvfp4")
"""
INF = """
from kernels import no_inf

def test_inf(assert_conforms):
    assert_conforms(no_inf, "nvfp4")
"""


@pytest.fixture(scope="module")
def imported():
    """Import what a run imports: pytester forgets modules that a run in this process imports first."""
    importlib.import_module("fp4ref.testing")
    importlib.import_module("fp4ref.cli.verify_text")
    for module in pkgutil.walk_packages(conformance.__path__, "fp4ref.conformance."):
        importlib.import_module(module.name)


@pytest.fixture
def suite(pytester, imported, monkeypatch):
    """Runs pytest in a folder of its own, on a file of tests and beside KERNELS; if asked, in a fresh process."""
    monkeypatch.delitem(sys.modules, "kernels", raising=False)  # another test's

    def run(text: str, *options: str, fresh: bool = False) -> pytest.RunResult:
        pytester.makepyfile(kernels=GOOD + KERNELS, test_kernels=text)
        pytester.makeini("[pytest]\naddopts = --strict-markers\nfilterwarnings = error")
        run = pytester.runpytest_subprocess if fresh else pytester.runpytest_inprocess
        return run("-p", "no:cacheprovider", "-p", "no:xdist", *options)

    return run


@pytest.mark.rule("CNF-1", "CNF-2")
def test_an_assertion_says_what_is_wrong(suite):
    result = suite(SUITE, "--fp4ref-family", "normal", "--fp4ref-family", "element-ties")
    result.assert_outcomes(passed=1, failed=1)
    said = result.stdout.str()
    assert "swapped: wrong: " in said
    assert "nibble" in said
    assert "element-ties" in said


@pytest.mark.rule("CNF-7")
def test_failures_that_are_known_are_listed_in_a_file(suite, pytester):
    families = ("--fp4ref-family", "inf", "--fp4ref-family", "normal")
    suite(INF, *families).assert_outcomes(failed=1)
    pytester.path.joinpath("known.txt").write_text("# why\nno_inf nvfp4 inf/* raises, issue 12\n")
    suite(INF, *families, "--fp4ref-xfail", "known.txt").assert_outcomes(passed=1)
    pytester.path.joinpath("known.txt").write_text("* nvfp4 inf/one/f32/row raises\n")
    result = suite(INF, *families, "--fp4ref-xfail", "known.txt")
    result.assert_outcomes(failed=1)
    assert "inf/one/f32/row" not in result.stdout.str()
    assert "inf/some/f32/row" in result.stdout.str()


@pytest.mark.rule("CNF-7")
def test_an_expected_failure_that_passes_is_a_failure(suite, pytester):
    pytester.path.joinpath("known.txt").write_text("no_inf nvfp4 inf/* why\nno_inf nvfp4 normal/1/f32/row no reason\n")
    result = suite(INF, "--fp4ref-family", "inf", "--fp4ref-family", "normal", "--fp4ref-xfail", "known.txt")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*known.txt:2: normal/1/f32/row passes, and was expected to fail: no reason*"])


@pytest.mark.parametrize(
    "line, words",
    [
        ("no_inf nvfp4 inf/one/f32/row", "3 words"),
        ("no_inf nvfp4 unknown/one why", "unknown case 'unknown/one'"),
        ("no_inf nvfp4 inf why", "unknown case 'inf'"),
        ("no_inf nvfp5 inf/* why", "nvfp5"),
        ("a nvfp4 inf/* why\na nvfp4 inf/* why", "again"),
    ],
)
def test_a_wrong_line_of_the_file_is_an_error_of_usage(suite, pytester, line, words):
    pytester.path.joinpath("known.txt").write_text(line)
    result = suite(INF, "--fp4ref-xfail", "known.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str()
    missing = suite(INF, "--fp4ref-xfail", "nowhere.txt")
    assert missing.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.rule("CNF-7")
def test_a_case_that_the_specification_does_not_have_is_an_error(suite, pytester):
    pytester.path.joinpath("known.txt").write_text("no_inf nvfp4 inf/other/f32/row why\n")
    result = suite(INF, "--fp4ref-family", "inf", "--fp4ref-xfail", "known.txt")
    result.assert_outcomes(failed=1)
    assert "known.txt:1: unknown case 'inf/other/f32/row'" in result.stdout.str()


def test_a_test_per_case(suite):
    text = """
    import pytest, fp4ref

    @pytest.mark.fp4ref_cases("nvfp4", families=["zero-blocks"], dtypes=["float32"])
    def test_case(fp4ref_case):
        assert fp4ref.quantize(fp4ref_case.x, fp4ref_case.spec).row.data.dtype == "uint8"
    """
    result = suite(text, "-v")
    assert result.ret == 0
    assert "zero-blocks/" in result.stdout.str()
    assert suite("def test_case(fp4ref_case): pass").ret != 0
    unknown = text.replace("zero-blocks", "unknown")
    assert suite(unknown).ret != 0


def test_targets_run_in_a_process_of_their_own(suite):
    text = """
    def test_target(assert_conforms):
        assert_conforms("kernels.py:good", "nvfp4", families=["normal"])
    """
    suite(text).assert_outcomes(passed=1)


def test_the_plugin_costs_nothing_until_it_is_used(suite):
    text = """
    import sys

    def test_nothing():
        assert not {"fp4ref", "numpy", "torch", "ml_dtypes", "rich", "click", "hypothesis"} & set(sys.modules)
    """
    suite(text, "-p", "no:hypothesispytest", fresh=True).assert_outcomes(passed=1)


def test_it_works_without_torch(suite, pytester):
    pytester.makepyfile(torch="raise ImportError('no torch here')")
    options = ("--fp4ref-family", "normal", "-k", "good")
    suite(SUITE, *options, fresh=True).assert_outcomes(passed=1, deselected=1)


def test_the_plugin_imports_pytest_only():
    code = "import sys; before = set(sys.modules); import fp4ref_pytest; print(*set(sys.modules) - before)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {name.partition(".")[0] for name in said} & {"fp4ref", "numpy", "torch", "hypothesis", "ml_dtypes"}
