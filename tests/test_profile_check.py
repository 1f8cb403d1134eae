from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref.cli import main
from fp4ref.standard.tables import tables
from standard_rules import rows_of, text_of

KERNELS = """
import dataclasses

import fp4ref

VENDOR = fp4ref.register(fp4ref.MXFP4.replace(name="checked.mxfp4"), source="an example")
AWAY = fp4ref.MXFP4.replace(element=dataclasses.replace(fp4ref.MXFP4.element, rounding="away"))


def of(spec):
    def quantize(x):
        row = fp4ref.quantize(x, spec, backend="numpy").row
        return row.data, row.scales

    return quantize


right = of(fp4ref.MXFP4)
away = of(AWAY)
ggml = of("ggml.mxfp4")


def third(x):
    data, scales = right(x)
    return data ^ (scales.sum() % 3 == 0), scales
"""
FAMILIES = ("--family", "element-ties")


@pytest.fixture
def check(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(textwrap.dedent(KERNELS))

    def run(profile: str, function: str, *options: str, families: tuple[str, ...] = FAMILIES):
        arguments = ["profiles", "check", profile, "--against", f"{path}:{function}", *families, *options]
        return CliRunner().invoke(main, arguments)

    yield run
    if "checked.mxfp4" in fp4ref.profiles:
        fp4ref.profiles.forget("checked.mxfp4")


@pytest.mark.rule("PRO-5", "PRO-10")
@pytest.mark.example("PRO-5", "PRO-10")
def test_equal_cases_by_family_and_type(check):
    result = check("checked.mxfp4", "right")  # its file registers the profile
    assert result.exit_code == int(dict(rows_of("PRO-10"))["none"]) == 0, result.output
    assert "equal: " in result.output
    rows = [line.split() for line in result.output.splitlines() if line.split()[:1] == ["element-ties"]]
    ((who, cases, printed),) = rows_of("PRO-5")
    assert (who, tables(text_of("PRO-5"))[0][0][0]) == (
        "a right implementation",
        "family `element-ties`, against `mxfp4`",
    )
    assert rows[0][1:] == [printed.strip("`")] * 3 == [f"{cases}/{cases}"] * 3


@pytest.mark.rule("PRO-6", "PRO-7", "PRO-10")
@pytest.mark.example("PRO-6", "PRO-7", "PRO-10")
def test_the_smallest_difference_and_its_field(check):
    result = check("mxfp4", "away", "--json")
    assert result.exit_code == int(dict(rows_of("PRO-10"))["one or more"]) == 1, result.output
    found = json.loads(result.stdout)
    ((cell, field),) = rows_of("PRO-7")
    ((mistake, smallest),) = rows_of("PRO-6")
    assert cell == mistake == "rounds ties away from zero"
    # others explain these families' cases, too, and come after it
    assert (found["fields"][0]["field"], found["fields"][0]["theirs"]) == (field.strip("`"), "away")
    assert found["smallest"]["values"] == smallest.partition(":")[0]
    got = [found["smallest"][side]["data"] for side in ("profile", "implementation")]
    assert got == [[byte] for byte in re.findall("`(.*?)`", smallest)]
    shares = {(share["family"], share["dtype"]): (share["equal"], share["cases"]) for share in found["shares"]}
    assert shares["element-ties", "float32"][0] < shares["element-ties", "float32"][1]


@pytest.mark.rule("PRO-7")
def test_another_profile_is_named(check):
    found = json.loads(check("mxfp4", "ggml", "--json").stdout)
    assert "ggml.mxfp4" in found["headline"]


@pytest.mark.heavy
@pytest.mark.rule("PRO-7")
def test_a_field_that_explains_no_more_than_some_bytes_is_not_named(check):
    result = check("mxfp4", "third", families=("--family", "minus-zero"))
    assert result.exit_code == 1
    assert "no change of a single field explains all bytes" in result.output


@pytest.mark.parametrize(
    ("profile", "function", "message"),
    [
        ("mxfp5", "right", "unknown name 'mxfp5'"),
        ("modelopt.nvfp4@0.1", "right", "unknown version '0.1' of modelopt.nvfp4, need one of 0.47.0"),
        ("mxfp4", "missing", "no missing in"),
    ],
)
def test_bad_arguments(check, profile, function, message):
    result = check(profile, function)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.rule("PRO-4")
def test_versions_of_a_profile():
    names = fp4ref.profiles
    assert names["modelopt.nvfp4@0.47.0"] is names["modelopt.nvfp4"]
    assert names["modelopt.nvfp4@0.40"] is names["modelopt.nvfp4@5a4242fa"] is names["modelopt.nvfp4@0.40.0"]
    assert names["torchao.mxfp4_even_0_18"] is names["torchao.mxfp4_even@0.18.0"]
    assert names["torchao.mxfp4_even@36027d82"] is names["torchao.mxfp4_even"]
    with pytest.raises(fp4ref.UnknownNameError, match=r"need one of .*0\.47\.0.*PRO-4"):
        names["modelopt.nvfp4@0.4"]


@pytest.mark.heavy
def test_the_report_fits_a_terminal(check, monkeypatch):
    whole = check("checked.mxfp4", "away").stdout
    monkeypatch.setenv("COLUMNS", "60")
    fitted = check("checked.mxfp4", "away").stdout
    assert fitted.split() == whole.split()
    wide, narrow = (  # paths are not broken
        [len(line) for line in text.splitlines() if "kernels.py" not in line] for text in (whole, fitted)
    )
    assert max(wide) > 60 >= max(narrow)


@pytest.mark.heavy
@pytest.mark.rule("PRO-7")
def test_profiles_of_other_blocks_do_not_end_the_search_for_a_field(check):
    """Wide profiles are among the fields that are tried; scales of other shapes are no explanation."""
    wide = fp4ref.register(fp4ref.MXFP4.replace(name="checked.wide", block=(1, 128)), source="an example")
    try:
        result = check("checked.mxfp4", "away")
    finally:
        fp4ref.profiles.forget(wide.name)
    assert result.exit_code == 1, result.output
    assert "element.rounding" in result.output


@pytest.mark.rule("PRO-5", "PRO-7", "CNF-16")
def test_a_function_of_a_c_library(tmp_path):
    """The example quantizes to MXFP4; as torchao's profile it differs in special blocks only."""
    if shutil.which("cc") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no C compiler")
    examples = Path(__file__).parents[1] / "docs" / "examples"
    made = tmp_path / "libexample.so"
    flags = ("-O2", "-ffp-contract=off", "-shared", "-fPIC", "-o", made)
    subprocess.run(["cc", *flags, examples / "quantize_library.c", "-lm"], check=True)

    def run(profile: str, *families: str):
        chosen = [part for family in families for part in ("--family", family)]
        against = ["--against", f"{made}:quantize", "--signature", str(examples / "quantize_library.toml")]
        return CliRunner().invoke(main, ["profiles", "check", profile, *against, *chosen])

    right = run("mxfp4", "element-ties")
    assert right.exit_code == 0, right.output
    assert "conforms to mxfp4" in right.output
    wrong = run("torchao.mxfp4_floor", "block-scale-ties")
    assert wrong.exit_code == 1, wrong.output
    assert "explained by one field: arithmetic is rceil, not ocp-floor" in wrong.output
