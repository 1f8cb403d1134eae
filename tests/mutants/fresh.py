"""A third set of wrong quantizers, as authors of Triton, CUDA and RTL kernels write them."""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "quantizers.py"))
NVFP4, MXFP8, MXFP4, RHT, Stochastic = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Stochastic"))
e2m1, e4m3, tiled, value = (_BASE[name] for name in ("e2m1", "e4m3", "tiled", "value"))
F, FLT_MAX = np.float32, np.finfo(np.float32).max
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("element-bf16")
class TritonElementsInBfloat16(NVFP4):
    """tl.load gives bfloat16, and the product with the reciprocal stays in it."""

    def encode(self, y):
        return e2m1(y.astype(BF16).astype(F))


@mutant("element-inferred|element-subnormal")
class SmallestElementTruncated(NVFP4):
    """The subnormal of E2M1 is cut off instead of rounded."""

    def encode(self, y):
        magnitude = np.abs(y)
        code = e2m1(y)
        return np.where(magnitude < 1, (code & 8) | (magnitude >= 0.5), code).astype(np.uint8)


@mutant("block-own-2-first")
class LastShuffleMissing(NVFP4):
    """Two threads share a block and do not exchange their maxima; the first one stores the scale."""

    def __call__(self, x, dtype):
        amax = self.amax(x)
        s_enc = self.global_scale(amax)
        blocks = self.blocks(x)
        halves = [blocks[:, :, :8], blocks[:, :, 8:]]
        bytes_ = [self.scale_byte(self.block_scale(self.block_amax(half), s_enc)) for half in halves]
        codes = [
            self.encode(self.element(half, value(byte), s_enc, None)) for half, byte in zip(halves, bytes_, strict=True)
        ]
        flat = np.concatenate(codes, axis=2).reshape(len(x), blocks.shape[1] * 16)[:, : x.shape[1]]
        return self.pack(flat), self.place(bytes_[0]), np.array([amax], F)


