"""Wrong elements: rounding, NaN, signs and factors, everywhere or only in a type, some rows, some columns.

Every kernel was written before the diagnosis was read. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "places.py"))
NVFP4, MXFP8, MXFP4, RHT, Square = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Square"))
Somewhere, e2m1, value, by_boundaries, cut = (
    _BASE[name] for name in ("Somewhere", "e2m1", "value", "by_boundaries", "cut")
)
_THIRD = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
F, ALL, FLT_MAX = np.float32, _BASE["ALL"], np.finfo(np.float32).max
BF16, E4M3, E5M2, FourOverSix = (_THIRD[name] for name in ("BF16", "E4M3", "E5M2", "FourOverSix"))
MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
MUTANTS, enter = _THIRD["mutants"]()


class Rows(NVFP4):
    """Every row has an amax and a global scale of its own."""

    spec = "nvfp4-row-scaled"

    def __call__(self, x, dtype):
        self.dtype, size = dtype, self.size
        amax = self.row_amax(x)
        s_enc = self.row_scale(self.used_amax(amax, x))
        blocks = self.blocks(x)
        byte = self.scale_byte(np.fmin(self.block_amax(blocks) * (s_enc * (F(1) / F(6)))[:, None], FLT_MAX))
        s_enc = s_enc[:, None]
        codes = self.encode(self.element(blocks, self.scale_value(byte, None), s_enc, None))
        codes = codes.reshape(len(x), blocks.shape[1] * size)[:, : x.shape[1]]
        return self.pack(codes), self.place(self.stored(byte)), amax

    def row_amax(self, x):
        return np.fmax.reduce(np.abs(x), axis=1, initial=F(0))

    def row_scale(self, amax):
        s_enc = np.fmin(F(2688) / amax, FLT_MAX).astype(F)
        return np.where((amax == 0) | (s_enc == 0), F(1), s_enc).astype(F)


class Column(NVFP4):
    direction = "column"


CORRECT = (Rows, Column)


def mutant(*names, says, dtypes=("float32",), multiple=(1, 1)):
    """Enter a kernel with its mistakes, the words of the headline, its input types and its multiples."""

    def register(cls):
        cls.dtypes, cls.multiple = dtypes, multiple
        return enter(*names, says=says)(cls)

    return register


def away(self, y):
    return e2m1(y, tie=lambda c, y: True)


def down(self, y):
    return by_boundaries(y, MIDDLES)


def odd(self, y):
    return e2m1(y, tie=lambda c, y: c % 2 == 0)


def truncated(self, y):
    return cut(y)


def e4m3_cut(self, y):
    clipped = np.clip(y, -448, 448).astype(F)
    near = np.abs(clipped).astype(E4M3).view(np.uint8).astype(int)
    near -= value(near.astype(np.uint8)) > np.abs(clipped)
    return np.where(np.isnan(y), 0x7F, near + 128 * np.signbit(clipped)).astype(np.uint8)


# One type


@mutant("element-", says="ties.*(zero|down).*in float16 only", dtypes=ALL)
class TiesDownInFloat16(Somewhere):
    class Wrong(NVFP4):
        encode = down

    def inside(self, row, column):
        return self.dtype.name == "float16"


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


@mutant("element-bf16", says="bfloat16.*in bfloat16 only", dtypes=ALL)
class ScaledInBfloat16(Somewhere):
    """The product stays in the type of the input."""

    class Wrong(NVFP4):
        def encode(self, y):
            return e2m1(y.astype(BF16).astype(F))

    def inside(self, row, column):
        return self.dtype.name == "bfloat16"


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


# Everywhere


@mutant("element-", says="ties.*away")
class BothCandidatesAway(FourOverSix):
    encode = away


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


# Rows and columns


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


@mutant("encode-", says="where row % 4 >= 2")
class QuotientOfScalesInTheSecondPairOfRows(Somewhere):
    class Wrong(NVFP4):
        def element(self, blocks, s, s_enc, t):
            return blocks * np.fmin(s_enc / s, FLT_MAX)[:, :, None]

    def inside(self, row, column):
        return row % 4 >= 2


@mutant("codes-swapped", says="nibbles.*exchanged.*in rows from 128 on")
class MXNibblesSwappedFromRow128(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        def encode(self, y):
            code = super().encode(y)
            return code.reshape(*code.shape[:2], 16, 2)[..., ::-1].reshape(code.shape)

    def inside(self, row, column):
        return (row >= 128) & (column < self.columns // 2 * 2)


@mutant("element-", says="truncated, in block 0")
class FourOverSixCutInTheFirstBlock(Somewhere):
    right = FourOverSix

    class Wrong(FourOverSix):
        encode = truncated

    def inside(self, row, column):
        return column < 16
