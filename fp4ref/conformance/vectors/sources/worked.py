"""Worked examples: expected values typed in as they were worked out by hand and on Transformer Engine's reference."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fp4ref.conformance.vectors.sources.parts import (
    WORKED,
    Json,
    block,
    codec_record,
    floats,
    group,
    named,
    tensor_fields,
    test,
)
from fp4ref.conformance.vectors.text import format_words
from fp4ref.formats import CUDA_E2M1, STOCHASTIC_E2M1
from fp4ref.spec import FourOverSix, Metric
from fp4ref.specs import MXFP8_E4M3, NVFP4, NVFP4_4OVER6, NVFP4_RHT

FIRST = floats(".1 -.2 .3 .4 .5 -.6 .7 .8 .9 1 1.1 1.2 -1.3 1.4 1.5 1.6", "bfloat16")[None]
SECOND = floats("4 3 2.9 3.1 -4 1 1 2 .9 3 3 -3 2.1 2 1 .5", "bfloat16")[None]
UNIT3 = floats("0 0 0 4 0 0 0 0 0 0 0 0 0 0 0 0", "bfloat16")
COUNT = floats(range(1, 17), "bfloat16")

E2M1_CODES = (
    ("MinusZero", "-0.0", "8"),
    ("TieToEven", "0.25", "0"),
    ("TieToEven", "0.75", "2"),
    ("TieToEven", "1.25", "2"),
    ("TieToEven", "1.75", "4"),
    ("TieToEven", "2.5", "4"),
    ("TieToEven", "3.5", "6"),
    ("TieToEven", "5", "6"),
    ("NearTie", "5.0000005", "7"),
    ("NaN", "nan", "7"),
    ("NaN", "-nan", "7"),
    ("Infinity", "inf", "7"),
    ("Infinity", "-inf", "f"),
    ("MinusZero", "-0.1", "8"),
)
# value, first random byte that rounds away from zero, codes below and from there on
STOCHASTIC = (
    ("0.3", 103, "0", "1"),
    ("1.9", 52, "3", "4"),
    ("2.4", 154, "4", "5"),
    ("4.5", 192, "6", "7"),
    ("5.9", 13, "6", "7"),
)
# flags, comment, amax, x, scale, data
NVFP4_BLOCKS: tuple[tuple[str, str, str, NDArray[Any], str, str], ...] = (
    ("EncodeScale", "S_enc 1678.361, 448.0 before the scale's codec", "1.6015625", FIRST, "7e", "9132c45565667e77"),
    ("EncodeScale", "S_enc 336, 89.6875 before the scale's codec", "8", FIRST, "6b", "a132c45565667e77"),
    ("EncodeScale", "S_enc 2.688, 0.7175 before the scale's codec", "1000", FIRST, "33", "a132c45566667f77"),
    (
        "ScaleTie OrderOfOperations",
        "amax 12, block 4.5: 168.00002, not 168",
        "12",
        block(floats("4.5", "bfloat16")),
        "73",
        "",
    ),
    (
        "ScaleTie OrderOfOperations",
        "amax 15.75, block 11.8125",
        "15.75",
        block(floats("11.8125", "bfloat16")),
        "7b",
        "",
    ),
    ("ScaleUnderflow", "1e-3 under amax 3e4", "30000", floats([1e-3] * 16, "bfloat16")[None], "00", "77" * 8),
    ("MinusZero", "-0 and +0 alternating", "0", floats([-0.0, 0.0] * 8, "bfloat16")[None], "00", "08" * 8),
    ("Infinity", "Inf among ones", "inf", floats(["inf", *"1" * 15], "bfloat16")[None], "7e", "07" + "00" * 7),
)
# largest element, scale byte, code of that element
MXFP8 = (
    ("448", "7f", "7e"),
    ("450", "80", "76"),
    ("1.0", "77", "78"),
    ("3.5", "78", "7e"),
    ("0.875", "76", "7e"),
    ("7", "79", "7e"),
    ("1e-40", "00", "09"),
    ("3e38", "f7", "76"),
    ("inf", "fe", "7e"),
    ("0", "00", "00"),
    ("nan", "00", "7f"),
)
# metric, scale_max, row, data, scale
FOUR_OVER_SIX = (
    ("mae", 256, FIRST, "9132c45565667e77", "6d", "first candidate"),
    ("mae", 256, SECOND, "56552e4252d54412", "7c", "second candidate"),
    ("mse", 256, FIRST, "9021b24344555d66", "72", "second candidate"),
    ("mae", 448, FIRST, "9122b34454556d66", "78", "second candidate"),
    ("mae", 448, SECOND, "67663f5363e65523", "7e", "both saturate: a tie keeps the first"),
)
SWIZZLE = ((0, 0, 0), (1, 0, 16), (32, 0, 4), (0, 1, 1), (127, 3, 511), (0, 4, 512), (128, 0, 1024), (200, 6, 1674))
UNIT3_TRANSFORMED = "-1 1 1 -1 -1 1 1 -1 -1 1 1 -1 -1 1 1 -1"
COUNT_TRANSFORMED = "-15.5 -7.5 7.5 -.5 7.5 -.5 -15.5 8.5 8.5 16.5 1.5 1.5 1.5 -2.5 10.5 -17.5"


def encode_groups() -> list[Json]:
    """E2M1 codes, and thresholds of the random byte."""
    codes = [test(flag, text, values=[format_words(floats(text))], codes=[code]) for flag, text, code in E2M1_CODES]
    stochastic = [
        test(
            "RandomBits",
            f"{text}: away from zero in {256 - first} of 256 cases",
            values=[format_words(floats(text))] * 4,
            random_bits=["00", f"{first - 1:02x}", f"{first:02x}", "ff"],
            codes=[low, low, high, high],
        )
        for text, first, low, high in STOCHASTIC
    ]
    return [
        group("E2M1-2 E2M1-3 E2M1-4 E2M1-5", WORKED, codes, codec=codec_record(CUDA_E2M1)),
        group("SR-2 SR-4", WORKED, stochastic, codec=codec_record(STOCHASTIC_E2M1)),
    ]


def pack_groups() -> list[Json]:
    """Return the order of nibbles."""
    codes = test("NibbleOrder", "1.0 and -6.0", codes=["2", "f"], packed="f2")
    return [group("PACK-1", WORKED, [codes], format="e2m1")]


def hadamard_groups() -> list[Json]:
    """Two transforms that can be followed with a pencil."""
    tests = [
        test(
            "HadamardSigns",
            comment,
            values=format_words(values),
            transformed=format_words(floats(transformed, "bfloat16")),
        )
        for comment, values, transformed in (
            ("only element 3, 4.0: minus row 3 of the matrix", UNIT3, UNIT3_TRANSFORMED),
            ("1 to 16", COUNT, COUNT_TRANSFORMED),
        )
    ]
    return [group("HAD-1 HAD-2", WORKED, tests, signs="d7e8")]


def nvfp4_groups() -> list[Json]:
    """Blocks with every intermediate known."""
    tests = []
    for flags, comment, amax, x, scale, data in NVFP4_BLOCKS:
        bytes_expected = {"scales": [scale], **({"data": [data]} if data else {})}
        tests.append(test(flags, comment, **tensor_fields(x), amax=format_words(floats(amax)), expected=bytes_expected))
    plain = test(
        "EncodeScale",
        "amax 4",
        **tensor_fields(FIRST),
        amax=format_words(floats("4")),
        expected={"data": ["a132c45565667e77"], "scales": ["73"]},
    )
    transform = test(
        "HadamardSigns ColumnDirection",
        "1 to 16 in a column: its own amax is 17.5",
        **tensor_fields(COUNT[:, None]),
        direction="column",
        expected={"data": ["df85855f7511a1f6"], "scales": ["7e"], "amax": format_words(floats([17.5]))},
    )
    return [
        group("BLK-3 BLK-4 BLK-5 BLK-6 GLB-3 GLB-4", WORKED, [*tests, plain], spec=named(NVFP4)),
        group("HAD-4", WORKED, [transform], spec=named(NVFP4_RHT)),
    ]


def mx_groups() -> list[Json]:
    """Return the byte of a block's largest element, and its own."""
    tests = [
        test(
            {"nan": "NaN", "inf": "Infinity"}.get(text, "ScaleRounding"),
            f"largest element {text}",
            **tensor_fields(block(floats(text), 32)),
            expected={"data": [code + "00" * 31], "scales": [scale]},
        )
        for text, scale, code in MXFP8
    ]
    return [group("MXS-1 BLK-2 BLK-10 E8M0-2 E8M0-3", WORKED, tests, spec=named(MXFP8_E4M3))]


