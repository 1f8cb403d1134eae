from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import packing
from fp4ref.catalogue import PROMISES
from fp4ref.conformance.judge.promised import equal_bytes, equal_values, promised
from fp4ref.promise import Checked
from fp4ref.spec import Spec

with np.load(Path(__file__).parent / "data" / "peers_2026_11.npz") as archive:
    INDEX = json.loads(archive["index"].tobytes())
    BLOBS = {name: archive[name] for name in archive.files if name != "index"}
TYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
CONFIGS = list(INDEX["cases"])
# References of Transformer Engine are recorded under shorter names than the profiles have.
TE = {"ref_1d": "python_reference", "ref_2d": "python_reference_2d", "ref_row": "python_reference_row"}


def profile(config: str) -> str:
    """The profile of a recorded configuration PEER/VERSION/NAME, found by its version."""
    peer, version, name = config.split("/")
    if peer == "te":
        name = TE.get(name, name.replace("ref_", "python_reference_"))
    return fp4ref.profiles[f"{peer}.{name}@{version.removesuffix('_cpu')}"].name


class Case:
    """One recorded tensor: its input, and the bytes or values that the peer returned."""

    def __init__(self, row: list) -> None:
        self.kind, self.dtype, self.shape, *offsets = row
        self._offsets = dict(zip(("x", "data", "scales", "values"), offsets, strict=True))
        self.special = self.kind in INDEX["special"]

    @property
    def x(self) -> np.ndarray:
        return self._read("x", TYPES[self.dtype], self.shape[1])

    @property
    def only_values(self) -> bool:
        return self._offsets["data"] < 0

    def scales(self, across: int) -> np.ndarray:
        return self._read("scales", np.dtype(np.uint8), across)

    def values(self) -> np.ndarray:
        return self._read("values", TYPES["f32" if self.dtype == "f16" else self.dtype], self.shape[1])

    def data(self, width: int) -> np.ndarray:
        return self._read("data", np.dtype(np.uint8), width)

    def _read(self, name: str, dtype: np.dtype, width: int) -> np.ndarray:
        count = self.shape[0] * width
        start = self._offsets[name]
        return BLOBS[name][start : start + count * dtype.itemsize].view(dtype).reshape(self.shape[0], width)


def cases(config: str) -> list[Case]:
    return [Case(row) for row in INDEX["cases"][config]]


def equal(spec: Spec, case: Case) -> bool:
    """True if the profile has the recorded bytes, up to the sign of a NaN."""
    x = case.x
    if case.only_values:  # Quark keeps scales that no byte of E8M0 holds, which its promise leaves out
        return equal_values(spec, PROMISES[spec.name], x, case.values())
    width, across = packing.width(x.shape[1], spec.element.format), -(-x.shape[1] // spec.block.columns)
    return equal_bytes(spec, x, case.data(width), case.scales(across))


@pytest.mark.rule("PRO-1", "PRO-3", "PRO-4", "E2M1-6", "FOS-5", "NUM-2", "NUM-5")
@pytest.mark.parametrize("config", CONFIGS)
def test_a_profile_has_the_recorded_bytes_wherever_it_promises_them(config):
    spec = fp4ref.profiles[profile(config)]
    wrong = [
        (case.kind, case.dtype)
        for case in cases(config)
        if promised(PROMISES[spec.name], case.x) and not equal(spec, case)
    ]
    assert not wrong


@pytest.mark.rule("PRO-1")
def test_every_family_of_inputs_is_recorded():
    finite = {
        "normal",
        "rows",
        "blocks",
        "decades",
        "bigtiny",
        "denormal",
        "lowexp",
        "highexp",
        "ties",
        "ties8",
        "zeros",
    }
    finite |= {"allzero", "pow2", "scaleties", "mxties", "bitsfinite"}
    for config in CONFIGS:
        kinds = {case.kind for case in cases(config)}
        missing = (
            {"lowexp", "denormal", "allzero"} if config == "jax/0.10.2/nvfp4" else set()
        )  # those depend on the shape
        assert finite - missing <= kinds, config


@pytest.mark.rule("PRO-1", "PRO-2", "PRO-12")
def test_what_is_recorded_is_claimed_for_finite_inputs():
    recorded = {profile(config) for config in CONFIGS}
    for name, promise in PROMISES.items():
        if promise.checked is Checked.RECORDED and name in fp4ref.profiles:
            assert promise.finite.holds, name
            assert name in recorded or name == "modelopt.nvfp4@0.40.0", name  # that one is in the older recordings
        for claim in promise.claims.values():
            assert claim.holds or claim.reason, name


@pytest.mark.rule("PRO-1")
def test_a_claim_that_is_false_is_found(monkeypatch):
    config = "compressed_tensors/0.20.0/mxfp4"
    spec = fp4ref.profiles["compressed_tensors.mxfp4"]
    wrong = spec.replace(name=spec.name, arithmetic=fp4ref.profiles["torchao.mxfp4_even"].arithmetic)
    assert not all(equal(wrong, case) for case in cases(config) if promised(PROMISES[spec.name], case.x))
