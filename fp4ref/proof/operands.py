"""A claim about pairs of operands of a product: they are refused exactly where a rule refuses them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np

from fp4ref import multiply
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.errors import DomainError, Fp4Error
from fp4ref.formats import FORMATS, Codec, F, Rounding
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.code_values import ANY_NAN, patterns_of
from fp4ref.proof.steps import INFINITY, number
from fp4ref.quantized import Direction, DirectionData, Quantized
from fp4ref.spec import Block, Granularity, Hadamard, Spec

ELEMENTS = ("e2m1", "e5m2")
SCALES = ("e4m3", "ue4m3", "e8m0", "e5m2", "ue5m3")
WIDTHS = (16, 32)
MASKS = (None, 0xD7E8, 0x0001)
ARITHMETICS = {"te": True, "compressed-tensors": False}  # whether values are those of DEQ-1
DIRECTIONS: tuple[Direction, Direction] = ("row", "column")
SIDE = 32  # of the matrices


def _codec(name: str) -> Codec:
    return Codec(format=FORMATS[name], rounding=Rounding.UP if name == "e8m0" else Rounding.EVEN, nan=(0, 0))


@lru_cache
def specs() -> tuple[Spec, ...]:
    """Return the specifications that rules do not refuse."""
    found = []
    for element, scale, width, mask, kind, arithmetic in product(
        ELEMENTS, SCALES, WIDTHS, MASKS, Granularity, ARITHMETICS
    ):
        refused = (kind is Granularity.ROW and mask is not None) or (kind is not Granularity.NONE and scale == "e8m0")
        if refused or (kind is Granularity.NONE and arithmetic != "te"):  # GLB-5, GLB-6; an order without an amax
            continue
        name = f"{element} {scale} {width} {kind} {arithmetic}"
        transform = None if mask is None else Hadamard(mask)
        numerics = {"element": _codec(element), "scale": _codec(scale), "arithmetic": ARITHMETIC[arithmetic]}
        found.append(Spec(name=name, block=Block(1, width), global_scale=kind, hadamard=transform, **numerics))  # type: ignore[arg-type]
    return tuple(found)


def _zeros(spec: Spec) -> Quantized:
    """Return a tensor of zeros in both directions."""
    size = SIDE * spec.element.format.bits // 8
    counts = {Granularity.NONE: None, Granularity.TENSOR: 1, Granularity.ROW: SIDE}
    count = counts[spec.global_scale]
    amax = None if count is None else np.zeros(count, F)
    part = DirectionData(np.zeros((SIDE, size), np.uint8), np.zeros((SIDE, SIDE // spec.block.columns), np.uint8), amax)
    return Quantized(spec, (SIDE, SIDE), "bfloat16", "linear", part, part)


@lru_cache
def _steps(name: str) -> Fraction:
    """Return the largest value of a format, counted in its smallest one."""
    finite = [number(int(p)) for p in patterns_of(name) if p != ANY_NAN and 0 < p < INFINITY]
    return max(finite) / min(finite)


def fitting(a: Spec, b: Spec, directions: tuple[Direction, Direction]) -> set[str]:
    """Return the rules that refuse a pair. Rules: GEM-9, GEM-10, GEM-57, GEM-58, GEM-59, GEM-60."""
    scales, widths, kinds = ([of(spec) for spec in (a, b)] for of in (_scale, _width, _has_global_scale))
    spans = [
        _steps(spec.element.format.name) * (1 if _scale(spec) == "e8m0" else _steps(_scale(spec))) for spec in (a, b)
    ]
    masks = [
        spec.hadamard.signs if spec.hadamard is not None and direction == "column" else None
        for spec, direction in zip((a, b), directions, strict=True)
    ]
    refusing = {
        "GEM-9": scales[0] != scales[1] or not {*scales} <= {"e4m3", "ue4m3", "e8m0"},
        "GEM-10": masks[0] != masks[1],
        "GEM-57": widths[0] != widths[1],
        "GEM-58": kinds[0] != kinds[1],
        "GEM-59": not all(ARITHMETICS[spec.arithmetic.name] for spec in (a, b)),
        "GEM-60": max(spans) >= 2**62,
    }
    return {rule for rule, refuses in refusing.items() if refuses}


def _scale(spec: Spec) -> str:
    return spec.scale.format.name


def _width(spec: Spec) -> int:
    return spec.block.columns


def _has_global_scale(spec: Spec) -> bool:
    return spec.global_scale is not Granularity.NONE


def pairs(tell: Tell) -> Replayed:
    """Ask for the product of every pair of operands in every pair of directions."""
    operands = [(spec, _zeros(spec)) for spec in specs()]
    count = 0
    for (a, left), (b, right) in product(operands, operands):
        for directions in product(DIRECTIONS, DIRECTIONS):
            count += 1
            rules = fitting(a, b, directions)
            said = f"{a.name} ({directions[0]}) and {b.name} ({directions[1]})"
            try:
                multiply._operands(left, right, directions)
            except DomainError as error:
                if error.rule not in rules or not all(spec.name in error.got for spec in (a, b)):
                    return Replayed(count, f"{said} are refused by `{error}`, need {sorted(rules) or 'no refusal'}")
                continue
            except Fp4Error as error:
                return Replayed(count, f"{said}: {error}")
            if rules:
                return Replayed(count, f"{said} are not refused, though {' and '.join(sorted(rules))} refuse them")
        tell(count / (4 * len(operands) ** 2))
    return Replayed(count)


def claims() -> Iterator[ProofClaim]:
    """Yield the claim about pairs of operands."""
    yield ProofClaim(
        name="operands/golden",
        rules=("GEM-9", "GEM-10", "GEM-57", "GEM-58", "GEM-59", "GEM-60"),
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.GOLDEN,
        statement="A pair of operands is refused exactly where a rule refuses it, by an error that names both.",
        domain=f"all pairs of {len(specs())} specifications in all directions: elements, scales, widths, global "
        "scales, transforms and orders of dequantization",
        size=4 * len(specs()) ** 2,
        decide=pairs,
        covers=("fp4ref.multiply:_require_formats", "fp4ref.multiply:_require_hadamard"),
    )
