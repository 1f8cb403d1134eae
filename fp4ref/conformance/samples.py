"""Seeded tensors aimed at what implementations differ in: ties, ends of ranges, zeros, NaN."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import E8M0, F, Floats, Format, grid, ignoring_float_warnings
from fp4ref.spec import Granularity, Spec

ROWS, COLUMNS = 64, 512
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EXPONENT_MAX = 127
TIES = ("element ties", "element ties, inexact scale", "scale ties", "powers of two +-1 ulp")


@ignoring_float_warnings
def samples(spec: Spec) -> dict[str, NDArray[Any]]:
    """Tensors [64, 512] by name, float32 except where the name says bfloat16, aimed at one specification."""
    rng = np.random.default_rng(0x5EED)
    normal = rng.standard_normal((ROWS, COLUMNS)).astype(F)
    by_block = spec.block.columns
    found: dict[str, NDArray[Any]] = {
        "normal": normal,
        "normal bfloat16": normal.astype(BFLOAT16),
        "exponents 2^-8 to 2^8": normal * _powers(rng, -8, 8, by_block),
        "element ties": _element_ties(rng, spec, exact=True),
        "element ties, inexact scale": _element_ties(rng, spec, exact=False),
        "scale ties": _scale_ties(rng, spec, normal),
        "powers of two +-1 ulp": _powers_of_two(rng, spec, normal),
        "scale underflow": _with_one(normal * _powers(rng, -60, 0, by_block)),
        "subnormals": np.ldexp(normal, rng.integers(-149, -120, normal.shape)) + F(0),
        "near the largest": np.clip(np.ldexp(normal, EXPONENT_MAX - 2), -np.finfo(F).max, np.finfo(F).max),
        "zeros": np.where(rng.random(normal.shape) < 0.5, F(0), _some_blocks(rng, normal, by_block)),
        "all zero": np.zeros_like(normal),
        "-0": np.where(rng.random(normal.shape) < 0.2, F(-0.0), _some_blocks(rng, normal, by_block)),
        "all -0": np.full_like(normal, -0.0),
        "NaN": _sprinkled(rng, normal, np.array([0x7FC00000, 0xFFC00000], np.uint32).view(F)),
        "Inf": _sprinkled(rng, normal, np.array([np.inf, -np.inf], F)),
    }
    found["scale ties bfloat16"] = found["scale ties"].astype(BFLOAT16)
    return found


def _powers(rng: np.random.Generator, low: int, high: int, by_block: int) -> Floats:
    """A power of two for every block, [ROWS, COLUMNS]."""
    exponents = rng.integers(low, high + 1, (ROWS, -(-COLUMNS // by_block)))
    return np.repeat(np.ldexp(F(1), exponents), by_block, axis=1)[:, :COLUMNS]


def _some_blocks(rng: np.random.Generator, values: Floats, by_block: int) -> Floats:
    """Half of the blocks become zero."""
    return np.where(_powers(rng, 0, 1, by_block) == 1, values, F(0))


def _with_one(values: Floats) -> Floats:
    values = values.copy()
    values[0, 0] = 1
    return values


def _nudged(rng: np.random.Generator, values: Floats) -> Floats:
    """Each value, or its neighbour above or below."""
    toward = F(np.inf) * rng.integers(-1, 2, values.shape)
    return np.where(np.isnan(toward), values, np.nextafter(values, toward.astype(F))).astype(F)


def _midpoints(form: Format) -> NDArray[np.float64]:
    values = grid(form)
    return (values[:-1] + values[1:]) / 2


def _limits(spec: Spec) -> tuple[float, float]:
    return float(spec.element_max or spec.element.format.max), float(spec.scale_max)


def _units(rng: np.random.Generator, spec: Spec, *, exact: bool) -> tuple[NDArray[np.float64], float]:
    """What an element value 1 stands for in each block, [ROWS, COLUMNS], and the global amax that leads to it."""
    form, (element_max, scale_max) = spec.scale.format, _limits(spec)
    middle = form.codes // 2
    codes = rng.integers(middle - 20, middle + 20, (ROWS, -(-COLUMNS // spec.block.columns)))
    units = np.repeat(grid(form)[codes], spec.block.columns, axis=1)[:, :COLUMNS]
    if spec.global_scale is Granularity.NONE:
        return units, 0.0
    amax = element_max * scale_max if exact else 1.7734375 * element_max
    return units * amax / (element_max * scale_max), amax


def _element_ties(rng: np.random.Generator, spec: Spec, *, exact: bool) -> Floats:
    """Midpoints of the element's grid and their neighbours, each block led by its largest value."""
    units, amax = _units(rng, spec, exact=exact)
    middles = _midpoints(spec.element.format)
    signs = rng.choice([-1.0, 1.0], units.shape)
    x = _nudged(rng, (rng.choice(middles, units.shape) * units * signs).astype(F))
    x[:, :: spec.block.columns] = (_limits(spec)[0] * units[:, :: spec.block.columns]).astype(F)
    x[0, 0] = amax or x[0, 0]
    return x


def _scale_ties(rng: np.random.Generator, spec: Spec, normal: Floats) -> Floats:
    """Block maxima on the midpoints of the scale's grid, and their neighbours."""
    if spec.scale.format is E8M0:
        return _powers_of_two(rng, spec, normal)
    element_max, scale_max = _limits(spec)
    middles = _midpoints(spec.scale.format)[8:-1]
    leads = rng.choice(middles, (ROWS, -(-COLUMNS // spec.block.columns))) * element_max
    amax = 0.0
    if spec.global_scale is not Granularity.NONE:
        amax = 1.7734375
        leads = leads * amax / (element_max * scale_max)
    x = _led(rng, leads.astype(F), spec, normal)
    x[0, 0] = amax or x[0, 0]
    return x


def _powers_of_two(rng: np.random.Generator, spec: Spec, normal: Floats) -> Floats:
    """Block maxima where the exponent of a scale can change: 1, 1.25, 1.5, 1.75 and the element's largest mantissa."""
    element_max = spec.element.format.max
    mantissas = [1, 1.25, 1.5, 1.75, element_max / 2.0**spec.element.format.emax]
    shape = (ROWS, -(-COLUMNS // spec.block.columns))
    leads = np.ldexp(rng.choice(mantissas, shape), rng.integers(-20, 20, shape)).astype(F)
    return _led(rng, leads, spec, normal)


def _led(rng: np.random.Generator, leads: Floats, spec: Spec, normal: Floats) -> Floats:
    """Blocks whose first element is the given maximum or its neighbour, the others smaller."""
    wide = np.repeat(leads, spec.block.columns, axis=1)[:, :COLUMNS]
    x = (np.tanh(normal) * wide * F(0.999)).astype(F)
    x[:, :: spec.block.columns] = _nudged(rng, leads)
    return x


def _sprinkled(rng: np.random.Generator, normal: Floats, specials: Floats) -> Floats:
    """One element in fifty is special."""
    x = np.where(rng.random(normal.shape) < 0.02, rng.choice(specials, normal.shape), normal)
    return x.astype(F)
