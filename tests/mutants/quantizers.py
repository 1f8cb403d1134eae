"""Two plain quantizers, written from the standard and not from the golden model, and what is wrong with them.

Every mutant overrides one method or two, as a kernel's author would get it wrong. `names` are the mistakes that the
diagnosis is to name first, any one of each group.
"""

import ml_dtypes
import numpy as np

F = np.float32
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
FLT_MAX = np.finfo(F).max
HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12])  # the values of E2M1, doubled


def e2m1(y, tie=None):
    """Nearest, ties to the even code; saturates; NaN is 7."""
    magnitude = np.abs(y)
    code = np.zeros(y.shape, np.uint8)
    for c, middle in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        up = magnitude >= middle if (c % 2 if tie is None else tie(c, y)) is True else magnitude > middle
        if tie is None:
            up = magnitude >= middle if c % 2 else magnitude > middle
        elif not isinstance(tie(c, y), bool):
            up = np.where(tie(c, y), magnitude >= middle, magnitude > middle)
        code += up
    code = np.where(np.isnan(y), 7, code + 8 * np.signbit(y))
    return code.astype(np.uint8)


def e4m3(t, top=448):
    """Nearest even, saturating; NaN is 0x7F."""
    code = np.minimum(t, F(top)).astype(E4M3).view(np.uint8)
    return np.where(np.isnan(t), 0x7F, code).astype(np.uint8)


def value(code, form=E4M3):
    return code.view(form).astype(F)


