"""Declarations by which a kernel's author lets the conformance kit call a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import prod
from typing import Any, TypeVar, overload

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.errors import DomainError
from fp4ref.layout import LINEAR, layout
from fp4ref.packings import CANONICAL, packing
from fp4ref.quantized import DIRECTIONS, Direction

Function = TypeVar("Function", bound=Callable[..., Any])

ATTRIBUTE = "__fp4ref__"  # of a declared function
SPECIALS = ("nan", "inf")  # what operands of a gemm may hold beside numbers
LARGEST_MULTIPLE = 1 << 20  # elements of the smallest tensor that a kernel takes, to which every case is padded
SCALES_OF = ("amax", "encode_scale", "decode_scale")
OF_DIRECTIONS = tuple(  # inputs of a gemm: both directions of a tensor
    f"{side}_{direction}_{part}" for side in "ab" for direction in DIRECTIONS for part in ("data", "scales")
)
INPUTS: dict[str, tuple[str, ...]] = {
    "quantize": ("x", *SCALES_OF, "random_bits", "seed", "offset", "hadamard_signs", "rows", "columns"),
    "dequantize": ("data", "scales", *SCALES_OF, "rows", "columns"),
    "to_layout": ("scales", "rows", "columns"),
    "hadamard": ("x", "hadamard_signs"),
    "gemm": (
        *("a_data", "a_scales", "a_amax", "b_data", "b_scales", "b_amax", "alpha", "bias", "accumulate"),
        *OF_DIRECTIONS,
        *("rows", "columns", "depth"),
    ),
}
OUTPUTS: dict[str, tuple[str, ...]] = {
    "quantize": ("data", "scales", "amax"),
    "dequantize": ("values",),
    "to_layout": ("scales",),
    "hadamard": ("values",),
    "gemm": ("values",),
}


def device_type(device: str) -> str:
    """Return the type of a device by its name: "cuda" of "cuda:1"."""
    return device.partition(":")[0]


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The declaration of a kernel: its inputs, outputs, types, layouts and limits.

    operation: quantize, dequantize, to_layout, hadamard or gemm. inputs: positional arguments, in order: x [..., K];
    amax float32 [1] or [rows]; encode_scale and decode_scale, float32 like amax, the spec's global scale and its
    reciprocal; random_bits uint8 [rows, columns], or seed and offset, integers, of a kernel that draws its own by a map
    of `fp4ref.random_maps`; hadamard_signs float32 [16], +-1; rows and columns, integers, of
    the direction's matrix; data and scales as outputs of quantize. outputs: results, in order; without amax it is not
    judged. optional_amax: two results stand for three without the last. packing: the name of the packing of
    data, "canonical" or one of `fp4ref.PACKINGS`; nibble_order: "high" is short for the packing "high_first" of 4-bit
    elements. scale_layout: of the scales; source_layout: of those that to_layout is given.
    transposed: data and scales are the transposes of what they should be, which takes 8-bit elements and linear
    scales. to: type of the values that dequantize and gemm give. out_buffers: results are written to buffers given as
    the keyword `out`, a tuple in the order of the outputs. alignment: bytes to which buffers must be aligned; they are
    aligned to no more. arrays: "numpy" or "torch"; device: of torch. dtypes: of x. multiple: rows and columns of the
    direction's matrix that it takes are multiples of these. leading: takes tensors of other than two dimensions.
    empty: takes tensors without elements. strided: takes x whose rows are apart.

    gemm: values [rows, columns], d[m, n] = sum of A[m, k] B[n, k] over k < depth. Inputs are data, scales and amax of a
    [rows, depth] and b [columns, depth]; alpha, float32 [1], is what sums are multiplied by (GEM-5); bias, float32
    [columns], and accumulate, [rows, columns] of type `to`, are added (GEM-8). in_place: what is added is in the
    buffer `out` instead. directions: of the tensors whose bytes a and b are; a_row_data, a_row_scales, a_column_data
    and a_column_scales are both directions of the tensor, and b's as well. transposed: column directions are given as
    they are stored beside the tensor, 8-bit data [depth, rows] and linear scales likewise; tiled ones as ever.
    multiple: of rows and columns, and of depth.

    specials: what operands of gemm, and the bytes that dequantize is given, may hold beside numbers, of "nan" and
    "inf".

    Rules: CNF-8.
    """

    operation: str = "quantize"
    inputs: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("data", "scales", "amax")
    optional_amax: bool = False
    nibble_order: str = "low"
    packing: str = CANONICAL
    scale_layout: str = "linear"
    source_layout: str = "linear"
    direction: str = "row"
    transposed: bool = False
    to: str = "float32"
    out_buffers: bool = False
    alignment: int = 16
    arrays: str = "numpy"
    device: str = "cpu"
    dtypes: tuple[str, ...] = tuple(INPUT_DTYPES)
    multiple: tuple[int, int] = (1, 1)
    leading: bool = True
    empty: bool = True
    strided: bool = False
    directions: tuple[Direction, Direction] = ("row", "row")
    in_place: bool = False
    specials: tuple[str, ...] = SPECIALS

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "dtypes", "multiple", "directions", "specials"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _require(self.operation in INPUTS and INPUTS[self.operation], f"operation {self.operation!r}", _words(INPUTS))
        for what, given, known in (
            ("input", self.inputs, INPUTS[self.operation]),
            ("output", self.outputs, OUTPUTS[self.operation]),
            ("dtype", self.dtypes, tuple(INPUT_DTYPES)),
        ):
            unknown = [name for name in given if name not in known]
            _require(not unknown, f"{what} {unknown[0]!r} of {self.operation}" if unknown else "", _words(known))
            _require(given and len(set(given)) == len(given), f"{what}s {', '.join(given) or 'none'}", "each once")
        _require(self.nibble_order in {"low", "high"}, f"nibble_order {self.nibble_order!r}", "low or high")
        _require(self.direction in DIRECTIONS, f"direction {self.direction!r}", _words(DIRECTIONS))
        _require(self.arrays in {"numpy", "torch"}, f"arrays {self.arrays!r}", "numpy or torch")
        _require(self.arrays == "torch" or self.device == "cpu", f"numpy arrays on {self.device}", "arrays='torch'")
        _require(self.to in INPUT_DTYPES, f"to {self.to!r}", _words(INPUT_DTYPES))
        _require(_power_of_two(self.alignment), f"alignment {self.alignment}", "a power of two")
        _require(len(self.multiple) == 2 and min(self.multiple) >= 1, f"multiple {self.multiple}", "(rows, columns)")
        _require(prod(self.multiple) <= LARGEST_MULTIPLE, f"multiple {self.multiple}", "a product of at most 2^20")
        whole = len(self.directions) == 2 and set(self.directions) <= set(DIRECTIONS)
        _require(whole, f"directions {self.directions}", "row or column, of a and of b")
        _require(set(self.specials) <= set(SPECIALS), f"specials {self.specials}", _words(SPECIALS))
        adds = self.operation == "gemm" and self.out_buffers and "accumulate" not in self.inputs
        _require(adds or not self.in_place, "in_place", "a gemm with out_buffers and without the input accumulate")
        if self.packing != CANONICAL:
            packing(self.packing)
            plain = self.nibble_order == "low" and not self.transposed
            _require(plain, f"packing {self.packing!r} and another order of data", "one of them")
        layout(self.scale_layout)
        layout(self.source_layout)
        linear = self.scale_layout == LINEAR.name or self.operation == "gemm"
        _require(linear or not self.transposed, f"transposed scales in {self.scale_layout}", "scale_layout='linear'")

    @property
    def told_amax(self) -> bool:
        """Return True if the global amax, or a scale made of it, is an input."""
        return any(name in SCALES_OF for name in self.inputs)

    @property
    def on_cuda(self) -> bool:
        """True if arrays are on a CUDA device."""
        return device_type(self.device) == "cuda"

    @property
    def sees_directions(self) -> bool:
        """True for a gemm that is given both directions of a tensor."""
        return not {*OF_DIRECTIONS}.isdisjoint(self.inputs)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON data."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def _require(holds: Any, got: str, needed: str) -> None:
    if not holds:
        raise DomainError("kernel", got, needed, "CNF-8")


