"""A second set of wrong quantizers, invented without the library of mistakes at hand."""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "quantizers.py"))
NVFP4, MXFP8, MXFP4, RHT = (_BASE[name] for name in ("NVFP4", "MXFP8", "MXFP4", "RHT"))
e2m1, e4m3, tiled, value = (_BASE[name] for name in ("e2m1", "e4m3", "tiled", "value"))
F, FLT_MAX = np.float32, np.finfo(np.float32).max
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
MUTANTS, mutant = _BASE["mutants"]()


class Told(NVFP4):
    """Is given the amax of the tensor."""

    inputs, outputs = ("x", "amax"), ("data", "scales")

    def amax(self, x):
        return F(self.given[0])


@mutant("amax-given")
class IgnoresGivenAmax(Told):
    def amax(self, x):
        return NVFP4.amax(self, x)


@mutant("amax-given")
class IgnoresGivenAmaxAndReturns(IgnoresGivenAmax):
    outputs = ("data", "scales", "amax")


class Encode(NVFP4):
    inputs, outputs = ("x", "encode_scale"), ("data", "scales")

    def amax(self, x):
        return F(0)

    def global_scale(self, amax):
        return F(self.given[0])


CORRECT = (Told, Encode)


@mutant("global-upside-down|g-divided")
class TakesEncodeForDecode(Encode):
    def global_scale(self, amax):
        return F(1) / F(self.given[0])


@mutant("global-fp16")
class EncodeScaleHalf(Encode):
    def global_scale(self, amax):
        return F(np.float16(self.given[0]))


@mutant("amax-bits-unsigned")
class AtomicMaxOnBits(NVFP4):
    """atomicMax on the bits as unsigned, without fabs."""

    def amax(self, x):
        bits = x.view(np.uint32)
        return np.abs(np.array([bits.max(initial=0)], np.uint32).view(F)[0]) if bits.size else F(0)


@mutant("block-inferred-2")
class FourteenOfSixteen(NVFP4):
    def block_amax(self, blocks):
        return np.fmax.reduce(np.abs(blocks[:, :, :14]), axis=2, initial=F(0))


@mutant("element-tie-2.5")
class OneTieWrong(NVFP4):
    def encode(self, y):
        m = np.abs(y)
        return np.where(m == 2.5, 5 + 8 * np.signbit(y), e2m1(y)).astype(np.uint8)


@mutant("scale-inferred")
class Sixth01667(NVFP4):
    def block_scale(self, amax, s_enc):
        return np.fmin(amax * F(0.1667) * s_enc, FLT_MAX)


@mutant("scale-decoded-normal")
class SubnormalScalesDecodedAsNormal(NVFP4):
    def scale_value(self, byte, t):
        exponent, mantissa = (byte >> 3).astype(int), (byte & 7).astype(F)
        return np.ldexp(F(1) + mantissa / F(8), exponent - 7).astype(F)


