"""Claims about the encoders: every float32 pattern gets the code that exact fractions give it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E5M2, CUDA_E8M0, E2M1, E5M2, NAN_OVERFLOW_E4M3, Codec, F
from fp4ref.formats import codec as codec_module
from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.steps import PATTERNS, CodeSteps, shown, steps

CODECS = {
    "e2m1": CUDA_E2M1,
    "e2m1-overflow": Codec(format=E2M1, nan=(0x7, 0x7), overflow=0x8),
    "e4m3": CUDA_E4M3,
    "e4m3-nan": NAN_OVERFLOW_E4M3,
    "e5m2": CUDA_E5M2,
    "e5m2-infinity": Codec(format=E5M2, nan=(0x7F, 0xFF), overflow=0x7C),
    "e8m0": CUDA_E8M0,
}
RULES = {
    "e2m1": ("E2M1-2", "E2M1-3", "E2M1-4", "E2M1-5"),
    "e4m3": ("E4M3-2", "E4M3-3", "E4M3-4"),
    "e5m2": ("E5M2-2", "E5M2-3", "E5M2-4"),
    "e8m0": ("E8M0-2", "E8M0-3"),
}
SIGN_RULES = {"e4m3": ("E4M3-6",), "e5m2": ("E5M2-6",)}
LOWER = (0, 1, *(1 << bit for bit in range(1, 16)), 0x7FFF, 0xFFFF)  # lower halves: zero, every single bit, more
CHUNK = 1 << 22


@lru_cache
def expected(name: str) -> CodeSteps:
    """Return the codes of all patterns."""
    return steps(CODECS[name])


# The shared header


def header_text(name: str) -> str:
    """Return the check of a codec."""
    from fp4ref_numerics import _codec

    return native.step_text({"encode": f"{_codec(CODECS[name])}::encode(float_of(bits))"})


def header(name: str, tell: Tell) -> Replayed:
    """Compare the header's encoder with the steps, on every pattern."""
    want = expected(name)
    numbers = [len(want.starts), *want.starts.tolist(), *want.codes.tolist()]
    wrong, first = native.sweep(header_text(name), "encode", PATTERNS, tell, numbers)
    if first is None:
        return Replayed(PATTERNS)
    right = int(want.of(np.array([first], np.uint32))[0])
    return Replayed(PATTERNS, f"{shown(first)} has another code than {right:02X}; {wrong} inputs are wrong")


# The golden model and torch, in chunks of an encoder of arrays


def _compare(patterns: NDArray[np.uint32], got: NDArray[np.uint8], want: CodeSteps) -> str | None:
    """Return the first pattern with another code, in words."""
    right = want.of(patterns)
    (wrong,) = np.nonzero(got != right)
    if not len(wrong):
        return None
    at = wrong[0]
    return f"{shown(int(patterns[at]))} has code {got[at]:02X}, needs {right[at]:02X}"


def _chunks(patterns: NDArray[np.uint32] | None = None) -> Iterator[tuple[NDArray[np.uint32], float]]:
    """Yield patterns, all 2^32 unless given, and the part that is done after them."""
    if patterns is not None:
        yield patterns, 1.0
        return
    for start in range(0, PATTERNS, CHUNK):
        yield np.arange(start, start + CHUNK, dtype=np.uint64).astype(np.uint32), (start + CHUNK) / PATTERNS


def golden(name: str, every: bool, tell: Tell) -> Replayed:
    """Compare the golden model's encoder with the steps, on every pattern, or on those that its table is keyed by."""
    count, want = 0, expected(name)
    for patterns, done in _chunks(None if every else halves()):
        witness = _compare(patterns, CODECS[name].encode(patterns.view(F)), want)
        count += len(patterns)
        if witness:
            return Replayed(count, witness)
        tell(done)
    return Replayed(count, None if every else _splits(want))


def halves() -> NDArray[np.uint32]:
    """Return all upper halves of a pattern with the lower halves of LOWER."""
    upper = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    return np.asarray((upper | np.array(LOWER, np.uint32)).ravel(), np.uint32)


