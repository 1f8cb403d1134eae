"""The recorded results of the benchmarks: of which kind a file is, who is compared with whom, and sentences.

The pages and charts of performance are made of these, so that another run changes nothing but the JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"
Row = dict[str, Any]
# Cases of other libraries, with the case of this one that computes the same.
PEERS = {
    "torchao amax + row": "nvfp4 amax + row",
    "torchao mxfp8 row, linear": "mxfp8-e4m3 row, linear",
    "torchao mxfp8 dequantize, linear": "mxfp8-e4m3 dequantize, linear",
    "torchao nvfp4 row": "quantize nvfp4 row",
    "torchao mxfp8 row": "quantize mxfp8-e4m3 row",
}
BASES = ("copy", "clone", "torch", "bf16")
NEAR = 0.9  # of the copy bandwidth
CLOCKS = "driver, clocks of SM and memory, highest of SM"  # as benchmarks name what nvidia-smi tells


class Kind(StrEnum):
    """The kind of a file, which is its heading."""

    KERNELS = "Kernels on a GPU"
    NATIVE = "Kernels on a CPU"
    CALLS = "Calls from Python"
    GROUPED = "Grouped modules"
    MODULES = "Modules"
    PRODUCTS = "Products of quantized matrices"
    CHECKPOINTS = "Checkpoints"
    NARROW = "Narrow matrices"
    OTHER = "Other measurements"


class Result(NamedTuple):
    """A file: its name, its kind, what the run was on, its rows, and ratios between them."""

    name: str
    kind: Kind
    facts: dict[str, str]
    rows: list[Row]
    ratios: dict[str, float]

    @property
    def run(self) -> str:
        """The device and the size of the run in words; its file's name where the file does not tell."""
        told = [self.facts[fact].split(", one thread")[0] for fact in ("device", "size") if fact in self.facts]
        told += [f"{self.facts[fact]} MB" for fact in ("megabytes",) if fact in self.facts]
        named = self.name.removeprefix(f"{self.kind.lower()}_").replace("_", " ")
        return ", ".join(told) or re.sub(r"\b(\d+)([gm]b)\b", lambda size: f"{size[1]} {size[2].upper()}", named)


class Pair(NamedTuple):
    """A peer beside this library in one shape: both names, and the peer's time over ours."""

    peer: str
    ours: str
    shape: str
    times: float


def read(path: Path) -> Result:
    """Return a file of results; a list is the rows alone."""
    record = json.loads(path.read_text("utf-8"))
    record = record if isinstance(record, dict) else {"results": record}
    rows = record.get("results", [])
    copied, ratios = record.pop("copy", None), record.pop("ratios", {})
    facts = {key: shown(value) for key, value in record.items() if not isinstance(value, (list, dict))}
    facts |= {name: shown(item) for name, item in record.get("setting", {}).items()}
    if facts.get(CLOCKS, "").count(", ") == 3:  # of nvidia-smi: of the processors, of the memory, the highest
        driver, now, memory, highest = facts.pop(CLOCKS).split(", ")
        facts |= {"driver": driver, "clocks": f"{now} of at most {highest}, memory {memory}"}
    if copied is not None:
        facts["copy"] = bandwidth(copied)
    return Result(path.stem, kind_of(rows), facts, rows, ratios)


def bandwidth(copied: float | dict[str, float]) -> str:
    """Return the bandwidth of a copy, bytes a second, in words; of several copies the median and the ends."""
    if not isinstance(copied, dict):
        return f"{copied / 1e12:.2f} TB/s"
    low, high = (copied.get(end, copied["median"]) for end in ("lowest", "highest"))
    ends = f" ({low / 1e12:.2f} to {high / 1e12:.2f})" if low < high else ""
    return f"{copied['median'] / 1e12:.2f} TB/s{ends}"


