"""Families of aimed inputs: where kernels go wrong, by name, with a reason each.

Members are the same in every run. A family makes the matrix of a direction in the type of the tensor, so that a tie is
a tie in that type and one step is one step of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import encoded as given_bytes
from fp4ref.conformance.families import exhaustive, places, ranges, shapes, structures, ties, witnesses
from fp4ref.conformance.families.case import DEFAULT, SHORT, Aim, Case, Family, Member, Reach, aim
from fp4ref.conformance.families.fitting import fitted
from fp4ref.conformance.families.rules import spec_rules
from fp4ref.errors import DomainError
from fp4ref.hadamard import POINTS
from fp4ref.names import meant
from fp4ref.quantized import Direction, matrix_shape
from fp4ref.spec import Spec

__all__ = [
    "FAMILIES",
    "Aim",
    "Case",
    "Family",
    "Member",
    "Reach",
    "aim",
    "case_of",
    "cases",
    "chosen",
    "family_of",
    "fitted",
    "members",
]

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (shapes, ties, ranges, structures, witnesses, places, given_bytes, exhaustive)
    for family in module.FAMILIES
}


def cases(
    spec: Spec,
    level: int = 1,
    directions: Sequence[Direction] = ("row",),
    dtypes: Sequence[str] = tuple(INPUT_DTYPES),
    families: Sequence[str] | None = None,
    size: int = 1,
    weights: Path | None = None,
    multiple: tuple[int, int] = (1, 1),
    seed: int = 0,
    encoded: bool = False,
) -> Iterator[Case]:
    """Every case that is aimed at a specification, family by family; the same in every run.

    level: 1 takes a second or two, 2 adds large tensors and every bit pattern. families: names, None for all. size:
    multiplies the aimed blocks of a family. weights: a file of a model's tensors, for the family of that name.
    multiple: rows and columns of the direction's matrix are multiples of these. seed: other random numbers for each;
    names end in @SEED unless it is 0. encoded: tensors that are given as bytes, too.

    Errors: DomainError for an unknown family.

    Rules: CNF-7, CNF-19, CNF-21, HAD-5, CNF-33, CNF-34. Certificates: cases-determined.
    """
    reach = Reach(
        level=level,
        size=size,
        multiple=multiple,
        dtypes=tuple(dtypes),
        seed=seed,
        weights=weights,
        encoded=encoded,
    )
    for family in chosen(families):
        for direction in directions:
            for dtype in dtypes:
                for member in members(family, spec, dtype, direction, reach):
                    yield fitted(case_of(family, member, spec, direction, seed), multiple)


def named(name: str, seed: int) -> str:
    """Return the name of a case of a seed; that of seed 0 has no ending. Rules: CNF-106."""
    return f"{name}@{seed}" if seed else name


def family_of(name: str) -> str:
    """Return the family in the name of a quantizer's case, or in FAMILY/*. Rules: CNF-106."""
    return name.partition("/")[0]


def seed_of(name: str) -> int:
    """Return the seed in the name of a case. Rules: CNF-106."""
    seed = name.rpartition("@")[2]
    return int(seed) if "@" in name and seed.isascii() and seed.isdigit() else 0


def chosen(families: Sequence[str] | None) -> list[Family]:
    """Families by name; all of them for None."""
    unknown = [name for name in families or () if name not in FAMILIES]
    if unknown:
        needed = f"one of {', '.join(FAMILIES)}{meant(unknown[0], FAMILIES)}"
        raise DomainError("cases", f"family {unknown[0]!r}", needed, "CNF-7")
    return [family for family in FAMILIES.values() if families is None or family.name in families]


def members(
    family: Family,
    spec: Spec,
    dtype: str,
    direction: Direction = "row",
    reach: Reach = DEFAULT,
) -> Iterator[Member]:
    """Yield the members of a family for one type of tensor, if the specification takes it. Rules: HAD-5."""
    if spec.hadamard and direction == "column" and dtype != "bfloat16":
        return
    with np.errstate(all="ignore"):
        made = iter(family.make(aim(family.name, spec, dtype, direction, reach)))
    while True:
        with np.errstate(all="ignore"):  # for one member, not across a yield: the caller may never come back
            member = next(made, None)
        if member is None:
            return
        yield member


def case_of(family: Family, member: Member, spec: Spec, direction: Direction, seed: int = 0) -> Case:
    """Return a member as a call: its matrix turned to the direction, and padded to whole groups for a transform.

    Rules: BLK-8, HAD-5, SR-1.
    """
    values, bits, amax = member.values, member.random_bits, member.amax
    if direction == "column" and spec.hadamard:
        values = values.reshape(matrix_shape(values.shape))
        values = np.pad(values, ((0, 0), (0, -values.shape[1] % POINTS)))
        bits = None
    x = np.ascontiguousarray(values.T) if direction == "column" and values.ndim == 2 else values
    name = f"{family.name}/{member.label}/{SHORT[x.dtype.name]}/{direction}"
    own = [len(name), seed] if seed else [len(name)]
    found = Case(
        named(name, seed),
        family.name,
        family.reason,
        (*family.rules(spec), *spec_rules(spec, direction)),
        x,
        spec,
        direction,
    )
    if spec.stochastic and bits is None:
        bits = np.random.default_rng(own).integers(0, 256, found.matrix, np.uint8)
    bits = bits if spec.stochastic else None
    return Case(**{**vars(found), "amax": amax, "random_bits": bits, "encoded": member.encoded, "seed": seed})
