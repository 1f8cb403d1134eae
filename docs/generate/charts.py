"""Draw the charts of the manual, from recorded results and from what the code computes, in both themes.

python docs/generate/charts.py FOLDER

FOLDER gets light/NAME.svg and dark/NAME.svg. Every series has its name beside it, so colours carry nothing alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

import fp4ref
from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.text_width import wrap

ROOT = Path(__file__).resolve().parents[2]
GPT = ROOT / "docs/recorded/te_gpt.json"
GPU = ROOT / "benchmarks/results/gpu_h200.json"
SHAPE = "14336x16384"
LEFT = MARGIN + 250.0
ERRORS = ("nvfp4", "nvfp4-4over6", "nvfp4-row-scaled", "mxfp4", "torchao.nvfp4_2lvl", "mxfp8-e4m3", "mxfp8-e5m2")


def main(folder: Path) -> None:
    """Write every chart in both themes."""
    for theme in ("light", "dark"):
        (folder / theme).mkdir(parents=True, exist_ok=True)
        for name, draw in CHARTS.items():
            (folder / theme / f"{name}.svg").write_text(draw(theme), "utf-8")


def training_loss(theme: str) -> str:
    """Draw the loss of each recipe, and its distance to bfloat16."""
    record = json.loads(GPT.read_text("utf-8"))
    window = 10
    curves = {name: np.convolve(values, np.ones(window) / window, "valid") for name, values in record["losses"].items()}
    base, *others = curves.items()
    title = "Training a small GPT: the loss in bfloat16, and what each recipe adds"
    said = f"Means of {window} steps. {record['versions']}, {record['date']}. Final losses: " + ", ".join(
        f"{name} {curve[-1]:.3f}" for name, curve in curves.items()
    )
    page = Canvas(title, f"{said}.", theme)
    y = page.lines(MARGIN, page.heading(title), wrap(f"{said}.", 768, 11), size=11, kind="muted") + 8
    steps = len(base[1])
    y = _panel(page, y, f"{base[0]}: loss", base[1], (float(base[1].min()), float(base[1].max())), 150)
    reach = max(float(np.abs(curve - base[1]).max()) for _, curve in others)
    for name, curve in others:
        y = _panel(page, y + 8, f"{name}, minus {base[0]}", curve - base[1], (-reach, reach), 58)
    page.text(LEFT, y + 16, f"step {window}", size=10, kind="muted")
    page.text(784, y + 16, f"step {steps + window - 1}", size=10, anchor="end", kind="muted")
    return page.svg()


def _panel(page: Canvas, y: float, name: str, curve: np.ndarray, limits: tuple[float, float], high: float) -> float:
    """Draw one curve in a frame, with its limits at the left; return the y below."""
    low, top = limits
    page.text(MARGIN, y + high / 2 + 4, name, size=11, bold=True)
    page.box(LEFT, y, 784 - LEFT, high, "paper", stroke="faint")
    page.text(LEFT - 4, y + 10, f"{top:.3g}", size=9, anchor="end", mono=True, kind="muted")
    page.text(LEFT - 4, y + high, f"{low:.3g}", size=9, anchor="end", mono=True, kind="muted")
    across = np.linspace(LEFT, 784, len(curve))
    points = [(float(x), float(y + high * (top - value) / (top - low))) for x, value in zip(across, curve, strict=True)]
    if low < 0:
        middle = y + high * top / (top - low)
        page.line([(LEFT, middle), (784, middle)], stroke="faint")
    for pair in pairwise(points):
        page.line(list(pair), stroke="A")
    return y + high


def step_time(theme: str) -> str:
    """Draw the time of a training step by recipe."""
    record = json.loads(GPT.read_text("utf-8"))
    seconds = record["seconds_per_step"]
    title = "Time of a training step, emulated"
    said = (
        f"Milliseconds of processor time, {record['machine']}, a GPT of one layer; {record['versions']}, "
        f"{record['date']}."
    )
    rows = [(name, value * 1000, f"{value * 1000:.0f} ms") for name, value in seconds.items()]
    return _bars(theme, title, said, rows)


def gpu_bandwidth(theme: str) -> str:
    """Draw the share of the copy bandwidth that each GPU kernel reaches."""
    record = json.loads(GPU.read_text("utf-8"))
    found = [row for row in record["results"] if row["shape"] == SHAPE and row.get("of_copy_bandwidth")]
    title = f"GPU kernels: share of the copy bandwidth, bfloat16 {SHAPE}, one H200"
    said = (
        f"1.0 is a copy at {record['copy'] / 1e12:.2f} TB/s, measured in the same run; bytes are those that must be "
        "read and written. torchao's is the kernel that torch compiles."
    )
    return _bars(
        theme, title, said, [(r["case"], r["of_copy_bandwidth"], f"{r['of_copy_bandwidth']:.2f}") for r in found]
    )


def format_error(theme: str) -> str:
    """Draw the error of formats on normal numbers, computed here."""
    x = np.random.default_rng(0).standard_normal((256, 1024), np.float32)
    rows = []
    for name in ERRORS:
        error = fp4ref.dequantize(fp4ref.quantize(x, name)) - x
        relative = float(np.sqrt((error**2).mean() / (x**2).mean()))
        spec = fp4ref.profiles[name]
        bits = spec.element.format.bits + 8 / (spec.block.rows * spec.block.columns)
        rows.append((f"{name}, {bits:g} bits", relative * 100, f"{relative * 100:.2f} %"))
    title = "Error of the formats on normal numbers"
    said = "Root mean square of the error, relative to that of x [256, 1024]; bits per element with block scales."
    return _bars(theme, title, said, sorted(rows, key=lambda row: row[1]))


def _bars(theme: str, title: str, said: str, rows: list[tuple[str, float, str]]) -> str:
    """Draw one bar for each row, its name at the left and its value at its end."""
    each = ", ".join(f"{name}: {label}" for name, _, label in rows)
    page = Canvas(title, f"{said} {each}.", theme)
    y = page.lines(MARGIN, page.heading(title), wrap(said, 768, 11), size=11, kind="muted") + 6
    left, most = MARGIN + 330.0, max(value for _, value, _ in rows)
    for name, value, label in rows:
        page.text(left - 8, y + 13, name, size=11, anchor="end")
        wide = (page.width - MARGIN - 80 - left) * value / most
        page.box(left, y, wide, 18, "a", title=f"{name}: {label}")
        page.text(left + wide + 6, y + 13, label, size=11, mono=True)
        y += 23
    return page.svg()


CHARTS: dict[str, Callable[[str], str]] = {
    "training-loss": training_loss,
    "step-time": step_time,
    "gpu-bandwidth": gpu_bandwidth,
    "format-error": format_error,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