def _words(names: Any) -> str:
    return f"one of {', '.join(names)}"


def _power_of_two(value: int) -> bool:
    return value >= 1 and value & (value - 1) == 0


UNDECLARED = Declaration(optional_amax=True)


@overload
def kernel(function: Function, /) -> Function: ...
@overload
def kernel(**settings: Any) -> Callable[[Function], Function]: ...
def kernel(function: Function | None = None, /, **settings: Any) -> Function | Callable[[Function], Function]:
    """Declare how a kernel is called; a decorator that leaves the function as it is.

    settings: fields of Declaration.

    >>> import fp4ref
    >>> @fp4ref.kernel(
    ...     inputs=("x", "encode_scale"),
    ...     outputs=("data", "scales"),
    ...     scale_layout="tiled_128x4",
    ... )
    ... def quantize(x, encode_scale): ...

    Rules: CNF-8.
    """
    unknown = set(settings) - {item.name for item in fields(Declaration)}
    _require(not unknown, f"unknown {', '.join(sorted(unknown))}", _words([item.name for item in fields(Declaration)]))
    declaration = Declaration(**settings) if settings else UNDECLARED

    def declared(function: Function) -> Function:
        setattr(function, ATTRIBUTE, declaration)
        return function

    return declared if function is None else declared(function)


def declaration_of(function: Any) -> Declaration:
    """Return a function's declaration; by default it takes x, and returns data, scales and perhaps amax."""
    found = getattr(function, ATTRIBUTE, UNDECLARED)
    assert isinstance(found, Declaration)
    return found
