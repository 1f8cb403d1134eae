"""Wrong indices: what is read, shared, exchanged, stored elsewhere or not at all, in one tile, lane or tail.

Every kernel was written before the diagnosis was read. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_numbers.py"))
NVFP4, MXFP8, MXFP4, RHT, Square = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Square"))
Somewhere, Rows, Column, F = (_BASE[name] for name in ("Somewhere", "Rows", "Column", "F"))
MXFP8Column, ALL = _BASE["MXFP8Column"], _BASE["ALL"]
mutant, MUTANTS, value, e4m3 = (_BASE[name] for name in ("mutant", "MUTANTS", "value", "e4m3"))
tiled = runpy.run_path(str(Path(__file__).parent / "kernels.py"))["tiled"]
MUTANTS.clear()
CORRECT, BFLOAT16, RELEASE = (), ("bfloat16",), True


def exchanged(array, bit):
    """Rows r and r ^ bit exchanged, where both exist."""
    rows = np.arange(len(array))
    other = rows ^ bit
    return array[np.where(other < len(array), other, rows)]


def from_row(by):
    """Methods that take codes and scales of the row `by` further on."""

    def encode(self, y):
        return np.roll(super(type(self), self).encode(y), -by, axis=0)

    def stored(self, byte):
        return np.roll(byte, -by, axis=0)

    return {"encode": encode, "stored": stored}


# Exchanged


@mutant("", says="32 to 63 of each 64 are stored before 0 to 31", multiple=(128, 128))
class ScaleRowsExchangedBy32(NVFP4):
    def stored(self, byte):
        return exchanged(byte, 32)


@mutant("", says="rows i and i \\^ 64 are exchanged|64 to 127")
class ScaleRowsExchangedBy64(NVFP4):
    def stored(self, byte):
        return exchanged(byte, 64)


@mutant("", says="rows of elements 2i and 2i . 1 are exchanged", multiple=(16, 16))
class MXRowsOfCodesExchanged(MXFP8):
    def pack(self, codes):
        return exchanged(codes, 1)


@mutant("", says="8 to 15 of each 16 are stored before 0 to 7", multiple=(64, 64), dtypes=BFLOAT16)
class SquareRowsOfFragmentsExchanged(Square):
    """Registers 0 and 1 of an accumulator: rows r and r + 8."""

    def pack(self, codes):
        return exchanged(super().pack(codes), 8)


@mutant("", says="reverse order within words of 2", multiple=(128, 128), dtypes=BFLOAT16)
class MXScalePairsExchanged(MXFP4):
    """Two bytes written as a big-endian short."""

    def stored(self, byte):
        other = np.arange(byte.shape[1]) ^ 1
        return byte[:, np.where(other < byte.shape[1], other, np.arange(byte.shape[1]))]


@mutant("", says="reverse order within words of 2", multiple=(16, 16))
class BytesOfShortsSwapped(MXFP4):
    def pack(self, codes):
        data = super().pack(codes)
        other = np.arange(data.shape[1]) ^ 1
        return data[:, np.where(other < data.shape[1], other, np.arange(data.shape[1]))]


@mutant("", says="elements i and i . 16 share a byte", multiple=(64, 64))
class HalvesOfABlockInNibbles(MXFP4):
    """Element i in the low nibble, element i + 16 in the high one, as ggml stores them."""

    def pack(self, codes):
        rows, columns = codes.shape
        width = -(-columns // 32)
        padded = np.pad(codes, ((0, 0), (0, -columns % 32))).reshape(rows, width, 2, 16)
        return (padded[:, :, 0] | padded[:, :, 1] << 4).reshape(rows, width * 16)[:, : -(-columns // 2)]


@mutant("", says="reverse order within words of 4", multiple=(128, 64))
class FourScalesReversed(NVFP4):
    """A little-endian word of four scales, written by shifts from the top."""

    def place(self, scales):
        stored = super().place(scales)
        return stored.reshape(len(stored), stored.shape[1] // 4, 4)[..., ::-1].reshape(stored.shape)


# Of another row or block


@mutant("", says="row - 8.*row % 16 >= 8", multiple=(64, 64))
class SecondHalfOfAFragment(Somewhere):
    Wrong = type("Wrong", (NVFP4,), from_row(-8))

    def inside(self, row, column):
        return row % 16 >= 8


@mutant("", says="row . 2,.*row % 64 >= 62", multiple=(128, 128), dtypes=BFLOAT16)
class TwoRowsFurtherAtATilesEnd(Somewhere):
    right = MXFP8
    Wrong = type("Wrong", (MXFP8,), from_row(2))

    def inside(self, row, column):
        return (row % 64 >= 62) & (row < self.rows - 2)


@mutant("", says="amax of row % 128")
class RowMaximaOfTheFirstTile(Rows):
    """A shared array of 128 maxima, of the first tile."""

    def used_amax(self, amax, x):
        return amax[np.arange(len(amax)) % 128]


@mutant("", says="scale of the first of two neighbouring blocks")
class CodesWithTheScaleBefore(NVFP4):
    def scale_value(self, byte, t):
        s = value(byte)
        s[:, 1::2] = s[:, :-1:2][:, : s[:, 1::2].shape[1]]
        return s


@mutant("", says="scale of the next block", multiple=(16, 16), dtypes=ALL)
class MXCodesWithTheNextScale(MXFP4):
    def scale_value(self, byte, t):
        s = super().scale_value(byte, t)
        return np.concatenate([s[:, 1:], s[:, -1:]], axis=1)


@mutant("", says="previous row, where row % 32 == 0", multiple=(64, 64))
class ScaleOfTheRowBeforeInLaneZero(NVFP4):
    """__shfl_up: lane 0 keeps what it had."""

    def stored(self, byte):
        byte = byte.copy()
        byte[32::32] = byte[31:-1:32][: len(byte[32::32])]
        return byte


@mutant("", says="block modulo 256")
class BlockIndexIsAByte(NVFP4):
    """uint8_t block: those from 256 on have the scale of block % 256."""

    largest = 1 << 22

    def stored(self, byte):
        return byte[:, np.arange(byte.shape[1]) % 256]


@mutant("", says="block - 1, where block % 2 == 1", multiple=(64, 64))
class SecondLoadRepeated(MXFP8):
    def read(self, x):
        columns = np.arange(x.shape[1])
        return x[:, np.where(columns % 64 >= 32, columns - 32, columns)]


@mutant("", says="first of 4 rows", multiple=(1, 16))
class ScalesOfTheFirstRowOfFour(NVFP4):
    """blockDim.y is 4, and threadIdx.y is not used for scales."""

    def stored(self, byte):
        return byte[np.arange(len(byte)) // 4 * 4]


# Not written


@mutant("", says="past the last multiple of 128 columns are not written")
class ColumnsPast128NotWritten(MXFP8):
    def pack(self, codes):
        codes = codes.copy()
        codes[:, codes.shape[1] // 128 * 128 :] = 0
        return codes


@mutant("", says="rows past the last multiple of 32 are not written", multiple=(16, 16))
class ScalesOfTailRowsNotWritten(Rows):
    def stored(self, byte):
        byte = byte.copy()
        byte[len(byte) // 32 * 32 :] = 0
        return byte


@mutant("", says="scale.*(0x00|not written).*in rows from 192 on", multiple=(64, 64), dtypes=ALL)
class ScalesNotWrittenFromRow192(NVFP4):
    def stored(self, byte):
        byte = byte.copy()
        byte[192:] = 0
        return byte


@mutant("", says="rows past the last multiple of 128", dtypes=BFLOAT16)
class LastTileOfRowsNotWritten(MXFP4):
    """grid = rows / 128."""

    def pack(self, codes):
        codes = codes.copy()
        codes[len(codes) // 128 * 128 :] = 0
        return super().pack(codes)

    def stored(self, byte):
        byte = byte.copy()
        byte[len(byte) // 128 * 128 :] = 0
        return byte


@mutant("", says="rows from 32768 on|32768")
class RowsPastAShort(NVFP4):
    """short row: rows from 32768 on are not written."""

    largest = 1 << 22

    def pack(self, codes):
        codes = codes.copy()
        codes[32768:] = 0
        return super().pack(codes)


@mutant("", says="last block's scale byte is not written", multiple=(1, 16))
class LastBlockNotWritten(NVFP4):
    """for (b = 0; b < blocks - 1; b++)."""

    def stored(self, byte):
        byte = byte.copy()
        byte[:, -1:] = 0
        return byte


@mutant("", says="codes are 0x0.*row % 2 == 1", multiple=(128, 128), dtypes=BFLOAT16)
class OddRowsNotWritten(MXFP8Column):
    def pack(self, codes):
        codes = codes.copy()
        codes[1::2] = 0
        return codes


# Read


@mutant("", says="transpos", multiple=(16, 16))
class SquareColumnOfRows(MXFP8Column):
    """x is read as it is stored though its columns are quantized, wherever x is square."""

    def read(self, x):
        return np.ascontiguousarray(x.T) if x.shape[0] == x.shape[1] else x


@mutant("", says="rows of x are read in reverse order")
class RowsFromTheEnd(MXFP4):
    """The grid runs from the last row, and the stores from the first."""

    def read(self, x):
        return x[::-1]


@mutant("", says="the high nibble comes first", dtypes=BFLOAT16, multiple=(1, 16))
class HalvesOfAWordExchanged(NVFP4):
    """__high2float and __low2float are exchanged."""

    def read(self, x):
        other = np.arange(x.shape[1]) ^ 1
        return x[:, np.where(other < x.shape[1], other, np.arange(x.shape[1]))]


# Two at once, and conjunctions


@mutant("", "", "", says="elements are truncated; the high nibble comes first")
class MXCutAndScalesLinearWords(MXFP4):
    """Truncated elements, and nibbles high first."""

    encode = _BASE["truncated"]

    def pack(self, codes):
        data = super().pack(codes)
        return data >> 4 | data << 4


@mutant("", says="truncated, where row % 2 == 0, in bfloat16 only", dtypes=ALL)
class EvenRowsInBfloat16(Somewhere):
    right = MXFP4
    Wrong = type("Wrong", (MXFP4,), {"encode": _BASE["truncated"]})

    def inside(self, row, column):
        return (self.dtype.name == "bfloat16") & (row % 2 == 0)


@mutant("", says="rounded up.*% 128 >= 96", multiple=(16, 16))
class LastWarpOfFour(Somewhere):
    """Blocks are dealt to 128 threads in order."""

    class Wrong(NVFP4):
        def scale_byte(self, t):
            byte = e4m3(t)
            return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)

    def inside(self, row, column):
        return (row * -(-self.columns // 16) + column // 16) % 128 >= 96


@mutant("", says="ties go away.*row % 8 < 4", multiple=(64, 64), dtypes=BFLOAT16)
class AwayInHalfOfTheLanes(Somewhere):
    right = Square
    Wrong = type("Wrong", (Square,), {"encode": _BASE["away"]})

    def inside(self, row, column):
        return row % 8 < 4


@mutant("", says="S_enc / s.*past the last multiple of 4", multiple=(1, 16))
class QuotientInTheTail(Somewhere):
    """A loop for the tail written later, with the quotient of the scales as the factor."""

    class Wrong(NVFP4):
        def element(self, blocks, s, s_enc, t):
            return blocks * np.fmin(s_enc / s, F(np.finfo(F).max))[:, :, None]

    def inside(self, row, column):
        return column >= self.columns // 64 * 64


@mutant("", says="row modulo 16", dtypes=BFLOAT16, multiple=(128, 128))
class MXScaleFromTheFirstTile(MXFP4):
    """Scales of rows from 16 on are those of row % 16."""

    def stored(self, byte):
        return byte[np.arange(len(byte)) % 16]
