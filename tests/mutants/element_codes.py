"""Wrong codes of elements: rounding, ties, NaN, signs and limits, everywhere or in one place.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
BFLOAT16, Column, F, MXFP8E5M2, Rows = (_PARTS[name] for name in ("BFLOAT16", "Column", "F", "MXFP8E5M2", "Rows"))
truncated = _PARTS["truncated"]
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
E4M3, E5M2, F, FourOverSix, GRID = (_KERNELS[name] for name in ("E4M3", "E5M2", "F", "FourOverSix", "GRID"))
MXFP8, Stochastic, e4m3 = (_KERNELS[name] for name in ("MXFP8", "Stochastic", "e4m3"))
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
ALL, MXFP4, MXFP8, NVFP4, RHT = (_PLACES[name] for name in ("ALL", "MXFP4", "MXFP8", "NVFP4", "RHT"))
Somewhere, Square, by_boundaries, e2m1, value = (
    _PLACES[name] for name in ("Somewhere", "Square", "by_boundaries", "e2m1", "value")
)
CORRECT = ()


@mutant("random-step-last", says="in the largest binade the step is that of the binade below")
class StepNeverAboveOne(Stochastic):
    def encode(self, y):
        bits = np.pad(self.bits, ((0, 0), (0, -self.bits.shape[1] % 16))).reshape(y.shape)
        magnitude = np.abs(y).astype(np.float64)
        moved = (magnitude + np.where(magnitude < 2, 0.5, 1) * bits / 256).astype(F)
        code = sum((moved >= F(point)).astype(np.uint8) for point in GRID[1:]) + 8 * np.signbit(y)
        return np.where(np.isnan(y), 7, code).astype(np.uint8)


@mutant("element-flush-first", says="elements below the smallest normal are flushed to zero before they are rounded")
class NoSubnormalElements(MXFP8):
    def encode(self, y):
        return super().encode(np.where(np.abs(y) >= F(2.0**-6), y, y * F(0)))


@mutant("sign-negative", says="the sign is (x < 0|that of y < 0, after scaling)")
class SignByComparison(MXFP8):
    def encode(self, y):
        return np.where(np.isnan(y), 0x7F, super().encode(np.abs(y)) + 128 * (y < 0)).astype(np.uint8)


MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def down(self, y):
    return by_boundaries(y, MIDDLES)


@mutant("element-", says="ties.*(zero|down).*in float16 only", dtypes=ALL)
class TiesDownInFloat16(Somewhere):
    class Wrong(NVFP4):
        encode = down

    def inside(self, row, column):
        return self.dtype.name == "float16"


def away(self, y):
    return e2m1(y, tie=lambda c, y: True)


@mutant("element-", says="ties.*away.*in bfloat16 only", dtypes=ALL)
class MXTiesAwayInBfloat16(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        encode = away

    def inside(self, row, column):
        return self.dtype.name == "bfloat16"


@mutant("element-", says="truncated.*in float32 only", dtypes=ALL)
class SquareCutInFloat32(Somewhere):
    right = Square

    class Wrong(Square):
        encode = truncated

    def inside(self, row, column):
        return self.dtype.name == "float32"


@mutant("element-inferred-codes|sign-", says="-0.*in bfloat16 only", dtypes=ALL)
class NoNegativeZeroInBfloat16(Somewhere):
    class Wrong(NVFP4):
        def encode(self, y):
            code = e2m1(y)
            return np.where(code == 8, 0, code).astype(np.uint8)

    def inside(self, row, column):
        return self.dtype.name == "bfloat16"


@mutant("element-", says="E5M2.*in float16 only", dtypes=ALL)
class MXThroughE5M2InFloat16(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        def encode(self, y):
            return super().encode(np.where(np.isnan(y), y, np.clip(y, -448, 448).astype(E5M2).astype(F)))

    def inside(self, row, column):
        return self.dtype.name == "float16"


@mutant("element-", says="ties.*away.*in bfloat16 only", multiple=(16, 16), dtypes=ALL)
class RowsTiesAwayInBfloat16(Somewhere):
    right = Rows

    class Wrong(Rows):
        encode = away

    def inside(self, row, column):
        return self.dtype.name == "bfloat16"


@mutant("element-", says="ties.*(zero|down)", dtypes=("bfloat16",), multiple=(128, 128))
class RHTTiesDownInTiles(RHT):
    encode = down


@mutant("element-", says="ties.*away")
class BothCandidatesAway(FourOverSix):
    encode = away


def odd(self, y):
    return e2m1(y, tie=lambda c, y: c % 2 == 0)


@mutant("element-", says="ties.*odd", multiple=(1, 16))
class SquareTiesToOdd(Square):
    encode = odd


@mutant("element-", says="0.75")
class OneComparisonStrict(NVFP4):
    """`y > 0.75f` where the others are `>=`."""

    def encode(self, y):
        return np.where(np.abs(y) == 0.75, 1 + 8 * np.signbit(y), e2m1(y)).astype(np.uint8)


@mutant("element-", says="not 5", multiple=(16, 16))
class LastBoundaryTooLow(Rows):
    """4.5 instead of 5 between 4 and 6."""

    def encode(self, y):
        return np.where((np.abs(y) > 4.5) & (np.abs(y) <= 5), 7 + 8 * np.signbit(y), e2m1(y)).astype(np.uint8)


@mutant("nan-", says="NaN")
class MXNaNIsZero(MXFP8):
    def encode(self, y):
        return np.where(np.isnan(y), 0, super().encode(y)).astype(np.uint8)


@mutant("nan-", says="NaN.*where row % 2 == 1")
class NaNKeepsItsSignInOddRows(Somewhere):
    class Wrong(NVFP4):
        def encode(self, y):
            return np.where(np.isnan(y), 7 + 8 * np.signbit(y), e2m1(y)).astype(np.uint8)

    def inside(self, row, column):
        return row % 2 == 1


def e4m3_cut(self, y):
    clipped = np.clip(y, -448, 448).astype(F)
    near = np.abs(clipped).astype(E4M3).view(np.uint8).astype(int)
    near -= value(near.astype(np.uint8)) > np.abs(clipped)
    return np.where(np.isnan(y), 0x7F, near + 128 * np.signbit(clipped)).astype(np.uint8)


@mutant("element-", says="truncated.*where row % 8 == 7")
class MXCutInTheLastOfEightRows(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        encode = e4m3_cut

    def inside(self, row, column):
        return row % 8 == 7


@mutant("element-", says="ties.*odd.*in columns from 128 on")
class RowsTiesToOddFromColumn128(Somewhere):
    right = Rows

    class Wrong(Rows):
        encode = odd

    def inside(self, row, column):
        return column >= 128


@mutant("element-", says="ties.*away.*in rows from 64 on", dtypes=("bfloat16",))
class RHTTiesAwayFromRow64(Somewhere):
    right = RHT

    class Wrong(RHT):
        encode = away

    def inside(self, row, column):
        return row >= 64


@mutant("element-", says="truncated, where column % 64 >= 32")
class ColumnCutInTheUpperHalfOfATile(Somewhere):
    right = Column

    class Wrong(Column):
        encode = truncated

    def inside(self, row, column):
        return column % 64 >= 32


@mutant("element-", says="truncated, in block 0")
class FourOverSixCutInTheFirstBlock(Somewhere):
    right = FourOverSix

    class Wrong(FourOverSix):
        encode = truncated

    def inside(self, row, column):
        return column < 16


@mutant("", says="truncated, where row % 2 == 0, in bfloat16 only", dtypes=ALL, release=True)
class EvenRowsInBfloat16(Somewhere):
    right = MXFP4
    Wrong = type("Wrong", (MXFP4,), {"encode": truncated})

    def inside(self, row, column):
        return (self.dtype.name == "bfloat16") & (row % 2 == 0)


@mutant("", says="ties go away.*row % 8 < 4", multiple=(64, 64), dtypes=BFLOAT16, release=True)
class AwayInHalfOfTheLanes(Somewhere):
    right = Square
    Wrong = type("Wrong", (Square,), {"encode": away})

    def inside(self, row, column):
        return row % 8 < 4


@mutant("", says="NaN", release=True)
class NanReachesTheTensorMaximum(NVFP4):
    """jnp.max, which returns NaN, where fmaxf skips it; the others then use a scale of 1."""

    def amax(self, x):
        return F(np.abs(x).max(initial=F(0)))

    def global_scale(self, amax):
        return F(1) if np.isnan(amax) else super().global_scale(amax)


@mutant("", says="rounded up", multiple=(128, 128), release=True)
class SquareScaleUp(Square):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)


@mutant("", says="lose their sign, where column % 8 == 7", multiple=(1, 16), release=True)
class MXSignLostInTheLastLane(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        def encode(self, y):
            return super().encode(y) & 0x7F

    def inside(self, row, column):
        return column % 8 == 7


@mutant("", says="truncated, in the last row", release=True)
class MXCutInTheLastRow(Somewhere):
    right = MXFP8
    Wrong = type("Wrong", (MXFP8,), {"encode": e4m3_cut})

    def inside(self, row, column):
        return row == self.rows - 1


@mutant("", says="truncated, in rows from 32 on", multiple=(16, 16), release=True)
class E5M2CutFromRow32(Somewhere):
    right = MXFP8E5M2

    class Wrong(MXFP8E5M2):
        def encode(self, y):
            clipped = np.clip(y, -57344, 57344).astype(F)
            near = np.abs(clipped).astype(E5M2).view(np.uint8).astype(int)
            near -= value(near.astype(np.uint8), E5M2) > np.abs(clipped)
            return np.where(np.isnan(y), 0x7F, near + 128 * np.signbit(clipped)).astype(np.uint8)

    def inside(self, row, column):
        return row >= 32


@mutant("", says="ties go away.*columns and more", release=True)
class TiesAwayInWideTensors(Somewhere):
    largest = 1 << 22

    class Wrong(NVFP4):
        encode = away

    def inside(self, row, column):
        return self.columns > 512


@mutant("", says="^wrong on.*Inf", release=True)
class InfinityBecomesNan(MXFP8):
    """__nv_cvt_float_to_fp8 with __NV_NOSAT."""

    def encode(self, y):
        return np.where(np.isinf(y), 0x7F, super().encode(y)).astype(np.uint8)


@mutant("", says="-0", release=True)
class MXSignByComparison(MXFP4):
    """x < 0 ? 8 : 0."""

    def encode(self, y):
        code = super().encode(y)
        return np.where((y == 0) & ~np.isnan(y), 0, code).astype(np.uint8)


@mutant("", says="0\\.25 becomes 0\\.5", multiple=(64, 64), dtypes=BFLOAT16, release=True)
class FirstTieUp(NVFP4):
    """y >= 0.25f."""

    def encode(self, y):
        return np.where(np.abs(y) == 0.25, 1 + 8 * np.signbit(y), super().encode(y)).astype(np.uint8)


@mutant("", says="clamped to 4", multiple=(64, 64), release=True)
class RowsSaturateAtFour(Rows):
    def encode(self, y):
        return super().encode(np.where(np.isnan(y), y, np.clip(y, -4, 4)))


@mutant("", says="ties.*away.*in rows from 64 on", dtypes=BFLOAT16, multiple=(16, 16), release=True)
class RHTAwayFarDown(Somewhere):
    right = RHT
    Wrong = type("Wrong", (RHT,), {"encode": away})

    def inside(self, row, column):
        return row >= 64


@mutant("", says="bits of negative elements are inverted", release=True)
class BitsAddedToSignedValues(Stochastic):
    """floor(y + r), as if rounding to minus infinity were truncation."""

    def encode(self, y):
        drawn, self.turn = super().encode(y), True
        other = super().encode(-np.abs(y))
        self.turn = False
        return np.where(np.signbit(y), other, drawn).astype(np.uint8)

    turn = False

    def drawn(self, bits):
        return 255 - bits if self.turn else bits


@mutant("element-", says="truncated.*in rows past the last multiple of 64")
class CutInTheLastTileOf64(Somewhere):
    class Wrong(NVFP4):
        encode = truncated

    def inside(self, row, column):
        return row >= self.rows // 64 * 64


@mutant("element-", says="truncated, in the last group of 8 rows", multiple=(16, 16))
class MXCutInTheLastRows(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        encode = e4m3_cut

    def inside(self, row, column):
        return row >= self.rows - 8


@mutant("element-", says="ties go away.*in columns from 64 on", multiple=(1, 16))
class TiesAwayFromColumn64(Somewhere):
    class Wrong(NVFP4):
        encode = away

    def inside(self, row, column):
        return column >= 64


@mutant("sign-", says="sign is dropped where the code is 0, where block % 2 == 1$|block % 2 == 1;")
class NoMinusZeroInOddBlocks(Somewhere):
    """Negative values that round to 0 become +0, and so does -0."""

    class Wrong(NVFP4):
        def encode(self, y):
            code = super().encode(y)
            return np.where(code == 8, 0, code).astype(np.uint8)

    def inside(self, row, column):
        return column // 16 % 2 == 1


@mutant("element-", says="block % 4 == 3|row % 2 == 1")
class OddRowsOfTheLastBlock(Somewhere):
    class Wrong(NVFP4):
        encode = truncated

    def inside(self, row, column):
        return (row % 2 == 1) & (column // 16 % 4 == 3)


@mutant("element-", says="ties.*(away|-infinity).*of negative elements", release=True)
class NegativeTiesAway(NVFP4):
    def encode(self, y):
        away = e2m1(y, tie=lambda c, y: True)
        return np.where(y < 0, away, e2m1(y)).astype(np.uint8)


@mutant("element-clamp-4", says="clamped to 4 instead of 6, of positive elements, where column % 16 == 0", release=True)
class PositiveFourAtTheHeadOfBlocks(MXFP4):
    def encode(self, y):
        code = e2m1(y)
        head = np.arange(code.shape[-1]) % 16 == 0
        return np.where((code == 7) & head & ~np.isnan(y), 6, code).astype(np.uint8)


@mutant(
    "element-infinite-nan",
    says="infinite elements become NaN instead of saturating, where column % 2 == 1",
    release=True,
)
class InfinitiesAreNaNInOddColumns(MXFP8):
    def encode(self, y):
        odd = np.arange(y.shape[-1]) % 2 == 1
        return np.where(np.isinf(y) & odd, 0x7F, super().encode(y)).astype(np.uint8)
