"""Measure the native CPU backend as ratios to a memory copy of its input by as many threads, in one run.

Every call is timed right after a copy of the bfloat16 or float32 input, and the cases alternate, so a machine that
slows down slows both; a ratio is the median time over the median time of those copies. Results go into buffers that
exist already; `fresh` cases are the public calls that return new arrays, whose pages are part of the time: they are
compared with `x.copy()`. Specifications are also compared with plain NVFP4 of the same input. The golden model, and
torchao if it can be imported, run once per three rounds.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import ml_dtypes
import numpy as np
from calls import TYPES, copier, dequantizer, seconds
from numpy.typing import NDArray
from setting import LOAD, load, write

import fp4ref
from fp4ref import registry
from fp4ref.formats import E2M1, E4M3, STOCHASTIC_E2M1
from fp4ref.registry import Call
from fp4ref.specs import STANDARD

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SIZES = {name: np.dtype(kind).itemsize for name, kind in TYPES.items()}
SLOW_EVERY = 3
PROFILED = (
    *("torchao", "modelopt", "compressed_tensors", "vllm", "flashinfer", "qutlass", "cutlass", "te"),
    *("jax", "qwix", "microxcaling"),
)
PROFILE_SPEED = 0.5  # GB/s of float32 input, of profiles of other formats than NVFP4's
QUANTIZE, DEQUANTIZE, TO_LAYOUT, FRESH = 1.2, 0.8, 0.12, 1.2  # copies
BESIDE_PLAIN = 2.0  # times plain NVFP4


class Goal(NamedTuple):
    """The goals of a case: the most copies and times plain NVFP4, the least GB/s of input."""

    copies: float | None = None
    plain: float | None = None
    speed: float | None = None

    def met(self, record: Mapping[str, Any]) -> bool:
        """Return whether the numbers of a case reach all of them."""
        limits = (self.copies, "ratio"), (self.plain, "of_plain")
        slow = any(limit is not None and record[name] > limit for limit, name in limits)
        return not slow and (self.speed is None or record["gigabytes_per_second"] >= self.speed)

    def __str__(self) -> str:
        told = (self.copies, "copies"), (self.plain, "plain"), (self.speed, "GB/s")
        return ", ".join(f"{limit:g} {unit}" for limit, unit in told if limit is not None)


class Case(NamedTuple):
    """A measured case: a call, the copy that it is compared with, whether that is fresh memory too, and goals."""

    run: Callable[[], Any]
    copy: str = "bfloat16"
    goal: Goal = Goal()
    slow: bool = False
    fresh: bool = False


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

    yield "to_layout tiled_128x4", Case(move("tiled_128x4"), goal=Goal(TO_LAYOUT))
    for dtype in ("bfloat16", "float32"):
        call = _dequantize(quantized, dtype)
        yield f"dequantize to {dtype}, fresh", Case(call, dtype, Goal(FRESH), fresh=True)
        yield f"dequantize to {dtype}", Case(dequantizer(quantized, dtype), dtype, Goal(DEQUANTIZE))
    yield "golden dequantize to bfloat16", Case(_dequantize(quantized, "bfloat16", "numpy"), slow=True)


def plain(dtype: str) -> str:
    """Return the name of the case that other specifications of an input are compared with."""
    return f"nvfp4 {dtype}"


def _input_cases(x: NDArray[Any], name: str) -> Iterator[tuple[str, Case]]:
    rows, columns = x.shape

    def quantize(spec: fp4ref.Spec, directions: str = "row", layout: str = "linear", **more: Any) -> Callable[[], Any]:
        out = fp4ref.quantize(x, spec, directions, layout, backend="cpu", **more)
        return lambda: fp4ref.quantize(x, spec, directions, layout, out=out, backend="cpu", **more)

    yield plain(name), Case(quantize(fp4ref.NVFP4), name, Goal(QUANTIZE))
    yield f"nvfp4 {name} tiled_128x4", Case(quantize(fp4ref.NVFP4, layout="tiled_128x4"), name, Goal(QUANTIZE))
    yield f"nvfp4 {name}, amax given", Case(quantize(fp4ref.NVFP4, amax=5.0), name)
    yield (
        f"nvfp4 {name}, fresh",
        Case(lambda: fp4ref.quantize(x, fp4ref.NVFP4, backend="cpu"), name, Goal(FRESH), fresh=True),
    )
    yield f"nvfp4 {name} column", Case(quantize(fp4ref.NVFP4, "column"), name)
    if name == "bfloat16":
        stochastic = fp4ref.NVFP4.replace(name="nvfp4 stochastic", element=STOCHASTIC_E2M1)
        bits = fp4ref.random_bits((rows, columns), backend="cpu")
        filled = bits.copy()

        def draw() -> Any:
            return fp4ref.random_bits((rows, columns), backend="cpu", out=filled)

        given = quantize(stochastic, random_bits=bits)
        yield f"{stochastic.name} {name}", Case(given, name, Goal(plain=BESIDE_PLAIN))
        yield f"random_bits {name}", Case(draw, name)
        yield f"{stochastic.name} {name}, bits made", Case(lambda: (draw(), given()), name)
        for spec in STANDARD[1:]:
            goal = Goal(plain=None if spec.hadamard else BESIDE_PLAIN)
            yield f"{spec.name} {name}", Case(quantize(spec, "column" if spec.hadamard else "row"), name, goal)
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

        like_nvfp4 = spec.element.format is E2M1 and spec.scale.format is E4M3
        yield name, Case(run, "float32", Goal(plain=BESIDE_PLAIN) if like_nvfp4 else Goal(speed=PROFILE_SPEED))


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
@click.option("--json", "path", type=click.Path(path_type=Path), help="Also write a JSON file.")
@click.option("--check", is_flag=True, help="Fail if a case is slower than its goal.")
def main(rows: int, columns: int, repeat: int, threads: int, only: str, path: Path | None, check: bool) -> None:
    """Print the time of each case as a multiple of a copy of the input."""
    os.environ["FP4REF_NUM_THREADS"] = str(threads)
    chosen = {name: case for name, case in cases(rows, columns) if only in name or name in map(plain, SIZES)}
    with ThreadPoolExecutor(threads) as pool:
        copies: dict[tuple[str, bool], Callable[[], Any]] = {}
        for name, size in SIZES.items():
            x = np.ones((rows, columns * size), np.uint8)
            copies |= {(name, False): copier(x, pool, threads), (name, True): x.copy}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
        for call in (*copies.values(), *(case.run for case in chosen.values())):
            call()
        for i in range(repeat):
            for name, case in chosen.items():
                if i % SLOW_EVERY == 0 or not case.slow:
                    times[name].append((seconds(copies[case.copy, case.fresh]), seconds(case.run)))
    records = [record(name, case, times, rows * columns) for name, case in chosen.items()]
    report(records)
    if path:
        about = {
            "shape": f"{rows}x{columns}",
            "threads": threads,
            "rounds": repeat,
            LOAD: load(),
        }
        write(path, records, "cpu", machine=processor(), **about)
    late = [one["case"] for one in records if one["goal"] and not one["met"]]
    if check and late:
        raise click.ClickException(f"slower than the goal: {', '.join(late)}")


def record(name: str, case: Case, times: Mapping[str, list[tuple[float, float]]], elements: int) -> dict[str, Any]:
    """Return the numbers of a case by their names."""
    base, taken = zip(*times[name], strict=True)
    beside = median(run for _, run in times[plain(case.copy)])
    found = {
        "case": name,
        "ratio": median(taken) / median(base),
        "ratio_of_minima": min(taken) / min(base),
        "of_plain": median(taken) / beside,
        "seconds": median(taken),
        "gigabytes_per_second": elements * SIZES[case.copy] / median(taken) / 1e9,
        "copy": "into fresh memory" if case.fresh else "into a buffer",
        "goal": str(case.goal),
    }
    return {**found, "met": case.goal.met(found) if found["goal"] else None}


def report(records: list[dict[str, Any]]) -> None:
    """Print a line for each case."""
    print(f"{'case':40}{'copies':>8}{'of minima':>11}{'of plain':>10}{'ms':>9}{'GB/s':>7}  goal")
    for one in records:
        numbers = f"{one['ratio']:7.2f}x{one['ratio_of_minima']:10.2f}x{one['of_plain']:9.2f}x"
        told = f"{one['goal']}{': missed' if one['met'] is False else ''}"
        print(
            f"{one['case']:40}{numbers}{1e3 * one['seconds']:9.2f}{one['gigabytes_per_second']:7.2f}  {told}".rstrip()
        )


def processor() -> str:
    """Return the processor's name where Linux tells it, otherwise its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
