"""Draw the charts of the manual, from recorded results and from what the code computes, in both themes.

python docs/generate/charts.py FOLDER

FOLDER gets light/NAME.svg and dark/NAME.svg. Every series has its name beside it, so colours carry nothing alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fp4ref
from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.text_width import text_width, wrap

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measured import Kind, Result, backends, elements, files, is_peer, largest, shapes

ROOT = Path(__file__).resolve().parents[2]
GPT = ROOT / "docs/recorded/te_gpt.json"
LEFT = MARGIN + 250.0
NAMES = 400.0  # width of a bar's name; longer ones take more lines
LIMITS = 48  # room at the left of a panel for its limits


class Bar(NamedTuple):
    """A bar: its name, its value, the value in words, the ends of its spread, and whether another library made it."""

    name: str
    value: float
    label: str
    ends: tuple[float, ...] = ()
    peer: bool = False

    @property
    def reach(self) -> float:
        """The largest value that is drawn."""
        return max(self.value, *self.ends) if self.ends else self.value


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
    said = f"Means of {window} steps. {record['versions']}, {record['date']}. Final losses: " + "; ".join(
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
    lines = wrap(name, LEFT - MARGIN - LIMITS, 11, bold=True)
    page.lines(MARGIN, y + high / 2 + 12 - 7.7 * len(lines), lines, size=11, bold=True)
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
    rows = [Bar(name, value * 1000, f"{value * 1000:.0f} ms") for name, value in seconds.items()]
    return _bars(theme, title, said, rows)


def kernels(result: Result, theme: str) -> str:
    """Draw the share of the copy bandwidth that each case reaches at the largest shape, with its spread."""
    shape = largest(result)
    rows = [row for row in result.rows if row["shape"] == shape and row.get("of_copy_bandwidth")]
    title = f"Kernels: share of the copy bandwidth, {shape}"
    said = (
        "1.0 is the speed of large copies in the same run; bytes are those that must be read and written. Lines at the "
        "ends: the fastest and the slowest placement of the buffers. Hatched: other libraries, compiled. "
        f"{dated(result)}"
    )
    bars = []
    for row in rows:
        part = row["of_copy_bandwidth"]
        ends = tuple(part * row["us"] / row[end] for end in ("us_highest", "us_lowest") if end in row)
        bars.append(Bar(row["case"], part, f"{part:.2f}", ends, is_peer(row["case"])))
    return _bars(theme, title, said, bars)


def calls(result: Result, theme: str) -> str:
    """Draw what a call takes on the host."""
    shape = max(shapes(result), key=elements)
    title = f"Time of a call on the host, {shape}"
    said = f"Microseconds until the call returns, and how many clones of the tensor that is. {dated(result)}"
    bars = [
        Bar(
            row["call"],
            row["host_us"],
            f"{row['host_us']:.0f} us, {row['clones']:.1f} clones",
            (),
            is_peer(row["call"]),
        )
        for row in result.rows
        if row["shape"] == shape
    ]
    return _bars(theme, title, said, bars)


def modules(result: Result, theme: str) -> str:
    """Draw the time of emulated modules as a multiple of the first row's, by what else the rows differ in."""
    base = result.rows[0]["case"]
    title = f"Emulated modules: time as a multiple of {base}"
    bars = []
    for row in result.rows:
        more = [f"{key} {value}" for key, value in row.items() if key in ("groups", "m")]
        more += [row["pass"]] if "pass" in row else []
        if row["case"] != base:
            bars.append(Bar(", ".join([row["case"], *more]), row["ratio"], f"{row['ratio']:.2f}"))
    return _bars(theme, title, f"1.0 is {base} in the same run. {dated(result)}", bars)


