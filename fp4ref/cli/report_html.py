"""The page of `fp4ref report`: one file without references, tables and plots of the same numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from fp4ref.analysis import ErrorStatistics
from fp4ref.cli.report_rows import Row, numbers
from fp4ref.conformance.mistakes.said import plural
from fp4ref.spec import SPEC_VERSION

HEADINGS = ("specification", "SQNR, dB", "mean relative", "largest relative", "saturated", "underflowed")
LEGEND = """SQNR is 10 log<sub>10</sub>(&Sigma;x&sup2; / &Sigma;(y&minus;x)&sup2;); relative errors are |y&minus;x| /
|x| where x is not zero. Saturated elements have the largest code and were larger; underflowed ones were not zero and
became zero."""
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #bbb; --mark: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #181818; --line: #555; --mark: #56b4e9; } }
body { font: 16px/1.5 Helvetica, Arial, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .5rem; text-align: right; vertical-align: bottom; }
th:first-child, td:first-child, td.reason { text-align: left; }
.wide { overflow-x: auto; } tbody th { white-space: nowrap; font-weight: inherit; } td b { color: var(--mark); }
summary { cursor: pointer; padding: .25rem 0; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; display: block; margin: .5rem 0; } .wide svg { min-width: 36rem; }
svg text { font: 12px Helvetica, Arial, sans-serif; fill: var(--ink); }
svg .mark { fill: var(--mark); fill-opacity: .65; } svg .line { stroke: var(--line); }
figure { display: inline-block; margin: 0 1rem 1rem 0; } figcaption { font-size: .85rem; }
@media (max-width: 40rem) { th, td { padding: .2rem .3rem; } h1 { font-size: 1.4rem; overflow-wrap: anywhere; }
  tbody th { white-space: normal; overflow-wrap: break-word; min-width: 7rem; font-size: .85rem; } }
.wide :is(th, td):first-child { position: sticky; left: 0; background: var(--paper); }
@media print { :root, body { font-size: 11px; } body { margin: 0; } tbody th { min-width: 24em; }
  tr, figure, svg { break-inside: avoid; } h2, h3, summary { break-after: avoid; } .wide svg { min-width: 0; }
  .wide :is(th, td):first-child { position: static; } }
"""


