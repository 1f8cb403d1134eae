"""A part of the claims whose record holds, so that a few runs of CI decide all of them again, and each is quick.

`fp4ref rules --check` compares what such a claim covers with its record in every run. To decide it again shows that
another compiler, library or machine comes to the same result.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp4ref.proof import records
from fp4ref.proof.claims import ProofClaim

QUICK = 1.0  # seconds of processor time below which a claim is decided in every turn


def of_turn(chosen: Sequence[ProofClaim], turn: int, turns: int) -> list[ProofClaim]:
    """Return the claims of one turn, numbered from 1: those without a record that holds, the quick ones, and a part.

    Parts take about the same time: the claims are dealt out by the time that each took, the longest first.
    """
    seconds = {claim.name: record["processor_seconds"] for claim in chosen if (record := records.holding(claim))}
    long = sorted((name for name in seconds if seconds[name] >= QUICK), key=lambda name: (-seconds[name], name))
    others = {name for place, name in enumerate(long) if place % turns != turn - 1}
    return [claim for claim in chosen if claim.name not in others]
