"""Mistakes in theorems' code, in the model beneath it and in rare encoders, each of which a certificate refutes."""

from __future__ import annotations

import numpy as np
import pytest

import fp4ref
from fp4ref import formats
from fp4ref.formats import codec as codec_module
from fp4ref.model import backend
from fp4ref.proof import other_codes, theorems_again, theorems_fp8
from fp4ref.theorems import moving
from fp4ref.theorems.returning import evaluate
from refuting import decided


@pytest.mark.rule("E2M3-2", "E3M2-2", "INT8-2", "UE4M3-2", "UE5M3-2")
@pytest.mark.parametrize("name", other_codes.OTHERS)
def test_a_wrong_rounding_of_a_rare_format_is_refuted(name, monkeypatch):
    table = codec_module._code_table

    def rounded_otherwise(codec):
        return table(
            formats.Codec(format=codec.format, rounding=formats.Rounding.AWAY, nan=codec.nan, overflow=codec.overflow)
        )

    monkeypatch.setattr(codec_module, "_code_table", rounded_otherwise)
    assert "has code" in decided(f"encode-{name}/golden").witness


@pytest.mark.rule("E2M3-4", "E3M2-4", "INT8-4", "INT8-5", "UE4M3-2", "UE5M3-3")
@pytest.mark.parametrize(
    "name, pattern, code",
    [
        *(("e2m3", 0xFFC00000, 0x3F), ("e3m2", 0x80000000, 0x00), ("int8", 0x80000000, 0x80)),
        *(("ue4m3", 0x7F800000, 0x7F), ("ue5m3", 0xFF800000, 0xFF)),
    ],
)
def test_a_wrong_special_value_of_a_rare_format_is_refuted(name, pattern, code, monkeypatch):
    torch = pytest.importorskip("torch")
    from fp4ref_torch import codecs

    right = codecs.encode

    def wrong(values, codec, random_bits=None):
        at = torch.from_numpy(np.array([pattern], np.uint32).view(np.int32))
        return torch.where(values.view(torch.int32) == at, code, right(values, codec, random_bits))

    assert decided(f"encode-{name}/torch").witness is None
    monkeypatch.setattr(codecs, "encode", wrong)
    assert f"0x{pattern:08X}" in decided(f"encode-{name}/torch").witness


def test_codes_of_rare_formats_begin_where_the_rules_say():
    found = other_codes.expected("int8")
    assert found.of(np.float32([1 / 128, 3 / 128, -1 / 128, -3 / 128, -2, np.nan]).view(np.uint32)).tolist() == [
        *(0x00, 0x02, 0x00, 0xFE, 0x81, 0x7F)
    ]
    found = other_codes.expected("ue5m3")
    given = np.float32([2.0**-18, 3 * 2.0**-18, 1.0625, 1.1875, 118784, np.inf, np.nan]).view(np.uint32)
    assert found.of(given).tolist() == [0, 2, 0x78, 0x7A, 0xFE, 0xFE, 0xFF]


PLANTED = {  # claim: the module that is changed, its function, and what makes the wrong one of the right one
    "theorem-amax-stays": (
        theorems_again,
        "dequantized_te",
        lambda right: lambda q, s, amax, k: right(q, s, amax, k) * np.float32(1 + 2.0**-22),
    ),
    "theorem-moved-nvfp4": (
        moving,
        "_fitting",
        lambda right: lambda sets, powers, exponents, ratio: np.ones((len(sets), len(exponents)), bool),
    ),
    "theorem-moved-sets": (moving, "THIRDS", lambda right: np.full(8, moving.NO_THIRD, np.uint8)),
    "theorem-moved-mxfp4": (moving, "_decomposed", lambda right: lambda f: (right(f)[0] * 0, right(f)[1])),
}


@pytest.mark.sampled(4)
@pytest.mark.rule("THM-2", "THM-4", "THM-5", "THM-6")
@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_in_a_theorem_is_refuted(name, monkeypatch):
    module, part, wrong = PLANTED[name]
    monkeypatch.setattr(module, part, wrong(getattr(module, part)))
    assert decided(f"{name}/golden").witness


