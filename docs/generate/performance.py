"""Write the performance page from the JSON that the benchmarks print.

    python docs/generate/performance.py OUT.md [FOLDER OR FILE]

Without results the page says how to make them; no number is written by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
INTRO = """# Performance

Times of one machine say little about another, so every benchmark measures ratios within one run: to a copy of the same
data by as many threads on a CPU, to the copy bandwidth of the device on a GPU. `benchmarks/README.md` says what each
measures.

```{drawn} gpu-bandwidth
Most kernels run at the speed of a copy. Stochastic rounding and 4over6 take longer, and without the fused kernel the
Hadamard transform takes three times as long.
```
"""


def main(target: Path, results: Path) -> None:
    """Write the page from every JSON file found."""
    files = [results] if results.is_file() else sorted(results.glob("*.json"))
    lines = [INTRO]
    for path in files:
        lines += section(path.stem, json.loads(path.read_text("utf-8")))
    if not files:
        lines.append("There are no recorded results in this build; `python benchmarks/cpu.py --json FILE` makes some.")
    target.write_text("\n".join(lines) + "\n", "utf-8")


def section(name: str, result: Any) -> Iterator[str]:
    """Yield a heading, what the run was on, and a table of the results."""
    yield f"## {name}\n"
    record = result if isinstance(result, dict) else {"results": result}
    rows = record.get("results") or record.get("cases") or []
    facts = [f"{key}: {shown(value)}" for key, value in record.items() if not isinstance(value, (list, dict))]
    yield ", ".join(facts) + "\n"
    yield f"<details><summary>All {len(rows)} results</summary>\n"
    heads = list(dict.fromkeys(head for row in rows for head, value in row.items() if not isinstance(value, list)))
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield "| " + " | ".join(shown(row.get(head)) for head in heads) + " |"
    yield "\n</details>\n"


def shown(value: Any) -> str:
    """Return a cell; a number with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else HERE / "benchmarks/results")
