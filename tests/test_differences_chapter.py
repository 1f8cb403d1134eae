from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import fp4ref

SCRIPT = Path(__file__).parents[1] / "docs/generate/differences.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("differences", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # measures every profile
def test_the_chapter_has_every_profile_that_differs_from_another(script: ModuleType) -> None:
    text = "\n".join(script.chapter())
    formats = {spec: (spec.element.format, spec.scale.format) for spec in fp4ref.profiles.values()}
    shared = {pair for pair, count in Counter(formats.values()).items() if count > 1}  # others are the standard's alone
    every = [spec for spec, pair in formats.items() if not spec.stochastic and pair in shared]
    assert {spec for spec in every if f"`{spec.name}`" in text} == set(every)
    rows = [line for line in text.splitlines() if line.startswith("| `nvfp4` |")]
    assert "| `nvfp4` | 00: 0 0 | 00: 8 0 | 00: 7 f | 00: 0 0 | 69: 7 7 | 7e: 7 0 |" in rows


def test_advice_names_profiles(script: ModuleType) -> None:
    for advice in script.ADVICE:
        for name in advice.profiles:
            assert name in fp4ref.profiles