REFUTED = {  # claims with a mistake in this file
    *(f"encode-{name}/{of}" for name in other_codes.OTHERS for of in ("golden", "torch")),
    *(f"{name}/golden" for name in PLANTED),
    *(
        f"theorem-{name}/golden"
        for name in ("mx-returns", "through-fp8", "transposed", "order", "rescaled", "moved-fp8")
    ),
}


def quantized_otherwise(monkeypatch, change):
    """Have the golden model return other bytes."""
    right = backend.quantize
    monkeypatch.setattr(backend, "quantize", lambda call, *given: change(call, right(call, *given)))


@pytest.mark.rule("THM-1", "THM-13")
@pytest.mark.parametrize("name", ["theorem-mx-returns", "theorem-through-fp8"])
def test_another_scale_byte_of_zeros_is_refuted(name, monkeypatch):
    quantized_otherwise(monkeypatch, lambda call, data: data._replace(scales=np.maximum(data.scales, 1)))
    assert "byte 00" in decided(f"{name}/golden").witness


@pytest.mark.rule("THM-8")
def test_another_scale_of_a_column_is_refuted(monkeypatch):
    def change(call, data):
        if call.direction == "column" and data.scales.shape[0] > 2 and data.scales.size:
            data.scales[2, 0] ^= 1
        return data

    quantized_otherwise(monkeypatch, change)
    assert "the scale of element" in decided("theorem-transposed/golden").witness


@pytest.mark.rule("THM-3", "THM-10")
def test_an_encoder_that_falls_is_refuted(monkeypatch):
    right = codec_module._code_table

    def wrong(codec):
        table = right(codec).copy()
        table[2 * 0x4000] ^= 4  # of 2.0
        return table

    monkeypatch.setattr(codec_module, "_code_table", wrong)
    assert "has a larger value than" in decided("theorem-order/golden").witness
    assert "becomes" in decided("theorem-rescaled/golden").witness


@pytest.mark.rule("THM-12")
def test_a_wider_move_to_fp8_is_refuted(monkeypatch):
    right = theorems_fp8.fp8_from_mxfp4
    monkeypatch.setattr(
        theorems_fp8,
        "fp8_from_mxfp4",
        lambda codes, scales, to: right(codes, np.maximum(scales, max(int(scales.max()) - 14, 0)), to),
    )
    assert "are moved" in decided("theorem-moved-fp8/golden").witness


# Sentences that certificates refuted: each theorem has the condition that it lacked


@pytest.mark.rule("THM-10")
def test_a_scale_that_becomes_normal_at_a_tie_changes_more():
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 16] = np.nextafter(np.float32(2688), np.float32(3000)), 15 * 2.0**-9 * 6
    found = {each.rule: each for each in evaluate(x, "nvfp4")}["THM-10"]
    assert (found.applies, "0.06667 of themselves" in found.text) == (False, True)


@pytest.mark.rule("THM-3")
def test_an_order_has_no_nan():
    x = np.float32([[3e38, *[0] * 15]])
    assert np.isnan(fp4ref.dequantize(fp4ref.quantize(x, "nvfp4"))[0, 1])
    found = {each.rule: each for each in evaluate(x, "nvfp4")}["THM-3"]
    assert (found.applies, found.holds) == (False, True)


@pytest.mark.rule("THM-5")
def test_a_global_scale_may_be_three_times_a_power_of_two():
    codes = np.repeat(np.uint8([[3], [11]]), 32, axis=1)
    moved = moving.nvfp4_from_mxfp4(codes, np.uint8([[120], [100]]))
    assert (float(moved.amax[0]), moved.threes) == (8064 * 2.0**moved.exponent, 1)
    near = moving.nvfp4_from_mxfp4(codes, np.uint8([[120], [101]]))
    assert near.threes == 0
    past = np.uint8([[254], [254 - 20]])
    assert isinstance(moving.nvfp4_from_mxfp4(codes, past), moving.Inexact)
