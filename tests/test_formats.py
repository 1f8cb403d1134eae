from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fp4ref
from fp4ref import formats, rules
from fp4ref.conformance.explain import codec_notes
from fp4ref.conformance.families import rules as families_rules
from fp4ref.conformance.families.strategies import float32s, near_midpoints, near_values
from fp4ref.conformance.mistakes.rounding_words import ROUNDINGS as WORDS
from fp4ref.conformance.oracle import rationals
from fp4ref.diagrams import codec_words, element_formats
from fp4ref.errors import DomainError
from fp4ref.formats import E2M1, E4M3, E5M2, E8M0, Codec, Rounding, Sign
from fp4ref.proof import code_values
from fp4ref.spec_root import spec_root

HARDWARE = {
    "e2m1": formats.CUDA_E2M1,
    "e4m3": formats.CUDA_E4M3,
    "e5m2": formats.CUDA_E5M2,
    "e8m0": formats.CUDA_E8M0,
}
ROUNDINGS = [
    Codec(format=form, rounding=rounding, nan=(0, 1), overflow=overflow)
    for form in (E2M1, E4M3)
    for rounding in Rounding
    if rounding is not Rounding.STOCHASTIC
    for overflow in (None, 5)
]
CODECS = {
    codec
    for spec in fp4ref.profiles.values()
    for codec in (spec.element, spec.scale)
    if codec.rounding is not Rounding.STOCHASTIC
}.union(ROUNDINGS, HARDWARE.values(), [formats.NAN_OVERFLOW_E4M3, Codec(format=E5M2, nan=(0x7E, 0xFE), overflow=0x7C)])


def codec_id(codec: Codec) -> str:
    return f"{codec.format.name}-{codec.rounding}-{codec.sign}-{codec.nan[0]:x}-{codec.nan[1]:x}-{codec.overflow}"


def every(kind: type) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float32)


def expected_codes(values: np.ndarray, codec: Codec) -> np.ndarray:
    return np.array([rationals.encode(v, codec) for v in values.tolist()], np.uint8)


@np.errstate(all="ignore")
def by_definition(values: np.ndarray, codec: Codec) -> np.ndarray:
    return codec._code(values, codec._round(values))


def assert_same_codes(values: np.ndarray, got: np.ndarray, expected: np.ndarray) -> None:
    wrong = np.flatnonzero(got != expected)
    assert not wrong.size, (values[wrong[:4]], got[wrong[:4]], expected[wrong[:4]])


@pytest.mark.sampled(2)
@pytest.mark.rule("E2M1-2", "E2M1-3", "E2M1-4", "E2M1-5", "E4M3-2", "E4M3-3", "E4M3-4", "E5M2-2", "E5M2-3", "E5M2-4")
@pytest.mark.rule("E8M0-2", "E8M0-3")
@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", HARDWARE)
def test_hardware_codec_on_every_16_bit_input(name, kind):
    values = every(kind)
    assert_same_codes(values, HARDWARE[name].encode(values), expected_codes(values, HARDWARE[name]))


@pytest.mark.sampled(4)
@pytest.mark.rule("E2M1-6", "E4M3-5", "E5M2-5")
@pytest.mark.parametrize("codec", sorted(CODECS, key=codec_id), ids=codec_id)
def test_codec_of_every_profile_and_rounding(codec):
    upper = np.arange(1 << 12, dtype=np.uint32) << 20  # sign, exponent and three bits: every value and tie of E4M3
    values = np.concatenate([upper - 1, upper, upper + 1]).astype(np.uint32).view(np.float32)
    assert_same_codes(values, codec.encode(values), expected_codes(values, codec))


@pytest.mark.rule("E2M1-6")
@pytest.mark.parametrize(
    "codes", [lambda codec, v: codec.encode(v), lambda codec, v: expected_codes(v, codec)], ids=["model", "oracle"]
)
def test_no_two_roundings_give_the_same_codes(codes):
    """A pick that the model or the oracle does not know yet would round as another one does, and both would agree."""
    values = np.float32([0.25, 0.3, 0.6, 0.75, 0.9, 1.25])
    picks = [rounding for rounding in Rounding if rounding is not Rounding.STOCHASTIC]
    found = {r: bytes(codes(Codec(format=formats.E2M1, rounding=r, nan=(7, 7)), values)) for r in picks}
    same = [(a, b) for a, b in itertools.combinations(found, 2) if found[a] == found[b]]
    assert not same, f"the same codes by {same}: implement the pick in Codec._round and in nearest of the oracle"


