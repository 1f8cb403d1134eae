"""Scale bytes at wrong places: other rows, blocks, tiles and pitches, or not written; and their padding.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
BFLOAT16, Counted, F, Rows, SHORT = (_PARTS[name] for name in ("BFLOAT16", "Counted", "F", "Rows", "SHORT"))
chunks, exchanged = (_PARTS[name] for name in ("chunks", "exchanged"))
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
NVFP4, tiled = (_KERNELS[name] for name in ("NVFP4", "tiled"))
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
ALL, MXFP4, MXFP8, NVFP4, Square = (_PLACES[name] for name in ("ALL", "MXFP4", "MXFP8", "NVFP4", "Square"))
CORRECT = ()


@mutant("layout-128x4-stride", says="the stride between rows of 128x4 tiles is the number of tiles down, not across")
class TilesOfTheOtherLeadingDimension(NVFP4):
    def place(self, scales):
        down, across = -(-scales.shape[0] // 128), -(-scales.shape[1] // 4)
        found = np.zeros((down * across, 512), np.uint8)
        for i, j in np.ndindex(*scales.shape):
            found[(i // 128 * down + j // 4) % (down * across), i % 32 * 16 + i // 32 % 4 * 4 + j % 4] = scales[i, j]
        return found.reshape(down * 128, across * 4)


@mutant("", says="rows of scale bytes i and i . 32 are exchanged", multiple=(128, 128), release=True)
class ScaleRowsExchangedBy32(NVFP4):
    def stored(self, byte):
        return exchanged(byte, 32)


@mutant("", says="reverse order within words of 2", multiple=(128, 128), dtypes=BFLOAT16, release=True)
class MXScalePairsExchanged(MXFP4):
    """Two bytes written as a big-endian short."""

    def stored(self, byte):
        other = np.arange(byte.shape[1]) ^ 1
        return byte[:, np.where(other < byte.shape[1], other, np.arange(byte.shape[1]))]


@mutant("", says="reverse order within words of 4", multiple=(128, 64), release=True)
class FourScalesReversed(NVFP4):
    """A little-endian word of four scales, written by shifts from the top."""

    def place(self, scales):
        stored = super().place(scales)
        return stored.reshape(len(stored), stored.shape[1] // 4, 4)[..., ::-1].reshape(stored.shape)


@mutant("", says="previous row, where row % 32 == 0", multiple=(64, 64), release=True)
class ScaleOfTheRowBeforeInLaneZero(NVFP4):
    """__shfl_up: lane 0 keeps what it had."""

    def stored(self, byte):
        byte = byte.copy()
        byte[32::32] = byte[31:-1:32][: len(byte[32::32])]
        return byte


@mutant("", says="rows past the last multiple of 32 are not written", multiple=(16, 16), release=True)
class ScalesOfTailRowsNotWritten(Rows):
    def stored(self, byte):
        byte = byte.copy()
        byte[len(byte) // 32 * 32 :] = 0
        return byte


@mutant("", says="scale.*(0x00|not written).*in rows from 192 on", multiple=(64, 64), dtypes=ALL, release=True)
class ScalesNotWrittenFromRow192(NVFP4):
    def stored(self, byte):
        byte = byte.copy()
        byte[192:] = 0
        return byte


@mutant("", says="last block's scale byte is not written", multiple=(1, 16), release=True)
class LastBlockNotWritten(NVFP4):
    """for (b = 0; b < blocks - 1; b++)."""

    def stored(self, byte):
        byte = byte.copy()
        byte[:, -1:] = 0
        return byte


@mutant("stored-squares-pitch", says="with its number of rows as the pitch", release=True)
class SquaresWithAnotherPitch(Square):
    def stored(self, byte):
        grid = byte[::16]
        down, across = np.indices(grid.shape)
        return np.repeat(grid.reshape(-1)[(down * len(grid) + across) % grid.size], 16, axis=0)[: len(byte)]


@mutant("stored-pitch-4", says="written at the pitch of a multiple of 4 blocks", release=True)
class ScalesAtAPaddedPitch(NVFP4):
    layout = "linear"

    def place(self, scales):
        rows, across = scales.shape
        made, pitch = np.zeros(rows * across, np.uint8), -(-across // 4) * 4
        for row in range(rows):
            line = scales[row, : max(made.size - row * pitch, 0)]
            made[row * pitch : row * pitch + len(line)] = line
        return made.reshape(rows, across)


@mutant("read-pitch-one-more", says="copied from places at the pitch of one block too many", release=True)
class ScalesCopiedOneBlockTooFar(NVFP4):
    layout = "linear"

    def place(self, scales):
        rows, across = scales.shape
        flat = np.append(scales.reshape(-1), np.zeros(rows * (across + 1), np.uint8))
        return np.stack([flat[row * (across + 1) :][:across] for row in range(rows)]) if rows else scales


@mutant("scales-of-row-clamped-32", says="last row of the last whole group of 32 rows", release=True)
class TailRowsTakeTheLastWholeRow(NVFP4):
    layout = "linear"

    def place(self, scales):
        whole = len(scales) // 32 * 32
        made = scales.copy()
        made[whole:] = made[max(whole - 1, 0)] if whole else made[whole:]
        return made


@mutant("scales-of-row-8-after-inside|stored-squares-below", says=r"those of (row \+ 8|the square below)", release=True)
class LowerHalvesOfSquaresTakeTheNextOnes(Square):
    def stored(self, byte):
        row = np.arange(len(byte))
        there = (row % 16 >= 8) & (row + 8 < len(byte))
        return byte[np.where(there, row + 8, row)]


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


@mutant("stored-other-pitch", says="pitch of the other direction", release=True)
class ScalesAtTheOtherPitch(MXFP8):
    layout = "linear"

    def place(self, scales):
        rows, across = scales.shape
        made, pitch = np.zeros(scales.size, np.uint8), -(-rows // 32)
        for row in range(rows):
            line = scales[row, : max(scales.size - row * pitch, 0)]
            made[row * pitch : row * pitch + len(line)] = line
        return made.reshape(rows, across)


@mutant("stored-squares-mirrored-4", says="of 4 x 4 squares are exchanged", release=True)
class SquaresMirroredInTiles(Square):
    def stored(self, byte):
        byte, found = byte[::16], byte.copy()
        for i in range(byte.shape[0]):
            for j in range(byte.shape[1]):
                there = i // 4 * 4 + j % 4, j // 4 * 4 + i % 4
                if there[0] < byte.shape[0] and there[1] < byte.shape[1]:
                    found[16 * i : 16 * i + 16, j] = byte[there]
        return found


@mutant("scales-of-row-xor-8", says=r"i \^ 8 are exchanged; 0 where there is none, where block % 8 >= 4", release=True)
class RowEightsExchangedInOddTiles(NVFP4):
    def place(self, scales):
        rows = np.arange(-(-len(scales) // 16) * 16)
        padded = np.pad(scales, ((0, len(rows) - len(scales)), (0, 0)))
        odd = np.arange(scales.shape[1]) // 4 % 2 == 1
        return tiled(np.where(odd, padded[rows ^ 8], padded)[: len(scales)])


@mutant("padding", says="padding columns repeat the last scales", release=True)
class PaddingColumnsRepeat(NVFP4):
    def place(self, scales):
        across = scales.shape[1]
        wide = np.pad(scales, ((0, 0), (0, -across % 4)), "edge") if scales.size else scales
        return tiled(wide)


@mutant("scales-", says="where row % 16 (!= 0|>= 1)|row % 16 == 0")
class SquareScaleStoredOnce(Square):
    """Only the first row of a square stores its scale."""

    def stored(self, byte):
        return np.where(np.arange(len(byte))[:, None] % 16 == 0, byte, 0).astype(np.uint8)


@mutant("stored-", says="(before|late|previous|next)")
class MXScalesOneBlockEarly(MXFP4):
    def stored(self, byte):
        return np.concatenate([byte[:, 1:], byte[:, -1:]], axis=1)


@mutant("direction-stored", says="other direction")
class MX4ColumnStoresScalesOfRows(MXFP4):
    direction = "column"

    def read(self, x):
        self.other = super().scale_byte(self.block_scale(self.block_amax(self.blocks(x.T)), F(1)))
        return x

    def stored(self, byte):
        found = np.zeros(byte.size, np.uint8)
        found[: self.other.size] = self.other.reshape(-1)[: byte.size]
        return found.reshape(byte.shape)


@mutant("layout-right-aligned", says="at the end of its four bytes, after the padding", release=True)
class LastTileFilledFromItsEnd(NVFP4):
    def place(self, scales):
        rest = scales.shape[1] % 4
        if rest:
            whole, last = np.split(scales, [scales.shape[1] - rest], axis=1)
            scales = np.hstack([whole, np.zeros((len(scales), 4 - rest), np.uint8), last])
        return tiled(scales)


@mutant("wrapped-rows-16", says=r"rows from 65,536 on are written over those of row % 65,536", release=True)
class RowsWrapAt65536(Counted):
    def rows(self, array):
        made = array.copy()
        past = len(array) - SHORT
        if past > 0:
            made[:past], made[SHORT:] = array[SHORT:], 0
        return made
