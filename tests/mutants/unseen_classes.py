"""Wrong kernels of classes that an author who had not read the diagnosis found: steps, lanes, tails, tiles and signs.

`says` matches the cause in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
NVFP4, MXFP8, RHT, Stochastic, FourOverSix, F = (
    _BASE[name] for name in ("NVFP4", "MXFP8", "RHT", "Stochastic", "FourOverSix", "F")
)
BF16, value = _BASE["BF16"], _BASE["value"]
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


# Random bits


@mutant("random-step-last", says="in the largest binade the step is that of the binade below")
class StepNeverAboveOne(Stochastic):
    def encode(self, y):
        bits = np.pad(self.bits, ((0, 0), (0, -self.bits.shape[1] % 16))).reshape(y.shape)
        magnitude = np.abs(y).astype(np.float64)
        moved = (magnitude + np.where(magnitude < 2, 0.5, 1) * bits / 256).astype(F)
        code = sum((moved >= F(point)).astype(np.uint8) for point in _BASE["GRID"][1:]) + 8 * np.signbit(y)
        return np.where(np.isnan(y), 7, code).astype(np.uint8)


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


# Maxima, scales and elements


@mutant("block-without-columns-8", says="block maxima miss the columns past the last multiple of 8")
class VectorsOfEightInBlockMaxima(NVFP4):
    def read(self, x):
        self.columns = x.shape[1]
        return x

    def block_amax(self, blocks):
        lanes = np.arange(blocks.shape[1] * 16).reshape(-1, 16) < self.columns // 8 * 8
        return super().block_amax(np.where(lanes, blocks, F(0)))


@mutant("encode-fast-cut", says=r"elements are fma\(x, S_enc / s truncated to bfloat16, 0\)")
class EncodeScaleWithoutItsLowerHalf(NVFP4):
    spec = "nvfp4-fast"

    def element(self, blocks, s, s_enc, t):
        factor = np.fmin(s_enc / s, F(np.finfo(F).max)).astype(F)
        factor = np.fmin((factor.view(np.uint32) >> 16 << 16).view(F), F(3.3895313892515355e38))
        y = blocks * factor[:, :, None]
        return np.where((blocks == 0) & ~np.isnan(y), F(0), y)


@mutant("search-from-byte", says="1.5 times the first candidate's scale after it was rounded to its byte")
class SecondFromTheStoredFirst(FourOverSix):
    def tried(self, t):
        return t, value(self.scale_byte(t)) * F(1.5)


@mutant("element-flush-first", says="elements below the smallest normal are flushed to zero before they are rounded")
class NoSubnormalElements(MXFP8):
    def encode(self, y):
        return super().encode(np.where(np.abs(y) >= F(2.0**-6), y, y * F(0)))


@mutant("sign-negative", says="the sign is (x < 0|that of y < 0, after scaling)")
class SignByComparison(MXFP8):
    def encode(self, y):
        return np.where(np.isnan(y), 0x7F, super().encode(np.abs(y)) + 128 * (y < 0)).astype(np.uint8)


@mutant("hadamard-signs-after", says="signs are applied after the sums")
class SignsLast(RHT):
    def transform(self, x):
        groups = x.reshape(len(x), x.shape[1] // 16, 16) * F(0.25)
        return self.rounded(self.sums(groups) * self.signs + F(0)).reshape(x.shape)


@mutant("hadamard-turned-8", says="the butterfly of stride 8 subtracts the other way round")
class LastDifferencesTurned(RHT):
    def sums(self, groups):
        found = super().sums(groups)
        return np.concatenate([found[..., :8], F(0) - found[..., 8:]], axis=-1)


@mutant("hadamard-turned-2", says="the butterfly of stride 2 subtracts the other way round")
class SecondDifferencesTurned(RHT):
    def sums(self, groups):
        y = groups
        for stride in (1, 2, 4, 8):
            i = np.arange(16)
            low, high = y[..., i & ~stride], y[..., i | stride]
            y = np.where(i & stride, high - low if stride == 2 else low - high, low + high)
        return y + F(0)


# Tiles


@mutant("layout-128x4-stride", says="the stride between rows of 128x4 tiles is the number of tiles down, not across")
class TilesOfTheOtherLeadingDimension(NVFP4):
    def place(self, scales):
        down, across = -(-scales.shape[0] // 128), -(-scales.shape[1] // 4)
        found = np.zeros((down * across, 512), np.uint8)
        for i, j in np.ndindex(*scales.shape):
            found[(i // 128 * down + j // 4) % (down * across), i % 32 * 16 + i // 32 % 4 * 4 + j % 4] = scales[i, j]
        return found.reshape(down * 128, across * 4)
