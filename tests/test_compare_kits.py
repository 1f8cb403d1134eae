"""The script that compares the kits of two checkouts."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from scripts import load

SCRIPT = Path(__file__).parents[1] / ".ci" / "compare_kits.py"
if not SCRIPT.exists():
    pytest.skip("the script is part of the checkout, not of the wheel", allow_module_level=True)
script = load(SCRIPT, "compare_kits_script")
KITS = "the other checkout and this"


def verdict(name, *, caught=True, seconds=1.0):
    return {"caught": caught, "names": [name], "whole": True, "headline": f"wrong: {name}", "seconds": seconds}


def test_a_table_shows_each_mutant_that_is_told_otherwise():
    out = StringIO()
    results = {
        "Same": (verdict("element-up"), verdict("element-up", seconds=0.5)),
        "Other": (verdict("scale-inferred"), verdict("scale-codec-up", seconds=0.25)),
    }
    assert script.table(results, out)
    assert out.getvalue().splitlines() == [
        "1 of 2 alike; caught by the other checkout only: none",
        "Other",
        "  other: wrong: scale-inferred",
        "  this:  wrong: scale-codec-up",
        f"seconds of the diagnosis, {KITS}: sum 2.0 and 0.8, median 1.00 and 0.38; median of ratios 0.38",
    ]


def test_a_mutant_that_is_no_longer_caught_fails():
    out = StringIO()
    assert not script.table({"Lost": (verdict("element-up"), verdict("", caught=False))}, out)
    assert "caught by the other checkout only: Lost" in out.getvalue()


def test_results_of_another_checkout_and_a_line_that_was_cut_are_none():
    own, other = ["/before", "this"], ["/older", "this"]
    lines = [
        json.dumps([own, "One", verdict("element-up"), verdict("element-down")]),
        json.dumps([other, "Two", verdict("element-up"), verdict("element-up")]),
        json.dumps([["/before", "other"], "Three", verdict("element-up"), verdict("element-up")]),
        json.dumps([own, "Four", verdict("element-up"), verdict("element-up")])[:-9],
    ]
    text = StringIO("\n".join(lines))
    assert script.kept_of(text, own) == {"One": (verdict("element-up"), verdict("element-down"))}


@pytest.mark.release  # when kits are compared: a diagnosis by each of two processes
def test_a_checkout_is_like_itself(tmp_path):
    kept = tmp_path / "kits.jsonl"
    command = [sys.executable, str(SCRIPT), str(SCRIPT.parents[1]), "--count", "1", "--results", str(kept)]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    assert first.stdout.startswith("1 of 1 alike")
    ((_, name, before, now),) = map(json.loads, kept.read_text().splitlines())
    assert before["names"] == now["names"]
    assert name in script.mutants(SCRIPT.parents[1])
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout == first.stdout
    )  # nothing runs again
