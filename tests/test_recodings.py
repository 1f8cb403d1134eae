"""Marlin's buffers, against what vLLM's own code made, and against the operations on float16 that it does."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fp4ref.errors import DomainError
from fp4ref.formats import CUDA_E4M3, E2M1
from fp4ref.layout import LAYOUTS
from fp4ref.layout.recodings import (
    from_marlin_nvfp4,
    to_marlin_global_scale,
    to_marlin_mxfp4_a8,
    to_marlin_nvfp4,
)
from fp4ref.packing import pack
from fp4ref.packings import repack

RECORDED = np.load(Path(__file__).parent / "data" / "marlin.npz")
CASES = sorted({name.rpartition("/")[0] for name in RECORDED.files})
EVERY = np.arange(127, dtype=np.uint8)


def by_float16(scales: np.ndarray, half: bool) -> tuple[np.ndarray, float]:
    """vLLM's steps: times the factor, times 2^7 as float16, whose bits move up by one; the high byte is stored."""
    values = CUDA_E4M3.decode(scales).astype(np.float16)
    largest = float(values.max(initial=0)) * 2**7
    factor = 2.0 ** np.floor(np.log2(448 * 2**7 / largest)) if largest and not half else 1.0
    raised = (values.astype(np.float32) * factor).astype(np.float16) * np.float16(2**7)
    raised[raised < 2] = 0
    return ((raised.view(np.uint16) << 1) >> 8).astype(np.uint8), factor


@pytest.mark.rule("LAY-18")
@pytest.mark.parametrize("half", [False, True])
def test_every_scale_with_every_maximum(half):
    for last in range(127):
        scales = EVERY[: last + 1]
        made, factor = to_marlin_nvfp4(scales, half=half)
        wanted, by = by_float16(scales, half)
        assert made.tobytes() == wanted.tobytes(), last
        assert factor == by
        kept = made != 0
        assert (from_marlin_nvfp4(made, factor) == np.where(kept, scales, 0)).all()
        assert (made[kept] >= 0x80).all()
        for byte, scale in zip(made[kept].tolist(), scales[kept], strict=True):
            value = Fraction(8 + byte % 8, 8) * Fraction(2) ** (byte // 8 - 15)
            assert value == Fraction(float(CUDA_E4M3.decode(np.uint8([scale]))[0])) * Fraction(factor) * 128


@pytest.mark.rule("LAY-18")
def test_what_marlin_does_not_take():
    for byte in (0x7F, 0x80, 0xFF):
        with pytest.raises(DomainError, match=f"scale byte {byte:02X}, need bytes up to 7E"):
            to_marlin_nvfp4(np.uint8([0x38, byte]))
    with pytest.raises(DomainError, match="scale byte FF with factor 1, need that of an E4M3 value"):
        from_marlin_nvfp4(np.uint8([0xFF]), 1.0)
    with pytest.raises(DomainError, match="scale byte FA, need bytes up to F9"):
        to_marlin_mxfp4_a8(np.uint8([0xFA]))
    assert to_marlin_mxfp4_a8(np.uint8([0, 0xF9])).tolist() == [6, 0xFF]
    assert to_marlin_nvfp4(np.zeros((2, 0), np.uint8))[0].shape == (2, 0)
    assert to_marlin_nvfp4(np.uint8([0, 0]))[1] == 1.0


@pytest.mark.rule("LAY-18", "PACK-8", "PACK-9")
@pytest.mark.parametrize("case", CASES)
def test_vllm_made_the_same_bytes(case):
    given, made = RECORDED[f"{case}/given"], RECORDED[f"{case}/made"]
    kind, *settings = case.split("/")
    if kind.startswith("weight"):
        packing = "vllm.marlin_fp4_a8" if kind.endswith("a8") else "vllm.marlin_fp4"
        ours = repack(pack(given, E2M1), *given.shape, "canonical", packing)
        assert (repack(made, *given.shape, packing, "canonical") == pack(given, E2M1)).all()
    elif kind == "nvfp4":
        recoded, factor = to_marlin_nvfp4(given, half="float16" in settings)
        assert factor == RECORDED[f"{case}/factor"]
        ours = LAYOUTS["vllm.marlin_scale_nvfp4"].from_linear(recoded)
    elif kind == "mxfp4":
        ours = LAYOUTS["vllm.marlin_scale_mxfp4" + ("" if "None" in settings else "_a8")].from_linear(
            to_marlin_mxfp4_a8(given) if "float8_e4m3fn" in settings else given
        )
    else:
        ours = to_marlin_global_scale(given, 1.0, half="float16" in settings)
    assert ours.tobytes() == made.tobytes()


@pytest.mark.rule("LAY-18")
@pytest.mark.parametrize("half", [False, True])
def test_marlin_s_product_is_that_of_the_scales(half):
    scales = EVERY[8:]
    recoded, factor = to_marlin_nvfp4(scales, half=half)
    of_tensor = float(to_marlin_global_scale(np.float32([0.75]), factor, half=half)[0])
    read = np.where(recoded == 0, 0.0, np.ldexp(8.0 + recoded % 8, recoded.astype(int) // 8 - 18))
    apart = 2.0 ** (14 if half else 126)
    kept = recoded != 0
    assert (read * of_tensor / apart == CUDA_E4M3.decode(scales) * 0.75)[kept].all()
