"""Functions of the cpu backend that tests call, compiled many to a library: alone, each takes three times as long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import fp4ref
from fp4ref import registry
from fp4ref.errors import Fp4Error
from fp4ref.registry import Call

TYPES = ("float32", "bfloat16", "float16")


def together(calls: Iterable[Call]) -> None:
    """Compile what the cpu backend needs for calls; nothing where it cannot run, which its own tests report."""
    with suppress(Fp4Error):
        cpu = registry.get("cpu")
        unserved = registry.backends()["cpu"].unserved
        cpu.prefetch([call for call in calls if not unserved(call)], lambda line: None)


def calls_of_the_standard() -> Iterator[Call]:
    """Yield the calls that many files share: all specifications of the standard, in all types."""
    for spec in (spec for name, spec in fp4ref.profiles.items() if "." not in name):
        for source in ("bfloat16",) if spec.hadamard else TYPES:
            yield Call("quantize", spec, source, "column" if spec.hadamard else "row")
            yield from (Call("dequantize", spec, source, to=to) for to in TYPES)
    multiplied = fp4ref.NVFP4, fp4ref.NVFP4_ROW_SCALED, fp4ref.MXFP4, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2
    for spec in multiplied:
        yield from (Call(operation, spec, spec_b=spec) for operation in ("gemm_exact", "gemm_fast"))