def products(result: Result, theme: str) -> str:
    """Draw the time of the first backend's products as a multiple of the product that they are compared with."""
    first, *others = backends(result)
    base = result.facts.get("against", "product that it is compared with")
    title = f"Products of quantized matrices by {first}: time as a multiple"
    more = f" The table below has {' and '.join(others)} too." if others else ""
    bars = [
        Bar(f"{row['spec']}, {row['mode']}", row["ratio"], f"{row['ratio']:.2f}")
        for row in result.rows
        if row["backend"] == first
    ]
    return _bars(theme, title, f"1.0 is the {base} in the same run. {dated(result)}{more}", bars)


def narrow(result: Result, theme: str) -> str:
    """Draw the time of narrow matrices, by element, as a multiple of a wide matrix's."""
    bars = [Bar(row["case"], row["ratio"], f"{row['ratio']:.2f}") for row in result.rows]
    said = f"1.0 is the time of an element of a wide matrix in the same run. {dated(result)}"
    return _bars(theme, "Narrow matrices: time of an element as a multiple", said, bars)


def dated(result: Result) -> str:
    """Return the facts of a run that its file states, such as device and commit, as one sentence."""
    facts = [f"{key}: {value}" for key, value in result.facts.items() if not key.startswith("copy")]
    return f"{'; '.join(facts)}." if facts else ""


def format_error(theme: str) -> str:
    """Draw the error of formats on normal numbers, computed here."""
    x = np.random.default_rng(0).standard_normal((256, 1024), np.float32)
    rows: list[Bar] = []
    for name in ERRORS:
        error = fp4ref.dequantize(fp4ref.quantize(x, name)) - x
        relative = float(np.sqrt((error**2).mean() / (x**2).mean()))
        spec = fp4ref.profiles[name]
        bits = spec.element.format.bits + 8 / (spec.block.rows * spec.block.columns)
        rows.append(Bar(f"{name}, {bits:g} bits", relative * 100, f"{relative * 100:.2f} %"))
    title = "Error of the formats on normal numbers"
    said = "Root mean square of the error, relative to that of x [256, 1024]; bits per element with block scales."
    return _bars(theme, title, said, sorted(rows, key=lambda bar: bar.value))


def _bars(theme: str, title: str, said: str, bars: list[Bar]) -> str:
    """Draw one bar for each row, its name at the left and its value at its end."""
    each = ", ".join(f"{bar.name}: {bar.label}" for bar in bars)
    page = Canvas(title, f"{said} {each}.", theme)
    y = page.lines(MARGIN, page.heading(title), wrap(said, 768, 11), size=11, kind="muted") + 6
    names = {bar.name: wrap(bar.name, NAMES, 11) for bar in bars}
    left = MARGIN + 8 + max(text_width(line, 11) for lines in names.values() for line in lines)
    end = page.width - MARGIN - 8 - max(text_width(bar.label, 11, mono=True) for bar in bars)
    scale = (end - left - 8) / max(bar.reach for bar in bars)
    for bar in bars:
        for number, line in enumerate(names[bar.name]):
            page.text(left - 8, y + 13 + 14 * number, line, size=11, anchor="end")
        page.box(left, y, bar.value * scale, 18, "pad" if bar.peer else "a", title=f"{bar.name}: {bar.label}")
        if bar.ends:
            page.line([(left + value * scale, y + 9) for value in bar.ends])
        page.text(left + bar.reach * scale + 6, y + 13, bar.label, size=11, mono=True)
        y += 23 + 14 * (len(names[bar.name]) - 1)
    return page.svg()


DRAWN = {
    Kind.KERNELS: kernels,
    Kind.CALLS: calls,
    Kind.GROUPED: modules,
    Kind.MODULES: modules,
    Kind.PRODUCTS: products,
    Kind.NARROW: narrow,
}
CHARTS: dict[str, Callable[[str], str]] = {
    "training-loss": training_loss,
    "step-time": step_time,
    "format-error": format_error,
    **{f"measured-{one.name}": partial(DRAWN[one.kind], one) for one in files() if one.kind in DRAWN},
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
