"""Wrong kernels of an outside author by classes: bits and bytes that repeat or change places, in one sign or one place.

`says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, MXFP8, MXFP4, RHT, Square = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Square"))
F, e2m1, Somewhere = (_BASE[name] for name in ("F", "e2m1", "Somewhere"))
_SCALES = runpy.run_path(str(Path(__file__).parent / "unseen_scales.py"))
mutant, MUTANTS = _SCALES["mutant"], _SCALES["MUTANTS"]
MUTANTS.clear()
_KERNELS = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
Stochastic, tiled = _KERNELS["Stochastic"], _KERNELS["tiled"]
CORRECT, RELEASE, BFLOAT16 = (), True, ("bfloat16",)


# Random bits


class OtherBits(Stochastic):
    """The bits [rows, columns] are those of other elements."""

    def encode(self, y):
        given, self.bits = self.bits, self.source(self.bits)
        codes = super().encode(y)
        self.bits = given
        return codes


@mutant("bits-of-columns-64", says="random bits of column % 64")
class BitsRepeatEvery64Columns(OtherBits):
    def source(self, bits):
        return bits[:, np.arange(bits.shape[1]) % 64]


@mutant("bits-of-row-4", says="random bits of row - 4, where row % 8 >= 4")
class BitsOfTheUpperFourRows(OtherBits):
    def source(self, bits):
        row = np.arange(len(bits))
        return bits[row - row // 4 % 2 * 4]


@mutant("bits-of-rows-32", says="random bits of row % 32")
class BitsRepeatEvery32Rows(OtherBits):
    def source(self, bits):
        return bits[np.arange(len(bits)) % 32]


# One sign


@mutant("element-", says="ties.*(away|-infinity).*of negative elements")
class NegativeTiesAway(NVFP4):
    def encode(self, y):
        away = e2m1(y, tie=lambda c, y: True)
        return np.where(y < 0, away, e2m1(y)).astype(np.uint8)


@mutant("element-clamp-4", says="clamped to 4 instead of 6, of positive elements, where column % 16 == 0")
class PositiveFourAtTheHeadOfBlocks(MXFP4):
    def encode(self, y):
        code = e2m1(y)
        head = np.arange(code.shape[-1]) % 16 == 0
        return np.where((code == 7) & head & ~np.isnan(y), 6, code).astype(np.uint8)


# Scale bytes in other places


@mutant("stored-other-pitch", says="pitch of the other direction")
class ScalesAtTheOtherPitch(MXFP8):
    layout = "linear"

    def place(self, scales):
        rows, across = scales.shape
        made, pitch = np.zeros(scales.size, np.uint8), -(-rows // 32)
        for row in range(rows):
            line = scales[row, : max(scales.size - row * pitch, 0)]
            made[row * pitch : row * pitch + len(line)] = line
        return made.reshape(rows, across)


@mutant("stored-squares-mirrored-4", says="of 4 x 4 squares are exchanged")
class SquaresMirroredInTiles(Square):
    def stored(self, byte):
        byte, found = byte[::16], byte.copy()
        for i in range(byte.shape[0]):
            for j in range(byte.shape[1]):
                there = i // 4 * 4 + j % 4, j // 4 * 4 + i % 4
                if there[0] < byte.shape[0] and there[1] < byte.shape[1]:
                    found[16 * i : 16 * i + 16, j] = byte[there]
        return found


@mutant("scales-of-row-xor-8", says=r"i \^ 8 are exchanged; 0 where there is none, where block % 8 >= 4")
class RowEightsExchangedInOddTiles(NVFP4):
    def place(self, scales):
        rows = np.arange(-(-len(scales) // 16) * 16)
        padded = np.pad(scales, ((0, len(rows) - len(scales)), (0, 0)))
        odd = np.arange(scales.shape[1]) // 4 % 2 == 1
        return tiled(np.where(odd, padded[rows ^ 8], padded)[: len(scales)])


# Padding and spare nibbles


@mutant("padding", says="padding columns repeat the last scales")
class PaddingColumnsRepeat(NVFP4):
    def place(self, scales):
        across = scales.shape[1]
        wide = np.pad(scales, ((0, 0), (0, -across % 4)), "edge") if scales.size else scales
        return tiled(wide)


@mutant("spare-nibble", says="spare nibbles are not zero: they hold the first code of the next row")
class SpareHoldsTheNextRow(NVFP4):
    def pack(self, codes):
        data = super().pack(codes)
        if codes.shape[1] % 2:
            data[:-1, -1] |= codes[1:, 0] << 4
        return data


# Maxima and transforms


@mutant("block-tail-next-row", says="last partial block sees what follows the row in memory, the next row")
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


@mutant("block-nan-forgets", says="forget what comes before a NaN")
class MaximumForgetsBeforeNaN(NVFP4):
    def block_amax(self, blocks):
        found = np.zeros(blocks.shape[:-1], F)
        for lane in range(16):
            x = np.abs(blocks[..., lane])
            found = np.where((found >= x), found, x)
        return found


@mutant("hadamard-without-4", says="the butterfly of stride 4 is left out", dtypes=BFLOAT16, multiple=(1, 16))
class TransformWithoutOneStride(RHT):
    def sums(self, groups):
        y = groups
        for stride in (1, 2, 8):
            i = np.arange(16)
            y = np.where(i & stride, y[..., i ^ stride] - y, y + y[..., i ^ stride])
        return (y + F(0)).astype(F)


@mutant("block-last-signed", says="block maxima take the last element with the sign")
class LastLaneKeepsItsSign(NVFP4):
    def block_amax(self, blocks):
        others = np.fmax.reduce(np.abs(blocks[..., :15]), axis=2, initial=F(0))
        return np.fmax(others, blocks[..., 15]) + F(0)


@mutant("element-infinite-nan", says="infinite elements become NaN instead of saturating, where column % 2 == 1")
class InfinitiesAreNaNInOddColumns(MXFP8):
    def encode(self, y):
        odd = np.arange(y.shape[-1]) % 2 == 1
        return np.where(np.isinf(y) & odd, 0x7F, super().encode(y)).astype(np.uint8)


@mutant("mx-fp16", says="rounded to float16 first, in float16 only", dtypes=("float32", "bfloat16", "float16"))
class QuotientInHalfInFloat16(MXFP8):
    def block_scale(self, amax, s_enc):
        t = super().block_scale(amax, s_enc)
        return t.astype(np.float16).astype(F) if self.dtype.name == "float16" else t
