"""Wrong quantizers whose mistake holds only somewhere: in one type, some rows, some lanes, one size.

Each runs the plain kernel and a wrong one, and takes the wrong one's bytes where `inside` holds. `place` matches the
words that the diagnosis is to say of the place.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
NVFP4, MXFP8, MXFP4, RHT, Square = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Square"))
e2m1, e4m3, value, by_boundaries = (_BASE[name] for name in ("e2m1", "e4m3", "value", "by_boundaries"))
F, FLT_MAX, GRID = np.float32, np.finfo(np.float32).max, _BASE["GRID"]
ALL = ("float32", "bfloat16", "float16")
MUTANTS, enter = _BASE["mutants"]()
CORRECT = ()


def mutant(*names, place, dtypes=ALL):
    """Enter a kernel with the names of its mistakes and the words of its place."""

    def register(cls):
        cls.dtypes = dtypes
        return enter(*names, says=place)(cls)

    return register


class Somewhere:
    """`Wrong` where `inside` holds, `right` elsewhere. inside: of rows [R, 1], columns [1, K], or one bool."""

    right = NVFP4

    def __init_subclass__(cls):
        cls.spec, cls.layout, cls.direction = cls.right.spec, cls.right.layout, cls.right.direction

    def __call__(self, x, dtype):
        self.rows, self.columns, self.dtype = *x.shape, dtype
        row, column = np.arange(x.shape[0])[:, None], np.arange(x.shape[1])[None, :]
        mask = np.broadcast_to(self.inside(row, column), x.shape)
        codes, scales, amax = self.bytes_of(self.right, x, dtype)
        other, other_scales, _ = self.bytes_of(self.Wrong, x, dtype)
        size = self.right.size
        codes = np.where(mask, other, codes)
        scales = np.where(mask[:, ::size], other_scales, scales)
        plain = self.right()
        return plain.pack(codes.astype(np.uint8)), plain.place(scales.astype(np.uint8)), amax

    def bytes_of(self, kind, x, dtype):
        """Codes [R, K], scale bytes [R, blocks] and amax of a kernel."""
        kernel = kind()
        kernel.pack = kernel.place = lambda values: values
        return kernel(x, dtype)


# Wrong kernels


class Away(NVFP4):
    def encode(self, y):
        return e2m1(y, tie=lambda c, y: True)


class Down(NVFP4):
    def encode(self, y):
        return by_boundaries(y, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def cut(y):
    code = np.searchsorted(GRID, np.abs(y), side="right") - 1
    return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


class Truncated(NVFP4):
    def encode(self, y):
        return cut(y)


class ScaleCut(NVFP4):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where((value(byte) > t) & (byte < 0x7F), byte - 1, byte).astype(np.uint8)


class ScaleUp(NVFP4):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where((value(byte) < t) & (byte < 0x7E), byte + 1, byte).astype(np.uint8)


class RowBefore(NVFP4):
    """Bytes of the row before."""

    def encode(self, y):
        return np.roll(super().encode(y), 1, axis=0)

    def stored(self, byte):
        return np.roll(byte, 1, axis=0)


# One type


@mutant("element-away", place="in bfloat16 only")
class TiesAwayInBfloat16(Somewhere):
    Wrong = Away

    def inside(self, row, column):
        return self.dtype.name == "bfloat16"


@mutant("element-truncate", place="in float16 only")
class CutInFloat16(Somewhere):
    right = MXFP4

    class Wrong(MXFP4):
        def encode(self, y):
            return cut(y)

    def inside(self, row, column):
        return self.dtype.name == "float16"


@mutant("global-448", place="in float16 only")
class OneLevelInFloat16(Somewhere):
    class Wrong(NVFP4):
        def global_scale(self, amax):
            s_enc = np.fmin(F(448) / F(amax), FLT_MAX)
            return F(1) if amax == 0 or s_enc == 0 else s_enc

    def inside(self, row, column):
        return self.dtype.name == "float16"


@mutant("scale-division", place="in float16 and bfloat16 only|not in float32|in bfloat16 and float16 only")
class DividesUnlessFloat32(Somewhere):
    class Wrong(NVFP4):
        def block_scale(self, amax, s_enc):
            return np.fmin((amax / F(6)) * s_enc, FLT_MAX)

    def inside(self, row, column):
        return self.dtype.name != "float32"


@mutant("element-away", "scale-codec-truncate", place="in bfloat16 only")
class TwoMistakesInBfloat16(Somewhere):
    class Wrong(ScaleCut):
        encode = Away.encode

    def inside(self, row, column):
        return self.dtype.name == "bfloat16"


@mutant("element-inferred", place="in bfloat16 only")
class TableTypoInBfloat16(Somewhere):
    class Wrong(NVFP4):
        def encode(self, y):
            return by_boundaries(y, [0.25, 0.75, 1.25, 1.75, 2.5, 3.25, 5.0])

    def inside(self, row, column):
        return self.dtype.name == "bfloat16"


# Rows


@mutant("bytes-of-row-1-before", place="where row % 128 == 127")
class RowBeforeAtTileEnd(Somewhere):
    Wrong = RowBefore

    def inside(self, row, column):
        return row % 128 == 127


@mutant("scale-codec-truncate", place="in rows past the last multiple of 32")
class LastRowsOfTheLastTile(Somewhere):
    Wrong = ScaleCut

    def inside(self, row, column):
        return row >= self.rows // 32 * 32


@mutant("scale-codec-truncate", place="in rows from 256 on")
class RowsFrom256(Somewhere):
    Wrong = ScaleCut

    def inside(self, row, column):
        return row >= 256


@mutant("scale-codec-truncate", place="where row % 2 == 1")
class OddRows(Somewhere):
    Wrong = ScaleCut

    def inside(self, row, column):
        return row % 2 == 1


@mutant("mx-floor|mx-log-floor|scale-codec-", place="where row % 32 >= 16")
class UpperHalfOfAWarp(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        def block_scale(self, amax, s_enc):
            return amax

        def scale_byte(self, t):
            bits = (np.asarray(t, F).view(np.uint32) >> 23).astype(np.int64)
            return np.where(np.isnan(t), 255, np.clip(bits - 8, 0, 254)).astype(np.uint8)

    def inside(self, row, column):
        return row % 32 >= 16


@mutant("element-truncate", place="in the last row")
class LastRow(Somewhere):
    Wrong = Truncated

    def inside(self, row, column):
        return row == self.rows - 1


@mutant("scale-codec-up", place="in the last 3 rows")
class LastThreeRows(Somewhere):
    Wrong = ScaleUp

    def inside(self, row, column):
        return row >= self.rows - 3


@mutant("scale-codec-up", place="in the first row|in row 0")
class FirstRow(Somewhere):
    Wrong = ScaleUp

    def inside(self, row, column):
        return row == 0


@mutant("bytes-of-row-1-before", place="where row % 16 == 15")
class SquaresRowBefore(Somewhere):
    right = Square

    class Wrong(Square):
        stored = RowBefore.stored

        def encode(self, y):
            return np.roll(e2m1(y), 1, axis=0)

    def inside(self, row, column):
        return row % 16 == 15


@mutant(
    "hadamard-signs-none", place="; the amax of the tensor is the right one, where row % 64 == 63", dtypes=("bfloat16",)
)
class UnsignedAtTheLastRowOfATile(Somewhere):
    right = RHT

    class Wrong(RHT):
        signs = np.ones(16, F)

        def amax(self, x):
            return self.given_amax

    def __call__(self, x, dtype):
        plain = self.right()
        type(self).Wrong.given_amax = plain.amax(plain.read(x))
        return super().__call__(x, dtype)

    def inside(self, row, column):
        return row % 64 == 63


# Columns and blocks


@mutant("element-truncate", place="in columns past the last multiple of 64")
class ColumnsPast64(Somewhere):
    Wrong = Truncated

    def inside(self, row, column):
        return column >= self.columns // 64 * 64


@mutant("block-signed", place="where block % 4 == 3")
class LastBlockOfATile(Somewhere):
    class Wrong(NVFP4):
        def block_amax(self, blocks):
            return np.maximum(np.fmax.reduce(blocks, axis=2, initial=F(-np.inf)), F(0))

    def inside(self, row, column):
        return column // 16 % 4 == 3


@mutant("block-window", place="where block % 4 == 3")
class ShiftedWindowAtTileBorder(Somewhere):
    """The maximum is taken one column too early."""

    class Wrong(NVFP4):
        def block_amax(self, blocks):
            flat = blocks.reshape(len(blocks), blocks.shape[1] * 16)
            moved = np.pad(flat, ((0, 0), (1, 0)))[:, :-1]
            return super().block_amax(moved.reshape(blocks.shape))

    def inside(self, row, column):
        return column // 16 % 4 == 3


@mutant("block-previous|used-previous", place="in the last, partial block")
class PartialBlockTakesTheScaleBefore(Somewhere):
    class Wrong(NVFP4):
        def stored(self, byte):
            return np.concatenate([byte[:, :1], byte[:, :-1]], axis=1)

        def scale_value(self, byte, t):
            return value(self.stored(byte))

    def inside(self, row, column):
        return (self.columns % 16 != 0) & (column >= self.columns // 16 * 16)


@mutant("scale-codec-up", place="in blocks from 64 on")
class BlocksFrom64(Somewhere):
    Wrong = ScaleUp

    def inside(self, row, column):
        return column // 16 >= 64


@mutant("scale-codec-up", place="% 32 == 17")
class OneLane(Somewhere):
    """Blocks are dealt to 32 lanes in order."""

    Wrong = ScaleUp

    def inside(self, row, column):
        return (row * -(-self.columns // 16) + column // 16) % 32 == 17


@mutant("codes-of-column-1-before", place="where column % 8 == 7")
class LastElementOfAVector(Somewhere):
    class Wrong(NVFP4):
        def encode(self, y):
            return np.roll(super().encode(y), 1, axis=2)

    def inside(self, row, column):
        return column % 8 == 7


@mutant("codes-swapped", place="where row % 2 == 1")
class SwappedInOddRows(Somewhere):
    class Wrong(NVFP4):
        def encode(self, y):
            code = super().encode(y)
            return code.reshape(*code.shape[:2], 8, 2)[..., ::-1].reshape(code.shape)

    def inside(self, row, column):
        return (row % 2 == 1) & (column < self.columns // 2 * 2)


# Sizes


@mutant("scale-codec-truncate", place="in tensors of [0-9,]+ columns and more only")
class WideMatrices(Somewhere):
    Wrong = ScaleCut

    def inside(self, row, column):
        return self.columns > 1024


@mutant("element-truncate", place="16 rows|15 rows")
class FewRows(Somewhere):
    Wrong = Truncated

    def inside(self, row, column):
        return self.rows < 16


@mutant("scale-codec-truncate", place="whose columns are no multiple of 16|columns % 16")
class RaggedColumns(Somewhere):
    Wrong = ScaleCut

    def inside(self, row, column):
        return self.columns % 16 != 0


@mutant("scale-codec-truncate", place="more than two dimensions")
class LeadingDimensions(Somewhere):
    Wrong = ScaleCut

    def inside(self, row, column):
        return self.ndim > 2


# Two places, and special values


@mutant("element-away", "scale-codec-up", place="in bfloat16 only|in the last row")
class TwoPlaces(Somewhere):
    class Wrong(NVFP4):
        def __call__(self, x, dtype):
            self.bfloat16 = dtype.name == "bfloat16"
            return super().__call__(x, dtype)

        def encode(self, y):
            return Away.encode(self, y) if self.bfloat16 else super().encode(y)

        def scale_byte(self, t):
            byte = super().scale_byte(t)
            byte[-1:] = ScaleUp.scale_byte(self, t[-1:])
            return byte

    def inside(self, row, column):
        return True


@mutant("nan-0", place="in float16 only")
class NaNIsZeroInFloat16(Somewhere):
    class Wrong(NVFP4):
        def encode(self, y):
            return np.where(np.isnan(y), 0, e2m1(y)).astype(np.uint8)

    def inside(self, row, column):
        return self.dtype.name == "float16"


@mutant("scales-constant-0x00|unwritten", place="where row % 32 == 31")
class ScaleNotWrittenByTheLastLane(Somewhere):
    class Wrong(NVFP4):
        def stored(self, byte):
            return np.zeros_like(byte)

    def inside(self, row, column):
        return row % 32 == 31


@mutant("element-truncate", place="in bfloat16 only")
class TailRowsInBfloat16(Somewhere):
    """A conjunction: the tail of the rows, in bfloat16."""

    Wrong = Truncated

    def inside(self, row, column):
        return (self.dtype.name == "bfloat16") & (row >= self.rows // 16 * 16)
