"""Inputs that are read otherwise: strides, rows, types, random bits.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
F, MXFP8Column, Rows = (_PARTS[name] for name in ("F", "MXFP8Column", "Rows"))
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
Stochastic = _KERNELS["Stochastic"]
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
ALL, MXFP4, MXFP8, NVFP4, Square = (_PLACES[name] for name in ("ALL", "MXFP4", "MXFP8", "NVFP4", "Square"))
_SCALES_AND_STRIDES = runpy.run_path(str(Path(__file__).with_name("scales_and_strides.py")))
matrix, packed = (_SCALES_AND_STRIDES[name] for name in ("matrix", "packed"))
CORRECT = ()


@mutant(
    "input-row-modulo-16-after",
    says="rows from 65,536 on are read at row - 65,536 of x; the amax is that of all",
    release=True,
)
class RowIsReadWithSixteenBits(NVFP4):
    largest = 1 << 21

    def blocks(self, x):
        return super().blocks(x[np.arange(len(x)) % 65536])


@mutant("input-column-modulo-16-after", says="columns from 65,536 on are read at column - 65,536 of x", release=True)
class ColumnIsReadWithSixteenBits(NVFP4):
    largest = 1 << 21

    def blocks(self, x):
        return super().blocks(x[:, np.arange(x.shape[1]) % 65536])


@mutant("bits-of-the-other", says="random bits are read transposed: element .i, j. takes the byte at j . rows . i")
class BytesInTheOrderOfColumns(Stochastic):
    def encode(self, y):
        rows, columns = self.bits.shape
        at = np.arange(columns) * rows + np.arange(rows)[:, None]
        self.bits = self.bits.ravel()[at]
        return super().encode(y)


@mutant("bits-reversed-4-within", says="random bits of 4 elements are taken in reverse order; those without a partner")
class BytesOfAWordFromTheTop(Stochastic):
    def encode(self, y):
        taken = [i ^ 3 if i ^ 3 < self.bits.shape[1] else i for i in range(self.bits.shape[1])]
        self.bits = self.bits[:, taken]
        return super().encode(y)


@mutant("", says="first of 4 rows", multiple=(1, 16), release=True)
class ScalesOfTheFirstRowOfFour(NVFP4):
    """blockDim.y is 4, and threadIdx.y is not used for scales."""

    def stored(self, byte):
        return byte[np.arange(len(byte)) // 4 * 4]


@mutant("", says="transpos", multiple=(16, 16), release=True)
class SquareColumnOfRows(MXFP8Column):
    """x is read as it is stored though its columns are quantized, wherever x is square."""

    def read(self, x):
        return np.ascontiguousarray(x.T) if x.shape[0] == x.shape[1] else x


@mutant("", says="rows of x are read in reverse order", release=True)
class RowsFromTheEnd(MXFP4):
    """The grid runs from the last row, and the stores from the first."""

    def read(self, x):
        return x[::-1]


@mutant(
    "input-flush-half",
    says="below 2.-14, the subnormals of float16, are flushed.*in float16 only",
    dtypes=ALL,
    release=True,
)
class HalfSubnormalsFlushed(MXFP8):
    def read(self, x):
        if self.dtype.name == "float16":
            return np.where(np.abs(x) < F(2.0**-14), np.copysign(F(0), x), x)
        return x


@mutant("input-inf-zero", says="infinities are taken as 0", release=True)
class InfinitiesAreZeros(NVFP4):
    def read(self, x):
        x = super().read(x)
        return np.where(np.isinf(x), F(0), x)


@mutant("bits-inferred-reversed", says="bits of each random byte are taken in reverse order", release=True)
class BitsOfBytesReversed(Stochastic):
    def encode(self, y):
        given = self.bits
        turned = np.unpackbits(given[..., None], axis=-1)[..., ::-1]
        self.bits = np.packbits(turned, axis=-1)[..., 0]
        codes = super().encode(y)
        self.bits = given
        return codes


@mutant("", says="subnormal inputs are flushed", dtypes=ALL, release=True)
class MXInputsFlushed(MXFP4):
    """-ftz=true."""

    def read(self, x):
        return np.where(np.abs(x) < F(2.0**-126), np.copysign(F(0), x), x)


@mutant("", says="uses the previous one's random bits", multiple=(16, 16), release=True)
class BitsOfTheColumnBefore(Stochastic):
    def drawn(self, bits):
        flat = bits.reshape(len(bits), bits.shape[1] * bits.shape[2])
        return np.concatenate([flat[:, :1], flat[:, :-1]], axis=1).reshape(bits.shape)


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


class OtherBits(Stochastic):
    """The bits [rows, columns] are those of other elements."""

    def encode(self, y):
        given, self.bits = self.bits, self.source(self.bits)
        codes = super().encode(y)
        self.bits = given
        return codes


@mutant("bits-of-columns-64", says="random bits of column % 64", release=True)
class BitsRepeatEvery64Columns(OtherBits):
    def source(self, bits):
        return bits[:, np.arange(bits.shape[1]) % 64]


@mutant("bits-of-row-4", says="random bits of row - 4, where row % 8 >= 4", release=True)
class BitsOfTheUpperFourRows(OtherBits):
    def source(self, bits):
        row = np.arange(len(bits))
        return bits[row - row // 4 % 2 * 4]


@mutant("bits-of-rows-32", says="random bits of row % 32", release=True)
class BitsRepeatEvery32Rows(OtherBits):
    def source(self, bits):
        return bits[np.arange(len(bits)) % 32]


@mutant("input-of-row-1-before", says="row - 1 of x is read, in rows past the last multiple of 2", release=True)
class OddLastRowIsTheOneBefore(NVFP4):
    def read(self, x):
        if len(x) % 2 and len(x) > 1:
            x = np.concatenate([x[:-1], x[-2:-1]])
        return x


@mutant("input-limited-65504", says="inputs are limited to -65,504 to 65,504; infinities are kept", release=True)
class LimitedToHalf(MXFP4):
    def read(self, x):
        return np.where(np.isfinite(x), np.clip(x, -65504, 65504), x)
