"""Claims about types of 16 bits: the float32 of every word, and the rounding of every float32.

Values are written out from IEEE 754's definition of such types; no cast is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.formats import F
from fp4ref.model import tiles
from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.code_values import ANY_NAN, differing, told_code
from fp4ref.proof.encoders import ALL, halves
from fp4ref.proof.steps import INFINITY, PATTERNS, SIGN, shown


class WordType(NamedTuple):
    """A type of 16 bits: bits of the mantissa, and the bias of the exponent."""

    mantissa_bits: int
    bias: int

    @property
    def infinity(self) -> int:
        """The word of infinity, the first one whose exponent bits are all set."""
        return 0x7FFF >> self.mantissa_bits << self.mantissa_bits


WORDS = {"bfloat16": WordType(7, 127), "float16": WordType(10, 15)}


def _word_values(name: str) -> NDArray[np.float64]:
    """Return the values of words from zero up to infinity, which counts as the next power of two; exact."""
    kind = WORDS[name]
    exp, man = np.divmod(np.arange(kind.infinity + 1), 1 << kind.mantissa_bits)
    whole = man + (exp > 0) * (1 << kind.mantissa_bits)
    return np.asarray(np.ldexp(whole.astype(np.float64), np.maximum(exp, 1) - kind.bias - kind.mantissa_bits))


def widened_patterns(name: str) -> NDArray[np.uint32]:
    """Return the float32 patterns of all words; a NaN has no bits of its own."""
    kind = WORDS[name]
    exact = _word_values(name)[:-1]
    single = exact.astype(F)
    if np.any(single.astype(np.float64) != exact):
        raise ArithmeticError(f"a {name} is no float32")
    infinite, nan = np.array([INFINITY], np.uint32), np.full(0x7FFF - kind.infinity, ANY_NAN, np.uint32)
    plus = np.concatenate([single.view(np.uint32), infinite, nan])
    return np.concatenate([plus, np.where(plus == ANY_NAN, plus, plus | np.uint32(SIGN))])


class WordSteps(NamedTuple):
    """A rounding of all float32 patterns to words: constant from each start to the next. A NaN counts as 7FFF."""

    starts: NDArray[np.uint64]
    words: NDArray[np.uint16]

    def of(self, patterns: NDArray[np.uint32]) -> NDArray[np.uint16]:
        """Return the words of float32 patterns."""
        found: NDArray[np.uint16] = self.words[np.searchsorted(self.starts, patterns, side="right") - 1]
        return found


@lru_cache
def word_steps(name: str) -> WordSteps:
    """Return the rounding to the nearest word, a tie to the even one; what rounds past the largest is infinite.

    A midpoint of neighbours is a float32, so the upper word begins there if it is even, else at the next pattern.

    Rules: DEQ-3.
    """
    exact = _word_values(name)
    middle = (exact[:-1] + exact[1:]) / 2
    single = middle.astype(F)
    if np.any(single.astype(np.float64) != middle):
        raise ArithmeticError(f"a midpoint of {name} is no float32")
    words = np.arange(len(exact))
    plus = np.concatenate([[0], single.view(np.uint32).astype(np.int64) + (words[1:] & 1), [INFINITY + 1]])
    words = np.append(words, 0x7FFF)
    starts = np.concatenate([plus, plus + SIGN])
    return WordSteps(starts.astype(np.uint64), np.concatenate([words, words | 0x8000]).astype(np.uint16))


# A NaN of any bits counts as one of its sign.
ROUNDED = """
template <class T> static unsigned rounded(unsigned bits)
{
    const unsigned word = T::round(float_of(bits));
    return (word & 0x7fffu) > T::infinity ? word | 0x7fffu : word;
}
"""
WIDENED = """
    const unsigned got = bits_of(TYPE::widen((unsigned short)i)), want = (unsigned)a[i];
    return want == 0xffffffffu ? !is_nan(float_of(got)) || (got >> 31) != (i >> 15) : got != want;
"""


def round_in_header(name: str, tell: Tell) -> Replayed:
    """Compare the header's rounding with the steps, on every pattern."""
    want = word_steps(name)
    numbers = [len(want.starts), *want.starts.tolist(), *want.words.tolist()]
    source = native.step_text({"rounded": f"rounded<{name}>(bits)"}, ROUNDED)
    wrong, first = native.sweep(source, "rounded", PATTERNS, tell, numbers)
    if first is None:
        return Replayed(PATTERNS)
    right = int(want.of(np.array([first], np.uint32))[0])
    return Replayed(PATTERNS, f"{shown(first)} becomes another {name} than {right:04X}; {wrong} inputs are wrong")


