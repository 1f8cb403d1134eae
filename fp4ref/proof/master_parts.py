"""A claim about sharded master weights: each process writes the codes of its elements, and the scales of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.formats import F
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.emulated import PADDED, has_amax, quantizer
from fp4ref.proof.rounds import BlockedError, together
from fp4ref.quantized import DIRECTIONS

WEIGHT = (32, 64)
CUTS = (*range(18), 47, 63, 64, 65, 1000, 1023, 1024, 1031, 2047, 2048)
UNTOUCHED = 0xA5


def _masters() -> NDArray[np.float32]:
    """Return values of a weight of which many are no bfloat16."""
    place = np.arange(WEIGHT[0] * WEIGHT[1], dtype=np.float64)
    values: NDArray[np.float32] = (np.sin(place * 1.7) * 2.0 ** (place // 5 % 11)).astype(F)
    return values


def _splits() -> list[tuple[str, tuple[int, ...]]]:
    """Return formats, and the places at which one to three processes' parts end."""
    whole = WEIGHT[0] * WEIGHT[1]
    ends = [(whole,), *((cut, whole) for cut in CUTS)]
    ends += [(first, second, whole) for first, second in combinations_with_replacement(CUTS, 2)]
    return [*product(("nvfp4-2d", "mxfp8-e4m3"), ends)]


def masters(tell: Tell) -> Replayed:
    """Quantize a weight from flat parts, and compare each process's codes, scales and amax with the whole's."""
    import ml_dtypes
    import torch

    from fp4ref.te.master_weights import quantize_master_weights

    values = _masters()
    rounded = values.astype(ml_dtypes.bfloat16).reshape(WEIGHT)
    cases = _splits()
    for count, (kind, ends) in enumerate(cases):
        q = api.quantize(rounded, kind, "both", "linear_padded", backend="numpy")
        parts = [*zip((0, *ends), ends, strict=False)]

        def run(start: int, stop: int, kind: str = kind) -> Any:
            weight = quantizer(kind)(torch.zeros(WEIGHT, dtype=torch.bfloat16))
            for name in ("_rowwise_data", "_columnwise_data"):
                getattr(weight, name).fill_(UNTOUCHED)
            part = torch.from_numpy(values[start:stop].copy()) if stop > start else None
            quantize_master_weights([weight], [part], [start if stop > start else None], "group")
            return weight

        said = f"{kind}, parts that end at {[*ends]}"
        try:
            weights = together([lambda ends=part: run(*ends) for part in parts])  # type: ignore[misc]
        except BlockedError as error:
            return Replayed(count, f"{said}: {error}")
        for (start, stop), weight in zip(parts, weights, strict=True):
            if wrong := _unlike(kind, q, weight, start, stop):
                return Replayed(count, f"{said}: the process of elements {start} to {stop} has other {wrong}")
        tell((count + 1) / len(cases))
    return Replayed(len(cases))


def _unlike(kind: str, q: Any, weight: Any, start: int, stop: int) -> str:
    """Return which buffer of a process is not that of the rule, empty if there is none. Rules: TEM-10."""
    place = np.arange(WEIGHT[0] * WEIGHT[1]).reshape(WEIGHT)
    mine = (place >= start) & (place < stop)
    if has_amax(kind):
        if weight._amax_rowwise.numpy().tobytes() != q.row.amax.tobytes():
            return "amaxes"
        got, want = (
            np.stack((data & 15, data >> 4), -1).reshape(WEIGHT) for data in (weight._rowwise_data.numpy(), q.row.data)
        )
        other = np.where(place % 2, UNTOUCHED >> 4, UNTOUCHED & 15)
        sides = [(got, want, other, weight._rowwise_scale_inv, q.row.scales)]
    else:
        other = np.full(WEIGHT, UNTOUCHED)
        sides = [
            (weight._rowwise_data.numpy(), q.row.data, other, weight._rowwise_scale_inv, q.row.scales),
            (weight._columnwise_data.numpy(), q.column.data.T, other, weight._columnwise_scale_inv, q.column.scales.T),
        ]
    for name, (got, want, other, scales, its) in zip(DIRECTIONS, sides, strict=False):
        if not np.array_equal(got, np.where(mine, want, other)):
            return f"codes of {name}s"
        if not np.array_equal(scales.numpy(), its):
            return f"scales of {name}s"
    return ""


def claims() -> Iterator[ProofClaim]:
    """Yield the claim about master weights."""
    yield ProofClaim(
        name="master-parts/torch",
        rules=("TEM-10",),
        statement="A process writes the codes of its own elements, and the scales and the amax of the whole.",
        domain=f"a {WEIGHT[0]}x{WEIGHT[1]} weight in two formats, in up to three parts, cut at all pairs "
        f"of {len(CUTS)} places",
        size=len(_splits()),
        decide=masters,
        covers=(PADDED, "fp4ref.te.master_weights:quantize_master_weights"),
        reduction="a cut is in a pair of codes, a block, a tile or between them; the cuts have each of these places",
        method=Method.ARGUMENT,
        subject=ClaimSubject.TORCH,
    )
