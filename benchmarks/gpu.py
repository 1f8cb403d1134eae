"""Measure the CUDA backend as ratios to the copy bandwidth of the same device, in one run.

Every case runs from a CUDA graph over rotating buffers that do not fit the cache together. Large copies are timed
between the replays of every case, because their speed drifts during a run. The ratio of a case is the time that its
least bytes (inputs once per needed pass, outputs once) take at the speed of the copies around it, divided by its own
time. The median over all replays counts; each case is measured at several placements of its buffers, and the lowest and
highest median of a placement are written beside it. A plain bfloat16 copy of the same shape is one of the cases: below
LARGE bytes of input, no goal is more than what that copy reaches, less 10 points.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "backends")]

from setting import setting, write  # noqa: E402

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
COPIES = 4
ROTATED = 400_000_000  # bytes of input that do not fit a cache
Run = Callable[[], Any]


class Measured(NamedTuple):
    """Microseconds of one call, and the share of copy bandwidth that each replay reached."""

    us: float
    shares: list[float]


def captured(runs: list[Run]) -> tuple[Any, int]:
    """Return a graph that holds several rounds of all calls, and how many calls that are."""
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
    return graph, rounds * len(runs)


def timed(act: Run) -> float:
    """Return the seconds that the device takes."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    act()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


class LargeCopy:
    """Copies of 1 GB, whose bytes per second, read and written, are the measure.

    COPIES of them follow each other, as the calls of a case do: a single one, for which the device waited, took up to
    10 % longer.
    """

    def __init__(self) -> None:
        self.x = torch.randn(1 << 28, dtype=torch.float32, device="cuda")
        self.y = torch.empty_like(self.x)
        self.speeds: list[float] = []
        for _ in range(3):
            self.bandwidth()
        self.speeds.clear()

    def bandwidth(self) -> float:
        """Copy once more."""

        def copies() -> None:
            for _ in range(COPIES):
                self.y.copy_(self.x)

        self.speeds.append(COPIES * 8 * self.x.numel() / timed(copies))
        return self.speeds[-1]


def measured(runs: list[Run], least: float, repeat: int, large: LargeCopy) -> Measured:
    """Time a case between copies. least: bytes that one call moves at least."""
    graph, calls = captured(runs)
    times, shares, before = [], [], large.bandwidth()
    for _ in range(repeat):
        times.append(timed(graph.replay) / calls)
        after = large.bandwidth()
        shares.append(least / times[-1] / ((before + after) / 2))
        before = after
    return Measured(median(times) * 1e6, shares)


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

    yield "nvfp4 amax + row + column", 4 + 2 * size(nvfp4), both_of(nvfp4, shape, xs)
    yield "nvfp4-rht amax + row + column", 4 + 2 * size(rht), both_of(rht, shape, xs)
    yield APART, 4 + 2 * size(rht), apart(shape, xs)
    yield "nvfp4-rht, general kernel", 4 + 2 * size(rht), both_of(rht, shape, xs, path="tiles")
    yield "mxfp8 row + column", 2 + 2 * size(mxfp8), both_of(mxfp8, shape, xs)
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


