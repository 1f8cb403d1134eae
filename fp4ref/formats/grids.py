"""Formats: the grid of values that codes have.

One definition serves every format of 4, 6 or 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError
from fp4ref.names import Names

WIDTHS = (4, 6, 8)  # bits of a code


@dataclass(frozen=True)
class Format:
    """A grid of values, by code.

    codes: count of finite codes without a sign. A format without a sign and without a mantissa holds powers of two
    only, code 0 being 2^-bias; every other one has a zero and subnormals. infinity: the first code past the finite
    ones is infinite; every other code past them is NaN. complement: negative codes are those of two's complement, so
    that there is one zero, and one more negative value than positive ones.

    Rules: E2M1-1, E4M3-1, E5M2-1, E8M0-1, INT8-1, UE5M3-1, PACK-6, SPC-6.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    codes: int
    signed: bool = True
    infinity: bool = False
    complement: bool = False

    def __post_init__(self) -> None:
        if self.bits not in WIDTHS:
            raise DomainError(f"format {self.name}", f"codes of {self.bits} bits", "4, 6 or 8", "PACK-6")
        magnitudes = 1 << (self.exponent_bits + self.mantissa_bits)
        most = min(magnitudes - self.infinity, 255)
        for bad, got, needed in (
            (not 2 <= self.codes <= most, f"{self.codes} finite codes", f"2 to {most}"),
            (
                self.complement and (not self.signed or self.exponent_bits or self.codes < magnitudes),
                "two's complement",
                "a sign, no exponent, no specials",
            ),
            (
                self.second_zero and (self.signed or self.infinity or self.codes != magnitudes - 1),
                "a second zero",
                "no sign, and the last code for it",
            ),
        ):
            if bad:
                raise DomainError(f"format {self.name}", got, needed, "SPC-6")
        if not _all_bfloat16(decisions(self)):
            raise DomainError(f"format {self.name}", f"bias {self.bias}", "values and midpoints of bfloat16", "SPC-6")

    @property
    def max(self) -> float:
        """The largest finite value."""
        return float(grid(self)[self.codes - 1])

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        return (self.codes - 1 >> self.mantissa_bits) - self.bias

    @property
    def sign_bit(self) -> int:
        """Mask of the sign in a code; 0 where there is none."""
        return 1 << (self.exponent_bits + self.mantissa_bits) if self.signed else 0

    @property
    def second_zero(self) -> bool:
        """True for a FormatWithSecondZero."""
        return False

    @property
    def powers_of_two(self) -> bool:
        """True if every value is a power of two, and none is zero."""
        return not self.signed and not self.mantissa_bits

    @property
    def bits(self) -> int:
        """Width of a code."""
        return (self.signed or self.second_zero) + self.exponent_bits + self.mantissa_bits

    @property
    def span(self) -> int:
        """Bits of the largest value, counted in the smallest steps."""
        return self.emax + self.bias + self.mantissa_bits + self.complement

    @property
    def digits(self) -> int:
        """Hexadecimal digits of a code."""
        return -(-self.bits // 4)


@dataclass(frozen=True)
class FormatWithSecondZero(Format):
    """A grid without a sign and without NaN in a code of one more bit, which is never written.

    The first code past the finite ones is 0. In every other code, the highest bit has no meaning.

    Rules: UE4M3-1.
    """

    @property
    def second_zero(self) -> bool:
        """True: the first code past the finite ones is 0."""
        return True


@lru_cache
def grid(form: Format) -> NDArray[np.float64]:
    """Values of the finite codes, and one more: the value that would follow the largest.

    Rules: E2M1-1, E4M3-1, E5M2-1, E8M0-1, UE4M3-1, UE5M3-1.
    """
    code = np.arange(form.codes + 1)
    if form.powers_of_two:
        return np.asarray(np.ldexp(1.0, code - form.bias))
    exponent, mantissa = code >> form.mantissa_bits, code & ((1 << form.mantissa_bits) - 1)
    leading = (exponent > 0) << form.mantissa_bits
    step = np.maximum(exponent, 1) - form.bias - form.mantissa_bits
    return np.asarray(np.ldexp((mantissa + leading).astype(np.float64), step))


def decisions(form: Format) -> NDArray[np.float64]:
    """Return the magnitudes at which codes change: every value and every midpoint."""
    values = grid(form)
    return np.concatenate([values[:-1], (values[:-1] + values[1:]) / 2])


def _all_bfloat16(values: NDArray[np.float64]) -> bool:
    """Return True if all are bfloat16 numbers; computed in float64, since a CPU may flush small float32 numbers."""
    mantissa, _ = np.frexp(values)
    counted = np.concatenate([mantissa * 256, np.ldexp(values, 133)])  # 2^-133: the smallest subnormal
    return bool((counted == np.floor(counted)).all() and (values < 2.0**128).all())


E2M1 = Format("e2m1", exponent_bits=2, mantissa_bits=1, bias=1, codes=8)
E4M3 = Format("e4m3", exponent_bits=4, mantissa_bits=3, bias=7, codes=127)
E5M2 = Format("e5m2", exponent_bits=5, mantissa_bits=2, bias=15, codes=124, infinity=True)
E2M3 = Format("e2m3", exponent_bits=2, mantissa_bits=3, bias=1, codes=32)
E3M2 = Format("e3m2", exponent_bits=3, mantissa_bits=2, bias=3, codes=32)
INT8 = Format("int8", exponent_bits=0, mantissa_bits=7, bias=0, codes=128, complement=True)
E8M0 = Format("e8m0", exponent_bits=8, mantissa_bits=0, bias=127, codes=255, signed=False)
UE5M3 = Format("ue5m3", exponent_bits=5, mantissa_bits=3, bias=15, codes=255, signed=False)
UE4M3 = FormatWithSecondZero("ue4m3", exponent_bits=4, mantissa_bits=3, bias=7, codes=127, signed=False)

FORMATS: Names[Format] = Names("format")
for _form in (E2M1, E4M3, E5M2, E8M0, E2M3, E3M2, INT8, UE5M3, UE4M3):
    FORMATS.register(_form, "this standard")
