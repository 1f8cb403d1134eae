"""Wrong quantizers: from the scaled element to its code."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
BF16, E4M3, E5M2, F, GRID = (_BASE[name] for name in ("BF16", "E4M3", "E5M2", "F", "GRID"))
HALVES, MXFP4, MXFP8, NVFP4, Stochastic = (_BASE[name] for name in ("HALVES", "MXFP4", "MXFP8", "NVFP4", "Stochastic"))
by_boundaries, e2m1, value = (_BASE[name] for name in ("by_boundaries", "e2m1", "value"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("element-fp16")
class ElementFloat16(NVFP4):
    def encode(self, y):
        return e2m1(y.astype(np.float16).astype(F))


@mutant("element-down")
class TiesDown(NVFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: False)


@mutant("element-away")
class TiesAway(NVFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: True)


@mutant("element-ties-up")
class TiesUp(NVFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: y > 0)


@mutant("element-truncate")
class Truncates(NVFP4):
    def encode(self, y):
        code = np.minimum(np.searchsorted(HALVES, 2 * np.abs(np.nan_to_num(y)), side="right") - 1, 7)
        return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


@mutant("element-inferred|element-table-quarter")
class WrongBoundary(NVFP4):
    def encode(self, y):
        return np.where((np.abs(y) > 2.5) & (np.abs(y) <= 2.6), e2m1(np.sign(y) * F(2)), e2m1(y)).astype(np.uint8)


@mutant("element-table-sixteenth")
class WrongTable(NVFP4):
    def encode(self, y):
        m = np.abs(y)
        small = np.where(m > 0.03125, 1, 0) + (m >= 0.53125) + 8 * np.signbit(y)
        return np.where(m <= 1.25, small, e2m1(y)).astype(np.uint8)


@mutant("sign-negative")
class DropsMinusZero(NVFP4):
    def encode(self, y):
        return np.where(y == 0, 0, e2m1(y)).astype(np.uint8)


@mutant("nan-0")
class NaNToZero(NVFP4):
    def encode(self, y):
        return np.where(np.isnan(y), 0, e2m1(y)).astype(np.uint8)


@mutant("element-overflow-0")
class OverflowWraps(NVFP4):
    def encode(self, y):
        return np.where(np.abs(y) >= 7, 8 * np.signbit(y), e2m1(y)).astype(np.uint8)


@mutant("element-away")
class AwayMX(MXFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: True)


@mutant("element-flush")
class FlushesElements(MXFP8):
    def encode(self, y):
        code = super().encode(y)
        return np.where(code & 0x7F < 8, code & 0x80, code).astype(np.uint8)


@mutant("element-even")
class NearestInstead(Stochastic):
    encode = NVFP4.encode


@mutant("element-truncate|bits-zero")
class AlwaysDown(Stochastic):
    def drawn(self, bits):
        return np.zeros_like(bits)


@mutant("element-down")
class ChainOfGreater(NVFP4):
    """All seven comparisons are strict."""

    def encode(self, y):
        return by_boundaries(y, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


@mutant("element-ties-odd")
class TiesToOdd(MXFP4):
    def encode(self, y):
        return e2m1(y, tie=lambda c, y: c % 2 == 0)


@mutant("element-ties-up")
class FloorOfPlusHalf(MXFP4):
    """floor(y + half a step) of the signed value: halves of negative numbers go up, to zero."""

    def encode(self, y):
        up, down = e2m1(y, tie=lambda c, y: True), by_boundaries(y, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
        return np.where(y < 0, down, up).astype(np.uint8)


@mutant("element-floor")
class FloorOfSigned(MXFP4):
    def encode(self, y):
        with np.errstate(invalid="ignore"):
            low = np.searchsorted(GRID, np.abs(y), side="right") - 1
            high = np.minimum(np.searchsorted(GRID, np.abs(y), side="left"), 7)
        code = np.where(np.signbit(y), high, low)
        return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


@mutant("element-inferred")
class TableTypo(NVFP4):
    def encode(self, y):
        code = e2m1(y)
        magnitude = np.abs(y)
        return np.where((magnitude > 3.25) & (magnitude <= 3.5), 6 + 8 * np.signbit(y), code).astype(np.uint8)


@mutant(
    "element-through-e4m3",
    "element-infinite-nan",
    says="rounded to E4M3 before their codec .*; infinite elements become NaN instead of saturating; [0-9]",
)
class ElementsThroughE4M3(MXFP4):
    """E4M3 has no infinity, so that infinite elements become NaN."""

    def encode(self, y):
        return e2m1(y.astype(E4M3).astype(F))


@mutant("element-inferred-codes|sign-nonzero")
class SignAfterRounding(NVFP4):
    def encode(self, y):
        code = e2m1(y)
        return np.where(code == 8, 0, code).astype(np.uint8)


@mutant("nan-7-signed")
class NaNWithSign(NVFP4):
    def encode(self, y):
        return np.where(np.isnan(y), 7 + 8 * np.signbit(y), e2m1(y)).astype(np.uint8)


@mutant("element-clamp-4")
class SaturatesAtFour(NVFP4):
    def encode(self, y):
        code = e2m1(y)
        return (np.minimum(code & 7, 6) | code & 8).astype(np.uint8)


@mutant("element-truncate")
class MantissaCutMX(MXFP8):
    def encode(self, y):
        clipped = np.clip(y, -448, 448).astype(F)
        near = np.abs(clipped).astype(E4M3).view(np.uint8).astype(int)
        over = value(near.astype(np.uint8)) > np.abs(clipped)
        code = np.where(over, near - 1, near) + 128 * np.signbit(clipped)
        return np.where(np.isnan(y), 0x7F, code).astype(np.uint8)


@mutant("element-inferred")
class ConstantAdded(NVFP4):
    """A rounding constant that belongs to another step is left in."""

    def encode(self, y):
        return e2m1(y + np.copysign(F(0.125), y))


@mutant("sign-low")
class SignLowest(NVFP4):
    def encode(self, y):
        code = e2m1(y)
        return (((code & 7) << 1) | code >> 3).astype(np.uint8)


@mutant("element-tie-2.5")
class OneTieWrong(NVFP4):
    def encode(self, y):
        m = np.abs(y)
        return np.where(m == 2.5, 5 + 8 * np.signbit(y), e2m1(y)).astype(np.uint8)


@mutant("element-steps")
class RoundsToHalvesFirst(NVFP4):
    def encode(self, y):
        return e2m1((np.rint(y * F(2)) / F(2)).astype(F))


@mutant("element-through-e4m3")
class ThroughFP8(NVFP4):
    def encode(self, y):
        return e2m1(np.where(np.isnan(y), y, np.clip(y, -448, 448).astype(E4M3).astype(F)))


@mutant("element-through-e5m2")
class TwoBitsOfMantissa(MXFP8):
    """Three bits of mantissa are one too few."""

    def encode(self, y):
        return MXFP8.encode(self, np.where(np.isnan(y), y, np.clip(y, -448, 448).astype(E5M2).astype(F)))


@mutant("element-truncate")
class TruncE4M3(MXFP8):
    def encode(self, y):
        code = MXFP8.encode(self, y)
        back = code.view(E4M3).astype(F)
        return np.where(np.abs(back) > np.abs(np.clip(y, -448, 448)), code - 1, code).astype(np.uint8)


@mutant("element-bf16")
class TritonElementsInBfloat16(NVFP4):
    """tl.load gives bfloat16, and the product with the reciprocal stays in it."""

    def encode(self, y):
        return e2m1(y.astype(BF16).astype(F))


@mutant("element-inferred|element-subnormal")
class SmallestElementTruncated(NVFP4):
    """The subnormal of E2M1 is cut off instead of rounded."""

    def encode(self, y):
        magnitude = np.abs(y)
        code = e2m1(y)
        return np.where(magnitude < 1, (code & 8) | (magnitude >= 0.5), code).astype(np.uint8)


@mutant("element-fp16")
class ElementsThroughHalf(MXFP8):
    def encode(self, y):
        return super().encode(y.astype(np.float16).astype(F))


@mutant("element-through-e5m2")
class ElementsThroughE5M2(NVFP4):
    def encode(self, y):
        with np.errstate(over="ignore"):
            return e2m1(np.clip(y, -57344, 57344).astype(E5M2).astype(F))


@mutant("element-plus-negative", says="rounded toward .infinity, of negative elements; [0-9]")
class NegativeCut(NVFP4):
    """A conversion through unsigned integers: what is negative is cut off instead of rounded."""

    def encode(self, y):
        with np.errstate(invalid="ignore"):
            cut = np.searchsorted(GRID, np.abs(y), side="right") - 1
        return np.where((y < 0) & ~np.isnan(y), np.minimum(cut, 7) + 8, e2m1(y)).astype(np.uint8)


@mutant("element-inferred")
class SixteenthInTheTable(NVFP4):
    """The smallest value of the table is 0.0625; the middles are computed from it."""

    def encode(self, y):
        return by_boundaries(y, [0.03125, 0.53125, 1.25, 1.75, 2.5, 3.5, 5.0])


@mutant("sign-negative")
class ZeroWithoutSign(NVFP4):
    """`x < 0` instead of the sign bit."""

    def encode(self, y):
        code = e2m1(y)
        return np.where(y == 0, 0, code).astype(np.uint8)
