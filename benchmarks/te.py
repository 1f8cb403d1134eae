"""Measure the emulated modules as ratios to torch's own, interleaved with them in one run.

linear: forward and backward of te.Linear against torch.nn.Linear of the same type, by recipe.
grouped: forward and backward of te.GroupedLinear whose backward pass reads dequantized operands.
memory: what autograd keeps between the passes of a stack of layers, in bytes per element of their inputs.

    python benchmarks/te.py linear
    python benchmarks/te.py linear --device cuda --size 8192 --dtype bfloat16
    python benchmarks/te.py grouped --device cuda --groups 4,8 --rows 16384,32768,65536,98304
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import click
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "backends")]

from setting import write  # noqa: E402

from fp4ref import te  # noqa: E402

PLAIN = {"disable_rht": True, "disable_stochastic_rounding": True}
RECIPES: dict[str, Callable[..., Any]] = {
    "nvfp4": te.recipe.NVFP4BlockScaling,
    "nvfp4 no sr": lambda **k: te.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True, **k),
    "nvfp4 no rht, no sr": lambda **k: te.recipe.NVFP4BlockScaling(**PLAIN, **k),
    "mxfp8": te.recipe.MXFP8BlockScaling,
    "fp8": te.recipe.Float8CurrentScaling,
    "fp8 delayed": te.recipe.DelayedScaling,
    "fp8 blocks": te.recipe.Float8BlockScaling,
}
Run = Callable[[], Any]
SETTLED, EACH = 0.05, 5  # seconds of a case on a GPU before the steps that are timed, and how many these are


def back_to_back(runs: dict[str, Run], repeat: int, steps: int = 10) -> dict[str, float]:
    """Median time of a step of several that the GPU gets one after the other, as in training; the calls take turns.

    As many steps run before those that are timed, for the same reason as in `seconds`.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(repeat):
        for name, run in runs.items():
            for step in range(2 * steps):
                if step == steps:
                    start.record()
                run()
            stop.record()
            stop.synchronize()
            times[name].append(start.elapsed_time(stop) / 1e3 / steps)
    return {name: median(values) for name, values in times.items()}


def seconds(runs: dict[str, Run], device: str, repeat: int) -> dict[str, float]:
    """Median time of a step that is waited for, on a CPU that of the processor; the cases take turns.

    A GPU's clock follows the load of the last tens of milliseconds. So each case runs for SETTLED seconds before the
    EACH steps that are timed: a step right behind another case's has the clock which that one left. Behind a case
    that moves many bytes, torch's own step at 8192 took 4.57 ms on an H200, and 5.03 ms behind itself.
    """
    clock, settled, each = (perf_counter, SETTLED, EACH) if device == "cuda" else (process_time, 0.0, 1)

    def once(run: Run) -> float:
        start = clock()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        return clock() - start

    for run in runs.values():
        once(run)
        once(run)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            until = perf_counter() + settled
            while perf_counter() < until:
                once(run)
            times[name] += [once(run) for _ in range(each)]
    return {name: median(values) for name, values in times.items()}


def steps(module: Any, recipe: Any, x: Any, grad: Any, splits: list[int] | None = None) -> tuple[Run, Run]:
    """Return the forward pass, and forward and backward together."""
    arguments = (x,) if splits is None else (x, splits)

    def forward() -> Any:
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            return module(*arguments)

    def both() -> None:
        x.grad = None
        module.zero_grad(set_to_none=True)
        forward().backward(grad)

    return forward, both


def chosen(names: str, dtype: torch.dtype) -> list[str]:
    """Recipes by name; without one, all that take the type."""
    wanted = [name for name in RECIPES if not names or name in names.split(",")]
    return [name for name in wanted if dtype is torch.bfloat16 or name not in {"nvfp4", "nvfp4 no sr"}]


def report(results: list[dict[str, Any]], path: Path | None, device: str, **more: Any) -> None:
    """Write the results as JSON, if asked for."""
    if path:
        write(path, results, device, **more)


@click.group()
def main() -> None:
    """Measure the emulated modules."""


device_option = click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
dtype_option = click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default=None)
recipes_option = click.option("--recipes", default="", help=f"Some of {', '.join(RECIPES)}, separated by commas.")
repeat_option = click.option("--repeat", default=9, show_default=True)
json_option = click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")


