"""Measure the GEMM's modes as ratios to NumPy's float32 product of the same shape, in one run.

Each case is timed right after that product, and cases alternate, so a machine that slows down slows both; a ratio is
the median time over the median time of those products. Exact sums of NVFP4 have a goal in seconds: 1024 x 1024 x 4096
on two cores in less than 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from calls import seconds
from setting import write

import fp4ref
from fp4ref import registry

SPECS = ("nvfp4", "nvfp4-row-scaled", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2")
GOAL = {("cpu", "nvfp4", "exact"): 5.0}  # seconds at the default shape


def cases(m: int, n: int, k: int, device: str) -> Iterator[tuple[tuple[str, str, str], Callable[[], Any]]]:
    """Every backend that can run, specification and mode, warmed up."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((rows, k), np.float32) for rows in (m, n))
    names = [name for name, reason in registry.available() if reason is None]
    for spec in SPECS:
        a, b = (on(device, fp4ref.quantize(value, spec, scale_layout="tiled_128x4")) for value in (x, w))
        few = on(device, fp4ref.quantize(x[:16], spec, scale_layout="tiled_128x4"))
        for name in names:
            for mode in ("exact", "blockwise", "fast"):
                if name == "numpy" and mode != "fast":
                    continue  # minutes: the golden model is not written for speed

                def run(left: Any = a, name: str = name, mode: str = mode, right: Any = b) -> Any:
                    return settled(fp4ref.gemm(left, right, mode, backend=name))

                try:
                    run(few)
                except fp4ref.BackendError:
                    continue
                yield (name, spec, mode), run


def on(device: str, q: fp4ref.Quantized) -> fp4ref.Quantized:
    """Return the same bytes as torch tensors on a device; NumPy's on the CPU."""
    if device == "cpu":
        return q
    import dataclasses

    import torch

    assert q.row is not None
    parts = (None if part is None else torch.from_numpy(np.array(part)).to(device) for part in q.row)
    return dataclasses.replace(q, row=fp4ref.DirectionData(*parts))


def settled(result: Any) -> Any:
    """Return the result once a device has computed it."""
    if hasattr(result, "is_cuda") and result.is_cuda:
        import torch

        torch.cuda.synchronize()
    return result


def reference(m: int, n: int, k: int, device: str) -> tuple[str, Callable[[], Any]]:
    """Return the product that times are compared with: float32 by NumPy, or bfloat16 by torch on a device."""
    x, w = np.ones((m, k), np.float32), np.ones((n, k), np.float32)
    if device == "cpu":
        return "float32 product by NumPy", lambda: x @ w.T
    import torch

    left, right = (torch.from_numpy(part).to(device).bfloat16() for part in (x, w))
    return "bfloat16 product by torch", lambda: settled(left @ right.T)


@click.command()
@click.option("--rows", default=1024, show_default=True)
@click.option("--columns", default=1024, show_default=True)
@click.option("--depth", default=4096, show_default=True)
@click.option("--device", default="cpu", show_default=True, help="Where the operands lie: cpu or cuda.")
@click.option("--repeat", default=3, show_default=True, help="Rounds; each measures every case once.")
@click.option("--only", default="", help="Only cases whose name contains this text.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the numbers to this file too.")
def main(rows: int, columns: int, depth: int, device: str, repeat: int, only: str, path: Path | None) -> None:
    """Time the GEMM of every backend against a library's product of the same shape."""
    against, product = reference(rows, columns, depth, device)
    chosen = [(key, run) for key, run in cases(rows, columns, depth, device) if only in " ".join(key)]
    product()
    times: dict[tuple[str, str, str], list[tuple[float, float]]] = {key: [] for key, _ in chosen}
    for _ in range(repeat):
        for key, run in chosen:
            base = seconds(product)
            times[key].append((base, seconds(run)))
    records = []
    print(f"{rows} x {columns} x {depth} on {device}; ratio to a {against}")
    print(f"{'backend':8} {'spec':18} {'mode':10} {'seconds':>9} {'ratio':>8}  goal")
    for (name, spec, mode), pairs in times.items():
        took, base = median(pair[1] for pair in pairs), median(pair[0] for pair in pairs)
        goal = GOAL.get((name, spec, mode)) if (rows, columns, depth) == (1024, 1024, 4096) else None
        said = "" if goal is None else f"{'met' if took < goal else 'MISSED'}: {goal:g} s"
        print(f"{name:8} {spec:18} {mode:10} {took:9.3f} {took / base:8.2f}  {said}")
        records.append(
            {"backend": name, "spec": spec, "mode": mode, "seconds": took, "ratio": took / base, "goal_seconds": goal}
        )
    if path is not None:
        write(path, records, device, size=f"{rows} x {columns} x {depth}", against=against)


if __name__ == "__main__":
    main()
