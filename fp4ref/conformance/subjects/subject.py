"""Subjects: kernels on trial, their inputs for a case, and the outcome."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import arguments, hadamard
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import Case, cases
from fp4ref.conformance.families.variants import encodes
from fp4ref.conformance.subjects.packed import as_canonical, as_declared, data_shape, multiples
from fp4ref.errors import DomainError
from fp4ref.formats import F, Floats
from fp4ref.kernels import Declaration, declaration_of, kernel
from fp4ref.layout import layout
from fp4ref.model import dequantize as model_dequantize
from fp4ref.model import quantize as model_quantize
from fp4ref.model.tiles import Matrix, widen
from fp4ref.packing import unpack
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Granularity, Hadamard, Spec

__all__ = [
    "Declaration",
    "Job",
    "Subject",
    "cases_of",
    "job_of",
    "kernel",
    "reasons",
]


OWN_BITS = "own-bits"  # the family of a kernel that draws its random bits itself
READING = ("dequantize", "to_layout")  # operations that are given the bytes of a tensor
SEED = 20260822
TINY = np.finfo(F).smallest_normal
POISON = 0x7F  # what padding is filled with: NaN as an E4M3 scale, 2^0 as an E8M0 one


class Output(NamedTuple):
    """A result that is expected: shape, and NumPy type of its elements.

    start: what its buffer holds before. stored: rows and columns of the scales that it stores in a layout.
    """

    shape: tuple[int, ...]
    dtype: str
    start: NDArray[Any] | None = None
    stored: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Job:
    """A call: arguments in order, and the results that are expected, in order."""

    arguments: dict[str, NDArray[Any] | int]
    outputs: dict[str, Output]


@dataclass(frozen=True)
class Subject:
    """A kernel: a function, or the target that a process of its own imports; and how it is called.

    library: how a C function is called (CNF-16), if the target is one.
    """

    name: str
    declaration: Declaration
    function: Callable[..., Any] | None = None
    target: str | None = None
    library: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, function: Any, **changes: Any) -> Subject:
        """Return the subject of a function, to be called in this process. changes: fields of its declaration."""
        name = getattr(function, "__qualname__", type(function).__name__)
        declared = declaration_of(function)
        return cls(name, replace(declared, **changes) if changes else declared, function)


def cases_of(declared: Declaration, spec: Spec, **reach: Any) -> Iterator[Case]:
    """Return the cases of a specification in the direction, the types and the multiples that a kernel takes.

    reach: the other arguments of `families.cases`. The matrix of a Hadamard kernel has whole groups.

    Rules: CNF-7, CNF-8, CNF-19.
    """
    rows, columns = multiples(spec, declared)
    multiple = rows, lcm(columns, hadamard.POINTS) if declared.operation == "hadamard" else columns
    direction: Direction = "row" if declared.direction == "row" else "column"
    encoded = declared.operation in READING
    return cases(spec, directions=(direction,), dtypes=declared.dtypes, multiple=multiple, encoded=encoded, **reach)


def reasons(case: Case, declared: Declaration) -> str:
    """Why a case does not apply to a kernel; empty if it does. Rules: CNF-71, CNF-102."""
    rows, columns = case.matrix
    spec = case.spec
    high, wide = multiples(spec, declared)
    by_spec = spec.stochastic and draws(declared) and case.family != OWN_BITS
    for applies, reason in (
        (case.x.dtype.name in declared.dtypes, f"does not take {case.x.dtype.name}"),
        (case.direction == declared.direction, f"makes the {declared.direction} direction"),
        (declared.leading or case.x.ndim == 2, "takes matrices only"),
        (declared.empty or case.x.size > 0, "takes no empty tensors"),
        (rows % high == 0 and columns % wide == 0, f"takes multiples of {high} x {wide}"),
        (case.amax is None or declared.told_amax, "takes no amax"),
        (not by_spec, "takes no random bits"),
        (declared.operation != "hadamard" or _transformable(case), "takes bfloat16 of whole groups"),
        (
            declared.operation == "quantize" or np.isfinite(widen(np.ravel(case.x))).all(),
            "is not defined on NaN and Inf",
        ),
        (not _beyond(case, declared), "takes a scale instead of the amax"),
        (declared.operation != "dequantize" or _specials(case) <= set(declared.specials), "is given no NaN or Inf"),
    ):
        if not applies:
            return reason
    return ""


def _beyond(case: Case, declared: Declaration) -> bool:
    """Return True if a kernel is given a global scale that does not follow from the amax of the bytes."""
    amax = None if case.encoded is None else case.encoded.amax
    scaled = "encode_scale" in declared.inputs or "decode_scale" in declared.inputs
    return scaled and amax is not None and not (np.isfinite(amax) & (amax > TINY) & (amax < F(1) / TINY)).all()


def _specials(case: Case) -> set[str]:
    """Return the names of what given bytes hold beside numbers, of SPECIALS. Rules: DEQ-6."""
    q, spec = case.encoded, case.spec
    if q is None:
        return set()
    codes = unpack(np.asarray(q.data), case.matrix[1], spec.element.format)
    parts = [
        spec.element.decode(codes),
        spec.scale.decode(np.asarray(q.scales)),
        np.zeros(1) if q.amax is None else q.amax,
    ]
    found = {"nan": np.isnan, "inf": np.isinf}
    return {name for name, test in found.items() if any(test(part).any() for part in parts)}


def draws(declared: Declaration) -> bool:
    """Return True if a quantizer has to draw its random bits itself."""
    return declared.operation == "quantize" and "random_bits" not in declared.inputs


def drawn_from(case: Case) -> tuple[int, int]:
    """Return the seed and the offset that a case gives to a kernel that draws its own bits. Rules: SR-10."""
    return SEED, zlib.crc32(case.id.encode())


def _transformable(case: Case) -> bool:
    return case.x.dtype.name == "bfloat16" and case.matrix[1] % hadamard.POINTS == 0


def golden(case: Case) -> DirectionData:
    """Return the golden model's bytes of a case, or the bytes that it gives; scales linear. Rules: CNF-1, CNF-47."""
    known = case.encoded or case.made
    if known is not None:
        return known
    result: DirectionData = model_quantize.quantize(case.x, case.spec, case.direction, case.amax, case.random_bits)
    return result