def kind_of(rows: list[Row]) -> Kind:
    """Return the kind that the columns of the rows tell."""
    columns = {column for row in rows for column in row}
    telling = {
        "of_copy_bandwidth": Kind.KERNELS,
        "of_plain": Kind.NATIVE,
        "host_us": Kind.CALLS,
        "groups": Kind.GROUPED,
        "processor": Kind.CHECKPOINTS,
        "mode": Kind.PRODUCTS,
        "wide_seconds": Kind.NARROW,
    }
    for column, kind in telling.items():
        if column in columns:
            return kind
    return Kind.MODULES if {"case", "ratio", "seconds"} <= columns and rows[0]["case"] == "torch" else Kind.OTHER


def files(place: Path = RESULTS) -> list[Result]:
    """Return the results of a file, or of every file of a folder: kernels first, each kind by device and size."""
    paths = [place] if place.is_file() else sorted(place.glob("*.json"))
    order = list(Kind)

    def key(result: Result) -> tuple[int, str, list[int], str]:
        size = [int(number) for number in re.findall(r"\d+", result.facts.get("size", ""))]
        return order.index(result.kind), result.facts.get("device", ""), size, result.name

    return sorted(map(read, paths), key=key)


def name_of(row: Row) -> str:
    """Return the case or call of a row."""
    return str(row.get("case", row.get("call", "")))


def elements(shape: str) -> int:
    """Return the elements of a shape such as 8192x2560."""
    rows, columns = map(int, shape.split("x"))
    return rows * columns


def largest(result: Result) -> str:
    """Return the largest shape."""
    return max(shapes(result), key=elements)


def shapes(result: Result) -> list[str]:
    """Return the shapes of the rows, in their order."""
    return list(dict.fromkeys(row["shape"] for row in result.rows))


def is_peer(name: str) -> bool:
    """Return True for a case of another library."""
    return name in PEERS or name.split(maxsplit=1)[0] == "torchao"


def pairs(result: Result) -> Iterator[Pair]:
    """Yield each peer beside ours, shape by shape."""
    unit = "us" if result.kind is Kind.KERNELS else "host_us"
    times = {(row.get("shape", ""), name_of(row)): row[unit] for row in result.rows if unit in row}
    for (shape, name), time in times.items():
        ours = times.get((shape, PEERS.get(name, "")))
        if ours:
            yield Pair(name, PEERS[name], shape, time / ours)


def beside_peers(result: Result) -> Iterator[str]:
    """Yield a sentence for each peer, that says where it is faster."""
    found = list(pairs(result))
    for peer in dict.fromkeys(pair.peer for pair in found):
        here = [pair for pair in found if pair.peer == peer]
        low, high = (pick(pair.times for pair in here) for pick in (min, max))
        span = f"{low:.2f}" if len(here) == 1 else f"{low:.2f} to {high:.2f}"
        faster = [pair.shape for pair in here if pair.times < 1]
        said = f"`{peer}` takes {span} times as long as `{here[0].ours}`"
        yield f"{said}; it is faster at {', '.join(faster)}." if faster else f"{said}."


def sentences(result: Result) -> Iterator[str]:
    """Yield what the numbers of a file say."""
    if result.kind is Kind.KERNELS:
        yield from of_kernels(result)
    elif result.kind is Kind.CALLS:
        own = [row for row in result.rows if name_of(row) not in BASES and not is_peer(name_of(row))]
        low, high = (pick(row["clones"] for row in own) for pick in (min, max))
        yield f"A call takes the host {low:.1f} to {high:.1f} times as long as a clone of the same tensor."
    elif result.kind is Kind.NATIVE:
        yield from of_goals(result)
    elif result.kind is Kind.CHECKPOINTS:
        taken = {name_of(row): row["processor"] for row in result.rows if not name_of(row).endswith(" workers")}
        times = {name: time - taken.get(f"{name}, start", 0) for name, time in taken.items() if ", start" not in name}
        told = ", ".join(f"`{name}` {time:.2f} s" for name, time in times.items())
        started = ", without that of the start where it was measured" * (len(times) < len(taken))
        yield f"Processor time{started}: {told}."
    elif result.kind is Kind.PRODUCTS:
        yield from of_backends(result)
    elif result.kind in (Kind.GROUPED, Kind.MODULES):
        base = result.rows[0]["case"]
        ratios: dict[str, list[float]] = {}
        for row in result.rows:
            if row["case"] != base:
                ratios.setdefault(row["case"], []).append(row["ratio"])
        spans = {case: (min(found), max(found)) for case, found in ratios.items()}
        said = {
            case: f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}" for case, (low, high) in spans.items()
        }
        least, most = (pick(spans, key=lambda case: spans[case][1]) for pick in (min, max))
        if len(spans) > 1:
            yield f"`{least}` takes least, {said[least]} times as long as `{base}`; `{most}` most, {said[most]} times."
        else:
            yield f"`{least}` takes {said[least]} times as long as `{base}`."
    elif result.kind is Kind.NARROW:
        by_element = sorted((row["ratio"], name_of(row)) for row in result.rows)
        by_block = sorted(row["ratio_by_block"] for row in result.rows)
        ends = " to ".join(f"{ratio:.2f} (`{name}`)" for ratio, name in (by_element[0], by_element[-1]))
        yield f"By element, a narrow matrix takes {ends} times as long as a wide one;"
        yield f"by block, {by_block[0]:.2f} to {by_block[-1]:.2f} times."
    yield from beside_peers(result)


