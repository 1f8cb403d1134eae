"""The same values in another format: theorems evaluated on the bytes of a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.formats import CUDA_E8M0, Floats
from fp4ref.quantized import Quantized
from fp4ref.spec import Spec
from fp4ref.specs import MXFP8_E4M3, MXFP8_E5M2
from fp4ref.theorems import moving, to_fp8
from fp4ref.theorems.evaluated import Bits, Evaluated, codes_of, factors_of, is_mxfp4, is_nvfp4, row_of


def moved(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether the bytes of an FP4 format are those of others. Rules: THM-4, THM-5, THM-6, THM-12, THM-13."""
    if not (is_mxfp4(spec) or is_nvfp4(spec)):
        return
    codes, scales, factors = codes_of(q), row_of(q).scales, factors_of(q)
    if is_nvfp4(spec):
        if factors is None:
            yield Evaluated("THM-6", "as MXFP4", False, True, "values are no products of a code and its block's factor")
        else:
            yield _as("MXFP4", "THM-6", moving.mxfp4_from_nvfp4(codes, factors))
    elif factors is None or not np.array_equal(factors, CUDA_E8M0.decode(scales), equal_nan=True):
        yield Evaluated("THM-4", "as NVFP4", False, True, "values are no products of a code and its block's scale")
    else:
        found = moving.nvfp4_from_mxfp4(codes, scales)
        kept = isinstance(found, moving.Exact) and found.kept
        yield _as("NVFP4", "THM-4" if kept else "THM-5", found)
        yield from _as_fp8(codes, scales)
        yield from _through_fp8(api.dequantize(q))


def _as(to: str, rule: str, found: moving.Exact | moving.Inexact) -> Evaluated:
    if isinstance(found, moving.Exact):
        return Evaluated(rule, f"as {to}", True, True, f"exactly {to}")
    first = f"the first in row {found.row}, block {found.block}"
    return Evaluated(rule, f"as {to}", False, True, f"not {to}: {found.reason}; {found.blocks:,} blocks, {first}")


def _as_fp8(codes: Bits, scales: Bits) -> Iterator[Evaluated]:
    """Yield whether MXFP4 bytes are FP8 codes under one power of two. Rules: THM-12."""
    for codec in to_fp8.CODECS.values():
        found = to_fp8.fp8_from_mxfp4(codes, scales, codec)
        name = codec.format.name.upper()
        exact = isinstance(found, to_fp8.Fp8)
        text = f"exactly {name} times 2^{found.exponent}" if isinstance(found, to_fp8.Fp8) else f"not: {found.reason}"
        yield Evaluated("THM-12", f"as {name} under one power of two", exact, True, text)


def _through_fp8(values: Floats) -> Iterator[Evaluated]:
    """Yield whether MXFP8 keeps the values of MXFP4 bytes. Rules: THM-13. Certificates: theorem-through-fp8."""
    finite = bool(np.isfinite(values).all())
    for spec in (MXFP8_E4M3, MXFP8_E5M2):
        after = api.dequantize(api.quantize(values, spec))
        wrong = int((after.view(np.uint32) != values.view(np.uint32)).sum())
        yield Evaluated(
            "THM-13", f"through {spec.name}", finite, not wrong, f"{wrong:,} of {values.size:,} values change"
        )
