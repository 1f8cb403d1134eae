"""All claims, by name."""

from __future__ import annotations

from functools import lru_cache

from fp4ref.proof import (
    device,
    device_sweeps,
    encoders,
    estimates,
    mx_scales,
    products,
    scales,
    shortcuts,
    solver,
    transform_claims,
    whole,
)
from fp4ref.proof.claims import ProofClaim

SOURCES = (
    encoders.claims,
    mx_scales.claims,
    scales.claims,
    shortcuts.claims,
    solver.claims,
    whole.claims,
    transform_claims.claims,
    estimates.claims,
    products.claims,
    device.claims,
    device_sweeps.claims,
)
# Long claims without a record, and the reason; those of the GPU apart.
UNRECORDED = {
    "block-all/header": "about 4,000 s of processor time; all its inputs are computed on the GPU",
    "thresholds-all/header": "about 700 s of processor time; all its inputs are computed on the GPU",
}


@lru_cache
def claims() -> dict[str, ProofClaim]:
    """Return the claims by name, those of one module together."""
    return {claim.name: claim for source in SOURCES for claim in source()}


def claims_of(rule: str) -> list[ProofClaim]:
    """Return the claims about a rule."""
    return [claim for claim in claims().values() if rule in claim.rules]
