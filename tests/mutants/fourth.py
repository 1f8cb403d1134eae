"""A fifth set of wrong quantizers: places, residues, policies and thresholds that nobody has a name for."""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "third.py"))
NVFP4, MXFP8, MXFP4, RHT, Stochastic = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT", "Stochastic"))
RowScaled, FourOverSix, XorLeftIn = (_BASE[name] for name in ("RowScaled", "FourOverSix", "XorLeftIn"))
e2m1, e4m3, tiled, value = (_BASE[name] for name in ("e2m1", "e4m3", "tiled", "value"))
F, FLT_MAX, GRID = np.float32, np.finfo(np.float32).max, _BASE["GRID"]
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("element-through-e5m2")
class ElementsThroughE5M2(NVFP4):
    def encode(self, y):
        with np.errstate(over="ignore"):
            return e2m1(np.clip(y, -57344, 57344).astype(E5M2).astype(F))


@mutant("element-inferred")
class NegativeCut(NVFP4):
    """A conversion through unsigned integers: what is negative is cut off instead of rounded."""

    def encode(self, y):
        with np.errstate(invalid="ignore"):
            cut = np.searchsorted(GRID, np.abs(y), side="right") - 1
        return np.where((y < 0) & ~np.isnan(y), np.minimum(cut, 7) + 8, e2m1(y)).astype(np.uint8)


@mutant("unwritten-codes-inferred-rows-modulo-16")
class LaneWithoutStore(NVFP4):
    def pack(self, codes):
        codes = codes.copy()
        codes[15::16] = 0
        return super().pack(codes)


@mutant("data-order-inferred-8-rows")
class FragmentRows(NVFP4):
    def pack(self, codes):
        out = codes.copy()
        whole = len(codes) // 8 * 8
        groups = codes[:whole].reshape(whole // 8, 8, codes.shape[1])
        out[:whole] = groups[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(whole, codes.shape[1])
        return super().pack(out)


@mutant("block-inferred-2")
class TwoLanesMasked(NVFP4):
    def block_amax(self, blocks):
        seen = blocks.copy()
        seen[:, :, [3, 11]] = 0
        return super().block_amax(seen)


@mutant("encode-inferred-0.98")
class FactorOff(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return super().element(blocks, s, s_enc, t) * F(0.98)


@mutant("scale-codec-down")
class HalfMantissa(MXFP4):
    """The exponent goes up where the mantissa of amax / 6 is above a half, not above nothing."""

    def scale_byte(self, t):
        bits = np.asarray(t, F).view(np.uint32)
        return np.minimum((bits >> 23) + ((bits & 0x7FFFFF) > 0x400000), 254).astype(np.uint8)


@mutant("scale-bytes-reversed-2|layout-inferred-2")
class ScalePairsSwapped(NVFP4):
    def place(self, scales):
        right = tiled(scales)
        return right.reshape(-1, 2)[:, ::-1].reshape(right.shape)


@mutant("layout-inferred-128")
class RowsOfEightReversed(MXFP8):
    def place(self, scales):
        right = tiled(scales)
        return right.reshape(-1, 8, 16)[:, ::-1].reshape(right.shape)


@mutant("scale-zero-2^-9|scale-zero-inferred")
class ZeroBlockByteOne(NVFP4):
    def scale_byte(self, t):
        return np.where(t == 0, 1, e4m3(t)).astype(np.uint8)


@mutant("scale-nan-00|scale-nan-inferred")
class NaNScaleZero(MXFP4):
    def block_amax(self, blocks):
        return np.max(np.abs(blocks), axis=2, initial=F(0))

    def scale_byte(self, t):
        return np.where(np.isnan(t), 0, super().scale_byte(t)).astype(np.uint8)


@mutant("block-plus-inferred-0.0003")
class OddEps(MXFP8):
    def block_amax(self, blocks):
        return super().block_amax(blocks) + F(3e-4)


@mutant("amax-floor-inferred-0.5")
class AmaxAtLeastHalf(NVFP4):
    def used_amax(self, amax, x):
        return np.maximum(amax, F(0.5))


@mutant("hadamard-inferred-inputs")
class ReversedLanes(RHT):
    def transform(self, x):
        return super().transform(x.reshape(len(x), x.shape[1] // 16, 16)[:, :, ::-1].reshape(x.shape))


@mutant("bits-inferred-shift-1-0")
class BitsOfNextRow(Stochastic):
    def drawn(self, bits):
        return np.roll(bits, -1, axis=0)


@mutant("bits-inferred-4")
class OneDrawOfFour(Stochastic):
    def drawn(self, bits):
        return np.repeat(bits[:, :, ::4], 4, axis=2)


@mutant("search-value-bf16")
class ErrorBf16(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        made = (q * s[:, :, None] * amax / F(2688)).astype(BF16).astype(F)
        return self.total(np.abs(made - x))


@mutant("amax-reported-previous-row")
class RowBefore(RowScaled):
    def __call__(self, x, dtype):
        data, scales, amax = super().__call__(x, dtype)
        return data, scales, np.roll(amax, 1)


@mutant("block-rank-2")
class SecondLargest(NVFP4):
    def block_amax(self, blocks):
        return np.sort(np.abs(blocks), axis=2)[:, :, -2]


@mutant("layout-inferred-64", "element-away")
class XorAndAway(NVFP4):
    def place(self, scales):
        return XorLeftIn.place(self, scales)

    def encode(self, y):
        return e2m1(y, tie=lambda c, y: True)


@mutant("data-order-inferred-8", "scale-codec-truncate")
class FragmentAndCut(NVFP4):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(value(byte) > t, byte - 1, byte).astype(np.uint8)

    def pack(self, codes):
        width = codes.shape[1] // 8 * 8
        out = codes.copy()
        groups = codes[:, :width].reshape(len(codes), width // 8, 8)
        out[:, :width] = groups[:, :, [0, 1, 4, 5, 2, 3, 6, 7]].reshape(len(codes), width)
        return super().pack(out)


@mutant("element-inferred", "nibbles|data-order-inferred-2")
class NegativeCutAndSwapped(NVFP4):
    def encode(self, y):
        return NegativeCut.encode(self, y)

    def pack(self, codes):
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        return codes[:, ::2] << 4 | codes[:, 1::2]
