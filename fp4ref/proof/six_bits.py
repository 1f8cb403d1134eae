"""Claims about 6-bit codes: the header's encoders, and on a device the conversions to 8 bits that stand in for them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np

from fp4ref.formats import CUDA_E2M3, CUDA_E3M2
from fp4ref.proof import device, native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.encoders import ALL, STATEMENT
from fp4ref.proof.steps import PATTERNS, CodeSteps, shown, steps

CODECS = {"e2m3": CUDA_E2M3, "e3m2": CUDA_E3M2}
NATIVE = {"e2m3": "saturating_e2m3", "e3m2": "saturating_e3m2"}
RULES = {name: tuple(f"{name.upper()}-{number}" for number in (2, 3, 4, 5)) for name in CODECS}
PLACES = 16
# The code of a float at each of sixteen places beside 1.5, if all agree and the neighbours have their own; that of the
# codec for one that is not packed.
PLACED = """
template <class C> static unsigned placed(float x)
{
    const unsigned want = C::encode(x) & 63u, other = C::encode(1.5f);
    if (!(magnitude(x) < codes_below<C>)) return want;
    bool same = true;
    FP4_UNROLL
    for (int place = 0; place < 16; ++place) {
        float all[16];
        unsigned words[3], code = 0;
        FP4_UNROLL
        for (int i = 0; i < 16; ++i) all[i] = i == place ? x : 1.5f;
        packed_sixes<C>(all, words);
        FP4_UNROLL
        for (int i = 0; i < 16; ++i) {
            const u64 next = i < 11 ? words[i * 6 / 32 + 1] : 0, two = words[i * 6 / 32] | next << 32;
            const unsigned of = (unsigned)(two >> i * 6 % 32) & 63u;
            if (i == place) code = of;
            else same &= of == other;
        }
        same &= code == want;
    }
    return same ? want : 0x1000u;
}
"""


@lru_cache
def expected(name: str) -> CodeSteps:
    """Return the codes of all patterns."""
    return steps(CODECS[name])


def compared(name: str, value: str, helpers: str, places: int, tell: Tell) -> Replayed:
    """Compare the codes of an expression of a float `x` with the steps, on every pattern in each place."""
    want = expected(name)
    numbers = [len(want.starts), *want.starts.tolist(), *want.codes.tolist()]
    text = native.step_text({"sixes": value.format("float_of(bits)")}, helpers)
    wrong, first = native.sweep(text, "sixes", PATTERNS, tell, numbers)
    if first is None:
        return Replayed(places * PATTERNS)
    right = int(want.of(np.array([first], np.uint32))[0])
    return Replayed(places * PATTERNS, f"{shown(first)} has another code than {right:02X}; {wrong} inputs are wrong")


def encoded(name: str, tell: Tell) -> Replayed:
    """Compare the codec's codes."""
    return compared(name, f"{NATIVE[name]}::encode({{}})", "", 1, tell)


def paired(name: str, tell: Tell) -> Replayed:
    """Compare the codes of pairs, in both places, on the device."""
    return device.on_device(partial(pairs, name), tell)


def pairs(name: str, tell: Tell) -> Replayed:
    """Compare the codes of pairs, in both places."""
    return compared(name, f"paired<{NATIVE[name]}>({{}})", device.PAIRED, 2, tell)


def placed(name: str, tell: Tell) -> Replayed:
    """Compare the codes of sixteens, in each place, on the device."""
    return device.on_device(partial(sixteens, name), tell)


def sixteens(name: str, tell: Tell) -> Replayed:
    """Compare the codes of sixteens, in each place."""
    return compared(name, f"placed<{NATIVE[name]}>({{}})", PLACED, PLACES, tell)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about 6-bit codes."""
    for name in CODECS:
        yield ProofClaim(
            name=f"encode-{name}/header",
            rules=RULES[name],
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.HEADER,
            statement=STATEMENT.format(name=name),
            domain=ALL,
            size=PATTERNS,
            decide=partial(encoded, name),
            covers=("codec.h:Codec::encode", f"codec.h:{NATIVE[name]}"),
        )
        yield ProofClaim(
            name=f"convert-{name}/cuda",
            rules=(*RULES[name], "PACK-4"),
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.CUDA,
            statement=f"Both places of a pair get the {name} code that exact fractions give, by the device's "
            "conversion to 8 bits where it has one.",
            domain=f"{ALL}, in both places",
            size=2 * PATTERNS,
            decide=partial(paired, name),
            covers=("codec.h:encode_pair", "codec.h:six_bits_pair", "fp4ref_cuda.compile:options"),
        )
        yield ProofClaim(
            name=f"pack-{name}/cuda",
            rules=(*RULES[name], "PACK-4"),
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.CUDA,
            statement=f"All sixteen places get the {name} code that exact fractions give, where they are packed at "
            "once; larger magnitudes and NaN never are.",
            domain=f"{ALL}, in sixteen places",
            size=PLACES * PATTERNS,
            decide=partial(placed, name),
            covers=("codec.h:packed_sixes", "codec.h:codes_below", "fp4ref_cuda.compile:options"),
        )
