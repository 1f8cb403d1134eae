"""Wrong kernels by classes: scale bytes at another pitch or clamped to whole tiles, and exchanged with padding.

`says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, Square, FourOverSix = (_BASE[name] for name in ("NVFP4", "Square", "FourOverSix"))
_SCALES = runpy.run_path(str(Path(__file__).parent / "unseen_scales.py"))
mutant, MUTANTS = _SCALES["mutant"], _SCALES["MUTANTS"]
MUTANTS.clear()
Stochastic = runpy.run_path(str(Path(__file__).parent / "kernels.py"))["Stochastic"]
F = np.float32
CORRECT, RELEASE = (), True


@mutant("stored-pitch-4", says="written at the pitch of a multiple of 4 blocks")
class ScalesAtAPaddedPitch(NVFP4):
    layout = "linear"

    def place(self, scales):
        rows, across = scales.shape
        made, pitch = np.zeros(rows * across, np.uint8), -(-across // 4) * 4
        for row in range(rows):
            line = scales[row, : max(made.size - row * pitch, 0)]
            made[row * pitch : row * pitch + len(line)] = line
        return made.reshape(rows, across)


@mutant("read-pitch-one-more", says="copied from places at the pitch of one block too many")
class ScalesCopiedOneBlockTooFar(NVFP4):
    layout = "linear"

    def place(self, scales):
        rows, across = scales.shape
        flat = np.append(scales.reshape(-1), np.zeros(rows * (across + 1), np.uint8))
        return np.stack([flat[row * (across + 1) :][:across] for row in range(rows)]) if rows else scales


@mutant("scales-of-row-clamped-32", says="last row of the last whole group of 32 rows")
class TailRowsTakeTheLastWholeRow(NVFP4):
    layout = "linear"

    def place(self, scales):
        whole = len(scales) // 32 * 32
        made = scales.copy()
        made[whole:] = made[max(whole - 1, 0)] if whole else made[whole:]
        return made


@mutant("scales-of-row-8-after-inside|stored-squares-below", says=r"those of (row \+ 8|the square below)")
class LowerHalvesOfSquaresTakeTheNextOnes(Square):
    def stored(self, byte):
        row = np.arange(len(byte))
        there = (row % 16 >= 8) & (row + 8 < len(byte))
        return byte[np.where(there, row + 8, row)]


@mutant("input-inf-zero", says="infinities are taken as 0")
class InfinitiesAreZeros(NVFP4):
    def read(self, x):
        x = super().read(x)
        return np.where(np.isinf(x), F(0), x)


@mutant("search-without-3", says="4over6 errors miss element 3")
class FourOverSixMissesOneError(FourOverSix):
    def total(self, errors):
        return super().total(np.where(np.arange(16) == 3, F(0), errors))


@mutant("search-of-2", says="4over6: 2 neighbouring blocks choose together")
class BlocksChooseInPairs(FourOverSix):
    def better(self, first, second):
        left = np.arange(first.shape[1]) // 2 * 2
        right = np.minimum(left + 1, first.shape[1] - 1)
        one = right > left
        return second[:, left] + one * second[:, right] < first[:, left] + one * first[:, right]


@mutant("amax-reported-bf16", says="the amax that is returned is rounded to bfloat16, that of the scales is not")
class ReturnedAmaxIsNarrow(NVFP4):
    def __call__(self, x, dtype):
        data, scales, amax = super().__call__(x, dtype)
        return data, scales, amax.astype(ml_dtypes.bfloat16).astype(F)


@mutant("codes-sign-xor-8", says=r"elements have the sign of that in column \^ 8, in rows from 64 on")
class SignOfTheOtherHalf(NVFP4):
    def pack(self, codes):
        other = np.arange(codes.shape[1]) ^ 8
        taken = np.where(other < codes.shape[1], other, np.arange(codes.shape[1]))
        return super().pack(np.where(np.arange(len(codes))[:, None] >= 64, codes & 7 | codes[:, taken] & 8, codes))


@mutant("bits-inferred-reversed", says="bits of each random byte are taken in reverse order")
class BitsOfBytesReversed(Stochastic):
    def encode(self, y):
        given = self.bits
        turned = np.unpackbits(given[..., None], axis=-1)[..., ::-1]
        self.bits = np.packbits(turned, axis=-1)[..., 0]
        codes = super().encode(y)
        self.bits = given
        return codes
