"""Each mark is described, and each of CI's scripts selects the tests that it is for."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from covering import sample

ROOT = Path(__file__).parents[1]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", ".ci/run", ".ci/release")}
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
MARKS = {name.partition("(")[0]: text for name, _, text in (line.partition(":") for line in OPTIONS["markers"])}


def test_every_mark_is_described() -> None:
    assert not [name for name, text in MARKS.items() if len(text.split()) < 3]
    assert not [name for name in MARKS if f"`{name}`" not in TEXTS["CONTRIBUTING.md"] and name != "rule"]
    assert '`@pytest.mark.rule("' in TEXTS["CONTRIBUTING.md"]


def selected(script: str) -> list[str]:
    return [quoted or word for quoted, word in re.findall(r' -m (?:"([^"]+)"|(gpu|heavy|release)\b)', TEXTS[script])]


def test_scripts_select_the_marks() -> None:
    assert selected(".ci/run") == ["not heavy and not release and not slow", "heavy and not release"]
    assert selected(".ci/release") == ["heavy or release", "gpu"]


@pytest.mark.parametrize("marks", ["heavy", "release", "heavy release"])
def test_heavy_tests_and_those_for_a_release_are_left_out_by_default(marks: str) -> None:
    (chosen,) = re.findall(r"-m '(.*?)'", OPTIONS["addopts"])
    every = dict.fromkeys(MARKS, False)
    assert not eval(chosen, {}, every | dict.fromkeys(marks.split(), True))
    assert eval(chosen, {}, every | {"slow": True})


def test_the_heavy_step_finds_every_file_with_heavy_tests() -> None:
    """CI finds files by the mark, or by the import of the module that sets it: no other shared module may set it."""
    (pattern,) = re.findall(r'grep -lE "([^"]+)" tests/test_\*\.py', TEXTS[".ci/run"])
    shared = [path for path in (ROOT / "tests/common").glob("*.py") if "mark.heavy" in path.read_text("utf-8")]
    assert [path.stem for path in shared] == ["covering"]
    assert re.search(pattern, "from covering import few")
    assert re.search(pattern, "@pytest.mark.heavy")
    assert re.search(pattern, "@pytest.mark.sampled(4)")


def test_every_rule_is_decided_by_default(rules_of_heavy_tests_alone: set[str]) -> None:
    pytest.importorskip("torch")  # without it whole files are skipped
    assert not rules_of_heavy_tests_alone


class Case:
    """A case of a function marked `sampled(4)`, which is crossed over a list, pairs, and the values of a fixture."""

    def __init__(self, number: int, pair: tuple[str, str], device: str) -> None:
        self.params = {"number": number, "low": pair[0], "high": pair[1], "device": device}
        self.callspec, self.heavy = SimpleNamespace(params=self.params), False

    def get_closest_marker(self, name: str) -> Any:
        return pytest.mark.sampled(4).mark if name == "sampled" else None

    def iter_markers(self, name: str) -> list[Any]:
        assert name == "parametrize"
        return [pytest.mark.parametrize("number", []).mark, pytest.mark.parametrize("low, high", []).mark]

    def add_marker(self, mark: Any) -> None:
        self.heavy = mark.name == "heavy"


def test_a_sample_has_every_value_of_each_list_once() -> None:
    cases = [Case(*each, "cpu") for each in product(range(4), zip("abcd", "ABCD", strict=True))]
    sample(cases)
    taken = [case.params for case in cases if not case.heavy]
    assert len(taken) == 4
    assert [{case[name] for case in taken} for name in ("number", "low")] == [{*range(4)}, {*"abcd"}]


def test_a_sample_has_other_values_on_another_device() -> None:
    cases = [Case(number, ("a", "A"), device) for device in ("cpu", "cuda") for number in range(8)]
    sample(cases)
    assert [(case.params["number"], case.params["device"]) for case in cases if not case.heavy] == [
        *((number, "cpu") for number in (0, 4)),
        *((number, "cuda") for number in (3, 7)),
    ]
