"""Claims about the value of every code, in each implementation.

Values are written out from the rules of the formats; no record of a format is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import FORMATS, Codec, F
from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.steps import INFINITY, SIGN, shown

QUIET = 0x7FC00000  # the NaN that E8M0-4 names
ANY_NAN = 0xFFFFFFFF  # in place of an expected pattern: a NaN, of any bits
E2M1 = (Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3), Fraction(4), Fraction(6))


def _pattern(value: Fraction, minus: bool | int = False) -> int:
    """Return the float32 pattern of a value; -0 if a zero has a sign."""
    single = F(float(value))
    if Fraction(float(single)) != value:
        raise ArithmeticError(f"{value} is no float32")
    return int(single.view(np.uint32)) | bool(minus) << 31


def _in_binades(code: int, mantissa_bits: int, bias: int, step: Fraction) -> Fraction:
    """Return man * step if exp is 0, else 2^(exp - bias) * (1 + man / 2^mantissa_bits)."""
    exp, man = divmod(code, 1 << mantissa_bits)
    return man * step if exp == 0 else Fraction(2) ** (exp - bias) * (1 + Fraction(man, 1 << mantissa_bits))


def _e2m1(code: int) -> int:
    return _pattern(E2M1[code & 7], code >> 3)


def _e2m3(code: int) -> int:
    return _pattern(_in_binades(code & 31, 3, 1, Fraction(1, 8)), code >> 5)


def _e3m2(code: int) -> int:
    return _pattern(_in_binades(code & 31, 2, 3, Fraction(1, 16)), code >> 5)


def _e4m3(code: int) -> int:
    index = code & 0x7F
    return ANY_NAN if index == 0x7F else _pattern(_in_binades(index, 3, 7, Fraction(1, 1 << 9)), code >> 7)


def _e5m2(code: int) -> int:
    index = code & 0x7F
    if index == 0x7C:
        return INFINITY | (code >> 7) << 31
    return ANY_NAN if index > 0x7C else _pattern(_in_binades(index, 2, 15, Fraction(1, 1 << 16)), code >> 7)


def _ue4m3(code: int) -> int:
    return _pattern(Fraction(480)) if code == 0xFF else 0 if code == 0x7F else _e4m3(code & 0x7F)


def _ue5m3(code: int) -> int:
    return ANY_NAN if code == 0xFF else _pattern(_in_binades(code, 3, 15, Fraction(1, 1 << 17)))


def _e8m0(code: int) -> int:
    return QUIET if code == 0xFF else _pattern(Fraction(2) ** (code - 127))


def _int8(code: int) -> int:
    number = code - 256 * (code >> 7)
    return _pattern(Fraction(number, 64)) if number else 0


class CodeValues(NamedTuple):
    """The rules of a format's values, bits of a code, and the float32 pattern of a code."""

    rules: tuple[str, ...]
    bits: int
    pattern: Callable[[int], int]


VALUES = {
    "e2m1": CodeValues(("E2M1-1",), 4, _e2m1),
    "e2m3": CodeValues(("E2M3-1",), 6, _e2m3),
    "e3m2": CodeValues(("E3M2-1",), 6, _e3m2),
    "e4m3": CodeValues(("E4M3-1",), 8, _e4m3),
    "e5m2": CodeValues(("E5M2-1",), 8, _e5m2),
    "e8m0": CodeValues(("E8M0-1", "E8M0-4"), 8, _e8m0),
    "int8": CodeValues(("INT8-1",), 8, _int8),
    "ue4m3": CodeValues(("UE4M3-1",), 8, _ue4m3),
    "ue5m3": CodeValues(("UE5M3-1",), 8, _ue5m3),
}


def patterns_of(name: str) -> NDArray[np.uint32]:
    """Return the float32 patterns of all codes of a format."""
    of = VALUES[name]
    return np.array([of.pattern(code) for code in range(1 << of.bits)], np.uint32)


def _codec(name: str) -> Codec:
    return Codec(format=FORMATS[name], nan=(0, 0))


def differing(got: NDArray[np.uint32], want: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return where patterns differ from the expected ones."""
    nan: NDArray[np.bool_] = (got & ~np.uint32(SIGN)) > INFINITY
    return np.where(want == ANY_NAN, ~nan, got != want)


def values(name: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare the values of all codes in Python."""
    want = patterns_of(name)
    codes = np.arange(len(want), dtype=np.uint8)
    got = _values_in_torch(name, codes) if subject is ClaimSubject.TORCH else _codec(name).decode(codes)
    found = np.ascontiguousarray(got, F).view(np.uint32)
    (wrong,) = np.nonzero(differing(found, want))
    tell(1.0)
    return Replayed(len(want), told_code(int(wrong[0]), want) if len(wrong) else None)


def _values_in_torch(name: str, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    import torch

    from fp4ref_torch.codecs import decode

    return np.asarray(decode(torch.from_numpy(codes), FORMATS[name]))


SIGNS = "#include <fp4ref/signs.h>\n"  # codes without a sign bit
VALUE = """
    const unsigned got = bits_of(CODEC::decode((unsigned)i)), want = (unsigned)a[i];
    return want == 0xffffffffu ? !is_nan(float_of(got)) : got != want;
"""


def values_in_header(name: str, tell: Tell) -> Replayed:
    """Compare the values of all codes in the header."""
    from fp4ref_numerics import _codec as codec_text

    want = patterns_of(name)
    source = SIGNS + native.text({"value": VALUE.replace("CODEC", codec_text(_codec(name)))})
    _, first = native.sweep(source, "value", len(want), tell, want.tolist())
    return Replayed(len(want), None if first is None else told_code(first, want))


def told_code(code: int, want: NDArray[np.uint32]) -> str:
    """Return in words that a code has another value than the expected one."""
    needed = "NaN" if want[code] == ANY_NAN else shown(int(want[code]))
    return f"code {code:02X} has another value than {needed}"


PLACES = {"int8": "signs.h:ComplementCodec", "ue4m3": "signs.h:SecondZeroCodec"}
OF_VALUES = {
    ClaimSubject.HEADER: "{place}::decode",
    ClaimSubject.GOLDEN: "fp4ref.formats.codec:Codec.decode",
    ClaimSubject.TORCH: "fp4ref_torch.codecs:decode",
}


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about values of codes."""
    for name, of in VALUES.items():
        for subject, covers in OF_VALUES.items():
            yield ProofClaim(
                name=f"values-{name}/{subject}",
                rules=of.rules,
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"Every code of {name} has the value that its rule states; NaN, infinities and -0 included.",
                domain=f"all codes of {name}",
                size=1 << of.bits,
                decide=partial(values_in_header, name)
                if subject is ClaimSubject.HEADER
                else partial(values, name, subject),
                covers=(covers.format(place=PLACES.get(name, "codec.h:Codec")),),
            )
