"""Level 2: every bit pattern of a 16-bit type; and the weights of a real model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fp4ref.conformance.families.aiming import exponents, filled
from fp4ref.conformance.families.case import Aim, Family, Member, matrix_of
from fp4ref.conformance.families.rules import element_rules, rules
from fp4ref.files import open_tensors
from fp4ref.formats import F
from fp4ref.spec import Granularity

TENSORS = 16  # of a model
ROWS, COLUMNS = 256, 1024  # of each


def every_pattern(aimed: Aim) -> Iterator[Member]:
    """Every finite pattern of a 16-bit type, in blocks with others of nearly its size."""
    if aimed.level < 2 or aimed.dtype.itemsize != 2:
        return
    values = np.arange(1 << 16, dtype=np.uint16).view(aimed.dtype)
    values = values[np.isfinite(values.astype(F))]
    values = values[np.argsort(np.abs(values.astype(F)), kind="stable")]
    columns = aimed.spec.block.columns * 8
    per = 1 << 12
    for start in range(0, len(values), per):
        part = values[start : start + per]
        yield Member(f"from-{start}", np.resize(part, math.ceil(len(part) / columns) * columns).reshape(-1, columns))


def every_ratio(aimed: Aim) -> Iterator[Member]:
    """Every mantissa of an element over every mantissa of its block's maximum, for some global amaxes."""
    if aimed.level < 2 or aimed.dtype.name != "bfloat16":
        return
    steps = 1 + np.arange(128) / 128
    elements = (steps * 2.0 ** -np.arange(5)[:, None]).ravel()
    low, high = exponents(aimed)
    for number in range(8 if aimed.spec.global_scale is not Granularity.NONE else 2):
        unit = 2.0 ** aimed.rng.integers(low // 2, high // 2)
        leads = np.repeat(steps, 1) * unit
        others = np.minimum(elements * unit, leads[:, None])
        amax = unit * (4 + float(aimed.rng.integers(0, 128)) / 32)
        yield Member(str(number), matrix_of(aimed, filled(aimed, leads, others), amax if aimed.unit_amax else 0))


def weights(aimed: Aim) -> Iterator[Member]:
    """Yield the first tensors of a model, as the matrices that they are, cut to a corner."""
    if aimed.reach.weights is None:
        return
    with open_tensors(aimed.reach.weights) as file:
        real = [name for name in file.names if file.entry(name)[0] in {"F32", "BF16", "F16"} and file.entry(name)[1]]
        for name in real[: TENSORS * aimed.reach.size]:
            tensor = file.read(name)
            corner = tensor.reshape(-1, tensor.shape[-1])[:ROWS, :COLUMNS]
            yield Member(name, aimed.narrow(corner.astype(F)))


FAMILIES = (
    Family("every-pattern", "Every value of a 16-bit type, at level 2.", element_rules, every_pattern),
    Family("every-ratio", "Every mantissa over every block maximum, at level 2.", element_rules, every_ratio),
    Family("weights", "Weights of a real model, from a file.", rules("CNF-1"), weights),
)
