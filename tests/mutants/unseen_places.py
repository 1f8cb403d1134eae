"""Wrong places: rows, blocks, lanes, tails and tiles, and the order in which a tensor is read.

Every kernel was written before the diagnosis was read. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, MXFP8, MXFP4, RHT, Square = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Square"))
Somewhere, Rows, Column, FourOverSix = (_BASE[name] for name in ("Somewhere", "Rows", "Column", "FourOverSix"))
ALL = _BASE["ALL"]
truncated, away, e4m3_cut, value, F = (_BASE[name] for name in ("truncated", "away", "e4m3_cut", "value", "F"))
_STRIDES = runpy.run_path(str(Path(__file__).parent / "scales_and_strides.py"))
matrix, packed = _STRIDES["matrix"], _STRIDES["packed"]
_SCALES = runpy.run_path(str(Path(__file__).parent / "unseen_scales.py"))
mutant, MUTANTS, window, e4m3, paired = (_SCALES[name] for name in ("mutant", "MUTANTS", "window", "e4m3", "paired"))
MUTANTS.clear()
CORRECT, BFLOAT16 = (), ("bfloat16",)


def scale_up(self, t):
    byte = e4m3(t)
    return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)


def scale_cut(self, t):
    byte = e4m3(t)
    return np.where((value(byte) > t) & (byte < 0x7F), byte - 1, byte).astype(np.uint8)


def next_power(self, t):
    byte = MXFP8.scale_byte(self, t)
    return np.minimum(byte + 1, 254).astype(np.uint8)


def rolled(by):
    """Methods that give every row the bytes of the row `by` before."""

    def encode(self, y):
        return np.roll(super(type(self), self).encode(y), by, axis=0)

    def stored(self, byte):
        return np.roll(byte, by, axis=0)

    return {"encode": encode, "stored": stored}


# Rows


@mutant("bytes-of-row", says="those of row - 1, .*where row % 64 == 0")
class RowBeforeAtTileBegin(Somewhere):
    Wrong = type("Wrong", (NVFP4,), rolled(1))

    def inside(self, row, column):
        return (row % 64 == 0) & (row > 0)


@mutant("bytes-of-row", says="those of row . 1, where row % 32 == 31")
class MXRowAfterAtTileEnd(Somewhere):
    right = MXFP8
    Wrong = type("Wrong", (MXFP8,), rolled(-1))

    def inside(self, row, column):
        return row % 32 == 31


@mutant("bytes-of-row", says="where row % 128 == 127", multiple=(128, 128))
class SquareRowBeforeInTiles(Somewhere):
    right = Square
    Wrong = type("Wrong", (Square,), rolled(1))

    def inside(self, row, column):
        return row % 128 == 127


@mutant("scale-codec-", says="in rows past the last multiple of 16")
class ScaleUpInTheLastTileOf16(Somewhere):
    right = Rows

    class Wrong(Rows):
        scale_byte = scale_up

    def inside(self, row, column):
        return row >= self.rows // 16 * 16


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


@mutant("scale-|mx-", says="in rows from 128 on")
class MXNextPowerFromRow128(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        scale_byte = next_power

    def inside(self, row, column):
        return row >= 128


@mutant("scale-codec-", says="in rows from 96 on", multiple=(16, 16))
class ScaleCutFromRow96(Somewhere):
    class Wrong(NVFP4):
        scale_byte = scale_cut

    def inside(self, row, column):
        return row >= 96


@mutant("scale-codec-", says="where row % 4 == 2")
class SquareScaleUpInOneRowOfFour(Somewhere):
    right = Square

    class Wrong(Square):
        scale_byte = scale_up

    def inside(self, row, column):
        return row % 4 == 2


@mutant("scale-codec-", says="where row % 32 == 5", dtypes=BFLOAT16)
class RHTOneRowOfAWarp(Somewhere):
    right = RHT

    class Wrong(RHT):
        scale_byte = scale_cut

    def inside(self, row, column):
        return row % 32 == 5


@mutant("scale-codec-", says="where row % 128 < 32")
class FirstQuarterOfATile(Somewhere):
    class Wrong(NVFP4):
        scale_byte = scale_up

    def inside(self, row, column):
        return row % 128 < 32


# Columns and blocks


@mutant("mx-|scale-", says="in columns past the last multiple of 128")
class MXColumnsPast128(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        scale_byte = next_power

    def inside(self, row, column):
        return column >= self.columns // 128 * 128


@mutant("scale-codec-", says="in columns past the last multiple of 32|last block")
class RowsColumnsPast32(Somewhere):
    right = Rows

    class Wrong(Rows):
        scale_byte = scale_cut

    def inside(self, row, column):
        return column >= self.columns // 32 * 32


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


@mutant("block-and-next", says="the block and the next one, where block % 8 == 7")
class TwoBlocksAtTheTileEnd(Somewhere):
    class Wrong(NVFP4):
        def block_amax(self, blocks):
            own = super().block_amax(blocks)
            return np.maximum(own, np.concatenate([own[:, 1:], own[:, -1:]], axis=1))

    def inside(self, row, column):
        return column // 16 % 8 == 7


@mutant("scale-floor-0.0156-not-zero", says="below at 2\\^-6, unless it is 0, where block % 4 >= 2")
class NoSmallScalesInHalves(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            return e4m3(np.where(t == 0, t, np.maximum(t, F(2.0**-6))))

    def inside(self, row, column):
        return column // 16 % 4 >= 2


@mutant("block-window", says="elements 1 further on.*where block % 8 == 7")
class WindowAtTheTileEnd(Somewhere):
    class Wrong(NVFP4):
        def block_amax(self, blocks):
            return super().block_amax(window(blocks, 1))

    def inside(self, row, column):
        return column // 16 % 8 == 7


@mutant("block-window", says="elements 2 further back.*where block % 4 == 0")
class MXWindowAtTheTileBegin(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        def block_amax(self, blocks):
            return super().block_amax(window(blocks, -2))

    def inside(self, row, column):
        return column // 32 % 4 == 0


@mutant("block-2", says="2 neighbouring blocks.*in rows from 64 on")
class PairsShareFromRow64(Somewhere):
    class Wrong(NVFP4):
        def block_amax(self, blocks):
            return paired(super().block_amax(blocks))

    def inside(self, row, column):
        return row >= 64


@mutant("block-|used-", says="previous block, where block % 4 == 3")
class ScaleOfTheBlockBefore(Somewhere):
    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = super().scale_byte(t)
            return np.concatenate([byte[:, :1], byte[:, :-1]], axis=1)

    def inside(self, row, column):
        return column // 16 % 4 == 3


@mutant("scale-codec-|scale-byte-plus-1", says="where block number % 32 >= 24")
class MXLastQuarterOfAWarp(Somewhere):
    """Blocks are dealt to 32 lanes in order."""

    right = MXFP8

    class Wrong(MXFP8):
        scale_byte = next_power

    def inside(self, row, column):
        return (row * -(-self.columns // 32) + column // 32) % 32 >= 24


@mutant("scale-codec-", says="% 64 == 63")
class LastLaneOfTwoWarps(Somewhere):
    right = Rows

    class Wrong(Rows):
        scale_byte = scale_up

    def inside(self, row, column):
        return (row * -(-self.columns // 16) + column // 16) % 64 == 63


# What is not written, and what is written elsewhere


@mutant("unwritten-|codes-", says="codes are 0x0 .not written.*in columns from 256 on")
class CodesNotWrittenFromColumn256(NVFP4):
    def pack(self, codes):
        codes = codes.copy()
        codes[:, 256:] = 0
        return super().pack(codes)


@mutant("unwritten-|scales-", says="scale bytes are 0x00 .not written.*in rows from 128 on")
class MXScalesNotWrittenFromRow128(MXFP8):
    def stored(self, byte):
        return np.where(np.arange(len(byte))[:, None] >= 128, 0, byte).astype(np.uint8)


@mutant("unwritten-|codes-", says="past the last multiple of 32 columns are not written")
class MXCodesNotWrittenInTheTail(MXFP4):
    def pack(self, codes):
        codes = codes.copy()
        codes[:, codes.shape[1] // 32 * 32 :] = 0
        return super().pack(codes)


@mutant("unwritten-|codes-", says="the last row of elements is not written", multiple=(16, 16))
class LastRowOfCodesNotWritten(Rows):
    def pack(self, codes):
        codes = codes.copy()
        codes[-1:] = 0
        return super().pack(codes)


@mutant("data-|codes-|bytes-", says="codes are those of column - 64, where column % 128 >= 64")
class SecondStageRepeatsTheFirst(NVFP4):
    """Columns 64 to 127 of every 128 have the codes of columns 0 to 63."""

    def pack(self, codes):
        codes = codes.copy()
        for start in range(64, codes.shape[1], 128):
            width = min(64, codes.shape[1] - start)
            codes[:, start : start + width] = codes[:, start - 64 : start - 64 + width]
        return super().pack(codes)


# What is read


@mutant("input-strides", says="strides of x are ignored")
class SquareStridesIgnored(Square):
    strided = True

    @staticmethod
    def taken(x, direction):
        return matrix(packed(x), direction)


@mutant("input-leading", says="leading dimensions .* reverse order")
class RowsLeadingInAnotherOrder(Rows):
    @staticmethod
    def taken(x, direction):
        return matrix(x.transpose(*range(x.ndim - 2, -1, -1), x.ndim - 1), direction)


@mutant("input-exchanged", says="its transpose is read as it is stored")
class MX4TransposedAsItLies(MXFP4):
    direction = "column"

    @staticmethod
    def taken(x, direction):
        return np.ascontiguousarray(x).reshape(matrix(x, direction).shape)


# Sizes and conjunctions


@mutant("scale-codec-", says="truncated, in tensors of [0-9]+ rows and more only", multiple=(16, 16))
class TallMatrices(Somewhere):
    class Wrong(NVFP4):
        scale_byte = scale_cut

    def inside(self, row, column):
        return self.rows > 64


@mutant("scale-codec-", says="in bfloat16 only|in the last row", dtypes=ALL)
class LastRowInBfloat16(Somewhere):
    class Wrong(NVFP4):
        scale_byte = scale_up

    def inside(self, row, column):
        return (self.dtype.name == "bfloat16") & (row == self.rows - 1)


@mutant("element-", says="block % 4 == 3|row % 2 == 1")
class OddRowsOfTheLastBlock(Somewhere):
    class Wrong(NVFP4):
        encode = truncated

    def inside(self, row, column):
        return (row % 2 == 1) & (column // 16 % 4 == 3)