@pytest.mark.rule("E2M1-6")
def test_every_choice_of_a_codec_is_known_wherever_choices_are_told_apart():
    """A new choice needs words for figures, explanations and verdicts, a vector, and a line of the script."""
    nearest = {*Rounding} - {Rounding.TRUNCATE, Rounding.UP, Rounding.STOCHASTIC}
    assert codec_words.ROUNDED.keys() == {*Rounding}
    assert codec_words.SIGNED.keys() == {*Sign}
    assert element_formats.LIMITS.keys() == {*Rounding} - {Rounding.STOCHASTIC}
    assert codec_notes.TIES.keys() == nearest
    assert {words.rounding for words in WORDS} == {*Rounding} - {Rounding.STOCHASTIC}
    groups = json.loads((spec_root() / "vectors/encode.json").read_text("utf-8"))["groups"]
    assert {group["codec"]["rounding"] for group in groups} == {*Rounding}
    assert {group["codec"]["sign"] for group in groups} == {*Sign}
    script = (files("fp4ref.explorer") / "numerics.js").read_text("utf-8")
    for choice in (*Rounding, *Sign):
        assert re.search(rf'[{{ ](?:"{choice}"|{choice}): ', script), (
            f"numerics.js of the explorer has no line for {choice}"
        )


@pytest.mark.rule("SPC-6")
def test_every_format_of_the_catalogue_has_its_rule_vector_oracle_and_proof():
    """A format that is only a line of grids.py would have bytes that no text states and nothing compares."""
    own = [form for name, form in formats.FORMATS.items() if "." not in name]
    groups = json.loads((spec_root() / "vectors/decode.json").read_text("utf-8"))["groups"]
    decoded = {group["codec"]["format"] for group in groups}
    lacking = {
        form.name: [
            what
            for what, there in (
                ("a rule of its values", f"{form.name.upper()}-1" in rules.defined()),
                ("fields in the oracle", form.name in rationals.FIELDS),
                ("values for certificates", form.name in code_values.VALUES),
                ("rules in the kit's families", form.name in families_rules.VALUES),
                ("a codec in explanations", form in codec_notes.STANDARD),
                ("a vector of decoding", form.name in decoded),
            )
            if not there
        ]
        for form in own
    }
    assert not any(lacking.values()), lacking


@pytest.mark.rule("E2M1-3", "E4M3-2", "E5M2-2", "E8M0-2")
@given(data=st.data())
@pytest.mark.parametrize("name", HARDWARE)
def test_encode_is_nearest_beside_ties_and_values(name, data):
    form = formats.FORMATS[name]
    value = data.draw(near_midpoints(form, ulps=2) | near_values(form, ulps=2) | float32s())
    assert HARDWARE[name].encode(np.float32([value])) == [rationals.encode(float(value), HARDWARE[name])]


@pytest.mark.rule("E2M1-6")
@pytest.mark.parametrize("codec", sorted(CODECS, key=codec_id), ids=codec_id)
def test_table_equals_the_definition(codec):
    values = np.random.default_rng(1).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    assert np.array_equal(codec.encode(values), by_definition(values, codec))


@pytest.mark.rule("E2M1-3", "E4M3-2", "E5M2-2", "E8M0-2")
@pytest.mark.parametrize("name", HARDWARE)
def test_table_equals_the_definition_on_a_million_patterns(name):
    values = np.random.default_rng(2).integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)
    codec = HARDWARE[name]
    assert np.array_equal(codec.encode(values), by_definition(values, codec))