def tiled(scales, high=128, order=(0, 3, 2, 1, 4), inner=32):
    """[rows, blocks] in tiles of `high` x 4; order of (tile row, row // 32, row % 32, tile column, column)."""
    rows, columns = scales.shape
    padded = np.zeros((-(-rows // high) * high, -(-columns // 4) * 4), np.uint8)
    padded[:rows, :columns] = scales
    inner = min(inner, high)
    digits = padded.reshape(padded.shape[0] // high, high // inner, inner, padded.shape[1] // 4, 4)
    return digits.transpose(order).reshape(padded.shape)


class NVFP4:
    """Blocks of 16, E4M3 scales, a global scale."""

    spec, layout, size, direction = "nvfp4", "tiled_128x4", 16, "row"

    def __call__(self, x, dtype):
        self.dtype = dtype
        x = self.read(x)
        amax = self.amax(x)
        s_enc = self.global_scale(self.used_amax(amax, x))
        blocks = self.blocks(x)
        t = self.block_scale(self.block_amax(blocks), s_enc)
        byte = self.scale_byte(t)
        s = self.scale_value(byte, t)
        codes = self.encode(self.element(blocks, s, s_enc, t)).reshape(len(x), blocks.shape[1] * self.size)[
            :, : x.shape[1]
        ]
        return self.pack(codes), self.place(self.stored(byte)), np.array([self.told(amax)], F)

    def read(self, x):
        return x

    def amax(self, x):
        return np.fmax.reduce(np.abs(x), axis=None, initial=F(0))

    def used_amax(self, amax, x):
        return amax

    def told(self, amax):
        return amax

    def global_scale(self, amax):
        s_enc = np.fmin(F(2688) / F(amax), FLT_MAX)
        return F(1) if amax == 0 or s_enc == 0 else s_enc

    def blocks(self, x):
        width = -(-x.shape[1] // self.size)
        return np.pad(x, ((0, 0), (0, -x.shape[1] % self.size))).reshape(len(x), width, self.size)

    def block_amax(self, blocks):
        return np.fmax.reduce(np.abs(blocks), axis=2, initial=F(0))

    def block_scale(self, amax, s_enc):
        return np.fmin(amax * (s_enc * (F(1) / F(6))), FLT_MAX)

    def scale_byte(self, t):
        return e4m3(t)

    def scale_value(self, byte, t):
        return value(byte)

    def stored(self, byte):
        return byte

    def element(self, blocks, s, s_enc, t):
        return blocks * np.fmin(F(1) / (s * (F(1) / s_enc)), FLT_MAX)[:, :, None]

    def encode(self, y):
        return e2m1(y)

    def pack(self, codes):
        codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
        return codes[:, ::2] | codes[:, 1::2] << 4

    def place(self, scales):
        return tiled(scales)


class MXFP8(NVFP4):
    """Blocks of 32, scales that are powers of two, 8-bit elements."""

    spec, size, top, form, emax = "mxfp8-e4m3", 32, 448, E4M3, 8

    def __call__(self, x, dtype):
        data, scales, _ = super().__call__(x, dtype)
        return data, scales, None

    def block_scale(self, amax, s_enc):
        return amax * (F(1) / F(self.top))

    def scale_byte(self, t):
        bits = np.asarray(t, F).view(np.uint32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        exponent = np.where(t <= F(2.0**-127), 0, np.where(exponent == 0, 1, exponent))
        return np.minimum(exponent, 254).astype(np.uint8)

    def scale_value(self, byte, t):
        return np.ldexp(F(1), byte.astype(int) - 127)

    def element(self, blocks, s, s_enc, t):
        return blocks / s[:, :, None]

    def encode(self, y):
        code = np.clip(y, -self.top, self.top).astype(self.form).view(np.uint8)
        return np.where(np.isnan(y), 0x7F, code).astype(np.uint8)

    def pack(self, codes):
        return codes


class MXFP4(MXFP8):
    spec, top, emax = "mxfp4", 6, 2
    encode = NVFP4.encode
    pack = NVFP4.pack


class RHT(NVFP4):
    """The column direction under a Hadamard transform: x^T comes in."""

    spec, direction = "nvfp4-rht", "column"
    signs = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], F)

    def read(self, x):
        return self.transform(x)

    def transform(self, x):
        return self.rounded(self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * (self.signs * F(0.25)))).reshape(
            x.shape
        )

    def sums(self, groups):
        y = groups
        for stride in (1, 2, 4, 8):
            z = np.empty_like(y)
            for i in range(16):
                z[..., i] = y[..., i ^ stride] - y[..., i] if i & stride else y[..., i] + y[..., i ^ stride]
            y = z
        return y + F(0)

    def rounded(self, y):
        return y.astype(BF16).astype(F)


class Stochastic(NVFP4):
    spec = "nvfp4-stochastic"

    def encode(self, y):
        bits = np.pad(self.bits, ((0, 0), (0, -self.bits.shape[1] % 16))).reshape(y.shape)
        magnitude = np.abs(y)
        step = np.where(magnitude >= 4, F(2), np.where(magnitude >= 2, F(1), F(0.5)))
        moved = (magnitude.astype(np.float64) + step * self.drawn(bits) / 256).astype(F)
        code = np.searchsorted(HALVES, 2 * moved.astype(np.float64), side="right") - 1
        code = np.minimum(code, 7) + 8 * np.signbit(y)
        return np.where(np.isnan(y), 7, code).astype(np.uint8)

    def drawn(self, bits):
        return bits


class Divides(MXFP8):
    """Another way to the same bytes: no amax tells the quotient from the product."""

    def block_scale(self, amax, s_enc):
        return amax / F(448)


CORRECT = (NVFP4, MXFP8, MXFP4, RHT, Stochastic, Divides)


def mutants():
    """An empty list, and the decorator that enters a kernel in it.

    Its arguments: each is one mistake, several names of one mistake joined by |; says: what the headline holds.
    """
    kernels = []

    def mutant(*names, says=""):
        def register(cls):
            cls.names, cls.says = names, says
            kernels.append(cls)
            return cls

        return register

    return kernels, mutant


MUTANTS, mutant = mutants()


# The tensor's maximum, and the global scale


@mutant("amax-signed|amax-absolute")
class SignedAmax(NVFP4):
    def amax(self, x):
        return max(np.fmax.reduce(x, axis=None, initial=F(0)), F(0))


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


@mutant("all-nan|amax-nan")
class KeepsNaN(NVFP4):
    def amax(self, x):
        return np.abs(x).max(initial=0)


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


# Blocks and their scales


@mutant("block-signed|block-absolute")
class SignedBlocks(NVFP4):
    def block_amax(self, blocks):
        return np.fmax.reduce(blocks, axis=2, initial=F(0))


@mutant("block-2-across")
class Blocks32(NVFP4):
    def block_amax(self, blocks):
        a = super().block_amax(blocks)
        wide = np.pad(a, ((0, 0), (0, a.shape[1] % 2))).reshape(len(a), -(-a.shape[1] // 2), 2).max(axis=2)
        return np.repeat(wide, 2, axis=1)[:, : a.shape[1]]


@mutant("block-16-rows")
class TwoDimensional(NVFP4):
    def block_amax(self, blocks):
        a = super().block_amax(blocks)
        high = np.pad(a, ((0, -len(a) % 16), (0, 0))).reshape(-(-len(a) // 16), 16, a.shape[1]).max(axis=1)
        return np.repeat(high, 16, axis=0)[: len(a)]


@mutant("block-last-element")
class BlocksOf15(NVFP4):
    def block_amax(self, blocks):
        return super().block_amax(blocks[:, :, :-1])


@mutant("block-previous")
class NeighboursMaximum(NVFP4):
    def block_amax(self, blocks):
        a = super().block_amax(blocks)
        return np.concatenate([a[:, :1], a[:, :-1]], axis=1)


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


# Elements


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


@mutant("element-fp16")
class ElementFloat16(NVFP4):
    def encode(self, y):
        return e2m1(y.astype(np.float16).astype(F))


@mutant("used-next")
class NextBlocksScale(NVFP4):
    def scale_value(self, byte, t):
        s = value(byte)
        return np.concatenate([s[:, 1:], s[:, -1:]], axis=1)


@mutant("used-rows-128|stored-rows-128")
class FirstTileOnly(NVFP4):
    def scale_value(self, byte, t):
        return value(byte)[np.arange(len(byte)) % 128]


@mutant("encode-zero|encode-one|profile te.cpp_test_oracle|encode-not-finite")
class ZeroUnderflow(NVFP4):
    def element(self, blocks, s, s_enc, t):
        factor = np.where(s == 0, F(0), np.fmin(F(1) / (s * (F(1) / s_enc)), FLT_MAX))
        return blocks * factor[:, :, None]


@mutant("element-down")
class TiesDown(NVFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: False)


@mutant("element-away")
class TiesAway(NVFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: True)


@mutant("element-ties-up")
class TiesUp(NVFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: y > 0)


@mutant("element-truncate")
class Truncates(NVFP4):
    def encode(self, y):
        code = np.minimum(np.searchsorted(HALVES, 2 * np.abs(np.nan_to_num(y)), side="right") - 1, 7)
        return np.where(np.isnan(y), 7, code + 8 * np.signbit(y)).astype(np.uint8)


@mutant("element-inferred|element-table-quarter")
class WrongBoundary(NVFP4):
    def encode(self, y):
        return np.where((np.abs(y) > 2.5) & (np.abs(y) <= 2.6), e2m1(np.sign(y) * F(2)), e2m1(y)).astype(np.uint8)


@mutant("element-table-sixteenth")
class WrongTable(NVFP4):
    def encode(self, y):
        m = np.abs(y)
        small = np.where(m > 0.03125, 1, 0) + (m >= 0.53125) + 8 * np.signbit(y)
        return np.where(m <= 1.25, small, e2m1(y)).astype(np.uint8)


@mutant("sign-negative")
class DropsMinusZero(NVFP4):
    def encode(self, y):
        return np.where(y == 0, 0, e2m1(y)).astype(np.uint8)


@mutant("nan-0")
class NaNToZero(NVFP4):
    def encode(self, y):
        return np.where(np.isnan(y), 0, e2m1(y)).astype(np.uint8)


@mutant("input-flush")
class FlushesInput(NVFP4):
    def read(self, x):
        return np.where(np.abs(x) < np.finfo(F).tiny, np.copysign(F(0), x), x)


@mutant("element-overflow-0")
class OverflowWraps(NVFP4):
    def encode(self, y):
        return np.where(np.abs(y) >= 7, 8 * np.signbit(y), e2m1(y)).astype(np.uint8)


# Packing and layout


@mutant("nibbles")
class HighFirst(NVFP4):
    def pack(self, codes):
        data = NVFP4.pack(self, codes)
        return data << 4 | data >> 4


@mutant("layout-linear|layout-linear_padded")
class LinearScales(NVFP4):
    def place(self, scales):
        out = np.zeros(tiled(scales).size, np.uint8)
        out[: scales.size] = scales.ravel()
        return out


@mutant("layout-128x4-twice")
class TiledTwice(NVFP4):
    def place(self, scales):
        return tiled(tiled(scales))


@mutant("layout-128x4-down")
class TilesDown(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(3, 0, 2, 1, 4))


@mutant("layout-128x4-inner")
class AxesExchanged(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(0, 3, 1, 2, 4))


@mutant("layout-order|layout-128x4")
class UnnamedOrder(NVFP4):
    def place(self, scales):
        return tiled(scales, order=(3, 0, 4, 1, 2))


@mutant("layout-tiled_8x4")
class SmallTiles(NVFP4):
    def place(self, scales):
        out = np.zeros(tiled(scales).size, np.uint8)
        small = tiled(scales, 8, (0, 1, 2, 3, 4)).reshape(-(-len(scales) // 8), 8, -1, 4).transpose(0, 2, 1, 3)
        out[: small.size] = small.ravel()
        return out


@mutant("padding")
class DirtyPadding(NVFP4):
    def place(self, scales):
        mask = tiled(np.ones_like(scales))
        return np.where(mask, tiled(scales), 0x7F).astype(np.uint8)


@mutant("spare-nibble")
class DirtySpare(NVFP4):
    def pack(self, codes):
        data = super().pack(codes)
        if codes.shape[1] % 2:
            data[:, -1] |= 0x70
        return data


@mutant("stored-rows-128")
class FirstTilesBytes(NVFP4):
    def place(self, scales):
        return tiled(scales[np.arange(len(scales)) % 128])


# MX


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


@mutant("block-floor-1e-04|scale-byte-least")
class Eps(MXFP8):
    def block_amax(self, blocks):
        return np.fmax(super().block_amax(blocks), F(1e-4))


@mutant("encode-unrounded|encode-max-over-amax")
class UnroundedMX(MXFP8):
    def scale_value(self, byte, t):
        return t


@mutant("element-away")
class AwayMX(MXFP4):
    def encode(self, y):
        return e2m1(y, lambda c, y: True)


@mutant("element-flush")
class FlushesElements(MXFP8):
    def encode(self, y):
        code = super().encode(y)
        return np.where(code & 0x7F < 8, code & 0x80, code).astype(np.uint8)


@mutant("element-overflow-nan", "mx-floor|mx-ocp-floor")
class OverflowsToNaN(FloorFour):
    spec, top, emax = "mxfp8-e4m3", 448, 8

    def scale_byte(self, t):
        return np.clip((t.view(np.uint32) >> 23).astype(int) - 8, 0, 254).astype(np.uint8)

    def encode(self, y):
        code = y.astype(E4M3).view(np.uint8)
        return np.where(np.isnan(y), 0x7F, np.where(code & 0x7F == 0x7F, 0x7F | code & 0x80, code)).astype(np.uint8)

    pack = MXFP8.pack


# Hadamard


@mutant("hadamard-signs-none")
class NoSigns(RHT):
    signs = np.ones(16, F)


@mutant("hadamard-signs-reversed")
class SignsReversed(RHT):
    signs = RHT.signs[::-1]


@mutant("hadamard-no-quarter")
class NoQuarter(RHT):
    def transform(self, x):
        return self.rounded(self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * self.signs)).reshape(x.shape)


@mutant("hadamard-signs-after")
class SignsAfter(RHT):
    def transform(self, x):
        return self.rounded(self.sums(x.reshape(len(x), x.shape[1] // 16, 16) * F(0.25)) * self.signs).reshape(x.shape)


@mutant("hadamard-fp32")
class NotRounded(RHT):
    def rounded(self, y):
        return y


@mutant("hadamard-missing|profile nvfp4")
class NoTransform(RHT):
    def transform(self, x):
        return x


@mutant("amax-raw")
class AmaxBefore(RHT):
    def read(self, x):
        self.raw = super().amax(x)
        return self.transform(x)

    def amax(self, x):
        return self.raw


# Stochastic rounding


@mutant("element-even")
class NearestInstead(Stochastic):
    encode = NVFP4.encode


@mutant("element-truncate|bits-zero")
class AlwaysDown(Stochastic):
    def drawn(self, bits):
        return np.zeros_like(bits)


@mutant("random-away|element-up")
class AlwaysAway(Stochastic):
    def encode(self, y):
        code = np.searchsorted(HALVES, 2 * np.abs(y).astype(np.float64), side="left")
        return np.where(np.isnan(y), 7, np.minimum(code, 7) + 8 * np.signbit(y)).astype(np.uint8)


@mutant("random-plus-one")
class BitsPlusOne(Stochastic):
    def drawn(self, bits):
        return bits.astype(np.int16) + 1


# Two at once


@mutant("scale-division", "element-away")
class DivisionAndAway(DividedBySix):
    encode = TiesAway.encode


@mutant("amax-signed|amax-absolute", "encode-g-over-s")
class SignedAndQuotient(SignedAmax):
    element = EncodeQuotient.element


@mutant("nibbles", "layout-linear|layout-linear_padded")
class NibblesAndLinear(HighFirst):
    place = LinearScales.place


@mutant("scale-double-fp16", "layout-128x4-down")
class DoubleAndDown(ThroughFloat16):
    place = TilesDown.place


@mutant("scale-product-first", "nibbles")
class OrderAndNibbles(OtherOrder):
    pack = HighFirst.pack


@mutant("amax-last-row", "scale-codec-truncate", "element-down")
class ThreeAtOnce(AmaxWithoutLastRow):
    scale_byte = ScaleTruncated.scale_byte
    encode = TiesDown.encode


@mutant("scale-division", "all-nan|amax-nan|block-nan", "sign-negative")
class NaiveNumPy(DividedBySix):
    def amax(self, x):
        return np.abs(x).max(initial=0)

    def block_amax(self, blocks):
        return np.abs(blocks).max(axis=2, initial=0)

    def encode(self, y):
        return np.where(y == 0, 0, e2m1(y)).astype(np.uint8)
