"""Measure the native CPU backend as ratios to a memory copy of its input by as many threads, in one run.

Every call is timed right after a copy of the bfloat16 or float32 input, and the cases alternate, so a machine that
slows down slows both; a ratio is the median time over the median time of those copies. Results go into buffers that
exist already; `fresh` cases are the public calls that return new arrays, whose pages are part of the time. The golden
model, and torchao if it can be imported, run once per three rounds. Profiles have a goal in GB/s of float32 input.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import ml_dtypes
import numpy as np
from calls import copier, dequantizer, seconds
from numpy.typing import NDArray

import fp4ref
from fp4ref import registry
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.registry import Call
from fp4ref.specs import STANDARD

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SLOW_EVERY = 3
PROFILED = (
    *("torchao", "modelopt", "compressed_tensors", "vllm", "flashinfer", "qutlass", "cutlass", "te"),
    *("jax", "qwix", "microxcaling"),
)
PROFILE_SPEED = 0.5  # GB/s of float32 input


class Case(NamedTuple):
    """A measured case: a call, the copy it is compared with, and the goals for the ratio and for GB/s of input."""

    run: Callable[[], Any]
    copy: str = "bfloat16"
    goal: float | None = None
    slow: bool = False
    speed: float | None = None


def missed(case: Case, ratio: float, speed: float) -> bool:
    """Return True if a case is slower than its goal."""
    return (case.goal is not None and ratio > case.goal) or (case.speed is not None and speed < case.speed)


def cases(rows: int, columns: int) -> Iterator[tuple[str, Case]]:
    """Every case by name; what they need is made here, outside the measurement."""
    wide = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    for x in (wide.astype(BFLOAT16), wide):
        yield from _input_cases(x, x.dtype.name)
    quantized = fp4ref.quantize(wide, fp4ref.NVFP4)
    native = registry.get("cpu")
    scales = np.array(quantized.row.scales)

    def move(target: str) -> Callable[[], Any]:
        call = Call("to_layout", shape=(rows, columns // 16), target=fp4ref.LAYOUTS[target])
        return lambda: native.to_layout(call, scales)

    yield "to_layout tiled_128x4", Case(move("tiled_128x4"), goal=0.12)
    for dtype in ("bfloat16", "float32"):
        call = _dequantize(quantized, dtype)
        yield f"dequantize to {dtype}, fresh", Case(call, dtype)
        yield f"dequantize to {dtype}", Case(dequantizer(quantized, dtype), dtype, 1.0)
    yield "golden dequantize to bfloat16", Case(_dequantize(quantized, "bfloat16", "numpy"), slow=True)


def _input_cases(x: NDArray[Any], name: str) -> Iterator[tuple[str, Case]]:
    rows, columns = x.shape

    def quantize(spec: fp4ref.Spec, directions: str = "row", layout: str = "linear", **more: Any) -> Callable[[], Any]:
        out = fp4ref.quantize(x, spec, directions, layout, backend="cpu", **more)
        return lambda: fp4ref.quantize(x, spec, directions, layout, out=out, backend="cpu", **more)

    yield f"nvfp4 {name}", Case(quantize(fp4ref.NVFP4), name, 1.5)
    yield f"nvfp4 {name} tiled_128x4", Case(quantize(fp4ref.NVFP4, layout="tiled_128x4"), name, 1.5)
    yield f"nvfp4 {name}, amax given", Case(quantize(fp4ref.NVFP4, amax=5.0), name)
    yield f"nvfp4 {name}, fresh", Case(lambda: fp4ref.quantize(x, fp4ref.NVFP4, backend="cpu"), name)
    yield f"nvfp4 {name} column", Case(quantize(fp4ref.NVFP4, "column"), name)
    if name == "bfloat16":
        stochastic = fp4ref.NVFP4.replace(name="nvfp4 stochastic", element=STOCHASTIC_E2M1)
        bits = fp4ref.random_bits((rows, columns), backend="cpu")
        filled = bits.copy()

        def draw() -> Any:
            return fp4ref.random_bits((rows, columns), backend="cpu", out=filled)

        given = quantize(stochastic, random_bits=bits)
        yield f"{stochastic.name} {name}", Case(given, name)
        yield f"random_bits {name}", Case(draw, name)
        yield f"{stochastic.name} {name}, bits made", Case(lambda: (draw(), given()), name)
        for spec in STANDARD[1:]:
            yield f"{spec.name} {name}", Case(quantize(spec, "column" if spec.hadamard else "row"), name)
    else:
        yield from profile_cases(x)
    yield f"golden nvfp4 {name}", Case(lambda: fp4ref.quantize(x, fp4ref.NVFP4, backend="numpy"), name, slow=True)
    with suppress(ImportError):
        yield from _torchao(x, name)


def profile_cases(x: NDArray[Any]) -> Iterator[tuple[str, Case]]:
    """Profiles that the backend serves, into buffers of the first, untimed call; others are named as not native."""
    backend = registry.backends()["cpu"]
    for name in fp4ref.profiles:
        spec = fp4ref.profiles[name]
        if name.partition(".")[0] not in PROFILED:
            continue
        if reasons := backend.unserved(Call("quantize", spec)):
            print(f"{name}: not native: {reasons[0]}")
            continue
        out: list[fp4ref.Quantized] = []

        def run(spec: fp4ref.Spec = spec, out: list[fp4ref.Quantized] = out) -> None:
            out[:] = [fp4ref.quantize(x, spec, out=out[0] if out else None, backend="cpu")]

        yield name, Case(run, "float32", speed=PROFILE_SPEED)


def _torchao(x: NDArray[Any], name: str) -> Iterator[tuple[str, Case]]:
    """torchao's two-level NVFP4 quantizer, amax included, eager and compiled."""
    import torch
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    tensor = torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16) if name == "bfloat16" else torch.from_numpy(x)

    def run() -> Any:
        return nvfp4_quantize(tensor, 16, per_tensor_amax_to_scale(tensor.abs().max()))

    yield f"torchao {name}", Case(run, name, slow=True)
    yield f"torchao {name} compiled", Case(torch.compile(run), name, slow=True)


