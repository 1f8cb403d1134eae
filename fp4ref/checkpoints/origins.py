"""Origins: what the metadata of a converted file keeps of the convention that a weight came from."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from fp4ref.checkpoints.groups import TensorGroup

ORIGIN = "fp4ref.origin"  # the key of metadata that keeps what another convention has no place for


def origin_of(group: TensorGroup) -> dict[str, Any]:
    """Return the metadata of the convention that a group was converted from; empty if none is there. Rules: CNV-3."""
    kept = _parsed(group.parts["codes"].shard.metadata.get(ORIGIN, "{}")).get(group.module)
    return kept if isinstance(kept, dict) and isinstance(kept.get("parts", {}), dict) else {}


def is_converted(group: TensorGroup) -> bool:
    """Return True if a group has the bytes of another convention's producer. Rules: CKP-27."""
    return bool(origin_of(group).get("convention", group.convention.name) != group.convention.name)


@lru_cache(maxsize=16)
def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
