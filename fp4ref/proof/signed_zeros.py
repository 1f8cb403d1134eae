"""Claims about transforms of zeros of both signs, and of single elements under masks of one sign."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fp4ref import hadamard
from fp4ref.formats import F, Floats
from fp4ref.proof import native
from fp4ref.proof.additions import _golden, _torch
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.transforms import MASK, SIGNINGS

POINTS = 16
ZEROS = f"""
    float y[16][1];
    for (int j = 0; j < 16; ++j) y[j][0] = i >> j & 1 ? -0.0f : 0.0f;
    TRANSFORM<0x{MASK:X}u>(y);
    for (int k = 0; k < 16; ++k)
        if (bits_of(y[k][0]) != (INVERSE && 0x{MASK:X}u >> k & 1u ? 0x80000000u : 0u)) return true;
    return false;
"""


def in_python(subject: ClaimSubject, inverse: bool, tell: Tell) -> Replayed:
    """Transform all vectors of zeros."""
    x = np.where(np.arange(SIGNINGS)[:, None] >> np.arange(POINTS) & 1, F(-0.0), F(0.0)).astype(F)
    got = np.ascontiguousarray((_golden if subject is ClaimSubject.GOLDEN else _torch)(inverse)(x))
    want = (MASK >> np.arange(POINTS) & inverse).astype(np.uint32) << 31
    row, output = np.nonzero(got.view(np.uint32) != want)
    tell(1.0)
    witness = f"output {output[0]} of {x[row[0]].tolist()} is {got[row[0], output[0]]}" if len(row) else None
    return Replayed(SIGNINGS, witness)


def in_header(inverse: bool, tell: Tell) -> Replayed:
    """Transform all vectors of zeros in the header."""
    body = ZEROS.replace("TRANSFORM", "inverse_hadamard" if inverse else "hadamard")
    source = native.text({"zeros": body.replace("INVERSE", str(inverse).lower())})
    wrong, first = native.sweep(source, "zeros", SIGNINGS, tell)
    return Replayed(SIGNINGS, None if first is None else f"zeros with the signs {first:04X}; {wrong} vectors are wrong")


# Input i: element i / 16 % 16 alone, output i % 16, and a mask with the bit i / 256, or none.
MASKS = POINTS + 1
ALONE = """
    const unsigned j = (unsigned)i / 16u % 16u, k = (unsigned)i % 16u, n = (unsigned)i / 256u;
    float y[16][1] = {};
    y[j][0] = 1.0f;
    BRANCHES
    const bool minus = (n == (INVERSE ? k : j)) != (__builtin_popcount(j & k) % 2 != 0);
    return y[k][0] != (minus ? -0.25f : 0.25f);
"""


def masked_in_python(subject: ClaimSubject, inverse: bool, tell: Tell) -> Replayed:
    """Transform every element alone under every mask of one bit, and none."""
    place = np.arange(POINTS)
    parity = np.array([[int(j & k).bit_count() & 1 for k in place] for j in place])
    for n in range(MASKS):
        flipped = (place == n)[None, :] if inverse else (place == n)[:, None]
        want = np.where(parity ^ flipped, -0.25, 0.25)
        got = _transformed(subject, inverse, np.eye(POINTS, dtype=F), (1 << n) % (1 << POINTS))
        element, output = np.nonzero(got != want)
        if len(element):
            said = f"output {output[0]} of element {element[0]} alone under the mask {(1 << n) % (1 << POINTS):04X}"
            return Replayed(n * POINTS**2, f"{said} is {got[element[0], output[0]]}")
        tell((n + 1) / MASKS)
    return Replayed(MASKS * POINTS**2)


def _transformed(subject: ClaimSubject, inverse: bool, x: Floats, mask: int) -> Floats:
    if subject is ClaimSubject.GOLDEN:
        return (hadamard.inverse if inverse else hadamard.transform)(x, mask)
    import torch

    from fp4ref_torch import hadamard as in_torch

    function = in_torch.inverse if inverse else in_torch.transform
    return np.asarray(function(torch.from_numpy(x), mask).to(torch.float32).numpy())


def masked_in_header(inverse: bool, tell: Tell) -> Replayed:
    """Transform every element alone in the header, under every mask of one bit, and none."""
    function = "inverse_hadamard" if inverse else "hadamard"
    branches = (f"if (n == {n}u) {function}<0x{(1 << n) % (1 << POINTS):X}u>(y);" for n in range(MASKS))
    body = ALONE.replace("BRANCHES", " ".join(branches)).replace("INVERSE", str(inverse).lower())
    wrong, first = native.sweep(native.text({"alone": body}), "alone", MASKS * POINTS**2, tell)
    witness = None if first is None else f"output {first % 16} of element {first // 16 % 16}, mask {first // 256}"
    return Replayed(MASKS * POINTS**2, None if witness is None else f"{witness}; {wrong} outputs are wrong")


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about zeros, and about masks."""
    for inverse, name, rules in ((False, "transform", ("HAD-1", "HAD-2")), (True, "inverse", ("HAD-1", "HAD-6"))):
        function = "inverse_hadamard" if inverse else "hadamard"
        for subject, decide, covers in (
            (ClaimSubject.GOLDEN, partial(masked_in_python, ClaimSubject.GOLDEN, inverse), f"fp4ref.hadamard:{name}"),
            (
                ClaimSubject.TORCH,
                partial(masked_in_python, ClaimSubject.TORCH, inverse),
                f"fp4ref_torch.hadamard:{name}",
            ),
            (ClaimSubject.HEADER, partial(masked_in_header, inverse), f"hadamard.h:{function}"),
        ):
            yield ProofClaim(
                name=f"hadamard-masks{'-inverse' if inverse else ''}/{subject}",
                rules=rules,
                method=Method.ARGUMENT,
                subject=subject,
                statement=f"In the {name}, bit i of the mask negates element i.",
                domain="all elements alone under all masks of one bit, and none",
                size=MASKS * POINTS**2,
                decide=decide,
                covers=(covers,),
                reduction="each bit of a mask is read by itself",
                rests_on=(f"hadamard-order/{subject}",) if not inverse else (f"hadamard-inverse/{subject}",),
            )
    of_zeros: dict[bool, tuple[str, ...]] = {False: ("HAD-2", "HAD-3"), True: ("HAD-6",)}
    for inverse, name in ((False, "transform"), (True, "inverse")):
        function = "inverse_hadamard" if inverse else "hadamard"
        golden, torch = f"fp4ref.hadamard:{name}", f"fp4ref_torch.hadamard:{name}"
        for subject, decide, covers in (
            (ClaimSubject.GOLDEN, partial(in_python, ClaimSubject.GOLDEN, inverse), golden),
            (ClaimSubject.TORCH, partial(in_python, ClaimSubject.TORCH, inverse), torch),
            (ClaimSubject.HEADER, partial(in_header, inverse), f"hadamard.h:{function}"),
        ):
            yield ProofClaim(
                name=f"hadamard-zeros{'-inverse' if inverse else ''}/{subject}",
                rules=of_zeros[inverse],
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"The {name} of zeros is {'0 with the signs of the mask' if inverse else '+0'}.",
                domain="all vectors of 16 zeros of either sign",
                size=SIGNINGS,
                decide=decide,
                covers=(covers,),
            )
