"""Commands of fp4ref in this process, a conversion without one, and kernels in files for them."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fp4ref
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.running import run
from fp4ref.cli import main


def fp4(*arguments: Any) -> Result:
    """Run a command, and return its result."""
    return CliRunner().invoke(main, [*map(str, arguments)])


def printed(line: str, status: int = 0) -> str:
    """Run a line of a command, which has to end with a status, and return what it prints."""
    result = fp4(*shlex.split(line))
    assert result.exit_code == status, result.output
    return result.output


def refused(result: Result, *words: str) -> None:
    """Require that a command ended with one line on standard error, with these words."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("fp4ref: ")
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words), result.stderr


def convert(source: Path, target: Path, to: str = "", **settings: Any) -> dict[str, Any]:
    """Convert a checkpoint without the command, and return the manifest."""
    manifest = run(request_to_convert(source, target, to=to, **settings))
    assert manifest is not None
    return manifest


def good(x: Any) -> tuple[Any, Any, Any]:
    """Quantize to NVFP4, as the standard says."""
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    return q.row.data, q.row.scales, q.row.amax


GOOD = f"""
from typing import Any
import fp4ref

{inspect.getsource(good)}
"""  # a file of kernels begins with it


def folder_with(kernels: str, name: str = "kernels.py") -> Any:
    """Return a fixture: a folder of its own with a file of kernels, in which the test runs."""

    @pytest.fixture
    def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        (tmp_path / name).write_text(kernels)
        return tmp_path

    return here
