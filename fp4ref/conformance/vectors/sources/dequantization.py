"""Aimed bytes to dequantize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals as r
from fp4ref.conformance.vectors.sources.layouts import stored
from fp4ref.conformance.vectors.sources.parts import ORACLE, STATED, Json, block, floats, group, named, refused, test
from fp4ref.conformance.vectors.sources.tensors import BINARY, spread
from fp4ref.conformance.vectors.text import format_rows, format_words, pattern_words
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Spec
from fp4ref.specs import MXFP4, MXFP8_E4M3, MXFP8_E5M2, NVFP4, NVFP4_2D, NVFP4_RHT, NVFP4_ROW_SCALED


def dequantized(
    flags: str,
    comment: str,
    spec: Spec,
    result: DirectionData,
    shape: tuple[int, int],
    to: str = "float32",
    *,
    direction: Direction = "row",
    scale_layout: str = "linear",
    inverse: bool = False,
    poison: int = 0,
) -> Json:
    """Return a test with the oracle's values; poison: what the padding of the scales holds."""
    values = oracle.dequantize(result, shape if direction == "row" else shape[::-1], spec, BINARY[to], inverse)
    more: Json = {} if direction == "row" else {"direction": direction}
    if scale_layout != "linear":
        more["scale_layout"] = scale_layout
    if inverse:
        more["inverse_hadamard"] = True
    if result.amax is not None:
        more["amax"] = format_words(result.amax)
    return test(
        flags,
        comment,
        dtype="bfloat16" if spec.hadamard else "float32",
        shape=list(shape),
        data=format_rows(result.data),
        scales=format_rows(stored(result.scales, scale_layout, poison)),
        **more,
        to=to,
        expected={"values": [pattern_words(floats(row, to)) for row in values]},
    )


# The order of operations of others, for one element: (q, s, amax) -> value; 2688 is 6 * 448
PEER_ORDERS: dict[str, Callable[[float, float, float], float]] = {
    "torchao.nvfp4_2lvl": lambda q, s, amax: r.times(q, r.times(s, r.over(amax, 2688.0))),
    "flashinfer.ref_nvfp4": lambda q, s, amax: r.times(q, r.over(s, r.times(r.over(1.0, amax), 2688.0))),
    "fouroversix.nvfp4_static_6": lambda q, s, amax: r.over(r.times(r.times(q, s), amax), 2688.0),
}


def _peer_group(name: str, order: Callable[[float, float, float], float]) -> Json:
    """Codes 0 to 15 under one scale, for maxima that tell the orders of operations apart."""
    codes, tests = [r.value(code, "e2m1") for code in range(16)], []
    for amax in floats("1.1 0.7 1234.5 3.3").tolist():
        values = floats([order(q, r.value(0x5D, "e4m3"), amax) for q in codes])
        tests.append(
            test(
                "OrderOfOperations PeerArithmetic",
                f"scale 26, amax {amax:.9g}",
                dtype="float32",
                shape=[1, 16],
                data=[bytes(oracle.pack(range(16), 4)).hex()],
                scales=["5d"],
                amax=format_words(floats([amax])),
                to="float32",
                expected={"values": [format_words(values)]},
            )
        )
    return group("DEQ-5", ORACLE, tests, spec=name)


