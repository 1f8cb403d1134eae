"""Aimed values for codecs, packing and the transform; the exact-rational oracle says what is expected."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fp4ref.conformance.oracle import hadamard as hadamard_bound
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals
from fp4ref.conformance.vectors.sources.parts import (
    ORACLE,
    STATED,
    Json,
    bits,
    codec_record,
    digits,
    floats,
    group,
    neighbours,
    test,
)
from fp4ref.conformance.vectors.text import format_words, pattern_words
from fp4ref.formats import (
    CUDA_E2M1,
    CUDA_E2M3,
    CUDA_E3M2,
    CUDA_E4M3,
    CUDA_E5M2,
    CUDA_E8M0,
    CUDA_UE5M3,
    E2M1,
    E5M2,
    GGML_UE4M3,
    NAN_OVERFLOW_E4M3,
    OCP_INT8,
    STOCHASTIC_E2M1,
    Codec,
    F,
    Rounding,
    Sign,
)

OVERFLOW_E5M2 = Codec(format=E5M2, nan=(0x7F, 0xFF), overflow=0x7C)


def midpoints(codec: Codec) -> list[float]:
    """Between every two neighbouring values of a small format; of a large one at both ends."""
    values = rationals.magnitudes(codec.format.name)
    ties = [(low + high) / 2 for low, high in itertools.pairwise(values)]
    return ties if len(ties) < 8 else [*ties[:2], ties[6], ties[7], ties[8], *ties[-2:]]


def encode_tests(codec: Codec, values: Iterable[Any], flags: str) -> list[Json]:
    """Return a test for each float32, with the oracle's code."""
    width = 1 if codec.format is E2M1 else 2
    return [
        test(
            flags,
            f"{float(v):.9g}",
            values=[format_words(np.asarray(v))],
            codes=[f"{rationals.encode(float(v), codec):0{width}x}"],
        )
        for v in np.array(list(values), F)
    ]


def standard_codec_tests(codec: Codec) -> list[Json]:
    """Ties and their neighbours, the largest value and beyond, zeros, subnormals, infinities and NaN."""
    ties, top = midpoints(codec), codec.format.max
    beyond = float(rationals.beyond(codec.format.name))
    near = neighbours(ties)
    return [
        *encode_tests(codec, ties + [-tie for tie in ties], "TieToEven"),
        *encode_tests(codec, [*near[0::3], *-near[2::3]], "NearTie"),
        *encode_tests(codec, [top, -top, (top + beyond) / 2, -beyond, 3.0e38], "Saturation"),
        *encode_tests(codec, [math.inf, -math.inf], "Infinity"),
        *encode_tests(codec, [0.0, -0.0], "MinusZero"),
        *encode_tests(codec, [2.0**-149, -(2.0**-149), rationals.magnitudes(codec.format.name)[1]], "Subnormal"),
        *encode_tests(codec, [math.nan, -math.nan], "NaN"),
    ]


