"""Wrong causes that hold for few inputs: special maxima, far rows, scales of another block, the first elements only.

`says` matches the cause and the place in the headline.
"""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "unseen_elements.py"))
NVFP4, MXFP8, Square, Rows = (_BASE[name] for name in ("NVFP4", "MXFP8", "Square", "Rows"))
F, ALL, FLT_MAX = (_BASE[name] for name in ("F", "ALL", "FLT_MAX"))
mutant, MUTANTS = _BASE["mutant"], _BASE["MUTANTS"]
MUTANTS.clear()
CORRECT, RELEASE = (), True


@mutant("global-inf-zero", says="wrong on NaN, Inf only: S_enc is 0 for an infinite amax; .* cases fail")
class InfiniteAmaxHasNoRule(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(F(2688) / F(amax), FLT_MAX)


@mutant("block-nan-scales", says="wrong on NaN only: block maxima keep NaN.*in float16 only; .* cases fail", dtypes=ALL)
class NaNInMaximaOfHalves(NVFP4):
    def block_amax(self, blocks):
        found = super().block_amax(blocks)
        lost = np.isnan(blocks).any(axis=2) & (self.dtype.name == "float16")
        return np.where(lost, F(np.nan), found)

    def block_scale(self, amax, s_enc):
        return np.minimum(amax * (s_enc * (F(1) / F(6))), FLT_MAX)


@mutant("encode-flush-inputs", says="flushed.*when they are scaled.*in bfloat16 only", dtypes=ALL)
class BrainSubnormalsAreScaledAsZeros(NVFP4):
    def element(self, blocks, s, s_enc, t):
        small = (np.abs(blocks) < np.finfo(F).tiny) & (self.dtype.name == "bfloat16")
        return super().element(np.where(small, np.copysign(F(0), blocks), blocks), s, s_enc, t)


@mutant("encode-zero-block-positive", says="all codes of a block whose maximum is 0 are 0")
class ZeroBlocksAreCleared(MXFP8):
    def element(self, blocks, s, s_enc, t):
        found = super().element(blocks, s, s_enc, t)
        return np.where(self.block_amax(blocks)[:, :, None] == 0, F(0), found)


@mutant(
    "encode-of-block-16-before",
    says="scaled with the scale of block - 16; .* right, where (block % 32 >= 16|column % 512 >= 256)",
)
class LanesShareTheHalfWarpsScale(NVFP4):
    def element(self, blocks, s, s_enc, t):
        block = np.arange(s.shape[1])
        return super().element(blocks, s[:, np.where(block % 32 >= 16, block - 16, block)], s_enc, t)


@mutant("encode-global-tiles-4", says="where elements are scaled, every row uses the global scale of the first row of")
class GlobalScaleOfTheFirstOfFourRows(Rows):
    def element(self, blocks, s, s_enc, t):
        return super().element(blocks, s, s_enc[np.arange(len(s_enc)) // 4 * 4], t)


@mutant("amax-first-2^12", says="that of the first 2.12 elements of the tensor only")
class AmaxOfTheFirstElements(NVFP4):
    def amax(self, x):
        return super().amax(x.reshape(-1)[: 1 << 12])


@mutant("input-row-modulo-16-after", says="rows from 65,536 on are read at row - 65,536 of x; the amax is that of all")
class RowIsReadWithSixteenBits(NVFP4):
    largest = 1 << 21

    def blocks(self, x):
        return super().blocks(x[np.arange(len(x)) % 65536])


@mutant("input-column-modulo-16-after", says="columns from 65,536 on are read at column - 65,536 of x")
class ColumnIsReadWithSixteenBits(NVFP4):
    largest = 1 << 21

    def blocks(self, x):
        return super().blocks(x[:, np.arange(x.shape[1]) % 65536])