def page_of(source: str, rows: Sequence[Row], total: Mapping[str, ErrorStatistics]) -> str:
    """Return HTML of the whole report; every name from the file is escaped."""
    title = f"Quantization error of {escape(source)}"
    count, elements = plural(len(rows), "1 tensor", "tensors"), sum(math.prod(row.shape) for row in rows)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>',
        f"<h1>{title}</h1>",
        f"<p>{count}, {elements:,} elements; specification {SPEC_VERSION}. {LEGEND}</p>",
        "<h2>All tensors</h2>",
        _table(dict(total)),
        "<h2>SQNR of each tensor</h2>",
        _scrolling(sqnr_plot(rows, list(total)), "Plot of the SQNR of each tensor"),
        sqnr_table(rows, list(total)),
        "<h2>Each tensor</h2>",
        *(_details(row) for row in rows),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def sqnr_table(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """Return a table of SQNR in dB: a row per tensor, a column per specification, the largest in bold."""
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    body = []
    for row in rows:
        best = max(_known(row), default=None)
        cells = "".join(f"<td>{_decibel(row.results[label], best)}</td>" for label in labels)
        body.append(f'<tr><th scope="row"><code>{_breakable(row.name)}</code></th>{cells}</tr>')
    head = f'<thead><tr><th scope="col">tensor, SQNR in dB</th>{head}</tr></thead>'
    return _scrolling(f"<table>{head}<tbody>{''.join(body)}</tbody></table>", "SQNR of each tensor by specification")


def _breakable(name: str) -> str:
    """Return a name that may break behind its dots, underscores and slashes."""
    return re.sub(r"(?<=[._/])(?=\w)", "<wbr>", escape(name))


def _known(row: Row) -> list[float]:
    """Return the SQNRs of a tensor that are numbers or infinite."""
    found = (result.sqnr for result in row.results.values() if isinstance(result, ErrorStatistics))
    return [value for value in found if not math.isnan(value)]


def _decibel(result: ErrorStatistics | str, best: float | None) -> str:
    if isinstance(result, str):
        return "refused"
    text = "exact" if result.sqnr == math.inf else f"{result.sqnr:.2f}"
    return f"<b>{text}</b>" if result.sqnr == best else text


def _scrolling(shown: str, name: str) -> str:
    """Return a table or a plot in a box of its own, which a narrow screen scrolls and a keyboard reaches."""
    return f'<div class="wide" tabindex="0" role="group" aria-label="{escape(name)}">{shown}</div>'


def _details(row: Row) -> str:
    shape = " &times; ".join(map(str, row.shape))
    found = _known(row)
    span = f", SQNR {min(found):.2f} to {max(found):.2f} dB" if found else ""
    return (
        f"<details><summary><code>{escape(row.name)}</code> {row.dtype} {shape}{span}</summary>"
        f"{_table(row.results, row.name)}"
        + "".join(_histogram_figure(label, result) for label, result in row.results.items())
        + "</details>"
    )


def _table(results: Mapping[str, ErrorStatistics | str], name: str = "all tensors") -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADINGS)
    body = "".join(
        f'<tr><th scope="row">{_breakable(label)}</th>{_cells(result)}</tr>' for label, result in results.items()
    )
    return _scrolling(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", f"Errors of {name}")


def _cells(result: ErrorStatistics | str) -> str:
    if isinstance(result, str):
        return f'<td class="reason" colspan="{len(HEADINGS) - 1}">{escape(result)}</td>'
    return "".join(f"<td>{text}</td>" for text in numbers(result))


def sqnr_plot(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """Return SVG: a line per specification, a dot per tensor with a finite SQNR."""
    found = {label: list(_finite(rows, label)) for label in labels}
    values = [value for dots in found.values() for _, value in dots]
    if not values:
        return "<p>No tensor has a finite SQNR.</p>"
    low, high = math.floor(min(values)), math.ceil(max(values))
    high += high == low
    left, width, step = 170, 780, 26
    height = step * len(labels) + 40

    def across(value: float) -> float:
        return round(left + (value - low) / (high - low) * (width - left - 20), 1)

    marks = []
    every = max(1, math.ceil((high - low) / 12))
    for tick in range(low, high + 1, every):
        x = across(tick)
        marks.append(f'<line class="line" x1="{x}" y1="8" x2="{x}" y2="{height - 28}"/>')
        marks.append(f'<text x="{x}" y="{height - 12}" text-anchor="middle">{tick} dB</text>')
    for number, label in enumerate(labels):
        y = 8 + step * number + step // 2
        marks.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        for name, value in found[label]:
            note = f"<title>{escape(name)}: {value:.2f} dB</title>"
            marks.append(f'<circle class="mark" cx="{across(value)}" cy="{y}" r="4">{note}</circle>')
    return _svg(width, height, "SQNR of each tensor by specification", marks)


def _finite(rows: Sequence[Row], label: str) -> Iterator[tuple[str, float]]:
    for row in rows:
        result = row.results[label]
        if isinstance(result, ErrorStatistics) and math.isfinite(result.sqnr):
            yield row.name, result.sqnr


def _histogram_figure(label: str, result: ErrorStatistics | str) -> str:
    if isinstance(result, str):
        return ""
    zero = f", {result.zero_scales} zero" if result.zero_scales else ""
    caption = f"{escape(label)}: {result.scale_format.name} scales{zero}"
    return f"<figure>{histogram(result)}<figcaption>{caption}</figcaption></figure>"


def histogram(result: ErrorStatistics) -> str:
    """Return SVG: blocks by the power of two of their scale, heights linear."""
    powers = result.powers
    if not powers:
        return ""
    low, high, top = min(powers), max(powers), max(powers.values())
    step, tall = max(6, min(24, 240 // (high - low + 1))), 70
    width = max(120, step * (high - low + 1) + 20)
    marks = []
    for power, count in powers.items():
        size = round(tall * count / top, 1)
        x = 10 + step * (power - low)
        note = f"<title>2^{power}: {count} blocks</title>"
        marks.append(
            f'<rect class="mark" x="{x}" y="{8 + tall - size}" width="{step - 1}" height="{size}">{note}</rect>'
        )
    marks.append(f'<line class="line" x1="10" y1="{8 + tall}" x2="{width - 10}" y2="{8 + tall}"/>')
    marks.append(f'<text x="10" y="{tall + 24}">2^{low}</text>')
    if high > low:
        marks.append(f'<text x="{10 + step * (high - low + 1)}" y="{tall + 24}" text-anchor="end">2^{high}</text>')
    return _svg(width, tall + 32, "Blocks by the power of two of their scale", marks)


def _svg(width: int, height: int, title: str, marks: Sequence[str]) -> str:
    name = f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    return name + "".join(marks) + "</svg>"