def encode_groups() -> list[Json]:
    """Return the four standard codecs, the variations that others chose, and stochastic rounding."""
    rules = {
        CUDA_E2M1: "E2M1-2 E2M1-3 E2M1-4 E2M1-5",
        CUDA_E4M3: "E4M3-2 E4M3-3 E4M3-4",
        CUDA_E5M2: "E5M2-2 E5M2-3 E5M2-4",
    }
    later = {  # at the end, since numbers of tests stay
        CUDA_E2M3: "E2M3-2 E2M3-3 E2M3-4",
        CUDA_E3M2: "E3M2-2 E3M2-3 E3M2-4",
        GGML_UE4M3: "UE4M3-2",
        CUDA_UE5M3: "UE5M3-2 UE5M3-3",
    }
    groups = [
        group(rule, ORACLE, standard_codec_tests(codec), codec=codec_record(codec)) for codec, rule in rules.items()
    ]
    powers = [2.0**-126, 1.0, 2.0**-10, 2.0**126, 2.0**127]
    up = [
        *encode_tests(CUDA_E8M0, neighbours(powers), "ScaleRounding"),
        *encode_tests(CUDA_E8M0, [0.0, *neighbours([2.0**-127]), 2.0**-149], "Subnormal"),
        *encode_tests(CUDA_E8M0, [3.4028234663852886e38], "Saturation"),
        *encode_tests(CUDA_E8M0, [math.inf], "Infinity"),
        *encode_tests(CUDA_E8M0, [math.nan], "NaN"),
    ]
    groups.append(group("E8M0-2 E8M0-3", ORACLE, up, codec=codec_record(CUDA_E8M0)))
    choices = [0.75, -0.75, 1.75, 2.5, 5.0, 0.3, -0.2, -0.0, 0.0, 7.0, -7.0, math.inf, math.nan, -math.nan]
    for codec in (
        Codec(format=E2M1, rounding=Rounding.DOWN, sign=Sign.NEGATIVE, nan=(0, 0)),
        Codec(format=E2M1, rounding=Rounding.AWAY, sign=Sign.NONZERO, nan=(7, 15)),
        Codec(format=E2M1, rounding=Rounding.TRUNCATE, sign=Sign.NOT_POSITIVE, nan=(8, 8)),
        Codec(format=E2M1, rounding=Rounding.UP, nan=(4, 12), overflow=8),
    ):
        tests = encode_tests(codec, choices, "PeerArithmetic")
        groups.append(group("E2M1-6", ORACLE, tests, codec=codec_record(codec)))
    over = [448.0, *neighbours([464.0]), -480.0, math.inf, -math.inf, math.nan, -math.nan]
    groups.append(
        group(
            "E4M3-5", ORACLE, encode_tests(NAN_OVERFLOW_E4M3, over, "Saturation"), codec=codec_record(NAN_OVERFLOW_E4M3)
        )
    )
    over = [57344.0, *neighbours([61440.0]), -65536.0, math.inf, -math.inf, math.nan]
    groups.append(
        group("E5M2-5", ORACLE, encode_tests(OVERFLOW_E5M2, over, "Saturation"), codec=codec_record(OVERFLOW_E5M2))
    )
    groups.append(group("SR-2 SR-3 SR-4", ORACLE, stochastic_tests(), codec=codec_record(STOCHASTIC_E2M1)))
    return groups + [
        group(rule, ORACLE, standard_codec_tests(codec), codec=codec_record(codec)) for codec, rule in later.items()
    ]


def stochastic_tests() -> list[Json]:
    """Random bytes on both sides of thresholds; saturation, NaN and a sum that rounds up to a value."""
    cases: list[tuple[float, tuple[int, ...]]]
    cases = [(v, (0, 1, 127, 128, 254, 255)) for v in (0.25, -0.25, 0.5, -1.75, 2.5, 5.0, -5.99, 6.0, 7.0, -0.0, 0.001)]
    cases += [(float(bits("3e7fffff")[0]), (127, 128)), (float(bits("3fffffff")[0]), (0, 1))]
    cases += [(math.inf, (0, 255)), (-math.inf, (0, 255)), (math.nan, (0, 255)), (-math.nan, (0, 255))]
    return [
        test(
            "RandomBits",
            f"{v:.9g} under bytes {', '.join(map(str, drawn))}",
            values=[format_words(floats([v]))] * len(drawn),
            random_bits=[f"{byte:02x}" for byte in drawn],
            codes=[f"{rationals.encode(v, STOCHASTIC_E2M1, byte):x}" for byte in drawn],
        )
        for v, drawn in cases
    ]


