"""Wrong limits and ends: what comes last in a row, a tensor or a group, and what becomes of NaN, infinity and -0.

Kernels with the mistakes of an outside author's, written anew. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, MXFP8, RHT, Square, Rows = (_BASE[name] for name in ("NVFP4", "MXFP8", "RHT", "Square", "Rows"))
F, ALL, FLT_MAX, FourOverSix, BF16 = (_BASE[name] for name in ("F", "ALL", "FLT_MAX", "FourOverSix", "BF16"))
mutant, MUTANTS = _BASE["mutant"], _BASE["MUTANTS"]
MUTANTS.clear()
CORRECT, RELEASE, BFLOAT16 = (), True, ("bfloat16",)


# Maxima


@mutant("amax-vectors-", says="misses the elements past the last multiple of . of the whole tensor")
class AmaxInVectorsOfFourOfTheTensor(NVFP4):
    def amax(self, x):
        return super().amax(x.reshape(-1)[: x.size // 4 * 4])


@mutant("amax-last-stack", says=r"that of x\[-1\] only")
class AmaxOfTheLastExpert(NVFP4):
    def amax(self, x):
        return super().amax(x[len(x) - len(x) // self.shape[0] :] if len(self.shape) > 2 else x)


@mutant("amax-not-reset", says="the largest of its own and those of all rows before")
class RowMaximumNeverReset(Rows):
    def row_amax(self, x):
        return np.maximum.accumulate(super().row_amax(x))


@mutant("block-and-previous-2", says="over the block and the second one before it")
class MaximumOfTheSlotBefore(NVFP4):
    def block_amax(self, blocks):
        own = super().block_amax(blocks)
        own[:, 2:] = np.maximum(own[:, 2:], super().block_amax(blocks)[:, :-2])
        return own


@mutant("block-below-above", says="sees the last rows of the blocks above")
class LastSquareMovedUp(Square):
    def block_amax(self, blocks):
        maxima = super().block_amax(blocks)
        past = len(blocks) % 16
        if past and len(blocks) > 16:
            maxima[-past:] = np.fmax.reduce(np.abs(blocks[-16:]), axis=(0, 2), initial=F(0))
        return maxima


@mutant("block-first-nan", says="start with the first element")
class MaximumFromTheFirstElement(NVFP4):
    def block_amax(self, blocks):
        return np.where(np.isnan(blocks[:, :, 0]), F(np.nan), super().block_amax(blocks))


# Scales


@mutant("scale-sixth-below", says=r"the float32 below fp32\(1/6\)")
class SixthCut(NVFP4):
    def block_scale(self, amax, s_enc):
        return np.fmin(amax * (s_enc * np.nextafter(F(1) / F(6), F(0))), FLT_MAX)


@mutant("search-own", says=r"\(amax / 4\) \* S_enc, not 1.5 times the first")
class SecondScaleOfItsOwn(FourOverSix):
    def block_amax(self, blocks):
        self.maxima = super().block_amax(blocks)
        return self.maxima

    def global_scale(self, amax):
        self.s_enc = super().global_scale(amax)
        return self.s_enc

    def tried(self, t):
        return t, self.maxima / F(4) * self.s_enc


@mutant("encode-decode-amax-product", says=r"amax \* fp32\(1/2688\)")
class ElementsByAProductOfAmax(NVFP4):
    def amax(self, x):
        self.found = super().amax(x)
        return self.found

    def element(self, blocks, s, s_enc, t):
        decode = F(1) if self.found == 0 else self.found * (F(1) / F(2688))
        return blocks * np.fmin(F(1) / (s * decode), FLT_MAX)[:, :, None]


@mutant("stored-squares-pitch", says="with its number of rows as the pitch")
class SquaresWithAnotherPitch(Square):
    def stored(self, byte):
        grid = byte[::16]
        down, across = np.indices(grid.shape)
        return np.repeat(grid.reshape(-1)[(down * len(grid) + across) % grid.size], 16, axis=0)[: len(byte)]


# Values


@mutant("input-flush-half", says="below 2.-14, the subnormals of float16, are flushed.*in float16 only", dtypes=ALL)
class HalfSubnormalsFlushed(MXFP8):
    def read(self, x):
        if self.dtype.name == "float16":
            return np.where(np.abs(x) < F(2.0**-14), np.copysign(F(0), x), x)
        return x


# The transform


@mutant("hadamard-signed-zeros", says="a sum of zeros keeps the sign -0", dtypes=BFLOAT16)
class TransformKeepsMinusZero(RHT):
    def sums(self, groups):
        for stride in (1, 2, 4, 8):
            other = groups[..., np.arange(16) ^ stride]
            groups = np.where(np.arange(16) & stride, other - groups, groups + other)
        return groups


@mutant("hadamard-elements-fp32", says="made of results that are not rounded to bfloat16, maxima of", dtypes=BFLOAT16)
class ElementsOfTheUnrounded(RHT):
    def rounded(self, y):
        return y

    def amax(self, x):
        return super().amax(super().rounded(x))

    def block_amax(self, blocks):
        return super().block_amax(super().rounded(blocks))
