"""Wrong sources: values read otherwise in one place, squares' scales from elsewhere, and rows past a 16-bit count.

Every kernel was written before the diagnosis was read. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, MXFP4, RHT, Square, Rows, F = (_BASE[name] for name in ("NVFP4", "MXFP4", "RHT", "Square", "Rows", "F"))
_KERNELS = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
tiled, swapped = _KERNELS["tiled"], _KERNELS["swapped"]
_SCALES = runpy.run_path(str(Path(__file__).parent / "unseen_scales.py"))
mutant, MUTANTS = _SCALES["mutant"], _SCALES["MUTANTS"]
MUTANTS.clear()
CORRECT, RELEASE, BFLOAT16 = (), True, ("bfloat16",)
SHORT = 1 << 16


# Values of one place, which count in the maximum of the tensor


@mutant("hadamard-", says="transform is not applied, where block % 2 == 1", dtypes=BFLOAT16)
class TransformSkippedInOddGroups(RHT):
    def transform(self, x):
        return np.where(np.arange(x.shape[1]) // 16 % 2 == 1, x, super().transform(x))


@mutant("input-of-row-1-before", says="row - 1 of x is read, in rows past the last multiple of 2")
class OddLastRowIsTheOneBefore(NVFP4):
    def read(self, x):
        if len(x) % 2 and len(x) > 1:
            x = np.concatenate([x[:-1], x[-2:-1]])
        return x


@mutant("input-limited-65504", says="inputs are limited to -65,504 to 65,504; infinities are kept")
class LimitedToHalf(MXFP4):
    def read(self, x):
        return np.where(np.isfinite(x), np.clip(x, -65504, 65504), x)


# Maxima


@mutant("amax-", says="amax is that of the first half of the columns only")
class MaximumOfTheFirstHalf(NVFP4):
    def amax(self, x):
        return super().amax(x[:, : (x.shape[1] + 1) // 2])


@mutant("amax-shared-4-rows", says="4 neighbouring rows share their amax, in rows past the last multiple of 64")
class LastRowsShareTheirMaximum(Rows):
    def row_amax(self, x):
        maxima = super().row_amax(x)
        for row in range(len(maxima) // 64 * 64, len(maxima), 4):
            maxima[row : row + 4] = maxima[row : row + 4].max()
        return maxima


# Tiles


@mutant("layout-right-aligned", says="at the end of its four bytes, after the padding")
class LastTileFilledFromItsEnd(NVFP4):
    def place(self, scales):
        rest = scales.shape[1] % 4
        if rest:
            whole, last = np.split(scales, [scales.shape[1] - rest], axis=1)
            scales = np.hstack([whole, np.zeros((len(scales), 4 - rest), np.uint8), last])
        return tiled(scales)


# Squares


def on_squares(move):
    def block_amax(self, blocks):
        maxima = Square.block_amax(self, blocks)[::16]
        return np.repeat(move(maxima), 16, axis=0)[: len(blocks)]

    return {"block_amax": block_amax}


def mirrored(maxima):
    count, found = min(maxima.shape), maxima.copy()
    found[:count, :count] = maxima[:count, :count].T
    return found


def by_row_alone(maxima):
    rows = range(len(maxima) if maxima.size else 0)
    return np.array([[maxima[i, min(i, maxima.shape[1] - 1)]] * maxima.shape[1] for i in rows], F).reshape(maxima.shape)


@mutant("block-squares-mirrored", says=r"the scales of squares \(j, i\) instead of \(i, j\) are stored")
class SquaresMirrored(type("Mirrored", (Square,), on_squares(mirrored))):
    pass


@mutant("block-squares-row-twice", says=r"the scales of squares \(i, i\) instead of \(i, j\) are stored")
class SquaresByRowAlone(type("ByRow", (Square,), on_squares(by_row_alone))):
    pass


# Nibbles


@mutant("codes-swapped", says="nibbles of a byte are exchanged.*where block % 4 == 3")
class NibblesExchangedInFourthBlocks(NVFP4):
    def pack(self, codes):
        low = super().pack(codes)
        return np.where(np.arange(low.shape[1]) // 8 % 4 == 3, swapped(codes), low)


# Rows past a count of 16 bits


class Counted(NVFP4):
    """Scale bytes are stored as `rows` makes them of the right ones, and so are the packed bytes of data."""

    largest = 1 << 22

    def pack(self, codes):
        return self.rows(super().pack(codes))

    def place(self, scales):
        return tiled(self.rows(scales))


@mutant("bytes-constant-0x00-0x0", says="nothing but zeros is written, in rows from 65,535 on")
class RowsFrom65535NotWritten(Counted):
    def rows(self, array):
        array = array.copy()
        array[SHORT - 1 :] = 0
        return array


@mutant("wrapped-rows-16", says=r"rows from 65,536 on are written over those of row % 65,536")
class RowsWrapAt65536(Counted):
    def rows(self, array):
        made = array.copy()
        past = len(array) - SHORT
        if past > 0:
            made[:past], made[SHORT:] = array[SHORT:], 0
        return made
