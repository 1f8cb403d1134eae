"""Measure the CUDA backend as ratios to the copy bandwidth of the same device, in one run.

Every case runs from a CUDA graph over rotating buffers that do not fit the cache together; the median of the replays
counts. Its ratio is the time that its least bytes (inputs once per needed pass, outputs once) take at the speed of a
large copy, divided by its own time. A plain bfloat16 copy of the same shape stands beside it: below LARGE bytes of
input, no goal is more than what that copy reaches, less 10 points.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "backends")]

import fp4ref  # noqa: E402
from fp4ref.arguments import buffer_shapes  # noqa: E402
from fp4ref.formats import STOCHASTIC_E2M1  # noqa: E402
from fp4ref.layout import layout as named_layout  # noqa: E402
from fp4ref.quantized import DirectionData, Directions  # noqa: E402
from fp4ref.registry import Call  # noqa: E402
from fp4ref_cuda import operations  # noqa: E402

SHAPES = ("8192x2560", "8192x5120", "8192x10240", "8192x11328", "11328x8192", "16384x7168", "14336x16384")
LAYOUT = "tiled_128x4"
LARGE = 160_000_000  # bytes of input from which the goals hold as they stand
GOALS = {
    "nvfp4 row, amax given": 0.92,
    "nvfp4 amax + row": 0.90,
    "nvfp4-rht amax + row + column": 0.85,
    "mxfp8 row + column": 0.90,
    "dequantize, tiled_128x4": 0.92,
    "dequantize, linear": 0.92,
    "stochastic row, bits and amax given": 0.60,
    "stochastic row + column, bits and amax given": 0.60,
    "stochastic row + hadamard column, bits and amax given": 0.60,
    "random_bits": 0.60,
    "4over6 row, amax given": 0.60,
    "row-scaled row": 0.60,
}
APART = "nvfp4-rht, kernels apart"
TORCHAO = "torchao amax + row"
FASTER = {"nvfp4-rht amax + row + column": (APART, 1.36), "nvfp4 amax + row": (TORCHAO, 2.7)}
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


def buffers(spec: fp4ref.Spec, shape: tuple[int, int], direction: Any, layout: str = LAYOUT) -> DirectionData:
    """Return outputs of one direction, to be filled."""
    kinds = (torch.uint8, torch.uint8, torch.float32)
    return DirectionData(
        *(
            None if size is None else torch.zeros(tuple(size), dtype=kind, device="cuda")
            for size, kind in zip(buffer_shapes(spec, shape, direction, layout), kinds, strict=True)
        )
    )


def size(spec: fp4ref.Spec) -> float:
    """Bytes per element of one direction's codes and scales."""
    return spec.element.format.bits / 8 + 1 / spec.block.columns


def call(x: Any, spec: fp4ref.Spec, direction: str = "row", layout: str = LAYOUT) -> Call:
    """Describe a call that quantizes x."""
    kind, form = str(x.dtype).removeprefix("torch."), named_layout(layout)
    return Call("quantize", spec, kind, direction, layout=form, device="cuda", shape=tuple(x.shape))  # type: ignore[arg-type]


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
        return lambda: operations.quantize(call(x, nvfp4), x, given, None, out)

    yield "nvfp4 row, amax given", 2 + size(nvfp4), [row(x, o, amax) for x, o in zip(xs, rows, strict=True)]
    yield "nvfp4 amax + row", 4 + size(nvfp4), [row(x, o, None) for x, o in zip(xs, rows, strict=True)]

    def both(spec: fp4ref.Spec, path: str | None = None) -> list[Run]:
        outs = [Directions(buffers(spec, shape, "row"), buffers(spec, shape, "column")) for _ in xs]
        more = {} if path is None else {"path": path}
        return [
            lambda x=x, o=o: operations.quantize_both(call(x, spec, "both"), x, out=o, **more)
            for x, o in zip(xs, outs, strict=True)
        ]

    yield "nvfp4 amax + row + column", 4 + 2 * size(nvfp4), both(nvfp4)
    yield "nvfp4-rht amax + row + column", 4 + 2 * size(rht), both(rht)
    yield APART, 4 + 2 * size(rht), apart(shape, xs)
    yield "nvfp4-rht, general kernel", 4 + 2 * size(rht), both(rht, "tiles")
    yield "mxfp8 row + column", 2 + 2 * size(mxfp8), both(mxfp8)
    for layout in ("tiled_128x4", "linear"):
        quantized = [operations.quantize(call(x, nvfp4, layout=layout), x, None, None, None) for x in xs]

        def back(q: DirectionData, out: Any, layout: str = layout) -> Run:
            form = named_layout(layout)
            decoding = Call("dequantize", nvfp4, "bfloat16", to="bfloat16", layout=form, device="cuda", shape=shape)
            return lambda: operations.dequantize(decoding, q, out)

        yield f"dequantize, {layout}", 2 + size(nvfp4), [back(q, y) for q, y in zip(quantized, copies, strict=True)]


