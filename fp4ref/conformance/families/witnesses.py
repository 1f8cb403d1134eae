"""Witnesses: inputs on which a specification's bytes differ from those of its variants, found by a short search."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.families.aiming import beside, element_thresholds, filled, midpoints, scale_thresholds
from fp4ref.conformance.families.case import Aim, Family, Make, Member, Reach, aim, arrange
from fp4ref.conformance.families.found import Pool, Pools, found
from fp4ref.conformance.families.rules import rules, scale_rules, scaling_rules
from fp4ref.conformance.families.ties import block_maxima, smaller
from fp4ref.conformance.families.variants import Topic, Variant, variants
from fp4ref.formats import E2M1, E8M0, F, grid, ignoring_float_warnings
from fp4ref.model.quantize import constants, quantize
from fp4ref.model.tiles import split
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec

KEPT = 4  # blocks of a witness, per variant and pool
POOLS = 3  # pools of blocks in which a variant is shown to differ
RANDOM_BYTE = 128
MULTIPLES = (3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0)  # odd numbers of units: their ties are exact, their reciprocals not


def made(topic: Topic) -> Make:
    """Return the function that yields the witnesses of a topic."""

    def make(aimed: Aim) -> Iterator[Member]:
        pools = search(aimed.spec, aimed.dtype.name, aimed.reach.size, aimed.reach.seed)
        for number, pool in enumerate(pools[topic]):
            yield Member(str(number), arrange(aimed, pool.blocks, pool.amax)[0])

    return make


def names() -> tuple[str, ...]:
    """Return the profiles to tell apart; rounding at random has no witnesses."""
    return tuple(name for name, spec in PROFILES.items() if not spec.stochastic)


def told_apart(spec: Spec, dtype: str = "float32") -> dict[str, bool]:
    """Names of the variants of a specification that are not itself, and whether a witness was found."""
    return dict(_searched(spec, dtype, Reach(), names())[1])


def search(spec: Spec, dtype: str, size: int, seed: int = 0) -> Pools:
    """Blocks, by topic, on which variants differ from the specification; those found before, where there are any."""
    before = found(spec, dtype) if (size, seed) == (1, 0) else None
    return searched(spec, dtype, size, seed) if before is None else before


def searched(spec: Spec, dtype: str, size: int = 1, seed: int = 0) -> Pools:
    """Return the same by a search."""
    pools: Pools = _searched(spec, dtype, Reach(size=size, seed=seed), names())[0]
    return pools


@lru_cache(maxsize=128)
@ignoring_float_warnings
def _searched(
    spec: Spec, dtype: str, reach: Reach, profiles: tuple[str, ...]
) -> tuple[Pools, tuple[tuple[str, bool], ...]]:
    """profiles: the names of those to tell apart."""
    aimed = aim("witnesses", spec, dtype, reach=reach)
    left = dict.fromkeys(variants(spec, aimed.dtype), POOLS)
    pools: dict[Topic, list[Pool]] = {topic: [] for topic in Topic}
    told = dict.fromkeys((variant.name for variant in left), False)
    for pool in _pools(aimed):
        x, where = arrange(aimed, pool.blocks, pool.amax)
        own = _bytes(spec, x)
        chosen: dict[Topic, set[int]] = {topic: set() for topic in Topic}
        for variant in [variant for variant, count in left.items() if count]:
            changed = _different(spec, own, _bytes(variant.spec, x, variant), x.shape)[tuple(where.T)]
            if changed.any():
                left[variant] -= 1
                told[variant.name] = True
                places = np.flatnonzero(changed)
                chosen[variant.topic] |= {int(i) for i in places[:: max(len(places) // KEPT, 1)][:KEPT]}
        for topic, indices in chosen.items():
            if indices:
                pools[topic].append(Pool(pool.amax, pool.blocks[sorted(indices)]))
        if not any(left.values()):
            break
    return {topic: tuple(members) for topic, members in pools.items()}, tuple(told.items())


def _pools(aimed: Aim) -> Iterator[Pool]:
    """Blocks of boundaries and exact ties under amaxes of few and of many digits; then very small and large ones."""
    if aimed.spec.global_scale is Granularity.NONE:
        for _ in range(3 * aimed.reach.size):
            yield Pool(0.0, _aimed_blocks(aimed, 0.0))
    else:
        unit = aimed.unit_amax / 128
        drawn = (1 + aimed.rng.random(5 * aimed.reach.size)) * 3
        for amax in (*(unit * m for m in MULTIPLES), *drawn, *_telling(aimed)):
            yield Pool(amax := float(aimed.narrow(amax)), _aimed_blocks(aimed, amax))
    yield from _extremes(aimed)


def _telling(aimed: Aim) -> Iterator[float]:
    """Global amaxes of whose global scales some variant makes another number: three per variant."""
    drawn = aimed.narrow(1 + np.arange(2048) / 2048 + (aimed.rng.random(2048) if aimed.dtype == F else 0) / 2048)
    amaxes = np.unique(drawn.astype(F)).reshape(-1, 1, 1, 1)
    k = constants(aimed.spec, aimed.dtype)
    own = aimed.spec.arithmetic.global_scale(amaxes, k)
    for variant in variants(aimed.spec, aimed.dtype):
        if variant.topic is Topic.ORDER:
            other = variant.spec.arithmetic.global_scale(amaxes, k)
            yield from aimed.rng.permutation(amaxes[own != other])[:3].tolist()


def _aimed_blocks(aimed: Aim, amax: float) -> NDArray[Any]:
    """Blocks beside boundaries of elements and of scales, and blocks of exact ties."""
    four = aimed.spec.element.format is E2M1
    maxima = block_maxima(aimed, amax, 24 if four else 6)
    up = element_thresholds(aimed, maxima, amax)
    near = np.minimum(np.stack([up, beside(aimed, up, -1)], axis=2).reshape(len(maxima), -1), maxima[:, None])
    blocks = [filled(aimed, maxima, near), _tied(aimed, amax)]
    edges = aimed.rng.permutation(scale_thresholds(aimed, amax))[:48]
    blocks.append(smaller(aimed, np.concatenate([edges, beside(aimed, edges, -1)])))
    blocks.append(aimed.narrow(aimed.normal(24, aimed.area) * (amax / 16 or 1)))
    return np.concatenate([part[np.isfinite(part.astype(F)).all(axis=1)] for part in blocks])


def _tied(aimed: Aim, amax: float) -> NDArray[Any]:
    """Ties as real numbers, rounded to the type: where all operations were exact these were ties."""
    form = aimed.spec.scale.format
    scales = grid(form)[1:-1] if form is not E8M0 else np.ldexp(1.0, np.arange(-10, 10))
    scales = aimed.rng.permutation(scales)[:32] * (amax / aimed.unit_amax if amax else 1.0)
    leads = aimed.narrow(scales * aimed.element_max)
    return filled(
        aimed,
        leads,
        np.minimum(aimed.narrow(scales[:, None] * midpoints(aimed.spec.element.format)[:-1]), leads[:, None]),
    )


def _extremes(aimed: Aim) -> Iterator[Pool]:
    """Yield inputs whose values, scales or products are subnormal, or nearly infinite."""
    low, high = np.log2(aimed.smallest_normal), np.log2(aimed.finite_max)
    for exponent in (low - 2, low + 2, low + 12, low + 24, high - 1, high - 10):
        lead = 1.3 * 2.0**exponent
        amax = float(aimed.narrow(lead)) if aimed.unit_amax else 0.0
        powers = 2.0 ** -aimed.rng.uniform(0, 20, (32, 1))
        blocks = aimed.rng.uniform(-1, 1, (32, aimed.area)) * np.where(np.arange(aimed.area) % 2, powers, 1) * lead
        blocks[::2] *= powers[::2]
        yield Pool(amax, blocks.astype(aimed.dtype))


def _bytes(spec: Spec, x: NDArray[Any], variant: Variant | None = None) -> DirectionData:
    """Row bytes of a matrix; a Hadamard transform is left out, for it is not what these are aimed at."""
    bits = np.full(x.shape, RANDOM_BYTE, np.uint8) if spec.stochastic else None
    prepared = variant.prepare(x) if variant is not None and variant.prepare is not None else x
    made: DirectionData = quantize(prepared, spec, "row", None, bits)
    return made


def _different(spec: Spec, a: DirectionData, b: DirectionData, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return True for blocks that differ, [block rows, blocks]."""
    form, (rows, _) = spec.element.format, spec.block
    codes = packing.unpack(a.data, shape[1], form) != packing.unpack(b.data, shape[1], form)
    return np.asarray(split(codes, spec.block).any(axis=(2, 3)) | (a.scales != b.scales)[::rows])


FAMILIES = (
    Family(
        Topic.RECIPROCAL.value,
        "A division became a product with a reciprocal, or the reverse, or is approximate.",
        scaling_rules,
        made(Topic.RECIPROCAL),
    ),
    Family(Topic.ORDER.value, "Operations were reordered where real numbers allow it.", scale_rules, made(Topic.ORDER)),
    Family(Topic.ROUNDING.value, "A result went through a narrower type first.", rules("NUM-1"), made(Topic.ROUNDING)),
    Family(Topic.FLUSH.value, "A subnormal input or product became zero.", rules("NUM-1", "NUM-5"), made(Topic.FLUSH)),
    Family(Topic.PROFILE.value, "Another implementation's arithmetic, told apart.", scaling_rules, made(Topic.PROFILE)),
)
