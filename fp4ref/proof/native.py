"""Run a check of the shared header over a range of numbers: compiled once into the user's cache, on all processors.

A check is a C++ expression of `u64 i` that is true where the claim fails. The range is cut into parts, whose counts of
failures and first failures are combined. The same text runs elsewhere where a caller says so.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fp4ref.errors import BackendError
from fp4ref.proof.claims import Tell

PARTS = 64  # of a range: how often progress is told
NONE = (1 << 64) - 1
Found = tuple[int, int | None]  # how many fail, and the first
Run = Callable[[str, str, int, Tell, Sequence[int], int], Found]
_elsewhere: ContextVar[Run | None] = ContextVar("elsewhere", default=None)

HOST = """
#include <fp4ref/fp4ref.h>
#include <fp4ref/thresholds.h>
#define EXPORT extern "C" __attribute__((visibility("default"))) void
namespace proof_@ {
using namespace fp4ref;
// Count where `bad` is true; found[0] is the count, found[1] the first place. The inner loop can be vectorised.
template <class Bad> static void sweep(u64 from, u64 to, u64* found, Bad bad)
{
    for (u64 start = from; start < to; start += 4096) {
        const u64 stop = start + 4096 < to ? start + 4096 : to;
        unsigned wrong = 0;
        for (u64 i = start; i < stop; ++i) wrong += bad(i) ? 1u : 0u;
        if (wrong && start < found[1])
            for (u64 i = stop; i-- > start;)
                if (bad(i)) found[1] = i < found[1] ? i : found[1];
        found[0] += wrong;
    }
}
"""
STEPS = """
// Count where `of` differs from a step function: a[] holds the number of starts, the starts, and a result for each.
template <class Of> static void sweep_steps(u64 from, u64 to, const u64* a, u64* found, Of of)
{
    const u64 n = a[0];
    for (u64 k = 0; k < n; ++k) {
        const u64 begin = a[1 + k], end = k + 1 < n ? a[2 + k] : to;
        const unsigned expected = (unsigned)a[1 + n + k];
        sweep(begin > from ? begin : from, end < to ? end : to, found,
            [&of, expected](u64 i) { return of((unsigned)i) != expected; });
    }
}
"""


def text(checks: dict[str, str], helpers: str = "") -> str:
    """Return the C++ text of checks by name: the body of a function of `u64 i` that returns true where a claim fails.

    A body may use `const u64* a`, the numbers that `sweep` is given.
    """
    functions = [
        f"EXPORT fp4ref_{name}_@(u64 from, u64 to, const u64* a, u64* found)\n"
        f"{{\n    sweep(from, to, found, [a](u64 i) {{ (void)a; {body} }});\n}}\n"
        for name, body in checks.items()
    ]
    return HOST + STEPS + helpers + "".join(functions) + "}\n"


def step_text(functions: dict[str, str], helpers: str = "") -> str:
    """Return the C++ text of checks by name: each an expression of a pattern `bits` that is to be a step function."""
    parts = [
        f"EXPORT fp4ref_{name}_@(u64 from, u64 to, const u64* a, u64* found)\n"
        f"{{\n    sweep_steps(from, to, a, found, [](unsigned bits) {{ return (unsigned)({value}); }});\n}}\n"
        for name, value in functions.items()
    ]
    return HOST + STEPS + helpers + "".join(parts) + "}\n"


@contextmanager
def elsewhere(run: Run) -> Iterator[None]:
    """Have another function run the checks meanwhile."""
    before = _elsewhere.set(run)
    try:
        yield
    finally:
        _elsewhere.reset(before)


def sweep(source: str, name: str, size: int, tell: Tell, arguments: Sequence[int] = (), start: int = 0) -> Found:
    """Run a check over `size` numbers from `start` on; return how many fail, and the first.

    Errors: BackendError without a compiler.
    """
    run_elsewhere = _elsewhere.get()
    if run_elsewhere is not None:
        return run_elsewhere(source, name, size, tell, arguments, start)
    try:
        from fp4ref_cpu import build  # lazy: a backend, of which an installation can lack the compiler
    except ImportError as error:
        raise BackendError("prove", f"no cpu backend ({error})", "fp4ref_cpu") from None
    takes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)
    (function,) = build.functions(source, name, takes=takes)
    numbers = (ctypes.c_uint64 * max(len(arguments), 1))(*arguments)
    step = max(-(-size // PARTS), 4096)
    done = [0]

    def run(first: int) -> tuple[int, int]:
        found = (ctypes.c_uint64 * 2)(0, NONE)
        stop = min(first + step, start + size)
        function(first, stop, numbers, found)
        done[0] += stop - first
        tell(done[0] / size)
        return found[0], found[1]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(run, range(start, start + size, step)))
    first = min(place for _, place in results)
    return sum(count for count, _ in results), None if first == NONE else first


def version() -> str:
    """Return the first line in which the compiler names itself."""
    from fp4ref_cpu import build

    lines: Any = build._version(tuple(build.compiler())).splitlines()
    return lines[0] if lines else ""
