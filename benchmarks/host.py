"""Measure what a call costs on the host: small tensors, eager calls, nothing waited for between them.

Beside each operation stands a clone of the same tensor, measured in turn with it, because the host's speed differs
between machines and minutes. `--torchao` adds torchao's compiled quantizers of the same formats.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "backends")]

from host_calls import Act  # noqa: E402
from host_calls import calls as calls_of  # noqa: E402
from setting import write  # noqa: E402


def microseconds(act: Act, device: str, calls: int, waiting: bool) -> float:
    """Return the host time of a call in us; with `waiting`, until its result is there."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        act()
        if waiting:
            wait()
    spent = time.perf_counter() - start
    wait()
    return spent / calls * 1e6


def torchao_acts(x: Any) -> Iterator[tuple[str, Act]]:
    """Yield torchao's compiled quantizers."""
    import torchao_functions as peer

    for name, function in (("torchao nvfp4 row", peer.nvfp4), ("torchao mxfp8 row", peer.mxfp8)):
        compiled = peer.compiled(function)
        yield name, lambda compiled=compiled: compiled(x)


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--shapes", default="128x128", show_default=True)
@click.option("--repeat", default=15, show_default=True)
@click.option("--only", default="", help="Measure the calls that have this in their names, and the clone.")
@click.option("--torchao", is_flag=True, help="Measure torchao too.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")
def main(device: str, shapes: str, repeat: int, only: str, torchao: bool, path: Path | None) -> None:
    """Print microseconds on the host, as a multiple of a clone of the same tensor, and with the wait for the result."""
    results = []
    for shape in shapes.split(","):
        x = torch.randn(tuple(map(int, shape.split("x"))), device=device).bfloat16()
        made = [("clone", x.clone), *calls_of(x), *(torchao_acts(x) if torchao else ())]
        every = {name: act for name, act in made if only in name or name == "clone"}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in every}
        for act in every.values():
            microseconds(act, device, 20, waiting=False)
        for _ in range(repeat):  # in turn, so that all meet the same minutes
            for name, act in every.items():
                pair = (microseconds(act, device, calls, waiting) for calls, waiting in ((100, False), (20, True)))
                taken[name].append(tuple(pair))  # type: ignore[arg-type]
        clone = median(us for us, _ in taken["clone"])
        for name, pairs in taken.items():
            us, waited = (median(column) for column in zip(*pairs, strict=True))
            results.append({"shape": shape, "call": name, "host_us": us, "waited_us": waited, "clones": us / clone})
            print(
                f"{shape:12} {name:60} {us:8.1f} us, {us / clone:5.1f} clones; {waited:8.1f} us waited for", flush=True
            )
    if path:
        write(path, results, device)


if __name__ == "__main__":
    main()
