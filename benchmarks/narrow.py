"""Measure narrow matrices on the native CPU backend as ratios to wide ones, by processor time, in one run.

Each call takes turns with the same call on rows of 4096 elements and as many elements, so a machine that slows down
slows both. A ratio is by element, and by block: a row of 16 elements fills half a block of 32, and a row of one element
is a block, which costs what a block costs. Times are the processor's, of all threads: a busy machine stretches them
less than the clock's. Results go into buffers that exist already.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import numpy as np
from calls import TYPES, dequantizer
from setting import write

import fp4ref

SPECS = ("nvfp4", "mxfp4", "mxfp8-e4m3")
WIDE = 4096
SHARES = {16: 1, 32: 1, 1: 32}  # by width, the elements of a wide matrix for one of the narrow one


class NarrowCase(NamedTuple):
    """A call on a matrix of one width, the same call on wide rows, and how many blocks and elements each has."""

    name: str
    run: Callable[[], Any]
    wide: Callable[[], Any]
    elements: tuple[int, int]
    blocks: tuple[int, int]


def cases(elements: int) -> Iterator[NarrowCase]:
    """Yield every case; what it needs is made here, outside the measurement."""
    random = np.random.default_rng(0)
    for width, share in SHARES.items():
        shape = elements // share // width, width
        like = max(elements // share // WIDE, 1), WIDE
        for dtype, kind in TYPES.items():
            narrow, wide = (random.standard_normal(each, np.float32).astype(kind) for each in (shape, like))
            for name in SPECS:
                spec = fp4ref.profiles[name]
                counts = narrow.size, wide.size
                blocks = shape[0] * -(-width // spec.block.columns), like[0] * -(-WIDE // spec.block.columns)
                made = [fp4ref.quantize(x, spec, backend="cpu") for x in (narrow, wide)]
                title = f"{name} {dtype} [{shape[0]}, {width}]"
                pair = [_quantize(x, out) for x, out in zip((narrow, wide), made, strict=True)]
                yield NarrowCase(f"quantize {title}", *pair, counts, blocks)
                yield NarrowCase(f"dequantize {title}", *[dequantizer(q, dtype) for q in made], counts, blocks)


def _quantize(x: Any, out: fp4ref.Quantized) -> Callable[[], Any]:
    return lambda: fp4ref.quantize(x, out.spec, out=out, backend="cpu")


def seconds(function: Callable[[], Any]) -> float:
    """Processor time of one call, of all threads."""
    start = time.process_time()
    function()
    return time.process_time() - start


@click.command()
@click.option(
    "--elements", default=1 << 23, show_default=True, help="Elements of a matrix; one column has a 32nd of them."
)
@click.option("--repeat", default=9, show_default=True, help="Rounds.")
@click.option("--only", default="", help="Cases whose name contains this.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write a JSON file.")
def main(elements: int, repeat: int, only: str, path: Path | None) -> None:
    """Print the time of each case as a multiple of that on wide rows, by element and by block."""
    print(f"{'case':48}{'by element':>12}{'by block':>10}{'ns a block':>12}")
    records = []
    for case in cases(elements):
        if only not in case.name:
            continue
        case.run()
        case.wide()
        taken = [(seconds(case.run), seconds(case.wide)) for _ in range(repeat)]
        narrow, wide = (median(each) for each in zip(*taken, strict=True))
        by = [narrow / count / (wide / other) for count, other in (case.elements, case.blocks)]
        print(f"{case.name:48}{by[0]:11.2f}x{by[1]:9.2f}x{1e9 * narrow / case.blocks[0]:12.1f}")
        record = {"case": case.name, "ratio": by[0], "ratio_by_block": by[1], "seconds": narrow, "wide_seconds": wide}
        records.append(record)
    if path:
        about = {"machine": platform.machine(), "time": "of the processor, all threads", "elements": elements}
        write(path, records, "cpu", **about)


if __name__ == "__main__":
    main()
