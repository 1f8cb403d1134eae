"""All claims, by name."""

from __future__ import annotations

from functools import lru_cache

from fp4ref.proof import (
    additions,
    calls,
    code_values,
    compared,
    conversions,
    cuts,
    device,
    device_sweeps,
    draws,
    emulated,
    emulated_products,
    encoders,
    estimates,
    finishing,
    given_directions,
    header_parts,
    judging,
    large_tensors,
    master_parts,
    maxima,
    mx_scales,
    offsets,
    operands,
    other_codes,
    packed_rows,
    parts,
    product_sums,
    products,
    python_parts,
    recipes,
    scales,
    searches,
    settings,
    shared_shards,
    shortcuts,
    signed_zeros,
    six_bit_calls,
    six_bits,
    solver,
    stochastic_means,
    theorems_again,
    theorems_fp8,
    theorems_moved,
    theorems_ordered,
    transform_claims,
    trial_operands,
    whole,
)
from fp4ref.proof.claims import ProofClaim

SOURCES = (
    encoders.claims,
    code_values.claims,
    other_codes.claims,
    conversions.claims,
    mx_scales.claims,
    scales.claims,
    header_parts.claims,
    python_parts.claims,
    settings.claims,
    recipes.claims,
    calls.claims,
    operands.claims,
    shortcuts.claims,
    solver.claims,
    whole.claims,
    six_bit_calls.claims,
    transform_claims.claims,
    estimates.claims,
    searches.claims,
    packed_rows.claims,
    stochastic_means.claims,
    products.claims,
    product_sums.claims,
    cuts.claims,
    parts.claims,
    offsets.claims,
    maxima.claims,
    large_tensors.claims,
    additions.claims,
    signed_zeros.claims,
    draws.claims,
    finishing.claims,
    emulated.claims,
    emulated_products.claims,
    compared.claims,
    judging.claims,
    theorems_again.claims,
    theorems_ordered.claims,
    theorems_moved.claims,
    theorems_fp8.claims,
    trial_operands.claims,
    given_directions.claims,
    shared_shards.claims,
    master_parts.claims,
    device.claims,
    device_sweeps.claims,
    six_bits.claims,
)


@lru_cache
def claims() -> dict[str, ProofClaim]:
    """Return the claims by name, those of one module together."""
    return {claim.name: claim.for_processor() for source in SOURCES for claim in source()}


def claims_of(rule: str) -> list[ProofClaim]:
    """Return the claims about a rule."""
    return [claim for claim in claims().values() if rule in claim.rules]
