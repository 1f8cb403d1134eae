"""Codecs: how a float32 becomes a code of a format, and what a code means.

A Codec adds to a Format the choices on which implementations differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError
from fp4ref.formats.floats import Codes, F, Floats
from fp4ref.formats.grids import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, INT8, UE4M3, UE5M3, Format, grid

OPTIONAL = "optional"  # of a field: JSON leaves it out where it is None


class Rounding(StrEnum):
    """The rounding of a magnitude between two neighbours."""

    EVEN = "even"  # nearest, ties to the even code
    DOWN = "down"  # nearest, ties toward zero
    AWAY = "away"  # nearest, ties away from zero
    TRUNCATE = "truncate"  # to the next smaller magnitude
    UP = "up"  # to the next larger magnitude
    STOCHASTIC = "stochastic"  # by eight random bits per element (SR-2)


class Sign(StrEnum):
    """Inputs that set the sign bit of the code."""

    BIT = "bit"  # the sign bit, -0.0 included
    NEGATIVE = "negative"  # x < 0, so -0.0 encodes as +0
    NOT_POSITIVE = "not-positive"  # x <= 0, so +0.0 encodes as -0
    NONZERO = "nonzero"  # x < 0, unless the magnitude rounds to zero


# The picks that `Codec` computes: a specification with another one is refused when it is made.
ROUNDINGS = (Rounding.EVEN, Rounding.DOWN, Rounding.AWAY, Rounding.TRUNCATE, Rounding.UP, Rounding.STOCHASTIC)
SIGNS = (Sign.BIT, Sign.NEGATIVE, Sign.NOT_POSITIVE, Sign.NONZERO)


@dataclass(frozen=True, kw_only=True)
class Codec:
    """A conversion from float32 to codes of `format`, and back.

    nan: codes of a NaN with sign bit 0 and 1. overflow: code of a finite magnitude that rounds past the largest
    value, before its sign is set; None saturates. infinity: code of infinity, before its sign is set; None is the code
    of an overflow.

    Rules: E2M1-6, E4M3-5, E5M2-5, SPC-7, SPC-15, SPC-16, SPC-19.
    """

    format: Format
    rounding: Rounding = Rounding.EVEN
    sign: Sign = Sign.BIT
    nan: tuple[int, int]
    overflow: int | None = None
    infinity: int | None = field(default=None, metadata={OPTIONAL: True})

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for name, picks in (("rounding", Rounding), ("sign", Sign)):
            try:
                set_field(self, name, picks(getattr(self, name)))
            except ValueError:
                got = f"{name} {getattr(self, name)!r}"
                raise DomainError("codec", got, f"one of {', '.join(picks)}", "SPC-1") from None
        set_field(self, "nan", (int(self.nan[0]), int(self.nan[1])))
        for code in (*self.nan, self.overflow or 0, self.infinity or 0):
            if not 0 <= code < 1 << self.format.bits:
                got = f"nan {self.nan}, overflow {self.overflow}, infinity {self.infinity}"
                raise DomainError("codec", got, f"codes of {self.format.bits} bits", "SPC-1")
        if self.rounding is Rounding.STOCHASTIC and self.format != E2M1:
            raise DomainError("codec", f"stochastic rounding to {self.format.name}", "e2m1", "SR-1")

    @np.errstate(all="ignore")
    def encode(self, values: Floats, random_bits: Codes | None = None) -> Codes:
        """Round float32 to codes, one per byte.

        values: any shape, every float32 allowed. random_bits: the same shape, for stochastic rounding only.

        Rules: E2M1-2, E2M1-3, E2M1-4, E2M1-5, E4M3-2, E4M3-3, E4M3-4, E4M3-6, E5M2-2, E5M2-3, E5M2-4, E5M2-6, E8M0-2,
        E8M0-3, E2M3-2, E2M3-3, E2M3-4, E2M3-5, E3M2-2, E3M2-3, E3M2-4, E3M2-5, INT8-2, INT8-3, INT8-4, INT8-5,
        UE4M3-2, UE5M3-2, UE5M3-3. Certificates: encode-*, stochastic-bfloat16, stochastic-mean,
        theorem-order, theorem-rescaled.
        """
        if self.rounding is not Rounding.STOCHASTIC:
            return _code_table(self)[_decision(values)]
        if random_bits is None:
            raise DomainError("encode", "no random bits", "one byte per element to round stochastically", "SR-1")
        return self._code(values, self._stochastic(values, random_bits))

    def expectation(self, values: Floats) -> NDArray[np.float64]:
        """Return the exact mean of the decoded values over all 256 bytes of stochastic rounding; NaN counts as 6.

        Rules: SR-4. Certificates: stochastic-expectation.
        """
        total = np.zeros(np.shape(values))
        for byte in range(256):
            total += self.decode(self.encode(values, np.full(np.shape(values), byte, np.uint8)))
        return total / 256  # multiples of 1/2 up to 1536, then of 1/512: nothing is rounded

    @np.errstate(all="ignore")
    def nearest(self, values: Floats) -> Floats:
        """Round to the values that `encode` picks, before an overflow turns into a code; not NaN.

        An infinity that has a code of its own becomes NaN.

        Rules: FOS-9.
        """
        index = np.minimum(_index_table(self)[_decision(values)], self.format.codes - (self.overflow is None))
        nearest = np.copysign(grid(self.format).astype(F)[index], values)
        if self.infinity in (None, self.overflow):
            return nearest
        return np.where(np.isinf(values), F(np.nan), nearest)

    def decode(self, codes: Codes) -> Floats:
        """Return the float32 values of codes, any shape; exact.

        Rules: E2M1-1, E2M3-1, E3M2-1, E4M3-1, E5M2-1, E8M0-1, E8M0-4, INT8-1, UE4M3-1, UE5M3-1.
        Certificates: values-*.
        """
        table = _value_table(self.format)
        if codes.size and int(codes.max()) >= len(table):
            raise DomainError("decode", f"code {int(codes.max())}", f"{self.format.bits} bits", "PACK-1")
        return table[codes]

    def _round(self, values: Floats) -> NDArray[np.intp]:
        """Return indices into the grid of |values|; one past the last finite code means overflow. The definition.

        Rules: E2M1-3, E2M1-6, E4M3-2, E5M2-2, E8M0-2, E2M3-2, E3M2-2, INT8-2, UE4M3-2, UE5M3-2.
        """
        magnitude, values_of = np.abs(values).astype(np.float64), grid(self.format)
        midpoints = (values_of[:-1] + values_of[1:]) / 2
        below = np.searchsorted(midpoints, magnitude, side="left")
        above = np.searchsorted(midpoints, magnitude, side="right")
        match self.rounding:
            case Rounding.EVEN:
                return np.where(below % 2 == 0, below, above)  # they differ only on a tie
            case Rounding.DOWN:
                return below
            case Rounding.AWAY:
                return above
            case Rounding.UP:
                return np.searchsorted(values_of, magnitude, side="left")
            case _:
                return np.maximum(np.searchsorted(values_of, magnitude, side="right") - 1, 0)

    def _stochastic(self, values: Floats, random_bits: Codes) -> NDArray[np.intp]:
        """Index of the smaller neighbour after step * bits / 256 was added in one rounding to float32.

        Rules: SR-2, SR-3, SR-4.
        """
        values_of = grid(self.format)
        magnitude = np.abs(values).astype(np.float64)
        lower = np.searchsorted(values_of, magnitude, side="right") - 1
        step = np.diff(values_of)[np.clip(lower, 0, self.format.codes - 2)]
        # The sum may round in float64, but never onto a tie of float32: it is at least 2^-25 of a float32 ulp away from
        # each tie that it does not equal, and float64 moves it by at most 2^-30 of that ulp. So it is rounded once.
        # Certificates: stochastic-bfloat16, stochastic-mean.
        moved = (magnitude + step * random_bits / 256).astype(F)
        return np.maximum(np.searchsorted(values_of, moved, side="right") - 1, 0)

    def _code(self, values: Floats, index: NDArray[np.intp]) -> Codes:
        """Add sign, overflow and NaN to grid indices.

        Rules: E2M1-2, E2M1-4, E2M1-5, E2M1-6, E4M3-3, E4M3-4, E4M3-5, E5M2-3, E5M2-4, E5M2-5, E8M0-3.
        """
        last = self.format.codes - 1
        code = np.where(index > last, last if self.overflow is None else self.overflow, index)
        if self.infinity is not None:
            code = np.where(np.isinf(values), self.infinity, code)
        minus = {
            Sign.BIT: np.signbit(values),
            Sign.NEGATIVE: values < 0,
            Sign.NOT_POSITIVE: values <= 0,
            Sign.NONZERO: (values < 0) & (code != 0),
        }[self.sign]
        signs = self.format.sign_bit
        code = np.where(minus, (2 * signs - code) % (2 * signs) if self.format.complement else code | signs, code)
        not_a_number = np.where(np.signbit(values), self.nan[1], self.nan[0])
        return np.where(np.isnan(values), not_a_number, code).astype(np.uint8)


# Every value and every midpoint of a format is a bfloat16 (SPC-6), so the upper half of a float32 and whether the
# lower half is zero decide its code: 2^17 cases, tabulated from the definition. Certificates: decision-key/golden.


def _decision(values: Floats) -> NDArray[np.intp]:
    bits = np.asarray(values, F).view(np.uint32)
    key = bits >> 16 << 1
    key |= (bits & 0xFFFF) != 0
    return key.astype(np.intp)


def _representatives() -> Floats:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.stack([upper, upper | 1], axis=-1).ravel().view(F)


@lru_cache
def _index_table(codec: Codec) -> NDArray[np.uint8]:
    return np.minimum(codec._round(_representatives()), codec.format.codes).astype(np.uint8)


@lru_cache
def _code_table(codec: Codec) -> Codes:
    return codec._code(_representatives(), _index_table(codec).astype(np.intp))


@lru_cache
def _value_table(form: Format) -> Floats:
    code = np.arange(1 << form.bits)
    index = code & ((1 << (form.exponent_bits + form.mantissa_bits)) - 1)
    if form.second_zero:
        return np.where(code == form.codes, 0, grid(form)[index]).astype(F)
    value = np.where(index < form.codes, grid(form)[np.minimum(index, form.codes - 1)], np.nan)
    if form.infinity:
        value = np.where(index == form.codes, np.inf, value)
    if form.complement:
        return np.where(code & form.sign_bit, code - 2 * form.sign_bit, code).astype(F) * F(grid(form)[1])
    return np.where(code & form.sign_bit, -value, value).astype(F)


# The hardware's conversions: nearest even, saturating, sign of NaN dropped (E8M0: toward larger magnitude).
CUDA_E2M1 = Codec(format=E2M1, nan=(0x7, 0x7))
CUDA_E4M3 = Codec(format=E4M3, nan=(0x7F, 0x7F))
CUDA_E5M2 = Codec(format=E5M2, nan=(0x7F, 0x7F))
CUDA_E2M3 = Codec(format=E2M3, nan=(0x1F, 0x1F))
CUDA_E3M2 = Codec(format=E3M2, nan=(0x1F, 0x1F))
OCP_INT8 = Codec(format=INT8, nan=(0x7F, 0x7F))
CUDA_E8M0 = Codec(format=E8M0, rounding=Rounding.UP, nan=(0xFF, 0xFF))
CUDA_UE5M3 = Codec(format=UE5M3, nan=(0xFF, 0xFF))
GGML_UE4M3 = Codec(format=UE4M3, nan=(0x00, 0x00))
STOCHASTIC_E2M1 = Codec(format=E2M1, rounding=Rounding.STOCHASTIC, nan=(0x7, 0x7))
# What torch before 2.12, ml_dtypes and JAX do with a magnitude above 464.
NAN_OVERFLOW_E4M3 = Codec(format=E4M3, nan=(0x7F, 0xFF), overflow=0x7F)
