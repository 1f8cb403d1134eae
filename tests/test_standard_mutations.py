"""Numbers of the sentences of chapters 02 to 07, 10 and 11, changed one at a time: a test notices each change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHAPTERS = ("02", "03", "04", "05", "06", "07", "10", "11")
READERS = ("claims", "examples", "inputs", "numbers", "sentences", "tensors", "words")
SAME = "the other decimal is that of the same number"
EXAMPLE = "an input of an example, whose result another place in the block does not change"
OUTSIDE = "the version of another project"
NOT_READ = {  # by rule and number: why no test can notice a change
    ("HAD-7", "6.914138793945312"): SAME,
    ("HAD-7", "0.00019550323486328125"): SAME,
    ("HAD-7", "1.1641532182693481"): SAME,
    ("E4M3-5", "2.12"): OUTSIDE,
    ("E4M3-5", "2.13"): OUTSIDE,
    ("BLK-2", "0x7F800001"): "the other word is a signalling NaN as well",
    **{("BLK-12", number): EXAMPLE for number in ("0", "3", "4", "5", "6", "10", "13", "14", "3.875")},
}


@pytest.mark.release
def test_a_changed_number_is_noticed(tmp_path):
    result = tmp_path / "unread.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "standard_mutations"]
    command += ["--mutate", ",".join(CHAPTERS), "--unread", str(result)]
    command += [str(HERE / f"test_standard_{name}.py") for name in READERS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent)
    assert result.is_file(), done.stdout + done.stderr
    found = json.loads(result.read_text("utf-8"))
    assert [chapter for chapter in CHAPTERS if found[chapter]["numbers"] < 5] == []
    unread = [line for part in found.values() for line in part["unread"]]
    assert [line for line in unread if (line["rule"], line["number"]) not in NOT_READ] == []
    assert {(line["rule"], line["number"]) for line in unread} == set(NOT_READ)
