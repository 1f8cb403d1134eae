from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.explain import difference
from fp4ref.conformance.explain.mixed import PAIRS, mixed, weights
from scripts import load

SCRIPT = Path(__file__).parents[1] / "docs/generate/differences.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load(SCRIPT)


@pytest.mark.release  # measures every profile, as the site's build does
def test_the_chapter_has_every_profile_that_differs_from_another(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "mixed_pairs", list)  # which a heavy test measures
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


@pytest.mark.heavy  # compares thirteen pairs of profiles on every family
def test_pairs_that_are_mixed_have_counts_and_witnesses(script: ModuleType) -> None:
    text = "\n".join(script.mixed_pairs())
    assert text.count("### ") == len(PAIRS) == 5
    assert "none found" not in text
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:6]]
        for line in text.splitlines()
        if line.startswith("| `")
    }
    assert len(rows) == sum(map(len, PAIRS.values()))
    # 1.75 stays below a carry in ModelOpt and is carried in compressed-tensors: blocks by their largest magnitude
    x = weights().reshape(-1, 32)
    largest = np.abs(x).max(axis=1).astype(np.float64)
    mantissa = 2 * np.frexp(largest)[0]
    differ = (mantissa > 1.5) & (mantissa < 1.75)
    assert rows["`modelopt.mxfp4`, `compressed_tensors.mxfp4`"][1] == f"{100 * differ.mean():.3g}"


@pytest.mark.heavy
def test_witnesses_tell_the_pairs_apart() -> None:
    for a, b in (pair for pairs in PAIRS.values() for pair in pairs):
        found = mixed(a, b, weights()[:32])
        assert found.witness is not None
        x, amax = found.witness.probe.x, found.witness.probe.amax
        assert difference.count(fp4ref.profiles[a], fp4ref.profiles[b], x, amax=amax).differs
