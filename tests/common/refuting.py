"""Mistakes planted in code, which certificates have to refute."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fp4ref_numerics
from fp4ref import repeats
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import Replayed
from fp4ref_cpu import build


def decided(name: str) -> Replayed:
    """Decide a claim."""
    return claims()[name].decide(lambda done: None)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str, str, str], None]]:
    """Return a function that replaces a text of the cpu backend or of the shared header for this test."""
    header, sources = tmp_path / "include", tmp_path / "csrc"
    shutil.copytree(fp4ref_numerics.INCLUDE, header)
    shutil.copytree(build.SOURCES, sources)

    def forget() -> None:
        names = ("quantizing", "reading", "randoms", "gemm", "operations")
        for module in (build, *(importlib.import_module(f"fp4ref_cpu.{name}") for name in names)):
            for part in vars(module).values():
                if hasattr(part, "cache_clear"):
                    part.cache_clear()

    def plant(file: str, right: str, wrong: str) -> None:
        path = tmp_path / file if file.startswith("csrc/") else header / "fp4ref" / file
        text = path.read_text()
        assert right in text
        path.write_text(text.replace(right, wrong))
        monkeypatch.setattr(fp4ref_numerics, "INCLUDE", header)
        monkeypatch.setattr(build, "SOURCES", sources)
        monkeypatch.setattr(repeats, "_repeats", {})  # no call is one that another test made
        forget()

    yield plant
    monkeypatch.undo()
    forget()


def replaced(owner: Any, name: str, wrong: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a planter that puts another function or constant in the place of one."""
    return lambda patch: patch.setattr(importlib.import_module(owner) if isinstance(owner, str) else owner, name, wrong)


def other_member(right: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Let the third member of a group have another code."""
    found = right(*given, **named)
    for part in [part for q in found[2:3] for part in (q.row, q.column) if part is not None and part.data.size]:
        part.data[-1, -1] ^= 1
    return found
