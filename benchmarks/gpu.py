"""Measure the CUDA backend as ratios to the copy bandwidth of the same device, in one run.

Every case runs from a CUDA graph over rotating buffers that do not fit the cache together; the median of the replays
counts. Its ratio is the time that its least bytes (inputs once per needed pass, outputs once) take at the speed of a
large copy, divided by its own time. A plain bfloat16 copy of the same shape stands beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "backends")]

import fp4ref  # noqa: E402
from fp4ref import arrays  # noqa: E402
from fp4ref.api import buffer_shapes  # noqa: E402
from fp4ref.quantized import DirectionData, Directions  # noqa: E402
from fp4ref_cuda import operations  # noqa: E402

SHAPES = ("8192x2560", "8192x5120", "8192x10240", "8192x11328", "11328x8192", "16384x7168", "14336x16384")
LAYOUT = "tiled_128x4"
ROTATED = 400_000_000  # bytes of input that do not fit a cache
Run = Callable[[], Any]


def seconds(runs: list[Run], repeat: int) -> float:
    """Median time of one call, over graphs that hold several rounds of all of them."""
    for run in runs:
        run()
    torch.cuda.synchronize()
    rounds = max(1, 24 // len(runs))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for run in runs:
                run()
    graph.replay()
    times = []
    for _ in range(repeat):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3 / rounds / len(runs))
    return median(times)


def copy_bandwidth(repeat: int) -> float:
    """Bytes per second, read and written, of a copy of 4 GB."""
    x = torch.randn(1 << 30, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    times = []
    for _ in range(repeat + 2):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        y.copy_(x)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return 8 * x.numel() / median(times[2:])


def buffers(spec: fp4ref.Spec, shape: tuple[int, int], direction: Any) -> DirectionData:
    """Outputs of one direction, to be filled."""
    kinds = (torch.uint8, torch.uint8, torch.float32)
    return DirectionData(
        *(
            None if size is None else torch.zeros(tuple(size), dtype=kind, device="cuda")
            for size, kind in zip(buffer_shapes(spec, shape, direction, LAYOUT), kinds, strict=True)
        )
    )


def size(spec: fp4ref.Spec) -> float:
    """Bytes per element of one direction's codes and scales."""
    return spec.element.format.bits / 8 + 1 / spec.block.columns


def cases(shape: tuple[int, int], xs: list[Any]) -> Iterator[tuple[str, float, list[Run]]]:
    """Name, least bytes per element, and a call per rotated input."""
    nvfp4, rht, mxfp8 = fp4ref.NVFP4, fp4ref.NVFP4_RHT, fp4ref.MXFP8_E4M3
    copies = [torch.empty_like(x) for x in xs]
    yield "copy", 4, [lambda x=x, y=y: y.copy_(x) for x, y in zip(xs, copies, strict=True)]
    amax = torch.ones(1, device="cuda") * 5
    found = [torch.zeros(1, device="cuda") for _ in xs]
    yield "amax", 2, [lambda x=x, y=y: operations.amax(x, nvfp4, "row", y) for x, y in zip(xs, found, strict=True)]
    rows = [buffers(nvfp4, shape, "row") for _ in xs]

    def row(x: Any, out: DirectionData, given: Any) -> Run:
        return lambda: operations.quantize(x, nvfp4, "row", LAYOUT, given, None, out)

    yield "nvfp4 row, amax given", 2 + size(nvfp4), [row(x, o, amax) for x, o in zip(xs, rows, strict=True)]
    yield "nvfp4 amax + row", 4 + size(nvfp4), [row(x, o, None) for x, o in zip(xs, rows, strict=True)]

    def both(spec: fp4ref.Spec, path: str | None = None) -> list[Run]:
        outs = [Directions(buffers(spec, shape, "row"), buffers(spec, shape, "column")) for _ in xs]
        more = {} if path is None else {"path": path}
        return [
            lambda x=x, o=o: operations.quantize_both(x, spec, LAYOUT, out=o, **more)
            for x, o in zip(xs, outs, strict=True)
        ]

    yield "nvfp4 amax + row + column", 4 + 2 * size(nvfp4), both(nvfp4)
    yield "nvfp4-rht amax + row + column", 4 + 2 * size(rht), both(rht)
    yield "nvfp4-rht the same, unfused", 4 + 2 * size(rht), both(rht, "tiles")
    yield "mxfp8 row + column", 2 + 2 * size(mxfp8), both(mxfp8)
    bfloat16 = np.dtype(arrays.INPUT_DTYPES["bfloat16"])
    for layout in ("tiled_128x4", "linear"):
        quantized = [operations.quantize(x, nvfp4, "row", layout, None, None, None) for x in xs]

        def back(q: DirectionData, out: Any, layout: str = layout) -> Run:
            return lambda: operations.dequantize(q, shape, nvfp4, layout, bfloat16, bfloat16, False, out)

        yield f"dequantize, {layout}", 2 + size(nvfp4), [back(q, y) for q, y in zip(quantized, copies, strict=True)]


def torchao_case(xs: list[Any]) -> list[Run] | None:
    """torchao's compiled quantizer with its maximum and its tiled scales, where it is installed."""
    try:
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    except ImportError:
        return None

    def quantize(x: Any) -> Any:
        scale = per_tensor_amax_to_scale(x.abs().max())
        q = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale, is_swizzled_scales=True)
        return q.qdata, q.scale

    compiled = torch.compile(quantize, dynamic=False)
    return [lambda x=x: compiled(x) for x in xs]


@click.command()
@click.option("--shapes", default=",".join(SHAPES), show_default=True)
@click.option("--only", default="", help="Run the cases whose names contain one of these, separated by commas.")
@click.option("--repeat", default=15, show_default=True)
@click.option("--torchao", is_flag=True, help="Measure torchao too, if it is installed.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")
def main(shapes: str, only: str, repeat: int, torchao: bool, path: Path | None) -> None:
    """Print time, ratio to copy bandwidth, and ratio to a plain copy of the same shape."""
    bandwidth = copy_bandwidth(repeat)
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s, read and written")
    results = []
    for text in shapes.split(","):
        shape = tuple(map(int, text.split("x")))
        count = shape[0] * shape[1]
        xs = [
            torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(max(2, -(-ROTATED // (2 * count))))
        ]
        for name, least, runs in cases(shape, xs):
            if name != "copy" and only and not any(part in name for part in only.split(",")):
                continue
            time = seconds(runs, repeat)
            ratio = least * count / bandwidth / time
            plan = operations.last_plan()
            ran = "" if name == "copy" or plan is None else f"{plan.path}: {', '.join(plan.kernels)}"
            results.append({"shape": text, "case": name, "us": time * 1e6, "of_copy_bandwidth": ratio, "path": ran})
            print(f"{text:12} {name:32} {time * 1e6:8.1f} us  {ratio:6.1%} of copy bandwidth  {ran}", flush=True)
        if torchao and (runs := torchao_case(xs)) is not None:
            time = seconds(runs, repeat)
            results.append({"shape": text, "case": "torchao amax + row", "us": time * 1e6})
            print(f"{text:12} {'torchao amax + row':32} {time * 1e6:8.1f} us", flush=True)
        del xs
        torch.cuda.empty_cache()
    if path:
        path.write_text(json.dumps({"copy": bandwidth, "results": results}, indent=1))


if __name__ == "__main__":
    main()
