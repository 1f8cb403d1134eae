"""Wrong scaling of elements: factors, quotients, and scales of another block or row.

No kernel knows the library of mistakes. `says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_PARTS = runpy.run_path(str(Path(__file__).with_name("parts.py")))
BFLOAT16, F, FLT_MAX, MXFP8E5M2, Rows = (_PARTS[name] for name in ("BFLOAT16", "F", "FLT_MAX", "MXFP8E5M2", "Rows"))
in_type = _PARTS["in_type"]
MUTANTS, mutant = _PARTS["mutants"]()
_KERNELS = runpy.run_path(str(Path(__file__).with_name("kernels.py")))
BF16, F, NVFP4 = (_KERNELS[name] for name in ("BF16", "F", "NVFP4"))
_PLACES = runpy.run_path(str(Path(__file__).with_name("places.py")))
ALL, MXFP4, MXFP8, NVFP4, Somewhere = (_PLACES[name] for name in ("ALL", "MXFP4", "MXFP8", "NVFP4", "Somewhere"))
Square, e2m1, value = (_PLACES[name] for name in ("Square", "e2m1", "value"))
CORRECT = ()


@mutant("input-flush-elements", says="flushed.*elements are scaled only.*in bfloat16 only", dtypes=ALL, release=True)
class BrainSubnormalsAreScaledAsZeros(NVFP4):
    def element(self, blocks, s, s_enc, t):
        small = (np.abs(blocks) < np.finfo(F).tiny) & (self.dtype.name == "bfloat16")
        return super().element(np.where(small, np.copysign(F(0), blocks), blocks), s, s_enc, t)


@mutant("encode-zero-block-positive", says="all codes of a block whose maximum is 0 are 0", release=True)
class ZeroBlocksAreCleared(MXFP8):
    def element(self, blocks, s, s_enc, t):
        found = super().element(blocks, s, s_enc, t)
        return np.where(self.block_amax(blocks)[:, :, None] == 0, F(0), found)


@mutant(
    "encode-of-block-16-before",
    says="scaled with the scale of block - 16; .* right, where (block % 32 >= 16|column % 512 >= 256)",
    release=True,
)
class LanesShareTheHalfWarpsScale(NVFP4):
    def element(self, blocks, s, s_enc, t):
        block = np.arange(s.shape[1])
        return super().element(blocks, s[:, np.where(block % 32 >= 16, block - 16, block)], s_enc, t)


@mutant(
    "encode-global-tiles-4",
    says="where elements are scaled, every row uses the global scale of the first row of",
    release=True,
)
class GlobalScaleOfTheFirstOfFourRows(Rows):
    def element(self, blocks, s, s_enc, t):
        return super().element(blocks, s, s_enc[np.arange(len(s_enc)) // 4 * 4], t)


@mutant("encode-fast-cut", says=r"elements are fma\(x, S_enc / s truncated to bfloat16, 0\)")
class EncodeScaleWithoutItsLowerHalf(NVFP4):
    spec = "nvfp4-fast"

    def element(self, blocks, s, s_enc, t):
        factor = np.fmin(s_enc / s, F(np.finfo(F).max)).astype(F)
        factor = np.fmin((factor.view(np.uint32) >> 16 << 16).view(F), F(3.3895313892515355e38))
        y = blocks * factor[:, :, None]
        return np.where((blocks == 0) & ~np.isnan(y), F(0), y)


@mutant("element-bf16", says="bfloat16.*in bfloat16 only", dtypes=ALL)
class ScaledInBfloat16(Somewhere):
    """The product stays in the type of the input."""

    class Wrong(NVFP4):
        def encode(self, y):
            return e2m1(y.astype(BF16).astype(F))

    def inside(self, row, column):
        return self.dtype.name == "bfloat16"


@mutant("encode-", says="where row % 4 >= 2")
class QuotientOfScalesInTheSecondPairOfRows(Somewhere):
    class Wrong(NVFP4):
        def element(self, blocks, s, s_enc, t):
            return blocks * np.fmin(s_enc / s, FLT_MAX)[:, :, None]

    def inside(self, row, column):
        return row % 4 >= 2


@mutant("", says="scale of the first of two neighbouring blocks", release=True)
class CodesWithTheScaleBefore(NVFP4):
    def scale_value(self, byte, t):
        s = value(byte)
        s[:, 1::2] = s[:, :-1:2][:, : s[:, 1::2].shape[1]]
        return s


@mutant("", says="scale of the next block", multiple=(16, 16), dtypes=ALL, release=True)
class MXCodesWithTheNextScale(MXFP4):
    def scale_value(self, byte, t):
        s = super().scale_value(byte, t)
        return np.concatenate([s[:, 1:], s[:, -1:]], axis=1)


@mutant("", says="S_enc / s.*past the last multiple of 4", multiple=(1, 16), release=True)
class QuotientInTheTail(Somewhere):
    """A loop for the tail written later, with the quotient of the scales as the factor."""

    class Wrong(NVFP4):
        def element(self, blocks, s, s_enc, t):
            return blocks * np.fmin(s_enc / s, F(np.finfo(F).max))[:, :, None]

    def inside(self, row, column):
        return column >= self.columns // 64 * 64


@mutant("encode-decode-amax-product", says=r"amax \* fp32\(1/2688\)", release=True)
class ElementsByAProductOfAmax(NVFP4):
    def amax(self, x):
        self.found = super().amax(x)
        return self.found

    def element(self, blocks, s, s_enc, t):
        decode = F(1) if self.found == 0 else self.found * (F(1) / F(2688))
        return blocks * np.fmin(F(1) / (s * decode), FLT_MAX)[:, :, None]


@mutant("", says="amax / 448", release=True)
class E5M2WithTheMaximumOfE4M3(MXFP8E5M2):
    def block_scale(self, amax, s_enc):
        return amax / F(448)


@mutant("", says="bf16.*overflows to infinity", dtypes=BFLOAT16, multiple=(16, 16), release=True)
class SquareReciprocalInBfloat16(Square):
    def element(self, blocks, s, s_enc, t):
        factor = np.fmin(F(1) / (s * (F(1) / s_enc)), FLT_MAX)
        return blocks * factor.astype(BF16).astype(F)[:, :, None]


@mutant("", says="scaled elements are rounded to the input's type, in float16 only", dtypes=ALL, release=True)
class SquareElementsInHalf(Somewhere):
    right = Square

    class Wrong(Square):
        def encode(self, y):
            return super().encode(y.astype(np.float16).astype(F))

    inside = in_type("float16")