def off_the_fast_path(shape: tuple[int, int], xs: list[Any]) -> Iterator[tuple[str, float, list[Run]]]:
    """Yield other input types, specifications, directions and layouts: what the general kernels serve, or did."""
    wide = [x.float() for x in xs]
    for name, kind, inputs in (("float32", 4, wide), ("float16", 2, [x.half() for x in xs])):
        yield f"nvfp4 amax + row, {name}", 2 * kind + size(fp4ref.NVFP4), rows_of(fp4ref.NVFP4, shape, inputs)
    del wide
    for spec, passes in ((fp4ref.NVFP4_2D, 2), (fp4ref.MXFP4, 1), (fp4ref.MXFP6_E3M2, 1), (fp4ref.MXFP8_E4M3, 1)):
        for layout in (LAYOUT, "linear"):
            name = f"{spec.name} row, {layout}" if passes == 1 else f"{spec.name} amax + row, {layout}"
            yield name, 2 * passes + size(spec), rows_of(spec, shape, xs, layout)
    for spec, passes, layout in (
        (fp4ref.NVFP4_RHT, 2, "linear"),
        (fp4ref.MXFP8_E4M3, 1, "linear"),
        (fp4ref.MXFP4, 1, LAYOUT),
        (fp4ref.NVFP4_2D, 2, LAYOUT),
    ):
        name = f"{spec.name} {'amax + ' * (passes - 1)}row + column, {layout}"
        yield name, 2 * passes + 2 * size(spec), both_of(spec, shape, xs, layout)
    outs = [torch.empty_like(x) for x in xs]
    for spec, layout in ((fp4ref.MXFP8_E4M3, LAYOUT), (fp4ref.MXFP8_E4M3, "linear"), (fp4ref.MXFP4, LAYOUT)):
        made = [operations.quantize(call(x, spec, layout=layout), x, None, None, None) for x in xs]
        form = named_layout(layout)
        decoding = Call("dequantize", spec, "bfloat16", to="bfloat16", layout=form, device="cuda", shape=shape)
        runs = [lambda q=q, y=y, c=decoding: operations.dequantize(c, q, y) for q, y in zip(made, outs, strict=True)]
        yield f"{spec.name} dequantize, {layout}", 2 + size(spec), runs


def both_of(
    spec: fp4ref.Spec, shape: tuple[int, int], xs: list[Any], layout: str = LAYOUT, path: str | None = None
) -> list[Run]:
    """Return calls that quantize both directions into given buffers."""
    outs = [Directions(buffers(spec, shape, "row", layout), buffers(spec, shape, "column", layout)) for _ in xs]
    record, more = call(xs[0], spec, "both", layout), {} if path is None else {"path": path}
    return [lambda x=x, o=o: operations.quantize_both(record, x, out=o, **more) for x, o in zip(xs, outs, strict=True)]


def rows_of(spec: fp4ref.Spec, shape: tuple[int, int], xs: list[Any], layout: str = LAYOUT) -> list[Run]:
    """Return calls that quantize rows into given buffers."""
    outs = [buffers(spec, shape, "row", layout) for _ in xs]
    record = call(xs[0], spec, layout=layout)
    return [lambda x=x, o=o: operations.quantize(record, x, None, None, o) for x, o in zip(xs, outs, strict=True)]


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


def torchao_cases(xs: list[Any], wanted: bool) -> list[tuple[str, float, list[Run]]]:
    """Return torchao's compiled functions, where they are wanted and installed."""
    if not wanted:
        return []
    try:
        import torchao_functions as peer
    except ImportError as missing:
        print(f"no torchao: {missing}")
        return []

    def runs(function: Any, inputs: list[Any]) -> list[Run]:
        compiled = peer.compiled(function)
        return [lambda x=x: compiled(x) for x in inputs]

    made = [peer.mx(x) for x in xs]
    eight = size(fp4ref.MXFP8_E4M3)
    return [
        (TORCHAO, 4 + size(fp4ref.NVFP4), runs(peer.nvfp4, xs)),
        ("torchao mxfp8 row, linear", 2 + eight, runs(peer.mxfp8, xs)),
        ("torchao mxfp8 dequantize, linear", 2 + eight, runs(peer.dequantize, made)),
    ]


