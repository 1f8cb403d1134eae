"""Families for single specifications: random bits, the Hadamard transform, two candidates per block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp4ref import hadamard
from fp4ref.conformance.families.aiming import midpoints
from fp4ref.conformance.families.case import Aim, Family, Member, matrix_of
from fp4ref.conformance.families.rules import rules
from fp4ref.formats import F, grid

BATCH = 4096  # groups of 16 that are drawn at once in search of aimed ones


def random_bits(aimed: Aim) -> Iterator[Member]:
    """Every random byte; all the same, and in order; on values, on ties and beside saturation."""
    if not aimed.spec.stochastic:
        return
    shape = max(aimed.spec.block.rows, 16), aimed.spec.block.columns * 16
    values = aimed.narrow(aimed.normal(*shape))
    for byte in (0, 1, 127, 128, 255):
        yield Member(f"all-{byte}", values, random_bits=np.full(shape, byte, np.uint8))
    ramp = np.arange(shape[0] * shape[1]).reshape(shape).astype(np.uint8)
    yield Member("ramp", values, random_bits=ramp)
    points = np.concatenate([grid(aimed.spec.element.format)[:-1], midpoints(aimed.spec.element.format)[:-1]])
    exact = aimed.rng.choice(points, shape) * aimed.rng.choice([-1.0, 1.0], shape)
    exact[:, :: aimed.spec.block.columns] = aimed.element_max
    yield Member("points", aimed.narrow(exact), random_bits=ramp)


def transformed(aimed: Aim) -> Iterator[Member]:
    """Yield groups of 16 whose transform hits ties or zero, or rounds to bfloat16; one element alone in each place."""
    if aimed.spec.hadamard is None or aimed.direction == "row":
        return
    columns, signs = aimed.spec.block.columns, aimed.spec.hadamard.signs
    alone = np.tile(np.eye(16), (1, max(columns // 16, 1)))
    yield Member("alone", aimed.narrow(alone * np.arange(1, 17)[:, None]))
    yield Member("constant", aimed.narrow(np.full((4, columns * 2), 1.5)))
    yield Member("signs", aimed.narrow(np.tile(hadamard.sign_vector(signs), (3, columns // 8)) * 3))
    drawn = aimed.rng.integers(-3, 4, (BATCH, 16)).astype(F)
    largest = np.abs(hadamard.transform(drawn, signs)).max(axis=1)
    tied = drawn[np.log2(largest / 6 + (largest == 0)) % 1 == 0][: columns * 12 // 16 * 8]
    whole = tied[: len(tied) // (columns // 16 * 4) * (columns // 16 * 4)]
    yield Member("ties", aimed.narrow(whole.reshape(-1, columns * 4)))
    yield Member("normal", aimed.narrow(aimed.normal(24, columns * 4)))
    powers = np.ldexp(1.0, aimed.rng.integers(-6, 6, (24, columns * 4)))
    yield Member("spread", aimed.narrow(aimed.normal(24, columns * 4) * powers))


def candidates(aimed: Aim) -> Iterator[Member]:
    """Blocks whose two candidates have equal errors, nearly equal ones, or whose second scale would overflow."""
    if aimed.spec.four_over_six is None:
        return
    number = aimed.count
    coarse = aimed.rng.choice([0, 0.5, 1, 1.5, 2, 3, 4, 6], (number, aimed.area))
    coarse[:, 0] = np.where(np.arange(number) % 2, 6, 4)
    scales = 2.0 ** -aimed.rng.integers(0, 6, (number, 1))
    yield Member("equal", matrix_of(aimed, coarse * scales * 16))
    fine = aimed.rng.integers(-24, 25, (number, aimed.area)) / 4.0
    fine[:, 0] = 6
    yield Member("quarters", matrix_of(aimed, fine * scales * 16))
    top = aimed.normal(number, aimed.area)
    top *= aimed.unit_amax / np.abs(top).max(axis=1, keepdims=True) * (0.5 + aimed.rng.random((number, 1)) / 2)
    yield Member("top", matrix_of(aimed, np.clip(top, -aimed.unit_amax, aimed.unit_amax)))


FAMILIES = (
    Family(
        "random-bits",
        "Stochastic rounding takes given bits, at every threshold.",
        rules("SR-1", "SR-2", "SR-3"),
        random_bits,
    ),
    Family(
        "hadamard",
        "The transform has another order, sign vector or factor.",
        rules("HAD-1", "HAD-2", "HAD-3"),
        transformed,
    ),
    Family(
        "candidates",
        "The second candidate is taken on a tie, or by another error.",
        rules("FOS-1", "FOS-6"),
        candidates,
    ),
)
