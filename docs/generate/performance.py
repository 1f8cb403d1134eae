"""Write the performance page from the JSON that the benchmarks print.

    python docs/generate/performance.py OUT.md [FOLDER OR FILE]

Without results the page says how to make them; no number is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measured import (
    RESULTS,
    Kind,
    Result,
    files,
    is_peer,
    name_of,
    sentences,
    shapes,
    shown,
)

INTRO = """# Performance

Times of one machine say little about another, so every benchmark measures ratios within one run: to a copy of the same
data by as many threads on a CPU, to the copy bandwidth of the device on a GPU. `benchmarks/README.md` says what each
measures. Other libraries are measured in the same run, where they are installed, and shown where they are faster too.
"""
DRAWN = (Kind.KERNELS, Kind.CALLS, Kind.GROUPED, Kind.MODULES, Kind.PRODUCTS, Kind.NARROW)


def main(target: Path, results: Path) -> None:
    """Write the page from every JSON file found."""
    lines = [INTRO]
    found = files(results)
    for result in found:
        lines += section(result, chart=results == RESULTS)
    if not found:
        lines.append("There are no recorded results in this build; `python benchmarks/cpu.py --json FILE` makes some.")
    target.write_text("\n".join(lines) + "\n", "utf-8")


def section(result: Result, chart: bool) -> Iterator[str]:
    """Yield a heading, what the run was on, the chart with what it says, and tables.

    chart: whether the figure exists, as it does for the recorded results.
    """
    yield f"## {result.kind}: {result.run}\n"
    facts = {**result.facts, "file": f"`{result.name}.json`"}
    yield "; ".join(f"{key}: `{v}`" if " --" in str(v) else f"{key}: {v}" for key, v in facts.items() if str(v)) + "\n"
    said = " ".join(sentences(result))
    if chart and result.kind in DRAWN:
        yield f"```{{drawn}} measured-{result.name}\n{said}\n```\n"
    elif said:
        yield said + "\n"
    if result.kind is Kind.KERNELS:
        yield from by_shape(result)
    if result.ratios:
        yield from table(["ratio", "value"], [[name, shown(value)] for name, value in result.ratios.items()])
        yield ""
    yield f"<details><summary>All {len(result.rows)} results</summary>\n"
    heads = list(dict.fromkeys(head for row in result.rows for head, v in row.items() if not isinstance(v, list)))
    yield from table(heads, [[shown(row.get(head)) for head in heads] for row in result.rows])
    yield "\n</details>\n"


def by_shape(result: Result) -> Iterator[str]:
    """Yield a table of the share of copy bandwidth by case and shape."""
    columns = shapes(result)
    cells = {(name_of(row), row["shape"]): row for row in result.rows}
    names = list(dict.fromkeys(name for name, _ in cells))
    timed = [name for name in names if any("us" in cells.get((name, shape), {}) for shape in columns)]
    yield "Percent of the copy bandwidth, by shape:\n"
    rows = [[f"*{n}*" if is_peer(n) else n, *(share(cells.get((n, shape), {})) for shape in columns)] for n in timed]
    heads = [shape.replace("x", " x ") for shape in columns]  # which may break, so that the names of cases have room
    yield from table(["case", *heads], rows)
    yield ""


def share(row: dict[str, float]) -> str:
    """Return the share of copy bandwidth of a row."""
    return f"{100 * row['of_copy_bandwidth']:.0f}" if "of_copy_bandwidth" in row else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else RESULTS)