def _splits(want: CodeSteps) -> str | None:
    """Return a start that is neither a bfloat16 nor the pattern after one: there, the halves do not decide the code."""
    inside = want.starts[(want.starts & 0xFFFF) > 1]
    return f"a code begins at {shown(int(inside[0]))}, inside a case of the table" if len(inside) else None


def decision(tell: Tell) -> Replayed:
    """Compare the key of the golden model's table with its definition, for all upper halves and every lower bit."""
    patterns = halves()
    key = codec_module._decision(patterns.view(F))
    right = (patterns >> 16).astype(np.int64) * 2 + ((patterns & 0xFFFF) != 0)
    (wrong,) = np.nonzero(key != right)
    witness = f"{shown(int(patterns[wrong[0]]))} has key {key[wrong[0]]:X}" if len(wrong) else None
    return Replayed(len(patterns), witness)


def torch_encoder(name: str, every: bool, tell: Tell) -> Replayed:
    """Compare the torch encoder with the steps, on every pattern, or around each start and on the halves."""
    import torch

    from fp4ref_torch import codecs

    want, count = expected(name), 0
    edges = (want.starts.astype(np.int64)[:, None] + np.arange(-2, 3)).ravel()
    edges = np.concatenate([edges[edges >= 0].astype(np.uint32), halves()]).astype(np.uint32)
    for patterns, done in _chunks(None if every else edges.view(np.uint32)):
        values: Any = torch.from_numpy(patterns.view(np.int32)).view(torch.float32)
        witness = _compare(patterns, codecs.encode(values, CODECS[name]).numpy(), want)
        count += len(patterns)
        if witness:
            return Replayed(count, witness)
        tell(done)
    return Replayed(count)


STATEMENT = "Every float32, NaN and infinities included, has the {name} code that exact fractions give it."
ALL = "all float32 bit patterns"
BY_KEY = "an encoder is a table by the key, and every start is a bfloat16 or the float32 after one"
BY_INDEX = "an index never falls as the magnitude grows, so the patterns beside each start decide it"


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about encoders."""
    yield ProofClaim(
        name="decision-key/golden",
        rules=("SPC-6",),
        method=Method.ARGUMENT,
        subject=ClaimSubject.GOLDEN,
        statement="The key of an encoder's table is the upper half of a float32, and whether the lower half is zero.",
        domain=ALL,
        size=PATTERNS,
        decide=decision,
        covers=("fp4ref.formats.codec:_decision",),
        reduction="the key masks and shifts bits, so single lower bits under every upper half decide it",
    )
    for name, codec in CODECS.items():
        rules = RULES[codec.format.name]
        statement = STATEMENT.format(name=name)
        shared: dict[str, Any] = {"statement": statement, "domain": ALL, "size": PATTERNS}
        quick: dict[str, Any] = shared | {"rules": rules + SIGN_RULES.get(codec.format.name, ())}
        every: dict[str, Any] = shared | {"rules": rules, "long": True}
        yield ProofClaim(
            name=f"encode-{name}/header",
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.HEADER,
            decide=partial(header, name),
            covers=("codec.h:Codec::encode",),
            rules=rules,
            **shared,
        )
        yield ProofClaim(
            name=f"encode-{name}/golden",
            method=Method.ARGUMENT,
            subject=ClaimSubject.GOLDEN,
            decide=partial(golden, name, False),
            covers=("fp4ref.formats.codec:Codec.encode", "fp4ref.formats.codec:_representatives"),
            reduction=BY_KEY,
            rests_on=("decision-key/golden",),
            **quick,
        )
        yield ProofClaim(
            name=f"encode-{name}-all/golden",
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.GOLDEN,
            decide=partial(golden, name, True),
            covers=("fp4ref.formats.codec:Codec.encode",),
            **every,
        )
        torch_covers = ("fp4ref_torch.codecs:encode", "fp4ref_torch.exact:rounded_code")
        yield ProofClaim(
            name=f"encode-{name}/torch",
            method=Method.ARGUMENT,
            subject=ClaimSubject.TORCH,
            decide=partial(torch_encoder, name, False),
            covers=torch_covers,
            reduction=BY_INDEX,
            **quick,
        )
        yield ProofClaim(
            name=f"encode-{name}-all/torch",
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.TORCH,
            decide=partial(torch_encoder, name, True),
            covers=torch_covers,
            **every,
        )