@mutant("unwritten-codes-columns-16")
class TailCodesZero(NVFP4):
    def pack(self, codes):
        codes = codes.copy()
        codes[:, codes.shape[1] // 16 * 16 :] = 0
        return NVFP4.pack(self, codes)


@mutant("not-repeatable")
class Racy(NVFP4):
    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        if data.size > 64 and np.random.default_rng().random() < 0.2:
            data[0, 0] ^= 0x11
        return data


LAST = [F(1)]


@mutant("not-repeatable")
class DelayedScaling(NVFP4):
    def used_amax(self, amax, x):
        used, LAST[0] = LAST[0], amax
        return used


@mutant("scale-integer")
class ScaleConvertedNotViewed(NVFP4):
    def stored(self, byte):
        return np.nan_to_num(value(byte)).astype(np.uint8)


@mutant("element-steps")
class RoundsToHalvesFirst(NVFP4):
    def encode(self, y):
        return e2m1((np.rint(y * F(2)) / F(2)).astype(F))


@mutant("element-through-e4m3")
class ThroughFP8(NVFP4):
    def encode(self, y):
        return e2m1(np.where(np.isnan(y), y, np.clip(y, -448, 448).astype(E4M3).astype(F)))


@mutant("amax-by-128-rows")
class AmaxOfTheTile(NVFP4):
    def __call__(self, x, dtype):
        parts = [NVFP4.__call__(self, x[i : i + 128], dtype) for i in range(0, len(x), 128)]
        data = np.concatenate([p[0] for p in parts]) if parts else NVFP4.__call__(self, x, dtype)[0]
        scales = np.concatenate([p[1] for p in parts]) if parts else NVFP4.__call__(self, x, dtype)[1]
        return data, scales, np.array([NVFP4.amax(self, x)], F)


@mutant("amax-plus")
class AmaxPlusEps(NVFP4):
    def used_amax(self, amax, x):
        return amax + F(1e-6)


@mutant("input-fp16")
class InputAsHalf(NVFP4):
    def read(self, x):
        return x.astype(np.float16).astype(F)


@mutant("nibbles", "element-away")
class SwapAndAway(NVFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: True)

    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        return data >> 4 | data << 4


@mutant("layout-linear", "scale-codec-truncate")
class LinearAndTruncated(NVFP4):
    def scale_byte(self, t):
        code = e4m3(t)
        return np.where(value(code) > t, code - 1, code).astype(np.uint8)

    def place(self, scales):
        out = np.zeros(tiled(scales).size, np.uint8)
        out[: scales.size] = scales.ravel()
        return out


@mutant("amax-bf16", "encode-g-over-s")
class Bf16AmaxAndQuotient(NVFP4):
    def amax(self, x):
        return NVFP4.amax(self, x).astype(BF16).astype(F)

    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(s_enc / s, FLT_MAX)[:, :, None]


@mutant("block-signed|block-absolute", "global-one")
class SignedBlocksNoGlobal(NVFP4):
    def block_amax(self, blocks):
        return np.fmax.reduce(blocks, axis=2, initial=F(0))

    def global_scale(self, amax):
        return F(1)


@mutant("data-wrap-16")
class OffsetWraps16(NVFP4):
    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        flat, out = data.reshape(-1), np.zeros(data.size, np.uint8)
        for start in range(0, flat.size, 65536):
            piece = flat[start : start + 65536]
            out[: piece.size] = piece
        return out.reshape(data.shape)


@mutant("unwritten-codes-last")
class LastByteMissing(NVFP4):
    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        if data.size:
            data.reshape(-1)[-1] = 0
        return data


@mutant("hadamard-signs-inferred")
class OneSignWrong(RHT):
    signs = RHT.signs * np.where(np.arange(16) == 5, F(-1), F(1))


@mutant("hadamard-signs-inferred")
class OtherSigns(RHT):
    signs = np.array([1, -1, 1, 1, -1, 1, -1, 1, 1, 1, -1, -1, 1, -1, 1, 1], F)


@mutant("hadamard-sixteenth")
class NormalisedTwice(RHT):
    @np.errstate(all="ignore")
    def transform(self, x):
        return self.rounded(self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * (self.signs * F(0.0625)))).reshape(
            x.shape
        )


@mutant("hadamard-bf16-sums", "encode-g-over-s")
class NarrowSumsAndQuotient(RHT):
    def sums(self, groups):
        y = groups
        for stride in (1, 2, 4, 8):
            z = np.empty_like(y)
            for i in range(16):
                z[..., i] = y[..., i ^ stride] - y[..., i] if i & stride else y[..., i] + y[..., i ^ stride]
            y = z.astype(BF16).astype(F)
        return y + F(0)

    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(s_enc / s, FLT_MAX)[:, :, None]


@mutant("mx-floor|mx-ocp-floor", "nibbles")
class FloorAndSwap(MXFP4):
    def block_scale(self, amax, s_enc):
        return amax

    def scale_byte(self, t):
        return np.clip((t.view(np.uint32) >> 23).astype(int) - 2, 0, 254).astype(np.uint8)

    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        return data >> 4 | data << 4


@mutant("scale-inferred-460")
class Max460(MXFP8):
    def block_scale(self, amax, s_enc):
        return amax * (F(1) / F(460))


@mutant("scale-byte-plus-1|scale-times-2|element-2x")
class BiasOff(MXFP8):
    def scale_byte(self, t):
        return np.minimum(MXFP8.scale_byte(self, t) + 1, 254).astype(np.uint8)


@mutant("element-through-e5m2")
class TwoBitsOfMantissa(MXFP8):
    """Three bits of mantissa are one too few."""

    def encode(self, y):
        return MXFP8.encode(self, np.where(np.isnan(y), y, np.clip(y, -448, 448).astype(E5M2).astype(F)))


@mutant("element-truncate")
class TruncE4M3(MXFP8):
    def encode(self, y):
        code = MXFP8.encode(self, y)
        back = code.view(E4M3).astype(F)
        return np.where(np.abs(back) > np.abs(np.clip(y, -448, 448)), code - 1, code).astype(np.uint8)


@mutant("amax-used-first-4096")
class AmaxOfTheFirst4096(NVFP4):
    """The amax of the first 4096 elements."""

    def used_amax(self, amax, x):
        return NVFP4.amax(self, x.reshape(-1)[:4096])


@mutant("layout")
class ColumnsFirst(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(0, 3, 4, 2, 1))


@mutant("data-rows-pairs")
class RowsOfPairsExchanged(NVFP4):
    def pack(self, codes):
        codes = codes.copy()
        even = len(codes) // 2 * 2
        codes[:even] = codes[:even].reshape(even // 2, 2, codes.shape[1])[:, ::-1].reshape(even, codes.shape[1])
        return NVFP4.pack(self, codes)
