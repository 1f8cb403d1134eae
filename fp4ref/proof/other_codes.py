"""Claims about the encoders of formats that few specifications use: 6 bits, two's complement, and no sign.

The values of codes are those that certificates about values write out from the rules; no record of a format is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fp4ref.formats import CUDA_E2M3, CUDA_E3M2, CUDA_UE5M3, GGML_UE4M3, OCP_INT8, Codec, F
from fp4ref.proof import encoders, native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.code_values import SIGNS, patterns_of
from fp4ref.proof.steps import INFINITY, PATTERNS, SIGN, CodeSteps, _first, shown


class OtherCodec(NamedTuple):
    """A codec, the rules of its encoder, the largest code without a sign, that of NaN, and the code of a negative."""

    codec: Codec
    rules: tuple[str, ...]
    last: int
    nan: int
    minus: Callable[[int], int]


def _with_sign(code: int) -> int:
    return code | 0x20


def _complement(code: int) -> int:
    return -code & 0xFF


def _dropped(code: int) -> int:
    return code


OTHERS = {
    "e2m3": OtherCodec(CUDA_E2M3, ("E2M3-2", "E2M3-3", "E2M3-4", "E2M3-5"), 0x1F, 0x1F, _with_sign),
    "e3m2": OtherCodec(CUDA_E3M2, ("E3M2-2", "E3M2-3", "E3M2-4", "E3M2-5"), 0x1F, 0x1F, _with_sign),
    "int8": OtherCodec(OCP_INT8, ("INT8-2", "INT8-3", "INT8-4", "INT8-5"), 0x7F, 0x7F, _complement),
    "ue4m3": OtherCodec(GGML_UE4M3, ("UE4M3-2",), 0x7E, 0x00, _dropped),
    "ue5m3": OtherCodec(CUDA_UE5M3, ("UE5M3-2", "UE5M3-3"), 0xFE, 0xFF, _dropped),
}
IN_HEADER = {"int8": "signs.h:ComplementCodec", "ue4m3": "signs.h:SecondZeroCodec", "ue5m3": "signs.h:Unsigned"}


@lru_cache
def expected(name: str) -> CodeSteps:
    """Return the codes of all float32 patterns: nearest, ties to the even code, saturating.

    Rules: E2M3-2, E3M2-2, INT8-2, UE4M3-2, UE5M3-2.
    """
    _, _, last, nan, minus = OTHERS[name]
    values = [Fraction(float(value)) for value in patterns_of(name)[: last + 1].view(F)]
    edges = [0, *(_first((values[i - 1] + values[i]) / 2, i % 2 == 0) for i in range(1, last + 1)), INFINITY + 1]
    places = [*edges, *(SIGN + edge for edge in edges)]
    codes = [*range(last + 1), nan, *map(minus, range(last + 1)), nan]
    return CodeSteps(np.array(places, np.uint64), np.array(codes, np.uint8))


def golden(name: str, tell: Tell) -> Replayed:
    """Compare the golden model's encoder with the steps, on the patterns that its table is keyed by."""
    patterns, want = encoders.halves(), expected(name)
    witness = encoders._compare(patterns, OTHERS[name].codec.encode(patterns.view(F)), want)
    tell(1.0)
    return Replayed(len(patterns), witness or encoders._splits(want))


def in_torch(name: str, tell: Tell) -> Replayed:
    """Compare the torch encoder with the steps, around each start and on the halves."""
    import torch

    from fp4ref_torch import codecs

    want = expected(name)
    edges = (want.starts.astype(np.int64)[:, None] + np.arange(-2, 3)).ravel()
    patterns = np.concatenate([edges[edges >= 0].astype(np.uint32), encoders.halves()])
    values: Any = torch.from_numpy(patterns.view(np.int32)).view(torch.float32)
    tell(1.0)
    got = codecs.encode(values, OTHERS[name].codec).numpy()
    return Replayed(len(patterns), encoders._compare(patterns, got, want))


def header(name: str, tell: Tell) -> Replayed:
    """Compare the header's encoder with the steps, on every pattern."""
    from fp4ref_numerics import _codec

    want = expected(name)
    numbers = [len(want.starts), *want.starts.tolist(), *want.codes.tolist()]
    value = f"{_codec(OTHERS[name].codec)}::encode(float_of(bits))"
    wrong, first = native.sweep(SIGNS + native.step_text({"other": value}), "other", PATTERNS, tell, numbers)
    if first is None:
        return Replayed(PATTERNS)
    right = int(want.of(np.array([first], np.uint32))[0])
    return Replayed(PATTERNS, f"{shown(first)} has another code than {right:02X}; {wrong} inputs are wrong")


SIGN_KEPT = """
    const unsigned bits = (unsigned)i;
    return !is_nan(float_of(bits)) && CODEC::encode(float_of(bits)) >> 7 != bits >> 31;
"""


def sign_kept(name: str, tell: Tell) -> Replayed:
    """Compare bit 7 of the header's code with the sign bit, on every pattern that is a number."""
    from fp4ref_numerics import _codec

    source = native.text({"sign": SIGN_KEPT.replace("CODEC", _codec(encoders.CODECS[name]))})
    wrong, first = native.sweep(source, "sign", PATTERNS, tell)
    witness = None if first is None else f"{shown(first)} has a code of the other sign; {wrong} inputs are wrong"
    return Replayed(PATTERNS, witness)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the encoders of these formats; those of 6 bits in the header are the other module's."""
    for name, (_, rules, *_) in OTHERS.items():
        shared: dict[str, Any] = {
            "rules": rules,
            "statement": encoders.STATEMENT.format(name=name),
            "domain": encoders.ALL,
            "size": PATTERNS,
        }
        yield ProofClaim(
            name=f"encode-{name}/golden",
            method=Method.ARGUMENT,
            subject=ClaimSubject.GOLDEN,
            decide=partial(golden, name),
            covers=("fp4ref.formats.codec:Codec.encode", "fp4ref.formats.codec:_representatives"),
            reduction=encoders.BY_KEY,
            rests_on=("decision-key/golden",),
            **shared,
        )
        yield ProofClaim(
            name=f"encode-{name}/torch",
            method=Method.ARGUMENT,
            subject=ClaimSubject.TORCH,
            decide=partial(in_torch, name),
            covers=("fp4ref_torch.codecs:encode", "fp4ref_torch.exact:rounded_code"),
            reduction=encoders.BY_INDEX,
            **shared,
        )
        if name in IN_HEADER:
            yield ProofClaim(
                name=f"encode-{name}/header",
                method=Method.EXHAUSTIVE,
                subject=ClaimSubject.HEADER,
                decide=partial(header, name),
                covers=("codec.h:Codec::encode", IN_HEADER[name]),
                **shared,
            )
    for name, of in encoders.SIGN_RULES.items():
        yield ProofClaim(
            name=f"encode-sign-{name}/header",
            rules=of,
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.HEADER,
            statement=f"Bit 7 of the {name} code of a number is its sign bit.",
            domain=encoders.ALL,
            size=PATTERNS,
            decide=partial(sign_kept, name),
            covers=("codec.h:Codec::encode",),
        )