@main.command()
@device_option
@dtype_option
@recipes_option
@repeat_option
@json_option
@click.option("--size", default=1024, show_default=True, help="Rows, inputs and outputs.")
@click.option("--threads", default=1, show_default=True, help="Threads of torch on a CPU; several wait for each other.")
def linear(
    device: str, dtype: str | None, recipes: str, repeat: int, path: Path | None, size: int, threads: int
) -> None:
    """Forward and backward of te.Linear, without a recipe and by recipe, as a multiple of torch.nn.Linear."""
    torch.set_num_threads(threads)
    kind = getattr(torch, dtype or ("float32" if device == "cpu" else "bfloat16"))
    options: dict[str, Any] = {"device": device, "dtype": kind}
    x, grad = torch.randn(size, size, **options, requires_grad=True), torch.randn(size, size, **options)
    plain = steps(torch.nn.Linear(size, size, **options), None, x, grad)[1]
    results = []
    names = ["no recipe", *chosen(recipes, kind)]
    for some in (  # a module of delayed scaling has its scales updated by every other module's steps
        [name for name in names if "delayed" not in name],
        [name for name in names if "delayed" in name],
    ):
        runs = {"torch": plain} if some else {}
        for name in some:
            module = te.Linear(size, size, device=device, params_dtype=kind)
            runs[name] = steps(module, RECIPES[name]() if name in RECIPES else None, x, grad)[1]
        times = seconds(runs, device, repeat)
        following = back_to_back(runs, repeat) if device == "cuda" else times
        for name, time in times.items():
            ratio, each = time / times["torch"], following[name] / following["torch"]
            results.append({"case": name, "seconds": time, "ratio": ratio, "back_to_back": each})
            text = f"{device} {kind} {size}^3  {name:22} {time * 1e3:10.2f} ms  {ratio:6.2f}x"
            print(text + (f"  {each:6.2f}x back to back" if device == "cuda" else ""), flush=True)
    report(results, path, device, size=f"{size} x {size} x {size}, {str(kind).removeprefix('torch.')}")


@main.command()
@device_option
@recipes_option
@repeat_option
@json_option
@click.option("--groups", default="4,8", show_default=True)
@click.option("--rows", default="16384,32768,65536,98304", show_default=True, help="The rows of all groups together.")
@click.option("-k", default=7168, show_default=True)
@click.option("-n", default=2048, show_default=True)
def grouped(device: str, recipes: str, repeat: int, path: Path | None, groups: str, rows: str, k: int, n: int) -> None:
    """GroupedLinear forward with `dequantized` backward, in bfloat16, as a multiple of the same without a recipe."""
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    results = []
    for count in map(int, groups.split(",")):
        for m in map(int, rows.split(",")):
            x, grad = torch.randn(m, k, **options, requires_grad=True), torch.randn(m, n, **options)
            splits = [m // count] * count
            module = te.GroupedLinear(count, k, n, bias=False, device=device, params_dtype=torch.bfloat16)
            for part in (0, 1):
                runs = {"bf16": steps(module, None, x, grad, splits)[part]}
                for name in chosen(recipes, torch.bfloat16):
                    if "delayed" in name:  # which has no such backward pass
                        continue
                    recipe = RECIPES[name](backward_override="dequantized")
                    runs[name] = steps(module, recipe, x, grad, splits)[part]
                times = seconds(runs, device, repeat)
                following = back_to_back(runs, repeat) if device == "cuda" else times
                for name, time in times.items():
                    what = ("forward", "forward + backward")[part]
                    ratio, each = time / times["bf16"], following[name] / following["bf16"]
                    row = {"groups": count, "m": m, "case": name, "pass": what, "seconds": time, "ratio": ratio}
                    results.append(row | {"back_to_back": each})
                    text = f"{count} groups  m {m:6}  {what:18}  {name:20} {time * 1e3:10.2f} ms  {ratio:6.2f}x"
                    print(text + (f"  {each:6.2f}x back to back" if device == "cuda" else ""), flush=True)
            del x, grad, module, runs
    report(results, path, device)


@main.command()
@device_option
@recipes_option
@json_option
@click.option("--rows", default=4096, show_default=True)
@click.option("--width", default=1024, show_default=True)
@click.option("--layers", default=8, show_default=True)
def memory(device: str, recipes: str, path: Path | None, rows: int, width: int, layers: int) -> None:
    """Bytes that autograd keeps for the backward pass of linear layers, per element of their inputs."""
    results = []
    for name in ["bf16", *chosen(recipes, torch.bfloat16)]:
        recipe = None if name == "bf16" else RECIPES[name]()
        stack = [te.Linear(width, width, device=device, params_dtype=torch.bfloat16) for _ in range(layers)]
        parameters = {p.untyped_storage().data_ptr() for layer in stack for p in layer.parameters()}
        kept: dict[int, int] = {}

        def note(tensor: Any, kept: dict[int, int] = kept, parameters: set[int] = parameters) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        x = torch.randn(rows, width, device=device, dtype=torch.bfloat16, requires_grad=True)
        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with hooks, te.autocast(enabled=recipe is not None, recipe=recipe):
            y = x
            for layer in stack:
                y = layer(y, is_first_microbatch=None if recipe is None else True)
        weights = layers * width * width
        total = sum(kept.values())
        per_input = total / (layers * rows * width)
        results.append({"case": name, "bytes": total, "per_input_element": per_input})
        share = weights / (layers * rows * width)
        print(f"{name:22} {total / 2**20:9.2f} MiB kept  {per_input:6.3f} bytes per input element", end="")
        print(f"  (a packed weight per layer included: {share:.2f} elements per input element)" if recipe else "")
        del y
    report(results, path, device)


if __name__ == "__main__":
    main()
