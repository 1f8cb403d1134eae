"""Claims about the judge: it sees every byte that differs, one after the other, and no byte that is unspecified."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fp4ref.catalogue import resolve
from fp4ref.conformance.judge.compare import compare
from fp4ref.formats import F
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import UNIT
from fp4ref.proof.offsets import STATED, StatedLayout
from fp4ref.quantized import DirectionData

BYTES = 256
AMAXES = (0x00000000, 0x00000001, 0x3F800000, 0x40C00000, 0x7F7FFFFF)
SPECS = ("nvfp4", "mxfp8-e4m3")
PROFILE = "torchao.nvfp4_2lvl"  # of another implementation, for which all NaN are equal
NAN = (0x7F, 0xFF)  # of E4M3
SIZE = len(SPECS) * 2 * BYTES**2 + BYTES**2 + len(AMAXES) * 33


def seen(tell: Tell) -> Replayed:
    """Compare every byte with every byte, as codes and as scales, and maxima with those of one other bit."""
    count, pairs = 0, np.arange(BYTES, dtype=np.uint8)
    got, want = (part.ravel() for part in np.meshgrid(pairs, pairs, indexing="ij"))
    for name in (*SPECS, PROFILE):
        spec = resolve(name)
        width = spec.block.columns
        per = 8 // spec.element.format.bits  # codes in a byte
        x = np.ones((BYTES, BYTES * per), F)
        amax = np.array([UNIT], F) if spec.global_scale == "tensor" else None
        scales = np.full((BYTES, BYTES * per // width), 0x38, np.uint8)
        data = [part.reshape(BYTES, BYTES) for part in (got, want)]
        if name in SPECS:
            mine, its = (DirectionData(part, scales, amax) for part in data)
            found = compare(x, spec, "row", "linear", mine, its)
            nibbles = [part[..., None] >> np.array([0, 4]) & 15 if per == 2 else part[..., None] for part in data]
            differing = int((nibbles[0] != nibbles[1]).sum())
            count += BYTES**2
            if found.codes != differing or found.equal:
                return Replayed(count, f"{name}: {found.codes} codes differ, need {differing}")
        x = np.ones((BYTES, BYTES * width), F)
        codes = np.zeros((BYTES, x.shape[1] // per), np.uint8)
        mine, its = (DirectionData(codes, part, amax) for part in data)
        found = compare(x, spec, "row", "linear", mine, its)
        alike = (got == want) | (np.isin(got, NAN) & np.isin(want, NAN) & (name == PROFILE))
        count += BYTES**2
        if found.scales != int((~alike).sum()):
            return Replayed(count, f"{name}: {found.scales} scales differ, need {int((~alike).sum())}")
    return _maxima(count)


def _maxima(count: int) -> Replayed:
    """Compare maxima with themselves, and with those of one other bit."""
    x, codes, scales = np.ones((1, 16), F), np.zeros((1, 8), np.uint8), np.zeros((1, 1), np.uint8)
    for pattern in AMAXES:
        for flip in (0, *(1 << bit for bit in range(32))):
            mine, its = (
                DirectionData(codes, scales, np.array([bits], np.uint32).view(F)) for bits in (pattern ^ flip, pattern)
            )
            found = compare(x, resolve("nvfp4"), "row", "linear", mine, its)
            count += 1
            if found.equal is not (flip == 0):
                return Replayed(count, f"the maximum {pattern ^ flip:08X} for {pattern:08X}")
    return Replayed(count)


def padded(stated: StatedLayout) -> list[tuple[int, int]]:
    """Return shapes of scales whose buffers have padding below, beside, on both sides, and none."""
    high, wide = stated.rows, stated.columns
    return [(1, 1), (high, 1), (1, wide), (high, wide), (high + 1, wide + 1)]


def padding(stated: StatedLayout, tell: Tell) -> Replayed:
    """Change each byte of a buffer, one at a time; the judge sees that of a scale, and padding where it has to be 0."""
    spec, count = resolve("mxfp4"), 0
    for m, k in padded(stated):
        x, data = np.ones((m, 32 * k), F), np.zeros((m, 16 * k), np.uint8)
        shape = stated.padded(m, k)
        rows, columns = np.indices((m, k))
        holds = np.zeros(shape[0] * shape[1], bool)
        holds[stated.offset(rows, columns, shape[1]).ravel()] = True
        needed = DirectionData(data, np.zeros((m, k), np.uint8), None)
        for place in range(len(holds)):
            buffer: NDArray[np.uint8] = np.zeros(len(holds), np.uint8)
            buffer[place] = 1
            found = compare(x, spec, "row", stated.name, DirectionData(data, buffer.reshape(shape), None), needed)
            specified = bool(holds[place]) or stated.fills
            count += 1
            if found.equal is specified or bool(found.scales) is not bool(holds[place]):
                return Replayed(count, f"byte {place} of {m} x {k} scales in {stated.name}")
        tell(count / size(stated))
    return Replayed(count)


def size(stated: StatedLayout) -> int:
    """Return how many bytes a claim changes."""
    return sum(int(np.prod(stated.padded(*shape))) for shape in padded(stated))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the judge."""
    yield ProofClaim(
        name="bytes-compared/golden",
        rules=("CNF-1",),
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.GOLDEN,
        statement="A code, a scale byte or a maximum that differs in any bit is counted, and nothing else is; for a "
        "profile of another implementation all NaN are equal.",
        domain="all pairs of bytes as codes and as scales, and maxima with each bit changed",
        size=SIZE,
        decide=seen,
        covers=("fp4ref.conformance.judge.compare:compare",),
    )
    for stated in STATED:
        if stated.rows == 1:
            continue
        yield ProofClaim(
            name=f"padding-compared-{stated.name}/golden",
            rules=("CNF-3",),
            method=Method.ARGUMENT,
            subject=ClaimSubject.GOLDEN,
            statement=f"In {stated.name}, a changed byte of padding is seen if and only if the layout specifies it.",
            domain="each byte of buffers with padding below, beside, on both sides, and without",
            size=size(stated),
            decide=partial(padding, stated),
            covers=("fp4ref.conformance.judge.compare:compare", f"fp4ref.layout.registry:{stated.name.upper()}"),
            reduction="a byte is padding by the formula of its layout, so buffers of one tile and of four decide",
            rests_on=(f"offset-{stated.name}/golden",),
        )