@click.command()
@click.option("--shapes", default=",".join(SHAPES), show_default=True)
@click.option("--only", default="", help="Run the cases whose names contain one of these, separated by commas.")
@click.option("--repeat", default=15, show_default=True, help="Replays of a case at one placement.")
@click.option("--placements", default=3, show_default=True, help="Times that all buffers are allocated anew.")
@click.option("--torchao", is_flag=True, help="Measure torchao too, if it is installed.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")
def main(shapes: str, only: str, repeat: int, placements: int, torchao: bool, path: Path | None) -> None:
    """Print time, ratio to copy bandwidth, and ratio to a plain copy of the same shape."""
    large, results = LargeCopy(), []
    print(", ".join(f"{name} {value}" for name, value in setting().items()))
    for text in shapes.split(","):
        rows, columns = map(int, text.split("x"))
        here = measured_shape(
            (rows, columns), [part for part in only.split(",") if part], repeat, placements, torchao, large
        )
        goals(here, 2 * rows * columns >= LARGE)
        for row in here.values():
            results.append({"shape": text, **row})
            print(line(results[-1]), flush=True)
        for name, (other, goal) in FASTER.items():
            if name in here and other in here and "apart" not in here[name]["path"]:
                ratio = here[other]["us"] / here[name]["us"]
                results.append({"shape": text, "case": f"{name} against {other}", "ratio": ratio, "goal": goal})
                print(f"{text:12} {name} against {other}: {ratio:.2f}x, goal {goal}x{verdict(ratio, goal)}", flush=True)
    if path:
        copies = {"median": median(large.speeds), "lowest": min(large.speeds), "highest": max(large.speeds)}
        write(path, results, copy=copies)


def measured_shape(
    shape: tuple[int, int], only: list[str], repeat: int, placements: int, torchao: bool, large: LargeCopy
) -> dict[str, dict[str, Any]]:
    """Measure the cases of one shape, by name, at several placements of their buffers."""
    count, found, paths = shape[0] * shape[1], {}, {}
    kept = []  # memory between two placements, so that the second one is another
    for placement in range(placements):
        kept.append(torch.empty((placement + 1) * 7_654_321, dtype=torch.uint8, device="cuda"))
        number = max(2, -(-ROTATED // (2 * count)))
        xs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(number)]
        every = chain(cases(shape, xs), more_cases(shape, xs), off_the_fast_path(shape, xs), torchao_cases(xs, torchao))
        for name, least, runs in every:
            if name != "copy" and only and not any(part in name for part in only):
                continue
            found.setdefault(name, []).append(measured(runs, least * count, repeat, large))
            plan = None if name in {"copy", APART} or name.startswith("torchao") else operations.last_plan()
            paths[name] = f"{plan.path}: {', '.join(plan.kernels)}" if plan else ""
        del xs, every
        torch.cuda.empty_cache()
    return {
        name: {
            "case": name,
            "us": median(each.us for each in placed),
            "us_lowest": min(each.us for each in placed),
            "us_highest": max(each.us for each in placed),
            "of_copy_bandwidth": median(share for each in placed for share in each.shares),
            "path": paths[name],
        }
        for name, placed in found.items()
    }


def goals(here: dict[str, dict[str, Any]], large: bool) -> None:
    """Write the goals beside the cases that have one; those of what is fused hold where it is eligible."""
    for name, row in here.items():
        if name in GOALS and "apart" not in row["path"]:
            at_most = 1.0 if large else here["copy"]["of_copy_bandwidth"] - 0.10
            row["goal"] = min(GOALS[name], at_most)


def verdict(got: float, goal: float) -> str:
    """Return True if a goal is met."""
    return ", met" if got >= goal else ", missed"


def line(row: dict[str, Any]) -> str:
    """One measurement, to be read."""
    ratio = row["of_copy_bandwidth"]
    goal = f"goal {row['goal']:.1%}{verdict(ratio, row['goal'])}" if "goal" in row else ""
    name = f"{row['shape']:12} {row['case']:32}"
    spread = f"({row['us_lowest']:.1f} to {row['us_highest']:.1f})"
    return f"{name} {row['us']:8.1f} us {spread:20} {ratio:6.1%} of copy bandwidth  {goal:22} {row['path']}"


if __name__ == "__main__":
    main()
