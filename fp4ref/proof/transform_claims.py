"""The claims about transforms, random bits, layouts and thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fp4ref import layout
from fp4ref.proof import host, second_solver
from fp4ref.proof.claims import ClaimSubject, Decide, Method, ProcessorCheck, ProofClaim
from fp4ref.proof.python_parts import torch_rounds
from fp4ref.proof.steps import INFINITY
from fp4ref.proof.transforms import (
    PRIMES,
    SCALE_LAYOUTS,
    VECTORS,
    drawn,
    factors,
    header_transform,
    inverted,
    places,
    rounds,
    transform,
)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims of this module."""
    table: tuple[tuple[ClaimSubject, Decide, tuple[str, ...]], ...] = (
        (ClaimSubject.GOLDEN, partial(transform, ClaimSubject.GOLDEN), ("fp4ref.hadamard:transform",)),
        (ClaimSubject.TORCH, partial(transform, ClaimSubject.TORCH), ("fp4ref_torch.hadamard:transform",)),
        (ClaimSubject.HEADER, header_transform, ("hadamard.h:hadamard",)),
    )
    for subject, decide, covers in table:
        yield ProofClaim(
            name=f"hadamard-signs/{subject}",
            rules=("HAD-1", "HAD-3"),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="A transform is a quarter of the exact sums, rounded once to even, and +0 where they are 0.",
            domain="all vectors of 16 signs, and all of two elements whose sums are ties of bfloat16",
            size=VECTORS,
            decide=decide,
            covers=covers,
        )
    for subject, covers in (
        (ClaimSubject.GOLDEN, ("fp4ref.formats.codec:Codec.encode",)),
        (ClaimSubject.TORCH, ("fp4ref_torch.codecs:encode",)),
    ):
        yield ProofClaim(
            name=f"stochastic-bfloat16/{subject}",
            rules=("SR-2", "SR-3"),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="A stochastic code counts the values that the sum of SR-2, rounded once, has reached.",
            domain="all bfloat16 under all random bytes",
            size=256 << 16,
            decide=partial(drawn, subject),
            covers=covers,
        )
    for name, rule in SCALE_LAYOUTS.items():
        yield ProofClaim(
            name=f"layout-{name}/golden",
            rules=(rule,),
            method=Method.ARGUMENT,
            subject=ClaimSubject.GOLDEN,
            statement=f"In {name}, every scale of whole tiles has an offset of its own, and a tile's are consecutive.",
            domain="matrices of 2 x 3, 5 x 7 and 11 x 13 tiles",
            size=sum(rows * columns for rows, columns in PRIMES) * int(np.prod(layout.layout(name).tile)),
            decide=partial(places, name),
            covers=("fp4ref.layout.value:Layout.from_linear", f"fp4ref.layout.registry:{name.upper()}"),
            reduction="a stride is a product of counts and constants, so it is known by its values at primes",
        )
    yield ProofClaim(
        name="philox-bijection/formula",
        rules=("SR-6",),
        method=Method.SMT,
        subject=ClaimSubject.FORMULA,
        statement="A round of Philox with these multipliers maps different counters to different counters.",
        domain="all counters under all keys",
        size=1 << 192,
        decide=inverted,
        covers=("fp4ref.philox:MULTIPLIERS",),
        needs=second_solver.NAME,
        reduction="the lower half of a product gives back the word that was multiplied, so that the upper half is "
        "known, and the other word follows by exclusive or",
    )
    for subject, decide, cover in (
        (ClaimSubject.GOLDEN, rounds, "fp4ref.philox:philox4x32"),
        (ClaimSubject.TORCH, torch_rounds, "fp4ref_torch.random_bytes:philox4x32"),
    ):
        yield ProofClaim(
            name=f"philox-bits/{subject}",
            rules=("SR-6",),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="Philox is that of its definition in whole numbers, after 1, 7 and 10 rounds.",
            domain="counters and keys with at most one bit, or with all bits",
            size=3 * 130 * 66,
            decide=decide,
            covers=(cover,),
        )
    reduction = "clamped differences and rounded sums never fall as a pattern grows, so the thresholds decide all codes"
    for name, start, size, domain, long in (
        ("thresholds", (127 - 1) << 23, 3 << 23, "all factors from 1/2 up to 4", False),
        ("thresholds-all", 0, INFINITY, "all finite factors", True),
    ):
        yield ProofClaim(
            name=f"{name}/header",
            rules=("BLK-5", "E2M1-3"),
            method=Method.ARGUMENT,
            subject=ClaimSubject.HEADER,
            statement="Where a factor has thresholds, they give the code of the rounded product for all bfloat16 up to "
            "2^121.",
            domain=domain,
            size=size,
            decide=partial(factors, start, size),
            on_processor=ProcessorCheck(partial(host.factors, start, size), f"{reduction}; {host.BY_RUNS}"),
            covers=("thresholds.h:thresholds::codes", "thresholds.h:thresholds::entry"),
            reduction=reduction,
            long=long,
        )
