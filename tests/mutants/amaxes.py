"""Wrong quantizers: the tensor's maximum and the global scale."""

import runpy
from pathlib import Path

import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "kernels.py"))
BF16, Encode, F, FLT_MAX, MXFP8 = (_BASE[name] for name in ("BF16", "Encode", "F", "FLT_MAX", "MXFP8"))
NVFP4, RHT, RowScaled, Told, tiled = (_BASE[name] for name in ("NVFP4", "RHT", "RowScaled", "Told", "tiled"))
MUTANTS, mutant = _BASE["mutants"]()
CORRECT = ()


@mutant("amax-signed|amax-absolute")
class SignedAmax(NVFP4):
    def amax(self, x):
        return max(np.fmax.reduce(x, axis=None, initial=F(0)), F(0))


@mutant(
    "amax-last-row-of-64|amax-last-row-of-128", says="misses the last row where the number of rows is a multiple of 128"
)
class AmaxWithoutTheEndOfTheLastTile(NVFP4):
    """The number of rows of the last tile is rows % 128 - 1, which is -1 for a whole one."""

    def amax(self, x):
        return super().amax(x[:-1] if len(x) % 128 == 0 else x)


@mutant("amax-last-row-of-64|amax-last-row-of-128", says="misses the last row where the number of rows is a multiple")
class AmaxWithoutTheEndOfTheLastTileOf64(NVFP4):
    def amax(self, x):
        return super().amax(x[:-1] if len(x) % 64 == 0 else x)


@mutant("amax-last-row")
class AmaxWithoutLastRow(NVFP4):
    def amax(self, x):
        return super().amax(x[:-1] if len(x) > 1 else x)


