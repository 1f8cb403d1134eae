"""The fit of a convention: how many of a module's names, types, shapes and declarations are its own."""

from __future__ import annotations

import math
from typing import Any

from fp4ref.checkpoints.configuration import Facts
from fp4ref.checkpoints.convention import FLOATS, Convention
from fp4ref.checkpoints.shards import StoredTensor


def declared_format(facts: Facts) -> str:
    """Return the kind of tensor that a file's metadata declares; "" for none."""
    return str(facts.get("_type", facts.get("format", ""))).lower()


def declared_bits(facts: Facts) -> int:
    """Return the bits of an element that a file's metadata declares; 0 for none."""
    element = str(facts.get("elem_dtype"))
    return 4 if "float4" in element else 8 if "float8" in element else 0


def fit(
    convention: Convention,
    parts: dict[str, StoredTensor],
    algorithm: str | None,
    strategy: str,
    size: int | None,
    facts: dict[str, Any],
) -> int:
    """Return how well a convention fits a module's tensors: one defect must not change which one fits best.

    parts: the tensors by suffix. algorithm, strategy, size, facts: what the configuration and metadata declare of it.

    Rules: CKP-29.
    """
    if convention.sized and size != convention.group_size:
        return -1000
    score = 4 * convention.declares(algorithm or "")
    score += strategy != "" and convention.settings.get("weights", {}).get("strategy") == strategy
    score += 3 * (declared_bits(facts) == convention.bits)
    score += 3 * convention.declares(declared_format(facts))
    for name, role in convention.roles.items():
        tensor = parts.get(role.suffix)
        weight = 3 if name == "codes" else 2
        if tensor is None:
            score -= weight * role.needed
        else:
            score += weight + weight * (tensor.dtype in role.dtypes)
    score -= sum(
        suffix not in {role.suffix for role in convention.roles.values()} and suffix not in convention.others
        for suffix in parts
    )
    return score + _ratio_fits(convention, parts)


def _ratio_fits(convention: Convention, parts: dict[str, StoredTensor]) -> int:
    """Return 4 if the number of scales per row is that of the convention's blocks."""
    codes = parts.get(convention.codes.suffix)
    scales = parts.get(convention.scales.suffix) if convention.scales else None
    if codes is None or scales is None or not codes.shape or not scales.shape:
        return 0
    items = 1 if codes.dtype in FLOATS else convention.codes_per_item
    columns = codes.shape[-1] * items * (codes.shape[-2] if convention.split else 1)
    rows, width = convention.block
    if convention.granularity == "square":
        high, wide = -(-codes.shape[-2] // rows) if len(codes.shape) > 1 else 0, -(-columns // width)
        return 4 * (scales.size == math.prod(codes.shape[:-2]) * high * wide)
    if rows and not width:
        return 5 * (scales.size == math.prod(codes.shape[:-1]) and codes.dtype not in FLOATS)
    if not width:
        return 4 * (scales.size <= max(codes.shape[0], 1) and codes.dtype not in FLOATS)
    return 4 * (
        scales.shape[-1] == -(-columns // width) and (rows == 1 or scales.shape[0] == -(-codes.shape[0] // rows))
    )
