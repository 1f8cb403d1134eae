"""The compiled functions that quantize: the texts that they are made of, and which specifications share one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fp4ref.formats import CUDA_E2M1, CUDA_E4M3
from fp4ref.quantized import DirectionChoice
from fp4ref.spec import Block, Granularity, Spec
from fp4ref_cpu.build import functions
from fp4ref_cpu.native import exported, without_hadamard

STRIP, NARROW = 1024, 128  # elements of a strip


def of_direction(spec: Spec, direction: DirectionChoice) -> Spec:
    """Return the specification without a transform where there is none."""
    return without_hadamard(spec) if direction == "row" and spec.hadamard else spec


@lru_cache
def maximum(spec: Spec) -> Spec:
    """Return the specification without what a maximum does not depend on, so that many share one compiled function."""
    return Spec(
        name="maximum",
        element=CUDA_E2M1,
        scale=CUDA_E4M3,
        block=Block(1, 16),
        global_scale=spec.global_scale,
        amax=spec.amax,
        subnormals=spec.subnormals,
        hadamard=spec.hadamard,
    )


@lru_cache
def quantizer(prelude: str, dtype: str, strip: int = STRIP) -> Any:
    """Return the compiled `quantize` for a lowered specification and an input type. strip: elements of a strip."""
    return functions(quantizing_text(prelude, dtype, strip), "quantize")[0]


def strip_of(spec: Spec, rows: int, columns: int) -> int:
    """Return the elements of a strip: fewer where a direction's rows, which share none, fill only a part of it."""
    if len(strips(spec)) == 1:
        return STRIP
    whole = columns if spec.global_scale is Granularity.ROW else -(-rows // spec.block.rows) * columns
    return NARROW if whole <= STRIP // 4 else STRIP


@lru_cache
def bounder(prelude: str, dtype: str) -> Any:
    """Return the compiled `amax`."""
    return functions(bounding_text(prelude, dtype), "amax")[0]


def strips(spec: Spec) -> tuple[int, ...]:
    """Return the elements of a strip for matrices of every size, one after the other."""
    apart = spec.global_scale is Granularity.ROW or spec.block.rows > 1
    return (STRIP, NARROW) if apart and spec.block.columns <= NARROW else (STRIP,)


def quantizing_text(prelude: str, dtype: str, strip: int = STRIP) -> str:
    """Return the text that exports `quantize` for a lowered specification and an input type, by strips of a size."""
    size = "" if strip == STRIP else f", {strip}"
    return exported(prelude, "quantize.h", f"Loops<Specification, fp4ref::{dtype}{size}>", "quantize")


def bounding_text(prelude: str, dtype: str) -> str:
    """Return the text that exports `amax` for a lowered specification and an input type."""
    return exported(prelude, "quantize.h", f"Loops<Specification, fp4ref::{dtype}>", "amax")


@lru_cache
def transformer(prelude: str) -> Any:
    """Return the compiled `transform`."""
    return functions(transforming_text(prelude), "transform")[0]


def transforming_text(prelude: str) -> str:
    """Return the text that exports `transform`, which writes a transformed direction out."""
    return exported(prelude, "transform.h", "Transformed<Specification>", "transform")
