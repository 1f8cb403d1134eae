"""The levels of conformance that a statement cites, with what of each was outside of the trial."""

from __future__ import annotations

from collections.abc import Iterator

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.kernels import SCALES_OF, SPECIALS, Declaration
from fp4ref.layout import LINEAR
from fp4ref.packings import CANONICAL
from fp4ref.quantized import DIRECTIONS
from fp4ref.spec import SPEC_VERSION, Granularity, Spec

LEVELS = {  # of the row direction, and of the column direction
    "quantize": ("quantize, row", "quantize, both directions"),
    "dequantize": ("dequantize", "dequantize"),
    "to_layout": ("layouts", "layouts"),
    "gemm": ("gemm", "gemm"),
}


def cited(spec: Spec, declared: Declaration) -> dict[str, list[str]]:
    """Return the citation of each level that a declared operation belongs to, and what of the level it leaves out.

    Rules: RES-3, CNF-62.
    """
    levels = LEVELS.get(declared.operation)
    if levels is None:
        return {}
    found = {levels[DIRECTIONS.index(declared.direction)]: [*_left_out(spec, declared)]}
    if spec.stochastic and declared.operation == "quantize":
        given = "random_bits" in declared.inputs
        found["stochastic"] = [] if given else ["random bits that are given"]
    return {f"fp4ref spec {SPEC_VERSION}, {spec.name}, {level}": lacks for level, lacks in found.items()}


def _left_out(spec: Spec, declared: Declaration) -> Iterator[str]:
    operation = declared.operation
    if operation == "quantize":
        yield from _left_out_of_quantization(spec, declared)
    elif operation == "to_layout":
        yield f"layouts other than {declared.source_layout} to {declared.scale_layout}"
        yield "groups, ranges of rows and flags"
    else:
        yield from (f"results of {name}" for name in INPUT_DTYPES if name != declared.to)
    if operation == "gemm":
        yield "the modes exact and blockwise"
        yield from (f"the argument {name}" for name in ("alpha", "bias", "accumulate") if name not in declared.inputs)
        read = f"the {declared.directions[0]} direction of A and the {declared.directions[1]} direction of B"
        yield f"operands other than {read}"
    if operation in {"dequantize", "gemm"}:
        yield from (f"bytes that stand for {name}" for name in SPECIALS if name not in declared.specials)
    if operation in {"quantize", "dequantize"}:
        if (operation, declared.direction) != ("quantize", "row"):
            yield f"the {'column' if declared.direction == 'row' else 'row'} direction"
        if declared.scale_layout != LINEAR.name:
            yield f"scales in {LINEAR.name}: they are in {declared.scale_layout}"
        packing = "high_first" if declared.nibble_order == "high" else declared.packing
        if packing != CANONICAL:
            yield f"the packing of chapter 04: codes are in {packing}"
        if declared.transposed:
            yield "rows of the direction: data and scales are transposed"
    if max(declared.multiple) > 1:
        yield f"rows and columns that are not multiples of {declared.multiple[0]} and {declared.multiple[1]}"
    if not declared.empty:
        yield "tensors without elements"


def _left_out_of_quantization(spec: Spec, declared: Declaration) -> Iterator[str]:
    yield from (f"inputs of {name}" for name in INPUT_DTYPES if name not in declared.dtypes)
    if not declared.leading:
        yield "tensors of other than two dimensions"
    if spec.global_scale is not Granularity.NONE:
        given = [name for name in SCALES_OF if name in declared.inputs]
        yield "the amax that quantization finds: it is given" if given else "an amax that a caller gives"
        if "amax" not in declared.outputs:
            yield "the stored amax"
