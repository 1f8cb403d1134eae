"""The example of chapter 00: one small tensor from its elements to its bytes and back, every number in hexadecimal.

Intermediate numbers are computed by the formulas of the chapters, bytes by the golden model; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.api import dequantize, quantize
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, F, Floats
from fp4ref.layout import TILED_128X4
from fp4ref.quantized import DIRECTIONS, Direction, Quantized
from fp4ref.specs import NVFP4
from fp4ref.standard import formulas
from fp4ref.standard.tables import hexadecimal, table

ROWS, COLUMNS, WIDTH = 2, 18, 16
STEPS = (
    ("sixth", "g * fp32(1/6)"),
    ("t", "min(a * sixth, FLT_MAX)"),
    ("dec", "1 / g"),
    ("prod", "s * dec"),
    ("enc", "min(1 / prod, FLT_MAX)"),
)
INTRODUCTION = "x is a bfloat16 tensor [2, 18]: 0.1, -0.0, 0.3, -0.4, 0.5, ... -3.6, rounded. Its bits, row by row:\n"
EXPLANATION = """The spec is `nvfp4`, both directions, the scales in `tiled_128x4`. The global amax is {}, and S_enc is
{}. The column direction is [18, 2]: each of its blocks holds two elements and fourteen zeros of padding.
"""
SHOWN = ("a", "sixth", "t", "byte", "s", "dec", "prod", "enc")


def elements() -> NDArray[Any]:
    """Return the tensor: 0.1, -0.2, 0.3, ... 3.6 as bfloat16, but -0 in place of -0.2."""
    tenths = np.arange(1, ROWS * COLUMNS + 1) / 10
    tenths[1::2] *= -1
    tenths[1] = -0.0
    return tenths.reshape(ROWS, COLUMNS).astype(ml_dtypes.bfloat16)


def quantized() -> Quantized:
    """Return the bytes of both directions, the scales in tiles."""
    return quantize(elements(), NVFP4, directions="both", scale_layout=TILED_128X4.name, backend="numpy")


def steps(block: Floats, g: np.float32) -> dict[str, Any]:
    """Return the numbers between a block and its codes, by name. Rules: BLK-2, BLK-3, BLK-4, BLK-5."""
    names: dict[str, Any] = {"g": g, "a": np.abs(block).max(initial=F(0))}
    for name, formula in STEPS:
        if name == "dec":
            names["byte"] = CUDA_E4M3.encode(np.asarray(names["t"], F))
            names["s"] = CUDA_E4M3.decode(names["byte"])
        names[name] = formulas.value(formula, names)
    names["y"] = formulas.value("x * enc", {"x": block, "enc": names["enc"]})
    names["code"] = CUDA_E2M1.encode(names["y"])
    return names


def blocks(direction: Direction) -> Iterator[tuple[int, int, Floats]]:
    """Yield row, block and elements of each block of a direction, without padding."""
    matrix = elements().astype(F)
    matrix = matrix if direction == "row" else matrix.T
    for row, values in enumerate(matrix):
        for block in range(-(-matrix.shape[1] // WIDTH)):
            yield row, block, values[block * WIDTH : (block + 1) * WIDTH]


def example() -> str:
    """Return the example's text and tables. Rules: RES-1."""
    q = quantized()
    x, amax = elements(), q.direction("row")[0].amax[0]
    g = formulas.value("min(2688 / G, FLT_MAX)", {"G": amax})
    parts = [INTRODUCTION, _lines(x.view(np.uint16), 4), EXPLANATION.format(hexadecimal(amax), hexadecimal(g))]
    for direction in DIRECTIONS:
        parts += [_intermediates(direction, g), _bytes(q, direction)]
    return "\n".join(parts)


def _lines(words: NDArray[Any], digits: int) -> str:
    rows = (" ".join(f"{word:0{digits}X}" for word in row) for row in words)
    return "```\n" + "\n".join(rows) + "\n```\n"


def _intermediates(direction: Direction, g: np.float32) -> str:
    scales, codes = [], []
    for row, block, values in blocks(direction):
        found, name = steps(values, g), f"{direction} {row}, {block}"
        y = " ".join(f"{word:08X}" for word in found["y"].view(np.uint32))
        scales.append([name, *(f"`{int(found[n]):02X}`" if n == "byte" else hexadecimal(found[n]) for n in SHOWN)])
        codes.append([name, f"`{y}`", f"`{''.join(f'{c:X}' for c in found['code'])}`"])
    return f"{table(('block', *SHOWN), scales)}\n{table(('block', 'y', 'codes'), codes)}"


def _bytes(q: Quantized, direction: Direction) -> str:
    data = q.direction(direction)[0]
    stored = data.scales.reshape(-1)
    places = ", ".join(f"{offset}: `{stored[offset]:02X}`" for offset in np.flatnonzero(stored))
    packed = " ".join(row.tobytes().hex() for row in data.data)
    values = dequantize(q, direction=direction, backend="numpy")
    head = f"Data of the {direction} direction, {list(data.data.shape)}, a row of bytes in each word: `{packed}`."
    scales = f"The scale buffer has the shape {list(data.scales.shape)}; its bytes that are not 0: {places}."
    return f"{head}\n{scales}\nDequantized to float32, by DEQ-1:\n\n{_lines(values.view(np.uint32), 8)}"
