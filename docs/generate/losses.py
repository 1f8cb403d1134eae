"""Draw the loss curves of Megatron's GPT in bfloat16, MXFP8 and NVFP4.

    python docs/examples/te_megatron.py --steps 100 --json losses.json
    python docs/generate/losses.py losses.json

The first command needs megatron-core. The second one writes docs/site/losses.svg, which the page about Megatron shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean

from fp4ref.diagrams.canvas import MARGIN, WIDTH, Canvas

TARGET = Path(__file__).resolve().parents[1] / "site" / "losses.svg"
HEIGHT = 200
LEFT, RIGHT = 64, WIDTH - 110
WINDOW = 5  # steps that a point of a curve is the mean of
LAST = 10  # steps of the means that the description states
STROKES = ("A", "B", "C")

Curves = dict[str, list[float]]


def smooth(values: list[float]) -> list[float]:
    """Return the mean of each step and those before it, WINDOW of them."""
    return [mean(values[max(0, step + 1 - WINDOW) : step + 1]) for step in range(len(values))]


def figure(losses: Curves) -> str:
    """Return the figure: the curves, and below them the distance of each from the first."""
    means = {name: mean(values[-LAST:]) for name, values in losses.items()}
    said = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    steps = len(next(iter(losses.values())))
    description = f"Mean loss of the last {LAST} of {steps} steps: {said}."
    canvas = Canvas("Loss of Megatron's GPT in three formats", description)
    top = canvas.heading("Loss of Megatron's GPT with two layers, from the same weights and batches")
    curves = {name: smooth(values) for name, values in losses.items()}
    first, base = next(iter(curves.items()))
    below = panel(canvas, top + 10, f"loss, mean of {WINDOW} steps", curves)
    distances = {name: [a - b for a, b in zip(values, base, strict=True)] for name, values in curves.items()}
    panel(canvas, below + 46, f"loss minus that of {first}", distances)
    return canvas.svg()


def panel(canvas: Canvas, top: float, title: str, curves: Curves) -> float:
    """Draw curves over the steps, with their names at their ends; returns the y below."""
    low = min(min(values) for values in curves.values())
    high = max(max(values) for values in curves.values())
    steps = len(next(iter(curves.values())))

    def place(step: int, value: float) -> tuple[float, float]:
        return LEFT + (RIGHT - LEFT) * step / max(steps - 1, 1), top + HEIGHT * (high - value) / (high - low or 1)

    canvas.text(MARGIN, top - 8, title, kind="muted")
    for value in (low, (low + high) / 2, high):
        left, y = place(0, value)
        canvas.line([(left, y), (RIGHT, y)], stroke="faint")
        canvas.text(LEFT - 8, y + 4, f"{value:.2f}", anchor="end", kind="muted", size=11)
    for step, anchor in ((0, "start"), ((steps - 1) // 2, "middle"), (steps - 1, "end")):
        canvas.text(place(step, low)[0], top + HEIGHT + 16, f"step {step + 1}", anchor=anchor, kind="muted", size=11)
    ends = sorted((place(steps - 1, values[-1])[1], name) for name, values in curves.items())
    for name, stroke in zip(curves, STROKES, strict=True):
        canvas.line([place(step, value) for step, value in enumerate(curves[name])], stroke=stroke)
    written = ends[0][0] - 16
    heights = [written := max(y, written + 16) for y, _ in ends]
    above = max(0.0, heights[-1] - top - HEIGHT)  # names end with the panel
    for (y, name), height in zip(ends, heights, strict=True):
        canvas.text(RIGHT + 14, height - above + 4, name, kind=STROKES[[*curves].index(name)], bold=True)
        canvas.line([(RIGHT, y), (RIGHT + 11, height - above)], stroke="faint")
    return top + HEIGHT + 16


if __name__ == "__main__":
    TARGET.write_text(figure(json.loads(Path(sys.argv[1]).read_text("utf-8"))), "utf-8")