def decode_groups() -> list[Json]:
    """All of E2M1; of the others every kind of code."""
    chosen = {
        "E2M1-1": (CUDA_E2M1, range(16)),
        "E4M3-1": (CUDA_E4M3, (0, 1, 7, 8, 0x38, 0x3C, 0x77, 0x7D, 0x7E, 0x7F, 0x80, 0x81, 0xB8, 0xFE, 0xFF)),
        "E5M2-1": (
            CUDA_E5M2,
            (0, 1, 3, 4, 0x3C, 0x77, 0x7A, 0x7B, 0x7C, 0x7D, 0x7F, 0x80, 0x83, 0xBC, 0xFB, 0xFC, 0xFE),
        ),
        "E8M0-1 E8M0-4": (CUDA_E8M0, (0, 1, 2, 0x7E, 0x7F, 0x80, 0xFD, 0xFE, 0xFF)),
        "E2M3-1": (CUDA_E2M3, (0, 1, 7, 8, 0x10, 0x1F, 0x20, 0x3F)),
        "E3M2-1": (CUDA_E3M2, (0, 1, 3, 4, 0x0C, 0x1F, 0x20, 0x3F)),
        "INT8-1": (OCP_INT8, (0, 1, 0x40, 0x7F, 0xFF, 0xC0, 0x81, 0x80)),
        "UE4M3-1": (GGML_UE4M3, (0, 1, 7, 8, 0x38, 0x77, 0x7E, 0x7F, 0x80, 0xB8, 0xFE, 0xFF)),
        "UE5M3-1": (CUDA_UE5M3, (0, 1, 7, 8, 0x78, 0x7F, 0x80, 0xF7, 0xFE, 0xFF)),
    }
    groups = []
    for rules, (codec, codes) in chosen.items():
        tests = []
        for code in codes:
            value = rationals.value(code, codec.format.name)
            finite = math.isfinite(value)
            flag = "Specials" if not finite else "Subnormal" if abs(value) < 2.0**-6 else "Bytes"
            tests.append(
                test(
                    flag,
                    f"{value:.9g}",
                    codes=digits(np.array([code], np.uint8), 1 if codec is CUDA_E2M1 else 2),
                    values=[pattern_words(floats([value]))],
                )
            )
        groups.append(group(rules, ORACLE, tests, codec=codec_record(codec)))
    return groups


def pack_groups() -> list[Json]:
    """Even and odd rows; every block holds a largest magnitude."""
    rows = ("7", "1f", "f12", "0123456789abcdef", "7000000000000008f")
    four = [
        test(
            "SpareNibble" if len(row) % 2 else "NibbleOrder", f"{len(row)} codes", codes=list(row), packed=_packed(row)
        )
        for row in rows
    ]
    eight = [
        test("Bytes", f"{len(row) // 2} codes", codes=[row[i : i + 2] for i in range(0, len(row), 2)], packed=row)
        for row in ("7e", "fe01", "0038b87e80")
    ]
    return [group("PACK-1 PACK-2", ORACLE, four, format="e2m1"), group("PACK-3", STATED, eight, format="e4m3")]


def _packed(row: str) -> str:
    return bytes(oracle.pack([int(code, 16) for code in row], 4)).hex()


def hadamard_groups() -> list[Json]:
    """Return unit vectors, cancellation, orders of addition, specials; and back."""
    wide = (
        "bec8 c407 b7c3 c3da bdea ba9a c3bf 3b93 be85 bcb3 43d3 c4aa c01d c007 ba8d c3f1",
        "c1bc 3fb4 bee6 3f9c b752 4393 c17c bd51 379b 4104 bc69 b7d1 40f9 bc08 b9e1 c3a0",
        "4299 3eaf 35d2 41e9 b93b bc89 4103 c3bf 39cf 43e6 395b 39d1 bc2f ba16 b702 bf1a",
    )
    cases = [
        ("HadamardOrder", "exponents spread over 30: every order of additions differs", bits(words, "bfloat16"))
        for words in wide
    ]
    cases += [
        ("HadamardSigns", f"only element {element}, -3", floats([-3.0 * (i == element) for i in range(16)], "bfloat16"))
        for element in (0, 7, 15)
    ]
    cases += [
        ("MinusZero", "all ones: half of the sums cancel to +0", floats([1.0] * 16, "bfloat16")),
        ("MinusZero", "all -0", floats([-0.0] * 16, "bfloat16")),
        ("FlushToZero", "the smallest subnormals", bits(" ".join(["0001", "8002"] * 8), "bfloat16")),
        ("Infinity", "sums past the largest bfloat16", bits(" ".join(["7f7f"] * 16), "bfloat16")),
    ]
    groups = []
    for mask in (0xD7E8, 0x0000):
        tests = []
        for flags, comment, values in cases:
            transformed = floats(hadamard_bound.transform(values.astype(F).tolist(), mask), "bfloat16")
            more = {}
            if np.isfinite(transformed.astype(F)).all():
                more["restored"] = format_words(floats(hadamard_bound.inverse(transformed.astype(F).tolist(), mask)))
            tests.append(
                test(flags, comment, values=format_words(values), transformed=format_words(transformed), **more)
            )
        groups.append(group("HAD-1 HAD-2 HAD-3 HAD-6", ORACLE, tests, signs=f"{mask:04x}"))
    return groups