def four_over_six_groups() -> list[Json]:
    """Return a row for each pair of a metric and a scale, with the candidate that wins."""
    return [
        group(
            "FOS-1 FOS-2 FOS-3 FOS-6",
            WORKED,
            [
                test(
                    "FourOverSix",
                    f"amax 4: {note}",
                    **tensor_fields(x),
                    amax=format_words(floats("4")),
                    expected={"data": [data], "scales": [scale]},
                )
            ],
            spec=named(
                NVFP4_4OVER6.replace(
                    name=f"nvfp4-4over6 {metric} {top}", four_over_six=FourOverSix(metric=Metric(metric), scale_max=top)
                )
            ),
        )
        for metric, top, x, data, scale, note in FOUR_OVER_SIX
    ]


def dequantize_groups() -> list[Json]:
    """Return the second NVFP4 block above: every element is rounded once to bfloat16."""
    values = floats(
        ".130859375 -.26171875 .26171875 .392578125 .5234375 -.5234375 .78515625 .78515625 "
        ".78515625 1.046875 1.046875 1.046875 -1.046875 1.5703125 1.5703125 1.5703125",
        "bfloat16",
    )
    block_test = test(
        "Bytes",
        "scale 88, amax 8: one step is 0.26190478",
        dtype="bfloat16",
        shape=[1, 16],
        data=["a132c45565667e77"],
        scales=["6b"],
        amax=format_words(floats("8")),
        to="bfloat16",
        expected={"values": [format_words(values)]},
    )
    return [group("DEQ-1 DEQ-3", WORKED, [block_test], spec=named(NVFP4))]


def layout_groups() -> list[Json]:
    """Offsets in a buffer of 128 x 4 tiles with 8 scale columns."""
    positions = [[row, column] for row, column, _ in SWIZZLE]
    offsets = test(
        "LayoutOrder",
        "two tiles down, two across, 512 bytes each",
        rows=201,
        columns=8,
        positions=positions,
        padded=[256, 8],
        offsets=[offset for *_, offset in SWIZZLE],
        padding=[],
    )
    return [group("LAY-3", WORKED, [offsets], layout="tiled_128x4")]