@mutant("amax-tail-flat")
class AmaxInVectorsOfEight(NVFP4):
    """The grid-stride loop loads eight elements at a time of the flat tensor, and drops the rest."""

    def amax(self, x):
        flat = x.ravel()
        return np.fmax.reduce(np.abs(flat[: flat.size // 8 * 8]), initial=F(0))


@mutant("layout-unpadded")
class TilesOfAWidthRoundedDown(NVFP4):
    """A row of tiles starts where columns // 4 tiles of the one before would end."""

    def place(self, scales):
        columns = scales.shape[1]
        right = tiled(scales)
        above, across = right.shape[0] // 128, right.shape[1] // 4
        tiles = right.reshape(above, across, 512)
        out = np.zeros(right.size, np.uint8)
        for i in range(above):
            for j in range(across):
                start = (i * max(columns // 4, 1) + j) * 512
                out[start : start + 512] = tiles[i, j]
        return out.reshape(right.shape)


@mutant("data-halves-16")
class NibblesEightApart(NVFP4):
    """The two nibbles of a byte come from the two halves of a block."""

    def pack(self, codes):
        width = codes.shape[1]
        codes = np.pad(codes, ((0, 0), (0, -width % 16)))
        groups = codes.reshape(len(codes), codes.shape[1] // 16, 16)
        packed = (groups[:, :, :8] | groups[:, :, 8:] << 4).reshape(len(codes), codes.shape[1] // 2)
        return packed[:, : (width + 1) // 2]


@mutant("padding")
class PaddingRepeatsTheLastRow(NVFP4):
    """Row indices are clamped, not masked, where scales are stored."""

    def place(self, scales):
        rows = -(-len(scales) // 128) * 128
        return tiled(scales[np.minimum(np.arange(rows), len(scales) - 1)] if len(scales) else scales)


@mutant("mx-strict")
class AlwaysTheNextExponent(MXFP8):
    """The scale is the exponent of amax, and one more, always."""

    def scale_byte(self, t):
        exponent = np.asarray(t, F).view(np.uint32) >> 23
        return np.minimum(exponent + 1, 254).astype(np.uint8)


@mutant("used-pair")
class NeighbourSharesScale(NVFP4):
    """Elements index the scales by 32, as for MXFP4; scales are stored for 16."""

    def element(self, blocks, s, s_enc, t):
        shared = s[:, np.arange(s.shape[1]) // 2 * 2]
        return super().element(blocks, shared, s_enc, t)


@mutant("layout-transposed")
class ScalesStoredTransposed(NVFP4):
    layout = "linear"

    def place(self, scales):
        return np.ascontiguousarray(scales.T).reshape(scales.shape)


@mutant("scale-fnuz")
class ScalesInFnuz(NVFP4):
    """The FP8 cast of another vendor: bias 8, largest 240."""

    def scale_byte(self, t):
        return np.minimum(t, F(240)).astype(ml_dtypes.float8_e4m3fnuz).view(np.uint8)

    def scale_value(self, byte, t):
        return byte.view(ml_dtypes.float8_e4m3fnuz).astype(F)


@mutant("scale-bytes-reversed-4")
class ScaleWordsBigEndian(NVFP4):
    """Four scales of a row make a 32-bit word, the first in its high byte."""

    def place(self, scales):
        padded = np.pad(scales, ((0, 0), (0, -scales.shape[1] % 4)))
        return tiled(padded.reshape(len(scales), padded.shape[1] // 4, 4)[:, :, ::-1].reshape(padded.shape))


@mutant("block-tail-next-row")
class TailReadsNextRow(NVFP4):
    """No mask in the last block of a row: its amax sees the head of the next row."""

    def block_amax(self, blocks):
        short = -self.columns % 16
        memory = np.concatenate([self.x.ravel(), np.zeros(short, F)])
        tails = [memory[(row + 1) * self.columns :][:short] for row in range(len(self.x))]
        if short and tails:
            blocks = blocks.copy()
            blocks[:, -1, 16 - short :] = tails
        return super().block_amax(blocks)

    def read(self, x):
        self.x, self.columns = x, x.shape[1]
        return x


@mutant("element-away", "layout-128x4-inner")
class TiesAwayAndRowDigitsSwapped(NVFP4):
    """Two at once: halves are added and cut off, and the tile's two digits of a row change places."""

    def encode(self, y):
        return e2m1(y, tie=lambda c, y: True)

    def place(self, scales):
        return tiled(scales, order=(0, 3, 1, 2, 4))


@mutant("encode-xg-rs")
class TwoMultiplications(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return (blocks * s_enc) * np.fmin(F(1) / s, FLT_MAX)[:, :, None]


@mutant("encode-decode-amax")
class DecodeScaleFromAmax(NVFP4):
    """amax / 2688 instead of the reciprocal of the encode scale."""

    def global_scale(self, amax):
        self.decode = F(amax) / F(2688) if amax else F(1)
        return super().global_scale(amax)

    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(F(1) / (s * self.decode), FLT_MAX)[:, :, None]


@mutant("element-fp16")
class ElementsThroughHalf(MXFP8):
    def encode(self, y):
        return super().encode(y.astype(np.float16).astype(F))


@mutant("amax-by-128-rows")
class AmaxPerBlockOfThreads(NVFP4):
    """Every 128 rows use the maximum of their own."""

    def __call__(self, x, dtype):
        parts = [NVFP4.__call__(self, x[i : i + 128], dtype) for i in range(0, max(len(x), 1), 128)]
        data, scales = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        return data, scales, np.array([np.fmax.reduce([part[2][0] for part in parts])], F)


@mutant("hadamard-size-8")
class HadamardOfEight(RHT):
    """One butterfly too few, with its own norm."""

    def transform(self, x):
        groups = x.reshape(len(x), x.shape[1] // 8, 8) * (
            np.tile(self.signs.reshape(2, 8), (x.shape[1] // 16, 1)) * F(8**-0.5)
        )
        for stride in (1, 2, 4):
            z = np.empty_like(groups)
            for i in range(8):
                z[..., i] = (
                    groups[..., i ^ stride] - groups[..., i] if i & stride else groups[..., i] + groups[..., i ^ stride]
                )
            groups = z
        return self.rounded(groups + F(0)).reshape(x.shape)


@mutant("stored-late-rolled")
class ScalesOneBlockLate(NVFP4):
    """The store is one step of the pipeline behind: a block's scale lies where the next block's should."""

    def stored(self, byte):
        return np.roll(byte, 1, axis=1)


@mutant("bits-reversed-4")
class RandomWordsBigEndian(Stochastic):
    """Four random bytes make a word, and the first element takes the high one."""

    def drawn(self, bits):
        return bits.reshape(*bits.shape[:2], bits.shape[2] // 4, 4)[..., ::-1].reshape(bits.shape)


@mutant("global-1440", "element-truncate")
class ConstantOfFnuzAndTruncatedElements(NVFP4):
    """Two at once: 240 * 6 instead of 448 * 6 in the global scale, and elements that are cut off."""

    def global_scale(self, amax):
        s_enc = np.fmin(F(1440) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc

    def encode(self, y):
        code = np.searchsorted([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.abs(y).astype(np.float64), side="right") - 1
        return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)