def rounds(name: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare a rounding in Python with the steps, around each start and on the halves."""
    want = word_steps(name)
    near = (want.starts.astype(np.int64)[:, None] + np.arange(-2, 3)).ravel()
    near = near[(near >= 0) & (near < PATTERNS)]
    patterns = np.concatenate([near.astype(np.uint32), halves()])
    found = _round_in_torch(patterns, name) if subject is ClaimSubject.TORCH else _round_in_numpy(patterns, name)
    got = np.where((found & 0x7FFF) > WORDS[name].infinity, found | 0x7FFF, found)
    right = want.of(patterns)
    (wrong,) = np.nonzero(got != right)
    tell(1.0)
    if not len(wrong):
        return Replayed(len(patterns))
    at = int(wrong[0])
    return Replayed(len(patterns), f"{shown(int(patterns[at]))} becomes {got[at]:04X}, needs {right[at]:04X}")


@np.errstate(all="ignore")
def _round_in_numpy(patterns: NDArray[np.uint32], name: str) -> NDArray[np.uint16]:
    return patterns.view(F).astype(INPUT_DTYPES[name]).view(np.uint16)


def _round_in_torch(patterns: NDArray[np.uint32], name: str) -> NDArray[np.uint16]:
    import torch

    from fp4ref_torch import exact

    given: Any = torch.from_numpy(patterns.view(np.int32)).view(torch.float32)
    made = exact.to_bfloat16(given) if name == "bfloat16" else exact.to_float16(given)
    return np.asarray(made.view(torch.int16)).view(np.uint16)


def widens_in_header(name: str, tell: Tell) -> Replayed:
    """Compare the header's float32 of every word."""
    want = widened_patterns(name)
    source = native.text({"widened": WIDENED.replace("TYPE", name)})
    _, first = native.sweep(source, "widened", len(want), tell, want.tolist())
    return Replayed(len(want), None if first is None else told_code(first, want))


def widens(name: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare the float32 of every word in Python."""
    want, words = widened_patterns(name), np.arange(1 << 16, dtype=np.uint16)
    got = (
        _widened_in_torch(words, name) if subject is ClaimSubject.TORCH else tiles.widen(words.view(INPUT_DTYPES[name]))
    )
    found = np.ascontiguousarray(got, F).view(np.uint32)
    lost = (want == ANY_NAN) & (found >> 31 != words >> 15)
    (wrong,) = np.nonzero(differing(found, want) | lost)
    tell(1.0)
    return Replayed(len(want), told_code(int(wrong[0]), want) if len(wrong) else None)


def _widened_in_torch(words: NDArray[np.uint16], name: str) -> NDArray[np.float32]:
    import torch

    from fp4ref_torch import exact

    given: Any = torch.from_numpy(words.view(np.int16)).view(getattr(torch, name))
    return np.asarray(exact.widened(given))


OF_ROUNDING = {
    ClaimSubject.HEADER: "bits.h:{name}::round",
    ClaimSubject.GOLDEN: "fp4ref.arrays:INPUT_DTYPES",
    ClaimSubject.TORCH: "fp4ref_torch.exact:to_{name}",
}
OF_WIDENING = {
    ClaimSubject.HEADER: "bits.h:{name}::widen",
    ClaimSubject.GOLDEN: "fp4ref.model.tiles:widen",
    ClaimSubject.TORCH: "fp4ref_torch.exact:widened",
}


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about types of 16 bits."""
    for name in WORDS:
        for subject, covers in OF_ROUNDING.items():
            whole = subject is ClaimSubject.HEADER
            yield ProofClaim(
                name=f"round-{name}/{subject}",
                rules=("DEQ-3",),
                method=Method.EXHAUSTIVE if whole else Method.ARGUMENT,
                subject=subject,
                statement=f"Every float32 becomes the nearest {name}, a tie the even one, what rounds past the largest "
                "infinity, and a NaN one of its sign.",
                domain=ALL,
                size=PATTERNS,
                decide=partial(round_in_header, name) if whole else partial(rounds, name, subject),
                covers=(covers.format(name=name),),
                reduction=""
                if whole
                else "a rounding never falls as the magnitude grows, so the patterns beside each start decide it",
            )
        for subject, covers in OF_WIDENING.items():
            whole = subject is ClaimSubject.HEADER
            yield ProofClaim(
                name=f"widen-{name}/{subject}",
                rules=("NUM-10",),
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"Every {name} becomes the float32 of its value, and a NaN one of its sign.",
                domain=f"all {name}",
                size=1 << 16,
                decide=partial(widens_in_header, name) if whole else partial(widens, name, subject),
                covers=(covers.format(name=name),),
            )