def more_cases(shape: tuple[int, int], xs: list[Any]) -> list[tuple[str, float, list[Run]]]:
    """Stochastic rounding, its random bytes, 4over6 and row scaling."""
    stochastic = fp4ref.NVFP4.replace(name="nvfp4 stochastic", element=STOCHASTIC_E2M1)
    amax = torch.ones(1, device="cuda") * 5
    bits = [torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda") for _ in xs]

    def quantize(spec: fp4ref.Spec, given: Any, drawn: list[Any]) -> list[Run]:
        outs = [buffers(spec, shape, "row") for _ in xs]
        return [
            lambda x=x, b=b, o=o: operations.quantize(call(x, spec), x, given, b, o)
            for x, b, o in zip(xs, drawn, outs, strict=True)
        ]

    def quantize_both(spec: fp4ref.Spec) -> list[Run]:
        columns = [torch.randint(0, 256, shape[::-1], dtype=torch.uint8, device="cuda") for _ in xs]
        outs = [Directions(buffers(spec, shape, "row"), buffers(spec, shape, "column")) for _ in xs]
        given = Directions(amax, amax * 2)
        return [
            lambda x=x, b=b, c=c, o=o: operations.quantize_both(call(x, spec, "both"), x, given, Directions(b, c), o)
            for x, b, c, o in zip(xs, bits, columns, outs, strict=True)
        ]

    def draw(out: Any) -> Run:
        return lambda: fp4ref.random_bits(shape, device=out.device, backend="cuda", out=out)

    none: list[Any] = [None] * len(xs)
    turned = stochastic.replace(name="nvfp4-rht stochastic", hadamard=fp4ref.NVFP4_RHT.hadamard)
    four, by_row = fp4ref.NVFP4_4OVER6, fp4ref.NVFP4_ROW_SCALED
    return [
        ("stochastic row, bits and amax given", 3 + size(stochastic), quantize(stochastic, amax, bits)),
        ("stochastic row + column, bits and amax given", 4 + 2 * size(stochastic), quantize_both(stochastic)),
        ("stochastic row + hadamard column, bits and amax given", 4 + 2 * size(turned), quantize_both(turned)),
        ("random_bits", 1, [draw(b) for b in bits]),
        ("4over6 row, amax given", 2 + size(four), quantize(four, amax, none)),
        ("row-scaled row", 4 + size(by_row), quantize(by_row, None, none)),
    ]


def apart(shape: tuple[int, int], xs: list[Any]) -> list[Run]:
    """Rows and transformed columns by separate kernels: transform, maximum, codes with linear scales, tiled scales."""
    nvfp4, rht, runs = fp4ref.NVFP4, fp4ref.NVFP4_RHT, []
    turned = torch.empty(shape[1], shape[0], dtype=torch.bfloat16, device="cuda")
    for x in xs:
        halves = []
        for y, form in ((x, shape), (turned, (shape[1], shape[0]))):
            linear, tiled = buffers(nvfp4, form, "row", "linear"), buffers(nvfp4, form, "row").scales
            halves.append((y, linear, tiled, (form[0], form[1] // 16)))

        def run(x: Any = x, halves: Any = tuple(halves)) -> None:
            operations.hadamard(x, rht, turned)
            for y, linear, tiled, blocks in halves:
                operations.quantize(call(y, nvfp4, layout="linear"), y, None, None, linear)
                operations.convert_layout([linear.scales], [blocks], "linear", LAYOUT, [tiled])

        runs.append(run)
    return runs


def torchao_case(xs: list[Any], wanted: bool) -> list[tuple[str, float, list[Run]]]:
    """torchao's compiled quantizer with its maximum and its tiled scales, where it is wanted and installed."""
    if not wanted:
        return []
    try:
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
    except ImportError as missing:
        print(f"no torchao: {missing}")
        return []

    def quantize(x: Any) -> Any:
        scale = per_tensor_amax_to_scale(x.abs().max())
        q = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale, is_swizzled_scales=True)
        return q.qdata, q.scale

    compiled = torch.compile(quantize, dynamic=False)
    return [(TORCHAO, 4 + size(fp4ref.NVFP4), [lambda x=x: compiled(x) for x in xs])]


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
    results: list[dict[str, Any]] = []
    for text in shapes.split(","):
        shape = tuple(map(int, text.split("x")))
        count = shape[0] * shape[1]
        xs = [
            torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(max(2, -(-ROTATED // (2 * count))))
        ]
        here: dict[str, dict[str, Any]] = {}
        for name, least, runs in [*cases(shape, xs), *more_cases(shape, xs), *torchao_case(xs, torchao)]:
            if name != "copy" and only and not any(part in name for part in only.split(",")):
                continue
            time = seconds(runs, repeat)
            plan = None if name in {"copy", TORCHAO, APART} else operations.last_plan()
            row = {"shape": text, "case": name, "us": time * 1e6, "of_copy_bandwidth": least * count / bandwidth / time}
            row["path"] = f"{plan.path}: {', '.join(plan.kernels)}" if plan else ""
            here[name] = row
            if name in GOALS and "apart" not in row["path"]:  # the goals of what is fused hold where it is eligible
                at_most = 1.0 if 2 * count >= LARGE else here["copy"]["of_copy_bandwidth"] - 0.10
                row["goal"] = min(GOALS[name], at_most)
            results.append(row)
            print(line(row), flush=True)
        for name, (other, goal) in FASTER.items():
            if name in here and other in here and "apart" not in here[name]["path"]:
                ratio = here[other]["us"] / here[name]["us"]
                results.append({"shape": text, "case": f"{name} against {other}", "ratio": ratio, "goal": goal})
                print(f"{text:12} {name} against {other}: {ratio:.2f}x, goal {goal}x{verdict(ratio, goal)}", flush=True)
        del xs, here
        torch.cuda.empty_cache()
    if path:
        path.write_text(json.dumps({"copy": bandwidth, "results": results}, indent=1))


def verdict(got: float, goal: float) -> str:
    """Return True if a goal is met."""
    return ", met" if got >= goal else ", missed"


def line(row: dict[str, Any]) -> str:
    """One measurement, to be read."""
    ratio = row["of_copy_bandwidth"]
    goal = f"goal {row['goal']:.1%}{verdict(ratio, row['goal'])}" if "goal" in row else ""
    name = f"{row['shape']:12} {row['case']:32}"
    return f"{name} {row['us']:8.1f} us  {ratio:6.1%} of copy bandwidth  {goal:22} {row['path']}"


if __name__ == "__main__":
    main()