def _dequantize(q: fp4ref.Quantized, dtype: str, backend: str = "cpu") -> Callable[[], Any]:
    return lambda: fp4ref.dequantize(q, dtype, backend=backend)


@click.command()
@click.option("--rows", default=4096, show_default=True)
@click.option("--columns", default=8192, show_default=True)
@click.option("--repeat", default=9, show_default=True, help="Rounds.")
@click.option("--threads", default=2, show_default=True, help="Threads of the backend and of the copy.")
@click.option("--only", default="", help="Cases whose name contains this.")
@click.option("--json", "path", type=click.Path(), help="Also write a JSON file.")
@click.option("--check", is_flag=True, help="Fail if a case is slower than its goal.")
def main(rows: int, columns: int, repeat: int, threads: int, only: str, path: str | None, check: bool) -> None:
    """Print the time of each case as a multiple of a copy of the input."""
    os.environ["FP4REF_NUM_THREADS"] = str(threads)
    chosen = {name: case for name, case in cases(rows, columns) if only in name}
    sizes = {"bfloat16": 2, "float32": 4}
    with ThreadPoolExecutor(threads) as pool:
        copies = {
            name: copier(np.ones((rows, columns * size), np.uint8), pool, threads) for name, size in sizes.items()
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
        for call in (*copies.values(), *(case.run for case in chosen.values())):
            call()
        for i in range(repeat):
            for name, case in chosen.items():
                if i % SLOW_EVERY == 0 or not case.slow:
                    times[name].append((seconds(copies[case.copy]), seconds(case.run)))
    report(chosen, times, rows * columns, sizes, path, check=check)


def report(
    chosen: dict[str, Case],
    times: dict[str, list[tuple[float, float]]],
    elements: int,
    sizes: dict[str, int],
    path: str | None,
    *,
    check: bool,
) -> None:
    """Print the table, write the JSON, and compare with the goals."""
    print(f"{'case':36}{'ratio':>8}{'of minima':>11}{'goal':>10}{'ms':>9}{'GB/s of input':>15}")
    records, late = [], []
    for name, case in chosen.items():
        base, taken = zip(*times[name], strict=True)
        ratio, of_minima = median(taken) / median(base), min(taken) / min(base)
        speed = elements * sizes[case.copy] / median(taken) / 1e9
        goal = f"{case.goal:.2f}" if case.goal else f"{case.speed} GB/s" if case.speed else ""
        print(f"{name:36}{ratio:7.2f}x{of_minima:10.2f}x{goal:>10}{1e3 * median(taken):9.2f}{speed:15.2f}")
        records.append(
            {"case": name, "ratio": ratio, "ratio_of_minima": of_minima, "goal": case.goal, "seconds": taken}
            | {"gigabytes_per_second": speed, "speed_goal": case.speed}
        )
        if missed(case, ratio, speed):
            late.append(name)
    if path:
        result = {"processors": os.cpu_count(), "elements": elements, "cases": records}
        Path(path).write_text(json.dumps(result, indent=1), encoding="utf-8")
    if check and late:
        raise click.ClickException(f"slower than the goal: {', '.join(late)}")


if __name__ == "__main__":
    main()