def of_kernels(result: Result) -> Iterator[str]:
    """Yield how many kernels come near the copy bandwidth, which are furthest below, and how placements matter."""
    shape = largest(result)
    shares = {name_of(r): r["of_copy_bandwidth"] for r in result.rows if r["shape"] == shape and "us" in r}
    own = {name: share for name, share in shares.items() if name not in BASES and not is_peer(name)}
    near = sum(share >= NEAR for share in own.values())
    yield f"At {shape}, {near} of {len(own)} cases reach {NEAR:.0%} of the copy bandwidth."
    slow = sorted((share, name) for name, share in own.items() if share < NEAR)[:4]
    if slow:
        yield f"Furthest below: {', '.join(f'`{name}` {share:.0%}' for share, name in slow)}."
    spreads = [r["us_highest"] / r["us_lowest"] - 1 for r in result.rows if "us_lowest" in r]
    if spreads:
        yield f"Over placements of the buffers, the time of a case varies by up to {max(spreads):.0%}."


def of_goals(result: Result) -> Iterator[str]:
    """Yield how many cases meet their goal, and which do not."""
    judged = [row for row in result.rows if row["goal"]]
    yield f"{sum(row['met'] for row in judged)} of {len(judged)} cases with a goal meet it."
    late = [
        f"`{name_of(row)}` {row['ratio']:.2f} copies, {row['of_plain']:.2f} plain, "
        f"{row['gigabytes_per_second']:.2f} GB/s ({row['goal']})"
        for row in judged
        if not row["met"]
    ]
    if late:
        yield f"Slower than their goal: {'; '.join(late)}."


def backends(result: Result) -> list[str]:
    """Return the backends of products, the one with the most of them first."""
    names = [row["backend"] for row in result.rows]
    return sorted(dict.fromkeys(names), key=lambda name: -names.count(name))


def of_backends(result: Result) -> Iterator[str]:
    """Yield how long each backend takes beside the one with the most products, and that one beside another product."""
    times: dict[str, dict[tuple[str, str], float]] = {}
    for row in result.rows:
        times.setdefault(row["backend"], {})[row["spec"], row["mode"]] = row["seconds"]
    first, *others = backends(result)
    ratios = [row["ratio"] for row in result.rows if row["backend"] == first and row.get("ratio")]
    if ratios and "against" in result.facts:
        yield f"`{first}` takes {span(ratios)} times as long as the {result.facts['against']}."
    for name in others:
        shared = [seconds / times[first][case] for case, seconds in times[name].items() if case in times[first]]
        yield f"`{name}` takes {span(shared)} times as long as `{first}`."


def span(ratios: list[float]) -> str:
    """Return the smallest and the largest of some numbers, in words."""
    return " to ".join(dict.fromkeys(map(shown, (min(ratios), max(ratios)))))


def shown(value: Any) -> str:
    """Return a cell; a number with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)
