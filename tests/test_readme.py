from __future__ import annotations

import doctest
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from fp4ref.diagrams.catalogue import draw
from fp4ref.model.backend import dequantize, quantize

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPT = shutil.which("fp4ref", path=str(Path(sys.executable).parent))
SETUP = re.findall(r"^python3 -m venv .+$", README, re.MULTILINE)


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_setup_commands() -> None:
    verify, test = SETUP
    assert verify.endswith("&& .venv/bin/fp4ref verify")
    assert "torch" not in verify
    assert test.endswith("&& .venv/bin/python -m pytest -q -n auto")


def test_ci_runs_the_commands_of_the_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "grep '^python3 -m venv ' README.md" in ci
    assert not [line for line in SETUP if line in ci]
    assert "-n auto" not in ci


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples run in order in one directory: Python first, then the command that reads the dump it wrote."""
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestParser().get_doctest("\n".join(fences("python")), {}, "README.md", "README.md", 0)
    assert len(examples.examples) >= 5
    report: list[str] = []
    assert doctest.DocTestRunner().run(examples, out=report.append).failed == 0, "".join(report)
    commands = [line for block in fences("sh") for line in block.splitlines() if line.startswith("fp4ref ")]
    assert any(line.startswith("fp4ref verify dump.npz") for line in commands)
    assert SCRIPT, "fp4ref is not installed beside this interpreter"
    for line in commands:
        run = subprocess.run([SCRIPT, *line.split()[1:]], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        assert "conforms" in run.stdout or not line.startswith("fp4ref verify")


@pytest.mark.parametrize("operation", [quantize, dequantize])
def test_contributing_has_the_signatures_of_a_backend(operation: Callable[..., object]) -> None:
    names = ", ".join(inspect.signature(operation).parameters)
    assert f"def {operation.__name__}({names}) -> " in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_picture_is_what_its_command_draws() -> None:
    command = re.search(r"!\[[^]]{60,}\]\((docs/\S+\.svg)\)\s+\(Drawn by `fp4ref diagram (\S+) -o (\S+)`\.\)", README)
    assert command is not None
    assert command[1] == command[3]
    assert (ROOT / command[1]).read_text(encoding="utf-8") == draw(command[2])


def test_versions_agree() -> None:
    version = metadata.version("fp4ref")
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
