"""Compare the verdicts on mutants that the kits of two checkouts give, and the time that each diagnosis takes.

    git worktree add ../before v1.0 && (cd ../before && python -m venv .venv && .venv/bin/pip install -e '.[test]')
    python .ci/compare_kits.py ../before --count 60

Each mutant of this checkout (with --mutants other, of the other one) is judged by both kits, by turns, each in its own
environment and on its own cases. The order is random and always the same, so that a part is a fair sample. Results are
kept in a file of one line each, from which the next run with the same other checkout and mutants goes on; delete it
after a change. The status is 1 if the other kit alone catches one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parents[1]


def mutants(tree: Path) -> dict[str, Any]:
    """Return the mutants of a checkout by name."""
    sets = [runpy.run_path(str(path)) for path in sorted((tree / "tests" / "mutants").glob("*.py"))]
    return {kernel.__name__: kernel for kernels in sets for kernel in kernels["MUTANTS"]}


def worker(own: Path, tree: Path) -> None:
    """Judge and diagnose the mutants of `tree` whose names come in, by the kit of the checkout `own`."""
    sys.path[:0] = [str(own / "tests"), str(own / "tests" / "common")]
    import pytest
    import test_mutants  # type: ignore[import-not-found]

    kernels, spent = mutants(tree), [0.0]
    explain = test_mutants.KernelReport.explain

    def timed(*given: Any) -> None:
        start = time.process_time()
        explain(*given)
        spent[0] = time.process_time() - start

    test_mutants.KernelReport.explain = timed
    with pytest.MonkeyPatch.context() as patch:
        for name in map(str.strip, sys.stdin):
            spent[0] = 0.0
            report = test_mutants.verified(kernels[name], patch)
            found = report.diagnosis
            first = None if found is None else next(iter(found.explanations), found.partial)
            names = [*(() if first is None else first.names), *(kind.value for kind in report.findings)]
            whole = found is None or bool(found.explanations)
            told = {"caught": not report.ok, "names": names, "whole": whole, "headline": report.headline}
            print(json.dumps(told | {"seconds": spent[0]}), flush=True)


def started(own: Path, tree: Path) -> subprocess.Popen[str]:
    """Start the kit of a checkout in its own environment."""
    python = own / ".venv" / "bin" / "python"
    command = [str(python if python.exists() else sys.executable), __file__, "--kit", str(own), str(tree)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=own)


def asked(kit: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """Return what a kit tells of a mutant."""
    to, of = kit.stdin, kit.stdout
    assert to is not None
    assert of is not None
    print(name, file=to, flush=True)
    line = of.readline()
    if not line:
        sys.exit(f"{kit.args[-2]} ended at {name}")  # type: ignore[index]
    found: dict[str, Any] = json.loads(line)
    return found


def kept_of(lines: IO[str], about: list[str]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the results of earlier runs about the same checkout and mutants; a line that was cut is none."""
    found = {}
    for line in lines:
        try:
            same, name, other, this = json.loads(line)
        except ValueError:
            continue
        if same == about:
            found[name] = other, this
    return found


def table(results: dict[str, tuple[dict[str, Any], dict[str, Any]]], out: IO[str]) -> bool:
    """Write what differs, and the times; return True if no mutant is caught by the first only."""
    alike = [name for name, (a, b) in results.items() if all(a[key] == b[key] for key in ("caught", "names", "whole"))]
    lost = [name for name, (a, b) in results.items() if a["caught"] and not b["caught"]]
    print(
        f"{len(alike)} of {len(results)} alike; caught by the other checkout only: {', '.join(lost) or 'none'}",
        file=out,
    )
    for name in sorted(results.keys() - set(alike)):
        print(f"{name}\n  other: {results[name][0]['headline']}\n  this:  {results[name][1]['headline']}", file=out)
    before, now = ([pair[side]["seconds"] for pair in results.values()] for side in (0, 1))
    shares = [b / a for a, b in zip(before, now, strict=True) if a and b]
    if shares:
        print(
            f"seconds of the diagnosis, the other checkout and this: sum {sum(before):.1f} and {sum(now):.1f}, "
            f"median {statistics.median(before):.2f} and {statistics.median(now):.2f}; "
            f"median of ratios {statistics.median(shares):.2f}",
            file=out,
        )
    return not lost


def main() -> int:
    """Compare this checkout with another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout, with its environment in .venv")
    parser.add_argument("--mutants", choices=["this", "other"], default="this", help="whose mutants are run")
    parser.add_argument("--count", type=int, help="how many of them; all by default")
    parser.add_argument("--results", type=Path, default=HERE / "build" / "kits.jsonl", help="the file of results")
    given = parser.parse_args()
    other = given.other.resolve()
    tree = HERE if given.mutants == "this" else other
    names = sorted(mutants(tree))
    random.Random(13).shuffle(names)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    with given.results.open("a+") as kept:
        kept.seek(0)
        about = [str(other), given.mutants]
        results = kept_of(kept, about)
        kits = started(other, tree), started(HERE, tree)
        for name in [name for name in names[: given.count] if name not in results]:
            results[name] = asked(kits[0], name), asked(kits[1], name)
            print(json.dumps([about, name, *results[name]]), file=kept, flush=True)
        for kit in kits:
            kit.communicate()
    return 0 if table(results, sys.stdout) else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:2] == ["--kit"]:
        worker(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main())
