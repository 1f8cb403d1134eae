"""The casts of other implementations against recorded codes, and against the libraries that are installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from fp4ref.casts import CASTS
from fp4ref.cli import main
from fp4ref.errors import UnknownNameError

with np.load(Path(__file__).parent / "data" / "casts.npz") as archive:
    CASES = json.loads(archive["index"].tobytes())
    INPUTS, CODES = archive["x"], archive["codes"]
TYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}


@pytest.mark.rule("PRO-1", "PRO-9", "PRO-11")
@pytest.mark.parametrize("name", CASES)
def test_a_cast_has_the_recorded_codes(name):
    cast = CASTS[name]
    assert all(claim.holds for claim in cast.promise.claims.values())
    for dtype, (rows, columns), start, at in CASES[name]:
        count, type_ = rows * columns, TYPES[dtype]
        x = INPUTS[start : start + count * type_.itemsize].view(type_).astype(np.float32)
        assert cast.encode(x).tobytes() == CODES[at : at + count].tobytes(), dtype


@pytest.mark.rule("PRO-9")
def test_every_cast_is_recorded():
    assert {CASTS[name].name for name in CASES} == {*CASTS}


def around_every_bfloat16() -> np.ndarray:
    """Every bfloat16 as float32, and the two float32 beside it that are larger in magnitude and nearest to the next."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.stack([upper, upper | 1, upper | 0xFFFF]).ravel().view(np.float32)


def by_ml_dtypes(name: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x.astype(getattr(ml_dtypes, name)).view(np.uint8)


def by_torch(name: str) -> Callable[[np.ndarray], np.ndarray]:
    torch = pytest.importorskip("torch")
    return lambda x: torch.from_numpy(x).to(getattr(torch, name)).view(torch.uint8).numpy()


NAMES = {"e2m1": "float4_e2m1fn", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu"}


@pytest.mark.rule("PRO-9")
@pytest.mark.parametrize("name", [name for name in CASTS if not name.startswith("onnx")])
def test_a_cast_has_the_codes_of_the_installed_library(name):
    library, _, form = name.partition(".")
    cast = CASTS[name]
    if version(library).partition("+")[0] not in cast.promise.versions:
        pytest.skip(f"{library} {version(library)} is not the release of the cast")
    x = around_every_bfloat16()
    with np.errstate(all="ignore"):
        theirs = (by_torch if library == "torch" else by_ml_dtypes)(NAMES[form])(x)
    assert cast.encode(x).tobytes() == theirs.tobytes()


@pytest.mark.rule("PRO-9", "PRO-12")
def test_the_command_prints_the_codes_of_a_cast():
    text, listed = (CliRunner().invoke(main, ["profiles", "casts", *more]).output for more in ([], ["--json"]))
    rows = {row["name"]: row for row in json.loads(listed)}
    assert {*rows} == {*CASTS}
    assert [rows["ml_dtypes.e5m2"][key] for key in ("overflow", "inf", "nan", "-nan")] == ["7c", "7c", "7e", "fe"]
    assert all(name in text for name in CASTS)


@pytest.mark.rule("PRO-4")
def test_an_unknown_version_of_a_cast_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"2\.13\.0"):
        CASTS["torch.e4m3@1.0"]
