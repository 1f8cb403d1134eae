"""Measure the golden model as ratios to a memory copy of its input, in one run.

Each case alternates with a two-thread copy of the same tensor, A B A B, and the medians of both give the ratio; so a
machine that slows down slows both. Peak memory is what NumPy allocates beyond the input and the result, from a run of
its own.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import click
import ml_dtypes
import numpy as np
from calls import copier, seconds
from numpy.typing import NDArray

import fp4ref

LIMIT = 335  # times the copy, for the row quantize of NVFP4
BASELINE = "nvfp4 row"
MIB = 1 << 20


def cases(x: NDArray[Any]) -> dict[str, Callable[[], Any]]:
    """Return the functions to measure, by name; their inputs are made here, outside the measurement."""
    quantized = fp4ref.quantize(x, fp4ref.NVFP4)

    def quantize(spec: fp4ref.Spec, directions: str = "row") -> Callable[[], Any]:
        return lambda: fp4ref.quantize(x, spec, directions)

    return {
        BASELINE: quantize(fp4ref.NVFP4),
        "nvfp4 both": quantize(fp4ref.NVFP4, "both"),
        "nvfp4-2d row": quantize(fp4ref.NVFP4_2D),
        "nvfp4-row-scaled row": quantize(fp4ref.NVFP4_ROW_SCALED),
        "nvfp4-4over6 row": quantize(fp4ref.NVFP4_4OVER6),
        "nvfp4-rht column": quantize(fp4ref.NVFP4_RHT, "column"),
        "mxfp8-e4m3 row": quantize(fp4ref.MXFP8_E4M3),
        "mxfp4 row": quantize(fp4ref.MXFP4),
        "dequantize nvfp4 to bfloat16": lambda: fp4ref.dequantize(quantized, "bfloat16"),
        "to_layout tiled_128x4": lambda: fp4ref.to_layout(quantized, "tiled_128x4"),
    }


def peak_bytes(function: Callable[[], Any]) -> int:
    """Return the most memory that was held beyond the result."""
    tracemalloc.start()
    try:
        result = function()
        held, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
    return peak - held


@click.command()
@click.option("--rows", default=4096, show_default=True)
@click.option("--columns", default=8192, show_default=True)
@click.option("--repeat", default=5, show_default=True, help="Measurements of each case.")
@click.option("--only", default="", help="Cases whose name contains this.")
@click.option("--check", is_flag=True, help=f"Fail if {BASELINE} takes more than {LIMIT} times the copy.")
def main(rows: int, columns: int, repeat: int, only: str, check: bool) -> None:
    """Print the time of each case as a multiple of a two-thread copy of the bfloat16 input."""
    x = np.random.default_rng(0).standard_normal((rows, columns), np.float32).astype(ml_dtypes.bfloat16)
    print(f"{'case':30}{'ratio':>8}{'ms':>10}{'copy ms':>10}{'extra peak':>13}{'of input':>11}")
    ratios = {}
    with ThreadPoolExecutor(2) as pool:
        copy = copier(x, pool, 2)
        for name, function in cases(x).items():
            if only not in name:
                continue
            times = [(seconds(copy), seconds(function)) for _ in range(repeat)]
            base, taken = (median(column) for column in zip(*times, strict=True))
            peak = peak_bytes(function)
            ratios[name] = taken / base
            print(f"{name:30}{ratios[name]:7.1f}x{1e3 * taken:10.1f}{1e3 * base:10.1f}", end="")
            print(f"{peak / MIB:9.1f} MiB{peak / x.nbytes:10.0%}")
    if check and BASELINE not in ratios:
        raise click.UsageError(f"--check needs the case {BASELINE}")
    if check and ratios[BASELINE] > LIMIT:
        raise click.ClickException(f"{BASELINE}: {ratios[BASELINE]:.0f}x the copy, need at most {LIMIT}x")


if __name__ == "__main__":
    main()
