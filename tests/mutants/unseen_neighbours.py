"""Kernels that take what belongs elsewhere: bytes of other places, maxima of another row, errors that cancel.

Every kernel computes the mistake in another way than the diagnosis does. `says` matches the cause in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, MXFP8, Square, F = (_BASE[name] for name in ("NVFP4", "MXFP8", "Square", "F"))
_KERNELS = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
FourOverSix, tiled, value = (_KERNELS[name] for name in ("FourOverSix", "tiled", "value"))
MUTANTS, mutant = _KERNELS["mutants"]()
CORRECT = ()


def chunks(data, width, count, place):
    """Rows of bytes of which chunk c of each `count` comes from place(c, row)."""
    out, size = data.copy(), width * count
    for row in range(len(data)):
        for start in range(0, data.shape[1] // size * size, size):
            for c in range(count):
                source = start + place(c, row) * width
                out[row, start + c * width : start + (c + 1) * width] = data[row, source : source + width]
    return out


@mutant("data-swizzled-xor", says=r"of each 8 groups of 4 bytes of data, group c stands at c \^ \(row % 8\)")
class WordsSwizzled(NVFP4):
    def pack(self, codes):
        return chunks(super().pack(codes), 4, 8, lambda c, row: c ^ row % 8)


@mutant("data-swizzled-on", says="of each 4 groups of 16 bytes of data, group c stands at c . row // 2 % 4, around")
class QuartersRotated(MXFP8):
    def pack(self, codes):
        return chunks(super().pack(codes), 16, 4, lambda c, row: (c - row // 2) % 4)


@mutant("layout-swizzled-xor", says=r"of each 4 scale bytes, scale byte c stands at c \^ \(row % 4\)")
class ScalesSwizzled(NVFP4):
    def place(self, scales):
        return tiled(chunks(scales, 1, 4, lambda c, row: c ^ row % 4))


@mutant("layout-tiles-apart-half|layout-", says="rows of 128x4 tiles are stored .* apart")
class TilesOverlap(NVFP4):
    """A row of tiles begins where the scales of the one before end, if they had no padding."""

    def place(self, scales):
        right = tiled(scales)
        out = np.zeros(right.size + right.shape[1] * 128, np.uint8)
        across = -(-scales.shape[1] // 4)
        for n in range(len(right) // 128):
            tile = tiled(scales[n * 128 : n * 128 + 128]).reshape(-1)
            written = tiled(np.ones_like(scales[n * 128 : n * 128 + 128])).reshape(-1) > 0
            start = n * 128 * scales.shape[1]
            out[start : start + across * 512][written] = tile[written]
        return out[: right.size].reshape(right.shape)


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


@mutant("search-errors-signed", says="errors with their signs, so that they cancel")
class ErrorsCancel(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        return np.abs(self.total(q * s[:, :, None] * amax / F(2688) - x))


@mutant("search-errors-above", says="counts only errors of values that are too large")
class OnlyErrorsAbove(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        wrong = q * s[:, :, None] * amax / F(2688) - x
        return self.total(np.where(wrong > 0, wrong, F(0)))