@mutant("amax-tail-columns-16")
class AmaxWithoutTail(NVFP4):
    def amax(self, x):
        return super().amax(x[:, : x.shape[1] // 16 * 16])


@mutant("amax-bf16")
class AmaxBfloat16(NVFP4):
    def amax(self, x):
        return super().amax(x).astype(BF16).astype(F)


@mutant("amax-fp16")
class AmaxFloat16(NVFP4):
    def amax(self, x):
        return super().amax(x).astype(np.float16).astype(F)


@mutant("amax-row-used")
class OwnRowAmax(NVFP4):
    def __call__(self, x, dtype):
        parts = [NVFP4.__call__(self, row[None], dtype) for row in x]
        data = np.concatenate([part[0] for part in parts])
        return data, tiled(np.concatenate([self.linear[i] for i in range(-len(x), 0)])), np.array([self.amax(x)], F)

    def place(self, scales):
        self.linear = [*getattr(self, "linear", []), scales]
        return scales


@mutant("amax-reported-encode")
class TellsEncodeScale(NVFP4):
    def told(self, amax):
        return F(2688) / amax


@mutant("global-1536")
class Scale256(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(F(256 * 6) / amax, FLT_MAX) or F(1)


@mutant("global-3072")
class Scale512(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(F(512 * 6) / amax, FLT_MAX) or F(1)


@mutant("global-inferred-2700")
class Scale2700(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(F(2700) / amax, FLT_MAX) or F(1)


@mutant("global-reciprocal")
class GlobalByReciprocal(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(F(1) / amax * F(2688), FLT_MAX) or F(1)


@mutant("global-upside-down")
class GlobalUpsideDown(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(amax / F(2688), FLT_MAX) or F(1)


@mutant("global-one")
class NoGlobalScale(NVFP4):
    def global_scale(self, amax):
        return F(1)


@mutant("encode-g-over-s")
class EncodeQuotient(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(s_enc / s, FLT_MAX)[:, :, None]


@mutant("encode-over-product")
class EncodeDivision(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return blocks / (s * (F(1) / s_enc))[:, :, None]


@mutant("encode-unrounded")
class UnroundedScale(NVFP4):
    def scale_value(self, byte, t):
        return t


@mutant("encode-bf16")
class FactorBfloat16(NVFP4):
    def element(self, blocks, s, s_enc, t):
        factor = np.fmin(F(1) / (s * (F(1) / s_enc)), F(3.3895314e38)).astype(BF16).astype(F)
        return blocks * factor[:, :, None]


@mutant("encode-zero|encode-one|profile te.cpp_test_oracle|encode-not-finite")
class ZeroUnderflow(NVFP4):
    def element(self, blocks, s, s_enc, t):
        factor = np.where(s == 0, F(0), np.fmin(F(1) / (s * (F(1) / s_enc)), FLT_MAX))
        return blocks * factor[:, :, None]


@mutant("encode-unrounded|encode-max-over-amax")
class UnroundedMX(MXFP8):
    def scale_value(self, byte, t):
        return t


@mutant("amax-raw")
class AmaxBefore(RHT):
    def read(self, x):
        self.raw = super().amax(x)
        return self.transform(x)

    def amax(self, x):
        return self.raw


@mutant("amax-used-bf16")
class TensorAmaxBf16(NVFP4):
    def used_amax(self, amax, x):
        return F(BF16(amax))


@mutant("global-upside-down")
class GlobalInverted(NVFP4):
    def global_scale(self, amax):
        return F(1) if amax == 0 else np.fmin(F(amax) / F(2688), FLT_MAX)


@mutant("encode-global-one|encode-no-global")
class ElementsWithoutGlobal(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(F(1) / s, FLT_MAX)[:, :, None]


@mutant("amax-only-row")
class AmaxOfTheFirstRow(NVFP4):
    def amax(self, x):
        return np.fmax.reduce(np.abs(x[:1]), axis=None, initial=F(0))


@mutant("global-bf16")
class GlobalScaleBf16(NVFP4):
    def global_scale(self, amax):
        return F(BF16(super().global_scale(amax)))


@mutant("global-448")
class Only448(NVFP4):
    def global_scale(self, amax):
        s_enc = np.fmin(F(448) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc


@mutant("encode-unrounded")
class UnroundedScaleUsed(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(s_enc / t, FLT_MAX)[:, :, None]


@mutant("encode-fp16")
class ReciprocalHalf(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(F(1) / (s * (F(1) / s_enc)), FLT_MAX).astype(np.float16).astype(F)[:, :, None]


@mutant("encode-double")
class InDouble(NVFP4):
    """A C++ literal without an f: double from here on."""

    def element(self, blocks, s, s_enc, t):
        return (blocks.astype(np.float64) / (s.astype(np.float64) / np.float64(s_enc))[:, :, None]).astype(F)


@mutant("amax-row-reported|amax-tensor")
class TensorAmaxForRows(RowScaled):
    def __call__(self, x, dtype):
        self.whole = np.fmax.reduce(np.abs(x), axis=None, initial=F(0))
        return super().__call__(x, dtype)

    def used_amax(self, amax, x):
        return self.whole


@mutant("amax-given")
class IgnoresGivenAmax(Told):
    def amax(self, x):
        return NVFP4.amax(self, x)


@mutant("amax-given")
class IgnoresGivenAmaxAndReturns(IgnoresGivenAmax):
    outputs = ("data", "scales", "amax")


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


@mutant("amax-used-first-4096")
class AmaxOfTheFirst4096(NVFP4):
    """The amax of the first 4096 elements."""

    def used_amax(self, amax, x):
        return NVFP4.amax(self, x.reshape(-1)[:4096])


@mutant("amax-vectors-8", says="misses the elements past the last multiple of 8 of the whole tensor; [0-9]")
class AmaxInVectorsOfEight(NVFP4):
    """The grid-stride loop loads eight elements at a time of the flat tensor, and drops the rest."""

    def amax(self, x):
        flat = x.ravel()
        return np.fmax.reduce(np.abs(flat[: flat.size // 8 * 8]), initial=F(0))


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


@mutant("amax-by-128-rows")
class AmaxPerBlockOfThreads(NVFP4):
    """Every 128 rows use the maximum of their own."""

    def __call__(self, x, dtype):
        parts = [NVFP4.__call__(self, x[i : i + 128], dtype) for i in range(0, max(len(x), 1), 128)]
        data, scales = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        return data, scales, np.array([np.fmax.reduce([part[2][0] for part in parts])], F)


@mutant("encode-inferred-0.98")
class FactorOff(NVFP4):
    def element(self, blocks, s, s_enc, t):
        return super().element(blocks, s, s_enc, t) * F(0.98)


@mutant("amax-floor-inferred-0.5")
class AmaxAtLeastHalf(NVFP4):
    def used_amax(self, amax, x):
        return np.maximum(amax, F(0.5))


@mutant("amax-reported-previous-row")
class RowBefore(RowScaled):
    def __call__(self, x, dtype):
        data, scales, amax = super().__call__(x, dtype)
        return data, scales, np.roll(amax, 1)


@mutant("amax-first-64")
class ColumnsOfOneTile(NVFP4):
    """The reduction covers the first 64 columns of each row."""

    def amax(self, x):
        return np.fmax.reduce(np.abs(x[:, :64]), axis=None, initial=F(0))


@mutant("amax-raw")
class AmaxBeforeTheTransform(RHT):
    def read(self, x):
        self.before = np.fmax.reduce(np.abs(x), axis=None, initial=F(0))
        return self.transform(x)

    def amax(self, x):
        return self.before


@mutant("global-floor2")
class PowerOfTwoGlobal(NVFP4):
    """The global encode scale is rounded down to a power of two."""

    def global_scale(self, amax):
        s_enc = np.asarray(super().global_scale(amax), F)
        return (s_enc.view(np.uint32) & np.uint32(0xFF800000)).view(F)[()]
