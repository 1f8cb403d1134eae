"""Aimed bytes to dequantize."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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


def _group(rules: str, spec: Spec, rows: Iterable[tuple[Any, ...]]) -> Json:
    """Return a group of one specification: flags, comment, bytes, shape, and perhaps the type and other arguments."""
    tests = [dequantized(flags, comment, spec, *data[:3], **dict(*data[3:])) for flags, comment, *data in rows]
    return group(rules, ORACLE, tests, spec=named(spec))


def dequantize_groups() -> list[Json]:
    """Orders of operations, output types, specials, layouts with poisoned padding, and the inverse transform."""
    every = DirectionData(np.array([oracle.pack(range(16), 4)], np.uint8), np.array([[0x37]], np.uint8), floats([3.3]))
    small = DirectionData(
        np.array([[0x21, 0xA7, 0, 0, 0, 0, 0, 0]], np.uint8), np.array([[0x01]], np.uint8), floats([2.0**-118])
    )
    one = (1, 16)
    nvfp4 = [
        *(("Bytes", f"codes 0 to 15, as {to}", every, one, to) for to in BINARY),
        ("ScaleUnderflow", "scale 0 gives zeros, with signs", _with(every, scale=0x00), one),
        ("Specials", "scale 0x7f is NaN", _with(every, scale=0x7F), one),
        ("FlushToZero", "results are subnormal", small, one),
        ("FlushToZero DoubleRounding", "as bfloat16", small, one, "bfloat16"),
        ("Infinity", "past the largest float16", _with(every, scale=0x7E, amax=70000.0), one, "float16"),
        ("Infinity", "scale * amax overflows before the division", _with(every, scale=0x7E, amax=3e38), one),
        ("GlobalScale", "amax 0", _with(every, scale=0x7E, amax=0.0), one),
        *(
            (
                "OrderOfOperations DoubleRounding",
                f"(s * amax) first; amax {amax}",
                _with(every, scale=0x5D, amax=amax),
                one,
                "bfloat16",
            )
            for amax in (1.1, 0.7, 1234.5)
        ),
    ]
    ragged = oracle.quantize(spread((3, 18), "float32", 50), NVFP4)
    column = oracle.quantize(spread((3, 18), "float32", 50), NVFP4, "column")
    down: Json = {"direction": "column"}
    shapes = [
        ("RaggedTail SpareNibble", "3 x 17, a spare nibble that is not zero", _spoiled(ragged), (3, 17)),
        ("ColumnDirection", "the column direction of 3 x 18", column, (3, 18), "float32", down),
    ]
    padded = [
        ("Padding", f"padding of {name} holds {v:02x}", ragged, (3, 18), "float32", {"scale_layout": name, "poison": v})
        for name, v in (("tiled_8x4", 0x7F), ("tiled_8x4", 0x00), ("linear_padded", 0xFF), ("tiled_128x4", 0x7F))
    ]
    rows = oracle.quantize(spread((3, 16), "float32", 51, 9), NVFP4_ROW_SCALED)
    edges = np.array([[0x7F, 0x00, 0x01, 0xFE, 0xFF]], np.uint8)
    four = DirectionData(np.tile(every.data, (1, 10)), edges, None)
    eight = DirectionData(np.tile(_codes(0, 1, 7, 8, 0x38, 0x7E, 0x7F, 0x80, 0xB8, 0xFE, 0xFF), (1, 5)), edges, None)
    five = DirectionData(np.tile(_codes(0, 1, 4, 0x3C, 0x7B, 0x7C, 0x7D, 0x80, 0xFB, 0xFC, 0xFF), (1, 5)), edges, None)
    mx = (
        (MXFP4, "Specials FlushToZero", four, "float32"),
        (MXFP8_E4M3, "Specials FlushToZero", eight, "float32"),
        (MXFP8_E5M2, "Specials Infinity", five, "bfloat16"),
    )
    spun = oracle.quantize(spread((16, 2), "bfloat16", 52), NVFP4_RHT, "column")
    turned = [
        ("HadamardSigns", "transform undone, then rounded", spun, (16, 2), "bfloat16", {**down, "inverse": True}),
        ("HadamardSigns", "transform kept", spun, (16, 2), "float32", down),
    ]
    tile = oracle.quantize(spread((4, 18), "float32", 53), NVFP4_2D)
    misread, unknown = (
        {**dequantized("Refused", comment, NVFP4, ragged, (3, 18)), "scale_layout": name, "expected": refused(*why)}
        for comment, name, why in (
            ("linear scales called tiled", "tiled_8x4", ("ShapeError", "LAY-60")),
            ("a layout of no name", "swizzled", ("LayoutError", "LAY-59")),
        )
    )
    return [
        _group("DEQ-1 DEQ-3 NUM-1", NVFP4, nvfp4),
        _group("DEQ-4 PACK-2", NVFP4, shapes),
        _group("LAY-6", NVFP4, padded),
        _group("DEQ-1 GLB-5", NVFP4_ROW_SCALED, [("RowScale", "rows of different magnitude", rows, (3, 16))]),
        *(_peer_group(name, order) for name, order in PEER_ORDERS.items()),
        *(
            _group("DEQ-2 E8M0-4", spec, [(flags, "scale bytes 127, 0, 1, 254, 255", data, (1, 160), to)])
            for spec, flags, data, to in mx
        ),
        _group("DEQ-4 HAD-6", NVFP4_RHT, turned),
        _group("DEQ-1 LAY-10", NVFP4_2D, [("SharedTile", "a tile's byte stands in every row", tile, (4, 18))]),
        group("LAY-59 LAY-60", STATED, [misread, unknown], spec=named(NVFP4)),
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
