"""Mistakes of many kinds, each planted in one place of the golden model or of torch, and a claim that refutes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fp4ref import arithmetic as ar
from fp4ref import formats, hadamard, packing, philox
from fp4ref.arithmetic import RCEIL, TE
from fp4ref.formats import codec as codec_module
from fp4ref.layout import value as layouts
from fp4ref.model import quantize as model
from fp4ref.proof import blocks, mx_scales, whole
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import ClaimSubject
from refuting import decided

FLT_MAX = np.float32(np.finfo("f").max)


@pytest.fixture
def fresh():
    """Make tables anew before and after a test that changes what they are made of."""
    tables = (codec_module._value_table, codec_module._code_table, codec_module._index_table, formats.grid)
    for table in tables:
        table.cache_clear()
    yield
    for table in tables:
        table.cache_clear()


def with_changed(right, change):
    return lambda *given: change(right(*given))


def one_code(table, code):
    table = table.copy()
    table[code] = np.nextafter(table[code], np.float32(np.inf))
    return table


def swapped(data):
    return (data >> 4 | data << 4).astype(np.uint8)


GOLDEN = {  # mistake: object, name, its replacement made of what it was, and the claim
    "the high nibble first": (packing, "pack", lambda was: with_changed(was, swapped), "quantize-mxfp4-float32"),
    "one value of E2M1": (
        codec_module,
        "_value_table",
        lambda was: lambda form: one_code(was(form), 5) if form == formats.E2M1 else was(form),
        "dequantize-nvfp4",
    ),
    "one value of E4M3": (
        codec_module,
        "_value_table",
        lambda was: lambda form: one_code(was(form), 77) if form == formats.E4M3 else was(form),
        "dequantize-mxfp8-e4m3",
    ),
    "one value of E8M0": (
        codec_module,
        "_value_table",
        lambda was: lambda form: one_code(was(form), 3) if form == formats.E8M0 else was(form),
        "dequantize-mxfp4",
    ),
    "a global maximum one step too large": (
        model,
        "global_amax",
        lambda was: lambda *given: np.nextafter(was(*given), np.float32(9)),
        "quantize-nvfp4-float32",
    ),
    "an offset of a tile": (
        layouts.Layout,
        "from_linear",
        lambda was: lambda self, scales: was(self, scales[::-1]) if self.name == "tiled_128x4" else was(self, scales),
        "quantize-mxfp8-e5m2-float16",
    ),
}
ARITHMETICS = {  # mistake: record, function, its replacement, claim
    "a block scale by one constant": (
        TE,
        "block_scale",
        lambda amax, g, k: np.fmin(amax * g * np.float32(1 / 6), FLT_MAX),
        "quantize-nvfp4-float32",
    ),
    "an element over its scale": (TE, "scaled", lambda x, s, g, k: x * g / s, "quantize-nvfp4-float32"),
    "a value by the scale of the tensor first": (
        TE,
        "dequantized",
        lambda q, s, amax, k: q * (s * (amax * np.float32(1 / 2688))),
        "dequantize-nvfp4",
    ),
    "an MX scale by the next constant": (
        RCEIL,
        "block_scale",
        lambda amax, g, k: amax * np.nextafter(np.float32(1 / 6), np.float32(1)),
        "quantize-mxfp4-float32",
    ),
    "an MX scale rounded down": (
        RCEIL,
        "block_scale",
        lambda amax, g, k: np.exp2(np.floor(np.log2(np.fmax(amax, np.float32(1e-38))))) / np.float32(4),
        "quantize-mxfp4-float16",
    ),
}


@pytest.mark.rule("PACK-1", "E2M1-1", "E4M3-1", "E8M0-1", "GLB-1", "LAY-3")
@pytest.mark.parametrize("mistake", GOLDEN)
def test_a_mistake_in_the_golden_model_is_refuted(mistake, fresh, monkeypatch):
    owner, name, wrong, claim = GOLDEN[mistake]
    monkeypatch.setattr(owner, name, wrong(getattr(owner, name)))
    assert decided(f"{claim}/golden").witness


@pytest.mark.rule("BLK-3", "BLK-5", "MXS-1", "DEQ-1")
@pytest.mark.parametrize("mistake", ARITHMETICS)
def test_a_mistake_in_an_arithmetic_is_refuted(mistake, monkeypatch):
    record, name, wrong, claim = ARITHMETICS[mistake]
    before = getattr(record, name)
    object.__setattr__(record, name, np.errstate(all="ignore")(wrong))
    try:
        assert decided(f"{claim}/golden").witness
    finally:
        object.__setattr__(record, name, before)


@pytest.mark.heavy
@pytest.mark.parametrize("subject", [ClaimSubject.GOLDEN, ClaimSubject.CPU])
@pytest.mark.parametrize("spec", blocks.PIPELINES)
def test_what_is_right_is_proved(spec, subject):
    claim = claims()[f"quantize-{spec}-float32/{subject}"]
    assert claim.decide(lambda done: None) == (claim.size, None)
    claim = claims()[f"dequantize-{spec}/{subject}"]
    assert claim.decide(lambda done: None) == (claim.size, None)


@pytest.mark.heavy
@pytest.mark.rule("MXS-1", "DEQ-1")
@pytest.mark.parametrize(
    "module, name, wrong, claim",
    [
        ("codecs", "encode", None, "quantize-mxfp4-float32"),
        ("codecs", "decode", None, "dequantize-mxfp8-e4m3"),
        ("hadamard", "_signed", lambda values, signs: values * 0.25, "hadamard-signs"),
        ("hadamard", "_butterfly", lambda values: values, "hadamard-signs"),
    ],
)
def test_a_mistake_in_torch_is_refuted(module, name, wrong, claim, monkeypatch):
    torch = pytest.importorskip("torch")
    import importlib

    owner = importlib.import_module(f"fp4ref_torch.{module}")
    right = getattr(owner, name)
    if wrong is None:  # one code too many
        kind = torch.uint8 if name == "encode" else torch.float32
        wrong = lambda *given: right(*given) + (right(*given) == 3).to(kind)  # noqa: E731
    users = [importlib.import_module(f"fp4ref_torch.{each}") for each in (module, "quantize", "arithmetic")]
    for user in users:
        for attribute, value in list(vars(user).items()):
            if value is right:
                monkeypatch.setattr(user, attribute, wrong)
    assert decided(f"{claim}/torch").witness


@pytest.mark.rule("HAD-1", "HAD-2", "SR-2", "SR-6", "LAY-3")
@pytest.mark.parametrize(
    "owner, name, wrong, claim",
    [
        (hadamard, "STRIDES", (1, 2, 4), "hadamard-signs/golden"),
        (hadamard, "NORM", np.float32(0.25000003), "hadamard-signs/golden"),
        (hadamard, "sign_vector", lambda mask: np.ones(16, np.float32), "hadamard-signs/golden"),
        (philox, "KEY_STEPS", (0x9E3779B9, 0xBB67AE86), "philox-bits/golden"),
        (philox, "MULTIPLIERS", (0xD2511F53, 0xCD9E8D58), "philox-bijection/formula"),
    ],
)
def test_a_mistake_in_transforms_and_random_bits_is_refuted(owner, name, wrong, claim, monkeypatch):
    if claim.endswith("formula"):
        for library in ("z3", "cvc5"):
            pytest.importorskip(library, reason="the extra `prove` is not installed")
    monkeypatch.setattr(owner, name, wrong)
    assert decided(claim).witness


@pytest.mark.heavy
@pytest.mark.rule("BLK-3")
def test_a_block_scale_in_another_order_is_refuted_in_torch(monkeypatch):
    pytest.importorskip("torch")
    from fp4ref_torch import arithmetic

    right = arithmetic.ORDERS["te"]
    wrong = replace(right, block=lambda amax, g, k: amax * g * (1 / 6))
    monkeypatch.setitem(arithmetic.ORDERS, "te", wrong)
    assert decided("quantize-nvfp4-float32/torch").witness


def test_a_stochastic_code_by_seven_bits_is_refuted(monkeypatch):
    right = formats.Codec._stochastic
    monkeypatch.setattr(formats.Codec, "_stochastic", lambda self, values, bits: right(self, values, bits & 0xFE))
    assert "random byte 1 has code" in decided("stochastic-bfloat16/golden").witness


def test_two_scales_at_one_offset_are_refuted(monkeypatch):
    right = layouts.Layout.from_linear
    monkeypatch.setattr(layouts.Layout, "from_linear", lambda self, scales: right(self, scales // 2 * 2))
    assert "two scales at one offset" in decided("layout-tiled_128x4/golden").witness


@pytest.mark.heavy
def test_the_expected_tensor_has_every_value_and_every_byte():
    tensor = blocks.tensor("nvfp4", "bfloat16")
    assert {*np.unique(tensor.scales).tolist()} == {*range(127)}
    patterns = np.unique(tensor.x.view(np.uint16))
    assert {*range(0x3FCD + 1)} <= {*patterns.tolist()}
    assert len(patterns) == 2 * (0x3FCD + 1) + 2 * 127


def test_the_expected_bytes_of_one_block_are_those_worked_out_by_hand():
    pipe = blocks.mx(formats.CUDA_E2M1)
    assert pipe.byte(np.float32([6, 6.5, 0])).tolist() == [0x7F, 0x80, 0]
    assert pipe.code(np.float32([2.5, 3.5, -6, 7]), 0x7F).tolist() == [4, 6, 0xF, 7]
    assert whole.tiled(np.arange(256, dtype=np.uint8).reshape(64, 4))[:20].tolist() == [
        *(0, 1, 2, 3),
        *(128, 129, 130, 131),
        *(0,) * 8,
        *(4, 5, 6, 7),
    ]


def test_no_edge_where_one_should_be_is_an_error(monkeypatch):
    with pytest.raises(ValueError, match="no edge near"):
        blocks._sides(np.array([1.0]), 0x7F000000, lambda x: np.zeros(len(x), np.uint8), signed=False)


def test_a_subject_is_named_as_the_help_says(monkeypatch):
    from click.testing import CliRunner

    from fp4ref.cli import main

    result = CliRunner().invoke(main, ["prove", "--subject", "formula", "--list"])
    assert result.exit_code == 0, result.output
    assert "/header" not in result.output
    monkeypatch.setattr("fp4ref.cli.prove.cuda_devices", lambda: ([], "no driver"))
    result = CliRunner().invoke(main, ["prove", "--device", "cuda", "dequantize-nvfp4/cuda"])
    assert result.output == "dequantize-nvfp4/cuda: not replayed: no driver\n1 not replayed\n"


MX_MISTAKES = {  # in the choice of an MX scale: function of the arithmetic, its replacement
    "floor": lambda amax, g, k: ar.finite(amax, ar.power_of_two(ar.exponent_field(amax, 1), k)),
    "ceil": lambda amax, g, k: ar.finite(amax, ar.power_of_two(ar.exponent_field(amax) + 1, k)),
    "even": lambda amax, g, k: ar.finite(amax, ar.power_of_two(ar.exponent_field(amax, ar.half_carry(4)), k)),
}


@pytest.mark.rule("MXS-2", "MXS-3", "MXS-4", "MXS-5")
@pytest.mark.parametrize("mode", MX_MISTAKES)
def test_a_mistake_in_the_choice_of_a_scale_is_refuted(mode):
    record = mx_scales.MODES[mode][1]
    before = record.block_scale
    object.__setattr__(record, "block_scale", MX_MISTAKES[mode])
    try:
        assert "needs the byte" in decided(f"mx-{mode}/golden").witness
    finally:
        object.__setattr__(record, "block_scale", before)


@pytest.mark.rule("MXS-2", "MXS-3", "MXS-4")
@pytest.mark.parametrize("mode", MX_MISTAKES)
def test_a_mistake_in_the_choice_of_a_scale_is_refuted_in_torch(mode, monkeypatch):
    pytest.importorskip("torch")
    from fp4ref_torch import powers_of_two

    right = powers_of_two.exponent
    monkeypatch.setattr(powers_of_two, "exponent", lambda amax, add, k: right(amax, add + 1, k))
    assert "needs the byte" in decided(f"mx-{mode}/torch").witness


def test_places_of_mx_scales_are_those_worked_out_by_hand():
    def byte(mode, value):
        pattern = np.float32([value]).view(np.uint32)
        return int(mx_scales.bytes_of(mode, formats.E2M1).of(pattern)[0])

    assert [byte("floor", value) for value in (4, 7.5, 8, 0, np.inf)] == [0x7F, 0x7F, 0x80, 0, 0xFF]
    assert [byte("ceil", value) for value in (4, 5, 8)] == [0x7F, 0x80, 0x80]
    assert [byte("even", value) for value in (6.5, 7, np.nan)] == [0x7F, 0x80, 0xFF]
