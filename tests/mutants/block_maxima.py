"""Wrong maxima of blocks: what they see, of which elements, with which sign.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
BFLOAT16, Column, F, FLT_MAX, Rows = (_PARTS[name] for name in ("BFLOAT16", "Column", "F", "FLT_MAX", "Rows"))
in_type = _PARTS["in_type"]
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
BF16, F, FourOverSix, NVFP4, value = (_KERNELS[name] for name in ("BF16", "F", "FourOverSix", "NVFP4", "value"))
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
ALL, MXFP4, MXFP8, NVFP4, RHT = (_PLACES[name] for name in ("ALL", "MXFP4", "MXFP8", "NVFP4", "RHT"))
Somewhere, Square = (_PLACES[name] for name in ("Somewhere", "Square"))
CORRECT = ()


@mutant(
    "block-nan-scales",
    says="wrong on NaN only: block maxima keep NaN.*in float16 only; .* cases fail",
    dtypes=ALL,
    release=True,
)
class NaNInMaximaOfHalves(NVFP4):
    def block_amax(self, blocks):
        found = super().block_amax(blocks)
        lost = np.isnan(blocks).any(axis=2) & (self.dtype.name == "float16")
        return np.where(lost, F(np.nan), found)

    def block_scale(self, amax, s_enc):
        return np.minimum(amax * (s_enc * (F(1) / F(6))), FLT_MAX)


@mutant("block-without-columns-8", says="block maxima miss the columns past the last multiple of 8")
class VectorsOfEightInBlockMaxima(NVFP4):
    def read(self, x):
        self.columns = x.shape[1]
        return x

    def block_amax(self, blocks):
        lanes = np.arange(blocks.shape[1] * 16).reshape(-1, 16) < self.columns // 8 * 8
        return super().block_amax(np.where(lanes, blocks, F(0)))


@mutant("", says="block modulo 256", release=True)
class BlockIndexIsAByte(NVFP4):
    """uint8_t block: those from 256 on have the scale of block % 256."""

    largest = 1 << 22

    def stored(self, byte):
        return byte[:, np.arange(byte.shape[1]) % 256]


@mutant("", says="row modulo 16", dtypes=BFLOAT16, multiple=(128, 128), release=True)
class MXScaleFromTheFirstTile(MXFP4):
    """Scales of rows from 16 on are those of row % 16."""

    def stored(self, byte):
        return byte[np.arange(len(byte)) % 16]


@mutant("block-and-previous-2", says="over the block and the second one before it", release=True)
class MaximumOfTheSlotBefore(NVFP4):
    def block_amax(self, blocks):
        own = super().block_amax(blocks)
        own[:, 2:] = np.maximum(own[:, 2:], super().block_amax(blocks)[:, :-2])
        return own


@mutant("block-below-above", says="sees the last rows of the blocks above", release=True)
class LastSquareMovedUp(Square):
    def block_amax(self, blocks):
        maxima = super().block_amax(blocks)
        past = len(blocks) % 16
        if past and len(blocks) > 16:
            maxima[-past:] = np.fmax.reduce(np.abs(blocks[-16:]), axis=(0, 2), initial=F(0))
        return maxima


@mutant("block-first-nan", says="start with the first element", release=True)
class MaximumFromTheFirstElement(NVFP4):
    def block_amax(self, blocks):
        return np.where(np.isnan(blocks[:, :, 0]), F(np.nan), super().block_amax(blocks))


@mutant("block-tail-next-head|block-tail-next-row", says="last partial block sees")
class TailIsTheNextRow(NVFP4):
    """The last block of a row is loaded whole."""

    def block_amax(self, blocks):
        found, spare = super().block_amax(blocks), -self.columns % 16
        if spare and self.columns >= 16 and blocks.size:
            below = np.fmax.reduce(np.abs(blocks[1:, 0, :spare]), axis=1, initial=F(0))
            found[:-1, -1] = np.fmax(found[:-1, -1], below)
        return found

    def read(self, x):
        self.columns = x.shape[1]
        return x


@mutant("block-tail-row-before", says="sees the head of the row before")
class TailIsTheRowBefore(TailIsTheNextRow):
    def block_amax(self, blocks):
        found, spare = NVFP4.block_amax(self, blocks), -self.columns % 16
        if spare and blocks.size:
            above = np.fmax.reduce(np.abs(blocks[:-1, 0, :spare]), axis=1, initial=F(0))
            found[1:, -1] = np.fmax(found[1:, -1], above)
        return found


@mutant("block-own-rows-1-largest", says="divided by the scale of their own row of the block")
class RowsOfSquaresScaled(Square):
    """Each row is divided by its own scale; that of the square is stored."""

    def element(self, blocks, s, s_enc, t):
        rows = np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))
        return super().element(blocks, value(self.scale_byte(self.block_scale(rows, s_enc))), s_enc, t)


@mutant("", says="block maxima are max x.*instead of max", release=True)
class SignedBlockMaxima(NVFP4):
    """tl.max(x), and 0 if all are negative."""

    def block_amax(self, blocks):
        return np.fmax.reduce(blocks, axis=2, initial=F(0))


@mutant("", says="block maxima are \\|max x\\| instead", multiple=(128, 128), release=True)
class AbsoluteOfTheSignedMaximum(NVFP4):
    """fabsf after the reduction, and not before it."""

    def block_amax(self, blocks):
        return np.abs(np.fmax.reduce(blocks, axis=2, initial=-FLT_MAX) + F(0))


@mutant("", says="block maxima.*max x instead of max", multiple=(64, 64), dtypes=ALL, release=True)
class MXSignedBlockMaxima(MXFP8):
    def block_amax(self, blocks):
        return np.fmax.reduce(blocks, axis=2, initial=F(0))


@mutant("", says="block maxima are max x.*in bfloat16 only", multiple=(16, 16), dtypes=ALL, release=True)
class SignedMaximaInBfloat16(Somewhere):
    class Wrong(NVFP4):
        def block_amax(self, blocks):
            return np.fmax.reduce(blocks, axis=2, initial=F(0))

    inside = in_type("bfloat16")


@mutant("", says="block maxima.*max x instead of max", multiple=(128, 128), dtypes=BFLOAT16, release=True)
class SquareSignedMaxima(Square):
    def block_amax(self, blocks):
        return super().block_amax(np.fmax(blocks, F(0)))


@mutant("", says="miss the elements at places 3, 7, 11 and 15", multiple=(16, 16), release=True)
class LastOfFourFloatsForgotten(NVFP4):
    """max(max(v.x, v.y), v.z)."""

    def block_amax(self, blocks):
        return super().block_amax(blocks[:, :, np.arange(16) % 4 != 3])


@mutant("", says="first half of the block", release=True)
class HalfOfA32Block(MXFP4):
    """16 threads reduce what 32 elements share."""

    def block_amax(self, blocks):
        return super().block_amax(blocks[:, :, :16])


@mutant("", says="block maxima miss the first element", dtypes=BFLOAT16, multiple=(16, 16), release=True)
class ColumnMissesItsFirstElement(Column):
    """for (i = 1; i < 16; i++)."""

    def block_amax(self, blocks):
        return super().block_amax(blocks[:, :, 1:])


@mutant("", says="first half of the block, where block % 2 == 1", dtypes=BFLOAT16, release=True)
class HalfOfOddBlocks(Somewhere):
    right = MXFP8

    class Wrong(MXFP8):
        def block_amax(self, blocks):
            return super().block_amax(blocks[:, :, :16])

    def inside(self, row, column):
        return column // 32 % 2 == 1


@mutant("", says="last.*partial block", release=True)
class TailPaddedWithOnes(NVFP4):
    """tl.load(..., other=1.0)."""

    def blocks(self, x):
        made = super().blocks(x)
        if x.shape[1] % 16:
            made = made.copy()
            made[:, -1, x.shape[1] % 16 :] = 1
        return made


@mutant("", says="last partial block sees infinities", release=True)
class MXTailPaddedWithInfinity(MXFP8):
    """tl.load(..., other=-inf), and the absolute value after it."""

    def block_amax(self, blocks):
        amax = super().block_amax(blocks)
        if self.columns % 32:
            amax[:, -1] = np.inf
        return amax

    def read(self, x):
        self.columns = x.shape[1]
        return x


@mutant("block-and-next", says="the block and the next one, where block % 8 == 7")
class TwoBlocksAtTheTileEnd(Somewhere):
    class Wrong(NVFP4):
        def block_amax(self, blocks):
            own = super().block_amax(blocks)
            return np.maximum(own, np.concatenate([own[:, 1:], own[:, -1:]], axis=1))

    def inside(self, row, column):
        return column // 16 % 8 == 7


def window(blocks, by):
    """The elements of every row from `by` further on, zeros past its end."""
    flat = blocks.reshape(len(blocks), blocks.shape[1] * blocks.shape[2])
    moved = np.pad(flat, ((0, 0), (max(-by, 0), max(by, 0))))
    moved = moved[:, by:] if by > 0 else moved[:, :by]
    return moved.reshape(blocks.shape)


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


def paired(own):
    """The larger of two neighbouring maxima for both; an odd tail keeps its own."""
    whole = own.shape[1] // 2 * 2
    pairs = own[:, :whole].reshape(len(own), whole // 2, 2).max(axis=2, initial=0)
    return np.concatenate([np.repeat(pairs, 2, axis=1), own[:, whole:]], axis=1)


@mutant("block-2", says="2 neighbouring blocks.*in rows from 64 on")
class PairsShareFromRow64(Somewhere):
    class Wrong(NVFP4):
        def block_amax(self, blocks):
            return paired(super().block_amax(blocks))

    def inside(self, row, column):
        return row >= 64


@mutant(
    "block-tail-next-row", says="last partial block sees what follows the row in memory, the next row", release=True
)
class SquaresSeeTheNextRow(Square):
    def block_amax(self, blocks):
        rows, columns = len(blocks), self.columns
        flat = np.append(blocks.reshape(rows, blocks.shape[1] * 16)[:, :columns].reshape(-1), np.zeros(16, F))
        missing = -columns % 16
        wide = blocks.copy()
        for row in range(rows if missing else 0):
            wide[row, -1, -missing:] = flat[(row + 1) * columns : (row + 1) * columns + missing]
        return super().block_amax(wide)

    def read(self, x):
        self.columns = x.shape[1]
        return super().read(x)


@mutant("block-nan-forgets", says="forget what comes before a NaN", release=True)
class MaximumForgetsBeforeNaN(NVFP4):
    def block_amax(self, blocks):
        found = np.zeros(blocks.shape[:-1], F)
        for lane in range(16):
            x = np.abs(blocks[..., lane])
            found = np.where((found >= x), found, x)
        return found


@mutant("block-last-signed", says="block maxima take the last element with the sign", release=True)
class LastLaneKeepsItsSign(NVFP4):
    def block_amax(self, blocks):
        others = np.fmax.reduce(np.abs(blocks[..., :15]), axis=2, initial=F(0))
        return np.fmax(others, blocks[..., 15]) + F(0)


@mutant("block-2-", says="2 neighbouring blocks.*share")
class RowsShareScalesByPairs(Rows):
    """32-element blocks; an odd tail stands alone."""

    def block_amax(self, blocks):
        return paired(super().block_amax(blocks))


@mutant("block-2-", says="2 neighbouring blocks.*share", dtypes=BFLOAT16)
class RHTShareScalesByPairs(RHT):
    def block_amax(self, blocks):
        return paired(super().block_amax(blocks))


@mutant("block-window", says="elements 2 further on")
class RowsWindowByTwo(Rows):
    def block_amax(self, blocks):
        return super().block_amax(window(blocks, 2))


@mutant("block-window", says="elements 4 further back", dtypes=BFLOAT16)
class ColumnWindowBack(Column):
    def block_amax(self, blocks):
        return super().block_amax(window(blocks, -4))


@mutant("block-window", says="elements 1 further on")
class FourOverSixWindow(FourOverSix):
    def block_amax(self, blocks):
        return super().block_amax(window(blocks, 1))


@mutant("block-amax-bf16", says="block maxima are rounded to bfloat16")
class BlockMaximaInBfloat16(MXFP8):
    def block_amax(self, blocks):
        return super().block_amax(blocks).astype(BF16).astype(F)


@mutant("block-amax-bf16-up", says="block maxima are rounded up to bfloat16, where block % 2 == 1")
class OddBlockMaximaUpToBfloat16(NVFP4):
    def block_amax(self, blocks):
        found = super().block_amax(blocks)
        above = found.astype(BF16).astype(F)
        above = np.where(above < found, np.nextafter(above.astype(BF16), BF16(np.inf)).astype(F), above)
        odd = np.arange(found.shape[1]) % 2 == 1
        return np.where(odd & np.isfinite(found), above, found)


@mutant("block-zero-keeps", says="scale byte of a block of zeros is that of the last block before it")
class ScaleRegisterKeptOverZeros(MXFP4):
    def stored(self, byte):
        found = byte.copy()
        for block in range(1, byte.shape[1]):
            zeros = self.maxima[:, block] == 0
            found[zeros, block] = found[zeros, block - 1]
        return found

    def block_amax(self, blocks):
        self.maxima = super().block_amax(blocks)
        return self.maxima


def mirrored(maxima):
    count, found = min(maxima.shape), maxima.copy()
    found[:count, :count] = maxima[:count, :count].T
    return found


def on_squares(move):
    def block_amax(self, blocks):
        maxima = Square.block_amax(self, blocks)[::16]
        return np.repeat(move(maxima), 16, axis=0)[: len(blocks)]

    return {"block_amax": block_amax}


@mutant("block-squares-mirrored", says=r"the scales of squares \(j, i\) instead of \(i, j\) are stored", release=True)
class SquaresMirrored(type("Mirrored", (Square,), on_squares(mirrored))):
    pass


def by_row_alone(maxima):
    rows = range(len(maxima) if maxima.size else 0)
    return np.array([[maxima[i, min(i, maxima.shape[1] - 1)]] * maxima.shape[1] for i in rows], F).reshape(maxima.shape)


@mutant("block-squares-row-twice", says=r"the scales of squares \(i, i\) instead of \(i, j\) are stored", release=True)
class SquaresByRowAlone(type("ByRow", (Square,), on_squares(by_row_alone))):
    pass