def job_of(case: Case, declared: Declaration, expected: DirectionData) -> Job:
    """Return the call of a kernel for a case; its inputs are computed by the specification. expected: the golden bytes.

    Padding of scales that a kernel reads is poisoned, for it must not matter.

    Rules: CNF-8, DEQ-3, GLB-2, HAD-1, LAY-6.
    """
    rows, columns = case.matrix
    blocks = -(-columns // case.spec.block.columns)
    given: dict[str, Callable[[], NDArray[Any] | int]] = {
        "x": lambda: case.x if declared.operation != "hadamard" else transform_input(case),
        "amax": lambda: _amax(case, expected),
        "encode_scale": lambda: global_scales(case.spec, _amax(case, expected))[0],
        "decode_scale": lambda: global_scales(case.spec, _amax(case, expected))[1],
        "random_bits": partial(_bits, case),
        "seed": lambda: drawn_from(case)[0],
        "offset": lambda: drawn_from(case)[1],
        "hadamard_signs": lambda: hadamard.sign_vector(signs(case.spec)),
        "rows": lambda: rows,
        "columns": lambda: columns if declared.operation != "to_layout" else blocks,
        "data": lambda: as_declared(expected.data, case.matrix, case.spec, declared),
        "scales": lambda: poisoned(
            expected.scales, declared.source_layout if declared.operation == "to_layout" else declared.scale_layout
        ),
    }
    return Job({name: given[name]() for name in declared.inputs}, _outputs(case, declared, blocks))


def _outputs(case: Case, declared: Declaration, blocks: int) -> dict[str, Output]:
    rows, columns = case.matrix
    spec = case.spec
    if declared.operation == "to_layout":
        padded = layout(declared.scale_layout).padded_shape(rows, blocks)
        return {"scales": Output(padded, "uint8", stored=(rows, blocks))}
    if declared.operation == "dequantize":
        return {"values": Output((rows, columns), declared.to)}
    if declared.operation == "hadamard":
        return {"values": Output((rows, columns), "bfloat16")}
    shapes = arguments.buffer_shapes(spec, case.x.shape, case.direction, declared.scale_layout)
    found = {
        "data": Output(data_shape((rows, columns), spec, declared), "uint8"),
        "scales": Output(shapes.scales, "uint8", stored=(rows, blocks)),
    }
    if shapes.amax is not None:
        found["amax"] = Output(shapes.amax, "float32")
    if declared.transposed:
        found |= {name: found[name]._replace(shape=found[name].shape[::-1]) for name in ("data", "scales")}
    return {name: found[name] for name in declared.outputs if name in found}


def transform_input(case: Case) -> NDArray[Any]:
    """Return the matrix whose rows a Hadamard kernel transforms, [rows, columns] of the direction. Rules: HAD-4."""
    rows, columns = case.matrix
    return Matrix(case.x, case.direction)[slice(0, rows), slice(0, columns)]


def expected_values(case: Case, declared: Declaration, expected: DirectionData) -> NDArray[Any]:
    """Return the result of another operation than quantize. Rules: DEQ-1, DEQ-2, DEQ-3, HAD-1, HAD-2, LAY-5."""
    if declared.operation == "to_layout":
        return layout(declared.scale_layout).from_linear(expected.scales)
    if declared.operation == "hadamard":
        values = hadamard.transform(widen(transform_input(case)), signs(case.spec))
        return values.astype(INPUT_DTYPES["bfloat16"])
    to, source = INPUT_DTYPES[declared.to], case.x.dtype
    found: NDArray[Any] = model_dequantize.dequantize(expected, case.matrix, case.spec, to, source)
    return found


def signs(spec: Spec) -> int:
    """Return the sign mask of a specification, the standard's if it has none. Rules: HAD-1."""
    return (spec.hadamard or Hadamard()).signs


def _bits(case: Case) -> NDArray[np.uint8]:
    if case.random_bits is None:
        raise DomainError("kernel", f"random_bits for {case.spec.name}", "a stochastic specification", "SR-1")
    return case.random_bits


def _amax(case: Case, expected: DirectionData) -> Floats:
    if expected.amax is None:
        raise DomainError("kernel", f"amax for {case.spec.name}", "a specification with a global scale", "GLB-6")
    return np.asarray(expected.amax, F)


def global_scales(spec: Spec, amax: Floats) -> tuple[Floats, Floats]:
    """Return the scales that encode and that decode: the specification's own global scale and its reciprocal.

    Rules: CNF-8, GLB-2, GLB-3.
    """
    if spec.global_scale is Granularity.NONE:
        raise DomainError("kernel", f"encode_scale for {spec.name}", "a specification with a global scale", "GLB-6")
    with np.errstate(all="ignore"):
        k = model_quantize.constants(spec, np.dtype(F))
        g = np.asarray(model_quantize.global_scale(amax.reshape(-1, 1, 1, 1), spec, k), F).reshape(amax.shape)
        inverse = np.asarray(F(1) / g, F)
    return (g, inverse) if encodes(spec) else (inverse, g)


def poisoned(linear: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Scales in a layout, every byte of the padding poisoned. Rules: LAY-6."""
    order = layout(name)
    buffer = order.from_linear(linear)
    if buffer.size == linear.size:
        return buffer
    return np.where(order.valid(*linear.shape), buffer, np.uint8(POISON)).astype(np.uint8)


def normalised(case: Case, declared: Declaration, data: DirectionData) -> DirectionData:
    """Return bytes of a kernel in the canonical packing; the layout of scales stays. Rules: PACK-1, PACK-7."""
    return data._replace(data=as_canonical(np.asarray(data.data), case.matrix, case.spec, declared))
