"""Hypothesis strategies for tests of quantizers: specifications, tensors that are aimed at them, layouts, random bits.

Needs the package hypothesis: `pip install 'fp4ref[hypothesis]'`.

    from hypothesis import given, strategies as st
    from fp4ref import strategies as fp4

    @given(spec=fp4.specs(), data=st.data())
    def test_my_quantizer(spec, data):
        x = data.draw(fp4.tensors(spec))
        ...
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("fp4ref.strategies needs hypothesis: pip install 'fp4ref[hypothesis]'") from error

from fp4ref.catalogue import resolve
from fp4ref.conformance import families as aimed
from fp4ref.conformance.families import Case
from fp4ref.conformance.families.strategies import (
    amax_at_powers_of_two,
    blocks,
    float32s,
    matrices,
    near,
    near_midpoints,
    near_values,
    shapes,
    subnormals,
    zero_blocks,
)
from fp4ref.errors import DomainError
from fp4ref.formats import E2M1, STOCHASTIC_E2M1
from fp4ref.layout import STANDARD_LAYOUTS, Layout
from fp4ref.quantized import Direction
from fp4ref.spec import Amax, Block, FourOverSix, Granularity, Hadamard, Metric, Spec, Subnormals
from fp4ref.specs import STANDARD

__all__ = [
    "amax_at_powers_of_two",
    "blocks",
    "cases",
    "drawn_layouts",
    "float32s",
    "layouts",
    "matrices",
    "near",
    "near_midpoints",
    "near_values",
    "random_bits",
    "shapes",
    "specs",
    "subnormals",
    "tensors",
    "zero_blocks",
]

TYPES = ("float32", "bfloat16", "float16")
LARGE = ("large", "everywhere", "sizes", "weights")  # families that only a caller who names them gets
BLOCKS = tuple(Block(rows, columns) for rows in (1, 2, 16, 32) for columns in (16, 32, 1, 7, 64))
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "block": st.sampled_from(BLOCKS),
    "amax": st.sampled_from(Amax),
    "subnormals": st.sampled_from(Subnormals),
    "global_scale": st.sampled_from(Granularity),
    "element_max": st.sampled_from((1.0, 4.0, 6.0)),
    "hadamard": st.integers(0, 0xFFFF).map(Hadamard),
    "four_over_six": st.builds(FourOverSix, metric=st.sampled_from(Metric), scale_max=st.sampled_from((448.0, 256.0))),
}


@st.composite
def specs(
    draw: st.DrawFn, bases: Sequence[Spec | str] = STANDARD, *, changed: bool = True, stochastic: bool = False
) -> Spec:
    """Draw specifications: one of `bases`, by default the standard's own, with some fields changed. All are legal.

    changed: whether fields are. stochastic: whether elements may round stochastically. They shrink to the first base.

    >>> from hypothesis import find
    >>> find(specs(), lambda spec: True).name
    'nvfp4'

    Rules: SPC-1, SPC-2.
    """
    spec = resolve(draw(st.sampled_from(list(bases))))
    if stochastic and spec.element.format is E2M1 and draw(st.booleans()):
        spec = _changed(spec, "element", STOCHASTIC_E2M1)
    for name in CHANGES if changed else ():
        if draw(st.integers(0, 3)) == 3:
            spec = _changed(spec, name, draw(CHANGES[name]))
    return spec


def _changed(spec: Spec, name: str, value: Any) -> Spec:
    """Return the specification with another value in a field, or as it is if that has no meaning."""
    try:
        return spec.replace(**{name: value})
    except DomainError:
        return spec


@st.composite
def cases(
    draw: st.DrawFn,
    spec: Spec | str,
    *,
    families: Sequence[str] | None = None,
    dtypes: Sequence[str] = TYPES,
    direction: Direction = "row",
) -> Case:
    """Draw aimed cases: x with the amax and the random bits that go with it; shrinks to the first family.

    families: names, by default all but the large ones. dtypes: of x.

    Errors: DomainError for an unknown family, and where no family has a member for the specification.

    >>> from hypothesis import find
    >>> find(cases("nvfp4"), lambda case: case.family == "nan").id
    'nan/one/f32/row'

    Rules: CNF-7.
    """
    resolved = resolve(spec)
    names = tuple(family.name for family in aimed.chosen(families) if families is not None or family.name not in LARGE)
    found = [(name, dtype) for name in names for dtype in dtypes if _members(name, resolved, dtype, direction)]
    if not found:
        needed = "a specification and types that some family is made for"
        raise DomainError("cases", f"{resolved.name} in {', '.join(dtypes)}", needed, "CNF-7")
    name, dtype = draw(st.sampled_from(found))
    return draw(st.sampled_from(_members(name, resolved, dtype, direction)))


@lru_cache(256)
def _members(name: str, spec: Spec, dtype: str, direction: Direction) -> tuple[Case, ...]:
    family = aimed.FAMILIES[name]
    made = aimed.members(family, spec, dtype, direction)
    return tuple(aimed.case_of(family, member, spec, direction) for member in made)


def tensors(
    spec: Spec | str,
    *,
    families: Sequence[str] | None = None,
    dtypes: Sequence[str] = TYPES,
    direction: Direction = "row",
) -> st.SearchStrategy[NDArray[Any]]:
    """Return tensors [..., K] aimed at a specification: those of `cases`, and freely drawn ones of aimed blocks.

    With `families`, only the members of these.

    >>> from hypothesis import find
    >>> find(tensors("mxfp4", families=["zero-tensor"]), lambda x: x.dtype == np.float16).any()
    np.False_

    Rules: CNF-7.
    """
    resolved = resolve(spec)
    listed = cases(resolved, families=families, dtypes=dtypes, direction=direction).map(lambda case: case.x)
    if families is not None or resolved.hadamard:
        return listed
    types = st.sampled_from([np.dtype(aimed.aim("", resolved, name).dtype) for name in dtypes])
    drawn = types.flatmap(lambda dtype: matrices(resolved.block, resolved.element.format, dtype=dtype, finite=False))
    return drawn | listed


def layouts() -> st.SearchStrategy[str]:
    """Return names of scale layouts; shrinks to linear.

    Rules: LAY-7.
    """
    return st.sampled_from([form.name for form in STANDARD_LAYOUTS])


@st.composite
def drawn_layouts(draw: st.DrawFn) -> Layout:
    """Draw scale layouts out of the algebra: digits, stored order, flips, turns, alignment, base, padding and tables.

    No size is refused, and no digit repeated: every scale has a place of its own. They are not registered:
    `fp4ref.register` makes one known by name.

    >>> from hypothesis import find
    >>> find(drawn_layouts(), lambda layout: layout.has_gaps and layout.takes_rows).has_gaps
    True

    Rules: LAY-13, LAY-14, LAY-15, LAY-16, LAY-17, LAY-19, LAY-21.
    """
    axes, places, clauses = [], [], []
    counts: dict[str, int] = {}  # values of each digit that is no rest
    for name in ("m", "k"):
        radices = draw(st.lists(st.sampled_from((2, 3, 4, 8, 16)), max_size=3).filter(lambda r: math.prod(r) <= 128))
        rest = draw(st.integers(0, len(radices)))
        axes.append(f"{name}({','.join([*map(str, radices[:rest]), '*', *map(str, radices[rest:])])})")
        for digit in range(len(radices) + 1):
            radix = 1 if digit == rest else radices[digit - (digit > rest)]
            counts |= {f"{name}{digit}": radix} if digit != rest else {}
            flip = draw(st.integers(0, radix - 1)) if radix in (2, 4, 8, 16) else 0
            places.append(f"{name}{digit}" + (f"^{flip}" if flip else ""))
        multiple = math.prod(radices) * draw(st.sampled_from((1, 1, 1, 2, 3)))
        fill = draw(st.sampled_from(("0x00", "0x00", "0x7f", "unspecified")))
        clauses.append(f"pad {name} {multiple} {fill}")
    if turn := draw(st.sampled_from([None, None, *_turns(counts)])):
        places = [f"{turn[0]}^{turn[1]}" if place.partition("^")[0] == turn[0] else place for place in places]
    order = draw(st.permutations(places))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        order.insert(draw(st.integers(0, len(order))), f"|{draw(st.sampled_from((2, 3, 16, 34)))}")
    base = draw(st.sampled_from(("", "", "", "base 5", "base 2*k")))
    table = draw(st.permutations(range(draw(st.sampled_from((0, 0, 0, 3, 8))))))
    moved = f"table {','.join(map(str, table))}" if table else ""
    return Layout("drawn", "; ".join(filter(None, [f"{' '.join(axes)}: {' '.join(order)}", *clauses, base, moved])))


def _turns(counts: dict[str, int]) -> list[tuple[str, str]]:
    """Return each digit of 2^n values with one of at most as many, by which it may be turned. Rules: LAY-62."""
    whole = {digit: count for digit, count in counts.items() if count & (count - 1) == 0}
    return [(d, other) for d, count in whole.items() for other in counts if other != d and counts[other] <= count]


def random_bits(shape: tuple[int, int]) -> st.SearchStrategy[NDArray[np.uint8]]:
    """Return random bits for stochastic rounding, uint8 [rows, columns]: one byte everywhere, or any bytes.

    >>> from hypothesis import find
    >>> find(random_bits((2, 3)), lambda bits: True).tolist()
    [[0, 0, 0], [0, 0, 0]]

    Rules: SR-1.
    """
    size = shape[0] * shape[1]
    constant = st.sampled_from((0, 1, 127, 128, 255)).map(lambda byte: np.full(shape, byte, np.uint8))
    free = st.binary(min_size=size, max_size=size).map(lambda raw: np.frombuffer(raw, np.uint8).reshape(shape).copy())
    return constant | free
