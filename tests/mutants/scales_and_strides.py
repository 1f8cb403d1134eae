"""Wrong places: strides and leading dimensions of what is read, and whose scale stands for a block."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
NVFP4, MXFP8, MXFP4, RHT, RowScaled = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "RowScaled"))
FourOverSix, Square, e4m3, tiled = (_BASE[name] for name in ("FourOverSix", "Square", "e4m3", "tiled"))
value = _BASE["value"]
F = np.float32
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = []


def correct(cls):
    CORRECT.append(cls)
    return cls


# What is read: x [..., K] whose rows may lie apart


def matrix(x, direction):
    flat = np.ascontiguousarray(x).reshape(int(np.prod(x.shape[:-1])), x.shape[-1])
    return flat.T if direction == "column" else flat


def packed(x):
    """The same count of elements from the same address, one after the other."""
    strides = [x.itemsize * int(np.prod(x.shape[i + 1 :])) for i in range(x.ndim)]
    return np.lib.stride_tricks.as_strided(x, x.shape, strides)


@correct
class Strided(NVFP4):
    strided = True

    @staticmethod
    def taken(x, direction):
        return matrix(x, direction)


@mutant("input-strides", says="strides of x are ignored")
class StridesIgnored(Strided):
    @staticmethod
    def taken(x, direction):
        return matrix(packed(x), direction)


@mutant("input-strides", says="strides of x are ignored")
class MXStridesIgnored(MXFP8):
    strided = True
    taken = StridesIgnored.taken


@mutant("input-strides", says="strides of x are ignored")
class MXColumnStridesIgnored(MXFP4):
    strided, direction = True, "column"
    taken = StridesIgnored.taken


@mutant("input-strides", says="strides of x are ignored")
class RowStridesIgnored(RowScaled):
    strided = True
    taken = StridesIgnored.taken


@correct
class Column(NVFP4):
    direction = "column"


@mutant("input-exchanged", says="its transpose is read as it is stored")
class TransposedAsItLies(Column):
    """The strides of x^T are ignored: its elements are taken in the order of x."""

    @staticmethod
    def taken(x, direction):
        return np.ascontiguousarray(x).reshape(matrix(x, direction).shape)


@mutant("input-exchanged", says="its transpose is read as it is stored")
class MXTransposedAsItLies(MXFP8):
    direction = "column"
    taken = TransposedAsItLies.taken


@mutant("input-leading", says="leading dimensions .* reverse order")
class LeadingInAnotherOrder(NVFP4):
    """x [a, b, K] as rows b * A + a."""

    @staticmethod
    def taken(x, direction):
        return matrix(x.transpose(*range(x.ndim - 2, -1, -1), x.ndim - 1), direction)


@mutant("input-leading", says="leading dimensions .* reverse order")
class MXLeadingInAnotherOrder(MXFP8):
    taken = LeadingInAnotherOrder.taken


@mutant("input-leading", says="only the first index of the leading dimension")
class FirstOfTheLeading(NVFP4):
    """Every x[a] is taken for x[0]."""

    @staticmethod
    def taken(x, direction):
        return matrix(np.broadcast_to(x[:1], x.shape) if x.ndim > 2 else x, direction)


# Square blocks


def turned(scales, down):
    """The scales of squares, transposed, in as many rows and columns as before; down: rows of scales of a square."""
    squares = scales[::down]
    return np.repeat(squares.T.reshape(squares.shape), down, axis=0)[: len(scales)]


@mutant("stored-squares-transposed", says="scale bytes of the squares are stored transposed")
class SquaresStoredTransposed(Square):
    def stored(self, byte):
        return turned(byte, 16)


@mutant("used-squares-transposed", says="transposed scales of the squares")
class SquaresUsedTransposed(Square):
    def scale_value(self, byte, t):
        return turned(value(byte), 16)


@mutant("block-squares-transposed", says="transposed scales of the squares")
class SquaresTransposed(Square):
    """The maxima, and so the scales and the codes."""

    def block_amax(self, blocks):
        return turned(super().block_amax(blocks), 16)


# Column scales taken from rows


class WithRows(NVFP4):
    """Keeps the scale bytes of the other direction."""

    direction = "column"

    def __call__(self, x, dtype):
        self.width = -(-x.shape[1] // self.size)
        self.dtype = dtype
        other = self.blocks(x.T)
        amax = self.amax(x)
        t = self.block_scale(self.block_amax(other), self.global_scale(amax))
        self.rows = self.scale_byte(t)
        return super().__call__(x, dtype)

    def of_rows(self, byte):
        found = np.zeros(byte.size, np.uint8)
        found[: self.rows.size] = self.rows.reshape(-1)[: byte.size]
        return found.reshape(byte.shape)


@mutant("direction-stored", says="scale bytes that are stored are those of the other direction")
class ColumnStoresScalesOfRows(WithRows):
    def stored(self, byte):
        return self.of_rows(byte)


@mutant("direction-stored", says="scale bytes that are stored are those of the other direction")
class MXColumnStoresScalesOfRows(WithRows, MXFP8): ...


MXColumnStoresScalesOfRows.stored = ColumnStoresScalesOfRows.stored


@mutant("direction-scales", says="block scales are those of the other direction")
class MXColumnUsesScalesOfRows(WithRows, MXFP8):
    def scale_byte(self, t):
        byte = MXFP8.scale_byte(self, t)
        return byte if not hasattr(self, "rows") else self.of_rows(byte)


# The other candidate of 4over6


@mutant("search-stored-other", says="scale byte .* of the other candidate")
class ScaleOfTheOther(FourOverSix):
    def which(self, second):
        return second, ~second


@mutant("search-stored-first|search-stored-6", says="scale byte .* of the (first )?candidate")
class ScaleOfTheFirst(FourOverSix):
    """The scale is not updated where the second candidate wins."""

    def which(self, second):
        return second, second & False


@mutant("search-codes-first", says="codes .* of the first candidate")
class CodesOfTheFirst(FourOverSix):
    def which(self, second):
        return second & False, second


# The byte of a block with a NaN


def with_nan(blocks):
    return np.isnan(blocks).any(axis=2)


class NanBlocks(NVFP4):
    byte = 0x7F

    def blocks(self, x):
        found = super().blocks(x)
        self.nan = with_nan(found)
        return found

    def stored(self, byte):
        return np.where(self.nan, self.byte, byte).astype(np.uint8)


@mutant("scale-nan", says="block with a NaN.* 0x7f")
class NanBlockStored7F(NanBlocks): ...


@mutant("scale-nan", says="block with a NaN.* 0x00")
class NanBlockStored0(NanBlocks):
    byte = 0


@mutant("scale-nan", says="block with a NaN.* 0xff")
class MXNanBlockStoredFF(NanBlocks, MXFP8):
    byte = 0xFF


@mutant("scale-nan", says="block with a NaN.* 0xfe")
class MXNanBlockStoredFE(NanBlocks, MXFP4):
    byte = 0xFE


@mutant("scale-nan|block-nan|all-nan", says="block maxima keep NaN")
class NanBlockUses7E(NVFP4):
    """The largest scale for the elements as well."""

    def block_amax(self, blocks):
        return np.where(with_nan(blocks), F(np.nan), super().block_amax(blocks))

    def scale_byte(self, t):
        return np.where(np.isnan(t), 0x7E, e4m3(t)).astype(np.uint8)


# Orders


class Moved(NVFP4):
    """Elements, rows or scale bytes at other places."""

    def move_rows(self, rows, count, order):
        whole = len(rows) // count * count
        head = rows[:whole].reshape(whole // count, count, rows.shape[1])[:, order].reshape(whole, rows.shape[1])
        return np.concatenate([head, rows[whole:]])

    def move_columns(self, rows, count, order):
        return self.move_rows(rows.T, count, order).T


@mutant("data-order-inferred-16|data-", says="elements 8 to 15 of each 16 are stored before 0 to 7")
class HalvesExchanged(Moved):
    def pack(self, codes):
        return super().pack(self.move_columns(codes, 16, [*range(8, 16), *range(8)]))


@mutant("data-rows-pairs|data-order-inferred-2-rows", says="rows of elements 2i and 2i . 1 are exchanged")
class RowPairsExchanged(Moved):
    def pack(self, codes):
        return super().pack(self.move_rows(codes, 2, [1, 0]))


@mutant("data-order-inferred-32", says="elements of each 32 are stored 4 places further back")
class MXRotated(Moved, MXFP8):
    def pack(self, codes):
        return self.move_columns(codes, 32, [*range(4, 32), *range(4)])


@mutant("layout-|scales-of-row-xor-1", says="rows of scale bytes 2i and 2i . 1 are exchanged")
class ScaleRowPairsExchanged(Moved):
    def stored(self, byte):
        return self.move_rows(byte, 2, [1, 0])


@mutant("layout-", says="rows of scale bytes 16 to 31 of each 32 are stored before 0 to 15")
class ScaleRowsRotated(Moved):
    def stored(self, byte):
        return self.move_rows(byte, 32, [*range(16, 32), *range(16)])


@mutant("layout-|scales-of-block-xor-1", says="scale bytes along a row 2i and 2i . 1 are exchanged")
class ScaleBlockPairsExchanged(Moved):
    def stored(self, byte):
        return self.move_columns(byte, 2, [1, 0])
