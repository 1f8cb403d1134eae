"""Codes at wrong places: nibbles, lanes, rows and words, or not written.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
BFLOAT16, Counted, MXFP8Column, SHORT, chunks = (
    _PARTS[name] for name in ("BFLOAT16", "Counted", "MXFP8Column", "SHORT", "chunks")
)
exchanged, truncated = (_PARTS[name] for name in ("exchanged", "truncated"))
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
swapped = _KERNELS["swapped"]
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
ALL, MXFP4, MXFP8, NVFP4, Somewhere = (_PLACES[name] for name in ("ALL", "MXFP4", "MXFP8", "NVFP4", "Somewhere"))
Square = _PLACES["Square"]
CORRECT = ()


@mutant("codes-swapped", says="nibbles.*exchanged.*in rows from 128 on")
class MXNibblesSwappedFromRow128(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        def encode(self, y):
            code = super().encode(y)
            return code.reshape(*code.shape[:2], 16, 2)[..., ::-1].reshape(code.shape)

    def inside(self, row, column):
        return (row >= 128) & (column < self.columns // 2 * 2)


@mutant("", says="rows of elements 2i and 2i . 1 are exchanged", multiple=(16, 16), release=True)
class MXRowsOfCodesExchanged(MXFP8):
    def pack(self, codes):
        return exchanged(codes, 1)


@mutant("", says="8 to 15 of each 16 are stored before 0 to 7", multiple=(64, 64), dtypes=BFLOAT16, release=True)
class SquareRowsOfFragmentsExchanged(Square):
    """Registers 0 and 1 of an accumulator: rows r and r + 8."""

    def pack(self, codes):
        return exchanged(super().pack(codes), 8)


@mutant("", says="reverse order within words of 2", multiple=(16, 16), release=True)
class BytesOfShortsSwapped(MXFP4):
    def pack(self, codes):
        data = super().pack(codes)
        other = np.arange(data.shape[1]) ^ 1
        return data[:, np.where(other < data.shape[1], other, np.arange(data.shape[1]))]


@mutant("", says="elements i and i . 16 share a byte", multiple=(64, 64), release=True)
class HalvesOfABlockInNibbles(MXFP4):
    """Element i in the low nibble, element i + 16 in the high one, as ggml stores them."""

    def pack(self, codes):
        rows, columns = codes.shape
        width = -(-columns // 32)
        padded = np.pad(codes, ((0, 0), (0, -columns % 32))).reshape(rows, width, 2, 16)
        return (padded[:, :, 0] | padded[:, :, 1] << 4).reshape(rows, width * 16)[:, : -(-columns // 2)]


def from_row(by):
    """Methods that take codes and scales of the row `by` further on."""

    def encode(self, y):
        return np.roll(super(type(self), self).encode(y), -by, axis=0)

    def stored(self, byte):
        return np.roll(byte, -by, axis=0)

    return {"encode": encode, "stored": stored}


@mutant("", says="row - 8.*row % 16 >= 8", multiple=(64, 64), release=True)
class SecondHalfOfAFragment(Somewhere):
    Wrong = type("Wrong", (NVFP4,), from_row(-8))

    def inside(self, row, column):
        return row % 16 >= 8


@mutant("", says="row . 2,.*row % 64 >= 62", multiple=(128, 128), dtypes=BFLOAT16, release=True)
class TwoRowsFurtherAtATilesEnd(Somewhere):
    right = MXFP8
    Wrong = type("Wrong", (MXFP8,), from_row(2))

    def inside(self, row, column):
        return (row % 64 >= 62) & (row < self.rows - 2)


@mutant("", says="block - 1, where block % 2 == 1", multiple=(64, 64), release=True)
class SecondLoadRepeated(MXFP8):
    def read(self, x):
        columns = np.arange(x.shape[1])
        return x[:, np.where(columns % 64 >= 32, columns - 32, columns)]


@mutant("", says="past the last multiple of 128 columns are not written", release=True)
class ColumnsPast128NotWritten(MXFP8):
    def pack(self, codes):
        codes = codes.copy()
        codes[:, codes.shape[1] // 128 * 128 :] = 0
        return codes


@mutant("", says="codes are 0x0.*row % 2 == 1", multiple=(128, 128), dtypes=BFLOAT16, release=True)
class OddRowsNotWritten(MXFP8Column):
    def pack(self, codes):
        codes = codes.copy()
        codes[1::2] = 0
        return codes


@mutant("", says="the high nibble comes first", dtypes=BFLOAT16, multiple=(1, 16), release=True)
class HalvesOfAWordExchanged(NVFP4):
    """__high2float and __low2float are exchanged."""

    def read(self, x):
        other = np.arange(x.shape[1]) ^ 1
        return x[:, np.where(other < x.shape[1], other, np.arange(x.shape[1]))]


@mutant("", "", "", says="elements are truncated; the high nibble comes first", release=True)
class MXCutAndScalesLinearWords(MXFP4):
    """Truncated elements, and nibbles high first."""

    encode = truncated

    def pack(self, codes):
        data = super().pack(codes)
        return data >> 4 | data << 4


@mutant("codes-sign-xor-8", says=r"elements have the sign of that in column \^ 8, in rows from 64 on", release=True)
class SignOfTheOtherHalf(NVFP4):
    def pack(self, codes):
        other = np.arange(codes.shape[1]) ^ 8
        taken = np.where(other < codes.shape[1], other, np.arange(codes.shape[1]))
        return super().pack(np.where(np.arange(len(codes))[:, None] >= 64, codes & 7 | codes[:, taken] & 8, codes))


@mutant("data-swizzled-xor", says=r"of each 8 groups of 4 bytes of data, group c stands at c \^ \(row % 8\)")
class WordsSwizzled(NVFP4):
    def pack(self, codes):
        return chunks(super().pack(codes), 4, 8, lambda c, row: c ^ row % 8)


@mutant("data-swizzled-on", says="of each 4 groups of 16 bytes of data, group c stands at c . row // 2 % 4, around")
class QuartersRotated(MXFP8):
    def pack(self, codes):
        return chunks(super().pack(codes), 16, 4, lambda c, row: (c - row // 2) % 4)


@mutant("", says="nibbles.*exchanged, in float16 only", dtypes=ALL, multiple=(64, 64), release=True)
class MXColumnNibblesInFloat16(Somewhere):
    right = type("MXColumn", (MXFP4,), {"direction": "column"})

    class Wrong(MXFP4):
        direction = "column"

        def encode(self, y):
            code = super().encode(y)
            return code.reshape(*code.shape[:2], 16, 2)[..., ::-1].reshape(code.shape)

    def inside(self, row, column):
        return (self.dtype.name == "float16") & (column < self.columns // 2 * 2)


def rolled(by):
    """Methods that give every row the bytes of the row `by` before."""

    def encode(self, y):
        return np.roll(super(type(self), self).encode(y), by, axis=0)

    def stored(self, byte):
        return np.roll(byte, by, axis=0)

    return {"encode": encode, "stored": stored}


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


@mutant("data-|codes-|bytes-", says="codes are those of column - 64, where column % 128 >= 64")
class SecondStageRepeatsTheFirst(NVFP4):
    """Columns 64 to 127 of every 128 have the codes of columns 0 to 63."""

    def pack(self, codes):
        codes = codes.copy()
        for start in range(64, codes.shape[1], 128):
            width = min(64, codes.shape[1] - start)
            codes[:, start : start + width] = codes[:, start - 64 : start - 64 + width]
        return super().pack(codes)


@mutant("spare-nibble", says="spare nibbles are not zero: they hold the first code of the next row", release=True)
class SpareHoldsTheNextRow(NVFP4):
    def pack(self, codes):
        data = super().pack(codes)
        if codes.shape[1] % 2:
            data[:-1, -1] |= codes[1:, 0] << 4
        return data


@mutant("codes-swapped", says="nibbles of a byte are exchanged.*where block % 4 == 3", release=True)
class NibblesExchangedInFourthBlocks(NVFP4):
    def pack(self, codes):
        low = super().pack(codes)
        return np.where(np.arange(low.shape[1]) // 8 % 4 == 3, swapped(codes), low)


@mutant("bytes-constant-0x00-0x0", says="nothing but zeros is written, in rows from 65,535 on", release=True)
class RowsFrom65535NotWritten(Counted):
    def rows(self, array):
        array = array.copy()
        array[SHORT - 1 :] = 0
        return array
