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
MUTANTS, CORRECT = [], ()


def mutant(*names):
    def register(cls):
        cls.names = names
        MUTANTS.append(cls)
        return cls

    return register


@mutant("elements through E5M2")
class ElementsThroughE5M2(NVFP4):
    def encode(self, y):
        with np.errstate(over="ignore"):
            return e2m1(np.clip(y, -57344, 57344).astype(E5M2).astype(F))


@mutant("negative elements truncated")
class NegativeCut(NVFP4):
    """A conversion through unsigned integers: what is negative is cut off instead of rounded."""

    def encode(self, y):
        with np.errstate(invalid="ignore"):
            cut = np.searchsorted(GRID, np.abs(y), side="right") - 1
        return np.where((y < 0) & ~np.isnan(y), np.minimum(cut, 7) + 8, e2m1(y)).astype(np.uint8)


@mutant("one row of sixteen has its codes missing")
class LaneWithoutStore(NVFP4):
    def pack(self, codes):
        codes = codes.copy()
        codes[15::16] = 0
        return super().pack(codes)


@mutant("rows of data in the order of an MMA fragment")
class FragmentRows(NVFP4):
    def pack(self, codes):
        out = codes.copy()
        whole = len(codes) // 8 * 8
        groups = codes[:whole].reshape(whole // 8, 8, codes.shape[1])
        out[:whole] = groups[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(whole, codes.shape[1])
        return super().pack(out)


@mutant("block amax misses elements 3 and 11")
class TwoLanesMasked(NVFP4):
    def block_amax(self, blocks):
        seen = blocks.copy()
        seen[:, :, [3, 11]] = 0
        return super().block_amax(seen)


@mutant("elements are 0.98 times too small")
class FactorOff(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return super().element(blocks, s, s_enc, t) * F(0.98)


@mutant("scale rounded up above 1.5")
class HalfMantissa(MXFP4):
    """The exponent goes up where the mantissa of amax / 6 is above a half, not above nothing."""

    def scale_byte(self, t):
        bits = np.asarray(t, F).view(np.uint32)
        return np.minimum((bits >> 23) + ((bits & 0x7FFFFF) > 0x400000), 254).astype(np.uint8)


@mutant("neighbouring scales change places")
class ScalePairsSwapped(NVFP4):
    def place(self, scales):
        right = tiled(scales)
        return right.reshape(-1, 2)[:, ::-1].reshape(right.shape)


@mutant("scales of each 8 rows reversed")
class RowsOfEightReversed(MXFP8):
    def place(self, scales):
        right = tiled(scales)
        return right.reshape(-1, 8, 16)[:, ::-1].reshape(right.shape)


@mutant("zero block has scale byte 1")
class ZeroBlockByteOne(NVFP4):
    def scale_byte(self, t):
        return np.where(t == 0, 1, e4m3(t)).astype(np.uint8)


@mutant("NaN block has scale 0")
class NaNScaleZero(MXFP4):
    def block_amax(self, blocks):
        return np.max(np.abs(blocks), axis=2, initial=F(0))

    def scale_byte(self, t):
        return np.where(np.isnan(t), 0, super().scale_byte(t)).astype(np.uint8)


@mutant("eps of 3e-4 is added to block maxima")
class OddEps(MXFP8):
    def block_amax(self, blocks):
        return super().block_amax(blocks) + F(3e-4)


@mutant("amax of the tensor at least 0.5")
class AmaxAtLeastHalf(NVFP4):
    def used_amax(self, amax, x):
        return np.maximum(amax, F(0.5))


@mutant("elements of a group of 16 are reversed before the transform")
class ReversedLanes(RHT):
    def transform(self, x):
        return super().transform(x.reshape(len(x), x.shape[1] // 16, 16)[:, :, ::-1].reshape(x.shape))


@mutant("row below has the random bits")
class BitsOfNextRow(Stochastic):
    def drawn(self, bits):
        return np.roll(bits, -1, axis=0)


@mutant("random bits of the group's first element for all of four")
class OneDrawOfFour(Stochastic):
    def drawn(self, bits):
        return np.repeat(bits[:, :, ::4], 4, axis=2)


@mutant("error in bfloat16")
class ErrorBf16(FourOverSix):
    def error(self, q, s, amax, s_enc, x):
        made = (q * s[:, :, None] * amax / F(2688)).astype(BF16).astype(F)
        return self.total(np.abs(made - x))


@mutant("amax of the row before")
class RowBefore(RowScaled):
    def __call__(self, x, dtype):
        data, scales, amax = super().__call__(x, dtype)
        return data, scales, np.roll(amax, 1)


@mutant("scale by second largest")
class SecondLargest(NVFP4):
    def block_amax(self, blocks):
        return np.sort(np.abs(blocks), axis=2)[:, :, -2]


@mutant("xor layout", "ties away")
class XorAndAway(NVFP4):
    def place(self, scales):
        return XorLeftIn.place(self, scales)

    def encode(self, y):
        return e2m1(y, tie=lambda c, y: True)


@mutant("fragment order of elements", "scale truncated")
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


@mutant("negative elements truncated", "nibbles swapped")
class NegativeCutAndSwapped(NVFP4):
    def encode(self, y):
        return NegativeCut.encode(self, y)

    def pack(self, codes):
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        return codes[:, ::2] << 4 | codes[:, 1::2]