@pytest.mark.rule("E2M1-3", "E4M3-2", "E5M2-2")
@pytest.mark.parametrize(
    "name, kind",
    [("e2m1", ml_dtypes.float4_e2m1fn), ("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)],
)
def test_a_third_opinion_agrees_within_range(name, kind):
    values = every(np.float16)
    values = values[np.abs(values) <= HARDWARE[name].format.max]
    assert_same_codes(values, HARDWARE[name].encode(values), values.astype(kind).view(np.uint8))


@pytest.mark.rule("E2M1-1", "E4M3-1", "E5M2-1", "E8M0-1", "E8M0-4")
@pytest.mark.parametrize("name", HARDWARE)
def test_every_code_decodes_to_its_bit_fields(name):
    codes = np.arange(1 << formats.FORMATS[name].bits, dtype=np.uint8)
    expected = np.array([rationals.value(code, name) for code in codes.tolist()], np.float32)
    got = HARDWARE[name].decode(codes)
    assert np.array_equal(got.view(np.uint32) & 0xFFC00000, expected.view(np.uint32) & 0xFFC00000)  # NaN: any payload
    assert np.array_equal(np.nan_to_num(got), np.nan_to_num(expected))


@pytest.mark.rule("E2M1-1", "E4M3-1", "E5M2-1", "E8M0-1")
@pytest.mark.parametrize(
    "name, theirs",
    [
        ("e2m1", gfloat.formats.format_info_ocp_e2m1),
        ("e4m3", gfloat.formats.format_info_ocp_e4m3),
        ("e5m2", gfloat.formats.format_info_ocp_e5m2),
        ("e8m0", gfloat.formats.format_info_ocp_e8m0),
    ],
)
def test_a_third_opinion_agrees_on_values(name, theirs):
    for code in range(1 << formats.FORMATS[name].bits):
        got, expected = rationals.value(code, name), gfloat.decode_float(theirs, code).fval
        assert got == expected or (math.isnan(got) and math.isnan(expected)), code


@pytest.mark.rule("E2M1-1")
def test_e2m1_values_by_hand():
    by_hand = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    got = formats.CUDA_E2M1.decode(np.arange(16, dtype=np.uint8))
    assert got.tobytes() == np.float32(by_hand + [-v for v in map(float, by_hand)]).tobytes()


@pytest.mark.rule("E2M1-2", "E2M1-3", "E2M1-4", "E2M1-5")
def test_e2m1_codes_by_hand():
    table = {
        -0.0: 8, -0.1: 8, 0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6, 5.0000005: 7,
        math.nan: 7, -math.nan: 7, math.inf: 7, -math.inf: 15, 7.0: 7, -1e30: 15,
    }  # fmt: skip
    assert formats.CUDA_E2M1.encode(np.float32(list(table))).tolist() == list(table.values())


@pytest.mark.rule("E4M3-2", "E4M3-3", "E4M3-4")
def test_e4m3_codes_by_hand():
    table = {
        448.0: 0x7E, 464.0: 0x7E, 1e9: 0x7E, math.inf: 0x7E, -math.inf: 0xFE, math.nan: 0x7F, -math.nan: 0x7F,
        2.0**-9: 1, 2.0**-10: 0, 1.0001 * 2**-10: 1, -0.0: 0x80, 168.0: 0x72, 168.00002: 0x73,
    }  # fmt: skip
    assert formats.CUDA_E4M3.encode(np.float32(list(table))).tolist() == list(table.values())


@pytest.mark.rule("E4M3-5")
def test_e4m3_may_overflow_to_nan_above_its_tie():
    values = np.float32([464, np.nextafter(np.float32(464), np.float32(465)), math.inf, -math.inf])
    assert formats.NAN_OVERFLOW_E4M3.encode(values).tolist() == [0x7E, 0x7F, 0x7F, 0xFF]


@pytest.mark.rule("E5M2-1", "E5M2-2", "E5M2-3", "E5M2-4", "E5M2-5")
def test_e5m2_codes_by_hand():
    table = {
        57344.0: 0x7B, 61440.0: 0x7B, math.inf: 0x7B, -math.inf: 0xFB, math.nan: 0x7F, -math.nan: 0x7F,
        2.0**-16: 1, 2.0**-17: 0, -0.0: 0x80, 1.125: 0x3C, 1.375: 0x3E,
    }  # fmt: skip
    values = np.float32(list(table))
    assert formats.CUDA_E5M2.encode(values).tolist() == list(table.values())
    to_infinity = Codec(format=E5M2, nan=(0x7F, 0x7F), overflow=0x7C)
    assert to_infinity.encode(values[:4]).tolist() == [0x7B, 0x7C, 0x7C, 0xFC]
    assert np.array_equal(to_infinity.decode(np.uint8([0x7C, 0xFC])), np.float32([math.inf, -math.inf]))
    assert np.isnan(to_infinity.decode(np.uint8([0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]))).all()


SMALLEST = 2.0**-127
NEXT_VALUES = (  # rounding; codes of 0, 3/4, 5/4, 3/2 and 7/4 of 2^-127; codes of 1.25, 1.5, 1.75 times 2^127 and Inf
    ("even", (0, 0, 0, 0, 1), (0xFE, 0xFE, 9, 9)),
    ("down", (0, 0, 0, 0, 1), (0xFE, 0xFE, 9, 9)),
    ("away", (0, 0, 0, 1, 1), (0xFE, 9, 9, 9)),
    ("truncate", (0, 0, 0, 0, 0), (0xFE, 0xFE, 0xFE, 9)),
    ("up", (0, 0, 1, 1, 1), (9, 9, 9, 9)),
)


@pytest.mark.rule("SPC-7", "E2M1-6")
@pytest.mark.parametrize("rounding, small, large", NEXT_VALUES)
def test_a_format_without_zero_and_the_value_after_its_largest(rounding, small, large):
    codec = Codec(format=E8M0, rounding=rounding, nan=(0xFF, 0xFF), overflow=9)
    values = np.float32([part * SMALLEST for part in (0, 0.75, 1.25, 1.5, 1.75)])
    assert codec.encode(values).tolist() == codec.encode(-values).tolist() == [*small]
    values = np.float32([1.25 * 2.0**127, 1.5 * 2.0**127, 1.75 * 2.0**127, np.inf])
    assert codec.encode(values).tolist() == [*large]


@pytest.mark.rule("E8M0-1", "E8M0-2", "E8M0-3", "E8M0-4")
def test_e8m0_codes_by_hand():
    just_above_one = np.nextafter(np.float32(1), np.float32(2))
    table = [
        (1.0, 127), (just_above_one, 128), (2.0, 128), (0.75, 127), (0.0, 0), (2.0**-149, 0), (2.0**-127, 0),
        (5.9e-39, 1), (2.0**-126, 1), (3e38, 254), (2.0**127, 254), (math.inf, 254), (math.nan, 255),
    ]  # fmt: skip
    assert formats.CUDA_E8M0.encode(np.float32([x for x, _ in table])).tolist() == [code for _, code in table]
    decoded = formats.CUDA_E8M0.decode(np.uint8([0, 1, 127, 254]))
    assert decoded.tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127]
    assert np.isnan(formats.CUDA_E8M0.decode(np.uint8([255]))[0])


@pytest.mark.rule("E2M1-6")
@pytest.mark.parametrize(
    "sign, codes",
    [
        (Sign.BIT, [0, 8, 0, 8, 1, 9]),
        (Sign.NEGATIVE, [0, 0, 0, 8, 1, 9]),
        (Sign.NOT_POSITIVE, [8, 8, 0, 8, 1, 9]),
        (Sign.NONZERO, [0, 0, 0, 0, 1, 9]),
    ],
)
def test_sign_rules_differ_at_zero(sign, codes):
    values = np.float32([0.0, -0.0, 0.1, -0.1, 0.5, -0.5])
    assert replace(formats.CUDA_E2M1, sign=sign).encode(values).tolist() == codes


@pytest.mark.rule("E2M1-6")
@given(value=float32s())
def test_nearest_is_the_value_of_the_code(value):
    got = formats.CUDA_E2M1.nearest(np.float32([value]))
    if not math.isnan(value):
        expected = formats.CUDA_E2M1.decode(formats.CUDA_E2M1.encode(np.float32([value])))
        assert got.tobytes() == expected.tobytes()


@pytest.mark.rule("E2M1-6")
def test_nearest_past_the_largest_value_is_the_next_one_where_it_overflows():
    overflowing = replace(formats.CUDA_E2M1, overflow=8)
    assert overflowing.nearest(np.float32([6.5, 7, -9, 100])).tolist() == [6, 8, -8, 8]
    assert overflowing.encode(np.float32([6.5, 7, -9, 100])).tolist() == [7, 8, 8, 8]


@pytest.mark.rule("PACK-1")
def test_a_code_of_five_bits_is_refused():
    with pytest.raises(DomainError, match=r"decode: code 16, need 4 bits \[PACK-1\]"):
        formats.CUDA_E2M1.decode(np.uint8([16]))


@pytest.mark.rule("E2M1-6")
def test_a_codec_of_codes_that_do_not_exist_is_refused():
    with pytest.raises(DomainError, match="need codes of 4 bits"):
        Codec(format=E2M1, nan=(16, 0))
    with pytest.raises(DomainError, match="stochastic rounding to e8m0, need e2m1"):
        Codec(format=E8M0, nan=(0, 0), rounding=Rounding.STOCHASTIC)


@pytest.mark.rule("NUM-1")
@given(a=float32s(), b=float32s())
def test_the_oracles_operations_are_binary32(a, b):
    with np.errstate(all="ignore"):
        pairs = [
            (rationals.times, a * b),
            (rationals.over, a / b),
            (rationals.plus, a + b),
            (rationals.minus, a - b),
        ]
    for function, expected in pairs:
        got = np.float32(function(float(a), float(b)))
        assert got.tobytes() == expected.tobytes() or (np.isnan(got) and np.isnan(expected)), function.__name__


@pytest.mark.rule("NUM-1", "DEQ-3")
@given(value=float32s(finite=True))
@pytest.mark.parametrize("to, kind", [(rationals.BFLOAT16, ml_dtypes.bfloat16), (rationals.FLOAT16, np.float16)])
def test_the_oracles_roundings_are_those_of_the_types(value, to, kind):
    with np.errstate(over="ignore", under="ignore"):
        expected = np.float32(np.asarray(value).astype(kind))
    assert np.float32(rationals.narrowed(float(value), to)).tobytes() == expected.tobytes()


@pytest.mark.rule("E2M1-1", "E4M3-1", "E5M2-1", "E8M0-1")
@pytest.mark.parametrize(
    "form, largest, emax, sign_bit",
    [(E2M1, 6, 2, 8), (E4M3, 448, 8, 128), (E5M2, 57344, 15, 128), (E8M0, 2**127, 127, 0)],
)
def test_properties_of_the_formats(form, largest, emax, sign_bit):
    assert (Fraction(form.max), form.emax, form.sign_bit) == (largest, emax, sign_bit)