def dequantize_groups() -> list[Json]:
    """Orders of operations, output types, specials, layouts with poisoned padding, and the inverse transform."""
    every = DirectionData(np.array([oracle.pack(range(16), 4)], np.uint8), np.array([[0x37]], np.uint8), floats([3.3]))
    small = DirectionData(
        np.array([[0x21, 0xA7, 0, 0, 0, 0, 0, 0]], np.uint8), np.array([[0x01]], np.uint8), floats([2.0**-118])
    )
    nvfp4 = [dequantized("Bytes", f"codes 0 to 15, as {to}", NVFP4, every, (1, 16), to) for to in BINARY]
    nvfp4 += [
        dequantized("ScaleUnderflow", "scale 0 gives zeros, with signs", NVFP4, _with(every, scale=0x00), (1, 16)),
        dequantized("Specials", "scale 0x7f is NaN", NVFP4, _with(every, scale=0x7F), (1, 16)),
        dequantized("FlushToZero", "results are subnormal", NVFP4, small, (1, 16)),
        dequantized("FlushToZero DoubleRounding", "as bfloat16", NVFP4, small, (1, 16), "bfloat16"),
        dequantized(
            "Infinity", "past the largest float16", NVFP4, _with(every, scale=0x7E, amax=70000.0), (1, 16), "float16"
        ),
        dequantized(
            "Infinity",
            "scale * amax overflows before the division",
            NVFP4,
            _with(every, scale=0x7E, amax=3e38),
            (1, 16),
        ),
        dequantized("GlobalScale", "amax 0", NVFP4, _with(every, scale=0x7E, amax=0.0), (1, 16)),
    ]
    for amax in (1.1, 0.7, 1234.5):
        nvfp4.append(
            dequantized(
                "OrderOfOperations DoubleRounding",
                f"(s * amax) first; amax {amax}",
                NVFP4,
                _with(every, scale=0x5D, amax=amax),
                (1, 16),
                "bfloat16",
            )
        )
    ragged = oracle.quantize(spread((3, 18), "float32", 50), NVFP4)
    column = oracle.quantize(spread((3, 18), "float32", 50), NVFP4, "column")
    shapes = [
        dequantized(
            "RaggedTail SpareNibble", "3 x 17, a spare nibble that is not zero", NVFP4, _spoiled(ragged), (3, 17)
        ),
        dequantized("ColumnDirection", "the column direction of 3 x 18", NVFP4, column, (3, 18), direction="column"),
    ]
    padded = [
        dequantized(
            "Padding", f"padding of {name} holds {poison:02x}", NVFP4, ragged, (3, 18), scale_layout=name, poison=poison
        )
        for name, poison in (("tiled_8x4", 0x7F), ("tiled_8x4", 0x00), ("linear_padded", 0xFF), ("tiled_128x4", 0x7F))
    ]
    rows = oracle.quantize(spread((3, 16), "float32", 51, 9), NVFP4_ROW_SCALED)
    edges = np.array([[0x7F, 0x00, 0x01, 0xFE, 0xFF]], np.uint8)
    four = DirectionData(np.tile(every.data, (1, 10)), edges, None)
    eight = DirectionData(np.tile(_codes(0, 1, 7, 8, 0x38, 0x7E, 0x7F, 0x80, 0xB8, 0xFE, 0xFF), (1, 5)), edges, None)
    five = DirectionData(np.tile(_codes(0, 1, 4, 0x3C, 0x7B, 0x7C, 0x7D, 0x80, 0xFB, 0xFC, 0xFF), (1, 5)), edges, None)
    mx = [
        (MXFP4, dequantized("Specials FlushToZero", "scale bytes 127, 0, 1, 254, 255", MXFP4, four, (1, 160))),
        (
            MXFP8_E4M3,
            dequantized("Specials FlushToZero", "scale bytes 127, 0, 1, 254, 255", MXFP8_E4M3, eight, (1, 160)),
        ),
        (
            MXFP8_E5M2,
            dequantized("Specials Infinity", "scale bytes 127, 0, 1, 254, 255", MXFP8_E5M2, five, (1, 160), "bfloat16"),
        ),
    ]
    spun = oracle.quantize(spread((16, 2), "bfloat16", 52), NVFP4_RHT, "column")
    tile = oracle.quantize(spread((4, 18), "float32", 53), NVFP4_2D)
    wrong_shape = refused("ShapeError", "LAY-60")
    misread = {
        **dequantized("Refused", "linear scales called tiled", NVFP4, ragged, (3, 18)),
        "scale_layout": "tiled_8x4",
    }
    unknown = {**dequantized("Refused", "a layout of no name", NVFP4, ragged, (3, 18)), "scale_layout": "swizzled"}
    return [
        group("DEQ-1 DEQ-3 NUM-1", ORACLE, nvfp4, spec=named(NVFP4)),
        group("DEQ-4 PACK-2", ORACLE, shapes, spec=named(NVFP4)),
        group("LAY-6", ORACLE, padded, spec=named(NVFP4)),
        group(
            "DEQ-1 GLB-5",
            ORACLE,
            [dequantized("RowScale", "rows of different magnitude", NVFP4_ROW_SCALED, rows, (3, 16))],
            spec=named(NVFP4_ROW_SCALED),
        ),
        *(_peer_group(name, order) for name, order in PEER_ORDERS.items()),
        *(group("DEQ-2 E8M0-4", ORACLE, [made], spec=named(spec)) for spec, made in mx),
        group(
            "DEQ-4 HAD-6",
            ORACLE,
            [
                dequantized(
                    "HadamardSigns",
                    "transform undone, then rounded",
                    NVFP4_RHT,
                    spun,
                    (16, 2),
                    "bfloat16",
                    direction="column",
                    inverse=True,
                ),
                dequantized("HadamardSigns", "transform kept", NVFP4_RHT, spun, (16, 2), direction="column"),
            ],
            spec=named(NVFP4_RHT),
        ),
        group(
            "DEQ-1 LAY-10",
            ORACLE,
            [dequantized("SharedTile", "a tile's byte stands in every row", NVFP4_2D, tile, (4, 18))],
            spec=named(NVFP4_2D),
        ),
        group(
            "LAY-59 LAY-60",
            STATED,
            [{**misread, "expected": wrong_shape}, {**unknown, "expected": refused("LayoutError", "LAY-59")}],
            spec=named(NVFP4),
        ),
    ]


def _codes(*codes: int) -> NDArray[np.uint8]:
    """Return a block of 32 eight-bit codes, zeros at its end."""
    return block(np.array(codes, np.uint8), 32)


def _with(like: DirectionData, scale: int, amax: float | None = None) -> DirectionData:
    changed = like._replace(scales=np.array([[scale]], np.uint8))
    return changed if amax is None else changed._replace(amax=floats([amax]))


def _spoiled(result: DirectionData) -> DirectionData:
    """17 of 18 columns, the spare nibble of each row set to 0xF."""
    data = result.data.copy()
    data[:, -1] |= 0xF0
    return result._replace(data=data)
