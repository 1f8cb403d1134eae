"""Wrong quantizers: the block scale, its byte, and the scale that elements are divided by."""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
BF16, E5M2, F, FLT_MAX, MXFP4 = (_BASE[name] for name in ("BF16", "E5M2", "F", "FLT_MAX", "MXFP4"))
MXFP8, NVFP4, e4m3, tiled, value = (_BASE[name] for name in ("MXFP8", "NVFP4", "e4m3", "tiled", "value"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("decode-6-g-sg")
class DecodeConvention(NVFP4):
    def block_scale(self, amax, s_enc):
        self.g = self.total / F(2688)
        return amax / F(6) / self.g

    def element(self, blocks, s, s_enc, t):
        return blocks / (s * self.g)[:, :, None]

    def global_scale(self, amax):
        self.total = F(amax)
        return F(1)


@mutant("scale-division|profile flashinfer.ref_nvfp4_te")
class DividedBySix(NVFP4):
    def block_scale(self, amax, s_enc):
        return np.fmin(amax / F(6) * s_enc, FLT_MAX)


@mutant("scale-product-first")
class OtherOrder(NVFP4):
    def block_scale(self, amax, s_enc):
        return np.fmin(s_enc * (amax * (F(1) / F(6))), FLT_MAX)


@mutant("scale-4")
class QuarterInstead(NVFP4):
    def block_scale(self, amax, s_enc):
        return np.fmin(amax * (s_enc * F(0.25)), FLT_MAX)


@mutant("scale-upside-down|scale-decoded|scale-no-global")
class WithoutGlobal(NVFP4):
    def block_scale(self, amax, s_enc):
        return amax / F(6)


@mutant("scale-double-fp16")
class ThroughFloat16(NVFP4):
    def scale_byte(self, t):
        return e4m3(t.astype(np.float16).astype(F))


@mutant("scale-double-bf16")
class ThroughBfloat16(NVFP4):
    def scale_byte(self, t):
        return e4m3(t.astype(BF16).astype(F))


@mutant("scale-codec-truncate")
class ScaleTruncated(NVFP4):
    def scale_byte(self, t):
        code = e4m3(t)
        return np.where(value(code) > t, code - 1, code).astype(np.uint8)


@mutant("scale-codec-up")
class ScaleUp(NVFP4):
    def scale_byte(self, t):
        code = e4m3(t)
        return np.where((value(code) < t) & (code < 0x7E), code + 1, code).astype(np.uint8)


@mutant("scale-floor-0.0156|scale-normal")
class ScaleFloor(NVFP4):
    def scale_byte(self, t):
        return e4m3(np.maximum(t, F(2.0**-6)))


@mutant("scale-e5m2")
class ScaleE5M2(NVFP4):
    def scale_byte(self, t):
        return np.minimum(t, F(57344)).astype(E5M2).view(np.uint8)

    def scale_value(self, byte, t):
        return value(byte, E5M2)


@mutant("scale-flush")
class ScaleFlush(NVFP4):
    def scale_byte(self, t):
        code = e4m3(t)
        return np.where(code < 8, 0, code).astype(np.uint8)


@mutant("scale-zero-1|block-zero-one|scale-byte-zero-1")
class ZeroBlockOne(NVFP4):
    def scale_byte(self, t):
        return e4m3(np.where(t == 0, F(1), t))


@mutant("scale-byte-minus-1|scale-stored-minus-1")
class ByteOffByOne(NVFP4):
    def stored(self, byte):
        return np.where(byte > 0, byte - 1, 0).astype(np.uint8)


@mutant("used-next")
class NextBlocksScale(NVFP4):
    def scale_value(self, byte, t):
        s = value(byte)
        return np.concatenate([s[:, 1:], s[:, -1:]], axis=1)


@mutant("used-rows-128|stored-rows-128")
class FirstTileOnly(NVFP4):
    def scale_value(self, byte, t):
        return value(byte)[np.arange(len(byte)) % 128]


@mutant("mx-floor|mx-ocp-floor")
class Floor(MXFP8):
    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        return np.clip((t.view(np.uint32) >> 23).astype(int) - self.emax, 0, 254).astype(np.uint8)


@mutant("mx-floor|mx-ocp-floor")
class FloorFour(MXFP4):
    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        return np.clip((t.view(np.uint32) >> 23).astype(int) - 2, 0, 254).astype(np.uint8)


@mutant("mx-even|mx-even-1|mx-ocp-even")
class Even(MXFP4):
    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        return np.clip((t.view(np.uint32) + 0x200000 >> 23).astype(int) - 2, 0, 254).astype(np.uint8)


@mutant("scale-stored-minus-1")
class Bias126(MXFP4):
    def stored(self, byte):
        return np.maximum(byte.astype(int) - 1, 0).astype(np.uint8)


@mutant("scale-codec-away")
class ScaleTiesAway(NVFP4):
    """Integer rounding of the mantissa: add half of the last place and cut."""

    def scale_byte(self, t):
        byte = e4m3(t)
        above = np.minimum(byte + 1, 0x7E).astype(np.uint8)
        middle = (value(byte).astype(np.float64) + value(above)) / 2
        return np.where((t == middle) & (byte < 0x7E), above, byte).astype(np.uint8)


@mutant("mx-quotient-round")
class NearestExponent(MXFP4):
    def scale_byte(self, t):
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = np.rint(np.log2(t.astype(np.float64)))
        return np.where(t > 0, np.clip(np.nan_to_num(exponent, posinf=127) + 127, 0, 254), 0).astype(np.uint8)


@mutant("mx-ceil-no-emax")
class ForgotEmax(MXFP8):
    def block_scale(self, amax, s_enc):
        return amax


@mutant("scale-byte-zero-1")
class ZeroScaleOne(NVFP4):
    def scale_byte(self, t):
        byte = e4m3(t)
        return np.where(byte == 0, 0x38, byte).astype(np.uint8)


@mutant("scale-factor-inferred", says="0.1667 instead of 1 / 6")
class Sixth01667(NVFP4):
    def block_scale(self, amax, s_enc):
        return np.fmin(amax * F(0.1667) * s_enc, FLT_MAX)


@mutant("scale-decoded-normal")
class SubnormalScalesDecodedAsNormal(NVFP4):
    def scale_value(self, byte, t):
        exponent, mantissa = (byte >> 3).astype(int), (byte & 7).astype(F)
        return np.ldexp(F(1) + mantissa / F(8), exponent - 7).astype(F)


@mutant("scale-integer")
class ScaleConvertedNotViewed(NVFP4):
    def stored(self, byte):
        return np.nan_to_num(value(byte)).astype(np.uint8)


@mutant("scale-inferred-460")
class Max460(MXFP8):
    def block_scale(self, amax, s_enc):
        return amax * (F(1) / F(460))


@mutant("scale-byte-plus-1|scale-times-2|element-2x")
class BiasOff(MXFP8):
    def scale_byte(self, t):
        return np.minimum(MXFP8.scale_byte(self, t) + 1, 254).astype(np.uint8)


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


@mutant("mx-even")
class EvenScales(MXFP4):
    """The mantissa is rounded as E2M1 would round it, then its exponent is taken."""

    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        bits = (np.asarray(t, F).view(np.uint32).astype(np.int64) + 0x200000) >> 23
        return np.where(np.isnan(t), 255, np.clip(bits - 2, 0, 254)).astype(np.uint8)


@mutant("mx-log-floor|mx-floor")
class Log2OfTheQuotient(MXFP8):
    """floor(log2(amax)) - emax, clamped."""

    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = np.floor(np.log2(np.asarray(t, F)))
        return np.where(np.isnan(t), 255, np.clip(np.nan_to_num(exponent, neginf=-200) - 8 + 127, 0, 254)).astype(
            np.uint8
        )


@mutant("scale-zero-inferred|scale-zero-nan")
class ZeroOverZero(NVFP4):
    """A block of zeros divides by its own amax."""

    def scale_byte(self, t):
        return np.where(t == 0, 0x7F, e4m3(t)).astype(np.uint8)
