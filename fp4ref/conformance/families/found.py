"""Witnesses that were found before, for the standard's specifications: a search for them takes half a second each."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.families.variants import Topic, same_form
from fp4ref.spec import Spec
from fp4ref.specs import STANDARD

PATH = Path(__file__).parents[2] / "data" / "witnesses.npz"


class Pool(NamedTuple):
    """Blocks [n, area] that are aimed under one global amax."""

    amax: float
    blocks: NDArray[Any]


Pools = dict[Topic, tuple[Pool, ...]]


def found(spec: Spec, dtype: str) -> Pools | None:
    """Return the inputs that a search found; None for a specification or profiles that it was not made for."""
    stored = _archive()
    name = next((standard.name for standard in STANDARD if standard == spec), None)
    if name is None or stored[f"{name}/profiles"].tolist() != _profiles(spec, PROFILES.changes):
        return None
    key, kind = f"{name}/{dtype}", INPUT_DTYPES[dtype]
    blocks, topics = stored[f"{key}/blocks"].view(kind), list(Topic)
    pools: dict[Topic, list[Pool]] = {topic: [] for topic in Topic}
    start = 0
    for topic, count, amax in zip(*(stored[f"{key}/{name}"] for name in ("topics", "counts", "amaxes")), strict=True):
        pools[topics[topic]].append(Pool(float(amax), blocks[start : start + count]))
        start += count
    return {topic: tuple(members) for topic, members in pools.items()}


def profiles(spec: Spec) -> list[str]:
    """Return the names of the profiles that the witnesses of a specification tell apart from it."""
    return [name for name, other in PROFILES.items() if same_form(spec, other)]


@lru_cache(maxsize=64)
def _profiles(spec: Spec, changes: int) -> list[str]:
    return profiles(spec)


def to_arrays(spec: Spec, dtype: str, pools: Pools) -> dict[str, NDArray[Any]]:
    """Pools as arrays of plain types, by the names that they are stored under."""
    told = [(topic, pool) for topic, topic_pools in pools.items() for pool in topic_pools]
    blocks = np.concatenate([pool.blocks for _, pool in told])
    arrays: dict[str, NDArray[Any]] = {
        "topics": np.array([list(Topic).index(topic) for topic, _ in told], np.uint8),
        "counts": np.array([len(pool.blocks) for _, pool in told], np.uint32),
        "amaxes": np.array([pool.amax for _, pool in told], np.float64),
        "blocks": blocks.view(f"u{blocks.itemsize}"),
    }
    told_apart = {f"{spec.name}/profiles": np.array(profiles(spec), np.str_)}
    return told_apart | {f"{spec.name}/{dtype}/{name}": array for name, array in arrays.items()}


@cache
def _archive() -> dict[str, NDArray[Any]]:
    with np.load(PATH) as archive:
        return dict(archive)
